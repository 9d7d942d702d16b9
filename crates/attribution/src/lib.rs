//! Group signatures over windows of packets. Anybody can verify that some member of the group sent
//! a packet; only a quorum of trustees can find out which member.
//!
//! In: seeds, times, packets, and encoded requests, credentials, stamps and shares. Out: encoded
//! answers, and verdicts.
//!
//! ```text
//! sender:    packets -> Stamper --(Pool: presignatures made ahead)--> seals, chunks -> flow
//! receiver:  packets, seals, chunks in any order -> Verifier -> verdicts, requests, Evidence
//! issuer:    JoinRequest -> Registry, each epoch IssuerKey + Registry -> Renewal with EpochNotice
//! member:    EpochNotice -> Seen, Renewal -> Credential -> Signer
//! trustees:  Evidence -> OpeningShare ... OpeningShare -> Opening -> anybody judges it
//! ```
//!
//! The signature is of the BBS family, with a proof in G1 and one pairing equation for a whole
//! batch. Anonymity is CCA. Issuer and trustees together can't frame a member. Membership ends with
//! an epoch. `docs/design/attribution.md` has the formulas and the argument.
//!
//! Invariant: the crate knows no sessions, routes or cells; a flow is an id and numbered
//! plaintexts. Every `decode` accepts one encoding of a value, and checks that points are in their
//! groups. `verify` checks whether the claims are true.

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
pub use error::{Error, SignatureError};
pub use evidence::{Evidence, ProvedPacket};
pub use group::{Group, GroupId};
pub use issuer::{IssuerKey, Renewal};
pub use kept::{EvidenceRing, StoredFlow};
pub use member::{JoinRequest, MemberCredential, MemberSecret};
pub use notice::{EpochNotice, NoticeMemory};
pub use open::{Opening, OpeningShare};
pub use pool::Pool;
pub use registry::{MEMBERS_MAX, Registry, RegistryEntry};
pub use sign::{Message, Presignature, SIGNATURE_LEN, Signature, Signer};
pub use stamp::{
    CHUNK_PACKETS, CHUNKS_MAX, DIGEST_LEN, Digest, DigestChunk, FlowId, PART_MAX, PartRequest,
    SEAL_LABEL, SEQ_MAX, Seal, StampPart, WINDOW_MAX, layout, packet_digest, packet_hash,
};
pub use stamper::{Stamper, StamperConfig};
pub use trial::StampTrial;
pub use trustee::{Dealing, DealingPublic, OpenerPublic, TRUSTEES_MAX, TrusteeKey};
pub use verifier::{StampRefusal, Verifier, VerifierConfig, VerifierEvent};
pub use verify::{EPOCHS_MAX, GroupVerifier, ProofChecked, VerifiedSignature};
