//! Arbitrary messages of a peer: no panic, bounded tables, `poll_timeout` due while output waits.

use proptest::prelude::*;
use shoal_transfer::{
    CancelReason, ChunkSet, FileTransferEvent, OfferInfo, PeerKey, RefuseReason, SegmentLen,
    TransferConfig, Transfers,
};
use shoal_wire::Time;
use shoal_wire::transfer::{
    CHUNK_BITMAP_LEN, FileAcceptance, FileOffer, Nack, Segment, SenderClock, TransferEnd,
    TransferMessage,
};

const TRANSFERS_MAX: usize = 8;

#[derive(Clone, Debug)]
enum PeerAct {
    Offer { port: u16, nonce: u32, size: u64 },
    Accept { port: u16, nonce: u32, part: u8, parts: u8, have: (u32, u32) },
    Nack { port: u16, fields: [u32; 6], stamps: [u32; 5], chunks: usize, byte: u8 },
    Fin { port: u16, nonce: u32, hash: u8 },
    Done { port: u16, nonce: u32 },
    Cadence { port: u16, interval_us: u32 },
    Cancel { port: u16, sender: bool, reason: usize },
    Refuse { port: u16, nonce: u32 },
    Segment { port: u16, sent: u32, segment: u32, marked: bool },
    OwnOffer { size: u64 },
    Pass { us: u64 },
    Command { which: u8 },
    PeerLost,
}

fn port() -> impl Strategy<Value = u16> {
    0u16..6
}

fn nonce() -> impl Strategy<Value = u32> {
    0u32..3
}

fn number() -> impl Strategy<Value = u32> {
    prop_oneof![0u32..500, any::<u32>()]
}

fn size() -> impl Strategy<Value = u64> {
    prop_oneof![0u64..1_000_000, any::<u64>(), Just(OfferInfo::SIZE_MAX)]
}

fn act() -> impl Strategy<Value = PeerAct> {
    let fields = prop::array::uniform6(number());
    let stamps = prop::array::uniform5(any::<u32>());
    prop_oneof![
        (port(), nonce(), 0u64..3_000_000).prop_map(|(port, nonce, size)| PeerAct::Offer {
            port,
            nonce,
            size
        }),
        (port(), nonce(), 0u8..3, 1u8..3, (number(), 1u32..9)).prop_map(
            |(port, nonce, part, parts, have)| PeerAct::Accept { port, nonce, part, parts, have }
        ),
        (port(), fields, stamps, 0usize..6, any::<u8>()).prop_map(
            |(port, fields, stamps, chunks, byte)| PeerAct::Nack {
                port,
                fields,
                stamps,
                chunks,
                byte
            }
        ),
        (port(), nonce(), 0u8..3).prop_map(|(port, nonce, hash)| PeerAct::Fin {
            port,
            nonce,
            hash
        }),
        (port(), nonce()).prop_map(|(port, nonce)| PeerAct::Done { port, nonce }),
        (port(), number()).prop_map(|(port, interval_us)| PeerAct::Cadence { port, interval_us }),
        (port(), any::<bool>(), 0usize..10).prop_map(|(port, sender, reason)| PeerAct::Cancel {
            port,
            sender,
            reason
        }),
        (port(), nonce()).prop_map(|(port, nonce)| PeerAct::Refuse { port, nonce }),
        (port(), any::<u32>(), number(), any::<bool>()).prop_map(
            |(port, sent, segment, marked)| PeerAct::Segment { port, sent, segment, marked }
        ),
        size().prop_map(|size| PeerAct::OwnOffer { size }),
        (0u64..50_000_000).prop_map(|us| PeerAct::Pass { us }),
        (0u64..20_000).prop_map(|us| PeerAct::Pass { us }),
        any::<u8>().prop_map(|which| PeerAct::Command { which }),
        Just(PeerAct::PeerLost),
    ]
}

struct HostileRig {
    now: u64,
    transfers: Transfers,
    /// Transfers that the last events named.
    ids: Vec<shoal_transfer::TransferId>,
    /// Ports and nonces that this end chose, for the peer to hit.
    mine: Vec<(u16, u32)>,
}

impl HostileRig {
    fn new() -> HostileRig {
        let config = TransferConfig { transfers_max: TRANSFERS_MAX, ..TransferConfig::default() };
        let transfers = Transfers::new(config, [5; 32], Time(0));
        HostileRig { now: 0, transfers, ids: Vec::new(), mine: Vec::new() }
    }

    fn say(&mut self, message: &TransferMessage<'_>) {
        let mut out = [0; 1_376];
        if let Some(len) = message.encode(&mut out) {
            let _ = self.transfers.handle_message(Time(self.now), PeerKey(1), &out[..len], false);
        }
    }

    /// Port and nonce of one of this end's own transfers, or the drawn ones.
    fn aim(&self, port: u16, nonce: u32) -> (u16, u32) {
        self.mine.get(usize::from(port)).copied().unwrap_or((port, nonce))
    }

    fn act(&mut self, act: PeerAct) {
        let now = Time(self.now);
        let peer = PeerKey(1);
        match act {
            PeerAct::Offer { port, nonce, size } => self.say(&TransferMessage::Offer(FileOffer {
                port,
                nonce,
                size,
                modified_ns: 0,
                file_id: [port as u8; 16],
                executable: false,
                // Some offers have the segments of a circuit.
                segment: if port < 4 { SegmentLen::FULL } else { SegmentLen::MIN },
                name: "name",
            })),
            PeerAct::Accept { port, nonce, part, parts, have } => {
                let (port, nonce) = self.aim(port, nonce);
                let have = vec![have];
                let accept = FileAcceptance { port, nonce, part, parts, have };
                self.say(&TransferMessage::Accept(accept));
            }
            PeerAct::Nack { port, fields, stamps, chunks, byte } => {
                let (port, _) = self.aim(port, 0);
                self.nack(port, fields, stamps, &vec![byte; chunks * CHUNK_BITMAP_LEN]);
            }
            PeerAct::Fin { port, nonce, hash } => {
                self.say(&TransferMessage::Fin { port, nonce, hash: [hash; 32] });
            }
            PeerAct::Done { port, nonce } => {
                let (port, nonce) = self.aim(port, nonce);
                self.say(&TransferMessage::Done { port, nonce });
            }
            PeerAct::Cadence { port, interval_us } => {
                self.say(&TransferMessage::Cadence { port, interval_us });
            }
            PeerAct::Cancel { port, sender, reason } => {
                let port = if sender { port } else { self.aim(port, 0).0 };
                let role = if sender { TransferEnd::Sender } else { TransferEnd::Receiver };
                let reason = CancelReason::ALL[reason];
                self.say(&TransferMessage::Cancel { port, role, reason });
            }
            PeerAct::Refuse { port, nonce } => {
                let (port, nonce) = self.aim(port, nonce);
                self.say(&TransferMessage::Refuse { port, nonce, reason: RefuseReason::Busy });
            }
            PeerAct::Segment { port, sent, segment, marked } => {
                let mut cell = [0; 1_376];
                let header = Segment { port, sent: SenderClock::new(sent), segment };
                cell[..10].copy_from_slice(&header.to_bytes());
                let _ = self.transfers.handle_segment(now, peer, &cell, marked);
            }
            PeerAct::OwnOffer { size } => {
                let (name, segment) = ("mine".into(), SegmentLen::FULL);
                let (modified_ns, file_id, executable) = (0, [9; 16], true);
                let info = OfferInfo { name, size, modified_ns, file_id, executable, segment };
                let _ = self.transfers.offer(now, peer, info);
            }
            PeerAct::Pass { us } => {
                self.now += us * 1_000;
                self.transfers.handle_timeout(Time(self.now));
            }
            PeerAct::Command { which } => self.command(which),
            PeerAct::PeerLost => self.transfers.peer_lost(now, peer),
        }
    }

    fn nack(&mut self, port: u16, fields: [u32; 6], stamps: [u32; 5], bitmap: &[u8]) {
        let [number, floor, limit, received, marked, first] = fields;
        let [echo, hold, arrived, delay, reorder] = stamps.map(SenderClock::new);
        self.say(&TransferMessage::Nack(Nack {
            port,
            number,
            floor,
            limit,
            echo,
            hold,
            arrived,
            delay,
            reorder,
            received,
            duplicates: 0,
            marked,
            first,
            bitmap,
        }));
    }

    fn command(&mut self, which: u8) {
        let now = Time(self.now);
        let Some(&id) = self.ids.get(usize::from(which) / 8) else { return };
        match which % 8 {
            0 if which > 127 => self.transfers.compare(now, id),
            0 => self.transfers.accept(now, id, &ChunkSet::new(3)),
            1 => self.transfers.refuse(now, id, RefuseReason::Denied),
            2 => self.transfers.sink_hash(now, id, [1; 32]),
            3 => self.transfers.source_hash(now, id, [1; 32]),
            4 => self.transfers.confirm(now, id),
            5 => self.transfers.cancel(now, id, CancelReason::Cancelled),
            6 => self.transfers.chunk_written(now, id, 0, vec![0; 7].into()),
            _ => self.transfers.chunk_read(now, id, 1, vec![0; 262_272].into()),
        }
    }

    fn drain(&mut self) {
        let now = Time(self.now);
        let mut cell = [0; 1_376];
        for round in 0.. {
            assert!(round < 10_000, "draining ends");
            let mut idle = true;
            while let Some((_, len)) = self.transfers.poll_message(now, &mut cell) {
                idle = false;
                if let Ok(TransferMessage::Offer(offer)) = TransferMessage::parse(&cell[..len]) {
                    self.mine.push((offer.port, offer.nonce));
                }
            }
            while let Some(burst) = self.transfers.poll_burst(now, 44, &mut |_| false) {
                idle = false;
                (0..burst.count).for_each(|i| self.transfers.write_segment(&burst, i, &mut cell));
            }
            while let Some(event) = self.transfers.poll_event() {
                idle = false;
                self.event(event);
            }
            if idle {
                break;
            }
        }
        if let Some((at, why)) = self.transfers.poll_timeout() {
            assert!(at > now || why.starts_with("transfer idle"), "{why} waits after draining");
        }
        let (sending, receiving) = self.transfers.counts();
        assert!(sending <= TRANSFERS_MAX && receiving <= TRANSFERS_MAX);
        self.mine.truncate(64);
        self.ids.truncate(64);
    }

    fn event(&mut self, event: FileTransferEvent) {
        let now = Time(self.now);
        match event {
            FileTransferEvent::Offered { id, info, .. } => {
                self.ids.push(id);
                if info.size % 3 != 0 {
                    self.transfers.accept(now, id, &ChunkSet::new(info.chunks()));
                }
            }
            FileTransferEvent::Read { id, index, buffer, .. } => {
                self.ids.push(id);
                self.transfers.chunk_read(now, id, index, buffer);
            }
            FileTransferEvent::Write { id, index, data, .. } => {
                self.transfers.chunk_written(now, id, index, data);
            }
            _ => {}
        }
    }
}

proptest! {
    #![proptest_config(ProptestConfig {
        cases: 200.min(ProptestConfig::default().cases),
        failure_persistence: None,
        ..Default::default()
    })]

    #[test]
    fn survives_anything(acts in prop::collection::vec(act(), 1..120)) {
        let mut rig = HostileRig::new();
        for act in acts {
            rig.act(act);
            rig.drain();
        }
    }
}
