//! A thread for work that may be asked for by strangers: bounded queue, bounded share of a core.
//!
//! Diffie-Hellman for handshakes runs here, so that a flood of them costs the data plane nothing
//! but the share it was given.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{Receiver, SyncSender, TrySendError, sync_channel};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use crate::worker::clock::thread_cpu;
use crate::worker::wake::{Outlet, Waker};

/// How much may run at once after a pause. Long enough for the handshakes of a hundred neighbours
/// after a restart, short enough to be no stall.
const BURST: Duration = Duration::from_millis(50);

/// The sending end of the queue.
pub struct Budgeted<J> {
    jobs: Option<SyncSender<J>>,
    thread: Option<JoinHandle<()>>,
    ended: Arc<AtomicBool>,
}

/// Says that the thread ended, whatever ended it, and wakes the worker.
struct Ending {
    ended: Arc<AtomicBool>,
    waker: Arc<Waker>,
}

impl Drop for Ending {
    fn drop(&mut self) {
        self.ended.store(true, Ordering::Release);
        self.waker.wake();
    }
}

impl<J: Send + 'static> Budgeted<J> {
    /// Starts the thread. `run` turns a job into what `done` carries back to the worker; at most
    /// `queue` jobs wait, and the thread uses at most `percent` of one core.
    pub fn start<D: Send + 'static>(
        name: &str,
        queue: usize,
        percent: u32,
        mut run: impl FnMut(J) -> D + Send + 'static,
        done: Outlet<D>,
    ) -> std::io::Result<Budgeted<J>> {
        let (jobs, incoming) = sync_channel(queue);
        let ended = Arc::new(AtomicBool::new(false));
        let ending = Ending { ended: Arc::clone(&ended), waker: Arc::clone(done.waker()) };
        let thread = std::thread::Builder::new().name(name.to_string()).spawn(move || {
            let _ending = ending;
            serve(&incoming, percent, |job| done.send(run(job)).is_ok());
        })?;
        Ok(Budgeted { jobs: Some(jobs), thread: Some(thread), ended })
    }

    /// Whether the thread is gone: a job panicked, and none is done any more.
    pub fn is_broken(&self) -> bool {
        self.ended.load(Ordering::Acquire)
    }

    /// Queues a job; gives it back when the queue is full.
    pub fn submit(&self, job: J) -> Result<(), J> {
        match &self.jobs {
            None => Err(job),
            Some(jobs) => jobs.try_send(job).map_err(|e| match e {
                TrySendError::Full(job) | TrySendError::Disconnected(job) => job,
            }),
        }
    }
}

impl<J> Drop for Budgeted<J> {
    fn drop(&mut self) {
        self.jobs = None;
        if let Some(thread) = self.thread.take() {
            // A panic there was reported by its own thread.
            let _ended = thread.join();
        }
    }
}

fn serve<J>(jobs: &Receiver<J>, percent: u32, mut run: impl FnMut(J) -> bool) {
    let share = f64::from(percent.clamp(1, 100)) / 100.0;
    let burst = BURST.as_secs_f64();
    let mut credit = burst;
    let mut last = Instant::now();
    while let Ok(job) = jobs.recv() {
        let used = thread_cpu();
        if !run(job) {
            return;
        }
        let used = thread_cpu().saturating_sub(used).as_secs_f64();
        let passed = last.elapsed().as_secs_f64();
        last = Instant::now();
        credit = (credit + passed * share).min(burst) - used;
        if credit < 0.0 && share < 1.0 {
            std::thread::sleep(Duration::from_secs_f64(-credit / share));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::worker::wake::channel;

    fn burn(length: Duration) {
        let start = thread_cpu();
        while thread_cpu().saturating_sub(start) < length {}
    }

    #[test]
    fn a_flood_gets_its_share_and_no_more() {
        let waker = Waker::new().expect("an event descriptor");
        let (done, mut results) = channel(10_000, &waker);
        let run = |()| burn(Duration::from_micros(500));
        let pool = Budgeted::start("test", 64, 20, run, done).expect("a thread");
        let start = Instant::now();
        let mut refused = 0u32;
        while start.elapsed() < Duration::from_millis(500) {
            refused += u32::from(pool.submit(()).is_err());
            std::thread::sleep(Duration::from_micros(100));
        }
        let mut ran = 0;
        while results.take().is_some() {
            ran += 1;
        }
        // 50 ms of burst and 20% of 500 ms at 0.5 ms each is 300; all of them would be 1,000.
        assert!(ran < 450, "{ran} ran");
        assert!(refused > 0);
    }

    #[test]
    fn a_job_that_panics_is_noticed_at_once() {
        let waker = Waker::new().expect("an event descriptor");
        let (done, _results) = channel::<u32>(16, &waker);
        let run = |n: u32| if n == 2 { panic!("a job that panics, for the test") } else { n };
        let pool = Budgeted::start("test", 16, 50, run, done).expect("a thread");
        assert!(pool.submit(1).is_ok() && !pool.is_broken());
        assert!(pool.submit(2).is_ok());
        let start = Instant::now();
        while !pool.is_broken() && start.elapsed() < Duration::from_secs(10) {
            std::thread::sleep(Duration::from_millis(1));
        }
        assert!(pool.is_broken() && waker.answer(false), "the worker is woken and sees it");
    }

    #[test]
    fn jobs_come_back_done() {
        let waker = Waker::new().expect("an event descriptor");
        let (done, mut results) = channel(16, &waker);
        let pool = Budgeted::start("test", 16, 50, |n: u32| n + 1, done).expect("a thread");
        assert_eq!(
            (0..10).map(|n| pool.submit(n)).collect::<Result<Vec<_>, _>>().map(|_| ()),
            Ok(())
        );
        drop(pool);
        let got: Vec<u32> = std::iter::from_fn(|| results.take()).collect();
        assert_eq!(got, (1..=10).collect::<Vec<_>>());
    }
}
