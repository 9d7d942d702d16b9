//! Newcomers and a registrar under a virtual clock; the network loses, repeats and reorders.

use std::cell::RefCell;
use std::net::SocketAddr;
use std::rc::Rc;
use std::time::Duration;

use shoal_crypto::{Identity, Rng, Secret, SigningKey};
use shoal_directory::{Carrier, Content, List, Mandate, Member, Revoked};
use shoal_joining::{
    Contact, Desk, DeskConfig, Disk, DoorSecret, Event, Fault, Goal, Invite, Joined, Ledger,
    Newcomer, Output, OwnerError, Refusal, Terms, Wish,
};
use shoal_wire::{Address, DropReason, Time};

const START: u64 = 1_790_000_000;
const DAY_S: u64 = 86_400;

fn authority() -> SigningKey {
    SigningKey::from_seed([42; 32])
}

fn registrar() -> Identity {
    Identity::from_seed([7; 32])
}

fn door() -> SocketAddr {
    "192.0.2.1:7500".parse().unwrap()
}

fn mandate() -> Mandate {
    Mandate {
        name: "desk".into(),
        serial: 1,
        key: registrar().public(),
        groups: vec!["guests".into(), "staff".into()],
        hosts: vec!["1.100-1.199".parse().unwrap()],
        ipv4: Some("10.9.0.0/24".parse().unwrap()),
        most: 60,
        longest_s: 90 * DAY_S as u32,
        until_unix_s: START + 200 * DAY_S,
    }
}

fn router() -> Member {
    Member {
        version: 1,
        name: "r1".into(),
        key: Identity::from_seed([1; 32]).public(),
        address: Address::new(1, 0),
        expires_unix_s: START + 300 * DAY_S,
        endpoint: Some("192.0.2.1:7400".parse().unwrap()),
        groups: vec!["staff".into()],
        security_groups: Vec::new(),
        prefixes: Vec::new(),
        interface: true,
        ipv4: None,
        cover: None,
        carrier: Carrier::default(),
        unknown: Vec::new(),
    }
}

fn list(version: u64, change: impl FnOnce(&mut Content)) -> List {
    let mut content = Content {
        version,
        issued_unix_s: START,
        mandates: vec![mandate()],
        members: vec![router().sign(&authority()).unwrap()],
        ..Content::default()
    };
    change(&mut content);
    content.sign(&authority()).unwrap()
}

/// A file that outlasts the desk that writes it.
#[derive(Clone, Default)]
struct File(Rc<RefCell<(Vec<u8>, bool)>>);

impl File {
    fn set_full(&self, full: bool) {
        self.0.borrow_mut().1 = full;
    }

    fn bytes(&self) -> Vec<u8> {
        self.0.borrow().0.clone()
    }
}

impl Disk for File {
    fn append(&mut self, bytes: &[u8]) -> std::io::Result<()> {
        let mut file = self.0.borrow_mut();
        if file.1 {
            return Err(std::io::ErrorKind::StorageFull.into());
        }
        file.0.extend_from_slice(bytes);
        Ok(())
    }
}

fn open(file: &File, now: Time) -> Desk<File> {
    let config = DeskConfig {
        identity: registrar(),
        door: DoorSecret::new([1; 16]),
        authority: authority().public(),
        network_secret: Secret::new([5; 32]),
        endpoints: vec![door()],
        membership: Duration::from_secs(90 * DAY_S),
        staleness_max: Duration::from_secs(7 * DAY_S),
    };
    let ledger = Ledger::read(&file.bytes()).unwrap();
    let seed = [file.bytes().len() as u8; 32];
    Desk::open(config, list(1, |_| {}), ledger, file.clone(), seed, (now, unix_s(now))).unwrap()
}

fn unix_s(now: Time) -> u64 {
    START + now.since(Time::ZERO).as_secs()
}

fn terms(uses: u32) -> Terms {
    let expires_unix_s = START + DAY_S;
    Terms { uses, expires_unix_s, name: None, groups: Vec::new(), approve: false }
}

fn at(n: u8) -> SocketAddr {
    format!("198.51.100.{n}:4000").parse().unwrap()
}

/// One registrar, machines that ask it, and what is on its way between them.
struct World {
    now: Time,
    file: File,
    desk: Desk<File>,
    machines: Vec<Newcomer>,
    ends: Vec<Option<Event>>,
    words: Vec<Option<String>>,
    /// Arrival, from, to, bytes.
    wire: Vec<(Time, SocketAddr, SocketAddr, Vec<u8>)>,
    rng: Rng,
    /// Of 256: lost, and sent twice.
    loss: u64,
    twice: u64,
    published: usize,
    /// The registrar dies and is started again before each of these numbers of its datagrams.
    crashes: Vec<usize>,
    heard: usize,
}

impl World {
    fn new(seed: u8) -> World {
        let (file, now) = (File::default(), Time::from_millis(1_000));
        World {
            now,
            desk: open(&file, now),
            file,
            machines: Vec::new(),
            ends: Vec::new(),
            words: Vec::new(),
            wire: Vec::new(),
            rng: Rng::new([seed; 32]),
            loss: 0,
            twice: 0,
            published: 0,
            crashes: Vec::new(),
            heard: 0,
        }
    }

    fn invite(&mut self, terms: Terms) -> Contact {
        let (text, _) = self.desk.invite(terms, unix_s(self.now)).unwrap();
        Contact::new(text.parse::<Invite>().unwrap(), Duration::from_secs(7 * DAY_S))
    }

    fn ask(&mut self, seed: u8, contact: &Contact, goal: Goal) -> usize {
        let own = Identity::from_seed([seed; 32]);
        let n = self.machines.len();
        let machine =
            Newcomer::new(own, contact.clone(), goal, [100_u8.wrapping_add(n as u8); 32], self.now);
        self.machines.push(machine);
        self.ends.push(None);
        self.words.push(None);
        n
    }

    fn join(&mut self, seed: u8, contact: &Contact) -> usize {
        self.ask(seed, contact, Goal::Join(Wish::default()))
    }

    fn send(&mut self, from: SocketAddr, to: SocketAddr, bytes: Vec<u8>) {
        let copies = 1 + usize::from(self.rng.below(256) < self.twice);
        for _ in 0..copies {
            if self.rng.below(256) >= self.loss {
                let delay = Duration::from_millis(5 + self.rng.below(20));
                self.wire.push((self.now + delay, from, to, bytes.clone()));
            }
        }
    }

    fn drain(&mut self) {
        while let Some(output) = self.desk.poll_output() {
            match output {
                Output::Send(to, bytes) => self.send(door(), to, bytes),
                Output::Publish(_) => self.published += 1,
            }
        }
        for n in 0..self.machines.len() {
            while let Some((to, bytes)) = self.machines[n].poll_transmit() {
                self.send(at(n as u8), to, bytes);
            }
            while let Some(event) = self.machines[n].poll_event() {
                match event {
                    Event::Waiting(words) => self.words[n] = Some(words.to_string()),
                    Event::Fetched(have, of) => assert!(have <= of),
                    end => self.ends[n] = Some(end),
                }
            }
        }
    }

    /// Runs for so long, or until every machine is done.
    fn run(&mut self, ms: u64) {
        let until = self.now + Duration::from_millis(ms);
        loop {
            self.drain();
            let timers = self.machines.iter().filter_map(Newcomer::poll_timeout);
            let arrivals = self.wire.iter().map(|(at, ..)| *at);
            let next = timers.chain(arrivals).min();
            let Some(next) = next.filter(|next| *next <= until) else { break };
            self.now = next.max(self.now);
            let (now, unix) = (self.now, unix_s(self.now));
            let mut due: Vec<_> = self.wire.extract_if(.., |(at, ..)| *at <= now).collect();
            due.sort_by_key(|(at, ..)| *at);
            for (_, from, to, mut bytes) in due {
                if to == door() {
                    self.heard += 1;
                    if self.crashes.contains(&self.heard) {
                        self.desk = open(&self.file, now);
                    }
                    let _ = self.desk.handle_datagram((now, unix), from, &mut bytes);
                } else if let Some(n) = (0..self.machines.len()).find(|n| at(*n as u8) == to) {
                    self.machines[n].handle_datagram(now, unix, from, &bytes);
                }
                self.drain();
            }
            self.machines.iter_mut().for_each(|machine| machine.handle_timeout(now, unix));
        }
        self.now = until;
    }

    #[track_caller]
    fn joined(&self, n: usize) -> &Joined {
        match &self.ends[n] {
            Some(Event::Joined(joined)) => joined,
            other => panic!("{other:?}, drops {:?}", self.desk.drops()),
        }
    }

    #[track_caller]
    fn refused(&self, n: usize) -> Refusal {
        match &self.ends[n] {
            Some(Event::Refused(why)) => *why,
            other => panic!("{other:?}, drops {:?}", self.desk.drops()),
        }
    }

    fn members(&self) -> usize {
        self.desk.register().unwrap().members().count()
    }
}

#[test]
fn a_machine_joins_by_an_invite_and_verifies_what_it_gets() {
    let mut world = World::new(1);
    let contact = world.invite(Terms { groups: vec!["staff".into()], ..terms(1) });
    let wish = Wish { name: Some("bob".into()), or_another: false };
    let n = world.ask(9, &contact, Goal::Join(wish));
    world.run(1_000);
    let joined = world.joined(n);
    assert_eq!(
        (joined.member.name.as_str(), joined.member.groups.join(" ")),
        ("bob", "staff".into())
    );
    assert_eq!(joined.member.address, Address::new(1, 100));
    assert_eq!(joined.member.ipv4, Some([10, 9, 0, 1].into()));
    assert_eq!(joined.member.expires_unix_s, START + 1 + 90 * DAY_S);
    assert_eq!((joined.secret.expose(), joined.ipv4_bits), (&[5; 32], Some(24)));
    assert_eq!(joined.router, router().endpoint);
    assert_eq!((joined.chain.len(), world.published, world.desk.stats().joined), (1, 1, 1));
}

#[test]
fn a_token_is_spent_by_another_key_and_repeated_by_its_own() {
    let mut world = World::new(2);
    let contact = world.invite(terms(1));
    let first = world.join(9, &contact);
    world.run(500);
    let (again, thief) = (world.join(9, &contact), world.join(10, &contact));
    world.run(500);
    assert_eq!(world.joined(again).member, world.joined(first).member);
    assert_eq!(world.refused(thief), Refusal::Spent);
    assert_eq!((world.members(), world.published), (1, 1));
}

#[test]
fn a_token_that_ended_hears_why() {
    let mut world = World::new(3);
    let early = world.invite(Terms { expires_unix_s: START + 30, ..terms(1) });
    let (text, token) = world.desk.invite(terms(1), START).unwrap();
    let withdrawn: Contact =
        Contact::new(text.parse::<Invite>().unwrap(), Duration::from_secs(7 * DAY_S));
    world.desk.withdraw(&token).unwrap();
    world.run(40_000);
    let (n, m) = (world.join(9, &early), world.join(10, &withdrawn));
    world.run(500);
    assert_eq!((world.refused(n), world.refused(m)), (Refusal::Expired, Refusal::Withdrawn));
    assert_eq!(world.members(), 0);
}

#[test]
fn strangers_get_no_byte() {
    let mut world = World::new(4);
    let contact = world.invite(terms(1));
    let foreign = Contact { door: DoorSecret::new([9; 16]), ..contact.clone() };
    let unknown = Contact { token: None, ..contact.clone() };
    let other = Contact { registrar: Identity::from_seed([8; 32]).public(), ..contact };
    let all = [world.join(9, &foreign), world.join(10, &unknown), world.join(11, &other)];
    for len in [0, 1, 16, 192, 1_200, 1_400, 1_401] {
        let mut noise = vec![7; len];
        let dropped = world.desk.handle_datagram((world.now, START), at(77), &mut noise);
        assert!(dropped.is_err() && world.desk.poll_output().is_none());
    }
    world.run(60_000);
    assert_eq!(world.desk.stats().welcomed, 0);
    for n in all {
        let end = &world.ends[n];
        assert!(matches!(end, Some(Event::Failed(Fault::Silent { welcomed: false }))), "{end:?}");
    }
    let count = |reason| world.desk.drops().get(&reason).copied().unwrap_or_default();
    assert!(count(DropReason::BadHandshake) > 20);
    // The same knock, again and again.
    let (unknown, copies) = (DropReason::UnknownPeer, DropReason::ReplayedHandshake);
    assert!(count(unknown) == 4 && count(copies) > 6, "{:?}", world.desk.drops());
}

/// Somebody who saw one knock sends copies from many addresses: he gets few welcomes, takes few
/// places, and newcomers still get in.
#[test]
fn copies_of_a_knock_draw_few_answers_and_shut_nobody_out() {
    let mut world = World::new(6);
    let contact = world.invite(terms(9));
    let n = world.join(1, &contact);
    world.machines[n].handle_timeout(world.now, START);
    let (_, knock) = world.machines[n].poll_transmit().unwrap();
    let mut welcomes = 0;
    for copy in 0..20_000_u32 {
        let [_, _, high, low] = copy.to_be_bytes();
        let from = SocketAddr::from(([203, 0, 113, high], 10_000 + u16::from(low)));
        world.now = world.now + Duration::from_millis(1);
        let unix = unix_s(world.now);
        let _ = world.desk.handle_datagram((world.now, unix), from, &mut knock.clone());
        while world.desk.poll_output().is_some() {
            welcomes += 1;
        }
    }
    let replayed = world.desk.drops()[&DropReason::ReplayedHandshake];
    assert_eq!((welcomes, replayed), (4, 19_996), "{:?}", world.desk.drops());
    // The same machine makes another knock, and so does another machine.
    let all = [world.join(1, &contact), world.join(2, &contact)];
    world.run(10_000);
    for n in all {
        world.joined(n);
    }
}

#[test]
fn a_flood_of_knocks_meets_a_budget() {
    let mut world = World::new(5);
    let contact = world.invite(terms(9));
    for n in 0..250 {
        world.join(n, &contact);
    }
    let mut knocks: Vec<Vec<u8>> = Vec::new();
    for machine in &mut world.machines {
        machine.handle_timeout(world.now, START);
        knocks.extend(machine.poll_transmit().map(|(_, bytes)| bytes));
    }
    for knock in &mut knocks {
        let _ = world.desk.handle_datagram((world.now, START), at(1), knock);
    }
    let drops = world.desk.drops();
    assert_eq!((drops.get(&DropReason::HandshakeBudget), drops.len()), (Some(&50), 1));
}

/// Somebody waits under many keys with one invite: others still find a place, and so does the next
/// with that invite once he is gone.
#[test]
fn one_invite_does_not_take_all_places_of_those_who_wait() {
    let mut world = World::new(7);
    let leaked = world.invite(Terms { approve: true, ..terms(9) });
    let other = world.invite(Terms { approve: true, ..terms(9) });
    let many: Vec<usize> = (20..60).map(|seed| world.join(seed, &leaked)).collect();
    world.run(3_000);
    assert_eq!(world.desk.waiting().count(), 32);
    let full = |n: &&usize| matches!(world.ends[**n], Some(Event::Refused(Refusal::Full)));
    assert_eq!(many.iter().filter(full).count(), 8);
    let n = world.join(9, &other);
    world.run(3_000);
    assert!(world.words[n].is_some(), "there is a place for another invite");
    // Nothing of them arrives any more.
    world.loss = 256;
    world.run(70_000);
    world.loss = 0;
    let n = world.join(10, &leaked);
    world.run(3_000);
    assert!(world.words[n].is_some(), "those who are away give way");
    assert_eq!(world.desk.waiting().count(), 33);
}

#[test]
fn somebody_approves_or_does_not() {
    let mut world = World::new(6);
    let contact = world.invite(Terms { approve: true, ..terms(2) });
    let (n, m) = (world.join(9, &contact), world.join(10, &contact));
    world.run(3_000);
    let waiting: Vec<_> = world.desk.waiting().cloned().collect();
    assert_eq!(waiting.len(), 2);
    let key = |seed| Identity::from_seed([seed; 32]).public();
    for (seed, n) in [(9, n), (10, m)] {
        let theirs = waiting.iter().find(|waiting| waiting.key == key(seed)).unwrap();
        assert_eq!(world.words[n], Some(theirs.words.to_string()), "both ends see one text");
    }
    assert_eq!(world.members(), 0);
    world.desk.approve(&key(9), true).unwrap();
    world.desk.approve(&key(10), false).unwrap();
    assert!(matches!(world.desk.approve(&key(10), true), Err(OwnerError::NotWaiting)));
    world.run(5_000);
    assert_eq!((world.joined(n).member.key, world.refused(m)), (key(9), Refusal::NotApproved));
    // The no outlasts the registrar.
    world.desk = open(&world.file, world.now);
    let again = world.join(10, &contact);
    world.run(5_000);
    assert_eq!(world.refused(again), Refusal::NotApproved);
}

#[test]
fn a_registrar_may_die_at_any_point() {
    for crash in 1..14 {
        for seed in 0..4 {
            let mut world = World::new(seed);
            let contact = world.invite(terms(1));
            (world.loss, world.twice) = (40, 40);
            world.crashes = vec![crash, crash + 1, crash + 7];
            let (n, thief) = (world.join(9, &contact), world.join(10, &contact));
            world.run(90_000);
            let won: Vec<_> = [n, thief]
                .into_iter()
                .filter(|n| matches!(world.ends[*n], Some(Event::Joined(_))))
                .collect();
            let ends = &world.ends;
            assert_eq!(won.len(), 1, "one use; crash {crash}, seed {seed}, {ends:?}");
            let lost = if won[0] == n { thief } else { n };
            assert_eq!(world.refused(lost), Refusal::Spent);
            assert_eq!((world.members(), world.desk.register().unwrap().len()), (1, 1));
        }
    }
}

#[test]
fn a_full_disk_grants_nothing_and_costs_nothing() {
    let mut world = World::new(8);
    let contact = world.invite(terms(1));
    world.file.set_full(true);
    assert!(matches!(world.desk.invite(terms(1), START), Err(OwnerError::Disk(_))));
    let n = world.join(9, &contact);
    world.run(1_000);
    assert_eq!((world.refused(n), world.members()), (Refusal::Registrar, 0));
    world.file.set_full(false);
    let n = world.join(9, &contact);
    world.run(1_000);
    assert_eq!(world.joined(n).member.address, Address::new(1, 100));
    world.desk = open(&world.file, world.now);
    assert_eq!(world.members(), 1);
}

#[test]
fn names_are_given_once() {
    let mut world = World::new(9);
    let contact = world.invite(terms(9));
    let wish = |or_another| Goal::Join(Wish { name: Some("r1".into()), or_another });
    let (n, m) = (world.ask(9, &contact, wish(false)), world.ask(10, &contact, wish(true)));
    let named = world.invite(Terms { name: Some("guest".into()), ..terms(1) });
    let k = world.ask(11, &named, wish(false));
    world.run(1_000);
    assert_eq!(world.refused(n), Refusal::NameTaken);
    assert_eq!(world.joined(m).member.name, "r1-2");
    assert_eq!(world.joined(k).member.name, "guest", "the invite's name counts");
    let bad = Terms { groups: vec!["admins".into()], ..terms(1) };
    assert!(matches!(world.desk.invite(bad, START), Err(OwnerError::Group { .. })));
}

#[test]
fn members_renew_and_leave_without_a_token() {
    let mut world = World::new(10);
    let contact = world.invite(terms(1));
    let n = world.join(9, &contact);
    world.run(1_000);
    let first = world.joined(n).member.expires_unix_s;
    let own = Contact { token: None, ..contact };
    let early = world.ask(9, &own, Goal::Renew);
    world.run(1_000);
    assert_eq!((world.joined(early).member.expires_unix_s, world.published), (first, 1));
    world.now = world.now + Duration::from_secs(60 * DAY_S);
    let fresh = list(2, |content| content.issued_unix_s = START + 60 * DAY_S);
    world.desk.set_list(fresh, (world.now, unix_s(world.now))).unwrap();
    let late = world.ask(9, &own, Goal::Renew);
    world.run(1_000);
    let renewed = &world.joined(late).member;
    assert!(renewed.expires_unix_s > first + 59 * DAY_S && renewed.version == 2);
    let stranger = world.ask(12, &own, Goal::Leave);
    let gone = world.ask(9, &own, Goal::Leave);
    world.run(40_000);
    assert!(matches!(world.ends[gone], Some(Event::Left)));
    assert!(matches!(world.ends[stranger], Some(Event::Failed(Fault::Silent { .. }))));
    assert_eq!(world.members(), 0);
}

#[test]
fn the_authority_ends_what_a_registrar_may_do() {
    let mut world = World::new(11);
    let contact = world.invite(terms(9));
    let now = (world.now, unix_s(world.now));
    world.desk.set_list(list(2, |content| content.mandates.clear()), now).unwrap();
    let n = world.join(9, &contact);
    world.run(1_000);
    assert_eq!(world.refused(n), Refusal::MandateEnded);
    let revoked = Identity::from_seed([10; 32]).public();
    let newer = list(3, |content| content.revoked.push(Revoked::new("x", &revoked)));
    world.desk.set_list(newer, (world.now, unix_s(world.now))).unwrap();
    let (n, m) = (world.join(10, &contact), world.join(11, &contact));
    world.run(1_000);
    assert_eq!(world.refused(n), Refusal::Key);
    assert_eq!(world.joined(m).member.address, Address::new(1, 100));
    let old = world.desk.set_list(list(2, |_| {}), (world.now, unix_s(world.now)));
    assert!(old.is_err());
    world.now = world.now + Duration::from_secs(8 * DAY_S);
    let contact = Contact { token: contact.token.clone(), ..contact };
    let n = world.join(12, &contact);
    world.run(1_000);
    assert_eq!(world.refused(n), Refusal::Registrar, "its list is too old");
}

#[test]
fn a_clock_that_is_wrong_is_named() {
    let mut world = World::new(12);
    let contact = world.invite(terms(1));
    let mut machine = Newcomer::new(
        Identity::from_seed([9; 32]),
        contact,
        Goal::Join(Wish::default()),
        [1; 32],
        world.now,
    );
    let year = 365 * DAY_S;
    machine.handle_timeout(world.now, START + year);
    let mut end = None;
    for _ in 0..50 {
        while let Some((_, mut bytes)) = machine.poll_transmit() {
            let _ = world.desk.handle_datagram((world.now, START), at(1), &mut bytes);
        }
        while let Some(Output::Send(_, bytes)) = world.desk.poll_output() {
            machine.handle_datagram(world.now, START + year, door(), &bytes);
        }
        while let Some(event) = machine.poll_event() {
            end = Some(event);
        }
    }
    let Some(Event::Failed(fault)) = end else { panic!("{end:?}") };
    let said = fault.to_string();
    assert!(said.contains("clock is 365 days ahead of the registrar's"), "{said}");
}

#[test]
fn many_join_through_a_bad_network() {
    let mut world = World::new(13);
    let contact = world.invite(terms(60));
    (world.loss, world.twice) = (13, 13);
    let all: Vec<usize> = (0..60).map(|n| world.join(20 + n, &contact)).collect();
    world.run(30_000);
    let mut places: Vec<_> = all.iter().map(|n| world.joined(*n).member.address).collect();
    places.sort();
    places.dedup();
    assert_eq!((places.len(), world.members(), world.published), (60, 60, 60));
    let more = world.invite(terms(1));
    let n = world.join(200, &more);
    world.run(5_000);
    assert_eq!(world.refused(n), Refusal::Full, "the mandate has admitted as many as it may");
}
