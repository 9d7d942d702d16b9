//! Arbitrary messages of a peer: no panic, bounded tables, `poll_timeout` due while output waits.

use proptest::prelude::*;
use shoal_transfer::{
    CancelReason, ChunkSet, Config, Event, OfferInfo, PeerKey, RefuseReason, SegmentLen, Transfers,
};
use shoal_wire::Time;
use shoal_wire::transfer::{Accept, CHUNK_BITMAP_LEN, Nack, Offer, Role, Segment, Stamp, Transfer};

const TRANSFERS_MAX: usize = 8;

#[derive(Clone, Debug)]
enum Act {
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

fn act() -> impl Strategy<Value = Act> {
    let fields = prop::array::uniform6(number());
    let stamps = prop::array::uniform5(any::<u32>());
    prop_oneof![
        (port(), nonce(), 0u64..3_000_000).prop_map(|(port, nonce, size)| Act::Offer {
            port,
            nonce,
            size
        }),
        (port(), nonce(), 0u8..3, 1u8..3, (number(), 1u32..9)).prop_map(
            |(port, nonce, part, parts, have)| Act::Accept { port, nonce, part, parts, have }
        ),
        (port(), fields, stamps, 0usize..6, any::<u8>()).prop_map(
            |(port, fields, stamps, chunks, byte)| Act::Nack { port, fields, stamps, chunks, byte }
        ),
        (port(), nonce(), 0u8..3).prop_map(|(port, nonce, hash)| Act::Fin { port, nonce, hash }),
        (port(), nonce()).prop_map(|(port, nonce)| Act::Done { port, nonce }),
        (port(), number()).prop_map(|(port, interval_us)| Act::Cadence { port, interval_us }),
        (port(), any::<bool>(), 0usize..10).prop_map(|(port, sender, reason)| Act::Cancel {
            port,
            sender,
            reason
        }),
        (port(), nonce()).prop_map(|(port, nonce)| Act::Refuse { port, nonce }),
        (port(), any::<u32>(), number(), any::<bool>())
            .prop_map(|(port, sent, segment, marked)| Act::Segment { port, sent, segment, marked }),
        size().prop_map(|size| Act::OwnOffer { size }),
        (0u64..50_000_000).prop_map(|us| Act::Pass { us }),
        (0u64..20_000).prop_map(|us| Act::Pass { us }),
        any::<u8>().prop_map(|which| Act::Command { which }),
        Just(Act::PeerLost),
    ]
}

struct Rig {
    now: u64,
    transfers: Transfers,
    /// What the shell was last asked about.
    ids: Vec<shoal_transfer::TransferId>,
    /// Ports and nonces that this end chose, so that the peer can hit them.
    mine: Vec<(u16, u32)>,
}

impl Rig {
    fn new() -> Rig {
        let config = Config { transfers_max: TRANSFERS_MAX, ..Config::default() };
        let transfers = Transfers::new(config, [5; 32], Time(0));
        Rig { now: 0, transfers, ids: Vec::new(), mine: Vec::new() }
    }

    fn say(&mut self, message: &Transfer<'_>) {
        let mut out = [0; 1_376];
        if let Some(len) = message.encode(&mut out) {
            let _ = self.transfers.handle_message(Time(self.now), PeerKey(1), &out[..len], false);
        }
    }

    /// Port and nonce of one of this end's own transfers, or those that were drawn.
    fn aim(&self, port: u16, nonce: u32) -> (u16, u32) {
        self.mine.get(usize::from(port)).copied().unwrap_or((port, nonce))
    }

    fn act(&mut self, act: Act) {
        let now = Time(self.now);
        let peer = PeerKey(1);
        match act {
            Act::Offer { port, nonce, size } => self.say(&Transfer::Offer(Offer {
                port,
                nonce,
                size,
                modified_ns: 0,
                file_id: [port as u8; 16],
                executable: false,
                // Some with segments of a circuit.
                segment: if port < 4 { SegmentLen::FULL } else { SegmentLen::MIN },
                name: "name",
            })),
            Act::Accept { port, nonce, part, parts, have } => {
                let (port, nonce) = self.aim(port, nonce);
                let have = vec![have];
                self.say(&Transfer::Accept(Accept { port, nonce, part, parts, have }));
            }
            Act::Nack { port, fields, stamps, chunks, byte } => {
                let (port, _) = self.aim(port, 0);
                self.nack(port, fields, stamps, &vec![byte; chunks * CHUNK_BITMAP_LEN]);
            }
            Act::Fin { port, nonce, hash } => {
                self.say(&Transfer::Fin { port, nonce, hash: [hash; 32] });
            }
            Act::Done { port, nonce } => {
                let (port, nonce) = self.aim(port, nonce);
                self.say(&Transfer::Done { port, nonce });
            }
            Act::Cadence { port, interval_us } => {
                self.say(&Transfer::Cadence { port, interval_us });
            }
            Act::Cancel { port, sender, reason } => {
                let port = if sender { port } else { self.aim(port, 0).0 };
                let role = if sender { Role::Sender } else { Role::Receiver };
                self.say(&Transfer::Cancel { port, role, reason: CancelReason::ALL[reason] });
            }
            Act::Refuse { port, nonce } => {
                let (port, nonce) = self.aim(port, nonce);
                self.say(&Transfer::Refuse { port, nonce, reason: RefuseReason::Busy });
            }
            Act::Segment { port, sent, segment, marked } => {
                let mut cell = [0; 1_376];
                let header = Segment { port, sent: Stamp::new(sent), segment };
                cell[..10].copy_from_slice(&header.to_bytes());
                let _ = self.transfers.handle_segment(now, peer, &cell, marked);
            }
            Act::OwnOffer { size } => {
                let info = OfferInfo {
                    name: "mine".into(),
                    size,
                    modified_ns: 0,
                    file_id: [9; 16],
                    executable: true,
                    segment: SegmentLen::FULL,
                };
                let _ = self.transfers.offer(now, peer, info);
            }
            Act::Pass { us } => {
                self.now += us * 1_000;
                self.transfers.handle_timeout(Time(self.now));
            }
            Act::Command { which } => self.command(which),
            Act::PeerLost => self.transfers.peer_lost(now, peer),
        }
    }

    fn nack(&mut self, port: u16, fields: [u32; 6], stamps: [u32; 5], bitmap: &[u8]) {
        let [number, floor, limit, received, marked, first] = fields;
        let [echo, hold, arrived, delay, reorder] = stamps.map(Stamp::new);
        self.say(&Transfer::Nack(Nack {
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
                if let Ok(Transfer::Offer(offer)) = Transfer::parse(&cell[..len]) {
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

    fn event(&mut self, event: Event) {
        let now = Time(self.now);
        match event {
            Event::Offered { id, info, .. } => {
                self.ids.push(id);
                if info.size % 3 != 0 {
                    self.transfers.accept(now, id, &ChunkSet::new(info.chunks()));
                }
            }
            Event::Read { id, index, buffer, .. } => {
                self.ids.push(id);
                self.transfers.chunk_read(now, id, index, buffer);
            }
            Event::Write { id, index, data, .. } => {
                self.transfers.chunk_written(now, id, index, data);
            }
            _ => {}
        }
    }
}

proptest! {
    #![proptest_config(ProptestConfig {
        cases: 200,
        failure_persistence: None,
        ..Default::default()
    })]

    #[test]
    fn survives_anything(acts in prop::collection::vec(act(), 1..120)) {
        let mut rig = Rig::new();
        for act in acts {
            rig.act(act);
            rig.drain();
        }
    }
}
