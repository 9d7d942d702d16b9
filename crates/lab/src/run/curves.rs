//! Samples of a run over time.

use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;

use crate::emulator::EmulatorCounters;
use crate::record::Curve;
use crate::site::RunningNetwork;

use super::flows::ActiveFlow;

/// Samples between two readings of resident memory, which the kernel adds up page by page.
const MEMORY_EVERY: usize = 5;

/// Number of samples over which processor time is averaged.
const CPU_OVER: usize = 5;

/// Number of samples over which goodput is averaged if commands report their progress.
const SAID_OVER: usize = 4;

/// All samples of a run.
#[derive(Default)]
pub struct Curves {
    /// Time of each sample, in seconds.
    pub times: Vec<f64>,
    /// Payload bytes received so far, per flow.
    pub arrived: Vec<Vec<f64>>,
    /// CPU seconds used so far, per node of the network.
    pub cpu: Vec<Vec<f64>>,
    /// Resident bytes, per node.
    pub memory: Vec<Vec<f64>>,
    /// Longest wait since the previous sample in milliseconds, per emulated direction.
    pub queues: Vec<(String, Arc<EmulatorCounters>, Vec<f64>)>,
}

impl Curves {
    /// Prepares samples of `site`.
    pub fn new(site: &RunningNetwork, flows: usize) -> Curves {
        let network = site.network();
        let topology = network.topology();
        let mut queues = Vec::new();
        for (link, l) in topology.links.iter().enumerate() {
            for (from, to) in [(l.a, l.b), (l.b, l.a)] {
                if let Some(counters) = network.emulated(link, to) {
                    let name = |n: usize| &topology.nodes[n].name;
                    queues.push((format!("{}-{}", name(from), name(to)), counters, Vec::new()));
                }
            }
        }
        let nodes = topology.nodes.len();
        Curves {
            times: Vec::new(),
            arrived: vec![Vec::new(); flows],
            cpu: vec![Vec::new(); nodes],
            memory: vec![Vec::new(); nodes],
            queues,
        }
    }

    /// Takes a sample of each value.
    pub fn sample(&mut self, now: f64, site: &RunningNetwork, flows: &mut [ActiveFlow]) {
        let turn = self.times.len();
        self.times.push(now);
        for (flow, values) in flows.iter_mut().zip(&mut self.arrived) {
            values.push(flow.arrived());
        }
        for node in 0..self.cpu.len() {
            let last = |values: &[f64]| values.last().copied().unwrap_or(0.0);
            let (cpu, memory) = match site.process(node) {
                Some(process) if turn.is_multiple_of(MEMORY_EVERY) => {
                    let usage = process.usage();
                    (usage.cpu_s, usage.resident_bytes as f64)
                }
                Some(process) => (process.cpu_s(), last(&self.memory[node])),
                None => (last(&self.cpu[node]), 0.0),
            };
            self.cpu[node].push(cpu);
            self.memory[node].push(memory);
        }
        for (_, counters, values) in &mut self.queues {
            values.push(counters.longest_wait.swap(0, Relaxed) as f64 / 1e6);
        }
    }

    /// Histogram of waits so far, per emulated direction.
    pub fn waits(&self) -> Vec<Vec<u64>> {
        let counts = |c: &EmulatorCounters| c.waits.iter().map(|n| n.load(Relaxed)).collect();
        self.queues.iter().map(|(_, counters, _)| counts(counters)).collect()
    }

    /// Bytes of `flow` received by `time`, interpolated between samples.
    pub fn arrived_at(&self, flow: usize, time: f64) -> f64 {
        let after = self.times.partition_point(|t| *t < time);
        let values = &self.arrived[flow];
        match (after.checked_sub(1), self.times.get(after)) {
            (Some(i), Some(next)) => {
                let share = (time - self.times[i]) / (next - self.times[i]).max(1e-9);
                values[i] + (values[after] - values[i]) * share
            }
            (None, _) => values.first().copied().unwrap_or(0.0),
            (Some(i), None) => values[i],
        }
    }

    /// All curves as drawn: rates instead of sums.
    pub fn draw(&self, flows: &[ActiveFlow], site: &RunningNetwork) -> Vec<Curve> {
        let mut curves = Vec::new();
        let mut add = |plot: &str, name: &str, values: Vec<f64>| {
            curves.push(Curve { plot: plot.into(), name: name.into(), values });
        };
        for (flow, values) in flows.iter().zip(&self.arrived) {
            // Commands report a few times per second; a link's counter is always current.
            let over = if flow.alone { 1 } else { SAID_OVER };
            add("goodput", &flow.spec.name, self.slope(values, 8.0 / 1e6, over));
        }
        for (node, spec) in site.network().topology().nodes.iter().enumerate() {
            if !spec.plain {
                add("cpu", &spec.name, self.slope(&self.cpu[node], 100.0, CPU_OVER));
                let mb = self.memory[node].iter().map(|b| round(b / 1e6)).collect();
                add("memory", &spec.name, mb);
            }
        }
        for (name, _, values) in &self.queues {
            add("queue", name, values.iter().map(|v| round(*v)).collect());
        }
        curves
    }

    fn slope(&self, values: &[f64], factor: f64, over: usize) -> Vec<f64> {
        let mut slope = vec![0.0];
        for i in 1..values.len() {
            // The kernel counts processor time in ticks of 10 ms: over one sample that is noise.
            let j = i.saturating_sub(over);
            let (dv, dt) = (values[i] - values[j], self.times[i] - self.times[j]);
            slope.push(round((dv / dt.max(1e-3) * factor).max(0.0)));
        }
        slope
    }
}

/// Rounds to three decimals, more than any plot shows.
pub fn round(value: f64) -> f64 {
    (value * 1e3).round() / 1e3
}
