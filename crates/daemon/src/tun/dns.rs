//! Names of hosts for local programs: a small DNS responder on the loopback.
//!
//! In: questions of local programs, by UDP and TCP. Out: the interface addresses of known hosts, as
//! `NAME.shoal`, and the names of those addresses. All other questions are refused, since the
//! responder never asks other servers.
//!
//! Invariant: the responder listens only on loopback addresses, since the list of members is not
//! for others. It stores nothing about questions.

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
pub use book::{NameTable, reverse_zones};
use system::ResolvConfKeeper;
pub use system::{Registration, left_to_operator, register, tell_resolved};

/// Longest question that is answered, in bytes; real ones have less than 100.
const QUESTION_MAX: usize = 512;
/// Time between two checks whether the node still runs.
const LOOK_EVERY: Duration = Duration::from_secs(1);
/// Time between two checks of the lines in /etc/resolv.conf, which DHCP clients overwrite.
const KEEP_EVERY: Duration = Duration::from_secs(60);

/// Open sockets of a responder that has not started.
pub struct DnsResponder {
    socket: UdpSocket,
    listener: TcpListener,
    domain: String,
}

/// The names that a responder answers with. The responder's threads end when the last clone is
/// dropped.
#[derive(Clone, Default)]
pub struct DnsNames(Arc<ArcSwap<NameTable>>);

impl DnsNames {
    /// Replaces the names.
    pub fn set(&self, book: NameTable) {
        self.0.store(Arc::new(book));
    }
}

impl DnsResponder {
    /// Opens the sockets, which may need a privilege that the node drops later.
    ///
    /// Errors: a message that says what to do.
    pub fn open(listen: SocketAddr, domain: &str) -> anyhow::Result<DnsResponder> {
        let refused = |e: std::io::Error| {
            let hint = hint(e.kind());
            anyhow::Error::new(e)
                .context(format!("[names] listen: {listen} can't be opened ({hint})"))
        };
        let socket = UdpSocket::bind(listen).map_err(refused)?;
        socket.set_read_timeout(Some(LOOK_EVERY)).context("[names]")?;
        let at = socket.local_addr().context("[names]")?;
        let listener = TcpListener::bind(at).map_err(refused)?;
        listener.set_nonblocking(true).context("[names]")?;
        Ok(DnsResponder { socket, listener, domain: domain.to_ascii_lowercase() })
    }

    /// Starts to answer from `names`, and to maintain the lines in /etc/resolv.conf.
    pub fn start(
        self,
        names: &DnsNames,
        keeper: Option<Arc<ResolvConfKeeper>>,
    ) -> std::io::Result<()> {
        let DnsResponder { socket, listener, domain } = self;
        let (by_tcp, tcp_domain) = (Arc::downgrade(&names.0), domain.clone());
        let thread = std::thread::Builder::new().name("shoal-names-tcp".into());
        thread.spawn(move || tcp::serve(&listener, &tcp_domain, &by_tcp))?;
        let names = Arc::downgrade(&names.0);
        let thread = std::thread::Builder::new().name("shoal-names".into());
        thread.spawn(move || serve(&socket, &domain, &names, keeper.as_deref())).map(drop)
    }
}

/// Answers by UDP until the node ends.
fn serve(
    socket: &UdpSocket,
    domain: &str,
    names: &Weak<ArcSwap<NameTable>>,
    keeper: Option<&ResolvConfKeeper>,
) {
    let (mut buf, mut kept) = ([0; QUESTION_MAX], Instant::now());
    loop {
        let received = socket.recv_from(&mut buf);
        let Some(names) = names.upgrade() else { return };
        if let Some(keeper) = keeper.filter(|_| kept.elapsed() >= KEEP_EVERY) {
            kept = Instant::now();
            // A failed write is tried again at the next check.
            let _later = keeper.keep();
        }
        // A failed read is a time-out, or an ICMP error about an earlier answer.
        let Ok((len, from)) = received else { continue };
        if let Some(reply) = answer(&names.load(), domain, &buf[..len]) {
            // A program that misses the answer asks again.
            let _sent = socket.send_to(&reply, from);
        }
    }
}

/// Advice about an address that can't be opened.
fn hint(kind: ErrorKind) -> &'static str {
    match kind {
        ErrorKind::PermissionDenied => {
            "a port below 1024 needs CAP_NET_BIND_SERVICE: start as root, or as dist/shoal.service \
             does, or listen on 127.0.0.153:5353 and have your resolver ask there"
        }
        ErrorKind::AddrInUse => "does another responder run there?",
        _ => "expected an address of this machine's loopback",
    }
}

#[cfg(test)]
mod tests;
