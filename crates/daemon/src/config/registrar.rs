//! The section of the registrar: who made this node a member, and makes its membership last.

use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::path::PathBuf;

use shoal_crypto::PublicKey;
use shoal_joining::ENDPOINTS_MAX;

use super::error::{ConfigError, Source};
use super::section::section;
use super::text::{CallAt, Text};

/// An address for documentation (RFC 5737).
const EXAMPLE: Text<CallAt> =
    Text(CallAt(SocketAddr::new(IpAddr::V4(Ipv4Addr::new(192, 0, 2, 1)), 23_872)));

section! {
    /// The registrar that made this node a member (docs/joining.md); `shoal up` writes this. The
    /// node has its membership renewed there near its end. Without this section it asks nobody.
    pub struct Registrar {
        /// The registrar's public key. Must be given.
        key: Option<Text<PublicKey>>,
            optional Text(PublicKey::from_bytes(&[0; PublicKey::LEN])), reload no;
        /// The secret that its door is sealed with. Must be given, and readable by its owner only.
        door_file: Option<PathBuf>, optional "door.key".into(), reload no;
        /// Where it listens, one to three IP:PORT, best first. Must be given.
        #[on = serde(default)]
        endpoints: Vec<Text<CallAt>> = vec![EXAMPLE], reload no;
        /// Days before its end at which the membership is renewed.
        #[on = serde(default = "renew_days")]
        renew_days: u32 = renew_days(), in 1 ..= 3_650, reload no;
    }
}

const fn renew_days() -> u32 {
    30
}

impl Registrar {
    pub(super) fn check_given(&self, source: &Source<'_>) -> Result<(), ConfigError> {
        let wrong = |key, text: &str| Err(source.wrong("registrar", None, key, text));
        if self.key.is_none() {
            return wrong("key", "must be given");
        }
        if self.door_file.is_none() {
            return wrong("door_file", "must be given");
        }
        if !(1..=ENDPOINTS_MAX).contains(&self.endpoints.len()) {
            return wrong("endpoints", "expected one to three endpoints");
        }
        Ok(())
    }

    /// Where it listens.
    pub fn endpoints(&self) -> Vec<SocketAddr> {
        self.endpoints.iter().map(|at| at.0.0).collect()
    }
}
