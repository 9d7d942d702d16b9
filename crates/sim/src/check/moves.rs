//! A node sends data from a new address only when it knows that frames pass both ways. The leading
//! end learns this from an answer to the new address, the other end from the step `Done`.

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::net::SocketAddr;

use shoal_wire::{ControlMessage, ControlMessages, LinkKind, ShiftStage};

use crate::shifts::identifier;

pub(crate) const RULE: &str = "data uses a new address once it is known that frames pass both ways";

/// Number of remembered frames; fewer are in flight.
const SEALED_MAX: usize = 1 << 15;

/// The last bytes of a sealed frame, which are unique.
pub(crate) type FrameTag = [u8; 16];

/// Frames sealed by links, and the addresses to which steps of a shift came.
#[derive(Default)]
pub(crate) struct ShiftChecker {
    /// The step of a shift in each sealed frame, if it is one.
    sealed: BTreeMap<FrameTag, Option<ShiftStage>>,
    order: VecDeque<FrameTag>,
    /// Interface identifiers at which their nodes know that frames pass both ways. A new prefix
    /// does not change that, since a neighbour that moved is followed when it answers from there.
    known: BTreeSet<u64>,
}

/// The step of a shift in a link's plaintext, if there is one. A path challenge counts as a call:
/// it goes to an address where the neighbour is seen for the first time, and moves no data.
fn step(plaintext: &[u8]) -> Option<ShiftStage> {
    let (kind, body) = plaintext.split_first()?;
    if *kind != LinkKind::Control as u8 {
        return None;
    }
    let parsed = |message: Result<(u8, _), _>| {
        let (kind, body) = message.ok()?;
        ControlMessage::parse(kind, body).ok()
    };
    ControlMessages::new(body).find_map(|message| match parsed(message)? {
        ControlMessage::ShiftStep(step) => Some(step.stage),
        ControlMessage::PathChallenge(_) => Some(ShiftStage::Call),
        _ => None,
    })
}

impl ShiftChecker {
    /// Reads a plaintext that a link is about to seal.
    pub(crate) fn read(plaintext: &[u8]) -> Option<ShiftStage> {
        step(plaintext)
    }

    /// Notes a frame with this tag that a link sealed.
    pub(crate) fn sealed(&mut self, tag: FrameTag, step: Option<ShiftStage>) {
        if self.sealed.insert(tag, step).is_none() {
            self.order.push_back(tag);
        }
        if self.order.len() > SEALED_MAX
            && let Some(oldest) = self.order.pop_front()
        {
            self.sealed.remove(&oldest);
        }
    }

    /// True if a link sealed a frame with this tag. Other frames belong to handshakes.
    pub(crate) fn is_links(&self, tag: FrameTag) -> bool {
        self.sealed.contains_key(&tag)
    }

    /// Checks a frame that leaves from a shifting address. Handshake frames are exempt.
    pub(crate) fn leaves(&self, from: SocketAddr, tag: FrameTag) -> Result<(), String> {
        match self.sealed.get(&tag) {
            Some(None) if !self.known.contains(&identifier(from)) => {
                Err(format!("from {from}, not yet"))
            }
            _ => Ok(()),
        }
    }

    /// Notes a frame that comes to a shifting address.
    pub(crate) fn comes(&mut self, at: SocketAddr, tag: FrameTag) {
        if let Some(Some(ShiftStage::Answer | ShiftStage::Done)) = self.sealed.get(&tag) {
            self.known.insert(identifier(at));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::shifts::address;

    #[test]
    fn only_an_answer_or_the_word_that_it_is_done_lets_data_move() {
        let (mut moves, own) = (ShiftChecker::default(), address((0, 0), 1));
        let (data, call, answer) = ([1; 16], [2; 16], [3; 16]);
        moves.sealed(data, None);
        moves.sealed(call, Some(ShiftStage::Call));
        moves.sealed(answer, Some(ShiftStage::Answer));
        assert!(moves.leaves(own, call).is_ok() && moves.leaves(own, [9; 16]).is_ok());
        moves.comes(own, call);
        moves.comes(address((0, 0), 2), answer);
        assert!(moves.leaves(own, data).is_err());
        moves.comes(own, answer);
        assert!(moves.leaves(own, data).is_ok());
    }
}
