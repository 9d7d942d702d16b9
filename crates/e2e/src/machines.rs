//! Machines that tests wire by hand: a namespace each, with nodes in some of them.
//!
//! The lab's networks give each link a subnet of its own. Here tests say which addresses there are.

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use serde_json::Value;
use shoal_lab::namespace::Namespace;

use crate::{program, send_signal, shoal, text};

const PATIENCE: Duration = Duration::from_secs(60);

/// The machines, the folders of their nodes, and the nodes that run; these end with it.
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

    /// Joins an interface of one machine with one of another; both are up.
    pub fn join(&self, (a, of_a): (&str, &str), (b, of_b): (&str, &str)) {
        let there = format!("/proc/{}/fd/{}", std::process::id(), self.space(b).raw_fd());
        let pair = format!("ip link add {of_a} type veth peer name {of_b} netns {there}");
        self.sh(a, &format!("{pair}; ip link set {of_a} up"));
        self.sh(b, &format!("ip link set {of_b} up"));
    }

    /// The folder of a machine's node, named `node.toml` there.
    pub fn folder(&self, name: &str) -> PathBuf {
        self.folder.path().join(name)
    }

    /// A file in the folder of all machines.
    pub fn file(&self, name: &str) -> PathBuf {
        self.folder.path().join(name)
    }

    /// Runs something inside a machine.
    pub fn inside<T: Send>(&self, name: &str, f: impl FnOnce() -> T + Send) -> T {
        self.space(name).enter(|| Ok(f())).unwrap()
    }

    fn shell(&self, name: &str, script: &str) -> Command {
        let mut command = Command::new("bash");
        command.args(["-e", "-c", script]).current_dir(self.folder(name)).stdin(Stdio::null());
        command
    }

    /// Runs a script on a machine: whether it succeeded, and all that it said.
    pub fn tries(&self, name: &str, script: &str) -> (bool, String) {
        let mut shell = self.shell(name, script);
        let output = self.inside(name, || shell.output().unwrap());
        let (out, err) = text(&output);
        (output.status.success(), out + &err)
    }

    /// Runs a script on a machine, which must succeed; gives what it said.
    #[track_caller]
    pub fn sh(&self, name: &str, script: &str) -> String {
        let (done, said) = self.tries(name, script);
        assert!(done, "on {name}: {script}:\n{said}");
        said
    }

    /// Begins a script on a machine; its output is kept.
    pub fn begin(&self, name: &str, script: &str) -> Child {
        let mut shell = self.shell(name, &format!("exec {script}"));
        shell.stdout(Stdio::piped()).stderr(Stdio::piped());
        self.inside(name, || shell.spawn().unwrap())
    }

    /// Makes a key in a node's folder; gives its public key.
    pub fn make_key(&self, name: &str) -> String {
        let file = self.folder(name).join("node.key");
        let file = file.to_str().unwrap();
        assert!(shoal(&["genkey", "-o", file]).output().unwrap().status.success());
        text(&shoal(&["pubkey", file]).output().unwrap()).0.trim().to_string()
    }

    /// Makes the secret of the network, `network.key` beside the folders.
    pub fn make_secret(&self) {
        let file = self.file("network.key");
        let made = shoal(&["genkey", "--network", "-o", file.to_str().unwrap()]).output().unwrap();
        assert!(made.status.success(), "{:?}", text(&made));
    }

    /// Writes keys and files of nodes: the first is a router, and the others are its hosts, which
    /// call it at `endpoint`. The router listens at port 7400. Each has an interface, and answers
    /// for names.
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

    /// Starts a machine's node and waits until it answers. A file `etc-hosts` in its folder stands
    /// in the place of /etc/hosts.
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

    /// A command to a machine's node: whether it succeeded, and all that it said.
    pub fn command(&self, name: &str, words: &[&str]) -> (bool, String) {
        let mut command = shoal(words);
        command.arg("-c").arg(self.folder(name).join("node.toml"));
        let output = self.inside(name, || command.output().unwrap());
        let (out, err) = text(&output);
        (output.status.success(), out + &err)
    }

    /// What a node answers in JSON, if it does.
    pub fn ask(&self, name: &str, words: &[&str]) -> Option<Value> {
        let mut command = shoal(words);
        command.arg("--json").arg("-c").arg(self.folder(name).join("node.toml"));
        let output = self.inside(name, || command.output().unwrap());
        let (out, _) = text(&output);
        output.status.success().then(|| serde_json::from_str(out.lines().last()?).ok()).flatten()
    }

    /// Warnings of a node's status, but for that of tests, which run as root.
    pub fn warnings(&self, name: &str) -> Vec<String> {
        let status = self.ask(name, &["status"]).unwrap();
        let warnings = status["status"]["warnings"].as_array().unwrap();
        let texts = warnings.iter().filter_map(|text| text.as_str());
        texts.filter(|text| !text.starts_with("running as root")).map(str::to_string).collect()
    }

    /// What a node says of the hops of its link with a neighbour: the state, how many were made,
    /// and how many failed.
    pub fn hops(&self, name: &str, peer: &str) -> Option<(String, u64, u64)> {
        let peers = self.ask(name, &["peers"])?;
        let peer = peers["peers"].as_array()?.iter().find(|known| known["name"] == peer)?;
        let hop = &peer["hop"];
        let state = hop["state"].as_str()?.to_string();
        Some((state, hop["made"].as_u64()?, hop["failed"].as_u64()?))
    }

    /// Waits until a link's addresses hop.
    pub fn wait_until_hopping(&self, name: &str, peer: &str) {
        let hops = || self.hops(name, peer).is_some_and(|(state, ..)| state == "hopping");
        self.until(&format!("{name} hops with {peer}"), hops);
    }

    /// Waits until `done`; panics after a while.
    #[track_caller]
    pub fn until(&self, what: &str, done: impl Fn() -> bool) {
        let began = Instant::now();
        while !done() {
            let logs = || self.spaces.keys().map(|name| self.log_of(name)).collect::<String>();
            assert!(began.elapsed() < PATIENCE, "it never came: {what}\n{}", logs());
            std::thread::sleep(Duration::from_millis(50));
        }
    }

    fn log(&self, name: &str) -> PathBuf {
        self.folder(name).join("log")
    }

    /// Log of a machine's node, behind its name.
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
