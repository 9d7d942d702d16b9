//! Hosts that speak with each other over circuits alone: which, and what their nodes are told.

use std::rc::Rc;

use shoal_crypto::Ciphers;
use shoal_onion::path::{Kept, Router, Routers};
use shoal_onion::pool::Pool;
use shoal_wire::{Address, Time};

use crate::check::legs::Legs;
use crate::check::mixes::Mixes;
use crate::check::spoilt::Spoilt;
use crate::ciphers::{self, mix};
use crate::mixes::List;
use crate::node::{Makings, Node};
use crate::options::{Options, seed_bytes};
use crate::plant::Plant;

/// Has leg cells watched, and spoilt by routers; and mixed cells, where relays mix.
pub(crate) fn watch(makings: &Makings) {
    let Makings { options, plan, .. } = makings;
    if options.circuits > 0 {
        let seed = seed_bytes(options.seed, "spoilt");
        ciphers::watch_legs(Legs::default());
        let ppm = options.spoilt_ppm;
        ciphers::watch_spoilt(Spoilt::new(seed, ppm, plan.routers, &plan.nodes));
    }
    if !makings.lists.is_empty() {
        let mix_all = makings.lists.iter().all(List::mixes_all);
        ciphers::watch_mixes(Mixes::new(&plan.nodes[..plan.routers], mix_all));
    }
}

/// Whether all circuits have two relays or more: whatever fails, they are as long as was asked for,
/// or as there are routers.
pub(crate) fn hide_ends(makings: &Makings) -> bool {
    let Makings { options, plan, .. } = makings;
    options.circuits.min(plan.routers as u32) > 1
}

/// The pairs of hosts that no cell may name together.
pub(crate) fn hidden_pairs(makings: &Makings) -> Vec<(Address, Address)> {
    let (plan, options) = (&makings.plan, &makings.options);
    let is_hidden = |a, b| hides(options, a, b) || a < b && options.plant == Some(Plant::Named);
    let hosts = plan.routers..plan.nodes.len();
    let pairs = hosts.clone().flat_map(|a| hosts.clone().map(move |b| (a, b)));
    let hidden = pairs.filter(|&(a, b)| is_hidden(a, b));
    hidden.map(|(a, b)| (plan.nodes[a], plan.nodes[b])).collect()
}

/// Whether two hosts speak with each other over circuits alone.
pub(crate) fn hides(options: &Options, a: usize, b: usize) -> bool {
    let (low, high) = (a.min(b) as u64, a.max(b) as u64);
    let routers = u64::from(options.routers.max(1));
    let hosts = options.circuits > 0 && low >= routers && low != high;
    hosts && mix(options.seed ^ low << 24 ^ high << 44 ^ 0xc1).is_multiple_of(2)
}

impl<C: Ciphers> Node<C> {
    /// Says which routers are relays, and with whom this host speaks over circuits alone.
    pub(crate) fn configure_circuits(&mut self, now: Time) {
        let makings = Rc::clone(&self.makings);
        let (plan, options, at) = (&makings.plan, &makings.options, self.at);
        let address = plan.nodes[at];
        let shown = self.clock.read(now);
        if !address.is_router() {
            let flawed = options.plant == Some(Plant::OneRelay);
            let config = shoal_onion::pool::Config {
                address,
                relays: if flawed { 1 } else { options.circuits as u8 },
                circuits_max: shoal_onion::Limits::HOST.own,
                max_added: None,
            };
            let seed = seed_bytes(options.seed, &format!("pool {at} run {}", self.run));
            let unix_ms = self.clock.wall_ms(options, at, self.run, now);
            let pool = Pool::new(config, Kept::default(), seed, shown, unix_ms);
            self.control.set_pool(pool.expect("one to five relays"));
        }
        self.take_list(now);
        let hidden = |&&other: &&usize| hides(options, at, other);
        let hidden = makings.knows[at].iter().filter(hidden);
        let hidden = hidden.filter_map(|&other| self.host(plan.nodes[other])).collect();
        self.control.set_hidden(&hidden);
    }
    /// Puts the list in force that is the newest here.
    pub(crate) fn take_list(&mut self, now: Time) {
        let makings = Rc::clone(&self.makings);
        let (plan, options) = (&makings.plan, &makings.options);
        let list = List::newest(&makings.lists, options, self.at, now);
        let shown = self.clock.read(now);
        self.control.set_mixes(shown, list.map_or(Vec::new(), |list| list.mixes.clone()));
        let router = |(number, at): (usize, &Address)| {
            let mix = list.and_then(|list| list.own[number]);
            (*at, Router { relay: true, mix, ..Router::default() })
        };
        let relays = Routers::new(plan.nodes[..plan.routers].iter().enumerate().map(router));
        let keys = plan.nodes.iter().copied().zip(makings.keys.iter().copied()).collect();
        self.control.set_circuit_nodes(shown, relays, keys);
    }
}
