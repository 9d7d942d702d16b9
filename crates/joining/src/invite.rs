//! The invite: a text of some 240 characters, short enough for a message or a QR code.
//!
//! ```text
//! SHOAL:1/ and in letters of base 32:
//! shape 1 | authority 32 | registrar 64 | door secret 16 | token 16 | expires 4 |
//! endpoints: (IP 4 or 16, port 2), 1 to 3 | checksum 4
//!
//! shape    = count of endpoints - 1, in bits 0 and 1; bit 2 + i: endpoint i is IPv6
//! checksum = first bytes of BLAKE3 of "SHOAL:1/" and all before it
//! ```
//!
//! Numbers are big-endian. The shape stands first, so that the first two letters say how long the
//! whole is, and a reader can tell a part that is missing from a letter that is wrong.
//!
//! Who reads an invite can reach the registrar and use the token. It holds neither the network's
//! secret nor any list, and nothing of it says what network it is for.

use core::fmt;
use core::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};
use core::str::FromStr;

use shoal_crypto::{NetworkSecret, PublicKey, Secret, VerifyKey, hash, kdf};
use shoal_wire::{ParseError, Reader};
use zeroize::Zeroizing;

use crate::base32;
use crate::tokens::Token;

/// Most endpoints of an invite.
pub const ENDPOINTS_MAX: usize = 3;
/// Length of a door secret in bytes.
pub const DOOR_SECRET_LEN: usize = 16;
/// The version that this program reads.
pub(crate) const VERSION: u32 = 1;
/// How every invite of it begins.
pub(crate) const HEAD: &str = "SHOAL:1/";
/// All but endpoints and checksum.
const FIXED_LEN: usize = 1 + 32 + PublicKey::LEN + DOOR_SECRET_LEN + Token::LEN + 4;
const CHECKSUM_LEN: usize = 4;
/// No invite is longer, in characters.
const TEXT_MAX: usize = 1_024;

/// What hides a registrar's door: handshakes with it are sealed under this, so that who has no
/// invite gets no answer.
#[derive(Clone, PartialEq, Eq)]
pub struct DoorSecret(Secret<DOOR_SECRET_LEN>);

impl DoorSecret {
    /// A secret from random bytes.
    pub fn new(bytes: [u8; DOOR_SECRET_LEN]) -> DoorSecret {
        DoorSecret(Secret::new(bytes))
    }

    /// The bytes, for an invite or a file.
    pub fn expose(&self) -> &[u8; DOOR_SECRET_LEN] {
        self.0.expose()
    }

    /// What stands in place of a network's secret in the outer seal of handshakes.
    pub fn outer(&self) -> NetworkSecret {
        NetworkSecret(kdf(&[0; 32], "shoal door 1", &[self.expose()]))
    }
}

impl fmt::Debug for DoorSecret {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("DoorSecret(hidden)")
    }
}

/// Whom a newcomer trusts, where it asks, and with what right.
#[derive(Clone, PartialEq, Eq)]
pub struct Invite {
    /// Signs the network's list.
    pub authority: VerifyKey,
    /// Whom to ask.
    pub registrar: PublicKey,
    /// Without it the registrar does not answer.
    pub door: DoorSecret,
    /// The right to become a member.
    pub token: Token,
    /// From this time on, in seconds since 1970, the token is worth nothing.
    pub expires_unix_s: u32,
    /// Where the registrar listens; 1 to [`ENDPOINTS_MAX`], best first.
    pub endpoints: Vec<SocketAddr>,
}

impl fmt::Debug for Invite {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Invite(hidden)")
    }
}

/// What is wrong with the text of an invite, in words for who pasted it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum InviteError {
    /// It begins with something else.
    #[error("there is no invite: one begins with SHOAL:1/, as `shoal invite` prints it")]
    NotAnInvite,
    /// It is of another version.
    #[error(
        "this invite has version {0}, and this shoal reads version 1: update shoal here, or ask \
         for an invite from a registrar with the same version"
    )]
    OtherVersion(u32),
    /// A character that stands in no invite.
    #[error("character {at} of the invite is {letter:?}, which stands in none: it was mistyped")]
    Letter {
        /// Its place, counted from 1 and without white space.
        at: usize,
        /// The character.
        letter: char,
    },
    /// The end is missing.
    #[error(
        "the invite has {have} characters and should have {need}: a part of it is missing; copy \
         all of it"
    )]
    Truncated {
        /// Characters that there are, without white space.
        have: usize,
        /// Characters that its beginning asks for.
        need: usize,
    },
    /// Something stands behind the end.
    #[error("letters that are too many at the end of the invite: {0}; copy the invite again")]
    TooLong(usize),
    /// The text is longer than one with an invite in it should be.
    #[error("this text is too long to look for an invite in it: copy the invite alone")]
    LongText,
    /// Two invites that differ.
    #[error("this text has two different invites: copy the one that is meant")]
    Several,
    /// The checksum does not hold.
    #[error("the invite's checksum does not hold: a character is wrong; copy it again")]
    Mistyped,
    /// The checksum holds, and the content can't be.
    #[error("whoever made this invite made it wrongly: {0}")]
    Content(&'static str),
}

/// An invite's time is over.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error(
    "by this machine's clock the invite expired {} ago: ask for another one, or set the clock",
    span(*.ago_s)
)]
pub struct Expired {
    /// Seconds since then.
    pub ago_s: u64,
}

/// Seconds as people say them.
fn span(seconds: u64) -> String {
    match seconds {
        0..120 => format!("{seconds} s"),
        120..7_200 => format!("{} minutes", seconds / 60),
        7_200..172_800 => format!("{} hours", seconds / 3_600),
        _ => format!("{} days", seconds / 86_400),
    }
}

const COUNT: InviteError = InviteError::Content("an invite has 1 to 3 endpoints");
const ENDPOINT: InviteError =
    InviteError::Content("an endpoint is the address of one machine, with a port that is not 0");

fn check_endpoints(endpoints: &[SocketAddr]) -> Result<(), InviteError> {
    if !(1..=ENDPOINTS_MAX).contains(&endpoints.len()) {
        return Err(COUNT);
    }
    let is_machine = |at: &SocketAddr| {
        let ip = at.ip();
        let of_no_machine = match ip {
            IpAddr::V4(ip) => ip.is_broadcast(),
            // It says nothing without the name of an interface, which an invite has no place for.
            IpAddr::V6(ip) => ip.is_unicast_link_local(),
        };
        at.port() != 0 && !ip.is_unspecified() && !ip.is_multicast() && !of_no_machine
    };
    endpoints.iter().all(is_machine).then_some(()).ok_or(ENDPOINT)
}

fn checksum(bytes: &[u8]) -> [u8; CHECKSUM_LEN] {
    let long = hash(&[HEAD.as_bytes(), bytes].concat());
    let mut short = [0; CHECKSUM_LEN];
    short.copy_from_slice(&long[..CHECKSUM_LEN]);
    short
}

/// Families of the endpoints that a shape names; none where no invite has it.
fn families(shape: u8) -> Option<Vec<bool>> {
    let count = usize::from(shape & 3) + 1;
    let known = (1 << (2 + count)) - 1;
    let is_known = count <= ENDPOINTS_MAX && shape & !known == 0;
    is_known.then(|| (0..count).map(|at| shape & 4 << at != 0).collect())
}

/// Bytes of an invite with such endpoints.
fn whole_len(six: &[bool]) -> usize {
    let endpoints: usize = six.iter().map(|&six| if six { 18 } else { 6 }).sum();
    FIXED_LEN + endpoints + CHECKSUM_LEN
}

impl Invite {
    /// The invite as text, to be kept secret until it is used.
    ///
    /// # Errors
    ///
    /// There is no endpoint, there are more than [`ENDPOINTS_MAX`], or one can't be called.
    pub fn to_text(&self) -> Result<Zeroizing<String>, InviteError> {
        check_endpoints(&self.endpoints)?;
        let six = self.endpoints.iter().enumerate();
        let six = six.filter(|(_, at)| at.is_ipv6()).fold(0, |bits, (i, _)| bits | 4 << i);
        let mut bytes = Zeroizing::new(vec![(self.endpoints.len() as u8 - 1) | six]);
        bytes.extend_from_slice(&self.authority.0);
        bytes.extend_from_slice(&self.registrar.to_bytes());
        bytes.extend_from_slice(self.door.expose());
        bytes.extend_from_slice(self.token.expose());
        bytes.extend_from_slice(&self.expires_unix_s.to_be_bytes());
        for endpoint in &self.endpoints {
            match endpoint.ip() {
                IpAddr::V4(ip) => bytes.extend_from_slice(&ip.octets()),
                IpAddr::V6(ip) => bytes.extend_from_slice(&ip.octets()),
            }
            bytes.extend_from_slice(&endpoint.port().to_be_bytes());
        }
        let sum = checksum(&bytes);
        bytes.extend_from_slice(&sum);
        let mut text = Zeroizing::new(String::with_capacity(TEXT_MAX));
        text.push_str(HEAD);
        base32::encode(&bytes, &mut text);
        Ok(text)
    }

    /// Whether its time is over at `unix_s`.
    ///
    /// # Errors
    ///
    /// It is. A clock may be wrong: only the registrar's decides.
    pub fn check_time(&self, unix_s: u64) -> Result<(), Expired> {
        match unix_s.checked_sub(self.expires_unix_s.into()) {
            Some(ago_s) => Err(Expired { ago_s }),
            None => Ok(()),
        }
    }

    fn read(bytes: &[u8], six: &[bool]) -> Result<Invite, ParseError> {
        let mut reader = Reader::new(bytes);
        reader.u8("shape")?;
        let authority = VerifyKey(reader.array("authority")?);
        let registrar = PublicKey::from_bytes(&reader.array("registrar")?);
        let door = DoorSecret::new(reader.array("door secret")?);
        let token = Token::new(reader.array("token")?);
        let expires_unix_s = reader.u32("expiry")?;
        let mut endpoints = Vec::with_capacity(six.len());
        for &six in six {
            let ip: IpAddr = match six {
                true => Ipv6Addr::from(reader.array::<16>("endpoint")?).into(),
                false => Ipv4Addr::from(reader.array::<4>("endpoint")?).into(),
            };
            endpoints.push(SocketAddr::new(ip, reader.u16("port")?));
        }
        reader.finish("invite")?;
        Ok(Invite { authority, registrar, door, token, expires_unix_s, endpoints })
    }
}

/// Whether any invite has so many letters.
pub(crate) fn is_whole(letters: usize) -> bool {
    let len = |shape| Some(base32::letters(whole_len(&families(shape)?)));
    (0..=u8::MAX).any(|shape| len(shape) == Some(letters))
}

/// Letters of an invite that begins with these values.
pub(crate) fn need(values: &[u8]) -> Result<usize, InviteError> {
    let (bytes, _) = base32::join(values);
    let six = bytes.first().and_then(|shape| families(*shape)).ok_or(InviteError::Mistyped)?;
    Ok(base32::letters(whole_len(&six)))
}

/// The invite whose letters, as many as [`need`] says, have these values.
pub(crate) fn decode(values: &[u8]) -> Result<Invite, InviteError> {
    let (bytes, is_whole) = base32::join(values);
    let bytes = Zeroizing::new(bytes);
    let six = bytes.first().and_then(|shape| families(*shape)).ok_or(InviteError::Mistyped)?;
    let (content, sum) = bytes.split_last_chunk().ok_or(InviteError::Mistyped)?;
    if !is_whole || checksum(content) != *sum {
        return Err(InviteError::Mistyped);
    }
    let invite = Invite::read(content, &six).map_err(|_| InviteError::Mistyped)?;
    check_endpoints(&invite.endpoints)?;
    Ok(invite)
}

/// The one invite in a text, which may have other words, quotes and line breaks in it.
impl FromStr for Invite {
    type Err = InviteError;

    fn from_str(text: &str) -> Result<Invite, InviteError> {
        crate::pasted::find(text)
    }
}

/// Characters of the shortest invite.
pub(crate) fn shortest() -> usize {
    HEAD.len() + base32::letters(whole_len(&[false]))
}

#[cfg(test)]
#[path = "invite_tests.rs"]
mod tests;
