//! Records of a registrar's ledger.
//!
//! ```text
//! 1 issued    | token's hash 32 | issued 8 | uses 4 | expires 8 | bits 1 | [name] | [family]
//!             | groups
//!               bits: 1 approve, 2 name, 4 router, 8 router that is no relay, 16 registrar
//!               name = length 1, bytes; family = of routers, a name or length 0; behind that of
//!               registrars first 4, last 4: router numbers, both 0 for free ones
//!               groups = count 1, names ascending
//! 2 withdrawn | token's hash 32
//! 3 step      | cause 1 | [token's hash 32] | key 64 | supplement
//!               cause: 1 joined by a token, 2 renewed, 3 left, 4 changed its key, 5 removed,
//!                      6 moved behind another router, 7 got another tier of cover,
//!                      8 got another second router,
//!                      9 the registrar's endpoints changed; the key is the registrar's
//! 4 denied    | token's hash 32 | key 64
//! 5 learnt    | supplement of the registrar that made this one
//! ```

use shoal_crypto::PublicKey;
use shoal_directory::{GROUPS_MAX, RouterRange, is_name};
use shoal_wire::{ParseError, Reader};

use crate::tokens::{TokenHash, TokenKind, TokenTerms};

/// Maximum length of a supplement in bytes: it must fit in one control message.
pub const SUPPLEMENT_MAX: usize = 1_024;

const ISSUED: u8 = 1;
const WITHDRAWN: u8 = 2;
const STEP: u8 = 3;
const DENIED: u8 = 4;
const LEARNT: u8 = 5;

const APPROVE: u8 = 1;
const NAMED: u8 = 2;
const ROUTER: u8 = 4;
const NO_RELAY: u8 = 8;
const REGISTRAR: u8 = 16;

/// Reasons for a supplement.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum StepCause {
    /// A machine joined by a token.
    Joined(TokenHash),
    /// A membership was renewed.
    Renewed,
    /// A member left.
    Left,
    /// A member's key was replaced; the record names the old key.
    Rekeyed,
    /// The registrar's owner removed a member.
    Removed,
    /// A member moved behind another router.
    Moved,
    /// The network's preset gave members another tier of cover; the record names the first of them.
    Covered,
    /// Hosts got a second router; the record names the first of them.
    SecondRouter,
    /// The registrar's endpoints changed.
    Door,
}

/// A record of the ledger.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum LedgerRecord {
    /// A token was issued.
    Issued {
        token: TokenHash,
        /// Time of issue in seconds since 1970.
        unix_s: u64,
        terms: TokenTerms,
    },
    /// A token was withdrawn.
    Withdrawn(TokenHash),
    /// A supplement was signed.
    Step {
        cause: StepCause,
        /// The member's key; for [`StepCause::Rekeyed`] the old key, for [`StepCause::Door`] the
        /// registrar's.
        key: PublicKey,
        /// The encoded supplement.
        supplement: Vec<u8>,
    },
    /// The registrar's owner denied a machine that waited for approval.
    Denied {
        /// The machine's token.
        token: TokenHash,
        /// The machine's key.
        key: PublicKey,
    },
    /// A supplement of the registrar that made this one. This one's own steps count only behind it.
    Learnt {
        /// The encoded supplement.
        supplement: Vec<u8>,
    },
}

pub(crate) fn put_name(out: &mut Vec<u8>, name: &str) {
    out.push(name.len() as u8);
    out.extend_from_slice(name.as_bytes());
}

fn name(reader: &mut Reader<'_>, what: &'static str) -> Result<String, ParseError> {
    let len = usize::from(reader.u8(what)?);
    let bytes = reader.bytes(what, len)?;
    let name = core::str::from_utf8(bytes).ok().filter(|name| is_name(name));
    name.map(str::to_owned).ok_or(ParseError::Invalid { what })
}

fn token(reader: &mut Reader<'_>) -> Result<TokenHash, ParseError> {
    reader.array("token's hash").map(TokenHash)
}

fn key(reader: &mut Reader<'_>) -> Result<PublicKey, ParseError> {
    Ok(PublicKey::from_bytes(&reader.array("key")?))
}

impl LedgerRecord {
    /// Encodes the record, its kind first. Terms must have been checked.
    pub(crate) fn write(&self, out: &mut Vec<u8>) {
        match self {
            LedgerRecord::Issued { token, unix_s, terms } => {
                out.push(ISSUED);
                out.extend_from_slice(&token.0);
                out.extend_from_slice(&unix_s.to_be_bytes());
                out.extend_from_slice(&terms.uses.to_be_bytes());
                out.extend_from_slice(&terms.expires_unix_s.to_be_bytes());
                let approve = if terms.approve { APPROVE } else { 0 };
                let named = if terms.name.is_some() { NAMED } else { 0 };
                let kind = match &terms.kind {
                    TokenKind::Host => 0,
                    TokenKind::Router { relay: true, .. } => ROUTER,
                    TokenKind::Router { relay: false, .. } => ROUTER | NO_RELAY,
                    TokenKind::Registrar { relay: true, .. } => ROUTER | REGISTRAR,
                    TokenKind::Registrar { relay: false, .. } => ROUTER | NO_RELAY | REGISTRAR,
                };
                out.push(approve | named | kind);
                terms.name.iter().for_each(|name| put_name(out, name));
                if let Some((family, _)) = terms.kind.router() {
                    put_name(out, family.unwrap_or_default());
                }
                if let TokenKind::Registrar { range, .. } = &terms.kind {
                    let (first, last) = range.map_or((0, 0), |range| (range.first, range.last));
                    out.extend_from_slice(&first.to_be_bytes());
                    out.extend_from_slice(&last.to_be_bytes());
                }
                out.push(terms.groups.len() as u8);
                terms.groups.iter().for_each(|group| put_name(out, group));
            }
            LedgerRecord::Withdrawn(token) => {
                out.push(WITHDRAWN);
                out.extend_from_slice(&token.0);
            }
            LedgerRecord::Step { cause, key, supplement } => {
                out.push(STEP);
                match cause {
                    StepCause::Joined(token) => {
                        out.push(1);
                        out.extend_from_slice(&token.0);
                    }
                    StepCause::Renewed => out.push(2),
                    StepCause::Left => out.push(3),
                    StepCause::Rekeyed => out.push(4),
                    StepCause::Removed => out.push(5),
                    StepCause::Moved => out.push(6),
                    StepCause::Covered => out.push(7),
                    StepCause::SecondRouter => out.push(8),
                    StepCause::Door => out.push(9),
                }
                out.extend_from_slice(&key.to_bytes());
                out.extend_from_slice(supplement);
            }
            LedgerRecord::Denied { token, key } => {
                out.push(DENIED);
                out.extend_from_slice(&token.0);
                out.extend_from_slice(&key.to_bytes());
            }
            LedgerRecord::Learnt { supplement } => {
                out.push(LEARNT);
                out.extend_from_slice(supplement);
            }
        }
    }

    /// Decodes a whole record.
    pub(crate) fn read(bytes: &[u8]) -> Result<LedgerRecord, ParseError> {
        let mut reader = Reader::new(bytes);
        let record = match reader.u8("kind of a record")? {
            ISSUED => LedgerRecord::Issued {
                token: token(&mut reader)?,
                unix_s: reader.u64("time")?,
                terms: terms(&mut reader)?,
            },
            WITHDRAWN => LedgerRecord::Withdrawn(token(&mut reader)?),
            STEP => {
                let cause = cause(&mut reader)?;
                let key = key(&mut reader)?;
                let supplement = supplement(&reader)?;
                return Ok(LedgerRecord::Step { cause, key, supplement });
            }
            LEARNT => return Ok(LedgerRecord::Learnt { supplement: supplement(&reader)? }),
            DENIED => LedgerRecord::Denied { token: token(&mut reader)?, key: key(&mut reader)? },
            other => {
                return Err(ParseError::Unknown { what: "kind of a record", value: other.into() });
            }
        };
        reader.finish("record")?;
        Ok(record)
    }
}

/// The supplement that the rest of a record holds.
fn supplement(reader: &Reader<'_>) -> Result<Vec<u8>, ParseError> {
    let (have, what, max) = (reader.rest().len(), "supplement", SUPPLEMENT_MAX);
    if have > max {
        Err(ParseError::TooLong { what, max, have })
    } else {
        Ok(reader.rest().to_vec())
    }
}

fn cause(reader: &mut Reader<'_>) -> Result<StepCause, ParseError> {
    match reader.u8("cause")? {
        1 => Ok(StepCause::Joined(token(reader)?)),
        2 => Ok(StepCause::Renewed),
        3 => Ok(StepCause::Left),
        4 => Ok(StepCause::Rekeyed),
        5 => Ok(StepCause::Removed),
        6 => Ok(StepCause::Moved),
        7 => Ok(StepCause::Covered),
        8 => Ok(StepCause::SecondRouter),
        9 => Ok(StepCause::Door),
        other => Err(ParseError::Unknown { what: "cause", value: other.into() }),
    }
}

fn terms(reader: &mut Reader<'_>) -> Result<TokenTerms, ParseError> {
    let (uses, expires_unix_s) = (reader.u32("uses")?, reader.u64("expiry")?);
    let bits = reader.u8("bits")?;
    let is_router = bits & ROUTER != 0;
    let of_router = bits & (NO_RELAY | REGISTRAR) != 0;
    let known = APPROVE | NAMED | ROUTER | NO_RELAY | REGISTRAR;
    if bits & !known != 0 || (of_router && !is_router) {
        return Err(ParseError::Unknown { what: "bits", value: bits.into() });
    }
    let named = bits & NAMED != 0;
    let name = if named { Some(self::name(reader, "name")?) } else { None };
    let kind = if is_router { router(reader, bits)? } else { TokenKind::Host };
    let count = usize::from(reader.u8("groups")?);
    if count > GROUPS_MAX {
        return Err(ParseError::TooLong { what: "groups", max: GROUPS_MAX, have: count });
    }
    let mut groups = Vec::with_capacity(count);
    for _ in 0..count {
        groups.push(self::name(reader, "group")?);
    }
    let approve = bits & APPROVE != 0;
    let terms = TokenTerms { uses, expires_unix_s, name, groups, approve, kind };
    match terms.clone().checked() {
        Ok(checked) if checked == terms => Ok(terms),
        _ => Err(ParseError::Invalid { what: "terms of a token" }),
    }
}

fn router(reader: &mut Reader<'_>, bits: u8) -> Result<TokenKind, ParseError> {
    let family = match reader.rest().first() {
        Some(0) => reader.u8("family").map(|_| None)?,
        _ => Some(name(reader, "family")?),
    };
    let relay = bits & NO_RELAY == 0;
    if bits & REGISTRAR == 0 {
        return Ok(TokenKind::Router { family, relay });
    }
    let what = "router numbers";
    let range = match (reader.u32(what)?, reader.u32(what)?) {
        (0, 0) => None,
        (first, last) if first > 0 && first <= last => Some(RouterRange { first, last }),
        _ => return Err(ParseError::Invalid { what }),
    };
    Ok(TokenKind::Registrar { family, relay, range })
}
