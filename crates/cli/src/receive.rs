//! `shoal receive`: files from hosts into a folder.

use std::collections::BTreeMap;
use std::os::fd::AsFd;
use std::os::unix::net::UnixStream;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{Receiver, Sender, channel};
use std::time::{Duration, Instant};

use anyhow::{Context, Result};
use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
use serde::Serialize;
use shoal_node::api::{
    CancelReason, Command, Event, Progress, RefuseReason, Reply, SendFile, Senders, TransferId,
};
use shoal_node::control::{CallError, Connection};

use crate::args::{Common, Receive};
use crate::chunks::Chunks;
use crate::failure::{self, Failure};
use crate::inbox::{Inbox, Incoming, Taken};
use crate::interrupt::Interrupt;
use crate::output::shown;
use crate::progress::{Display, summary};
use crate::target;
use crate::units::Bytes;

/// How often the loop looks at Ctrl-C.
const TICK_MS: u16 = 250;
/// Pause between two records of what has arrived.
const RECORD_EVERY: Duration = Duration::from_secs(2);
/// How long a file that is being synced is waited for when the node is gone.
const FINISH_WAIT: Duration = Duration::from_secs(10);
/// Files on their way at once; the rest is told to come back later.
const MAX_ACTIVE: usize = 64;

/// One receive from the first offer to the last.
struct Receiving<'a> {
    node: &'a mut Connection,
    inbox: Inbox,
    display: Display,
    max_size: Option<u64>,
    /// Transfers that may still end before the command does.
    left: Option<u64>,
    active: BTreeMap<TransferId, Active>,
    finished: Receiver<Finished>,
    /// For threads that sync and rename: their result, and a byte that wakes the loop.
    finishing: (Sender<Finished>, Arc<UnixStream>),
    wake: UnixStream,
    /// Ctrl-C came: nothing new is taken.
    stopping: bool,
    result: Totals,
}

struct Active {
    from: String,
    file: SendFile,
    incoming: Incoming,
    chunks: Chunks,
    began: Instant,
    recorded: Instant,
    /// True while a thread writes the record.
    recording: Arc<AtomicBool>,
    /// It is whole, and a thread syncs and renames it.
    finishing: bool,
}

/// What a thread did with a whole file.
struct Finished {
    transfer: TransferId,
    /// Its name beneath the folder, or what went wrong.
    name: Result<String, String>,
    hash: String,
    stats: Progress,
    took: Duration,
}

/// A file that has arrived, for `--json`.
#[derive(Serialize)]
struct Received<'a> {
    from: &'a str,
    name: &'a str,
    size: u64,
    hash: &'a str,
    seconds: f64,
    sync_ms: f64,
    gap_ms: f64,
}

/// What came of it all.
#[derive(Debug, Default, Serialize)]
struct Totals {
    files_received: u64,
    files_failed: u64,
    files_refused: u64,
    bytes_received: u64,
}

/// Receives until the count is reached or Ctrl-C; fails if any file failed.
pub fn run(common: &Common, args: &Receive) -> Result<()> {
    let taken = match (args.overwrite, args.rename) {
        (true, _) => Taken::Overwrite,
        (_, true) => Taken::Number,
        _ => Taken::Refuse,
    };
    let inbox = Inbox::open(&args.dir, taken).map_err(|e| Failure::of(failure::FAILED, e))?;
    let from = senders(&args.from)?;
    let display = Display::new(common.json, args.quiet);
    let interrupt = Interrupt::catch()?;
    let mut node = target::connect_or_be(common)?;
    let max_size = args.max_size.map(|size| size.0);
    node.connection.call(Command::Receive { from, max_size }, &[]).map_err(failure::call)?;
    display.say(&format!(
        "receiving from {} into {} (Ctrl-C ends)",
        args.from.join(", "),
        args.dir.display()
    ))?;
    if common.json {
        crate::output::json("receiving", &args.from)?;
    }
    let (sender, finished) = channel();
    let (wake, waker) = UnixStream::pair().context("can't make a socket pair")?;
    wake.set_nonblocking(true)?;
    let mut receiving = Receiving {
        node: &mut node.connection,
        inbox,
        display,
        max_size,
        left: if args.once { Some(1) } else { args.count },
        active: BTreeMap::new(),
        finished,
        finishing: (sender, Arc::new(waker)),
        wake,
        stopping: false,
        result: Totals::default(),
    };
    let ended = receiving.until_done(&interrupt);
    receiving.keep_what_arrived();
    if common.json {
        crate::output::json("receive", &receiving.result)?;
    }
    ended?;
    match receiving.result.files_failed {
        0 => Ok(()),
        n => Err(Failure::said(failure::FAILED, format!("{n} files failed"))),
    }
}

fn senders(words: &[String]) -> Result<Senders> {
    match words {
        [any] if any == "any" => Ok(Senders::Any),
        words if words.iter().any(|w| w == "any") => {
            let text = "--from any takes everybody: name no host beside it";
            Err(Failure::of(failure::USAGE, text))
        }
        words => Ok(Senders::Hosts(words.to_vec())),
    }
}

impl Receiving<'_> {
    fn until_done(&mut self, interrupt: &Interrupt) -> Result<()> {
        while self.left != Some(0) {
            if interrupt.happened() {
                self.stopping = true;
                // What is whole lacks its name only, which takes a moment.
                if !self.finishing_any() {
                    return self.stopped();
                }
            }
            self.wait()?;
            while let Ok(finished) = self.finished.try_recv() {
                self.finish(finished)?;
            }
            while let Some(event) = self.node.event(Some(Duration::ZERO)).map_err(failure::call)? {
                self.display.event(&event)?;
                self.handle(event)?;
            }
        }
        Ok(())
    }

    fn stopped(&self) -> Result<()> {
        let text = match self.active.len() {
            0 => return Ok(()),
            1 => "stopped with one file on its way; it resumes when sent again".to_string(),
            n => format!("stopped with {n} files on their way; they resume when sent again"),
        };
        Err(Failure::of(failure::INTERRUPTED, text))
    }

    fn finishing_any(&self) -> bool {
        self.active.values().any(|active| active.finishing)
    }

    /// Until the node says something, a thread is done, or a tick is over.
    fn wait(&mut self) -> Result<()> {
        if self.node.has_event() {
            return Ok(());
        }
        let mut on = [
            PollFd::new(self.node.as_fd(), PollFlags::POLLIN),
            PollFd::new(self.wake.as_fd(), PollFlags::POLLIN),
        ];
        match poll(&mut on, PollTimeout::from(TICK_MS)) {
            Ok(_) | Err(nix::Error::EINTR) => {}
            Err(e) => return Err(e).context("can't wait for the node"),
        }
        let mut bytes = [0; 64];
        while std::io::Read::read(&mut &self.wake, &mut bytes).is_ok_and(|n| n > 0) {}
        Ok(())
    }

    fn handle(&mut self, event: Event) -> Result<()> {
        match event {
            Event::Offered { transfer, from, file } => self.offered(transfer, from, file),
            Event::Progress(progress) => self.progress(&progress),
            Event::Complete { transfer, hash, stats } => {
                self.complete(transfer, hash, stats);
                Ok(())
            }
            Event::Failed { transfer, reason, detail } => {
                self.failed(transfer, reason, detail);
                Ok(())
            }
            _ => Ok(()),
        }
    }

    fn offered(&mut self, transfer: TransferId, from: String, file: SendFile) -> Result<()> {
        let promised = self.active.len() as u64;
        let prepared = if self.stopping {
            Err((RefuseReason::NoReceiver, "stopped".to_string()))
        } else if self.max_size.is_some_and(|max| file.size > max) {
            Err((RefuseReason::TooLarge, format!("has {}", Bytes(file.size))))
        } else if self.active.len() >= MAX_ACTIVE || self.left.is_some_and(|n| promised >= n) {
            Err((RefuseReason::Busy, "enough files are on their way".to_string()))
        } else {
            self.inbox.prepare(&from, &file).map_err(|refusal| (refusal.reason, refusal.detail))
        };
        let (incoming, chunks) = match prepared {
            Ok(prepared) => prepared,
            Err((reason, detail)) => {
                self.result.files_refused += 1;
                let text = format!("refused {} from {from}: {detail}", shown(&file.name));
                self.display.fail(None, &text);
                return self.tell(Command::Refuse { transfer, reason });
            }
        };
        let command = Command::Accept { transfer, have: chunks.ranges().to_vec() };
        match self.node.call(command, &[incoming.file().as_fd()]) {
            Ok(Reply::Ok) => {}
            Ok(other) => return Err(target::unexpected(&other)),
            // The sender went away in between: the next offer may be better.
            Err(CallError::Node(e)) => {
                let text = format!("{} from {from}: {}", shown(&file.name), e.message);
                self.display.fail(None, &text);
                return Ok(());
            }
            Err(e) => return Err(failure::call(e)),
        }
        self.display.begin(transfer, &format!("{from}: {}", file.name), file.size);
        let now = Instant::now();
        let active = Active {
            from,
            file,
            incoming,
            chunks,
            began: now,
            recorded: now,
            recording: Arc::default(),
            finishing: false,
        };
        self.active.insert(transfer, active);
        Ok(())
    }

    fn progress(&mut self, progress: &Progress) -> Result<()> {
        if let Some(active) = self.active.get_mut(&progress.transfer) {
            let count = Chunks::count(active.file.size);
            for (from, to) in &progress.chunks {
                active.chunks.insert(*from, (*to).min(count));
            }
            active.record_now_and_then();
        }
        Ok(self.display.update(progress)?)
    }

    /// Syncing takes as long as the disk takes: not here.
    fn complete(&mut self, transfer: TransferId, hash: String, stats: Progress) {
        let Some(active) = self.active.get_mut(&transfer) else { return };
        active.finishing = true;
        let (incoming, executable) = (active.incoming.clone(), active.file.executable);
        let (sender, waker) = (self.finishing.0.clone(), self.finishing.1.clone());
        std::thread::spawn(move || {
            let began = Instant::now();
            let name = incoming.finish(executable);
            let took = began.elapsed();
            let _ = sender.send(Finished { transfer, name, hash, stats, took });
            let _ = std::io::Write::write(&mut &*waker, &[1]);
        });
    }

    fn finish(&mut self, finished: Finished) -> Result<()> {
        let Finished { transfer, name, hash, stats, took: sync } = finished;
        let Some(active) = self.active.remove(&transfer) else { return Ok(()) };
        let name = match name {
            Ok(name) => name,
            Err(why) => {
                self.result.files_failed += 1;
                self.end_one();
                let kept = active.put_away();
                self.display.fail(Some(transfer), &format!("{why}{kept}"));
                let exists = why.contains("exists already");
                let reason = if exists { CancelReason::Exists } else { CancelReason::WriteFailed };
                return self.tell(Command::Cancel { transfer, reason });
            }
        };
        let took = active.began.elapsed();
        self.tell(Command::Confirm { transfer })?;
        self.result.files_received += 1;
        self.result.bytes_received += active.file.size;
        self.end_one();
        if self.display.is_json() {
            let received = Received {
                from: &active.from,
                name: &name,
                size: active.file.size,
                hash: &hash,
                seconds: took.as_secs_f64(),
                sync_ms: sync.as_secs_f64() * 1e3,
                gap_ms: stats.gap_ms,
            };
            crate::output::json("received", &received)?;
        }
        let stats = Progress { bytes_total: active.file.size, ..stats };
        let path = self.inbox.shown(&name);
        let line = format!("{path} from {}: {}", active.from, summary(&stats, took));
        Ok(self.display.end(transfer, &line)?)
    }

    fn failed(&mut self, transfer: TransferId, reason: CancelReason, detail: Option<String>) {
        let Some(active) = self.active.remove(&transfer) else { return };
        self.result.files_failed += 1;
        self.end_one();
        // What a hash spoke against is not to be resumed from.
        let kept = match reason {
            CancelReason::HashMismatch | CancelReason::SourceChanged => {
                active.incoming.discard();
                String::new()
            }
            _ => active.put_away(),
        };
        let name = shown(&active.file.name);
        let why = failure::ended(reason, detail);
        let text = format!("{name} from {}: {why}{kept}", active.from);
        self.display.fail(Some(transfer), &text);
    }

    fn end_one(&mut self) {
        if let Some(left) = &mut self.left {
            *left = left.saturating_sub(1);
        }
    }

    /// A command whose failure means only that the transfer is gone already.
    fn tell(&mut self, command: Command) -> Result<()> {
        match self.node.call(command, &[]) {
            Ok(_) | Err(CallError::Node(_)) => Ok(()),
            Err(e) => Err(failure::call(e)),
        }
    }

    /// At the end: what is not whole stays for a resumed transfer.
    fn keep_what_arrived(&mut self) {
        // The node is gone, and a thread may still be giving a file its name.
        let patience = Instant::now() + FINISH_WAIT;
        while self.finishing_any() {
            let left = patience.saturating_duration_since(Instant::now());
            let Ok(finished) = self.finished.recv_timeout(left) else { break };
            if let Some(active) = self.active.remove(&finished.transfer) {
                active.put_away();
            }
        }
        for active in std::mem::take(&mut self.active).into_values() {
            active.put_away();
        }
    }
}

impl Active {
    /// Records what has arrived, off the loop, if it is time and the last record is done.
    fn record_now_and_then(&mut self) {
        if self.recorded.elapsed() < RECORD_EVERY || self.recording.swap(true, Ordering::AcqRel) {
            return;
        }
        self.recorded = Instant::now();
        let (incoming, chunks) = (self.incoming.clone(), self.chunks.clone());
        let recording = self.recording.clone();
        std::thread::spawn(move || {
            // Without a record the transfer goes on and merely can't resume.
            let _ = incoming.record(&chunks);
            recording.store(false, Ordering::Release);
        });
    }

    /// Keeps what has arrived of a file that won't be whole now, if it is of use; returns a clause
    /// about it for the message.
    fn put_away(&self) -> String {
        match if self.incoming.waits() { self.keep() } else { 0 } {
            0 => {
                self.incoming.discard();
                String::new()
            }
            kept => format!("; {} are kept and the transfer can resume", Bytes(kept)),
        }
    }

    /// Records what has arrived; returns its bytes.
    fn keep(&self) -> u64 {
        // A record under way is of older news: it must not come after this one.
        let began = Instant::now();
        while self.recording.swap(true, Ordering::AcqRel) && began.elapsed() < RECORD_EVERY * 5 {
            std::thread::sleep(Duration::from_millis(5));
        }
        let bytes = self.chunks.bytes(self.file.size);
        if bytes > 0 && self.incoming.record(&self.chunks).is_err() {
            return 0;
        }
        bytes
    }
}
