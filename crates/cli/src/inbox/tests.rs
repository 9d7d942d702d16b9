//! No file is written outside the folder, none is overwritten, none incomplete has its final name.

use std::fs;
use std::os::unix::fs::{FileExt, MetadataExt};

use super::*;
use shoal_daemon::control::api::CHUNK_LEN;

fn offer(name: &str, size: u64) -> SendFile {
    SendFile {
        name: name.into(),
        size,
        modified_ns: 0,
        file_id: "ab".repeat(16),
        executable: false,
    }
}

/// The temporary name of a file from a host.
fn part(name: &str, from: &str) -> String {
    names::beside(name, from, PART)
}

/// Prepares a new file for an offer; panics if a file of that name exists.
fn take(
    inbox: &ReceiveFolder,
    from: &str,
    file: &SendFile,
) -> Result<(IncomingFile, Chunks), OfferRefusal> {
    match inbox.prepare(from, file, CHUNK_LEN, 0)? {
        OfferPlan::New(incoming, chunks) => Ok((incoming, chunks)),
        OfferPlan::There(_) => panic!("{} is there", file.name),
    }
}

fn names(dir: &Path) -> Vec<String> {
    let mut names: Vec<String> =
        fs::read_dir(dir).unwrap().map(|e| e.unwrap().file_name().into_string().unwrap()).collect();
    names.sort();
    names
}

#[test]
fn a_file_gets_its_name_when_it_is_whole() {
    let dir = tempfile::tempdir().unwrap();
    let inbox = ReceiveFolder::open(dir.path(), NameConflict::Refuse).unwrap();
    let (incoming, have) = take(&inbox, "alice", &offer("sub/deep/a.txt", 5)).unwrap();
    assert_eq!(have, Chunks::default());
    assert_eq!(names(&dir.path().join("sub/deep")), [part("a.txt", "alice")]);
    incoming.file().write_all_at(b"hello", 0).unwrap();
    assert_eq!(incoming.finish(true, 0).unwrap(), "sub/deep/a.txt");
    assert_eq!(names(&dir.path().join("sub/deep")), ["a.txt"]);
    let file = dir.path().join("sub/deep/a.txt");
    assert_eq!(fs::read(&file).unwrap(), b"hello");
    assert_eq!(file.metadata().unwrap().mode() & 0o100, 0o100);
}

#[test]
fn an_interrupted_transfer_resumes_only_as_the_same_file() {
    let dir = tempfile::tempdir().unwrap();
    let size = 3 * CHUNK_LEN + 7;
    let inbox = ReceiveFolder::open(dir.path(), NameConflict::Refuse).unwrap();
    let done = Chunks::from_ranges(&[(0, 2), (3, 4)], 4, CHUNK_LEN);
    let begin = || {
        let (incoming, _) = take(&inbox, "alice", &offer("a", size)).unwrap();
        incoming.file().set_len(size).unwrap();
        incoming.record(&done).unwrap();
    };
    begin();
    let (again, have) = take(&inbox, "alice", &offer("a", size)).unwrap();
    assert_eq!(have, done);
    drop(again);
    let other_id = SendFile { file_id: "cd".repeat(16), ..offer("a", size) };
    for file in [other_id, offer("a", size - 1)] {
        assert_eq!(take(&inbox, "alice", &file).unwrap().1, Chunks::default());
        begin();
    }
    // Chunks of another length, as over a circuit.
    let Ok(OfferPlan::New(incoming, have)) = inbox.prepare("alice", &offer("a", size), 9_000, 0)
    else {
        panic!("no new file")
    };
    assert_eq!(have, Chunks::of_len(9_000));
    drop(incoming);
    begin();
    fs::write(dir.path().join(names::beside("a", "alice", STATE)), "{nonsense").unwrap();
    assert_eq!(take(&inbox, "alice", &offer("a", size)).unwrap().1, Chunks::default());
}

#[test]
fn an_offer_of_the_same_name_by_another_sender_leaves_a_resume_alone() {
    for taken in [NameConflict::Refuse, NameConflict::Overwrite, NameConflict::Number] {
        let dir = tempfile::tempdir().unwrap();
        let inbox = ReceiveFolder::open(dir.path(), taken).unwrap();
        let size = 2 * CHUNK_LEN;
        let chunk = vec![7; CHUNK_LEN as usize];
        let half = Chunks::from_ranges(&[(0, 1)], 2, CHUNK_LEN);
        let (incoming, _) = take(&inbox, "alice", &offer("x", size)).unwrap();
        incoming.file().write_all_at(&chunk, 0).unwrap();
        incoming.record(&half).unwrap();
        // Bob's file of the same name is independent.
        let (bobs, have) = take(&inbox, "bob", &offer("x", size)).unwrap();
        assert_eq!(have, Chunks::default());
        bobs.file().write_all_at(b"bob", 0).unwrap();
        bobs.record(&half).unwrap();
        drop((incoming, bobs));
        take(&inbox, "bob", &offer("x", 5)).unwrap().0.discard();
        let (incoming, have) = take(&inbox, "alice", &offer("x", size)).unwrap();
        assert_eq!(have, half);
        incoming.file().write_all_at(&chunk, CHUNK_LEN).unwrap();
        assert_eq!(incoming.finish(false, 0).unwrap(), "x");
        assert_eq!(names(dir.path()), ["x"]);
        assert!(fs::read(dir.path().join("x")).unwrap().iter().all(|byte| *byte == 7));
    }
}

#[test]
fn existing_files_stay_unless_the_user_says_otherwise() {
    let dir = tempfile::tempdir().unwrap();
    fs::write(dir.path().join("a.txt"), "old").unwrap();
    let receive = |taken, name: &str| {
        let inbox = ReceiveFolder::open(dir.path(), taken).unwrap();
        let (incoming, _) = take(&inbox, "alice", &offer(name, 3)).map_err(|r| r.reason)?;
        incoming.file().write_all_at(b"new", 0).unwrap();
        Ok::<_, RefuseReason>(incoming.finish(false, 0))
    };
    // A file of the same length may be the same file: the hashes decide.
    let inbox = ReceiveFolder::open(dir.path(), NameConflict::Refuse).unwrap();
    let refused = inbox.prepare("alice", &offer("a.txt", 4), CHUNK_LEN, 0).err().unwrap();
    assert_eq!(refused.reason, RefuseReason::Exists);
    let Ok(OfferPlan::There(there)) = inbox.prepare("alice", &offer("a.txt", 3), CHUNK_LEN, 0)
    else {
        panic!("not looked at");
    };
    assert!((&there.file).write_all(b"new").is_err(), "open for reading alone");
    assert_eq!(names(dir.path()), ["a.txt"]);
    // A folder of that name is never the offered file.
    fs::create_dir(dir.path().join("folder")).unwrap();
    let pipe = dir.path().join("pipe");
    nix::unistd::mkfifo(&pipe, Mode::from_bits_truncate(0o600)).unwrap();
    for name in ["folder", "pipe"] {
        let refused = inbox.prepare("alice", &offer(name, 0), CHUNK_LEN, 0).err().unwrap();
        assert_eq!(refused.reason, RefuseReason::Exists);
    }
    fs::remove_dir(dir.path().join("folder")).unwrap();
    fs::remove_file(pipe).unwrap();
    assert_eq!(receive(NameConflict::Number, "a.txt").unwrap().unwrap(), "a.1.txt");
    assert_eq!(receive(NameConflict::Number, "a.txt").unwrap().unwrap(), "a.2.txt");
    assert_eq!(fs::read(dir.path().join("a.txt")).unwrap(), b"old");
    assert_eq!(receive(NameConflict::Overwrite, "a.txt").unwrap().unwrap(), "a.txt");
    assert_eq!(fs::read(dir.path().join("a.txt")).unwrap(), b"new");
    // A file that appears while the transfer goes on is not overwritten either.
    let inbox = ReceiveFolder::open(dir.path(), NameConflict::Refuse).unwrap();
    let (incoming, _) = take(&inbox, "alice", &offer("late", 3)).unwrap();
    fs::write(dir.path().join("late"), "other").unwrap();
    assert!(incoming.finish(false, 0).unwrap_err().contains("exists already"));
    assert_eq!(fs::read(dir.path().join("late")).unwrap(), b"other");
}

#[test]
fn links_and_evil_names_lead_nowhere() {
    let dir = tempfile::tempdir().unwrap();
    let outside = tempfile::tempdir().unwrap();
    std::os::unix::fs::symlink(outside.path(), dir.path().join("door")).unwrap();
    fs::write(outside.path().join("precious"), "old").unwrap();
    let door = dir.path().join(part("x", "alice"));
    std::os::unix::fs::symlink(outside.path().join("precious"), door).unwrap();
    let inbox = ReceiveFolder::open(dir.path(), NameConflict::Overwrite).unwrap();
    for (name, reason) in [
        ("door/a", RefuseReason::Denied),
        ("x", RefuseReason::Denied),
        ("../a", RefuseReason::BadName),
        ("/a", RefuseReason::BadName),
    ] {
        assert_eq!(take(&inbox, "alice", &offer(name, 1)).err().unwrap().reason, reason, "{name}");
    }
    assert_eq!(names(outside.path()), ["precious"]);
    assert_eq!(fs::read(outside.path().join("precious")).unwrap(), b"old");
}

#[test]
fn no_room_is_said_before_a_byte_is_written() {
    let dir = tempfile::tempdir().unwrap();
    let inbox = ReceiveFolder::open(dir.path(), NameConflict::Refuse).unwrap();
    let refused = take(&inbox, "alice", &offer("a", 1 << 60)).err().unwrap();
    assert_eq!(refused.reason, RefuseReason::NoSpace, "{}", refused.detail);
    let refused = take(&inbox, "alice", &offer("a", u64::MAX)).err().unwrap();
    assert_eq!(refused.reason, RefuseReason::NoSpace);
    assert_eq!(names(dir.path()), Vec::<String>::new());
}

#[test]
fn two_transfers_of_one_name_do_not_mix() {
    let dir = tempfile::tempdir().unwrap();
    let inbox = ReceiveFolder::open(dir.path(), NameConflict::Refuse).unwrap();
    let first = take(&inbox, "alice", &offer("a", 3)).unwrap();
    let second = take(&inbox, "alice", &offer("a", 4)).err().unwrap();
    assert_eq!(second.reason, RefuseReason::Busy);
    drop(first);
    take(&inbox, "alice", &offer("a", 4)).unwrap().0.discard();
    assert_eq!(names(dir.path()), Vec::<String>::new());
    assert!(
        ReceiveFolder::open(&dir.path().join("no"), NameConflict::Refuse)
            .err()
            .unwrap()
            .contains("mkdir -p")
    );
}

#[test]
fn nothing_is_recorded_or_removed_of_a_file_that_has_its_name() {
    let dir = tempfile::tempdir().unwrap();
    let inbox = ReceiveFolder::open(dir.path(), NameConflict::Refuse).unwrap();
    let (incoming, _) = take(&inbox, "alice", &offer("a", 3)).unwrap();
    assert!(incoming.waits());
    incoming.record(&Chunks::default()).unwrap();
    incoming.finish(false, 0).unwrap();
    assert!(!incoming.waits());
    // A late record is not written, even if another file has the temporary name now.
    incoming.record(&Chunks::default()).unwrap();
    let other = part("a", "alice");
    fs::write(dir.path().join(&other), "b").unwrap();
    incoming.discard();
    assert_eq!(names(dir.path()), [other.as_str(), "a"]);
}

#[test]
fn a_folder_that_cant_be_written_to_is_refused_at_once() {
    let dir = tempfile::tempdir().unwrap();
    fs::set_permissions(dir.path(), fs::Permissions::from_mode(0o555)).unwrap();
    if fs::write(dir.path().join("x"), "").is_ok() {
        eprintln!("skipped: this user may write anywhere");
        return;
    }
    let error = ReceiveFolder::open(dir.path(), NameConflict::Refuse).err().unwrap();
    assert!(error.contains("can't be written to: Permission denied"), "{error}");
}

#[test]
fn a_record_that_is_being_written_does_not_outlive_the_file() {
    let dir = tempfile::tempdir().unwrap();
    let inbox = ReceiveFolder::open(dir.path(), NameConflict::Refuse).unwrap();
    for round in 0..50 {
        let name = format!("f{round}");
        let (incoming, _) = take(&inbox, "alice", &offer(&name, 3)).unwrap();
        incoming.record(&Chunks::default()).unwrap();
        let late = incoming.clone();
        let writer = std::thread::spawn(move || {
            for _ in 0..5 {
                // The record fails if the file has its name already, which is fine.
                let _ = late.record(&Chunks::default());
            }
        });
        match round % 2 {
            0 => drop(incoming.finish(false, 0).unwrap()),
            _ => incoming.discard(),
        }
        writer.join().unwrap();
    }
    let left: Vec<String> = names(dir.path()).into_iter().filter(|n| n.starts_with('.')).collect();
    assert!(left.is_empty(), "{left:?}");
}

#[test]
fn what_is_not_whole_keeps_the_room_of_what_came_and_resumes() {
    let dir = tempfile::tempdir().unwrap();
    let inbox = ReceiveFolder::open(dir.path(), NameConflict::Refuse).unwrap();
    let size = 1_000 * CHUNK_LEN;
    let part = dir.path().join(part("a", "alice"));
    let room = || part.metadata().unwrap().blocks() * 512;
    let (incoming, _) = take(&inbox, "alice", &offer("a", size)).unwrap();
    assert_eq!(room(), 0, "nothing is reserved");
    let chunk = vec![7; CHUNK_LEN as usize];
    for index in [0, 1, 5, 9] {
        incoming.file().write_all_at(&chunk, index * CHUNK_LEN).unwrap();
    }
    // The last chunk and one in between were not recorded: they may not have been synced.
    let done = Chunks::from_ranges(&[(0, 2), (5, 6)], 1_000, CHUNK_LEN);
    incoming.record(&done).unwrap();
    incoming.trim(&done).unwrap();
    drop(incoming);
    assert_eq!(part.metadata().unwrap().len(), 6 * CHUNK_LEN);
    assert!(room() <= 4 * CHUNK_LEN, "{}", room());
    let (incoming, have) = take(&inbox, "alice", &offer("a", size)).unwrap();
    assert_eq!(have, done);
    let mut found = vec![0; CHUNK_LEN as usize];
    incoming.file().read_exact_at(&mut found, 5 * CHUNK_LEN).unwrap();
    assert_eq!(found, chunk);
    // Room for the sender's other files is not promised twice.
    drop(incoming);
    // Other programs free and fill the disk meanwhile, so the promise is far larger than the disk.
    let promised = 2 * free_bytes(&inbox.dir).unwrap();
    let refused = inbox.prepare("alice", &offer("b", 1), CHUNK_LEN, promised).err().unwrap();
    assert_eq!(refused.reason, RefuseReason::NoSpace, "{}", refused.detail);
}

#[test]
fn modification_times_are_kept_unless_they_are_nonsense() {
    let dir = tempfile::tempdir().unwrap();
    let inbox = ReceiveFolder::open(dir.path(), NameConflict::Refuse).unwrap();
    let now = SystemTime::now();
    let since = now.duration_since(SystemTime::UNIX_EPOCH).unwrap();
    let ns = |time: Duration| time.as_nanos() as i64;
    let day = Duration::from_secs(24 * 3_600);
    for (name, sent, kept) in [
        ("old", 1_000_000_007, true),
        ("ahead", ns(since + day / 2), true),
        ("before", -5, false),
        ("future", ns(since + 3 * day), false),
        ("never", i64::MAX, false),
    ] {
        let (incoming, _) = take(&inbox, "alice", &offer(name, 0)).unwrap();
        incoming.finish(false, sent).unwrap();
        let found = dir.path().join(name).metadata().unwrap().modified().unwrap();
        let found = ns(found.duration_since(SystemTime::UNIX_EPOCH).unwrap());
        assert_eq!(found == sent, kept, "{name}");
        assert!(kept || found >= ns(since) - 1_000_000_000, "{name}");
    }
}

#[test]
fn a_pipe_in_the_place_of_a_record_is_not_waited_for() {
    let dir = tempfile::tempdir().unwrap();
    let inbox = ReceiveFolder::open(dir.path(), NameConflict::Refuse).unwrap();
    let state = |name| names::beside(name, "alice", STATE);
    for name in [state("a"), state("b") + "~"] {
        nix::unistd::mkfifo(&dir.path().join(name), Mode::from_bits_truncate(0o600)).unwrap();
    }
    let (incoming, have) = take(&inbox, "alice", &offer("a", 3)).unwrap();
    assert_eq!(have, Chunks::default());
    incoming.record(&have).unwrap();
    let (incoming, have) = take(&inbox, "alice", &offer("b", 3)).unwrap();
    incoming.record(&have).unwrap();
}

#[test]
fn an_offer_that_comes_to_nothing_leaves_no_folder() {
    let dir = tempfile::tempdir().unwrap();
    fs::create_dir(dir.path().join("mine")).unwrap();
    let inbox = ReceiveFolder::open(dir.path(), NameConflict::Refuse).unwrap();
    let (first, _) = take(&inbox, "alice", &offer("mine/x/y/a", 3)).unwrap();
    let (second, _) = take(&inbox, "alice", &offer("mine/x/b", 3)).unwrap();
    first.discard();
    assert_eq!(names(&dir.path().join("mine/x")), [part("b", "alice")]);
    second.discard();
    assert_eq!(names(&dir.path().join("mine")), Vec::<String>::new());
    assert_eq!(names(dir.path()), ["mine"], "the user's folder stays");
    // A refusal for want of room leaves no folder either, and a link in place of a folder is not
    // followed.
    assert!(inbox.prepare("alice", &offer("p/q/a", 1 << 60), CHUNK_LEN, 0).is_err());
    assert_eq!(names(dir.path()), ["mine"]);
    let outside = tempfile::tempdir().unwrap();
    let (third, _) = take(&inbox, "alice", &offer("out/in/a", 3)).unwrap();
    fs::rename(dir.path().join("out"), outside.path().join("out")).unwrap();
    std::os::unix::fs::symlink(outside.path().join("out"), dir.path().join("out")).unwrap();
    third.discard();
    assert_eq!(names(&outside.path().join("out")), ["in"]);
}
