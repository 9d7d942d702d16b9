//! Demands on circuits that change while a host runs: the network's preset may come or go.

use core::time::Duration;

use shoal_wire::{Address, Time};

use super::CircuitPool;

impl CircuitPool {
    /// Sets the number of relays of later circuits, and the limit for the mean delay of their
    /// mixes, as in [`super::PoolConfig`]. If earlier circuits may have fewer relays, all end. The
    /// division of cells stays, so the number must not exceed that of the start and three.
    pub fn set_demands(&mut self, now: Time, relays: u8, max_added: Option<Duration>) {
        let (is_longer, is_mixed) =
            (relays > self.config.relays, max_added != self.config.max_added);
        (self.config.relays, self.config.max_added) = (relays, max_added);
        if is_longer {
            self.close_all(now);
        }
        if is_mixed {
            self.follow_mixes(now);
            self.settle(now);
        }
    }

    /// Ends all circuits of this host. A host that is wanted again gets others, if the routers
    /// allow any.
    pub fn close_all(&mut self, now: Time) {
        let all: Vec<Address> = self.hosts.keys().copied().collect();
        all.into_iter().for_each(|to| self.drop_host(to));
        self.settle(now);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::path::{ListedRouter, RouterList, Vanguards};
    use crate::pool::PoolConfig;

    #[test]
    fn more_relays_end_the_circuits_that_had_fewer() {
        let (now, to) = (Time::ZERO, Address::new(2, 1));
        let config = PoolConfig {
            address: Address::new(1, 1),
            relays: 2,
            circuits_max: 8,
            max_added: Some(Duration::ZERO),
        };
        let mut pool = CircuitPool::new(config, Vanguards::default(), [1; 32], now, 0).unwrap();
        let relay = || ListedRouter { relay: true, hosts: 9, ..ListedRouter::default() };
        let relays = (1..=9).map(|n| (Address::new(n, 0), relay()));
        pool.set_routers(now, RouterList::new(relays));
        let hops = |pool: &mut CircuitPool| {
            assert!(pool.want(now, to));
            pool.poll_build(now).map(|plan| plan.path.len())
        };
        let shape = pool.shape();
        assert_eq!(hops(&mut pool), Some(3), "two relays, and the host");
        pool.set_demands(now, 3, None);
        assert_eq!(hops(&mut pool), Some(4));
        assert_eq!(pool.shape(), shape, "cells look as before");
        pool.close_all(now);
        pool.set_routers(now, RouterList::default());
        assert_eq!(hops(&mut pool), None, "without relays nothing is built");
    }
}
