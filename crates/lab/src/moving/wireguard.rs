//! wireguard-go between two gateways.

use std::path::Path;
use std::process::Stdio;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};
use rtnetlink::LinkUnspec;

use crate::bench::peers;
use crate::network::Network;
use crate::process::ChildProcess;

/// UDP port of both ends.
const PORT: u16 = 51_820;
/// Longest packet inside the tunnel, if links take 1,480 bytes: WireGuard adds 80.
const MTU: u32 = 1_400;
/// Limit of the time until the program has made its interface.
const PATIENCE: Duration = Duration::from_secs(10);
const LOOK: Duration = Duration::from_millis(20);

/// Two running peers.
pub struct Wireguard {
    processes: [ChildProcess; 2],
}

impl Wireguard {
    /// Starts wireguard-go at both gateways, for the networks of the machines behind them.
    ///
    /// # Errors
    /// wireguard-go or `wg` is not installed.
    pub fn start(
        network: &Network,
        gateways: [usize; 2],
        machines: [usize; 2],
        folder: &Path,
    ) -> Result<Wireguard> {
        let program = peers::wireguard_go()?;
        peers::program("wg", "apt-get install wireguard-tools")?;
        // wireguard-go names its control socket by its interface, for the whole machine.
        let names = [0, 1].map(|end| format!("m{}_{end}", std::process::id()));
        let start = |end: usize| {
            let mut command = peers::wireguard_command(&program, &names[end]);
            command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null());
            ChildProcess::start("wireguard-go", command, network.namespace_fd(gateways[end]))
        };
        let processes = [start(0)?, start(1)?];
        let keys = [peers::wireguard_key(folder, 0)?, peers::wireguard_key(folder, 1)?];
        for end in [0, 1] {
            let space = network.namespace(gateways[end]).context("no namespace")?;
            let until = Instant::now() + PATIENCE;
            let exists = || space.enter(|| Ok(nix::net::if_::if_nametoindex(&*names[end])?));
            while exists().is_err() {
                ensure!(Instant::now() < until, "wireguard-go made no interface in time");
                std::thread::sleep(LOOK);
            }
            let (gateway, other) = (gateways[end], gateways[1 - end]);
            let at = network.ip_of(gateway, other)?;
            let behind = network.topology().link_between(machines[1 - end], other);
            let behind = network.family().prefix(behind.context("no link")?);
            let nets = format!("{behind}/{}", network.family().prefix_len());
            let (port, endpoint) = (PORT.to_string(), format!("[{at}]:{PORT}"));
            let name = names[end].as_str();
            let own = ["set", name, "listen-port", &port, "private-key"];
            peers::wg(&own, Some(&keys[end].0))?;
            let peer = ["set", name, "peer", &keys[1 - end].1, "endpoint", &endpoint];
            peers::wg(&[&peer[..], &["allowed-ips", &nets]].concat(), None)?;
            let address = std::net::Ipv6Addr::new(0xfd79, 0, 0, 0, 0, 0, 0, 1 + end as u16);
            crate::veth::address(space, name, address.into(), 128)?;
            let index = space.enter(|| Ok(nix::net::if_::if_nametoindex(name)?))?;
            let mtu = LinkUnspec::new_with_index(index).mtu(MTU).build();
            space.netlink(async |handle| handle.link().set(mtu).execute().await)?;
            network.route_by(gateway, name, (behind, network.family().prefix_len()))?;
            network.forward_ip(gateway)?;
            network.default_route(machines[end], gateway)?;
        }
        Ok(Wireguard { processes })
    }

    pub fn first(&self) -> &ChildProcess {
        &self.processes[0]
    }
}
