//! The registrar and its machine: users and units, an older ledger, and members that the authority
//! adopted.

use std::fs;
use std::net::UdpSocket;
use std::path::Path;
use std::process::{Command, Stdio};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use serde_json::Value;
use shoal_crypto::Identity;
use shoal_daemon::control::api::{Command as Ask, ControlReply, MandateStatus};
use shoal_e2e::joining::JoiningNetwork;
use shoal_e2e::{shoal, text};
use shoal_joining::{Contact, Invite, JoinGoal, NameRequest, Newcomer, Token};
use shoal_lab::needs::{self, Requirement};
use shoal_wire::Time;

/// A stand-in for systemctl. It knows both units, and starts one as its user, with a folder of
/// `/run`.
const SYSTEMCTL: &str = r#"#!/bin/sh
case "$1" in
cat) exit 0 ;;
is-active) exit 3 ;;
enable)
    user=$3
    [ "$user" = shoal ] && set -- run -c /etc/shoal/node.toml
    [ "$user" = shoal ] || set -- registrar run -c /etc/shoal-registrar/registrar.toml
    install -d -m 0750 -o "$user" -g "$user" "/run/$user"
    setpriv --reuid="$user" --regid="$user" --init-groups -- "$SHOAL" "$@" >"$LOGS/$user.log" 2>&1 &
    echo $! >>"$LOGS/pids"
    sleep 1
    ;;
esac
"#;

/// A machine with the users of the units, and with its own folders.
const MACHINE: &str = r#"
set -eu
export PATH="$LOGS/bin:$PATH"
cp -a /etc "$LOGS/etc"
printf 'shoal:x:64001:\nshoal-registrar:x:64002:\n' >>"$LOGS/etc/group"
sed -i 's/^shoal:x:64001:$/&shoal-registrar/' "$LOGS/etc/group"
for user in shoal:64001 shoal-registrar:64002; do
    echo "${user%:*}:x:${user#*:}:${user#*:}::/nonexistent:/usr/sbin/nologin" >>"$LOGS/etc/passwd"
done
mount --bind "$LOGS/etc" /etc
mount -t tmpfs none /run
mount -t tmpfs none /var/lib
mkdir -p /run/systemd/system
ip link set lo up
: >"$LOGS/pids"
trap 'kill $(cat "$LOGS/pids")' EXIT
"$SHOAL" network create home --endpoint 127.0.0.1 --host r1 --no-interface \
    --authority "$LOGS/net" "$@" >"$LOGS/said"
if [ "${1-}" = --no-start ]; then
    systemctl enable --now shoal
    systemctl enable --now shoal-registrar
fi
for i in 1 2 3 4 5 6 7 8 9 10; do
    "$SHOAL" registrar status --json >"$LOGS/status"
    grep -q '"node_has":0' "$LOGS/status" && break
    sleep 1
done
"#;

/// Creates a network where systemctl knows the units. Returns the registrar's status and the
/// output.
fn on_a_machine_with_units(more: &[&str]) -> Option<(Value, String)> {
    let tools = [Requirement::Tool("unshare"), Requirement::Tool("setpriv")];
    if !shoal_e2e::namespaces() || !needs::met(&tools, "SHOAL_REQUIRE_NETNS") {
        return None;
    }
    let folder = tempfile::tempdir().unwrap();
    let systemctl = folder.path().join("bin/systemctl");
    fs::create_dir(folder.path().join("bin")).unwrap();
    fs::write(&systemctl, SYSTEMCTL).unwrap();
    set_mode(&systemctl, 0o755);
    set_mode(folder.path(), 0o755);
    let mut machine = Command::new("unshare");
    machine.args(["--mount", "--net", "sh", "-c", MACHINE, "sh"]).args(more);
    machine.env("LOGS", folder.path()).env("SHOAL", shoal_e2e::program());
    let output = machine.stdin(Stdio::null()).output().unwrap();
    let read = |name: &str| fs::read_to_string(folder.path().join(name)).unwrap_or_default();
    let said = [read("said"), read("shoal.log"), read("shoal-registrar.log")].concat();
    assert!(output.status.success(), "{:?}\n{said}", text(&output));
    let status: Value = serde_json::from_str(&read("status")).expect(&said);
    Some((status["registrar"].clone(), said))
}

fn set_mode(path: &Path, mode: u32) {
    use std::os::unix::fs::PermissionsExt;
    fs::set_permissions(path, fs::Permissions::from_mode(mode)).unwrap();
}

#[test]
fn the_registrars_user_reaches_the_node_of_the_other_unit() {
    for more in [&[] as &[&str], &["--no-start"]] {
        let Some((status, said)) = on_a_machine_with_units(more) else { return };
        assert_eq!(
            (&status["node_has"], &status["node_fault"]),
            (&0.into(), &Value::Null),
            "{said}"
        );
        let by_hand = said.contains("systemctl enable --now shoal shoal-registrar");
        assert_eq!(by_hand, !more.is_empty(), "{said}");
    }
}

#[test]
fn a_node_that_becomes_a_user_reads_its_door_before() {
    if !needs::met(&[Requirement::Namespaces], "SHOAL_REQUIRE_NETNS") {
        return;
    }
    let mut world = JoiningNetwork::new();
    world.joins("alice", &world.invite(&[]));
    let config = world.path("alice/node.toml");
    let file = fs::read_to_string(&config).unwrap();
    fs::write(&config, file.replace("[node]\n", "[node]\nuser = \"nobody\"\n")).unwrap();
    world.start("alice");
    world.until(|world| world.pings("alice", "r1"));
    // `shoal check` finds the missing file without a start.
    fs::rename(world.path("alice/door.key"), world.path("door.key")).unwrap();
    let check = shoal(&["check", "-c"]).arg(&config).output().unwrap();
    let said = text(&check).1;
    assert!(!check.status.success() && said.contains("door.key: no such file"), "{said}");
}

#[test]
fn a_registrar_with_an_older_ledger_signs_nothing_and_says_why() {
    let mut world = JoiningNetwork::new();
    let invite = world.invite(&["--uses", "3"]);
    let ledger = world.path("r1/registrar/ledger");
    let older = fs::read(&ledger).unwrap();
    world.joins("alice", &invite);
    world.joins("bob", &invite);
    world.until(|world| world.ask(&["registrar", "status"]).unwrap()["registrar"]["node_has"] == 2);
    world.end("registrar", "-TERM");
    let newest = fs::read(&ledger).unwrap();
    fs::write(&ledger, &older).unwrap();
    world.start_registrar();
    let (code, said) = world.up("carol", &invite, &[]);
    assert!(code == Some(5) && said.contains("`shoal registrar status` say why"), "{said}");
    let output = shoal(&["invite", "-c", &world.registrar()]).output().unwrap();
    let said = text(&output).1;
    assert!(said.contains("has 0 steps, and the node here knows 2"), "{said}");
    let status = world.ask(&["registrar", "status"]).unwrap().to_string();
    assert!(status.contains("an older copy"), "{status}");
    assert!(world.logs().contains("put the newest ledger back"), "{}", world.logs());
    assert_eq!(fs::read(&ledger).unwrap(), older);
    world.end("registrar", "-TERM");
    fs::write(&ledger, &newest).unwrap();
    world.start_registrar();
    world.joins("carol", &invite);
    assert_eq!(world.members(), ["alice", "bob", "carol"]);
}

#[test]
fn members_that_the_authority_took_over_are_told_so() {
    let mut world = JoiningNetwork::new();
    world.joins("alice", &world.invite(&[]));
    world.start("alice");
    world.until(|world| world.pings("alice", "r1"));
    let list = |world: &JoiningNetwork| {
        let status = world.ask(&["registrar", "status"]).unwrap();
        status["registrar"]["list_version"].as_u64().unwrap()
    };
    let (authority, before) = (world.path("authority"), list(&world));
    let socket = world.path("r1/control.sock");
    let mut adopt = shoal(&["authority", "adopt", "registrar", "--socket"]);
    let output = adopt.arg(socket).arg("--dir").arg(&authority).output().unwrap();
    assert!(output.status.success(), "{:?}", text(&output));
    fs::copy(authority.join("network.list"), world.path("r1/network.list")).unwrap();
    let config = world.path("alice/node.toml");
    let by_registrar = || {
        let output = shoal(&["status", "--json", "-c"]).arg(&config).output().unwrap();
        let status: Value = serde_json::from_str(text(&output).0.lines().last().unwrap()).unwrap();
        status["status"]["authority"]["by_registrar"].as_bool()
    };
    assert_eq!(by_registrar(), Some(true));
    world.until(|_| by_registrar() == Some(false));
    world.until(|world| list(world) > before);
    for words in [&["registrar", "remove", "alice"], &["leave", "--dir"] as &[&str]] {
        let mut command = shoal(words);
        match words[0] {
            "leave" => command.arg(world.path("alice")),
            _ => command.args(["-c", &world.registrar()]),
        };
        let output = command.output().unwrap();
        let said = text(&output).1;
        assert!(!output.status.success() && said.contains("made this m"), "{said}");
        assert!(said.contains("shoal authority revoke"), "{said}");
    }
    assert!(world.pings("alice", "r1"));
}

/// Knocks at the registrar's door from one address until it is told to stop, half the time with a
/// guessed token. Returns the number of knocking machines.
fn flood(invite: &Invite, stop: &AtomicBool) -> u32 {
    let socket = UdpSocket::bind("127.9.9.9:0").unwrap();
    socket.set_read_timeout(Some(Duration::from_millis(2))).unwrap();
    let (mut count, mut buffer) = (0_u32, [0; 1_500]);
    while !stop.load(Ordering::Relaxed) {
        count += 1;
        let mut contact = Contact::new(invite.clone(), Duration::from_secs(86_400));
        if count.is_multiple_of(2) {
            contact.token = Some(Token::new([count as u8; 16]));
        }
        let mut seed = [9; 32];
        seed[..4].copy_from_slice(&count.to_be_bytes());
        let (own, goal) = (Identity::from_seed(seed), JoinGoal::Join(NameRequest::default()));
        let mut machine = Newcomer::new(own, contact, goal, seed, Time::ZERO);
        machine.handle_timeout(Time::ZERO, 0);
        for _ in 0..3 {
            while let Some((to, bytes)) = machine.poll_transmit() {
                let _lost = socket.send_to(&bytes, to);
            }
            let Ok((len, from)) = socket.recv_from(&mut buffer) else { break };
            machine.handle_datagram(Time::ZERO, 0, from, &buffer[..len]);
        }
    }
    count
}

/// Withdraws the invite that has a single use.
fn withdraw_single(world: &JoiningNetwork) {
    let invites = world.ask(&["invite", "list"]).unwrap()["invites"].clone();
    let single = |invite: &&Value| invite["uses"] == 1;
    let id = invites.as_array().unwrap().iter().find(single).unwrap()["id"].clone();
    world.ask(&["invite", "withdraw", id.as_str().unwrap()]).unwrap();
}

#[test]
fn a_machine_joins_while_the_door_is_flooded_and_another_secret_shuts_the_flood_out() {
    let mut world = JoiningNetwork::new();
    let (leaked, good) = (world.invite(&[]), world.invite(&["--uses", "2"]));
    withdraw_single(&world);
    let (stop, invite) = (Arc::new(AtomicBool::new(false)), leaked.parse::<Invite>().unwrap());
    let flooder = {
        let stop = stop.clone();
        std::thread::spawn(move || flood(&invite, &stop))
    };
    world.until(|world| {
        let status = world.ask(&["registrar", "status"]).unwrap();
        status["registrar"]["warnings"].to_string().contains("floods the door")
    });
    let began = Instant::now();
    world.joins("alice", &good);
    let took = began.elapsed();
    stop.store(true, Ordering::Relaxed);
    let count = flooder.join().unwrap();
    println!("joined within {took:?} beside {count} knocking machines");
    assert!(took < Duration::from_secs(5), "{took:?}");
    assert!(world.logs().contains("shoal registrar door --new"), "{}", world.logs());
    let door = world.ask(&["registrar", "door", "--new"]).unwrap().to_string();
    assert!(door.contains("void"), "{door}");
    world.end("registrar", "-TERM");
    world.start_registrar();
    // The invite still has a use, but its door is gone. The member's link continues.
    let (code, said) = world.up("bob", &good, &[]);
    assert_eq!(code, Some(3), "{said}");
    let fetch = shoal(&["network", "fetch", "--dir"]).arg(world.path("alice")).output().unwrap();
    assert!(fetch.status.success(), "{:?}", text(&fetch));
    world.joins("carol", &world.invite(&[]));
}

/// Number and hash of the newest step of the registrar's chain that a node has.
fn chain_of(world: &JoiningNetwork, name: &str) -> MandateStatus {
    match world.call(name, Ask::Directory) {
        Some(ControlReply::Directory(has)) => has.mandates[0].clone(),
        other => panic!("{other:?}\n{}", world.logs()),
    }
}

fn copy(from: &Path, to: &Path) {
    let copied = Command::new("cp").arg("-a").args([from, to]).status().unwrap();
    assert!(copied.success());
}

#[test]
fn a_backup_of_router_and_registrar_that_is_put_back_signs_no_number_twice() {
    let mut world = JoiningNetwork::new();
    world.joins("alice", &world.invite(&[]));
    world.start("alice");
    world.until(|world| world.pings("alice", "r1"));
    let once = world.invite(&[]);
    let (place, backup) = (world.path("r1"), world.path("backup"));
    copy(&place, &backup);
    world.joins("bob", &once);
    world.until(|world| chain_of(world, "alice").steps == 2);
    for name in ["registrar", "r1"] {
        world.end(name, "-TERM");
    }
    fs::remove_dir_all(&place).unwrap();
    fs::rename(&backup, &place).unwrap();
    // The backup is some days old.
    let note = place.join("registrar/ledger.end");
    let text = fs::read_to_string(&note).unwrap();
    let used = text.split_whitespace().nth(1).unwrap();
    fs::write(&note, text.replace(used, "1700000000")).unwrap();
    world.start("r1");
    world.start_registrar();
    let (code, said) = world.up("carol", &once, &[]);
    assert!(code == Some(5) && said.contains("`shoal registrar status` say why"), "{said}");
    let status = world.ask(&["registrar", "status"]).unwrap().to_string();
    assert!(status.contains("the node here knows 2"), "{status}\n{}", world.logs());
    assert!(world.logs().contains("put the newest ledger back"), "{}", world.logs());
    let chain = chain_of(&world, "alice");
    assert_eq!((chain.steps, chain.frozen_at, world.members().len()), (2, None, 1));
}

#[test]
fn a_ledger_without_its_last_withdrawal_lets_nobody_in_by_it() {
    older_ledger(&["ledger"]);
}

/// The node beside the registrar stores the ledger's end, too.
#[test]
fn a_ledger_put_back_with_its_note_lets_nobody_in_by_what_was_withdrawn() {
    older_ledger(&["ledger", "ledger.end"]);
}

fn older_ledger(files: &[&str]) {
    let mut world = JoiningNetwork::new();
    let (leaked, folder) = (world.invite(&[]), world.path("r1/registrar"));
    let backup = files.iter().map(|file| (folder.join(file), fs::read(folder.join(file)).unwrap()));
    let backup: Vec<_> = backup.collect();
    world.invite(&["--uses", "2"]);
    withdraw_single(&world);
    let len = fs::metadata(folder.join("ledger")).unwrap().len();
    let kept = || fs::read_to_string(world.path("r1/network.ledger")).unwrap_or_default();
    let began = Instant::now();
    while !kept().contains(&format!(":{len}:")) {
        assert!(began.elapsed() < Duration::from_secs(20), "{:?} lacks {len}", kept());
        std::thread::sleep(Duration::from_millis(50));
    }
    world.end("registrar", "-TERM");
    backup.iter().for_each(|(file, bytes)| fs::write(file, bytes).unwrap());
    world.start_registrar();
    let (code, said) = world.up("mallory", &leaked, &[]);
    println!("{code:?}: {said}");
    assert!(code == Some(5) && world.members().is_empty(), "{said}");
    let status = world.ask(&["registrar", "status"]).unwrap().to_string();
    assert!(status.contains("ledger.end") && status.contains("door --new"), "{status}");
    if files.len() > 1 {
        // Otherwise a second start would continue at once, even while the node is away.
        let note = fs::read_to_string(folder.join("ledger.end")).unwrap();
        assert_eq!(note.split_whitespace().nth(1), Some("0"), "{note}");
    }
}
