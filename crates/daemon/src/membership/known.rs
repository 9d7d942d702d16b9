//! The file that stores secrets of a network while they change (docs/design/membership.md).

use std::path::Path;

use shoal_crypto::NetworkSecret;
use shoal_directory::SECRETS_KEPT_MAX;
use zeroize::Zeroizing;

use crate::config::keys;
use crate::membership::seen;

/// The content of a file with these secrets.
pub fn text<'a>(secrets: impl IntoIterator<Item = &'a NetworkSecret>) -> Zeroizing<String> {
    let lines: Vec<_> = secrets.into_iter().map(keys::network_secret_text).collect();
    Zeroizing::new(lines.iter().map(|line| line.as_str()).collect())
}

/// The secrets that a node or a registrar stored in this file, and the reason if they can't be
/// read.
pub fn read_kept(file: &Path, user: Option<u32>) -> (Vec<NetworkSecret>, Option<String>) {
    if !file.exists() {
        return (Vec::new(), None);
    }
    match keys::load_network_secrets(file, user) {
        Ok(mut known) => {
            known.truncate(SECRETS_KEPT_MAX);
            (known, None)
        }
        Err(e) => {
            let lost = "secrets from neighbours are missing until one of them sends them again";
            (Vec::new(), Some(format!("{e}: {lost}")))
        }
    }
}

/// Replaces the content of this file by `text`.
///
/// Errors: the failure, without advice.
pub fn write_kept(file: &Path, text: &str) -> Result<(), String> {
    let kept = seen::replace(file, text.as_bytes());
    kept.map_err(|e| {
        let lost = "the network's secret from a neighbour is gone after a restart";
        format!("{}: can't be written ({e}): {lost}", file.display())
    })
}
