//! One queue of the virtual interface, and what its packets pass on the way from and to the edge.
//!
//! ```text
//! programs -> device -> Gate -> Firewall -> Aqm -> Split -> edge
//! edge -> Aqm -> Gate -> Fragments -> Firewall -> Merge -> device -> programs
//! ```
//!
//! The kernel gives all packets of a flow to one queue: the one through which it last heard from
//! the flow, or else one that their addresses and ports choose.

use core::time::Duration;
use std::sync::Arc;

use shoal_edge::{Arrival, Flow, HostId};
use shoal_ip::{
    Aqm, Complaint, Fragments, Gate, Merge, Packet, Passage, Piece, READ_MAX, REPLY_MAX, Split,
    VNET_LEN, Verdict,
};
use shoal_ip::{complain, mark};
use shoal_wire::{DropReason, Time, ip};

use crate::firewall::{Firewall, Flows};
use crate::shell::{Device, TunOffloads};

/// Cells that one turn of the worker reads, so that frames from the network don't wait for
/// programs. A queue that one turn empties counts as none.
const CELLS_MAX: usize = 16 * shoal_relay::RUN_MAX;
/// After so long without being found empty the device has a standing queue: more comes in than goes
/// out. It is five round trips of a direct link under load; where answers come later, as much is
/// added, since a queue that is gone after a round trip is none that stands.
const STANDING: Duration = Duration::from_millis(5);

/// Where packets of programs go.
pub(crate) trait Onward {
    /// Whether so much waits on the way to the host that more had better stay where it is.
    fn is_congested(&self, host: HostId) -> bool;
    /// Whether packets for the host can be sent from here.
    fn reaches(&self, now: Time, host: HostId) -> bool;
    /// Bytes of the longest packet for the host.
    fn packet_len(&self, host: HostId) -> usize;
    /// By how much longer than on most paths answers of the host take.
    fn answers_later(&self, _: HostId) -> Duration {
        Duration::ZERO
    }
    /// The stream of a packet's flow to the host; 0 where cells keep their order.
    fn stream(&self, _: HostId, _: &Packet, _: &[u8]) -> u16 {
        0
    }
    /// Sends a packet of a flow to a host that is reached: `write` fills the plaintext of a cell
    /// that has at least `len` bytes.
    fn send(&mut self, now: Time, flow: Flow, len: usize, write: impl FnOnce(&mut [u8]));
    /// Hands a read of the interface to the worker that reaches its host; says whether it could.
    fn hand(&mut self, read: &[u8]) -> bool;
}

/// Packets that were read from one queue and written to it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct QueueCounters {
    /// Packets of programs that were sent from it.
    pub read: u64,
    /// Packets of other hosts that were written to it.
    pub written: u64,
}

/// See the module's documentation.
pub struct Queue<D, F> {
    device: D,
    gate: Arc<Gate>,
    /// Which packets of other hosts pass to programs.
    firewall: Firewall<F>,
    /// Fragments of other hosts whose first one passed, was refused or is yet to come.
    fragments: Fragments,
    merge: Merge,
    read: Vec<u8>,
    reply: [u8; REPLY_MAX],
    drops: Vec<(DropReason, u64)>,
    /// Signals congestion to flows of this host's programs while the device holds a queue.
    aqm: Aqm,
    /// Signals congestion to flows of other hosts whose cells routers marked.
    arriving: Aqm,
    /// When the device was first found to hold something, since it was last empty.
    busy_since: Option<Time>,
    /// The host that the last packet went to: while its way is congested, nothing more is read.
    last: Option<HostId>,
    /// Arrivals that go no further, by their place in the batch.
    dropped: Vec<usize>,
    counters: QueueCounters,
}

impl<D: Device, F: Flows> Queue<D, F> {
    /// A queue whose packets pass `gate`, and a firewall that remembers their flows in `flows`.
    pub fn new(device: D, gate: Arc<Gate>, flows: F) -> Queue<D, F> {
        let TunOffloads { tcp, udp } = device.offloads();
        Queue {
            device,
            gate,
            firewall: Firewall::new(flows),
            fragments: Fragments::default(),
            merge: Merge::new(tcp, udp),
            read: vec![0; READ_MAX],
            reply: [0; REPLY_MAX],
            drops: Vec::new(),
            aqm: Aqm::default(),
            arriving: Aqm::default(),
            busy_since: None,
            last: None,
            dropped: Vec::new(),
            counters: QueueCounters::default(),
        }
    }

    /// The queue of the interface.
    pub fn device(&self) -> &D {
        &self.device
    }

    /// The queue of the interface, to be changed.
    pub fn device_mut(&mut self) -> &mut D {
        &mut self.device
    }

    /// Which packets of other hosts pass to programs.
    pub fn firewall(&self) -> &Firewall<F> {
        &self.firewall
    }

    /// Who may be spoken with.
    pub fn gate(&self) -> Arc<Gate> {
        Arc::clone(&self.gate)
    }

    /// Whether both queues have the same gate.
    pub(crate) fn has_gate_of(&self, other: &Queue<D, F>) -> bool {
        Arc::ptr_eq(&self.gate, &other.gate)
    }

    /// Puts another gate in force.
    pub(crate) fn set_gate(&mut self, gate: Arc<Gate>) {
        self.gate = gate;
    }

    /// The host that the last packet went to, if any did.
    pub(crate) fn last(&self) -> Option<HostId> {
        self.last
    }

    /// What came and went since the start.
    pub fn counters(&self) -> QueueCounters {
        self.counters
    }

    /// Writes packets that arrived to the interface; those of one flow are merged. Fragments that
    /// come before the first one of their datagram follow it.
    pub(crate) fn deliver(&mut self, now: Time, arrivals: &[Arrival], buf: &mut [u8]) {
        self.dropped.clear();
        if arrivals.iter().any(|arrival| arrival.congested) {
            self.slow_down(now, arrivals, buf);
        }
        let Queue { device, gate, merge, drops, dropped, firewall, fragments, counters, .. } = self;
        let buf = &*buf;
        let mut refused = 0;
        let mut put = |head: &[u8], buf: &[u8], pieces: &[Piece]| {
            if !device.write(head, buf, pieces) {
                refused += pieces.len() as u64;
            }
            counters.written += pieces.len() as u64;
        };
        for (i, arrival) in arrivals.iter().enumerate() {
            if dropped.contains(&i) {
                continue;
            }
            let plain = &buf[arrival.at as usize..(arrival.at + arrival.len) as usize];
            let bytes = &plain[ip::PACKET_AT..];
            let host = arrival.host;
            let passed = gate.inbound(host.bits(), bytes).and_then(|packet| {
                let judge = || firewall.inbound(now, host, &packet, bytes);
                let passage = fragments.take(now, host.bits(), (&packet, bytes), judge)?;
                Ok((packet, passage))
            });
            match passed {
                Ok((_, Passage::Wait)) => {}
                Ok((packet, passage)) => {
                    let at = arrival.at + ip::PACKET_AT as u32;
                    let flags = plain[ip::FLAGS_AT];
                    let mut write = |head: &[u8], pieces: &[Piece]| put(head, buf, pieces);
                    merge.push(buf, at, &packet, flags, &mut write);
                    if passage == Passage::Release {
                        for later in fragments.take_released() {
                            let piece = Piece { at: 0, len: later.len() as u32 };
                            put(&[0; VNET_LEN], &later, &[piece]);
                        }
                    }
                }
                Err(reason) => drops.push((reason, 1)),
            }
        }
        merge.finish(&mut |head, pieces| put(head, buf, pieces));
        if refused > 0 {
            drops.push((DropReason::InterfaceRefused, refused));
            counters.written -= refused;
        }
    }

    /// Has the AQM mark or drop packets whose cells bear the congestion mark.
    fn slow_down(&mut self, now: Time, arrivals: &[Arrival], buf: &mut [u8]) {
        for (i, arrival) in arrivals.iter().enumerate().filter(|(_, a)| a.congested) {
            let plain = arrival.at as usize + ip::PACKET_AT..(arrival.at + arrival.len) as usize;
            // A packet that the gate refuses is counted in `deliver`.
            let Ok(packet) = self.gate.inbound(arrival.host.bits(), &buf[plain.clone()]) else {
                continue;
            };
            match self.arriving.judge(now, &packet, &buf[plain.clone()], Duration::ZERO) {
                Verdict::Pass => {}
                Verdict::Mark => mark(&mut buf[plain]),
                Verdict::Drop => {
                    self.drops.push((DropReason::IpCongested, 1));
                    self.dropped.push(i);
                }
            }
        }
    }

    /// Takes in packets of programs until they make [`CELLS_MAX`] cells. While the way of the last
    /// one is congested they stay in the device: its queue is bounded, and programs notice at once.
    pub(crate) fn read(&mut self, now: Time, to: &mut impl Onward) {
        let mut cells = 0;
        let mut read = core::mem::take(&mut self.read);
        while cells < CELLS_MAX {
            if self.last.is_some_and(|host| to.is_congested(host)) {
                break;
            }
            let Some(len) = self.device.read(&mut read) else {
                self.busy_since = None;
                break;
            };
            let since = *self.busy_since.get_or_insert(now);
            cells += self.pass(now, &read[..len], now.since(since), to);
        }
        self.read = read;
    }

    /// Sends what one read brought; `busy` is since when the device was not found empty. Returns
    /// how many cells it made, at least 1.
    pub(crate) fn pass(
        &mut self,
        now: Time,
        read: &[u8],
        busy: Duration,
        to: &mut impl Onward,
    ) -> usize {
        let (host, mut split) = match self.gate.outbound(read) {
            Ok((host, split)) => (HostId::from_bits(host), split),
            Err(refusal) => {
                self.drops.push((refusal.reason, 1));
                if let Some((complaint, packet)) = refusal.complaint {
                    self.complain(complaint, &packet, read);
                }
                return 1;
            }
        };
        self.last = Some(host);
        let mtu = to.packet_len(host);
        if split.cell_len(0) > ip::PACKET_AT + mtu
            && let Some(fragments) = split.fragments(mtu)
        {
            split = fragments;
        }
        if split.cell_len(0) > ip::PACKET_AT + mtu {
            self.drops.push((DropReason::IpTooBig, 1));
            self.complain(Complaint::TooBig { mtu: mtu as u16 }, split.packet(), read);
            return 1;
        }
        if !to.reaches(now, host) {
            if !to.hand(read) {
                self.drops.push((DropReason::OtherWorker, split.count() as u64));
            }
            return split.count();
        }
        let bytes = &read[VNET_LEN..];
        // A later fragment begins no flow. The other end decides whether the datagram passes.
        let judged = match split.packet().is_later_fragment() {
            true => Ok(()),
            false => self.firewall.outbound(now, host, split.packet(), bytes),
        };
        if let Err(reason) = judged {
            self.drops.push((reason, 1));
            return 1;
        }
        let later = if busy < STANDING { Duration::ZERO } else { to.answers_later(host) };
        let first = match &mut self.aqm {
            aqm if busy >= STANDING + later => slow_down(aqm, now, &mut split, read, later),
            _ => 0,
        };
        if first > 0 {
            self.drops.push((DropReason::IpCongested, 1));
        }
        let stream = to.stream(host, split.packet(), bytes);
        let flow = Flow { host, number: split.packet().flow(bytes), stream };
        for i in first..split.count() {
            let write = |plain: &mut [u8]| split.write(i, plain);
            to.send(now, flow, split.cell_len(i), write);
        }
        self.counters.read += (split.count() - first) as u64;
        split.count()
    }

    /// Tells a program by ICMP why its packet goes nowhere. One that gets no message waits for its
    /// own timer.
    fn complain(&mut self, complaint: Complaint, packet: &Packet, read: &[u8]) {
        let told = complain(complaint, packet, &read[VNET_LEN..], &mut self.reply);
        let _ = told.map(|len| self.device.write(&self.reply[..len], &[], &[]));
    }

    /// Says that the device is empty. The last read may not have seen it, if it stopped right after
    /// the last packet.
    pub fn note_empty(&mut self) {
        self.busy_since = None;
    }

    /// Drops since the last call.
    pub(crate) fn take_drops(&mut self, now: Time) -> impl Iterator<Item = (DropReason, u64)> + '_ {
        self.drops.drain(..).chain(self.fragments.take_drops(now))
    }
}

/// Has the AQM judge the packets of `split`, which met a standing queue; returns how many to drop.
fn slow_down(
    aqm: &mut Aqm,
    now: Time,
    split: &mut Split<'_>,
    read: &[u8],
    more: Duration,
) -> usize {
    match aqm.judge(now, split.packet(), &read[VNET_LEN..], more) {
        Verdict::Pass => 0,
        Verdict::Mark => {
            split.mark();
            0
        }
        // The first packet: those behind it show the receiver at once that it is missing.
        Verdict::Drop => 1,
    }
}
