//! Cells made from docs/design/wire/circuits.md without this code: accepted, and reproduced.

#[path = "../../wire/tests/vectors/mod.rs"]
mod vectors;

use shoal_crypto::{AeadKey, Identity, NetworkSecret, Rng, Secret, StandardCiphers, Suite};
use shoal_crypto::{Processor, SuiteSupport, Suites};
use shoal_session::noise::Split;
use shoal_session::outer::{OuterSeal, OuterSeals};
use shoal_wire::leg::{CELL_LEN, CellShape, LegGrant, LegMessage, SECOND_LEN};
use shoal_wire::{Address, DropReason};

use crate::layer::{Layer, LayerSecrets};
use crate::leg::{Direction, Leg, LegKey, LegLane, Scratch, SendKeys};
use crate::setup::{self, Bond, Cookie, CreateCell, CreateReply, LegSetup};
use crate::slots::for_lane;

const INDEX: u32 = 0x0500_0007;
const LEG_KEY: [u8; 32] = [12; 32];

fn vector(name: &str) -> Vec<u8> {
    vectors::vector("onion", name)
}

fn secrets(suite: Suite) -> LayerSecrets {
    let split = Split { forth: Secret::new([14; 32]), back: Secret::new([15; 32]) };
    LayerSecrets::new(suite, &split)
}

fn layer(suite: Suite) -> Layer<AeadKey> {
    secrets(suite).layer(CellShape::new(3).unwrap(), 3)
}

fn check_forward(name: &str, suite: Suite, lane: LegLane, number: u64) {
    let golden = vector(name);
    let (key, mut scratch) = (LegKey::new(&LEG_KEY), Scratch::default());
    key.read(&golden, &[0], &mut scratch);
    key.check(&mut scratch, |index| (index == for_lane(INDEX, lane)).then_some(number - 5));
    assert_eq!(scratch.numbers, [Ok(number)], "{name}");

    let mut cell = golden.clone();
    let mut layer = layer(suite);
    assert_eq!(layer.open(Direction::Forward, lane, number, &mut cell), Ok(()), "{name}");
    let end = layer.opened(lane)[1].start;
    let said: Vec<u8> = (0..CELL_LEN - 10).map(|at| (at % 251) as u8).collect();
    match lane {
        LegLane::Data => assert_eq!(cell[10..end], said[..end - 10], "{name}"),
        LegLane::Control => {
            assert_eq!(cell[layer.flag_at()], 1);
            let message = LegMessage::parse(&cell[layer.message_range()]);
            assert_eq!(message, Ok(LegMessage::Echo(77)), "{name}");
        }
    }

    cell[..10].fill(0);
    cell[end..end + 16].fill(0);
    layer.seal(Direction::Forward, lane, number, &mut cell);
    let mut keys = SendKeys::default();
    let leg = Leg::new(Address::new(1, 0), &LegGrant { index: INDEX, key: LEG_KEY }, &mut keys);
    keys.write(&mut cell, &mut [leg.going(lane, 0, number)], &mut Vec::new());
    assert!(cell == golden, "{name}");
}

#[test]
fn golden_cells_open_and_are_made_again() {
    check_forward("forward-gcm", Suite::Aes256Gcm, LegLane::Data, 5);
    check_forward("forward-aegis", Suite::Aegis256X4, LegLane::Data, (1 << 20) + 3);
    check_forward("control-aegis", Suite::Aegis256X4, LegLane::Control, 9);
}

#[test]
fn golden_cells_are_sealed_on_their_way_back() {
    let cases = [("backward-gcm", Suite::Aes256Gcm, 70), ("backward-aegis", Suite::Aegis256X4, 71)];
    for (name, suite, number) in cases {
        let (golden, mut cell) = (vector(name), [7; CELL_LEN]);
        layer(suite).seal(Direction::Backward, LegLane::Data, number, &mut cell);
        assert!(cell[10..10 + golden.len()] == golden, "{name}");
        assert!(cell[10 + golden.len()..].iter().all(|byte| *byte == 7));
    }
    let next = secrets(Suite::Aes256Gcm).next_leg();
    assert_eq!(next.expose()[..], vector("next-leg")[..]);
}

const ASKER: Address = Address::new(3, 0);

/// The asker's seed is 03*32.
fn bond(responder: &Identity) -> Bond {
    Bond::new(responder.dh(), &Identity::from_seed([3; 32]).public().dh).unwrap()
}

#[test]
fn a_golden_create_cell_is_answered() {
    let identity = Identity::from_seed([2; 32]);
    let bond = bond(&identity);
    let outer = OuterSeals::new(setup::ROLE, &NetworkSecret([1; 32]).into(), &identity.public());
    let golden = vector("create");
    let (create, _) = CreateCell::open(&outer, &mut golden.clone()).unwrap();
    assert_eq!((create.lead, create.shown_s), ([6; 16], 77));
    assert!(create.shows(&bond, ASKER, &[9; 12]));
    assert!(!create.shows(&bond, ASKER, &Cookie::default()));
    assert!(!create.shows(&bond, Address::new(2, 0), &[9; 12]));
    let means = SuiteSupport { processor: Processor::Vaes512, suites: Suites::ALL };
    let answer = create
        .answer::<StandardCiphers>(identity.dh(), bond, means, &Secret::new([10; 32]))
        .unwrap();
    let offer = &answer.offer;
    assert_eq!((offer.leg, offer.suites, offer.processor), ([21; 32], 5, 4));
    assert_eq!((offer.place, offer.lifetime), (2, 60));
    assert_eq!((answer.back.index, answer.back.key), (INDEX, LEG_KEY));
    let other = OuterSeals::new(b"link", &NetworkSecret([1; 32]).into(), &identity.public());
    assert!(CreateCell::open(&other, &mut golden.clone()).is_err());
}

/// Answers of that node: the grant and the Noise message of a created cell, or a cookie. The tests
/// of the handshake check the keys that follow from the Noise message.
#[test]
fn golden_answers_to_a_create_cell_are_read() {
    let identity = Identity::from_seed([2; 32]);
    let outer = OuterSeal::new(setup::ROLE, &NetworkSecret([1; 32]), &identity.public());
    let bond = bond(&identity);
    let open_cell = |mut cell: Box<[u8; CELL_LEN]>, lead: u8, leg: u8| {
        let leg = Secret::new([leg; 32]);
        let sides = LegSetup { outer: &outer, bond: &bond, leg: &leg };
        setup::open_reply(&sides, &[lead; 16], &mut cell)
    };
    let open = |name: &str, lead, leg| open_cell(vector(name).try_into().unwrap(), lead, leg);
    let Ok(CreateReply::Created(grant, noise)) = open("created", 6, 21) else { panic!("created") };
    assert_eq!((grant.index, grant.key), (0x0200_0009, [22; 32]));
    let Ok(CreateReply::Cookie(cookie)) = open("cookie", 6, 0) else { panic!("a cookie") };
    assert_eq!(cookie, [13; 12]);
    for (name, lead, leg) in [("created", 6, 22), ("created", 7, 21), ("cookie", 7, 21)] {
        assert_eq!(open(name, lead, leg).err(), Some(DropReason::BadHandshake), "{name}");
    }
    for name in ["created", "cookie"] {
        assert_eq!(vector(name)[..16], outer.token(&[6; 16]), "{name}");
    }

    let own = setup::write_cookie((&outer, &bond), &[6; 16], &[13; 12], &mut Rng::new([1; 32]));
    let Ok(CreateReply::Cookie(again)) = open_cell(own, 6, 0) else { panic!("a cookie") };
    assert_eq!(again, cookie);
    assert_eq!((noise.len(), vector("created").len()), (SECOND_LEN, CELL_LEN));
}
