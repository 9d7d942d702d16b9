//! Requests of a registrar's owner, and the answers.
//!
//! A registrar is a process with its own control socket; its frames are those of nodes. It answers
//! no other commands, and nodes do not answer these.

use serde::{Deserialize, Serialize};

/// Most entries of one answer; `skip` asks for the rest.
pub const PAGE: usize = 500;

/// A request to a registrar.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum RegistrarRequest {
    /// Summary of the registrar; answered by [`RegistrarReply::Status`].
    Status,
    /// Makes an invite; answered by [`RegistrarReply::Invite`].
    Invite(InviteTerms),
    /// Known invites, ordered by their end, the latest first; answered by
    /// [`RegistrarReply::Invites`].
    Invites {
        /// Number of invites to skip.
        skip: u32,
    },
    /// Withdraws an invite; answered by [`RegistrarReply::Done`].
    Withdraw {
        /// Id of the invite, or a unique beginning of it.
        id: String,
        /// True to remove also all members that joined by it.
        #[serde(default)]
        members: bool,
    },
    /// Machines that wait for approval; answered by [`RegistrarReply::Waiting`].
    Waiting,
    /// Approves or declines a machine that waits; answered by [`RegistrarReply::Done`].
    Approve {
        /// Public key of the machine.
        key: String,
        /// True to approve, false to decline.
        yes: bool,
        /// The six words that the machine showed. Other words mean that its name may be another.
        #[serde(default)]
        words: Option<String>,
    },
    /// Members of the registrar; answered by [`RegistrarReply::Members`].
    Members {
        /// Number of members to skip.
        skip: u32,
    },
    /// Ends a membership for good; answered by [`RegistrarReply::Done`].
    Remove {
        /// The member's name.
        name: String,
        /// True to withdraw also the invite by which the member joined.
        #[serde(default)]
        withdraw: bool,
    },
    /// Withdraws a registrar that this one made; answered by [`RegistrarReply::Done`].
    WithdrawRegistrar {
        /// Name of the registrar, which is that of its router.
        name: String,
    },
}

/// Terms of a new invite.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct InviteTerms {
    /// Name for the machine.
    pub name: Option<String>,
    /// Number of machines that may join by it.
    pub uses: u32,
    /// Seconds until the invite expires.
    pub expires_s: u64,
    /// Groups of the new members; none for all of the mandate's.
    pub groups: Vec<String>,
    /// True if somebody must approve each machine.
    pub approve: bool,
    /// Terms of routers; without them the machines become hosts.
    #[serde(default)]
    pub router: Option<RouterTerms>,
    /// Terms of the registrars that the routers get; without them they get none.
    #[serde(default)]
    pub registrar: Option<RegistrarTerms>,
}

/// Terms of an invite for a router with a registrar.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct RegistrarTerms {
    /// Router numbers that the new registrar may give, such as 100-199; without them free ones.
    pub range: Option<String>,
}

/// Terms of an invite for routers.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct RouterTerms {
    /// Name of the operator, which all routers of the invite have; without it the mandate's.
    pub family: Option<String>,
    /// False if they must not be relays of circuits.
    pub relay: bool,
}

/// Answer of a registrar.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum RegistrarReply {
    /// To [`RegistrarRequest::Status`].
    Status(Box<RegistrarStatus>),
    /// To [`RegistrarRequest::Invite`].
    Invite(NewInvite),
    /// To [`RegistrarRequest::Invites`].
    Invites {
        /// At most [`PAGE`].
        invites: Vec<InviteStatus>,
        /// Number of all invites.
        all: u32,
    },
    /// To [`RegistrarRequest::Waiting`].
    Waiting(Vec<Joiner>),
    /// To [`RegistrarRequest::Members`].
    Members {
        /// At most [`PAGE`].
        members: Vec<RegistrarMember>,
        /// Number of all members.
        all: u32,
    },
    /// The request was carried out.
    Done {
        /// Text for people.
        text: String,
    },
}

/// Summary of a registrar.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct RegistrarStatus {
    /// Process number.
    pub pid: u32,
    /// Public key, which a mandate names.
    pub public_key: String,
    /// Addresses at which it listens.
    pub listen: Vec<String>,
    /// Endpoints at which newcomers call it.
    pub endpoints: Vec<String>,
    /// Version of the list that newcomers get.
    pub list_version: u64,
    /// Seconds since that list was signed.
    pub list_age_s: u64,
    /// State of the list: "fresh", "stale" or "none".
    pub list: String,
    /// Name of the mandate, if the list has one for this key.
    pub mandate: Option<String>,
    /// End of the mandate, in seconds since 1970; 0 without one.
    pub until_unix_s: u64,
    /// Most keys that it may ever admit.
    pub most: u32,
    /// Keys admitted so far, including those that are gone.
    pub admitted: u32,
    /// Members at present.
    pub members: u32,
    /// Supplements signed.
    pub steps: u64,
    /// Registrars that this one made: name, and where they are called at first.
    #[serde(default)]
    pub registrars: Vec<String>,
    /// Supplements that the node here has; none while the node is not reached.
    pub node_has: Option<u64>,
    /// Reason why the node here is not reached, or refuses the supplements.
    pub node_fault: Option<String>,
    /// Invites that can still be used.
    pub invites: u32,
    /// Machines that wait for approval.
    pub waiting: u32,
    /// Handshakes answered, since the start.
    pub welcomed: u64,
    /// Members admitted since the start.
    pub joined: u64,
    /// Memberships renewed since the start.
    pub renewed: u64,
    /// Members that changed their key.
    #[serde(default)]
    pub rekeyed: u64,
    /// Hosts that moved behind another router.
    #[serde(default)]
    pub moved: u64,
    /// Members that left.
    pub left: u64,
    /// Requests that were refused with a reason.
    pub refused: u64,
    /// Datagrams sent, in bytes.
    pub bytes_out: u64,
    /// Datagrams without effect, by reason.
    pub drops: Vec<(String, u64)>,
    /// Lines of the log that were lost, since standard error did not accept them.
    #[serde(default)]
    pub log_lines_lost: u64,
    /// Warnings for the owner.
    pub warnings: Vec<String>,
}

/// An invite that was just made.
#[derive(Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct NewInvite {
    /// The text to give to a machine; whoever reads it can join.
    pub text: String,
    /// Id of the invite in lists.
    pub id: String,
    /// End of validity, in seconds since 1970.
    pub expires_unix_s: u64,
    /// Warnings for the owner.
    pub warnings: Vec<String>,
}

impl core::fmt::Debug for NewInvite {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        f.write_str("InviteMade(hidden)")
    }
}

/// An invite as its registrar remembers it: without its text, which is not stored.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct InviteStatus {
    /// Id of the invite.
    pub id: String,
    /// "open", "spent", "expired" or "withdrawn".
    pub state: String,
    /// Machines that joined by it.
    pub used: u32,
    /// Machines that may join by it.
    pub uses: u32,
    /// End of validity, in seconds since 1970.
    pub expires_unix_s: u64,
    /// Name for the machine.
    pub name: Option<String>,
    /// Groups of the new members; none for all of the mandate's.
    pub groups: Vec<String>,
    /// True if somebody must approve each machine.
    pub approve: bool,
    /// Terms of routers; without them it is for hosts.
    #[serde(default)]
    pub router: Option<RouterTerms>,
    /// Terms of the registrars that the routers get, if they get any.
    #[serde(default)]
    pub registrar: Option<RegistrarTerms>,
}

/// A machine that waits for approval.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Joiner {
    /// Public key of the machine.
    pub key: String,
    /// Name that the machine gets.
    pub name: Option<String>,
    /// Six words, which the machine's owner sees, too.
    pub words: String,
}

/// A member of a registrar's mandate.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct RegistrarMember {
    pub name: String,
    /// Overlay address.
    pub address: String,
    /// Overlay address at a second router, if the member has one.
    #[serde(default)]
    pub second: Option<String>,
    /// IPv4 address, if the member has one.
    pub ipv4: Option<String>,
    pub groups: Vec<String>,
    /// End of the membership, in seconds since 1970.
    pub expires_unix_s: u64,
}
