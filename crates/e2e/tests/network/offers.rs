//! Members that offer files and send little or nothing, and their effect on others.
//!
//! ```text
//!   eve --- r1 --- h2      100 offers a second to h2's `shoal receive`, and no segment of a file
//!           |
//!           h3             small files to h2
//! ```

use std::fs;
use std::os::fd::AsFd;
use std::path::Path;
use std::process::Command;
use std::time::{Duration, Instant};

use shoal_daemon::control::api::{Command as Ask, ControlReply, SendFile};
use shoal_daemon::control::socket::{CallError, ControlConnection};
use shoal_e2e::{LoopbackNet, begin, bytes, end_of, names, namespaces, send_signal, text};
use shoal_lab::site::RunningNetwork;
use shoal_lab::topology::{LinkSpec, NodeSpec};
use shoal_lab::{Conditions, Executable, Network, NetworkKind, Topology};
use shoal_wire::Address;

const R1: usize = 0;
const EVE: usize = 1;
const H2: usize = 2;
const H3: usize = 3;
/// Time between two offers.
const GAP: Duration = Duration::from_millis(10);

fn star() -> Topology {
    let nodes = [("r1", 0), ("eve", 1), ("h2", 2), ("h3", 3)];
    let nodes = nodes.map(|(name, host)| NodeSpec::new(name.into(), Address::new(1, host)));
    let links = [EVE, H2, H3].map(|a| LinkSpec { a, b: R1 });
    Topology { nodes: nodes.into(), links: links.to_vec() }
}

/// The router drops full frames of eve: offers and their answers pass, segments don't.
fn keep_segments_back(network: &Network) {
    // eve's address on r1's link.
    let eve = network.endpoint(0, R1).ip();
    let namespace = network.namespace(R1).unwrap();
    for words in [
        "add table inet keep",
        "add chain inet keep in { type filter hook prerouting priority 0 ; }",
        &format!("add rule inet keep in ip saddr {eve} udp length > 1000 drop"),
    ] {
        let mut nft = Command::new("nft");
        nft.args(words.split(' '));
        let output = namespace.enter(|| Ok(nft.output()?)).unwrap();
        assert!(output.status.success(), "{}", text(&output).1);
    }
}

/// Offers `source` under a new name. False if eve's own table is full.
fn offer(eve: &mut ControlConnection, source: &fs::File, n: u64) -> bool {
    let file = SendFile {
        name: format!("offer{n}"),
        size: source.metadata().unwrap().len(),
        modified_ns: 0,
        file_id: format!("{n:032x}"),
        executable: false,
    };
    let ask = Ask::Send { host: "h2".into(), files: vec![file] };
    let taken = match eve.call(ask, &[source.as_fd()]) {
        Ok(ControlReply::Sending { .. }) => true,
        Err(CallError::Node(_)) => false,
        other => panic!("{other:?}"),
    };
    while eve.event(Some(Duration::ZERO)).unwrap().is_some() {}
    taken
}

fn send(site: &RunningNetwork, node: usize, file: &Path, words: &[&str]) -> std::process::Child {
    let mut command = site.command(node, &["send"]);
    command.args(words).arg(file).arg("h2");
    begin(command)
}

#[test]
fn a_hundred_offers_a_second_without_data_keep_nobody_out() {
    if !namespaces() {
        return;
    }
    let folder = tempfile::tempdir().unwrap();
    let network = Network::build(star(), NetworkKind::Namespaces, Conditions::default()).unwrap();
    let executable = Executable::shoal(shoal_e2e::program());
    let mut site = RunningNetwork::start(network, &executable, folder.path(), "").unwrap();
    site.wait_until_up(Duration::from_secs(20)).unwrap_or_else(|e| panic!("{e:#}"));
    let inbox = folder.path().join("inbox");
    fs::create_dir(&inbox).unwrap();
    let words = ["receive", "--from", "any", "--dir", inbox.to_str().unwrap()];
    let receiver = begin(site.command(H2, &words));
    // One file arrives, so eve's session with h2 is up.
    let first = folder.path().join("first");
    fs::write(&first, "first").unwrap();
    let ended = end_of(send(&site, EVE, &first, &["--wait", "10"]), "send");
    assert!(ended.status.success(), "{:?}", text(&ended));
    keep_segments_back(site.network());
    let source = fs::File::create_new(folder.path().join("source")).unwrap();
    source.set_len(20_000_000).unwrap();
    let source = fs::File::open(folder.path().join("source")).unwrap();
    let mut eve = site.control(EVE).unwrap();
    let (began, mut offered, mut taken) = (Instant::now(), 0, 0);
    let mut others = Vec::new();
    // Longer than the 10 s for which an offer may wait for its first byte.
    for n in 0..1_400 {
        offered += 1;
        taken += u32::from(offer(&mut eve, &source, n));
        if n % 400 == 300 {
            let small = folder.path().join(format!("small{n}"));
            fs::write(&small, "small").unwrap();
            others.push((n, Instant::now(), send(&site, H3, &small, &[])));
        }
        std::thread::sleep((began + GAP * offered).saturating_duration_since(Instant::now()));
        for at in (0..others.len()).rev() {
            if others[at].2.try_wait().unwrap().is_some() {
                let (n, began, child) = others.swap_remove(at);
                let (took, ended) = (began.elapsed(), end_of(child, "send"));
                println!("small{n} took {took:?}");
                assert!(ended.status.success(), "{:?}", text(&ended));
                assert!(took < Duration::from_secs(3), "{took:?}");
            }
        }
    }
    let rate = f64::from(taken) / began.elapsed().as_secs_f64();
    let there = names(&inbox);
    println!("{taken} of {offered} offers left, {rate:.0} a second; there: {}", there.len());
    assert!(others.is_empty() && rate > 80.0, "{rate} offers a second");
    assert_eq!(there.iter().filter(|name| !name.starts_with('.')).count(), 4, "{there:?}");
    assert!(there.len() <= 4 + 32, "{there:?}");
    send_signal(&receiver, "-INT");
    let (_, said) = text(&end_of(receiver, "receive"));
    assert!(said.lines().count() < 60 && said.contains("more files refused"), "{said}");
    // Failed offers leave nothing behind.
    assert_eq!(names(&inbox).len(), 4, "{:?}", names(&inbox));
}

/// Five members fill the 64 places (32, 16, 8, 4 and 4), and their nodes run only 60 ms in every 2
/// s.
#[test]
fn members_that_trickle_in_every_place_keep_nobody_out() {
    let members = ["e1", "e2", "e3", "e4", "e5"];
    let all = [&["r1", "h2", "h3"], &members[..]].concat();
    let mut net = LoopbackNet::new(&all);
    for member in members {
        net.configure(member, "[transfer]\nmax_rate_mbit = 1\n");
    }
    net.start_all();
    let (inbox, source) = (net.folder("inbox"), net.folder("source"));
    let mut command = net.command("h2", &["receive", "--from", "any", "--dir"]);
    command.arg(&inbox);
    let receiver = begin(command);
    let parts = |member: &str| {
        let prefix = format!(".{member}-");
        names(&inbox).iter().filter(|n| n.starts_with(&prefix) && n.ends_with("part")).count()
    };
    let mut senders = Vec::new();
    for (member, places) in members.iter().zip([32, 16, 8, 4, 4]) {
        let mut command = net.command(member, &["send", "--wait", "60", "--parallel", "32"]);
        for n in 0..32 {
            let path = source.join(format!("{member}-{n}"));
            fs::File::create(&path).unwrap().set_len(20_000_000).unwrap();
            command.arg(path);
        }
        command.arg("h2");
        senders.push(begin(command));
        net.until(|_| parts(member) >= places);
        net.signal(member, "-STOP");
    }
    let small = source.join("small");
    fs::write(&small, bytes(1, 200_000)).unwrap();
    for round in 0..8 {
        members.iter().for_each(|member| net.signal(member, "-CONT"));
        std::thread::sleep(Duration::from_millis(60));
        members.iter().for_each(|member| net.signal(member, "-STOP"));
        let mut command = net.command("h3", &["send"]);
        command.arg(&small).arg("h2");
        let (began, ended) = (Instant::now(), end_of(begin(command), "send"));
        let held = members.map(parts);
        println!("{round}: {:?}, places {held:?}, {:?}", began.elapsed(), text(&ended).1);
        assert!(ended.status.success(), "{:?}", text(&ended));
        fs::remove_file(inbox.join("small")).unwrap();
        std::thread::sleep(Duration::from_secs(2));
    }
    members.iter().for_each(|member| net.signal(member, "-CONT"));
    for child in senders.into_iter().chain([receiver]) {
        send_signal(&child, "-INT");
        println!("{:?}", text(&end_of(child, "a command")));
    }
}
