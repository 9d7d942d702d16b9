//! Hosts that communicate only over circuits.

use std::net::UdpSocket;
use std::os::unix::fs::MetadataExt;
use std::path::Path;
use std::process::Command;
use std::time::{Duration, Instant};

use shoal_e2e::town::{LabTown, configure};
use shoal_lab::{Conditions, NetworkKind, Topology};

const REQUIRE: &str = "[circuits]\npolicy = \"require\"\nrelays = 2\n";

/// The paper's network with all routers as relays. h1 (of r1) requires circuits with all other
/// hosts, over two relays. Other hosts' circuits use three.
fn paper(kind: NetworkKind, extra: &str) -> LabTown {
    with_list(kind, extra, "", REQUIRE)
}

/// [`paper`] with more in its list, and with `h1` in h1's configuration.
fn with_list(kind: NetworkKind, extra: &str, list_extra: &str, h1: &str) -> LabTown {
    LabTown::new((Topology::paper(), kind, Conditions::default()), extra, |folder| {
        list(folder, list_extra);
        configure(folder, "h1", h1);
    })
}

/// Makes all routers of the paper's network relays, and adds this to the list.
fn list(folder: &Path, extra: &str) {
    let list = folder.join("hosts.toml");
    let mut hosts = std::fs::read_to_string(&list).unwrap();
    for name in ["r1", "r2", "r3"] {
        let line = format!("name = \"{name}\"\n");
        assert!(hosts.contains(&line));
        hosts = hosts.replace(&line, &format!("{line}relay = true\nfamily = \"{name}\"\n"));
    }
    std::fs::write(list, hosts + extra).unwrap();
}

#[test]
fn a_host_that_requires_circuits_pings_and_sends_files_over_them() {
    let net = paper(NetworkKind::Loopback, "");
    let (ok, said) = net.run("h1", &["ping", "h4", "-n", "3"]);
    assert!(ok, "{said}");
    net.send("h1", "h4", (7, 3_000_000)).end();
    // h4 has learnt that h1 uses circuits, and builds its own.
    let (ok, said) = net.run("h4", &["ping", "h1", "-n", "3"]);
    assert!(ok, "{said}");
    net.send("h4", "h1", (7, 1_000_000)).end();
    let (ok, said) = net.run("h1", &["circuits", "--json"]);
    assert!(ok && said.contains("h4"), "{said}");
    let (ok, said) = net.run("h2", &["ping", "h4", "-n", "1"]);
    assert!(ok, "h2 needs no circuit: {said}");
}

/// Drops at h1 for traffic in the clear.
fn refused_at_h1(net: &LabTown) -> u64 {
    let drops = net.status("h1").drops;
    drops.into_iter().find(|(why, _)| why == "circuit_required").map_or(0, |(_, n)| n)
}

/// h1 requires circuits, and h4 does not. From h1's first circuit, h4 learns not to call h1 in the
/// clear. A call of h4 in the clear would reach h1, which refuses and counts it.
#[test]
fn a_host_met_over_a_circuit_is_called_over_one_after_a_restart() {
    if !shoal_e2e::namespaces() {
        return;
    }
    let mut net = paper(NetworkKind::Namespaces, "");
    let (ok, said) = net.run("h1", &["ping", "h4", "-n", "1"]);
    assert!(ok, "{said}");
    let h4 = net.find("h4");
    let file = net.site.folder(h4).join("circuits.met");
    let began = Instant::now();
    while !file.exists() {
        assert!(began.elapsed() < Duration::from_secs(10), "h4 keeps nothing");
        std::thread::sleep(Duration::from_millis(20));
    }
    assert_eq!(std::fs::metadata(&file).unwrap().mode() & 0o777, 0o600);
    let list = std::fs::read_to_string(net.folder.path().join("hosts.toml")).unwrap();
    let text = std::fs::read_to_string(&file).unwrap();
    let (key, day) = text.lines().last().unwrap().split_once(' ').expect("a key and a day");
    assert!(text.lines().count() == 2 && list.contains(key) && day.len() == 10, "{text}");
    let restart = |net: &mut LabTown| {
        net.site.restart(h4).unwrap();
        net.site.wait_until_up(Duration::from_secs(60)).unwrap_or_else(|e| panic!("{e:#}"));
    };

    restart(&mut net);
    let before = carried(&net, 2);
    let (_, said) = net.run("h4", &["circuits"]);
    assert!(said.contains("h1: circuits are required"), "h4 knows before it calls: {said}");
    let (ok, said) = net.run("h4", &["ping", "h1", "-n", "1", "-W", "20"]);
    assert!(ok, "{said}");
    assert_eq!(refused_at_h1(&net), 0, "h4 called in the clear");
    assert!(carried(&net, 2) > before, "relays carried the call");
    let log = net.site.log_end(h4);
    assert!(!log.contains(key), "the log names a host: {log}");

    // Without the file, the same call leaves in the clear.
    std::fs::remove_file(&file).unwrap();
    restart(&mut net);
    let (ok, said) = net.run("h4", &["ping", "h1", "-n", "1", "-W", "3"]);
    assert!(!ok && refused_at_h1(&net) > 0, "{said}");

    // A damaged file does not count as an empty one, and is not changed.
    let damaged = &text[..text.len() - 20];
    std::fs::write(&file, damaged).unwrap();
    net.site.kill(h4);
    let config = net.site.folder(h4).join("node.toml");
    for verb in ["check", "run"] {
        let words = [verb, "-c", config.to_str().unwrap()];
        let output = net.inside("h4", || shoal_e2e::shoal(&words).output().unwrap());
        let (out, err) = shoal_e2e::text(&output);
        let said = out + &err;
        assert!(!output.status.success(), "{verb}: {said}");
        assert!(said.contains("circuits.met: line 2: expected a public key"), "{verb}: {said}");
    }
    assert_eq!(std::fs::read_to_string(&file).unwrap(), damaged);
}

/// Waits until a host's file of met hosts has a number of hosts.
fn wait_for_met(net: &LabTown, name: &str, hosts: usize) {
    let file = net.site.folder(net.find(name)).join("circuits.met");
    let (began, label) = (Instant::now(), format!("shoal-met-2 {hosts}\n"));
    let mut text = String::new();
    while !text.starts_with(&label) {
        assert!(began.elapsed() < Duration::from_secs(20), "{name}: {text}");
        std::thread::sleep(Duration::from_millis(20));
        text = std::fs::read_to_string(&file).unwrap_or_default();
    }
}

/// The end of a requirement does not end circuits. The command does, at both ends, in any order,
/// while programs speak.
#[test]
fn a_met_host_is_forgotten_at_both_ends_and_pings_in_the_clear() {
    if !shoal_e2e::namespaces() {
        return;
    }
    let mut net = paper(NetworkKind::Namespaces, "");
    let (ok, said) = net.run("h1", &["ping", "h4", "-n", "1"]);
    assert!(ok, "{said}");
    ["h1", "h4"].iter().for_each(|name| wait_for_met(&net, name, 1));
    let (_, said) = net.run("h1", &["circuits", "forget", "h4", "--yes"]);
    assert!(said.contains("required by [circuits] or [anonymity]"), "{said}");

    let (h1, h4) = (net.find("h1"), net.find("h4"));
    let config = net.site.folder(h1).join("node.toml");
    let text = std::fs::read_to_string(&config).unwrap();
    std::fs::write(&config, text.replace("policy = \"require\"", "policy = \"off\"")).unwrap();
    let restart = |net: &mut LabTown, nodes: &[usize]| {
        net.site.restart_all(nodes).unwrap();
        net.site.wait_until_up(Duration::from_secs(60)).unwrap_or_else(|e| panic!("{e:#}"));
    };
    restart(&mut net, &[h1]);
    // Every command that speaks of the host names the command that ends it.
    let config = config.to_str().unwrap();
    for words in
        [&["circuits"][..], &["ping", "h4", "-n", "1", "-W", "20"], &["hosts"], &["status"]]
    {
        let (ok, said) = net.run("h1", words);
        assert!(ok && said.contains("`shoal circuits forget"), "{words:?}: {said}");
        assert!(said.contains("since 20") && said.contains("met so"), "{words:?}: {said}");
    }
    let checked = net.inside("h1", || shoal_e2e::shoal(&["check", "-c", config]).output().unwrap());
    let (said, _) = shoal_e2e::text(&checked);
    assert!(said.contains("h4: bound to circuits since 20"), "{said}");

    let (ok, said) = net.run("h4", &["circuits", "forget", "h1"]);
    assert!(!ok && said.contains("routers see") && said.contains("add --yes"), "{said}");
    for (bad, why) in [("r1", "is a router"), ("h2", "nothing to forget"), ("h9", "no host")] {
        let (ok, said) = net.run("h4", &["circuits", "forget", bad, "--yes"]);
        assert!(!ok && said.contains(why), "{bad}: {said}");
    }

    let stream = ["ping", "h4", "-n", "60", "-i", "0.2", "-W", "1"];
    let stream =
        net.site.command(h1, &stream).stdout(std::process::Stdio::piped()).spawn().unwrap();
    let (ok, said) = net.run("h4", &["circuits", "forget", "h1", "--yes"]);
    assert!(ok && said.contains("`shoal circuits forget h4` there within that time"), "{said}");
    std::thread::sleep(Duration::from_secs(3));
    let (_, said) = net.run("h4", &["circuits"]);
    assert!(!said.contains("h1"), "h1's circuits bind nobody for ten minutes: {said}");
    let (ok, said) = net.run("h1", &["circuits", "forget", "--all", "--yes"]);
    assert!(ok && said.contains("h4 is spoken with in the clear again"), "{said}");
    let stream = stream.wait_with_output().unwrap();
    let said = String::from_utf8(stream.stdout).unwrap();
    let last = said.lines().rfind(|line| line.starts_with("h4 6")).unwrap_or_default();
    assert!(last.starts_with("h4 60: ") && last.ends_with(" ms"), "{said}");
    ["h1", "h4"].iter().for_each(|name| wait_for_met(&net, name, 0));

    restart(&mut net, &[h1, h4]);
    let before = carried(&net, 1);
    for (from, to) in [("h1", "h4"), ("h4", "h1")] {
        let (ok, said) = net.run(from, &["ping", to, "-n", "2"]);
        assert!(ok && !said.contains("circuits"), "{said}");
    }
    assert_eq!(carried(&net, 1), before, "no relay carried a cell");
}

/// The command changes the file of a node that does not run.
#[test]
fn a_host_that_does_not_run_forgets_in_its_file() {
    let mut net = paper(NetworkKind::Loopback, "");
    let (ok, said) = net.run("h1", &["ping", "h4", "-n", "1"]);
    assert!(ok, "{said}");
    wait_for_met(&net, "h4", 1);
    let h4 = net.find("h4");
    net.site.kill(h4);
    let (ok, said) = net.run("h4", &["circuits", "forget", "h1", "--yes"]);
    assert!(ok && said.contains("h1 is spoken with in the clear from the next start on"), "{said}");
    wait_for_met(&net, "h4", 0);
    let file = net.site.folder(h4).join("circuits.met");
    assert_eq!(std::fs::metadata(&file).unwrap().mode() & 0o777, 0o600);
    let (ok, said) = net.run("h4", &["circuits", "forget", "h1", "--yes"]);
    assert!(!ok && said.contains("nothing to forget"), "{said}");
}

#[test]
fn each_hop_of_a_circuit_is_asked_in_turn() {
    let net = paper(NetworkKind::Loopback, "");
    let began = Instant::now();
    // h1 has not contacted h4 yet: the command builds the circuit.
    let (ok, said) = net.run("h1", &["ping", "--hops", "h4", "-W", "20"]);
    assert!(ok, "{said}");
    assert!(began.elapsed() > Duration::from_millis(100), "echoes leave 50 ms apart");
    let lines: Vec<Vec<&str>> = said.lines().map(|l| l.split_whitespace().collect()).collect();
    assert_eq!(lines.len(), 4, "two relays and the host: {said}");
    assert!(lines[1][..2] == ["relay", "1"] && lines[2][..2] == ["relay", "2"], "{said}");
    assert_eq!(lines[3][..2], ["host", "h4"]);
    assert!(lines[1..].iter().all(|line| line.last() == Some(&"ms")), "{said}");
    let (_, circuits) = net.run("h1", &["circuits"]);
    let relays = format!("{} {}", lines[1][2], lines[2][2]);
    assert!(circuits.contains(&relays), "{relays}: {circuits}");

    let (ok, said) = net.run("h1", &["ping", "--hops", "h4", "-n", "2", "-i", "0", "--json"]);
    let rounds: Vec<serde_json::Value> =
        said.lines().map(|line| serde_json::from_str(line).unwrap()).collect();
    assert!(ok && rounds.len() == 2, "{said}");
    let hops = rounds[1]["hops"]["hops"].as_array().unwrap();
    assert!(hops.len() == 3 && hops.iter().all(|hop| hop["rtt_us"].is_u64()), "{said}");

    for (name, host, why) in [
        ("h2", "h4", "outside circuits"),
        ("h1", "r2", "is a router"),
        ("r1", "h4", "ask at a host"),
        ("h1", "h9", "there is no host"),
    ] {
        let (ok, said) = net.run(name, &["ping", "--hops", host]);
        assert!(!ok && said.contains(why), "{name} asks for {host}: {said}");
    }
}

#[test]
fn loops_come_back_and_are_counted() {
    let h1 = format!("{REQUIRE}[anonymity]\nloops = \"on\"\n");
    let net = with_list(NetworkKind::Loopback, "", "", &h1);
    let (ok, said) = net.run("h1", &["ping", "h4", "-n", "1"]);
    assert!(ok, "{said}");
    let began = Instant::now();
    let loops = || {
        let (_, said) = net.run("h1", &["circuits", "--json"]);
        let said: serde_json::Value = serde_json::from_str(&said).unwrap();
        said["circuits"]["loops"].clone()
    };
    while loops()["back"].as_u64().is_none_or(|back| back < 4) {
        assert!(began.elapsed() < Duration::from_secs(60), "{}", loops());
        std::thread::sleep(Duration::from_millis(500));
    }
    let (_, said) = net.run("h1", &["circuits"]);
    assert!(said.contains("loops: ") && said.contains("0 circuits were replaced"), "{said}");
    let (_, metrics) = net.run("h1", &["metrics"]);
    shoal_e2e::check_metrics(&metrics, &["loops"]);
    let (_, said) = net.run("h4", &["circuits", "--json"]);
    assert!(!said.contains("\"lossy\""), "h4 sends none: {said}");
}

#[test]
fn programs_speak_over_circuits() {
    if !shoal_e2e::tun_possible() {
        return;
    }
    let net = paper(NetworkKind::Namespaces, "[interface]\n");
    let took = net.stream("h1", "h4", 7_300, (9, 20_000_000));
    println!("20 MB over a circuit of two relays: {took:?}");
    assert!(carried(&net, 2) > 20_000_000 / 1_312, "relays carried it");
    // The interface takes longer packets than a cell of a circuit with three tag places can carry.
    // A Packet Too Big tells the kernel the circuit's MTU.
    let to = net.address("h4").to_string();
    let way = || {
        let way = Command::new("ip").args(["-6", "route", "get", &to]).output().unwrap();
        String::from_utf8_lossy(&way.stdout).into_owned()
    };
    net.inside("h1", || {
        let socket = UdpSocket::bind("[::]:0").unwrap();
        let began = Instant::now();
        while !way().contains("mtu 1312") {
            assert!(began.elapsed() < Duration::from_secs(20), "{}", way());
            // 1,348 bytes with headers.
            socket.send_to(&[7; 1_300], (to.as_str(), 9)).unwrap();
            std::thread::sleep(Duration::from_millis(100));
        }
    });
}

/// Number of circuit cells that the least busy of the `relays` busiest routers has carried.
fn carried(net: &LabTown, relays: usize) -> u64 {
    let mut cells = ["r1", "r2", "r3"].map(|name| net.status(name).circuits.cells);
    cells.sort_unstable();
    cells[cells.len() - relays]
}

/// A mix with more delay than a machine's stalls.
const MIX: &str =
    "\n[[mix]]\nname = \"usual\"\nkind = \"stop-and-go\"\nmean_ms = 20\nmost_ms = 60\n";

#[test]
fn relays_keep_cells_back_as_the_list_says_and_the_host_can_check_it() {
    // More delay than a busy machine adds.
    let net = with_list(
        NetworkKind::Loopback,
        "",
        &MIX.replace("20", "100").replace("60", "300"),
        REQUIRE,
    );
    let audit = || {
        let (ok, said) = net.run("h1", &["circuits", "--audit", "h4", "--rounds", "12", "--json"]);
        assert!(ok, "{said}");
        serde_json::from_str::<serde_json::Value>(&said).unwrap()
    };
    let agrees = |audit: &serde_json::Value| {
        let hops = audit["audit"].as_array().unwrap();
        assert_eq!(hops.len(), 3, "{audit}");
        for (hop, mixes) in hops.iter().zip([1.0, 3.0, 4.0]) {
            // The mean of one mix is 85 ms, cut off at 300.
            let (rtt, mixed) = (hop["rtt_ms"].as_f64().unwrap(), hop["mixed_ms"].as_f64().unwrap());
            assert!(rtt >= mixed - 1.0 && mixed > 20.0 * mixes, "{audit}");
        }
        let verdict = |hop: &serde_json::Value| hop["verdict"].as_str().map(String::from);
        let [relays @ .., host] = &hops[..] else { panic!("{audit}") };
        assert_eq!(verdict(host).as_deref(), Some("host"), "{audit}");
        let said: Vec<_> = relays.iter().filter_map(verdict).collect();
        assert!(said.iter().all(|said| said == "as_agreed" || said == "busy"), "{audit}");
        said.iter().all(|said| said == "as_agreed")
    };
    // On a busy machine, more than one attempt may be needed.
    assert!((0..4).any(|_| agrees(&audit())), "{}", audit());
    let (_, said) = net.run("h1", &["circuits"]);
    assert!(said.contains("stop-and-go 100 ms, at most 300 ms"), "{said}");
    net.send("h1", "h4", (7, 300_000)).end();
}

#[test]
fn a_host_that_allows_less_delay_is_told_that_its_cells_are_not_mixed() {
    let h1 = format!("{REQUIRE}max_added_ms = 5\n");
    let net = with_list(NetworkKind::Loopback, "", MIX, &h1);
    let (ok, said) = net.run("h1", &["ping", "h4", "-n", "1"]);
    assert!(ok, "{said}");
    let (_, said) = net.run("h1", &["circuits"]);
    assert!(said.contains("max_added_ms") && !said.contains("stop-and-go"), "{said}");
}

#[test]
fn circuits_use_the_first_mix_of_the_list_that_adds_no_more_than_the_host_allows() {
    let topology = (Topology::paper(), NetworkKind::Loopback, Conditions::default());
    let net = LabTown::new(topology, "", |folder| {
        list(folder, &format!("{MIX}[[mix]]\nname = \"steps\"\nkind = \"timed\"\nevery_ms = 4\n"));
        configure(folder, "h1", &format!("{REQUIRE}max_added_ms = 5\n"));
        configure(folder, "h3", REQUIRE);
    });
    for (name, mix) in [("h1", "timed 4 ms"), ("h3", "stop-and-go 20 ms, at most 60 ms")] {
        let (ok, said) = net.run(name, &["ping", "h4", "-n", "1", "-W", "20"]);
        assert!(ok, "{name}: {said}");
        let (ok, said) = net.run(name, &["circuits"]);
        assert!(ok && said.matches(&format!(": {mix}")).count() == 2, "two relays: {said}");
    }
}

/// A relay may use one mix for all circuits, as in the paper.
#[test]
fn a_relays_own_mix_replaces_the_one_that_circuits_name() {
    let topology = (Topology::paper(), NetworkKind::Loopback, Conditions::default());
    let net = LabTown::new(topology, "", |folder| {
        list(
            folder,
            &format!("\n[[mix]]\nname = \"steps\"\nkind = \"timed\"\nevery_ms = 4\n{MIX}"),
        );
        let hosts = folder.join("hosts.toml");
        let text = std::fs::read_to_string(&hosts).unwrap();
        let own = text.replace("relay = true\n", "relay = true\nmix = \"usual\"\n");
        std::fs::write(hosts, own).unwrap();
        configure(folder, "h1", REQUIRE);
    });
    let (ok, said) = net.run("h1", &["circuits", "--audit", "h4", "--rounds", "12"]);
    // On a busy machine the verdict may differ. The agreed mix may not.
    assert!(ok || said.contains("echoes were not delayed"), "{said}");
    let (_, said) = net.run("h1", &["circuits"]);
    assert!(said.contains("stop-and-go 20 ms, at most 60 ms"), "{said}");
}

#[test]
fn programs_speak_in_order_behind_mixes() {
    if !shoal_e2e::tun_possible() {
        return;
    }
    let net = with_list(NetworkKind::Namespaces, "[interface]\n", &MIX.replace("20", "5"), REQUIRE);
    let took = net.stream("h1", "h4", 7_300, (9, 5_000_000));
    println!("5 MB over two mixes of 5 ms: {took:?}");
    assert!(carried(&net, 2) > 5_000_000 / 1_312, "relays carried it");
    let order = net.metric("h4", "shoal_order_total{what=\"held\"}");
    assert!(order > 100.0, "{order} packets waited for those before them: cells were mixed");
}

#[test]
fn without_relays_nothing_leaves_and_the_command_says_why() {
    let chain = (Topology::chain(), NetworkKind::Loopback, Conditions::default());
    let net = LabTown::new(chain, "", |folder| configure(folder, "h1", REQUIRE));
    let (ok, said) = net.run("h1", &["ping", "h2", "-n", "1"]);
    assert!(!ok && said.contains("there is no circuit to h2: no router"), "{said}");
    let began = Instant::now();
    let (ok, said) = net.run("h1", &["ping", "--hops", "h2", "-W", "20"]);
    assert!(!ok && said.contains("there is no circuit to h2: no router"), "{said}");
    assert!(began.elapsed() < Duration::from_secs(10), "the command does not wait in vain");
    let (_, said) = net.run("h1", &["circuits"]);
    assert!(said.contains("relay"), "{said}");
    let drops = net.status("h2").drops;
    assert!(!drops.iter().any(|(why, _)| why == "circuit_required"), "nothing came there");
}
