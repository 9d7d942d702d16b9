//! Hidden hosts: who they are, and the circuits on which they are spoken with.
//!
//! ```text
//! something to send, no circuit -> NeedCircuit ... set_circuit -> handshake on it, then units
//! a unit of the host comes on another circuit -> answers go back on that one
//! ```
//!
//! Units leave on the circuit that this host built to the other, else on the one on which the
//! newest authentic unit came. A session is one of the two hosts: circuits change under it.
//! Handshakes begin on a circuit of this host's own alone, since on the other only answers can go
//! back.

use core::time::Duration;
use std::collections::BTreeMap;

use shoal_crypto::Ciphers;
use shoal_session::Via;
use shoal_transfer::{Added, SegmentLen};
use shoal_wire::leg::Shape;
use shoal_wire::{CircuitId, SizeClass, Time, ip};

use crate::book::HostId;
use crate::cells::Form;
use crate::edge::{Edge, Event, Out};
use crate::sequence::OrderStats;
use crate::units::Way;

/// How long a circuit may take that was asked for: a little less than a handshake that nobody
/// answers.
const CIRCUIT_WAIT: Duration = Duration::from_secs(20);

/// What control knows of a hidden host.
struct Hidden {
    /// Of the last circuit, or as policy has it.
    shape: Shape,
    /// Of the circuits that this host builds, and of those that the other one built, if any came.
    built: Shape,
    far: Option<Shape>,
    /// There was a session over a circuit: the host stays hidden, also when it is removed and comes
    /// again, and after a restart if it was written down ([`Edge::poll_met`]).
    is_met: bool,
    /// The circuit that this host built.
    own: Option<(CircuitId, Shape)>,
    /// The circuit on which the host's newest unit came.
    answer: Option<(CircuitId, Shape)>,
}

impl Hidden {
    fn new(shape: Shape) -> Hidden {
        // Who learns from a circuit of the other host that it is hidden has not built one yet.
        Hidden { shape, built: Shape::MOST, far: None, is_met: false, own: None, answer: None }
    }

    /// Bytes of plaintext that fit the units of this host's circuits, and of the other's.
    fn common_len(&self) -> usize {
        let plain_len = |shape| Form::unit(shape).plain_len();
        plain_len(self.built).min(plain_len(self.far.unwrap_or(self.built)))
    }

    fn way(&self) -> Option<(CircuitId, Shape)> {
        self.own.or(self.answer)
    }
}

/// All hidden hosts.
#[derive(Default)]
pub(crate) struct Circuits {
    hosts: BTreeMap<HostId, Hidden>,
    /// When circuits that were asked for are given up. All hosts may be hidden, and few of them
    /// wait at a time: each turn looks at those alone.
    needs: BTreeMap<HostId, Time>,
    /// What mixes on circuits add, whoever built them, where there are some.
    added: BTreeMap<CircuitId, Added>,
    /// Hosts that got a circuit: what waits for one can leave.
    ready: Vec<HostId>,
}

impl Circuits {
    /// Whether there was a session with the host over a circuit.
    pub(crate) fn is_met(&self, host: HostId) -> bool {
        self.hosts.get(&host).is_some_and(|hidden| hidden.is_met)
    }

    pub(crate) fn forget(&mut self, host: HostId) {
        self.hosts.remove(&host);
        self.needs.remove(&host);
        self.ready.retain(|ready| *ready != host);
    }

    /// Whether the host may get a circuit whose units hold so much plaintext, though the present
    /// one's do not: what is sent on one of the other host, with more tag places, is lost until
    /// this host has its own again. A file that was offered before its host was hidden fits none.
    pub(crate) fn may_fit(&self, host: HostId, len: usize) -> bool {
        let hidden = self.hosts.get(&host);
        hidden.is_some_and(|hidden| Form::unit(hidden.built).plain_len() >= len)
    }

    pub(crate) fn poll_timeout(&self) -> Option<(Time, &'static str)> {
        let ready = (!self.ready.is_empty()).then_some((Time::ZERO, "circuit to use"));
        ready.or_else(|| self.needs.values().min().map(|at| (*at, "circuit asked for")))
    }
}

impl<C: Ciphers> Edge<C> {
    /// Sets the hosts with which policy requires circuits, and the shape of their cells. Others
    /// stay hidden as long as this node runs if there was a session with them over a circuit.
    pub fn set_hidden(&mut self, hosts: &BTreeMap<HostId, Shape>) {
        let shown = |(host, hidden): (&HostId, &Hidden)| {
            (!hidden.is_met && !hosts.contains_key(host)).then_some(*host)
        };
        let shown: Vec<HostId> = self.circuits.hosts.iter().filter_map(shown).collect();
        shown.into_iter().for_each(|host| self.show(host));
        for (&host, &shape) in hosts {
            self.hide(host, shape);
            if let Some(hidden) = self.circuits.hosts.get_mut(&host) {
                hidden.built = shape;
            }
        }
    }

    /// Whether the host is spoken with over circuits alone.
    pub fn is_hidden(&self, host: HostId) -> bool {
        self.own.book.is_hidden(host)
    }

    /// Bytes of end-to-end plaintext that a cell for the host holds, kind byte included.
    pub fn plain_len(&self, host: HostId) -> usize {
        let hidden = self.circuits.hosts.get(&host);
        hidden.map_or(SizeClass::Full.edge_len(), |hidden| Form::unit(hidden.shape).plain_len())
    }

    /// Bytes of the longest IP packet that a cell for the host holds.
    pub fn packet_len(&self, host: HostId) -> usize {
        let number = if self.is_hidden(host) { ip::NUMBER_LEN } else { 0 };
        self.plain_len(host) - ip::PACKET_AT - number
    }

    /// Bytes of file in the segments of a file that is offered to the host now. They fit the
    /// circuits of both hosts.
    pub fn segment_len(&self, host: HostId) -> SegmentLen {
        let hidden = self.circuits.hosts.get(&host);
        let plain_len = hidden.map_or(SizeClass::Full.edge_len(), Hidden::common_len);
        SegmentLen::in_plain(plain_len).unwrap_or(SegmentLen::MIN)
    }

    /// Sets the circuit, built by this host, on which it sends to a hidden host from now on. None
    /// says that there is none any more. Call [`Edge::drive`] afterwards.
    pub fn set_circuit(&mut self, host: HostId, circuit: Option<(CircuitId, Shape)>) {
        let Some(hidden) = self.circuits.hosts.get_mut(&host) else { return };
        hidden.own = circuit;
        if let Some((_, shape)) = circuit {
            hidden.built = shape;
            self.circuits.needs.remove(&host);
        }
        self.take_way(host);
    }

    /// Says how long packets may be late against each other that come on a circuit with mixes,
    /// whoever built it: the quantile of the law of its delays that one of 10,000 exceeds, and an
    /// allowance for lines. Packets wait so long for those before them, or less where less is seen
    /// to do. Zero, as without a call, says that the circuit keeps its order. It counts until the
    /// circuit is over.
    pub fn set_hold(&mut self, circuit: CircuitId, hold: Duration) {
        self.own.sequences.set_hold(circuit, hold);
    }

    /// Says what mixes on a circuit add, whoever built it: in the mean, and the quantile of the law
    /// of its delays that one of 10,000 exceeds. Files go at a rate that allows for it. It counts
    /// until the circuit is over.
    pub fn set_added(&mut self, circuit: CircuitId, mean: Duration, hold: Duration) {
        self.circuits.added.insert(circuit, Added { mean, hold });
        let is_on = |way: Option<(CircuitId, Shape)>| way.is_some_and(|way| way.0 == circuit);
        let uses = |hidden: &Hidden| is_on(hidden.own) || is_on(hidden.answer);
        let hosts = self.circuits.hosts.iter().filter(|(_, hidden)| uses(hidden));
        let hosts: Vec<HostId> = hosts.map(|(host, _)| *host).collect();
        hosts.into_iter().for_each(|host| self.take_added(host));
    }

    /// What mixes between here and a host add: packets go out on one circuit, and what answers them
    /// may come back on another.
    fn added(&self, host: HostId) -> Added {
        let Circuits { hosts, added, .. } = &self.circuits;
        let ways = hosts.get(&host).map_or([None; 2], |hidden| [hidden.own, hidden.answer]);
        let ways = ways.into_iter().flatten();
        let all = ways.filter_map(|(circuit, _)| added.get(&circuit));
        all.fold(Added::default(), |most, added| Added {
            mean: most.mean.max(added.mean),
            hold: most.hold.max(added.hold),
        })
    }

    /// Tells the files what mixes between here and a host add.
    pub(crate) fn take_added(&mut self, host: HostId) {
        let added = self.added(host);
        self.transfers.set_added(host.into(), added);
    }

    /// How much later than without mixes an answer of the host may come.
    pub fn answers_later(&self, host: HostId) -> Duration {
        self.added(host).hold * 2
    }

    /// For how long packets may gather before they are taken in, since many wait for others in any
    /// case; none while few do. What comes together is opened and delivered together.
    pub fn gathers(&self) -> Option<Duration> {
        self.own.sequences.gathers()
    }

    /// Counters of the order of packets that came over circuits.
    pub fn order_stats(&self) -> OrderStats {
        self.own.sequences.stats()
    }

    /// From now on packets are delivered as circuits bring them, in whatever order.
    pub fn keep_any_order(&mut self) {
        self.own.sequences.is_off = true;
    }

    /// A circuit is over, whoever built it. Call [`Edge::drive`] afterwards.
    pub fn circuit_ended(&mut self, now: Time, circuit: CircuitId) {
        self.own.sequences.circuit_ended(circuit);
        self.circuits.added.remove(&circuit);
        let is_it = |way: &mut (CircuitId, Shape)| way.0 == circuit;
        let mut changed = Vec::new();
        for (&host, hidden) in &mut self.circuits.hosts {
            let had_own = hidden.own.take_if(is_it).is_some();
            if hidden.answer.take_if(is_it).is_some() || had_own {
                changed.push((host, had_own));
            }
        }
        for (host, had_own) in changed {
            self.take_way(host);
            if had_own && self.is_live(now, host) {
                self.need_circuit(now, host);
            }
        }
    }

    /// Has a host spoken with over circuits alone; what else there was with it ends.
    fn hide(&mut self, host: HostId, shape: Shape) {
        let Some(peer) = self.own.book.peer(host) else { return };
        if let Some(hidden) = self.circuits.hosts.get_mut(&host) {
            if hidden.way().is_none() {
                hidden.shape = shape;
            }
            return;
        }
        self.circuits.hosts.insert(host, Hidden::new(shape));
        self.book().set_hidden(host, true);
        self.sessions.set_hidden(peer, true);
        self.sessions.set_endpoint(peer, None);
        self.end_direct(host);
        // What waits for a session asks for a circuit.
        self.circuits.ready.push(host);
    }

    /// As `hide`, for a host that was met before it was removed, or before this node started.
    pub(crate) fn hide_again(&mut self, host: HostId) {
        self.hide(host, Shape::MOST);
        if let Some(hidden) = self.circuits.hosts.get_mut(&host) {
            hidden.is_met = true;
        }
    }

    fn show(&mut self, host: HostId) {
        self.circuits.forget(host);
        self.take_added(host);
        self.own.forget(host);
        self.book().set_hidden(host, false);
        if let (Some(peer), Some(at)) = (self.own.book.peer(host), self.address_of(host)) {
            self.sessions.set_hidden(peer, false);
            self.sessions.set_endpoint(peer, Some(Via::Routed(at)));
        }
    }

    /// A session with the host was agreed; one over a circuit keeps it hidden.
    pub(crate) fn note_session(&mut self, host: HostId) {
        let Some(hidden) = self.circuits.hosts.get_mut(&host) else { return };
        if core::mem::replace(&mut hidden.is_met, true) {
            return;
        }
        let peer = self.own.book.peer(host);
        let key = peer.and_then(|peer| self.sessions.peer_key(peer)).copied();
        if let Some(Err(reason)) = key.map(|key| self.met.tell(key)) {
            self.count(reason);
        }
    }

    /// The host's newest unit came on this circuit.
    pub(crate) fn note_way(&mut self, host: HostId, way: (CircuitId, Shape)) {
        self.hide(host, way.1);
        self.note_session(host);
        let Some(hidden) = self.circuits.hosts.get_mut(&host) else { return };
        hidden.far = Some(way.1);
        if hidden.answer.replace(way) != Some(way) {
            self.take_way(host);
        }
    }

    /// Puts the host's circuit into force.
    fn take_way(&mut self, host: HostId) {
        self.take_added(host);
        let Some(peer) = self.own.book.peer(host) else { return };
        let Some(hidden) = self.circuits.hosts.get_mut(&host) else { return };
        let own = hidden.own.map(|(circuit, _)| Via::Circuit(circuit));
        match hidden.way() {
            Some((circuit, shape)) => {
                hidden.shape = shape;
                self.own.ways.put(host, Way { circuit, form: Form::unit(shape) });
                if !self.circuits.ready.contains(&host) {
                    self.circuits.ready.push(host);
                }
            }
            None => {
                self.own.ways.remove(host);
            }
        }
        self.sessions.set_endpoint(peer, own);
    }

    /// Whether a handshake with the host can't begin for want of a circuit.
    pub(crate) fn lacks_circuit(&self, host: HostId) -> bool {
        self.circuits.hosts.get(&host).is_some_and(|hidden| hidden.own.is_none())
    }

    /// Asks for a circuit to the host, once until there is one or it is given up.
    pub(crate) fn need_circuit(&mut self, now: Time, host: HostId) {
        if self.lacks_circuit(host) && !self.circuits.needs.contains_key(&host) {
            self.circuits.needs.insert(host, now + CIRCUIT_WAIT);
            self.event(Event::NeedCircuit(host));
        }
    }

    /// Whether something waits for a session or a circuit with the host.
    fn has_waiting(&self, host: HostId) -> bool {
        let echoes = self.echoes.iter().any(|(to, _)| *to == host);
        echoes || self.unsent.iter().any(|(to, _)| *to == host) || self.waiting.is_for(host)
    }

    /// Sends what waited for circuits.
    pub(crate) fn use_circuits(&mut self, now: Time, buf: &mut [u8], out: &mut impl Out) {
        for host in core::mem::take(&mut self.circuits.ready) {
            match self.reaches(now, host, out) {
                true => {
                    self.send_unsent(now, host, buf, out);
                    self.send_waiting(now, host, out);
                }
                false if self.has_waiting(host) => self.connect(now, host),
                false => {}
            }
        }
    }

    /// Gives up circuits that were asked for in vain.
    pub(crate) fn give_up_circuits(&mut self, now: Time) {
        let Circuits { hosts, needs, .. } = &mut self.circuits;
        let over = needs.extract_if(.., |_, until| *until <= now).map(|(host, _)| host);
        let has_way = |host: &HostId| hosts.get(host).is_some_and(|hidden| hidden.way().is_some());
        let failed: Vec<HostId> = over.filter(|host| !has_way(host)).collect();
        failed.into_iter().for_each(|host| self.fail(now, host));
    }
}

#[cfg(test)]
mod tests {
    use shoal_crypto::{Identity, NetworkSecret};
    use shoal_wire::{Address, DirectKind, DirectMessage, DropReason, Level};

    use super::*;
    use crate::HostConfig;
    use crate::direct::DirectConfig;
    use crate::edge::Config;

    #[test]
    fn direct_links_with_hidden_hosts_are_neither_asked_for_nor_answered() {
        let direct = DirectConfig {
            proactive: true,
            endpoint: None,
            weakest: Level::None,
            groups: Vec::new(),
            idle: Duration::from_secs(60),
            links_max: 8,
        };
        let config = Config {
            address: Address::new(1, 1),
            session: shoal_session::Config::new(shoal_session::Role::Edge),
            transfer: shoal_transfer::Config::default(),
            echo_max: 16,
            ip: true,
            direct: Some(direct),
            events_max: 16,
        };
        let identity = |n| Identity::from_seed([n; 32]);
        let now = Time::from_millis(1);
        let mut edge =
            Edge::new(config, identity(1), NetworkSecret([1; 32]), [1; 32], now, 1_800_000_000);
        let other = HostConfig { key: identity(2).public(), address: Address::new(2, 1) };
        let host = edge.add_host(&other).expect("room for one");
        let endpoint = Some(([10, 0, 0, 9], 7_400).into());
        let (kind, level, keep) = (DirectKind::Ask, Level::None, true);
        let said = DirectMessage { kind, level, keep, endpoint, groups: Vec::new(), meeting: None };
        assert_eq!(edge.handle_direct(now, host, &said), Ok(()));
        assert!(edge.direct_terms(host).is_some());
        let shape = Shape::new(3).expect("a sound shape");
        edge.set_hidden(&BTreeMap::from([(host, shape)]));
        assert_eq!(edge.direct_terms(host), None, "the link ends");
        assert_eq!(edge.handle_direct(now, host, &said), Err(DropReason::CircuitRequired));
        edge.want_all_direct(now);
        edge.note_wanted(now, host);
        assert_eq!(edge.direct_stats().map(|stats| (stats.asked, stats.agreed)), Some((0, 1)));
    }
}
