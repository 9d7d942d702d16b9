//! The handshake at a registrar's door (docs/joining.md section 3).
//!
//! ```text
//! knock   1,400 bytes: R 16 | sealed by the door secret: Noise IKhfs 1 (token 16, zeroes) | tag 16
//! welcome 1,400 bytes: token of R 16 | salt 16 | sealed: Noise IKhfs 2 (time 8, zeroes) | tag 16
//! ```
//!
//! The seals are those of handshakes between nodes (docs/wire.md section 8) with the role "join",
//! made from the door secret in place of the network's. So a stranger's bytes cost one AEAD and get
//! no answer; the welcome is no longer than the knock.

use shoal_crypto::{Identity, PublicKey, Rng};
use shoal_session::noise::{Initiator, Pattern, Responder};
use shoal_session::outer::{Lead, OuterSeal};
use shoal_wire::{DropReason, TAG_LEN, shake};

use crate::frame::{Channel, HANDSHAKE_LEN, prologue};
use crate::invite::DoorSecret;
use crate::tokens::Token;

/// The role in the labels of the outer seal.
const ROLE: &[u8] = b"join";
const KNOCK_PAYLOAD: usize =
    HANDSHAKE_LEN - shake::REQUEST_AT - TAG_LEN - Pattern::Known.first_len();
const WELCOME_PAYLOAD: usize =
    HANDSHAKE_LEN - shake::REPLY_AT - TAG_LEN - Pattern::Known.second_len();
const TIME_LEN: usize = 8;

const _: () = assert!(KNOCK_PAYLOAD >= Token::LEN && WELCOME_PAYLOAD >= TIME_LEN);

/// A newcomer who waits at the door.
pub(crate) struct Knock {
    seal: OuterSeal,
    lead: Lead,
    noise: Initiator,
    own: Identity,
    /// The datagram to send, as often as it takes.
    pub(crate) frame: Vec<u8>,
}

impl Knock {
    /// Knocks with a token; members who have none show zeroes.
    ///
    /// Errors: `bad_handshake`, if the registrar's key is none.
    pub(crate) fn new(
        own: &Identity,
        registrar: &PublicKey,
        door: &DoorSecret,
        token: &Token,
        rng: &mut Rng,
    ) -> Result<Knock, DropReason> {
        let seal = OuterSeal::new(ROLE, &door.outer(), registrar);
        let lead: Lead = rng.array();
        let mut payload = [0; KNOCK_PAYLOAD];
        payload[..Token::LEN].copy_from_slice(token.expose());
        let (prologue, ephemeral) = (prologue(&lead), rng.array());
        let noise =
            Initiator::start(&prologue, Some(own.dh()), &registrar.dh, &ephemeral, &payload);
        let (noise, message) = noise.map_err(|_| DropReason::BadHandshake)?;
        let mut frame = vec![0; HANDSHAKE_LEN];
        frame[shake::REQUEST_AT..shake::REQUEST_AT + message.len()].copy_from_slice(&message);
        seal.seal_request(&lead, &mut frame);
        Ok(Knock { seal, lead, noise, own: own.clone(), frame })
    }

    /// Opens the answer: the channel, and the registrar's clock in seconds since 1970.
    ///
    /// Errors: `bad_handshake`: it is none.
    pub(crate) fn welcomed(&self, frame: &[u8]) -> Result<(Channel, u64), DropReason> {
        let mut frame = frame.to_vec();
        if !frame.starts_with(&self.seal.token(&self.lead)) {
            return Err(DropReason::BadHandshake);
        }
        let shared = self.noise.response_key();
        let body = self.seal.open_reply(&self.lead, Some(&shared), &mut frame)?;
        let (split, payload) =
            self.noise.finish(Some(self.own.dh()), body).map_err(|_| DropReason::BadHandshake)?;
        let time = payload.first_chunk().ok_or(DropReason::BadHandshake)?;
        Ok((Channel::new(split, true), u64::from_be_bytes(*time)))
    }
}

/// A registrar's door.
pub(crate) struct Door {
    seal: OuterSeal,
    own: Identity,
}

/// Somebody who knows the door secret, and whose half of a key is proved.
pub(crate) struct Visitor {
    /// The first half of its public key.
    pub(crate) half: [u8; 32],
    pub(crate) token: Token,
    lead: Lead,
    noise: Responder,
}

impl Door {
    pub(crate) fn new(own: Identity, door: &DoorSecret) -> Door {
        Door { seal: OuterSeal::new(ROLE, &door.outer(), &own.public()), own }
    }

    /// Opens the seal of the door secret: a knock's leading bytes, and what stands inside, on which
    /// public-key work may be spent.
    ///
    /// Errors: `bad_size`, `bad_handshake`: a stranger's.
    pub(crate) fn sealed<'a>(&self, frame: &'a mut [u8]) -> Result<(Lead, &'a [u8]), DropReason> {
        if frame.len() != HANDSHAKE_LEN {
            return Err(DropReason::BadSize);
        }
        self.seal.open_request(frame)
    }

    /// Reads what stood inside.
    ///
    /// Errors: `bad_handshake`.
    pub(crate) fn read(&self, lead: Lead, body: &[u8]) -> Result<Visitor, DropReason> {
        let noise = Responder::read(Pattern::Known, &prologue(&lead), self.own.dh(), body);
        let noise = noise.map_err(|_| DropReason::BadHandshake)?;
        let token = noise.payload.first_chunk().ok_or(DropReason::BadHandshake)?;
        let token = Token::new(*token);
        let half = noise.peer.ok_or(DropReason::BadHandshake)?;
        Ok(Visitor { half, token, lead, noise })
    }

    /// Lets a visitor in: the channel, and the datagram that says so.
    ///
    /// Errors: `bad_handshake`.
    pub(crate) fn welcome(
        &self,
        visitor: Visitor,
        unix_s: u64,
        rng: &mut Rng,
    ) -> Result<(Channel, Vec<u8>), DropReason> {
        let Visitor { lead, noise, .. } = visitor;
        let shared = noise.response_key();
        let mut payload = [0; WELCOME_PAYLOAD];
        payload[..TIME_LEN].copy_from_slice(&unix_s.to_be_bytes());
        let finished = noise.finish(&rng.array(), &payload);
        let (split, message) = finished.map_err(|_| DropReason::BadHandshake)?;
        let mut frame = vec![0; HANDSHAKE_LEN];
        frame[shake::REPLY_AT..shake::REPLY_AT + message.len()].copy_from_slice(&message);
        self.seal.seal_reply(&lead, &rng.array(), Some(&shared), &mut frame);
        Ok((Channel::new(split, false), frame))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn rng(seed: u8) -> Rng {
        Rng::new([seed; 32])
    }

    fn parties() -> (Identity, Identity, DoorSecret, Token) {
        let [own, registrar] = [1, 2].map(|seed| Identity::from_seed([seed; 32]));
        (own, registrar, DoorSecret::new([3; 16]), Token::new([4; 16]))
    }

    #[test]
    fn both_ends_have_one_channel_and_one_set_of_words() {
        let (own, registrar, secret, token) = parties();
        let knock = Knock::new(&own, &registrar.public(), &secret, &token, &mut rng(5)).unwrap();
        assert_eq!(knock.frame.len(), HANDSHAKE_LEN);
        let door = Door::new(registrar, &secret);
        let mut frame = knock.frame.clone();
        let (lead, body) = door.sealed(&mut frame).unwrap();
        let visitor = door.read(lead, body).unwrap();
        assert_eq!((visitor.half, &visitor.token), (own.public().dh, &token));
        let (mut theirs, welcome) = door.welcome(visitor, 77, &mut rng(6)).unwrap();
        assert_eq!(welcome.len(), knock.frame.len(), "no more goes back than came");
        let (mut ours, time) = knock.welcomed(&welcome).unwrap();
        assert_eq!((time, ours.binding(), ours.words()), (77, theirs.binding(), theirs.words()));
        let frame = ours.seal([7; 16], b"hello").unwrap();
        assert!(theirs.open(&frame).unwrap().starts_with(b"hello"));
        let frame = theirs.seal([8; 16], b"welcome").unwrap();
        assert!(ours.open(&frame).unwrap().starts_with(b"welcome"));
    }

    #[test]
    fn strangers_and_changed_frames_are_turned_away() {
        let (own, registrar, secret, token) = parties();
        let knock = Knock::new(&own, &registrar.public(), &secret, &token, &mut rng(5)).unwrap();
        let other = Door::new(registrar.clone(), &DoorSecret::new([9; 16]));
        assert_eq!(other.sealed(&mut knock.frame.clone()).err(), Some(DropReason::BadHandshake));
        let door = Door::new(registrar, &secret);
        for at in (0..HANDSHAKE_LEN).step_by(7) {
            let mut wrong = knock.frame.clone();
            wrong[at] ^= 1;
            assert_eq!(door.sealed(&mut wrong).err(), Some(DropReason::BadHandshake));
        }
        let mut short = knock.frame[1..].to_vec();
        assert_eq!(door.sealed(&mut short).err(), Some(DropReason::BadSize));
        let mut frame = knock.frame.clone();
        let (lead, body) = door.sealed(&mut frame).unwrap();
        let (_, welcome) = door.welcome(door.read(lead, body).unwrap(), 1, &mut rng(6)).unwrap();
        for at in (0..HANDSHAKE_LEN).step_by(7) {
            let mut wrong = welcome.clone();
            wrong[at] ^= 1;
            assert!(knock.welcomed(&wrong).is_err(), "byte {at}");
        }
        assert!(knock.welcomed(&welcome).is_ok(), "none of these used the knock up");
        assert!(knock.welcomed(&[]).is_err());
    }
}
