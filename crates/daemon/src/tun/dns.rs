//! Names of hosts for programs: a small DNS responder on this machine's loopback.
//!
//! In: questions of local programs. Out: the interface addresses of the hosts that this node knows,
//! as `NAME.shoal`; for everything else a refusal, since nothing is ever asked elsewhere.
//!
//! Invariant: it listens on loopback addresses only (who belongs to the network is not for others),
//! one datagram at a time, and keeps nothing about who asked what.

use std::collections::BTreeMap;
use std::io::{ErrorKind, Read};
use std::net::{IpAddr, SocketAddr, UdpSocket};
use std::process::{Child, Command, ExitStatus, Stdio};
use std::sync::{Arc, Weak};
use std::time::{Duration, Instant};

use anyhow::Context;
use arc_swap::ArcSwap;
use nix::unistd::geteuid;
use simple_dns::rdata::RData;
use simple_dns::{
    CLASS, OPCODE, Packet, PacketFlag, QCLASS, QTYPE, RCODE, ResourceRecord, TYPE, header_buffer,
};

/// How long an answer may be remembered: members change within seconds.
const TTL_S: u32 = 5;
/// Longest question that is looked at in bytes; real ones have less than 100.
const QUESTION_MAX: usize = 512;
/// How often the thread looks whether its node still runs.
const LOOK_EVERY: Duration = Duration::from_secs(1);
/// How long `resolvectl` may take.
const RESOLVECTL_PATIENCE: Duration = Duration::from_secs(3);

/// Names, in lower case and without the domain, and their addresses.
pub type Book = BTreeMap<String, Vec<IpAddr>>;

/// A socket that will answer.
pub struct Responder {
    socket: UdpSocket,
    domain: String,
}

/// The names that a responder answers with; its thread ends when the last clone is dropped.
#[derive(Clone, Default)]
pub struct Names(Arc<ArcSwap<Book>>);

impl Names {
    /// Puts other names in force.
    pub fn set(&self, book: Book) {
        self.0.store(Arc::new(book));
    }
}

impl Responder {
    /// Opens the socket, which may need a right that the node gives up later.
    ///
    /// Errors: what to do about it.
    pub fn open(listen: SocketAddr, domain: &str) -> anyhow::Result<Responder> {
        let socket = UdpSocket::bind(listen).map_err(|e| {
            let hint = hint(e.kind());
            anyhow::Error::new(e).context(format!("[names] listen: {listen} can't be had ({hint})"))
        })?;
        socket.set_read_timeout(Some(LOOK_EVERY)).context("[names]")?;
        Ok(Responder { socket, domain: domain.to_ascii_lowercase() })
    }

    /// Tells systemd-resolved, where it runs, to ask this responder for the domain; says in words
    /// what happened otherwise. Resolved forgets it with the interface.
    pub fn tell_resolved(&self, interface: &str) -> Result<(), String> {
        if !std::path::Path::new("/run/systemd/resolve").exists() {
            let (server, domain) = (self.address(), &self.domain);
            return Err(format!(
                "systemd-resolved does not run here: have your resolver ask {server} for \
                 .{domain} (dnsmasq: {}; else see \"Names\" in docs/ip.md)",
                dnsmasq(self.socket.local_addr().ok(), domain)
            ));
        }
        let (server, domain) = (self.address(), format!("~{}", self.domain));
        resolvectl(&["dns", interface, &server])?;
        resolvectl(&["domain", interface, &domain])
    }

    fn address(&self) -> String {
        self.socket.local_addr().map(|at| at.to_string()).unwrap_or_default()
    }

    /// Starts to answer from `names`.
    pub fn start(self, names: &Names) -> std::io::Result<()> {
        let names = Arc::downgrade(&names.0);
        let thread = std::thread::Builder::new().name("shoal-names".into());
        thread.spawn(move || self.run(&names)).map(drop)
    }

    fn run(self, names: &Weak<ArcSwap<Book>>) {
        let mut buf = [0; QUESTION_MAX];
        loop {
            let received = self.socket.recv_from(&mut buf);
            let Some(names) = names.upgrade() else { return };
            // A time-out, or what ICMP said about an answer.
            let Ok((len, from)) = received else { continue };
            if let Some(reply) = answer(&names.load(), &self.domain, &buf[..len]) {
                // Who does not take the answer asks again.
                let _sent = self.socket.send_to(&reply, from);
            }
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

/// The line of dnsmasq's configuration that leads here.
fn dnsmasq(at: Option<SocketAddr>, domain: &str) -> String {
    let Some(at) = at else { return String::new() };
    let port = if at.port() == 53 { String::new() } else { format!("#{}", at.port()) };
    format!("server=/{domain}/{}{port}", at.ip())
}

fn resolvectl(words: &[&str]) -> Result<(), String> {
    let failed = |why: String| format!("resolvectl {}: {why}", words.join(" "));
    let mut command = Command::new("resolvectl");
    command.args(words).stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::piped());
    let mut child = command.spawn().map_err(|e| failed(e.to_string()))?;
    let began = Instant::now();
    loop {
        match child.try_wait() {
            Ok(Some(status)) if status.success() => return Ok(()),
            Ok(Some(status)) => return Err(failed(first_line(&mut child, status))),
            Err(e) => return Err(failed(e.to_string())),
            Ok(None) if began.elapsed() < RESOLVECTL_PATIENCE => {
                std::thread::sleep(Duration::from_millis(10));
            }
            Ok(None) => {
                // The program took too long: it is ended.
                let _ended = child.kill().and_then(|()| child.wait());
                return Err(failed("no answer in time".into()));
            }
        }
    }
}

/// The first line of the program's errors, or how it ended. Only root may tell resolved anything.
fn first_line(child: &mut Child, status: ExitStatus) -> String {
    let mut said = String::new();
    let stderr = child.stderr.take().map(|stderr| stderr.take(1_024));
    // The program has ended, so this read does not block.
    let read = stderr.map(|mut stderr| stderr.read_to_string(&mut said));
    match (read, said.lines().next()) {
        (Some(Ok(_)), Some(line)) if geteuid().is_root() => line.into(),
        (Some(Ok(_)), Some(line)) => format!("{line} Only root may: see dist/shoal.service"),
        _ => status.to_string(),
    }
}

/// The reply to `question`; none to what is no question.
fn answer(book: &Book, domain: &str, question: &[u8]) -> Option<Vec<u8>> {
    // A reply that is answered would go in a circle.
    if header_buffer::has_flags(question, PacketFlag::RESPONSE).ok()? {
        return None;
    }
    let asked = match Packet::parse(question) {
        Ok(asked) => asked,
        Err(_) => return failure(header_buffer::id(question).ok()?, RCODE::FormatError),
    };
    if asked.opcode() != OPCODE::StandardQuery {
        return failure(asked.id(), RCODE::NotImplemented);
    }
    let [question] = &asked.questions[..] else {
        return failure(asked.id(), RCODE::FormatError);
    };
    let mut reply = Packet::new_reply(asked.id());
    if asked.has_flags(PacketFlag::RECURSION_DESIRED) {
        reply.set_flags(PacketFlag::RECURSION_DESIRED);
    }
    let name = question.qname.to_string().to_ascii_lowercase();
    let inside = name == domain || name.strip_suffix(domain).is_some_and(|n| n.ends_with('.'));
    let class = matches!(question.qclass, QCLASS::CLASS(CLASS::IN) | QCLASS::ANY);
    if !inside || !class {
        *reply.rcode_mut() = RCODE::Refused;
    } else {
        reply.set_flags(PacketFlag::AUTHORITATIVE_ANSWER);
        let host = name.strip_suffix(domain).map_or("", |n| n.trim_end_matches('.'));
        match book.get(host) {
            None if host.is_empty() => {}
            None => *reply.rcode_mut() = RCODE::NameError,
            Some(addresses) => {
                let fits = addresses.iter().filter_map(|ip| record(*ip, question.qtype));
                let make =
                    |data| ResourceRecord::new(question.qname.clone(), CLASS::IN, TTL_S, data);
                reply.answers.extend(fits.map(make));
            }
        }
    }
    reply.questions.push(question.clone());
    reply.build_bytes_vec_compressed().ok()
}

fn record(ip: IpAddr, wanted: QTYPE) -> Option<RData<'static>> {
    let wants = |kind| wanted == QTYPE::TYPE(kind) || wanted == QTYPE::ANY;
    match ip {
        IpAddr::V4(ip) if wants(TYPE::A) => Some(RData::A(ip.into())),
        IpAddr::V6(ip) if wants(TYPE::AAAA) => Some(RData::AAAA(ip.into())),
        _ => None,
    }
}

fn failure(id: u16, code: RCODE) -> Option<Vec<u8>> {
    let mut reply = Packet::new_reply(id);
    *reply.rcode_mut() = code;
    reply.build_bytes_vec().ok()
}

#[cfg(test)]
mod tests;
