//! Cost of shifts compared with fixed addresses. Measured are throughput, round trips, batches, a
//! relay's processor time, frames on the wire, a restart, and entries of a neighbour table.
//!
//! ```text
//! a - r1 - (router) - r2 - (router) - r3 - b      r2 is the relay that is measured
//! ```

use std::path::Path;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, anyhow, bail};
use shoal_daemon::control::api;

use super::place::{ForwardingVariant, VariantNetwork};
use super::programs::PingResults;
use super::{ShiftBench, case, programs, value};
use crate::figures::{self, figure};
use crate::needs::{self, Requirement};
use crate::record::{CaseRecord, Figure, ReportTable, RunRecord, ScenarioReport};
use crate::shifts;
use crate::site::RunningNetwork;

/// Name of the measured relay.
const RELAY: &str = "r2";
/// TCP streams per variant in a repetition.
const STREAMS: u32 = 6;
/// Length of a measurement of idle links.
const IDLE: Duration = Duration::from_secs(60);
/// Limit of a killed node's time to come up again.
const PATIENCE: Duration = Duration::from_secs(30);

/// Counters of a relay.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
struct RelayCounters {
    frames_in: f64,
    messages: f64,
    frames_out: f64,
    calls: f64,
    cpu_s: f64,
}

impl RelayCounters {
    /// Reads the counters from the text of a node's metrics.
    fn read(text: &str, cpu_s: f64) -> RelayCounters {
        let value = |name: &str| figures::metric(text, name).unwrap_or(f64::NAN);
        RelayCounters {
            frames_in: value("shoal_frames_received_total "),
            messages: value("shoal_receive_messages_total "),
            frames_out: value("shoal_frames_sent_total "),
            calls: value("shoal_send_calls_total "),
            cpu_s,
        }
    }

    fn of(site: &RunningNetwork) -> Result<RelayCounters> {
        let relay = find(site, RELAY)?;
        let api::ControlReply::Metrics(text) = site.ask(relay, api::Command::Metrics)? else {
            bail!("the node answered `metrics` with another reply");
        };
        let process = site.process(relay).context("the relay does not run")?;
        Ok(RelayCounters::read(&text, process.cpu_s()))
    }

    /// Figures of the time since `before`.
    fn since(&self, before: &RelayCounters) -> Vec<Figure> {
        let share = |of: fn(&RelayCounters) -> f64, by: fn(&RelayCounters) -> f64| {
            (of(self) - of(before)) / (by(self) - by(before))
        };
        vec![
            figure("frames_per_send", RELAY, share(|c| c.frames_out, |c| c.calls)),
            figure("frames_per_message", RELAY, share(|c| c.frames_in, |c| c.messages)),
            figure("relay_ns", RELAY, share(|c| c.cpu_s, |c| c.frames_out) * 1e9),
        ]
    }
}

fn find(site: &RunningNetwork, name: &str) -> Result<usize> {
    site.network().topology().find(name).with_context(|| format!("the network needs {name}"))
}

/// Runs all tests over all variants, in turn. Each turn has new networks, and makes another network
/// first. The order matters: of three networks without a shift, the network made first had the
/// fewest late pings. Each network carried 48,000 pings: 99.9% came within 1.3 ms over the first
/// network, and within 1.8 ms over the last.
///
/// # Errors
/// A program is missing, or nothing gets through.
pub fn run(bench: &ShiftBench<'_>, folder: &Path, report: &mut ScenarioReport) -> Result<()> {
    if let Some(missing) = needs::missing(&["ping", "iperf3", "ip"].map(Requirement::Tool)) {
        bail!("missing for this scenario: {missing}");
    }
    let mut runs: Vec<(ForwardingVariant, Vec<RunRecord>)> = Vec::new();
    for turn in 0..bench.repeat() {
        let folder = folder.join(turn.to_string());
        std::fs::create_dir(&folder)?;
        let mut places = bench.places(&folder, turn as usize, report)?;
        report.links = places.first().map_or_else(String::new, |place| place.network().manner());
        let found = one_turn(&mut places, bench)?;
        for (place, found) in places.iter().zip(found) {
            let words = found.iter().map(|f| format!("{} {}", f.name, figures::number(f.value)));
            let words = words.collect::<Vec<_>>().join(", ");
            bench.options.say(&format!("{}: {}: {words}", turn + 1, place.way.name()));
            let run = RunRecord { figures: found, ..RunRecord::default() };
            match runs.iter_mut().find(|(way, _)| *way == place.way) {
                Some((_, runs)) => runs.push(run),
                None => runs.push((place.way, vec![run])),
            }
        }
    }
    let ways: Vec<ForwardingVariant> = runs.iter().map(|(way, _)| *way).collect();
    report.cases = runs.into_iter().map(|(way, runs)| case(way, runs)).collect();
    report.tables.push(table(&ways, &report.cases));
    Ok(())
}

/// Runs all tests over all variants, once.
fn one_turn(places: &mut [VariantNetwork], bench: &ShiftBench<'_>) -> Result<Vec<Vec<Figure>>> {
    let (idle, beside) = (idle(places)?, beside(places, bench)?);
    let mut found = under_load(places, bench.moving.seconds)?;
    for ((place, found), (beside, idle)) in
        places.iter_mut().zip(&mut found).zip(beside.into_iter().zip(idle))
    {
        crate::interrupt::check()?;
        found.extend(beside.into_iter().chain(idle));
        found.extend(restarted(place)?);
    }
    Ok(found)
}

/// Measures TCP streams over all variants in turn, and their cost for the relays. The streams are
/// short, and every other round goes in reverse order, so changes of this machine's speed affect
/// all variants alike.
fn under_load(places: &[VariantNetwork], seconds: f64) -> Result<Vec<Vec<Figure>>> {
    let counters = |place: &VariantNetwork| RelayCounters::of(place.site().context("no nodes")?);
    let before = places.iter().map(counters).collect::<Result<Vec<_>>>()?;
    let mut mbit = vec![0.0; places.len()];
    for round in 0..STREAMS {
        for n in 0..places.len() {
            crate::interrupt::check()?;
            let at = if round % 2 == 0 { n } else { places.len() - 1 - n };
            mbit[at] += programs::tcp_mbit(&places[at], seconds)? / f64::from(STREAMS);
        }
    }
    let mut found = Vec::new();
    for ((place, before), mbit) in places.iter().zip(&before).zip(mbit) {
        let mut figures = vec![figure("tcp_mbit", "", mbit)];
        figures.extend(counters(place)?.since(before));
        found.push(figures);
    }
    Ok(found)
}

/// Pings, and jitter and loss of UDP of each size.
type SideBySide = (PingResults, Vec<(f64, f64)>);

/// Measures pings and UDP over all variants at once. The load is light, and other work of this
/// machine delays all variants alike. The variant that starts first stays ahead of the others. Each
/// variant therefore starts first once, with its share of the packets, and the results are merged.
fn beside(places: &[VariantNetwork], bench: &ShiftBench<'_>) -> Result<Vec<Vec<Figure>>> {
    let (m, rounds) = (bench.moving, places.len());
    let one = |place: &VariantNetwork| {
        let echoes = programs::echoes(place, m.pings / rounds as u32)?;
        let udp = |mb: &f64| programs::datagrams(place, mb / rounds as f64, m.udp_mbit);
        anyhow::Ok((echoes, m.udp_mb.iter().map(udp).collect::<Result<Vec<_>>>()?))
    };
    let mut all: Vec<Vec<SideBySide>> = places.iter().map(|_| Vec::new()).collect();
    for first in 0..rounds {
        crate::interrupt::check()?;
        std::thread::scope(|scope| {
            let in_turn = (0..rounds).map(|n| (first + n) % rounds);
            let begin = |at: usize| (at, scope.spawn(move || one(&places[at])));
            let threads: Vec<_> = in_turn.map(begin).collect();
            threads.into_iter().try_for_each(|(at, thread)| {
                let found = thread.join().map_err(|_| anyhow!("a thread of pings panicked"))?;
                all[at].push(found?);
                anyhow::Ok(())
            })
        })?;
    }
    Ok(all.into_iter().map(|found| together(found, &m.udp_mb)).collect())
}

/// Merges the rounds over one variant: pings, and jitter and loss of UDP for each size.
fn together(found: Vec<SideBySide>, udp_mb: &[f64]) -> Vec<Figure> {
    let rounds = found.len() as f64;
    let (mut echoes, mut udp): (Option<PingResults>, _) = (None, vec![(0.0, 0.0); udp_mb.len()]);
    for (more, datagrams) in found {
        match &mut echoes {
            Some(echoes) => echoes.add(more),
            None => echoes = Some(more),
        }
        for ((jitter, lost), more) in udp.iter_mut().zip(datagrams) {
            (*jitter, *lost) = (*jitter + more.0 / rounds, *lost + more.1 / rounds);
        }
    }
    let mut figures = echoes.map_or_else(Vec::new, |echoes| echoes.figures("calm"));
    for (mb, (jitter, lost)) in udp_mb.iter().zip(udp) {
        let of = programs::size(*mb);
        figures.push(figure("udp_jitter_ms", &of, jitter));
        figures.push(figure("udp_lost", &of, lost));
    }
    figures
}

/// Frames and bytes that all nodes have sent, and shifts of all links.
fn sent(place: &VariantNetwork) -> Result<[f64; 3]> {
    let site = place.site().context("no nodes")?;
    let (mut frames, mut bytes) = (0, 0);
    let topology = site.network().topology();
    for node in (0..topology.nodes.len()).filter(|node| !topology.nodes[*node].plain) {
        let status = site.status(node)?;
        frames += status.traffic.frames_out;
        bytes += status.traffic.bytes_out;
    }
    let shifts = shifts::counts(site, &place.conditions)?.map_or(0, |(made, _)| made);
    Ok([frames as f64, bytes as f64, shifts as f64])
}

/// Extra frames and bytes per shift on idle links, compared with fixed addresses, for each variant.
fn idle(places: &[VariantNetwork]) -> Result<Vec<Vec<Figure>>> {
    let all = || places.iter().map(sent).collect::<Result<Vec<_>>>();
    let before = all()?;
    std::thread::sleep(IDLE);
    let each = all()?
        .into_iter()
        .zip(&before)
        .map(|(after, before)| std::array::from_fn(|i| after[i] - before[i]));
    let each: Vec<[f64; 3]> = each.collect();
    let fixed = places.iter().position(|place| place.way == ForwardingVariant::Fixed);
    let fixed = fixed.map(|at| each[at]);
    let figures = |carried: &[f64; 3]| {
        let Some(fixed) = fixed.filter(|_| carried[2] > 0.0) else { return Vec::new() };
        let per_shift = |i: usize| (carried[i] - fixed[i]) / carried[2];
        vec![figure("shift_frames", "", per_shift(0)), figure("shift_bytes", "", per_shift(1))]
    };
    Ok(each.iter().map(figures).collect())
}

/// Neighbour table entries of the router before the first node, and the time of a killed relay
/// until it answers.
fn restarted(place: &mut VariantNetwork) -> Result<Vec<Figure>> {
    let (far, from) = (place.far.to_string(), place.from);
    let site = place.site_mut().context("no nodes")?;
    let (first, relay) = (find(site, "r1")?, find(site, RELAY)?);
    let link = site.network().topology().link_between(first, relay).context("no link")?;
    let entries = shifts::neighbour_entries(site.network(), link, first)?;
    site.kill(relay);
    let began = Instant::now();
    site.revive(relay)?;
    let words = ["-q", "-c", "1", "-W", "0.05", &far];
    loop {
        crate::interrupt::check()?;
        let said = crate::programs::run_at(site.network(), from, "ping", &words)?;
        if crate::pings::mean_ms(&said).is_finite() {
            break;
        }
        if began.elapsed() > PATIENCE {
            bail!("no answer {} s after the restart of {RELAY}", PATIENCE.as_secs());
        }
    }
    let up_again = began.elapsed().as_secs_f64();
    let conditions = place.conditions.clone();
    let site = place.site_mut().context("no nodes")?;
    site.wait_until_up(PATIENCE)?;
    shifts::wait(site, &conditions)?;
    Ok(vec![figure("neighbours", "r1", entries as f64), figure("up_again_s", RELAY, up_again)])
}

/// All medians side by side.
fn table(ways: &[ForwardingVariant], cases: &[CaseRecord]) -> ReportTable {
    let mut names: Vec<(&str, &str)> = Vec::new();
    for figure in cases.iter().flat_map(|case| &case.figures) {
        if !names.contains(&(&figure.name, &figure.of)) {
            names.push((&figure.name, &figure.of));
        }
    }
    let row = |(name, of): (&str, &str)| {
        let what = format!("{name} {of} {}", figures::unit(name)).trim_end().to_owned();
        (what, ways.iter().map(|way| value(cases, *way, name, of)).collect())
    };
    let columns = ["figure"].into_iter().chain(ways.iter().map(|way| way.name()));
    ReportTable {
        mixed: true,
        title: "Cost of shifts".into(),
        columns: columns.map(str::to_owned).collect(),
        rows: names.into_iter().map(row).collect(),
        unit: "medians".into(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn batches_are_read_from_metrics() {
        let text = |n: u32| {
            format!(
                "# TYPE shoal_frames_received counter\nshoal_frames_received_total {}\n\
                 shoal_receive_messages_total {n}\nshoal_frames_sent_total {}\n\
                 shoal_send_calls_total {n}\n",
                n * 40,
                n * 20
            )
        };
        let before = RelayCounters::read(&text(10), 1.0);
        let found = RelayCounters::read(&text(110), 1.01).since(&before);
        let values: Vec<f64> = found.iter().map(|figure| figure.value.round()).collect();
        assert_eq!(values, [20.0, 40.0, 5_000.0]);
        assert!(RelayCounters::read("", 0.0).frames_in.is_nan());
    }
}
