//! Shrinks a failing run: removes faults, files, nodes and faults of wires while the same rule
//! still breaks.

use crate::options::{RouterTopology, SimulationOptions, WireFaults};
use crate::outcome::SimulationOutcome;
use crate::run;

/// Shortest period of faults that is tried, in milliseconds.
const TROUBLE_MS_MIN: u64 = 500;
/// Largest number of faults and of files that are tried one by one.
const SINGLE_MAX: u32 = 200;

/// The smallest failing run that was found.
#[derive(Clone, Debug)]
pub struct ShrunkRun {
    pub options: SimulationOptions,
    /// Result of the run; it breaks the same rule as the original.
    pub outcome: SimulationOutcome,
    /// Number of runs needed to find it.
    pub runs: u32,
}

/// Searches for the smallest run that breaks the same rule as `options`, in at most `runs_max`
/// runs. `None` if `options` break no rule.
pub fn shrink(options: SimulationOptions, runs_max: u32) -> Option<ShrunkRun> {
    let outcome = run(options.clone());
    let rule = outcome.violations.first()?.rule;
    let best = ShrunkRun { options, outcome, runs: 1 };
    let mut search = ShrinkSearch { rule, best, runs_max };
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

struct ShrinkSearch {
    rule: &'static str,
    best: ShrunkRun,
    runs_max: u32,
}

impl ShrinkSearch {
    fn is_over(&self) -> bool {
        self.best.runs >= self.runs_max
    }

    /// Runs the best options with a change, and keeps it if the same rule breaks.
    fn attempt(&mut self, change: impl FnOnce(&mut SimulationOptions)) -> bool {
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

    /// Removes whole kinds of faults.
    fn drop_kinds(&mut self) {
        let counts: [fn(&mut SimulationOptions) -> &mut u32; 22] = [
            |o| &mut o.direct_bans,
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
        self.attempt(|options| options.two_routers = false);
        self.attempt(|options| options.cover = 0);
        self.attempt(|options| options.rendezvous = 0);
        self.attempt(|options| options.shift_s.clear());
        for count in counts {
            self.attempt(|options| *count(options) = 0);
        }
        let WireFaults { delay_us, rate_bps, queue_bytes, reorder_us, .. } = WireFaults::NONE;
        self.attempt(|o| o.faults.delay_us = delay_us);
        self.attempt(|o| (o.faults.rate_bps, o.faults.queue_bytes) = (rate_bps, queue_bytes));
        if self.best.options.faults.reorder_ppm == 0 {
            self.attempt(|o| o.faults.reorder_us = reorder_us);
        }
        self.attempt(|o| o.one_receiver = false);
        self.attempt(|o| o.workers = 1);
        self.attempt(|o| o.flows = 0);
    }

    /// Removes numbered faults or files: all, halves, quarters and so on, then single ones.
    fn drop_numbered(
        &mut self,
        drawn: fn(&ShrunkRun) -> u32,
        skipped: fn(&SimulationOptions) -> &Vec<u32>,
        skipped_mut: fn(&mut SimulationOptions) -> &mut Vec<u32>,
    ) {
        let left = |best: &ShrunkRun| -> Vec<u32> {
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

    /// Reduces sizes: network, files and times.
    fn cut_down(&mut self) {
        self.attempt(|o| o.chords = 0);
        self.attempt(|o| o.topology = RouterTopology::Line);
        let sizes: [fn(&mut SimulationOptions) -> &mut u32; 4] =
            [|o| &mut o.routers, |o| &mut o.hosts, |o| &mut o.files, |o| &mut o.chords];
        for size in sizes {
            // A network has at least one router; without hosts it only routes.
            while self.attempt(|o| *size(o) = (*size(o) / 2).max(1)) {}
            while self.attempt(|o| *size(o) = (*size(o)).saturating_sub(1).max(1)) {}
        }
        while self.attempt(|o| o.file_bytes_max /= 2) {}
        while self.attempt(|o| o.trouble_ms = (o.trouble_ms / 2).max(TROUBLE_MS_MIN)) {}
        // Numbers above those drawn have no effect.
        let drawn = self.best.outcome.faults_drawn;
        self.best.options.skip.retain(|number| *number < drawn);
        let files = self.best.options.files;
        self.best.options.skip_files.retain(|number| *number < files);
    }
}
