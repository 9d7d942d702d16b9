//! Exchange of supplements between neighbours under a virtual clock: with loss, with lying
//! neighbours, and with a registrar that signs two steps with one number.

use std::cmp::Reverse;
use std::collections::BinaryHeap;
use std::time::Duration;

use shoal_crypto::{Identity, Rng, SigningKey};
use shoal_directory::{
    ChainExchange, ChainOutcome, CircuitRole, Directory, HostRange, List, ListContent, Mandate,
    MandateId, MandateRights, Member, Register, Step, StepEntry, StepRejection, Supplement,
};
use shoal_wire::{Address, ChainInventory, ChainMark, ChainMessage, DropReason, LinkId, Time};

const NOW: u64 = 1_790_000_000;

fn authority() -> SigningKey {
    SigningKey::from_seed([42; 32])
}

fn registrar() -> Identity {
    Identity::from_seed([7; 32])
}

fn mandate() -> Mandate {
    Mandate {
        name: "desk".into(),
        serial: 1,
        key: registrar().public(),
        groups: vec!["staff".into()],
        hosts: vec![HostRange { router: 1, first: 100, last: 1_999 }],
        ipv4: None,
        most: 1_000,
        longest_s: 1_000,
        until_unix_s: NOW + 10_000,
        rights: MandateRights::default(),
    }
}

fn list(version: u64, mandates: Vec<Mandate>) -> List {
    let content = ListContent { version, issued_unix_s: NOW, mandates, ..ListContent::default() };
    content.sign(&authority()).unwrap()
}

/// An entry for the member number `n`.
fn entry(n: u16, name: &str) -> StepEntry {
    let mut seed = [0; 32];
    seed[..2].copy_from_slice(&n.to_be_bytes());
    StepEntry::Member(Box::new(Member {
        version: 1,
        name: format!("{name}{n}"),
        key: Identity::from_seed(seed).public(),
        address: Address::new(1, 100 + n),
        second: None,
        expires_unix_s: NOW + 500,
        endpoint: None,
        groups: vec!["staff".into()],
        security_groups: Vec::new(),
        prefixes: Vec::new(),
        interface: true,
        ipv4: None,
        cover: None,
        carrier: CircuitRole::default(),
        unknown: Vec::new(),
    }))
}

fn sign(number: u64, previous: [u8; 32], entry: StepEntry) -> Supplement {
    let step = Step {
        mandate: mandate().id(),
        number,
        previous,
        issued_unix_s: NOW,
        entries: vec![entry],
    };
    step.sign(&registrar()).unwrap()
}

/// A chain of `len` members. From number `other` on (0: all) the members have different names.
fn chain(len: u16, other: u16) -> Vec<Supplement> {
    let mut previous = mandate().id().0;
    let mut all = Vec::new();
    for n in 0..len {
        let name = if n >= other { "other" } else { "m" };
        let step = sign(u64::from(n) + 1, previous, entry(n, name));
        previous = step.digest();
        all.push(step);
    }
    all
}

struct Node {
    directory: Directory,
    chains: ChainExchange,
    bad: u64,
}

impl Node {
    fn new() -> Node {
        let mut directory = Directory::new(Duration::from_secs(1 << 30));
        directory.accept(Time::ZERO, NOW, list(1, vec![mandate()])).unwrap();
        Node { directory, chains: ChainExchange::new(), bad: 0 }
    }

    fn register(&self) -> &Register {
        self.directory.register(&mandate().id()).unwrap()
    }

    /// Applies supplements of the registrar as a node does.
    fn take(&mut self, now: Time, steps: &[Supplement]) -> Result<(), StepRejection> {
        let (changed, outcome) = self.directory.supplements(now, NOW, steps);
        if changed {
            self.chains.changed(now, &self.directory);
        }
        outcome
    }

    fn check(&mut self, now: Time) {
        let Some(arrived) = self.chains.poll_arrived() else { return };
        let opened: Result<Vec<_>, _> = arrived
            .steps
            .iter()
            .map(|bytes| Supplement::open(&registrar().public(), bytes))
            .collect();
        let outcome = match opened {
            Err(_) => ChainOutcome::Forged,
            Ok(steps) if arrived.is_fork && steps.len() == 2 => {
                let fork = <[Supplement; 2]>::try_from(steps).unwrap();
                match self.directory.show_fork(fork) {
                    Ok(_) => {
                        self.chains.changed(now, &self.directory);
                        ChainOutcome::Taken
                    }
                    Err(_) => ChainOutcome::Refused,
                }
            }
            Ok(steps) => match self.take(now, &steps) {
                Ok(()) => ChainOutcome::Taken,
                Err(StepRejection::Unchained) => ChainOutcome::Diverged,
                Err(_) => ChainOutcome::Refused,
            },
        };
        let is_bad = matches!(outcome, ChainOutcome::Refused | ChainOutcome::Forged);
        self.bad += u64::from(is_bad);
        self.chains.settled(now, outcome, &self.directory);
    }
}

/// A packet in flight, by arrival: time, sequence number, sender, receiver, bytes.
type Flying = (Time, u64, usize, usize, Vec<u8>);

/// Nodes; a link's number at a node is the index of the far end.
struct Net {
    nodes: Vec<Node>,
    now: Time,
    flying: BinaryHeap<Reverse<Flying>>,
    sent: u64,
    bytes: u64,
    rng: Rng,
    loss: f64,
}

impl Net {
    fn row(count: usize, loss: f64) -> Net {
        let mut net = Net {
            nodes: (0..count).map(|_| Node::new()).collect(),
            now: Time::from_millis(1_000),
            flying: BinaryHeap::new(),
            sent: 0,
            bytes: 0,
            rng: Rng::new([9; 32]),
            loss,
        };
        for at in 1..count {
            net.join(at - 1, at);
        }
        net
    }

    fn join(&mut self, a: usize, b: usize) {
        for (at, to) in [(a, b), (b, a)] {
            let Node { chains, directory, .. } = &mut self.nodes[at];
            let (link, far) = (LinkId::from_bits(to as u32), Address::new(1 + to as u32, 0));
            chains.link_up(self.now, link, far, directory);
        }
    }

    fn cut(&mut self, a: usize, b: usize) {
        for (at, to) in [(a, b), (b, a)] {
            let Node { chains, directory, .. } = &mut self.nodes[at];
            chains.link_down(self.now, LinkId::from_bits(to as u32), directory);
        }
    }

    /// Sends what is due; asserts that draining ends.
    fn drain(&mut self) {
        for from in 0..self.nodes.len() {
            let mut left = 100_000;
            loop {
                let Node { chains, directory, .. } = &mut self.nodes[from];
                let Some((to, message)) = chains.poll_transmit(self.now, directory) else { break };
                left -= 1;
                assert!(left > 0, "draining ends");
                self.sent += 1;
                let mut bytes = vec![message.kind()];
                message.encode(&mut bytes);
                self.bytes += match bytes.len() {
                    0..=164 => 192,
                    165..=548 => 576,
                    _ => 1_440,
                };
                if self.rng.below(1_000_000) as f64 >= self.loss * 1e6 {
                    let at = self.now + Duration::from_millis(10);
                    self.flying.push(Reverse((at, self.sent, from, to.bits() as usize, bytes)));
                }
            }
            let Node { chains, directory, .. } = &mut self.nodes[from];
            chains.handle_timeout(self.now, directory);
            self.nodes[from].check(self.now);
        }
    }

    /// Runs until `done` or the limit. Returns the time taken.
    fn run(&mut self, limit: Duration, done: impl Fn(&Net) -> bool) -> Result<Duration, Duration> {
        let began = self.now;
        loop {
            self.drain();
            if done(self) {
                return Ok(self.now.since(began));
            }
            if self.now.since(began) > limit {
                return Err(limit);
            }
            let timers = self.nodes.iter().filter_map(|node| node.chains.poll_timeout());
            let timer = timers.min().unwrap_or(Time::FAR);
            let arrival = self.flying.peek().map_or(Time::FAR, |next| next.0.0);
            let next = timer.min(arrival).min(began + limit + Duration::from_millis(1));
            self.now = self.now.max(next);
            while self.flying.peek().is_some_and(|next| next.0.0 <= self.now) {
                let Some(Reverse((_, _, from, to, bytes))) = self.flying.pop() else { break };
                let message = ChainMessage::parse(bytes[0], &bytes[1..]).unwrap();
                let Node { chains, directory, .. } = &mut self.nodes[to];
                let link = LinkId::from_bits(from as u32);
                let _ = chains.handle_message(self.now, link, message, directory);
            }
        }
    }

    fn all_have(&self, steps: u64) -> bool {
        let head = self.nodes[0].register().head();
        self.nodes.iter().all(|node| {
            (node.register().len(), node.register().head()) == (steps, head)
                && node.directory.members(self.now, NOW).count() as u64 == steps
        })
    }

    fn all_frozen_at(&self, number: u64) -> bool {
        self.nodes.iter().all(|node| {
            let fork = node.register().fork().map(|fork| fork[0].step().number);
            (fork, node.register().len()) == (Some(number), number - 1)
        })
    }
}

#[test]
fn a_chain_reaches_every_node_of_a_long_row_within_seconds_at_any_loss() {
    for (loss, limit_s) in [(0.0, 2), (0.1, 8), (0.3, 30)] {
        let mut net = Net::row(6, loss);
        let steps = chain(300, 999);
        net.nodes[0].take(net.now, &steps[..200]).unwrap();
        let limit = Duration::from_secs(limit_s);
        let first = net.run(limit, |net| net.all_have(200));
        assert!(first.is_ok(), "{loss}");
        // Steps spread from the middle in both directions, one by one.
        for step in &steps[200..] {
            net.nodes[3].take(net.now, std::slice::from_ref(step)).unwrap();
            let _ = net.run(Duration::from_millis(20), |_| false);
        }
        let second = net.run(limit, |net| net.all_have(300));
        assert!(second.is_ok(), "{loss}");
        let _ = net.run(Duration::from_secs(300), |_| false);
        let before = net.sent;
        assert!(net.run(Duration::from_secs(3_600), |_| false).is_err());
        assert_eq!(net.sent, before, "no message is sent once every node has the chain");
    }
}

#[test]
fn a_step_costs_each_link_less_than_two_kilobytes() {
    let mut net = Net::row(5, 0.0);
    let steps = chain(20, 999);
    net.nodes[0].take(net.now, &steps[..1]).unwrap();
    assert!(net.run(Duration::from_secs(2), |net| net.all_have(1)).is_ok());
    let _ = net.run(Duration::from_secs(100), |_| false);
    net.bytes = 0;
    for step in &steps[1..] {
        net.nodes[2].take(net.now, std::slice::from_ref(step)).unwrap();
        let _ = net.run(Duration::from_secs(10), |_| false);
    }
    assert!(net.all_have(20));
    let per_link = net.bytes / 19 / 4;
    assert!(per_link <= 2_000, "{per_link} bytes");
}

#[test]
fn a_link_that_was_down_and_a_newer_list_catch_up() {
    let mut net = Net::row(3, 0.0);
    let steps = chain(9, 999);
    net.nodes[0].take(net.now, &steps[..3]).unwrap();
    assert!(net.run(Duration::from_secs(2), |net| net.all_have(3)).is_ok());
    net.cut(1, 2);
    net.nodes[0].take(net.now, &steps[3..]).unwrap();
    assert!(net.run(Duration::from_secs(60), |net| net.all_have(9)).is_err());
    assert_eq!(net.nodes[2].register().len(), 3);
    net.join(1, 2);
    assert!(net.run(Duration::from_secs(2), |net| net.all_have(9)).is_ok());
    // A list without the mandate ends the chain; with the mandate again, the chain is fetched anew.
    let node = &mut net.nodes[2];
    node.directory.accept(net.now, NOW, list(2, Vec::new())).unwrap();
    node.chains.changed(net.now, &node.directory);
    assert_eq!(node.directory.members(net.now, NOW).count(), 0);
    let _ = net.run(Duration::from_secs(5), |_| false);
    let node = &mut net.nodes[2];
    node.directory.accept(net.now, NOW, list(3, vec![mandate()])).unwrap();
    node.chains.changed(net.now, &node.directory);
    assert!(net.run(Duration::from_secs(2), |net| net.all_have(9)).is_ok());
}

#[test]
fn two_steps_with_one_number_freeze_the_chain_everywhere_from_the_first_that_differs() {
    // (steps at one end, steps at the other, the first that differs)
    for (here, there, other) in [(40, 40, 17), (40, 9, 3), (2, 300, 1), (1, 1, 0), (65, 200, 64)] {
        for loss in [0.0, 0.1] {
            let mut net = Net::row(4, loss);
            net.cut(1, 2);
            net.nodes[0].take(net.now, &chain(here, 999)).unwrap();
            net.nodes[3].take(net.now, &chain(there, other)).unwrap();
            let _ = net.run(Duration::from_secs(30), |_| false);
            assert_eq!(net.nodes[1].register().len(), u64::from(here));
            net.join(1, 2);
            let frozen = u64::from(other) + 1;
            let took = net.run(Duration::from_secs(60), |net| net.all_frozen_at(frozen));
            assert!(took.is_ok(), "{here} {there} {other} {loss}");
            // Steps that the registrar signs after the fork have no effect.
            let more = net.nodes[0].take(net.now, &chain(here + 1, 999)[usize::from(other)..]);
            assert_eq!(more, Err(StepRejection::Frozen(frozen)));
            assert_eq!(net.nodes.iter().map(|node| node.bad).sum::<u64>(), 0);
        }
    }
}

#[test]
fn who_hears_of_a_fork_late_gets_both_steps_and_all_before_them() {
    let mut net = Net::row(3, 0.0);
    net.cut(1, 2);
    net.nodes[0].take(net.now, &chain(100, 999)).unwrap();
    net.nodes[0].take(net.now, &chain(71, 70)[70..]).unwrap();
    assert!(net.run(Duration::from_secs(5), |net| net.nodes[1].register().len() == 70).is_ok());
    net.join(1, 2);
    assert!(net.run(Duration::from_secs(5), |net| net.all_frozen_at(71)).is_ok());
}

/// Nodes with links to several others. Every twentieth packet is lost.
fn mesh() -> (Net, usize) {
    let mut net = Net::row(24, 0.05);
    let mut links = 23;
    let mut rng = Rng::new([5; 32]);
    for at in 12..24 {
        for _ in 0..2 {
            let other = rng.below(at as u64 - 1) as usize;
            net.join(other, at);
            links += 1;
        }
    }
    (net, links)
}

#[test]
fn a_thousand_joins_reach_every_node_through_partitions_within_five_seconds_of_the_last() {
    let (mut net, links) = mesh();
    assert_eq!(links, 47);
    let steps = chain(1_000, 9_999);
    let began = net.now;
    for (at, step) in steps.iter().enumerate() {
        net.nodes[0].take(net.now, std::slice::from_ref(step)).unwrap();
        let _ = net.run(Duration::from_millis(20), |_| false);
        match at {
            // Half of the nodes are cut off for a while.
            400 => (0..12).for_each(|n| (12..24).for_each(|m| net.cut(n, m))),
            700 => {
                assert!(net.nodes[12..].iter().all(|node| node.register().len() <= 401));
                net.join(11, 12);
                net.join(0, 23);
            }
            _ => {}
        }
    }
    let joins = net.now.since(began);
    let took = net.run(Duration::from_secs(5), |net| net.all_have(1_000));
    let per_join = net.bytes / 1_000 / links as u64;
    eprintln!(
        "1,000 joins in {} s of virtual time; all 24 nodes agree {:?} after the last; at most \
         {per_join} bytes per join and link",
        joins.as_secs(),
        took
    );
    assert!(took.is_ok(), "{took:?}");
    assert!(per_join <= 2_000 && joins < Duration::from_secs(60), "{per_join} {joins:?}");
}

fn message(chain: ChainMark) -> ChainMessage {
    ChainMessage::Have(ChainInventory { ask: false, chains: vec![chain] })
}

#[test]
fn a_neighbour_that_lies_costs_one_transfer_and_is_left_for_minutes() {
    let mut node = Node::new();
    let now = Time::from_millis(1_000);
    let links = [LinkId::from_bits(1), LinkId::from_bits(2)];
    for (at, link) in links.into_iter().enumerate() {
        let far = Address::new(2 + at as u32, 0);
        node.chains.link_up(now, link, far, &node.directory);
    }
    let say = |node: &mut Node, now, link, message| {
        node.chains.handle_message(now, link, message, &node.directory)
    };
    let steps = chain(2, 999);
    let head = steps[1].digest();
    let mark = ChainMark { mandate: mandate().id().0, steps: 2, head, fork: 0 };
    say(&mut node, now, links[0], message(mark)).unwrap();
    let mut forged = steps[1].bytes().to_vec();
    *forged.last_mut().unwrap() ^= 1;
    // Steps that were not requested, belong to another mandate or can't be decoded have no effect.
    let good = || steps.iter().map(|step| step.bytes().to_vec()).collect::<Vec<_>>();
    let unasked = say(&mut node, now, links[1], ChainMessage::Steps(good()));
    assert_eq!(unasked, Err(DropReason::UnknownFlow));
    let junk = say(&mut node, now, links[0], ChainMessage::Steps(vec![vec![1, 2, 3]]));
    assert_eq!(junk, Err(DropReason::Malformed));
    let beyond = chain(3, 999)[2].bytes().to_vec();
    let beyond = say(&mut node, now, links[0], ChainMessage::Steps(vec![beyond]));
    assert_eq!(beyond, Err(DropReason::UnknownFlow));
    let wrong = vec![steps[0].bytes().to_vec(), forged];
    say(&mut node, now, links[0], ChainMessage::Steps(wrong)).unwrap();
    node.check(now);
    assert_eq!((node.bad, node.register().len()), (1, 0), "one wrong signature refuses all");
    // The other neighbour is asked at once, the liar not for five minutes.
    say(&mut node, now, links[1], message(mark)).unwrap();
    let mut asked = Vec::new();
    let mut drain = |node: &mut Node, now| {
        while let Some((link, message)) = node.chains.poll_transmit(now, &node.directory) {
            if matches!(message, ChainMessage::Want { .. }) {
                asked.push(link);
            }
        }
        std::mem::take(&mut asked)
    };
    assert_eq!(drain(&mut node, now), [links[1]]);
    say(&mut node, now, links[1], ChainMessage::Steps(good())).unwrap();
    node.check(now);
    assert_eq!(node.register().len(), 2);
    let more = ChainMark { steps: 5, ..mark };
    say(&mut node, now, links[0], message(more)).unwrap();
    assert_eq!(drain(&mut node, now), []);
    let later = now + Duration::from_secs(301);
    node.chains.handle_timeout(later, &node.directory);
    assert_eq!(drain(&mut node, later), [links[0]]);
    // The liar sends no steps. A claim of a fork that it can't prove costs as little.
    let later = later + Duration::from_secs(6);
    node.chains.handle_timeout(later, &node.directory);
    let fork = ChainMark { steps: 1, head: steps[0].digest(), fork: 2, ..mark };
    say(&mut node, later, links[1], message(fork)).unwrap();
    assert_eq!(drain(&mut node, later), [links[1]]);
    say(&mut node, later, links[1], ChainMessage::Steps(vec![good().remove(1)])).unwrap();
    node.chains.handle_timeout(later + Duration::from_secs(20), &node.directory);
    assert_eq!(node.chains.stats().given_up, 2);
    assert!(node.register().fork().is_none());
}

#[test]
fn who_asks_again_and_again_is_refused() {
    let mut node = Node::new();
    let now = Time::from_millis(1_000);
    node.take(now, &chain(50, 999)).unwrap();
    let link = LinkId::from_bits(1);
    node.chains.link_up(now, link, Address::new(2, 0), &node.directory);
    let want = |first| ChainMessage::Want { mandate: mandate().id().0, first, count: 50 };
    let (mut refused, mut sent) = (0, 0);
    for turn in 0..200 {
        let now = now + Duration::from_millis(10 * turn);
        if node.chains.handle_message(now, link, want(1), &node.directory).is_err() {
            refused += 1;
        }
        while let Some((_, message)) = node.chains.poll_transmit(now, &node.directory) {
            sent += if let ChainMessage::Steps(steps) = message { steps.len() } else { 0 };
        }
    }
    assert!(refused > 100 && sent < 400, "{refused} {sent}");
    // A request for a missing step is no fault: the neighbour gets another `have`.
    node.chains.handle_message(now, link, want(51), &node.directory).unwrap();
    let other = ChainMessage::Want { mandate: [1; 32], first: 1, count: 1 };
    node.chains.handle_message(now, link, other, &node.directory).unwrap();
}

#[test]
fn steps_that_the_mandate_rules_out_count_nowhere() {
    let mut net = Net::row(3, 0.0);
    let steps = chain(4, 999);
    net.nodes[0].take(net.now, &steps).unwrap();
    assert!(net.run(Duration::from_secs(2), |net| net.all_have(4)).is_ok());
    let outside = match entry(1_000, "m") {
        StepEntry::Member(mut member) => {
            member.address = Address::new(2, 1);
            StepEntry::Member(member)
        }
        other => other,
    };
    let bad = sign(5, steps[3].digest(), outside);
    // A node that has it anyway offers it to the others.
    let node = &mut net.nodes[0];
    assert!(matches!(node.take(net.now, std::slice::from_ref(&bad)), Err(StepRejection::Bad(_))));
    let mark = ChainMark { mandate: mandate().id().0, steps: 5, head: bad.digest(), fork: 0 };
    let link = LinkId::from_bits(0);
    let Node { chains, directory, .. } = &mut net.nodes[1];
    chains.handle_message(net.now, link, message(mark), directory).unwrap();
    let offered = ChainMessage::Steps(vec![bad.bytes().to_vec()]);
    let _ = chains.poll_transmit(net.now, directory);
    chains.handle_message(net.now, link, offered, directory).unwrap();
    net.nodes[1].check(net.now);
    assert_eq!(net.nodes[1].bad, 1);
    let _ = net.run(Duration::from_secs(120), |_| false);
    assert!(net.all_have(4));
    let id: MandateId = mandate().id();
    assert!(net.nodes.iter().all(|node| node.directory.register(&id).unwrap().fork().is_none()));
}
