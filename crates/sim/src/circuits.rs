//! Hosts that reach each other over circuits only, and the configuration of their nodes.

use std::rc::Rc;

use shoal_crypto::Ciphers;
use shoal_onion::path::{ListedRouter, RouterList, Vanguards};
use shoal_onion::pool::CircuitPool;
use shoal_wire::{Address, Time};

use crate::check::legs::LegChecker;
use crate::check::mixes::MixChecker;
use crate::check::spoilt::AlteredCells;
use crate::ciphers::{self, mix};
use crate::mixes::MixList;
use crate::node::{NetworkInputs, SimulatedNode};
use crate::options::{SimulationOptions, seed_bytes};
use crate::plant::InjectedFault;

/// Starts to watch leg cells, which routers may alter, and mixed cells if relays mix.
pub(crate) fn watch(makings: &NetworkInputs) {
    let NetworkInputs { options, plan, .. } = makings;
    if options.circuits > 0 {
        let seed = seed_bytes(options.seed, "spoilt");
        ciphers::watch_legs(LegChecker::default());
        let ppm = options.spoilt_ppm;
        ciphers::watch_spoilt(AlteredCells::new(seed, ppm, plan.routers, &plan.nodes));
    }
    if !makings.lists.is_empty() {
        let mix_all = makings.lists.iter().all(MixList::mixes_all);
        ciphers::watch_mixes(MixChecker::new(&plan.nodes[..plan.routers], mix_all));
    }
}

/// True if all circuits have two relays or more. Circuits have as many relays as requested, or as
/// many as there are routers, whatever fails.
pub(crate) fn hide_ends(makings: &NetworkInputs) -> bool {
    let NetworkInputs { options, plan, .. } = makings;
    options.circuits.min(plan.routers as u32) > 1
}

/// Pairs of hosts that no cell may name together.
pub(crate) fn hidden_pairs(makings: &NetworkInputs) -> Vec<(Address, Address)> {
    let (plan, options) = (&makings.plan, &makings.options);
    let is_hidden =
        |a, b| hides(options, a, b) || a < b && options.plant == Some(InjectedFault::Named);
    let hosts = plan.routers..plan.nodes.len();
    let pairs = hosts.clone().flat_map(|a| hosts.clone().map(move |b| (a, b)));
    let hidden = pairs.filter(|&(a, b)| is_hidden(a, b));
    let all = |(a, b)| {
        let far = plan.addresses(b);
        plan.addresses(a).iter().flat_map(move |near| far.iter().map(move |far| (near, far)))
    };
    hidden.flat_map(all).collect()
}

/// True if two hosts reach each other over circuits only.
pub(crate) fn hides(options: &SimulationOptions, a: usize, b: usize) -> bool {
    let (low, high) = (a.min(b) as u64, a.max(b) as u64);
    let routers = u64::from(options.routers.max(1));
    let hosts = options.circuits > 0 && low >= routers && low != high;
    hosts && mix(options.seed ^ low << 24 ^ high << 44 ^ 0xc1).is_multiple_of(2)
}

impl<C: Ciphers> SimulatedNode<C> {
    /// Configures the relays, and the hosts that this host reaches over circuits only.
    pub(crate) fn configure_circuits(&mut self, now: Time) {
        let makings = Rc::clone(&self.makings);
        let (plan, options, at) = (&makings.plan, &makings.options, self.at);
        let address = plan.nodes[at];
        let shown = self.clock.read(now);
        if !address.is_router() {
            let flawed = options.plant == Some(InjectedFault::OneRelay);
            let config = shoal_onion::pool::PoolConfig {
                address,
                relays: if flawed { 1 } else { options.circuits as u8 },
                circuits_max: shoal_onion::CircuitLimits::HOST.own,
                max_added: None,
            };
            let seed = seed_bytes(options.seed, &format!("pool {at} run {}", self.run));
            let unix_ms = self.clock.wall_ms(options, at, self.run, now);
            let pool = CircuitPool::new(config, Vanguards::default(), seed, shown, unix_ms);
            self.control.set_pool(pool.expect("one to five relays"));
        }
        self.take_list(now);
        let hidden = |&&other: &&usize| hides(options, at, other);
        let hidden = makings.knows[at].iter().filter(hidden);
        let hidden = hidden.filter_map(|&other| self.host(plan.nodes[other])).collect();
        self.control.set_hidden(&hidden);
    }
    /// Applies the newest list that has reached this node.
    pub(crate) fn take_list(&mut self, now: Time) {
        let makings = Rc::clone(&self.makings);
        let (plan, options) = (&makings.plan, &makings.options);
        let list = MixList::newest(&makings.lists, options, self.at, now);
        let shown = self.clock.read(now);
        self.control.set_mixes(shown, list.map_or(Vec::new(), |list| list.mixes.clone()));
        let router = |(number, at): (usize, &Address)| {
            let mix = list.and_then(|list| list.own[number]);
            (*at, ListedRouter { relay: true, mix, ..ListedRouter::default() })
        };
        let relays = RouterList::new(plan.nodes[..plan.routers].iter().enumerate().map(router));
        let keys = (0..plan.nodes.len()).flat_map(|node| {
            let key = makings.keys[node];
            plan.addresses(node).iter().map(move |at| (at, key))
        });
        self.control.set_seconds(plan.second_by_first().collect());
        self.control.set_circuit_nodes(shown, relays, keys.collect());
    }
}
