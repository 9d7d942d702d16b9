//! What other workers than the first do of an edge: programs' packets, sealed and opened on the
//! lanes that they hold.
//!
//! ```text
//! packets -> Branch: of a live session, or a direct link? -> cells -> out
//! cells for this host -> Branch: lane of its own? -> packets
//!                          |-> another worker's lane: to that one
//!                          |-> a handshake, nobody knows: to the first one
//!                          |-> opened, but no packet: to the first one
//! ```
//!
//! The first worker runs the [`Edge`], makes and ends sessions, and knows who may be spoken with:
//! it tells the others of keys and hosts, and they tell it what they used.

use std::collections::BTreeMap;
use std::sync::Arc;

use shoal_crypto::{Ciphers, Standard};
use shoal_session::{Opened, Opening, PeerId, SessionShard};
use shoal_wire::{
    Address, DropReason, EdgeKind, Mark, RoutedHeader, SizeClass, Time, TrafficClass, link,
};

use crate::arrive::{is_direct, source};
use crate::cells::{CELL_AT, PLAIN_AT};
use crate::edge::{Config, Edge, HostId, Out};
use crate::leave::unseal;
use crate::packets::{Arrival, Building, Run, lane_of};

/// What the first worker tells another.
pub enum Order<A> {
    /// Of sessions.
    Keys(shoal_session::Order<A>),
    /// Where the hosts are, from now on.
    Hosts(Arc<Book>),
}

/// What a worker tells the first one, once per batch.
#[derive(Clone, Copy, Debug)]
pub enum Note {
    /// Of a session.
    Session(shoal_session::Note),
    /// Packets went to a host, or came from it.
    Used {
        /// Which host.
        host: HostId,
        /// Over a link with it, past the routers.
        direct: bool,
    },
}

/// Addresses of the hosts at one moment, never changed.
#[derive(Debug, Default)]
pub struct Book {
    by_address: BTreeMap<Address, HostId>,
    /// By number.
    addresses: Vec<Option<Address>>,
}

/// Takes cells that a branch can't finish. Each says whether it was taken; what was not is dropped.
pub trait Others {
    /// A cell for this host as it came over the link with `from`, for `worker`: it opens the seal,
    /// or finds out what it is.
    fn cell(&mut self, worker: u8, from: shoal_wire::LinkId, frame: &[u8]) -> bool;
    /// A cell that `host` sealed and that opened, for the first worker.
    fn plain(&mut self, host: HostId, frame: &[u8]) -> bool;
}

/// See the module's documentation. `C` is what it seals with.
pub struct Branch<C: Ciphers = Standard> {
    shard: SessionShard<C>,
    me: Address,
    book: Arc<Book>,
    building: Building,
    arrived: Vec<Arrival>,
    /// Hosts that were used since it was told; where there are to be no direct links, nobody asks.
    used: Vec<(HostId, bool)>,
    is_asked: bool,
    offsets: Vec<u32>,
    payloads: Vec<u32>,
    opened: Vec<Opening>,
    drops: Vec<(DropReason, u64)>,
}

impl Book {
    fn address(&self, host: HostId) -> Option<Address> {
        self.addresses.get(host.0 as usize).copied().flatten()
    }
}

impl<C: Ciphers> Branch<C> {
    /// Worker `worker`, from 1 on, of the edge that is made of `config`.
    pub fn new(config: &Config, worker: u8) -> Branch<C> {
        Branch {
            shard: SessionShard::new(&config.session, worker),
            me: config.address,
            book: Arc::default(),
            building: Building::default(),
            arrived: Vec::new(),
            used: Vec::new(),
            is_asked: config.direct.is_some(),
            offsets: Vec::new(),
            payloads: Vec::new(),
            opened: Vec::new(),
            drops: Vec::new(),
        }
    }

    /// Takes in an order; they must come in the order in which they were given.
    pub fn handle_order(&mut self, order: Order<C::Aead>) {
        match order {
            Order::Keys(order) => self.shard.handle_order(order),
            Order::Hosts(book) => self.book = book,
        }
    }

    /// Where a host is.
    pub fn address_of(&self, host: HostId) -> Option<Address> {
        self.book.address(host)
    }

    /// Whether this worker can send to the host: there is a direct link, or a session with a lane
    /// for it. What it can't send is for the first worker.
    pub fn reaches(&self, now: Time, host: HostId, out: &impl Out) -> bool {
        let sealed = || !self.shard.seal_lanes(now, PeerId(host.0)).is_empty();
        self.book.address(host).is_some_and(|to| out.may_go_direct(to) || sealed())
    }

    /// Sends one IP packet, as [`Edge::send_packet`] does, to a host that it reaches. Call
    /// [`Branch::flush`] after the last one.
    ///
    /// Drops are counted: `ip_too_big`, `no_session`.
    pub fn send_packet(
        &mut self,
        now: Time,
        (host, flow): (HostId, u32),
        len: usize,
        out: &mut impl Out,
        write: impl FnOnce(&mut [u8]),
    ) {
        let Some(class) = SizeClass::for_edge(len) else {
            return self.count(DropReason::IpTooBig, 1);
        };
        if self.building.goes_on(host, class, flow) {
            return self.building.push(flow, write);
        }
        let lanes = self.shard.seal_lanes(now, PeerId(host.0));
        let run = Run { host, class, lane: lane_of(flow, lanes) };
        if !self.building.fits(&run) {
            self.flush(now, out);
        }
        self.building.add(run, flow, write);
    }

    /// Seals and sends the cells under construction.
    pub fn flush(&mut self, now: Time, out: &mut impl Out) {
        let Some((mut buf, run, count)) = self.building.take() else { return };
        let class = run.class;
        if let Some(to) = self.book.address(run.host) {
            let frames = &mut buf[..count * class.frame_len()];
            let built = (&mut *frames, class, count);
            let (offsets, payloads) = (&mut self.offsets, &mut self.payloads);
            self.building.address(built, (to, self.me), offsets, payloads);
            if let Err(reason) = self.send_run(now, to, run, frames, out) {
                self.count(reason, count as u64);
            }
        } else {
            self.count(DropReason::NoEndpoint, count as u64);
        }
        self.building.give_back(buf);
    }

    fn send_run(
        &mut self,
        now: Time,
        to: Address,
        run: Run,
        buf: &mut [u8],
        out: &mut impl Out,
    ) -> Result<(), DropReason> {
        let Run { host, class, lane } = run;
        let direct = out.may_go_direct(to);
        if direct {
            unseal(buf, &self.payloads, class.cell_len(), &self.building.flows);
            out.direct(now, buf, &self.offsets, class.frame_len());
        } else {
            let lanes = self.shard.seal_lanes(now, PeerId(host.0));
            // Keys may have changed since it was chosen.
            let lane = if lanes.contains(&lane) { lane } else { lanes.start };
            let cell_len = class.cell_len();
            self.shard.seal_batch(now, PeerId(host.0), lane, buf, &self.payloads, cell_len)?;
            out.cells(now, buf, &self.offsets, class.frame_len());
        }
        self.note_used(host, direct);
        Ok(())
    }

    fn note_used(&mut self, host: HostId, direct: bool) {
        if self.is_asked && !self.used.contains(&(host, direct)) {
            self.used.push((host, direct));
        }
    }

    /// The IP packets among the cells of the last [`Branch::handle_cells`], in their order.
    pub fn arrivals(&self) -> &[Arrival] {
        &self.arrived
    }

    /// Takes in cells for this host, as [`Edge::handle_cells`] does; each came over the link with
    /// the neighbour of the same place in `from`. `by` is the worker that handed them over, if one
    /// did. Returns how many of them are not the first worker's now.
    pub fn handle_cells(
        &mut self,
        now: Time,
        buf: &mut [u8],
        (offsets, from, frame_len): (&[u32], &[shoal_wire::LinkId], usize),
        by: Option<u8>,
        others: &mut impl Others,
    ) -> u64 {
        self.arrived.clear();
        let Some(class) = SizeClass::of_frame(frame_len) else { return 0 };
        self.payloads.clear();
        let sealed = offsets.iter().filter(|&&at| !is_direct(buf, at));
        self.payloads.extend(sealed.map(|&at| at + CELL_AT as u32));
        let mut opened = core::mem::take(&mut self.opened);
        opened.clear();
        self.shard.open_batch(now, buf, &self.payloads, class.cell_len(), &mut opened);
        let mut openings = opened.drain(..);
        let mut to_first = 0;
        for (&at, &from) in offsets.iter().zip(from) {
            let at = at as usize;
            let whole = at..at + frame_len;
            let to = if is_direct(buf, at as u32) {
                self.take_direct(buf, at, class)
            } else {
                match openings.next() {
                    Some(Opening::Data(opened)) => self.take(opened, buf, at, class),
                    Some(Opening::Worker(worker)) => Ok(Next::Worker(worker)),
                    Some(Opening::Handshake) if by != Some(0) => Ok(Next::Worker(0)),
                    Some(Opening::Handshake) => Err(DropReason::UnknownIndex),
                    Some(Opening::Drop(reason)) => Err(reason),
                    None => continue,
                }
            };
            let done = match to {
                Ok(Next::Done) => Ok(()),
                Ok(Next::Worker(worker)) => {
                    let taken = others.cell(worker, from, &buf[whole]);
                    to_first += u64::from(taken && worker == 0);
                    taken.then_some(()).ok_or(DropReason::OtherWorker)
                }
                Ok(Next::Opened(host)) => {
                    let taken = others.plain(host, &buf[whole]);
                    taken.then_some(()).ok_or(DropReason::OtherWorker)
                }
                Err(reason) => Err(reason),
            };
            if let Err(reason) = done {
                self.count(reason, 1);
            }
        }
        drop(openings);
        self.opened = opened;
        offsets.len() as u64 - to_first
    }

    /// Takes a cell that opened.
    fn take(
        &mut self,
        opened: Opened,
        buf: &[u8],
        at: usize,
        class: SizeClass,
    ) -> Result<Next, DropReason> {
        let host = HostId(opened.peer.0);
        // As in the edge: no host speaks in another's name.
        if Some(source(&buf[at..])?) != self.book.address(host) {
            return Err(DropReason::BadSource);
        }
        if buf[at + PLAIN_AT] != EdgeKind::Ip as u8 {
            return Ok(Next::Opened(host));
        }
        self.arrive(host, buf, at, class);
        Ok(Next::Done)
    }

    /// Takes a cell that came over the link with its host: bulk that is a packet.
    fn take_direct(&mut self, buf: &[u8], at: usize, class: SizeClass) -> Result<Next, DropReason> {
        let header = RoutedHeader::parse(&buf[at + link::ROUTED_AT..])?;
        let bulk = header.class() == TrafficClass::Bulk;
        if !bulk || buf[at + PLAIN_AT] != EdgeKind::Ip as u8 {
            return Ok(Next::Worker(0));
        }
        let host = self.book.by_address.get(&header.src()).copied();
        let host = host.ok_or(DropReason::BadSource)?;
        self.note_used(host, true);
        self.arrive(host, buf, at, class);
        Ok(Next::Done)
    }

    fn arrive(&mut self, host: HostId, buf: &[u8], at: usize, class: SizeClass) {
        let congested = buf[at + link::ROUTED_AT + RoutedHeader::MARK_AT] == Mark::Congested as u8;
        let (at, len) = ((at + PLAIN_AT) as u32, class.edge_len() as u32);
        self.arrived.push(Arrival { host, at, len, congested });
    }

    /// Tells what was used since the last time. What `tell` refuses is kept and told with what
    /// comes later. Says whether everything was told.
    pub fn tell(&mut self, mut tell: impl FnMut(Note) -> bool) -> bool {
        let mut all = true;
        self.shard.tell(|note| {
            let told = tell(Note::Session(note));
            all &= told;
            told
        });
        self.used.retain(|&(host, direct)| !tell(Note::Used { host, direct }));
        all && self.used.is_empty()
    }

    /// Drops counted since the last call.
    pub fn take_drops(&mut self) -> impl Iterator<Item = (DropReason, u64)> + '_ {
        self.drops.drain(..)
    }

    fn count(&mut self, reason: DropReason, more: u64) {
        match self.drops.iter_mut().find(|(known, _)| *known == reason) {
            Some((_, n)) => *n += more,
            None => self.drops.push((reason, more)),
        }
    }
}

/// What becomes of a cell.
enum Next {
    Done,
    /// This worker is to take it as it is.
    Worker(u8),
    /// It opened, and is for the first worker.
    Opened(HostId),
}

impl<C: Ciphers> Edge<C> {
    /// What worker `number`, from 1 on, runs.
    pub fn branch(&self, number: u8) -> Branch<C> {
        Branch::new(&self.config, number)
    }

    /// The next thing that another worker must know, and which worker. None may get lost or
    /// overtake another; to be taken after every call. With one worker there is none.
    pub fn poll_order(&mut self) -> Option<(u8, Order<C::Aead>)> {
        let workers = self.config.session.workers;
        if workers <= 1 {
            return None;
        }
        if core::mem::take(&mut self.book_stale) {
            let mut book = Book { by_address: self.hosts.clone(), addresses: Vec::new() };
            for (&address, host) in &self.hosts {
                let at = host.0 as usize;
                book.addresses.resize(book.addresses.len().max(at + 1), None);
                book.addresses[at] = Some(address);
            }
            let book = Arc::new(book);
            let order = |worker| (worker, Order::Hosts(Arc::clone(&book)));
            self.orders.extend((1..workers).map(order));
        }
        // Hosts first: a number that was another's has its new address before its new keys.
        let keys = |(worker, order)| (worker, Order::Keys(order));
        self.orders.pop_front().or_else(|| self.sessions.poll_order().map(keys))
    }

    /// Takes in what another worker tells; call [`Edge::drive`] afterwards.
    pub fn handle_note(&mut self, now: Time, note: &Note) {
        match *note {
            Note::Session(note) => {
                if let Some(peer) = self.sessions.heard(&note) {
                    self.note_heard(now, HostId(peer.0));
                }
                self.sessions.handle_note(now, &note);
            }
            Note::Used { host, direct: false } => self.note_wanted(now, host),
            Note::Used { host, direct: true } => {
                if let Some(direct) = &mut self.direct {
                    direct.used(now, host);
                }
            }
        }
    }
}
