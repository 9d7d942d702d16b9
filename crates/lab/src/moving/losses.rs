//! Losses near shifts: numbered UDP datagrams over many shifts.

use std::path::Path;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail};
use shoal_attack::Draws;

use super::place::VariantNetwork;
use super::{ShiftBench, case};
use crate::figures::figure;
use crate::needs::{self, Requirement};
use crate::record::{Figure, RunRecord, ScenarioReport, TimedEvent};
use crate::shifts;
use crate::site::RunningNetwork;
use crate::udp::UdpFlow;

/// A loss within this time of a shift is near it, in seconds.
const NEAR_S: f64 = 0.05;
/// Interval of looks at the shifts: nodes report the age of the last shift.
const LOOK: Duration = Duration::from_millis(100);
/// UDP payload in bytes.
const PAYLOAD: u16 = 1_200;
/// Seed of the random windows.
const SEED: u64 = 19;

/// Sends UDP over shifts and measures the losses near them.
///
/// # Errors
/// Namespaces or a program are missing, or a node does not answer.
pub fn run(bench: &ShiftBench<'_>, folder: &Path, report: &mut ScenarioReport) -> Result<()> {
    if let Some(missing) = needs::missing(&["ping", "ip"].map(Requirement::Tool)) {
        bail!("missing for this scenario: {missing}");
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

fn one(place: &VariantNetwork, bench: &ShiftBench<'_>) -> Result<RunRecord> {
    let site = place.site().context("no nodes")?;
    let mbit = bench.moving.udp_mbit;
    let flow = UdpFlow::start(place.network(), (place.from, place.to), place.far, mbit, PAYLOAD)?;
    let began = Instant::now();
    let before = shifts::counts(site, &place.conditions)?.unwrap_or_default();
    let mut clock = ShiftTimes::default();
    while began.elapsed().as_secs_f64() < bench.moving.seconds {
        crate::interrupt::check()?;
        clock.look(site, place)?;
        std::thread::sleep(LOOK);
    }
    let after = shifts::counts(site, &place.conditions)?.unwrap_or_default();
    let done = flow.finish();
    let per_s = mbit * 1e6 / 8.0 / f64::from(PAYLOAD);
    let at = |shift: &Instant| shift.saturating_duration_since(done.began).as_secs_f64();
    let shifts: Vec<f64> = clock.shifts.iter().map(at).collect();
    let [near, random] = shares(&shifts, &done.missing_s, (per_s, done.seconds), SEED);
    let mut figures = vec![
        figure("near_shifts_lost", "", near - random),
        figure("random_lost", "", random),
        figure("udp_lost", "", done.missing_s.len() as f64 / done.sent.max(1) as f64),
        figure("udp_missing", "", done.missing_s.len() as f64),
        figure("udp_disordered", "", done.seen.disordered as f64),
        figure("gap_ms", "", done.seen.gap.as_secs_f64() * 1e3),
        figure("shifts", "", (after.0 - before.0) as f64),
        figure("shifts_failed", "", (after.1 - before.1) as f64),
    ];
    figures.extend(entries(site, place)?);
    let mark = |at_s: &f64| TimedEvent { at_s: *at_s, text: "a datagram was lost".into() };
    // More marks would hide each other.
    let events = done.missing_s.iter().take(1_000).map(mark).collect();
    Ok(RunRecord { seconds: done.seconds, figures, events, ..RunRecord::default() })
}

/// Addresses of the first shifting node in the neighbour table of the machine before it, if such a
/// machine exists.
fn entries(site: &RunningNetwork, place: &VariantNetwork) -> Result<Option<Figure>> {
    let network = site.network();
    let topology = network.topology();
    let Some((node, peer)) = shifts::ends(site, &place.conditions).into_iter().next() else {
        return Ok(None);
    };
    let link = topology.link_between(node, peer).context("no link")?;
    if network.beside(link, node).is_none() {
        return Ok(None);
    }
    let count = shifts::neighbour_entries(network, link, node)?;
    Ok(Some(figure("neighbours", &topology.nodes[node].name, count as f64)))
}

/// Times of shifts, as the ends of links report them.
#[derive(Default)]
struct ShiftTimes {
    shifts: Vec<Instant>,
    /// Number of shifts of each end so far.
    made: std::collections::BTreeMap<(usize, usize), u64>,
}

impl ShiftTimes {
    fn look(&mut self, site: &RunningNetwork, place: &VariantNetwork) -> Result<()> {
        for (node, peer) in shifts::ends(site, &place.conditions) {
            let Some(shift) = shifts::of(site, node, peer)? else { continue };
            let last = self.made.insert((node, peer), shift.made);
            let ago = shift.last_s.unwrap_or(0.0);
            if last.is_some_and(|made| made < shift.made) {
                self.shifts.extend(Instant::now().checked_sub(Duration::from_secs_f64(ago)));
            }
        }
        Ok(())
    }
}

/// Shares of datagrams lost near shifts, and in equally many random windows of the same length
/// between shifts. All times are in seconds; `per_s` datagrams are sent in each of `seconds`.
fn shares(shifts: &[f64], missing: &[f64], (per_s, seconds): (f64, f64), seed: u64) -> [f64; 2] {
    let near = |centres: &[f64], at: f64| centres.iter().any(|c| (c - at).abs() <= NEAR_S);
    let mut draws = Draws::new(seed, "windows between hops", 0);
    let mut windows = Vec::new();
    // If shifts leave no room between them, fewer windows are drawn.
    for _ in 0..shifts.len() * 20 {
        let at = draws.between(NEAR_S, (seconds - NEAR_S).max(NEAR_S));
        if windows.len() < shifts.len()
            && !shifts.iter().any(|shift| (shift - at).abs() < 2.0 * NEAR_S)
        {
            windows.push(at);
        }
    }
    [shifts, &windows].map(|centres| {
        let lost = missing.iter().filter(|at| near(centres, **at)).count() as f64;
        // Windows overlap: both ends of a link shift at almost the same time.
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
    fn losses_at_shifts_are_told_from_losses_at_any_time() {
        let shifts: Vec<f64> = (1..100).map(f64::from).collect();
        let at_shifts: Vec<f64> = shifts.iter().map(|shift| shift + 0.02).collect();
        let [near, random] = shares(&shifts, &at_shifts, (1_000.0, 100.0), 1);
        assert!((near - 0.01).abs() < 1e-6 && random == 0.0, "{near} {random}");
        let always: Vec<f64> = (0..10_000).map(|n| f64::from(n) / 100.0).collect();
        let [near, random] = shares(&shifts, &always, (1_000.0, 100.0), 1);
        assert!((near - 0.1).abs() < 0.02 && (random - 0.1).abs() < 0.02, "{near} {random}");
        let between: Vec<f64> = shifts.iter().map(|shift| shift + 0.5).collect();
        let [near, random] = shares(&shifts, &between, (1_000.0, 100.0), 1);
        assert!(near == 0.0 && random > 0.001, "{near} {random}");
        assert_eq!(shares(&[], &always, (1_000.0, 100.0), 1), [0.0; 2]);
    }

    #[test]
    fn windows_that_overlap_are_counted_once() {
        let [near, _] = shares(&[1.0, 1.0, 1.05], &[1.0], (1_000.0, 2.0), 1);
        assert!((near - 1.0 / 150.0).abs() < 1e-9, "{near}");
    }
}
