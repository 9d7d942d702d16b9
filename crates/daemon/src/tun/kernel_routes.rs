//! Routes of the kernel into the virtual interface: a thread that sets and withdraws them.
//!
//! Lists of hosts change while the node runs, and by then it has given up its privileges. So this
//! thread keeps one of them, CAP_NET_ADMIN, and does nothing else. The
//! kernel removes the routes with the interface, however the process ends.

use std::collections::BTreeSet;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};

use anyhow::Context;
use caps::{Capability, CapsHashSet};
use rtnetlink::packet_route::route::{RouteMessage, RouteScope};
use rtnetlink::{Handle, RouteMessageBuilder};
use shoal_directory::Prefix;

use crate::control::journal;
use crate::privileges;

/// The metric of these routes: high, so that other routes to the same network win.
const METRIC: u32 = 4_096;

/// A route; programs without an address of their own send from `source`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Route {
    /// Where to.
    pub prefix: Prefix,
    /// For IPv4, if the interface has no such address.
    pub source: Option<Ipv4Addr>,
}

#[derive(Default)]
struct State {
    /// The routes that there should be, until the thread takes them.
    wanted: Option<BTreeSet<Route>>,
    faults: Vec<String>,
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
        // A panic under the lock leaves the lists whole.
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Ends its thread when it is dropped.
pub struct KernelRoutes(Arc<Shared>);

impl KernelRoutes {
    /// Starts the thread for the interface with this number, before privileges are given up. It
    /// does nothing until the first call of [`Self::seal`] or [`Self::set`], which must come after
    /// that.
    pub fn start(interface: u32) -> anyhow::Result<KernelRoutes> {
        let shared = Arc::new(Shared::default());
        let theirs = shared.clone();
        let (said, ready) = std::sync::mpsc::sync_channel(1);
        let work = move || {
            // The permitted capabilities stay when the process becomes another user.
            let kept = caps::securebits::set_keepcaps(true);
            if said.send(kept.map_err(|e| e.to_string())).is_ok() {
                serve(&theirs, interface);
            }
        };
        let thread = std::thread::Builder::new().name("shoal-routes".into()).spawn(work);
        thread.context("can't start the thread for routes")?;
        let kept = ready.recv().context("the thread for routes ended")?;
        kept.map_err(|e| anyhow::anyhow!("[interface] accept_prefixes: {e}"))?;
        Ok(KernelRoutes(shared))
    }

    /// Has the thread give up all rights but the one to set routes; returns when it has.
    pub fn seal(&self) -> anyhow::Result<()> {
        let mut state = self.0.state();
        state.seal = true;
        self.0.changed.notify_one();
        loop {
            match &state.sealed {
                Some(sealed) => return sealed.clone().map_err(anyhow::Error::msg),
                None => {
                    state = self.0.answered.wait(state).unwrap_or_else(PoisonError::into_inner);
                }
            }
        }
    }

    /// Has the thread set these routes and withdraw all others; does not wait for it.
    pub fn set(&self, wanted: BTreeSet<Route>) {
        self.0.state().wanted = Some(wanted);
        self.0.changed.notify_one();
    }

    /// Why routes could not be set.
    pub fn faults(&self) -> Vec<String> {
        self.0.state().faults.clone()
    }
}

impl Drop for KernelRoutes {
    fn drop(&mut self) {
        self.0.state().ended = true;
        self.0.changed.notify_one();
    }
}

fn serve(shared: &Shared, interface: u32) {
    let mut installed = BTreeSet::new();
    loop {
        let mut state = shared.state();
        let wanted = loop {
            if state.seal && state.sealed.is_none() {
                state.sealed = Some(keep_one_capability().map_err(|e| format!("{e:#}")));
                shared.answered.notify_all();
            }
            match state.wanted.take() {
                _ if state.ended => return,
                Some(wanted) => break wanted,
                None => {
                    state = shared.changed.wait(state).unwrap_or_else(PoisonError::into_inner);
                }
            }
        };
        drop(state);
        let faults = match keep_one_capability().and_then(|()| {
            let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
            runtime.block_on(change(interface, &mut installed, &wanted))
        }) {
            Ok(faults) => faults,
            Err(error) => vec![format!("[interface] accept_prefixes: {error:#}")],
        };
        if !faults.is_empty() {
            let what = format!("[interface] accept_prefixes: {} routes are missing", faults.len());
            tracing::error!("{}", journal::unnamed(&what, journal::STATUS, &faults));
        }
        shared.state().faults = faults;
    }
}

/// Gives up everything but what routes need, in this thread.
fn keep_one_capability() -> anyhow::Result<()> {
    privileges::keep_capabilities(&CapsHashSet::from([Capability::CAP_NET_ADMIN]))
        .context("no route can be set without CAP_NET_ADMIN: start with it")?;
    privileges::gain_nothing()
}

/// Brings `installed` to what is `wanted`; says what could not be done.
async fn change(
    interface: u32,
    installed: &mut BTreeSet<Route>,
    wanted: &BTreeSet<Route>,
) -> anyhow::Result<Vec<String>> {
    let (connection, handle, _) =
        rtnetlink::new_connection().context("can't open a netlink socket")?;
    let served = tokio::spawn(connection);
    let mut faults = Vec::new();
    for route in installed.difference(wanted).copied().collect::<Vec<_>>() {
        let done = handle.route().del(message(interface, &route)).execute().await;
        // If it fails, somebody else has removed the route.
        installed.remove(&route);
        if let Err(error) = done {
            tracing::debug!("route to {} was gone: {error}", route.prefix);
        }
    }
    for route in wanted.difference(installed).copied().collect::<Vec<_>>() {
        match add(&handle, message(interface, &route)).await {
            Ok(()) => {
                installed.insert(route);
            }
            Err(error) => faults.push(format!(
                "[interface] accept_prefixes: no route to {}: {error}",
                route.prefix
            )),
        }
    }
    served.abort();
    Ok(faults)
}

async fn add(handle: &Handle, message: RouteMessage) -> Result<(), rtnetlink::Error> {
    handle.route().add(message).execute().await
}

fn message(interface: u32, route: &Route) -> RouteMessage {
    let bits = route.prefix.bits();
    match route.prefix.ip() {
        IpAddr::V4(ip) => {
            let mut builder = RouteMessageBuilder::<Ipv4Addr>::new()
                .destination_prefix(ip, bits)
                .output_interface(interface)
                .scope(RouteScope::Link)
                .priority(METRIC);
            if let Some(source) = route.source {
                builder = builder.pref_source(source);
            }
            builder.build()
        }
        IpAddr::V6(ip) => RouteMessageBuilder::<Ipv6Addr>::new()
            .destination_prefix(ip, bits)
            .output_interface(interface)
            .priority(METRIC)
            .build(),
    }
}
