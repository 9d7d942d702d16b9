//! The control socket, by which `shoal status`, `shoal send` and the lab command a running node.
//!
//! In: connections on a Unix stream socket, frames of [`crate::control::api`] with descriptors.
//! Out: one [`ControlRequest`] per frame into the node's bounded queue, and the node's answers to
//! each program.
//!
//! ```text
//! connection -> credentials checked -> reader thread -> SyncSender<FromControl> -> the node
//!            <- writer thread       <- bounded queue <- Client::event, Request::reply
//! ```
//!
//! Invariant: the node never waits for a program. A program that doesn't read its events loses
//! them; the server reports the loss and closes the connection. A program has one command under way
//! at a time. Connections, frames and descriptors are bounded. Idle connections make room for
//! others. Only root, the node's own user and the control group may connect. A second socket, for
//! the registrar's user, takes only commands of a registrar.

mod client;
mod descriptors;
mod frame;
mod handed;
mod peer;
mod place;
mod seats;

use std::io;
use std::os::fd::AsFd;
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::mpsc::{Receiver, SyncSender, TrySendError, sync_channel};
use std::thread::JoinHandle;
use std::time::Duration;

use nix::unistd::Gid;

use crate::control::api::{
    Command, CommandFrame, ControlEvent, ControlReply, ErrorCode, NodeFrame, NodeFrameBody,
    PROTOCOL,
};

pub use client::{CallError, ConnectError, ControlConnection};
pub use frame::{FrameError, read_frame, write_frame};
pub use handed::HandedFile;
use peer::PeerUser;
use place::{FileKind, SocketLocation};
pub use place::{SocketOwner, check_place};
use seats::Seats;
pub use seats::{KEPT, MAX_CLIENTS};

/// Most events that may wait for one program.
const QUEUE: usize = 1_024;
/// Error of a node whose control socket belongs to another running node.
pub const TAKEN: &str = "another node answers there already: this node may be running, see \
                         `shoal status`";
/// Answer to a command that the registrar's socket does not take.
const NARROW: &str = "this socket is the registrar's, and takes only commands of a registrar: \
                      command the node at its control socket";
/// Answers to users who may not use a socket.
const DENIED: &str = "only root, the node's user and its control group may command this node: \
                      repeat with sudo, or see [node] control_group in its node.toml";
const DENIED_NARROW: &str = "only root, the node's user and the registrar's group may ask here: \
                             see [node] registrar_group in its node.toml";
/// Longest time that a program may take to read one frame.
const WRITE_TIMEOUT: Duration = Duration::from_secs(10);
/// Stack of the reader and writer threads, which hold nothing large on it.
const STACK: usize = 256 << 10;

/// Number of a connection, unique while the node runs.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct ClientId(pub u64);

/// Messages of the control threads to the node.
#[derive(Debug)]
pub enum ClientMessage {
    Request(ControlRequest),
    /// A connection ended; its inbox and its transfers end with it.
    Closed(ClientId),
}

/// A command of a program. Dropping it without an answer answers with [`ErrorCode::Internal`].
#[derive(Debug)]
pub struct ControlRequest {
    /// Program that asks; events of what the command starts go there.
    pub client: Client,
    pub command: Command,
    /// Descriptors that came with the command, in order.
    pub descriptors: Vec<HandedFile>,
    id: Option<u64>,
}

impl ControlRequest {
    /// Answers. Never blocks.
    pub fn reply(mut self, reply: ControlReply) {
        self.answer(reply);
    }

    /// Turns the request into a pending answer, for a result that is not known yet.
    pub fn defer(mut self) -> PendingReply {
        PendingReply { client: self.client.clone(), id: self.id.take() }
    }

    fn answer(&mut self, reply: ControlReply) {
        if let Some(id) = self.id.take() {
            self.client.push(NodeFrameBody::Reply { id, reply });
        }
    }
}

impl Drop for ControlRequest {
    fn drop(&mut self) {
        self.answer(ControlReply::error(ErrorCode::Internal, "the node gave no answer"));
    }
}

/// An answer that is due later (a ping under way). Dropping it answers [`ErrorCode::Internal`].
#[derive(Debug)]
pub struct PendingReply {
    client: Client,
    id: Option<u64>,
}

impl PendingReply {
    /// Answers. Never blocks.
    pub fn reply(mut self, reply: ControlReply) {
        if let Some(id) = self.id.take() {
            self.client.push(NodeFrameBody::Reply { id, reply });
        }
    }

    pub fn client(&self) -> ClientId {
        self.client.id()
    }

    /// A pending answer that a test reads itself.
    #[cfg(test)]
    pub(crate) fn of_test() -> (PendingReply, Receiver<NodeFrameBody>) {
        let (queue, replies) = sync_channel(1);
        let shared = ClientShared { id: ClientId(1), queue, missed: AtomicU64::new(0) };
        (PendingReply { client: Client(Arc::new(shared)), id: Some(1) }, replies)
    }
}

impl Drop for PendingReply {
    fn drop(&mut self) {
        if let Some(id) = self.id.take() {
            let reply = ControlReply::error(ErrorCode::Internal, "the node gave no answer");
            self.client.push(NodeFrameBody::Reply { id, reply });
        }
    }
}

/// Handle of a connected program: cheap to clone, never blocks.
#[derive(Clone, Debug)]
pub struct Client(Arc<ClientShared>);

#[derive(Debug)]
struct ClientShared {
    id: ClientId,
    queue: SyncSender<NodeFrameBody>,
    missed: AtomicU64,
}

impl Client {
    pub fn id(&self) -> ClientId {
        self.0.id
    }

    /// Queues an event. False when the program is gone or too slow. Then the connection ends, and
    /// [`ClientMessage::Closed`] follows.
    pub fn event(&self, event: ControlEvent) -> bool {
        self.push(NodeFrameBody::Event(event))
    }

    fn push(&self, body: NodeFrameBody) -> bool {
        // After the first loss nothing more is queued: the writer reports it and closes.
        if self.0.missed.load(Ordering::Relaxed) > 0 {
            self.0.missed.fetch_add(1, Ordering::Relaxed);
            return false;
        }
        match self.0.queue.try_send(body) {
            Ok(()) => true,
            Err(TrySendError::Full(_)) => {
                self.0.missed.fetch_add(1, Ordering::Relaxed);
                false
            }
            Err(TrySendError::Disconnected(_)) => false,
        }
    }
}

/// Called after each queued [`ClientMessage`], to wake a node that sleeps in poll.
pub type Wake = Arc<dyn Fn() + Send + Sync>;

/// The running server. Dropping it closes every connection and removes the socket.
pub struct ControlServer {
    shared: Arc<ControlShared>,
    listening: Vec<ControlListener>,
}

struct ControlListener {
    access: SocketAccess,
    place: SocketLocation,
    listener: UnixListener,
    thread: Option<JoinHandle<()>>,
}

/// Access to a socket for users other than root and the node's own, and the commands that it takes.
#[derive(Clone, Copy, Debug, Default)]
struct SocketAccess {
    /// Number of a group.
    group: Option<u32>,
    /// True if only commands of a registrar are answered.
    is_narrow: bool,
}

struct ControlShared {
    requests: SyncSender<ClientMessage>,
    wake: Wake,
    group: Option<u32>,
    stopping: AtomicBool,
    next_id: AtomicU64,
    seats: Seats,
}

impl ControlServer {
    /// A server without a socket; see [`ControlServer::listen`] and [`ControlServer::adopt`].
    /// `requests` should hold a few dozen entries. `group` is the number of the control group.
    pub fn new(
        requests: SyncSender<ClientMessage>,
        wake: Wake,
        group: Option<u32>,
    ) -> ControlServer {
        let shared = ControlShared {
            requests,
            wake,
            group,
            stopping: AtomicBool::new(false),
            next_id: AtomicU64::new(1),
            seats: Seats::default(),
        };
        ControlServer { shared: Arc::new(shared), listening: Vec::new() }
    }

    /// Opens the socket at `path` (mode 0660 with a control group, 0600 without). Replaces a stale
    /// socket of a dead node, but not a live one. With `owner`, makes a missing folder, and gives
    /// both to the owner. Programs may connect at once; they are served after
    /// [`ControlServer::start`].
    pub fn bind(&mut self, path: &Path, owner: Option<SocketOwner>) -> io::Result<()> {
        let access = SocketAccess { group: self.shared.group, is_narrow: false };
        self.bind_for(path, owner, access)
    }

    /// Opens a socket like [`ControlServer::bind`], but for members of `group` and for commands of
    /// a registrar only (`Command::is_of_registrar`).
    pub fn bind_narrow(
        &mut self,
        path: &Path,
        owner: Option<SocketOwner>,
        group: u32,
    ) -> io::Result<()> {
        self.bind_for(path, owner, SocketAccess { group: Some(group), is_narrow: true })
    }

    fn bind_for(
        &mut self,
        path: &Path,
        owner: Option<SocketOwner>,
        access: SocketAccess,
    ) -> io::Result<()> {
        let group = access.group.map(Gid::from_raw);
        let user = owner.and_then(|owner| owner.user);
        let place = SocketLocation::open(path, owner)?;
        let listener = bind(path, &place, SocketOwner { user, group })?;
        self.listening.push(ControlListener { access, place, listener, thread: None });
        Ok(())
    }

    /// Begins to accept connections. The accepting thread has the rights that the caller has at
    /// this time.
    pub fn start(&mut self) -> io::Result<()> {
        for listening in &mut self.listening {
            let (accepting, access) = (listening.listener.try_clone()?, listening.access);
            let shared = self.shared.clone();
            let thread = std::thread::Builder::new()
                .name("control".into())
                .stack_size(STACK)
                .spawn(move || accept_loop(&shared, &accepting, access))?;
            listening.thread = Some(thread);
        }
        Ok(())
    }

    /// [`ControlServer::bind`] in an existing folder, and [`ControlServer::start`].
    pub fn listen(&mut self, path: &Path) -> io::Result<()> {
        self.bind(path, None)?;
        self.start()
    }

    /// Serves a connection that is trusted because this process made it (a socket pair).
    pub fn adopt(&self, stream: UnixStream) -> io::Result<()> {
        serve(&self.shared, (None, SocketAccess::default()), stream)
    }

    /// Number of connections.
    pub fn clients(&self) -> usize {
        self.shared.seats.len()
    }
}

impl Drop for ControlServer {
    fn drop(&mut self) {
        self.shared.stopping.store(true, Ordering::SeqCst);
        for ControlListener { place, listener, thread, .. } in self.listening.drain(..) {
            // Wakes accept(2), which then fails.
            let _ = nix::sys::socket::shutdown(
                std::os::fd::AsRawFd::as_raw_fd(&listener),
                nix::sys::socket::Shutdown::Both,
            );
            let _ = thread.map(JoinHandle::join);
            let _ = place.remove();
        }
        self.shared.seats.close();
    }
}

/// Checks that nobody answers at the control socket `path`. Called before anything else is opened:
/// a second process of one configuration would find every resource in use, and this is the reason.
///
/// # Errors
///
/// Somebody answers.
pub fn check_free(path: &Path) -> io::Result<()> {
    match UnixStream::connect(path) {
        Ok(_) => Err(io::Error::other(format!("{}: {TAKEN}", path.display()))),
        Err(_) => Ok(()),
    }
}

fn bind(path: &Path, place: &SocketLocation, owner: SocketOwner) -> io::Result<UnixListener> {
    use nix::sys::socket::{self, AddressFamily, Backlog, SockFlag, SockType, UnixAddr};
    let said = |text: String| io::Error::other(format!("{}: {text}", path.display()));
    // Programs use the whole path, so the whole path must fit.
    UnixAddr::new(path).map_err(|_| said("too long for a socket".into()))?;
    match place.found()? {
        FileKind::Other => {
            return Err(said("exists and is no socket; remove it or choose another".into()));
        }
        FileKind::Socket if UnixStream::connect(place.address()).is_ok() => {
            return Err(said(TAKEN.into()));
        }
        FileKind::Socket => {
            place.check()?;
            place.remove().map_err(|e| said(format!("can't be replaced: {e}")))?;
        }
        FileKind::Nothing => place.check()?,
    }
    let socket =
        socket::socket(AddressFamily::Unix, SockType::Stream, SockFlag::SOCK_CLOEXEC, None)?;
    // The socket's file gets the mode that the descriptor has at bind(2), so that it is never open
    // to others.
    let mode = if owner.group.is_some() { 0o660 } else { 0o600 };
    let mode = nix::sys::stat::Mode::from_bits_truncate(mode);
    nix::sys::stat::fchmod(&socket, mode)?;
    let address = UnixAddr::new(&place.address())?;
    socket::bind(std::os::fd::AsRawFd::as_raw_fd(&socket), &address)
        .map_err(|e| said(format!("can't be opened: {e}")))?;
    place.settle(mode, owner)?;
    socket::listen(&socket, Backlog::new(16)?)?;
    Ok(UnixListener::from(socket))
}

fn accept_loop(shared: &Arc<ControlShared>, listener: &UnixListener, access: SocketAccess) {
    while !shared.stopping.load(Ordering::SeqCst) {
        let stream = match listener.accept() {
            Ok((stream, _)) => stream,
            Err(e) if e.kind() == io::ErrorKind::Interrupted => continue,
            Err(_) if shared.stopping.load(Ordering::SeqCst) => return,
            Err(e) => {
                // The likely cause is a lack of descriptors: wait for some to be freed instead of
                // spinning.
                tracing::warn!("control socket: {e}");
                std::thread::sleep(Duration::from_millis(200));
                continue;
            }
        };
        let Some(peer) = peer::may_command(&stream, access.group) else {
            let text = match access.is_narrow {
                true => DENIED_NARROW,
                false => DENIED,
            };
            turn_away(&stream, ErrorCode::Denied, text);
            continue;
        };
        if let Err(text) = shared.seats.make_room(peer) {
            turn_away(&stream, ErrorCode::Busy, text);
        } else if let Err(e) = serve(shared, (Some(peer), access), stream) {
            tracing::warn!("control socket: {e}");
        }
    }
}

/// Sends the reason and closes; never waits for the other side.
fn turn_away(stream: &UnixStream, code: ErrorCode, text: &str) {
    let body = NodeFrameBody::Reply { id: 0, reply: ControlReply::error(code, text) };
    let _ = stream.set_nonblocking(true);
    let _ = write_frame(stream, &NodeFrame { protocol: PROTOCOL, body }, &[]);
}

/// Serves a program; `peer` is none for a part of this process.
fn serve(
    shared: &Arc<ControlShared>,
    (peer, access): (Option<PeerUser>, SocketAccess),
    stream: UnixStream,
) -> io::Result<()> {
    let id = ClientId(shared.next_id.fetch_add(1, Ordering::Relaxed));
    let (queue, bodies) = sync_channel(QUEUE);
    let (written, replies) = sync_channel(1);
    let client = Client(Arc::new(ClientShared { id, queue, missed: AtomicU64::new(0) }));
    stream.set_write_timeout(Some(WRITE_TIMEOUT))?;
    let out = stream.try_clone()?;
    let watched = Arc::downgrade(&client.0);
    let seen = stream.try_clone()?;
    let thread = |name: &str| std::thread::Builder::new().name(name.into()).stack_size(STACK);
    thread("control-write").spawn(move || {
        write_loop(&out, &bodies, &written, || {
            watched.upgrade().map_or(0, |c| c.missed.load(Ordering::Relaxed))
        });
        let _ = out.shutdown(std::net::Shutdown::Both);
    })?;
    shared.seats.take(id, peer, seen);
    let ours = shared;
    let shared = shared.clone();
    let reader = thread("control-read").spawn(move || {
        read_loop(&shared, (&stream, access), &client, &replies);
        drop(client);
        let _ = stream.shutdown(std::net::Shutdown::Both);
        shared.seats.leave(id);
        let _ = shared.requests.send(ClientMessage::Closed(id));
        (shared.wake)();
    });
    reader.map(drop).inspect_err(|_| ours.seats.leave(id))
}

/// Ends when every [`Client`] handle is gone, the other side doesn't read, or events were lost.
fn write_loop(
    out: &UnixStream,
    bodies: &Receiver<NodeFrameBody>,
    written: &SyncSender<()>,
    missed: impl Fn() -> u64,
) {
    while let Ok(body) = bodies.recv() {
        let is_reply = matches!(body, NodeFrameBody::Reply { .. });
        if write_frame(out, &NodeFrame { protocol: PROTOCOL, body }, &[]).is_err() {
            return;
        }
        if is_reply {
            let _ = written.try_send(());
        }
        let missed = missed();
        if missed > 0 {
            let body = NodeFrameBody::Event(ControlEvent::TooSlow { missed });
            let _ = write_frame(out, &NodeFrame { protocol: PROTOCOL, body }, &[]);
            return;
        }
    }
}

/// Ends when the program closes or misbehaves, or the node stops.
fn read_loop(
    shared: &ControlShared,
    (stream, access): (&UnixStream, SocketAccess),
    client: &Client,
    replies: &Receiver<()>,
) {
    loop {
        let (message, descriptors): (CommandFrame, _) = match read_frame(stream.as_fd()) {
            Ok(Some(frame)) => frame,
            Ok(None) | Err(FrameError::Io(_)) => return,
            Err(e) => {
                let reply = ControlReply::error(ErrorCode::BadRequest, e.to_string());
                client.push(NodeFrameBody::Reply { id: 0, reply });
                let _ = replies.recv_timeout(WRITE_TIMEOUT);
                return;
            }
        };
        shared.seats.heard(client.id());
        let id = message.id;
        if message.protocol != PROTOCOL {
            let text = format!(
                "this node speaks control protocol {PROTOCOL}, the program speaks {}: use the \
                 `shoal` of the same release",
                message.protocol
            );
            client.push(NodeFrameBody::Reply {
                id,
                reply: ControlReply::error(ErrorCode::Protocol, text),
            });
        } else if access.is_narrow && !message.command.is_of_registrar() {
            client.push(NodeFrameBody::Reply {
                id,
                reply: ControlReply::error(ErrorCode::Denied, NARROW),
            });
        } else {
            let request = ControlRequest {
                client: client.clone(),
                command: message.command,
                descriptors: descriptors.into_iter().map(HandedFile::examine).collect(),
                id: Some(id),
            };
            if shared.requests.send(ClientMessage::Request(request)).is_err() {
                return;
            }
            (shared.wake)();
        }
        // One command at a time, so that a program can't pile up answers that it doesn't read.
        if replies.recv().is_err() {
            return;
        }
    }
}

#[cfg(test)]
mod tests;
