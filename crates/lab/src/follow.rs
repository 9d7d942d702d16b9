//! Follows a `shoal send` or `shoal receive` by the JSON lines that it prints.

use std::io::{BufRead, BufReader, Read};
use std::process::{Command, ExitStatus, Stdio};
use std::sync::mpsc::{Receiver, TryRecvError, channel};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail};
use serde_json::Value;

use crate::process::{ChildProcess, ResourceUsage};
use crate::site::RunningNetwork;

/// Limit of error messages in bytes.
const STDERR_MAX: u64 = 16 << 10;

/// A running `shoal send` or `shoal receive`.
#[derive(Debug)]
pub struct Follower {
    process: ChildProcess,
    lines: Receiver<(Instant, Value)>,
    messages: Receiver<String>,
    /// State according to the last line.
    pub state: TransferState,
}

/// State of a transfer, by the program's lines so far.
#[derive(Clone, Debug, Default)]
pub struct TransferState {
    /// True after the first line: the program is connected to its node.
    pub ready: bool,
    /// Time at which this end learnt that the transfer was accepted.
    pub accepted: Option<Instant>,
    /// Time at which the file got its final name (receive), or the sender learnt of it (send).
    pub done: Option<Instant>,
    /// Number of file bytes that the receiver has.
    pub bytes_done: u64,
    /// Recent rate in file bytes per second.
    pub rate: f64,
    /// Number of file bytes sent again.
    pub retransmitted_bytes: u64,
    /// Share of segments lost at the first attempt.
    pub loss: f64,
    /// Longest time without a new file byte, as the receiving node measured it, in milliseconds.
    pub gap_ms: Option<f64>,
    /// Duration of the receiver's fsync in milliseconds.
    pub sync_ms: Option<f64>,
}

impl Follower {
    /// Starts `command`, which prints JSON lines, beside `node`.
    pub fn start(
        name: &str,
        mut command: Command,
        site: &RunningNetwork,
        node: usize,
    ) -> Result<Follower> {
        command.stdout(Stdio::piped()).stderr(Stdio::piped());
        let mut process = ChildProcess::start(name, command, site.network().namespace_fd(node))?;
        let out = process.take_stdout().context("no pipe for its output")?;
        let errors = process.take_stderr().context("no pipe for its messages")?;
        let (line_in, lines) = channel();
        let (message_in, messages) = channel();
        // Both threads end when the process does.
        std::thread::spawn(move || {
            for line in BufReader::new(out).lines().map_while(Result::ok) {
                let value = serde_json::from_str(&line).unwrap_or(Value::String(line));
                if line_in.send((Instant::now(), value)).is_err() {
                    break;
                }
            }
        });
        std::thread::spawn(move || {
            let mut text = String::new();
            // Text read before an error is still shown.
            let _ = errors.take(STDERR_MAX).read_to_string(&mut text);
            let _ = message_in.send(text);
        });
        Ok(Follower { process, lines, messages, state: TransferState::default() })
    }

    /// Handles the lines since the last call. True after the program ended with success.
    ///
    /// # Errors
    /// The program failed; the error has its messages.
    pub fn look(&mut self) -> Result<bool> {
        let ended = self.process.poll()?;
        loop {
            match self.lines.try_recv() {
                Ok((when, value)) => self.state.take(when, &value),
                Err(TryRecvError::Empty) if ended.is_some() => {
                    // The pipe is read to its end before the process counts as ended.
                    std::thread::sleep(Duration::from_millis(1));
                }
                Err(TryRecvError::Empty | TryRecvError::Disconnected) => break,
            }
        }
        match ended {
            Some(status) if !status.success() => bail!("{}", self.failure(status)),
            other => Ok(other.is_some()),
        }
    }

    /// Resource usage so far.
    pub fn usage(&self) -> ResourceUsage {
        self.process.usage()
    }

    fn failure(&self, status: ExitStatus) -> String {
        let said = self.messages.recv_timeout(Duration::from_secs(1)).unwrap_or_default();
        format!("{} failed ({status}): {}", self.process.name(), said.trim())
    }
}

impl TransferState {
    /// Handles a line: `{"version":1,"event":{"event":"progress",...}}` for the node's events, or
    /// `{"version":1,"WHAT":...}` for the program's own.
    fn take(&mut self, when: Instant, line: &Value) {
        self.ready = true;
        let Some(parts) = line.as_object() else { return };
        for (what, value) in parts.iter().filter(|(name, _)| *name != "version") {
            let what = if what == "event" { value["event"].as_str().unwrap_or(what) } else { what };
            match what {
                "accepted" => self.accepted = self.accepted.or(Some(when)),
                "done" | "received" => self.done = self.done.or(Some(when)),
                _ => {}
            }
            self.take_counters(value);
            self.take_counters(&value["stats"]);
        }
    }

    fn take_counters(&mut self, counters: &Value) {
        let number = |name: &str| counters[name].as_f64();
        let whole = |name: &str| counters[name].as_u64();
        self.bytes_done = whole("bytes_done").unwrap_or(0).max(self.bytes_done);
        self.rate = number("rate").unwrap_or(self.rate);
        self.retransmitted_bytes = whole("retransmitted_bytes").unwrap_or(self.retransmitted_bytes);
        self.loss = number("loss").unwrap_or(self.loss);
        self.gap_ms = number("gap_ms").or(self.gap_ms);
        self.sync_ms = number("sync_ms").or(self.sync_ms);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use shoal_daemon::control::api::{ControlEvent, TransferProgress};

    #[test]
    fn lines_of_the_programs_are_understood() {
        let now = Instant::now();
        let mut state = TransferState::default();
        let mut take = |line: Value| {
            state.take(now, &line);
            state.clone()
        };
        assert!(take(serde_json::json!({ "version": 1, "receiving": ["h1"] })).ready);
        let stats = TransferProgress {
            bytes_done: 9,
            retransmitted_bytes: 3,
            loss: 0.5,
            gap_ms: 7.0,
            ..TransferProgress::default()
        };
        let event = |event: ControlEvent| serde_json::json!({ "version": 1, "event": event });
        assert!(
            take(event(ControlEvent::Accepted { transfer: 1, resumed_bytes: 0, whole: false }))
                .accepted
                .is_some()
        );
        let seen = take(event(ControlEvent::Progress(stats.clone())));
        assert_eq!((seen.bytes_done, seen.retransmitted_bytes), (9, 3));
        assert_eq!((seen.loss, seen.gap_ms, seen.done), (0.5, Some(7.0), None));
        let stats = TransferProgress { bytes_done: 10, ..stats };
        let seen = take(event(ControlEvent::Done { transfer: 1, hash: String::new(), stats }));
        assert_eq!((seen.bytes_done, seen.done), (10, Some(now)));
    }
}
