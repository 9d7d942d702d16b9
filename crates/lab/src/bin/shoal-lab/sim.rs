//! `shoal-lab sim`: whole networks with faults under a virtual clock, from a seed.

use std::path::Path;
use std::time::{Duration, Instant};

use anyhow::{Context, Result};
use shoal_cli::failure::{self, ExitError};
use shoal_cli::options::CommonOptions;
use shoal_cli::output;
use shoal_sim::{SavedRun, SimulationOptions, SimulationOutcome};

use crate::args::Sim;

/// Limit of runs to shrink one failure: about half a minute.
const SHRINK_RUNS_MAX: u32 = 400;
/// Limit of shrunk failures per call; the others mostly have the same cause.
const SHRUNK_MAX: usize = 3;

/// Runs seeds one after the other, or a kept scenario. Fails if a run broke a rule.
pub fn run(common: &CommonOptions, args: &Sim) -> Result<()> {
    if args.hop {
        return Err(ExitError::of(failure::USAGE, "--hop is called --shift"));
    }
    let mut broken = Vec::new();
    let wanted = wanted(args)?;
    let runs = wanted.len();
    for options in wanted {
        let seed = options.seed;
        let begun = Instant::now();
        let outcome = shoal_sim::run(options.clone());
        let took = begun.elapsed();
        say(common, &outcome)?;
        if (args.nodes.is_some() || args.hours.is_some() || args.speed) && !common.json {
            say_cost(&options, &outcome, took)?;
        }
        if outcome.is_ok() {
            continue;
        }
        let by_seed = args.nodes.is_none() && args.hours.is_none() && !args.speed;
        if by_seed && args.replay.is_none() && !common.json {
            let kinds = [
                (args.calm, " --calm"),
                (args.direct, " --direct"),
                (args.circuits, " --circuits"),
                (args.mixes, " --mixes"),
                (args.cover, " --cover"),
                (args.shift, " --shift"),
            ];
            let kind = kinds.iter().find(|(is_it, _)| *is_it).map_or("", |(_, kind)| kind);
            let workers = args.workers.map(|n| format!(" --workers {n}")).unwrap_or_default();
            output::line(&format!("replay: shoal-lab sim --seed {seed}{kind}{workers}"))?;
        }
        if by_seed && !args.no_shrink && broken.len() < SHRUNK_MAX {
            shrink(common, args, options)?;
        }
        broken.push(seed.to_string());
    }
    match broken.len() {
        0 => Ok(()),
        n => {
            let text = format!("{n} of {runs} runs broke a rule: seeds {}", broken.join(", "));
            Err(ExitError::of(failure::FAILED, text))
        }
    }
}

fn wanted(args: &Sim) -> Result<Vec<SimulationOptions>> {
    if let Some(path) = &args.replay {
        return Ok(vec![read(path)?.options]);
    }
    if args.speed {
        let workers = args.workers.unwrap_or(1);
        let fast =
            |cheap| SimulationOptions { workers, ..SimulationOptions::fast(args.seed, cheap) };
        return Ok(vec![fast(true), fast(false)]);
    }
    let scaled = |seed| match (args.nodes, args.hours) {
        (None, None) if args.calm => SimulationOptions::calm(seed),
        (None, None) if args.direct => SimulationOptions::direct(seed),
        (None, None) if args.circuits => SimulationOptions::circuits(seed),
        (None, None) if args.mixes => SimulationOptions::mixes(seed),
        (None, None) if args.cover => SimulationOptions::cover(seed),
        (None, None) if args.shift => SimulationOptions::shifts(seed),
        (None, Some(hours)) if args.shift => SimulationOptions::shifting(seed, hours),
        (None, None) => SimulationOptions::from_seed(seed),
        (Some(routers), None) => SimulationOptions::big(seed, routers, args.hosts),
        (None, Some(hours)) => SimulationOptions::long(seed, hours),
        (Some(routers), Some(hours)) => {
            let trouble_ms = u64::from(hours) * 3_600_000;
            SimulationOptions { trouble_ms, ..SimulationOptions::big(seed, routers, args.hosts) }
        }
    };
    let scaled = |seed| {
        let options = scaled(seed);
        SimulationOptions { workers: args.workers.unwrap_or(options.workers), ..options }
    };
    let seeds = args.seed..=args.seed.saturating_add(args.runs - 1);
    Ok(seeds.map(scaled).collect())
}

fn read(path: &Path) -> Result<SavedRun> {
    let name = path.display();
    let text =
        shoal_daemon::config::read_text(path).with_context(|| format!("can't read {name}"))?;
    SavedRun::from_json(&text)
        .map_err(|why| ExitError::of(failure::CONFIG, format!("{name} is not a scenario: {why}")))
}

fn say(common: &CommonOptions, outcome: &SimulationOutcome) -> Result<()> {
    if common.json {
        return Ok(output::json("sim", outcome)?);
    }
    Ok(output::line(outcome.to_string().trim_end_matches('\n'))?)
}

/// Prints the cost of a large run: time, frames and memory.
fn say_cost(
    options: &SimulationOptions,
    outcome: &SimulationOutcome,
    took: Duration,
) -> Result<()> {
    let (wall, passed) = (took.as_secs_f64().max(1e-3), outcome.virtual_time.as_secs_f64());
    let ciphers = if options.cheap_ciphers { "cheap ciphers" } else { "real ciphers" };
    let found = match outcome.converged_ms {
        Some(ms) => format!("all routers had routes to each other after {ms} ms"),
        None => "some routers never had routes to all others".to_string(),
    };
    output::line(&format!(
        "  {wall:.1} s of real, {passed:.1} s of virtual time: {:.2} hours per minute; {found}",
        passed / 60.0 / wall,
    ))?;
    let hops = outcome.frames_delivered as f64 / wall;
    let peak = match peak_memory() {
        Some(mib) => format!(", at most {mib} MiB of memory"),
        None => String::new(),
    };
    Ok(output::line(&format!("  {hops:.0} frames per second from node to node, {ciphers}{peak}"))?)
}

/// Largest memory that this process has held, in MiB, as Linux reports it.
fn peak_memory() -> Option<u64> {
    let status = std::fs::read_to_string("/proc/self/status").ok()?;
    let line = status.lines().find_map(|line| line.strip_prefix("VmHWM:"))?;
    Some(line.trim().trim_end_matches(" kB").parse::<u64>().ok()? / 1_024)
}

/// Shrinks a failure, prints the small run, and saves it as a file.
fn shrink(common: &CommonOptions, args: &Sim, options: SimulationOptions) -> Result<()> {
    let path = args.keep.join(format!("sim-failure-{}.json", options.seed));
    let Some(shrunk) = shoal_sim::shrink(options, SHRINK_RUNS_MAX) else { return Ok(()) };
    let text = SavedRun::of_failure(shrunk.options, &shrunk.outcome).to_json();
    std::fs::write(&path, &text).with_context(|| format!("can't write {}", path.display()))?;
    if common.json {
        return Ok(());
    }
    output::line(&format!("the smallest of {} runs with this failure:", shrunk.runs))?;
    output::line(text.trim_end())?;
    output::line(shrunk.outcome.to_string().trim_end_matches('\n'))?;
    Ok(output::line(&format!("kept: shoal-lab sim --replay {}", path.display()))?)
}
