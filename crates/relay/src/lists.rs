//! Neighbours' messages for the node's owner: on the authority's list, registrars' supplements and
//! the network secret.

use std::collections::VecDeque;

use shoal_crypto::Ciphers;
use shoal_wire::{ChainMessage, DropReason, LinkId, ListMessage, SecretMessage, Time};

use crate::{FrameSink, Relay};

/// Messages that wait for the owner.
#[derive(Debug, Default)]
pub(crate) struct AuthorityInbox {
    waiting: VecDeque<(LinkId, ListMessage)>,
    chains: VecDeque<(LinkId, ChainMessage)>,
    secrets: VecDeque<(LinkId, SecretMessage)>,
    /// Maximum length of each queue. Zero if the owner takes no messages.
    max: usize,
}

impl AuthorityInbox {
    pub(crate) fn take_list(&mut self, from: LinkId, what: ListMessage) -> Result<(), DropReason> {
        push(&mut self.waiting, self.max, (from, what))
    }

    pub(crate) fn take_chain(
        &mut self,
        from: LinkId,
        what: ChainMessage,
    ) -> Result<(), DropReason> {
        push(&mut self.chains, self.max, (from, what))
    }

    pub(crate) fn take_secret(
        &mut self,
        from: LinkId,
        what: SecretMessage,
    ) -> Result<(), DropReason> {
        push(&mut self.secrets, self.max, (from, what))
    }
}

/// Queues a message for the node's owner if there is room.
fn push<T>(waiting: &mut VecDeque<T>, max: usize, message: T) -> Result<(), DropReason> {
    match max {
        0 => Err(DropReason::NotAllowed),
        max if waiting.len() >= max => Err(DropReason::ListBudget),
        _ => {
            waiting.push_back(message);
            Ok(())
        }
    }
}

impl<C: Ciphers> Relay<C> {
    /// Sets the maximum length of each queue of [`Self::poll_list`], [`Self::poll_chain`] and
    /// [`Self::poll_secret`].
    ///
    /// A message beyond `max` is dropped as `list_budget`. Initially `max` is 0, and all messages
    /// are dropped as `not_allowed`.
    pub fn take_lists(&mut self, max: usize) {
        self.lists.max = max;
    }

    /// Takes the oldest message of a neighbour on the authority's list. Call this until it returns
    /// None, after each call that handles frames.
    pub fn poll_list(&mut self) -> Option<(LinkId, ListMessage)> {
        self.lists.waiting.pop_front()
    }

    /// Takes the oldest message on registrars' supplements; see [`Self::poll_list`].
    pub fn poll_chain(&mut self) -> Option<(LinkId, ChainMessage)> {
        self.lists.chains.pop_front()
    }

    /// Takes the oldest message on the network secret; see [`Self::poll_list`].
    pub fn poll_secret(&mut self) -> Option<(LinkId, SecretMessage)> {
        self.lists.secrets.pop_front()
    }

    /// Sends a neighbour a message on the authority's list.
    pub fn send_list(
        &mut self,
        now: Time,
        to: LinkId,
        message: &ListMessage,
        sink: &mut impl FrameSink,
    ) {
        self.send_passed(now, to, (message.kind(), |body| message.encode(body)), sink);
    }

    /// Sends a neighbour a message on registrars' supplements.
    pub fn send_chain(
        &mut self,
        now: Time,
        to: LinkId,
        message: &ChainMessage,
        sink: &mut impl FrameSink,
    ) {
        self.send_passed(now, to, (message.kind(), |body| message.encode(body)), sink);
    }

    /// Sends a neighbour a message on the network secret.
    pub fn send_secret(
        &mut self,
        now: Time,
        to: LinkId,
        message: &SecretMessage,
        sink: &mut impl FrameSink,
    ) {
        self.send_passed(now, to, (message.kind(), |body| message.encode(body)), sink);
    }

    /// Sends a neighbour a message of this kind. `encode` appends its body.
    fn send_passed(
        &mut self,
        now: Time,
        to: LinkId,
        (kind, encode): (u8, impl FnOnce(&mut Vec<u8>)),
        sink: &mut impl FrameSink,
    ) {
        let mut body = Vec::new();
        encode(&mut body);
        self.send_control(now, to, &[(kind, &body)], sink);
        self.refresh();
    }
}
