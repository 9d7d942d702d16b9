//! Answers about what this node hides: facts of the running node, and the reports of [`judge`].

use std::collections::{BTreeMap, BTreeSet};

use shoal_directory::fold;
use shoal_edge::HostId;
use shoal_onion::pool::{CircuitProblem, CircuitState, HostView};
use shoal_wire::{Address, NodeAddresses, Time};

use crate::config::Preset;
use crate::control::api::{
    ControlReply, ErrorCode, HiddenCount, HiddenStatus, HostProtection, MembershipSource,
    RelayVoucher,
};
use crate::control::{circuits, cover};
use crate::membership::anonymity;
use crate::membership::authority::AuthorityState;
use crate::membership::cover as tiers;
use crate::membership::hosts::ListedHost;
use crate::worker::first::WorkerParts;
use judge::{CircuitFacts, CoverFacts, HostFacts, RouterFacts};

pub mod judge;

/// Most hosts in one answer: those with broken promises come first.
const HOSTS_MAX: usize = 256;
/// Most hosts that are judged for one answer.
const JUDGED_MAX: usize = 4_096;

/// Facts that all reports of one answer share.
struct NodeFacts<'a> {
    parts: &'a WorkerParts,
    /// Circuits by destination.
    views: BTreeMap<Address, HostView>,
    /// Mandate that made each member; none for a member that the authority signed.
    mandates: BTreeMap<&'a str, Option<&'a str>>,
    cover: CoverFacts,
}

/// Reports about the host called `host`, or else about all hosts with traffic or circuits.
pub(crate) fn status(parts: &WorkerParts, now: Time, host: Option<&str>) -> ControlReply {
    let facts = NodeFacts::new(parts, now);
    let hosts = match host {
        None => facts.all(now),
        Some(_) if parts.config.is_router() => {
            let text = "this node is a router, which hides nothing of itself: ask at a host";
            return ControlReply::error(ErrorCode::BadRequest, text);
        }
        Some(name) => match facts.named(name) {
            Ok(host) => vec![host],
            Err(reply) => return reply,
        },
    };
    let relays = facts.relays();
    let not_judged = hosts.len().saturating_sub(JUDGED_MAX) as u32;
    let judged = hosts.into_iter().take(JUDGED_MAX).map(|host| facts.report(host));
    let mut reports: Vec<HostProtection> = judged.collect();
    reports.sort_by_key(HostProtection::holds);
    reports.truncate(HOSTS_MAX);
    ControlReply::Hidden(Box::new(HiddenStatus {
        this_node: parts.config.node.name.clone(),
        role: if parts.config.is_router() { "router" } else { "host" }.into(),
        preset: anonymity::in_force(&parts.config, parts.names.hosts()).as_str().into(),
        members: facts.members(),
        vouchers: vouchers(&relays),
        notes: facts.notes(&relays),
        hosts: reports,
        not_judged,
    }))
}

/// Count of hosts for which every promise holds. None on a router, without traffic, and where
/// nothing is promised.
pub(crate) fn count(parts: &WorkerParts, now: Time) -> Option<HiddenCount> {
    let is_any = anonymity::in_force(&parts.config, parts.names.hosts()) != Preset::Fast
        || parts.node.pool().is_some_and(|pool| !pool.is_empty())
        || !parts.circuits.required.hidden.is_empty()
        || !parts.circuits.met.hosts().is_empty();
    if parts.config.is_router() || !is_any {
        return None;
    }
    // Each reading of metrics counts, and nobody sees who vouches.
    let facts = NodeFacts::without_mandates(parts, now);
    let hosts = facts.all(now).into_iter().take(JUDGED_MAX);
    let kept: Vec<Option<bool>> =
        hosts.map(|host| judge::keeps_promises(&facts.facts(host))).collect();
    let held = kept.iter().filter(|kept| **kept != Some(false)).count() as u32;
    let is_promised = kept.iter().any(Option::is_some);
    is_promised.then_some(HiddenCount { hosts: kept.len() as u32, held })
}

impl<'a> NodeFacts<'a> {
    fn new(parts: &'a WorkerParts, now: Time) -> NodeFacts<'a> {
        let mandates = parts.authority.as_ref().map(AuthorityState::memberships);
        let mandates = mandates.unwrap_or_default().into_iter();
        let mandates = mandates.map(|(name, (mandate, _))| (name, mandate)).collect();
        NodeFacts { mandates, ..NodeFacts::without_mandates(parts, now) }
    }

    fn without_mandates(parts: &'a WorkerParts, now: Time) -> NodeFacts<'a> {
        let views = parts.node.pool().map(|pool| pool.views(now)).unwrap_or_default();
        let views = views.into_iter().map(|view| (view.to, view)).collect();
        NodeFacts { parts, views, mandates: BTreeMap::new(), cover: own_cover(parts) }
    }

    /// Hosts with a session or circuits. Nothing is sent to others, whatever is required.
    fn all(&self, now: Time) -> Vec<&'a ListedHost> {
        let WorkerParts { node, names, config, .. } = self.parts;
        let speaks = |id: HostId, host: &ListedHost| {
            node.edge.is_live(now, id) || self.views.contains_key(&host.address)
        };
        let is_other = |host: &&ListedHost| {
            let id = names.host_id(&host.name).filter(|_| host.name != config.node.name);
            !host.address.is_router() && id.is_some_and(|id| speaks(id, host))
        };
        let hosts = names.hosts().iter().filter(|_| !config.is_router());
        hosts.filter(is_other).collect()
    }

    fn named(&self, name: &str) -> Result<&'a ListedHost, ControlReply> {
        let WorkerParts { names, config, .. } = self.parts;
        let host = names.hosts().holder(name).ok_or_else(|| names.unknown(name))?;
        match host.address.is_router() || host.name == config.node.name {
            false => Ok(host),
            true => {
                let text = format!("{name} is no other host: name a host that this one speaks to");
                Err(ControlReply::error(ErrorCode::BadRequest, text))
            }
        }
    }

    fn report(&self, host: &ListedHost) -> HostProtection {
        judge::judge(&self.facts(host))
    }

    fn facts(&self, host: &ListedHost) -> HostFacts {
        let WorkerParts { node, names, config, .. } = self.parts;
        let hosts = names.hosts();
        let id = names.host_id(&host.name);
        let clear = id.map(|id| node.edge.clear_cells(id)).unwrap_or_default();
        let view = self.views.get(&host.address);
        let problem = view.and_then(|view| view.problem);
        let is_cut = matches!(problem, Some(CircuitProblem::Cut { .. }));
        HostFacts {
            this_node: config.node.name.clone(),
            host: host.name.clone(),
            preset: anonymity::in_force(config, hosts),
            members: self.members(),
            is_required: id.is_some_and(|id| node.edge.is_hidden(id)),
            circuit: view.and_then(|view| self.circuit(view)),
            problem: problem.map(|problem| circuits::problem_words(self.parts, problem)),
            found: view
                .and_then(|view| view.verdict)
                .map(|(verdict, ago)| circuits::found(verdict, ago)),
            is_cut,
            own_routers: self.routers_of(config.addresses(hosts)),
            far_routers: self.routers_of(host.addresses()),
            is_own_invited: self.mandate(&config.node.name).is_some(),
            is_far_invited: self.mandate(&host.name).is_some(),
            has_direct: id.is_some_and(|id| node.edge.direct_terms(id).is_some()),
            clear_cells: clear.since_hidden,
            clear_before: clear.before,
            cover: CoverFacts { far: tier(host), ..self.cover.clone() },
            has_mixes: !hosts.mixes().is_empty(),
        }
    }

    /// The circuit in use, if there is one.
    fn circuit(&self, view: &HostView) -> Option<CircuitFacts> {
        let in_use = view.circuits.first()?;
        let is_silent = in_use.state == CircuitState::Silent;
        (is_silent || in_use.state == CircuitState::InUse).then(|| CircuitFacts {
            relays: in_use.relays.iter().map(|at| self.router(*at)).collect(),
            is_silent,
            is_mixed: in_use.mixes.iter().all(|mix| mix.holds()),
            warnings: view.warnings.clone(),
        })
    }

    fn routers_of(&self, host: NodeAddresses) -> Vec<RouterFacts> {
        host.iter().map(|at| self.router(Address::new(at.router, 0))).collect()
    }

    /// The mandate by which a registrar admitted a member.
    fn mandate(&self, name: &str) -> Option<&'a str> {
        self.mandates.get(name).copied().flatten()
    }

    fn router(&self, at: Address) -> RouterFacts {
        let name = circuits::name(self.parts, at);
        let listed = self.parts.names.hosts().by_address(at);
        let family = listed.and_then(|router| router.carrier.family.as_deref()).map(fold);
        let mandate = self.mandate(&name);
        let voucher = match (mandate, &self.parts.authority) {
            (Some(mandate), _) => format!("registrar of mandate {mandate:?}"),
            (None, Some(_)) => "the authority".into(),
            (None, None) => "the hosts file".into(),
        };
        RouterFacts { name, voucher, is_invited: mandate.is_some(), family }
    }

    fn members(&self) -> MembershipSource {
        let list = self.parts.authority.as_ref().and_then(|a| a.directory.list());
        match (&self.parts.authority, list.is_some_and(|list| list.content().mandates.is_empty())) {
            (None, _) => MembershipSource::HostsFile,
            (Some(_), true) => MembershipSource::Authority,
            (Some(_), false) => MembershipSource::Registrar,
        }
    }

    /// Relays of the list, with the family of each.
    fn relays(&self) -> Vec<(RouterFacts, Option<String>)> {
        let relays = self.parts.names.hosts().iter().filter(|host| host.carrier.relay);
        let family = |host: &ListedHost| host.carrier.family.as_deref().map(fold);
        relays.map(|host| (self.router(host.address), family(host))).collect()
    }

    fn notes(&self, relays: &[(RouterFacts, Option<String>)]) -> Vec<String> {
        let WorkerParts { config, names, .. } = self.parts;
        let routers: Vec<&RouterFacts> = relays.iter().map(|(relay, _)| relay).collect();
        let mut notes: Vec<String> =
            judge::one_voucher(&routers, "relays of the list").into_iter().collect();
        if config.is_router() {
            let mine = |host: &&ListedHost| {
                let here = host.addresses().at(config.address().router);
                here.is_some() && !host.address.is_router()
            };
            let behind = names.hosts().iter().filter(mine).count();
            notes.push(format!(
                "routers hide nothing of themselves: neighbours and observers of the wire see \
                 that this router runs, and with which nodes it has links. This router learns \
                 when the {behind} hosts behind it speak, both addresses of each cell outside \
                 circuits, and the two neighbours of each circuit that passes"
            ));
        }
        notes
    }
}

/// Parties that vouch for these relays, the one with most relays first.
fn vouchers(relays: &[(RouterFacts, Option<String>)]) -> Vec<RelayVoucher> {
    let mut all = BTreeMap::<(&str, bool), (u32, u32, BTreeSet<&str>)>::new();
    for (relay, family) in relays {
        let key = (relay.voucher.as_str(), relay.is_invited);
        let (relays, alone, families) = all.entry(key).or_default();
        *relays += 1;
        match family {
            Some(family) => {
                families.insert(family);
            }
            None => *alone += 1,
        }
    }
    let row = |(party, is_registrar): (&str, bool), relays: u32, families: usize| RelayVoucher {
        party: party.into(),
        is_registrar,
        relays,
        families: families as u32,
    };
    let rows = all
        .into_iter()
        .map(|(key, (relays, alone, families))| row(key, relays, alone as usize + families.len()));
    let mut rows: Vec<RelayVoucher> = rows.collect();
    rows.sort_by_key(|row| std::cmp::Reverse(row.relays));
    rows
}

fn tier(host: &ListedHost) -> Option<String> {
    host.cover.clone().filter(|_| !host.address.is_router())
}

/// Cover of this host's line, without the other host's tier.
fn own_cover(parts: &WorkerParts) -> CoverFacts {
    let hosts = parts.names.hosts();
    let own = hosts.by_name(&parts.config.node.name).and_then(tier);
    let sets = tiers::sets(&parts.config, hosts).into_iter();
    let set = sets.filter(|set| Some(&set.tier) == own.as_ref()).map(|set| set.hosts).max();
    let fault = own.is_some().then(|| cover::own_fault(parts)).flatten();
    CoverFacts { own, fault, far: None, set: set.unwrap_or(0) }
}

#[cfg(test)]
mod tests;
