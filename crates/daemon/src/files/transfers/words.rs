//! Converts between the types of programs and of the wire, and checks offered files.

use std::os::unix::fs::FileTypeExt;

use nix::fcntl::{FcntlArg, OFlag, fcntl};
use shoal_crypto::encoding::from_hex;
use shoal_transfer::{OfferInfo, SegmentLen};
use shoal_wire::transfer::{CancelReason as WireCancel, RefuseReason as WireRefuse};

use crate::control::api::{self, CancelReason, MAX_FILE_NAME, RefuseReason, SendFile};
use crate::control::socket::HandedFile;

/// The offer of a file that a program describes. The error says what is wrong.
pub(super) fn offer_info(file: SendFile) -> Result<OfferInfo, String> {
    if file.name.is_empty() || file.name.len() > MAX_FILE_NAME {
        return Err(format!("expected a file name of 1 to {MAX_FILE_NAME} bytes"));
    }
    if file.size > OfferInfo::SIZE_MAX {
        let most = OfferInfo::SIZE_MAX;
        return Err(format!("{}: a file may have at most {most} bytes", file.name));
    }
    let file_id = from_hex(&file.file_id).ok_or("expected a file_id of 32 hex digits")?;
    Ok(OfferInfo {
        name: file.name,
        size: file.size,
        modified_ns: file.modified_ns,
        file_id,
        executable: file.executable,
        segment: SegmentLen::FULL,
    })
}

/// Refuses anything but a regular file of this size whose descriptor allows `access`.
pub(super) fn check_file(file: &HandedFile, size: u64, access: OFlag) -> Result<(), String> {
    let unknown = |e: &std::io::Error| format!("the file can't be examined: {e}");
    let meta = file.seen().as_ref().map_err(unknown)?;
    let file = file.file().ok_or("the file is taken already")?;
    let kind = meta.file_type();
    if !kind.is_file() || kind.is_block_device() {
        return Err("expected a regular file".into());
    }
    if access == OFlag::O_RDONLY && meta.len() != size {
        return Err("the file changed its size since it was opened".into());
    }
    let flags = fcntl(file, FcntlArg::F_GETFL).map_err(|e| format!("bad descriptor: {e}"))?;
    let mode = OFlag::from_bits_truncate(flags) & OFlag::O_ACCMODE;
    let fits = mode == OFlag::O_RDWR || mode == access;
    if fits { Ok(()) } else { Err("the file's descriptor has the wrong access mode".into()) }
}

/// Sorts and joins chunk numbers into half-open ranges, and empties the list.
pub(super) fn ranges(chunks: &mut Vec<u32>) -> Vec<(u32, u32)> {
    chunks.sort_unstable();
    let mut out: Vec<(u32, u32)> = Vec::new();
    for chunk in chunks.drain(..) {
        match out.last_mut() {
            Some((_, end)) if *end == chunk => *end += 1,
            _ => out.push((chunk, chunk + 1)),
        }
    }
    out
}

pub(super) fn to_wire_refuse(reason: RefuseReason) -> WireRefuse {
    match reason {
        RefuseReason::NoReceiver => WireRefuse::NoReceiver,
        RefuseReason::Exists => WireRefuse::Exists,
        RefuseReason::TooLarge => WireRefuse::TooLarge,
        RefuseReason::NoSpace => WireRefuse::NoSpace,
        RefuseReason::BadName => WireRefuse::BadName,
        RefuseReason::Denied => WireRefuse::Denied,
        RefuseReason::Busy => WireRefuse::Busy,
        RefuseReason::Policy => WireRefuse::Policy,
    }
}

pub(super) fn from_wire_refuse(reason: WireRefuse) -> RefuseReason {
    match reason {
        WireRefuse::NoReceiver => RefuseReason::NoReceiver,
        WireRefuse::Exists => RefuseReason::Exists,
        WireRefuse::TooLarge => RefuseReason::TooLarge,
        WireRefuse::NoSpace => RefuseReason::NoSpace,
        WireRefuse::BadName => RefuseReason::BadName,
        WireRefuse::Denied => RefuseReason::Denied,
        WireRefuse::Busy => RefuseReason::Busy,
        WireRefuse::Policy => RefuseReason::Policy,
    }
}

pub(super) fn to_wire_cancel(reason: CancelReason) -> WireCancel {
    match reason {
        CancelReason::Stopped => WireCancel::Cancelled,
        CancelReason::SourceChanged => WireCancel::SourceChanged,
        CancelReason::WriteFailed => WireCancel::SinkFailed,
        CancelReason::HashMismatch => WireCancel::HashMismatch,
        CancelReason::TimedOut => WireCancel::Timeout,
        CancelReason::Exists => WireCancel::Exists,
        CancelReason::Superseded => WireCancel::Superseded,
        CancelReason::PutOff => WireCancel::PutOff,
        CancelReason::PeerLost => WireCancel::PeerLost,
    }
}

pub(super) fn from_wire_cancel(reason: WireCancel) -> CancelReason {
    match reason {
        WireCancel::Cancelled => CancelReason::Stopped,
        WireCancel::SourceFailed | WireCancel::SourceChanged => CancelReason::SourceChanged,
        WireCancel::SinkFailed | WireCancel::NoSpace => CancelReason::WriteFailed,
        WireCancel::HashMismatch => CancelReason::HashMismatch,
        WireCancel::Unknown | WireCancel::PeerLost => CancelReason::PeerLost,
        WireCancel::Timeout => CancelReason::TimedOut,
        WireCancel::Exists => CancelReason::Exists,
        WireCancel::Superseded => CancelReason::Superseded,
        WireCancel::PutOff => CancelReason::PutOff,
    }
}

/// Details of a wire reason that [`CancelReason`] omits. `peer`: the other end gave the reason.
pub(super) fn beyond(reason: WireCancel, peer: bool) -> Option<&'static str> {
    match reason {
        WireCancel::Cancelled => peer.then_some("at the other end"),
        WireCancel::SourceFailed
        | WireCancel::SourceChanged
        | WireCancel::NoSpace
        | WireCancel::Unknown => Some(reason.text()),
        WireCancel::SinkFailed
        | WireCancel::HashMismatch
        | WireCancel::Timeout
        | WireCancel::PeerLost
        | WireCancel::Exists
        | WireCancel::Superseded
        | WireCancel::PutOff => None,
    }
}

const _: () = assert!(api::CHUNK_LEN == shoal_wire::transfer::CHUNK_LEN as u64);
