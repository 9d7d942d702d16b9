//! Membership of a network, and access between its members.
//!
//! In: bytes signed by a network's authority, its policy as text, time, and the headers of packets.
//! Out: the members in force, each member's rights towards this host, and the firewall's verdict on
//! a packet.
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
//! the list's preset --> NetworkPreset: circuits, mixes and cover of all hosts
//! the list's names of secrets + known secrets --> Rotation: which of them count
//! ```
//!
//! A node trusts one public key, and the registrars to which that key gives a mandate. A list has
//! no effect if it is signed by another key or older than the list in force. A list older than the
//! node's limit means no members at all.
//!
//! Invariant: no file, no socket and no clock. The caller gives the time, by a monotonic clock and
//! by the wall clock.

#![forbid(unsafe_code)]

mod access;
mod carrier;
mod chains;
mod circuits;
mod codec;
mod cover;
mod directory;
mod door;
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
mod mesh;
mod mixes;
mod names;
mod peers;
mod policy;
mod prefix;
mod preset;
mod recent;
mod reckoning;
mod register;
mod rotation;
mod secrets;
mod span;
mod supplement;

pub use access::{Access, PortRange, TrafficKind};
pub use carrier::{CAPACITY_MAX, CircuitRole};
pub use chains::{ChainExchange, ChainOutcome, ChainStats, ReceivedSteps};
pub use circuits::{CircuitMode, CircuitRules, CircuitText, RuleSubject};
pub use codec::{NAME_MAX, is_name};
pub use cover::{TIER_NAME_MAX, TIERS_MAX, Tier, TierText, Tiers, check_cover};
pub use directory::{CLOCK_SKEW_S, Directory, Freshness, ListMark};
pub use door::{DNS_NAME_MAX, DOOR_ENDPOINTS_MAX, DoorEndpoint, dns_place, is_dns_name};
pub use error::{EntryError, Error, ListRejection};
pub use exchange::{ExchangeStats, ListExchange, ListVerdict, ReceivedList};
pub use fields::{FIELDS_MAX, Field};
pub use firewall::{Firewall, Limits, PacketKind, TcpSegment, Tuple};
pub use handing::SecretExchange;
pub use known::{KnownSecrets, SECRETS_KEPT_MAX};
pub use list::{
    List, ListContent, MEMBERS_MAX, POLICY_MAX, REVOKED_MAX, RevokedKey, SIZE_MAX, is_overlay,
};
pub use mandate::{
    ADMITTED_MAX, HostRange, MANDATES_MAX, Mandate, MandateId, MandateRights, NumberRange,
    RANGES_MAX, ROUTERS_MAX, RouterRange,
};
pub use member::{
    DESCRIPTOR_LEN_MAX, GROUPS_MAX, Member, PREFIXES_MAX, SignedMember, is_callable, is_host,
};
pub use mesh::neighbours;
pub use mixes::{MIX_NAME_MAX, MIXES_MAX, Mix, MixText, Mixes};
pub use names::{BadName, check_new_name, fold, numbered};
pub use policy::{Policy, PolicyError, RULES_MAX};
pub use prefix::Prefix;
pub use preset::{NetworkPreset, Preset};
pub use recent::FlowCache;
pub use register::{
    MandateRemainder, MandateViolation, Register, STEPS_MAX, StepEffect, StepRejection,
};
pub use rotation::{SecretRotation, SecretsToStore};
pub use secrets::{RotationStage, SecretChange, SecretName, SecretNames};
pub use span::span;
pub use supplement::{ENTRIES_MAX, SUPPLEMENT_LEN_MAX, Step, StepEntry, Supplement};
