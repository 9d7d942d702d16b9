//! State of a node's covered links: answers, warnings, lines of the log.

use std::collections::BTreeMap;

use shoal_relay::{CoverFault, CoverState, CoverView, LinkView};
use shoal_wire::{CoverKind, CoverTier, LinkId};

use crate::config::{DirectMode, Preset};
use crate::control::api;
use crate::membership::anonymity;
use crate::membership::cover::{self, AnonymitySet};
use crate::worker::first::WorkerParts;

/// Least share of the neighbour's scheduled frames that must arrive. Below it, the neighbour counts
/// as not covering its side.
const KEPT_MIN: f32 = 0.5;
/// Shares of filled frames are rounded to multiples of 1/4.
const STEPS: f64 = 4.0;

/// Last known state of covered links, to find changes and sum up counters.
#[derive(Debug, Default)]
pub struct CoverMonitor {
    links: BTreeMap<LinkId, CoverSnapshot>,
    frames: u64,
    skipped: u64,
}

#[derive(Debug)]
struct CoverSnapshot {
    standing: CoverQuality,
    frames: u64,
    skipped: u64,
}

/// Quality of a link's cover.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum CoverQuality {
    /// Covered by both ends, as far as is known.
    Kept,
    /// Covered by this end alone.
    OneSided,
    /// Loses too many frames, but must stay covered.
    Strained(CoverFault),
    /// Covered until this full hour, in seconds since 1970.
    Ending(u64, CoverFault),
    /// Not covered since this full hour, in seconds since 1970.
    Off(u64, CoverFault),
}

impl CoverQuality {
    fn of(view: &CoverView) -> CoverQuality {
        match view.state {
            CoverState::Ending(at, fault) => CoverQuality::Ending(at, fault),
            CoverState::Off(at, fault) => CoverQuality::Off(at, fault),
            CoverState::Running if view.arriving.is_some_and(|share| share < KEPT_MIN) => {
                CoverQuality::OneSided
            }
            CoverState::Running | CoverState::Waiting => {
                view.strained.map_or(CoverQuality::Kept, CoverQuality::Strained)
            }
        }
    }

    /// Fault of the cover, in words; `what` is the subject, such as "cover of a link".
    fn words(self, what: &str) -> Option<String> {
        let anew = "Mend the path, or have the network's list give a lower tier; `shoal reload` \
                    restarts cover";
        match self {
            CoverQuality::Kept => None,
            CoverQuality::OneSided => Some(format!(
                "{what} is one-sided: less than half of the scheduled frames come from the other \
                 end, so that observers see when it sends; check that it has the same list"
            )),
            CoverQuality::Strained(fault) => Some(format!(
                "{what} continues, though the path does not carry it: {}. Cover must not end, \
                 since the host's preset is \"hidden\". Mend the path, or have the network's list \
                 give a lower tier",
                why(fault)
            )),
            CoverQuality::Ending(at, fault) => {
                let (at, why) = (clock(at), why(fault));
                Some(format!(
                    "{what} ends at {at}: {why}. Then observers see when the link \
                     carries traffic. {anew}"
                ))
            }
            CoverQuality::Off(at, fault) => {
                let (since, why) = (clock(at), why(fault));
                Some(format!(
                    "{what} is off since {since}: {why}. Observers see when the link carries \
                     traffic. Cover restarts after an hour. {anew}"
                ))
            }
        }
    }
}

impl CoverMonitor {
    /// Updates the state of all covered links. Returns a line for the log, without names, for each
    /// change that the operator should know.
    pub fn look(&mut self, now: impl Iterator<Item = (LinkId, CoverView)>) -> Vec<String> {
        let mut news: Vec<(CoverQuality, usize)> = Vec::new();
        let mut seen = BTreeMap::new();
        for (link, view) in now {
            let standing = CoverQuality::of(&view);
            let (frames, skipped) = (view.frames, view.skipped);
            let before = self.links.get(&link);
            // A schedule that was restarted counts from 0.
            let grown = |now: u64, before: u64| if now < before { now } else { now - before };
            self.frames += grown(frames, before.map_or(0, |seen| seen.frames));
            self.skipped += grown(skipped, before.map_or(0, |seen| seen.skipped));
            if before.map_or(CoverQuality::Kept, |seen| seen.standing) != standing {
                match news.iter_mut().find(|(known, _)| *known == standing) {
                    Some((_, links)) => *links += 1,
                    None => news.push((standing, 1)),
                }
            }
            seen.insert(link, CoverSnapshot { standing, frames, skipped });
        }
        self.links = seen;
        let line = |(standing, links): (CoverQuality, usize)| match links {
            1 => standing.words("cover of a link"),
            n => standing.words(&format!("cover of {n} links")),
        };
        news.into_iter().filter_map(line).collect()
    }

    /// Frames that left in slots of all covered links since the start, and slots that were never
    /// used. Both are as of the last look: frequent requests then reveal little.
    pub fn totals(&self) -> (u64, u64) {
        (self.frames, self.skipped)
    }
}

pub fn views(parts: &WorkerParts) -> impl Iterator<Item = (LinkView, CoverView)> + '_ {
    parts.node.relay.links().filter_map(|link| {
        let cover = link.cover?;
        Some((link, cover))
    })
}

/// A link's schedule, for programs.
pub fn shown(view: &CoverView) -> api::CoverStatus {
    let (state, at, fault) = match view.state {
        CoverState::Waiting => ("waiting", None, None),
        CoverState::Running => ("running", None, None),
        CoverState::Ending(at, fault) => ("ending", Some(at), Some(fault)),
        CoverState::Off(at, fault) => ("off", Some(at), Some(fault)),
    };
    let share = view.filled as f64 / view.frames.max(1) as f64;
    api::CoverStatus {
        mbit: view.tier.mbit(),
        schedule: kind(view.tier).into(),
        state: state.into(),
        at_unix_s: at,
        why: fault.map(|fault| why(fault).into()),
        frames: view.frames,
        filled: (view.frames > 0).then(|| (share * STEPS).round() / STEPS),
        skipped: view.skipped,
        lost: view.lost.map(f64::from),
        arriving: view.arriving.map(f64::from),
    }
}

/// Covered links of this node; none where there are none.
pub fn covered(parts: &WorkerParts) -> Option<api::CoverSummary> {
    let (mut links, mut running, mut bytes_per_day, mut own) = (0, 0, 0, None);
    for (_, view) in views(parts) {
        links += 1;
        running += u32::from(matches!(view.state, CoverState::Running | CoverState::Ending(..)));
        bytes_per_day += cover::bytes_per_day(view.tier);
        own = Some(shown(&view)).filter(|_| !parts.config.is_router());
    }
    let (frames, skipped) = parts.journal.cover.totals();
    let sets = cover::sets(&parts.config, parts.names.hosts());
    let tiers = sets.into_iter().map(|set| api::TierStatus {
        name: set.tier,
        mbit: set.schedule.mbit(),
        schedule: kind(set.schedule).into(),
        links: set.links as u32,
        hosts: set.hosts as u32,
    });
    let tiers = tiers.collect();
    let covered = api::CoverSummary { links, running, frames, skipped, bytes_per_day, own, tiers };
    (links > 0).then_some(covered)
}

/// Warnings about cover at present.
pub fn warnings(parts: &WorkerParts) -> Vec<String> {
    let of_link = |(link, view): (LinkView, CoverView)| {
        let what = format!("cover of the link with {:?}", parts.names.link(link.link));
        CoverQuality::of(&view).words(&what)
    };
    let (config, hosts) = (&parts.config, parts.names.hosts());
    let direct = no_direct(config.direct.mode, cover::own(config, hosts));
    let of_links = views(parts).filter_map(of_link).chain(small_sets(parts));
    let of_links = of_links.chain(cover::faults(&parts.config, parts.names.hosts()));
    let of_preset = unhidden(parts).into_iter().chain(anonymity::without_effect(config, hosts));
    let of_preset = of_preset.chain(anonymity::lacks(config, hosts));
    let of_router = anonymity::direct_without_effect(config);
    of_links.chain(direct).chain(of_router).chain(of_preset).collect()
}

/// Reason why this host is not hidden at present although its preset says so, without names.
pub fn unhidden(parts: &WorkerParts) -> Option<String> {
    let off = |(_, view): (LinkView, CoverView)| match CoverQuality::of(&view) {
        CoverQuality::Off(..) => Some(OFF),
        _ => None,
    };
    let preset = anonymity::in_force(&parts.config, parts.names.hosts());
    let is_asked = preset == Preset::Hidden;
    let off = || views(parts).find_map(off).filter(|_| is_asked).map(str::to_owned);
    anonymity::unhidden(&parts.config, parts.names.linked()).or_else(off)
}

/// Reason why frames on this host's own line don't leave by the schedule in both directions.
pub fn own_fault(parts: &WorkerParts) -> Option<String> {
    let own: Vec<CoverView> = views(parts).map(|(_, view)| view).collect();
    lines_fault(&own)
}

/// Fault of the covered links of a host with one router or two. Nothing leaves over a link that is
/// down, so it counts only if no other is up.
fn lines_fault(own: &[CoverView]) -> Option<String> {
    let is_up = |view: &&CoverView| view.state != CoverState::Waiting;
    match own.iter().find(is_up) {
        Some(_) => own.iter().filter(is_up).find_map(line_fault),
        None if own.is_empty() => Some("the link with this host's router has no schedule".into()),
        None => own.iter().find_map(line_fault),
    }
}

fn line_fault(view: &CoverView) -> Option<String> {
    match (view.state, CoverQuality::of(view)) {
        (CoverState::Waiting, _) => Some("the link with this host's router is down".into()),
        (_, quality @ (CoverQuality::OneSided | CoverQuality::Off(..))) => {
            quality.words("cover of this host's line")
        }
        _ => None,
    }
}

/// Warning to a host whose cover ended.
pub const OFF: &str = "[anonymity] preset = \"hidden\": cover is off, so that observers see \
                       when this host sends; `shoal status` says why";

/// Warnings about this node's tiers with few hosts.
pub fn small_sets(parts: &WorkerParts) -> impl Iterator<Item = String> {
    let sets = cover::sets(&parts.config, parts.names.hosts()).into_iter();
    sets.filter(AnonymitySet::is_small).map(|set| set.warning())
}

/// Warning to a covered host whose file asks for direct links. The mode "auto" asks for none then.
pub fn no_direct(mode: DirectMode, own: Option<CoverTier>) -> Option<String> {
    let asks = !matches!(mode, DirectMode::Off | DirectMode::Auto);
    (asks && own.is_some()).then(|| {
        format!(
            "[direct] mode = {:?}: this host's link is covered, and a direct link would bypass its \
             schedule: no direct links are made",
            mode.as_str()
        )
    })
}

/// Kind of a schedule, as lists spell it.
fn kind(tier: CoverTier) -> &'static str {
    match tier.kind() {
        CoverKind::Constant => "constant",
        CoverKind::Poisson => "poisson",
    }
}

/// Reason why a schedule ends, in words.
fn why(fault: CoverFault) -> &'static str {
    match fault {
        CoverFault::Loss => "for five minutes in a row more than 5% of its frames were lost",
        CoverFault::NoRoom => {
            "for five minutes in a row the kernel had no room for more than 5% of its frames"
        }
        CoverFault::Neighbour => "the other end stops its cover",
    }
}

/// Time of day, such as "14:00 UTC".
fn clock(unix_s: u64) -> String {
    let minutes = unix_s / 60 % 1_440;
    format!("{:02}:{:02} UTC", minutes / 60, minutes % 60)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn view(state: CoverState) -> CoverView {
        let tier = CoverTier::new(10, CoverKind::Constant).unwrap();
        let (lost, arriving, strained) = (None, None, None);
        CoverView { tier, state, frames: 0, filled: 0, skipped: 0, lost, arriving, strained }
    }

    fn links(views: &[CoverView]) -> Vec<(LinkId, CoverView)> {
        let id = |bits: usize| LinkId::from_bits(bits as u32);
        views.iter().enumerate().map(|(at, view)| (id(at), *view)).collect()
    }

    #[test]
    fn each_change_is_said_once_and_without_names() {
        let mut watch = CoverMonitor::default();
        let mut look = |views: &[CoverView]| watch.look(links(views).into_iter());
        let (waiting, running) = (view(CoverState::Waiting), view(CoverState::Running));
        assert!(look(&[waiting, waiting, running]).is_empty());
        let ending = view(CoverState::Ending(1_800_000_000, CoverFault::Loss));
        let said = look(&[running, ending, ending]);
        assert_eq!(said.len(), 1, "{said:?}");
        let head = "cover of 2 links ends at 08:00 UTC: for five minutes in a row more than 5%";
        assert!(said[0].starts_with(head), "{said:?}");
        assert!(look(&[running, ending, ending]).is_empty());
        let off = view(CoverState::Off(1_800_000_000, CoverFault::Loss));
        let alone = CoverView { arriving: Some(0.49), ..running };
        let said = look(&[alone, off, running]);
        assert_eq!(said.len(), 2, "that one began anew needs no line: {said:?}");
        assert!(said[0].starts_with("cover of a link is one-sided: less than half"), "{said:?}");
        assert!(
            said[1].starts_with("cover of a link is off since 08:00 UTC: for five"),
            "{said:?}"
        );
        let both = CoverView { arriving: Some(0.5), ..running };
        assert!(look(&[both, off, running]).is_empty());
        // A link that was removed and came back counts as new.
        assert!(look(&[]).is_empty());
        assert_eq!(look(&[both, off]).len(), 1);
    }

    #[test]
    fn a_line_without_frames_of_the_other_end_is_not_covered() {
        let running = view(CoverState::Running);
        let strained = Some(CoverFault::Loss);
        assert_eq!(line_fault(&running), None);
        assert_eq!(line_fault(&CoverView { strained, ..running }), None, "the schedule is kept");
        let said = |view| line_fault(&view).unwrap_or_default();
        assert!(said(CoverView { arriving: Some(0.2), ..running }).contains("one-sided"));
        assert!(said(view(CoverState::Off(7_200, CoverFault::Loss))).contains("off since 02:00"));
        assert!(said(view(CoverState::Waiting)).ends_with("is down"));
    }

    #[test]
    fn one_of_two_lines_may_be_down() {
        let (up, down) = (view(CoverState::Running), view(CoverState::Waiting));
        let off = view(CoverState::Off(7_200, CoverFault::Loss));
        assert_eq!(lines_fault(&[down, up]), None);
        assert!(lines_fault(&[down, down]).unwrap().ends_with("is down"));
        assert!(lines_fault(&[up, off]).unwrap().contains("is off"));
        assert!(lines_fault(&[]).unwrap().ends_with("no schedule"));
    }

    #[test]
    fn frames_are_summed_up_over_schedules_that_begin_anew() {
        let mut watch = CoverMonitor::default();
        let at = |frames, skipped| CoverView { frames, skipped, ..view(CoverState::Running) };
        watch.look(links(&[at(100, 1), at(50, 0)]).into_iter());
        assert_eq!(watch.totals(), (150, 1));
        watch.look(links(&[at(110, 3), at(20, 0)]).into_iter());
        assert_eq!(watch.totals(), (180, 3), "the second began anew");
        watch.look(links(&[]).into_iter());
        assert_eq!(watch.totals(), (180, 3));
    }

    #[test]
    fn the_share_of_filled_frames_is_shown_in_quarters() {
        let filled = |frames, filled| {
            shown(&CoverView { frames, filled, ..view(CoverState::Running) }).filled
        };
        assert_eq!(filled(0, 0), None);
        assert_eq!(filled(1_000, 120), Some(0.0));
        assert_eq!(filled(1_000, 130), Some(0.25));
        assert_eq!(filled(1_000, 870), Some(0.75));
        assert_eq!(filled(1_000, 1_000), Some(1.0));
        let ending = shown(&view(CoverState::Ending(7_200, CoverFault::NoRoom)));
        assert_eq!((ending.state.as_str(), ending.at_unix_s), ("ending", Some(7_200)));
        assert!(ending.why.unwrap().contains("the kernel had no room"));
    }

    #[test]
    fn a_covered_host_that_asks_for_direct_links_is_told() {
        let tier = CoverTier::new(2, CoverKind::Poisson);
        assert_eq!(no_direct(DirectMode::Off, tier), None);
        assert_eq!(no_direct(DirectMode::Auto, tier), None);
        assert_eq!(no_direct(DirectMode::OnDemand, None), None);
        let said = no_direct(DirectMode::Proactive, tier).unwrap();
        assert!(said.starts_with("[direct] mode = \"proactive\": this host's link is"), "{said}");
    }
}
