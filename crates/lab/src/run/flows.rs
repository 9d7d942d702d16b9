//! The traffic of a run: files by `shoal send` and `receive`, TCP of the kernel.

use std::path::Path;
use std::time::Instant;

use anyhow::{Context, Result, bail};

use crate::files;
use crate::flood::Flood;
use crate::follow::Follower;
use crate::network::{Conditions, Tap};
use crate::process::Usage;
use crate::scenario::{Case, Flow, Scenario, Traffic};
use crate::site::Site;
use crate::tcp::TcpFlow;
use crate::topology::Topology;

/// File bytes in one full cell (docs/wire.md, segments).
pub const SEGMENT_BYTES: f64 = 1_366.0;
/// Seconds between a failed file and its next attempt.
const AGAIN_S: f64 = 1.0;

/// The flows that run in `case`.
pub fn of_case<'a>(scenario: &'a Scenario, case: &'a Case) -> impl Iterator<Item = &'a Flow> {
    let wanted = |f: &&Flow| case.flows.as_ref().is_none_or(|names| names.contains(&f.name));
    scenario.flows.iter().filter(wanted)
}

/// Bytes of disk for all files, at both ends.
pub fn room(scenario: &Scenario, case: &Case) -> u64 {
    let files = of_case(scenario, case).filter(|f| f.kind == Traffic::File);
    files.map(|f| 2 * bytes(f)).sum()
}

/// Size of a flow's file.
pub fn bytes(flow: &Flow) -> u64 {
    (flow.size_mb * 1e6) as u64
}

/// Loss over the first flow's path, 0 to 1.
pub fn path_loss(
    scenario: &Scenario,
    case: &Case,
    topology: &Topology,
    conditions: &[Conditions],
) -> f64 {
    let ends = of_case(scenario, case)
        .next()
        .and_then(|f| topology.find(&f.from).zip(topology.find(&f.to)));
    let path = ends.and_then(|(from, to)| topology.path(from, to, |_| true)).unwrap_or_default();
    1.0 - path.iter().map(|&(link, _)| 1.0 - conditions[link].loss.share).product::<f64>()
}

/// One flow of a run.
pub struct Active {
    /// As the scenario has it.
    pub spec: Flow,
    /// Where it comes from.
    pub from: usize,
    /// Where it goes.
    pub to: usize,
    /// Counter of its receiver's link.
    tap: Tap,
    tap_before: u64,
    /// Bytes of a packet with a full frame on that link.
    packet_bytes: f64,
    /// Whether no other flow ends at this receiver, so that its link's bytes are this flow's.
    pub alone: bool,
    send: Option<Follower>,
    tcp: Option<TcpFlow>,
    flood: Option<Flood>,
    /// The node whose frames a flood replays.
    pub victim: usize,
    /// Packets that a flood has sent, and for how many seconds.
    pub flooded: (u64, f64),
    next_start: f64,
    /// When it ended, in seconds.
    pub ended: Option<f64>,
    /// When the first file was accepted, in seconds.
    pub accepted: Option<f64>,
    /// When the first file was confirmed.
    pub done: Option<f64>,
    /// Files that arrived.
    pub files: u64,
    /// Transfers that failed.
    pub broken: u64,
    /// Bytes sent again, in files that have ended.
    pub resent: u64,
    /// What the sending command used.
    pub usage: Usage,
    bytes_before: u64,
    hash: [u8; 32],
}

impl Active {
    /// Prepares `spec`; makes its file.
    pub fn new(spec: &Flow, site: &Site, alone: bool) -> Result<Active> {
        let network = site.network();
        let find = |name: &str| network.topology().find(name).context("a node that is not there");
        let (from, to) = (find(&spec.from)?, find(&spec.to)?);
        let way = network.topology().path(from, to, |_| true).context("no way")?;
        let (link, _) = *way.last().context("no way")?;
        let mut hash = [0; 32];
        if spec.kind == Traffic::File {
            let file = site.folder(from).join(format!("{}.bin", spec.name));
            hash = files::make_file(&file, bytes(spec))?;
        }
        Ok(Active {
            spec: spec.clone(),
            from,
            to,
            tap: network.tap(link, to)?,
            tap_before: 0,
            packet_bytes: network.family().packet_bytes() as f64,
            alone,
            send: None,
            tcp: None,
            flood: None,
            victim: from,
            flooded: (0, 0.0),
            next_start: spec.start_s,
            ended: None,
            accepted: None,
            done: None,
            files: 0,
            broken: 0,
            resent: 0,
            usage: Usage::default(),
            bytes_before: 0,
            hash,
        })
    }

    /// Whether it is to be waited for.
    pub fn is_pending(&self) -> bool {
        self.spec.kind == Traffic::File && !self.spec.again && self.ended.is_none()
    }

    /// Starts what is due, and reads its progress. `now` counts from `begun`.
    pub fn look(&mut self, site: &Site, begun: Instant, now: f64) -> Result<()> {
        if self.ended.is_some() {
            return Ok(());
        }
        match self.spec.kind {
            Traffic::File => self.look_file(site, begun, now),
            Traffic::Tcp => {
                if self.tcp.is_none() && now >= self.spec.start_s {
                    let congestion = &self.spec.congestion;
                    let flow = TcpFlow::start(site.network(), self.from, self.to, congestion)?;
                    self.tcp = Some(flow);
                }
                if self.spec.seconds.is_some_and(|s| now >= self.spec.start_s + s) {
                    self.end(now);
                }
                Ok(())
            }
            Traffic::Flood => {
                if self.flood.is_none() && now >= self.spec.start_s {
                    let flood = Flood::start(site, &self.spec, self.from, self.to, self.victim)?;
                    self.flood = Some(flood);
                }
                if self.spec.seconds.is_some_and(|s| now >= self.spec.start_s + s) {
                    self.end(now);
                }
                Ok(())
            }
        }
    }

    fn look_file(&mut self, site: &Site, begun: Instant, now: f64) -> Result<()> {
        let Some(send) = &mut self.send else {
            // A sender whose node is down waits for it.
            if now >= self.next_start && site.process(self.from).is_some() {
                if self.files + self.broken == 0 {
                    self.tap_before = self.tap.bytes();
                }
                let to = &site.network().topology().nodes[self.to].name;
                let file = format!("{}.bin", self.spec.name);
                let command = site.command(self.from, &["send", &file, to, "--json"]);
                self.send = Some(Follower::start("shoal send", command, site, self.from)?);
            }
            return Ok(());
        };
        let usage = send.usage();
        let result = send.look();
        let since = |at: Instant| at.saturating_duration_since(begun).as_secs_f64();
        self.accepted = self.accepted.or(send.state.accepted.map(since));
        match result {
            Ok(false) => {
                self.usage = usage;
                return Ok(());
            }
            Ok(true) => {
                self.done = self.done.or(send.state.done.map(since));
                self.files += 1;
                self.bytes_before += bytes(&self.spec);
            }
            Err(_) if self.spec.again => {
                self.broken += 1;
                self.next_start = now + AGAIN_S;
            }
            Err(e) => return Err(e.context(format!("flow {:?}", self.spec.name))),
        }
        self.resent += send.state.retransmitted_bytes;
        self.send = None;
        if !self.spec.again {
            self.ended = Some(now);
        }
        Ok(())
    }

    /// Ends it, if it is still going on.
    pub fn end(&mut self, now: f64) {
        if self.ended.is_none() {
            self.ended = Some(now);
        }
        if let Some(send) = self.send.take() {
            self.resent += send.state.retransmitted_bytes;
        }
        if let Some(flood) = self.flood.take() {
            self.flooded = flood.figures();
        }
        if let Some(tcp) = self.tcp.take() {
            self.bytes_before += tcp.received();
        }
    }

    /// Payload bytes that have arrived so far.
    pub fn arrived(&mut self) -> f64 {
        if let Some(tcp) = &self.tcp {
            return (self.bytes_before + tcp.received()) as f64;
        }
        if self.spec.kind == Traffic::File && self.alone {
            if self.send.is_none() && self.files == 0 {
                return 0.0;
            }
            let wire = self.tap.bytes().saturating_sub(self.tap_before) as f64;
            return wire / self.packet_bytes * SEGMENT_BYTES;
        }
        let now = self.send.as_ref().map_or(0, |s| s.state.bytes_done);
        (self.bytes_before + now) as f64
    }

    /// Fails unless what arrived is what was sent.
    pub fn check(&self, inbox: &Path) -> Result<()> {
        if self.spec.kind != Traffic::File || self.spec.again {
            return Ok(());
        }
        let file = inbox.join(format!("{}.bin", self.spec.name));
        if files::hash_file(&file, bytes(&self.spec))? != self.hash {
            bail!("flow {:?}: the file arrived with another hash", self.spec.name);
        }
        Ok(())
    }
}
