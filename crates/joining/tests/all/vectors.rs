//! Golden vectors (docs/design/wire/join.md): made by this code from fixed seeds, so that no
//! change of a byte goes unnoticed.
//!
//! `SHOAL_WRITE_VECTORS=1 cargo test -p shoal-joining --test all vectors::` writes new ones. A
//! change means a new version of the format.

use std::path::Path;

use shoal_crypto::encoding::hex;
use shoal_crypto::{Identity, SigningKey};
use shoal_joining::{
    DoorSecret, Invite, Ledger, LedgerRecord, LedgerTail, StepCause, Token, TokenKind, TokenTerms,
};

fn check(name: &str, text: &str) {
    let file = Path::new(env!("CARGO_MANIFEST_DIR")).join("vectors").join(name);
    if std::env::var_os("SHOAL_WRITE_VECTORS").is_some() {
        std::fs::create_dir_all(file.parent().unwrap()).unwrap();
        std::fs::write(&file, text).unwrap();
    }
    let golden = std::fs::read_to_string(&file).expect(name);
    assert_eq!(golden, text, "{name} has changed");
}

fn lines(bytes: &[u8]) -> String {
    bytes.chunks(32).map(|line| hex(line) + "\n").collect()
}

fn invite(endpoints: &[&str]) -> Invite {
    Invite {
        authority: SigningKey::from_seed([42; 32]).public(),
        registrar: Identity::from_seed([7; 32]).public(),
        door: DoorSecret::new([1; 16]),
        token: Token::new([2; 16]),
        expires_unix_s: 1_790_086_400,
        endpoints: endpoints.iter().map(|at| at.parse().unwrap()).collect(),
    }
}

#[test]
fn invites() {
    for (name, endpoints) in [
        ("invite.txt", ["192.0.2.1:7500"].as_slice()),
        ("invite_three.txt", &["[2001:db8::1]:7500", "192.0.2.1:7500", "198.51.100.7:443"]),
        ("invite_named.txt", &["my.example.org:7401", "192.0.2.1:7500"]),
    ] {
        let invite = invite(endpoints);
        let text = invite.to_text().unwrap();
        check(name, &format!("{}\n", *text));
        assert_eq!(text.parse(), Ok(invite));
    }
}

#[test]
fn ledger() {
    let token = Token::new([2; 16]).hash();
    let key = Identity::from_seed([9; 32]).public();
    let groups = vec!["servers".into(), "staff".into()];
    let terms = TokenTerms {
        uses: 1,
        expires_unix_s: 1_790_086_400,
        name: Some("bob".into()),
        groups,
        approve: true,
        kind: TokenKind::Host,
    };
    let supplement = vec![0xab; 64];
    let records = [
        LedgerRecord::Issued { token, unix_s: 1_790_000_000, terms },
        LedgerRecord::Step { cause: StepCause::Joined(token), key, supplement: supplement.clone() },
        LedgerRecord::Step { cause: StepCause::Renewed, key, supplement },
        LedgerRecord::Denied { token, key },
        LedgerRecord::Withdrawn(token),
    ];
    let (mut end, mut file) = (LedgerTail::EMPTY, Vec::new());
    for record in &records {
        let (bytes, next) = end.append(record);
        file.extend_from_slice(&bytes);
        end = next;
    }
    check("ledger.hex", &lines(&file));
    let router = |family: Option<&str>, relay| {
        let kind = TokenKind::Router { family: family.map(str::to_owned), relay };
        let (uses, name, groups) = (9, None, Vec::new());
        let terms =
            TokenTerms { uses, expires_unix_s: 1_790_086_400, name, groups, approve: false, kind };
        LedgerRecord::Issued { token, unix_s: 1_790_000_000, terms }
    };
    let routers = [router(Some("acme"), true), router(None, false)];
    let first = LedgerTail::EMPTY.append(&routers[0]);
    let both = [first.0.clone(), first.1.append(&routers[1]).0].concat();
    check("ledger-routers.hex", &lines(&both));
    assert_eq!(Ledger::read(&both).unwrap().records, routers);
    assert_eq!(Ledger::read(&file).unwrap().records, records);
}

#[test]
fn ledger_of_registrars() {
    let token = Token::new([2; 16]).hash();
    let key = Identity::from_seed([9; 32]).public();
    let registrar = |range: Option<&str>| {
        let (family, range) = (Some("acme".to_owned()), range.map(|range| range.parse().unwrap()));
        let kind = TokenKind::Registrar { family, relay: true, range };
        let (uses, name, groups) = (1, None, Vec::new());
        let terms =
            TokenTerms { uses, expires_unix_s: 1_790_086_400, name, groups, approve: false, kind };
        LedgerRecord::Issued { token, unix_s: 1_790_000_000, terms }
    };
    let supplement = vec![0xab; 64];
    let registrars = [
        registrar(Some("80-99")),
        registrar(None),
        LedgerRecord::Learnt { supplement: supplement.clone() },
        LedgerRecord::Step { cause: StepCause::Door, key, supplement },
    ];
    let (mut end, mut all) = (LedgerTail::EMPTY, Vec::new());
    for record in &registrars {
        let (bytes, next) = end.append(record);
        all.extend_from_slice(&bytes);
        end = next;
    }
    check("ledger-registrars.hex", &lines(&all));
    assert_eq!(Ledger::read(&all).unwrap().records, registrars);
}
