//! Circuits that this host begins. This module executes the pool's wishes and reports events to it.
//!
//! ```text
//! edge: NeedCircuit -> pool -> build, echo, close -> onion -> events -> pool
//!                           -> switch             -> edge
//! ```

use core::time::Duration;
use std::collections::{BTreeMap, BTreeSet};

use shoal_crypto::{Ciphers, PublicKey};
use shoal_edge::HostId;
use shoal_onion::OnionEvent;
use shoal_onion::path::{RouterList, Vanguards};
use shoal_onion::pool::{CircuitPlan, CircuitPool};
use shoal_wire::leg::CellShape;
use shoal_wire::{Address, CircuitId, CoverTier, MixStrategy, Time};

use crate::circuits::NodeCircuits;
use crate::control::Control;
use crate::shell::Shell;

impl<C: Ciphers> NodeCircuits<C> {
    /// Reports a circuit's event to the pool.
    pub(crate) fn note_event(&mut self, now: Time, event: &OnionEvent) {
        let Some(pool) = &mut self.pool else { return };
        match *event {
            OnionEvent::Built(id) => pool.note_built(now, id),
            OnionEvent::Failed(id, hop, why) => pool.note_failed(now, id, hop, why),
            OnionEvent::Echoed(id, hop, number, _) => pool.note_echoed(now, id, hop, number),
            OnionEvent::Ended(id) => pool.note_ended(now, id),
            OnionEvent::Handshake(..) | OnionEvent::Mixed(_) => {}
        }
    }
}

impl<S: Shell> Control<S> {
    /// Lets this host begin circuits. Without a pool, only circuits of other hosts end here.
    pub fn set_pool(&mut self, pool: CircuitPool) {
        self.circuits.pool = Some(pool);
    }

    pub fn pool(&self) -> Option<&CircuitPool> {
        self.circuits.pool.as_ref()
    }

    /// The relays that this host keeps using, if they changed since the last call. The caller
    /// stores them.
    pub fn poll_kept(&mut self) -> Option<&Vanguards> {
        self.circuits.pool.as_mut()?.poll_kept()
    }

    /// Sets the network's routers, and the keys of relays and hosts. Circuits lead to no other
    /// nodes. If this node is no relay, circuits don't continue here.
    pub fn set_circuit_nodes(
        &mut self,
        now: Time,
        routers: RouterList,
        nodes: BTreeMap<Address, PublicKey>,
    ) {
        let me = self.circuits.me();
        self.circuits.onion.set_nodes(nodes);
        self.circuits.onion.set_relay(routers.is_relay(me));
        self.circuits.onion.set_own_mix(routers.mix(me));
        if let Some(pool) = &mut self.circuits.pool {
            pool.set_routers(now, routers);
        }
    }

    /// Sets the strategies that the network offers, in order. Call this before
    /// [`Self::set_circuit_nodes`], whose relays may use one of them.
    pub fn set_mixes(&mut self, now: Time, mixes: Vec<MixStrategy>) {
        if let Some(pool) = &mut self.circuits.pool {
            pool.set_mixes(now, mixes.clone());
        }
        self.circuits.onion.set_mixes(now, mixes);
    }

    /// Sets the number of relays of later circuits, and the limit for the delay of their mixes: see
    /// [`CircuitPool::set_demands`].
    pub fn set_circuit_demands(&mut self, now: Time, relays: u8, max_added: Option<Duration>) {
        if let Some(pool) = &mut self.circuits.pool {
            pool.set_demands(now, relays, max_added);
        }
    }

    /// Ends all circuits of this host: see [`CircuitPool::close_all`].
    pub fn close_circuits(&mut self, now: Time) {
        if let Some(pool) = &mut self.circuits.pool {
            pool.close_all(now);
        }
    }

    /// Turns loops along this host's circuits on or off: see [`CircuitPool::set_loops`].
    pub fn set_loops(&mut self, now: Time, on: bool) {
        if let Some(pool) = &mut self.circuits.pool {
            pool.set_loops(now, on);
        }
    }

    /// Sets the hosts with covered links: see [`CircuitPool::set_tiers`].
    pub fn set_tiers(&mut self, own: Option<CoverTier>, far: BTreeMap<Address, CoverTier>) {
        if let Some(pool) = &mut self.circuits.pool {
            pool.set_tiers(own, far);
        }
    }

    /// Sets the second addresses of other hosts, by the first. Circuits may end at either.
    pub fn set_seconds(&mut self, seconds: BTreeMap<Address, Address>) {
        if let Some(pool) = &mut self.circuits.pool {
            pool.set_seconds(seconds);
        }
    }

    /// Sets the hosts that policy makes hidden: they are reached over circuits only. Without a pool
    /// this host begins nothing with them, but answers on their circuits. Call [`Self::drive`]
    /// afterwards.
    pub fn set_hidden(&mut self, hosts: &BTreeSet<HostId>) {
        let shape = self.circuits.pool.as_ref().map_or(CellShape::MOST, CircuitPool::shape);
        self.edge.set_hidden(&hosts.iter().map(|host| (*host, shape)).collect());
    }

    /// Forgets that hosts were met over circuits, and closes this host's circuits to them: see
    /// [`Edge::forget_met`]. Call [`Self::set_hidden`] and [`Self::drive`] afterwards.
    ///
    /// [`Edge::forget_met`]: shoal_edge::Edge::forget_met
    pub fn forget_met(&mut self, now: Time, keys: &[PublicKey]) -> Vec<HostId> {
        let shown = self.edge.forget_met(now, keys);
        self.close_to(now, &shown);
        shown
    }

    /// Shows all hosts but `kept`, which the network's former preset alone hid, and closes this
    /// host's circuits to them: see [`Edge::release_hosts`]. Call [`Self::set_hidden`] and
    /// [`Self::drive`] afterwards.
    ///
    /// [`Edge::release_hosts`]: shoal_edge::Edge::release_hosts
    pub fn release_hosts(&mut self, now: Time, kept: &[PublicKey]) {
        let shown = self.edge.release_hosts(now, kept);
        self.close_to(now, &shown);
    }

    fn close_to(&mut self, now: Time, shown: &[HostId]) {
        if let Some(pool) = &mut self.circuits.pool {
            let at = shown.iter().filter_map(|host| self.edge.address_of(*host));
            at.for_each(|to| pool.forget(now, to));
        }
    }

    /// Sends an echo request to a hop of a circuit: see [`CircuitPool::ask`]. Call [`Self::drive`]
    /// afterwards.
    pub fn ask_hop(&mut self, id: CircuitId, hop: u8) -> Option<u64> {
        self.circuits.pool.as_mut()?.ask(id, hop)
    }

    /// Requests a circuit to a host, if there is a pool. Call [`Self::drive`] afterwards.
    pub fn want_circuit(&mut self, now: Time, host: HostId) {
        if let (Some(pool), Some(to)) = (&mut self.circuits.pool, self.edge.address_of(host)) {
            pool.want(now, to);
        }
    }

    /// Executes the pool's requests.
    pub(crate) fn drive_pool(&mut self, now: Time) {
        let homes = self.homes();
        let NodeCircuits { pool: Some(pool), onion, .. } = &mut self.circuits else { return };
        let edge = &mut self.edge;
        pool.set_homes(now, homes);
        pool.note_carried(now, |id| onion.carried_at(id));
        pool.note_progress(now, |id| onion.progress(id).map(|(hops, _)| hops));
        pool.handle_timeout(now);
        loop {
            while let Some((to, id)) = pool.poll_switch() {
                if let Some(host) = edge.host_at(to) {
                    edge.set_circuit(host, id.map(|id| (id, pool.shape())));
                }
            }
            while let Some((id, hop, number)) = pool.poll_echo() {
                // An echo that can't be sent counts as unanswered.
                let _ = onion.echo(id, hop, number);
            }
            while let Some(id) = pool.poll_close() {
                onion.close(id);
                edge.circuit_ended(now, id);
            }
            // After the closed circuits, because the pool no longer counts those and may reuse
            // their capacity.
            let Some(CircuitPlan { to, home, path, shape, life, mixes }) = pool.poll_build(now)
            else {
                break;
            };
            let begun = onion.build_from(now, home, (&path, &mixes), shape, life);
            pool.note_begun(now, to, begun);
        }
    }
}

#[cfg(test)]
mod tests;
