//! Types of values that the file spells as text.

use std::fmt;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr, SocketAddrV6};
use std::ops::Deref;

use serde::{Deserialize, Deserializer, de};
use shoal_crypto::{PublicKey, VerifyKey};
use shoal_directory::{DoorEndpoint, Prefix, dns_place};
use shoal_wire::Address;

use super::section::ReferenceValue;

/// Longest domain in bytes: behind the longest name of a host it still fits a DNS name.
const DOMAIN_MAX: usize = 100;
/// Entry of `accept_prefixes` that accepts every prefix.
const ALL: &str = "all";

/// A type that the file spells as text.
pub(super) trait TextForm: Sized {
    /// Parses the text. Errors: a sentence for the operator that says what was expected.
    fn read(text: &str) -> Result<Self, String>;

    fn spell(&self) -> String;
}

/// Value of the file, parsed while the file is read.
#[derive(Clone, Copy, PartialEq, Eq)]
pub struct ParsedText<T>(pub T);

impl<'de, T: TextForm> Deserialize<'de> for ParsedText<T> {
    fn deserialize<D: Deserializer<'de>>(from: D) -> Result<ParsedText<T>, D::Error> {
        let text = String::deserialize(from)?;
        T::read(&text).map(ParsedText).map_err(de::Error::custom)
    }
}

impl<T> Deref for ParsedText<T> {
    type Target = T;

    fn deref(&self) -> &T {
        &self.0
    }
}

impl<T: TextForm> ReferenceValue for ParsedText<T> {
    fn shown(&self) -> String {
        format!("{:?}", self.0.spell())
    }
}

impl<T: TextForm> fmt::Debug for ParsedText<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.shown())
    }
}

impl TextForm for Address {
    fn read(text: &str) -> Result<Address, String> {
        text.parse().map_err(|e| format!("{e}"))
    }

    fn spell(&self) -> String {
        self.to_string()
    }
}

impl TextForm for VerifyKey {
    fn read(text: &str) -> Result<VerifyKey, String> {
        text.parse().map_err(|e| format!("{e}"))
    }

    fn spell(&self) -> String {
        self.to_string()
    }
}

impl TextForm for PublicKey {
    fn read(text: &str) -> Result<PublicKey, String> {
        text.parse().map_err(|e| format!("{e}"))
    }

    fn spell(&self) -> String {
        self.to_string()
    }
}

/// Address of a socket to open; port 0 asks for any free port.
#[derive(Clone, Copy, PartialEq, Eq)]
pub struct ListenAddress(pub SocketAddr);

impl TextForm for ListenAddress {
    fn read(text: &str) -> Result<ListenAddress, String> {
        if let Some((ip, zone, port)) = zoned(text) {
            let number = nix::net::if_::if_nametoindex(zone);
            let number = number.map_err(|_| format!("{text:?}: there is no interface {zone:?}"))?;
            return Ok(ListenAddress(SocketAddrV6::new(ip, port, 0, number).into()));
        }
        let wrong = |_| format!("{text:?}: expected IP:PORT, such as 0.0.0.0:23871 or [::]:23871");
        text.parse().map(ListenAddress).map_err(wrong)
    }

    fn spell(&self) -> String {
        self.0.to_string()
    }
}

/// Parses `[ADDRESS%INTERFACE]:PORT` with a link-local address and the name of an interface. The
/// caller parses numbers of interfaces.
fn zoned(text: &str) -> Option<(Ipv6Addr, &str, u16)> {
    let (ip, rest) = text.strip_prefix('[')?.split_once('%')?;
    let (zone, port) = rest.rsplit_once("]:")?;
    let ip = ip.parse::<Ipv6Addr>().ok().filter(Ipv6Addr::is_unicast_link_local)?;
    let letter = |b: u8| b.is_ascii_graphic() && !matches!(b, b'/' | b'%' | b'[' | b']');
    let is_name = (1..=15).contains(&zone.len()) && zone.bytes().all(letter);
    let is_number = zone.bytes().all(|b| b.is_ascii_digit());
    (is_name && !is_number).then_some((ip, zone, port.parse().ok()?))
}

/// True if a datagram to this address and port can reach one node.
pub fn can_be_called(at: SocketAddr) -> bool {
    at.port() != 0 && !at.ip().is_unspecified() && !at.ip().is_multicast()
}

/// Address that can be called.
#[derive(Clone, Copy, PartialEq, Eq)]
pub struct CallableEndpoint(pub SocketAddr);

impl TextForm for CallableEndpoint {
    fn read(text: &str) -> Result<CallableEndpoint, String> {
        let at = text.parse().ok().filter(|at| can_be_called(*at));
        let wrong = "expected IP:PORT that can be sent to, such as 203.0.113.7:23871";
        at.map(CallableEndpoint).ok_or_else(|| wrong.into())
    }

    fn spell(&self) -> String {
        self.0.to_string()
    }
}

impl TextForm for DoorEndpoint {
    fn read(text: &str) -> Result<DoorEndpoint, String> {
        text.parse().map_err(|wrong: &str| format!("{text:?}: {wrong}"))
    }

    fn spell(&self) -> String {
        self.to_string()
    }
}

/// Endpoint at which a neighbour listens.
#[derive(Clone, PartialEq, Eq)]
pub enum PeerEndpoint {
    /// IP address and port.
    At(SocketAddr),
    /// Name for the DNS, or a link-local address with its interface, and port.
    Named(String, u16),
}

impl TextForm for PeerEndpoint {
    fn read(text: &str) -> Result<PeerEndpoint, String> {
        let Ok(at) = text.parse::<SocketAddr>() else {
            let wrong = "expected IP:PORT, such as 192.0.2.2:23871 or [2001:db8::2]:23871, or \
                         NAME:PORT, such as bob.example.org:23871";
            // The interface may appear later, and its number may change: it is resolved as names
            // are.
            let zoned = zoned(text).filter(|(.., port)| *port != 0);
            let zoned = zoned.map(|(ip, zone, port)| (format!("{ip}%{zone}"), port));
            let named = || dns_place(text).map(|(name, port)| (name.to_owned(), port));
            let named = zoned.or_else(named).map(|(name, port)| PeerEndpoint::Named(name, port));
            return named.ok_or_else(|| wrong.into());
        };
        if at.ip().is_unspecified() {
            return Err(format!(
                "{} is where a node listens; expected the address at which others reach it, such \
                 as endpoint = \"192.0.2.2:{}\"",
                at.ip(),
                at.port().max(1)
            ));
        }
        let wrong = || "expected an address and port that can be sent to".into();
        can_be_called(at).then_some(PeerEndpoint::At(at)).ok_or_else(wrong)
    }

    fn spell(&self) -> String {
        match self {
            PeerEndpoint::At(at) => at.to_string(),
            PeerEndpoint::Named(name, port) => spell_place((name, *port)),
        }
    }
}

/// Spells a name, or a link-local address with its interface, and a port as the file does.
pub fn spell_place((name, port): (&str, u16)) -> String {
    if name.contains(':') { format!("[{name}]:{port}") } else { format!("{name}:{port}") }
}

/// Address of the DNS responder unless the file has another.
pub const NAMES_AT: SocketAddr = SocketAddr::new(IpAddr::V4(Ipv4Addr::new(127, 0, 0, 153)), 53);

/// A loopback address, which only programs of this machine reach.
#[derive(Clone, Copy, PartialEq, Eq)]
pub struct Loopback(pub SocketAddr);

impl Loopback {
    /// Address of the DNS responder unless the file has another.
    pub(super) const NAMES: Loopback = Loopback(NAMES_AT);
}

impl TextForm for Loopback {
    fn read(text: &str) -> Result<Loopback, String> {
        let at: Option<SocketAddr> = text.parse().ok();
        let wrong = "expected IP:PORT with a loopback address, such as 127.0.0.153:53: other \
                     machines must not learn who belongs to the network";
        let at = at.filter(|at| at.ip().is_loopback() && at.port() != 0);
        at.map(Loopback).ok_or_else(|| wrong.into())
    }

    fn spell(&self) -> String {
        self.0.to_string()
    }
}

/// A network behind this node.
#[derive(Clone, Copy, PartialEq, Eq)]
pub struct ServedPrefix(pub Prefix);

impl TextForm for ServedPrefix {
    fn read(text: &str) -> Result<ServedPrefix, String> {
        crate::membership::hosts::prefix(text).map(ServedPrefix)
    }

    fn spell(&self) -> String {
        self.0.to_string()
    }
}

/// IPv4 network that an authority's list may use on this machine.
#[derive(Clone, Copy, PartialEq, Eq)]
pub struct Ipv4Net(pub Prefix);

impl TextForm for Ipv4Net {
    fn read(text: &str) -> Result<Ipv4Net, String> {
        let wrong = || format!("{text:?}: expected IPv4 addresses, such as 10.9.0.0/24");
        let net = text.parse().ok().filter(|net: &Prefix| net.ip().is_ipv4());
        net.map(Ipv4Net).ok_or_else(wrong)
    }

    fn spell(&self) -> String {
        self.0.to_string()
    }
}

/// Networks behind other hosts that may be reached.
#[derive(Clone, Copy, PartialEq, Eq)]
pub enum PrefixFilter {
    /// Every network.
    All,
    /// Networks inside this one.
    In(Prefix),
}

impl TextForm for PrefixFilter {
    fn read(text: &str) -> Result<PrefixFilter, String> {
        if text == ALL {
            return Ok(PrefixFilter::All);
        }
        text.parse().map(PrefixFilter::In).map_err(|e| format!("{text:?}: {e}, or \"{ALL}\""))
    }

    fn spell(&self) -> String {
        match self {
            PrefixFilter::All => ALL.into(),
            PrefixFilter::In(prefix) => prefix.to_string(),
        }
    }
}

/// Hosts with which everything is encrypted.
#[derive(Clone, PartialEq, Eq)]
pub enum EncryptWith {
    /// The host of this name.
    Named(String),
    /// Hosts with an address, or a network behind them, in this prefix.
    In(Prefix),
}

impl TextForm for EncryptWith {
    fn read(text: &str) -> Result<EncryptWith, String> {
        // Text may be both a name and an IPv4 address: then the address counts.
        if text.contains('/') || text.parse::<IpAddr>().is_ok() {
            return text.parse().map(EncryptWith::In).map_err(|e| format!("{text:?}: {e}"));
        }
        let named = crate::membership::hosts::is_name(text);
        let wrong = "expected the name of a host, or ADDRESS or ADDRESS/BITS";
        let named = named.then(|| EncryptWith::Named(text.into()));
        named.ok_or_else(|| format!("{text:?}: {wrong}"))
    }

    fn spell(&self) -> String {
        match self {
            EncryptWith::Named(name) => name.clone(),
            EncryptWith::In(prefix) => prefix.to_string(),
        }
    }
}

/// Name of a network interface.
#[derive(Clone, PartialEq, Eq)]
pub struct InterfaceName(pub(super) String);

impl InterfaceName {
    pub fn as_str(&self) -> &str {
        &self.0
    }
}

/// Refuses names that no interface can have.
pub fn check_interface_name(name: &str) -> Result<(), String> {
    InterfaceName::read(name).map(drop)
}

impl TextForm for InterfaceName {
    fn read(text: &str) -> Result<InterfaceName, String> {
        if ["all", "default"].contains(&text) {
            return Err(format!(
                "{text:?} stands for every interface in the kernel's settings: expected another \
                 name"
            ));
        }
        let allowed = |b: u8| b.is_ascii_alphanumeric() || matches!(b, b'-' | b'_' | b'.');
        let begins = text.bytes().next().is_some_and(|b| b.is_ascii_alphanumeric());
        if begins && text.len() <= 15 && text.bytes().all(allowed) {
            return Ok(InterfaceName(text.into()));
        }
        Err("expected a name of 1 to 15 letters, digits, '-', '_' or '.', beginning with a letter \
             or digit"
            .into())
    }

    fn spell(&self) -> String {
        self.0.clone()
    }
}

/// The domain behind the names of hosts, such as `shoal`.
#[derive(Clone, PartialEq, Eq)]
pub struct Domain(pub(super) String);

impl Domain {
    /// In lower case, without a dot at its end.
    pub fn as_str(&self) -> &str {
        &self.0
    }
}

impl TextForm for Domain {
    fn read(text: &str) -> Result<Domain, String> {
        let letter = |b: u8| b.is_ascii_lowercase() || b.is_ascii_digit() || b == b'-';
        let label = |l: &str| (1..=63).contains(&l.len()) && l.bytes().all(letter);
        if text.len() > DOMAIN_MAX || !text.split('.').all(label) {
            return Err("expected a domain in lower case, such as shoal".into());
        }
        Ok(Domain(text.into()))
    }

    fn spell(&self) -> String {
        self.0.clone()
    }
}
