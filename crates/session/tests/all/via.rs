//! Sessions over circuits and in the clear, of one machine: neither serves for the other.

use shoal_crypto::{Identity, NetworkSecret};
use shoal_session::{Config, Event, Opening, PeerId, Role, Sessions, Via};
use shoal_wire::{Address, CircuitId, DropReason, SessionHeader, TAG_LEN, Time};

const NOW: Time = Time::from_millis(5_000);
const LEN: usize = 200;
/// Room for the routed header before a cell.
const BEFORE: usize = 15;

fn routed(n: u8) -> Via {
    Via::Routed(Address::new(n.into(), 1))
}

fn circuit(n: u32) -> Via {
    Via::Circuit(CircuitId::from_bits(n))
}

fn identity(n: u8) -> Identity {
    Identity::from_seed([n; 32])
}

struct Party {
    sessions: Sessions<Via>,
    peer: PeerId,
}

impl Party {
    fn new(n: u8) -> Party {
        let config = Config { lanes: 4, ..Config::new(Role::Edge) };
        let secret = NetworkSecret([3; 32]);
        let mut sessions =
            Sessions::new(config, identity(n), secret, [n + 7; 32], NOW, 1_800_000_000_000);
        let peer = sessions.add_peer(identity(3 - n).public()).expect("room for one");
        Party { sessions, peer }
    }

    fn jobs(&mut self, now: Time) {
        while let Some(job) = self.sessions.poll_job() {
            self.sessions.handle_done(now, job.run());
        }
    }

    /// What it sends, and where.
    fn sent(&mut self, now: Time) -> Vec<(Via, Vec<u8>)> {
        self.jobs(now);
        let mut buf = [0; 1_440];
        let mut sent = Vec::new();
        while let Some((_, to, len)) = self.sessions.poll_transmit(now, &mut buf) {
            sent.push((to, buf[..len].to_vec()));
        }
        sent
    }

    fn begin(&mut self, to: Via) -> Vec<u8> {
        self.sessions.set_endpoint(self.peer, Some(to));
        self.sessions.reconnect(NOW, self.peer);
        let [(at, frame)] = self.sent(NOW).try_into().expect("one request");
        assert_eq!(at, to);
        frame
    }

    fn seal(&mut self, unit: bool) -> Result<Vec<u8>, DropReason> {
        let mut buf = vec![7; BEFORE + LEN];
        let (peer, at) = (self.peer, &[BEFORE as u32]);
        match unit {
            true => self.sessions.shard().seal_units(NOW, peer, &mut buf, at, LEN)?,
            false => self.sessions.shard().seal_batch(NOW, peer, 0, &mut buf, at, LEN)?,
        }
        Ok(buf)
    }

    fn open(&mut self, unit: bool, mut buf: Vec<u8>) -> Opening {
        let (mut out, at) = (Vec::new(), &[BEFORE as u32]);
        match unit {
            true => self.sessions.shard().open_units(NOW, &mut buf, at, LEN, &mut out),
            false => self.sessions.shard().open_batch(NOW, &mut buf, at, LEN, &mut out),
        }
        self.sessions.take_notes(NOW);
        if matches!(out[0], Opening::Data(_)) {
            let plain = &buf[BEFORE + SessionHeader::LEN..BEFORE + LEN - TAG_LEN];
            assert!(plain.iter().all(|b| *b == 7));
        }
        out[0]
    }
}

/// Has A begin over `there`, which B sees as `back`, until both can seal.
fn meet(a: &mut Party, b: &mut Party, there: Via, back: Via) {
    let mut request = a.begin(there);
    b.sessions.handle_handshake(NOW, back, &mut request).expect("a request");
    let [(to, mut response)] = b.sent(NOW).try_into().expect("one response");
    assert_eq!(to, back, "it goes back the way that the request came");
    a.sessions.handle_handshake(NOW, there, &mut response).expect("a response");
    a.jobs(NOW);
    let unit = a.sessions.is_hidden(a.peer);
    let frame = a.seal(unit).expect("a session");
    assert!(matches!(b.open(unit, frame), Opening::Data(_)));
}

fn pair() -> [Party; 2] {
    [Party::new(1), Party::new(2)]
}

#[test]
fn keys_of_a_circuit_seal_and_open_units_alone() {
    let [mut a, mut b] = pair();
    a.sessions.set_hidden(a.peer, true);
    meet(&mut a, &mut b, circuit(5), circuit(6));
    assert!(b.sessions.is_hidden(b.peer), "learnt");
    assert_eq!(a.sessions.lanes(NOW, a.peer), 1, "the first worker's");
    for (party, other) in [(&mut a, 1), (&mut b, 0)] {
        assert_eq!(party.seal(false), Err(DropReason::CircuitRequired), "{other}");
    }
    let unit = a.seal(true).expect("a session");
    assert_eq!(b.open(false, unit.clone()), Opening::Drop(DropReason::CircuitRequired));
    // The headers before a unit are written anew on every leg.
    let mut moved = unit;
    moved[..BEFORE].fill(9);
    assert!(matches!(b.open(true, moved), Opening::Data(_)));
}

#[test]
fn keys_made_in_the_clear_seal_and_open_no_unit() {
    let [mut a, mut b] = pair();
    meet(&mut a, &mut b, routed(2), routed(1));
    assert!(!b.sessions.is_hidden(b.peer));
    assert_eq!(a.seal(true), Err(DropReason::CircuitRequired));
    let cell = a.seal(false).expect("a session");
    assert_eq!(b.open(true, cell.clone()), Opening::Drop(DropReason::CircuitRequired));
    assert!(matches!(b.open(false, cell), Opening::Data(_)));
}

#[test]
fn handshakes_do_not_go_from_one_way_to_the_other() {
    // A request of a circuit, shown in the clear, and the other way round.
    for (there, seen) in [(circuit(5), routed(1)), (routed(2), circuit(6))] {
        let [mut a, mut b] = pair();
        a.sessions.set_hidden(a.peer, matches!(there, Via::Circuit(_)));
        let mut request = a.begin(there);
        let taken = b.sessions.handle_handshake(NOW, seen, &mut request);
        assert_eq!(taken, Err(DropReason::BadHandshake));
        assert!(b.sent(NOW).is_empty());
    }
    // An answer.
    let [mut a, mut b] = pair();
    a.sessions.set_hidden(a.peer, true);
    let mut request = a.begin(circuit(5));
    b.sessions.handle_handshake(NOW, circuit(6), &mut request).expect("a request");
    let [(_, mut response)] = b.sent(NOW).try_into().expect("one response");
    let taken = a.sessions.handle_handshake(NOW, routed(2), &mut response.clone());
    assert_eq!(taken, Err(DropReason::CircuitRequired));
    let taken = a.sessions.handle_handshake(NOW, circuit(8), &mut response);
    assert_eq!(taken, Ok(()), "another circuit is none the worse");
}

#[test]
fn what_was_made_in_the_clear_ends_with_the_first_session_over_a_circuit() {
    let [mut a, mut b] = pair();
    meet(&mut a, &mut b, routed(2), routed(1));
    let old = [a.seal(false).expect("a session"), b.seal(false).expect("a session")];
    // B has begun a handshake of its own, too, which is not sent yet.
    b.sessions.set_endpoint(b.peer, Some(routed(1)));
    b.sessions.reconnect(NOW, b.peer);
    b.jobs(NOW);
    a.sessions.set_hidden(a.peer, true);
    assert_eq!(a.sessions.session_count(), 0);
    let mut request = a.begin(circuit(5));
    b.sessions.handle_handshake(NOW, circuit(6), &mut request).expect("a request");
    b.jobs(NOW);
    let mut sent = b.sent(NOW);
    sent.retain(|(to, _)| *to == circuit(6));
    let [(_, mut response)] = sent.try_into().expect("one response");
    b.sessions.set_endpoint(b.peer, Some(routed(1)));
    b.sessions.reconnect(NOW, b.peer);
    b.jobs(NOW);
    a.sessions.handle_handshake(NOW, circuit(5), &mut response).expect("a response");
    a.jobs(NOW);
    let unit = a.seal(true).expect("a session");
    assert!(matches!(b.open(true, unit), Opening::Data(_)));
    assert!(b.sent(NOW).is_empty(), "a request in the clear");
    let [of_a, of_b] = old;
    assert_eq!(b.open(false, of_a), Opening::Handshake, "those keys are gone");
    assert_eq!(a.open(false, of_b), Opening::Handshake);
    assert_eq!((a.sessions.session_count(), b.sessions.session_count()), (1, 1));
}

#[test]
fn without_a_circuit_no_handshake_begins_and_the_owner_is_told() {
    let [mut a, mut b] = pair();
    a.sessions.set_endpoint(a.peer, Some(routed(2)));
    a.sessions.connect(NOW, a.peer);
    a.jobs(NOW);
    // A request waits to leave in the clear.
    a.sessions.set_hidden(a.peer, true);
    assert!(a.sent(NOW).is_empty(), "it stays");
    a.sessions.set_endpoint(a.peer, None);
    a.sessions.connect(NOW, a.peer);
    assert!(a.sent(NOW).is_empty());
    assert_eq!(a.sessions.poll_event(), Some(Event::NeedCircuit { peer: a.peer }));
    // One that was under way ends with its circuit.
    a.begin(circuit(5));
    a.sessions.set_endpoint(a.peer, None);
    assert_eq!(a.sessions.poll_event(), Some(Event::NeedCircuit { peer: a.peer }));
    let later = NOW + core::time::Duration::from_secs(60);
    a.sessions.handle_timeout(later);
    assert!(a.sent(later).is_empty() && a.sessions.poll_event().is_none());
    meet(&mut a, &mut b, circuit(9), circuit(10));
}
