//! `shoal run`: be a node.

use anyhow::Result;
use shoal_daemon::config::Experiment;
use shoal_daemon::control::log::{FLUSH_MAX, Log, LogQueue};
use tracing_subscriber::filter::LevelFilter;
use tracing_subscriber::prelude::*;
use tracing_subscriber::{Layer, fmt, reload};

use crate::check;
use crate::failure::{self, Failure};
use crate::options::Common;
use crate::output;

/// Runs until SIGTERM or Ctrl-C.
pub fn run(common: &Common, experiment: Experiment) -> Result<()> {
    let mut setup = check::load(&check::needed_config(common)?)?;
    if let Some(socket) = &common.socket {
        setup.config.node.control_socket = std::path::absolute(socket)?;
    }
    let log = log(setup.config.log.level.as_str());
    setup.experiment = experiment;
    ended(&log, shoal_daemon::run::run(setup, log.clone()))
}

/// Says by the log why a process ended, and waits a while until that is written: a process that
/// nobody reads must end, too.
pub fn ended(log: &Log, result: Result<()>) -> Result<()> {
    let result = result.map_err(|error| {
        let text = format!("{error:#}");
        log.queue.push(format!("shoal: {}\n", output::message(&text)).as_bytes());
        Failure::said(failure::FAILED, text)
    });
    log.queue.flush(FLUSH_MAX);
    result
}

/// Prints what is logged from `level` on, for journald and terminals alike: lines on standard
/// error; the journal has its own clock. Lines go through a queue, so that no thread that logs
/// waits for whoever reads them; its thread is started by the node.
pub fn log(level: &str) -> Log {
    let queue = LogQueue::default();
    let (filter, handle) = reload::Layer::new(level_filter(level));
    let sinks = queue.clone();
    let lines = fmt::layer().with_writer(move || sinks.sink()).with_target(false);
    let journal = std::env::var_os("JOURNAL_STREAM").is_some();
    let lines = if journal {
        lines.with_ansi(false).without_time().boxed()
    } else {
        lines.with_ansi(std::io::IsTerminal::is_terminal(&std::io::stderr())).boxed()
    };
    tracing_subscriber::registry().with(lines.with_filter(filter)).init();
    log_panics(&queue);
    Log::new(queue, move |level: &str| {
        let _ = handle.modify(|filter| *filter = level_filter(level));
    })
}

/// Has a panic's words go through the queue: the thread that panics must end, so that others see
/// that it did.
fn log_panics(queue: &LogQueue) {
    let queue = queue.clone();
    std::panic::set_hook(Box::new(move |panic| {
        let trace = std::backtrace::Backtrace::capture();
        let trace = match trace.status() {
            std::backtrace::BacktraceStatus::Captured => format!("{trace}\n"),
            _ => String::new(),
        };
        let thread = std::thread::current();
        let name = thread.name().unwrap_or("without a name").to_owned();
        queue.push(format!("shoal: the thread {name} ended: {panic}\n{trace}").as_bytes());
        if name == "main" {
            queue.flush(FLUSH_MAX);
        }
    }));
}

fn level_filter(level: &str) -> LevelFilter {
    level.parse().unwrap_or(LevelFilter::INFO)
}
