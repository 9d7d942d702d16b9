//! Carries the authority's list between neighbours, as [`shoal_directory::Exchange`] decides.

use shoal_directory::{Error, Exchange, ExchangeStats, List, Outcome, Refused};
use shoal_relay::Event as RelayEvent;
use shoal_wire::{DropReason, Time};

use crate::control::journal;
use crate::membership::authority::{Authority, unix_s};
use crate::worker::first::{Parts, Worker};

/// Messages of neighbours about the list that may wait. One transfer has 64 parts under way.
pub const WAITING_MAX: usize = 256;

impl Authority {
    /// Whether lists are passed on.
    pub fn passes_on(&self) -> bool {
        self.exchange.is_some()
    }

    /// What became of lists between neighbours.
    pub fn exchange_stats(&self) -> ExchangeStats {
        self.exchange.as_ref().map(Exchange::stats).unwrap_or_default()
    }

    /// Has neighbours told of the list in force.
    pub(crate) fn tell(&mut self, now: Time) {
        if let (Some(exchange), Some(mark), Some(list)) =
            (&mut self.exchange, self.directory.mark(), self.directory.list())
        {
            exchange.set_list(now, mark, list.shared());
        }
    }

    /// Puts a list in force that came from a neighbour, unless it is refused; says whether members
    /// may have changed. `read` is the outcome of the check of the authority's signature.
    pub(crate) fn take_passed_on(&mut self, now: Time, read: Result<List, Error>) -> bool {
        let (outcome, changed) = match read {
            // The authority signed it for a later version of Shoal.
            Err(why @ Error::Critical(_)) => (self.refuse_passed_on(&why, true), false),
            Err(why) => {
                let what = "a list from a neighbour does not count";
                tracing::warn!("{}", journal::unnamed(what, journal::DEBUG, &[why.to_string()]));
                (Outcome::Forged, false)
            }
            Ok(list) => match self.directory.accept(now, unix_s(), list) {
                Ok(new) => (Outcome::Taken, self.put_in_force(now, new, true)),
                Err(refused) => {
                    // That a neighbour has an older list is no fault to show in the status.
                    let is_kept = !matches!(refused, Refused::Older { .. });
                    (self.refuse_passed_on(&refused, is_kept), false)
                }
            },
        };
        if outcome != Outcome::Taken {
            self.bad += 1;
            self.refusals += 1;
        }
        if let Some(exchange) = &mut self.exchange {
            exchange.settled(now, outcome);
        }
        changed
    }

    /// Says why a list that the authority signed has no effect; the status keeps it if `is_kept`.
    fn refuse_passed_on(&mut self, why: &impl std::fmt::Display, is_kept: bool) -> Outcome {
        let why = format!("a list from a neighbour: {why}");
        let says = if is_kept { journal::STATUS } else { journal::DEBUG };
        let what = "a list from a neighbour is refused";
        tracing::warn!("{}", journal::unnamed(what, says, std::slice::from_ref(&why)));
        if is_kept {
            self.refused = Some(why);
        }
        Outcome::Refused
    }

    /// Gives a list that has arrived whole to the thread that checks it.
    fn check_arrived(&mut self) {
        let arrived = self.exchange.as_mut().and_then(Exchange::poll_arrived);
        let bytes = self.unchecked.take().or(arrived.map(|arrived| arrived.bytes));
        if let (Some(bytes), Some(watcher)) = (bytes, &self.watcher) {
            self.unchecked = watcher.check(bytes).err();
        }
    }
}

impl Worker {
    /// Notes that a neighbour hears us, or is lost.
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
        let Parts { node, authority, .. } = &mut self.parts;
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
            | RelayEvent::Met(_) => {}
        }
    }

    /// Takes in what neighbours say about the authority's list, and says what is due.
    pub(crate) fn pass_lists_on(&mut self, now: Time) {
        let Parts { node, ports, authority, .. } = &mut self.parts;
        let Some(authority) = authority else { return };
        let bad = std::mem::take(&mut authority.bad);
        node.relay.count_drop(DropReason::BadList, bad);
        authority.check_arrived();
        let Some(exchange) = &mut authority.exchange else { return };
        while let Some((link, message)) = node.relay.poll_list() {
            if !exchange.is_up(link)
                && let Some(neighbour) = node.relay.view(link)
            {
                // Its message came before the event that the link is up.
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
