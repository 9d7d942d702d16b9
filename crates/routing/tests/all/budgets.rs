//! Limits on the messages that one neighbour can make a router send.

use std::time::Duration;

use shoal_crypto::Identity;
use shoal_routing::{Config, Routing};
use shoal_wire::{
    DropReason, Instances, LinkId, OriginProof, RouteEntry, RouteUpdate, RoutingMessage,
    SeqnoRequest, Time,
};

const UNIX_S: u64 = 1_800_000_000;
const ME: u32 = 1;

fn identity(router: u32) -> Identity {
    Identity::from_seed([router as u8; 32])
}

/// The proof of an honest origin (docs/design/wire/routing.md, "Proof of origin").
fn proof(router: u32, seqno: u64) -> OriginProof {
    let signer = identity(router);
    let expiry_unix_s = UNIX_S + 3_600;
    let mut text = b"shoal route origin 1".to_vec();
    text.extend_from_slice(&router.to_be_bytes());
    text.extend_from_slice(&signer.public().to_bytes());
    text.extend_from_slice(&seqno.to_be_bytes());
    text.extend_from_slice(&expiry_unix_s.to_be_bytes());
    OriginProof { seqno, expiry_unix_s, signature: signer.sign(&text) }
}

/// A router with links 2, 3 and 4 to the routers of those numbers. The test plays these routers.
struct BudgetRig {
    machine: Routing,
    now: Time,
    /// The router's instances on its links.
    ours: [u32; 5],
}

impl BudgetRig {
    fn new() -> BudgetRig {
        let origins = (1..=9).map(|id| (id, identity(id).public()));
        let (config, now) = (Config::default(), Time::from_millis(1_000));
        let mut machine = Routing::new(config, ME, identity(ME), origins, [9; 32], now, UNIX_S);
        let mut ours = [0; 5];
        for link in 2..5 {
            machine.link_up(now, LinkId::from_bits(link), link);
            while let Some((to, message)) = machine.poll_transmit() {
                if let RoutingMessage::Hello(instances) = message {
                    ours[to.bits() as usize] = instances.from;
                }
            }
        }
        let mut rig = BudgetRig { machine, now, ours };
        for link in 2..5 {
            rig.handle(link, RoutingMessage::Hello(rig.instances(link))).unwrap();
        }
        rig.take();
        rig
    }

    fn instances(&self, link: u32) -> Instances {
        Instances { from: 100 + link, to: self.ours[link as usize] }
    }

    fn handle(&mut self, link: u32, message: RoutingMessage) -> Result<(), DropReason> {
        self.machine.handle_message(self.now, LinkId::from_bits(link), message)
    }

    /// Messages that the router sent, with their links.
    fn take(&mut self) -> Vec<(u32, RoutingMessage)> {
        self.machine.handle_timeout(self.now);
        core::iter::from_fn(|| self.machine.poll_transmit()).map(|(to, m)| (to.bits(), m)).collect()
    }
}

#[test]
fn queries_are_answered_within_a_budget_of_their_neighbour() {
    let mut rig = BudgetRig::new();
    let (mut answered, mut refused) = (0, 0);
    for _ in 0..1_000 {
        for nonce in 0..128 {
            let said = rig.handle(2, RoutingMessage::Query { nonce });
            refused += u32::from(said == Err(DropReason::RouteBudget));
        }
        let replies = rig.take().into_iter();
        answered += replies.filter(|(_, m)| matches!(m, RoutingMessage::QueryReply { .. })).count();
        rig.now = rig.now + Duration::from_millis(1);
    }
    println!("{answered} replies to 128,000 queries in a second, {refused} refused");
    assert!(answered <= 250, "{answered}");
    assert_eq!(answered + refused as usize, 128_000);
    assert_eq!(rig.handle(3, RoutingMessage::Query { nonce: 1 }), Ok(()), "a budget for each");
    // Honest queries pass again after a moment.
    rig.now = rig.now + Duration::from_millis(100);
    assert_eq!(rig.handle(2, RoutingMessage::Query { nonce: 1 }), Ok(()));
}

#[test]
fn hellos_requests_and_updates_are_answered_within_budgets() {
    let mut rig = BudgetRig::new();
    let known = vec![RouteEntry { router: 9, metric: 10, seqno: 5, proof: Some(proof(9, 5)) }];
    let (mut number, mut sent) = (0, [0; 3]);
    for round in 0..1_000_u64 {
        let deaf = Instances { to: rig.ours[2] ^ 1, ..rig.instances(2) };
        for _ in 0..128 {
            let _ = rig.handle(2, RoutingMessage::Hello(deaf));
        }
        sent[0] += rig.take().len();
        let _ = rig.handle(2, RoutingMessage::Hello(rig.instances(2)));
        rig.take();
        for _ in 0..50 {
            number += 1;
            let (instances, entries) = (rig.instances(3), known.clone());
            let update = RouteUpdate { instances, number, entries };
            let _ = rig.handle(3, RoutingMessage::Update(update));
        }
        sent[1] += rig.take().len();
        for n in 0..15 {
            let proof = OriginProof { seqno: 1_000 + round * 15 + n, ..proof(9, 5) };
            let request = SeqnoRequest { router: 9, hops: 32, proof };
            let _ = rig.handle(4, RoutingMessage::SeqnoRequest(request));
        }
        sent[2] += rig.take().len();
        rig.now = rig.now + Duration::from_millis(1);
    }
    println!("hellos, updates, requests: {sent:?} frames in a second");
    assert!(sent[0] <= 2_500 && sent[1] <= 7_000 && sent[2] <= 7_000, "{sent:?}");
}

#[test]
fn a_request_that_ends_here_holds_back_nobody_elses() {
    let mut rig = BudgetRig::new();
    let entries = vec![RouteEntry { router: 9, metric: 10, seqno: 5, proof: Some(proof(9, 5)) }];
    let update = RouteUpdate { instances: rig.instances(2), number: 1, entries };
    rig.handle(2, RoutingMessage::Update(update)).unwrap();
    rig.take();
    let request = |hops| {
        let request = SeqnoRequest { router: 9, hops, proof: proof(9, 5) };
        RoutingMessage::SeqnoRequest(request)
    };
    let mut passed = Vec::new();
    for (link, hops) in [(3, 1), (4, 32), (3, 32), (3, 31)] {
        let said = rig.handle(link, request(hops));
        let on = |(_, message): &(u32, RoutingMessage)| match message {
            RoutingMessage::SeqnoRequest(request) => Some(request.hops),
            _ => None,
        };
        passed.push((said, rig.take().iter().filter_map(on).collect::<Vec<_>>()));
    }
    println!("{passed:?}");
    assert_eq!(passed[1], (Ok(()), vec![31]), "an honest request is passed on");
    assert_eq!(
        passed[2..],
        [(Ok(()), vec![]), (Ok(()), vec![])],
        "the answer to the first serves all"
    );
}

#[test]
fn a_link_that_goes_and_comes_again_brings_no_new_budget() {
    let mut rig = BudgetRig::new();
    let mut replies = 0;
    for _ in 0..20 {
        rig.machine.link_down(rig.now, LinkId::from_bits(2));
        rig.machine.link_up(rig.now, LinkId::from_bits(2), 2);
        rig.take();
        for nonce in 0..1_000 {
            let _ = rig.handle(2, RoutingMessage::Query { nonce });
        }
        let sent = rig.take();
        let is_reply =
            |m: &&(u32, RoutingMessage)| matches!(m.1, RoutingMessage::QueryReply { .. });
        replies += sent.iter().filter(is_reply).count();
    }
    println!("{replies} replies to 20,000 queries over a link that came 20 times");
    assert!(replies <= 100, "{replies}");
}
