//! An end moves its data to new addresses only when it knows that frames pass both ways between
//! them: the end that leads by an answer that came there, the other one by the word that it is
//! done.

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::net::SocketAddr;

use shoal_wire::{Control, ControlMessages, HopStage, LinkKind};

use crate::hops::identifier;

pub(crate) const RULE: &str = "data moves when it is known that frames pass both ways";

/// Frames that are remembered: more than are under way.
const SEALED_MAX: usize = 1 << 15;

/// The end of a sealed frame, which no two have in common.
pub(crate) type Tag = [u8; 16];

/// What links sealed, and at which addresses steps came.
#[derive(Default)]
pub(crate) struct Moves {
    /// Whether it is a step of a hop, and which.
    sealed: BTreeMap<Tag, Option<HopStage>>,
    order: VecDeque<Tag>,
    /// Interface identifiers at which their nodes know that frames pass both ways. Under another
    /// prefix that stays so: a neighbour that moved is followed when it answers from there.
    known: BTreeSet<u64>,
}

/// The step in what a link seals, if it is one. A challenge goes to where the neighbour is seen for
/// the first time, as a call does, and moves nothing either.
fn step(plaintext: &[u8]) -> Option<HopStage> {
    let (kind, body) = plaintext.split_first()?;
    if *kind != LinkKind::Control as u8 {
        return None;
    }
    let parsed = |message: Result<(u8, _), _>| {
        let (kind, body) = message.ok()?;
        Control::parse(kind, body).ok()
    };
    ControlMessages::new(body).find_map(|message| match parsed(message)? {
        Control::HopStep(step) => Some(step.stage),
        Control::PathChallenge(_) => Some(HopStage::Call),
        _ => None,
    })
}

impl Moves {
    /// A link is about to seal this.
    pub(crate) fn read(plaintext: &[u8]) -> Option<HopStage> {
        step(plaintext)
    }

    /// A link sealed a frame that ends so.
    pub(crate) fn sealed(&mut self, tag: Tag, step: Option<HopStage>) {
        if self.sealed.insert(tag, step).is_none() {
            self.order.push_back(tag);
        }
        if self.order.len() > SEALED_MAX
            && let Some(oldest) = self.order.pop_front()
        {
            self.sealed.remove(&oldest);
        }
    }

    /// Whether a link sealed a frame that ends so: others are a handshake's.
    pub(crate) fn is_links(&self, tag: Tag) -> bool {
        self.sealed.contains_key(&tag)
    }

    /// A frame leaves from an address that hops. Handshakes are none of a link's frames.
    pub(crate) fn leaves(&self, from: SocketAddr, tag: Tag) -> Result<(), String> {
        match self.sealed.get(&tag) {
            Some(None) if !self.known.contains(&identifier(from)) => {
                Err(format!("from {from}, not yet"))
            }
            _ => Ok(()),
        }
    }

    /// A frame comes to an address that hops.
    pub(crate) fn comes(&mut self, at: SocketAddr, tag: Tag) {
        if let Some(Some(HopStage::Answer | HopStage::Done)) = self.sealed.get(&tag) {
            self.known.insert(identifier(at));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::hops::address;

    #[test]
    fn only_an_answer_or_the_word_that_it_is_done_lets_data_move() {
        let (mut moves, own) = (Moves::default(), address((0, 0), 1));
        let (data, call, answer) = ([1; 16], [2; 16], [3; 16]);
        moves.sealed(data, None);
        moves.sealed(call, Some(HopStage::Call));
        moves.sealed(answer, Some(HopStage::Answer));
        assert!(moves.leaves(own, call).is_ok() && moves.leaves(own, [9; 16]).is_ok());
        moves.comes(own, call);
        moves.comes(address((0, 0), 2), answer);
        assert!(moves.leaves(own, data).is_err());
        moves.comes(own, answer);
        assert!(moves.leaves(own, data).is_ok());
    }
}
