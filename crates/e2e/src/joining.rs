//! A network of one command on the loopback, and machines that join it by invites.

use std::fs;
use std::net::Ipv4Addr;
use std::path::PathBuf;
use std::process::{Child, Stdio};
use std::sync::atomic::{AtomicU8, Ordering};
use std::time::{Duration, Instant};

use serde_json::Value;

use crate::{send_signal, shoal, text};

/// A network with a router and a registrar on the loopback.
pub struct World {
    folder: tempfile::TempDir,
    endpoint: Ipv4Addr,
    /// Processes that run, by name.
    pub running: Vec<(String, Child)>,
}

fn own_address() -> Ipv4Addr {
    static NEXT: AtomicU8 = AtomicU8::new(1);
    let [.., high, low] = std::process::id().to_be_bytes();
    Ipv4Addr::new(127, 64 | (high & 63), low, NEXT.fetch_add(1, Ordering::Relaxed))
}

impl World {
    /// Makes the files, and starts node and registrar as processes of their own.
    #[expect(clippy::new_without_default, reason = "it starts programs")]
    pub fn new() -> World {
        let mut world = World::create(&[]);
        world.start("r1");
        world.start_registrar();
        world
    }

    /// Makes the files, with further words for `shoal network create`, and starts nothing.
    pub fn create(more: &[&str]) -> World {
        let folder = tempfile::tempdir().unwrap();
        let world = World { folder, endpoint: own_address(), running: Vec::new() };
        let (dir, authority) = (world.path("r1"), world.path("authority"));
        let endpoint = world.endpoint.to_string();
        let words = ["network", "create", "home", "--no-start", "--no-interface", "--host", "r1"];
        let mut create = shoal(&words);
        create.args(more).args(["--endpoint", &endpoint]).arg("--dir").arg(dir);
        let output = create.arg("--authority").arg(authority).output().unwrap();
        assert!(output.status.success(), "{:?}", text(&output));
        assert!(text(&output).0.contains("move it"), "{:?}", text(&output));
        world
    }

    /// A place in the folder of this network.
    pub fn path(&self, name: &str) -> PathBuf {
        self.folder.path().join(name)
    }

    /// Starts `shoal` with these words, and keeps what it says in NAME.log.
    pub fn spawn(&mut self, name: &str, words: &[&str]) {
        let log = fs::File::create(self.path(&format!("{name}.log"))).unwrap();
        let mut command = shoal(words);
        command.stdout(log.try_clone().unwrap()).stderr(log);
        self.running.push((name.to_owned(), command.spawn().unwrap()));
    }

    /// Starts the node NAME, and waits until it answers.
    pub fn start(&mut self, name: &str) {
        let config = self.path(name).join("node.toml");
        self.spawn(name, &["run", "-c", config.to_str().unwrap()]);
        self.until(|_| shoal(&["status", "-c"]).arg(&config).output().unwrap().status.success());
    }

    /// The registrar's file.
    pub fn registrar(&self) -> String {
        self.path("r1").join("registrar/registrar.toml").to_str().unwrap().to_owned()
    }

    /// Starts the registrar, and waits until it answers.
    pub fn start_registrar(&mut self) {
        let config = self.registrar();
        self.spawn("registrar", &["registrar", "run", "-c", &config]);
        self.until(|world| world.ask(&["registrar", "status"]).is_some());
    }

    /// Ends a process by a signal such as `-TERM`.
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

    /// Makes an invite.
    pub fn invite(&self, words: &[&str]) -> String {
        let made = self.ask(&[&["invite"], words].concat()).expect("an invite");
        made["invite"]["text"].as_str().unwrap().to_owned()
    }

    /// `shoal up` without a start: exit code and what was said.
    pub fn up(&self, name: &str, invite: &str, words: &[&str]) -> (Option<i32>, String) {
        let mut command = shoal(&["up", invite, "--no-start", "--no-interface", "--dir"]);
        command.arg(self.path(name)).args(["--name", name]).args(words);
        let output = command.stdin(Stdio::null()).output().unwrap();
        let (out, err) = text(&output);
        (output.status.code(), out + &err)
    }

    /// As [`World::up`], which must succeed.
    #[track_caller]
    pub fn joins(&self, name: &str, invite: &str) {
        let (code, said) = self.up(name, invite, &[]);
        assert_eq!(code, Some(0), "{said}{}", self.logs());
    }

    /// Names of the registrar's members.
    pub fn members(&self) -> Vec<String> {
        let members = self.ask(&["registrar", "members"]).expect("the registrar runs");
        let all = members["members"].as_array().unwrap();
        all.iter().map(|member| member["name"].as_str().unwrap().to_owned()).collect()
    }

    /// Whether one node reaches another.
    pub fn pings(&self, from: &str, to: &str) -> bool {
        let config = self.path(from).join("node.toml");
        let ping = ["ping", "-n", "1", "-W", "0.5", to, "-c", config.to_str().unwrap()];
        shoal(&ping).output().unwrap().status.success()
    }

    /// What all that run have said.
    pub fn logs(&self) -> String {
        let log = |(name, _): &(String, Child)| {
            fs::read_to_string(self.path(&format!("{name}.log"))).unwrap_or_default()
        };
        self.running.iter().map(log).collect::<Vec<_>>().join("\n")
    }

    /// Waits until `done` is true; panics after a while.
    #[track_caller]
    pub fn until(&self, done: impl Fn(&World) -> bool) {
        let began = Instant::now();
        while !done(self) {
            assert!(began.elapsed() < Duration::from_secs(30), "it never came:\n{}", self.logs());
            std::thread::sleep(Duration::from_millis(20));
        }
    }
}

impl Drop for World {
    fn drop(&mut self) {
        for (_, child) in &mut self.running {
            let _ = child.kill();
            let _ = child.wait();
        }
    }
}
