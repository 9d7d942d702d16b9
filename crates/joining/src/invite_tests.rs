use super::*;
use proptest::prelude::*;
use shoal_crypto::{Identity, SigningKey};

fn invite(endpoints: &[&str]) -> Invite {
    Invite {
        authority: SigningKey::from_seed([1; 32]).public(),
        registrar: Identity::from_seed([2; 32]).public(),
        door: DoorSecret::new([3; 16]),
        token: Token::new([4; 16]),
        expires_unix_s: 1_800_000_000,
        endpoints: endpoints.iter().map(|at| at.parse().unwrap()).collect(),
    }
}

const ONE: &[&str] = &["192.0.2.1:7500"];
const THREE: &[&str] = &["192.0.2.1:7500", "[2001:db8::1]:7500", "198.51.100.7:443"];

fn text(endpoints: &[&str]) -> String {
    invite(endpoints).to_text().unwrap().to_string()
}

fn read(text: &str) -> Result<Invite, InviteError> {
    text.parse()
}

#[test]
fn an_invite_is_some_240_characters_of_a_qr_codes_small_alphabet() {
    assert_eq!((text(ONE).len(), text(THREE).len()), (237, 276));
    let small = |b: u8| b.is_ascii_uppercase() || b.is_ascii_digit() || b":/".contains(&b);
    assert!(text(THREE).bytes().all(small));
    for endpoints in [ONE, THREE, &["[2001:db8::1]:1", "192.0.2.1:65535"]] {
        assert_eq!(read(&text(endpoints)), Ok(invite(endpoints)));
    }
}

#[test]
fn line_breaks_and_small_letters_do_no_harm() {
    let text = text(THREE);
    let broken: String = text.chars().map(|c| format!("{c}\n")).collect();
    assert_eq!(read(&format!("  {broken}\t")), Ok(invite(THREE)));
    assert_eq!(read(&text.to_lowercase()), Ok(invite(THREE)));
    let slips = text[8..].replace('0', "o").replace('1', "l");
    assert_eq!(read(&format!("{}{slips}", &text[..8])), Ok(invite(THREE)));
}

#[test]
fn every_kind_of_mistake_has_its_own_words() {
    let good = text(ONE);
    let fails = |text: &str, with: InviteError, words: &str| {
        assert_eq!(read(text), Err(with), "{text}");
        assert!(with.to_string().contains(words), "{with}");
    };
    for text in ["", "hello", "SHOAL", "SHOAL:x/0", "SHOAL:01/0"] {
        fails(text, InviteError::NotAnInvite, "no invite found");
    }
    fails(&good.replace(":1/", ":3/"), InviteError::OtherVersion(3), "update shoal");
    fails(&good.replace(":1/", ":2/"), InviteError::Mistyped, "mistyped");
    fails("SHOAL:1234/", InviteError::OtherVersion(1_234), "version 1234");
    let letter = InviteError::Letter { at: 100, letter: 'U' };
    fails(&format!("{}U{}", &good[..99], &good[100..]), letter, "character 100");
    let need = good.len();
    for cut in ["SHOAL:", "SHOAL:1", "SHOAL:1/", &good[..9], &good[..10], &good[..need - 1]] {
        fails(cut, InviteError::Truncated { have: cut.len(), need }, "missing");
    }
    let three = text(THREE);
    let (have, need) = (200, three.len());
    fails(&three[..200], InviteError::Truncated { have, need }, "should have 276");
    fails(&format!("{good}0"), InviteError::TooLong(1), "too many");
    fails(&"SHOAL:1/0".repeat(9_000), InviteError::LongText, "too long");
    let wrong = if good.ends_with('0') { "1" } else { "0" };
    fails(&format!("{}{wrong}", &good[..good.len() - 1]), InviteError::Mistyped, "checksum");
}

#[test]
fn impossible_contents_are_neither_written_nor_read() {
    let at = |at: &str| {
        let endpoints = vec![DoorEndpoint::At(at.parse().unwrap())];
        Invite { endpoints, ..invite(ONE) }
    };
    for wrong in ["192.0.2.1:0", "0.0.0.0:5", "[::]:5", "224.0.0.1:5", "[ff02::1]:5", "[fe80::1]:5"]
    {
        assert_eq!(at(wrong).to_text().map(|_| ()), Err(ENDPOINT), "{wrong}");
    }
    assert_eq!(at("255.255.255.255:5").to_text().map(|_| ()), Err(ENDPOINT));
    assert_eq!(invite(&[]).to_text().map(|_| ()), Err(COUNT));
    assert_eq!(invite(&[ONE[0]; 4]).to_text().map(|_| ()), Err(COUNT));
    // Another program may have made an invite with a right checksum.
    let good = text(ONE);
    let mut bytes = from_base32(&good[8..]).unwrap();
    let end = bytes.len() - CHECKSUM_LEN;
    bytes[end - 2..end].fill(0);
    let sum = checksum(HEAD, &bytes[..end]);
    bytes[end..].copy_from_slice(&sum);
    let mut forged = HEAD.to_owned();
    append_base32(&bytes, &mut forged);
    assert_eq!(read(&forged), Err(ENDPOINT));
}

#[test]
fn an_invite_with_a_name_has_another_version() {
    let named = ["my.example.org:7401", "192.0.2.1:7500", "home.example.net:443"];
    let text = text(&named);
    assert!(text.starts_with("SHOAL:2/"), "{text}");
    assert_eq!(read(&text), Ok(invite(&named)));
    assert_eq!(read(&format!("Hello, {}\nbye", text.to_lowercase())), Ok(invite(&named)));
    let need = text.len();
    for have in [9, 11, 12, need - 1] {
        let cut = read(&text[..have]).unwrap_err();
        let fits = matches!(cut, InviteError::Truncated { .. } | InviteError::Mistyped);
        assert!(fits, "{have}: {cut}");
    }
    assert_eq!(read(&text.replace(":2/", ":1/")), Err(InviteError::Mistyped));
    let wrong = if text.ends_with('0') { "1" } else { "0" };
    assert_eq!(read(&format!("{}{wrong}", &text[..need - 1])), Err(InviteError::Mistyped));
    let with = |name: &str| {
        let endpoints = vec![DoorEndpoint::Named(name.into(), 7_401); 2];
        Invite { endpoints, ..invite(ONE) }.to_text().map(|_| ())
    };
    assert_eq!(with("a b"), Err(ENDPOINT));
    let label = "x".repeat(50);
    assert_eq!(with(&[&label[..], &label, "org"].join(".")), Ok(()));
    assert_eq!(with(&[&label[..], &label, &label, "org"].join(".")), Err(NAMES));
}

#[test]
fn an_expired_invite_says_for_how_long() {
    let invite = invite(ONE);
    assert_eq!(invite.check_time(1_799_999_999), Ok(()));
    let ago = |s: u64| invite.check_time(1_800_000_000 + s).unwrap_err().to_string();
    assert!(ago(0).contains("0 s ago") && ago(300).contains("5 minutes ago"));
    assert!(ago(8_000).contains("2 hours ago") && ago(31_536_000).contains("365 days ago"));
}

#[test]
fn debug_hides_what_is_secret() {
    let invite = invite(ONE);
    let shown = format!("{invite:?} {:?} {:?}", invite.door, invite.token);
    assert_eq!(shown, "Invite(hidden) DoorSecret(hidden) Token(hidden)");
    assert_ne!(invite.door.outer().0, DoorSecret::new([9; 16]).outer().0);
}

proptest! {
    /// Every position, with every letter that reads as another one.
    #[test]
    fn any_one_wrong_character_is_noticed(three: bool, at in 0_usize..276, letter in 0..32_u8) {
        let good = text(if three { THREE } else { ONE });
        let at = at % good.len();
        let letter = char::from(b"0123456789ABCDEFGHJKMNPQRSTVWXYZ"[usize::from(letter)]);
        prop_assume!(!good[at..].starts_with(letter));
        let wrong = format!("{}{letter}{}", &good[..at], &good[at + 1..]);
        prop_assert!(read(&wrong).is_err());
    }

    /// Two adjacent letters swapped.
    #[test]
    fn swapped_characters_are_noticed(at in 8_usize..236) {
        let good = text(ONE);
        let mut letters: Vec<char> = good.chars().collect();
        letters.swap(at - 1, at);
        let wrong: String = letters.into_iter().collect();
        prop_assume!(wrong != good);
        prop_assert!(read(&wrong).is_err());
    }

    #[test]
    fn any_text_is_read_or_refused(text: String, tail in "[0-9A-Z]{0,400}") {
        let _ = read(&text);
        let _ = read(&format!("SHOAL:1/{tail}"));
    }

    #[test]
    fn an_encoded_invite_decodes_to_itself(
        keys: [[u8; 32]; 3], secrets: [[u8; 16]; 2], expires_unix_s: u32,
        ends in proptest::collection::vec((any::<[u8; 16]>(), 1_u16..), 1..=3),
    ) {
        let endpoint = |(ip, port): ([u8; 16], u16)| {
            let six = Ipv6Addr::from(ip);
            let four = Ipv4Addr::new(10, ip[1], ip[2], ip[3]);
            let ip = if ip[0] & 1 == 0 { IpAddr::V4(four) } else { IpAddr::V6(six) };
            match ip {
                IpAddr::V4(ip) if port & 1 == 0 => {
                    DoorEndpoint::Named(format!("h{}.example.org", ip.octets()[3]), port)
                }
                ip => DoorEndpoint::At(SocketAddr::new(ip, port)),
            }
        };
        let invite = Invite {
            authority: VerifyKey(keys[0]),
            registrar: PublicKey { dh: keys[1], sign: keys[2] },
            door: DoorSecret::new(secrets[0]),
            token: Token::new(secrets[1]),
            expires_unix_s,
            endpoints: ends.into_iter().map(endpoint).collect(),
        };
        prop_assume!(check_endpoints(&invite.endpoints).is_ok());
        prop_assert_eq!(read(&invite.to_text().unwrap()), Ok(invite));
    }
}
