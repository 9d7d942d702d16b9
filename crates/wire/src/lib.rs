//! Decodes and encodes every format that travels between Shoal nodes.
//!
//! Input is a byte slice from a datagram or from an opened ciphertext. Output is a small typed
//! value that proves the bytes were well formed, or a [`ParseError`] that says what was wrong.
//!
//! ```text
//! datagram (one frame, exactly 192, 576 or 1,440 bytes)
//! +-----------------+--------------------------------------------------------+---------+
//! | link header 8 B | ciphertext                                             | tag 16  |
//! +-----------------+--------------------------------------------------------+---------+
//!                   | kind 1 | routed header 15 | cell payload               |
//!                                               | end header 8 | ... | tag 16 |
//! ```
//!
//! Invariant: this crate knows no key, holds no state and never panics on any input. It allocates
//! only for variable-length control messages. `docs/design/wire` is normative; the comments
//! here name its pages.

#![forbid(unsafe_code)]

mod address;
mod chains;
mod class;
mod control;
mod cover;
mod direct;
mod drops;
mod error;
mod frame;
mod handshake;
mod header;
mod id;
mod jitter;
pub mod leg;
mod lists;
mod meeting;
mod mix;
mod place;
mod routing;
mod secrets;
mod shift;
mod stun;
mod time;
pub mod transfer;

pub use address::{Address, AddressError, NodeAddresses};
pub use chains::{
    CHAIN_STEPS_MAX, CHAINS_MAX, ChainInventory, ChainMark, ChainMessage, STEP_LEN_MAX,
    STEPS_ASKED_MAX,
};
pub use class::SizeClass;
pub use control::{
    CONTROL_BODY_MAX, CONTROL_CLOCK, CONTROL_COVER, CONTROL_END, CONTROL_GOODBYE, CONTROL_HEAD_LEN,
    CONTROL_PATH_CHALLENGE, CONTROL_PATH_RESPONSE, CONTROL_REPORT, CONTROL_SEEN,
    CONTROL_SHIFT_PLACE, CONTROL_SHIFT_PROBE, CONTROL_SHIFT_STEP, CONTROL_TWIN, COVER_KEPT,
    ControlMessage, ControlMessages, ControlWriter, LaneReport, PathToken,
};
pub use cover::{CoverKind, CoverTier};
pub use direct::{DirectKind, DirectMessage, Level};
pub use drops::DropReason;
pub use error::{ParseError, Reader};
pub use frame::{EdgeKind, LinkKind, edge, ip, link};
pub use handshake::{
    FirstPayload, HandshakePart, HandshakeReply, HandshakeRequest, Removal, RemovalReason,
    SecondPayload, shake,
};
pub use header::{CongestionMark, RoutedHeader, SessionHeader, TrafficClass};
pub use id::{CircuitId, IDS_MAX, Id, LinkId};
pub use jitter::Jitter;
pub use lists::{LIST_LEN_MAX, LIST_PART_LEN, ListInventory, ListMessage};
pub use meeting::{
    CandidateKind, EndpointCandidate, Meeting, MeetingId, PROBE_BODY, PROBE_LEN, PROBES_MAX,
};
pub use mix::{HopDelay, MixStrategy, MixTime};
pub use place::{
    MIRROR_LEN, Mapping, MirrorAnswer, MirrorRequest, PLACE_LEN, is_private, place_bytes,
    read_place,
};
pub use routing::{
    Instances, METRIC_INFINITE, OriginProof, ROUTING_KINDS, RouteEntry, RouteUpdate,
    RoutingMessage, SIGNATURE_LEN, SeqnoRequest,
};
pub use secrets::{SecretInventory, SecretMessage};
pub use shift::{ShiftAnnouncement, ShiftProbe, ShiftProbeStage, ShiftStage, ShiftStep};
pub use stun::{StunId, stun_answer, stun_id, stun_request};
pub use time::Time;

/// Wire version that this crate speaks. It travels inside the masked part of every handshake.
pub const VERSION: u8 = 5;
/// Length of an AEAD tag in bytes, at the link and end to end.
pub const TAG_LEN: usize = 16;
