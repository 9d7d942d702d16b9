//! The section of direct links.

use std::net::{IpAddr, Ipv4Addr, SocketAddr};

use serde::Deserialize;
use shoal_wire::{DirectMessage, Level};

use super::error::{ConfigError, Source};
use super::section::{Shown, section};
use super::text::{CallAt, EncryptWith, Text};

/// Entries of `encrypt_with` at most.
const ENCRYPT_WITH_MAX: usize = 1_024;

/// When this host makes direct links with other hosts.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum DirectMode {
    /// Never.
    #[default]
    Off,
    /// While there is traffic.
    OnDemand,
    /// Always.
    Proactive,
}

impl DirectMode {
    /// The mode as it stands in the file.
    pub const fn as_str(self) -> &'static str {
        match self {
            DirectMode::Off => "off",
            DirectMode::OnDemand => "on-demand",
            DirectMode::Proactive => "proactive",
        }
    }
}

impl Shown for DirectMode {
    fn shown(&self) -> String {
        format!("{:?}", self.as_str())
    }
}

/// How well cells of a direct link are protected.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum DirectLevel {
    /// Encrypted and authenticated.
    #[default]
    Encrypt,
    /// Authenticated only: whoever sees the cells can read them.
    Authenticate,
    /// Neither.
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

impl Shown for DirectLevel {
    fn shown(&self) -> String {
        format!("{:?}", Level::from(*self).name())
    }
}

/// STUN servers: two views tell what a translator does.
const STUN_MAX: usize = 2;
/// An address for documentation (RFC 5737).
const EXAMPLE: Text<CallAt> =
    Text(CallAt(SocketAddr::new(IpAddr::V4(Ipv4Addr::new(203, 0, 113, 7)), 23_871)));

section! {
    /// Links of this host with other hosts, past the routers (docs/ip.md). Who watches the wire
    /// sees by them that the two speak with each other: there is one only where both ends' files
    /// ask for it. A router has none, whatever stands here.
    #[on = serde(default)]
    pub struct Direct {
        /// "off", "on-demand" (made when there is traffic, ended when there is none) or
        /// "proactive" (with every host that agrees, as long as this node runs).
        mode: DirectMode = DirectMode::Off, reload no;
        /// Where other hosts may call this one, IP:PORT. When absent, where the list of hosts
        /// says; when it says nothing, this host tells those that want a link where routers see
        /// it, and both look for a way (docs/ip.md).
        endpoint: Option<Text<CallAt>>, optional EXAMPLE, reload no;
        /// A link without traffic for so long ends.
        idle_s: u64 = 300, in 1 ..= 86_400, reload no;
        /// Links at once.
        max_links: u32 = 64, in 1 ..= 4_096, reload no;
        /// Security groups of this host, at most 13 names, beside those that the list gives it.
        /// With a host of a common group everything is encrypted.
        security_groups: Vec<String> = Vec::new(), reload no;
        /// The least protection of what this host and another without a common group say to each
        /// other over a direct link: "encrypt", "authenticate" (others can read it) or "none"
        /// (others can change it, too). The stronger of both ends' holds.
        level: DirectLevel = DirectLevel::Encrypt, reload no;
        /// Hosts with which everything is encrypted, whatever `level` says: names, addresses on
        /// virtual interfaces, or prefixes of such and of networks behind hosts; at most 1,024.
        /// Security groups do the same and need no change when addresses do.
        encrypt_with: Vec<Text<EncryptWith>> = Vec::new(), reload no;
        /// Public STUN servers, IP:PORT, at most two, that are asked where they see this host,
        /// beside other routers of the network. They, and who watches, learn its address, and
        /// that it runs something that asks (docs/ip.md).
        stun: Vec<String> = Vec::new(), reload no;
        /// Ask the translator of addresses on the way out, the gateway of the default route, to
        /// keep this node's port open: PCP, else NAT-PMP. Who is on the wire up to it sees that
        /// something here asks (docs/joining.md).
        #[on = serde(default)]
        map_ports: bool = false, reload no;
    }
}

impl Default for Direct {
    fn default() -> Direct {
        Direct {
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

impl Direct {
    /// Where other hosts may call this one, if the file says so.
    pub fn endpoint(&self) -> Option<SocketAddr> {
        self.endpoint.map(|at| at.0.0)
    }

    /// Servers that are asked where they see this host.
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

    pub(super) fn check_values(&self, source: &Source<'_>) -> Result<(), ConfigError> {
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
