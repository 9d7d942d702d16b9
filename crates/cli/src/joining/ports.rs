//! Free UDP ports of this machine, and the address at which others call it.

use std::io;
use std::net::{IpAddr, Ipv4Addr, SocketAddr, UdpSocket};

use anyhow::Result;
use shoal_crypto::Identity;
use shoal_daemon::config::keys;
pub use shoal_daemon::membership::asking::listen_at;
use shoal_daemon::net::resolve::route_address;

use crate::failure::{self, ExitError};
use crate::keys::random;

/// Keys to try until the port that follows from one is free.
const PORTS_TRIED: usize = 64;

/// Address to listen at, if the port that follows from the node's key is taken here.
pub fn free_port(identity: &Identity) -> Result<Option<SocketAddr>> {
    let any = Ipv4Addr::UNSPECIFIED.into();
    if free_at(identity, any, None, None)?.is_some() {
        return Ok(None);
    }
    // Another key's port is as random as another port.
    key_for(any, None, None).map(|(_, at)| Some(at))
}

/// Makes a key, and the endpoint of its process. The port is `port`, which must be free here.
/// Without `port` it is the one that follows from the key, which is free and is not `not`.
pub fn key_for(ip: IpAddr, port: Option<u16>, not: Option<u16>) -> Result<(Identity, SocketAddr)> {
    for _ in 0..PORTS_TRIED {
        let key = Identity::generate(random()?);
        if let Some(at) = free_at(&key, ip, port, not)? {
            return Ok((key, at));
        }
    }
    Err(ExitError::of(failure::FAILED, "this machine has no free UDP port to listen at"))
}

/// As [`key_for`], with `key`; `None` if its own port is taken or is `not`.
fn free_at(
    key: &Identity,
    ip: IpAddr,
    port: Option<u16>,
    not: Option<u16>,
) -> Result<Option<SocketAddr>> {
    let own = keys::own_port(key);
    if port.is_none() && Some(own) == not {
        return Ok(None);
    }
    let at = SocketAddr::new(ip, port.unwrap_or(own));
    let listen = listen_at(at);
    match UdpSocket::bind(listen) {
        Ok(_) => Ok(Some(at)),
        Err(e) if e.kind() == io::ErrorKind::AddrInUse && port.is_none() => Ok(None),
        Err(e) => Err(ExitError::of(failure::CONFIG, format!("{listen}: {e}"))),
    }
}

/// Address of this machine's default route, which others call unless --endpoint names another one.
/// Prints the address.
pub fn own_address() -> Result<IpAddr> {
    let ip = [true, false].into_iter().find_map(route_address).ok_or_else(|| {
        ExitError::of(
            failure::USAGE,
            "no route of this machine shows the address at which others call it: name it with \
             --endpoint",
        )
    })?;
    let only = if shoal_wire::is_private(ip) {
        "; that is a private address, which only machines beside this one reach"
    } else {
        ""
    };
    eprintln!(
        "shoal: others call this machine at {ip}, the address of its default route{only}; \
         --endpoint IP names another one"
    );
    Ok(ip)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_taken_port_is_not_used() {
        let identity = Identity::from_seed([77; 32]);
        let own = SocketAddr::from((Ipv4Addr::UNSPECIFIED, keys::own_port(&identity)));
        let taken = UdpSocket::bind(own).unwrap();
        let other = free_port(&identity).unwrap().unwrap();
        assert_ne!(other.port(), own.port());
        drop(taken);
        assert_eq!(free_port(&identity).unwrap(), None);
    }

    #[test]
    fn a_key_whose_port_is_taken_is_not_chosen_and_a_port_that_was_said_is_refused() {
        let key = Identity::from_seed([78; 32]);
        let (ip, own) = (IpAddr::from(Ipv4Addr::LOCALHOST), keys::own_port(&key));
        assert_eq!(free_at(&key, ip, None, None).unwrap(), Some((ip, own).into()));
        assert_eq!(free_at(&key, ip, None, Some(own)).unwrap(), None);
        let taken = UdpSocket::bind((ip, own)).unwrap();
        assert_eq!(free_at(&key, ip, None, None).unwrap(), None);
        let refused = free_at(&key, ip, Some(own), None).unwrap_err().to_string();
        assert!(refused.contains(&format!("127.0.0.1:{own}")), "{refused}");
        drop(taken);
        let (_, at) = key_for(ip, Some(own), None).unwrap();
        assert_eq!(at.port(), own);
    }
}
