//! Routes of the kernel into the virtual interface: a thread that sets and withdraws them.
//!
//! It also keeps what machines behind this node need that have addresses of the prefix that hops
//! (`hop_inside.rs`).
//!
//! Lists of hosts change while the node runs, and by then it has given up its privileges
//! (`privileged.rs`). The kernel removes the routes with the interface, however the process ends.

use std::collections::BTreeSet;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use std::time::Instant;

use rtnetlink::packet_route::route::{RouteMessage, RouteScope};
use rtnetlink::{Handle, RouteMessageBuilder};
use shoal_directory::Prefix;

use crate::control::journal;
use crate::tun::hop_inside::{Inside, InsideKeeper, TABLE_LOCAL};
use crate::tun::privileged::{Keeper, Privileged};

/// The metric of these routes: high, so that other routes to the same network win.
const METRIC: u32 = 4_096;

/// A route; programs without an address of their own send from `source`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Route {
    /// Where to.
    pub prefix: Prefix,
    /// For IPv4, if the interface has no such address.
    pub source: Option<Ipv4Addr>,
    /// It lies in the prefix that hops: its route must come before those of this machine's own
    /// addresses, which all of that prefix may be.
    pub is_inside: bool,
}

/// What the kernel is to have.
#[derive(Default)]
pub struct Wanted {
    /// Routes into the virtual interface.
    pub routes: BTreeSet<Route>,
    /// What machines behind this node need that have addresses of the prefix that hops.
    pub inside: Option<Inside>,
}

/// Sets them for one interface; the kernel withdraws what is left with the interface.
pub struct RouteKeeper {
    interface: u32,
    installed: BTreeSet<Route>,
    inside: InsideKeeper,
    /// Which routes could not be set, and why.
    missing: Vec<String>,
}

/// The thread, which ends when this is dropped.
pub type KernelRoutes = Privileged<RouteKeeper>;

/// Starts the thread for the interface with this number ([`Privileged::start`]).
pub fn start(interface: u32) -> anyhow::Result<KernelRoutes> {
    let (installed, inside, missing) = Default::default();
    Privileged::start(RouteKeeper { interface, installed, inside, missing })
}

impl Keeper for RouteKeeper {
    type Wanted = Wanted;
    const THREAD: &'static str = "shoal-routes";
    const SETTING: &'static str = "[interface] accept_prefixes";
    const NEEDS: &'static str = "no route can be set without CAP_NET_ADMIN: start with it";

    async fn keep(&mut self, kernel: &Handle, wanted: Option<Wanted>) -> Vec<String> {
        let RouteKeeper { interface, installed, inside, missing } = self;
        let mut faults = missing.clone();
        let Some(Wanted { routes: wanted, inside: behind }) = wanted else {
            faults.extend(inside.keep(kernel, None).await);
            return faults;
        };
        faults.clear();
        for route in installed.difference(&wanted).copied().collect::<Vec<_>>() {
            let done = kernel.route().del(message(*interface, &route)).execute().await;
            // If it fails, somebody else has removed the route.
            installed.remove(&route);
            if let Err(error) = done {
                tracing::debug!("route to {} was gone: {error}", route.prefix);
            }
        }
        for route in wanted.difference(installed).copied().collect::<Vec<_>>() {
            match add(kernel, message(*interface, &route)).await {
                Ok(()) => {
                    installed.insert(route);
                }
                Err(error) => {
                    faults.push(format!(
                        "{}: no route to {}: {error}",
                        Self::SETTING,
                        route.prefix
                    ));
                }
            }
        }
        missing.clone_from(&faults);
        faults.extend(inside.keep(kernel, Some(behind)).await);
        faults
    }

    fn due(&self) -> Option<Instant> {
        self.inside.due()
    }

    async fn end(&mut self, kernel: &Handle) {
        self.inside.end(kernel).await;
    }

    fn log(faults: &[String], again: bool) {
        if again {
            return;
        }
        let what = format!("{}: {} routes are missing", Self::SETTING, faults.len());
        tracing::error!("{}", journal::unnamed(&what, journal::STATUS, faults));
    }
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
        IpAddr::V6(ip) => {
            let builder = RouteMessageBuilder::<Ipv6Addr>::new()
                .destination_prefix(ip, bits)
                .output_interface(interface)
                .priority(METRIC);
            if route.is_inside { builder.table_id(TABLE_LOCAL) } else { builder }.build()
        }
    }
}
