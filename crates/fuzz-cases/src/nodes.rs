//! A whole relay and a whole edge, behind the seals: an authentic neighbour or host sends the
//! input.
//!
//! An input is a list of steps, each `[verb][length u16][bytes]`, as in [`crate::machines`]. The
//! far end is a bare session machine, so everything that it seals comes from the input.

use core::net::{Ipv4Addr, Ipv6Addr, SocketAddr};
use core::time::Duration;

use shoal_crypto::{Identity, NetworkSecret};
use shoal_edge::{Edge, EdgeEvent, EdgeOutput, HostConfig};
use shoal_ip::{AddressGate, BufferSlice, FragmentAction, Fragments, PacketMerger};
use shoal_link::{EgressConfig, LivenessConfig};
use shoal_relay::{
    ArrivalSource, CallContext, FrameSink, LinkConfig, RUN_MAX, ReceivedRun, Relay, SendError,
    SendOutcome, SendPath,
};
use shoal_session::{PeerId, SessionRole, Sessions};
use shoal_transfer::{ChunkSet, FileTransferEvent as FileEvent};
use shoal_wire::{
    Address, CircuitId, EdgeKind, LinkKind, RoutedHeader, SizeClass, Time, TrafficClass, edge, ip,
    link,
};

use crate::machines::{span, steps};

const FULL: usize = SizeClass::Full.frame_len();
const START: Time = Time::from_millis(1_000);
const UNIX_MS: u64 = 1_800_000_000_000;
/// Maximum number of rounds until two machines have agreed on keys.
const ROUNDS_MAX: usize = 16;
/// Maximum number of outputs per step; more means that draining doesn't end.
const OUTPUTS_MAX: usize = 20_000;
/// Maximum number of calls at one instant.
const CALLS_MAX: usize = 1_000;

const ME: Address = Address::new(1, 0);
const FAR: Address = Address::new(2, 0);
const HOST: Address = Address::new(1, 1);

fn identity(n: u8) -> Identity {
    Identity::from_seed([n; 32])
}

fn secret() -> NetworkSecret {
    NetworkSecret([3; 32])
}

fn socket(n: u8) -> SocketAddr {
    SocketAddr::from(([10, 0, 0, n], 7_400))
}

/// Frames sent by a relay; some sends are refused.
#[derive(Default)]
struct RelaySends {
    sent: Vec<(SocketAddr, Vec<u8>)>,
    stop: Option<SendError>,
    frames: usize,
}

impl FrameSink for RelaySends {
    fn send(&mut self, path: SendPath, buf: &[u8], offsets: &[u32], len: usize) -> SendOutcome {
        assert!(SizeClass::of_frame(len).is_some(), "a frame of {len} bytes");
        self.frames += offsets.len();
        assert!(self.frames < OUTPUTS_MAX, "sending ends");
        if self.stop.is_some() {
            return SendOutcome { sent: 0, stop: self.stop };
        }
        let frames = offsets.iter().map(|&at| buf[at as usize..at as usize + len].to_vec());
        // Frames to other destinations are ignored. The far end gets at most 64 frames of a send.
        self.sent.extend(frames.take(64).map(|frame| (path.ends.remote, frame)));
        self.sent.truncate(256);
        SendOutcome { sent: offsets.len(), stop: None }
    }
}

fn one(from: SocketAddr, len: usize) -> ReceivedRun {
    let len = len as u32;
    ReceivedRun { from: from.into(), offset: 0, len, stride: len, congested: false }
}

/// A router with a neighbouring router, played by the input, and a silent host.
struct RelayRig {
    now: Time,
    relay: Relay,
    far: Sessions<SocketAddr>,
    me: PeerId,
    wire: RelaySends,
}

impl RelayRig {
    fn new() -> RelayRig {
        let config = shoal_relay::RelayConfig {
            address: ME,
            session: shoal_session::SessionConfig::new(SessionRole::Link),
            liveness: LivenessConfig::default(),
            egress: EgressConfig::default(),
            hold: shoal_relay::HoldConfig::default(),
            routing: shoal_routing::Config::default(),
            events_max: 64,
        };
        let origins = (1..6).map(|n| (u32::from(n), identity(n).public()));
        let mut relay = Relay::new(config, identity(1), secret(), origins, [4; 32], START, UNIX_MS);
        for (n, address) in [(2, FAR), (9, HOST)] {
            let link = LinkConfig { key: identity(n).public(), address, endpoint: None };
            relay.add_link(START, &link).expect("room for two");
        }
        let session = shoal_session::SessionConfig::new(SessionRole::Link);
        let mut far = Sessions::new(session, identity(2), secret(), [5; 32], START, UNIX_MS);
        let me = far.add_peer(identity(1).public()).expect("room for one");
        far.set_endpoint(me, Some(socket(1)));
        far.connect(START, me);
        let mut pair = RelayRig { now: START, relay, far, me, wire: RelaySends::default() };
        for _ in 0..ROUNDS_MAX {
            pair.work();
            pair.greet();
        }
        assert!(pair.far.is_live(START, me), "the far end has no keys");
        pair
    }

    /// Delivers the handshakes and answers of the far end's sessions.
    fn greet(&mut self) {
        let mut frame = [0; FULL];
        while let Some(job) = self.far.poll_job() {
            self.far.handle_done(self.now, job.run());
        }
        while let Some((_, _, len)) = self.far.poll_transmit(self.now, &mut frame) {
            self.hand_over(&mut frame[..len]);
        }
        for (to, mut frame) in core::mem::take(&mut self.wire.sent) {
            if to != socket(2) {
                continue;
            }
            let mut opened = Vec::new();
            let len = frame.len();
            self.far.open_batch(self.now, &mut frame, &[0], len, &mut opened);
            if opened[0].opened().is_err() {
                let _ = self.far.handle_handshake(self.now, socket(1), &mut frame);
            }
        }
        while self.far.poll_event().is_some() {}
    }

    fn hand_over(&mut self, frame: &mut [u8]) {
        let incoming = [one(socket(2), frame.len())];
        let mut turn = CallContext { now: self.now, sink: &mut self.wire, hand: &mut () };
        let from = ArrivalSource::Socket;
        self.relay
            .handle_batch(&mut turn, frame, &incoming, from, &mut |_, cells, _| cells.count());
    }

    /// Serves the relay until it asks for nothing more, and checks that this ends.
    fn work(&mut self) {
        let now = self.now;
        for call in 0.. {
            assert!(call < CALLS_MAX, "the relay is never satisfied");
            while let Some(job) = self.relay.poll_job() {
                self.relay.handle_done(now, job.run(), &mut self.wire);
            }
            let mut events = 0;
            while self.relay.poll_event().is_some() {
                events += 1;
                assert!(events < OUTPUTS_MAX, "events end");
            }
            match self.relay.poll_timeout() {
                Some((at, _)) if at <= now => self.relay.handle_timeout(now, &mut self.wire),
                _ => break,
            }
        }
        self.wire.frames = 0;
        for view in self.relay.links() {
            let EgressConfig { data_frames_max, control_frames_max, .. } = EgressConfig::default();
            let most = data_frames_max + control_frames_max + 3 * RUN_MAX;
            assert!(view.waiting <= most, "{} cells wait", view.waiting);
        }
    }

    /// The far end seals `plain`, from the input, and sends it.
    fn say(&mut self, class: SizeClass, plain: &[u8]) {
        let mut frame = [0; FULL];
        let frame = &mut frame[..class.frame_len()];
        let room = frame.len() - link::KIND_AT - shoal_wire::TAG_LEN;
        let len = plain.len().min(room);
        frame[link::KIND_AT..link::KIND_AT + len].copy_from_slice(&plain[..len]);
        if self.far.seal_batch(self.now, self.me, 0, frame, &[0], class.frame_len()).is_ok() {
            self.hand_over(frame);
        }
    }
}

/// A relay with an authentic, hostile neighbour.
pub fn relay(data: &[u8]) {
    let mut pair = RelayRig::new();
    for (verb, bytes) in steps(data) {
        let class = SizeClass::ALL[usize::from(verb >> 4) % SizeClass::ALL.len()];
        match verb % 8 {
            0..=3 => pair.say(class, bytes),
            4 => {
                let mut frame = bytes.to_vec();
                frame.resize(frame.len().clamp(1, 2 * FULL), 0);
                pair.hand_over(&mut frame);
            }
            5 => {
                pair.now = pair.now + span(bytes);
                pair.far.handle_timeout(pair.now);
            }
            6 => {
                let stops = [
                    None,
                    Some(SendError::Full),
                    Some(SendError::Failed),
                    Some(SendError::TooLong),
                ];
                pair.wire.stop = stops[usize::from(verb >> 6)];
            }
            _ => {
                let mut frame = vec![0; class.frame_len()];
                let dst = if verb > 127 { FAR } else { Address::new(5, 1) };
                let header = RoutedHeader::new(dst, ME, TrafficClass::Bulk);
                frame[link::ROUTED_AT..link::CELL_AT].copy_from_slice(&header_bytes(&header));
                let mut turn = CallContext { now: pair.now, sink: &mut pair.wire, hand: &mut () };
                let len = class.frame_len();
                pair.relay.send_cells(&mut turn, LinkKind::Cell, &mut frame, &[0], len);
            }
        }
        pair.work();
        pair.greet();
        pair.work();
    }
}

fn header_bytes(header: &RoutedHeader) -> [u8; RoutedHeader::LEN] {
    zerocopy::transmute!(*header)
}

/// Cells sent by an edge.
#[derive(Default)]
struct EdgeSends(Vec<Vec<u8>>, usize);

impl EdgeOutput for EdgeSends {
    fn cells(&mut self, _: Time, buf: &mut [u8], offsets: &[u32], len: usize) {
        self.1 += offsets.len();
        assert!(self.1 < OUTPUTS_MAX, "sending ends");
        let frames = offsets.iter().map(|&at| buf[at as usize..at as usize + len].to_vec());
        self.0.extend(frames.take(64));
        self.0.truncate(256);
    }

    fn room(&self, _: Address) -> usize {
        512
    }

    fn is_congested(&self, _: Address) -> bool {
        false
    }

    fn may_go_direct(&self, _: Address) -> bool {
        false
    }

    fn direct(&mut self, _: Time, _: &mut [u8], _: &[u32], _: usize) {
        unreachable!("there is no direct link")
    }

    fn unit(&mut self, _: Time, _: CircuitId, _: &mut [u8], _: &[u32]) {
        unreachable!("there is no circuit")
    }

    fn hidden_handshake(&mut self, _: Time, _: CircuitId, _: &[u8]) {
        unreachable!("there is no circuit")
    }

    fn circuit_room(&self, _: CircuitId) -> usize {
        0
    }

    fn circuit_is_congested(&self, _: CircuitId) -> bool {
        false
    }
}

/// A host, and another one played by the input.
struct EdgeRig {
    now: Time,
    edge: Edge,
    far: Sessions<Address>,
    me: PeerId,
    out: EdgeSends,
    gate: AddressGate,
    fragments: Fragments,
    merge: PacketMerger,
}

/// Start of a cell's end-to-end plaintext in its frame.
const PLAIN_AT: usize = link::CELL_AT + edge::KIND_AT;
const NEAR_HOST: Address = Address::new(1, 1);
const FAR_HOST: Address = Address::new(2, 1);

impl EdgeRig {
    fn new() -> EdgeRig {
        let config = shoal_edge::EdgeConfig {
            address: NEAR_HOST,
            session: shoal_session::SessionConfig::new(SessionRole::Edge),
            transfer: shoal_transfer::TransferConfig::default(),
            echo_max: 16,
            direct: None,
            events_max: 64,
            ip: true,
        };
        let mut edge = Edge::new(config, identity(1), secret(), [4; 32], START, UNIX_MS);
        let host = HostConfig { key: identity(2).public(), address: FAR_HOST };
        let id = edge.add_host(&host).expect("room for one").bits();
        let addresses = |n: u8| {
            let v4 = Ipv4Addr::new(10, 0, 0, n).to_ipv6_mapped();
            [Ipv6Addr::new(0xfd00, 0, 0, 0, 0, 0, 0, n.into()), v4]
        };
        let mut gate = AddressGate::new(addresses(1).to_vec(), ip::PACKET_MAX);
        for address in addresses(2) {
            gate.add(id, address).expect("a new address");
        }
        let session = shoal_session::SessionConfig::new(SessionRole::Edge);
        let mut far = Sessions::new(session, identity(2), secret(), [5; 32], START, UNIX_MS);
        let me = far.add_peer(identity(1).public()).expect("room for one");
        far.set_endpoint(me, Some(NEAR_HOST));
        far.connect(START, me);
        let (fragments, merge) = (Fragments::default(), PacketMerger::new(true, true));
        let out = EdgeSends::default();
        let mut pair = EdgeRig { now: START, edge, far, me, out, gate, fragments, merge };
        for _ in 0..ROUNDS_MAX {
            pair.work();
            pair.greet();
        }
        assert!(pair.far.is_live(START, me), "the far host has no keys");
        pair
    }

    fn greet(&mut self) {
        while let Some(job) = self.far.poll_job() {
            self.far.handle_done(self.now, job.run());
        }
        let mut frame = [0; FULL];
        let whole = link::CELL_AT..link::CELL_AT + SizeClass::Full.cell_len();
        while let Some((_, _, len)) = self.far.poll_transmit(self.now, &mut frame[whole.clone()]) {
            let fits = |class: &SizeClass| class.cell_len() == len;
            let class = SizeClass::ALL.into_iter().find(fits).expect("a handshake fills a cell");
            self.hand_over(&mut frame[..class.frame_len()]);
        }
        for mut cell in core::mem::take(&mut self.out.0) {
            let len = cell.len() - link::CELL_AT - shoal_wire::TAG_LEN;
            let mut opened = Vec::new();
            let at = [link::CELL_AT as u32];
            self.far.open_batch(self.now, &mut cell, &at, len, &mut opened);
            if opened[0].opened().is_err() {
                let body = &mut cell[link::CELL_AT..link::CELL_AT + len];
                let _ = self.far.handle_handshake(self.now, NEAR_HOST, body);
            }
        }
        while self.far.poll_event().is_some() {}
    }

    fn hand_over(&mut self, frame: &mut [u8]) {
        let header = RoutedHeader::new(NEAR_HOST, FAR_HOST, TrafficClass::Bulk);
        frame[link::ROUTED_AT..link::CELL_AT].copy_from_slice(&header_bytes(&header));
        let len = frame.len();
        let cells = shoal_edge::InboundCells::new(frame, &[0], len);
        self.edge.handle_cells(self.now, cells, &mut ());
        self.check_packets(frame);
    }

    /// Checks the packets of the cell in `frame`. They fill the plaintext. Each is refused, waits
    /// for its first fragment, or is written once.
    fn check_packets(&mut self, frame: &[u8]) {
        let EdgeRig { now, edge, gate, fragments, merge, .. } = self;
        let arrivals = edge.arrivals();
        let (Some(first), Some(last)) = (arrivals.first(), arrivals.last()) else { return };
        let end = frame.len() - 2 * shoal_wire::TAG_LEN;
        assert_eq!((first.at as usize, (last.at + last.len) as usize), (PLAIN_AT, end));
        assert!(arrivals.windows(2).all(|pair| pair[0].at + pair[0].len == pair[1].at));
        let (mut passed, mut written) = (0, 0);
        let mut write = |_: &[u8], pieces: &[BufferSlice]| written += pieces.len();
        for arrival in arrivals {
            let plain = &frame[arrival.at as usize..][..arrival.len as usize];
            let (host, bytes) = (arrival.host.bits(), &plain[ip::PACKET_AT..]);
            let Ok(packet) = gate.inbound(host, bytes) else { continue };
            let judge = || match packet.is_error(bytes) {
                true => packet.quote(bytes).map(|_| ()),
                false => packet.transport(bytes).map(|_| ()),
            };
            let action = fragments.take(*now, host, (&packet, bytes), judge);
            if matches!(action, Ok(FragmentAction::Pass | FragmentAction::Release)) {
                passed += 1;
                let at = arrival.at + ip::PACKET_AT as u32;
                merge.push(frame, at, &packet, plain[ip::FLAGS_AT], &mut write);
            }
            fragments.take_released().for_each(drop);
        }
        merge.finish(&mut write);
        assert_eq!(written, passed, "each packet is written once");
        fragments.take_drops(*now).for_each(drop);
    }

    fn say(&mut self, class: SizeClass, plain: &[u8]) {
        let mut frame = [0; FULL];
        let frame = &mut frame[..class.frame_len()];
        let header = RoutedHeader::new(NEAR_HOST, FAR_HOST, TrafficClass::Bulk);
        frame[link::ROUTED_AT..link::CELL_AT].copy_from_slice(&header_bytes(&header));
        let len = plain.len().min(class.edge_len());
        frame[PLAIN_AT..PLAIN_AT + len].copy_from_slice(&plain[..len]);
        let cell = [link::CELL_AT as u32];
        if self.far.seal_batch(self.now, self.me, 0, frame, &cell, class.cell_len()).is_ok() {
            self.hand_over(frame);
        }
    }

    fn work(&mut self) {
        let now = self.now;
        for call in 0.. {
            assert!(call < CALLS_MAX, "the edge is never satisfied");
            while let Some(job) = self.edge.poll_job() {
                self.edge.handle_done(now, job.run());
            }
            self.edge.drive(now, &mut self.out);
            let mut events = 0;
            while let Some(event) = self.edge.poll_event() {
                events += 1;
                assert!(events < OUTPUTS_MAX, "events end");
                self.serve(event);
            }
            match self.edge.poll_timeout() {
                Some((at, _)) if at <= now => self.edge.handle_timeout(now),
                _ => break,
            }
        }
        self.out.1 = 0;
        let _ = self.edge.take_drops();
    }

    /// A shell whose file hashes are all wrong: zeroes.
    fn serve(&mut self, event: EdgeEvent) {
        let EdgeEvent::Transfer(event) = event else { return };
        let (now, transfers) = (self.now, self.edge.transfers());
        match event {
            FileEvent::Offered { id, .. } => transfers.accept(now, id, &ChunkSet::default()),
            FileEvent::Read { id, index, buffer, .. } => {
                transfers.chunk_read(now, id, index, buffer);
            }
            FileEvent::Write { id, index, data, .. } => {
                transfers.chunk_written(now, id, index, data);
            }
            FileEvent::HashWanted { id } => transfers.sink_hash(now, id, [0; 32]),
            FileEvent::Complete { id, .. } => transfers.confirm(now, id),
            FileEvent::Accepted { .. } | FileEvent::Finished { .. } | FileEvent::Failed { .. } => {}
        }
    }
}

/// The plaintext of a cell with packets from `pieces`: each is `[length][bytes]`. Packets get the
/// length that they have in their IP header, so that others can follow them.
fn shared_cell(mut pieces: &[u8]) -> Vec<u8> {
    let mut plain = Vec::<u8>::new();
    while let Some((&len, rest)) = pieces.split_first() {
        let (packet, later) = rest.split_at(usize::from(len).min(rest.len()));
        pieces = later;
        plain.extend([EdgeKind::Ip as u8, ip::PARTIAL]);
        let (at, len) = (plain.len(), packet.len() as u16);
        plain.extend_from_slice(packet);
        match packet.first().map(|first| first >> 4) {
            Some(4) if len >= 20 => plain[at + 2..at + 4].copy_from_slice(&len.to_be_bytes()),
            Some(6) if len >= 40 => {
                plain[at + 4..at + 6].copy_from_slice(&(len - 40).to_be_bytes())
            }
            _ => {}
        }
    }
    plain
}

/// An edge with an authentic, hostile peer.
pub fn edge(data: &[u8]) {
    let mut pair = EdgeRig::new();
    for (verb, bytes) in steps(data) {
        let class = SizeClass::ALL[usize::from(verb >> 4) % SizeClass::ALL.len()];
        match verb % 8 {
            0..=3 => pair.say(class, bytes),
            4 => pair.say(class, &shared_cell(bytes)),
            5 => {
                let mut frame = vec![0; class.frame_len()];
                let len = bytes.len().min(frame.len() - link::CELL_AT);
                frame[link::CELL_AT..link::CELL_AT + len].copy_from_slice(&bytes[..len]);
                pair.hand_over(&mut frame);
            }
            6 => {
                // No timer is left after a few minutes.
                pair.now = pair.now + span(bytes).min(Duration::from_secs(400));
                pair.far.handle_timeout(pair.now);
            }
            _ => {
                let offer = shoal_transfer::OfferInfo {
                    name: "file".into(),
                    size: bytes.iter().take(3).fold(0, |size, &b| size << 8 | u64::from(b)),
                    modified_ns: 1,
                    file_id: [verb; 16],
                    executable: false,
                    segment: shoal_transfer::SegmentLen::FULL,
                };
                if let Some(host) = pair.edge.host_at(FAR_HOST) {
                    let _ = pair.edge.offer(pair.now, host, offer);
                    let _ = pair.edge.ping(host, 1, verb.into());
                }
            }
        }
        pair.work();
        pair.greet();
        pair.work();
    }
}
