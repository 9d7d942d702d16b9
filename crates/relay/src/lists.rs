//! Messages of neighbours for the node's owner: about the authority's list, registrars' supplements
//! and the network's secret.

use std::collections::VecDeque;

use shoal_crypto::Ciphers;
use shoal_wire::{ChainMessage, DropReason, LinkId, ListMessage, SecretMessage, Time};

use crate::{Relay, Sink};

/// Those that wait.
#[derive(Debug, Default)]
pub(crate) struct Lists {
    waiting: VecDeque<(LinkId, ListMessage)>,
    chains: VecDeque<(LinkId, ChainMessage)>,
    secrets: VecDeque<(LinkId, SecretMessage)>,
    /// How many of each may wait; 0 where nobody takes them.
    max: usize,
}

impl Lists {
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

/// Has a message wait for the node's owner, if there is room.
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
    /// Has messages about the authority's list kept for [`Self::poll_list`], those about
    /// supplements for [`Self::poll_chain`] and about the secret for [`Self::poll_secret`], `max`
    /// at once of each; one more is dropped as `list_budget`. At first `max` is 0: all are dropped
    /// as `not_allowed`.
    pub fn take_lists(&mut self, max: usize) {
        self.lists.max = max;
    }

    /// Takes the oldest message of a neighbour about the authority's list. To be called until there
    /// is none, after whatever takes in frames.
    pub fn poll_list(&mut self) -> Option<(LinkId, ListMessage)> {
        self.lists.waiting.pop_front()
    }

    /// As [`Self::poll_list`], about registrars' supplements.
    pub fn poll_chain(&mut self) -> Option<(LinkId, ChainMessage)> {
        self.lists.chains.pop_front()
    }

    /// As [`Self::poll_list`], about the network's secret.
    pub fn poll_secret(&mut self) -> Option<(LinkId, SecretMessage)> {
        self.lists.secrets.pop_front()
    }

    /// Sends a neighbour a message about the authority's list.
    pub fn send_list(
        &mut self,
        now: Time,
        to: LinkId,
        message: &ListMessage,
        sink: &mut impl Sink,
    ) {
        self.send_passed(now, to, (message.kind(), |body| message.encode(body)), sink);
    }

    /// Sends a neighbour a message about registrars' supplements.
    pub fn send_chain(
        &mut self,
        now: Time,
        to: LinkId,
        message: &ChainMessage,
        sink: &mut impl Sink,
    ) {
        self.send_passed(now, to, (message.kind(), |body| message.encode(body)), sink);
    }

    /// Sends a neighbour a message about the network's secret.
    pub fn send_secret(
        &mut self,
        now: Time,
        to: LinkId,
        message: &SecretMessage,
        sink: &mut impl Sink,
    ) {
        self.send_passed(now, to, (message.kind(), |body| message.encode(body)), sink);
    }

    /// Sends a neighbour a message of a kind, which `encode` appends to its body.
    fn send_passed(
        &mut self,
        now: Time,
        to: LinkId,
        (kind, encode): (u8, impl FnOnce(&mut Vec<u8>)),
        sink: &mut impl Sink,
    ) {
        let mut body = Vec::new();
        encode(&mut body);
        self.send_control(now, to, &[(kind, &body)], sink);
        self.refresh();
    }
}
