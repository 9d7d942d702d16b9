//! Error messages for wrong arguments, files and keys, and their exit codes. Each message says what
//! is wrong, where, and what to do.

use std::os::unix::fs::PermissionsExt;
use std::path::Path;

use shoal_e2e::{LoopbackNet, shoal, text};

/// Runs a command that must end with this exit code. Returns standard error.
fn fails(code: i32, words: &[&str]) -> String {
    let output = shoal(words).output().unwrap();
    let (out, err) = text(&output);
    assert_eq!(output.status.code(), Some(code), "{words:?}\n{out}\n{err}");
    err
}

fn replace(file: &Path, from: &str, to: &str) {
    let old = std::fs::read_to_string(file).unwrap();
    assert!(old.contains(from), "{old}");
    std::fs::write(file, old.replacen(from, to, 1)).unwrap();
}

#[test]
fn wrong_arguments_are_usage_errors() {
    for words in [
        &["fly"][..],
        &["send", "only-one"],
        &["receive", "--dir", "."],
        &["ping"],
        &["receive", "--dir", ".", "--from", "any,alice"],
        &["receive", "--dir", ".", "--from", "a", "--overwrite", "--rename"],
        &["receive", "--dir", ".", "--from", "a", "--max-size", "big"],
        &["run"],
        &["check"],
        &["top", "--count", "0"],
        &["attribution", "setup", "--dir", ".", "--name", "a", "--threshold", "4"],
        &["attribution", "setup", "--dir", ".", "--name", "a", "--epoch-hours", "0"],
        &["attribution", "deal", "--dir", ".", "--name", "a", "--index", "4"],
        &["authority", "sign", "--dir", ".", "a", "--endpoint", "0.0.0.0:7400"],
    ] {
        fails(2, words);
    }
}

#[test]
fn a_file_that_never_ends_or_is_no_text_is_refused() {
    let err = fails(4, &["check", "-c", "/dev/zero"]);
    assert!(err.contains("/dev/zero: can't be read: is a device; expected a"), "{err}");
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("node.toml");
    std::fs::write(&file, b"[node]\nname = \"\xe9va\"\n").unwrap();
    let err = fails(4, &["check", "-c", file.to_str().unwrap()]);
    assert!(err.contains("node.toml: can't be read: line 2 is no UTF-8"), "{err}");
    // Control characters of a name don't reach the terminal.
    let err = fails(1, &["send", "a\x1b[2J\nb", "bob"]);
    assert!(err.starts_with("shoal: a\u{fffd}[2J\u{fffd}b: No such file"), "{err:?}");
}

#[test]
fn without_a_node_it_says_how_to_start_one() {
    for words in [&["--socket", "/nonexistent/s"][..], &["peers", "--socket", "/nonexistent/s"]] {
        let err = fails(3, words);
        assert!(
            err.contains("no node answers at /nonexistent/s; start one with `shoal run"),
            "{err}"
        );
    }
    let output = shoal(&["status", "--json", "--socket", "/nonexistent/s"]).output().unwrap();
    let json: serde_json::Value = serde_json::from_slice(&output.stdout).unwrap();
    assert_eq!(json["version"], 1);
    assert_eq!(json["error"]["code"], 3);
}

#[test]
fn wrong_configurations_name_file_line_key_and_expectation() {
    let net = LoopbackNet::new(&["r1", "h1"]);
    let file = net.config("h1");
    let name = file.to_str().unwrap();
    let words = ["check", "-c", name];
    assert!(shoal(&words).output().unwrap().status.success());
    replace(&file, "[node]", "[node]\nlisten_on = 3");
    let err = fails(4, &words);
    assert!(err.contains("node.toml:2: node.listen_on: unknown field"), "{err}");
    assert!(err.contains("expected one of"), "{err}");
    assert!(fails(4, &["run", "-c", name]).contains("node.toml:2: "));
    replace(&file, "listen_on = 3", "");
    replace(&file, "peer = \"r1\"", "peer = \"r7\"");
    let err = fails(4, &words);
    assert!(err.contains("link.peer: \"r7\" is not in") && err.contains("did you mean"), "{err}");
    let err = fails(4, &["check", "-c", "/nonexistent.toml"]);
    assert!(err.contains("/nonexistent.toml: can't be read"), "{err}");
    // Commands that ask a node read the configuration for its socket, and fail in the same way.
    assert!(fails(4, &["peers", "-c", "/nonexistent.toml"]).contains("can't be read"));
}

#[test]
fn keys_that_others_can_read_are_refused_with_the_fix() {
    let net = LoopbackNet::new(&["r1", "h1"]);
    let key = net.dir("h1").join("node.key");
    std::fs::set_permissions(&key, std::fs::Permissions::from_mode(0o644)).unwrap();
    let config = net.config("h1");
    for verb in ["run", "check"] {
        let err = fails(4, &[verb, "-c", config.to_str().unwrap()]);
        assert!(err.contains(&format!("fix: chmod 600 {}", key.display())), "{err}");
    }
    let err = fails(4, &["pubkey", key.to_str().unwrap()]);
    assert!(err.contains("chmod 600"), "{err}");
    std::fs::remove_file(&key).unwrap();
    let err = fails(4, &["check", "-c", config.to_str().unwrap()]);
    assert!(err.contains("no such file; make one with: shoal genkey -o"), "{err}");
}

#[test]
fn keys_go_through_pipes_and_are_never_overwritten() {
    let dir = tempfile::tempdir().unwrap();
    let file = dir.path().join("node.key");
    let name = file.to_str().unwrap();
    assert!(shoal(&["genkey", "-o", name]).output().unwrap().status.success());
    assert_eq!(file.metadata().unwrap().permissions().mode() & 0o777, 0o600);
    assert!(fails(1, &["genkey", "-o", name]).contains("never overwritten"));
    let public = text(&shoal(&["pubkey", name]).output().unwrap()).0;
    assert_eq!(public.trim().len(), 88);
    let mut piped = shoal(&["pubkey"]);
    piped.stdin(std::fs::File::open(&file).unwrap());
    assert_eq!(text(&piped.output().unwrap()).0, public);
    let network = dir.path().join("network.key");
    let network = network.to_str().unwrap();
    assert!(shoal(&["genkey", "--network", "-o", network]).output().unwrap().status.success());
    assert!(fails(4, &["pubkey", network]).contains("is a network's secret"));
}

#[test]
fn files_that_cant_be_sent_are_named_before_anything_starts() {
    let dir = tempfile::tempdir().unwrap();
    let missing = dir.path().join("none");
    let err = fails(1, &["send", missing.to_str().unwrap(), "bob"]);
    assert!(err.contains("none: No such file"), "{err}");
    assert!(fails(1, &["send", "/dev/null", "bob"]).contains("no regular file"));
    let err = fails(1, &["receive", "--dir", missing.to_str().unwrap(), "--from", "any"]);
    assert!(err.contains("no such folder; fix: mkdir -p") && err.contains("--create"), "{err}");
}

#[test]
fn manual_and_completions_are_made() {
    let dir = tempfile::tempdir().unwrap();
    let pages = dir.path().to_str().unwrap();
    assert!(shoal(&["man", "--dir", pages]).output().unwrap().status.success());
    for page in ["shoal.1", "shoal-send.1", "shoal-receive.1", "shoal-run.1"] {
        let text = std::fs::read_to_string(dir.path().join(page)).unwrap();
        assert!(text.contains(".TH"), "{page}");
    }
    assert!(!dir.path().join("shoal-demo.1").exists());
    for shell in ["bash", "zsh", "fish"] {
        let completed = text(&shoal(&["completions", shell]).output().unwrap()).0;
        assert!(completed.contains("receive") && !completed.contains("demo"), "{shell}");
    }
    let help = text(&shoal(&["--help"]).output().unwrap()).0;
    assert!(help.contains("Exit codes") && help.contains("shoal genkey"), "{help}");
    assert!(!help.contains("demo") && !help.contains("Moved"), "{help}");
}

#[test]
fn commands_of_the_lab_say_which_program_has_them_now() {
    for (words, now) in [
        (&["demo"][..], "shoal-lab demo\n"),
        (&["demo", "--size", "50M", "--no-cut"], "shoal-lab demo --size 50M --no-cut\n"),
        (&["demo", "--help"], "shoal-lab demo --help\n"),
        (&["lab"], "shoal-lab\n"),
        (&["lab", "run", "loss-sweep", "--case", "80 ms"], "run loss-sweep --case '80 ms'\n"),
        (&["lab", "bench", "--loss", "0.01"], "shoal-lab bench --loss 0.01\n"),
        (&["bench"], "shoal-lab bench\n"),
        (&["sim", "--seed", "3"], "shoal-lab sim --seed 3\n"),
    ] {
        let err = fails(2, words);
        assert!(err.contains(now), "{words:?}: {err}");
        assert!(err.contains("cargo run --release -p shoal-lab --"), "{words:?}: {err}");
    }
    let output = shoal(&["--json", "demo", "--size", "5M"]).output().unwrap();
    let json: serde_json::Value = serde_json::from_slice(&output.stdout).unwrap();
    let said = json["error"]["message"].as_str().unwrap();
    assert!(said.contains("shoal-lab demo --size 5M --json\n"), "{said}");
    assert_eq!((json["error"]["code"].as_u64(), output.status.code()), (Some(2), Some(2)));
}

/// Wrong arguments of a new network are reported before any file is written. The result is JSON if
/// that was requested.
#[test]
fn a_network_with_a_wrong_argument_leaves_nothing() {
    let folder = tempfile::tempdir().unwrap();
    let at = |name: &str| folder.path().join(name).to_str().unwrap().to_owned();
    let (files, authority) = (at("files"), at("authority"));
    let create = |more: &[&str]| {
        let words = ["network", "create", "home", "--no-start", "--no-interface"];
        let places = ["--endpoint", "127.0.0.1", "--dir", &files, "--authority", &authority];
        text(&shoal(&[&words[..], &places, more].concat()).output().unwrap())
    };
    for wrong in [["--ipv4", "10.9.0.0/31"], ["--ipv4", "fd00::/64"], ["--more-group", "no group!"]]
    {
        let (out, said) = create(&wrong);
        assert!(out.is_empty() && !said.is_empty(), "{wrong:?}: {out}{said}");
        assert_eq!(std::fs::read_dir(folder.path()).unwrap().count(), 0, "{wrong:?}: {said}");
    }
    let (out, said) = create(&["--json"]);
    let made: serde_json::Value = serde_json::from_str(&out).expect(&said);
    assert_eq!(made["network"]["name"], "home", "{out}");
    let commands = made["network"]["start_with"].as_array().unwrap();
    assert_eq!(commands.len(), 2, "{out}");
    assert!(folder.path().join("authority").exists());
}
