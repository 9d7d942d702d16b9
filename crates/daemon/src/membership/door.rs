//! Endpoints of registrars, as the registrars' chains state them.

use std::time::Duration;

use shoal_crypto::PublicKey;
use shoal_directory::{Directory, DoorEndpoint};
use shoal_wire::Time;

use crate::config::NodeConfig;
use crate::membership::authority::{StartupList, unix_s};
use crate::membership::chains::Supplements;

/// Endpoints of a registrar by this node's files, best first. Empty if the files say none or can't
/// be read: then the endpoints of the configuration are left.
pub fn signed(config: &NodeConfig, user: Option<u32>, registrar: &PublicKey) -> Vec<DoorEndpoint> {
    let Some(Ok(reading)) = StartupList::load(config, user) else { return Vec::new() };
    // A list that is too old for rights still says where to fetch a newer one.
    let (mut directory, at) = (Directory::new(Duration::MAX), (Time::ZERO, unix_s()));
    if directory.accept(at.0, at.1, reading.list).is_err() {
        return Vec::new();
    }
    let steps = (reading.steps, reading.steps_fault);
    let _applied = Supplements::load(&mut directory, at, steps, false);
    directory.door_of(registrar)
}

/// The signed endpoints, and behind them those of the file that are not among them.
pub fn newest_first(signed: Vec<DoorEndpoint>, file: &[DoorEndpoint]) -> Vec<DoorEndpoint> {
    let mut all = signed;
    for at in file {
        if !all.contains(at) {
            all.push(at.clone());
        }
    }
    all
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn signed_endpoints_come_first_and_none_twice() {
        let all = |texts: &[&str]| -> Vec<DoorEndpoint> {
            texts.iter().map(|text| text.parse().unwrap()).collect()
        };
        let file = all(&["192.0.2.1:7401", "my.example.org:7401"]);
        assert_eq!(newest_first(Vec::new(), &file), file);
        let signed = all(&["192.0.2.2:7401", "my.example.org:7401"]);
        let want = all(&["192.0.2.2:7401", "my.example.org:7401", "192.0.2.1:7401"]);
        assert_eq!(newest_first(signed, &file), want);
    }
}
