//! State of the authority's list in this node, as warnings for the operator.

use std::collections::{BTreeMap, BTreeSet};

use shoal_crypto::PublicKey;
use shoal_crypto::encoding::hex;
use shoal_directory::{CLOCK_SKEW_S, Freshness, Member, Register};
use shoal_wire::Time;

use crate::config::NeighbourPolicy;
use crate::control::api;
use crate::membership::authority::{AuthorityState, unix_s};
use crate::membership::{expiry, staleness};

/// Names in one warning.
const NAMED_MAX: usize = 8;

impl AuthorityState {
    /// Warnings for the operator, with names.
    pub fn warnings(&self, now: Time) -> Vec<String> {
        self.all_warnings(now, |nobody| {
            let more = match nobody.len().saturating_sub(NAMED_MAX) {
                0 => String::new(),
                more => format!(" and {more} more"),
            };
            let named = nobody[..nobody.len().min(NAMED_MAX)].join(", ");
            format!("[[link]] sections that name no member in force: {named}{more}")
        })
    }

    /// The warnings of [`AuthorityState::warnings`] without names, for the log.
    pub fn unnamed_warnings(&self, now: Time) -> Vec<String> {
        self.all_warnings(now, |nobody| {
            let n = nobody.len();
            format!("{n} [[link]] sections name no member in force: `shoal status` names them")
        })
    }

    fn all_warnings(&self, now: Time, unlinked: impl Fn(&[&str]) -> String) -> Vec<String> {
        let faults = self.watcher.iter().flat_map(|watcher| watcher.faults());
        let mut warnings: Vec<String> = faults.chain(self.fault.clone()).collect();
        warnings.extend(self.supplements.fault.clone());
        warnings.extend(self.secret_warnings());
        if self.links.is_empty() && self.accept.accept == NeighbourPolicy::Configured {
            warnings.push(crate::config::NO_LINK.to_string());
        }
        warnings.extend(staleness::behind(self.directory.behind_s(now, unix_s()), CLOCK_SKEW_S));
        let age_s = self.directory.age_s(now, unix_s());
        warnings.extend(age_s.and_then(|age_s| staleness::words(age_s, self.max_staleness_s)));
        match self.directory.standing(now, unix_s()) {
            Freshness::Missing => warnings.push("the authority's list is missing".to_string()),
            Freshness::Stale => {}
            Freshness::Fresh
                if self.directory.left_out().any(|(member, _)| self.is_own(member)) =>
            {
                warnings.push(
                    "this version does not know a critical field of this node's entry in the \
                     authority's list, so only newer lists pass: update shoal"
                        .to_string(),
                );
            }
            Freshness::Fresh if self.linked(now).is_some() => warnings.push(
                "this node's membership has expired, so only newer lists pass: sign it again with \
                 `shoal authority sign --dir DIR NAME --days N` and copy the list to any node"
                    .to_string(),
            ),
            Freshness::Fresh if self.own_removal().is_some() => {
                warnings.extend(self.own_removal().map(|removal| self.removal_words(removal)));
            }
            Freshness::Fresh if !self.is_member(now) => warnings.push(
                "the authority's list has no member in force with this node's name, address and \
                 key: the node reaches nobody"
                    .to_string(),
            ),
            Freshness::Fresh => {
                let own = self.own(self.directory.members(now, unix_s()));
                if self.me.interface && own.is_some_and(|own| !own.interface) {
                    warnings.push(
                        "the authority's list says that this node has no interface: nobody \
                         reaches its programs; sign it with `shoal authority sign --dir DIR NAME \
                         --interface`"
                            .to_string(),
                    );
                }
                let hosts = self.hosts(now);
                let peers = self.links.iter().map(|link| link.peer.as_str());
                let nobody: Vec<&str> =
                    peers.filter(|peer| hosts.by_name(peer).is_none()).collect();
                if !nobody.is_empty() {
                    warnings.push(unlinked(&nobody));
                }
            }
        }
        warnings.extend(self.left_out());
        warnings.extend(self.directory.registers().filter_map(frozen));
        warnings.extend(self.twin_names());
        warnings.extend(self.ends(now));
        warnings
    }

    /// Memberships of all listed members, by name. Each has the mandate under which a registrar
    /// admitted the member (none if the authority did) and its end in seconds since 1970.
    pub(crate) fn memberships(&self) -> BTreeMap<&str, (Option<&str>, u64)> {
        let listed = self.directory.listed();
        let mut all: BTreeMap<&str, (Option<&str>, u64)> =
            listed.map(|member| (self.shown_name(member), (None, member.expires_unix_s))).collect();
        let own = self.directory.list().into_iter().flat_map(|list| &list.content().members);
        let own: BTreeSet<&str> = own.map(|signed| signed.member.name.as_str()).collect();
        for register in self.directory.registers() {
            let name = register.mandate().name.as_str();
            for member in register.members().filter(|member| !own.contains(member.name.as_str())) {
                if let Some(of) = all.get_mut(self.shown_name(member)) {
                    of.0.get_or_insert(name);
                }
            }
        }
        all
    }

    /// Warnings about ends within two weeks: of this node's membership and of its registrar's
    /// mandate.
    fn ends(&self, now: Time) -> Vec<String> {
        let at = unix_s() + self.directory.behind_s(now, unix_s());
        let Some(me) = self.own(self.directory.members(now, unix_s())) else { return Vec::new() };
        let register = self.registrar_of(me);
        let own = expiry::membership(me.expires_unix_s, at, register.is_some());
        let mandate = register.and_then(|r| expiry::mandate(r.mandate().until_unix_s, at));
        let mandate = mandate.map(|words| format!("the mandate of this node's registrar {words}"));
        own.into_iter().chain(mandate).collect()
    }

    /// The register that admitted this member, unless the authority's list has the member itself.
    /// Both may have it, for example after `shoal authority adopt`.
    fn registrar_of(&self, member: &Member) -> Option<&Register> {
        let is_listed = self.directory.list().is_some_and(|list| {
            list.content().members.iter().any(|signed| signed.member.key == member.key)
        });
        let own = |register: &&Register| register.members().any(|other| other.key == member.key);
        self.directory.registers().find(own).filter(|_| !is_listed)
    }

    /// Warning about members left out because their entries have fields unknown to this version.
    fn left_out(&self) -> Option<String> {
        let (_, field) = self.directory.left_out().next()?;
        let count = self.directory.left_out().count();
        Some(format!(
            "entries of {count} members have fields that this version does not know (critical \
             field {field}), so they do not count as members: update shoal; `shoal authority list` \
             names them"
        ))
    }

    /// State of the list, for `shoal status`.
    pub fn status(&self, now: Time) -> api::AuthorityStatus {
        let standing = match self.directory.standing(now, unix_s()) {
            Freshness::Missing => "missing",
            Freshness::Stale => "stale",
            Freshness::Fresh if self.is_member(now) => "fresh",
            Freshness::Fresh if self.own_removal().is_some() && !self.is_replaced() => "removed",
            Freshness::Fresh => "not_a_member",
        };
        let own = self.own(self.directory.members(now, unix_s()));
        api::AuthorityStatus {
            state: standing.to_string(),
            removed: None,
            list_version: self.in_force.0,
            list_age_s: self.directory.age_s(now, unix_s()).unwrap_or(0),
            max_staleness_s: self.max_staleness_s,
            members: self.in_force.1 as u32,
            refused: self.refused.clone(),
            refusals: self.refusals,
            from_neighbour: self.from_neighbour,
            member_until_unix_s: own.map_or(0, |own| own.expires_unix_s),
            by_registrar: own.is_some_and(|own| self.registrar_of(own).is_some()),
            mandates: self.mandates(),
            secret: self.secret_status(now),
        }
    }

    /// The name under which this node knows a member. Of two members with one name the later one
    /// has a number behind it. This machine keeps its own name, and swaps with the earlier one.
    pub(super) fn shown_name<'a>(&'a self, member: &'a Member) -> &'a str {
        if self.is_own(member) {
            return &member.name;
        }
        let shown = self.directory.shown_name(member);
        let own = self.directory.alias_of(&self.me.key).filter(|_| shown == self.me.name);
        own.unwrap_or(shown)
    }

    /// Warning about names that two registrars gave at once.
    fn twin_names(&self) -> Option<String> {
        let twins =
            self.directory.listed().filter(|member| self.directory.alias_of(&member.key).is_some());
        let count = twins.count();
        (count > 0).then(|| {
            format!(
                "two registrars gave one name at once: {count} members are shown with a number \
                 behind their name; remove each at its registrar, and let it join anew"
            )
        })
    }

    /// Endpoints of a registrar, as text.
    fn door_of(&self, registrar: &PublicKey) -> Vec<String> {
        self.directory.door_of(registrar).iter().map(ToString::to_string).collect()
    }

    /// State of the list's mandates.
    pub(crate) fn mandates(&self) -> Vec<api::MandateStatus> {
        let mandate = |register: &Register| {
            let mandate = register.mandate();
            api::MandateStatus {
                name: mandate.name.clone(),
                id: register.id().to_string(),
                key: mandate.key.to_string(),
                steps: register.len(),
                head: hex(&register.head()),
                members: register.members().count() as u32,
                admitted: register.admitted() as u32,
                most: mandate.most,
                until_unix_s: mandate.until_unix_s,
                endpoints: self.door_of(&mandate.key),
                frozen_at: register.fork().map(|fork| fork[0].step().number),
            }
        };
        self.directory.registers().map(mandate).collect()
    }
}

/// Warning about a registrar that signed two different steps with one number.
fn frozen(register: &Register) -> Option<String> {
    let number = register.fork()?[0].step().number;
    Some(format!(
        "a registrar signed two different supplements with the number {number}, so nothing that it \
         signed from that number on counts: its key is used in two places, or was stolen. Take \
         over its members and give the registrar a mandate with another serial, or another key; \
         `shoal status` names the mandate"
    ))
}
