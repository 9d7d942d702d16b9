//! Noise `IKhfs` and `NKhfs`: the patterns IK and NK with the hybrid forward secrecy tokens e1 and
//! ekem1.
//!
//! ```text
//!      IKhfs                     NKhfs, whose initiator stays anonymous
//! <- s                      <- s
//! ...                       ...
//! -> e, es, e1, s, ss       -> e, es, e1
//! <- e, ee, ekem1, se       <- e, ee, ekem1
//! ```
//!
//! Sources: Noise Protocol Framework revision 34, sections 5 and 7.5, and its draft extension for
//! hybrid forward secrecy. DH is X25519, the KEM is ML-KEM-768, the cipher AESGCM, the hash SHA256.
//! Without the two hybrid tokens this code is plain IK and NK, which the tests compare with another
//! implementation.
//!
//! An error leaves the handshake unusable: drop it.

use shoal_crypto::{
    AeadKey, Ciphers, DhSecret, KEM_CIPHERTEXT_LEN, KEM_PUBLIC_LEN, KemSecret, Secret, Suite,
    hmac_sha256, sha256,
};
use zeroize::Zeroizing;

const RESPONSE_LABEL: &[u8] = b"shoal response";
const TAG: usize = AeadKey::TAG_LEN;

/// Content of a seal; wiped on drop.
type Plaintext = Zeroizing<Vec<u8>>;

/// Error: a message does not fit the pattern, or one of its seals does not verify.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("noise message refused")]
pub struct NoiseError;

/// Identities that the two ends prove. The responder always proves its long-term key.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum NoisePattern {
    /// `IKhfs`: the initiator proves its long-term key too.
    Known,
    /// `NKhfs`: the initiator has no long-term key.
    Anonymous,
}

impl NoisePattern {
    const fn name(self) -> &'static [u8] {
        match self {
            NoisePattern::Known => b"Noise_IKhfs_25519+MLKEM768_AESGCM_SHA256",
            NoisePattern::Anonymous => b"Noise_NKhfs_25519+MLKEM768_AESGCM_SHA256",
        }
    }

    /// Length in bytes of the first message, without its payload.
    pub const fn first_len(self) -> usize {
        let proved = match self {
            NoisePattern::Known => 32 + TAG,
            NoisePattern::Anonymous => 0,
        };
        32 + KEM_PUBLIC_LEN + TAG + proved + TAG
    }

    /// Length in bytes of the second message, without its payload.
    pub const fn second_len(self) -> usize {
        32 + KEM_CIPHERTEXT_LEN + TAG + TAG
    }
}

/// Keys of a finished handshake: one per direction.
pub struct Split {
    /// From initiator to responder.
    pub forth: Secret<32>,
    /// From responder to initiator.
    pub back: Secret<32>,
}

/// Symmetric state (Noise section 5.2). The last two fields are the cipher state of section 5.1.
#[derive(Clone)]
struct Symmetric {
    chain: Secret<32>,
    hash: [u8; 32],
    key: Option<Secret<32>>,
    count: u64,
}

impl Symmetric {
    fn new(name: &[u8], prologue: &[u8], responder: &[u8; 32]) -> Symmetric {
        let mut hash = [0; 32];
        match name.len() <= 32 {
            true => hash[..name.len()].copy_from_slice(name),
            false => hash = sha256(&[name]),
        }
        let mut state = Symmetric { chain: Secret::new(hash), hash, key: None, count: 0 };
        state.mix_hash(prologue);
        state.mix_hash(responder);
        state
    }

    fn mix_hash(&mut self, data: &[u8]) {
        self.hash = sha256(&[&self.hash, data]);
    }

    /// HKDF of section 4.3 with two outputs.
    fn hkdf(&self, input: &[u8]) -> (Secret<32>, Secret<32>) {
        let temp = Secret::new(hmac_sha256(self.chain.expose(), &[input]));
        let first = Secret::new(hmac_sha256(temp.expose(), &[&[1]]));
        let second = Secret::new(hmac_sha256(temp.expose(), &[first.expose(), &[2]]));
        (first, second)
    }

    fn mix_key(&mut self, input: &[u8; 32]) {
        let (chain, key) = self.hkdf(input);
        self.chain = chain;
        self.key = Some(key);
        self.count = 0;
    }

    fn cipher(&mut self) -> Option<(AeadKey, u64)> {
        let key = AeadKey::new(Suite::Aes256Gcm, self.key.as_ref()?.expose());
        self.count += 1;
        Some((key, self.count - 1))
    }

    fn encrypt_and_hash(&mut self, plain: &[u8], out: &mut Vec<u8>) {
        let start = out.len();
        out.extend_from_slice(plain);
        if let Some((key, count)) = self.cipher() {
            let mut tag = [0; TAG];
            key.seal(count, &self.hash, &mut out[start..], &mut tag);
            out.extend_from_slice(&tag);
        }
        self.hash = sha256(&[&self.hash, &out[start..]]);
    }

    fn decrypt_and_hash(&mut self, sealed: &[u8]) -> Result<Plaintext, NoiseError> {
        let mut plain = Zeroizing::new(sealed.to_vec());
        if let Some((key, count)) = self.cipher() {
            key.open(count, &self.hash, &mut plain).map_err(|_| NoiseError)?;
            let len = plain.len() - TAG;
            plain.truncate(len);
        }
        self.mix_hash(sealed);
        Ok(plain)
    }

    fn mix_dh(&mut self, secret: &DhSecret, public: &[u8; 32]) -> Result<(), NoiseError> {
        let shared = secret.agree(public).map_err(|_| NoiseError)?;
        self.mix_key(shared.expose());
        Ok(())
    }

    /// An extra key beside those of the pattern. The label must differ from a DH output, which has
    /// 32 bytes, and from the empty input of [`Self::split`].
    fn branch(&self, label: &[u8]) -> Secret<32> {
        debug_assert!(!label.is_empty() && label.len() != 32, "a label of its own");
        self.hkdf(label).0
    }

    fn split(&self) -> Split {
        let (forth, back) = self.hkdf(&[]);
        Split { forth, back }
    }
}

/// Takes `n` bytes off the front of a message.
fn take<'a>(rest: &mut &'a [u8], n: usize) -> Result<&'a [u8], NoiseError> {
    let (head, tail) = rest.split_at_checked(n).ok_or(NoiseError)?;
    *rest = tail;
    Ok(head)
}

fn take_point(rest: &mut &[u8]) -> Result<[u8; 32], NoiseError> {
    take(rest, 32)?.try_into().map_err(|_| NoiseError)
}

/// An initiator that has sent the first message.
pub struct Initiator {
    state: Symmetric,
    ephemeral: DhSecret,
    kem: Option<KemSecret>,
}

impl Initiator {
    /// Writes the first message to `responder`, whose public key must be known.
    pub fn start<C: Ciphers>(
        prologue: &[u8],
        own: Option<&DhSecret>,
        responder: &[u8; 32],
        ephemeral: &[u8; 32],
        payload: &[u8],
    ) -> Result<(Initiator, Vec<u8>), NoiseError> {
        let kem = C::kem_pair(ephemeral).map_err(|_| NoiseError)?;
        let pattern = if own.is_some() { NoisePattern::Known } else { NoisePattern::Anonymous };
        let state = Symmetric::new(pattern.name(), prologue, responder);
        Self::start_with(state, own, responder, ephemeral, Some(kem), payload)
    }

    fn start_with(
        mut state: Symmetric,
        own: Option<&DhSecret>,
        responder: &[u8; 32],
        ephemeral: &[u8; 32],
        kem: Option<(KemSecret, Box<[u8; KEM_PUBLIC_LEN]>)>,
        payload: &[u8],
    ) -> Result<(Initiator, Vec<u8>), NoiseError> {
        let ephemeral = DhSecret::new(ephemeral);
        let mut out = Vec::with_capacity(NoisePattern::Known.first_len() + payload.len());
        out.extend_from_slice(ephemeral.public());
        state.mix_hash(ephemeral.public());
        state.mix_dh(&ephemeral, responder)?;
        if let Some((_, public)) = &kem {
            state.encrypt_and_hash(&public[..], &mut out);
        }
        if let Some(own) = own {
            state.encrypt_and_hash(own.public(), &mut out);
            state.mix_dh(own, responder)?;
        }
        state.encrypt_and_hash(payload, &mut out);
        let kem = kem.map(|(secret, _)| secret);
        Ok((Initiator { state, ephemeral, kem }, out))
    }

    /// A key that only the two ends know after the first message, since it contains es and ss.
    pub fn response_key(&self) -> Secret<32> {
        self.state.branch(RESPONSE_LABEL)
    }

    /// Reads the second message. Returns the keys and the responder's payload. The initiator's
    /// state is unchanged, so a forged reply can't use it up.
    pub fn finish(
        &self,
        own: Option<&DhSecret>,
        message: &[u8],
    ) -> Result<(Split, Plaintext), NoiseError> {
        let mut state = self.state.clone();
        let mut rest = message;
        let ephemeral = take_point(&mut rest)?;
        state.mix_hash(&ephemeral);
        state.mix_dh(&self.ephemeral, &ephemeral)?;
        if let Some(kem) = &self.kem {
            let ciphertext = state.decrypt_and_hash(take(&mut rest, KEM_CIPHERTEXT_LEN + TAG)?)?;
            let shared = kem.decapsulate(&ciphertext).map_err(|_| NoiseError)?;
            state.mix_key(shared.expose());
        }
        if let Some(own) = own {
            state.mix_dh(own, &ephemeral)?;
        }
        let payload = state.decrypt_and_hash(rest)?;
        Ok((state.split(), payload))
    }
}

/// A responder that has read the first message.
pub struct Responder {
    state: Symmetric,
    /// The initiator's long-term key, proved by the message. None in the anonymous pattern.
    pub peer: Option<[u8; 32]>,
    ephemeral: [u8; 32],
    kem: Option<Plaintext>,
    /// The initiator's payload.
    pub payload: Plaintext,
}

impl Responder {
    /// Reads the first message.
    pub fn read(
        pattern: NoisePattern,
        prologue: &[u8],
        own: &DhSecret,
        message: &[u8],
    ) -> Result<Responder, NoiseError> {
        let state = Symmetric::new(pattern.name(), prologue, own.public());
        Self::read_with(pattern, state, own, message, true)
    }

    fn read_with(
        pattern: NoisePattern,
        mut state: Symmetric,
        own: &DhSecret,
        message: &[u8],
        hybrid: bool,
    ) -> Result<Responder, NoiseError> {
        let mut rest = message;
        let ephemeral = take_point(&mut rest)?;
        state.mix_hash(&ephemeral);
        state.mix_dh(own, &ephemeral)?;
        let kem = match hybrid {
            true => Some(state.decrypt_and_hash(take(&mut rest, KEM_PUBLIC_LEN + TAG)?)?),
            false => None,
        };
        let peer = match pattern {
            NoisePattern::Known => {
                let peer = state.decrypt_and_hash(take(&mut rest, 32 + TAG)?)?;
                let peer: [u8; 32] = peer.as_slice().try_into().map_err(|_| NoiseError)?;
                state.mix_dh(own, &peer)?;
                Some(peer)
            }
            NoisePattern::Anonymous => None,
        };
        let payload = state.decrypt_and_hash(rest)?;
        Ok(Responder { state, peer, ephemeral, kem, payload })
    }

    /// The key that equals [`Initiator::response_key`] at the other end.
    pub fn response_key(&self) -> Secret<32> {
        self.state.branch(RESPONSE_LABEL)
    }

    /// Writes the second message and ends the handshake.
    pub fn finish<C: Ciphers>(
        mut self,
        ephemeral: &[u8; 32],
        payload: &[u8],
    ) -> Result<(Split, Vec<u8>), NoiseError> {
        let (seed, ephemeral) = (ephemeral, DhSecret::new(ephemeral));
        let mut out = Vec::with_capacity(NoisePattern::Known.second_len() + payload.len());
        out.extend_from_slice(ephemeral.public());
        self.state.mix_hash(ephemeral.public());
        self.state.mix_dh(&ephemeral, &self.ephemeral)?;
        if let Some(public) = &self.kem {
            let made = C::kem_encapsulate(seed, public);
            let (ciphertext, shared) = made.map_err(|_| NoiseError)?;
            self.state.encrypt_and_hash(&ciphertext[..], &mut out);
            self.state.mix_key(shared.expose());
        }
        if let Some(peer) = &self.peer {
            self.state.mix_dh(&ephemeral, peer)?;
        }
        self.state.encrypt_and_hash(payload, &mut out);
        Ok((self.state.split(), out))
    }
}

#[cfg(test)]
#[path = "noise_tests.rs"]
mod tests;
