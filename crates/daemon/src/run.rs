//! A node's life, from reading its files to its end.
//!
//! Order at the start: guard memory, read keys, open sockets and the control socket with the
//! initial privileges. Then become the configured user, drop all privileges, start threads, and
//! report readiness. A thread that starts earlier keeps its privileges. Only the threads for kernel
//! routes (`kernel_routes.rs`) and for shifting addresses (`shift_route.rs`, `shift_addresses.rs`)
//! do so. Each keeps one capability (`privileged.rs`).

use std::net::Ipv4Addr;
use std::os::unix::net::UnixStream;
use std::sync::Arc;
use std::sync::mpsc::sync_channel;
use std::thread::JoinHandle;

use anyhow::Context;
use nix::sys::signal::{SigSet, Signal};
use nix::sys::signalfd::{SfdFlags, SignalFd};
use shoal_joining::Contact;
use shoal_node::{HandshakeDone, HandshakeJob};

use crate::config::keys::os_random;
use crate::config::{NodeConfig, NodeSetup, unnamed};
use crate::control::journal::Journal;
use crate::control::log::NodeLog;
use crate::control::socket::{
    ClientMessage, ControlConnection, ControlServer, SocketOwner, Wake, check_free,
};
use crate::files::transfers::Files;
use crate::membership::authority::AuthorityState;
use crate::membership::circuits::{CircuitRecords, MetHostsFile};
use crate::membership::renewal;
use crate::net::lookups::Lookups;
use crate::net::ports::NodeSockets;
use crate::net::receive::DatagramReceiver;
use crate::notify::notify;
use crate::privileges;
use crate::tun::dns;
use crate::tun::interface::VirtualInterface;
use crate::worker::budget::BudgetedThread;
use crate::worker::build;
use crate::worker::clock::BootClock;
use crate::worker::first::{FirstWorker, Stopper, WorkerParts};
use crate::worker::rest;
use crate::worker::shifting::KernelShifts;
use crate::worker::wake::{Waker, WakingInbox, channel};
use crate::worker::workers::WorkerPool;

/// Most commands of programs that wait.
const COMMANDS: usize = 64;
/// Most results of handshakes that wait.
const RESULTS: usize = 256;
/// Most chunks, read or written, that wait. Disk threads wait when the channel is full.
const CHUNKS: usize = 1_024;
/// Most lists of the authority that wait. The thread that reads them waits when the channel is
/// full.
const LISTS: usize = 2;

/// Way in which a node runs.
pub struct NodeOptions {
    /// True for a process that is only the node: it handles SIGTERM, SIGINT and SIGHUP, drops
    /// privileges, and reports to the service manager.
    pub daemon: bool,
    /// True to open the control socket that the configuration names.
    pub listen: bool,
    pub log: NodeLog,
}

/// Runs the daemon until it is told to stop.
pub fn run(setup: NodeSetup, log: NodeLog) -> anyhow::Result<()> {
    check_free(&setup.config.control_socket()).context("can't open the control socket")?;
    let options = NodeOptions { daemon: true, listen: true, log };
    let (mut worker, _server) = prepare(setup, options)?;
    notify("READY=1");
    tracing::info!("ready");
    let result = worker.run();
    tracing::info!("stopped");
    result
}

/// A node that runs on a thread of this process.
pub struct RunningNode {
    server: ControlServer,
    stop: Stopper,
    thread: Option<JoinHandle<anyhow::Result<()>>>,
}

impl RunningNode {
    /// Starts the node. The caller keeps its signals and privileges. The node listens on any free
    /// port, unless others call it at the configured one ([`NodeSetup::listen_anywhere`]).
    pub fn start(mut setup: NodeSetup, listen: bool) -> anyhow::Result<RunningNode> {
        setup.listen_anywhere();
        let options = NodeOptions { daemon: false, listen, log: NodeLog::none() };
        let (mut worker, server) = prepare(setup, options)?;
        let stop = worker.stopper();
        let thread = std::thread::Builder::new()
            .name("shoal-worker".into())
            .spawn(move || worker.run())
            .context("can't start the worker")?;
        Ok(RunningNode { server, stop, thread: Some(thread) })
    }

    /// A connection to its control.
    pub fn connect(&self) -> anyhow::Result<ControlConnection> {
        let (ours, theirs) = UnixStream::pair().context("can't make a socket pair")?;
        self.server.adopt(theirs).context("can't serve a control connection")?;
        Ok(ControlConnection::from_stream(ours)?)
    }

    /// Stops the node and waits for its end.
    pub fn stop(mut self) -> anyhow::Result<()> {
        self.finish()
    }

    fn finish(&mut self) -> anyhow::Result<()> {
        let Some(thread) = self.thread.take() else { return Ok(()) };
        self.stop.stop();
        thread.join().unwrap_or_else(|_| Err(anyhow::anyhow!("the worker panicked")))
    }
}

impl Drop for RunningNode {
    fn drop(&mut self) {
        // A caller that needs the result calls `stop`.
        let _ended = self.finish();
    }
}

/// The node's first worker, and the server of its control socket.
type Prepared = (FirstWorker, ControlServer);

fn prepare(mut setup: NodeSetup, options: NodeOptions) -> anyhow::Result<Prepared> {
    let name = setup.config.node.user.as_ref().filter(|_| options.daemon);
    let user = name.map(|name| privileges::find_user(name)).transpose()?;
    let mut warnings = setup.lasting_warnings();
    rest::map_long_buffers();
    if options.daemon {
        let drops = user.as_ref().is_some_and(|user| !user.uid.is_root());
        warnings.extend(privileges::guard_memory(drops)?);
    }
    // Blocked before any thread starts: all inherit this, and only the worker reads signals.
    let signals = if options.daemon { Some(take_signals()?) } else { None };
    let (ports, mut receivers, taken) = build::open_ports(&setup)?;
    warnings.extend(taken);
    let mut more = build::open_more_ports(&setup.config, &ports)?;
    let mut interface = open_interface(&setup, (&mut receivers, &mut more), &mut warnings)?;
    let shifting = open_shift(&setup, &options, (&ports, &more), &mut warnings)?;
    let responder = open_responder(&setup.config, (&interface, &user), &mut warnings)?;
    let waker = Waker::new().context("can't make an event descriptor")?;
    let (commands, control) = sync_channel(COMMANDS);
    let mut server = open_control(&setup.config, commands, &waker, &options, user.as_ref())?;
    let contact = renewal_contact(&setup, &options, user.as_ref())?;
    let met = MetHostsFile::read(&setup.config, &mut warnings)?;
    user.as_ref().map(privileges::become_user).transpose()?;
    if options.daemon {
        warnings.extend(seal(&interface, &shifting, &options.log)?);
    }
    serve(&mut server, &setup, contact)?;
    serve_interface(responder, interface.as_mut())?;
    let (clock, mut authority) = (setup.clock, setup.authority.take());
    let (circuits, known) = CircuitRecords::start(&setup.config, &setup.hosts, met, &mut warnings)?;
    log_warnings((&warnings, &setup.config), authority.as_ref(), clock);
    let seed = os_random().context("the system gives no random bytes")?;
    let percent = setup.config.session.handshake_cpu_percent;
    let (mut node, names, config) =
        build::build(setup, known, &mut interface, (seed, shifting.as_ref()), clock)?;
    let (handshakes, done) = start_handshakes(percent, &waker)?;
    let (disk_outlet, disk) = channel(CHUNKS, &waker);
    let (lists_outlet, lists) = channel(LISTS, &waker);
    if let Some(authority) = &mut authority {
        authority.watch(lists_outlet).context("can't watch the authority's list")?;
    }
    let workers = WorkerPool::start(clock, &mut node, more, &mut interface, &waker)?;
    let worker = FirstWorker::new(WorkerParts {
        clock,
        node,
        ports,
        interface,
        shifting,
        workers,
        receivers,
        names,
        config,
        lookups: Lookups::start(&waker)?,
        waker,
        handshakes,
        done,
        files: Files::new(disk_outlet),
        disk,
        control,
        signals,
        warnings,
        journal: Journal::default(),
        authority,
        rights: None,
        circuits,
        lists,
        log: options.log,
    });
    Ok((worker, server))
}

/// The registrar of the configuration, if this process is only the node. The file is read with the
/// initial privileges, since it may belong to another user than `user`, which the node becomes.
fn renewal_contact(
    setup: &NodeSetup,
    options: &NodeOptions,
    user: Option<&nix::unistd::User>,
) -> anyhow::Result<Option<Contact>> {
    if !options.daemon || setup.config.registrar.is_none() {
        return Ok(None);
    }
    let user = user.map(|user| user.uid.as_raw());
    renewal::contact(&setup.config, user).map(Some).map_err(anyhow::Error::msg)
}

/// Begins to answer programs. If configured, also asks the registrar to renew the membership.
fn serve(
    server: &mut ControlServer,
    setup: &NodeSetup,
    contact: Option<Contact>,
) -> anyhow::Result<()> {
    server.start().context("can't serve the control socket")?;
    let Some((section, contact)) = setup.config.registrar.as_ref().zip(contact) else {
        return Ok(());
    };
    let (ours, theirs) = UnixStream::pair().context("can't make a socket pair")?;
    server.adopt(theirs).context("can't serve a control connection")?;
    let (node, identity) = (ControlConnection::from_stream(ours)?, setup.identity.clone());
    renewal::start(node, identity, contact, section.renew_days).context("can't start a thread")
}

/// Starts the thread for handshakes. Returns it with the channel of its results.
fn start_handshakes(
    percent: u32,
    waker: &Arc<Waker>,
) -> anyhow::Result<(BudgetedThread<HandshakeJob>, WakingInbox<HandshakeDone>)> {
    let (outlet, done) = channel(RESULTS, waker);
    let started = BudgetedThread::start("shoal-keys", RESULTS, percent, agree_on_keys, outlet);
    Ok((started.context("can't start the handshake thread")?, done))
}

/// Computes a handshake. Fresh randomness goes into each, since a snapshot may have copied the
/// state machines' random generators with everything else.
fn agree_on_keys(mut job: HandshakeJob) -> HandshakeDone {
    if let Ok(fresh) = os_random() {
        job.freshen(&fresh);
    }
    job.run()
}

/// Drops every privilege of this process's threads. Starts the log's thread afterwards, since it
/// keeps those it starts with. Returns warnings for the operator.
fn seal(
    interface: &Option<VirtualInterface>,
    shifting: &Option<KernelShifts>,
    log: &NodeLog,
) -> anyhow::Result<Vec<String>> {
    let warnings = privileges::seal().context("can't give up rights")?;
    interface.as_ref().map_or(Ok(()), VirtualInterface::seal)?;
    shifting.as_ref().map_or(Ok(()), KernelShifts::seal)?;
    log.queue.start().context("can't start the thread of the log")?;
    Ok(warnings)
}

/// Opens the interface. The sockets then drop datagrams that arrive through it. A refused address
/// of the authority's list is added to `warnings`.
fn open_interface(
    setup: &NodeSetup,
    (receivers, more): (&mut [DatagramReceiver], &mut [(NodeSockets, Vec<DatagramReceiver>)]),
    warnings: &mut Vec<String>,
) -> anyhow::Result<Option<VirtualInterface>> {
    let Some(config) = &setup.config.interface else { return Ok(None) };
    setup.check_overlay()?;
    let (key, (ipv4, refusal)) = (setup.identity.public(), setup.ipv4());
    let workers = setup.config.data.workers;
    let mut interface = VirtualInterface::open(config, workers, setup.overlay(), &key, ipv4)?;
    let all = more.iter_mut().flat_map(|(_, receivers)| receivers).chain(receivers);
    all.for_each(|receiver| receiver.set_own_interface(interface.number()));
    if let Some(refusal) = refusal {
        if let Some(own) = setup.authority.as_ref().and_then(AuthorityState::own_ipv4) {
            interface.decline(own);
        }
        warnings.push(refusal);
    }
    Ok(Some(interface))
}

/// The IPv4 address of this node's interface, if it has one.
pub(crate) fn own_ipv4(setup: &NodeSetup) -> Option<Ipv4Addr> {
    setup.ipv4().0
}

/// Prepares the kernel for shifting addresses. A node that lives only for one command leaves the
/// prefix to the daemon. Warnings for the operator are added to `warnings`.
fn open_shift(
    setup: &NodeSetup,
    options: &NodeOptions,
    ports: (&NodeSockets, &[(NodeSockets, Vec<DatagramReceiver>)]),
    warnings: &mut Vec<String>,
) -> anyhow::Result<Option<KernelShifts>> {
    if !options.daemon {
        return Ok(None);
    }
    let shifting = KernelShifts::open(&setup.config, ports)?;
    warnings.extend(KernelShifts::unreached(&setup.config, &setup.hosts));
    Ok(shifting)
}

/// Opens the DNS responder, and registers it with the system, before the process becomes `user`.
/// Warnings for the operator are added to `warnings`.
fn open_responder(
    config: &NodeConfig,
    (interface, user): (&Option<VirtualInterface>, &Option<nix::unistd::User>),
    warnings: &mut Vec<String>,
) -> anyhow::Result<Option<(dns::DnsResponder, Option<dns::Registration>)>> {
    let (Some(names), Some(interface)) = (&config.names, interface) else { return Ok(None) };
    let becomes_other = user.as_ref().is_some_and(|user| !user.uid.is_root());
    let stays_root = nix::unistd::geteuid().is_root() && !becomes_other;
    let listen = names.listen.0.0;
    let responder = dns::DnsResponder::open(listen, names.domain.as_str())?;
    let zones: Vec<String> = interface.networks().iter().flat_map(dns::reverse_zones).collect();
    let registration = dns::register(names, listen, (interface.name(), stays_root), &zones);
    let registration = registration.unwrap_or_else(|why| {
        warnings.push(why);
        None
    });
    Ok(Some((responder, registration)))
}

/// Logs, without names, the warnings that the status shows later.
fn log_warnings(
    (warnings, config): (&[String], &NodeConfig),
    authority: Option<&AuthorityState>,
    clock: BootClock,
) {
    let of_members = authority.iter().flat_map(|a| a.unnamed_warnings(clock.now()));
    let of_files = warnings.iter().map(|warning| unnamed(warning, config));
    for warning in of_files.chain(of_members) {
        tracing::warn!("{warning}");
    }
}

/// Starts the thread that reports changes of the interface, and the DNS responder.
fn serve_interface(
    responder: Option<(dns::DnsResponder, Option<dns::Registration>)>,
    interface: Option<&mut VirtualInterface>,
) -> anyhow::Result<()> {
    let Some(interface) = interface else { return Ok(()) };
    interface.watch()?;
    let Some((responder, registration)) = responder else { return Ok(()) };
    let names = dns::DnsNames::default();
    let keeper = registration.as_ref().and_then(dns::Registration::keeper);
    responder.start(&names, keeper).context("can't start the responder for names")?;
    interface.set_dns(names, registration);
    Ok(())
}

fn take_signals() -> anyhow::Result<SignalFd> {
    let mut set = SigSet::empty();
    for signal in [Signal::SIGTERM, Signal::SIGINT, Signal::SIGHUP] {
        set.add(signal);
    }
    set.thread_block().context("can't block signals")?;
    privileges::survive_full_files()?;
    SignalFd::with_flags(&set, SfdFlags::SFD_NONBLOCK | SfdFlags::SFD_CLOEXEC)
        .context("can't read signals")
}

fn open_control(
    config: &NodeConfig,
    commands: std::sync::mpsc::SyncSender<ClientMessage>,
    waker: &Arc<Waker>,
    options: &NodeOptions,
    user: Option<&nix::unistd::User>,
) -> anyhow::Result<ControlServer> {
    let number = |key: &str, group: &Option<String>| {
        let found = group.as_ref().map(|name| privileges::find_group(key, name)).transpose();
        found.map(|group| group.map(|group| group.gid.as_raw()))
    };
    let group = number("control_group", &config.node.control_group)?;
    let registrars = number("registrar_group", &config.node.registrar_group)?;
    let ring = waker.clone();
    let wake: Wake = Arc::new(move || ring.wake());
    let mut server = ControlServer::new(commands, wake, group);
    if options.listen {
        let path = config.control_socket();
        // The node removes the socket as this user when it stops, so the user gets the folder.
        let user = user.map(|user| (user.uid, user.gid));
        let owner = SocketOwner { user, group: None };
        server.bind(&path, Some(owner)).context("can't open the control socket")?;
        if let Some(group) = registrars {
            let narrow = server.bind_narrow(&config.registrar_socket(), Some(owner), group);
            narrow.context("can't open the registrar's socket")?;
        }
    }
    Ok(server)
}
