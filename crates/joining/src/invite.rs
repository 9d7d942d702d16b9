//! The invite: a text of some 240 characters, short enough for a message or a QR code.
//!
//! ```text
//! SHOAL:1/ and in letters of base 32:
//! shape 1 | authority 32 | registrar 64 | door secret 16 | token 16 | expires 4 |
//! endpoints: (IP 4 or 16, port 2), 1 to 3 | checksum 4
//!
//! SHOAL:2/, if an endpoint is a name:
//! shape 1 | names' length 1 | ... | endpoints: (IP, or length 1 and name; port 2) | checksum 4
//!
//! shape    = count of endpoints - 1, in bits 0 and 1; bit 2 + i: endpoint i is IPv6;
//!            bit 5 + i, in version 2: endpoint i is a name
//! names' length = bytes of all names, each with its length
//! checksum = first bytes of BLAKE3 of the head and all before it
//! ```
//!
//! Numbers are big-endian. Shape and names' length come first, so the first letters give the length
//! of the whole. A reader can therefore tell a missing part from a wrong letter.
//!
//! Whoever reads an invite can reach the registrar and use the token. An invite holds neither the
//! network secret nor a list, and it does not reveal which network it is for.

use core::fmt;
use core::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};
use core::str::FromStr;

use shoal_crypto::encoding::{append_base32, base32_len, from_base32};
use shoal_crypto::{NetworkSecret, PublicKey, Secret, VerifyKey, hash, kdf};
use shoal_directory::{DOOR_ENDPOINTS_MAX, DoorEndpoint};
use shoal_wire::{ParseError, Reader};
use zeroize::Zeroizing;

use crate::tokens::Token;

/// Maximum number of endpoints in an invite.
pub const ENDPOINTS_MAX: usize = DOOR_ENDPOINTS_MAX;
/// Length of a door secret in bytes.
pub const DOOR_SECRET_LEN: usize = 16;
/// Prefix of an invite of version 1.
pub(crate) const HEAD: &str = "SHOAL:1/";
/// Prefix of an invite with names.
const HEAD_2: &str = "SHOAL:2/";
/// Length of all fields of version 1 except endpoints and checksum, in bytes.
const FIXED_LEN: usize = 1 + 32 + PublicKey::LEN + DOOR_SECRET_LEN + Token::LEN + 4;
const CHECKSUM_LEN: usize = 4;
/// Upper bound for the length of an invite, in characters.
const TEXT_MAX: usize = 1_024;

/// The secret of a registrar's door. Handshakes with the registrar are sealed under it, so a sender
/// without an invite gets no answer.
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

    /// The secret that takes the network secret's place in the outer seal of handshakes.
    pub fn outer(&self) -> NetworkSecret {
        NetworkSecret(kdf(&[0; 32], "shoal door 1", &[self.expose()]))
    }
}

impl fmt::Debug for DoorSecret {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("DoorSecret(hidden)")
    }
}

/// An invite: the keys that a newcomer trusts, the registrar's endpoints, and a token.
#[derive(Clone, PartialEq, Eq)]
pub struct Invite {
    /// The authority's key, which signs the network's list.
    pub authority: VerifyKey,
    /// The registrar's key.
    pub registrar: PublicKey,
    /// The door secret: without it the registrar does not answer.
    pub door: DoorSecret,
    /// The right to become a member.
    pub token: Token,
    /// End of the token's validity, in seconds since 1970.
    pub expires_unix_s: u32,
    /// The registrar's endpoints; 1 to [`ENDPOINTS_MAX`], best first.
    pub endpoints: Vec<DoorEndpoint>,
}

impl fmt::Debug for Invite {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Invite(hidden)")
    }
}

/// Reasons why a text is no valid invite, in words for whoever pasted it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum InviteError {
    /// No invite begins in the text.
    #[error("no invite found: one begins with SHOAL:1/, as `shoal invite` prints it")]
    NotAnInvite,
    /// The invite has another version.
    #[error(
        "this invite has version {0}, and this shoal reads versions 1 and 2: update shoal here, or \
         ask for an invite from a registrar with the same version"
    )]
    OtherVersion(u32),
    /// The invite contains an impossible character.
    #[error(
        "character {at} of the invite is {letter:?}, which no invite contains: it was mistyped"
    )]
    Letter {
        /// Position of the character, counted from 1 without white space.
        at: usize,
        letter: char,
    },
    /// The end of the invite is missing.
    #[error(
        "the invite has {have} characters and should have {need}: a part of it is missing; copy \
         all of it"
    )]
    Truncated {
        /// Number of characters found, without white space.
        have: usize,
        /// Number of characters that the beginning of the invite announces.
        need: usize,
    },
    /// Letters follow the end of the invite.
    #[error("the invite is followed by {0} letters too many: copy the invite again")]
    TooLong(usize),
    /// The text is longer than [`crate::PASTED_MAX`].
    #[error("this text is too long to look for an invite in it: copy the invite alone")]
    LongText,
    /// The text holds two different invites.
    #[error("this text has two different invites: copy only the right one")]
    Several,
    /// The checksum is wrong.
    #[error("the invite's checksum is wrong: a character was mistyped; copy the invite again")]
    Mistyped,
    /// The checksum is right, and a field is invalid.
    #[error("this invite was made wrongly: {0}; ask for another one")]
    Content(&'static str),
}

/// The invite has expired.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error(
    "by this machine's clock the invite expired {} ago: ask for another one, or set the clock",
    span(*.ago_s)
)]
pub struct Expired {
    /// Seconds since the expiry.
    pub ago_s: u64,
}

/// Formats seconds for people.
fn span(seconds: u64) -> String {
    match seconds {
        0..120 => format!("{seconds} s"),
        120..7_200 => format!("{} minutes", seconds / 60),
        7_200..172_800 => format!("{} hours", seconds / 3_600),
        _ => format!("{} days", seconds / 86_400),
    }
}

const COUNT: InviteError = InviteError::Content("an invite has 1 to 3 endpoints");
const ENDPOINT: InviteError = InviteError::Content(
    "an endpoint must be the address of one machine or a name, with a port other than 0",
);
const NAMES: InviteError =
    InviteError::Content("the names of an invite's endpoints have at most 255 bytes together");

fn check_endpoints(endpoints: &[DoorEndpoint]) -> Result<(), InviteError> {
    if !(1..=ENDPOINTS_MAX).contains(&endpoints.len()) {
        return Err(COUNT);
    }
    let is_machine = |endpoint: &DoorEndpoint| {
        let Some(at) = endpoint.address() else { return endpoint.is_callable() };
        let ip = at.ip();
        let of_no_machine = match ip {
            IpAddr::V4(ip) => ip.is_broadcast(),
            // A link-local address needs an interface name, which an invite can't carry.
            IpAddr::V6(ip) => ip.is_unicast_link_local(),
        };
        at.port() != 0 && !ip.is_unspecified() && !ip.is_multicast() && !of_no_machine
    };
    endpoints.iter().all(is_machine).then_some(()).ok_or(ENDPOINT)
}

fn checksum(head: &str, bytes: &[u8]) -> [u8; CHECKSUM_LEN] {
    let long = hash(&[head.as_bytes(), bytes].concat());
    let mut short = [0; CHECKSUM_LEN];
    short.copy_from_slice(&long[..CHECKSUM_LEN]);
    short
}

/// The form of an endpoint in an invite.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum EndpointForm {
    Four,
    Six,
    Named,
}

/// A version of invites.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum InviteVersion {
    /// All endpoints are addresses.
    First,
    /// An endpoint is a name.
    Second,
}

impl InviteVersion {
    /// The version with this number, if this program reads it.
    pub(crate) fn of(number: u32) -> Option<InviteVersion> {
        match number {
            1 => Some(InviteVersion::First),
            2 => Some(InviteVersion::Second),
            _ => None,
        }
    }

    fn head(self) -> &'static str {
        match self {
            InviteVersion::First => HEAD,
            InviteVersion::Second => HEAD_2,
        }
    }

    /// Number of letters that give the length of the whole.
    pub(crate) fn first_letters(self) -> usize {
        match self {
            InviteVersion::First => 2,
            InviteVersion::Second => 4,
        }
    }

    /// The forms of the endpoints in a shape; `None` for an invalid shape.
    fn forms(self, shape: u8) -> Option<Vec<EndpointForm>> {
        let count = usize::from(shape & 3) + 1;
        let six = ((1 << count) - 1) << 2;
        let known = match self {
            InviteVersion::First => 3 | six,
            InviteVersion::Second => 3 | six | six << 3,
        };
        if count > ENDPOINTS_MAX || shape & !known != 0 {
            return None;
        }
        let form = |at: usize| match (shape & 4 << at != 0, shape & 32 << at != 0) {
            (false, false) => Some(EndpointForm::Four),
            (true, false) => Some(EndpointForm::Six),
            (false, true) => Some(EndpointForm::Named),
            (true, true) => None,
        };
        let forms = (0..count).map(form).collect::<Option<Vec<_>>>()?;
        // Each content has one encoding.
        let is_named = forms.contains(&EndpointForm::Named);
        (is_named == (self == InviteVersion::Second)).then_some(forms)
    }

    /// Length in bytes of an invite with these forms and this length of all names.
    fn whole_len(self, forms: &[EndpointForm], names: u8) -> usize {
        let len = |form: &EndpointForm| match form {
            EndpointForm::Four => 6,
            EndpointForm::Six => 18,
            EndpointForm::Named => 2,
        };
        let names = match self {
            InviteVersion::First => 0,
            InviteVersion::Second => 1 + usize::from(names),
        };
        FIXED_LEN + names + forms.iter().map(len).sum::<usize>() + CHECKSUM_LEN
    }
}

impl Invite {
    /// The invite as text, which must stay secret until it is used.
    ///
    /// # Errors
    ///
    /// The number of endpoints is not 1 to [`ENDPOINTS_MAX`], an endpoint can't be called, or the
    /// names, each with its length, have more than 255 bytes.
    pub fn to_text(&self) -> Result<Zeroizing<String>, InviteError> {
        check_endpoints(&self.endpoints)?;
        let names = self.endpoints.iter().filter_map(DoorEndpoint::place);
        let names = names.map(|(name, _)| 1 + name.len()).sum::<usize>();
        let names = u8::try_from(names).map_err(|_| NAMES)?;
        let version = if names == 0 { InviteVersion::First } else { InviteVersion::Second };
        let bit = |endpoint: &DoorEndpoint| -> u8 {
            endpoint.address().map_or(32, |at| if at.is_ipv6() { 4 } else { 0 })
        };
        let forms = self.endpoints.iter().enumerate();
        let forms = forms.fold(0, |bits, (i, endpoint)| bits | bit(endpoint) << i);
        let mut bytes = Zeroizing::new(vec![(self.endpoints.len() as u8 - 1) | forms]);
        bytes.extend((version == InviteVersion::Second).then_some(names));
        bytes.extend_from_slice(&self.authority.0);
        bytes.extend_from_slice(&self.registrar.to_bytes());
        bytes.extend_from_slice(self.door.expose());
        bytes.extend_from_slice(self.token.expose());
        bytes.extend_from_slice(&self.expires_unix_s.to_be_bytes());
        for endpoint in &self.endpoints {
            match endpoint {
                DoorEndpoint::At(at) => match at.ip() {
                    IpAddr::V4(ip) => bytes.extend_from_slice(&ip.octets()),
                    IpAddr::V6(ip) => bytes.extend_from_slice(&ip.octets()),
                },
                DoorEndpoint::Named(name, _) => {
                    bytes.push(name.len() as u8);
                    bytes.extend_from_slice(name.as_bytes());
                }
            }
            bytes.extend_from_slice(&endpoint.port().to_be_bytes());
        }
        let sum = checksum(version.head(), &bytes);
        bytes.extend_from_slice(&sum);
        let mut text = Zeroizing::new(String::with_capacity(TEXT_MAX));
        text.push_str(version.head());
        append_base32(&bytes, &mut text);
        Ok(text)
    }

    /// Checks the expiry at `unix_s`.
    ///
    /// # Errors
    ///
    /// The invite has expired by this clock, which may be wrong: the registrar's clock decides.
    pub fn check_time(&self, unix_s: u64) -> Result<(), Expired> {
        match unix_s.checked_sub(self.expires_unix_s.into()) {
            Some(ago_s) => Err(Expired { ago_s }),
            None => Ok(()),
        }
    }

    fn read(
        bytes: &[u8],
        version: InviteVersion,
        forms: &[EndpointForm],
    ) -> Result<Invite, ParseError> {
        let mut reader = Reader::new(bytes);
        reader.u8("shape")?;
        if version == InviteVersion::Second {
            reader.u8("names' length")?;
        }
        let authority = VerifyKey(reader.array("authority")?);
        let registrar = PublicKey::from_bytes(&reader.array("registrar")?);
        let door = DoorSecret::new(reader.array("door secret")?);
        let token = Token::new(reader.array("token")?);
        let expires_unix_s = reader.u32("expiry")?;
        let endpoints = forms.iter().map(|form| endpoint(&mut reader, *form));
        let endpoints = endpoints.collect::<Result<_, _>>()?;
        reader.finish("invite")?;
        Ok(Invite { authority, registrar, door, token, expires_unix_s, endpoints })
    }
}

fn endpoint(reader: &mut Reader<'_>, form: EndpointForm) -> Result<DoorEndpoint, ParseError> {
    let what = "endpoint";
    let ip: IpAddr = match form {
        EndpointForm::Six => Ipv6Addr::from(reader.array::<16>(what)?).into(),
        EndpointForm::Four => Ipv4Addr::from(reader.array::<4>(what)?).into(),
        EndpointForm::Named => {
            let len = usize::from(reader.u8(what)?);
            let name = core::str::from_utf8(reader.bytes(what, len)?);
            let name = name.map_err(|_| ParseError::Invalid { what })?.to_owned();
            return Ok(DoorEndpoint::Named(name, reader.u16(what)?));
        }
    };
    Ok(SocketAddr::new(ip, reader.u16(what)?).into())
}

/// True if some shape of this version has this many letters.
pub(crate) fn is_whole(version: InviteVersion, letters: usize) -> bool {
    let has_names = version == InviteVersion::Second;
    let names = if has_names { 0..=u8::MAX } else { 0..=0 };
    (0..=u8::MAX).filter_map(|shape| version.forms(shape)).any(|forms| {
        names.clone().any(|names| base32_len(version.whole_len(&forms, names)) == letters)
    })
}

/// Number of letters in an invite that begins with these letters; see
/// [`InviteVersion::first_letters`].
pub(crate) fn need(version: InviteVersion, first: &str) -> Result<usize, InviteError> {
    // The first letters hold shape and names' length, and bits of the next byte. Eight letters hold
    // whole bytes.
    let bytes = from_base32(&format!("{first:0<8}")).ok_or(InviteError::Mistyped)?;
    let forms = bytes.first().and_then(|shape| version.forms(*shape));
    let names = bytes.get(1).copied().unwrap_or_default();
    Ok(base32_len(version.whole_len(&forms.ok_or(InviteError::Mistyped)?, names)))
}

/// Decodes an invite from all its letters; [`need`] gives their number.
pub(crate) fn decode(version: InviteVersion, letters: &str) -> Result<Invite, InviteError> {
    let bytes = Zeroizing::new(from_base32(letters).ok_or(InviteError::Mistyped)?);
    let forms = bytes.first().and_then(|shape| version.forms(*shape));
    let forms = forms.ok_or(InviteError::Mistyped)?;
    let (content, sum) = bytes.split_last_chunk().ok_or(InviteError::Mistyped)?;
    if checksum(version.head(), content) != *sum {
        return Err(InviteError::Mistyped);
    }
    let invite = Invite::read(content, version, &forms).map_err(|_| InviteError::Mistyped)?;
    check_endpoints(&invite.endpoints)?;
    Ok(invite)
}

/// Finds the one invite in a text, which may contain other words, quotes and line breaks.
impl FromStr for Invite {
    type Err = InviteError;

    fn from_str(text: &str) -> Result<Invite, InviteError> {
        crate::pasted::find(text)
    }
}

/// Number of characters of the shortest invite.
pub(crate) fn shortest() -> usize {
    HEAD.len() + base32_len(InviteVersion::First.whole_len(&[EndpointForm::Four], 0))
}

#[cfg(test)]
#[path = "invite_tests.rs"]
mod tests;
