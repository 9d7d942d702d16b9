//! Both ends of a path between neighbours.

use std::net::SocketAddr;

use crate::config::{CookieBinding, Endpoint, SourceKey};

/// Address of a neighbour, and the address of this node from which it is reached.
///
/// Equality compares both ends. [`Endpoint::is_same_place`] compares only the neighbour's end.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Endpoints {
    /// Address and port of this node, at which the neighbour called or answered. With `None` the
    /// kernel chooses.
    pub local: Option<SocketAddr>,
    /// The neighbour's address and port.
    pub remote: SocketAddr,
}

/// The kernel chooses the local end.
impl From<SocketAddr> for Endpoints {
    fn from(remote: SocketAddr) -> Endpoints {
        Endpoints { local: None, remote }
    }
}

impl Endpoint for Endpoints {
    fn source(&self) -> SourceKey {
        self.remote.source()
    }

    fn place(&self) -> CookieBinding {
        self.remote.place()
    }

    fn wide_place(&self) -> CookieBinding {
        let (source, len) = self.remote.source();
        let mut out = [0; 19];
        out[..len].copy_from_slice(&source[..len]);
        out[len..len + 2].copy_from_slice(&self.remote.port().to_be_bytes());
        (out, len + 2)
    }

    fn is_to(&self, prefix: &[u8; 8]) -> bool {
        matches!(self.local, Some(SocketAddr::V6(at)) if at.ip().octets().starts_with(prefix))
    }

    fn is_same_place(&self, other: &Endpoints) -> bool {
        self.remote == other.remote
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_end_that_is_here_makes_no_other_place() {
        let [a, b] = [1, 2].map(|host| SocketAddr::from(([10, 0, 0, host], 7_400)));
        let from = |local| Endpoints { local, remote: a };
        let (one, other) = (from(None), from(Some(b)));
        assert!(one != other && one.is_same_place(&other));
        assert_eq!((one.source(), one.place()), (other.source(), other.place()));
        assert!(!one.is_same_place(&b.into()));
    }

    #[test]
    fn all_addresses_of_a_prefix_are_one_wide_place() {
        let at = |text: &str| text.parse::<SocketAddr>().unwrap();
        let from = |remote| Endpoints { local: Some(at("[2001:db8:1:2::7]:7400")), remote };
        let one = from(at("[2001:db8:3:4::1]:7400"));
        let same = from(at("[2001:db8:3:4:a:b:c:d]:7400"));
        assert!(one.place() != same.place() && one.wide_place() == same.wide_place());
        for other in ["[2001:db8:3:5::1]:7400", "[2001:db8:3:4::1]:7401", "10.0.0.1:7400"] {
            assert_ne!(one.wide_place(), from(at(other)).wide_place(), "{other}");
        }
        assert!(one.is_to(&[0x20, 0x01, 0x0d, 0xb8, 0, 1, 0, 2]));
        assert!(!one.is_to(&[0x20, 0x01, 0x0d, 0xb8, 0, 1, 0, 3]));
        assert!(!Endpoints::from(one.remote).is_to(&[0x20, 0x01, 0x0d, 0xb8, 0, 3, 0, 4]));
    }
}
