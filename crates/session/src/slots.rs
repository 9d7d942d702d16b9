//! Slab of sessions, and the indexes that name them on the wire.
//!
//! ```text
//! index:  generation 8 | lane 4 | slot 20
//! ```
//!
//! The receiver chooses indexes, and they never clash. A slot's generation grows when the slot is
//! freed, and slots are reused in the order in which they were freed. An index is therefore reused
//! only after 256 passes through all free slots; even then the seal fails.

use std::collections::VecDeque;

use shoal_crypto::Ciphers;
use shoal_wire::Time;

use crate::config::{PeerId, SessionConfig};
use crate::keys::{self, Session, SessionTerms};
use crate::masks::IndexMasks;
use crate::noise::Split;
use crate::shard::{SessionInstall, SessionShard, ShardOrder};

const SLOT_BITS: u32 = 20;
const LANE_BITS: u32 = 4;
/// Most slots.
pub(crate) const SLOTS_MAX: usize = 1 << SLOT_BITS;
/// Most lanes.
pub(crate) const LANES_MAX: u8 = 1 << LANE_BITS;

/// An index with lane 0: a slot and its generation.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SessionIndex(u32);

impl SessionIndex {
    /// Splits the index of a frame into the index of its session and the lane.
    pub(crate) fn split(raw: u32) -> (SessionIndex, u8) {
        let lane = (raw >> SLOT_BITS) & ((1 << LANE_BITS) - 1);
        (SessionIndex(raw & !(((1 << LANE_BITS) - 1) << SLOT_BITS)), lane as u8)
    }

    /// Wire form, with lane 0.
    pub(crate) fn raw(self) -> u32 {
        self.0
    }

    /// `raw` for `lane`.
    pub(crate) fn with_lane(raw: u32, lane: u8) -> u32 {
        SessionIndex::split(raw).0.0 | (u32::from(lane) << SLOT_BITS)
    }

    pub(crate) fn slot(self) -> usize {
        (self.0 & ((1 << SLOT_BITS) - 1)) as usize
    }

    fn generation(self) -> u8 {
        (self.0 >> (SLOT_BITS + LANE_BITS)) as u8
    }

    fn new(slot: usize, generation: u8) -> SessionIndex {
        SessionIndex((u32::from(generation) << (SLOT_BITS + LANE_BITS)) | slot as u32)
    }
}

enum SlotContent {
    Free,
    /// Named in an unfinished handshake.
    Reserved,
    Live(Box<Session>),
}

struct SessionSlot {
    generation: u8,
    content: SlotContent,
}

/// Slab of sessions. Each change of a session is told to all shards.
pub(crate) struct SessionSlots<C: Ciphers> {
    entries: Vec<SessionSlot>,
    free: VecDeque<u32>,
    limit: usize,
    live: usize,
    workers: u8,
    /// The first worker's shard.
    pub(crate) own: SessionShard<C>,
    /// Orders for the other workers, oldest first.
    orders: VecDeque<(u8, ShardOrder<C::Aead>)>,
}

impl<C: Ciphers> SessionSlots<C> {
    pub(crate) fn new(limit: usize, config: &SessionConfig) -> SessionSlots<C> {
        SessionSlots {
            entries: Vec::new(),
            free: VecDeque::new(),
            limit: limit.min(SLOTS_MAX),
            live: 0,
            workers: config.workers,
            own: SessionShard::new(config, 0),
            orders: VecDeque::new(),
        }
    }

    /// The next order, and its worker's number.
    pub(crate) fn poll_order(&mut self) -> Option<(u8, ShardOrder<C::Aead>)> {
        self.orders.pop_front()
    }

    pub(crate) fn has_orders(&self) -> bool {
        !self.orders.is_empty()
    }

    fn tell(&mut self, order: impl Fn() -> ShardOrder<C::Aead>) {
        self.own.handle_order(order());
        self.orders.extend((1..self.workers).map(|worker| (worker, order())));
    }

    /// Tells all shards the current index mask key.
    pub(crate) fn tell_masks(&mut self, masks: &IndexMasks) {
        let (epoch, key) = masks.current();
        self.tell(|| ShardOrder::Masks { epoch, key: Box::new(key.clone()) });
    }

    /// Tells all shards which session seals for a peer.
    pub(crate) fn appoint(&mut self, peer: PeerId, index: SessionIndex) {
        self.tell(|| ShardOrder::Seal { peer, index });
    }

    /// Makes all shards forget a session's expanded keys.
    pub(crate) fn cool(&mut self, index: SessionIndex) {
        let Some(session) = self.get_mut(index).filter(|s| s.warm) else { return };
        session.warm = false;
        self.tell(|| ShardOrder::Cool { index });
    }

    /// Number of live sessions.
    pub(crate) fn live(&self) -> usize {
        self.live
    }

    /// Reserves a slot for a new handshake.
    pub(crate) fn reserve(&mut self) -> Option<SessionIndex> {
        let slot = match self.free.pop_front() {
            Some(slot) => slot as usize,
            None if self.entries.len() < self.limit => {
                self.entries.push(SessionSlot { generation: 0, content: SlotContent::Free });
                self.entries.len() - 1
            }
            None => return None,
        };
        self.entries[slot].content = SlotContent::Reserved;
        Some(SessionIndex::new(slot, self.entries[slot].generation))
    }

    fn entry(&mut self, index: SessionIndex) -> Option<&mut SessionSlot> {
        self.entries.get_mut(index.slot()).filter(|e| e.generation == index.generation())
    }

    /// Puts a handshake's session into its reserved slot, and its lanes into the shards.
    pub(crate) fn fill(
        &mut self,
        now: Time,
        index: SessionIndex,
        split: &Split,
        terms: &SessionTerms,
    ) {
        let Some(entry) = self.entry(index) else { return };
        entry.content = SlotContent::Live(Box::new(Session::new(split, terms, now)));
        self.live += 1;
        let mut lanes = keys::lanes(split, terms);
        for worker in 0..self.workers {
            let part = SessionInstall::new(now, index, terms, &mut lanes, (worker, self.workers));
            match worker {
                0 => self.own.handle_order(ShardOrder::Install(part)),
                _ => self.orders.push_back((worker, ShardOrder::Install(part))),
            }
        }
    }

    /// Frees a slot. After that its index means nothing.
    pub(crate) fn release(&mut self, index: SessionIndex) {
        let Some(entry) = self.entry(index) else { return };
        let was = core::mem::replace(&mut entry.content, SlotContent::Free);
        entry.generation = entry.generation.wrapping_add(1);
        match was {
            SlotContent::Free => return,
            SlotContent::Reserved => {}
            SlotContent::Live(_) => {
                self.live -= 1;
                self.tell(|| ShardOrder::Retire { index });
            }
        }
        self.free.push_back(index.slot() as u32);
    }

    pub(crate) fn get(&self, index: SessionIndex) -> Option<&Session> {
        match self.entries.get(index.slot()) {
            Some(SessionSlot { generation, content: SlotContent::Live(session) })
                if *generation == index.generation() =>
            {
                Some(session)
            }
            _ => None,
        }
    }

    pub(crate) fn get_mut(&mut self, index: SessionIndex) -> Option<&mut Session> {
        match self.entry(index) {
            Some(SessionSlot { content: SlotContent::Live(session), .. }) => Some(session),
            _ => None,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::SessionRole;

    #[test]
    fn an_index_is_not_reused_until_generations_wrap() {
        let mut slots = SessionSlots::<shoal_crypto::StandardCiphers>::new(
            2,
            &SessionConfig::new(SessionRole::Link),
        );
        let a = slots.reserve().unwrap();
        let b = slots.reserve().unwrap();
        assert_eq!(slots.reserve(), None);
        let mut seen = vec![a, b];
        let mut last = a;
        for _ in 0..255 {
            slots.release(last);
            last = slots.reserve().unwrap();
            assert!(!seen.contains(&last));
            seen.push(last);
        }
        slots.release(last);
        slots.release(last);
        assert_eq!(slots.reserve(), Some(a));
        assert_eq!(slots.reserve(), None, "a double release must not make a slot");
    }

    #[test]
    fn lanes_stand_between_slot_and_generation() {
        let raw = SessionIndex::with_lane(0xab_00_00_07, 15);
        assert_eq!(raw, 0xab_f0_00_07);
        assert_eq!(SessionIndex::split(raw), (SessionIndex(0xab_00_00_07), 15));
        assert_eq!(SessionIndex::split(raw).0.slot(), 7);
        assert_eq!(SessionIndex::split(raw).0.generation(), 0xab);
    }
}
