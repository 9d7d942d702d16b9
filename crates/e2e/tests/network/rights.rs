//! Privileges of each thread of a node that root or a service manager started. Also links in a
//! folder of the node's user, which root must not follow.

use std::collections::BTreeMap;
use std::fs;
use std::os::unix::fs::{MetadataExt, PermissionsExt, symlink};
use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use caps::{CapSet, Capability};
use nix::unistd::User;
use shoal_e2e::{LoopbackNet, thread};
use shoal_lab::namespace::Namespace;
use shoal_lab::needs::{self, Requirement};

const PATIENCE: Duration = Duration::from_secs(20);
/// CAP_NET_ADMIN in the kernel's hexadecimal.
const NET_ADMIN: &str = "0000000000001000";
const NONE: &str = "0000000000000000";
/// A user that every system has.
const NOBODY: &str = "nobody";

/// A process that is ended on drop.
struct EndedOnDrop(Child);

impl Drop for EndedOnDrop {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// Name and privileges of every thread, from /proc.
fn threads(pid: u32) -> Vec<BTreeMap<String, String>> {
    let tasks = fs::read_dir(format!("/proc/{pid}/task")).unwrap();
    // A thread may end while it is looked at.
    let texts = tasks.filter_map(|task| fs::read_to_string(task.ok()?.path().join("status")).ok());
    let lines = |text: String| {
        let pairs = text.lines().filter_map(|line| line.split_once(":\t"));
        pairs.map(|(name, value)| (name.to_owned(), value.trim().to_owned())).collect()
    };
    texts.map(lines).collect()
}

/// Checks that no thread has a capability, except the one that sets routes.
fn check(pid: u32) {
    let (mut names, all) = (Vec::new(), threads(pid));
    assert!(all.len() > 4, "{all:?}");
    let admin = all.iter().filter(|thread| thread["Name"] == "shoal-routes").count();
    assert_eq!(admin, 1, "{all:?}");
    for thread in &all {
        let name = &thread["Name"];
        let may = if name == "shoal-routes" { NET_ADMIN } else { NONE };
        for (set, wanted) in [
            ("CapEff", may),
            ("CapPrm", may),
            ("CapInh", NONE),
            ("CapAmb", NONE),
            ("NoNewPrivs", "1"),
        ] {
            if thread[set] != wanted {
                names.push(format!("{name} {set} {}", thread[set]));
            }
        }
        assert!(!thread["Uid"].split('\t').any(|uid| uid == "0"), "{name} is root's");
    }
    assert_eq!(names, [""; 0], "threads with rights");
}

/// Configures node r1 with an interface, routes and names, and adds `more` to its [node] section.
fn configured(net: &LoopbackNet, more: &str) {
    net.configure("r1", "[interface]\nname = \"rights0\"\naccept_prefixes = [\"all\"]\n");
    net.configure("r1", "[names]\nlisten = \"127.0.0.153:5301\"\nresolved = false\n");
    let text = fs::read_to_string(net.config("r1")).unwrap();
    let text = text.replace("[node]\n", &format!("[node]\n{more}"));
    fs::write(net.config("r1"), text).unwrap();
}

/// Gives a folder and all in it to the user.
fn give(folder: &Path, user: &User) {
    for entry in fs::read_dir(folder).unwrap() {
        let path = entry.unwrap().path();
        if path.is_dir() {
            give(&path, user);
        }
        let _given = std::os::unix::fs::lchown(path, Some(user.uid.as_raw()), None);
    }
    std::os::unix::fs::chown(folder, Some(user.uid.as_raw()), None).unwrap();
}

/// Starts the node in its own namespace with `command`, and waits until it answers.
fn started(net: &LoopbackNet, space: &Namespace, mut command: Command) -> EndedOnDrop {
    let log = fs::File::create(net.dir("r1").join("log")).unwrap();
    command.stderr(log).stdin(Stdio::null());
    let node = EndedOnDrop(space.enter(|| Ok(command.spawn().unwrap())).unwrap());
    let began = Instant::now();
    while net.ask("r1", &["status"]).is_none() {
        let log = fs::read_to_string(net.dir("r1").join("log")).unwrap();
        assert!(began.elapsed() < PATIENCE, "{log}");
        std::thread::sleep(Duration::from_millis(20));
    }
    node
}

#[test]
fn no_thread_keeps_a_privilege_whoever_starts_the_node() {
    if !shoal_e2e::tun_possible()
        || !needs::met(&[Requirement::Tool("setpriv")], "SHOAL_REQUIRE_NETNS")
    {
        return;
    }
    let nobody = User::from_name(NOBODY).unwrap().expect("systems have it");
    let space = Namespace::new().unwrap();
    // Started by root, with `user` set.
    let net = LoopbackNet::new(&["r1"]);
    configured(&net, "user = \"nobody\"\n");
    give(&net.dir("r1"), &nobody);
    fs::set_permissions(net.dir("r1").parent().unwrap(), PermissionsExt::from_mode(0o755)).unwrap();
    let config = net.config("r1");
    let words = ["run", "-c", config.to_str().unwrap()];
    let node = started(&net, &space, shoal_e2e::shoal(&words));
    check(node.0.id());
    drop(node);
    // Started as that user, with the capability that dist/shoal.service gives.
    let net = LoopbackNet::new(&["r1"]);
    configured(&net, "");
    let root = net.dir("r1").parent().unwrap().to_owned();
    give(&root, &nobody);
    let config = net.config("r1");
    let (id, group) = (nobody.uid.to_string(), nobody.gid.to_string());
    let mut command = Command::new("setpriv");
    command.args(["--reuid", &id, "--regid", &group, "--clear-groups"]);
    // Started with one more capability, since only root may be able to open the device.
    let rights = "+net_admin,+dac_override";
    command.args(["--inh-caps", rights, "--ambient-caps", rights]);
    // A copy of the program, since only root may be able to read the original's folder.
    let program = root.join("shoal");
    fs::copy(shoal_e2e::program(), &program).unwrap();
    command.arg(program).args(["run", "-c", config.to_str().unwrap()]);
    let node = started(&net, &space, command);
    check(node.0.id());
}

#[test]
fn root_follows_no_link_of_the_nodes_user() {
    if !needs::met(&[Requirement::Namespaces], "SHOAL_REQUIRE_NETNS") {
        return;
    }
    let nobody = User::from_name(NOBODY).unwrap().expect("systems have it");
    let net = LoopbackNet::new(&["r1"]);
    let folder = net.dir("r1");
    let elsewhere = net.folder("elsewhere");
    let text = fs::read_to_string(net.config("r1")).unwrap();
    let text = text.replace("\"control.sock\"", "\"run/control.sock\"");
    fs::write(net.config("r1"), text.replace("[node]\n", "[node]\nuser = \"nobody\"\n")).unwrap();
    symlink(&elsewhere, folder.join("run")).unwrap();
    give(&folder, &nobody);
    let config = net.config("r1");
    let mut command = shoal_e2e::shoal(&["run", "-c", config.to_str().unwrap()]);
    let mut node = EndedOnDrop(command.stderr(Stdio::piped()).process_group(0).spawn().unwrap());
    let began = Instant::now();
    while node.0.try_wait().unwrap().is_none() && fs::read_dir(&elsewhere).unwrap().count() == 0 {
        assert!(began.elapsed() < PATIENCE, "the node neither starts nor ends");
        std::thread::sleep(Duration::from_millis(10));
    }
    let made: Vec<_> = fs::read_dir(&elsewhere).unwrap().map(|e| e.unwrap()).collect();
    let made: Vec<_> =
        made.iter().map(|e| (e.file_name(), e.metadata().map(|m| m.uid()).ok())).collect();
    assert!(made.is_empty(), "root made {made:?} where the link leads");
    let mut said = String::new();
    std::io::Read::read_to_string(node.0.stderr.as_mut().unwrap(), &mut said).unwrap();
    assert!(said.contains("run is a link that user"), "{said}");
    // The remedy in the message works.
    fs::remove_file(folder.join("run")).unwrap();
    let mut command = shoal_e2e::shoal(&["run", "-c", config.to_str().unwrap()]);
    let _node = EndedOnDrop(command.stderr(Stdio::null()).spawn().unwrap());
    net.until(|net| net.ask("r1", &["status"]).is_some());
    let owner = |path: &Path| fs::symlink_metadata(path).unwrap().uid();
    assert_eq!(owner(&folder.join("run")), nobody.uid.as_raw());
    assert_eq!(owner(&folder.join("run/control.sock")), nobody.uid.as_raw());
}

/// The error of a node that can't drop its privileges. A seccomp filter, such as a service
/// manager's, fakes the system calls. `add` gives the starting thread privileges and filters.
fn refused(add: impl FnOnce() + Send) -> String {
    let net = LoopbackNet::new(&["r1"]);
    let nobody = User::from_name(NOBODY).unwrap().expect("systems have it");
    let text = fs::read_to_string(net.config("r1")).unwrap();
    fs::write(net.config("r1"), text.replace("[node]\n", "[node]\nuser = \"nobody\"\n")).unwrap();
    give(&net.dir("r1"), &nobody);
    fs::set_permissions(net.root(), PermissionsExt::from_mode(0o755)).unwrap();
    let config = net.config("r1");
    let log = net.dir("r1").join("log");
    let mut command = shoal_e2e::shoal(&["run", "-c", config.to_str().unwrap()]);
    command.stderr(fs::File::create(&log).unwrap());
    let node = std::thread::scope(|scope| {
        let start = || {
            add();
            command.spawn().unwrap()
        };
        scope.spawn(start).join().unwrap()
    });
    let mut node = EndedOnDrop(node);
    let began = Instant::now();
    while node.0.try_wait().unwrap().is_none() {
        let said = fs::read_to_string(&log).unwrap();
        assert!(!said.contains("ready"), "the node runs: {said}");
        assert!(began.elapsed() < PATIENCE, "the node neither starts nor ends: {said}");
        std::thread::sleep(Duration::from_millis(10));
    }
    assert!(!node.0.wait().unwrap().success());
    fs::read_to_string(&log).unwrap()
}

#[test]
fn a_node_that_keeps_a_privilege_does_not_start() {
    if !shoal_e2e::namespaces() {
        return;
    }
    let set = Some(libc::PR_SET_NO_NEW_PRIVS);
    let said = refused(|| thread::filter(libc::SYS_prctl, set, libc::EPERM as u16));
    assert!(said.contains("no_new_privs can't be set"), "{said}");
    let said = refused(|| thread::filter(libc::SYS_prctl, set, 0));
    assert!(said.contains("the call changes nothing"), "{said}");
    // Root loses its capabilities when it becomes a user, except inheritable ones.
    let inherit = || caps::raise(None, CapSet::Inheritable, Capability::CAP_NET_ADMIN).unwrap();
    for answer in [libc::EPERM as u16, 0] {
        let said = refused(|| {
            inherit();
            thread::filter(libc::SYS_capset, None, answer);
        });
        assert!(said.contains("the Inheritable set of capabilities"), "{said}");
        assert!(said.contains("SystemCallFilter=capset"), "{said}");
    }
}

#[test]
fn check_reports_a_filter_that_stops_the_node_from_dropping_rights() {
    if !shoal_e2e::namespaces() {
        return;
    }
    let net = LoopbackNet::new(&["r1"]);
    let config = net.config("r1");
    let mut command = shoal_e2e::shoal(&["check", "-c", config.to_str().unwrap()]);
    let checked = || {
        thread::filter(libc::SYS_prctl, Some(libc::PR_SET_NO_NEW_PRIVS), libc::EPERM as u16);
        command.output().unwrap()
    };
    let output = std::thread::scope(|scope| scope.spawn(checked).join().unwrap());
    let said = shoal_e2e::text(&output).0;
    assert!(said.contains("would fail: no_new_privs can't be set"), "{said}");
}
