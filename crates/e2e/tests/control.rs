//! Programs that misuse a node's control socket don't lock other programs out.

#![allow(clippy::disallowed_methods, clippy::disallowed_types, reason = "starts real processes")]

use std::io::{IoSlice, Read, Write};
use std::os::fd::{AsRawFd, RawFd};
use std::os::unix::fs::PermissionsExt;
use std::os::unix::net::UnixStream;
use std::time::Duration;

use nix::sys::socket::{ControlMessage, MsgFlags, sendmsg};
use nix::unistd::{Group, Uid};
use shoal_e2e::{Net, text, thread};

/// So many that 32 descriptors left open for each exceed a process's limit.
const FRAMES: usize = 640;
/// Descriptors in each; a node takes 32.
const DESCRIPTORS: usize = 200;
/// Connections at once that a node serves.
const CONNECTIONS: usize = 64;

fn connect(net: &Net) -> UnixStream {
    UnixStream::connect(net.dir("r1").join("control.sock")).unwrap()
}

/// The frame of a command.
fn status() -> Vec<u8> {
    let frame = b"{\"protocol\":1,\"id\":1,\"command\":{\"do\":\"status\"}}";
    [&(frame.len() as u32).to_be_bytes()[..], frame].concat()
}

#[test]
fn descriptors_that_come_in_excess_are_closed() {
    let mut net = Net::new(&["r1"]);
    net.start("r1");
    let file = tempfile::tempfile().unwrap();
    let many: Vec<RawFd> = vec![file.as_raw_fd(); DESCRIPTORS];
    for _ in 0..FRAMES {
        let mut stream = connect(&net);
        stream.set_read_timeout(Some(Duration::from_secs(10))).unwrap();
        let frame = status();
        let rights = [ControlMessage::ScmRights(&many)];
        let sent = sendmsg::<()>(
            stream.as_raw_fd(),
            &[IoSlice::new(&frame)],
            &rights,
            MsgFlags::MSG_NOSIGNAL,
            None,
        );
        assert_eq!(sent.unwrap(), frame.len());
        // The node closes the connection, with or without an answer.
        let _end = stream.read_to_end(&mut Vec::new());
    }
    let output = net.command("r1", &["status"]).output().unwrap();
    assert!(output.status.success(), "{:?}", text(&output));
}

#[test]
fn silent_connections_lock_nobody_out() {
    let mut net = Net::new(&["r1"]);
    net.start("r1");
    let mut silent: Vec<UnixStream> = (0..2 * CONNECTIONS).map(|_| connect(&net)).collect();
    // The first half of a length doesn't count as a command.
    for stream in &mut silent {
        let _written = stream.write(&[0, 0]);
    }
    for _ in 0..4 {
        let output = net.command("r1", &["status"]).output().unwrap();
        assert!(output.status.success(), "{:?}", text(&output));
    }
}

/// Connections of one user whose command was answered.
fn served(net: &Net, user: u32, group: u32) -> Vec<UnixStream> {
    let connected = || {
        thread::become_user(user, group);
        let serve = || {
            let mut stream = connect(net);
            stream.set_read_timeout(Some(Duration::from_secs(10))).unwrap();
            stream.write_all(&status()).ok()?;
            let mut len = [0; 4];
            stream.read_exact(&mut len).ok()?;
            let mut answer = vec![0; u32::from_be_bytes(len) as usize];
            stream.read_exact(&mut answer).ok()?;
            // A refused connection gets an error in place of the answer.
            String::from_utf8(answer).unwrap().contains("\"id\":1").then_some(stream)
        };
        std::iter::from_fn(serve).take(CONNECTIONS).collect()
    };
    std::thread::scope(|scope| scope.spawn(connected).join().unwrap())
}

#[test]
fn users_of_the_control_group_do_not_lock_root_out() {
    let group = Group::from_name("daemon").unwrap();
    let (true, Some(group)) = (Uid::effective().is_root(), group) else {
        eprintln!("SKIPPED: only root can be several users, of the group daemon");
        return;
    };
    let mut net = Net::new(&["r1"]);
    let text_of = std::fs::read_to_string(net.config("r1")).unwrap();
    let with_group = text_of.replace("[node]\n", "[node]\ncontrol_group = \"daemon\"\n");
    std::fs::write(net.config("r1"), with_group).unwrap();
    for folder in [net.root(), &net.dir("r1")] {
        std::fs::set_permissions(folder, PermissionsExt::from_mode(0o755)).unwrap();
    }
    net.start("r1");
    let users = [60_001, 60_002, 60_003];
    let all = users.map(|user| served(&net, user, group.gid.as_raw()));
    let had = all.each_ref().map(Vec::len);
    let output = net.command("r1", &["status"]).output().unwrap();
    assert!(output.status.success(), "{had:?} connections, and root got {:?}", text(&output));
    assert!(had.iter().all(|had| *had > 0), "{had:?}");
}
