//! The network's first machine: `shoal up` and `shoal down` for node and registrar, in the
//! foreground and as units.

use std::fs;
use std::time::{Duration, Instant};

use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use shoal_daemon::control::api::{Command, ControlReply};
use shoal_e2e::joining::JoiningNetwork;
use shoal_e2e::{shoal, text};

use crate::rekey_unit;

/// Runs a command for the first machine. Returns its exit code and its output.
fn first(world: &JoiningNetwork, words: &[&str]) -> (Option<i32>, String) {
    let output = shoal(words).arg("--dir").arg(world.path("r1")).output().unwrap();
    let (out, err) = text(&output);
    (output.status.code(), out + &err)
}

/// Starts `shoal up` on the first machine, and waits for node and registrar.
fn up(world: &mut JoiningNetwork) {
    let dir = world.path("r1");
    world.spawn("up", &["up", "--dir", dir.to_str().unwrap()]);
    world.until(both_answer);
}

fn both_answer(world: &JoiningNetwork) -> bool {
    world.call("r1", Command::Status).is_some() && world.ask(&["registrar", "status"]).is_some()
}

fn nobody_answers(world: &JoiningNetwork) -> bool {
    let sockets = ["r1/control.sock", "r1/registrar/control.sock"];
    sockets.iter().all(|socket| !world.path(socket).exists())
}

/// Waits for the end of a process that this test started. Returns its exit code and its output.
fn ended(world: &mut JoiningNetwork, name: &str) -> (Option<i32>, String) {
    let at = world.running.iter().position(|(other, _)| other == name).unwrap();
    let (_, mut child) = world.running.remove(at);
    let code = child.wait().unwrap().code();
    (code, fs::read_to_string(world.path(&format!("{name}.log"))).unwrap())
}

fn pid(value: &serde_json::Value) -> Pid {
    Pid::from_raw(value.as_i64().unwrap().try_into().unwrap())
}

fn pids(world: &JoiningNetwork) -> [Pid; 2] {
    let Some(ControlReply::Status(node)) = world.call("r1", Command::Status) else { panic!() };
    let registrar = world.ask(&["registrar", "status"]).unwrap();
    [Pid::from_raw(node.pid.cast_signed()), pid(&registrar["registrar"]["pid"])]
}

#[test]
fn up_starts_what_network_create_made_and_down_stops_it() {
    let mut world = JoiningNetwork::create(&[]);
    up(&mut world);
    world.joins("alice", &world.invite(&[]));
    world.start("alice");
    world.until(|world| world.pings("alice", "r1"));
    // A repeated command starts nothing, and succeeds.
    let (code, said) = first(&world, &["up"]);
    assert_eq!(code, Some(0), "{said}");
    assert!(said.contains("already running: shoal and shoal-registrar"), "{said}");
    assert!(said.contains("this machine made the network; its files"), "{said}");
    // After a crash of one service the foreground ends whole, and starts again whole.
    kill(pids(&world)[1], Signal::SIGKILL).unwrap();
    let (code, said) = ended(&mut world, "up");
    assert!(code == Some(1) && said.contains("shoal-registrar ended: signal: 9"), "{said}");
    world.until(|world| world.call("r1", Command::Status).is_none());
    up(&mut world);
    assert_eq!(world.members(), ["alice"]);
    world.until(|world| world.pings("alice", "r1"));
    let both = pids(&world);
    let (code, said) = first(&world, &["down"]);
    assert_eq!(code, Some(0), "{said}");
    assert!(said.contains("stopped shoal-registrar and shoal;"), "{said}");
    let command = format!("shoal up --dir {}", world.path("r1").display());
    assert!(said.contains(&command) && !said.contains("leave"), "{said}");
    // Both have ended by then, and the command that started them ends in order.
    assert!(nobody_answers(&world));
    let is_over = |pid: &Pid| kill(*pid, None).is_err();
    world.until(|_| both.iter().all(is_over));
    let (code, said) = ended(&mut world, "up");
    assert!(code == Some(0) && said.contains("was told to stop"), "{said}");
    assert_eq!(said.matches("stopping").count(), 2, "{said}");
    // The neighbour was told.
    world.until(|world| world.status("alice").links_up == 0);
    let (code, said) = first(&world, &["down"]);
    assert!(code == Some(0) && said.contains("nothing runs here"), "{said}");
    up(&mut world);
    world.until(|world| world.pings("alice", "r1"));
    let (code, said) = first(&world, &["down", "--json"]);
    assert_eq!(code, Some(0), "{said}");
    assert!(said.contains(r#"{"stopped":["shoal-registrar","shoal"]}"#), "{said}");
    // A member has a node alone.
    let stop = shoal(&["down", "--dir"]).arg(world.path("alice")).output().unwrap();
    let (out, err) = text(&stop);
    assert!(stop.status.success(), "{err}");
    assert!(out.starts_with("stopped shoal;") && out.contains("`shoal leave`"), "{out}");
    assert_eq!(ended(&mut world, "alice").0, Some(0));
}

#[test]
fn up_leaves_alone_what_runs_and_starts_the_rest() {
    let mut world = JoiningNetwork::create(&[]);
    world.start("r1");
    let Some(ControlReply::Status(before)) = world.call("r1", Command::Status) else { panic!() };
    up(&mut world);
    assert_eq!(pids(&world)[0].as_raw(), before.pid.cast_signed());
    let said = fs::read_to_string(world.path("up.log")).unwrap();
    assert!(
        said.contains("already running: shoal (") && said.contains("the registrar runs"),
        "{said}"
    );
    // Each of them ends by itself.
    let (code, said) = first(&world, &["down"]);
    assert_eq!(code, Some(0), "{said}");
    assert_eq!((ended(&mut world, "up").0, ended(&mut world, "r1").0), (Some(0), Some(0)));
}

#[test]
fn a_process_that_hangs_is_named_and_stays() {
    // Under `shoal up` the parent would end the process after six seconds.
    let world = JoiningNetwork::new();
    world.until(both_answer);
    let [node, _] = pids(&world);
    kill(node, Signal::SIGSTOP).unwrap();
    let began = Instant::now();
    let (code, said) = first(&world, &["down"]);
    assert_eq!(code, Some(1), "{said}");
    assert!(said.contains(&format!("shoal, process {node}, does not stop")), "{said}");
    assert!(began.elapsed() < Duration::from_secs(15), "{:?}", began.elapsed());
    assert!(world.path("r1/control.sock").exists());
    assert!(!world.path("r1/registrar/control.sock").exists(), "the other one has ended");
    kill(node, Signal::SIGCONT).unwrap();
    world.until(nobody_answers);
    assert!(first(&world, &["down"]).1.contains("nothing runs here"));
}

#[test]
fn missing_files_of_the_first_machine_are_named() {
    let mut world = JoiningNetwork::create(&[]);
    up(&mut world);
    let invite = world.invite(&["--uses", "2"]);
    world.joins("alice", &invite);
    let (code, said) = first(&world, &["down"]);
    assert_eq!(code, Some(0), "{said}");
    let (node, registrar) = (world.path("r1/node.toml"), world.path("r1/registrar/registrar.toml"));
    for file in [node, registrar] {
        let away = file.with_extension("away");
        fs::rename(&file, &away).unwrap();
        let missing = format!("{}: is missing", file.display());
        for words in [&["up"][..], &["up", &invite], &["down"]] {
            let (code, said) = first(&world, words);
            assert!(code == Some(4) && said.contains(&missing), "{words:?}: {said}");
        }
        fs::rename(&away, &file).unwrap();
    }
    let (code, said) = first(&world, &["up", &invite, "--no-start"]);
    assert!(code == Some(0) && said.contains("joins by no invite"), "{said}");
    assert!(said.contains("start node and registrar with: shoal up --dir"), "{said}");
    // A registrar of another network is not this node's.
    let foreign = JoiningNetwork::create(&[]);
    let copied = std::process::Command::new("cp")
        .arg("-r")
        .args([foreign.path("r1/registrar"), world.path("alice/registrar")])
        .status();
    assert!(copied.unwrap().success());
    let (code, said) = world.up("alice", &invite, &[]);
    assert!(code == Some(0) && said.contains("is of another network"), "{said}");
    assert!(said.contains("start the node with: shoal run"), "{said}");
    let said = text(&shoal(&["down", "--dir"]).arg(world.path("nowhere")).output().unwrap()).1;
    assert!(said.contains("in no network"), "{said}");
}

/// The first machine with units: through boots, `down` and `up`.
const UNITS: &str = r#"
ip link set lo up
: >"$LOGS/pids"
trap 'kill -9 $(cat "$LOGS/pids") 2>/dev/null || true' EXIT
boots() {
    kill -9 $(cat "$LOGS/pids") 2>/dev/null || true
    # A killed process holds its ports until its descriptors are closed.
    for pid in $(cat "$LOGS/pids"); do
        for i in $(seq 100); do
            [ -n "$(ls "/proc/$pid/fd" 2>/dev/null)" ] || break
            sleep 0.05
        done
    done
    rm -rf /run/shoal* /run/*.pid
    for unit in shoal shoal-registrar; do
        [ ! -e "$HERE/enabled.$unit" ] || systemctl enable --now $unit
    done
}
node() { "$SHOAL" status >/dev/null 2>&1; }
registrar() { "$SHOAL" registrar status >/dev/null 2>&1; }
waits() {
    for i in $(seq 100); do node && registrar && return 0; sleep 0.1; done
    echo "they never ran: $1"; exit 1
}
gone() { ! node && ! registrar || { echo "still there: $1"; exit 1; }; }

"$SHOAL" network create home --endpoint 127.0.0.1 --host r1 --no-interface \
    --authority "$LOGS/net" >/dev/null
waits "after network create"
boots
waits "after a boot"
"$SHOAL" invite >/dev/null
"$SHOAL" down
gone "after down"
boots
sleep 1
gone "after down and a boot"
touch "$HERE/without.shoal-registrar"
"$SHOAL" up || echo "without a unit: rc $?"
rm "$HERE/without.shoal-registrar"
# A copy of the files by root is handed to the units' users.
chown -R 0:0 /etc/shoal /etc/shoal-registrar /var/lib/shoal /var/lib/shoal-registrar
"$SHOAL" up
waits "after up"
"$SHOAL" up
boots
waits "after up and a boot"
stat -c '%n %U' /etc/shoal/node.key /etc/shoal-registrar/registrar.key \
    /var/lib/shoal-registrar/ledger
# A process that is no unit's.
"$SHOAL" down >/dev/null
setpriv --reuid=shoal-registrar --regid=shoal-registrar --init-groups -- \
    "$SHOAL" registrar run -c /etc/shoal-registrar/registrar.toml 2>/dev/null &
echo $! >>"$LOGS/pids"
for i in $(seq 100); do registrar && break; sleep 0.1; done
registrar
"$SHOAL" down --json
gone "after the second down"
"#;

#[test]
fn units_of_both_services_start_with_the_machine_until_down() {
    let folder = tempfile::tempdir().unwrap();
    let Some((done, said)) = rekey_unit::run(UNITS, folder.path(), &[]) else { return };
    assert!(done, "{said}");
    let has = |text: &str| assert!(said.contains(text), "{text}: {said}");
    has("stopped shoal-registrar and shoal; `shoal up` starts again");
    has("systemd knows the unit shoal, but not shoal-registrar");
    has("without a unit: rc 4");
    has("the units shoal and shoal-registrar run, and start with the machine");
    has("/etc/shoal/node.key shoal\n");
    has("/etc/shoal-registrar/registrar.key shoal-registrar\n");
    has("/var/lib/shoal-registrar/ledger shoal-registrar\n");
    has(r#"{"stopped":["shoal-registrar"]}"#);
}
