//! Encoded stamps: a seal, the chunks of its digest list, and requests for lost parts
//! (docs/design/wire/attribution.md).
//!
//! ```text
//! window of packets:  | 82 packets | 82 packets | ... | the rest |
//! digests, 16 B each: |  chunk 0   |  chunk 1   | ... | in the seal if they fit, else a chunk
//! seal:  flow, first, count, epoch, time | hash of each chunk | the rest | signature
//! ```
//!
//! The seal's signature covers the hashes of the chunks. So the seal alone proves each chunk, and
//! each chunk proves its packets, even if other parts are lost.

use shoal_crypto::{hash, sha256};
use shoal_wire::{ParseError, Reader};

use crate::{Message, SIGNATURE_LEN, Signature};

/// Maximum length of a part in bytes. A full cell holds it with the kind and length in front.
pub const PART_MAX: usize = 1_360;
/// Number of packets in a full chunk.
pub const CHUNK_PACKETS: usize = 82;
/// Maximum number of packets in a window.
pub const WINDOW_MAX: usize = 4_096;
/// Maximum number of chunks in a window.
pub const CHUNKS_MAX: usize = WINDOW_MAX.div_ceil(CHUNK_PACKETS);
/// Length of a digest or chunk hash in bytes.
pub const DIGEST_LEN: usize = 16;

/// Maximum packet number: far from overflows, and more than any flow reaches.
pub const SEQ_MAX: u64 = 1 << 62;

const CHUNK_HEAD: usize = 1 + 16 + 8 + 1 + 1 + 16;
const SEAL_HEAD: usize = 1 + 16 + 8 + 2 + 4 + 8 + 16;
/// Number of hashes and digests that fit in a seal.
const SEAL_SLOTS: usize = (PART_MAX - SEAL_HEAD - SIGNATURE_LEN) / DIGEST_LEN;

const KIND_SEAL: u8 = 1;
const KIND_CHUNK: u8 = 2;
const KIND_REQUEST: u8 = 3;

pub const SEAL_LABEL: &str = "shoal stamp v1";

const _: () = assert!(CHUNK_HEAD + CHUNK_PACKETS * DIGEST_LEN <= PART_MAX);
const _: () = assert!(CHUNKS_MAX <= SEAL_SLOTS && CHUNKS_MAX < 63);

/// Identifies a flow, uniquely among all sessions of the network; derived from the session's keys.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub struct FlowId(pub [u8; 16]);

impl core::fmt::Debug for FlowId {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        f.write_str("FlowId(hidden)")
    }
}

pub type Digest = [u8; DIGEST_LEN];

/// The hash that a receiver stores until a packet's stamp arrives: SHA-256 over flow, sequence
/// number and plaintext. It is collision-resistant by itself.
pub fn packet_hash(flow: &FlowId, seq: u64, plaintext: &[u8]) -> [u8; 32] {
    let mut head = *b"shoal-pd________________--------";
    head[8..24].copy_from_slice(&flow.0);
    head[24..].copy_from_slice(&seq.to_be_bytes());
    sha256(&[&head, plaintext])
}

/// The digest of a packet in a stamp, half as long as the packet's hash. The salt makes that length
/// sufficient: each chunk has a new one, unknown while its packets are chosen. An attacker must
/// therefore find a second packet with the digest of a given one, not just any two that collide
/// (target collision resistance, Halevi and Krawczyk 2006). The salt also keeps observers of a
/// stamp from testing guesses of contents.
pub fn packet_digest(salt: &Digest, packet_hash: &[u8; 32]) -> Digest {
    let mut input = [0; 48];
    input[..16].copy_from_slice(salt);
    input[16..].copy_from_slice(packet_hash);
    // One block of BLAKE3 takes half the time of SHA-256 for such a short input.
    first_half(&hash(&input))
}

pub(crate) fn first_half(hash: &[u8; 32]) -> Digest {
    let mut out = [0; DIGEST_LEN];
    out.copy_from_slice(&hash[..DIGEST_LEN]);
    out
}

/// Layout of a window of `count` packets: number of chunks, and of digests in the seal.
pub fn layout(count: usize) -> (usize, usize) {
    let (full, rest) = (count / CHUNK_PACKETS, count % CHUNK_PACKETS);
    if full + rest <= SEAL_SLOTS { (full, rest) } else { (full + 1, 0) }
}

/// Number of packets in chunk `index` of a window of `count`.
pub(crate) fn chunk_packets(count: usize, index: usize) -> usize {
    count.saturating_sub(index * CHUNK_PACKETS).min(CHUNK_PACKETS)
}

/// A part of the digest list of one window.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DigestChunk {
    pub flow: FlowId,
    /// Sequence number of the window's first packet.
    pub first: u64,
    /// Index of the chunk, from 0.
    pub index: u8,
    pub salt: Digest,
    /// One digest for each packet, in order; 1 to [`CHUNK_PACKETS`].
    pub digests: Vec<Digest>,
}

impl DigestChunk {
    pub fn encode(&self) -> Vec<u8> {
        let mut out = Vec::with_capacity(CHUNK_HEAD + self.digests.len() * DIGEST_LEN);
        out.push(KIND_CHUNK);
        out.extend_from_slice(&self.flow.0);
        out.extend_from_slice(&self.first.to_be_bytes());
        out.extend_from_slice(&[self.index, self.digests.len() as u8]);
        out.extend_from_slice(&self.salt);
        self.digests.iter().for_each(|d| out.extend_from_slice(d));
        out
    }

    /// The hash, in the seal, of the chunk with this encoding.
    pub fn hash(encoding: &[u8]) -> Digest {
        first_half(&sha256(&[b"shoal-chunk", encoding]))
    }
}

/// The signed part of a stamp.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Seal {
    pub flow: FlowId,
    /// Sequence number of the window's first packet.
    pub first: u64,
    /// Packets in the window: 1 to [`WINDOW_MAX`].
    pub count: u16,
    /// The signer's epoch.
    pub epoch: u32,
    /// Time at which the window was closed: Unix time in milliseconds, by the signer's clock.
    pub time_ms: u64,
    /// Salt of the digests in the seal.
    pub salt: Digest,
    /// Hash of each chunk.
    pub chunks: Vec<Digest>,
    /// Digests of the packets that no chunk covers.
    pub tail: Vec<Digest>,
    /// Signature over all fields before it.
    pub signature: Signature,
}

impl Seal {
    /// The signed bytes: the encoding without its signature.
    pub fn signed_bytes(&self) -> Vec<u8> {
        let slots = self.chunks.len() + self.tail.len();
        let mut out = Vec::with_capacity(SEAL_HEAD + slots * DIGEST_LEN + SIGNATURE_LEN);
        out.push(KIND_SEAL);
        out.extend_from_slice(&self.flow.0);
        out.extend_from_slice(&self.first.to_be_bytes());
        out.extend_from_slice(&self.count.to_be_bytes());
        out.extend_from_slice(&self.epoch.to_be_bytes());
        out.extend_from_slice(&self.time_ms.to_be_bytes());
        out.extend_from_slice(&self.salt);
        self.chunks.iter().chain(&self.tail).for_each(|d| out.extend_from_slice(d));
        out
    }

    pub fn encode(&self) -> Vec<u8> {
        let mut out = self.signed_bytes();
        out.extend_from_slice(&self.signature.0);
        out
    }

    /// The signed message, from [`Seal::signed_bytes`].
    pub fn message(signed_bytes: &[u8]) -> Message<'_> {
        Message { label: SEAL_LABEL, bytes: signed_bytes }
    }

    /// Number after the window's last packet.
    pub fn end(&self) -> u64 {
        self.first.saturating_add(u64::from(self.count))
    }
}

/// A request to the sender for parts of the stamp that covers a packet.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PartRequest {
    pub flow: FlowId,
    /// Number of a packet in the window.
    pub seq: u64,
    /// Bit n: chunk n is missing. Bit 63: the seal is missing.
    pub missing: u64,
}

impl PartRequest {
    /// Length of the encoding in bytes.
    pub const LEN: usize = 1 + 16 + 8 + 8;
    /// The bit of the seal.
    pub const SEAL: u64 = 1 << 63;

    pub fn encode(&self) -> Vec<u8> {
        let mut out = Vec::with_capacity(PartRequest::LEN);
        out.push(KIND_REQUEST);
        out.extend_from_slice(&self.flow.0);
        out.extend_from_slice(&self.seq.to_be_bytes());
        out.extend_from_slice(&self.missing.to_be_bytes());
        out
    }
}

/// A decoded part of a stamp.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum StampPart {
    /// The signed part.
    Seal(Box<Seal>),
    /// A piece of the digest list.
    Chunk(DigestChunk),
    /// A request for lost parts, in the other direction.
    Request(PartRequest),
}

impl StampPart {
    /// Decodes a part; only its form is checked.
    pub fn decode(bytes: &[u8]) -> Result<StampPart, ParseError> {
        if bytes.len() > PART_MAX {
            let have = bytes.len();
            return Err(ParseError::TooLong { what: "stamp part", max: PART_MAX, have });
        }
        let mut reader = Reader::new(bytes);
        let kind = reader.u8("part kind")?;
        let flow = FlowId(reader.array("flow")?);
        let part = match kind {
            KIND_SEAL => StampPart::Seal(Box::new(read_seal(&mut reader, flow)?)),
            KIND_CHUNK => StampPart::Chunk(read_chunk(&mut reader, flow)?),
            KIND_REQUEST => {
                let seq = reader.u64("packet")?;
                StampPart::Request(PartRequest { flow, seq, missing: reader.u64("missing parts")? })
            }
            other => {
                return Err(ParseError::Unknown { what: "part kind", value: u32::from(other) });
            }
        };
        reader.finish("stamp part")?;
        Ok(part)
    }
}

fn read_seal(reader: &mut Reader<'_>, flow: FlowId) -> Result<Seal, ParseError> {
    let first = reader.u64("first packet")?;
    let count = reader.u16("packets")?;
    if count == 0 || usize::from(count) > WINDOW_MAX || first > SEQ_MAX {
        return Err(ParseError::Invalid { what: "packets" });
    }
    let epoch = reader.u32("epoch")?;
    let time_ms = reader.u64("time")?;
    let salt = reader.array("salt")?;
    let (chunks, tail) = layout(usize::from(count));
    let chunks = read_digests(reader, chunks)?;
    let tail = read_digests(reader, tail)?;
    let signature = Signature(reader.array("signature")?);
    Ok(Seal { flow, first, count, epoch, time_ms, salt, chunks, tail, signature })
}

fn read_chunk(reader: &mut Reader<'_>, flow: FlowId) -> Result<DigestChunk, ParseError> {
    let first = reader.u64("first packet")?;
    if first > SEQ_MAX {
        return Err(ParseError::Invalid { what: "first packet" });
    }
    let index = reader.u8("chunk")?;
    let count = usize::from(reader.u8("digests")?);
    if usize::from(index) >= CHUNKS_MAX || count == 0 || count > CHUNK_PACKETS {
        return Err(ParseError::Invalid { what: "chunk" });
    }
    let salt = reader.array("salt")?;
    Ok(DigestChunk { flow, first, index, salt, digests: read_digests(reader, count)? })
}

fn read_digests(reader: &mut Reader<'_>, count: usize) -> Result<Vec<Digest>, ParseError> {
    (0..count).map(|_| reader.array("digest")).collect()
}
