//! Both ends of a path between neighbours.

use std::net::SocketAddr;

use crate::config::{Endpoint, Place, Source};

/// Where a neighbour is, and from which of this node's addresses it is reached.
///
/// Equality compares both ends. Whether two lead to the same place of the neighbour is another
/// question: [`Endpoint::is_same_place`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Endpoints {
    /// The address and port here, where the neighbour called or answered; `None` leaves the choice
    /// to the kernel.
    pub local: Option<SocketAddr>,
    /// The neighbour's address and port.
    pub remote: SocketAddr,
}

/// The kernel chooses the end that is here.
impl From<SocketAddr> for Endpoints {
    fn from(remote: SocketAddr) -> Endpoints {
        Endpoints { local: None, remote }
    }
}

impl Endpoint for Endpoints {
    fn source(&self) -> Source {
        self.remote.source()
    }

    fn place(&self) -> Place {
        self.remote.place()
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
}
