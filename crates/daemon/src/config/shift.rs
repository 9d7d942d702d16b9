//! The section `[shift]`: addresses that shift, and the interval of a link's shifts.

use std::net::{IpAddr, Ipv6Addr};
use std::time::Duration;

use serde::Deserialize;
use shoal_directory::Prefix;
use shoal_relay::shift::is_reserved;
use shoal_wire::ShiftAnnouncement;

use super::error::{ConfigError, ConfigSource};
use super::section::{ReferenceValue, section};
use super::text::{InterfaceName, ParsedText, TextForm};
use super::{ConfigError as Fault, NodeConfig};

/// Time for which an address is used.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ShiftInterval(pub Duration);

impl TextForm for ShiftInterval {
    fn read(text: &str) -> Result<ShiftInterval, String> {
        let wrong = || {
            format!("{text:?}: expected a time from \"1s\" to \"1h\", such as \"10s\" or \"5m\"")
        };
        let at = text.find(|c: char| !c.is_ascii_digit()).ok_or_else(wrong)?;
        let (number, unit) = text.split_at(at);
        let number: u64 = number.parse().map_err(|_| wrong())?;
        let each = match unit {
            "s" => 1,
            "m" => 60,
            "h" => 3_600,
            _ => return Err(wrong()),
        };
        let least = u64::from(ShiftAnnouncement::INTERVAL_MIN_MS / 1_000);
        let most = u64::from(ShiftAnnouncement::INTERVAL_MAX_MS / 1_000);
        let seconds = number.checked_mul(each).filter(|s| (least..=most).contains(s));
        seconds.map(|s| ShiftInterval(Duration::from_secs(s))).ok_or_else(wrong)
    }

    fn spell(&self) -> String {
        format!("{}s", self.0.as_secs())
    }
}

/// First 64 bits of the addresses that shift.
#[derive(Clone, Copy, PartialEq, Eq)]
pub struct ShiftPrefix(pub [u8; 8]);

impl ShiftPrefix {
    /// The address with the interface identifier 0.
    pub fn address(&self) -> Ipv6Addr {
        let mut octets = [0; 16];
        octets[..8].copy_from_slice(&self.0);
        octets.into()
    }

    /// True if `ip` lies under the prefix.
    pub fn holds(&self, ip: Ipv6Addr) -> bool {
        ip.octets().starts_with(&self.0)
    }

    /// True if all of `other` lies under the prefix.
    pub fn covers(&self, other: &Prefix) -> bool {
        let under = |ip| matches!(ip, IpAddr::V6(ip) if self.holds(ip));
        other.bits() >= 64 && under(other.ip())
    }
}

/// An address of a machine behind this node.
#[derive(Clone, Copy, PartialEq, Eq)]
pub struct ProtectedAddress(pub Ipv6Addr);

impl ProtectedAddress {
    /// The address as a prefix of 128 bits; never `None`.
    pub fn prefix(&self) -> Option<Prefix> {
        Prefix::new(self.0.into(), 128)
    }

    /// Interface identifier: the last 64 bits.
    pub fn identifier(&self) -> u64 {
        u128::from(self.0) as u64
    }
}

impl TextForm for ProtectedAddress {
    fn read(text: &str) -> Result<ProtectedAddress, String> {
        let ip = text.strip_suffix("/128").unwrap_or(text).parse();
        let wrong = "expected an IPv6 address of [shift] prefix, such as 2001:db8:1:2::10";
        ip.map(ProtectedAddress).map_err(|_| format!("{text:?}: {wrong}"))
    }

    fn spell(&self) -> String {
        self.0.to_string()
    }
}

impl std::fmt::Debug for ShiftPrefix {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(&self.spell())
    }
}

impl TextForm for ShiftPrefix {
    fn read(text: &str) -> Result<ShiftPrefix, String> {
        let wrong =
            || format!("{text:?}: expected an IPv6 prefix of 64 bits, such as 2001:db8:1:2::/64");
        let address: Ipv6Addr =
            text.strip_suffix("/64").and_then(|ip| ip.parse().ok()).ok_or_else(wrong)?;
        let [a, b, c, d, e, f, g, h, rest @ ..] = address.octets();
        let prefix = [a, b, c, d, e, f, g, h];
        if !ShiftAnnouncement::is_usable(prefix) {
            return Err(format!(
                "{text:?}: expected a prefix that can be routed to one machine: not link-local, \
                 multicast or unspecified"
            ));
        }
        if rest != [0; 8] {
            let expected = ShiftPrefix(prefix).spell();
            return Err(format!(
                "{text:?}: the bits after the 64th must be 0, as in \"{expected}\""
            ));
        }
        Ok(ShiftPrefix(prefix))
    }

    fn spell(&self) -> String {
        format!("{}/64", self.address())
    }
}

/// Prefix and port at which to meet a neighbour without a session.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RendezvousEndpoint {
    /// The neighbour's `[shift] prefix`.
    pub prefix: ShiftPrefix,
    /// UDP port at which the neighbour listens.
    pub port: u16,
}

impl TextForm for RendezvousEndpoint {
    fn read(text: &str) -> Result<RendezvousEndpoint, String> {
        let wrong = || {
            format!(
                "{text:?}: expected the neighbour's [shift] prefix and its port, such as \
                 \"[2001:db8:2:2::/64]:23871\""
            )
        };
        let inner = text.strip_prefix('[').and_then(|rest| rest.rsplit_once("]:"));
        let (prefix, port) = inner.ok_or_else(wrong)?;
        let prefix = ShiftPrefix::read(prefix).map_err(|_| wrong())?;
        let port = port.parse().ok().filter(|port| *port != 0).ok_or_else(wrong)?;
        Ok(RendezvousEndpoint { prefix, port })
    }

    fn spell(&self) -> String {
        self.to_string()
    }
}

impl std::fmt::Display for RendezvousEndpoint {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "[{}]:{}", self.prefix.spell(), self.port)
    }
}

/// The example of `shift`.
pub(super) const TEN_SECONDS: ParsedText<ShiftInterval> =
    ParsedText(ShiftInterval(Duration::from_secs(10)));

/// The example of `rendezvous`.
pub(super) const MEETING: ParsedText<RendezvousEndpoint> = ParsedText(RendezvousEndpoint {
    prefix: ShiftPrefix([0x20, 0x01, 0x0d, 0xb8, 0, 2, 0, 2]),
    port: 23_871,
});

/// Delivery of the prefix's addresses to this machine.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum ShiftMode {
    /// `Segment` if an interface of this machine has an address of the prefix, else `Routed`.
    #[default]
    Auto,
    /// A router routes the whole prefix to this machine.
    Routed,
    /// An interface on a segment has the addresses in use.
    Segment,
}

impl ReferenceValue for ShiftMode {
    fn shown(&self) -> String {
        format!("{:?}", format!("{self:?}").to_lowercase())
    }
}

/// Most machines behind a node that have addresses of its prefix.
pub const PROTECTED_MAX: usize = 256;

/// A prefix for documentation (RFC 3849).
const EXAMPLE: ShiftPrefix = ShiftPrefix([0x20, 0x01, 0x0d, 0xb8, 0, 1, 0, 2]);

section! {
    /// Addresses that shift, for links with the key `shift` (docs/guide/shifting.md). Needs
    /// CAP_NET_ADMIN, and /dev/net/tun unless the addresses are on a segment.
    #[on = serde(default)]
    pub struct ShiftConfig {
        /// Prefix, 64 bits long, from which this node takes its shifting addresses. It must be
        /// routed to this machine, and nothing else may use it. While the node runs, every address
        /// of it belongs to this machine: programs that listen at all addresses can be reached
        /// there.
        prefix: Option<ParsedText<ShiftPrefix>>, optional ParsedText(EXAMPLE), reload yes;
        /// Delivery of the addresses to this machine. "routed": a router routes the whole prefix
        /// here. "segment": the prefix belongs to a segment with other machines, and an interface
        /// here gets the addresses in use. "auto": "segment" if an interface has an address of the
        /// prefix, else "routed".
        mode: ShiftMode = ShiftMode::Auto, reload no;
        /// Device that holds the kernel's route for the prefix. The route disappears with the node,
        /// however the node ends. No packet passes through the device.
        device: ParsedText<InterfaceName> = default_device(), reload no;
        /// Addresses of the prefix that machines behind this node have, such as "2001:db8:1:2::10";
        /// 256 at most. They never shift, and need no entry in `[interface] prefixes`. Each must
        /// lie in a prefix that the hosts file, or the authority, grants to this node.
        protect: Vec<ParsedText<ProtectedAddress>> = Vec::new(), reload yes;
        /// Network interface behind which these machines are. The node routes their addresses
        /// there. It also answers neighbour discovery there (proxy NDP) for machines behind other
        /// nodes that have addresses of the prefix. Must be given with `protect`.
        inside: Option<ParsedText<InterfaceName>>, optional inner(), reload no;
    }
}

/// The example of `inside`.
fn inner() -> ParsedText<InterfaceName> {
    ParsedText(InterfaceName("lan".into()))
}

fn default_device() -> ParsedText<InterfaceName> {
    ParsedText(InterfaceName("shoal-shift".into()))
}

impl ShiftConfig {
    /// True if both deliver addresses in the same manner. Their prefixes may differ.
    pub(super) fn comes_as(&self, other: &ShiftConfig) -> bool {
        (self.mode, &self.device, &self.inside) == (other.mode, &other.device, &other.inside)
    }
}

impl Default for ShiftConfig {
    fn default() -> ShiftConfig {
        let (prefix, mode, device) = (None, ShiftMode::Auto, default_device());
        ShiftConfig { prefix, mode, device, protect: Vec::new(), inside: None }
    }
}

impl NodeConfig {
    /// Rules for addresses that shift.
    pub(super) fn check_shift(&self, source: &ConfigSource<'_>) -> Result<(), ConfigError> {
        for (i, link) in self.links.iter().enumerate() {
            if link.shift.is_some() && self.shift.is_none() {
                let text = "addresses shift under a prefix of this node: set [shift] prefix";
                return Err(source.wrong("link", Some(i), "shift", text));
            }
            if link.rendezvous.is_some() && link.shift.is_none() {
                let text = "needs addresses that shift: add shift, such as shift = \"10s\", to \
                            this [[link]]";
                return Err(source.wrong("link", Some(i), "rendezvous", text));
            }
        }
        let Some(shift) = &self.shift else { return Ok(()) };
        let wrong =
            |key, text: &str| -> Result<(), Fault> { Err(source.wrong("shift", None, key, text)) };
        if shift.prefix.is_none() {
            return wrong("prefix", "expected the prefix that is routed to this machine");
        }
        if self.shift_port().is_none() {
            return wrong(
                "prefix",
                "the node must listen at all IPv6 addresses: add \"[::]:PORT\" with a port of your \
                 choice to [node] listen",
            );
        }
        if self.interface.as_ref().is_some_and(|interface| interface.name == shift.device) {
            return wrong("device", "[interface] name is the same: expected another name");
        }
        self.check_protected(shift).or_else(|(key, text)| wrong(key, &text))
    }

    /// Rules for machines behind this node. Errors: the key and its fault.
    fn check_protected(&self, shift: &ShiftConfig) -> Result<(), (&'static str, String)> {
        let protect = |text: String| Err(("protect", text));
        let found = shift.protect.len();
        if found > PROTECTED_MAX {
            return protect(format!("expected at most {PROTECTED_MAX} addresses, found {found}"));
        }
        if (found > 0 || shift.inside.is_some()) && self.interface.is_none() {
            let text = "machines behind this node are reached over the virtual interface: add \
                        [interface]";
            return Err((if found > 0 { "protect" } else { "inside" }, text.into()));
        }
        if found > 0 && shift.inside.is_none() {
            let text = "name the network interface behind which these machines are: [shift] inside";
            return protect(text.into());
        }
        let devices = [Some(&shift.device), self.interface.as_ref().map(|known| &known.name)];
        if shift.inside.is_some() && devices.contains(&shift.inside.as_ref()) {
            let text = "expected an interface with machines behind it, not one of this node";
            return Err(("inside", text.into()));
        }
        for (i, machine) in shift.protect.iter().enumerate() {
            let ip = machine.0.0;
            if !shift.prefix.is_some_and(|prefix| prefix.holds(ip)) {
                return protect(format!(
                    "{ip} is not under [shift] prefix: list networks of other prefixes in \
                     [interface] prefixes"
                ));
            }
            if shift.protect[..i].contains(machine) {
                return protect(format!("{ip} is listed twice"));
            }
            if is_reserved(machine.identifier()) {
                return protect(format!("{ip} is reserved: no machine has it"));
            }
            let is_called = |link: &&super::LinkPeer| {
                link.endpoint().is_some_and(|at| at.ip() == IpAddr::from(ip))
            };
            if let Some(link) = self.links.iter().find(is_called) {
                return protect(format!("{ip} is the endpoint of the neighbour {:?}", link.peer));
            }
        }
        Ok(())
    }

    /// Addresses of the prefix that machines behind this node have.
    pub fn protected(&self) -> impl Iterator<Item = ProtectedAddress> + '_ {
        self.shift.iter().flat_map(|shift| shift.protect.iter().map(|machine| machine.0))
    }

    /// Network interface behind which the protected machines are.
    pub fn inside(&self) -> Option<&str> {
        self.shift.as_ref()?.inside.as_ref().map(|name| name.as_str())
    }

    /// Prefix under which this node's addresses shift, if any do.
    pub fn shift_prefix(&self) -> Option<ShiftPrefix> {
        self.shift.as_ref()?.prefix.map(|prefix| prefix.0)
    }

    /// The port at which this node listens at all IPv6 addresses.
    pub fn shift_port(&self) -> Option<u16> {
        let all = |at: &std::net::SocketAddr| at.is_ipv6() && at.ip().is_unspecified();
        self.listen().into_iter().find(all).map(|at| at.port()).filter(|port| *port != 0)
    }
}

#[cfg(test)]
mod tests {
    use std::path::Path;

    use super::*;

    #[test]
    fn intervals_and_prefixes_are_read_or_refused_with_a_reason() {
        let seconds = |text| ShiftInterval::read(text).map(|at| at.0.as_secs());
        assert_eq!([seconds("1s"), seconds("5m"), seconds("1h")], [Ok(1), Ok(300), Ok(3_600)]);
        for bad in ["", "10", "s", "0s", "2h", "-1s", "1.5s", "10 s", "99999999999999999999s"] {
            assert!(ShiftInterval::read(bad).unwrap_err().contains("expected a time"), "{bad}");
        }
        assert_eq!(ShiftPrefix::read("2001:db8:1:2::/64"), Ok(EXAMPLE));
        assert_eq!(EXAMPLE.spell(), "2001:db8:1:2::/64");
        for (bad, says) in [
            ("2001:db8::/56", "expected an IPv6 prefix of 64 bits"),
            ("2001:db8::1", "expected an IPv6 prefix of 64 bits"),
            ("x/64", "expected an IPv6 prefix of 64 bits"),
            ("2001:db8:a:1::5/64", "bits after the 64th must be 0, as in \"2001:db8:a:1::/64\""),
            ("fe80::/64", "not link-local, multicast or unspecified"),
            ("fe80::1/64", "not link-local, multicast or unspecified"),
            ("ff02::/64", "not link-local, multicast or unspecified"),
            ("::/64", "not link-local, multicast or unspecified"),
        ] {
            let said = ShiftPrefix::read(bad).unwrap_err();
            assert!(said.contains(says), "{bad}: {said}");
        }
    }

    #[test]
    fn places_to_meet_are_read_or_refused_with_a_reason() {
        assert_eq!(RendezvousEndpoint::read("[2001:db8:2:2::/64]:23871"), Ok(MEETING.0));
        assert_eq!(MEETING.0.spell(), "[2001:db8:2:2::/64]:23871");
        for bad in [
            "",
            "2001:db8:2:2::/64",
            "[2001:db8:2:2::/64]",
            "[2001:db8:2:2::]:23871",
            "[2001:db8:2:2::/48]:23871",
            "[2001:db8:2:2::/64]:0",
            "[2001:db8:2:2::/64]:70000",
            "[fe80::/64]:23871",
            "2001:db8:2:2::/64:23871",
            "[2001:db8:2:2::7]:23871",
        ] {
            assert!(
                RendezvousEndpoint::read(bad).unwrap_err().contains("neighbour's [shift] prefix"),
                "{bad}"
            );
        }
    }

    #[test]
    fn former_names_are_refused_with_the_present_ones() {
        for (text, says) in [
            (
                "[hop]\nprefix = \"2001:db8:1:2::/64\"\n",
                "node.toml:1: hop: [hop] is called [shift]",
            ),
            ("[[link]]\nhop = \"10s\"\n", "node.toml:2: link.hop: hop is called shift"),
        ] {
            let error = NodeConfig::parse(Path::new("node.toml"), text).expect_err(text);
            assert_eq!(error.to_string(), says);
        }
    }

    #[test]
    fn links_shift_only_where_the_node_has_a_prefix_and_listens_at_it() {
        let parse = |listen: &str, more: &str| {
            let text = format!(
                "[node]\nname = \"me\"\naddress = \"1.0\"\nkey_file = \"k\"\n{listen}\n\
                 network_secret_file = \"n\"\n{more}"
            );
            let parsed = NodeConfig::parse(Path::new("node.toml"), &text);
            parsed.map(|_| ()).map_err(|e| e.to_string())
        };
        let all = "listen = [\"[::]:7400\"]";
        let link = "[[link]]\npeer = \"b\"\nshift = \"10s\"\n";
        let shift = "[shift]\nprefix = \"2001:db8:1:2::/64\"\n";
        assert_eq!(parse(all, &format!("{shift}{link}")), Ok(()));
        assert!(parse(all, link).unwrap_err().contains("[shift] prefix"));
        let meets = "rendezvous = \"[2001:db8:2:2::/64]:7400\"\n";
        assert_eq!(parse(all, &format!("{shift}{link}{meets}")), Ok(()));
        let stays = format!("{shift}[[link]]\npeer = \"b\"\n{meets}");
        assert!(parse(all, &stays).unwrap_err().contains("add shift, such as shift = "));
        for listen in ["", "listen = [\"0.0.0.0:7400\"]", "listen = [\"[2001:db8::1]:7400\"]"] {
            assert!(parse(listen, shift).unwrap_err().contains("[::]:PORT"), "{listen}");
        }
        let taken = format!("{shift}device = \"shoal0\"\n[interface]\n");
        assert!(parse(all, &taken).unwrap_err().contains("[interface] name"));

        let behind = |more: &str| parse(all, &format!("{shift}{more}\n[interface]\n{link}"));
        let protect = |ips: &str| behind(&format!("inside = \"lan\"\nprotect = [{ips}]"));
        assert_eq!(protect("\"2001:db8:1:2::10\", \"2001:db8:1:2::11/128\""), Ok(()));
        for (ips, says) in [
            ("\"2001:db8:1:3::10\"", "not under [shift] prefix"),
            ("\"2001:db8:1:2::10\", \"2001:db8:1:2:0::10\"", "listed twice"),
            ("\"2001:db8:1:2::\"", "reserved"),
            ("\"192.0.2.1\"", "expected an IPv6 address"),
            ("\"2001:db8:1:2::/64\"", "expected an IPv6 address"),
        ] {
            let said = protect(ips).unwrap_err();
            assert!(said.contains(says) && said.contains("protect"), "{said}");
        }
        let many = |n: usize| {
            let ips = (0..n).map(|i| format!("\"2001:db8:1:2::1:{i:x}\""));
            protect(&ips.collect::<Vec<_>>().join(", "))
        };
        assert_eq!(many(256), Ok(()));
        assert!(many(257).unwrap_err().contains("at most 256"));
        let one = "protect = [\"2001:db8:1:2::10\"]";
        assert!(behind(one).unwrap_err().contains("[shift] inside"));
        assert!(behind("inside = \"shoal0\"").unwrap_err().contains("not one of this node"));
        let alone = parse(all, &format!("{shift}{one}\ninside = \"lan\"\n")).unwrap_err();
        assert!(alone.contains("add [interface]"), "{alone}");
        let called = "\n[[link]]\npeer = \"c\"\nendpoint = \"[2001:db8:1:2::10]:7400\"\n";
        let called = behind(&format!("inside = \"lan\"\n{one}\n{called}")).unwrap_err();
        assert!(called.contains("endpoint of the neighbour \"c\""), "{called}");
    }
}
