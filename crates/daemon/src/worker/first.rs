//! The first worker: one thread that owns its sockets and the node's control.
//!
//! Each turn of [`Worker::run`]:
//!
//! 1. wait until a socket, a timer or another thread has something
//! 2. fill slots of covered links; receive one batch per socket and run it to completion through
//!    relay and edge
//! 3. take in results of handshakes, chunks of files, commands of programs
//! 4. do what time asks for, and send what the edge has to send
//! 5. pass on events, hand out handshake work
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
use shoal_directory::Rights as Right;
use shoal_edge::Event as EdgeEvent;
use shoal_node::{Event as NodeEvent, HandshakeDone, HandshakeJob};
use shoal_relay::Event as RelayEvent;
use shoal_transfer::Event as FileEvent;
use shoal_wire::transfer::RefuseReason;
use shoal_wire::{DropReason, LinkId, Time};

use crate::config::Config;
use crate::config::keys::os_random;
use crate::control::api::{Event, NextHop};
use crate::control::hop_probes::HopProbes;
use crate::control::hops::Probes;
use crate::control::journal::{self, Journal};
use crate::control::log::Log;
use crate::control::metrics;
use crate::control::pings::{self, Pings};
use crate::control::socket::{Client, FromControl};
use crate::files::transfers::{DiskAnswer, Files};
use crate::membership::authority::{Authority, Rights};
use crate::membership::circuits::Circuits;
use crate::membership::lists;
use crate::membership::watch::News;
use crate::net::lookups::Lookups;
use crate::net::ports::Ports;
use crate::net::receive::Receiver;
use crate::tun::interface::Interface;
use crate::tun::names::Names;
use crate::worker::budget::Budgeted;
use crate::worker::clock::{Clock, WallWatch, unix_ms};
use crate::worker::hopping::Hopping;
use crate::worker::notices;
use crate::worker::ready::{Absence, Ready};
use crate::worker::rest::Rest;
use crate::worker::shell::Node;
use crate::worker::wake::{Inbox, Waker};
use crate::worker::workers::WorkerPool;

/// Longest sleep: a clock that was set or a machine that slept is noticed after this.
const SLEEP_MAX: Duration = Duration::from_secs(10);
/// How late timers may fire: pacing wants better than the default of 50 us.
const TIMER_SLACK_NS: libc::c_ulong = 5_000;
/// Turns without looking at anything but the sockets while every receive comes back full.
const HURRIED_TURNS: u32 = 4;
/// How soon this worker looks again whether others took what it handed over: they wake nobody when
/// they do.
const FULL_WAIT: Duration = Duration::from_micros(250);
/// Values taken from another thread per turn.
const TAKEN_MAX: usize = 256;
/// After this time a turn begins no further answer to a program: the sockets wait meanwhile.
const COMMANDS_TIME: Duration = Duration::from_millis(1);
/// How long a stopping node keeps sending, so that the other ends hear of it.
const FAREWELL: Duration = Duration::from_millis(100);
/// Between the two goodbyes to each neighbour.
const GOODBYE_AGAIN: Duration = Duration::from_millis(20);

/// What the worker is given.
pub struct Parts {
    /// Time for the node.
    pub clock: Clock,
    /// The node's control.
    pub node: Node,
    /// Its sockets.
    pub ports: Ports,
    /// The virtual interface, if there is one; the queues are the workers'.
    pub interface: Option<Interface>,
    /// The kernel's side of addresses that hop, if there are any.
    pub hopping: Option<Hopping>,
    /// The other workers, if there are several.
    pub workers: Option<WorkerPool>,
    /// Receive buffers, one per socket.
    pub receivers: Vec<Receiver>,
    /// What people call the nodes.
    pub names: Names,
    /// The configuration in force.
    pub config: Config,
    /// With it every other thread wakes this one.
    pub waker: Arc<Waker>,
    /// The thread for handshakes.
    pub handshakes: Budgeted<HandshakeJob>,
    /// Its results.
    pub done: Inbox<HandshakeDone>,
    /// Transfers, and the way for disk threads to answer.
    pub files: Files,
    /// What they answer.
    pub disk: Inbox<DiskAnswer>,
    /// Commands of programs.
    pub control: ChannelReceiver<FromControl>,
    /// SIGTERM, SIGINT, SIGHUP; none in a process that has its own handling.
    pub signals: Option<SignalFd>,
    /// What the operator should know, for the status.
    pub warnings: Vec<String>,
    /// What the log was told.
    pub journal: Journal,
    /// Endpoints that are names.
    pub lookups: Lookups,
    /// Who says who belongs to the network; none where the hosts file does.
    pub authority: Option<Authority>,
    /// What it lets hosts begin with each other.
    pub rights: Option<Rights>,
    /// What is kept about circuits.
    pub circuits: Circuits,
    /// Its lists, as they are read.
    pub lists: Inbox<News>,
    /// The log of this process.
    pub log: Log,
}

/// Ends a worker from another thread.
#[derive(Clone)]
pub struct Stopper {
    told: Arc<AtomicBool>,
    waker: Arc<Waker>,
}

impl Stopper {
    /// Tells it to stop; it says farewell to the other ends first.
    pub fn stop(&self) {
        self.told.store(true, Ordering::Release);
        self.waker.wake();
    }
}

/// The thread's state.
pub struct Worker {
    pub(crate) parts: Parts,
    pub(crate) pings: Pings,
    pub(crate) probes: Probes,
    pub(crate) hop_probes: HopProbes,
    pub(crate) monitors: Vec<Client>,
    pub(crate) stopping: Option<Time>,
    pub(crate) metrics: metrics::Kept,
    told_to_stop: Arc<AtomicBool>,
    waiting_job: Option<HandshakeJob>,
    wall: WallWatch,
    hurried: u32,
    absence: Absence,
    pub(super) rest: Rest,
    /// Direct links that ended and still have their names.
    pub(crate) ended: Vec<LinkId>,
}

impl Worker {
    /// Ready to run.
    pub fn new(mut parts: Parts) -> Worker {
        let now = parts.clock.now();
        let authority = parts.authority.as_ref();
        if authority.is_some_and(Authority::passes_on) {
            parts.node.relay.take_lists(lists::WAITING_MAX);
        }
        let mut worker = Worker {
            parts,
            pings: Pings::default(),
            probes: Probes::default(),
            hop_probes: HopProbes::default(),
            monitors: Vec::new(),
            stopping: None,
            metrics: metrics::Kept::default(),
            told_to_stop: Arc::default(),
            waiting_job: None,
            wall: WallWatch::new(now, unix_ms()),
            hurried: 0,
            absence: Absence::default(),
            rest: Rest::default(),
            ended: Vec::new(),
        };
        worker.apply_list(now);
        worker
    }

    /// The way to stop it from another thread.
    pub fn stopper(&self) -> Stopper {
        Stopper { told: self.told_to_stop.clone(), waker: self.parts.waker.clone() }
    }

    /// Runs until told to stop.
    pub fn run(&mut self) -> anyhow::Result<()> {
        // Without it timers fire up to 50 us late, and with it nothing else changes.
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
                anyhow::bail!("the thread for handshakes ended: its last words stand above");
            }
            if self.stopping.is_some_and(|until| self.parts.clock.now() >= until) {
                self.say_goodbye();
                return Ok(());
            }
        }
    }

    /// The last word to the neighbours, twice, since a frame may get lost. Nothing that they send
    /// after it is read.
    fn say_goodbye(&mut self) {
        let Parts { node, ports, clock, .. } = &mut self.parts;
        node.relay.say_goodbye(clock.now(), ports.at(clock.now()));
        std::thread::sleep(GOODBYE_AGAIN);
        node.relay.say_goodbye(clock.now(), ports.at(clock.now()));
    }

    /// One turn, steps 2 to 5.
    fn turn(&mut self, ready: &Ready) {
        let mut more = false;
        self.look_at_clocks();
        let Parts { node, ports, clock, .. } = &mut self.parts;
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
                let Parts { node, ports, clock, .. } = &mut self.parts;
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
        self.let_hops_in();
        self.parts.node.handle_timeout(now, self.parts.ports.at(now));
        self.handle_members(now, None);
        self.keep_journal(now);
        self.pings.handle_timeout(now, &mut self.parts);
        self.probes.handle_timeout(now, &mut self.parts);
        self.hop_probes.handle_timeout(now, &self.parts);
        self.parts.files.report(now, &mut self.parts.node.edge);
        self.drive(now);
        self.let_hops_in();
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

    /// Makes all keys anew if the wall clock jumped, before anything is sealed with the old ones:
    /// this process may be one of two that go on from the same snapshot.
    fn look_at_clocks(&mut self) {
        let now = self.parts.clock.now();
        if !self.wall.is_due(now) {
            return;
        }
        let unix_ms = unix_ms();
        let jump = self.wall.look(now, unix_ms);
        self.parts.node.set_unix_time(now, unix_ms);
        let Some(jump) = jump else { return };
        tracing::warn!("the clock jumped by {} s: all keys are made anew", jump.as_secs());
        match os_random() {
            Ok(seed) => {
                let Parts { node, ports, .. } = &mut self.parts;
                node.rekey_all(now, ports.at(now), &mut Rng::new(seed));
            }
            Err(error) => tracing::error!("no random bytes for new keys: {error}"),
        }
    }

    /// Sends what the node has to send.
    fn drive(&mut self, now: Time) {
        self.parts.node.drive(now, self.parts.ports.at(now));
    }

    fn wait(&mut self) -> anyhow::Result<Ready> {
        let full = self.parts.node.is_full();
        let parts = &self.parts;
        let all = (1u32 << parts.receivers.len()) - 1;
        if self.hurried > 0 && !self.hurried.is_multiple_of(HURRIED_TURNS) {
            return Ok(Ready { readable: all, interface: true, ..Ready::default() });
        }
        let now = parts.clock.now();
        let timers = [
            parts.node.poll_timeout().map(|(at, _)| at),
            self.pings.poll_timeout(),
            self.probes.poll_timeout(),
            self.hop_probes.poll_timeout(),
            parts.files.poll_timeout(),
            parts.authority.as_ref().map(Authority::poll_timeout),
            parts.authority.as_ref().and_then(Authority::exchange_timeout),
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
            // While the egress that programs fill has a backlog, packets stay in the interface. The
            // relay's timer ends the wait.
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
        let mut ready = Ready::read(&fds, ports.count(), waited_for);
        ready.drained = asked && !ready.interface;
        if ready.gone {
            self.absence.note(now);
        }
        ready.readable |= if doze.is_some() { all } else { 0 };
        Ok(ready)
    }

    /// Receives one batch and runs it to completion; says whether more may wait.
    fn receive(&mut self, index: usize) -> bool {
        let Parts { node, ports, receivers, clock, files, .. } = &mut self.parts;
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

    /// Takes in what other threads handed over.
    fn take_in(&mut self, now: Time) {
        let Parts { node, ports, done, disk, files, waker, workers, .. } = &mut self.parts;
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

    /// Takes in the node's events: tells programs and the log, and does what follows from them.
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
        let Parts { node, files, names, rights, .. } = &mut self.parts;
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
            RelayEvent::Twins(link) => self.note_twins(now, link),
            RelayEvent::Route(_) | RelayEvent::Met(_) => {}
        }
        let width = match event {
            RelayEvent::Width(link) => self.width_of(link).0,
            _ => "",
        };
        let names = &self.parts.names;
        let link = |link, state: &str| Event::Link {
            unix_ms: unix_ms(),
            peer: names.link(link),
            state: state.into(),
            reason: None,
        };
        let event = match event {
            RelayEvent::LinkUp(id) => link(id, "up"),
            RelayEvent::LinkDown(id) => link(id, "silent"),
            RelayEvent::Width(id) => link(id, width),
            // The link is up with its first report; until then nothing has changed for anybody.
            RelayEvent::Established(_) | RelayEvent::Seen => return,
            RelayEvent::Met(_) | RelayEvent::Twins(_) => return,
            RelayEvent::Route(change) => {
                let hop = |hop: Option<(_, u32)>| {
                    hop.map(|(id, cost)| NextHop { peer: names.link(id), cost })
                };
                Event::Route {
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

    /// Whether the path to a neighbour carries full frames: in a word, and for the log.
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
                // The thread has enough to do; its next result brings us back here.
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

    /// Begins to stop: other ends are told, what is queued still leaves.
    pub(crate) fn stop(&mut self, now: Time) {
        if self.stopping.is_some() {
            // A second request ends the farewell at once.
            self.stopping = Some(now);
            return;
        }
        tracing::info!("stopping");
        crate::notify::notify("STOPPING=1");
        let Parts { node, ports, files, .. } = &mut self.parts;
        files.shut_down(now, &mut node.edge);
        node.drive(now, ports.at(now));
        self.stopping = Some(now + FAREWELL);
    }
}
