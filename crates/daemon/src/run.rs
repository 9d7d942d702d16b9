//! A node's life, from reading its files to its end.
//!
//! Order at the start: guard memory, read keys, open sockets and the control socket (with the
//! rights that the process was started with), become the configured user, give up every right,
//! start threads, say ready. A thread that starts earlier would keep its rights: there is one
//! that sets routes and gives up all others (`kernel_routes.rs`), and one for addresses that hop
//! (`hop_route.rs`, `hop_addresses.rs`); `privileged.rs` has what both do.

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
use crate::config::{Config, Setup, unnamed};
use crate::control::journal::Journal;
use crate::control::log::Log;
use crate::control::socket::{Connection, FromControl, Owner, Server, Wake, check_free};
use crate::files::transfers::Files;
use crate::membership::authority::Authority;
use crate::membership::circuits::{Circuits, Met};
use crate::membership::renewal;
use crate::net::lookups::Lookups;
use crate::net::ports::Ports;
use crate::net::receive::Receiver;
use crate::notify::notify;
use crate::privileges;
use crate::tun::dns;
use crate::tun::interface::Interface;
use crate::worker::budget::Budgeted;
use crate::worker::build;
use crate::worker::clock::Clock;
use crate::worker::direct;
use crate::worker::first::{Parts, Stopper, Worker};
use crate::worker::hopping::Hopping;
use crate::worker::rest;
use crate::worker::wake::{Inbox, Waker, channel};
use crate::worker::workers::WorkerPool;

/// Commands of programs that may wait.
const COMMANDS: usize = 64;
/// Results of handshakes that may wait.
const RESULTS: usize = 256;
/// Chunks read or written that may wait; disk threads wait when it is full.
const CHUNKS: usize = 1_024;
/// Lists of the authority that may wait; the thread that reads them waits when it is full.
const LISTS: usize = 2;

/// How a node runs.
pub struct Options {
    /// Take over SIGTERM, SIGINT and SIGHUP, drop privileges, tell the service manager: a process
    /// that is nothing but the node.
    pub daemon: bool,
    /// Open the control socket that the configuration names.
    pub listen: bool,
    /// The log of this process.
    pub log: Log,
}

/// Runs the daemon until it is told to stop.
pub fn run(setup: Setup, log: Log) -> anyhow::Result<()> {
    check_free(&setup.config.control_socket()).context("can't open the control socket")?;
    let options = Options { daemon: true, listen: true, log };
    let (mut worker, _server) = prepare(setup, options)?;
    notify("READY=1");
    tracing::info!("ready");
    let result = worker.run();
    tracing::info!("stopped");
    result
}

/// A node that runs on a thread of this process.
pub struct Running {
    server: Server,
    stop: Stopper,
    thread: Option<JoinHandle<anyhow::Result<()>>>,
}

impl Running {
    /// Starts it. Signals and privileges stay the caller's, and so does the configured port unless
    /// others call the node there ([`Setup::listen_anywhere`]).
    pub fn start(mut setup: Setup, listen: bool) -> anyhow::Result<Running> {
        setup.listen_anywhere();
        let options = Options { daemon: false, listen, log: Log::none() };
        let (mut worker, server) = prepare(setup, options)?;
        let stop = worker.stopper();
        let thread = std::thread::Builder::new()
            .name("shoal-worker".into())
            .spawn(move || worker.run())
            .context("can't start the worker")?;
        Ok(Running { server, stop, thread: Some(thread) })
    }

    /// A connection to its control.
    pub fn connect(&self) -> anyhow::Result<Connection> {
        let (ours, theirs) = UnixStream::pair().context("can't make a socket pair")?;
        self.server.adopt(theirs).context("can't serve a control connection")?;
        Ok(Connection::from_stream(ours)?)
    }

    /// Stops it and waits for its end.
    pub fn stop(mut self) -> anyhow::Result<()> {
        self.finish()
    }

    fn finish(&mut self) -> anyhow::Result<()> {
        let Some(thread) = self.thread.take() else { return Ok(()) };
        self.stop.stop();
        thread.join().unwrap_or_else(|_| Err(anyhow::anyhow!("the worker panicked")))
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        // Whoever wants to know how it ended calls `stop`.
        let _ended = self.finish();
    }
}

fn prepare(mut setup: Setup, options: Options) -> anyhow::Result<(Worker, Server)> {
    let user = setup.config.node.user.as_ref().filter(|_| options.daemon);
    let user = user.map(|name| privileges::find_user(name)).transpose()?;
    let mut warnings = setup.lasting_warnings();
    rest::map_long_buffers();
    if options.daemon {
        let drops = user.as_ref().is_some_and(|user| !user.uid.is_root());
        warnings.extend(privileges::guard_memory(drops)?);
    }
    // Blocked before any thread starts, so that all inherit it and only the worker reads them.
    let signals = if options.daemon { Some(take_signals()?) } else { None };
    let (mut ports, mut receivers, taken) = build::open_ports(&setup)?;
    warnings.extend(taken);
    let mut more = build::open_more_ports(&setup.config, &ports)?;
    let mut interface = open_interface(&setup, (&mut receivers, &mut more), &mut warnings)?;
    let hopping = open_hop(&setup, &options, (&ports, &more), &mut warnings)?;
    let responder = open_responder(&setup.config, (&interface, &user), &mut warnings)?;
    let waker = Waker::new().context("can't make an event descriptor")?;
    let (commands, control) = sync_channel(COMMANDS);
    let mut server = open_control(&setup.config, commands, &waker, &options, user.as_ref())?;
    let contact = renewal_contact(&setup, &options, user.as_ref())?;
    let met = Met::read(&setup.config, &mut warnings)?;
    user.as_ref().map(privileges::become_user).transpose()?;
    if options.daemon {
        warnings.extend(seal(&interface, &hopping, &options.log)?);
    }
    serve(&mut server, &setup, contact, (&mut ports, &waker))?;
    serve_interface(responder, interface.as_mut())?;
    let (clock, mut authority) = (setup.clock, setup.authority.take());
    let (circuits, known) = Circuits::start(&setup.config, &setup.hosts, met, &mut warnings)?;
    log_warnings((&warnings, &setup.config), authority.as_ref(), clock);
    let seed = os_random().context("the system gives no random bytes")?;
    let percent = setup.config.session.handshake_cpu_percent;
    let (mut node, names, config) =
        build::build(setup, known, &mut interface, (seed, hopping.as_ref()), clock)?;
    let (handshakes, done) = start_handshakes(percent, &waker)?;
    let (disk_outlet, disk) = channel(CHUNKS, &waker);
    let (lists_outlet, lists) = channel(LISTS, &waker);
    if let Some(authority) = &mut authority {
        authority.watch(lists_outlet).context("can't watch the authority's list")?;
    }
    let workers = WorkerPool::start(clock, &mut node, more, &mut interface, &waker)?;
    let worker = Worker::new(Parts {
        clock,
        node,
        ports,
        interface,
        hopping,
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

/// The registrar of the configuration, if this process is the node, which becomes `user`. Read with
/// the rights of the start, since its file may be of a user that the node stops being.
fn renewal_contact(
    setup: &Setup,
    options: &Options,
    user: Option<&nix::unistd::User>,
) -> anyhow::Result<Option<Contact>> {
    if !options.daemon || setup.config.registrar.is_none() {
        return Ok(None);
    }
    let user = user.map(|user| user.uid.as_raw());
    renewal::contact(&setup.config, user).map(Some).map_err(anyhow::Error::msg)
}

/// Begins to answer programs, has a translator keep a port open where the file says so, and the
/// membership renewed by the registrar, if there is one.
fn serve(
    server: &mut Server,
    setup: &Setup,
    contact: Option<Contact>,
    (ports, waker): (&mut Ports, &Arc<Waker>),
) -> anyhow::Result<()> {
    server.start().context("can't serve the control socket")?;
    if direct::maps_ports(&setup.config, &setup.hosts) {
        ports.keep_open(waker)?;
    }
    let Some((section, contact)) = setup.config.registrar.as_ref().zip(contact) else {
        return Ok(());
    };
    let (ours, theirs) = UnixStream::pair().context("can't make a socket pair")?;
    server.adopt(theirs).context("can't serve a control connection")?;
    let (node, identity) = (Connection::from_stream(ours)?, setup.identity.clone());
    renewal::start(node, identity, contact, section.renew_days).context("can't start a thread")
}

/// Starts the thread for handshakes, and opens the way for its results.
fn start_handshakes(
    percent: u32,
    waker: &Arc<Waker>,
) -> anyhow::Result<(Budgeted<HandshakeJob>, Inbox<HandshakeDone>)> {
    let (outlet, done) = channel(RESULTS, waker);
    let started = Budgeted::start("shoal-keys", RESULTS, percent, agree_on_keys, outlet);
    Ok((started.context("can't start the handshake thread")?, done))
}

/// Does handshake work. Fresh randomness goes into each piece: the generators of the machines may
/// have been copied, with all the rest, by a snapshot.
fn agree_on_keys(mut job: HandshakeJob) -> HandshakeDone {
    if let Ok(fresh) = os_random() {
        job.freshen(&fresh);
    }
    job.run()
}

/// Gives up every right that a thread of this process has, and starts the thread of the log, which
/// would keep those that it starts with. Says what the operator should know.
fn seal(
    interface: &Option<Interface>,
    hopping: &Option<Hopping>,
    log: &Log,
) -> anyhow::Result<Vec<String>> {
    let warnings = privileges::seal().context("can't give up rights")?;
    interface.as_ref().map_or(Ok(()), Interface::seal)?;
    hopping.as_ref().map_or(Ok(()), Hopping::seal)?;
    log.queue.start().context("can't start the thread of the log")?;
    Ok(warnings)
}

/// Opens the interface, and has the sockets drop what comes in by it; `warnings` gets what it
/// declines of the authority's list.
fn open_interface(
    setup: &Setup,
    (receivers, more): (&mut [Receiver], &mut [(Ports, Vec<Receiver>)]),
    warnings: &mut Vec<String>,
) -> anyhow::Result<Option<Interface>> {
    let Some(config) = &setup.config.interface else { return Ok(None) };
    setup.check_overlay()?;
    let (key, (ipv4, refusal)) = (setup.identity.public(), setup.ipv4());
    let workers = setup.config.data.workers;
    let mut interface = Interface::open(config, workers, setup.overlay(), &key, ipv4)?;
    let all = more.iter_mut().flat_map(|(_, receivers)| receivers).chain(receivers);
    all.for_each(|receiver| receiver.set_own_interface(interface.number()));
    if let Some(refusal) = refusal {
        if let Some(own) = setup.authority.as_ref().and_then(Authority::own_ipv4) {
            interface.decline(own);
        }
        warnings.push(refusal);
    }
    Ok(Some(interface))
}

/// The IPv4 address that this node's interface has, if it has one.
pub(crate) fn own_ipv4(setup: &Setup) -> Option<Ipv4Addr> {
    setup.ipv4().0
}

/// Readies the kernel for addresses that hop. A node that lives as long as one command leaves the
/// prefix to the daemon. `warnings` gets what the operator should know.
fn open_hop(
    setup: &Setup,
    options: &Options,
    ports: (&Ports, &[(Ports, Vec<Receiver>)]),
    warnings: &mut Vec<String>,
) -> anyhow::Result<Option<Hopping>> {
    if !options.daemon {
        return Ok(None);
    }
    let hopping = Hopping::open(&setup.config, ports)?;
    warnings.extend(Hopping::unreached(&setup.config, &setup.hosts));
    Ok(hopping)
}

/// Opens the responder for names, and tells the system of it, in a process that becomes `user`
/// later; `warnings` gets what the operator should know.
fn open_responder(
    config: &Config,
    (interface, user): (&Option<Interface>, &Option<nix::unistd::User>),
    warnings: &mut Vec<String>,
) -> anyhow::Result<Option<(dns::Responder, Option<dns::Registration>)>> {
    let (Some(names), Some(interface)) = (&config.names, interface) else { return Ok(None) };
    let becomes_other = user.as_ref().is_some_and(|user| !user.uid.is_root());
    let stays_root = nix::unistd::geteuid().is_root() && !becomes_other;
    let listen = names.listen.0.0;
    let responder = dns::Responder::open(listen, names.domain.as_str())?;
    let zones: Vec<String> = interface.networks().iter().flat_map(dns::reverse_zones).collect();
    let registration = dns::register(names, listen, (interface.name(), stays_root), &zones);
    let registration = registration.unwrap_or_else(|why| {
        warnings.push(why);
        None
    });
    Ok(Some((responder, registration)))
}

/// Logs at the start the warnings that the status shows later, without names.
fn log_warnings(
    (warnings, config): (&[String], &Config),
    authority: Option<&Authority>,
    clock: Clock,
) {
    let of_members = authority.iter().flat_map(|a| a.unnamed_warnings(clock.now()));
    let of_files = warnings.iter().map(|warning| unnamed(warning, config));
    for warning in of_files.chain(of_members) {
        tracing::warn!("{warning}");
    }
}

/// Begins to hear of changes of the interface, and to answer names.
fn serve_interface(
    responder: Option<(dns::Responder, Option<dns::Registration>)>,
    interface: Option<&mut Interface>,
) -> anyhow::Result<()> {
    let Some(interface) = interface else { return Ok(()) };
    interface.watch()?;
    let Some((responder, registration)) = responder else { return Ok(()) };
    let names = dns::Names::default();
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
    config: &Config,
    commands: std::sync::mpsc::SyncSender<FromControl>,
    waker: &Arc<Waker>,
    options: &Options,
    user: Option<&nix::unistd::User>,
) -> anyhow::Result<Server> {
    let number = |key: &str, group: &Option<String>| {
        let found = group.as_ref().map(|name| privileges::find_group(key, name)).transpose();
        found.map(|group| group.map(|group| group.gid.as_raw()))
    };
    let group = number("control_group", &config.node.control_group)?;
    let registrars = number("registrar_group", &config.node.registrar_group)?;
    let ring = waker.clone();
    let wake: Wake = Arc::new(move || ring.wake());
    let mut server = Server::new(commands, wake, group);
    if options.listen {
        let path = config.control_socket();
        // The node removes the socket as this user when it stops, so that user gets the folder.
        let user = user.map(|user| (user.uid, user.gid));
        let owner = Owner { user, group: None };
        server.bind(&path, Some(owner)).context("can't open the control socket")?;
        if let Some(group) = registrars {
            let narrow = server.bind_narrow(&config.registrar_socket(), Some(owner), group);
            narrow.context("can't open the registrar's socket")?;
        }
    }
    Ok(server)
}
