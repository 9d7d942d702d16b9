//! The known streams of all hosts.

use shoal_session::IdTable;
use shoal_wire::ip;

use crate::book::HostId;
use crate::sequence::pool::NONE;
use crate::sequence::stream::{PacketStream, RING_KEPT, RING_MAX, RING_MIN};

/// Largest numbers of known streams, in total and per host. A forgotten stream begins anew with its
/// next packet. This disturbs its order only if many of its packets are in flight.
pub(crate) const STREAMS_MAX: usize = 1_024;
pub(crate) const STREAMS_HOST_MAX: u16 = 256;
/// Largest number of places for waiting packets in all rings together, beyond those with which
/// each ring begins. Missing packets have places, too, and a ring's length is a power of two. A
/// stream that loses little has at most about twice as many places as waiting packets. One host may
/// use a quarter of all places, as many as the longest ring has. A host that leaves gaps on purpose
/// takes no more than that from the others.
const PLACES_MAX: usize = 1 << 18;
const PLACES_HOST_MAX: usize = PLACES_MAX / 4;
const _: () = assert!(PLACES_HOST_MAX >= RING_MAX - RING_MIN);
/// If more places are in use, idle streams keep no ring.
const CROWDED: usize = PLACES_MAX / 2;
/// Number of idle streams that may have kept a ring before such rings are searched for. The cost of
/// a search is thus shared by this many streams.
const KEPT_MIN: usize = 16;
/// Number of least recently used streams among which an idle one is searched for.
const LOOKS: usize = 4;

/// The streams of one host.
struct HostStreams {
    /// Index of each stream in [`StreamTable::streams`].
    streams: Box<[u16; ip::STREAMS]>,
    /// Number of known streams, and (`held`) of waiting packets.
    count: u16,
    held: u32,
    /// Places in its rings, beyond those with which each ring begins.
    places: usize,
    /// The most recently and the least recently used stream.
    newest: u16,
    oldest: u16,
}

/// The table of streams.
#[derive(Default)]
pub(crate) struct StreamTable {
    hosts: IdTable<HostId, HostStreams>,
    /// All slots for streams. A slot whose stream number is 0 is free.
    pub(crate) streams: Vec<PacketStream>,
    free: Vec<u16>,
    /// Result of the last lookup.
    last: Option<(HostId, u16, u16)>,
    /// Places in all rings, beyond those with which each ring begins.
    places: usize,
    /// Number of streams that kept their ring when they became idle, since the last search for such
    /// rings.
    kept: usize,
}

impl StreamTable {
    /// Index of a stream, which is created if it is unknown. Up to `missing` packets before this
    /// one may then still come. None if there is no room.
    #[inline]
    pub(crate) fn find(
        &mut self,
        host: HostId,
        number: ip::StreamNumber,
        missing: u64,
    ) -> Option<u16> {
        if let Some((last, stream, at)) = self.last
            && (last, stream) == (host, number.stream)
        {
            return Some(at);
        }
        self.look_up(host, number, missing)
    }

    fn look_up(&mut self, host: HostId, number: ip::StreamNumber, missing: u64) -> Option<u16> {
        let known = self.hosts.get(host);
        let at = match known.map_or(NONE, |host| host.streams[usize::from(number.stream)]) {
            NONE => self.add(host, number, missing)?,
            at => {
                self.unlink(host, at);
                at
            }
        };
        self.link(host, at);
        self.last = Some((host, number.stream, at));
        Some(at)
    }

    fn add(&mut self, host: HostId, number: ip::StreamNumber, missing: u64) -> Option<u16> {
        let count = self.hosts.get(host).map_or(0, |host| host.count);
        let is_full = self.free.is_empty() && self.streams.len() == STREAMS_MAX;
        if count == STREAMS_HOST_MAX || is_full {
            // A host with streams loses one of its own.
            let from = if count > 0 { host } else { self.fullest(|host| host.count.into())? };
            self.evict(from)?;
        }
        let stream = PacketStream::new(host, number, missing);
        let at = match self.free.pop() {
            Some(at) => {
                self.streams[usize::from(at)] = stream;
                at
            }
            None => {
                self.streams.push(stream);
                (self.streams.len() - 1) as u16
            }
        };
        if self.hosts.get(host).is_none() {
            let streams = Box::new([NONE; ip::STREAMS]);
            let (newest, oldest) = (NONE, NONE);
            self.hosts
                .put(host, HostStreams { streams, count: 0, held: 0, places: 0, newest, oldest });
        }
        let known = self.hosts.get_mut(host)?;
        known.streams[usize::from(number.stream)] = at;
        known.count += 1;
        Some(at)
    }

    /// The host with the largest value of `of`.
    fn fullest(&self, of: impl Fn(&HostStreams) -> u32) -> Option<HostId> {
        let hosts = self.streams.iter().filter(|stream| stream.stream != 0).map(|s| s.host);
        hosts.max_by_key(|host| self.hosts.get(*host).map(&of))
    }

    /// The stream with most waiting packets, of the host with most waiting packets.
    pub(crate) fn fullest_stream(&self) -> Option<u16> {
        let host = self.fullest(|host| host.held)?;
        let streams = (0..).zip(&self.streams).filter(|(_, stream)| stream.host == host);
        streams.max_by_key(|(_, stream)| stream.held).map(|(at, _)| at)
    }

    /// Removes the least recently used idle stream of a host.
    fn evict(&mut self, host: HostId) -> Option<()> {
        let mut at = self.hosts.get(host)?.oldest;
        for _ in 0..LOOKS {
            let stream = self.streams.get(usize::from(at))?;
            if stream.is_idle() {
                self.remove(at);
                return Some(());
            }
            at = stream.newer;
        }
        None
    }

    fn remove(&mut self, at: u16) {
        self.drop_ring(at);
        let stream = &mut self.streams[usize::from(at)];
        let (host, number) = (stream.host, core::mem::take(&mut stream.stream));
        self.unlink(host, at);
        self.last = None;
        self.free.push(at);
        let Some(known) = self.hosts.get_mut(host) else { return };
        known.streams[usize::from(number)] = NONE;
        known.count -= 1;
        if known.count == 0 {
            self.hosts.remove(host);
        }
    }

    /// Removes a host. None of its packets may be in the pool.
    pub(crate) fn forget(&mut self, host: HostId) {
        while let Some(at) = self.hosts.get(host).map(|host| host.newest) {
            self.remove(at);
        }
    }

    /// Indices of a host's streams.
    pub(crate) fn streams_of(&self, host: HostId) -> impl Iterator<Item = u16> {
        let first = self.hosts.get(host).map(|host| host.newest);
        let next = |at: &u16| Some(self.streams[usize::from(*at)].older).filter(|at| *at != NONE);
        core::iter::successors(first, next)
    }

    /// Indices of all streams.
    pub(crate) fn all(&self) -> impl Iterator<Item = u16> {
        let streams = (0..).zip(&self.streams);
        streams.filter(|(_, stream)| stream.stream != 0).map(|(at, _)| at)
    }

    /// Changes the number of a host's waiting packets by `more`.
    pub(crate) fn note_held(&mut self, at: u16, more: i32) {
        if let Some(host) = self.hosts.get_mut(self.streams[usize::from(at)].host) {
            host.held = host.held.saturating_add_signed(more);
        }
    }

    /// Makes a place for a number in a stream's ring. Returns false if there is no room.
    pub(crate) fn make_place(&mut self, at: u16, number: u64) -> bool {
        let stream = &self.streams[usize::from(at)];
        let need = ((number - stream.base()) as usize + 1).next_power_of_two().max(RING_MIN);
        let more = counted(need) - counted(stream.ring.len());
        if need > RING_MAX || more > 0 && !self.find_places(at, more) {
            return false;
        }
        let stream = &mut self.streams[usize::from(at)];
        stream.grow(need);
        self.places += more;
        if let Some(host) = self.hosts.get_mut(stream.host) {
            host.places += more;
        }
        true
    }

    /// True if a stream's ring may grow by `more` places, after idle streams have lost theirs.
    fn find_places(&mut self, at: u16, more: usize) -> bool {
        let host = self.streams[usize::from(at)].host;
        let of_host =
            |known: &StreamTable| known.hosts.get(host).map_or(0, |host| host.places) + more;
        let is_crowded = self.places + more > CROWDED || of_host(self) > PLACES_HOST_MAX;
        if is_crowded && self.kept >= KEPT_MIN {
            self.drop_kept(at);
        }
        self.places + more <= PLACES_MAX && of_host(self) <= PLACES_HOST_MAX
    }

    /// Drops the rings of idle streams, except that of stream `but`, which needs it.
    fn drop_kept(&mut self, but: u16) {
        self.kept = 0;
        for at in (0..self.streams.len() as u16).filter(|at| *at != but) {
            let stream = &self.streams[usize::from(at)];
            if stream.is_idle() && stream.ring.len() > RING_MIN {
                self.drop_ring(at);
            }
        }
    }

    /// Notes that a stream became idle. Drops its ring if it is large or if places are scarce.
    pub(crate) fn note_idle(&mut self, at: u16) {
        let stream = &self.streams[usize::from(at)];
        let (host, len) = (self.hosts.get(stream.host), stream.ring.len());
        let is_crowded =
            self.places > CROWDED || host.is_some_and(|host| host.places > PLACES_HOST_MAX / 2);
        if len > RING_KEPT || len > RING_MIN && is_crowded {
            self.drop_ring(at);
        } else if len > RING_MIN {
            self.kept += 1;
        }
    }

    /// Drops the ring of an idle stream.
    fn drop_ring(&mut self, at: u16) {
        let stream = &mut self.streams[usize::from(at)];
        let places = counted(core::mem::take(&mut stream.ring).len());
        self.places -= places;
        if let Some(host) = self.hosts.get_mut(stream.host) {
            host.places -= places;
        }
    }

    /// Removes a stream from its host's list.
    fn unlink(&mut self, host: HostId, at: u16) {
        let PacketStream { newer, older, .. } = self.streams[usize::from(at)];
        let Some(host) = self.hosts.get_mut(host) else { return };
        match self.streams.get_mut(usize::from(newer)) {
            Some(newer) => newer.older = older,
            None => host.newest = older,
        }
        match self.streams.get_mut(usize::from(older)) {
            Some(older) => older.newer = newer,
            None => host.oldest = newer,
        }
    }

    /// Puts a stream into its host's list, as the most recently used one.
    fn link(&mut self, host: HostId, at: u16) {
        let Some(host) = self.hosts.get_mut(host) else { return };
        let before = core::mem::replace(&mut host.newest, at);
        match self.streams.get_mut(usize::from(before)) {
            Some(before) => before.newer = at,
            None => host.oldest = at,
        }
        let stream = &mut self.streams[usize::from(at)];
        (stream.newer, stream.older) = (NONE, before);
    }
}

/// Places of a ring beyond those with which each ring begins.
fn counted(len: usize) -> usize {
    len.saturating_sub(RING_MIN)
}
