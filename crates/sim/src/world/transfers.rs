//! Transfers: files are offered, read, written and named, and the users at both ends are told.

use std::rc::Rc;

use shoal_crypto::Ciphers;
use shoal_transfer::{
    FileTransferEvent as FileEvent, OfferInfo, SegmentLen, TransferEnd, TransferId,
};

use super::{SimulatedWorld, WorldEvent};
use crate::check::files::FileStage;
use crate::disk::{DISK_TIME, DiskWork};
use crate::node::SimulatedNode;
use crate::plan::{ATTEMPTS_MAX, TRY_AGAIN};
use crate::plant::InjectedFault;

impl<C: Ciphers> SimulatedWorld<C> {
    /// Offers the files that are due.
    pub(super) fn send_files(&mut self) {
        for number in 0..self.files.len() {
            let watch = &mut self.files[number];
            if !matches!(watch.stage, FileStage::Due(at) if at <= self.now) {
                continue;
            }
            let (from, to) = (watch.plan.from, self.makings.plan.nodes[watch.plan.to]);
            let mut info = OfferInfo {
                name: format!("file-{number}"),
                size: watch.plan.content.len() as u64,
                modified_ns: 0,
                file_id: watch.plan.file_id,
                executable: false,
                segment: SegmentLen::FULL,
            };
            let node = &mut self.nodes[from];
            let host = node.host(to).filter(|_| node.runs());
            let now = node.clock.read(self.now);
            let offered = host.and_then(|host| {
                info.segment = node.control.edge.segment_len(host);
                node.control.edge.offer(now, host, info).ok()
            });
            watch.began.get_or_insert(self.now);
            let Some(id) = offered else {
                watch.stage = FileStage::Due(self.now + TRY_AGAIN);
                self.push(self.now + TRY_AGAIN, WorldEvent::Files);
                continue;
            };
            watch.stage = FileStage::Running;
            watch.attempts += 1;
            node.sending.insert(id, number);
            self.note(Some(from), &format!("offers file {number}"));
            self.finish_step(from);
        }
    }

    pub(super) fn handle_file(&mut self, n: usize, event: FileEvent) {
        let run = self.nodes[n].run;
        let now = self.nodes[n].clock.read(self.now);
        let work = match event {
            FileEvent::Read { id, index, offset, len, buffer } => {
                DiskWork::Read { id, index, offset, len, buffer }
            }
            FileEvent::Write { id, index, offset, len, data } => {
                DiskWork::Write { id, index, offset, len, data }
            }
            FileEvent::HashWanted { id } => DiskWork::Hash { id },
            FileEvent::Accepted { .. } => return self.note(Some(n), "accepted"),
            FileEvent::Offered { id, info, .. } => {
                self.note(Some(n), &format!("offered {}", info.name));
                let sent = self.files.iter().find(|watch| watch.plan.file_id == info.file_id);
                let Some(sent) = sent.map(|watch| Rc::clone(&watch.plan.content)) else { return };
                let node = &mut self.nodes[n];
                let have = node.disk.open(&info, &sent);
                node.receiving.insert(id, info.file_id);
                return node.control.edge.transfers().accept(now, id, &have);
            }
            FileEvent::Complete { id, .. } => return self.complete(n, id),
            FileEvent::Finished { id, .. } => return self.finished(n, id),
            FileEvent::Failed { id, why } => return self.failed(n, id, &why.to_string()),
        };
        self.push(self.now + DISK_TIME, WorldEvent::DiskDone(n, run, Box::new(work)));
    }

    pub(super) fn disk_done(&mut self, n: usize, run: u32, work: DiskWork) {
        if self.waits(n, run) {
            return self.push(self.now + DISK_TIME, WorldEvent::DiskDone(n, run, Box::new(work)));
        }
        if !self.is_run(n, run) {
            return;
        }
        let now = self.nodes[n].clock.read(self.now);
        let node = &mut self.nodes[n];
        let sent = |node: &SimulatedNode<C>, id| Some(&self.files[*node.sending.get(&id)?].plan);
        match work {
            DiskWork::Read { id, index, offset, len, mut buffer } => {
                if let Some(plan) = sent(node, id) {
                    let part = &plan.content[offset as usize..][..len];
                    buffer[..part.len()].copy_from_slice(part);
                }
                node.control.edge.transfers().chunk_read(now, id, index, buffer);
            }
            DiskWork::Write { id, index, offset, len, data } => {
                if let Some(file) = node.receiving.get(&id) {
                    node.disk.write(file, index, offset, &data[..len]);
                }
                node.control.edge.transfers().chunk_written(now, id, index, data);
            }
            DiskWork::Hash { id } if id.role() == TransferEnd::Sender => {
                if let Some(hash) = sent(node, id).map(|plan| plan.hash) {
                    node.control.edge.transfers().source_hash(now, id, hash);
                }
            }
            DiskWork::Hash { id } => {
                let file = node.receiving.get(&id).copied();
                if let Some(hash) = file.and_then(|file| self.stored_hash(n, file)) {
                    self.nodes[n].control.edge.transfers().sink_hash(now, id, hash);
                }
            }
        }
        self.finish_step(n);
    }

    /// Hash of a stored file. If the file equals the sent one, the known hash is used.
    fn stored_hash(&self, n: usize, file: [u8; 16]) -> Option<[u8; 32]> {
        let stored = self.nodes[n].disk.stored.get(&file)?;
        let watch = self.files.iter().find(|watch| watch.plan.file_id == file)?;
        let same = stored.is_as_sent();
        Some(if same { watch.plan.hash } else { shoal_crypto::hash(&stored.bytes()) })
    }

    fn complete(&mut self, n: usize, id: TransferId) {
        self.note(Some(n), "a file is complete");
        let flip = self.makings.options.plant == Some(InjectedFault::DiskBit);
        let node = &mut self.nodes[n];
        let Some(file) = node.receiving.remove(&id) else { return };
        let watch = self.files.iter_mut().find(|watch| watch.plan.file_id == file);
        let (Some(watch), Some(stored)) = (watch, node.disk.stored.get_mut(&file)) else { return };
        if flip {
            stored.flip();
        }
        stored.named = true;
        let result = watch.complete(stored.is_as_sent());
        node.control.edge.transfers().confirm(node.clock.read(self.now), id);
        self.hold("a file arrives bit-identical", result);
    }

    fn finished(&mut self, n: usize, id: TransferId) {
        self.note(Some(n), "a file is finished");
        let Some(number) = self.nodes[n].sending.remove(&id) else { return };
        if self.makings.options.plant == Some(InjectedFault::Silence) {
            return;
        }
        let result = self.files[number].finish(self.now);
        self.hold("a sender is told the truth", result);
    }

    fn failed(&mut self, n: usize, id: TransferId, why: &str) {
        self.note(Some(n), &format!("a file failed: {why}"));
        self.nodes[n].receiving.remove(&id);
        let Some(number) = self.nodes[n].sending.remove(&id) else { return };
        let watch = &mut self.files[number];
        watch.failure = Some(why.to_string());
        if watch.attempts >= ATTEMPTS_MAX {
            watch.stage = FileStage::Failed;
            watch.ended = Some(self.now);
        } else {
            let again = self.now + TRY_AGAIN;
            watch.stage = FileStage::Due(again);
            self.push(again, WorldEvent::Files);
        }
    }
}
