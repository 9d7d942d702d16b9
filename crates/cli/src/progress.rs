//! Progress of transfers: bars on a terminal, lines elsewhere, or JSON.

use std::collections::BTreeMap;
use std::io::IsTerminal;
use std::time::{Duration, Instant};

use indicatif::{MultiProgress, ProgressBar, ProgressStyle};
use shoal_daemon::control::api::{ControlEvent, TransferId, TransferProgress};

use crate::output;
use crate::ration::LineLimiter;
use crate::units::{Bytes, counted, per_second, span_s};

/// Hosts with a ration of their own for lines about failures; all others share one.
const RATIONS_MAX: usize = 256;

/// Pause between two lines about one transfer.
const LINE_EVERY: Duration = Duration::from_secs(5);

/// Output about transfers while they run.
pub struct Display {
    how: DisplayMode,
    verbose: bool,
    /// Ration of lines about arrived files.
    ended: LineLimiter,
    /// Rations of lines about failures, by host.
    failures: BTreeMap<String, LineLimiter>,
    shown: BTreeMap<TransferId, DisplayedTransfer>,
}

enum DisplayMode {
    Bars(MultiProgress),
    Lines,
    Json,
    Quiet,
}

struct DisplayedTransfer {
    name: String,
    bar: Option<ProgressBar>,
    last_line: Instant,
}

impl Display {
    /// Shows bars if standard error is a terminal. `verbose` names every file that arrives.
    pub fn new(json: bool, quiet: bool, verbose: bool) -> Display {
        let how = match (json, quiet) {
            (true, _) => DisplayMode::Json,
            (_, true) => DisplayMode::Quiet,
            _ if std::io::stderr().is_terminal() => DisplayMode::Bars(MultiProgress::new()),
            _ => DisplayMode::Lines,
        };
        let (ended, failures, shown) = Default::default();
        Display { how, verbose, ended, failures, shown }
    }

    /// True when every event is printed as JSON.
    pub fn is_json(&self) -> bool {
        matches!(self.how, DisplayMode::Json)
    }

    /// Prints an event as JSON, if JSON was requested.
    pub fn event(&self, event: &ControlEvent) -> std::io::Result<()> {
        match self.how {
            DisplayMode::Json => output::json("event", event),
            _ => Ok(()),
        }
    }

    /// Shows a transfer that begins.
    pub fn begin(&mut self, transfer: TransferId, name: &str, size: u64) {
        let name = output::shown(name);
        let bar = match &self.how {
            DisplayMode::Bars(bars) => {
                let bar = bars.add(ProgressBar::new(size));
                // The template is a constant. If it were wrong, the plain bar would be shown.
                if let Ok(style) = ProgressStyle::with_template(
                    "{prefix:20!} {percent:>3}% {wide_bar} {decimal_bytes} of \
                     {decimal_total_bytes} {msg}",
                ) {
                    bar.set_style(style);
                }
                bar.set_prefix(name.clone());
                Some(bar)
            }
            _ => None,
        };
        self.shown.insert(transfer, DisplayedTransfer { name, bar, last_line: Instant::now() });
    }

    /// Shows the progress of a transfer.
    pub fn update(&mut self, progress: &TransferProgress) -> std::io::Result<()> {
        let Some(shown) = self.shown.get_mut(&progress.transfer) else { return Ok(()) };
        let left = progress.bytes_total.saturating_sub(progress.bytes_done) as f64;
        // Below a byte per second no remaining time is shown.
        let left = if progress.rate >= 1.0 {
            format!("{} left", span_s((left / progress.rate).ceil()))
        } else {
            "stalled".to_string()
        };
        if let Some(bar) = &shown.bar {
            bar.set_position(progress.bytes_done);
            bar.set_message(format!("{} {left}", per_second(progress.rate)));
        } else if matches!(self.how, DisplayMode::Lines) && shown.last_line.elapsed() >= LINE_EVERY
        {
            shown.last_line = Instant::now();
            output::line(&format!(
                "{}: {} of {}, {}, {left}",
                shown.name,
                Bytes(progress.bytes_done),
                Bytes(progress.bytes_total),
                per_second(progress.rate)
            ))?;
        }
        Ok(())
    }

    /// Ends a transfer that succeeded, with a line about it.
    pub fn end(&mut self, transfer: TransferId, bytes: u64, line: &str) -> std::io::Result<()> {
        self.forget(transfer);
        if self.verbose || self.ended.take(Instant::now(), bytes) { self.say(line) } else { Ok(()) }
    }

    /// Prints the count of lines held back, when it is due or at the `end`.
    pub fn tick(&mut self, end: bool) -> std::io::Result<()> {
        let now = Instant::now();
        if let Some(held) = self.ended.over(now, end) {
            let files = counted(held.lines as usize, "more file");
            self.say(&format!("{files}, {} (-v names each)", Bytes(held.bytes)))?;
        }
        let mut lines = Vec::new();
        self.failures.retain(|host, ration| {
            if let Some(held) = ration.over(now, end) {
                lines.push(format!("{host}: {} more files refused or failed", held.lines));
            }
            !ration.is_idle()
        });
        lines.iter().for_each(|line| self.complain(line));
        Ok(())
    }

    /// Prints a line without disturbing the bars.
    pub fn say(&self, line: &str) -> std::io::Result<()> {
        match &self.how {
            DisplayMode::Bars(bars) => bars.suspend(|| output::line(line)),
            DisplayMode::Lines => output::line(line),
            DisplayMode::Json | DisplayMode::Quiet => Ok(()),
        }
    }

    /// Ends a transfer that failed. Failures are printed on standard error in every mode: the first
    /// ones of each `host` by name, the others as a count.
    pub fn fail(&mut self, transfer: Option<TransferId>, host: &str, line: &str) {
        if let Some(transfer) = transfer {
            self.forget(transfer);
        }
        let full = self.failures.len() >= RATIONS_MAX && !self.failures.contains_key(host);
        let host = if full { "others" } else { host };
        if self.failures.entry(host.to_string()).or_default().take(Instant::now(), 0) {
            self.complain(line);
        }
    }

    /// Tells the user on standard error what the command waits for.
    pub fn note(&self, line: &str) {
        if !matches!(self.how, DisplayMode::Quiet) {
            self.complain(line);
        }
    }

    fn complain(&self, line: &str) {
        match &self.how {
            DisplayMode::Bars(bars) => bars.suspend(|| eprintln!("shoal: {line}")),
            _ => eprintln!("shoal: {line}"),
        }
    }

    /// Removes a transfer that will begin again later.
    pub fn forget(&mut self, transfer: TransferId) {
        if let Some(DisplayedTransfer { bar: Some(bar), .. }) = self.shown.remove(&transfer) {
            bar.finish_and_clear();
        }
    }
}

/// `1.2 GB in 10 s, 120.0 MB/s`, with the bytes resumed and the bytes sent again.
pub fn summary(stats: &TransferProgress, took: Duration) -> String {
    let travelled = stats.bytes_total.saturating_sub(stats.bytes_resumed);
    let mut text = rate(travelled, took);
    if stats.bytes_resumed > 0 {
        text +=
            &format!(", {} of {} were there", Bytes(stats.bytes_resumed), Bytes(stats.bytes_total));
    }
    if stats.retransmitted_bytes > 0 {
        text += &format!(", {} sent again", Bytes(stats.retransmitted_bytes));
    }
    text
}

/// `1.2 GB in 10 s, 120.0 MB/s`.
pub fn rate(bytes: u64, took: Duration) -> String {
    let seconds = took.as_secs_f64();
    let rate = per_second(bytes as f64 / seconds.max(1e-6));
    format!("{} in {seconds:.2} s, {rate}", Bytes(bytes))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_was_there_before_counts_for_no_rate() {
        let stats = TransferProgress { bytes_total: 100_000_000, ..TransferProgress::default() };
        let took = Duration::from_secs(2);
        assert_eq!(summary(&stats, took), "100.0 MB in 2.00 s, 50.0 MB/s");
        let stats = TransferProgress { bytes_resumed: 90_000_000, ..stats };
        let said = "10.0 MB in 2.00 s, 5.0 MB/s, 90.0 MB of 100.0 MB were there";
        assert_eq!(summary(&stats, took), said);
    }
}
