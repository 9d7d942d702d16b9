//! The slab of sessions, and the indexes that name them on the wire.
//!
//! ```text
//! index:  generation 8 | lane 4 | slot 20
//! ```
//!
//! Indexes are chosen by the receiver and never clash. A slot's generation grows when the slot is
//! given back, and slots are reused in the order in which they came back, so that an index names
//! something else only after 256 turns through all free slots; even then the seal fails.

use std::collections::VecDeque;

use shoal_crypto::Ciphers;
use shoal_wire::Time;

use crate::config::{Config, PeerId};
use crate::keys::{self, Session, Terms};
use crate::masks::IndexMasks;
use crate::noise::Split;
use crate::shard::{Install, Order, SessionShard};

const SLOT_BITS: u32 = 20;
const LANE_BITS: u32 = 4;
/// Slots at most.
pub(crate) const SLOTS_MAX: usize = 1 << SLOT_BITS;
/// Lanes at most.
pub(crate) const LANES_MAX: u8 = 1 << LANE_BITS;

/// An index with lane 0: a slot and its generation.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Index(u32);

impl Index {
    /// Splits what stood in a frame into the index of the session and the lane.
    pub(crate) fn split(raw: u32) -> (Index, u8) {
        let lane = (raw >> SLOT_BITS) & ((1 << LANE_BITS) - 1);
        (Index(raw & !(((1 << LANE_BITS) - 1) << SLOT_BITS)), lane as u8)
    }

    /// For the wire, lane 0.
    pub(crate) fn raw(self) -> u32 {
        self.0
    }

    /// `raw` for `lane`.
    pub(crate) fn with_lane(raw: u32, lane: u8) -> u32 {
        Index::split(raw).0.0 | (u32::from(lane) << SLOT_BITS)
    }

    pub(crate) fn slot(self) -> usize {
        (self.0 & ((1 << SLOT_BITS) - 1)) as usize
    }

    fn generation(self) -> u8 {
        (self.0 >> (SLOT_BITS + LANE_BITS)) as u8
    }

    fn new(slot: usize, generation: u8) -> Index {
        Index((u32::from(generation) << (SLOT_BITS + LANE_BITS)) | slot as u32)
    }
}

enum Content {
    Free,
    /// Named in a handshake that isn't finished.
    Reserved,
    Live(Box<Session>),
}

struct Entry {
    generation: u8,
    content: Content,
}

/// The slab, and who holds the lanes: each change of a session is told to all shards.
pub(crate) struct Slots<C: Ciphers> {
    entries: Vec<Entry>,
    free: VecDeque<u32>,
    limit: usize,
    live: usize,
    workers: u8,
    /// The first worker's shard.
    pub(crate) own: SessionShard<C>,
    /// What the other workers must know, oldest first.
    orders: VecDeque<(u8, Order<C::Aead>)>,
}

impl<C: Ciphers> Slots<C> {
    pub(crate) fn new(limit: usize, config: &Config) -> Slots<C> {
        Slots {
            entries: Vec::new(),
            free: VecDeque::new(),
            limit: limit.min(SLOTS_MAX),
            live: 0,
            workers: config.workers,
            own: SessionShard::new(config, 0),
            orders: VecDeque::new(),
        }
    }

    /// The next order, and for which worker.
    pub(crate) fn poll_order(&mut self) -> Option<(u8, Order<C::Aead>)> {
        self.orders.pop_front()
    }

    pub(crate) fn has_orders(&self) -> bool {
        !self.orders.is_empty()
    }

    fn tell(&mut self, order: impl Fn() -> Order<C::Aead>) {
        self.own.handle_order(order());
        self.orders.extend((1..self.workers).map(|worker| (worker, order())));
    }

    /// Tells all shards of our index mask key.
    pub(crate) fn tell_masks(&mut self, masks: &IndexMasks) {
        let (epoch, key) = masks.current();
        self.tell(|| Order::Masks { epoch, key: Box::new(key.clone()) });
    }

    /// Tells all shards which session seals for a peer.
    pub(crate) fn appoint(&mut self, peer: PeerId, index: Index) {
        self.tell(|| Order::Seal { peer, index });
    }

    /// Has a session's expanded keys forgotten wherever they are.
    pub(crate) fn cool(&mut self, index: Index) {
        let Some(session) = self.get_mut(index).filter(|s| s.warm) else { return };
        session.warm = false;
        self.tell(|| Order::Cool { index });
    }

    /// Sessions that live.
    pub(crate) fn live(&self) -> usize {
        self.live
    }

    /// Takes a slot for a handshake that begins.
    pub(crate) fn reserve(&mut self) -> Option<Index> {
        let slot = match self.free.pop_front() {
            Some(slot) => slot as usize,
            None if self.entries.len() < self.limit => {
                self.entries.push(Entry { generation: 0, content: Content::Free });
                self.entries.len() - 1
            }
            None => return None,
        };
        self.entries[slot].content = Content::Reserved;
        Some(Index::new(slot, self.entries[slot].generation))
    }

    fn entry(&mut self, index: Index) -> Option<&mut Entry> {
        self.entries.get_mut(index.slot()).filter(|e| e.generation == index.generation())
    }

    /// Puts the session that a handshake made into its reserved slot, its lanes into the shards.
    pub(crate) fn fill(&mut self, now: Time, index: Index, split: &Split, terms: &Terms) {
        let Some(entry) = self.entry(index) else { return };
        entry.content = Content::Live(Box::new(Session::new(split, terms, now)));
        self.live += 1;
        let mut lanes = keys::lanes(split, terms);
        for worker in 0..self.workers {
            let part = Install::new(now, index, terms, &mut lanes, (worker, self.workers));
            match worker {
                0 => self.own.handle_order(Order::Install(part)),
                _ => self.orders.push_back((worker, Order::Install(part))),
            }
        }
    }

    /// Gives a slot back; its index means nothing from now on.
    pub(crate) fn release(&mut self, index: Index) {
        let Some(entry) = self.entry(index) else { return };
        let was = core::mem::replace(&mut entry.content, Content::Free);
        entry.generation = entry.generation.wrapping_add(1);
        match was {
            Content::Free => return,
            Content::Reserved => {}
            Content::Live(_) => {
                self.live -= 1;
                self.tell(|| Order::Retire { index });
            }
        }
        self.free.push_back(index.slot() as u32);
    }

    /// The session of this index.
    pub(crate) fn get(&self, index: Index) -> Option<&Session> {
        match self.entries.get(index.slot()) {
            Some(Entry { generation, content: Content::Live(session) })
                if *generation == index.generation() =>
            {
                Some(session)
            }
            _ => None,
        }
    }

    /// The session of this index, to change it.
    pub(crate) fn get_mut(&mut self, index: Index) -> Option<&mut Session> {
        match self.entry(index) {
            Some(Entry { content: Content::Live(session), .. }) => Some(session),
            _ => None,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::Role;

    #[test]
    fn an_index_is_not_reused_until_generations_wrap() {
        let mut slots = Slots::<shoal_crypto::Standard>::new(2, &Config::new(Role::Link));
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
        let raw = Index::with_lane(0xab_00_00_07, 15);
        assert_eq!(raw, 0xab_f0_00_07);
        assert_eq!(Index::split(raw), (Index(0xab_00_00_07), 15));
        assert_eq!(Index::split(raw).0.slot(), 7);
        assert_eq!(Index::split(raw).0.generation(), 0xab);
    }
}
