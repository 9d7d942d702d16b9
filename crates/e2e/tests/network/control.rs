//! Programs that misuse a node's control socket must not lock out others. A log that nobody reads
//! must not block the node.

use std::io::{IoSlice, Read, Write};
use std::os::fd::{AsRawFd, RawFd};
use std::os::unix::fs::PermissionsExt;
use std::os::unix::net::UnixStream;
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use nix::fcntl::{FcntlArg, OFlag, fcntl};
use nix::sys::socket::{ControlMessage, MsgFlags, sendmsg};
use nix::unistd::{Group, Uid};
use shoal_e2e::{LoopbackNet, shoal, text, thread};

/// Frames sent. If 32 descriptors of each stayed open, they would exceed a process's limit.
const FRAMES: usize = 640;
/// Descriptors in each frame; a node takes 32.
const DESCRIPTORS: usize = 200;
/// Connections at once that a node serves.
const CONNECTIONS: usize = 64;

fn connect(net: &LoopbackNet) -> UnixStream {
    UnixStream::connect(net.dir("r1").join("control.sock")).unwrap()
}

/// The frame of a command.
fn status() -> Vec<u8> {
    let frame = b"{\"protocol\":1,\"id\":1,\"command\":{\"do\":\"status\"}}";
    [&(frame.len() as u32).to_be_bytes()[..], frame].concat()
}

#[test]
fn descriptors_that_come_in_excess_are_closed() {
    let mut net = LoopbackNet::new(&["r1"]);
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
    let mut net = LoopbackNet::new(&["r1"]);
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
fn served(net: &LoopbackNet, user: u32, group: u32) -> Vec<UnixStream> {
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
    let mut net = LoopbackNet::new(&["r1"]);
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

/// Both ends of a pipe that is full.
fn full_pipe() -> (std::io::PipeReader, std::io::PipeWriter) {
    let (reader, mut writer) = std::io::pipe().unwrap();
    fcntl(&writer, FcntlArg::F_SETFL(OFlag::O_NONBLOCK)).unwrap();
    for len in [4_096, 1] {
        while writer.write(&vec![b'x'; len]).is_ok() {}
    }
    fcntl(&writer, FcntlArg::F_SETFL(OFlag::empty())).unwrap();
    (reader, writer)
}

#[test]
fn a_log_that_nobody_reads_holds_neither_packets_nor_answers_nor_the_end() {
    let mut net = LoopbackNet::new(&["r1", "h1"]);
    net.configure("r1", "[log]\nlevel = \"trace\"\n");
    let (_unread, log) = full_pipe();
    let start = |command: &mut Command| command.stdin(Stdio::null()).spawn().unwrap();
    let config = net.config("r1");
    let node = start(shoal(&["run", "-c", config.to_str().unwrap()]).stderr(log));
    net.adopt("r1", node);
    net.start("h1");
    net.until(|net| net.ask("h1", &["ping", "-n", "1", "r1"]).is_some());
    // Each of these commands causes a log line.
    for _ in 0..3 {
        assert!(net.ask("r1", &["reload"]).is_some());
        assert!(net.ask("h1", &["ping", "-n", "1", "r1"]).is_some());
    }
    let began = Instant::now();
    assert_eq!(net.end("r1", "-TERM"), Some(0));
    assert!(began.elapsed() < Duration::from_secs(5), "{:?}", began.elapsed());
}
