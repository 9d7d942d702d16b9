//! What neighbours say of themselves and of this node, for people: their wall clocks, and that two
//! nodes call with one key.

use core::time::Duration;
use std::net::SocketAddr;

use shoal_crypto::Ciphers;
use shoal_session::{Endpoint, Endpoints, PeerId};
use shoal_wire::{
    CONTROL_CLOCK, CONTROL_GOODBYE, CONTROL_TWIN, ControlWriter, DropReason, LinkId, LinkKind,
    SizeClass, Time, link,
};

use crate::{Event, Path, Relay, Sink};

/// A neighbour whose calls go back to the endpoint before so often within [`WINDOW`] is two nodes.
const RETURNS: u32 = 3;
/// Two nodes with one key push each other out whenever one notices that it is not heard any more:
/// every half second with traffic, every 13 s when idle.
const WINDOW: Duration = Duration::from_secs(300);

/// Calls of processes that had called before within [`WINDOW`], before the two nodes are left to
/// find out by themselves when they are not heard any more: both have been told by then.
const BACKS: u32 = 2;

/// What a neighbour said, and how it calls.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Notices {
    /// When its clock was told last, and what it showed, in milliseconds since 1970.
    pub clock: Option<(Time, u64)>,
    /// When two nodes with its key called last.
    pub two: Option<Time>,
    /// When it said last that another node calls it with this node's key.
    pub twin: Option<Time>,
    /// The endpoints that it called from, the newest first.
    from: [Option<SocketAddr>; 2],
    /// How often it went back to the one before, and since when that is counted.
    returns: u32,
    since: Time,
    /// How often within [`WINDOW`] a process called again after another one had, since when that
    /// is counted, and whether the newest session's end is to be told.
    backs: u32,
    backs_since: Time,
    tells: bool,
}

impl Notices {
    /// Notes that another process called than before; `back` says that it had called before that
    /// one. Returns true if the one that was replaced should be asked whether it still runs.
    fn note_process(&mut self, now: Time, back: bool) -> bool {
        if now > self.backs_since + WINDOW {
            (self.backs, self.backs_since) = (0, now);
        }
        self.backs += u32::from(back);
        if back {
            (self.two, self.tells) = (Some(now), true);
        }
        self.backs < BACKS
    }

    /// Notes the endpoint of a new session. Says whether two nodes seem to call in turn.
    fn note_call(&mut self, now: Time, endpoint: SocketAddr) -> bool {
        let [last, before] = self.from;
        if last == Some(endpoint) {
            return false;
        }
        self.from = [Some(endpoint), last];
        if now > self.since + WINDOW {
            (self.returns, self.since) = (0, now);
        }
        self.returns += u32::from(before == Some(endpoint));
        let two = self.returns >= RETURNS;
        if two {
            self.two = Some(now);
        }
        two
    }
}

impl<C: Ciphers> Relay<C> {
    /// Tells a neighbour what this node's wall clock shows.
    pub fn send_clock(&mut self, now: Time, to: LinkId, unix_ms: u64, sink: &mut impl Sink) {
        self.send_control(now, to, &[(CONTROL_CLOCK, &unix_ms.to_be_bytes())], sink);
        self.refresh();
    }

    /// Notes that a session was agreed; a neighbour that seems to be two nodes is told so.
    pub(crate) fn note_call(&mut self, now: Time, link: LinkId, sink: &mut impl Sink) {
        let Some(neighbour) = self.neighbours.get_mut(link) else { return };
        let Some(endpoint) = neighbour.endpoint else { return };
        let tells = core::mem::take(&mut neighbour.notices.tells);
        if neighbour.notices.note_call(now, endpoint.remote) || tells {
            self.send_control(now, link, &[(CONTROL_TWIN, &[])], sink);
            self.event(Event::Twins(link));
        }
    }

    /// Notes that another process of a neighbour made the session than the one before. The session
    /// of that one ends at its former place: if it still runs there, it calls again at once, and is
    /// known then. An idle link would be missed after 13 s, and a call from a place that was left
    /// proves nothing. A node that restarted or moved is not there, or drops the frame as one of a
    /// session that it has replaced.
    pub(crate) fn note_process(
        &mut self,
        now: Time,
        link: LinkId,
        back: bool,
        sink: &mut impl Sink,
    ) {
        let former = self.fixed_endpoint(link);
        let to = self.sessions.endpoint(PeerId::from(link));
        let Some(neighbour) = self.neighbours.get_mut(link) else { return };
        let asks = neighbour.notices.note_process(now, back);
        // A frame besides a schedule would show that the link is covered, and one to an address
        // that was left would follow it from one epoch to the next.
        let asks = asks && neighbour.cover.is_none() && !self.hops.links.contains_key(&link);
        let is_left = |former: &Endpoints| to.is_some_and(|to| !to.is_same_place(former));
        if let Some(former) = former.filter(|former| asks && is_left(former)) {
            self.end_former(now, link, former, sink);
        }
    }

    /// Says goodbye under the session that was replaced.
    fn end_former(&mut self, now: Time, link: LinkId, at: Endpoints, sink: &mut impl Sink) {
        let mut frame = [0; SizeClass::Small.frame_len()];
        frame[link::KIND_AT] = LinkKind::Control as u8;
        let body = &mut frame[link::BODY_AT..][..SizeClass::Small.link_body_len()];
        let mut writer = ControlWriter::new(body);
        let fits = writer.push(CONTROL_GOODBYE, &[]) && writer.finish() == Some(SizeClass::Small);
        debug_assert!(fits, "a goodbye is shorter than a small frame");
        if self.sessions.seal_former(now, PeerId::from(link), &mut frame).is_err() {
            return;
        }
        let path = Path { link: Some(link), ends: at };
        let outcome = self.own.send_outside(sink, path, (&frame, &[0], frame.len()));
        self.own.counters.traffic.frames_out += outcome.sent as u64;
        self.own.counters.traffic.bytes_out += (outcome.sent * frame.len()) as u64;
    }

    pub(crate) fn hear_clock(
        &mut self,
        now: Time,
        from: LinkId,
        unix_ms: u64,
    ) -> Result<(), DropReason> {
        let neighbour = self.neighbours.get_mut(from).ok_or(DropReason::UnknownPeer)?;
        neighbour.notices.clock = Some((now, unix_ms));
        Ok(())
    }

    pub(crate) fn hear_of_twin(&mut self, now: Time, from: LinkId) -> Result<(), DropReason> {
        let neighbour = self.neighbours.get_mut(from).ok_or(DropReason::UnknownPeer)?;
        neighbour.notices.twin = Some(now);
        self.event(Event::Twins(from));
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(host: u8) -> SocketAddr {
        SocketAddr::from(([10, 0, 0, host], 7_400))
    }

    #[test]
    fn a_neighbour_that_goes_back_and_forth_is_two_nodes() {
        let mut notices = Notices::default();
        let second = |s: u64| Time::from_millis(s * 1_000);
        let said: Vec<bool> =
            (0..6).map(|i| notices.note_call(second(13 * i), at(1 + i as u8 % 2))).collect();
        assert_eq!(said, [false, false, false, false, true, true]);
        assert_eq!(notices.two, Some(second(65)));
    }

    #[test]
    fn a_neighbour_that_moves_or_restarts_or_seldom_returns_is_one_node() {
        let second = |s: u64| Time::from_millis(s * 1_000);
        let mut notices = Notices::default();
        assert!((0..100).all(|i| !notices.note_call(second(i), at(1 + i as u8))), "new places");
        assert!((0..100).all(|i| !notices.note_call(second(200 + i), at(7))), "one place");
        // Between two networks, every three minutes.
        assert!((0..100).all(|i| !notices.note_call(second(500 + 180 * i), at(1 + i as u8 % 2))));
    }
}
