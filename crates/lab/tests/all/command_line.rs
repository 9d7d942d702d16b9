//! Tests of `shoal-lab` with right and wrong arguments. Cargo builds the program for these tests;
//! the tests of `shoal-e2e` start it too.

use std::process::{Command, Output, Stdio};

fn lab(words: &[&str]) -> Output {
    let mut command = Command::new(env!("CARGO_BIN_EXE_shoal-lab"));
    command.args(words).env_remove("SHOAL_SOCKET").stdin(Stdio::null()).output().unwrap()
}

fn text(output: &Output) -> (String, String) {
    let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
    (text(&output.stdout), text(&output.stderr))
}

/// Runs `shoal-lab`, expects this exit code, and returns standard error.
fn fails(code: i32, words: &[&str]) -> String {
    let output = lab(words);
    let (out, err) = text(&output);
    assert_eq!(output.status.code(), Some(code), "{words:?}\n{out}\n{err}");
    err
}

#[test]
fn wrong_words_are_usage_errors() {
    for words in [
        &["fly"][..],
        &["demo", "--loss", "1.5"],
        &["demo", "--rate", "fast"],
        &["demo", "--size", "0"],
        &["demo", "-c", "node.toml"],
        &["sim", "--runs", "18446744073709551615"],
        &["bench", "--rate", "fast"],
        &["model", "--figure", "16"],
        &["attack", "everything"],
        &["attack", "cover", "--capture", "network.toml"],
        &["run"],
        &["node"],
        &["--json", "completions", "bash"],
    ] {
        let err = fails(2, words);
        assert!(!err.contains("shoal: "), "{err}");
    }
}

#[test]
fn a_file_that_never_ends_and_a_pipe_are_refused() {
    let err = fails(4, &["run", "/dev/zero"]);
    assert!(err.contains("/dev/zero: can't be read: is a device; expected a"), "{err}");
    assert!(err.starts_with("shoal-lab: "), "{err}");
    assert!(fails(1, &["sim", "--replay", "/dev/zero"]).contains("is a device; expected a"));
    let folder = tempfile::tempdir().unwrap();
    let pipe = folder.path().join("pipe");
    assert!(Command::new("mkfifo").arg(&pipe).status().unwrap().success());
    let err = fails(4, &["run", pipe.to_str().unwrap()]);
    assert!(err.contains("is a pipe; expected a regular file"), "{err}");
}

#[test]
fn what_its_networks_start_is_there_and_not_shown() {
    let err = fails(4, &["node", "-c", "/nonexistent.toml"]);
    assert!(err.contains("/nonexistent.toml: can't be read"), "{err}");
    let err = fails(1, &["send", "/nonexistent", "bob", "--socket", "/nonexistent/s", "--json"]);
    assert!(err.contains("/nonexistent: No such file"), "{err}");
    let words = ["receive", "--dir", ".", "--from", "any", "--socket", "/nonexistent/s", "--json"];
    assert!(fails(3, &words).contains("no node answers at /nonexistent/s"));
    let (help, _) = text(&lab(&["--help"]));
    let hidden = |help: &str| ["  node", "  send", "  receive"].iter().all(|w| !help.contains(w));
    assert!(help.contains("Exit codes") && help.contains("  demo") && hidden(&help), "{help}");
}

#[test]
fn the_model_prints_the_papers_numbers_beside_ours() {
    let short = ["model", "--figure", "6", "--seconds", "2", "--seeds", "1"];
    let (out, err) = text(&lab(&short));
    let row = out.lines().find(|line| line.contains("8.27  "));
    assert!(row.is_some_and(|row| row.contains("8.76") && row.contains("5.17")), "{out}{err}");
    let (out, _) = text(&lab(&[&short[..], &["--json"]].concat()));
    assert!(out.starts_with("{") && out.contains("\"paper_theory\":8.27"), "{out}");
}

#[test]
fn the_model_writes_its_page() {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("model.html");
    let words = ["model", "--figure", "13", "--seconds", "2", "--seeds", "1", "--out"];
    let (out, err) = text(&lab(&[&words[..], &[file.to_str().unwrap()]].concat()));
    assert!(out.starts_with("Figure 13: ") && err.contains("report: "), "{out}{err}");
    let page = std::fs::read_to_string(&file).unwrap();
    assert!(page.contains("<h2>Figure 13: ") && page.contains("class=\"cross\""));
    let err = fails(1, &[&words[..], &["/nonexistent/model.html"]].concat());
    assert!(err.contains("/nonexistent/model.html: No such file"), "{err}");
}

#[test]
fn manual_and_completions_are_made() {
    let folder = tempfile::tempdir().unwrap();
    let pages = folder.path().to_str().unwrap();
    assert!(lab(&["man", "--dir", pages]).status.success());
    for page in ["shoal-lab.1", "shoal-lab-demo.1", "shoal-lab-run.1", "shoal-lab-sim.1"] {
        let text = std::fs::read_to_string(folder.path().join(page)).unwrap();
        assert!(text.contains(".TH") && text.contains("EXAMPLES"), "{page}");
        assert!(text.contains("\\-\\-json"), "{page}");
    }
    assert!(!folder.path().join("shoal-lab-node.1").exists());
    for shell in ["bash", "zsh", "fish"] {
        let (completed, _) = text(&lab(&["completions", shell]));
        assert!(completed.contains("compare") && !completed.contains("receive"), "{shell}");
    }
}

#[test]
fn what_can_be_run_is_listed() {
    let (out, _) = text(&lab(&["list", "--json"]));
    let json: serde_json::Value = serde_json::from_str(&out).unwrap();
    let names = json["scenarios"].as_array().unwrap().iter().map(|one| &one["name"]);
    assert!(json["version"] == 1 && names.into_iter().any(|name| name == "lossy"), "{out}");
}

#[test]
fn a_failing_simulation_is_made_small_kept_and_replayed() {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("planted.json");
    let planted = r#"{"about": "a planted fault", "options":
        {"seed": 9, "files": 5, "crashes": 2, "cuts": 2, "plant": "crash-loses-file"}}"#;
    std::fs::write(&file, planted).unwrap();
    let (file, keep) = (file.to_str().unwrap(), folder.path().to_str().unwrap());

    let output = lab(&["sim", "--replay", file, "--keep", keep]);
    let (out, err) = text(&output);
    assert_eq!(output.status.code(), Some(1), "{out}\n{err}");
    assert!(out.contains("BROKEN a planted rule") && out.contains("sequenceDiagram"), "{out}");

    let small = folder.path().join("sim-failure-9.json");
    let small = small.to_str().unwrap();
    assert!(out.contains(&format!("kept: shoal-lab sim --replay {small}")), "{out}");
    let kept = std::fs::read_to_string(small).unwrap();
    assert!(
        kept.contains(r#""cuts": 0"#) && kept.contains(r#""broke": "a planted rule""#),
        "{kept}"
    );
    fails(1, &["sim", "--replay", small, "--no-shrink"]);
}

#[test]
fn a_simulation_without_a_fault_is_said_to_be_well_and_a_bad_file_is_refused() {
    let (out, err) = text(&lab(&["sim", "--calm", "--seed", "4"]));
    assert!(out.starts_with("seed 4: ok"), "{out}\n{err}");
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("bad.json");
    std::fs::write(&file, r#"{"options": {"sead": 9}}"#).unwrap();
    assert!(fails(4, &["sim", "--replay", file.to_str().unwrap()]).contains("sead"));
}

#[test]
fn an_attack_writes_its_page_and_its_figures() {
    let folder = tempfile::tempdir().unwrap();
    let out = folder.path().to_str().unwrap();
    let output = lab(&["attack", "none", "--quick", "--quiet", "--out", out]);
    let (text, err) = text(&output);
    assert_eq!(output.status.code(), Some(0), "{text}\n{err}");
    assert!(text.contains("all programs, 10 s") && text.contains("holds  none"), "{text}");
    let page = std::fs::read_to_string(folder.path().join("report.html")).unwrap();
    assert!(page.contains("Scenario: none") && page.contains("<svg"));
    let json = std::fs::read_to_string(folder.path().join("report.json")).unwrap();
    assert!(json.contains("\"scenario\":\"none\""), "{json}");
    let err = fails(4, &["attack", "--quiet", "--out", out, "--capture", "/nowhere.toml"]);
    assert!(err.contains("/nowhere.toml"), "{err}");
}

/// Command lines of the page about the lab. With `--help` the program stops at a wrong option, and
/// runs nothing.
#[test]
fn the_page_of_the_lab_calls_the_program_rightly() {
    let page = std::fs::read_to_string("../../docs/guide/lab.md").unwrap();
    let lines: Vec<&str> = page.lines().filter(|line| line.starts_with("shoal-lab ")).collect();
    assert!(lines.len() > 10, "{lines:?}");
    for line in lines {
        let words: Vec<&str> = line.split('#').next().unwrap().split_whitespace().collect();
        let output = lab(&[&words[1..], &["--help"]].concat());
        assert!(output.status.success(), "{line}\n{}", text(&output).1);
        let scenario = words.get(2).filter(|name| words[1] == "run" && !name.ends_with(".toml"));
        let exists =
            |name: &&str| std::path::Path::new(&format!("../../scenarios/{name}.toml")).exists();
        assert!(scenario.is_none_or(exists), "{line}");
    }
    assert!(!lab(&["run", "ipv6", "--often", "--help"]).status.success());
}
