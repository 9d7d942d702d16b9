//! The process: opens what it needs, gives up every privilege, and serves newcomers until it is
//! told to stop.

mod upkeep;

use std::io;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr, UdpSocket};
use std::os::fd::AsFd;
use std::sync::Arc;
use std::sync::mpsc::{Receiver, sync_channel};
use std::time::Duration;

use anyhow::{Context, bail};
use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
use nix::sys::signal::{SigSet, Signal};
use nix::sys::signalfd::{SfdFlags, SignalFd};
use shoal_crypto::PublicKey;
use shoal_daemon::config::keys;
use shoal_daemon::control::api::{Command, ControlReply, LedgerEnd};
use shoal_daemon::control::log::NodeLog;
use shoal_daemon::control::socket::{ClientMessage, ControlServer, SocketOwner, Wake, check_free};
use shoal_daemon::files::reading;
use shoal_daemon::net::resolve::route_address;
use shoal_daemon::notify::notify;
use shoal_daemon::privileges;
use shoal_daemon::worker::clock::{BootClock, unix_ms};
use shoal_daemon::worker::wake::{Waker, WakingInbox, channel};
use shoal_directory::{List, MandateId, Register, SIZE_MAX};
use shoal_joining::{Desk, DeskConfig, DeskOutput};
use shoal_wire::Time;

use crate::answers::{self, AnswerContext};
use crate::config::RegistrarConfig;
use crate::follow::{ControlClient, Follower, NodeUpdate};
use crate::ledger::{LedgerFile, LedgerHistory};
use crate::newest::ListKeeper;
use crate::secrets::SecretKeeper;
use upkeep::RegistrarUpkeep;

/// Requests of the owner that may wait.
const COMMANDS: usize = 64;
/// Items from the node that may wait.
const LISTS: usize = 2;
/// Datagrams that are read from one socket before the others.
const BATCH: usize = 64;
/// Longest datagram; longer ones are cut, and count as `bad_size`.
const DATAGRAM_MAX: usize = 1_500;
/// Longest wait for the first look at the node, which may be away.
const FIRST_LOOK: Duration = Duration::from_secs(2);
/// Time after its start in which a registrar signs nothing, unless a neighbour of the node has told
/// what it knows. Neighbours do so within seconds.
const EARLY: Duration = Duration::from_secs(30);
/// Interval between writes of the ledger's note, if nothing else happens.
const TOUCH_EVERY: Duration = Duration::from_secs(10);
/// Receive buffer asked of the kernel per socket, in bytes.
const RECEIVE_BUFFER: usize = 1 << 20;

/// Runs a registrar until SIGTERM or SIGINT.
///
/// # Errors
///
/// Something that it needs is missing or can't be used, or a privilege can't be given up.
pub fn run(config: RegistrarConfig, log: NodeLog) -> anyhow::Result<()> {
    let mut process = RegistrarProcess::open(config, log)?;
    notify("READY=1");
    tracing::info!("ready");
    let ended = process.serve();
    tracing::info!("stopped");
    ended
}

struct RegistrarProcess {
    config: RegistrarConfig,
    desk: Desk<LedgerFile>,
    public_key: PublicKey,
    sockets: Vec<UdpSocket>,
    listen: Vec<SocketAddr>,
    clock: BootClock,
    waker: Arc<Waker>,
    control: Receiver<ClientMessage>,
    _server: ControlServer,
    signals: SignalFd,
    news: WakingInbox<NodeUpdate>,
    secrets: SecretKeeper,
    newest: ListKeeper,
    follower: Follower,
    bytes_out: u64,
    /// Last state told to the follower: steps, list version, true if it asks for a secret, length
    /// of the ledger. The node is to keep the end of a ledger of that length.
    told: (u64, u64, bool, Option<u64>),
    /// True if the ledger had the end that the node keeps; none before the comparison.
    compared: Option<bool>,
    /// Steps of other registrars that the follower was told of.
    told_learnt: Vec<(MandateId, u64)>,
    /// Logged reason why the ledger may not be the newest one.
    said_doubt: Option<String>,
    /// Time from which the registrar signs, even if no neighbour has told what it knows.
    signs_at: Time,
    /// Time of the next write of the ledger's note.
    touch_at: Time,
    upkeep: RegistrarUpkeep,
    /// Logged fault of the desk.
    said_fault: Option<String>,
    log: NodeLog,
    /// True if the log says that somebody floods the door.
    said_flood: bool,
    /// True after [`Command::Stop`].
    told_to_stop: bool,
}

impl RegistrarProcess {
    fn open(config: RegistrarConfig, log: NodeLog) -> anyhow::Result<RegistrarProcess> {
        let socket = config.path(&config.control_socket);
        if check_free(&socket).is_err() {
            let socket = socket.display();
            bail!("{socket}: a registrar runs here already: see `shoal registrar status`");
        }
        let user = config.user.as_ref().map(|name| privileges::find_user(name)).transpose()?;
        let drops = user.as_ref().is_some_and(|user| !user.uid.is_root());
        let mut warnings = privileges::guard_memory(drops)?;
        let signals = take_signals()?;
        let (sockets, listen) = open_sockets(&config.listen)?;
        let (clock, waker) = (BootClock::new(), Waker::new().context("can't make a descriptor")?);
        let (commands, control) = sync_channel(COMMANDS);
        let mut server = open_control(&config, commands, &waker, user.as_ref())?;
        if let Some(user) = &user {
            privileges::become_user(user)?;
        }
        warnings.extend(privileges::seal().context("can't give up rights")?);
        log.queue.start().context("can't start the thread of the log")?;
        // Files are read as the final user, so that one that can't be read later is found here.
        let (mut desk, public_key, mut secrets, past) = open_desk(&config, clock.now())?;
        let signs_at = clock.now() + if past.is_recent { Duration::ZERO } else { EARLY };
        secrets.choose(&mut desk, clock.now());
        server.start().context("can't serve the control socket")?;
        let (outlet, news) = channel(LISTS, &waker);
        let node = ControlClient::new(&config.path(&config.node_socket));
        let follower = Follower::start(node, config.authority()?, outlet)?;
        warnings.extend(config.warnings());
        // A warning may name a folder. Nothing else in the log names anybody.
        warnings.iter().for_each(|warning| tracing::warn!("{warning}"));
        let newest = ListKeeper::new(config.path(&config.list_file));
        let (bytes_out, told) = (0, (u64::MAX, 0, false, None));
        let mut process = RegistrarProcess {
            config,
            desk,
            public_key,
            sockets,
            listen,
            clock,
            waker,
            control,
            _server: server,
            signals,
            news,
            secrets,
            newest,
            follower,
            bytes_out,
            told,
            // Without a note the ledger counts, whatever end the node keeps.
            compared: (!past.is_noted).then_some(true),
            told_learnt: Vec::new(),
            said_doubt: None,
            signs_at,
            touch_at: Time::ZERO,
            upkeep: RegistrarUpkeep::default(),
            said_fault: None,
            log,
            said_flood: false,
            told_to_stop: false,
        };
        // A ledger older than the node's knowledge must be found before anything is signed.
        process.tell_follower();
        process.follower.first_look(FIRST_LOOK);
        process.note_node();
        Ok(process)
    }

    fn at(&self) -> (Time, u64) {
        (self.clock.now(), unix_ms() / 1_000)
    }

    fn serve(&mut self) -> anyhow::Result<()> {
        loop {
            self.tell_follower();
            let (ready, told_to_stop, woken) = self.wait()?;
            if told_to_stop {
                return Ok(());
            }
            self.secrets.handle_timeout(self.clock.now());
            self.newest.handle_timeout(self.clock.now());
            self.touch();
            self.note_node();
            self.follow();
            for (socket, _) in ready.iter().enumerate().filter(|(_, ready)| **ready) {
                self.receive(socket);
            }
            if self.waker.answer(woken) {
                while let Ok(message) = self.control.try_recv() {
                    self.answer(message);
                }
                if self.told_to_stop {
                    return Ok(());
                }
                while let Some(news) = self.news.take() {
                    match news {
                        NodeUpdate::List(list) => self.take_list(*list),
                        NodeUpdate::Steps(steps) => self.take_steps(&steps),
                        NodeUpdate::Secret(secret) => {
                            let now = self.clock.now();
                            self.secrets.take(secret, &mut self.desk, now);
                        }
                    }
                }
            }
            self.state_endpoints();
            self.note_fault();
            self.note_flood();
        }
    }

    /// Logs once when somebody floods the door, and once when that ends.
    fn note_flood(&mut self) {
        let flood = self.desk.flood(self.clock.now());
        match flood {
            Some(count) if !self.said_flood => tracing::warn!("{}", answers::flooded(count)),
            None if self.said_flood => tracing::info!("the flood of the door has ended"),
            _ => {}
        }
        self.said_flood = flood.is_some();
    }

    /// Logs a fault of the registrar's own once, since newcomers and members are refused for it.
    fn note_fault(&mut self) {
        let now = self.at();
        let fault = answers::fault(&self.desk, &self.config, now);
        if fault == self.said_fault {
            return;
        }
        match &fault {
            Some(fault) => tracing::error!("{fault}"),
            None => tracing::info!("the registrar serves requests again"),
        }
        self.said_fault = fault;
    }

    /// Waits for something to do. Returns the sockets that can be read, true to stop, and true if
    /// another thread woke this one.
    fn wait(&self) -> anyhow::Result<(Vec<bool>, bool, bool)> {
        let watched = |fd| PollFd::new(fd, PollFlags::POLLIN);
        let mut fds: Vec<_> = self.sockets.iter().map(|s| watched(s.as_fd())).collect();
        fds.push(watched(self.signals.as_fd()));
        fds.push(watched(self.waker.fd()));
        match poll(&mut fds, self.patience()) {
            Ok(_) | Err(nix::Error::EINTR) => {}
            Err(e) => return Err(e).context("can't wait for datagrams"),
        }
        let is = |fd: &PollFd<'_>| fd.any().unwrap_or(false);
        let mut ready: Vec<bool> = fds.iter().map(is).collect();
        let woken = ready.pop().unwrap_or(false);
        let stop =
            ready.pop().unwrap_or(false) && matches!(self.signals.read_signal(), Ok(Some(_)));
        Ok((ready, stop, woken))
    }

    /// Longest wait: until the next timer.
    fn patience(&self) -> PollTimeout {
        let next = [self.secrets.poll_timeout(), self.newest.poll_timeout()];
        let next = next.into_iter().chain([Some(self.touch_at), Some(self.upkeep.follow_at)]);
        let Some(next) = next.flatten().min() else { return PollTimeout::NONE };
        let ms = next.since(self.clock.now()).as_nanos().div_ceil(1_000_000);
        PollTimeout::try_from(ms).unwrap_or(PollTimeout::MAX)
    }

    fn receive(&mut self, socket: usize) {
        let mut buffer = [0; DATAGRAM_MAX];
        for _ in 0..BATCH {
            // An error is that of an earlier datagram, or says that none is left.
            let Ok((len, from)) = self.sockets[socket].recv_from(&mut buffer) else { return };
            let at = self.at();
            // The desk counts datagrams without effect.
            let _dropped = self.desk.handle_datagram(at, from, &mut buffer[..len]);
            self.send(socket);
        }
    }

    /// Does what the desk asks for. Answers leave through the socket that was called.
    fn send(&mut self, socket: usize) {
        while let Some(output) = self.desk.poll_output() {
            match output {
                DeskOutput::Send(to, bytes) => {
                    // A datagram without room in the kernel is lost, as any datagram may be.
                    let sent = self.sockets.get(socket).map(|s| s.send_to(&bytes, to));
                    self.bytes_out += sent.and_then(Result::ok).unwrap_or_default() as u64;
                }
                DeskOutput::Try(to, bytes) => {
                    // The desk sends another nonce if this one is lost.
                    self.bytes_out += try_endpoint(to, &bytes).unwrap_or_default() as u64;
                }
                // The follower gives the node what it lacks.
                DeskOutput::Publish(_) => tracing::info!("members changed"),
            }
        }
    }

    fn answer(&mut self, message: ClientMessage) {
        let ClientMessage::Request(request) = message else { return };
        if request.command == Command::Stop {
            tracing::info!("stopping");
            self.told_to_stop = true;
            return request.reply(ControlReply::Ok);
        }
        let at = self.at();
        let faults = [self.secrets.fault(), self.newest.fault()];
        let faults = faults.into_iter().flatten().map(str::to_owned).collect();
        let is_early = self.signs_at > at.0;
        let endpoints_fault = self.upkeep.endpoints_fault.clone();
        let RegistrarProcess { desk, config, listen, follower, bytes_out, public_key, log, .. } =
            self;
        let now = AnswerContext {
            desk,
            config,
            listen,
            node: follower.standing(),
            is_early,
            faults,
            endpoints_fault: endpoints_fault.as_deref(),
            log,
            bytes_out: *bytes_out,
            public_key: *public_key,
            at,
        };
        let reply = now.answer(&request.command);
        request.reply(reply);
        self.send(usize::MAX);
    }

    /// Puts a list of the node in force, and keeps it for the next start.
    fn take_list(&mut self, list: List) {
        let (bytes, version) = (list.shared(), list.content().version);
        match self.desk.set_list(list, self.at()) {
            Ok(false) => {}
            Ok(true) => {
                tracing::info!(version, "the authority's list is in force");
                self.secrets.choose(&mut self.desk, self.clock.now());
                self.newest.keep(bytes, self.clock.now());
            }
            Err(why) => tracing::warn!("the node's list is refused: {why}"),
        }
    }

    /// Applies steps of other registrars. One of them may make this registrar: then the ledger may
    /// lack steps that it signed before, so the node's word is waited for as after a start.
    fn take_steps(&mut self, steps: &[Vec<u8>]) {
        let (at, before) = (self.at(), self.desk.register().map(Register::id));
        steps.iter().for_each(|step| self.desk.learn(step, at));
        let now = self.desk.register().map(Register::id);
        if now.is_some() && now != before {
            self.signs_at = self.signs_at.max(at.0 + EARLY);
            self.note_node();
        }
    }

    /// Tells the desk what the node has.
    fn note_node(&mut self) {
        let standing = self.follower.standing();
        // A look for another mandate says nothing about the present one.
        let is_looked = standing.mandate == self.desk.register().map(Register::id);
        let has_caught_up = standing.has_caught_up && is_looked;
        let is_early = self.clock.now() < self.signs_at && !has_caught_up;
        self.desk.set_early(is_early);
        if let Some((mandate, has)) = standing.mandate.zip(standing.node_has) {
            self.desk.set_known(mandate, has.steps, has.head);
        }
        if standing.mandate.is_some() && self.compared.is_none() {
            let (disk, kept) = (self.desk.disk_mut(), standing.ledger);
            let (has, older) = (disk.len(), kept.filter(|end| !disk.had(end.len, &end.sum)));
            self.compared = Some(older.is_none());
            if let Some(older) = older {
                let len = |bytes: u64| usize::try_from(bytes).unwrap_or(usize::MAX);
                self.desk.set_older(len(has), len(older.len));
            }
        }
        self.desk.set_refused(standing.refused);
        let doubt = self.desk.doubt().map(|doubt| doubt.to_string());
        self.desk.disk_mut().settle(!is_early && doubt.is_none());
        if let Some(doubt) = doubt.as_ref().filter(|_| self.said_doubt.is_none()) {
            tracing::error!("{doubt}");
        }
        self.said_doubt = doubt;
    }

    /// Notes at intervals that the ledger is in use.
    fn touch(&mut self) {
        let now = self.clock.now();
        if self.touch_at <= now {
            self.desk.disk_mut().touch();
            self.touch_at = now + TOUCH_EVERY;
        }
    }

    fn tell_follower(&mut self) {
        let register = self.desk.register();
        let asks = self.secrets.asks(&self.desk);
        let mandate = register.map(Register::id);
        let end = self.desk.disk().end().filter(|_| self.compared == Some(true));
        let steps = register.map_or(0, Register::len);
        let len = end.as_ref().map(|(len, _)| *len);
        let now = (steps, self.desk.list_version(), asks.is_some(), len);
        if now != self.told || !self.desk.learnt().eq(self.told_learnt.iter().copied()) {
            let steps = Arc::new(register.map(Register::steps).unwrap_or_default().to_vec());
            let what = (now.1, mandate);
            let end = mandate.zip(end).map(|(mandate, (len, sum))| {
                let mandate = mandate.to_string();
                LedgerEnd { mandate, len, sum }
            });
            self.told = now;
            self.told_learnt = self.desk.learnt().collect();
            let learnt = self.told_learnt.iter().map(|(id, steps)| (id.to_string(), *steps));
            self.follower.set(what, (steps, learnt.collect()), asks, end);
        }
    }
}

/// Sends a datagram to the endpoint of a router, from a port of its own. A firewall that lets in
/// only answers of the door must not pass for an open port.
fn try_endpoint(to: SocketAddr, bytes: &[u8]) -> io::Result<usize> {
    let any: IpAddr = match to.is_ipv4() {
        true => Ipv4Addr::UNSPECIFIED.into(),
        false => Ipv6Addr::UNSPECIFIED.into(),
    };
    let socket = UdpSocket::bind((any, 0))?;
    socket.set_nonblocking(true)?;
    socket.send_to(bytes, to)
}

type OpenedDesk = (Desk<LedgerFile>, PublicKey, SecretKeeper, LedgerHistory);

fn open_desk(config: &RegistrarConfig, now: Time) -> anyhow::Result<OpenedDesk> {
    let identity = keys::load_identity(&config.path(&config.key_file))?;
    let authority = config.authority()?;
    let list_file = config.path(&config.list_file);
    let at = || list_file.display().to_string();
    let list = reading::read(&list_file, SIZE_MAX as u64).with_context(at)?;
    let list = List::open(&authority, &list).with_context(at)?;
    let public = identity.public();
    let secrets = SecretKeeper::load(config)?;
    let doors_before = config.doors_before().into_iter().filter(|file| file.exists());
    let doors_before = doors_before.map(|file| keys::load_door(&file, None));
    let desk = DeskConfig {
        door: keys::load_door(&config.path(&config.door_file), None)?,
        doors_before: doors_before.collect::<Result<_, _>>()?,
        network_secret: secrets.own(),
        authority,
        endpoints: config.endpoints(route_address),
        membership: config.membership(),
        staleness_max: config.staleness_max(),
        identity,
    };
    let (file, ledger, past) = LedgerFile::open(&config.path(&config.ledger_file))?;
    let seed = keys::os_random().context("the system gives no random bytes")?;
    let mut desk = Desk::open(desk, list, ledger, file, seed, (now, unix_ms() / 1_000))?;
    if let Some((has, had)) = past.older {
        desk.set_older(has, had);
    }
    Ok((desk, public, secrets, past))
}

fn open_sockets(listen: &[SocketAddr]) -> anyhow::Result<(Vec<UdpSocket>, Vec<SocketAddr>)> {
    let mut sockets = Vec::new();
    for at in listen {
        let socket = UdpSocket::bind(at).with_context(|| format!("listen: {at}"))?;
        socket.set_nonblocking(true)?;
        // Best effort: with less, more datagrams of a burst are lost.
        let _granted = nix::sys::socket::setsockopt(
            &socket,
            nix::sys::socket::sockopt::RcvBuf,
            &RECEIVE_BUFFER,
        );
        sockets.push(socket);
    }
    let listen = sockets.iter().map(UdpSocket::local_addr).collect::<io::Result<_>>()?;
    Ok((sockets, listen))
}

fn open_control(
    config: &RegistrarConfig,
    commands: std::sync::mpsc::SyncSender<ClientMessage>,
    waker: &Arc<Waker>,
    user: Option<&nix::unistd::User>,
) -> anyhow::Result<ControlServer> {
    let group = config.control_group.as_ref();
    let group = group.map(|name| privileges::find_group("control_group", name)).transpose()?;
    let ring = waker.clone();
    let wake: Wake = Arc::new(move || ring.wake());
    let mut server = ControlServer::new(commands, wake, group.map(|group| group.gid.as_raw()));
    let owner = SocketOwner { user: user.map(|user| (user.uid, user.gid)), group: None };
    let path = config.path(&config.control_socket);
    server.bind(&path, Some(owner)).context("can't open the control socket")?;
    Ok(server)
}

fn take_signals() -> anyhow::Result<SignalFd> {
    let mut set = SigSet::empty();
    [Signal::SIGTERM, Signal::SIGINT].into_iter().for_each(|signal| set.add(signal));
    set.thread_block().context("can't block signals")?;
    privileges::survive_full_files()?;
    SignalFd::with_flags(&set, SfdFlags::SFD_NONBLOCK | SfdFlags::SFD_CLOEXEC)
        .context("can't read signals")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_endpoint_is_tried_from_a_port_of_its_own_in_either_ip_family() {
        for ip in [IpAddr::from(Ipv4Addr::LOCALHOST), Ipv6Addr::LOCALHOST.into()] {
            // A machine may lack IPv6.
            let Ok(router) = UdpSocket::bind((ip, 0)) else { continue };
            let door = UdpSocket::bind((ip, 0)).unwrap();
            router.set_read_timeout(Some(Duration::from_secs(5))).unwrap();
            let endpoint = router.local_addr().unwrap();
            assert_eq!(try_endpoint(endpoint, b"nonce").unwrap(), 5);
            let mut bytes = [0; 9];
            let (len, from) = router.recv_from(&mut bytes).unwrap();
            assert_eq!(&bytes[..len], b"nonce");
            assert_ne!(from.port(), door.local_addr().unwrap().port());
        }
    }
}
