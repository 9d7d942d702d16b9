//! A node's configuration: `node.toml`.
//!
//! In: a file. Out: a [`Config`] whose every value is inside its range, or a [`ConfigError`] that
//! names file, line and key and says what was expected. `shoal.example.toml` is printed from the
//! same table as the structures ([`reference()`]), so that the two can't disagree.
//!
//! Invariant: reading a configuration changes nothing. Keys and lists of hosts are named by path
//! and read by [`crate::config::keys`] and [`crate::membership::hosts`].
//!
//! Text becomes types here and nowhere later; nothing here opens a socket or starts a thread.

mod anonymity;
mod circuits;
mod direct;
mod error;
mod hop;
pub mod keys;
mod links;
pub(crate) mod reach;
mod registrar;
mod section;
mod sections;
mod setup;
mod text;

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use shoal_crypto::Means;
use shoal_wire::Address;

use section::Table;

pub use crate::files::reading::read_text;
pub use anonymity::{Anonymity, LoopPolicy, Preset, WithoutCover};
pub use circuits::{CircuitPolicy, Circuits};
pub use direct::{Direct, DirectLevel, DirectMode};
pub use error::{ConfigError, Source};
pub use hop::{Hop, HopInterval, HopMode, HopPrefix, MeetingPlace, PROTECTED_MAX, Protected};
pub use links::{Accept, Links};
pub use registrar::Registrar;
pub use section::{Key, Reload, Section};
pub use sections::{
    Authority, Data, Egress, Expert, Interface, LinkPeer, Liveness, Log, LogLevel, Metrics, Names,
    Node, Routing, Session, Suite, Transfer,
};
pub(crate) use setup::is_of_rights;
pub(crate) use setup::misplaced;
pub(crate) use setup::unnamed;
pub use setup::{
    Experiment, Listen, NO_LINK, Newer, Setup, SetupError, files, overlay_of, reread, warnings,
};
pub use text::{
    EncryptWith, NAMES_AT, PeerEndpoint, Text, can_be_called, check_interface_name, spell_place,
};

/// Longest path of a Unix socket, in bytes.
const SOCKET_PATH_MAX: usize = 107;

/// The registrar's socket, in the folder of the control socket.
pub const REGISTRAR_SOCKET: &str = "registrar.sock";
/// Where the control socket is unless the configuration says otherwise.
pub const DEFAULT_CONTROL_SOCKET: &str = "/run/shoal/control.sock";

section::config! {
    /// Who this node is, and its files and sockets.
    node: Node = "node";
    /// Its neighbours.
    #[on = serde(default)]
    links: Vec<LinkPeer> = "link";
    /// Which neighbours need no `[[link]]`.
    #[on = serde(default)]
    accept: Links = "links";
    /// Addresses that hop, if any do.
    #[on = serde(default)]
    hop: Option<Hop> = "hop";
    /// What idle links do.
    #[on = serde(default)]
    liveness: Liveness = "liveness";
    /// Keys, rekeying, handshakes; links and host pairs alike.
    #[on = serde(default)]
    session: Session = "session";
    /// Costs of links, and what is believed of neighbours.
    #[on = serde(default)]
    routing: Routing = "routing";
    /// The queue between open and seal, one per link.
    #[on = serde(default)]
    egress: Egress = "egress";
    /// Files.
    #[on = serde(default)]
    transfer: Transfer = "transfer";
    /// The virtual interface, if there is to be one.
    #[on = serde(default)]
    interface: Option<Interface> = "interface";
    /// Names for programs, if there are to be any.
    #[on = serde(default)]
    names: Option<Names> = "names";
    /// What circuits, mixes and cover are to do together.
    #[on = serde(default)]
    anonymity: Anonymity = "anonymity";
    /// Links with other hosts past the routers.
    #[on = serde(default)]
    direct: Direct = "direct";
    /// Circuits to other hosts.
    #[on = serde(default)]
    circuits: Circuits = "circuits";
    /// Who says who belongs to the network, if not the hosts file.
    #[on = serde(default)]
    authority: Option<Authority> = "authority";
    /// Who makes this node's membership last, if somebody does.
    #[on = serde(default)]
    registrar: Option<Registrar> = "registrar";
    /// Sockets and batches.
    #[on = serde(default)]
    data: Data = "data";
    /// Counters.
    #[on = serde(default)]
    metrics: Metrics = "metrics";
    /// Messages for the operator.
    #[on = serde(default)]
    log: Log = "log";
    /// Periods of the protocols.
    #[on = serde(default)]
    expert: Expert = "expert";
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
        Ok(config.with_preset())
    }

    fn check(&self, source: &Source<'_>) -> Result<(), ConfigError> {
        self.check_ranges(source)?;
        for (i, link) in self.links.iter().enumerate() {
            link.check_values(source, i)?;
        }
        if let Some(interface) = &self.interface {
            interface.check_values(source)?;
        }
        if self.names.is_some() && self.interface.is_none() {
            let text = "names are those of [interface]s: this node has none";
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
        self.check_hop(source)?;
        self.check_together(source)
    }

    fn check_node(&self, source: &Source<'_>) -> Result<(), ConfigError> {
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
                return bad("listen", format!("{at:?} is there twice"));
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
        let wrong = |section, key, text| Err(source.wrong(section, None, key, text));
        let Config { session, expert, .. } = self;
        if session.reject_after_s <= session.rekey_after_s {
            let text = format!("expected more than rekey_after_s ({})", session.rekey_after_s);
            return wrong("session", "reject_after_s", text);
        }
        let own = Means::here();
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

    /// Where the configuration says that the node listens; nowhere when it leaves that to the key.
    pub fn listen(&self) -> Vec<std::net::SocketAddr> {
        self.node.listen.iter().flatten().map(|at| at.0.0).collect()
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

    /// Path of the registrar's socket.
    pub fn registrar_socket(&self) -> PathBuf {
        self.control_socket().with_file_name(REGISTRAR_SOCKET)
    }

    /// This configuration with the values of `newer` where a reload applies them.
    pub fn reloaded(&self, newer: Config) -> Config {
        let Config { links, accept, metrics, log, hop, .. } = newer;
        let hop = match (self.hop.clone(), hop) {
            (Some(old), Some(new)) if old.comes_as(&new) => {
                let protect = if old.inside.is_some() { new.protect } else { Vec::new() };
                Some(Hop { prefix: new.prefix, protect, ..old })
            }
            // Under another mode, or by other interfaces, all of it waits for a restart.
            (old, _) => old,
        };
        Config { links, accept, metrics, log, hop, ..self.clone() }
    }

    /// Keys outside of links whose values differ from `newer`, split into those that a reload
    /// applies and those that need a restart; each as `section.key`.
    pub fn changes(&self, newer: &Config) -> (Vec<String>, Vec<String>) {
        let changed = self.all_changes(newer);
        let comes = self.hop.as_ref().zip(newer.hop.as_ref());
        let comes_otherwise = comes.is_some_and(|(old, new)| !old.comes_as(new));
        let waits = |name: &str| match name {
            // Without an interface for them, which waits for a restart, machines can't be reached.
            "hop.protect" => comes_otherwise || self.inside().is_none(),
            "hop.prefix" => comes_otherwise,
            _ => false,
        };
        let applied = |change: &(String, Reload)| change.1 == Reload::Yes && !waits(&change.0);
        let (yes, no): (Vec<_>, Vec<_>) = changed.into_iter().partition(applied);
        (yes.into_iter().map(|c| c.0).collect(), no.into_iter().map(|c| c.0).collect())
    }
}

/// What a reload applies: links and the list of hosts as a whole, else keys as `section.key`.
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
