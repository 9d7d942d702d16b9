//! A simulated network of bare routing machines with a virtual clock. Every event is followed by a
//! check for loops.

#![allow(dead_code, reason = "each test file uses its part")]

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use shoal_crypto::{Identity, PublicKey, Rng};
use shoal_routing::{Config, RouteChange, Routing};
use shoal_wire::{LinkId, RoutingMessage, Time};

pub const UNIX_S: u64 = 1_800_000_000;

pub fn ms(ms: u64) -> Duration {
    Duration::from_millis(ms)
}

pub fn identity(router: u32) -> Identity {
    let mut seed = [0x42; 32];
    seed[..4].copy_from_slice(&router.to_be_bytes());
    Identity::from_seed(seed)
}

/// Faults that each wire has.
#[derive(Clone, Copy, Debug)]
pub struct Faults {
    pub loss_percent: u64,
    pub duplicate_percent: u64,
    pub delay: Duration,
    /// Random extra delay per message, so messages overtake each other.
    pub jitter: Duration,
    /// Time from a cut of a wire until its ends notice.
    pub detection: Duration,
}

pub const CLEAN: Faults = Faults {
    loss_percent: 0,
    duplicate_percent: 0,
    delay: Duration::from_millis(5),
    jitter: Duration::ZERO,
    detection: Duration::from_millis(500),
};

pub struct RoutingNode {
    pub machine: Routing,
    /// Number of restarts of this router.
    pub run: u32,
    pub alive: bool,
    pub changes: Vec<RouteChange>,
    /// Wires that this end believes to be up.
    up: BTreeSet<u32>,
    checked: u64,
}

#[derive(Clone, Copy, Debug)]
pub struct Wire {
    pub ends: [u32; 2],
    pub cut: bool,
    pub loss_percent: Option<u64>,
    /// Number of cuts and repairs. Events with an older number are ignored.
    turn: u32,
}

#[derive(Clone, Debug)]
enum WireEvent {
    Deliver { to: u32, wire: u32, run: u32, message: RoutingMessage },
    Up { at: u32, wire: u32, turn: u32 },
    Down { at: u32, wire: u32, turn: u32 },
}

pub struct RoutingNet {
    pub now: Time,
    pub nodes: BTreeMap<u32, RoutingNode>,
    pub wires: Vec<Wire>,
    pub faults: Faults,
    pub config: Config,
    /// Configurations of single routers, in place of `config`.
    pub configs: BTreeMap<u32, Config>,
    pub delivered: u64,
    pub bytes: u64,
    /// Hash of all deliveries: equal for equal seeds.
    pub trace: [u8; 32],
    origins: Vec<(u32, PublicKey)>,
    events: BTreeMap<(Time, u64), WireEvent>,
    order: u64,
    rng: Rng,
}

impl RoutingNet {
    /// Routers 1 to `n` and the wires between them. All wires come up at the start.
    pub fn new(
        n: u32,
        wires: &[(u32, u32)],
        faults: Faults,
        config: Config,
        seed: u64,
    ) -> RoutingNet {
        let mut net = RoutingNet::bare(n, faults, config, seed);
        for (a, b) in wires {
            net.add_wire(*a, *b);
        }
        net
    }

    pub fn bare(n: u32, faults: Faults, config: Config, seed: u64) -> RoutingNet {
        let mut key = [0; 32];
        key[..8].copy_from_slice(&seed.to_be_bytes());
        let origins = (1..=n).map(|id| (id, identity(id).public())).collect();
        let mut net = RoutingNet {
            now: Time::from_millis(1),
            nodes: BTreeMap::new(),
            wires: Vec::new(),
            faults,
            config,
            configs: BTreeMap::new(),
            delivered: 0,
            bytes: 0,
            trace: [0; 32],
            origins,
            events: BTreeMap::new(),
            order: 0,
            rng: Rng::new(key),
        };
        for id in 1..=n {
            net.boot(id, 0, UNIX_S);
        }
        net
    }

    fn boot(&mut self, id: u32, run: u32, unix_s: u64) {
        let seed = self.rng.fork("node");
        let origins = self.origins.iter().copied();
        let config = self.configs.get(&id).unwrap_or(&self.config).clone();
        let machine = Routing::new(config, id, identity(id), origins, seed, self.now, unix_s);
        let node = RoutingNode {
            machine,
            run,
            alive: true,
            changes: Vec::new(),
            up: BTreeSet::new(),
            checked: 0,
        };
        self.nodes.insert(id, node);
    }

    pub fn add_wire(&mut self, a: u32, b: u32) -> u32 {
        let wire = self.wires.len() as u32;
        self.wires.push(Wire { ends: [a, b], cut: false, loss_percent: None, turn: 0 });
        self.schedule_up(wire);
        wire
    }

    pub fn wire_between(&self, a: u32, b: u32) -> u32 {
        let found = self.wires.iter().position(|w| w.ends == [a, b] || w.ends == [b, a]);
        found.expect("wire exists") as u32
    }

    fn push(&mut self, at: Time, what: WireEvent) {
        self.order += 1;
        self.events.insert((at, self.order), what);
    }

    /// Brings both ends up, at slightly different times, as a handshake would.
    fn schedule_up(&mut self, wire: u32) {
        let Wire { ends, turn, .. } = self.wires[wire as usize];
        for at in ends {
            let delay = self.faults.delay + self.jitter();
            self.push(self.now + delay, WireEvent::Up { at, wire, turn });
        }
    }

    fn jitter(&mut self) -> Duration {
        Duration::from_nanos(self.rng.below(self.faults.jitter.as_nanos() as u64 + 1))
    }

    pub fn cut(&mut self, wire: u32) {
        let detection = self.faults.detection;
        let w = &mut self.wires[wire as usize];
        w.cut = true;
        w.turn += 1;
        let Wire { ends, turn, .. } = *w;
        for at in ends {
            let late = self.jitter();
            self.push(self.now + detection + late, WireEvent::Down { at, wire, turn });
        }
    }

    /// Makes one end believe for 1 ms that the wire is dead, although it isn't.
    pub fn blink(&mut self, at: u32, wire: u32) {
        let turn = self.wires[wire as usize].turn;
        self.push(self.now, WireEvent::Down { at, wire, turn });
        self.push(self.now + ms(1), WireEvent::Up { at, wire, turn });
    }

    pub fn mend(&mut self, wire: u32) {
        let w = &mut self.wires[wire as usize];
        w.cut = false;
        w.turn += 1;
        self.schedule_up(wire);
    }

    fn wires_of(&self, id: u32) -> Vec<u32> {
        let has = |(_, w): &(usize, &Wire)| w.ends.contains(&id) && !w.cut;
        self.wires.iter().enumerate().filter(has).map(|(i, _)| i as u32).collect()
    }

    /// Stops a router; its neighbours notice later.
    pub fn crash(&mut self, id: u32) {
        self.nodes.get_mut(&id).expect("node").alive = false;
        for wire in self.wires_of(id) {
            let turn = self.wires[wire as usize].turn;
            let at = self.far_end(id, wire);
            self.push(self.now + self.faults.detection, WireEvent::Down { at, wire, turn });
        }
    }

    /// Restarts router `id` without memory, with the wall clock at `unix_s`. The neighbours may not
    /// have noticed that it was down.
    pub fn restart(&mut self, id: u32, unix_s: u64) {
        let run = self.nodes[&id].run + 1;
        self.boot(id, run, unix_s);
        for wire in self.wires_of(id) {
            self.wires[wire as usize].turn += 1;
            self.schedule_up(wire);
        }
    }

    pub fn far_end(&self, id: u32, wire: u32) -> u32 {
        let ends = self.wires[wire as usize].ends;
        if ends[0] == id { ends[1] } else { ends[0] }
    }

    /// Runs for `span`, event by event.
    pub fn run(&mut self, span: Duration) {
        let end = self.now + span;
        loop {
            let event = self.events.keys().next().map(|(at, _)| *at);
            let timers = self.nodes.iter().filter(|(_, node)| node.alive);
            let timer = timers.filter_map(|(id, n)| Some((n.machine.poll_timeout()?.0, *id))).min();
            let next = [event, timer.map(|t| t.0)].into_iter().flatten().min();
            let Some(next) = next.filter(|next| *next <= end) else { break };
            self.now = self.now.max(next);
            match timer {
                Some((at, id)) if event.is_none_or(|event| at < event) => {
                    self.nodes.get_mut(&id).expect("node").machine.handle_timeout(self.now);
                    self.drain(id);
                }
                _ => self.step(),
            }
        }
        self.now = end;
    }

    fn step(&mut self) {
        let Some((_, what)) = self.events.pop_first() else { return };
        let id = match &what {
            WireEvent::Deliver { to, .. } => *to,
            WireEvent::Up { at, .. } | WireEvent::Down { at, .. } => *at,
        };
        if !self.nodes[&id].alive {
            return;
        }
        match what {
            WireEvent::Deliver { to, wire, run, message } => self.deliver(to, wire, run, message),
            WireEvent::Up { at, wire, turn } if self.wires[wire as usize].turn == turn => {
                let far = self.far_end(at, wire);
                let node = self.nodes.get_mut(&at).expect("node");
                node.up.insert(wire);
                node.machine.link_up(self.now, LinkId::from_bits(wire), far);
            }
            WireEvent::Down { at, wire, turn } if self.wires[wire as usize].turn == turn => {
                let node = self.nodes.get_mut(&at).expect("node");
                node.up.remove(&wire);
                node.machine.link_down(self.now, LinkId::from_bits(wire));
            }
            WireEvent::Up { .. } | WireEvent::Down { .. } => {}
        }
        self.drain(id);
    }

    fn deliver(&mut self, to: u32, wire: u32, run: u32, message: RoutingMessage) {
        let now = self.now;
        let node = self.nodes.get_mut(&to).expect("node");
        // Sealed for an earlier run, or this end's link is down: the link layer drops the message.
        if node.run != run || !node.up.contains(&wire) {
            return;
        }
        self.delivered += 1;
        let mut body = Vec::new();
        message.encode(&mut body);
        assert!(body.len() <= shoal_wire::CONTROL_BODY_MAX);
        self.bytes += body.len() as u64;
        assert_eq!(RoutingMessage::parse(message.kind(), &body).as_ref(), Ok(&message));
        let place = [to.to_be_bytes(), wire.to_be_bytes()].concat();
        self.trace =
            shoal_crypto::kdf(&self.trace, "trace", &[&place, &now.0.to_be_bytes(), &body]);
        let _ = node.machine.handle_message(now, LinkId::from_bits(wire), message);
    }

    /// Takes all output of a machine. Checks that the output ends, that nothing is due afterwards,
    /// and that no loop exists.
    pub fn drain(&mut self, id: u32) {
        let mut steps = 0;
        while let Some((link, message)) =
            self.nodes.get_mut(&id).expect("node").machine.poll_transmit()
        {
            steps += 1;
            assert!(steps < 100_000, "draining must end");
            self.send(id, link.bits(), message);
        }
        let node = self.nodes.get_mut(&id).expect("node");
        while let Some(change) = node.machine.poll_event() {
            node.changes.push(change);
        }
        let due = node.machine.poll_timeout();
        assert!(due.is_none_or(|(at, _)| at > self.now), "still due after draining: {due:?}");
        self.check_loops(id);
    }

    fn send(&mut self, from: u32, wire: u32, message: RoutingMessage) {
        let Wire { cut, loss_percent, .. } = self.wires[wire as usize];
        let loss = loss_percent.unwrap_or(self.faults.loss_percent);
        let to = self.far_end(from, wire);
        if cut || !self.nodes[&from].up.contains(&wire) || self.rng.below(100) < loss {
            return;
        }
        let run = self.nodes[&to].run;
        let copies = 1 + u64::from(self.rng.below(100) < self.faults.duplicate_percent);
        for _ in 0..copies {
            let at = self.now + self.faults.delay + self.jitter();
            self.push(at, WireEvent::Deliver { to, wire, run, message: message.clone() });
        }
    }

    /// Follows every route that `id` changed, router by router, as a cell would travel.
    fn check_loops(&mut self, id: u32) {
        let version = self.nodes[&id].machine.table().version();
        if version == self.nodes[&id].checked {
            return;
        }
        self.nodes.get_mut(&id).expect("node").checked = version;
        let targets: Vec<u32> = self.nodes.keys().copied().collect();
        for target in targets {
            if let Err(path) = self.path(id, target) {
                panic!("loop to {target} at {}: {path:?}", self.now);
            }
        }
    }

    /// Routers that a cell from `from` passes: `Ok((path, arrived))`, or `Err` with a loop.
    pub fn path(&self, from: u32, to: u32) -> Result<(Vec<u32>, bool), Vec<u32>> {
        let (mut at, mut path) = (from, vec![from]);
        while at != to {
            let node = &self.nodes[&at];
            let Some(link) = node.machine.table().next_hop(to) else { return Ok((path, false)) };
            let next = self.far_end(at, link.bits());
            let far = &self.nodes[&next];
            // A router accepts transit cells only over links whose ends know each other's instance.
            if self.wires[link.bits() as usize].cut || !far.alive || !far.machine.is_adjacent(link)
            {
                return Ok((path, false));
            }
            if path.contains(&next) {
                path.push(next);
                return Err(path);
            }
            path.push(next);
            at = next;
        }
        Ok((path, true))
    }

    /// Routers that can be reached from `from` over intact wires.
    pub fn component(&self, from: u32) -> BTreeSet<u32> {
        let (mut seen, mut todo) = (BTreeSet::from([from]), vec![from]);
        while let Some(at) = todo.pop() {
            for wire in self.wires_of(at) {
                let far = self.far_end(at, wire);
                if self.nodes[&far].alive && seen.insert(far) {
                    todo.push(far);
                }
            }
        }
        seen
    }

    /// Panics at a missing route to a reachable router, or a route to an unreachable router.
    pub fn assert_converged(&self) {
        for (id, node) in self.nodes.iter().filter(|(_, node)| node.alive) {
            let reachable = self.component(*id);
            for to in self.nodes.keys().filter(|to| *to != id) {
                let (path, arrived) = self.path(*id, *to).expect("no loop");
                assert_eq!(arrived, reachable.contains(to), "{id} to {to}: {path:?}");
                let offered = node.machine.table().next_hop(*to).is_some();
                assert_eq!(offered, reachable.contains(to), "{id} to {to}: ghost route");
            }
        }
    }

    pub fn is_converged(&self) -> bool {
        self.nodes.iter().filter(|(_, node)| node.alive).all(|(id, _)| {
            let reachable = self.component(*id);
            self.nodes.keys().filter(|to| *to != id).all(|to| {
                let whole = matches!(self.path(*id, *to), Ok((_, true)));
                let offered = self.nodes[id].machine.table().next_hop(*to).is_some();
                whole == reachable.contains(to) && offered == whole
            })
        })
    }

    /// Runs until converged, and returns the time that took. Panics after `limit`.
    pub fn converge(&mut self, limit: Duration) -> Duration {
        let begin = self.now;
        while !self.is_converged() {
            assert!(self.now.since(begin) < limit, "not converged after {limit:?}");
            self.run(ms(20));
        }
        self.now.since(begin)
    }
}
