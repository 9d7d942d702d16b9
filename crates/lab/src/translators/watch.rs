//! What becomes of the pairs: all are watched at once, each by a thread of its own.

use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use anyhow::{Context, Result, anyhow, bail};
use shoal_daemon::control::api::{Command, Event, Reply};

use super::ground::{Ground, Pair};
use crate::site::Site;

/// How long a pair may take: longer than an attempt, whose failure it waits for.
const LIMIT: Duration = Duration::from_secs(14);
/// How long a first answer may take.
const PING_MS: u32 = 5_000;
/// How long to wait for news before looking whether the pair is relayed.
const LOOK: Duration = Duration::from_millis(250);
/// How long a link is left alone before its round trip is measured.
const SETTLE: Duration = Duration::from_millis(200);
/// What the bound of a set-up has besides round trips.
const SPARE_MS: f64 = 50.0;

/// One run of a pair. All times in milliseconds.
#[derive(Clone, Debug)]
pub struct Found {
    /// From the first request for an echo to its answer.
    pub first_ms: f64,
    /// A round trip through the routers.
    pub routed_ms: f64,
    /// From the first cell to the link that is up.
    pub setup: Option<f64>,
    /// A round trip over that link.
    pub direct_ms: Option<f64>,
    /// Why there is no link.
    pub why: Option<String>,
}

impl Found {
    /// How long the set-up may take: a round trip through the routers and three direct ones.
    pub fn bound_ms(&self) -> Option<f64> {
        self.direct_ms.map(|direct| self.routed_ms + 3.0 * direct + SPARE_MS)
    }

    /// Whether the link came up in that time.
    pub fn is_timely(&self) -> bool {
        self.setup.zip(self.bound_ms()).is_some_and(|(setup, bound)| setup <= bound)
    }
}

/// Watches all pairs.
pub fn all(site: &Site, ground: &Ground) -> Result<Vec<Found>> {
    std::thread::scope(|scope| {
        let watch = |pair| scope.spawn(move || one(site, pair));
        let threads: Vec<_> = ground.pairs.iter().map(watch).collect();
        let end = |(thread, pair): (std::thread::ScopedJoinHandle<'_, _>, &Pair)| {
            let found: Result<Found> = thread.join().map_err(|_| anyhow!("a watcher panicked"))?;
            found.with_context(|| format!("the pair {} and {}", pair.names[0], pair.names[1]))
        };
        threads.into_iter().zip(&ground.pairs).map(end).collect()
    })
}

fn unix_ms() -> f64 {
    SystemTime::now().duration_since(UNIX_EPOCH).map_or(0.0, |since| since.as_secs_f64() * 1e3)
}

/// A round trip in milliseconds, and when the answer came.
fn ping(site: &Site, pair: &Pair) -> Result<(f64, f64)> {
    let command = Command::Ping { host: pair.names[1].clone(), timeout_ms: PING_MS };
    match site.ask(pair.hosts[0], command)? {
        Reply::Pong { rtt_us } => Ok((rtt_us as f64 / 1e3, unix_ms())),
        other => bail!("unexpected answer {other:?}"),
    }
}

fn one(site: &Site, pair: &Pair) -> Result<Found> {
    let mut monitor = site.control(pair.hosts[0])?;
    monitor.call(Command::Monitor, &[])?;
    let began = unix_ms();
    let (routed_ms, answered) = ping(site, pair)?;
    // The request for a link left with the cell of the echo, once the hosts had a session.
    let asked = answered - routed_ms;
    let first_ms = answered - began;
    let mut found = Found { first_ms, routed_ms, setup: None, direct_ms: None, why: None };
    let until = Instant::now() + LIMIT;
    while Instant::now() < until && found.setup.is_none() && found.why.is_none() {
        match monitor.event(Some(LOOK))? {
            Some(Event::Link { unix_ms, peer, state, .. })
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
        // The other end answers over the link when it has heard of this one's first frames.
        std::thread::sleep(SETTLE);
        found.direct_ms = Some(ping(site, pair)?.0.min(ping(site, pair)?.0));
    }
    Ok(found)
}

/// Why routers relay between the two, if this is known.
fn relayed(site: &Site, pair: &Pair) -> Result<Option<String>> {
    let peers = site.peers(pair.hosts[0])?;
    let of = peers.into_iter().find(|p| p.name == pair.names[1] && p.state == "relayed");
    Ok(of.and_then(|peer| peer.direct).map(|direct| direct.why))
}
