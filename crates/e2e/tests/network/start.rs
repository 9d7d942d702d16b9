//! `shoal check` finds what a start would refuse; commands refuse options that they don't use.

use std::fs;
use std::net::UdpSocket;
use std::os::unix::fs::{PermissionsExt, lchown};
use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::Command;

use shoal_e2e::{LoopbackNet, begin, end_of, shoal, text};
use shoal_lab::namespace::Namespace;

fn edit(file: &Path, from: &str, to: &str) {
    let text = fs::read_to_string(file).unwrap();
    assert!(text.contains(from), "{from:?} is not in {text}");
    fs::write(file, text.replacen(from, to, 1)).unwrap();
}

/// Messages of `check` and `run` for one configuration; both must end with the same code.
fn both(net: &LoopbackNet) -> String {
    let config = net.config("r1");
    let said = ["check", "run"].map(|verb| {
        let output = shoal(&[verb, "-c", config.to_str().unwrap()]).output().unwrap();
        assert!(!output.status.success(), "{verb} found nothing: {:?}", text(&output));
        text(&output).1
    });
    let [checked, ran] = said;
    let reason = ran.lines().find(|line| line.starts_with("shoal: ")).unwrap_or(&ran);
    let reason = reason.trim_start_matches("shoal: ").to_owned();
    assert!(checked.contains(&reason), "check said {checked:?}, run said {reason:?}");
    reason
}

#[test]
fn check_finds_what_run_refuses() {
    let net = LoopbackNet::new(&["r1", "h1"]);
    let config = net.config("r1");
    let whole = fs::read_to_string(&config).unwrap();
    let cases: [(&str, &str, &str); 4] = [
        ("[node]\n", "[node]\nuser = \"no-such-user\"\n", "useradd"),
        ("[node]\n", "[node]\ncontrol_group = \"no-such-group\"\n", "groupadd"),
        ("\"control.sock\"", "\"no/such/control.sock\"", "mkdir -p"),
        ("\"control.sock\"", "\"node.key\"", "is no socket"),
    ];
    for (from, to, hint) in cases {
        edit(&config, from, to);
        let reason = both(&net);
        assert!(reason.contains(hint), "{reason}");
        fs::write(&config, &whole).unwrap();
    }
    // Invalid addresses, files, keys, links and sections.
    let listen = whole.lines().find(|line| line.starts_with("listen = ")).unwrap();
    let link = "[[link]]\npeer = \"h1\"\n";
    for (from, to, hint) in [
        (listen, "listen = [\"::1:9999:7\"]", "[::]:23871"),
        ("\"../hosts.toml\"", "\"..\"", "is a folder"),
        ("\"node.key\"", "\"no.key\"", "shoal genkey -o"),
        ("\"node.key\"", "\"open.key\"", "chmod 600"),
        (link, &link.repeat(2), "has a [[link]] already"),
        (link, "[[link]]\npeer = \"h11\"\n", "did you mean h1?"),
        (link, "[interface]\nname = \"twenty-letters-long0\"\n", "1 to 15 letters"),
        (link, "[interface]\nname = \"all\"\n", "stands for every interface"),
        (link, "[interface]\nname = \"default\"\n", "stands for every interface"),
        (link, "[names]\n", "add [interface], or remove [names]"),
    ] {
        fs::copy(net.dir("r1").join("node.key"), net.dir("r1").join("open.key")).unwrap();
        fs::set_permissions(net.dir("r1").join("open.key"), PermissionsExt::from_mode(0o644))
            .unwrap();
        edit(&config, from, to);
        let reason = both(&net);
        assert!(reason.contains(hint), "{reason}");
        fs::write(&config, &whole).unwrap();
    }
    // A port that another program uses.
    let listen = whole.split("listen = [\"").nth(1).unwrap().split('"').next().unwrap();
    let taken = UdpSocket::bind(listen).unwrap();
    assert!(both(&net).contains("another program uses this port"));
    drop(taken);
    // A child that another test has just forked may still hold the port.
    let check = || shoal(&["check", "-c", config.to_str().unwrap()]).output().unwrap();
    net.until(|_| check().status.success());
}

#[test]
fn a_running_nodes_own_things_are_no_fault() {
    let mut net = LoopbackNet::new(&["r1"]);
    net.start("r1");
    let config = net.config("r1");
    let output = shoal(&["check", "-c", config.to_str().unwrap()]).output().unwrap();
    assert!(output.status.success(), "{:?}", text(&output));
}

#[test]
fn another_nodes_control_socket_is_a_fault() {
    let mut net = LoopbackNet::new(&["r1", "h1"]);
    net.start("h1");
    edit(&net.config("r1"), "\"control.sock\"", "\"../h1/control.sock\"");
    assert!(both(&net).contains("another node answers there already"));
}

/// `check` and `run` in a namespace where IPv6 is turned off.
#[test]
fn an_interface_without_ipv6_is_a_fault() {
    if !shoal_e2e::tun_possible() {
        return;
    }
    let net = LoopbackNet::new(&["r1"]);
    net.configure("r1", "[interface]\nname = \"six0\"\n");
    let config = net.config("r1");
    let text_of = fs::read_to_string(&config).unwrap();
    let listen = text_of.lines().find(|line| line.starts_with("listen = ")).unwrap();
    edit(&config, listen, "listen = [\"127.0.0.1:20400\"]");
    let space = Namespace::new().unwrap();
    let reason = space
        .enter(|| {
            let script = "ip link set lo up && sysctl -qw net.ipv6.conf.all.disable_ipv6=1";
            assert!(Command::new("sh").args(["-c", script]).status()?.success());
            Ok(both(&net))
        })
        .unwrap();
    assert!(reason.contains("net.ipv6.conf.default.disable_ipv6 = 0"), "{reason}");
}

#[test]
fn a_machine_without_ipv6_runs_with_its_ipv4_address_and_a_warning() {
    if !shoal_e2e::tun_possible() {
        return;
    }
    let mut net = LoopbackNet::new(&["r1"]);
    net.configure("r1", "[interface]\nname = \"four0\"\n");
    let config = net.config("r1");
    let text_of = fs::read_to_string(&config).unwrap();
    let listen = text_of.lines().find(|line| line.starts_with("listen = ")).unwrap();
    edit(&config, listen, "listen = [\"127.0.0.1:20400\"]");
    let hosts = net.root().join("hosts.toml");
    edit(&hosts, "name = \"r1\"", "name = \"r1\"\nipv4 = \"10.97.0.1\"");
    let space = Namespace::new().unwrap();
    let (checked, addresses) = space
        .enter(|| {
            let script = "ip link set lo up && sysctl -qw net.ipv6.conf.all.disable_ipv6=1";
            assert!(Command::new("sh").args(["-c", script]).status()?.success());
            let checked = net.command("r1", &["check"]).output()?;
            net.start("r1");
            let show = ["-o", "addr", "show", "dev", "four0"];
            let addresses = Command::new("ip").args(show).output()?;
            Ok((text(&checked).0, text(&addresses).0))
        })
        .unwrap();
    assert!(checked.contains("reach hosts by IPv4 alone"), "{checked}");
    assert!(addresses.contains("10.97.0.1/"), "{addresses}");
    let status = net.ask("r1", &["status"]).unwrap();
    assert_eq!(status["status"]["interface"]["ipv4"], "10.97.0.1");
    let warnings = status["status"]["warnings"].to_string();
    assert!(warnings.contains("reach hosts by IPv4 alone"), "{warnings}");
}

/// Missing privileges of this user are no error of the configuration, but are reported.
#[test]
fn check_tells_another_user_what_it_could_not_have() {
    if !shoal_e2e::tun_possible() {
        return;
    }
    let net = LoopbackNet::new(&["r1"]);
    let config = net.config("r1");
    let program = net.root().join("shoal");
    fs::copy(shoal_e2e::program(), &program).unwrap();
    // The node's files are this user's; the folder of its socket is root's.
    for path in [net.root(), &net.dir("r1")] {
        fs::set_permissions(path, PermissionsExt::from_mode(0o755)).unwrap();
    }
    let key = net.dir("r1").join("node.key");
    for file in [&key, &net.root().join("network.key"), &config] {
        lchown(file, Some(60_001), None).unwrap();
    }
    let whole = fs::read_to_string(&config).unwrap();
    let listen = whole.lines().find(|line| line.starts_with("listen = ")).unwrap();
    let socket = "control_socket = \"control.sock\"\n";
    let low = "listen = [\"127.0.0.1:999\"]";
    let space = Namespace::new().unwrap();
    let said = |verb: &str| {
        let mut command = Command::new(&program);
        command.args([verb, "-c", config.to_str().unwrap()]).uid(60_001).gid(60_001);
        let output = space
            .enter(|| {
                let script =
                    "ip link set lo up && sysctl -qw net.ipv4.ip_unprivileged_port_start=1024";
                assert!(Command::new("sh").args(["-c", script]).status()?.success());
                Ok(command.output()?)
            })
            .unwrap();
        (output.status.success(), text(&output))
    };
    for (from, to, hint) in [
        (listen, low, "ports below 1024 need"),
        (socket, &format!("{socket}[interface]\n[names]\n"), "127.0.0.153:53 can't be opened"),
        ("[node]\n", "[node]\n", "control_socket = \"/run/shoal/control.sock\""),
    ] {
        edit(&config, from, to);
        let (fine, (out, err)) = said("check");
        assert!(fine, "{err}");
        let warned = out
            .lines()
            .any(|line| line.contains("a start by this user would fail") && line.contains(hint));
        assert!(warned, "no word of {hint:?}: {out}");
        assert!(!said("run").0);
        fs::write(&config, &whole).unwrap();
    }
}

/// Makes the node `r1` use an authority, with `state` as the folder for its state files.
fn with_authority(net: &LoopbackNet) {
    let folder = net.root().join("authority");
    let run = |words: &[&str]| {
        let mut command = shoal(&["authority", words[0], "--dir", folder.to_str().unwrap()]);
        let output = command.args(&words[1..]).output().unwrap();
        assert!(output.status.success(), "{:?}", text(&output));
        text(&output).0
    };
    let said = run(&["init"]);
    let section = said.split("[authority]\n").nth(1).unwrap();
    let key = net.dir("r1").join("node.key");
    let key = text(&shoal(&["pubkey", key.to_str().unwrap()]).output().unwrap()).0;
    run(&["sign", "r1", "--key", key.trim(), "--address", "1.0"]);
    fs::copy(folder.join("network.list"), net.dir("r1").join("network.list")).unwrap();
    net.folder("r1/state");
    let seen = "seen_file = \"state/network.seen\"\n";
    net.configure("r1", &format!("[authority]\n{section}{seen}"));
}

/// Messages of `shoal check` or `shoal run` where `folder` is mounted read-only.
fn said_read_only(net: &LoopbackNet, verb: &str, folder: &Path) -> (bool, (String, String)) {
    let script = "mount --bind \"$1\" \"$1\" && mount -o remount,ro,bind \"$1\" && shift && \
                  exec timeout 10 \"$@\"";
    let mut command = Command::new("unshare");
    command.args(["--mount", "sh", "-c", script, "sh"]).arg(folder);
    command.arg(shoal_e2e::program()).args([verb, "-c"]).arg(net.config("r1"));
    let output = command.output().unwrap();
    (output.status.success(), text(&output))
}

#[test]
fn check_finds_a_folder_that_is_mounted_for_reading() {
    if !shoal_e2e::namespaces() {
        return;
    }
    let net = LoopbackNet::new(&["r1"]);
    for verb in ["check", "run"] {
        let (fine, (_, err)) = said_read_only(&net, verb, &net.dir("r1"));
        assert!(!fine, "{verb} found nothing");
        for hint in ["Read-only", "control_socket = \"/run/shoal/control.sock\""] {
            assert!(err.contains(hint), "{verb}: {err}");
        }
    }
    // A read-only `state` folder doesn't keep the node from starting.
    with_authority(&net);
    let (fine, (out, err)) = said_read_only(&net, "check", &net.dir("r1").join("state"));
    assert!(fine, "{err}");
    for key in ["seen_file", "kept_file"] {
        let warned = |line: &str| line.contains("warning") && line.contains(key);
        assert!(out.lines().any(warned), "no word of {key}: {out}");
    }
    let output = shoal(&["check", "-c", net.config("r1").to_str().unwrap()]).output().unwrap();
    assert!(!text(&output).0.contains("seen_file"), "the file can be written: {:?}", text(&output));
}

#[test]
fn check_finds_a_folder_that_the_nodes_user_may_not_write() {
    if !nix::unistd::geteuid().is_root() {
        return;
    }
    let net = LoopbackNet::new(&["r1"]);
    with_authority(&net);
    let config = net.config("r1");
    // Root runs the check, and the node is to become another user.
    edit(&config, "[node]\n", "[node]\nuser = \"nobody\"\n");
    let check = || text(&shoal(&["check", "-c", config.to_str().unwrap()]).output().unwrap());
    let (out, _) = check();
    let warned = |line: &str| line.contains("warning") && line.contains("[authority] seen_file");
    assert!(out.lines().any(warned), "no word of seen_file: {out}");
    let nobody = nix::unistd::User::from_name("nobody").unwrap().unwrap().uid.as_raw();
    lchown(net.dir("r1").join("state"), Some(nobody), None).unwrap();
    let (out, err) = check();
    assert!(!out.lines().any(warned), "{out}{err}");
}

#[test]
fn the_configuration_here_is_meant_if_none_is_named() {
    let mut net = LoopbackNet::new(&["r1"]);
    net.start("r1");
    for verb in ["check", "status", "peers"] {
        let output = shoal(&[verb]).current_dir(net.dir("r1")).output().unwrap();
        assert!(output.status.success(), "{verb}: {:?}", text(&output));
    }
    let elsewhere = net.folder("elsewhere");
    let output = shoal(&["run"]).current_dir(&elsewhere).output().unwrap();
    let said = text(&output).1;
    if !Path::new("/etc/shoal/node.toml").exists() {
        assert!(!output.status.success() && said.contains("/etc/shoal/node.toml"), "{said}");
    }
    // A configuration on the command line overrides the one in this folder.
    let output = shoal(&["status", "-c", "other.toml"]).current_dir(net.dir("r1")).output();
    assert!(!output.unwrap().status.success());
    // A configuration of another user is ignored: it would choose the socket.
    if nix::unistd::geteuid().is_root() {
        std::os::unix::fs::lchown(net.config("r1"), Some(65_534), None).unwrap();
        let output = shoal(&["status"]).current_dir(net.dir("r1")).output().unwrap();
        assert!(!output.status.success(), "{:?}", text(&output));
    }
}

#[test]
fn options_that_mean_nothing_are_refused() {
    for words in [
        &["genkey", "--socket", "x"][..],
        &["completions", "bash", "--json"],
        &["check", "--socket", "x"],
        &["run", "--json"],
        &["--json", "run"],
    ] {
        let output = shoal(words).output().unwrap();
        let said = text(&output).1;
        assert_eq!(output.status.code(), Some(2), "{words:?}: {said}");
        let why = match words[0].starts_with('-') {
            true => "means nothing to this command",
            false => "unexpected argument",
        };
        assert!(said.contains(why), "{words:?}: {said}");
    }
}

#[test]
fn help_completions_and_manual_name_no_option_that_is_refused() {
    // Options with a valid value.
    let options = [("--config", Some("x")), ("--socket", Some("x")), ("--json", None)];
    let verbs = [
        ("run", [true, true, false]),
        ("check", [true, false, true]),
        ("top", [true; 3]),
        ("genkey", [false, false, true]),
        ("authority", [false, false, true]),
        ("completions", [false; 3]),
        ("man", [false; 3]),
    ];
    let man = tempfile::tempdir().unwrap();
    let words = ["man", "--dir", man.path().to_str().unwrap()];
    assert!(shoal(&words).output().unwrap().status.success());
    let bash = text(&shoal(&["completions", "bash"]).output().unwrap()).0;
    for (verb, taken) in verbs {
        let help = text(&shoal(&[verb, "--help"]).output().unwrap()).0;
        let page = fs::read_to_string(man.path().join(format!("shoal-{verb}.1"))).unwrap();
        let page = page.replace("\\-", "-");
        let script = bash.split(&format!("        shoal__subcmd__{verb})\n")).nth(1);
        let script = script.or(bash.split(&format!("        shoal__{verb})\n")).nth(1));
        let script = script.unwrap().lines().next().unwrap();
        for ((option, value), taken) in options.into_iter().zip(taken) {
            let mut command = shoal(&[verb, option]);
            // The usage error shows the options; nothing is started.
            let said = text(&command.args(value).arg("--no-such-option").output().unwrap()).1;
            assert_eq!(said.contains("'--no-such-option'"), taken, "{verb} {option}: {said}");
            let named = [&help, &page, script].map(|text| text.contains(option));
            assert_eq!(named, [taken; 3], "{verb} {option}: help, manual, completions");
        }
    }
}

/// A program that starts a node in the background may ask it at once.
#[test]
fn ping_waits_for_a_node_that_is_just_starting() {
    let mut net = LoopbackNet::new(&["r1", "h1"]);
    let ping = begin(net.command("h1", &["ping", "r1", "-n", "1", "-W", "20"]));
    std::thread::sleep(std::time::Duration::from_millis(300));
    net.start_all();
    let output = end_of(ping, "ping");
    assert!(output.status.success(), "{:?}", text(&output));
}
