//! `shoal network fetch`: fetches from the registrar what a member missed while it was away.
//!
//! Neighbours pass lists and secrets on, but only to nodes that know a secret in force. The
//! registrar's door does not depend on the network's secret, and accepts this machine's key.

use std::path::PathBuf;

use anyhow::{Context, Result};
use clap::Args;
use shoal_daemon::config::{NodeConfig, keys};
use shoal_daemon::membership::{asking, renewal};
use shoal_joining::{JoinError, JoinEvent, JoinGoal, NewMembership, Refusal};

use super::place::ServiceFolders;
use super::rekey::files_user;
use super::start::{Service, has_units};
use super::store::{StoredItems, store_all};
use super::up::{SILENT, not_done, unanswered};
use crate::failure::{self, ExitError};
use crate::options::CommonOptions;
use crate::output;

/// Advice for members that no registrar serves.
const BY_HAND: &str = "the authority itself made this machine a member, so no registrar serves it. \
                       From the authority's folder, put network.list in the place of the list \
                       here, and network.key beside the network's secret here, as network.key.next \
                       (mode 0600, for the node's user)";
const ANEW: &str = "join anew by `shoal up INVITE`, with another invite";

#[derive(Args, Debug)]
pub struct FetchArgs {
    /// The node's folder, if not /etc/shoal.
    #[arg(long, value_name = "DIR")]
    dir: Option<PathBuf>,
}

/// Fetches the newest list, supplements and secret.
pub fn fetch(common: &CommonOptions, args: &FetchArgs) -> Result<()> {
    let place = ServiceFolders::of_node(args.dir.as_deref())?;
    let config = place.config()?;
    if config.registrar.is_none() {
        return Err(ExitError::of(failure::CONFIG, BY_HAND));
    }
    let is_unit = has_units(&[(Service::Node, &place)]);
    let user = files_user(&config, is_unit)?;
    let joined = ask(&config, user)?;
    let stored = store_all(&config, &joined, user)?.map_err(|why| {
        let text = format!(
            "the node here does not accept what the registrar sent ({why}): stop the node, \
             repeat the command, and start the node again"
        );
        ExitError::of(failure::FAILED, text)
    })?;
    say(common, &place, &stored, is_unit)
}

fn ask(config: &NodeConfig, user: Option<u32>) -> Result<NewMembership> {
    let wrong = |why: String| ExitError::of(failure::CONFIG, why);
    let contact = renewal::newest_contact(config, user).map_err(wrong)?;
    let identity = keys::load_identity_for(&config.path(&config.node.key_file), user);
    let identity = identity.map_err(|e| wrong(e.to_string()))?;
    // A request for a longer membership returns the present one until its renewal is due.
    let mut silence = unanswered(&contact.endpoints);
    let end = asking::ask(identity, contact, JoinGoal::Renew, &mut silence);
    match end.context("the registrar can't be asked")? {
        JoinEvent::Joined(joined) => Ok(*joined),
        JoinEvent::Refused(Refusal::Adopted) => Err(ExitError::of(failure::REFUSED, BY_HAND)),
        JoinEvent::Refused(Refusal::Key) => {
            let text = format!("this machine is not a member: {ANEW}");
            Err(ExitError::of(failure::REFUSED, text))
        }
        JoinEvent::Failed(why @ JoinError::Silent { welcomed: false }) => {
            let text = format!("{why} {SILENT}: {ANEW}");
            Err(ExitError::of(failure::UNREACHABLE, text))
        }
        other => Err(not_done(&other)),
    }
}

fn say(
    common: &CommonOptions,
    place: &ServiceFolders,
    stored: &StoredItems,
    is_unit: bool,
) -> Result<()> {
    let runs = stored.runs;
    if common.json {
        let StoredItems { list, chain, secret, .. } = stored;
        let value = serde_json::json!({ "list": list, "supplements": chain, "secret": secret,
            "node_runs": runs });
        return Ok(output::json("fetch", &value)?);
    }
    output::line(&format!("fetched {}", what(stored)))?;
    match (runs, is_unit) {
        (true, _) => output::line("the node loads this within seconds, without a restart"),
        (false, true) => output::line("start the node with: systemctl start shoal"),
        (false, false) => {
            let words = Service::Node.words(place).join(" ");
            output::line(&format!("start the node with: shoal {words}"))
        }
    }?;
    Ok(())
}

/// New items, in words.
fn what(stored: &StoredItems) -> String {
    let all = [
        (stored.chain, "new supplements of the registrar"),
        (stored.list, "a newer list"),
        (stored.secret, "another secret of the network"),
    ];
    let new: Vec<_> = all.into_iter().filter(|(is_new, _)| *is_new).map(|(_, what)| what).collect();
    match new.as_slice() {
        [] => "nothing new: the registrar has no newer list or secret".into(),
        [one] => (*one).into(),
        [most @ .., last] => format!("{}, and {last}", most.join(", ")),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn whatever_was_not_here_is_named() {
        let said = |list, chain, secret| what(&StoredItems { list, chain, secret, runs: false });
        assert!(said(false, false, false).starts_with("nothing new"));
        assert_eq!(said(false, true, false), "new supplements of the registrar");
        assert_eq!(said(true, false, true), "a newer list, and another secret of the network");
        assert_eq!(
            said(true, true, true),
            "new supplements of the registrar, a newer list, and another secret of the network"
        );
    }
}
