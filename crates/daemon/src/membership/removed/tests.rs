use std::time::Duration;

use shoal_crypto::{Identity, SigningKey};
use shoal_directory::{
    CircuitRole, HostRange, ListContent, Mandate, MandateRights, Member, RevokedKey, Step,
    StepEntry,
};
use shoal_wire::Address;

use super::*;

const AT: u64 = 20_785 * DAY_S;
const NOW: Time = Time::ZERO;

fn signer() -> SigningKey {
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
        groups: Vec::new(),
        hosts: vec![HostRange { router: 1, first: 100, last: 199 }],
        ipv4: None,
        most: 50,
        longest_s: 10 * DAY_S as u32,
        until_unix_s: u64::MAX,
        rights: MandateRights::default(),
    }
}

fn key(seed: u8) -> PublicKey {
    Identity::from_seed([seed; 32]).public()
}

fn member(host: u16, seed: u8) -> Member {
    Member {
        version: 1,
        name: format!("h{host}"),
        key: key(seed),
        address: Address::new(1, host),
        second: None,
        expires_unix_s: AT + 5 * DAY_S,
        endpoint: None,
        groups: Vec::new(),
        security_groups: Vec::new(),
        prefixes: Vec::new(),
        interface: true,
        ipv4: None,
        cover: None,
        carrier: CircuitRole::default(),
        unknown: Vec::new(),
    }
}

/// A network with a registrar, and the log of a router in it.
struct Network {
    directory: Directory,
    log: RemovalLog,
    version: u64,
}

impl Network {
    /// The list has the router 1 and the hosts of these keys; the registrar has nobody.
    fn new(hosts: &[u8]) -> Network {
        let directory = Directory::new(Duration::from_secs(90 * DAY_S));
        let mut network = Network { directory, log: RemovalLog::default(), version: 0 };
        network.list(AT, hosts, vec![mandate()], &[]);
        network
    }

    fn list(&mut self, at: u64, hosts: &[u8], mandates: Vec<Mandate>, revoked: &[u8]) {
        self.version += 1;
        let all = [(0, 1)].into_iter().chain(hosts.iter().map(|seed| (u16::from(*seed), *seed)));
        let members = all.map(|(host, seed)| member(host, seed).sign(&signer()).unwrap()).collect();
        let revoked = revoked.iter().map(|seed| RevokedKey::new("", &key(*seed))).collect();
        let (version, issued_unix_s) = (self.version, at);
        let none = ListContent::default();
        let content = ListContent { version, issued_unix_s, members, mandates, revoked, ..none };
        let list = content.sign(&signer()).unwrap();
        self.directory.accept(NOW, at, list).unwrap();
        self.log.look(&self.directory, at);
    }

    fn step(&mut self, at: u64, entries: Vec<StepEntry>) {
        let register = self.directory.registers().next().unwrap();
        let (mandate, number, previous) = (register.id(), register.len() + 1, register.head());
        let step = Step { mandate, number, previous, issued_unix_s: at, entries };
        let step = step.sign(&registrar()).unwrap();
        self.directory.supplement(NOW, at, &step).unwrap();
        self.log.look(&self.directory, at);
    }

    fn add(&mut self, seed: u8) {
        let member = member(100 + u16::from(seed), seed);
        self.step(AT, vec![StepEntry::Member(Box::new(member))]);
    }

    /// The former members as a router tells them, without and with this router's memory.
    fn told(&self) -> [FormerKeys; 2] {
        let mut restarted = RemovalLog::default();
        restarted.look(&self.directory, AT);
        [restarted, RemovalLog { gone: self.log.gone.clone(), ..self.copy() }]
            .map(|log| log.former(&self.directory))
    }

    fn copy(&self) -> RemovalLog {
        RemovalLog { listed: self.log.listed.clone(), ..RemovalLog::default() }
    }
}

fn former(all: &[(u8, RemovalReason, u32)]) -> FormerKeys {
    let peer = |(seed, reason, day): &(u8, RemovalReason, u32)| FormerPeer {
        key: key(*seed),
        removal: Removal { reason: *reason, day: *day },
    };
    FormerKeys::new(all.iter().map(peer))
}

#[test]
fn removals_of_a_registrar_outlast_a_restart_and_members_are_not_told() {
    let mut network = Network::new(&[]);
    for seed in [10, 11, 12] {
        network.add(seed);
    }
    assert_eq!(network.told(), [(); 2].map(|()| former(&[])));
    network.step(AT + DAY_S, vec![StepEntry::remove(&key(10))]);
    // Another key takes the place of the old one.
    let again = member(111, 13);
    let entries = vec![StepEntry::remove(&key(11)), StepEntry::Member(Box::new(again))];
    network.step(AT + 2 * DAY_S, entries);
    let by = RemovalReason::Registrar;
    let want = former(&[(10, by, 20_786), (11, by, 20_787)]);
    assert_eq!(network.told(), [want.clone(), want.clone()]);
    // The authority makes a removed key its own member: it is told nothing.
    network.list(AT + 2 * DAY_S, &[10], vec![mandate()], &[]);
    let want = former(&[(11, by, 20_787)]);
    assert_eq!(network.told(), [want.clone(), want]);
}

#[test]
fn removals_of_the_authority_are_known_from_chains_or_until_a_restart() {
    let mut network = Network::new(&[20, 21]);
    network.add(10);
    network.add(11);
    network.list(AT + DAY_S, &[20], vec![mandate()], &[10]);
    let by = RemovalReason::Authority;
    let (chain, memory) = ((10, by, 20_786), (21, by, 20_786));
    assert_eq!(network.told(), [former(&[chain]), former(&[chain, memory])]);
    // A mandate ends with all its members.
    network.list(AT + 2 * DAY_S, &[20], Vec::new(), &[10]);
    let gone = [(10, by, 20_786), (21, by, 20_786), (11, by, 20_787)];
    assert_eq!(network.told(), [former(&[]), former(&gone)]);
    // A member that comes back is no former one.
    network.list(AT + 2 * DAY_S, &[20, 21], Vec::new(), &[10]);
    assert_eq!(network.told()[1], former(&[gone[0], gone[2]]));
}

#[test]
fn who_has_expired_knows_it_and_the_memory_is_bounded() {
    let mut network = Network::new(&[20]);
    network.list(AT + 5 * DAY_S, &[], vec![mandate()], &[]);
    assert_eq!(network.told()[1], former(&[]));
    let peer = |seed| FormerPeer { key: key(seed), removal: by_step(AT) };
    network.log.gone = vec![peer(99); GONE_MAX];
    network.log.listed = [(key(30), u64::MAX)].into();
    network.log.look(&network.directory, AT);
    assert_eq!(network.log.gone.len(), GONE_MAX);
    assert_eq!(network.log.gone.last(), Some(&peer(30)));
}

#[test]
fn a_removal_is_told_with_its_day_and_whose_word_it_is() {
    let removal = Removal { reason: RemovalReason::Registrar, day: 20_785 };
    let said = told_words("the neighbour \"r1\"", removal);
    let want = "the neighbour \"r1\" says that this machine was removed from the network on \
                2026-11-28: `shoal up INVITE`, with a new invite";
    assert!(said.starts_with(want), "{said}");
    assert!(said.contains("a router by invite runs `shoal leave --force`"), "{said}");
    let removal = Removal { reason: RemovalReason::Authority, day: u32::MAX };
    let said = told_words("a neighbour", removal);
    assert!(said.contains("was removed from the authority's list: `shoal up"), "{said}");
    assert_eq!(status(removal, None).on, None);
    assert_eq!(status(removal, None).by, "authority");
}

#[test]
fn days_are_those_of_the_calendar() {
    let dates = [(0, "1970-01-01"), (59, "1970-03-01"), (20_785, "2026-11-28")];
    for (day, want) in dates {
        assert_eq!(date(day).unwrap().to_string(), want);
    }
    assert_eq!(date(2_932_896).unwrap().to_string(), "9999-12-31");
    assert_eq!(date(2_932_897), None);
}
