//! Encoding of the parts of descriptors and lists (docs/design/wire/join.md).

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};

use shoal_wire::{ParseError, Reader};

use crate::{Error, Prefix};

/// Maximum length of a member's or group's name in bytes: that of a DNS label.
pub const NAME_MAX: usize = 63;

/// True if `text` is a valid name of a member or group: 1 to 63 letters, digits, '-', '_' or '.',
/// beginning with a letter or digit.
pub fn is_name(text: &str) -> bool {
    let inner = |b: u8| b.is_ascii_alphanumeric() || matches!(b, b'-' | b'_' | b'.');
    (1..=NAME_MAX).contains(&text.len())
        && text.bytes().all(inner)
        && text.as_bytes()[0].is_ascii_alphanumeric()
}

pub(crate) fn name(reader: &mut Reader<'_>, what: &'static str) -> Result<String, Error> {
    let len = usize::from(reader.u8(what)?);
    let bytes = reader.bytes(what, len)?;
    let text = core::str::from_utf8(bytes).map_err(|_| ParseError::Invalid { what })?;
    if !is_name(text) {
        return Err(ParseError::Invalid { what }.into());
    }
    Ok(text.to_owned())
}

/// Appends a name. The caller must have checked `text`.
pub(crate) fn put_name(out: &mut Vec<u8>, text: &str) {
    out.push(text.len() as u8);
    out.extend_from_slice(text.as_bytes());
}

/// Reads a non-empty set. Its items are strictly ascending, so each set has one encoding.
pub(crate) fn set<T: Ord>(
    reader: &mut Reader<'_>,
    max: usize,
    what: &'static str,
    read: impl Fn(&mut Reader<'_>) -> Result<T, Error>,
) -> Result<Vec<T>, Error> {
    let count = usize::from(reader.u8(what)?);
    if count > max {
        return Err(ParseError::TooLong { what, max, have: count }.into());
    }
    let mut out: Vec<T> = Vec::with_capacity(count);
    for _ in 0..count {
        let next = read(reader)?;
        if out.last().is_some_and(|last| *last >= next) {
            return Err(ParseError::Invalid { what }.into());
        }
        out.push(next);
    }
    if out.is_empty() {
        return Err(ParseError::Invalid { what }.into());
    }
    Ok(out)
}

pub(crate) fn put_set<T>(out: &mut Vec<u8>, set: &[T], put: impl Fn(&mut Vec<u8>, &T)) {
    out.push(set.len() as u8);
    set.iter().for_each(|item| put(out, item));
}

fn ip(reader: &mut Reader<'_>, family: u8, what: &'static str) -> Result<IpAddr, Error> {
    match family {
        4 => Ok(Ipv4Addr::from(reader.array::<4>(what)?).into()),
        6 => Ok(Ipv6Addr::from(reader.array::<16>(what)?).into()),
        value => Err(ParseError::Unknown { what, value: value.into() }.into()),
    }
}

fn put_ip(out: &mut Vec<u8>, ip: IpAddr) {
    match ip {
        IpAddr::V4(ip) => out.extend_from_slice(&ip.octets()),
        IpAddr::V6(ip) => out.extend_from_slice(&ip.octets()),
    }
}

const fn family(ip: IpAddr) -> u8 {
    match ip {
        IpAddr::V4(_) => 4,
        IpAddr::V6(_) => 6,
    }
}

pub(crate) fn endpoint(reader: &mut Reader<'_>) -> Result<SocketAddr, Error> {
    let what = "endpoint";
    let family = reader.u8(what)?;
    let ip = ip(reader, family, what)?;
    Ok(SocketAddr::new(ip, reader.u16(what)?))
}

pub(crate) fn put_endpoint(out: &mut Vec<u8>, endpoint: SocketAddr) {
    out.push(family(endpoint.ip()));
    put_ip(out, endpoint.ip());
    out.extend_from_slice(&endpoint.port().to_be_bytes());
}

pub(crate) fn prefix(reader: &mut Reader<'_>) -> Result<Prefix, Error> {
    let what = "prefix";
    let family = reader.u8(what)?;
    let bits = reader.u8(what)?;
    let ip = ip(reader, family, what)?;
    Prefix::new(ip, bits).ok_or(ParseError::Invalid { what }.into())
}

pub(crate) fn put_prefix(out: &mut Vec<u8>, prefix: &Prefix) {
    out.push(family(prefix.ip()));
    out.push(prefix.bits());
    put_ip(out, prefix.ip());
}

/// Checks the four magic bytes of a file.
pub(crate) fn magic(
    reader: &mut Reader<'_>,
    want: &[u8; 4],
    kind: &'static str,
) -> Result<(), Error> {
    match reader.array::<4>(kind) {
        Ok(found) if found == *want => Ok(()),
        Ok(found) if found[..3] == want[..3] && found[3] == b'1' => Err(Error::Old(kind)),
        _ => Err(Error::Kind(kind)),
    }
}
