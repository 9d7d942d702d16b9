//! `--endpoint`: where others call this machine, as an address or a name.

use std::net::{IpAddr, SocketAddr};
use std::str::FromStr;

use anyhow::Result;
use shoal_daemon::config::can_be_called;
use shoal_daemon::net::resolve::resolve;
use shoal_daemon::tun::subnets;
use shoal_directory::{DoorEndpoint, Prefix, fold, is_dns_name};

use crate::failure::{self, ExitError};

/// An endpoint of this machine on the command line.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct OwnEndpoint {
    host: OwnHost,
    /// UDP port; without it one that follows from a key.
    pub port: Option<u16>,
}

#[derive(Clone, Debug, PartialEq, Eq)]
enum OwnHost {
    Address(IpAddr),
    Named(String),
}

impl FromStr for OwnEndpoint {
    type Err = String;

    /// Reads `192.0.2.2`, `192.0.2.2:7400`, `my.example.org` or `my.example.org:7400`.
    fn from_str(text: &str) -> Result<OwnEndpoint, String> {
        let wrong = || {
            "expected the address or the DNS name of this machine, such as 192.0.2.2, \
             192.0.2.2:7400 or my.example.org"
                .to_owned()
        };
        let address = text.parse::<SocketAddr>().map(|at| (at.ip(), Some(at.port())));
        let address = address.or_else(|_| text.parse().map(|ip| (ip, None)));
        if let Ok((ip, port)) = address {
            let can = can_be_called(SocketAddr::new(ip, port.unwrap_or(1)));
            let host = OwnHost::Address(ip);
            return can.then_some(OwnEndpoint { host, port }).ok_or_else(wrong);
        }
        let (name, port) = match text.rsplit_once(':') {
            None => (text, None),
            Some((name, port)) => {
                let port = port.parse::<u16>().ok().filter(|port| *port != 0);
                (name, Some(port.ok_or_else(wrong)?))
            }
        };
        // A single label may be the name of a file or of a machine; only `localhost` is sure.
        let is_name = is_dns_name(name) && (name.contains('.') || fold(name) == "localhost");
        let host = OwnHost::Named(name.to_owned());
        is_name.then_some(OwnEndpoint { host, port }).ok_or_else(wrong)
    }
}

impl OwnEndpoint {
    /// An address without a port.
    pub fn of(ip: IpAddr) -> OwnEndpoint {
        OwnEndpoint { host: OwnHost::Address(ip), port: None }
    }

    /// The address, outside `inside`; a name is looked up.
    ///
    /// # Errors
    ///
    /// The name has no address at which others can call this machine, or an address is inside the
    /// network.
    pub fn address(&self, inside: Option<&Prefix>) -> Result<IpAddr> {
        let usage = |text: String| ExitError::of(failure::USAGE, text);
        let is_inside = |ip: IpAddr| inside.is_some_and(|prefix| prefix.holds(ip));
        let name = match &self.host {
            OwnHost::Address(ip) if is_inside(*ip) => {
                return Err(usage(format!("{ip} is one of the network's own addresses")));
            }
            OwnHost::Address(ip) => return Ok(*ip),
            OwnHost::Named(name) => name,
        };
        let all = resolve((name, self.port.unwrap_or(1)));
        let all = all.map_err(|why| usage(format!("{name} can't be looked up: {why}")))?;
        let nodes: Vec<Prefix> = subnets::of_other_nodes("")
            .into_iter()
            .filter_map(|(ip, bits)| Prefix::around(ip, bits))
            .collect();
        // Many machines give their own name a loopback address in /etc/hosts.
        let folded = fold(name);
        let may_be_loopback = folded == "localhost" || folded.ends_with(".localhost");
        let is_outside = |at: &&SocketAddr| {
            can_be_called(**at)
                && (may_be_loopback || !at.ip().is_loopback())
                && !is_inside(at.ip())
                && !nodes.iter().any(|prefix| prefix.holds(at.ip()))
        };
        // Most machines can call an IPv4 address.
        let usable = all.iter().filter(is_outside).min_by_key(|at| at.is_ipv6());
        usable.map(SocketAddr::ip).ok_or_else(|| {
            usage(format!(
                "{name} has no address at which others can call this machine, only some of this \
                 machine itself or inside a network of Shoal: correct its entry in the DNS or in \
                 /etc/hosts, or name an address"
            ))
        })
    }

    /// The endpoint of a registrar here, with this port. A name stays one.
    pub fn door(&self, port: u16) -> DoorEndpoint {
        match &self.host {
            OwnHost::Address(ip) => DoorEndpoint::At(SocketAddr::new(*ip, port)),
            OwnHost::Named(name) => DoorEndpoint::Named(name.clone(), port),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(text: &str) -> Result<OwnEndpoint, String> {
        text.parse()
    }

    #[test]
    fn addresses_and_names_are_read() {
        let ip = IpAddr::from([192, 0, 2, 2]);
        let four = read("192.0.2.2").unwrap();
        assert_eq!((four.address(None).unwrap(), four.port), (ip, None));
        assert_eq!(read("192.0.2.2:7400").unwrap().port, Some(7_400));
        assert!(read("[2001:db8::1]:7400").unwrap().address(None).unwrap().is_ipv6());
        let named = read("my.example.org:7400").unwrap();
        assert_eq!(
            (named.door(7_401).to_string(), named.port),
            ("my.example.org:7401".into(), Some(7_400))
        );
        assert_eq!(read("my.example.org").unwrap().port, None);
        for bad in [
            "",
            "0.0.0.0",
            "192.0.2.2:0",
            "224.0.0.1",
            "bob",
            "192.0.2.2:70000",
            "a..org",
            "a b.org",
            "my.example.org:0",
            "my.example.org:x",
        ] {
            assert!(read(bad).is_err(), "{bad}");
        }
    }

    #[test]
    fn a_name_is_looked_up_and_addresses_of_the_network_are_refused() {
        assert!(read("localhost").unwrap().address(None).unwrap().is_loopback());
        let inside: Prefix = "127.0.0.0/8".parse().unwrap();
        for text in ["localhost", "127.0.0.1"] {
            let said = read(text).unwrap().address(Some(&inside));
            // A machine may give `localhost` an IPv6 address, too.
            if let Err(why) = &said {
                assert!(why.to_string().contains("network"), "{why}");
            }
            assert!(said.is_err() || said.unwrap().is_ipv6(), "{text}");
        }
    }
}
