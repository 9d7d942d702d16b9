//! Hosts whose links carry frames by a schedule, and the commands' output about them.

use std::fs;

use std::path::Path;
use std::process::Command;
use std::time::{Duration, Instant};

use serde_json::Value;
use shoal_e2e::town::LabTown;
use shoal_e2e::{LoopbackNet, check_metrics, shoal, text};
use shoal_lab::{Conditions, NetworkKind, Topology};

const TIERS: &str = "[[cover]]\nname = \"home\"\nmbit = 2\n";

/// Gives only these hosts the tier "home" in the hosts file.
fn cover(net: &LoopbackNet, hosts: &[&str]) {
    let file = net.root().join("hosts.toml");
    let text = fs::read_to_string(&file).unwrap();
    let plain = text.replace("cover = \"home\"\n", "").replace(TIERS, "");
    let with = hosts.iter().fold(plain, |text, host| {
        let name = format!("name = \"{host}\"\n");
        text.replace(&name, &format!("{name}cover = \"home\"\n"))
    });
    fs::write(&file, with + TIERS).unwrap();
}

fn status(net: &LoopbackNet, name: &str) -> Value {
    net.ask(name, &["status"]).unwrap()["status"].clone()
}

/// The entry of `name` for its link with `peer`.
fn link(net: &LoopbackNet, name: &str, peer: &str) -> Value {
    let peers = net.ask(name, &["peers"]).unwrap();
    let all = peers["peers"].as_array().unwrap();
    all.iter().find(|row| row["name"] == peer).unwrap()["cover"].clone()
}

/// Success, standard output and standard error of a command.
fn said(net: &LoopbackNet, name: &str, words: &[&str]) -> (bool, String, String) {
    let output = net.command(name, words).output().unwrap();
    let (out, err) = text(&output);
    (output.status.success(), out, err)
}

fn check(net: &LoopbackNet, name: &str) -> (Option<i32>, String) {
    let config = net.config(name);
    let output = shoal(&["check", "-c", config.to_str().unwrap()]).output().unwrap();
    let (out, err) = text(&output);
    (output.status.code(), out + &err)
}

fn ping(net: &LoopbackNet) -> bool {
    said(net, "h1", &["ping", "-n", "1", "-W", "2", "h2"]).0
}

#[test]
fn covered_links_keep_their_schedule_and_commands_say_so() {
    let mut net = LoopbackNet::new(&["r1", "h1", "h2"]);
    cover(&net, &["h1"]);
    let (code, out) = check(&net, "h1");
    assert_eq!(code, Some(0), "{out}");
    // 2 Mbit/s are 21.6 GB a day, plus 28 bytes of headers for each 1,440.
    assert!(out.contains("cover of the link with this host's router: 22.02 GB a day in each"));
    assert!(out.contains("home (2 Mbit/s): hides among one host of the list"), "{out}");
    assert!(out.contains("warning: cover \"home\": hosts that have it in the list: 1."), "{out}");
    assert!(check(&net, "r1").1.contains("cover of one link: 22.02 GB a day"));
    assert!(!check(&net, "h2").1.contains("cover"));
    net.start_all();
    for (name, peer) in [("h1", "r1"), ("r1", "h1")] {
        net.until(|net| link(net, name, peer)["frames"].as_u64() > Some(100));
        let cover = link(&net, name, peer);
        assert_eq!((&cover["state"], &cover["mbit"]), (&"running".into(), &2.into()), "{cover}");
    }
    assert_eq!((link(&net, "r1", "h2"), link(&net, "h2", "r1")), (Value::Null, Value::Null));
    net.until(ping);
    let (host, router) = (status(&net, "h1"), status(&net, "r1"));
    assert_eq!(host["cover"]["own"]["state"], "running", "{host}");
    assert_eq!(router["cover"]["own"], Value::Null, "{router}");
    for of in [&host, &router] {
        let tier = &of["cover"]["tiers"][0];
        assert_eq!((&of["cover"]["links"], &tier["hosts"]), (&1.into(), &1.into()), "{of}");
        assert!(of["warnings"].to_string().contains("hosts that have it in the list: 1."), "{of}");
    }
    assert_eq!(status(&net, "h2")["cover"], Value::Null);
    for (words, wanted) in [
        (&["status"][..], "hides among one host of tier home"),
        (&["peers"], "2 Mbit/s, running"),
        (&["circuits"], "cover hides traffic from observers of the wires, not from routers"),
    ] {
        let (_, out, err) = said(&net, "h1", words);
        assert!(out.contains(wanted), "{words:?}: {out}{err}");
    }
    let metrics = || said(&net, "r1", &["metrics"]).1;
    let counted = |text: &str| text.contains("shoal_cover_frames_total ");
    net.until(|_| counted(&metrics()) && !metrics().contains("shoal_cover_frames_total 0"));
    check_metrics(&metrics(), &[]);
    let log = fs::read_to_string(net.dir("h1").join("log")).unwrap();
    assert_eq!(log.matches("hosts that have it in the list: 1.").count(), 1, "{log}");
    // A reload ends cover at both ends, and another begins it.
    cover(&net, &[]);
    for name in ["h1", "r1"] {
        let applied = net.ask(name, &["reload"]).unwrap()["reload"]["applied"].to_string();
        assert!(applied.contains("(cover)") && applied.contains("host h1 (changed)"), "{applied}");
    }
    assert_eq!((link(&net, "h1", "r1"), link(&net, "r1", "h1")), (Value::Null, Value::Null));
    assert!(ping(&net));
    cover(&net, &["h1", "h2"]);
    for name in ["h1", "h2", "r1"] {
        net.ask(name, &["reload"]).unwrap();
    }
    net.until(|net| status(net, "r1")["cover"]["running"] == 2);
    net.until(ping);
}

#[test]
fn a_covered_host_has_no_direct_links() {
    let mut net = LoopbackNet::new(&["r1", "h1", "h2"]);
    for (name, port) in [("h1", 20_401), ("h2", 20_402)] {
        let text = fs::read_to_string(net.config(name)).unwrap();
        let at = text.split("listen = [\"").nth(1).unwrap().split(':').next().unwrap();
        let direct = format!("[direct]\nmode = \"on-demand\"\nendpoint = \"{at}:{port}\"\n");
        net.configure(name, &direct);
    }
    net.start_all();
    let direct = |net: &LoopbackNet, name: &str| status(net, name)["direct"].clone();
    net.until(|net| {
        ping(net) && direct(net, "h1")["links"] == 1 && direct(net, "h2")["links"] == 1
    });
    cover(&net, &["h2"]);
    for name in ["h1", "h2", "r1"] {
        net.ask(name, &["reload"]).unwrap();
    }
    net.until(|net| direct(net, "h1")["links"] == 0 && direct(net, "h2")["links"] == 0);
    let (agreed, asked) =
        (direct(&net, "h2")["agreed"].clone(), direct(&net, "h2")["asked"].clone());
    net.until(|net| ping(net) && direct(net, "h1")["asked"].as_u64() > Some(1));
    let now = direct(&net, "h2");
    assert_eq!((&now["agreed"], &now["asked"]), (&agreed, &asked), "h2 neither answers nor asks");
    let warnings = status(&net, "h2")["warnings"].to_string();
    assert!(warnings.contains("a direct link would bypass its schedule"), "{warnings}");
    let (code, out) = check(&net, "h2");
    assert!(code == Some(0) && out.contains("a direct link would bypass its schedule"), "{out}");
    assert!(!out.contains("direct links on-demand"), "{out}");
    // Without cover, direct links are allowed again.
    cover(&net, &[]);
    for name in ["h1", "h2", "r1"] {
        net.ask(name, &["reload"]).unwrap();
    }
    net.until(|net| ping(net) && direct(net, "h2")["links"] == 1);
}

/// Both hosts follow the list by a reload, without a warning: "auto" promises no direct links under
/// cover.
#[test]
fn automatic_direct_links_end_under_cover_and_come_again_after_it() {
    let mut net = LoopbackNet::new(&["r1", "h1", "h2"]);
    for (name, port) in [("h1", 20_411), ("h2", 20_412)] {
        let text = fs::read_to_string(net.config(name)).unwrap();
        let at = text.split("listen = [\"").nth(1).unwrap().split(':').next().unwrap();
        let direct = format!("[direct]\nmode = \"auto\"\nendpoint = \"{at}:{port}\"\n");
        net.configure(name, &direct);
    }
    net.start_all();
    let direct = |net: &LoopbackNet, name: &str| status(net, name)["direct"].clone();
    let both = |net: &LoopbackNet, links: u64| {
        ["h1", "h2"].iter().all(|name| direct(net, name)["links"] == links)
    };
    let why = |net: &LoopbackNet| {
        let hosts = net.ask("h1", &["hosts"]).unwrap();
        let all = hosts["hosts"].as_array().unwrap().clone();
        let far = all.into_iter().find(|host| host["name"] == "h2").unwrap();
        (far["path"].as_str().unwrap().to_owned(), far["why"].as_str().unwrap().to_owned())
    };
    net.until(|net| ping(net) && both(net, 1));
    // Only h1's link is covered.
    cover(&net, &["h1"]);
    for name in ["h1", "h2", "r1"] {
        net.ask(name, &["reload"]).unwrap();
    }
    net.until(|net| direct(net, "h1")["links"] == 0);
    let [before, others] = ["h1", "h2"].map(|name| direct(&net, name));
    net.until(|net| ping(net) && direct(net, "h2")["asked"] != others["asked"]);
    let now = direct(&net, "h1");
    assert_eq!((&now["asked"], &now["agreed"]), (&before["asked"], &before["agreed"]));
    assert_eq!(why(&net), ("relayed".into(), "covered hosts have no direct links".into()));
    let netcheck = net.ask("h1", &["netcheck"]).unwrap()["netcheck"].clone();
    assert_eq!(netcheck["refusal"], "covered hosts have no direct links", "{netcheck}");
    let warnings = status(&net, "h1")["warnings"].to_string();
    assert!(!warnings.contains("direct"), "{warnings}");
    let (code, out) = check(&net, "h1");
    assert!(code == Some(0) && !out.contains("direct link"), "{out}");
    cover(&net, &[]);
    for name in ["h1", "h2", "r1"] {
        net.ask(name, &["reload"]).unwrap();
    }
    net.until(|net| ping(net) && both(net, 1));
}

#[test]
fn a_hidden_host_needs_cover_and_has_it_on_any_path() {
    let mut net = LoopbackNet::new(&["r1", "h1", "h2"]);
    cover(&net, &["h2"]);
    net.configure("h1", "[anonymity]\npreset = \"hidden\"\n");
    let (code, out) = check(&net, "h1");
    assert_eq!(code, Some(4), "{out}");
    assert!(out.contains("the network's list gives this host no tier of cover"), "{out}");
    let config = net.config("h1");
    let start = shoal(&["run", "-c", config.to_str().unwrap()]).output().unwrap();
    assert!(!start.status.success() && text(&start).1.contains("no tier of cover"), "{start:?}");
    cover(&net, &["h1"]);
    let (code, out) = check(&net, "h1");
    assert_eq!(code, Some(0), "{out}");
    assert!(out.contains("preset hidden") && out.contains("the network's list has no [[mix]]"));
    net.start_all();
    net.until(|net| link(net, "h1", "r1")["state"] == "running");
    // A reload of this node's files must not remove the tier.
    cover(&net, &[]);
    let (done, _, err) = said(&net, "h1", &["reload"]);
    assert!(!done && err.contains("no tier of cover"), "{err}");
    cover(&net, &["h1"]);
    // If the path carries no full frames, slots carry parts of frames.
    net.end("r1", "-TERM");
    let file = net.config("r1");
    let text = fs::read_to_string(&file).unwrap();
    fs::write(&file, text.replace("peer = \"h1\"\n", "peer = \"h1\"\nmtu = 1280\n")).unwrap();
    assert_eq!(check(&net, "r1").0, Some(0));
    net.start("r1");
    net.until(|net| link(net, "r1", "h1")["state"] == "running");
    let frames = |net: &LoopbackNet| link(net, "r1", "h1")["frames"].as_u64().unwrap_or(0);
    net.until(|net| frames(net) > 300 && link(net, "h1", "r1")["state"] == "running");
}

/// Time in which frames between routers are counted.
const COUNTED: Duration = Duration::from_secs(3);
/// Most frames in one datagram inside the kernel, before it segments the datagram.
const AT_ONCE: usize = 44;
/// Frames of 2 Mbit/s in a second.
const FRAMES_PER_S: f64 = 2e6 / 8.0 / FRAME_LEN as f64;
/// Length of a full frame, in bytes.
const FRAME_LEN: usize = 1_440;
/// Headers of IPv4 and UDP, in bytes.
const HEADERS_LEN: u64 = 28;

/// The other router of the chain.
fn far(router: &str) -> &'static str {
    if router == "r1" { "r2" } else { "r1" }
}

/// Names the tier for the link between the routers, in both files.
fn cover_routers(folder: &Path) {
    for router in ["r1", "r2"] {
        let file = folder.join(router).join("node.toml");
        let text = fs::read_to_string(&file).unwrap();
        let link = format!("peer = \"{}\"\n", far(router));
        assert!(text.contains(&link), "{text}");
        fs::write(file, text.replace(&link, &format!("{link}cover = \"home\"\n"))).unwrap();
    }
    let list = folder.join("hosts.toml");
    let text = fs::read_to_string(&list).unwrap();
    fs::write(list, text + TIERS).unwrap();
}

/// Counts full frames, and all other datagrams, from each router to the other. These rules see the
/// frames of one late send as one datagram, but the wire carries several.
fn count(town: &LabTown) {
    let lengths: Vec<_> = (1..=AT_ONCE).map(|n| (n * FRAME_LEN + 8).to_string()).collect();
    let full = format!("{{ {} }}", lengths.join(", "));
    for router in ["r1", "r2"] {
        let [node, peer] = [router, far(router)].map(|name| town.find(name));
        let out = format!("oifname \"{}\" udp length", town.site.network().interface(node, peer));
        let rules = format!(
            "add table inet seen; \
             add chain inet seen out {{ type filter hook output priority 0; }}; \
             add rule inet seen out {out} {full} counter; \
             add rule inet seen out {out} != {full} counter"
        );
        assert!(
            town.inside(router, || Command::new("nft").arg(&rules).status().unwrap()).success()
        );
    }
}

/// Full frames from a router to the other, and datagrams of other lengths.
fn left(town: &LabTown, router: &str) -> [u64; 2] {
    let mut nft = Command::new("nft");
    nft.args(["list", "table", "inet", "seen"]);
    let (said, _) = text(&town.inside(router, || nft.output().unwrap()));
    let counts = |unit: &str| {
        let rest = said.split(unit).skip(1);
        let mut counts = rest.map(|rest| rest.split_whitespace().next().unwrap());
        [(); 2].map(|()| counts.next().unwrap().parse::<u64>().unwrap())
    };
    let ([full, others], [bytes, _]) = (counts("packets "), counts("bytes "));
    [(bytes - full * HEADERS_LEN) / FRAME_LEN as u64, others]
}

/// Full frames per second from each router to the other. No other datagrams may leave.
fn rates(town: &LabTown) -> [f64; 2] {
    let look = |router| (Instant::now(), left(town, router));
    let before = ["r1", "r2"].map(look);
    std::thread::sleep(COUNTED);
    let after = ["r1", "r2"].map(look);
    [0, 1].map(|at| {
        let (began, [full, others]) = before[at];
        let (ended, [more_full, more_others]) = after[at];
        assert_eq!(more_others - others, 0, "datagrams of another length");
        (more_full - full) as f64 / (ended - began).as_secs_f64()
    })
}

#[test]
fn frames_between_covered_routers_leave_by_the_schedule_whatever_passes() {
    if !shoal_e2e::namespaces() {
        return;
    }
    let network = (Topology::chain(), NetworkKind::Namespaces, Conditions::default());
    let town = LabTown::new(network, "", cover_routers);
    let config = town.folder.path().join("r1/node.toml");
    let mut check = shoal(&["check", "-c", config.to_str().unwrap()]);
    let (out, err) = text(&town.inside("r1", || check.output().unwrap()));
    let price = "cover of one link: 22.02 GB a day in each direction, 44.04 GB in both";
    assert!(out.contains(price), "{out}{err}");
    assert!(out.contains("home (2 Mbit/s): on lines between routers, 1 of them here"), "{out}");
    let running = |name: &str| {
        let cover = town.status(name).cover;
        cover.is_some_and(|cover| (cover.links, cover.running) == (1, 1))
    };
    let began = Instant::now();
    while !(running("r1") && running("r2")) {
        assert!(began.elapsed() < Duration::from_secs(20), "{:?}", town.run("r1", &["peers"]));
        std::thread::sleep(Duration::from_millis(50));
    }
    for (words, wanted) in [
        ("status", "22.02 GB a day in each direction"),
        ("status", "on lines between routers: tier home, 1 of them here"),
        ("peers", "2 Mbit/s, running"),
    ] {
        let (_, said) = town.run("r1", &[words]);
        assert!(said.contains(wanted), "{words}: {said}");
    }
    assert!(town.status("h1").cover.is_none(), "a host's own link has no schedule");

    // Handshakes that began at both ends are over.
    std::thread::sleep(Duration::from_secs(2));
    count(&town);
    let quiet = rates(&town);
    // Half of the schedule's frames carry the file in five seconds.
    let file = town.send("h1", "h2", (3, 500_000));
    std::thread::sleep(Duration::from_millis(500));
    let busy = rates(&town);
    let took = file.end();
    assert!(took > COUNTED, "{took:?}: the file did not pass while frames were counted");
    println!("frames a second: {quiet:?} quiet, {busy:?} with a file that took {took:?}");
    for rate in quiet.iter().chain(&busy) {
        assert!(
            (rate / FRAMES_PER_S - 1.0).abs() < 0.05,
            "{rate} of {FRAMES_PER_S} frames a second"
        );
    }
}

/// A router and hosts with an authority, whose list counts for `lifetime` seconds.
fn signed(names: &[&str], lifetime: u64) -> LoopbackNet {
    let net = LoopbackNet::new(names);
    let made = authority(&net, &["init"]).unwrap();
    let key = made.lines().find_map(|line| line.strip_prefix("key = ")).unwrap();
    for (i, name) in names.iter().enumerate() {
        let file = net.dir(name).join("node.key");
        let public = text(&shoal(&["pubkey", file.to_str().unwrap()]).output().unwrap()).0;
        let address = format!("1.{i}");
        let words = ["sign", name, "--key", public.trim(), "--address", &address];
        authority(&net, &words).unwrap();
        let section = format!(
            "[authority]\nkey = {key}\nlist_file = \"network.list\"\nmax_staleness_s = {lifetime}\n"
        );
        net.configure(name, &section);
        give(&net, name);
    }
    net
}

/// Output of `shoal authority` in the network's folder, or its error.
fn authority(net: &LoopbackNet, words: &[&str]) -> Result<String, String> {
    let folder = net.folder("authority");
    let mut command = shoal(&["authority", words[0], "--dir", folder.to_str().unwrap()]);
    let output = command.args(&words[1..]).output().unwrap();
    let (out, err) = text(&output);
    if output.status.success() { Ok(out) } else { Err(err) }
}

fn policy(net: &LoopbackNet, text: &str) -> Result<String, String> {
    let file = net.folder("authority").join("policy.toml");
    fs::write(&file, text).unwrap();
    authority(net, &["policy", file.to_str().unwrap()])
}

/// Gives one node the newest list.
fn give(net: &LoopbackNet, name: &str) {
    let list = net.folder("authority").join("network.list");
    fs::copy(list, net.dir(name).join("network.list")).unwrap();
}

#[test]
fn tiers_of_the_list_reach_both_ends_of_a_link() {
    let mut net = signed(&["r1", "h1", "h2"], 31_536_000);
    let tier = |name: &str| format!("[[cover]]\nname = {name:?}\nmbit = 2\n");
    let sign = |net: &LoopbackNet, name, tier| authority(net, &["sign", name, "--cover", tier]);
    let said = sign(&net, "h1", "home").unwrap_err();
    assert!(said.contains("no [[cover]] is called \"home\": there is none yet"), "{said}");
    let said = policy(&net, &tier("home")).unwrap();
    assert!(said.contains("policy with 0 rules, 1 [[cover]]"), "{said}");
    sign(&net, "h1", "home").unwrap();
    let said = sign(&net, "r1", "home").unwrap_err();
    assert!(said.contains("only a host has a tier of cover"), "{said}");
    let said = policy(&net, &tier("office")).unwrap_err();
    assert!(
        said.contains("\"h1\": no [[cover]] is called \"home\": expected \"office\""),
        "{said}"
    );
    let shown = authority(&net, &["list"]).unwrap();
    let line = "cover: home (constant, 2 Mbit/s: 22.02 GB a day in each direction), one host";
    assert!(shown.contains(line), "{shown}");
    // One copy on the router brings cover to the host; the next copy ends it.
    net.start_all();
    let running = |net: &LoopbackNet, name: &str| status(net, name)["cover"]["running"].clone();
    give(&net, "r1");
    net.until(|net| running(net, "r1") == 1 && running(net, "h1") == 1);
    assert!(ping(&net) && running(&net, "h2").is_null());
    sign(&net, "h1", "").unwrap();
    give(&net, "r1");
    net.until(|net| running(net, "r1").is_null() && running(net, "h1").is_null());
}

/// Otherwise the line would show that the authority forgot to sign, and then the passing lists.
#[test]
fn covered_links_keep_their_schedule_while_the_list_is_too_old() {
    let mut net = signed(&["r1", "h1"], 8);
    policy(&net, "[[cover]]\nname = \"home\"\nmbit = 2\n").unwrap();
    authority(&net, &["sign", "h1", "--cover", "home"]).unwrap();
    for name in ["r1", "h1"] {
        give(&net, name);
    }
    net.start_all();
    let state = |net: &LoopbackNet, name: &str| status(net, name)["authority"]["state"].clone();
    net.until(|net| state(net, "h1") == "stale" && state(net, "r1") == "stale");
    let frames = |net: &LoopbackNet| {
        let cover = link(net, "h1", "r1");
        assert_eq!(cover["state"], "running", "{cover}");
        cover["frames"].as_u64().unwrap()
    };
    let before = frames(&net);
    net.until(|net| frames(net) > before + 200);
    assert_eq!(link(&net, "r1", "h1")["state"], "running");
}
