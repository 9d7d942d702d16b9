//! `shoal rekey` and `shoal network fetch` on a machine whose node is a systemd unit. They check
//! the owner of the files afterwards, and that the unit runs with them.
//!
//! systemd is not used: a script starts the units' processes as their users instead.

use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::Path;
use std::process::{Command, Stdio};

use shoal_e2e::text;
use shoal_lab::needs::{self, Requirement};

/// A stand-in for systemctl. It knows both units, unless a file `without.UNIT` is there. It starts
/// one as its user, with a folder of `/run`, and notes which ones start with the machine.
const SYSTEMCTL: &str = r#"#!/bin/sh
start() {
    user=$1
    [ "$user" = shoal ] && set -- run -c /etc/shoal/node.toml
    [ "$user" = shoal ] || set -- registrar run -c /etc/shoal-registrar/registrar.toml
    install -d -m 0750 -o "$user" -g "$user" "/run/$user"
    setpriv --reuid="$user" --regid="$user" --init-groups -- \
        "$SHOAL" "$@" >>"$HERE/$user.log" 2>&1 &
    echo $! >"/run/$user.pid"
    echo $! >>"$LOGS/pids"
    sleep 1
}
case "$1" in
cat) [ ! -e "$HERE/without.$2" ] ;;
is-active) kill -0 "$(cat "/run/$2.pid")" ;;
restart) kill "$(cat "/run/$2.pid")"; sleep 1; start "$2" ;;
enable)
    touch "$HERE/enabled.$3"
    [ -e "/run/$3.pid" ] || start "$3"
    ;;
disable)
    rm -f "$HERE/enabled.$3"
    kill "$(cat "/run/$3.pid")"
    rm -f "/run/$3.pid"
    sleep 1
    ;;
esac
"#;

/// A machine with its own files, folders of processes, and users of the units.
pub const MACHINE: &str = r#"
set -eu
mkdir -p "$HERE"
cp -a /etc "$HERE/etc"
rm -rf "$HERE/etc/shoal" "$HERE/etc/shoal-registrar"
if ! grep -q '^shoal-registrar:' /etc/passwd; then
    printf 'shoal:x:64001:shoal-registrar\nshoal-registrar:x:64002:\n' >>"$HERE/etc/group"
    for user in shoal:64001 shoal-registrar:64002; do
        echo "${user%:*}:x:${user#*:}:${user#*:}::/nonexistent:/usr/sbin/nologin" \
            >>"$HERE/etc/passwd"
    done
fi
mount --bind "$HERE/etc" /etc
mount -t tmpfs none /run
mount -t tmpfs none /var/lib
mkdir -p /run/systemd/system
"#;

/// The network's first machine, and a second one that joins it.
const FIRST: &str = r#"
ip link set lo up
: >"$LOGS/pids"
trap 'kill $(cat "$LOGS/pids") 2>/dev/null || true' EXIT
"$SHOAL" network create home --endpoint 127.0.0.1 --host r1 --no-interface \
    --authority "$LOGS/net" >"$LOGS/created"
"$SHOAL" invite --json >"$LOGS/invite"
export INVITE="$(grep -o 'SHOAL:1/[A-Z0-9]*' "$LOGS/invite")"
HERE="$LOGS/second" unshare --mount sh -c "$MACHINE$SECOND" sh
"#;

const SECOND: &str = r#"
as_user() { setpriv --reuid=shoal --regid=shoal --init-groups -- "$SHOAL" "$@"; }
pings() { "$SHOAL" ping -n 1 -W 1 r1 >/dev/null 2>&1; }
waits() {
    for i in 1 2 3 4 5 6 7 8 9 10 11 12 13 14 15; do pings && return 0; sleep 1; done
    return 1
}
"$SHOAL" up "$INVITE" --no-interface --name alice
waits || { echo "it never was in touch" >&2; exit 1; }
as_user pubkey /etc/shoal/node.key >"$HERE/old"
"$SHOAL" rekey
waits || { echo "it is not in touch with the new key" >&2; exit 1; }
as_user pubkey /etc/shoal/node.key >"$HERE/new"
"$SHOAL" status --json >"$HERE/status"
# A secret that this machine does not know.
rm /etc/shoal/network.key
as_user genkey --network -o /etc/shoal/network.key
"$SHOAL" network fetch
stat -c '%n %U %G %a' /etc/shoal /etc/shoal/* /etc/shoal/.[!.]* /var/lib/shoal/* 2>/dev/null || true
as_user check -c /etc/shoal/node.toml >/dev/null
"#;

fn set_mode(path: &Path, mode: u32) {
    fs::set_permissions(path, fs::Permissions::from_mode(mode)).unwrap();
}

/// Runs a script on a machine of its own, with the units and further variables. Returns its success
/// and its output, followed by the logs of the units. None if this machine lacks tools for it.
pub fn run(script: &str, folder: &Path, variables: &[(&str, &str)]) -> Option<(bool, String)> {
    let tools = [Requirement::Tool("unshare"), Requirement::Tool("setpriv")];
    if !shoal_e2e::namespaces() || !needs::met(&tools, "SHOAL_REQUIRE_NETNS") {
        return None;
    }
    set_mode(folder, 0o755);
    let bin = folder.join("bin");
    fs::create_dir(&bin).unwrap();
    fs::write(bin.join("systemctl"), SYSTEMCTL).unwrap();
    set_mode(&bin.join("systemctl"), 0o755);
    let path = format!("{}:{}", bin.display(), std::env::var("PATH").unwrap());
    let mut machine = Command::new("unshare");
    machine.args(["--mount", "--net", "sh", "-c", &format!("{MACHINE}{script}"), "sh"]);
    machine.env("LOGS", folder).env("HERE", folder.join("first"));
    machine.env("SHOAL", shoal_e2e::program()).env("PATH", path);
    machine.envs(variables.iter().copied());
    let output = machine.stdin(Stdio::null()).output().unwrap();
    let (out, err) = text(&output);
    let logs = ["first/shoal.log", "first/shoal-registrar.log", "second/shoal.log"];
    let logs = logs.map(|name| fs::read_to_string(folder.join(name)).unwrap_or_default());
    Some((output.status.success(), format!("{out}\n{err}\n{}", logs.concat())))
}

#[test]
fn replaced_files_are_the_units_users_and_its_node_runs_with_them() {
    let folder = tempfile::tempdir().unwrap();
    let variables = [("MACHINE", MACHINE), ("SECOND", SECOND)];
    let Some((done, out)) = run(FIRST, folder.path(), &variables) else { return };
    assert!(done, "{out}");
    let read = |name: &str| fs::read_to_string(folder.path().join(name)).unwrap_or_default();
    assert!(out.contains("the unit shoal was restarted with it"), "{out}");
    assert!(out.contains("fetched another secret"), "{out}");
    let (old, new) = (read("second/old"), read("second/new"));
    assert!(!new.is_empty() && old != new, "{out}");
    assert!(read("second/status").contains(new.trim()), "the unit runs with the new key");
    let files: Vec<_> = out.lines().filter(|line| line.starts_with('/')).collect();
    for name in [
        "/etc/shoal/node.key ",
        "/etc/shoal/network.list ",
        "/var/lib/shoal/network.chains ",
        "/etc/shoal/network.key.next ",
    ] {
        assert!(files.iter().any(|file| file.starts_with(name)), "{name}: {out}");
    }
    for file in files {
        let mode = if file.starts_with("/etc/shoal ") { "700" } else { "600" };
        assert!(file.ends_with(&format!(" shoal shoal {mode}")), "{file}");
        assert!(!file.contains(".part") && !file.contains("node.key.next"), "{file}");
    }
}
