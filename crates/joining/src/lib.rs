//! Joining: a machine becomes a member of a network by an invite.
//!
//! An *invite* is a text that a registrar issues. It holds the authority's key, the registrar's key
//! and endpoints, and a token. The registrar's *ledger* records the tokens issued and the
//! memberships granted for them.
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
//! words for people to compare, the validity of a token, and the bytes to append to the ledger.
//!
//! Invariant: no file, no socket and no clock. The registrar stores the hash of a token, never the
//! token. docs/design/wire/join.md is the normative text.

#![forbid(unsafe_code)]

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
mod refusal;
mod tokens;
mod words;

pub use desk::{
    Desk, DeskConfig, DeskError, DeskOutput, DeskStats, Disk, OwnerError, PendingApproval,
    WAITING_MAX,
};
pub use invite::{DOOR_SECRET_LEN, DoorSecret, ENDPOINTS_MAX, Expired, Invite, InviteError};
pub use joined::{JoinError, NewMembership};
pub use ledger::{LEDGER_MAX, Ledger, LedgerError, LedgerTail, RECORD_MAX, SUM_LEN};
pub use messages::{Grant, NameRequest, NewRegistrarRequest, PART_MAX, Refusal, RouterRequest};
pub use newcomer::{Contact, JoinEvent, JoinGoal, Newcomer};
pub use pasted::PASTED_MAX;
pub use record::{LedgerRecord, SUPPLEMENT_MAX, StepCause};
pub use tokens::{
    TOKENS_MAX, TermsError, Token, TokenEnd, TokenHash, TokenKind, TokenTerms, Tokens, USES_MAX,
};
pub use words::{WORDS, Words};
