//! A change of the network's secret. Lists and secrets pass between nodes, and a removed member
//! asks for the new secret.

use core::time::Duration;

use shoal_crypto::Ciphers;
use shoal_wire::{LinkId, SecretInventory, SecretMessage};

use super::{SimulatedWorld, WorldEvent};
use crate::plan::PlannedFault;
use crate::secrets::{LISTS, NodeRotation, new, removed, times};

/// Interval at which nodes look at lists and secrets.
const EVERY: Duration = Duration::from_millis(50);
/// Number of messages that may wait at a node until it looks.
const WAITING_MAX: usize = 64;
const GIVEN: &str = "a member that was removed is given no secret";
const SHUT_OUT: &str = "a member that was reachable while both secrets counted has the new one";
const SETTLED: &str = "in the end every member calls and is called with the new secret alone";
const STILL_IN: &str = "a member that was removed has no link";

impl<C: Ciphers> SimulatedWorld<C> {
    /// Begins the change of the secret, if the options ask for it.
    pub(super) fn begin_secrets(&mut self) {
        let makings = self.makings.clone();
        if makings.options.rotation {
            self.turns =
                (0..self.nodes.len()).map(|n| NodeRotation::new(&makings.options, n)).collect();
            self.push(self.now + EVERY, WorldEvent::Secrets);
        }
    }

    /// Passes lists and secrets on.
    pub(super) fn pass_secrets(&mut self) {
        let makings = self.makings.clone();
        let (options, plan) = (&makings.options, &makings.plan);
        let signed = times(options, plan).iter().filter(|at| **at <= self.now).count();
        if signed == LISTS && self.turns[0].list() < LISTS {
            self.check_overlap();
        }
        self.hear_of(0, signed);
        if signed > 0 && self.nodes[0].runs() {
            // The operator leaves the file in place until it has no effect any more.
            let now = self.nodes[0].read_clock(self.now);
            self.turns[0].offer(now, options);
        }
        for wire in 0..plan.links {
            let (a, b) = plan.wires[wire];
            // The removed member gets no list that removes it.
            let out = removed(options, plan);
            if out.is_some_and(|out| [a, b].contains(&out)) || !self.is_linked(a, b) {
                continue;
            }
            let newest = self.turns[a].list().max(self.turns[b].list());
            [a, b].into_iter().for_each(|n| self.hear_of(n, newest));
        }
        for n in 0..self.nodes.len() {
            if self.nodes[n].runs() {
                self.turn(n);
                self.finish_step(n);
            }
        }
        self.push(self.now + EVERY, WorldEvent::Secrets);
    }

    /// Checks that every member has the new secret before the old one ends.
    fn check_overlap(&mut self) {
        let makings = self.makings.clone();
        let out = removed(&makings.options, &makings.plan);
        for n in (0..self.turns.len()).filter(|n| Some(*n) != out) {
            if !self.turns[n].has_new(&makings.options) {
                self.broken(SHUT_OUT, format!("node {n} has list {}", self.turns[n].list()));
            }
        }
    }

    fn hear_of(&mut self, n: usize, list: usize) {
        if self.nodes[n].runs() && self.turns[n].list() < list {
            self.note(Some(n), &format!("list {list} of the network's secrets"));
            self.follow_run(n);
            let now = self.nodes[n].read_clock(self.now);
            self.turns[n].take_list(now, &self.makings.options, list);
        }
    }

    /// True if the link between two nodes is up at both ends.
    fn is_linked(&self, a: usize, b: usize) -> bool {
        let is_up = |near: usize, far: usize| {
            let node = &self.nodes[near];
            let link = node.links().iter().find(|(_, known)| *known == far);
            let view = link.and_then(|(link, _)| node.control.relay.view(*link));
            node.runs() && view.is_some_and(|view| view.up_since.is_some())
        };
        is_up(a, b) && is_up(b, a)
    }

    fn follow_run(&mut self, n: usize) {
        let node = &self.nodes[n];
        let now = node.read_clock(self.now);
        self.turns[n].follow(now, &self.makings.options, node.alive.then_some(node.run));
    }

    /// Handles a node's secrets, in each tick and at its start.
    pub(super) fn turn(&mut self, n: usize) {
        if self.turns.is_empty() {
            return;
        }
        self.follow_run(n);
        let makings = self.makings.clone();
        let (options, out) = (&makings.options, removed(&makings.options, &makings.plan));
        self.wires.sender(self.now, n);
        let now = self.nodes[n].read_clock(self.now);
        let (node, turn) = (&mut self.nodes[n], &mut self.turns[n]);
        node.control.relay.take_lists(WAITING_MAX);
        turn.finish_write(now, options);
        let of_removed = |link: LinkId| {
            out.is_some() && node.links().iter().any(|at| at.0 == link && Some(at.1) == out)
        };
        if turn.ends_link(now)
            && let Some((link, _)) = node.links().iter().find(|(link, _)| of_removed(*link))
        {
            let link = *link;
            node.control.relay.remove_link(now, link);
        }
        let views = node.control.relay.links();
        let up: Vec<_> = views
            .filter_map(|link| link.up_since.map(|since| (link.link, since, link.address)))
            .collect();
        turn.see_links(now, &up);
        let mut given = false;
        while let Some((link, message)) = node.control.relay.poll_secret() {
            given |= matches!(message, SecretMessage::Give(_)) && Some(n) == out;
            let Some(rotation) = turn.rotation() else { continue };
            match rotation.handle_message(now, link, message) {
                Ok(true) => turn.learnt(now, options),
                Ok(false) => {}
                Err(reason) => node.control.relay.count_drop(reason, 1),
            }
        }
        if let Some(secrets) = turn.take_new() {
            node.control.set_secrets(secrets);
        }
        self.say_secrets(n, &up.iter().map(|(link, ..)| *link).collect::<Vec<_>>());
        if given {
            self.broken(GIVEN, format!("node {n} got it"));
        }
    }

    /// Sends the messages that are due. A removed member asks all its neighbours for the new
    /// secret.
    fn say_secrets(&mut self, n: usize, up: &[LinkId]) {
        let makings = self.makings.clone();
        let (options, out) = (&makings.options, removed(&makings.options, &makings.plan));
        let (node, turn) = (&mut self.nodes[n], &mut self.turns[n]);
        let now = node.read_clock(self.now);
        if Some(n) == out {
            let name = new(options).name();
            let ask = SecretMessage::Have(SecretInventory { ask: true, has: false, name });
            for link in up {
                node.control.relay.send_secret(now, *link, &ask, &mut self.wires);
            }
            return;
        }
        let links = node.links().to_vec();
        let to_removed =
            |link: LinkId| links.iter().any(|(known, far)| *known == link && out == Some(*far));
        let (all, none) = (turn.may_give(true), turn.may_give(false));
        let may = |link: LinkId| if to_removed(link) { all } else { none };
        let Some(rotation) = turn.rotation() else { return };
        while let Some(sent) = rotation.poll_transmit(now, may) {
            match sent {
                Err(reason) => node.control.relay.count_drop(reason, 1),
                Ok((link, message)) => {
                    node.control.relay.send_secret(now, link, &message, &mut self.wires);
                }
            }
        }
    }

    /// Checks that each member uses only the new secret, and that the removed member has neither
    /// the secret nor a link.
    pub(super) fn check_secrets_end(&mut self) {
        let makings = self.makings.clone();
        let (options, plan) = (&makings.options, &makings.plan);
        let Some(out) = removed(options, plan) else { return };
        for n in 0..self.turns.len() {
            let turn = &self.turns[n];
            if n != out && (turn.list() != LISTS || !turn.is_settled(options)) {
                let seen = format!("node {n} has list {}", turn.list());
                self.broken(SETTLED, seen);
            }
        }
        if self.turns[out].has_new(options) {
            self.broken(GIVEN, format!("node {out} has it"));
        }
        let routers = 0..plan.routers;
        if routers.into_iter().any(|n| self.is_linked(n, out)) {
            self.broken(STILL_IN, format!("node {out} has one"));
        }
    }

    /// Empties a node's disk.
    pub(super) fn wipe_secrets(&mut self, n: usize) {
        self.turns.get_mut(n).into_iter().for_each(NodeRotation::wipe);
    }
}

/// Faults for a change of the secret. A member is down while the next secret is announced and
/// switched to, and all nodes restart after the old secret ended.
pub(crate) fn faults(
    plan: &crate::plan::NetworkPlan,
    options: &crate::options::SimulationOptions,
) -> Vec<[(shoal_wire::Time, PlannedFault); 2]> {
    use crate::plan::{CrashRemainder, START};
    if !options.rotation {
        return Vec::new();
    }
    let part = |percent: u32| START + options.trouble() * percent / 100;
    let away = plan.nodes.len() - 2;
    let mut all = vec![[
        (part(5), PlannedFault::Crash(away, CrashRemainder::Disk)),
        (part(85), PlannedFault::Restart(away)),
    ]];
    let [.., settled] = times(options, plan);
    for n in 0..plan.nodes.len() {
        let at = settled + Duration::from_secs(4) + Duration::from_millis(300) * n as u32;
        let again = at + Duration::from_millis(200);
        all.push([
            (at, PlannedFault::Crash(n, CrashRemainder::Disk)),
            (again, PlannedFault::Restart(n)),
        ]);
    }
    all
}
