//! Processes behind a key: a restarted node is a new process, and two processes that call in turn
//! are two nodes with one key.
//!
//! ```text
//! requests of process   X X | Y Y Y     restarted: X never calls again
//!                       X X | Y | X     copied: X still runs, and calls after Y did
//! ```
//!
//! The incarnation in a request names the process, and its timestamp orders requests. A delayed
//! request of X is older than that of Y, and thus no sign of a copy.

use shoal_crypto::Ciphers;
use shoal_wire::{DropReason, Time};

use crate::config::{Endpoint, PeerId, SessionEvent, SessionRole};
use crate::sessions::Sessions;

/// The last two processes of a peer whose requests made sessions, the last one first. Each is an
/// incarnation and its newest timestamp.
#[derive(Clone, Copy, Default)]
pub(crate) struct Processes([Option<(u64, u64)>; 2]);

impl Processes {
    /// Notes the request of a session that has come into use. Returns `Some` if another process
    /// made the session before; true in it if this process had called before that one.
    pub(crate) fn note(&mut self, incarnation: u64, timestamp: u64) -> Option<bool> {
        let [last, before] = self.0;
        let Some(last) = last else {
            self.0[0] = Some((incarnation, timestamp));
            return None;
        };
        if last.0 == incarnation {
            self.0[0] = Some((incarnation, last.1.max(timestamp)));
            return None;
        }
        self.0 = [Some((incarnation, timestamp)), Some(last)];
        Some(before.is_some_and(|before| before.0 == incarnation) && timestamp > last.1)
    }
}

impl<E: Endpoint, C: Ciphers> Sessions<E, C> {
    /// Notes that the peer uses the session that this request made. Must be called before the
    /// session replaces the previous one.
    pub(crate) fn note_process(&mut self, peer: PeerId, incarnation: u64, timestamp: u64) {
        let found = self.peer_mut(peer);
        if let Some(back) = found.and_then(|peer| peer.processes.note(incarnation, timestamp)) {
            self.events.push_back(SessionEvent::OtherProcess { peer, back });
        }
    }

    /// Seals one frame on the first lane of the session that the current one replaced. Only the
    /// process that made that session can open it. The plaintext must be placed as in
    /// [`crate::SessionShard::seal_batch`].
    ///
    /// # Errors
    ///
    /// The errors of [`crate::SessionShard::seal_batch`].
    pub fn seal_former(
        &mut self,
        now: Time,
        peer: PeerId,
        frame: &mut [u8],
    ) -> Result<(), DropReason> {
        let former = self.peer(peer).and_then(|found| found.old.last());
        let (index, _) = *former.ok_or(DropReason::NoSession)?;
        let (role, len) = (SessionRole::Link, frame.len());
        self.slots.own.seal_under(role, now, (peer, index, 0), frame, &[0], len).map(|_| ())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_process_that_calls_after_another_one_did_still_runs() {
        let mut seen = Processes::default();
        assert_eq!(seen.note(1, 100), None);
        assert_eq!(seen.note(1, 200), None, "new keys");
        assert_eq!(seen.note(2, 300), Some(false), "a restart, or a copy");
        assert_eq!(seen.note(1, 250), Some(false), "a request that was late");
        assert_eq!(seen.note(2, 400), Some(true));
        assert_eq!(seen.note(1, 500), Some(true), "two nodes");
    }

    #[test]
    fn a_node_that_restarts_often_is_one_node() {
        let mut seen = Processes::default();
        let calls = (0..100).map(|n| seen.note(n, 1_000 - n));
        assert!(calls.skip(1).all(|call| call == Some(false)), "whatever its clock says");
    }
}
