//! The virtual interface as the node made it, and its upkeep while other programs change it.
//!
//! Network managers, scripts and people take the interface down, flush its addresses and routes,
//! set another MTU, or delete it. The node puts right what is its own: the device, its state and
//! MTU, its addresses, and the routes to the networks that these are in. A program that goes on
//! with its changes wins: the node rests then, and says so.

use std::collections::VecDeque;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use rtnetlink::packet_route::address::AddressAttribute;
use rtnetlink::packet_route::link::{LinkAttribute, LinkFlags};
use rtnetlink::packet_route::route::{RouteMessage, RouteProtocol, RouteScope};
use rtnetlink::{Handle, LinkUnspec, RouteMessageBuilder};
use shoal_directory::Prefix;

use crate::tun::changes;
use crate::tun::device::{Asks, Attachment, not_made};
use crate::tun::{source_rules, subnets};

/// Segments in one super-frame of the kernel: what one send of the relay holds.
const SEGMENTS_MAX: u32 = 44;
/// Packets and super-frames that may wait in the kernel: 10 ms of 200,000 small datagrams a second,
/// since a busy machine keeps a thread waiting for longer than the default of 500 lasts.
const QUEUE_PACKETS: u32 = 2_000;
/// The metric that the kernel gives routes to the IPv6 networks of an interface's addresses.
const METRIC_OWN_IPV6: u32 = 256;

/// Repairs within [`WINDOW`] after which the node leaves the interface to whoever changes it, ...
pub(crate) const REPAIRS_MAX: usize = 10;
const WINDOW: Duration = Duration::from_secs(60);
/// ... for so long.
const REST: Duration = Duration::from_secs(600);
/// How long the status tells of a repair.
const RECENT: Duration = Duration::from_secs(600);
/// How often the node looks though no change was heard of: the kernel tells of some changes to
/// nobody, such as IPv4 routes that go with an interface that is taken down.
const LOOK_EVERY: Duration = Duration::from_secs(60);
/// How often it looks while something is missing.
const RETRY_EVERY: Duration = Duration::from_secs(3);

const ADVICE: &str = "have that program leave the interface alone (NetworkManager: \
                      unmanaged-devices; systemd-networkd: Unmanaged=yes and \
                      ManageForeignRoutes=no)";

/// Properties that the node sets at its interface.
pub(crate) struct Settings {
    /// The interface's name.
    pub(crate) name: String,
    /// Bytes of the longest packet.
    pub(crate) mtu: u32,
    /// Addresses with the lengths of their networks' prefixes.
    pub(crate) addresses: Vec<(IpAddr, u8)>,
    /// The metric of the route to its IPv4 network. A high one lets a network that the machine
    /// joins later keep its addresses, such as the wireless network of another place.
    pub(crate) ipv4_metric: u32,
}

impl Settings {
    /// Sets MTU, queue and state.
    pub(crate) async fn set_link(
        &self,
        kernel: &Handle,
        index: u32,
    ) -> Result<(), rtnetlink::Error> {
        // No link-local address: nobody on this link could answer to it. Kernels without IPv6 have
        // no such file.
        let _ = std::fs::write(format!("/proc/sys/net/ipv6/conf/{}/addr_gen_mode", self.name), "1");
        let up = LinkUnspec::new_with_index(index)
            .mtu(self.mtu)
            .append_extra_attribute(LinkAttribute::GsoMaxSegs(SEGMENTS_MAX))
            .append_extra_attribute(LinkAttribute::TxQueueLen(QUEUE_PACKETS))
            .append_extra_attribute(LinkAttribute::IfAlias(subnets::ALIAS.into()))
            .up()
            .build();
        kernel.link().set(up).execute().await
    }

    /// Adds an address, with the route to its network.
    async fn add(
        &self,
        kernel: &Handle,
        index: u32,
        (address, bits): (IpAddr, u8),
    ) -> Result<(), rtnetlink::Error> {
        let mut request = kernel.address().add(index, address, bits);
        if address.is_ipv4() {
            let metric = AddressAttribute::RoutePriority(self.ipv4_metric);
            request.message_mut().attributes.push(metric);
        }
        request.execute().await
    }

    /// The route that the kernel itself adds with an address.
    fn own_route(&self, index: u32, (address, bits): (IpAddr, u8)) -> Option<RouteMessage> {
        let network = Prefix::around(address, bits)?;
        match (address, network.ip()) {
            (IpAddr::V4(own), IpAddr::V4(ip)) if bits < 32 => Some(
                RouteMessageBuilder::<Ipv4Addr>::new()
                    .destination_prefix(ip, bits)
                    .output_interface(index)
                    .protocol(RouteProtocol::Kernel)
                    .scope(RouteScope::Link)
                    .pref_source(own)
                    .priority(self.ipv4_metric)
                    .build(),
            ),
            (IpAddr::V6(_), IpAddr::V6(ip)) if bits < 128 => Some(
                RouteMessageBuilder::<Ipv6Addr>::new()
                    .destination_prefix(ip, bits)
                    .output_interface(index)
                    .protocol(RouteProtocol::Kernel)
                    .priority(METRIC_OWN_IPV6)
                    .build(),
            ),
            _ => None,
        }
    }
}

/// True if this kernel gives the interface no IPv6 address.
pub(crate) fn is_ipv6_off(name: &str) -> bool {
    let set = std::fs::read_to_string(format!("/proc/sys/net/ipv6/conf/{name}/disable_ipv6"));
    let exists = |path: &str| std::path::Path::new(path).exists();
    match set {
        Ok(text) => text.trim_end() != "0",
        // Without /proc IPv6 may be there all the same, and an interface that is gone has no file.
        Err(_) => exists("/proc/sys/net") && !exists("/proc/sys/net/ipv6"),
    }
}

/// State of the interface at the last look.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) enum InterfaceState {
    /// All is as the node set it.
    #[default]
    Up,
    /// Something is missing, and a warning says what.
    Incomplete,
    /// There is no such interface.
    Gone,
    /// Another program keeps changing it, and the node leaves it so.
    LeftAlone,
}

impl InterfaceState {
    /// The state in a word, for people and programs.
    pub(crate) fn as_str(self) -> &'static str {
        match self {
            InterfaceState::Up => "up",
            InterfaceState::Incomplete => "incomplete",
            InterfaceState::Gone => "gone",
            InterfaceState::LeftAlone => "left alone",
        }
    }
}

/// The result of the last look; a clone is another handle to the same.
#[derive(Clone, Default)]
pub(crate) struct InterfaceView(Arc<Mutex<Look>>);

#[derive(Default)]
struct Look {
    state: InterfaceState,
    warning: Option<String>,
    /// Somebody wants the interface put right, even if the thread rests.
    is_asked: bool,
}

impl InterfaceView {
    fn lock(&self) -> MutexGuard<'_, Look> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// State at the last look, and a warning about repairs.
    pub(crate) fn get(&self) -> (InterfaceState, Option<String>) {
        let look = self.lock();
        (look.state, look.warning.clone())
    }

    /// Has the next look put the interface right, even if the thread rests.
    pub(crate) fn ask(&self) {
        self.lock().is_asked = true;
    }
}

/// Decides whether there is another repair.
#[derive(Debug, Default)]
struct Patience {
    /// Repairs within the last [`WINDOW`].
    repairs: VecDeque<Instant>,
    rests_until: Option<Instant>,
    /// Repairs since the start; when and what the last was.
    count: u64,
    last: Option<(Instant, String)>,
}

impl Patience {
    fn rests(&self, now: Instant) -> bool {
        self.rests_until.is_some_and(|until| now < until)
    }

    /// Somebody asked for the interface to be put right.
    fn forgive(&mut self) {
        (self.rests_until, self.repairs) = (None, VecDeque::new());
    }

    /// Notes a repair; true if it is the last one for a while.
    fn note(&mut self, now: Instant, what: String) -> bool {
        self.repairs.retain(|at| now.duration_since(*at) < WINDOW);
        self.repairs.push_back(now);
        (self.count, self.last) = (self.count + 1, Some((now, what)));
        let ends = self.repairs.len() >= REPAIRS_MAX;
        if ends {
            self.rests_until = Some(now + REST);
            self.repairs.clear();
        }
        ends
    }

    fn warning(&self, now: Instant) -> Option<String> {
        let (at, what) = self.last.as_ref()?;
        if self.rests(now) {
            return Some(format!(
                "[interface]: another program changes the interface again and again ({what}): the \
                 node leaves it as it is for {} minutes, or until `shoal reload`; {ADVICE}",
                REST.as_secs() / 60
            ));
        }
        let times = if self.count == 1 { "once".into() } else { format!("{} times", self.count) };
        (now.duration_since(*at) < RECENT).then(|| {
            format!(
                "[interface]: another program changed the interface {times} since the start (the \
                 last time: {what}), and the node put it right; {ADVICE}"
            )
        })
    }
}

/// Keeps the interface.
pub(crate) struct Upkeep {
    settings: Settings,
    attachment: Attachment,
    /// The interface's number; 0 while there is none.
    index: Arc<AtomicU32>,
    view: InterfaceView,
    patience: Patience,
    look_at: Instant,
    /// Properties that were put right in the look that goes on.
    repaired: Vec<&'static str>,
}

impl Upkeep {
    /// The upkeep of an interface that has just been set up under this number.
    pub(crate) fn new(settings: Settings, attachment: Attachment, index: u32) -> Upkeep {
        Upkeep {
            settings,
            attachment,
            index: Arc::new(AtomicU32::new(index)),
            view: InterfaceView::default(),
            patience: Patience::default(),
            look_at: Instant::now() + LOOK_EVERY,
            repaired: Vec::new(),
        }
    }

    /// The result of the last look, for the status.
    pub(crate) fn view(&self) -> InterfaceView {
        self.view.clone()
    }

    /// The interface's number, as it changes.
    pub(crate) fn shared_index(&self) -> Arc<AtomicU32> {
        Arc::clone(&self.index)
    }

    /// The interface's number.
    pub(crate) fn index(&self) -> u32 {
        self.index.load(Ordering::Relaxed)
    }

    /// When to look again.
    pub(crate) fn due(&self) -> Instant {
        self.look_at
    }

    /// Puts right what is wrong, even if the node rests: somebody asked for it.
    pub(crate) fn forgive(&mut self) {
        self.patience.forgive();
    }

    /// True while the node leaves the interface to whoever keeps changing it.
    pub(crate) fn rests(&mut self) -> bool {
        if std::mem::take(&mut self.view.lock().is_asked) {
            self.patience.forgive();
        }
        self.patience.rests(Instant::now())
    }

    /// Notes something else that was missing and was put right in the look that goes on.
    pub(crate) fn note(&mut self, what: &'static str) {
        if !self.repaired.contains(&what) {
            self.repaired.push(what);
        }
    }

    /// Looks at device, state and addresses, and puts them right. Returns the faults that are left,
    /// and whether the device is a new one, whose routes are all missing.
    pub(crate) async fn put_right(&mut self, kernel: &Handle) -> (Vec<String>, bool) {
        let is_new = match self.device(kernel).await {
            Ok(is_new) => is_new,
            Err(fault) => {
                self.set_state(InterfaceState::Gone);
                return (vec![fault], false);
            }
        };
        let mut faults = self.link(kernel).await.err().into_iter().collect::<Vec<_>>();
        faults.extend(self.addresses(kernel, is_new).await);
        if !self.repaired.is_empty() {
            // Routes of the tables by source went with what was put right.
            source_rules::add(kernel, self.index(), &self.settings.addresses).await;
        }
        let complete = faults.is_empty();
        self.set_state(if complete { InterfaceState::Up } else { InterfaceState::Incomplete });
        (faults, is_new)
    }

    fn set_state(&mut self, state: InterfaceState) {
        self.view.lock().state = state;
    }

    /// Ends a look that left so many faults: says what was put right, and when the next look is.
    pub(crate) fn finish(&mut self, faults: usize) {
        let now = Instant::now();
        let repaired = std::mem::take(&mut self.repaired);
        if !repaired.is_empty() {
            let what = repaired.join(", ");
            tracing::warn!("[interface]: another program changed it, the node put right: {what}");
            if self.patience.note(now, what) {
                tracing::error!(
                    "[interface]: another program changes it again and again: the node leaves it \
                     as it is for {} minutes, or until `shoal reload`",
                    REST.as_secs() / 60
                );
            }
        }
        let rests = self.patience.rests(now);
        let mut view = self.view.lock();
        if rests {
            view.state = InterfaceState::LeftAlone;
        } else if faults > 0 && view.state == InterfaceState::Up {
            view.state = InterfaceState::Incomplete;
        }
        view.warning = self.patience.warning(now);
        let every = if faults > 0 && !rests { RETRY_EVERY } else { LOOK_EVERY };
        self.look_at = now + every;
    }

    /// Makes the device again if it was deleted; true if it was.
    async fn device(&mut self, kernel: &Handle) -> Result<bool, String> {
        let Settings { name, .. } = &self.settings;
        if self.attachment.is_attached() {
            return Ok(false);
        }
        self.index.store(0, Ordering::Relaxed);
        let made = self.attachment.make_again();
        made.map_err(|error| format!("{:#}", not_made(&Asks::interface(name), &error)))?;
        let index = nix::net::if_::if_nametoindex(name.as_str());
        let index = index.map_err(|error| format!("[interface] name: {name:?}: {error}"))?;
        let set = self.settings.set_link(kernel, index).await;
        set.map_err(|error| format!("[interface]: {name:?} can't be brought up: {error}"))?;
        self.index.store(index, Ordering::Relaxed);
        self.note("it was deleted");
        Ok(true)
    }

    /// Puts state and MTU right.
    async fn link(&mut self, kernel: &Handle) -> Result<(), String> {
        let (index, name) = (self.index(), &self.settings.name);
        let link = changes::link(index).map_err(|error| match error.raw_os_error() {
            Some(libc::ENODEV) => format!(
                "[interface]: {name:?} is in another network namespace: move it back, or restart \
                 the node"
            ),
            _ => format!("[interface]: the kernel does not say how {name:?} is: {error}"),
        })?;
        let is_up = link.header.flags.contains(LinkFlags::Up);
        let mtu = link.attributes.iter().find_map(|attribute| match attribute {
            LinkAttribute::Mtu(mtu) => Some(*mtu),
            _ => None,
        });
        let is_as_long = mtu.is_none_or(|mtu| mtu == self.settings.mtu);
        if is_up && is_as_long {
            return Ok(());
        }
        let set = self.settings.set_link(kernel, index).await;
        set.map_err(|error| format!("[interface]: {name:?} can't be brought up: {error}"))?;
        if !is_up {
            self.note("its state (down)");
        }
        if !is_as_long {
            self.note("its MTU");
        }
        Ok(())
    }

    /// Adds addresses that are missing, and routes to their networks.
    async fn addresses(&mut self, kernel: &Handle, is_new: bool) -> Vec<String> {
        let (index, mut faults) = (self.index(), Vec::new());
        for (address, bits) in self.settings.addresses.clone() {
            if address.is_ipv6() && is_ipv6_off(&self.settings.name) {
                faults.push(ipv6_is_off(&self.settings.name));
                continue;
            }
            let added = self.settings.add(kernel, index, (address, bits)).await;
            match added {
                Ok(()) if !is_new => self.note("an address"),
                Err(error) if !is_there(&error) => {
                    faults
                        .push(format!("[interface]: it can't have the address {address}: {error}"));
                    continue;
                }
                _ => {}
            }
            let route = self.settings.own_route(index, (address, bits));
            let Some(route) = route else { continue };
            match kernel.route().add(route).execute().await {
                // The kernel adds the route with the address, so another program removed it.
                Ok(()) if !is_new => self.note("the route to its network"),
                Err(error) if !is_there(&error) => {
                    faults.push(format!("[interface]: no route to its network: {error}"));
                }
                _ => {}
            }
        }
        faults
    }
}

/// The warning of a node whose interface has its IPv4 address alone.
pub(crate) fn ipv6_is_off(name: &str) -> String {
    format!(
        "[interface]: IPv6 is turned off at it, so programs reach hosts by IPv4 alone: set \
         net.ipv6.conf.{name}.disable_ipv6 = 0 with sysctl (and net.ipv6.conf.default.disable_ipv6 \
         for the next start)"
    )
}

/// True if what was to be added is there already.
pub(crate) fn is_there(error: &rtnetlink::Error) -> bool {
    matches!(error, rtnetlink::Error::NetlinkError(said) if said.raw_code() == -libc::EEXIST)
}

/// Sets up an interface that was just made; returns its number.
///
/// # Errors
/// The kernel refuses a change. An IPv6 address that it refuses since IPv6 is off is no error if
/// there is another address.
pub(crate) async fn set_up(kernel: &Handle, settings: &Settings) -> anyhow::Result<u32> {
    use anyhow::Context;
    let name = &settings.name;
    let index = nix::net::if_::if_nametoindex(name.as_str())
        .with_context(|| format!("[interface] name: {name:?} vanished"))?;
    let set = settings.set_link(kernel, index).await;
    set.with_context(|| format!("[interface]: {name:?} can't be brought up"))?;
    for &(address, bits) in &settings.addresses {
        if address.is_ipv6() && settings.addresses.len() > 1 && is_ipv6_off(name) {
            continue;
        }
        let added = settings.add(kernel, index, (address, bits)).await;
        added.with_context(|| {
            format!(
                "[interface]: {name:?} can't have the address {address}: is IPv6 turned off \
                 (net.ipv6.conf.all.disable_ipv6), or the address on another interface?"
            )
        })?;
    }
    Ok(index)
}
