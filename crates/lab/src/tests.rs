//! Tests of the rate, delay and loss of links, per packet. The tests with namespaces need root and
//! print a line when skipped; SHOAL_REQUIRE_NETNS=1 makes a skip a failure.

use std::net::{SocketAddr, UdpSocket};
use std::time::{Duration, Instant};

use nix::sys::socket::{setsockopt, sockopt};
use shoal_wire::SizeClass;

use crate::needs::{self, Requirement};
use crate::network::LinkMiddle;
use crate::shaping;
use crate::wiretap::Wiretap;
use crate::{Conditions, IpFamily, LinkLoss, Network, NetworkBasis, NetworkKind, Rate, Topology};

/// Every implementation of links that this machine supports.
fn grounds() -> Vec<NetworkBasis> {
    const REQUIRED: &str = "SHOAL_REQUIRE_NETNS";
    let mut kinds = vec![NetworkKind::Loopback];
    if needs::met(needs::LAB, REQUIRED) {
        kinds.push(NetworkKind::Namespaces);
    }
    let mut families = vec![IpFamily::Ipv4];
    if needs::met(&[Requirement::Ipv6], REQUIRED) {
        families.push(IpFamily::Ipv6);
    }
    let each = |kind: &NetworkKind| families.iter().map(|f| kind.over(*f)).collect::<Vec<_>>();
    kinds.iter().flat_map(each).collect()
}

fn namespaces() -> Vec<NetworkBasis> {
    grounds().into_iter().filter(|g| g.kind == NetworkKind::Namespaces).collect()
}

/// Payload of a packet with a full frame, as a share of its bytes on the wire.
fn payload_share(ground: NetworkBasis) -> f64 {
    1440.0 / ground.family.packet_bytes() as f64
}

/// A socket at the listen address of `node`.
fn socket(network: &Network, node: usize) -> UdpSocket {
    let open = || {
        let at = network.listen(node);
        // A child process that another test starts holds copies of closed sockets until its exec.
        let mut bound = UdpSocket::bind(at);
        for _ in 0..50 {
            if bound.is_err() {
                std::thread::sleep(Duration::from_millis(10));
                bound = UdpSocket::bind(at);
            }
        }
        let socket = bound?;
        socket.set_read_timeout(Some(Duration::from_millis(200)))?;
        Ok(socket)
    };
    match network.namespace(node) {
        Some(namespace) => namespace.enter(open).unwrap(),
        None => open().unwrap(),
    }
}

/// A network whose first link has carried a packet. A kernel under load sometimes leaves a
/// neighbour's first solicitation without an answer, and the neighbour repeats it after a second.
fn acquainted(topology: Topology, ground: NetworkBasis, conditions: Conditions) -> Network {
    let network = Network::build(topology, ground, conditions).unwrap();
    let (a, b) = (network.topology().links[0].a, network.topology().links[0].b);
    let (to, from, at) = (network.endpoint(0, a), socket(&network, a), socket(&network, b));
    let mut buffer = [0; 2048];
    let met = (0..25).any(|_| {
        // Lost datagrams are sent again.
        let _ = from.send_to(&[1; 100], to);
        at.recv(&mut buffer).is_ok()
    });
    assert!(met, "{ground:?}: nothing passes");
    at.set_read_timeout(Some(Duration::from_millis(50))).unwrap();
    while at.recv(&mut buffer).is_ok() {}
    network
}

/// Sends `frames` over the first link. Returns the number of received datagrams, and their rate in
/// bits per second of UDP payload.
fn push(network: &Network, frames: usize, pace: Duration) -> (usize, f64) {
    let (a, b) = (network.topology().links[0].a, network.topology().links[0].b);
    let to: SocketAddr = network.endpoint(0, a);
    let (from, at) = (socket(network, a), socket(network, b));
    std::thread::scope(|scope| {
        let sender = scope.spawn(move || {
            for _ in 0..frames {
                // A datagram that meets a full socket buffer is lost, as in the nodes.
                let _ = from.send_to(&[7; 1440], to);
                if !pace.is_zero() {
                    std::thread::sleep(pace);
                }
            }
        });
        let mut buffer = [0; 2048];
        let (mut count, mut first, mut last) = (0usize, None, Instant::now());
        // A stalled machine causes a silence of its own. A silence therefore counts only after
        // everything was sent, and two are required.
        let mut silences = 0;
        while silences < 2 {
            let sent = sender.is_finished();
            let Ok(len) = at.recv(&mut buffer) else {
                silences += usize::from(sent);
                continue;
            };
            assert_eq!(len, 1440);
            last = Instant::now();
            first.get_or_insert(last);
            count += 1;
            silences = 0;
        }
        let seconds = first.map_or(1.0, |f| last.duration_since(f).as_secs_f64());
        (count, count as f64 * 1440.0 * 8.0 / seconds)
    })
}

#[test]
fn a_link_without_conditions_carries_everything() {
    for ground in grounds() {
        let network = acquainted(Topology::chain(), ground, Conditions::default());
        let (count, _) = push(&network, 200, Duration::from_micros(200));
        assert_eq!(count, 200, "{ground:?}");
        let arrived = network.arrived(0, network.topology().links[0].b).unwrap();
        assert!(arrived.packets >= 200 && arrived.bytes >= 200 * 1440, "{arrived:?}");
        assert_eq!(arrived.lost, 0);
    }
}

#[test]
fn a_shaped_link_holds_its_rate() {
    let rate = Rate(50_000_000);
    for ground in grounds() {
        calibrate(|| {
            let conditions = Conditions { rate: Some(rate), ..Conditions::default() };
            let network = acquainted(Topology::chain(), ground, conditions);
            // More than the link carries, for half a second and longer.
            let (count, seen) = push(&network, 5_000, Duration::from_micros(50));
            // The bucket's first bytes arrive at once.
            let bits = count as f64 * 1440.0 * 8.0;
            let line = bits / payload_share(ground);
            let shaped = (line - f64::from(shaping::BURST_BYTES) * 8.0) * seen / bits;
            let share = shaped / rate.0 as f64;
            let holds = (0.9..=1.05).contains(&share);
            holds.then_some(()).ok_or(format!("{ground:?}: {count} at {share:.3} of the rate"))
        });
    }
}

#[test]
fn a_lossy_link_loses_single_packets() {
    for ground in grounds() {
        calibrate(|| {
            let conditions = Conditions { loss: LinkLoss::each(0.2), ..Conditions::default() };
            let network = acquainted(Topology::chain(), ground, conditions);
            let (count, _) = push(&network, 5_000, Duration::from_micros(20));
            let lost = network.arrived(0, network.topology().links[0].b).unwrap().lost;
            let missing = 5_000 - count as u64;
            // Six standard deviations of a binomial distribution with 5,000 trials.
            let holds = (830..=1_170).contains(&missing) && lost.abs_diff(missing) <= 20;
            holds.then_some(()).ok_or(format!("{ground:?}: {lost} counted, {missing} missing"))
        });
    }
}

#[test]
fn aggregates_are_shaped_as_the_packets_they_carry() {
    const RUN: usize = 40;
    for ground in grounds() {
        let rate = Some(Rate(1_000_000_000));
        let conditions = Conditions { rate, loss: LinkLoss::each(0.1), ..Conditions::default() };
        let network = acquainted(Topology::chain(), ground, conditions);
        let (a, b) = (network.topology().links[0].a, network.topology().links[0].b);
        let (to, from, at) = (network.endpoint(0, a), socket(&network, a), socket(&network, b));
        setsockopt(&from, sockopt::UdpGsoSegment, &1440).unwrap();
        let mut received = 0u64;
        let mut buffer = [0; 2048];
        for _ in 0..100 {
            from.send_to(&[7; 1440 * RUN], to).unwrap();
            // Long enough for a busy machine: a full socket would lose datagrams, too.
            at.set_read_timeout(Some(Duration::from_millis(15))).unwrap();
            while let Ok(len) = at.recv(&mut buffer) {
                assert_eq!(len, 1440);
                received += 1;
            }
        }
        let arrived = network.arrived(0, b).unwrap();
        // In namespaces a few packets of neighbour discovery count too.
        assert!(arrived.packets.abs_diff(100 * RUN as u64) < 20, "{ground:?}: {arrived:?}");
        // Six standard deviations for single packets; whole aggregates would scatter six times
        // wider.
        assert!((286..=514).contains(&arrived.lost), "{ground:?}: {arrived:?}");
        assert!(received.abs_diff(100 * RUN as u64 - arrived.lost) < 20, "{ground:?}: {received}");
    }
}

#[test]
fn a_wiretap_sees_what_passes() {
    for ground in namespaces() {
        let network = acquainted(Topology::chain(), ground, Conditions::default());
        let observed = network.namespace(network.topology().links[0].b).unwrap();
        let tap = Wiretap::start(observed, None).unwrap();
        assert_eq!(push(&network, 50, Duration::from_millis(1)).0, 50);
        let seen = tap.finish().unwrap();
        assert_eq!(seen.count(SizeClass::Full), 50);
        assert!(!seen.anomalies().is_empty(), "fifty times the same bytes look random");
    }
}

#[test]
fn a_cut_link_is_silent_and_nobody_is_told() {
    for ground in grounds() {
        let network = acquainted(Topology::chain(), ground, Conditions::default());
        assert_eq!(push(&network, 10, Duration::from_millis(1)).0, 10, "{ground:?}");
        network.cut(0).unwrap();
        assert_eq!(push(&network, 10, Duration::from_millis(1)).0, 0, "{ground:?}");
    }
}

#[test]
fn two_networks_stand_side_by_side() {
    for ground in grounds() {
        let build = || acquainted(Topology::paper(), ground, Conditions::default());
        let (one, two) = (build(), build());
        assert_eq!(push(&one, 10, Duration::from_millis(1)).0, 10, "{ground:?}");
        assert_eq!(push(&two, 10, Duration::from_millis(1)).0, 10, "{ground:?}");
    }
}

/// A chain of emulated links.
fn emulated(ground: NetworkBasis, rate: u64, delay_ms: u64, loss: LinkLoss) -> Network {
    let rate = (rate > 0).then_some(Rate(rate));
    let delay = Duration::from_millis(delay_ms);
    let queue = Some(Duration::from_millis(500));
    let conditions =
        Conditions { rate, delay, loss, queue, emulate: true, ..Conditions::default() };
    acquainted(Topology::chain(), ground, conditions)
}

/// Every value of `what` on every ground with an emulator; prints a line when skipped.
fn each<T: Copy, const N: usize>(what: [T; N]) -> Vec<(T, NetworkBasis)> {
    let with = |ground: NetworkBasis| what.map(|one| (one, ground));
    namespaces().into_iter().flat_map(with).collect()
}

/// Repeats a measurement until it succeeds, at most five times, with longer and longer pauses. A
/// busy machine sometimes makes a correct emulator late, but a wrong emulator never passes. One
/// measurement runs at a time, since each is a load for all others.
fn calibrate(measure: impl Fn() -> Result<(), String>) {
    static TURN: std::sync::Mutex<()> = std::sync::Mutex::new(());
    let _turn = TURN.lock().unwrap_or_else(std::sync::PoisonError::into_inner);
    let mut seen = Vec::new();
    while let Err(text) = measure() {
        seen.push(text);
        assert!(seen.len() < 5, "{seen:?}");
        std::thread::sleep(Duration::from_secs(1 << seen.len()));
    }
}

#[test]
fn the_emulator_holds_its_rate() {
    for (rate, ground) in each([20_000_000, 200_000_000]) {
        calibrate(|| {
            let network = emulated(ground, rate, 0, LinkLoss::default());
            // More than the line carries: datagrams arrive at the line's rate, without a burst.
            let (count, seen) = push(&network, rate as usize / 12_000, Duration::ZERO);
            let share = seen / (rate as f64 * payload_share(ground));
            let holds = count > 300 && (0.98..=1.02).contains(&share);
            let found = format!("{ground:?} {rate}: {count} at {share:.3} of the rate");
            holds.then_some(()).ok_or(found)
        });
    }
}

#[test]
fn the_emulator_delays_by_what_it_was_asked_for() {
    for (delay_ms, ground) in each([2, 10, 50]) {
        calibrate(|| the_emulator_delays_by(delay_ms, ground));
    }
}

fn the_emulator_delays_by(delay_ms: u64, ground: NetworkBasis) -> Result<(), String> {
    let network = emulated(ground, 0, delay_ms, LinkLoss::default());
    let l = network.topology().links[0];
    let (there, back) = (network.endpoint(0, l.a), network.endpoint(0, l.b));
    let (near, far) = (socket(&network, l.a), socket(&network, l.b));
    let trip = |_| {
        let start = Instant::now();
        let mut buffer = [0; 100];
        near.send_to(&[1; 100], there)?;
        far.recv(&mut buffer)?;
        far.send_to(&[2; 100], back)?;
        near.recv(&mut buffer)?;
        Ok(start.elapsed().as_secs_f64() * 1e3)
    };
    let trips: std::io::Result<Vec<f64>> = (0..30).map(trip).skip(1).collect();
    let mut trips = trips.map_err(|e| format!("{ground:?}: {e}"))?;
    trips.sort_by(f64::total_cmp);
    // Turns of the emulator and other load only make trips longer, so the fastest quarter shows the
    // emulator's delay.
    let (asked, seen) = (delay_ms as f64 * 2.0, trips[trips.len() / 4]);
    let holds = (asked..asked + 1.0).contains(&seen);
    holds.then_some(()).ok_or(format!("{ground:?}: {asked} ms asked for, {seen:.3} ms seen"))
}

#[test]
fn the_emulator_loses_what_it_was_asked_for() {
    for (loss, ground) in each([LinkLoss::each(0.05), LinkLoss { share: 0.05, burst: 5.0 }]) {
        calibrate(|| {
            let network = emulated(ground, 0, 0, loss);
            let (count, _) = push(&network, 20_000, Duration::from_micros(20));
            let lost = network.arrived(0, network.topology().links[0].b).unwrap().lost;
            let missing = 20_000 - count as u64;
            // Six standard deviations; for bursts, wider by the root of twice the burst length.
            let wide = if loss.burst > 1.0 { 600 } else { 190 };
            let holds = missing.abs_diff(1_000) < wide && lost.abs_diff(missing) <= 20;
            holds
                .then_some(())
                .ok_or(format!("{ground:?} {loss:?}: {lost} counted, {missing} missing"))
        });
    }
}

#[test]
fn a_link_is_cut_restored_and_made_worse_while_it_runs() {
    for emulate in [false, true] {
        for ground in if emulate { namespaces() } else { grounds() } {
            let conditions = Conditions { emulate, ..Conditions::default() };
            let network = acquainted(Topology::chain(), ground, conditions);
            let passed = |n| push(&network, n, Duration::from_micros(200)).0;
            assert_eq!(passed(20), 20);
            network.cut(0).unwrap();
            assert_eq!(passed(20), 0, "{ground:?} {emulate}");
            network.restore(0).unwrap();
            assert_eq!(passed(20), 20, "{ground:?} {emulate}");
            network.set_loss(0, LinkLoss::each(0.5)).unwrap();
            let half = passed(400);
            assert!((140..=260).contains(&half), "{ground:?} {emulate}: {half}");
            let lost = network.arrived(0, network.topology().links[0].b).unwrap().lost;
            assert!(lost.abs_diff(400 - half as u64) < 20, "{ground:?} {emulate}: {lost}");
        }
    }
}

#[test]
fn neighbours_are_found_whatever_a_link_loses() {
    for (emulate, ground) in each([false, true]) {
        let conditions = Conditions { loss: LinkLoss::each(0.9), emulate, ..Conditions::default() };
        let network = Network::build(Topology::chain(), ground, conditions).unwrap();
        // The first datagram waits for neighbour discovery. If discovery messages could be lost,
        // each try would take a second. After the third try all waiting packets would be dropped. A
        // first try may fail under load (see `acquainted`): the time is enough for two.
        let (count, _) = push(&network, 2_000, Duration::from_millis(1));
        assert!(count > 40, "{ground:?} {emulate}: {count} of 2000");
    }
}

#[test]
fn kernels_route_between_links_and_by_default() {
    for ground in namespaces() {
        let network = Network::build(Topology::chain(), ground, Conditions::default()).unwrap();
        let find = |name| network.topology().find(name).unwrap();
        let [h1, r1, h2] = ["h1", "r1", "h2"].map(find);
        network.route_ip().unwrap();
        network.default_route(h1, r1).unwrap();
        let at = socket(&network, h2);
        let to = SocketAddr::from((network.ip_of(h1, h2).unwrap(), network.listen(h2).port()));
        let mut buffer = [0; 100];
        let near = socket(&network, h1);
        // A new interface may lose the first packet.
        let found = (0..20).find_map(|_| {
            near.send_to(b"over two routers", to).unwrap();
            at.recv_from(&mut buffer).ok()
        });
        drop(near);
        let (len, from) = found.unwrap_or_else(|| panic!("{ground:?}: nothing came"));
        assert_eq!(&buffer[..len], b"over two routers", "{ground:?}");
        assert_eq!(from.is_ipv6(), ground.family == IpFamily::Ipv6);
        assert!(network.manner().starts_with(&ground.family.to_string()), "{}", network.manner());
        // Fails without a default route.
        let nowhere: SocketAddr = match ground.family {
            IpFamily::Ipv4 => "198.51.100.1:9".parse().unwrap(),
            IpFamily::Ipv6 => "[2001:db8::1]:9".parse().unwrap(),
        };
        socket(&network, h1).send_to(b"by the default route", nowhere).unwrap();
    }
}

#[test]
fn prefixes_are_reached_through_all_kinds_of_machines_between_ends() {
    if !namespaces().iter().any(|ground| ground.family == IpFamily::Ipv6) {
        return;
    }
    use LinkMiddle::{Nothing, Router, Segments, Switch, Tunnel};
    for through in [Nothing, Switch, Router, Segments, Tunnel] {
        if through == LinkMiddle::Tunnel && !needs::met(&[Requirement::Tun], "SHOAL_REQUIRE_NETNS")
        {
            continue;
        }
        let conditions = Conditions { through, ..Conditions::default() };
        let ground = NetworkKind::Namespaces.over(IpFamily::Ipv6);
        let network = Network::build(Topology::pairs(1), ground, conditions).unwrap();
        let [near, far] = ["r1", "r2"].map(|name| network.topology().find(name).unwrap());
        let link = network.topology().link_between(near, far).unwrap();
        let prefix: std::net::IpAddr = "fd78:0:0:9::".parse().unwrap();
        network.route_to(link, far, (prefix, 64)).unwrap();
        let shift: std::net::IpAddr = "fd78:0:0:9:1:2:3:4".parse().unwrap();
        if through == LinkMiddle::Segments {
            network.join_segment(link, far, shift, 64).unwrap();
        } else {
            let mut own = std::process::Command::new("ip");
            own.args(["-6", "route", "add", "local", "fd78:0:0:9::/64", "dev", "lo"]);
            let routed = network.namespace(far).unwrap().enter(|| Ok(own.status()?)).unwrap();
            assert!(routed.success());
        }
        let (from, at) = (socket(&network, near), socket(&network, far));
        let fixed = network.ip_of(near, far).unwrap();
        let mut buffer = [0; 2_000];
        for to in [fixed, shift] {
            let to = SocketAddr::from((to, network.listen(far).port()));
            // A new interface may lose the first packet, in each direction.
            let found = (0..25).find_map(|_| {
                from.send_to(&[7; 1_400], to).unwrap();
                let (len, back) = at.recv_from(&mut buffer).ok()?;
                assert_eq!(len, 1_400, "{through:?}");
                at.send_to(b"back", back).unwrap();
                from.recv_from(&mut buffer).ok()
            });
            let (len, _) = found.unwrap_or_else(|| panic!("{through:?}: no answer from {to}"));
            assert_eq!(len, 4, "{through:?}");
        }
        assert_eq!(network.beside(link, near).is_some(), through != LinkMiddle::Nothing);
    }
}
