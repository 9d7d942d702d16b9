//! Probes of addresses that hop, on their links (`hop/probe.rs` decides).

use std::net::SocketAddr;

use shoal_crypto::Ciphers;
use shoal_session::Endpoints;
use shoal_wire::{
    CONTROL_HOP_PLACE, CONTROL_HOP_PROBE, DropReason, HopPlace, HopProbe, LinkId, ProbeStage, Time,
};

use crate::hop::{Probe, ProbeView};
use crate::hops::Hopping;
use crate::{Relay, Sink};

impl Hopping {
    /// Whether the neighbour asked whether this address of its prefix can be used: of the one in
    /// use, or of that where it says to be.
    pub(crate) fn is_probed(&self, now: Time, remote: SocketAddr) -> bool {
        let Some((prefix, identifier)) = HopPlace::split(remote) else { return false };
        let is_there = |peer: HopPlace| peer.prefix == prefix && peer.port == remote.port();
        let places = [self.hop.peer(), self.hop.said()];
        places.into_iter().flatten().any(is_there) && self.asked.knows(now, identifier)
    }
}

impl<C: Ciphers> Relay<C> {
    /// Begins to find out whether an address of this node's prefix can be used with a neighbour;
    /// one that is under way goes on. False where there is no session, or both ends' don't hop.
    pub fn probe_hop(&mut self, now: Time, link: LinkId) -> bool {
        let established = self.neighbours.get(link).is_some_and(|n| n.established);
        let Some(known) = self.hops.links.get_mut(&link).filter(|_| established) else {
            return false;
        };
        let under_way = known.probe.as_ref().is_some_and(|probe| !probe.view().over);
        let spare = known.hop.spare(self.hops.probed).filter(|_| known.hop.peer().is_some());
        let Some(identifier) = spare else { return false };
        if !under_way {
            self.hops.probed = self.hops.probed.wrapping_add(1);
            known.probe = Some(Probe::new(now, identifier, known.hop.has_moved(now)));
            self.hops.list(link);
            self.follow_hop(now, link);
            self.refresh();
        }
        true
    }

    /// What the last probe of a link has found.
    pub fn hop_probe(&self, link: LinkId) -> Option<ProbeView> {
        self.hops.links.get(&link)?.probe.as_ref().map(Probe::view)
    }

    /// The neighbour asks, or answers.
    ///
    /// Errors: `bad_hop`, or `hop_budget` where it asks too often.
    pub(crate) fn hear_hop_probe(
        &mut self,
        now: Time,
        link: LinkId,
        said: &HopProbe,
    ) -> Result<(), DropReason> {
        let known = self.hops.links.get_mut(&link).ok_or(DropReason::BadHop)?;
        let outcome = match said.stage {
            ProbeStage::Ask | ProbeStage::Leave if known.hop.peer().is_none() => {
                Err(DropReason::BadHop)
            }
            ProbeStage::Ask | ProbeStage::Leave => known.asked.handle(now, said),
            ProbeStage::Heard | ProbeStage::Come | ProbeStage::Left => {
                known.probe.as_mut().ok_or(DropReason::BadHop)?.handle(now, said)
            }
        };
        if outcome.is_ok() {
            self.follow_hop(now, link);
        }
        outcome
    }

    /// Sends what the probes of a link, this node's and the neighbour's, have to send.
    pub(crate) fn send_probes(&mut self, now: Time, link: LinkId, sink: &mut impl Sink) {
        let fixed = self.fixed_endpoint(link);
        let Some(known) = self.hops.links.get_mut(&link) else { return };
        let mut due = known.asked.take();
        due.extend(known.probe.iter_mut().flat_map(|probe| probe.poll(now)));
        let (own, peer) = (known.hop.own(), known.hop.peer());
        let names_place = known.probe.as_ref().is_some_and(Probe::names_place);
        let place = HopPlace::to_bytes(Some(own));
        for said in due {
            let message = (CONTROL_HOP_PROBE, &said.to_bytes()[..]);
            let to = |place: HopPlace| place.endpoint(said.identifier);
            let beside = match (said.stage, fixed, peer) {
                (ProbeStage::Come, Some(fixed), Some(peer)) => {
                    // Where it says to be is what it asks of; the other is where it was found, as
                    // behind a translator of prefixes.
                    let known = self.hops.links.get_mut(&link);
                    let places = [Some(peer), known.and_then(|known| known.hop.poll_said(now))];
                    places.map(|place| Some(Endpoints { remote: to(place?), ..fixed }))
                }
                (ProbeStage::Leave, Some(fixed), _) => {
                    [Some(Endpoints { local: Some(to(own)), ..fixed }), None]
                }
                (ProbeStage::Come | ProbeStage::Leave, ..) => continue,
                (stage, ..) => {
                    let messages = [(CONTROL_HOP_PLACE, &place[..]), message];
                    let first = usize::from(!names_place || stage != ProbeStage::Ask);
                    self.send_control(now, link, &messages[first..], sink);
                    continue;
                }
            };
            for ends in beside.into_iter().flatten() {
                self.send_beside(now, link, ends, message, sink);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use shoal_crypto::Secret;

    use super::*;
    use crate::hop::Hop;

    /// A neighbour whose frames come from elsewhere than it says, as one that has just moved.
    #[test]
    fn a_probe_from_either_place_of_the_neighbours_is_known() {
        let place = |n: u8| HopPlace { prefix: [0x20 + n; 8], port: 7, interval_ms: 1_000 };
        let mut hop = Hop::new(place(1), true, Arc::new(Secret::new([1; 32])));
        hop.told(Time::ZERO, Some(place(2)));
        hop.roam(place(3).prefix);
        let mut known = Hopping::new(hop, None);
        let ask = HopProbe { stage: ProbeStage::Ask, identifier: 7 };
        assert_eq!(known.asked.handle(Time::ZERO, &ask), Ok(()));
        let is = |n: u8, identifier| known.is_probed(Time::ZERO, place(n).endpoint(identifier));
        assert_eq!([is(2, 7), is(3, 7), is(4, 7), is(2, 8)], [true, true, false, false]);
    }
}
