//! An observer of eight equal links between two prefixes, and a scanner of the addresses that the
//! observer saw.
//!
//! ```text
//! a1 - (router) - b1      a1 to a8 shift in one prefix, and b1 to b8 in another;
//! ...                     the observer sees all eight links, and when each address was in use
//! a8 - (router) - b8
//! ```

use std::net::{IpAddr, Ipv6Addr, SocketAddr, UdpSocket};
use std::path::{Path, PathBuf};
use std::time::Duration;

use anyhow::{Context, Result, bail};
use shoal_attack::capture;
use shoal_attack::shifts::{AddressStay, LinkingFeature, link_again, link_by_phase, stays};

use super::place::ForwardingVariant;
use super::{ShiftBench, case};
use crate::figures::figure;
use crate::namespace::Namespace;
use crate::needs::{self, Requirement};
use crate::network::{Conditions, Network, NetworkKind};
use crate::record::{Figure, RunRecord, ScenarioReport};
use crate::site::RunningNetwork;
use crate::topology::Topology;
use crate::udp::UdpFlow;
use crate::wiretap::Wiretap;
use crate::{shaping, shifts};

/// The prefixes of both sides.
const PREFIXES: [u64; 2] = [0xfd78_0000_0000_00aa, 0xfd78_0000_0000_00bb];
/// Rate of the traffic on each link in Mbit/s, and its payload in bytes.
const MBIT: f64 = 0.5;
const PAYLOAD: u16 = 1_000;
/// Wait for answers to a scanner's datagrams.
const ANSWERS: Duration = Duration::from_millis(500);
/// Number of scanned addresses per link: the newest that are no longer in use.
const SCANNED: usize = 20;
/// Lengths of a scanner's datagrams: two lengths of frames, and another.
const LENGTHS: [usize; 3] = [192, 1_440, 100];
/// Number of intervals after which the observer looks for the phase of a shift.
const LAG: u64 = 20;
const SEED: u64 = 19;

/// An observed link.
#[derive(Clone, Copy)]
struct ObservedLink {
    link: usize,
    nodes: [usize; 2],
}

/// Observes links, and measures how well their shifts were linked.
///
/// # Errors
/// Namespaces or a program are missing, or a node does not answer.
pub fn run(bench: &ShiftBench<'_>, folder: &Path, report: &mut ScenarioReport) -> Result<()> {
    if let Some(missing) = needs::missing(&["ping", "ip", "nft"].map(Requirement::Tool)) {
        bail!("missing for this scenario: {missing}");
    }
    let topology = bench.scenario.network();
    let mut conditions =
        bench.scenario.conditions(&topology, &crate::scenario::ScenarioCase::default());
    conditions.iter_mut().for_each(|c| c.shift = ForwardingVariant::Shift1.shift());
    let mut runs = Vec::new();
    for turn in 1..=bench.repeat() {
        let folder = folder.join(format!("{turn}"));
        std::fs::create_dir(&folder)?;
        let mut site = start(bench, topology.clone(), &conditions, &folder)?;
        report.links = site.network().manner();
        let seconds = bench.moving.seconds;
        bench.options.say(&format!("{}: {seconds} s of eight links ({turn})", report.name));
        runs.push(one(&mut site, &conditions, seconds, &folder)?);
    }
    report.cases.push(case(ForwardingVariant::Shift1, runs));
    Ok(())
}

fn start(
    bench: &ShiftBench<'_>,
    topology: Topology,
    conditions: &[Conditions],
    folder: &Path,
) -> Result<RunningNetwork> {
    let ground = NetworkKind::Namespaces.over(bench.scenario.family);
    let network = Network::build_each(topology, ground, conditions)?;
    let prepare = |network: &Network, folder: &Path| {
        let sides: Vec<bool> =
            network.topology().nodes.iter().map(|node| node.name.starts_with('b')).collect();
        let prefix =
            |node: usize| Ipv6Addr::from_bits(u128::from(PREFIXES[usize::from(sides[node])]) << 64);
        shifts::prepare_at(network, conditions, folder, prefix)
    };
    let extra = format!("{}\n[interface]\n", bench.scenario.node_config);
    let mut site =
        RunningNetwork::start_after(network, &bench.executable, folder, &extra, prepare)?;
    // Pairs know nothing of each other, so no router has a route to all.
    shifts::wait(&mut site, conditions)?;
    Ok(site)
}

fn one(
    site: &mut RunningNetwork,
    conditions: &[Conditions],
    seconds: f64,
    folder: &Path,
) -> Result<RunRecord> {
    let topology = site.network().topology().clone();
    let pairs: Vec<ObservedLink> = (0..topology.links.len())
        .map(|link| ObservedLink { link, nodes: [topology.links[link].a, topology.links[link].b] })
        .collect();
    let space = |node: usize| site.network().namespace(node).context("no namespace");
    let (mut taps, mut flows, mut files) = (Vec::new(), Vec::new(), Vec::new());
    for ObservedLink { link, nodes: [from, to] } in &pairs {
        let file = folder.join(format!("{link}.pcap"));
        taps.push(Wiretap::start(space(*from)?, Some(&file))?);
        let far = site.interface(*to)?;
        flows.push(UdpFlow::start(site.network(), (*from, *to), far, MBIT, PAYLOAD)?);
        files.push(file);
    }
    let until = std::time::Instant::now() + Duration::from_secs_f64(seconds);
    while std::time::Instant::now() < until {
        crate::interrupt::check()?;
        site.check_alive()?;
        std::thread::sleep(ANSWERS);
    }
    let entries =
        |pair: &ObservedLink| shifts::neighbour_entries(site.network(), pair.link, pair.nodes[0]);
    let entries = pairs.iter().map(entries).collect::<Result<Vec<usize>>>()?;
    drop(flows);
    taps.into_iter().try_for_each(|tap| tap.finish().map(drop))?;
    let seen = files.iter().map(read).collect::<Result<Vec<_>>>()?;
    let mut figures = linked(&seen);
    let most = entries.into_iter().max().unwrap_or(0);
    figures.push(figure("neighbours", "a", most as f64));
    let made = shifts::counts(site, conditions)?.unwrap_or_default();
    figures.push(figure("shifts_failed", "", made.1 as f64));
    figures.extend(scan(site, &pairs, &seen, &files)?);
    Ok(RunRecord { seconds, figures, ..RunRecord::default() })
}

fn read(file: &PathBuf) -> Result<Vec<AddressStay>> {
    let bytes = std::fs::read(file).with_context(|| file.display().to_string())?;
    let datagrams = capture::datagrams(&bytes).with_context(|| file.display().to_string())?;
    Ok(stays(&datagrams, PREFIXES))
}

/// Figures of the observer's success.
fn linked(seen: &[Vec<AddressStay>]) -> Vec<Figure> {
    let interval_ns = ForwardingVariant::Shift1.shift().unwrap_or_default().as_nanos() as u64;
    let by_addresses = link_again(seen, interval_ns, LinkingFeature::Addresses, SEED);
    let by_times = link_again(seen, interval_ns, LinkingFeature::TimesAndVolumes, SEED);
    let by_phases = link_by_phase(seen, interval_ns, LAG, SEED);
    vec![
        figure("linked_shifts", "", by_addresses.trials as f64),
        figure("linked_addresses", "", by_addresses.share()),
        figure("linked_over", "", by_addresses.share() - by_addresses.bound()),
        figure("linked_times", "", by_times.share()),
        figure("linked_phases", "", by_phases.share()),
        figure("linked_phases_over", "", by_phases.share() - by_phases.bound()),
        figure("linked_shuffled", "", by_addresses.shuffled_share()),
    ]
}

/// Sends to former addresses, from the router on the path.
fn scan(
    site: &RunningNetwork,
    pairs: &[ObservedLink],
    seen: &[Vec<AddressStay>],
    files: &[PathBuf],
) -> Result<Vec<Figure>> {
    let (mut sent, mut stale, mut bytes, mut echoes, mut pings) = (0, 0, 0, 0, 0);
    for ((pair, stays), file) in pairs.iter().zip(seen).zip(files) {
        let space = site.network().beside(pair.link, pair.nodes[0]).context("no router")?;
        // Left out: the last two may be in use, and the one before may still be accepted.
        let over = stays.len().saturating_sub(3);
        let over = &stays[over.saturating_sub(SCANNED)..over];
        watch(space)?;
        let before = dropped(site, pair.nodes[0])?;
        sent += knock(space, over, file, site.network().listen(pair.nodes[0]).port())?;
        std::thread::sleep(ANSWERS);
        stale += dropped(site, pair.nodes[0])? - before;
        bytes += answered(space)?;
        for stay in over.iter().take(3) {
            let at = address(stay.ends[0]).to_string();
            let mut command = std::process::Command::new("ping");
            command.args(["-q", "-c", "1", "-W", "0.5", &at]);
            let output = space.enter(|| command.output().context("ping"))?;
            let text = String::from_utf8_lossy(&output.stdout).into_owned();
            pings += 1;
            echoes += u32::from(crate::pings::mean_ms(&text).is_finite());
        }
    }
    Ok(vec![
        figure("scanned", "", f64::from(sent)),
        figure("scan_bytes", "", bytes as f64),
        figure("scan_stale", "", stale as f64 / f64::from(sent.max(1))),
        figure("scan_echoes", "", f64::from(echoes) / f64::from(pings.max(1))),
    ])
}

fn address(identifier: u64) -> Ipv6Addr {
    Ipv6Addr::from_bits(u128::from(PREFIXES[0]) << 64 | u128::from(identifier))
}

/// Sends bytes of several lengths to each address, and a datagram that was recorded on the way to
/// it.
fn knock(space: &Namespace, over: &[AddressStay], file: &PathBuf, port: u16) -> Result<u32> {
    let socket = space.enter(|| Ok(UdpSocket::bind((Ipv6Addr::UNSPECIFIED, 0))?))?;
    let recorded = std::fs::read(file)?;
    let recorded = capture::datagrams(&recorded)?;
    let mut sent = 0;
    for stay in over {
        let at = address(stay.ends[0]);
        let to = SocketAddr::from((at, port));
        let went = |d: &&capture::RecordedDatagram<'_>| {
            d.to.0 == IpAddr::from(at) && d.payload.len() == d.len && d.len <= 1_440
        };
        let again = recorded.iter().find(went).map(|d| d.payload.to_vec());
        for payload in LENGTHS.map(|len| vec![0x5a; len]).into_iter().chain(again) {
            socket.send_to(&payload, to)?;
            sent += 1;
        }
    }
    Ok(sent)
}

/// Counts packets that arrive at the router itself from addresses of both prefixes. The router's
/// neighbour discovery uses other addresses.
fn watch(space: &Namespace) -> Result<()> {
    let rules = "add table ip6 scan; add chain ip6 scan in { type filter hook input priority 0; }; \
                 add rule ip6 scan in ip6 saddr fd78::/16 counter";
    shaping::nft(space, &[rules])
}

/// Number of bytes counted by those rules.
fn answered(space: &Namespace) -> Result<u64> {
    let mut nft = std::process::Command::new("nft");
    nft.args(["list", "table", "ip6", "scan"]);
    let output = space.enter(|| nft.output().context("nft"))?;
    let text = String::from_utf8_lossy(&output.stdout).into_owned();
    let bytes = text.split("bytes ").nth(1).and_then(|rest| rest.split_whitespace().next());
    bytes.and_then(|bytes| bytes.parse().ok()).context("nft lists no counter")
}

/// Number of frames that a node dropped because they came to former addresses.
fn dropped(site: &RunningNetwork, node: usize) -> Result<u64> {
    let status = site.status(node)?;
    let of = status.drops.iter().find(|(reason, _)| *reason == "stale_address");
    Ok(of.map_or(0, |(_, count)| *count))
}
