//! `shoal send`: sends files and folders to a host.

use std::collections::{BTreeMap, VecDeque};
use std::os::fd::AsFd;
use std::time::{Duration, Instant};

use anyhow::Result;
use serde::Serialize;
use shoal_daemon::control::api::{
    CancelReason, Command, ControlEvent, ControlReply, ErrorCode, RefuseReason, TransferId,
    TransferProgress,
};
use shoal_daemon::control::socket::{CallError, ControlConnection};

use crate::args::SendArgs;
use crate::failure::{self, ExitError};
use crate::interrupt::Interrupt;
use crate::options::CommonOptions;
use crate::progress::{Display, rate, summary};
use crate::sources::{self, FileSource, OpenedFile};
use crate::target;
use crate::units::counted;

/// Interval between checks for Ctrl-C and for files that wait for their receiver.
const TICK: Duration = Duration::from_millis(200);
/// Pause before a missing receiver is asked again.
const ASK_AGAIN: Duration = Duration::from_secs(1);
/// Least time for which a file that was put off is offered again.
const PUT_OFF_WAIT: Duration = Duration::from_secs(60);
/// Time without an answer after which the user is told the reason.
const QUIET_MAX: Duration = Duration::from_secs(2);

/// State of one `shoal send`, from the first file to the last.
struct SendSession<'a> {
    node: &'a mut ControlConnection,
    host: String,
    parallel: usize,
    display: Display,
    waiting: VecDeque<FileSource>,
    active: BTreeMap<TransferId, ActiveSend>,
    /// True if the receiver has answered.
    answered: bool,
    /// True if the user was told that the receiver hasn't answered.
    told: bool,
    /// Time to give up on a missing receiver.
    patience: Instant,
    wait: Duration,
    /// Time before which nothing is offered.
    not_before: Option<Instant>,
    result: SendTotals,
    /// Exit code of the worst failure.
    code: u8,
}

struct ActiveSend {
    source: FileSource,
    opened: OpenedFile,
    began: Instant,
    /// True if the receiver accepted the file, so it can be reached.
    accepted: bool,
    /// True if the receiver had the whole file.
    there: bool,
}

/// Totals of the command.
#[derive(Debug, Default, Serialize)]
struct SendTotals {
    host: String,
    files_sent: u64,
    /// Files that the receiver had already, with the same content.
    files_present: u64,
    files_failed: u64,
    /// Bytes sent, without files that the receiver had.
    bytes_sent: u64,
    retransmitted_bytes: u64,
    skipped: Vec<String>,
    /// Files that could not be offered; they count as failed.
    unfit: Vec<String>,
    seconds: f64,
}

/// Sends everything; fails if any file failed.
pub fn run(common: &CommonOptions, args: &SendArgs) -> Result<()> {
    let host = args.host.clone();
    let found = sources::find(&args.files, args.name.as_deref())?;
    let display = Display::new(common.json, args.quiet, args.verbose);
    if let ([], [], [why]) = (&found.sources[..], &found.skipped[..], &found.unfit[..]) {
        return Err(ExitError::of(failure::FAILED, why));
    }
    for line in found.skipped.iter().chain(&found.unfit) {
        eprintln!("shoal: {line}");
    }
    if found.sources.is_empty() {
        return Err(ExitError::of(failure::FAILED, "there is no file to send"));
    }
    let (count, bytes) = (found.sources.len(), found.sources.iter().map(|s| s.size).sum());
    if count > 1 {
        display.say(&format!("{count} files, {}", crate::units::Bytes(bytes)))?;
    }
    let interrupt = Interrupt::catch()?;
    let mut node = target::connect_or_be(common)?;
    let (began, wait) = (Instant::now(), Duration::from_secs_f64(args.wait));
    let mut sending = SendSession {
        node: &mut node.connection,
        host: host.clone(),
        parallel: usize::from(args.parallel),
        display,
        waiting: found.sources.into(),
        active: BTreeMap::new(),
        answered: false,
        told: false,
        patience: began + wait,
        wait,
        not_before: None,
        result: SendTotals {
            host,
            files_failed: found.unfit.len() as u64,
            skipped: found.skipped,
            unfit: found.unfit,
            ..SendTotals::default()
        },
        code: failure::FAILED,
    };
    let ended = sending.until_done(&interrupt);
    sending.display.tick(true)?;
    let SendSession { mut result, display, code, active, waiting, .. } = sending;
    result.seconds = began.elapsed().as_secs_f64();
    if count > 1 {
        display.say(&total(&result, began.elapsed()))?;
    }
    if common.json {
        crate::output::json("send", &result)?;
    }
    if let Err(error) = ended {
        let open = active.len() + waiting.len();
        let are = if open == 1 { "is" } else { "are" };
        let text = match open {
            // Nothing was begun, and the error says why.
            _ if open == count && active.is_empty() => format!("{error:#}"),
            n => format!("{error:#}; {} {are} not at {}", counted(n, "file"), result.host),
        };
        let code = error.downcast_ref::<ExitError>().map_or(code, |f| f.code);
        return Err(ExitError::of(code, text));
    }
    match result.files_failed {
        0 => Ok(()),
        1 => Err(ExitError::said(code, "one file was not sent")),
        n => Err(ExitError::of(code, format!("{n} files were not sent"))),
    }
}

/// `sent 9,000 files to bob: 1.2 GB in 10.00 s, 120.0 MB/s; 3 already there; 2 not sent`.
fn total(result: &SendTotals, took: Duration) -> String {
    let files = counted(result.files_sent as usize, "file");
    let mut text = format!("sent {files} to {}: {}", result.host, rate(result.bytes_sent, took));
    if result.files_present > 0 {
        text += &format!("; {} already there", result.files_present);
    }
    if result.files_failed > 0 {
        text += &format!("; {} not sent", result.files_failed);
    }
    text
}

impl SendSession<'_> {
    fn until_done(&mut self, interrupt: &Interrupt) -> Result<()> {
        loop {
            self.begin_more()?;
            if self.waiting.is_empty() && self.active.is_empty() {
                return Ok(());
            }
            if interrupt.happened() {
                let text = "stopped; sending the same files again resumes";
                return Err(ExitError::of(failure::INTERRUPTED, text));
            }
            self.display.tick(false)?;
            if let Some(event) = self.node.event(Some(TICK)).map_err(failure::call)? {
                self.display.event(&event)?;
                self.handle(event)?;
            }
            self.say_what_is_waited_for()?;
        }
    }

    /// Tells the user once that the receiver hasn't answered for a while, and why.
    fn say_what_is_waited_for(&mut self) -> Result<()> {
        let since = self.active.values().map(|active| active.began).min();
        let quiet = since.is_some_and(|began| began.elapsed() >= QUIET_MAX);
        if self.answered || self.told || !quiet {
            return Ok(());
        }
        let (host, why) = (self.host.clone(), self.why_silent()?);
        self.say_once(format!("waiting for {host}, which doesn't answer: {why}"));
        Ok(())
    }

    /// Reason why the receiver may be silent, as far as this node can tell.
    fn why_silent(&mut self) -> Result<String> {
        if let ControlReply::Circuits(circuits) =
            self.node.call(Command::Circuits, &[]).map_err(failure::call)?
            && let Some(why) = crate::circuits::missing(&circuits, &self.host)
        {
            return Ok(why);
        }
        Ok(match self.node.call(Command::Status, &[]).map_err(failure::call)? {
            ControlReply::Status(status) if status.links_up == 0 => {
                "no link of this node is up (see `shoal peers`)".into()
            }
            _ => {
                let host = &self.host;
                format!("the node doesn't run, or no route leads there (try `shoal ping {host}`)")
            }
        })
    }

    /// Offers files until `parallel` of them are being sent.
    fn begin_more(&mut self) -> Result<()> {
        if self.not_before.is_some_and(|at| Instant::now() < at) {
            return Ok(());
        }
        self.not_before = None;
        let mut batch = Vec::new();
        while self.active.len() + batch.len() < self.parallel {
            let Some(source) = self.waiting.pop_front() else { break };
            match sources::open(&source) {
                Ok(opened) => {
                    let (accepted, there) = (false, false);
                    batch.push(ActiveSend {
                        source,
                        opened,
                        began: Instant::now(),
                        accepted,
                        there,
                    })
                }
                Err(e) => self.failed(None, failure::FAILED, &e.to_string()),
            }
        }
        if batch.is_empty() {
            return Ok(());
        }
        let files = batch.iter().map(|a| a.opened.described.clone()).collect();
        let descriptors: Vec<_> = batch.iter().map(|a| a.opened.file.as_fd()).collect();
        let command = Command::Send { host: self.host.clone(), files };
        match self.node.call(command, &descriptors) {
            Ok(ControlReply::Sending { transfers }) if transfers.len() == batch.len() => {
                for (transfer, active) in transfers.into_iter().zip(batch) {
                    let file = &active.opened.described;
                    self.display.begin(transfer, &file.name, file.size);
                    self.active.insert(transfer, active);
                }
                Ok(())
            }
            Ok(other) => Err(target::unexpected(&other)),
            Err(e) => {
                for active in batch.into_iter().rev() {
                    self.waiting.push_front(active.source);
                }
                match e {
                    CallError::Node(e) if self.may_wait(e.code) => {
                        self.not_before = Some(Instant::now() + ASK_AGAIN);
                        Ok(())
                    }
                    e => Err(failure::call(e)),
                }
            }
        }
    }

    fn may_wait(&self, code: ErrorCode) -> bool {
        let passing = [ErrorCode::Unreachable, ErrorCode::TimedOut, ErrorCode::Busy];
        passing.contains(&code) && Instant::now() < self.patience
    }

    fn handle(&mut self, event: ControlEvent) -> Result<()> {
        match event {
            ControlEvent::Accepted { transfer, resumed_bytes, whole } => {
                let Some(active) = self.active.get_mut(&transfer) else { return Ok(()) };
                active.accepted = true;
                active.there = whole;
                // The rate counts from here, when bytes begin to travel.
                active.began = Instant::now();
                self.answered = true;
                if resumed_bytes > 0 && !whole {
                    let resumed = crate::units::Bytes(resumed_bytes);
                    let text = format!("{}: resumed after {resumed}", active.source.name);
                    self.display.say(&text)?;
                }
            }
            ControlEvent::Progress(progress) => self.display.update(&progress)?,
            ControlEvent::Done { transfer, stats, .. } => self.done(transfer, &stats)?,
            ControlEvent::Refused { transfer, reason } => self.refused(transfer, reason),
            ControlEvent::Failed { transfer, reason, detail } => {
                let lost = matches!(reason, CancelReason::TimedOut | CancelReason::PeerLost);
                if lost && self.active.get(&transfer).is_some_and(|active| !active.accepted) {
                    return self.unreachable(transfer);
                }
                if reason == CancelReason::Exists {
                    self.refused(transfer, RefuseReason::Exists);
                    return Ok(());
                }
                if reason == CancelReason::PutOff {
                    return self.put_off(transfer);
                }
                let code = if lost { failure::UNREACHABLE } else { failure::FAILED };
                self.failed(Some(transfer), code, &failure::ended(reason, detail));
            }
            _ => {}
        }
        Ok(())
    }

    fn done(&mut self, transfer: TransferId, stats: &TransferProgress) -> Result<()> {
        let Some(active) = self.active.get(&transfer) else { return Ok(()) };
        if let Some(how) = sources::changed(&active.opened) {
            let text = format!("the file changed while it was being sent: {how}; send it again");
            self.failed(Some(transfer), failure::FAILED, &text);
            return Ok(());
        }
        let name = crate::output::shown(&active.source.name);
        let size = stats.bytes_total;
        let there = active.there;
        let how = if there {
            "already there".to_string()
        } else {
            summary(stats, active.began.elapsed())
        };
        let line = format!("{name} -> {}: {how}", self.host);
        self.active.remove(&transfer);
        if there {
            self.result.files_present += 1;
        } else {
            self.result.files_sent += 1;
            self.result.bytes_sent += size.saturating_sub(stats.bytes_resumed);
        }
        self.result.retransmitted_bytes += stats.retransmitted_bytes;
        Ok(self.display.end(transfer, size, &line)?)
    }

    fn refused(&mut self, transfer: TransferId, reason: RefuseReason) {
        self.answered = true;
        // The receiver is busy: the file waits until another one has ended.
        let others = self.active.iter().filter(|(id, active)| **id != transfer && active.accepted);
        let others = others.count();
        if reason == RefuseReason::Busy && others > 0 {
            self.parallel = self.parallel.min(others);
            self.put_back(transfer);
            return;
        }
        let passing = matches!(reason, RefuseReason::NoReceiver | RefuseReason::Busy);
        if passing && self.later(transfer) {
            self.say_once(format!("waiting for {}: {}", self.host, reason.words()));
        } else {
            let text = format!("refused by {}: {}", self.host, reason.words());
            self.failed(Some(transfer), failure::REFUSED, &text);
            if reason == RefuseReason::NoReceiver {
                self.give_up();
            }
        }
    }

    /// Offers a file again that the receiver put off in favour of another sender.
    fn put_off(&mut self, transfer: TransferId) -> Result<()> {
        let Some(active) = self.active.get(&transfer) else { return Ok(()) };
        let name = crate::output::shown(&active.source.name);
        self.display
            .say(&format!("{name}: {}; it is offered again", CancelReason::PutOff.words()))?;
        self.patience = self.patience.max(Instant::now() + self.wait.max(PUT_OFF_WAIT));
        self.refused(transfer, RefuseReason::Busy);
        Ok(())
    }

    fn unreachable(&mut self, transfer: TransferId) -> Result<()> {
        if !self.later(transfer) {
            let why = self.why_silent()?;
            let text = format!("{} can't be reached: {why}", self.host);
            self.failed(Some(transfer), failure::UNREACHABLE, &text);
            self.give_up();
        }
        Ok(())
    }

    /// Counts all files that were not offered yet as failed, without naming each.
    fn give_up(&mut self) {
        let rest = std::mem::take(&mut self.waiting).len();
        self.result.files_failed += rest as u64;
        if rest > 0 {
            let text = format!("{} not offered", counted(rest, "more file"));
            self.display.fail(None, &self.host, &text);
        }
    }

    /// Puts a file back to be offered again, if the user still wants to wait.
    fn later(&mut self, transfer: TransferId) -> bool {
        let patient = Instant::now() < self.patience;
        patient && self.put_back(transfer)
    }

    fn put_back(&mut self, transfer: TransferId) -> bool {
        let Some(active) = self.active.remove(&transfer) else { return false };
        self.display.forget(transfer);
        self.waiting.push_front(active.source);
        self.not_before = Some(Instant::now() + ASK_AGAIN);
        true
    }

    fn say_once(&mut self, text: String) {
        if !std::mem::replace(&mut self.told, true) {
            self.display.note(&format!("{text}; Ctrl-C stops"));
        }
    }

    fn failed(&mut self, transfer: Option<TransferId>, code: u8, why: &str) {
        self.result.files_failed += 1;
        self.code = code;
        let name = transfer.and_then(|t| self.active.remove(&t)).map(|a| a.source.name);
        let line = match name {
            Some(name) => format!("{}: {why}", crate::output::shown(&name)),
            None => why.to_string(),
        };
        self.display.fail(transfer, &self.host, &line);
    }
}
