//! Questions by TCP (RFC 7766): each behind its length (2 bytes), several on one connection.
//!
//! Bounds: a connection is served one question at a time and read no further while an answer waits
//! to be taken; one that asks nothing for [`IDLE`] ends; where there are [`CONNECTIONS_MAX`], the
//! one that asked longest ago gives its place to a new one.

use std::io::{ErrorKind, Read, Write};
use std::net::{TcpListener, TcpStream};
use std::os::fd::AsFd;
use std::sync::Weak;
use std::time::{Duration, Instant};

use arc_swap::ArcSwap;
use nix::poll::{PollFd, PollFlags, PollTimeout, poll};

use super::answer::answer;
use super::book::Book;
use super::{LOOK_EVERY, QUESTION_MAX};

/// Connections at once.
const CONNECTIONS_MAX: usize = 32;
/// A connection without a whole question for so long ends (RFC 7766 section 6.2.3).
const IDLE: Duration = Duration::from_secs(10);
/// Bytes of the length before a message.
const LENGTH: usize = 2;

struct Connection {
    stream: TcpStream,
    /// Bytes of questions that came, at most one whole one and the beginning of the next.
    input: Vec<u8>,
    /// Bytes of an answer that are still to be sent.
    output: Vec<u8>,
    asked: Instant,
}

/// Answers until the node ends.
pub fn serve(listener: &TcpListener, domain: &str, names: &Weak<ArcSwap<Book>>) {
    let mut connections: Vec<Connection> = Vec::new();
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

/// Waits for a new connection, or for one that can go on.
fn wait(listener: &TcpListener, connections: &[Connection]) -> (bool, Vec<bool>) {
    let mut fds = vec![PollFd::new(listener.as_fd(), PollFlags::POLLIN)];
    fds.extend(connections.iter().map(|connection| {
        let is_sending = !connection.output.is_empty();
        let events = if is_sending { PollFlags::POLLOUT } else { PollFlags::POLLIN };
        PollFd::new(connection.stream.as_fd(), events)
    }));
    let timeout = PollTimeout::try_from(LOOK_EVERY).unwrap_or(PollTimeout::MAX);
    // A signal, say: nothing is ready then.
    let _ready = poll(&mut fds, timeout);
    let is_ready = |fd: &PollFd<'_>| fd.revents().is_some_and(|events| !events.is_empty());
    (is_ready(&fds[0]), fds[1..].iter().map(is_ready).collect())
}

fn accept(listener: &TcpListener, connections: &mut Vec<Connection>) {
    let Ok((stream, _)) = listener.accept() else {
        // No descriptor is left, say: others give theirs back meanwhile.
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
    connections.push(Connection { stream, input, output, asked: Instant::now() });
}

/// The connection is over.
struct Ended;

impl Connection {
    /// Takes in what came, one read of it, and sends answers as far as that goes without waiting.
    fn serve(&mut self, book: &Book, domain: &str) -> Result<(), Ended> {
        self.send()?;
        self.answer_all(book, domain)?;
        if !self.output.is_empty() {
            return Ok(());
        }
        let mut buf = [0; LENGTH + QUESTION_MAX];
        match self.stream.read(&mut buf) {
            Ok(0) => return Err(Ended),
            Ok(len) => self.input.extend_from_slice(&buf[..len]),
            Err(e) if is_for_later(e.kind()) => {}
            Err(_) => return Err(Ended),
        }
        self.answer_all(book, domain)
    }

    /// Answers the whole questions that came, until an answer has to wait.
    fn answer_all(&mut self, book: &Book, domain: &str) -> Result<(), Ended> {
        while self.output.is_empty() {
            let Some(question) = self.question()? else { return Ok(()) };
            self.asked = Instant::now();
            let reply = answer(book, domain, &question).ok_or(Ended)?;
            self.output.extend_from_slice(&(reply.len() as u16).to_be_bytes());
            self.output.extend_from_slice(&reply);
            self.send()?;
        }
        Ok(())
    }

    /// The next whole question, taken out of what came.
    fn question(&mut self) -> Result<Option<Vec<u8>>, Ended> {
        let Some((length, rest)) = self.input.split_first_chunk() else { return Ok(None) };
        let len = usize::from(u16::from_be_bytes(*length));
        if len > QUESTION_MAX {
            return Err(Ended);
        }
        let Some(question) = rest.get(..len).map(<[u8]>::to_vec) else { return Ok(None) };
        self.input.drain(..LENGTH + len);
        Ok(Some(question))
    }

    fn send(&mut self) -> Result<(), Ended> {
        while !self.output.is_empty() {
            match self.stream.write(&self.output) {
                Ok(0) => return Err(Ended),
                Ok(sent) => drop(self.output.drain(..sent)),
                Err(e) if is_for_later(e.kind()) => return Ok(()),
                Err(_) => return Err(Ended),
            }
        }
        Ok(())
    }
}

fn is_for_later(kind: ErrorKind) -> bool {
    matches!(kind, ErrorKind::WouldBlock | ErrorKind::Interrupted)
}
