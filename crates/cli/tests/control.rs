//! Programs that misuse a node's control socket take nothing from the others.

#![allow(clippy::disallowed_methods, clippy::disallowed_types, reason = "starts real processes")]

mod common;

use std::io::{IoSlice, Read, Write};
use std::os::fd::{AsRawFd, RawFd};
use std::os::unix::net::UnixStream;
use std::time::Duration;

use common::{Net, text};
use nix::sys::socket::{ControlMessage, MsgFlags, sendmsg};

/// More than a process may have open, with 32 of each of these left behind.
const FRAMES: usize = 640;
/// Descriptors in each; a node takes 32.
const DESCRIPTORS: usize = 200;
/// Connections at once that a node serves.
const CONNECTIONS: usize = 64;

fn connect(net: &Net) -> UnixStream {
    UnixStream::connect(net.dir("r1").join("control.sock")).unwrap()
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
        let frame = b"{\"protocol\":1,\"id\":1,\"command\":{\"do\":\"status\"}}";
        let frame = [&(frame.len() as u32).to_be_bytes()[..], frame].concat();
        let rights = [ControlMessage::ScmRights(&many)];
        let sent = sendmsg::<()>(
            stream.as_raw_fd(),
            &[IoSlice::new(&frame)],
            &rights,
            MsgFlags::MSG_NOSIGNAL,
            None,
        );
        assert_eq!(sent.unwrap(), frame.len());
        // The node closes it, with or without a word.
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
    // The first half of a length is no command either.
    for stream in &mut silent {
        let _written = stream.write(&[0, 0]);
    }
    for _ in 0..4 {
        let output = net.command("r1", &["status"]).output().unwrap();
        assert!(output.status.success(), "{:?}", text(&output));
    }
}
