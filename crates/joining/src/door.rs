//! The handshake at a registrar's door (docs/design/wire/join.md).
//!
//! ```text
//! hello    192 bytes: R 16 | sealed: type 1 (= 1), version 1, zeroes | tag 16
//! cookie   192 bytes: token of R 16 | salt 16
//!          | sealed: type 1 (= 2), version 1, cookie 12, zeroes | tag 16
//! knock    3 times 576 bytes: random 16
//!          | sealed: type 1 (= 3), version 1, cookie 12, number 16, place 1,
//!            480 bytes of Noise IKhfs 1 (token 16, zeroes), zeroes | tag 16
//! welcome  3 times 576 bytes: token of the number 16 | salt 16
//!          | sealed: type 1 (= 4), version 1, run 8, place 1,
//!            480 bytes of Noise IKhfs 2 (time 8, reason 1, kind 1, zeroes), zeroes | tag 16
//! ```
//!
//! The seals are those of handshakes between nodes (docs/design/wire/session.md), with the role
//! "join" and the door secret instead of the network secret. So a stranger's bytes cost one AEAD
//! operation and get no answer, and each answer is as long as the question. Knocks are reassembled
//! only with a valid cookie, so a forged source address costs the registrar neither memory nor
//! public-key work.

use shoal_crypto::{Identity, PublicKey, Rng, StandardCiphers};
use shoal_session::cookie::Cookie;
use shoal_session::noise::{Initiator, NoisePattern, Responder};
use shoal_session::outer::{Lead, OuterSeal};
use shoal_wire::{DropReason, Reader, TAG_LEN, VERSION, shake};

use crate::frame::{Channel, LARGE_LEN, SMALL_LEN, prologue};
use crate::invite::DoorSecret;
use crate::messages::{Refusal, VisitorKind};
use crate::tokens::Token;

/// Role in the labels of the outer seal.
const ROLE: &[u8] = b"join";
/// Number of parts of a knock or a welcome.
pub(crate) const PARTS: usize = 3;
/// Bytes of the Noise message in each part.
pub(crate) const PART_LEN: usize = 480;
const MESSAGE_LEN: usize = PARTS * PART_LEN;
const KNOCK_PAYLOAD: usize = MESSAGE_LEN - NoisePattern::Known.first_len();
const WELCOME_PAYLOAD: usize = MESSAGE_LEN - NoisePattern::Known.second_len();
const RUN_LEN: usize = 8;
const TIME_LEN: usize = 8;

const HELLO: u8 = 1;
const COOKIE: u8 = 2;
const KNOCK: u8 = 3;
const WELCOME: u8 = 4;

const _: () = assert!(KNOCK_PAYLOAD >= Token::LEN && WELCOME_PAYLOAD > TIME_LEN + 1);
const _: () = assert!(
    shake::REQUEST_AT + 2 + shake::COOKIE_LEN + shake::LEAD_LEN + 1 + PART_LEN + TAG_LEN
        <= LARGE_LEN
);
const _: () = assert!(shake::REPLY_AT + 2 + RUN_LEN + 1 + PART_LEN + TAG_LEN <= LARGE_LEN);

/// The parts of a Noise message that have arrived.
pub(crate) type KnockParts = [Option<Box<[u8; PART_LEN]>>; PARTS];

/// The whole message, if all parts are there.
pub(crate) fn whole(places: &KnockParts) -> Option<Vec<u8>> {
    let parts: Option<Vec<&[u8]>> = places.iter().map(|part| Some(&part.as_ref()?[..])).collect();
    Some(parts?.concat())
}

/// Builds a frame of this length whose body, at `at`, begins with type, version and these bytes.
fn frame(len: usize, at: usize, kind: u8, bytes: &[&[u8]]) -> Vec<u8> {
    let mut frame = vec![0; len];
    let body = [&[kind, VERSION], bytes.concat().as_slice()].concat();
    frame[at..at + body.len()].copy_from_slice(&body);
    frame
}

/// The body after type and version.
///
/// Errors: `malformed`: another type. `bad_version`.
fn body(body: &[u8], kind: u8) -> Result<Reader<'_>, DropReason> {
    let mut reader = Reader::new(body);
    let mut byte = || reader.u8("head of a frame").map_err(|_| DropReason::Malformed);
    match (byte()?, byte()?) {
        (found, VERSION) if found == kind => Ok(reader),
        (found, _) if found == kind => Err(DropReason::BadVersion),
        _ => Err(DropReason::Malformed),
    }
}

/// The place of a part and its bytes.
fn part(mut reader: Reader<'_>) -> Result<(usize, Box<[u8; PART_LEN]>), DropReason> {
    let malformed = |_| DropReason::Malformed;
    let place = usize::from(reader.u8("place").map_err(malformed)?);
    let bytes = reader.array("part").map_err(malformed)?;
    let clear = reader.rest().iter().all(|&byte| byte == 0);
    let good = place < PARTS && clear;
    good.then_some((place, Box::new(bytes))).ok_or(DropReason::Malformed)
}

/// A newcomer's request for a cookie.
pub(crate) struct Hello {
    seal: OuterSeal,
    lead: Lead,
    /// The datagram, for the first sending and repetitions.
    pub(crate) frame: Vec<u8>,
}

impl Hello {
    pub(crate) fn new(registrar: &PublicKey, door: &DoorSecret, rng: &mut Rng) -> Hello {
        let seal = OuterSeal::new(ROLE, &door.outer(), registrar);
        let lead: Lead = rng.array();
        let mut frame = frame(SMALL_LEN, shake::REQUEST_AT, HELLO, &[]);
        seal.seal_request(&lead, &mut frame);
        Hello { seal, lead, frame }
    }

    /// Opens the answer and returns its cookie.
    ///
    /// Errors: `bad_handshake`: the frame is no answer to this request.
    pub(crate) fn cookie(&self, frame: &[u8]) -> Result<Cookie, DropReason> {
        let mut frame = frame.to_vec();
        if frame.len() != SMALL_LEN || !frame.starts_with(&self.seal.token(&self.lead)) {
            return Err(DropReason::BadHandshake);
        }
        let opened = self.seal.open_reply(&self.lead, None, &mut frame)?;
        body(opened, COOKIE)?.array("cookie").map_err(|_| DropReason::Malformed)
    }
}

/// A newcomer's knock that waits for the welcome.
pub(crate) struct Knock {
    seal: OuterSeal,
    number: Lead,
    noise: Initiator,
    own: Identity,
    /// The datagrams, for the first sending and repetitions.
    pub(crate) frames: Vec<Vec<u8>>,
    run: [u8; RUN_LEN],
    came: KnockParts,
}

/// A registrar's answer to a knock.
pub(crate) struct Welcome {
    pub(crate) channel: Channel,
    /// The reason if the registrar refuses the visitor. It has no state for the channel then.
    pub(crate) refused: Option<Refusal>,
    /// The kind of member that the token admits, or that the visitor is.
    pub(crate) kind: VisitorKind,
}

impl Knock {
    /// Builds a knock with a token. Members without a token send zeroes in its place.
    ///
    /// Errors: `bad_handshake`, if the registrar's key is invalid.
    pub(crate) fn new(
        own: &Identity,
        registrar: &PublicKey,
        door: &DoorSecret,
        (token, cookie): (&Token, &Cookie),
        rng: &mut Rng,
    ) -> Result<Knock, DropReason> {
        let seal = OuterSeal::new(ROLE, &door.outer(), registrar);
        let number: Lead = rng.array();
        let mut payload = [0; KNOCK_PAYLOAD];
        payload[..Token::LEN].copy_from_slice(token.expose());
        let (prologue, ephemeral) = (prologue(&number), rng.array());
        let noise = Initiator::start::<StandardCiphers>(
            &prologue,
            Some(own.dh()),
            &registrar.dh,
            &ephemeral,
            &payload,
        );
        let (noise, message) = noise.map_err(|_| DropReason::BadHandshake)?;
        let mut sealed = |(place, bytes): (usize, &[u8])| {
            let body: [&[u8]; 4] = [cookie, &number, &[place as u8], bytes];
            let mut frame = frame(LARGE_LEN, shake::REQUEST_AT, KNOCK, &body);
            seal.seal_part(&rng.array(), &mut frame);
            frame
        };
        let frames = message.chunks(PART_LEN).enumerate().map(&mut sealed).collect();
        let (run, came) = ([0; RUN_LEN], KnockParts::default());
        Ok(Knock { seal, number, noise, own: own.clone(), frames, run, came })
    }

    /// Adds a part of the welcome. Returns the welcome if no part is missing.
    ///
    /// Errors: `bad_handshake`: the frame is no answer to this request.
    pub(crate) fn take(&mut self, frame: &[u8]) -> Result<Option<Welcome>, DropReason> {
        let mut frame = frame.to_vec();
        if frame.len() != LARGE_LEN || !frame.starts_with(&self.seal.token(&self.number)) {
            return Err(DropReason::BadHandshake);
        }
        let shared = self.noise.response_key();
        let opened = self.seal.open_reply(&self.number, Some(&shared), &mut frame)?;
        let mut reader = body(opened, WELCOME)?;
        let run = reader.array("run").map_err(|_| DropReason::Malformed)?;
        let (place, bytes) = part(reader)?;
        if run != self.run {
            // The registrar read the knock again and made another welcome.
            (self.run, self.came) = (run, KnockParts::default());
        }
        self.came[place] = Some(bytes);
        let Some(message) = whole(&self.came) else { return Ok(None) };
        let finished = self.noise.finish(Some(self.own.dh()), &message);
        let (split, payload) = finished.map_err(|_| DropReason::BadHandshake)?;
        let mut reader = Reader::new(&payload);
        let malformed = |_| DropReason::Malformed;
        // The grant repeats the time.
        reader.u64("time").map_err(malformed)?;
        let refused = match reader.u8("reason").map_err(malformed)? {
            0 => None,
            value => Some(Refusal::of(value).ok_or(DropReason::Malformed)?),
        };
        let kind = reader.u8("kind").map_err(malformed)?;
        let kind = VisitorKind::of(kind).ok_or(DropReason::Malformed)?;
        Ok(Some(Welcome { channel: Channel::new(split, true), refused, kind }))
    }
}

/// A registrar's door.
pub(crate) struct Door {
    seal: OuterSeal,
    own: Identity,
}

/// A part of a knock.
pub(crate) struct KnockPart {
    pub(crate) cookie: Cookie,
    pub(crate) number: Lead,
    pub(crate) place: usize,
    pub(crate) bytes: Box<[u8; PART_LEN]>,
}

/// A visitor that knows the door secret and has proved the first half of its key.
pub(crate) struct Visitor {
    /// The first half of its public key.
    pub(crate) half: [u8; 32],
    pub(crate) token: Token,
    number: Lead,
    noise: Responder,
}

impl Door {
    pub(crate) fn new(own: Identity, door: &DoorSecret) -> Door {
        Door { seal: OuterSeal::new(ROLE, &door.outer(), &own.public()), own }
    }

    /// Opens a hello. Returns its leading bytes.
    ///
    /// Errors: `bad_handshake`: sealed with another secret. `malformed`, `bad_version`.
    pub(crate) fn hello(&self, frame: &[u8]) -> Result<Lead, DropReason> {
        let mut frame = frame.to_vec();
        let (lead, opened) = self.seal.open_request(&mut frame)?;
        let clear = body(opened, HELLO)?.rest().iter().all(|&byte| byte == 0);
        clear.then_some(lead).ok_or(DropReason::Malformed)
    }

    /// Builds the answer to a hello.
    pub(crate) fn cookie(&self, lead: &Lead, cookie: &Cookie, rng: &mut Rng) -> Vec<u8> {
        let mut frame = frame(SMALL_LEN, shake::REPLY_AT, COOKIE, &[cookie]);
        self.seal.seal_reply(lead, &rng.array(), None, &mut frame);
        frame
    }

    /// Opens a part of a knock.
    ///
    /// Errors: `bad_handshake`: sealed with another secret. `malformed`, `bad_version`.
    pub(crate) fn part(&self, frame: &[u8]) -> Result<KnockPart, DropReason> {
        let mut frame = frame.to_vec();
        let (_, opened) = self.seal.open_part(&mut frame)?;
        let mut reader = body(opened, KNOCK)?;
        let malformed = |_| DropReason::Malformed;
        let cookie = reader.array("cookie").map_err(malformed)?;
        let number = reader.array("number").map_err(malformed)?;
        let (place, bytes) = part(reader)?;
        Ok(KnockPart { cookie, number, place, bytes })
    }

    /// Reads a reassembled knock.
    ///
    /// Errors: `bad_handshake`.
    pub(crate) fn read(&self, number: Lead, message: &[u8]) -> Result<Visitor, DropReason> {
        let noise =
            Responder::read(NoisePattern::Known, &prologue(&number), self.own.dh(), message);
        let noise = noise.map_err(|_| DropReason::BadHandshake)?;
        let token = noise.payload.first_chunk().ok_or(DropReason::BadHandshake)?;
        let token = Token::new(*token);
        let half = noise.peer.ok_or(DropReason::BadHandshake)?;
        Ok(Visitor { half, token, number, noise })
    }

    /// Answers a visitor. Returns the channel and the datagrams of the welcome, which may hold a
    /// refusal.
    ///
    /// Errors: `bad_handshake`.
    pub(crate) fn welcome(
        &self,
        visitor: Visitor,
        unix_s: u64,
        (refused, kind): (Option<Refusal>, VisitorKind),
        rng: &mut Rng,
    ) -> Result<(Channel, Vec<Vec<u8>>), DropReason> {
        let Visitor { number, noise, .. } = visitor;
        let shared = noise.response_key();
        let mut payload = [0; WELCOME_PAYLOAD];
        payload[..TIME_LEN].copy_from_slice(&unix_s.to_be_bytes());
        payload[TIME_LEN] = refused.map_or(0, |why| why as u8);
        payload[TIME_LEN + 1] = kind as u8;
        let finished = noise.finish::<StandardCiphers>(&rng.array(), &payload);
        let (split, message) = finished.map_err(|_| DropReason::BadHandshake)?;
        let run: [u8; RUN_LEN] = rng.array();
        let mut sealed = |(place, bytes): (usize, &[u8])| {
            let body: [&[u8]; 3] = [&run, &[place as u8], bytes];
            let mut frame = frame(LARGE_LEN, shake::REPLY_AT, WELCOME, &body);
            self.seal.seal_reply(&number, &rng.array(), Some(&shared), &mut frame);
            frame
        };
        let frames = message.chunks(PART_LEN).enumerate().map(&mut sealed).collect();
        Ok((Channel::new(split, false), frames))
    }
}

#[cfg(test)]
#[path = "door_tests.rs"]
mod tests;
