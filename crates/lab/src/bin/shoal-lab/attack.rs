//! `shoal-lab attack`: what mixes and cover hide from who compares access links.

use std::fs;

use anyhow::{Context, Result};
use shoal_attack::scenarios::{Scenario, Size};
use shoal_cli::failure::{self, Failure};
use shoal_cli::options::Common;
use shoal_cli::output::{self, Paint, Table, paint, plain};
use shoal_lab::attack::{self, Report, Row};
use shoal_lab::html;

use crate::args::{Attack, AttackOn};

/// Runs the scenarios, prints their figures, writes the page; fails unless all holds.
pub fn run(common: &Common, args: &Attack) -> Result<()> {
    let named: Vec<Scenario> = args.scenarios.iter().map(|on| scenario(*on)).collect();
    let scenarios = if named.is_empty() { Scenario::ALL.to_vec() } else { named };
    let size = if args.quick { Size::QUICK } else { Size::FULL };
    let folder = args.out.display().to_string();
    fs::create_dir_all(&args.out).with_context(|| folder.clone())?;
    let progress = |at: usize, of: usize, what: &str| {
        if !args.quiet {
            eprintln!("{at} of {of}: {what}");
        }
    };
    let report = match &args.capture {
        Some(file) => attack::capture::run(file)
            .map_err(|e| Failure::of(failure::CONFIG, format!("{e:#}")))?,
        None => attack::run(&scenarios, size, &progress)
            .map_err(|why| Failure::of(failure::FAILED, why.to_string()))?,
    };
    let put = |name: &str, text: String| {
        let file = args.out.join(name);
        fs::write(&file, text).with_context(|| file.display().to_string())
    };
    put("report.json", serde_json::to_string(&report)?)?;
    put("report.html", html::attack_page(&report))?;
    show(common, &report)?;
    if !args.quiet {
        eprintln!("report: {}", args.out.join("report.html").display());
    }
    let failed = report.checks().filter(|(_, check)| !check.holds).count();
    if failed > 0 {
        let text = format!("{failed} of {} conditions do not hold", report.checks().count());
        return Err(Failure::of(failure::FAILED, text));
    }
    Ok(())
}

fn scenario(on: AttackOn) -> Scenario {
    match on {
        AttackOn::None => Scenario::None,
        AttackOn::Timed => Scenario::Timed,
        AttackOn::StopAndGo => Scenario::StopAndGo,
        AttackOn::Cover => Scenario::Cover,
        AttackOn::Active => Scenario::Active,
        AttackOn::Latency => Scenario::Latency,
        AttackOn::Time => Scenario::Time,
    }
}

fn show(common: &Common, report: &Report) -> Result<()> {
    if common.json {
        return Ok(output::json("attack", report)?);
    }
    let mut table = Table::new(&[
        "scenario",
        "case",
        "attack",
        ">cells/s",
        ">frames/s",
        ">added ms",
        ">AUC",
        "95%",
        ">top-1",
        ">guess",
        ">1-to-1",
        ">bits",
        ">at 1%",
        ">at 0.1%",
        "shuffled",
    ]);
    report.rows.iter().for_each(|row| table.row(plain(cells(row))));
    table.print()?;
    for (row, check) in report.checks() {
        let word =
            if check.holds { paint(Paint::Good, "holds") } else { paint(Paint::Bad, "FAILS") };
        let what = format!("{}: {}", row.scenario, row.case);
        output::line(&format!("{word}  {what}: {}: {}", check.rule, check.found))?;
    }
    Ok(())
}

fn cells(row: &Row) -> [String; 15] {
    let (outcome, rates) = (&row.outcome, &row.outcome.rates);
    let interval = |i: shoal_attack::Interval| format!("{:.3} to {:.3}", i.low, i.high);
    [
        row.scenario.to_string(),
        row.case.clone(),
        outcome.attack.clone(),
        format!("{:.0}", outcome.cost.cells_per_s),
        format!("{:.0}", outcome.cost.frames_per_s),
        format!("{:.1}", outcome.cost.added_ms),
        format!("{:.3}", rates.auc.value),
        interval(rates.auc),
        format!("{:.3}", rates.top1.value),
        format!("{:.3}", rates.guess),
        format!("{:.3}", rates.assigned),
        format!("{:.2}", rates.bits),
        format!("{:.3}", rates.at_1_in_100.value),
        format!("{:.3}", rates.at_1_in_1000.value),
        interval(outcome.shuffled),
    ]
}
