//! Names of hosts for programs: a small DNS responder on this machine's loopback.
//!
//! In: questions of local programs, by UDP and by TCP. Out: the interface addresses of the hosts
//! that this node knows, as `NAME.shoal`, and the names of those addresses; for everything else a
//! refusal, since nothing is ever asked elsewhere.
//!
//! Invariant: it listens on loopback addresses only (who belongs to the network is not for others),
//! and keeps nothing about who asked what.

mod answer;
mod book;
mod resolv_conf;
mod system;
mod tcp;

use std::io::ErrorKind;
use std::net::{SocketAddr, TcpListener, UdpSocket};
use std::sync::{Arc, Weak};
use std::time::{Duration, Instant};

use anyhow::Context;
use arc_swap::ArcSwap;

use answer::answer;
pub use book::{Book, reverse_zones};
use system::Keeper;
pub use system::{Registration, left_to_operator, register, tell_resolved};

/// Longest question that is looked at in bytes; real ones have less than 100.
const QUESTION_MAX: usize = 512;
/// How often a thread looks whether its node still runs.
const LOOK_EVERY: Duration = Duration::from_secs(1);
/// How often lines in /etc/resolv.conf are looked after: programs for addresses write it anew.
const KEEP_EVERY: Duration = Duration::from_secs(60);

/// Sockets that will answer.
pub struct Responder {
    socket: UdpSocket,
    listener: TcpListener,
    domain: String,
}

/// The names that a responder answers with; its threads end when the last clone is dropped.
#[derive(Clone, Default)]
pub struct Names(Arc<ArcSwap<Book>>);

impl Names {
    /// Puts other names in force.
    pub fn set(&self, book: Book) {
        self.0.store(Arc::new(book));
    }
}

impl Responder {
    /// Opens the sockets, which may need a right that the node gives up later.
    ///
    /// Errors: what to do about it.
    pub fn open(listen: SocketAddr, domain: &str) -> anyhow::Result<Responder> {
        let refused = |e: std::io::Error| {
            let hint = hint(e.kind());
            anyhow::Error::new(e).context(format!("[names] listen: {listen} can't be had ({hint})"))
        };
        let socket = UdpSocket::bind(listen).map_err(refused)?;
        socket.set_read_timeout(Some(LOOK_EVERY)).context("[names]")?;
        let at = socket.local_addr().context("[names]")?;
        let listener = TcpListener::bind(at).map_err(refused)?;
        listener.set_nonblocking(true).context("[names]")?;
        Ok(Responder { socket, listener, domain: domain.to_ascii_lowercase() })
    }

    /// Starts to answer from `names`, and to look after lines in /etc/resolv.conf.
    pub fn start(self, names: &Names, keeper: Option<Arc<Keeper>>) -> std::io::Result<()> {
        let Responder { socket, listener, domain } = self;
        let (by_tcp, tcp_domain) = (Arc::downgrade(&names.0), domain.clone());
        let thread = std::thread::Builder::new().name("shoal-names-tcp".into());
        thread.spawn(move || tcp::serve(&listener, &tcp_domain, &by_tcp))?;
        let names = Arc::downgrade(&names.0);
        let thread = std::thread::Builder::new().name("shoal-names".into());
        thread.spawn(move || serve(&socket, &domain, &names, keeper.as_deref())).map(drop)
    }
}

/// Answers by UDP until the node ends.
fn serve(socket: &UdpSocket, domain: &str, names: &Weak<ArcSwap<Book>>, keeper: Option<&Keeper>) {
    let (mut buf, mut kept) = ([0; QUESTION_MAX], Instant::now());
    loop {
        let received = socket.recv_from(&mut buf);
        let Some(names) = names.upgrade() else { return };
        if let Some(keeper) = keeper.filter(|_| kept.elapsed() >= KEEP_EVERY) {
            kept = Instant::now();
            // A file that can't be written now is tried again.
            let _later = keeper.keep();
        }
        // A time-out, or what ICMP said about an answer.
        let Ok((len, from)) = received else { continue };
        if let Some(reply) = answer(&names.load(), domain, &buf[..len]) {
            // A program that misses the answer asks again.
            let _sent = socket.send_to(&reply, from);
        }
    }
}

/// What to do about an address that can't be had.
fn hint(kind: ErrorKind) -> &'static str {
    match kind {
        ErrorKind::PermissionDenied => {
            "a port below 1024 needs CAP_NET_BIND_SERVICE: start as root, or as dist/shoal.service \
             does, or listen on 127.0.0.153:5353 and have your resolver ask there"
        }
        ErrorKind::AddrInUse => "is another responder there?",
        _ => "expected an address of this machine's loopback",
    }
}

#[cfg(test)]
mod tests;
