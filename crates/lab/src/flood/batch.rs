//! Packets of one size, ready for one system call.

/// Limit of packets per batch: as many full frames as one UDP send can carry.
pub const MOST: usize = 44;

/// Consecutive packets of equal size.
#[derive(Debug)]
pub struct FloodBatch {
    /// All packets, concatenated.
    pub bytes: Vec<u8>,
    /// Bytes of each packet.
    pub size: u16,
}

impl FloodBatch {
    /// Number of packets.
    pub fn packets(&self) -> u64 {
        self.bytes.len() as u64 / u64::from(self.size)
    }
}

/// One kind of packets, in batches that are sent repeatedly.
#[derive(Debug)]
pub struct FloodKind {
    batches: Vec<FloodBatch>,
    turn: usize,
    sent: u64,
}

impl FloodKind {
    /// Packs `payloads`, none of them empty. A batch has at most `in_a_row` packets of one size.
    pub fn new(mut payloads: Vec<Vec<u8>>, in_a_row: usize) -> FloodKind {
        payloads.sort_by_key(Vec::len);
        let by_size = payloads.chunk_by(|a, b| a.len() == b.len());
        let batch = |packets: &[Vec<u8>]| FloodBatch {
            bytes: packets.concat(),
            // A datagram's length fits.
            size: packets[0].len() as u16,
        };
        let in_a_row = in_a_row.clamp(1, MOST);
        let batches = by_size.flat_map(|same| same.chunks(in_a_row)).map(batch).collect();
        FloodKind { batches, turn: 0, sent: 0 }
    }

    /// The next batch to send. Each call of [`FloodKind::add`] moves on to another batch.
    pub fn next(&self) -> &FloodBatch {
        &self.batches[self.turn]
    }

    /// Counts `packets` as sent.
    pub fn add(&mut self, packets: u64) {
        self.sent += packets;
        self.turn = (self.turn + 1) % self.batches.len();
    }

    /// Number of packets sent.
    pub fn sent(&self) -> u64 {
        self.sent
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_packet_is_in_one_batch_with_others_of_its_size() {
        let sizes = [192, 1_440, 1, 192, 576, 1_440];
        let payloads: Vec<Vec<u8>> =
            (0..300u16).map(|i| vec![i as u8; sizes[usize::from(i) % sizes.len()]]).collect();
        let mut kind = FloodKind::new(payloads.clone(), 40);
        let mut all = Vec::new();
        for _ in 0..kind.batches.len() {
            let batch = kind.next();
            assert!((1..=40).contains(&batch.packets()));
            assert!(batch.bytes.len() <= 65_507);
            all.extend(batch.bytes.chunks(batch.size.into()).map(<[u8]>::to_vec));
            kind.add(batch.packets());
        }
        assert_eq!((kind.sent(), kind.turn), (300, 0));
        let mut payloads = payloads;
        payloads.sort();
        all.sort();
        assert_eq!(all, payloads);
    }
}
