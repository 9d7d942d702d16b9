//! Requests of newcomers and answers of registrars, inside their frames (docs/design/wire/join.md).
//!
//! ```text
//! 1 join   | name's length 1, name | bits 1: 1 another name will do | key's second half 32 |
//!            signature 64: Ed25519 over "shoal join 1" and the handshake's binding
//! 2 await
//! 3 part   | offset 4
//! 4 renew
//! 5 leave
//! 6 rekey   | new key 64 | signature 64 by the key so far | signature 64 by the new key:
//!            Ed25519 over "shoal rekey 1", the handshake's binding and the new key
//!
//! 7 router  | name's length 1, name | bits 1: 1 another name, 2 no relay | key's second half 32
//!           | endpoint: family 1, IP, port 2 | capacity 4 in Mbit/s, 0 unknown | signature 64:
//!             Ed25519 over "shoal router 1", the handshake's binding and all before it
//! 8 reach   | nonce 8
//! 9 move    | number of the router to leave 4
//! 11 registrar | as 7, up to the capacity | registrar's key 64
//!             | registrar's endpoint: family 1, IP, port 2; or 0, length 1, name, port 2
//!             | signature 64 by the router's key, signature 64 by the registrar's key, both over
//!               "shoal registrar 1", the handshake's binding and all before them
//!
//! 129 granted | time 8 | name's length 1, name | address 6 | expires 8 | bits 1: 1 IPv4 | [IPv4 4]
//!             | network secret 32 | mandate 32 | length of the list 4 | length of the chain 4
//! 130 waiting
//! 131 refused | reason 1
//! 132 part    | offset 4 | length 2 | bytes
//! 133 left
//! 134 try     | nonce 8, sent to the endpoint of a router instead of the visitor's address
//! 135 trying
//! ```
//!
//! Zeroes follow a message up to the end of its frame. Every request may be repeated and then gets
//! the same answer.

use core::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};

use shoal_crypto::{PublicKey, Secret};
use shoal_directory::{CAPACITY_MAX, DoorEndpoint, is_name};
use shoal_wire::{Address, ParseError, Reader};

use crate::frame::MESSAGE_MAX;
use crate::record::put_name;
pub use crate::refusal::Refusal;

/// Maximum number of bytes of list and chain in one answer.
pub const PART_MAX: usize = 512;
/// Domain separation of signatures by keys that join.
pub(crate) const JOIN_LABEL: &[u8] = b"shoal join 1";
/// Domain separation of signatures by keys that join as routers.
const ROUTER_LABEL: &[u8] = b"shoal router 1";
/// Domain separation of signatures by keys that join as router and registrar.
const REGISTRAR_LABEL: &[u8] = b"shoal registrar 1";
/// Domain separation of signatures by an old key and its replacement.
const REKEY_LABEL: &[u8] = b"shoal rekey 1";

const _: () = assert!(1 + 4 + 2 + PART_MAX <= MESSAGE_MAX);

const JOIN: u8 = 1;
const AWAIT: u8 = 2;
const PART: u8 = 3;
const RENEW: u8 = 4;
const LEAVE: u8 = 5;
const REKEY: u8 = 6;
const ROUTER: u8 = 7;
const REACH: u8 = 8;
const MOVE: u8 = 9;
const REGISTRAR: u8 = 11;
const GRANTED: u8 = 129;
const WAITING: u8 = 130;
const REFUSED: u8 = 131;
const PART_OF: u8 = 132;
const LEFT: u8 = 133;
const TRY: u8 = 134;
const TRYING: u8 = 135;

const ANOTHER_NAME: u8 = 1;
const NO_RELAY: u8 = 2;
const IPV4: u8 = 1;

/// The name that a machine asks for.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct NameRequest {
    /// The name; `None` if any will do.
    pub name: Option<String>,
    /// True if the machine accepts another name when this one is taken.
    pub or_another: bool,
}

/// A machine's wish to become a router.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RouterRequest {
    pub name: NameRequest,
    /// Endpoint at which others call the router. The registrar lets the machine prove it.
    pub endpoint: SocketAddr,
    /// False if the machine does not want to be a relay of circuits.
    pub relay: bool,
    /// Capacity in Mbit/s, from 1 to [`CAPACITY_MAX`].
    pub capacity: Option<u32>,
}

/// A machine's wish to become a router with a registrar of its own.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct NewRegistrarRequest {
    pub router: RouterRequest,
    /// The registrar's key.
    pub key: PublicKey,
    /// Endpoint at which the registrar will be called.
    pub door: DoorEndpoint,
}

/// Proves that a visitor receives at an endpoint.
pub(crate) type ReachNonce = [u8; 8];

/// The kind of member that a visitor's token admits, or that the visitor is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub(crate) enum VisitorKind {
    Host = 0,
    Router = 1,
    Registrar = 2,
}

impl VisitorKind {
    pub(crate) fn of(value: u8) -> Option<VisitorKind> {
        let all = [VisitorKind::Host, VisitorKind::Router, VisitorKind::Registrar];
        all.into_iter().find(|kind| *kind as u8 == value)
    }
}

/// A request of a newcomer or a member.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Request {
    /// Become a member.
    Join {
        wish: NameRequest,
        /// Second half of the public key; the handshake proved the first half.
        sign: [u8; 32],
        /// Proves that the newcomer has the second half.
        signature: [u8; 64],
    },
    /// Become a router.
    Router {
        request: RouterRequest,
        /// Second half of the public key; the handshake proved the first half.
        sign: [u8; 32],
        /// Signature over [`router_said`].
        signature: [u8; 64],
    },
    /// Become a router with a registrar.
    Registrar {
        request: Box<NewRegistrarRequest>,
        /// Second half of the router's public key; the handshake proved the first half.
        sign: [u8; 32],
        /// Signatures over [`registrar_said`]: by the router's key, then by the registrar's.
        signatures: [[u8; 64]; 2],
    },
    /// Show the nonce that came to the router's endpoint.
    Reach(ReachNonce),
    /// Ask again for approval.
    Await,
    /// Fetch a part of the granted list and of the chain behind it.
    Part {
        /// Offset of the first byte.
        offset: u32,
    },
    /// Renew the membership.
    Renew,
    /// End the membership.
    Leave,
    /// Move behind another router than this one.
    Move { router: u32 },
    /// Replace the member's key.
    Rekey {
        key: PublicKey,
        /// Signatures over [`rekey_said`]: by the old key, then by the new one.
        signatures: [[u8; 64]; 2],
    },
}

/// The bytes that a key signs to become a router, over a channel with this binding.
pub(crate) fn router_said(binding: &[u8; 32], request: &RouterRequest, sign: &[u8; 32]) -> Vec<u8> {
    [ROUTER_LABEL, binding, &router_head(request, sign)].concat()
}

/// The bytes that router's and registrar's key sign, over a channel with this binding.
pub(crate) fn registrar_said(
    binding: &[u8; 32],
    request: &NewRegistrarRequest,
    sign: &[u8; 32],
) -> Vec<u8> {
    [REGISTRAR_LABEL, binding, &registrar_head(request, sign)].concat()
}

/// A request to become a router with a registrar, up to its signatures.
fn registrar_head(request: &NewRegistrarRequest, sign: &[u8; 32]) -> Vec<u8> {
    let mut out = head(REGISTRAR, &request.router, sign);
    out.extend_from_slice(&request.key.to_bytes());
    request.door.put(&mut out);
    out
}

/// A request to become a router, up to its signature.
fn router_head(request: &RouterRequest, sign: &[u8; 32]) -> Vec<u8> {
    head(ROUTER, request, sign)
}

fn head(kind: u8, request: &RouterRequest, sign: &[u8; 32]) -> Vec<u8> {
    let RouterRequest { name, endpoint, relay, capacity } = request;
    let mut out = vec![kind];
    put_name(&mut out, name.name.as_deref().unwrap_or_default());
    let another = if name.or_another { ANOTHER_NAME } else { 0 };
    out.push(another | if *relay { 0 } else { NO_RELAY });
    out.extend_from_slice(sign);
    match endpoint.ip() {
        IpAddr::V4(ip) => out.extend([&[4], &ip.octets()[..]].concat()),
        IpAddr::V6(ip) => out.extend([&[6], &ip.octets()[..]].concat()),
    }
    out.extend_from_slice(&endpoint.port().to_be_bytes());
    out.extend_from_slice(&capacity.unwrap_or(0).to_be_bytes());
    out
}

/// The bytes that old and new key sign, over a channel with this binding.
pub(crate) fn rekey_said(binding: &[u8; 32], key: &PublicKey) -> Vec<u8> {
    [REKEY_LABEL, binding, &key.to_bytes()].concat()
}

/// A grant. The newcomer believes it only as far as the authority's list and the registrar's
/// supplements agree.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Grant {
    /// The registrar's clock, in seconds since 1970.
    pub unix_s: u64,
    pub name: String,
    /// The member's overlay address.
    pub address: Address,
    /// End of the membership, in seconds since 1970.
    pub expires_unix_s: u64,
    /// The member's IPv4 address, if the network has IPv4 addresses.
    pub ipv4: Option<Ipv4Addr>,
    /// The network secret.
    pub secret: Secret<32>,
    /// The mandate that the supplements are signed under.
    pub mandate: [u8; 32],
    /// Length of the list in bytes.
    pub list_len: u32,
    /// Length of the chain in bytes: supplements, each preceded by its length (2 bytes).
    pub chain_len: u32,
}

/// An answer of a registrar.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Answer {
    Granted(Box<Grant>),
    /// The registrar's owner must approve the machine first.
    Waiting,
    Refused(Refusal),
    Part {
        offset: u32,
        bytes: Vec<u8>,
    },
    Left,
    /// The nonce that a router must show. Goes to the endpoint that it claims.
    Try(ReachNonce),
    /// A nonce is on its way to the endpoint.
    Trying,
}

impl Request {
    pub(crate) fn encode(&self) -> Vec<u8> {
        match self {
            Request::Join { wish, sign, signature } => {
                let mut out = vec![JOIN];
                put_name(&mut out, wish.name.as_deref().unwrap_or_default());
                out.push(if wish.or_another { ANOTHER_NAME } else { 0 });
                out.extend_from_slice(sign);
                out.extend_from_slice(signature);
                out
            }
            Request::Router { request, sign, signature } => {
                [&router_head(request, sign)[..], signature].concat()
            }
            Request::Registrar { request, sign, signatures } => {
                [&registrar_head(request, sign)[..], signatures.as_flattened()].concat()
            }
            Request::Reach(nonce) => [&[REACH], &nonce[..]].concat(),
            Request::Await => vec![AWAIT],
            Request::Part { offset } => [&[PART], &offset.to_be_bytes()[..]].concat(),
            Request::Renew => vec![RENEW],
            Request::Leave => vec![LEAVE],
            Request::Move { router } => [&[MOVE], &router.to_be_bytes()[..]].concat(),
            Request::Rekey { key, signatures } => {
                [&[REKEY], &key.to_bytes()[..], signatures.as_flattened()].concat()
            }
        }
    }

    /// Reads a request and the zeroes behind it.
    pub(crate) fn parse(message: &[u8]) -> Result<Request, ParseError> {
        let mut reader = Reader::new(message);
        let request = match reader.u8("request")? {
            JOIN => {
                let (wish, _) = wish(&mut reader, ANOTHER_NAME)?;
                let (sign, signature) = (reader.array("key")?, reader.array("signature")?);
                Request::Join { wish, sign, signature }
            }
            ROUTER => {
                let (request, sign) = router(&mut reader)?;
                Request::Router { request, sign, signature: reader.array("signature")? }
            }
            REGISTRAR => {
                let (router, sign) = router(&mut reader)?;
                let key = PublicKey::from_bytes(&reader.array("key")?);
                let what = "endpoint of a registrar";
                let door = DoorEndpoint::read(&mut reader);
                let door = door.map_err(|_| ParseError::Invalid { what })?;
                let request = Box::new(NewRegistrarRequest { router, key, door });
                let signatures = [reader.array("signature")?, reader.array("signature")?];
                Request::Registrar { request, sign, signatures }
            }
            REACH => Request::Reach(reader.array("nonce")?),
            AWAIT => Request::Await,
            PART => Request::Part { offset: reader.u32("offset")? },
            RENEW => Request::Renew,
            LEAVE => Request::Leave,
            MOVE => Request::Move { router: reader.u32("router")? },
            REKEY => {
                let key = PublicKey::from_bytes(&reader.array("key")?);
                let signatures = [reader.array("signature")?, reader.array("signature")?];
                Request::Rekey { key, signatures }
            }
            other => return Err(ParseError::Unknown { what: "request", value: other.into() }),
        };
        zeroes(&reader)?;
        Ok(request)
    }
}

impl Answer {
    pub(crate) fn encode(&self) -> Vec<u8> {
        match self {
            Answer::Granted(grant) => {
                let mut out = vec![GRANTED];
                out.extend_from_slice(&grant.unix_s.to_be_bytes());
                put_name(&mut out, &grant.name);
                out.extend_from_slice(&grant.address.to_bytes());
                out.extend_from_slice(&grant.expires_unix_s.to_be_bytes());
                out.push(if grant.ipv4.is_some() { IPV4 } else { 0 });
                out.extend(grant.ipv4.iter().flat_map(Ipv4Addr::octets));
                out.extend_from_slice(grant.secret.expose());
                out.extend_from_slice(&grant.mandate);
                out.extend_from_slice(&grant.list_len.to_be_bytes());
                out.extend_from_slice(&grant.chain_len.to_be_bytes());
                out
            }
            Answer::Waiting => vec![WAITING],
            Answer::Refused(why) => vec![REFUSED, *why as u8],
            Answer::Part { offset, bytes } => {
                let mut out = vec![PART_OF];
                out.extend_from_slice(&offset.to_be_bytes());
                out.extend_from_slice(&(bytes.len() as u16).to_be_bytes());
                out.extend_from_slice(bytes);
                out
            }
            Answer::Left => vec![LEFT],
            Answer::Try(nonce) => [&[TRY], &nonce[..]].concat(),
            Answer::Trying => vec![TRYING],
        }
    }

    /// Reads an answer and the zeroes behind it.
    pub(crate) fn parse(message: &[u8]) -> Result<Answer, ParseError> {
        let mut reader = Reader::new(message);
        let answer = match reader.u8("answer")? {
            GRANTED => Answer::Granted(Box::new(grant(&mut reader)?)),
            WAITING => Answer::Waiting,
            REFUSED => {
                let value = reader.u8("reason")?;
                let why = Refusal::of(value);
                let unknown = ParseError::Unknown { what: "reason", value: value.into() };
                Answer::Refused(why.ok_or(unknown)?)
            }
            PART_OF => {
                let offset = reader.u32("offset")?;
                let len = usize::from(reader.u16("length of a part")?);
                if !(1..=PART_MAX).contains(&len) {
                    return Err(ParseError::Invalid { what: "length of a part" });
                }
                Answer::Part { offset, bytes: reader.bytes("part", len)?.to_vec() }
            }
            LEFT => Answer::Left,
            TRY => Answer::Try(reader.array("nonce")?),
            TRYING => Answer::Trying,
            other => return Err(ParseError::Unknown { what: "answer", value: other.into() }),
        };
        zeroes(&reader)?;
        Ok(answer)
    }
}

fn grant(reader: &mut Reader<'_>) -> Result<Grant, ParseError> {
    let unix_s = reader.u64("time")?;
    let len = usize::from(reader.u8("name")?);
    let name = name(reader.bytes("name", len)?)?.ok_or(ParseError::Invalid { what: "name" })?;
    let address = Address::from_bytes(reader.array("address")?);
    let expires_unix_s = reader.u64("expiry")?;
    let ipv4 = match reader.u8("bits of a grant")? {
        0 => None,
        IPV4 => Some(Ipv4Addr::from(reader.array::<4>("IPv4 address")?)),
        _ => return Err(ParseError::Invalid { what: "bits of a grant" }),
    };
    Ok(Grant {
        unix_s,
        name,
        address,
        expires_unix_s,
        ipv4,
        secret: Secret::new(reader.array("network secret")?),
        mandate: reader.array("mandate")?,
        list_len: reader.u32("length of the list")?,
        chain_len: reader.u32("length of the chain")?,
    })
}

/// A wish for a name, and the bits behind it.
fn wish(reader: &mut Reader<'_>, known: u8) -> Result<(NameRequest, u8), ParseError> {
    let len = usize::from(reader.u8("name")?);
    let name = name(reader.bytes("name", len)?)?;
    let bits = reader.u8("bits of a wish")?;
    if bits & !known != 0 {
        return Err(ParseError::Invalid { what: "bits of a wish" });
    }
    Ok((NameRequest { name, or_another: bits & ANOTHER_NAME != 0 }, bits))
}

/// Wishes of a router, and the second half of its key.
fn router(reader: &mut Reader<'_>) -> Result<(RouterRequest, [u8; 32]), ParseError> {
    let (name, bits) = wish(reader, ANOTHER_NAME | NO_RELAY)?;
    let sign = reader.array("key")?;
    let endpoint = endpoint(reader)?;
    let capacity = match reader.u32("capacity")? {
        0 => None,
        n @ 1..=CAPACITY_MAX => Some(n),
        _ => return Err(ParseError::Invalid { what: "capacity" }),
    };
    let relay = bits & NO_RELAY == 0;
    Ok((RouterRequest { name, endpoint, relay, capacity }, sign))
}

fn endpoint(reader: &mut Reader<'_>) -> Result<SocketAddr, ParseError> {
    let what = "endpoint";
    let ip: IpAddr = match reader.u8(what)? {
        4 => Ipv4Addr::from(reader.array::<4>(what)?).into(),
        6 => Ipv6Addr::from(reader.array::<16>(what)?).into(),
        value => return Err(ParseError::Unknown { what, value: value.into() }),
    };
    Ok(SocketAddr::new(ip, reader.u16(what)?))
}

/// A name; `None` for no bytes.
fn name(bytes: &[u8]) -> Result<Option<String>, ParseError> {
    let text = core::str::from_utf8(bytes).map_err(|_| ParseError::Invalid { what: "name" })?;
    match text {
        "" => Ok(None),
        text if is_name(text) => Ok(Some(text.to_owned())),
        _ => Err(ParseError::Invalid { what: "name" }),
    }
}

fn zeroes(reader: &Reader<'_>) -> Result<(), ParseError> {
    let clear = reader.rest().iter().all(|&byte| byte == 0);
    clear.then_some(()).ok_or(ParseError::Invalid { what: "end of a message" })
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn granted() -> Grant {
        Grant {
            unix_s: 1_790_000_000,
            name: "bob".into(),
            address: Address::new(1, 100),
            expires_unix_s: 1_797_776_000,
            ipv4: Some([10, 9, 0, 7].into()),
            secret: Secret::new([3; 32]),
            mandate: [4; 32],
            list_len: 500,
            chain_len: 600,
        }
    }

    fn router(name: Option<&str>, endpoint: &str, capacity: Option<u32>) -> Request {
        let name = NameRequest { name: name.map(Into::into), or_another: name.is_some() };
        let (endpoint, relay) = (endpoint.parse().unwrap(), capacity.is_some());
        let request = RouterRequest { name, endpoint, relay, capacity };
        Request::Router { request, sign: [1; 32], signature: [2; 64] }
    }

    fn registrar(door: &str) -> Request {
        let Request::Router { request: router, sign, .. } =
            router(Some("r2"), "192.0.2.7:7400", Some(100))
        else {
            panic!("another request");
        };
        let key = shoal_crypto::Identity::from_seed([8; 32]).public();
        let request = NewRegistrarRequest { router, key, door: door.parse().unwrap() };
        let request = Box::new(request);
        Request::Registrar { request, sign, signatures: [[3; 64], [4; 64]] }
    }

    #[test]
    fn encoded_messages_decode_to_themselves() {
        let wish =
            |name: Option<&str>| NameRequest { name: name.map(Into::into), or_another: true };
        for request in [
            Request::Join { wish: wish(Some("bob")), sign: [1; 32], signature: [2; 64] },
            Request::Join { wish: wish(None), sign: [1; 32], signature: [2; 64] },
            router(Some("r2"), "192.0.2.7:7400", Some(100)),
            router(None, "[2001:db8::7]:1", None),
            registrar("my.example.org:7401"),
            registrar("192.0.2.7:7401"),
            Request::Reach([6; 8]),
            Request::Await,
            Request::Part { offset: 7 },
            Request::Renew,
            Request::Leave,
            Request::Move { router: 70_000 },
            Request::Rekey {
                key: shoal_crypto::Identity::from_seed([9; 32]).public(),
                signatures: [[3; 64], [4; 64]],
            },
        ] {
            let mut bytes = request.encode();
            assert_eq!(Request::parse(&bytes), Ok(request.clone()));
            bytes.extend([0; 9]);
            assert_eq!(Request::parse(&bytes), Ok(request.clone()));
            bytes.push(1);
            assert!(Request::parse(&bytes).is_err(), "only zeroes follow {request:?}");
        }
        let mut answers = vec![
            Answer::Granted(Box::new(granted())),
            Answer::Granted(Box::new(Grant { ipv4: None, ..granted() })),
            Answer::Waiting,
            Answer::Part { offset: 9, bytes: vec![5; PART_MAX] },
            Answer::Left,
            Answer::Try([8; 8]),
            Answer::Trying,
        ];
        answers.extend(Refusal::ALL.map(Answer::Refused));
        for answer in answers {
            let mut bytes = answer.encode();
            assert!(bytes.len() <= MESSAGE_MAX);
            bytes.resize(MESSAGE_MAX, 0);
            assert_eq!(Answer::parse(&bytes), Ok(answer));
        }
    }

    #[test]
    fn the_longest_messages_fit_their_frames() {
        let name = Some("x".repeat(63));
        let wish = NameRequest { name, or_another: true };
        let join = Request::Join { wish, sign: [1; 32], signature: [2; 64] };
        assert!(join.encode().len() <= MESSAGE_MAX);
        let (longest, ip) = ("x".repeat(63), "[2001:db8::7]:65535");
        assert!(router(Some(&longest), ip, Some(CAPACITY_MAX)).encode().len() <= MESSAGE_MAX);
        let labels = ["x".repeat(63), "y".repeat(63), "org".into()];
        let named = registrar(&format!("{}:65535", labels.join(".")));
        assert!(named.encode().len() + 61 <= MESSAGE_MAX, "the router's name may be longer");
        let grant = Grant { name: "x".repeat(63), ..granted() };
        assert!(Answer::Granted(Box::new(grant)).encode().len() <= MESSAGE_MAX);
    }

    #[test]
    fn values_of_a_router_out_of_range_are_refused() {
        let good = router(Some("r2"), "192.0.2.7:7400", Some(CAPACITY_MAX)).encode();
        // Kind, name with its length, bits, key, family and IP and port, capacity.
        let (bits, family) = (1 + 3, 1 + 3 + 1 + 32);
        let capacity = family + 7;
        for (at, byte) in [(bits, 4), (family, 5), (capacity, 1), (0, 10)] {
            let mut bad = good.clone();
            bad[at] = byte;
            assert!(Request::parse(&bad).is_err(), "byte {at}");
        }
        for len in 0..good.len() {
            assert!(Request::parse(&good[..len]).is_err());
        }
    }

    proptest! {
        #[test]
        fn random_bytes_never_cause_a_panic(bytes in prop::collection::vec(any::<u8>(), 0..200)) {
            let _ = (Request::parse(&bytes), Answer::parse(&bytes));
        }
    }
}
