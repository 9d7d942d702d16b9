//! Tests of times on machines that stand still now and then, as virtual ones do whose host is busy.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

/// A pause that no node of a machine with time for all would make.
const STALL: Duration = Duration::from_millis(200);
/// What is waited for after each try of a check, in seconds.
const PAUSES: [u64; 3] = [5, 30, 0];

/// Does a check of times. One that fails while the machine stands still for a while is done again,
/// and in the end given up with `SKIPPED` in the output.
///
/// # Panics
///
/// With the check's error, if the machine ran all the time.
pub fn check(what: &str, check: impl Fn() -> Result<(), String>) {
    for pause in PAUSES.map(Duration::from_secs) {
        let stalls = Stalls::watch();
        let Err(wrong) = check() else { return };
        let longest = stalls.end();
        assert!(longest > STALL, "{what}: {wrong}");
        println!("{what}: {wrong}; but the machine stood still for {longest:?}: again");
        std::thread::sleep(pause);
    }
    println!("SKIPPED: {what}: a machine that stands still in between shows no times");
}

/// Watches for how long the machine runs nothing at all.
struct Stalls(Arc<AtomicBool>, JoinHandle<Duration>);

impl Stalls {
    fn watch() -> Stalls {
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
        Stalls(over, std::thread::spawn(watch))
    }

    /// The longest pause.
    fn end(self) -> Duration {
        self.0.store(true, Ordering::Relaxed);
        self.1.join().unwrap_or_default()
    }
}
