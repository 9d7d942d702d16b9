//! The part of `shoal check` about mixes.

use serde::Serialize;
use shoal_daemon::config::NodeConfig;
use shoal_daemon::membership::circuits::{max_added, relays};
use shoal_daemon::membership::hosts::{HostList, ListedHost};
use shoal_onion::pool::mixes::{choose, loses_order, mean};

use crate::mixes::{MixReport, TOO_LONG, shown};
use crate::units::counted;

/// Mixes of relays for cells of circuits, in a network that has mixes.
#[derive(Serialize)]
pub struct MixingReport {
    /// Mixes that the network offers, in the policy's order.
    offered: Vec<MixReport>,
    /// Relays with one mix for all circuits, and the name of that mix.
    relays: Vec<(String, String)>,
    /// None on a router, which begins no circuits.
    own: Option<OwnMix>,
}

/// Mix of this host's circuits.
#[derive(Serialize)]
struct OwnMix {
    /// Name of the mix, if any.
    mix: Option<String>,
    /// Relays of each circuit.
    relays: u8,
    /// Mean delay, one way, that the mixes of all relays add together.
    added_ms: f64,
    /// True if mixes may delay packets longer than hosts wait for earlier ones.
    loses_order: bool,
    max_added_ms: Option<u32>,
}

/// Mixes of relays, if the network has any.
pub fn mixing(config: &NodeConfig, hosts: &HostList) -> Option<MixingReport> {
    let mixes = hosts.mixes();
    let named = |host: &ListedHost| {
        let mix = host.carrier.mix.clone().filter(|_| hosts.mix_of(host).is_some())?;
        Some((host.name.clone(), mix))
    };
    let own = || {
        let section = &config.circuits;
        let (relays, max_added) = (relays(config, hosts), max_added(config, hosts));
        let own = vec![None; relays.into()];
        let (chosen, _) = choose(&own, &mixes.offer(), max_added);
        let mix = mixes.iter().find(|mix| Some(&mix.strategy) == chosen.first());
        OwnMix {
            mix: mix.map(|mix| mix.name.clone()),
            relays,
            added_ms: mean(&chosen).as_secs_f64() * 1e3,
            loses_order: loses_order(&chosen),
            max_added_ms: section.max_added_ms.filter(|_| max_added.is_some()),
        }
    };
    (!mixes.is_empty()).then(|| MixingReport {
        offered: shown(mixes),
        relays: hosts.iter().filter_map(named).collect(),
        own: (!config.is_router()).then(own),
    })
}

impl MixingReport {
    /// In words, line by line.
    pub fn lines(&self) -> Vec<String> {
        let offered: Vec<String> = self.offered.iter().map(MixReport::text).collect();
        let mut lines = vec![format!("    mixes of the network: {}", offered.join("; "))];
        if let (Some(own), Some(first)) = (&self.own, self.offered.first()) {
            lines.push(format!("    {}", own.text(&first.name)));
            lines.extend(own.loses_order.then(|| format!("    warning: {TOO_LONG}")));
        }
        for (relay, mix) in &self.relays {
            lines.push(format!("    {relay} uses {mix} for all circuits, whatever they ask for"));
        }
        lines
    }
}

impl OwnMix {
    /// Mix of this host's circuits, and hosts whose circuits have the same one. `first` is the mix
    /// of hosts that set no limit.
    fn text(&self, first: &str) -> String {
        let OwnMix { mix, relays, added_ms, max_added_ms, .. } = self;
        let (why, it) = match max_added_ms {
            Some(ms) => (format!(" (max_added_ms = {ms})"), "it"),
            None => (String::new(), "max_added_ms"),
        };
        let what = match mix {
            Some(mix) => {
                let over = counted(usize::from(*relays), "relay");
                format!("use {mix}{why}: {added_ms:.1} ms more one way over {over} on average")
            }
            None => format!("go without mixes{why}"),
        };
        let others = match mix.as_deref() == Some(first) {
            true => format!("as at all hosts that leave {it} unset"),
            false => {
                format!("relays can tell them from those of hosts that leave it unset ({first})")
            }
        };
        format!("circuits of this host {what}; {others}")
    }
}

#[cfg(test)]
mod tests {
    use std::path::Path;

    use super::*;

    const MIXES: &str = "[[mix]]\nname = \"slow\"\nkind = \"stop-and-go\"\nmean_ms = 5\n\
                         [[mix]]\nname = \"steps\"\nkind = \"timed\"\nevery_ms = 2.5\n";

    fn said(address: &str, circuits: &str, mixes: &str) -> Vec<String> {
        let node = format!(
            "[node]\nname = \"a\"\naddress = {address:?}\nkey_file = \"key\"\n\
             network_secret_file = \"secret\"\n[circuits]\n{circuits}\n"
        );
        let config = NodeConfig::parse(Path::new("node.toml"), &node).unwrap();
        let key = shoal_crypto::Identity::from_seed([1; 32]).public();
        let router = format!("[[host]]\nname = \"r1\"\naddress = \"1.0\"\nkey = \"{key}\"\n");
        let relay = if mixes.is_empty() { "" } else { "relay = true\nmix = \"steps\"\n" };
        let hosts = HostList::parse(Path::new("hosts.toml"), &format!("{router}{relay}{mixes}"));
        mixing(&config, &hosts.unwrap()).iter().flat_map(MixingReport::lines).collect()
    }

    #[test]
    fn mixes_that_take_longer_than_order_can_wait_are_named() {
        let warns = |mean_ms: u32| {
            let mixes =
                format!("[[mix]]\nname = \"steps\"\nkind = \"stop-and-go\"\nmean_ms = {mean_ms}\n");
            said("1.1", "", &mixes).iter().any(|line| line.contains("out of order"))
        };
        assert!(warns(200) && !warns(50));
    }

    #[test]
    fn what_a_circuit_of_this_host_adds_and_who_else_has_the_same_is_said() {
        assert!(said("1.1", "", "").is_empty());
        let lines = said("1.1", "", MIXES);
        let offered = "slow (stop-and-go 5 ms, at most 25 ms); steps (timed 2.5 ms)";
        assert_eq!(lines[0], format!("    mixes of the network: {offered}"));
        let own = "use slow: 14.5 ms more one way over 3 relays on average";
        let others = "as at all hosts that leave max_added_ms unset";
        assert_eq!(lines[1], format!("    circuits of this host {own}; {others}"));
        assert_eq!(lines[2], "    r1 uses steps for all circuits, whatever they ask for");
        assert_eq!(said("1.0", "", MIXES).len(), 2, "a router begins no circuits");
        let own = |circuits: &str| said("1.1", circuits, MIXES)[1].clone();
        let text = own("max_added_ms = 10\nrelays = 1");
        assert!(text.contains("use slow (max_added_ms = 10): 4.8 ms more one way over one relay"));
        assert!(text.ends_with("as at all hosts that leave it unset"), "{text}");
        let text = own("max_added_ms = 10");
        assert!(text.contains("use steps (max_added_ms = 10): 3.8 ms more one way"), "{text}");
        assert!(
            text.ends_with("relays can tell them from those of hosts that leave it unset (slow)")
        );
        for ms in [0, 3] {
            let text = own(&format!("max_added_ms = {ms}"));
            assert!(text.contains(&format!("go without mixes (max_added_ms = {ms}); relays can")));
        }
    }
}
