//! TCP over the interface while the network's secret changes: a connection continues through all
//! steps, and through new sessions under the new secret.
//!
//! ```text
//!   h1 --- r1 --- r2 --- h2      the lists and the next secret are put on r1
//! ```

use std::io::{Read, Write};
use std::time::{Duration, Instant};

use shoal_e2e::bytes;
use shoal_e2e::town::{LabTown, authority, found};
use shoal_lab::{Conditions, NetworkKind, Topology};

const PATIENCE: Duration = Duration::from_secs(60);
const NODES: [&str; 4] = ["h1", "r1", "r2", "h2"];
/// Bytes in one turn of the stream, which the far end compares.
const TURN: usize = 64 << 10;
/// Longest pause of the stream: a lost packet or two, not a lost link.
const STALL: Duration = Duration::from_secs(3);

/// Puts the authority's newest list on r1.
fn publish(town: &LabTown, words: &[&str]) {
    let folder = town.folder.path();
    authority(folder, words);
    let to = town.site.folder(town.find("r1")).join("network.list");
    std::fs::copy(folder.join("authority/network.list"), to).unwrap();
}

#[track_caller]
fn all_are(town: &LabTown, state: &str) {
    let began = Instant::now();
    let is = |name: &&str| {
        let secret = town.status(name).authority.and_then(|authority| authority.secret);
        secret.is_some_and(|secret| secret.state == state && secret.has_newest)
    };
    while !NODES.iter().all(is) {
        assert!(began.elapsed() < PATIENCE, "not all nodes are {state}");
        std::thread::sleep(Duration::from_millis(50));
    }
}

/// Segments that TCP sent again in h1's namespace.
fn sent_again(town: &LabTown) -> u64 {
    let snmp = town.inside("h1", || std::fs::read_to_string("/proc/thread-self/net/snmp"));
    let snmp = snmp.unwrap();
    let mut rows = snmp.lines().filter(|line| line.starts_with("Tcp: "));
    let (names, values) = (rows.next().unwrap(), rows.next().unwrap());
    let at = names.split(' ').position(|name| name == "RetransSegs").unwrap();
    values.split(' ').nth(at).unwrap().parse().unwrap()
}

#[test]
fn a_connection_goes_on_through_every_step_of_a_rotation() {
    if !shoal_e2e::tun_possible() {
        return;
    }
    let conditions = Conditions { delay: Duration::from_millis(2), ..Conditions::default() };
    let topology = Topology::chain();
    let members = topology.clone();
    let town =
        LabTown::new((topology, NetworkKind::Namespaces, conditions), "[interface]\n", |folder| {
            found(folder, &members, "");
        });
    // The interfaces' addresses reach each other once the hosts have a session.
    let ping = |town: &LabTown| town.run("h1", &["ping", "h2", "-n", "1", "-W", "20"]).0;
    assert!(ping(&town));
    let (mut near, mut far) = town.connect("h1", "h2", 5_001);
    far.set_read_timeout(Some(PATIENCE)).unwrap();
    near.set_write_timeout(Some(PATIENCE)).unwrap();
    let before = sent_again(&town);
    let stop = std::sync::atomic::AtomicBool::new(false);
    let (stop, turn) = (&stop, &bytes(7, TURN));
    std::thread::scope(|scope| {
        let send = scope.spawn(move || {
            let mut turns = 0_u64;
            while !stop.load(std::sync::atomic::Ordering::Relaxed) {
                near.write_all(turn).expect("no reset");
                turns += 1;
                // About 6 Mbit/s, which leaves time for other work of the machine.
                std::thread::sleep(Duration::from_millis(80));
            }
            near.shutdown(std::net::Shutdown::Write).unwrap();
            turns
        });
        let receive = scope.spawn(move || {
            let (mut got, mut longest) = (vec![0; TURN], Duration::ZERO);
            let (mut turns, mut before) = (0_u64, Instant::now());
            while far.peek(&mut [0]).expect("no reset") > 0 {
                far.read_exact(&mut got).expect("no reset");
                assert!(got == *turn, "other bytes in turn {turns}");
                longest = longest.max(before.elapsed());
                (turns, before) = (turns + 1, Instant::now());
            }
            (turns, longest)
        });
        let folder = town.site.folder(town.find("r1"));
        let secret = folder.join("network.key");
        publish(&town, &["rotate", "announce", "--secret", secret.to_str().unwrap()]);
        let next = town.folder.path().join("authority/network.key.next");
        std::fs::copy(next, folder.join("network.key.next")).unwrap();
        all_are(&town, "announced");
        publish(&town, &["rotate", "switch"]);
        all_are(&town, "switched");
        publish(&town, &["rotate", "retire"]);
        all_are(&town, "settled");
        std::thread::sleep(Duration::from_secs(2));
        stop.store(true, std::sync::atomic::Ordering::Relaxed);
        let (sent, (arrived, longest)) = (send.join().unwrap(), receive.join().unwrap());
        let again = sent_again(&town) - before;
        eprintln!(
            "{arrived} of {sent} turns of {TURN} bytes, {again} segments sent again, the longest \
             gap {} ms",
            longest.as_millis()
        );
        assert!(arrived == sent && sent > 20, "{arrived} of {sent}");
        assert!(longest < STALL, "the stream stood still for {longest:?}");
        // Links lose nothing here, and no step of a rotation loses a packet.
        assert!(again <= 5, "{again} segments were lost");
    });
}
