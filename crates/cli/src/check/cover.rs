//! The part of `shoal check` about cover.

use serde::Serialize;
use shoal_daemon::config::NodeSetup;
use shoal_daemon::control::cover::no_direct;
use shoal_daemon::membership::cover::{self, AnonymitySet, bytes_per_day};
use shoal_wire::CoverTier;

use crate::units::{Bytes, counted};

/// Covered links of this node, as the list says.
#[derive(Serialize)]
pub struct CoverCheckReport {
    links: usize,
    /// Cost of all covered links in each direction, with headers of UDP and IPv4.
    bytes_per_day: u64,
    tiers: Vec<CoveredTier>,
    /// True on a host: its only link is covered.
    own: bool,
}

#[derive(Serialize)]
struct CoveredTier {
    name: String,
    /// Schedule in words, such as "10 Mbit/s".
    schedule: String,
    links: usize,
    /// Hosts in the list with this tier: the anonymity set.
    hosts: usize,
}

/// Covered links and their cost, and warnings for the operator.
pub fn cover(setup: &NodeSetup) -> (Option<CoverCheckReport>, Vec<String>) {
    let (config, hosts) = (&setup.config, &setup.hosts);
    let sets = cover::sets(config, hosts);
    let small = sets.iter().filter(|set| set.is_small()).map(AnonymitySet::warning);
    let own = cover::own(config, hosts);
    let warnings = small.chain(no_direct(config.direct.mode, own)).collect();
    (summary(sets, own), warnings)
}

fn summary(sets: Vec<AnonymitySet>, own: Option<CoverTier>) -> Option<CoverCheckReport> {
    let links = sets.iter().map(|set| set.links).sum();
    let bytes_per_day = sets.iter().map(|set| set.links as u64 * bytes_per_day(set.schedule)).sum();
    let tiers = sets.into_iter().map(|AnonymitySet { tier, schedule, links, hosts }| CoveredTier {
        name: tier,
        schedule: schedule.to_string(),
        links,
        hosts,
    });
    let (tiers, own) = (tiers.collect(), own.is_some());
    (links > 0).then_some(CoverCheckReport { links, bytes_per_day, tiers, own })
}

impl CoverCheckReport {
    /// A line for all links together, and one for each tier.
    pub fn lines(&self) -> Vec<String> {
        let CoverCheckReport { links, bytes_per_day, tiers, own } = self;
        let both = Bytes(2 * bytes_per_day);
        let whose = match own {
            true => "the link with this host's router".to_owned(),
            false => counted(*links, "link"),
        };
        let mut lines = vec![format!(
            "  cover of {whose}: {} a day in each direction, {both} in both, whatever there is to \
             send",
            Bytes(*bytes_per_day)
        )];
        lines.extend(tiers.iter().map(|CoveredTier { name, schedule, links, hosts }| {
            let here = if *own { String::new() } else { format!(", {links} of them here") };
            let hides = match hosts {
                0 => "on lines between routers".to_owned(),
                n => format!("hides among {} of the list", counted(*n, "host")),
            };
            format!("    {name} ({schedule}): {hides}{here}")
        }));
        lines
    }
}

#[cfg(test)]
mod tests {
    use shoal_wire::CoverKind;

    use super::*;

    #[test]
    fn what_cover_costs_and_among_whom_it_hides_is_said_before_it_is_on() {
        let set = |tier: &str, mbit, links, hosts| {
            let schedule = CoverTier::new(mbit, CoverKind::Constant).unwrap();
            AnonymitySet { tier: tier.into(), schedule, links, hosts }
        };
        assert!(summary(Vec::new(), None).is_none());
        let home = set("home", 10, 1, 12);
        let lines = summary(vec![home.clone()], Some(home.schedule)).unwrap().lines();
        assert_eq!(
            lines[0],
            "  cover of the link with this host's router: 110.10 GB a day in each direction, \
             220.20 GB in both, whatever there is to send"
        );
        assert_eq!(lines[1], "    home (10 Mbit/s): hides among 12 hosts of the list");
        let lines = summary(vec![set("home", 10, 20, 31), set("small", 2, 1, 1)], None);
        let lines = lines.unwrap().lines();
        let head = "  cover of 21 links: 2.22 TB a day in each direction, 4.45 TB in both";
        assert!(lines[0].starts_with(head), "{lines:?}");
        assert!(lines[1].ends_with("hides among 31 hosts of the list, 20 of them here"));
        assert!(lines[2].ends_with("hides among one host of the list, 1 of them here"));
    }
}
