//! `shoal run`: runs a node.

use anyhow::Result;
use shoal_daemon::config::Experiment;
use shoal_daemon::control::log::{FLUSH_MAX, LogQueue, NodeLog};
use tracing_subscriber::filter::LevelFilter;
use tracing_subscriber::prelude::*;
use tracing_subscriber::{Layer, fmt, reload};

use crate::check;
use crate::failure::{self, ExitError};
use crate::options::CommonOptions;
use crate::output;

/// Runs until SIGTERM or Ctrl-C.
pub fn run(common: &CommonOptions, experiment: Experiment) -> Result<()> {
    let mut setup = check::load(&check::needed_config(common)?)?;
    if let Some(socket) = &common.socket {
        setup.config.node.control_socket = std::path::absolute(socket)?;
    }
    let log = log(setup.config.log.level.as_str());
    setup.experiment = experiment;
    ended(&log, shoal_daemon::run::run(setup, log.clone()))
}

/// Logs why a process ended, and waits at most [`FLUSH_MAX`] until that is written: a process must
/// end even if nobody reads its log.
pub fn ended(log: &NodeLog, result: Result<()>) -> Result<()> {
    let result = result.map_err(|error| {
        let text = format!("{error:#}");
        log.queue.push(format!("shoal: {}\n", output::message(&text)).as_bytes());
        ExitError::said(failure::FAILED, text)
    });
    log.queue.flush(FLUSH_MAX);
    result
}

/// Prints log lines from `level` on to standard error. Lines for the journal have no time, since it
/// has its own clock. Lines go through a queue, so that no thread that logs waits for a reader. The
/// node starts the queue's thread.
pub fn log(level: &str) -> NodeLog {
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
    NodeLog::new(queue, move |level: &str| {
        let _ = handle.modify(|filter| *filter = level_filter(level));
    })
}

/// Sends the message of a panic through the queue: the thread that panics must end, so that other
/// threads notice it.
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
