//! Lines of the log on their way to standard error: a bounded queue, and the thread that writes it.
//!
//! Standard error may block: its reader may have stopped, or the disk may be full. A write then
//! waits or fails. So threads that carry packets only push lines. A line that finds no room is lost
//! and counted; the log and the status show the number.

use std::collections::VecDeque;
use std::fmt;
use std::io::{self, Write};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

/// Most lines that may wait. Trace level writes thousands of lines in a second; the usual level
/// less than one.
const LINES_MAX: usize = 1_024;
/// Most bytes of all waiting lines.
const BYTES_MAX: usize = 256 << 10;
/// Longest time for which the end of a process waits for the remaining lines.
pub const FLUSH_MAX: Duration = Duration::from_secs(1);
/// Stack of the writing thread, which holds no large values.
const STACK: usize = 128 << 10;

/// A bounded queue of lines; a clone is another handle to the same queue.
#[derive(Clone, Default)]
pub struct LogQueue(Arc<LogQueueShared>);

#[derive(Default)]
struct LogQueueShared {
    state: Mutex<LogQueueState>,
    /// Signals that there is a line to write.
    arrived: Condvar,
    /// Signals that all lines are written.
    emptied: Condvar,
}

#[derive(Default)]
struct LogQueueState {
    lines: VecDeque<Vec<u8>>,
    bytes: usize,
    /// Lines lost since the start, and the number that the log has reported.
    lost: u64,
    said: u64,
    has_thread: bool,
    /// True while the thread holds a line that it has not written yet.
    is_writing: bool,
    /// True if the last line could not be written: a line about that would fail, too.
    is_failing: bool,
}

/// The next step of the writing thread.
enum LogWriterStep {
    Write(Vec<u8>),
    /// Number of lines lost since the log last reported losses.
    Say(u64),
}

impl LogQueue {
    fn state(&self) -> MutexGuard<'_, LogQueueState> {
        // A panic under the lock leaves the queue whole.
        self.0.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Adds a line, with its line break. Never waits; without room, the line is lost and counted.
    pub fn push(&self, line: &[u8]) {
        let mut state = self.state();
        if state.lines.len() >= LINES_MAX || state.bytes + line.len() > BYTES_MAX {
            state.lost += 1;
            return;
        }
        state.bytes += line.len();
        state.lines.push_back(line.to_vec());
        self.0.arrived.notify_one();
    }

    /// Starts the thread that writes to standard error, with the rights of the caller. Later calls
    /// do nothing. Lines wait in the queue until the first call.
    ///
    /// # Errors
    /// No thread can be started.
    pub fn start(&self) -> io::Result<()> {
        let say = |lost: u64| {
            tracing::error!(
                "{lost} lines of the log are lost: standard error was not read or could not be \
                 written; give it a faster reader, or free disk space"
            );
        };
        self.start_with(io::stderr(), say)
    }

    /// [`Self::start`] with another writer; calls `say` with the number of lost lines.
    fn start_with(
        &self,
        out: impl Write + Send + 'static,
        say: impl Fn(u64) + Send + 'static,
    ) -> io::Result<()> {
        if std::mem::replace(&mut self.state().has_thread, true) {
            return Ok(());
        }
        let queue = self.clone();
        let thread = std::thread::Builder::new().name("shoal-log".into()).stack_size(STACK);
        let started = thread.spawn(move || queue.serve(out, &say)).map(drop);
        self.state().has_thread = started.is_ok();
        started
    }

    /// Waits at most `most` until all lines are written. True if they are.
    pub fn flush(&self, most: Duration) -> bool {
        if self.start().is_err() {
            return false;
        }
        let waits = |state: &mut LogQueueState| state.is_writing || !state.lines.is_empty();
        let waited = self.0.emptied.wait_timeout_while(self.state(), most, waits);
        !waited.unwrap_or_else(PoisonError::into_inner).1.timed_out()
    }

    /// Number of lines lost since the start.
    pub fn lost(&self) -> u64 {
        self.state().lost
    }

    fn serve(&self, mut out: impl Write, say: &impl Fn(u64)) {
        loop {
            match self.next() {
                LogWriterStep::Say(lost) => say(lost),
                // A part of the line may have been written before the error.
                LogWriterStep::Write(line) => {
                    let failed = out.write_all(&line).and_then(|()| out.flush()).is_err();
                    let mut state = self.state();
                    state.is_failing = failed;
                    state.lost += u64::from(failed);
                }
            }
        }
    }

    /// Waits for something to do. Losses are reported once half of the queue is free. A reader that
    /// takes one line at a time would otherwise get a report after each.
    fn next(&self) -> LogWriterStep {
        let mut state = self.state();
        state.is_writing = false;
        loop {
            let unsaid = state.lost - state.said;
            let has_room = state.lines.len() <= LINES_MAX / 2 && state.bytes <= BYTES_MAX / 2;
            if unsaid > 0 && has_room && !state.is_failing {
                state.said = state.lost;
                return LogWriterStep::Say(unsaid);
            }
            if let Some(line) = state.lines.pop_front() {
                state.bytes -= line.len();
                state.is_writing = true;
                return LogWriterStep::Write(line);
            }
            self.0.emptied.notify_all();
            state = self.0.arrived.wait(state).unwrap_or_else(PoisonError::into_inner);
        }
    }
}

/// Writer for one event of the log. Buffers it, so that it stays one line among concurrent writers.
pub struct LineSink {
    queue: LogQueue,
    line: Vec<u8>,
}

impl LogQueue {
    /// A writer for one line; dropping it queues the line.
    pub fn sink(&self) -> LineSink {
        LineSink { queue: self.clone(), line: Vec::new() }
    }
}

impl Write for LineSink {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.line.extend_from_slice(bytes);
        Ok(bytes.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

impl Drop for LineSink {
    fn drop(&mut self) {
        if !self.line.is_empty() {
            self.queue.push(&self.line);
        }
    }
}

/// The log of this process: its queue of lines, and a way to change its level.
#[derive(Clone)]
pub struct NodeLog {
    pub queue: LogQueue,
    set_level: Arc<dyn Fn(&str) + Send + Sync>,
}

impl NodeLog {
    /// A log whose lines go through `queue`; `set_level` sets its level.
    pub fn new(queue: LogQueue, set_level: impl Fn(&str) + Send + Sync + 'static) -> NodeLog {
        NodeLog { queue, set_level: Arc::new(set_level) }
    }

    /// A log that discards its lines.
    pub fn none() -> NodeLog {
        NodeLog::new(LogQueue::default(), |_| {})
    }

    /// Logs from `level` on.
    pub fn set_level(&self, level: &str) {
        (self.set_level)(level);
    }

    /// A warning for the status while lines are lost.
    pub fn warning(&self) -> Option<String> {
        let lost = self.queue.lost();
        (lost > 0).then(|| {
            format!(
                "{lost} lines of the log are lost since the start: standard error was not read, \
                 or could not be written; give it a faster reader, or free disk space"
            )
        })
    }
}

impl fmt::Debug for NodeLog {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Log")
    }
}

#[cfg(test)]
mod tests {
    use std::sync::mpsc::{Receiver, SyncSender, sync_channel};

    use super::*;

    /// A descriptor that blocks until its reader takes each write.
    struct BlockingWriter(SyncSender<Vec<u8>>);

    impl Write for BlockingWriter {
        fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
            self.0.send(bytes.to_vec()).map_err(io::Error::other)?;
            Ok(bytes.len())
        }

        fn flush(&mut self) -> io::Result<()> {
            Ok(())
        }
    }

    fn held() -> (LogQueue, Receiver<Vec<u8>>) {
        let (queue, (tells, told)) = (LogQueue::default(), sync_channel(0));
        let says = queue.clone();
        let say = move |lost| says.push(format!("lost {lost}\n").as_bytes());
        queue.start_with(BlockingWriter(tells), say).unwrap();
        (queue, told)
    }

    #[test]
    fn a_reader_that_stops_costs_lines_and_nobody_waits() {
        let (queue, told) = held();
        queue.push(b"first\n");
        // The thread holds that line and waits for the reader.
        while !queue.state().is_writing {
            std::thread::yield_now();
        }
        (0..LINES_MAX + 70).for_each(|n| queue.push(format!("{n}\n").as_bytes()));
        assert_eq!(queue.lost(), 70);
        assert!(!queue.flush(Duration::from_millis(20)), "nobody reads");
        // The reader starts again. Waiting lines come in order, with a report of the gap in
        // between.
        let all = (0..LINES_MAX + 2).map(|_| String::from_utf8(told.recv().unwrap()).unwrap());
        let (gaps, lines): (Vec<_>, Vec<_>) = all.partition(|line| line.starts_with("lost"));
        assert_eq!(gaps, ["lost 70\n"]);
        let numbers = (0..LINES_MAX).map(|n| format!("{n}\n"));
        assert_eq!(lines, ["first\n".to_owned()].into_iter().chain(numbers).collect::<Vec<_>>());
        assert!(queue.flush(Duration::from_secs(10)));
    }

    #[test]
    fn long_lines_are_bounded_by_their_bytes() {
        let queue = LogQueue::default();
        (0..5).for_each(|_| queue.push(&[b'x'; BYTES_MAX / 4]));
        assert_eq!((queue.lost(), queue.state().lines.len()), (1, 4));
    }

    #[test]
    fn a_line_that_can_not_be_written_is_counted_and_said_once_another_could() {
        let (queue, told) = held();
        drop(told);
        queue.push(b"one\n");
        queue.push(b"two\n");
        assert!(queue.flush(Duration::from_secs(10)), "no line waits for a reader that is gone");
        assert_eq!(queue.lost(), 2, "nor is there a line about each");
    }

    #[test]
    fn an_event_is_one_line_however_it_is_written() {
        let queue = LogQueue::default();
        let mut sink = queue.sink();
        sink.write_all(b"a ").unwrap();
        sink.write_all(b"b\n").unwrap();
        assert!(queue.state().lines.is_empty());
        drop(sink);
        assert_eq!(queue.state().lines, [b"a b\n"]);
    }
}
