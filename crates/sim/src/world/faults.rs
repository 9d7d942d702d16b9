//! What goes wrong on purpose, and how hosts try each other.

use core::time::Duration;

use shoal_crypto::Ciphers;

use super::{PINGS_BEFORE_END, What, World};
use crate::check::files::Stage;
use crate::check::spoilt::Spoilt;
use crate::ciphers;
use crate::disk::Disk;
use crate::plan::{Fault, Keep, TRY_AGAIN};
use crate::plant::Plant;

/// Identifies our pings.
const PING_ID: u32 = 77;

impl<C: Ciphers> World<C> {
    pub(super) fn fault(&mut self, fault: Fault) {
        let at = match fault {
            Fault::Crash(n, _) | Fault::Restart(n) | Fault::Pause(n) | Fault::Resume(n) => Some(n),
            Fault::Cut(_) | Fault::Mend(_) | Fault::Slow(..) => None,
            Fault::Filter(..) | Fault::Pass(..) => None,
            Fault::Narrow(..) | Fault::Widen(..) => None,
            Fault::Renumber(n) => Some(n),
        };
        self.note(at, &format!("{fault:?}"));
        self.note_trouble(&fault);
        match fault {
            Fault::Filter(wire, ways) => self.wires.set_filter(wire, ways, true),
            Fault::Pass(wire, ways) => self.wires.set_filter(wire, ways, false),
            Fault::Narrow(wire, ways) => self.wires.set_narrow(wire, ways, true),
            Fault::Widen(wire, ways) => self.wires.set_narrow(wire, ways, false),
            Fault::Renumber(n) => self.renumber(n),
            Fault::Cut(wires) => self.wires.set_cut(&wires, true),
            Fault::Mend(wires) => self.wires.set_cut(&wires, false),
            Fault::Slow(wire, more) => self.wires.set_slower(wire, more),
            Fault::Crash(n, keep) => self.crash(n, keep),
            Fault::Restart(n) => self.restart(n),
            Fault::Pause(n) => self.nodes[n].paused = true,
            Fault::Resume(n) => self.resume(n),
        }
    }

    fn crash(&mut self, n: usize, keep: Keep) {
        if !self.nodes[n].alive {
            return;
        }
        self.check_account(n);
        self.nodes[n].crash();
        self.forget_mixes(n);
        ciphers::with_spoilt(|spoilt| spoilt.crashed(n));
        if self.makings.options.plant == Some(Plant::CrashLosesFile) && self.files.len() > 2 {
            self.broken("a planted rule", format!("node {n} crashed"));
        }
        if keep == Keep::Nothing {
            self.nodes[n].disk = Disk::default();
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
            if watch.stage == Stage::Running {
                watch.stage = Stage::Due(again);
            }
        }
        self.push(again, What::Files);
        self.finish_step(n);
    }

    fn resume(&mut self, n: usize) {
        if self.nodes[n].alive && self.nodes[n].paused {
            let node = &mut self.nodes[n];
            (node.paused, node.resumed) = (false, node.clock.read(self.now));
            let resumed = node.resumed;
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
        ciphers::with_spoilt(Spoilt::make_honest);
        for n in 0..self.nodes.len() {
            self.resume(n);
            self.restart(n);
        }
    }

    /// Hosts call those that didn't answer yet, as `shoal ping` does: once a second.
    pub(super) fn ping_everybody(&mut self) {
        let everybody = self.now + PINGS_BEFORE_END >= self.makings.plan.end;
        if everybody && !self.idle_checked {
            self.idle_checked = true;
            // A mix that programs keep full drops their hosts' pings, too.
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
        self.push(self.now + Duration::from_secs(1), What::Pings);
    }
}
