//! A change of the network's secret during a run: the authority's lists, and the lists and secrets
//! that each node keeps.
//!
//! ```text
//! list 0            list 1: announced,         list 2: switched           list 3: settled
//! no names          the last host is removed   the old one is accepted    only the new one
//! ```
//!
//! Lists pass between neighbours over links that are up, as in the directory's exchange, but
//! without its messages. Messages about the secret are those of the nodes.

use core::time::Duration;
use std::collections::BTreeMap;

use shoal_crypto::{NetworkSecret, NetworkSecrets, Rng};
use shoal_directory::{SecretChange, SecretNames, SecretRotation};
use shoal_wire::{LinkId, Time};

use crate::options::{SimulationOptions, seed_bytes};
use crate::plan::{NetworkPlan, START};
use crate::plant::InjectedFault;

/// Number of the newest list.
pub(crate) const LISTS: usize = 3;
/// Time after the faults until which the old secret is accepted. By then all nodes have been
/// reachable.
const OVERLAP: Duration = Duration::from_secs(10);
/// Longest time for a disk to store a secret, in milliseconds.
const WRITE_MS: u64 = 200;
/// Longest time after list 1 until a link with the removed member ends.
const LINKS_END: Duration = Duration::from_millis(500);

/// Initial secret of the network, which is in all nodes' files.
pub(crate) fn old(options: &SimulationOptions) -> NetworkSecret {
    NetworkSecret(seed_bytes(options.seed, "network"))
}

/// The next secret.
pub(crate) fn new(options: &SimulationOptions) -> NetworkSecret {
    NetworkSecret(seed_bytes(options.seed, "the next network"))
}

/// Names of the secrets in a list.
fn names(options: &SimulationOptions, list: usize) -> Option<SecretNames> {
    let (old, new) = (old(options).name(), new(options).name());
    let (current, change) = match list {
        0 => return None,
        1 => (old, SecretChange::Next(new)),
        2 => (new, SecretChange::Previous(old, u64::MAX)),
        _ => (new, SecretChange::Settled),
    };
    Some(SecretNames { current, change })
}

/// Times at which the authority signs lists 1 to 3.
pub(crate) fn times(options: &SimulationOptions, plan: &NetworkPlan) -> [Time; LISTS] {
    let mut rng = Rng::new(seed_bytes(options.seed, "rotation"));
    let mut percent = |from: u64| {
        let ms = options.trouble().as_millis() as u64 * (from + rng.below(10)) / 100;
        START + Duration::from_millis(ms)
    };
    [percent(10), percent(50), plan.calm_from + OVERLAP]
}

/// The member that list 1 removes. None in runs without a change of the secret.
pub(crate) fn removed(options: &SimulationOptions, plan: &NetworkPlan) -> Option<usize> {
    options.rotation.then(|| plan.nodes.len() - 1)
}

#[derive(Clone, Debug, Default)]
struct StoredSecrets {
    list: usize,
    secrets: Vec<NetworkSecret>,
}

/// A pending write to the disk.
struct PendingWrite {
    until: Time,
    all: Vec<NetworkSecret>,
    new: Option<NetworkSecret>,
}

/// State of one node, running or not.
pub(crate) struct NodeRotation {
    /// Secrets of the running node, and the number of its start.
    running: Option<(u32, SecretRotation)>,
    kept: StoredSecrets,
    write: Option<PendingWrite>,
    /// Start of each link that is up, at the last look.
    links: BTreeMap<LinkId, Time>,
    /// Time at which the link with the removed member ends.
    ends_at: Option<Time>,
    rng: Rng,
    plant: Option<InjectedFault>,
}

impl NodeRotation {
    pub(crate) fn new(options: &SimulationOptions, node: usize) -> NodeRotation {
        NodeRotation {
            running: None,
            kept: StoredSecrets::default(),
            write: None,
            links: BTreeMap::new(),
            ends_at: None,
            rng: Rng::new(seed_bytes(options.seed, &format!("turn {node}"))),
            plant: options.plant,
        }
    }

    /// Empties the disk. The node's first secret is in its configuration.
    pub(crate) fn wipe(&mut self) {
        self.kept = StoredSecrets::default();
    }

    /// Number of the node's newest list.
    pub(crate) fn list(&self) -> usize {
        self.kept.list
    }

    /// Follows starts and stops. `run` is the number of the current start; None while the node is
    /// down.
    pub(crate) fn follow(&mut self, now: Time, options: &SimulationOptions, run: Option<u32>) {
        if self.running.as_ref().map(|(known, _)| *known) == run {
            return;
        }
        // Pending writes and all links are lost.
        (self.running, self.write, self.ends_at) = (None, None, None);
        self.links.clear();
        let Some(run) = run else { return };
        if self.plant == Some(InjectedFault::SecretForgotten) {
            self.kept.secrets.clear();
        }
        let rotation = SecretRotation::new(old(options), self.kept.secrets.clone(), true);
        self.running = Some((run, rotation));
        if self.kept.list > 0 {
            self.ends_at = Some(now);
        }
        self.look(now, options);
    }

    /// Stores and applies a newer list.
    pub(crate) fn take_list(&mut self, now: Time, options: &SimulationOptions, list: usize) {
        if self.kept.list == 0 {
            let after = self.rng.below(LINKS_END.as_millis() as u64);
            self.ends_at = Some(now + Duration::from_millis(after));
        }
        self.kept.list = list;
        self.look(now, options);
    }

    /// Simulates the operator who stores the new secret beside the node's own one.
    pub(crate) fn offer(&mut self, now: Time, options: &SimulationOptions) {
        let rotation = self.running.as_mut().map(|(_, rotation)| rotation);
        let wants = |rotation: &&mut SecretRotation| {
            rotation.known().find(new(options).name()).is_none() && !rotation.is_offered()
        };
        if let Some(rotation) = rotation.filter(wants) {
            rotation.offer(Some(new(options)));
            self.look(now, options);
        }
    }

    fn look(&mut self, now: Time, options: &SimulationOptions) {
        let Some((_, rotation)) = &mut self.running else { return };
        rotation.look(now, names(options, self.kept.list).as_ref(), 0, true);
        if let Some(to_keep) = rotation.to_keep().filter(|_| self.write.is_none()) {
            rotation.note_given();
            let until = now + Duration::from_millis(self.rng.below(WRITE_MS));
            self.write = Some(PendingWrite { until, all: to_keep.all, new: to_keep.new });
        }
    }

    /// Completes the write if it is due.
    pub(crate) fn finish_write(&mut self, now: Time, options: &SimulationOptions) {
        let Some(write) = self.write.take_if(|write| write.until <= now) else { return };
        self.kept.secrets = write.all;
        if let Some((_, rotation)) = &mut self.running {
            rotation.kept(write.new, true);
        }
        self.look(now, options);
    }

    /// The rotation machine, while the node runs.
    pub(crate) fn rotation(&mut self) -> Option<&mut SecretRotation> {
        self.running.as_mut().map(|(_, rotation)| rotation)
    }

    /// Stores a secret that a neighbour gave.
    pub(crate) fn learnt(&mut self, now: Time, options: &SimulationOptions) {
        self.look(now, options);
    }

    /// Takes the accepted secrets, if they changed.
    pub(crate) fn take_new(&mut self) -> Option<NetworkSecrets> {
        let mut secrets = self.rotation()?.take_new()?;
        if self.plant == Some(InjectedFault::SecretDropped) && self.kept.list > 1 {
            secrets.other = None;
        }
        Some(secrets)
    }

    /// Reports changes of links to the rotation machine.
    pub(crate) fn see_links(&mut self, now: Time, up: &[(LinkId, Time, shoal_wire::Address)]) {
        let Some((_, rotation)) = &mut self.running else { return };
        let still = |link: &LinkId| up.iter().any(|(other, ..)| other == link);
        self.links.retain(|link, _| {
            let stays = still(link);
            if !stays {
                rotation.link_down(*link);
            }
            stays
        });
        for &(link, since, address) in up {
            if self.links.insert(link, since) != Some(since) {
                rotation.link_up(now, link, address);
            }
        }
    }

    /// True once when the link with the removed member must end.
    pub(crate) fn ends_link(&mut self, now: Time) -> bool {
        let ends = self.ends_at.take_if(|at| *at <= now).is_some();
        ends && self.plant != Some(InjectedFault::SecretGiven)
    }

    /// True if a neighbour may be given the secret.
    pub(crate) fn may_give(&self, to_removed: bool) -> bool {
        !to_removed || self.kept.list == 0 || self.plant == Some(InjectedFault::SecretGiven)
    }

    /// True if the node uses and accepts only the new secret.
    pub(crate) fn is_settled(&self, options: &SimulationOptions) -> bool {
        let name = new(options).name();
        self.running.as_ref().is_some_and(|(_, rotation)| {
            let in_force = rotation.in_force();
            in_force.first.name() == name && in_force.other.is_none()
        })
    }

    /// True if the node has the new secret, in memory or on disk.
    pub(crate) fn has_new(&self, options: &SimulationOptions) -> bool {
        let name = new(options).name();
        let knows = |(_, rotation): &(u32, SecretRotation)| rotation.known().find(name).is_some();
        self.running.as_ref().is_some_and(knows)
            || self.kept.secrets.iter().any(|secret| secret.name() == name)
    }
}
