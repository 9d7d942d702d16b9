//! Hosts that send nothing without cover.

use super::*;

/// A host that requires cover, 7.5 minutes before a full hour.
fn hidden() -> Net {
    let mut net = before_the_hour(450);
    net.nodes[H1].relay.set_cover_required(true);
    net
}

#[test]
fn a_host_that_must_be_covered_keeps_its_schedule_whatever_is_lost() {
    let mut net = hidden();
    net.lossy = Some((H1, R1, 10));
    net.run(Duration::from_secs(600));
    for _ in 0..20 {
        send(&mut net, H1, H2, SizeClass::Small, 3);
        send(&mut net, H2, H1, SizeClass::Small, 3);
        net.run(Duration::from_millis(50));
    }
    seen(&net);
    for (node, to) in [(H1, AT[R1]), (R1, AT[H1])] {
        assert_eq!(view(&net, node, to).state, CoverState::Running);
    }
    assert_eq!(view(&net, H1, AT[R1]).strained, Some(CoverFault::Loss));
    net.lossy = None;
    net.run(Duration::from_secs(130));
    assert_eq!(view(&net, H1, AT[R1]).strained, None);
}

/// The router's frames are lost too. Without messages from the host, its schedule would end.
#[test]
fn a_router_keeps_the_schedule_of_a_host_that_must_be_covered() {
    let mut net = hidden();
    net.lossy = Some((R1, H1, 10));
    net.run(Duration::from_secs(600));
    let view = view(&net, R1, AT[H1]);
    assert_eq!((view.state, view.strained), (CoverState::Running, Some(CoverFault::Loss)));
    seen(&net);
}

/// The network's list may ask for cover while the node runs.
#[test]
fn a_schedule_that_was_to_end_goes_on_when_cover_becomes_required() {
    let mut net = before_the_hour(450);
    net.lossy = Some((H1, R1, 10));
    net.run(Duration::from_secs(310));
    assert!(matches!(view(&net, H1, AT[R1]).state, CoverState::Ending(..)));
    net.nodes[H1].relay.set_cover_required(true);
    net.run(Duration::from_secs(300));
    for (node, to) in [(H1, AT[R1]), (R1, AT[H1])] {
        assert_eq!(view(&net, node, to).state, CoverState::Running);
    }
}

#[test]
fn cells_that_wait_do_not_leave_without_cover_once_it_is_required() {
    let mut net = before_the_hour(450);
    cover(&mut net, None);
    net.run(Duration::from_secs(1));
    let arrived = net.nodes[H2].cells.len();
    net.wire.room = Some(0);
    for _ in 0..20 {
        send(&mut net, H1, H2, SizeClass::Full, 3);
    }
    net.nodes[H1].relay.set_cover_required(true);
    net.wire.room = None;
    net.run(Duration::from_secs(1));
    assert_eq!(net.nodes[H2].cells.len(), arrived);
    assert!(net.nodes[H1].relay.counters().dropped(DropReason::CoverRequired) > 0);
}

#[test]
fn a_host_that_must_be_covered_sends_nothing_when_its_tier_is_taken() {
    let mut net = hidden();
    for _ in 0..20 {
        send(&mut net, H1, H2, SizeClass::Full, 3);
    }
    cover(&mut net, None);
    net.run(Duration::from_secs(1));
    let arrived = net.nodes[H2].cells.len();
    for _ in 0..20 {
        send(&mut net, H1, H2, SizeClass::Small, 3);
        net.run(Duration::from_millis(50));
    }
    assert_eq!(net.nodes[H2].cells.len(), arrived);
    let dropped = net.nodes[H1].relay.counters().dropped(DropReason::CoverRequired);
    // A report may also have been in the queue.
    assert!((40..=42).contains(&(dropped + arrived as u64)), "{dropped} {arrived}");
    cover(&mut net, Some(tier(2, CoverKind::Constant)));
    net.run(Duration::from_secs(1));
    send(&mut net, H1, H2, SizeClass::Small, 3);
    net.run(Duration::from_millis(200));
    assert_eq!(net.nodes[H2].cells.len(), arrived + 1);
}
