//! Runs that once broke a rule, shrunk and stored; none may break a rule again. Also tests the
//! shrinking itself, on a planted fault.

use shoal_sim::{InjectedFault, RouterTopology, SavedRun, SimulationOptions, run, shrink};

/// Files of `regressions/`, with their names.
fn kept() -> Vec<(String, String)> {
    let folder = concat!(env!("CARGO_MANIFEST_DIR"), "/regressions");
    let mut all: Vec<_> = std::fs::read_dir(folder)
        .expect("the folder is part of the crate")
        .map(|entry| entry.expect("entries of the folder can be read").path())
        .filter(|path| path.extension().is_some_and(|end| end == "json"))
        .map(|path| {
            let text = std::fs::read_to_string(&path).expect("a file of the crate can be read");
            (path.display().to_string(), text)
        })
        .collect();
    all.sort();
    all
}

#[test]
fn what_once_failed_does_not_fail_again() {
    let kept = kept();
    assert!(!kept.is_empty());
    for (name, text) in kept {
        let scenario = SavedRun::from_json(&text).unwrap_or_else(|why| panic!("{name}: {why}"));
        assert!(
            scenario.broke.is_some() && !scenario.about.is_empty(),
            "{name} says why it is kept"
        );
        let outcome = run(scenario.options);
        assert!(outcome.is_ok(), "{name}: {outcome}");
    }
}

#[test]
fn a_failure_shrinks_to_what_it_needs_and_its_file_replays() {
    let big = SimulationOptions {
        topology: RouterTopology::Mesh,
        routers: 6,
        hosts: 9,
        files: 7,
        crashes: 3,
        cuts: 4,
        spikes: 2,
        plant: Some(InjectedFault::CrashLosesFile),
        ..SimulationOptions::from_seed(11)
    };
    let shrunk = shrink(big, 300).expect("the planted fault breaks a rule");
    let small = &shrunk.options;
    assert!(shrunk.runs <= 300);
    let crashes = small.crashes + small.wipes - small.skip.len() as u32;
    assert_eq!((crashes, small.cuts, small.spikes, small.pauses), (1, 0, 0, 0));
    assert_eq!(
        small.files - small.skip_files.len() as u32,
        3,
        "the planted fault needs three files"
    );
    assert_eq!((small.topology, small.routers, small.file_bytes_max), (RouterTopology::Line, 1, 0));
    assert_eq!((small.faults.loss_ppm, small.faults.corrupt_ppm, small.hosts), (0, 0, 2));

    let written = SavedRun::of_failure(small.clone(), &shrunk.outcome).to_json();
    let read = SavedRun::from_json(&written).expect("a written scenario can be read");
    assert_eq!(read.broke.as_deref(), Some("a planted rule"));
    let again = run(read.options);
    assert_eq!(again, shrunk.outcome);
}

#[test]
fn the_report_of_a_failure_draws_its_end() {
    let options = SimulationOptions {
        crashes: 1,
        plant: Some(InjectedFault::CrashLosesFile),
        ..SimulationOptions::calm(3)
    };
    let outcome = run(options);
    let report = outcome.to_string();
    let (_, diagram) = report.split_once("```mermaid\n").expect("a diagram");
    let diagram = diagram.strip_suffix("```\n").expect("its end");
    let lines: Vec<&str> = diagram.lines().collect();
    assert_eq!(lines[0], "sequenceDiagram");
    let count = |what: &str| lines.iter().filter(|line| line.contains(what)).count();
    assert!(count("->>") > 3 && count("Crash(") == 1 && count("BROKEN") == 1, "{diagram}");
    assert!(lines.len() < 60, "{} lines", lines.len());
    // Each arrow and note refers to a declared participant.
    for line in lines.iter().filter(|line| line.contains("->>") || line.contains("-x")) {
        let from = line.trim().split(['-']).next().unwrap_or("");
        assert!(diagram.contains(&format!("participant {from} as ")), "{line}");
    }
}

#[test]
fn a_scenario_with_an_unknown_key_is_refused() {
    let text = r#"{"about": "x", "options": {"seed": 1, "sead": 2}}"#;
    assert!(SavedRun::from_json(text).is_err_and(|why| why.contains("sead")));
}
