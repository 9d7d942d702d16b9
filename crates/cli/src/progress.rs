//! How far transfers are: bars on a terminal, lines elsewhere, or JSON.

use std::collections::BTreeMap;
use std::io::IsTerminal;
use std::time::{Duration, Instant};

use indicatif::{MultiProgress, ProgressBar, ProgressStyle};
use shoal_daemon::control::api::{Event, Progress, TransferId};

use crate::output;
use crate::ration::Ration;
use crate::units::{Bytes, counted, per_second, span_s};

/// Hosts with a ration of their own for lines about failures; further hosts share one.
const RATIONS_MAX: usize = 256;

/// Pause between two lines about one transfer.
const LINE_EVERY: Duration = Duration::from_secs(5);

/// What a user sees of transfers while they go on.
pub struct Display {
    how: How,
    verbose: bool,
    /// Lines about files that arrived, and about failures by the host at the other end.
    ended: Ration,
    failures: BTreeMap<String, Ration>,
    shown: BTreeMap<TransferId, Shown>,
}

enum How {
    Bars(MultiProgress),
    Lines,
    Json,
    Quiet,
}

struct Shown {
    name: String,
    bar: Option<ProgressBar>,
    last_line: Instant,
}

impl Display {
    /// Bars if standard error is a terminal. `verbose` names every file that arrives.
    pub fn new(json: bool, quiet: bool, verbose: bool) -> Display {
        let how = match (json, quiet) {
            (true, _) => How::Json,
            (_, true) => How::Quiet,
            _ if std::io::stderr().is_terminal() => How::Bars(MultiProgress::new()),
            _ => How::Lines,
        };
        let (ended, failures, shown) = Default::default();
        Display { how, verbose, ended, failures, shown }
    }

    /// True when every event is printed as JSON.
    pub fn is_json(&self) -> bool {
        matches!(self.how, How::Json)
    }

    /// Prints an event as JSON, if that is asked for.
    pub fn event(&self, event: &Event) -> std::io::Result<()> {
        match self.how {
            How::Json => output::json("event", event),
            _ => Ok(()),
        }
    }

    /// A transfer begins.
    pub fn begin(&mut self, transfer: TransferId, name: &str, size: u64) {
        let name = output::shown(name);
        let bar = match &self.how {
            How::Bars(bars) => {
                let bar = bars.add(ProgressBar::new(size));
                // The template is a constant of ours; if it were wrong, the plain bar is shown.
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
        self.shown.insert(transfer, Shown { name, bar, last_line: Instant::now() });
    }

    /// It went on.
    pub fn update(&mut self, progress: &Progress) -> std::io::Result<()> {
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
        } else if matches!(self.how, How::Lines) && shown.last_line.elapsed() >= LINE_EVERY {
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

    /// The transfer succeeded.
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

    /// Prints a line in between.
    pub fn say(&self, line: &str) -> std::io::Result<()> {
        match &self.how {
            How::Bars(bars) => bars.suspend(|| output::line(line)),
            How::Lines => output::line(line),
            How::Json | How::Quiet => Ok(()),
        }
    }

    /// A transfer failed. Failures are printed in every mode, on standard error: the first ones
    /// with each `host`, the others are counted.
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
        if !matches!(self.how, How::Quiet) {
            self.complain(line);
        }
    }

    fn complain(&self, line: &str) {
        match &self.how {
            How::Bars(bars) => bars.suspend(|| eprintln!("shoal: {line}")),
            _ => eprintln!("shoal: {line}"),
        }
    }

    /// Removes a transfer that will begin again later.
    pub fn forget(&mut self, transfer: TransferId) {
        if let Some(Shown { bar: Some(bar), .. }) = self.shown.remove(&transfer) {
            bar.finish_and_clear();
        }
    }
}

/// `1.2 GB in 10 s, 120.0 MB/s`, with the bytes resumed and the share lost.
pub fn summary(stats: &Progress, took: Duration) -> String {
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
        let stats = Progress { bytes_total: 100_000_000, ..Progress::default() };
        let took = Duration::from_secs(2);
        assert_eq!(summary(&stats, took), "100.0 MB in 2.00 s, 50.0 MB/s");
        let stats = Progress { bytes_resumed: 90_000_000, ..stats };
        let said = "10.0 MB in 2.00 s, 5.0 MB/s, 90.0 MB of 100.0 MB were there";
        assert_eq!(summary(&stats, took), said);
    }
}
