//! Answers to messages about transfers that are over.

use core::time::Duration;
use std::collections::VecDeque;

use shoal_wire::Time;
use shoal_wire::transfer::{CancelReason, RefuseReason, TransferEnd, TransferMessage};

use crate::types::PeerKey;

/// Most ended transfers that are remembered.
const GRAVES_MAX: usize = 256;
/// Most answers that wait for the network.
const REPLIES_MAX: usize = 64;
/// Least time between two equal answers.
const AGAIN: Duration = Duration::from_millis(10);

/// Result of a transfer.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) enum FileTransferEnd {
    Done,
    Refused(RefuseReason),
    Cancelled(CancelReason),
}

#[derive(Clone, Copy, Debug)]
struct EndedTransfer {
    peer: PeerKey,
    port: u16,
    nonce: u32,
    role: TransferEnd,
    end: FileTransferEnd,
    quiet_until: Time,
}

/// Ended transfers, and answers that need no state.
#[derive(Default)]
pub(crate) struct EndedTransfers {
    graves: VecDeque<EndedTransfer>,
    replies: VecDeque<(PeerKey, TransferMessage<'static>)>,
    quiet_until: Time,
}

impl EndedTransfers {
    /// Records the result of a transfer; `role` is this node's.
    pub(crate) fn bury(
        &mut self,
        peer: PeerKey,
        port: u16,
        nonce: u32,
        role: TransferEnd,
        end: FileTransferEnd,
    ) {
        self.graves.retain(|g| (g.peer, g.port, g.role) != (peer, port, role));
        if self.graves.len() == GRAVES_MAX {
            self.graves.pop_front();
        }
        let quiet_until = Time::ZERO;
        self.graves.push_back(EndedTransfer { peer, port, nonce, role, end, quiet_until });
    }

    /// Queues a message; false if too many wait.
    pub(crate) fn reply(&mut self, peer: PeerKey, message: TransferMessage<'static>) -> bool {
        let room = self.replies.len() < REPLIES_MAX;
        if room {
            self.replies.push_back((peer, message));
        }
        room
    }

    pub(crate) fn pop(&mut self) -> Option<(PeerKey, TransferMessage<'static>)> {
        self.replies.pop_front()
    }

    pub(crate) fn has_replies(&self) -> bool {
        !self.replies.is_empty()
    }

    /// Answers a message or segment for a transfer that this node, in `role`, doesn't have. `nonce`
    /// is the message's, if it has one.
    pub(crate) fn answer(
        &mut self,
        now: Time,
        peer: PeerKey,
        port: u16,
        nonce: Option<u32>,
        role: TransferEnd,
    ) {
        let known = self.graves.iter_mut().find(|g| {
            (g.peer, g.port, g.role) == (peer, port, role) && nonce.is_none_or(|n| n == g.nonce)
        });
        let quiet_until = match &known {
            Some(grave) => grave.quiet_until,
            None => self.quiet_until,
        };
        if now < quiet_until {
            return;
        }
        let cancel = |reason| TransferMessage::Cancel { port, role, reason };
        let message = match known {
            Some(grave) => {
                grave.quiet_until = now + AGAIN;
                match (grave.end, role) {
                    (FileTransferEnd::Done, TransferEnd::Receiver) => {
                        TransferMessage::Done { port, nonce: grave.nonce }
                    }
                    // The receiver itself sent Done, and needs no answer.
                    (FileTransferEnd::Done, TransferEnd::Sender) => return,
                    (FileTransferEnd::Refused(reason), _) => {
                        TransferMessage::Refuse { port, nonce: grave.nonce, reason }
                    }
                    (FileTransferEnd::Cancelled(reason), _) => cancel(reason),
                }
            }
            None => {
                self.quiet_until = now + AGAIN;
                cancel(CancelReason::Unknown)
            }
        };
        self.reply(peer, message);
    }

    /// True if the offer is of a transfer that has ended.
    pub(crate) fn ended(&self, peer: PeerKey, port: u16, nonce: u32) -> bool {
        let key = (peer, port, nonce, TransferEnd::Receiver);
        self.graves.iter().any(|g| (g.peer, g.port, g.nonce, g.role) == key)
    }

    /// Forgets a peer whose session is gone.
    pub(crate) fn forget(&mut self, peer: PeerKey) {
        self.graves.retain(|g| g.peer != peer);
        self.replies.retain(|(to, _)| *to != peer);
    }
}
