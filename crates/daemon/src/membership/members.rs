//! Applies changes of members and rights to the worker.

use shoal_directory::TrafficKind as Right;
use shoal_wire::Time;

use crate::config::{self, NodeConfig};
use crate::control::journal;
use crate::membership::hosts::{HostList, ListedHost};
use crate::membership::watch::WatcherEvent;
use crate::worker::build;
use crate::worker::endpoints;
use crate::worker::first::{FirstWorker, WorkerParts};
use crate::worker::links;

impl FirstWorker {
    /// Applies a list that was read, and the changes that time brought.
    pub(crate) fn handle_members(&mut self, now: Time, news: Option<WatcherEvent>) {
        let Some(authority) = &mut self.parts.authority else { return };
        let changed = match news {
            Some(news) => authority.take(now, news),
            None => {
                let due = authority.is_apply_due(now);
                (authority.poll_timeout() <= now && authority.look(now)) || due
            }
        };
        if changed && let Err(error) = self.apply_members(now) {
            let (what, why) =
                ("some of the authority's list is not in force", format!("{error:#}"));
            tracing::error!("{}", journal::unnamed(what, journal::DEBUG, &[why]));
        }
    }

    /// Applies the current members, with their links and rights.
    pub(crate) fn apply_members(&mut self, now: Time) -> anyhow::Result<()> {
        let WorkerParts { authority, config, .. } = &mut self.parts;
        let Some(authority) = authority else { return Ok(()) };
        let hosts = authority.hosts(now);
        let linked = authority.linked(now);
        let newer = authority.effective(config, linked.as_ref().unwrap_or(&hosts));
        let status = authority.status(now);
        let applied = self.put_in_force(now, newer, hosts, linked);
        self.apply_list(now);
        self.look_up_endpoints(now);
        if status.state == "fresh" {
            let (version, members) = (status.list_version, status.members);
            tracing::info!(version, members, "the authority's list is in force");
        } else {
            tracing::warn!("{}", standing_words(&status.state));
        }
        applied?.map(|_| ())
    }

    /// Applies the current list's settings other than members and links.
    pub(crate) fn apply_list(&mut self, now: Time) {
        // The preset counts even if the rest of its list could not come into force.
        if let Some(authority) = &self.parts.authority {
            self.parts.names.set_preset(authority.preset());
        }
        self.apply_rights(now);
        self.apply_preset();
        self.apply_circuits(now);
        self.apply_direct(now);
        self.apply_former(now);
    }

    /// Applies the current rights. Flows, pings and transfers that they forbid end.
    pub(crate) fn apply_rights(&mut self, now: Time) {
        let WorkerParts { authority, names, node, files, rights, .. } = &mut self.parts;
        let Some(authority) = authority else { return };
        let newer = authority.rights(now, names);
        node.set_rights(newer.to_us(), newer.partners());
        files.end_unless(now, &mut node.edge, |host, sending| match sending {
            true => newer.may_we(host, Right::Files),
            false => newer.may_they(host, Right::Files),
        });
        *rights = Some(newer);
    }

    /// Applies a configuration and a list of hosts. Returns the changes, for the operator. If there
    /// are `linked` nodes, links lead to them instead and carry only the authority's lists.
    ///
    /// Errors: a link names an unknown node, or the kernel does not route a new prefix to this
    /// machine; nothing has changed then. The inner error means that a table is full; all that fits
    /// is in force.
    pub(crate) fn put_in_force(
        &mut self,
        now: Time,
        newer: NodeConfig,
        hosts: HostList,
        linked: Option<HostList>,
    ) -> anyhow::Result<anyhow::Result<Vec<String>>> {
        // Hosts that were met so far count by the list that was in force then.
        self.keep_circuits();
        let WorkerParts { node, names, config, warnings, shifting, .. } = &mut self.parts;
        let of_links = linked.as_ref().unwrap_or(&hosts);
        let mut plan = links::LinkPlan::new(config, names, &newer, of_links)?;
        let moved = shifting.as_mut().map_or(Ok(None), |known| known.move_to(&newer))?;
        let outdated = config::warnings(config, names.linked());
        warnings.retain(|known| !outdated.contains(known) && !config::is_of_rights(known));
        warnings.extend(config::warnings(&newer, of_links));
        let others_behind = newer.shift != config.shift;
        *config = newer;
        if others_behind {
            node.relay.set_protected(config.protected().map(|at| at.identifier()).collect());
        }
        if let Some((prefix, staying)) = moved {
            node.relay.move_shift_prefix(now, prefix);
            node.relay.set_staying(staying);
        }
        let lists_only = linked.is_some();
        if lists_only {
            node.relay.set_lists_only(now, true);
        }
        plan.remove(now, node, names);
        self.pass_on_events(now);
        let WorkerParts { node, interface, names, config, .. } = &mut self.parts;
        let of_links = linked.as_ref().unwrap_or(&hosts);
        let links = plan.finish(now, config, of_links, node, names);
        names.set_linked(linked);
        let mut applied = Vec::new();
        let mut others = Ok(());
        if hosts != *names.hosts() || others_behind {
            applied.extend(changed_hosts(&config.node.name, names.hosts(), &hosts));
            others = build::replace_hosts(now, config, hosts, (node, interface), names);
        }
        node.set_endpoint_rules(endpoints::rules(config, names, interface.as_ref()));
        // Links may carry more only after the hosts of the last list were removed.
        node.relay.set_lists_only(now, lists_only);
        Ok(links.and_then(|links| {
            applied.extend(links);
            others.map(|()| applied)
        }))
    }
}

/// Changes between two lists, for the operator: hosts added, removed or changed, and a changed
/// preset, changed mixes, tiers of cover or rules about circuits. The IPv4 address of the node
/// called `me` does not count, since the kernel got it at the start.
fn changed_hosts(me: &str, older: &HostList, newer: &HostList) -> Vec<String> {
    let same = |old: &ListedHost, new: &ListedHost| {
        let ipv4 = if new.name == me { new.ipv4 } else { old.ipv4 };
        *new == ListedHost { ipv4, ..old.clone() }
    };
    let gone = older.iter().filter(|old| newer.by_name(&old.name).is_none());
    let gone = gone.map(|old| format!("host {} (removed)", old.name));
    let others = newer.iter().filter_map(|new| match older.by_name(&new.name) {
        None => Some(format!("host {} (added)", new.name)),
        Some(old) if !same(old, new) => Some(format!("host {} (changed)", new.name)),
        Some(_) => None,
    });
    let mixes = (older.mixes() != newer.mixes()).then(|| "[[mix]] (changed)".to_owned());
    let circuits = older.circuits() != newer.circuits();
    let circuits = circuits.then(|| "[[circuits]] (changed)".to_owned());
    let tiers = (older.tiers() != newer.tiers()).then(|| "[[cover]] (changed)".to_owned());
    let preset = (older.preset() != newer.preset()).then(|| "preset (changed)".to_owned());
    let rules = preset.into_iter().chain(mixes).chain(tiers).chain(circuits);
    let mut all: Vec<String> = rules.chain(gone).chain(others).collect();
    if all.len() > HOSTS_SHOWN {
        let more = all.len() - HOSTS_SHOWN;
        all.truncate(HOSTS_SHOWN);
        all.push(format!("{more} more hosts"));
    }
    all
}

/// Maximum number of hosts that a reload names one by one.
const HOSTS_SHOWN: usize = 32;

/// Consequence of a list that is not in force for this node, for the log.
fn standing_words(state: &str) -> &'static str {
    match state {
        "removed" => {
            "this machine was removed from the network: `shoal status` says when, and how it joins \
             again"
        }
        "not_a_member" => {
            "this node is no member in the authority's list: its links carry only newer lists"
        }
        "stale" => {
            "the authority's list is too old, so nobody is a member until a newer one comes: run \
             `shoal authority renew --dir DIR` at the authority"
        }
        _ => "this node has no list of the authority yet, so nobody is a member",
    }
}

#[cfg(test)]
mod tests {
    use std::path::Path;

    use super::*;

    #[test]
    fn each_standing_has_words_that_say_who_is_no_member() {
        assert!(standing_words("not_a_member").starts_with("this node is no member"));
        assert!(standing_words("removed").starts_with("this machine was removed"));
        assert!(standing_words("stale").contains("too old"));
        assert!(standing_words("missing").contains("no list"));
    }

    #[test]
    fn rules_that_changed_are_named() {
        let parse = |text: &str| HostList::parse(Path::new("hosts.toml"), text).unwrap();
        let mix = "[[mix]]\nname = \"slow\"\nkind = \"timed\"\nevery_ms = 10\n";
        let rule = "[[circuits]]\nbetween = [\"*\", \"*\"]\nmode = \"require\"\n";
        let changed = |newer: &str| changed_hosts("alice", &parse(""), &parse(newer));
        assert!(changed("").is_empty());
        assert_eq!(changed(mix), ["[[mix]] (changed)"]);
        assert_eq!(changed("[[cover]]\nname = \"home\"\nmbit = 10\n"), ["[[cover]] (changed)"]);
        assert_eq!(changed(rule), ["[[circuits]] (changed)"]);
    }
}
