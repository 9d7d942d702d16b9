//! Makes a failing run small: as long as the same rule breaks, faults, files, nodes and what wires
//! do are taken away.

use crate::options::{Faults, Options, Topology};
use crate::outcome::Outcome;
use crate::run;

/// Shortest time of trouble that is tried, in milliseconds.
const TROUBLE_MS_MIN: u64 = 500;
/// Most faults and files that are tried one by one.
const SINGLE_MAX: u32 = 200;

/// The smallest run that was found.
#[derive(Clone, Debug)]
pub struct Shrunk {
    /// What to run.
    pub options: Options,
    /// How it ends: the rule that broke is the one that broke at first.
    pub outcome: Outcome,
    /// Runs that it took to find it.
    pub runs: u32,
}

/// Looks for the smallest run that breaks the rule which `options` break, in at most `runs_max`
/// runs; `None` when `options` break none.
pub fn shrink(options: Options, runs_max: u32) -> Option<Shrunk> {
    let outcome = run(options.clone());
    let rule = outcome.violations.first()?.rule;
    let best = Shrunk { options, outcome, runs: 1 };
    let mut search = Search { rule, best, runs_max };
    loop {
        let before = search.best.options.clone();
        search.drop_kinds();
        search.drop_numbered(
            |best| best.outcome.faults_drawn,
            |options| &options.skip,
            |options| &mut options.skip,
        );
        search.drop_numbered(
            |best| best.options.files,
            |options| &options.skip_files,
            |options| &mut options.skip_files,
        );
        search.cut_down();
        if search.best.options == before || search.is_over() {
            return Some(search.best);
        }
    }
}

struct Search {
    rule: &'static str,
    best: Shrunk,
    runs_max: u32,
}

impl Search {
    fn is_over(&self) -> bool {
        self.best.runs >= self.runs_max
    }

    /// Runs the best with a change; keeps it if it fails in the same way.
    fn attempt(&mut self, change: impl FnOnce(&mut Options)) -> bool {
        let mut options = self.best.options.clone();
        change(&mut options);
        if options == self.best.options || self.is_over() {
            return false;
        }
        self.best.runs += 1;
        let outcome = run(options.clone());
        let same = outcome.violations.first().is_some_and(|broken| broken.rule == self.rule);
        if same {
            (self.best.options, self.best.outcome) = (options, outcome);
        }
        same
    }

    /// Whole kinds of trouble.
    fn drop_kinds(&mut self) {
        let counts: [fn(&mut Options) -> &mut u32; 21] = [
            |o| &mut o.direct_wires,
            |o| &mut o.spoilt_ppm,
            |o| &mut o.mixes,
            |o| &mut o.crashes,
            |o| &mut o.wipes,
            |o| &mut o.pauses,
            |o| &mut o.cuts,
            |o| &mut o.one_way_cuts,
            |o| &mut o.partitions,
            |o| &mut o.spikes,
            |o| &mut o.filters,
            |o| &mut o.renumberings,
            |o| &mut o.narrowings,
            |o| &mut o.drift_ppm,
            |o| &mut o.wall_off_s,
            |o| &mut o.faults.loss_ppm,
            |o| &mut o.faults.duplicate_ppm,
            |o| &mut o.faults.corrupt_ppm,
            |o| &mut o.faults.reorder_ppm,
            |o| &mut o.faults.asymmetry_percent,
            |o| &mut o.faults.replay_ppm,
        ];
        self.attempt(|options| options.cover = 0);
        self.attempt(|options| options.rendezvous = 0);
        self.attempt(|options| options.hop_s.clear());
        for count in counts {
            self.attempt(|options| *count(options) = 0);
        }
        let Faults { delay_us, rate_bps, queue_bytes, reorder_us, .. } = Faults::NONE;
        self.attempt(|o| o.faults.delay_us = delay_us);
        self.attempt(|o| (o.faults.rate_bps, o.faults.queue_bytes) = (rate_bps, queue_bytes));
        if self.best.options.faults.reorder_ppm == 0 {
            self.attempt(|o| o.faults.reorder_us = reorder_us);
        }
        self.attempt(|o| o.one_receiver = false);
        self.attempt(|o| o.workers = 1);
        self.attempt(|o| o.flows = 0);
    }

    /// Numbered things: all, halves, quarters and so on, then each.
    fn drop_numbered(
        &mut self,
        drawn: fn(&Shrunk) -> u32,
        skipped: fn(&Options) -> &Vec<u32>,
        skipped_mut: fn(&mut Options) -> &mut Vec<u32>,
    ) {
        let left = |best: &Shrunk| -> Vec<u32> {
            let all = 0..drawn(best).min(SINGLE_MAX);
            all.filter(|number| !skipped(&best.options).contains(number)).collect()
        };
        let mut size = left(&self.best).len();
        while size > 0 {
            for part in left(&self.best).chunks(size) {
                self.attempt(|options| skipped_mut(options).extend_from_slice(part));
            }
            size /= 2;
        }
    }

    /// Sizes: of the network, of files, of the time.
    fn cut_down(&mut self) {
        self.attempt(|o| o.chords = 0);
        self.attempt(|o| o.topology = Topology::Line);
        let sizes: [fn(&mut Options) -> &mut u32; 4] =
            [|o| &mut o.routers, |o| &mut o.hosts, |o| &mut o.files, |o| &mut o.chords];
        for size in sizes {
            // A network has at least one router; without hosts it only routes.
            while self.attempt(|o| *size(o) = (*size(o) / 2).max(1)) {}
            while self.attempt(|o| *size(o) = (*size(o)).saturating_sub(1).max(1)) {}
        }
        while self.attempt(|o| o.file_bytes_max /= 2) {}
        while self.attempt(|o| o.trouble_ms = (o.trouble_ms / 2).max(TROUBLE_MS_MIN)) {}
        // Numbers beyond what is drawn mean nothing.
        let drawn = self.best.outcome.faults_drawn;
        self.best.options.skip.retain(|number| *number < drawn);
        let files = self.best.options.files;
        self.best.options.skip_files.retain(|number| *number < files);
    }
}
