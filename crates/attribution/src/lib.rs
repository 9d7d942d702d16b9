//! Group signatures over windows of packets: anybody can verify that some member of the group sent
//! a packet, and only a quorum of trustees can find out which.

#![forbid(unsafe_code)]

mod codec;
mod error;
mod group;
mod issuer;
mod member;
mod open;
mod proof;
mod sign;
mod trustee;
mod verify;

pub use codec::NAME_MAX;
pub use error::{Error, Reject};
pub use group::{Group, GroupId};
pub use issuer::{EpochNotice, IssuerKey, MEMBERS_MAX, Member, Registry, Renewal};
pub use member::{Credential, JoinRequest, MemberSecret};
pub use open::{Opening, OpeningShare};
pub use sign::{Message, Presignature, SIGNATURE_LEN, Signature, Signer};
pub use trustee::{Dealing, DealingPublic, OpenerPublic, TRUSTEES_MAX, TrusteeKey};
pub use verify::{Checked, EPOCHS_MAX, GroupVerifier};
