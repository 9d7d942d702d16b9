//! Asks an address translator to keep a UDP port open towards this machine. The protocol is PCP
//! (RFC 6887), or NAT-PMP (RFC 6886) if the translator knows no PCP.
//!
//! In: datagrams from the translator, and the time. Out: datagrams for its port [`SERVER_PORT`],
//! and the endpoint at which others reach this machine.
//!
//! ```text
//! asking by PCP --answer--> held --half of its time--> asking again
//!      | "I know no PCP", or silence                      | silence until it ends
//!      v                                                  v
//! asking by NAT-PMP --answer--> held                   asking by PCP
//!      | silence, refused
//!      v
//! resting, then asking by PCP
//! ```
//!
//! The protocols have no authentication: an attacker on the wire between machine and translator can
//! forge answers. A forged answer only adds one candidate endpoint of this machine, since links
//! check keys.
//!
//! Invariant: an answer counts only while it is awaited, and only once. Any other datagram is
//! classified, counted and dropped.

#![forbid(unsafe_code)]

mod codec;
mod mapper;
#[cfg(test)]
mod mapper_tests;

pub use codec::{ANSWER_MAX, MappingAnswer, MappingRequest, parse, pcp_map, pmp_address, pmp_map};
pub use mapper::{
    GrantedMapping, IgnoredAnswer, Mapper, MapperStats, MappingError, MappingProtocol,
};

/// UDP port at which translators listen.
pub const SERVER_PORT: u16 = 5_351;
