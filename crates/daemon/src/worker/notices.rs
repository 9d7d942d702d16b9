//! Warnings and log lines about a node's neighbours.

use std::collections::BTreeSet;
use std::net::SocketAddr;
use std::time::Duration;

use shoal_directory::span;
use shoal_relay::shift::{ShiftOutcome, ShiftView};
use shoal_relay::{LinkView, NeighbourWarnings};
use shoal_wire::{LinkId, Time};

use crate::control::answers;
use crate::control::api::{ControlEvent, NextHop};
use crate::control::circuits;
use crate::control::cover;
use crate::membership::removed;
use crate::worker::clock::unix_ms;
use crate::worker::endpoints;
use crate::worker::first::{FirstWorker, WorkerParts};

/// Least difference of clocks that causes a warning, in milliseconds. Proofs of routes are valid
/// for an hour.
const CLOCKS_MS: u64 = 60_000;
/// Endpoints named in one warning.
const NAMED_MAX: usize = 4;
/// Time that a warning stays after the last sign of two nodes with one key.
const TWINS_FOR: Duration = Duration::from_secs(600);
/// Least number of proofs, newer than this router's own, that show another router with its key. One
/// or two may be left from before a restart.
const OUTRUN: u32 = 3;

/// Faults that are logged at once.
const AT_ONCE: [&str; 3] = ["two", "twin", "removed"];

/// Time after which an unfinished shift has failed. A step is sent eight times, at most a second
/// apart.
const SHIFT_TAKES: Duration = Duration::from_secs(10);

/// Milliseconds that a neighbour's clock is ahead of this node's, by its last report.
pub fn clock_ahead_ms(notices: &NeighbourWarnings, now: Time, unix_ms: u64) -> Option<i64> {
    let (at, theirs) = notices.clock?;
    let then = i128::from(unix_ms) - i128::try_from(now.since(at).as_millis()).ok()?;
    i64::try_from(i128::from(theirs) - then).ok()
}

/// Warnings about a neighbour. `name` is its name, or a general word for the log.
fn faults(
    notices: &NeighbourWarnings,
    now: Time,
    unix_ms: u64,
    name: &str,
) -> Vec<(&'static str, String)> {
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
                "two nodes seem to run with the key of {name}, and end each other's sessions: stop \
                 one, or give it its own key"
            ),
        ));
    }
    if of_late(notices.twin) {
        faults.push((
            "twin",
            format!(
                "{name} says that another node runs with this node's key, so that the two end each \
                 other's sessions: stop one, or give it its own key"
            ),
        ));
    }
    if let Some((_, removal)) = notices.removed {
        faults.push(("removed", removed::told_words(name, removal)));
    }
    faults
}

/// Warning about a link whose addresses should shift and don't. The end that only follows can't
/// count failed shifts, since it may simply have received no attempt. It decides by the time.
fn shift_fault(shift: &ShiftView, now: Time, name: &str) -> Option<String> {
    if shift.shifting {
        return None;
    }
    if !shift.agreed {
        return Some(format!(
            "the addresses of the link with {name} don't shift: that node's [[link]] with this one \
             has no `shift`, or it has no [shift]"
        ));
    }
    (shift.last.1 == ShiftOutcome::Failed || is_late(shift, now)).then(|| {
        format!(
            "the addresses of the link with {name} don't shift: nothing came back from the new \
             ones. `shoal check --shift-probe` at either end finds out why; on a segment, a \
             table of neighbours may be full (net.ipv6.neigh.default.gc_thresh3)"
        )
    })
}

/// True if a shift should have happened by now, or the neighbour should have announced its own.
fn is_late(shift: &ShiftView, now: Time) -> bool {
    !shift.shifting && now >= shift.begins_by + SHIFT_TAKES
}

/// State of shifts on a link that is up.
fn shifts(link: &LinkView) -> Option<ShiftView> {
    link.shift.filter(|_| link.up_since.is_some())
}

/// Faults of a link for the log: without names, and only lasting faults of shifts.
fn lasting(
    (notices, shift): (&NeighbourWarnings, Option<ShiftView>),
    now: Time,
    unix_ms: u64,
) -> Vec<(&'static str, String)> {
    let name = "a neighbour";
    let shift =
        shift.filter(|shift| is_late(shift, now)).and_then(|shift| shift_fault(&shift, now, name));
    let of_node = faults(notices, now, unix_ms, name).into_iter();
    of_node.chain(shift.map(|line| ("shift", line))).collect()
}

/// Warnings about neighbours, for the operator.
pub fn warnings(parts: &WorkerParts, now: Time) -> Vec<String> {
    let relay = &parts.node.relay;
    let unix_ms = unix_ms();
    let is_proved = removed::is_proved(parts);
    let of_link = |link: LinkView| {
        let name = format!("the neighbour {:?}", parts.names.link(link.link));
        let shift = shifts(&link).and_then(|shift| shift_fault(&shift, now, &name));
        let mut notices = faults(&link.notices, now, unix_ms, &name);
        notices.retain(|fault| fault.0 != "removed" || !is_proved);
        notices.into_iter().map(|fault| fault.1).chain(shift)
    };
    let mut all: Vec<String> = relay.links().flat_map(of_link).collect();
    if relay.routing().is_some_and(|routing| routing.outrun() >= OUTRUN) {
        all.push(OUTRUN_WORDS.into());
    }
    let answers = |link: LinkView| link.up_since.is_some() || link.notices.removed.is_some();
    if parts.authority.is_some() && parts.journal.is_in_vain(now) && !relay.links().any(answers) {
        let fixed = relay.links().filter(|link| link.called && shifts(link).is_none());
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

/// Likely reason why no neighbour answers at these endpoints.
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

/// A change in words, with names, for the debug level.
fn words(event: &ControlEvent) -> String {
    let hop = |hop: &Option<NextHop>| {
        hop.as_ref().map_or("none".into(), |hop| format!("{} (cost {})", hop.peer, hop.cost))
    };
    match event {
        ControlEvent::Link { peer, state, .. } => format!("link with {peer}: {state}"),
        ControlEvent::Route { router, name, old, new, .. } => {
            let name = name.as_deref().unwrap_or("no name");
            format!("route to {router}.0 ({name}): {}, before {}", hop(new), hop(old))
        }
        _ => "something else".into(),
    }
}

/// Logs a change of the network, with names.
pub fn note_change(event: &ControlEvent) {
    if tracing::enabled!(tracing::Level::DEBUG) {
        tracing::debug!("{}", words(event));
    }
}

/// Log line about a circuit that loops show to be worse than the others.
const WORSE: &str = "loops show that a circuit loses or delays more cells than the others: the \
                     node replaces it; `shoal circuits` says more";

impl FirstWorker {
    /// Logs that a link came up or went silent.
    pub(crate) fn note_link(&mut self, now: Time, what: &str) {
        let WorkerParts { journal, node, .. } = &mut self.parts;
        let counts = || {
            let up = node.relay.links().filter(|link| link.up_since.is_some()).count();
            (up, node.relay.links().count())
        };
        if let Some(line) = journal.link(now, what, counts) {
            tracing::info!("{line}");
        }
    }

    /// Sends the other end of a new session this node's clock.
    pub(crate) fn tell_clock(&mut self, now: Time, link: LinkId) {
        let WorkerParts { node, ports, .. } = &mut self.parts;
        node.relay.send_clock(now, link, unix_ms(), ports.at(now));
    }

    /// Logs at once what a link shows: two nodes have one key, or this node was removed.
    pub(crate) fn note_fault(&mut self, now: Time, link: LinkId) {
        let Some(view) = self.parts.node.relay.view(link) else { return };
        let is_proved = removed::is_proved(&self.parts);
        let found = faults(&view.notices, now, unix_ms(), "a neighbour");
        for (what, line) in found.into_iter().filter(|fault| AT_ONCE.contains(&fault.0)) {
            if is_proved && what == "removed" {
                continue;
            }
            if self.parts.journal.may_say(now, what) {
                tracing::warn!("{line}; `shoal status` says more");
            }
        }
    }

    /// Logs changes of covered links.
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

    /// Logs faults that began since the last time.
    pub(crate) fn keep_journal(&mut self, now: Time) {
        if !self.parts.journal.is_due(now) {
            return;
        }
        self.look_up_endpoints(now);
        let unix_ms = unix_ms();
        let drops: Vec<_> = answers::dropped(&self.parts).collect();
        let WorkerParts { journal, node, .. } = &mut self.parts;
        for line in journal.drops(now, drops.into_iter()) {
            tracing::warn!("{line}");
        }
        let in_vain = |link: &LinkView| {
            link.called
                && link.endpoint.is_some()
                && link.last_heard.is_none()
                && link.notices.removed.is_none()
        };
        let calling = node.relay.links().filter(in_vain).count();
        if let Some(line) = journal.calls(now, calling) {
            tracing::warn!("{line}");
        }
        self.keep_cover_journal(now);
        let is_proved = removed::is_proved(&self.parts);
        let WorkerParts { journal, node, .. } = &mut self.parts;
        let mut found: Vec<(&'static str, String)> = Vec::new();
        for link in node.relay.links() {
            for (what, line) in lasting((&link.notices, shifts(&link)), now, unix_ms) {
                if found.iter().all(|known| known.0 != what) {
                    found.push((what, line));
                }
            }
        }
        if node.relay.routing().is_some_and(|routing| routing.outrun() >= OUTRUN) {
            found.push(("outrun", OUTRUN_WORDS.into()));
        }
        found.retain(|fault| fault.0 != "removed" || !is_proved);
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
    use shoal_wire::{Removal, RemovalReason};

    fn with(change: impl FnOnce(&mut NeighbourWarnings)) -> NeighbourWarnings {
        let mut notices = NeighbourWarnings::default();
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
        // The neighbour reported its clock ten seconds ago.
        let told = |theirs: u64| with(|notices| notices.clock = Some((heard, theirs)));
        let ahead = |theirs| clock_ahead_ms(&told(theirs), now, unix);
        assert_eq!(ahead(unix - 10_000), Some(0));
        assert_eq!(ahead(unix - 10_000 + 7_380_000), Some(7_380_000));
        assert_eq!(clock_ahead_ms(&NeighbourWarnings::default(), now, unix), None);
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
        let shift = ShiftView {
            interval: Duration::from_secs(1),
            agreed: true,
            shifting: false,
            made: 0,
            failed: 0,
            last: (Time::ZERO, ShiftOutcome::None),
            meets: false,
            begins_by: second(20),
        };
        let says = |shift: &ShiftView, at: u64| {
            shift_fault(shift, second(at), "the neighbour \"r2\"")
                .map_or(String::new(), |said| said)
        };
        let logs = |shift: ShiftView, at: u64| {
            let lines = lasting((&NeighbourWarnings::default(), Some(shift)), second(at), 0);
            assert!(lines.iter().all(|(what, line)| *what == "shift" && !line.contains("r2")));
            lines.len()
        };
        // The first shift may be under way. The following end counts no failures.
        assert_eq!([says(&shift, 29), says(&shift, 0)], ["", ""]);
        assert!(says(&shift, 30).contains("\"r2\" don't shift: nothing came back"));
        assert_eq!([logs(shift, 29), logs(shift, 30)], [0, 1]);
        let failed = ShiftView { last: (second(12), ShiftOutcome::Failed), failed: 1, ..shift };
        assert!(says(&failed, 12).contains("nothing came back"));
        assert_eq!([logs(failed, 12), logs(failed, 31)], [0, 1]);
        let alone = ShiftView { agreed: false, ..shift };
        assert!(says(&alone, 12).contains("has no `shift`"));
        assert_eq!([logs(alone, 12), logs(alone, 31)], [0, 1]);
        let shifting =
            ShiftView { shifting: true, last: (second(25), ShiftOutcome::Moved), ..shift };
        assert_eq!((says(&shifting, 99), logs(shifting, 99)), (String::new(), 0));
    }

    #[test]
    fn a_neighbours_word_that_this_machine_was_removed_is_passed_on() {
        let removal = Removal { reason: RemovalReason::Registrar, day: 20_785 };
        let told = with(|notices| notices.removed = Some((Time::ZERO, removal)));
        let said = faults(&told, Time::from_millis(9_000_000), 0, "the neighbour \"r1\"");
        assert_eq!(said.len(), 1);
        let want = "the neighbour \"r1\" says that this machine was removed from the network on \
                    2026-11-28";
        assert!(said[0].1.starts_with(want), "{}", said[0].1);
    }

    #[test]
    fn changes_are_told_in_words() {
        let next = NextHop { peer: "r2".into(), cost: 7 };
        let event = ControlEvent::Route {
            unix_ms: 1,
            router: 3,
            name: Some("r3".into()),
            old: None,
            new: Some(next),
        };
        assert_eq!(words(&event), "route to 3.0 (r3): r2 (cost 7), before none");
        let (peer, state) = ("r2".into(), "up".into());
        let event = ControlEvent::Link { unix_ms: 1, peer, state, reason: None };
        assert_eq!(words(&event), "link with r2: up");
    }
}
