//! One queue of the virtual interface, and the stages between it and the edge.
//!
//! ```text
//! programs -> device -> Gate -> Firewall -> Aqm -> Split -> edge
//! edge -> Aqm -> Gate -> Fragments -> Firewall -> Merge -> device -> programs
//! ```
//!
//! The kernel passes all packets of a flow to one queue. It is the queue from which the flow's last
//! packet came, or else a queue chosen by addresses and ports.

use core::time::Duration;
use std::sync::Arc;

use shoal_edge::{HostId, PacketArrival, PacketFlow};
use shoal_ip::{
    AddressGate, Aqm, AqmAction, BufferSlice, FragmentAction, Fragments, IcmpError, Packet,
    PacketMerger, PacketSegmenter, READ_MAX, REPLY_MAX, VNET_LEN,
};
use shoal_ip::{complain, mark};
use shoal_wire::{DropReason, Time, ip};

use crate::firewall::{InterfaceFirewall, SharedFlowTable};
use crate::shell::{TunOffloads, TunQueue};

/// Number of packets after which a turn reads no more, so that frames from the network don't wait
/// for programs. A queue that one turn empties counts as no queue.
const PACKETS_MAX: usize = 16 * shoal_relay::RUN_MAX;
/// Time without being empty after which the device has a standing queue: more arrives than leaves.
/// The time is five round trips of a direct link under load. Slower hosts get more, since a queue
/// that is gone after a round trip is no standing queue.
const STANDING: Duration = Duration::from_millis(5);

/// The destination of programs' packets.
pub(crate) trait PacketOutput {
    /// True if the backlog on the path to the host is so long that further packets should wait.
    fn is_congested(&self, host: HostId) -> bool;
    /// True if this worker can send packets to the host.
    fn reaches(&self, now: Time, host: HostId) -> bool;
    /// Maximum packet length for the host, in bytes.
    fn packet_len(&self, host: HostId) -> usize;
    /// Time by which the host's answers take longer than on most paths.
    fn answers_later(&self, _: HostId) -> Duration {
        Duration::ZERO
    }
    /// The stream of a packet's flow to the host. Zero if cells keep their order.
    fn stream(&self, _: HostId, _: &Packet, _: &[u8]) -> u16 {
        0
    }
    /// Sends a packet of a flow to a reachable host. `write` fills the plaintext of a cell with at
    /// least `len` bytes.
    fn send(&mut self, now: Time, flow: PacketFlow, len: usize, write: impl FnOnce(&mut [u8]));
    /// Hands a packet from the interface to the worker that reaches its host. Returns true if it
    /// could.
    fn hand(&mut self, read: &[u8]) -> bool;
}

/// Numbers of packets read from and written to one queue.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct QueueCounters {
    /// Packets of programs that were read and sent.
    pub read: u64,
    /// Packets of other hosts that were written.
    pub written: u64,
}

/// One queue of the interface, with its gate, firewall, AQM and fragment state.
pub struct InterfaceQueue<D, F> {
    device: D,
    gate: Arc<AddressGate>,
    /// Decides which packets of other hosts pass to programs.
    firewall: InterfaceFirewall<F>,
    /// State of other hosts' fragmented packets: the first fragment passed, was refused or is
    /// missing.
    fragments: Fragments,
    merge: PacketMerger,
    read: Vec<u8>,
    reply: [u8; REPLY_MAX],
    drops: Vec<(DropReason, u64)>,
    /// Signals congestion to flows of this host's programs while the device has a standing queue.
    aqm: Aqm,
    /// Signals congestion to flows of other hosts whose cells routers marked.
    arriving: Aqm,
    /// When the device was first found non-empty since it was last empty.
    busy_since: Option<Time>,
    /// Destination of the last packet. While the path to it is congested, no packet is read.
    last: Option<HostId>,
    /// Indexes of dropped arrivals in the batch.
    dropped: Vec<usize>,
    counters: QueueCounters,
}

impl<D: TunQueue, F: SharedFlowTable> InterfaceQueue<D, F> {
    /// A queue with this gate, and a firewall that stores its flows in `flows`.
    pub fn new(device: D, gate: Arc<AddressGate>, flows: F) -> InterfaceQueue<D, F> {
        let TunOffloads { tcp, udp } = device.offloads();
        InterfaceQueue {
            device,
            gate,
            firewall: InterfaceFirewall::new(flows),
            fragments: Fragments::default(),
            merge: PacketMerger::new(tcp, udp),
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

    pub fn device(&self) -> &D {
        &self.device
    }

    pub fn device_mut(&mut self) -> &mut D {
        &mut self.device
    }

    /// The firewall, which decides which packets of other hosts pass to programs.
    pub fn firewall(&self) -> &InterfaceFirewall<F> {
        &self.firewall
    }

    /// The gate, which decides with which hosts programs may communicate.
    pub fn gate(&self) -> Arc<AddressGate> {
        Arc::clone(&self.gate)
    }

    /// True if both queues have the same gate.
    pub(crate) fn has_gate_of(&self, other: &InterfaceQueue<D, F>) -> bool {
        Arc::ptr_eq(&self.gate, &other.gate)
    }

    /// Replaces the gate.
    pub(crate) fn set_gate(&mut self, gate: Arc<AddressGate>) {
        self.gate = gate;
    }

    /// Destination of the last packet, if there was one.
    pub(crate) fn last(&self) -> Option<HostId> {
        self.last
    }

    /// Packets read and written since the start.
    pub fn counters(&self) -> QueueCounters {
        self.counters
    }

    /// Writes received packets to the interface. Packets of one flow are merged. Fragments that
    /// arrive before the first one of their datagram follow it.
    pub(crate) fn deliver(&mut self, now: Time, arrivals: &[PacketArrival], buf: &mut [u8]) {
        self.dropped.clear();
        if arrivals.iter().any(|arrival| arrival.congested) {
            self.slow_down(now, arrivals, buf);
        }
        let InterfaceQueue {
            device,
            gate,
            merge,
            drops,
            dropped,
            firewall,
            fragments,
            counters,
            ..
        } = self;
        let buf = &*buf;
        let mut refused = 0;
        let mut put = |head: &[u8], buf: &[u8], pieces: &[BufferSlice]| {
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
                Ok((_, FragmentAction::Wait)) => {}
                Ok((packet, passage)) => {
                    let at = arrival.at + ip::PACKET_AT as u32;
                    let flags = plain[ip::FLAGS_AT];
                    let mut write = |head: &[u8], pieces: &[BufferSlice]| put(head, buf, pieces);
                    merge.push(buf, at, &packet, flags, &mut write);
                    if passage == FragmentAction::Release {
                        for later in fragments.take_released() {
                            let piece = BufferSlice { at: 0, len: later.len() as u32 };
                            put(&[0; VNET_LEN], &later, &[piece]);
                        }
                    }
                }
                Err(reason) => count(drops, reason, 1),
            }
        }
        merge.finish(&mut |head, pieces| put(head, buf, pieces));
        if refused > 0 {
            count(drops, DropReason::InterfaceRefused, refused);
            counters.written -= refused;
        }
    }

    /// Lets the AQM mark or drop packets whose cells have the congestion mark.
    fn slow_down(&mut self, now: Time, arrivals: &[PacketArrival], buf: &mut [u8]) {
        for (i, arrival) in arrivals.iter().enumerate().filter(|(_, a)| a.congested) {
            let plain = arrival.at as usize + ip::PACKET_AT..(arrival.at + arrival.len) as usize;
            // `deliver` counts packets that the gate refuses.
            let Ok(packet) = self.gate.inbound(arrival.host.bits(), &buf[plain.clone()]) else {
                continue;
            };
            match self.arriving.judge(now, &packet, &buf[plain.clone()], Duration::ZERO) {
                AqmAction::Pass => {}
                AqmAction::Mark => mark(&mut buf[plain]),
                AqmAction::Drop => {
                    count(&mut self.drops, DropReason::IpCongested, 1);
                    self.dropped.push(i);
                }
            }
        }
    }

    /// Reads packets of programs, up to [`PACKETS_MAX`] and the rest of the last read. While the
    /// path of the last packet is congested, packets stay in the device. Its queue is bounded, so
    /// programs notice at once.
    pub(crate) fn read(&mut self, now: Time, to: &mut impl PacketOutput) {
        let mut packets = 0;
        let mut read = core::mem::take(&mut self.read);
        while packets < PACKETS_MAX {
            if self.last.is_some_and(|host| to.is_congested(host)) {
                break;
            }
            let Some(len) = self.device.read(&mut read) else {
                self.busy_since = None;
                break;
            };
            let since = *self.busy_since.get_or_insert(now);
            packets += self.pass(now, &read[..len], now.since(since), to);
        }
        self.read = read;
    }

    /// Sends the packets of one read. `busy` is the time since the device was last empty. Returns
    /// the number of packets, at least 1.
    pub(crate) fn pass(
        &mut self,
        now: Time,
        read: &[u8],
        busy: Duration,
        to: &mut impl PacketOutput,
    ) -> usize {
        let (host, mut split) = match self.gate.outbound(read) {
            Ok((host, split)) => (HostId::from_bits(host), split),
            Err(refusal) => {
                count(&mut self.drops, refusal.reason, 1);
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
            count(&mut self.drops, DropReason::IpTooBig, 1);
            self.complain(IcmpError::TooBig { mtu: mtu as u16 }, split.packet(), read);
            return 1;
        }
        if !to.reaches(now, host) {
            if !to.hand(read) {
                count(&mut self.drops, DropReason::OtherWorker, split.count() as u64);
            }
            return split.count();
        }
        let bytes = &read[VNET_LEN..];
        // A later fragment begins no flow. The receiver decides whether the datagram passes.
        let judged = match split.packet().is_later_fragment() {
            true => Ok(()),
            false => self.firewall.outbound(now, host, split.packet(), bytes),
        };
        if let Err(reason) = judged {
            count(&mut self.drops, reason, 1);
            return 1;
        }
        let later = if busy < STANDING { Duration::ZERO } else { to.answers_later(host) };
        let first = match &mut self.aqm {
            aqm if busy >= STANDING + later => slow_down(aqm, now, &mut split, read, later),
            _ => 0,
        };
        if first > 0 {
            count(&mut self.drops, DropReason::IpCongested, 1);
        }
        let stream = to.stream(host, split.packet(), bytes);
        let flow = PacketFlow { host, number: split.packet().flow(bytes), stream };
        for i in first..split.count() {
            let write = |plain: &mut [u8]| split.write(i, plain);
            to.send(now, flow, split.cell_len(i), write);
        }
        self.counters.read += (split.count() - first) as u64;
        split.count()
    }

    /// Sends an ICMP error for an undeliverable packet to its program. Without the message, the
    /// program waits for its own timer.
    fn complain(&mut self, complaint: IcmpError, packet: &Packet, read: &[u8]) {
        let told = complain(complaint, packet, &read[VNET_LEN..], &mut self.reply);
        let _ = told.map(|len| self.device.write(&self.reply[..len], &[], &[]));
    }

    /// Notes that the device is empty. The last read may have stopped right after the last packet,
    /// without noticing.
    pub fn note_empty(&mut self) {
        self.busy_since = None;
    }

    /// Takes the drops since the last call.
    pub(crate) fn take_drops(&mut self, now: Time) -> impl Iterator<Item = (DropReason, u64)> + '_ {
        self.drops.drain(..).chain(self.fragments.take_drops(now))
    }
}

/// Adds to the drops for a reason. One batch can drop thousands of packets for the same one.
fn count(drops: &mut Vec<(DropReason, u64)>, reason: DropReason, more: u64) {
    match drops.iter_mut().find(|(known, _)| *known == reason) {
        Some((_, n)) => *n += more,
        None => drops.push((reason, more)),
    }
}

/// Lets the AQM judge the packets of `split` during a standing queue. Returns the number to drop.
fn slow_down(
    aqm: &mut Aqm,
    now: Time,
    split: &mut PacketSegmenter<'_>,
    read: &[u8],
    more: Duration,
) -> usize {
    match aqm.judge(now, split.packet(), &read[VNET_LEN..], more) {
        AqmAction::Pass => 0,
        AqmAction::Mark => {
            split.mark();
            0
        }
        // Drops the first packet, since the packets after it show the loss to the receiver at once.
        AqmAction::Drop => 1,
    }
}

#[cfg(test)]
mod tests;
