//! Runs docs/tutorial.md as it stands, on two machines made of namespaces.
//!
//! ```text
//!   alice 192.0.2.1 --- 192.0.2.2 bob      each with a /root and a /run of its own; bob runs sshd
//! ```

#![allow(clippy::disallowed_methods, clippy::disallowed_types, reason = "starts real programs")]

use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::PathBuf;
use std::process::{Child, Command, Output, Stdio};
use std::time::{Duration, Instant};

use shoal_lab::needs::{self, Need};
use shoal_lab::{Conditions, Kind, LinkSpec, Network, NodeSpec, Topology};
use shoal_wire::Address;

/// A block of the page.
struct Block {
    machine: String,
    stays: bool,
    script: String,
}

fn blocks() -> Vec<Block> {
    let page = concat!(env!("CARGO_MANIFEST_DIR"), "/../../docs/tutorial.md");
    let text = fs::read_to_string(page).unwrap();
    let parts = text.split("```sh on ").skip(1);
    let blocks = parts.map(|part| {
        let (head, rest) = part.split_once('\n').unwrap();
        let script = rest.split("```").next().unwrap().to_owned();
        let (machine, stays) = match head.split_once(", stays") {
            Some((machine, _)) => (machine, true),
            None => (head, false),
        };
        Block { machine: machine.to_owned(), stays, script }
    });
    blocks.collect()
}

struct Machines {
    /// Processes, ended before the folder is removed.
    running: Vec<Child>,
    network: Network,
    folder: tempfile::TempDir,
}

impl Machines {
    fn new() -> Machines {
        let mut topology = Topology { nodes: Vec::new(), links: Vec::new() };
        for name in ["alice", "bob"] {
            let address = Address::new(0, 0);
            topology.nodes.push(NodeSpec { name: name.into(), address, plain: true });
        }
        topology.links.push(LinkSpec { a: 0, b: 1 });
        let network = Network::build(topology, Kind::Namespaces, Conditions::default()).unwrap();
        let folder = tempfile::tempdir().unwrap();
        let machines = Machines { running: Vec::new(), network, folder };
        for (name, address) in
            [("alice", "192.0.2.1/24 dev to_bob"), ("bob", "192.0.2.2/24 dev to_alice")]
        {
            let home = machines.home(name);
            fs::create_dir_all(home.join(".ssh")).unwrap();
            fs::set_permissions(&home, fs::Permissions::from_mode(0o700)).unwrap();
            machines.ok(name, &format!("ip addr add {address}"));
        }
        // The tutorial's setting for machines without a resolver.
        fs::write(machines.folder.path().join("resolv.conf"), "nameserver 127.0.0.153\n").unwrap();
        let programs = machines.folder.path().join("bin");
        fs::create_dir(&programs).unwrap();
        fs::copy(shoal_e2e::program(), programs.join("shoal")).unwrap();
        machines
    }

    fn home(&self, name: &str) -> PathBuf {
        self.folder.path().join(name)
    }

    /// A shell on the machine `name` that runs `script`.
    fn shell(&self, name: &str, script: &str) -> Command {
        let (folder, home) = (self.folder.path().display(), self.home(name));
        let bin = self.folder.path().join("bin");
        let setting = format!(
            "mount --bind {} /root; mount --bind {folder}/resolv.conf /etc/resolv.conf; \
             mount -t tmpfs none /run; mkdir -p /run/sshd; hostname {name}; cd /root\n",
            home.display()
        );
        let mut command = Command::new("unshare");
        command.args(["--mount", "--uts", "--propagation", "private", "bash", "-e", "-c"]);
        command.arg(setting + script).stdin(Stdio::null());
        let path = std::env::var("PATH").unwrap_or_default();
        command.env("PATH", format!("{}:{path}:/usr/sbin:/sbin", bin.display()));
        command.env("HOME", "/root").env_remove("SHOAL_SOCKET");
        command
    }

    fn run(&self, name: &str, script: &str) -> Output {
        let mut shell = self.shell(name, script);
        self.inside(name, || shell.output().unwrap())
    }

    fn ok(&self, name: &str, script: &str) -> String {
        if !self.folder.path().join("resolv.conf").exists() {
            fs::write(self.folder.path().join("resolv.conf"), "").unwrap();
        }
        let output = self.run(name, script);
        let (out, said) = shoal_e2e::text(&output);
        assert!(output.status.success(), "on {name}:\n{script}\n{out}{said}{}", self.logs());
        out
    }

    fn start(&mut self, name: &str, script: &str) {
        let log = fs::File::options().create(true).append(true).open(self.log(name)).unwrap();
        let mut shell = self.shell(name, &format!("exec {script}"));
        shell.stdout(log.try_clone().unwrap()).stderr(log);
        let child = self.inside(name, || shell.spawn().unwrap());
        self.running.push(child);
    }

    fn inside<T: Send>(&self, name: &str, f: impl FnOnce() -> T + Send) -> T {
        let node = self.network.topology().find(name).unwrap();
        self.network.namespace(node).unwrap().enter(|| Ok(f())).unwrap()
    }

    fn log(&self, name: &str) -> PathBuf {
        self.folder.path().join(format!("{name}.log"))
    }

    fn logs(&self) -> String {
        let log = |name| fs::read_to_string(self.log(name)).unwrap_or_default();
        format!("alice: {}\nbob: {}", log("alice"), log("bob"))
    }

    /// Waits until `script` succeeds on the machine `name`.
    fn until(&self, name: &str, script: &str) {
        let began = Instant::now();
        while !self.run(name, script).status.success() {
            assert!(began.elapsed() < Duration::from_secs(20), "{script}:\n{}", self.logs());
            std::thread::sleep(Duration::from_millis(50));
        }
    }
}

impl Drop for Machines {
    fn drop(&mut self) {
        // Nodes that the page starts in the background, if it did not come to their end.
        self.run("alice", "cat circuits/*/pid | xargs -r kill");
        for child in &mut self.running {
            let _ = child.kill();
            let _ = child.wait();
        }
    }
}

/// `ssh` from alice to root on bob, "as you have it anyway".
fn ssh_by_address(machines: &mut Machines) {
    machines.ok("bob", "ssh-keygen -q -t ed25519 -N '' -f ~/hostkey");
    machines.ok("alice", "ssh-keygen -q -t ed25519 -N '' -f ~/.ssh/id_ed25519");
    let public = fs::read_to_string(machines.home("alice").join(".ssh/id_ed25519.pub")).unwrap();
    fs::write(machines.home("bob").join(".ssh/authorized_keys"), public).unwrap();
    let key = fs::read_to_string(machines.home("bob").join("hostkey.pub")).unwrap();
    let known = format!("192.0.2.2 {key}");
    fs::write(machines.home("alice").join(".ssh/known_hosts"), known).unwrap();
    machines.start(
        "bob",
        "/usr/sbin/sshd -D -e -f /dev/null -o HostKey=$HOME/hostkey -o UsePAM=no -o PidFile=none \
         -o StrictModes=no -o Subsystem='sftp internal-sftp'",
    );
    machines.until("alice", "ssh -o BatchMode=yes root@192.0.2.2 true");
}

#[test]
fn the_tutorial_works_as_written() {
    if !shoal_e2e::tun_possible() {
        return;
    }
    let tools = ["ssh", "ssh-keygen", "sshd", "unshare"].map(Need::Tool);
    if !needs::met(&tools, "SHOAL_REQUIRE_NETNS") {
        return;
    }
    let mut machines = Machines::new();
    ssh_by_address(&mut machines);
    let blocks = blocks();
    assert_eq!(blocks.iter().filter(|block| block.stays).count(), 2);
    let mut said = Vec::new();
    for Block { machine, stays, script } in &blocks {
        if *stays {
            let script = script.trim().replace("&& shoal", "&& exec shoal");
            machines.start(machine, &format!("bash -c '{script}'"));
            let up = "cd ~/shoal; shoal status -c node.toml";
            machines.until(machine, up);
        } else {
            said.push(machines.ok(machine, script));
        }
    }
    let says = |what: &str| said.iter().position(|said| said.contains(what));
    let by_ssh = said.iter().position(|said| said.lines().last() == Some("bob"));
    let required = says("circuits over 3 relays required with one host; 5 relays in the list");
    let known = says("r5 know dave and not this host");
    assert!(by_ssh.is_some() && by_ssh < required && required < known, "{said:#?}");
}
