//! Notes: what a data path tells of links. Gates: what it is told of them.

use shoal_session::{Endpoints, Table};
use shoal_wire::LinkId;

use crate::batch::LANES;

/// What a worker tells the first one, once per batch.
#[derive(Clone, Copy, Debug)]
pub enum Note {
    /// Of a session.
    Session(shoal_session::Note),
    /// Of a link.
    Link(LinkNote),
}

/// What came and went over one link since it was last told.
#[derive(Clone, Copy, Debug)]
pub struct LinkNote {
    pub(crate) link: LinkId,
    /// Frames that opened, and the highest counter per lane.
    pub(crate) frames: u64,
    pub(crate) highest: [u32; LANES],
    /// Some of them were neither reports nor keepalives.
    pub(crate) traffic: bool,
    /// Where the newest of them came from.
    pub(crate) source: Option<Endpoints>,
    /// Frames that left: those that ask for a report; reports and keepalives, which ask for none.
    pub(crate) sent: u64,
    pub(crate) sent_quietly: u64,
    /// Full frames among those that opened, and among those that left.
    pub(crate) full: u64,
    pub(crate) sent_full: u64,
    /// The kernel had no room.
    pub(crate) refused: bool,
    /// The device takes no full frames.
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

/// A link as a data path sees it.
#[derive(Clone, Copy, Default)]
struct Known {
    /// It may have a backlog, which nothing may pass by.
    closed: bool,
    /// The backlog is so long that cells are marked.
    marking: bool,
    /// Which of the notes is the link's, from 1 on; 0 for none.
    note: u32,
}

/// What is known of links, and the notes that are to be told: one for each link at most.
#[derive(Default)]
pub(crate) struct Links {
    known: Table<LinkId, Known>,
    notes: Vec<LinkNote>,
}

impl Links {
    /// The link's note, to be told.
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

    /// Whether the link may have a backlog.
    pub(crate) fn is_closed(&self, link: LinkId) -> bool {
        self.known.get(link).is_some_and(|known| known.closed)
    }

    /// Whether the link's backlog is so long that cells are marked, and that no more should be read
    /// for it.
    pub(crate) fn is_marking(&self, link: LinkId) -> bool {
        self.known.get(link).is_some_and(|known| known.marking)
    }

    /// Says whether the link has no backlog, so that frames may leave at once, and whether it has
    /// one that marks cells.
    pub(crate) fn set_gate(&mut self, link: LinkId, open: bool, marking: bool) {
        let known = match open {
            // The gate of a link of which nothing is known is open.
            true => self.known.get_mut(link),
            false => Some(self.known.get_or_default(link)),
        };
        if let Some(known) = known {
            (known.closed, known.marking) = (!open, marking);
        }
    }

    /// Tells what came and went since the last time. What `tell` refuses is kept and told with
    /// what comes later. Says whether everything was told.
    pub(crate) fn tell(&mut self, mut tell: impl FnMut(&LinkNote) -> bool) -> bool {
        let Links { known, notes } = self;
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
        let mut links = Links::default();
        for link in [4, 0, 7, 4] {
            links.note(LinkId::from_bits(link)).frames += 1;
        }
        assert!(!links.tell(|note| note.link == LinkId::from_bits(0)), "one of three has room");
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
        assert!(links.tell(|_| false), "nothing is left");
    }

    #[test]
    fn a_gate_is_open_until_it_is_closed_and_marking_is_each_links_own() {
        let mut links = Links::default();
        let seen = |links: &Links| {
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
