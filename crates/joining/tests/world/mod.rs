//! One registrar and its newcomers under a virtual clock, over a network that loses, repeats and
//! reorders datagrams.

#![allow(dead_code, reason = "each test program uses a part of it")]

use std::cell::RefCell;
use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::rc::Rc;
use std::time::Duration;

use shoal_crypto::{Identity, Rng, Secret, SigningKey};
use shoal_directory::{
    CircuitRole, List, ListContent, Mandate, MandateRights, Member, NumberRange,
};
use shoal_joining::{
    Contact, Desk, DeskConfig, DeskOutput, Disk, DoorSecret, Invite, JoinEvent, JoinGoal, Ledger,
    NameRequest, NewMembership, Newcomer, Refusal, TokenKind, TokenTerms,
};
use shoal_wire::{Address, Time};

pub const START: u64 = 1_790_000_000;
pub const DAY_S: u64 = 86_400;

pub fn authority() -> SigningKey {
    SigningKey::from_seed([42; 32])
}

pub fn registrar() -> Identity {
    Identity::from_seed([7; 32])
}

pub fn door() -> SocketAddr {
    "192.0.2.1:7500".parse().unwrap()
}

/// The port from which the registrar tries endpoints.
pub fn other_port() -> SocketAddr {
    "192.0.2.1:40000".parse().unwrap()
}

pub fn mandate() -> Mandate {
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
        rights: MandateRights {
            routers: vec!["2-99".parse().unwrap()],
            numbers: Some(NumberRange { first: 1_000, last: 1_999 }),
            relay: true,
            registrars: 1,
            routers_most: 9,
            families_most: 4,
            family: Some("acme".into()),
            ..MandateRights::default()
        },
    }
}

pub fn router() -> Member {
    Member {
        version: 1,
        name: "r1".into(),
        key: Identity::from_seed([1; 32]).public(),
        address: Address::new(1, 0),
        second: None,
        expires_unix_s: START + 300 * DAY_S,
        endpoint: Some("192.0.2.1:7400".parse().unwrap()),
        groups: vec!["staff".into()],
        security_groups: Vec::new(),
        prefixes: Vec::new(),
        interface: true,
        ipv4: None,
        cover: None,
        carrier: CircuitRole::default(),
        unknown: Vec::new(),
    }
}

pub fn list(version: u64, change: impl FnOnce(&mut ListContent)) -> List {
    let mut content = ListContent {
        version,
        issued_unix_s: START,
        mandates: vec![mandate()],
        members: vec![router().sign(&authority()).unwrap()],
        ..ListContent::default()
    };
    change(&mut content);
    content.sign(&authority()).unwrap()
}

/// A file that survives a crash of its desk.
#[derive(Clone, Default)]
pub struct File(Rc<RefCell<(Vec<u8>, bool)>>);

impl File {
    pub fn of(bytes: &[u8]) -> File {
        File(Rc::new(RefCell::new((bytes.to_vec(), false))))
    }

    pub fn set_full(&self, full: bool) {
        self.0.borrow_mut().1 = full;
    }

    pub fn bytes(&self) -> Vec<u8> {
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

pub fn open(file: &File, now: Time) -> Desk<File> {
    open_as(registrar(), file, now)
}

/// A desk with the keys of any registrar.
pub fn open_as(identity: Identity, file: &File, now: Time) -> Desk<File> {
    let config = DeskConfig {
        identity,
        door: DoorSecret::new([1; 16]),
        doors_before: Vec::new(),
        authority: authority().public(),
        network_secret: Secret::new([5; 32]),
        endpoints: vec![door().into()],
        membership: Duration::from_secs(90 * DAY_S),
        staleness_max: Duration::from_secs(7 * DAY_S),
    };
    let ledger = Ledger::read(&file.bytes()).unwrap();
    let seed = [file.bytes().len() as u8; 32];
    Desk::open(config, list(1, |_| {}), ledger, file.clone(), seed, (now, unix_s(now))).unwrap()
}

pub fn unix_s(now: Time) -> u64 {
    START + now.since(Time::ZERO).as_secs()
}

pub fn terms(uses: u32) -> TokenTerms {
    let expires_unix_s = START + DAY_S;
    let (name, groups, kind) = (None, Vec::new(), TokenKind::Host);
    TokenTerms { uses, expires_unix_s, name, groups, approve: false, kind }
}

pub fn at(n: u8) -> SocketAddr {
    format!("198.51.100.{n}:4000").parse().unwrap()
}

/// One registrar, newcomers, and the datagrams in flight between them.
pub struct World {
    pub now: Time,
    pub file: File,
    pub desk: Desk<File>,
    pub machines: Vec<Newcomer>,
    pub ends: Vec<Option<JoinEvent>>,
    pub words: Vec<Option<String>>,
    /// Arrival, from, to, bytes.
    pub wire: Vec<(Time, SocketAddr, SocketAddr, Vec<u8>)>,
    pub rng: Rng,
    /// Datagrams lost, and sent twice, out of 256.
    pub loss: u64,
    pub twice: u64,
    pub published: usize,
    /// Machines by further addresses at which they receive.
    pub endpoints: BTreeMap<SocketAddr, usize>,
    /// The registrar crashes and restarts before the datagrams with these numbers.
    pub crashes: Vec<usize>,
    pub heard: usize,
}

impl World {
    pub fn new(seed: u8) -> World {
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
            endpoints: BTreeMap::new(),
            crashes: Vec::new(),
            heard: 0,
        }
    }

    pub fn invite(&mut self, terms: TokenTerms) -> Contact {
        let (text, _) = self.desk.invite(terms, unix_s(self.now)).unwrap();
        Contact::new(text.parse::<Invite>().unwrap(), Duration::from_secs(7 * DAY_S))
    }

    pub fn ask(&mut self, seed: u8, contact: &Contact, goal: JoinGoal) -> usize {
        let own = Identity::from_seed([seed; 32]);
        let n = self.machines.len();
        let machine =
            Newcomer::new(own, contact.clone(), goal, [100_u8.wrapping_add(n as u8); 32], self.now);
        self.machines.push(machine);
        self.ends.push(None);
        self.words.push(None);
        n
    }

    pub fn join(&mut self, seed: u8, contact: &Contact) -> usize {
        self.ask(seed, contact, JoinGoal::Join(NameRequest::default()))
    }

    pub fn send(&mut self, from: SocketAddr, to: SocketAddr, bytes: Vec<u8>) {
        let copies = 1 + usize::from(self.rng.below(256) < self.twice);
        for _ in 0..copies {
            if self.rng.below(256) >= self.loss {
                let delay = Duration::from_millis(5 + self.rng.below(20));
                self.wire.push((self.now + delay, from, to, bytes.clone()));
            }
        }
    }

    pub fn drain(&mut self) {
        while let Some(output) = self.desk.poll_output() {
            match output {
                DeskOutput::Send(to, bytes) => self.send(door(), to, bytes),
                DeskOutput::Try(to, bytes) => self.send(other_port(), to, bytes),
                DeskOutput::Publish(_) => self.published += 1,
            }
        }
        for n in 0..self.machines.len() {
            while let Some((to, bytes)) = self.machines[n].poll_transmit() {
                self.send(at(n as u8), to, bytes);
            }
            while let Some(event) = self.machines[n].poll_event() {
                match event {
                    JoinEvent::Waiting(words) => self.words[n] = Some(words.to_string()),
                    JoinEvent::Fetched(have, of) => assert!(have <= of),
                    end => self.ends[n] = Some(end),
                }
            }
        }
    }

    /// Runs for `ms`, or until every machine is done.
    pub fn run(&mut self, ms: u64) {
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
                } else if let Some(n) = self.machine_at(to) {
                    self.machines[n].handle_datagram(now, unix, from, &bytes);
                }
                self.drain();
            }
            self.machines.iter_mut().for_each(|machine| machine.handle_timeout(now, unix));
        }
        self.now = until;
    }

    fn machine_at(&self, to: SocketAddr) -> Option<usize> {
        let by_number = (0..self.machines.len()).find(|n| at(*n as u8) == to);
        by_number.or_else(|| self.endpoints.get(&to).copied())
    }

    #[track_caller]
    pub fn joined(&self, n: usize) -> &NewMembership {
        match &self.ends[n] {
            Some(JoinEvent::Joined(joined)) => joined,
            other => panic!("{other:?}, drops {:?}", self.desk.drops()),
        }
    }

    #[track_caller]
    pub fn refused(&self, n: usize) -> Refusal {
        match &self.ends[n] {
            Some(JoinEvent::Refused(why)) => *why,
            other => panic!("{other:?}, drops {:?}", self.desk.drops()),
        }
    }

    pub fn members(&self) -> usize {
        self.desk.register().unwrap().members().count()
    }
}
