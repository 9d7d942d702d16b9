//! What control sends through the first worker's data path, and who has direct links.

use std::collections::BTreeSet;
use std::net::SocketAddr;

use shoal_crypto::Ciphers;
use shoal_wire::{DirectMessage, DropReason, SizeClass, Time};

use crate::book::HostId;
use crate::building::Run;
use crate::cells::plain;
use crate::direct::{Direct, DirectStats, Why};
use crate::edge::{Edge, Out};
use crate::worker::Turn;

impl<C: Ciphers> Edge<C> {
    /// Whether something can be sent to the host at once.
    pub(crate) fn reaches(&mut self, now: Time, host: HostId, out: &mut impl Out) -> bool {
        self.own.reaches(&Turn { now, shard: self.sessions.shard(), out }, host)
    }

    /// Sends frames that fill `buf`, whose plaintexts stand in place.
    pub(crate) fn send_run(&mut self, now: Time, run: Run, buf: &mut [u8], out: &mut impl Out) {
        let mut turn = Turn { now, shard: self.sessions.shard(), out };
        self.own.send_run(&mut turn, run, &[], buf);
        self.take_notes(now);
    }

    /// Sends the plaintext that stands in the first frame of `buf`, as control. Messages that find
    /// no session are repeated by their own timers; by then it lives.
    pub(crate) fn send_plain(
        &mut self,
        now: Time,
        host: HostId,
        buf: &mut [u8],
        class: SizeClass,
        out: &mut impl Out,
    ) {
        self.send_run(now, Run::control(host, class), &mut buf[..class.frame_len()], out);
    }

    /// Seals a keepalive for the host, whatever way it takes: new keys are to be confirmed.
    pub(crate) fn send_keepalive(
        &mut self,
        now: Time,
        host: HostId,
        buf: &mut [u8],
        out: &mut impl Out,
    ) {
        let class = SizeClass::Small;
        plain(buf, 0, class).fill(0);
        let mut turn = Turn { now, shard: self.sessions.shard(), out };
        let frame = &mut buf[..class.frame_len()];
        self.own.send_sealed(&mut turn, Run::control(host, class), frame);
        self.take_notes(now);
    }

    /// There was traffic for the host, through routers.
    pub(crate) fn note_wanted(&mut self, now: Time, host: HostId) {
        if let Some(direct) = &mut self.direct
            && self.partners.as_ref().is_none_or(|partners| partners.contains(&host))
        {
            direct.wanted(now, host);
        }
    }

    /// Asks for direct links with these hosts only, and tells only them of this one's; without a
    /// call, with all.
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
        for host in self.own.book.hosts() {
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
            plain(buf, 0, SizeClass::Full)[..bytes.len()].copy_from_slice(&bytes);
            self.send_or_keep(now, host, buf, bytes.len(), out);
        }
        any
    }
}
