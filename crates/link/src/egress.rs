//! The queue between open and seal: bounded, two priorities, empty most of the time. Cells wait
//! here because the link is slower than its sources; cells that a mix delays have waited before.

use std::collections::VecDeque;

use shoal_wire::{DropReason, SizeClass};

use crate::pool::Pool;
use crate::shares::Shares;

/// Limits of one egress. Frames, not bytes: a frame of any class costs the line a packet.
#[derive(Clone, Copy, Debug)]
pub struct EgressConfig {
    /// Data cells that may wait; one more is dropped as `queue_full`. 512 full frames are 5.9 ms at
    /// 1 Gbit/s.
    pub data_frames_max: usize,
    /// Control cells that may wait.
    pub control_frames_max: usize,
    /// From this many waiting data cells on, cells that pass are marked as having met congestion.
    pub mark_frames: usize,
}

impl Default for EgressConfig {
    fn default() -> Self {
        EgressConfig { data_frames_max: 512, control_frames_max: 128, mark_frames: 64 }
    }
}

/// Which of the two queues a cell belongs to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Priority {
    /// Leaves first: reports, routes, handshakes, acknowledgements.
    Control,
    /// Everything else.
    Data,
}

/// The egress' answer for a run of cells that is to leave now.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Admission {
    /// Nothing waits: seal in place and send at once.
    Bypass,
    /// Something waits: hand the cells to [`Egress::push`].
    Queue,
}

/// Counters of an egress since it was made.
#[derive(Clone, Copy, Debug, Default)]
pub struct EgressStats {
    /// Cells that had to wait.
    pub queued: u64,
    /// Cells refused because their queue was full.
    pub dropped: u64,
    /// Most data cells that ever waited at once.
    pub depth_max: usize,
    /// Times the kernel had no room.
    pub refusals: u64,
}

/// A cell that waits, in a slot of the pool.
pub(crate) struct Waiting {
    pub(crate) slot: u32,
    pub(crate) class: SizeClass,
}

/// Cells on their way out of one link.
pub struct Egress {
    config: EgressConfig,
    control: VecDeque<Waiting>,
    data: VecDeque<Waiting>,
    /// Cells of peers on a covered link, in place of `data`.
    shares: Option<Box<Shares>>,
    /// Cells, one per slot of a full frame's length; grows to what was needed, until
    /// [`Egress::rest`].
    pool: Pool,
    /// Frames the kernel refused after they were sealed; they leave before anything else.
    sealed: VecDeque<Waiting>,
    stats: EgressStats,
}

/// Cells of a peer that may wait for its turns beside files of this node.
const SHARED_FEW: usize = 4;
const SLOT: usize = SizeClass::Full.frame_len();

/// A run of frames of one class that may leave together, copied to the caller's buffer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Run {
    /// How many frames.
    pub count: usize,
    /// Their class; frame `i` starts at `i * class.frame_len()`.
    pub class: SizeClass,
    /// Whether they are sealed already: the kernel refused them before.
    pub sealed: bool,
}

impl Egress {
    /// An empty egress; memory is taken when the first cell has to wait.
    pub fn new(config: EgressConfig) -> Egress {
        Egress {
            config,
            control: VecDeque::new(),
            data: VecDeque::new(),
            shares: None,
            pool: Pool::default(),
            sealed: VecDeque::new(),
            stats: EgressStats::default(),
        }
    }

    /// Whether a run of this priority may leave at once.
    pub fn admission(&self, priority: Priority) -> Admission {
        let behind_others = match priority {
            Priority::Control => !self.control.is_empty(),
            Priority::Data => {
                !self.control.is_empty() || !self.data.is_empty() || self.shared() > 0
            }
        };
        if self.sealed.is_empty() && !behind_others { Admission::Bypass } else { Admission::Queue }
    }

    /// Cells that wait, of both priorities.
    pub fn backlog(&self) -> usize {
        self.sealed.len() + self.control.len() + self.data.len() + self.shared()
    }

    /// Has cells of each peer leave in turns of its own, as those of a covered link do, or all in
    /// order. A peer without cells for so many rounds of 32 frames loses its turns. Cells that wait
    /// leave before others if this ends.
    pub fn set_shares(&mut self, idle_rounds: Option<u32>) {
        if let Some(mut shares) = self.shares.take() {
            self.data.extend(core::iter::from_fn(|| shares.any()));
        }
        self.shares = idle_rounds.map(|rounds| Box::new(Shares::new(rounds)));
    }

    /// Whether each peer has turns of its own.
    pub fn has_shares(&self) -> bool {
        self.shares.is_some()
    }

    fn shared(&self) -> usize {
        self.shares.as_ref().map_or(0, |shares| shares.len())
    }

    /// Whether data cells that pass now get a congestion mark.
    pub fn is_marking(&self) -> bool {
        self.data_waiting() >= self.config.mark_frames
    }

    /// Whether data cells of a peer that pass now get a congestion mark.
    pub fn is_marking_of(&self, peer: u64) -> bool {
        match &self.shares {
            Some(shares) => shares.len_of(peer) >= self.config.mark_frames,
            None => self.is_marking(),
        }
    }

    /// Data cells that this node's files may send now: none while there is a backlog, so that files
    /// wait on disk instead of here.
    pub fn room(&self) -> usize {
        let alone = self.sealed.len() + self.control.len() + self.data.len() == 0;
        let waits = match &self.shares {
            // A few cells of peers that send little wait for their turns all the time.
            Some(shares) => !alone || shares.longest() > SHARED_FEW,
            None => !alone,
        };
        if waits { 0 } else { self.space() }
    }

    /// Data cells that may join the backlog; one more is dropped.
    pub fn space(&self) -> usize {
        self.config.data_frames_max.saturating_sub(self.data_waiting())
    }

    fn data_waiting(&self) -> usize {
        let shared = self.shares.as_ref().map_or(0, |shares| shares.longest());
        self.data.len() + self.sealed.len() + shared
    }

    /// Counters since the start.
    pub fn stats(&self) -> EgressStats {
        self.stats
    }

    /// Copies one unsealed frame (header and tag bytes are still meaningless) into the queue.
    ///
    /// Errors: `queue_full`, and the frame is forgotten.
    pub fn push(
        &mut self,
        priority: Priority,
        class: SizeClass,
        frame: &[u8],
    ) -> Result<(), DropReason> {
        let (waiting, max) = match priority {
            Priority::Control => (self.control.len(), self.config.control_frames_max),
            Priority::Data => (self.data.len(), self.config.data_frames_max),
        };
        if waiting >= max {
            return Err(self.refuse());
        }
        let slot = self.pool.store(SLOT, frame);
        let queue = match priority {
            Priority::Control => &mut self.control,
            Priority::Data => &mut self.data,
        };
        queue.push_back(Waiting { slot, class });
        self.stats.queued += 1;
        self.stats.depth_max = self.stats.depth_max.max(self.data.len());
        Ok(())
    }

    /// Copies an unsealed frame of a peer into the queue, to leave in a turn of that peer, before
    /// that peer's data if it is control. Where peers have no turns it waits as others do.
    ///
    /// Errors: `queue_full`, and the frame is forgotten.
    pub fn push_of(
        &mut self,
        peer: u64,
        priority: Priority,
        class: SizeClass,
        frame: &[u8],
    ) -> Result<(), DropReason> {
        let Some(shares) = &mut self.shares else {
            return self.push(priority, class, frame);
        };
        if shares.len_of(peer) >= self.config.data_frames_max {
            return Err(self.refuse());
        }
        let slot = self.pool.store(SLOT, frame);
        shares.push(peer, priority, Waiting { slot, class });
        self.stats.queued += 1;
        self.stats.depth_max = self.stats.depth_max.max(self.data.len() + shares.len());
        Ok(())
    }

    /// Moves the frame whose turn it is into `buf`: of the link itself, else of the peer that has
    /// the turn. None where that peer has none: the turn stays empty.
    pub fn take_turn(&mut self, buf: &mut [u8]) -> Option<Run> {
        let others = self.sealed.len() + self.control.len() + self.data.len();
        let Some(shares) = self.shares.as_mut().filter(|_| others == 0) else {
            return self.take_run(buf, 1);
        };
        let Waiting { slot, class } = shares.turn()?;
        self.pool.take(SLOT, slot, &mut buf[..class.frame_len()]);
        Some(Run { count: 1, class, sealed: false })
    }

    /// Takes back sealed frames that the kernel had no room for. They keep their counters and leave
    /// first. They are at most the frames of one send, since nothing else is sent before them.
    pub fn push_back_sealed(&mut self, class: SizeClass, frames: &[u8], offsets: &[u32]) {
        self.stats.refusals += 1;
        for &at in offsets {
            let at = at as usize;
            let slot = self.pool.store(SLOT, &frames[at..at + class.frame_len()]);
            self.sealed.push_back(Waiting { slot, class });
        }
    }

    /// Queues a frame that is sealed already, such as a handshake, before all that is not. Says
    /// whether there was room: at most `max` wait.
    pub fn push_sealed(&mut self, class: SizeClass, frame: &[u8], max: usize) -> bool {
        let has_room = self.sealed.len() < max;
        if has_room {
            let slot = self.pool.store(SLOT, frame);
            self.sealed.push_back(Waiting { slot, class });
        }
        has_room
    }

    /// The class of the frames that leave next, if those are sealed.
    pub fn sealed_class(&self) -> Option<SizeClass> {
        self.sealed.front().map(|waiting| waiting.class)
    }

    /// Whether cells of class control may join those that wait. Half of the places are kept for
    /// what the two ends of the link tell each other.
    pub fn has_room_for_control_cells(&self) -> bool {
        self.control.len() * 2 < self.config.control_frames_max
    }

    /// Counts a frame that finds no place.
    pub fn refuse(&mut self) -> DropReason {
        self.stats.dropped += 1;
        DropReason::QueueFull
    }

    /// Changes the limits. What waits beyond them leaves in its turn.
    pub fn set_limits(&mut self, config: EgressConfig) {
        self.config = config;
    }

    /// Moves the next run of frames of one class into `buf`: at most `max` frames, as many as fit.
    /// The caller seals them unless they are sealed, sends them, and repeats this until None.
    pub fn take_run(&mut self, buf: &mut [u8], max: usize) -> Option<Run> {
        let sealed = !self.sealed.is_empty();
        let queue = if sealed {
            &mut self.sealed
        } else if !self.control.is_empty() {
            &mut self.control
        } else {
            &mut self.data
        };
        let class = queue.front()?.class;
        let len = class.frame_len();
        let max = max.min(buf.len() / len);
        let mut count = 0;
        while count < max && queue.front().is_some_and(|w| w.class == class) {
            let Some(waiting) = queue.pop_front() else { break };
            self.pool.take(SLOT, waiting.slot, &mut buf[count * len..(count + 1) * len]);
            count += 1;
        }
        Some(Run { count, class, sealed })
    }

    /// Forgets all cells and gives the memory back; returns how many cells it forgot.
    pub fn clear(&mut self) -> usize {
        let lost = self.backlog();
        let (config, stats) = (self.config, self.stats);
        let shares = self.shares.as_ref().map(|shares| Box::new(shares.emptied()));
        *self = Egress { stats, shares, ..Egress::new(config) };
        lost
    }

    /// Gives the memory back if nothing waits. Turns stay whose they are.
    pub fn rest(&mut self) {
        if self.backlog() == 0 {
            let shares = self.shares.take();
            let _none = self.clear();
            self.shares = shares;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn frame(class: SizeClass, fill: u8) -> Vec<u8> {
        vec![fill; class.frame_len()]
    }

    fn small_queue() -> Egress {
        let config = EgressConfig { data_frames_max: 4, control_frames_max: 2, mark_frames: 2 };
        Egress::new(config)
    }

    #[test]
    fn control_overtakes_data_and_runs_hold_one_class() {
        let mut egress = small_queue();
        let mut buf = vec![0; 44 * SLOT];
        assert_eq!(egress.admission(Priority::Data), Admission::Bypass);
        egress.push(Priority::Data, SizeClass::Full, &frame(SizeClass::Full, 1)).unwrap();
        egress.push(Priority::Data, SizeClass::Full, &frame(SizeClass::Full, 2)).unwrap();
        egress.push(Priority::Data, SizeClass::Small, &frame(SizeClass::Small, 3)).unwrap();
        assert_eq!(egress.admission(Priority::Data), Admission::Queue);
        assert_eq!(egress.admission(Priority::Control), Admission::Bypass);
        egress.push(Priority::Control, SizeClass::Small, &frame(SizeClass::Small, 9)).unwrap();

        let run = egress.take_run(&mut buf, 44).unwrap();
        assert_eq!((run.count, run.class, buf[0]), (1, SizeClass::Small, 9));
        let run = egress.take_run(&mut buf, 44).unwrap();
        assert_eq!((run.count, run.class, buf[0], buf[SLOT]), (2, SizeClass::Full, 1, 2));
        let run = egress.take_run(&mut buf, 44).unwrap();
        assert_eq!((run.count, run.class, buf[0]), (1, SizeClass::Small, 3));
        assert_eq!(egress.take_run(&mut buf, 44), None);
        assert_eq!(egress.backlog(), 0);
    }

    #[test]
    fn a_full_queue_drops_by_name_and_marks_before_that() {
        let mut egress = small_queue();
        for i in 0..4 {
            assert_eq!(egress.is_marking(), i >= 2);
            egress.push(Priority::Data, SizeClass::Full, &frame(SizeClass::Full, i)).unwrap();
        }
        let refused = egress.push(Priority::Data, SizeClass::Full, &frame(SizeClass::Full, 9));
        assert_eq!(refused, Err(DropReason::QueueFull));
        assert_eq!(egress.stats().dropped, 1);
        assert_eq!(egress.clear(), 4);
    }

    #[test]
    fn what_the_kernel_refused_leaves_first_and_stays_sealed() {
        let mut egress = small_queue();
        let mut buf = vec![0; 44 * SLOT];
        egress.push(Priority::Control, SizeClass::Small, &frame(SizeClass::Small, 7)).unwrap();
        let sealed = [frame(SizeClass::Full, 5), frame(SizeClass::Full, 6)].concat();
        egress.push_back_sealed(SizeClass::Full, &sealed, &[0, SLOT as u32]);
        let run = egress.take_run(&mut buf, 1).unwrap();
        assert_eq!((run.count, run.sealed, buf[0]), (1, true, 5));
        let run = egress.take_run(&mut buf, 44).unwrap();
        assert_eq!((run.count, run.sealed, buf[0]), (1, true, 6));
        let run = egress.take_run(&mut buf, 44).unwrap();
        assert_eq!((run.count, run.sealed, buf[0]), (1, false, 7));
    }

    #[test]
    fn each_peer_has_a_bound_and_peers_beyond_those_with_turns_share_one() {
        let mut egress = small_queue();
        egress.set_shares(Some(8));
        let full = frame(SizeClass::Full, 1);
        for peer in 0..100 {
            for _ in 0..6 {
                let _ = egress.push_of(peer, Priority::Data, SizeClass::Full, &full);
            }
        }
        assert_eq!(egress.backlog(), 8 * 4, "four of each place");
        assert_eq!(egress.stats().dropped, 600 - 32);
        assert!(egress.is_marking_of(99) && egress.room() == 0);
        egress.set_shares(None);
        assert_eq!(egress.backlog(), 32);
        let mut buf = vec![0; 44 * SLOT];
        assert_eq!(egress.take_run(&mut buf, 44).unwrap().count, 32);
    }

    #[test]
    fn slots_are_reused() {
        let mut egress = small_queue();
        let mut buf = vec![0; 44 * SLOT];
        for round in 0..100u8 {
            egress.push(Priority::Data, SizeClass::Full, &frame(SizeClass::Full, round)).unwrap();
            assert_eq!(egress.take_run(&mut buf, 44).unwrap().count, 1);
            assert_eq!(buf[0], round);
        }
        assert!(egress.pool.capacity() < 2 * SLOT);
    }

    #[test]
    fn a_rest_gives_memory_back_and_loses_nothing() {
        let mut egress = small_queue();
        let mut buf = vec![0; 44 * SLOT];
        for i in 0..4 {
            egress.push(Priority::Data, SizeClass::Full, &frame(SizeClass::Full, i)).unwrap();
        }
        egress.rest();
        assert_eq!(egress.take_run(&mut buf, 44).unwrap().count, 4, "something waited");
        egress.rest();
        assert_eq!((egress.pool.capacity(), egress.data.capacity()), (0, 0));
        assert_eq!((egress.stats().queued, egress.stats().depth_max), (4, 4));
        egress.push(Priority::Data, SizeClass::Full, &frame(SizeClass::Full, 9)).unwrap();
        assert_eq!(egress.take_run(&mut buf, 44).unwrap().count, 1);
    }
}
