//! Permission for direct links as a whole, which the owner may change while links exist.

use shoal_wire::{DirectKind, DropReason, Time};

use super::{DirectMachine, DirectPhase};
use crate::book::HostId;

impl DirectMachine {
    /// Allows or forbids direct links; the default is to allow them. While they are forbidden, this
    /// host asks nobody, answers nobody, and ends its links. A link in use closes as an idle one
    /// does: its other end is told, and cells on their way still arrive.
    pub fn allow(&mut self, now: Time, is_allowed: bool) {
        if core::mem::replace(&mut self.is_allowed, is_allowed) == is_allowed {
            return;
        }
        if is_allowed {
            // Proactive hosts ask again.
            self.look_at = Some(now);
            return;
        }
        self.messages.retain(|(_, said)| said.kind == DirectKind::End);
        let entries = self.entries.iter().map(|(host, entry)| (*host, entry.phase));
        for (host, phase) in entries.collect::<Vec<(HostId, DirectPhase)>>() {
            match phase {
                DirectPhase::Up(_) => {
                    self.say(host, DirectKind::End);
                    self.close(now, host);
                }
                DirectPhase::Closing(_) => {}
                DirectPhase::Waiting(_) | DirectPhase::Asked(_) | DirectPhase::Making(_) => {
                    self.forget(host);
                }
            }
        }
    }

    /// Checks whether a message of this kind may be handled. The end of a link is always accepted.
    pub(super) fn check_allowed(&self, kind: DirectKind) -> Result<(), DropReason> {
        let may = self.is_allowed || kind == DirectKind::End;
        may.then_some(()).ok_or(DropReason::NotAllowed)
    }
}
