//! Programs that wait for probes of shifting addresses with each neighbour (`shoal_relay::shift`).

use std::time::Duration;

use shoal_relay::shift::AddressProbeView;
use shoal_wire::{LinkId, Time};

use crate::control::api::{ControlReply, ErrorCode, ShiftProbeResult};
use crate::control::socket::{ClientId, PendingReply};
use crate::worker::first::WorkerParts;

/// Most programs that may wait at once.
const WAITING_MAX: usize = 16;
/// Longer than any probe, which tries at most twelve times at intervals of 300 ms. Programs that
/// ask during a probe share its result.
const PATIENCE: Duration = Duration::from_secs(4);
/// Interval at which the probes are checked for their end.
const LOOK_EVERY: Duration = Duration::from_millis(50);

/// A program, and the links that it asks about.
struct ShiftProbeRequest {
    pending: PendingReply,
    /// With the reason for a link that can't be probed; none for a link whose probe runs.
    links: Vec<(LinkId, Option<&'static str>)>,
    deadline: Time,
}

/// All programs that wait.
#[derive(Default)]
pub struct ShiftProbes {
    all: Vec<ShiftProbeRequest>,
    look_at: Time,
}

impl ShiftProbes {
    /// Begins a probe with each neighbour whose section has `shift`; the answer goes to `pending`.
    pub fn start(&mut self, now: Time, parts: &mut WorkerParts, pending: PendingReply) {
        if parts.shifting.is_none() {
            let text = "this node's addresses don't shift: its file has no [shift]";
            return pending.reply(ControlReply::error(ErrorCode::BadConfig, text));
        }
        if self.all.len() >= WAITING_MAX {
            let text = "too many programs ask for probes at once";
            return pending.reply(ControlReply::error(ErrorCode::Busy, text));
        }
        let relay = &mut parts.node.relay;
        let shift: Vec<_> = relay.links().filter(|link| link.shift.is_some()).collect();
        let links = shift.into_iter().map(|link| {
            let why = match link.shift {
                _ if !link.established => Some("down"),
                Some(shift) if !shift.agreed => Some("alone"),
                _ => None,
            };
            let began = why.is_none() && relay.probe_shift(now, link.link);
            (link.link, if began { None } else { why.or(Some("down")) })
        });
        let links = links.collect();
        self.all.push(ShiftProbeRequest { pending, links, deadline: now + PATIENCE });
        self.look_at = now;
    }

    /// Forgets a program that is gone.
    pub fn client_closed(&mut self, client: ClientId) {
        self.all.retain(|waiting| waiting.pending.client() != client);
    }

    /// Time at which [`ShiftProbes::handle_timeout`] is due.
    pub fn poll_timeout(&self) -> Option<Time> {
        (!self.all.is_empty()).then_some(self.look_at)
    }

    /// Answers every program whose probes have all ended.
    pub fn handle_timeout(&mut self, now: Time, parts: &WorkerParts) {
        if self.all.is_empty() || now < self.look_at {
            return;
        }
        self.look_at = now + LOOK_EVERY;
        let view = |link| parts.node.relay.shift_probe(link);
        let goes_on = |(link, why): &(LinkId, Option<&str>)| {
            why.is_none() && view(*link).is_some_and(|view| !view.over)
        };
        let ended = |waiting: &mut ShiftProbeRequest| {
            waiting.deadline <= now || !waiting.links.iter().any(goes_on)
        };
        for ShiftProbeRequest { pending, links, .. } in self.all.extract_if(.., ended) {
            let found = links.into_iter().map(|(link, why)| ShiftProbeResult {
                peer: parts.names.link(link),
                outcome: why.unwrap_or_else(|| outcome(view(link))).into(),
            });
            pending.reply(ControlReply::ShiftProbes(found.collect()));
        }
    }
}

/// Result of a probe, in a word.
fn outcome(found: Option<AddressProbeView>) -> &'static str {
    match found {
        None | Some(AddressProbeView { heard: false, .. }) => "silent",
        Some(AddressProbeView { came: false, moved: true, .. }) => "moved",
        Some(AddressProbeView { came: true, left: true, .. }) => "open",
        Some(AddressProbeView { came: false, left: true, .. }) => "not_routed",
        Some(AddressProbeView { came: true, left: false, .. }) => "filtered",
        Some(_) => "closed",
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_may_have_gone_to_a_former_prefix_closes_nothing() {
        let found = |came, left, moved| {
            outcome(Some(AddressProbeView { over: true, heard: true, came, left, moved }))
        };
        assert_eq!([found(true, true, true), found(true, true, false)], ["open"; 2]);
        assert_eq!([found(true, false, true), found(true, false, false)], ["filtered"; 2]);
        assert_eq!([found(false, true, true), found(false, false, true)], ["moved"; 2]);
        let known = [found(false, true, false), found(false, false, false)];
        assert_eq!(known, ["not_routed", "closed"]);
        assert_eq!(outcome(None), "silent");
    }
}
