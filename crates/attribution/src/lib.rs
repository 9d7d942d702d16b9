//! Group signatures over windows of packets: anybody can verify that some member of the group sent
//! a packet, and only a quorum of trustees can find out which.

#![forbid(unsafe_code)]

mod codec;
mod error;
mod evidence;
mod flow;
mod group;
mod issuer;
mod member;
mod open;
mod pool;
mod proof;
mod sign;
mod stamp;
mod stamper;
#[cfg(test)]
mod tests;
mod trustee;
mod verifier;
mod verify;

pub use codec::NAME_MAX;
pub use error::{Error, Reject};
pub use evidence::{Evidence, Proved};
pub use group::{Group, GroupId};
pub use issuer::{EpochNotice, IssuerKey, MEMBERS_MAX, Member, Registry, Renewal};
pub use member::{Credential, JoinRequest, MemberSecret};
pub use open::{Opening, OpeningShare};
pub use pool::Pool;
pub use sign::{Message, Presignature, SIGNATURE_LEN, Signature, Signer};
pub use stamp::{
    CHUNK_PACKETS, CHUNKS_MAX, Chunk, DIGEST_LEN, Digest, FlowId, PART_MAX, Part, Request,
    SEAL_LABEL, SEQ_MAX, Seal, WINDOW_MAX, layout, packet_digest, packet_hash,
};
pub use stamper::{Stamper, StamperConfig};
pub use trustee::{Dealing, DealingPublic, OpenerPublic, TRUSTEES_MAX, TrusteeKey};
pub use verifier::{Event, Refusal, Verifier, VerifierConfig};
pub use verify::{Checked, EPOCHS_MAX, GroupVerifier};
