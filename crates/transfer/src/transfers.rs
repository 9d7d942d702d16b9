//! All transfers of one node.

mod added;

use std::collections::{BTreeMap, VecDeque};

use shoal_crypto::Rng;
use shoal_wire::transfer::{
    CancelReason, FileOffer, RefuseReason, Segment, TransferEnd, TransferMessage,
};
use shoal_wire::{DropReason, Jitter, Time};

use crate::TransferConfig;
use crate::chunk_set::ChunkSet;
use crate::config::chunk_share;
use crate::graves::{EndedTransfers, FileTransferEnd};
use crate::ids::place;
use crate::incoming::FileReceiver;
use crate::outgoing::{FileSender, SegmentBurst, TransferPlan};
use crate::pool::ChunkPool;
use crate::types::{
    FileProgress, FileTransferEvent, MixDelay, OfferInfo, PeerKey, TransferFailure, TransferId,
};

/// The transfers of one node, both ways.
pub struct Transfers {
    config: TransferConfig,
    rng: Rng,
    /// Draws seeds for the times of receivers' messages while nothing arrives.
    idle: Rng,
    outgoing: Vec<Option<Box<FileSender>>>,
    incoming: Vec<Option<Box<FileReceiver>>>,
    out_ports: BTreeMap<(PeerKey, u16), usize>,
    in_ports: BTreeMap<(PeerKey, u16), usize>,
    /// Peer, port and slot of the last segment: the next one most likely has the same.
    last_in: Option<(PeerKey, u16, usize)>,
    added: BTreeMap<PeerKey, MixDelay>,
    graves: EndedTransfers,
    pool: ChunkPool,
    events: VecDeque<FileTransferEvent>,
    serial: u64,
    next_port: u16,
    turn: usize,
    message_turn: usize,
}

/// Commands and queries of the shell.
impl Transfers {
    /// No transfers yet. Equal seeds and calls give equal outputs.
    pub fn new(config: TransferConfig, seed: [u8; 32], _now: Time) -> Transfers {
        let (mut rng, idle) = (Rng::new(seed), Rng::new(shoal_crypto::kdf(&seed, "idle", &[])));
        let next_port = rng.u32() as u16;
        Transfers {
            config,
            rng,
            idle,
            outgoing: Vec::new(),
            incoming: Vec::new(),
            out_ports: BTreeMap::new(),
            in_ports: BTreeMap::new(),
            last_in: None,
            added: BTreeMap::new(),
            graves: EndedTransfers::default(),
            pool: ChunkPool::default(),
            events: VecDeque::new(),
            serial: 0,
            next_port,
            turn: 0,
            message_turn: 0,
        }
    }

    /// Offers a file. An error changes nothing: [`DropReason::TableFull`] if there are too many
    /// transfers, [`DropReason::Malformed`] if the file is longer than [`OfferInfo::SIZE_MAX`] or
    /// its name can't be encoded.
    pub fn offer(
        &mut self,
        now: Time,
        to: PeerKey,
        offer: OfferInfo,
    ) -> Result<TransferId, DropReason> {
        if offer.size > OfferInfo::SIZE_MAX || !shoal_wire::transfer::name_is_sound(&offer.name) {
            return Err(DropReason::Malformed);
        }
        let max = self.config.transfers_max;
        let slot = place(&mut self.outgoing, max).ok_or(DropReason::TableFull)?;
        // There are fewer transfers than ports, so this ends.
        while self.out_ports.contains_key(&(to, self.next_port)) {
            self.next_port = self.next_port.wrapping_add(1);
        }
        let port = self.next_port;
        self.next_port = self.next_port.wrapping_add(1);
        self.serial += 1;
        let id = TransferId::new(self.serial, slot, TransferEnd::Sender);
        let plan = TransferPlan { id, peer: to, port, nonce: self.rng.u32(), info: offer };
        self.outgoing[slot] = Some(Box::new(self.begin(now, plan)));
        self.out_ports.insert((to, port), slot);
        Ok(id)
    }

    /// Frees spare buffers if no transfer is running.
    pub fn rest(&mut self) {
        if self.out_ports.is_empty() && self.in_ports.is_empty() {
            self.pool = ChunkPool::default();
        }
    }

    fn out(&mut self, id: TransferId) -> Option<&mut FileSender> {
        let slot = self.outgoing.get_mut(id.slot())?;
        slot.as_deref_mut().filter(|out| out.id == id)
    }

    fn inc(&mut self, id: TransferId) -> Option<&mut FileReceiver> {
        let slot = self.incoming.get_mut(id.slot())?;
        slot.as_deref_mut().filter(|inc| inc.id == id)
    }

    fn sender_share(&self) -> usize {
        chunk_share(self.config.sender_memory, self.out_ports.len())
    }

    fn receiver_share(&self) -> usize {
        chunk_share(self.config.receiver_memory, self.in_ports.len())
    }

    /// Sender: takes a chunk that [`FileTransferEvent::Read`] asked for. The buffer returns to the
    /// pool even if the transfer is over.
    pub fn chunk_read(&mut self, _now: Time, id: TransferId, index: u32, data: Box<[u8]>) {
        let slot = self.outgoing.get_mut(id.slot()).and_then(Option::as_deref_mut);
        match slot.filter(|out| out.id == id) {
            Some(out) => out.chunk_read(index, data, &mut self.pool),
            None => self.pool.put(data),
        }
    }

    /// Sender: ends a transfer whose source can't be read or has changed.
    pub fn source_failed(&mut self, now: Time, id: TransferId, reason: CancelReason) {
        self.cancel(now, id, reason);
    }

    /// Sender: BLAKE3 of the whole file.
    pub fn source_hash(&mut self, now: Time, id: TransferId, hash: [u8; 32]) {
        if let Some(out) = self.out(id) {
            out.source_hash(now, hash);
        }
    }

    /// Receiver: accepts the file; `have` holds the existing chunks.
    pub fn accept(&mut self, now: Time, id: TransferId, have: &ChunkSet) {
        let (share, config) = (self.receiver_share(), self.config.clone());
        let Some(inc) = self.inc(id).filter(|inc| !inc.is_receiving()) else { return };
        inc.accept(now, have, &config);
        inc.extend(share);
    }

    /// Receiver: accepts a comparison, since a file of that name and length exists. Only the hashes
    /// are compared: [`FileTransferEvent::HashWanted`] follows when the sender has sent its own.
    /// Then comes [`FileTransferEvent::Complete`], or the transfer fails as
    /// [`CancelReason::Exists`] at both ends.
    pub fn compare(&mut self, now: Time, id: TransferId) {
        let config = self.config.clone();
        let Some(inc) = self.inc(id).filter(|inc| !inc.is_receiving()) else { return };
        inc.compare(now, &config);
    }

    /// Receiver: refuses the file. The machine forgets the transfer.
    pub fn refuse(&mut self, _now: Time, id: TransferId, reason: RefuseReason) {
        let Some(inc) = self.inc(id).filter(|inc| !inc.is_receiving()) else { return };
        let (peer, port, nonce) = (inc.peer, inc.port, inc.nonce);
        self.graves.reply(peer, TransferMessage::Refuse { port, nonce, reason });
        self.remove_incoming(id, FileTransferEnd::Refused(reason));
    }

    /// Receiver: a chunk from [`FileTransferEvent::Write`] is in the file; the buffer comes back.
    pub fn chunk_written(&mut self, now: Time, id: TransferId, _index: u32, buffer: Box<[u8]>) {
        self.pool.put(buffer);
        let share = self.receiver_share();
        let slot = self.incoming.get_mut(id.slot()).and_then(Option::as_deref_mut);
        if let Some(inc) = slot.filter(|inc| inc.id == id) {
            inc.written();
            inc.segment_events(now, &mut self.events, share);
        }
    }

    /// Receiver: ends a transfer whose file can't be written.
    pub fn sink_failed(&mut self, now: Time, id: TransferId, reason: CancelReason) {
        self.cancel(now, id, reason);
    }

    /// Receiver: BLAKE3 of the written file.
    pub fn sink_hash(&mut self, now: Time, id: TransferId, hash: [u8; 32]) {
        let verdict = self.inc(id).and_then(|inc| inc.sink_hash(hash));
        self.judge(now, id, verdict, hash);
    }

    fn judge(&mut self, now: Time, id: TransferId, verdict: Option<bool>, hash: [u8; 32]) {
        match verdict {
            Some(true) => self.events.push_back(FileTransferEvent::Complete { id, hash }),
            Some(false) => {
                let compares = self.inc(id).is_some_and(|inc| inc.compares());
                let other = CancelReason::HashMismatch;
                self.cancel(now, id, if compares { CancelReason::Exists } else { other });
            }
            None => {}
        }
    }

    /// Receiver: the file has its name. Tells the sender, and forgets the transfer.
    pub fn confirm(&mut self, _now: Time, id: TransferId) {
        let Some(inc) = self.inc(id) else { return };
        let (peer, port, nonce) = (inc.peer, inc.port, inc.nonce);
        self.graves.reply(peer, TransferMessage::Done { port, nonce });
        self.remove_incoming(id, FileTransferEnd::Done);
    }

    /// Stops a transfer at either end; the other end is told, and [`FileTransferEvent::Failed`]
    /// follows.
    pub fn cancel(&mut self, _now: Time, id: TransferId, reason: CancelReason) {
        self.fail(id, TransferFailure::Local(reason));
    }

    /// Fails all transfers with a peer whose session is gone for good.
    pub fn peer_lost(&mut self, _now: Time, peer: PeerKey) {
        let out = self.outgoing.iter().flatten().filter(|o| o.peer == peer).map(|o| o.id);
        let inc = self.incoming.iter().flatten().filter(|i| i.peer == peer).map(|i| i.id);
        for id in out.chain(inc).collect::<Vec<_>>() {
            self.fail(id, TransferFailure::Local(CancelReason::PeerLost));
        }
        self.graves.forget(peer);
    }

    fn fail(&mut self, id: TransferId, why: TransferFailure) {
        let role = id.role();
        let known = match role {
            TransferEnd::Sender => self.out(id).map(|out| (out.peer, out.port)),
            TransferEnd::Receiver => self.inc(id).map(|inc| (inc.peer, inc.port)),
        };
        let Some((peer, port)) = known else { return };
        let end = match why {
            TransferFailure::Local(reason) => {
                self.graves.reply(peer, TransferMessage::Cancel { port, role, reason });
                FileTransferEnd::Cancelled(reason)
            }
            TransferFailure::Peer(reason) => FileTransferEnd::Cancelled(reason),
            TransferFailure::Refused(reason) => FileTransferEnd::Refused(reason),
        };
        match role {
            TransferEnd::Sender => self.remove_outgoing(id, end),
            TransferEnd::Receiver => self.remove_incoming(id, end),
        }
        self.events.push_back(FileTransferEvent::Failed { id, why });
    }

    fn remove_outgoing(&mut self, id: TransferId, end: FileTransferEnd) {
        let Some(mut out) = self.outgoing.get_mut(id.slot()).and_then(Option::take) else { return };
        out.release(&mut self.pool);
        self.out_ports.remove(&(out.peer, out.port));
        self.graves.bury(out.peer, out.port, out.nonce(), TransferEnd::Sender, end);
    }

    fn remove_incoming(&mut self, id: TransferId, end: FileTransferEnd) {
        let Some(mut inc) = self.incoming.get_mut(id.slot()).and_then(Option::take) else { return };
        inc.release(&mut self.pool);
        self.in_ports.remove(&(inc.peer, inc.port));
        self.last_in = None;
        self.graves.bury(inc.peer, inc.port, inc.nonce, TransferEnd::Receiver, end);
    }

    /// Progress of a transfer; None if it is over.
    pub fn progress(&self, now: Time, id: TransferId) -> Option<FileProgress> {
        match id.role() {
            TransferEnd::Sender => {
                let out = self.outgoing.get(id.slot())?.as_deref()?;
                (out.id == id).then(|| out.progress(now))
            }
            TransferEnd::Receiver => {
                let inc = self.incoming.get(id.slot())?.as_deref()?;
                (inc.id == id).then(|| inc.progress())
            }
        }
    }

    /// Offer of an incoming transfer; None if it is over.
    pub fn info(&self, id: TransferId) -> Option<&OfferInfo> {
        let inc = self.incoming.get(id.slot())?.as_deref()?;
        (inc.id == id && id.role() == TransferEnd::Receiver).then_some(&inc.info)
    }
}

/// Input from the network.
impl Transfers {
    /// Handles one decrypted segment: `body` is the whole end-to-end plaintext, kind byte first.
    /// `congested` is the cell's mark. An error is a counted drop; the machine continues.
    #[inline]
    pub fn handle_segment(
        &mut self,
        now: Time,
        from: PeerKey,
        body: &[u8],
        congested: bool,
    ) -> Result<(), DropReason> {
        let (segment, data) = Segment::parse(body).map_err(|_| DropReason::Malformed)?;
        let slot = match self.last_in {
            Some((peer, port, slot)) if (peer, port) == (from, segment.port) => Some(slot),
            _ => self.in_ports.get(&(from, segment.port)).copied(),
        };
        self.last_in = slot.map(|slot| (from, segment.port, slot));
        let known = slot.and_then(|slot| self.incoming.get_mut(slot)?.as_deref_mut());
        let Some(inc) = known else {
            self.graves.answer(now, from, segment.port, None, TransferEnd::Receiver);
            return Err(DropReason::UnknownFlow);
        };
        let event = inc.segment(now, segment, data, congested, &mut self.pool)?;
        self.events.extend(event);
        Ok(())
    }

    /// Handles one decrypted message: `body` is the whole end-to-end plaintext, kind byte first,
    /// with its padding. An error is a counted drop; the machine continues.
    pub fn handle_message(
        &mut self,
        now: Time,
        from: PeerKey,
        body: &[u8],
        _congested: bool,
    ) -> Result<(), DropReason> {
        match TransferMessage::parse(body).map_err(|_| DropReason::Malformed)? {
            TransferMessage::Offer(offer) => self.handle_offer(now, from, &offer),
            TransferMessage::Fin { port, nonce, hash } => {
                let slot = self.in_ports.get(&(from, port)).copied();
                let inc = slot.and_then(|slot| self.incoming[slot].as_deref_mut());
                let Some(inc) = inc.filter(|inc| inc.nonce == nonce) else {
                    self.graves.answer(now, from, port, Some(nonce), TransferEnd::Receiver);
                    return Err(DropReason::UnknownFlow);
                };
                let (id, verdict) = (inc.id, inc.fin(now, hash));
                if inc.wants_hash() {
                    self.events.push_back(FileTransferEvent::HashWanted { id });
                }
                self.judge(now, id, verdict, hash);
                Ok(())
            }
            TransferMessage::Cadence { port, interval_us } => {
                let slot = self.in_ports.get(&(from, port)).copied();
                let inc = slot.and_then(|slot| self.incoming[slot].as_deref_mut());
                inc.ok_or(DropReason::UnknownFlow)?.cadence(interval_us);
                Ok(())
            }
            TransferMessage::Cancel { port, role: TransferEnd::Sender, reason } => {
                let slot = self.in_ports.get(&(from, port)).copied();
                let inc = slot.and_then(|slot| self.incoming[slot].as_deref());
                let id = inc.ok_or(DropReason::UnknownFlow)?.id;
                self.fail(id, TransferFailure::Peer(reason));
                Ok(())
            }
            message => self.handle_answer(now, from, message),
        }
    }

    fn handle_offer(
        &mut self,
        now: Time,
        from: PeerKey,
        offer: &FileOffer<'_>,
    ) -> Result<(), DropReason> {
        let (port, nonce) = (offer.port, offer.nonce);
        if self.graves.ended(from, port, nonce) {
            self.graves.answer(now, from, port, Some(nonce), TransferEnd::Receiver);
            return Ok(());
        }
        let slot = self.in_ports.get(&(from, port)).copied();
        let known = slot.and_then(|slot| self.incoming[slot].as_deref_mut());
        if let Some(inc) = known.filter(|inc| inc.nonce == nonce) {
            inc.repeat_accept(now);
            return Ok(());
        }
        // The sender was restarted, or sends the file twice. Arrived data is resumed under the new
        // offer. An older transfer that still runs is cancelled when its next segment comes.
        let same = |inc: &&FileReceiver| {
            inc.peer == from && (inc.port == port || inc.info.file_id == offer.file_id)
        };
        let stale = self.incoming.iter().flatten().map(Box::as_ref).filter(same);
        for id in stale.map(|inc| inc.id).collect::<Vec<_>>() {
            self.fail(id, TransferFailure::Peer(CancelReason::Superseded));
        }
        let refuse = |reason| TransferMessage::Refuse { port, nonce, reason };
        if offer.size > OfferInfo::SIZE_MAX {
            self.graves.reply(from, refuse(RefuseReason::TooLarge));
            return Err(DropReason::Malformed);
        }
        let held = self.incoming.iter().flatten().filter(|inc| inc.peer == from).count();
        let share = self.config.incoming_share();
        let free = place(&mut self.incoming, self.config.transfers_max);
        let Some(slot) = free.filter(|_| held < share) else {
            self.graves.reply(from, refuse(RefuseReason::Busy));
            return Err(DropReason::TableFull);
        };
        self.serial += 1;
        let id = TransferId::new(self.serial, slot, TransferEnd::Receiver);
        let info = OfferInfo {
            name: offer.name.to_owned(),
            size: offer.size,
            modified_ns: offer.modified_ns,
            file_id: offer.file_id,
            executable: offer.executable,
            segment: offer.segment,
        };
        let jitter = Jitter::new(self.idle.u64());
        let incoming = FileReceiver::new(id, from, port, nonce, info.clone(), (now, jitter));
        self.incoming[slot] = Some(Box::new(incoming));
        self.in_ports.insert((from, port), slot);
        self.events.push_back(FileTransferEvent::Offered { id, from, info });
        Ok(())
    }

    /// Handles a receiver's message.
    fn handle_answer(
        &mut self,
        now: Time,
        from: PeerKey,
        message: TransferMessage<'_>,
    ) -> Result<(), DropReason> {
        let port = match &message {
            TransferMessage::Accept(accept) => accept.port,
            TransferMessage::Nack(nack) => nack.port,
            TransferMessage::Refuse { port, .. }
            | TransferMessage::Done { port, .. }
            | TransferMessage::Cancel { port, .. } => *port,
            // Messages of senders are handled before this call.
            _ => return Err(DropReason::NotAllowed),
        };
        let slot = self.out_ports.get(&(from, port)).copied();
        let known = slot.and_then(|slot| self.outgoing[slot].as_deref_mut());
        let Some(out) = known else {
            if matches!(message, TransferMessage::Nack(_) | TransferMessage::Accept(_)) {
                self.graves.answer(now, from, port, None, TransferEnd::Sender);
            }
            return Err(DropReason::UnknownFlow);
        };
        let id = out.id;
        match message {
            TransferMessage::Accept(accept) => {
                if out.accept(now, &accept)? {
                    let resumed = out.progress(now).bytes_resumed;
                    let whole = out.is_there();
                    self.events.push_back(FileTransferEvent::Accepted { id, resumed, whole });
                    self.events.push_back(FileTransferEvent::HashWanted { id });
                }
            }
            TransferMessage::Nack(nack) => out.nack(now, &nack, &mut self.pool)?,
            TransferMessage::Refuse { nonce, reason, .. } => {
                if nonce != out.nonce() {
                    return Err(DropReason::UnknownFlow);
                }
                self.fail(id, TransferFailure::Refused(reason));
            }
            TransferMessage::Done { nonce, .. } => {
                if nonce != out.nonce() {
                    return Err(DropReason::UnknownFlow);
                }
                let mut stats = out.progress(now);
                stats.bytes_done = stats.bytes_total;
                self.remove_outgoing(id, FileTransferEnd::Done);
                self.events.push_back(FileTransferEvent::Finished { id, stats });
            }
            TransferMessage::Cancel { reason: CancelReason::Unknown, .. } => {
                if !out.offer_again(now, &mut self.pool) {
                    self.fail(id, TransferFailure::Peer(CancelReason::Unknown));
                }
            }
            TransferMessage::Cancel { reason, .. } => self.fail(id, TransferFailure::Peer(reason)),
            _ => return Err(DropReason::NotAllowed),
        }
        self.request_reads(id);
        Ok(())
    }

    fn request_reads(&mut self, id: TransferId) {
        let share = self.sender_share();
        let slot = self.outgoing.get_mut(id.slot()).and_then(Option::as_deref_mut);
        if let Some(out) = slot.filter(|out| out.id == id) {
            out.request_reads(share, &mut self.pool, &mut self.events);
        }
    }
}

/// Output to the network, and time.
impl Transfers {
    /// Writes the next message into `out`, kind byte first; returns its peer and length. `out` has
    /// at least [`shoal_wire::SizeClass::edge_len`] of a full cell; the rest of the cell must be
    /// zero. Call until None.
    pub fn poll_message(&mut self, now: Time, out: &mut [u8]) -> Option<(PeerKey, usize)> {
        while let Some((peer, message)) = self.graves.pop() {
            if let Some(len) = message.encode(out) {
                return Some((peer, len));
            }
        }
        let count = self.outgoing.len() + self.incoming.len();
        for step in 0..count {
            let at = (self.message_turn + step) % count;
            let found = match at.checked_sub(self.outgoing.len()) {
                None => self.outgoing[at]
                    .as_deref_mut()
                    .and_then(|t| t.message(now, out).map(|len| (t.peer, len))),
                Some(at) => self.incoming[at]
                    .as_deref_mut()
                    .and_then(|t| t.message(now, out).map(|len| (t.peer, len))),
            };
            if found.is_some() {
                self.message_turn = at;
                return found;
            }
        }
        None
    }

    /// The next run of segments to one peer that may leave now, at most `max` and at most 44 of
    /// them: one GSO send. `blocked` returns true if the local egress has no room for a peer; its
    /// transfers wait then. Write the run with [`Transfers::write_segment`] before any other call.
    pub fn poll_burst(
        &mut self,
        now: Time,
        max: usize,
        blocked: &mut dyn FnMut(PeerKey) -> bool,
    ) -> Option<SegmentBurst> {
        let count = self.outgoing.len();
        for step in 0..count {
            let slot = (self.turn + step) % count;
            let Some(out) = self.outgoing[slot].as_deref_mut() else { continue };
            if !out.may_send(now) {
                continue;
            }
            if blocked(out.peer) {
                out.blocked(now);
                continue;
            }
            let (id, burst) = (out.id, out.burst(now, max, slot));
            if burst.is_some() {
                self.turn = (slot + 1) % count;
                self.request_reads(id);
                return burst;
            }
        }
        None
    }

    /// Writes segment `i` of a burst into `out`: the end-to-end plaintext of a cell, kind byte
    /// first, with zeroes behind the segment. One copy, no allocation.
    ///
    /// # Panics
    ///
    /// If `i` is not below the burst's count, or `out` is shorter than its `plain_len`.
    #[inline]
    pub fn write_segment(&self, burst: &SegmentBurst, i: usize, out: &mut [u8]) {
        assert!(i < burst.count, "segment {i} of a burst of {}", burst.count);
        if let Some(transfer) = self.outgoing.get(burst.slot).and_then(Option::as_deref) {
            transfer.write(burst, burst.segments[i], out);
        }
    }

    /// Ends the transfer of a burst whose segments have become too long for the cells to its peer.
    pub fn give_up(&mut self, burst: &SegmentBurst) {
        let of_it = |out: &&FileSender| (out.peer, out.port) == (burst.peer, burst.port);
        let known = self.outgoing.get(burst.slot).and_then(Option::as_deref).filter(of_it);
        if let Some(id) = known.map(|out| out.id) {
            self.fail(id, TransferFailure::Local(CancelReason::PeerLost));
        }
    }

    /// The next action for the shell, or information. Call until None.
    pub fn poll_event(&mut self) -> Option<FileTransferEvent> {
        self.events.pop_front()
    }

    /// Time of the next call of [`Transfers::handle_timeout`], and its reason; poll again then. At
    /// once if events or messages wait.
    pub fn poll_timeout(&self) -> Option<(Time, &'static str)> {
        if !self.events.is_empty() {
            return Some((Time::ZERO, "transfer event"));
        }
        if self.graves.has_replies() {
            return Some((Time::ZERO, "transfer reply"));
        }
        let out = self.outgoing.iter().flatten().map(|t| t.next());
        let inc = self.incoming.iter().flatten().map(|t| t.next());
        out.chain(inc).min_by_key(|&(at, _)| at)
    }

    /// Ends transfers that waited too long. Then poll messages, bursts and events.
    pub fn handle_timeout(&mut self, now: Time) {
        let out = self.outgoing.iter().flatten().filter_map(|t| Some((t.id, t.expired(now)?)));
        let inc = self.incoming.iter().flatten().filter_map(|t| Some((t.id, t.expired(now)?)));
        for (id, why) in out.chain(inc).collect::<Vec<_>>() {
            self.fail(id, why);
        }
    }
}
