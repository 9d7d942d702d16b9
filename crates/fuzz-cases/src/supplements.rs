//! What a registrar signs, and the register of its mandate.

use std::sync::LazyLock;

use shoal_crypto::{Identity, PublicKey};
use shoal_directory::{
    Applied, Carrier, Entry, HostRange, Mandate, Member, Register, Step, Supplement,
};
use shoal_wire::Address;

use crate::machines::steps;

/// The registrar of the golden vectors, one of which stands in the corpus.
static REGISTRAR: LazyLock<Identity> = LazyLock::new(|| Identity::from_seed([7; 32]));
/// Keys of newcomers.
static KEYS: LazyLock<Vec<PublicKey>> =
    LazyLock::new(|| (0..8).map(|seed| Identity::from_seed([seed; 32]).public()).collect());
/// What the registrar's signatures are tied to.
const LABEL: &[u8] = b"shoal supplement 1";

fn mandate(most: u32) -> Mandate {
    Mandate {
        name: "desk".into(),
        serial: 2,
        key: REGISTRAR.public(),
        groups: vec!["staff".into()],
        hosts: vec![HostRange { router: 1, first: 100, last: 107 }],
        ipv4: "10.9.0.0/29".parse().ok(),
        most,
        longest_s: 1_000,
        until_unix_s: 2_000_000_000,
    }
}

/// Entries of a step, six bytes each.
fn entries(bytes: &[u8], at: u64) -> Vec<Entry> {
    let entry = |b: &[u8]| {
        let key = KEYS[usize::from(b[1] & 7)];
        if b[0] & 1 == 0 {
            return Entry::remove(&key);
        }
        Entry::Member(Box::new(Member {
            version: u64::from(b[2]),
            name: format!("n{}", b[3] & 7),
            key,
            address: Address::new(1, 98 + u16::from(b[4] & 15)),
            expires_unix_s: at + u64::from(b[5]) * 5,
            endpoint: None,
            groups: if b[0] & 2 == 0 { Vec::new() } else { vec!["staff".into()] },
            security_groups: Vec::new(),
            prefixes: Vec::new(),
            interface: true,
            ipv4: (b[0] & 4 != 0).then(|| [10, 9, 0, b[4] & 15].into()),
            cover: None,
            carrier: Carrier::default(),
            unknown: Vec::new(),
        }))
    };
    bytes.chunks_exact(6).map(entry).collect()
}

/// Bytes as a registrar's and as anybody's, steps that follow and that fork, other mandates.
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
                    assert_eq!(again.expect("what opens can be signed").bytes(), sealed);
                    let _ = register.apply(at, &supplement);
                }
            }
            1 => {
                if let Ok(supplement) = chained(&register, bytes) {
                    let before = (register.len(), register.head(), register.admitted());
                    match register.apply(at, &supplement) {
                        Ok(applied) => assert_eq!(applied, Applied::Changed),
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

/// Nobody is a member whom the mandate does not allow, and the same steps give the same members.
fn check(register: &Register) {
    assert!(register.admitted() <= register.mandate().most as usize);
    for member in register.members() {
        assert!(register.mandate().may_give(member.address) && !register.is_removed(&member.key));
        let twins = register.members().filter(|other| {
            other.name == member.name
                || other.address == member.address
                || (other.ipv4.is_some() && other.ipv4 == member.ipv4)
        });
        assert_eq!(twins.count(), 1);
    }
    let again = register.under(register.mandate().clone());
    assert_eq!((again.len(), again.head()), (register.len(), register.head()));
    assert!(again.members().eq(register.members()));
}
