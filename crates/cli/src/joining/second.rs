//! The files of a registrar, and the registrar of a machine that joins by an invite for one.
//!
//! ```text
//! key staged --> router and registrar asked for --> registrar's files staged
//!            --> node's files settle --> registrar's files settle
//! ```
//!
//! A command that was interrupted before the last arrow is finished by the next `shoal up`.

use std::net::SocketAddr;
use std::path::PathBuf;

use anyhow::{Context, Result};
use shoal_crypto::{Identity, NetworkSecret};
use shoal_daemon::config::{REGISTRAR_SOCKET, keys};
use shoal_directory::DoorEndpoint;
use shoal_joining::{DoorSecret, JoinGoal, NewMembership, RouterRequest};

use super::endpoint::OwnEndpoint;
use super::files::{RegistrarToml, Staging, WAITING, make_folder, write};
use super::place::ServiceFolders;
use super::ports::{self, listen_at};
use super::start::unit_group;
use crate::failure::{self, ExitError};
use crate::keys::random;

const KEY: &str = "registrar.key";
/// File that is staged last.
const TOML: &str = "registrar.toml";
/// Longest DNS name of a registrar in bytes: the request must fit in one frame.
const NAME_MAX: usize = 160;

/// Socket through which a registrar beside this node hands it what it signs.
pub fn node_socket(node: &ServiceFolders) -> PathBuf {
    match unit_group(node) {
        Some(_) => node.socket.with_file_name(REGISTRAR_SOCKET),
        None => node.socket.clone(),
    }
}

/// Content of a registrar's files besides its configuration.
pub struct RegistrarContent<'a> {
    pub key: &'a Identity,
    /// The network's secret.
    pub secret: &'a NetworkSecret,
    /// The authority's list, encoded.
    pub list: &'a [u8],
}

/// Stages a registrar's files, with a new secret for its door. Returns their names, the last one
/// being that of the configuration.
pub fn stage(
    place: &ServiceFolders,
    staging: &Staging,
    content: &RegistrarContent<'_>,
    toml: &RegistrarToml<'_>,
) -> Result<Vec<&'static str>> {
    let door = DoorSecret::new(*random()?.first_chunk().context("32 bytes have 16")?);
    staging.write(KEY, keys::identity_text(content.key).as_bytes())?;
    staging.write("door.key", keys::door_text(&door).as_bytes())?;
    staging.write("network.key", keys::network_secret_text(content.secret).as_bytes())?;
    let mut names = vec![KEY, "door.key", "network.key"];
    match &place.state {
        Some(state) => {
            make_folder(state)?;
            write(&state.join("network.list"), content.list)?;
        }
        None => {
            staging.write("network.list", content.list)?;
            names.push("network.list");
        }
    }
    staging.write(TOML, toml.text().as_bytes())?;
    names.push(TOML);
    Ok(names)
}

/// A registrar on a machine that joins.
pub struct SecondRegistrar {
    place: ServiceFolders,
    staging: Staging,
    key: Identity,
    at: SocketAddr,
    door: DoorEndpoint,
}

impl SecondRegistrar {
    /// True if an interrupted command has asked for a registrar here.
    pub fn is_begun(node: &ServiceFolders) -> bool {
        node.registrar().dir.join(WAITING).join(KEY).exists()
    }

    /// Makes the registrar's key, or finds that of an interrupted command. The registrar is called
    /// at the address or name of the router, with a port of its own.
    pub fn new(node: &ServiceFolders, own: &OwnEndpoint, router: SocketAddr) -> Result<Self> {
        let place = node.registrar();
        let staging = Staging::of(&place)?;
        let (key, at) = match staging.found(KEY) {
            Some(file) => {
                let key = keys::load_identity(&file);
                let key = key.map_err(|e| ExitError::of(failure::CONFIG, e.to_string()))?;
                let at = SocketAddr::new(router.ip(), keys::own_port(&key));
                (key, at)
            }
            None => {
                let (key, at) = ports::key_for(router.ip(), None, Some(router.port()))?;
                staging.write(KEY, keys::identity_text(&key).as_bytes())?;
                (key, at)
            }
        };
        let door = own.door(at.port());
        if door.place().is_some_and(|(name, _)| name.len() > NAME_MAX) {
            let text = format!("--endpoint: a registrar's name has at most {NAME_MAX} bytes");
            return Err(ExitError::of(failure::USAGE, text));
        }
        Ok(SecondRegistrar { place, staging, key, at, door })
    }

    /// The request for the router and this registrar.
    pub fn goal(&self, router: RouterRequest) -> JoinGoal {
        JoinGoal::Registrar(router, self.key.clone(), self.door.clone())
    }

    /// Endpoint at which newcomers call it.
    pub fn door(&self) -> &DoorEndpoint {
        &self.door
    }

    /// Stages the registrar's files. They are settled by [`finish`], once the node's files are
    /// there.
    pub fn stage(
        &self,
        node: &ServiceFolders,
        joined: &NewMembership,
        max_staleness_s: u64,
    ) -> Result<()> {
        let socket = node_socket(node);
        let toml = RegistrarToml {
            authority: joined.authority.to_string(),
            list_file: self.place.state_file("network.list"),
            ledger_file: self.place.state_file("ledger"),
            listen: listen_at(self.at),
            endpoint: Some(&self.door),
            max_staleness_s,
            node_socket: &socket,
            socket: self.place.socket_named(),
            authority_folder: None,
        };
        let secret = NetworkSecret(*joined.secret.expose());
        let content = RegistrarContent { key: &self.key, secret: &secret, list: &joined.list };
        stage(&self.place, &self.staging, &content, &toml).map(drop)
    }
}

/// Moves staged files of a registrar beside this node to their places, if all are there.
pub fn finish(node: &ServiceFolders) -> Result<()> {
    let place = node.registrar();
    let waiting = place.dir.join(WAITING);
    if !waiting.join(TOML).exists() {
        return Ok(());
    }
    let names = [KEY, "door.key", "network.key", "network.list", TOML];
    let staged = names.into_iter().filter(|name| waiting.join(name).exists()).collect::<Vec<_>>();
    Staging::of(&place)?.settle(&staged)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn files_that_were_staged_are_settled_later() {
        let folder = tempfile::tempdir().unwrap();
        let node = ServiceFolders::of_node(Some(folder.path())).unwrap();
        let (own, router) = ("127.0.0.1".parse().unwrap(), "127.0.0.1:7400".parse().unwrap());
        assert!(!SecondRegistrar::is_begun(&node));
        let first = SecondRegistrar::new(&node, &own, router).unwrap();
        let key = first.key.public();
        drop(first);
        assert!(SecondRegistrar::is_begun(&node));
        let again = SecondRegistrar::new(&node, &own, router).unwrap();
        assert_eq!(again.key.public(), key, "a repeated command has the same key");
        assert_ne!(again.door().port(), 7_400);
        let toml = RegistrarToml {
            authority: shoal_crypto::SigningKey::from_seed([1; 32]).public().to_string(),
            list_file: "network.list".into(),
            ledger_file: "ledger".into(),
            listen: listen_at(again.at),
            endpoint: Some(&again.door),
            max_staleness_s: 9,
            node_socket: &node.socket,
            socket: "control.sock".into(),
            authority_folder: None,
        };
        let secret = NetworkSecret([2; 32]);
        let content = RegistrarContent { key: &again.key, secret: &secret, list: b"list" };
        stage(&again.place, &again.staging, &content, &toml).unwrap();
        drop(again);
        let file = node.registrar().registrar_toml();
        assert!(!file.exists());
        finish(&node).unwrap();
        finish(&node).unwrap();
        assert!(shoal_registrar::RegistrarConfig::load(&file).is_ok());
        assert!(!SecondRegistrar::is_begun(&node));
    }
}
