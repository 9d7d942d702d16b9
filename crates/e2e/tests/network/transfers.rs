//! Failures of file transfers: names, disks, pipes, killed programs; and their messages.

use std::fs;
use std::io::{BufRead, BufReader, Write};
use std::os::unix::fs::MetadataExt;
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use shoal_e2e::{
    LoopbackNet, begin, bytes, end_of, holds, names, namespaces, send_signal, shoal, slow_network,
    text, unfinished,
};

fn network() -> LoopbackNet {
    let mut net = LoopbackNet::new(&["r1", "h1", "h2"]);
    net.start_all();
    net
}

fn receive(net: &LoopbackNet, inbox: &Path, words: &[&str]) -> Child {
    let mut command = net.command("h2", &["receive", "--from", "h1", "--dir"]);
    command.arg(inbox).args(words);
    begin(command)
}

fn send(net: &LoopbackNet, file: &Path, words: &[&str]) -> Child {
    let mut command = net.command("h1", &["send", "--wait", "10"]);
    command.args(words).arg(file).arg("h2");
    begin(command)
}

/// Ends a command as Ctrl-C does. Returns its output.
fn interrupt(child: Child, what: &str) -> (String, String) {
    send_signal(&child, "-INT");
    text(&end_of(child, what))
}

/// The last line of a command's JSON.
fn last(out: &str) -> serde_json::Value {
    serde_json::from_str(out.lines().last().unwrap_or_default()).unwrap()
}

#[test]
fn sending_a_folder_skips_files_that_exist() {
    let net = network();
    let (source, inbox) = (net.folder("source"), net.folder("inbox"));
    let big = bytes(1, 3_000_000);
    fs::write(source.join("big"), &big).unwrap();
    fs::write(source.join("empty"), "").unwrap();
    fs::write(source.join("late"), "late").unwrap();
    fs::write(source.join("other"), "mine").unwrap();
    let there = inbox.join("source");
    fs::create_dir(&there).unwrap();
    fs::write(there.join("big"), &big).unwrap();
    fs::write(there.join("empty"), "").unwrap();
    // More files than are compared at once.
    for n in 0..12 {
        for folder in [&source, &there] {
            fs::write(folder.join(format!("n{n:02}")), bytes(n, 100_000)).unwrap();
        }
    }
    // A file of the same length with other content.
    fs::write(there.join("other"), "your").unwrap();
    let receiver = receive(&net, &inbox, &["--json"]);
    let ended = end_of(send(&net, &source, &["--json", "--parallel", "16"]), "send");
    let (out, err) = text(&ended);
    assert_eq!(ended.status.code(), Some(5), "{err}");
    let refused = "source/other: refused by h2: a file of that name exists";
    // The sender may start first, and then prints that it waits.
    let failed: Vec<&str> = err.lines().filter(|line| !line.contains("waiting for")).collect();
    assert!(failed.len() == 1 && failed[0].contains(refused), "{err}");
    assert_eq!(last(&out)["error"]["code"], 5, "{out}");
    let (out, _) = out.trim_end().rsplit_once('\n').unwrap();
    let sent = &last(out)["send"];
    // The empty file counts too.
    assert_eq!((&sent["files_present"], &sent["files_failed"]), (&14.into(), &1.into()), "{out}");
    assert_eq!(sent["files_sent"], 1, "{out}");
    assert_eq!(sent["bytes_sent"], 4, "{out}");
    assert_eq!(fs::read(there.join("late")).unwrap(), b"late");
    assert_eq!(fs::read(there.join("other")).unwrap(), b"your");
    assert_eq!(names(&there).len(), 16);
    let (out, err) = interrupt(receiver, "receive");
    assert!(err.contains("refused source/other from h1: exists already with other"), "{err}");
    let received = &last(&out)["receive"];
    assert_eq!((&received["files_present"], &received["files_refused"]), (&14.into(), &1.into()));
}

#[test]
fn many_files_are_summed_up_and_times_are_kept() {
    let net = network();
    let (source, inbox) = (net.folder("source"), net.root().join("new/inbox"));
    for n in 0..120 {
        fs::write(source.join(format!("f{n:03}")), format!("{n}")).unwrap();
    }
    let old = std::time::SystemTime::UNIX_EPOCH + Duration::new(1_000_000_000, 123_456_789);
    let first = fs::OpenOptions::new().write(true).open(source.join("f000")).unwrap();
    first.set_modified(old).unwrap();
    // The folder is missing, and without a terminal the command can't ask.
    let ended = end_of(receive(&net, &inbox, &[]), "receive");
    assert!(text(&ended).1.contains("no such folder; fix: mkdir -p"), "{:?}", text(&ended));
    let receiver = receive(&net, &inbox, &["--create", "--count", "120"]);
    let ended = end_of(send(&net, &source, &[]), "send");
    let (out, err) = text(&ended);
    assert!(ended.status.success(), "{err}");
    assert!(out.lines().count() < 60, "{out}");
    assert!(out.contains("sent 120 files to h2: 250 B in "), "{out}");
    let (out, _) = text(&end_of(receiver, "receive"));
    assert!(out.lines().count() < 60, "{out}");
    assert_eq!(out.lines().last(), Some("received 120 files, 250 B"), "{out}");
    let there = inbox.join("source");
    assert_eq!(names(&there).len(), 120);
    assert_eq!(there.join("f000").metadata().unwrap().modified().unwrap(), old);
    // Refusals are summed up, too: each file differs in length from the existing one.
    (0..120).for_each(|n| fs::write(source.join(format!("f{n:03}")), "longer").unwrap());
    let receiver = receive(&net, &inbox, &[]);
    let (_, err) = text(&end_of(send(&net, &source, &[]), "send"));
    assert!(err.lines().count() < 60 && err.contains("more files refused or failed"), "{err}");
    let (_, err) = interrupt(receiver, "receive");
    assert!(err.lines().count() < 60, "{err}");
    assert!(err.contains("h1: 100 more files refused or failed"), "{err}");
}

#[test]
fn files_that_can_not_be_sent_are_named_and_the_rest_arrives() {
    use std::os::unix::ffi::OsStrExt;
    let net = network();
    let (source, inbox) = (net.folder("source"), net.folder("inbox"));
    for name in ["good", "ä ö\\x", " ", "-n", "$(x)", "a'b\"c", "line\nbreak"] {
        fs::write(source.join(name), name).unwrap();
    }
    fs::write(source.join(std::ffi::OsStr::from_bytes(b"latin\xe9")), "x").unwrap();
    let receiver = receive(&net, &inbox, &["--count", "6"]);
    let ended = end_of(send(&net, &source, &["--json"]), "send");
    let (out, err) = text(&ended);
    assert_eq!(ended.status.code(), Some(1), "{err}");
    assert!(err.contains("not UTF-8; not sent") && err.contains("control characters"), "{err}");
    let sent = &last(&out)["error"];
    assert!(sent["message"].as_str().unwrap().contains("2 files were not sent"), "{out}");
    assert!(end_of(receiver, "receive").status.success());
    let there = inbox.join("source");
    assert_eq!(names(&there), [" ", "$(x)", "-n", "a'b\"c", "good", "ä ö\\x"]);
    assert_eq!(fs::read(there.join("$(x)")).unwrap(), b"$(x)");
    // Files of /proc have the length 0, whatever they hold.
    let mut receiver = receive(&net, &inbox, &[]);
    let ended = end_of(send(&net, Path::new("/proc/version"), &[]), "send");
    assert_eq!(ended.status.code(), Some(1), "{:?}", text(&ended));
    assert!(
        text(&ended).1.contains("/proc/version: is listed with 0 bytes but has more"),
        "{:?}",
        text(&ended)
    );
    receiver.kill().unwrap();
    end_of(receiver, "receive");
    assert_eq!(names(&inbox), ["source"]);
}

#[test]
fn one_bad_argument_does_not_stop_the_others() {
    let net = network();
    let (source, inbox) = (net.folder("source"), net.folder("inbox"));
    for name in ["a", "b", ".bashrc"] {
        fs::write(source.join(name), name).unwrap();
    }
    let pipe = source.join("pipe");
    nix::unistd::mkfifo(&pipe, nix::sys::stat::Mode::S_IRWXU).unwrap();
    fs::create_dir(source.join("none")).unwrap();
    let receiver = receive(&net, &inbox, &["--count", "2"]);
    let mut command = net.command("h1", &["send", "--wait", "10"]);
    command.args([".bashrc", "a", "pipe", "missing", "none", "b"].map(|name| source.join(name)));
    command.arg("h2");
    let ended = end_of(begin(command), "send");
    let (out, err) = text(&ended);
    assert_eq!(ended.status.code(), Some(1), "{err}");
    for why in [
        "/.bashrc: no receiver would take it: the name is hidden (begins with a dot); not sent",
        "/pipe: is no regular file and no folder; not sent",
        "/missing: No such file or directory (os error 2); not sent",
        "/none: empty folder skipped",
        "3 files were not sent",
    ] {
        assert!(err.contains(why), "{why}: {err}");
    }
    assert!(out.contains("; 3 not sent"), "{out}");
    assert_eq!(err.matches("not sent\n").count(), 4, "{err}");
    assert!(end_of(receiver, "receive").status.success());
    assert_eq!(names(&inbox), ["a", "b"]);
    // The command fails if the pipe is its only argument.
    let mut command = net.command("h1", &["send"]);
    command.args([pipe.as_path(), Path::new("h2")]);
    let (_, err) = text(&end_of(begin(command), "send"));
    assert!(err.ends_with("/pipe: is no regular file and no folder; not sent\n"), "{err}");
    assert_eq!(err.lines().count(), 1, "{err}");
}

/// The node reports progress every 200 ms. A chunk after the last report counts, too.
#[test]
fn a_chunk_that_came_just_before_the_end_is_kept() {
    let mut net = LoopbackNet::new(&["r1", "h1", "h2"]);
    // A chunk takes half a second.
    net.configure("h1", "[transfer]\nmax_rate_mbit = 4\n");
    net.start_all();
    let (source, inbox) = (net.folder("source"), net.folder("inbox"));
    for round in 0..4 {
        let (name, content) = (format!("f{round}"), bytes(round, 2_000_000));
        let file = source.join(&name);
        fs::write(&file, &content).unwrap();
        let receiver = receive(&net, &inbox, &["--once"]);
        let sender = send(&net, &file, &[]);
        let began = Instant::now();
        let is_there = || {
            names(&inbox).iter().any(|n| n.starts_with(&format!(".{name}-")))
                && holds(&unfinished(&inbox, &name, "part"), &content, 200_000)
        };
        while !is_there() {
            assert!(began.elapsed() < Duration::from_secs(20), "no chunk came");
            std::thread::sleep(Duration::from_millis(2));
        }
        // Gives the disk thread time to report the chunk.
        std::thread::sleep(Duration::from_millis(20));
        interrupt(sender, "send");
        let (_, err) = text(&end_of(receiver, "receive"));
        assert!(err.contains("; 262.3 kB are kept"), "{round}: {err}");
    }
}

#[test]
fn a_host_that_is_down_is_named_within_three_seconds() {
    let mut net = LoopbackNet::new(&["r1", "h1", "h2"]);
    net.start("r1");
    net.start("h1");
    net.until(|net| {
        net.ask("h1", &["status"]).is_some_and(|status| status["status"]["links_up"] == 1)
    });
    let file = net.folder("source").join("file");
    fs::write(&file, "x").unwrap();
    let began = Instant::now();
    let mut sender = send(&net, &file, &[]);
    let mut lines = BufReader::new(sender.stderr.take().unwrap());
    let mut said = String::new();
    lines.read_line(&mut said).unwrap();
    let took = began.elapsed();
    assert!(took < Duration::from_secs(3), "{took:?}: {said}");
    assert!(said.contains("waiting for h2, which doesn't answer: the node doesn't run"), "{said}");
    // The host starts without a receiver. The sender waits for that, too.
    net.start("h2");
    let inbox = net.folder("inbox");
    let receiver = receive(&net, &inbox, &["--once"]);
    let ended = end_of(sender, "send");
    assert!(ended.status.success(), "{:?}", text(&ended));
    assert!(end_of(receiver, "receive").status.success());
}

#[test]
fn standard_input_is_sent_under_a_name() {
    let mut net = LoopbackNet::new(&["r1", "h1", "h2"]);
    net.start_all();
    let (inbox, folder) = (net.folder("inbox"), net.folder("source"));
    let receiver = receive(&net, &inbox, &["--count", "2"]);
    let content = bytes(4, 3_000_000);
    let file = folder.join("file");
    fs::write(&file, &content).unwrap();
    let opened = fs::File::open(&file).unwrap();
    for (input, name) in [(Stdio::piped(), "pipe.bin"), (opened.into(), "file.bin")] {
        let words = ["send", "--wait", "20", "--name", name, "-", "h2"];
        let mut sender = net.command("h1", &words).stdin(input).spawn().unwrap();
        if let Some(mut pipe) = sender.stdin.take() {
            pipe.write_all(&content).unwrap();
        }
        assert!(sender.wait().unwrap().success());
    }
    assert!(end_of(receiver, "receive").status.success());
    for name in ["pipe.bin", "file.bin"] {
        assert!(fs::read(inbox.join(name)).unwrap() == content, "{name}");
    }
    let nameless = net.command("h1", &["send", "-", "h2"]).stdin(Stdio::null()).output().unwrap();
    assert!(text(&nameless).1.contains("standard input has no name; fix:"), "{nameless:?}");
}

/// A receiver keeps running while its node restarts, and then receives files again.
#[test]
fn a_receiver_waits_while_its_node_is_restarted() {
    let mut net = LoopbackNet::new(&["r1", "h1", "h2"]);
    net.start_all();
    let inbox = net.folder("inbox");
    let mut receiver = receive(&net, &inbox, &["--count", "2"]);
    let mut said = String::new();
    let mut heard = BufReader::new(receiver.stdout.take().unwrap());
    heard.read_line(&mut said).unwrap();
    assert!(said.contains("receiving from"), "{said}");
    let file = net.folder("source").join("file");
    for (round, signal) in ["-TERM", "-KILL"].into_iter().enumerate() {
        net.end("h2", signal);
        let mut lines = BufReader::new(receiver.stderr.as_mut().unwrap());
        let mut said = String::new();
        lines.read_line(&mut said).unwrap();
        assert!(said.contains("the node stopped; waiting until it runs again"), "{said}");
        net.start("h2");
        lines.read_line(&mut said).unwrap();
        assert!(said.contains("the node runs again; receiving continues"), "{said}");
        fs::write(&file, round.to_string()).unwrap();
        let sender = send(&net, &file, &[]);
        let ended = end_of(sender, "send");
        assert!(ended.status.success(), "{:?}", text(&ended));
        // Wait for this report before the next kill: a killed node never sends it.
        heard.read_line(&mut said).unwrap();
        assert!(said.contains("file from h1"), "{said}");
        fs::rename(inbox.join("file"), inbox.join(signal)).unwrap();
    }
    assert!(end_of(receiver, "receive").status.success());
    assert_eq!(names(&inbox), ["-KILL", "-TERM"]);
}

#[test]
fn pipes_in_the_place_of_files_are_refused_and_not_waited_for() {
    let net = LoopbackNet::new(&["r1", "h1"]);
    let pipe = net.root().join("pipe");
    assert!(Command::new("mkfifo").arg(&pipe).status().unwrap().success());
    let pipe = pipe.to_str().unwrap();
    for words in [["check", "-c", pipe], ["status", "-c", pipe]] {
        let ended = end_of(begin(shoal(&words)), "a command with a pipe");
        let (_, err) = text(&ended);
        assert!(err.contains("is a pipe; expected a regular file"), "{words:?}: {err}");
    }
    let config = fs::read_to_string(net.config("h1")).unwrap();
    for file in ["node.key", "../network.key", "../hosts.toml"] {
        let changed = config.replace(&format!("\"{file}\""), &format!("\"{pipe}\""));
        assert_ne!(changed, config);
        fs::write(net.config("h1"), changed).unwrap();
        for verb in ["check", "run"] {
            let ended = end_of(begin(net.command("h1", &[verb])), "a node with a pipe");
            let (out, err) = text(&ended);
            assert_eq!(ended.status.code(), Some(4), "{file}: {out} {err}");
            assert!(err.contains("is a pipe; expected a regular file"), "{file}: {err}");
        }
    }
}

#[test]
fn one_sender_does_not_keep_others_out() {
    let mut net = LoopbackNet::new(&["r1", "h1", "h2", "h3"]);
    // At this rate the files take longer than the test.
    net.configure("h1", "[transfer]\nmax_rate_mbit = 1\n");
    net.start_all();
    let (inbox, source) = (net.folder("inbox"), net.folder("source"));
    let mut command = net.command("h2", &["receive", "--from", "any", "--dir"]);
    command.arg(&inbox);
    let receiver = begin(command);
    let mut greedy = Vec::new();
    for n in 0..3 {
        let folder = source.join(format!("f{n}"));
        fs::create_dir(&folder).unwrap();
        for file in 0..32 {
            let file = fs::File::create(folder.join(format!("{file}"))).unwrap();
            file.set_len(20_000_000).unwrap();
        }
        greedy.push(send(&net, &folder, &["--parallel", "32"]));
    }
    let parts = || {
        let folders = (0..3).filter_map(|n| fs::read_dir(inbox.join(format!("f{n}"))).ok());
        folders.flatten().count()
    };
    net.until(|_| parts() >= 32);
    std::thread::sleep(Duration::from_secs(1));
    let small = source.join("small");
    fs::write(&small, "small").unwrap();
    let mut command = net.command("h3", &["send"]);
    command.arg(&small).arg("h2");
    let ended = end_of(begin(command), "send");
    assert!(ended.status.success(), "{} parts: {:?}", parts(), text(&ended));
    assert_eq!(fs::read(inbox.join("small")).unwrap(), b"small");
    assert!(parts() <= 40, "{}", parts());
    for child in greedy.into_iter().chain([receiver]) {
        interrupt(child, "a command");
    }
}

#[test]
fn transfers_resume_after_a_kill_with_a_correct_rate_and_no_reserved_space() {
    let mut net = slow_network();
    let (source, inbox) = (net.folder("source"), net.folder("inbox"));
    let file = source.join("file");
    let content = bytes(3, 24_000_000);
    fs::write(&file, &content).unwrap();
    let part = || unfinished(&inbox, "file", "part");
    let room = || part().metadata().unwrap().blocks() * 512;
    for (victim, offset) in [("h2", 4_000_000), ("h1", 8_000_000)] {
        let receiver = receive(&net, &inbox, &["--once"]);
        let sender = send(&net, &file, &[]);
        net.until(|_| holds(&part(), &content, offset));
        net.end(victim, "-KILL");
        // A sender exits with its node; a receiver waits for its node to return. The node at the
        // other end waits until its timeout, so this test interrupts the commands that still run.
        interrupt(receiver, "receive");
        match victim {
            "h1" => assert!(!end_of(sender, "send").status.success()),
            _ => drop(interrupt(sender, "send")),
        }
        assert!(names(&inbox).len() == 2 && unfinished(&inbox, "file", "state").exists());
        assert!(room() < offset as u64 + 8_000_000, "{} after {offset}", room());
        net.start(victim);
        net.until(|net| {
            net.ask(victim, &["status"]).is_some_and(|status| status["status"]["links_up"] == 1)
        });
    }
    let receiver = receive(&net, &inbox, &["--once", "--json"]);
    let ended = end_of(send(&net, &file, &["--json"]), "send");
    let (sent, err) = text(&ended);
    assert!(ended.status.success(), "{err}");
    let (received, _) = text(&end_of(receiver, "receive"));
    for out in [&sent, &received] {
        let lines =
            out.lines().map(|line| serde_json::from_str::<serde_json::Value>(line).unwrap());
        let rates = lines.filter_map(|line| line["event"]["rate"].as_f64());
        let fastest = rates.fold(0.0, f64::max);
        assert!((1e6..8e6).contains(&fastest), "{fastest}: {out}");
    }
    assert!(last(&sent)["send"]["bytes_sent"].as_u64().unwrap() < 20_000_000, "{sent}");
    assert!(fs::read(inbox.join("file")).unwrap() == content);
    assert_eq!(names(&inbox), ["file"]);
}

#[test]
fn another_hosts_file_of_the_same_name_does_not_disturb_a_resume() {
    let mut net = LoopbackNet::new(&["r1", "h1", "h2", "h3"]);
    net.configure("h1", "[transfer]\nmax_rate_mbit = 40\n");
    net.configure("h3", "[transfer]\nmax_rate_mbit = 8\n");
    net.start_all();
    let (source, other, inbox) = (net.folder("source"), net.folder("other"), net.folder("inbox"));
    let content = bytes(5, 12_000_000);
    fs::write(source.join("x"), &content).unwrap();
    fs::write(other.join("x"), bytes(6, 12_000_000)).unwrap();
    let mut command = net.command("h2", &["receive", "--from", "any", "--dir"]);
    command.arg(&inbox);
    let receiver = begin(command);
    let first = send(&net, &source.join("x"), &[]);
    net.until(|_| holds(&unfinished(&inbox, "x", "part"), &content, 6_000_000));
    interrupt(first, "the first sender");
    net.until(|_| names(&inbox).len() == 2);
    let mut command = net.command("h3", &["send"]);
    command.arg(other.join("x")).arg("h2");
    let stranger = begin(command);
    // The second file is being sent, beside the stored part of the first.
    net.until(|_| names(&inbox).len() > 2);
    let ended = end_of(send(&net, &source.join("x"), &["--json"]), "send");
    let (out, err) = text(&ended);
    assert!(ended.status.success(), "{err}");
    let sent = last(&out)["send"]["bytes_sent"].as_u64().unwrap();
    assert!(sent < 8_000_000, "{sent} bytes were sent again");
    assert!(fs::read(inbox.join("x")).unwrap() == content);
    interrupt(stranger, "the other sender");
    interrupt(receiver, "receive");
}

#[test]
fn failed_comparisons_use_up_only_their_senders_credit() {
    let mut net = LoopbackNet::new(&["r1", "h1", "h2", "h3"]);
    net.start_all();
    let (source, inbox) = (net.folder("source"), net.folder("inbox"));
    for folder in [&source, &inbox] {
        fs::File::create_new(folder.join("large")).unwrap().set_len(6 << 30).unwrap();
        fs::write(folder.join("small"), "small").unwrap();
    }
    let mut command = net.command("h2", &["receive", "--json", "--from", "any", "--dir"]);
    command.arg(&inbox);
    let receiver = begin(command);
    let small = |host: &str| {
        let mut command = net.command(host, &["send", "--json"]);
        command.arg(source.join("small")).arg("h2");
        end_of(begin(command), "send")
    };
    // The offer is accepted, and its whole size is charged until the hash is known.
    let large = send(&net, &source.join("large"), &[]);
    net.until(|net| {
        net.ask("h2", &["status"]).is_some_and(|status| status["status"]["transfers"] == 1)
    });
    let refused = small("h1");
    assert_eq!(refused.status.code(), Some(5), "{:?}", text(&refused));
    let other = small("h3");
    assert!(other.status.success(), "{:?}", text(&other));
    // Interrupted at once: almost nothing was hashed, so the credit comes back.
    interrupt(large, "the large file");
    net.until(|net| {
        net.ask("h2", &["status"]).is_some_and(|status| status["status"]["transfers"] == 0)
    });
    let again = small("h1");
    assert!(again.status.success(), "{:?}", text(&again));
    let (out, err) = interrupt(receiver, "receive");
    assert!(
        err.contains("put off small from h1: too many comparisons for the sender failed"),
        "{err}"
    );
    // The error of the postponed file follows the summary.
    let summary = out.lines().rev().find(|line| line.contains("files_put_off")).unwrap();
    let received = &last(summary)["receive"];
    assert_eq!((&received["files_present"], &received["files_put_off"]), (&2.into(), &1.into()));
}

#[test]
fn an_interrupted_huge_file_keeps_little_disk_space() {
    let net = slow_network();
    let (source, inbox) = (net.folder("source"), net.folder("inbox"));
    let disk = nix::sys::statvfs::statvfs(&inbox).unwrap();
    let free = disk.blocks_available() * disk.fragment_size();
    let size = (40 << 30).min(free / 2);
    // The first bytes take room on the disk; zeroes would become holes.
    fs::write(source.join("huge"), vec![7; 60_000_000]).unwrap();
    fs::File::options().write(true).open(source.join("huge")).unwrap().set_len(size).unwrap();
    let receiver = receive(&net, &inbox, &["--max-size", "64G"]);
    let sender = send(&net, &source.join("huge"), &[]);
    let part = || unfinished(&inbox, "huge", "part");
    let held = || part().metadata().map_or(0, |meta| meta.blocks() * 512);
    net.until(|_| held() > 10_000_000);
    interrupt(sender, "send");
    interrupt(receiver, "receive");
    let (len, held) = (part().metadata().unwrap().len(), held());
    println!("{len} of {size} offered bytes are there, in {held} bytes on the disk");
    assert!(held < 40_000_000 && len <= held + 1_000_000, "{held} for {len} of {size}");
}

#[test]
fn a_full_disk_is_reported_and_does_no_harm() {
    if !namespaces() {
        return;
    }
    let mut net = LoopbackNet::new(&["r1", "h1", "h2"]);
    net.configure("h1", "[transfer]\nmax_rate_mbit = 8\n");
    net.start_all();
    let (source, inbox) = (net.folder("source"), net.folder("inbox"));
    fs::write(source.join("small"), bytes(1, 300_000)).unwrap();
    fs::write(source.join("large"), bytes(2, 3_000_000)).unwrap();
    let on_small_disk = |script: &str| {
        let mut command = Command::new("unshare");
        command.args(["-m", "sh", "-c", script, "sh"]).arg(&inbox).arg(shoal_e2e::program());
        command.arg(net.config("h2"));
        begin(command)
    };
    let mount = "mount -t tmpfs -o size=2m tmpfs \"$1\" || exit 9; ";
    // A file that never fits on the disk is refused. The other files arrive.
    let script = "\"$2\" -c \"$3\" receive --from h1 --dir \"$1\" --count 1; ls -A \"$1/source\"";
    let receiver = on_small_disk(&format!("{mount}{script}"));
    let ended = end_of(send(&net, &source, &[]), "send");
    assert_eq!(ended.status.code(), Some(5), "{:?}", text(&ended));
    assert!(text(&ended).1.contains("source/large: refused by h2"), "{:?}", text(&ended));
    let (out, err) = text(&end_of(receiver, "receive"));
    assert!(out.ends_with("\nsmall\n"), "{out} {err}");
    assert!(err.contains("refused source/large from h1: needs 3.0 MB"), "{err}");
    // A disk that fills up ends the transfer at both ends, and no file gets the final name.
    fs::write(source.join("middle"), bytes(3, 1_800_000)).unwrap();
    let fill = "(until [ -s \"$1\"/.middle-*.shoal-part ]; do sleep 0.05; done; \
                head -c 2000000 /dev/zero > \"$1/fill\") 2>/dev/null & ";
    let script = "\"$2\" -c \"$3\" receive --from h1 --dir \"$1\" --once; ls -A \"$1\"";
    let receiver = on_small_disk(&format!("{mount}{fill}{script}"));
    let ended = end_of(send(&net, &source.join("middle"), &[]), "send");
    assert_eq!(ended.status.code(), Some(1), "{:?}", text(&ended));
    assert!(text(&ended).1.contains("middle: the receiver could not write it"), "{ended:?}");
    let (out, err) = text(&end_of(receiver, "receive"));
    assert!(out.contains("fill\n") && !out.contains("\nmiddle\n"), "{out} {err}");
    assert!(err.contains("no space left on the device"), "{err}");
}
