//! `shoal receive`: files from hosts into a folder.

use std::collections::BTreeMap;
use std::io::{BufRead, IsTerminal, Read};
use std::os::fd::AsFd;
use std::os::unix::net::UnixStream;
use std::path::Path;
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
use crate::inbox::{Existing, Inbox, Incoming, Prepared, Refusal, Taken};
use crate::interrupt::Interrupt;
use crate::output::shown;
use crate::progress::{Display, summary};
use crate::target;
use crate::units::{Bytes, counted};

/// How often the loop looks at Ctrl-C.
const TICK_MS: u16 = 250;
/// Pause between two records of what has arrived.
const RECORD_EVERY: Duration = Duration::from_secs(2);
/// How long a file that is being synced is waited for when the node is gone.
const FINISH_WAIT: Duration = Duration::from_secs(10);
/// Files on their way at once; the rest is told to come back later.
const MAX_ACTIVE: usize = 64;
/// Files of one sender that are taken while there is any place at all, and the most of one sender.
const SHARE_MIN: usize = 4;
const SHARE_MAX: usize = 32;

/// One receive from the first offer to the last.
struct Receiving<'a> {
    node: &'a mut Connection,
    inbox: Inbox,
    display: Display,
    max_size: u64,
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
    what: What,
    chunks: Chunks,
    /// A byte of it has arrived.
    moved: bool,
    began: Instant,
    recorded: Instant,
    /// True while a thread writes the record.
    recording: Arc<AtomicBool>,
    /// It is whole, and a thread syncs and renames it.
    finishing: bool,
}

/// What an accepted offer goes into.
enum What {
    New(Incoming),
    /// Nothing: it is compared with what is there.
    There(Existing),
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
    /// Were there already, with the same content.
    files_present: u64,
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
    make_folder(args)?;
    let inbox = Inbox::open(&args.dir, taken).map_err(|e| Failure::of(failure::FAILED, e))?;
    let from = senders(&args.from)?;
    let display = Display::new(common.json, args.quiet, args.verbose);
    let interrupt = Interrupt::catch()?;
    let mut node = target::connect_or_be(common)?;
    let max_size = args.max_size.0;
    // The node is not told of it: what is refused for its size is said here.
    let command = Command::Receive { from, max_size: None };
    node.connection.call(command, &[]).map_err(failure::call)?;
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
    receiving.say_total()?;
    if common.json {
        crate::output::json("receive", &receiving.result)?;
    }
    ended?;
    match receiving.result.files_failed {
        0 => Ok(()),
        n => Err(Failure::said(failure::FAILED, format!("{n} files failed"))),
    }
}

/// Makes the folder if it isn't there and the user wants it.
fn make_folder(args: &Receive) -> Result<()> {
    let missing = std::fs::symlink_metadata(&args.dir)
        .is_err_and(|e| e.kind() == std::io::ErrorKind::NotFound);
    let asks = || std::io::stdin().is_terminal() && std::io::stderr().is_terminal();
    if !missing || !(args.create || (asks() && wants_folder(&args.dir)?)) {
        return Ok(());
    }
    std::fs::create_dir_all(&args.dir).map_err(|e| {
        Failure::of(failure::FAILED, format!("{}: can't be made: {e}", args.dir.display()))
    })
}

fn wants_folder(dir: &Path) -> Result<bool> {
    eprint!("shoal: {} is not there. Make it? [y/N] ", shown(&dir.display().to_string()));
    let mut answer = String::new();
    std::io::stdin().lock().take(64).read_line(&mut answer).context("can't read the answer")?;
    Ok(matches!(answer.trim(), "y" | "Y" | "yes"))
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
            self.display.tick(false)?;
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
            Event::Complete { transfer, hash, stats } => self.complete(transfer, hash, stats),
            Event::Failed { transfer, reason, detail } => {
                self.failed(transfer, reason, detail);
                Ok(())
            }
            _ => Ok(()),
        }
    }

    fn offered(&mut self, transfer: TransferId, from: String, file: SendFile) -> Result<()> {
        let prepared = match self.prepare(&from, &file) {
            Ok(prepared) => prepared,
            Err(Refusal { reason, detail }) => {
                // Who is told to wait offers it again.
                let busy = reason == RefuseReason::Busy;
                self.result.files_refused += u64::from(!busy);
                let how = if busy { "put off" } else { "refused" };
                let text = format!("{how} {} from {from}: {detail}", shown(&file.name));
                self.display.fail(None, &from, &text);
                return self.tell(Command::Refuse { transfer, reason });
            }
        };
        let (what, chunks, answer) = match prepared {
            Prepared::New(incoming, chunks) => {
                let command = Command::Accept { transfer, have: chunks.ranges().to_vec() };
                let answer = self.node.call(command, &[incoming.file().as_fd()]);
                (What::New(incoming), chunks, answer)
            }
            Prepared::There(there) => {
                let command = Command::Compare { transfer };
                let answer = self.node.call(command, &[there.file.as_fd()]);
                (What::There(there), Chunks::default(), answer)
            }
        };
        match answer {
            Ok(Reply::Ok) => {}
            Ok(other) => return Err(target::unexpected(&other)),
            // The sender went away in between: the next offer may be better.
            Err(CallError::Node(e)) => {
                let text = format!("{} from {from}: {}", shown(&file.name), e.message);
                self.display.fail(None, &from, &text);
                return Ok(());
            }
            Err(e) => return Err(failure::call(e)),
        }
        self.display.begin(transfer, &format!("{from}: {}", file.name), file.size);
        let now = Instant::now();
        let active = Active {
            from,
            file,
            what,
            chunks,
            moved: false,
            began: now,
            recorded: now,
            recording: Arc::default(),
            finishing: false,
        };
        self.active.insert(transfer, active);
        Ok(())
    }

    /// Whether and how an offer is taken.
    fn prepare(&self, from: &str, file: &SendFile) -> Result<Prepared, Refusal> {
        let no = |reason, detail: String| Err(Refusal { reason, detail });
        let promised = self.active.len() as u64;
        if self.stopping {
            return no(RefuseReason::NoReceiver, "stopped".into());
        }
        if file.size > self.max_size {
            let text = format!("has {}, --max-size is {}", Bytes(file.size), Bytes(self.max_size));
            return no(RefuseReason::TooLarge, text);
        }
        let of_sender = || self.active.values().filter(|active| active.from == from);
        if !may_hold(of_sender().count(), self.active.len())
            || self.left.is_some_and(|n| promised >= n)
        {
            return no(RefuseReason::Busy, "enough files are on their way".into());
        }
        let bytes_missing = of_sender().map(Active::bytes_missing).sum();
        let prepared = self.inbox.prepare(from, file, bytes_missing)?;
        // An offer costs its sender nothing, and hashing what is there costs this host its length.
        let compared = of_sender().filter(|active| matches!(active.what, What::There(_))).count();
        if matches!(prepared, Prepared::There(_)) && compared >= SHARE_MIN {
            return no(RefuseReason::Busy, "enough files are being compared".into());
        }
        Ok(prepared)
    }

    fn progress(&mut self, progress: &Progress) -> Result<()> {
        if let Some(active) = self.active.get_mut(&progress.transfer) {
            let count = Chunks::count(active.file.size);
            active.moved |= progress.bytes_done > progress.bytes_resumed;
            for (from, to) in &progress.chunks {
                active.chunks.insert(*from, (*to).min(count));
            }
            active.record_now_and_then();
        }
        Ok(self.display.update(progress)?)
    }

    /// Syncing takes as long as the disk takes: not here.
    fn complete(&mut self, transfer: TransferId, hash: String, stats: Progress) -> Result<()> {
        let Some(active) = self.active.get_mut(&transfer) else { return Ok(()) };
        let incoming = match &active.what {
            What::New(incoming) => incoming.clone(),
            What::There(there) => {
                there.settle();
                return self.present(transfer);
            }
        };
        active.finishing = true;
        let (executable, modified_ns) = (active.file.executable, active.file.modified_ns);
        let (sender, waker) = (self.finishing.0.clone(), self.finishing.1.clone());
        std::thread::spawn(move || {
            let began = Instant::now();
            let name = incoming.finish(executable, modified_ns);
            let took = began.elapsed();
            let _ = sender.send(Finished { transfer, name, hash, stats, took });
            let _ = std::io::Write::write(&mut &*waker, &[1]);
        });
        Ok(())
    }

    /// An offered file was there already.
    fn present(&mut self, transfer: TransferId) -> Result<()> {
        let Some(active) = self.active.remove(&transfer) else { return Ok(()) };
        self.tell(Command::Confirm { transfer })?;
        self.result.files_present += 1;
        self.end_one();
        let path = self.inbox.shown(&active.file.name);
        let line = format!("{path} from {}: already there", active.from);
        Ok(self.display.end(transfer, active.file.size, &line)?)
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
                self.display.fail(Some(transfer), &active.from, &format!("{why}{kept}"));
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
        Ok(self.display.end(transfer, active.file.size, &line)?)
    }

    fn failed(&mut self, transfer: TransferId, reason: CancelReason, detail: Option<String>) {
        let Some(active) = self.active.remove(&transfer) else { return };
        let kept = match (&active.what, reason) {
            (What::There(_), CancelReason::Exists) => {
                self.result.files_refused += 1;
                let name = shown(&active.file.name);
                let text = format!(
                    "refused {name} from {}: exists already with other content (see --overwrite \
                     and --rename)",
                    active.from
                );
                return self.display.fail(Some(transfer), &active.from, &text);
            }
            // What a hash spoke against is not to be resumed from.
            (What::New(incoming), CancelReason::HashMismatch | CancelReason::SourceChanged) => {
                incoming.discard();
                String::new()
            }
            _ => active.put_away(),
        };
        self.result.files_failed += 1;
        // Who offers and sends nothing must not use up what others are waited for.
        if active.moved || reason != CancelReason::TimedOut {
            self.end_one();
        }
        let name = shown(&active.file.name);
        let why = failure::ended(reason, detail);
        let text = format!("{name} from {}: {why}{kept}", active.from);
        self.display.fail(Some(transfer), &active.from, &text);
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

    /// What was held back, and the sum where it says more than the lines before.
    fn say_total(&mut self) -> Result<()> {
        self.display.tick(true)?;
        let Totals { files_received, files_present, bytes_received, .. } = self.result;
        if files_received + files_present > 1 {
            let files = counted(files_received as usize, "file");
            let mut text = format!("received {files}, {}", Bytes(bytes_received));
            if files_present > 0 {
                text += &format!("; {files_present} already there");
            }
            self.display.say(&text)?;
        }
        Ok(())
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

/// Whether a sender that holds so many of the places in use may have one more: a few always, more
/// only while at least as many as it holds stay free for others.
fn may_hold(own: usize, all: usize) -> bool {
    let free = MAX_ACTIVE.saturating_sub(all);
    free > 0 && own < SHARE_MAX && (own < SHARE_MIN || own < free)
}

impl Active {
    /// Bytes that are still to come.
    fn bytes_missing(&self) -> u64 {
        match self.what {
            What::New(_) => self.file.size - self.chunks.bytes(self.file.size),
            What::There(_) => 0,
        }
    }

    /// Records what has arrived, off the loop, if it is time and the last record is done.
    fn record_now_and_then(&mut self) {
        let What::New(incoming) = &self.what else { return };
        if self.recorded.elapsed() < RECORD_EVERY || self.recording.swap(true, Ordering::AcqRel) {
            return;
        }
        self.recorded = Instant::now();
        let (incoming, chunks) = (incoming.clone(), self.chunks.clone());
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
        let What::New(incoming) = &self.what else { return String::new() };
        match if incoming.waits() { self.keep(incoming) } else { 0 } {
            0 => {
                incoming.discard();
                String::new()
            }
            kept => format!("; {} are kept and the transfer can resume", Bytes(kept)),
        }
    }

    /// Records what has arrived; returns its bytes.
    fn keep(&self, incoming: &Incoming) -> u64 {
        // A record under way is of older news: it must not come after this one.
        let began = Instant::now();
        while self.recording.swap(true, Ordering::AcqRel) && began.elapsed() < RECORD_EVERY * 5 {
            std::thread::sleep(Duration::from_millis(5));
        }
        let bytes = self.chunks.bytes(self.file.size);
        if bytes > 0 && incoming.record(&self.chunks).is_err() {
            return 0;
        }
        // What can't be cut off holds no more room than what came in.
        let _ = incoming.trim(&self.chunks);
        bytes
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn no_sender_takes_every_place() {
        let greedy = |all: usize| (0..MAX_ACTIVE).find(|own| !may_hold(*own, all + own)).unwrap();
        let mut held = Vec::new();
        for _ in 0..5 {
            held.push(greedy(held.iter().sum()));
        }
        assert_eq!(held, [32, 16, 8, 4, 4]);
        assert!(!may_hold(0, MAX_ACTIVE));
    }
}
