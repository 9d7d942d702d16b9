//! Notes report a link's traffic from a data path to the relay. Gates tell a data path which links
//! have a backlog.

use shoal_session::{Endpoints, IdTable};
use shoal_wire::LinkId;

use crate::batch::LANES;

/// A worker's note for the first worker, at most one per batch and link or session.
#[derive(Clone, Copy, Debug)]
pub enum WorkerNote {
    Session(shoal_session::SessionUse),
    Link(LinkNote),
}

/// Traffic of one link since its last note.
#[derive(Clone, Copy, Debug)]
pub struct LinkNote {
    pub(crate) link: LinkId,
    /// Number of opened frames, and the highest counter per lane.
    pub(crate) frames: u64,
    pub(crate) highest: [u32; LANES],
    /// True if any opened frame was neither a report nor a keepalive.
    pub(crate) traffic: bool,
    /// Source of the newest opened frame.
    pub(crate) source: Option<Endpoints>,
    /// Number of sent frames that ask for a report, and of reports and keepalives, which don't.
    pub(crate) sent: u64,
    pub(crate) sent_quietly: u64,
    /// Number of full frames among the opened and among the sent ones.
    pub(crate) full: u64,
    pub(crate) sent_full: u64,
    /// True if the kernel had no room.
    pub(crate) refused: bool,
    /// True if the device takes no full frames.
    pub(crate) too_long: bool,
}

impl LinkNote {
    fn new(link: LinkId) -> LinkNote {
        LinkNote {
            link,
            frames: 0,
            highest: [0; LANES],
            traffic: false,
            source: None,
            sent: 0,
            sent_quietly: 0,
            full: 0,
            sent_full: 0,
            refused: false,
            too_long: false,
        }
    }
}

/// The state of a link in a data path.
#[derive(Clone, Copy, Default)]
struct LinkGate {
    /// True if the link may have a backlog, which no frame may overtake.
    closed: bool,
    /// True if the backlog is so long that cells are marked.
    marking: bool,
    /// Position of the link's note in `notes`, counted from 1. Zero if there is none.
    note: u32,
}

/// States of all links, and their pending notes: at most one per link.
#[derive(Default)]
pub(crate) struct LinkNotes {
    known: IdTable<LinkId, LinkGate>,
    notes: Vec<LinkNote>,
}

impl LinkNotes {
    /// The link's pending note.
    pub(crate) fn note(&mut self, link: LinkId) -> &mut LinkNote {
        let next = self.notes.len() as u32 + 1;
        let known = self.known.get_or_default(link);
        if known.note == 0 {
            known.note = next;
            self.notes.push(LinkNote::new(link));
            return &mut self.notes[next as usize - 1];
        }
        let at = known.note as usize - 1;
        &mut self.notes[at]
    }

    /// True if the link may have a backlog.
    pub(crate) fn is_closed(&self, link: LinkId) -> bool {
        self.known.get(link).is_some_and(|known| known.closed)
    }

    /// True if the link's backlog is so long that cells are marked. Then sources should read no
    /// more data for it.
    pub(crate) fn is_marking(&self, link: LinkId) -> bool {
        self.known.get(link).is_some_and(|known| known.marking)
    }

    /// Sets the gate of a link. It is open without a backlog, and frames may leave at once.
    /// `marking` is true if the backlog marks cells.
    pub(crate) fn set_gate(&mut self, link: LinkId, open: bool, marking: bool) {
        let known = match open {
            // A link without a state has an open gate.
            true => self.known.get_mut(link),
            false => Some(self.known.get_or_default(link)),
        };
        if let Some(known) = known {
            (known.closed, known.marking) = (!open, marking);
        }
    }

    /// Passes all pending notes to `tell`. Notes that it refuses are merged with later ones.
    /// Returns true if it accepted all.
    pub(crate) fn tell(&mut self, mut tell: impl FnMut(&LinkNote) -> bool) -> bool {
        let LinkNotes { known, notes } = self;
        let mut set_place = |note: &LinkNote, place| {
            if let Some(known) = known.get_mut(note.link) {
                known.note = place;
            }
        };
        notes.iter().for_each(|note| set_place(note, 0));
        notes.retain(|note| !tell(note));
        (1..).zip(&*notes).for_each(|(place, note)| set_place(note, place));
        notes.is_empty()
    }

    /// Takes one note.
    pub(crate) fn poll_note(&mut self) -> Option<LinkNote> {
        let note = self.notes.pop()?;
        if let Some(known) = self.known.get_mut(note.link) {
            known.note = 0;
        }
        Some(note)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_note_that_found_no_room_is_told_with_what_comes_later() {
        let mut links = LinkNotes::default();
        for link in [4, 0, 7, 4] {
            links.note(LinkId::from_bits(link)).frames += 1;
        }
        assert!(!links.tell(|note| note.link == LinkId::from_bits(0)), "one note has room");
        for link in [0, 7] {
            links.note(LinkId::from_bits(link)).frames += 1;
        }
        let mut told = Vec::new();
        let all = links.tell(|note| {
            told.push((note.link.bits(), note.frames));
            true
        });
        assert!(all);
        assert_eq!(told, [(4, 2), (7, 2), (0, 1)]);
        assert!(links.tell(|_| false), "no note is left");
    }

    #[test]
    fn a_gate_is_open_until_it_is_closed_and_marking_is_each_links_own() {
        let mut links = LinkNotes::default();
        let seen = |links: &LinkNotes| {
            (0..3).map(|n| links.is_closed(LinkId::from_bits(n))).collect::<Vec<_>>()
        };
        assert_eq!(seen(&links), [false; 3]);
        links.set_gate(LinkId::from_bits(1), false, true);
        assert_eq!(seen(&links), [false, true, false]);
        assert!(links.is_marking(LinkId::from_bits(1)) && !links.is_marking(LinkId::from_bits(2)));
        links.set_gate(LinkId::from_bits(1), true, false);
        assert_eq!(seen(&links), [false; 3]);
        assert!(!links.is_marking(LinkId::from_bits(1)));
    }
}
