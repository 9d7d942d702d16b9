//! The section `[registrar]`: who made this node a member and renews its membership.

use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::path::PathBuf;

use shoal_crypto::PublicKey;
use shoal_directory::{DOOR_ENDPOINTS_MAX, DoorEndpoint};

use super::error::{ConfigError, ConfigSource};
use super::section::section;
use super::text::ParsedText;

/// An address for documentation (RFC 5737).
const EXAMPLE: ParsedText<DoorEndpoint> =
    ParsedText(DoorEndpoint::At(SocketAddr::new(IpAddr::V4(Ipv4Addr::new(192, 0, 2, 1)), 23_872)));

section! {
    /// The registrar that made this node a member (docs/guide/members.md); `shoal up` writes this
    /// section. The node renews its membership there before it ends. Without this section, it asks
    /// nobody.
    pub struct Registrar {
        /// The registrar's public key. Must be given.
        key: Option<ParsedText<PublicKey>>,
            optional ParsedText(PublicKey::from_bytes(&[0; PublicKey::LEN])), reload no;
        /// File with the secret of the registrar's door. Must be given, and readable by its owner
        /// only.
        door_file: Option<PathBuf>, optional "door.key".into(), reload no;
        /// Endpoints at which the registrar is called: one to three IP:PORT or NAME:PORT, best
        /// first. Newer ones that the registrar signed are called, too. Must be given.
        #[on = serde(default)]
        endpoints: Vec<ParsedText<DoorEndpoint>> = vec![EXAMPLE], reload no;
        /// Days before the end of the membership at which the node renews it.
        #[on = serde(default = "renew_days")]
        renew_days: u32 = renew_days(), in 1 ..= 3_650, reload no;
    }
}

const fn renew_days() -> u32 {
    30
}

impl Registrar {
    pub(super) fn check_given(&self, source: &ConfigSource<'_>) -> Result<(), ConfigError> {
        let wrong = |key, text: &str| Err(source.wrong("registrar", None, key, text));
        if self.key.is_none() {
            return wrong("key", "must be given");
        }
        if self.door_file.is_none() {
            return wrong("door_file", "must be given");
        }
        if !(1..=DOOR_ENDPOINTS_MAX).contains(&self.endpoints.len()) {
            return wrong("endpoints", "expected one to three endpoints");
        }
        Ok(())
    }

    /// Endpoints at which the registrar is called.
    pub fn endpoints(&self) -> Vec<DoorEndpoint> {
        self.endpoints.iter().map(|at| at.0.clone()).collect()
    }
}
