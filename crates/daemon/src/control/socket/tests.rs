//! Tests of the server, with well-behaved programs and others.

use std::io::{Read, Seek, Write};
use std::os::unix::fs::PermissionsExt;
use std::path::PathBuf;
use std::sync::Mutex;

use super::*;
use crate::control::api::{SendFile, SenderFilter, TransferProgress};

struct ControlRig {
    dir: tempfile::TempDir,
    server: ControlServer,
    requests: Mutex<Receiver<ClientMessage>>,
}

fn rig() -> ControlRig {
    let (sender, requests) = sync_channel(16);
    let mut server = ControlServer::new(sender, Arc::new(|| {}), None);
    let dir = tempfile::tempdir().unwrap();
    server.listen(&dir.path().join("control.sock")).unwrap();
    ControlRig { dir, server, requests: Mutex::new(requests) }
}

/// The registrar's user hands over supplements, and commands nothing.
#[test]
fn the_registrars_socket_takes_what_a_registrar_asks_alone() {
    let (sender, requests) = sync_channel(16);
    let mut server = ControlServer::new(sender, Arc::new(|| {}), None);
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("registrar.sock");
    server.bind_narrow(&path, None, nix::unistd::getegid().as_raw()).unwrap();
    server.start().unwrap();
    let mode = std::fs::metadata(&path).unwrap().permissions().mode();
    assert_eq!(mode & 0o777, 0o660);
    let receive = Command::Receive { from: SenderFilter::Any, max_size: None };
    let ping = Command::Ping { host: "bob".into(), timeout_ms: 1 };
    let others = [Command::Peers, Command::Status, Command::Reload, Command::Stop];
    for command in others.into_iter().chain([ping, receive]) {
        let said =
            ControlConnection::connect(&path).unwrap().call(command, &[]).unwrap_err().to_string();
        assert!(said.contains("this socket is the registrar's"), "{said}");
    }
    let asked = std::thread::spawn(move || {
        ControlConnection::connect(&path).unwrap().call(Command::Directory, &[]).map(drop)
    });
    // A request that is dropped is answered with an error of the node.
    let is_it = |from: ClientMessage| match from {
        ClientMessage::Request(request) => request.command == Command::Directory,
        ClientMessage::Closed(_) => false,
    };
    assert!((0..12).any(|_| requests.recv_timeout(Duration::from_secs(5)).is_ok_and(is_it)));
    assert!(asked.join().unwrap().is_err());
}

impl ControlRig {
    fn path(&self) -> PathBuf {
        self.dir.path().join("control.sock")
    }

    fn connect(&self) -> ControlConnection {
        ControlConnection::connect(&self.path()).unwrap()
    }

    fn request(&self) -> ControlRequest {
        match self.requests.lock().unwrap().recv_timeout(Duration::from_secs(5)).unwrap() {
            ClientMessage::Request(request) => request,
            ClientMessage::Closed(id) => panic!("{id:?} closed"),
        }
    }

    /// The next request; ends of connections are skipped.
    fn any_request(&self) -> ControlRequest {
        loop {
            let next = self.requests.lock().unwrap().recv_timeout(Duration::from_secs(5));
            if let ClientMessage::Request(request) = next.unwrap() {
                return request;
            }
        }
    }

    fn closed(&self) -> ClientId {
        match self.requests.lock().unwrap().recv_timeout(Duration::from_secs(5)).unwrap() {
            ClientMessage::Closed(id) => id,
            ClientMessage::Request(request) => panic!("{:?}", request.command),
        }
    }
}

#[test]
fn a_command_is_answered_and_events_keep_their_order() {
    let rig = rig();
    let mut program = rig.connect();
    std::thread::scope(|s| {
        s.spawn(|| {
            let request = rig.request();
            assert_eq!(request.command, Command::Monitor);
            let client = request.client.clone();
            assert!(client.event(ControlEvent::Accepted {
                transfer: 1,
                resumed_bytes: 2,
                whole: false
            }));
            request.reply(ControlReply::Ok);
            assert!(client.event(ControlEvent::Accepted {
                transfer: 2,
                resumed_bytes: 2,
                whole: false
            }));
        });
        assert_eq!(program.call(Command::Monitor, &[]).unwrap(), ControlReply::Ok);
    });
    for n in 1..=2 {
        let event = program.event(Some(Duration::from_secs(5))).unwrap();
        assert_eq!(
            event,
            Some(ControlEvent::Accepted { transfer: n, resumed_bytes: 2, whole: false })
        );
    }
    assert_eq!(program.event(Some(Duration::from_millis(5))).unwrap(), None);
    drop(program);
    rig.closed();
}

#[test]
fn descriptors_arrive_in_order() {
    let rig = rig();
    let mut program = rig.connect();
    let mut files = [tempfile::tempfile().unwrap(), tempfile::tempfile().unwrap()];
    files[0].write_all(b"one").unwrap();
    files[1].write_all(b"two").unwrap();
    let file = |name: &str| SendFile {
        name: name.into(),
        size: 3,
        modified_ns: 0,
        file_id: "00".repeat(16),
        executable: false,
    };
    let command = Command::Send { host: "bob".into(), files: vec![file("one"), file("two")] };
    std::thread::scope(|s| {
        s.spawn(|| {
            let mut request = rig.request();
            let texts: Vec<String> = std::mem::take(&mut request.descriptors)
                .into_iter()
                .map(|handed| {
                    let mut file = handed.into_file().unwrap();
                    file.rewind().unwrap();
                    let mut text = String::new();
                    file.read_to_string(&mut text).unwrap();
                    text
                })
                .collect();
            assert_eq!(texts, ["one", "two"]);
            request.reply(ControlReply::Sending { transfers: vec![1, 2] });
        });
        let fds = [files[0].as_fd(), files[1].as_fd()];
        let reply = program.call(command, &fds).unwrap();
        assert_eq!(reply, ControlReply::Sending { transfers: vec![1, 2] });
    });
}

#[test]
fn an_unanswered_request_is_answered_all_the_same() {
    let rig = rig();
    let mut program = rig.connect();
    std::thread::scope(|s| {
        s.spawn(|| drop(rig.request()));
        let error = program.call(Command::Status, &[]).unwrap_err().to_string();
        assert_eq!(error, "the node gave no answer");
        s.spawn(|| rig.request().defer().reply(ControlReply::Pong { rtt_us: 5, since_us: 5 }));
        let ping = Command::Ping { host: "bob".into(), timeout_ms: 100 };
        assert_eq!(program.call(ping, &[]).unwrap(), ControlReply::Pong { rtt_us: 5, since_us: 5 });
    });
}

#[test]
fn nonsense_closes_only_its_own_connection() {
    let rig = rig();
    let huge = (MAX_FRAME_PLUS as u32).to_be_bytes();
    let garbage = [&9u32.to_be_bytes()[..], b"{\"do\":42}"].concat();
    for bytes in [&huge[..], &garbage, b"GET / HTTP/1.1\r\n\r\n"] {
        let mut stream = UnixStream::connect(rig.path()).unwrap();
        stream.write_all(bytes).unwrap();
        let mut answer = Vec::new();
        // The unread rest may turn the end of the stream into a reset.
        let _ = stream.read_to_end(&mut answer);
        let text = String::from_utf8_lossy(&answer[4..]).to_string();
        assert!(text.contains("bad_request"), "{text}");
        rig.closed();
    }
    // Half a frame and then silence blocks nobody.
    let mut half = UnixStream::connect(rig.path()).unwrap();
    half.write_all(&[0, 0]).unwrap();
    let mut program = rig.connect();
    std::thread::scope(|s| {
        s.spawn(|| rig.request().reply(ControlReply::Ok));
        assert_eq!(program.call(Command::Status, &[]).unwrap(), ControlReply::Ok);
    });
}

const MAX_FRAME_PLUS: usize = crate::control::api::MAX_FRAME + 1;

#[test]
fn another_protocol_is_told_so() {
    let rig = rig();
    let stream = UnixStream::connect(rig.path()).unwrap();
    let message = CommandFrame { protocol: PROTOCOL + 1, id: 7, command: Command::Status };
    write_frame(&stream, &message, &[]).unwrap();
    let (answer, _): (NodeFrame, _) = read_frame(stream.as_fd()).unwrap().unwrap();
    let NodeFrameBody::Reply { id: 7, reply: ControlReply::Error(error) } = answer.body else {
        panic!()
    };
    assert_eq!(error.code, ErrorCode::Protocol);
}

#[test]
fn a_program_that_does_not_read_is_dropped_and_the_node_never_waits() {
    let rig = rig();
    let mut program = rig.connect();
    let (sent, lost) = std::thread::scope(|s| {
        let node = s.spawn(|| {
            let request = rig.request();
            let client = request.client.clone();
            request.reply(ControlReply::Ok);
            let progress = || {
                ControlEvent::Progress(TransferProgress {
                    rate: 1.5,
                    ..TransferProgress::default()
                })
            };
            let sent = (0..100_000).take_while(|_| client.event(progress())).count();
            let lost = (0..10).filter(|_| client.event(progress())).count();
            (sent, lost)
        });
        program.call(Command::Monitor, &[]).unwrap();
        node.join().unwrap()
    });
    assert!((QUEUE - 1..100_000).contains(&sent), "{sent}");
    assert_eq!(lost, 0);
    let mut seen = 0;
    loop {
        match program.event(Some(Duration::from_secs(5))) {
            Ok(Some(_)) => seen += 1,
            Err(CallError::TooSlow(missed)) => break assert!((1..=11).contains(&missed)),
            other => panic!("{other:?}"),
        }
    }
    assert!(seen <= sent);
    rig.closed();
}

#[test]
fn who_starts_a_second_time_is_told_before_anything_is_opened() {
    let rig = rig();
    let said = check_free(&rig.path()).unwrap_err().to_string();
    assert!(said.contains("control.sock: another node answers there already"), "{said}");
    drop(rig.server);
    check_free(&rig.dir.path().join("control.sock")).unwrap();
}

#[test]
fn the_socket_is_for_its_owner_and_goes_with_the_server() {
    let rig = rig();
    let path = rig.path();
    let mode = std::fs::metadata(&path).unwrap().permissions().mode();
    assert_eq!(mode & 0o777, 0o600);
    let mut second = ControlServer::new(sync_channel(1).0, Arc::new(|| {}), None);
    let text = second.listen(&path).unwrap_err().to_string();
    assert!(text.contains("another node answers there already"), "{text}");
    let mut program = rig.connect();
    // The server hears of the connection before it ends.
    while rig.server.clients() < 1 {
        std::thread::yield_now();
    }
    drop(rig.server);
    assert!(!path.exists());
    let end = program.event(None);
    assert!(matches!(end, Err(CallError::Closed)), "{end:?}");
    let error = ControlConnection::connect(&path).unwrap_err();
    assert!(matches!(error, ConnectError::NotRunning(_)), "{error}");
}

#[test]
fn a_dead_nodes_socket_is_replaced_and_other_files_are_not() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("control.sock");
    drop(UnixListener::bind(&path).unwrap());
    let mut server = ControlServer::new(sync_channel(1).0, Arc::new(|| {}), None);
    server.listen(&path).unwrap();
    drop(server);
    std::fs::write(&path, "precious").unwrap();
    let mut server = ControlServer::new(sync_channel(1).0, Arc::new(|| {}), None);
    let text = server.listen(&path).unwrap_err().to_string();
    assert!(text.contains("is no socket"), "{text}");
    let text = server.listen(&dir.path().join("no/control.sock")).unwrap_err().to_string();
    assert!(text.contains("fix: mkdir -p"), "{text}");
}

#[test]
fn connections_are_bounded() {
    let rig = rig();
    // Silent connections make room for active ones; active ones make room for nobody.
    let _silent: Vec<ControlConnection> = (0..2 * MAX_CLIENTS).map(|_| rig.connect()).collect();
    // A user may have at most as many seats as are free.
    let most = MAX_CLIENTS / 2;
    let mut programs: Vec<ControlConnection> = (0..most).map(|_| rig.connect()).collect();
    std::thread::scope(|s| {
        s.spawn(|| (0..most).for_each(|_| rig.any_request().reply(ControlReply::Ok)));
        for program in &mut programs {
            assert_eq!(program.call(Command::Status, &[]).unwrap(), ControlReply::Ok);
        }
    });
    assert!(rig.server.clients() <= most, "{}", rig.server.clients());
    let mut late = rig.connect();
    let error = late.call(Command::Status, &[]).unwrap_err().to_string();
    assert!(error.starts_with("too many programs"), "{error}");
    programs.clear();
}

#[test]
fn a_link_in_the_place_of_the_socket_is_not_followed() {
    let dir = tempfile::tempdir().unwrap();
    let (path, victim) = (dir.path().join("control.sock"), dir.path().join("victim"));
    std::fs::write(&victim, "").unwrap();
    std::fs::set_permissions(&victim, PermissionsExt::from_mode(0o640)).unwrap();
    let place = SocketLocation::open(&path, None).unwrap();
    let owner = SocketOwner { user: None, group: Some(nix::unistd::getgid()) };
    let listener = super::bind(&path, &place, owner).unwrap();
    assert_eq!(std::fs::metadata(&path).unwrap().permissions().mode() & 0o777, 0o660);
    // An attacker might do this just after the socket was made.
    std::fs::remove_file(&path).unwrap();
    std::os::unix::fs::symlink(&victim, &path).unwrap();
    let mode = nix::sys::stat::Mode::from_bits_truncate(0o660);
    let text = place.settle(mode, owner).unwrap_err().to_string();
    assert!(text.contains("something else has taken its name"), "{text}");
    assert_eq!(std::fs::metadata(&victim).unwrap().permissions().mode() & 0o777, 0o640);
    // A hard link to another socket is refused.
    std::fs::remove_file(&path).unwrap();
    let other = dir.path().join("other.sock");
    let _other = UnixListener::bind(&other).unwrap();
    std::fs::hard_link(&other, &path).unwrap();
    assert!(place.settle(mode, owner).is_err());
    drop(listener);
    // Links in the path are followed if this user made them; circles are refused.
    let (real, link) = (dir.path().join("real"), dir.path().join("link"));
    std::fs::create_dir(&real).unwrap();
    std::os::unix::fs::symlink("link", &link).unwrap();
    let text = SocketLocation::open(&link.join("s"), None).unwrap_err().to_string();
    assert!(text.contains("can't be opened"), "{text}");
    std::fs::remove_file(&link).unwrap();
    std::os::unix::fs::symlink("./real/../real", &link).unwrap();
    let place = SocketLocation::open(&link.join("s"), None).unwrap();
    std::fs::write(real.join("s"), "").unwrap();
    assert_eq!(place.found().unwrap(), FileKind::Other);
}
