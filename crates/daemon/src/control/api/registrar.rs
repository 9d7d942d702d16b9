//! What a registrar's owner asks of it, and what it answers.
//!
//! A registrar is a process of its own with a control socket of its own; the frames are those of
//! nodes. It knows nothing else, and nodes know nothing of this.

use serde::{Deserialize, Serialize};

/// Most entries of one answer; the rest is asked for by `skip`.
pub const PAGE: usize = 500;

/// A question.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Asked {
    /// The registrar in short; answered by [`Given::Status`].
    Status,
    /// An invite; answered by [`Given::Invite`].
    Invite(InviteAsked),
    /// The invites that it knows, the newest end first; answered by [`Given::Invites`].
    Invites {
        /// How many to pass over.
        skip: u32,
    },
    /// Takes an invite back; answered by [`Given::Done`].
    Withdraw {
        /// Its id, or the beginning of it that no other has.
        id: String,
    },
    /// Who waits for approval; answered by [`Given::Waiting`].
    Waiting,
    /// Says yes or no to a machine that waits; answered by [`Given::Done`].
    Approve {
        /// Its public key.
        key: String,
        /// Yes.
        yes: bool,
        /// The six words that it showed: with others it may have another name.
        #[serde(default)]
        words: Option<String>,
    },
    /// Its members; answered by [`Given::Members`].
    Members {
        /// How many to pass over.
        skip: u32,
    },
    /// Ends a membership for good; answered by [`Given::Done`].
    Remove {
        /// The member's name.
        name: String,
        /// Whether the invite by which it joined is withdrawn, too.
        #[serde(default)]
        withdraw: bool,
    },
}

/// What an invite is to be good for.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct InviteAsked {
    /// The name that the machine gets.
    pub name: Option<String>,
    /// How many machines may join by it.
    pub uses: u32,
    /// Seconds from now on until it is worth nothing.
    pub expires_s: u64,
    /// Groups of its members; none for all of the mandate's.
    pub groups: Vec<String>,
    /// Whether somebody must approve each machine.
    pub approve: bool,
}

/// An answer.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Given {
    /// To [`Asked::Status`].
    Status(Box<RegistrarStatus>),
    /// To [`Asked::Invite`].
    Invite(InviteMade),
    /// To [`Asked::Invites`].
    Invites {
        /// At most [`PAGE`].
        invites: Vec<TokenState>,
        /// How many there are in all.
        all: u32,
    },
    /// To [`Asked::Waiting`].
    Waiting(Vec<Joiner>),
    /// To [`Asked::Members`].
    Members {
        /// At most [`PAGE`].
        members: Vec<RegistrarMember>,
        /// How many there are in all.
        all: u32,
    },
    /// It is done.
    Done {
        /// What, in words for people.
        text: String,
    },
}

/// A registrar in short.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct RegistrarStatus {
    /// Its process.
    pub pid: u32,
    /// Its public key, which a mandate names.
    pub public_key: String,
    /// Where it listens.
    pub listen: Vec<String>,
    /// Where newcomers call it.
    pub endpoints: Vec<String>,
    /// Version of the list that it gives newcomers.
    pub list_version: u64,
    /// Seconds since that was signed.
    pub list_age_s: u64,
    /// "fresh", "stale" or "none".
    pub list: String,
    /// The mandate's name, if the list has one for this key.
    pub mandate: Option<String>,
    /// When the mandate ends, in seconds since 1970; 0 without one.
    pub until_unix_s: u64,
    /// Keys that it may ever admit, and that it has.
    pub most: u32,
    /// Keys admitted so far, those included that are gone.
    pub admitted: u32,
    /// Members now.
    pub members: u32,
    /// Supplements signed.
    pub steps: u64,
    /// Of these, how many the node here has; none while it is not reached.
    pub node_has: Option<u64>,
    /// Why the node here is not reached, or does not take them.
    pub node_fault: Option<String>,
    /// Invites that are still good for something.
    pub invites: u32,
    /// Machines that wait for approval.
    pub waiting: u32,
    /// Handshakes answered, since the start.
    pub welcomed: u64,
    /// Members admitted since the start.
    pub joined: u64,
    /// Memberships renewed.
    pub renewed: u64,
    /// Members that have another key.
    #[serde(default)]
    pub rekeyed: u64,
    /// Members that left.
    pub left: u64,
    /// Requests that got a reason instead.
    pub refused: u64,
    /// Datagrams sent, in bytes.
    pub bytes_out: u64,
    /// Datagrams without effect, by reason.
    pub drops: Vec<(String, u64)>,
    /// Lines of the log that were lost, since standard error took none.
    #[serde(default)]
    pub log_lines_lost: u64,
    /// What the owner should know.
    pub warnings: Vec<String>,
}

/// An invite that was just made.
#[derive(Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct InviteMade {
    /// The text to give to a machine; whoever reads it can join.
    pub text: String,
    /// Names it in lists.
    pub id: String,
    /// Until when, in seconds since 1970.
    pub expires_unix_s: u64,
    /// What the owner should know.
    pub warnings: Vec<String>,
}

impl core::fmt::Debug for InviteMade {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        f.write_str("InviteMade(hidden)")
    }
}

/// An invite as its registrar remembers it: without its text, which it forgot.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct TokenState {
    /// Names it.
    pub id: String,
    /// "open", "spent", "expired" or "withdrawn".
    pub state: String,
    /// Machines that joined by it.
    pub used: u32,
    /// Machines that may.
    pub uses: u32,
    /// Until when, in seconds since 1970.
    pub expires_unix_s: u64,
    /// The name that it gives.
    pub name: Option<String>,
    /// The groups that it gives; none for all of the mandate's.
    pub groups: Vec<String>,
    /// Whether somebody must approve each machine.
    pub approve: bool,
}

/// A machine that waits for approval.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Joiner {
    /// Its public key.
    pub key: String,
    /// The name that it gets.
    pub name: Option<String>,
    /// Six words, which its owner sees, too.
    pub words: String,
}

/// A member of a registrar's mandate.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct RegistrarMember {
    /// Its name.
    pub name: String,
    /// Its overlay address.
    pub address: String,
    /// Its IPv4 address, if it has one.
    pub ipv4: Option<String>,
    /// Its groups.
    pub groups: Vec<String>,
    /// When its membership ends, in seconds since 1970.
    pub expires_unix_s: u64,
}
