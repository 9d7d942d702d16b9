//! The registrar and the machine that it runs on: users and units, an older ledger, members that
//! the authority took over.

#![allow(clippy::disallowed_methods, clippy::disallowed_types, reason = "starts real programs")]

use std::fs;
use std::path::Path;
use std::process::{Command, Stdio};

use serde_json::Value;
use shoal_e2e::joining::World;
use shoal_e2e::{shoal, text};
use shoal_lab::needs::{self, Need};

/// What systemd is here: it knows both units, and starts one as its user, in a folder of `/run`.
const SYSTEMCTL: &str = r#"#!/bin/sh
case "$1" in
cat) exit 0 ;;
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

/// A machine with the users of the units, whose folders are its own.
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

/// Makes a network where systemd knows the units; the registrar's status.
fn on_a_machine_with_units(more: &[&str]) -> Option<(Value, String)> {
    let tools = [Need::Tool("unshare"), Need::Tool("setpriv")];
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
    if !needs::met(&[Need::Namespaces], "SHOAL_REQUIRE_NETNS") {
        return;
    }
    let mut world = World::new();
    world.joins("alice", &world.invite(&[]));
    let config = world.path("alice/node.toml");
    let file = fs::read_to_string(&config).unwrap();
    fs::write(&config, file.replace("[node]\n", "[node]\nuser = \"nobody\"\n")).unwrap();
    world.start("alice");
    world.until(|world| world.pings("alice", "r1"));
    // What is missing is found without a start.
    fs::rename(world.path("alice/door.key"), world.path("door.key")).unwrap();
    let check = shoal(&["check", "-c"]).arg(&config).output().unwrap();
    let said = text(&check).1;
    assert!(!check.status.success() && said.contains("door.key: no such file"), "{said}");
}

#[test]
fn a_registrar_with_an_older_ledger_signs_nothing_and_says_why() {
    let mut world = World::new();
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
    assert!(status.contains("it is an older copy"), "{status}");
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
    let mut world = World::new();
    world.joins("alice", &world.invite(&[]));
    world.start("alice");
    world.until(|world| world.pings("alice", "r1"));
    let list = |world: &World| {
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
