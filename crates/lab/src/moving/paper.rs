//! The tests of the paper on MT6D, with its figures beside ours.
//!
//! All sections are of O. Hardman, "Optimizing a network layer moving target defense by translating
//! software from Python to C", 2015. The paper used 1.2 GHz ARM gateways on a switch, with
//! addresses that change every ten seconds.

use std::path::Path;
use std::time::Instant;

use anyhow::{Result, bail};

use super::place::{ForwardingVariant, VariantNetwork};
use super::{ShiftBench, case, programs, value};
use crate::figures::{self, figure};
use crate::needs::{self, Requirement};
use crate::record::{CaseRecord, Figure, ReportTable, RunRecord, ScenarioReport};

#[derive(Clone, Copy)]
enum PaperTest {
    Calm(u32),
    Flood(u32),
    Wget(f64),
    Tcp(f64),
    Udp(f64),
}

/// A row of the table: title, name and subject of our figure, its factor, and the paper's figures.
/// The paper has figures without MT6D, with its Python version, and with its C version.
struct PaperTableRow {
    what: String,
    figure: &'static str,
    of: String,
    times: f64,
    paper: [Option<f64>; 3],
}

/// Runs all tests over all variants, in turn.
///
/// # Errors
/// A program is missing, or nothing gets through.
pub fn run(bench: &ShiftBench<'_>, folder: &Path, report: &mut ScenarioReport) -> Result<()> {
    if let Some(missing) = needs::missing(&["ping", "iperf3", "wget"].map(Requirement::Tool)) {
        bail!("missing for this scenario: {missing}");
    }
    let places = bench.places(folder, 0, report)?;
    report.links = places.first().map_or_else(String::new, |place| place.network().manner());
    let mut runs: Vec<Vec<RunRecord>> = places.iter().map(|_| Vec::new()).collect();
    for turn in 1..=bench.repeat() {
        runs.iter_mut().for_each(|runs| runs.push(RunRecord::default()));
        for test in tests(bench) {
            for (place, runs) in places.iter().zip(&mut runs) {
                crate::interrupt::check()?;
                let found = one(place, test, bench)?;
                let said = found.iter().filter(|f| f.name != "ping_min_ms");
                let words = said.map(|f| format!("{} {}", f.name, figures::number(f.value)));
                let (way, words) = (place.way.name(), words.collect::<Vec<_>>().join(", "));
                let of = found.first().map_or("", |f| f.of.as_str());
                bench.options.say(&format!("{turn}: {way}, {of}: {words}"));
                if let Some(run) = runs.last_mut() {
                    run.figures.extend(found);
                }
            }
        }
    }
    let ways: Vec<ForwardingVariant> = places.iter().map(|place| place.way).collect();
    report.cases = ways.iter().zip(runs).map(|(way, runs)| case(*way, runs)).collect();
    report.tables.push(table(bench, &ways, &report.cases));
    Ok(())
}

fn tests(bench: &ShiftBench<'_>) -> Vec<PaperTest> {
    let m = bench.moving;
    let mut tests = vec![PaperTest::Calm(m.pings)];
    tests.extend(m.floods.iter().map(|count| PaperTest::Flood(*count)));
    tests.extend(m.wget_mb.iter().map(|mb| PaperTest::Wget(*mb)));
    tests.push(PaperTest::Tcp(m.seconds));
    tests.extend(m.udp_mb.iter().map(|mb| PaperTest::Udp(*mb)));
    tests
}

/// Runs one test over one variant. Adds the first gateway's resource usage, except for files and
/// UDP.
fn one(place: &VariantNetwork, test: PaperTest, bench: &ShiftBench<'_>) -> Result<Vec<Figure>> {
    let (before, began) = (place.usage(), Instant::now());
    let mut found = match test {
        PaperTest::Calm(count) => programs::calm(place, count)?,
        PaperTest::Flood(count) => programs::flood(place, count)?,
        PaperTest::Wget(mb) => programs::wget(place, mb)?,
        PaperTest::Tcp(seconds) => {
            vec![figure("tcp_mbit", "", programs::tcp_mbit(place, seconds)?)]
        }
        PaperTest::Udp(mb) => programs::udp(place, mb, bench.moving.udp_mbit)?,
    };
    let seconds = began.elapsed().as_secs_f64();
    let Some((before, after)) = before.zip(place.usage()) else { return Ok(found) };
    let of = match test {
        PaperTest::Calm(_) => "calm".to_owned(),
        PaperTest::Flood(count) => format!("flood of {count}"),
        PaperTest::Tcp(_) => "TCP".to_owned(),
        PaperTest::Wget(_) | PaperTest::Udp(_) => return Ok(found),
    };
    let (cpu, kernel) = (after.0 - before.0, after.1 - before.1);
    found.push(figure("cpu_share", &of, cpu / seconds));
    // Below 0.1 s the share would be noise: processor time is counted in hundredths of a second.
    if cpu > 0.1 {
        found.push(figure("kernel_share", &of, kernel / cpu));
    }
    found.push(figure("memory_mb", of, after.2 as f64 / 1e6));
    Ok(found)
}

/// Rows of pings, with the first gateway's resource usage.
fn of_pings(rows: &mut Vec<PaperTableRow>, of: &str, is_flood: bool) {
    let paper = |calm, flood| if is_flood { flood } else { calm };
    let mut row = |what: &str, figure, times, paper| {
        rows.push(PaperTableRow {
            what: format!("ping, {of}: {what}"),
            figure,
            of: of.into(),
            times,
            paper,
        });
    };
    let none = [None; 3];
    row("shortest, ms", "ping_min_ms", 1.0, none);
    // Figure 5.3 and its text: 103 ms. Figures 5.1 and 5.5: below 1 ms, and 0.2 more.
    row("mean, ms", "ping_ms", 1.0, paper([None, Some(103.0), None], none));
    row("longest, ms", "ping_max_ms", 1.0, none);
    // Section 5.1.2: 2.32%, and more than 90% in floods.
    let lost = paper([Some(0.0), Some(2.32), None], [Some(0.0), Some(90.0), None]);
    row("lost, %", "ping_lost", 100.0, lost);
    // Section 5.1.4: almost 32% and 12%; 2% and 0.01%.
    let cpu = paper([None, Some(2.0), Some(0.01)], [None, Some(32.0), Some(12.0)]);
    row("a core at a gateway, %", "cpu_share", 100.0, cpu);
    // Figure 5.8: share of the time that was spent in the kernel.
    let kernel = paper(none, [None, Some(4.97), Some(79.4)]);
    row("share of it in the kernel, %", "kernel_share", 100.0, kernel);
    // Section 5.1.4: around 4 MB and 60 kB of private memory, in both tests.
    row("memory at a gateway, MB", "memory_mb", 1.0, [None, Some(4.0), Some(0.06)]);
}

fn rows(bench: &ShiftBench<'_>) -> Vec<PaperTableRow> {
    let m = bench.moving;
    let mut rows = Vec::new();
    of_pings(&mut rows, "calm", false);
    for count in &m.floods {
        of_pings(&mut rows, &format!("flood of {count}"), true);
    }
    for mb in &m.wget_mb {
        // Section 5.1: 15.41 and 11.55 MB/s, and 18.34 kB/s, with the largest file.
        let paper = [Some(15.41), Some(0.018_34), Some(11.55)].map(|v| v.filter(|_| *mb == 500.0));
        let (figure, of, times) = ("wget_mbit", programs::size(*mb), 1.0 / 8.0);
        rows.push(PaperTableRow { what: format!("wget, {of}: MB/s"), figure, of, times, paper });
    }
    let (what, figure, of) = ("TCP: Mbit/s".to_owned(), "tcp_mbit", String::new());
    rows.push(PaperTableRow { what, figure, of, times: 1.0, paper: [None; 3] });
    for mb in &m.udp_mb {
        // Tables 5.1, 5.2 and 5.3.
        let paper = match *mb {
            1.0 => [Some(0.061), Some(15.573), Some(0.081)],
            10.0 => [Some(0.054), Some(15.647), Some(0.085)],
            50.0 => [Some(0.065), Some(15.672), Some(0.094)],
            500.0 => [Some(0.062), Some(15.667), Some(0.095)],
            _ => [None; 3],
        };
        let of = programs::size(*mb);
        let row = |what: &str, figure, times, paper| PaperTableRow {
            what: format!("UDP, {of}: {what}"),
            figure,
            of: of.clone(),
            times,
            paper,
        };
        rows.push(row("jitter, ms", "udp_jitter_ms", 1.0, paper));
        rows.push(row("lost, %", "udp_lost", 100.0, [None; 3]));
    }
    rows
}

/// Our medians of all variants, with the paper's figures beside them.
fn table(bench: &ShiftBench<'_>, ways: &[ForwardingVariant], cases: &[CaseRecord]) -> ReportTable {
    let row = |row: PaperTableRow| {
        let ours =
            ways.iter().map(|way| Some(value(cases, *way, row.figure, &row.of)? * row.times));
        (row.what, ours.chain(row.paper).collect())
    };
    let mut rows: Vec<(String, Vec<Option<f64>>)> = rows(bench).into_iter().map(row).collect();
    rows.extend(mean_of_files(bench, ways, cases));
    let columns = ["test"].into_iter().chain(ways.iter().map(|way| way.name()));
    let paper = ["paper: none", "paper: Python", "paper: C"];
    ReportTable {
        mixed: true,
        title: "The paper's tests".into(),
        columns: columns.chain(paper).map(str::to_owned).collect(),
        rows,
        unit: "medians; the paper's on a switch, 1.2 GHz ARM gateways".into(),
    }
}

/// The mean of the files' rates, as the paper reports it.
fn mean_of_files(
    bench: &ShiftBench<'_>,
    ways: &[ForwardingVariant],
    cases: &[CaseRecord],
) -> Option<(String, Vec<Option<f64>>)> {
    let sizes = &bench.moving.wget_mb;
    let mean = |way: &ForwardingVariant| {
        let rate = |mb: &f64| value(cases, *way, "wget_mbit", &programs::size(*mb));
        let rates: Option<Vec<f64>> = sizes.iter().map(rate).collect();
        rates.map(|rates| rates.iter().sum::<f64>() / rates.len() as f64 / 8.0)
    };
    let ours = ways.iter().map(mean);
    // Section 5.1: 19.584 and 10.57 MB/s, and 24.072 kB/s.
    let paper = [Some(19.584), Some(0.024_072), Some(10.57)];
    let name = "wget, mean of all files: MB/s".to_owned();
    (!sizes.is_empty()).then(|| (name, ours.chain(paper).collect()))
}
