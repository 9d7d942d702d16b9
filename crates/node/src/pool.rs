//! Circuits that this host begins: what the pool wants is done, and it hears what became of them.
//!
//! ```text
//! edge: NeedCircuit -> pool -> build, echo, close -> onion -> events -> pool
//!                           -> switch             -> edge
//! ```

use std::collections::{BTreeMap, BTreeSet};

use shoal_crypto::{Ciphers, PublicKey};
use shoal_edge::HostId;
use shoal_onion::Event;
use shoal_onion::path::{Kept, Routers};
use shoal_onion::pool::{Build, Pool};
use shoal_wire::leg::Shape;
use shoal_wire::{Address, CircuitId, CoverTier, Strategy, Time};

use crate::circuits::Circuits;
use crate::control::Control;
use crate::shell::Shell;

impl<C: Ciphers> Circuits<C> {
    /// Notes what became of a circuit.
    pub(crate) fn note_event(&mut self, now: Time, event: &Event) {
        let Some(pool) = &mut self.pool else { return };
        match *event {
            Event::Built(id) => pool.note_built(now, id),
            Event::Failed(id, hop, why) => pool.note_failed(now, id, hop, why),
            Event::Echoed(id, hop, number, _) => pool.note_echoed(now, id, hop, number),
            Event::Ended(id) => pool.note_ended(now, id),
            Event::Handshake(..) | Event::Mixed(_) => {}
        }
    }
}

impl<S: Shell> Control<S> {
    /// Lets this host begin circuits; without a pool only those of others end here.
    pub fn set_pool(&mut self, pool: Pool) {
        self.circuits.pool = Some(pool);
    }

    /// The circuits that this host begins.
    pub fn pool(&self) -> Option<&Pool> {
        self.circuits.pool.as_ref()
    }

    /// The relays that this host stays with, if they changed since this was asked last: to be
    /// written down.
    pub fn poll_kept(&mut self) -> Option<&Kept> {
        self.circuits.pool.as_mut()?.poll_kept()
    }

    /// Puts the network's routers in force. `nodes` are the keys of relays and hosts: circuits lead
    /// to nobody else, and from here nowhere if this node is none of the relays.
    pub fn set_circuit_nodes(
        &mut self,
        now: Time,
        routers: Routers,
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

    /// Says which strategies the network offers, the first one first. To be called before
    /// [`Self::set_circuit_nodes`], whose relays may have one of them.
    pub fn set_mixes(&mut self, now: Time, mixes: Vec<Strategy>) {
        if let Some(pool) = &mut self.circuits.pool {
            pool.set_mixes(now, mixes.clone());
        }
        self.circuits.onion.set_mixes(now, mixes);
    }

    /// Has loops sent along this host's circuits, or none: see [`Pool::set_loops`].
    pub fn set_loops(&mut self, now: Time, on: bool) {
        if let Some(pool) = &mut self.circuits.pool {
            pool.set_loops(now, on);
        }
    }

    /// Says which hosts' links are covered: see [`Pool::set_tiers`].
    pub fn set_tiers(&mut self, own: Option<CoverTier>, far: BTreeMap<Address, CoverTier>) {
        if let Some(pool) = &mut self.circuits.pool {
            pool.set_tiers(own, far);
        }
    }

    /// Sets the hosts that are spoken with over circuits alone, as policy has it. Without a pool
    /// this host begins nothing with them, and answers on their circuits. Call [`Self::drive`]
    /// afterwards.
    pub fn set_hidden(&mut self, hosts: &BTreeSet<HostId>) {
        let shape = self.circuits.pool.as_ref().map_or(Shape::MOST, Pool::shape);
        self.edge.set_hidden(&hosts.iter().map(|host| (*host, shape)).collect());
    }

    /// Has a hop of a circuit asked, as [`Pool::ask`] says. Call [`Self::drive`] afterwards.
    pub fn ask_hop(&mut self, id: CircuitId, hop: u8) -> Option<u64> {
        self.circuits.pool.as_mut()?.ask(id, hop)
    }

    /// Has a circuit to a host built, if there is a pool. Call [`Self::drive`] afterwards.
    pub fn want_circuit(&mut self, now: Time, host: HostId) {
        if let (Some(pool), Some(to)) = (&mut self.circuits.pool, self.edge.address_of(host)) {
            pool.want(now, to);
        }
    }

    /// Does what the pool wants.
    pub(crate) fn drive_pool(&mut self, now: Time) {
        let Circuits { pool: Some(pool), onion, .. } = &mut self.circuits else { return };
        let edge = &mut self.edge;
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
                // One that can't be sent is one that is not answered.
                let _ = onion.echo(id, hop, number);
            }
            while let Some(id) = pool.poll_close() {
                onion.close(id);
                edge.circuit_ended(now, id);
            }
            // Behind those that are closed: the pool does not count them, and may give their places
            // away.
            let Some(Build { to, path, shape, life, mixes }) = pool.poll_build(now) else {
                break;
            };
            let begun = onion.build_mixed(now, &path, &mixes, shape, life);
            pool.note_begun(now, to, begun);
        }
    }
}

#[cfg(test)]
mod tests;
