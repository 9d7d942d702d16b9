//! `shoal sim`: a failing run is printed with its end drawn, made small, kept, and replayed.

#![allow(clippy::disallowed_methods, reason = "reads what the program wrote")]

mod common;

use common::{shoal, text};

#[test]
fn a_failing_run_is_made_small_kept_and_replayed() {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("planted.json");
    let planted = r#"{"about": "a planted fault", "options":
        {"seed": 9, "files": 5, "crashes": 2, "cuts": 2, "plant": "crash-loses-file"}}"#;
    std::fs::write(&file, planted).unwrap();
    let (file, keep) = (file.to_str().unwrap(), folder.path().to_str().unwrap());

    let output = shoal(&["sim", "--replay", file, "--keep", keep]).output().unwrap();
    let (out, err) = text(&output);
    assert_eq!(output.status.code(), Some(1), "{out}\n{err}");
    assert!(out.contains("BROKEN a planted rule") && out.contains("sequenceDiagram"), "{out}");

    let small = folder.path().join("sim-failure-9.json");
    let kept = std::fs::read_to_string(&small).unwrap();
    assert!(
        kept.contains(r#""cuts": 0"#) && kept.contains(r#""broke": "a planted rule""#),
        "{kept}"
    );
    let again = shoal(&["sim", "--replay", small.to_str().unwrap(), "--no-shrink"]).output();
    assert_eq!(again.unwrap().status.code(), Some(1));
}

#[test]
fn a_run_without_a_fault_is_said_to_be_well_and_a_bad_file_is_refused() {
    let (out, err) = text(&shoal(&["sim", "--calm", "--seed", "4"]).output().unwrap());
    assert!(out.starts_with("seed 4: ok"), "{out}\n{err}");
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("bad.json");
    std::fs::write(&file, r#"{"options": {"sead": 9}}"#).unwrap();
    let output = shoal(&["sim", "--replay", file.to_str().unwrap()]).output().unwrap();
    assert_eq!(output.status.code(), Some(4));
    assert!(text(&output).1.contains("sead"));
}
