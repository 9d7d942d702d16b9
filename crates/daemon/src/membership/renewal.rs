//! Renews this node's membership before it ends.
//!
//! Once an hour a thread asks the node when its membership ends. If little time is left, it asks
//! the registrar for a longer one. The registrar's supplement then reaches the node as any other
//! does.

use std::time::Duration;

use shoal_crypto::{Identity, PublicKey};
use shoal_directory::DoorEndpoint;
use shoal_joining::{Contact, JoinEvent, JoinGoal, Refusal};

use crate::config::{NodeConfig, keys};
use crate::control::api::{Command, ControlReply, MandateStatus};
use crate::control::socket::ControlConnection;
use crate::membership::{asking, door};
use crate::worker::clock::unix_ms;

/// Time from the start to the first check: links must be up.
const FIRST: Duration = Duration::from_secs(60);
/// Time between two checks. A registrar may be away for days: a third of the membership is left
/// when renewal begins.
const EVERY: Duration = Duration::from_secs(3_600);
const DAY_S: u64 = 86_400;

/// The registrar in a node's file.
///
/// # Errors
///
/// The file has no registrar, or the registrar's door file can't be used. The text is for the
/// operator.
pub fn contact(config: &NodeConfig, user: Option<u32>) -> Result<Contact, String> {
    let none = "this node has no [registrar]: the authority made it a member. It can change that \
                with `shoal authority sign --dir DIR NAME`, and end it with `shoal authority \
                revoke --dir DIR NAME`";
    let section = config.registrar.as_ref().ok_or(none)?;
    let authority = config.authority.as_ref().ok_or(none)?;
    let (key, registrar) = authority.key.zip(section.key).ok_or(none)?;
    let door = section.door_file.as_ref().ok_or(none)?;
    let door = keys::load_door(&config.path(door), user).map_err(|e| e.to_string())?;
    Ok(Contact {
        authority: key.0,
        registrar: registrar.0,
        door,
        token: None,
        endpoints: section.endpoints(),
        staleness_max: Duration::from_secs(authority.max_staleness_s),
    })
}

/// As [`contact`], with the newest endpoints that the registrar signed before those of the
/// configuration. The running node knows them, or else its files do.
///
/// # Errors
///
/// As of [`contact`].
pub fn newest_contact(config: &NodeConfig, user: Option<u32>) -> Result<Contact, String> {
    let contact = contact(config, user)?;
    let signed = match told(config, &contact.registrar) {
        none if none.is_empty() => door::signed(config, user, &contact.registrar),
        told => told,
    };
    Ok(Contact { endpoints: door::newest_first(signed, &contact.endpoints), ..contact })
}

/// Endpoints that this registrar signed, as the running node knows them.
fn told(config: &NodeConfig, registrar: &PublicKey) -> Vec<DoorEndpoint> {
    let node = ControlConnection::connect(&config.control_socket());
    match node.ok().and_then(|mut node| node.call(Command::Directory, &[]).ok()) {
        Some(ControlReply::Directory(has)) => signed(&has.mandates, registrar),
        _ => Vec::new(),
    }
}

/// Endpoints that this registrar signed, in the state of a node.
fn signed(mandates: &[MandateStatus], registrar: &PublicKey) -> Vec<DoorEndpoint> {
    let key = registrar.to_string();
    let own = mandates.iter().filter(|mandate| mandate.key == key);
    own.flat_map(|mandate| &mandate.endpoints).filter_map(|text| text.parse().ok()).collect()
}

/// Starts the thread. It ends with the node.
///
/// # Errors
///
/// The thread can't be started.
pub(crate) fn start(
    node: ControlConnection,
    identity: Identity,
    contact: Contact,
    renew_days: u32,
) -> std::io::Result<()> {
    let before_s = u64::from(renew_days) * DAY_S;
    let body = move || {
        let (mut node, mut wait, mut said) = (node, FIRST, false);
        loop {
            std::thread::sleep(wait);
            wait = EVERY;
            // The node has stopped, or is about to.
            let Ok(ControlReply::Status(status)) = node.call(Command::Status, &[]) else { return };
            let Some(authority) = status.authority else { continue };
            if !is_due(authority.member_until_unix_s, unix_ms() / 1_000, before_s) {
                continue;
            }
            if authority.by_registrar {
                let signed = signed(&authority.mandates, &contact.registrar);
                let endpoints = door::newest_first(signed, &contact.endpoints);
                renew(&identity, Contact { endpoints, ..contact.clone() });
            } else if !std::mem::replace(&mut said, true) {
                // A registrar's supplement about the authority's own member has no effect.
                tracing::warn!("{}", Refusal::Adopted);
            }
        }
    };
    std::thread::Builder::new().name("shoal-renew".into()).spawn(body).map(drop)
}

/// True if a membership with this end must be renewed. An ended one can't be renewed: its node
/// needs a new invite.
fn is_due(ends_unix_s: u64, unix_s: u64, before_s: u64) -> bool {
    ends_unix_s > unix_s && ends_unix_s - unix_s <= before_s
}

fn renew(identity: &Identity, contact: Contact) {
    let end = asking::ask(identity.clone(), contact, JoinGoal::Renew, &mut |_| true);
    match end {
        Ok(JoinEvent::Joined(_)) => tracing::info!("the membership was renewed"),
        Ok(JoinEvent::Refused(why)) => tracing::warn!("the membership is not renewed: {why}"),
        Ok(JoinEvent::Failed(why)) => tracing::warn!("the membership is not renewed yet: {why}"),
        Ok(_) => tracing::warn!("the membership is not renewed: the registrar sent a wrong answer"),
        Err(error) => tracing::warn!("the membership is not renewed yet: {error}"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_membership_is_renewed_near_its_end_and_not_after_it() {
        let month = 30 * DAY_S;
        assert!(!is_due(1_000 + month + 1, 1_000, month));
        assert!(is_due(1_000 + month, 1_000, month) && is_due(1_001, 1_000, month));
        assert!(!is_due(1_000, 1_000, month) && !is_due(0, 1_000, month));
    }
}
