//! Programs at hosts. They write packets and super-frames into the interface and read arriving
//! packets there. Each packet carries its flow and number, so that a model can tell which packets
//! may arrive.

use std::collections::VecDeque;
use std::net::Ipv6Addr;

use shoal_crypto::Rng;
use shoal_ip::{BufferSlice, READ_MAX, VNET_LEN};
use shoal_node::{TunOffloads, TunQueue};

use crate::ciphers::mix;

const TCP: u8 = 6;
const UDP: u8 = 17;
const IPV6_LEN: usize = 40;
/// Bytes at the start of each payload: flow and number.
const LABEL: usize = 8;
/// Longest payload of one packet; it fits the MTU of the interface.
const PAYLOAD_MAX: u64 = 1_200;
/// Largest number of packets in a super-frame, as in the daemon's interface.
const SEGMENTS_MAX: u64 = 44;
/// Packets and super-frames that may wait in an interface.
const WAITING_MAX: usize = 50;
pub(crate) const MTU: usize = 1_300;

/// One queue of a node's interface.
#[derive(Default)]
pub(crate) struct SimulatedInterface {
    /// Packets that programs wrote.
    waiting: VecDeque<Vec<u8>>,
    /// Packets that programs were given.
    given: Vec<Vec<u8>>,
}

impl SimulatedInterface {
    /// True if a program wrote something that was not read yet.
    pub(crate) fn is_readable(&self) -> bool {
        !self.waiting.is_empty()
    }

    /// Writes a packet or super-frame. Returns false if there was no room.
    pub(crate) fn put(&mut self, read: Vec<u8>) -> bool {
        let room = self.waiting.len() < WAITING_MAX;
        if room {
            self.waiting.push_back(read);
        }
        room
    }

    /// Takes the packets that programs were given.
    pub(crate) fn take_given(&mut self) -> Vec<Vec<u8>> {
        core::mem::take(&mut self.given)
    }
}

impl TunQueue for SimulatedInterface {
    fn offloads(&self) -> TunOffloads {
        TunOffloads { tcp: true, udp: true }
    }

    fn read(&mut self, buf: &mut [u8]) -> Option<usize> {
        let read = self.waiting.pop_front()?;
        buf[..read.len()].copy_from_slice(&read);
        Some(read.len())
    }

    fn write(&mut self, head: &[u8], buf: &[u8], pieces: &[BufferSlice]) -> bool {
        let mut all = head.to_vec();
        for piece in pieces {
            all.extend_from_slice(&buf[piece.at as usize..(piece.at + piece.len) as usize]);
        }
        self.given.push(all);
        true
    }
}

/// Packets from one program to another.
#[derive(Clone, Debug)]
pub(crate) struct ProgramFlow {
    pub(crate) number: u32,
    /// Sending and receiving node, and (`ends`) their addresses.
    pub(crate) from: usize,
    pub(crate) to: usize,
    ends: (Ipv6Addr, Ipv6Addr),
    tcp: bool,
    /// Bytes of payload per packet.
    payload: usize,
}

impl ProgramFlow {
    pub(crate) fn new(
        number: u32,
        (from, to): (usize, usize),
        ends: (Ipv6Addr, Ipv6Addr),
        rng: &mut Rng,
    ) -> ProgramFlow {
        let payload = LABEL + rng.below(PAYLOAD_MAX - LABEL as u64) as usize;
        ProgramFlow { number, from, to, ends, tcp: rng.below(2) == 0, payload }
    }

    /// Draws the number of packets in the next read.
    pub(crate) fn draw(&self, rng: &mut Rng) -> u32 {
        let fit = ((READ_MAX - VNET_LEN - IPV6_LEN - 20) / self.payload) as u64;
        let most = SEGMENTS_MAX.min(fit);
        if rng.below(3) == 0 { 1 + rng.below(most) as u32 } else { 1 }
    }

    fn head_len(&self) -> usize {
        if self.tcp { 20 } else { 8 }
    }

    /// Fills in the payload of one packet.
    fn fill(&self, number: u32, out: &mut [u8]) {
        out[..4].copy_from_slice(&self.number.to_be_bytes());
        out[4..LABEL].copy_from_slice(&number.to_be_bytes());
        let seed = u64::from(self.number) << 32 | u64::from(number);
        for (at, bytes) in (0..).zip(out[LABEL..].chunks_mut(8)) {
            let noise = mix(seed ^ mix(at)).to_be_bytes();
            bytes.copy_from_slice(&noise[..bytes.len()]);
        }
    }

    /// A read from the interface with `count` packets, from number `first` on.
    pub(crate) fn read(&self, first: u32, count: u32) -> Vec<u8> {
        let (head, len) = (self.head_len(), self.payload * count as usize);
        let mut read = vec![0; VNET_LEN + IPV6_LEN + head + len];
        let (gso, offset, protocol) = if self.tcp { (4, 16, TCP) } else { (5, 6, UDP) };
        let word = |value: usize| (value as u16).to_ne_bytes();
        // The checksum is partial, as the kernel leaves it.
        (read[0], read[1]) = (1, if count > 1 { gso } else { 0 });
        read[2..4].copy_from_slice(&word(IPV6_LEN + head));
        read[4..6].copy_from_slice(&word(if count > 1 { self.payload } else { 0 }));
        read[6..8].copy_from_slice(&word(IPV6_LEN));
        read[8..10].copy_from_slice(&word(offset));
        let ip = &mut read[VNET_LEN..];
        ip[0] = 0x60;
        ip[4..6].copy_from_slice(&((head + len) as u16).to_be_bytes());
        (ip[6], ip[7]) = (protocol, 64);
        ip[8..24].copy_from_slice(&self.ends.0.octets());
        ip[24..40].copy_from_slice(&self.ends.1.octets());
        let transport = &mut ip[IPV6_LEN..];
        let port = (1_000 + self.number as u16).to_be_bytes();
        transport[..2].copy_from_slice(&port);
        transport[2..4].copy_from_slice(&port);
        if self.tcp {
            let at = first.wrapping_mul(self.payload as u32);
            transport[4..8].copy_from_slice(&at.to_be_bytes());
            // ACK: a segment of an established connection.
            (transport[12], transport[13]) = (0x50, 0x10);
        } else {
            transport[4..6].copy_from_slice(&((head + len) as u16).to_be_bytes());
        }
        let packets = transport[head..].chunks_mut(self.payload);
        (first..).zip(packets).for_each(|(number, out)| self.fill(number, out));
        read
    }

    /// True if `payload` is the unchanged payload of packet `number`.
    fn is(&self, number: u32, payload: &[u8]) -> bool {
        let mut sent = vec![0; self.payload];
        self.fill(number, &mut sent);
        sent == payload
    }
}

/// A flow and the fate of its packets.
#[derive(Clone, Debug)]
pub(crate) struct WatchedFlow {
    pub(crate) flow: ProgramFlow,
    /// True if the receiver's rules allow the flow.
    pub(crate) allowed: bool,
    /// For each packet written, true if it arrived.
    arrived: Vec<bool>,
    last: Option<u32>,
    /// Packets that arrived after a later one.
    pub(crate) overtaken: u64,
}

impl WatchedFlow {
    pub(crate) fn new(flow: ProgramFlow, allowed: bool) -> WatchedFlow {
        WatchedFlow { flow, allowed, arrived: Vec::new(), last: None, overtaken: 0 }
    }

    /// Number of the next packet.
    pub(crate) fn next(&self) -> u32 {
        self.arrived.len() as u32
    }

    /// Notes that `count` more packets were written.
    pub(crate) fn sent(&mut self, count: u32) {
        self.arrived.resize(self.arrived.len() + count as usize, false);
    }

    /// Packets that were written and did not arrive.
    pub(crate) fn missing(&self) -> u64 {
        self.arrived.iter().filter(|arrived| !**arrived).count() as u64
    }

    pub(crate) fn there(&self) -> u64 {
        self.arrived.iter().filter(|arrived| **arrived).count() as u64
    }

    fn arrive(&mut self, number: u32, payload: &[u8]) -> Result<(), String> {
        let what = format!("packet {number} of flow {}", self.flow.number);
        let Some(arrived) = self.arrived.get_mut(number as usize) else {
            return Err(format!("{what} arrived, but was never sent"));
        };
        if core::mem::replace(arrived, true) {
            return Err(format!("{what} arrived twice"));
        }
        if !self.allowed {
            return Err(format!("{what} arrived, and is not allowed"));
        }
        if !self.flow.is(number, payload) {
            return Err(format!("{what} arrived changed"));
        }
        self.overtaken += u64::from(self.last.is_some_and(|last| last > number));
        self.last = self.last.max(Some(number));
        Ok(())
    }
}

/// Length of a packet's transport header in bytes.
fn head_len(ip: &[u8]) -> Option<usize> {
    match *ip.get(6)? {
        TCP => Some(20),
        UDP => Some(8),
        // An ICMP message of the queue itself about a refused packet.
        _ => None,
    }
}

/// Flow and number in a payload.
fn label_of(payload: &[u8]) -> Option<(u32, u32)> {
    let word = |at: usize| payload.get(at..at + 4)?.try_into().ok().map(u32::from_be_bytes);
    word(0).zip(word(4))
}

/// Flow and number of an IP packet.
pub(crate) fn label(ip: &[u8]) -> Option<(u32, u32)> {
    label_of(ip.get(IPV6_LEN + head_len(ip)?..)?)
}

/// Checks a write of the interface of `node` to a program: a packet, or several in a super-frame.
/// Calls `deliver` with the flow and number of each packet.
///
/// Errors: a description of the violation.
pub(crate) fn check(
    watches: &mut [WatchedFlow],
    node: usize,
    given: &[u8],
    mut deliver: impl FnMut(u32, u32),
) -> Result<(), String> {
    let (vnet, ip) = given.split_at_checked(VNET_LEN).ok_or("no header")?;
    let Some(head) = head_len(ip) else { return Ok(()) };
    let (header, payload) = ip.split_at_checked(IPV6_LEN + head).ok_or("no transport header")?;
    let size = usize::from(u16::from_ne_bytes([vnet[4], vnet[5]]));
    let size = if vnet[1] == 0 { payload.len() } else { size };
    for packet in payload.chunks(size.max(1)) {
        let (flow, number) = label_of(packet).ok_or("a packet without a label")?;
        let watch = watches.get_mut(flow as usize).ok_or(format!("flow {flow} is unknown"))?;
        let (from, to) = watch.flow.ends;
        let ends = header[8..24] == from.octets() && header[24..40] == to.octets();
        if watch.flow.to != node || !ends {
            return Err(format!("a packet of flow {flow} at node {node}"));
        }
        watch.arrive(number, packet)?;
        deliver(flow, number);
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_model_takes_each_packet_once_unchanged_and_allowed() {
        let ends = (Ipv6Addr::LOCALHOST, Ipv6Addr::UNSPECIFIED);
        let flow = ProgramFlow { number: 0, from: 1, to: 2, ends, tcp: true, payload: 100 };
        let fresh = |allowed| {
            let mut watch = WatchedFlow::new(flow.clone(), allowed);
            watch.sent(6);
            [watch]
        };
        let check = |watches: &mut [WatchedFlow], node, given: &[u8]| {
            check(watches, node, given, |_, _| ())
        };
        let mut watches = fresh(true);
        assert_eq!(check(&mut watches, 2, &flow.read(2, 3)), Ok(()));
        assert_eq!(check(&mut watches, 2, &flow.read(1, 1)), Ok(()));
        assert_eq!((watches[0].missing(), watches[0].there(), watches[0].overtaken), (2, 4, 1));
        let refused = |watches: &mut [WatchedFlow], node, read: &[u8], why: &str| {
            let seen = check(watches, node, read).expect_err(why);
            assert!(seen.contains(why), "{seen}");
        };
        refused(&mut watches, 2, &flow.read(4, 1), "twice");
        refused(&mut watches, 2, &flow.read(6, 1), "was never sent");
        refused(&mut watches, 3, &flow.read(5, 1), "at node 3");
        let mut changed = flow.read(5, 1);
        *changed.last_mut().unwrap() ^= 1;
        refused(&mut watches, 2, &changed, "changed");
        refused(&mut fresh(false), 2, &flow.read(5, 1), "not allowed");
    }
}
