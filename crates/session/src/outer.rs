//! Outer seal of handshake frames: strangers see random bytes and get no answer.
//!
//! ```text
//! request: | R 16                | sealed body | tag 16 |    key = kdf(request, R)
//! cookie:  | token 16 | salt 16  | sealed body | tag 16 |    key = kdf(reply, R, salt)
//! response:| token 16 | salt 16  | sealed body | tag 16 |    key = kdf(reply, R, salt, H)
//! ```
//!
//! The keys follow from the network's secret and the responder's public key
//! (docs/design/wire/session.md). They prove no identity; the Noise messages inside do. H is a key
//! that only the two ends know after the first Noise message. Another member can therefore forge a
//! cookie reply, but not a response. However many forged responses it sends, none costs public-key
//! work or displaces the true one.

use std::sync::Arc;

use shoal_crypto::{AeadKey, NetworkSecret, NetworkSecrets, PublicKey, Secret, Suite, kdf};
use shoal_wire::{DropReason, SizeClass, TAG_LEN, shake};

/// Keys that seal handshakes with one responder, around their Noise messages.
pub struct OuterSeal {
    secret: NetworkSecret,
    request: Secret<32>,
    reply: Secret<32>,
    part: Secret<32>,
}

/// Random bytes at the start of a request.
pub type Lead = [u8; shake::LEAD_LEN];

/// Key that the two ends share after the first Noise message. A cookie reply is sealed without it.
pub type ResponseKey<'a> = Option<&'a Secret<32>>;

impl OuterSeal {
    /// `role` is the label of the handshake's purpose.
    pub fn new(role: &[u8], secret: &NetworkSecret, responder: &PublicKey) -> OuterSeal {
        let parts: [&[u8]; 2] = [role, &responder.to_bytes()];
        OuterSeal {
            secret: secret.clone(),
            request: Secret::new(kdf(&secret.0, "shoal v1 handshake request", &parts)),
            reply: Secret::new(kdf(&secret.0, "shoal v1 handshake reply", &parts)),
            part: Secret::new(kdf(&secret.0, "shoal v1 handshake part", &parts)),
        }
    }

    /// The network secret from which the keys follow.
    pub(crate) fn secret(&self) -> &NetworkSecret {
        &self.secret
    }

    /// First bytes of the reply to the request `lead`.
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

    fn reply_key(&self, lead: &Lead, salt: &[u8], shared: ResponseKey<'_>) -> AeadKey {
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

    /// Writes `lead` and seals the part of a handshake frame after it.
    pub fn seal_part(&self, lead: &Lead, frame: &mut [u8]) {
        frame[..shake::LEAD_LEN].copy_from_slice(lead);
        seal(&self.part_key(lead), &mut frame[shake::REQUEST_AT..]);
    }

    /// Opens a part in place. Returns its leading bytes and its body.
    pub fn open_part<'a>(&self, frame: &'a mut [u8]) -> Result<(Lead, &'a [u8]), DropReason> {
        let (lead, sealed) = frame.split_first_chunk_mut().ok_or(DropReason::BadSize)?;
        Ok((*lead, open(&self.part_key(lead), sealed)?))
    }

    /// Writes `lead` and seals the body after it.
    pub fn seal_request(&self, lead: &Lead, frame: &mut [u8]) {
        frame[..shake::LEAD_LEN].copy_from_slice(lead);
        seal(&self.request_key(lead), &mut frame[shake::REQUEST_AT..]);
    }

    /// Opens a request in place. Returns its leading bytes and its body.
    pub fn open_request<'a>(&self, frame: &'a mut [u8]) -> Result<(Lead, &'a [u8]), DropReason> {
        let (lead, sealed) = frame.split_first_chunk_mut().ok_or(DropReason::BadSize)?;
        Ok((*lead, open(&self.request_key(lead), sealed)?))
    }

    /// Writes token and salt, and seals the body after them.
    pub fn seal_reply(
        &self,
        lead: &Lead,
        salt: &[u8; shake::SALT_LEN],
        shared: ResponseKey<'_>,
        frame: &mut [u8],
    ) {
        frame[..shake::LEAD_LEN].copy_from_slice(&self.token(lead));
        frame[shake::LEAD_LEN..shake::REPLY_AT].copy_from_slice(salt);
        seal(&self.reply_key(lead, salt, shared), &mut frame[shake::REPLY_AT..]);
    }

    /// Opens the reply to the request `lead` in place. Returns its body.
    pub fn open_reply<'a>(
        &self,
        lead: &Lead,
        shared: ResponseKey<'_>,
        frame: &'a mut [u8],
    ) -> Result<&'a [u8], DropReason> {
        let (head, sealed) =
            frame.split_at_mut_checked(shake::REPLY_AT).ok_or(DropReason::BadSize)?;
        open(&self.reply_key(lead, &head[shake::LEAD_LEN..], shared), sealed)
    }
}

/// Seals of requests to one responder: two during a change of the network's secret.
pub struct OuterSeals {
    first: Arc<OuterSeal>,
    other: Option<Arc<OuterSeal>>,
}

/// Seal that opened a frame. The answer is sealed under it too.
pub type SharedOuterSeal = Arc<OuterSeal>;

impl OuterSeals {
    /// See [`OuterSeal::new`].
    pub fn new(role: &[u8], secrets: &NetworkSecrets, responder: &PublicKey) -> OuterSeals {
        let seal = |secret| Arc::new(OuterSeal::new(role, secret, responder));
        OuterSeals { first: seal(&secrets.first), other: secrets.other.as_ref().map(seal) }
    }

    /// Opens a request in place, like [`OuterSeal::open_request`]. Also returns the seal that
    /// opened it.
    pub fn open_request<'a>(
        &self,
        frame: &'a mut [u8],
    ) -> Result<(Lead, &'a [u8], SharedOuterSeal), DropReason> {
        let (lead, opener) =
            self.open_with(frame, |seal, frame| seal.open_request(frame).map(|(lead, _)| lead))?;
        Ok((lead, body(frame), SharedOuterSeal::clone(opener)))
    }

    /// Opens a part in place, like [`OuterSeal::open_part`].
    pub fn open_part<'a>(&self, frame: &'a mut [u8]) -> Result<(Lead, &'a [u8]), DropReason> {
        let (lead, _) =
            self.open_with(frame, |seal, frame| seal.open_part(frame).map(|(lead, _)| lead))?;
        Ok((lead, body(frame)))
    }

    /// Opens a frame under the first seal, or else under the second if there is one. Returns the
    /// seal that opened it. With two seals, a stranger's frame costs two trials. A failed trial in
    /// place destroys the frame, so the second trial uses a copy.
    fn open_with(
        &self,
        frame: &mut [u8],
        opens: impl Fn(&OuterSeal, &mut [u8]) -> Result<Lead, DropReason>,
    ) -> Result<(Lead, &SharedOuterSeal), DropReason> {
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

/// Body of an opened request or part.
fn body(frame: &[u8]) -> &[u8] {
    &frame[shake::REQUEST_AT..frame.len() - TAG_LEN]
}

/// Seals all but the last 16 bytes and writes the tag there. Each key seals one frame, so the nonce
/// is 0.
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
    use crate::config::SessionRole;
    use shoal_crypto::Identity;

    #[test]
    fn opens_only_with_the_same_secret_responder_role_and_lead() {
        let key = |n| Identity::from_seed([n; 32]).public();
        let outer = |role: SessionRole, n, k| {
            OuterSeal::new(role.label(), &NetworkSecret([n; 32]), &key(k))
        };
        let good = outer(SessionRole::Link, 1, 1);
        let mut frame = vec![7; 192];
        good.seal_request(&[9; 16], &mut frame);
        for other in [
            outer(SessionRole::Edge, 1, 1),
            outer(SessionRole::Link, 2, 1),
            outer(SessionRole::Link, 1, 2),
        ] {
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
        let seal = |n| OuterSeal::new(SessionRole::Link.label(), &NetworkSecret([n; 32]), &key);
        let other = Some(NetworkSecret([2; 32]));
        let secrets = NetworkSecrets { first: NetworkSecret([1; 32]), other };
        let two = OuterSeals::new(SessionRole::Link.label(), &secrets, &key);
        let one = OuterSeals::new(SessionRole::Link.label(), &secrets.first.into(), &key);
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
