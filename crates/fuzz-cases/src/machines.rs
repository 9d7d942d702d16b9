//! State machines behind the seals: for all input from an authentic peer, nothing panics, queued
//! output makes `poll_timeout` due, and draining ends.
//!
//! An input is a list of steps, each `[verb][length u16][bytes]`; a length beyond the end takes the
//! remaining bytes.

use core::net::SocketAddr;
use core::time::Duration;

use shoal_crypto::{Identity, NetworkSecret};
use shoal_routing::Routing;
use shoal_session::{FormerKeys, FormerPeer, SessionRole, Sessions};
use shoal_transfer::{
    ChunkSet, FileTransferEvent, OfferInfo, PeerKey, SegmentLen, TransferId, Transfers,
};
use shoal_wire::{LinkId, Removal, RemovalReason, RoutingMessage, SizeClass, Time};

/// Maximum number of outputs per step; more means that draining doesn't end.
const OUTPUTS_MAX: usize = 20_000;
const PEER: PeerKey = PeerKey(1);

pub(crate) fn steps(mut data: &[u8]) -> impl Iterator<Item = (u8, &[u8])> {
    core::iter::from_fn(move || {
        let (&[verb, high, low], rest) = data.split_first_chunk::<3>()?;
        let len = usize::from(u16::from_be_bytes([high, low])).min(rest.len());
        let (bytes, rest) = rest.split_at(len);
        data = rest;
        Some((verb, bytes))
    })
}

pub(crate) fn span(bytes: &[u8]) -> Duration {
    let ms = bytes.iter().take(2).fold(0, |ms, &byte| ms << 8 | u64::from(byte));
    Duration::from_millis(ms)
}

/// File transfers, driven by the input.
pub fn transfer(data: &[u8]) {
    let mut now = Time::from_millis(1_000);
    let mut machine = Transfers::new(shoal_transfer::TransferConfig::default(), [1; 32], now);
    let mut known: Vec<TransferId> = Vec::new();
    for (verb, bytes) in steps(data) {
        let id = bytes.first().and_then(|&at| known.get(usize::from(at) % known.len().max(1)));
        let id = id.copied().unwrap_or(TransferId(0));
        match verb % 8 {
            0 => _ = machine.handle_message(now, PEER, bytes, false),
            1 => {
                let mut body = bytes.to_vec();
                body.resize(SizeClass::Full.edge_len(), 0);
                let _ = machine.handle_segment(now, PEER, &body, verb > 127);
            }
            2 => {
                now = now + span(bytes);
                machine.handle_timeout(now);
            }
            3 => machine.accept(now, id, &ChunkSet::default()),
            4 => {
                let size = bytes.iter().take(4).fold(0, |size, &b| size << 8 | u64::from(b));
                let offer = OfferInfo {
                    name: "file".into(),
                    size: size % 3_000_000,
                    modified_ns: 1,
                    file_id: [7; 16],
                    executable: false,
                    segment: SegmentLen::FULL,
                };
                known.extend(machine.offer(now, PEER, offer));
            }
            5 => machine.sink_hash(now, id, [bytes.len() as u8; 32]),
            6 => machine.source_hash(now, id, [bytes.len() as u8; 32]),
            _ => machine.peer_lost(now, PeerKey(u32::from(verb))),
        }
        known.truncate(64);
        drain_transfer(now, &mut machine, &mut known);
    }
}

fn drain_transfer(now: Time, machine: &mut Transfers, known: &mut Vec<TransferId>) {
    let mut out = vec![0; SizeClass::Full.edge_len()];
    let mut left = OUTPUTS_MAX;
    let mut spend = || {
        left = left.checked_sub(1).expect("draining ends");
    };
    while machine.poll_message(now, &mut out).is_some() {
        spend();
    }
    while let Some(burst) = machine.poll_burst(now, 44, &mut |_| false) {
        for i in 0..burst.count {
            machine.write_segment(&burst, i, &mut out);
        }
        spend();
    }
    while let Some(event) = machine.poll_event() {
        spend();
        match event {
            FileTransferEvent::Read { id, index, buffer, .. } => {
                machine.chunk_read(now, id, index, buffer)
            }
            FileTransferEvent::Write { id, index, data, .. } => {
                machine.chunk_written(now, id, index, data)
            }
            FileTransferEvent::Offered { id, .. } => known.push(id),
            _ => {}
        }
    }
}

/// A router whose neighbours send messages from the input.
pub fn routing(data: &[u8]) {
    let identity = |router: u32| Identity::from_seed([router as u8; 32]);
    let origins = (1..6).map(|router| (router, identity(router).public()));
    let mut now = Time::from_millis(1_000);
    let config = shoal_routing::Config::default();
    let mut machine = Routing::new(config, 1, identity(1), origins, [2; 32], now, 1_800_000_000);
    let mut up = [false; 4];
    for (verb, bytes) in steps(data) {
        let at = usize::from(verb >> 4) % up.len();
        let link = LinkId::from_bits(at as u32);
        match verb % 4 {
            0 => {
                machine.link_up(now, link, at as u32 + 2);
                up[at] = true;
            }
            1 => {
                machine.link_down(now, link);
                up[at] = false;
            }
            2 => {
                let Some((&kind, body)) = bytes.split_first() else { continue };
                let Ok(message) = RoutingMessage::parse(kind, body) else { continue };
                let _ = machine.handle_message(now, link, message);
            }
            _ => {
                now = now + span(bytes);
                machine.handle_timeout(now);
            }
        }
        let sent = core::iter::from_fn(|| machine.poll_transmit()).take(OUTPUTS_MAX).count();
        let said = core::iter::from_fn(|| machine.poll_event()).take(OUTPUTS_MAX).count();
        assert!(sent < OUTPUTS_MAX && said < OUTPUTS_MAX, "draining ends");
        for router in 0..8 {
            let hop = machine.table().next_hop(router);
            assert!(hop.is_none_or(|hop| up[hop.bits() as usize]), "a route over a dead link");
        }
    }
}

/// A session machine that receives handshakes and frames from the input.
pub fn session(data: &[u8]) {
    let now = Time::from_millis(1_000);
    let config = shoal_session::SessionConfig::new(SessionRole::Link);
    let secret = NetworkSecret([3; 32]);
    let me = Identity::from_seed([1; 32]);
    let mut machine = Sessions::new(config, me, secret, [4; 32], now, 1_800_000_000_000);
    let peer = machine.add_peer(Identity::from_seed([2; 32]).public()).expect("room for one");
    let removal = Removal { reason: RemovalReason::Registrar, day: 20_000 };
    let gone = FormerPeer { key: Identity::from_seed([5; 32]).public(), removal };
    machine.set_former(FormerKeys::new([gone]).into());
    let stranger = SocketAddr::from(([10, 0, 0, 9], 7_400));
    machine.set_endpoint(peer, Some(stranger));
    let mut out = vec![0; SizeClass::Full.frame_len()];
    for (verb, bytes) in steps(data) {
        let class = SizeClass::ALL[usize::from(verb) % SizeClass::ALL.len()];
        let mut frame = bytes.to_vec();
        frame.resize(class.frame_len(), verb);
        let mut opened = Vec::new();
        machine.open_batch(now, &mut frame, &[0], class.frame_len(), &mut opened);
        assert!(opened.iter().all(|opening| opening.opened().is_err()), "nobody has a key");
        assert!(machine.handle_handshake(now, stranger, &mut frame).is_err());
        assert!(machine.poll_transmit(now, &mut out).is_none(), "silence to strangers");
        assert!(machine.poll_job().is_none(), "no work for strangers");
    }
}
