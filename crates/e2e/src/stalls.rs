//! Repeats tests of times on machines that stall, such as virtual machines on a busy host.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

/// A pause longer than any that a node makes on an idle machine.
const STALL: Duration = Duration::from_millis(200);
/// Pause after each attempt of a check, in seconds.
const PAUSES: [u64; 3] = [5, 30, 0];

/// Runs a check of times. If it fails while the machine stalls, it is repeated after a pause. After
/// the last attempt it is given up with `SKIPPED` in the output.
///
/// # Panics
///
/// With the check's error, if the machine did not stall.
pub fn check(what: &str, check: impl Fn() -> Result<(), String>) {
    for pause in PAUSES.map(Duration::from_secs) {
        let stalls = StallWatch::watch();
        let Err(wrong) = check() else { return };
        let longest = stalls.end();
        assert!(longest > STALL, "{what}: {wrong}");
        println!("{what}: {wrong}; but the machine stalled for {longest:?}: the check is repeated");
        std::thread::sleep(pause);
    }
    println!("SKIPPED: {what}: the machine stalls, so times can't be checked");
}

/// Measures the longest time in which the machine runs nothing.
struct StallWatch(Arc<AtomicBool>, JoinHandle<Duration>);

impl StallWatch {
    fn watch() -> StallWatch {
        let over = Arc::new(AtomicBool::new(false));
        let ends = over.clone();
        let watch = move || {
            let mut longest = Duration::ZERO;
            while !ends.load(Ordering::Relaxed) {
                let began = Instant::now();
                std::thread::sleep(Duration::from_millis(10));
                longest = longest.max(began.elapsed());
            }
            longest
        };
        StallWatch(over, std::thread::spawn(watch))
    }

    fn end(self) -> Duration {
        self.0.store(true, Ordering::Relaxed);
        self.1.join().unwrap_or_default()
    }
}
