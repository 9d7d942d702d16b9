//! `shoal network fetch`: what a member missed while it was away, from the registrar.
//!
//! Neighbours hand lists and secrets on, but answer nobody who does not know a secret that counts.
//! The registrar's door does not depend on the network's secret, and takes this machine's key.

use std::path::PathBuf;

use anyhow::{Context, Result};
use clap::Args;
use shoal_daemon::config::{Config, keys};
use shoal_daemon::membership::{asking, renewal};
use shoal_joining::{Event, Fault, Goal, Joined, Refusal};

use super::place::Place;
use super::rekey::files_user;
use super::start::{Service, has_units};
use super::store::{Stored, store_all};
use super::up::{SILENT, not_done, unanswered};
use crate::failure::{self, Failure};
use crate::options::Common;
use crate::output;

/// Where else it can come from.
const BY_HAND: &str = "the authority itself has made this machine a member, so no registrar gives \
                       it anything: from who holds the authority's folder, put network.list in the \
                       place of the list here, and network.key beside the network's secret here, \
                       as network.key.next (mode 0600, for the node's user)";
const ANEW: &str = "join anew: `shoal leave --force` here, and `shoal up` with another invite";

/// The arguments of `shoal network fetch`.
#[derive(Args, Debug)]
pub struct Fetch {
    /// The node's folder, if not /etc/shoal.
    #[arg(long, value_name = "DIR")]
    dir: Option<PathBuf>,
}

/// Gets the newest list, supplements and secret.
pub fn fetch(common: &Common, args: &Fetch) -> Result<()> {
    let place = Place::of_node(args.dir.as_deref())?;
    let config = place.config()?;
    if config.registrar.is_none() {
        return Err(Failure::of(failure::CONFIG, BY_HAND));
    }
    let is_unit = has_units(&[(Service::Node, &place)]);
    let user = files_user(&config, is_unit)?;
    let joined = ask(&config, user)?;
    let stored = store_all(&config, &joined, user)?.map_err(|why| {
        let text = format!(
            "the registrar gave it, and the node here does not take it ({why}): stop the node, \
             repeat this, and start it again"
        );
        Failure::of(failure::FAILED, text)
    })?;
    say(common, &place, &stored, is_unit)
}

fn ask(config: &Config, user: Option<u32>) -> Result<Joined> {
    let wrong = |why: String| Failure::of(failure::CONFIG, why);
    let contact = renewal::contact(config, user).map_err(wrong)?;
    let identity = keys::load_identity_for(&config.path(&config.node.key_file), user);
    let identity = identity.map_err(|e| wrong(e.to_string()))?;
    // A member that asks for a longer membership is granted the one that it has, until that is due.
    let mut silence = unanswered(&contact.endpoints);
    let end = asking::ask(identity, contact, Goal::Renew, &mut silence);
    match end.context("the registrar can't be asked")? {
        Event::Joined(joined) => Ok(*joined),
        Event::Refused(Refusal::Adopted) => Err(Failure::of(failure::REFUSED, BY_HAND)),
        Event::Refused(Refusal::Key) => {
            let text = format!("this machine is no member any more: {ANEW}");
            Err(Failure::of(failure::REFUSED, text))
        }
        Event::Failed(why @ Fault::Silent { welcomed: false }) => {
            let text = format!("{why} {SILENT}: {ANEW}");
            Err(Failure::of(failure::UNREACHABLE, text))
        }
        other => Err(not_done(&other)),
    }
}

fn say(common: &Common, place: &Place, stored: &Stored, is_unit: bool) -> Result<()> {
    let runs = stored.runs;
    if common.json {
        let Stored { list, chain, secret, .. } = stored;
        let value = serde_json::json!({ "list": list, "supplements": chain, "secret": secret,
            "node_runs": runs });
        return Ok(output::json("fetch", &value)?);
    }
    output::line(&format!("fetched {}", what(stored)))?;
    match (runs, is_unit) {
        (true, _) => output::line("the node takes it up within seconds, without a restart"),
        (false, true) => output::line("start the node with: systemctl start shoal"),
        (false, false) => {
            let words = Service::Node.words(place).join(" ");
            output::line(&format!("start the node with: shoal {words}"))
        }
    }?;
    Ok(())
}

/// What was not here before.
fn what(stored: &Stored) -> String {
    let all = [
        (stored.chain, "what the registrar signed"),
        (stored.list, "a newer list"),
        (stored.secret, "another secret of the network"),
    ];
    let new: Vec<_> = all.into_iter().filter(|(is_new, _)| *is_new).map(|(_, what)| what).collect();
    match new.as_slice() {
        [] => "nothing that was not here: the registrar has no newer list or secret".into(),
        [one] => (*one).into(),
        [most @ .., last] => format!("{}, and {last}", most.join(", ")),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn whatever_was_not_here_is_named() {
        let said = |list, chain, secret| what(&Stored { list, chain, secret, runs: false });
        assert!(said(false, false, false).starts_with("nothing that was not here"));
        assert_eq!(said(false, true, false), "what the registrar signed");
        assert_eq!(said(true, false, true), "a newer list, and another secret of the network");
        assert_eq!(
            said(true, true, true),
            "what the registrar signed, a newer list, and another secret of the network"
        );
    }
}
