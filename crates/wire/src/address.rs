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
