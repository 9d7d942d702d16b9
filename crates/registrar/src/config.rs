//! `registrar.toml`: the registrar's configuration.

use std::net::{IpAddr, SocketAddr};
use std::path::{Path, PathBuf};
use std::time::Duration;

use anyhow::{Context, bail};
use serde::Deserialize;
use shoal_crypto::VerifyKey;
use shoal_daemon::config::{self, DEFAULT_CONTROL_SOCKET};
use shoal_directory::DoorEndpoint;
use shoal_joining::ENDPOINTS_MAX;

const DAY_S: u64 = 86_400;
/// Most former secrets of the door.
const DOORS_BEFORE: usize = 3;
/// Most sockets of one registrar.
const LISTEN_MAX: usize = 16;

/// A registrar's configuration. Relative paths count from the folder of its file.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct RegistrarConfig {
    /// The registrar's own key, which the mandate names; never a node's.
    pub key_file: PathBuf,
    /// Secret that seals the door.
    pub door_file: PathBuf,
    /// The network's secret, which newcomers get.
    pub network_secret_file: PathBuf,
    /// The authority's public key.
    authority: String,
    /// The authority's list. The registrar replaces it when its node has a newer one.
    pub list_file: PathBuf,
    /// The ledger; its file only grows.
    pub ledger_file: PathBuf,
    /// UDP sockets, each IP:PORT.
    pub listen: Vec<SocketAddr>,
    /// Endpoints at which newcomers call, one to three IP:PORT or NAME:PORT, which invites
    /// contain. 0.0.0.0:PORT and \[::\]:PORT stand for the address of the machine's default route.
    endpoints: Vec<String>,
    /// Lifetime of a membership in days, if the mandate allows as many.
    #[serde(default = "membership_days")]
    membership_days: u32,
    /// Age in seconds from which a list doesn't count, as in the nodes' files.
    #[serde(default = "max_staleness_s")]
    max_staleness_s: u64,
    /// Control socket of the node beside the registrar.
    #[serde(default = "node_socket")]
    pub node_socket: PathBuf,
    /// The registrar's own control socket.
    pub control_socket: PathBuf,
    /// Members of this group may ask for invites, besides root and the registrar's user.
    pub control_group: Option<String>,
    /// User that the process becomes, if root started it.
    pub user: Option<String>,
    /// The authority's folder, where it was made. The owner is warned while it is still there.
    pub authority_folder: Option<PathBuf>,
    #[serde(skip)]
    file: PathBuf,
}

/// IP family, true for IPv4, and port of an endpoint that follows the default route.
fn route_port(text: &str) -> Option<(bool, u16)> {
    let at = text.parse::<SocketAddr>().ok()?;
    (at.ip().is_unspecified() && at.port() != 0).then_some((at.is_ipv4(), at.port()))
}

fn membership_days() -> u32 {
    90
}

fn max_staleness_s() -> u64 {
    config::AuthorityConfig::MAX_STALENESS_S
}

fn node_socket() -> PathBuf {
    DEFAULT_CONTROL_SOCKET.into()
}

impl RegistrarConfig {
    /// Reads and checks a file.
    ///
    /// # Errors
    ///
    /// The fault, and its place.
    pub fn load(file: &Path) -> anyhow::Result<RegistrarConfig> {
        let text = config::read_text(file).with_context(|| file.display().to_string())?;
        RegistrarConfig::parse(file, &text)
    }

    fn parse(file: &Path, text: &str) -> anyhow::Result<RegistrarConfig> {
        let at = || file.display().to_string();
        let mut config: RegistrarConfig = toml::from_str(text).with_context(at)?;
        config.file = file.to_path_buf();
        config.check().with_context(at)?;
        Ok(config)
    }

    fn check(&self) -> anyhow::Result<()> {
        self.authority()?;
        if !(1..=LISTEN_MAX).contains(&self.listen.len()) {
            bail!(
                "listen: expected 1 to {LISTEN_MAX} socket addresses, such as [\"0.0.0.0:23872\"]"
            );
        }
        if !(1..=ENDPOINTS_MAX).contains(&self.endpoints.len()) {
            bail!("endpoints: expected 1 to {ENDPOINTS_MAX}: where newcomers call this machine");
        }
        for at in &self.endpoints {
            if route_port(at).is_none()
                && let Err(why) = at.parse::<DoorEndpoint>()
            {
                bail!("endpoints: {at} can't be called: {why}");
            }
        }
        if !(1..=3_650).contains(&self.membership_days) {
            bail!("membership_days: expected 1 to 3650, found {}", self.membership_days);
        }
        if self.max_staleness_s == 0 {
            bail!("max_staleness_s: expected 1 or more");
        }
        Ok(())
    }

    /// Endpoints at which newcomers call. `route` gives the address of the default route in an IP
    /// family, true for IPv4; an endpoint by a route that is missing is left out.
    pub fn endpoints(&self, route: impl Fn(bool) -> Option<IpAddr>) -> Vec<DoorEndpoint> {
        let mut all = Vec::new();
        for text in &self.endpoints {
            let endpoint = match route_port(text) {
                Some((is_ipv4, port)) => {
                    route(is_ipv4).map(|ip| DoorEndpoint::At(SocketAddr::new(ip, port)))
                }
                None => text.parse().ok(),
            };
            all.extend(endpoint.filter(|at| at.is_callable() && !all.contains(at)));
        }
        all
    }

    /// True if an endpoint follows the default route.
    pub fn follows_route(&self) -> bool {
        self.endpoints.iter().any(|text| route_port(text).is_some())
    }

    /// The authority's public key.
    ///
    /// # Errors
    ///
    /// The text is not a key.
    pub fn authority(&self) -> anyhow::Result<VerifyKey> {
        self.authority.parse().context("authority: expected its public key, as node.toml has it")
    }

    /// Longest membership.
    pub fn membership(&self) -> Duration {
        Duration::from_secs(u64::from(self.membership_days) * DAY_S)
    }

    /// Greatest age of a list.
    pub fn staleness_max(&self) -> Duration {
        Duration::from_secs(self.max_staleness_s)
    }

    /// `path` as named in the file.
    pub fn path(&self, path: &Path) -> PathBuf {
        match self.file.parent() {
            Some(folder) if path.is_relative() => folder.join(path),
            _ => path.to_path_buf(),
        }
    }

    /// Files of the door's former secrets, the newest first. Members who joined with one of them
    /// know no other.
    pub fn doors_before(&self) -> [PathBuf; DOORS_BEFORE] {
        let file = self.path(&self.door_file);
        core::array::from_fn(|n| {
            let mut name = file.clone().into_os_string();
            name.push(format!(".{}", n + 1));
            name.into()
        })
    }

    /// Warnings for the owner about the files.
    pub fn warnings(&self) -> Vec<String> {
        let folder = self.authority_folder.as_ref().map(|folder| self.path(folder));
        let there = folder.filter(|folder| folder.join("authority.key").exists());
        let warn = |folder: PathBuf| {
            format!(
                "the authority's key is still on this machine, which newcomers can reach: move the \
                 folder {} to a medium or a machine without a network, and keep a copy",
                folder.display()
            )
        };
        there.map(warn).into_iter().collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn with(change: impl FnOnce(String) -> String) -> Result<RegistrarConfig, String> {
        let key = shoal_crypto::SigningKey::from_seed([1; 32]).public();
        let text = format!(
            "key_file = \"registrar.key\"\ndoor_file = \"door.key\"\n\
             network_secret_file = \"network.key\"\nauthority = \"{key}\"\n\
             list_file = \"network.list\"\nledger_file = \"ledger\"\nlisten = [\"0.0.0.0:7500\"]\n\
             endpoints = [\"192.0.2.1:7500\"]\ncontrol_socket = \"control.sock\"\n"
        );
        let config =
            RegistrarConfig::parse(Path::new("/etc/shoal-registrar/registrar.toml"), &change(text));
        config.map_err(|e| format!("{e:#}"))
    }

    #[test]
    fn what_is_wrong_is_named() {
        let good = with(|text| text).unwrap();
        assert_eq!(good.path(&good.key_file), Path::new("/etc/shoal-registrar/registrar.key"));
        assert_eq!(good.membership(), Duration::from_secs(90 * DAY_S));
        assert_eq!(good.node_socket, Path::new(DEFAULT_CONTROL_SOCKET));
        let refused = |from: &str, to: &str, hint: &str| {
            let said = with(|text| {
                assert!(text.contains(from));
                text.replacen(from, to, 1)
            });
            let said = said.unwrap_err();
            assert!(said.contains("registrar.toml") && said.contains(hint), "{said}");
        };
        refused("key_file", "keyfile", "unknown field");
        refused("[\"0.0.0.0:7500\"]", "[]", "listen: expected 1 to 16");
        refused("192.0.2.1:7500", "0.0.0.0:0", "can't be called");
        refused("192.0.2.1:7500", "my.example.org", "can't be called");
        refused("authority = \"", "authority = \"x", "expected its public key");
        refused("control_socket", "membership_days = 0\ncontrol_socket", "expected 1 to 3650");
    }

    #[test]
    fn an_endpoint_is_an_address_a_name_or_the_default_routes_address() {
        let config = with(|text| {
            let all = "my.example.org:7500\", \"0.0.0.0:7500\", \"[::]:7500";
            text.replacen("192.0.2.1:7500", all, 1)
        });
        let config = config.unwrap();
        let route =
            |is_ipv4: bool| -> Option<IpAddr> { is_ipv4.then(|| IpAddr::from([192, 0, 2, 9])) };
        let said = |all: &[DoorEndpoint]| all.iter().map(ToString::to_string).collect::<Vec<_>>();
        assert_eq!(said(&config.endpoints(route)), ["my.example.org:7500", "192.0.2.9:7500"]);
        assert_eq!(said(&config.endpoints(|_| None)), ["my.example.org:7500"]);
        assert!(config.follows_route() && !with(|text| text).unwrap().follows_route());
    }

    #[test]
    fn an_authority_that_was_not_moved_away_is_a_warning() {
        let folder = tempfile::tempdir().unwrap();
        let line = format!("authority_folder = {:?}\n", folder.path());
        let config = with(|text| text + &line).unwrap();
        assert!(config.warnings().is_empty());
        std::fs::write(folder.path().join("authority.key"), "").unwrap();
        assert!(config.warnings()[0].contains("move the folder"));
    }
}
