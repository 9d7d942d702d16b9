//! How an offered file is taken: into a new file, or by comparing one that is there.

use nix::fcntl::OFlag;
use shoal_edge::Edge;
use shoal_transfer::{ChunkSet, TransferId};
use shoal_wire::Time;
use shoal_wire::transfer::RefuseReason as WireRefuse;

use super::words::check_file;
use super::{Files, PROGRESS_EVERY, Stage, start, unknown_transfer};
use crate::control::api::{ErrorCode, Reply};
use crate::control::socket::{ClientId, HandedFile};
use crate::files::disk;

impl Files {
    /// Takes an offered file into `descriptor`.
    pub fn accept(
        &mut self,
        now: Time,
        edge: &mut Edge,
        client: ClientId,
        id: u64,
        have: &[(u32, u32)],
        descriptors: Vec<HandedFile>,
    ) -> Reply {
        let Some(transfer) = self.owned(client, id, |t| matches!(t.stage, Stage::Offered(None)))
        else {
            return unknown_transfer();
        };
        let file = match one_file(descriptors, 0, OFlag::O_RDWR) {
            Ok(file) => file,
            Err(text) => return Reply::error(ErrorCode::BadRequest, text),
        };
        let chunks = transfer.info.chunks();
        let mut set = ChunkSet::new(chunks);
        let mut last = 0;
        for &(from, to) in have {
            if from < last || to <= from || to > chunks {
                let text = "expected sorted, disjoint chunk ranges within the file";
                return Reply::error(ErrorCode::BadRequest, text);
            }
            set.insert_range(from, to - from);
            last = to;
        }
        let reply = self.move_into(now, edge, id, file, have.to_vec());
        if reply == Reply::Ok {
            edge.transfers().accept(now, TransferId(id), &set);
            self.accepted_here(now, edge, id);
        }
        reply
    }

    /// Compares an offered file with the one that is in `descriptor`.
    pub fn compare(
        &mut self,
        now: Time,
        edge: &mut Edge,
        client: ClientId,
        id: u64,
        descriptors: Vec<HandedFile>,
    ) -> Reply {
        let Some(transfer) = self.owned(client, id, |t| matches!(t.stage, Stage::Offered(None)))
        else {
            return unknown_transfer();
        };
        let (size, chunks) = (transfer.info.size, transfer.info.chunks());
        let file = match one_file(descriptors, size, OFlag::O_RDONLY) {
            Ok(file) => file,
            Err(text) => return Reply::error(ErrorCode::BadRequest, text),
        };
        let reply = self.move_into(now, edge, id, file, vec![(0, chunks)]);
        if reply == Reply::Ok {
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
    ) -> Reply {
        let Some(transfer) = self.transfers.get_mut(&id) else { return unknown_transfer() };
        let (size, chunk) = (transfer.info.size, transfer.info.chunk_len());
        let Some(file) = file.into_file() else { return unknown_transfer() };
        match start(&self.answers, id, disk::Job { file, size, chunk, have, source: false }) {
            Ok(disk) => {
                transfer.stage = Stage::Moving(disk);
                self.report_at.get_or_insert(now + PROGRESS_EVERY);
                Reply::Ok
            }
            Err(error) => {
                self.transfers.remove(&id);
                edge.transfers().refuse(now, TransferId(id), WireRefuse::Busy);
                Reply::error(ErrorCode::Internal, format!("no thread for the file: {error}"))
            }
        }
    }

    /// Starts to measure rates and gaps; bytes that are there already count for neither.
    fn accepted_here(&mut self, now: Time, edge: &mut Edge, id: u64) {
        let resumed = edge.transfers().progress(now, TransferId(id)).map(|p| p.bytes_resumed);
        if let (Some(transfer), Some(resumed)) = (self.transfers.get_mut(&id), resumed) {
            transfer.begins(now, resumed);
        }
    }
}

/// The only descriptor, if it is what `access` needs.
fn one_file(descriptors: Vec<HandedFile>, size: u64, access: OFlag) -> Result<HandedFile, String> {
    let one = <[HandedFile; 1]>::try_from(descriptors);
    let [file] = one.map_err(|_| "expected one descriptor".to_string())?;
    check_file(&file, size, access)?;
    Ok(file)
}
