//! Warnings about a neighbour for the node's operator: its clock, signs of two nodes with one key,
//! and its word that this node is no member any more.

use core::time::Duration;
use std::net::SocketAddr;
use std::sync::Arc;

use shoal_crypto::Ciphers;
use shoal_session::{Endpoint, Endpoints, FormerKeys, PeerId};
use shoal_wire::{
    CONTROL_CLOCK, CONTROL_GOODBYE, CONTROL_TWIN, ControlWriter, DropReason, LinkId, LinkKind,
    Removal, SizeClass, Time, link,
};

use crate::{FrameSink, Relay, RelayEvent, SendPath};

/// Number of returns to the previous endpoint within [`WINDOW`] that shows two nodes with one key.
const RETURNS: u32 = 3;
/// Time in which returns are counted. Two nodes with one key displace each other whenever one
/// notices that it is not heard. That is every half second with traffic, every 13 s when idle.
const WINDOW: Duration = Duration::from_secs(300);

/// Number of returns of a known process within [`WINDOW`] after which no goodbye is sent any more.
/// By then, both nodes have been told. They then notice by themselves that they are not heard.
const BACKS: u32 = 2;

/// Warnings about a neighbour: its clock, signs of two nodes with one key, and its word that this
/// node's membership has ended.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct NeighbourWarnings {
    /// The neighbour's clock in milliseconds since 1970, and when it told it.
    pub clock: Option<(Time, u64)>,
    /// When two nodes with the neighbour's key last called.
    pub two: Option<Time>,
    /// When the neighbour last reported another node that uses this node's key.
    pub twin: Option<Time>,
    /// When the neighbour last said that this node's membership has ended, and how. A session with
    /// the neighbour disproves it.
    pub removed: Option<(Time, Removal)>,
    /// The endpoints from which the neighbour called last, the newest first.
    from: [Option<SocketAddr>; 2],
    /// Number of returns to the previous endpoint, counted since `since`.
    returns: u32,
    since: Time,
    /// Number of returns of a known process within [`WINDOW`], counted since `backs_since`. `tells`
    /// is true if the newest session must be told of the twin.
    backs: u32,
    backs_since: Time,
    tells: bool,
}

impl NeighbourWarnings {
    /// Notes that a different process called than before. `back` is true if it had called before
    /// the other one. Returns true if the replaced process should get a goodbye, to see whether it
    /// still runs.
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

    /// Notes the endpoint of a new session. Returns true if two nodes seem to call in turn.
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
    /// Tells a neighbour the time of this node's wall clock.
    pub fn send_clock(&mut self, now: Time, to: LinkId, unix_ms: u64, sink: &mut impl FrameSink) {
        self.send_control(now, to, &[(CONTROL_CLOCK, &unix_ms.to_be_bytes())], sink);
        self.refresh();
    }

    /// Notes that a session was agreed. Tells the neighbour if two nodes seem to use its key.
    pub(crate) fn note_call(&mut self, now: Time, link: LinkId, sink: &mut impl FrameSink) {
        let Some(neighbour) = self.neighbours.get_mut(link) else { return };
        let Some(endpoint) = neighbour.endpoint else { return };
        let tells = core::mem::take(&mut neighbour.notices.tells);
        if neighbour.notices.note_call(now, endpoint.remote) || tells {
            self.send_control(now, link, &[(CONTROL_TWIN, &[])], sink);
            self.event(RelayEvent::Twins(link));
        }
    }

    /// Notes that a different process of a neighbour made this session.
    ///
    /// Sends a goodbye under the replaced session to its last endpoint. If that process still runs
    /// there, it calls again at once and is thereby detected. Otherwise an idle link would miss it
    /// for 13 s. A later call from an endpoint that was left proves nothing. A restarted or moved
    /// node is not at that endpoint, or drops the goodbye as a frame of a replaced session.
    pub(crate) fn note_process(
        &mut self,
        now: Time,
        link: LinkId,
        back: bool,
        sink: &mut impl FrameSink,
    ) {
        let former = self.fixed_endpoint(link);
        let to = self.sessions.endpoint(PeerId::from(link));
        let Some(neighbour) = self.neighbours.get_mut(link) else { return };
        let asks = neighbour.notices.note_process(now, back);
        // An unscheduled frame would reveal that the link is covered. A frame to an address that
        // was left would link the addresses of two epochs.
        let asks = asks && neighbour.cover.is_none() && !self.shifts.links.contains_key(&link);
        let is_left = |former: &Endpoints| to.is_some_and(|to| !to.is_same_place(former));
        if let Some(former) = former.filter(|former| asks && is_left(former)) {
            self.end_former(now, link, former, sink);
        }
    }

    /// Sends a goodbye under the replaced session.
    fn end_former(&mut self, now: Time, link: LinkId, at: Endpoints, sink: &mut impl FrameSink) {
        let mut frame = [0; SizeClass::Small.frame_len()];
        frame[link::KIND_AT] = LinkKind::Control as u8;
        let body = &mut frame[link::BODY_AT..][..SizeClass::Small.link_body_len()];
        let mut writer = ControlWriter::new(body);
        let fits = writer.push(CONTROL_GOODBYE, &[]) && writer.finish() == Some(SizeClass::Small);
        debug_assert!(fits, "a goodbye is shorter than a small frame");
        if self.sessions.seal_former(now, PeerId::from(link), &mut frame).is_err() {
            return;
        }
        let path = SendPath { link: Some(link), ends: at };
        let outcome = self.own.send_outside(sink, path, (&frame, &[0], frame.len()));
        self.own.counters.traffic.frames_out += outcome.sent as u64;
        self.own.counters.traffic.bytes_out += (outcome.sent * frame.len()) as u64;
    }

    /// Sets the former members that are told of their removal; see
    /// [`shoal_session::Sessions::set_former`].
    pub fn set_former(&mut self, former: Arc<FormerKeys>) {
        self.sessions.set_former(former);
    }

    /// Notes that a neighbour answered a call by "removed".
    pub(crate) fn note_removal(&mut self, now: Time, link: LinkId, removal: Removal) {
        let Some(neighbour) = self.neighbours.get_mut(link) else { return };
        neighbour.notices.removed = Some((now, removal));
        self.event(RelayEvent::Removed(link));
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
        self.event(RelayEvent::Twins(from));
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
        let mut notices = NeighbourWarnings::default();
        let second = |s: u64| Time::from_millis(s * 1_000);
        let said: Vec<bool> =
            (0..6).map(|i| notices.note_call(second(13 * i), at(1 + i as u8 % 2))).collect();
        assert_eq!(said, [false, false, false, false, true, true]);
        assert_eq!(notices.two, Some(second(65)));
    }

    #[test]
    fn a_neighbour_that_moves_or_restarts_or_seldom_returns_is_one_node() {
        let second = |s: u64| Time::from_millis(s * 1_000);
        let mut notices = NeighbourWarnings::default();
        assert!((0..100).all(|i| !notices.note_call(second(i), at(1 + i as u8))), "new places");
        assert!((0..100).all(|i| !notices.note_call(second(200 + i), at(7))), "one place");
        // The neighbour changes between two networks every three minutes.
        assert!((0..100).all(|i| !notices.note_call(second(500 + 180 * i), at(1 + i as u8 % 2))));
    }
}
