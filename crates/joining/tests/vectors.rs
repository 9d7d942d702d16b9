//! Golden vectors (docs/joining.md): made by this code from fixed seeds, kept so that no byte
//! changes unnoticed.
//!
//! `SHOAL_WRITE_VECTORS=1 cargo test -p shoal-joining --test vectors` writes them anew; that is a
//! new version of the format.

use std::path::Path;

use shoal_crypto::{Identity, SigningKey};
use shoal_joining::{Cause, DoorSecret, End, Invite, Ledger, Record, Terms, Token};

fn check(name: &str, text: &str) {
    let file = Path::new(env!("CARGO_MANIFEST_DIR")).join("vectors").join(name);
    if std::env::var_os("SHOAL_WRITE_VECTORS").is_some() {
        std::fs::create_dir_all(file.parent().unwrap()).unwrap();
        std::fs::write(&file, text).unwrap();
    }
    let golden = std::fs::read_to_string(&file).expect(name);
    assert_eq!(golden, text, "{name} has changed");
}

fn hex(bytes: &[u8]) -> String {
    let line = |line: &[u8]| line.iter().map(|b| format!("{b:02x}")).collect::<String>() + "\n";
    bytes.chunks(32).map(line).collect()
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
    let terms = Terms {
        uses: 1,
        expires_unix_s: 1_790_086_400,
        name: Some("bob".into()),
        groups,
        approve: true,
    };
    let supplement = vec![0xab; 64];
    let records = [
        Record::Issued { token, unix_s: 1_790_000_000, terms },
        Record::Step { cause: Cause::Joined(token), key, supplement: supplement.clone() },
        Record::Step { cause: Cause::Renewed, key, supplement },
        Record::Denied { token, key },
        Record::Withdrawn(token),
    ];
    let (mut end, mut file) = (End::EMPTY, Vec::new());
    for record in &records {
        let (bytes, next) = end.append(record);
        file.extend_from_slice(&bytes);
        end = next;
    }
    check("ledger.hex", &hex(&file));
    assert_eq!(Ledger::read(&file).unwrap().records, records);
}
