//! Maintenance of the virtual interface while other programs change it.
//!
//! Network managers, scripts and people may take the interface down, flush its addresses and
//! routes, set another MTU, or delete it. The node restores its own settings: the device, its state
//! and MTU, its addresses, and the routes to their networks. If a program keeps changing them, the
//! node stops restoring them for a while, and warns.

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
use crate::tun::device::{Attachment, DeviceSetting, not_made};
use crate::tun::{source_rules, subnets};

/// Segments in one super-frame of the kernel: the content of one send of the relay.
const SEGMENTS_MAX: u32 = 44;
/// Packets and super-frames that may wait in the kernel: 10 ms of 200,000 small datagrams a second.
/// On a busy machine a thread may wait longer than the default of 500 covers.
const QUEUE_PACKETS: u32 = 2_000;
/// The metric of the kernel's routes to the IPv6 networks of an interface's addresses.
const METRIC_OWN_IPV6: u32 = 256;

/// Repairs within [`WINDOW`] after which the node makes none for [`REST`].
pub(crate) const REPAIRS_MAX: usize = 10;
const WINDOW: Duration = Duration::from_secs(60);
/// Pause without repairs.
const REST: Duration = Duration::from_secs(600);
/// Time for which the status shows a repair.
const RECENT: Duration = Duration::from_secs(600);
/// Time between two checks without reported changes. The kernel does not report all changes, such
/// as IPv4 routes lost when an interface goes down.
const LOOK_EVERY: Duration = Duration::from_secs(60);
/// Time between two checks while something is missing.
const RETRY_EVERY: Duration = Duration::from_secs(3);

const ADVICE: &str = "tell that program to leave the interface alone (NetworkManager: \
                      unmanaged-devices; systemd-networkd: Unmanaged=yes and \
                      ManageForeignRoutes=no)";

/// Properties that the node sets at its interface.
pub(crate) struct InterfaceSettings {
    pub(crate) name: String,
    /// Longest packet, in bytes.
    pub(crate) mtu: u32,
    /// Addresses with the lengths of their networks' prefixes.
    pub(crate) addresses: Vec<(IpAddr, u8)>,
    /// The metric of the route to its IPv4 network. A high one lets a network that the machine
    /// joins later keep its addresses, such as the wireless network of another place.
    pub(crate) ipv4_metric: u32,
}

impl InterfaceSettings {
    /// Sets MTU, queue and state.
    pub(crate) async fn set_link(
        &self,
        kernel: &Handle,
        index: u32,
    ) -> Result<(), rtnetlink::Error> {
        // The interface gets no link-local address: nobody on this link could answer to it. Kernels
        // without IPv6 have no such file.
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

    /// Adds an address. The kernel adds the route to its network.
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

    /// The route that the kernel adds with an address.
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
        // Without /proc IPv6 may exist, and a missing interface has no file.
        Err(_) => exists("/proc/sys/net") && !exists("/proc/sys/net/ipv6"),
    }
}

/// State of the interface at the last check.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) enum InterfaceState {
    /// All settings are in place.
    #[default]
    Up,
    /// A setting is missing, and a warning names it.
    Incomplete,
    /// There is no such interface.
    Gone,
    /// Another program keeps changing the interface, and the node makes no repairs.
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

/// The result of the last check. Clones share it.
#[derive(Clone, Default)]
pub(crate) struct InterfaceView(Arc<Mutex<InterfaceCheck>>);

#[derive(Default)]
struct InterfaceCheck {
    state: InterfaceState,
    warning: Option<String>,
    /// True if somebody asked for a repair, even if the thread rests.
    is_asked: bool,
}

impl InterfaceView {
    fn lock(&self) -> MutexGuard<'_, InterfaceCheck> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// State at the last check, and a warning about repairs.
    pub(crate) fn get(&self) -> (InterfaceState, Option<String>) {
        let look = self.lock();
        (look.state, look.warning.clone())
    }

    /// Makes the next check repair the interface, even if the thread rests.
    pub(crate) fn ask(&self) {
        self.lock().is_asked = true;
    }
}

/// Limits the number of repairs.
#[derive(Debug, Default)]
struct RepairLimit {
    /// Repairs within the last [`WINDOW`].
    repairs: VecDeque<Instant>,
    rests_until: Option<Instant>,
    /// Repairs since the start, and time and content of the last one.
    count: u64,
    last: Option<(Instant, String)>,
}

impl RepairLimit {
    fn rests(&self, now: Instant) -> bool {
        self.rests_until.is_some_and(|until| now < until)
    }

    /// Allows repairs again, since somebody asked for one.
    fn forgive(&mut self) {
        (self.rests_until, self.repairs) = (None, VecDeque::new());
    }

    /// Notes a repair. True if a pause begins.
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
                "[interface]: another program changed the interface {times} since the start (last: \
                 {what}), and the node put it right; {ADVICE}"
            )
        })
    }
}

/// Maintains the interface.
pub(crate) struct Upkeep {
    settings: InterfaceSettings,
    attachment: Attachment,
    /// The interface's number; 0 while there is no interface.
    index: Arc<AtomicU32>,
    view: InterfaceView,
    patience: RepairLimit,
    look_at: Instant,
    /// Properties that the current check has repaired.
    repaired: Vec<&'static str>,
}

impl Upkeep {
    /// The upkeep of an interface that was just set up under this number.
    pub(crate) fn new(settings: InterfaceSettings, attachment: Attachment, index: u32) -> Upkeep {
        Upkeep {
            settings,
            attachment,
            index: Arc::new(AtomicU32::new(index)),
            view: InterfaceView::default(),
            patience: RepairLimit::default(),
            look_at: Instant::now() + LOOK_EVERY,
            repaired: Vec::new(),
        }
    }

    /// The result of the last check, for the status.
    pub(crate) fn view(&self) -> InterfaceView {
        self.view.clone()
    }

    /// The interface's number, which the thread updates.
    pub(crate) fn shared_index(&self) -> Arc<AtomicU32> {
        Arc::clone(&self.index)
    }

    pub(crate) fn index(&self) -> u32 {
        self.index.load(Ordering::Relaxed)
    }

    /// Time of the next check.
    pub(crate) fn due(&self) -> Instant {
        self.look_at
    }

    /// Allows repairs again, since somebody asked for one.
    pub(crate) fn forgive(&mut self) {
        self.patience.forgive();
    }

    /// True while the node makes no repairs.
    pub(crate) fn rests(&mut self) -> bool {
        if std::mem::take(&mut self.view.lock().is_asked) {
            self.patience.forgive();
        }
        self.patience.rests(Instant::now())
    }

    /// Notes another property that the current check repaired.
    pub(crate) fn note(&mut self, what: &'static str) {
        if !self.repaired.contains(&what) {
            self.repaired.push(what);
        }
    }

    /// Checks and restores device, state and addresses. Returns the remaining faults, and whether
    /// the device is new, so that all its routes are missing.
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
            // Other programs' changes also removed the routes of the tables by source.
            source_rules::add(kernel, self.index(), &self.settings.addresses).await;
        }
        let complete = faults.is_empty();
        self.set_state(if complete { InterfaceState::Up } else { InterfaceState::Incomplete });
        (faults, is_new)
    }

    fn set_state(&mut self, state: InterfaceState) {
        self.view.lock().state = state;
    }

    /// Ends a check with this number of faults: logs its repairs, and sets the time of the next
    /// one.
    pub(crate) fn finish(&mut self, faults: usize) {
        let now = Instant::now();
        let repaired = std::mem::take(&mut self.repaired);
        if !repaired.is_empty() {
            let what = repaired.join(", ");
            tracing::warn!(
                "[interface]: another program changed it, and the node restored: {what}"
            );
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

    /// Creates the device again if it was deleted. True if it was.
    async fn device(&mut self, kernel: &Handle) -> Result<bool, String> {
        let InterfaceSettings { name, .. } = &self.settings;
        if self.attachment.is_attached() {
            return Ok(false);
        }
        self.index.store(0, Ordering::Relaxed);
        let made = self.attachment.make_again();
        made.map_err(|error| format!("{:#}", not_made(&DeviceSetting::interface(name), &error)))?;
        let index = nix::net::if_::if_nametoindex(name.as_str());
        let index = index.map_err(|error| format!("[interface] name: {name:?}: {error}"))?;
        let set = self.settings.set_link(kernel, index).await;
        set.map_err(|error| format!("[interface]: {name:?} can't be brought up: {error}"))?;
        self.index.store(index, Ordering::Relaxed);
        self.note("the deleted device");
        Ok(true)
    }

    /// Restores state and MTU.
    async fn link(&mut self, kernel: &Handle) -> Result<(), String> {
        let (index, name) = (self.index(), &self.settings.name);
        let link = changes::link(index).map_err(|error| match error.raw_os_error() {
            Some(libc::ENODEV) => format!(
                "[interface]: {name:?} is in another network namespace: move it back, or restart \
                 the node"
            ),
            _ => format!("[interface]: the kernel does not describe {name:?}: {error}"),
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
            self.note("the state (down)");
        }
        if !is_as_long {
            self.note("the MTU");
        }
        Ok(())
    }

    /// Adds missing addresses, and routes to their networks.
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
                    faults.push(format!(
                        "[interface]: the kernel refuses the address {address}: \
                                       {error}"
                    ));
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
                    faults.push(format!(
                        "[interface]: no route to the network of {address}: {error}"
                    ));
                }
                _ => {}
            }
        }
        faults
    }
}

/// Warning for an interface with only an IPv4 address.
pub(crate) fn ipv6_is_off(name: &str) -> String {
    format!(
        "[interface]: IPv6 is turned off at {name}, so programs reach hosts by IPv4 alone: set \
         net.ipv6.conf.{name}.disable_ipv6 = 0 with sysctl (and net.ipv6.conf.default.disable_ipv6 \
         for the next start)"
    )
}

/// True if the kernel already has the object that was to be added.
pub(crate) fn is_there(error: &rtnetlink::Error) -> bool {
    matches!(error, rtnetlink::Error::NetlinkError(said) if said.raw_code() == -libc::EEXIST)
}

/// Sets up an interface that was just created. Returns its number.
///
/// # Errors
/// The kernel refuses a change. A refused IPv6 address is no error if IPv6 is off and there is
/// another address.
pub(crate) async fn set_up(kernel: &Handle, settings: &InterfaceSettings) -> anyhow::Result<u32> {
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
