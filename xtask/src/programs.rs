//! Test programs: their build, and parallel runs of them.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Instant;

use anyhow::{Context, Result};
use serde::Deserialize;

/// A message of cargo about one program.
#[derive(Deserialize)]
struct CargoMessage {
    reason: String,
    manifest_path: Option<PathBuf>,
    executable: Option<PathBuf>,
    profile: Option<CargoProfile>,
}

#[derive(Deserialize)]
struct CargoProfile {
    test: bool,
}

/// Test programs by file name, with the path of the program and the folder of its crate.
pub type TestPrograms = BTreeMap<String, (PathBuf, PathBuf)>;

/// File name of a path, as text.
pub fn file_name(path: &Path) -> String {
    path.file_name().unwrap_or_default().to_string_lossy().into_owned()
}

/// Builds the tests that a `cargo test` command would run.
pub fn build(mut command: Command) -> Result<TestPrograms> {
    command.args(["--no-run", "--message-format=json-render-diagnostics"]);
    let output = command.stderr(Stdio::inherit()).output().context("cargo test")?;
    let mut programs = TestPrograms::new();
    for line in String::from_utf8_lossy(&output.stdout).lines() {
        let Ok(message) = serde_json::from_str::<CargoMessage>(line) else {
            println!("{line}");
            continue;
        };
        let is_test = message.profile.is_some_and(|profile| profile.test);
        let (Some(executable), Some(manifest)) = (message.executable, message.manifest_path) else {
            continue;
        };
        if message.reason == "compiler-artifact" && is_test {
            let folder = manifest.parent().unwrap_or(Path::new(".")).to_owned();
            programs.insert(file_name(&executable), (executable, folder));
        }
    }
    anyhow::ensure!(output.status.success(), "the tests can't be built");
    Ok(programs)
}

/// Runs the programs, one per processor at a time. One long test then leaves no processor idle.
///
/// # Errors
/// If a program can't be started or fails; its output is printed.
pub fn run(programs: TestPrograms, variables: &[(&str, &str)]) -> Result<()> {
    let processors = std::thread::available_parallelism().map_or(1, std::num::NonZero::get);
    let programs: Vec<_> = programs.into_iter().collect();
    let next = AtomicUsize::new(0);
    let work = || {
        let mut failed = Vec::new();
        while let Some((name, place)) = programs.get(next.fetch_add(1, Ordering::Relaxed)) {
            if !is_passed(name, place, variables) {
                failed.push(name.as_str());
            }
        }
        failed
    };
    let failed: Vec<&str> = std::thread::scope(|scope| {
        let threads: Vec<_> = (0..processors).map(|_| scope.spawn(work)).collect();
        threads.into_iter().flat_map(|thread| thread.join().unwrap_or(vec!["a thread"])).collect()
    });
    anyhow::ensure!(failed.is_empty(), "tests failed: {}", failed.join(", "));
    Ok(())
}

/// Runs one program and prints its result, or all of its output if it fails.
fn is_passed(
    name: &str,
    (program, folder): &(PathBuf, PathBuf),
    variables: &[(&str, &str)],
) -> bool {
    let began = Instant::now();
    let mut command = Command::new(program);
    command.arg("--quiet").current_dir(folder).env("CARGO_MANIFEST_DIR", folder);
    let output = command.envs(variables.iter().copied()).stdin(Stdio::null()).output();
    let is_passed = output.as_ref().is_ok_and(|output| output.status.success());
    let said = match output {
        Ok(output) if is_passed => {
            let text = String::from_utf8_lossy(&output.stdout).into_owned();
            text.lines().rfind(|line| line.starts_with("test result: ")).unwrap_or("").to_owned()
        }
        Ok(output) => {
            let [out, err] = [&output.stdout, &output.stderr].map(|o| String::from_utf8_lossy(o));
            format!("{out}{err}")
        }
        Err(error) => format!("the program can't be started: {error}"),
    };
    println!("[{:3} s] {} {name}: {said}", began.elapsed().as_secs(), file_name(folder));
    is_passed
}
