//! Progress of the demo: one overwritten line on a terminal, plain lines elsewhere.

use std::io::{IsTerminal, Write, stderr};
use std::time::{Duration, Instant};

use super::report::size;

/// Interval of progress output on a terminal, and elsewhere.
const TERMINAL_STEP: Duration = Duration::from_millis(100);
const PLAIN_STEP: Duration = Duration::from_secs(2);
/// Width of the bar in characters.
const BAR: u64 = 30;

/// Progress output on standard error; standard output is for the report.
#[derive(Debug)]
pub struct ProgressOutput {
    quiet: bool,
    terminal: bool,
    line_open: bool,
    last: Option<Instant>,
}

impl ProgressOutput {
    /// A quiet screen prints nothing.
    pub fn new(quiet: bool) -> ProgressOutput {
        ProgressOutput { quiet, terminal: stderr().is_terminal(), line_open: false, last: None }
    }

    /// Prints a permanent line.
    pub fn say(&mut self, text: &str) {
        if self.quiet {
            return;
        }
        let clear = if self.line_open { "\r\x1b[K" } else { "" };
        self.line_open = false;
        self.write(&format!("{clear}{text}\n"));
    }

    /// Shows the progress of the file, at limited intervals.
    pub fn progress(&mut self, done: u64, total: u64, rate: f64) {
        let step = if self.terminal { TERMINAL_STEP } else { PLAIN_STEP };
        if self.quiet || done == 0 || self.last.is_some_and(|t| t.elapsed() < step) {
            return;
        }
        self.last = Some(Instant::now());
        let percent = done * 100 / total.max(1);
        let left = if rate > 0.0 { (total - done.min(total)) as f64 / rate } else { 0.0 };
        let text = format!("{percent:>3}% at {}/s, {left:.0} s left", size(rate as u64));
        if self.terminal {
            let full = (done * BAR / total.max(1)).min(BAR) as usize;
            let bar = format!("{}{}", "#".repeat(full), "-".repeat(BAR as usize - full));
            self.line_open = true;
            self.write(&format!("\r\x1b[K[{bar}] {text}"));
        } else {
            self.write(&format!("{text}\n"));
        }
    }

    /// Ends the overwritten line.
    pub fn end(&mut self) {
        if std::mem::take(&mut self.line_open) {
            self.write("\n");
        }
    }

    fn write(&self, text: &str) {
        // An error, such as a closed terminal, is no reason to stop.
        let _ = stderr().write_all(text.as_bytes());
    }
}
