//! Programs that want to know whether addresses of the prefix can be used with each neighbour, and
//! wait for what the probes find (`shoal_relay::hop`).

use std::time::Duration;

use shoal_relay::hop::ProbeView;
use shoal_wire::{LinkId, Time};

use crate::control::api::{ErrorCode, HopProbed, Reply};
use crate::control::socket::{ClientId, Pending};
use crate::worker::first::Parts;

/// Programs that may wait at once.
const WAITING_MAX: usize = 16;
/// Longer than any probe, which tries twelve times at most, each 300 ms; one goes on for all who
/// ask meanwhile.
const PATIENCE: Duration = Duration::from_secs(4);
/// How soon to look whether the probes have ended.
const LOOK_EVERY: Duration = Duration::from_millis(50);

/// A program, and the links of which it wants to know.
struct Waiting {
    pending: Pending,
    /// None where no probe could begin, and why.
    links: Vec<(LinkId, Option<&'static str>)>,
    deadline: Time,
}

/// All programs that wait.
#[derive(Default)]
pub struct HopProbes {
    all: Vec<Waiting>,
    look_at: Time,
}

impl HopProbes {
    /// Begins a probe with each neighbour whose section has `hop`; the answer goes to `pending`.
    pub fn start(&mut self, now: Time, parts: &mut Parts, pending: Pending) {
        if parts.hopping.is_none() {
            let text = "this node's addresses don't hop: its file has no [hop]";
            return pending.reply(Reply::error(ErrorCode::BadConfig, text));
        }
        if self.all.len() >= WAITING_MAX {
            let text = "too many programs ask for probes at once";
            return pending.reply(Reply::error(ErrorCode::Busy, text));
        }
        let relay = &mut parts.node.relay;
        let hop: Vec<_> = relay.links().filter(|link| link.hop.is_some()).collect();
        let links = hop.into_iter().map(|link| {
            let why = match link.hop {
                _ if !link.established => Some("down"),
                Some(hop) if !hop.agreed => Some("alone"),
                _ => None,
            };
            let began = why.is_none() && relay.probe_hop(now, link.link);
            (link.link, if began { None } else { why.or(Some("down")) })
        });
        let links = links.collect();
        self.all.push(Waiting { pending, links, deadline: now + PATIENCE });
        self.look_at = now;
    }

    /// A program is gone.
    pub fn client_closed(&mut self, client: ClientId) {
        self.all.retain(|waiting| waiting.pending.client() != client);
    }

    /// When [`HopProbes::handle_timeout`] has something to do.
    pub fn poll_timeout(&self) -> Option<Time> {
        (!self.all.is_empty()).then_some(self.look_at)
    }

    /// Answers those of whose probes all have ended.
    pub fn handle_timeout(&mut self, now: Time, parts: &Parts) {
        if self.all.is_empty() || now < self.look_at {
            return;
        }
        self.look_at = now + LOOK_EVERY;
        let view = |link| parts.node.relay.hop_probe(link);
        let goes_on = |(link, why): &(LinkId, Option<&str>)| {
            why.is_none() && view(*link).is_some_and(|view| !view.over)
        };
        let ended =
            |waiting: &mut Waiting| waiting.deadline <= now || !waiting.links.iter().any(goes_on);
        for Waiting { pending, links, .. } in self.all.extract_if(.., ended) {
            let found = links.into_iter().map(|(link, why)| HopProbed {
                peer: parts.names.link(link),
                outcome: why.unwrap_or_else(|| outcome(view(link))).into(),
            });
            pending.reply(Reply::HopProbes(found.collect()));
        }
    }
}

/// What a probe found, in a word.
fn outcome(found: Option<ProbeView>) -> &'static str {
    match found {
        None | Some(ProbeView { heard: false, .. }) => "silent",
        Some(ProbeView { came: false, moved: true, .. }) => "moved",
        Some(ProbeView { came: true, left: true, .. }) => "open",
        Some(ProbeView { came: false, left: true, .. }) => "not_routed",
        Some(ProbeView { came: true, left: false, .. }) => "filtered",
        Some(_) => "closed",
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_may_have_gone_to_a_former_prefix_closes_nothing() {
        let found = |came, left, moved| {
            outcome(Some(ProbeView { over: true, heard: true, came, left, moved }))
        };
        assert_eq!([found(true, true, true), found(true, true, false)], ["open"; 2]);
        assert_eq!([found(true, false, true), found(true, false, false)], ["filtered"; 2]);
        assert_eq!([found(false, true, true), found(false, false, true)], ["moved"; 2]);
        let known = [found(false, true, false), found(false, false, false)];
        assert_eq!(known, ["not_routed", "closed"]);
        assert_eq!(outcome(None), "silent");
    }
}
