//! The bounded queue between opening and sealing, with two priorities. A cell waits here only if
//! the link is slower than its sources. Delays of mixes come before this queue.

use std::collections::VecDeque;

use shoal_wire::{DropReason, SizeClass};

use crate::pool::FramePool;
use crate::shares::TurnScheduler;

/// Limits of one egress, in frames: a frame of any class costs the line one packet.
#[derive(Clone, Copy, Debug)]
pub struct EgressConfig {
    /// Maximum number of waiting data cells. A further one is dropped as `queue_full`. 512 full
    /// frames take 5.9 ms at 1 Gbit/s.
    pub data_frames_max: usize,
    /// Maximum number of waiting control cells.
    pub control_frames_max: usize,
    /// With at least this many waiting data cells, cells that pass get a congestion mark.
    pub mark_frames: usize,
}

impl Default for EgressConfig {
    fn default() -> Self {
        EgressConfig { data_frames_max: 512, control_frames_max: 128, mark_frames: 64 }
    }
}

/// The priority of a cell, which selects its queue.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Priority {
    /// Leaves first: reports, routes, handshakes, acknowledgements.
    Control,
    /// All other cells.
    Data,
}

/// Answer to whether a run of cells may leave now.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Admission {
    /// Nothing waits: seal the cells in place and send them at once.
    Bypass,
    /// Other cells wait: pass these to [`Egress::push`].
    Queue,
}

/// Counters since the egress was created.
#[derive(Clone, Copy, Debug, Default)]
pub struct EgressStats {
    /// Cells that had to wait.
    pub queued: u64,
    /// Cells dropped because their queue was full.
    pub dropped: u64,
    /// Maximum number of data cells that waited at once.
    pub depth_max: usize,
    /// Number of times the kernel had no room.
    pub refusals: u64,
}

/// A waiting cell, in a slot of the pool.
pub(crate) struct QueuedFrame {
    pub(crate) slot: u32,
    pub(crate) class: SizeClass,
}

/// Outgoing cells of one link.
pub struct Egress {
    config: EgressConfig,
    control: VecDeque<QueuedFrame>,
    data: VecDeque<QueuedFrame>,
    /// Cells of peers on a covered link. They wait here and not in `data`.
    shares: Option<Box<TurnScheduler>>,
    /// Memory of the waiting cells, one slot of a full frame's length per cell. It grows as needed
    /// and is freed by [`Egress::rest`].
    pool: FramePool,
    /// Frames that the kernel refused after sealing. They leave before all others.
    sealed: VecDeque<QueuedFrame>,
    stats: EgressStats,
}

/// Maximum number of cells of one peer that may wait for turns while this node still sends files.
const SHARED_FEW: usize = 4;
const SLOT: usize = SizeClass::Full.frame_len();

/// A run of frames of one class, copied to the caller's buffer. They may leave together.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct FrameRun {
    /// Number of frames.
    pub count: usize,
    /// Class of the frames. Frame `i` starts at `i * class.frame_len()`.
    pub class: SizeClass,
    /// True if the frames are already sealed, since the kernel refused them before.
    pub sealed: bool,
}

impl Egress {
    /// An empty egress. It allocates memory when the first cell waits.
    pub fn new(config: EgressConfig) -> Egress {
        Egress {
            config,
            control: VecDeque::new(),
            data: VecDeque::new(),
            shares: None,
            pool: FramePool::default(),
            sealed: VecDeque::new(),
            stats: EgressStats::default(),
        }
    }

    /// Decides whether a run of this priority may leave at once.
    pub fn admission(&self, priority: Priority) -> Admission {
        let behind_others = match priority {
            Priority::Control => !self.control.is_empty(),
            Priority::Data => {
                !self.control.is_empty() || !self.data.is_empty() || self.shared() > 0
            }
        };
        if self.sealed.is_empty() && !behind_others { Admission::Bypass } else { Admission::Queue }
    }

    /// Number of waiting cells of both priorities.
    pub fn backlog(&self) -> usize {
        self.sealed.len() + self.control.len() + self.data.len() + self.shared()
    }

    /// Turns on or off that each peer's cells leave in the peer's own turns, as on covered links.
    ///
    /// A peer without cells for `idle_rounds` rounds of 32 frames loses its turns. With None, all
    /// cells leave in order of arrival, and waiting cells leave before later ones.
    pub fn set_shares(&mut self, idle_rounds: Option<u32>) {
        if let Some(mut shares) = self.shares.take() {
            self.data.extend(core::iter::from_fn(|| shares.any()));
        }
        self.shares = idle_rounds.map(|rounds| Box::new(TurnScheduler::new(rounds)));
    }

    /// True if each peer has its own turns.
    pub fn has_shares(&self) -> bool {
        self.shares.is_some()
    }

    fn shared(&self) -> usize {
        self.shares.as_ref().map_or(0, |shares| shares.len())
    }

    /// True if data cells that pass get a congestion mark.
    pub fn is_marking(&self) -> bool {
        self.data_waiting() >= self.config.mark_frames
    }

    /// True if data cells of this peer get a congestion mark.
    pub fn is_marking_of(&self, peer: u64) -> bool {
        match &self.shares {
            Some(shares) => shares.len_of(peer) >= self.config.mark_frames,
            None => self.is_marking(),
        }
    }

    /// Number of data cells that this node's files may send now. It is zero during a backlog, so
    /// files wait on disk and not here.
    pub fn room(&self) -> usize {
        let alone = self.sealed.len() + self.control.len() + self.data.len() == 0;
        let waits = match &self.shares {
            // Peers that send little always have a few cells waiting for turns.
            Some(shares) => !alone || shares.longest() > SHARED_FEW,
            None => !alone,
        };
        if waits { 0 } else { self.space() }
    }

    /// Number of data cells that still fit. A further one is dropped.
    pub fn space(&self) -> usize {
        self.config.data_frames_max.saturating_sub(self.data_waiting())
    }

    fn data_waiting(&self) -> usize {
        let shared = self.shares.as_ref().map_or(0, |shares| shares.longest());
        self.data.len() + self.sealed.len() + shared
    }

    /// Counters since the egress was created.
    pub fn stats(&self) -> EgressStats {
        self.stats
    }

    /// Copies an unsealed frame into the queue. Its header and tag bytes are not set yet.
    ///
    /// # Errors
    ///
    /// `queue_full`: the frame is dropped.
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
        queue.push_back(QueuedFrame { slot, class });
        self.stats.queued += 1;
        self.stats.depth_max = self.stats.depth_max.max(self.data.len());
        Ok(())
    }

    /// Copies an unsealed frame of a peer into the queue. It leaves in that peer's turns, control
    /// before data. Without turns it waits as in [`Egress::push`].
    ///
    /// # Errors
    ///
    /// `queue_full`: the frame is dropped.
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
        shares.push(peer, priority, QueuedFrame { slot, class });
        self.stats.queued += 1;
        self.stats.depth_max = self.stats.depth_max.max(self.data.len() + shares.len());
        Ok(())
    }

    /// Moves the frame of this turn into `buf`. Frames of the link itself come first, then a frame
    /// of the peer that holds the turn. Returns None if that peer has no frame: the turn stays
    /// empty.
    pub fn take_turn(&mut self, buf: &mut [u8]) -> Option<FrameRun> {
        let others = self.sealed.len() + self.control.len() + self.data.len();
        let Some(shares) = self.shares.as_mut().filter(|_| others == 0) else {
            return self.take_run(buf, 1);
        };
        let QueuedFrame { slot, class } = shares.turn()?;
        self.pool.take(SLOT, slot, &mut buf[..class.frame_len()]);
        Some(FrameRun { count: 1, class, sealed: false })
    }

    /// Takes back sealed frames for which the kernel had no room. They keep their counters and
    /// leave first. Their number is at most one send's, since nothing else is sent before them.
    pub fn push_back_sealed(&mut self, class: SizeClass, frames: &[u8], offsets: &[u32]) {
        self.stats.refusals += 1;
        for &at in offsets {
            let at = at as usize;
            let slot = self.pool.store(SLOT, &frames[at..at + class.frame_len()]);
            self.sealed.push_back(QueuedFrame { slot, class });
        }
    }

    /// Queues a frame that is already sealed, such as a handshake, ahead of all unsealed ones.
    /// Returns false if `max` sealed frames already wait.
    pub fn push_sealed(&mut self, class: SizeClass, frame: &[u8], max: usize) -> bool {
        let has_room = self.sealed.len() < max;
        if has_room {
            let slot = self.pool.store(SLOT, frame);
            self.sealed.push_back(QueuedFrame { slot, class });
        }
        has_room
    }

    /// The class of the next frames to leave, if these are sealed.
    pub fn sealed_class(&self) -> Option<SizeClass> {
        self.sealed.front().map(|waiting| waiting.class)
    }

    /// True if control cells of peers may join the control queue. Half of that queue is reserved
    /// for messages between the two ends of the link.
    pub fn has_room_for_control_cells(&self) -> bool {
        self.control.len() * 2 < self.config.control_frames_max
    }

    /// Counts a frame that is dropped because the queue is full.
    pub fn refuse(&mut self) -> DropReason {
        self.stats.dropped += 1;
        DropReason::QueueFull
    }

    /// Changes the limits. Cells that already wait beyond them still leave in order.
    pub fn set_limits(&mut self, config: EgressConfig) {
        self.config = config;
    }

    /// Moves the next run of frames of one class into `buf`: at most `max`, as many as fit. The
    /// caller seals them unless they are sealed, sends them, and repeats until None.
    pub fn take_run(&mut self, buf: &mut [u8], max: usize) -> Option<FrameRun> {
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
        Some(FrameRun { count, class, sealed })
    }

    /// Drops all cells and frees the memory. Returns the number of dropped cells.
    pub fn clear(&mut self) -> usize {
        let lost = self.backlog();
        let (config, stats) = (self.config, self.stats);
        let shares = self.shares.as_ref().map(|shares| Box::new(shares.emptied()));
        *self = Egress { stats, shares, ..Egress::new(config) };
        lost
    }

    /// Frees the memory if no cell waits. The peers keep their turns.
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
    fn frames_that_the_kernel_refused_leave_first_and_stay_sealed() {
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
        assert_eq!(egress.backlog(), 8 * 4, "four for each slot");
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
