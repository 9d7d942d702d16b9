//! The interface's firewall: what a packet's headers say, in the words of the machine that decides.

use shoal_directory::{Firewall, Limits, Opening, Tuple};
use shoal_edge::HostId;
use shoal_ip::Packet;
use shoal_wire::{DropReason, Time};

use crate::authority::Rights;

const TCP: u8 = 6;
const UDP: u8 = 17;
const ICMP: u8 = 1;
const ICMPV6: u8 = 58;
const FIN: u8 = 1;
const SYN: u8 = 2;
const RST: u8 = 4;
const ACK: u8 = 16;

/// The firewall of one interface.
pub struct Wall(Firewall);

impl Default for Wall {
    fn default() -> Wall {
        Wall(Firewall::new(Limits::default()))
    }
}

impl Wall {
    /// Puts other rights in force.
    pub fn set_rights(&mut self, rights: &Rights) {
        let access = rights.to_us().map(|(id, access)| (id.0, access.clone()));
        self.0.set_access(access.collect());
    }

    /// Flows that are remembered.
    pub fn flows(&self) -> usize {
        self.0.len()
    }

    /// Forgets a host and its flows.
    pub fn forget(&mut self, host: HostId) {
        self.0.forget(host.0);
    }

    /// Whether a packet of `host` may pass to programs. `bytes` hold it.
    ///
    /// Errors: what is counted.
    pub fn inbound(
        &mut self,
        now: Time,
        host: HostId,
        packet: &Packet,
        bytes: &[u8],
    ) -> Result<(), DropReason> {
        let tuple = tuple(packet, bytes, false)?;
        self.0.inbound(now, host.0, &tuple)
    }

    /// Notes a packet, or a super-frame, of this host's programs to `host`.
    ///
    /// Errors: what is counted.
    pub fn outbound(&mut self, now: Time, host: HostId, bytes: &[u8]) -> Result<(), DropReason> {
        let packet = Packet::parse(bytes)?;
        let tuple = tuple(&packet, bytes, true)?;
        self.0.outbound(now, host.0, &tuple)
    }
}

fn tuple(packet: &Packet, bytes: &[u8], ours: bool) -> Result<Tuple, DropReason> {
    let transport = packet.transport(bytes)?;
    let (from, to) = transport.ports;
    let opening = opening(packet.protocol, transport.detail);
    let errors = opening == Opening::Trouble;
    // The identifier of an echo stands where an error has something else.
    let (from, to) = if errors { (0, 0) } else { (from, to) };
    let (source, destination) = ((packet.source, from), (packet.destination, to));
    let (ours, theirs) = if ours { (source, destination) } else { (destination, source) };
    Ok(Tuple { protocol: packet.protocol, ours, theirs, opening })
}

fn opening(protocol: u8, detail: u8) -> Opening {
    match (protocol, detail) {
        (TCP, flags) => {
            Opening::Tcp { begins: flags & (SYN | ACK) == SYN, ends: flags & (FIN | RST) != 0 }
        }
        (UDP, _) => Opening::Udp,
        (ICMP, 0) | (ICMPV6, 129) => Opening::Answer,
        (ICMP, 3 | 11 | 12) | (ICMPV6, 1..=4) => Opening::Trouble,
        (ICMP | ICMPV6, _) => Opening::Question,
        _ => Opening::Other,
    }
}
