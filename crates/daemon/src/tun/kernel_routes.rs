//! Routes of the kernel into the virtual interface: a thread sets and removes them.
//!
//! The thread also maintains the interface (`upkeep.rs`), and the entries for machines behind
//! gateways with addresses of the shifting prefix (`shift_inside.rs`).
//!
//! Lists of hosts change while the node runs, after it has dropped its privileges
//! (`privileged.rs`). The kernel removes the routes with the interface, however the process ends.

use std::collections::BTreeSet;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use std::time::Instant;

use rtnetlink::packet_route::route::{RouteMessage, RouteScope};
use rtnetlink::{Handle, RouteMessageBuilder};
use shoal_directory::Prefix;

use crate::control::journal;
use crate::tun::privileged::{KernelKeeper, PrivilegedThread};
use crate::tun::shift_inside::{InsideKeeper, InsideMachines, TABLE_LOCAL};
use crate::tun::upkeep::{Upkeep, is_there};

/// Start of a fault about a route.
const MISSING: &str = "[interface] accept_prefixes";
/// The metric of these routes. It is high, so other routes to the same network win.
pub(crate) const METRIC: u32 = 4_096;

/// A route. Programs that bind no address send from `source`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct InterfaceRoute {
    pub prefix: Prefix,
    /// Set for IPv4 if the interface has no IPv4 address.
    pub source: Option<Ipv4Addr>,
    /// True if the prefix lies in the shifting prefix. The route must then precede the local route
    /// that makes all of that prefix this machine's.
    pub is_inside: bool,
}

/// Routes and entries that the kernel should have.
#[derive(Default)]
pub struct RouteRequest {
    /// Routes into the virtual interface.
    pub routes: BTreeSet<InterfaceRoute>,
    /// Entries for machines behind gateways with addresses of the shifting prefix.
    pub inside: Option<InsideMachines>,
}

/// Maintains one interface, and sets routes into it. The kernel removes the rest with the
/// interface.
pub struct RouteKeeper {
    upkeep: Upkeep,
    wanted: BTreeSet<InterfaceRoute>,
    installed: BTreeSet<InterfaceRoute>,
    inside: InsideKeeper,
}

/// Handle of the thread, which ends when this value is dropped.
pub type KernelRoutes = PrivilegedThread<RouteKeeper>;

/// Starts the thread for the interface of this upkeep ([`PrivilegedThread::start`]).
pub(crate) fn start(upkeep: Upkeep) -> anyhow::Result<KernelRoutes> {
    let (wanted, installed, inside) = Default::default();
    PrivilegedThread::start(RouteKeeper { upkeep, wanted, installed, inside })
}

impl RouteKeeper {
    /// Removes unwanted routes, and sets those that are missing.
    async fn routes(&mut self, kernel: &Handle) -> Vec<String> {
        let RouteKeeper { upkeep, wanted, installed, .. } = self;
        let (index, mut faults) = (upkeep.index(), Vec::new());
        for route in installed.difference(wanted).copied().collect::<Vec<_>>() {
            let done = kernel.route().del(message(index, &route)).execute().await;
            // A failure means that somebody else removed the route.
            installed.remove(&route);
            if let Err(error) = done {
                tracing::debug!("route to {} was gone: {error}", route.prefix);
            }
        }
        for &route in wanted.iter() {
            match kernel.route().add(message(index, &route)).execute().await {
                Ok(()) if !installed.insert(route) => upkeep.note("a route"),
                Ok(()) => {}
                Err(error) if installed.contains(&route) && is_there(&error) => {}
                Err(error) => {
                    installed.remove(&route);
                    faults.push(format!("{MISSING}: no route to {}: {error}", route.prefix));
                }
            }
        }
        faults
    }
}

impl KernelKeeper for RouteKeeper {
    type Wanted = RouteRequest;
    const THREAD: &'static str = "shoal-routes";
    const SETTING: &'static str = "[interface]";
    const NEEDS: &'static str = "the interface can't be kept without CAP_NET_ADMIN: start with it";

    async fn keep(&mut self, kernel: &Handle, wanted: Option<RouteRequest>) -> Vec<String> {
        let mut behind = None;
        if let Some(wanted) = wanted {
            self.wanted = wanted.routes;
            behind = Some(wanted.inside);
            self.upkeep.forgive();
        }
        let mut faults = Vec::new();
        if !self.upkeep.rests() {
            let (found, is_new) = self.upkeep.put_right(kernel).await;
            faults = found;
            if is_new {
                self.installed.clear();
            }
            if self.upkeep.index() != 0 {
                faults.extend(self.routes(kernel).await);
            }
        }
        faults.extend(self.inside.keep(kernel, behind).await);
        self.upkeep.finish(faults.len());
        faults
    }

    fn due(&self) -> Option<Instant> {
        let of_inside = self.inside.due();
        Some(of_inside.map_or(self.upkeep.due(), |due| due.min(self.upkeep.due())))
    }

    async fn end(&mut self, kernel: &Handle) {
        self.inside.end(kernel).await;
    }

    fn log(faults: &[String], again: bool) {
        if again {
            return;
        }
        let missing = faults.iter().filter(|fault| fault.starts_with(MISSING)).count();
        let what = match missing {
            0 => "[interface]: an address, a route or a setting is missing".into(),
            _ => format!("{MISSING}: {missing} routes are missing"),
        };
        tracing::error!("{}", journal::unnamed(&what, journal::STATUS, faults));
    }
}

fn message(interface: u32, route: &InterfaceRoute) -> RouteMessage {
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

#[cfg(test)]
mod tests {
    use std::process::Command;

    use super::*;
    use crate::tun::device::{DeviceSetting, Tun};
    use crate::tun::upkeep::{self, InterfaceSettings, InterfaceState};

    const NAME: &str = "upkeep0";

    /// Runs `ip` in the test's namespace. Returns its output.
    fn ip(words: &str) -> String {
        let done = Command::new("ip").args(words.split(' ')).output().unwrap();
        assert!(done.status.success(), "ip {words}: {}", String::from_utf8_lossy(&done.stderr));
        String::from_utf8(done.stdout).unwrap()
    }

    fn set_ipv6(off: &str) {
        std::fs::write(format!("/proc/sys/net/ipv6/conf/{NAME}/disable_ipv6"), off).unwrap();
    }

    /// True if all settings of the node are there.
    fn is_whole() -> bool {
        let link = ip(&format!("link show {NAME}"));
        let addresses = ip(&format!("-o addr show dev {NAME}"));
        let routes = ip("-4 route") + &ip("-6 route");
        let has = |text: &str, all: &[&str]| all.iter().all(|one| text.contains(one));
        has(&link, &["mtu 1374", ",UP", "qlen 2000"])
            && crate::tun::subnets::of_nodes().contains(NAME)
            && has(&addresses, &["fd77::1/48", "10.9.0.1/16"])
            && has(&routes, &["fd77::/48 dev", "10.9.0.0/16 dev", "fd20::/64 dev", "10.20.0.0/16"])
    }

    fn made() -> (Vec<Tun>, Upkeep, InterfaceSettings) {
        // A process that another test begins to start holds the interface before for a moment.
        let opened = (0..100).find_map(|_| {
            let opened = Tun::open(&DeviceSetting::interface(NAME), true, 2);
            opened.inspect_err(|_| std::thread::sleep(std::time::Duration::from_millis(20))).ok()
        });
        let (tuns, attachment) = opened.unwrap();
        let settings = || InterfaceSettings {
            name: NAME.into(),
            mtu: 1_374,
            addresses: ["fd77::1", "10.9.0.1"]
                .map(|ip| ip.parse().unwrap())
                .into_iter()
                .zip([48, 16])
                .collect(),
            ipv4_metric: METRIC,
        };
        (tuns, Upkeep::new(settings(), attachment, 0), settings())
    }

    fn wanted() -> RouteRequest {
        let route = |(ip, bits): (&str, u8)| InterfaceRoute {
            prefix: Prefix::new(ip.parse().unwrap(), bits).unwrap(),
            source: None,
            is_inside: false,
        };
        RouteRequest { routes: [("fd20::", 64), ("10.20.0.0", 16)].map(route).into(), inside: None }
    }

    fn keeper(upkeep: Upkeep) -> RouteKeeper {
        let (wanted, installed, inside) = Default::default();
        RouteKeeper { upkeep, wanted, installed, inside }
    }

    #[test]
    fn changes_by_others_at_the_interface_are_undone() {
        if crate::tun::privileged::is_without_ip("changes_by_others_at_the_interface_are_undone") {
            return;
        }
        crate::tun::privileged::in_a_namespace(async |kernel| {
            let (tuns, upkeep, settings) = made();
            let index = upkeep::set_up(kernel, &settings).await.unwrap();
            upkeep.shared_index().store(index, std::sync::atomic::Ordering::Relaxed);
            let mut keeper = keeper(upkeep);
            let view = keeper.upkeep.view();
            assert_eq!(keeper.keep(kernel, Some(wanted())).await, [""; 0]);
            assert!(is_whole());
            assert_eq!(view.get(), (InterfaceState::Up, None), "nothing was put right");
            for change in [
                "link set upkeep0 down",
                "-6 addr flush dev upkeep0",
                "-4 addr flush dev upkeep0",
                "-6 route flush dev upkeep0",
                "-4 route flush dev upkeep0",
                "-6 route del fd20::/64 dev upkeep0",
                "link set upkeep0 mtu 1000",
                "link del upkeep0",
            ] {
                ip(change);
                assert_eq!(keeper.keep(kernel, None).await, [""; 0], "{change}");
                assert!(is_whole(), "{change}: {}", ip("addr") + &ip("-6 route"));
                let (state, warning) = view.get();
                assert_eq!(state, InterfaceState::Up, "{change}");
                assert!(warning.unwrap().contains("put it right"), "{change}");
            }
            set_ipv6("1");
            let faults = keeper.keep(kernel, None).await;
            assert!(faults[0].contains("IPv6 is turned off at upkeep0"), "{faults:?}");
            assert_eq!(view.get().0, InterfaceState::Incomplete);
            set_ipv6("0");
            assert_eq!(keeper.keep(kernel, None).await, [""; 0]);
            assert!(is_whole());
            drop(tuns);
        });
    }

    /// The machine may later join a network with the addresses of the node's network. That network
    /// keeps them, so that its gateway and name server stay reachable.
    #[test]
    fn a_network_that_comes_later_keeps_its_addresses() {
        if crate::tun::privileged::is_without_ip("a_network_that_comes_later_keeps_its_addresses") {
            return;
        }
        crate::tun::privileged::in_a_namespace(async |kernel| {
            for (metric, device) in [(METRIC, "dev later0"), (0, "dev upkeep0")] {
                let (tuns, _, settings) = made();
                let settings = InterfaceSettings { ipv4_metric: metric, ..settings };
                upkeep::set_up(kernel, &settings).await.unwrap();
                ip("link add later0 type veth peer name later1");
                ip("link set later1 up");
                ip("addr add 10.9.3.3/16 dev later0");
                ip("link set later0 up");
                let route = ip("route get 10.9.0.9");
                assert!(route.contains(device), "{route}");
                ip("link del later0");
                drop(tuns);
            }
        });
    }

    #[test]
    fn a_program_that_goes_on_wins_until_somebody_asks_for_a_repair() {
        if crate::tun::privileged::is_without_ip(
            "a_program_that_goes_on_wins_until_somebody_asks_for_a_repair",
        ) {
            return;
        }
        crate::tun::privileged::in_a_namespace(async |kernel| {
            let (_tuns, upkeep, settings) = made();
            let index = upkeep::set_up(kernel, &settings).await.unwrap();
            upkeep.shared_index().store(index, std::sync::atomic::Ordering::Relaxed);
            let mut keeper = keeper(upkeep);
            let view = keeper.upkeep.view();
            for _ in 0..upkeep::REPAIRS_MAX {
                ip("link set upkeep0 down");
                assert_eq!(keeper.keep(kernel, None).await, [""; 0]);
                assert!(ip("link show upkeep0").contains(",UP"));
            }
            ip("link set upkeep0 down");
            keeper.keep(kernel, None).await;
            assert!(!ip("link show upkeep0").contains(",UP"));
            let (state, warning) = view.get();
            assert_eq!(state, InterfaceState::LeftAlone);
            assert!(warning.unwrap().contains("leaves it as it is"));
            view.ask();
            assert_eq!(keeper.keep(kernel, None).await, [""; 0]);
            assert!(ip("link show upkeep0").contains(",UP"));
            assert_eq!(view.get().0, InterfaceState::Up);
        });
    }

    #[test]
    fn an_interface_whose_name_is_taken_is_gone_until_the_name_is_free() {
        if crate::tun::privileged::is_without_ip(
            "an_interface_whose_name_is_taken_is_gone_until_the_name_is_free",
        ) {
            return;
        }
        crate::tun::privileged::in_a_namespace(async |kernel| {
            let (_tuns, upkeep, settings) = made();
            let index = upkeep::set_up(kernel, &settings).await.unwrap();
            upkeep.shared_index().store(index, std::sync::atomic::Ordering::Relaxed);
            let mut keeper = keeper(upkeep);
            ip("link del upkeep0");
            ip("link add upkeep0 type bridge");
            let faults = keeper.keep(kernel, Some(wanted())).await;
            assert!(faults[0].contains("there is an interface"), "{faults:?}");
            assert_eq!(keeper.upkeep.view().get().0, InterfaceState::Gone);
            ip("link del upkeep0");
            assert_eq!(keeper.keep(kernel, None).await, [""; 0]);
            assert!(is_whole());
        });
    }
}
