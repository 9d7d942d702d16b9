//! Cells for this host: opened where they lie, and handed to what they are for.

use shoal_crypto::Ciphers;
use shoal_session::{Opened, Opening};
use shoal_wire::{
    Address, DirectMessage, DropReason, EdgeKind, LinkKind, Mark, RoutedHeader, SizeClass, Time,
    TrafficClass, link,
};

use crate::cells::{CELL_AT, PLAIN_AT, plain};
use crate::echo::Echo;
use crate::edge::{Edge, Event, HostId};

impl<C: Ciphers> Edge<C> {
    /// Takes in cells for this host: frames of `frame_len` bytes at `offsets` of `buf`, opened at
    /// the link, routed header in place.
    pub fn handle_cells(&mut self, now: Time, buf: &mut [u8], offsets: &[u32], frame_len: usize) {
        self.packets.arrived.clear();
        self.elsewhere.clear();
        let Some(class) = SizeClass::of_frame(frame_len) else { return };
        let len = class.cell_len();
        let mut payloads = core::mem::take(&mut self.payloads);
        let mut opened = core::mem::take(&mut self.opened);
        payloads.clear();
        let sealed = offsets.iter().filter(|&&at| !is_direct(buf, at));
        payloads.extend(sealed.map(|&at| at + CELL_AT as u32));
        opened.clear();
        self.sessions.open_batch(now, buf, &payloads, len, &mut opened);
        let mut openings = opened.drain(..);
        for &at in offsets {
            if is_direct(buf, at) {
                if let Err(reason) = self.deliver_direct(now, buf, at as usize, class) {
                    self.count(reason);
                }
                continue;
            }
            let Some(opening) = openings.next() else { continue };
            let at = at as usize;
            let outcome = match opening {
                Opening::Worker(worker) => {
                    self.elsewhere.push((worker, at as u32));
                    Ok(())
                }
                Opening::Data(opened) => self.deliver(now, opened, buf, at, class),
                Opening::Handshake => {
                    let from = source(&buf[at..]);
                    from.and_then(|from| {
                        let cell = &mut buf[at + CELL_AT..at + CELL_AT + len];
                        self.sessions.handle_handshake(now, from, cell)
                    })
                }
                Opening::Drop(reason) => Err(reason),
            };
            if let Err(reason) = outcome {
                self.count(reason);
            }
        }
        drop(openings);
        self.payloads = payloads;
        self.opened = opened;
    }

    fn deliver(
        &mut self,
        now: Time,
        opened: Opened,
        buf: &mut [u8],
        at: usize,
        class: SizeClass,
    ) -> Result<(), DropReason> {
        let host = HostId(opened.peer.0);
        // The seal covers the source address, so only the peer itself can have written it; it may
        // still not speak in another host's name.
        if Some(source(&buf[at..])?) != self.address_of(host) {
            return Err(DropReason::BadSource);
        }
        self.take(now, host, buf, at, class)
    }

    /// Takes a cell that another worker opened: `frame` was sealed by `host`, if it still is who it
    /// was.
    ///
    /// Errors: what is to be counted.
    pub fn handle_opened(
        &mut self,
        now: Time,
        host: HostId,
        frame: &mut [u8],
    ) -> Result<(), DropReason> {
        self.packets.arrived.clear();
        let class = SizeClass::of_frame(frame.len()).ok_or(DropReason::BadSize)?;
        if Some(source(frame)?) != self.address_of(host) {
            return Err(DropReason::BadSource);
        }
        self.take(now, host, frame, 0, class)
    }

    /// The cells of the last [`Edge::handle_cells`] that other workers open: who, and where their
    /// frames start, untouched.
    pub fn elsewhere(&self) -> &[(u8, u32)] {
        &self.elsewhere
    }

    /// Counts cells that could not be handed to another worker.
    pub fn count_lost(&mut self, n: u64) {
        self.count_all(DropReason::OtherWorker, n);
    }

    /// Takes a cell that came over the link with its host: what the link's seal says of the two
    /// ends counts here too. Bulk may come over a lane without encryption, so that nothing else is
    /// taken as bulk.
    fn deliver_direct(
        &mut self,
        now: Time,
        buf: &mut [u8],
        at: usize,
        class: SizeClass,
    ) -> Result<(), DropReason> {
        let header = RoutedHeader::parse(&buf[at + link::ROUTED_AT..])?;
        let host = self.host_at(header.src()).ok_or(DropReason::BadSource)?;
        let kind = EdgeKind::from_byte(buf[at + PLAIN_AT]).map_err(|_| DropReason::Malformed)?;
        let is_bulk = matches!(kind, EdgeKind::Segment | EdgeKind::Ip);
        if is_bulk != (header.class() == TrafficClass::Bulk) {
            return Err(DropReason::NotAllowed);
        }
        if let Some(direct) = &mut self.direct
            && kind != EdgeKind::Direct
        {
            direct.used(now, host);
        }
        self.take(now, host, buf, at, class)
    }

    fn take(
        &mut self,
        now: Time,
        host: HostId,
        buf: &mut [u8],
        at: usize,
        class: SizeClass,
    ) -> Result<(), DropReason> {
        self.note_heard(now, host);
        let congested = buf[at + link::ROUTED_AT + RoutedHeader::MARK_AT] == Mark::Congested as u8;
        let body = &*plain(buf, at, class);
        match EdgeKind::from_byte(body[0]).map_err(|_| DropReason::Malformed)? {
            EdgeKind::Keepalive => Ok(()),
            EdgeKind::Segment => self.transfers.handle_segment(now, host.into(), body, congested),
            EdgeKind::Transfer => self.transfers.handle_message(now, host.into(), body, congested),
            EdgeKind::Echo => self.handle_echo(host, body),
            EdgeKind::Ip if self.config.ip => {
                self.note_arrival(host, at, class, congested);
                Ok(())
            }
            EdgeKind::Ip => Err(DropReason::NoInterface),
            EdgeKind::Direct => {
                let said = DirectMessage::parse(body).map_err(|_| DropReason::Malformed)?;
                self.handle_direct(now, host, &said)
            }
        }
    }

    fn handle_echo(&mut self, host: HostId, body: &[u8]) -> Result<(), DropReason> {
        let echo = Echo::parse(body).map_err(|_| DropReason::Malformed)?;
        if echo.reply {
            self.event(Event::Echo { host, id: echo.id, seq: echo.seq });
            return Ok(());
        }
        if self.answered.as_ref().is_some_and(|answered| !answered.contains(&host)) {
            return Err(DropReason::PolicyDenied);
        }
        self.queue_echo(host, Echo { reply: true, ..echo })
    }
}

/// Whether the frame at `at` came over the link with its host, without an end-to-end seal.
pub(crate) fn is_direct(buf: &[u8], at: u32) -> bool {
    buf[at as usize + link::KIND_AT] == LinkKind::Direct as u8
}

/// The source address in the routed header of a frame.
pub(crate) fn source(frame: &[u8]) -> Result<Address, DropReason> {
    RoutedHeader::parse(&frame[link::ROUTED_AT..]).map(|header| header.src())
}
