//! Comparison of Shoal with other programs: the same links in the same run, medians with their
//! spread.
//!
//! ```text
//! h1 - r1 - r2 - h2      Shoal's nodes stay up, and idle, while the others run
//! ```

pub(crate) mod peers;

use anyhow::{Context, Result};
use shoal_cli::interrupt::Interrupt;

use crate::figures;
use crate::record::{ReportTable, ScenarioReport};
use crate::run::{self, LiveRun, RunOptions, flows};
use crate::scenario::Scenario;
use crate::workspace::Workspace;

/// Settings of a comparison.
#[derive(Clone, Debug)]
pub struct PeerComparison {
    /// Rate of every link, as in a scenario.
    pub rate: String,
    /// Share of packets that every link loses, 0 to 1.
    pub loss: f64,
    /// One-way delay of the link between the routers, in milliseconds.
    pub delay_ms: f64,
    /// Size of the file in millions of bytes.
    pub size_mb: f64,
    /// Number of runs of each program; medians are reported.
    pub repeat: u32,
}

/// Measures Shoal and every other installed program.
///
/// # Errors
/// Namespaces are missing, or Shoal itself does not transfer the file. Another program that fails
/// gets a row without a figure, with its message.
pub fn bench(bench: &PeerComparison, options: &RunOptions) -> Result<ScenarioReport> {
    Interrupt::catch()?;
    let text = format!(
        "title = \"Shoal and others on the same links\"\n\
         about = \"A file of {} MB over h1 - r1 - r2 - h2, by each program in turn\"\n\
         topology = \"chain\"\nlimit_s = 600\n[links]\nrate = \"{}\"\nloss = {}\n\
         [[link]]\nbetween = [\"r1\", \"r2\"]\ndelay_ms = {}\n\
         [[flow]]\nname = \"file\"\nfrom = \"h1\"\nto = \"h2\"\nsize_mb = {}\n",
        bench.size_mb, bench.rate, bench.loss, bench.delay_ms, bench.size_mb
    );
    let scenario = Scenario::parse("bench".as_ref(), &text)?;
    let mut report = run::empty("bench", &scenario);
    let topology = scenario.network();
    let case = &scenario.all_cases()[0];
    let conditions = scenario.conditions(&topology, case);
    report.drawing = run::drawing(&topology, &conditions);
    let mut seen: Vec<(String, Vec<f64>, String)> = Vec::new();
    let mut note = |name: &str, result: Result<f64>| {
        let (value, why) = match result {
            Ok(mbit) => (Some(mbit), String::new()),
            Err(e) => (None, format!("{e:#}")),
        };
        let shown = value.map_or(why.clone(), |v| format!("{v:.1} Mbit/s"));
        options.say(&format!("  {name}: {shown}"));
        match seen.iter_mut().find(|(known, _, _)| known == name) {
            Some((_, values, _)) => values.extend(value),
            None => seen.push((name.into(), value.into_iter().collect(), why)),
        }
    };
    for turn in 1..=bench.repeat {
        options.say(&format!("turn {turn} of {}", bench.repeat));
        // Twice the space, for the copies that other programs make.
        let workspace = Workspace::new(2 * flows::room(&scenario, case))?;
        let mut live = LiveRun::start(&scenario, case, &conditions, options, workspace.path())?;
        live.site.network().route_ip()?;
        report.links = live.manner();
        let run = live.run()?;
        let rate = run.figures.iter().find(|f| f.name == "rate_mbit").context("no rate")?;
        note("Shoal (encrypted twice)", Ok(rate.value));
        let place = peers::PeerSite::new(&live.site, bench.size_mb)?;
        for peer in peers::ALL {
            crate::interrupt::check()?;
            note(peer.name, (peer.run)(&place));
        }
    }
    report.tables.push(table(bench, seen));
    Ok(report)
}

fn table(bench: &PeerComparison, seen: Vec<(String, Vec<f64>, String)>) -> ReportTable {
    let row = |(name, mut values, why): (String, Vec<f64>, String)| {
        let middle = figures::middle(&mut values);
        let Some((low, high)) = values.first().copied().zip(values.last().copied()) else {
            return (format!("{name}: {why}"), vec![None, None, None]);
        };
        (name, vec![Some(middle), Some(low), Some(high)])
    };
    ReportTable {
        mixed: false,
        title: format!(
            "{} MB; links {}, {}% loss each; {} ms between the routers",
            bench.size_mb,
            bench.rate,
            bench.loss * 100.0,
            bench.delay_ms
        ),
        columns: ["program", "median", "lowest", "highest"].map(Into::into).into(),
        rows: seen.into_iter().map(row).collect(),
        unit: "Mbit/s of payload".into(),
    }
}
