//! All transfers of one node.

mod added;

use core::time::Duration;
use std::collections::{BTreeMap, VecDeque};

use shoal_crypto::Rng;
use shoal_wire::transfer::{CancelReason, Offer, RefuseReason, Role, Segment, Transfer};
use shoal_wire::{DropReason, Jitter, Time};

use crate::Config;
use crate::chunk_set::ChunkSet;
use crate::config::chunk_share;
use crate::graves::{End, Graves};
use crate::ids::place;
use crate::incoming::Incoming;
use crate::outgoing::{Burst, Outgoing, Plan};
use crate::pool::Pool;
use crate::types::{Added, Event, Failure, OfferInfo, PeerKey, Progress, TransferId};

/// The transfers of one node, both ways.
pub struct Transfers {
    config: Config,
    rng: Rng,
    /// Draws the seeds of what receivers say when nothing arrives.
    idle: Rng,
    outgoing: Vec<Option<Box<Outgoing>>>,
    incoming: Vec<Option<Box<Incoming>>>,
    out_ports: BTreeMap<(PeerKey, u16), usize>,
    in_ports: BTreeMap<(PeerKey, u16), usize>,
    /// Where the last segment went: the next one most likely goes there too.
    last_in: Option<(PeerKey, u16, usize)>,
    added: BTreeMap<PeerKey, Added>,
    graves: Graves,
    pool: Pool,
    events: VecDeque<Event>,
    serial: u64,
    next_port: u16,
    turn: usize,
    message_turn: usize,
}

/// Commands and questions of the shell.
impl Transfers {
    /// Without transfers. Equal seeds and calls give equal outputs.
    pub fn new(config: Config, seed: [u8; 32], _now: Time) -> Transfers {
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
            graves: Graves::default(),
            pool: Pool::default(),
            events: VecDeque::new(),
            serial: 0,
            next_port,
            turn: 0,
            message_turn: 0,
        }
    }

    /// Offers a file. [`DropReason::TableFull`] when there are too many transfers,
    /// [`DropReason::Malformed`] when the file is beyond [`OfferInfo::SIZE_MAX`] or its name can't
    /// travel; nothing has changed then.
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
        let id = TransferId::new(self.serial, slot, Role::Sender);
        let plan = Plan { id, peer: to, port, nonce: self.rng.u32(), info: offer };
        self.outgoing[slot] = Some(Box::new(self.begin(now, plan)));
        self.out_ports.insert((to, port), slot);
        Ok(id)
    }

    /// Gives spare buffers back while nothing is under way.
    pub fn rest(&mut self) {
        if self.out_ports.is_empty() && self.in_ports.is_empty() {
            self.pool = Pool::default();
        }
    }

    fn out(&mut self, id: TransferId) -> Option<&mut Outgoing> {
        let slot = self.outgoing.get_mut(id.slot())?;
        slot.as_deref_mut().filter(|out| out.id == id)
    }

    fn inc(&mut self, id: TransferId) -> Option<&mut Incoming> {
        let slot = self.incoming.get_mut(id.slot())?;
        slot.as_deref_mut().filter(|inc| inc.id == id)
    }

    fn sender_share(&self) -> usize {
        chunk_share(self.config.sender_memory, self.out_ports.len())
    }

    fn receiver_share(&self) -> usize {
        chunk_share(self.config.receiver_memory, self.in_ports.len())
    }

    /// Sender: a chunk that [`Event::Read`] asked for. Its buffer comes back even when nobody
    /// waits for it any more.
    pub fn chunk_read(&mut self, _now: Time, id: TransferId, index: u32, data: Box<[u8]>) {
        let slot = self.outgoing.get_mut(id.slot()).and_then(Option::as_deref_mut);
        match slot.filter(|out| out.id == id) {
            Some(out) => out.chunk_read(index, data, &mut self.pool),
            None => self.pool.put(data),
        }
    }

    /// Sender: the source can't be read, or changed. Ends the transfer.
    pub fn source_failed(&mut self, now: Time, id: TransferId, reason: CancelReason) {
        self.cancel(now, id, reason);
    }

    /// Sender: BLAKE3 of the whole file.
    pub fn source_hash(&mut self, now: Time, id: TransferId, hash: [u8; 32]) {
        if let Some(out) = self.out(id) {
            out.source_hash(now, hash);
        }
    }

    /// Receiver: takes the file; `have` says what is there already.
    pub fn accept(&mut self, now: Time, id: TransferId, have: &ChunkSet) {
        let (share, config) = (self.receiver_share(), self.config.clone());
        let Some(inc) = self.inc(id).filter(|inc| !inc.is_receiving()) else { return };
        inc.accept(now, have, &config);
        inc.extend(share);
    }

    /// Receiver: a file of that name and length is there already, and no byte of it is wanted. Only
    /// the hashes are compared: [`Event::HashWanted`] follows when the sender has told its own,
    /// then [`Event::Complete`], or the transfer fails as [`CancelReason::Exists`] at both ends.
    pub fn compare(&mut self, now: Time, id: TransferId) {
        let config = self.config.clone();
        let Some(inc) = self.inc(id).filter(|inc| !inc.is_receiving()) else { return };
        inc.compare(now, &config);
    }

    /// Receiver: doesn't take the file. The machine forgets the transfer.
    pub fn refuse(&mut self, _now: Time, id: TransferId, reason: RefuseReason) {
        let Some(inc) = self.inc(id).filter(|inc| !inc.is_receiving()) else { return };
        let (peer, port, nonce) = (inc.peer, inc.port, inc.nonce);
        self.graves.reply(peer, Transfer::Refuse { port, nonce, reason });
        self.remove_incoming(id, End::Refused(reason));
    }

    /// Receiver: a chunk from [`Event::Write`] is in the file; the buffer comes back.
    pub fn chunk_written(&mut self, now: Time, id: TransferId, _index: u32, buffer: Box<[u8]>) {
        self.pool.put(buffer);
        let share = self.receiver_share();
        let slot = self.incoming.get_mut(id.slot()).and_then(Option::as_deref_mut);
        if let Some(inc) = slot.filter(|inc| inc.id == id) {
            inc.written();
            inc.segment_events(now, &mut self.events, share);
        }
    }

    /// Receiver: the file can't be written. Ends the transfer.
    pub fn sink_failed(&mut self, now: Time, id: TransferId, reason: CancelReason) {
        self.cancel(now, id, reason);
    }

    /// Receiver: BLAKE3 of what was written.
    pub fn sink_hash(&mut self, now: Time, id: TransferId, hash: [u8; 32]) {
        let verdict = self.inc(id).and_then(|inc| inc.sink_hash(hash));
        self.judge(now, id, verdict, hash);
    }

    fn judge(&mut self, now: Time, id: TransferId, verdict: Option<bool>, hash: [u8; 32]) {
        match verdict {
            Some(true) => self.events.push_back(Event::Complete { id, hash }),
            Some(false) => {
                let compares = self.inc(id).is_some_and(|inc| inc.compares());
                let other = CancelReason::HashMismatch;
                self.cancel(now, id, if compares { CancelReason::Exists } else { other });
            }
            None => {}
        }
    }

    /// Receiver: the file has its name. The sender is told, and the machine forgets the transfer.
    pub fn confirm(&mut self, _now: Time, id: TransferId) {
        let Some(inc) = self.inc(id) else { return };
        let (peer, port, nonce) = (inc.peer, inc.port, inc.nonce);
        self.graves.reply(peer, Transfer::Done { port, nonce });
        self.remove_incoming(id, End::Done);
    }

    /// Either end stops; the other is told and [`Event::Failed`] follows.
    pub fn cancel(&mut self, _now: Time, id: TransferId, reason: CancelReason) {
        self.fail(id, Failure::Local(reason));
    }

    /// The session with a peer is gone for good: all its transfers fail.
    pub fn peer_lost(&mut self, _now: Time, peer: PeerKey) {
        let out = self.outgoing.iter().flatten().filter(|o| o.peer == peer).map(|o| o.id);
        let inc = self.incoming.iter().flatten().filter(|i| i.peer == peer).map(|i| i.id);
        for id in out.chain(inc).collect::<Vec<_>>() {
            self.fail(id, Failure::Local(CancelReason::PeerLost));
        }
        self.graves.forget(peer);
    }

    fn fail(&mut self, id: TransferId, why: Failure) {
        let role = id.role();
        let known = match role {
            Role::Sender => self.out(id).map(|out| (out.peer, out.port)),
            Role::Receiver => self.inc(id).map(|inc| (inc.peer, inc.port)),
        };
        let Some((peer, port)) = known else { return };
        let end = match why {
            Failure::Local(reason) => {
                self.graves.reply(peer, Transfer::Cancel { port, role, reason });
                End::Cancelled(reason)
            }
            Failure::Peer(reason) => End::Cancelled(reason),
            Failure::Refused(reason) => End::Refused(reason),
        };
        match role {
            Role::Sender => self.remove_outgoing(id, end),
            Role::Receiver => self.remove_incoming(id, end),
        }
        self.events.push_back(Event::Failed { id, why });
    }

    fn remove_outgoing(&mut self, id: TransferId, end: End) {
        let Some(mut out) = self.outgoing.get_mut(id.slot()).and_then(Option::take) else { return };
        out.release(&mut self.pool);
        self.out_ports.remove(&(out.peer, out.port));
        self.graves.bury(out.peer, out.port, out.nonce(), Role::Sender, end);
    }

    fn remove_incoming(&mut self, id: TransferId, end: End) {
        let Some(mut inc) = self.incoming.get_mut(id.slot()).and_then(Option::take) else { return };
        inc.release(&mut self.pool);
        self.in_ports.remove(&(inc.peer, inc.port));
        self.last_in = None;
        self.graves.bury(inc.peer, inc.port, inc.nonce, Role::Receiver, end);
    }

    /// How far a transfer is; None when it is over.
    pub fn progress(&self, now: Time, id: TransferId) -> Option<Progress> {
        match id.role() {
            Role::Sender => {
                let out = self.outgoing.get(id.slot())?.as_deref()?;
                (out.id == id).then(|| out.progress(now))
            }
            Role::Receiver => {
                let inc = self.incoming.get(id.slot())?.as_deref()?;
                (inc.id == id).then(|| inc.progress())
            }
        }
    }

    /// The offer of an incoming transfer; None when it is over.
    pub fn info(&self, id: TransferId) -> Option<&OfferInfo> {
        let inc = self.incoming.get(id.slot())?.as_deref()?;
        (inc.id == id && id.role() == Role::Receiver).then_some(&inc.info)
    }
}

/// From the network.
impl Transfers {
    /// One opened segment: `body` is the whole end-to-end plaintext, kind byte first. `congested`
    /// is the cell's mark. An error is a counted drop; the machine goes on.
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
            self.graves.answer(now, from, segment.port, None, Role::Receiver);
            return Err(DropReason::UnknownFlow);
        };
        let event = inc.segment(now, segment, data, congested, &mut self.pool)?;
        self.events.extend(event);
        Ok(())
    }

    /// One opened message: `body` is the whole end-to-end plaintext, kind byte first, with its
    /// padding. An error is a counted drop; the machine goes on.
    pub fn handle_message(
        &mut self,
        now: Time,
        from: PeerKey,
        body: &[u8],
        _congested: bool,
    ) -> Result<(), DropReason> {
        match Transfer::parse(body).map_err(|_| DropReason::Malformed)? {
            Transfer::Offer(offer) => self.handle_offer(now, from, &offer),
            Transfer::Fin { port, nonce, hash } => {
                let slot = self.in_ports.get(&(from, port)).copied();
                let inc = slot.and_then(|slot| self.incoming[slot].as_deref_mut());
                let Some(inc) = inc.filter(|inc| inc.nonce == nonce) else {
                    self.graves.answer(now, from, port, Some(nonce), Role::Receiver);
                    return Err(DropReason::UnknownFlow);
                };
                let (id, verdict) = (inc.id, inc.fin(now, hash));
                if inc.wants_hash() {
                    self.events.push_back(Event::HashWanted { id });
                }
                self.judge(now, id, verdict, hash);
                Ok(())
            }
            Transfer::Cadence { port, interval_us } => {
                let slot = self.in_ports.get(&(from, port)).copied();
                let inc = slot.and_then(|slot| self.incoming[slot].as_deref_mut());
                inc.ok_or(DropReason::UnknownFlow)?.cadence(interval_us);
                Ok(())
            }
            Transfer::Cancel { port, role: Role::Sender, reason } => {
                let slot = self.in_ports.get(&(from, port)).copied();
                let inc = slot.and_then(|slot| self.incoming[slot].as_deref());
                let id = inc.ok_or(DropReason::UnknownFlow)?.id;
                self.fail(id, Failure::Peer(reason));
                Ok(())
            }
            message => self.handle_answer(now, from, message),
        }
    }

    fn handle_offer(
        &mut self,
        now: Time,
        from: PeerKey,
        offer: &Offer<'_>,
    ) -> Result<(), DropReason> {
        let (port, nonce) = (offer.port, offer.nonce);
        if self.graves.ended(from, port, nonce) {
            self.graves.answer(now, from, port, Some(nonce), Role::Receiver);
            return Ok(());
        }
        let slot = self.in_ports.get(&(from, port)).copied();
        let known = slot.and_then(|slot| self.incoming[slot].as_deref_mut());
        if let Some(inc) = known.filter(|inc| inc.nonce == nonce) {
            inc.repeat_accept(now);
            return Ok(());
        }
        // The sender was restarted, or sends the file twice. What came is resumed under the new
        // offer; the older transfer, if it still runs, is cancelled when its next segment comes.
        let same = |inc: &&Incoming| {
            inc.peer == from && (inc.port == port || inc.info.file_id == offer.file_id)
        };
        let stale = self.incoming.iter().flatten().map(Box::as_ref).filter(same);
        for id in stale.map(|inc| inc.id).collect::<Vec<_>>() {
            self.fail(id, Failure::Peer(CancelReason::Superseded));
        }
        let refuse = |reason| Transfer::Refuse { port, nonce, reason };
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
        let id = TransferId::new(self.serial, slot, Role::Receiver);
        let info = OfferInfo {
            name: offer.name.to_owned(),
            size: offer.size,
            modified_ns: offer.modified_ns,
            file_id: offer.file_id,
            executable: offer.executable,
            segment: offer.segment,
        };
        let jitter = Jitter::new(self.idle.u64());
        let incoming = Incoming::new(id, from, port, nonce, info.clone(), (now, jitter));
        self.incoming[slot] = Some(Box::new(incoming));
        self.in_ports.insert((from, port), slot);
        self.events.push_back(Event::Offered { id, from, info });
        Ok(())
    }

    /// Takes a receiver's message.
    fn handle_answer(
        &mut self,
        now: Time,
        from: PeerKey,
        message: Transfer<'_>,
    ) -> Result<(), DropReason> {
        let port = match &message {
            Transfer::Accept(accept) => accept.port,
            Transfer::Nack(nack) => nack.port,
            Transfer::Refuse { port, .. }
            | Transfer::Done { port, .. }
            | Transfer::Cancel { port, .. } => *port,
            // Messages of senders are handled before this call.
            _ => return Err(DropReason::NotAllowed),
        };
        let slot = self.out_ports.get(&(from, port)).copied();
        let known = slot.and_then(|slot| self.outgoing[slot].as_deref_mut());
        let Some(out) = known else {
            if matches!(message, Transfer::Nack(_) | Transfer::Accept(_)) {
                self.graves.answer(now, from, port, None, Role::Sender);
            }
            return Err(DropReason::UnknownFlow);
        };
        let id = out.id;
        match message {
            Transfer::Accept(accept) => {
                if out.accept(now, &accept)? {
                    let resumed = out.progress(now).bytes_resumed;
                    let whole = out.is_there();
                    self.events.push_back(Event::Accepted { id, resumed, whole });
                    self.events.push_back(Event::HashWanted { id });
                }
            }
            Transfer::Nack(nack) => out.nack(now, &nack, &mut self.pool)?,
            Transfer::Refuse { nonce, reason, .. } => {
                if nonce != out.nonce() {
                    return Err(DropReason::UnknownFlow);
                }
                self.fail(id, Failure::Refused(reason));
            }
            Transfer::Done { nonce, .. } => {
                if nonce != out.nonce() {
                    return Err(DropReason::UnknownFlow);
                }
                let mut stats = out.progress(now);
                stats.bytes_done = stats.bytes_total;
                self.remove_outgoing(id, End::Done);
                self.events.push_back(Event::Finished { id, stats });
            }
            Transfer::Cancel { reason: CancelReason::Unknown, .. } => {
                if !out.offer_again(now, &mut self.pool) {
                    self.fail(id, Failure::Peer(CancelReason::Unknown));
                }
            }
            Transfer::Cancel { reason, .. } => self.fail(id, Failure::Peer(reason)),
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

/// To the network, and time.
impl Transfers {
    /// Writes the next message into `out` (at least [`shoal_wire::SizeClass::edge_len`] of a full
    /// cell), kind byte first, and says to whom and how long it is; what follows in the cell must
    /// be zero. Call until None.
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
    /// them: one GSO send. `blocked` says that the local egress has no room for a peer now; its
    /// transfers wait then. Write the run with [`Transfers::write_segment`] before any other call.
    pub fn poll_burst(
        &mut self,
        now: Time,
        max: usize,
        blocked: &mut dyn FnMut(PeerKey) -> bool,
    ) -> Option<Burst> {
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
    /// When `i` is not below the burst's count or `out` is shorter than its `plain_len`.
    #[inline]
    pub fn write_segment(&self, burst: &Burst, i: usize, out: &mut [u8]) {
        assert!(i < burst.count, "segment {i} of a burst of {}", burst.count);
        if let Some(transfer) = self.outgoing.get(burst.slot).and_then(Option::as_deref) {
            transfer.write(burst, burst.segments[i], out);
        }
    }

    /// Ends the transfer of a burst whose segments the cells to its peer no longer hold.
    pub fn give_up(&mut self, burst: &Burst) {
        let of_it = |out: &&Outgoing| (out.peer, out.port) == (burst.peer, burst.port);
        let known = self.outgoing.get(burst.slot).and_then(Option::as_deref).filter(of_it);
        if let Some(id) = known.map(|out| out.id) {
            self.fail(id, Failure::Local(CancelReason::PeerLost));
        }
    }

    /// What the shell must do or may want to know. Call until None.
    pub fn poll_event(&mut self) -> Option<Event> {
        self.events.pop_front()
    }

    /// When to call [`Transfers::handle_timeout`] and poll again, and why. At once when events or
    /// messages wait.
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

    /// Time has passed: ends what waited too long. Then poll messages, bursts and events.
    pub fn handle_timeout(&mut self, now: Time) {
        let out = self.outgoing.iter().flatten().filter_map(|t| Some((t.id, t.expired(now)?)));
        let inc = self.incoming.iter().flatten().filter_map(|t| Some((t.id, t.expired(now)?)));
        for (id, why) in out.chain(inc).collect::<Vec<_>>() {
            self.fail(id, why);
        }
    }

    /// Transfers of this node that are not over: (sending, receiving).
    pub fn counts(&self) -> (usize, usize) {
        (self.out_ports.len(), self.in_ports.len())
    }

    /// How often it is worth asking for progress.
    pub const PROGRESS_EVERY: Duration = Duration::from_millis(100);
}
