//! Sessions of one machine over circuits and in the clear: neither is used for the other.

use shoal_crypto::{Identity, NetworkSecret};
use shoal_session::{
    HostPath, OpenResult, PeerId, SessionConfig, SessionEvent, SessionRole, Sessions,
};
use shoal_wire::{Address, CircuitId, DropReason, SessionHeader, TAG_LEN, Time};

const NOW: Time = Time::from_millis(5_000);
const LEN: usize = 200;
/// Room for the routed header before a cell.
const BEFORE: usize = 15;

fn routed(n: u8) -> HostPath {
    HostPath::Routed(Address::new(n.into(), 1))
}

fn circuit(n: u32) -> HostPath {
    HostPath::Circuit(CircuitId::from_bits(n))
}

fn identity(n: u8) -> Identity {
    Identity::from_seed([n; 32])
}

struct Party {
    sessions: Sessions<HostPath>,
    peer: PeerId,
}

impl Party {
    fn new(n: u8) -> Party {
        let config = SessionConfig { lanes: 4, ..SessionConfig::new(SessionRole::Edge) };
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

    /// Handshake frames that it sends, and their targets.
    fn sent(&mut self, now: Time) -> Vec<(HostPath, Vec<u8>)> {
        self.jobs(now);
        let mut buf = [0; 1_440];
        let mut sent = Vec::new();
        while let Some((_, to, len)) = self.sessions.poll_transmit(now, &mut buf) {
            sent.push((to, buf[..len].to_vec()));
        }
        sent
    }

    fn begin(&mut self, to: HostPath) -> Vec<u8> {
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

    fn open(&mut self, unit: bool, mut buf: Vec<u8>) -> OpenResult {
        let (mut out, at) = (Vec::new(), &[BEFORE as u32]);
        match unit {
            true => self.sessions.shard().open_units(NOW, &mut buf, at, LEN, &mut out),
            false => self.sessions.shard().open_batch(NOW, &mut buf, at, LEN, &mut out),
        }
        self.sessions.take_notes(NOW);
        if matches!(out[0], OpenResult::Data(_)) {
            let plain = &buf[BEFORE + SessionHeader::LEN..BEFORE + LEN - TAG_LEN];
            assert!(plain.iter().all(|b| *b == 7));
        }
        out[0]
    }
}

/// Makes A begin over `there`, which B sees as `back`, until both can seal.
fn meet(a: &mut Party, b: &mut Party, there: HostPath, back: HostPath) {
    let mut request = a.begin(there);
    b.sessions.handle_handshake(NOW, back, &mut request).expect("a request");
    let [(to, mut response)] = b.sent(NOW).try_into().expect("one response");
    assert_eq!(to, back, "the response takes the request's path back");
    a.sessions.handle_handshake(NOW, there, &mut response).expect("a response");
    a.jobs(NOW);
    let unit = a.sessions.is_hidden(a.peer);
    let frame = a.seal(unit).expect("a session");
    assert!(matches!(b.open(unit, frame), OpenResult::Data(_)));
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
    assert_eq!(b.open(false, unit.clone()), OpenResult::Drop(DropReason::CircuitRequired));
    // The headers before a unit are rewritten on every leg.
    let mut moved = unit;
    moved[..BEFORE].fill(9);
    assert!(matches!(b.open(true, moved), OpenResult::Data(_)));
}

#[test]
fn keys_made_in_the_clear_seal_and_open_no_unit() {
    let [mut a, mut b] = pair();
    meet(&mut a, &mut b, routed(2), routed(1));
    assert!(!b.sessions.is_hidden(b.peer));
    assert_eq!(a.seal(true), Err(DropReason::CircuitRequired));
    let cell = a.seal(false).expect("a session");
    assert_eq!(b.open(true, cell.clone()), OpenResult::Drop(DropReason::CircuitRequired));
    assert!(matches!(b.open(false, cell), OpenResult::Data(_)));
}

#[test]
fn handshakes_do_not_go_from_one_way_to_the_other() {
    // A request of a circuit, shown in the clear, and the reverse.
    for (there, seen) in [(circuit(5), routed(1)), (routed(2), circuit(6))] {
        let [mut a, mut b] = pair();
        a.sessions.set_hidden(a.peer, matches!(there, HostPath::Circuit(_)));
        let mut request = a.begin(there);
        let taken = b.sessions.handle_handshake(NOW, seen, &mut request);
        assert_eq!(taken, Err(DropReason::BadHandshake));
        assert!(b.sent(NOW).is_empty());
    }
    // The answer.
    let [mut a, mut b] = pair();
    a.sessions.set_hidden(a.peer, true);
    let mut request = a.begin(circuit(5));
    b.sessions.handle_handshake(NOW, circuit(6), &mut request).expect("a request");
    let [(_, mut response)] = b.sent(NOW).try_into().expect("one response");
    let taken = a.sessions.handle_handshake(NOW, routed(2), &mut response.clone());
    assert_eq!(taken, Err(DropReason::CircuitRequired));
    let taken = a.sessions.handle_handshake(NOW, circuit(8), &mut response);
    assert_eq!(taken, Ok(()), "the response is accepted over another circuit");
}

#[test]
fn what_was_made_in_the_clear_ends_with_the_first_session_over_a_circuit() {
    let [mut a, mut b] = pair();
    meet(&mut a, &mut b, routed(2), routed(1));
    let old = [a.seal(false).expect("a session"), b.seal(false).expect("a session")];
    // B has begun a handshake of its own too, which is not sent yet.
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
    assert!(matches!(b.open(true, unit), OpenResult::Data(_)));
    assert!(b.sent(NOW).is_empty(), "a request in the clear");
    let [of_a, of_b] = old;
    assert_eq!(
        b.open(false, of_a),
        OpenResult::Handshake,
        "the keys of the old session were dropped"
    );
    assert_eq!(a.open(false, of_b), OpenResult::Handshake);
    assert_eq!((a.sessions.session_count(), b.sessions.session_count()), (1, 1));
}

#[test]
fn without_a_circuit_no_handshake_begins_and_the_owner_is_told() {
    let [mut a, mut b] = pair();
    a.sessions.set_endpoint(a.peer, Some(routed(2)));
    a.sessions.connect(NOW, a.peer);
    a.jobs(NOW);
    // A request waits to be sent in the clear.
    a.sessions.set_hidden(a.peer, true);
    assert!(a.sent(NOW).is_empty(), "it stays");
    a.sessions.set_endpoint(a.peer, None);
    a.sessions.connect(NOW, a.peer);
    assert!(a.sent(NOW).is_empty());
    assert_eq!(a.sessions.poll_event(), Some(SessionEvent::NeedCircuit { peer: a.peer }));
    // An open request ends with its circuit.
    a.begin(circuit(5));
    a.sessions.set_endpoint(a.peer, None);
    assert_eq!(a.sessions.poll_event(), Some(SessionEvent::NeedCircuit { peer: a.peer }));
    let later = NOW + core::time::Duration::from_secs(60);
    a.sessions.handle_timeout(later);
    assert!(a.sent(later).is_empty() && a.sessions.poll_event().is_none());
    meet(&mut a, &mut b, circuit(9), circuit(10));
}

/// The owner has the peer in the clear again. The peer's owner has not: its handshakes over
/// circuits are refused, until the time is over or the owner requires circuits.
#[test]
fn circuits_are_refused_for_a_while() {
    let until = NOW + core::time::Duration::from_secs(600);
    for (refused, later, hides) in [(true, NOW, false), (false, until, false), (false, NOW, true)] {
        let [mut a, mut b] = pair();
        a.sessions.set_hidden(a.peer, true);
        meet(&mut a, &mut b, circuit(5), circuit(6));
        b.sessions.set_hidden(b.peer, false);
        b.sessions.refuse_circuits(b.peer, until);
        assert_eq!(b.sessions.session_count(), 0, "the session over the circuit ended");
        let unit = a.seal(true).expect("a session");
        assert!(!matches!(b.open(true, unit), OpenResult::Data(_)));
        if hides {
            b.sessions.set_hidden(b.peer, true);
        }
        let mut request = a.begin(circuit(7));
        b.sessions.handle_handshake(later, circuit(8), &mut request).expect("a request");
        let answers = b.sent(later).len();
        assert_eq!(answers, usize::from(!refused), "{later:?} {hides}");
        let drops = b.sessions.drops()[DropReason::NotAllowed as usize];
        assert_eq!((drops, b.sessions.is_hidden(b.peer)), (u64::from(refused), hides));
    }
}

/// A request over a circuit was answered, and the first unit is under way: it must not hide the
/// peer again.
#[test]
fn a_refusal_of_circuits_ends_sessions_that_no_unit_confirmed() {
    let [mut a, mut b] = pair();
    a.sessions.set_hidden(a.peer, true);
    let mut request = a.begin(circuit(5));
    b.sessions.handle_handshake(NOW, circuit(6), &mut request).expect("a request");
    let [(_, mut response)] = b.sent(NOW).try_into().expect("one response");
    a.sessions.handle_handshake(NOW, circuit(5), &mut response).expect("a response");
    a.jobs(NOW);
    b.sessions.refuse_circuits(b.peer, NOW + core::time::Duration::from_secs(600));
    let unit = a.seal(true).expect("a session");
    assert!(!matches!(b.open(true, unit), OpenResult::Data(_)));
    assert!(!b.sessions.is_hidden(b.peer) && b.sessions.session_count() == 0);
    // In the clear the two meet.
    a.sessions.set_hidden(a.peer, false);
    meet(&mut a, &mut b, routed(2), routed(1));
}
