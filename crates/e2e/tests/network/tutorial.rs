//! Runs the commands of four pages unchanged, on machines made of namespaces.
//!
//! ```text
//!   start/quickstart.md                        one 192.0.2.1, two 192.0.2.2, three 192.0.2.3
//!   guide/by-hand.md, guide/try-circuits.md    alice 192.0.2.1, bob 192.0.2.2; bob runs sshd
//!   guide/move.md                              old 192.0.2.1, new 192.0.2.2, two 192.0.2.3
//! ```
//!
//! A switch connects them. Each has its own folders where the pages write: /root, /etc, /run and
//! /var/lib.

use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::PathBuf;
use std::process::{Child, Command, Output, Stdio};
use std::time::{Duration, Instant};

use shoal_lab::needs::{self, Requirement};
use shoal_lab::{Conditions, LinkSpec, Network, NetworkKind, NodeSpec, Topology};
use shoal_wire::Address;

/// A block of a page.
struct PageBlock {
    machine: String,
    stays: bool,
    script: String,
}

/// The blocks of a page of docs/.
fn blocks_of(page: &str) -> Vec<PageBlock> {
    let docs = concat!(env!("CARGO_MANIFEST_DIR"), "/../../docs");
    let text = fs::read_to_string(format!("{docs}/{page}")).unwrap();
    let parts = text.split("```sh on ").skip(1);
    let blocks = parts.map(|part| {
        let (head, rest) = part.split_once('\n').unwrap();
        let script = rest.split("```").next().unwrap().to_owned();
        let (machine, stays) = match head.split_once(", stays") {
            Some((machine, _)) => (machine, true),
            None => (head, false),
        };
        PageBlock { machine: machine.to_owned(), stays, script }
    });
    blocks.collect()
}

/// Placeholder in the page for the printed invite.
const INVITE: &str = "SHOAL:1/INVITE";
/// The switch between machines.
const SWITCH: &str = "switch";

struct PageMachines {
    /// Processes, ended before the folder is removed.
    running: Vec<Child>,
    network: Network,
    folder: tempfile::TempDir,
}

impl PageMachines {
    /// Machines at 192.0.2.1, 192.0.2.2, ...
    fn new(names: &[&str]) -> PageMachines {
        let plain =
            |name: &str| NodeSpec { name: name.into(), address: Address::new(0, 0), plain: true };
        let nodes: Vec<_> = names.iter().copied().chain([SWITCH]).map(plain).collect();
        let links = (0..names.len()).map(|a| LinkSpec { a, b: names.len() }).collect();
        let topology = Topology { nodes, links };
        let network =
            Network::build(topology, NetworkKind::Namespaces, Conditions::default()).unwrap();
        let folder = tempfile::tempdir().unwrap();
        let machines = PageMachines { running: Vec::new(), network, folder };
        machines.make_folders(SWITCH);
        let mut joined = String::from("ip link add lan type bridge; ip link set lan up\n");
        for (n, name) in (1..).zip(names) {
            machines.make_folders(name);
            let address = format!("192.0.2.{n}/24 dev to_{SWITCH}");
            machines.ok(name, &format!("ip addr flush dev to_{SWITCH}; ip addr add {address}"));
            joined += &format!("ip link set to_{name} master lan\n");
        }
        machines.ok(SWITCH, &joined);
        let programs = machines.folder.path().join("bin");
        fs::create_dir(&programs).unwrap();
        fs::copy(shoal_e2e::program(), programs.join("shoal")).unwrap();
        machines
    }

    /// Path on the test's machine of a folder of the machine `name`.
    fn at(&self, name: &str, folder: &str) -> PathBuf {
        self.folder.path().join(name).join(folder)
    }

    fn home(&self, name: &str) -> PathBuf {
        self.at(name, "root")
    }

    fn make_folders(&self, name: &str) {
        for folder in ["root/.ssh", "run/sshd", "lib"] {
            fs::create_dir_all(self.at(name, folder)).unwrap();
        }
        fs::set_permissions(self.home(name), fs::Permissions::from_mode(0o700)).unwrap();
        let etc = self.at(name, "etc");
        let copied = Command::new("cp").args(["-a", "/etc"]).arg(&etc).status().unwrap();
        assert!(copied.success());
        // The page's setting for machines without a resolver. The file may be a symbolic link.
        let resolver = etc.join("resolv.conf");
        let _absent = fs::remove_file(&resolver);
        fs::write(resolver, "nameserver 127.0.0.153\n").unwrap();
    }

    /// A shell on the machine `name` that runs `script`.
    fn shell(&self, name: &str, script: &str) -> Command {
        let bin = self.folder.path().join("bin");
        let mut setting = format!("hostname {name}\n");
        for (own, place) in
            [("root", "/root"), ("etc", "/etc"), ("run", "/run"), ("lib", "/var/lib")]
        {
            setting += &format!("mount --bind {} {place}\n", self.at(name, own).display());
        }
        setting += "cd /root\n";
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

    /// The first invite that a machine's commands have printed, once it is there.
    fn invite_of(&self, name: &str) -> String {
        self.until(name, &format!("grep -q '^SHOAL:1/' {}", self.log(name).display()));
        let said = fs::read_to_string(self.log(name)).unwrap();
        said.lines().find(|line| line.starts_with("SHOAL:1/")).unwrap().to_owned()
    }

    fn log(&self, name: &str) -> PathBuf {
        self.folder.path().join(format!("{name}.log"))
    }

    fn logs(&self) -> String {
        let log = |node: &NodeSpec| {
            let text = fs::read_to_string(self.log(&node.name)).unwrap_or_default();
            format!("{}: {text}\n", node.name)
        };
        self.network.topology().nodes.iter().map(log).collect()
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

impl Drop for PageMachines {
    fn drop(&mut self) {
        // Nodes that the page starts in the background, if the page's commands did not end them.
        if self.network.topology().find("alice").is_some() {
            self.run("alice", "cat circuits/*/pid | xargs -r kill");
        }
        // `shoal network create` ends its children when it ends.
        self.running.iter().for_each(|child| shoal_e2e::send_signal(child, "-TERM"));
        let began = Instant::now();
        for child in &mut self.running {
            while began.elapsed() < Duration::from_secs(10) && matches!(child.try_wait(), Ok(None))
            {
                std::thread::sleep(Duration::from_millis(20));
            }
            let _ = child.kill();
            let _ = child.wait();
        }
    }
}

/// `ssh` from alice to root on bob, which the page assumes.
fn ssh_by_address(machines: &mut PageMachines) {
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

/// From nothing to three machines that ping each other, in three commands.
#[test]
fn three_commands_make_a_network_of_three_machines() {
    let tools = ["unshare"].map(Requirement::Tool);
    if !shoal_e2e::tun_possible() || !needs::met(&tools, "SHOAL_REQUIRE_NETNS") {
        return;
    }
    let names = ["one", "two", "three"];
    let mut machines = PageMachines::new(&names);
    let blocks = blocks_of("start/quickstart.md");
    assert!(blocks.iter().all(|block| names.contains(&block.machine.as_str())));
    let commands = blocks.iter().filter(|block| block.stays).map(|block| block.script.trim());
    let commands: Vec<_> = commands.map(str::to_owned).collect();
    assert_eq!(commands.len(), 3, "{commands:?}");
    assert!(commands.iter().all(|command| command.lines().count() == 1), "{commands:?}");
    let mut invite: Option<String> = None;
    for PageBlock { machine, stays, script } in &blocks {
        if !stays {
            machines.ok(machine, script);
            continue;
        }
        // The only placeholder in the page's commands.
        let script = match (&invite, script.contains(INVITE)) {
            (Some(invite), true) => script.replace(INVITE, invite),
            (None, false) => script.clone(),
            _ => panic!("{script}"),
        };
        machines.start(machine, script.trim());
        machines.until(machine, "shoal status");
        if invite.is_none() {
            invite = Some(machines.invite_of(machine));
        }
    }
    let said = machines.ok("two", "shoal hosts");
    assert!(said.contains("three") && said.contains("one"), "{said}");
    // The two hosts have found each other, and no longer need `one`.
    for (from, to) in [("two", "three"), ("three", "two")] {
        machines.until(from, &format!("shoal hosts | grep '^{to} ' | grep 'direct ('"));
    }
    machines.ok("one", "ip link set to_switch down");
    machines.ok("two", "ping -c 3 -i 0.2 -W 2 three.shoal; shoal ping --count 1 three");
}

#[test]
fn the_long_way_works_as_written() {
    if !shoal_e2e::tun_possible() {
        return;
    }
    let tools = ["ssh", "ssh-keygen", "sshd", "unshare"].map(Requirement::Tool);
    if !needs::met(&tools, "SHOAL_REQUIRE_NETNS") {
        return;
    }
    let names = ["alice", "bob"];
    let mut machines = PageMachines::new(&names);
    ssh_by_address(&mut machines);
    let mut blocks = blocks_of("guide/by-hand.md");
    blocks.extend(blocks_of("guide/try-circuits.md"));
    assert!(blocks.iter().all(|block| names.contains(&block.machine.as_str())));
    assert_eq!(blocks.iter().filter(|block| block.stays).count(), 2);
    let mut said = Vec::new();
    for PageBlock { machine, stays, script } in &blocks {
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

/// Runs the page that moves the first machine: with its address, or to another one.
fn move_the_first_machine(changes: bool) {
    let tools = ["unshare", "tar"].map(Requirement::Tool);
    if !shoal_e2e::tun_possible() || !needs::met(&tools, "SHOAL_REQUIRE_NETNS") {
        return;
    }
    let mut machines = PageMachines::new(&["old", "new", "two", "three", "desk"]);
    let create = "shoal network create home --host one --uses 2 --endpoint 192.0.2.1";
    machines.start("old", create);
    let invite = machines.invite_of("old");
    for name in ["two", "three"] {
        machines.start(name, &format!("shoal up - <<< {invite}"));
        machines.until(name, "shoal ping --count 1 one");
    }
    // The authority is away, and one member is off.
    let folder = "shoal-authority-home";
    let moved = [("old", folder), ("desk", "")].map(|(name, file)| machines.home(name).join(file));
    assert!(Command::new("mv").args(moved).status().unwrap().success());
    machines.ok("three", "shoal down");
    let blocks = blocks_of("guide/move.md");
    let order: Vec<_> = blocks.iter().map(|block| block.machine.as_str()).collect();
    assert_eq!(order, ["old", "new", "new", "two", "new", "old", "desk", "old", "two"]);
    let script = |block: usize| blocks[block].script.trim();
    if changes {
        let said = fs::read_to_string(machines.log("old")).unwrap();
        let port = said.split("as its router at 192.0.2.1:").nth(1).unwrap();
        let port: String = port.chars().take_while(char::is_ascii_digit).collect();
        machines.ok("desk", &script(6).replace("192.0.2.2:7400", &format!("192.0.2.2:{port}")));
        let list = machines.home("desk").join(folder).join("network.list");
        fs::copy(list, machines.at("old", "etc").join("shoal/network.list")).unwrap();
        // The link stays where it is while the router answers there.
        machines.until("two", "shoal status --json | grep -q '\"list_version\":3,'");
        machines.ok("old", script(7));
    }
    machines.ok("old", script(0));
    let archive = |name: &str| machines.home(name).join("first.tar.gz");
    fs::copy(archive("old"), archive("new")).unwrap();
    if !changes {
        let flush = format!("ip addr flush dev to_{SWITCH}");
        machines.ok("old", &flush);
        machines.ok("new", &format!("{flush}; ip addr add 192.0.2.1/24 dev to_{SWITCH}"));
        for name in ["two", "three", "desk"] {
            machines.ok(name, "ip neigh flush all");
        }
    }
    machines.ok("new", script(1));
    machines.start("new", script(2));
    machines.until("new", "shoal status && shoal registrar status");
    machines.until("two", "shoal ping --count 1 one");
    machines.ok("two", script(3));
    let said = machines.ok("new", script(4));
    assert!(!said.contains("warning"), "{said}");
    let invite = said.lines().find(|line| line.starts_with("SHOAL:1/")).unwrap();
    machines.ok("old", script(5));
    assert!(!machines.run("old", "shoal status").status.success());
    // A newcomer, and the member that was off.
    machines.start("desk", &format!("shoal up - <<< {invite}"));
    machines.until("desk", "shoal ping --count 1 two");
    if changes {
        // A member that is up follows the registrar without a change of its files.
        machines.until("two", r#"shoal status --json | grep -q '"endpoints":."192.0.2.2:'"#);
        let fetched = machines.ok("three", script(8));
        assert!(fetched.contains("a newer list"), "{fetched}");
    }
    machines.start("three", "shoal up");
    machines.until("three", "shoal ping --count 1 two");
    machines.ok("two", "shoal network fetch");
    let members = machines.ok("new", "shoal registrar members");
    assert!(["two", "three", "desk"].iter().all(|name| members.contains(name)), "{members}");
}

#[test]
fn the_first_machine_moves_with_its_address() {
    move_the_first_machine(false);
}

#[test]
fn the_first_machine_moves_to_another_address() {
    move_the_first_machine(true);
}
