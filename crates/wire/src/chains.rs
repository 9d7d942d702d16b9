//! Messages by which neighbours pass registrars' supplements on (docs/authority.md section 6).
//!
//! Each is the body of one [`ControlMessages`](crate::ControlMessages) item; the type byte stands
//! in its head. All integers are big-endian.

use crate::{CONTROL_BODY_MAX, ParseError, Reader};

/// Most mandates of one list, and so most chains that a node has.
pub const CHAINS_MAX: usize = 16;
/// Most steps of one chain.
pub const CHAIN_STEPS_MAX: u32 = 65_536;
/// Longest step in bytes.
pub const STEP_LEN_MAX: usize = 1_024;
/// Most steps that one question asks for.
pub const STEPS_ASKED_MAX: u8 = 64;

const KIND_HAVE: u8 = 35;
const KIND_WANT: u8 = 36;
const KIND_STEPS: u8 = 37;

/// Which steps of one mandate the sender has.
///
/// ```text
///  0         32      36                  68     72
/// +---------+-------+-------------------+------+
/// | mandate | steps | head              | fork |
/// +---------+-------+-------------------+------+
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ChainMark {
    /// The mandate's id.
    pub mandate: [u8; 32],
    /// How many steps count at the sender.
    pub steps: u32,
    /// What the next step would name as its previous one.
    pub head: [u8; 32],
    /// The number of which the sender has seen two different steps; 0 if it has not.
    pub fork: u32,
}

/// What a node has of all chains.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ChainHave {
    /// The sender has not heard that the receiver has as much, and wants to.
    pub ask: bool,
    /// Ascending by mandate; at most [`CHAINS_MAX`].
    pub chains: Vec<ChainMark>,
}

/// What neighbours say to each other about supplements.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ChainMessage {
    /// What the sender has.
    Have(ChainHave),
    /// Asks for steps of one chain of the receiver's.
    Want {
        /// The mandate's id.
        mandate: [u8; 32],
        /// The number of the first step, from 1 on.
        first: u32,
        /// How many: 1 to [`STEPS_ASKED_MAX`].
        count: u8,
    },
    /// Steps of the sender's, each of 1 to [`STEP_LEN_MAX`] bytes; as many as one message holds.
    Steps(Vec<Vec<u8>>),
}

impl ChainMessage {
    /// Type bytes of these messages.
    pub const KINDS: core::ops::RangeInclusive<u8> = KIND_HAVE..=KIND_STEPS;
    /// Bytes in front of each step in [`ChainMessage::Steps`].
    pub const STEP_HEAD_LEN: usize = 2;

    /// The type byte.
    pub fn kind(&self) -> u8 {
        match self {
            ChainMessage::Have(_) => KIND_HAVE,
            ChainMessage::Want { .. } => KIND_WANT,
            ChainMessage::Steps(_) => KIND_STEPS,
        }
    }

    /// Appends the body to `out`.
    pub fn encode(&self, out: &mut Vec<u8>) {
        match self {
            ChainMessage::Have(have) => {
                out.push(u8::from(have.ask));
                out.push(have.chains.len() as u8);
                for mark in &have.chains {
                    out.extend_from_slice(&mark.mandate);
                    out.extend_from_slice(&mark.steps.to_be_bytes());
                    out.extend_from_slice(&mark.head);
                    out.extend_from_slice(&mark.fork.to_be_bytes());
                }
            }
            ChainMessage::Want { mandate, first, count } => {
                out.extend_from_slice(mandate);
                out.extend_from_slice(&first.to_be_bytes());
                out.push(*count);
            }
            ChainMessage::Steps(steps) => {
                for step in steps {
                    out.extend_from_slice(&(step.len() as u16).to_be_bytes());
                    out.extend_from_slice(step);
                }
            }
        }
    }

    /// Decodes the body of a message of type `kind`.
    pub fn parse(kind: u8, body: &[u8]) -> Result<ChainMessage, ParseError> {
        let mut r = Reader::new(body);
        let message = match kind {
            KIND_HAVE => ChainMessage::Have(parse_have(&mut r)?),
            KIND_WANT => {
                let (mandate, first, count) =
                    (r.array("mandate")?, r.u32("first step")?, r.u8("wanted steps")?);
                let is_known = (1..=CHAIN_STEPS_MAX).contains(&first);
                if !is_known || !(1..=STEPS_ASKED_MAX).contains(&count) {
                    return Err(ParseError::Invalid { what: "wanted steps" });
                }
                ChainMessage::Want { mandate, first, count }
            }
            KIND_STEPS => return parse_steps(r),
            _ => return Err(ParseError::Unknown { what: "control type", value: u32::from(kind) }),
        };
        r.finish("chain message")?;
        Ok(message)
    }
}

fn parse_have(r: &mut Reader<'_>) -> Result<ChainHave, ParseError> {
    let invalid = |what| Err(ParseError::Invalid { what });
    let ask = r.flag("ask")?;
    let count = usize::from(r.u8("count of chains")?);
    if count > CHAINS_MAX {
        return Err(ParseError::TooLong { what: "chains", max: CHAINS_MAX, have: count });
    }
    let mut chains: Vec<ChainMark> = Vec::with_capacity(count);
    for _ in 0..count {
        let mark = ChainMark {
            mandate: r.array("mandate")?,
            steps: r.u32("steps of a chain")?,
            head: r.array("head of a chain")?,
            fork: r.u32("fork of a chain")?,
        };
        if chains.last().is_some_and(|last| last.mandate >= mark.mandate) {
            return invalid("order of chains");
        }
        let forks = (mark.fork > mark.steps && mark.fork <= CHAIN_STEPS_MAX) || mark.fork == 0;
        if mark.steps > CHAIN_STEPS_MAX || !forks {
            return invalid("steps of a chain");
        }
        chains.push(mark);
    }
    Ok(ChainHave { ask, chains })
}

fn parse_steps(mut r: Reader<'_>) -> Result<ChainMessage, ParseError> {
    let have = r.rest().len();
    if have > CONTROL_BODY_MAX {
        return Err(ParseError::TooLong { what: "steps", max: CONTROL_BODY_MAX, have });
    }
    let mut steps = Vec::new();
    while !r.rest().is_empty() || steps.is_empty() {
        let len = usize::from(r.u16("length of a step")?);
        if !(1..=STEP_LEN_MAX).contains(&len) {
            return Err(ParseError::Invalid { what: "length of a step" });
        }
        steps.push(r.bytes("step", len)?.to_vec());
    }
    Ok(ChainMessage::Steps(steps))
}
