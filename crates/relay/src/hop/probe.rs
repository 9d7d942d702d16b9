//! Whether an address of a node's prefix can be used: the node asks a neighbour by their link,
//! wherever that is now, and both try it.
//!
//! ```text
//! asks                                    neighbour
//!   Ask ------------------------------->             by the link
//!       <------------------------------- Heard       by the link
//!       <------------------------------- Come        from the fixed endpoint to the address
//!   Leave ------------------------------>            from the address to the fixed endpoint
//!       <------------------------------- Left        by the link
//! ```
//!
//! An Ask names the node's prefix first if that changed lately. Heard then shows that the
//! neighbour knows the prefix, and that Come goes there.
//!
//! Each is repeated, since frames get lost: what never came was not let through. The first answer
//! begins the count anew, so that a long way there and back takes no try from the second direction.

use core::time::Duration;

use shoal_wire::{DropReason, HopProbe, ProbeStage, Time};

use super::budget::Budget;

/// Between two tries.
const AGAIN: Duration = Duration::from_millis(300);
/// How often each message is sent before the neighbour's first answer, and after it: twelve times
/// at most.
const TRIES: u32 = 6;
/// How long the neighbour sends to, and knows, the address that it was asked for.
const KEPT: Duration = Duration::from_secs(4);
/// How many messages of one neighbour's probes are answered while a [`Budget`] counts them. What is
/// more is `hop_budget`. A probe through a prefix that is closed sends 18, in 4 s.
const ANSWERS_MAX: u32 = 48;

/// What a probe has found.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ProbeView {
    /// It has ended.
    pub over: bool,
    /// The neighbour answers.
    pub heard: bool,
    /// What it sent to the address came.
    pub came: bool,
    /// What was sent from the address came to it.
    pub left: bool,
    /// This node's prefix became another one, and the neighbour may not know it: that nothing came
    /// says nothing.
    pub moved: bool,
}

/// One that is under way, or was.
pub(crate) struct Probe {
    identifier: u64,
    again: Time,
    tries: u32,
    /// Every Ask before the first answer names the prefix in force.
    names: bool,
    view: ProbeView,
}

impl Probe {
    /// `moved`: the neighbour may send to a former prefix.
    pub(crate) fn new(now: Time, identifier: u64, moved: bool) -> Probe {
        let view = ProbeView { moved, ..ProbeView::default() };
        Probe { identifier, again: now, tries: 0, names: true, view }
    }

    /// True if an Ask is to name this node's place first.
    pub(crate) fn names_place(&self) -> bool {
        self.view.moved && !self.view.heard
    }

    /// The prefix is another one from now on: what was found says nothing of that.
    pub(crate) fn move_to(&mut self) {
        if !self.view.over {
            let ProbeView { came, left, moved, .. } = &mut self.view;
            (*came, *left, *moved) = (false, false, true);
            // An answer may be one to an Ask that named no place, or the former.
            self.names = false;
        }
    }

    /// What it has found so far.
    pub(crate) fn view(&self) -> ProbeView {
        self.view
    }

    /// The address that is tried, while it is.
    pub(crate) fn identifier(&self) -> Option<u64> {
        (!self.view.over).then_some(self.identifier)
    }

    pub(crate) fn poll_timeout(&self) -> Option<Time> {
        (!self.view.over).then_some(self.again)
    }

    /// Takes what is to be sent now; ends the probe when nothing more is.
    pub(crate) fn poll(&mut self, now: Time) -> Vec<HopProbe> {
        if self.view.over || now < self.again {
            return Vec::new();
        }
        let ProbeView { heard, came, left, .. } = self.view;
        if self.tries == TRIES || (came && left) {
            self.view.over = true;
            return Vec::new();
        }
        self.tries += 1;
        self.again = now + AGAIN;
        let stages = [(ProbeStage::Ask, !heard || !came), (ProbeStage::Leave, heard && !left)];
        let due = stages.into_iter().filter(|(_, due)| *due);
        due.map(|(stage, _)| HopProbe { stage, identifier: self.identifier }).collect()
    }

    /// Takes in what the neighbour says.
    ///
    /// Errors: `bad_hop` if nobody asked.
    pub(crate) fn handle(&mut self, now: Time, said: &HopProbe) -> Result<(), DropReason> {
        if self.identifier() != Some(said.identifier) {
            return Err(DropReason::BadHop);
        }
        let ProbeView { heard, came, left, moved, .. } = &mut self.view;
        match said.stage {
            ProbeStage::Heard if !*heard => {
                *heard = true;
                *moved &= !self.names;
                // The other direction is tried at once, and as often as this one.
                (self.again, self.tries) = (now, 0);
            }
            ProbeStage::Heard => {}
            ProbeStage::Come => *came = true,
            ProbeStage::Left => *left = true,
            ProbeStage::Ask | ProbeStage::Leave => return Err(DropReason::BadHop),
        }
        if self.view.came && self.view.left {
            self.again = now;
        }
        Ok(())
    }
}

/// What the neighbour's probes are answered with.
#[derive(Default)]
pub(crate) struct Asked {
    /// The neighbour's address, and until when it is known.
    at: Option<(u64, Time)>,
    answered: Budget,
    answers: Vec<HopProbe>,
}

impl Asked {
    /// Whether the neighbour asked about its address with this identifier.
    pub(crate) fn knows(&self, now: Time, identifier: u64) -> bool {
        self.at.is_some_and(|(at, until)| at == identifier && now < until)
    }

    /// Takes in what the neighbour asks.
    ///
    /// Errors: `hop_budget` if it asks too often, `bad_hop` if it sends from an address that it did
    /// not ask about.
    pub(crate) fn handle(&mut self, now: Time, said: &HopProbe) -> Result<(), DropReason> {
        let answers: &[ProbeStage] = match said.stage {
            ProbeStage::Ask => &[ProbeStage::Heard, ProbeStage::Come],
            ProbeStage::Leave if self.knows(now, said.identifier) => &[ProbeStage::Left],
            _ => return Err(DropReason::BadHop),
        };
        if !self.answered.spend(now, 1, ANSWERS_MAX) {
            return Err(DropReason::HopBudget);
        }
        if said.stage == ProbeStage::Ask {
            self.at = Some((said.identifier, now + KEPT));
        }
        let answer = |stage: &ProbeStage| HopProbe { stage: *stage, identifier: said.identifier };
        self.answers.extend(answers.iter().map(answer));
        Ok(())
    }

    /// Takes the answers that are to be sent now.
    pub(crate) fn take(&mut self) -> Vec<HopProbe> {
        core::mem::take(&mut self.answers)
    }

    pub(crate) fn is_due(&self) -> bool {
        !self.answers.is_empty()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_probe_that_nobody_answers_ends() {
        let mut probe = Probe::new(Time::ZERO, 7, false);
        let mut sent = 0;
        let mut now = Time::ZERO;
        while let Some(at) = probe.poll_timeout() {
            now = at;
            sent += probe.poll(now).len();
        }
        assert_eq!((sent, now), (TRIES as usize, Time::ZERO + AGAIN * TRIES));
        assert_eq!(probe.view(), ProbeView { over: true, ..ProbeView::default() });
        let late = HopProbe { stage: ProbeStage::Come, identifier: 7 };
        assert_eq!(probe.handle(now, &late), Err(DropReason::BadHop));
    }

    /// An open path whose way there and back takes so long.
    fn found_after(way: Duration) -> (ProbeView, Time) {
        let mut probe = Probe::new(Time::ZERO, 7, false);
        let mut asked = Asked::default();
        let mut answers: Vec<(Time, HopProbe)> = Vec::new();
        let mut now = Time::ZERO;
        while let Some(due) = probe.poll_timeout() {
            let next = answers.iter().map(|(at, _)| *at).min();
            now = next.map_or(due, |at| at.min(due));
            for (_, answer) in answers.extract_if(.., |(at, _)| *at <= now) {
                let _late = probe.handle(now, &answer);
            }
            for sent in probe.poll(now) {
                assert_eq!(asked.handle(now, &sent), Ok(()));
                answers.extend(asked.take().into_iter().map(|answer| (now + way, answer)));
            }
        }
        (probe.view(), now)
    }

    #[test]
    fn a_long_way_is_not_taken_for_a_filter() {
        let open = ProbeView { over: true, heard: true, came: true, left: true, moved: false };
        for way in [0, 20, 800, 1_200, 1_700] {
            let way = Duration::from_millis(way);
            assert_eq!(found_after(way).0, open, "{way:?}");
            assert!(found_after(way).1 <= Time::ZERO + AGAIN * (2 * TRIES), "{way:?}");
        }
    }

    #[test]
    fn only_what_was_asked_is_answered_and_not_too_often() {
        let mut asked = Asked::default();
        let at = |ms| Time::from_millis(ms);
        let said = |stage, identifier| HopProbe { stage, identifier };
        let leave = said(ProbeStage::Leave, 7);
        assert_eq!(asked.handle(at(0), &leave), Err(DropReason::BadHop));
        assert_eq!(asked.handle(at(0), &said(ProbeStage::Come, 7)), Err(DropReason::BadHop));
        for _ in 0..ANSWERS_MAX - 1 {
            assert_eq!(asked.handle(at(1), &said(ProbeStage::Ask, 7)), Ok(()));
        }
        assert!(asked.knows(at(1), 7) && !asked.knows(at(1), 8) && !asked.knows(at(4_001), 7));
        assert_eq!(asked.handle(at(2), &leave), Ok(()));
        assert_eq!(asked.handle(at(3), &leave), Err(DropReason::HopBudget), "too often");
        assert_eq!(asked.take().last(), Some(&said(ProbeStage::Left, 7)));
        assert!(!asked.is_due());
        assert_eq!(asked.handle(at(10_000), &said(ProbeStage::Ask, 9)), Ok(()));
    }
}
