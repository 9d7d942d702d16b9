//! Compares the forwarding rate of one worker with that of two, in memory. The cells are the same,
//! half of them on the lanes of each. Prints the median rates of several rounds, and their ratio.

#![allow(clippy::disallowed_methods, clippy::disallowed_types, reason = "measures threads")]
#![allow(clippy::print_stdout, reason = "prints its results")]

#[path = "../tests/support/mod.rs"]
#[allow(dead_code, reason = "the tests use the rest")]
mod support;

use core::time::Duration;
use std::sync::Barrier;
use std::time::Instant;

use shoal_crypto::quantile::median;
use shoal_relay::{
    ArrivalSource, CallContext, Forwarder, FrameAt, FrameSink, Handoff, HandoffKind, LocalCells,
    ReceivedRun, Relay, SendOutcome, SendPath,
};
use shoal_session::SessionShard;
use shoal_wire::{Address, LinkKind, Time};
use support::{FULL, Net, frames, socket};

const BATCH: usize = 44;
/// Batches per worker and round. Each lane gets fewer frames at a time than its replay window
/// holds.
const BATCHES: usize = 300;
const ROUNDS: usize = 9;
const ADDRESSES: [Address; 4] =
    [Address::new(1, 1), Address::new(1, 0), Address::new(2, 0), Address::new(2, 1)];

struct NullSink;

impl FrameSink for NullSink {
    fn send(&mut self, _: SendPath, buf: &[u8], offsets: &[u32], _: usize) -> SendOutcome {
        std::hint::black_box(buf);
        SendOutcome { sent: offsets.len(), stop: None }
    }
}

/// Counts the frames that a worker can't finish.
#[derive(Default)]
struct HandoffCount(usize);

impl Handoff for HandoffCount {
    fn take(&mut self, _: HandoffKind<'_>, _: FrameAt<'_>) -> bool {
        self.0 += 1;
        true
    }
}

struct CapturingSink(Vec<u8>);

impl FrameSink for CapturingSink {
    fn send(&mut self, _: SendPath, buf: &[u8], offsets: &[u32], len: usize) -> SendOutcome {
        for &at in offsets {
            self.0.extend_from_slice(&buf[at as usize..at as usize + len]);
        }
        SendOutcome { sent: offsets.len(), stop: None }
    }
}

fn incoming() -> [ReceivedRun; 1] {
    let len = (BATCH * FULL) as u32;
    [ReceivedRun { from: socket(0).into(), offset: 0, len, stride: FULL as u32, congested: false }]
}

/// A batch of the host's cells for `dst`, as it arrives at the router.
fn batch(host: &mut Relay, now: Time, dst: Address) -> Vec<u8> {
    let offsets: Vec<u32> = (0..BATCH).map(|i| (i * FULL) as u32).collect();
    let mut taken = CapturingSink(Vec::new());
    let mut buf = frames(dst, ADDRESSES[0], BATCH, 7);
    let mut turn = CallContext { now, sink: &mut taken, hand: &mut () };
    host.send_cells(&mut turn, LinkKind::Cell, &mut buf, &offsets, FULL);
    taken.0
}

fn first(relay: &mut Relay, now: Time, batches: Vec<Vec<u8>>) {
    for mut batch in batches {
        let mut count = HandoffCount::default();
        let mut turn = CallContext { now, sink: &mut NullSink, hand: &mut count };
        let from = ArrivalSource::Socket;
        relay.handle_batch(&mut turn, &mut batch, &incoming(), from, &mut |_, _, _| 0);
        assert_eq!(count.0, 0, "frames that are another worker's");
    }
}

type Worker = (SessionShard, Forwarder);

fn handle((shard, forwarder): &mut Worker, now: Time, batch: &mut [u8], count: &mut HandoffCount) {
    let none = None::<&mut fn(&mut [u8], LocalCells<'_>, &mut HandoffCount) -> u64>;
    let mut turn = CallContext { now, sink: &mut NullSink, hand: count };
    forwarder.handle_batch(shard, &mut turn, batch, &incoming(), ArrivalSource::Socket, none);
}

fn other(worker: &mut Worker, now: Time, batches: Vec<Vec<u8>>) {
    let mut count = HandoffCount::default();
    for mut batch in batches {
        handle(worker, now, &mut batch, &mut count);
        let (shard, forwarder) = &mut *worker;
        forwarder.tell(shard, |_| true);
    }
    assert_eq!(count.0, 0, "frames that the worker could not finish");
}

/// Forwarding rate in Gbit/s of a router with this number of workers.
fn measure(workers: u8) -> f64 {
    let mut net = Net::with(&ADDRESSES, &[(0, 1), (1, 2), (3, 2)], |config| {
        (config.session.workers, config.session.lanes) = (workers, 4);
    });
    net.run(Duration::from_secs(3));
    let now = net.now;
    let (hosts, routers) = net.nodes.split_at_mut(1);
    let (host, router) = (&mut hosts[0].relay, &mut routers[0]);
    // Finds a flow for each worker, by testing which worker forwards its cells.
    let mut flows = [None, None];
    for number in 1..64 {
        let dst = Address::new(2, number);
        let mut cells = batch(host, now, dst);
        let mut count = HandoffCount::default();
        if let Some(forwarder) = router.forwarders.first_mut() {
            handle(forwarder, now, &mut cells, &mut count);
        }
        let worker = usize::from(workers > 1 && count.0 == 0);
        flows[worker].get_or_insert(dst);
    }
    let mut rates = Vec::new();
    for _ in 0..ROUNDS {
        let mut of = |flow: Option<Address>| -> Vec<Vec<u8>> {
            let Some(dst) = flow else { return Vec::new() };
            (0..BATCHES).map(|_| batch(host, now, dst)).collect()
        };
        let (mine, others) = (of(flows[0]), of(flows[1]));
        let bits = (mine.len() + others.len()) * BATCH * FULL * 8;
        let barrier = Barrier::new(usize::from(workers));
        let began = Instant::now();
        std::thread::scope(|scope| {
            if let Some(forwarder) = router.forwarders.first_mut() {
                let barrier = &barrier;
                scope.spawn(move || {
                    barrier.wait();
                    other(forwarder, now, others);
                });
            }
            barrier.wait();
            first(&mut router.relay, now, mine);
        });
        rates.push(bits as f64 / began.elapsed().as_secs_f64() / 1e9);
    }
    median(&rates).expect("a round")
}

fn main() {
    let (one, two) = (measure(1), measure(2));
    println!("one worker   {one:6.2} Gbit/s");
    println!("two workers  {two:6.2} Gbit/s, {:.2} times as much", two / one);
}
