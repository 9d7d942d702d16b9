//! Probes of shifting addresses on their links (`shift/probe.rs` decides).

use std::net::SocketAddr;

use shoal_crypto::Ciphers;
use shoal_session::Endpoints;
use shoal_wire::{
    CONTROL_SHIFT_PLACE, CONTROL_SHIFT_PROBE, DropReason, LinkId, ShiftAnnouncement, ShiftProbe,
    ShiftProbeStage, Time,
};

use crate::shift::{AddressProbe, AddressProbeView};
use crate::shifts::ShiftLink;
use crate::{FrameSink, Relay};

impl ShiftLink {
    /// True if the neighbour asked us to probe this address, under its current or its announced
    /// prefix.
    pub(crate) fn is_probed(&self, now: Time, remote: SocketAddr) -> bool {
        let Some((prefix, identifier)) = ShiftAnnouncement::split(remote) else { return false };
        let is_there =
            |peer: ShiftAnnouncement| peer.prefix == prefix && peer.port == remote.port();
        let places = [self.shift.peer(), self.shift.said()];
        places.into_iter().flatten().any(is_there) && self.asked.knows(now, identifier)
    }
}

impl<C: Ciphers> Relay<C> {
    /// Begins to probe whether an address of this node's prefix is usable with a neighbour. A probe
    /// in progress continues. Returns false without a session, or unless both ends' addresses
    /// shift.
    pub fn probe_shift(&mut self, now: Time, link: LinkId) -> bool {
        let established = self.neighbours.get(link).is_some_and(|n| n.established);
        let Some(known) = self.shifts.links.get_mut(&link).filter(|_| established) else {
            return false;
        };
        let under_way = known.probe.as_ref().is_some_and(|probe| !probe.view().over);
        let spare = known.shift.spare(self.shifts.probed).filter(|_| known.shift.peer().is_some());
        let Some(identifier) = spare else { return false };
        if !under_way {
            self.shifts.probed = self.shifts.probed.wrapping_add(1);
            known.probe = Some(AddressProbe::new(now, identifier, known.shift.has_moved(now)));
            self.shifts.list(link);
            self.follow_shift(now, link);
            self.refresh();
        }
        true
    }

    /// Result of the link's last probe.
    pub fn shift_probe(&self, link: LinkId) -> Option<AddressProbeView> {
        self.shifts.links.get(&link)?.probe.as_ref().map(AddressProbe::view)
    }

    /// Handles a neighbour's probe message.
    ///
    /// Errors: `bad_shift`, or `shift_budget` if it asks too often.
    pub(crate) fn hear_shift_probe(
        &mut self,
        now: Time,
        link: LinkId,
        said: &ShiftProbe,
    ) -> Result<(), DropReason> {
        let known = self.shifts.links.get_mut(&link).ok_or(DropReason::BadShift)?;
        let outcome = match said.stage {
            ShiftProbeStage::Ask | ShiftProbeStage::Leave if known.shift.peer().is_none() => {
                Err(DropReason::BadShift)
            }
            ShiftProbeStage::Ask | ShiftProbeStage::Leave => known.asked.handle(now, said),
            ShiftProbeStage::Heard | ShiftProbeStage::Come | ShiftProbeStage::Left => {
                known.probe.as_mut().ok_or(DropReason::BadShift)?.handle(now, said)
            }
        };
        if outcome.is_ok() {
            self.follow_shift(now, link);
        }
        outcome
    }

    /// Sends probe messages of a link that are due, for this node's probe and the neighbour's.
    pub(crate) fn send_probes(&mut self, now: Time, link: LinkId, sink: &mut impl FrameSink) {
        let fixed = self.fixed_endpoint(link);
        let Some(known) = self.shifts.links.get_mut(&link) else { return };
        let mut due = known.asked.take();
        due.extend(known.probe.iter_mut().flat_map(|probe| probe.poll(now)));
        let (own, peer) = (known.shift.own(), known.shift.peer());
        let names_place = known.probe.as_ref().is_some_and(AddressProbe::names_place);
        let place = ShiftAnnouncement::to_bytes(Some(own));
        for said in due {
            let message = (CONTROL_SHIFT_PROBE, &said.to_bytes()[..]);
            let to = |place: ShiftAnnouncement| place.endpoint(said.identifier);
            let beside = match (said.stage, fixed, peer) {
                (ShiftProbeStage::Come, Some(fixed), Some(peer)) => {
                    // The probe is about the announced prefix. The second address is where the
                    // neighbour was found, as behind a translator of prefixes.
                    let known = self.shifts.links.get_mut(&link);
                    let places = [Some(peer), known.and_then(|known| known.shift.poll_said(now))];
                    places.map(|place| Some(Endpoints { remote: to(place?), ..fixed }))
                }
                (ShiftProbeStage::Leave, Some(fixed), _) => {
                    [Some(Endpoints { local: Some(to(own)), ..fixed }), None]
                }
                (ShiftProbeStage::Come | ShiftProbeStage::Leave, ..) => continue,
                (stage, ..) => {
                    let messages = [(CONTROL_SHIFT_PLACE, &place[..]), message];
                    let first = usize::from(!names_place || stage != ShiftProbeStage::Ask);
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
    use crate::shift::ShiftState;

    /// A neighbour whose frames come from another prefix than announced, such as one that has just
    /// moved.
    #[test]
    fn a_probe_from_either_place_of_the_neighbours_is_known() {
        let place =
            |n: u8| ShiftAnnouncement { prefix: [0x20 + n; 8], port: 7, interval_ms: 1_000 };
        let mut shift = ShiftState::new(place(1), true, Arc::new(Secret::new([1; 32])));
        shift.told(Time::ZERO, Some(place(2)));
        shift.roam(place(3).prefix);
        let mut known = ShiftLink::new(shift, None);
        let ask = ShiftProbe { stage: ShiftProbeStage::Ask, identifier: 7 };
        assert_eq!(known.asked.handle(Time::ZERO, &ask), Ok(()));
        let is = |n: u8, identifier| known.is_probed(Time::ZERO, place(n).endpoint(identifier));
        assert_eq!([is(2, 7), is(3, 7), is(4, 7), is(2, 8)], [true, true, false, false]);
    }
}
