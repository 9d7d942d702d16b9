//! What the worker does when members or rights change.

use shoal_directory::Rights as Right;
use shoal_wire::Time;

use crate::config::{self, Config};
use crate::control::journal;
use crate::membership::hosts::{Host, Hosts};
use crate::membership::watch::News;
use crate::worker::build;
use crate::worker::endpoints;
use crate::worker::first::{Parts, Worker};
use crate::worker::links;

impl Worker {
    /// Takes in a list that was read, and what time has changed.
    pub(crate) fn handle_members(&mut self, now: Time, news: Option<News>) {
        let Some(authority) = &mut self.parts.authority else { return };
        let changed = match news {
            Some(news) => authority.take(now, news),
            None => {
                let due = authority.is_apply_due(now);
                (authority.poll_timeout() <= now && authority.look(now)) || due
            }
        };
        if changed && let Err(error) = self.apply_members(now) {
            let (what, why) = ("not all of the authority's list is in force", format!("{error:#}"));
            tracing::error!("{}", journal::unnamed(what, journal::DEBUG, &[why]));
        }
    }

    /// Puts the members of the moment in force, with their links and rights.
    pub(crate) fn apply_members(&mut self, now: Time) -> anyhow::Result<()> {
        let Parts { authority, config, .. } = &mut self.parts;
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

    /// Puts in force what the list of the moment says beside members and links.
    pub(crate) fn apply_list(&mut self, now: Time) {
        self.apply_rights(now);
        self.apply_circuits(now);
        self.apply_cover();
    }

    /// Puts rights in force: flows, pings and transfers that they no longer allow end.
    pub(crate) fn apply_rights(&mut self, now: Time) {
        let Parts { authority, names, node, files, rights, .. } = &mut self.parts;
        let Some(authority) = authority else { return };
        let newer = authority.rights(now, names);
        node.set_rights(newer.to_us(), newer.partners());
        files.end_unless(now, &mut node.edge, |host, sending| match sending {
            true => newer.may_we(host, Right::Files),
            false => newer.may_they(host, Right::Files),
        });
        *rights = Some(newer);
    }

    /// Puts a configuration and a list of hosts in force; says what was done, for the operator.
    /// If there are `linked` nodes, links lead to them instead and carry nothing but the
    /// authority's lists.
    ///
    /// Errors: a link names nobody, or the kernel does not bring another prefix here: nothing has
    /// changed. Within: a table is full, and all that fits is in force.
    pub(crate) fn put_in_force(
        &mut self,
        now: Time,
        newer: Config,
        hosts: Hosts,
        linked: Option<Hosts>,
    ) -> anyhow::Result<anyhow::Result<Vec<String>>> {
        let Parts { node, names, config, warnings, hopping, .. } = &mut self.parts;
        let of_links = linked.as_ref().unwrap_or(&hosts);
        let mut plan = links::Plan::new(config, names, &newer, of_links)?;
        let moved = hopping.as_mut().map_or(Ok(None), |known| known.move_to(&newer))?;
        let outdated = config::warnings(config, names.linked());
        warnings.retain(|known| !outdated.contains(known) && !config::is_of_rights(known));
        warnings.extend(config::warnings(&newer, of_links));
        let others_behind = newer.hop != config.hop;
        *config = newer;
        if others_behind {
            node.relay.set_protected(config.protected().map(|at| at.identifier()).collect());
        }
        if let Some((prefix, staying)) = moved {
            node.relay.move_hop_prefix(now, prefix);
            node.relay.set_staying(staying);
        }
        let lists_only = linked.is_some();
        if lists_only {
            node.relay.set_lists_only(now, true);
        }
        plan.remove(now, node, names);
        self.pass_on_events(now);
        let Parts { node, interface, names, config, .. } = &mut self.parts;
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
        // Links may carry more only once hosts of the last list are forgotten.
        node.relay.set_lists_only(now, lists_only);
        Ok(links.and_then(|links| {
            applied.extend(links);
            others.map(|()| applied)
        }))
    }
}

/// Hosts that only one of the lists has, or that differ in them, and whether the network's mixes,
/// tiers of cover or required circuits differ, in words for the operator. The IPv4 address of the
/// node called `me` is left out: the kernel got it at the start.
fn changed_hosts(me: &str, older: &Hosts, newer: &Hosts) -> Vec<String> {
    let same = |old: &Host, new: &Host| {
        let ipv4 = if new.name == me { new.ipv4 } else { old.ipv4 };
        *new == Host { ipv4, ..old.clone() }
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
    let rules = mixes.into_iter().chain(tiers).chain(circuits);
    let mut all: Vec<String> = rules.chain(gone).chain(others).collect();
    if all.len() > HOSTS_SHOWN {
        let more = all.len() - HOSTS_SHOWN;
        all.truncate(HOSTS_SHOWN);
        all.push(format!("{more} more hosts"));
    }
    all
}

/// Hosts that a reload names one by one.
const HOSTS_SHOWN: usize = 32;

/// Consequence of a list that is not in force for this node, for the log.
fn standing_words(state: &str) -> &'static str {
    match state {
        "not_a_member" => {
            "this node is no member by the authority's list: its links carry newer lists alone"
        }
        "stale" => {
            "the authority's list is too old, so nobody is a member here until a newer one comes: \
             `shoal authority renew` at the authority"
        }
        _ => "there is no list of the authority here yet, so nobody is a member",
    }
}

#[cfg(test)]
mod tests {
    use std::path::Path;

    use super::*;

    #[test]
    fn each_standing_has_words_that_say_who_is_no_member() {
        assert!(standing_words("not_a_member").starts_with("this node is no member"));
        assert!(standing_words("stale").contains("too old"));
        assert!(standing_words("missing").contains("no list"));
    }

    #[test]
    fn rules_that_changed_are_named() {
        let parse = |text: &str| Hosts::parse(Path::new("hosts.toml"), text).unwrap();
        let mix = "[[mix]]\nname = \"slow\"\nkind = \"timed\"\nevery_ms = 10\n";
        let rule = "[[circuits]]\nbetween = [\"*\", \"*\"]\nmode = \"require\"\n";
        let changed = |newer: &str| changed_hosts("alice", &parse(""), &parse(newer));
        assert!(changed("").is_empty());
        assert_eq!(changed(mix), ["[[mix]] (changed)"]);
        assert_eq!(changed("[[cover]]\nname = \"home\"\nmbit = 10\n"), ["[[cover]] (changed)"]);
        assert_eq!(changed(rule), ["[[circuits]] (changed)"]);
    }
}
