//! What becomes of the pairs: all are watched at once, each by a thread of its own.

use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use anyhow::{Context, Result, anyhow, bail};
use shoal_daemon::control::api::{Command, ErrorCode, Event, Reply};
use shoal_daemon::control::socket::CallError;

use super::ground::{Ground, Pair};
use crate::site::Site;

/// How long a pair may take: longer than an attempt, whose failure it waits for.
const LIMIT: Duration = Duration::from_secs(14);
/// How long a first answer may take. Requests are repeated meanwhile.
const PING_MS: u32 = 15_000;
/// How long to wait for news before looking whether the pair is relayed.
const LOOK: Duration = Duration::from_millis(250);
/// How long a link is left alone before its round trip is measured.
const SETTLE: Duration = Duration::from_millis(200);
/// What the bound of a set-up has besides round trips.
const SPARE_MS: f64 = 50.0;
/// How soon a link is up that is soon up, also where packets are lost.
const SOON_MS: f64 = 1_000.0;

/// One run of a pair. All times in milliseconds.
#[derive(Clone, Debug, Default)]
pub struct Found {
    /// From the first request for an echo to the first answer, if one came.
    pub first_ms: Option<f64>,
    /// A round trip through the routers.
    pub routed_ms: Option<f64>,
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
        let (routed, direct) = self.routed_ms.zip(self.direct_ms)?;
        Some(routed + 3.0 * direct + SPARE_MS)
    }

    /// Whether the link came up in that time.
    pub fn is_timely(&self) -> bool {
        self.setup.zip(self.bound_ms()).is_some_and(|(setup, bound)| setup <= bound)
    }

    /// Whether the link came up within a second.
    pub fn is_soon(&self) -> bool {
        self.setup.is_some_and(|setup| setup <= SOON_MS)
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

/// An echo that was answered.
struct Pong {
    /// Its round trip, in milliseconds.
    rtt_ms: f64,
    /// When the first request left, in milliseconds since 1970.
    asked: f64,
    /// When the answer came.
    answered: f64,
}

/// Asks for echoes until one comes; none if none does.
fn ping(site: &Site, pair: &Pair) -> Result<Option<Pong>> {
    let command = Command::Ping { host: pair.names[1].clone(), timeout_ms: PING_MS };
    let mut node = site.control(pair.hosts[0])?;
    match node.call(command, &[]) {
        Ok(Reply::Pong { rtt_us, since_us }) => {
            let (answered, of) = (unix_ms(), |us: u64| us as f64 / 1e3);
            // A node of an earlier version says the first only.
            let asked = answered - of(since_us.max(rtt_us));
            Ok(Some(Pong { rtt_ms: of(rtt_us), asked, answered }))
        }
        Ok(other) => bail!("unexpected answer {other:?}"),
        Err(CallError::Node(e)) if e.code == ErrorCode::TimedOut => Ok(None),
        Err(e) => Err(e.into()),
    }
}

fn one(site: &Site, pair: &Pair) -> Result<Found> {
    let mut monitor = site.control(pair.hosts[0])?;
    monitor.call(Command::Monitor, &[])?;
    let began = unix_ms();
    let mut found = Found::default();
    let Some(first) = ping(site, pair)? else { return Ok(found) };
    // The request for a link left with the first one for an echo, once the hosts had a session.
    let asked = first.asked;
    (found.first_ms, found.routed_ms) = (Some(first.answered - began), Some(first.rtt_ms));
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
        let both = [ping(site, pair)?, ping(site, pair)?];
        found.direct_ms = both.into_iter().flatten().map(|pong| pong.rtt_ms).reduce(f64::min);
    }
    Ok(found)
}

/// Why routers relay between the two, if this is known.
fn relayed(site: &Site, pair: &Pair) -> Result<Option<String>> {
    let peers = site.peers(pair.hosts[0])?;
    let of = peers.into_iter().find(|p| p.name == pair.names[1] && p.state == "relayed");
    Ok(of.and_then(|peer| peer.direct).map(|direct| direct.why))
}
