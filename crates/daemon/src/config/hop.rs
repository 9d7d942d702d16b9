//! The section of addresses that hop, and how often those of a link do.

use std::net::{IpAddr, Ipv6Addr};
use std::time::Duration;

use serde::Deserialize;
use shoal_directory::Prefix;
use shoal_relay::hop::is_reserved;
use shoal_wire::HopPlace;

use super::error::{ConfigError, Source};
use super::section::{Shown, section};
use super::text::{InterfaceName, Spelt, Text};
use super::{Config, ConfigError as Fault};

/// For how long an address is used.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct HopInterval(pub Duration);

impl Spelt for HopInterval {
    fn read(text: &str) -> Result<HopInterval, String> {
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
        let least = u64::from(HopPlace::INTERVAL_MIN_MS / 1_000);
        let most = u64::from(HopPlace::INTERVAL_MAX_MS / 1_000);
        let seconds = number.checked_mul(each).filter(|s| (least..=most).contains(s));
        seconds.map(|s| HopInterval(Duration::from_secs(s))).ok_or_else(wrong)
    }

    fn spell(&self) -> String {
        format!("{}s", self.0.as_secs())
    }
}

/// The first 64 bits of the addresses.
#[derive(Clone, Copy, PartialEq, Eq)]
pub struct HopPrefix(pub [u8; 8]);

impl HopPrefix {
    /// The address with the interface identifier 0.
    pub fn address(&self) -> Ipv6Addr {
        let mut octets = [0; 16];
        octets[..8].copy_from_slice(&self.0);
        octets.into()
    }

    /// Whether an address lies under it.
    pub fn holds(&self, ip: Ipv6Addr) -> bool {
        ip.octets().starts_with(&self.0)
    }

    /// Whether all of another prefix lies under it.
    pub fn covers(&self, other: &Prefix) -> bool {
        let under = |ip| matches!(ip, IpAddr::V6(ip) if self.holds(ip));
        other.bits() >= 64 && under(other.ip())
    }
}

/// An address of a machine behind this node.
#[derive(Clone, Copy, PartialEq, Eq)]
pub struct Protected(pub Ipv6Addr);

impl Protected {
    /// It alone, as a prefix. There always is one.
    pub fn prefix(&self) -> Option<Prefix> {
        Prefix::new(self.0.into(), 128)
    }

    /// Its last 64 bits.
    pub fn identifier(&self) -> u64 {
        u128::from(self.0) as u64
    }
}

impl Spelt for Protected {
    fn read(text: &str) -> Result<Protected, String> {
        let ip = text.strip_suffix("/128").unwrap_or(text).parse();
        let wrong = "expected an IPv6 address of [hop] prefix, such as 2001:db8:1:2::10";
        ip.map(Protected).map_err(|_| format!("{text:?}: {wrong}"))
    }

    fn spell(&self) -> String {
        self.0.to_string()
    }
}

impl std::fmt::Debug for HopPrefix {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(&self.spell())
    }
}

impl Spelt for HopPrefix {
    fn read(text: &str) -> Result<HopPrefix, String> {
        let wrong =
            || format!("{text:?}: expected an IPv6 prefix of 64 bits, such as 2001:db8:1:2::/64");
        let address: Ipv6Addr =
            text.strip_suffix("/64").and_then(|ip| ip.parse().ok()).ok_or_else(wrong)?;
        let [a, b, c, d, e, f, g, h, rest @ ..] = address.octets();
        let prefix = [a, b, c, d, e, f, g, h];
        if !HopPlace::is_usable(prefix) {
            return Err(format!(
                "{text:?}: expected a prefix that can be routed to one machine: not link-local, \
                 multicast or unspecified"
            ));
        }
        if rest != [0; 8] {
            let expected = HopPrefix(prefix).spell();
            return Err(format!(
                "{text:?}: the bits after the 64th must be 0, as in \"{expected}\""
            ));
        }
        Ok(HopPrefix(prefix))
    }

    fn spell(&self) -> String {
        format!("{}/64", self.address())
    }
}

/// Where a neighbour's addresses are: their prefix, and its port.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct MeetingPlace {
    /// The neighbour's `[hop] prefix`.
    pub prefix: HopPrefix,
    /// The port at which it listens.
    pub port: u16,
}

impl Spelt for MeetingPlace {
    fn read(text: &str) -> Result<MeetingPlace, String> {
        let wrong = || {
            format!(
                "{text:?}: expected the neighbour's [hop] prefix and its port, such as \
                 \"[2001:db8:2:2::/64]:23871\""
            )
        };
        let inner = text.strip_prefix('[').and_then(|rest| rest.rsplit_once("]:"));
        let (prefix, port) = inner.ok_or_else(wrong)?;
        let prefix = HopPrefix::read(prefix).map_err(|_| wrong())?;
        let port = port.parse().ok().filter(|port| *port != 0).ok_or_else(wrong)?;
        Ok(MeetingPlace { prefix, port })
    }

    fn spell(&self) -> String {
        self.to_string()
    }
}

impl std::fmt::Display for MeetingPlace {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "[{}]:{}", self.prefix.spell(), self.port)
    }
}

/// The example of `rendezvous`.
pub(super) const MEETING: MeetingPlace =
    MeetingPlace { prefix: HopPrefix([0x20, 0x01, 0x0d, 0xb8, 0, 2, 0, 2]), port: 23_871 };

/// How addresses of the prefix come to this machine.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum HopMode {
    /// On the segment where an interface of this machine has an address of the prefix, else routed.
    #[default]
    Auto,
    /// All of them, by a router.
    Routed,
    /// Those in use, as addresses of an interface.
    Segment,
}

impl Shown for HopMode {
    fn shown(&self) -> String {
        format!("{:?}", format!("{self:?}").to_lowercase())
    }
}

/// Most machines behind a node with addresses of its prefix.
pub const PROTECTED_MAX: usize = 256;

/// A prefix for documentation (RFC 3849).
const EXAMPLE: HopPrefix = HopPrefix([0x20, 0x01, 0x0d, 0xb8, 0, 1, 0, 2]);

section! {
    /// Addresses that hop, for links with the key `hop` (docs/moving-targets.md). Needs
    /// CAP_NET_ADMIN, and /dev/net/tun unless they do on a segment.
    #[on = serde(default)]
    pub struct Hop {
        /// The prefix under which this node's addresses hop, 64 bits long. Its router must route it
        /// to this machine, and nothing else may use it: every address of it is this machine's
        /// while the node runs, so that programs that listen at all addresses can be reached there.
        prefix: Option<Text<HopPrefix>>, optional Text(EXAMPLE), reload yes;
        /// How the addresses come here: "routed" (as above), or "segment": the prefix is that of a
        /// network segment where other machines are, too, and an interface of this one gets the
        /// addresses in use. "auto": on the segment if an interface has an address of the prefix.
        mode: HopMode = HopMode::Auto, reload no;
        /// The device to which the kernel's route for the prefix is tied, so that it goes with the
        /// node, however the node ends. No packet passes through it.
        device: Text<InterfaceName> = default_device(), reload no;
        /// Addresses of the prefix that machines behind this node have, such as "2001:db8:1:2::10";
        /// 256 at most. They never hop, are in `[interface] prefixes` without being named there,
        /// and must be in a prefix that the hosts file, or the authority, has for this node.
        protect: Vec<Text<Protected>> = Vec::new(), reload yes;
        /// The network interface behind which these machines are. The node routes their addresses
        /// there, and answers there for machines with addresses of the prefix behind other nodes
        /// (proxy NDP). Must be given with `protect`.
        inside: Option<Text<InterfaceName>>, optional inner(), reload no;
    }
}

/// An example.
fn inner() -> Text<InterfaceName> {
    Text(InterfaceName("lan".into()))
}

fn default_device() -> Text<InterfaceName> {
    Text(InterfaceName("shoal-hop".into()))
}

impl Hop {
    /// Whether addresses come to this machine in the same way by both, whatever their prefix.
    pub(super) fn comes_as(&self, other: &Hop) -> bool {
        (self.mode, &self.device, &self.inside) == (other.mode, &other.device, &other.inside)
    }
}

impl Default for Hop {
    fn default() -> Hop {
        let (prefix, mode, device) = (None, HopMode::Auto, default_device());
        Hop { prefix, mode, device, protect: Vec::new(), inside: None }
    }
}

impl Config {
    /// Rules for addresses that hop.
    pub(super) fn check_hop(&self, source: &Source<'_>) -> Result<(), ConfigError> {
        for (i, link) in self.links.iter().enumerate() {
            if link.hop.is_some() && self.hop.is_none() {
                let text = "addresses hop under a prefix of this node: give it in [hop] prefix";
                return Err(source.wrong("link", Some(i), "hop", text));
            }
            if link.rendezvous.is_some() && link.hop.is_none() {
                let text = "both ends meet at addresses that hop: add hop = \"10s\", say, to this \
                            [[link]]";
                return Err(source.wrong("link", Some(i), "rendezvous", text));
            }
        }
        let Some(hop) = &self.hop else { return Ok(()) };
        let wrong =
            |key, text: &str| -> Result<(), Fault> { Err(source.wrong("hop", None, key, text)) };
        if hop.prefix.is_none() {
            return wrong("prefix", "expected the prefix that is routed to this machine");
        }
        if self.hop_port().is_none() {
            return wrong(
                "prefix",
                "the node must listen at all IPv6 addresses: add \"[::]:PORT\" with a port of your \
                 choice to [node] listen",
            );
        }
        if self.interface.as_ref().is_some_and(|interface| interface.name == hop.device) {
            return wrong("device", "this is what [interface] name calls the virtual interface");
        }
        self.check_protected(hop).or_else(|(key, text)| wrong(key, &text))
    }

    /// Rules for machines behind this node. Errors: the key, and what is wrong with it.
    fn check_protected(&self, hop: &Hop) -> Result<(), (&'static str, String)> {
        let protect = |text: String| Err(("protect", text));
        let found = hop.protect.len();
        if found > PROTECTED_MAX {
            return protect(format!("expected at most {PROTECTED_MAX} addresses, found {found}"));
        }
        if (found > 0 || hop.inside.is_some()) && self.interface.is_none() {
            let text = "machines behind this node are reached over the virtual interface: add \
                        [interface]";
            return Err((if found > 0 { "protect" } else { "inside" }, text.into()));
        }
        if found > 0 && hop.inside.is_none() {
            let text = "name the network interface behind which these machines are: [hop] inside";
            return protect(text.into());
        }
        let devices = [Some(&hop.device), self.interface.as_ref().map(|known| &known.name)];
        if hop.inside.is_some() && devices.contains(&hop.inside.as_ref()) {
            let text = "expected a network interface with machines behind it, not one of this node";
            return Err(("inside", text.into()));
        }
        for (i, machine) in hop.protect.iter().enumerate() {
            let ip = machine.0.0;
            if !hop.prefix.is_some_and(|prefix| prefix.holds(ip)) {
                return protect(format!(
                    "{ip} is not under [hop] prefix: networks of other prefixes stand in \
                     [interface] prefixes"
                ));
            }
            if hop.protect[..i].contains(machine) {
                return protect(format!("{ip} is there twice"));
            }
            if is_reserved(machine.identifier()) {
                return protect(format!("{ip} is reserved: no machine has it"));
            }
            let is_called = |link: &&super::LinkPeer| {
                link.endpoint().is_some_and(|at| at.ip() == IpAddr::from(ip))
            };
            if let Some(link) = self.links.iter().find(is_called) {
                return protect(format!("at {ip} this node calls {:?}", link.peer));
            }
        }
        Ok(())
    }

    /// Addresses of the prefix that machines behind this node have.
    pub fn protected(&self) -> impl Iterator<Item = Protected> + '_ {
        self.hop.iter().flat_map(|hop| hop.protect.iter().map(|machine| machine.0))
    }

    /// The network interface behind which they are.
    pub fn inside(&self) -> Option<&str> {
        self.hop.as_ref()?.inside.as_ref().map(|name| name.as_str())
    }

    /// The prefix under which this node's addresses hop, if any do.
    pub fn hop_prefix(&self) -> Option<HopPrefix> {
        self.hop.as_ref()?.prefix.map(|prefix| prefix.0)
    }

    /// The port at which this node listens at all IPv6 addresses.
    pub fn hop_port(&self) -> Option<u16> {
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
        let seconds = |text| HopInterval::read(text).map(|at| at.0.as_secs());
        assert_eq!([seconds("1s"), seconds("5m"), seconds("1h")], [Ok(1), Ok(300), Ok(3_600)]);
        for bad in ["", "10", "s", "0s", "2h", "-1s", "1.5s", "10 s", "99999999999999999999s"] {
            assert!(HopInterval::read(bad).unwrap_err().contains("expected a time"), "{bad}");
        }
        assert_eq!(HopPrefix::read("2001:db8:1:2::/64"), Ok(EXAMPLE));
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
            let said = HopPrefix::read(bad).unwrap_err();
            assert!(said.contains(says), "{bad}: {said}");
        }
    }

    #[test]
    fn places_to_meet_are_read_or_refused_with_a_reason() {
        assert_eq!(MeetingPlace::read("[2001:db8:2:2::/64]:23871"), Ok(MEETING));
        assert_eq!(MEETING.spell(), "[2001:db8:2:2::/64]:23871");
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
            assert!(MeetingPlace::read(bad).unwrap_err().contains("its port, such as"), "{bad}");
        }
    }

    #[test]
    fn links_hop_only_where_the_node_has_a_prefix_and_listens_at_it() {
        let parse = |listen: &str, more: &str| {
            let text = format!(
                "[node]\nname = \"me\"\naddress = \"1.0\"\nkey_file = \"k\"\n{listen}\n\
                 network_secret_file = \"n\"\n{more}"
            );
            let parsed = Config::parse(Path::new("node.toml"), &text);
            parsed.map(|_| ()).map_err(|e| e.to_string())
        };
        let all = "listen = [\"[::]:7400\"]";
        let link = "[[link]]\npeer = \"b\"\nhop = \"10s\"\n";
        let hop = "[hop]\nprefix = \"2001:db8:1:2::/64\"\n";
        assert_eq!(parse(all, &format!("{hop}{link}")), Ok(()));
        assert!(parse(all, link).unwrap_err().contains("[hop] prefix"));
        let meets = "rendezvous = \"[2001:db8:2:2::/64]:7400\"\n";
        assert_eq!(parse(all, &format!("{hop}{link}{meets}")), Ok(()));
        let stays = format!("{hop}[[link]]\npeer = \"b\"\n{meets}");
        assert!(parse(all, &stays).unwrap_err().contains("add hop = "));
        for listen in ["", "listen = [\"0.0.0.0:7400\"]", "listen = [\"[2001:db8::1]:7400\"]"] {
            assert!(parse(listen, hop).unwrap_err().contains("[::]:PORT"), "{listen}");
        }
        let taken = format!("{hop}device = \"shoal0\"\n[interface]\n");
        assert!(parse(all, &taken).unwrap_err().contains("[interface] name"));

        let behind = |more: &str| parse(all, &format!("{hop}{more}\n[interface]\n{link}"));
        let protect = |ips: &str| behind(&format!("inside = \"lan\"\nprotect = [{ips}]"));
        assert_eq!(protect("\"2001:db8:1:2::10\", \"2001:db8:1:2::11/128\""), Ok(()));
        for (ips, says) in [
            ("\"2001:db8:1:3::10\"", "not under [hop] prefix"),
            ("\"2001:db8:1:2::10\", \"2001:db8:1:2:0::10\"", "there twice"),
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
        assert!(behind(one).unwrap_err().contains("[hop] inside"));
        assert!(behind("inside = \"shoal0\"").unwrap_err().contains("not one of this node"));
        let alone = parse(all, &format!("{hop}{one}\ninside = \"lan\"\n")).unwrap_err();
        assert!(alone.contains("add [interface]"), "{alone}");
        let called = "\n[[link]]\npeer = \"c\"\nendpoint = \"[2001:db8:1:2::10]:7400\"\n";
        let called = behind(&format!("inside = \"lan\"\n{one}\n{called}")).unwrap_err();
        assert!(called.contains("this node calls \"c\""), "{called}");
    }
}
