//! The reference of metrics. `shoal reference metrics` prints it as docs/reference/metrics.md.

use std::fmt::Write;

/// One row of the reference.
struct MetricRow {
    name: &'static str,
    kind: &'static str,
    unit: &'static str,
    /// Nodes that have the metric.
    when: &'static str,
    meaning: &'static str,
}

/// The page of metrics as Markdown.
pub fn page() -> String {
    let mut page = INTRODUCTION.to_owned();
    for MetricRow { name, kind, unit, when, meaning } in METRICS {
        // Writing to a String can't fail.
        let _ = writeln!(page, "| `{name}` | {kind} | {unit} | {when} | {meaning} |");
    }
    page + NOTES
}

const INTRODUCTION: &str = "\
# Metrics

`shoal metrics` prints a node's counters as OpenMetrics text. Nothing listens on a port. A
collector on the node asks the control socket, as the textfile collector of node_exporter does:

```console
# cd /var/lib/node_exporter
# shoal metrics > shoal.prom.new && mv shoal.prom.new shoal.prom
```

A second question within a second gets the same text, so questions take little of the worker's
time.

`dist/grafana-shoal.json` is a dashboard. Counters count from the start of the process. Names of
neighbours appear only with `[metrics] per_peer = true`. They say who talks to whom, so keep them
local. Tests compare this list with the output of running nodes in both directions, and the
dashboard with this list.

\"When\" says which nodes have a metric: all (`always`), nodes with several `[data] workers`, with
an `[authority]`, with an `[interface]` and an authority, with `[direct]`, hosts that send
`loops`, or `per_peer`.

| metric | kind | unit | when | meaning |
|---|---|---|---|---|
";

const METRICS: &[MetricRow] = &[
    MetricRow {
        name: "shoal_frames_received_total",
        kind: "counter",
        unit: "frames",
        when: "always",
        meaning: "frames received from neighbours",
    },
    MetricRow {
        name: "shoal_frames_sent_total",
        kind: "counter",
        unit: "frames",
        when: "always",
        meaning: "frames sent to neighbours",
    },
    MetricRow {
        name: "shoal_bytes_received_total",
        kind: "counter",
        unit: "bytes",
        when: "always",
        meaning: "UDP payload received",
    },
    MetricRow {
        name: "shoal_bytes_sent_total",
        kind: "counter",
        unit: "bytes",
        when: "always",
        meaning: "UDP payload sent",
    },
    MetricRow {
        name: "shoal_cells_transit_total",
        kind: "counter",
        unit: "cells",
        when: "always",
        meaning: "passed on between neighbours",
    },
    MetricRow {
        name: "shoal_cells_local_total",
        kind: "counter",
        unit: "cells",
        when: "always",
        meaning: "for this node",
    },
    MetricRow {
        name: "shoal_cells_origin_total",
        kind: "counter",
        unit: "cells",
        when: "always",
        meaning: "sent by this node",
    },
    MetricRow {
        name: "shoal_cells_marked_total",
        kind: "counter",
        unit: "cells",
        when: "always",
        meaning: "marked as congested here",
    },
    MetricRow {
        name: "shoal_cells_held_total",
        kind: "counter",
        unit: "cells",
        when: "always",
        meaning: "kept back by a hold, such as a mix",
    },
    MetricRow {
        name: "shoal_cells_released_total",
        kind: "counter",
        unit: "cells",
        when: "always",
        meaning: "held cells that left, or whose link is gone; the rest still waits",
    },
    MetricRow {
        name: "shoal_cells_late_total",
        kind: "counter",
        unit: "cells",
        when: "always",
        meaning: "held cells that left later than `by`: 0.5ms, 2ms, 10ms; each limit includes the \
            higher ones",
    },
    MetricRow {
        name: "shoal_receive_calls_total",
        kind: "counter",
        unit: "calls",
        when: "always",
        meaning: "system calls that received",
    },
    MetricRow {
        name: "shoal_receive_messages_total",
        kind: "counter",
        unit: "messages",
        when: "always",
        meaning: "messages received; one may hold many frames",
    },
    MetricRow {
        name: "shoal_send_calls_total",
        kind: "counter",
        unit: "calls",
        when: "always",
        meaning: "system calls that sent",
    },
    MetricRow {
        name: "shoal_send_no_buffers_total",
        kind: "counter",
        unit: "calls",
        when: "always",
        meaning: "sends that met a full queue below",
    },
    MetricRow {
        name: "shoal_send_would_block_total",
        kind: "counter",
        unit: "calls",
        when: "always",
        meaning: "sends that met a full socket buffer",
    },
    MetricRow {
        name: "shoal_send_failed_total",
        kind: "counter",
        unit: "calls",
        when: "always",
        meaning: "sends that the kernel refused",
    },
    MetricRow {
        name: "shoal_send_gso_refused_total",
        kind: "counter",
        unit: "times",
        when: "always",
        meaning: "a path refused segmentation",
    },
    MetricRow {
        name: "shoal_send_bad_source_total",
        kind: "counter",
        unit: "times",
        when: "always",
        meaning: "the kernel refused the source that a neighbour had called, and chooses one for \
            10 s",
    },
    MetricRow {
        name: "shoal_send_gso_refusing",
        kind: "gauge",
        unit: "paths",
        when: "always",
        meaning: "paths that refuse segmentation now",
    },
    MetricRow {
        name: "shoal_handshakes_total",
        kind: "counter",
        unit: "handshakes",
        when: "always",
        meaning: "by `with` (link, host) and `outcome` (requested, answered, cookie_sent, \
            cookie_taken, established, failed, refused, removed_told)",
    },
    MetricRow {
        name: "shoal_dropped_total",
        kind: "counter",
        unit: "frames, cells or packets",
        when: "always",
        meaning: "drops by `reason`: [every counter](counters.md)",
    },
    MetricRow {
        name: "shoal_links",
        kind: "gauge",
        unit: "links",
        when: "always",
        meaning: "configured neighbours",
    },
    MetricRow {
        name: "shoal_links_up",
        kind: "gauge",
        unit: "links",
        when: "always",
        meaning: "neighbours that answer",
    },
    MetricRow {
        name: "shoal_routes",
        kind: "gauge",
        unit: "routers",
        when: "always",
        meaning: "destinations with a route",
    },
    MetricRow {
        name: "shoal_host_sessions",
        kind: "gauge",
        unit: "sessions",
        when: "always",
        meaning: "live sessions with hosts",
    },
    MetricRow {
        name: "shoal_circuits_open",
        kind: "gauge",
        unit: "circuits",
        when: "always",
        meaning: "circuits that end here or go through here, in steps of 8, taken every 10 s",
    },
    MetricRow {
        name: "shoal_order_total",
        kind: "counter",
        unit: "packets, gaps or times",
        when: "always",
        meaning: "work on the order of packets from circuits, by `what`: see below",
    },
    MetricRow {
        name: "shoal_loops_total",
        kind: "counter",
        unit: "loops or circuits",
        when: "loops",
        meaning: "[loops](../design/cover.md#loops) by `outcome`: back, late, lost; circuits \
            replaced as `lossy`, or as they `held` cells",
    },
    MetricRow {
        name: "shoal_cover_frames_total",
        kind: "counter",
        unit: "frames",
        when: "always",
        meaning: "frames in slots of all covered links, used or not, as of seconds ago",
    },
    MetricRow {
        name: "shoal_cover_skipped_total",
        kind: "counter",
        unit: "slots",
        when: "always",
        meaning: "slots of covered links that passed unused for over a second: no processor, or no \
            kernel room",
    },
    MetricRow {
        name: "shoal_transfers",
        kind: "gauge",
        unit: "transfers",
        when: "always",
        meaning: "files on their way, both directions",
    },
    MetricRow {
        name: "shoal_resident_memory_bytes",
        kind: "gauge",
        unit: "bytes",
        when: "always",
        meaning: "resident memory",
    },
    MetricRow {
        name: "shoal_cpu_milliseconds_total",
        kind: "counter",
        unit: "ms",
        when: "always",
        meaning: "CPU time used",
    },
    MetricRow {
        name: "shoal_log_lines_lost_total",
        kind: "counter",
        unit: "lines",
        when: "always",
        meaning: "lines of the log lost because standard error was not read or could not be \
            written",
    },
    MetricRow {
        name: "shoal_worker_cells_transit_total",
        kind: "counter",
        unit: "cells",
        when: "workers",
        meaning: "passed on, by `worker`",
    },
    MetricRow {
        name: "shoal_worker_frames_received_total",
        kind: "counter",
        unit: "frames",
        when: "workers",
        meaning: "received, by `worker`",
    },
    MetricRow {
        name: "shoal_worker_packets_sent_total",
        kind: "counter",
        unit: "packets",
        when: "workers",
        meaning: "packets of programs, sent from the interface's queue of `worker`",
    },
    MetricRow {
        name: "shoal_worker_packets_written_total",
        kind: "counter",
        unit: "packets",
        when: "workers",
        meaning: "packets of other hosts, written to the interface's queue of `worker`",
    },
    MetricRow {
        name: "shoal_authority_list_version",
        kind: "gauge",
        unit: "",
        when: "authority",
        meaning: "version of the list in force",
    },
    MetricRow {
        name: "shoal_authority_list_age_seconds",
        kind: "gauge",
        unit: "s",
        when: "authority",
        meaning: "age of that list since its signature",
    },
    MetricRow {
        name: "shoal_authority_max_staleness_seconds",
        kind: "gauge",
        unit: "s",
        when: "authority",
        meaning: "age from which on nobody is a member",
    },
    MetricRow {
        name: "shoal_authority_members",
        kind: "gauge",
        unit: "members",
        when: "authority",
        meaning: "members in force",
    },
    MetricRow {
        name: "shoal_authority_in_force",
        kind: "gauge",
        unit: "0 or 1",
        when: "authority",
        meaning: "the list is fresh and this node one of its members",
    },
    MetricRow {
        name: "shoal_authority_exchange_total",
        kind: "counter",
        unit: "lists or parts",
        when: "authority",
        meaning: "between neighbours, by `event`: lists taken, refused, given_up; parts_sent, \
            parts_received; twins (another list of our version)",
    },
    MetricRow {
        name: "shoal_authority_supplements_total",
        kind: "counter",
        unit: "transfers or steps",
        when: "authority",
        meaning: "registrars' supplements between neighbours, by `event`: transfers taken, \
            refused, given_up; steps_sent",
    },
    MetricRow {
        name: "shoal_authority_lists_refused_total",
        kind: "counter",
        unit: "lists",
        when: "authority",
        meaning: "invalid lists: older, damaged, or not the authority's",
    },
    MetricRow {
        name: "shoal_firewall_flows",
        kind: "gauge",
        unit: "flows",
        when: "interface",
        meaning: "flows that the inbound firewall remembers",
    },
    MetricRow {
        name: "shoal_firewall_flows_displaced_total",
        kind: "counter",
        unit: "flows",
        when: "interface",
        meaning: "flows replaced by others before their time",
    },
    MetricRow {
        name: "shoal_direct_links_total",
        kind: "counter",
        unit: "links",
        when: "direct",
        meaning: "with hosts past the routers, by `event` (asked, agreed, up, lost, trimmed, \
            failed, full)",
    },
    MetricRow {
        name: "shoal_peer_frames_sent_total",
        kind: "counter",
        unit: "frames",
        when: "per_peer",
        meaning: "to `peer`",
    },
    MetricRow {
        name: "shoal_peer_frames_received_total",
        kind: "counter",
        unit: "frames",
        when: "per_peer",
        meaning: "from `peer`",
    },
    MetricRow {
        name: "shoal_peer_up",
        kind: "gauge",
        unit: "0 or 1",
        when: "per_peer",
        meaning: "whether `peer` answers",
    },
    MetricRow {
        name: "shoal_peer_rtt_seconds",
        kind: "gauge",
        unit: "s",
        when: "per_peer",
        meaning: "smoothed round trip to `peer`, once it is known",
    },
    MetricRow {
        name: "shoal_peer_loss_ratio",
        kind: "gauge",
        unit: "0 to 1",
        when: "per_peer",
        meaning: "smoothed share of frames to `peer` that were lost",
    },
    MetricRow {
        name: "shoal_peer_waiting_cells",
        kind: "gauge",
        unit: "cells",
        when: "per_peer",
        meaning: "cells that wait for the link to `peer`",
    },
];

const NOTES: &str = "
**Late cells.** If more than one cell in a hundred is 0.5 ms late, the relay has too little of a
processor for its [mixes](../guide/mixes-cover.md).

**Order** (`shoal_order_total`), by `what`:

- packets `held` for earlier ones;
- packets `kept`, since they came early in a fast stream;
- gaps `given_up`;
- packets `late`, after others behind them;
- times that a stream `overflowed`;
- packets `unordered`, since there was no room.

**Cover.** No metric says what a covered link carries ([how cover works](../design/cover.md)).

**Open circuits** are rounded up to a multiple of 8, so that no single circuit shows as it comes
or goes.
";
