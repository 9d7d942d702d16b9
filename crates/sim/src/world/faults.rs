//! Faults that the plan injects, and pings between hosts.

use core::time::Duration;

use shoal_crypto::Ciphers;

use super::{PINGS_BEFORE_END, SimulatedWorld, WorldEvent};
use crate::check::files::FileStage;
use crate::check::spoilt::AlteredCells;
use crate::ciphers;
use crate::disk::SimulatedDisk;
use crate::plan::{CrashRemainder, PlannedFault, TRY_AGAIN};
use crate::plant::InjectedFault;

/// Id of these pings.
const PING_ID: u32 = 77;

impl<C: Ciphers> SimulatedWorld<C> {
    pub(super) fn fault(&mut self, fault: PlannedFault) {
        let at = match fault {
            PlannedFault::Crash(n, _)
            | PlannedFault::Restart(n)
            | PlannedFault::Pause(n)
            | PlannedFault::Resume(n) => Some(n),
            PlannedFault::Cut(_) | PlannedFault::Mend(_) | PlannedFault::Slow(..) => None,
            PlannedFault::Filter(..) | PlannedFault::Pass(..) => None,
            PlannedFault::Narrow(..) | PlannedFault::Widen(..) => None,
            PlannedFault::Renumber(n) | PlannedFault::Ban(n) | PlannedFault::Unban(n) => Some(n),
        };
        self.note(at, &format!("{fault:?}"));
        self.note_trouble(&fault);
        match fault {
            PlannedFault::Filter(wire, ways) => self.wires.set_filter(wire, ways, true),
            PlannedFault::Pass(wire, ways) => self.wires.set_filter(wire, ways, false),
            PlannedFault::Narrow(wire, ways) => self.wires.set_narrow(wire, ways, true),
            PlannedFault::Widen(wire, ways) => self.wires.set_narrow(wire, ways, false),
            PlannedFault::Renumber(n) => self.renumber(n),
            PlannedFault::Ban(n) => self.change_bans(n, 1),
            PlannedFault::Unban(n) => self.change_bans(n, -1),
            PlannedFault::Cut(wires) => self.wires.set_cut(&wires, true),
            PlannedFault::Mend(wires) => self.wires.set_cut(&wires, false),
            PlannedFault::Slow(wire, more) => self.wires.set_slower(wire, more),
            PlannedFault::Crash(n, keep) => self.crash(n, keep),
            PlannedFault::Restart(n) => self.restart(n),
            PlannedFault::Pause(n) => self.nodes[n].paused = true,
            PlannedFault::Resume(n) => self.resume(n),
        }
    }

    fn change_bans(&mut self, n: usize, more: i32) {
        self.nodes[n].change_bans(self.now, more);
        if self.nodes[n].runs() {
            self.nodes[n].apply_bans(self.now);
            self.finish_step(n);
        }
    }

    fn crash(&mut self, n: usize, keep: CrashRemainder) {
        if !self.nodes[n].alive {
            return;
        }
        self.check_account(n);
        self.nodes[n].crash();
        self.forget_mixes(n);
        ciphers::with_spoilt(|spoilt| spoilt.crashed(n));
        if self.makings.options.plant == Some(InjectedFault::CrashLosesFile) && self.files.len() > 2
        {
            self.broken("a planted rule", format!("node {n} crashed"));
        }
        if keep == CrashRemainder::Nothing {
            self.nodes[n].disk = SimulatedDisk::default();
            self.wipe_secrets(n);
            for watch in self.files.iter_mut().filter(|watch| watch.plan.to == n) {
                watch.wiped = true;
            }
        }
    }

    fn restart(&mut self, n: usize) {
        if self.nodes[n].alive {
            return;
        }
        self.nodes[n].restart(self.now, self.wires.taken[n]);
        self.turn(n);
        let again = self.now + TRY_AGAIN;
        for watch in self.files.iter_mut().filter(|watch| watch.plan.from == n) {
            if watch.stage == FileStage::Running {
                watch.stage = FileStage::Due(again);
            }
        }
        self.push(again, WorldEvent::Files);
        self.finish_step(n);
    }

    fn resume(&mut self, n: usize) {
        if self.nodes[n].alive && self.nodes[n].paused {
            let node = &mut self.nodes[n];
            (node.paused, node.resumed) = (false, node.clock.read(self.now));
            let resumed = node.resumed;
            node.apply_bans(self.now);
            ciphers::with_spoilt(|spoilt| spoilt.resumed(n, resumed));
            if self.makings.options.circuits > 0 {
                node.take_list(self.now);
            }
            self.finish_step(n);
        }
    }

    pub(super) fn calm_down(&mut self) {
        self.wires.make_perfect();
        self.pulses.all_troubled(self.now);
        ciphers::with_spoilt(AlteredCells::make_honest);
        for n in 0..self.nodes.len() {
            self.resume(n);
            self.restart(n);
        }
    }

    /// Hosts ping those that have not answered yet, once a second, as `shoal ping` does.
    pub(super) fn ping_everybody(&mut self) {
        let everybody = self.now + PINGS_BEFORE_END >= self.makings.plan.end;
        if everybody && !self.idle_checked {
            self.idle_checked = true;
            // A mix that programs keep full also drops pings.
            if self.makings.options.mix_cells == 0 {
                self.check_pings("after the trouble every idle host can be reached");
            }
        }
        let first = self.pairs.first().map(|pair| pair.0);
        let pairs = self.pairs.clone();
        let calls = pairs.iter().filter(|pair| everybody || Some(pair.0) == first);
        for &(from, to) in calls {
            let address = self.makings.plan.nodes[to];
            let node = &mut self.nodes[from];
            let Some(host) = node.host(address).filter(|_| node.runs()) else { continue };
            let answered = self.pings.entry((from, host)).or_insert(false);
            if !*answered {
                let _ = node.control.edge.ping(host, PING_ID, to as u32);
            }
            self.finish_step(from);
        }
        self.push(self.now + Duration::from_secs(1), WorldEvent::Pings);
    }
}
