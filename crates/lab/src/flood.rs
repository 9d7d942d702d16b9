//! Floods of hostile datagrams: garbage, first handshake messages, and replayed frames, from
//! thousands of spoofed addresses; or create cells from a neighbour.

mod batch;
mod creates;
mod spout;

use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::Relaxed};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail, ensure};
use shoal_crypto::{Identity, Rng};
use shoal_daemon::config::keys;
use shoal_daemon::membership::hosts;
use shoal_daemon::worker::clock::unix_ms;
use shoal_session::{SessionConfig, SessionRole, Sessions};
use shoal_wire::{SizeClass, Time};

use crate::scenario::{FloodDatagrams, ScenarioFlow};
use crate::site::RunningNetwork;
use crate::wiretap;
use batch::FloodKind;
use creates::CreateFlooder;
use spout::SpoofingSockets;

/// Number of different packets of each kind; they are sent repeatedly.
const PACKETS: usize = 1_200;
/// Time between two bursts.
const PORTION: Duration = Duration::from_millis(1);
/// Time for which frames are recorded for replay.
const RECORD: Duration = Duration::from_millis(300);
/// Sizes of garbage: the three size classes, and others.
const SIZES: [usize; 9] = [192, 576, 1_440, 1_440, 1, 191, 577, 1_439, 1_472];
/// Consecutive packets from one address: as many as one system call takes.
const FROM_ONE: usize = batch::MOST;
/// Consecutive handshakes from one address: few, since a node limits them per address.
const HANDSHAKES_FROM_ONE: usize = 4;

/// A flood; ends when dropped.
#[derive(Debug)]
pub struct Flood {
    sent: Arc<AtomicU64>,
    ended: Arc<AtomicBool>,
    began: Instant,
}

impl Flood {
    /// Starts a flood from `from` to its neighbour `to`. Replays are frames recorded on the link of
    /// `victim`, where a file is in transit.
    ///
    /// # Errors
    /// Namespaces are missing, or the victim's link carries nothing.
    pub fn start(
        site: &RunningNetwork,
        spec: &ScenarioFlow,
        from: usize,
        to: usize,
        victim: usize,
    ) -> Result<Flood> {
        let network = site.network();
        let link = network.topology().link_between(from, to);
        let link = link.context("a flood needs a link from its origin to its target")?;
        let target = network.endpoint(link, from);
        let mut rng = Rng::new(keys::os_random()?);
        if spec.flood == [FloodDatagrams::Creates] {
            let asker = CreateFlooder::new(site, from, to)?;
            return Flood::of(spec.packets_per_s, move |pace, count, ended| {
                ask(asker, rng, pace, count, ended);
            });
        }
        let mut kinds = Vec::new();
        for kind in &spec.flood {
            let (payloads, in_a_row) = match kind {
                FloodDatagrams::Creates => bail!("create cells can't be mixed with other kinds"),
                FloodDatagrams::Malformed => (garbage(&mut rng), FROM_ONE),
                FloodDatagrams::Handshakes => (handshakes(site, to, target)?, HANDSHAKES_FROM_ONE),
                FloodDatagrams::Replays => {
                    let space = network.namespace(victim).context("replays need namespaces")?;
                    (wiretap::record(space, RECORD, PACKETS)?, FROM_ONE)
                }
            };
            ensure!(
                !payloads.is_empty(),
                "nothing to replay: no file is in transit on the victim's link"
            );
            kinds.push(FloodKind::new(payloads, in_a_row));
        }
        let space = network.namespace(from).context("a flood needs namespaces; run as root")?;
        // The kernel must split aggregates, so that the target receives wire packets.
        network.single_packets(from, to)?;
        let spout = space.enter(|| SpoofingSockets::open(target))?;
        Flood::of(spec.packets_per_s, move |pace, count, ended| {
            pour(&spout, kinds, rng, pace, count, ended);
        })
    }

    /// A flood of `pace` packets per second, by a thread that runs `work`.
    fn of(
        pace: u64,
        work: impl FnOnce(u64, &AtomicU64, &AtomicBool) + Send + 'static,
    ) -> Result<Flood> {
        let (sent, ended) = (Arc::new(AtomicU64::new(0)), Arc::new(AtomicBool::new(false)));
        let (count, flag) = (sent.clone(), ended.clone());
        std::thread::Builder::new()
            .name("flood".into())
            .spawn(move || work(pace, &count, &flag))?;
        Ok(Flood { sent, ended, began: Instant::now() })
    }

    /// Number of packets sent, and seconds since the start.
    pub fn figures(&self) -> (u64, f64) {
        (self.sent.load(Relaxed), self.began.elapsed().as_secs_f64())
    }
}

impl Drop for Flood {
    fn drop(&mut self) {
        self.ended.store(true, Relaxed);
    }
}

fn pour(
    spout: &SpoofingSockets,
    mut kinds: Vec<FloodKind>,
    mut rng: Rng,
    pace: u64,
    count: &AtomicU64,
    ended: &AtomicBool,
) {
    let began = Instant::now();
    let mut sent = 0;
    while !ended.load(Relaxed) {
        // Packets that a busy machine delayed by more than 20 ms are skipped.
        let due = began.elapsed().as_nanos() as u64 * pace / 1_000_000_000;
        sent = u64::max(sent, due.saturating_sub(pace / 50));
        while sent < due && !ended.load(Relaxed) {
            // All kinds send equally many packets.
            let Some(kind) = kinds.iter_mut().min_by_key(|kind| kind.sent()) else { return };
            let batch = kind.next();
            if !spout.send(batch, rng.u64()) {
                break;
            }
            let n = batch.packets();
            kind.add(n);
            sent += n;
            count.fetch_add(n, Relaxed);
        }
        std::thread::sleep(PORTION);
    }
}

/// Sends create cells at this pace, after all of them are made.
fn ask(mut asker: CreateFlooder, mut rng: Rng, pace: u64, count: &AtomicU64, ended: &AtomicBool) {
    // Without cells nothing is sent; the figures show that.
    if asker.prepare(|| ended.load(Relaxed)).is_err() {
        return;
    }
    let (began, mut sent) = (Instant::now(), 0);
    while !ended.load(Relaxed) {
        let due = began.elapsed().as_nanos() as u64 * pace / 1_000_000_000;
        sent = u64::max(sent, due.saturating_sub(pace / 50));
        while sent < due && !ended.load(Relaxed) {
            let n = asker.ask(&mut rng);
            sent += n;
            count.fetch_add(n, Relaxed);
        }
        std::thread::sleep(PORTION);
    }
}

fn garbage(rng: &mut Rng) -> Vec<Vec<u8>> {
    (0..PACKETS)
        .map(|i| {
            let mut frame = vec![0; SIZES[i % SIZES.len()]];
            rng.fill(&mut frame);
            frame
        })
        .collect()
}

/// First handshake messages of unknown callers that have the network secret.
fn handshakes(site: &RunningNetwork, to: usize, target: SocketAddr) -> Result<Vec<Vec<u8>>> {
    let name = &site.network().topology().nodes[to].name;
    let home = site.folder(to);
    let list = home.parent().context("a folder without a parent")?.join("hosts.toml");
    let hosts = hosts::HostList::load(&list)?;
    let key = hosts.by_name(name).context("the node is not in hosts.toml")?.key;
    let mut all = Vec::new();
    for _ in 0..PACKETS {
        let secret = keys::load_network_secret(&home.join("network.key"), None)?;
        let seed = keys::os_random()?;
        let identity = Identity::generate(keys::os_random()?);
        let config = SessionConfig::new(SessionRole::Link);
        let mut sessions = Sessions::new(config, identity, secret, seed, Time::ZERO, unix_ms());
        let peer = sessions.add_peer(key).context("the session table is full")?;
        sessions.set_endpoint(peer, Some(target));
        sessions.connect(Time::ZERO, peer);
        while let Some(job) = sessions.poll_job() {
            sessions.handle_done(Time::ZERO, job.run());
        }
        let mut frame = vec![0; SizeClass::Full.frame_len()];
        sessions.poll_transmit(Time::ZERO, &mut frame).context("no first message")?;
        all.push(frame);
    }
    Ok(all)
}
