//! Exchanges the authority's list with neighbours, as [`shoal_directory::ListExchange`] decides.

use shoal_directory::{Error, ExchangeStats, List, ListExchange, ListRejection, ListVerdict};
use shoal_relay::RelayEvent;
use shoal_wire::{DropReason, Time};

use crate::control::journal;
use crate::membership::authority::{AuthorityState, unix_s};
use crate::worker::first::{FirstWorker, WorkerParts};

/// Maximum number of waiting list messages. One transfer has 64 parts in flight.
pub const WAITING_MAX: usize = 256;

impl AuthorityState {
    /// True if this node passes lists on.
    pub fn passes_on(&self) -> bool {
        self.exchange.is_some()
    }

    /// Outcomes of lists exchanged with neighbours.
    pub fn exchange_stats(&self) -> ExchangeStats {
        self.exchange.as_ref().map(ListExchange::stats).unwrap_or_default()
    }

    /// Announces the list in force to neighbours.
    pub(crate) fn tell(&mut self, now: Time) {
        if let (Some(exchange), Some(mark), Some(list)) =
            (&mut self.exchange, self.directory.mark(), self.directory.list())
        {
            exchange.set_list(now, mark, list.shared());
        }
    }

    /// Applies a list from a neighbour, unless it is refused. True if members may have changed.
    /// `read` is the result of the check of the authority's signature.
    pub(crate) fn take_passed_on(&mut self, now: Time, read: Result<List, Error>) -> bool {
        let (outcome, changed) = match read {
            // The authority signed it for a later version of Shoal.
            Err(why @ Error::Critical(_)) => (self.refuse_passed_on(&why, true), false),
            Err(why) => {
                let what = "a list from a neighbour is forged or damaged";
                tracing::warn!("{}", journal::unnamed(what, journal::DEBUG, &[why.to_string()]));
                (ListVerdict::Forged, false)
            }
            Ok(list) => match self.directory.accept(now, unix_s(), list) {
                Ok(new) => (ListVerdict::Taken, self.put_in_force(now, new, true)),
                Err(refused) => {
                    // Neighbours with older lists are normal, so the status does not show them.
                    let is_kept = !matches!(refused, ListRejection::Older { .. });
                    (self.refuse_passed_on(&refused, is_kept), false)
                }
            },
        };
        if outcome != ListVerdict::Taken {
            self.bad += 1;
            self.refusals += 1;
        }
        if let Some(exchange) = &mut self.exchange {
            exchange.settled(now, outcome);
        }
        changed
    }

    /// Logs why a signed list has no effect. The status shows the reason if `is_kept`.
    fn refuse_passed_on(&mut self, why: &impl std::fmt::Display, is_kept: bool) -> ListVerdict {
        let why = format!("a list from a neighbour: {why}");
        let says = if is_kept { journal::STATUS } else { journal::DEBUG };
        let what = "a list from a neighbour is refused";
        tracing::warn!("{}", journal::unnamed(what, says, std::slice::from_ref(&why)));
        if is_kept {
            self.refused = Some(why);
        }
        ListVerdict::Refused
    }

    /// Passes a completely received list to the checking thread.
    fn check_arrived(&mut self) {
        let arrived = self.exchange.as_mut().and_then(ListExchange::poll_arrived);
        let bytes = self.unchecked.take().or(arrived.map(|arrived| arrived.bytes));
        if let (Some(bytes), Some(watcher)) = (bytes, &self.watcher) {
            self.unchecked = watcher.check(bytes).err();
        }
    }
}

impl FirstWorker {
    /// Notes that the link to a neighbour is up or down.
    pub(crate) fn note_neighbour(&mut self, now: Time, event: &RelayEvent) {
        match *event {
            RelayEvent::LinkUp(link) => {
                self.note_chain(now, link, true);
                self.note_secret(now, link, true);
            }
            RelayEvent::LinkDown(link) => {
                self.note_chain(now, link, false);
                self.note_secret(now, link, false);
            }
            _ => {}
        }
        let WorkerParts { node, authority, .. } = &mut self.parts;
        let authority = authority.as_mut();
        let Some(exchange) = authority.and_then(|authority| authority.exchange.as_mut()) else {
            return;
        };
        match *event {
            RelayEvent::LinkUp(link) => {
                if let Some(neighbour) = node.relay.view(link) {
                    exchange.link_up(now, link, neighbour.address);
                }
            }
            RelayEvent::LinkDown(link) => exchange.link_down(now, link),
            RelayEvent::Established(_)
            | RelayEvent::Route(_)
            | RelayEvent::Seen
            | RelayEvent::Width(_)
            | RelayEvent::Twins(_)
            | RelayEvent::Removed(_)
            | RelayEvent::Met(_) => {}
        }
    }

    /// Handles neighbours' messages about the authority's list, and sends those that are due.
    pub(crate) fn pass_lists_on(&mut self, now: Time) {
        let WorkerParts { node, ports, authority, .. } = &mut self.parts;
        let Some(authority) = authority else { return };
        let bad = std::mem::take(&mut authority.bad);
        node.relay.count_drop(DropReason::BadList, bad);
        authority.check_arrived();
        let Some(exchange) = &mut authority.exchange else { return };
        while let Some((link, message)) = node.relay.poll_list() {
            if !exchange.is_up(link)
                && let Some(neighbour) = node.relay.view(link)
            {
                // The message arrived before the event that the link is up.
                exchange.link_up(now, link, neighbour.address);
            }
            if let Err(reason) = exchange.handle_message(now, link, message) {
                node.relay.count_drop(reason, 1);
            }
        }
        exchange.handle_timeout(now);
        while let Some((link, message)) = exchange.poll_transmit(now) {
            node.relay.send_list(now, link, &message, ports.at(now));
        }
        authority.check_arrived();
    }
}
