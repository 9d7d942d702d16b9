//! A small network in this process: an operator's files, nodes, and programs.

use std::cell::RefCell;
use std::collections::BTreeMap;
use std::fs::File;
use std::io::{Seek, SeekFrom, Write};
use std::net::{Ipv4Addr, SocketAddr};
use std::os::fd::AsFd;
use std::os::unix::fs::FileExt;
use std::path::PathBuf;
use std::sync::atomic::{AtomicU16, Ordering};
use std::time::{Duration, Instant};

use shoal_crypto::{Identity, NetworkSecret};
use shoal_daemon::config::NodeSetup;
use shoal_daemon::config::keys;
use shoal_daemon::control::api::{Command, ControlEvent, ControlReply, SendFile, SenderFilter};
use shoal_daemon::control::socket::ControlConnection;
use shoal_daemon::run::RunningNode;

const PATIENCE: Duration = Duration::from_secs(20);

pub struct StarNetwork {
    dir: tempfile::TempDir,
    nodes: BTreeMap<String, RunningNode>,
    next_file: RefCell<u8>,
}

/// Result of a transfer.
pub struct TransferResult {
    pub bytes: Vec<u8>,
    pub hash: String,
    pub sender_hash: String,
    pub resumed_bytes: u64,
}

/// Bytes without repetition.
pub fn content(len: usize) -> Vec<u8> {
    (0..len as u64).map(|i| (i.wrapping_mul(0x9E37_79B9_7F4A_7C15) >> 56) as u8).collect()
}

impl StarNetwork {
    /// Router `r1` and hosts `h1`, `h2`, ... behind it.
    pub fn star(hosts: usize) -> StarNetwork {
        let dir = tempfile::tempdir().expect("a temporary folder");
        let secret = keys::network_secret_text(&NetworkSecret([7; 32]));
        keys::create(&dir.path().join("network.key"), &secret).expect("writable");
        let names: Vec<String> =
            std::iter::once("r1".into()).chain((1..=hosts).map(|n| format!("h{n}"))).collect();
        let ports: Vec<SocketAddr> = names.iter().map(|_| free_port()).collect();
        let mut list = String::new();
        for (n, (name, port)) in names.iter().zip(&ports).enumerate() {
            let identity = Identity::generate([n as u8 + 1; 32]);
            let file = dir.path().join(format!("{name}.key"));
            keys::create(&file, &keys::identity_text(&identity)).expect("writable");
            list += &format!(
                "[[host]]\nname = \"{name}\"\naddress = \"1.{n}\"\nkey = \"{}\"\n",
                identity.public()
            );
            let links: String = match n {
                0 => names[1..].iter().map(|h| format!("[[link]]\npeer = \"{h}\"\n")).collect(),
                _ => format!("[[link]]\npeer = \"r1\"\nendpoint = \"{}\"\n", ports[0]),
            };
            let config = format!(
                "[node]\nname = \"{name}\"\naddress = \"1.{n}\"\nkey_file = \"{name}.key\"\n\
                 network_secret_file = \"network.key\"\nhosts_file = \"hosts.toml\"\n\
                 listen = [\"{port}\"]\ncontrol_socket = \"{name}.sock\"\n{links}"
            );
            std::fs::write(dir.path().join(format!("{name}.toml")), config).expect("writable");
        }
        std::fs::write(dir.path().join("hosts.toml"), list).expect("writable");
        let mut net = StarNetwork { dir, nodes: BTreeMap::new(), next_file: RefCell::new(0) };
        for name in names {
            net.start(&name);
        }
        net
    }

    /// The list of hosts that all nodes share.
    pub fn hosts(&self) -> String {
        std::fs::read_to_string(self.dir.path().join("hosts.toml")).expect("readable")
    }

    pub fn set_hosts(&self, list: &str) {
        std::fs::write(self.dir.path().join("hosts.toml"), list).expect("writable");
    }

    pub fn start(&mut self, name: &str) {
        let file: PathBuf = self.dir.path().join(format!("{name}.toml"));
        let setup = NodeSetup::load(&file).unwrap_or_else(|e| panic!("{e}"));
        let node = RunningNode::start(setup, true).unwrap_or_else(|e| panic!("{name}: {e:#}"));
        self.nodes.insert(name.to_string(), node);
    }

    pub fn stop(&mut self, name: &str) {
        let node = self.nodes.remove(name).expect("a running node");
        node.stop().expect("a clean end");
    }

    pub fn connect(&self, name: &str) -> ControlConnection {
        self.nodes[name].connect().expect("a connection")
    }

    pub fn ask(&self, name: &str, command: Command) -> ControlReply {
        self.connect(name).call(command, &[]).expect("an answer")
    }

    pub fn try_ping(
        &self,
        from: &str,
        to: &str,
        patience: Duration,
    ) -> Result<ControlReply, String> {
        let timeout_ms = patience.as_millis() as u32;
        let command = Command::Ping { host: to.to_string(), timeout_ms };
        self.connect(from).call(command, &[]).map_err(|e| e.to_string())
    }

    /// Waits until `to` answers `from`.
    pub fn ping(&self, from: &str, to: &str) {
        let end = Instant::now() + PATIENCE;
        let mut last = String::new();
        while Instant::now() < end {
            match self.try_ping(from, to, Duration::from_secs(5)) {
                Ok(ControlReply::Pong { .. }) => return,
                other => last = format!("{other:?}"),
            }
        }
        let states: Vec<_> =
            self.nodes.keys().map(|name| (name, self.ask(name, Command::Status))).collect();
        panic!("{to} does not answer {from}: {last}; {states:#?}");
    }

    pub fn inbox(&self, name: &str, from: &[&str], max_size: Option<u64>) -> ControlConnection {
        let mut inbox = self.connect(name);
        let from = SenderFilter::Hosts(from.iter().map(|h| h.to_string()).collect());
        let command = Command::Receive { from, max_size };
        let end = Instant::now() + PATIENCE;
        loop {
            match inbox.call(command.clone(), &[]) {
                Ok(reply) => {
                    assert_eq!(reply, ControlReply::Receiving);
                    return inbox;
                }
                // The node learns of the previous inbox's end from another thread.
                Err(error) if Instant::now() > end => panic!("no inbox: {error}"),
                Err(_) => std::thread::sleep(Duration::from_millis(5)),
            }
        }
    }

    pub fn send_file(&self, from: &str, to: &str, file: &File, size: u64) -> ControlConnection {
        *self.next_file.borrow_mut() += 1;
        let mut sender = self.connect(from);
        let described = SendFile {
            name: "folder/file".into(),
            size,
            modified_ns: 1,
            file_id: format!("{:032x}", *self.next_file.borrow()),
            executable: false,
        };
        let command = Command::Send { host: to.to_string(), files: vec![described] };
        let reply = sender.call(command, &[file.as_fd()]).expect("an offer");
        assert!(matches!(reply, ControlReply::Sending { transfers } if transfers.len() == 1));
        sender
    }

    /// Offers a file of zeroes. Returns the first event about it.
    pub fn offer(&self, from: &str, to: &str, size: u64) -> ControlEvent {
        let file = tempfile::tempfile().expect("a temporary file");
        file.set_len(size).expect("room");
        wait(&mut self.send_file(from, to, &file, size), Some)
    }

    pub fn transfer(&self, from: &str, to: &str, bytes: &[u8]) -> Result<TransferResult, String> {
        self.transfer_with(from, to, bytes, &[])
    }

    /// Calls [`Self::transfer`] with chunks that the receiver already has.
    pub fn transfer_with(
        &self,
        from: &str,
        to: &str,
        bytes: &[u8],
        have: &[(u32, u32)],
    ) -> Result<TransferResult, String> {
        let mut source = tempfile::tempfile().expect("a temporary file");
        source.write_all(bytes).expect("room");
        source.seek(SeekFrom::Start(0)).expect("seekable");
        let sink = tempfile::tempfile().expect("a temporary file");
        for &(first, end) in have {
            let span = first as usize * 262_272..(end as usize * 262_272).min(bytes.len());
            sink.write_all_at(&bytes[span.clone()], span.start as u64).expect("room");
        }
        let mut inbox = self.inbox(to, &[from], None);
        let mut sender = self.send_file(from, to, &source, bytes.len() as u64);
        let transfer = offered(&mut inbox);
        accept(&mut inbox, transfer, &sink, have);
        let failed = |event: &ControlEvent| {
            matches!(event, ControlEvent::Failed { .. } | ControlEvent::Refused { .. })
        };
        let hash = wait(&mut inbox, |event| match event {
            ControlEvent::Complete { hash, .. } => Some(Ok(hash)),
            event if failed(&event) => Some(Err(format!("{event:?}"))),
            _ => None,
        })?;
        inbox.call(Command::Confirm { transfer }, &[]).map_err(|e| e.to_string())?;
        let mut resumed = 0;
        let sender_hash = wait(&mut sender, |event| match event {
            ControlEvent::Accepted { resumed_bytes, .. } => {
                resumed = resumed_bytes;
                None
            }
            ControlEvent::Done { hash, .. } => Some(Ok(hash)),
            event if failed(&event) => Some(Err(format!("{event:?}"))),
            _ => None,
        })?;
        let mut arrived = vec![0; sink.metadata().expect("a file").len() as usize];
        sink.read_exact_at(&mut arrived, 0).expect("readable");
        Ok(TransferResult { bytes: arrived, hash, sender_hash, resumed_bytes: resumed })
    }
}

pub fn offered(inbox: &mut ControlConnection) -> u64 {
    wait(inbox, |event| match event {
        ControlEvent::Offered { transfer, file, .. } => {
            assert_eq!(file.name, "folder/file");
            Some(transfer)
        }
        _ => None,
    })
}

pub fn accept(inbox: &mut ControlConnection, transfer: u64, sink: &File, have: &[(u32, u32)]) {
    let command = Command::Accept { transfer, have: have.to_vec() };
    assert_eq!(inbox.call(command, &[sink.as_fd()]).expect("accepted"), ControlReply::Ok);
}

/// Waits for an event that `pick` accepts.
pub fn wait<T>(
    program: &mut ControlConnection,
    mut pick: impl FnMut(ControlEvent) -> Option<T>,
) -> T {
    let end = Instant::now() + PATIENCE;
    while Instant::now() < end {
        let event = program.event(Some(Duration::from_millis(500))).expect("a live connection");
        if let Some(found) = event.and_then(&mut pick) {
            return found;
        }
    }
    panic!("the event did not come");
}

/// A port on a loopback address that no other test uses, in this process or in a parallel one. It
/// stays free.
fn free_port() -> SocketAddr {
    static NEXT: AtomicU16 = AtomicU16::new(256);
    let [.., high, low] = std::process::id().to_be_bytes();
    let [third, fourth] = NEXT.fetch_add(1, Ordering::Relaxed).to_be_bytes();
    let at = Ipv4Addr::new(127, 64 | high & 0x3f, low ^ third, fourth);
    // The port is below the kernel's ephemeral range. Binding a port to find a free one would be
    // unsafe: a child that another test has just forked may still hold it.
    SocketAddr::from((at, 20_400))
}
