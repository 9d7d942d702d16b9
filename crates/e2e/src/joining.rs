//! A network made by one command on the loopback, and machines that join it by invites.

use std::fs;
use std::net::Ipv4Addr;
use std::path::{Path, PathBuf};
use std::process::{Child, Stdio};
use std::sync::atomic::{AtomicU8, Ordering};
use std::time::{Duration, Instant};

use serde_json::Value;
use shoal_daemon::control::api::{Command, ControlReply, Status};
use shoal_daemon::control::socket::ControlConnection;

use crate::{send_signal, shoal, text};

/// A network with a router and a registrar on the loopback.
pub struct JoiningNetwork {
    folder: tempfile::TempDir,
    endpoint: Ipv4Addr,
    /// Running processes, by name.
    pub running: Vec<(String, Child)>,
}

fn own_address() -> Ipv4Addr {
    static NEXT: AtomicU8 = AtomicU8::new(1);
    let [.., high, low] = std::process::id().to_be_bytes();
    Ipv4Addr::new(127, 64 | (high & 63), low, NEXT.fetch_add(1, Ordering::Relaxed))
}

impl JoiningNetwork {
    /// Creates the files, and starts the node and the registrar as processes.
    #[expect(clippy::new_without_default, reason = "the call starts programs")]
    pub fn new() -> JoiningNetwork {
        let mut world = JoiningNetwork::create(&[]);
        world.start("r1");
        world.start_registrar();
        world
    }

    /// Creates the files, with further words for `shoal network create`, and starts nothing.
    pub fn create(more: &[&str]) -> JoiningNetwork {
        let folder = tempfile::tempdir().unwrap();
        let world = JoiningNetwork { folder, endpoint: own_address(), running: Vec::new() };
        let (dir, authority) = (world.path("r1"), world.path("authority"));
        let endpoint = world.endpoint.to_string();
        let words = ["network", "create", "home", "--no-start", "--no-interface", "--host", "r1"];
        let mut create = shoal(&words);
        create.args(more).args(["--endpoint", &endpoint]).arg("--dir").arg(dir);
        let output = create.arg("--authority").arg(authority).output().unwrap();
        assert!(output.status.success(), "{:?}", text(&output));
        assert!(text(&output).0.contains("move that"), "{:?}", text(&output));
        world
    }

    /// Address of the network's first router and of its registrar.
    pub fn endpoint(&self) -> Ipv4Addr {
        self.endpoint
    }

    /// A path in the folder of this network.
    pub fn path(&self, name: &str) -> PathBuf {
        self.folder.path().join(name)
    }

    /// Starts `shoal` with these words. Its output goes to NAME.log.
    pub fn spawn(&mut self, name: &str, words: &[&str]) {
        self.spawn_with(name, words, &[]);
    }

    fn spawn_with(&mut self, name: &str, words: &[&str], environment: &[(&str, &Path)]) {
        let log = fs::File::create(self.path(&format!("{name}.log"))).unwrap();
        let mut command = shoal(words);
        command.stdout(log.try_clone().unwrap()).stderr(log);
        command.envs(environment.iter().copied());
        self.running.push((name.to_owned(), command.spawn().unwrap()));
    }

    /// Starts the node NAME, and waits until it answers.
    pub fn start(&mut self, name: &str) {
        self.start_with(name, &[]);
    }

    /// [`JoiningNetwork::start`] with more environment variables.
    pub fn start_with(&mut self, name: &str, environment: &[(&str, &Path)]) {
        let config = self.path(name).join("node.toml");
        self.spawn_with(name, &["run", "-c", config.to_str().unwrap()], environment);
        self.until(|_| shoal(&["status", "-c"]).arg(&config).output().unwrap().status.success());
    }

    /// The registrar's configuration file.
    pub fn registrar(&self) -> String {
        self.path("r1").join("registrar/registrar.toml").to_str().unwrap().to_owned()
    }

    /// Starts the registrar, and waits until it answers.
    pub fn start_registrar(&mut self) {
        let config = self.registrar();
        self.spawn("registrar", &["registrar", "run", "-c", &config]);
        self.until(|world| world.ask(&["registrar", "status"]).is_some());
    }

    /// Ends a process with a signal such as `-TERM`.
    pub fn end(&mut self, name: &str, signal: &str) {
        let at = self.running.iter().position(|(other, _)| other == name).unwrap();
        let (_, mut child) = self.running.remove(at);
        send_signal(&child, signal);
        child.wait().unwrap();
    }

    /// The registrar's answer as JSON.
    pub fn ask(&self, words: &[&str]) -> Option<Value> {
        let output = shoal(words).args(["-c", &self.registrar(), "--json"]).output().unwrap();
        let last = text(&output).0.lines().last()?.to_owned();
        output.status.success().then(|| serde_json::from_str(&last).unwrap())
    }

    /// Creates an invite.
    pub fn invite(&self, words: &[&str]) -> String {
        let made = self.ask(&[&["invite"], words].concat()).expect("an invite");
        made["invite"]["text"].as_str().unwrap().to_owned()
    }

    /// Runs `shoal up` without a start. Returns the exit code and the output.
    pub fn up(&self, name: &str, invite: &str, words: &[&str]) -> (Option<i32>, String) {
        let mut command = shoal(&["up", invite, "--no-start", "--no-interface", "--dir"]);
        command.arg(self.path(name)).args(["--name", name]).args(words);
        let output = command.stdin(Stdio::null()).output().unwrap();
        let (out, err) = text(&output);
        (output.status.code(), out + &err)
    }

    /// Runs [`JoiningNetwork::up`], which must succeed.
    #[track_caller]
    pub fn joins(&self, name: &str, invite: &str) {
        let (code, said) = self.up(name, invite, &[]);
        assert_eq!(code, Some(0), "{said}{}", self.logs());
    }

    /// Runs a command of the authority. Returns its exit code and output.
    pub fn authority(&self, words: &[&str]) -> (Option<i32>, String) {
        let mut command = shoal(&["authority", words[0]]);
        let output = command.arg("--dir").arg(self.path("authority")).args(&words[1..]).output();
        let output = output.unwrap();
        let (out, err) = text(&output);
        (output.status.code(), out + &err)
    }

    /// Runs a command of the authority, which must succeed, and puts its list on one node.
    #[track_caller]
    pub fn publish(&self, words: &[&str], on: &str) {
        let (code, said) = self.authority(words);
        assert_eq!(code, Some(0), "{said}");
        let list = self.path("authority/network.list");
        fs::copy(list, self.path(on).join("network.list")).unwrap();
    }

    /// Announces another secret of the network, and gives r1 the list and the secret.
    #[track_caller]
    pub fn announce(&self) {
        let secret = self.path("r1/network.key");
        self.publish(&["rotate", "announce", "--secret", secret.to_str().unwrap()], "r1");
        let next = self.path("authority/network.key.next");
        fs::copy(next, self.path("r1/network.key.next")).unwrap();
    }

    /// True if a node's list has this state of the secret's change, and the node has the newest
    /// secret.
    #[track_caller]
    pub fn is_rotated(&self, name: &str, state: &str) -> bool {
        let secret = self.status(name).authority.and_then(|authority| authority.secret);
        secret.is_some_and(|secret| secret.state == state && secret.has_newest)
    }

    /// Waits until all of these nodes have this state.
    #[track_caller]
    pub fn all_rotated(&self, names: &[&str], state: &str) {
        self.until(|world| names.iter().all(|name| world.is_rotated(name, state)));
    }

    /// Creates the files of a node that the authority signs, with a link to `neighbour`. If the
    /// node is a router, the neighbour's file gets the link, too. Starts no node. Only the new node
    /// gets the new list.
    pub fn signs(&self, name: &str, address: &str, neighbour: &str) {
        let dir = self.path(name);
        fs::create_dir(&dir).unwrap();
        let key = dir.join("node.key");
        let made = shoal(&["genkey", "-o"]).arg(&key).output().unwrap();
        assert!(made.status.success(), "{:?}", text(&made));
        let public = text(&shoal(&["pubkey"]).arg(&key).output().unwrap()).0;
        let (is_router, at) = (address.ends_with(".0"), self.endpoint_of(address));
        let mut words = vec!["sign", name, "--key", public.trim(), "--address", address];
        let called = ["--endpoint", &at, "--group", "members"];
        words.extend(&called[if is_router { 0 } else { 2 }..]);
        self.publish(&words, name);
        let files = ["network.key", "node.toml"].map(|file| self.path("r1").join(file));
        fs::copy(&files[0], dir.join("network.key")).unwrap();
        let first = fs::read_to_string(&files[1]).unwrap();
        let authority = first.lines().find(|line| line.starts_with("key = ")).unwrap();
        let config = format!(
            "[node]\nname = \"{name}\"\naddress = \"{address}\"\nkey_file = \"node.key\"\n\
             network_secret_file = \"network.key\"\nlisten = [\"{at}\"]\n\
             control_socket = \"control.sock\"\n[authority]\n{authority}\n\
             list_file = \"network.list\"\n[links]\naccept = \"members\"\n"
        );
        fs::write(dir.join("node.toml"), config).unwrap();
        if is_router {
            self.configure(name, &format!("[[link]]\npeer = \"{neighbour}\"\n"));
            self.configure(
                neighbour,
                &format!("\n[[link]]\npeer = \"{name}\"\nendpoint = \"{at}\"\n"),
            );
        }
    }

    /// Endpoint of the node at an overlay address, if the authority signs it.
    fn endpoint_of(&self, address: &str) -> String {
        let (router, host) = address.split_once('.').unwrap();
        let [router, host]: [u16; 2] = [router, host].map(|number| number.parse().unwrap());
        // Below the kernel's ephemeral range.
        format!("{}:{}", self.endpoint, 20_400 + 100 * router + host)
    }

    /// Adds to a node's configuration.
    pub fn configure(&self, name: &str, more: &str) {
        let file = self.path(name).join("node.toml");
        let text = fs::read_to_string(&file).unwrap();
        fs::write(file, text + more).unwrap();
    }

    /// Asks a node by its control socket; none if it does not answer.
    pub fn call(&self, name: &str, command: Command) -> Option<ControlReply> {
        let socket = self.path(name).join("control.sock");
        ControlConnection::connect(&socket).ok()?.call(command, &[]).ok()
    }

    /// Status of a node.
    #[track_caller]
    pub fn status(&self, name: &str) -> Status {
        match self.call(name, Command::Status) {
            Some(ControlReply::Status(status)) => *status,
            other => panic!("{other:?}\n{}", self.logs()),
        }
    }

    /// Number of datagrams and messages that a node dropped for this reason.
    #[track_caller]
    pub fn drops(&self, name: &str, reason: &str) -> u64 {
        let drops = self.status(name).drops;
        drops.iter().find(|(other, _)| other == reason).map_or(0, |(_, count)| *count)
    }

    /// Names of the registrar's members.
    pub fn members(&self) -> Vec<String> {
        let members = self.ask(&["registrar", "members"]).expect("the registrar runs");
        let all = members["members"].as_array().unwrap();
        all.iter().map(|member| member["name"].as_str().unwrap().to_owned()).collect()
    }

    /// Overlay addresses of one of the registrar's members, the first one first.
    #[track_caller]
    pub fn addresses(&self, name: &str) -> Vec<String> {
        let members = self.ask(&["registrar", "members"]).expect("the registrar runs");
        let all = members["members"].as_array().unwrap();
        let member = all.iter().find(|member| member["name"] == name).expect("a member");
        let both = [&member["address"], &member["second"]];
        both.into_iter().filter_map(Value::as_str).map(str::to_owned).collect()
    }

    /// True if one node reaches another.
    pub fn pings(&self, from: &str, to: &str) -> bool {
        let config = self.path(from).join("node.toml");
        let ping = ["ping", "-n", "1", "-W", "0.5", to, "-c", config.to_str().unwrap()];
        shoal(&ping).output().unwrap().status.success()
    }

    /// Logs of all running processes.
    pub fn logs(&self) -> String {
        let log = |(name, _): &(String, Child)| {
            fs::read_to_string(self.path(&format!("{name}.log"))).unwrap_or_default()
        };
        self.running.iter().map(log).collect::<Vec<_>>().join("\n")
    }

    /// Waits until `done` is true. Panics after 30 s.
    #[track_caller]
    pub fn until(&self, done: impl Fn(&JoiningNetwork) -> bool) {
        let began = Instant::now();
        while !done(self) {
            assert!(
                began.elapsed() < Duration::from_secs(30),
                "the expected state never came:\n{}",
                self.logs()
            );
            std::thread::sleep(Duration::from_millis(20));
        }
    }
}

impl Drop for JoiningNetwork {
    fn drop(&mut self) {
        for (_, child) in &mut self.running {
            let _ = child.kill();
            let _ = child.wait();
        }
    }
}
