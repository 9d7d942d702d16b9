//! `shoal receive`: receives files from hosts into a folder.

use std::collections::BTreeMap;
use std::os::fd::AsFd;
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::sync::Arc;
use std::sync::mpsc::{Receiver, Sender, channel};
use std::time::{Duration, Instant};

use anyhow::{Context, Result};
use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
use serde::Serialize;
use shoal_daemon::control::api::{
    CancelReason, Command, ControlEvent, ControlReply, RefuseReason, SendFile, SenderFilter,
    TransferId, TransferProgress,
};
use shoal_daemon::control::socket::{CallError, ControlConnection};

use crate::args::ReceiveArgs;
use crate::chunks::Chunks;
use crate::confirm::{can_ask, is_yes};
use crate::credit::Credits;
use crate::failure::{self, ExitError};
use crate::inbox::{NameConflict, OfferPlan, OfferRefusal, ReceiveFolder};
use crate::interrupt::Interrupt;
use crate::options::CommonOptions;
use crate::output::shown;
use crate::progress::{Display, summary};
use crate::target;
use crate::units::{Bytes, counted, span};

mod active;
mod again;
mod places;

use active::{ActiveReceive, ReceiveKind};
use places::{MAX_ACTIVE, OccupiedPlace, RecentRate, SHARE_MIN, gives_way, may_hold};

/// Interval between checks for Ctrl-C, in milliseconds.
const TICK_MS: u16 = 250;
/// Longest wait for a file that is being synced when the node is gone.
const FINISH_WAIT: Duration = Duration::from_secs(10);

/// State of one `shoal receive`, from the first offer to the last.
struct ReceiveSession<'a> {
    node: &'a mut ControlConnection,
    inbox: ReceiveFolder,
    display: Display,
    max_size: u64,
    /// Transfers that may still end before the command does.
    left: Option<u64>,
    active: BTreeMap<TransferId, ActiveReceive>,
    /// Limits of what each sender may make this host hash.
    credits: Credits,
    finished: Receiver<FinishedFile>,
    /// For threads that sync and rename: a channel for results, and a socket that wakes the loop.
    finishing: (Sender<FinishedFile>, Arc<UnixStream>),
    wake: UnixStream,
    /// True after Ctrl-C: no more offers are accepted.
    stopping: bool,
    result: ReceiveTotals,
}

/// The result of syncing and renaming a whole file.
struct FinishedFile {
    transfer: TransferId,
    /// Name beneath the folder, or the error.
    name: Result<String, String>,
    hash: String,
    stats: TransferProgress,
    took: Duration,
}

/// A file that has arrived, for `--json`.
#[derive(Serialize)]
struct ReceivedFile<'a> {
    from: &'a str,
    name: &'a str,
    size: u64,
    hash: &'a str,
    seconds: f64,
    sync_ms: f64,
    gap_ms: f64,
}

/// Totals of the command.
#[derive(Debug, Default, Serialize)]
struct ReceiveTotals {
    files_received: u64,
    /// Files that existed already, with the same content.
    files_present: u64,
    files_failed: u64,
    files_refused: u64,
    /// Times that an offer was refused as busy, or a file gave its place to another sender.
    files_put_off: u64,
    bytes_received: u64,
}

/// Receives until the count is reached or Ctrl-C; fails if any file failed.
pub fn run(common: &CommonOptions, args: &ReceiveArgs) -> Result<()> {
    let taken = match (args.overwrite, args.rename) {
        (true, _) => NameConflict::Overwrite,
        (_, true) => NameConflict::Number,
        _ => NameConflict::Refuse,
    };
    make_folder(args)?;
    let inbox =
        ReceiveFolder::open(&args.dir, taken).map_err(|e| ExitError::of(failure::FAILED, e))?;
    let from = senders(&args.from)?;
    let display = Display::new(common.json, args.quiet, args.verbose);
    let interrupt = Interrupt::catch()?;
    let mut node = target::connect_or_be(common)?;
    let max_size = args.max_size.0;
    let command = || Command::Receive { from: from.clone(), max_size: None };
    node.connection.call(command(), &[]).map_err(failure::call)?;
    let again = if node.runs_here() { None } else { Some(target::socket(common)?) };
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
    let mut receiving = ReceiveSession {
        node: &mut node.connection,
        inbox,
        display,
        max_size,
        left: if args.once { Some(1) } else { args.count },
        active: BTreeMap::new(),
        credits: Credits::default(),
        finished,
        finishing: (sender, Arc::new(waker)),
        wake,
        stopping: false,
        result: ReceiveTotals::default(),
    };
    let ended = loop {
        match (receiving.until_done(&interrupt), &again) {
            (Err(error), Some(socket)) if failure::is_gone(&error) => {
                receiving.keep_what_arrived();
                if let Err(error) = receiving.connect_again(socket, &command, &interrupt) {
                    break Err(error);
                }
            }
            (ended, _) => break ended,
        }
    };
    receiving.keep_what_arrived();
    receiving.say_total()?;
    if common.json {
        crate::output::json("receive", &receiving.result)?;
    }
    ended?;
    match receiving.result.files_failed {
        0 => Ok(()),
        n => Err(ExitError::said(failure::FAILED, format!("{n} files failed"))),
    }
}

/// Makes the folder if it is missing and the user wants it.
fn make_folder(args: &ReceiveArgs) -> Result<()> {
    let missing = std::fs::symlink_metadata(&args.dir)
        .is_err_and(|e| e.kind() == std::io::ErrorKind::NotFound);
    if !missing || !(args.create || (can_ask() && wants_folder(&args.dir)?)) {
        return Ok(());
    }
    std::fs::create_dir_all(&args.dir).map_err(|e| {
        ExitError::of(failure::FAILED, format!("{}: can't be made: {e}", args.dir.display()))
    })
}

fn wants_folder(dir: &Path) -> Result<bool> {
    is_yes(&format!("{} is not there. Make it?", shown(&dir.display().to_string())))
}

fn senders(words: &[String]) -> Result<SenderFilter> {
    match words {
        [any] if any == "any" => Ok(SenderFilter::Any),
        words if words.iter().any(|w| w == "any") => {
            let text = "--from any accepts all hosts: name no other host";
            Err(ExitError::of(failure::USAGE, text))
        }
        words => Ok(SenderFilter::Hosts(words.to_vec())),
    }
}

impl ReceiveSession<'_> {
    fn until_done(&mut self, interrupt: &Interrupt) -> Result<()> {
        while self.left != Some(0) {
            if interrupt.happened() {
                self.stopping = true;
                // A whole file only lacks its name, which takes a moment.
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
        Err(ExitError::of(failure::INTERRUPTED, text))
    }

    fn finishing_any(&self) -> bool {
        self.active.values().any(|active| active.finishing)
    }

    /// Waits for the node, for a thread, or for the end of a tick.
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

    fn handle(&mut self, event: ControlEvent) -> Result<()> {
        match event {
            ControlEvent::Offered { transfer, from, file, chunk } => {
                self.offered(transfer, from, file, chunk)
            }
            ControlEvent::Progress(progress) => self.progress(&progress),
            ControlEvent::Complete { transfer, hash, stats } => {
                self.complete(transfer, hash, stats)
            }
            ControlEvent::Failed { transfer, reason, detail } => {
                self.failed(transfer, reason, detail);
                Ok(())
            }
            _ => Ok(()),
        }
    }

    fn offered(
        &mut self,
        transfer: TransferId,
        from: String,
        file: SendFile,
        chunk: u64,
    ) -> Result<()> {
        let (prepared, hashes) = match self.prepare(&from, &file, chunk) {
            Ok((prepared, hashes, put_off)) => {
                if let Some(other) = put_off {
                    self.put_off(other)?;
                }
                (prepared, hashes)
            }
            Err(OfferRefusal { reason, detail }) => {
                // The sender offers the file again after `busy`.
                let busy = reason == RefuseReason::Busy;
                self.result.files_refused += u64::from(!busy);
                self.result.files_put_off += u64::from(busy);
                let how = if busy { "put off" } else { "refused" };
                let text = format!("{how} {} from {from}: {detail}", shown(&file.name));
                self.display.fail(None, &from, &text);
                return self.tell(Command::Refuse { transfer, reason });
            }
        };
        let (what, chunks, answer) = match prepared {
            OfferPlan::New(incoming, chunks) => {
                let command = Command::Accept { transfer, have: chunks.ranges().to_vec() };
                let answer = self.node.call(command, &[incoming.file().as_fd()]);
                (ReceiveKind::New(incoming), chunks, answer)
            }
            OfferPlan::There(there) => {
                let command = Command::Compare { transfer };
                let answer = self.node.call(command, &[there.file.as_fd()]);
                (ReceiveKind::There(there), Chunks::default(), answer)
            }
        };
        match answer {
            Ok(ControlReply::Ok) => {}
            Ok(other) => return Err(target::unexpected(&other)),
            // The sender is gone; the command continues with the next offer.
            Err(CallError::Node(e)) => {
                self.credits.give(Instant::now(), &from, hashes);
                let text = format!("{} from {from}: {}", shown(&file.name), e.message);
                self.display.fail(None, &from, &text);
                return Ok(());
            }
            Err(e) => return Err(failure::call(e)),
        }
        self.display.begin(transfer, &format!("{from}: {}", file.name), file.size);
        let now = Instant::now();
        let active = ActiveReceive {
            from,
            file,
            what,
            chunks,
            hashes,
            moved: false,
            pace: RecentRate::new(now),
            began: now,
            recorded: now,
            recording: Arc::default(),
            finishing: false,
        };
        self.active.insert(transfer, active);
        Ok(())
    }

    /// Decides on an offer. Returns the way of receiving the file, the bytes of existing files to
    /// hash for it, and a transfer to put off.
    fn prepare(
        &mut self,
        from: &str,
        file: &SendFile,
        chunk: u64,
    ) -> Result<(OfferPlan, u64, Option<TransferId>), OfferRefusal> {
        let no = |reason, detail: String| Err(OfferRefusal { reason, detail });
        if self.stopping {
            return no(RefuseReason::NoReceiver, "stopped".into());
        }
        if file.size > self.max_size {
            let text = format!("has {}, --max-size is {}", Bytes(file.size), Bytes(self.max_size));
            return no(RefuseReason::TooLarge, text);
        }
        let Some(put_off) = self.place(from) else {
            return no(RefuseReason::Busy, "enough files are on their way".into());
        };
        let of_sender = || self.active.values().filter(|active| active.from == from);
        let bytes_missing = of_sender().map(ActiveReceive::bytes_missing).sum();
        let prepared = self.inbox.prepare(from, file, chunk, bytes_missing)?;
        // An offer costs its sender nothing, but makes this host hash an existing file.
        let compared =
            of_sender().filter(|active| matches!(active.what, ReceiveKind::There(_))).count();
        if matches!(prepared, OfferPlan::There(_)) && compared >= SHARE_MIN {
            return no(RefuseReason::Busy, "enough files are being compared".into());
        }
        let hashes = prepared.hashes(file.size);
        if hashes > 0
            && let Err(wait) = self.credits.take(Instant::now(), from, hashes)
        {
            let text =
                format!("too many comparisons for the sender failed; again in {}", span(wait));
            return no(RefuseReason::Busy, text);
        }
        Ok((prepared, hashes, put_off))
    }

    /// Finds a place for one more file of a sender, and the transfer that gives it up, if any.
    fn place(&self, from: &str) -> Option<Option<TransferId>> {
        let all = self.active.len();
        let own = self.active.values().filter(|active| active.from == from).count();
        let taken = self.left.is_some_and(|n| all as u64 >= n);
        if !taken && may_hold(own, all) {
            return Some(None);
        }
        if !taken && all < MAX_ACTIVE {
            return None;
        }
        let held = self.active.iter().map(|(&transfer, active)| OccupiedPlace {
            transfer,
            from: &active.from,
            pace: active.pace,
            finishing: active.finishing,
        });
        let held: Vec<OccupiedPlace> = held.collect();
        gives_way(&held, from, !taken, Instant::now()).map(Some)
    }

    /// Ends a transfer in favour of another sender; its data is kept.
    fn put_off(&mut self, transfer: TransferId) -> Result<()> {
        self.tell(Command::Cancel { transfer, reason: CancelReason::PutOff })?;
        let Some(active) = self.active.remove(&transfer) else { return Ok(()) };
        self.credits.ended(Instant::now(), &active.from, active.hashes, active.began.elapsed());
        self.result.files_put_off += 1;
        let (name, kept) = (shown(&active.file.name), active.put_away());
        let text = format!("put off {name} from {}: another sender waits{kept}", active.from);
        self.display.fail(Some(transfer), &active.from, &text);
        Ok(())
    }

    fn progress(&mut self, progress: &TransferProgress) -> Result<()> {
        if let Some(active) = self.active.get_mut(&progress.transfer) {
            let count = active.chunks.count(active.file.size);
            let came = progress.bytes_done.saturating_sub(progress.bytes_resumed);
            active.moved |= came > 0;
            active.pace.note(Instant::now(), came);
            for (from, to) in &progress.chunks {
                active.chunks.insert(*from, (*to).min(count));
            }
            active.record_now_and_then();
        }
        Ok(self.display.update(progress)?)
    }

    /// Starts a thread that syncs and renames a whole file, since syncing may take long.
    fn complete(
        &mut self,
        transfer: TransferId,
        hash: String,
        stats: TransferProgress,
    ) -> Result<()> {
        let Some(active) = self.active.get_mut(&transfer) else { return Ok(()) };
        // The sender's hash agrees, so the bytes that it sent add to its credit.
        let sent = active.file.size.saturating_sub(stats.bytes_resumed);
        let hashed = std::mem::take(&mut active.hashes);
        self.credits.give(Instant::now(), &active.from, hashed.saturating_add(sent));
        let incoming = match &active.what {
            ReceiveKind::New(incoming) => incoming.clone(),
            ReceiveKind::There(there) => {
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
            let _ = sender.send(FinishedFile { transfer, name, hash, stats, took });
            let _ = std::io::Write::write(&mut &*waker, &[1]);
        });
        Ok(())
    }

    /// Ends a transfer whose file existed already, with the same content.
    fn present(&mut self, transfer: TransferId) -> Result<()> {
        let Some(active) = self.active.remove(&transfer) else { return Ok(()) };
        self.tell(Command::Confirm { transfer })?;
        self.result.files_present += 1;
        self.end_one();
        let path = self.inbox.shown(&active.file.name);
        let line = format!("{path} from {}: already there", active.from);
        Ok(self.display.end(transfer, active.file.size, &line)?)
    }

    fn finish(&mut self, finished: FinishedFile) -> Result<()> {
        let FinishedFile { transfer, name, hash, stats, took: sync } = finished;
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
            let received = ReceivedFile {
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
        let stats = TransferProgress { bytes_total: active.file.size, ..stats };
        let path = self.inbox.shown(&name);
        let line = format!("{path} from {}: {}", active.from, summary(&stats, took));
        Ok(self.display.end(transfer, active.file.size, &line)?)
    }

    fn failed(&mut self, transfer: TransferId, reason: CancelReason, detail: Option<String>) {
        let Some(active) = self.active.remove(&transfer) else { return };
        let (now, took) = (Instant::now(), active.began.elapsed());
        self.credits.ended(now, &active.from, active.hashes, took);
        let kept = match (&active.what, reason) {
            (ReceiveKind::There(_), CancelReason::Exists) => {
                self.result.files_refused += 1;
                let name = shown(&active.file.name);
                let text = format!(
                    "refused {name} from {}: exists already with other content (see --overwrite \
                     and --rename)",
                    active.from
                );
                return self.display.fail(Some(transfer), &active.from, &text);
            }
            // After a wrong hash no data is kept for a resumed transfer.
            (
                ReceiveKind::New(incoming),
                CancelReason::HashMismatch | CancelReason::SourceChanged,
            ) => {
                incoming.discard();
                String::new()
            }
            _ => active.put_away(),
        };
        self.result.files_failed += 1;
        // A transfer without data doesn't count for `--count`, or it would end the command early.
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

    /// Sends a command about a transfer; ignores the error that the transfer is gone.
    fn tell(&mut self, command: Command) -> Result<()> {
        match self.node.call(command, &[]) {
            Ok(_) | Err(CallError::Node(_)) => Ok(()),
            Err(e) => Err(failure::call(e)),
        }
    }

    /// Prints the count of lines held back, and totals if there was more than one file.
    fn say_total(&mut self) -> Result<()> {
        self.display.tick(true)?;
        let ReceiveTotals { files_received, files_present, bytes_received, .. } = self.result;
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

    /// Keeps incomplete files for resumed transfers, at the end of the command.
    fn keep_what_arrived(&mut self) {
        // The node is gone, but a thread may still be renaming a file.
        let patience = Instant::now() + FINISH_WAIT;
        while self.finishing_any() {
            let left = patience.saturating_duration_since(Instant::now());
            let Ok(finished) = self.finished.recv_timeout(left) else { break };
            if let Some(active) = self.active.remove(&finished.transfer) {
                active.put_away();
            }
        }
        for (transfer, active) in std::mem::take(&mut self.active) {
            self.display.forget(transfer);
            active.put_away();
        }
    }
}
