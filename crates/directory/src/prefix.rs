//! IP prefixes: networks behind members.

use core::fmt;
use core::str::FromStr;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

/// An IP prefix: a subnet, or one address with all its bits.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Prefix {
    ip: IpAddr,
    bits: u8,
}

impl Prefix {
    /// `None` if `bits` is too large, or if address bits behind the prefix are set.
    pub fn new(ip: IpAddr, bits: u8) -> Option<Prefix> {
        let clear = match ip {
            IpAddr::V4(ip) if bits <= 32 => {
                u32::from(ip).checked_shl(bits.into()).unwrap_or(0) == 0
            }
            IpAddr::V6(ip) if bits <= 128 => {
                u128::from(ip).checked_shl(bits.into()).unwrap_or(0) == 0
            }
            _ => false,
        };
        clear.then_some(Prefix { ip, bits })
    }

    /// The first address.
    pub fn ip(&self) -> IpAddr {
        self.ip
    }

    /// Length in bits.
    pub fn bits(&self) -> u8 {
        self.bits
    }

    /// The prefix of this length that holds `ip`; `None` if `bits` is too large.
    pub fn around(ip: IpAddr, bits: u8) -> Option<Prefix> {
        match ip {
            IpAddr::V4(ip) if bits <= 32 => {
                let mask = u32::MAX.checked_shl(32 - u32::from(bits)).unwrap_or(0);
                Prefix::new(Ipv4Addr::from(u32::from(ip) & mask).into(), bits)
            }
            IpAddr::V6(ip) if bits <= 128 => {
                let mask = u128::MAX.checked_shl(128 - u32::from(bits)).unwrap_or(0);
                Prefix::new(Ipv6Addr::from(u128::from(ip) & mask).into(), bits)
            }
            _ => None,
        }
    }

    /// True if `ip` is in the prefix.
    pub fn holds(&self, ip: IpAddr) -> bool {
        Prefix::around(ip, self.bits) == Some(*self)
    }

    /// True if all of `other` is in the prefix.
    pub fn covers(&self, other: &Prefix) -> bool {
        self.bits <= other.bits && self.holds(other.ip)
    }

    /// The reason why this prefix can't be behind a host, if there is one.
    pub fn misuse(&self) -> Option<&'static str> {
        if self.bits == 0 {
            return Some(
                "a default route can't be behind a host: packets between nodes would go there too",
            );
        }
        let special = match self.ip {
            IpAddr::V4(ip) => {
                let first = ip.octets()[0];
                first == 0 || first == 127 || first >= 224 || ip.is_link_local()
            }
            IpAddr::V6(ip) => {
                let mapped = self.bits >= 96 && ip.to_ipv4_mapped().is_some();
                let local = ip.is_unicast_link_local() || ip.is_loopback();
                ip.octets()[0] == 0xff || mapped || local || ip.is_unspecified()
            }
        };
        special.then_some(
            "a prefix behind a host must have unicast addresses: not loopback, link-local, \
             multicast, or IPv4 in IPv6",
        )
    }
}

impl fmt::Display for Prefix {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}/{}", self.ip, self.bits)
    }
}

impl FromStr for Prefix {
    type Err = &'static str;

    fn from_str(text: &str) -> Result<Prefix, Self::Err> {
        let wrong = "expected ADDRESS or ADDRESS/BITS with zero bits behind the prefix, such as \
                     10.1.0.0/16 or fd00:1::/64";
        let (ip, bits) = match text.split_once('/') {
            Some((ip, bits)) => (ip, Some(bits)),
            None => (text, None),
        };
        let ip: IpAddr = ip.parse().map_err(|_| wrong)?;
        let full = if ip.is_ipv4() { 32 } else { 128 };
        let bits = bits.map_or(Ok(full), |bits| bits.parse().map_err(|_| wrong))?;
        Prefix::new(ip, bits).ok_or(wrong)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn prefix(text: &str) -> Prefix {
        text.parse().unwrap()
    }

    #[test]
    fn a_prefix_holds_what_begins_like_it() {
        let net = prefix("10.1.0.0/16");
        assert!(net.holds("10.1.255.255".parse().unwrap()));
        assert!(!net.holds("10.2.0.0".parse().unwrap()) && !net.holds("::".parse().unwrap()));
        assert!(net.covers(&prefix("10.1.2.0/24")) && net.covers(&net));
        assert!(!net.covers(&prefix("10.0.0.0/8")) && !net.covers(&prefix("fd00::/16")));
        assert!(prefix("0.0.0.0/0").covers(&net) && !prefix("::/0").covers(&net));
        let six = prefix("fd00:1::/32");
        assert!(six.holds("fd00:1:ffff::1".parse().unwrap()) && !six.covers(&prefix("fd00::/16")));
        assert_eq!(Prefix::around("10.1.2.3".parse().unwrap(), 16), Some(net));
        assert_eq!(Prefix::around("10.1.2.3".parse().unwrap(), 33), None);
        assert_eq!(Prefix::around("::1".parse().unwrap(), 128), Some(prefix("::1")));
    }

    #[test]
    fn not_everything_can_lie_behind_a_host() {
        for good in ["10.0.0.0/8", "192.0.2.1", "128.0.0.0/1", "fd00::/8", "2001:db8::1"] {
            assert_eq!(prefix(good).misuse(), None, "{good}");
        }
        let bad = "0.0.0.0/0 ::/0 0.0.0.0/1 127.0.0.0/8 224.0.0.0/4 240.0.0.0/4 169.254.0.0/16 \
                   ::ffff:10.0.0.0/104 fe80::/10 ff00::/8 ::1 ::/8";
        for bad in bad.split_whitespace() {
            assert!(prefix(bad).misuse().is_some(), "{bad}");
        }
    }
}
