use super::*;
use proptest::prelude::*;
use shoal_crypto::StandardCiphers;

fn keys() -> (DhSecret, DhSecret) {
    (DhSecret::new(&[1; 32]), DhSecret::new(&[2; 32]))
}

fn first() -> (Initiator, Vec<u8>) {
    let (a, b) = keys();
    Initiator::start::<StandardCiphers>(b"prologue", Some(&a), b.public(), &[3; 32], b"hello")
        .unwrap()
}

#[test]
fn both_ends_get_the_same_keys() {
    let (a, b) = keys();
    let (initiator, first) = first();
    assert_eq!(first.len(), 32 + 1_200 + 48 + 5 + 16);
    let responder = Responder::read(NoisePattern::Known, b"prologue", &b, &first).unwrap();
    assert_eq!(responder.peer, Some(*a.public()));
    assert_eq!(responder.payload.as_slice(), b"hello");
    assert!(responder.response_key() == initiator.response_key());
    let (theirs, second) = responder.finish::<StandardCiphers>(&[4; 32], b"world").unwrap();
    assert_eq!(second.len(), 32 + 1_104 + 5 + 16);
    let (ours, payload) = initiator.finish(Some(&a), &second).unwrap();
    assert_eq!(payload.as_slice(), b"world");
    assert!(ours.forth == theirs.forth && ours.back == theirs.back);
    assert!(ours.forth != ours.back);
}

#[test]
fn prologue_and_keys_are_bound() {
    let (a, b) = keys();
    let (initiator, first) = first();
    assert!(Responder::read(NoisePattern::Known, b"another", &b, &first).is_err());
    assert!(Responder::read(NoisePattern::Known, b"prologue", &a, &first).is_err());
    let responder = Responder::read(NoisePattern::Known, b"prologue", &b, &first).unwrap();
    let (_, second) = responder.finish::<StandardCiphers>(&[4; 32], b"world").unwrap();
    assert!(initiator.finish(Some(&b), &second).is_err());
    assert!(initiator.finish(Some(&a), &second).is_ok());
}

#[test]
fn an_initiator_may_stay_anonymous() {
    let (_, b) = keys();
    let (initiator, first) =
        Initiator::start::<StandardCiphers>(b"prologue", None, b.public(), &[3; 32], b"hello")
            .unwrap();
    assert_eq!(first.len(), NoisePattern::Anonymous.first_len() + 5);
    assert!(Responder::read(NoisePattern::Known, b"prologue", &b, &first).is_err());
    let responder = Responder::read(NoisePattern::Anonymous, b"prologue", &b, &first).unwrap();
    assert_eq!((responder.peer, responder.payload.as_slice()), (None, b"hello".as_slice()));
    let (theirs, second) = responder.finish::<StandardCiphers>(&[4; 32], b"world").unwrap();
    assert_eq!(second.len(), NoisePattern::Anonymous.second_len() + 5);
    assert!(initiator.finish(Some(&b), &second).is_err());
    let (ours, payload) = initiator.finish(None, &second).unwrap();
    assert_eq!(payload.as_slice(), b"world");
    assert!(ours.forth == theirs.forth && ours.back == theirs.back);
}

/// The classical parts of both patterns against snow, in both roles, byte by byte.
#[test]
fn classic_patterns_agree_with_snow() {
    agrees_with_snow(NoisePattern::Known, "Noise_IK_25519_AESGCM_SHA256");
    agrees_with_snow(NoisePattern::Anonymous, "Noise_NK_25519_AESGCM_SHA256");
}

fn agrees_with_snow(pattern: NoisePattern, name: &str) {
    let (a, b) = keys();
    let own = (pattern == NoisePattern::Known).then_some(&a);
    let params = || name.parse().unwrap();
    let state = || Symmetric::new(name.as_bytes(), b"prologue", b.public());

    let mut snow = snow::Builder::new(params())
        .prologue(b"prologue")
        .unwrap()
        .local_private_key(&[2; 32])
        .unwrap()
        .build_responder()
        .unwrap();
    let start = Initiator::start_with(state(), own, b.public(), &[3; 32], None, b"hello");
    let (initiator, first) = start.unwrap();
    let mut buf = [0; 200];
    let n = snow.read_message(&first, &mut buf).unwrap();
    assert_eq!(&buf[..n], b"hello");
    let n = snow.write_message(b"world", &mut buf).unwrap();
    let (ours, payload) = initiator.finish(own, &buf[..n]).unwrap();
    assert_eq!(payload.as_slice(), b"world");
    assert_snow_keys(&mut snow, &ours, false);

    let mut snow = snow::Builder::new(params())
        .prologue(b"prologue")
        .unwrap()
        .local_private_key(&[1; 32])
        .unwrap()
        .remote_public_key(b.public())
        .unwrap()
        .build_initiator()
        .unwrap();
    let n = snow.write_message(b"hello", &mut buf).unwrap();
    let responder = Responder::read_with(pattern, state(), &b, &buf[..n], false).unwrap();
    assert_eq!(responder.payload.as_slice(), b"hello");
    let (theirs, second) = responder.finish::<StandardCiphers>(&[4; 32], b"world").unwrap();
    let n = snow.read_message(&second, &mut buf).unwrap();
    assert_eq!(&buf[..n], b"world");
    assert_snow_keys(&mut snow, &theirs, true);
}

fn assert_snow_keys(snow: &mut snow::HandshakeState, keys: &Split, snow_initiates: bool) {
    assert!(snow.is_handshake_finished());
    let (forth, back) = snow.dangerously_get_raw_split();
    assert_eq!(snow.is_initiator(), snow_initiates);
    assert_eq!((&forth, &back), (keys.forth.expose(), keys.back.expose()));
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(64.min(ProptestConfig::default().cases)))]

    #[test]
    fn garbage_is_refused(bytes in proptest::collection::vec(any::<u8>(), 0..1_400)) {
        let (a, b) = keys();
        prop_assert!(Responder::read(NoisePattern::Known, b"prologue", &b, &bytes).is_err());
        let (initiator, _) = first();
        prop_assert!(initiator.finish(Some(&a), &bytes).is_err());
    }

    #[test]
    fn every_flipped_bit_is_refused(at in 0_usize..1_301 * 8) {
        let (_, b) = keys();
        let (_, mut message) = first();
        message[at / 8] ^= 1 << (at % 8);
        // The curve ignores the top bit of an X25519 point, but the transcript does not.
        prop_assert!(Responder::read(NoisePattern::Known, b"prologue", &b, &message).is_err());
    }
}

/// Prologue of a link with a lead and no cookie.
fn golden_prologue() -> Vec<u8> {
    [b"shoal \x05link".as_slice(), &[6; 16], &[0; 12]].concat()
}

/// Handshake messages made from docs/design/wire without this code, read and written.
#[test]
fn golden_handshake() {
    use crate::config::SessionRole;
    use crate::outer::OuterSeal;
    use crate::vector_tests::vector;
    use shoal_crypto::{Identity, NetworkSecret};
    use shoal_wire::{FirstPayload, HandshakeRequest};

    let (a, b) = (Identity::from_seed([3; 32]), Identity::from_seed([2; 32]));
    let outer = OuterSeal::new(SessionRole::Link.label(), &NetworkSecret([1; 32]), &b.public());
    let prologue = golden_prologue();
    let mut frame = vector("request");
    let (lead, body) = outer.open_request(&mut frame).unwrap();
    assert_eq!(lead, [6; 16]);
    let request = HandshakeRequest::parse(body).unwrap();
    let said = FirstPayload {
        index: 0x0100_0002,
        mask_key: [7; 32],
        incarnation: 8,
        timestamp: 9_042,
        weakest: shoal_wire::Level::Encrypt,
        suites: 3,
        processor: 2,
        lanes: 2,
    };

    // Decode: the responder reads it.
    let responder =
        Responder::read(NoisePattern::Known, &prologue, b.dh(), &request.noise[..]).unwrap();
    assert_eq!(responder.peer, Some(a.public().dh));
    assert!(FirstPayload::parse(&responder.payload) == Ok(said));

    // Encode: equal keys give equal bytes, seal included.
    let kem = vector("kem-secret");
    let public: [u8; KEM_PUBLIC_LEN] = kem[1_152..1_152 + KEM_PUBLIC_LEN].try_into().unwrap();
    let kem = (KemSecret::from_bytes(&kem).unwrap(), Box::new(public));
    let state = Symmetric::new(NoisePattern::Known.name(), &prologue, &b.public().dh);
    let (initiator, first) = Initiator::start_with(
        state,
        Some(a.dh()),
        &b.public().dh,
        &[4; 32],
        Some(kem),
        &said.to_bytes(),
    )
    .unwrap();
    let noise = first.as_slice().try_into().unwrap();
    let mut again = vec![0; 1_440];
    HandshakeRequest { cookie: [0; 12], shown_s: 9, noise }.write(&mut again[16..1_424]).unwrap();
    outer.seal_request(&lead, &mut again);
    assert_eq!(again, vector("request"));

    golden_answer(&outer, &lead, &initiator, &responder, a.dh());
}

/// The recorded response, and the keys that follow from it.
fn golden_answer(
    outer: &crate::outer::OuterSeal,
    lead: &crate::outer::Lead,
    initiator: &Initiator,
    responder: &Responder,
    own: &DhSecret,
) {
    use crate::vector_tests::vector;
    use shoal_wire::{HandshakeReply, Removal, RemovalReason, SecondPayload, shake};

    let mut reply = vector("response");
    assert_eq!(reply[..16], outer.token(lead));
    let key = initiator.response_key();
    assert!(key == responder.response_key());
    let Ok(HandshakeReply::Response(noise)) =
        HandshakeReply::parse(outer.open_reply(lead, Some(&key), &mut reply).unwrap())
    else {
        panic!("a response")
    };
    let (split, payload) = initiator.finish(Some(own), &noise[..]).unwrap();
    let want = SecondPayload {
        index: 0x0500_0007,
        mask_key: [12; 32],
        level: shoal_wire::Level::Encrypt,
        suite: 1,
        processor: 4,
        lanes: 2,
        suites: 1,
    };
    assert!(SecondPayload::parse(&payload) == Ok(want));
    let keys = [&split.forth.expose()[..], split.back.expose()].concat();
    assert_eq!(keys, vector("split"));

    let mut cookie = vector("cookie");
    let body = outer.open_reply(lead, None, &mut cookie).unwrap();
    assert_eq!(HandshakeReply::parse(body), Ok(HandshakeReply::Cookie([13; 12])));

    let removal = Removal { reason: RemovalReason::Registrar, day: 20_785 };
    let mut removed = vector("removed");
    let body = outer.open_reply(lead, Some(&key), &mut removed).unwrap();
    assert_eq!(HandshakeReply::parse(body), Ok(HandshakeReply::Removed(removal)));
    let mut again = vec![0; 1_440];
    HandshakeReply::Removed(removal).write(&mut again[shake::REPLY_AT..1_424]).unwrap();
    outer.seal_reply(lead, &[11; 16], Some(&key), &mut again);
    assert_eq!(again, vector("removed"));
}

/// Forged replies of a member that has the network's secret but neither end's key.
#[test]
fn golden_forged_replies() {
    use crate::config::SessionRole;
    use crate::outer::OuterSeal;
    use crate::vector_tests::vector;
    use shoal_crypto::{Identity, NetworkSecret};
    use shoal_wire::HandshakeRequest;

    let b = Identity::from_seed([2; 32]);
    let outer = OuterSeal::new(SessionRole::Link.label(), &NetworkSecret([1; 32]), &b.public());
    let mut request = vector("request");
    let (lead, body) = outer.open_request(&mut request).unwrap();
    let noise = HandshakeRequest::parse(body).unwrap().noise;
    let key = Responder::read(NoisePattern::Known, &golden_prologue(), b.dh(), &noise[..])
        .unwrap()
        .response_key();
    assert!(outer.open_reply(&lead, Some(&key), &mut vector("response")).is_ok());
    for forged in ["bad-response", "bad-removed"].map(vector) {
        assert_eq!(forged[..16], outer.token(&lead));
        assert!(outer.open_reply(&lead, None, &mut forged.clone()).is_ok());
        assert!(outer.open_reply(&lead, Some(&key), &mut forged.clone()).is_err());
    }
}

/// Response of a circuit's new hop, made from docs/design/wire without Shoal, gives the recorded
/// keys.
#[test]
fn golden_anonymous_handshake() {
    use crate::outer::OuterSeal;
    use crate::vector_tests::{vector, vector_of};
    use shoal_crypto::{Identity, NetworkSecret, kdf};

    let hop = Identity::from_seed([2; 32]).public();
    let outer = OuterSeal::new(b"leg", &NetworkSecret([1; 32]), &hop);
    let kem = vector("kem-secret");
    let public: [u8; KEM_PUBLIC_LEN] = kem[1_152..1_152 + KEM_PUBLIC_LEN].try_into().unwrap();
    let kem = (KemSecret::from_bytes(&kem).unwrap(), Box::new(public));
    let state = Symmetric::new(NoisePattern::Anonymous.name(), b"shoal \x05leg", &hop.dh);
    // Leg secret, suites AES-256-GCM and AEGIS-256X4, processor with 512-bit VAES, 3 places, place
    // 2, ten minutes. Stop-and-go mix of 5 ms, at most 25 ms.
    let offer = [&[21; 32][..], &[5, 4, 3, 2, 60], &[2, 0, 50, 0, 250]].concat();
    let (initiator, first) =
        Initiator::start_with(state, None, &hop.dh, &[4; 32], Some(kem), &offer).unwrap();
    let mut create = vector_of("onion", "create");
    let (_, body) = outer.open_request(&mut create).unwrap();
    // Type, version, proof, shown time and the sealed grant come first.
    assert!(body[70..70 + first.len()] == first[..]);

    // The asking node has the seed 03*32.
    let both = Identity::from_seed([3; 32]).dh().agree(&hop.dh).unwrap();
    let bond = kdf(both.expose(), "shoal v1 leg bond", &[]);
    let shared = Secret::new(kdf(&[21; 32], "shoal v1 leg created", &[&bond]));
    let mut created = vector_of("onion", "created");
    let body = outer.open_reply(&[6; 16], Some(&shared), &mut created).unwrap();
    let noise = &body[2 + 36..2 + 36 + NoisePattern::Anonymous.second_len() + 3];
    let (split, terms) = initiator.finish(None, noise).unwrap();
    assert_eq!(terms[..], [3, 4, 5]);
    let keys = [&split.forth.expose()[..], split.back.expose()].concat();
    assert_eq!(keys, vector_of("onion", "hop-split"));
}
