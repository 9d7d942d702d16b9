//! The virtual interface of a new node, and the needs of its start. All of them are checked before
//! a use of an invite is spent.

use std::net::{IpAddr, Ipv4Addr, SocketAddr};

use anyhow::Result;
use clap::Args;
use shoal_daemon::config::{self, NAMES_AT, NodeConfig};
use shoal_daemon::control::socket::check_free;
use shoal_daemon::preflight;
use shoal_daemon::tun;
use shoal_daemon::tun::dns::left_to_operator;
use shoal_directory::Prefix;

use super::place::ServiceFolders;
use super::start::{Service, has_units, unit_user};
use crate::failure::{self, ExitError};
use crate::output;

/// Names of interfaces to try: shoal0 to shoal63.
const INTERFACES: u8 = 64;
/// Port for names if no address of the loopback has port 53 free.
const OTHER_PORT: u16 = 5_353;

#[derive(Args, Debug, Default)]
pub struct InterfaceArgs {
    /// Make no virtual interface: programs reach no host by IP; `shoal send` and `shoal ping` work.
    #[arg(long, conflicts_with_all = ["interface", "no_names", "names_at"])]
    no_interface: bool,
    /// Name of the virtual interface [default: the first free one of shoal0, shoal1, ...].
    #[arg(long, value_name = "NAME")]
    interface: Option<String>,
    /// Do not answer names of hosts, such as bob.shoal.
    #[arg(long, conflicts_with = "names_at")]
    no_names: bool,
    /// Loopback address at which names of hosts are answered [default: the first free one of
    /// 127.0.0.153:53, 127.0.0.154:53, ...].
    #[arg(long, value_name = "IP[:PORT]", value_parser = loopback)]
    names_at: Option<SocketAddr>,
}

/// Interface of a new node.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct InterfaceToml {
    /// Name of the interface.
    pub name: String,
    /// Length of the prefix of IPv4 addresses, if the network has them.
    pub ipv4_bits: Option<u8>,
    /// IPv4 networks that the interface accepts, although they are public or in use here.
    pub accept_ipv4: Vec<Prefix>,
    /// Address at which names are answered, if any.
    pub names: Option<SocketAddr>,
}

/// Parses IP or IP:PORT of the loopback.
fn loopback(text: &str) -> Result<SocketAddr, String> {
    let at =
        text.parse().or_else(|_| text.parse::<IpAddr>().map(|ip| (ip, NAMES_AT.port()).into()));
    let at = at.ok().filter(|at: &SocketAddr| at.ip().is_loopback() && at.port() != 0);
    at.ok_or_else(|| "expected a loopback address, such as 127.0.0.154 or 127.0.0.154:53".into())
}

fn wrong(text: String) -> anyhow::Error {
    ExitError::of(failure::CONFIG, text)
}

impl InterfaceArgs {
    /// Chooses the node's interface, if any. A name or address that was given must be free.
    pub fn choose(&self) -> Result<Option<InterfaceToml>> {
        if self.no_interface {
            return Ok(None);
        }
        if !nix::unistd::geteuid().is_root() {
            if self.interface.is_some() || self.names_at.is_some() {
                let text = "--interface and --names-at need root: without root there is no virtual \
                            interface";
                return Err(ExitError::of(failure::USAGE, text));
            }
            eprintln!("shoal: without root there is no virtual interface");
            return Ok(None);
        }
        tun::check_device("[interface]")
            .map_err(|e| wrong(format!("{e:#}; or make no interface: --no-interface")))?;
        let (name, names) = (self.name()?, self.names()?);
        Ok(Some(InterfaceToml { name, ipv4_bits: None, accept_ipv4: Vec::new(), names }))
    }

    fn name(&self) -> Result<String> {
        if let Some(name) = &self.interface {
            let bad = |e| ExitError::of(failure::USAGE, format!("--interface {name:?}: {e}"));
            config::check_interface_name(name).map_err(bad)?;
            if tun::is_interface(name) {
                return Err(wrong(format!(
                    "--interface {name}: this machine has that interface already: name another \
                     one, or leave the option out for a free name"
                )));
            }
            return Ok(name.clone());
        }
        let mut names = (0..INTERFACES).map(|n| format!("shoal{n}"));
        let free = names.find(|name| !tun::is_interface(name));
        let text = "the interface names shoal0 to shoal63 are taken here: --interface NAME";
        free.ok_or_else(|| wrong(text.into()))
    }

    fn names(&self) -> Result<Option<SocketAddr>> {
        if self.no_names {
            return Ok(None);
        }
        if let Some(at) = self.names_at {
            let taken = |e: anyhow::Error| {
                wrong(format!(
                    "--names-at {at}: {e:#}: name another address, or leave the option out for a \
                     free one; --no-names answers no names"
                ))
            };
            tun::check_names(at).map_err(taken)?;
            return Ok(Some(at));
        }
        let IpAddr::V4(first) = NAMES_AT.ip() else { return Ok(Some(NAMES_AT)) };
        let [a, b, c, first] = first.octets();
        let at = |port| move |d| SocketAddr::from((Ipv4Addr::new(a, b, c, d), port));
        let all = (first..=254).map(at(NAMES_AT.port())).chain((first..=254).map(at(OTHER_PORT)));
        let free = all.into_iter().find(|at| tun::check_names(*at).is_ok());
        free.map(Some).ok_or_else(|| {
            wrong(format!(
                "names of hosts: no address from {NAMES_AT} on is free here, nor with port \
                 {OTHER_PORT}: name one with --names-at, or answer no names with --no-names"
            ))
        })
    }
}

impl InterfaceToml {
    /// Words about a name and an address that differ from the defaults; none if neither differs.
    pub fn said(&self) -> Option<String> {
        let names = self.names.filter(|at| *at != NAMES_AT);
        let names = names.map(|at| format!("names of hosts are answered at {at}"));
        let name = (self.name != "shoal0").then(|| format!("the interface is {}", self.name));
        let all: Vec<String> = name.into_iter().chain(names).collect();
        (!all.is_empty()).then(|| all.join(", and "))
    }
}

/// Prints the steps for names that the operator must take, if there are any.
pub fn say_names(config: &NodeConfig, may_write: bool) -> Result<()> {
    let Some(names) = &config.names else { return Ok(()) };
    match left_to_operator(names, may_write) {
        Some(steps) => Ok(output::line(&names_line(names.domain.as_str(), &steps))?),
        None => Ok(()),
    }
}

/// The operator's line about names.
pub fn names_line(domain: &str, steps: &str) -> String {
    format!("to have programs find NAME.{domain} here: {steps}")
}

/// Checks the needs of a start of `service` in `place`: folders, the control socket, the unit's
/// user.
pub fn check_machine(service: Service, place: &ServiceFolders) -> Result<()> {
    if has_units(&[(service, place)]) {
        unit_user(service)?;
    }
    if check_free(&place.socket).is_err() {
        let (unit, socket) = (service.unit(), place.socket.display());
        return Err(wrong(format!(
            "another {unit} runs here, and answers at {socket}: end that process first (`systemctl \
             stop {unit}`, or Ctrl-C where it runs in the foreground), or name another folder with \
             --dir for a second one"
        )));
    }
    if !place.is_system && !place.dir.exists() {
        return Ok(());
    }
    let checked = preflight::check_socket(&place.socket);
    checked.map_err(|e| wrong(format!("the control socket can't be opened: {e}")))
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::net::UdpSocket;

    #[test]
    fn only_loopback_addresses_answer_names() {
        assert_eq!(loopback("127.0.0.154").unwrap().to_string(), "127.0.0.154:53");
        assert_eq!(loopback("[::1]:5353").unwrap().port(), 5_353);
        for bad in ["192.0.2.1", "127.0.0.1:0", "shoal", ""] {
            assert!(loopback(bad).is_err(), "{bad}");
        }
    }

    #[test]
    fn an_address_that_is_taken_is_refused_where_it_was_named() {
        let taken = UdpSocket::bind("127.0.0.1:0").unwrap();
        let at = taken.local_addr().unwrap();
        let args = InterfaceArgs { names_at: Some(at), ..InterfaceArgs::default() };
        let said = args.names().unwrap_err().to_string();
        assert!(said.contains("--names-at") && said.contains("--no-names"), "{said}");
        let none = InterfaceArgs { no_names: true, ..InterfaceArgs::default() };
        assert_eq!(none.names().unwrap(), None);
    }

    #[test]
    fn an_interface_that_is_there_is_refused_where_it_was_named_and_else_passed_over() {
        let named = |name: &str| {
            let args = InterfaceArgs { interface: Some(name.into()), ..InterfaceArgs::default() };
            args.name().map_err(|e| e.to_string())
        };
        assert!(named("lo").unwrap_err().contains("name another"));
        assert!(named("no/interface").unwrap_err().contains("--interface"));
        assert_eq!(named("shoal63"), Ok("shoal63".into()));
    }

    #[test]
    fn only_what_is_unusual_is_said() {
        let toml = |name: &str, names: Option<SocketAddr>| InterfaceToml {
            name: name.into(),
            ipv4_bits: None,
            accept_ipv4: Vec::new(),
            names,
        };
        assert_eq!(toml("shoal0", Some(NAMES_AT)).said(), None);
        let said = toml("shoal1", Some("127.0.0.154:53".parse().unwrap())).said().unwrap();
        assert!(said.contains("shoal1") && said.contains("127.0.0.154:53"), "{said}");
    }
}
