//! Asks a translator of addresses to keep a UDP port open towards this machine: PCP (RFC 6887),
//! and NAT-PMP (RFC 6886) where the translator knows no PCP.
//!
//! In: datagrams that the translator sent, and the time. Out: datagrams for its port
//! [`SERVER_PORT`], and the endpoint at which others reach this machine.
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
//! Nothing of it is sealed: whoever is on the wire between machine and translator can answer in its
//! place. What he says is one candidate of where this machine may be, no more: links check keys.
//!
//! Invariant: an answer counts only while it is waited for, and once; what does not count is named,
//! counted and forgotten.

#![forbid(unsafe_code)]

mod codec;
mod mapper;

pub use codec::{ANSWER_MAX, Answer, Wish, parse, pcp_map, pmp_address, pmp_map};
pub use mapper::{Fault, Mapped, Mapper, Stats, Stray, Via};

/// UDP port at which translators are asked.
pub const SERVER_PORT: u16 = 5_351;
