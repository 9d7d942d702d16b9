//! Leg cells of mixed circuits leave later, in random order. Other cells pass at once.

use core::time::Duration;

use crate::support::{FULL, Net, frames};
use shoal_link::EgressConfig;
use shoal_relay::{MixedCell, TrafficCounters};
use shoal_wire::{Address, DropReason, LinkId, Time};

const H1: usize = 0;
const R1: usize = 1;
const R2: usize = 2;
const AT: [Address; 4] =
    [Address::new(1, 1), Address::new(1, 0), Address::new(2, 0), Address::new(2, 1)];
const MS: Duration = Duration::from_millis(1);

/// Two routers with a host each. Every node has this many workers.
fn net(workers: u8) -> Net {
    let mut net = Net::with(&AT, &[(0, 1), (1, 2), (3, 2)], |config| {
        (config.session.workers, config.session.lanes) = (workers, 8);
        config.hold.limits.per_link = 400;
    });
    net.run(Duration::from_secs(3));
    net.nodes[R1].legs.onward = Some((AT[R1], AT[R2]));
    net
}

fn between(net: &Net) -> LinkId {
    net.nodes[R1].relay.next_hop(AT[R2]).expect("r2 is beside r1")
}

fn traffic(net: &Net) -> TrafficCounters {
    net.nodes[R1].relay.counters().traffic
}

fn dropped(net: &Net, reason: DropReason) -> u64 {
    net.nodes[R1].relay.counters().dropped(reason)
}

/// Cells held by the first router. Every cell is held, released or given up.
fn held(net: &Net) -> u64 {
    let TrafficCounters { cells_held, cells_released, .. } = traffic(net);
    let held = net.nodes[R1].relay.links().map(|link| net.nodes[R1].relay.held(link.link));
    assert_eq!(cells_held - cells_released, held.sum::<usize>() as u64, "a held cell got lost");
    cells_held - cells_released
}

/// Leg cells received by the second router, by their first byte.
fn arrived(net: &Net) -> Vec<u8> {
    net.nodes[R2].legs.seen.iter().map(|(_, payload)| payload[0]).collect()
}

/// Sends leg cells with these payloads, which the first router must release at `due`.
fn send(net: &mut Net, due: Option<Time>, payloads: impl IntoIterator<Item = u8>) {
    net.nodes[R1].legs.due = due;
    payloads.into_iter().for_each(|fill| net.send_legs(H1, AT[R1], 1, fill));
    net.step();
}

#[test]
fn mixed_cells_come_when_they_are_due_in_another_order_and_hold_up_no_others() {
    for workers in [1, 3] {
        for small in [false, true] {
            let mut net = net(workers);
            let link = between(&net);
            net.nodes[R1].relay.set_small_path(link, small);
            net.run(2 * MS);
            let before = traffic(&net);
            let due = net.now + 10 * MS;
            send(&mut net, Some(due), 0..60);
            assert_eq!((held(&net), net.nodes[R1].relay.held(link)), (60, 60));
            while net.now < due {
                assert!(arrived(&net).iter().all(|&n| n >= 100), "too early");
                send(&mut net, None, [100]);
                net.send(H1, AT[3], 1, 7);
                net.step();
                assert!(net.nodes[R1].relay.links().all(|link| link.waiting == 0), "no backlog");
                let room = net.nodes[R1].relay.room(AT[R2]);
                assert_eq!(room, EgressConfig::default().data_frames_max);
                net.run(MS);
            }
            net.run(MS);
            let mut mixed = arrived(&net);
            assert_eq!(mixed.iter().filter(|n| **n == 100).count(), 10, "others passed at once");
            mixed.retain(|n| *n < 100);
            assert!(!mixed.is_sorted(), "{mixed:?}");
            mixed.sort_unstable();
            assert_eq!(mixed, (0..60).collect::<Vec<_>>(), "{workers} {small}");
            assert_eq!(net.nodes[3].cells.len(), 10);
            let after = traffic(&net);
            assert_eq!((held(&net), after.cells_held - before.cells_held), (0, 60));
            assert_eq!(after.cells_origin - before.cells_origin, 70);
            assert_eq!(after.cells_marked, 0);
        }
    }
}

/// The relay's own cells are mixed too, so control cells don't bypass a mix.
#[test]
fn cells_of_a_relays_own_are_mixed_with_those_that_go_on() {
    let mut net = net(1);
    let due = net.now + 5 * MS;
    send(&mut net, Some(due), 0..20);
    let mut buf = frames(AT[R2], AT[R1], 20, 50);
    let own = (0..20).map(|i| MixedCell { at: i * FULL as u32, due, from: AT[R1] });
    net.nodes[R1].relay.mix_cells(net.now, &mut buf, &own.collect::<Vec<_>>());
    assert_eq!(held(&net), 40);
    net.run(4 * MS);
    assert!(arrived(&net).is_empty());
    net.run(2 * MS);
    let own = arrived(&net).into_iter().map(|n| n == 50).collect::<Vec<_>>();
    assert_eq!((own.len(), own.iter().filter(|own| **own).count()), (40, 20));
    // The longest sequence of one kind has about five cells on average.
    assert!(own.chunk_by(|a, b| a == b).all(|stretch| stretch.len() < 16), "{own:?}");
}

#[test]
fn a_previous_hop_that_fills_its_quarter_leaves_room_for_others() {
    let mut net = net(1);
    let due = net.now + 5 * MS;
    send(&mut net, Some(due), (0..130).map(|_| 1));
    assert_eq!((held(&net), dropped(&net, DropReason::MixFull)), (100, 30));
    let mut buf = frames(AT[R2], AT[R1], 1, 2);
    let one = MixedCell { at: 0, due, from: AT[R1] };
    net.nodes[R1].relay.mix_cells(net.now, &mut buf, &[one]);
    assert_eq!((held(&net), dropped(&net, DropReason::MixFull)), (101, 30));
    net.run(4 * MS);
    assert!(arrived(&net).is_empty(), "a full mix releases no cell early");
    net.run(2 * MS);
    let mut cells = arrived(&net);
    cells.sort_unstable();
    assert_eq!(cells, [vec![1; 100], vec![2]].concat());
    let TrafficCounters { cells_origin, cells_released, dispatched, .. } = traffic(&net);
    assert_eq!((cells_origin, cells_released), (131, 101));
    assert!(dispatched >= 131);
    let later = net.now + 5 * MS;
    send(&mut net, Some(later), 0..100);
    assert_eq!((held(&net), dropped(&net, DropReason::MixFull)), (100, 30));
}

#[test]
fn cells_that_no_link_leads_to_are_dropped_at_once_and_those_whose_link_goes_then() {
    let mut net = net(1);
    let due = net.now + 5 * MS;
    net.nodes[R1].legs.onward = Some((AT[R1], Address::new(9, 0)));
    send(&mut net, Some(due), 0..3);
    assert_eq!((held(&net), dropped(&net, DropReason::NoRoute)), (0, 3));
    net.nodes[R1].legs.onward = Some((AT[R1], AT[R2]));
    send(&mut net, Some(due), 0..20);
    // Cells to the host use a link that stays.
    net.nodes[R1].legs.onward = Some((AT[R1], AT[H1]));
    send(&mut net, Some(due), 0..5);
    let link = between(&net);
    let now = net.now;
    net.nodes[R1].relay.remove_link(now, link);
    assert_eq!((held(&net), dropped(&net, DropReason::NoRoute)), (5, 23));
    net.run(10 * MS);
    assert_eq!((arrived(&net).len(), net.nodes[H1].legs.seen.len()), (0, 5));
}

#[test]
fn each_cell_of_a_call_goes_its_own_way() {
    let mut net = net(1);
    let ways = [AT[R2], AT[R2], Address::new(9, 0), AT[R2], AT[H1], AT[H1], AT[R2]];
    let mut buf: Vec<u8> = ways.into_iter().flat_map(|to| frames(to, AT[R1], 1, 3)).collect();
    let due = net.now + MS;
    let cell = |i| MixedCell { at: i * FULL as u32, due, from: AT[R2] };
    net.nodes[R1].relay.mix_cells(net.now, &mut buf, &(0..7).map(cell).collect::<Vec<_>>());
    let link = between(&net);
    assert_eq!((net.nodes[R1].relay.held(link), held(&net)), (4, 6));
    assert_eq!(dropped(&net, DropReason::NoRoute), 1);
    net.run(3 * MS);
    assert_eq!((arrived(&net).len(), net.nodes[H1].legs.seen.len()), (4, 2));
}

#[test]
fn a_list_that_is_too_old_stops_mixed_cells_too() {
    let mut net = net(1);
    let (now, due) = (net.now, net.now + 5 * MS);
    let mut buf = frames(AT[R2], AT[R1], 1, 2);
    let one = [MixedCell { at: 0, due, from: AT[H1] }];
    net.nodes[R1].relay.mix_cells(now, &mut buf, &one);
    net.nodes[R1].relay.set_lists_only(now, true);
    assert_eq!((held(&net), dropped(&net, DropReason::NoRoute)), (0, 1));
    net.nodes[R1].relay.mix_cells(now, &mut buf, &one);
    assert_eq!((held(&net), dropped(&net, DropReason::StaleList)), (0, 1));
}

#[test]
fn a_run_repeats_and_what_went_before_changes_the_order() {
    let order = |turn: u64| {
        let mut net = net(1);
        let due = net.now + 5 * MS;
        // An earlier permutation changes the later ones.
        (0..turn).for_each(|_| send(&mut net, Some(due), [200, 201, 202]));
        net.run(10 * MS);
        let due = net.now + 5 * MS;
        send(&mut net, Some(due), 0..30);
        net.run(10 * MS);
        let mut order = arrived(&net);
        order.retain(|n| *n < 200);
        order
    };
    assert_eq!((order(0), order(1)), (order(0), order(1)));
    assert_ne!(order(0), order(1));
}
