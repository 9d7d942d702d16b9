//! The queue between open and seal: bounded, two priorities, empty most of the time. Cells wait
//! here because the link is slower than its sources; cells that a mix delays have waited before.

use std::collections::VecDeque;

use shoal_wire::{DropReason, SizeClass};

use crate::pool::Pool;

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

struct Waiting {
    slot: u32,
    class: SizeClass,
}

/// Cells on their way out of one link.
pub struct Egress {
    config: EgressConfig,
    control: VecDeque<Waiting>,
    data: VecDeque<Waiting>,
    /// Cells, one per slot of a full frame's length; grows to what was needed, until
    /// [`Egress::rest`].
    pool: Pool,
    /// Frames the kernel refused after they were sealed; they leave before anything else.
    sealed: VecDeque<Waiting>,
    stats: EgressStats,
}

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
            pool: Pool::default(),
            sealed: VecDeque::new(),
            stats: EgressStats::default(),
        }
    }

    /// Whether a run of this priority may leave at once.
    pub fn admission(&self, priority: Priority) -> Admission {
        let behind_others = match priority {
            Priority::Control => !self.control.is_empty(),
            Priority::Data => !self.control.is_empty() || !self.data.is_empty(),
        };
        if self.sealed.is_empty() && !behind_others { Admission::Bypass } else { Admission::Queue }
    }

    /// Cells that wait, of both priorities.
    pub fn backlog(&self) -> usize {
        self.sealed.len() + self.control.len() + self.data.len()
    }

    /// Whether data cells that pass now get a congestion mark.
    pub fn is_marking(&self) -> bool {
        self.data_waiting() >= self.config.mark_frames
    }

    /// Data cells that this node's files may send now: none while there is a backlog, so that files
    /// wait on disk instead of here.
    pub fn room(&self) -> usize {
        if self.backlog() > 0 { 0 } else { self.space() }
    }

    /// Data cells that may join the backlog; one more is dropped.
    pub fn space(&self) -> usize {
        self.config.data_frames_max.saturating_sub(self.data_waiting())
    }

    fn data_waiting(&self) -> usize {
        self.data.len() + self.sealed.len()
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
        *self = Egress { stats, ..Egress::new(config) };
        lost
    }

    /// Gives the memory back if nothing waits.
    pub fn rest(&mut self) {
        if self.backlog() == 0 {
            let _none = self.clear();
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
