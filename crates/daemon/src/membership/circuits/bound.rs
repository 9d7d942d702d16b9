//! Hosts that are reached only over circuits, and the reason for each.

use std::collections::BTreeSet;

use jiff::SignedDuration;
use jiff::civil::{Date, DateTime};
use shoal_crypto::PublicKey;
use shoal_wire::Time;

use super::met::MetHostsFile;
use super::{hidden, listed, unlisted};
use crate::config::NodeConfig;
use crate::control::api::BoundReason;
use crate::membership::authority::AuthorityState;
use crate::membership::hosts::{HostList, ListedHost};
use crate::worker::clock::unix_ms;

/// The day from which clocks count seconds.
const EPOCH: Date = Date::constant(1970, 1, 1);

/// Reason why a host is reached only over circuits.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum BoundBy {
    /// The network's list requires it.
    List,
    /// The node's file requires it.
    File,
    /// The node's file names a host that the list lacks, so all hosts count.
    Unlisted,
    /// There was a session over a circuit; the day of the first one, if known.
    Met(Option<Date>),
}

impl From<BoundBy> for BoundReason {
    fn from(by: BoundBy) -> BoundReason {
        let (by, since) = match by {
            BoundBy::List => (BoundReason::LIST, None),
            BoundBy::File => (BoundReason::FILE, None),
            BoundBy::Unlisted => (BoundReason::UNLISTED, None),
            BoundBy::Met(since) => (BoundReason::MET, since),
        };
        BoundReason { by: by.into(), since: since.map(|day| day.to_string()) }
    }
}

/// Hosts with which circuits are required, whether they were met or not.
#[derive(Debug, Default)]
pub struct RequiredHosts {
    /// Names of all of them.
    pub(crate) hidden: BTreeSet<String>,
    /// Members of `hidden` for which the list requires circuits.
    pub(super) listed: BTreeSet<String>,
    /// Names in the node's file that are [`unlisted`].
    pub(crate) unlisted: Vec<String>,
}

impl RequiredHosts {
    /// The requirements of a list and of `config`.
    pub fn new(
        config: &NodeConfig,
        hosts: &HostList,
        authority: Option<&AuthorityState>,
        now: Time,
    ) -> RequiredHosts {
        let unlisted = unlisted(config, hosts, authority).into_iter().map(String::from);
        RequiredHosts {
            hidden: hidden(config, hosts, authority, now),
            listed: listed(config, hosts, authority, now),
            unlisted: unlisted.collect(),
        }
    }

    /// Reason why circuits are required with the host of this name.
    pub fn by(&self, name: &str) -> Option<BoundBy> {
        let by = match (self.listed.contains(name), self.unlisted.is_empty()) {
            (true, _) => BoundBy::List,
            (false, true) => BoundBy::File,
            (false, false) => BoundBy::Unlisted,
        };
        self.hidden.contains(name).then_some(by)
    }

    /// Hosts of the file that are bound to circuits only because they were met: those of the list,
    /// and the keys of others.
    pub fn only_met<'a>(
        &'a self,
        hosts: &'a HostList,
        met: &'a MetHostsFile,
    ) -> impl Iterator<Item = MetName<'a>> {
        let named = met.hosts().iter().map(move |met| MetName {
            key: met.key,
            host: hosts.by_key(&met.key),
            since: met.since,
        });
        named.filter(move |met| met.host.is_none_or(|host| self.by(&host.name).is_none()))
    }
}

/// A host that was met over a circuit, as the list names it.
pub struct MetName<'a> {
    pub key: PublicKey,
    pub host: Option<&'a ListedHost>,
    pub since: Option<Date>,
}

impl MetName<'_> {
    /// Number of letters by which a key is named.
    const LETTERS: usize = 8;

    /// Name for people: the first letters of the key of a host that left the list.
    pub fn shown(&self) -> String {
        let short = || self.key.to_string()[..Self::LETTERS].to_owned();
        self.host.map_or_else(short, |host| host.name.clone())
    }
}

/// The only host of the file that the list lacks, and that has this key or these first letters of
/// it.
pub fn left_the_list(hosts: &HostList, met: &MetHostsFile, key: &str) -> Option<PublicKey> {
    let is_it = |known: &PublicKey| {
        let text = known.to_string();
        text == key || (key.len() == MetName::LETTERS && text.starts_with(key))
    };
    let mut found = met.hosts().iter().map(|met| met.key).filter(is_it);
    let only = found.next().filter(|_| found.next().is_none())?;
    hosts.by_key(&only).is_none().then_some(only)
}

/// The current day in UTC.
pub(super) fn today() -> Date {
    day(unix_ms() / 1_000)
}

/// The day of a time in seconds since 1970.
fn day(unix_s: u64) -> Date {
    let since = SignedDuration::from_secs(i64::try_from(unix_s).unwrap_or(i64::MAX));
    DateTime::from(EPOCH).saturating_add(since).date()
}

/// The beginning of a day, in seconds since 1970.
pub fn day_unix_s(day: Date) -> u64 {
    u64::try_from(day.duration_since(EPOCH).as_secs()).unwrap_or(0)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn days_are_those_of_the_calendar() {
        let days = [0, 86_399, 86_400, 951_782_400, 1_795_910_400].map(|at| day(at).to_string());
        let dates = ["1970-01-01", "1970-01-01", "1970-01-02", "2000-02-29", "2026-11-29"];
        assert_eq!(days, dates);
        assert_eq!(day(u64::MAX).to_string().len(), 10);
        assert_eq!(day_unix_s(day(1_795_910_400 + 5)), 1_795_910_400);
    }
}
