//! The first worker: one thread that owns its sockets and the node's control.
//!
//! Each turn of [`FirstWorker::run`]:
//!
//! 1. wait for a socket, a timer or another thread
//! 2. fill slots of covered links; receive one batch per socket and run it to completion through
//!    relay and edge
//! 3. handle results of handshakes, chunks of files, and commands of programs
//! 4. run due timers, and send the edge's cells
//! 5. pass on events, and hand out handshake work
//!
//! Nothing in a turn blocks, and every list that a turn empties is bounded.

use std::collections::VecDeque;
use std::os::fd::AsFd;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::Receiver as ChannelReceiver;
use std::time::Duration;

use nix::poll::{PollFd, PollFlags, ppoll};
use nix::sys::prctl;
use nix::sys::signal::Signal;
use nix::sys::signalfd::SignalFd;
use nix::sys::time::TimeSpec;
use shoal_crypto::Rng;
use shoal_directory::TrafficKind as Right;
use shoal_edge::EdgeEvent;
use shoal_node::{HandshakeDone, HandshakeJob, NodeEvent};
use shoal_relay::RelayEvent;
use shoal_transfer::FileTransferEvent as FileEvent;
use shoal_wire::transfer::RefuseReason;
use shoal_wire::{DropReason, LinkId, Time};

use crate::config::NodeConfig;
use crate::config::keys::os_random;
use crate::control::api::{ControlEvent, NextHop};
use crate::control::circuit_probes::HopQueries;
use crate::control::journal::{self, Journal};
use crate::control::log::NodeLog;
use crate::control::metrics;
use crate::control::pings::{self, Pings};
use crate::control::shift_probes::ShiftProbes;
use crate::control::socket::{Client, ClientMessage};
use crate::files::transfers::{DiskAnswer, Files};
use crate::membership::authority::{AuthorityState, HostRights};
use crate::membership::circuits::CircuitRecords;
use crate::membership::lists;
use crate::membership::watch::WatcherEvent;
use crate::net::lookups::Lookups;
use crate::net::ports::NodeSockets;
use crate::net::receive::DatagramReceiver;
use crate::tun::interface::VirtualInterface;
use crate::tun::names::NodeNames;
use crate::worker::budget::BudgetedThread;
use crate::worker::clock::{BootClock, WallWatch, unix_ms};
use crate::worker::notices;
use crate::worker::ready::{InterfacePause, PollResult};
use crate::worker::rest::BurstDetector;
use crate::worker::shell::DaemonNode;
use crate::worker::shifting::KernelShifts;
use crate::worker::wake::{Waker, WakingInbox};
use crate::worker::workers::WorkerPool;

/// Longest sleep. A clock that was set, or a machine that slept, is noticed after it.
const SLEEP_MAX: Duration = Duration::from_secs(10);
/// Lateness of timers, in ns. Pacing needs less than the default of 50 us.
const TIMER_SLACK_NS: libc::c_ulong = 5_000;
/// Turns that check only the sockets while every receive returns a full batch.
const HURRIED_TURNS: u32 = 4;
/// Longest wait while another worker's channel is full. Workers do not wake each other when they
/// make room.
const FULL_WAIT: Duration = Duration::from_micros(250);
/// Maximum number of values taken from another thread in one turn.
const TAKEN_MAX: usize = 256;
/// Time in a turn after which no further command is answered: the sockets wait meanwhile.
const COMMANDS_TIME: Duration = Duration::from_millis(1);
/// Time that a stopping node still sends, so that the other ends learn of its end.
const FAREWELL: Duration = Duration::from_millis(100);
/// Time between the two goodbyes to each neighbour.
const GOODBYE_AGAIN: Duration = Duration::from_millis(20);

/// Components of the first worker.
pub struct WorkerParts {
    pub clock: BootClock,
    pub node: DaemonNode,
    pub ports: NodeSockets,
    /// The virtual interface, if there is one. Each worker owns its queue.
    pub interface: Option<VirtualInterface>,
    /// The kernel's side of shifting addresses, if there are any.
    pub shifting: Option<KernelShifts>,
    /// The other workers, if there are several.
    pub workers: Option<WorkerPool>,
    /// Receive buffers, one per socket.
    pub receivers: Vec<DatagramReceiver>,
    pub names: NodeNames,
    pub config: NodeConfig,
    /// Used by every other thread to wake this one.
    pub waker: Arc<Waker>,
    pub handshakes: BudgetedThread<HandshakeJob>,
    /// Results of handshakes.
    pub done: WakingInbox<HandshakeDone>,
    /// Transfers, and the channel for answers of disk threads.
    pub files: Files,
    /// Answers of disk threads.
    pub disk: WakingInbox<DiskAnswer>,
    pub control: ChannelReceiver<ClientMessage>,
    /// SIGTERM, SIGINT and SIGHUP; none in a process with its own handling.
    pub signals: Option<SignalFd>,
    /// Warnings for the status.
    pub warnings: Vec<String>,
    /// State of repeated log lines.
    pub journal: Journal,
    /// Lookups of endpoints that are names.
    pub lookups: Lookups,
    /// The authority that decides on members; none if the hosts file does.
    pub authority: Option<AuthorityState>,
    /// Rights of hosts, as the authority's policy grants them.
    pub rights: Option<HostRights>,
    pub circuits: CircuitRecords,
    /// Lists of the authority that were read.
    pub lists: WakingInbox<WatcherEvent>,
    pub log: NodeLog,
}

/// Ends a worker from another thread.
#[derive(Clone)]
pub struct Stopper {
    told: Arc<AtomicBool>,
    waker: Arc<Waker>,
}

impl Stopper {
    /// Tells the worker to stop. It first says goodbye to the other ends.
    pub fn stop(&self) {
        self.told.store(true, Ordering::Release);
        self.waker.wake();
    }
}

/// The thread's state.
pub struct FirstWorker {
    pub(crate) parts: WorkerParts,
    pub(crate) pings: Pings,
    pub(crate) probes: HopQueries,
    pub(crate) shift_probes: ShiftProbes,
    pub(crate) monitors: Vec<Client>,
    pub(crate) stopping: Option<Time>,
    pub(crate) metrics: metrics::MetricsCache,
    told_to_stop: Arc<AtomicBool>,
    waiting_job: Option<HandshakeJob>,
    wall: WallWatch,
    hurried: u32,
    absence: InterfacePause,
    pub(super) rest: BurstDetector,
    /// Direct links that ended and still have their names.
    pub(crate) ended: Vec<LinkId>,
}

impl FirstWorker {
    pub fn new(mut parts: WorkerParts) -> FirstWorker {
        let now = parts.clock.now();
        let authority = parts.authority.as_ref();
        if authority.is_some_and(AuthorityState::passes_on) {
            parts.node.relay.take_lists(lists::WAITING_MAX);
        }
        let mut worker = FirstWorker {
            parts,
            pings: Pings::default(),
            probes: HopQueries::default(),
            shift_probes: ShiftProbes::default(),
            monitors: Vec::new(),
            stopping: None,
            metrics: metrics::MetricsCache::default(),
            told_to_stop: Arc::default(),
            waiting_job: None,
            wall: WallWatch::new(now, unix_ms()),
            hurried: 0,
            absence: InterfacePause::default(),
            rest: BurstDetector::default(),
            ended: Vec::new(),
        };
        worker.apply_list(now);
        worker
    }

    /// The handle that stops it from another thread.
    pub fn stopper(&self) -> Stopper {
        Stopper { told: self.told_to_stop.clone(), waker: self.parts.waker.clone() }
    }

    /// Runs until told to stop.
    pub fn run(&mut self) -> anyhow::Result<()> {
        // Timers would otherwise fire up to 50 us late. Nothing else depends on this.
        let _coarse = prctl::set_timerslack(TIMER_SLACK_NS);
        self.look_up_endpoints(self.parts.clock.now());
        self.drive(self.parts.clock.now());
        self.hand_out_jobs();
        self.parts.node.give_orders();
        loop {
            let ready = self.wait()?;
            self.turn(&ready);
            let ended = self.parts.workers.as_ref().is_some_and(WorkerPool::is_broken);
            if ended || self.parts.node.is_broken() {
                anyhow::bail!("a worker ended");
            }
            if self.parts.handshakes.is_broken() {
                anyhow::bail!("the thread for handshakes ended: see its last message in the log");
            }
            if self.stopping.is_some_and(|until| self.parts.clock.now() >= until) {
                self.say_goodbye();
                return Ok(());
            }
        }
    }

    /// Sends each neighbour a goodbye, twice, since a frame may get lost. Frames that neighbours
    /// send afterwards are not read.
    fn say_goodbye(&mut self) {
        let WorkerParts { node, ports, clock, .. } = &mut self.parts;
        node.relay.say_goodbye(clock.now(), ports.at(clock.now()));
        std::thread::sleep(GOODBYE_AGAIN);
        node.relay.say_goodbye(clock.now(), ports.at(clock.now()));
    }

    /// One turn, steps 2 to 5.
    fn turn(&mut self, ready: &PollResult) {
        let mut more = false;
        self.look_at_clocks();
        let WorkerParts { node, ports, clock, .. } = &mut self.parts;
        node.relay.handle_slots(clock.now(), ports.at(clock.now()));
        for index in 0..self.parts.receivers.len() {
            if ready.errors & (1 << index) != 0 {
                self.parts.ports.drain_errors(index);
            }
            if ready.readable & (1 << index) != 0 && !self.parts.node.is_full() {
                more |= self.receive(index);
            }
            if ready.writable & (1 << index) != 0 {
                self.parts.ports.note_writable(index);
                let WorkerParts { node, ports, clock, .. } = &mut self.parts;
                let now = clock.now();
                node.relay.handle_writable(now, ports.at(now));
            }
        }
        if ready.interface {
            let now = self.parts.clock.now();
            self.parts.node.handle_packets(now, self.parts.ports.at(now));
        } else if ready.drained {
            self.parts.node.note_no_packets();
        }
        self.hurried = if more { self.hurried + 1 } else { 0 };
        let now = self.parts.clock.now();
        if self.parts.waker.answer(ready.waker) {
            self.take_in(now);
            self.take_reach(now);
            if self.told_to_stop.swap(false, Ordering::AcqRel) {
                self.stop(now);
            }
        }
        self.let_shifts_in();
        self.parts.node.handle_timeout(now, self.parts.ports.at(now));
        self.handle_members(now, None);
        self.keep_journal(now);
        self.pings.handle_timeout(now, &mut self.parts);
        self.probes.handle_timeout(now, &mut self.parts);
        self.shift_probes.handle_timeout(now, &self.parts);
        self.parts.files.report(now, &mut self.parts.node.edge);
        self.drive(now);
        self.let_shifts_in();
        self.pass_on_events(now);
        self.pass_all_on(now);
        self.keep_circuits();
        self.rest(now);
        self.hand_out_jobs();
        self.parts.node.give_orders();
        if ready.signal {
            self.handle_signals(now);
        }
    }

    /// Replaces all keys if the wall clock jumped, before anything is sealed with the old ones: two
    /// processes may have resumed from one snapshot.
    fn look_at_clocks(&mut self) {
        let now = self.parts.clock.now();
        if !self.wall.is_due(now) {
            return;
        }
        let unix_ms = unix_ms();
        let jump = self.wall.look(now, unix_ms);
        self.parts.node.set_unix_time(now, unix_ms);
        let Some(jump) = jump else { return };
        tracing::warn!("the clock jumped by {} s: the node replaces all keys", jump.as_secs());
        match os_random() {
            Ok(seed) => {
                let WorkerParts { node, ports, .. } = &mut self.parts;
                node.rekey_all(now, ports.at(now), &mut Rng::new(seed));
            }
            Err(error) => tracing::error!("no random bytes for new keys: {error}"),
        }
    }

    /// Sends the node's pending frames.
    fn drive(&mut self, now: Time) {
        self.parts.node.drive(now, self.parts.ports.at(now));
    }

    fn wait(&mut self) -> anyhow::Result<PollResult> {
        let full = self.parts.node.is_full();
        let parts = &self.parts;
        let all = (1u32 << parts.receivers.len()) - 1;
        if self.hurried > 0 && !self.hurried.is_multiple_of(HURRIED_TURNS) {
            return Ok(PollResult { readable: all, interface: true, ..PollResult::default() });
        }
        let now = parts.clock.now();
        let timers = [
            parts.node.poll_timeout().map(|(at, _)| at),
            self.pings.poll_timeout(),
            self.probes.poll_timeout(),
            self.shift_probes.poll_timeout(),
            parts.files.poll_timeout(),
            parts.authority.as_ref().map(AuthorityState::poll_timeout),
            parts.authority.as_ref().and_then(AuthorityState::exchange_timeout),
            self.stopping,
            self.rest.poll_timeout(),
        ];
        let next = timers.into_iter().flatten().min().unwrap_or(Time::FAR);
        let sleep = match (self.hurried > 0, full) {
            (true, _) => Duration::ZERO,
            (_, true) => next.since(now).min(FULL_WAIT),
            _ => next.since(now).min(SLEEP_MAX),
        };
        let doze = if full { None } else { parts.node.doze(now) };
        let sleep = doze.map_or(sleep, |most| sleep.min(most));
        let looks = !full && doze.is_none();
        let arrivals = if looks { PollFlags::POLLIN } else { PollFlags::empty() };
        let ports = &parts.ports;
        let mut fds: Vec<PollFd<'_>> = (0..ports.count())
            .map(|index| {
                let (fd, blocked) = ports.poll_on(index);
                let out = if blocked { PollFlags::POLLOUT } else { PollFlags::empty() };
                PollFd::new(fd, arrivals | out)
            })
            .collect();
        fds.push(PollFd::new(parts.waker.fd(), PollFlags::POLLIN));
        let mut asked = false;
        let absent = self.absence.left(now);
        let sleep = absent.map_or(sleep, |most| sleep.min(most));
        let queue = parts.node.queue().filter(|_| absent.is_none());
        let waited_for = queue.is_some();
        if let Some(queue) = queue {
            // While the egress of programs' packets has a backlog, packets stay in the interface.
            // The relay's timer ends the wait.
            let waits = parts.node.packets_wait();
            let flag = if waits { PollFlags::empty() } else { PollFlags::POLLIN };
            asked = !waits;
            fds.push(PollFd::new(queue.device().fd(), flag));
        }
        if let Some(signals) = &parts.signals {
            fds.push(PollFd::new(signals.as_fd(), PollFlags::POLLIN));
        }
        match ppoll(&mut fds, Some(TimeSpec::from(sleep)), None) {
            Ok(_) | Err(nix::Error::EINTR) => {}
            Err(e) => return Err(anyhow::Error::new(e).context("waiting for the sockets failed")),
        }
        let mut ready = PollResult::read(&fds, ports.count(), waited_for);
        ready.drained = asked && !ready.interface;
        if ready.gone {
            self.absence.note(now);
        }
        ready.readable |= if doze.is_some() { all } else { 0 };
        Ok(ready)
    }

    /// Receives one batch and runs it to completion. True if more may wait.
    fn receive(&mut self, index: usize) -> bool {
        let WorkerParts { node, ports, receivers, clock, files, .. } = &mut self.parts;
        let receiver = &mut receivers[index];
        let full = match ports.receive(index, receiver) {
            Ok(full) => full,
            Err(e) if e.kind() == std::io::ErrorKind::WouldBlock => return false,
            Err(_) => return true,
        };
        let now = clock.now();
        for (reason, n) in receiver.take_drops() {
            node.relay.count_drop(reason, n);
        }
        let (buffer, incoming) = receiver.batch();
        node.handle_datagrams(now, ports.at(now), buffer, incoming);
        files.watch(now, &mut node.edge);
        full
    }

    /// Handles values from other threads.
    fn take_in(&mut self, now: Time) {
        let WorkerParts { node, ports, done, disk, files, waker, workers, .. } = &mut self.parts;
        if workers.as_mut().is_some_and(|workers| workers.take_in(now, node, ports)) {
            waker.wake();
        }
        let mut taken = 0;
        while let Some(result) = done.take() {
            node.handle_done(now, ports.at(now), result);
            taken += 1;
            if taken >= TAKEN_MAX {
                waker.wake();
                break;
            }
        }
        taken = 0;
        while let Some(answer) = disk.take() {
            files.handle_disk(now, &mut node.edge, answer);
            taken += 1;
            if taken >= TAKEN_MAX {
                waker.wake();
                break;
            }
        }
        while let Some(news) = self.parts.lists.take() {
            self.handle_members(now, Some(news));
        }
        let until = now + COMMANDS_TIME;
        while self.parts.clock.now() < until {
            match self.parts.control.try_recv() {
                Ok(message) => self.handle_control(now, message),
                Err(_) => return,
            }
        }
        self.parts.waker.wake();
    }

    /// Handles the node's events, and reports them to programs and the log.
    pub(crate) fn pass_on_events(&mut self, now: Time) {
        while let Some(event) = self.parts.node.poll_event(now) {
            match event {
                NodeEvent::Relay(event) => {
                    self.note_neighbour(now, &event);
                    self.handle_relay_event(now, event);
                }
                NodeEvent::Edge(event) => self.handle_edge_event(now, event),
                NodeEvent::Direct(event, link) => self.name_direct(event, link),
                NodeEvent::Circuit(event) => self.probes.handle_event(now, &event, &mut self.parts),
            }
        }
        for link in self.ended.drain(..) {
            self.parts.names.remove_link(link);
        }
    }

    fn handle_edge_event(&mut self, now: Time, event: EdgeEvent) {
        let WorkerParts { node, files, names, rights, .. } = &mut self.parts;
        match event {
            EdgeEvent::Transfer(FileEvent::Offered { id, from, .. })
                if rights.as_ref().is_some_and(|r| !r.may_they(from.into(), Right::Files)) =>
            {
                node.relay.count_drop(DropReason::PolicyDenied, 1);
                node.edge.transfers().refuse(now, id, RefuseReason::Policy);
            }
            EdgeEvent::Transfer(event) => files.handle_event(now, &mut node.edge, event, names),
            EdgeEvent::Echo { host, id, seq } => self.pings.answered(now, host, id, seq),
            EdgeEvent::Established(host) => self.pings.established(now, host),
            EdgeEvent::Unreachable(host) => {
                self.pings.unreachable(now, host, || pings::unreachable(&self.parts, now, host));
            }
            // The node handles these, and reports them as `NodeEvent::Direct`.
            EdgeEvent::Direct(_) | EdgeEvent::NeedCircuit(_) => {}
        }
    }

    fn handle_relay_event(&mut self, now: Time, event: RelayEvent) {
        match event {
            RelayEvent::LinkUp(link) => {
                self.note_link(now, "came up");
                self.note_named(now, link, true);
            }
            RelayEvent::LinkDown(link) => {
                self.note_link(now, "went silent");
                self.note_named(now, link, false);
            }
            RelayEvent::Established(link) => {
                self.tell_clock(now, link);
                self.look_at_reach();
            }
            RelayEvent::Seen => self.look_at_reach(), // Other addresses may be gone, too.
            RelayEvent::Width(link) => self.note_link(now, self.width_of(link).1),
            RelayEvent::Twins(link) | RelayEvent::Removed(link) => self.note_fault(now, link),
            RelayEvent::Route(_) | RelayEvent::Met(_) => {}
        }
        let width = match event {
            RelayEvent::Width(link) => self.width_of(link).0,
            _ => "",
        };
        let names = &self.parts.names;
        let link = |link, state: &str| ControlEvent::Link {
            unix_ms: unix_ms(),
            peer: names.link(link),
            state: state.into(),
            reason: None,
        };
        let event = match event {
            RelayEvent::LinkUp(id) => link(id, "up"),
            RelayEvent::LinkDown(id) => link(id, "silent"),
            RelayEvent::Width(id) => link(id, width),
            // The link is up with its first report. Until then nothing has changed for anybody.
            RelayEvent::Established(_) | RelayEvent::Seen => return,
            RelayEvent::Met(_) | RelayEvent::Twins(_) | RelayEvent::Removed(_) => return,
            RelayEvent::Route(change) => {
                let hop = |hop: Option<(_, u32)>| {
                    hop.map(|(id, cost)| NextHop { peer: names.link(id), cost })
                };
                ControlEvent::Route {
                    unix_ms: unix_ms(),
                    router: change.router,
                    name: names.router(change.router),
                    old: hop(change.old),
                    new: hop(change.new),
                }
            }
        };
        notices::note_change(&event);
        self.monitors.retain(|client| client.event(event.clone()));
    }

    /// True if the path to a neighbour carries full frames, as a word and for the log.
    fn width_of(&self, link: LinkId) -> (&'static str, &'static str) {
        let view = self.parts.node.relay.view(link);
        match view.is_some_and(|view| view.small) {
            true => ("narrow", "carries no full frames: they go in parts"),
            false => ("wide", "carries full frames again"),
        }
    }

    fn hand_out_jobs(&mut self) {
        loop {
            let next = self.waiting_job.take().or_else(|| self.parts.node.poll_job());
            let Some(job) = next else { return };
            if let Err(job) = self.parts.handshakes.submit(job) {
                // The thread is busy. Its next result leads back to this function.
                self.waiting_job = Some(job);
                return;
            }
        }
    }

    fn handle_signals(&mut self, now: Time) {
        let mut seen = VecDeque::new();
        while let Some(Ok(Some(info))) = self.parts.signals.as_ref().map(SignalFd::read_signal) {
            seen.push_back(i32::try_from(info.ssi_signo).unwrap_or(0));
            if seen.len() > 16 {
                break;
            }
        }
        for signal in seen {
            match Signal::try_from(signal) {
                Ok(Signal::SIGHUP) => match self.reload() {
                    Ok((applied, waiting)) => {
                        tracing::info!("configuration read again: {} changes", applied.len());
                        tracing::debug!("applied: {}", applied.join(", "));
                        if !waiting.is_empty() {
                            tracing::warn!("waits for a restart: {}", waiting.join(", "));
                        }
                    }
                    Err(error) => {
                        let what = "the old configuration stays in force";
                        let why = [format!("{error:#}")];
                        tracing::error!("{}", journal::unnamed(what, journal::CHECK, &why));
                    }
                },
                _ => self.stop(now),
            }
        }
    }

    /// Begins to stop: the other ends are told, and queued frames still leave.
    pub(crate) fn stop(&mut self, now: Time) {
        if self.stopping.is_some() {
            // A second request ends the wait at once.
            self.stopping = Some(now);
            return;
        }
        tracing::info!("stopping");
        crate::notify::notify("STOPPING=1");
        let WorkerParts { node, ports, files, .. } = &mut self.parts;
        files.shut_down(now, &mut node.edge);
        node.drive(now, ports.at(now));
        self.stopping = Some(now + FAREWELL);
    }
}
