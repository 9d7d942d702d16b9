//! Cover, for people: the network's tiers, and the state of a node's covered links.

use serde::Serialize;
use shoal_daemon::control::api::{CoverStatus, CoverSummary, TierStatus};
use shoal_daemon::membership::cover::bytes_per_day;
use shoal_directory::Tiers;
use shoal_wire::CoverKind;

use crate::units::{Bytes, counted, thousands};

/// One tier, as `--json` prints it.
#[derive(Serialize)]
pub struct TierReport {
    pub name: String,
    /// Rate of frames in each direction, and the spread of their times.
    mbit: u16,
    schedule: &'static str,
    /// Cost for a host in each direction, with headers of UDP and IPv4.
    bytes_per_day: u64,
    /// Hosts of this tier in the list.
    hosts: usize,
}

impl TierReport {
    pub fn text(&self) -> String {
        let TierReport { name, mbit, schedule, bytes_per_day, hosts } = self;
        let (day, hosts) = (Bytes(*bytes_per_day), counted(*hosts, "host"));
        format!("{name} ({schedule}, {mbit} Mbit/s: {day} a day in each direction), {hosts}")
    }
}

/// All tiers in the policy's order; `count` gives the number of hosts with a tier.
pub fn shown(tiers: &Tiers, count: impl Fn(&str) -> usize) -> Vec<TierReport> {
    let shown = tiers.iter().map(|tier| TierReport {
        name: tier.name.clone(),
        mbit: tier.schedule.mbit(),
        schedule: match tier.schedule.kind() {
            CoverKind::Constant => "constant",
            CoverKind::Poisson => "poisson",
        },
        bytes_per_day: bytes_per_day(tier.schedule),
        hosts: count(&tier.name),
    });
    shown.collect()
}

/// Limit of cover, printed wherever covered links are shown.
pub const FROM_WHOM: &str = "cover hides traffic from observers of the wires, not from routers: \
                             each can tell which frames of its own links carry data";

/// State of a link's schedule in words, such as "10 Mbit/s, running, 25% filled".
pub fn link(cover: &CoverStatus) -> String {
    let CoverStatus { mbit, schedule, state, filled, lost, skipped, .. } = cover;
    let kind = if schedule == "poisson" { " Poisson" } else { "" };
    let share = |share: &f64| format!("{:.1}%", share * 100.0);
    let more = [
        filled.map(|filled| format!("about {:.0}% filled", filled * 100.0)),
        lost.as_ref().map(|lost| format!("{} lost", share(lost))),
        (*skipped > 0).then(|| format!("{} skipped", thousands(*skipped))),
    ];
    let more: Vec<String> = more.into_iter().flatten().collect();
    let more = if more.is_empty() { String::new() } else { format!(", {}", more.join(", ")) };
    format!("{mbit} Mbit/s{kind}, {state}{more}")
}

/// Lines about a node's covered links.
pub fn lines(covered: &CoverSummary) -> Vec<String> {
    let CoverSummary { links, running, skipped, bytes_per_day, own, tiers, .. } = covered;
    let day = format!("{} a day in each direction", Bytes(*bytes_per_day));
    let mut lines = vec![match own {
        Some(own) => format!("{}; {day}", link(own)),
        None => {
            let skipped = thousands(*skipped);
            format!("{links} links, {running} keep their schedule, {skipped} slots skipped; {day}")
        }
    }];
    lines.extend(tiers.iter().map(|tier| {
        let TierStatus { name, links, hosts, .. } = tier;
        let here = if own.is_some() { String::new() } else { format!(", {links} of them here") };
        match hosts {
            0 => format!("on lines between routers: tier {name}{here}"),
            _ => format!("hides among {} of tier {name}{here}", counted(*hosts as usize, "host")),
        }
    }));
    lines
}

#[cfg(test)]
mod tests {
    use super::*;

    fn cover() -> CoverStatus {
        let (schedule, state) = ("constant".into(), "running".into());
        let (filled, lost) = (Some(0.25), Some(0.0012));
        CoverStatus { mbit: 10, schedule, state, frames: 8, filled, lost, ..CoverStatus::default() }
    }

    #[test]
    fn a_schedule_is_said_with_what_is_known_of_it() {
        assert_eq!(link(&cover()), "10 Mbit/s, running, about 25% filled, 0.1% lost");
        let state = "waiting".into();
        let new =
            CoverStatus { mbit: 2, schedule: "poisson".into(), state, ..CoverStatus::default() };
        assert_eq!(link(&new), "2 Mbit/s Poisson, waiting");
        let late = CoverStatus { skipped: 1_234, ..cover() };
        assert!(link(&late).ends_with("lost, 1,234 skipped"), "{}", link(&late));
    }

    #[test]
    fn a_host_hears_of_its_link_and_a_router_of_all() {
        let (name, schedule) = ("home".into(), "constant".into());
        let tier = TierStatus { name, schedule, mbit: 10, links: 3, hosts: 1 };
        let (bytes_per_day, tiers) = (110_100_000_000, vec![tier.clone()]);
        let host =
            CoverSummary { own: Some(cover()), bytes_per_day, tiers, ..CoverSummary::default() };
        let said = lines(&host);
        assert!(said[0].ends_with("0.1% lost; 110.10 GB a day in each direction"), "{said:?}");
        assert_eq!(said[1], "hides among one host of tier home");
        let tiers = vec![TierStatus { hosts: 12, ..tier.clone() }, TierStatus { hosts: 0, ..tier }];
        let router = CoverSummary { own: None, links: 3, running: 2, skipped: 7, tiers, ..host };
        let said = lines(&router);
        assert!(said[0].starts_with("3 links, 2 keep their schedule, 7 slots skipped; 110"));
        assert_eq!(said[1], "hides among 12 hosts of tier home, 3 of them here");
        assert_eq!(said[2], "on lines between routers: tier home, 3 of them here");
    }
}
