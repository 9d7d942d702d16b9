//! Who belongs to a network, and who may reach whom.
//!
//! In: bytes that a network's authority signed, its policy as text, time, and what a packet's
//! headers say. Out: the members in force now, each member's rights towards this host, and whether
//! a packet passes.
//!
//! ```text
//! shoal authority --signs--> list = version, time, revoked keys, policy, members
//! list --> Directory: ours? newer? fresh? --> members in force
//! a registrar --signs--> Supplement --> Register: within its mandate? --> members in force
//! list of a neighbour -> Exchange -> its bytes, to be opened -> Exchange -> other neighbours
//! policy + groups of two members --> Access --> Firewall (flows of this host)
//!                                --> CircuitMode: off, or required
//!                                --> Mixes: what relays do with the cells of circuits
//!                                --> Tiers: schedules of hosts' links with their routers
//! the list's names of secrets + known secrets --> Rotation: which of them count
//! ```
//!
//! A node trusts one public key, and whom that key gives a mandate. What is not signed by it, older
//! than what is in force, or older than the node's limit has no effect, and a list that is too old
//! means no members at all.
//!
//! Invariant: this crate knows no file, no socket and no clock. Its caller says what time it is, by
//! a monotonic clock and by the wall clock.

#![forbid(unsafe_code)]

mod access;
mod carrier;
mod chains;
mod circuits;
mod codec;
mod cover;
mod directory;
mod error;
mod exchange;
mod fetch;
mod fields;
mod firewall;
mod handing;
mod known;
mod ledger;
mod list;
mod mandate;
mod member;
mod mixes;
mod names;
mod peers;
mod policy;
mod prefix;
mod recent;
mod reckoning;
mod register;
mod rotation;
mod secrets;
mod span;
mod supplement;

pub use access::{Access, PortRange, Rights};
pub use carrier::{CAPACITY_MAX, Carrier};
pub use chains::{ArrivedSteps, ChainOutcome, ChainStats, Chains};
pub use circuits::{CircuitMode, CircuitRules, CircuitText, Party};
pub use codec::{NAME_MAX, is_name};
pub use cover::{TIER_NAME_MAX, TIERS_MAX, Tier, TierText, Tiers, check_cover};
pub use directory::{CLOCK_SKEW_S, Directory, Mark, Standing};
pub use error::{EntryError, Error, Refused};
pub use exchange::{Arrived, Exchange, ExchangeStats, Outcome};
pub use fields::{FIELDS_MAX, Field};
pub use firewall::{Firewall, Limits, Opening, Segment, Tuple};
pub use handing::Handing;
pub use known::{Known, SECRETS_KEPT_MAX};
pub use list::{
    Content, List, MEMBERS_MAX, POLICY_MAX, REVOKED_MAX, Revoked, SIZE_MAX, is_overlay,
};
pub use mandate::{ADMITTED_MAX, HostRange, MANDATES_MAX, Mandate, MandateId, RANGES_MAX};
pub use member::{DESCRIPTOR_LEN_MAX, GROUPS_MAX, Member, PREFIXES_MAX, Signed, is_host};
pub use mixes::{MIX_NAME_MAX, MIXES_MAX, Mix, MixText, Mixes};
pub use names::{BadName, check_new_name, fold};
pub use policy::{Policy, PolicyError, RULES_MAX};
pub use prefix::Prefix;
pub use recent::Recent;
pub use register::{Applied, BadMandate, Register, STEPS_MAX, Unapplied};
pub use rotation::{Rotation, ToKeep};
pub use secrets::{SecretChange, SecretName, SecretNames, Stage};
pub use span::span;
pub use supplement::{ENTRIES_MAX, Entry, SUPPLEMENT_LEN_MAX, Step, Supplement};
