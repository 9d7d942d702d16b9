//! A node's configuration: `node.toml`.
//!
//! In: a file. Out: a [`Config`] whose every value is inside its range, or a [`ConfigError`] that
//! names file, line and key and says what was expected. `shoal.example.toml` is printed from the
//! same table as the structures ([`reference()`]), so that the two can't disagree.
//!
//! Invariant: reading a configuration changes nothing. Keys and lists of hosts are named by path
//! and read by [`crate::config::keys`] and [`crate::membership::hosts`].
//!
//! Text becomes types here, once, keys too; nothing here opens a socket or starts a thread.

mod direct;
mod error;
pub mod keys;
mod section;
mod sections;
mod setup;

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use serde::Deserialize;
use shoal_wire::Address;

pub use crate::files::reading::read_text;
pub use direct::{Direct, DirectLevel, DirectMode};
pub use error::{ConfigError, Source};
pub use section::{Key, Reload, Section};
pub use sections::{
    Authority, Data, Egress, Interface, LinkPeer, Liveness, Log, LogLevel, Metrics, Names, Node,
    Routing, Session, Suite, Transfer,
};
pub(crate) use setup::misplaced;
pub use setup::{Listen, NO_LINK, Newer, Setup, SetupError, files, reread, warnings};

/// Longest path of a Unix socket, in bytes.
const SOCKET_PATH_MAX: usize = 107;

/// Whether a datagram to this address and port can reach one node.
pub fn can_be_called(at: std::net::SocketAddr) -> bool {
    at.port() != 0 && !at.ip().is_unspecified() && !at.ip().is_multicast()
}

/// Where the control socket is unless the configuration says otherwise.
pub const DEFAULT_CONTROL_SOCKET: &str = "/run/shoal/control.sock";

/// A checked configuration. Paths in it are relative to the file's folder until
/// [`Config::path`] resolves them.
#[derive(Clone, Debug, PartialEq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Config {
    /// Who this node is, and its files and sockets.
    pub node: Node,
    /// Its neighbours.
    #[serde(default, rename = "link")]
    pub links: Vec<LinkPeer>,
    /// How a link notices that it is alive.
    #[serde(default)]
    pub liveness: Liveness,
    /// Keys, rekeying, handshakes; links and host pairs alike.
    #[serde(default)]
    pub session: Session,
    /// The paper's query cycle and costs.
    #[serde(default)]
    pub routing: Routing,
    /// The queue between open and seal, one per link.
    #[serde(default)]
    pub egress: Egress,
    /// Files.
    #[serde(default)]
    pub transfer: Transfer,
    /// The virtual interface, if there is to be one.
    #[serde(default)]
    pub interface: Option<Interface>,
    /// Names for programs, if there are to be any.
    #[serde(default)]
    pub names: Option<Names>,
    /// Links with other hosts past the routers.
    #[serde(default)]
    pub direct: Direct,
    /// Who says who belongs to the network, if not the hosts file.
    #[serde(default)]
    pub authority: Option<Authority>,
    /// Sockets and batches.
    #[serde(default)]
    pub data: Data,
    /// Counters.
    #[serde(default)]
    pub metrics: Metrics,
    /// Messages for the operator.
    #[serde(default)]
    pub log: Log,
    /// The file it was read from.
    #[serde(skip)]
    pub file: PathBuf,
}

impl Config {
    /// Reads and checks `file`.
    pub fn load(file: &Path) -> Result<Config, ConfigError> {
        let text = read_text(file).map_err(|e| ConfigError::unreadable(file, &e))?;
        Config::parse(file, &text)
    }

    /// Checks `text` as the content of `file`, which need not exist.
    pub fn parse(file: &Path, text: &str) -> Result<Config, ConfigError> {
        let source = Source::new(file, text);
        let mut config: Config = toml::from_str(text).map_err(|e| source.syntax(&e))?;
        config.file = file.to_path_buf();
        config.check(&source)?;
        Ok(config)
    }

    fn check(&self, source: &Source<'_>) -> Result<(), ConfigError> {
        self.node.check(source, "node", None)?;
        for (i, link) in self.links.iter().enumerate() {
            link.check(source, "link", Some(i))?;
            link.check_endpoint(source, i)?;
        }
        self.liveness.check(source, "liveness", None)?;
        self.session.check(source, "session", None)?;
        self.routing.check(source, "routing", None)?;
        self.egress.check(source, "egress", None)?;
        self.transfer.check(source, "transfer", None)?;
        if let Some(interface) = &self.interface {
            interface.check(source, "interface", None)?;
            interface.check_name(source)?;
            interface.check_prefixes(source)?;
        }
        if let Some(names) = &self.names {
            names.check(source, "names", None)?;
            names.check_values(source)?;
            if self.interface.is_none() {
                let text = "names are those of [interface]s: this node has none";
                return Err(source.wrong("names", None, "listen", text));
            }
        }
        if let Some(authority) = &self.authority {
            authority.check(source, "authority", None)?;
            authority.check_given(source)?;
        }
        self.direct.check(source, "direct", None)?;
        self.data.check(source, "data", None)?;
        self.metrics.check(source, "metrics", None)?;
        self.log.check(source, "log", None)?;
        self.check_node(source)?;
        self.direct.check_values(self, source)?;
        self.check_together(source)
    }

    fn check_node(&self, source: &Source<'_>) -> Result<(), ConfigError> {
        let bad = |key, expected: String| Err(source.wrong("node", None, key, expected));
        if !crate::membership::hosts::is_name(&self.node.name) {
            return bad("name", crate::membership::hosts::NAME_RULE.into());
        }
        if let Err(e) = self.node.address.parse::<Address>() {
            return bad("address", e.to_string());
        }
        let listen = self.node.listen.as_deref().unwrap_or_default();
        if self.node.listen.is_some() && !(1..=16).contains(&listen.len()) {
            return bad("listen", "expected 1 to 16 socket addresses".into());
        }
        for (i, text) in listen.iter().enumerate() {
            let Ok(at) = text.parse::<std::net::SocketAddr>() else {
                return bad(
                    "listen",
                    format!("{text:?}: expected IP:PORT, such as 0.0.0.0:23871 or [::]:23871"),
                );
            };
            // Port 0 asks for any free one.
            if at.port() != 0 && listen[..i].contains(text) {
                return bad("listen", format!("{text:?} is there twice"));
            }
        }
        let len = self.control_socket().as_os_str().len();
        if len > SOCKET_PATH_MAX {
            let text = "a socket's path, folders included, has at most";
            return bad("control_socket", format!("{text} {SOCKET_PATH_MAX} bytes, not {len}"));
        }
        Ok(())
    }

    /// Rules that concern more than one key.
    fn check_together(&self, source: &Source<'_>) -> Result<(), ConfigError> {
        let mut pinned = BTreeMap::new();
        for (i, link) in self.links.iter().enumerate() {
            for router in &link.pin {
                if let Some(other) = pinned.insert(router, &link.peer) {
                    let text = format!("{router:?} is pinned to {other:?} already");
                    return Err(source.wrong("link", Some(i), "pin", text));
                }
            }
            if link.peer == self.node.name {
                return Err(source.wrong("link", Some(i), "peer", "a node has no link to itself"));
            }
            if self.links[..i].iter().any(|other| other.peer == link.peer) {
                let text = format!("{:?} has a [[link]] already", link.peer);
                return Err(source.wrong("link", Some(i), "peer", text));
            }
        }
        let session = &self.session;
        if session.reject_after_s <= session.rekey_after_s {
            return Err(source.wrong(
                "session",
                None,
                "reject_after_s",
                format!("expected more than rekey_after_s ({})", session.rekey_after_s),
            ));
        }
        if session.suites.is_empty() {
            return Err(source.wrong("session", None, "suites", "expected at least one suite"));
        }
        if self.routing.proof_refresh_s >= self.routing.proof_validity_s {
            return Err(source.wrong(
                "routing",
                None,
                "proof_refresh_s",
                format!("expected less than proof_validity_s ({})", self.routing.proof_validity_s),
            ));
        }
        if self.liveness.silence_ms <= self.liveness.report_ms {
            return Err(source.wrong(
                "liveness",
                None,
                "silence_ms",
                format!("expected more than report_ms ({})", self.liveness.report_ms),
            ));
        }
        Ok(())
    }

    /// This node's overlay address.
    pub fn address(&self) -> Address {
        // `check_node` refused every text that isn't one, and the fields of a checked configuration
        // are only changed by tests.
        self.node.address.parse().unwrap_or(Address::new(0, 0))
    }

    /// Where the configuration says that the node listens; nowhere when it leaves that to the key.
    pub fn listen(&self) -> Vec<std::net::SocketAddr> {
        // `check_node` refused every text that isn't one.
        self.node.listen.iter().flatten().filter_map(|text| text.parse().ok()).collect()
    }

    /// Whether the node is a router (host number 0).
    pub fn is_router(&self) -> bool {
        self.address().is_router()
    }

    /// `path` as named in the file: relative paths are relative to the file's folder.
    pub fn path(&self, path: &Path) -> PathBuf {
        match self.file.parent() {
            Some(folder) if path.is_relative() => folder.join(path),
            _ => path.to_path_buf(),
        }
    }

    /// Path of the control socket.
    pub fn control_socket(&self) -> PathBuf {
        self.path(&self.node.control_socket)
    }

    /// This configuration with the values of `newer` where a reload applies them.
    pub fn reloaded(&self, newer: Config) -> Config {
        Config { links: newer.links, metrics: newer.metrics, log: newer.log, ..self.clone() }
    }

    /// Keys outside of links whose values differ from `newer`, split into those that a reload
    /// applies and those that need a restart; each as `section.key`.
    pub fn changes(&self, newer: &Config) -> (Vec<String>, Vec<String>) {
        let mut changed = Vec::new();
        self.node.changes(&newer.node, "node", &mut changed);
        self.liveness.changes(&newer.liveness, "liveness", &mut changed);
        self.session.changes(&newer.session, "session", &mut changed);
        self.routing.changes(&newer.routing, "routing", &mut changed);
        self.egress.changes(&newer.egress, "egress", &mut changed);
        self.transfer.changes(&newer.transfer, "transfer", &mut changed);
        match (&self.interface, &newer.interface) {
            (Some(old), Some(new)) => old.changes(new, "interface", &mut changed),
            (None, None) => {}
            _ => changed.push(("interface".into(), Reload::No)),
        }
        match (&self.names, &newer.names) {
            (Some(old), Some(new)) => old.changes(new, "names", &mut changed),
            (None, None) => {}
            _ => changed.push(("names".into(), Reload::No)),
        }
        match (&self.authority, &newer.authority) {
            (Some(old), Some(new)) => old.changes(new, "authority", &mut changed),
            (None, None) => {}
            _ => changed.push(("authority".into(), Reload::No)),
        }
        self.direct.changes(&newer.direct, "direct", &mut changed);
        self.data.changes(&newer.data, "data", &mut changed);
        self.metrics.changes(&newer.metrics, "metrics", &mut changed);
        self.log.changes(&newer.log, "log", &mut changed);
        let (yes, no): (Vec<_>, Vec<_>) = changed.into_iter().partition(|c| c.1 == Reload::Yes);
        (yes.into_iter().map(|c| c.0).collect(), no.into_iter().map(|c| c.0).collect())
    }
}

/// Every section with its keys, in the order of the reference file.
pub fn sections() -> Vec<Section> {
    vec![
        Node::section("node"),
        LinkPeer::section("[link]"),
        Liveness::section("liveness"),
        Session::section("session"),
        Routing::section("routing"),
        Egress::section("egress"),
        Transfer::section("transfer"),
        Interface::section("interface"),
        Names::section("names"),
        Direct::section("direct"),
        Authority::section("authority"),
        Data::section("data"),
        Metrics::section("metrics"),
        Log::section("log"),
    ]
}

/// What a reload applies, as `section.key`; of links and the list of hosts everything.
pub fn reloadable() -> Vec<String> {
    let mut keys = vec!["[[link]]".to_string(), "the list of hosts".to_string()];
    for section in sections().into_iter().filter(|section| section.name != "[link]") {
        let named = section.keys.iter().filter(|key| key.reload == Reload::Yes);
        keys.extend(named.map(|key| format!("{}.{}", section.name, key.name)));
    }
    keys
}

/// The text of `shoal.example.toml`: every key with its meaning, its range, whether a reload
/// applies it, and its default (commented out) or an example value (where there is no default).
pub fn reference() -> String {
    let mut text = String::from(
        "# shoal.example.toml: every key that a Shoal node knows.\n\
         #\n\
         # A key that stands commented out is optional and shown with its default, or with\n\
         # an example where there is none. The others must be given. \"reload: yes\" means\n\
         # that `shoal reload` (or SIGHUP) applies a changed value; the others wait for\n\
         # a restart. Unknown keys are errors.\n\
         # Relative paths are relative to the folder of this file.\n\
         # Check a file with: shoal check -c FILE\n",
    );
    for section in sections() {
        section.print(&mut text);
    }
    text
}

#[cfg(test)]
mod tests;
