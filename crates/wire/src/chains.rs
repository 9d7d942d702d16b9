//! Messages by which neighbours pass registrars' supplements on (docs/design/wire/join.md).
//!
//! Each message is the body of one [`ControlMessages`](crate::ControlMessages) item, whose head has
//! the type byte. All integers are big-endian.

use crate::{CONTROL_BODY_MAX, ParseError, Reader};

/// Most mandates in one list, and thus most chains that a node has.
pub const CHAINS_MAX: usize = 16;
/// Most steps of one chain.
pub const CHAIN_STEPS_MAX: u32 = 65_536;
/// Longest step in bytes.
pub const STEP_LEN_MAX: usize = 1_024;
/// Most steps that one request asks for.
pub const STEPS_ASKED_MAX: u8 = 64;

const KIND_HAVE: u8 = 35;
const KIND_WANT: u8 = 36;
const KIND_STEPS: u8 = 37;

/// State of one mandate's chain at the sender.
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
    /// Number of steps that the sender has accepted.
    pub steps: u32,
    /// Hash of the newest step, which the next step must name as its predecessor.
    pub head: [u8; 32],
    /// Number of a step for which the sender has seen two different versions; 0 if none.
    pub fork: u32,
}

/// State of all chains at a node.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ChainInventory {
    /// True if the sender wants to hear that the receiver has as much, and has not heard it yet.
    pub ask: bool,
    /// Sorted by mandate, ascending; at most [`CHAINS_MAX`].
    pub chains: Vec<ChainMark>,
}

/// Messages between neighbours about supplements.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ChainMessage {
    /// State of the sender's chains.
    Have(ChainInventory),
    /// Asks for steps of one of the receiver's chains.
    Want {
        /// The mandate's id.
        mandate: [u8; 32],
        /// Number of the first step, counted from 1.
        first: u32,
        /// Number of steps: 1 to [`STEPS_ASKED_MAX`].
        count: u8,
    },
    /// Steps from the sender's chain, each 1 to [`STEP_LEN_MAX`] bytes; as many as one message
    /// holds.
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

fn parse_have(r: &mut Reader<'_>) -> Result<ChainInventory, ParseError> {
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
    Ok(ChainInventory { ask, chains })
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
