//! Distribution of the newest network secret under a virtual clock: with loss, lying or greedy
//! neighbours, nodes with other lists, and restarts.

use std::collections::BTreeMap;
use std::time::Duration;

use shoal_crypto::{NetworkSecret, Rng};
use shoal_directory::SecretExchange;
use shoal_wire::{Address, DropReason, LinkId, SecretInventory, SecretMessage, Time};

fn secret(n: u8) -> NetworkSecret {
    NetworkSecret([n; 32])
}

/// A row of nodes, each linked to its neighbours. The link to the previous node has number 0, to
/// the next node 1.
struct Row {
    now: Time,
    nodes: Vec<SecretExchange>,
    /// The secret on each node's disk.
    kept: Vec<Option<NetworkSecret>>,
    names: Vec<Option<[u8; 32]>>,
    rng: Rng,
    loss: u64,
    gives: u64,
    drops: BTreeMap<DropReason, u64>,
}

fn link(n: u32) -> LinkId {
    LinkId::from_bits(n)
}

impl Row {
    fn new(len: usize, loss: u64) -> Row {
        let mut row = Row {
            now: Time::from_millis(1_000),
            nodes: (0..len).map(|_| SecretExchange::new()).collect(),
            kept: vec![None; len],
            names: vec![None; len],
            rng: Rng::new([5; 32]),
            loss,
            gives: 0,
            drops: BTreeMap::new(),
        };
        (0..len).for_each(|n| row.connect(n));
        row
    }

    fn connect(&mut self, n: usize) {
        for side in [0, 1] {
            if let Some(other) = beside(n, side, self.nodes.len()) {
                self.nodes[n].link_up(self.now, link(side), Address::new(other as u32 + 1, 0));
            }
        }
    }

    /// Puts a list that names this secret in force at a node.
    fn list(&mut self, n: usize, name: Option<[u8; 32]>) {
        self.names[n] = name;
        self.set(n);
    }

    fn set(&mut self, n: usize) {
        let here = self.kept[n].clone().filter(|kept| Some(kept.name()) == self.names[n]);
        self.nodes[n].set(self.now, self.names[n], here);
    }

    fn restart(&mut self, n: usize) {
        self.nodes[n] = SecretExchange::new();
        self.set(n);
        self.connect(n);
        for side in [0, 1] {
            if let Some(other) = beside(n, side, self.nodes.len()) {
                self.nodes[other].link_up(self.now, link(1 - side), Address::new(n as u32 + 1, 0));
            }
        }
    }

    fn deliver(&mut self, to: usize, at: LinkId, message: SecretMessage) {
        match self.nodes[to].handle_message(self.now, at, message) {
            Ok(None) => {}
            Ok(Some(secret)) => {
                self.kept[to] = Some(secret);
                self.set(to);
            }
            Err(reason) => *self.drops.entry(reason).or_default() += 1,
        }
    }

    fn run(&mut self, ms: u64) {
        let end = self.now + Duration::from_millis(ms);
        while self.now < end {
            for n in 0..self.nodes.len() {
                let mut steps = 0;
                while let Some((at, message)) = self.nodes[n].poll_transmit(self.now) {
                    steps += 1;
                    assert!(steps < 10, "draining must end");
                    self.gives += u64::from(matches!(message, SecretMessage::Give(_)));
                    let side = u32::from(at == link(1));
                    let Some(to) = beside(n, side, self.nodes.len()) else { continue };
                    if self.rng.below(1_000) >= self.loss {
                        self.deliver(to, link(1 - side), message);
                    }
                }
            }
            self.now = self.now + Duration::from_millis(10);
        }
    }

    fn have(&self, name: [u8; 32]) -> usize {
        self.kept.iter().flatten().filter(|kept| kept.name() == name).count()
    }
}

fn beside(n: usize, side: u32, len: usize) -> Option<usize> {
    if side == 0 { n.checked_sub(1) } else { Some(n + 1).filter(|other| *other < len) }
}

#[test]
fn one_copy_reaches_all_and_then_there_is_silence() {
    let mut row = Row::new(6, 0);
    row.kept[0] = Some(secret(2));
    (0..6).for_each(|n| row.list(n, Some(secret(2).name())));
    row.run(1_000);
    assert_eq!((row.have(secret(2).name()), row.gives), (6, 5));
    assert_eq!(row.nodes[2].neighbours(), (2, 2));
    row.run(1_000);
    assert!(row.nodes.iter().all(|node| node.poll_timeout().is_none()), "no message is due");
    assert!(row.drops.is_empty(), "{:?}", row.drops);
}

#[test]
fn loss_delays_it_and_no_more() {
    let mut row = Row::new(6, 300);
    row.kept[5] = Some(secret(2));
    (0..6).for_each(|n| row.list(n, Some(secret(2).name())));
    row.run(60_000);
    assert_eq!(row.have(secret(2).name()), 6);
    assert!(row.drops.keys().all(|reason| *reason == DropReason::UnknownFlow), "{:?}", row.drops);
}

#[test]
fn who_has_another_list_is_given_nothing() {
    let mut row = Row::new(3, 0);
    row.kept[0] = Some(secret(2));
    row.list(0, Some(secret(2).name()));
    row.list(1, Some(secret(9).name()));
    row.run(10_000);
    assert_eq!((row.have(secret(2).name()), row.gives), (1, 0));
    // The node gets the list, and then the secret.
    row.list(1, Some(secret(2).name()));
    row.run(1_000);
    assert_eq!(row.have(secret(2).name()), 2);
    // A node whose list names no secret asks for none.
    assert!(row.kept[2].is_none());
}

#[test]
fn a_restart_at_any_time_loses_nothing() {
    for killed in 0..4 {
        for after in [0, 10, 20, 30, 300] {
            let mut row = Row::new(4, 0);
            row.kept[0] = Some(secret(2));
            (0..4).for_each(|n| row.list(n, Some(secret(2).name())));
            row.run(after);
            row.restart(killed);
            row.run(5_000);
            assert_eq!(row.have(secret(2).name()), 4, "{killed} after {after} ms");
        }
    }
}

#[test]
fn neighbours_that_lie_change_nothing() {
    let now = Time::from_millis(5);
    let name = secret(2).name();
    let mut node = SecretExchange::new();
    let unknown = Err(DropReason::UnknownFlow);
    let give = |n: u8| SecretMessage::Give([n; 32]);
    assert!(node.handle_message(now, link(0), give(2)).is_err(), "no link");
    node.link_up(now, link(0), Address::new(1, 0));
    let refused =
        |node: &mut SecretExchange, n| node.handle_message(now, link(0), give(n)).map(|_| ());
    assert_eq!(refused(&mut node, 2), unknown, "the list names none");
    node.set(now, Some(name), None);
    assert_eq!(refused(&mut node, 2), unknown, "nobody asked yet");
    assert!(node.poll_transmit(now).is_some());
    assert_eq!(refused(&mut node, 3), Err(DropReason::BadSecret));
    let taken = node.handle_message(now, link(0), give(2)).unwrap().unwrap();
    assert_eq!(taken.name(), name);
    // Further copies are refused while the secret is being stored and afterwards.
    assert_eq!(refused(&mut node, 2), unknown);
    node.set(now, Some(name), Some(secret(2)));
    assert_eq!(refused(&mut node, 2), unknown);
    assert_eq!(refused(&mut node, 3), unknown);
}

#[test]
fn who_asks_again_and_again_gets_four_copies_and_then_one_per_half_a_minute() {
    let name = secret(2).name();
    let ask = SecretMessage::Have(SecretInventory { ask: true, has: false, name });
    let mut node = SecretExchange::new();
    let mut now = Time::from_millis(1_000);
    node.set(now, Some(name), Some(secret(2)));
    let (mut given, mut refused) = (0, 0);
    for n in 0..6_000 {
        if n % 10 == 0 {
            // A new link gains nothing.
            node.link_up(now, link(0), Address::new(7, 1));
        }
        match node.handle_message(now, link(0), ask.clone()) {
            Ok(None) => {}
            Err(DropReason::ListBudget) => refused += 1,
            other => panic!("{other:?}"),
        }
        while let Some((_, message)) = node.poll_transmit(now) {
            given += u64::from(matches!(message, SecretMessage::Give(_)));
        }
        now = now + Duration::from_millis(20);
    }
    // 120 s.
    assert!((7..=8).contains(&given), "{given}");
    assert!(refused > 1_000, "{refused}");
    assert_eq!(node.given(), given);
}

#[test]
fn without_names_nothing_is_said() {
    let mut row = Row::new(2, 0);
    (0..2).for_each(|n| row.list(n, None));
    row.run(1_000);
    assert!(row.nodes.iter().all(|node| node.poll_timeout().is_none()));
    assert_eq!(row.nodes[0].neighbours(), (0, 1));
}
