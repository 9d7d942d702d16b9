//! Accepts an offered file: into a new file, or by comparison with an existing one.

use nix::fcntl::OFlag;
use shoal_edge::Edge;
use shoal_transfer::{ChunkSet, TransferId};
use shoal_wire::Time;
use shoal_wire::transfer::RefuseReason as WireRefuse;

use super::words::check_file;
use super::{Files, PROGRESS_EVERY, TransferStage, start, unknown_transfer};
use crate::control::api::{ControlReply, ErrorCode};
use crate::control::socket::{ClientId, HandedFile};
use crate::files::disk;

impl Files {
    /// Receives an offered file into `descriptor`.
    pub fn accept(
        &mut self,
        now: Time,
        edge: &mut Edge,
        client: ClientId,
        id: u64,
        have: &[(u32, u32)],
        descriptors: Vec<HandedFile>,
    ) -> ControlReply {
        let Some(transfer) =
            self.owned(client, id, |t| matches!(t.stage, TransferStage::Offered(None)))
        else {
            return unknown_transfer();
        };
        let file = match one_file(descriptors, 0, OFlag::O_RDWR) {
            Ok(file) => file,
            Err(text) => return ControlReply::error(ErrorCode::BadRequest, text),
        };
        let chunks = transfer.info.chunks();
        let mut set = ChunkSet::new(chunks);
        let mut last = 0;
        for &(from, to) in have {
            if from < last || to <= from || to > chunks {
                let text = "expected sorted, disjoint chunk ranges within the file";
                return ControlReply::error(ErrorCode::BadRequest, text);
            }
            set.insert_range(from, to - from);
            last = to;
        }
        let reply = self.move_into(now, edge, id, file, have.to_vec());
        if reply == ControlReply::Ok {
            edge.transfers().accept(now, TransferId(id), &set);
            self.accepted_here(now, edge, id);
        }
        reply
    }

    /// Compares an offered file with the existing one in `descriptor`.
    pub fn compare(
        &mut self,
        now: Time,
        edge: &mut Edge,
        client: ClientId,
        id: u64,
        descriptors: Vec<HandedFile>,
    ) -> ControlReply {
        let Some(transfer) =
            self.owned(client, id, |t| matches!(t.stage, TransferStage::Offered(None)))
        else {
            return unknown_transfer();
        };
        let (size, chunks) = (transfer.info.size, transfer.info.chunks());
        let file = match one_file(descriptors, size, OFlag::O_RDONLY) {
            Ok(file) => file,
            Err(text) => return ControlReply::error(ErrorCode::BadRequest, text),
        };
        let reply = self.move_into(now, edge, id, file, vec![(0, chunks)]);
        if reply == ControlReply::Ok {
            edge.transfers().compare(now, TransferId(id));
            self.accepted_here(now, edge, id);
        }
        reply
    }

    /// Starts the disk thread of an offered file.
    fn move_into(
        &mut self,
        now: Time,
        edge: &mut Edge,
        id: u64,
        file: HandedFile,
        have: Vec<(u32, u32)>,
    ) -> ControlReply {
        let Some(transfer) = self.transfers.get_mut(&id) else { return unknown_transfer() };
        let (size, chunk) = (transfer.info.size, transfer.info.chunk_len());
        let Some(file) = file.into_file() else { return unknown_transfer() };
        match start(&self.answers, id, disk::DiskJob { file, size, chunk, have, source: false }) {
            Ok(disk) => {
                transfer.stage = TransferStage::Moving(disk);
                self.report_at.get_or_insert(now + PROGRESS_EVERY);
                ControlReply::Ok
            }
            Err(error) => {
                self.transfers.remove(&id);
                edge.transfers().refuse(now, TransferId(id), WireRefuse::Busy);
                ControlReply::error(ErrorCode::Internal, format!("no thread for the file: {error}"))
            }
        }
    }

    /// Begins to measure rates and gaps. Existing bytes do not count.
    fn accepted_here(&mut self, now: Time, edge: &mut Edge, id: u64) {
        let resumed = edge.transfers().progress(now, TransferId(id)).map(|p| p.bytes_resumed);
        if let (Some(transfer), Some(resumed)) = (self.transfers.get_mut(&id), resumed) {
            transfer.begins(now, resumed);
        }
    }
}

/// The single descriptor, if it allows `access`.
fn one_file(descriptors: Vec<HandedFile>, size: u64, access: OFlag) -> Result<HandedFile, String> {
    let one = <[HandedFile; 1]>::try_from(descriptors);
    let [file] = one.map_err(|_| "expected one descriptor".to_string())?;
    check_file(&file, size, access)?;
    Ok(file)
}
