//! Transfers of files: connects the transfer state machine with disk threads and programs.
//!
//! ```text
//! Send    -> offer ... Accepted -> disk thread reads -> segments ... Finished -> Done
//! Receive -> inbox ... Offered  -> Accept + file -> disk thread writes ... Complete -> Confirm
//! ```
//!
//! Invariant: a transfer belongs to one connected program and ends with it. A file is touched only
//! if that program passed its descriptor in.

use std::collections::BTreeMap;
use std::time::Duration;

use nix::fcntl::OFlag;
use shoal_crypto::encoding::hex;
use shoal_edge::{Edge, HostId};
use shoal_transfer::{FileTransferEvent as FileEvent, OfferInfo, TransferFailure, TransferId};
use shoal_wire::Time;
use shoal_wire::transfer::{CancelReason as WireCancel, RefuseReason as WireRefuse};

use crate::control::api::{
    CancelReason, ControlEvent, ControlReply, ErrorCode, MAX_DESCRIPTORS, RefuseReason, SendFile,
    SenderFilter, TransferProgress,
};
use crate::control::socket::{Client, ClientId, HandedFile};
use crate::files::disk::{self, DiskReply, DiskRequest, DiskThread};
use crate::tun::names::NodeNames;
use crate::worker::wake::WakingOutlet;

mod accept;
mod ends;
mod words;

use words::{
    beyond, check_file, from_wire_cancel, from_wire_refuse, offer_info, ranges, to_wire_cancel,
    to_wire_refuse,
};

/// Time between two progress reports to a program.
const PROGRESS_EVERY: Duration = Duration::from_millis(200);
/// Up to this many transfers, the longest gap is measured after every batch; with more, at every
/// report.
const GAPS_WATCHED: usize = 16;

/// An answer of a disk thread, with the number of its transfer.
pub type DiskAnswer = (u64, DiskReply);

pub struct Files {
    transfers: BTreeMap<u64, ProgramTransfer>,
    inboxes: Vec<Mailbox>,
    answers: WakingOutlet<DiskAnswer>,
    report_at: Option<Time>,
}

/// A program that receives files.
struct Mailbox {
    client: Client,
    /// Hosts whose files it takes; none means all.
    from: Option<Vec<HostId>>,
    max_size: Option<u64>,
}

/// Progress of a transfer and its program.
enum TransferStage {
    /// Sender: the receiver has not answered. Receiver: the program has not answered.
    Offered(Option<HandedFile>),
    /// A disk thread reads or writes the file.
    Moving(DiskThread),
    /// Receiver: the file is complete, and the program syncs and renames it.
    Whole,
}

struct ProgramTransfer {
    client: Client,
    host: HostId,
    sending: bool,
    info: OfferInfo,
    stage: TransferStage,
    hash: Option<[u8; 32]>,
    /// Reason for a failure of the disk.
    detail: Option<String>,
    /// Chunks written since the last report.
    fresh: Vec<u32>,
    reported_at: Time,
    reported_bytes: u64,
    rate: f64,
    seen_bytes: u64,
    seen_at: Option<Time>,
    gap: Duration,
    /// As of the last report.
    stats: shoal_transfer::FileProgress,
}

impl ProgramTransfer {
    fn new(
        client: Client,
        (host, sending): (HostId, bool),
        info: OfferInfo,
        stage: TransferStage,
        now: Time,
    ) -> ProgramTransfer {
        ProgramTransfer {
            client,
            host,
            sending,
            info,
            stage,
            hash: None,
            detail: None,
            fresh: Vec::new(),
            reported_at: now,
            reported_bytes: 0,
            rate: 0.0,
            seen_bytes: 0,
            seen_at: None,
            gap: Duration::ZERO,
            stats: shoal_transfer::FileProgress::default(),
        }
    }

    /// Begins to measure rates and gaps. The `resumed` bytes of the receiver do not count.
    fn begins(&mut self, now: Time, resumed: u64) {
        (self.reported_at, self.reported_bytes) = (now, resumed);
        self.seen_bytes = self.seen_bytes.max(resumed);
    }

    fn watch(&mut self, now: Time, bytes_done: u64) {
        if bytes_done > self.seen_bytes {
            if let Some(at) = self.seen_at {
                self.gap = self.gap.max(now.since(at));
            }
            self.seen_bytes = bytes_done;
            self.seen_at = Some(now);
        }
    }

    fn progress(
        &mut self,
        id: u64,
        now: Time,
        stats: &shoal_transfer::FileProgress,
    ) -> TransferProgress {
        self.watch(now, stats.bytes_done);
        self.stats = *stats;
        let passed = now.since(self.reported_at).as_secs_f64();
        let fresh_bytes = stats.bytes_done.saturating_sub(self.reported_bytes);
        if passed > 0.0 {
            let newest = fresh_bytes as f64 / passed;
            // An average over half a second looks steady and follows changes fast.
            let weight = (passed / 0.5).min(1.0);
            self.rate += (newest - self.rate) * weight;
        }
        (self.reported_at, self.reported_bytes) = (now, stats.bytes_done);
        let open_gap = match self.seen_at {
            Some(at) if stats.bytes_done < stats.bytes_total => now.since(at),
            _ => Duration::ZERO,
        };
        let lost = stats.lost_segments as f64 / stats.sent_segments.max(1) as f64;
        TransferProgress {
            transfer: id,
            bytes_done: stats.bytes_done,
            bytes_total: self.info.size,
            bytes_resumed: stats.bytes_resumed,
            rate: self.rate,
            retransmitted_bytes: stats.retransmitted_bytes,
            loss: lost,
            rtt_us: (!stats.rtt.is_zero()).then_some(stats.rtt.as_micros() as u64),
            gap_ms: self.gap.max(open_gap).as_secs_f64() * 1e3,
            chunks: ranges(&mut self.fresh),
        }
    }

    /// Reports the chunks since the last report, then the failure. The program can resume from the
    /// reported chunks.
    fn fail(&mut self, id: u64, now: Time, reason: CancelReason, detail: Option<String>) {
        if !self.fresh.is_empty() {
            let stats = self.stats;
            let progress = self.progress(id, now, &stats);
            self.client.event(ControlEvent::Progress(progress));
        }
        self.client.event(ControlEvent::Failed { transfer: id, reason, detail });
    }
}

impl Files {
    /// Begins without transfers. Disk threads answer through `answers`.
    pub fn new(answers: WakingOutlet<DiskAnswer>) -> Files {
        Files { transfers: BTreeMap::new(), inboxes: Vec::new(), answers, report_at: None }
    }

    /// Number of transfers.
    pub fn count(&self) -> usize {
        self.transfers.len()
    }

    /// Offers files to a host.
    pub fn send(
        &mut self,
        now: Time,
        edge: &mut Edge,
        client: &Client,
        host: HostId,
        files: Vec<SendFile>,
        descriptors: Vec<HandedFile>,
    ) -> ControlReply {
        let mut checked = Vec::with_capacity(files.len());
        if files.is_empty() || files.len() > MAX_DESCRIPTORS || files.len() != descriptors.len() {
            let text = format!("expected 1 to {MAX_DESCRIPTORS} files with one descriptor each");
            return ControlReply::error(ErrorCode::BadRequest, text);
        }
        for (file, descriptor) in files.into_iter().zip(descriptors) {
            match offer_info(file).and_then(|info| {
                check_file(&descriptor, info.size, OFlag::O_RDONLY)?;
                Ok(info)
            }) {
                Ok(info) => checked.push((info, descriptor)),
                Err(text) => return ControlReply::error(ErrorCode::BadRequest, text),
            }
        }
        let mut transfers = Vec::with_capacity(checked.len());
        for (mut info, file) in checked {
            info.segment = edge.segment_len(host);
            match edge.offer(now, host, info.clone()) {
                Ok(TransferId(id)) => {
                    let stage = TransferStage::Offered(Some(file));
                    let transfer =
                        ProgramTransfer::new(client.clone(), (host, true), info, stage, now);
                    self.transfers.insert(id, transfer);
                    transfers.push(id);
                }
                Err(reason) => {
                    for id in transfers {
                        self.transfers.remove(&id);
                        edge.transfers().cancel(now, TransferId(id), WireCancel::Cancelled);
                    }
                    let text = format!("this node has too many transfers ({})", reason.label());
                    return ControlReply::error(ErrorCode::Busy, text);
                }
            }
        }
        ControlReply::Sending { transfers }
    }

    /// Makes `client` the inbox for files of these senders.
    pub fn receive(
        &mut self,
        client: &Client,
        from: &SenderFilter,
        max_size: Option<u64>,
        names: &NodeNames,
    ) -> ControlReply {
        let from = match from {
            SenderFilter::Any => None,
            SenderFilter::Hosts(hosts) => {
                let mut ids = Vec::with_capacity(hosts.len());
                for name in hosts {
                    match names.find(name) {
                        Some(id) => ids.push(id),
                        None => return names.unknown(name),
                    }
                }
                Some(ids)
            }
        };
        let clashes = |inbox: &Mailbox| match (&inbox.from, &from) {
            (None, _) | (_, None) => true,
            (Some(a), Some(b)) => a.iter().any(|id| b.contains(id)),
        };
        if self.inboxes.iter().any(clashes) {
            let text = "another `shoal receive` takes files from these hosts already; stop it, or \
                        name other hosts with --from";
            return ControlReply::error(ErrorCode::Busy, text);
        }
        self.inboxes.push(Mailbox { client: client.clone(), from, max_size });
        ControlReply::Receiving
    }

    pub fn refuse(
        &mut self,
        now: Time,
        edge: &mut Edge,
        client: ClientId,
        id: u64,
        reason: RefuseReason,
    ) -> ControlReply {
        if self.owned(client, id, |t| matches!(t.stage, TransferStage::Offered(None))).is_none() {
            return unknown_transfer();
        }
        self.transfers.remove(&id);
        edge.transfers().refuse(now, TransferId(id), to_wire_refuse(reason));
        ControlReply::Ok
    }

    /// The received file has its final name.
    pub fn confirm(
        &mut self,
        now: Time,
        edge: &mut Edge,
        client: ClientId,
        id: u64,
    ) -> ControlReply {
        if self.owned(client, id, |t| matches!(t.stage, TransferStage::Whole)).is_none() {
            return unknown_transfer();
        }
        self.transfers.remove(&id);
        edge.transfers().confirm(now, TransferId(id));
        ControlReply::Ok
    }

    pub fn cancel(
        &mut self,
        now: Time,
        edge: &mut Edge,
        client: ClientId,
        id: u64,
        reason: CancelReason,
    ) -> ControlReply {
        if self.owned(client, id, |_| true).is_none() {
            return unknown_transfer();
        }
        self.transfers.remove(&id);
        edge.transfers().cancel(now, TransferId(id), to_wire_cancel(reason));
        ControlReply::Ok
    }

    fn owned(
        &self,
        client: ClientId,
        id: u64,
        fits: impl Fn(&ProgramTransfer) -> bool,
    ) -> Option<&ProgramTransfer> {
        self.transfers.get(&id).filter(|t| t.client.id() == client && fits(t))
    }

    /// Handles an event of the transfer state machine.
    pub fn handle_event(
        &mut self,
        now: Time,
        edge: &mut Edge,
        event: FileEvent,
        names: &NodeNames,
    ) {
        match event {
            FileEvent::Offered { id, from, info } => {
                if let Err(reason) = self.offered(now, id.0, from.into(), info, names) {
                    edge.transfers().refuse(now, id, reason);
                }
            }
            FileEvent::Accepted { id, resumed, whole } => {
                self.accepted(now, edge, id, (resumed, whole));
            }
            FileEvent::Read { id, index, len, buffer, .. } => {
                self.ask(now, edge, id, DiskRequest::Read { index, buffer, len });
            }
            FileEvent::Write { id, index, len, data, .. } => {
                self.ask(now, edge, id, DiskRequest::Write { index, buffer: data, len });
            }
            FileEvent::HashWanted { id } => self.ask(now, edge, id, DiskRequest::Hash),
            FileEvent::Complete { id, hash } => self.complete(now, edge, id, hash),
            FileEvent::Finished { id, stats } => {
                let Some(mut transfer) = self.transfers.remove(&id.0) else { return };
                let hash = transfer.hash.map(|hash| hex(&hash)).unwrap_or_default();
                let stats = transfer.progress(id.0, now, &stats);
                transfer.client.event(ControlEvent::Done { transfer: id.0, hash, stats });
            }
            FileEvent::Failed { id, why } => self.failed(now, id.0, why),
        }
    }

    fn offered(
        &mut self,
        now: Time,
        id: u64,
        from: HostId,
        info: OfferInfo,
        names: &NodeNames,
    ) -> Result<(), WireRefuse> {
        let takes = |inbox: &&Mailbox| inbox.from.as_ref().is_none_or(|f| f.contains(&from));
        let inbox = self.inboxes.iter().find(takes).ok_or(WireRefuse::NoReceiver)?;
        if inbox.max_size.is_some_and(|max| info.size > max) {
            return Err(WireRefuse::TooLarge);
        }
        let file = SendFile {
            name: info.name.clone(),
            size: info.size,
            modified_ns: info.modified_ns,
            file_id: hex(&info.file_id),
            executable: info.executable,
        };
        let chunk = info.chunk_len() as u64;
        let event = ControlEvent::Offered { transfer: id, from: names.host(from), file, chunk };
        if !inbox.client.event(event) {
            return Err(WireRefuse::NoReceiver);
        }
        let stage = TransferStage::Offered(None);
        let transfer = ProgramTransfer::new(inbox.client.clone(), (from, false), info, stage, now);
        self.transfers.insert(id, transfer);
        Ok(())
    }

    fn accepted(
        &mut self,
        now: Time,
        edge: &mut Edge,
        id: TransferId,
        (resumed, whole): (u64, bool),
    ) {
        let Some(transfer) = self.transfers.get_mut(&id.0) else { return };
        // If the receiver has all chunks, no read for sending follows: hashing begins at once.
        if let Err(error) = ensure_source(&self.answers, id.0, transfer, whole) {
            transfer.detail = Some(error.to_string());
            return edge.transfers().source_failed(now, id, WireCancel::SourceFailed);
        }
        transfer.begins(now, resumed);
        let event = ControlEvent::Accepted { transfer: id.0, resumed_bytes: resumed, whole };
        transfer.client.event(event);
        self.report_at.get_or_insert(now + PROGRESS_EVERY);
    }

    /// Passes a request to the transfer's disk thread. A thread that has ended has reported the
    /// reason itself, and the request's buffer is dropped.
    fn ask(&mut self, now: Time, edge: &mut Edge, id: TransferId, request: DiskRequest) {
        let Some(transfer) = self.transfers.get_mut(&id.0) else { return };
        if transfer.sending
            && let Err(error) = ensure_source(&self.answers, id.0, transfer, false)
        {
            transfer.detail = Some(error.to_string());
            return edge.transfers().source_failed(now, id, WireCancel::SourceFailed);
        }
        if let TransferStage::Moving(disk) = &transfer.stage {
            let _ended = disk.ask(request);
        }
    }

    /// Handles an answer of a disk thread.
    pub fn handle_disk(&mut self, now: Time, edge: &mut Edge, (id, answer): DiskAnswer) {
        let Some(transfer) = self.transfers.get_mut(&id) else { return };
        let transfers = edge.transfers();
        let key = TransferId(id);
        match answer {
            DiskReply::Read { index, buffer } => transfers.chunk_read(now, key, index, buffer),
            DiskReply::Written { index, buffer } => {
                transfer.fresh.push(index);
                transfers.chunk_written(now, key, index, buffer);
            }
            DiskReply::Hashed(hash) => {
                transfer.hash = Some(hash);
                if transfer.sending {
                    transfers.source_hash(now, key, hash);
                } else {
                    transfers.sink_hash(now, key, hash);
                }
            }
            DiskReply::Failed(failure) => {
                transfer.detail = Some(failure.words());
                if transfer.sending {
                    let reason = match failure {
                        disk::FileFailure::Changed => WireCancel::SourceChanged,
                        disk::FileFailure::Disk(_) => WireCancel::SourceFailed,
                    };
                    transfers.source_failed(now, key, reason);
                } else {
                    let full = matches!(&failure, disk::FileFailure::Disk(e)
                        if matches!(e.raw_os_error(), Some(libc::ENOSPC | libc::EDQUOT)));
                    let reason = if full { WireCancel::NoSpace } else { WireCancel::SinkFailed };
                    transfers.sink_failed(now, key, reason);
                }
            }
        }
    }

    fn complete(&mut self, now: Time, edge: &mut Edge, id: TransferId, hash: [u8; 32]) {
        let Some(transfer) = self.transfers.get_mut(&id.0) else { return };
        let stats = edge.transfers().progress(now, id).unwrap_or_default();
        let stats = transfer.progress(id.0, now, &stats);
        transfer.stage = TransferStage::Whole;
        let event = ControlEvent::Complete { transfer: id.0, hash: hex(&hash), stats };
        if !transfer.client.event(event) {
            self.transfers.remove(&id.0);
            edge.transfers().cancel(now, id, WireCancel::Cancelled);
        }
    }

    fn failed(&mut self, now: Time, id: u64, why: TransferFailure) {
        let Some(mut transfer) = self.transfers.remove(&id) else { return };
        match why {
            TransferFailure::Refused(reason) => {
                let reason = from_wire_refuse(reason);
                transfer.client.event(ControlEvent::Refused { transfer: id, reason });
            }
            TransferFailure::Peer(reason) | TransferFailure::Local(reason) => {
                let peer = matches!(why, TransferFailure::Peer(_));
                let detail =
                    transfer.detail.take().or_else(|| beyond(reason, peer).map(Into::into));
                transfer.fail(id, now, from_wire_cancel(reason), detail);
            }
        }
    }

    /// Notes arrivals of bytes, for the longest gap.
    pub fn watch(&mut self, now: Time, edge: &mut Edge) {
        if self.transfers.len() > GAPS_WATCHED {
            return;
        }
        for (&id, transfer) in self.transfers.iter_mut().filter(|(_, t)| !t.sending) {
            if let (TransferStage::Moving(_), Some(stats)) =
                (&transfer.stage, edge.transfers().progress(now, TransferId(id)))
            {
                transfer.watch(now, stats.bytes_done);
            }
        }
    }

    /// Time of the next call of [`Files::report`].
    pub fn poll_timeout(&self) -> Option<Time> {
        self.report_at
    }

    /// Sends programs the progress of their transfers.
    pub fn report(&mut self, now: Time, edge: &mut Edge) {
        if self.report_at.is_none_or(|at| at > now) {
            return;
        }
        let mut moving = false;
        for (&id, transfer) in &mut self.transfers {
            if !matches!(transfer.stage, TransferStage::Moving(_)) {
                continue;
            }
            moving = true;
            if let Some(stats) = edge.transfers().progress(now, TransferId(id)) {
                let progress = transfer.progress(id, now, &stats);
                transfer.client.event(ControlEvent::Progress(progress));
            }
        }
        self.report_at = moving.then_some(now + PROGRESS_EVERY);
    }
}

fn ensure_source(
    answers: &WakingOutlet<DiskAnswer>,
    id: u64,
    transfer: &mut ProgramTransfer,
    whole: bool,
) -> std::io::Result<()> {
    if let TransferStage::Offered(file) = &mut transfer.stage
        && let Some(file) = file.take().and_then(HandedFile::into_file)
    {
        let size = transfer.info.size;
        let have = if whole { vec![(0, transfer.info.chunks())] } else { Vec::new() };
        let job =
            disk::DiskJob { file, size, chunk: transfer.info.chunk_len(), have, source: true };
        transfer.stage = TransferStage::Moving(start(answers, id, job)?);
    }
    Ok(())
}

fn start(
    answers: &WakingOutlet<DiskAnswer>,
    id: u64,
    job: disk::DiskJob,
) -> std::io::Result<DiskThread> {
    DiskThread::start(job, answers.clone(), move |answer| (id, answer))
}

fn unknown_transfer() -> ControlReply {
    ControlReply::error(
        ErrorCode::UnknownTransfer,
        "this program has no such transfer in that state",
    )
}
