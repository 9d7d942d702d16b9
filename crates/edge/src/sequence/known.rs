//! Which streams of which hosts are known.

use shoal_session::Table;
use shoal_wire::ip;

use crate::book::HostId;
use crate::sequence::pool::NONE;
use crate::sequence::stream::{RING_KEPT, RING_MAX, RING_MIN, Stream};

/// Streams that are known, in all and of one host. One that is forgotten begins anew with its next
/// packet, which costs order only if many others of it are on their way.
pub(crate) const STREAMS_MAX: usize = 1_024;
pub(crate) const STREAMS_HOST_MAX: u16 = 256;
/// Places of all rings; those that a ring begins with don't count. Of a stream that loses little
/// they are at most twice as many as packets wait. A host has a quarter at most, which is the
/// longest ring: one that leaves gaps takes at most that from others.
const PLACES_MAX: usize = 1 << 18;
const PLACES_HOST_MAX: usize = PLACES_MAX / 4;
const _: () = assert!(PLACES_HOST_MAX >= RING_MAX - RING_MIN);
/// Where more are in use, idle streams keep no ring.
const CROWDED: usize = PLACES_MAX / 2;
/// Rings are looked for that idle streams kept once so many of them may have: what that costs is
/// shared by so many.
const KEPT_MIN: usize = 16;
/// How many of the streams used longest ago are looked at for one that can be forgotten.
const LOOKS: usize = 4;

/// What is known of a host.
struct Host {
    /// Where its streams stand.
    streams: Box<[u16; ip::STREAMS]>,
    /// How many there are, and how many of its packets wait.
    count: u16,
    held: u32,
    /// Places in its rings, but for those that a ring begins with.
    places: usize,
    /// Of its streams, that which was used last, and that of which this is longest ago.
    newest: u16,
    oldest: u16,
}

/// See the module's documentation.
#[derive(Default)]
pub(crate) struct Known {
    hosts: Table<HostId, Host>,
    /// Those whose stream is 0 are free.
    pub(crate) streams: Vec<Stream>,
    free: Vec<u16>,
    /// The stream that was asked for last.
    last: Option<(HostId, u16, u16)>,
    /// Places in all rings, but for those that a ring begins with.
    places: usize,
    /// How often a stream kept its ring when it became idle, since such rings were looked for.
    kept: usize,
}

impl Known {
    /// Where a stream stands, which is made if need be: then so many packets before this one may
    /// still come. None where there is no room.
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
            // A host that has streams gives up its own.
            let from = if count > 0 { host } else { self.fullest(|host| host.count.into())? };
            self.evict(from)?;
        }
        let stream = Stream::new(host, number, missing);
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
            self.hosts.put(host, Host { streams, count: 0, held: 0, places: 0, newest, oldest });
        }
        let known = self.hosts.get_mut(host)?;
        known.streams[usize::from(number.stream)] = at;
        known.count += 1;
        Some(at)
    }

    /// The host that has most of something.
    fn fullest(&self, of: impl Fn(&Host) -> u32) -> Option<HostId> {
        let hosts = self.streams.iter().filter(|stream| stream.stream != 0).map(|s| s.host);
        hosts.max_by_key(|host| self.hosts.get(*host).map(&of))
    }

    /// The stream of which most packets wait, of the host of which most do.
    pub(crate) fn fullest_stream(&self) -> Option<u16> {
        let host = self.fullest(|host| host.held)?;
        let streams = (0..).zip(&self.streams).filter(|(_, stream)| stream.host == host);
        streams.max_by_key(|(_, stream)| stream.held).map(|(at, _)| at)
    }

    /// Forgets the idle stream of a host that was used longest ago.
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

    /// Forgets a host, of whose packets none lies in the pool any more.
    pub(crate) fn forget(&mut self, host: HostId) {
        while let Some(at) = self.hosts.get(host).map(|host| host.newest) {
            self.remove(at);
        }
    }

    /// Where the streams of a host stand.
    pub(crate) fn streams_of(&self, host: HostId) -> impl Iterator<Item = u16> {
        let first = self.hosts.get(host).map(|host| host.newest);
        let next = |at: &u16| Some(self.streams[usize::from(*at)].older).filter(|at| *at != NONE);
        core::iter::successors(first, next)
    }

    /// Where all streams stand.
    pub(crate) fn all(&self) -> impl Iterator<Item = u16> {
        let streams = (0..).zip(&self.streams);
        streams.filter(|(_, stream)| stream.stream != 0).map(|(at, _)| at)
    }

    /// Notes that packets of a stream wait, or don't wait any more.
    pub(crate) fn note_held(&mut self, at: u16, more: i32) {
        if let Some(host) = self.hosts.get_mut(self.streams[usize::from(at)].host) {
            host.held = host.held.saturating_add_signed(more);
        }
    }

    /// Gives the ring of a stream a place for a number; says whether there was room.
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

    /// Whether a stream's ring may have so many places more, once idle streams have given theirs.
    fn find_places(&mut self, at: u16, more: usize) -> bool {
        let host = self.streams[usize::from(at)].host;
        let of_host = |known: &Known| known.hosts.get(host).map_or(0, |host| host.places) + more;
        let is_crowded = self.places + more > CROWDED || of_host(self) > PLACES_HOST_MAX;
        if is_crowded && self.kept >= KEPT_MIN {
            self.drop_kept(at);
        }
        self.places + more <= PLACES_MAX && of_host(self) <= PLACES_HOST_MAX
    }

    /// Drops the rings that idle streams kept, but for that of one stream, which needs it.
    fn drop_kept(&mut self, but: u16) {
        self.kept = 0;
        for at in (0..self.streams.len() as u16).filter(|at| *at != but) {
            let stream = &self.streams[usize::from(at)];
            if stream.is_idle() && stream.ring.len() > RING_MIN {
                self.drop_ring(at);
            }
        }
    }

    /// Notes that a stream became idle. Its ring is taken away where that frees much, or where
    /// others need the places.
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

    /// Takes the ring of a stream away, which is idle.
    fn drop_ring(&mut self, at: u16) {
        let stream = &mut self.streams[usize::from(at)];
        let places = counted(core::mem::take(&mut stream.ring).len());
        self.places -= places;
        if let Some(host) = self.hosts.get_mut(stream.host) {
            host.places -= places;
        }
    }

    /// Takes a stream out of its host's list.
    fn unlink(&mut self, host: HostId, at: u16) {
        let Stream { newer, older, .. } = self.streams[usize::from(at)];
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

    /// Puts a stream into its host's list, as that which was used last.
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

/// How many places of a ring count.
fn counted(len: usize) -> usize {
    len.saturating_sub(RING_MIN)
}
