//! Files through real nodes on the loopback, as a user sends and receives them.

use std::fs;
use std::path::Path;
use std::process::Child;

use shoal_e2e::{
    LoopbackNet, begin, bytes, end_of, holds, names, send_signal, slow_network, text, unfinished,
};

fn network() -> LoopbackNet {
    let mut net = LoopbackNet::new(&["r1", "h1", "h2"]);
    net.start_all();
    net
}

/// A receiver at h2; senders wait for it with `--wait`.
fn receive(net: &LoopbackNet, inbox: &Path, words: &[&str]) -> Child {
    let mut command = net.command("h2", &["receive", "--json", "--dir"]);
    command.arg(inbox).args(words);
    begin(command)
}

/// Sends from h1; returns exit code, standard output and standard error.
fn send(
    net: &LoopbackNet,
    files: &[&Path],
    host: &str,
    words: &[&str],
) -> (Option<i32>, String, String) {
    let mut command = net.command("h1", &["send", "--json"]);
    command.args(words).args(files).arg(host);
    let output = end_of(begin(command), "send");
    let (out, err) = text(&output);
    (output.status.code(), out, err)
}

#[test]
fn files_and_folders_arrive_whole_and_nothing_is_overwritten() {
    let net = network();
    let (source, inbox) = (net.folder("source"), net.folder("inbox"));
    fs::create_dir_all(source.join("sub")).unwrap();
    let big = bytes(1, 3_000_000);
    fs::write(source.join("big"), &big).unwrap();
    fs::write(source.join("sub/small"), "hi").unwrap();
    fs::write(source.join("empty"), "").unwrap();
    std::os::unix::fs::symlink("/etc/passwd", source.join("link")).unwrap();
    let receiver = receive(&net, &inbox, &["--from", "h1", "--count", "3"]);
    let (code, _, err) = send(&net, &[&source], "h2", &["--wait", "10"]);
    assert_eq!(code, Some(0), "{err}");
    assert!(err.contains("link: symbolic link skipped"), "{err}");
    let ended = end_of(receiver, "receive");
    assert!(ended.status.success(), "{:?}", text(&ended));
    assert_eq!(names(&inbox.join("source")), ["big", "empty", "sub"]);
    assert!(fs::read(inbox.join("source/big")).unwrap() == big);
    assert_eq!(fs::read(inbox.join("source/sub/small")).unwrap(), b"hi");

    // Another file with an existing name is refused, and both ends say why.
    fs::write(source.join("big"), "small").unwrap();
    let mut receiver = receive(&net, &inbox, &["--from", "h1"]);
    let (code, _, err) = send(&net, &[&source], "h2", &["--wait", "10"]);
    assert_eq!(code, Some(5), "{err}");
    assert!(err.contains("source/big: refused by h2: a file of that name exists"), "{err}");
    receiver.kill().unwrap();
    let said = text(&end_of(receiver, "receive")).1;
    assert!(said.contains("refused source/big from h1: exists already"), "{said}");
}

#[test]
fn a_link_that_does_not_come_up_says_what_to_look_at() {
    let mut net = LoopbackNet::new(&["r1", "h1"]);
    net.start("h1");
    let said =
        |net: &LoopbackNet, verb: &str| text(&net.command("h1", &[verb]).output().unwrap()).0;
    assert!(said(&net, "status").contains("0 of 1 up (see `shoal peers`)"));
    assert!(said(&net, "peers").contains("connecting: no answer. Check that"));
    assert!(said(&net, "routes").ends_with("forwards all its traffic; no link to it is up\n"));
    net.start("r1");
    net.until(|net| said(net, "status").contains("1 of 1 up\n"));
    assert!(!said(&net, "peers").contains("connecting"));
}

#[test]
fn refused_files_are_reported_with_the_reason() {
    let mut net = network();
    let (source, inbox) = (net.folder("source"), net.folder("inbox"));
    let file = source.join("file");
    fs::write(&file, bytes(2, 10_000)).unwrap();
    let (code, out, err) = send(&net, &[&file], "h2", &[]);
    assert_eq!(code, Some(5), "{err}");
    assert!(err.contains("file: refused by h2: nobody receives there"), "{err}");
    let lines: Vec<serde_json::Value> =
        out.lines().map(|line| serde_json::from_str(line).unwrap()).collect();
    let [.., sent, error] = &lines[..] else { panic!("{out}") };
    assert_eq!((&sent["version"], &sent["send"]["files_failed"]), (&1.into(), &1.into()), "{out}");
    // Every failure ends with an error object, even after a message in words.
    assert_eq!(error["error"]["code"], 5, "{out}");
    // Only the first of many files are named.
    let many = net.folder("many");
    (0..30).for_each(|i| fs::write(many.join(format!("f{i:02}")), "x").unwrap());
    fs::create_dir(many.join("none")).unwrap();
    let (code, out, err) = send(&net, &[&many], "h2", &[]);
    assert_eq!(code, Some(5), "{err}");
    assert!(out.contains("\"files_failed\":30"), "{out}");
    assert!(err.contains("many/none: empty folder skipped"), "{err}");
    assert!(err.contains("26 more files not offered") && err.lines().count() == 7, "{err}");
    let (code, _, err) = send(&net, &[&file], "h3", &[]);
    assert_eq!(code, Some(1), "{err}");
    assert!(err.contains("no host \"h3\"") && err.contains("h1 or h2"), "{err}");
    let mut receiver = receive(&net, &inbox, &["--from", "h1", "--max-size", "1k"]);
    let (code, _, err) = send(&net, &[&file], "h2", &["--wait", "10"]);
    assert_eq!(code, Some(5), "{err}");
    assert!(err.contains("larger than the receiver's --max-size"), "{err}");
    receiver.kill().unwrap();
    let said = text(&end_of(receiver, "receive")).1;
    assert!(said.contains("refused file from h1: has 10.0 kB, --max-size is 1.0 kB"), "{said}");
    assert_eq!(names(&inbox), Vec::<String>::new());
    assert_eq!(net.end("h2", "-TERM"), Some(0));
    let ping = net.command("h1", &["ping", "h2", "-n", "1", "-W", "1"]).output().unwrap();
    assert_eq!(ping.status.code(), Some(3), "{:?}", text(&ping));
}

#[test]
fn a_send_whose_own_link_is_down_says_so_at_its_end() {
    let mut net = LoopbackNet::new(&["r1", "h1", "h2"]);
    net.configure("h1", "[transfer]\noffer_s = 2\nsilence_s = 2\n");
    net.start("h1");
    let file = net.folder("source").join("file");
    fs::write(&file, bytes(2, 10)).unwrap();
    let (code, _, err) = send(&net, &[&file], "h2", &[]);
    assert_eq!(code, Some(3), "{err}");
    assert!(err.contains("can't be reached: no link of this node is up"), "{err}");
}

#[test]
fn killed_commands_and_a_killed_node_resume() {
    let net = slow_network();
    let (source, inbox) = (net.folder("source"), net.folder("inbox"));
    let file = source.join("file");
    let content = bytes(3, 12_000_000);
    fs::write(&file, &content).unwrap();
    let part = || unfinished(&inbox, "file", "part");
    let recorded = || {
        let text = fs::read(unfinished(&inbox, "file", "state")).unwrap_or_default();
        let state = serde_json::from_slice::<serde_json::Value>(&text).unwrap_or_default();
        state["chunks"].as_array().is_some_and(|ranges| !ranges.is_empty())
    };
    let again = || {
        let mut sender = net.command("h1", &["send", "--json", "--wait", "10"]);
        sender.arg(&file).arg("h2");
        begin(sender)
    };
    // The sending command dies: the receiver is told, and keeps the received part.
    let mut receiver = receive(&net, &inbox, &["--from", "h1"]);
    let mut sender = again();
    net.until(|_| holds(&part(), &content, 3_000_000));
    sender.kill().unwrap();
    end_of(sender, "send");
    net.until(|_| recorded());
    // The receiving command dies: the sender is told.
    let sender = again();
    net.until(|_| holds(&part(), &content, 7_000_000));
    receiver.kill().unwrap();
    end_of(receiver, "receive");
    let ended = end_of(sender, "send");
    assert!(!ended.status.success(), "{:?}", text(&ended));
    assert!(names(&inbox).len() == 2 && part().exists());
    // With all commands and nodes back, the file arrives whole, under its name.
    let receiver = receive(&net, &inbox, &["--from", "h1", "--once"]);
    let ended = end_of(again(), "send");
    let (out, err) = text(&ended);
    assert!(ended.status.success(), "{err}");
    let resumed = out.lines().find(|l| l.contains("resumed_bytes")).unwrap_or_default();
    assert!(!resumed.contains("\"resumed_bytes\":0"), "{out}");
    assert!(end_of(receiver, "receive").status.success());
    assert!(fs::read(inbox.join("file")).unwrap() == content);
    assert_eq!(names(&inbox), ["file"]);
}

#[test]
fn a_stopped_node_ends_a_send_with_a_message_and_a_receiver_waits() {
    let mut net = slow_network();
    let (source, inbox) = (net.folder("source"), net.folder("inbox"));
    let file = source.join("file");
    let content = bytes(5, 20_000_000);
    fs::write(&file, &content).unwrap();
    let part = || unfinished(&inbox, "file", "part");
    let receiver = receive(&net, &inbox, &["--from", "h1"]);
    let mut sender = net.command("h1", &["send", "--wait", "10"]);
    sender.arg(&file).arg("h2");
    let sender = begin(sender);
    net.until(|_| holds(&part(), &content, 1_000_000));
    assert_eq!(net.end("h2", "-TERM"), Some(0));
    let ended = end_of(sender, "send");
    assert!(!ended.status.success(), "{:?}", text(&ended));
    assert!(text(&ended).1.contains("file: "), "{:?}", text(&ended));
    assert!(!inbox.join("file").exists());
    // A receiver waits for its node, and ends on request. The file has failed, unless the node
    // ended before it could report that.
    send_signal(&receiver, "-INT");
    let ended = end_of(receiver, "receive");
    assert!(matches!(ended.status.code(), Some(0 | 1)), "{:?}", text(&ended));
    assert!(text(&ended).1.contains("waiting until it runs again"), "{:?}", text(&ended));
    // A file shrinks during its transfer: both ends are told, and no file gets its name.
    net.start("h2");
    let content = bytes(6, 20_000_000);
    fs::write(&file, &content).unwrap();
    let receiver = receive(&net, &inbox, &["--from", "h1", "--once"]);
    let mut sender = net.command("h1", &["send", "--wait", "10"]);
    sender.arg(&file).arg("h2");
    let sender = begin(sender);
    net.until(|_| holds(&part(), &content, 1_000_000));
    fs::OpenOptions::new().write(true).open(&file).unwrap().set_len(100_000).unwrap();
    let ended = end_of(sender, "send");
    assert_eq!(ended.status.code(), Some(1), "{:?}", text(&ended));
    assert!(text(&ended).1.contains("changed"), "{:?}", text(&ended));
    assert!(!end_of(receiver, "receive").status.success());
    assert!(!inbox.join("file").exists());
}

#[test]
fn without_a_daemon_the_commands_are_the_nodes() {
    let mut net = LoopbackNet::new(&["r1", "h1", "h2"]);
    net.start("r1");
    let (source, inbox) = (net.folder("source"), net.folder("inbox"));
    let file = source.join("file");
    let content = bytes(4, 1_000_000);
    fs::write(&file, &content).unwrap();
    let receiver = receive(&net, &inbox, &["--from", "any", "--once"]);
    let (code, _, err) = send(&net, &[&file], "h2", &["--wait", "20"]);
    assert_eq!(code, Some(0), "{err}");
    assert!(end_of(receiver, "receive").status.success());
    assert!(fs::read(inbox.join("file")).unwrap() == content);
}
