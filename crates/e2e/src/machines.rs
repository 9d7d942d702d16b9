//! Machines that tests connect by hand: a namespace for each, with nodes in some of them.
//!
//! The lab's networks give each link its own subnet. These tests choose the addresses.

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use serde_json::Value;
use shoal_lab::namespace::Namespace;

use crate::{program, send_signal, shoal, text};

const PATIENCE: Duration = Duration::from_secs(60);

/// The machines, the folders of their nodes, and the running nodes. Nodes end when this is dropped.
pub struct Machines {
    folder: tempfile::TempDir,
    spaces: BTreeMap<String, Namespace>,
    running: Vec<(String, Child)>,
}

impl Machines {
    /// Machines of these names, without links.
    pub fn new(names: &[&str]) -> Machines {
        let folder = tempfile::tempdir().unwrap();
        let space = |name: &&str| {
            std::fs::create_dir(folder.path().join(name)).unwrap();
            (name.to_string(), Namespace::new().unwrap())
        };
        let spaces = names.iter().map(space).collect();
        Machines { folder, spaces, running: Vec::new() }
    }

    fn space(&self, name: &str) -> &Namespace {
        self.spaces.get(name).unwrap_or_else(|| panic!("no machine {name}"))
    }

    /// Connects an interface of one machine with one of another, and brings both up.
    pub fn join(&self, (a, of_a): (&str, &str), (b, of_b): (&str, &str)) {
        let there = format!("/proc/{}/fd/{}", std::process::id(), self.space(b).raw_fd());
        let pair = format!("ip link add {of_a} type veth peer name {of_b} netns {there}");
        self.sh(a, &format!("{pair}; ip link set {of_a} up"));
        self.sh(b, &format!("ip link set {of_b} up"));
    }

    /// The folder of a machine's node, whose configuration is `node.toml`.
    pub fn folder(&self, name: &str) -> PathBuf {
        self.folder.path().join(name)
    }

    /// A file in the folder of all machines.
    pub fn file(&self, name: &str) -> PathBuf {
        self.folder.path().join(name)
    }

    /// Runs a function inside a machine.
    pub fn inside<T: Send>(&self, name: &str, f: impl FnOnce() -> T + Send) -> T {
        self.space(name).enter(|| Ok(f())).unwrap()
    }

    fn shell(&self, name: &str, script: &str) -> Command {
        let mut command = Command::new("bash");
        command.args(["-e", "-c", script]).current_dir(self.folder(name)).stdin(Stdio::null());
        command
    }

    /// Runs a script on a machine. Returns its success and its output.
    pub fn tries(&self, name: &str, script: &str) -> (bool, String) {
        let mut shell = self.shell(name, script);
        let output = self.inside(name, || shell.output().unwrap());
        let (out, err) = text(&output);
        (output.status.success(), out + &err)
    }

    /// Runs a script on a machine, which must succeed. Returns its output.
    #[track_caller]
    pub fn sh(&self, name: &str, script: &str) -> String {
        let (done, said) = self.tries(name, script);
        assert!(done, "on {name}: {script}:\n{said}");
        said
    }

    /// Begins a script on a machine, and captures its output.
    pub fn begin(&self, name: &str, script: &str) -> Child {
        let mut shell = self.shell(name, &format!("exec {script}"));
        shell.stdout(Stdio::piped()).stderr(Stdio::piped());
        self.inside(name, || shell.spawn().unwrap())
    }

    /// Creates a key in a node's folder. Returns its public key.
    pub fn make_key(&self, name: &str) -> String {
        let file = self.folder(name).join("node.key");
        let file = file.to_str().unwrap();
        assert!(shoal(&["genkey", "-o", file]).output().unwrap().status.success());
        text(&shoal(&["pubkey", file]).output().unwrap()).0.trim().to_string()
    }

    /// Creates the secret of the network, `network.key` beside the folders.
    pub fn make_secret(&self) {
        let file = self.file("network.key");
        let made = shoal(&["genkey", "--network", "-o", file.to_str().unwrap()]).output().unwrap();
        assert!(made.status.success(), "{:?}", text(&made));
    }

    /// Writes keys and files of nodes. The first is a router that listens at port 7400. The others
    /// are its hosts, which call it at `endpoint`. Each node has an interface and a DNS responder.
    pub fn write_nodes(&self, names: &[&str], endpoint: &str) {
        self.make_secret();
        let (mut hosts, mut links) = (String::new(), String::new());
        for (host, name) in names.iter().enumerate() {
            let key = self.make_key(name);
            let entry = format!("name = \"{name}\"\naddress = \"1.{host}\"\nkey = \"{key}\"\n");
            hosts += &format!("[[host]]\n{entry}");
            links += &format!("[[link]]\npeer = \"{name}\"\n");
        }
        std::fs::write(self.file("hosts.toml"), hosts).unwrap();
        let of_router = format!("[[link]]\npeer = \"{}\"\n", names[0]);
        let links = links.replacen(&of_router, "", 1);
        for (host, name) in names.iter().enumerate() {
            let (listen, links) = match host {
                0 => ("listen = [\"0.0.0.0:7400\", \"[::]:7400\"]\n", links.clone()),
                _ => ("", format!("{of_router}endpoint = \"{endpoint}\"\n")),
            };
            let config = format!(
                "[node]\nname = \"{name}\"\naddress = \"1.{host}\"\nkey_file = \"node.key\"\n\
                 network_secret_file = \"../network.key\"\nhosts_file = \"../hosts.toml\"\n\
                 control_socket = \"control.sock\"\n{listen}{links}\
                 [interface]\n[names]\nresolved = false\n"
            );
            std::fs::write(self.folder(name).join("node.toml"), config).unwrap();
        }
    }

    /// Starts a machine's node and waits until it answers. A file `etc-hosts` in its folder
    /// replaces /etc/hosts for the node.
    pub fn start(&mut self, name: &str) {
        let log = std::fs::File::options().create(true).append(true).open(self.log(name)).unwrap();
        let known = self.folder(name).join("etc-hosts");
        let mut command = shoal(&["run", "-c"]);
        if known.exists() {
            let script = "mount --bind \"$1\" /etc/hosts && exec \"$2\" run -c \"$3\"";
            command = Command::new("unshare");
            command.args(["--mount", "sh", "-c", script, "sh"]).arg(known).arg(program());
        }
        command.arg(self.folder(name).join("node.toml")).stdout(Stdio::null()).stderr(log);
        let child = self.inside(name, || command.spawn().unwrap());
        self.running.push((name.to_string(), child));
        self.until("the node answers", || self.ask(name, &["status"]).is_some());
    }

    /// Ends a node with this signal, and waits for its end.
    pub fn end(&mut self, name: &str, signal: &str) {
        let at = self.running.iter().position(|(known, _)| known == name).unwrap();
        let (_, mut child) = self.running.remove(at);
        send_signal(&child, signal);
        child.wait().unwrap();
    }

    /// Runs a command for a machine's node. Returns its success and its output.
    pub fn command(&self, name: &str, words: &[&str]) -> (bool, String) {
        let mut command = shoal(words);
        command.arg("-c").arg(self.folder(name).join("node.toml"));
        let output = self.inside(name, || command.output().unwrap());
        let (out, err) = text(&output);
        (output.status.success(), out + &err)
    }

    /// A node's answer in JSON, if it answers.
    pub fn ask(&self, name: &str, words: &[&str]) -> Option<Value> {
        let mut command = shoal(words);
        command.arg("--json").arg("-c").arg(self.folder(name).join("node.toml"));
        let output = self.inside(name, || command.output().unwrap());
        let (out, _) = text(&output);
        output.status.success().then(|| serde_json::from_str(out.lines().last()?).ok()).flatten()
    }

    /// Warnings of a node's status, without the one about tests running as root.
    pub fn warnings(&self, name: &str) -> Vec<String> {
        let status = self.ask(name, &["status"]).unwrap();
        let warnings = status["status"]["warnings"].as_array().unwrap();
        let texts = warnings.iter().filter_map(|text| text.as_str());
        texts.filter(|text| !text.starts_with("running as root")).map(str::to_string).collect()
    }

    /// State of shifts on a node's link with a neighbour: the state, and the numbers of shifts made
    /// and failed.
    pub fn shifts(&self, name: &str, peer: &str) -> Option<(String, u64, u64)> {
        let peers = self.ask(name, &["peers"])?;
        let peer = peers["peers"].as_array()?.iter().find(|known| known["name"] == peer)?;
        let shift = &peer["shift"];
        let state = shift["state"].as_str()?.to_string();
        Some((state, shift["made"].as_u64()?, shift["failed"].as_u64()?))
    }

    /// Waits until a link's addresses shift.
    pub fn wait_until_shifting(&self, name: &str, peer: &str) {
        let shifts = || self.shifts(name, peer).is_some_and(|(state, ..)| state == "shifting");
        self.until(&format!("{name} shifts with {peer}"), shifts);
    }

    /// Waits until `done` is true. Panics after 60 s.
    #[track_caller]
    pub fn until(&self, what: &str, done: impl Fn() -> bool) {
        let began = Instant::now();
        while !done() {
            let logs = || self.spaces.keys().map(|name| self.log_of(name)).collect::<String>();
            assert!(began.elapsed() < PATIENCE, "never came: {what}\n{}", logs());
            std::thread::sleep(Duration::from_millis(50));
        }
    }

    fn log(&self, name: &str) -> PathBuf {
        self.folder(name).join("log")
    }

    /// Log of a machine's node, after its name.
    pub fn log_of(&self, name: &str) -> String {
        let text = std::fs::read_to_string(self.log(name)).unwrap_or_default();
        format!("{name}: {text}\n")
    }
}

impl Drop for Machines {
    fn drop(&mut self) {
        for (_, child) in &mut self.running {
            let _ = child.kill();
            let _ = child.wait();
        }
    }
}
