//! `shoal circuits forget`: reaches hosts in the clear again that were met over circuits.

use std::path::{Path, absolute};

use anyhow::Result;
use clap::Args;
use shoal_daemon::config::Preset;
use shoal_daemon::control::api::{Command, ControlReply, ForgottenHosts};
use shoal_daemon::control::forget::ForgetPlan;
use shoal_daemon::control::socket::{ConnectError, ControlConnection};
use shoal_daemon::membership::anonymity;
use shoal_daemon::membership::circuits::{MetHostsFile, RequiredHosts};

use crate::confirm::confirm;
use crate::failure::{self, ExitError};
use crate::joining::store;
use crate::options::CommonOptions;
use crate::output::{self, CellStyle, paint};
use crate::target::{config, socket, unexpected};
use crate::units::counted;

#[derive(Args, Debug)]
pub struct ForgetArgs {
    /// Name of the host, or the public key of one that left the list.
    #[arg(value_name = "HOST", required_unless_present = "all")]
    host: Option<String>,
    /// Forget all hosts with which circuits are not required.
    #[arg(long, conflicts_with = "host")]
    all: bool,
    /// Do not ask for a confirmation.
    #[arg(short, long)]
    yes: bool,
}

pub fn run(common: &CommonOptions, args: &ForgetArgs) -> Result<()> {
    confirm(&question(args.host.as_deref()), args.yes)?;
    let at = socket(common)?;
    let done = match ControlConnection::connect(&at) {
        Ok(mut node) => {
            let command = Command::Forget { host: args.host.clone() };
            match node.call(command, &[]).map_err(failure::call)? {
                ControlReply::Forgotten(done) => done,
                other => return Err(unexpected(&other)),
            }
        }
        Err(error @ ConnectError::NotRunning(_)) => match config(common) {
            Some(file) => in_file(&file, &at, args, error)?,
            None => return Err(failure::connect(error)),
        },
        Err(error) => return Err(failure::connect(error)),
    };
    if common.json {
        return Ok(output::json("forgotten", &done)?);
    }
    words(&done).iter().try_for_each(|text| output::line(text))?;
    let unwritten =
        done.unwritten.map(|why| format!("{why}; after a restart they are bound again"));
    unwritten.map_or(Ok(()), |text| Ok(output::line(&paint(CellStyle::Bad, &text))?))
}

/// The question before the command, with the facts that it makes visible.
fn question(host: Option<&str>) -> String {
    let seen = anonymity::lowered(Preset::Balanced, Preset::Fast).unwrap_or_default();
    match host {
        Some(host) => format!("Traffic with {host} leaves the circuits: {seen}."),
        None => format!("Traffic with all hosts that were met over circuits leaves them: {seen}."),
    }
}

/// Changes the file of a node that does not run, and would have its control socket at `at`.
fn in_file(
    file: &Path,
    at: &Path,
    args: &ForgetArgs,
    not_running: ConnectError,
) -> Result<ForgottenHosts> {
    let setup = crate::check::load(file)?;
    let node = &setup.config;
    // The command line may name the socket of another node.
    let is_it = |own: &Path| Ok::<_, std::io::Error>(absolute(own)? == absolute(at)?);
    if !is_it(&node.control_socket()).unwrap_or(false) {
        return Err(failure::connect(not_running));
    }
    let wrong = |text: String| ExitError::of(failure::FAILED, text);
    if node.is_router() {
        return Err(wrong("no circuit begins at this node, which is a router".into()));
    }
    let met_file = node.path(&node.circuits.met_file());
    let read = MetHostsFile::read(node, &mut Vec::new());
    let mut met = read.map_err(|e| ExitError::of(failure::CONFIG, format!("{e:#}")))?;
    let now = setup.clock.now();
    let required = RequiredHosts::new(node, &setup.hosts, setup.authority.as_ref(), now);
    let plan = match &args.host {
        None => ForgetPlan::all(&setup.hosts, &required, &met),
        Some(host) => {
            let hosts = (&setup.hosts, &*node.node.name);
            ForgetPlan::one(hosts, &required, &met, host, |_| false).map_err(wrong)?
        }
    };
    if met.forget(&plan.keys) > 0 {
        store::put(&met_file, met.text().as_bytes(), store::owner(&met_file)?)?;
    }
    Ok(ForgottenHosts { this_node: node.node.name.clone(), ..plan.done() })
}

/// The result, and what to do at the other end.
fn words(done: &ForgottenHosts) -> Vec<String> {
    let ForgottenHosts { count, hosts, required, refused_s, this_node, .. } = done;
    let mut lines = Vec::new();
    let minutes = refused_s / 60;
    let command = format!("`shoal circuits forget {this_node}`");
    let when = if *refused_s == 0 { "from the next start on" } else { "again" };
    match (&hosts[..], count) {
        ([], _) => lines.push(
            "nothing to forget: no host is bound to circuits only because it was met so".into(),
        ),
        ([host], 1) => {
            lines.push(format!(
                "{host} is spoken with in the clear {when}: routers on the way see both"
            ));
            lines.push(match refused_s {
                0 => format!(
                    "run {command} at {host} before this node starts, else its next circuit binds \
                     both again"
                ),
                _ => format!(
                    "for {minutes} minutes this host takes no circuit of {host}: run {command} \
                     there within that time, else its next circuit binds both again"
                ),
            });
        }
        (hosts, count) => {
            let more = match count.saturating_sub(hosts.len() as u64) {
                0 => String::new(),
                more => format!(" and {more} more"),
            };
            lines.push(format!(
                "{count} hosts are spoken with in the clear {when}: routers on the way see both \
                 ends ({}{more})",
                hosts.join(", ")
            ));
            lines.push(match refused_s {
                0 => format!(
                    "run {command} at each of them before this node starts, else their next \
                     circuits bind both again"
                ),
                _ => format!(
                    "for {minutes} minutes this host takes no circuits of theirs: run {command} at \
                     each of them within that time, else their next circuits bind both again"
                ),
            });
        }
    }
    if *required > 0 {
        let hosts = counted(*required as usize, "host");
        lines.push(format!("circuits are still required with {hosts} (`shoal circuits`)"));
    }
    lines
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_answer_says_what_is_visible_and_what_the_other_end_does() {
        let done = |names: &[&str], count, refused_s, required| {
            let hosts = names.iter().map(|name| name.to_string()).collect();
            let this_node = "alice".into();
            words(&ForgottenHosts { count, hosts, required, refused_s, this_node, unwritten: None })
        };
        let bob = done(&["bob"], 1, 600, 0);
        assert_eq!(bob[0], "bob is spoken with in the clear again: routers on the way see both");
        assert!(bob[1].starts_with("for 10 minutes this host takes no circuit of bob"), "{bob:?}");
        assert!(bob[1].contains("`shoal circuits forget alice` there"), "{bob:?}");
        let off = done(&["bob"], 1, 0, 0);
        assert!(off[0].contains("from the next start on") && off[1].contains("before this node"));
        let many = done(&["bob", "carol"], 40, 600, 2);
        assert!(many[0].starts_with("40 hosts") && many[0].ends_with("(bob, carol and 38 more)"));
        assert_eq!(many[2], "circuits are still required with 2 hosts (`shoal circuits`)");
        assert!(done(&[], 0, 600, 0)[0].starts_with("nothing to forget"));
    }

    #[test]
    fn the_question_says_who_sees_more() {
        assert!(question(Some("bob")).starts_with("Traffic with bob leaves the circuits: routers"));
        assert!(question(None).contains("all hosts that were met"));
    }
}
