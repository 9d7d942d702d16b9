//! How a machine becomes a member of a network by an invite.
//!
//! An *invite* is a text that a registrar gave out: whom to trust, where the registrar listens, and
//! a token. The registrar's *ledger* says which tokens there are and what was granted for them.
//!
//! ```text
//! Token --> Invite --text--> newcomer
//!   | hash
//!   v
//! Tokens <--Record-- Ledger <--bytes of a file
//!                    End::append --> bytes to append to it
//! ```
//!
//! In: text, the bytes of a ledger, random bytes, the time in seconds since 1970. Out: invites,
//! words for people to compare, whether a token holds, and the bytes to append to the ledger.
//!
//! Invariant: no file, no socket and no clock. The registrar never keeps a token, only its hash.
//! docs/joining.md is the normative text.

#![forbid(unsafe_code)]

mod base32;
mod desk;
mod door;
mod frame;
mod invite;
mod joined;
mod ledger;
mod messages;
mod newcomer;
mod pasted;
mod record;
mod tokens;
mod words;

pub use desk::{
    Desk, DeskConfig, DeskError, DeskStats, Disk, Output, OwnerError, WAITING_MAX, Waiting,
};
pub use invite::{DOOR_SECRET_LEN, DoorSecret, ENDPOINTS_MAX, Expired, Invite, InviteError};
pub use joined::{Fault, Joined};
pub use ledger::{End, LEDGER_MAX, Ledger, LedgerError, RECORD_MAX, SUM_LEN};
pub use messages::{Grant, PART_MAX, Refusal, Wish};
pub use newcomer::{Contact, Event, Goal, Newcomer};
pub use pasted::PASTED_MAX;
pub use record::{Cause, Record, SUPPLEMENT_MAX};
pub use tokens::{Ended, TOKENS_MAX, Terms, TermsError, Token, TokenHash, Tokens, USES_MAX};
pub use words::{WORDS, Words};
