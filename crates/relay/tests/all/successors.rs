//! Frames, notes and orders of a removed neighbour that still wait are dropped. Not even the next
//! owner of the neighbour's number receives them.

use crate::support::{FULL, Net, frames, identity, socket};
use core::time::Duration;
use shoal_crypto::{AeadKey, Rng};
use shoal_relay::{
    ArrivalSource, CallContext, FrameAt, FrameSink, Handoff, HandoffFrame, HandoffKind, LinkConfig,
    LinkView, LocalCells, ReceivedRun, Relay, SendError, SendOutcome, SendPath, WorkerNote,
    WorkerOrder,
};
use shoal_wire::{
    Address, CONTROL_GOODBYE, ControlWriter, DropReason, Id, LinkId, LinkKind, SizeClass, link,
};
use std::collections::VecDeque;
use std::net::SocketAddr;

/// The removed neighbour; the new one with its number; a router with other hosts behind it; and the
/// router under test, which has two workers.
const OLD: usize = 0;
const NEW: usize = 1;
const FAR: usize = 2;
const R: usize = 3;
const ADDRESSES: [Address; 4] =
    [Address::new(1, 1), Address::new(1, 2), Address::new(2, 0), Address::new(1, 0)];
/// Source of datagrams with the old neighbour's seal but not its endpoint.
const STRAY: usize = 90;

fn net() -> Net {
    let change = |config: &mut shoal_relay::RelayConfig| {
        (config.session.workers, config.session.lanes) = (2, 4);
    };
    let mut net = Net::with(&ADDRESSES, &[(OLD, R), (FAR, R)], change);
    net.run(Duration::from_secs(3));
    assert!(net.nodes[R].relay.links().all(|link| link.up_since.is_some()));
    net
}

fn link_with(net: &Net, node: usize) -> LinkView {
    let mut links = net.nodes[R].relay.links();
    links.find(|link| link.address == ADDRESSES[node]).expect("a neighbour")
}

/// Removes the old neighbour and adds the new one, which gets its number and has not called yet.
fn succeed(net: &mut Net) -> [LinkId; 2] {
    let (now, old) = (net.now, link_with(net, OLD).link);
    let config =
        LinkConfig { key: identity(NEW).public(), address: ADDRESSES[NEW], endpoint: None };
    let relay = &mut net.nodes[R].relay;
    relay.remove_link(now, old);
    let new = relay.add_link(now, &config).expect("room");
    assert_eq!((new.number(), new == old), (old.number(), false));
    [old, new]
}

/// Source and destination of cells.
type CellFlow = (Address, Address);

/// A message between the router's two workers.
enum WorkerMail {
    Raw(SocketAddr, Vec<u8>),
    Opened(Vec<u8>, HandoffFrame),
    Leaving(Vec<u8>, HandoffFrame),
    Released(Vec<u8>, HandoffFrame),
    Sealed(Vec<u8>, HandoffFrame),
    Note(WorkerNote),
}

/// The second worker's ring to the first.
#[derive(Default)]
struct Ring(VecDeque<WorkerMail>);

impl Handoff for Ring {
    fn take(&mut self, what: HandoffKind<'_>, frame: FrameAt<'_>) -> bool {
        let bytes = frame.bytes().to_vec();
        let handed = |link| HandoffFrame { link, at: 0, len: frame.len, congested: false };
        self.0.push_back(match what {
            HandoffKind::Raw { from, .. } | HandoffKind::Unknown { from } => {
                WorkerMail::Raw(from.from.remote, bytes)
            }
            HandoffKind::Opened { link, .. } => WorkerMail::Opened(bytes, handed(link)),
            HandoffKind::Leaving { link, .. } => WorkerMail::Leaving(bytes, handed(link)),
            HandoffKind::Released { link } => WorkerMail::Released(bytes, handed(link)),
            HandoffKind::Sealed { link } => WorkerMail::Sealed(bytes, handed(link)),
        });
        true
    }
}

/// A simulated kernel that accepts `room` frames and records them.
struct Kernel {
    room: usize,
    took: Vec<(SocketAddr, Vec<u8>)>,
}

impl Kernel {
    fn new(room: usize) -> Kernel {
        Kernel { room, took: Vec::new() }
    }
}

impl FrameSink for Kernel {
    fn send(&mut self, path: SendPath, buf: &[u8], at: &[u32], len: usize) -> SendOutcome {
        let to = path.ends.remote;
        let sent = at.len().min(self.room);
        self.room -= sent;
        let frames = at[..sent].iter().map(|&at| buf[at as usize..][..len].to_vec());
        self.took.extend(frames.map(|frame| (to, frame)));
        SendOutcome { sent, stop: (sent < at.len()).then_some(SendError::Full) }
    }
}

/// `n` cells from `src` to `dst`, as they arrive at the router from one of its neighbours.
fn cells(net: &mut Net, from: usize, (src, dst): CellFlow, n: usize) -> Vec<u8> {
    let mut sink = Kernel::new(usize::MAX);
    let mut turn = CallContext { now: net.now, sink: &mut sink, hand: &mut () };
    let mut buf = frames(dst, src, n, 1);
    let offsets = (0..n).map(|i| (i * FULL) as u32).collect::<Vec<_>>();
    net.nodes[from].relay.send_cells(&mut turn, LinkKind::Cell, &mut buf, &offsets, FULL);
    sink.took.into_iter().flat_map(|(_, frame)| frame).collect()
}

/// Delivers `n` cells of a flow from the node `place` to the router's second worker. Returns the
/// frames that this worker hands over. The worker keeps its notes.
fn second(
    net: &mut Net,
    (from, place): (usize, usize),
    flow: CellFlow,
    n: usize,
    sink: &mut Kernel,
) -> Ring {
    let mut ring = Ring::default();
    let mut buf = cells(net, from, flow, n);
    let (from, len) = (socket(place), buf.len() as u32);
    let incoming =
        [ReceivedRun { from: from.into(), offset: 0, len, stride: FULL as u32, congested: false }];
    let mut turn = CallContext { now: net.now, sink, hand: &mut ring };
    let (shard, forwarder) = &mut net.nodes[R].forwarders[0];
    let none = None::<&mut fn(&mut [u8], LocalCells<'_>, &mut Ring) -> u64>;
    forwarder.handle_batch(shard, &mut turn, &mut buf, &incoming, ArrivalSource::Socket, none);
    ring
}

/// The second worker's notes.
fn notes(net: &mut Net) -> Vec<WorkerMail> {
    let (shard, forwarder) = &mut net.nodes[R].forwarders[0];
    let mut notes = Vec::new();
    forwarder.tell(shard, |note| {
        notes.push(WorkerMail::Note(note));
        true
    });
    notes
}

/// Makes the first worker handle a message of the second.
fn first(net: &mut Net, message: WorkerMail, sink: &mut Kernel) {
    let (now, relay) = (net.now, &mut net.nodes[R].relay);
    let mut local = |_: &mut [u8], cells: LocalCells<'_>, _: &mut ()| cells.count();
    match message {
        WorkerMail::Raw(from, mut frame) => {
            let len = frame.len() as u32;
            let run =
                [ReceivedRun { from: from.into(), offset: 0, len, stride: len, congested: false }];
            let mut turn = CallContext { now, sink, hand: &mut () };
            relay.handle_batch(&mut turn, &mut frame, &run, ArrivalSource::Worker(1), &mut local);
        }
        WorkerMail::Opened(mut frame, handed) => {
            let mut turn = CallContext { now, sink, hand: &mut () };
            relay.handle_opened(&mut turn, &mut frame, &[handed], &mut local);
        }
        WorkerMail::Leaving(mut frame, handed) => {
            let mut turn = CallContext { now, sink, hand: &mut () };
            relay.handle_leaving(&mut turn, &mut frame, &[handed]);
        }
        WorkerMail::Released(mut frame, handed) => {
            relay.handle_released(now, &mut frame, &[handed], sink);
        }
        WorkerMail::Sealed(frame, handed) => relay.handle_sealed(now, &frame, &[handed]),
        WorkerMail::Note(note) => relay.handle_note(now, &note, sink),
    }
}

/// Takes the second worker's orders.
fn orders(relay: &mut Relay) -> impl Iterator<Item = WorkerOrder<AeadKey>> {
    core::iter::from_fn(|| relay.poll_order().map(|(_, order)| order))
}

fn dropped(net: &Net, reason: DropReason) -> u64 {
    net.nodes[R].relay.counters().dropped(reason)
}

/// A flow between a neighbour and a host behind the far router that the second worker forwards.
fn flow(net: &mut Net, neighbour: usize, outwards: bool) -> CellFlow {
    let near = ADDRESSES[neighbour];
    let from = if outwards { neighbour } else { FAR };
    let flows = (1..64).map(|host| Address::new(2, host));
    let mut flows = flows.map(|far| if outwards { (near, far) } else { (far, near) });
    let passes = |flow: &CellFlow| {
        let mut sink = Kernel::new(9);
        let ring = second(net, (from, from), *flow, 1, &mut sink);
        ring.0.is_empty() && sink.took.len() == 1
    };
    flows.find(passes).expect("half of the lanes are the second worker's")
}

/// The new neighbour calls.
fn establish(net: &mut Net) {
    let now = net.now;
    let key = identity(R).public();
    let config = LinkConfig { key, address: ADDRESSES[R], endpoint: Some(socket(R)) };
    net.nodes[NEW].relay.add_link(now, &config).expect("room");
    // Waits for the last repeat of the message with the neighbour's public address.
    net.run(Duration::from_secs(3));
    assert!(link_with(net, NEW).up_since.is_some());
}

/// State of the new neighbour, for comparison.
fn seen(net: &Net) -> String {
    format!("{:?}", link_with(net, NEW))
}

#[test]
fn a_note_of_a_removed_neighbour_says_nothing_of_the_next_owner_of_its_number() {
    for succeeds in [false, true] {
        let mut net = net();
        let outwards = flow(&mut net, OLD, true);
        net.run(Duration::from_millis(1));
        let ring = second(&mut net, (OLD, STRAY), outwards, 3, &mut Kernel::new(9));
        assert!(ring.0.is_empty(), "the second worker passes them on");
        let told = notes(&mut net);
        assert!(told.len() >= 2, "notes on sessions and links");
        let mut sink = Kernel::new(9);
        if succeeds {
            succeed(&mut net);
        }
        let before = succeeds.then(|| seen(&net));
        told.into_iter().for_each(|note| first(&mut net, note, &mut sink));
        let challenged = sink.took.iter().any(|(to, _)| *to == socket(STRAY));
        assert_eq!(challenged, !succeeds, "a challenge for a new source");
        assert_eq!(succeeds.then(|| seen(&net)), before);
    }
}

#[test]
fn a_frame_that_was_opened_for_a_removed_neighbour_is_dropped() {
    let mut net = net();
    let [old, new] = succeed(&mut net);
    establish(&mut net);
    let opened = |kind: LinkKind, link| {
        let class = SizeClass::Medium;
        let mut frame = vec![0; class.frame_len()];
        frame[link::KIND_AT] = kind as u8;
        let body = &mut frame[link::BODY_AT..][..class.link_body_len()];
        assert!(ControlWriter::new(body).push(CONTROL_GOODBYE, &[]));
        let len = frame.len() as u32;
        WorkerMail::Opened(frame, HandoffFrame { link, at: 0, len, congested: false })
    };
    net.now = net.now + Duration::from_millis(1);
    let before = seen(&net);
    let kinds = [LinkKind::Control, LinkKind::Keepalive, LinkKind::Part, LinkKind::Cell];
    for (n, kind) in (1..).zip(kinds) {
        first(&mut net, opened(kind, old), &mut Kernel::new(9));
        assert_eq!(dropped(&net, DropReason::UnknownPeer), n, "{kind:?}");
    }
    assert_eq!(seen(&net), before);
    first(&mut net, opened(LinkKind::Control, new), &mut Kernel::new(9));
    assert!(!link_with(&net, NEW).established, "the new neighbour's goodbye counts");
}

#[test]
fn frames_that_were_to_leave_to_a_removed_neighbour_are_dropped() {
    let mut net = net();
    let inwards = flow(&mut net, OLD, false);
    // The kernel refuses the first, which closes the gate for the others.
    let mut ring = second(&mut net, (FAR, FAR), inwards, 2, &mut Kernel::new(0));
    ring.0.extend(second(&mut net, (FAR, FAR), inwards, 3, &mut Kernel::new(9)).0);
    let kinds = ring.0.iter().map(|message| match message {
        WorkerMail::Sealed(..) => 's',
        WorkerMail::Released(..) => 'r',
        _ => '?',
    });
    assert_eq!(kinds.collect::<String>(), "ssrrr");
    let [old, _] = succeed(&mut net);
    let cell = frames(inwards.1, inwards.0, 1, 1);
    let len = cell.len() as u32;
    ring.0.push_back(WorkerMail::Leaving(
        cell,
        HandoffFrame { link: old, at: 0, len, congested: false },
    ));
    establish(&mut net);
    let (before, no_route) = (seen(&net), dropped(&net, DropReason::NoRoute));
    let mut sink = Kernel::new(9);
    for message in ring.0 {
        first(&mut net, message, &mut sink);
    }
    assert_eq!(dropped(&net, DropReason::NoRoute) - no_route, 6);
    assert_eq!((sink.took.len(), seen(&net)), (0, before));
}

#[test]
fn a_late_order_about_the_gate_of_a_removed_neighbour_is_not_about_the_next() {
    let mut net = net();
    let [old, new] = succeed(&mut net);
    establish(&mut net);
    let inwards = flow(&mut net, NEW, false);
    let gate = |net: &mut Net, link, open| {
        let (shard, forwarder) = &mut net.nodes[R].forwarders[0];
        forwarder.handle_order(shard, WorkerOrder::Gate { link, open, marking: !open });
    };
    let passes = |net: &mut Net| {
        let marking = net.nodes[R].forwarders[0].1.is_marking(ADDRESSES[NEW]);
        let ring = second(net, (FAR, FAR), inwards, 1, &mut Kernel::new(9));
        assert_eq!(marking, !ring.0.is_empty());
        ring.0.is_empty()
    };
    for (link, open, may_pass) in [
        (old, false, true),
        (new, false, false),
        (old, true, false),
        (old, false, false),
        (new, true, true),
    ] {
        gate(&mut net, link, open);
        assert_eq!(passes(&mut net), may_pass, "{link:?} {open}");
    }
}

#[test]
fn cells_that_are_held_for_a_removed_neighbour_never_reach_the_next() {
    let mut net = net();
    let inwards = flow(&mut net, OLD, false);
    let (now, old) = (net.now, link_with(&net, OLD).link);
    let tell = |net: &mut Net| {
        let given = orders(&mut net.nodes[R].relay).collect::<Vec<_>>();
        let (shard, forwarder) = &mut net.nodes[R].forwarders[0];
        given.into_iter().for_each(|order| forwarder.handle_order(shard, order));
        forwarder.held()
    };
    net.nodes[R].relay.set_link_delay(old, Some(Duration::from_millis(5)));
    tell(&mut net);
    second(&mut net, (FAR, FAR), inwards, 3, &mut Kernel::new(9));
    assert_eq!(tell(&mut net), 3);
    // The worker gets one view with the old neighbour, and one with the new.
    let [_, new] = succeed(&mut net);
    net.nodes[R].relay.set_link_delay(new, Some(Duration::from_millis(5)));
    assert_eq!(tell(&mut net), 0);
    assert_eq!(net.nodes[R].forwarders[0].1.poll_timeout(), None, "at {now:?}");
}

/// One order of events: the old neighbour is removed and the new one added while messages pass
/// between the workers. Returns the number of messages handled after the new one was added.
fn interleave(seed: u8) -> usize {
    let (mut net, mut rng) = (net(), Rng::new([seed; 32]));
    let flows = [flow(&mut net, OLD, true), flow(&mut net, OLD, false)];
    net.run(Duration::from_millis(1));
    let (mut up, mut down) = (VecDeque::new(), VecDeque::new());
    let (mut removed, mut added, mut late) = (false, None, 0);
    let mut steps = 0;
    while added.is_none() || !up.is_empty() || !down.is_empty() {
        steps += 1;
        let mut sink = Kernel::new(rng.below(3) as usize);
        let more = steps < 60;
        match rng.below(6) {
            0 if more => up.extend(second(&mut net, (OLD, STRAY), flows[0], 2, &mut sink).0),
            1 if more => up.extend(second(&mut net, (FAR, FAR), flows[1], 2, &mut sink).0),
            2 => up.extend(notes(&mut net)),
            3 => {
                if let Some(message) = up.pop_front() {
                    late += usize::from(added.is_some());
                    first(&mut net, message, &mut sink);
                }
            }
            4 => {
                if let Some(order) = down.pop_front() {
                    let (shard, forwarder) = &mut net.nodes[R].forwarders[0];
                    forwarder.handle_order(shard, order);
                }
            }
            5 if !removed && steps > 10 => {
                let (now, old) = (net.now, link_with(&net, OLD).link);
                net.nodes[R].relay.remove_link(now, old);
                removed = true;
            }
            5 if removed && added.is_none() => {
                let (key, address) = (identity(NEW).public(), ADDRESSES[NEW]);
                let config = LinkConfig { key, address, endpoint: None };
                let link = net.nodes[R].relay.add_link(net.now, &config).expect("room");
                assert_eq!(link.number(), 0);
                added = Some(seen(&net));
            }
            _ => {}
        }
        let to_new = |frame: &(SocketAddr, Vec<u8>)| frame.0 == socket(NEW);
        assert!(!sink.took.iter().any(to_new), "seed {seed}");
        down.extend(orders(&mut net.nodes[R].relay));
        assert!(added.as_ref().is_none_or(|before| *before == seen(&net)), "seed {seed}");
    }
    establish(&mut net);
    let inwards = flow(&mut net, NEW, false);
    assert!(second(&mut net, (FAR, FAR), inwards, 1, &mut Kernel::new(9)).0.is_empty());
    late
}

#[test]
fn in_no_order_of_events_does_anything_of_one_neighbour_reach_the_next() {
    let late: usize = (0..120).map(interleave).sum();
    assert!(late > 500, "{late} messages came when the new neighbour was there");
}
