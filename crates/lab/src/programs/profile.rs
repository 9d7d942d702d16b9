//! The nodes' processor time by stage, per packet of a TCP stream.

use crate::record::{Figure, ReportTable};
use crate::stages::CipherTimes;

/// Payload of a TCP segment in a full cell: 1,374 bytes without IPv6 and TCP headers and time
/// stamps.
const PAYLOAD: f64 = (1_374 - 40 - 20 - 12) as f64;
/// Times of IPOP, table 4, in nanoseconds, the middle of its ranges: the sender's read and
/// hand-over, and the receiver's take and write.
const IPOP: (f64, f64) = (13_000.0, 18_000.0);

/// The stages of every node. `figures` are those of one stream that ran for `seconds` between the
/// nodes `from` and `to`. `alone` has times of single operations.
pub fn table(
    figures: &[Figure],
    seconds: f64,
    (from, to): (&str, &str),
    alone: &CipherTimes,
) -> ReportTable {
    let nodes: Vec<&str> =
        figures.iter().filter(|f| f.name == "cpu_s").map(|f| f.of.as_str()).collect();
    let value = |name: &str, of: &str| {
        figures.iter().find(|f| f.name == name && f.of == of).map_or(f64::NAN, |f| f.value)
    };
    let packets = value("tcp_mbit", "") * 1e6 / 8.0 * seconds / PAYLOAD;
    let per_packet = |name: &str, node: &str| value(name, node) * 1e9 / packets;
    let seals = |node: &str| match node {
        _ if node == from => 2.0 * alone.seal,
        _ if node == to => 2.0 * alone.open,
        _ => alone.open + alone.seal,
    };
    let whole = |node: &str| per_packet("cpu_s", node);
    let kernel = |node: &str| per_packet("kernel_s", node);
    let rest = |node: &str| (whole(node) - kernel(node) - seals(node)).max(0.0);
    let ipop = |node: &str| match node {
        _ if node == from => Some(IPOP.0),
        _ if node == to => Some(IPOP.1),
        _ => None,
    };
    let row = |name: &str, of: &dyn Fn(&str) -> Option<f64>| {
        (name.to_owned(), nodes.iter().map(|node| of(node).filter(|ns| ns.is_finite())).collect())
    };
    ReportTable {
        mixed: false,
        title: "Processor time by stage, one TCP stream".into(),
        columns: ["stage"].into_iter().chain(nodes.iter().copied()).map(str::to_owned).collect(),
        rows: vec![
            row("seal and open, measured alone", &|node| Some(seals(node))),
            row("everything else in the node", &|node| Some(rest(node))),
            row("kernel: sockets, links, interface, TCP", &|node| Some(kernel(node))),
            row("whole node, by its CPU time", &|node| Some(whole(node))),
            row("IPOP: its interface and queue (table 4)", &ipop),
        ],
        unit: "ns per packet with 1,302 bytes of payload, including acknowledgements".into(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::figures::figure;

    #[test]
    fn stages_add_up_to_the_whole_node() {
        // A million packets in one second.
        let mbit = PAYLOAD * 8.0;
        let figures = [
            figure("tcp_mbit", "", mbit),
            figure("cpu_s", "h1", 2.0),
            figure("kernel_s", "h1", 0.75),
            figure("cpu_s", "r1", 1.0),
            figure("kernel_s", "r1", 0.25),
            figure("cpu_s", "h2", 0.5),
            figure("kernel_s", "h2", 0.5),
        ];
        let alone = CipherTimes { seal: 200.0, open: 300.0 };
        let found = table(&figures, 1.0, ("h1", "h2"), &alone);
        assert_eq!(found.columns, ["stage", "h1", "r1", "h2"]);
        let rows: Vec<_> = found.rows.iter().map(|(_, values)| values.clone()).collect();
        assert_eq!(rows[0], [Some(400.0), Some(500.0), Some(600.0)]);
        let rounded =
            |row: &[Option<f64>]| -> Vec<_> { row.iter().map(|v| v.map(f64::round)).collect() };
        assert_eq!(rounded(&rows[1]), [Some(850.0), Some(250.0), Some(0.0)]);
        assert_eq!(rounded(&rows[2]), [Some(750.0), Some(250.0), Some(500.0)]);
        assert_eq!(rounded(&rows[3]), [Some(2_000.0), Some(1_000.0), Some(500.0)]);
        assert_eq!(rows[4], [Some(13_000.0), None, Some(18_000.0)]);
    }

    #[test]
    fn a_stream_that_did_not_run_leaves_the_table_empty() {
        let figures = [figure("tcp_mbit", "", f64::NAN), figure("cpu_s", "h1", 1.0)];
        let found = table(&figures, 1.0, ("h1", "h2"), &CipherTimes { seal: 1.0, open: 1.0 });
        assert_eq!(found.rows[3].1, [None]);
    }
}
