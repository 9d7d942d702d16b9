//! Evidence: the proof of one packet, for third parties.

use shoal_wire::Reader;

use crate::stamp::{
    CHUNK_PACKETS, DigestChunk, FlowId, Seal, StampPart, layout, packet_digest, packet_hash,
};
use crate::verify::{GroupVerifier, VerifiedSignature};
use crate::{Error, PART_MAX, SIGNATURE_LEN, codec};

/// A self-contained proof that a member of the group sent one packet.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Evidence {
    seq: u64,
    packet_hash: [u8; 32],
    seal: Vec<u8>,
    chunk: Option<Vec<u8>>,
}

/// The facts that evidence proves.
#[derive(Clone, Debug)]
pub struct ProvedPacket {
    pub flow: FlowId,
    /// The packet's number in the flow.
    pub seq: u64,
    /// The epoch of the signature.
    pub epoch: u32,
    /// Time at which the signer closed the window: Unix time in milliseconds, by the signer's
    /// clock.
    pub time_ms: u64,
    /// The signature, which trustees can open.
    pub checked: VerifiedSignature,
}

impl Evidence {
    /// Maximum length of an encoding in bytes.
    pub const LEN_MAX: usize = 4 + 8 + 32 + 2 + PART_MAX + 2 + PART_MAX;

    /// Builds evidence from encoded stamp parts.
    pub fn new(seq: u64, packet_hash: [u8; 32], seal: &[u8], chunk: Option<&[u8]>) -> Evidence {
        Evidence { seq, packet_hash, seal: seal.to_vec(), chunk: chunk.map(<[u8]>::to_vec) }
    }

    /// The packet's number in its flow.
    pub fn seq(&self) -> u64 {
        self.seq
    }

    /// The epoch claimed by the signature.
    pub fn epoch(&self) -> Result<u32, Error> {
        Ok(self.seal()?.epoch)
    }

    /// True if the evidence is about this plaintext.
    pub fn is_about(&self, plaintext: &[u8]) -> Result<bool, Error> {
        Ok(packet_hash(&self.seal()?.flow, self.seq, plaintext) == self.packet_hash)
    }

    /// Checks the whole evidence. `verifier` must accept the epoch of the signature.
    pub fn verify(&self, verifier: &GroupVerifier) -> Result<ProvedPacket, Error> {
        let seal = self.seal()?;
        let (chunks, _) = layout(usize::from(seal.count));
        let at = self.seq.checked_sub(seal.first).filter(|at| *at < u64::from(seal.count));
        let at = at.ok_or(Error::Range("packet"))? as usize;
        let (salt, digest) = match &self.chunk {
            Some(bytes) => {
                let StampPart::Chunk(chunk) = StampPart::decode(bytes)? else {
                    return Err(Error::Range("chunk"));
                };
                let index = at / CHUNK_PACKETS;
                if seal.chunks.get(index) != Some(&DigestChunk::hash(bytes)) {
                    return Err(Error::Proof("the chunk"));
                }
                (chunk.salt, chunk.digests.get(at % CHUNK_PACKETS).copied())
            }
            None => {
                let in_tail = at.checked_sub(chunks * CHUNK_PACKETS);
                (seal.salt, in_tail.and_then(|n| seal.tail.get(n)).copied())
            }
        };
        if digest != Some(packet_digest(&salt, &self.packet_hash)) {
            return Err(Error::Proof("the packet's digest"));
        }
        let message = Seal::message(&self.seal[..self.seal.len() - SIGNATURE_LEN]);
        let checked = verifier.verify(seal.epoch, &message, &seal.signature)?;
        let Seal { flow, epoch, time_ms, .. } = seal;
        Ok(ProvedPacket { flow, seq: self.seq, epoch, time_ms, checked })
    }

    fn seal(&self) -> Result<Seal, Error> {
        match StampPart::decode(&self.seal)? {
            StampPart::Seal(seal) => Ok(*seal),
            _ => Err(Error::Range("seal")),
        }
    }

    /// The encoding (docs/design/wire/attribution.md).
    pub fn encode(&self) -> Vec<u8> {
        let mut out = b"SAV1".to_vec();
        out.extend_from_slice(&self.seq.to_be_bytes());
        out.extend_from_slice(&self.packet_hash);
        let chunk = self.chunk.as_deref().unwrap_or_default();
        for part in [self.seal.as_slice(), chunk] {
            out.extend_from_slice(&(part.len() as u16).to_be_bytes());
            out.extend_from_slice(part);
        }
        out
    }

    /// Decodes evidence without verifying it.
    pub fn decode(bytes: &[u8]) -> Result<Evidence, Error> {
        let mut reader = Reader::new(bytes);
        codec::magic(&mut reader, b"SAV1", "evidence")?;
        let seq = reader.u64("packet")?;
        let packet_hash = reader.array("packet hash")?;
        let mut parts = [&[][..]; 2];
        for part in &mut parts {
            let len = usize::from(reader.u16("part length")?);
            if len > PART_MAX {
                return Err(Error::Range("part length"));
            }
            *part = reader.bytes("part", len)?;
        }
        reader.finish("evidence")?;
        let [seal, chunk] = parts;
        let evidence = Evidence::new(seq, packet_hash, seal, (!chunk.is_empty()).then_some(chunk));
        evidence.seal()?;
        Ok(evidence)
    }
}
