//! Endpoints that are names: a thread of its own resolves them, and again while their link is down.
//!
//! ```text
//! [[link]] endpoint = "bob.example.org:7400" -> thread: getaddrinfo -> relay.set_endpoint
//! ```
//!
//! A false answer can only misdirect this node's calls: the neighbour's key decides who may answer
//! them.

use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::mpsc::{SyncSender, sync_channel};
use std::time::Duration;

use anyhow::Context;
use shoal_session::EndpointOrigin;
use shoal_wire::{LinkId, Time};

use crate::config::LinkPeer;
use crate::net::resolve::resolve;
use crate::tun::names::NodeNames;
use crate::worker::first::{FirstWorker, WorkerParts};
use crate::worker::shell::DaemonNode;
use crate::worker::wake::{Waker, WakingInbox, channel};

/// Wait before a name is resolved again while its link is down; doubled each time.
const AGAIN_FIRST: Duration = Duration::from_secs(5);
/// Longest wait before a name is resolved again while its link is down.
const AGAIN_MAX: Duration = Duration::from_secs(60);
/// Maximum number of names that wait for the thread, and of answers that wait for the worker.
const WAITING: usize = 64;

/// Name and port, as in `endpoint`.
pub type NamedEndpoint = (String, u16);

/// Neighbour's name, and the endpoint to resolve.
type LookupRequest = (String, NamedEndpoint);

/// Result of a look-up.
struct LookupResult {
    peer: String,
    place: NamedEndpoint,
    addresses: Result<Vec<SocketAddr>, String>,
}

/// State of the endpoint's name of one link.
#[derive(Debug)]
struct NameState {
    place: NamedEndpoint,
    ask_at: Time,
    wait: Duration,
    /// Addresses at which the link is called in turn, until one answers.
    at: Vec<SocketAddr>,
    fault: Option<String>,
}

impl NameState {
    fn new(place: NamedEndpoint, now: Time) -> NameState {
        NameState { place, ask_at: now, wait: AGAIN_FIRST, at: Vec::new(), fault: None }
    }

    /// True if the name is to be resolved at `now`; then sets the next time.
    fn is_due(&mut self, now: Time, is_up: bool) -> bool {
        if is_up {
            // Resolved at once when the link goes down.
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
}

/// The addresses with alternating families, each family in the order of the answer. An unreachable
/// family then costs only half of the calls (RFC 8305 section 4).
fn in_turn(addresses: &[SocketAddr]) -> Vec<SocketAddr> {
    let first = addresses.first().is_some_and(SocketAddr::is_ipv6);
    let of = |six: bool| addresses.iter().filter(move |at| at.is_ipv6() == six).copied();
    let (mut one, mut other) = (of(first), of(!first));
    let mut all = Vec::with_capacity(addresses.len());
    while all.len() < addresses.len() {
        all.extend(one.next().into_iter().chain(other.next()));
    }
    all
}

/// Names of endpoints, and the thread that resolves them.
pub struct Lookups {
    ask: SyncSender<LookupRequest>,
    found: WakingInbox<LookupResult>,
    /// Key: the neighbour's name.
    known: BTreeMap<String, NameState>,
}

impl Lookups {
    /// Starts the thread; it ends when this value is dropped.
    pub fn start(waker: &Arc<Waker>) -> anyhow::Result<Lookups> {
        let (ask, asked) = sync_channel::<LookupRequest>(WAITING);
        let (outlet, found) = channel(WAITING, waker);
        let look_up = move || {
            while let Ok((peer, place)) = asked.recv() {
                let addresses = resolve((&place.0, place.1));
                if outlet.send(LookupResult { peer, place, addresses }).is_err() {
                    return;
                }
            }
        };
        let thread = std::thread::Builder::new().name("shoal-lookup".into()).spawn(look_up);
        thread.context("can't start the thread that looks names up")?;
        Ok(Lookups { ask, found, known: BTreeMap::new() })
    }

    /// Sets the names to resolve: those of these links, and no others.
    fn follow(&mut self, now: Time, links: &[LinkPeer]) {
        let named = links.iter().filter_map(|link| Some((link.peer.as_str(), link.place()?)));
        let named: BTreeMap<&str, (&str, u16)> = named.collect();
        self.known.retain(|peer, NameState { place: (name, port), .. }| {
            named.get(peer.as_str()) == Some(&(name.as_str(), *port))
        });
        for (peer, (name, port)) in named {
            if !self.known.contains_key(peer) {
                let place = (name.to_string(), port);
                self.known.insert(peer.to_string(), NameState::new(place, now));
            }
        }
    }

    /// Asks for all names that are due. `is_up` tells whether a neighbour's link is up.
    fn ask(&mut self, now: Time, is_up: impl Fn(&str) -> bool) {
        for (peer, known) in &mut self.known {
            if known.is_due(now, is_up(peer)) {
                // With a full queue, the name is asked for later.
                let _full = self.ask.try_send((peer.clone(), known.place.clone()));
            }
        }
    }

    /// Notes that a neighbour's link came up or went down. If it went down, asks for its name.
    fn note_link(&mut self, now: Time, peer: &str, is_up: bool) {
        if let Some(known) = self.known.get_mut(peer)
            && known.is_due(now, is_up)
        {
            let _full = self.ask.try_send((peer.into(), known.place.clone()));
        }
    }

    /// Faults for the operator.
    pub fn faults(&self) -> impl Iterator<Item = String> + '_ {
        self.known.iter().filter_map(|(peer, known)| {
            Some(format!("endpoint of the neighbour {peer:?}: {}", known.fault.as_ref()?))
        })
    }
}

impl FirstWorker {
    /// Follows the configuration, asks for the addresses of named endpoints, and calls neighbours
    /// at them. Walks over all links.
    pub(crate) fn look_up_endpoints(&mut self, now: Time) {
        self.take_addresses(now);
        let WorkerParts { lookups, config, names, node, journal, .. } = &mut self.parts;
        lookups.follow(now, &config.links);
        lookups.ask(now, |peer| is_up(names, node, peer));
        let faulty = lookups.known.values().any(|known| known.fault.is_some());
        if faulty && journal.may_say(now, "lookup") {
            tracing::warn!(
                "an endpoint's name can't be looked up, or has no address that this node can call: \
                 `shoal status` says which, and what to do"
            );
        }
    }

    /// Notes that a link came up or went down. In the latter case its name may have another
    /// address.
    pub(crate) fn note_named(&mut self, now: Time, link: LinkId, is_up: bool) {
        let WorkerParts { lookups, names, .. } = &mut self.parts;
        if !lookups.known.is_empty() {
            lookups.note_link(now, &names.link(link), is_up);
        }
    }

    /// Calls neighbours at the addresses in the answers.
    pub(crate) fn take_addresses(&mut self, now: Time) {
        let WorkerParts { lookups, names, node, ports, .. } = &mut self.parts;
        while let Some(LookupResult { peer, place, addresses }) = lookups.found.take() {
            let known = lookups.known.get_mut(&peer).filter(|known| known.place == place);
            let Some(known) = known else { continue };
            let families: Vec<bool> = ports.views().map(|view| view.local.is_ipv4()).collect();
            let may_call = |at: &SocketAddr| node.may_call(*at, EndpointOrigin::Named).is_ok();
            let listens = |at: &SocketAddr| families.contains(&at.is_ipv4());
            let (all, fault) = match addresses {
                Ok(all) => (all, None),
                Err(why) => (Vec::new(), Some(format!("{} can't be looked up: {why}", place.0))),
            };
            let usable = |at: &SocketAddr| listens(at) && may_call(at);
            let usable: Vec<_> = in_turn(&all).into_iter().filter(usable).collect();
            known.fault = fault.or_else(|| match all.iter().find(|at| may_call(at)) {
                _ if !usable.is_empty() => None,
                Some(other) => Some(other_family(&place.0, *other)),
                None => Some(format!(
                    "{} has no address that this node can call: correct the name's entry in the \
                     DNS or in /etc/hosts",
                    place.0
                )),
            });
            let link = names.link_id(&peer).and_then(|link| node.relay.view(link));
            let link = link.filter(|_| !usable.is_empty() && !is_up(names, node, &peer));
            if let Some(link) = link
                && (known.at != usable || link.endpoint.is_none())
            {
                node.relay.set_endpoints(now, link.link, &usable);
                known.at = usable;
            }
        }
    }
}

/// Advice for an operator whose node listens in one family, while a name has addresses of the other
/// only.
fn other_family(name: &str, at: SocketAddr) -> String {
    let (family, any) = if at.is_ipv6() { ("IPv6", "[::]") } else { ("IPv4", "0.0.0.0") };
    format!(
        "{name} has {family} addresses only, and this node does not listen at {family}: add \
         \"{any}:PORT\" to [node] listen"
    )
}

fn is_up(names: &NodeNames, node: &DaemonNode, peer: &str) -> bool {
    let link = names.link_id(peer).and_then(|link| node.relay.view(link));
    link.is_some_and(|link| link.up_since.is_some())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::{ParsedText, PeerEndpoint};
    use shoal_crypto::NetworkSecret;

    fn at(host: u8) -> SocketAddr {
        SocketAddr::from(([192, 0, 2, host], 7_400))
    }

    #[test]
    fn a_name_is_asked_for_while_its_link_is_down_ever_more_rarely() {
        let second = |s: u64| Time::from_millis(1_000 * s);
        let mut known = NameState::new(("bob.example.org".into(), 7_400), second(0));
        let asked: Vec<u64> = (0..200).filter(|s| known.is_due(second(*s), false)).collect();
        assert_eq!(asked, [0, 5, 15, 35, 75, 135, 195]);
        assert!((200..300).all(|s| !known.is_due(second(s), true)), "up");
        assert!(known.is_due(second(300), false), "at once when it went down");
    }

    /// The cost of each call grows with the number of links, not with its square.
    #[test]
    fn many_names_are_followed_at_little_cost() {
        const LINKS: u32 = 30_000;
        let link = |n: u32| LinkPeer {
            peer: format!("neighbour-{n}"),
            endpoint: Some(ParsedText(PeerEndpoint::Named(format!("host-{n}.example.org"), 7_400))),
            mtu: None,
            cover: None,
            shift: None,
            rendezvous: None,
            default_cost: None,
            import: None,
            pin: Vec::new(),
        };
        let links: Vec<LinkPeer> = (0..LINKS).map(link).collect();
        let mut names =
            NodeNames::new(Default::default(), shoal_ip::overlay_prefix(&NetworkSecret([1; 32])));
        (0..LINKS).for_each(|n| names.add_link(LinkId::from_bits(n), &links[n as usize].peer));
        let mut lookups = Lookups::start(&Waker::new().unwrap()).unwrap();
        let began = std::time::Instant::now();
        for second in 0..3 {
            let now = Time::from_millis(1_000 * second);
            lookups.follow(now, &links);
            lookups.ask(now, |peer| names.link_id(peer).is_some());
        }
        let took = began.elapsed();
        assert_eq!(lookups.known.len(), LINKS as usize);
        assert!(took < Duration::from_secs(5), "{took:?}");
        lookups.follow(Time::ZERO, &links[..1]);
        assert_eq!(lookups.known.len(), 1);
    }

    #[test]
    fn addresses_of_both_families_are_called_in_turn() {
        let six = |n: u16| SocketAddr::from(([0x2001, 0xdb8, 0, 0, 0, 0, 0, n], 7_400));
        let all = [six(1), six(2), six(3), at(1), at(2)];
        assert_eq!(in_turn(&all), [six(1), at(1), six(2), at(2), six(3)]);
        assert_eq!(in_turn(&[at(1), at(2), six(1)]), [at(1), six(1), at(2)]);
        assert_eq!(in_turn(&[]), []);
    }

    #[test]
    fn a_name_of_the_other_family_says_what_to_add() {
        let said = other_family("r.example.net", "[2001:db8::1]:7400".parse().unwrap());
        assert!(said.contains("IPv6 addresses only") && said.contains("\"[::]:PORT\""), "{said}");
    }
}
