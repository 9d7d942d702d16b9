//! Local addresses: a receive reports the called address, and a send leaves from the address that
//! it names.

use std::io::ErrorKind;
use std::net::{SocketAddr, UdpSocket};
use std::time::{Duration, Instant};

use shoal_daemon::net::ports::{NodeSockets, sum_sent};
use shoal_daemon::net::receive::DatagramReceiver;
use shoal_daemon::net::send::SendCounters;
use shoal_daemon::net::socket::SocketConfig;
use shoal_relay::{FrameSink, ReceivedRun, SendPath};
use shoal_session::Endpoints;
use shoal_wire::{LinkId, SizeClass, Time};

const FULL: usize = SizeClass::Full.frame_len();
const RUN: usize = 44;
const NOW: Time = Time::from_millis(1_000);

/// A node's sockets, and a caller.
struct SourceRig {
    ports: NodeSockets,
    receivers: Vec<DatagramReceiver>,
    caller: UdpSocket,
}

impl SourceRig {
    /// The caller has the address `caller`. The node listens on all of `listen`, and chooses
    /// sources.
    fn new(caller: &str, listen: &[&str]) -> SourceRig {
        SourceRig::with(SocketConfig::default(), caller, listen)
    }

    fn with(config: SocketConfig, caller: &str, listen: &[&str]) -> SourceRig {
        let listen = listen.iter().map(|at| at.parse().unwrap()).collect::<Vec<_>>();
        let (ports, receivers) = NodeSockets::open(&listen, &config, true).unwrap();
        let caller = UdpSocket::bind((caller, 0)).unwrap();
        caller.set_read_timeout(Some(Duration::from_millis(200))).unwrap();
        SourceRig { ports, receivers, caller }
    }

    fn port(&self, index: usize) -> u16 {
        self.ports.views().nth(index).unwrap().local.port()
    }

    /// Sends frames to `to`. The caller then receives only from there.
    fn call(&self, to: SocketAddr, frames: usize) {
        self.caller.connect(to).unwrap();
        (0..frames).for_each(|_| assert_eq!(self.caller.send(&[1; FULL]).unwrap(), FULL));
    }

    /// Receives at a socket of the node, until `frames` frames are there.
    fn receive(&mut self, index: usize, frames: usize) -> Vec<ReceivedRun> {
        let (mut runs, mut got) = (Vec::new(), 0);
        let end = Instant::now() + Duration::from_secs(5);
        while got < frames && Instant::now() < end {
            if self.ports.receive(index, &mut self.receivers[index]).is_err() {
                std::thread::sleep(Duration::from_millis(1));
                continue;
            }
            let (_, incoming) = self.receivers[index].batch();
            got += incoming.iter().map(|run| run.len as usize / FULL).sum::<usize>();
            runs.extend_from_slice(incoming);
        }
        assert_eq!(got, frames);
        runs
    }

    /// Sends one run. Returns the number of frames that the caller received.
    fn answer(&mut self, now: Time, ends: Endpoints) -> usize {
        let buffer = vec![2; RUN * FULL];
        let offsets = (0..RUN).map(|i| (i * FULL) as u32).collect::<Vec<_>>();
        let path = SendPath { link: Some(LinkId::from_bits(7)), ends };
        let outcome = self.ports.at(now).send(path, &buffer, &offsets, FULL);
        assert_eq!((outcome.sent, outcome.stop), (RUN, None));
        let mut frame = [0; FULL + 1];
        for taken in 0..RUN {
            match self.caller.recv(&mut frame) {
                Ok(len) => assert_eq!(len, FULL),
                Err(error) if error.kind() == ErrorKind::WouldBlock => return taken,
                Err(error) => panic!("{error}"),
            }
        }
        RUN
    }

    fn sent(&self) -> SendCounters {
        sum_sent(&self.ports)
    }
}

fn at(ip: &str, port: u16) -> SocketAddr {
    SocketAddr::new(ip.parse().unwrap(), port)
}

#[test]
fn an_answer_leaves_from_the_address_that_was_called() {
    for (caller, listen, called) in
        [("127.0.0.1", "0.0.0.0:0", "127.0.0.2"), ("::1", "[::]:0", "::1")]
    {
        let mut stage = SourceRig::new(caller, &[listen]);
        let called = at(called, stage.port(0));
        stage.call(called, 3);
        let from = stage.receive(0, 3)[0].from;
        let remote = stage.caller.local_addr().unwrap();
        assert_eq!(from, Endpoints { local: Some(called), remote });
        assert_eq!(stage.answer(NOW, from), RUN);
        let sent = stage.sent();
        assert_eq!((sent.calls, sent.bad_source, sent.refused_gso), (1, 0, 0), "one call");
        // If the kernel chooses, IPv4 answers leave from another address.
        let taken = stage.answer(NOW, remote.into());
        assert_eq!(taken, if called.is_ipv4() { 0 } else { RUN });
    }
}

#[test]
fn a_node_that_is_to_choose_no_source_leaves_it_to_the_kernel() {
    let config = SocketConfig { own_source: false, ..SocketConfig::default() };
    let mut stage = SourceRig::with(config, "127.0.0.1", &["0.0.0.0:0"]);
    let called = at("127.0.0.2", stage.port(0));
    stage.call(called, 1);
    let from = stage.receive(0, 1)[0].from;
    assert_eq!(from.local, None);
    assert_eq!(stage.answer(NOW, Endpoints { local: Some(called), ..from }), 0);
}

#[test]
fn frames_to_different_addresses_are_different_runs() {
    let mut stage = SourceRig::new("127.0.0.1", &["0.0.0.0:0"]);
    let called = ["127.0.0.2", "127.0.0.3"].map(|ip| at(ip, stage.port(0)));
    for frames in [1, 3, 2] {
        // The first call expects aggregates and takes few messages at once.
        called.iter().for_each(|&to| stage.call(to, frames));
        let runs = stage.receive(0, 2 * frames);
        for to in called {
            let of = runs.iter().filter(|run| run.from.local == Some(to));
            assert_eq!(of.map(|run| run.len as usize / FULL).sum::<usize>(), frames);
        }
    }
}

#[test]
fn a_batch_arrives_as_one_run_and_says_where() {
    let mut from = SourceRig::new("127.0.0.1", &["0.0.0.0:0"]);
    let mut to = SourceRig::new("127.0.0.1", &["0.0.0.0:0"]);
    let called = at("127.0.0.2", to.port(0));
    let source = at("127.0.0.9", from.port(0));
    from.answer(NOW, Endpoints { local: Some(source), remote: called });
    let runs = to.receive(0, RUN);
    assert_eq!((runs.len(), runs[0].len as usize), (1, RUN * FULL));
    assert_eq!(runs[0].from, Endpoints { local: Some(called), remote: source });
}

#[test]
fn a_source_that_is_gone_is_counted_and_costs_no_segmentation() {
    for (caller, listen, gone) in
        [("127.0.0.1", "0.0.0.0:0", "192.0.2.9"), ("::1", "[::]:0", "2001:db8::9")]
    {
        let mut stage = SourceRig::new(caller, &[listen]);
        let called = at(caller, stage.port(0));
        stage.call(called, 1);
        let remote = stage.caller.local_addr().unwrap();
        let ends = Endpoints { local: Some(at(gone, stage.port(0))), remote };
        let after = |ms: u64| NOW + Duration::from_millis(ms);
        for (now, bad) in [(NOW, 1), (after(1), 1), (after(9_999), 1), (after(10_001), 2)] {
            let calls = stage.sent().calls;
            assert_eq!(stage.answer(now, ends), RUN, "the kernel has another");
            let sent = stage.sent();
            assert_eq!((sent.bad_source, sent.refused_gso, sent.failed), (bad, 0, 0), "{gone}");
            assert!(sent.calls - calls <= 3, "{} calls for one run", sent.calls - calls);
        }
        assert!(stage.ports.views().all(|view| view.refusing == 0));
        // The refusal of one source leaves others in use.
        stage.answer(after(10_002), Endpoints { local: Some(called), remote });
        assert_eq!(stage.sent().bad_source, 2);
    }
}

#[test]
fn of_several_sockets_the_one_that_was_called_answers() {
    let listen = ["127.0.0.2:0", "127.0.0.3:0", "0.0.0.0:0"];
    let mut stage = SourceRig::new("127.0.0.1", &listen);
    for (index, ip) in ["127.0.0.2", "127.0.0.3", "127.0.0.4"].into_iter().enumerate() {
        let called = at(ip, stage.port(index));
        stage.call(called, 1);
        let from = stage.receive(index, 1)[0].from;
        assert_eq!(from.local, Some(called));
        assert_eq!(stage.answer(NOW, from), RUN, "{ip}");
    }
}

#[test]
fn nobody_answers_from_the_address_of_a_group() {
    let mut stage = SourceRig::new("127.0.0.1", &["0.0.0.0:0"]);
    stage.caller.set_broadcast(true).unwrap();
    stage.caller.send_to(&[1; FULL], at("127.255.255.255", stage.port(0))).unwrap();
    let from = stage.receive(0, 1)[0].from;
    assert_eq!(from.local, Some(at("127.0.0.1", stage.port(0))));
}
