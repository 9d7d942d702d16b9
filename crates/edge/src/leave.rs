//! Cells that leave: sealed for their host, or as they are over the link with that host.

use std::collections::BTreeSet;
use std::net::SocketAddr;

use shoal_crypto::Ciphers;
use shoal_session::PeerId;
use shoal_wire::{
    Address, DirectMessage, DropReason, SizeClass, TAG_LEN, Time, TrafficClass, edge,
};

use crate::cells::{CELL_AT, address_cell, plain};
use crate::direct::{Direct, DirectStats, Why};
use crate::edge::{Edge, HostId, LANE, Out, UNSENT_MAX};

/// Where cells go.
pub(crate) struct Towards<'a> {
    pub(crate) host: HostId,
    pub(crate) to: Address,
    pub(crate) lane: u8,
    /// The flow of each, as far as there are flows.
    pub(crate) flows: &'a [u8],
}

impl Towards<'_> {
    /// All that is not a program's packet.
    pub(crate) fn new(host: HostId, to: Address) -> Self {
        Towards { host, to, lane: LANE, flows: &[] }
    }
}

impl<C: Ciphers> Edge<C> {
    /// Whether something can be sent to the host at once.
    pub(crate) fn is_reached(&self, now: Time, host: HostId, out: &impl Out) -> bool {
        let peer = PeerId(host.0);
        let direct = || self.sessions.endpoint(peer).is_some_and(|to| out.may_go_direct(to));
        self.sessions.is_live(now, peer) || direct()
    }

    /// Sends the frames at `self.offsets` of `buf`, their cells at `self.payloads`: routed headers
    /// and plaintexts stand in place.
    ///
    /// Errors: there is no session; nothing was sent.
    pub(crate) fn send_run(
        &mut self,
        now: Time,
        Towards { host, to, lane, flows }: Towards<'_>,
        buf: &mut [u8],
        class: SizeClass,
        out: &mut impl Out,
    ) -> Result<(), DropReason> {
        let (peer, len, cell_len) = (PeerId(host.0), class.frame_len(), class.cell_len());
        if out.may_go_direct(to) {
            unseal(buf, &self.payloads, cell_len, flows);
            out.direct(now, buf, &self.offsets, len);
            if let Some(direct) = &mut self.direct {
                direct.used(now, host);
            }
            return Ok(());
        }
        self.sessions.seal_batch(now, peer, lane, buf, &self.payloads, cell_len)?;
        out.cells(now, buf, &self.offsets, len);
        self.note_wanted(now, host);
        Ok(())
    }

    /// There was traffic for the host, through routers.
    pub(crate) fn note_wanted(&mut self, now: Time, host: HostId) {
        if let Some(direct) = &mut self.direct
            && self.partners.as_ref().is_none_or(|partners| partners.contains(&host))
        {
            direct.wanted(now, host);
        }
    }

    /// Sends the plaintext that stands in the first frame of `buf`, as control.
    pub(crate) fn send_plain(
        &mut self,
        now: Time,
        host: HostId,
        buf: &mut [u8],
        class: SizeClass,
        out: &mut impl Out,
    ) {
        let peer = PeerId(host.0);
        let Some(to) = self.sessions.endpoint(peer) else {
            return self.count(DropReason::NoEndpoint);
        };
        address_cell(buf, 0, to, self.config.address, TrafficClass::Control);
        self.offsets.clear();
        self.payloads.clear();
        self.offsets.push(0);
        self.payloads.push(CELL_AT as u32);
        let frame = &mut buf[..class.frame_len()];
        if let Err(reason) = self.send_run(now, Towards::new(host, to), frame, class, out) {
            // Messages are repeated by their own timers; by then the session lives.
            self.sessions.connect(now, peer);
            self.count(reason);
        }
    }

    /// Seals a keepalive for the host, whatever way it takes: new keys are to be confirmed.
    pub(crate) fn send_keepalive(
        &mut self,
        now: Time,
        host: HostId,
        buf: &mut [u8],
        out: &mut impl Out,
    ) {
        let (peer, class) = (PeerId(host.0), SizeClass::Small);
        let Some(to) = self.sessions.endpoint(peer) else {
            return self.count(DropReason::NoEndpoint);
        };
        plain(buf, 0, class).fill(0);
        address_cell(buf, 0, to, self.config.address, TrafficClass::Control);
        let cell = [CELL_AT as u32];
        match self.sessions.seal_batch(now, peer, LANE, buf, &cell, class.cell_len()) {
            Ok(()) => out.cells(now, &mut buf[..class.frame_len()], &[0], class.frame_len()),
            Err(reason) => self.count(reason),
        }
    }

    /// Asks for direct links with these hosts only, and tells only them of this one's; without a
    /// call, with all.
    pub fn set_partners(&mut self, partners: BTreeSet<HostId>) {
        let gone = |direct: &Direct, host: &HostId| {
            direct.terms(*host).is_some() && !partners.contains(host)
        };
        if let Some(direct) = &mut self.direct {
            let gone: Vec<HostId> =
                self.hosts.values().copied().filter(|h| gone(direct, h)).collect();
            gone.into_iter().for_each(|host| direct.forget(host));
        }
        self.partners = Some(partners);
    }

    /// Where the list says that hosts can be called.
    pub fn set_listed(&mut self, host: HostId, endpoint: Option<SocketAddr>) {
        match endpoint {
            Some(endpoint) => self.listed.insert(host, endpoint),
            None => self.listed.remove(&host),
        };
    }

    /// Has direct links made with all hosts that may have one.
    pub fn want_all_direct(&mut self, now: Time) {
        let Some(direct) = &mut self.direct else { return };
        for &host in self.hosts.values() {
            if self.partners.as_ref().is_none_or(|partners| partners.contains(&host)) {
                direct.wanted(now, host);
            }
        }
    }

    /// Ends the direct link with the host, if there is one: it is somewhere else now.
    pub fn end_direct(&mut self, host: HostId) {
        if let Some(direct) = &mut self.direct {
            direct.forget(host);
        }
    }

    /// The link with the host carries, or does no more.
    pub fn direct_changed(&mut self, now: Time, host: HostId, up: bool) {
        if let Some(direct) = &mut self.direct {
            direct.link_changed(now, host, up);
        }
    }

    /// What was agreed with the host about a direct link, as long as there is one: the weakest
    /// level that is taken, and why.
    pub fn direct_terms(&self, host: HostId) -> Option<(shoal_wire::Level, Why)> {
        self.direct.as_ref()?.terms(host)
    }

    /// Counters of direct links; none where there are to be none.
    pub fn direct_stats(&self) -> Option<DirectStats> {
        self.direct.as_ref().map(Direct::stats)
    }

    pub(crate) fn handle_direct(
        &mut self,
        now: Time,
        host: HostId,
        said: &DirectMessage,
    ) -> Result<(), DropReason> {
        let listed = self.listed.get(&host).copied();
        let direct = self.direct.as_mut().ok_or(DropReason::NotAllowed)?;
        if !self.partners.as_ref().is_none_or(|partners| partners.contains(&host)) {
            return Err(DropReason::PolicyDenied);
        }
        direct.handle_message(now, host, said, listed)
    }

    pub(crate) fn send_direct_messages(
        &mut self,
        now: Time,
        buf: &mut [u8],
        out: &mut impl Out,
    ) -> bool {
        let mut any = false;
        while let Some((host, said)) = self.direct.as_mut().and_then(Direct::poll_message) {
            any = true;
            let bytes = said.to_bytes();
            if self.is_reached(now, host, out) {
                plain(buf, 0, SizeClass::Small)[..bytes.len()].copy_from_slice(&bytes);
                self.send_message(now, host, buf, bytes.len(), out);
                continue;
            }
            self.sessions.connect(now, PeerId(host.0));
            if self.unsent.len() < UNSENT_MAX {
                self.unsent.push_back((host, bytes));
            } else {
                self.count(DropReason::NoSession);
            }
        }
        any
    }
}

/// Zeroes where the seals of cells would stand: what stood there before says something. In their
/// place the relay is told the flow of each, any number, which it takes away.
pub(crate) fn unseal(buf: &mut [u8], payloads: &[u32], cell_len: usize, flows: &[u8]) {
    for (i, &at) in payloads.iter().enumerate() {
        let cell = &mut buf[at as usize..at as usize + cell_len];
        cell[..edge::KIND_AT].fill(0);
        cell[cell_len - TAG_LEN..].fill(0);
        cell[0] = flows.get(i).copied().unwrap_or(0);
    }
}
