//! Control's part of the outbound path: its own cells, which leave through the first worker's data
//! path, and commands for direct links.

use std::collections::{BTreeMap, BTreeSet};
use std::net::SocketAddr;

use shoal_crypto::Ciphers;
use shoal_wire::{DirectMessage, DropReason, SizeClass, Time};

use crate::book::HostId;
use crate::building::CellBatch;
use crate::cells::{CellLayout, plain};
use crate::direct::{DirectMachine, DirectStats};
use crate::edge::{Edge, EdgeOutput};
use crate::levels::{GroupHash, HostSecurity, LevelReason};
use crate::meet::{NoDirectReason, Reachability};
use crate::worker::EdgeTurn;

impl<C: Ciphers> Edge<C> {
    /// True if a cell can be sent to the host at once.
    pub(crate) fn reaches(&mut self, now: Time, host: HostId, out: &mut impl EdgeOutput) -> bool {
        self.own.reaches(&EdgeTurn { now, shard: self.sessions.shard(), out }, host)
    }

    /// Sends the frames in `buf`, whose plaintexts are in place.
    pub(crate) fn send_run(
        &mut self,
        now: Time,
        run: CellBatch,
        buf: &mut [u8],
        out: &mut impl EdgeOutput,
    ) {
        let mut turn = EdgeTurn { now, shard: self.sessions.shard(), out };
        self.own.send_run(&mut turn, run, &[], buf);
        self.take_notes(now);
    }

    /// Sends the plaintext in the first frame of `buf`, with control priority. A message without a
    /// session is dropped; its own timer repeats it.
    pub(crate) fn send_plain(
        &mut self,
        now: Time,
        host: HostId,
        buf: &mut [u8],
        form: CellLayout,
        out: &mut impl EdgeOutput,
    ) {
        self.send_run(now, CellBatch::control(host, form), &mut buf[..form.frame_len()], out);
    }

    /// Seals a keepalive for the host, even if a direct link exists, since it confirms new keys.
    pub(crate) fn send_keepalive(
        &mut self,
        now: Time,
        host: HostId,
        buf: &mut [u8],
        out: &mut impl EdgeOutput,
    ) {
        let Ok(form) = self.own.form(host, 1) else { return };
        plain(buf, 0, form).fill(0);
        let mut turn = EdgeTurn { now, shard: self.sessions.shard(), out };
        let frame = &mut buf[..form.frame_len()];
        self.own.send_sealed(&mut turn, CellBatch::control(host, form), frame);
        self.take_notes(now);
    }

    /// Notes that traffic for the host went through routers.
    pub(crate) fn note_wanted(&mut self, now: Time, host: HostId) {
        let may = self.may_be_partner(host);
        if let Some(direct) = self.direct.as_mut().filter(|_| may) {
            direct.wanted(now, host);
        }
    }

    /// True if there may be a direct link with the host. A hidden host gets none, since it would
    /// show an observer who talks with whom.
    fn may_be_partner(&self, host: HostId) -> bool {
        let listed = self.partners.as_ref().is_none_or(|partners| partners.contains(&host));
        listed && !self.own.book.is_hidden(host)
    }

    /// Limits direct links to these hosts: others are neither asked nor answered. The default is
    /// all.
    pub fn set_partners(&mut self, partners: BTreeSet<HostId>) {
        let gone = |direct: &DirectMachine, host: &HostId| {
            direct.terms(*host).is_some() && !partners.contains(host)
        };
        if let Some(direct) = &mut self.direct {
            let gone: Vec<HostId> = self.own.book.hosts().filter(|h| gone(direct, h)).collect();
            gone.into_iter().for_each(|host| direct.forget(host));
        }
        self.partners = Some(partners);
    }

    /// Allows or forbids direct links with all hosts; see [`DirectMachine::allow`]. Call
    /// [`Edge::drive`] afterwards.
    pub fn allow_direct(&mut self, now: Time, is_allowed: bool) {
        if let Some(direct) = &mut self.direct {
            direct.allow(now, is_allowed);
        }
    }

    /// Sets a host's endpoint from the list of hosts.
    pub fn set_listed(&mut self, host: HostId, endpoint: Option<SocketAddr>) {
        match endpoint {
            Some(endpoint) => self.listed.insert(host, endpoint),
            None => self.listed.remove(&host),
        };
    }

    /// Sets the security groups of this host (`own`) and the security settings of other hosts; see
    /// [`DirectMachine::set_security`].
    pub fn set_security(
        &mut self,
        now: Time,
        own: Vec<GroupHash>,
        hosts: BTreeMap<HostId, HostSecurity>,
    ) {
        if let Some(direct) = &mut self.direct {
            direct.set_security(now, own, hosts);
        }
    }

    /// Asks for direct links with all hosts that may have one.
    pub fn want_all_direct(&mut self, now: Time) {
        for host in self.own.book.hosts().collect::<Vec<_>>() {
            self.note_wanted(now, host);
        }
    }

    /// Ends the direct link with the host, if there is one. Its endpoint has changed.
    pub fn end_direct(&mut self, host: HostId) {
        if let Some(direct) = &mut self.direct {
            direct.forget(host);
        }
    }

    /// Notes that the direct link with the host came up or went down.
    pub fn direct_changed(&mut self, now: Time, host: HostId, up: bool) {
        if let Some(direct) = &mut self.direct {
            direct.link_changed(now, host, up);
        }
        if !up {
            self.note_direct_end(now, host);
        }
    }

    /// Level of the direct link with the host, and its reason. None without a link.
    pub fn direct_terms(&self, host: HostId) -> Option<(shoal_wire::Level, LevelReason)> {
        self.direct.as_ref()?.terms(host)
    }

    /// Endpoint at which other hosts can call this one for direct links, if there is one.
    pub fn direct_endpoint(&self) -> Option<SocketAddr> {
        self.direct.as_ref()?.config.endpoint
    }

    /// Reason why a wanted direct link with a host does not exist.
    pub fn direct_relayed(&self, host: HostId) -> Option<NoDirectReason> {
        self.direct.as_ref()?.relayed(host)
    }

    /// Sets the addresses at which this host may be reached, for direct links.
    pub fn set_reach(&mut self, reach: Reachability) {
        if let Some(direct) = &mut self.direct {
            direct.set_reach(reach);
        }
    }

    /// Counters of direct links. None if direct links are not configured.
    pub fn direct_stats(&self) -> Option<DirectStats> {
        self.direct.as_ref().map(DirectMachine::stats)
    }

    pub(crate) fn handle_direct(
        &mut self,
        now: Time,
        host: HostId,
        said: &DirectMessage,
    ) -> Result<(), DropReason> {
        let listed = self.listed_endpoint(host);
        if self.own.book.is_hidden(host) {
            return Err(DropReason::CircuitRequired);
        }
        let said = &*self.without_refused(said);
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
        out: &mut impl EdgeOutput,
    ) -> bool {
        let mut any = false;
        while let Some((host, said)) = self.direct.as_mut().and_then(DirectMachine::poll_message) {
            any = true;
            let bytes = said.to_bytes();
            plain(buf, 0, CellLayout::cell(SizeClass::Full))[..bytes.len()].copy_from_slice(&bytes);
            self.send_or_keep(now, host, buf, bytes.len(), out);
        }
        any
    }
}
