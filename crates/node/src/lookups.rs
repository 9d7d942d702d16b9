//! Endpoints that are names: looked up on a thread of their own, and again while their link is
//! down.
//!
//! ```text
//! [[link]] endpoint = "bob.example.org:7400" -> thread: getaddrinfo -> relay.set_endpoint
//! ```
//!
//! Whoever answers for a name can lead this node's calls astray, and no more: who is there decides
//! the neighbour's key.

use std::collections::BTreeMap;
use std::net::{SocketAddr, ToSocketAddrs};
use std::sync::Arc;
use std::sync::mpsc::{SyncSender, sync_channel};
use std::time::Duration;

use anyhow::Context;
use shoal_wire::Time;

use crate::config::LinkPeer;
use crate::wake::{Bell, Inbox, channel};
use crate::worker::{Parts, Worker};

/// How soon a name is looked up again while its link is down, doubling.
const AGAIN_FIRST: Duration = Duration::from_secs(5);
/// At the latest.
const AGAIN_MAX: Duration = Duration::from_secs(60);
/// Names that may wait for the thread, and answers for the worker.
const WAITING: usize = 64;
/// Addresses of one name that are tried.
const ADDRESSES_MAX: usize = 16;

/// A name with its port, as in `endpoint`.
pub type Place = (String, u16);

/// What became of a look-up.
struct Found {
    place: Place,
    addresses: Result<Vec<SocketAddr>, String>,
}

/// What is known of one link's name.
#[derive(Debug)]
struct Known {
    place: Place,
    ask_at: Time,
    wait: Duration,
    /// Where the link is called.
    at: Option<SocketAddr>,
    fault: Option<String>,
}

impl Known {
    fn new(place: Place, now: Time) -> Known {
        Known { place, ask_at: now, wait: AGAIN_FIRST, at: None, fault: None }
    }

    /// Whether to ask now. An answer, or none, moves the next time on.
    fn is_due(&mut self, now: Time, is_up: bool) -> bool {
        if is_up {
            // Asked at once when it goes down.
            (self.wait, self.ask_at) = (AGAIN_FIRST, now);
            return false;
        }
        let due = self.ask_at <= now;
        if due {
            self.ask_at = now + self.wait;
            self.wait = (self.wait * 2).min(AGAIN_MAX);
        }
        due
    }

    /// The address to be called: the first, or while the link does not come up the one after the
    /// one that was called.
    fn choose(&self, addresses: &[SocketAddr]) -> Option<SocketAddr> {
        let tried = self.at.and_then(|at| addresses.iter().position(|known| *known == at));
        addresses.get(tried.map_or(0, |tried| (tried + 1) % addresses.len())).copied()
    }
}

/// Names of endpoints, and the thread that looks them up.
pub struct Lookups {
    ask: SyncSender<Place>,
    found: Inbox<Found>,
    /// By the neighbour's name.
    known: BTreeMap<String, Known>,
}

impl Lookups {
    /// Starts the thread; it ends when this is dropped.
    pub fn start(bell: &Arc<Bell>) -> anyhow::Result<Lookups> {
        let (ask, asked) = sync_channel::<Place>(WAITING);
        let (outlet, found) = channel(WAITING, bell);
        let look_up = move || {
            while let Ok(place) = asked.recv() {
                let addresses = (place.0.as_str(), place.1).to_socket_addrs();
                let addresses = addresses.map(|all| all.take(ADDRESSES_MAX).collect());
                let addresses = addresses.map_err(|e| e.to_string());
                if outlet.send(Found { place, addresses }).is_err() {
                    return;
                }
            }
        };
        let thread = std::thread::Builder::new().name("shoal-lookup".into()).spawn(look_up);
        thread.context("can't start the thread that looks names up")?;
        Ok(Lookups { ask, found, known: BTreeMap::new() })
    }

    /// Follows the configuration, and asks for what is due. `is_up` says which links are.
    fn ask(&mut self, now: Time, links: &[LinkPeer], is_up: impl Fn(&str) -> bool) {
        let named = |peer: &str| links.iter().find(|link| link.peer == peer)?.place();
        self.known.retain(|peer, known| named(peer).as_ref() == Some(&known.place));
        for link in links {
            let Some(place) = link.place() else { continue };
            let known = self.known.entry(link.peer.clone());
            let known = known.or_insert_with(|| Known::new(place.clone(), now));
            if known.is_due(now, is_up(&link.peer)) {
                // A full queue asks later.
                let _full = self.ask.try_send(place);
            }
        }
    }

    /// Whether any endpoint is a name.
    pub fn is_used(&self) -> bool {
        !self.known.is_empty()
    }

    /// What the operator should know.
    pub fn faults(&self) -> impl Iterator<Item = String> + '_ {
        self.known.iter().filter_map(|(peer, known)| {
            let (name, fault) = (&known.place.0, known.fault.as_ref()?);
            Some(format!("endpoint of the neighbour {peer:?}: {name} can't be looked up: {fault}"))
        })
    }
}

impl Worker {
    /// Asks for the addresses of endpoints that are names, and calls neighbours where they are.
    pub(crate) fn look_up_endpoints(&mut self, now: Time) {
        let Parts { lookups, config, names, machines, journal, .. } = &mut self.parts;
        let ports: Vec<SocketAddr> = machines.ports.views().map(|view| view.local).collect();
        let usable = |at: &SocketAddr| ports.iter().any(|own| own.is_ipv4() == at.is_ipv4());
        let up: Vec<String> = match config.links.iter().any(|link| link.place().is_some()) {
            false => Vec::new(),
            true => {
                let up = machines.relay.links().filter(|link| link.up_since.is_some());
                up.map(|link| names.link(link.link)).collect()
            }
        };
        let is_up = |peer: &str| up.iter().any(|name| name == peer);
        while let Some(Found { place, addresses }) = lookups.found.take() {
            for (peer, known) in lookups.known.iter_mut().filter(|known| known.1.place == place) {
                let (usable, fault): (Vec<SocketAddr>, _) = match &addresses {
                    Ok(all) => (all.iter().copied().filter(usable).collect(), None),
                    Err(why) => (Vec::new(), Some(why.clone())),
                };
                let none = || "it has no address that this node can call".to_string();
                known.fault = fault.or_else(|| usable.is_empty().then(none));
                let chosen = known.choose(&usable).filter(|_| !is_up(peer));
                let Some(link) = names.link_id(peer) else { continue };
                let mut links = machines.relay.links();
                let is_new = links.any(|known| known.link == link && known.endpoint.is_none());
                drop(links);
                if let Some(at) = chosen
                    && (known.at.replace(at) != Some(at) || is_new)
                {
                    machines.relay.set_endpoint(now, link, Some(at));
                }
            }
        }
        lookups.ask(now, &config.links, is_up);
        let faulty = lookups.known.values().any(|known| known.fault.is_some());
        if faulty && journal.may_say(now, "lookup") {
            tracing::warn!("an endpoint's name can't be looked up: `shoal status` says which");
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(host: u8) -> SocketAddr {
        SocketAddr::from(([192, 0, 2, host], 7_400))
    }

    #[test]
    fn a_name_is_asked_for_while_its_link_is_down_ever_more_rarely() {
        let second = |s: u64| Time::from_millis(1_000 * s);
        let mut known = Known::new(("bob.example.org".into(), 7_400), second(0));
        let asked: Vec<u64> = (0..200).filter(|s| known.is_due(second(*s), false)).collect();
        assert_eq!(asked, [0, 5, 15, 35, 75, 135, 195]);
        assert!((200..300).all(|s| !known.is_due(second(s), true)), "it is up");
        assert!(known.is_due(second(300), false), "at once when it went down");
    }

    #[test]
    fn another_address_is_tried_when_the_first_does_not_answer() {
        let mut known = Known::new(("bob.example.org".into(), 7_400), Time::ZERO);
        let all = [at(1), at(2)];
        for expected in [at(1), at(2), at(1)] {
            known.at = known.choose(&all);
            assert_eq!(known.at, Some(expected));
        }
        known.at = known.choose(&[at(9)]);
        assert_eq!(known.at, Some(at(9)), "it has moved");
        assert_eq!(known.choose(&[]), None);
    }
}
