//! Datagrams that mean no good: garbage, first handshake messages, and frames seen before, from
//! thousands of addresses that are not the sender's.

mod raw;

use std::net::{Ipv4Addr, SocketAddr};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::Relaxed};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail, ensure};
use shoal_crypto::{Identity, Rng};
use shoal_node::{hosts, keys};
use shoal_session::{Config, Role, Sessions};
use shoal_wire::{SizeClass, Time};

use crate::scenario::{Flow, Malice};
use crate::site::Site;
use crate::wiretap;
use raw::{BATCH, Raw};

/// Different packets of each kind; they are sent again and again.
const PACKETS: usize = 1_200;
/// Time between two portions.
const PORTION: Duration = Duration::from_millis(1);
/// How long frames are recorded that are to be replayed.
const RECORD: Duration = Duration::from_millis(300);
/// Sizes of garbage: the three classes, and others.
const SIZES: [usize; 9] = [192, 576, 1_440, 1_440, 1, 191, 577, 1_439, 1_472];

/// A flood; ends when dropped.
#[derive(Debug)]
pub struct Flood {
    sent: Arc<AtomicU64>,
    ended: Arc<AtomicBool>,
    /// When it began.
    began: Instant,
}

impl Flood {
    /// Starts one from `from` to `to`, whose nodes are neighbours. Replays are taken from the link
    /// of `victim`, on which a file is under way.
    ///
    /// # Errors
    /// Without namespaces, or when nothing passes the victim's link.
    pub fn start(site: &Site, spec: &Flow, from: usize, to: usize, victim: usize) -> Result<Flood> {
        let network = site.network();
        let link = network.topology().link_between(from, to);
        let link = link.context("a flood needs a link from where it comes to where it goes")?;
        let target = network.endpoint(link, from);
        let SocketAddr::V4(target) = target else { bail!("an address of another family") };
        let mut rng = Rng::new(keys::os_random()?);
        let mut kinds = Vec::new();
        for kind in &spec.flood {
            let payloads = match kind {
                Malice::Malformed => garbage(&mut rng),
                Malice::Handshakes => handshakes(site, to, target.into())?,
                Malice::Replays => {
                    let space = network.namespace(victim).context("replays need namespaces")?;
                    wiretap::record(space, RECORD, PACKETS)?
                }
            };
            ensure!(!payloads.is_empty(), "nothing to replay: no file is under way");
            kinds.push(payloads);
        }
        let mut packets = Vec::new();
        for i in 0..PACKETS {
            for payloads in &kinds {
                let (a, b) = (rng.below(2), rng.below(65_536) as u16);
                let source = Ipv4Addr::new(198, 18 + a as u8, (b >> 8) as u8, b as u8);
                let port = 1_024 + rng.below(60_000) as u16;
                let payload = &payloads[i % payloads.len()];
                packets.push(datagram(source, port, *target.ip(), target.port(), payload));
            }
        }
        let space = network.namespace(from).context("a flood needs namespaces: root")?;
        let socket = space.enter(|| Raw::open(*target.ip()))?;
        let (sent, ended) = (Arc::new(AtomicU64::new(0)), Arc::new(AtomicBool::new(false)));
        let (count, flag, pace) = (sent.clone(), ended.clone(), spec.packets_per_s);
        std::thread::Builder::new()
            .name("flood".into())
            .spawn(move || pour(socket, &packets, pace, &count, &flag))?;
        Ok(Flood { sent, ended, began: Instant::now() })
    }

    /// Packets sent, and for how many seconds.
    pub fn figures(&self) -> (u64, f64) {
        (self.sent.load(Relaxed), self.began.elapsed().as_secs_f64())
    }
}

impl Drop for Flood {
    fn drop(&mut self) {
        self.ended.store(true, Relaxed);
    }
}

fn pour(mut socket: Raw, packets: &[Vec<u8>], pace: u64, count: &AtomicU64, ended: &AtomicBool) {
    let began = Instant::now();
    let (mut sent, mut next) = (0, 0);
    while !ended.load(Relaxed) {
        // What a busy machine kept from being sent for a while is not made up for.
        let due = began.elapsed().as_nanos() as u64 * pace / 1_000_000_000;
        sent = u64::max(sent, due.saturating_sub(pace / 50));
        while sent < due && !ended.load(Relaxed) {
            let wanted = BATCH.min((due - sent) as usize);
            let batch: Vec<&[u8]> =
                (0..wanted).map(|i| packets[(next + i) % packets.len()].as_slice()).collect();
            let n = socket.send(&batch);
            next += n;
            sent += n as u64;
            count.fetch_add(n as u64, Relaxed);
            if n == 0 {
                break;
            }
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

/// First messages of as many callers who know the network's secret, and whom nobody knows.
fn handshakes(site: &Site, to: usize, target: SocketAddr) -> Result<Vec<Vec<u8>>> {
    let name = &site.network().topology().nodes[to].name;
    let home = site.folder(to);
    let list = home.parent().context("a folder without a parent")?.join("hosts.toml");
    let hosts = hosts::Hosts::load(&list)?;
    let key = hosts.by_name(name).context("a node that nobody knows")?.key;
    let mut all = Vec::new();
    for _ in 0..PACKETS {
        let secret = keys::load_network_secret(&home.join("network.key"), None)?;
        let seed = keys::os_random()?;
        let identity = Identity::generate(keys::os_random()?);
        let config = Config::new(Role::Link);
        let mut sessions = Sessions::new(config, identity, secret, seed, Time::ZERO, 1);
        let peer = sessions.add_peer(key).context("a session table without room for one")?;
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

/// An IPv4 packet with a UDP datagram. Zero as UDP's checksum means none (RFC 768); IP's checksum
/// and identification are the kernel's.
fn datagram(source: Ipv4Addr, port: u16, to: Ipv4Addr, to_port: u16, payload: &[u8]) -> Vec<u8> {
    let len = 28 + payload.len() as u16;
    let mut packet = Vec::with_capacity(usize::from(len));
    packet.extend([0x45, 0]);
    packet.extend(len.to_be_bytes());
    packet.extend([0, 0, 0, 0, 64, 17, 0, 0]);
    packet.extend(source.octets());
    packet.extend(to.octets());
    packet.extend(port.to_be_bytes());
    packet.extend(to_port.to_be_bytes());
    packet.extend((len - 20).to_be_bytes());
    packet.extend([0, 0]);
    packet.extend(payload);
    packet
}
