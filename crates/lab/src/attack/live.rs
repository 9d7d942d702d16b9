//! The attacker during a run: access links are recorded while programs run, then attacked.

use std::fs;
use std::path::{Path, PathBuf};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use anyhow::{Context, Result};
use shoal_wire::CoverTier;

use super::capture::{AccessCapture, CaptureDescription, RecordedMark, RecordedMix, RecordedPair};
use crate::figures::figure;
use crate::network::{Conditions, Network};
use crate::record::{Figure, TimedEvent};
use crate::scenario::{
    self, AttackSettings, CircuitUse, CoverSettings, LiveMark, MixKind, ScenarioCase,
};
use crate::wiretap::Wiretap;

/// Number of relays of a circuit, unless a case sets it.
const RELAYS: u32 = 3;
/// Seed of an active attacker's codes.
const MARK_SEED: u64 = 7;

/// Wiretaps on the access links of communicating hosts.
pub struct LiveAttack {
    description: CaptureDescription,
    taps: Vec<Wiretap>,
    folder: PathBuf,
    spans: Vec<u32>,
    /// Interventions on hosts' frames, by time.
    deeds: Vec<Intervention>,
    next: usize,
}

/// Start or end of an intervention on the frames that a node sends on a link: loss or delay. `at_s`
/// counts seconds from the start of the traffic.
struct Intervention {
    at_s: f64,
    link: usize,
    node: usize,
    begins: bool,
}

impl LiveAttack {
    /// Starts recording pairs of hosts, into `folder`. The traffic starts at once.
    ///
    /// # Errors
    /// Namespaces are missing.
    pub fn start(
        attack: &AttackSettings,
        case: &ScenarioCase,
        network: &Network,
        conditions: &[Conditions],
        (pairs, folder): (&[(usize, usize)], &Path),
    ) -> Result<LiveAttack> {
        fs::create_dir_all(folder).with_context(|| folder.display().to_string())?;
        let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
        let begin = now + Duration::from_secs_f64(attack.from_s);
        let link_of = |host: usize| -> Result<(usize, usize)> {
            network.topology().links_of(host).next().context("a host without a link")
        };
        let mut taps = Vec::new();
        let mut wire = |host: usize| -> Result<AccessCapture> {
            let file = PathBuf::from(format!("{}.pcap", network.topology().nodes[host].name));
            let space = network.namespace(host).context("captures need namespaces; run as root")?;
            taps.push(Wiretap::of_heads(space, &folder.join(&file))?);
            let (_, router) = link_of(host)?;
            Ok(AccessCapture { file, host: network.ip_of(router, host)? })
        };
        let pair = pairs.iter().map(|(caller, called)| -> Result<RecordedPair> {
            Ok(RecordedPair { caller: wire(*caller)?, called: wire(*called)? })
        });
        let pair = pair.collect::<Result<_>>()?;
        let (first, _) = link_of(pairs.first().context("no pair of hosts")?.0)?;
        let over_circuits = case.circuits == CircuitUse::Require;
        let relays = case.circuit_relays.map_or(RELAYS, u32::from);
        let mut watch = LiveAttack {
            description: CaptureDescription {
                seconds: attack.seconds.iter().copied().max().unwrap_or(1),
                mixes: if over_circuits { relays } else { 0 },
                line_ms: conditions[first].delay.as_secs_f64() * 1e3,
                jitter_ms: conditions[first].jitter.as_secs_f64().max(1e-4) * 1e3,
                cover_per_s: case.cover.and_then(CoverSettings::tier).map(per_s),
                begin_unix_ns: Some(begin.as_nanos() as u64),
                mark: case.attack.mark.map(|kind| RecordedMark { kind, seed: MARK_SEED }),
                mix: case.mix.as_ref().map(mix),
                pair,
            },
            taps,
            folder: folder.to_path_buf(),
            spans: attack.seconds.clone(),
            deeds: Vec::new(),
            next: 0,
        };
        for (number, host) in pairs.iter().flat_map(|(a, b)| [*a, *b]).enumerate() {
            let (link, _) = link_of(host)?;
            watch.plan(attack.from_s, number, link, host);
        }
        watch.deeds.sort_by(|a, b| a.at_s.total_cmp(&b.at_s));
        Ok(watch)
    }

    /// Plans the interventions on a host's frames.
    fn plan(&mut self, from_s: f64, number: usize, link: usize, node: usize) {
        let Some(code) = self.description.code(number) else { return };
        for (from, to) in code.holes() {
            for (at, begins) in [(from, true), (to, false)] {
                self.deeds.push(Intervention {
                    at_s: from_s + at as f64 / 1e9,
                    link,
                    node,
                    begins,
                });
            }
        }
    }

    /// Performs the interventions that are due; `now` is in seconds after the start.
    ///
    /// # Errors
    /// A link is not emulated.
    pub fn act(&mut self, network: &Network, now: f64) -> Result<()> {
        while let Some(deed) = self.deeds.get(self.next).filter(|deed| deed.at_s <= now) {
            match self.description.mark.map(|mark| mark.kind) {
                Some(LiveMark::Drops) => network.lose_from(deed.link, deed.node, deed.begins)?,
                Some(LiveMark::Gaps) => network.keep_from(deed.link, deed.node, deed.begins)?,
                None => {}
            }
            self.next += 1;
        }
        Ok(())
    }

    /// Ends the captures and attacks them. Returns figures, and the attack that was selected for
    /// each observed time.
    ///
    /// # Errors
    /// A capture failed.
    pub fn finish(self) -> Result<(Vec<Figure>, Vec<TimedEvent>)> {
        self.taps.into_iter().try_for_each(|tap| tap.finish().map(drop))?;
        let (mut figures, mut marks) = (Vec::new(), Vec::new());
        for seconds in self.spans {
            let file = self.folder.join(format!("network-{seconds}s.toml"));
            let description = CaptureDescription { seconds, ..self.description.clone() };
            fs::write(&file, toml::to_string(&description)?)?;
            let report = description.attack(&file)?;
            let outcome = &report.rows.first().context("no row")?.outcome;
            let (rates, of) = (&outcome.rates, format!("{seconds} s"));
            figures.extend([
                figure("attack_auc", &of, rates.auc.value),
                figure("attack_auc_low", &of, rates.auc.low),
                figure("attack_auc_high", &of, rates.auc.high),
                figure("attack_top1", &of, rates.top1.value),
                figure("attack_guess", &of, rates.guess),
                figure("attack_shuffled", &of, outcome.shuffled.value),
                figure("attack_shuffled_low", &of, outcome.shuffled.low),
                figure("attack_shuffled_high", &of, outcome.shuffled.high),
                figure("attack_frames_per_s", &of, outcome.cost.frames_per_s),
            ]);
            let text = format!("watched for {of}: {}", outcome.attack);
            marks.push(TimedEvent { at_s: f64::from(seconds), text });
        }
        Ok((figures, marks))
    }
}

/// Frames per second in each direction.
fn per_s(tier: CoverTier) -> f64 {
    1.0 / tier.frame_gap().as_secs_f64()
}

fn mix(mix: &scenario::MixSettings) -> RecordedMix {
    match mix.kind {
        MixKind::Timed => RecordedMix::Timed { every_ms: mix.every_ms.unwrap_or_default() },
        MixKind::StopAndGo => RecordedMix::StopAndGo {
            mean_ms: mix.mean_ms.unwrap_or_default(),
            most_ms: mix.most_ms,
        },
    }
}
