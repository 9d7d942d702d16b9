//! Packets of programs: writing, reading, and comparing both.

use core::time::Duration;

use shoal_crypto::{Ciphers, Rng};
use shoal_wire::DropReason;

use super::{SimulatedWorld, WorldEvent};
use crate::circuits;
use crate::node::{self, NetworkInputs};
use crate::options::{SimulationOptions, WireFaults, seed_bytes};
use crate::plan::START;
use crate::plant::InjectedFault;
use crate::programs::{self, ProgramFlow, WatchedFlow};

/// Start of the programs. By then the network should have its routes.
const BEGIN: Duration = Duration::from_secs(2);
/// Time after the end of the faults for which programs continue.
const GO_ON: Duration = Duration::from_secs(4);
/// Interval at which each program may write; it does so once in `WRITES_ONE_IN` times.
const EVERY: Duration = Duration::from_millis(10);
const WRITES_ONE_IN: u64 = 4;
/// Number of packets given to programs before a planted fault strikes.
const PLANT_AFTER: u64 = 50;

/// Largest number of packets of one flow in a frame: the shortest packet of a program has 64 bytes.
const SHARED_MAX: u64 = 20;

/// True if drops with this reason are cells, which may hold several packets.
fn is_of_cells(reason: DropReason) -> bool {
    use DropReason::{IpCongested, NoSession, PolicyDenied, UnknownFlow};
    !matches!(reason, IpCongested | NoSession | PolicyDenied | UnknownFlow)
}

/// Flows of a run, between hosts.
pub(super) fn flows(makings: &NetworkInputs) -> Vec<WatchedFlow> {
    let (options, plan) = (&makings.options, &makings.plan);
    let mut rng = Rng::new(seed_bytes(options.seed, "programs"));
    let (routers, hosts) = (plan.routers, plan.nodes.len() - plan.routers);
    let mut watch = |number| {
        let from = rng.below(hosts as u64) as usize;
        let to = (from + 1 + rng.below(hosts as u64 - 1) as usize) % hosts;
        let (from, to) = (routers + from, routers + to);
        let ends = (node::interface(makings, from), node::interface(makings, to));
        let flow = ProgramFlow::new(number, (from, to), ends, &mut rng);
        WatchedFlow::new(flow, node::allows(options, to, from))
    };
    (0..if hosts > 1 { options.flows } else { 0 }).map(&mut watch).collect()
}

impl<C: Ciphers> SimulatedWorld<C> {
    pub(super) fn begin_programs(&mut self) {
        if !self.flows.is_empty() {
            self.push(START + BEGIN, WorldEvent::Programs);
        }
    }

    /// Lets programs write packets.
    pub(super) fn write_packets(&mut self) {
        for at in 0..self.flows.len() {
            let watch = &mut self.flows[at];
            let (first, from) = (watch.next(), watch.flow.from);
            let count = watch.flow.draw(&mut self.programs_rng);
            let writes = self.programs_rng.below(WRITES_ONE_IN) == 0;
            if !writes || !self.nodes[from].runs() {
                continue;
            }
            let Some(tap) = self.nodes[from].tap(watch.flow.number) else { continue };
            if tap.put(watch.flow.read(first, count)) {
                watch.sent(count);
                self.finish_step(from);
            }
        }
        if self.now < self.makings.plan.calm_from + GO_ON {
            self.push(self.now + EVERY, WorldEvent::Programs);
        }
    }

    /// Reads the packets that programs of a node were given.
    pub(super) fn take_packets(&mut self, n: usize) {
        for mut given in self.nodes[n].take_given() {
            self.given += 1;
            let strikes = self.given == PLANT_AFTER;
            match self.makings.options.plant {
                Some(InjectedFault::PacketTwice) if strikes => self.take_packet(n, &given),
                Some(InjectedFault::PacketLost) if self.given > PLANT_AFTER => continue,
                Some(InjectedFault::PacketChanged) if strikes => {
                    if let Some(last) = given.last_mut() {
                        *last ^= 1;
                    }
                }
                _ => {}
            }
            self.take_packet(n, &given);
        }
    }

    fn take_packet(&mut self, n: usize, given: &[u8]) {
        let mut delivered = Vec::new();
        let deliver = |flow, number| delivered.push((flow, number));
        let result = programs::check(&mut self.flows, n, given, deliver);
        self.hold("programs get what was sent to them", result);
        self.check_order(n, &delivered);
    }

    /// Checks that each missing packet was dropped with a reason. Only possible if neither wires
    /// nor nodes lose anything.
    pub(super) fn check_packets(&mut self) {
        let plan = &self.makings.plan;
        let SimulationOptions { faults, spoilt_ppm, workers, mixes, .. } = self.makings.options;
        let WireFaults { loss_ppm, duplicate_ppm, corrupt_ppm, reorder_ppm, replay_ppm, .. } =
            faults;
        let spoils = [loss_ppm, duplicate_ppm, corrupt_ppm, reorder_ppm, replay_ppm];
        if self.flows.is_empty() || plan.faults_drawn > 0 || spoils.iter().any(|ppm| *ppm > 0) {
            return;
        }
        let most = |(reason, n)| if is_of_cells(reason) { n * SHARED_MAX } else { n };
        let drops = |node: &node::SimulatedNode<C>| node.counters().drops().map(most).sum::<u64>();
        let dropped: u64 = self.nodes.iter().map(drops).sum();
        let missing: u64 = self.flows.iter().map(WatchedFlow::missing).sum();
        // The order behind mixes is checked packet by packet elsewhere.
        let options = &self.makings.options;
        let is_mixed =
            |flow: &ProgramFlow| mixes > 0 && circuits::hides(options, flow.from, flow.to);
        let in_order = self.flows.iter().filter(|watch| !is_mixed(&watch.flow));
        let overtaken: u64 = in_order.map(|watch| watch.overtaken).sum();
        let seen = format!("{missing} packets are missing, at most {dropped} were dropped");
        if missing > dropped {
            self.broken("every packet of a program arrives or is counted", seen);
        } else if overtaken > 0 && workers == 1 && spoilt_ppm == 0 {
            let seen = format!("{overtaken} packets were overtaken by others of their flows");
            self.broken("packets of a flow arrive in order", seen);
        }
    }
}
