//! Addresses that hop on a segment: a thread that adds them to the interface and removes them.
//!
//! Each is there from an epoch before it is used, without detection of duplicates, which takes a
//! second, without a route of its own, and deprecated, so that no other program sends from it. Its
//! lifetime is short and renewed: what a node that was killed leaves is soon gone by itself.
//!
//! The node has given up its privileges by then. So the thread keeps one of them, CAP_NET_ADMIN,
//! and does nothing else.

use std::collections::BTreeSet;
use std::net::{IpAddr, Ipv6Addr};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::thread::JoinHandle;
use std::time::Duration;

use anyhow::{Context, bail};
use caps::{Capability, CapsHashSet};
use nix::net::if_::InterfaceFlags;
use rtnetlink::packet_route::address::{AddressAttribute, AddressFlags, CacheInfo};
use rtnetlink::{AddressMessageBuilder, Handle};

use crate::config::HopPrefix;
use crate::privileges;

/// Addresses on the interface at once, of all links.
const ADDRESSES_MAX: usize = 256;
/// How long one stays when nobody renews it, in seconds, ...
const LIFETIME_S: u32 = 30;
/// ... and how often it is renewed.
const RENEW_EVERY: Duration = Duration::from_secs(10);
/// IFA_F_NOPREFIXROUTE of linux/if_addr.h.
const NO_PREFIX_ROUTE: u32 = 0x200;

#[derive(Default)]
struct State {
    /// The identifiers that there should be, until the thread takes them.
    wanted: Option<BTreeSet<u64>>,
    fault: Option<String>,
    /// The thread is to give up all rights but one.
    seal: bool,
    /// Whether it has, or why it could not.
    sealed: Option<Result<(), String>>,
    ended: bool,
}

#[derive(Default)]
struct Shared {
    state: Mutex<State>,
    changed: Condvar,
    answered: Condvar,
}

impl Shared {
    fn state(&self) -> MutexGuard<'_, State> {
        // A panic under the lock leaves the sets whole.
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// The interface whose segment has the prefix: its name, its number, and the identifiers under the
/// prefix that are this machine's own.
pub struct Segment {
    /// Its name.
    pub name: String,
    index: u32,
    /// Identifiers of addresses that stay.
    pub own: Vec<u64>,
}

impl Segment {
    /// Finds it: the interface that has an address under the prefix, and is no loopback.
    pub fn find(prefix: HopPrefix) -> anyhow::Result<Option<Segment>> {
        let all = nix::ifaddrs::getifaddrs().context("[hop]: can't list addresses")?;
        let mut found: Option<Segment> = None;
        let is_segment = |at: &nix::ifaddrs::InterfaceAddress| {
            !at.flags.intersects(InterfaceFlags::IFF_LOOPBACK | InterfaceFlags::IFF_POINTOPOINT)
        };
        for at in all.filter(is_segment) {
            let ip = at.address.as_ref().and_then(|a| a.as_sockaddr_in6()).map(|v6| v6.ip());
            let Some(ip) = ip.filter(|ip| ip.octets().starts_with(&prefix.0)) else { continue };
            let identifier = u128::from(ip) as u64;
            match &mut found {
                Some(segment) if segment.name == at.interface_name => segment.own.push(identifier),
                Some(segment) => bail!(
                    "[hop] prefix: {} and {} both have addresses under it",
                    segment.name,
                    at.interface_name
                ),
                None => {
                    let index = nix::net::if_::if_nametoindex(at.interface_name.as_str())?;
                    let own = vec![identifier];
                    found = Some(Segment { name: at.interface_name, index, own });
                }
            }
        }
        Ok(found)
    }
}

/// Removes its addresses, and ends its thread, when it is dropped.
pub struct HopAddresses {
    shared: Arc<Shared>,
    thread: Option<JoinHandle<()>>,
}

impl HopAddresses {
    /// Starts the thread, before privileges are given up. It does nothing until the first call of
    /// [`Self::seal`] or [`Self::set`], which must come after that.
    pub fn start(segment: &Segment, prefix: HopPrefix) -> anyhow::Result<HopAddresses> {
        let shared = Arc::new(Shared::default());
        let theirs = shared.clone();
        let place = Place { interface: segment.index, prefix };
        let (said, ready) = std::sync::mpsc::sync_channel(1);
        let work = move || {
            // The permitted capabilities stay when the process becomes another user.
            let kept = caps::securebits::set_keepcaps(true);
            if said.send(kept.map_err(|e| e.to_string())).is_ok() {
                serve(&theirs, place);
            }
        };
        let thread = std::thread::Builder::new().name("shoal-hops".into()).spawn(work);
        let thread = thread.context("can't start the thread for addresses that hop")?;
        let kept = ready.recv().context("the thread for addresses that hop ended")?;
        kept.map_err(|e| anyhow::anyhow!("[hop] mode: {e}"))?;
        Ok(HopAddresses { shared, thread: Some(thread) })
    }

    /// Has the thread give up all rights but the one to change addresses; returns when it has.
    pub fn seal(&self) -> anyhow::Result<()> {
        let mut state = self.shared.state();
        state.seal = true;
        self.shared.changed.notify_one();
        loop {
            match &state.sealed {
                Some(sealed) => return sealed.clone().map_err(anyhow::Error::msg),
                None => {
                    let answered = self.shared.answered.wait(state);
                    state = answered.unwrap_or_else(PoisonError::into_inner);
                }
            }
        }
    }

    /// Has the interface have these addresses and no others; does not wait for it.
    pub fn set(&self, wanted: BTreeSet<u64>) {
        self.shared.state().wanted = Some(wanted);
        self.shared.changed.notify_one();
    }

    /// Why the interface does not have them all.
    pub fn fault(&self) -> Option<String> {
        self.shared.state().fault.clone()
    }
}

impl Drop for HopAddresses {
    fn drop(&mut self) {
        self.shared.state().ended = true;
        self.shared.changed.notify_one();
        let _panicked = self.thread.take().map(JoinHandle::join);
    }
}

/// Where the addresses are.
#[derive(Clone, Copy)]
struct Place {
    interface: u32,
    prefix: HopPrefix,
}

impl Place {
    fn address(&self, identifier: u64) -> Ipv6Addr {
        (u128::from(self.prefix.address()) | u128::from(identifier)).into()
    }
}

fn serve(shared: &Shared, place: Place) {
    let (mut wanted, mut held) = (BTreeSet::new(), BTreeSet::new());
    loop {
        let mut state = shared.state();
        loop {
            if state.seal && state.sealed.is_none() {
                state.sealed = Some(keep_one_capability().map_err(|e| format!("{e:#}")));
                shared.answered.notify_all();
            }
            if state.ended {
                wanted.clear();
                break;
            }
            if let Some(new) = state.wanted.take() {
                wanted = new;
                break;
            }
            let waited = shared.changed.wait_timeout(state, RENEW_EVERY);
            let (again, timeout) = waited.unwrap_or_else(PoisonError::into_inner);
            state = again;
            if timeout.timed_out() && !held.is_empty() {
                break;
            }
        }
        let ended = state.ended;
        drop(state);
        let outcome = keep_one_capability().and_then(|()| {
            let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
            runtime.block_on(change(place, &mut held, &wanted))
        });
        if ended {
            return;
        }
        let fault = outcome.err().map(|error| format!("{error:#}"));
        let mut state = shared.state();
        if fault.is_some() && state.fault.is_none() {
            tracing::error!("[hop]: addresses are missing on the segment: see `shoal status`");
        }
        state.fault = fault;
    }
}

/// Gives up everything but what addresses need, in this thread.
fn keep_one_capability() -> anyhow::Result<()> {
    privileges::keep_capabilities(&CapsHashSet::from([Capability::CAP_NET_ADMIN]))
        .context("no address can be added without CAP_NET_ADMIN: start with it")?;
    privileges::gain_nothing()
}

/// Brings `held` to what is `wanted`, and begins all lifetimes anew.
///
/// Errors: why some could not be had. A link that should hop to one falls back by itself.
async fn change(
    place: Place,
    held: &mut BTreeSet<u64>,
    wanted: &BTreeSet<u64>,
) -> anyhow::Result<()> {
    let (connection, handle, _) =
        rtnetlink::new_connection().context("can't open a netlink socket")?;
    let served = tokio::spawn(connection);
    let gone: Vec<u64> = held.difference(wanted).copied().collect();
    for id in gone {
        let mut message = AddressMessageBuilder::<Ipv6Addr>::new();
        message = message.index(place.interface).address(place.address(id), 128);
        // If it fails, its lifetime has ended, or somebody else has removed it.
        let _gone = handle.address().del(message.build()).execute().await;
        held.remove(&id);
    }
    let (mut failed, mut first) = (0, None);
    for &id in wanted.iter().take(ADDRESSES_MAX) {
        match add(&handle, place, id, held.contains(&id)).await {
            Ok(()) => {
                held.insert(id);
            }
            Err(error) => {
                held.remove(&id);
                failed += 1;
                first.get_or_insert(error);
            }
        }
    }
    served.abort();
    match first {
        Some(error) => bail!("{failed} addresses can't be added: {error}"),
        None if wanted.len() > ADDRESSES_MAX => {
            let many = wanted.len();
            bail!("{many} addresses are in use, and a segment gets {ADDRESSES_MAX} at most")
        }
        None => Ok(()),
    }
}

/// Adds an address, or begins its lifetime anew. One that is new must not be there: somebody else's
/// would be lost with this node.
async fn add(handle: &Handle, place: Place, id: u64, renew: bool) -> Result<(), rtnetlink::Error> {
    let ip = IpAddr::V6(place.address(id));
    let mut request = handle.address().add(place.interface, ip, 128);
    let flags = AddressFlags::Nodad | AddressFlags::from_bits_retain(NO_PREFIX_ROUTE);
    let mut lifetime = CacheInfo::default();
    lifetime.ifa_valid = LIFETIME_S;
    let attributes = &mut request.message_mut().attributes;
    attributes.extend([AddressAttribute::Flags(flags), AddressAttribute::CacheInfo(lifetime)]);
    if renew { request.replace().execute().await } else { request.execute().await }
}
