//! A neighbour that lies, repeats itself or floods: its messages are refused and counted, and cause
//! little else.

use std::time::Duration;

use proptest::prelude::*;
use shoal_crypto::Identity;
use shoal_routing::{Config, Routing};
use shoal_wire::{
    DropReason, Instances, LinkId, METRIC_INFINITE, OriginProof, RouteEntry, RouteUpdate,
    RoutingMessage, SeqnoRequest, Time,
};

const UNIX_S: u64 = 1_800_000_000;
const ME: u32 = 1;
const LINK: LinkId = LinkId::from_bits(7);
const PEER: u32 = 0xabcd;
const START: Time = Time::from_millis(1_000);

fn identity(router: u32) -> Identity {
    Identity::from_seed([router as u8; 32])
}

/// The proof of an honest origin (docs/design/wire/routing.md, "Proof of origin").
fn proof_by(signer: &Identity, router: u32, seqno: u64, expiry_unix_s: u64) -> OriginProof {
    let key = signer.public().to_bytes();
    let mut text = b"shoal route origin 1".to_vec();
    text.extend_from_slice(&router.to_be_bytes());
    text.extend_from_slice(&key);
    text.extend_from_slice(&seqno.to_be_bytes());
    text.extend_from_slice(&expiry_unix_s.to_be_bytes());
    OriginProof { seqno, expiry_unix_s, signature: signer.sign(&text) }
}

fn proof(router: u32, seqno: u64) -> OriginProof {
    proof_by(&identity(router), router, seqno, UNIX_S + 3_600)
}

fn entry(router: u32, metric: u32, proof: OriginProof) -> RouteEntry {
    RouteEntry { router, metric, seqno: proof.seqno, proof: Some(proof) }
}

/// A machine with known origins 1 to 9 and one link to a peer that the test plays.
struct Rig {
    machine: Routing,
    now: Time,
    ours: u32,
    number: u32,
    /// Messages sent by the last call.
    sent: Vec<RoutingMessage>,
    /// Sequence numbers of our own route, in the order sent.
    own: Vec<u64>,
}

impl Rig {
    fn new(config: Config) -> Rig {
        let origins = (1..=9).map(|id| (id, identity(id).public()));
        let mut machine =
            Routing::new(config, ME, identity(ME), origins, [9; 32], Time::ZERO, UNIX_S);
        machine.link_up(START, LINK, 2);
        let mut rig =
            Rig { machine, now: START, ours: 0, number: 0, sent: Vec::new(), own: Vec::new() };
        rig.drain();
        let hello = |m: &RoutingMessage| match m {
            RoutingMessage::Hello(instances) => Some(instances.from),
            _ => None,
        };
        rig.ours = rig.sent.iter().find_map(hello).expect("a hello on link up");
        let hello = RoutingMessage::Hello(rig.instances());
        assert_eq!(rig.handle(hello), Ok(()));
        rig
    }

    fn instances(&self) -> Instances {
        Instances { from: PEER, to: self.ours }
    }

    fn handle(&mut self, message: RoutingMessage) -> Result<(), DropReason> {
        let result = self.machine.handle_message(self.now, LINK, message);
        self.drain();
        result
    }

    fn update(&mut self, entries: Vec<RouteEntry>) -> Result<(), DropReason> {
        self.number += 1;
        let (instances, number) = (self.instances(), self.number);
        self.handle(RoutingMessage::Update(RouteUpdate { instances, number, entries }))
    }

    fn drain(&mut self) {
        self.sent.clear();
        while let Some((_, message)) = self.machine.poll_transmit() {
            self.sent.push(message);
            assert!(self.sent.len() < 10_000);
        }
        self.own.extend(own_seqnos(&self.sent));
        while self.machine.poll_event().is_some() {}
        assert!(self.machine.poll_timeout().is_none_or(|(at, _)| at > self.now));
    }

    fn advance(&mut self, span: Duration) {
        let end = self.now + span;
        while let Some((at, _)) = self.machine.poll_timeout().filter(|(at, _)| *at <= end) {
            self.now = self.now.max(at);
            self.machine.handle_timeout(self.now);
            self.drain();
        }
        self.now = end;
    }

    fn knows(&self, router: u32) -> bool {
        self.machine.table().next_hop(router).is_some()
    }
}

#[test]
fn an_honest_update_is_taken_and_acknowledged() {
    let mut rig = Rig::new(Config::default());
    assert_eq!(rig.update(vec![entry(2, 0, proof(2, 5)), entry(3, 100, proof(3, 5))]), Ok(()));
    let ack = RoutingMessage::Ack { instances: Instances { from: rig.ours, to: PEER }, number: 1 };
    assert!(rig.sent.contains(&ack));
    assert!(rig.knows(2) && rig.knows(3) && !rig.knows(ME));
    let brief = RouteEntry { router: 3, metric: METRIC_INFINITE, seqno: 5, proof: None };
    assert_eq!(rig.update(vec![brief]), Ok(()));
    assert!(!rig.knows(3));
}

#[test]
fn nobody_can_invent_a_destination() {
    let mut rig = Rig::new(Config::default());
    let good = proof(3, 5);
    let mut flipped = good;
    flipped.signature[63] ^= 1;
    let forgeries = [
        ("signed by the neighbour", entry(3, 10, proof_by(&identity(2), 3, 5, UNIX_S + 3_600))),
        ("proof of another router", entry(3, 10, proof(4, 5))),
        ("sequence number raised", entry(3, 10, OriginProof { seqno: 6, ..good })),
        ("life prolonged", entry(3, 10, OriginProof { expiry_unix_s: UNIX_S + 9_999, ..good })),
        ("signature damaged", entry(3, 10, flipped)),
        ("expired", entry(3, 10, proof_by(&identity(3), 3, 5, UNIX_S - 86_400))),
        ("no proof", RouteEntry { router: 3, metric: 10, seqno: 5, proof: None }),
        ("unknown router", entry(77, 10, proof(77, 5))),
        ("entry and proof differ", RouteEntry { seqno: 6, ..entry(3, 10, good) }),
    ];
    for (name, forged) in forgeries {
        assert_eq!(rig.update(vec![forged]), Err(DropReason::BadRoute), "{name}");
        assert!(!rig.knows(3) && !rig.knows(77), "{name}");
        // The honest entry beside it is still accepted.
        assert_eq!(rig.update(vec![forged, entry(5, 10, proof(5, 1))]), Err(DropReason::BadRoute));
        assert!(rig.knows(5), "{name}");
    }
}

#[test]
fn what_may_be_our_own_route_coming_back_is_not_taken() {
    let mut rig = Rig::new(Config::default());
    let other = LinkId::from_bits(8);
    rig.machine.link_up(START, other, 3);
    let (_, hello) = rig.machine.poll_transmit().expect("a hello on link up");
    let RoutingMessage::Hello(Instances { from: ours, .. }) = hello else { panic!("{hello:?}") };
    let hello = RoutingMessage::Hello(Instances { from: 5, to: ours });
    assert_eq!(rig.machine.handle_message(START, other, hello), Ok(()));
    rig.drain();
    rig.update(vec![entry(4, 100, proof(4, 5))]).unwrap();
    rig.advance(Duration::from_millis(50));
    // 200 was advertised on the other link: an offer of 200 or more may be our own route.
    rig.update(vec![entry(4, 200, proof(4, 5))]).unwrap();
    assert!(!rig.knows(4));
    let asks = |m: &RoutingMessage| matches!(m, RoutingMessage::SeqnoRequest(r) if r.router == 4);
    assert!(rig.sent.iter().any(asks), "the origin is asked for a newer number");
    rig.update(vec![entry(4, 200, proof(4, 4))]).unwrap();
    assert!(!rig.knows(4), "an older number is no better");
    rig.update(vec![entry(4, 200, proof(4, 6))]).unwrap();
    assert!(rig.knows(4), "an offer with a newer number is accepted");
    rig.update(vec![entry(4, 299, proof(4, 6))]).unwrap();
    assert!(rig.knows(4), "299 is still nearer than the distance we advertised since");
}

#[test]
fn messages_of_another_instance_are_refused() {
    let mut rig = Rig::new(Config::default());
    let entries = vec![entry(3, 10, proof(3, 5))];
    for instances in [
        Instances { from: PEER, to: rig.ours ^ 1 },
        Instances { from: PEER ^ 1, to: rig.ours },
        Instances { from: PEER, to: 0 },
    ] {
        let update = RouteUpdate { instances, number: 1, entries: entries.clone() };
        let result = rig.handle(RoutingMessage::Update(update));
        assert_eq!(result, Err(DropReason::StaleRouting));
        let ack = RoutingMessage::Ack { instances, number: 1 };
        assert_eq!(rig.handle(ack), Err(DropReason::StaleRouting));
        assert_eq!(
            rig.handle(RoutingMessage::DumpRequest(instances)),
            Err(DropReason::StaleRouting)
        );
    }
    assert!(!rig.knows(3));
    rig.update(entries.clone()).unwrap();
    rig.number -= 1;
    assert_eq!(rig.update(entries), Err(DropReason::StaleRouting), "a repeated update number");
}

#[test]
fn links_that_are_not_up_get_nothing() {
    let mut rig = Rig::new(Config::default());
    let query = RoutingMessage::Query { nonce: 1 };
    let refused = rig.machine.handle_message(START, LinkId::from_bits(99), query.clone());
    assert_eq!(refused, Err(DropReason::NotAllowed));
    rig.machine.link_down(START, LINK);
    assert_eq!(rig.handle(query), Err(DropReason::NotAllowed));
    assert!(rig.sent.is_empty());
}

#[test]
fn replies_nobody_asked_for_are_counted() {
    let mut rig = Rig::new(Config::default());
    let result = rig.handle(RoutingMessage::QueryReply { nonce: 3 });
    assert_eq!(result, Err(DropReason::StaleRouting));
}

fn own_seqnos(sent: &[RoutingMessage]) -> Vec<u64> {
    let updates = sent.iter().filter_map(|m| match m {
        RoutingMessage::Update(update) => Some(&update.entries),
        _ => None,
    });
    updates.flatten().filter(|e| e.router == ME).map(|e| e.seqno).collect()
}

#[test]
fn nobody_can_drive_our_sequence_number_far() {
    let mut rig = Rig::new(Config::default());
    // A number from the future that we never signed.
    let forged = proof_by(&identity(2), ME, u64::MAX - 1, UNIX_S + 9);
    let request = SeqnoRequest { router: ME, hops: 3, proof: forged };
    for _ in 0..4 {
        let result = rig.handle(RoutingMessage::SeqnoRequest(request));
        assert_eq!(result, Err(DropReason::BadRoute));
    }
    let result = rig.handle(RoutingMessage::SeqnoRequest(request));
    assert_eq!(result, Err(DropReason::RouteBudget));
    assert_eq!(rig.update(vec![entry(ME, 5, forged)]), Err(DropReason::BadRoute));

    // A flood of honest requests makes one number per gap.
    let base = UNIX_S * 1_000;
    let mut last = base;
    let mut own = proof_by(&identity(ME), ME, base, UNIX_S + 3_600);
    for _ in 0..100 {
        let request = SeqnoRequest { router: ME, hops: 3, proof: own };
        let _ = rig.handle(RoutingMessage::SeqnoRequest(request));
        rig.advance(Duration::from_millis(10));
        last = last.max(*rig.own.last().expect("advertised at the start"));
        own = proof_by(&identity(ME), ME, last, UNIX_S + 3_600 + rig.now.0 / 1_000_000_000);
    }
    assert!(last > base && last - base <= 11, "{}", last - base);
}

#[test]
fn a_clock_set_back_is_made_up_for() {
    let mut rig = Rig::new(Config::default());
    let ahead = UNIX_S * 1_000 + 500_000;
    let before = proof_by(&identity(ME), ME, ahead, UNIX_S + 3_600);
    assert_eq!(rig.update(vec![entry(ME, METRIC_INFINITE, before)]), Ok(()));
    rig.advance(Duration::from_millis(200));
    assert_eq!(rig.own.last(), Some(&(ahead + 1)));
}

#[test]
fn signature_checks_dumps_and_instances_have_a_budget() {
    let mut rig = Rig::new(Config::default());
    let bad = |n: u64| entry(3, 10, OriginProof { seqno: n, ..proof(3, 5) });
    let mut refused = 0;
    for round in 0..600 {
        let entries = (0..15).map(|n| bad(round * 15 + n)).collect();
        refused += u32::from(rig.update(entries) == Err(DropReason::RouteBudget));
    }
    // 4,096 checks in a row, then none until time passes.
    assert_eq!(refused, 600 - 4_096 / 15);
    rig.advance(Duration::from_secs(1));
    rig.update(vec![entry(3, 10, proof(3, 5))]).unwrap();
    assert!(rig.knows(3));

    let dump = RoutingMessage::DumpRequest(rig.instances());
    assert_eq!(rig.handle(dump.clone()), Ok(()));
    assert_eq!(rig.handle(dump), Err(DropReason::RouteBudget));

    rig.advance(Duration::from_millis(60));
    let hello = |from| RoutingMessage::Hello(Instances { from, to: 0 });
    assert_eq!(rig.handle(hello(1)), Ok(()));
    assert!(!rig.knows(3), "a new instance starts with nothing");
    assert_eq!(rig.handle(hello(2)), Err(DropReason::RouteBudget));
}

#[derive(Clone, Debug)]
enum Act {
    Message(RoutingMessage),
    Update(Vec<(u32, u32, u64, u8)>),
    Wait(u64),
    Down,
    Up,
}

fn any_act() -> impl Strategy<Value = Act> {
    let instances = (prop_oneof![Just(PEER), Just(1), Just(2)], prop_oneof![Just(0), Just(1)])
        .prop_map(|(from, to)| Instances { from, to });
    let proof = (0u64..8, 0u8..3).prop_map(|(seqno, _)| proof(2, seqno));
    let request = (1u32..12, any::<u8>(), proof).prop_map(|(router, hops, proof)| SeqnoRequest {
        router,
        hops,
        proof,
    });
    prop_oneof![
        4 => prop::collection::vec((0u32..12, 0u32..400, 0u64..8, 0u8..4), 1..6)
            .prop_map(Act::Update),
        1 => instances.prop_map(|i| Act::Message(RoutingMessage::Hello(i))),
        2 => request.prop_map(|r| Act::Message(RoutingMessage::SeqnoRequest(r))),
        1 => any::<u64>().prop_map(|nonce| Act::Message(RoutingMessage::Query { nonce })),
        1 => any::<u64>().prop_map(|nonce| Act::Message(RoutingMessage::QueryReply { nonce })),
        1 => (0u32..40).prop_map(|number| Act::Message(RoutingMessage::Ack {
            instances: Instances { from: PEER, to: 0 }, number })),
        2 => (0u64..3_000).prop_map(Act::Wait),
        1 => Just(Act::Down),
        1 => Just(Act::Up),
    ]
}

/// Makes an entry. Origins other than 2 never signed anything in this test.
fn claim(router: u32, metric: u32, seqno: u64, how: u8) -> RouteEntry {
    let metric = if metric > 380 { METRIC_INFINITE - (metric & 1) } else { metric };
    let proof = match how {
        0 => Some(proof(2, seqno)),
        1 => Some(proof_by(&identity(2), router, seqno, UNIX_S + 3_600)),
        2 => Some(OriginProof { signature: [0; 64], ..proof(2, seqno) }),
        _ => None,
    };
    RouteEntry { router, metric, seqno, proof }
}

proptest! {
    #![proptest_config(ProptestConfig {
        cases: 128.min(ProptestConfig::default().cases),
        failure_persistence: None,
        ..ProptestConfig::default()
    })]

    #[test]
    fn no_neighbour_makes_it_panic_or_believe(acts in prop::collection::vec(any_act(), 1..60)) {
        let mut rig = Rig::new(Config::default());
        for act in acts {
            match act {
                Act::Message(RoutingMessage::Hello(Instances { from, .. })) => {
                    let _ = rig.handle(RoutingMessage::Hello(Instances { from, to: rig.ours }));
                }
                Act::Message(message) => {
                    let _ = rig.handle(message);
                }
                Act::Update(claims) => {
                    let entries = claims.iter().map(|(r, m, s, how)| claim(*r, *m, *s, *how));
                    let _ = rig.update(entries.collect());
                }
                Act::Wait(ms) => rig.advance(Duration::from_millis(ms)),
                Act::Down => {
                    rig.machine.link_down(rig.now, LINK);
                    rig.drain();
                    prop_assert!(rig.machine.table().is_empty());
                }
                Act::Up => {
                    rig.machine.link_up(rig.now, LINK, 2);
                    rig.drain();
                    let hello = |m: &RoutingMessage| match m {
                        RoutingMessage::Hello(instances) => Some(instances.from),
                        _ => None,
                    };
                    rig.ours = rig.sent.iter().find_map(hello).expect("a hello on link up");
                    rig.number = 0;
                    let _ = rig.handle(RoutingMessage::Hello(rig.instances()));
                }
            }
            let known: Vec<u32> = rig.machine.routes().map(|route| route.router).collect();
            prop_assert!(known.iter().all(|router| *router == 2), "{known:?}");
        }
    }
}
