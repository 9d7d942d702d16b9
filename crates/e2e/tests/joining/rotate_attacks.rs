//! Attacks and accidents while the network's secret changes, with the real programs. Each ends with
//! a message that says what to do, or with a counted drop, and the nodes continue.

use std::fs;
use std::os::unix::fs::{PermissionsExt, symlink};
use std::path::Path;
use std::process::Command;

use shoal_e2e::clock::ClockOffset;
use shoal_e2e::joining::JoiningNetwork;
use shoal_e2e::{shoal, text};

/// Exit code and output of a node that does not start.
fn refuses(world: &JoiningNetwork, name: &str) -> (Option<i32>, String) {
    let config = world.path(name).join("node.toml");
    let output = shoal(&["run", "-c", config.to_str().unwrap()]).output().unwrap();
    (output.status.code(), text(&output).1)
}

/// True if a node knows another as a host of its network.
fn knows(world: &JoiningNetwork, name: &str, other: &str) -> bool {
    let ask = shoal(&["hosts", "--json", "-c"]).arg(world.path(name).join("node.toml")).output();
    let said = text(&ask.unwrap()).0;
    assert!(said.contains(&format!("\"{name}\"")), "{said}");
    said.contains(&format!("\"{other}\""))
}

fn set_mode(file: &Path, mode: u32) {
    fs::set_permissions(file, fs::Permissions::from_mode(mode)).unwrap();
}

/// Copies a folder, and replaces whatever is there.
fn copy_folder(from: &Path, to: &Path) {
    let _was_there = fs::remove_dir_all(to);
    let copied = Command::new("cp").arg("-a").args([from, to]).status().unwrap();
    assert!(copied.success(), "{} to {}", from.display(), to.display());
}

#[test]
fn a_removed_member_with_all_its_old_files_stays_out() {
    let mut world = JoiningNetwork::new();
    let invite = world.invite(&["--uses", "3"]);
    for name in ["alice", "eve"] {
        world.joins(name, &invite);
        world.start(name);
    }
    world.until(|world| world.pings("eve", "alice"));
    let old = fs::read(world.path("r1/network.list")).unwrap();
    world.end("eve", "-TERM");
    let (now, then) = (world.path("eve"), world.path("eve-then"));
    copy_folder(&now, &then);
    // If eve learnt of her removal, she would call nobody. She calls at once when she starts, so
    // the test does not wait for a caller that backs off.
    let comes_back = |world: &mut JoiningNetwork| {
        copy_folder(&then, &now);
        world.start("eve");
    };
    assert!(world.ask(&["registrar", "remove", "eve"]).is_some());
    // The list and its supplements no longer name eve, so commands that name her fail.
    world.until(|world| !knows(world, "r1", "eve") && !knows(world, "alice", "eve"));
    world.announce();
    world.all_rotated(&["r1", "alice"], "announced");
    world.publish(&["rotate", "switch"], "r1");
    world.all_rotated(&["r1", "alice"], "switched");
    // Her call uses the old secret, which is still accepted. It is opened, and refused because of
    // her key.
    let before = world.drops("r1", "unknown_peer");
    comes_back(&mut world);
    world.until(|world| world.drops("r1", "unknown_peer") > before);
    world.end("eve", "-KILL");
    world.publish(&["rotate", "retire"], "r1");
    world.all_rotated(&["r1", "alice"], "settled");
    let before = world.drops("r1", "bad_handshake");
    comes_back(&mut world);
    world.until(|world| world.drops("r1", "bad_handshake") > before);
    assert!(!world.pings("eve", "alice") && !world.pings("eve", "r1"));
    assert!(!world.path("eve/network.secrets").exists());

    // A node that starts is given the list in which eve is a member and the old secret counts.
    let newest = fs::read(world.path("r1/network.list")).unwrap();
    world.end("r1", "-KILL");
    fs::write(world.path("r1/network.list"), &old).unwrap();
    let (code, said) = refuses(&world, "r1");
    assert!(code == Some(4) && said.contains("older"), "{code:?} {said}");
    fs::write(world.path("r1/network.list"), &newest).unwrap();
    world.start("r1");
    // A running node refuses that list, and says so.
    fs::write(world.path("r1/network.list"), &old).unwrap();
    world.until(|world| {
        world.status("r1").authority.is_some_and(|authority| authority.refused.is_some())
    });
    assert!(world.is_rotated("r1", "settled"));
    assert!(!world.pings("eve", "r1"));
    // Alice calls less and less often while r1 is away. A restart makes her call at once.
    world.end("alice", "-TERM");
    world.start("alice");
    world.until(|world| world.pings("alice", "r1"));
}

#[test]
fn a_registrar_killed_at_each_step_gives_newcomers_the_right_secret() {
    let mut world = JoiningNetwork::new();
    let invite = world.invite(&["--uses", "5"]);
    let first = fs::read(world.path("r1/network.key")).unwrap();
    let kill = |world: &mut JoiningNetwork| {
        world.end("registrar", "-KILL");
        world.start_registrar();
    };
    world.announce();
    kill(&mut world);
    world.all_rotated(&["r1"], "announced");
    kill(&mut world);
    world.joins("a", &invite);
    assert_eq!(fs::read(world.path("a/network.key")).unwrap(), first, "the current one");
    world.publish(&["rotate", "switch"], "r1");
    kill(&mut world);
    world.all_rotated(&["r1"], "switched");
    let second = fs::read(world.path("authority/network.key")).unwrap();
    assert_ne!(first, second);
    // Killed while it has the list and not the secret, the registrar asks for the secret again.
    kill(&mut world);
    let list = |world: &JoiningNetwork| {
        world.ask(&["registrar", "status"]).unwrap()["registrar"]["list_version"].clone()
    };
    let version = world.status("r1").authority.unwrap().list_version;
    world.until(|world| list(world) == version);
    world.until(|world| world.path("r1/registrar/network.secrets").exists());
    world.joins("b", &invite);
    assert_eq!(fs::read(world.path("b/network.key")).unwrap(), second);
    world.publish(&["rotate", "retire"], "r1");
    kill(&mut world);
    world.all_rotated(&["r1"], "settled");
    world.joins("c", &invite);
    assert_eq!(fs::read(world.path("c/network.key")).unwrap(), second);
    for name in ["a", "b", "c"] {
        world.start(name);
    }
    // A member that joined before the switch was away since, and uses the command for that.
    let fetch = shoal(&["network", "fetch", "--dir"]).arg(world.path("a")).output().unwrap();
    assert!(fetch.status.success(), "{:?}", text(&fetch));
    world.until(|world| ["a", "b", "c"].iter().all(|name| world.pings(name, "r1")));
    assert_eq!(world.members(), ["a", "b", "c"]);
}

#[test]
fn two_rotations_at_once_leave_everybody_in_touch_and_end_with_the_next_list() {
    let mut world = JoiningNetwork::new();
    let invite = world.invite(&["--uses", "2"]);
    for name in ["alice", "bob"] {
        world.joins(name, &invite);
        world.start(name);
    }
    world.until(|world| world.pings("alice", "bob"));
    // The authority's folder was copied, and both copies announce: two lists with one version.
    let (one, other) = (world.path("authority"), world.path("other"));
    let copied = Command::new("cp").arg("-a").args([&one, &other]).status().unwrap();
    assert!(copied.success());
    let secret = world.path("r1/network.key");
    let mut second = shoal(&["authority", "rotate", "announce", "--secret"]);
    let second = second.arg(&secret).arg("--dir").arg(&other).output().unwrap();
    assert!(second.status.success(), "{:?}", text(&second));
    world.end("bob", "-TERM");
    world.announce();
    world.all_rotated(&["r1", "alice"], "announced");
    fs::copy(other.join("network.list"), world.path("bob/network.list")).unwrap();
    fs::copy(other.join("network.key.next"), world.path("bob/network.key.next")).unwrap();
    world.start("bob");
    world.all_rotated(&["bob"], "announced");
    // A node that has one list refuses the other, and says what that means.
    let of_r1 = fs::read(world.path("r1/network.list")).unwrap();
    fs::copy(other.join("network.list"), world.path("r1/network.list")).unwrap();
    let refused =
        |world: &JoiningNetwork| world.status("r1").authority.and_then(|list| list.refused);
    world.until(|world| refused(world).is_some_and(|why| why.contains("key in two places?")));
    world.end("r1", "-KILL");
    let (code, said) = refuses(&world, "r1");
    assert!(code == Some(4) && said.contains("key in two places?"), "{code:?} {said}");
    fs::write(world.path("r1/network.list"), of_r1).unwrap();
    world.start("r1");
    // The current secret is the same for all nodes.
    for name in ["bob", "r1"] {
        world.end(name, "-KILL");
        world.start(name);
    }
    world.until(|world| world.pings("alice", "bob") && world.pings("bob", "r1"));
    // The next signed list ends the conflict. A step of the other copy has the older version.
    world.publish(&["rotate", "cancel"], "r1");
    world.all_rotated(&["r1", "alice", "bob"], "settled");
    world.announce();
    world.all_rotated(&["r1", "alice", "bob"], "announced");
    world.publish(&["rotate", "switch", "--grace", "0"], "r1");
    world.all_rotated(&["r1", "alice", "bob"], "settled");
    world.end("alice", "-KILL");
    world.start("alice");
    world.until(|world| world.pings("alice", "bob") && world.pings("bob", "alice"));
}

#[test]
fn a_router_that_was_off_is_told_how_to_come_back() {
    let mut world = JoiningNetwork::create(&[]);
    world.signs("r2", "2.0", "r1");
    let list = world.path("authority/network.list");
    fs::copy(&list, world.path("r1/network.list")).unwrap();
    world.start("r1");
    world.start("r2");
    world.until(|world| world.pings("r2", "r1"));
    world.end("r2", "-TERM");
    world.announce();
    world.all_rotated(&["r1"], "announced");
    world.publish(&["rotate", "switch", "--grace", "0"], "r1");
    world.all_rotated(&["r1"], "settled");
    world.start("r2");
    let before = world.drops("r2", "bad_handshake");
    world.until(|world| world.drops("r2", "bad_handshake") > before);
    assert!(!world.pings("r2", "r1"));
    // The operator does what the command says.
    let fetch = shoal(&["network", "fetch", "--dir"]).arg(world.path("r2")).output().unwrap();
    let said = text(&fetch).1;
    assert!(fetch.status.code() == Some(4) && said.contains("as network.key.next"), "{said}");
    fs::copy(world.path("authority/network.key"), world.path("r2/network.key.next")).unwrap();
    fs::copy(&list, world.path("r2/network.list")).unwrap();
    world.until(|world| world.pings("r2", "r1") && world.pings("r1", "r2"));
    assert!(world.is_rotated("r2", "settled"));
}

#[test]
fn a_clock_that_is_a_year_ahead_keeps_its_node_out_until_it_is_right() {
    let mut world = JoiningNetwork::new();
    let Some(offset) = ClockOffset::new(&world.path("")) else { return };
    world.joins("alice", &world.invite(&[]));
    world.announce();
    world.all_rotated(&["r1"], "announced");
    world.publish(&["rotate", "switch"], "r1");
    world.all_rotated(&["r1"], "switched");
    offset.set(365 * 86_400);
    world.start_with("alice", &offset.env());
    let state = |world: &JoiningNetwork| world.status("alice").authority.unwrap().state;
    world.until(|world| state(world) == "stale");
    let warnings = world.status("alice").warnings.join("\n");
    assert!(warnings.contains("only newer lists pass"), "{warnings}");
    assert!(!world.pings("alice", "r1"));
    // By its own clock the old secret has ended. All others accept it, and send the new one.
    offset.set(0);
    world.all_rotated(&["alice"], "switched");
    world.until(|world| world.pings("alice", "r1"));
}

/// Damages a node's or registrar's file of stored secrets, or replaces it.
fn spoil(file: &Path, how: &str) {
    let whole = fs::read_to_string(file).unwrap();
    fs::remove_file(file).unwrap();
    match how {
        "truncated" => fs::write(file, &whole[..whole.len() / 2]).unwrap(),
        "garbage" => fs::write(file, [0xff; 100]).unwrap(),
        "empty" => fs::write(file, "").unwrap(),
        "long" => fs::write(file, whole.repeat(100_000)).unwrap(),
        "foreign" => {
            let made = shoal(&["genkey", "--network", "-o"]).arg(file).output().unwrap();
            assert!(made.status.success());
        }
        "folder" => fs::create_dir(file).unwrap(),
        "pipe" => {
            assert!(Command::new("mkfifo").arg(file).status().unwrap().success());
        }
        "device" => symlink("/dev/zero", file).unwrap(),
        _ => fs::write(file, &whole).unwrap(),
    }
    if !["folder", "pipe", "device"].contains(&how) {
        set_mode(file, if how == "readable" { 0o644 } else { 0o600 });
    }
}

/// Damages the stored secrets of a member and of the registrar in these ways, one after the other.
///
/// A neighbour sends four copies of a secret at once, so more than three ways would have to wait.
fn spoil_kept(ways: [&str; 3]) {
    let mut world = JoiningNetwork::new();
    world.joins("alice", &world.invite(&[]));
    world.start("alice");
    world.announce();
    world.all_rotated(&["r1", "alice"], "announced");
    let kept = world.path("alice/network.secrets");
    let of_registrar = world.path("r1/registrar/network.secrets");
    world.until(|_| kept.exists() && of_registrar.exists());
    let newest = fs::read_to_string(world.path("authority/network.key.next")).unwrap();
    for how in ways {
        world.end("alice", "-TERM");
        world.end("registrar", "-TERM");
        spoil(&kept, how);
        spoil(&of_registrar, how);
        // Both start, continue with what they have, and get the secret again from their neighbour.
        world.start("alice");
        world.start_registrar();
        let logs = world.logs();
        // Without a line the file counts as one without secrets.
        let is_named = logs.contains("network.secrets") || ["empty", "foreign"].contains(&how);
        assert!(is_named, "{how}: {logs}");
        world.all_rotated(&["alice"], "announced");
        world.until(|world| world.pings("alice", "r1"));
        if how == "folder" {
            // A folder can't be replaced: the owner has to remove it.
            let warned = |world: &JoiningNetwork| {
                let warnings = world.status("alice").warnings.join("\n");
                let asked = world.ask(&["registrar", "status"]).unwrap().to_string();
                warnings.contains("network.secrets") && asked.contains("network.secrets")
            };
            world.until(warned);
            fs::remove_dir(&kept).unwrap();
            fs::remove_dir(&of_registrar).unwrap();
        }
        for file in [&kept, &of_registrar] {
            world.until(|_| {
                fs::symlink_metadata(file).is_ok_and(|found| found.is_file())
                    && fs::read_to_string(file).is_ok_and(|text| text.contains(newest.trim()))
            });
            assert_eq!(fs::metadata(file).unwrap().permissions().mode() & 0o777, 0o600, "{how}");
        }
    }
}

#[test]
fn kept_secrets_that_are_spoilt_are_named_and_come_again() {
    spoil_kept(["truncated", "garbage", "empty"]);
    spoil_kept(["long", "foreign", "readable"]);
}

#[test]
fn folders_pipes_and_devices_in_place_of_stored_secrets_are_named() {
    spoil_kept(["folder", "pipe", "device"]);
}
