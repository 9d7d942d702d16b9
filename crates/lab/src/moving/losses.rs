//! What is lost near hops: numbered UDP over many of them.

use std::path::Path;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail};
use shoal_attack::Draws;

use super::place::Place;
use super::{Bench, case};
use crate::figures::figure;
use crate::hops;
use crate::needs::{self, Need};
use crate::record::{Figure, Mark, Report, Run};
use crate::site::Site;
use crate::udp::UdpFlow;

/// A loss is near a hop within this time, in seconds.
const NEAR_S: f64 = 0.05;
/// Time between two looks at the hops: nodes say how long ago the last one was.
const LOOK: Duration = Duration::from_millis(100);
/// Payload of UDP.
const PAYLOAD: u16 = 1_200;
/// Seed of the random windows.
const SEED: u64 = 19;

/// Sends UDP over hops and says what was lost near them.
///
/// # Errors
/// Without namespaces or a program, or when nodes don't answer.
pub fn run(bench: &Bench<'_>, folder: &Path, report: &mut Report) -> Result<()> {
    if let Some(missing) = needs::missing(&["ping", "ip"].map(Need::Tool)) {
        bail!("this scenario needs what is missing: {missing}");
    }
    let places = bench.places(folder, 0, report)?;
    for place in &places {
        report.links = place.network().manner();
        let mut runs = Vec::new();
        for turn in 1..=bench.repeat() {
            let (way, seconds) = (place.way.name(), bench.moving.seconds);
            bench.options.say(&format!("{way}: {seconds} s ({turn})"));
            runs.push(one(place, bench)?);
        }
        report.cases.push(case(place.way, runs));
    }
    Ok(())
}

fn one(place: &Place, bench: &Bench<'_>) -> Result<Run> {
    let site = place.site().context("no nodes")?;
    let mbit = bench.moving.udp_mbit;
    let flow = UdpFlow::start(place.network(), (place.from, place.to), place.far, mbit, PAYLOAD)?;
    let began = Instant::now();
    let before = hops::counts(site, &place.conditions)?.unwrap_or_default();
    let mut clock = Clock::default();
    while began.elapsed().as_secs_f64() < bench.moving.seconds {
        crate::interrupt::check()?;
        clock.look(site, place)?;
        std::thread::sleep(LOOK);
    }
    let after = hops::counts(site, &place.conditions)?.unwrap_or_default();
    let done = flow.finish();
    let per_s = mbit * 1e6 / 8.0 / f64::from(PAYLOAD);
    let at = |hop: &Instant| hop.saturating_duration_since(done.began).as_secs_f64();
    let hops: Vec<f64> = clock.hops.iter().map(at).collect();
    let [near, random] = shares(&hops, &done.missing_s, (per_s, done.seconds), SEED);
    let mut figures = vec![
        figure("near_hops_lost", "", near - random),
        figure("random_lost", "", random),
        figure("udp_lost", "", done.missing_s.len() as f64 / done.sent.max(1) as f64),
        figure("udp_missing", "", done.missing_s.len() as f64),
        figure("udp_disordered", "", done.seen.disordered as f64),
        figure("gap_ms", "", done.seen.gap.as_secs_f64() * 1e3),
        figure("hops", "", (after.0 - before.0) as f64),
        figure("hops_failed", "", (after.1 - before.1) as f64),
    ];
    figures.extend(entries(site, place)?);
    let mark = |at_s: &f64| Mark { at_s: *at_s, text: "a datagram was lost".into() };
    // More would hide each other.
    let events = done.missing_s.iter().take(1_000).map(mark).collect();
    Ok(Run { seconds: done.seconds, figures, events, ..Run::default() })
}

/// Addresses of the first node that hops in the table of the machine before it, if there is one.
fn entries(site: &Site, place: &Place) -> Result<Option<Figure>> {
    let network = site.network();
    let topology = network.topology();
    let Some((node, peer)) = hops::ends(site, &place.conditions).into_iter().next() else {
        return Ok(None);
    };
    let link = topology.link_between(node, peer).context("no link")?;
    if network.beside(link, node).is_none() {
        return Ok(None);
    }
    let count = hops::neighbour_entries(network, link, node)?;
    Ok(Some(figure("neighbours", &topology.nodes[node].name, count as f64)))
}

/// When hops were made, as ends of links say.
#[derive(Default)]
struct Clock {
    hops: Vec<Instant>,
    /// Hops of each end so far.
    made: std::collections::BTreeMap<(usize, usize), u64>,
}

impl Clock {
    fn look(&mut self, site: &Site, place: &Place) -> Result<()> {
        for (node, peer) in hops::ends(site, &place.conditions) {
            let Some(hop) = hops::of(site, node, peer)? else { continue };
            let last = self.made.insert((node, peer), hop.made);
            let ago = hop.last_s.unwrap_or(0.0);
            if last.is_some_and(|made| made < hop.made) {
                self.hops.extend(Instant::now().checked_sub(Duration::from_secs_f64(ago)));
            }
        }
        Ok(())
    }
}

/// Which share of datagrams was lost near hops, and in as many windows of the same length that are
/// drawn between them. All times in seconds; `per_s` datagrams are sent in each of `seconds`.
fn shares(hops: &[f64], missing: &[f64], (per_s, seconds): (f64, f64), seed: u64) -> [f64; 2] {
    let near = |centres: &[f64], at: f64| centres.iter().any(|c| (c - at).abs() <= NEAR_S);
    let mut draws = Draws::new(seed, "windows between hops", 0);
    let mut windows = Vec::new();
    // Where hops leave no room between them, there are fewer windows.
    for _ in 0..hops.len() * 20 {
        let at = draws.between(NEAR_S, (seconds - NEAR_S).max(NEAR_S));
        if windows.len() < hops.len() && !hops.iter().any(|hop| (hop - at).abs() < 2.0 * NEAR_S) {
            windows.push(at);
        }
    }
    [hops, &windows].map(|centres| {
        let lost = missing.iter().filter(|at| near(centres, **at)).count() as f64;
        // Windows overlap: both ends of a link hop at almost the same time.
        let mut sorted = centres.to_vec();
        sorted.sort_by(f64::total_cmp);
        let (mut covered, mut end) = (0.0, f64::NEG_INFINITY);
        for centre in sorted {
            covered += (centre + NEAR_S - f64::max(end, centre - NEAR_S)).max(0.0);
            end = centre + NEAR_S;
        }
        if covered > 0.0 { lost / (covered * per_s) } else { 0.0 }
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn losses_at_hops_are_told_from_losses_at_any_time() {
        let hops: Vec<f64> = (1..100).map(f64::from).collect();
        let at_hops: Vec<f64> = hops.iter().map(|hop| hop + 0.02).collect();
        let [near, random] = shares(&hops, &at_hops, (1_000.0, 100.0), 1);
        assert!((near - 0.01).abs() < 1e-6 && random == 0.0, "{near} {random}");
        let always: Vec<f64> = (0..10_000).map(|n| f64::from(n) / 100.0).collect();
        let [near, random] = shares(&hops, &always, (1_000.0, 100.0), 1);
        assert!((near - 0.1).abs() < 0.02 && (random - 0.1).abs() < 0.02, "{near} {random}");
        let between: Vec<f64> = hops.iter().map(|hop| hop + 0.5).collect();
        let [near, random] = shares(&hops, &between, (1_000.0, 100.0), 1);
        assert!(near == 0.0 && random > 0.001, "{near} {random}");
        assert_eq!(shares(&[], &always, (1_000.0, 100.0), 1), [0.0; 2]);
    }

    #[test]
    fn windows_that_overlap_are_counted_once() {
        let [near, _] = shares(&[1.0, 1.0, 1.05], &[1.0], (1_000.0, 2.0), 1);
        assert!((near - 1.0 / 150.0).abs() < 1e-9, "{near}");
    }
}
