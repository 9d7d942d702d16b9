//! The section `[direct]`: links between hosts, past the routers.

use std::net::{IpAddr, Ipv4Addr, SocketAddr};

use serde::Deserialize;
use shoal_wire::{DirectMessage, Level};

use super::error::{ConfigError, ConfigSource};
use super::section::{ReferenceValue, section};
use super::text::{CallableEndpoint, EncryptWith, ParsedText};

/// Most entries of `encrypt_with`.
const ENCRYPT_WITH_MAX: usize = 1_024;

/// Policy for making direct links with other hosts.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum DirectMode {
    /// Never.
    #[default]
    Off,
    /// As `OnDemand` while nothing else in the file or the list hides this host, else never.
    Auto,
    /// Only while there is traffic.
    OnDemand,
    /// Always.
    Proactive,
}

impl DirectMode {
    /// The mode as it stands in the file.
    pub const fn as_str(self) -> &'static str {
        match self {
            DirectMode::Off => "off",
            DirectMode::Auto => "auto",
            DirectMode::OnDemand => "on-demand",
            DirectMode::Proactive => "proactive",
        }
    }
}

impl ReferenceValue for DirectMode {
    fn shown(&self) -> String {
        format!("{:?}", self.as_str())
    }
}

/// Protection of cells on a direct link.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum DirectLevel {
    /// Encrypted and authenticated.
    #[default]
    Encrypt,
    /// Authenticated only: whoever sees the cells can read them.
    Authenticate,
    /// Neither encrypted nor authenticated.
    None,
}

impl From<DirectLevel> for Level {
    fn from(level: DirectLevel) -> Level {
        match level {
            DirectLevel::Encrypt => Level::Encrypt,
            DirectLevel::Authenticate => Level::Authenticate,
            DirectLevel::None => Level::None,
        }
    }
}

impl ReferenceValue for DirectLevel {
    fn shown(&self) -> String {
        format!("{:?}", Level::from(*self).name())
    }
}

/// Most STUN servers. Two answers tell whether a translator maps alike for everybody (RFC 4787).
const STUN_MAX: usize = 2;
/// An address for documentation (RFC 5737).
const EXAMPLE: ParsedText<CallableEndpoint> = ParsedText(CallableEndpoint(SocketAddr::new(
    IpAddr::V4(Ipv4Addr::new(203, 0, 113, 7)),
    23_871,
)));

section! {
    /// Direct links between this host and others, past the routers (docs/guide/direct.md). An
    /// observer of such a link sees that the two hosts communicate. A link exists only if the files
    /// of both ends ask for it. Routers have none, whatever this section says.
    #[on = serde(default)]
    pub struct DirectLinksConfig {
        /// "off", "on-demand" (made when traffic begins, ended when it stops), "proactive" (with
        /// every host that agrees, as long as this node runs) or "auto" ("on-demand" while the
        /// preset in force is "fast" and this host has no tier of cover and no `[shift]`, else
        /// "off"). Hosts with direct links learn each other's IP addresses, and observers see who
        /// speaks with whom.
        mode: DirectMode = DirectMode::Off, reload no;
        /// Address at which other hosts may call this one, IP:PORT. When absent, the list's
        /// endpoint of this host is used. Without either, this host tells its peers at which
        /// address routers see it, and both search for a path (docs/guide/direct.md).
        endpoint: Option<ParsedText<CallableEndpoint>>, optional EXAMPLE, reload no;
        /// Seconds without traffic after which a link ends.
        idle_s: u64 = 300, in 1 ..= 86_400, reload no;
        /// Most direct links at once.
        max_links: u32 = 64, in 1 ..= 4_096, reload no;
        /// Security groups of this host, at most 13 names, in addition to its groups in the list.
        /// Traffic with a host that shares a group is always encrypted.
        security_groups: Vec<String> = Vec::new(), reload no;
        /// Least protection on direct links with hosts that share no security group: "encrypt",
        /// "authenticate" (observers can read) or "none" (observers can also change). The stronger
        /// setting of both ends counts.
        level: DirectLevel = DirectLevel::Encrypt, reload no;
        /// Hosts with which everything is encrypted, whatever `level` says: at most 1,024 names,
        /// addresses or prefixes. Prefixes are those of virtual interfaces or of networks behind
        /// hosts. Security groups have the same effect, and need no change when addresses change.
        encrypt_with: Vec<ParsedText<EncryptWith>> = Vec::new(), reload no;
        /// Public STUN servers, IP:PORT, at most two. The node asks them, and other routers of the
        /// network, at which address they see this host. Servers and observers learn its address,
        /// and that a program here asks (docs/guide/direct.md).
        stun: Vec<String> = Vec::new(), reload no;
        /// Ask the gateway of the default route (PCP, else NAT-PMP) to keep this node's port open
        /// in its address translation. Observers up to the gateway see that a program here asks
        /// (docs/guide/direct.md).
        #[on = serde(default)]
        map_ports: bool = false, reload no;
    }
}

impl Default for DirectLinksConfig {
    fn default() -> DirectLinksConfig {
        DirectLinksConfig {
            mode: DirectMode::Off,
            endpoint: None,
            idle_s: 300,
            max_links: 64,
            security_groups: Vec::new(),
            level: DirectLevel::Encrypt,
            encrypt_with: Vec::new(),
            stun: Vec::new(),
            map_ports: false,
        }
    }
}

impl DirectLinksConfig {
    /// Address at which other hosts may call this one, if the file has it.
    pub fn endpoint(&self) -> Option<SocketAddr> {
        self.endpoint.map(|at| at.0.0)
    }

    /// Servers that this host asks for its public address.
    pub fn stun(&self) -> Vec<SocketAddr> {
        self.stun.iter().filter_map(|text| text.parse().ok()).collect()
    }

    fn check_stun(&self) -> Result<(), String> {
        let usable = |text: &String| text.parse().is_ok_and(super::text::can_be_called);
        if self.stun.len() > STUN_MAX {
            return Err(format!("expected at most {STUN_MAX} servers"));
        }
        if let Some(text) = self.stun.iter().find(|text| !usable(text)) {
            return Err(format!("{text:?}: expected IP:PORT, such as 198.51.100.1:3478"));
        }
        Ok(())
    }

    pub(super) fn check_values(&self, source: &ConfigSource<'_>) -> Result<(), ConfigError> {
        let wrong = |key, text: String| Err(source.wrong("direct", None, key, text));
        if self.encrypt_with.len() > ENCRYPT_WITH_MAX {
            return wrong("encrypt_with", format!("expected at most {ENCRYPT_WITH_MAX} entries"));
        }
        self.check_stun().or_else(|text| wrong("stun", text))?;
        let max = DirectMessage::GROUPS_MAX;
        if self.security_groups.len() > max {
            return wrong("security_groups", format!("expected at most {max} names"));
        }
        match self.security_groups.iter().find(|name| !crate::membership::hosts::is_name(name)) {
            Some(name) => wrong(
                "security_groups",
                format!("{name:?}: {}", crate::membership::hosts::NAME_RULE),
            ),
            None => Ok(()),
        }
    }
}
