//! Wires between nodes: rate, delay, loss, duplication, corruption, reordering, cuts, and an
//! attacker who records frames and sends them again.
//!
//! Frames that reach a node in the same tick form one batch, as from a socket. The sender writes a
//! batch once, and the receiver reads it in place.

mod shifts;

use core::time::Duration;
use std::collections::VecDeque;
use std::net::SocketAddr;
use std::rc::Rc;

use shoal_crypto::Rng;
use shoal_relay::{FrameSink, ReceivedRun, SendError, SendOutcome, SendPath};
use shoal_session::Endpoints;
use shoal_wire::{Level, LinkId, SizeClass, Time};

use crate::check::cover::CoverChecker;
use crate::check::plaintext::Payloads;
use crate::check::{Violation, frames};
use crate::ciphers::{self, mix};
use crate::nat::{NatDevices, NatRefusal, NextStop};
use crate::node::NetworkInputs;
use crate::options::{SimulationOptions, WireFaults, seed_bytes};
use crate::outcome::{FrameFate, SentFrames};
use crate::plan::{NetworkPlan, WireDirection};
use crate::plant::InjectedFault;
use crate::reach;

/// Arrival times are rounded up to this many nanoseconds, so that frames arrive in batches as from
/// a socket.
const TICK_NS: u64 = 20_000;
/// Longest time for which the attacker stores a frame.
const REPLAY_WITHIN: Duration = Duration::from_secs(3);
/// Largest batch in bytes: as much as a shell takes from its socket in one turn.
const BATCH_MAX: usize = 256 << 10;
/// Longest frame on a wire that carries no full frames.
const NARROW: usize = SizeClass::Medium.frame_len();
/// Number of frames after which a planted fault strikes a frame that is not small.
const PLANT_AFTER: u64 = 400;

/// Frames that arrive together.
#[derive(Default)]
pub(crate) struct WireBatch {
    pub(crate) at: Time,
    pub(crate) to: usize,
    /// Run of the receiving node in which the attacker recorded the frame. `None` for frames that
    /// are not replayed.
    pub(crate) replayed_in: Option<u32>,
    pub(crate) bytes: Vec<u8>,
    pub(crate) incoming: Vec<ReceivedRun>,
    /// For each run in `incoming`, the outer side of the translator that it must pass, if there is
    /// one.
    doors: Vec<Option<(usize, u16)>>,
}

impl WireBatch {
    /// Number of frames.
    pub(crate) fn frames(&self) -> u64 {
        self.incoming.iter().map(|run| u64::from(run.len / run.stride.max(1))).sum()
    }
}

struct SimulatedWire {
    ends: (usize, usize),
    /// Number of present cuts per direction: from the first end, from the second.
    cut: [u32; 2],
    /// Number of reasons to carry no full frames, per direction.
    narrow: [u32; 2],
    /// Time at which the last frame of each direction has left.
    free: [Time; 2],
    faults: [WireFaults; 2],
    slower: Duration,
    /// True if the wire is a direct link whose frames may be unencrypted.
    readable: bool,
}

/// Path of a frame. `from` is the source that the receiver sees. `local` is the destination if it
/// is a shifting address. `door` is the outer side of a translator on the path.
#[derive(Clone, Copy)]
struct FramePath {
    far: usize,
    wire: usize,
    direction: usize,
    from: SocketAddr,
    local: Option<SocketAddr>,
    door: Option<(usize, u16)>,
}

/// Hash of all events in their order. Equal runs have equal hashes.
pub(crate) struct TraceHash(u64, u64);

impl TraceHash {
    pub(crate) fn add(&mut self, word: u64) {
        self.0 = mix(self.0 ^ word);
        self.1 = self.1.rotate_left(23).wrapping_add(self.0);
    }

    pub(crate) fn add_text(&mut self, text: &str) {
        text.bytes().for_each(|byte| self.add(byte.into()));
    }

    pub(crate) fn hex(&self) -> String {
        format!("{:016x}{:016x}", self.0, self.1)
    }
}

/// All wires and the frames on them.
pub(crate) struct Wires {
    wires: Vec<SimulatedWire>,
    /// For each node, its neighbours and the wires to them, sorted.
    beside: Vec<Vec<(u32, u32)>>,
    rng: Rng,
    replay_ppm: u32,
    payloads: Payloads,
    /// Batches on the wires; empty ones are free.
    pub(crate) batches: Vec<WireBatch>,
    free: Vec<u32>,
    /// Batches of each node that may still grow.
    open: Vec<VecDeque<u32>>,
    /// Batches that the world has not scheduled yet.
    pub(crate) fresh: Vec<u32>,
    pub(crate) sent: u64,
    /// Frames put on wires, including copies and replays.
    pub(crate) put: u64,
    pub(crate) lost: u64,
    /// Frames that each node's sink took.
    pub(crate) taken: Vec<u64>,
    pub(crate) covers: CoverChecker,
    /// Set if addresses shift.
    pub(crate) shifts: Option<shifts::ShiftWires>,
    pub(crate) nats: NatDevices,
    pub(crate) broken: Option<Violation>,
    pub(crate) packets: VecDeque<SentFrames>,
    packets_max: usize,
    plant: Option<InjectedFault>,
    /// True if the planted fault has struck.
    struck: bool,
    /// Time and node of the present sender.
    now: Time,
    node: usize,
    pub(crate) trace: TraceHash,
}

/// Source address of the attacker.
pub(crate) fn attacker() -> SocketAddr {
    SocketAddr::from(([203, 0, 113, 7], 666))
}

/// The translators with the nodes behind them. Routers are in the public network.
pub(crate) fn nats(options: &SimulationOptions, plan: &NetworkPlan) -> NatDevices {
    let hosts = (plan.routers..plan.nodes.len()).map(|node| node - plan.routers);
    let behind = hosts.map(|host| options.behind.get(host).copied().flatten());
    let behind: Vec<_> = core::iter::repeat_n(None, plan.routers).chain(behind).collect();
    NatDevices::new(&options.translators, &behind, seed_bytes(options.seed, "translators"))
}

/// The given faults, reduced by up to `asymmetry_percent`.
fn better(faults: &WireFaults, rng: &mut Rng) -> WireFaults {
    let percent = rng.below(u64::from(faults.asymmetry_percent) + 1).min(99);
    WireFaults {
        loss_ppm: (u64::from(faults.loss_ppm) * (100 - percent) / 100) as u32,
        delay_us: faults.delay_us * (100 - percent) / 100,
        rate_bps: faults.rate_bps + faults.rate_bps * percent / 25,
        ..*faults
    }
}

/// Adds or removes one reason per affected direction.
fn hold(held: &mut [u32; 2], direction: WireDirection, more: bool) {
    let (forth, back) = (direction != WireDirection::Back, direction != WireDirection::Forth);
    for (count, _) in held.iter_mut().zip([forth, back]).filter(|held| held.1) {
        *count = if more { *count + 1 } else { count.saturating_sub(1) };
    }
}

impl Wires {
    pub(crate) fn new(makings: &Rc<NetworkInputs>) -> Wires {
        let (options, plan) = (&makings.options, &makings.plan);
        let mut rng = Rng::new(seed_bytes(options.seed, "wires"));
        let mut beside = vec![Vec::new(); plan.nodes.len()];
        for (number, &(a, b)) in plan.wires.iter().enumerate() {
            beside[a].push((b as u32, number as u32));
            beside[b].push((a as u32, number as u32));
        }
        beside.iter_mut().for_each(|list: &mut Vec<_>| list.sort_unstable());
        let is_host = |node: usize| node >= plan.routers;
        let mut wire = |&ends: &(usize, usize)| {
            let mut faults = [options.faults, better(&options.faults, &mut rng)];
            if rng.below(2) == 0 {
                faults.swap(0, 1);
            }
            let readable = is_host(ends.0)
                && is_host(ends.1)
                && reach::level(options, ends.0, ends.1) != Level::Encrypt;
            let slower = Duration::ZERO;
            SimulatedWire {
                ends,
                cut: [0; 2],
                narrow: [0; 2],
                free: [Time::ZERO; 2],
                faults,
                slower,
                readable,
            }
        };
        Wires {
            wires: plan.wires.iter().map(&mut wire).collect(),
            beside,
            replay_ppm: options.faults.replay_ppm,
            payloads: Payloads::new(plan.files.iter().map(|file| &file.content)),
            batches: Vec::new(),
            free: Vec::new(),
            open: vec![VecDeque::new(); plan.nodes.len()],
            fresh: Vec::new(),
            sent: 0,
            put: 0,
            lost: 0,
            taken: vec![0; plan.nodes.len()],
            covers: CoverChecker::new(options.tier()),
            shifts: (!options.shift_s.is_empty()).then(|| shifts::ShiftWires::new(makings)),
            nats: nats(options, plan),
            broken: None,
            packets: VecDeque::new(),
            packets_max: options.log_len * 2,
            plant: options.plant,
            struck: false,
            now: Time::ZERO,
            node: 0,
            trace: TraceHash(options.seed, 0),
            rng,
        }
    }

    /// Sets the sender and time of the following frames.
    pub(crate) fn sender(&mut self, now: Time, node: usize) {
        (self.now, self.node) = (now, node);
        ciphers::set_node(node);
    }

    pub(crate) fn set_cut(&mut self, cuts: &[(usize, WireDirection)], cut: bool) {
        for &(wire, direction) in cuts {
            hold(&mut self.wires[wire].cut, direction, cut);
        }
    }

    pub(crate) fn set_narrow(&mut self, wire: usize, ways: WireDirection, narrow: bool) {
        hold(&mut self.wires[wire].narrow, ways, narrow);
    }

    pub(crate) fn set_slower(&mut self, wire: usize, slower: Duration) {
        self.wires[wire].slower = slower;
    }

    /// Repairs all wires: from now on they only delay frames and limit the rate.
    pub(crate) fn make_perfect(&mut self) {
        self.replay_ppm = 0;
        self.shifts.iter_mut().for_each(shifts::ShiftWires::end_filters);
        for wire in &mut self.wires {
            (wire.cut, wire.narrow, wire.slower) = ([0; 2], [0; 2], Duration::ZERO);
            for faults in &mut wire.faults {
                let WireFaults { delay_us, rate_bps, queue_bytes, .. } = *faults;
                *faults = WireFaults { delay_us, rate_bps, queue_bytes, ..WireFaults::NONE };
            }
        }
    }

    fn happens(&mut self, ppm: u32) -> bool {
        ppm > 0 && self.rng.below(1_000_000) < u64::from(ppm)
    }

    /// Path of a frame to an endpoint, if a wire leads there. Translators on the sender's side have
    /// been applied.
    fn way_to(&mut self, ends: &Endpoints) -> Option<FramePath> {
        let to = ends.remote;
        if to.is_ipv6() {
            return self.way_between(ends);
        }
        let (from, next) = match self.nats.leave(self.now, self.node, to) {
            Ok(way) => way,
            Err(why) => {
                self.nats.count(why, 1);
                return None;
            }
        };
        let (far, door) = match next {
            NextStop::Node(far) => (far, None),
            // The node behind the mapping decides which wire is used; the frame is filtered on
            // arrival.
            NextStop::Door(door, port) => {
                let Some(far) = self.nats.owner(self.now, door, port) else {
                    self.nats.count(NatRefusal::Unmapped, 1);
                    return None;
                };
                (far, Some((door, port)))
            }
        };
        let (wire, direction) = self.wire_to(far)?;
        Some(FramePath { far, wire, direction, from, local: None, door })
    }

    /// Wire to a node, and its direction.
    fn wire_to(&self, far: usize) -> Option<(usize, usize)> {
        let beside = &self.beside[self.node];
        let at = beside.binary_search_by_key(&(far as u32), |entry| entry.0).ok()?;
        let wire = beside[at].1 as usize;
        Some((wire, usize::from(self.wires[wire].ends.0 != self.node)))
    }

    /// True if a wire carries all frames of its link without additional delay.
    pub(crate) fn is_whole(&self, wire: usize) -> bool {
        let known = &self.wires[wire];
        let open = known.cut == [0; 2] && known.narrow == [0; 2] && !self.is_closed(wire);
        open && self.wires[wire].slower.is_zero()
    }

    fn check(&mut self, to: SocketAddr, frame: &[u8]) {
        let seen = match frames::check(frame, &self.payloads) {
            Ok(()) if to == attacker() => "an answer to a replay of the attacker".to_string(),
            Ok(()) => return,
            Err(seen) => seen,
        };
        let seen = format!("node {} to {to}: {seen}", self.node);
        self.broken.get_or_insert(Violation { rule: frames::RULE, at_ns: self.now.0, seen });
    }

    /// Records a frame for the diagram of a failure.
    fn note(&mut self, to: Option<usize>, len: usize, fate: FrameFate) {
        if self.packets_max == 0 {
            return;
        }
        let (at_ns, from) = (self.now.0, self.node);
        if let Some(last) = self.packets.back_mut()
            && (last.at_ns, last.from, last.to, last.len) == (at_ns, from, to, len)
            && last.fate == fate
        {
            last.count += 1;
            return;
        }
        if self.packets.len() >= self.packets_max {
            self.packets.pop_front();
        }
        self.packets.push_back(SentFrames { at_ns, from, to, len, count: 1, fate });
    }

    /// A batch for `to` at `at` with room for `len` bytes.
    fn batch(&mut self, at: Time, to: usize, len: usize) -> &mut WireBatch {
        let open = &self.open[to];
        let found = open.iter().rev().find(|&&number| {
            let batch = &self.batches[number as usize];
            batch.at == at && batch.bytes.len() + len <= BATCH_MAX
        });
        let number = match found {
            Some(&number) => number,
            None => {
                let number = self.new_batch(at, to, None);
                self.open[to].push_back(number);
                number
            }
        };
        &mut self.batches[number as usize]
    }

    fn new_batch(&mut self, at: Time, to: usize, replayed_in: Option<u32>) -> u32 {
        let number = self.free.pop().unwrap_or_else(|| {
            self.batches.push(WireBatch::default());
            (self.batches.len() - 1) as u32
        });
        let batch = &mut self.batches[number as usize];
        (batch.at, batch.to, batch.replayed_in) = (at, to, replayed_in);
        self.fresh.push(number);
        number
    }

    /// Frames in flight.
    pub(crate) fn flying(&self) -> u64 {
        self.batches.iter().map(WireBatch::frames).sum()
    }

    /// Takes a batch off the wires. Return it with `recycle`.
    pub(crate) fn take_batch(&mut self, number: u32) -> WireBatch {
        let batch = core::mem::take(&mut self.batches[number as usize]);
        if batch.replayed_in.is_none() {
            self.open[batch.to].retain(|&open| open != number);
        }
        batch
    }

    /// Returns a batch's memory.
    pub(crate) fn recycle(&mut self, number: u32, mut batch: WireBatch) {
        batch.bytes.clear();
        batch.incoming.clear();
        batch.doors.clear();
        self.batches[number as usize] = batch;
        self.free.push(number);
    }

    /// Puts a frame on its wire, which has room for it.
    fn put(&mut self, to: FramePath, leaves: Time, frame: &[u8]) {
        let FramePath { far, wire, direction: way, .. } = to;
        let faults = self.wires[wire].faults[way];
        self.sent += 1;
        self.put += 1;
        let too_long = self.wires[wire].narrow[way] > 0 && frame.len() > NARROW;
        let blocked = self.wires[wire].cut[way] > 0 || too_long || self.is_filtered(&to);
        if blocked || self.happens(faults.loss_ppm) {
            self.lost += 1;
            return self.note(Some(far), frame.len(), FrameFate::Lost);
        }
        let copies = 1 + u32::from(self.happens(faults.duplicate_ppm));
        self.put += u64::from(copies - 1);
        let delay = Duration::from_micros(faults.delay_us) + self.wires[wire].slower;
        for _ in 0..copies {
            let late = match self.happens(faults.reorder_ppm) {
                true => self.rng.below(faults.reorder_us * 1_000 + 1),
                false => 0,
            };
            let flip = self
                .happens(faults.corrupt_ppm)
                .then(|| self.rng.below(frame.len() as u64 * 8) as usize);
            let at = leaves + delay + Duration::from_nanos(late);
            self.fly(at, to, frame, flip);
            let fate = if flip.is_some() { FrameFate::Corrupted } else { FrameFate::Arrives };
            self.note(Some(far), frame.len(), fate);
        }
    }

    fn fly(&mut self, at: Time, to: FramePath, frame: &[u8], flip: Option<usize>) {
        let from = Endpoints { local: to.local, remote: to.from };
        let at = Time(at.0.div_ceil(TICK_NS) * TICK_NS);
        let batch = self.batch(at, to.far, frame.len());
        let (offset, len) = (batch.bytes.len() as u32, frame.len() as u32);
        batch.bytes.extend_from_slice(frame);
        if let Some(bit) = flip {
            batch.bytes[offset as usize + bit / 8] ^= 1 << (bit % 8);
        }
        let same_door = batch.doors.last() == Some(&to.door);
        match batch.incoming.last_mut() {
            // Frames with one source and length form one run, as with GRO.
            Some(run) if same_door && run.from == from && run.stride == len => run.len += len,
            _ => {
                batch.incoming.push(ReceivedRun {
                    from,
                    offset,
                    len,
                    stride: len,
                    congested: false,
                });
                batch.doors.push(to.door);
            }
        }
    }

    /// Removes frames that translators on the receiver's side do not let in.
    pub(crate) fn admit(&mut self, now: Time, batch: &mut WireBatch) {
        let mut doors = core::mem::take(&mut batch.doors).into_iter();
        batch.incoming.retain(|run| {
            let Some((door, port)) = doors.next().flatten() else { return true };
            let why = match self.nats.enter(now, run.from.remote, door, port) {
                Ok(node) if node == batch.to => return true,
                Ok(_) => NatRefusal::Unmapped,
                Err(why) => why,
            };
            let frames = u64::from(run.len / run.stride.max(1));
            self.nats.count(why, frames);
            self.lost += frames;
            false
        });
    }

    /// Lets the attacker record arriving frames.
    pub(crate) fn overhear(&mut self, now: Time, batch: &WireBatch, run: u32) {
        if self.replay_ppm == 0 || batch.replayed_in.is_some() {
            return;
        }
        for source in &batch.incoming {
            for at in (source.offset..source.offset + source.len).step_by(source.stride as usize) {
                if !self.happens(self.replay_ppm) {
                    continue;
                }
                let wait = Duration::from_nanos(self.rng.below(REPLAY_WITHIN.as_nanos() as u64));
                let later = now + Duration::from_millis(1) + wait;
                self.put += 1;
                let number = self.new_batch(later, batch.to, Some(run));
                let copy = &mut self.batches[number as usize];
                let frame = &batch.bytes[at as usize..(at + source.stride) as usize];
                copy.bytes.extend_from_slice(frame);
                copy.incoming.push(ReceivedRun {
                    from: Endpoints { local: source.from.local, remote: attacker() },
                    offset: 0,
                    len: source.stride,
                    stride: source.stride,
                    congested: false,
                });
            }
        }
    }

    /// Reports a sent frame to the checker of covered links.
    fn see_cover(&mut self, link: Option<LinkId>, len: usize, there: bool) {
        if let Some(link) = link {
            self.covers.sent((self.node, link), len, there);
        }
    }

    /// Applies a planted fault to a frame.
    fn spoil(&self, frame: &[u8]) -> Vec<u8> {
        let mut frame = frame.to_vec();
        match self.plant {
            Some(InjectedFault::Plaintext) => {
                // Eight bytes at an odd offset: the shortest run that must be found.
                let piece = self.payloads.piece();
                frame[101..101 + 8].copy_from_slice(&piece[3..11]);
            }
            Some(InjectedFault::OddSize) => _ = frame.pop(),
            Some(InjectedFault::Zeros) => frame[120..150].fill(0),
            _ => {}
        }
        frame
    }
}

impl FrameSink for Wires {
    fn send(&mut self, path: SendPath, buf: &[u8], offsets: &[u32], len: usize) -> SendOutcome {
        let (link, ends, to) = (path.link, path.ends, path.ends.remote);
        let path = self.way_to(&ends);
        self.trace.add(self.now.0);
        self.trace.add((self.node as u64) << 32 | (len as u64) << 16 | offsets.len() as u64);
        self.trace.add(path.map_or(u64::MAX, |path| path.far as u64));
        let rate_bps = path.map_or(0, |path| self.wires[path.wire].faults[path.direction].rate_bps);
        let byte_ps = (8_000_000_000_000 / rate_bps.max(1)).max(1);
        for (sent, &at) in offsets.iter().enumerate() {
            let frame = &buf[at as usize..at as usize + len];
            let (mut leaves, mut spoiled) = (Time::ZERO, None);
            if let Some(FramePath { wire, direction: way, .. }) = path {
                let wire = &mut self.wires[wire];
                let free = wire.free[way].max(self.now);
                // The queue is full if more whole bytes wait than it holds.
                let waiting_ps = (free.0 - self.now.0) * 1_000;
                if waiting_ps >= (wire.faults[way].queue_bytes + 1).saturating_mul(byte_ps) {
                    if let Some(link) = link {
                        self.covers.refused((self.node, link));
                    }
                    return SendOutcome { sent, stop: Some(SendError::Full) };
                }
                leaves = free + Duration::from_nanos(len as u64 * byte_ps / 1_000);
                wire.free[way] = leaves;
            }
            if self.plant.is_some()
                && !self.struck
                && self.sent >= PLANT_AFTER
                && len > SizeClass::Small.frame_len()
            {
                self.struck = true;
                spoiled = Some(self.spoil(frame));
            }
            let frame = spoiled.as_deref().unwrap_or(frame);
            if !path.is_some_and(|path| self.wires[path.wire].readable) {
                self.check(to, frame);
            }
            self.taken[self.node] += 1;
            self.see_cover(link, len, path.is_some());
            if let Some(FramePath { far, local: Some(_), .. }) = path {
                self.see_shift(&ends, far, frame);
            }
            match path {
                Some(path) => self.put(path, leaves, frame),
                None => self.note(None, len, FrameFate::Lost),
            }
        }
        SendOutcome { sent: offsets.len(), stop: None }
    }
}
