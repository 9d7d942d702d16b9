//! `shoal run`: be a node.

use anyhow::Result;
use shoal_daemon::config::Experiment;
use tracing_subscriber::filter::LevelFilter;
use tracing_subscriber::prelude::*;
use tracing_subscriber::{Layer, fmt, reload};

use crate::check;
use crate::failure::{self, Failure};
use crate::options::Common;

/// Runs until SIGTERM or Ctrl-C.
pub fn run(common: &Common, experiment: Experiment) -> Result<()> {
    let mut setup = check::load(&check::needed_config(common)?)?;
    if let Some(socket) = &common.socket {
        setup.config.node.control_socket = std::path::absolute(socket)?;
    }
    let set_level = log(setup.config.log.level.as_str());
    setup.experiment = experiment;
    shoal_daemon::run::run(setup, set_level)
        .map_err(|e| Failure::of(failure::FAILED, format!("{e:#}")))
}

/// Prints what is logged from `level` on, for journald and terminals alike: lines on standard
/// error; the journal has its own clock. Returns what sets another level.
pub fn log(level: &str) -> Box<dyn Fn(&str) + Send> {
    let (filter, handle) = reload::Layer::new(level_filter(level));
    let lines = fmt::layer().with_writer(std::io::stderr).with_target(false);
    let journal = std::env::var_os("JOURNAL_STREAM").is_some();
    let lines = if journal {
        lines.with_ansi(false).without_time().boxed()
    } else {
        lines.with_ansi(std::io::IsTerminal::is_terminal(&std::io::stderr())).boxed()
    };
    tracing_subscriber::registry().with(lines.with_filter(filter)).init();
    Box::new(move |level: &str| {
        let _ = handle.modify(|filter| *filter = level_filter(level));
    })
}

fn level_filter(level: &str) -> LevelFilter {
    level.parse().unwrap_or(LevelFilter::INFO)
}
