//! Nothing leaves the folder, nothing is overwritten, nothing half-written has a final name.

use std::fs;
use std::os::unix::fs::{FileExt, MetadataExt};

use super::*;
use shoal_node::api::CHUNK_LEN;

fn offer(name: &str, size: u64) -> SendFile {
    SendFile {
        name: name.into(),
        size,
        modified_ns: 0,
        file_id: "ab".repeat(16),
        executable: false,
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
    let inbox = Inbox::open(dir.path(), Taken::Refuse).unwrap();
    let (incoming, have) = inbox.prepare("alice", &offer("sub/deep/a.txt", 5)).unwrap();
    assert_eq!(have, Chunks::default());
    assert_eq!(names(&dir.path().join("sub/deep")), [".a.txt.shoal-part"]);
    incoming.file().write_all_at(b"hello", 0).unwrap();
    assert_eq!(incoming.finish(true).unwrap(), "sub/deep/a.txt");
    assert_eq!(names(&dir.path().join("sub/deep")), ["a.txt"]);
    let file = dir.path().join("sub/deep/a.txt");
    assert_eq!(fs::read(&file).unwrap(), b"hello");
    assert_eq!(file.metadata().unwrap().mode() & 0o100, 0o100);
}

#[test]
fn an_interrupted_transfer_resumes_only_as_the_same_file() {
    let dir = tempfile::tempdir().unwrap();
    let size = 3 * CHUNK_LEN + 7;
    let inbox = Inbox::open(dir.path(), Taken::Refuse).unwrap();
    let done = Chunks::from_ranges(&[(0, 2), (3, 4)], 4);
    let begin = || {
        let (incoming, _) = inbox.prepare("alice", &offer("a", size)).unwrap();
        incoming.record(&done).unwrap();
    };
    begin();
    let (again, have) = inbox.prepare("alice", &offer("a", size)).unwrap();
    assert_eq!(have, done);
    drop(again);
    let other_id = SendFile { file_id: "cd".repeat(16), ..offer("a", size) };
    for (from, file) in
        [("bob", offer("a", size)), ("alice", other_id), ("alice", offer("a", size - 1))]
    {
        assert_eq!(inbox.prepare(from, &file).unwrap().1, Chunks::default());
        begin();
    }
    fs::write(dir.path().join(".a.shoal-state"), "{nonsense").unwrap();
    assert_eq!(inbox.prepare("alice", &offer("a", size)).unwrap().1, Chunks::default());
}

#[test]
fn existing_files_stay_unless_the_user_says_otherwise() {
    let dir = tempfile::tempdir().unwrap();
    fs::write(dir.path().join("a.txt"), "old").unwrap();
    let receive = |taken, name: &str| {
        let inbox = Inbox::open(dir.path(), taken).unwrap();
        let (incoming, _) = inbox.prepare("alice", &offer(name, 3)).map_err(|r| r.reason)?;
        incoming.file().write_all_at(b"new", 0).unwrap();
        Ok::<_, RefuseReason>(incoming.finish(false))
    };
    assert_eq!(receive(Taken::Refuse, "a.txt"), Err(RefuseReason::Exists));
    assert_eq!(receive(Taken::Number, "a.txt").unwrap().unwrap(), "a.1.txt");
    assert_eq!(receive(Taken::Number, "a.txt").unwrap().unwrap(), "a.2.txt");
    assert_eq!(fs::read(dir.path().join("a.txt")).unwrap(), b"old");
    assert_eq!(receive(Taken::Overwrite, "a.txt").unwrap().unwrap(), "a.txt");
    assert_eq!(fs::read(dir.path().join("a.txt")).unwrap(), b"new");
    // A file that comes up while the transfer goes on is not overwritten either.
    let inbox = Inbox::open(dir.path(), Taken::Refuse).unwrap();
    let (incoming, _) = inbox.prepare("alice", &offer("late", 3)).unwrap();
    fs::write(dir.path().join("late"), "other").unwrap();
    assert!(incoming.finish(false).unwrap_err().contains("exists already"));
    assert_eq!(fs::read(dir.path().join("late")).unwrap(), b"other");
}

#[test]
fn links_and_evil_names_lead_nowhere() {
    let dir = tempfile::tempdir().unwrap();
    let outside = tempfile::tempdir().unwrap();
    std::os::unix::fs::symlink(outside.path(), dir.path().join("door")).unwrap();
    fs::write(outside.path().join("precious"), "old").unwrap();
    let part = dir.path().join(".x.shoal-part");
    std::os::unix::fs::symlink(outside.path().join("precious"), part).unwrap();
    let inbox = Inbox::open(dir.path(), Taken::Overwrite).unwrap();
    for (name, reason) in [
        ("door/a", RefuseReason::Denied),
        ("x", RefuseReason::Denied),
        ("../a", RefuseReason::BadName),
        ("/a", RefuseReason::BadName),
    ] {
        assert_eq!(inbox.prepare("alice", &offer(name, 1)).err().unwrap().reason, reason, "{name}");
    }
    assert_eq!(names(outside.path()), ["precious"]);
    assert_eq!(fs::read(outside.path().join("precious")).unwrap(), b"old");
}

#[test]
fn no_room_is_said_before_a_byte_is_written() {
    let dir = tempfile::tempdir().unwrap();
    let inbox = Inbox::open(dir.path(), Taken::Refuse).unwrap();
    let refused = inbox.prepare("alice", &offer("a", 1 << 60)).err().unwrap();
    assert_eq!(refused.reason, RefuseReason::NoSpace, "{}", refused.detail);
    let refused = inbox.prepare("alice", &offer("a", u64::MAX)).err().unwrap();
    assert_eq!(refused.reason, RefuseReason::NoSpace);
    assert_eq!(names(dir.path()), Vec::<String>::new());
}

#[test]
fn two_transfers_of_one_name_do_not_mix() {
    let dir = tempfile::tempdir().unwrap();
    let inbox = Inbox::open(dir.path(), Taken::Refuse).unwrap();
    let first = inbox.prepare("alice", &offer("a", 3)).unwrap();
    let second = inbox.prepare("bob", &offer("a", 4)).err().unwrap();
    assert_eq!(second.reason, RefuseReason::Busy);
    drop(first);
    inbox.prepare("bob", &offer("a", 4)).unwrap().0.discard();
    assert_eq!(names(dir.path()), Vec::<String>::new());
    assert!(Inbox::open(&dir.path().join("no"), Taken::Refuse).err().unwrap().contains("mkdir -p"));
}

#[test]
fn nothing_is_recorded_or_removed_of_a_file_that_has_its_name() {
    let dir = tempfile::tempdir().unwrap();
    let inbox = Inbox::open(dir.path(), Taken::Refuse).unwrap();
    let (incoming, _) = inbox.prepare("alice", &offer("a", 3)).unwrap();
    assert!(incoming.waits());
    incoming.record(&Chunks::default()).unwrap();
    incoming.finish(false).unwrap();
    assert!(!incoming.waits());
    // A record that came too late, and another file under the temporary name.
    incoming.record(&Chunks::default()).unwrap();
    fs::write(dir.path().join(".a.shoal-part"), "b").unwrap();
    incoming.discard();
    assert_eq!(names(dir.path()), [".a.shoal-part", "a"]);
}

#[test]
fn a_folder_that_cant_be_written_to_is_refused_at_once() {
    let dir = tempfile::tempdir().unwrap();
    fs::set_permissions(dir.path(), fs::Permissions::from_mode(0o555)).unwrap();
    if fs::write(dir.path().join("x"), "").is_ok() {
        eprintln!("skipped: this user may write anywhere");
        return;
    }
    let error = Inbox::open(dir.path(), Taken::Refuse).err().unwrap();
    assert!(error.contains("can't be written to: Permission denied"), "{error}");
}
