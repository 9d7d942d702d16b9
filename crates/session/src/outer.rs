//! The outer seal of handshake frames: strangers see random bytes and get no answer.
//!
//! ```text
//! request: | R 16                | sealed body | tag 16 |    key = kdf(request, R)
//! cookie:  | token 16 | salt 16  | sealed body | tag 16 |    key = kdf(reply, R, salt)
//! response:| token 16 | salt 16  | sealed body | tag 16 |    key = kdf(reply, R, salt, H)
//! ```
//!
//! The keys come from the network's secret and the responder's public key (docs/wire.md section 8).
//! They prove nothing about who speaks; the Noise messages inside do. H is what the two ends share
//! after the first Noise message. So another member can forge a cookie reply, but no response:
//! however many it sends, none of them costs public-key work or keeps the true one out.

use std::sync::Arc;

use shoal_crypto::{AeadKey, NetworkSecret, NetworkSecrets, PublicKey, Secret, Suite, kdf};
use shoal_wire::{DropReason, SizeClass, TAG_LEN, shake};

/// What handshakes with one responder are sealed under, around their Noise messages.
pub struct OuterSeal {
    secret: NetworkSecret,
    request: Secret<32>,
    reply: Secret<32>,
    part: Secret<32>,
}

/// Random bytes that lead a request.
pub type Lead = [u8; shake::LEAD_LEN];

/// What the two ends share after the first Noise message; a cookie reply is made without it.
pub type Shared<'a> = Option<&'a Secret<32>>;

impl OuterSeal {
    /// `role` is the name of what handshakes are made for.
    pub fn new(role: &[u8], secret: &NetworkSecret, responder: &PublicKey) -> OuterSeal {
        let parts: [&[u8]; 2] = [role, &responder.to_bytes()];
        OuterSeal {
            secret: secret.clone(),
            request: Secret::new(kdf(&secret.0, "shoal v1 handshake request", &parts)),
            reply: Secret::new(kdf(&secret.0, "shoal v1 handshake reply", &parts)),
            part: Secret::new(kdf(&secret.0, "shoal v1 handshake part", &parts)),
        }
    }

    /// The network's secret that its keys come from.
    pub(crate) fn secret(&self) -> &NetworkSecret {
        &self.secret
    }

    /// What the reply to the request `lead` starts with.
    pub fn token(&self, lead: &Lead) -> Lead {
        let long = kdf(self.reply.expose(), "token", &[lead]);
        let mut token = [0; shake::LEAD_LEN];
        token.copy_from_slice(&long[..shake::LEAD_LEN]);
        token
    }

    fn request_key(&self, lead: &Lead) -> AeadKey {
        let key = Secret::new(kdf(self.request.expose(), "seal", &[lead]));
        AeadKey::new(Suite::Aes256Gcm, key.expose())
    }

    fn reply_key(&self, lead: &Lead, salt: &[u8], shared: Shared<'_>) -> AeadKey {
        let derive = |parts: &[&[u8]]| Secret::new(kdf(self.reply.expose(), "seal", parts));
        let key = match shared {
            None => derive(&[lead, salt]),
            Some(shared) => derive(&[lead, salt, shared.expose()]),
        };
        AeadKey::new(Suite::Aes256Gcm, key.expose())
    }

    fn part_key(&self, lead: &Lead) -> AeadKey {
        let key = Secret::new(kdf(self.part.expose(), "seal", &[lead]));
        AeadKey::new(Suite::Aes256Gcm, key.expose())
    }

    /// Writes `lead` and seals the part of a handshake frame that stands behind it.
    pub fn seal_part(&self, lead: &Lead, frame: &mut [u8]) {
        frame[..shake::LEAD_LEN].copy_from_slice(lead);
        seal(&self.part_key(lead), &mut frame[shake::REQUEST_AT..]);
    }

    /// Opens a part in place: its leading bytes and its body.
    pub fn open_part<'a>(&self, frame: &'a mut [u8]) -> Result<(Lead, &'a [u8]), DropReason> {
        let (lead, sealed) = frame.split_first_chunk_mut().ok_or(DropReason::BadSize)?;
        Ok((*lead, open(&self.part_key(lead), sealed)?))
    }

    /// Writes `lead` and seals the body that stands behind it.
    pub fn seal_request(&self, lead: &Lead, frame: &mut [u8]) {
        frame[..shake::LEAD_LEN].copy_from_slice(lead);
        seal(&self.request_key(lead), &mut frame[shake::REQUEST_AT..]);
    }

    /// Opens a request in place: its leading bytes and its body.
    pub fn open_request<'a>(&self, frame: &'a mut [u8]) -> Result<(Lead, &'a [u8]), DropReason> {
        let (lead, sealed) = frame.split_first_chunk_mut().ok_or(DropReason::BadSize)?;
        Ok((*lead, open(&self.request_key(lead), sealed)?))
    }

    /// Writes token and salt and seals the body that stands behind them.
    pub fn seal_reply(
        &self,
        lead: &Lead,
        salt: &[u8; shake::SALT_LEN],
        shared: Shared<'_>,
        frame: &mut [u8],
    ) {
        frame[..shake::LEAD_LEN].copy_from_slice(&self.token(lead));
        frame[shake::LEAD_LEN..shake::REPLY_AT].copy_from_slice(salt);
        seal(&self.reply_key(lead, salt, shared), &mut frame[shake::REPLY_AT..]);
    }

    /// Opens the reply to the request `lead` in place: its body.
    pub fn open_reply<'a>(
        &self,
        lead: &Lead,
        shared: Shared<'_>,
        frame: &'a mut [u8],
    ) -> Result<&'a [u8], DropReason> {
        let (head, sealed) =
            frame.split_at_mut_checked(shake::REPLY_AT).ok_or(DropReason::BadSize)?;
        open(&self.reply_key(lead, &head[shake::LEAD_LEN..], shared), sealed)
    }
}

/// What requests to one responder may be sealed under: while the network's secret changes there are
/// two.
pub struct OuterSeals {
    first: Arc<OuterSeal>,
    other: Option<Arc<OuterSeal>>,
}

/// What opened a frame: its answer is sealed under the same.
pub type Opener = Arc<OuterSeal>;

impl OuterSeals {
    /// As [`OuterSeal::new`].
    pub fn new(role: &[u8], secrets: &NetworkSecrets, responder: &PublicKey) -> OuterSeals {
        let seal = |secret| Arc::new(OuterSeal::new(role, secret, responder));
        OuterSeals { first: seal(&secrets.first), other: secrets.other.as_ref().map(seal) }
    }

    /// Opens a request in place, as [`OuterSeal::open_request`], and says what opened it.
    pub fn open_request<'a>(
        &self,
        frame: &'a mut [u8],
    ) -> Result<(Lead, &'a [u8], Opener), DropReason> {
        let (lead, opener) =
            self.open_with(frame, |seal, frame| seal.open_request(frame).map(|(lead, _)| lead))?;
        Ok((lead, body(frame), Opener::clone(opener)))
    }

    /// Opens a part in place, as [`OuterSeal::open_part`].
    pub fn open_part<'a>(&self, frame: &'a mut [u8]) -> Result<(Lead, &'a [u8]), DropReason> {
        let (lead, _) =
            self.open_with(frame, |seal, frame| seal.open_part(frame).map(|(lead, _)| lead))?;
        Ok((lead, body(frame)))
    }

    /// Opens a frame under the first seal, or under the second if there is one and the first does
    /// not open it; says which. A stranger's frame costs two trials then. A trial in place destroys
    /// what it refuses, so while there are two a copy is kept for the second.
    fn open_with(
        &self,
        frame: &mut [u8],
        opens: impl Fn(&OuterSeal, &mut [u8]) -> Result<Lead, DropReason>,
    ) -> Result<(Lead, &Opener), DropReason> {
        let Some(other) = &self.other else { return Ok((opens(&self.first, frame)?, &self.first)) };
        let mut space = [0; SizeClass::Full.frame_len()];
        let copy = space.get_mut(..frame.len()).ok_or(DropReason::BadSize)?;
        copy.copy_from_slice(frame);
        if let Ok(lead) = opens(&self.first, frame) {
            return Ok((lead, &self.first));
        }
        frame.copy_from_slice(copy);
        Ok((opens(other, frame)?, other))
    }
}

/// The body of a request or a part that was opened.
fn body(frame: &[u8]) -> &[u8] {
    &frame[shake::REQUEST_AT..frame.len() - TAG_LEN]
}

/// Seals all but the last 16 bytes and writes the tag there. Each key seals one frame: nonce 0.
fn seal(key: &AeadKey, frame: &mut [u8]) {
    let body = frame.len() - TAG_LEN;
    let (body, tag_at) = frame.split_at_mut(body);
    let mut tag = [0; TAG_LEN];
    key.seal(0, &[], body, &mut tag);
    tag_at.copy_from_slice(&tag);
}

fn open<'a>(key: &AeadKey, sealed: &'a mut [u8]) -> Result<&'a [u8], DropReason> {
    key.open(0, &[], sealed).map_err(|_| DropReason::BadHandshake)?;
    Ok(&sealed[..sealed.len() - TAG_LEN])
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::Role;
    use shoal_crypto::Identity;

    #[test]
    fn opens_only_with_the_same_secret_responder_role_and_lead() {
        let key = |n| Identity::from_seed([n; 32]).public();
        let outer =
            |role: Role, n, k| OuterSeal::new(role.label(), &NetworkSecret([n; 32]), &key(k));
        let good = outer(Role::Link, 1, 1);
        let mut frame = vec![7; 192];
        good.seal_request(&[9; 16], &mut frame);
        for other in [outer(Role::Edge, 1, 1), outer(Role::Link, 2, 1), outer(Role::Link, 1, 2)] {
            let refused = other.open_request(&mut frame.clone()).map(|_| ());
            assert_eq!(refused, Err(DropReason::BadHandshake));
        }
        assert_eq!(good.open_request(&mut frame).map(|(lead, _)| lead), Ok([9; 16]));

        let mut reply = vec![7; 192];
        good.seal_reply(&[9; 16], &[3; 16], None, &mut reply);
        assert_eq!(reply[..16], good.token(&[9; 16]));
        let shared = [5, 6].map(|n| Secret::new([n; 32]));
        assert!(good.open_reply(&[8; 16], None, &mut reply.clone()).is_err());
        assert!(good.open_reply(&[9; 16], Some(&shared[0]), &mut reply.clone()).is_err());
        assert!(good.open_reply(&[9; 16], None, &mut reply).is_ok());
        assert!(good.open_reply(&[9; 16], None, &mut [0; 20]).is_err());
        good.seal_reply(&[9; 16], &[3; 16], Some(&shared[0]), &mut reply);
        for other in [None, Some(&shared[1])] {
            assert!(good.open_reply(&[9; 16], other, &mut reply.clone()).is_err());
        }
        assert!(good.open_reply(&[9; 16], Some(&shared[0]), &mut reply).is_ok());
        assert!(good.open_request(&mut [0; 10]).is_err());
    }

    #[test]
    fn a_frame_opens_in_place_under_either_secret_and_says_which() {
        let key = Identity::from_seed([1; 32]).public();
        let seal = |n| OuterSeal::new(Role::Link.label(), &NetworkSecret([n; 32]), &key);
        let other = Some(NetworkSecret([2; 32]));
        let secrets = NetworkSecrets { first: NetworkSecret([1; 32]), other };
        let two = OuterSeals::new(Role::Link.label(), &secrets, &key);
        let one = OuterSeals::new(Role::Link.label(), &secrets.first.into(), &key);
        for len in [192, SizeClass::Full.frame_len()] {
            for n in [1, 2] {
                let mut request = vec![7; len];
                seal(n).seal_request(&[9; 16], &mut request);
                assert_eq!(one.open_request(&mut request.clone()).is_ok(), n == 1);
                let (lead, body, opener) = two.open_request(&mut request).unwrap();
                assert_eq!((lead, opener.secret().0), ([9; 16], [n; 32]));
                assert!(body.len() == len - 32 && body.iter().all(|&byte| byte == 7));
                let mut part = vec![8; len];
                seal(n).seal_part(&[6; 16], &mut part);
                assert_eq!(one.open_part(&mut part.clone()).is_ok(), n == 1);
                let (lead, body) = two.open_part(&mut part).unwrap();
                assert!(lead == [6; 16] && body.len() == len - 32);
                assert!(body.iter().all(|&byte| byte == 8));
            }
            let mut strange = vec![7; len];
            seal(3).seal_request(&[9; 16], &mut strange);
            let refused = two.open_request(&mut strange).map(|_| ());
            assert_eq!(refused, Err(DropReason::BadHandshake));
        }
        for len in [0, 16, 31, SizeClass::Full.frame_len() + 1] {
            assert!(two.open_request(&mut vec![0; len]).is_err());
            assert!(two.open_part(&mut vec![0; len]).is_err());
        }
    }
}
