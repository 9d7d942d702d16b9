//! Names of hosts for programs that know resolv.conf alone, as docs/ip.md says.
//!
//! ```text
//!   h1 --- r1 --- r2 --- h2     r1 has no interface
//! ```

#![allow(clippy::disallowed_methods, clippy::disallowed_types, reason = "starts real programs")]

mod common;

use std::path::Path;
use std::process::{Child, Command};
use std::time::{Duration, Instant};

use shoal_lab::needs::{self, Need};
use shoal_lab::site::Site;
use shoal_lab::{Conditions, Kind, Network, Topology};
use shoal_node::api::{Command as Ask, Host, Reply};

const PATIENCE: Duration = Duration::from_secs(20);
const EXTRA: &str = "[interface]\n[names]\nresolved = false\n";

struct Town {
    site: Site,
    h1: usize,
    folder: tempfile::TempDir,
}

/// A resolver that ends with the test.
struct Resolver(Child);

impl Drop for Resolver {
    fn drop(&mut self) {
        let _ended = self.0.kill().and_then(|()| self.0.wait());
    }
}

impl Town {
    fn new() -> Town {
        let folder = tempfile::tempdir().unwrap();
        let topology = Topology::chain();
        let h1 = topology.find("h1").unwrap();
        let network = Network::build(topology, Kind::Namespaces, Conditions::default()).unwrap();
        let program = Path::new(env!("CARGO_BIN_EXE_shoal"));
        let site = Site::start_after(network, program, folder.path(), EXTRA, |_, folder| {
            let list = folder.join("hosts.toml");
            let text = std::fs::read_to_string(&list)?;
            let text = text.replace("name = \"h2\"\n", "name = \"h2\"\nipv4 = \"10.98.0.2\"\n");
            let text = text.replace("name = \"r1\"\n", "name = \"r1\"\ninterface = false\n");
            std::fs::write(&list, text)?;
            let config = folder.join("r1/node.toml");
            let text = std::fs::read_to_string(&config)?;
            Ok(std::fs::write(config, text.replace(EXTRA, ""))?)
        });
        let mut site = site.unwrap_or_else(|e| panic!("{e:#}"));
        site.wait_until_up(PATIENCE).unwrap_or_else(|e| panic!("{e:#}"));
        Town { site, h1, folder }
    }

    fn inside<T: Send>(&self, f: impl FnOnce() -> T + Send) -> T {
        self.site.network().namespace(self.h1).unwrap().enter(|| Ok(f())).unwrap()
    }

    /// What a program of h1 learns of a name, where /etc/resolv.conf is this text.
    fn look_up(&self, resolv: &str, kind: &str, name: &str) -> Vec<String> {
        let file = self.folder.path().join("resolv.conf");
        std::fs::write(&file, resolv).unwrap();
        let script = "mount --bind \"$1\" /etc/resolv.conf && exec getent \"$2\" \"$3\"";
        let mut command = Command::new("unshare");
        command.args(["--mount", "sh", "-c", script, "sh"]).arg(&file).args([kind, name]);
        let output = self.inside(|| command.output().unwrap());
        let text = String::from_utf8(output.stdout).unwrap();
        let mut all: Vec<String> =
            text.lines().filter_map(|line| Some(line.split_whitespace().next()?.into())).collect();
        all.dedup();
        all
    }

    fn host(&self, name: &str) -> Host {
        let Ok(Reply::Hosts(hosts)) = self.site.ask(self.h1, Ask::Hosts { skip: 0 }) else {
            panic!("no hosts")
        };
        hosts.hosts.into_iter().find(|host| host.name == name).unwrap()
    }
}

/// Everything that a program asks for in its day.
fn names_resolve(town: &Town, resolv: &str) {
    let [six, four] = &town.host("h2").interface[..] else { panic!("IPv6 and IPv4") };
    assert_eq!(town.look_up(resolv, "ahostsv6", "h2.shoal"), [six.as_str()], "{resolv}");
    assert_eq!(town.look_up(resolv, "ahostsv4", "h2.shoal"), [four.as_str()], "{resolv}");
    assert_eq!(town.look_up(resolv, "ahostsv6", "r2.shoal"), town.host("r2").interface);
    assert!(town.look_up(resolv, "ahosts", "r1.shoal").is_empty(), "it has no interface");
    assert!(town.look_up(resolv, "ahosts", "eve.shoal").is_empty(), "there is no such host");
}

#[test]
fn programs_find_hosts_without_systemd_resolved() {
    if !common::tun_possible() {
        return;
    }
    let town = Town::new();
    assert_eq!((town.host("h2").interface.len(), town.host("h1").interface.len()), (2, 1));
    assert!(town.host("r1").interface.is_empty());
    let page = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../docs/ip.md");
    let page = std::fs::read_to_string(page).unwrap();
    // Another server behind it, for everything else.
    names_resolve(&town, "nameserver 127.0.0.153\nnameserver 192.0.2.53\n");
    let line = "server=/shoal/127.0.0.153\n";
    assert!(page.contains("nameserver 127.0.0.153") && page.contains(line));

    if !needs::met(&[Need::Tool("dnsmasq")], "SHOAL_REQUIRE_DNSMASQ") {
        return;
    }
    let config = town.folder.path().join("dnsmasq.conf");
    std::fs::write(&config, line).unwrap();
    let mut command = Command::new("dnsmasq");
    let words = ["-k", "--no-resolv", "--no-hosts", "--listen-address=127.0.0.1", "--user=root"];
    command.args(words).args(["--bind-interfaces", "--pid-file="]);
    command.arg(format!("--conf-file={}", config.display()));
    let _resolver = Resolver(town.inside(|| command.spawn().unwrap()));
    let (resolv, began) = ("nameserver 127.0.0.1\n", Instant::now());
    while town.look_up(resolv, "ahostsv6", "h2.shoal").is_empty() {
        assert!(began.elapsed() < PATIENCE, "dnsmasq does not answer");
        std::thread::sleep(Duration::from_millis(50));
    }
    names_resolve(&town, resolv);
}
