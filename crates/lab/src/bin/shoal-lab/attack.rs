//! `shoal-lab attack`: anonymity with mixes and cover, against attackers who compare access links.

use std::fs;
use std::path::Path;

use anyhow::{Context, Result};
use shoal_attack::scenarios::{AttackScenario, Size};
use shoal_cli::failure::{self, ExitError};
use shoal_cli::options::CommonOptions;
use shoal_cli::output::{self, CellStyle, TextTable, paint, plain};
use shoal_lab::attack::recognise::{self as censor, Captures};
use shoal_lab::attack::{self, AttackReport, AttackRow};
use shoal_lab::html;
use shoal_lab::run::RunOptions;

use crate::args::{AttackArgs, AttackTarget};

/// Runs the scenarios, prints their figures, and writes the page. Fails if a condition fails.
pub fn run(common: &CommonOptions, args: &AttackArgs) -> Result<()> {
    if args.recognise {
        return recognise(common, args);
    }
    let named: Vec<AttackScenario> = args.scenarios.iter().map(|on| scenario(*on)).collect();
    let scenarios = if named.is_empty() { AttackScenario::ALL.to_vec() } else { named };
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
            .map_err(|e| ExitError::of(failure::CONFIG, format!("{e:#}")))?,
        None => attack::run(&scenarios, size, &progress)
            .map_err(|why| ExitError::of(failure::FAILED, why.to_string()))?,
    };
    put(args, "report.json", &serde_json::to_string(&report)?)?;
    put(args, "report.html", &html::attack_page(&report))?;
    for (name, picture) in html::attack_pictures(&report) {
        put(args, &name, &picture)?;
    }
    show(common, &report)?;
    if !args.quiet {
        eprintln!("report: {}", args.out.join("report.html").display());
    }
    let failed = report.checks().filter(|(_, check)| !check.holds).count();
    if failed > 0 {
        let text = format!("{failed} of {} conditions failed", report.checks().count());
        return Err(ExitError::of(failure::FAILED, text));
    }
    Ok(())
}

fn put(args: &AttackArgs, name: &str, text: &str) -> Result<()> {
    let file = args.out.join(name);
    fs::write(&file, text).with_context(|| file.display().to_string())
}

/// Classifies programs, prints the result, and writes the page.
fn recognise(common: &CommonOptions, args: &AttackArgs) -> Result<()> {
    let wrong = |e: anyhow::Error| ExitError::of(failure::CONFIG, format!("{e:#}"));
    fs::create_dir_all(&args.out).with_context(|| args.out.display().to_string())?;
    let judged = match &args.capture {
        Some(file) => {
            let captures = Captures::load(file).map_err(wrong)?;
            let folder = file.parent().unwrap_or(Path::new("."));
            censor::judge(&captures, folder, Vec::new()).map_err(wrong)?
        }
        None => {
            let say = |text: &str| {
                if !args.quiet || text.starts_with("LEFT OUT") {
                    eprintln!("{text}");
                }
            };
            let folder = args.out.join("captures");
            let recorded = censor::record(&folder, args.each, &RunOptions::default(), &say)?;
            censor::judge(&recorded.captures, &folder, recorded.missing)?
        }
    };
    let report = &judged.report;
    put(args, "report.json", &serde_json::to_string(report)?)?;
    put(args, "report.html", &html::recognise_page(report))?;
    put(args, "features.csv", &judged.features)?;
    show_programs(common, report)?;
    if !args.quiet {
        eprintln!("report: {}", args.out.join("report.html").display());
    }
    Ok(())
}

fn show_programs(common: &CommonOptions, report: &censor::RecognitionReport) -> Result<()> {
    if common.json {
        return Ok(output::json("recognise", report)?);
    }
    let found = &report.recognised;
    let mut table = TextTable::new(&[
        "program",
        ">captures",
        "found",
        "others taken for it",
        "taken for others",
    ]);
    for (i, program) in found.programs.iter().enumerate() {
        let others = found.programs.iter().zip(&found.confusion[i]).enumerate();
        let others = others.filter(|(other, (_, count))| *other != i && **count > 0);
        let others: Vec<String> =
            others.map(|(_, (other, count))| format!("{count} for {other}")).collect();
        let (own, alarms) = (found.found[i].to_string(), found.alarms[i].to_string());
        let captures = found.captures[i].to_string();
        table.row(plain([program.clone(), captures, own, alarms, others.join(", ")]));
    }
    table.print()?;
    output::line(&format!(
        "accuracy {}, a guess {:.3}, programs shuffled {:.3}",
        found.accuracy, found.guess, found.shuffled
    ))?;
    let mut table = TextTable::new(&["program", "did", "found"]);
    for (program, activity, share) in &found.activities {
        table.row(plain([program.clone(), activity.clone(), share.to_string()]));
    }
    table.print()?;
    let mut table =
        TextTable::new(&["features", ">alone", ">Shoal found", ">without", ">Shoal found"]);
    let ours = found.programs.iter().position(|program| program == censor::OURS);
    for worth in &found.groups {
        let own = |found: &[f64]| ours.map_or(f64::NAN, |at| found[at]);
        let (with, without) = (own(&worth.found_alone), own(&worth.found_without));
        let shares = [worth.alone, with, worth.without, without].map(|x| format!("{x:.3}"));
        table.row(plain([worth.group.to_string()].into_iter().chain(shares)));
    }
    table.print()?;
    let mut table =
        TextTable::new(&[">datagrams", ">accuracy", ">Shoal found", ">others taken for it"]);
    for point in &report.curve {
        let shares = [point.accuracy, point.found, point.alarms].map(|x| format!("{x:.3}"));
        table.row(plain([point.datagrams.to_string()].into_iter().chain(shares)));
    }
    Ok(table.print()?)
}

fn scenario(on: AttackTarget) -> AttackScenario {
    match on {
        AttackTarget::None => AttackScenario::None,
        AttackTarget::Timed => AttackScenario::Timed,
        AttackTarget::StopAndGo => AttackScenario::StopAndGo,
        AttackTarget::Cover => AttackScenario::Cover,
        AttackTarget::Active => AttackScenario::Active,
        AttackTarget::Members => AttackScenario::Members,
        AttackTarget::Latency => AttackScenario::Latency,
        AttackTarget::Time => AttackScenario::Time,
    }
}

fn show(common: &CommonOptions, report: &AttackReport) -> Result<()> {
    if common.json {
        return Ok(output::json("attack", report)?);
    }
    let mut table = TextTable::new(&[
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
        let word = if check.holds {
            paint(CellStyle::Good, "holds")
        } else {
            paint(CellStyle::Bad, "FAILS")
        };
        let what = format!("{}: {}", row.scenario, row.case);
        output::line(&format!("{word}  {what}: {}: {}", check.rule, check.found))?;
    }
    Ok(())
}

fn cells(row: &AttackRow) -> [String; 15] {
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
