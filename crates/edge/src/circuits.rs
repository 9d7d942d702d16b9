//! Hidden hosts, and the circuits over which they are reached.
//!
//! ```text
//! packet to send, no circuit -> NeedCircuit ... set_circuit -> handshake on it, then units
//! unit of the host comes on another circuit -> replies leave on that circuit
//! ```
//!
//! Units leave on the circuit that this host built to the other host. Without one, they leave on
//! the circuit on which the newest authentic unit came. The session belongs to the two hosts and
//! survives a change of circuits. This host begins handshakes only on a circuit that it built
//! itself, since the other host's circuit carries only replies.

use core::time::Duration;
use std::collections::BTreeMap;

use shoal_crypto::Ciphers;
use shoal_session::HostPath;
use shoal_transfer::{MixDelay, SegmentLen};
use shoal_wire::leg::CellShape;
use shoal_wire::{CircuitId, SizeClass, Time, ip};

use crate::book::HostId;
use crate::cells::CellLayout;
use crate::edge::{Edge, EdgeEvent, EdgeOutput};
use crate::sequence::OrderStats;
use crate::units::HiddenRoute;

/// Longest wait for a requested circuit: a little less than the time after which an unanswered
/// handshake fails.
const CIRCUIT_WAIT: Duration = Duration::from_secs(20);

/// Control's record of a hidden host.
struct HiddenHost {
    /// Shape of the circuit in use, or else the shape that policy requires.
    shape: CellShape,
    /// Shape of the circuits that this host builds, and (`far`) of those that the other host
    /// builds, if any came.
    built: CellShape,
    far: Option<CellShape>,
    /// True if there ever was a session over a circuit. The host then stays hidden, even if it is
    /// removed and added again. After a restart it stays hidden if it was written to disk
    /// ([`Edge::poll_met`]).
    is_met: bool,
    /// Circuit that this host built.
    own: Option<(CircuitId, CellShape)>,
    /// Circuit on which the host's newest unit came.
    answer: Option<(CircuitId, CellShape)>,
}

impl HiddenHost {
    fn new(shape: CellShape) -> HiddenHost {
        // A host that becomes hidden because the other one built a circuit has built none itself
        // yet.
        HiddenHost {
            shape,
            built: CellShape::MOST,
            far: None,
            is_met: false,
            own: None,
            answer: None,
        }
    }

    /// Bytes of plaintext that fit both this host's units and the other host's.
    fn common_len(&self) -> usize {
        let plain_len = |shape| CellLayout::unit(shape).plain_len();
        plain_len(self.built).min(plain_len(self.far.unwrap_or(self.built)))
    }

    fn way(&self) -> Option<(CircuitId, CellShape)> {
        self.own.or(self.answer)
    }
}

/// All hidden hosts.
#[derive(Default)]
pub(crate) struct HiddenHosts {
    hosts: BTreeMap<HostId, HiddenHost>,
    /// Times at which requests for circuits are given up. Only hosts with a request are listed, so
    /// that a turn need not look at all hidden hosts.
    needs: BTreeMap<HostId, Time>,
    /// Delay that the mixes on a circuit add, whichever host built it. Circuits without mixes are
    /// absent.
    added: BTreeMap<CircuitId, MixDelay>,
    /// Hosts that have just got a circuit; their waiting packets and messages can leave.
    pub(crate) ready: Vec<HostId>,
}

impl HiddenHosts {
    /// True if there was a session with the host over a circuit.
    pub(crate) fn is_met(&self, host: HostId) -> bool {
        self.hosts.get(&host).is_some_and(|hidden| hidden.is_met)
    }

    /// All hidden hosts.
    pub(crate) fn ids(&self) -> impl Iterator<Item = HostId> {
        self.hosts.keys().copied()
    }

    pub(crate) fn forget(&mut self, host: HostId) {
        self.hosts.remove(&host);
        self.needs.remove(&host);
        self.ready.retain(|ready| *ready != host);
    }

    /// True if this host's own circuits hold so much plaintext per unit, even if the circuit in use
    /// does not. While only the other host's circuit is there, with more tag places, longer
    /// plaintexts are lost until this host has its own circuit again. False for a file that was
    /// offered before its host became hidden: its segments fit no circuit.
    pub(crate) fn may_fit(&self, host: HostId, len: usize) -> bool {
        let hidden = self.hosts.get(&host);
        hidden.is_some_and(|hidden| CellLayout::unit(hidden.built).plain_len() >= len)
    }

    pub(crate) fn poll_timeout(&self) -> Option<(Time, &'static str)> {
        let ready = (!self.ready.is_empty()).then_some((Time::ZERO, "circuit to use"));
        ready.or_else(|| self.needs.values().min().map(|at| (*at, "circuit asked for")))
    }
}

impl<C: Ciphers> Edge<C> {
    /// Sets the hosts with which policy requires circuits, and the shape of their cells. Another
    /// host stays hidden while this node runs if there was a session with it over a circuit.
    pub fn set_hidden(&mut self, hosts: &BTreeMap<HostId, CellShape>) {
        let shown = |(host, hidden): (&HostId, &HiddenHost)| {
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

    /// True if the host is reached only over circuits.
    pub fn is_hidden(&self, host: HostId) -> bool {
        self.own.book.is_hidden(host)
    }

    /// Bytes of end-to-end plaintext that a cell for the host holds, kind byte included.
    pub fn plain_len(&self, host: HostId) -> usize {
        let hidden = self.circuits.hosts.get(&host);
        hidden
            .map_or(SizeClass::Full.edge_len(), |hidden| CellLayout::unit(hidden.shape).plain_len())
    }

    /// Bytes of the longest IP packet that a cell for the host holds.
    pub fn packet_len(&self, host: HostId) -> usize {
        let number = if self.is_hidden(host) { ip::NUMBER_LEN } else { 0 };
        self.plain_len(host) - ip::PACKET_AT - number
    }

    /// Bytes of file per segment, for a file that is offered to the host now. Segments of this
    /// length fit the circuits of both hosts.
    pub fn segment_len(&self, host: HostId) -> SegmentLen {
        let hidden = self.circuits.hosts.get(&host);
        let plain_len = hidden.map_or(SizeClass::Full.edge_len(), HiddenHost::common_len);
        SegmentLen::in_plain(plain_len).unwrap_or(SegmentLen::MIN)
    }

    /// Sets the circuit, built by this host, on which it sends to a hidden host. None if that
    /// circuit has ended. Call [`Edge::drive`] afterwards.
    pub fn set_circuit(&mut self, host: HostId, circuit: Option<(CircuitId, CellShape)>) {
        let Some(hidden) = self.circuits.hosts.get_mut(&host) else { return };
        hidden.own = circuit;
        if let Some((_, shape)) = circuit {
            hidden.built = shape;
            self.circuits.needs.remove(&host);
        }
        self.take_way(host);
    }

    /// Sets how long packets on a circuit with mixes wait for earlier ones, whichever host built
    /// the circuit. `hold` is the delay of the circuit's mixes that one packet of 10,000 exceeds,
    /// plus an allowance for the links. The real wait may be shorter if packets turn out less late.
    /// Zero, the default, means that the circuit keeps its order. The value holds until the circuit
    /// ends.
    pub fn set_hold(&mut self, circuit: CircuitId, hold: Duration) {
        self.own.sequences.set_hold(circuit, hold);
    }

    /// Sets the delay that the mixes on a circuit add, whichever host built it. `mean` is the
    /// average, and one packet of 10,000 takes longer than `hold`. Files are paced for it. The
    /// value holds until the circuit ends.
    pub fn set_added(&mut self, circuit: CircuitId, mean: Duration, hold: Duration) {
        self.circuits.added.insert(circuit, MixDelay { mean, hold });
        let is_on = |way: Option<(CircuitId, CellShape)>| way.is_some_and(|way| way.0 == circuit);
        let uses = |hidden: &HiddenHost| is_on(hidden.own) || is_on(hidden.answer);
        let hosts = self.circuits.hosts.iter().filter(|(_, hidden)| uses(hidden));
        let hosts: Vec<HostId> = hosts.map(|(host, _)| *host).collect();
        hosts.into_iter().for_each(|host| self.take_added(host));
    }

    /// Delay of the mixes between this host and another. Packets leave on one circuit and their
    /// answers may come on another, so the larger value of both counts.
    fn added(&self, host: HostId) -> MixDelay {
        let HiddenHosts { hosts, added, .. } = &self.circuits;
        let ways = hosts.get(&host).map_or([None; 2], |hidden| [hidden.own, hidden.answer]);
        let ways = ways.into_iter().flatten();
        let all = ways.filter_map(|(circuit, _)| added.get(&circuit));
        all.fold(MixDelay::default(), |most, added| MixDelay {
            mean: most.mean.max(added.mean),
            hold: most.hold.max(added.hold),
        })
    }

    /// Tells the transfers the delay of the mixes between this host and another.
    pub(crate) fn take_added(&mut self, host: HostId) {
        let added = self.added(host);
        self.transfers.set_added(host.into(), added);
    }

    /// Extra time that mixes may add to a round trip with the host.
    pub fn answers_later(&self, host: HostId) -> Duration {
        self.added(host).hold * 2
    }

    /// Time for which arriving packets may gather before the node handles them, since many wait for
    /// earlier ones anyway. Packets that are handled together are opened and delivered together.
    /// None while few wait.
    pub fn gathers(&self) -> Option<Duration> {
        self.own.sequences.gathers()
    }

    /// Counters of the reordering of packets from circuits.
    pub fn order_stats(&self) -> OrderStats {
        self.own.sequences.stats()
    }

    /// Switches the reordering off: packets are delivered as they come, in any order.
    pub fn keep_any_order(&mut self) {
        self.own.sequences.is_off = true;
    }

    /// Handles the end of a circuit, whichever host built it. Call [`Edge::drive`] afterwards.
    pub fn circuit_ended(&mut self, now: Time, circuit: CircuitId) {
        self.own.sequences.circuit_ended(circuit);
        self.circuits.added.remove(&circuit);
        let is_it = |way: &mut (CircuitId, CellShape)| way.0 == circuit;
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

    /// From now on the host is reached only over circuits. Its session outside circuits and its
    /// direct link end.
    fn hide(&mut self, host: HostId, shape: CellShape) {
        let Some(peer) = self.own.book.peer(host) else { return };
        if let Some(hidden) = self.circuits.hosts.get_mut(&host) {
            if hidden.way().is_none() {
                hidden.shape = shape;
            }
            return;
        }
        self.circuits.hosts.insert(host, HiddenHost::new(shape));
        self.book().set_hidden(host, true);
        self.sessions.set_hidden(peer, true);
        self.sessions.set_endpoint(peer, None);
        self.aim(host);
        self.end_direct(host);
        // Packets and messages that wait for a session must now ask for a circuit.
        self.circuits.ready.push(host);
    }

    /// Hides a host that was met over a circuit before it was removed or before this node started.
    pub(crate) fn hide_again(&mut self, host: HostId) {
        self.hide(host, CellShape::MOST);
        if let Some(hidden) = self.circuits.hosts.get_mut(&host) {
            hidden.is_met = true;
        }
    }

    pub(crate) fn show(&mut self, host: HostId) {
        self.circuits.forget(host);
        self.take_added(host);
        self.own.forget(host);
        self.book().set_hidden(host, false);
        if let Some(peer) = self.own.book.peer(host) {
            self.sessions.set_hidden(peer, false);
            self.aim(host);
        }
    }

    /// Handles a new session with the host. A session over a circuit keeps the host hidden for
    /// good.
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

    /// Notes that the host's newest unit came on this circuit.
    pub(crate) fn note_way(&mut self, host: HostId, way: (CircuitId, CellShape)) {
        self.hide(host, way.1);
        self.note_session(host);
        let Some(hidden) = self.circuits.hosts.get_mut(&host) else { return };
        hidden.far = Some(way.1);
        if hidden.answer.replace(way) != Some(way) {
            self.take_way(host);
        }
    }

    /// Starts to use the host's current circuit.
    fn take_way(&mut self, host: HostId) {
        self.take_added(host);
        let Some(peer) = self.own.book.peer(host) else { return };
        let Some(hidden) = self.circuits.hosts.get_mut(&host) else { return };
        let own = hidden.own.map(|(circuit, _)| HostPath::Circuit(circuit));
        match hidden.way() {
            Some((circuit, shape)) => {
                hidden.shape = shape;
                self.own.ways.put(host, HiddenRoute { circuit, form: CellLayout::unit(shape) });
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

    /// True if a handshake with the host can't begin because there is no circuit.
    pub(crate) fn lacks_circuit(&self, host: HostId) -> bool {
        self.circuits.hosts.get(&host).is_some_and(|hidden| hidden.own.is_none())
    }

    /// Asks for a circuit to the host, unless a request is already open.
    pub(crate) fn need_circuit(&mut self, now: Time, host: HostId) {
        if self.lacks_circuit(host) && !self.circuits.needs.contains_key(&host) {
            self.circuits.needs.insert(host, now + CIRCUIT_WAIT);
            self.event(EdgeEvent::NeedCircuit(host));
        }
    }

    /// True if an echo, message or packet waits for a session or a circuit with the host.
    fn has_waiting(&self, host: HostId) -> bool {
        let echoes = self.echoes.iter().any(|(to, _)| *to == host);
        echoes || self.unsent.iter().any(|(to, _)| *to == host) || self.waiting.is_for(host)
    }

    /// Sends packets and messages that waited for circuits.
    pub(crate) fn use_circuits(&mut self, now: Time, buf: &mut [u8], out: &mut impl EdgeOutput) {
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

    /// Gives up requests for circuits that took too long.
    pub(crate) fn give_up_circuits(&mut self, now: Time) {
        let HiddenHosts { hosts, needs, .. } = &mut self.circuits;
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
    use crate::edge::EdgeConfig;

    #[test]
    fn direct_links_with_hidden_hosts_or_while_forbidden_are_neither_asked_for_nor_answered() {
        let direct = DirectConfig {
            proactive: true,
            endpoint: None,
            weakest: Level::None,
            groups: Vec::new(),
            idle: Duration::from_secs(60),
            links_max: 8,
        };
        let config = EdgeConfig {
            address: Address::new(1, 1),
            session: shoal_session::SessionConfig::new(shoal_session::SessionRole::Edge),
            transfer: shoal_transfer::TransferConfig::default(),
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
        let shape = CellShape::new(3).expect("a sound shape");
        edge.set_hidden(&BTreeMap::from([(host, shape)]));
        assert_eq!(edge.direct_terms(host), None, "the link ends");
        assert_eq!(edge.handle_direct(now, host, &said), Err(DropReason::CircuitRequired));
        edge.want_all_direct(now);
        edge.note_wanted(now, host);
        let asked = |edge: &Edge| edge.direct_stats().map(|stats| (stats.asked, stats.agreed));
        assert_eq!(asked(&edge), Some((0, 1)));
        edge.set_hidden(&BTreeMap::new());
        assert_eq!(edge.handle_direct(now, host, &said), Ok(()));
        edge.allow_direct(now, false);
        assert_eq!(edge.direct_terms(host), None, "the link ends");
        assert_eq!(edge.handle_direct(now, host, &said), Err(DropReason::NotAllowed));
        edge.want_all_direct(now);
        edge.note_wanted(now, host);
        assert_eq!(asked(&edge), Some((0, 2)));
    }
}
