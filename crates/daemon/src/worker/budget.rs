//! A thread for work that strangers may cause, with a bounded queue and a bounded share of a core.
//!
//! Diffie-Hellman for handshakes runs here, so a flood of them costs the data plane only that
//! share.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{Receiver, SyncSender, TrySendError, sync_channel};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use crate::worker::clock::thread_cpu;
use crate::worker::wake::{Waker, WakingOutlet};

/// CPU time that may be used at once after a pause. It is enough for the handshakes of a hundred
/// neighbours after a restart, and short enough not to stall traffic.
const BURST: Duration = Duration::from_millis(50);

/// The sending end of the queue.
pub struct BudgetedThread<J> {
    jobs: Option<SyncSender<J>>,
    thread: Option<JoinHandle<()>>,
    ended: Arc<AtomicBool>,
}

/// Reports the end of the thread, for any reason, and wakes the worker.
struct ThreadEndSignal {
    ended: Arc<AtomicBool>,
    waker: Arc<Waker>,
}

impl Drop for ThreadEndSignal {
    fn drop(&mut self) {
        self.ended.store(true, Ordering::Release);
        self.waker.wake();
    }
}

impl<J: Send + 'static> BudgetedThread<J> {
    /// Starts the thread. `run` turns each job into a result, which `done` carries to the worker.
    /// At most `queue` jobs wait, and the thread uses at most `percent` of one core.
    pub fn start<D: Send + 'static>(
        name: &str,
        queue: usize,
        percent: u32,
        mut run: impl FnMut(J) -> D + Send + 'static,
        done: WakingOutlet<D>,
    ) -> std::io::Result<BudgetedThread<J>> {
        let (jobs, incoming) = sync_channel(queue);
        let ended = Arc::new(AtomicBool::new(false));
        let ending = ThreadEndSignal { ended: Arc::clone(&ended), waker: Arc::clone(done.waker()) };
        let thread = std::thread::Builder::new().name(name.to_string()).spawn(move || {
            let _ending = ending;
            serve(&incoming, percent, |job| done.send(run(job)).is_ok());
        })?;
        Ok(BudgetedThread { jobs: Some(jobs), thread: Some(thread), ended })
    }

    /// True if the thread is gone: a job panicked, and no further job runs.
    pub fn is_broken(&self) -> bool {
        self.ended.load(Ordering::Acquire)
    }

    /// Queues a job. Returns the job if the queue is full.
    pub fn submit(&self, job: J) -> Result<(), J> {
        match &self.jobs {
            None => Err(job),
            Some(jobs) => jobs.try_send(job).map_err(|e| match e {
                TrySendError::Full(job) | TrySendError::Disconnected(job) => job,
            }),
        }
    }
}

impl<J> Drop for BudgetedThread<J> {
    fn drop(&mut self) {
        self.jobs = None;
        if let Some(thread) = self.thread.take() {
            // The panicking thread has already reported its panic.
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
        let pool = BudgetedThread::start("test", 64, 20, run, done).expect("a thread");
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
        // 50 ms of burst and 20% of 500 ms, at 0.5 ms each, make 300 jobs of 1,000.
        assert!(ran < 450, "{ran} ran");
        assert!(refused > 0);
    }

    #[test]
    fn a_job_that_panics_is_noticed_at_once() {
        let waker = Waker::new().expect("an event descriptor");
        let (done, _results) = channel::<u32>(16, &waker);
        let run = |n: u32| if n == 2 { panic!("a job that panics, for the test") } else { n };
        let pool = BudgetedThread::start("test", 16, 50, run, done).expect("a thread");
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
        let pool = BudgetedThread::start("test", 16, 50, |n: u32| n + 1, done).expect("a thread");
        assert_eq!(
            (0..10).map(|n| pool.submit(n)).collect::<Result<Vec<_>, _>>().map(|_| ()),
            Ok(())
        );
        drop(pool);
        let got: Vec<u32> = std::iter::from_fn(|| results.take()).collect();
        assert_eq!(got, (1..=10).collect::<Vec<_>>());
    }
}
