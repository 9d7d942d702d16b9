//! `cargo xtask ci`: all checks that must pass before a change lands. They take less than half an
//! hour on two processors. The first failure ends the run.
//!
//! Each test runs once. The README's test command runs on a search path without special tools, as
//! on a newcomer's machine. Tests that it skips because a tool is missing run in parallel with all
//! tools, and may not be skipped there.

use std::path::Path;
use std::process::Command;
use std::time::Instant;

use anyhow::{Context, Result};

use crate::tidy;

mod background;
mod tests;
mod tools;

use background::Background;

/// Settings of all builds. No later build reuses incremental results, and nobody reads line numbers
/// in backtraces.
const BUILD: &[(&str, &str)] = &[("CARGO_INCREMENTAL", "0"), ("CARGO_PROFILE_DEV_DEBUG", "false")];
/// Version of cargo-deny, if it must be built.
const DENY_VERSION: &str = "0.20.2";

/// State of the run.
struct CiRun {
    began: Instant,
    /// Checks that this machine can't run.
    skipped: Vec<String>,
}

impl CiRun {
    fn step(&self, name: &str) {
        println!("\n== [{:4} s] {name}", self.began.elapsed().as_secs());
    }

    fn skip(&mut self, what: &str) {
        eprintln!("SKIPPED: {what}");
        self.skipped.push(what.to_owned());
    }
}

/// Runs all steps.
///
/// # Errors
/// If a step fails; its output gives the reason.
pub fn run() -> Result<()> {
    let root = tools::is_root();
    let mut run = CiRun { began: Instant::now(), skipped: Vec::new() };
    run.step("tools of the tests");
    tools::install(root)?;
    if !root {
        run.skip("tests in network namespaces, and shaped links: they need root");
    }
    run.step("cargo fmt");
    cargo(&["fmt", "--all", "--check"])?;
    run.step("cargo xtask tidy");
    tidy::run()?;
    run.step("cargo clippy");
    cargo(&["clippy", "--workspace", "--all-targets", "--locked", "--", "-D", "warnings"])?;
    run.step("cargo test: all tests are built");
    let programs = tests::build()?;
    println!("{} programs of tests", programs.len());
    let bare = tools::BareMachine::new()?;

    run.step(
        "cargo test, as a newcomer has it; beside it the tests that need tools, with all of them",
    );
    let beside = tests::start(&bare, programs, root)?;
    let documents = Background::start("cargo doc", documents())?;
    let deny = Background::start("cargo deny", deny_built())?;
    tests::finish(beside)?;

    run.step("cargo doc");
    documents.finish()?;
    run.step("cargo deny: licences, bans, sources");
    deny.finish()?;
    cargo(&["deny", "--locked", "check", "licenses", "bans", "sources"])?;
    run.step("shoal-lab demo, small");
    tools::demo()?;
    run.step("shoal-lab demo, small, without nft and the like; as an ordinary user too");
    bare.demo(root)?;

    run.step("done");
    run.skipped.iter().for_each(|what| println!("SKIPPED: {what}"));
    Ok(())
}

/// A cargo command with the settings of this run.
fn cargo_command(arguments: &[&str]) -> Command {
    let mut command = Command::new("cargo");
    command.args(arguments).envs(BUILD.iter().copied()).env("PATH", tools::search_path());
    command
}

fn cargo(arguments: &[&str]) -> Result<()> {
    let words = arguments.join(" ");
    let status = cargo_command(arguments).status().context("running cargo")?;
    anyhow::ensure!(status.success(), "cargo {words} failed ({status})");
    Ok(())
}

/// Gives a command the lowest priority, so that it does not slow down tests.
fn idle(command: &Command) -> Command {
    let mut idle = Command::new("nice");
    idle.args(["-n", "19"]).arg(command.get_program()).args(command.get_args());
    for (name, value) in command.get_envs() {
        match value {
            Some(value) => idle.env(name, value),
            None => idle.env_remove(name),
        };
    }
    idle
}

fn documents() -> Command {
    let mut command = cargo_command(&["doc", "--workspace", "--no-deps", "--locked", "--quiet"]);
    command.env("RUSTDOCFLAGS", "-D warnings");
    idle(&command)
}

/// A command that builds cargo-deny if it is missing. The build takes a minute without
/// optimisations; a run takes a second.
fn deny_built() -> Command {
    let path = tools::search_path();
    let there = std::env::split_paths(&path).any(|folder| folder.join("cargo-deny").is_file());
    if there {
        return Command::new("true");
    }
    let folder = tools::kept();
    let root = folder.display().to_string();
    let version = ["--version", DENY_VERSION, "--root", &root];
    let mut command = cargo_command(&["install", "--quiet", "--locked", "cargo-deny"]);
    command.args(version).env("CARGO_TARGET_DIR", folder.join("build"));
    for (name, value) in [("OPT_LEVEL", "0"), ("LTO", "off"), ("CODEGEN_UNITS", "16")] {
        command.env(format!("CARGO_PROFILE_RELEASE_{name}"), value);
    }
    idle(&command)
}

/// Folder of build outputs.
fn target() -> std::path::PathBuf {
    std::env::var_os("CARGO_TARGET_DIR").map_or_else(|| Path::new("target").into(), Into::into)
}
