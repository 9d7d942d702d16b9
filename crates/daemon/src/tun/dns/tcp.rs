//! Questions by TCP (RFC 7766): each follows its length (2 bytes), several on one connection.
//!
//! Bounds: a connection has one question answered at a time, and is not read while its answer waits
//! to be sent. It ends after [`IDLE`] without a question. At [`CONNECTIONS_MAX`], a new connection
//! replaces the one with the oldest question.

use std::io::{ErrorKind, Read, Write};
use std::net::{TcpListener, TcpStream};
use std::os::fd::AsFd;
use std::sync::Weak;
use std::time::{Duration, Instant};

use arc_swap::ArcSwap;
use nix::poll::{PollFd, PollFlags, PollTimeout, poll};

use super::answer::answer;
use super::book::NameTable;
use super::{LOOK_EVERY, QUESTION_MAX};

/// Most connections at once.
const CONNECTIONS_MAX: usize = 32;
/// Time after which a connection without a whole question ends (RFC 7766 section 6.2.3).
const IDLE: Duration = Duration::from_secs(10);
/// Bytes of the length before a message.
const LENGTH: usize = 2;

struct DnsConnection {
    stream: TcpStream,
    /// Received bytes: at most one whole question and the beginning of the next.
    input: Vec<u8>,
    /// Bytes of an answer that are not sent yet.
    output: Vec<u8>,
    asked: Instant,
}

/// Answers until the node ends.
pub fn serve(listener: &TcpListener, domain: &str, names: &Weak<ArcSwap<NameTable>>) {
    let mut connections: Vec<DnsConnection> = Vec::new();
    loop {
        let (is_new, ready) = wait(listener, &connections);
        let Some(names) = names.upgrade() else { return };
        let book = names.load();
        let mut ready = ready.into_iter();
        connections.retain_mut(|connection| match ready.next() {
            Some(true) => connection.serve(&book, domain).is_ok(),
            _ => connection.asked.elapsed() < IDLE,
        });
        if is_new {
            accept(listener, &mut connections);
        }
    }
}

/// Waits for a new connection, or for a connection that can read or write.
fn wait(listener: &TcpListener, connections: &[DnsConnection]) -> (bool, Vec<bool>) {
    let mut fds = vec![PollFd::new(listener.as_fd(), PollFlags::POLLIN)];
    fds.extend(connections.iter().map(|connection| {
        let is_sending = !connection.output.is_empty();
        let events = if is_sending { PollFlags::POLLOUT } else { PollFlags::POLLIN };
        PollFd::new(connection.stream.as_fd(), events)
    }));
    let timeout = PollTimeout::try_from(LOOK_EVERY).unwrap_or(PollTimeout::MAX);
    // An error, such as a signal, means that nothing is ready.
    let _ready = poll(&mut fds, timeout);
    let is_ready = |fd: &PollFd<'_>| fd.revents().is_some_and(|events| !events.is_empty());
    (is_ready(&fds[0]), fds[1..].iter().map(is_ready).collect())
}

fn accept(listener: &TcpListener, connections: &mut Vec<DnsConnection>) {
    let Ok((stream, _)) = listener.accept() else {
        // The process has no free descriptor, for example. Others may be closed meanwhile.
        return std::thread::sleep(Duration::from_millis(50));
    };
    if stream.set_nonblocking(true).is_err() {
        return;
    }
    if connections.len() >= CONNECTIONS_MAX {
        let oldest = (0..connections.len()).min_by_key(|at| connections[*at].asked);
        if let Some(oldest) = oldest {
            connections.swap_remove(oldest);
        }
    }
    let (input, output) = (Vec::new(), Vec::new());
    connections.push(DnsConnection { stream, input, output, asked: Instant::now() });
}

/// The connection is over.
struct ConnectionClosed;

impl DnsConnection {
    /// Reads once, and sends answers as far as the socket accepts them.
    fn serve(&mut self, book: &NameTable, domain: &str) -> Result<(), ConnectionClosed> {
        self.send()?;
        self.answer_all(book, domain)?;
        if !self.output.is_empty() {
            return Ok(());
        }
        let mut buf = [0; LENGTH + QUESTION_MAX];
        match self.stream.read(&mut buf) {
            Ok(0) => return Err(ConnectionClosed),
            Ok(len) => self.input.extend_from_slice(&buf[..len]),
            Err(e) if is_for_later(e.kind()) => {}
            Err(_) => return Err(ConnectionClosed),
        }
        self.answer_all(book, domain)
    }

    /// Answers all complete questions, until an answer has to wait.
    fn answer_all(&mut self, book: &NameTable, domain: &str) -> Result<(), ConnectionClosed> {
        while self.output.is_empty() {
            let Some(question) = self.question()? else { return Ok(()) };
            self.asked = Instant::now();
            let reply = answer(book, domain, &question).ok_or(ConnectionClosed)?;
            self.output.extend_from_slice(&(reply.len() as u16).to_be_bytes());
            self.output.extend_from_slice(&reply);
            self.send()?;
        }
        Ok(())
    }

    /// Removes the next complete question from the input.
    fn question(&mut self) -> Result<Option<Vec<u8>>, ConnectionClosed> {
        let Some((length, rest)) = self.input.split_first_chunk() else { return Ok(None) };
        let len = usize::from(u16::from_be_bytes(*length));
        if len > QUESTION_MAX {
            return Err(ConnectionClosed);
        }
        let Some(question) = rest.get(..len).map(<[u8]>::to_vec) else { return Ok(None) };
        self.input.drain(..LENGTH + len);
        Ok(Some(question))
    }

    fn send(&mut self) -> Result<(), ConnectionClosed> {
        while !self.output.is_empty() {
            match self.stream.write(&self.output) {
                Ok(0) => return Err(ConnectionClosed),
                Ok(sent) => drop(self.output.drain(..sent)),
                Err(e) if is_for_later(e.kind()) => return Ok(()),
                Err(_) => return Err(ConnectionClosed),
            }
        }
        Ok(())
    }
}

fn is_for_later(kind: ErrorKind) -> bool {
    matches!(kind, ErrorKind::WouldBlock | ErrorKind::Interrupted)
}
