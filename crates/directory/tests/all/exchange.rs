//! Exchange of lists between neighbours under a virtual clock: with loss, with lying neighbours,
//! and with neighbours that stall.

use std::cmp::Reverse;
use std::collections::BinaryHeap;
use std::time::Duration;

use shoal_crypto::{Identity, Rng, SigningKey, hash};
use shoal_directory::{
    CircuitRole, Directory, List, ListContent, ListExchange, ListMark, ListVerdict, Member,
};
use shoal_wire::{Address, DropReason, LIST_LEN_MAX, LinkId, ListInventory, ListMessage, Time};

const ISSUED: u64 = 1_790_000_000;

fn authority() -> SigningKey {
    SigningKey::from_seed([42; 32])
}

/// The address of a neighbour.
fn router(number: u32) -> Address {
    Address::new(1 + number, 0)
}

/// A list of this version with `members` members.
fn list(version: u64, members: u16) -> List {
    let member = |host: u16| Member {
        version: 1,
        name: format!("host-{host}"),
        key: Identity::from_seed([host as u8; 32]).public(),
        address: Address::new(1, host),
        second: None,
        expires_unix_s: u64::MAX,
        endpoint: None,
        groups: vec!["staff".into()],
        security_groups: Vec::new(),
        prefixes: Vec::new(),
        interface: true,
        ipv4: None,
        cover: None,
        carrier: CircuitRole::default(),
        unknown: Vec::new(),
    };
    let members = (0..members).map(|host| member(host).sign(&authority()).unwrap()).collect();
    let content = ListContent { version, issued_unix_s: ISSUED, members, ..ListContent::default() };
    content.sign(&authority()).unwrap()
}

struct Node {
    directory: Directory,
    exchange: ListExchange,
}

impl Node {
    fn new() -> Node {
        let directory = Directory::new(Duration::from_secs(1 << 30));
        Node { directory, exchange: ListExchange::new() }
    }

    fn version(&self) -> u64 {
        self.directory.list().map_or(0, |list| list.content().version)
    }

    /// Handles a list from a file or a neighbour as a node does.
    fn take(&mut self, now: Time, list: List) -> ListVerdict {
        let bytes = list.shared();
        match self.directory.accept(now, ISSUED, list) {
            Ok(_) => {
                let mark = self.directory.mark().unwrap();
                self.exchange.set_list(now, mark, bytes);
                ListVerdict::Taken
            }
            Err(_) => ListVerdict::Refused,
        }
    }

    fn check(&mut self, now: Time) {
        let Some(arrived) = self.exchange.poll_arrived() else { return };
        let outcome = match List::open(&authority().public(), &arrived.bytes) {
            Ok(list) => self.take(now, list),
            Err(_) => ListVerdict::Forged,
        };
        self.exchange.settled(now, outcome);
    }
}

/// A packet in flight, by arrival: time, sequence number, sender, receiver, bytes.
type Flying = (Time, u64, usize, usize, Vec<u8>);

/// Nodes in a row; a link's number at a node is the index of the far end.
struct Row {
    nodes: Vec<Node>,
    now: Time,
    flying: BinaryHeap<Reverse<Flying>>,
    sent: u64,
    rng: Rng,
    loss: f64,
    delay: Duration,
}

impl Row {
    fn new(count: usize, loss: f64, delay_ms: u64) -> Row {
        let mut row = Row {
            nodes: (0..count).map(|_| Node::new()).collect(),
            now: Time::from_millis(1_000),
            flying: BinaryHeap::new(),
            sent: 0,
            rng: Rng::new([9; 32]),
            loss,
            delay: Duration::from_millis(delay_ms),
        };
        for at in 1..count {
            row.join(at - 1, at);
        }
        row
    }

    fn join(&mut self, a: usize, b: usize) {
        self.nodes[a].exchange.link_up(self.now, LinkId::from_bits(b as u32), router(b as u32));
        self.nodes[b].exchange.link_up(self.now, LinkId::from_bits(a as u32), router(a as u32));
    }

    fn publish(&mut self, at: usize, list: List) {
        assert_eq!(self.nodes[at].take(self.now, list), ListVerdict::Taken);
    }

    /// Sends all due messages. Asserts that this ends and that no timer stays due.
    fn drain(&mut self) {
        for from in 0..self.nodes.len() {
            let mut left = 100_000;
            while let Some((to, message)) = self.nodes[from].exchange.poll_transmit(self.now) {
                left -= 1;
                assert!(left > 0, "draining ends");
                self.sent += 1;
                if self.rng.below(1_000_000) as f64 >= self.loss * 1e6 {
                    let mut bytes = vec![message.kind()];
                    message.encode(&mut bytes);
                    let at = self.now + self.delay;
                    self.flying.push(Reverse((at, self.sent, from, to.bits() as usize, bytes)));
                }
            }
            self.nodes[from].exchange.handle_timeout(self.now);
            self.nodes[from].check(self.now);
        }
    }

    /// Runs until `done` or the limit. Returns the time taken.
    fn run(&mut self, limit: Duration, done: impl Fn(&Row) -> bool) -> Result<Duration, Duration> {
        let began = self.now;
        loop {
            self.drain();
            if done(self) {
                return Ok(self.now.since(began));
            }
            if self.now.since(began) > limit {
                return Err(limit);
            }
            let timers = self.nodes.iter().filter_map(|node| node.exchange.poll_timeout());
            let timer = timers.map(|(at, _)| at).min().unwrap_or(Time::FAR);
            let arrival = self.flying.peek().map_or(Time::FAR, |next| next.0.0);
            // Nothing is left to happen, so time passes to the limit.
            let next = timer.min(arrival).min(began + limit + Duration::from_millis(1));
            self.now = self.now.max(next);
            while self.flying.peek().is_some_and(|next| next.0.0 <= self.now) {
                let Some(Reverse((_, _, from, to, bytes))) = self.flying.pop() else { break };
                let message = ListMessage::parse(bytes[0], &bytes[1..]).unwrap();
                let node = &mut self.nodes[to].exchange;
                let _ = node.handle_message(self.now, LinkId::from_bits(from as u32), message);
            }
        }
    }

    fn all_have(&self, version: u64) -> bool {
        self.nodes.iter().all(|node| node.version() == version)
    }
}

#[test]
fn one_copy_reaches_every_node_of_a_long_row_within_seconds_at_any_loss() {
    for (loss, delay_ms, members, limit_s) in
        [(0.0, 5, 2, 1), (0.0, 20, 60, 2), (0.1, 20, 60, 5), (0.3, 5, 60, 15)]
    {
        let mut row = Row::new(6, loss, delay_ms);
        row.publish(0, list(1, members));
        let limit = Duration::from_secs(limit_s);
        let first = row.run(limit, |row| row.all_have(1));
        assert!(first.is_ok(), "{loss} {delay_ms} ms");
        // The list spreads from the middle in both directions.
        row.publish(3, list(2, members));
        let second = row.run(limit, |row| row.all_have(2));
        assert!(second.is_ok(), "{loss} {delay_ms} ms");
        let quiet = row.run(Duration::from_secs(300), |_| false);
        assert!(quiet.is_err());
        let before = row.sent;
        assert!(row.run(Duration::from_secs(3_600), |_| false).is_err());
        assert_eq!(row.sent, before, "no message is sent once every node has the list");
    }
}

#[test]
fn a_megabyte_crosses_four_links_within_five_seconds() {
    let mut row = Row::new(5, 0.0, 10);
    let big = list(3, 5).content().clone();
    let mut content = ListContent { version: 3, members: Vec::new(), ..big };
    let revoked = (0..12_000u32).map(|n| shoal_directory::RevokedKey {
        digest: hash(&n.to_be_bytes()),
        name: "a-name-of-some-length-that-is-not-used-any-more-00000000".into(),
    });
    content.revoked = revoked.collect();
    let list = content.sign(&authority()).unwrap();
    assert!(list.bytes().len() > 1 << 20);
    row.publish(0, list);
    let took = row.run(Duration::from_secs(5), |row| row.all_have(3));
    assert!(took.is_ok(), "{took:?}");
}

#[test]
fn a_newcomer_and_a_link_that_was_down_hear_of_it_at_once() {
    let mut row = Row::new(3, 0.0, 5);
    row.publish(0, list(1, 2));
    assert!(row.run(Duration::from_secs(1), |row| row.all_have(1)).is_ok());
    row.nodes[1].exchange.link_down(row.now, LinkId::from_bits(2));
    row.nodes[2].exchange.link_down(row.now, LinkId::from_bits(1));
    row.publish(0, list(2, 2));
    assert!(row.run(Duration::from_secs(60), |row| row.all_have(2)).is_err());
    assert_eq!(row.nodes[2].version(), 1);
    row.join(1, 2);
    assert!(row.run(Duration::from_secs(1), |row| row.all_have(2)).is_ok());
}

/// Answers the requests to a lying neighbour with parts filled with `fill`. Returns the number of
/// requests.
fn answer(
    exchange: &mut ListExchange,
    now: Time,
    link: LinkId,
    of: u64,
    fill: u8,
    part: usize,
) -> u32 {
    let mut asked = 0;
    let sent: Vec<_> = core::iter::from_fn(|| exchange.poll_transmit(now)).collect();
    for (to, message) in sent {
        let ListMessage::Want { version, first, bits } = message else { continue };
        assert_eq!((to, version), (link, of));
        asked += 1;
        for place in (0..64).filter(|place| bits & (1 << place) != 0) {
            let number = first + place;
            let bytes = vec![fill; part];
            let message = ListMessage::Part { version, number, bytes };
            let _ = exchange.handle_message(now, link, message);
        }
    }
    asked
}

fn have(version: u64, len: u32) -> ListMessage {
    ListMessage::Have(ListInventory { ask: false, version, digest: [version as u8; 32], len })
}

#[test]
fn a_forged_list_costs_one_transfer_and_an_honest_neighbour_goes_first_after_it() {
    let (liar, honest, now) = (LinkId::from_bits(1), LinkId::from_bits(2), Time::from_millis(5));
    let mut node = Node::new();
    node.take(now, list(5, 2));
    for link in [liar, honest] {
        node.exchange.link_up(now, link, router(link.bits()));
    }
    node.exchange.handle_message(now, liar, have(u64::MAX, 3_000)).unwrap();
    for (part, wrong) in [(1_400, true), (200, false)] {
        // The last part is shorter.
        answer(
            &mut node.exchange,
            now + Duration::from_secs(u64::from(!wrong)),
            liar,
            u64::MAX,
            7,
            part,
        );
    }
    let now = now + Duration::from_secs(2);
    node.check(now);
    assert_eq!(node.exchange.stats().refused, 1);
    assert_eq!(node.version(), 5);
    // The liar repeats its claim: it is not asked for minutes, and only after honest neighbours.
    node.exchange.handle_message(now, liar, have(u64::MAX, 3_000)).unwrap();
    assert_eq!(answer(&mut node.exchange, now, liar, u64::MAX, 7, 1_400), 0);
    let next = list(6, 2);
    node.exchange.handle_message(now, honest, have(6, next.bytes().len() as u32)).unwrap();
    let later = now + Duration::from_secs(400);
    for number in 0..next.bytes().chunks(1_400).len() as u32 {
        let bytes = next.bytes()[number as usize * 1_400..].iter().take(1_400).copied().collect();
        let message = ListMessage::Part { version: 6, number, bytes };
        node.exchange.handle_message(now, honest, message).unwrap();
    }
    node.check(later);
    assert_eq!(node.version(), 6);
}

/// A forging neighbour takes its link down and up, also under another number.
#[test]
fn a_link_that_comes_and_goes_earns_no_other_trial() {
    let (liar, now) = (router(1), Time::from_millis(5));
    let mut node = Node::new();
    let mut links = (1..).map(LinkId::from_bits);
    let mut trials = [0, 0];
    // The link goes down when the list has arrived, or while it is being checked.
    for (way, while_checked) in [false, true].into_iter().enumerate() {
        for second in 0..250 {
            let now = now + Duration::from_secs(400 * way as u64 + second);
            let link = links.next().unwrap();
            node.exchange.link_up(now, link, liar);
            node.exchange.handle_message(now, link, have(u64::MAX, 200)).unwrap();
            trials[way] += answer(&mut node.exchange, now, link, u64::MAX, 7, 200);
            if !while_checked {
                node.check(now);
            }
            let arrived = node.exchange.poll_arrived();
            node.exchange.link_down(now, link);
            if arrived.is_some() {
                node.exchange.settled(now, ListVerdict::Forged);
            }
        }
    }
    assert_eq!(trials, [1, 1], "transfers of forged lists in 250 s");
}

/// A neighbour begins a transfer and takes the link down in its midst.
#[test]
fn a_transfer_that_ends_with_its_link_has_failed() {
    let (flaky, honest, now) = (LinkId::from_bits(1), LinkId::from_bits(2), Time::from_millis(5));
    let mut node = Node::new();
    let mut asked = 0;
    for ms in 0..60_000 {
        let now = now + Duration::from_millis(ms);
        if ms % 50 == 0 {
            node.exchange.link_down(now, flaky);
            node.exchange.link_up(now, flaky, router(1));
            node.exchange.handle_message(now, flaky, have(u64::MAX, 3_000)).unwrap();
        }
        node.exchange.handle_timeout(now);
        let sent: Vec<_> = core::iter::from_fn(|| node.exchange.poll_transmit(now)).collect();
        asked += sent.iter().filter(|(_, m)| matches!(m, ListMessage::Want { .. })).count();
    }
    assert!(asked <= 8, "asked {asked} times in a minute");
    // A neighbour without failures is asked first.
    let later = now + Duration::from_secs(100);
    node.exchange.link_up(later, honest, router(2));
    node.exchange.handle_message(later, honest, have(6, 3_000)).unwrap();
    node.exchange.link_down(later, flaky);
    assert_eq!(answer(&mut node.exchange, later, honest, 6, 7, 1_400), 1);
}

#[test]
fn what_was_not_asked_for_is_refused_by_name() {
    let (link, now) = (LinkId::from_bits(1), Time::from_millis(5));
    let mut node = Node::new();
    node.exchange.link_up(now, link, router(link.bits()));
    let part = |number, len| ListMessage::Part { version: 9, number, bytes: vec![0; len] };
    let give = |node: &mut Node, message| node.exchange.handle_message(now, link, message);
    assert_eq!(give(&mut node, part(0, 9)), Err(DropReason::UnknownFlow));
    node.take(now, list(5, 2));
    let want = |first, bits| ListMessage::Want { version: 5, first, bits };
    assert_eq!(give(&mut node, want(9, 1)), Err(DropReason::Malformed));
    assert_eq!(give(&mut node, want(0, 1 << 9)), Err(DropReason::Malformed));
    assert_eq!(give(&mut node, want(0, u64::MAX)), Ok(()));
    // Neither an older list nor another one of the same version is requested.
    for version in [4, 5] {
        give(&mut node, have(version, 900)).unwrap();
        let sent = core::iter::from_fn(|| node.exchange.poll_transmit(now));
        assert!(sent.into_iter().all(|(_, m)| !matches!(m, ListMessage::Want { .. })));
    }
    assert_eq!(node.exchange.stats().twins, 1);
    give(&mut node, have(9, 3_000)).unwrap();
    assert_eq!(give(&mut node, part(0, 1_399)), Err(DropReason::Malformed));
    assert_eq!(give(&mut node, part(3, 1_400)), Err(DropReason::UnknownFlow));
    assert_eq!(give(&mut node, part(2, 1_400)), Err(DropReason::Malformed));
    assert_eq!(give(&mut node, part(2, 200)), Ok(()));
    assert_eq!(give(&mut node, part(2, 200)), Err(DropReason::UnknownFlow));
    let other = ListMessage::Part { version: 8, number: 0, bytes: vec![0; 1_400] };
    assert_eq!(give(&mut node, other), Err(DropReason::UnknownFlow));
}

#[test]
fn a_neighbour_that_holds_back_gives_way_to_another_within_seconds() {
    let (slow, honest) = (LinkId::from_bits(7), LinkId::from_bits(0));
    let mut row = Row::new(2, 0.0, 5);
    row.publish(0, list(1, 2));
    assert!(row.run(Duration::from_secs(1), |row| row.all_have(1)).is_ok());
    let node = &mut row.nodes[1].exchange;
    node.link_up(row.now, slow, router(slow.bits()));
    // The largest possible list, with a part now and then.
    node.handle_message(row.now, slow, have(u64::MAX, LIST_LEN_MAX as u32)).unwrap();
    row.publish(0, list(2, 30));
    let began = row.now;
    for number in 0.. {
        let part = ListMessage::Part { version: u64::MAX, number, bytes: vec![1; 1_400] };
        let _ = row.nodes[1].exchange.handle_message(row.now, slow, part);
        // Messages to the slow neighbour are lost.
        let now = row.now;
        let until = Duration::from_millis(100);
        if run_but(&mut row, slow, until) {
            break;
        }
        assert!(row.now > now && row.now.since(began) < Duration::from_secs(4), "held back");
    }
    assert!(row.nodes[1].exchange.stats().given_up >= 1);
    assert_eq!(honest, LinkId::from_bits(0));
}

/// Runs two nodes for a while; messages of node 1 to `lost` are lost. Returns true if both have the
/// second list.
fn run_but(row: &mut Row, lost: LinkId, time: Duration) -> bool {
    let until = row.now + time;
    while row.now < until {
        for from in 0..2 {
            while let Some((to, message)) = row.nodes[from].exchange.poll_transmit(row.now) {
                if to != lost {
                    let link = LinkId::from_bits(from as u32);
                    let far = &mut row.nodes[to.bits() as usize].exchange;
                    let _ = far.handle_message(row.now, link, message);
                }
            }
            row.nodes[from].exchange.handle_timeout(row.now);
            row.nodes[from].check(row.now);
        }
        row.now = row.now + Duration::from_millis(1);
    }
    row.all_have(2)
}

#[test]
fn neighbours_that_ask_for_everything_at_once_get_it_at_a_pace() {
    let now = Time::from_millis(1);
    let mut exchange = ListExchange::new();
    let bytes: Vec<u8> = vec![3; 1 << 20];
    let links: Vec<LinkId> = (0..50).map(LinkId::from_bits).collect();
    for &link in &links {
        exchange.link_up(now, link, router(link.bits()));
    }
    exchange.set_list(now, ListMark { version: 2, digest: [2; 32] }, bytes.into());
    let want = ListMessage::Want { version: 2, first: 0, bits: u64::MAX };
    let mut parts = vec![0u32; links.len()];
    for ms in 1..=1_000 {
        let now = Time::from_millis(ms);
        for &link in &links {
            exchange.handle_message(now, link, want.clone()).unwrap();
        }
        exchange.handle_timeout(now);
        while let Some((link, message)) = exchange.poll_transmit(now) {
            parts[link.bits() as usize] += u32::from(matches!(message, ListMessage::Part { .. }));
        }
    }
    let sum: u32 = parts.iter().sum();
    assert!((20_000..=25_100).contains(&sum), "{sum}");
    assert!(parts.iter().all(|n| (200..=2_010).contains(n)), "not fair: {parts:?}");
}

#[test]
fn one_neighbour_gets_few_copies_however_often_it_asks() {
    let mut exchange = ListExchange::new();
    let (link, len) = (LinkId::from_bits(1), 64 * 1_024);
    exchange.link_up(Time::from_millis(1), link, router(link.bits()));
    let bytes: Vec<u8> = vec![3; len];
    exchange.set_list(Time::from_millis(1), ListMark { version: 2, digest: [2; 32] }, bytes.into());
    let want = ListMessage::Want { version: 2, first: 0, bits: u64::MAX };
    let (mut sent, mut refused, mut count) = (0, 0, 0);
    for ms in 1..=60_000 {
        let now = Time::from_millis(ms);
        if ms % 40 == 0 {
            // A new link gains nothing.
            exchange.link_down(now, link);
            exchange.link_up(now, link, router(link.bits()));
            let said = exchange.handle_message(now, link, want.clone());
            refused += u32::from(said == Err(DropReason::ListBudget));
            count += 1;
        }
        exchange.handle_timeout(now);
        while let Some((_, message)) = exchange.poll_transmit(now) {
            sent += if let ListMessage::Part { bytes, .. } = message { bytes.len() } else { 0 };
        }
    }
    println!("{count} times asked in a minute: {sent} bytes of a list of {len}, {refused} refused");
    assert!(sent <= 8 * len, "{} copies", sent / len);
    assert!(refused > 0);
}
