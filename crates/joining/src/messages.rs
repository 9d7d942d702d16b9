//! What newcomers ask and registrars answer, inside their frames (docs/joining.md section 4).
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
//! 129 granted | time 8 | name's length 1, name | address 6 | expires 8 | bits 1: 1 IPv4 | [IPv4 4]
//!             | network secret 32 | mandate 32 | length of the list 4 | length of the chain 4
//! 130 waiting
//! 131 refused | reason 1
//! 132 part    | offset 4 | length 2 | bytes
//! 133 left
//! ```
//!
//! Behind a message stand zeroes. Every request may be repeated: it is answered as the first time.

use core::fmt;
use core::net::Ipv4Addr;

use shoal_crypto::{PublicKey, Secret};
use shoal_directory::is_name;
use shoal_wire::{Address, ParseError, Reader};

use crate::frame::MESSAGE_MAX;
use crate::record::put_name;

/// Most bytes of a list in one answer.
pub const PART_MAX: usize = 512;
/// Ties the signatures of keys that join to this use and version.
pub(crate) const JOIN_LABEL: &[u8] = b"shoal join 1";
/// Ties the signatures of a key and of the one that replaces it to this use and version.
const REKEY_LABEL: &[u8] = b"shoal rekey 1";

const _: () = assert!(1 + 4 + 2 + PART_MAX <= MESSAGE_MAX);

const JOIN: u8 = 1;
const AWAIT: u8 = 2;
const PART: u8 = 3;
const RENEW: u8 = 4;
const LEAVE: u8 = 5;
const REKEY: u8 = 6;
const GRANTED: u8 = 129;
const WAITING: u8 = 130;
const REFUSED: u8 = 131;
const PART_OF: u8 = 132;
const LEFT: u8 = 133;

const ANOTHER_NAME: u8 = 1;
const IPV4: u8 = 1;

/// The name that a machine wishes for.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Wish {
    /// The name; none where any will do.
    pub name: Option<String>,
    /// Whether it takes another one if that is taken.
    pub or_another: bool,
}

/// What a newcomer, or a member, asks.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Request {
    /// To become a member.
    Join {
        /// Under which name.
        wish: Wish,
        /// The second half of the key whose first half the handshake proved.
        sign: [u8; 32],
        /// Shows that the second half is its own.
        signature: [u8; 64],
    },
    /// Whether somebody has approved.
    Await,
    /// A part of the list and the chain behind it, as they were granted.
    Part {
        /// From which byte on.
        offset: u32,
    },
    /// A longer membership.
    Renew,
    /// To be a member no more.
    Leave,
    /// To be the same member with another key.
    Rekey {
        /// The new key.
        key: PublicKey,
        /// By the key so far, and by the new one, over [`rekey_said`].
        signatures: [[u8; 64]; 2],
    },
}

/// What both keys sign when one replaces the other, over a channel with this binding.
pub(crate) fn rekey_said(binding: &[u8; 32], key: &PublicKey) -> Vec<u8> {
    [REKEY_LABEL, binding, &key.to_bytes()].concat()
}

/// Why a registrar that could answer says no.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub enum Refusal {
    /// All uses of the token are spent, by other keys.
    Spent = 1,
    /// The token's time is over.
    Expired = 2,
    /// The token was withdrawn.
    Withdrawn = 3,
    /// No host number, IPv4 address or place is left.
    Full = 4,
    /// Another member has the name, an open invite gives it, or no node may have it.
    NameTaken = 5,
    /// Somebody said no.
    NotApproved = 6,
    /// The authority gives the registrar no right any more, or it is over.
    MandateEnded = 7,
    /// The key was removed, or is of no use; another one may join.
    Key = 8,
    /// The registrar can't write its ledger, or its list is too old.
    Registrar = 9,
    /// The authority has made the member its own, so a registrar changes nothing about it.
    Adopted = 10,
    /// Another key took the key's place, and it is not the one that is asked for.
    Replaced = 11,
    /// The membership is over.
    Ended = 12,
    /// Its key was replaced a short time ago.
    Soon = 13,
    /// Too many machines wait for approval.
    Crowded = 14,
}

impl Refusal {
    pub(crate) const ALL: [Refusal; 14] = [
        Refusal::Spent,
        Refusal::Expired,
        Refusal::Withdrawn,
        Refusal::Full,
        Refusal::NameTaken,
        Refusal::NotApproved,
        Refusal::MandateEnded,
        Refusal::Key,
        Refusal::Registrar,
        Refusal::Adopted,
        Refusal::Replaced,
        Refusal::Ended,
        Refusal::Soon,
        Refusal::Crowded,
    ];

    /// The reason with this number.
    pub(crate) fn of(value: u8) -> Option<Refusal> {
        Refusal::ALL.into_iter().find(|why| *why as u8 == value)
    }
}

impl fmt::Display for Refusal {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Refusal::Spent => {
                "the invite was used up by another machine: ask its registrar who that was, and \
                 for another invite"
            }
            Refusal::Expired => "the invite has expired: ask for another one",
            Refusal::Withdrawn => "the invite was withdrawn: ask for another one",
            Refusal::Full => "the registrar has no place left: its mandate is used up",
            Refusal::NameTaken => {
                "another member has this name, an open invite gives it, or it is reserved: choose \
                 another with --name. If the invite itself says the name, --name has no effect: \
                 ask the registrar's owner for an invite with another name"
            }
            Refusal::NotApproved => "the registrar's owner did not approve this machine",
            Refusal::MandateEnded => {
                "the registrar may let nobody in any more: the authority must renew its mandate"
            }
            Refusal::Key => {
                "this machine's key was removed from the network, or is that of another \
                 registrar's member: join with another key"
            }
            Refusal::Registrar => {
                "the registrar can't do that at the moment: its log and `shoal registrar status` \
                 say why"
            }
            Refusal::Adopted => {
                "the authority has made this machine its own member: it alone makes that last \
                 longer (`shoal authority sign NAME --days N`), or ends it (`shoal authority \
                 revoke`)"
            }
            Refusal::Replaced => {
                "this machine's key was replaced by another one: whoever has that is the member. \
                 If this machine does not have it, ask the registrar's owner to remove that \
                 member, and for another invite"
            }
            Refusal::Ended => "this machine's membership has ended: join anew, with another invite",
            Refusal::Soon => {
                "this machine's key was replaced less than a week ago, and each new key is one of \
                 those that the mandate may ever admit: if this one is not safe, ask the \
                 registrar's owner to remove this machine, and for another invite"
            }
            Refusal::Crowded => {
                "too many machines wait for approval at this registrar: try again once its owner \
                 has approved or denied some (`shoal invite approve`, `shoal invite deny`)"
            }
        })
    }
}

/// What was granted. It is believed only as far as the authority's list and the registrar's
/// supplements say the same.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Grant {
    /// The registrar's clock, in seconds since 1970.
    pub unix_s: u64,
    /// What the member is called.
    pub name: String,
    /// Where it is.
    pub address: Address,
    /// From this time on, in seconds since 1970, it is no member any more.
    pub expires_unix_s: u64,
    /// Its IPv4 address, where the network has them.
    pub ipv4: Option<Ipv4Addr>,
    /// What all nodes of the network share.
    pub secret: Secret<32>,
    /// The mandate that the supplements stand on.
    pub mandate: [u8; 32],
    /// Length of the list in bytes.
    pub list_len: u32,
    /// Length of the chain in bytes: supplements, each behind its length (2 bytes).
    pub chain_len: u32,
}

/// What a registrar answers.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Answer {
    Granted(Box<Grant>),
    /// Somebody must approve first.
    Waiting,
    Refused(Refusal),
    Part {
        offset: u32,
        bytes: Vec<u8>,
    },
    Left,
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
            Request::Await => vec![AWAIT],
            Request::Part { offset } => [&[PART], &offset.to_be_bytes()[..]].concat(),
            Request::Renew => vec![RENEW],
            Request::Leave => vec![LEAVE],
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
                let len = usize::from(reader.u8("name")?);
                let name = name(reader.bytes("name", len)?)?;
                let bits = reader.u8("bits of a wish")?;
                if bits & !ANOTHER_NAME != 0 {
                    return Err(ParseError::Invalid { what: "bits of a wish" });
                }
                let wish = Wish { name, or_another: bits != 0 };
                let (sign, signature) = (reader.array("key")?, reader.array("signature")?);
                Request::Join { wish, sign, signature }
            }
            AWAIT => Request::Await,
            PART => Request::Part { offset: reader.u32("offset")? },
            RENEW => Request::Renew,
            LEAVE => Request::Leave,
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

/// A name, or none where there are no bytes.
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

    #[test]
    fn what_is_written_is_read() {
        let wish = |name: Option<&str>| Wish { name: name.map(Into::into), or_another: true };
        for request in [
            Request::Join { wish: wish(Some("bob")), sign: [1; 32], signature: [2; 64] },
            Request::Join { wish: wish(None), sign: [1; 32], signature: [2; 64] },
            Request::Await,
            Request::Part { offset: 7 },
            Request::Renew,
            Request::Leave,
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
            assert!(Request::parse(&bytes).is_err(), "only zeroes stand behind {request:?}");
        }
        let mut answers = vec![
            Answer::Granted(Box::new(granted())),
            Answer::Granted(Box::new(Grant { ipv4: None, ..granted() })),
            Answer::Waiting,
            Answer::Part { offset: 9, bytes: vec![5; PART_MAX] },
            Answer::Left,
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
        let wish = Wish { name, or_another: true };
        let join = Request::Join { wish, sign: [1; 32], signature: [2; 64] };
        assert!(join.encode().len() <= MESSAGE_MAX);
        let grant = Grant { name: "x".repeat(63), ..granted() };
        assert!(Answer::Granted(Box::new(grant)).encode().len() <= MESSAGE_MAX);
    }

    proptest! {
        #[test]
        fn noise_never_panics(bytes in prop::collection::vec(any::<u8>(), 0..200)) {
            let _ = (Request::parse(&bytes), Answer::parse(&bytes));
        }
    }
}
