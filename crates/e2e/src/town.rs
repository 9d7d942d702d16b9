//! A network of real nodes that the lab builds, with its folder and helpers for tests.

use std::fs::{self, OpenOptions};
use std::io::{Read, Write};
use std::net::{Ipv6Addr, Shutdown, SocketAddr, TcpListener, TcpStream};
use std::path::{Path, PathBuf};
use std::process::{self, Child, Stdio};
use std::time::{Duration, Instant};

use shoal_daemon::control::api::{Command, ControlReply, Status};
use shoal_lab::site::RunningNetwork;
use shoal_lab::{Conditions, Executable, Network, NetworkKind, Topology};

use crate::{bytes, end_of, text};

const PATIENCE: Duration = Duration::from_secs(60);

/// Nodes that run until this is dropped. They are addressed by name.
pub struct LabTown {
    pub site: RunningNetwork,
    /// Folder of the nodes' folders and of files that tests write.
    pub folder: tempfile::TempDir,
}

impl LabTown {
    /// Starts all nodes, and waits until all links are up. `extra` is added to each node's
    /// configuration. `change` may edit the files in the folder first.
    pub fn new(
        (topology, kind, conditions): (Topology, NetworkKind, Conditions),
        extra: &str,
        change: impl FnOnce(&Path),
    ) -> LabTown {
        let folder = tempfile::tempdir().unwrap();
        let network = Network::build(topology, kind, conditions).unwrap();
        let executable = Executable::shoal(crate::program());
        let change = |_: &Network, folder: &Path| {
            change(folder);
            Ok(())
        };
        let site = RunningNetwork::start_after(network, &executable, folder.path(), extra, change);
        let mut site = site.unwrap_or_else(|e| panic!("{e:#}"));
        site.wait_until_up(PATIENCE).unwrap_or_else(|e| panic!("{e:#}"));
        LabTown { site, folder }
    }

    pub fn find(&self, name: &str) -> usize {
        self.site.network().topology().find(name).unwrap()
    }

    pub fn status(&self, name: &str) -> Status {
        match self.site.ask(self.find(name), Command::Status) {
            Ok(ControlReply::Status(status)) => *status,
            other => panic!("{other:?}"),
        }
    }

    pub fn metrics(&self, name: &str) -> String {
        match self.site.ask(self.find(name), Command::Metrics) {
            Ok(ControlReply::Metrics(text)) => text,
            other => panic!("{other:?}"),
        }
    }

    /// The first metric of a node that begins with `what`.
    pub fn metric(&self, name: &str, what: &str) -> f64 {
        let text = self.metrics(name);
        let line = text.lines().find(|line| line.starts_with(what)).unwrap_or_default();
        line.rsplit(' ').next().and_then(|n| n.parse().ok()).unwrap_or_else(|| panic!("{text}"))
    }

    /// Runs a function in a node's namespace.
    pub fn inside<T: Send>(&self, name: &str, f: impl FnOnce() -> T + Send) -> T {
        let namespace = self.site.network().namespace(self.find(name)).unwrap();
        namespace.enter(|| Ok(f())).unwrap()
    }

    pub fn address(&self, name: &str) -> Ipv6Addr {
        self.status(name).interface.unwrap().address.parse().unwrap()
    }

    /// A TCP connection between the interfaces of two nodes, as its two ends.
    pub fn connect(&self, from: &str, to: &str, port: u16) -> (TcpStream, TcpStream) {
        let at = SocketAddr::from((self.address(to), port));
        let listener = self.inside(to, || TcpListener::bind(at).unwrap());
        let near = self.inside(from, || TcpStream::connect_timeout(&at, PATIENCE).unwrap());
        (near, listener.accept().unwrap().0)
    }

    /// Sends `len` bytes, which depend on `seed`, from program to program. Returns the duration.
    pub fn stream(&self, from: &str, to: &str, port: u16, (seed, len): (u8, usize)) -> Duration {
        let (mut near, mut far) = self.connect(from, to, port);
        let began = Instant::now();
        std::thread::scope(|scope| {
            scope.spawn(|| {
                near.write_all(&bytes(seed, len)).unwrap();
                near.shutdown(Shutdown::Write).unwrap();
            });
            let mut got = Vec::new();
            far.set_read_timeout(Some(PATIENCE)).unwrap();
            far.read_to_end(&mut got).unwrap();
            assert!(got == bytes(seed, len), "{} of {len} bytes, or wrong ones", got.len());
        });
        began.elapsed()
    }

    /// Runs a command for a node. Returns its success and its output.
    pub fn run(&self, name: &str, words: &[&str]) -> (bool, String) {
        let output = self.site.command(self.find(name), words).output().unwrap();
        let (out, err) = text(&output);
        (output.status.success(), out + &err)
    }

    /// Begins to send a file of `len` bytes, which depend on `seed`.
    pub fn send(&self, from: &str, to: &str, (seed, len): (u8, usize)) -> FileInFlight {
        let name = format!("{from}-{to}-{seed}");
        let (file, inbox) = (self.folder.path().join(&name), format!("in-{name}"));
        let inbox = self.folder.path().join(inbox);
        fs::write(&file, bytes(seed, len)).unwrap();
        fs::create_dir(&inbox).unwrap();
        let words = ["receive", "--count", "1", "--from", from, "--dir", inbox.to_str().unwrap()];
        let mut receive = self.site.command(self.find(to), &words);
        let receive = receive.stdout(Stdio::null()).stderr(Stdio::piped()).spawn().unwrap();
        let mut send = self.site.command(self.find(from), &["send", "--wait", "20"]);
        send.arg(&file).arg(to).stdout(Stdio::null()).stderr(Stdio::piped());
        let (began, send) = (Instant::now(), send.spawn().unwrap());
        FileInFlight { began, receive, send, file, inbox, content: (seed, len) }
    }
}

/// A file that is being sent.
pub struct FileInFlight {
    began: Instant,
    receive: Child,
    send: Child,
    file: PathBuf,
    inbox: PathBuf,
    content: (u8, usize),
}

impl FileInFlight {
    /// Waits until the receiver has the file, byte for byte. Returns the sender's duration.
    pub fn end(self) -> Duration {
        let FileInFlight { began, receive, send, file, inbox, content: (seed, len) } = self;
        let sent = end_of(send, "send");
        let took = began.elapsed();
        assert!(sent.status.success(), "{}: {}", file.display(), text(&sent).1);
        let received = end_of(receive, "receive");
        assert!(received.status.success(), "{}: {}", file.display(), text(&received).1);
        let copy = fs::read(inbox.join(file.file_name().unwrap())).unwrap();
        assert!(copy == bytes(seed, len), "{} is another file", file.display());
        fs::remove_dir_all(inbox).unwrap();
        took
    }
}

/// Adds to the configuration of a node whose folder is in `folder`.
pub fn configure(folder: &Path, name: &str, more: &str) {
    let file = folder.join(name).join("node.toml");
    OpenOptions::new().append(true).open(file).unwrap().write_all(more.as_bytes()).unwrap();
}

/// Runs a command of the authority in this folder, which must succeed. Returns its output.
#[track_caller]
pub fn authority(folder: &Path, words: &[&str]) -> String {
    let mut command = process::Command::new(crate::program());
    command.arg("authority").arg(words[0]).arg("--dir").arg(folder.join("authority"));
    let output = command.args(&words[1..]).output().unwrap();
    assert!(output.status.success(), "{words:?}: {}", text(&output).1);
    text(&output).0
}

/// Makes every node a member, and gives each a copy of the list. `more` is added to the section
/// `[authority]`.
pub fn found(folder: &Path, topology: &Topology, more: &str) {
    let made = authority(folder, &["init"]);
    let config = made.split("node.toml:\n").nth(1).unwrap();
    let config = config.split("\n\n").find(|part| part.contains("[authority]")).unwrap();
    for node in &topology.nodes {
        let home = folder.join(&node.name);
        let key = process::Command::new(crate::program())
            .arg("pubkey")
            .arg(home.join("node.key"))
            .output()
            .unwrap();
        let key = text(&key).0;
        let address = node.address.to_string();
        let words = ["sign", &node.name, "--key", key.trim(), "--address", &address];
        authority(folder, &words);
        let file = home.join("node.toml");
        let text = fs::read_to_string(&file).unwrap();
        fs::write(&file, text + "\n" + config.trim_end() + "\n" + more).unwrap();
    }
    for node in &topology.nodes {
        let to = folder.join(&node.name).join("network.list");
        fs::copy(folder.join("authority/network.list"), to).unwrap();
    }
}
