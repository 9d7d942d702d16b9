//! Stored proofs of a receiver's last packets, for showing them to others later: a bounded ring of
//! packet hash, chunk and seal. The ring can be written to a file and read again.

use std::collections::{BTreeMap, VecDeque};
use std::sync::Arc;

use shoal_wire::Reader;

use crate::flow::{PacketProof, VerifiedSeal, belongs};
use crate::stamp::{CHUNK_PACKETS, DigestChunk, FlowId, StampPart};
use crate::{Error, Evidence, GroupId, codec};

struct StoredWindow {
    flow: FlowId,
    sealed: Arc<VerifiedSeal>,
    chunks: BTreeMap<u8, Arc<(DigestChunk, Vec<u8>)>>,
    hashes: Vec<[u8; 32]>,
    present: Vec<bool>,
}

/// Proofs of the last windows; the oldest are removed first.
pub struct EvidenceRing {
    windows: VecDeque<StoredWindow>,
    packets: usize,
    packets_max: usize,
}

/// Packets of one flow in a ring.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct StoredFlow {
    /// The flow.
    pub flow: FlowId,
    /// Lowest packet number.
    pub first: u64,
    /// Highest packet number; packets between may be missing.
    pub last: u64,
    /// Number of packets.
    pub count: usize,
}

impl EvidenceRing {
    /// An empty ring. Every packet of a window counts towards `packets_max`, proved or not. Each
    /// takes 33 bytes plus its share of the stamp (about 18 bytes).
    pub fn new(packets_max: usize) -> EvidenceRing {
        EvidenceRing { windows: VecDeque::new(), packets: 0, packets_max }
    }

    /// Changes the bound. The oldest proofs beyond it are removed.
    #[must_use]
    pub fn bounded(mut self, packets_max: usize) -> EvidenceRing {
        self.packets_max = packets_max;
        self.make_room(0);
        self
    }

    /// Maximum number of packets.
    pub fn packets_max(&self) -> usize {
        self.packets_max
    }

    /// Packets in the ring, by flow.
    pub fn flows(&self) -> Vec<StoredFlow> {
        let mut flows: BTreeMap<FlowId, StoredFlow> = BTreeMap::new();
        for window in &self.windows {
            let start = window.sealed.seal.first;
            let present = (start..).zip(&window.present).filter(|(_, there)| **there);
            for (seq, _) in present {
                let fresh = StoredFlow { flow: window.flow, first: seq, last: seq, count: 0 };
                let flow = flows.entry(window.flow).or_insert(fresh);
                flow.first = flow.first.min(seq);
                flow.last = flow.last.max(seq);
                flow.count += 1;
            }
        }
        flows.into_values().collect()
    }

    pub(crate) fn keep(&mut self, proof: PacketProof) {
        let count = usize::from(proof.sealed.seal.count);
        if count > self.packets_max {
            return;
        }
        let same = |w: &StoredWindow| Arc::ptr_eq(&w.sealed, &proof.sealed);
        // Proofs of one window mostly arrive together.
        let found = self.windows.iter().rposition(same);
        let at = found.unwrap_or_else(|| self.open(proof.flow, &proof.sealed));
        let window = &mut self.windows[at];
        let n = (proof.seq - proof.sealed.seal.first) as usize;
        window.hashes[n] = proof.hash;
        window.present[n] = true;
        if let Some(chunk) = proof.chunk {
            window.chunks.entry(chunk.0.index).or_insert(chunk);
        }
    }

    /// The window of this seal: a stored one, perhaps of an earlier run, or a new one. All its
    /// packets count towards the bound.
    fn open(&mut self, flow: FlowId, sealed: &Arc<VerifiedSeal>) -> usize {
        let held = self.windows.iter().rposition(|w| w.sealed.bytes == sealed.bytes);
        if let Some(at) = held {
            self.windows[at].sealed = sealed.clone();
            return at;
        }
        let count = usize::from(sealed.seal.count);
        self.make_room(count);
        self.packets += count;
        self.windows.push_back(StoredWindow {
            flow,
            sealed: sealed.clone(),
            chunks: BTreeMap::new(),
            hashes: vec![[0; 32]; count],
            present: vec![false; count],
        });
        self.windows.len() - 1
    }

    fn make_room(&mut self, count: usize) {
        while self.packets + count > self.packets_max
            && let Some(old) = self.windows.pop_front()
        {
            self.packets -= old.hashes.len();
        }
    }

    /// The evidence for one packet, if stored.
    pub fn export(&self, flow: &FlowId, seq: u64) -> Option<Evidence> {
        let covers = |w: &&StoredWindow| {
            let seal = &w.sealed.seal;
            w.flow == *flow && (seal.first..seal.end()).contains(&seq)
        };
        let window = self.windows.iter().rev().find(covers)?;
        let at = (seq - window.sealed.seal.first) as usize;
        if !window.present[at] {
            return None;
        }
        let chunk = match window.chunk_of(at) {
            Some(index) => Some(window.chunks.get(&index)?.1.as_slice()),
            None => None,
        };
        Some(Evidence::new(seq, window.hashes[at], &window.sealed.bytes, chunk))
    }

    /// The encoding (docs/design/wire/attribution.md). It contains no key, but a reader can test
    /// guesses of packet contents: keep it private.
    pub fn encode(&self, group: GroupId) -> Vec<u8> {
        let mut out = b"SAK1".to_vec();
        out.extend_from_slice(&group.0);
        out.extend_from_slice(&(self.windows.len() as u32).to_be_bytes());
        for window in &self.windows {
            window.put(&mut out);
        }
        out
    }

    /// Decodes a ring. Chunks are checked against their seals. Signatures are not: evidence is
    /// verified when it is shown. The last `packets_max` packets are kept.
    pub fn decode(bytes: &[u8], group: GroupId, packets_max: usize) -> Result<EvidenceRing, Error> {
        let mut reader = Reader::new(bytes);
        codec::magic(&mut reader, b"SAK1", "kept evidence")?;
        if reader.array::<32>("group id")? != group.0 {
            return Err(Error::OtherGroup);
        }
        let count = reader.u32("windows")?;
        let mut out = EvidenceRing::new(packets_max);
        for _ in 0..count {
            let window = StoredWindow::read(&mut reader)?;
            let packets = window.hashes.len();
            out.make_room(packets);
            if out.packets + packets <= packets_max {
                out.packets += packets;
                out.windows.push_back(window);
            }
        }
        reader.finish("kept evidence")?;
        Ok(out)
    }
}

impl StoredWindow {
    /// Index of the chunk for the packet at this index of the window; `None` if the seal has its
    /// digest.
    fn chunk_of(&self, at: usize) -> Option<u8> {
        let index = at / CHUNK_PACKETS;
        (index < self.sealed.seal.chunks.len()).then_some(index as u8)
    }

    fn put(&self, out: &mut Vec<u8>) {
        put_part(out, &self.sealed.bytes);
        out.push(self.chunks.len() as u8);
        self.chunks.values().for_each(|chunk| put_part(out, &chunk.1));
        for eight in self.present.chunks(8) {
            out.push(eight.iter().rev().fold(0, |bits, there| bits << 1 | u8::from(*there)));
        }
        let present = self.hashes.iter().zip(&self.present).filter(|(_, there)| **there);
        present.for_each(|(hash, _)| out.extend_from_slice(hash));
    }

    fn read(reader: &mut Reader<'_>) -> Result<StoredWindow, Error> {
        let bytes = read_part(reader)?;
        let StampPart::Seal(seal) = StampPart::decode(bytes)? else {
            return Err(Error::Range("seal"));
        };
        let sealed = Arc::new(VerifiedSeal { seal: *seal, bytes: bytes.to_vec() });
        let mut chunks = BTreeMap::new();
        for _ in 0..reader.u8("chunks")? {
            let bytes = read_part(reader)?;
            let StampPart::Chunk(chunk) = StampPart::decode(bytes)? else {
                return Err(Error::Range("chunk"));
            };
            let in_order = chunks.last_key_value().is_none_or(|(last, _)| *last < chunk.index);
            if !in_order || !belongs(&sealed.seal, &chunk, bytes) {
                return Err(Error::Proof("the chunk"));
            }
            chunks.insert(chunk.index, Arc::new((chunk, bytes.to_vec())));
        }
        let count = usize::from(sealed.seal.count);
        let bits = reader.bytes("kept packets", count.div_ceil(8))?;
        let present: Vec<bool> = (0..count).map(|n| bits[n / 8] >> (n % 8) & 1 == 1).collect();
        if count % 8 > 0 && bits[count / 8] >> (count % 8) != 0 {
            return Err(Error::Range("kept packets"));
        }
        let mut window =
            StoredWindow { flow: sealed.seal.flow, sealed, chunks, hashes: Vec::new(), present };
        for n in 0..count {
            let there = window.present[n];
            let proved = window.chunk_of(n).is_none_or(|c| window.chunks.contains_key(&c));
            if there && !proved {
                return Err(Error::Range("kept packets"));
            }
            window.hashes.push(if there { reader.array("packet hash")? } else { [0; 32] });
        }
        Ok(window)
    }
}

fn put_part(out: &mut Vec<u8>, bytes: &[u8]) {
    out.extend_from_slice(&(bytes.len() as u16).to_be_bytes());
    out.extend_from_slice(bytes);
}

fn read_part<'a>(reader: &mut Reader<'a>) -> Result<&'a [u8], Error> {
    let len = usize::from(reader.u16("part length")?);
    Ok(reader.bytes("part", len)?)
}

impl core::fmt::Debug for EvidenceRing {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        write!(f, "EvidenceRing({} of {} packets)", self.packets, self.packets_max)
    }
}
