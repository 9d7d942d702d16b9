//! Resolution of endpoints that are names, and the address of this machine's default route.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr, ToSocketAddrs, UdpSocket};

/// Maximum number of addresses of one name that are used.
pub const ADDRESSES_MAX: usize = 16;

/// Addresses of a name with this port. The call may wait for the DNS for seconds, so only threads
/// that may wait make it.
///
/// # Errors
///
/// The name can't be resolved; the reason for the operator.
pub fn resolve((name, port): (&str, u16)) -> Result<Vec<SocketAddr>, String> {
    let addresses = (name, port).to_socket_addrs();
    addresses.map(|all| all.take(ADDRESSES_MAX).collect()).map_err(|e| e.to_string())
}

/// Source address of this machine's routes to others in this IP family; sends no packet.
pub fn route_address(is_ipv4: bool) -> Option<IpAddr> {
    let (any, far): (IpAddr, IpAddr) = match is_ipv4 {
        true => (Ipv4Addr::UNSPECIFIED.into(), Ipv4Addr::new(192, 0, 2, 1).into()),
        false => {
            (Ipv6Addr::UNSPECIFIED.into(), Ipv6Addr::new(0x2001, 0xdb8, 0, 0, 0, 0, 0, 1).into())
        }
    };
    let socket = UdpSocket::bind((any, 0)).ok()?;
    socket.connect((far, 9)).ok()?;
    socket.local_addr().ok().map(|at| at.ip()).filter(|ip| !ip.is_unspecified())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_name_has_addresses_and_a_wrong_one_a_reason() {
        let all = resolve(("localhost", 7)).unwrap();
        assert!(!all.is_empty() && all.iter().all(|at| at.ip().is_loopback() && at.port() == 7));
        // No query has room for a label of this length.
        assert!(resolve((&"x".repeat(64), 7)).is_err());
    }
}
