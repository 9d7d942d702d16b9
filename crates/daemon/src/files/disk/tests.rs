use std::io::Write;
use std::time::{Duration, Instant};

use super::*;
use crate::worker::wake::{Waker, WakingInbox, channel};

const CHUNK: usize = 1_000;

fn content(len: usize) -> Vec<u8> {
    (0..len).map(|i| (i * 7 + i / 251) as u8).collect()
}

fn file_of(bytes: &[u8]) -> File {
    let mut file = tempfile::tempfile().expect("a temporary file");
    file.write_all(bytes).expect("room for a small file");
    file
}

fn start(
    file: &File,
    size: usize,
    source: bool,
    have: Vec<(u32, u32)>,
) -> (DiskThread, WakingInbox<DiskReply>) {
    let waker = Waker::new().expect("an event descriptor");
    let (outlet, inbox) = channel(64, &waker);
    let file = file.try_clone().expect("a second descriptor");
    let job = DiskJob { file, size: size as u64, chunk: CHUNK, have, source };
    (DiskThread::start(job, outlet, |a| a).expect("a thread"), inbox)
}

fn next(inbox: &mut WakingInbox<DiskReply>) -> DiskReply {
    let end = Instant::now() + Duration::from_secs(5);
    while Instant::now() < end {
        if let Some(answer) = inbox.take() {
            return answer;
        }
        std::thread::sleep(Duration::from_micros(100));
    }
    panic!("no answer in time");
}

fn len_of(index: u32, size: usize) -> usize {
    (size - index as usize * CHUNK).min(CHUNK)
}

#[test]
fn a_source_reads_in_any_order_and_hashes_the_whole() {
    let bytes = content(4_321);
    for order in [vec![0, 1, 2, 3, 4], vec![4, 0, 1, 3, 2], vec![3], vec![]] {
        let file = file_of(&bytes);
        let (disk, mut inbox) = start(&file, bytes.len(), true, vec![]);
        for &index in &order {
            let buffer = vec![0; CHUNK].into_boxed_slice();
            let len = len_of(index, bytes.len());
            assert!(disk.ask(DiskRequest::Read { index, buffer, len }).is_ok());
            let DiskReply::Read { index: got, buffer } = next(&mut inbox) else {
                panic!("no chunk")
            };
            assert_eq!(got, index);
            let from = index as usize * CHUNK;
            assert_eq!(buffer[..len], bytes[from..from + len]);
        }
        assert!(disk.ask(DiskRequest::Hash).is_ok());
        let DiskReply::Hashed(hash) = next(&mut inbox) else { panic!("no hash") };
        assert_eq!(hash, shoal_crypto::hash(&bytes));
    }
}

#[test]
fn a_sink_hashes_what_came_out_of_order_and_what_was_there() {
    let bytes = content(5_500);
    for (have, order) in [
        (vec![], vec![0, 1, 2, 3, 4, 5]),
        (vec![], vec![5, 3, 4, 0, 2, 1]),
        (vec![(0, 2), (4, 5)], vec![5, 2, 3]),
        (vec![(0, 6)], vec![]),
        (vec![(0, 1_000_000), (7, 2)], vec![]),
    ] {
        let file = file_of(&vec![0; bytes.len()]);
        for &(from, to) in &have {
            let to = (to as usize * CHUNK).min(bytes.len());
            let from = (from as usize * CHUNK).min(to);
            file.write_all_at(&bytes[from..to], from as u64).expect("room");
        }
        let (disk, mut inbox) = start(&file, bytes.len(), false, have);
        for index in order {
            let len = len_of(index, bytes.len());
            let mut buffer = vec![0xAA; CHUNK].into_boxed_slice();
            let from = index as usize * CHUNK;
            buffer[..len].copy_from_slice(&bytes[from..from + len]);
            assert!(disk.ask(DiskRequest::Write { index, buffer, len }).is_ok());
            assert!(
                matches!(next(&mut inbox), DiskReply::Written { index: got, .. } if got == index)
            );
        }
        assert!(disk.ask(DiskRequest::Hash).is_ok());
        let DiskReply::Hashed(hash) = next(&mut inbox) else { panic!("no hash") };
        assert_eq!(hash, shoal_crypto::hash(&bytes));
    }
}

#[test]
fn an_empty_file_has_a_hash() {
    let (disk, mut inbox) = start(&file_of(&[]), 0, true, vec![]);
    assert!(disk.ask(DiskRequest::Hash).is_ok());
    let DiskReply::Hashed(hash) = next(&mut inbox) else { panic!("no hash") };
    assert_eq!(hash, shoal_crypto::hash(&[]));
}

#[test]
fn existing_chunks_are_hashed_when_asked_or_in_step_with_written_ones() {
    let bytes = content(100 * CHUNK);
    let work = |have| {
        let job = DiskJob {
            file: file_of(&bytes),
            size: bytes.len() as u64,
            chunk: CHUNK,
            have,
            source: false,
        };
        DiskWorker::new(job).unwrap_or_else(|_| panic!("a file of that size"))
    };
    let until_idle = |work: &mut DiskWorker| {
        while work.behind() {
            assert!(work.hash_next().is_ok());
        }
        work.hashed
    };
    let mut all = work(vec![(0, 100)]);
    assert_eq!(until_idle(&mut all), 0, "an offer alone");
    assert!(all.handle(DiskRequest::Hash, &|_| Ok(())).is_ok());
    assert_eq!(until_idle(&mut all), 100);
    let mut most = work(vec![(0, 98)]);
    for (index, hashed) in [(98, EARNED), (99, 2 * EARNED)] {
        let buffer = vec![0; CHUNK].into();
        assert!(most.handle(DiskRequest::Write { index, buffer, len: CHUNK }, &|_| Ok(())).is_ok());
        assert_eq!(until_idle(&mut most), hashed);
    }
    assert!(most.handle(DiskRequest::Hash, &|_| Ok(())).is_ok());
    assert_eq!(until_idle(&mut most), 100);
}

#[test]
fn a_source_that_changes_is_noticed() {
    let bytes = content(3_000);
    // Shrunk before, shrunk meanwhile, written to meanwhile.
    let file = file_of(&bytes);
    file.set_len(2_999).expect("a file can shrink");
    let (_disk, mut inbox) = start(&file, bytes.len(), true, vec![]);
    assert!(matches!(next(&mut inbox), DiskReply::Failed(FileFailure::Changed)));

    let file = file_of(&bytes);
    let (disk, mut inbox) = start(&file, bytes.len(), true, vec![]);
    let read = |index| DiskRequest::Read { index, buffer: vec![0; CHUNK].into(), len: CHUNK };
    assert!(disk.ask(read(0)).is_ok());
    assert!(matches!(next(&mut inbox), DiskReply::Read { .. }));
    file.set_len(1_500).expect("a file can shrink");
    assert!(disk.ask(read(1)).is_ok());
    assert!(matches!(next(&mut inbox), DiskReply::Failed(FileFailure::Changed)));

    let file = file_of(&bytes);
    let (disk, mut inbox) = start(&file, bytes.len(), true, vec![]);
    assert!(disk.ask(read(0)).is_ok());
    assert!(matches!(next(&mut inbox), DiskReply::Read { .. }));
    std::thread::sleep(Duration::from_millis(20));
    file.write_all_at(b"x", 2_500).expect("writable");
    assert!(disk.ask(DiskRequest::Hash).is_ok());
    assert!(matches!(next(&mut inbox), DiskReply::Failed(FileFailure::Changed)));
}

#[test]
fn a_full_disk_is_reported() {
    let Ok(full) = File::options().read(true).write(true).open("/dev/full") else { return };
    let (disk, mut inbox) = start(&full, CHUNK, false, vec![]);
    let request = DiskRequest::Write { index: 0, buffer: vec![1; CHUNK].into(), len: CHUNK };
    assert!(disk.ask(request).is_ok());
    let DiskReply::Failed(failure) = next(&mut inbox) else { panic!("no failure") };
    assert_eq!(failure.words(), "no space left on the device");
}
