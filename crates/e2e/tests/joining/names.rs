//! Names of hosts for programs that use only resolv.conf, as docs/guide/ip.md describes.
//!
//! ```text
//!   h1 --- r1 --- r2 --- h2     r1 has no interface
//! ```

use std::path::Path;
use std::process::{Child, Command};
use std::time::{Duration, Instant};

use shoal_daemon::control::api::{Command as Ask, ControlReply, MemberStatus};
use shoal_e2e::machines::Machines;
use shoal_lab::needs::{self, Requirement};
use shoal_lab::site::RunningNetwork;
use shoal_lab::{Conditions, Executable, Network, NetworkKind, Topology};

const PATIENCE: Duration = Duration::from_secs(20);
const EXTRA: &str = "[interface]\n[names]\nresolved = false\n";

struct Town {
    site: RunningNetwork,
    h1: usize,
    folder: tempfile::TempDir,
}

/// A resolver process that ends with the test.
struct Resolver(Child);

impl Drop for Resolver {
    fn drop(&mut self) {
        let _ended = self.0.kill().and_then(|()| self.0.wait());
    }
}

impl Town {
    /// A network with these IPv4 addresses in the hosts file.
    fn new(ipv4: &[(&str, &str)]) -> Town {
        let folder = tempfile::tempdir().unwrap();
        let topology = Topology::chain();
        let h1 = topology.find("h1").unwrap();
        let network =
            Network::build(topology, NetworkKind::Namespaces, Conditions::default()).unwrap();
        let executable = Executable::shoal(shoal_e2e::program());
        let site =
            RunningNetwork::start_after(network, &executable, folder.path(), EXTRA, |_, folder| {
                let list = folder.join("hosts.toml");
                let text = std::fs::read_to_string(&list)?;
                let add = |text: String, name: &str, line: &str| {
                    let name = format!("name = \"{name}\"\n");
                    text.replace(&name, &format!("{name}{line}\n"))
                };
                let text = add(text, "r1", "interface = false");
                let text = ipv4.iter().fold(text, |text, (name, address)| {
                    add(text, name, &format!("ipv4 = \"{address}\""))
                });
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

    /// The addresses that a program at h1 finds for a name, with `resolv` as /etc/resolv.conf.
    fn look_up(&self, resolv: &str, kind: &str, name: &str) -> Vec<String> {
        let text = self.printed(resolv, kind, name);
        let mut all: Vec<String> =
            text.lines().filter_map(|line| Some(line.split_whitespace().next()?.into())).collect();
        all.dedup();
        all
    }

    /// Lines that getent prints at h1, with `resolv` as /etc/resolv.conf.
    fn printed(&self, resolv: &str, kind: &str, name: &str) -> String {
        let file = self.folder.path().join("resolv.conf");
        std::fs::write(&file, resolv).unwrap();
        let script = "mount --bind \"$1\" /etc/resolv.conf && exec getent \"$2\" \"$3\"";
        let mut command = Command::new("unshare");
        command.args(["--mount", "sh", "-c", script, "sh"]).arg(&file).args([kind, name]);
        let output = self.inside(|| command.output().unwrap());
        String::from_utf8(output.stdout).unwrap()
    }

    fn host(&self, name: &str) -> MemberStatus {
        let Ok(ControlReply::Hosts(hosts)) = self.site.ask(self.h1, Ask::Hosts { skip: 0 }) else {
            panic!("no hosts")
        };
        hosts.hosts.into_iter().find(|host| host.name == name).unwrap()
    }
}

/// All kinds of look-ups.
fn names_resolve(town: &Town, resolv: &str) {
    let [six, four] = &town.host("h2").interface[..] else { panic!("IPv6 and IPv4") };
    assert_eq!(town.look_up(resolv, "ahostsv6", "h2.shoal"), [six.as_str()], "{resolv}");
    assert_eq!(town.look_up(resolv, "ahostsv4", "h2.shoal"), [four.as_str()], "{resolv}");
    assert_eq!(town.look_up(resolv, "ahostsv6", "r2.shoal"), town.host("r2").interface);
    assert!(town.look_up(resolv, "ahosts", "r1.shoal").is_empty(), "r1 has no interface");
    assert!(town.look_up(resolv, "ahosts", "eve.shoal").is_empty(), "there is no such host");
}

#[test]
fn programs_find_hosts_without_systemd_resolved() {
    if !shoal_e2e::tun_possible() {
        return;
    }
    let town = Town::new(&[("h1", "10.98.0.1"), ("h2", "10.98.0.2")]);
    assert_eq!((town.host("h2").interface.len(), town.host("r2").interface.len()), (2, 1));
    assert!(town.host("r1").interface.is_empty());
    let page = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../docs/guide/ip.md");
    let page = std::fs::read_to_string(page).unwrap();
    // A second server for all other names.
    names_resolve(&town, "nameserver 127.0.0.153\nnameserver 192.0.2.53\n");
    // By TCP, and by the search domain alone.
    names_resolve(&town, "nameserver 127.0.0.153\noptions use-vc\n");
    let search = "nameserver 127.0.0.153\nsearch shoal\n";
    assert_eq!(town.look_up(search, "ahostsv6", "H2"), town.host("h2").interface[..1]);
    for address in &town.host("h2").interface {
        let printed = town.printed(search, "hosts", address);
        assert!(printed.contains("h2.shoal"), "{address}: {printed}");
    }
    let line = "server=/shoal/127.0.0.153\n";
    assert!(page.contains("nameserver 127.0.0.153") && page.contains(line));

    if !needs::met(&[Requirement::Tool("dnsmasq")], "SHOAL_REQUIRE_DNSMASQ") {
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

/// A name has no IPv4 answer if its host has no IPv4 address, or one in another network. Packets to
/// that address would leave past the interface, in the clear.
#[test]
fn no_ipv4_address_is_answered_that_the_interface_does_not_take() {
    if !shoal_e2e::tun_possible() {
        return;
    }
    let resolv = "nameserver 127.0.0.153\n";
    for own in [None, Some(("h1", "10.97.0.1"))] {
        let addresses: Vec<_> = [("h2", "10.98.0.2")].into_iter().chain(own).collect();
        let town = Town::new(&addresses);
        let mut route = Command::new("ip");
        route.args(["route", "get", "10.98.0.2"]);
        let route = town.inside(|| route.output().unwrap());
        let way = String::from_utf8_lossy(&route.stdout).into_owned();
        assert!(!way.contains("shoal0"), "{way}");

        let answered = town.look_up(resolv, "ahostsv4", "h2.shoal");
        assert_eq!(answered, [""; 0], "{own:?}: programs would send to it past the network");
        let there = town.host("h2").interface;
        assert_eq!(there.len(), 1, "{own:?}: {there:?}");
        assert_eq!(town.look_up(resolv, "ahosts", "h2.shoal"), there);
        if let Some((_, own)) = own {
            assert_eq!(town.look_up(resolv, "ahostsv4", "h1.shoal"), [own]);
        }

        let config = town.folder.path().join("h1/node.toml");
        let checked =
            shoal_e2e::shoal(&["check", "-c", config.to_str().unwrap()]).output().unwrap();
        let (said, _) = shoal_e2e::text(&checked);
        let warned = said.lines().any(|line| line.contains("warning") && line.contains("h2"));
        assert!(warned, "{own:?}: {said}");
    }
}

/// The kernel gets this node's own IPv4 address only at the start.
#[test]
fn a_new_ipv4_address_of_its_own_waits_for_a_restart() {
    if !shoal_e2e::tun_possible() {
        return;
    }
    let town = Town::new(&[("h1", "10.98.0.1"), ("h2", "10.98.0.2")]);
    let list = town.folder.path().join("hosts.toml");
    let text = std::fs::read_to_string(&list).unwrap();
    let text = text.replace("\"10.98.0.1\"", "\"10.98.0.7\"");
    std::fs::write(&list, text.replace("\"10.98.0.2\"", "\"10.98.0.9\"")).unwrap();
    for nth in 0..2 {
        let Ok(ControlReply::Reloaded { applied, needs_restart }) =
            town.site.ask(town.h1, Ask::Reload)
        else {
            panic!("no reload")
        };
        let others: &[&str] = if nth == 0 { &["host h2 (changed)"] } else { &[] };
        assert_eq!(applied, others, "the own address is not in force");
        assert_eq!(needs_restart, ["ipv4 of this node"]);
    }
    assert_eq!(town.look_up("nameserver 127.0.0.153\n", "ahostsv4", "h2.shoal"), ["10.98.0.9"]);
}

/// A file of this test replaces /etc/resolv.conf.
#[test]
fn a_node_keeps_its_lines_in_resolv_conf_while_it_runs() {
    if !shoal_e2e::tun_possible() {
        return;
    }
    let mut net = shoal_e2e::LoopbackNet::new(&["r1", "h1"]);
    net.configure("r1", "[interface]\n[names]\nresolved = false\nresolv_conf = true\n");
    let file = net.root().join("resolv.conf");
    let before = "search corp.example\nnameserver 192.0.2.53\n";
    std::fs::write(&file, before).unwrap();
    let script = "mount --bind \"$1\" /etc/resolv.conf && ip link set lo up && \
                  exec \"$2\" run -c \"$3\"";
    let mut command = Command::new("unshare");
    command.args(["--mount", "--net", "sh", "-c", script, "sh"]).arg(&file);
    let child = command.arg(shoal_e2e::program()).arg(net.config("r1")).spawn().unwrap();
    net.adopt("r1", child);
    net.until(|net| net.ask("r1", &["status"]).is_some());
    let text = std::fs::read_to_string(&file).unwrap();
    let lines: Vec<&str> = text.lines().filter(|line| !line.starts_with('#')).collect();
    let ours = ["nameserver 127.0.0.153", "search corp.example shoal"];
    let theirs: Vec<&str> = before.lines().collect();
    assert_eq!(lines, [&ours[..1], &theirs, &ours[1..]].concat());
    assert_eq!(net.end("r1", "TERM"), Some(0));
    assert_eq!(std::fs::read_to_string(&file).unwrap(), before);
}

/// Names that a list may have and machines seldom do. They have one letter, 63 characters, digits
/// and hyphens, capitals, an underscore before a hyphen, or two labels.
const ODD: [&str; 6] = [
    "a",
    "x23456789-123456789-123456789-123456789-123456789-123456789-123",
    "10-0-0-5",
    "MyBox",
    "my_box-",
    "box.lab",
];

/// One of these machines looks up all others, and another one looks up that one. Capitals are
/// tried, too.
#[test]
fn hosts_with_odd_names_are_found_and_reached_by_programs_and_by_ping() {
    if !shoal_e2e::tun_possible() {
        return;
    }
    assert_eq!(ODD[1].len(), 63);
    let names: Vec<&str> = ["r1"].into_iter().chain(ODD).collect();
    let mut machines = Machines::new(&names);
    machines.sh("r1", "ip link add lan type bridge; ip link set lan up");
    machines.sh("r1", "ip addr add 10.77.0.1/24 dev lan");
    for (number, name) in (2..).zip(ODD) {
        let port = format!("p{number}");
        machines.join((name, "eth0"), ("r1", &port));
        machines.sh("r1", &format!("ip link set {port} master lan"));
        machines.sh(name, &format!("ip addr add 10.77.0.{number}/24 dev eth0"));
    }
    machines.write_nodes(&names, "10.77.0.1:7400");
    names.iter().for_each(|name| machines.start(name));
    std::fs::write(machines.file("resolv"), "nameserver 127.0.0.153\n").unwrap();
    for name in ODD {
        let status = machines.ask(name, &["status"]).unwrap();
        let address = status["status"]["interface"]["address"].as_str().unwrap().to_owned();
        let here = if name == "a" { "MyBox" } else { "a" };
        for called in [name.to_owned(), name.to_uppercase()] {
            let ping = ["ping", &called, "-n", "1", "-W", "5"];
            machines.until(&format!("ping {called}"), || machines.command(here, &ping).0);
            let programs = format!(
                "mount --bind ../resolv /etc/resolv.conf; getent ahostsv6 {called}.shoal; \
                 getent hosts {address}; ping -c1 -W5 {called}.shoal"
            );
            let said = machines.sh(here, &format!("unshare --mount bash -ec '{programs}'"));
            let lines: Vec<&str> = said.lines().collect();
            assert!(lines[0].starts_with(&format!("{address} ")), "{called}: {said}");
            assert!(said.contains(&format!("{name}.shoal")), "{called}: {said}");
            assert!(said.contains("1 received"), "{called}: {said}");
        }
    }
}
