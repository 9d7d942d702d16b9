//! Shared code of the tests of the real programs: paths of the programs, nodes on the loopback, and
//! checks of the machine's features.
//!
//! The tests are in `tests/`. They start `shoal` and `shoal-lab` as users do, on the loopback and,
//! as root, between namespaces. This crate contains no product code, and no other crate depends on
//! it.

#![allow(clippy::disallowed_methods, clippy::disallowed_types, reason = "starts real processes")]

pub mod clock;
pub mod icmp;
pub mod joining;
pub mod machines;
mod programs;
pub mod shifting;
pub mod stalls;
pub mod thread;
pub mod town;

use std::net::Ipv4Addr;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Output, Stdio};
use std::sync::atomic::{AtomicU8, Ordering};
use std::time::{Duration, Instant};

use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use shoal_lab::needs::{self, Requirement};
use shoal_lab::site::RunningNetwork;

pub use programs::{lab_program, program};

/// `shoal` with these words.
pub fn shoal(words: &[&str]) -> Command {
    let mut command = Command::new(program());
    command.args(words).env_remove("SHOAL_SOCKET").stdin(Stdio::null());
    command
}

/// Standard output and standard error.
pub fn text(output: &Output) -> (String, String) {
    let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
    (text(&output.stdout), text(&output.stderr))
}

/// True if namespaces, and the programs that tests start in them, are available. Otherwise prints a
/// line, or panics if the environment requires them.
pub fn namespaces() -> bool {
    needs::met(needs::LAB, "SHOAL_REQUIRE_NETNS")
}

/// [`namespaces`] for IPv6.
pub fn ipv6() -> bool {
    needs::met(&[Requirement::Ipv6], "SHOAL_REQUIRE_NETNS")
}

/// [`namespaces`] with the device for virtual interfaces.
pub fn tun_possible() -> bool {
    needs::met(&[needs::LAB, &[Requirement::Tun]].concat(), "SHOAL_REQUIRE_NETNS")
}

/// The rows of docs/reference/metrics.md: name of each metric, and the nodes that have it.
pub fn documented_metrics() -> Vec<(String, String)> {
    let file = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../docs/reference/metrics.md");
    let text = std::fs::read_to_string(file).unwrap();
    let row = |line: &str| {
        let mut cells = line.strip_prefix("| `shoal_")?.split('|').map(str::trim);
        let name = format!("shoal_{}", cells.next()?.trim_end_matches('`'));
        let (kind, _unit, when) = (cells.next()?, cells.next()?, cells.next()?);
        assert_eq!(name.ends_with("_total"), kind == "counter", "{line}");
        Some((name, when.to_owned()))
    };
    text.lines().filter_map(row).collect()
}

/// Checks that a node prints exactly the metrics that docs/reference/metrics.md lists for such
/// nodes.
#[track_caller]
pub fn check_metrics(printed: &str, when: &[&str]) {
    let rows = documented_metrics();
    let names = printed.lines().filter(|line| !line.starts_with('#'));
    let names: std::collections::BTreeSet<&str> =
        names.filter_map(|line| line.split(['{', ' ']).next()).collect();
    for name in &names {
        let known = rows.iter().find(|(row, _)| row == name);
        let (_, condition) = known.unwrap_or_else(|| panic!("{name}: not in metrics.md"));
        let may = condition == "always" || when.contains(&condition.as_str());
        assert!(may, "{name}: metrics.md says {condition:?}, this node is {when:?}");
    }
    for (row, condition) in &rows {
        let must = condition == "always" || when.contains(&condition.as_str());
        assert!(!must || names.contains(row.as_str()), "{row} is not printed");
    }
}

/// One router, `r1`, and hosts behind it: their folders, and their processes while they run.
pub struct LoopbackNet {
    root: tempfile::TempDir,
    names: Vec<String>,
    nodes: Vec<(String, Child)>,
}

impl LoopbackNet {
    /// Writes keys and configurations. The first name is the router's.
    pub fn new(names: &[&str]) -> LoopbackNet {
        let root = tempfile::tempdir().unwrap();
        let network = root.path().join("network.key");
        let made = shoal(&["genkey", "--network", "-o", network.to_str().unwrap()]).output();
        assert!(made.unwrap().status.success());
        let at = own_address();
        // Ports are below the kernel's ephemeral range, on this network's own address. No port is
        // probed: a child that another test has just forked could still hold it.
        let ports: Vec<u16> = (20_400..).take(names.len()).collect();
        let mut hosts = String::new();
        for (i, name) in names.iter().enumerate() {
            let dir = root.path().join(name);
            std::fs::create_dir(&dir).unwrap();
            let key = dir.join("node.key");
            let key = key.to_str().unwrap();
            assert!(shoal(&["genkey", "-o", key]).output().unwrap().status.success());
            let public = text(&shoal(&["pubkey", key]).output().unwrap()).0;
            let public = public.trim();
            hosts +=
                &format!("[[host]]\nname = \"{name}\"\naddress = \"1.{i}\"\nkey = \"{public}\"\n");
            let mut config = format!(
                "[node]\nname = \"{name}\"\naddress = \"1.{i}\"\nkey_file = \"node.key\"\n\
                 network_secret_file = \"../network.key\"\nhosts_file = \"../hosts.toml\"\n\
                 listen = [\"{at}:{}\"]\ncontrol_socket = \"control.sock\"\n",
                ports[i]
            );
            if i == 0 {
                for peer in &names[1..] {
                    config += &format!("[[link]]\npeer = \"{peer}\"\n");
                }
            } else {
                let endpoint = format!("{at}:{}", ports[0]);
                config += &format!("[[link]]\npeer = \"r1\"\nendpoint = \"{endpoint}\"\n");
            }
            std::fs::write(dir.join("node.toml"), config).unwrap();
        }
        std::fs::write(root.path().join("hosts.toml"), hosts).unwrap();
        let names = names.iter().map(|n| n.to_string()).collect();
        LoopbackNet { root, names, nodes: Vec::new() }
    }

    pub fn dir(&self, name: &str) -> PathBuf {
        self.root.path().join(name)
    }

    /// The folder that holds all nodes' folders.
    pub fn root(&self) -> &Path {
        self.root.path()
    }

    pub fn config(&self, name: &str) -> PathBuf {
        self.dir(name).join("node.toml")
    }

    /// Adds to one node's configuration.
    pub fn configure(&self, name: &str, more: &str) {
        let old = std::fs::read_to_string(self.config(name)).unwrap();
        std::fs::write(self.config(name), old + more).unwrap();
    }

    /// A folder for other files.
    pub fn folder(&self, name: &str) -> PathBuf {
        let dir = self.root.path().join(name);
        std::fs::create_dir_all(&dir).unwrap();
        dir
    }

    /// Starts one node and waits until it answers.
    pub fn start(&mut self, name: &str) {
        self.start_with(name, &[]);
    }

    /// Starts a node with more environment variables.
    pub fn start_with(&mut self, name: &str, environment: &[(&str, &Path)]) {
        let log = std::fs::File::create(self.dir(name).join("log")).unwrap();
        let config = self.config(name);
        let mut command = shoal(&["run", "-c", config.to_str().unwrap()]);
        command.envs(environment.iter().copied());
        let child = command.stderr(log).spawn().unwrap();
        self.nodes.push((name.to_string(), child));
        self.until(|net| net.ask(name, &["status"]).is_some());
    }

    /// Adopts the process of a node that was started in another way.
    pub fn adopt(&mut self, name: &str, child: Child) {
        self.nodes.push((name.to_string(), child));
    }

    /// Starts every node and waits until all links are up.
    pub fn start_all(&mut self) {
        for name in self.names.clone() {
            self.start(&name);
        }
        self.until(|net| {
            let Some(status) = net.ask("r1", &["status"]) else { return false };
            status["status"]["links_up"] == status["status"]["links"]
        });
    }

    /// Ends one node with this signal and waits for its end. Returns its exit code.
    pub fn end(&mut self, name: &str, signal: &str) -> Option<i32> {
        let at = self.nodes.iter().position(|n| n.0 == name).unwrap();
        let (_, mut child) = self.nodes.remove(at);
        send_signal(&child, signal);
        child.wait().unwrap().code()
    }

    pub fn signal(&self, name: &str, signal: &str) {
        let (_, child) = self.nodes.iter().find(|n| n.0 == name).unwrap();
        send_signal(child, signal);
    }

    /// A command for one node.
    pub fn command(&self, name: &str, words: &[&str]) -> Command {
        let mut command = shoal(&["-c"]);
        command.arg(self.config(name)).args(words);
        command
    }

    /// The last line of a command's JSON, if it succeeds.
    pub fn ask(&self, name: &str, words: &[&str]) -> Option<serde_json::Value> {
        let output = self.command(name, words).arg("--json").output().unwrap();
        let (out, _) = text(&output);
        let last = out.lines().last()?;
        output.status.success().then(|| serde_json::from_str(last).unwrap())
    }

    /// Waits until `done` is true. Panics after 40 s.
    #[track_caller]
    pub fn until(&self, done: impl Fn(&LoopbackNet) -> bool) {
        let began = Instant::now();
        while !done(self) {
            assert!(
                began.elapsed() < Duration::from_secs(40),
                "the expected state never came:\n{}",
                self.logs()
            );
            std::thread::sleep(Duration::from_millis(20));
        }
    }

    fn logs(&self) -> String {
        let log = |name: &String| std::fs::read_to_string(self.dir(name).join("log"));
        self.names.iter().map(|n| format!("{n}: {}\n", log(n).unwrap_or_default())).collect()
    }
}

impl Drop for LoopbackNet {
    fn drop(&mut self) {
        for (_, child) in &mut self.nodes {
            let _ = child.kill();
            let _ = child.wait();
        }
    }
}

/// Sends a signal such as `-TERM`.
pub fn send_signal(child: &Child, signal: &str) {
    let signal: Signal = format!("SIG{}", signal.trim_start_matches('-')).parse().unwrap();
    kill(Pid::from_raw(child.id() as i32), signal).unwrap();
}

/// A loopback address that no other test uses, in this process or in a parallel one.
fn own_address() -> Ipv4Addr {
    static NEXT: AtomicU8 = AtomicU8::new(1);
    let [.., high, low] = std::process::id().to_be_bytes();
    Ipv4Addr::new(127, 128 | high, low, NEXT.fetch_add(1, Ordering::Relaxed))
}

/// Waits for a child's end. Panics after 60 s.
pub fn end_of(mut child: Child, what: &str) -> Output {
    let began = Instant::now();
    while child.try_wait().unwrap().is_none() {
        if began.elapsed() > Duration::from_secs(60) {
            let _ = child.kill();
            panic!("{what} did not end: {:?}", text(&child.wait_with_output().unwrap()));
        }
        std::thread::sleep(Duration::from_millis(5));
    }
    child.wait_with_output().unwrap()
}

/// A file for h1 to send, and a receiver at h2 that waits for it.
pub struct AwaitedFile {
    /// The command that sends the file.
    pub send: Command,
    receive: Child,
    content: Vec<u8>,
    inbox: PathBuf,
}

impl AwaitedFile {
    /// A file of `len` bytes in `folder`, which also gets the copy.
    pub fn new(site: &RunningNetwork, folder: &Path, len: usize) -> AwaitedFile {
        let at = |name| site.network().topology().find(name).unwrap();
        let (file, content) = (folder.join("file"), bytes(5, len));
        std::fs::write(&file, &content).unwrap();
        let inbox = folder.join("inbox");
        std::fs::create_dir(&inbox).unwrap();
        let words = ["receive", "--count", "1", "--from", "h1", "--dir", inbox.to_str().unwrap()];
        let receive = site.command(at("h2"), &words).stderr(Stdio::null()).spawn().unwrap();
        let words = ["send", "--wait", "10", file.to_str().unwrap(), "h2"];
        AwaitedFile { send: site.command(at("h1"), &words), receive, content, inbox }
    }

    /// Waits until the receiver ends. True if the received file equals the sent one.
    pub fn arrived(mut self) -> bool {
        let received = self.receive.wait().unwrap().success();
        received && std::fs::read(self.inbox.join("file")).unwrap() == self.content
    }
}

/// Random-looking bytes. Equal seeds give equal bytes.
pub fn bytes(seed: u8, len: usize) -> Vec<u8> {
    let mut bytes = vec![0; len];
    shoal_crypto::Rng::new([seed; 32]).fill(&mut bytes);
    bytes
}

/// Names in a folder, sorted.
pub fn names(dir: &Path) -> Vec<String> {
    let entries = std::fs::read_dir(dir).unwrap();
    let mut names: Vec<String> =
        entries.map(|e| e.unwrap().file_name().into_string().unwrap()).collect();
    names.sort();
    names
}

/// Path of an incomplete file (`end` is `part`) or of its record (`state`). The names end with the
/// sender's tag. If there is none, the path leads to no file.
pub fn unfinished(inbox: &Path, file: &str, end: &str) -> PathBuf {
    let (begin, end) = (format!(".{file}-"), format!(".shoal-{end}"));
    let found = names(inbox).into_iter().find(|n| n.starts_with(&begin) && n.ends_with(&end));
    inbox.join(found.unwrap_or(format!("no {end}")))
}

/// True if an incomplete file holds the content at `offset`. Bytes before may be missing.
pub fn holds(path: &Path, content: &[u8], offset: usize) -> bool {
    let mut found = [0; 64];
    let file = std::fs::File::open(path);
    let read = file.is_ok_and(|f| f.read_exact_at(&mut found, offset as u64).is_ok());
    read && found == content[offset..offset + 64]
}

/// Begins a command and captures its output.
pub fn begin(mut command: Command) -> Child {
    command.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap()
}

/// Three nodes. Files from h1 cross at 5 MB/s, slow enough to kill a process in between.
pub fn slow_network() -> LoopbackNet {
    let mut net = LoopbackNet::new(&["r1", "h1", "h2"]);
    net.configure("h1", "[transfer]\nmax_rate_mbit = 40\n");
    net.start_all();
    net
}
