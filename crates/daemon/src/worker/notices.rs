//! What a node tells its operator of its neighbours: warnings in the status, lines in the log.

use std::collections::BTreeSet;
use std::net::SocketAddr;
use std::time::Duration;

use shoal_directory::span;
use shoal_relay::hop::{HopView, Outcome};
use shoal_relay::{LinkView, Notices};
use shoal_wire::{LinkId, Time};

use crate::control::answers;
use crate::control::api::{Event, NextHop};
use crate::control::circuits;
use crate::control::cover;
use crate::worker::clock::unix_ms;
use crate::worker::endpoints;
use crate::worker::first::{Parts, Worker};

/// Least difference of clocks, in milliseconds, to warn of; proofs of routes hold for an hour.
const CLOCKS_MS: u64 = 60_000;
/// Endpoints named in one warning.
const NAMED_MAX: usize = 4;
/// How long the warning stays after the last sign that two nodes have one key.
const TWINS_FOR: Duration = Duration::from_secs(600);
/// Proofs newer than this router's own that show another with its key: one or two may be left from
/// before a restart.
const OUTRUN: u32 = 3;

/// A hop that is not made after this has failed: a step is sent eight times, a second apart at
/// most.
const HOP_TAKES: Duration = Duration::from_secs(10);

/// How far a neighbour's clock is ahead of this node's, in milliseconds, as it was told last.
pub fn clock_ahead_ms(notices: &Notices, now: Time, unix_ms: u64) -> Option<i64> {
    let (at, theirs) = notices.clock?;
    let then = i128::from(unix_ms) - i128::try_from(now.since(at).as_millis()).ok()?;
    i64::try_from(i128::from(theirs) - then).ok()
}

/// What is wrong with a neighbour, in words that end with its name or, for the log, without it.
fn faults(notices: &Notices, now: Time, unix_ms: u64, name: &str) -> Vec<(&'static str, String)> {
    let mut faults = Vec::new();
    let ahead = clock_ahead_ms(notices, now, unix_ms).filter(|ms| ms.unsigned_abs() >= CLOCKS_MS);
    if let Some(ahead) = ahead {
        let differ = span(ahead.unsigned_abs() / 1_000);
        let way = if ahead > 0 { "ahead of" } else { "behind" };
        faults.push((
            "clocks",
            format!(
                "the clock of {name} is {differ} {way} this node's: set both; while they differ \
                 by ten minutes or more neither lets the other set circuits up (wrong_clock), by \
                 a day or more one refuses the other's routes (bad_route)"
            ),
        ));
    }
    let of_late = |at: Option<Time>| at.is_some_and(|at| now < at + TWINS_FOR);
    if of_late(notices.two) {
        faults.push((
            "two",
            format!(
                "two nodes seem to run with the key of {name}, and push each other out: stop one, \
                 or give it a key of its own"
            ),
        ));
    }
    if of_late(notices.twin) {
        faults.push((
            "twin",
            format!(
                "{name} says that another node runs with this node's key, so that they push each \
                 other out: stop one, or give it a key of its own"
            ),
        ));
    }
    faults
}

/// Why the addresses of a link don't hop though they are to. The end that only follows counts no
/// hop that fails, since what it hears of none may be that none was tried: it knows by the time.
fn hop_fault(hop: &HopView, now: Time, name: &str) -> Option<String> {
    if hop.hopping {
        return None;
    }
    if !hop.agreed {
        return Some(format!(
            "the addresses of the link with {name} don't hop: that node's [[link]] with this one \
             has no `hop`, or it has no [hop]"
        ));
    }
    (hop.last.1 == Outcome::Failed || is_late(hop, now)).then(|| {
        format!(
            "the addresses of the link with {name} don't hop: nothing came back from the new ones. \
             `shoal check --hop-probe` at either end finds out why; on a segment, a table of \
             neighbours may be full (net.ipv6.neigh.default.gc_thresh3)"
        )
    })
}

/// Whether a hop should have been made, or the neighbour have said that its addresses hop.
fn is_late(hop: &HopView, now: Time) -> bool {
    !hop.hopping && now >= hop.begins_by + HOP_TAKES
}

/// The hops of a link that is up.
fn hops(link: &LinkView) -> Option<HopView> {
    link.hop.filter(|_| link.up_since.is_some())
}

/// Faults of a link for the log: without names, and of hops only those that last.
fn lasting(
    (notices, hop): (&Notices, Option<HopView>),
    now: Time,
    unix_ms: u64,
) -> Vec<(&'static str, String)> {
    let name = "a neighbour";
    let hop = hop.filter(|hop| is_late(hop, now)).and_then(|hop| hop_fault(&hop, now, name));
    let of_node = faults(notices, now, unix_ms, name).into_iter();
    of_node.chain(hop.map(|line| ("hop", line))).collect()
}

/// What the operator should know of neighbours now.
pub fn warnings(parts: &Parts, now: Time) -> Vec<String> {
    let relay = &parts.node.relay;
    let unix_ms = unix_ms();
    let of_link = |link: LinkView| {
        let name = format!("the neighbour {:?}", parts.names.link(link.link));
        let hop = hops(&link).and_then(|hop| hop_fault(&hop, now, &name));
        let notices = faults(&link.notices, now, unix_ms, &name);
        notices.into_iter().map(|fault| fault.1).chain(hop)
    };
    let mut all: Vec<String> = relay.links().flat_map(of_link).collect();
    if relay.routing().is_some_and(|routing| routing.outrun() >= OUTRUN) {
        all.push(OUTRUN_WORDS.into());
    }
    let is_up = |link: LinkView| link.up_since.is_some();
    if parts.authority.is_some() && parts.journal.is_in_vain(now) && !relay.links().any(is_up) {
        let fixed = relay.links().filter(|link| link.called && hops(link).is_none());
        all.push(alone(&fixed.filter_map(|link| link.endpoint).collect()));
    }
    all.extend(parts.lookups.faults());
    all.extend(endpoints::missing(parts));
    let waiting = &parts.journal.waiting;
    if !waiting.is_empty() {
        all.push(format!("waits for a restart: {}", waiting.join(", ")));
    }
    all
}

/// Likely reason why no neighbour answers, all of which are called at these endpoints.
fn alone(called: &BTreeSet<SocketAddr>) -> String {
    let named: Vec<String> = called.iter().take(NAMED_MAX).map(ToString::to_string).collect();
    let at = if named.is_empty() { String::new() } else { format!(" at {}", named.join(", ")) };
    format!(
        "no neighbour answers{at}: does a firewall keep UDP from that port, or does nothing run \
         there? If the network's secret changed while this machine was away, `shoal network \
         fetch` gets the new one from the registrar"
    )
}

const OUTRUN_WORDS: &str = "another router announces itself with this one's address and key: stop \
                            one, or give it an address and a key of its own";

/// A change in words, with names: for the debug level.
fn words(event: &Event) -> String {
    let hop = |hop: &Option<NextHop>| {
        hop.as_ref().map_or("none".into(), |hop| format!("{} (cost {})", hop.peer, hop.cost))
    };
    match event {
        Event::Link { peer, state, .. } => format!("link with {peer}: {state}"),
        Event::Route { router, name, old, new, .. } => {
            let name = name.as_deref().unwrap_or("no name");
            format!("route to {router}.0 ({name}): {}, before {}", hop(new), hop(old))
        }
        _ => "something else".into(),
    }
}

/// Writes a change of the network into the log, with names.
pub fn note_change(event: &Event) {
    if tracing::enabled!(tracing::Level::DEBUG) {
        tracing::debug!("{}", words(event));
    }
}

/// What is logged when loops show that a circuit is worse than the others.
const WORSE: &str = "loops show that a circuit loses or holds more cells than the others: it gives \
                     way; `shoal circuits` says more";

impl Worker {
    /// Writes a line about a link that came up or went silent.
    pub(crate) fn note_link(&mut self, now: Time, what: &str) {
        let Parts { journal, node, .. } = &mut self.parts;
        let counts = || {
            let up = node.relay.links().filter(|link| link.up_since.is_some()).count();
            (up, node.relay.links().count())
        };
        if let Some(line) = journal.link(now, what, counts) {
            tracing::info!("{line}");
        }
    }

    /// Tells a new session's other end what this node's clock shows.
    pub(crate) fn tell_clock(&mut self, now: Time, link: LinkId) {
        let Parts { node, ports, .. } = &mut self.parts;
        node.relay.send_clock(now, link, unix_ms(), ports.at(now));
    }

    /// Writes into the log at once that two nodes have one key, as this link shows.
    pub(crate) fn note_twins(&mut self, now: Time, link: LinkId) {
        let Some(view) = self.parts.node.relay.view(link) else { return };
        let found = faults(&view.notices, now, unix_ms(), "a neighbour");
        for (what, line) in found.into_iter().filter(|fault| ["two", "twin"].contains(&fault.0)) {
            if self.parts.journal.may_say(now, what) {
                tracing::warn!("{line}; `shoal status` says more");
            }
        }
    }

    /// Writes into the log what became of covered links.
    fn keep_cover_journal(&mut self, now: Time) {
        let seen: Vec<_> =
            cover::views(&self.parts).map(|(link, view)| (link.link, view)).collect();
        let small = cover::small_sets(&self.parts).collect();
        for line in self.parts.journal.covered(now, seen.into_iter(), small) {
            tracing::warn!("{line}");
        }
        let loops = circuits::loops(&self.parts).map_or(0, |loops| loops.lossy + loops.held);
        if loops > std::mem::replace(&mut self.parts.journal.found, loops) {
            tracing::warn!("{WORSE}");
        }
        let unhidden = cover::unhidden(&self.parts);
        if let Some(line) = unhidden.filter(|_| self.parts.journal.may_say(now, "hidden")) {
            tracing::error!("{line}");
        }
    }

    /// Writes into the log what began since the last time.
    pub(crate) fn keep_journal(&mut self, now: Time) {
        if !self.parts.journal.is_due(now) {
            return;
        }
        self.look_up_endpoints(now);
        let unix_ms = unix_ms();
        let drops: Vec<_> = answers::dropped(&self.parts).collect();
        let Parts { journal, node, .. } = &mut self.parts;
        for line in journal.drops(now, drops.into_iter()) {
            tracing::warn!("{line}");
        }
        let in_vain =
            |link: &LinkView| link.called && link.endpoint.is_some() && link.last_heard.is_none();
        let calling = node.relay.links().filter(in_vain).count();
        if let Some(line) = journal.calls(now, calling) {
            tracing::warn!("{line}");
        }
        self.keep_cover_journal(now);
        let Parts { journal, node, .. } = &mut self.parts;
        let mut found: Vec<(&'static str, String)> = Vec::new();
        for link in node.relay.links() {
            for (what, line) in lasting((&link.notices, hops(&link)), now, unix_ms) {
                if found.iter().all(|known| known.0 != what) {
                    found.push((what, line));
                }
            }
        }
        if node.relay.routing().is_some_and(|routing| routing.outrun() >= OUTRUN) {
            found.push(("outrun", OUTRUN_WORDS.into()));
        }
        for (what, line) in found {
            if journal.may_say(now, what) {
                tracing::warn!("{line}; `shoal status` says more");
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn with(change: impl FnOnce(&mut Notices)) -> Notices {
        let mut notices = Notices::default();
        change(&mut notices);
        notices
    }

    #[test]
    fn silent_neighbours_are_named_with_their_ports() {
        let at = ["192.0.2.1:7400", "[2001:db8::1]:7400"].map(|at| at.parse().unwrap());
        let said = alone(&at.into());
        assert!(said.contains("at 192.0.2.1:7400, [2001:db8::1]:7400: does a firewall"), "{said}");
        assert!(alone(&BTreeSet::new()).starts_with("no neighbour answers: "));
    }

    #[test]
    fn a_clock_that_differs_is_named_with_the_difference() {
        let now = Time::from_millis(100_000);
        let heard = Time::from_millis(90_000);
        let unix = 1_800_000_000_000;
        // The neighbour's clock was told ten seconds ago.
        let told = |theirs: u64| with(|notices| notices.clock = Some((heard, theirs)));
        let ahead = |theirs| clock_ahead_ms(&told(theirs), now, unix);
        assert_eq!(ahead(unix - 10_000), Some(0));
        assert_eq!(ahead(unix - 10_000 + 7_380_000), Some(7_380_000));
        assert_eq!(clock_ahead_ms(&Notices::default(), now, unix), None);
        let said = |theirs| faults(&told(theirs), now, unix, "the neighbour \"r2\"");
        assert!(said(unix - 10_000 - 59_000).is_empty());
        let ahead = &said(unix - 10_000 + 7_380_000)[0].1;
        assert!(ahead.contains("\"r2\" is 2 h 3 min ahead of this node's"), "{ahead}");
        let behind = &said(unix - 10_000 - 90_000)[0].1;
        assert!(behind.contains("1 min 30 s behind this node's"), "{behind}");
        assert!(said(u64::MAX).is_empty() || said(u64::MAX).len() == 1, "no overflow");
    }

    #[test]
    fn two_nodes_with_one_key_are_spoken_of_for_a_while() {
        let told = with(|notices| notices.two = Some(Time::from_millis(1_000)));
        let said = |second: u64| faults(&told, Time::from_millis(1_000 * second), 0, "a neighbour");
        assert!(said(2)[0].1.contains("two nodes seem to run with the key of a neighbour"));
        assert!(said(602).is_empty());
    }

    #[test]
    fn a_link_whose_addresses_stay_is_named_at_either_end_and_once_that_lasts_logged() {
        let second = |second: u64| Time::from_millis(1_000 * second);
        let hop = HopView {
            interval: Duration::from_secs(1),
            agreed: true,
            hopping: false,
            made: 0,
            failed: 0,
            last: (Time::ZERO, Outcome::None),
            meets: false,
            begins_by: second(20),
        };
        let says = |hop: &HopView, at: u64| {
            hop_fault(hop, second(at), "the neighbour \"r2\"").map_or(String::new(), |said| said)
        };
        let logs = |hop: HopView, at: u64| {
            let lines = lasting((&Notices::default(), Some(hop)), second(at), 0);
            assert!(lines.iter().all(|(what, line)| *what == "hop" && !line.contains("r2")));
            lines.len()
        };
        // The first hop may be under way; the end that follows counts none.
        assert_eq!([says(&hop, 29), says(&hop, 0)], ["", ""]);
        assert!(says(&hop, 30).contains("\"r2\" don't hop: nothing came back"));
        assert_eq!([logs(hop, 29), logs(hop, 30)], [0, 1]);
        let failed = HopView { last: (second(12), Outcome::Failed), failed: 1, ..hop };
        assert!(says(&failed, 12).contains("nothing came back"));
        assert_eq!([logs(failed, 12), logs(failed, 31)], [0, 1]);
        let alone = HopView { agreed: false, ..hop };
        assert!(says(&alone, 12).contains("has no `hop`"));
        assert_eq!([logs(alone, 12), logs(alone, 31)], [0, 1]);
        let hopping = HopView { hopping: true, last: (second(25), Outcome::Moved), ..hop };
        assert_eq!((says(&hopping, 99), logs(hopping, 99)), (String::new(), 0));
    }

    #[test]
    fn changes_are_told_in_words() {
        let next = NextHop { peer: "r2".into(), cost: 7 };
        let event = Event::Route {
            unix_ms: 1,
            router: 3,
            name: Some("r3".into()),
            old: None,
            new: Some(next),
        };
        assert_eq!(words(&event), "route to 3.0 (r3): r2 (cost 7), before none");
        let (peer, state) = ("r2".into(), "up".into());
        let event = Event::Link { unix_ms: 1, peer, state, reason: None };
        assert_eq!(words(&event), "link with r2: up");
    }
}
