//! Tests in two runs. The README's command runs with the search path of a bare machine. Each test
//! that it skips runs in parallel with all tools.

use std::io::{BufRead, BufReader, Write};
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::sync::mpsc;
use std::thread::JoinHandle;

use anyhow::{Context, Result};

use super::tools::{BareMachine, search_path};
use super::{BUILD, cargo_command};
use crate::programs::{self, TestPrograms, file_name};

/// Tools that must be reported missing, as a test of the bare machine.
const MISSED: &[&str] = &["nft", "ping", "systemd-analyze"];
/// Variables that make a skipped test fail.
const REQUIRED: &[&str] = &[
    "SHOAL_REQUIRE_BROWSER",
    "SHOAL_REQUIRE_CC",
    "SHOAL_REQUIRE_DNSMASQ",
    "SHOAL_REQUIRE_PORTMAP",
    "SHOAL_REQUIRE_STUN",
    "SHOAL_REQUIRE_SYSTEMD",
];
/// Variable for tests that only root can run.
const REQUIRED_OF_ROOT: &str = "SHOAL_REQUIRE_NETNS";
/// Number of parallel tests of one program, with all tools. They mostly wait.
const THREADS: &str = "4";
/// Beginnings of the names of programs whose tests measure rates: one test at a time, before
/// everything else.
const RATES: &[&str] = &["rates-", "shoal_lab-"];

/// Builds all tests.
pub fn build() -> Result<TestPrograms> {
    programs::build(cargo_command(&["test", "--workspace", "--locked"]))
}

/// Tests that a program skipped.
struct SkippedTests {
    program: String,
    tests: Vec<String>,
}

/// The two parallel runs of tests.
pub struct ParallelTests {
    newcomer: Child,
    reader: JoinHandle<Result<NewcomerOutput>>,
    with_tools: JoinHandle<Result<Vec<String>>>,
}

/// The newcomer's messages that are checked, or repeated at the end.
#[derive(Default)]
struct NewcomerOutput {
    skips: String,
    failures: Failures,
}

/// Lines of failed tests, from the output of test programs.
#[derive(Default)]
struct Failures {
    lines: Vec<String>,
    inside: bool,
}

/// Number of kept lines of one run.
const FAILURE_LINES: usize = 200;

impl Failures {
    /// Keeps a line that belongs to a failure: the section between `failures:` and the result.
    fn take(&mut self, line: &str) {
        self.inside |= line == "failures:";
        self.inside &= !line.starts_with("     Running ");
        let wanted = self.inside || line.contains("... FAILED");
        if wanted && self.lines.len() < FAILURE_LINES {
            self.lines.push(line.to_owned());
        }
        self.inside &= !line.starts_with("test result: ");
    }
}

/// Starts the README's test command on the bare machine, and a thread that runs the tests that it
/// skips.
pub fn start(bare: &BareMachine, programs: TestPrograms, root: bool) -> Result<ParallelTests> {
    let (reader, writer) = std::io::pipe().context("a pipe")?;
    let mut command = Command::new("nice");
    command.args(["-n", "10", "cargo", "test", "--workspace", "--locked", "--no-fail-fast"]);
    command.envs(BUILD.iter().copied()).env("PATH", bare.programs());
    for name in REQUIRED.iter().chain([&REQUIRED_OF_ROOT]) {
        command.env_remove(name);
    }
    command.stdin(Stdio::null()).stdout(writer.try_clone()?).stderr(writer);
    let newcomer = command.spawn().context("starting cargo test")?;
    // Only the child may have the writing end of the pipe, so that the reader sees its end.
    drop(command);
    let (skipped, waiting) = mpsc::channel();
    let reader = std::thread::spawn(move || read(BufReader::new(reader), &skipped));
    let with_tools = std::thread::spawn(move || run_skipped(&programs, &waiting, root));
    Ok(ParallelTests { newcomer, reader, with_tools })
}

/// Reads and prints the output. Hands on the skipped tests of each program as soon as it ends.
fn read(output: impl BufRead, skipped: &mpsc::Sender<SkippedTests>) -> Result<NewcomerOutput> {
    let mut said = NewcomerOutput::default();
    let mut current = SkippedTests { program: String::new(), tests: Vec::new() };
    let hand_on = |current: &mut SkippedTests, program: String| {
        let done = std::mem::replace(current, SkippedTests { program, tests: Vec::new() });
        if !done.tests.is_empty() {
            // The receiver is gone only if a test with tools failed, which is reported at the end.
            let _unheard = skipped.send(done);
        }
    };
    for line in output.split(b'\n') {
        let line = String::from_utf8_lossy(&line?).into_owned();
        if let Some(program) = started(&line) {
            hand_on(&mut current, program);
        }
        if let Some(test) = line.strip_prefix("SKIPPED ").and_then(|rest| rest.split(": ").next()) {
            // A test with several requirements can print several lines.
            if !current.tests.iter().any(|known| known == test) {
                current.tests.push(test.to_owned());
            }
            said.skips.push_str(&line);
        }
        said.failures.take(&line);
        println!("{line}");
    }
    hand_on(&mut current, String::new());
    Ok(said)
}

/// The program in cargo's line `Running tests/all/main.rs (target/debug/deps/all-0123)`.
fn started(line: &str) -> Option<String> {
    let (_, path) = line.trim().strip_prefix("Running ")?.split_once(" (")?;
    Some(file_name(Path::new(path.strip_suffix(')')?)))
}

fn run_skipped(
    programs: &TestPrograms,
    waiting: &mpsc::Receiver<SkippedTests>,
    root: bool,
) -> Result<Vec<String>> {
    let mut failures = Failures::default();
    for skipped in waiting {
        let (program, folder) =
            programs.get(&skipped.program).with_context(|| format!("{} ran", skipped.program))?;
        let rates = RATES.iter().any(|name| skipped.program.starts_with(name));
        let mut command = Command::new("nice");
        command.args(["-n", if root && rates { "-10" } else { "0" }]).arg(program);
        command.args(["--test-threads", if rates { "1" } else { THREADS }]);
        // A name without its module is looked for in all modules.
        if skipped.tests.iter().all(|test| test.contains("::")) {
            command.arg("--exact");
        }
        command.args(&skipped.tests).current_dir(folder).env("CARGO_MANIFEST_DIR", folder);
        command.env("PATH", search_path()).envs(REQUIRED.iter().map(|name| (name, "1")));
        if root {
            command.env(REQUIRED_OF_ROOT, "1");
        }
        let output = command.stdin(Stdio::null()).output().context("starting a test")?;
        let mut out = std::io::stdout().lock();
        writeln!(out, "     With tools: {} of {}", skipped.tests.len(), skipped.program)?;
        out.write_all(&output.stdout)?;
        out.write_all(&output.stderr)?;
        let count = ran(&String::from_utf8_lossy(&output.stdout));
        if !output.status.success() || count < skipped.tests.len() {
            let (program, wanted) = (&skipped.program, skipped.tests.len());
            failures.lines.push(format!("{program}, {count} of {wanted} with all tools:"));
            String::from_utf8_lossy(&output.stdout).lines().for_each(|line| failures.take(line));
        }
    }
    Ok(failures.lines)
}

/// The number of tests in a program's line `running 2 tests`.
fn ran(output: &str) -> usize {
    let counts = output.lines().filter_map(|line| line.strip_prefix("running "));
    counts.filter_map(|rest| rest.split(' ').next()?.parse::<usize>().ok()).sum()
}

/// Waits for both runs.
pub fn finish(mut beside: ParallelTests) -> Result<()> {
    let status = beside.newcomer.wait().context("waiting for cargo test")?;
    let said = beside.reader.join().map_err(|_| anyhow::anyhow!("reading output failed"))??;
    let with_tools = beside.with_tools.join().map_err(|_| anyhow::anyhow!("a thread failed"))??;
    // Without this, failures stand far above the end of a long output.
    for line in said.failures.lines.iter().chain(&with_tools) {
        println!("{line}");
    }
    anyhow::ensure!(status.success(), "cargo test failed, as a newcomer has it ({status})");
    for tool in MISSED {
        let found = said.skips.contains(&format!("`{tool}`"));
        anyhow::ensure!(found, "no test missed {tool}: the bare search path is not bare");
    }
    anyhow::ensure!(with_tools.is_empty(), "tests failed with all tools: see the lines above");
    Ok(())
}

#[cfg(test)]
mod units {
    use super::*;

    #[test]
    fn lines_of_failed_tests_are_kept() {
        let output = "running 2 tests\ntest a ... ok\ntest b ... FAILED\n\nfailures:\n\n\
            ---- b stdout ----\nboom\n\ntest result: FAILED. 1 passed; 1 failed\nafter\n";
        let mut failures = Failures::default();
        output.lines().for_each(|line| failures.take(line));
        let kept = failures.lines.join("|");
        assert_eq!(
            kept,
            "test b ... FAILED|failures:||---- b stdout ----|boom||\
             test result: FAILED. 1 passed; 1 failed"
        );
    }

    #[test]
    fn skipped_tests_are_handed_on_by_program() {
        let output = "     Running tests/all/main.rs (target/debug/deps/all-12)\n\
            SKIPPED a::b: needs `nft` (apt-get install nftables)\nSKIPPED c: needs root\n\
            SKIPPED a::b: needs `tc`\n\
            test result: ok\n     Running unittests src/lib.rs (/x/debug/deps/shoal_ip-34)\n\
            SKIPPED d: needs `ping`\n   Doc-tests shoal_ip\n";
        let (sender, receiver) = mpsc::channel();
        let said = read(output.as_bytes(), &sender).unwrap();
        drop(sender);
        assert_eq!(ran("running 2 tests\nok\nrunning 1 test\n"), 3);
        let all: Vec<_> = receiver.iter().map(|s| (s.program, s.tests.join(" "))).collect();
        assert_eq!(all, [("all-12".into(), "a::b c".into()), ("shoal_ip-34".into(), "d".into())]);
        assert!(said.skips.contains("`nft`"));
    }
}
