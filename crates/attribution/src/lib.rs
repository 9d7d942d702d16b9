//! Group signatures over windows of packets: anybody can verify that some member of the group sent
//! a packet, and only a quorum of trustees can find out which.
//!
//! In: seeds, times, packets, and the bytes of requests, credentials, stamps and shares. Out: the
//! bytes that answer them, and verdicts.
//!
//! ```text
//! sender:    packets -> Stamper --(Pool: presignatures made ahead)--> seals, chunks -> flow
//! receiver:  packets, seals, chunks in any order -> Verifier -> verdicts, requests, Evidence
//! issuer:    JoinRequest -> Registry, each epoch IssuerKey + Registry -> Renewal with EpochNotice
//! member:    EpochNotice -> Seen, Renewal -> Credential -> Signer
//! trustees:  Evidence -> OpeningShare ... OpeningShare -> Opening -> anybody judges it
//! ```
//!
//! The signature is of the BBS family, its proof lies in G1 and one pairing equation serves a whole
//! batch. Anonymity is CCA; members can't be framed by issuer and trustees together; membership
//! ends with an epoch. `docs/attribution.md` has the formulas, the argument, formats and figures.
//!
//! Invariant: nothing here knows of sessions, routes or cells; a flow is an id and numbered
//! plaintexts. Every `decode` accepts one encoding of a value and checks that points are in their
//! groups; whether their claims are true is checked by `verify`.

#![forbid(unsafe_code)]

mod codec;
mod error;
mod evidence;
mod flow;
mod group;
mod issuer;
mod kept;
mod member;
mod notice;
mod open;
mod pool;
mod proof;
mod registry;
mod sign;
mod stamp;
mod stamper;
#[cfg(test)]
mod tests;
mod tree;
mod trial;
mod trustee;
mod verifier;
mod verify;

pub use codec::NAME_MAX;
pub use error::{Error, Reject};
pub use evidence::{Evidence, Proved};
pub use group::{Group, GroupId};
pub use issuer::{IssuerKey, Renewal};
pub use kept::{EvidenceRing, KeptFlow};
pub use member::{Credential, JoinRequest, MemberSecret};
pub use notice::{EpochNotice, Seen};
pub use open::{Opening, OpeningShare};
pub use pool::Pool;
pub use registry::{MEMBERS_MAX, Member, Registry};
pub use sign::{Message, Presignature, SIGNATURE_LEN, Signature, Signer};
pub use stamp::{
    CHUNK_PACKETS, CHUNKS_MAX, Chunk, DIGEST_LEN, Digest, FlowId, PART_MAX, Part, Request,
    SEAL_LABEL, SEQ_MAX, Seal, WINDOW_MAX, layout, packet_digest, packet_hash,
};
pub use stamper::{Stamper, StamperConfig};
pub use trial::Trial;
pub use trustee::{Dealing, DealingPublic, OpenerPublic, TRUSTEES_MAX, TrusteeKey};
pub use verifier::{Event, Refusal, Verifier, VerifierConfig};
pub use verify::{Candidate, Checked, EPOCHS_MAX, GroupVerifier};
