//! Has this node's membership renewed before it ends.
//!
//! A thread asks the node now and then when its membership ends, and the registrar for a longer one
//! once little of it is left. What the registrar signs comes to the node as all supplements do.

use std::time::Duration;

use shoal_crypto::Identity;
use shoal_joining::{Contact, Event, Goal, Refusal};

use crate::config::{Config, keys};
use crate::control::api::{Command, Reply};
use crate::control::socket::Connection;
use crate::membership::asking;
use crate::worker::clock::unix_ms;

/// From the start to the first look, so that links are up.
const FIRST: Duration = Duration::from_secs(60);
/// Between two looks. A registrar that is away for days is no fault: a third of the time is left.
const EVERY: Duration = Duration::from_secs(3_600);
const DAY_S: u64 = 86_400;

/// The registrar of a node's file.
///
/// # Errors
///
/// There is none, or its file can't be used; in words for the operator.
pub fn contact(config: &Config, user: Option<u32>) -> Result<Contact, String> {
    let none = "this node has no [registrar]: the authority made it a member, and can change or \
                end that with `shoal authority`";
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

/// Starts the thread, which ends with the node.
///
/// # Errors
///
/// There is no thread.
pub(crate) fn start(
    node: Connection,
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
            let Ok(Reply::Status(status)) = node.call(Command::Status, &[]) else { return };
            let Some(authority) = status.authority else { continue };
            if !is_due(authority.member_until_unix_s, unix_ms() / 1_000, before_s) {
                continue;
            }
            if authority.by_registrar {
                renew(&identity, &contact);
            } else if !std::mem::replace(&mut said, true) {
                // What a registrar signs of the authority's own member counts nowhere.
                tracing::warn!("{}", Refusal::Adopted);
            }
        }
    };
    std::thread::Builder::new().name("shoal-renew".into()).spawn(body).map(drop)
}

/// Whether a membership that ends then is to be renewed now. One that is over can't be: its node
/// gets a new one by an invite.
fn is_due(ends_unix_s: u64, unix_s: u64, before_s: u64) -> bool {
    ends_unix_s > unix_s && ends_unix_s - unix_s <= before_s
}

fn renew(identity: &Identity, contact: &Contact) {
    let end = asking::ask(identity.clone(), contact.clone(), Goal::Renew, &mut |_| true);
    match end {
        Ok(Event::Joined(_)) => tracing::info!("the membership was renewed"),
        Ok(Event::Refused(why)) => tracing::warn!("the membership is not renewed: {why}"),
        Ok(Event::Failed(why)) => tracing::warn!("the membership is not renewed yet: {why}"),
        Ok(_) => tracing::warn!("the membership is not renewed: the registrar said something else"),
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
