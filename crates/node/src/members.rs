//! What the worker does when members or rights change.

use shoal_directory::Rights as Right;
use shoal_wire::Time;

use crate::build;
use crate::config::{self, Config};
use crate::hosts::Hosts;
use crate::links;
use crate::watch::News;
use crate::worker::{Parts, Worker};

impl Worker {
    /// Takes in a list that was read, and what time has changed.
    pub(crate) fn handle_members(&mut self, now: Time, news: Option<News>) {
        let Some(authority) = &mut self.parts.authority else { return };
        let changed = match news {
            Some(news) => authority.take(now, news),
            None => authority.poll_timeout() <= now && authority.look(now),
        };
        if changed && let Err(error) = self.apply_members(now) {
            tracing::error!("not all of the authority's list is in force: {error:#}");
        }
    }

    /// Puts the members of the moment in force, with their links and rights.
    pub(crate) fn apply_members(&mut self, now: Time) -> anyhow::Result<()> {
        let Parts { authority, config, .. } = &mut self.parts;
        let Some(authority) = authority else { return Ok(()) };
        let hosts = authority.hosts(now);
        let newer = authority.effective(config, &hosts);
        let status = authority.status(now);
        let applied = self.put_in_force(now, newer, hosts);
        self.apply_rights(now);
        tracing::info!(
            version = status.list_version,
            members = status.members,
            state = status.state,
            "the authority's list is in force"
        );
        applied.map(|_| ())
    }

    /// Puts rights in force: packets, pings and files that need more than there is end.
    pub(crate) fn apply_rights(&mut self, now: Time) {
        let Parts { authority, names, machines, files, rights, .. } = &mut self.parts;
        let Some(authority) = authority else { return };
        let newer = authority.rights(now, names);
        machines.set_rights(&newer);
        files.end_unless(now, &mut machines.edge, |host, sending| match sending {
            true => newer.may_we(host, Right::Files),
            false => newer.may_they(host, Right::Files),
        });
        *rights = Some(newer);
    }

    /// Puts a configuration and a list of hosts in force; says what was done, for the operator.
    ///
    /// Errors: a link names nobody (nothing has changed), or a table is full.
    pub(crate) fn put_in_force(
        &mut self,
        now: Time,
        newer: Config,
        hosts: Hosts,
    ) -> anyhow::Result<Vec<String>> {
        let Parts { machines, names, config, warnings, authority, .. } = &mut self.parts;
        let mut plan = links::Plan::new(config, names, &newer, &hosts)?;
        let outdated = config::warnings(config, names.hosts());
        warnings.retain(|warning| !outdated.contains(warning));
        warnings.extend(config::warnings(&newer, &hosts));
        if let Some(authority) = authority {
            warnings.retain(|warning| !self.member_warnings.contains(warning));
            self.member_warnings = authority.warnings(now);
            warnings.extend(self.member_warnings.iter().cloned());
        }
        *config = newer;
        plan.remove(now, machines, names);
        self.pass_on_events(now);
        let Parts { machines, names, config, .. } = &mut self.parts;
        let links = plan.finish(now, config, &hosts, machines, names);
        let mut applied = Vec::new();
        let mut others = Ok(());
        if hosts != *names.hosts() {
            applied.push("hosts".into());
            others = build::replace_hosts(now, config, hosts, machines, names);
        }
        applied.extend(links?);
        others?;
        Ok(applied)
    }
}
