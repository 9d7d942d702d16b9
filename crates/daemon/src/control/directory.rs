//! The authority's list and the registrars' supplements, for programs that follow them.

use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use shoal_directory::{MandateId, SUPPLEMENT_LEN_MAX, Supplement};
use shoal_wire::Time;

use crate::control::api::{
    Command, Directory, ErrorCode, Hidden, LIST_PART_MAX, LedgerEnd, ListPart, Reply,
    STEPS_REPLY_MAX, Steps,
};
use crate::membership::chains::STEPS_MAX;
use crate::membership::standing::hex;
use crate::worker::first::Parts;

/// The answer of a node without an authority.
pub(crate) fn none() -> Reply {
    let text = "this node has no [authority]: its hosts file says who belongs to the network";
    Reply::error(ErrorCode::NoList, text)
}

/// The list in force and its chains, in short.
pub(crate) fn directory(parts: &Parts, now: Time) -> Reply {
    let Some(authority) = &parts.authority else { return none() };
    let (status, directory) = (authority.status(now), &authority.directory);
    let Some((mark, list)) = directory.mark().zip(directory.list()) else {
        return Reply::error(ErrorCode::NoList, "this node has no list yet");
    };
    Reply::Directory(Box::new(Directory {
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
pub(crate) fn keep_ledger(parts: &mut Parts, end: &LedgerEnd) -> Reply {
    let Some(authority) = &mut parts.authority else { return none() };
    match authority.keep_ledger(end) {
        Ok(true) => Reply::Ok,
        Ok(false) => Reply::error(ErrorCode::Busy, "the disk is slow: ask again"),
        Err(why) => Reply::error(ErrorCode::Mandate, why),
    }
}

/// A part of the list.
pub(crate) fn list(parts: &Parts, version: u64, skip: u64) -> Reply {
    let Some(authority) = &parts.authority else { return none() };
    let list = authority.directory.list().filter(|list| list.content().version == version);
    let Some(list) = list else {
        let text = format!("list {version} is not in force here any more: ask which one is");
        return Reply::error(ErrorCode::NoList, text);
    };
    let bytes = list.bytes();
    let from = usize::try_from(skip).unwrap_or(usize::MAX).min(bytes.len());
    let until = (from + LIST_PART_MAX).min(bytes.len());
    let (len, bytes) = (bytes.len() as u64, STANDARD.encode(&bytes[from..until]));
    Reply::List(ListPart { version, len, skip: from as u64, bytes })
}

/// Supplements of one mandate.
pub(crate) fn steps(parts: &Parts, mandate: &str, first: u64) -> Reply {
    let Some(authority) = &parts.authority else { return none() };
    let Some(id) = id(mandate) else {
        let text = "a mandate's id has 64 letters and digits, as hex";
        return Reply::error(ErrorCode::BadRequest, text);
    };
    let Some(register) = authority.directory.register(&id) else {
        return Reply::error(ErrorCode::NoList, "the list in force here has no such mandate");
    };
    let skip = usize::try_from(first.saturating_sub(1)).unwrap_or(usize::MAX);
    let steps = register.steps().iter().skip(skip).take(STEPS_REPLY_MAX);
    let steps = steps.map(Supplement::bytes).map(|bytes| STANDARD.encode(bytes)).collect();
    Reply::Steps(Steps { first: first.max(1), steps })
}

/// The newest secret of the network, for a program that knows another one.
pub(crate) fn secret(parts: &Parts, proof: &str) -> Reply {
    let Some(authority) = &parts.authority else { return none() };
    match authority.secret_for(proof) {
        Ok(secret) => Reply::Secret(Hidden { text: STANDARD.encode(secret.0) }),
        Err(why) => Reply::error(ErrorCode::NoList, why),
    }
}

/// The bytes of supplements that a program sent.
///
/// Errors: what to answer.
pub(crate) fn decode(steps: &[String]) -> Result<Vec<Vec<u8>>, Reply> {
    let longest = SUPPLEMENT_LEN_MAX.div_ceil(3) * 4;
    if steps.len() > STEPS_MAX || steps.iter().any(|step| step.len() > longest) {
        let text = format!(
            "expected at most {STEPS_MAX} supplements of at most {SUPPLEMENT_LEN_MAX} bytes"
        );
        return Err(Reply::error(ErrorCode::BadRequest, text));
    }
    let decoded = steps.iter().map(|step| STANDARD.decode(step)).collect::<Result<_, _>>();
    decoded.map_err(|_| Reply::error(ErrorCode::BadRequest, "a supplement is no base64"))
}

/// The command by which a program hands over supplements, of which a node takes [`STEPS_MAX`] at
/// once.
pub fn submission(steps: &[Supplement]) -> Command {
    let encode = |step: &Supplement| STANDARD.encode(step.bytes());
    Command::Supplements { steps: steps.iter().map(encode).collect() }
}

impl Command {
    /// Whether a registrar asks it of its node.
    pub(crate) fn is_of_registrar(&self) -> bool {
        use Command::{Directory, Ledger, List, Secret, Steps, Supplements};
        let asks = matches!(self, Directory | List { .. } | Secret { .. } | Steps { .. });
        asks || matches!(self, Ledger(_) | Supplements { .. })
    }
}

fn id(hex: &str) -> Option<MandateId> {
    let mut id = [0; 32];
    if hex.len() != 64 || !hex.is_ascii() {
        return None;
    }
    for (i, byte) in id.iter_mut().enumerate() {
        *byte = u8::from_str_radix(&hex[2 * i..2 * i + 2], 16).ok()?;
    }
    Some(MandateId(id))
}
