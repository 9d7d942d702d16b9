//! `shoal circuits --audit`: checks that relays delay echoes in their mixes as agreed.
//!
//! This host shares a key with each mix. A cell's delay follows from that key and the cell's
//! number, so this host knows the delay of each echo and answer at each relay. Nobody else knows
//! it but that relay. So [`fit`] finds which share of its own delays each relay kept, in each
//! direction, whatever queues and turns of covered links add.
//!
//! A share comes with its error. A relay is accused only if its share is far from 1 by more than
//! four errors and all that turns can feign. In simulated networks one audit of 1,000 accuses an
//! honest relay, and fewer without load. Where the error is too large, the audit says so.
//!
//! A relay that holds all cells for the same time looks like a long line. The audit accuses it if
//! no line on Earth is so long.
//!
//! **Framing.** A node sees when cells pass it, there and back. It may hold answers until all are
//! equally late. Then the delays of relays behind it don't show, and the audit accuses them. So
//! an accused relay is at fault, or a node before it.

use anyhow::Result;
use serde::Serialize;
use shoal_crypto::quantile::quantile;
use shoal_daemon::control::api::{CircuitProbe, Command, ControlReply, HopAnswer};
use shoal_daemon::control::socket::ControlConnection;

use crate::args::CircuitsArgs as Args;
use crate::failure;
use crate::options::CommonOptions;
use crate::output::{self, CellStyle, TextTable, plain};
use crate::target::{connect, unexpected};
use fit::{DelayShare, EchoSample};

mod fit;

/// Time for one round, in milliseconds: set-up of a circuit, and answers of all its hops.
const ROUND_MS: u32 = 30_000;
/// Errors by which a share must differ from 1.
const ERRORS: f64 = 4.0;
/// Difference from 1 that is allowed beside errors.
const ALLOWED: f64 = 0.15;
/// Largest width of an accusation, and of a verdict that a relay delays as agreed.
const ACCUSED_MAX: f64 = 0.85;
const AGREED_MAX: f64 = 0.5;
/// Part of the width from turns alone, from which more rounds do not help.
const LOCK_MAX: f64 = 0.35;
/// Time from one hop to the next and back, in milliseconds, that no line explains. A satellite
/// takes 500 to 600 ms.
const LINE_MAX_MS: f64 = 800.0;

/// Verdict on one hop.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum AuditVerdict {
    /// The relay has no mix.
    Unmixed,
    /// Echoes were delayed as agreed.
    AsAgreed,
    /// Echoes were not delayed as agreed.
    NotAsAgreed,
    /// Echoes were held longer than mixes and lines explain.
    Late,
    /// Delays differ too little beside the turns of covered links.
    TooShort,
    /// Queues on the path add too much for this number of rounds.
    Busy,
    /// The delay depends on the relay's clock.
    Unknown,
    /// Fewer than three answers.
    Silent,
    /// A host keeps no cell back.
    Host,
}

/// Share of the agreed delays that a relay kept in one direction.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub struct KeptShare {
    pub share: f64,
    /// Width of the interval on each side that holds the true share.
    pub within: f64,
}

/// Result for one hop after all rounds.
#[derive(Debug, Serialize)]
pub struct HopAudit {
    pub node: String,
    pub verdict: AuditVerdict,
    pub answered: usize,
    /// Mean round trip and mean agreed delay in it, in milliseconds.
    rtt_ms: f64,
    mixed_ms: f64,
    /// Shares of the delays that this relay kept, if they can be told.
    there: Option<KeptShare>,
    back: Option<KeptShare>,
    /// Least value and 99th percentile (nearest rank) of the rest: the round trip less all agreed
    /// delays.
    least_ms: f64,
    p99_ms: f64,
}

impl HopAudit {
    /// True if the node is a relay with a mix.
    pub fn is_mixed(&self) -> bool {
        use AuditVerdict::{Host, Silent, Unmixed};
        !matches!(self.verdict, Host | Silent | Unmixed)
    }

    pub fn is_accused(&self) -> bool {
        matches!(self.verdict, AuditVerdict::NotAsAgreed | AuditVerdict::Late)
    }

    pub fn is_as_agreed(&self) -> bool {
        self.verdict == AuditVerdict::AsAgreed
    }

    #[cfg(test)]
    pub fn of_test(node: &str, verdict: AuditVerdict) -> HopAudit {
        HopAudit {
            node: node.into(),
            verdict,
            answered: 3,
            rtt_ms: 1.0,
            mixed_ms: 0.0,
            there: None,
            back: None,
            least_ms: 1.0,
            p99_ms: 1.0,
        }
    }
}

/// Sends echoes to all hops of the circuit to a host, and prints a verdict for each.
pub fn run(common: &CommonOptions, args: &Args, host: &str) -> Result<()> {
    let audited = audit(&measure(&mut connect(common)?, host, args.rounds, |_| false)?);
    match common.json {
        true => output::json("audit", &audited)?,
        false => table(&audited).print()?,
    }
    match audited.iter().find(|hop| hop.is_accused()) {
        Some(hop) => anyhow::bail!(
            "{}: echoes were not delayed as agreed, by this node or by one before it: observers \
             can follow cells through it. Repeat the audit over other relays to see which; then \
             tell its operator, or remove its `relay` from the list",
            hop.node
        ),
        None => Ok(()),
    }
}

/// Answers of all hops of the circuit to a host, by round. Rounds over an earlier circuit are left
/// out. `is_enough` ends the measurement early.
///
/// # Errors
/// The node refuses, or has no circuit.
pub fn measure(
    node: &mut ControlConnection,
    host: &str,
    count: u32,
    is_enough: impl Fn(&[Vec<HopAnswer>]) -> bool,
) -> Result<Vec<Vec<HopAnswer>>> {
    let mut rounds: Vec<Vec<HopAnswer>> = Vec::new();
    for _ in 0..count {
        let command = Command::Hops { host: host.into(), timeout_ms: ROUND_MS };
        match node.call(command, &[]) {
            Ok(ControlReply::Hops(CircuitProbe { hops, .. })) => {
                if rounds.last().is_some_and(|last| !same_nodes(last, &hops)) {
                    rounds.clear();
                }
                rounds.push(hops);
                if is_enough(&rounds) {
                    break;
                }
            }
            Ok(other) => return Err(unexpected(&other)),
            Err(e) => return Err(failure::call(e)),
        }
    }
    Ok(rounds)
}

fn same_nodes(a: &[HopAnswer], b: &[HopAnswer]) -> bool {
    a.iter().map(|hop| &hop.node).eq(b.iter().map(|hop| &hop.node))
}

/// Verdicts on the hops of a circuit.
pub fn audit(rounds: &[Vec<HopAnswer>]) -> Vec<HopAudit> {
    let Some(first) = rounds.first() else { return Vec::new() };
    let relays = first.len().saturating_sub(1);
    let samples: Vec<EchoSample> = rounds.iter().flat_map(|round| samples(round)).collect();
    let periods: Vec<Vec<f64>> = first.iter().map(periods_ms).collect();
    let shares = fit::fit(&samples, 2 * relays, &periods);
    let rests: Vec<Vec<f64>> = (0..first.len()).map(|hop| rests(rounds, hop)).collect();
    let hops = (0..first.len()).map(|hop| {
        let own = shares.get(2 * hop..2 * hop + 2).unwrap_or_default();
        let [there, back] = [0, 1].map(|way| own.get(way).copied().flatten());
        let answers = rounds.iter().filter_map(|round| round.get(hop));
        let answers: Vec<&HopAnswer> = answers.filter(|hop| hop.rtt_us.is_some()).collect();
        let before = hop.checked_sub(1).map_or(&[][..], |before| &rests[before]);
        let verdict = match () {
            () if answers.len() < 3 => AuditVerdict::Silent,
            () if is_late(before, &rests[hop], &first[hop]) => AuditVerdict::Late,
            () if hop == relays => AuditVerdict::Host,
            () => of_relay(&answers, hop, [there, back]),
        };
        let [least_ms, p99_ms] = [0.0, 0.99].map(|at| quantile(&rests[hop], at).unwrap_or(0.0));
        HopAudit {
            node: first[hop].node.clone(),
            verdict,
            answered: answers.len(),
            rtt_ms: mean(answers.iter().filter_map(|hop| hop.rtt_us)),
            mixed_ms: mean(answers.iter().filter_map(|hop| hop.mixed_us)),
            there: there.map(kept),
            back: back.map(kept),
            least_ms,
            p99_ms,
        }
    });
    hops.collect()
}

/// Echoes of one round that were answered, for [`fit`]. Delays that follow a relay's clock count as
/// noise.
fn samples(round: &[HopAnswer]) -> impl Iterator<Item = EchoSample> {
    let relays = round.len().saturating_sub(1);
    round.iter().enumerate().filter_map(move |(hop, answer)| {
        let mut delays = vec![0.0; 2 * relays];
        let known = answer.delays_us.iter().take(relays).enumerate();
        for (relay, [there, back]) in known.filter_map(|(at, both)| Some((at, (*both)?))) {
            (delays[2 * relay], delays[2 * relay + 1]) = (ms(there), ms(back));
        }
        Some(EchoSample { hop, rtt_ms: ms(answer.rtt_us?), delays })
    })
}

fn periods_ms(hop: &HopAnswer) -> Vec<f64> {
    hop.periods_us.iter().map(|us| ms(*us)).collect()
}

/// Round trips of a hop less all agreed delays, in milliseconds, sorted. Empty if a delay is not
/// known.
fn rests(rounds: &[Vec<HopAnswer>], hop: usize) -> Vec<f64> {
    let answers = rounds.iter().filter_map(|round| round.get(hop));
    let rest = |hop: &HopAnswer| Some(ms(hop.rtt_us?) - ms(hop.mixed_us?));
    let mut rests: Vec<f64> = answers.filter_map(rest).collect();
    rests.sort_by(f64::total_cmp);
    rests
}

/// True if this hop is so much later than the one before that no line explains it.
fn is_late(before: &[f64], rests: &[f64], hop: &HopAnswer) -> bool {
    let middle = |rests: &[f64]| quantile(rests, 0.5);
    let Some(here) = middle(rests) else { return false };
    here - middle(before).unwrap_or(0.0) > LINE_MAX_MS + ms(hop.turns_us)
}

/// Verdict on a relay by the shares of its delays, there and back.
fn of_relay(answers: &[&HopAnswer], relay: usize, shares: [Option<DelayShare>; 2]) -> AuditVerdict {
    let own = || answers.iter().map(|answer| answer.delays_us.get(relay).copied().flatten());
    if own().any(|delays| delays.is_none()) {
        return AuditVerdict::Unknown;
    }
    if own().flatten().all(|delays| delays == [0, 0]) {
        return AuditVerdict::Unmixed;
    }
    let known: Vec<DelayShare> = shares.into_iter().flatten().collect();
    let width = |share: &DelayShare| ERRORS * share.error + share.lock;
    let is_wrong = |share: &DelayShare| {
        let away = (share.share - 1.0).abs();
        width(share) <= ACCUSED_MAX && away > ALLOWED + width(share)
    };
    match () {
        () if known.iter().any(is_wrong) => AuditVerdict::NotAsAgreed,
        () if known.is_empty() && answers.len() < 8 => AuditVerdict::Busy,
        () if known.is_empty() => AuditVerdict::TooShort,
        () if known.iter().all(|share| width(share) <= AGREED_MAX) => AuditVerdict::AsAgreed,
        () if known.iter().any(|share| share.lock > LOCK_MAX) => AuditVerdict::TooShort,
        () => AuditVerdict::Busy,
    }
}

fn kept(share: DelayShare) -> KeptShare {
    KeptShare { share: share.share, within: ERRORS * share.error + share.lock }
}

fn ms(us: u64) -> f64 {
    us as f64 / 1e3
}

/// Mean in milliseconds; zero without values.
fn mean(us: impl Iterator<Item = u64>) -> f64 {
    let (sum, count) = us.fold((0.0, 0_u32), |(sum, count), us| (sum + ms(us), count + 1));
    sum / f64::from(count.max(1))
}

fn table(hops: &[HopAudit]) -> TextTable {
    let mut table = TextTable::new(&[
        "hop",
        "node",
        ">answers",
        ">round trip",
        ">in mixes",
        ">kept there",
        ">kept back",
        "verdict",
    ]);
    let share = |share: &Option<KeptShare>| match share {
        Some(KeptShare { share, within }) => {
            format!("{:.0}% ± {:.0}%", share * 100.0, within * 100.0)
        }
        None => "-".into(),
    };
    for (at, hop) in hops.iter().enumerate() {
        let (how, verdict) = words(hop.verdict);
        let is_host = at + 1 == hops.len();
        let name = if is_host { "host".into() } else { format!("relay {}", at + 1) };
        let text = |ms: f64| format!("{ms:.2} ms");
        let mut row = plain([
            name,
            hop.node.clone(),
            hop.answered.to_string(),
            text(hop.rtt_ms),
            text(hop.mixed_ms),
            share(&hop.there),
            share(&hop.back),
        ]);
        row.push((how, verdict.into()));
        table.row(row);
    }
    table
}

fn words(verdict: AuditVerdict) -> (CellStyle, &'static str) {
    match verdict {
        AuditVerdict::Unmixed => (CellStyle::Dim, "does not mix"),
        AuditVerdict::AsAgreed => (CellStyle::Good, "waits as agreed"),
        AuditVerdict::NotAsAgreed => (CellStyle::Bad, "does not wait as agreed"),
        AuditVerdict::Late => (CellStyle::Bad, "later than mixes and any line explain"),
        AuditVerdict::TooShort => (CellStyle::Dim, "not known: too short to tell"),
        AuditVerdict::Busy => {
            (CellStyle::Dim, "not known: the path is too busy, ask for more --rounds")
        }
        AuditVerdict::Unknown => (CellStyle::Dim, "not known: a timed mix goes by its own clock"),
        AuditVerdict::Silent => (CellStyle::Bad, "too few answers"),
        AuditVerdict::Host => (CellStyle::Dim, "hosts keep no cell back"),
    }
}

#[cfg(test)]
mod tests;
