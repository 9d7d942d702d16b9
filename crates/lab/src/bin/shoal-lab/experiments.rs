//! Experiments on real networks of this machine, and their reports.

use std::fs;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result};
use nix::unistd::AccessFlags;
use shoal_cli::failure::{self, ExitError};
use shoal_cli::options::CommonOptions;
use shoal_cli::output::{self, CellStyle, TextTable, paint, plain};
use shoal_lab::bench;
use shoal_lab::record::{self, ScenarioReport};
use shoal_lab::run::{self, RunOptions};
use shoal_lab::scenario::{Scenario, library};
use shoal_lab::{Executable, figures, html};

use crate::args::{BenchArgs, Compare, ReportArgs, RunArgs};

/// Lists the shipped scenarios.
pub fn list(common: &CommonOptions) -> Result<()> {
    let mut table = TextTable::new(&["scenario", ">cases", "what"]);
    let mut all = Vec::new();
    for (name, text) in library::ALL {
        let scenario = Scenario::parse(Path::new(name), text)?;
        let cases = scenario.case_names();
        table.row(plain([name.to_string(), cases.len().to_string(), scenario.title.clone()]));
        all.push(serde_json::json!({ "name": name, "title": scenario.title, "cases": cases }));
    }
    if common.json {
        return Ok(output::json("scenarios", &all)?);
    }
    Ok(table.print()?)
}

/// Runs a scenario and writes its report. Fails if a condition fails.
pub fn run_scenario(common: &CommonOptions, args: &RunArgs) -> Result<()> {
    let wrong = |e: String| ExitError::of(failure::CONFIG, e);
    let (name, scenario) = match library::find(&args.scenario) {
        Some(text) => (args.scenario.clone(), Scenario::parse(Path::new(&args.scenario), text)),
        None => {
            let file = Path::new(&args.scenario);
            if !file.exists() {
                let text = format!(
                    "{:?} is neither a shipped scenario (see `shoal-lab list`) nor a file",
                    args.scenario
                );
                return Err(wrong(text));
            }
            let stem = file.file_stem().unwrap_or_default().to_string_lossy().into_owned();
            (stem, Scenario::load(file))
        }
    };
    let scenario = scenario.map_err(|e| wrong(e.to_string()))?;
    let folder = args.out.clone().unwrap_or_else(|| Path::new("lab-reports").join(&name));
    let options = RunOptions {
        captures: scenario.attack.is_some().then(|| folder.join("captures")),
        executable: args
            .shoal
            .as_ref()
            .map(std::path::absolute)
            .transpose()?
            .map(Executable::shoal),
        case: args.case.clone(),
        repeat: args.repeat,
        quiet: args.quiet,
    };
    let report = with_folder(&folder, || run::run(&name, &scenario, &options))?;
    write(&folder, &report)?;
    show(common, &report)?;
    if !args.quiet {
        eprintln!("report: {}", folder.join("report.html").display());
    }
    verdict(&report)
}

/// Makes the report's folder before the run, which may take an hour. Removes it if the run fails.
fn with_folder(
    folder: &Path,
    run: impl FnOnce() -> Result<ScenarioReport>,
) -> Result<ScenarioReport> {
    let named = || folder.display().to_string();
    fs::create_dir_all(folder).with_context(named)?;
    nix::unistd::access(folder, AccessFlags::W_OK | AccessFlags::X_OK).with_context(named)?;
    run().map_err(|e| {
        // Only an empty folder can be removed.
        let _ = fs::remove_dir(folder);
        ExitError::of(failure::FAILED, format!("{e:#}"))
    })
}

/// Fails if a condition fails, or a figure is doubtful.
fn verdict(report: &ScenarioReport) -> Result<()> {
    let failed = report.holds.iter().filter(|h| !h.holds).count();
    if failed > 0 {
        let text = format!("{failed} of {} conditions failed", report.holds.len());
        return Err(ExitError::of(failure::FAILED, text));
    }
    if !report.doubts.is_empty() {
        let text = "the machine was too busy; the figures prove nothing";
        return Err(ExitError::of(failure::FAILED, text));
    }
    Ok(())
}

fn write(folder: &Path, report: &ScenarioReport) -> Result<()> {
    let put = |name: &str, text: String| {
        let file = folder.join(name);
        fs::write(&file, text).with_context(|| file.display().to_string())
    };
    put("report.json", serde_json::to_string(report)?)?;
    put("report.html", html::page(report))
}

fn show(common: &CommonOptions, report: &ScenarioReport) -> Result<()> {
    if common.json {
        return Ok(output::json("report", report)?);
    }
    let mut table = TextTable::new(&["case", "figure", "of", ">median", ">low", ">high", "unit"]);
    for case in &report.cases {
        // Figures of single nodes are only in the report; in this table they would hide the others.
        let of_nodes = ["cpu_s", "memory_mb", "memory_growth"];
        for f in case.figures.iter().filter(|f| !of_nodes.contains(&f.name.as_str())) {
            let value = figures::number;
            let unit = figures::unit(&f.name).to_string();
            let cells = [&case.name, &f.name, &f.of].map(Clone::clone).into_iter();
            table.row(plain(cells.chain([value(f.value), value(f.low), value(f.high), unit])));
        }
    }
    if !report.cases.is_empty() {
        table.print()?;
    }
    for sheet in &report.tables {
        output::line(&format!("\n{} ({})", sheet.title, sheet.unit))?;
        let heading: Vec<&str> = sheet.columns.iter().map(String::as_str).collect();
        let names = sheet.rows.iter().map(|(name, _)| name.chars().count() + 2);
        let width = names.max().unwrap_or(0).max(40);
        output::line(&format!("  {:<width$}{}", heading[0], heading[1..].join("  ")))?;
        for (name, values) in &sheet.rows {
            let cell = |v: &Option<f64>| v.map_or("-".into(), figures::number);
            let cells: Vec<String> = values.iter().map(cell).collect();
            output::line(&format!("  {name:<width$}{}", cells.join("  ")))?;
        }
    }
    for row in &report.papers {
        let ours = row.ours.map_or("not measured".into(), figures::number);
        let (paper, unit) = (figures::number(row.paper), &row.unit);
        let text =
            format!("{}: paper {paper} {unit}, here {ours} {unit} ({})", row.what, row.place);
        output::line(&text)?;
    }
    for outcome in &report.holds {
        let word = if outcome.holds {
            paint(CellStyle::Good, "holds")
        } else {
            paint(CellStyle::Bad, "FAILS")
        };
        output::line(&format!("{word}  {}: {}", outcome.rule, outcome.found))?;
    }
    for doubt in &report.doubts {
        output::line(&paint(CellStyle::Bad, doubt))?;
    }
    Ok(())
}

/// Compares all installed programs, and writes a report.
pub fn bench(common: &CommonOptions, args: &BenchArgs) -> Result<()> {
    let BenchArgs { rate, loss, delay_ms, size_mb, repeat, out } = args;
    let (loss, delay_ms, size_mb) = (*loss, *delay_ms, *size_mb);
    let bench =
        bench::PeerComparison { rate: rate.clone(), loss, delay_ms, size_mb, repeat: *repeat };
    let report = with_folder(out, || bench::bench(&bench, &RunOptions::default()))?;
    write(out, &report)?;
    show(common, &report)
}

fn read(path: &Path) -> Result<(PathBuf, ScenarioReport)> {
    let file = if path.is_dir() { path.join("report.json") } else { path.to_path_buf() };
    let text =
        shoal_daemon::config::read_text(&file).with_context(|| file.display().to_string())?;
    let report: ScenarioReport =
        serde_json::from_str(&text).with_context(|| format!("{}: not a report", file.display()))?;
    if report.version != record::VERSION {
        let text =
            format!("{}: version {}, not {}", file.display(), report.version, record::VERSION);
        return Err(ExitError::of(failure::FAILED, text));
    }
    Ok((file.parent().map_or_else(PathBuf::new, Path::to_path_buf), report))
}

/// Writes the page of a report again, and prints its figures.
pub fn page(common: &CommonOptions, args: &ReportArgs) -> Result<()> {
    let (folder, report) = read(&args.report)?;
    let file = folder.join("report.html");
    fs::write(&file, html::page(&report)).with_context(|| file.display().to_string())?;
    show(common, &report)
}

/// Compares two reports.
pub fn compare(common: &CommonOptions, args: &Compare) -> Result<()> {
    let ((_, a), (_, b)) = (read(&args.a)?, read(&args.b)?);
    let both = html::rows_of_both(&a, &b);
    if both.is_empty() {
        let text = format!("the reports share no figure: A is {:?}, B is {:?}", a.name, b.name);
        return Err(ExitError::of(failure::FAILED, text));
    }
    fs::write(&args.out, html::compare(&a, &b)).with_context(|| args.out.display().to_string())?;
    let mut table = TextTable::new(&["case", "figure", ">A", ">B", ">B / A"]);
    let mut rows = Vec::new();
    for row in both {
        let value = figures::number;
        rows.push(serde_json::json!({
            "case": row.case, "figure": row.name, "a": row.a, "b": row.b, "ratio": row.ratio,
        }));
        table.row(plain([row.case, row.name, value(row.a), value(row.b), value(row.ratio)]));
    }
    for remark in html::remarks(&a, &b) {
        eprintln!("shoal-lab: {}", output::message(&remark));
    }
    if common.json {
        return Ok(output::json("compare", &rows)?);
    }
    table.print()?;
    eprintln!("report: {}", args.out.display());
    Ok(())
}
