//! `shoal circuits --audit`: checks that relays delay echoes in their mixes as agreed.
//!
//! This host shares a key with each mix. A cell's delay follows from that key and the cell's
//! number, so this host knows the delay in each echo's round trip. The remaining time is called the
//! rest. Without queues and stalls it would be the same each time, and these only make echoes late.
//!
//! A relay that passes echoes on at once, or delays them as it likes, makes some echoes early. So
//! the audit judges the earlier half of the rest. If a relay cheats, that half deviates as much as
//! the longer half of the agreed delays.
//!
//! A busy machine makes nearly all echoes late. Two signs tell it from a relay that cheats. Queues
//! spread the later half of the rest far more than the earlier one. Queues add a time that does not
//! depend on the agreed delay. An echo that was not delayed comes the earlier, the longer its delay
//! should have been.
//!
//! On covered links echoes wait for turns, each for another time. The audit has no result if turns
//! add as much as mixes.

use anyhow::Result;
use serde::Serialize;
use shoal_crypto::quantile::quantile;
use shoal_daemon::control::api::{CircuitProbe, Command, ControlReply, HopAnswer};

use crate::args::CircuitsArgs as Args;
use crate::failure;
use crate::options::CommonOptions;
use crate::output::{self, CellStyle, TextTable, plain};
use crate::target::{connect, unexpected};

/// Time for one round, in milliseconds: set-up of a circuit, and answers of all its hops.
const ROUND_MS: u32 = 30_000;
/// Deviation of the rest, in milliseconds, that queues and the release times of mixes explain.
const JITTER_MS: f64 = 1.0;
/// Deviation of waits for turns, as a share of their greatest sum. Four uniform waits deviate by
/// 0.14 of that sum, two by 0.2.
const TURNS: f64 = 0.25;
/// Share of the agreed deviation that may remain in the rest.
const LEFT_MAX: f64 = 0.4;
/// Queues spread the later half of the rest at least this many times as far as the earlier one.
const BUSY_SPREAD: f64 = 2.0;
/// The rest falls with the delay if their rank correlation is this many standard deviations below
/// zero. On a busy path that holds for one honest hop of 160.
const FALLS: f64 = 2.5;

/// Verdict on one hop.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
enum AuditVerdict {
    /// No mix on the path to the hop.
    Unmixed,
    /// Echoes were delayed as agreed.
    AsAgreed,
    /// Echoes were not delayed as agreed, although those of the hop before were.
    NotAsAgreed,
    /// A hop before this one is at fault, and hides this one's delays.
    Hidden,
    /// Agreed delays differ too little: queues add as much as this relay, or the one before, could
    /// have left out.
    TooShort,
    /// Queues on the path add more than mixes do.
    Busy,
    /// The delay depends on a relay's clock.
    Unknown,
    /// Fewer than three answers.
    Silent,
}

/// Result for one hop after all rounds.
#[derive(Debug, Serialize)]
struct HopAudit {
    node: String,
    verdict: AuditVerdict,
    answered: usize,
    /// Mean round trip, mean agreed delay in it, and deviation of the earlier half of the rest from
    /// its mean, in milliseconds.
    rtt_ms: f64,
    mixed_ms: f64,
    deviation_ms: f64,
    /// Least value and 99th percentile (nearest rank) of the rest, in milliseconds.
    least_ms: f64,
    p99_ms: f64,
}

/// Sends echoes to all hops of the circuit to a host, and prints a verdict for each.
pub fn run(common: &CommonOptions, args: &Args, host: &str) -> Result<()> {
    let mut node = connect(common)?;
    let mut rounds: Vec<Vec<HopAnswer>> = Vec::new();
    for _ in 0..args.rounds {
        let command = Command::Hops { host: host.into(), timeout_ms: ROUND_MS };
        match node.call(command, &[]) {
            Ok(ControlReply::Hops(CircuitProbe { hops, .. })) => {
                // Another circuit took over: earlier echoes say nothing about it.
                if rounds.last().is_some_and(|last| !same_nodes(last, &hops)) {
                    rounds.clear();
                }
                rounds.push(hops);
            }
            Ok(other) => return Err(unexpected(&other)),
            Err(e) => return Err(failure::call(e)),
        }
    }
    let audited = audit(&rounds);
    match common.json {
        true => output::json("audit", &audited)?,
        false => table(&audited).print()?,
    }
    match audited.iter().find(|hop| hop.verdict == AuditVerdict::NotAsAgreed) {
        Some(hop) => anyhow::bail!(
            "{}: echoes were not delayed as agreed, by this node or, on the way to it, by the \
             node before: observers can follow cells through it. Repeat the audit over other \
             relays to see which; then tell its operator, or remove its `relay` from the list",
            hop.node
        ),
        None => Ok(()),
    }
}

fn same_nodes(a: &[HopAnswer], b: &[HopAnswer]) -> bool {
    a.iter().map(|hop| &hop.node).eq(b.iter().map(|hop| &hop.node))
}

fn audit(rounds: &[Vec<HopAnswer>]) -> Vec<HopAudit> {
    let Some(first) = rounds.first() else { return Vec::new() };
    let (mut at_fault, mut busy) = (false, false);
    // Deviation that hops without a verdict may have left out, there and back. An echo shows only
    // the way back of its own hop; the way there shows at the next hop.
    let mut unseen = 0.0;
    let hops = first.iter().enumerate().map(|(at, hop)| {
        let answers = rounds.iter().filter_map(|round| round.get(at));
        let seen: Vec<(f64, Option<f64>)> =
            answers.filter_map(|hop| Some((ms(hop.rtt_us?), hop.mixed_us.map(ms)))).collect();
        let mut mixed: Vec<f64> = seen.iter().filter_map(|(_, mixed)| *mixed).collect();
        let mut rest: Vec<f64> =
            seen.iter().filter_map(|(rtt, mixed)| Some(rtt - (*mixed)?)).collect();
        let falls = falls(&mixed, &rest);
        let (mixed_ms, _) = mean_and_deviation(&mixed);
        let (_, agreed) = mean_and_deviation(longer_half(&mut mixed));
        let (_, deviation_ms) = mean_and_deviation(shorter_half(&mut rest));
        let (_, later_ms) = mean_and_deviation(longer_half(&mut rest));
        let [least_ms, p99_ms] = [0.0, 0.99].map(|share| quantile(&rest, share).unwrap_or(0.0));
        let left = LEFT_MAX * agreed;
        let jitter = JITTER_MS + TURNS * ms(hop.turns_us);
        let allowed = jitter.max(left);
        let verdict = match () {
            () if seen.len() < 3 => AuditVerdict::Silent,
            () if mixed.len() < seen.len() => AuditVerdict::Unknown,
            () if mixed_ms == 0.0 => AuditVerdict::Unmixed,
            () if at_fault => AuditVerdict::Hidden,
            () if left < jitter => AuditVerdict::TooShort,
            () if deviation_ms <= allowed => AuditVerdict::AsAgreed,
            () if busy || later_ms >= BUSY_SPREAD * deviation_ms && !falls => AuditVerdict::Busy,
            () if deviation_ms <= allowed + unseen => AuditVerdict::TooShort,
            () => AuditVerdict::NotAsAgreed,
        };
        at_fault |= verdict == AuditVerdict::NotAsAgreed;
        // Over a busy path a hop may have left out any delay.
        busy |= verdict == AuditVerdict::Busy;
        // A hop without answers may have left out any delay.
        unseen = match () {
            () if seen.len() < 3 => f64::INFINITY,
            () if left < jitter => unseen.max(2.0 * agreed),
            () => unseen,
        };
        let rtts: Vec<f64> = seen.iter().map(|(rtt, _)| *rtt).collect();
        let (rtt_ms, _) = mean_and_deviation(&rtts);
        let (node, answered) = (hop.node.clone(), seen.len());
        HopAudit { node, verdict, answered, rtt_ms, mixed_ms, deviation_ms, least_ms, p99_ms }
    });
    hops.collect()
}

fn ms(us: u64) -> f64 {
    us as f64 / 1e3
}

/// The values up to the median, sorted.
fn shorter_half(values: &mut [f64]) -> &[f64] {
    values.sort_by(f64::total_cmp);
    &values[..values.len().div_ceil(2)]
}

/// The values from the median on, sorted.
fn longer_half(values: &mut [f64]) -> &[f64] {
    values.sort_by(f64::total_cmp);
    &values[values.len() / 2..]
}

/// True if the rest falls while the delay grows. Compares Kendall's rank correlation with its
/// standard deviation for independent values (M. Kendall, "A new measure of rank correlation",
/// 1938).
fn falls(mixed: &[f64], rest: &[f64]) -> bool {
    let sign = |a: f64, b: f64| (a > b) as i32 - (a < b) as i32;
    let pairs = (0..mixed.len()).flat_map(|a| (0..a).map(move |b| (a, b)));
    let agreeing: i32 = pairs.map(|(a, b)| sign(mixed[a], mixed[b]) * sign(rest[a], rest[b])).sum();
    let n = mixed.len() as f64;
    f64::from(agreeing) < -FALLS * (n * (n - 1.0) * (2.0 * n + 5.0) / 18.0).sqrt()
}

/// Mean and standard deviation; zeroes without values.
fn mean_and_deviation(values: &[f64]) -> (f64, f64) {
    let count = values.len().max(1) as f64;
    let mean = values.iter().fold(0.0, |sum, value| sum + value) / count;
    let squares: f64 = values.iter().map(|value| (value - mean).powi(2)).sum();
    (mean, (squares / count).sqrt())
}

fn table(hops: &[HopAudit]) -> TextTable {
    let mut table = TextTable::new(&[
        "hop",
        "node",
        ">answers",
        ">round trip",
        ">in mixes",
        ">deviation",
        "verdict",
    ]);
    for (at, hop) in hops.iter().enumerate() {
        let (how, verdict) = match hop.verdict {
            AuditVerdict::Unmixed => (CellStyle::Dim, "no mix on the way"),
            AuditVerdict::AsAgreed => (CellStyle::Good, "waits as agreed"),
            AuditVerdict::NotAsAgreed => (CellStyle::Bad, "does not wait as agreed"),
            AuditVerdict::Hidden => (CellStyle::Dim, "not known: hidden by the hop before"),
            AuditVerdict::TooShort => (CellStyle::Dim, "not known: too short to tell"),
            AuditVerdict::Busy => {
                (CellStyle::Dim, "not known: the path is too busy, ask for more --rounds")
            }
            AuditVerdict::Unknown => {
                (CellStyle::Dim, "not known: a timed mix goes by its own clock")
            }
            AuditVerdict::Silent => (CellStyle::Bad, "too few answers"),
        };
        let is_host = at + 1 == hops.len();
        let name = if is_host { "host".into() } else { format!("relay {}", at + 1) };
        let text = |ms: f64| format!("{ms:.2} ms");
        let known = |ms: f64| match hop.verdict {
            AuditVerdict::Unknown | AuditVerdict::Silent => "-".into(),
            _ => text(ms),
        };
        let mut row = plain([
            name,
            hop.node.clone(),
            hop.answered.to_string(),
            text(hop.rtt_ms),
            known(hop.mixed_ms),
            known(hop.deviation_ms),
        ]);
        row.push((how, verdict.into()));
        table.row(row);
    }
    table
}

#[cfg(test)]
mod tests {
    use super::*;

    fn hop_of(at: u64, rtt_us: u64, mixed_us: u64) -> HopAnswer {
        let (rtt_us, mixed_us) = (Some(rtt_us), Some(mixed_us));
        HopAnswer { node: format!("r{at}"), rtt_us, mixed_us, turns_us: 0 }
    }

    /// Rounds over relays and a host. `keeps` says which relays delay as agreed; the others don't
    /// delay.
    fn rounds(keeps: [bool; 3], count: u64) -> Vec<Vec<HopAnswer>> {
        // Delays of 0 to 20 ms that look random, the same in each run.
        let delay = |seed: u64| (seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 40) % 20_000;
        let round = |round: u64| {
            let hop = |at: u64| {
                let relays = (0..3).take_while(|relay| *relay <= at);
                let waits = |relay: u64| delay(round * 100 + at * 10 + relay);
                let kept = relays.clone().filter(|relay| keeps[*relay as usize]);
                let rtt_us = 1_000 * (at + 1) + kept.map(waits).sum::<u64>() + round % 3 * 100;
                let mixed_us = relays.map(waits).sum();
                hop_of(at, rtt_us, mixed_us)
            };
            (0..4).map(hop).collect()
        };
        (0..count).map(round).collect()
    }

    /// Rounds in which each relay's delays are divided by its number in `by`.
    fn shorter(keeps: [bool; 3], by: [u64; 3]) -> Vec<Vec<HopAnswer>> {
        let delay = |seed: u64| (seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 40) % 20_000;
        let round = |round: u64| {
            let hop = |at: u64| {
                // The echo's own hop delays it on the way back only.
                let ways = (0..3).take_while(|relay| *relay <= at).flat_map(|relay| {
                    let ways = if relay < at { 2 } else { 1 };
                    (0..ways).map(move |way| (relay, way))
                });
                let waits = |(relay, way): (u64, u64)| {
                    delay(round * 100 + at * 20 + relay * 2 + way) / by[relay as usize]
                };
                let kept = ways.clone().filter(|(relay, _)| keeps[*relay as usize]);
                let rtt_us = 1_000 * (at + 1) + kept.map(waits).sum::<u64>() + round % 3 * 100;
                let mixed_us = ways.map(waits).sum();
                hop_of(at, rtt_us, mixed_us)
            };
            (0..4).map(hop).collect()
        };
        (0..200).map(round).collect()
    }

    #[test]
    fn who_follows_a_relay_that_can_not_be_judged_is_not_accused() {
        use AuditVerdict::{Hidden, NotAsAgreed, TooShort};
        // Delays of 0 to 5 ms at the first relay: what it left out shows at the second, as 1 ms or
        // more.
        let seen = verdicts(&shorter([false, true, true], [4, 4, 4]));
        assert!(!seen.contains(&NotAsAgreed), "{seen:?}");
        assert_eq!(seen[0], TooShort);
        let seen = verdicts(&shorter([false, true, true], [4, 2, 1]));
        assert!(!seen.contains(&NotAsAgreed), "{seen:?}");
        // A relay that answers no echo shows nothing of its delays.
        let mut rounds = shorter([false, true, true], [1, 1, 1]);
        rounds.iter_mut().for_each(|round| round[0].rtt_us = None);
        let seen = verdicts(&rounds);
        assert!(!seen.contains(&NotAsAgreed) && seen[0] == AuditVerdict::Silent, "{seen:?}");
        // A mix that can't be judged does not hide a relay that leaves out far more.
        let seen = verdicts(&shorter([true, false, true], [40, 1, 1]));
        assert_eq!(seen, [TooShort, NotAsAgreed, Hidden, Hidden]);
    }

    fn verdicts(rounds: &[Vec<HopAnswer>]) -> Vec<AuditVerdict> {
        audit(rounds).iter().map(|hop| hop.verdict).collect()
    }

    #[test]
    fn the_first_relay_that_does_not_wait_is_named() {
        use AuditVerdict::{AsAgreed, Hidden, NotAsAgreed};
        assert_eq!(verdicts(&rounds([true; 3], 20)), [AsAgreed; 4]);
        let cases = [
            ([false, true, true], [NotAsAgreed, Hidden, Hidden, Hidden]),
            ([true, false, true], [AsAgreed, NotAsAgreed, Hidden, Hidden]),
            ([true, true, false], [AsAgreed, AsAgreed, NotAsAgreed, Hidden]),
        ];
        for (keeps, said) in cases {
            assert_eq!(verdicts(&rounds(keeps, 20)), said, "{keeps:?}");
        }
    }

    #[test]
    fn stalls_are_not_taken_for_relays_that_do_not_wait() {
        let mut stalled = rounds([true; 3], 20);
        for (round, hops) in (0..).zip(&mut stalled) {
            let late = if round % 3 == 0 { 10_000 + round * 3_000 } else { 0 };
            hops.iter_mut().for_each(|hop| hop.rtt_us = hop.rtt_us.map(|us| us + late));
        }
        assert_eq!(verdicts(&stalled), [AuditVerdict::AsAgreed; 4]);
        let mut cheats = rounds([true; 3], 20);
        for (n, hops) in cheats.iter_mut().enumerate() {
            // The relay delays as agreed in two rounds of three.
            let waits = hops[0].mixed_us.unwrap_or(0);
            hops[0].rtt_us = hops[0].rtt_us.map(|us| us - if n % 3 == 0 { waits } else { 0 });
        }
        assert_eq!(verdicts(&cheats)[0], AuditVerdict::NotAsAgreed);
    }

    /// Four turns of up to 18 ms each, as on two links of 10 Mbit/s.
    #[test]
    fn turns_of_covered_links_are_not_taken_for_a_relays_fault() {
        let (mut seed, mut accused) = (1_u64, 0);
        for _ in 0..20 {
            let mut rounds = rounds([true; 3], 40);
            for hop in rounds.iter_mut().flatten() {
                for _ in 0..4 {
                    seed = seed.wrapping_mul(0xd134_2543_de82_ef95).wrapping_add(1);
                    hop.rtt_us = hop.rtt_us.map(|us| us + (seed >> 40) * 18_432 / (1 << 24));
                }
                hop.turns_us = 4 * 18_432;
            }
            accused +=
                verdicts(&rounds).iter().filter(|v| **v == AuditVerdict::NotAsAgreed).count();
        }
        assert_eq!(accused, 0);
        // Far longer mixes are judged nevertheless.
        let mut long = rounds([false, true, true], 40);
        for hop in long.iter_mut().flatten() {
            (hop.rtt_us, hop.mixed_us) =
                (hop.rtt_us.map(|us| us * 20), hop.mixed_us.map(|us| us * 20));
            hop.turns_us = 4 * 18_432;
        }
        assert_eq!(verdicts(&long)[0], AuditVerdict::NotAsAgreed);
    }

    #[test]
    fn a_busy_machine_is_not_taken_for_a_relays_fault() {
        use AuditVerdict::{AsAgreed, Busy, NotAsAgreed};
        // Wait of each echo for the processor: mostly some milliseconds, at times far more. A relay
        // that passes all cells on at once is found nevertheless.
        let busy = |keeps: [bool; 3], seed: u64, count: u64| {
            let mut rounds = rounds(keeps, count);
            for (at, hop) in (seed..).zip(rounds.iter_mut().flatten()) {
                let share =
                    (at.wrapping_mul(0xd134_2543_de82_ef95) >> 40) as f64 / 2.0_f64.powi(24);
                let late = (-2_500.0 * share.max(1e-6).ln()) as u64 * (1 + at % 5);
                hop.rtt_us = hop.rtt_us.map(|us| us + late);
            }
            verdicts(&rounds)
        };
        let honest: Vec<_> = (0..50).flat_map(|n| busy([true; 3], n * 1_000, 12)).collect();
        let accused = honest.iter().filter(|verdict| **verdict == NotAsAgreed).count();
        assert!(accused <= 2, "{accused} of 200");
        assert!(honest.contains(&Busy) && honest.contains(&AsAgreed), "{honest:?}");
        let found = (0..50).filter(|n| busy([false, true, true], n * 1_000, 100)[0] == NotAsAgreed);
        assert!(found.count() >= 45);
    }

    #[test]
    fn what_can_not_be_known_is_said_to_be_unknown() {
        let mut timed = rounds([true; 3], 5);
        timed.iter_mut().for_each(|round| round[1].mixed_us = None);
        assert_eq!(verdicts(&timed)[1], AuditVerdict::Unknown);
        let mut plain = rounds([false; 3], 5);
        plain.iter_mut().flatten().for_each(|hop| hop.mixed_us = Some(0));
        assert_eq!(verdicts(&plain), [AuditVerdict::Unmixed; 4]);
        assert_eq!(verdicts(&rounds([true; 3], 2)), [AuditVerdict::Silent; 4]);
        assert!(audit(&[]).is_empty());
    }
}
