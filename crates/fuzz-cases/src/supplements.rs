//! Supplements, and the register of a mandate.

use std::sync::LazyLock;

use core::time::Duration;

use shoal_crypto::{Identity, PublicKey, SigningKey};
use shoal_directory::{
    ChainExchange, ChainOutcome, CircuitRole, Directory, DoorEndpoint, HostRange, ListContent,
    Mandate, MandateRights, Member, Register, RouterRange, Step, StepEffect, StepEntry, Supplement,
};
use shoal_wire::{Address, ChainMessage, LinkId, Time};

use crate::machines::{span, steps};

/// The registrar of the golden vectors, one of which is in the corpus.
static REGISTRAR: LazyLock<Identity> = LazyLock::new(|| Identity::from_seed([7; 32]));
/// Keys of newcomers.
static KEYS: LazyLock<Vec<PublicKey>> =
    LazyLock::new(|| (0..8).map(|seed| Identity::from_seed([seed; 32]).public()).collect());
/// Keys of registrars that the first one makes.
static SECONDS: LazyLock<Vec<PublicKey>> =
    LazyLock::new(|| (20..24).map(|seed| Identity::from_seed([seed; 32]).public()).collect());
/// Domain separation of the registrar's signatures.
const LABEL: &[u8] = b"shoal supplement 1";

fn mandate(most: u32) -> Mandate {
    Mandate {
        name: "desk".into(),
        serial: 2,
        key: REGISTRAR.public(),
        groups: vec!["staff".into()],
        hosts: vec![
            HostRange { router: 1, first: 100, last: 107 },
            HostRange { router: 7, first: 100, last: 103 },
        ],
        ipv4: "10.9.0.0/29".parse().ok(),
        most,
        longest_s: 1_000,
        until_unix_s: 2_000_000_000,
        rights: MandateRights {
            routers: vec![RouterRange { first: 2, last: 6 }],
            routers_most: 2,
            families_most: 2,
            family: Some("acme".into()),
            relay: true,
            cover: true,
            tiers: vec!["home".into()],
            door: vec![DoorEndpoint::Named("my.example.org".into(), 7_401)],
            registrars: 2,
            ..MandateRights::default()
        },
    }
}

/// Entries of a step, six bytes each.
fn entries(bytes: &[u8], at: u64) -> Vec<StepEntry> {
    let entry = |b: &[u8]| {
        let key = KEYS[usize::from(b[1] & 7)];
        if b[0] & 129 == 128 {
            let at = DoorEndpoint::At(([10, 9, b[2] & 1, b[3]], u16::from(b[4])).into());
            let name = DoorEndpoint::Named(["a.org", "a..org"][usize::from(b[5] & 1)].into(), 7);
            return StepEntry::Door(if b[5] & 2 == 0 { vec![at] } else { vec![at, name] });
        }
        if b[0] & 193 == 64 {
            return StepEntry::Registrar(Box::new(part(b)));
        }
        if b[0] & 225 == 32 {
            return StepEntry::Withdrawn(part(b).id());
        }
        if b[0] & 1 == 0 {
            return StepEntry::remove(&key);
        }
        let host = Member {
            version: u64::from(b[2]),
            name: format!("n{}", b[3] & 7),
            key,
            address: Address::new(1, 98 + u16::from(b[4] & 15)),
            second: None,
            expires_unix_s: at + u64::from(b[5]) * 5,
            endpoint: None,
            groups: if b[0] & 2 == 0 { Vec::new() } else { vec!["staff".into()] },
            security_groups: Vec::new(),
            prefixes: Vec::new(),
            interface: true,
            ipv4: (b[0] & 4 != 0).then(|| [10, 9, 0, b[4] & 15].into()),
            cover: None,
            carrier: CircuitRole::default(),
            unknown: Vec::new(),
        };
        let member = match b[0] & 8 == 0 {
            true => covered(at_two_routers(host, b), b[0]),
            false => router(host, b),
        };
        StepEntry::Member(Box::new(member))
    };
    bytes.chunks_exact(6).map(entry).collect()
}

/// A host with a second address, or without one, by these bytes.
fn at_two_routers(host: Member, b: &[u8]) -> Member {
    let router = if b[0] & 128 == 0 { 7 } else { 1 };
    let second = Address::new(router, 98 + u16::from(b[4] >> 4));
    Member { second: (b[0] & 64 != 0).then_some(second), ..host }
}

/// A host with a tier of cover, or without one, by these bits.
fn covered(host: Member, bits: u8) -> Member {
    let tier = if bits & 32 == 0 { "home" } else { "work" };
    Member { cover: (bits & 16 != 0).then(|| tier.into()), ..host }
}

/// A part of the mandate for another registrar, and some that no mandate has.
fn part(b: &[u8]) -> Mandate {
    let first = 98 + u16::from(b[2] & 15);
    let rights = MandateRights {
        routers: vec![RouterRange { first: 4, last: 5 + u32::from(b[4] & 3) }],
        relay: b[5] & 1 != 0,
        mix: b[5] & 2 != 0,
        routers_most: 1,
        families_most: 1,
        family: Some("b".into()),
        registrars: b[5] >> 2 & 1,
        ..MandateRights::default()
    };
    let has_routers = b[5] & 8 != 0;
    Mandate {
        name: ["second", "third"][usize::from(b[3] & 1)].into(),
        serial: 1,
        key: SECONDS[usize::from(b[1] & 3)],
        groups: Vec::new(),
        hosts: vec![HostRange { router: 1, first, last: first + u16::from(b[3] >> 1 & 3) }],
        ipv4: (b[4] & 4 != 0).then(|| "10.9.0.4/30".parse().ok()).flatten(),
        most: 1 + u32::from(b[4] >> 3 & 3),
        longest_s: 1_000 - u32::from(b[5] >> 4),
        rights: if has_routers { rights } else { MandateRights::default() },
        ..mandate(6)
    }
}

/// A router with a number, an endpoint, a family and rights by these bytes.
fn router(host: Member, b: &[u8]) -> Member {
    let family = ["acme", "ACME", "b", "c"][usize::from(b[3] >> 3 & 3)];
    let carrier = CircuitRole {
        relay: b[0] & 16 != 0,
        mix: (b[0] & 48 == 48).then(|| "slow".into()),
        family: (b[0] & 64 == 0).then(|| family.into()),
        ..CircuitRole::default()
    };
    Member {
        address: Address::new(u32::from(b[4] & 7), 0),
        endpoint: (b[0] & 128 == 0).then(|| ([192, 0, 2, b[1] >> 3 & 7], 1).into()),
        carrier,
        ..host
    }
}

/// Bytes signed by the registrar or by nobody, steps that follow and that fork, changes of the
/// mandate.
pub fn supplements(data: &[u8]) {
    let mut register = Register::new(mandate(6));
    let mut at = 1_790_000_000;
    let first = Supplement::open(&REGISTRAR.public(), data);
    if let Ok(supplement) = &first {
        let _ = register.apply(at, supplement);
    }
    for (verb, bytes) in steps(data) {
        at += u64::from(verb >> 2);
        let chained = |register: &Register, bytes| {
            let (mandate, number) = (register.id(), register.len() + 1);
            let (previous, entries) = (register.head(), entries(bytes, at));
            let step = Step { mandate, number, previous, issued_unix_s: at, entries };
            step.sign(&REGISTRAR)
        };
        match verb & 3 {
            0 => {
                let signature = REGISTRAR.sign(&[LABEL, bytes].concat());
                let sealed = [bytes, &signature].concat();
                if let Ok(supplement) = Supplement::open(&REGISTRAR.public(), &sealed) {
                    let again = supplement.step().clone().sign(&REGISTRAR);
                    assert_eq!(again.expect("opened steps can be signed").bytes(), sealed);
                    let _ = register.apply(at, &supplement);
                }
            }
            1 => {
                if let Ok(supplement) = chained(&register, bytes) {
                    let before = (register.len(), register.head(), register.admitted());
                    match register.apply(at, &supplement) {
                        Ok(applied) => assert_eq!(applied, StepEffect::Changed),
                        Err(_) => {
                            let after = (register.len(), register.head(), register.admitted());
                            assert_eq!(before, after);
                        }
                    }
                }
            }
            2 => {
                let (one, other) = bytes.split_at(bytes.len() / 2);
                if let (Ok(one), Ok(other)) = (chained(&register, one), chained(&register, other)) {
                    let _ = register.show_fork([one, other]);
                }
            }
            _ => {
                let most = u32::from(bytes.first().copied().unwrap_or(6) % 9).max(1);
                register = register.under(mandate(most));
            }
        }
        check(&register);
    }
}

/// Maximum number of messages per step; more means that draining doesn't end.
const OUTPUTS_MAX: usize = 10_000;

/// Neighbours that send any message about chains, links that come and go, steps that count and
/// forks, and time. Queued output is due, and draining ends.
pub fn chains(data: &[u8]) {
    let mut now = Time::from_millis(1_000);
    let mut directory = Directory::new(Duration::from_secs(1 << 30));
    let mandates = vec![mandate(6)];
    let content = ListContent { version: 1, issued_unix_s: AT, mandates, ..ListContent::default() };
    let list = content.sign(&SigningKey::from_seed([42; 32])).expect("a mandate keeps the rules");
    directory.accept(now, AT, list).expect("no list came before");
    let mut machine = ChainExchange::new();
    for (verb, bytes) in steps(data) {
        let link = LinkId::from_bits(u32::from(verb >> 6));
        match verb % 8 {
            // Two link numbers belong to one neighbour.
            0 => machine.link_up(now, link, Address::new(1 + link.bits() / 2, 0), &directory),
            1 => machine.link_down(now, link, &directory),
            2 | 3 => {
                let register = directory.registers().next().expect("the list has a mandate");
                // The next step, or one that forks from the last.
                let fork = verb % 8 == 3 && !register.is_empty();
                let (number, previous) = match register.step(register.len()) {
                    Some(last) if fork => (register.len(), last.step().previous),
                    _ => (register.len() + 1, register.head()),
                };
                let (mandate, entries) = (register.id(), entries(bytes, AT));
                let step = Step { mandate, number, previous, issued_unix_s: AT, entries };
                if let Ok(supplement) = step.sign(&REGISTRAR) {
                    let _ = directory.supplement(now, AT, &supplement);
                    machine.changed(now, &directory);
                }
            }
            4 => {
                now = now + span(bytes);
            }
            5 => {
                let outcome = [ChainOutcome::Diverged, ChainOutcome::Refused, ChainOutcome::Forged];
                machine.settled(now, outcome[usize::from(verb >> 6) % 3], &directory);
            }
            _ => {
                let Some((&kind, body)) = bytes.split_first() else { continue };
                // The fuzzer can't guess the mandate's id: 32 bytes of ones are replaced by it.
                let own = mandate(6).id().0;
                let mut body = body.to_vec();
                let ones = (0..body.len()).find(|at| body[*at..].starts_with(&[0xff; 32]));
                if let Some(at) = ones {
                    body[at..at + 32].copy_from_slice(&own);
                }
                let Ok(message) = ChainMessage::parse(kind, &body) else { continue };
                let _ = machine.handle_message(now, link, message, &directory);
            }
        }
        if let Some(arrived) = machine.poll_arrived() {
            assert!(!arrived.steps.is_empty() && arrived.steps.len() <= 64);
            if verb & 8 != 0 {
                machine.settled(now, ChainOutcome::Taken, &directory);
            }
        }
        machine.handle_timeout(now, &directory);
        let mut left = OUTPUTS_MAX;
        while let Some((_, message)) = machine.poll_transmit(now, &directory) {
            left = left.checked_sub(1).expect("draining ends");
            let mut body = Vec::new();
            message.encode(&mut body);
            assert_eq!(ChainMessage::parse(message.kind(), &body), Ok(message));
        }
        let due = machine.poll_timeout();
        assert!(due.is_none_or(|at| at > now), "left undone: {due:?} at {now}");
    }
}

/// Time of all signatures in [`chains`], in seconds since 1970.
const AT: u64 = 1_790_000_000;

/// Checks that all members are within the mandate, and that the steps give the same members again.
fn check(register: &Register) {
    let rights = &register.mandate().rights;
    assert!(register.admitted() <= register.mandate().most as usize);
    assert!(register.routers_given() <= usize::from(rights.routers_most));
    assert!(register.families().len() <= usize::from(rights.families_most));
    let ipv4 = register.mandate().ipv4;
    let inside = |at: &DoorEndpoint| {
        at.address().is_some_and(|at| ipv4.is_some_and(|prefix| prefix.holds(at.ip())))
    };
    assert!((1..=3).contains(&register.door().len()) && !register.door().iter().any(inside));
    assert!(register.door().iter().all(DoorEndpoint::is_callable));
    let made: Vec<_> = register.delegated().collect();
    assert!(made.len() <= 2 && made.iter().all(|made| made.rights.registrars == 0));
    let given: u32 = made.iter().map(|made| made.most).sum();
    assert!(register.admitted() as u32 + given <= register.mandate().most);
    let hosts = (90..120).map(|host| Address::new(1, host));
    for address in hosts.chain((0..9).map(|router| Address::new(router, 0))) {
        let holders = made.iter().filter(|made| made.may_give(address)).count();
        let member = register.members().any(|member| member.addresses().has(address));
        assert!(holders + usize::from(member) <= 1, "{address} belongs to two");
        assert!(holders == 0 || register.mandate().may_give(address));
    }
    for member in register.members() {
        let addresses = member.addresses();
        assert!(addresses.iter().all(|address| register.mandate().may_give(address)));
        assert!(addresses.check().is_ok() && !register.is_removed(&member.key));
        let (is_router, carrier) = (member.address.is_router(), &member.carrier);
        assert_eq!((is_router, is_router), (carrier.family.is_some(), member.endpoint.is_some()));
        assert!(carrier.mix.is_none() && (is_router || !carrier.relay));
        let twins = register.members().filter(|other| {
            other.name == member.name
                || other.addresses().iter().any(|address| addresses.has(address))
                || (other.ipv4.is_some() && other.ipv4 == member.ipv4)
                || (other.endpoint.is_some() && other.endpoint == member.endpoint)
        });
        assert_eq!(twins.count(), 1);
    }
    let again = register.under(register.mandate().clone());
    assert_eq!((again.len(), again.head()), (register.len(), register.head()));
    assert!(again.members().eq(register.members()) && again.door() == register.door());
}
