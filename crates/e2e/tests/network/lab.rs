//! `shoal-lab run`: a small scenario from the file to the report. Nothing is left after any end.
//! Needs root; a skipped test says so, and fails if SHOAL_REQUIRE_NETNS is set.

use std::path::Path;
use std::process::{Child, Command, Output, Stdio};
use std::time::{Duration, Instant};

use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use shoal_lab::record::ScenarioReport;

/// Delay and a measured queue on one link, a file, TCP beside it, and a loss that comes and goes.
const SMALL: &str = r#"
title = "Small"
about = "Everything a little"
topology = "chain"
needs_idle = false
[links]
rate = "50mbit"
[[link]]
between = ["r1", "r2"]
delay_ms = 2
jitter_ms = 0.5
[[flow]]
name = "file"
from = "h1"
to = "h2"
size_mb = 8
[[flow]]
name = "tcp"
kind = "tcp"
from = "h1"
to = "h2"
seconds = 2.5
[[event]]
do = "loss"
link = ["r1", "r2"]
loss = 0.1
at_s = 0.3
[[event]]
do = "loss"
link = ["r1", "r2"]
loss = 0.0
at_s = 0.6
[[hold]]
figure = "share"
at_least = 0.05
[[hold]]
figure = "queue_max_ms"
at_most = 25
"#;

fn lab(folder: &Path, words: &[&str], mark: &str) -> Command {
    let mut command = Command::new(shoal_e2e::lab_program());
    command.args(words).current_dir(folder).env("SHOAL_LAB_TEST", mark);
    command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped());
    command
}

fn text(output: &Output) -> String {
    let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
    text(&output.stdout) + &text(&output.stderr)
}

/// Number of processes with `mark` in their environment: all of one run, however they were started.
fn marked(mark: &str) -> usize {
    let wanted = format!("SHOAL_LAB_TEST={mark}");
    let all = std::fs::read_dir("/proc").unwrap().flatten();
    let environments = all.filter_map(|e| std::fs::read(e.path().join("environ")).ok());
    environments.filter(|e| e.split(|b| *b == 0).any(|v| v == wanted.as_bytes())).count()
}

fn until(what: &str, done: impl Fn() -> bool) {
    let start = Instant::now();
    while !done() {
        assert!(start.elapsed() < Duration::from_secs(30), "waited for {what} in vain");
        std::thread::sleep(Duration::from_millis(20));
    }
}

#[test]
fn a_scenario_leaves_a_report_and_its_exit_code_says_what_held() {
    if !shoal_e2e::namespaces() {
        return;
    }
    let folder = tempfile::tempdir().unwrap();
    std::fs::write(folder.path().join("small.toml"), SMALL).unwrap();
    let output = lab(folder.path(), &["run", "small.toml"], "report").output().unwrap();
    assert!(output.status.success(), "{}", text(&output));
    let place = folder.path().join("lab-reports/small");
    let json = std::fs::read_to_string(place.join("report.json")).unwrap();
    let report: ScenarioReport = serde_json::from_str(&json).unwrap();
    let figure = |name: &str| report.cases[0].figures.iter().find(|f| f.name == name);
    for name in ["share", "rate_mbit", "tcp_mbit", "queue_ms", "gap_ms"] {
        assert!(figure(name).is_some(), "{name}: {json}");
    }
    let run = &report.cases[0].runs[0];
    assert_eq!(run.events.len(), 2);
    assert!(run.curves.iter().any(|c| c.plot == "queue" && c.values.iter().any(|v| *v > 0.5)));
    assert!(report.links.contains("emulator") || report.links.contains("netem"));
    let page = std::fs::read_to_string(place.join("report.html")).unwrap();
    assert!(page.contains("loss 10%: r1 - r2"));

    let again = lab(folder.path(), &["compare", "lab-reports/small", "lab-reports/small"], "c");
    let output = { again }.output().unwrap();
    assert!(output.status.success(), "{}", text(&output));
    assert!(folder.path().join("compare.html").exists());

    let wrong = SMALL.replace("at_least = 0.05", "at_least = 5");
    std::fs::write(folder.path().join("wrong.toml"), wrong).unwrap();
    let output = lab(folder.path(), &["run", "wrong.toml"], "wrong").output().unwrap();
    assert_eq!(output.status.code(), Some(1), "{}", text(&output));
    assert!(text(&output).contains("FAILS"), "{}", text(&output));
    assert_eq!(marked("report") + marked("wrong"), 0, "processes are left");
}

fn start(folder: &Path, mark: &str) -> Child {
    let long = SMALL.replace("size_mb = 8", "size_mb = 400");
    std::fs::write(folder.join("long.toml"), long).unwrap();
    let child = lab(folder, &["run", "long.toml"], mark).spawn().unwrap();
    // The program itself, four nodes, one sender and one receiver.
    until("nodes and commands", || marked(mark) >= 7);
    child
}

#[test]
fn nothing_is_left_after_ctrl_c_and_after_a_crash_beside_another_run() {
    if !shoal_e2e::namespaces() {
        return;
    }
    let folder = tempfile::tempdir().unwrap();
    let pid = std::process::id();
    let marks = ["stays", "crash", "stop"].map(|m| format!("{m}-{pid}"));
    let mut stays = start(folder.path(), &marks[0]);
    let mut crash = start(folder.path(), &marks[1]);
    crash.kill().unwrap();
    crash.wait().unwrap();
    until("the crashed run's processes to end", || marked(&marks[1]) == 0);
    let mut stop = start(folder.path(), &marks[2]);
    kill(Pid::from_raw(stop.id().cast_signed()), Signal::SIGINT).unwrap();
    assert!(!stop.wait().unwrap().success());
    until("the stopped run's processes to end", || marked(&marks[2]) == 0);
    // The first run was not disturbed.
    assert!(stays.try_wait().unwrap().is_none() && marked(&marks[0]) >= 7);
    stays.kill().unwrap();
    stays.wait().unwrap();
    until("the last run's processes to end", || marked(&marks[0]) == 0);
}

#[test]
fn one_case_of_a_scenario_of_programs_runs_alone() {
    if !shoal_e2e::tun_possible() {
        return;
    }
    let text_of = shoal_lab::scenario::library::find("ip-chain").unwrap();
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("ip-chain.toml");
    std::fs::write(&file, text_of.replacen("title", "duration_s = 0.2\ntitle", 1)).unwrap();
    let words = ["run", "ip-chain.toml", "--case", "ping", "--repeat", "1", "--quiet"];
    let output = lab(folder.path(), &words, "one-case").output().unwrap();
    let json = std::fs::read_to_string(folder.path().join("lab-reports/ip-chain/report.json"));
    let json = json.unwrap_or_else(|e| panic!("{e}: {}", text(&output)));
    let report: ScenarioReport = serde_json::from_str(&json).unwrap();
    let names: Vec<&str> = report.cases.iter().map(|case| case.name.as_str()).collect();
    assert_eq!(names, ["ping"]);
    assert!(report.holds.iter().all(|hold| hold.holds), "{:?}", report.holds);
}

/// Runs a shipped scenario with changes. Returns its report.
fn shipped(name: &str, changes: &[(&str, &str)]) -> ScenarioReport {
    let folder = tempfile::tempdir().unwrap();
    let mut scenario = shoal_lab::scenario::library::find(name).unwrap().to_owned();
    for (from, to) in changes {
        assert!(scenario.contains(from), "{from}");
        scenario = scenario.replace(from, to);
    }
    let file = folder.path().join("short.toml");
    std::fs::write(&file, scenario.replacen("title", "needs_idle = false\ntitle", 1)).unwrap();
    let output = lab(folder.path(), &["run", "short.toml", "--quiet"], name).output().unwrap();
    let json = std::fs::read_to_string(folder.path().join("lab-reports/short/report.json"));
    let json = json.unwrap_or_else(|e| panic!("{e}: {}", text(&output)));
    serde_json::from_str(&json).unwrap()
}

#[test]
fn hosts_behind_real_translators_meet_or_say_why_not() {
    meet_or_say_why_not("nat", "");
}

/// Datagrams from outside of sessions arrive at the sockets of any worker.
#[test]
fn hosts_of_several_workers_meet_behind_translators_too() {
    meet_or_say_why_not("nat-workers", "node_config = \"[data]\\nworkers = 3\"\n");
}

fn meet_or_say_why_not(mark: &str, config: &str) {
    if !shoal_e2e::namespaces() {
        return;
    }
    let pairs = "[[cell]]\nhosts = [\"easy\", \"twice\"]\n\
                 [[cell]]\nhosts = [\"hard\", \"hard\"]\ndirect = false\n";
    let whole = shoal_lab::scenario::library::find("nat-matrix").unwrap();
    let (head, _) = whole.split_once("[[cell]]").unwrap();
    let folder = tempfile::tempdir().unwrap();
    let head = head.replacen("needs_idle", &format!("{config}needs_idle"), 1);
    std::fs::write(folder.path().join("nat.toml"), format!("{head}{pairs}")).unwrap();
    let words = ["run", "nat.toml", "--repeat", "1", "--quiet"];
    let output = lab(folder.path(), &words, mark).output().unwrap();
    let json = std::fs::read_to_string(folder.path().join("lab-reports/nat/report.json"));
    let json = json.unwrap_or_else(|e| panic!("{e}: {}", text(&output)));
    let report: ScenarioReport = serde_json::from_str(&json).unwrap();
    let share = |name: &str| {
        let case = report.cases.iter().find(|case| case.name == name).expect(name);
        let figure = case.figures.iter().find(|f| f.name == "direct_share");
        (figure.map(|figure| figure.value), case.runs[0].events.clone())
    };
    let (direct, why) = share("easy - twice");
    assert_eq!(direct, Some(1.0), "{why:?}");
    let (direct, why) = share("hard - hard");
    assert_eq!(direct, Some(0.0));
    assert!(why[0].text.starts_with("both translators show a new endpoint"), "{why:?}");
    assert_eq!(marked(mark), 0, "processes are left");
}

#[test]
fn the_wires_of_a_circuit_show_nothing() {
    if !shoal_e2e::tun_possible() {
        return;
    }
    let times = [("duration_s = 5", "duration_s = 3"), ("observe_s = 3", "observe_s = 2")];
    let fewer = [("seconds = 4", "seconds = 2.5"), ("at_least = 4000", "at_least = 500")];
    let report = shipped("onion-observe", &[times, fewer].concat());
    assert!(report.holds.iter().all(|hold| hold.holds), "{:?}", report.holds);
}

#[test]
fn changes_of_circuits_keep_the_order_unless_an_experiment_forbids_it() {
    if !shoal_e2e::tun_possible() {
        return;
    }
    let report = shipped(
        "onion-rotate",
        &[("seconds = 130", "seconds = 8"), ("size_mb = 140", "size_mb = 7")],
    );
    // A run fails if its file is lost or damaged, and then has none of its figures.
    let arrived = |case: &shoal_lab::record::CaseRecord| {
        case.figures.iter().any(|figure| figure.name == "rate_mbit" && figure.value > 0.0)
    };
    assert!(report.cases.iter().all(arrived), "the file is lost or damaged");
    let value = |case: usize, name: &str| {
        let mut figures = report.cases[case].figures.iter();
        figures.find(|figure| figure.name == name).unwrap().value
    };
    let [kept, any] = [0, 1].map(|case| value(case, "udp_disordered"));
    assert!(value(0, "rotations") > 2.0 && value(1, "rotations") > 2.0);
    // A machine that stalls for longer than packets are held lets some pass late.
    // Three changes of circuits disorder two packets or more.
    assert!(any > 2.0 * kept.max(0.5), "{kept} in order, {any} in any");
}

#[test]
fn mistakes_are_named_before_anything_starts() {
    let folder = tempfile::tempdir().unwrap();
    let wrong = SMALL.replace("size_mb = 8", "size_bm = 8");
    std::fs::write(folder.path().join("wrong.toml"), wrong).unwrap();
    let output = lab(folder.path(), &["run", "wrong.toml"], "mistake").output().unwrap();
    assert_eq!(output.status.code(), Some(4));
    assert!(text(&output).contains("wrong.toml:16: flow.size_bm: unknown field"), "{output:?}");
    let output = lab(folder.path(), &["run", "no-such"], "mistake").output().unwrap();
    assert_eq!(output.status.code(), Some(4));
    // If no report can be written, nothing is run. A failed run leaves no folder.
    let words = ["run", "lossy", "--out", "wrong.toml"];
    let output = lab(folder.path(), &words, "mistake").output().unwrap();
    let said = text(&output);
    assert!(!output.status.success() && said.contains("wrong.toml: File exists"), "{said}");
    assert!(!said.contains("lossy: all"), "{said}");
    let words = ["run", "lossy", "--case", "no-such"];
    assert!(!lab(folder.path(), &words, "mistake").status().unwrap().success());
    assert!(!folder.path().join("lab-reports/lossy").exists());
    let output = lab(folder.path(), &["list"], "mistake").output().unwrap();
    assert!(text(&output).contains("dynamic-routing") && output.status.success());
    for (scenario, case) in [
        ("ip-packet-size", "UDP, 1326 bytes"),
        ("ip-security", "authenticate"),
        ("ip-chain", "wget"),
    ] {
        let words = ["run", scenario, "--case", "no-such"];
        let output = lab(folder.path(), &words, "mistake").output().unwrap();
        let said = text(&output);
        assert!(
            !output.status.success() && said.contains("its cases: ") && said.contains(case),
            "{said}"
        );
    }
}
