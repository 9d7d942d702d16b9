//! The fuzzer's targets as plain functions, so that an ordinary test on stable Rust replays the
//! committed corpus.
//!
//! In: arbitrary bytes. Out: nothing; a broken property panics. `fuzz/fuzz_targets` has one short
//! program per entry of [`CASES`]; `fuzz/corpus/NAME` is its corpus. A program calls its function
//! directly, not by the table. The linker then leaves out all other code, and libFuzzer checks a
//! tenth of the counters after every execution.

pub mod attribution;
pub mod directory;
pub mod handing;
pub mod ip;
pub mod joining;
pub mod machines;
pub mod meeting;
pub mod moving;
pub mod node;
pub mod nodes;
pub mod onion;
pub mod path;
#[cfg(test)]
mod replay_tests;
pub mod supplements;
pub mod wire;

/// A target: its name, which is also that of its corpus folder, and its function.
pub type FuzzTarget = (&'static str, fn(&[u8]));

pub const CASES: &[FuzzTarget] = &[
    ("wire_frame", wire::frame),
    ("wire_control", wire::control),
    ("wire_handshake", wire::handshake),
    ("wire_transfer", wire::transfer),
    ("wire_address", wire::address),
    ("wire_direct", wire::direct),
    ("wire_stun", wire::stun),
    ("wire_portmap", wire::portmap),
    ("wire_leg", onion::leg),
    ("ip_packets", ip::packets),
    ("joining_invite", joining::invite),
    ("joining_ledger", joining::ledger),
    ("machine_transfer", machines::transfer),
    ("machine_routing", machines::routing),
    ("machine_session", machines::session),
    ("machine_relay", nodes::relay),
    ("machine_edge", nodes::edge),
    ("machine_hop", onion::hop),
    ("machine_meeting", meeting::meeting),
    ("machine_moving", moving::moving),
    ("machine_origin", onion::origin),
    ("machine_path", path::path),
    ("node_config", node::config),
    ("node_hosts", node::hosts),
    ("node_keys", node::keys),
    ("node_control", node::control),
    ("node_stream", node::stream),
    ("directory_files", directory::files),
    ("directory_policy", directory::policy),
    ("directory_firewall", directory::firewall),
    ("directory_exchange", directory::exchange),
    ("directory_supplements", supplements::supplements),
    ("directory_chains", supplements::chains),
    ("directory_secrets", handing::secrets),
    ("attribution_elements", attribution::elements),
    ("attribution_files", attribution::files),
    ("attribution_parts", attribution::parts),
    ("attribution_signature", attribution::signature),
    ("attribution_stamps", attribution::stamps),
];
