//! What neighbours say of themselves and of this node, for people: their wall clocks, and that two
//! nodes call with one key.

use core::time::Duration;
use std::net::SocketAddr;

use shoal_crypto::Ciphers;
use shoal_wire::{CONTROL_CLOCK, CONTROL_TWIN, DropReason, LinkId, Time};

use crate::{Relay, Sink};

/// A neighbour whose calls go back to the endpoint before so often within [`WINDOW`] is two nodes.
const RETURNS: u32 = 3;
/// Two nodes with one key push each other out whenever one notices that it is not heard any more:
/// every half second with traffic, every 13 s when idle.
const WINDOW: Duration = Duration::from_secs(300);

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
}

impl Notices {
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
        if neighbour.notices.note_call(now, endpoint.remote) {
            self.send_control(now, link, &[(CONTROL_TWIN, &[])], sink);
        }
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
