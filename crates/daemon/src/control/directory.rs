//! The authority's list and the registrars' supplements, for programs that follow them.

use shoal_crypto::encoding::{base64, from_base64, from_hex, hex};
use shoal_directory::{MandateId, SUPPLEMENT_LEN_MAX, Supplement};
use shoal_wire::Time;

use crate::control::api::{
    Command, ControlReply, DirectoryStatus, ErrorCode, LIST_PART_MAX, LedgerEnd, ListPart,
    RedactedText, STEPS_REPLY_MAX, SupplementPage,
};
use crate::membership::chains::STEPS_MAX;
use crate::worker::first::WorkerParts;

/// The answer of a node without an authority.
pub(crate) fn none() -> ControlReply {
    let text = "this node has no [authority]: its hosts file says who belongs to the network";
    ControlReply::error(ErrorCode::NoList, text)
}

/// Summary of the list in force and its chains.
pub(crate) fn directory(parts: &WorkerParts, now: Time) -> ControlReply {
    let Some(authority) = &parts.authority else { return none() };
    let (status, directory) = (authority.status(now), &authority.directory);
    let Some((mark, list)) = directory.mark().zip(directory.list()) else {
        return ControlReply::error(ErrorCode::NoList, "this node has no list yet");
    };
    ControlReply::Directory(Box::new(DirectoryStatus {
        state: status.state,
        version: mark.version,
        digest: hex(&mark.digest),
        len: list.bytes().len() as u64,
        issued_unix_s: list.content().issued_unix_s,
        mandates: status.mandates,
        has_caught_up: authority.has_caught_up(),
        ledger: authority.ledger.end().cloned(),
    }))
}

/// Keeps the end of the registrar's ledger.
pub(crate) fn keep_ledger(parts: &mut WorkerParts, end: &LedgerEnd) -> ControlReply {
    let Some(authority) = &mut parts.authority else { return none() };
    match authority.keep_ledger(end) {
        Ok(true) => ControlReply::Ok,
        Ok(false) => ControlReply::error(ErrorCode::Busy, "the disk is slow: ask again"),
        Err(why) => ControlReply::error(ErrorCode::Mandate, why),
    }
}

/// Answers with a part of the list.
pub(crate) fn list(parts: &WorkerParts, version: u64, skip: u64) -> ControlReply {
    let Some(authority) = &parts.authority else { return none() };
    let list = authority.directory.list().filter(|list| list.content().version == version);
    let Some(list) = list else {
        let text = format!("list {version} is not in force here: ask for the version in force");
        return ControlReply::error(ErrorCode::NoList, text);
    };
    let bytes = list.bytes();
    let from = usize::try_from(skip).unwrap_or(usize::MAX).min(bytes.len());
    let until = (from + LIST_PART_MAX).min(bytes.len());
    let (len, bytes) = (bytes.len() as u64, base64(&bytes[from..until]));
    ControlReply::List(ListPart { version, len, skip: from as u64, bytes })
}

/// Answers with supplements of one mandate.
pub(crate) fn steps(parts: &WorkerParts, mandate: &str, first: u64) -> ControlReply {
    let Some(authority) = &parts.authority else { return none() };
    let Some(id) = from_hex(mandate).map(MandateId) else {
        let text = "expected a mandate's id of 64 hex digits";
        return ControlReply::error(ErrorCode::BadRequest, text);
    };
    let Some(register) = authority.directory.register(&id) else {
        return ControlReply::error(
            ErrorCode::NoList,
            "the list in force here has no such mandate",
        );
    };
    let skip = usize::try_from(first.saturating_sub(1)).unwrap_or(usize::MAX);
    let steps = register.steps().iter().skip(skip).take(STEPS_REPLY_MAX);
    let steps = steps.map(Supplement::bytes).map(base64).collect();
    ControlReply::Steps(SupplementPage { first: first.max(1), steps })
}

/// Answers with the network's newest secret, if the program knows another one.
pub(crate) fn secret(parts: &WorkerParts, proof: &str) -> ControlReply {
    let Some(authority) = &parts.authority else { return none() };
    match authority.secret_for(proof) {
        Ok(secret) => ControlReply::Secret(RedactedText { text: base64(&secret.0) }),
        Err(why) => ControlReply::error(ErrorCode::NoList, why),
    }
}

/// The bytes of supplements that a program sent.
///
/// Errors: what to answer.
pub(crate) fn decode(steps: &[String]) -> Result<Vec<Vec<u8>>, ControlReply> {
    let longest = SUPPLEMENT_LEN_MAX.div_ceil(3) * 4;
    if steps.len() > STEPS_MAX || steps.iter().any(|step| step.len() > longest) {
        let text = format!(
            "expected at most {STEPS_MAX} supplements of at most {SUPPLEMENT_LEN_MAX} bytes"
        );
        return Err(ControlReply::error(ErrorCode::BadRequest, text));
    }
    let decoded = steps.iter().map(|step| from_base64(step)).collect::<Option<_>>();
    decoded.ok_or_else(|| {
        ControlReply::error(ErrorCode::BadRequest, "a supplement is not valid base64")
    })
}

/// The command with which a program hands over supplements. A node takes at most [`STEPS_MAX`] at
/// once.
pub fn submission(steps: &[Supplement]) -> Command {
    let encode = |step: &Supplement| base64(step.bytes());
    Command::Supplements { steps: steps.iter().map(encode).collect() }
}

impl Command {
    /// True if a registrar may send this command to its node.
    pub(crate) fn is_of_registrar(&self) -> bool {
        use Command::{Directory, Ledger, List, Secret, Steps, Supplements};
        let asks = matches!(self, Directory | List { .. } | Secret { .. } | Steps { .. });
        asks || matches!(self, Ledger(_) | Supplements { .. })
    }
}
