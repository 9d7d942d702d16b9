//! Packets of one size, ready to leave with one system call.

/// Most packets of one batch: as many full frames as one UDP send can carry.
pub const MOST: usize = 44;

/// Packets of equal size behind each other.
#[derive(Debug)]
pub struct Batch {
    /// All of them.
    pub bytes: Vec<u8>,
    /// Bytes of each.
    pub size: u16,
}

impl Batch {
    /// How many packets it is.
    pub fn packets(&self) -> u64 {
        self.bytes.len() as u64 / u64::from(self.size)
    }
}

/// One kind of packets, in batches that are sent again and again.
#[derive(Debug)]
pub struct Kind {
    batches: Vec<Batch>,
    turn: usize,
    sent: u64,
}

impl Kind {
    /// Packs `payloads`, none of them empty, with at most `in_a_row` of one size in a batch.
    pub fn new(mut payloads: Vec<Vec<u8>>, in_a_row: usize) -> Kind {
        payloads.sort_by_key(Vec::len);
        let by_size = payloads.chunk_by(|a, b| a.len() == b.len());
        let batch = |packets: &[Vec<u8>]| Batch {
            bytes: packets.concat(),
            // No datagram is longer.
            size: packets[0].len() as u16,
        };
        let in_a_row = in_a_row.clamp(1, MOST);
        let batches = by_size.flat_map(|same| same.chunks(in_a_row)).map(batch).collect();
        Kind { batches, turn: 0, sent: 0 }
    }

    /// The next batch to send; it changes when [`Kind::add`] is called.
    pub fn next(&self) -> &Batch {
        &self.batches[self.turn]
    }

    /// `packets` have left.
    pub fn add(&mut self, packets: u64) {
        self.sent += packets;
        self.turn = (self.turn + 1) % self.batches.len();
    }

    /// How many have left.
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
        let mut kind = Kind::new(payloads.clone(), 40);
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
