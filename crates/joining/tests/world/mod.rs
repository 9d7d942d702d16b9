//! One registrar and machines that ask it, under a virtual clock; the network loses, repeats and
//! reorders.

#![allow(dead_code, reason = "each test program uses a part of it")]

use std::cell::RefCell;
use std::net::SocketAddr;
use std::rc::Rc;
use std::time::Duration;

use shoal_crypto::{Identity, Rng, Secret, SigningKey};
use shoal_directory::{Carrier, Content, List, Mandate, Member};
use shoal_joining::{
    Contact, Desk, DeskConfig, Disk, DoorSecret, Event, Goal, Invite, Joined, Ledger, Newcomer,
    Output, Refusal, Terms, Wish,
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
    }
}

pub fn router() -> Member {
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

pub fn list(version: u64, change: impl FnOnce(&mut Content)) -> List {
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
    let config = DeskConfig {
        identity: registrar(),
        door: DoorSecret::new([1; 16]),
        doors_before: Vec::new(),
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

pub fn unix_s(now: Time) -> u64 {
    START + now.since(Time::ZERO).as_secs()
}

pub fn terms(uses: u32) -> Terms {
    let expires_unix_s = START + DAY_S;
    Terms { uses, expires_unix_s, name: None, groups: Vec::new(), approve: false }
}

pub fn at(n: u8) -> SocketAddr {
    format!("198.51.100.{n}:4000").parse().unwrap()
}

/// One registrar, machines that ask it, and what is on its way between them.
pub struct World {
    pub now: Time,
    pub file: File,
    pub desk: Desk<File>,
    pub machines: Vec<Newcomer>,
    pub ends: Vec<Option<Event>>,
    pub words: Vec<Option<String>>,
    /// Arrival, from, to, bytes.
    pub wire: Vec<(Time, SocketAddr, SocketAddr, Vec<u8>)>,
    pub rng: Rng,
    /// Of 256: lost, and sent twice.
    pub loss: u64,
    pub twice: u64,
    pub published: usize,
    /// The registrar dies and is started again before each of these numbers of its datagrams.
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
            crashes: Vec::new(),
            heard: 0,
        }
    }

    pub fn invite(&mut self, terms: Terms) -> Contact {
        let (text, _) = self.desk.invite(terms, unix_s(self.now)).unwrap();
        Contact::new(text.parse::<Invite>().unwrap(), Duration::from_secs(7 * DAY_S))
    }

    pub fn ask(&mut self, seed: u8, contact: &Contact, goal: Goal) -> usize {
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
        self.ask(seed, contact, Goal::Join(Wish::default()))
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
    pub fn joined(&self, n: usize) -> &Joined {
        match &self.ends[n] {
            Some(Event::Joined(joined)) => joined,
            other => panic!("{other:?}, drops {:?}", self.desk.drops()),
        }
    }

    #[track_caller]
    pub fn refused(&self, n: usize) -> Refusal {
        match &self.ends[n] {
            Some(Event::Refused(why)) => *why,
            other => panic!("{other:?}, drops {:?}", self.desk.drops()),
        }
    }

    pub fn members(&self) -> usize {
        self.desk.register().unwrap().members().count()
    }
}
