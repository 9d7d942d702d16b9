//! Routing messages between neighbour routers (docs/design/wire/routing.md).
//!
//! Each message is the body of one [`ControlMessages`](crate::ControlMessages) item, whose head has
//! the type byte. All integers are big-endian.

use crate::{CONTROL_BODY_MAX, ParseError, Reader};

/// A path cost that means "no route": a retraction.
pub const METRIC_INFINITE: u32 = u32::MAX;
/// Length of an origin's signature in bytes (Ed25519).
pub const SIGNATURE_LEN: usize = 64;
/// Type bytes of routing messages, for code that sorts messages without decoding them.
pub const ROUTING_KINDS: core::ops::RangeInclusive<u8> = KIND_HELLO..=KIND_DUMP_REQUEST;

const KIND_HELLO: u8 = 16;
const KIND_QUERY: u8 = 17;
const KIND_QUERY_REPLY: u8 = 18;
const KIND_UPDATE: u8 = 19;
const KIND_ACK: u8 = 20;
const KIND_SEQNO_REQUEST: u8 = 21;
const KIND_DUMP_REQUEST: u8 = 22;

/// Instances of a link's two ends, which tie a message to this life of the link. A router draws a
/// new 32-bit number whenever a link comes up, and refuses messages with another number.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Instances {
    /// The sender's instance.
    pub from: u32,
    /// The receiver's instance, as the sender last heard it; 0 if the sender has not heard it yet.
    pub to: u32,
}

/// An origin's signed claim that it is reachable under its router number.
#[derive(Clone, Copy, PartialEq, Eq)]
pub struct OriginProof {
    /// Sequence number; grows with each signature.
    pub seqno: u64,
    /// Unix time in seconds after which the proof is void.
    pub expiry_unix_s: u64,
    /// Ed25519 signature of the origin.
    pub signature: [u8; SIGNATURE_LEN],
}

impl core::fmt::Debug for OriginProof {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        write!(f, "OriginProof(seqno {}, expiry {})", self.seqno, self.expiry_unix_s)
    }
}

/// One destination in an update.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RouteEntry {
    /// The destination router.
    pub router: u32,
    /// The sender's cost to it; [`METRIC_INFINITE`] retracts.
    pub metric: u32,
    /// The origin's sequence number for this route.
    pub seqno: u64,
    /// The origin's proof for `seqno`. Left out if the receiver has acknowledged it before.
    pub proof: Option<OriginProof>,
}

impl RouteEntry {
    /// Length without a proof: flag, router, metric, sequence number.
    pub const BRIEF_LEN: usize = 1 + 4 + 4 + 8;
    /// Length with a proof: expiry and signature added.
    pub const SIGNED_LEN: usize = Self::BRIEF_LEN + 8 + SIGNATURE_LEN;

    /// Length on the wire in bytes.
    pub fn encoded_len(&self) -> usize {
        if self.proof.is_some() { Self::SIGNED_LEN } else { Self::BRIEF_LEN }
    }

    fn encode(&self, out: &mut Vec<u8>) {
        out.push(u8::from(self.proof.is_some()));
        out.extend_from_slice(&self.router.to_be_bytes());
        out.extend_from_slice(&self.metric.to_be_bytes());
        out.extend_from_slice(&self.seqno.to_be_bytes());
        if let Some(proof) = &self.proof {
            out.extend_from_slice(&proof.expiry_unix_s.to_be_bytes());
            out.extend_from_slice(&proof.signature);
        }
    }

    fn parse(r: &mut Reader<'_>) -> Result<RouteEntry, ParseError> {
        let signed = match r.u8("route entry flag")? {
            0 => false,
            1 => true,
            value => {
                return Err(ParseError::Unknown {
                    what: "route entry flag",
                    value: u32::from(value),
                });
            }
        };
        let router = r.u32("route router")?;
        let metric = r.u32("route metric")?;
        let seqno = r.u64("route seqno")?;
        let proof = if signed { Some(parse_proof(r, seqno)?) } else { None };
        Ok(RouteEntry { router, metric, seqno, proof })
    }
}

fn parse_proof(r: &mut Reader<'_>, seqno: u64) -> Result<OriginProof, ParseError> {
    Ok(OriginProof {
        seqno,
        expiry_unix_s: r.u64("proof expiry")?,
        signature: r.array("proof signature")?,
    })
}

/// A numbered set of changes to what the sender advertises on this link.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RouteUpdate {
    /// The link's instances.
    pub instances: Instances,
    /// Grows by one per update. The receiver drops an update unless it is newer than all before.
    pub number: u32,
    /// At least one, and as many as fit in a message.
    pub entries: Vec<RouteEntry>,
}

impl RouteUpdate {
    /// Bytes before the entries.
    pub const HEAD_LEN: usize = 12;
    /// Bytes that entries may fill.
    pub const ENTRIES_MAX_LEN: usize = CONTROL_BODY_MAX - Self::HEAD_LEN;
}

/// Asks for a route with a newer sequence number than the one proved here.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SeqnoRequest {
    /// The destination router.
    pub router: u32,
    /// Number of further routers that may pass this on.
    pub hops: u8,
    /// The newest proof that the asker has seen. The origin checks it, so that nobody can raise its
    /// sequence number with an invented one.
    pub proof: OriginProof,
}

impl SeqnoRequest {
    /// Length in bytes.
    pub const LEN: usize = 4 + 1 + 8 + 8 + SIGNATURE_LEN;
}

/// Messages between neighbouring routers.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum RoutingMessage {
    /// Tells both instances of the link. Sent when the link comes up and once per cycle.
    Hello(Instances),
    /// Asks for a reply, to measure the link.
    Query {
        /// Repeated in the reply.
        nonce: u64,
    },
    /// Answer to a query.
    QueryReply {
        /// Nonce of the query.
        nonce: u64,
    },
    /// Changes to the sender's routes.
    Update(RouteUpdate),
    /// Confirms the update of this number.
    Ack {
        /// The link's instances.
        instances: Instances,
        /// Number of the update.
        number: u32,
    },
    /// Asks for a newer sequence number.
    SeqnoRequest(SeqnoRequest),
    /// Asks for all routes that the other side advertises.
    DumpRequest(Instances),
}

impl RoutingMessage {
    /// The type byte.
    pub fn kind(&self) -> u8 {
        match self {
            RoutingMessage::Hello(_) => KIND_HELLO,
            RoutingMessage::Query { .. } => KIND_QUERY,
            RoutingMessage::QueryReply { .. } => KIND_QUERY_REPLY,
            RoutingMessage::Update(_) => KIND_UPDATE,
            RoutingMessage::Ack { .. } => KIND_ACK,
            RoutingMessage::SeqnoRequest(_) => KIND_SEQNO_REQUEST,
            RoutingMessage::DumpRequest(_) => KIND_DUMP_REQUEST,
        }
    }

    /// Length of the body in bytes; at most [`CONTROL_BODY_MAX`] for what this crate decodes.
    pub fn encoded_len(&self) -> usize {
        match self {
            RoutingMessage::Hello(_) | RoutingMessage::DumpRequest(_) => 8,
            RoutingMessage::Query { .. } | RoutingMessage::QueryReply { .. } => 8,
            RoutingMessage::Ack { .. } => 12,
            RoutingMessage::SeqnoRequest(_) => SeqnoRequest::LEN,
            RoutingMessage::Update(update) => {
                let entries: usize = update.entries.iter().map(RouteEntry::encoded_len).sum();
                RouteUpdate::HEAD_LEN + entries
            }
        }
    }

    /// Appends the body to `out`.
    pub fn encode(&self, out: &mut Vec<u8>) {
        match self {
            RoutingMessage::Hello(instances) | RoutingMessage::DumpRequest(instances) => {
                encode_instances(instances, out);
            }
            RoutingMessage::Query { nonce } | RoutingMessage::QueryReply { nonce } => {
                out.extend_from_slice(&nonce.to_be_bytes());
            }
            RoutingMessage::Ack { instances, number } => {
                encode_instances(instances, out);
                out.extend_from_slice(&number.to_be_bytes());
            }
            RoutingMessage::SeqnoRequest(request) => {
                out.extend_from_slice(&request.router.to_be_bytes());
                out.push(request.hops);
                out.extend_from_slice(&request.proof.seqno.to_be_bytes());
                out.extend_from_slice(&request.proof.expiry_unix_s.to_be_bytes());
                out.extend_from_slice(&request.proof.signature);
            }
            RoutingMessage::Update(update) => {
                encode_instances(&update.instances, out);
                out.extend_from_slice(&update.number.to_be_bytes());
                update.entries.iter().for_each(|entry| entry.encode(out));
            }
        }
    }

    /// Decodes the body of a message of type `kind`.
    pub fn parse(kind: u8, body: &[u8]) -> Result<RoutingMessage, ParseError> {
        let mut r = Reader::new(body);
        let message = match kind {
            KIND_HELLO => RoutingMessage::Hello(parse_instances(&mut r)?),
            KIND_QUERY => RoutingMessage::Query { nonce: r.u64("query nonce")? },
            KIND_QUERY_REPLY => RoutingMessage::QueryReply { nonce: r.u64("query reply nonce")? },
            KIND_UPDATE => return parse_update(r).map(RoutingMessage::Update),
            KIND_ACK => RoutingMessage::Ack {
                instances: parse_instances(&mut r)?,
                number: r.u32("acknowledged number")?,
            },
            KIND_SEQNO_REQUEST => {
                let router = r.u32("request router")?;
                let hops = r.u8("request hops")?;
                let seqno = r.u64("request seqno")?;
                let proof = parse_proof(&mut r, seqno)?;
                RoutingMessage::SeqnoRequest(SeqnoRequest { router, hops, proof })
            }
            KIND_DUMP_REQUEST => RoutingMessage::DumpRequest(parse_instances(&mut r)?),
            _ => return Err(ParseError::Unknown { what: "control type", value: u32::from(kind) }),
        };
        r.finish("routing message")?;
        Ok(message)
    }
}

fn encode_instances(instances: &Instances, out: &mut Vec<u8>) {
    out.extend_from_slice(&instances.from.to_be_bytes());
    out.extend_from_slice(&instances.to.to_be_bytes());
}

fn parse_instances(r: &mut Reader<'_>) -> Result<Instances, ParseError> {
    let from = r.u32("instance")?;
    if from == 0 {
        return Err(ParseError::Invalid { what: "instance" });
    }
    Ok(Instances { from, to: r.u32("heard instance")? })
}

fn parse_update(mut r: Reader<'_>) -> Result<RouteUpdate, ParseError> {
    let have = r.rest().len();
    if have > CONTROL_BODY_MAX {
        return Err(ParseError::TooLong { what: "update", max: CONTROL_BODY_MAX, have });
    }
    let instances = parse_instances(&mut r)?;
    let number = r.u32("update number")?;
    // Bounded by the length check above: 82 entries without proof.
    let mut entries = Vec::with_capacity(r.rest().len() / RouteEntry::BRIEF_LEN);
    while !r.rest().is_empty() {
        entries.push(RouteEntry::parse(&mut r)?);
    }
    if entries.is_empty() {
        return Err(ParseError::Invalid { what: "update without entries" });
    }
    Ok(RouteUpdate { instances, number, entries })
}
