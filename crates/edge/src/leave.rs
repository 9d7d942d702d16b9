//! Control's own cells, which leave through the first worker's data path, and commands for direct
//! links.

use std::collections::{BTreeMap, BTreeSet};
use std::net::SocketAddr;

use shoal_crypto::Ciphers;
use shoal_wire::{DirectMessage, DropReason, SizeClass, Time};

use crate::book::HostId;
use crate::building::Run;
use crate::cells::{Form, plain};
use crate::direct::{Direct, DirectStats};
use crate::edge::{Edge, Out};
use crate::levels::{GroupHash, Security, Why};
use crate::meet::{Reach, Relayed};
use crate::worker::Turn;

impl<C: Ciphers> Edge<C> {
    /// Whether a cell can be sent to the host at once.
    pub(crate) fn reaches(&mut self, now: Time, host: HostId, out: &mut impl Out) -> bool {
        self.own.reaches(&Turn { now, shard: self.sessions.shard(), out }, host)
    }

    /// Sends the frames that fill `buf`; their plaintexts are in place.
    pub(crate) fn send_run(&mut self, now: Time, run: Run, buf: &mut [u8], out: &mut impl Out) {
        let mut turn = Turn { now, shard: self.sessions.shard(), out };
        self.own.send_run(&mut turn, run, &[], buf);
        self.take_notes(now);
    }

    /// Sends the plaintext in the first frame of `buf`, with control priority. A message without a
    /// session is dropped; its own timer repeats it when there is one.
    pub(crate) fn send_plain(
        &mut self,
        now: Time,
        host: HostId,
        buf: &mut [u8],
        form: Form,
        out: &mut impl Out,
    ) {
        self.send_run(now, Run::control(host, form), &mut buf[..form.frame_len()], out);
    }

    /// Seals a keepalive for the host, even if a direct link exists: it confirms new keys.
    pub(crate) fn send_keepalive(
        &mut self,
        now: Time,
        host: HostId,
        buf: &mut [u8],
        out: &mut impl Out,
    ) {
        let Ok(form) = self.own.form(host, 1) else { return };
        plain(buf, 0, form).fill(0);
        let mut turn = Turn { now, shard: self.sessions.shard(), out };
        let frame = &mut buf[..form.frame_len()];
        self.own.send_sealed(&mut turn, Run::control(host, form), frame);
        self.take_notes(now);
    }

    /// Traffic for the host went through routers.
    pub(crate) fn note_wanted(&mut self, now: Time, host: HostId) {
        let may = self.may_be_partner(host);
        if let Some(direct) = self.direct.as_mut().filter(|_| may) {
            direct.wanted(now, host);
        }
    }

    /// Whether there may be a direct link with the host. A hidden host has none: it would show who
    /// speaks with whom.
    fn may_be_partner(&self, host: HostId) -> bool {
        let listed = self.partners.as_ref().is_none_or(|partners| partners.contains(&host));
        listed && !self.own.book.is_hidden(host)
    }

    /// Limits direct links to these hosts: no others are asked or answered. The default is all.
    pub fn set_partners(&mut self, partners: BTreeSet<HostId>) {
        let gone = |direct: &Direct, host: &HostId| {
            direct.terms(*host).is_some() && !partners.contains(host)
        };
        if let Some(direct) = &mut self.direct {
            let gone: Vec<HostId> = self.own.book.hosts().filter(|h| gone(direct, h)).collect();
            gone.into_iter().for_each(|host| direct.forget(host));
        }
        self.partners = Some(partners);
    }

    /// Sets the endpoint of a host in the list.
    pub fn set_listed(&mut self, host: HostId, endpoint: Option<SocketAddr>) {
        match endpoint {
            Some(endpoint) => self.listed.insert(host, endpoint),
            None => self.listed.remove(&host),
        };
    }

    /// Says what the list and the file say of security groups, of this host (`own`) and of others,
    /// as [`Direct::set_security`] takes it.
    pub fn set_security(
        &mut self,
        now: Time,
        own: Vec<GroupHash>,
        hosts: BTreeMap<HostId, Security>,
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

    /// Ends the direct link with the host, if there is one, since its endpoint has changed.
    pub fn end_direct(&mut self, host: HostId) {
        if let Some(direct) = &mut self.direct {
            direct.forget(host);
        }
    }

    /// The direct link with the host came up or went down.
    pub fn direct_changed(&mut self, now: Time, host: HostId, up: bool) {
        if let Some(direct) = &mut self.direct {
            direct.link_changed(now, host, up);
        }
    }

    /// The agreed level of the direct link with the host, and why; None without a link.
    pub fn direct_terms(&self, host: HostId) -> Option<(shoal_wire::Level, Why)> {
        self.direct.as_ref()?.terms(host)
    }

    /// Where other hosts can call this one for direct links, if anywhere.
    pub fn direct_endpoint(&self) -> Option<SocketAddr> {
        self.direct.as_ref()?.config.endpoint
    }

    /// Why there is no direct link with a host, if one was wanted.
    pub fn direct_relayed(&self, host: HostId) -> Option<Relayed> {
        self.direct.as_ref()?.relayed(host)
    }

    /// Says where this host can be reached, for direct links.
    pub fn set_reach(&mut self, reach: Reach) {
        if let Some(direct) = &mut self.direct {
            direct.set_reach(reach);
        }
    }

    /// Counters of direct links; None where they are not configured.
    pub fn direct_stats(&self) -> Option<DirectStats> {
        self.direct.as_ref().map(Direct::stats)
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
        out: &mut impl Out,
    ) -> bool {
        let mut any = false;
        while let Some((host, said)) = self.direct.as_mut().and_then(Direct::poll_message) {
            any = true;
            let bytes = said.to_bytes();
            plain(buf, 0, Form::cell(SizeClass::Full))[..bytes.len()].copy_from_slice(&bytes);
            self.send_or_keep(now, host, buf, bytes.len(), out);
        }
        any
    }
}
