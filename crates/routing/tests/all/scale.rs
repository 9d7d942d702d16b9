//! A thousand routes, and sixty routers: time to converge, messages and memory.

use std::time::Duration;

use crate::harness::{CLEAN, RoutingNet, UNIX_S, identity, ms};
use shoal_crypto::{Identity, PublicKey};
use shoal_routing::{Config, Routing};
use shoal_wire::{Instances, LinkId, OriginProof, RouteEntry, RouteUpdate, RoutingMessage, Time};

#[test]
fn sixty_routers_converge_in_a_ring_with_chords() {
    let mut wires: Vec<(u32, u32)> = (1..=60).map(|id| (id, id % 60 + 1)).collect();
    wires.extend((1..=20).map(|id| (id, id + 30)));
    let mut net = RoutingNet::new(60, &wires, CLEAN, Config::default(), 1);
    let first = net.converge(Duration::from_secs(5));
    assert!(first < ms(1_000), "{first:?}");
    net.run(Duration::from_secs(6));
    net.cut(0);
    net.run(CLEAN.detection);
    let gap = net.converge(Duration::from_secs(5));
    assert!(gap < ms(1_000), "{gap:?}");
}

fn sign(identity: &Identity, router: u32, seqno: u64) -> OriginProof {
    let expiry_unix_s = UNIX_S + 3_600;
    let mut text = b"shoal route origin 1".to_vec();
    text.extend_from_slice(&router.to_be_bytes());
    text.extend_from_slice(&identity.public().to_bytes());
    text.extend_from_slice(&seqno.to_be_bytes());
    text.extend_from_slice(&expiry_unix_s.to_be_bytes());
    OriginProof { seqno, expiry_unix_s, signature: identity.sign(&text) }
}

fn resident_bytes() -> u64 {
    let text = std::fs::read_to_string("/proc/self/statm").unwrap_or_default();
    let pages = text.split(' ').nth(1).and_then(|pages| pages.parse::<u64>().ok());
    pages.unwrap_or(0) * 4_096
}

fn drain(machine: &mut Routing, link: LinkId) -> (Option<u32>, Vec<(LinkId, RoutingMessage)>) {
    let (mut instance, mut sent) = (None, Vec::new());
    while let Some((to, message)) = machine.poll_transmit() {
        if let RoutingMessage::Hello(instances) = &message {
            instance = instance.or((to == link).then_some(instances.from));
        }
        sent.push((to, message));
    }
    while machine.poll_event().is_some() {}
    (instance, sent)
}

#[test]
fn a_thousand_routes_over_ten_links_are_small() {
    const ROUTERS: u32 = 1_000;
    let identities: Vec<Identity> = (1..=ROUTERS).map(identity).collect();
    let origins: Vec<(u32, PublicKey)> =
        (1..=ROUTERS).zip(&identities).map(|(id, i)| (id, i.public())).collect();
    let proofs: Vec<OriginProof> =
        (1..=ROUTERS).zip(&identities).map(|(id, i)| sign(i, id, 9)).collect();
    let before = resident_bytes();
    let me = identities[0].clone();
    let mut now = Time::from_millis(1);
    let mut machine = Routing::new(Config::default(), 1, me, origins, [1; 32], now, UNIX_S);
    for neighbour in 2..12u32 {
        let link = LinkId::from_bits(neighbour);
        machine.link_up(now, link, neighbour);
        let ours = drain(&mut machine, link).0.expect("a hello on link up");
        let instances = Instances { from: 77, to: ours };
        machine.handle_message(now, link, RoutingMessage::Hello(instances)).unwrap();
        let entries: Vec<RouteEntry> = (2..=ROUTERS)
            .map(|router| {
                let metric = 100 + (router * 7 + neighbour * 13) % 50;
                let proof = proofs[router as usize - 1];
                RouteEntry { router, metric, seqno: 9, proof: Some(proof) }
            })
            .collect();
        for (number, entries) in (1..).zip(entries.chunks(15)) {
            let update = RouteUpdate { instances, number, entries: entries.to_vec() };
            now = now + Duration::from_millis(1);
            machine.handle_message(now, link, RoutingMessage::Update(update)).unwrap();
            acknowledge(&mut machine, now);
        }
    }
    assert_eq!(machine.table().len(), ROUTERS as usize - 1);
    let grown = resident_bytes().saturating_sub(before);
    assert!(grown < 20 << 20, "{grown} bytes");
    machine.link_down(now, LinkId::from_bits(5));
    assert_eq!(machine.table().len(), ROUTERS as usize - 1);
}

/// Plays neighbours that acknowledge every update.
fn acknowledge(machine: &mut Routing, now: Time) {
    for (link, message) in drain(machine, LinkId::from_bits(0)).1 {
        let RoutingMessage::Update(update) = message else { continue };
        let instances = Instances { from: 77, to: update.instances.from };
        let ack = RoutingMessage::Ack { instances, number: update.number };
        machine.handle_message(now, link, ack).unwrap();
    }
}
