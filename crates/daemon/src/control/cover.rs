//! What a node says of its covered links: answers, warnings, lines in the log.

use std::collections::BTreeMap;

use shoal_relay::{CoverFault, CoverState, CoverView, LinkView};
use shoal_wire::{CoverKind, CoverTier, LinkId};

use crate::config::{DirectMode, Preset};
use crate::control::api;
use crate::membership::anonymity;
use crate::membership::cover::{self, Set};
use crate::worker::first::Parts;

/// A neighbour of which fewer frames come than this share of the schedule's keeps none.
const KEPT_MIN: f32 = 0.5;
/// Shares of filled frames are shown in steps of one to so many.
const STEPS: f64 = 4.0;

/// What covered links were seen to do.
#[derive(Debug, Default)]
pub struct Watch {
    links: BTreeMap<LinkId, Seen>,
    frames: u64,
    skipped: u64,
}

#[derive(Debug)]
struct Seen {
    standing: Standing,
    frames: u64,
    skipped: u64,
}

/// How well a link is covered.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Standing {
    /// By both ends, as far as is known.
    Kept,
    /// By this end alone.
    OneSided,
    /// Whatever is lost, though too much is.
    Strained(CoverFault),
    /// Until this full hour, in seconds since 1970.
    Ending(u64, CoverFault),
    /// No more, since then.
    Off(u64, CoverFault),
}

impl Standing {
    fn of(view: &CoverView) -> Standing {
        match view.state {
            CoverState::Ending(at, fault) => Standing::Ending(at, fault),
            CoverState::Off(at, fault) => Standing::Off(at, fault),
            CoverState::Running if view.arriving.is_some_and(|share| share < KEPT_MIN) => {
                Standing::OneSided
            }
            CoverState::Running | CoverState::Waiting => {
                view.strained.map_or(Standing::Kept, Standing::Strained)
            }
        }
    }

    /// What is wrong with `what`, such as "cover of a link".
    fn words(self, what: &str) -> Option<String> {
        let anew = "Mend the path, or have the network's list give a lower tier; `shoal reload` \
                    begins cover anew";
        match self {
            Standing::Kept => None,
            Standing::OneSided => Some(format!(
                "{what} is one-sided: less than half of the frames of a schedule come from the \
                 other end, so that the line shows what it sends; does it have the same list?"
            )),
            Standing::Strained(fault) => Some(format!(
                "{what} goes on, though the path does not carry it: {}. Cover must not end, since \
                 the host's preset is \"hidden\". Mend the path, or have the network's list give a \
                 lower tier",
                why(fault)
            )),
            Standing::Ending(at, fault) => {
                let (at, why) = (clock(at), why(fault));
                Some(format!(
                    "{what} ends at {at}: {why}. Then the line shows what is sent. {anew}"
                ))
            }
            Standing::Off(at, fault) => {
                let (since, why) = (clock(at), why(fault));
                Some(format!(
                    "{what} is off since {since}: {why}. The line shows what is sent, for an hour: \
                     then cover begins anew. {anew}"
                ))
            }
        }
    }
}

impl Watch {
    /// Takes in what covered links do now; returns a line for the log, without names, for each
    /// change that its operator should know.
    pub fn look(&mut self, now: impl Iterator<Item = (LinkId, CoverView)>) -> Vec<String> {
        let mut news: Vec<(Standing, usize)> = Vec::new();
        let mut seen = BTreeMap::new();
        for (link, view) in now {
            let standing = Standing::of(&view);
            let (frames, skipped) = (view.frames, view.skipped);
            let before = self.links.get(&link);
            // A schedule that began anew counts from 0.
            let grown = |now: u64, before: u64| if now < before { now } else { now - before };
            self.frames += grown(frames, before.map_or(0, |seen| seen.frames));
            self.skipped += grown(skipped, before.map_or(0, |seen| seen.skipped));
            if before.map_or(Standing::Kept, |seen| seen.standing) != standing {
                match news.iter_mut().find(|(known, _)| *known == standing) {
                    Some((_, links)) => *links += 1,
                    None => news.push((standing, 1)),
                }
            }
            seen.insert(link, Seen { standing, frames, skipped });
        }
        self.links = seen;
        let line = |(standing, links): (Standing, usize)| match links {
            1 => standing.words("cover of a link"),
            n => standing.words(&format!("cover of {n} links")),
        };
        news.into_iter().filter_map(line).collect()
    }

    /// Frames that left in slots of all covered links since the start, and slots that were never
    /// used; as of the last look, so that who asks all the time learns little.
    pub fn totals(&self) -> (u64, u64) {
        (self.frames, self.skipped)
    }
}

/// Covered links that a relay has.
pub fn views(parts: &Parts) -> impl Iterator<Item = (LinkView, CoverView)> + '_ {
    parts.node.relay.links().filter_map(|link| {
        let cover = link.cover?;
        Some((link, cover))
    })
}

/// A link's schedule, for programs.
pub fn shown(view: &CoverView) -> api::Cover {
    let (state, at, fault) = match view.state {
        CoverState::Waiting => ("waiting", None, None),
        CoverState::Running => ("running", None, None),
        CoverState::Ending(at, fault) => ("ending", Some(at), Some(fault)),
        CoverState::Off(at, fault) => ("off", Some(at), Some(fault)),
    };
    let share = view.filled as f64 / view.frames.max(1) as f64;
    api::Cover {
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
pub fn covered(parts: &Parts) -> Option<api::Covered> {
    let (mut links, mut running, mut bytes_per_day, mut own) = (0, 0, 0, None);
    for (_, view) in views(parts) {
        links += 1;
        running += u32::from(matches!(view.state, CoverState::Running | CoverState::Ending(..)));
        bytes_per_day += cover::bytes_per_day(view.tier);
        own = Some(shown(&view)).filter(|_| !parts.config.is_router());
    }
    let (frames, skipped) = parts.journal.cover.totals();
    let sets = cover::sets(&parts.config, parts.names.hosts());
    let tiers = sets.into_iter().map(|set| api::CoverTier {
        name: set.tier,
        mbit: set.schedule.mbit(),
        schedule: kind(set.schedule).into(),
        links: set.links as u32,
        hosts: set.hosts as u32,
    });
    let tiers = tiers.collect();
    let covered = api::Covered { links, running, frames, skipped, bytes_per_day, own, tiers };
    (links > 0).then_some(covered)
}

/// What the operator should know of cover now.
pub fn warnings(parts: &Parts) -> Vec<String> {
    let of_link = |(link, view): (LinkView, CoverView)| {
        let what = format!("cover of the link with {:?}", parts.names.link(link.link));
        Standing::of(&view).words(&what)
    };
    let (config, hosts) = (&parts.config, parts.names.hosts());
    let direct = no_direct(config.direct.mode, cover::own(config, hosts));
    let of_links = views(parts).filter_map(of_link).chain(small_sets(parts));
    let of_links = of_links.chain(cover::faults(&parts.config, parts.names.hosts()));
    let of_preset = unhidden(parts).into_iter().chain(anonymity::without_effect(config, hosts));
    of_links.chain(direct).chain(of_preset).collect()
}

/// Why this host is not hidden now though its preset says so, in words without names.
pub fn unhidden(parts: &Parts) -> Option<String> {
    let off = |(_, view): (LinkView, CoverView)| match Standing::of(&view) {
        Standing::Off(..) => Some(OFF),
        _ => None,
    };
    let is_asked = parts.config.anonymity.preset == Preset::Hidden && !parts.config.is_router();
    let off = || views(parts).find_map(off).filter(|_| is_asked).map(str::to_owned);
    anonymity::unhidden(&parts.config, parts.names.linked()).or_else(off)
}

/// What is said of a host whose cover ended.
pub const OFF: &str = "[anonymity] preset = \"hidden\": cover is off, so that this host's line \
                       shows when it speaks; `shoal status` says why";

/// Warnings of tiers of this node that few hosts have.
pub fn small_sets(parts: &Parts) -> impl Iterator<Item = String> {
    let sets = cover::sets(&parts.config, parts.names.hosts()).into_iter();
    sets.filter(Set::is_small).map(|set| set.warning())
}

/// What a covered host is told whose file asks for direct links.
pub fn no_direct(mode: DirectMode, own: Option<CoverTier>) -> Option<String> {
    (mode != DirectMode::Off && own.is_some()).then(|| {
        format!(
            "[direct] mode = {:?}: this host's link is covered, and a direct link would pass its \
             schedule by: there are none",
            mode.as_str()
        )
    })
}

/// The kind of a schedule as lists have it.
fn kind(tier: CoverTier) -> &'static str {
    match tier.kind() {
        CoverKind::Constant => "constant",
        CoverKind::Poisson => "poisson",
    }
}

/// Why a schedule ends, in words.
fn why(fault: CoverFault) -> &'static str {
    match fault {
        CoverFault::Loss => "for five minutes in a row more than 5% of its frames were lost",
        CoverFault::NoRoom => {
            "for five minutes in a row the kernel had no room for more than 5% of its frames"
        }
        CoverFault::Neighbour => "the other end ends its own",
    }
}

/// A time of the day, such as "14:00 UTC".
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
        let mut watch = Watch::default();
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
        // A link that went and came is a new one.
        assert!(look(&[]).is_empty());
        assert_eq!(look(&[both, off]).len(), 1);
    }

    #[test]
    fn frames_are_summed_up_over_schedules_that_begin_anew() {
        let mut watch = Watch::default();
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
        assert_eq!(no_direct(DirectMode::OnDemand, None), None);
        let said = no_direct(DirectMode::Proactive, tier).unwrap();
        assert!(said.starts_with("[direct] mode = \"proactive\": this host's link is"), "{said}");
    }
}
