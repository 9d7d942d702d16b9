//! A probe of whether an address of a node's prefix is usable. The node asks a neighbour over their
//! link, and both try the address.
//!
//! ```text
//! asks                                    neighbour
//!   Ask ------------------------------->             over the link
//!       <------------------------------- Heard       over the link
//!       <------------------------------- Come        from the fixed endpoint to the address
//!   Leave ------------------------------>            from the address to the fixed endpoint
//!       <------------------------------- Left        over the link
//! ```
//!
//! If the node's prefix changed recently, the node announces the new one in front of each Ask.
//! Heard then proves that the neighbour knows the prefix and sends Come there.
//!
//! Each message is repeated, since frames get lost. A message that never arrives counts as blocked.
//! The first answer restarts the count, so a long round trip takes no tries from the second
//! direction.

use core::time::Duration;

use shoal_wire::{DropReason, ShiftProbe, ShiftProbeStage, Time};

use super::budget::FrameBudget;

/// Time between two tries.
const AGAIN: Duration = Duration::from_millis(300);
/// Maximum number of times that a message is sent before the neighbour's first answer, and as often
/// after it: twelve in all.
const TRIES: u32 = 6;
/// Time after an Ask for which the neighbour recognises the probed address.
const KEPT: Duration = Duration::from_secs(4);
/// Maximum number of a neighbour's probe messages that are answered per [`FrameBudget`] period.
/// Further ones are dropped as `shift_budget`. A probe through a blocked prefix sends 18 in 4 s.
const ANSWERS_MAX: u32 = 48;

/// Result of a probe.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct AddressProbeView {
    /// True if the probe has ended.
    pub over: bool,
    /// True if the neighbour answers.
    pub heard: bool,
    /// True if the neighbour's frame to the address arrived.
    pub came: bool,
    /// True if the frame from the address arrived at the neighbour.
    pub left: bool,
    /// True if this node's prefix changed and the neighbour may not know it. Then a missing frame
    /// proves nothing.
    pub moved: bool,
}

/// A probe in progress, or a finished one.
pub(crate) struct AddressProbe {
    identifier: u64,
    again: Time,
    tries: u32,
    /// True if every Ask before the first answer names the current prefix.
    names: bool,
    view: AddressProbeView,
}

impl AddressProbe {
    /// Begins a probe. `moved` is true if the neighbour may send to a former prefix.
    pub(crate) fn new(now: Time, identifier: u64, moved: bool) -> AddressProbe {
        let view = AddressProbeView { moved, ..AddressProbeView::default() };
        AddressProbe { identifier, again: now, tries: 0, names: true, view }
    }

    /// True if this node must announce its place in front of each Ask.
    pub(crate) fn names_place(&self) -> bool {
        self.view.moved && !self.view.heard
    }

    /// Handles a change of the prefix: earlier results don't apply to the new one.
    pub(crate) fn move_to(&mut self) {
        if !self.view.over {
            let AddressProbeView { came, left, moved, .. } = &mut self.view;
            (*came, *left, *moved) = (false, false, true);
            // An answer may refer to an Ask that named no place, or the former one.
            self.names = false;
        }
    }

    /// Results so far.
    pub(crate) fn view(&self) -> AddressProbeView {
        self.view
    }

    /// The identifier of the probed address. None after the probe.
    pub(crate) fn identifier(&self) -> Option<u64> {
        (!self.view.over).then_some(self.identifier)
    }

    pub(crate) fn poll_timeout(&self) -> Option<Time> {
        (!self.view.over).then_some(self.again)
    }

    /// Takes the messages that are due. Ends the probe if none remain.
    pub(crate) fn poll(&mut self, now: Time) -> Vec<ShiftProbe> {
        if self.view.over || now < self.again {
            return Vec::new();
        }
        let AddressProbeView { heard, came, left, .. } = self.view;
        if self.tries == TRIES || (came && left) {
            self.view.over = true;
            return Vec::new();
        }
        self.tries += 1;
        self.again = now + AGAIN;
        let stages =
            [(ShiftProbeStage::Ask, !heard || !came), (ShiftProbeStage::Leave, heard && !left)];
        let due = stages.into_iter().filter(|(_, due)| *due);
        due.map(|(stage, _)| ShiftProbe { stage, identifier: self.identifier }).collect()
    }

    /// Handles a message of the neighbour.
    ///
    /// Errors: `bad_shift` if this node asked nothing.
    pub(crate) fn handle(&mut self, now: Time, said: &ShiftProbe) -> Result<(), DropReason> {
        if self.identifier() != Some(said.identifier) {
            return Err(DropReason::BadShift);
        }
        let AddressProbeView { heard, came, left, moved, .. } = &mut self.view;
        match said.stage {
            ShiftProbeStage::Heard if !*heard => {
                *heard = true;
                *moved &= !self.names;
                // The second direction is tried at once, and as often as the first.
                (self.again, self.tries) = (now, 0);
            }
            ShiftProbeStage::Heard => {}
            ShiftProbeStage::Come => *came = true,
            ShiftProbeStage::Left => *left = true,
            ShiftProbeStage::Ask | ShiftProbeStage::Leave => return Err(DropReason::BadShift),
        }
        if self.view.came && self.view.left {
            self.again = now;
        }
        Ok(())
    }
}

/// Answers to the neighbour's probes.
#[derive(Default)]
pub(crate) struct ProbeResponder {
    /// The probed address of the neighbour, and until when it is recognised.
    at: Option<(u64, Time)>,
    answered: FrameBudget,
    answers: Vec<ShiftProbe>,
}

impl ProbeResponder {
    /// True if the neighbour asked about its address with this identifier.
    pub(crate) fn knows(&self, now: Time, identifier: u64) -> bool {
        self.at.is_some_and(|(at, until)| at == identifier && now < until)
    }

    /// Handles a message of the neighbour's probe.
    ///
    /// Errors: `shift_budget` if it asks too often. `bad_shift` if it sends from an address about
    /// which it did not ask.
    pub(crate) fn handle(&mut self, now: Time, said: &ShiftProbe) -> Result<(), DropReason> {
        let answers: &[ShiftProbeStage] = match said.stage {
            ShiftProbeStage::Ask => &[ShiftProbeStage::Heard, ShiftProbeStage::Come],
            ShiftProbeStage::Leave if self.knows(now, said.identifier) => &[ShiftProbeStage::Left],
            _ => return Err(DropReason::BadShift),
        };
        if !self.answered.spend(now, 1, ANSWERS_MAX) {
            return Err(DropReason::ShiftBudget);
        }
        if said.stage == ShiftProbeStage::Ask {
            self.at = Some((said.identifier, now + KEPT));
        }
        let answer =
            |stage: &ShiftProbeStage| ShiftProbe { stage: *stage, identifier: said.identifier };
        self.answers.extend(answers.iter().map(answer));
        Ok(())
    }

    /// Takes the answers to send.
    pub(crate) fn take(&mut self) -> Vec<ShiftProbe> {
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
        let mut probe = AddressProbe::new(Time::ZERO, 7, false);
        let mut sent = 0;
        let mut now = Time::ZERO;
        while let Some(at) = probe.poll_timeout() {
            now = at;
            sent += probe.poll(now).len();
        }
        assert_eq!((sent, now), (TRIES as usize, Time::ZERO + AGAIN * TRIES));
        assert_eq!(probe.view(), AddressProbeView { over: true, ..AddressProbeView::default() });
        let late = ShiftProbe { stage: ShiftProbeStage::Come, identifier: 7 };
        assert_eq!(probe.handle(now, &late), Err(DropReason::BadShift));
    }

    /// Simulates a probe over an open path with this round-trip time.
    fn found_after(way: Duration) -> (AddressProbeView, Time) {
        let mut probe = AddressProbe::new(Time::ZERO, 7, false);
        let mut asked = ProbeResponder::default();
        let mut answers: Vec<(Time, ShiftProbe)> = Vec::new();
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
    fn a_long_round_trip_is_not_taken_for_a_filter() {
        let open =
            AddressProbeView { over: true, heard: true, came: true, left: true, moved: false };
        for way in [0, 20, 800, 1_200, 1_700] {
            let way = Duration::from_millis(way);
            assert_eq!(found_after(way).0, open, "{way:?}");
            assert!(found_after(way).1 <= Time::ZERO + AGAIN * (2 * TRIES), "{way:?}");
        }
    }

    #[test]
    fn the_responder_refuses_probes_that_were_not_asked_for_or_are_too_many() {
        let mut asked = ProbeResponder::default();
        let at = |ms| Time::from_millis(ms);
        let said = |stage, identifier| ShiftProbe { stage, identifier };
        let leave = said(ShiftProbeStage::Leave, 7);
        assert_eq!(asked.handle(at(0), &leave), Err(DropReason::BadShift));
        assert_eq!(asked.handle(at(0), &said(ShiftProbeStage::Come, 7)), Err(DropReason::BadShift));
        for _ in 0..ANSWERS_MAX - 1 {
            assert_eq!(asked.handle(at(1), &said(ShiftProbeStage::Ask, 7)), Ok(()));
        }
        assert!(asked.knows(at(1), 7) && !asked.knows(at(1), 8) && !asked.knows(at(4_001), 7));
        assert_eq!(asked.handle(at(2), &leave), Ok(()));
        assert_eq!(asked.handle(at(3), &leave), Err(DropReason::ShiftBudget), "too often");
        assert_eq!(asked.take().last(), Some(&said(ShiftProbeStage::Left, 7)));
        assert!(!asked.is_due());
        assert_eq!(asked.handle(at(10_000), &said(ShiftProbeStage::Ask, 9)), Ok(()));
    }
}
