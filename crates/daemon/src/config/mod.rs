//! A node's configuration: `node.toml`.
//!
//! In: a file. Out: a [`NodeConfig`] whose every value is inside its range, or a [`ConfigError`]
//! that names file, line and key and says what was expected. The structures and
//! `shoal.example.toml` ([`reference()`]) come from one table, so that they can't disagree.
//!
//! Invariant: reading a configuration changes nothing. The file names keys and lists of hosts by
//! path; [`crate::config::keys`] and [`crate::membership::hosts`] read them.
//!
//! Text is parsed into types only here. This module opens no socket and starts no thread.

mod anonymity;
mod circuits;
mod direct;
mod error;
pub mod keys;
mod links;
pub(crate) mod reach;
mod registrar;
mod section;
mod sections;
mod setup;
mod shift;
mod text;

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use shoal_crypto::SuiteSupport;
use shoal_wire::Address;

use section::ConfigSection;

pub use crate::files::reading::read_text;
pub use anonymity::{Anonymity, CoverLossPolicy, LoopPolicy, Preset, RELAYS_MIN};
pub use circuits::{CircuitPolicy, CircuitsConfig};
pub use direct::{DirectLevel, DirectLinksConfig, DirectMode};
pub use error::{ConfigError, ConfigSource};
pub use links::{LinksConfig, NeighbourPolicy};
pub use registrar::Registrar;
pub use section::{KeyReference, ReloadEffect, Section};
pub use sections::{
    AuthorityConfig, EgressSection, Expert, InterfaceConfig, KeepaliveConfig, LinkPeer, LogConfig,
    LogLevel, Metrics, NamesConfig, NodeSection, RoutingSection, SessionSection, SuiteName,
    TransferSection, WorkersConfig,
};
pub(crate) use setup::is_of_rights;
pub(crate) use setup::misplaced;
pub(crate) use setup::unnamed;
pub use setup::{
    Experiment, ListenAddresses, NO_LINK, NodeSetup, ReloadedFiles, SetupError, files, overlay_of,
    reread, warnings,
};
pub use shift::{
    PROTECTED_MAX, ProtectedAddress, RendezvousEndpoint, ShiftConfig, ShiftInterval, ShiftMode,
    ShiftPrefix,
};
pub use text::{
    EncryptWith, NAMES_AT, ParsedText, PeerEndpoint, can_be_called, check_interface_name,
    spell_place,
};

/// Longest path of a Unix socket, in bytes.
const SOCKET_PATH_MAX: usize = 107;

/// The registrar's socket, in the folder of the control socket.
pub const REGISTRAR_SOCKET: &str = "registrar.sock";
/// Path of the control socket unless the configuration has another.
pub const DEFAULT_CONTROL_SOCKET: &str = "/run/shoal/control.sock";

section::config! {
    /// Identity of this node, its files and its sockets.
    node: NodeSection = "node";
    /// Neighbours of this node.
    #[on = serde(default)]
    links: Vec<LinkPeer> = "link";
    /// Neighbours from the list, without a `[[link]]`.
    #[on = serde(default)]
    accept: LinksConfig = "links";
    /// Addresses that shift, if any do.
    #[on = serde(default)]
    shift: Option<ShiftConfig> = "shift";
    /// Keepalives of idle links.
    #[on = serde(default)]
    liveness: KeepaliveConfig = "liveness";
    /// Keys, rekeying, handshakes; links and host pairs alike.
    #[on = serde(default)]
    session: SessionSection = "session";
    /// Costs of links, and limits on routes from neighbours.
    #[on = serde(default)]
    routing: RoutingSection = "routing";
    /// The queue between open and seal, one per link.
    #[on = serde(default)]
    egress: EgressSection = "egress";
    /// Transfers of files.
    #[on = serde(default)]
    transfer: TransferSection = "transfer";
    /// The virtual interface, if there is one.
    #[on = serde(default)]
    interface: Option<InterfaceConfig> = "interface";
    /// The DNS responder for names of hosts, if there is one.
    #[on = serde(default)]
    names: Option<NamesConfig> = "names";
    /// Preset for circuits, mixes and cover.
    #[on = serde(default)]
    anonymity: Anonymity = "anonymity";
    /// Direct links with other hosts, past the routers.
    #[on = serde(default)]
    direct: DirectLinksConfig = "direct";
    /// Circuits to other hosts.
    #[on = serde(default)]
    circuits: CircuitsConfig = "circuits";
    /// The authority that decides who belongs to the network, in place of the hosts file.
    #[on = serde(default)]
    authority: Option<AuthorityConfig> = "authority";
    /// The registrar that renews this node's membership, if there is one.
    #[on = serde(default)]
    registrar: Option<Registrar> = "registrar";
    /// Workers, sockets and batches.
    #[on = serde(default)]
    data: WorkersConfig = "data";
    /// Counters.
    #[on = serde(default)]
    metrics: Metrics = "metrics";
    /// Messages for the operator.
    #[on = serde(default)]
    log: LogConfig = "log";
    /// Periods of the protocols.
    #[on = serde(default)]
    expert: Expert = "expert";
}

impl NodeConfig {
    /// Reads and checks `file`.
    pub fn load(file: &Path) -> Result<NodeConfig, ConfigError> {
        let text = read_text(file).map_err(|e| ConfigError::unreadable(file, &e))?;
        NodeConfig::parse(file, &text)
    }

    /// Checks `text` as the content of `file`, which need not exist.
    pub fn parse(file: &Path, text: &str) -> Result<NodeConfig, ConfigError> {
        let source = ConfigSource::new(file, text);
        let mut config: NodeConfig = toml::from_str(text).map_err(|e| source.syntax(&e))?;
        config.file = file.to_path_buf();
        config.check(&source)?;
        Ok(config.with_preset())
    }

    fn check(&self, source: &ConfigSource<'_>) -> Result<(), ConfigError> {
        self.check_ranges(source)?;
        for (i, link) in self.links.iter().enumerate() {
            link.check_values(source, i)?;
        }
        if let Some(interface) = &self.interface {
            interface.check_values(source)?;
        }
        if self.names.is_some() && self.interface.is_none() {
            let text = "names lead to virtual interfaces: add [interface], or remove [names]";
            return Err(source.wrong("names", None, "listen", text));
        }
        if let Some(authority) = &self.authority {
            authority.check_given(source)?;
        }
        if let Some(registrar) = &self.registrar {
            registrar.check_given(source)?;
        }
        self.check_node(source)?;
        self.direct.check_values(source)?;
        self.circuits.check_values(self, source)?;
        self.anonymity.check_values(self, source)?;
        self.check_shift(source)?;
        self.check_together(source)
    }

    fn check_node(&self, source: &ConfigSource<'_>) -> Result<(), ConfigError> {
        let bad = |key, expected: String| Err(source.wrong("node", None, key, expected));
        if !crate::membership::hosts::is_name(&self.node.name) {
            return bad("name", crate::membership::hosts::NAME_RULE.into());
        }
        let listen = self.node.listen.as_deref().unwrap_or_default();
        if self.node.listen.is_some() && !(1..=16).contains(&listen.len()) {
            return bad("listen", "expected 1 to 16 socket addresses".into());
        }
        for (i, at) in listen.iter().enumerate() {
            if at.0.0.port() != 0 && listen[..i].contains(at) {
                return bad("listen", format!("{at:?} is listed twice"));
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
    fn check_together(&self, source: &ConfigSource<'_>) -> Result<(), ConfigError> {
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
        let wrong = |section, key, text| Err(source.wrong(section, None, key, text));
        let NodeConfig { session, expert, .. } = self;
        if session.reject_after_s <= session.rekey_after_s {
            let text = format!("expected more than rekey_after_s ({})", session.rekey_after_s);
            return wrong("session", "reject_after_s", text);
        }
        let own = SuiteSupport::here();
        if session.means().suites.is_empty() {
            let fitting: Vec<_> = own.suites.iter().map(shoal_crypto::Suite::name).collect();
            let text = format!(
                "expected at least one suite that suits this processor ({}): {}",
                own.processor.name(),
                fitting.join(", ")
            );
            return wrong("session", "suites", text);
        }
        if expert.proof_refresh_s >= expert.proof_validity_s {
            let text = format!("expected less than proof_validity_s ({})", expert.proof_validity_s);
            return wrong("expert", "proof_refresh_s", text);
        }
        if expert.silence_ms <= expert.report_ms {
            let text = format!("expected more than report_ms ({})", expert.report_ms);
            return wrong("expert", "silence_ms", text);
        }
        Ok(())
    }

    /// This node's overlay address.
    pub fn address(&self) -> Address {
        *self.node.address
    }

    /// Addresses at which the configuration has the node listen; empty if its key chooses the port.
    pub fn listen(&self) -> Vec<std::net::SocketAddr> {
        self.node.listen.iter().flatten().map(|at| at.0.0).collect()
    }

    /// True if the node is a router (host number 0).
    pub fn is_router(&self) -> bool {
        self.address().is_router()
    }

    /// Resolves a path of the file: relative paths are relative to the file's folder.
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

    /// Path of the registrar's socket.
    pub fn registrar_socket(&self) -> PathBuf {
        self.control_socket().with_file_name(REGISTRAR_SOCKET)
    }

    /// This configuration with the values of `newer` where a reload applies them.
    pub fn reloaded(&self, newer: NodeConfig) -> NodeConfig {
        let NodeConfig { links, accept, metrics, log, shift, .. } = newer;
        let shift = match (self.shift.clone(), shift) {
            (Some(old), Some(new)) if old.comes_as(&new) => {
                let protect = if old.inside.is_some() { new.protect } else { Vec::new() };
                Some(ShiftConfig { prefix: new.prefix, protect, ..old })
            }
            // With another mode or other interfaces, the whole section waits for a restart.
            (old, _) => old,
        };
        NodeConfig { links, accept, metrics, log, shift, ..self.clone() }
    }

    /// Keys outside of links whose values differ in `newer`: first those that a reload applies,
    /// then those that need a restart. Each is written as `section.key`.
    pub fn changes(&self, newer: &NodeConfig) -> (Vec<String>, Vec<String>) {
        let changed = self.all_changes(newer);
        let comes = self.shift.as_ref().zip(newer.shift.as_ref());
        let comes_otherwise = comes.is_some_and(|(old, new)| !old.comes_as(new));
        let waits = |name: &str| match name {
            // Without `inside` machines can't be reached, and `inside` waits for a restart.
            "shift.protect" => comes_otherwise || self.inside().is_none(),
            "shift.prefix" => comes_otherwise,
            _ => false,
        };
        let applied =
            |change: &(String, ReloadEffect)| change.1 == ReloadEffect::Yes && !waits(&change.0);
        let (yes, no): (Vec<_>, Vec<_>) = changed.into_iter().partition(applied);
        (yes.into_iter().map(|c| c.0).collect(), no.into_iter().map(|c| c.0).collect())
    }
}

/// Settings that a reload applies: links and the list of hosts as a whole, else keys as
/// `section.key`.
pub fn reloadable() -> Vec<String> {
    let mut keys = vec!["[[link]]".to_string(), "the list of hosts".to_string()];
    for section in sections().into_iter().filter(|section| section.name != "[link]") {
        let named = section.keys.iter().filter(|key| key.reload == ReloadEffect::Yes);
        keys.extend(named.map(|key| format!("{}.{}", section.name, key.name)));
    }
    keys
}

/// The text of `shoal.example.toml`: every key with its meaning, its range, and whether a reload
/// applies it. Optional keys are commented out, with their default or an example.
pub fn reference() -> String {
    let mut text = String::from(
        "# shoal.example.toml: every key that a Shoal node knows.\n\
         #\n\
         # A key that is commented out is optional and shown with its default, or with\n\
         # an example if it has no default. All other keys must be given.\n\
         # \"reload: yes\": `shoal reload` (or SIGHUP) applies a changed value.\n\
         # \"reload: no\": a changed value waits for a restart. Unknown keys are errors.\n\
         # Relative paths are relative to the folder of this file.\n\
         # Check a file with: shoal check -c FILE\n",
    );
    for section in sections() {
        section.print(&mut text);
    }
    text
}

/// The page docs/reference/config.md: the same as [`reference()`], in Markdown.
pub fn reference_page() -> String {
    let mut text = String::from(
        "# Configuration\n\nEvery key of `node.toml`. \
         [shoal.example.toml](../../shoal.example.toml) \
         has the same as a file.\nUnknown keys are errors, and relative paths count from the \
         folder of the file.\nCheck a file with `shoal check -c FILE`.\n",
    );
    for section in sections() {
        section.page(&mut text);
    }
    text
}

#[cfg(test)]
mod tests;
