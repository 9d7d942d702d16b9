use std::net::SocketAddr;
use std::time::Duration;

use shoal_crypto::{Identity, Rng, Secret, SigningKey};
use shoal_directory::{List, ListContent, Mandate, MandateRights};
use shoal_wire::Time;

use super::*;
use crate::desk::{DeskConfig, DeskOutput};
use crate::door::{Hello, Knock};
use crate::frame::Channel;
use crate::invite::DoorSecret;
use crate::ledger::Ledger;
use crate::messages::{JOIN_LABEL, NameRequest, Request};
use crate::tokens::{Token, TokenKind, TokenTerms};

pub(in crate::desk) const START: u64 = 1_790_000_000;
const AT: (Time, u64) = (Time::ZERO, START);

pub(in crate::desk) struct Nowhere;

impl Disk for Nowhere {
    fn append(&mut self, _: &[u8]) -> std::io::Result<()> {
        Ok(())
    }
}

pub(in crate::desk) fn key(seed: u8) -> Identity {
    Identity::from_seed([seed; 32])
}

pub(in crate::desk) fn list(authority: &SigningKey, rights: MandateRights) -> List {
    let mandate = Mandate {
        name: "desk".into(),
        serial: 1,
        key: key(7).public(),
        groups: vec!["staff".into()],
        hosts: vec!["1.100-1.199".parse().unwrap()],
        ipv4: None,
        most: 9,
        longest_s: 86_400,
        until_unix_s: START + 900_000,
        rights,
    };
    let content = ListContent {
        version: 1,
        issued_unix_s: START,
        mandates: vec![mandate],
        ..ListContent::default()
    };
    content.sign(authority).unwrap()
}

fn desk() -> Desk<Nowhere> {
    desk_with(MandateRights::default())
}

/// A desk whose mandate has these rights.
pub(in crate::desk) fn desk_with(rights: MandateRights) -> Desk<Nowhere> {
    let authority = SigningKey::from_seed([42; 32]);
    let config = DeskConfig {
        identity: key(7),
        door: DoorSecret::new([1; 16]),
        doors_before: Vec::new(),
        authority: authority.public(),
        network_secret: Secret::new([5; 32]),
        endpoints: vec!["192.0.2.1:7500".parse().unwrap()],
        membership: Duration::from_secs(86_400),
        staleness_max: Duration::from_secs(86_400),
    };
    let ledger = Ledger::read(&[]).unwrap();
    Desk::open(config, list(&authority, rights), ledger, Nowhere, [3; 32], AT).unwrap()
}

const FROM: ([u8; 4], u16) = ([198, 51, 100, 1], 4_000);

/// Says hello and knocks with a key. Returns the channel.
fn visit(desk: &mut Desk<Nowhere>, own: &Identity, token: &Token, rng: &mut Rng) -> Channel {
    visit_from(desk, (own, token), (FROM.into(), AT), rng)
}

pub(in crate::desk) fn visit_from(
    desk: &mut Desk<Nowhere>,
    (own, token): (&Identity, &Token),
    (from, at): (SocketAddr, (Time, u64)),
    rng: &mut Rng,
) -> Channel {
    let (registrar, door) = (key(7).public(), DoorSecret::new([1; 16]));
    let hello = Hello::new(&registrar, &door, rng);
    desk.handle_datagram(at, from, &mut hello.frame.clone()).unwrap();
    let Some(DeskOutput::Send(_, cookie)) = desk.poll_output() else { panic!("no cookie") };
    let what = (token, &hello.cookie(&cookie).unwrap());
    let mut knock = Knock::new(own, &registrar, &door, what, rng).unwrap();
    for mut frame in knock.frames.clone() {
        desk.handle_datagram(at, from, &mut frame).unwrap();
    }
    let mut welcome = None;
    while let Some(DeskOutput::Send(_, frame)) = desk.poll_output() {
        welcome = knock.take(&frame).unwrap();
    }
    welcome.expect("a welcome").channel
}

/// Sends a request and returns the answer.
fn ask(
    desk: &mut Desk<Nowhere>,
    channel: &mut Channel,
    request: &Request,
    rng: &mut Rng,
) -> Answer {
    let mut frame = channel.seal(rng.array(), &request.encode()).unwrap();
    desk.handle_datagram(AT, FROM.into(), &mut frame).unwrap();
    loop {
        match desk.poll_output() {
            Some(DeskOutput::Send(_, bytes)) => {
                return Answer::parse(&channel.open(&bytes).unwrap()).unwrap();
            }
            Some(DeskOutput::Try(..) | DeskOutput::Publish(_)) => {}
            None => panic!("no answer"),
        }
    }
}

fn invite(desk: &mut Desk<Nowhere>, uses: u32) -> Token {
    let expires_unix_s = START + 600;
    let (name, groups, kind) = (None, Vec::new(), TokenKind::Host);
    let terms = TokenTerms { uses, expires_unix_s, name, groups, approve: false, kind };
    desk.invite(terms, START).unwrap().0.parse::<crate::Invite>().unwrap().token
}

/// Asks to join by an invite. Returns the channel and the answer.
fn join(
    desk: &mut Desk<Nowhere>,
    token: &Token,
    seed: u8,
    wish: NameRequest,
    rng: &mut Rng,
) -> (Channel, Answer) {
    let own = key(seed);
    let mut channel = visit(desk, &own, token, rng);
    let said = [JOIN_LABEL, channel.binding()].concat();
    let (sign, signature) = (own.public().sign, own.sign(&said));
    let answer = ask(desk, &mut channel, &Request::Join { wish, sign, signature }, rng);
    (channel, answer)
}

#[test]
fn both_keys_sign_and_for_this_handshake_alone() {
    let (mut desk, mut rng) = (desk(), Rng::new([8; 32]));
    let token = invite(&mut desk, 1);
    let (old, new, thief) = (key(9), key(10), key(11));
    let (first, answer) = join(&mut desk, &token, 9, NameRequest::default(), &mut rng);
    assert!(matches!(answer, Answer::Granted(_)));
    let mut channel = visit(&mut desk, &old, &Token::new([0; 16]), &mut rng);
    let said = rekey_said(channel.binding(), &new.public());
    let elsewhere = rekey_said(first.binding(), &new.public());
    let other = rekey_said(channel.binding(), &thief.public());
    let weak = PublicKey { dh: [0; 32], ..new.public() };
    let weakly = rekey_said(channel.binding(), &weak);
    for (key, signatures) in [
        (new.public(), [thief.sign(&said), new.sign(&said)]),
        (new.public(), [old.sign(&said), old.sign(&said)]),
        (new.public(), [old.sign(&elsewhere), new.sign(&elsewhere)]),
        (new.public(), [old.sign(&other), new.sign(&said)]),
        (thief.public(), [old.sign(&said), thief.sign(&other)]),
        (weak, [old.sign(&weakly), new.sign(&weakly)]),
    ] {
        let request = Request::Rekey { key, signatures };
        let answer = ask(&mut desk, &mut channel, &request, &mut rng);
        assert_eq!(answer, Answer::Refused(Refusal::Key));
    }
    assert_eq!(desk.register().unwrap().len(), 1, "nothing was signed");
    let right =
        Request::Rekey { key: new.public(), signatures: [old.sign(&said), new.sign(&said)] };
    for _ in 0..2 {
        let answer = ask(&mut desk, &mut channel, &right, &mut rng);
        assert!(matches!(answer, Answer::Granted(_)), "{answer:?}");
    }
    // A third key gets no grant, even with the old key's signature.
    let said = rekey_said(channel.binding(), &thief.public());
    let signatures = [old.sign(&said), thief.sign(&said)];
    let request = Request::Rekey { key: thief.public(), signatures };
    let answer = ask(&mut desk, &mut channel, &request, &mut rng);
    assert_eq!(answer, Answer::Refused(Refusal::Replaced));
    assert_eq!(desk.register().unwrap().len(), 2);
}

#[test]
fn who_is_removed_leaves_the_invite_by_which_it_joined() {
    let (mut desk, mut rng) = (desk(), Rng::new([8; 32]));
    let token = invite(&mut desk, 3);
    join(&mut desk, &token, 9, NameRequest::default(), &mut rng);
    let (old, new) = (key(9), key(10));
    let mut channel = visit(&mut desk, &old, &Token::new([0; 16]), &mut rng);
    let said = rekey_said(channel.binding(), &new.public());
    let signatures = [old.sign(&said), new.sign(&said)];
    let request = Request::Rekey { key: new.public(), signatures };
    let answer = ask(&mut desk, &mut channel, &request, &mut rng);
    assert!(matches!(answer, Answer::Granted(_)), "{answer:?}");
    let name = desk.register().unwrap().members().next().unwrap().name.clone();
    assert_eq!(
        desk.remove(&name, AT).unwrap(),
        Some(token.hash()),
        "also after a change of the key"
    );
    while desk.poll_output().is_some() {}
    // The machine can join again with another key, until the invite is withdrawn.
    assert!(matches!(
        join(&mut desk, &token, 11, NameRequest::default(), &mut rng).1,
        Answer::Granted(_)
    ));
    desk.withdraw(&token.hash()).unwrap();
    let name = desk.register().unwrap().members().next().unwrap().name.clone();
    assert_eq!(desk.remove(&name, AT).unwrap(), None);
}

#[test]
fn visits_that_get_no_further_end_when_others_come() {
    let (mut desk, mut rng) = (desk(), Rng::new([8; 32]));
    let token = invite(&mut desk, 9);
    let mut knock = |desk: &mut Desk<Nowhere>, n: u16, ms: u64| {
        let own = Identity::from_seed([20 + n as u8; 32]);
        let from = (([198, 51, 100, 1], 4_000 + n).into(), (Time::from_millis(ms), START));
        visit_from(desk, (&own, &token), from, &mut rng)
    };
    let mut channels: Vec<_> = (0..40).map(|n| knock(&mut desk, n, u64::from(n) * 100)).collect();
    assert_eq!(desk.visits.len(), 40);
    // Repeated requests are no progress.
    let from = ([198, 51, 100, 1], 4_000).into();
    let mut say = |desk: &mut Desk<Nowhere>, ms: u64| {
        let mut frame = channels[0].seal([ms as u8; 16], &Request::Await.encode()).unwrap();
        desk.handle_datagram((Time::from_millis(ms), START), from, &mut frame).unwrap();
        while desk.poll_output().is_some() {}
    };
    say(&mut desk, 30_000);
    say(&mut desk, 59_000);
    knock(&mut desk, 40, 62_000);
    assert_eq!(desk.visits.len(), 20, "visits of the first two seconds have ended");
    knock(&mut desk, 41, 80_000);
    assert_eq!(desk.visits.len(), 2);
}

#[test]
fn places_are_shared_by_token_and_address_and_some_are_members_alone() {
    let (mut desk, mut rng) = (desk(), Rng::new([8; 32]));
    let [leaked, good] = [9, 9].map(|uses| invite(&mut desk, uses));
    let mut knock = |desk: &mut Desk<Nowhere>, token: &Token, n: u32, from: [u8; 4]| {
        let mut seed = [77; 32];
        seed[..4].copy_from_slice(&n.to_be_bytes());
        // Slow enough for the rate limit, and fast enough that no visit ends.
        let at = (Time::from_millis(1_000 + u64::from(n) * 11), START);
        let from = ((from, (n % 60_000) as u16).into(), at);
        visit_from(desk, (&Identity::from_seed(seed), token), from, &mut rng)
    };
    for n in 0..3_700 {
        // Several addresses, to stay below the share of each.
        knock(&mut desk, &leaked, n, [203, 0, (n % 8) as u8, 1]);
    }
    assert_eq!(desk.visits.len(), 4_096 - 512);
    knock(&mut desk, &good, 3_701, [198, 51, 100, 9]);
    let mut honest = knock(&mut desk, &leaked, 3_702, [198, 51, 100, 8]);
    for n in 3_703..3_800 {
        knock(&mut desk, &leaked, n, [203, 0, (n % 8) as u8, 1]);
    }
    assert_eq!(desk.visits.len(), 4_096 - 512);
    let mut frame = honest.seal([9; 16], &Request::Await.encode()).unwrap();
    let from = ([198, 51, 100, 8], 3_702).into();
    desk.handle_datagram((Time::from_millis(43_000), START), from, &mut frame).unwrap();
    assert!(
        desk.drops()[&shoal_wire::DropReason::TableFull] > 200
            && desk.flood(Time::from_millis(43_000)).is_none()
    );
}

#[test]
fn what_a_visitor_was_granted_stays_though_others_join_and_ends_with_the_chain() {
    let (mut desk, mut rng) = (desk(), Rng::new([8; 32]));
    let token = invite(&mut desk, 9);
    let (mut first, answer) = join(&mut desk, &token, 9, NameRequest::default(), &mut rng);
    let Answer::Granted(grant) = answer else { panic!("{answer:?}") };
    let (list_len, len) = (grant.list_len, grant.list_len + grant.chain_len);
    let mut fetch = |desk: &mut Desk<Nowhere>, rng: &mut Rng| {
        let mut all = Vec::new();
        loop {
            let offset = all.len() as u32;
            match ask(desk, &mut first, &Request::Part { offset }, rng) {
                Answer::Part { bytes, .. } => all.extend(bytes),
                Answer::Refused(Refusal::Registrar) => return all,
                other => panic!("{other:?}"),
            }
        }
    };
    let before = fetch(&mut desk, &mut rng);
    assert_eq!(before.len(), len as usize);
    join(&mut desk, &token, 10, NameRequest::default(), &mut rng);
    assert_eq!(fetch(&mut desk, &mut rng), before, "the bundle as granted, without later steps");
    // The chain of another mandate begins anew.
    let authority = SigningKey::from_seed([42; 32]);
    let mut content = list(&authority, MandateRights::default()).content().clone();
    (content.version, content.mandates[0].serial) = (2, 2);
    desk.set_list(content.sign(&authority).unwrap(), AT).unwrap();
    assert!(desk.chain.len() < (len - list_len) as usize);
    assert_eq!(fetch(&mut desk, &mut rng), []);
}

#[test]
fn a_clock_that_was_ahead_for_one_supplement_is_named() {
    let (mut desk, mut rng) = (desk(), Rng::new([8; 32]));
    let token = invite(&mut desk, 9);
    for seed in [9, 10] {
        join(&mut desk, &token, seed, NameRequest::default(), &mut rng);
    }
    let names: Vec<_> = desk.register().unwrap().members().map(|m| m.name.clone()).collect();
    desk.remove(&names[0], (Time::ZERO, START + 3_600)).unwrap();
    let said = desk.remove(&names[1], AT).unwrap_err().to_string();
    assert!(said.contains("1 h ahead") && said.contains("--anew"), "{said}");
    // Clocks may differ by ten minutes.
    desk.remove(&names[1], (Time::ZERO, START + 3_000)).unwrap();
    assert_eq!(desk.register().unwrap().len(), 4);
}

#[test]
fn no_number_is_signed_again_when_a_mandate_is_narrowed() {
    let (mut desk, mut rng) = (desk(), Rng::new([8; 32]));
    let token = invite(&mut desk, 9);
    let mut join = |desk: &mut Desk<Nowhere>, seed| {
        join(desk, &token, seed, NameRequest::default(), &mut rng).1
    };
    for seed in [9, 10] {
        assert!(matches!(join(&mut desk, seed), Answer::Granted(_)));
    }
    let authority = SigningKey::from_seed([42; 32]);
    let mut content = list(&authority, MandateRights::default()).content().clone();
    (content.version, content.mandates[0].most) = (2, 1);
    desk.set_list(content.clone().sign(&authority).unwrap(), AT).unwrap();
    assert_eq!(desk.register().unwrap().len(), 1, "the second key is one too many");
    // Neither a join nor a removal is signed.
    assert_eq!(join(&mut desk, 11), Answer::Refused(Refusal::Registrar));
    let name = desk.register().unwrap().members().next().unwrap().name.clone();
    let said = desk.remove(&name, AT).unwrap_err().to_string();
    assert!(said.contains("allows 1 of the 2 supplements") && said.contains("--anew"), "{said}");
    // The chain of another serial begins anew.
    (content.version, content.mandates[0].serial) = (3, 2);
    desk.set_list(content.sign(&authority).unwrap(), AT).unwrap();
    assert!(matches!(join(&mut desk, 12), Answer::Granted(_)));
}

#[test]
fn names_and_addresses_of_another_registrars_members_are_given_to_nobody() {
    let (mut desk, mut rng) = (desk(), Rng::new([8; 32]));
    let token = invite(&mut desk, 9);
    let authority = SigningKey::from_seed([42; 32]);
    let mut content = list(&authority, MandateRights::default()).content().clone();
    let own = content.mandates[0].clone();
    let hosts = vec!["2.100-2.199".parse().unwrap()];
    content.mandates.push(Mandate { name: "other".into(), key: key(8).public(), hosts, ..own });
    content.version = 2;
    desk.set_list(content.clone().sign(&authority).unwrap(), AT).unwrap();
    let other = content.mandates.iter().find(|mandate| mandate.name == "other").unwrap().id();
    let member = Member {
        version: 1,
        name: "alice".into(),
        key: key(20).public(),
        address: shoal_wire::Address::new(2, 100),
        second: None,
        expires_unix_s: START + 600,
        endpoint: None,
        groups: Vec::new(),
        security_groups: Vec::new(),
        prefixes: Vec::new(),
        interface: true,
        ipv4: None,
        cover: None,
        carrier: shoal_directory::CircuitRole::default(),
        unknown: Vec::new(),
    };
    let step = Step {
        mandate: other,
        number: 1,
        previous: other.0,
        issued_unix_s: START,
        entries: vec![StepEntry::Member(Box::new(member))],
    };
    let signed = step.clone().sign(&key(8)).unwrap();
    let forged = step.sign(&key(9)).unwrap();
    let mut join = |desk: &mut Desk<Nowhere>, seed| {
        let wish = NameRequest { name: Some("alice".into()), or_another: true };
        match join(desk, &token, seed, wish, &mut rng).1 {
            Answer::Granted(grant) => Ok(grant.name),
            Answer::Refused(why) => Err(why),
            other => panic!("{other:?}"),
        }
    };
    desk.learn(forged.bytes(), AT);
    desk.learn(&[7; 40], AT);
    desk.learn(signed.bytes(), AT);
    assert_eq!(join(&mut desk, 9).unwrap(), "alice-2");
    assert_eq!(join(&mut desk, 20), Err(Refusal::Key), "a member of another registrar");
    assert_eq!(desk.register().unwrap().len(), 1);
    // Until the other registrar removes the member, expired or not.
    let names =
        |desk: &Desk<Nowhere>, at| desk.holders(at).filter(|held| held.name == "alice").count();
    assert_eq!([names(&desk, START), names(&desk, START + 601)], [1, 1]);
    assert!(desk.is_anothers(&key(20).public(), START + 601));
}
