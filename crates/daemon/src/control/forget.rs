//! `shoal circuits forget`: hosts that were met over circuits are reached in the clear again.
//!
//! A host stays bound to circuits after the requirement ended: dropping the file of met hosts must
//! not be enough to see its traffic. Only the owner's command ends that, on both sides.

use shoal_crypto::PublicKey;
use shoal_edge::FORGOTTEN_FOR;
use shoal_wire::Time;

use crate::control::api::{BoundReason, ControlReply, ErrorCode, ForgottenHosts};
use crate::membership::circuits::{MetHostsFile, MetName, RequiredHosts, left_the_list};
use crate::membership::hosts::{HostList, ListedHost};
use crate::worker::first::{FirstWorker, WorkerParts};

/// Hosts to forget, and the number of hosts that stay.
#[derive(Debug, Default, PartialEq)]
pub struct ForgetPlan {
    pub keys: Vec<PublicKey>,
    /// Names of these hosts, in the same order.
    names: Vec<String>,
    /// Number of hosts with which circuits are required, so that they stay.
    required: u64,
}

impl ForgetPlan {
    /// All hosts of `met` with which circuits are not required.
    pub fn all(hosts: &HostList, required: &RequiredHosts, met: &MetHostsFile) -> ForgetPlan {
        let mut plan =
            ForgetPlan { required: required.hidden.len() as u64, ..ForgetPlan::default() };
        required.only_met(hosts, met).for_each(|met| plan.add(met.key, met.shown()));
        plan
    }

    /// The host of this name or public key. `is_bound` is true for a host of the list that is
    /// reached only over circuits.
    ///
    /// Errors, for the user: no such host; a router; a host with which circuits are required, or
    /// that was never met.
    pub fn one(
        (hosts, own_name): (&HostList, &str),
        required: &RequiredHosts,
        met: &MetHostsFile,
        name: &str,
        is_bound: impl Fn(&ListedHost) -> bool,
    ) -> Result<ForgetPlan, String> {
        let by_key = || hosts.by_key(&name.parse::<PublicKey>().ok()?);
        let mut plan = ForgetPlan::default();
        let Some(host) = hosts.holder(name).or_else(by_key) else {
            let key = left_the_list(hosts, met, name).ok_or_else(|| unknown(hosts, name))?;
            plan.add(key, MetName { key, host: None, since: None }.shown());
            return Ok(plan);
        };
        let name = &host.name;
        if name == own_name {
            return Err(format!("{name} is this node itself"));
        }
        if host.address.is_router() {
            return Err(format!("{name} is a router, and circuits lead to hosts"));
        }
        if let Some(by) = required.by(name) {
            let why = BoundReason::from(by).words(name);
            return Err(format!("circuits with {name} are {why}; end that first"));
        }
        if !is_bound(host) && met.find(&host.key).is_none() {
            return Err(format!(
                "{name} is not bound to circuits, so there is nothing to forget; `shoal circuits` \
                 lists the hosts that are"
            ));
        }
        plan.add(host.key, name.clone());
        Ok(plan)
    }

    fn add(&mut self, key: PublicKey, name: String) {
        self.keys.push(key);
        self.names.push(name);
    }

    /// The answer, once the hosts are forgotten.
    pub fn done(self) -> ForgottenHosts {
        let ForgetPlan { keys, mut names, required } = self;
        names.truncate(ForgottenHosts::NAMED_MAX);
        let count = keys.len() as u64;
        ForgottenHosts { count, hosts: names, required, ..ForgottenHosts::default() }
    }
}

/// Message about a name that neither the list nor the file of met hosts has.
fn unknown(hosts: &HostList, name: &str) -> String {
    let near = hosts.similar(name).join(" or ");
    let hint = match near.is_empty() {
        true => "name a host that left the list by its public key".to_owned(),
        false => format!("did you mean {near}?"),
    };
    format!("there is no host {name:?} in the list, and no host with that key was met; {hint}")
}

impl FirstWorker {
    /// Forgets that one host, or all hosts, were met over circuits. Each is reached in the clear
    /// from now on, and its circuits are refused for [`FORGOTTEN_FOR`].
    pub(super) fn forget_circuits(&mut self, now: Time, host: Option<&str>) -> ControlReply {
        let WorkerParts { node, names, config, authority, circuits, .. } = &mut self.parts;
        let refused = |code, text: String| ControlReply::error(code, text);
        if config.is_router() {
            let text = "no circuit begins at this node, which is a router: ask at a host";
            return refused(ErrorCode::BadRequest, text.into());
        }
        let hosts = names.hosts();
        let is_bound =
            |host: &ListedHost| names.host_id(&host.name).is_some_and(|id| node.edge.is_hidden(id));
        let plan = match host {
            Some(name) => {
                let (own, met) = (&config.node.name, &circuits.met);
                ForgetPlan::one((hosts, own), &circuits.required, met, name, is_bound)
            }
            None => {
                let mut plan = ForgetPlan::all(hosts, &circuits.required, &circuits.met);
                // Hosts that the list bound at their first meeting are not in the file.
                let is_met = |host: &&ListedHost| circuits.met.find(&host.key).is_some();
                let may = |host: &&ListedHost| circuits.required.by(&host.name).is_none();
                let others = hosts.iter().filter(|host| is_bound(host) && may(host));
                let others = others.filter(|host| !is_met(host));
                others.for_each(|host| plan.add(host.key, host.name.clone()));
                Ok(plan)
            }
        };
        let plan = match plan {
            Ok(plan) => plan,
            Err(text) => {
                // With a stale list, no name is known.
                let closed = authority.as_ref().and_then(|authority| authority.closed(now));
                let code = match closed.is_some() {
                    true => ErrorCode::Unreachable,
                    false => ErrorCode::BadRequest,
                };
                let text = closed.map_or(text.clone(), |why| format!("{text}; {why}"));
                return refused(code, text);
            }
        };
        node.forget_met(now, &plan.keys);
        let unwritten = circuits.forget(&plan.keys);
        self.apply_circuits(now);
        self.apply_direct(now);
        let (refused_s, this_node) = (FORGOTTEN_FOR.as_secs(), self.parts.config.node.name.clone());
        let done = ForgottenHosts { refused_s, this_node, unwritten, ..plan.done() };
        ControlReply::Forgotten(done)
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;
    use std::path::Path;

    use shoal_crypto::Identity;

    use super::*;
    use crate::config::NodeConfig;

    fn key(n: u8) -> PublicKey {
        Identity::from_seed([n; 32]).public()
    }

    fn hosts() -> HostList {
        let all = [("r1", "1.0"), ("alice", "1.1"), ("bob", "1.2"), ("carol", "1.3")];
        let host = |(at, (name, address)): (usize, &(&str, &str))| {
            let key = key(at as u8);
            format!("[[host]]\nname = {name:?}\naddress = {address:?}\nkey = \"{key}\"\n")
        };
        let text: String = all.iter().enumerate().map(host).collect();
        HostList::parse(Path::new("hosts.toml"), &text).unwrap()
    }

    fn required(peers: &str) -> RequiredHosts {
        let text = format!(
            "[node]\nname = \"alice\"\naddress = \"1.1\"\nkey_file = \"key\"\n\
             network_secret_file = \"secret\"\n[circuits]\n{peers}"
        );
        let config = NodeConfig::parse(Path::new("node.toml"), &text).unwrap();
        RequiredHosts::new(&config, &hosts(), None, Time::ZERO)
    }

    fn met(keys: &[u8]) -> MetHostsFile {
        let mut met = MetHostsFile::default();
        keys.iter().for_each(|n| assert!(met.note(key(*n), None, |_| true)));
        met
    }

    #[test]
    fn only_hosts_that_nothing_else_binds_are_forgotten() {
        let (hosts, none) = (hosts(), required(""));
        let one = |required: &RequiredHosts, name: &str, bound: &[&str]| {
            let bound: BTreeSet<&str> = bound.iter().copied().collect();
            let is_bound = |host: &ListedHost| bound.contains(host.name.as_str());
            let plan = ForgetPlan::one((&hosts, "alice"), required, &met(&[2, 9]), name, is_bound);
            plan.map(|plan| plan.names.join(" "))
        };
        let (bob, away) = (key(2).to_string(), key(9).to_string());
        for name in ["bob", "BOB", "bob.", &bob] {
            assert_eq!(one(&none, name, &[]), Ok("bob".into()), "{name}");
        }
        for name in [&away, &away[..8]] {
            assert_eq!(one(&none, name, &[]), Ok(away[..8].into()), "left the list");
        }
        assert_eq!(one(&none, "carol", &["carol"]), Ok("carol".into()), "not in the file");
        let all = required("policy = \"require\"");
        let unlisted = required("policy = \"require\"\npeers = [\"dave\"]");
        for (required, name, why) in [
            (&none, "carol", "nothing to forget"),
            (&none, "r1", "is a router"),
            (&none, "alice", "is this node itself"),
            (&none, "bobb", "did you mean bob?"),
            (&none, "zzz", "by its public key"),
            (&none, &key(8).to_string(), "no host with that key was met"),
            (&none, &away[..7], "no host with that key was met"),
            (&none, &bob[..8], "no host with that key was met"),
            (&none, &"A".repeat(88), "no host with that key was met"),
            (&all, "bob", "circuits with bob are required by [circuits]"),
            (&unlisted, "bob", "names a host that the list lacks; end that first"),
        ] {
            let said = one(required, name, &[]).unwrap_err();
            assert!(said.contains(why), "{name}: {said}");
        }
    }

    #[test]
    fn all_leaves_out_those_with_whom_circuits_are_required() {
        let names = |peers: &str| {
            let plan = ForgetPlan::all(&hosts(), &required(peers), &met(&[2, 3, 9]));
            (plan.names.len(), plan.required, plan.names.join(" "))
        };
        let away = key(9).to_string()[..8].to_owned();
        assert_eq!(names(""), (3, 0, format!("bob carol {away}")));
        let bob = "policy = \"require\"\npeers = [\"bob\"]";
        assert_eq!(names(bob), (2, 1, format!("carol {away}")));
        assert_eq!(names("policy = \"require\""), (1, 2, away));
        let many: Vec<u8> = (20..90).collect();
        let done = ForgetPlan::all(&hosts(), &required(""), &met(&many)).done();
        assert_eq!((done.count, done.hosts.len()), (70, ForgottenHosts::NAMED_MAX));
    }
}
