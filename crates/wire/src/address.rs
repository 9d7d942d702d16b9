//! Overlay addresses (docs/design/wire/frame.md).

use core::fmt;
use core::str::FromStr;

/// Address of a node: the router, and the host behind it. Host 0 is the router itself.
///
/// An address is a locator and may change; the identity of a node is its key. `Debug` hides the
/// value, because logs must not say who talks to whom. `Display` prints it, for the owner.
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Address {
    /// Router number.
    pub router: u32,
    /// Host number behind that router; 0 is the router itself.
    pub host: u16,
}

impl Address {
    /// Length on the wire in bytes.
    pub const LEN: usize = 6;

    /// The address of `host` behind `router`.
    pub const fn new(router: u32, host: u16) -> Address {
        Address { router, host }
    }

    /// True if the address names a router, not a host behind it.
    pub const fn is_router(self) -> bool {
        self.host == 0
    }

    /// Wire form: router, then host, big-endian.
    pub const fn to_bytes(self) -> [u8; 6] {
        let r = self.router.to_be_bytes();
        let h = self.host.to_be_bytes();
        [r[0], r[1], r[2], r[3], h[0], h[1]]
    }

    /// From the wire form; every value is a valid address.
    pub const fn from_bytes(b: [u8; 6]) -> Address {
        Address {
            router: u32::from_be_bytes([b[0], b[1], b[2], b[3]]),
            host: u16::from_be_bytes([b[4], b[5]]),
        }
    }
}

impl fmt::Display for Address {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}.{}", self.router, self.host)
    }
}

impl fmt::Debug for Address {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Address(hidden)")
    }
}

/// The addresses of one node. A host may have a second one, at another router.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct NodeAddresses {
    /// The address that names the node.
    pub first: Address,
    /// An address of the same host at another router.
    pub second: Option<Address>,
}

impl NodeAddresses {
    /// A node with one address.
    pub const fn one(first: Address) -> NodeAddresses {
        NodeAddresses { first, second: None }
    }

    /// Both addresses, the first one first.
    pub fn iter(self) -> impl Iterator<Item = Address> {
        core::iter::once(self.first).chain(self.second)
    }

    /// True if this is one of the addresses.
    pub fn has(self, address: Address) -> bool {
        self.first == address || self.second == Some(address)
    }

    /// The address behind the router of this number.
    pub fn at(self, router: u32) -> Option<Address> {
        self.iter().find(|address| address.router == router)
    }

    /// The other address, if there are two.
    pub fn other(self, than: Address) -> Option<Address> {
        let second = self.second?;
        Some(if than == second { self.first } else { second })
    }

    /// Checks that a second address is that of a host at another router.
    ///
    /// # Errors
    ///
    /// The rule that is broken, for people.
    pub fn check(self) -> Result<(), &'static str> {
        match self.second {
            Some(_) if self.first.is_router() => Err("a router has no second address"),
            Some(second) if second.is_router() => {
                Err("a second address is that of a host: host 0 is the router")
            }
            Some(second) if second.router == self.first.router => {
                Err("a second address must be at another router than the first")
            }
            _ => Ok(()),
        }
    }
}

/// Error: a text is not an address.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct AddressError;

impl fmt::Display for AddressError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(
            "expected ROUTER.HOST in decimal, such as 2.17 (router 0 to 4294967295, \
             host 0 to 65535; host 0 is the router itself)",
        )
    }
}

impl std::error::Error for AddressError {}

impl FromStr for Address {
    type Err = AddressError;

    fn from_str(text: &str) -> Result<Address, AddressError> {
        let digits = |s: &str| !s.is_empty() && s.bytes().all(|b| b.is_ascii_digit());
        let (router, host) = text.split_once('.').ok_or(AddressError)?;
        if !digits(router) || !digits(host) {
            return Err(AddressError);
        }
        Ok(Address {
            router: router.parse().map_err(|_| AddressError)?,
            host: host.parse().map_err(|_| AddressError)?,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_second_address_is_a_hosts_at_another_router() {
        let (first, second) = (Address::new(1, 7), Address::new(2, 9));
        let both = NodeAddresses { first, second: Some(second) };
        assert_eq!(both.check(), Ok(()));
        assert!(both.iter().eq([first, second]));
        assert_eq!((both.at(1), both.at(2), both.at(3)), (Some(first), Some(second), None));
        assert_eq!((both.other(first), both.other(second)), (Some(second), Some(first)));
        assert!(both.has(first) && both.has(second) && !both.has(Address::new(2, 7)));
        let one = NodeAddresses::one(first);
        assert_eq!((one.check(), one.other(first), one.at(2)), (Ok(()), None, None));
        for (first, second) in [((1, 0), (2, 9)), ((1, 7), (2, 0)), ((1, 7), (1, 9))] {
            let [first, second] = [first, second].map(|(router, host)| Address::new(router, host));
            assert!(NodeAddresses { first, second: Some(second) }.check().is_err());
        }
    }
}
