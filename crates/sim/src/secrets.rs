//! The network's secret changes while a run goes on: which lists there are and when, and what each
//! node keeps of lists and secrets.
//!
//! ```text
//! list 0            list 1: announced,          list 2: switched        list 3: settled
//! no names          the last host is removed    the old one is taken    the new one alone
//! ```
//!
//! Lists pass from neighbour to neighbour over links that are up, as the directory's exchange has
//! them pass, without its messages; messages about the secret are those of the nodes.

use core::time::Duration;
use std::collections::BTreeMap;

use shoal_crypto::{NetworkSecret, NetworkSecrets, Rng};
use shoal_directory::{Rotation, SecretChange, SecretNames};
use shoal_wire::{LinkId, Time};

use crate::options::{Options, seed_bytes};
use crate::plan::{Plan, START};
use crate::plant::Plant;

/// The newest list.
pub(crate) const LISTS: usize = 3;
/// How long after the trouble the old secret is taken: by then everybody was reachable.
const OVERLAP: Duration = Duration::from_secs(10);
/// How long a disk takes at most to keep a secret.
const WRITE_MS: u64 = 200;
/// Links of a member that was removed end within this time of the list.
const LINKS_END: Duration = Duration::from_millis(500);

/// The secret that the network begins with, as all nodes' files have it.
pub(crate) fn old(options: &Options) -> NetworkSecret {
    NetworkSecret(seed_bytes(options.seed, "network"))
}

/// The one that takes its place.
pub(crate) fn new(options: &Options) -> NetworkSecret {
    NetworkSecret(seed_bytes(options.seed, "the next network"))
}

/// What a list says of the secrets.
fn names(options: &Options, list: usize) -> Option<SecretNames> {
    let (old, new) = (old(options).name(), new(options).name());
    let (current, change) = match list {
        0 => return None,
        1 => (old, SecretChange::Next(new)),
        2 => (new, SecretChange::Previous(old, u64::MAX)),
        _ => (new, SecretChange::Settled),
    };
    Some(SecretNames { current, change })
}

/// When the authority signs each list, from the first on.
pub(crate) fn times(options: &Options, plan: &Plan) -> [Time; LISTS] {
    let mut rng = Rng::new(seed_bytes(options.seed, "rotation"));
    let mut percent = |from: u64| {
        let ms = options.trouble().as_millis() as u64 * (from + rng.below(10)) / 100;
        START + Duration::from_millis(ms)
    };
    [percent(10), percent(50), plan.calm_from + OVERLAP]
}

/// The member that list 1 removes; none where nothing changes.
pub(crate) fn removed(options: &Options, plan: &Plan) -> Option<usize> {
    options.rotation.then(|| plan.nodes.len() - 1)
}

/// What the disk has.
#[derive(Clone, Debug, Default)]
struct Kept {
    list: usize,
    secrets: Vec<NetworkSecret>,
}

/// A write that is on its way.
struct Write {
    until: Time,
    all: Vec<NetworkSecret>,
    new: Option<NetworkSecret>,
}

/// One node's part, whether it runs or not.
pub(crate) struct Turn {
    /// While it runs: its secrets, and which start of the node they are of.
    running: Option<(u32, Rotation)>,
    kept: Kept,
    write: Option<Write>,
    /// Since when each link has been up, as it was seen last.
    links: BTreeMap<LinkId, Time>,
    /// When its link with the removed member ends.
    ends_at: Option<Time>,
    rng: Rng,
    plant: Option<Plant>,
}

impl Turn {
    pub(crate) fn new(options: &Options, node: usize) -> Turn {
        Turn {
            running: None,
            kept: Kept::default(),
            write: None,
            links: BTreeMap::new(),
            ends_at: None,
            rng: Rng::new(seed_bytes(options.seed, &format!("turn {node}"))),
            plant: options.plant,
        }
    }

    /// Its disk is empty; its own secret is part of its configuration.
    pub(crate) fn wipe(&mut self) {
        self.kept = Kept::default();
    }

    /// The number of the list that it has.
    pub(crate) fn list(&self) -> usize {
        self.kept.list
    }

    /// Which start of the node runs; none while it does not.
    pub(crate) fn follow(&mut self, now: Time, options: &Options, run: Option<u32>) {
        if self.running.as_ref().map(|(known, _)| *known) == run {
            return;
        }
        // What was on its way to the disk is lost, and all links are.
        (self.running, self.write, self.ends_at) = (None, None, None);
        self.links.clear();
        let Some(run) = run else { return };
        if self.plant == Some(Plant::SecretForgotten) {
            self.kept.secrets.clear();
        }
        let rotation = Rotation::new(old(options), self.kept.secrets.clone(), true);
        self.running = Some((run, rotation));
        if self.kept.list > 0 {
            self.ends_at = Some(now);
        }
        self.look(now, options);
    }

    /// A newer list is in force, and kept.
    pub(crate) fn take_list(&mut self, now: Time, options: &Options, list: usize) {
        if self.kept.list == 0 {
            let after = self.rng.below(LINKS_END.as_millis() as u64);
            self.ends_at = Some(now + Duration::from_millis(after));
        }
        self.kept.list = list;
        self.look(now, options);
    }

    /// The operator puts the new secret beside the node's own.
    pub(crate) fn offer(&mut self, now: Time, options: &Options) {
        let rotation = self.running.as_mut().map(|(_, rotation)| rotation);
        let wants = |rotation: &&mut Rotation| {
            rotation.known().find(new(options).name()).is_none() && !rotation.is_offered()
        };
        if let Some(rotation) = rotation.filter(wants) {
            rotation.offer(Some(new(options)));
            self.look(now, options);
        }
    }

    fn look(&mut self, now: Time, options: &Options) {
        let Some((_, rotation)) = &mut self.running else { return };
        rotation.look(now, names(options, self.kept.list).as_ref(), 0, true);
        if let Some(to_keep) = rotation.to_keep().filter(|_| self.write.is_none()) {
            rotation.note_given();
            let until = now + Duration::from_millis(self.rng.below(WRITE_MS));
            self.write = Some(Write { until, all: to_keep.all, new: to_keep.new });
        }
    }

    /// Ends the write that is due.
    pub(crate) fn finish_write(&mut self, now: Time, options: &Options) {
        let Some(write) = self.write.take_if(|write| write.until <= now) else { return };
        self.kept.secrets = write.all;
        if let Some((_, rotation)) = &mut self.running {
            rotation.kept(write.new, true);
        }
        self.look(now, options);
    }

    /// The machine, while the node runs.
    pub(crate) fn rotation(&mut self) -> Option<&mut Rotation> {
        self.running.as_mut().map(|(_, rotation)| rotation)
    }

    /// A neighbour gave a secret: it is to be kept.
    pub(crate) fn learnt(&mut self, now: Time, options: &Options) {
        self.look(now, options);
    }

    /// The secrets that count, if others do than before.
    pub(crate) fn take_new(&mut self) -> Option<NetworkSecrets> {
        let mut secrets = self.rotation()?.take_new()?;
        if self.plant == Some(Plant::SecretDropped) && self.kept.list > 1 {
            secrets.other = None;
        }
        Some(secrets)
    }

    /// Compares links that are up with those that were, and has the machine know.
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

    /// Whether the link with the removed member is to end now.
    pub(crate) fn ends_link(&mut self, now: Time) -> bool {
        let ends = self.ends_at.take_if(|at| *at <= now).is_some();
        ends && self.plant != Some(Plant::SecretGiven)
    }

    /// Whether a neighbour may be given the secret.
    pub(crate) fn may_give(&self, to_removed: bool) -> bool {
        !to_removed || self.kept.list == 0 || self.plant == Some(Plant::SecretGiven)
    }

    /// Whether it knows the new secret, and calls and is called with that alone.
    pub(crate) fn is_settled(&self, options: &Options) -> bool {
        let name = new(options).name();
        self.running.as_ref().is_some_and(|(_, rotation)| {
            let in_force = rotation.in_force();
            in_force.first.name() == name && in_force.other.is_none()
        })
    }

    /// Whether it has the new secret, wherever that came from.
    pub(crate) fn has_new(&self, options: &Options) -> bool {
        let name = new(options).name();
        let knows = |(_, rotation): &(u32, Rotation)| rotation.known().find(name).is_some();
        self.running.as_ref().is_some_and(knows)
            || self.kept.secrets.iter().any(|secret| secret.name() == name)
    }
}
