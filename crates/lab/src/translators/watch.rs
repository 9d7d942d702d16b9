//! Observes all pairs at the same time, each with its own thread.

use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use anyhow::{Context, Result, anyhow, bail};
use shoal_daemon::control::api::{Command, ControlEvent, ControlReply, ErrorCode};
use shoal_daemon::control::socket::CallError;

use super::ground::{HostPair, NatNetwork};
use crate::site::RunningNetwork;

/// Limit of a pair's time: longer than an attempt, whose failure must be seen.
const LIMIT: Duration = Duration::from_secs(14);
/// Timeout of the first answer, in milliseconds. Requests are repeated meanwhile.
const PING_MS: u32 = 15_000;
/// Wait for an event before checking whether the pair is relayed.
const LOOK: Duration = Duration::from_millis(250);
/// Pause of a new link before its round trip is measured.
const SETTLE: Duration = Duration::from_millis(200);
/// Allowance of a set-up beyond round trips.
const SPARE_MS: f64 = 50.0;
/// Limit of a quick set-up, even if packets are lost.
const SOON_MS: f64 = 1_000.0;

/// Result of one run of a pair. All times are in milliseconds.
#[derive(Clone, Debug, Default)]
pub struct PairOutcome {
    /// Time from the first echo request to the first answer; `None` without an answer.
    pub first_ms: Option<f64>,
    /// Round trip through the routers.
    pub routed_ms: Option<f64>,
    /// Time from the first cell until the direct link is up.
    pub setup: Option<f64>,
    /// Round trip over the direct link.
    pub direct_ms: Option<f64>,
    /// Reason why the pair has no direct link.
    pub why: Option<String>,
}

impl PairOutcome {
    /// Limit of a timely set-up: a round trip through the routers, three direct round trips, and 50
    /// ms.
    pub fn bound_ms(&self) -> Option<f64> {
        let (routed, direct) = self.routed_ms.zip(self.direct_ms)?;
        Some(routed + 3.0 * direct + SPARE_MS)
    }

    /// True if the link came up within [`PairOutcome::bound_ms`].
    pub fn is_timely(&self) -> bool {
        self.setup.zip(self.bound_ms()).is_some_and(|(setup, bound)| setup <= bound)
    }

    /// True if the link came up within a second.
    pub fn is_soon(&self) -> bool {
        self.setup.is_some_and(|setup| setup <= SOON_MS)
    }
}

/// Observes all pairs.
pub fn all(site: &RunningNetwork, ground: &NatNetwork) -> Result<Vec<PairOutcome>> {
    std::thread::scope(|scope| {
        let watch = |pair| scope.spawn(move || one(site, pair));
        let threads: Vec<_> = ground.pairs.iter().map(watch).collect();
        let end = |(thread, pair): (std::thread::ScopedJoinHandle<'_, _>, &HostPair)| {
            let found: Result<PairOutcome> =
                thread.join().map_err(|_| anyhow!("a watcher panicked"))?;
            found.with_context(|| format!("the pair {} and {}", pair.names[0], pair.names[1]))
        };
        threads.into_iter().zip(&ground.pairs).map(end).collect()
    })
}

fn unix_ms() -> f64 {
    SystemTime::now().duration_since(UNIX_EPOCH).map_or(0.0, |since| since.as_secs_f64() * 1e3)
}

/// An answered echo request.
struct EchoAnswer {
    /// Round trip in milliseconds.
    rtt_ms: f64,
    /// Departure of the first request, in milliseconds since 1970.
    asked: f64,
    /// Arrival of the answer, in milliseconds since 1970.
    answered: f64,
}

/// Sends echo requests until an answer comes; `None` without an answer.
fn ping(site: &RunningNetwork, pair: &HostPair) -> Result<Option<EchoAnswer>> {
    let command = Command::Ping { host: pair.names[1].clone(), timeout_ms: PING_MS };
    let mut node = site.control(pair.hosts[0])?;
    match node.call(command, &[]) {
        Ok(ControlReply::Pong { rtt_us, since_us }) => {
            let (answered, of) = (unix_ms(), |us: u64| us as f64 / 1e3);
            // Nodes of an earlier version report only the round trip.
            let asked = answered - of(since_us.max(rtt_us));
            Ok(Some(EchoAnswer { rtt_ms: of(rtt_us), asked, answered }))
        }
        Ok(other) => bail!("unexpected answer {other:?}"),
        Err(CallError::Node(e)) if e.code == ErrorCode::TimedOut => Ok(None),
        Err(e) => Err(e.into()),
    }
}

fn one(site: &RunningNetwork, pair: &HostPair) -> Result<PairOutcome> {
    let mut monitor = site.control(pair.hosts[0])?;
    monitor.call(Command::Monitor, &[])?;
    let began = unix_ms();
    let mut found = PairOutcome::default();
    let Some(first) = ping(site, pair)? else { return Ok(found) };
    // The request for a direct link left with the first echo request, after the hosts had a
    // session.
    let asked = first.asked;
    (found.first_ms, found.routed_ms) = (Some(first.answered - began), Some(first.rtt_ms));
    let until = Instant::now() + LIMIT;
    while Instant::now() < until && found.setup.is_none() && found.why.is_none() {
        match monitor.event(Some(LOOK))? {
            Some(ControlEvent::Link { unix_ms, peer, state, .. })
                if peer == pair.names[1] && state == "up" =>
            {
                found.setup = Some(unix_ms as f64 - asked);
            }
            Some(_) => {}
            None => found.why = relayed(site, pair)?,
        }
        if pair.off && found.why.is_none() {
            break;
        }
    }
    if found.setup.is_some() {
        // The far end answers over the link after it has received this end's first frames.
        std::thread::sleep(SETTLE);
        let both = [ping(site, pair)?, ping(site, pair)?];
        found.direct_ms = both.into_iter().flatten().map(|pong| pong.rtt_ms).reduce(f64::min);
    }
    Ok(found)
}

/// Reason why routers relay between the two, if known.
fn relayed(site: &RunningNetwork, pair: &HostPair) -> Result<Option<String>> {
    let peers = site.peers(pair.hosts[0])?;
    let of = peers.into_iter().find(|p| p.name == pair.names[1] && p.state == "relayed");
    Ok(of.and_then(|peer| peer.direct).map(|direct| direct.why))
}
