//! Small versions of the demo: networks of real processes, as root also in namespaces. A skipped
//! test says so, and fails if SHOAL_REQUIRE_NETNS is set.

use shoal_lab::demo::{self, DemoOptions, DemoReport};
use shoal_lab::{Executable, IpFamily, NetworkKind, Rate};

fn options(kind: NetworkKind) -> DemoOptions {
    DemoOptions {
        executable: Some(Executable::shoal(shoal_e2e::program())),
        kind: Some(kind),
        size: 12_000_000,
        rate: Some(Rate(100_000_000)),
        quiet: true,
        ..DemoOptions::default()
    }
}

fn run(options: DemoOptions) -> DemoReport {
    demo::run(&options).unwrap_or_else(|e| panic!("{e:#}"))
}

fn check_cut(report: &DemoReport) {
    assert!(report.hash_agrees);
    let cut = report.cut.as_ref().expect("the link was to be cut");
    // Costs are measured: on a busy machine either way may be the cheaper one at first.
    let hops = (cut.next_hop_before.as_str(), cut.next_hop_after.as_deref());
    assert!(hops == ("r2", Some("r3")) || hops == ("r3", Some("r2")), "{hops:?}");
    // The promise is one second, which bench/files.sh measures. The limit here is larger, so that
    // other load on the machine doesn't fail the test.
    assert!(report.longest_gap_ms < 3_000.0, "{report}");
    assert_eq!(report.nodes.len(), 9 + 2);
}

#[test]
fn a_file_survives_a_cut_without_root() {
    check_cut(&run(options(NetworkKind::Loopback)));
}

#[test]
fn a_file_survives_a_cut_and_loss_in_namespaces() {
    if !shoal_e2e::namespaces() {
        return;
    }
    let report = run(DemoOptions { loss: 0.02, ..options(NetworkKind::Namespaces) });
    check_cut(&report);
    assert!((0.01..=0.03).contains(&report.link_loss_seen), "{report}");
    assert!(report.retransmitted_bytes > 0);
}

#[test]
fn all_of_it_goes_over_ipv6() {
    if !shoal_e2e::ipv6() {
        return;
    }
    let over = |kind| DemoOptions { family: IpFamily::Ipv6, ..options(kind) };
    let report = run(over(NetworkKind::Loopback));
    check_cut(&report);
    assert!(report.to_string().contains("loopback over IPv6"), "{report}");
    if !shoal_e2e::namespaces() {
        return;
    }
    let report = run(DemoOptions { loss: 0.02, observe: true, ..over(NetworkKind::Namespaces) });
    check_cut(&report);
    assert!((0.01..=0.03).contains(&report.link_loss_seen), "{report}");
    assert!(report.to_string().contains("namespaces over IPv6"), "{report}");
    // The observer counts frames in IPv6 packets, so there must be some.
    let wire = report.wire.expect("the wire was to be watched");
    assert!(wire.frames[2] > 8_000, "{wire}");
}

#[test]
fn the_wire_shows_three_sizes_and_random_bytes() {
    if !shoal_e2e::namespaces() {
        return;
    }
    let report = run(DemoOptions { observe: true, cut: false, ..options(NetworkKind::Namespaces) });
    let wire = report.wire.expect("the wire was to be watched");
    let [small, _, full] = wire.frames;
    // Enough full frames for a test of each byte's position; the small ones are tested together.
    assert!(full > 10_000 && small > 0, "{wire}");
    assert_eq!(wire.anomalies, [""; 0], "{wire}");
}
