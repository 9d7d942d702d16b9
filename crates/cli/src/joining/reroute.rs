//! `shoal up --another-router`: moves this host behind another router of the network.
//!
//! ```text
//! registrar asked to leave this router --> supplements stored --> address in node.toml --> restart
//! ```
//!
//! A repeated command continues an interrupted one: the registrar moves a host only away from the
//! router that `node.toml` names.

use anyhow::{Context, Result};
use shoal_daemon::config::{NodeConfig, keys};
use shoal_daemon::membership::{asking, renewal};
use shoal_joining::{JoinError, JoinEvent, JoinGoal, NewMembership};
use shoal_wire::Address;
use toml::Value;

use super::edit::edited;
use super::files::Staging;
use super::place::ServiceFolders;
use super::rejoin::{checked, read_own, runs_without_unit};
use super::rekey::files_user;
use super::start::{Service, hand_over, has_units, restart};
use super::store::store_all;
use super::up::{SILENT, not_done, unanswered};
use crate::failure::{self, ExitError};
use crate::options::CommonOptions;
use crate::output;

/// Advice for machines that no registrar can move.
const NO_HOST: &str = "this machine is no host that joined by an invite, so no registrar can move \
                       it: the authority can (`shoal authority sign --dir DIR NAME --address A.B`)";

const UNFINISHED: &str = "an interrupted `shoal up INVITE` has left its files here: run `shoal up` \
                          to finish that, and repeat this command";

/// Moves this host behind another router.
pub fn reroute(common: &CommonOptions, place: &ServiceFolders) -> Result<()> {
    let config = place.config()?;
    if config.registrar.is_none() || config.is_router() {
        return Err(ExitError::of(failure::CONFIG, NO_HOST));
    }
    if Staging::is_ready(place)? {
        // The staged files belong to another key than the one that would ask.
        return Err(ExitError::of(failure::FAILED, UNFINISHED));
    }
    let is_unit = has_units(&[(Service::Node, place)]);
    let user = files_user(&config, is_unit)?;
    let joined = ask(&config, user)?;
    let address = joined.member.address;
    if address.is_router() || address.router == config.address().router {
        let text = format!(
            "the registrar gave the address {address}, which is no host's behind another router: \
             nothing was changed; ask the registrar's owner"
        );
        return Err(ExitError::of(failure::FAILED, text));
    }
    if let Err(why) = store_all(&config, &joined, user)? {
        eprintln!("shoal: warning: the node here does not take the newest list: {why}");
    }
    readdress(place, address)?;
    if is_unit {
        hand_over(Service::Node, place)?;
        restart(Service::Node);
    }
    if common.json {
        let value = serde_json::json!({ "name": joined.member.name, "address": address.to_string(),
            "config": place.node_toml() });
        return Ok(output::json("up", &value)?);
    }
    output::line(&format!("this machine has another router, and is at {address} now"))?;
    let (down, up) = (place.down_words(), place.up_words());
    if runs_without_unit(&config, is_unit) {
        eprintln!(
            "shoal: warning: the node still runs with its old address: run `{down}`, then `{up}`"
        );
    } else if !is_unit {
        eprintln!("shoal: start the node with: {up}");
    }
    Ok(())
}

fn ask(config: &NodeConfig, user: Option<u32>) -> Result<NewMembership> {
    let wrong = |why: String| ExitError::of(failure::CONFIG, why);
    let contact = renewal::newest_contact(config, user).map_err(wrong)?;
    let identity = keys::load_identity_for(&config.path(&config.node.key_file), user);
    let identity = identity.map_err(|e| wrong(e.to_string()))?;
    let mut silence = unanswered(&contact.endpoints);
    let goal = JoinGoal::Move(config.address().router);
    let end = asking::ask(identity, contact, goal, &mut silence);
    match end.context("the registrar can't be asked")? {
        JoinEvent::Joined(joined) => Ok(*joined),
        JoinEvent::Failed(why @ JoinError::Silent { welcomed: false }) => {
            Err(ExitError::of(failure::UNREACHABLE, format!("{why} {SILENT}")))
        }
        other => Err(not_done(&other)),
    }
}

/// Writes the address into `node.toml`.
fn readdress(place: &ServiceFolders, address: Address) -> Result<()> {
    let staging = Staging::of(place)?;
    staging.check_room()?;
    let file = place.node_toml();
    let changes = [("node", "address", Value::String(address.to_string()))];
    let text = edited(&read_own(&file)?, &changes).map_err(|why| {
        let text = format!("{}: {why}, and repeat the command", file.display());
        ExitError::of(failure::CONFIG, text)
    })?;
    staging.write("node.toml", text.as_bytes())?;
    let staged = staging.path("node.toml");
    // The files that it names are not in the staging folder, so it alone is checked.
    checked(&staged, NodeConfig::load(&staged))?;
    staging.settle(&["node.toml"])
}
