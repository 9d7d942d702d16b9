//! A thread that changes kernel settings for a node that has dropped its privileges. The thread
//! keeps one of them, CAP_NET_ADMIN, and does nothing else.

use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use anyhow::Context;
use caps::{CapSet, Capability, CapsHashSet};
use rtnetlink::Handle;
use tokio::runtime::Runtime;

use crate::privileges;

/// Longest wait for the kernel when the prefix changes. Packets wait meanwhile, too.
pub(crate) const MOVE_WAIT: Duration = Duration::from_millis(200);

/// Kernel settings that such a thread maintains.
pub(crate) trait KernelKeeper: Send + 'static {
    /// The requested state of the settings.
    type Wanted: Send + 'static;
    const THREAD: &'static str;
    /// The setting in the configuration, for messages.
    const SETTING: &'static str;
    /// Message about the missing capability.
    const NEEDS: &'static str;

    /// Brings the kernel to the state `wanted`. None means the last state, since it is due again.
    /// Returns the failures.
    async fn keep(&mut self, kernel: &Handle, wanted: Option<Self::Wanted>) -> Vec<String>;

    /// Time of the next call of [`Self::keep`] without a new request.
    fn due(&self) -> Option<Instant> {
        None
    }

    /// Removes what would outlive the node.
    async fn end(&mut self, _kernel: &Handle) {}

    /// Logs faults. `again`: there were faults before.
    fn log(faults: &[String], again: bool);
}

struct RequestState<W> {
    /// The requested state, until the thread takes it.
    wanted: Option<W>,
    /// Number of requests, their number when the thread last took one, and the number of those
    /// that are done.
    asked: u64,
    taken: u64,
    done: u64,
    faults: Vec<String>,
    /// True if something that is maintained may have changed.
    rung: bool,
    /// True if the thread must drop all privileges but one.
    seal: bool,
    /// Result of dropping them; none before.
    sealed: Option<Result<(), String>>,
    ended: bool,
}

/// Next task of the thread.
enum NextTask<W> {
    Keep(Option<W>),
    End,
}

struct RequestQueue<W> {
    state: Mutex<RequestState<W>>,
    changed: Condvar,
    answered: Condvar,
}

impl<W> RequestQueue<W> {
    fn new() -> RequestQueue<W> {
        let state = RequestState {
            wanted: None,
            asked: 0,
            taken: 0,
            done: 0,
            faults: Vec::new(),
            rung: false,
            seal: false,
            sealed: None,
            ended: false,
        };
        RequestQueue { state: Mutex::new(state), changed: Condvar::new(), answered: Condvar::new() }
    }

    fn state(&self) -> MutexGuard<'_, RequestState<W>> {
        // A panic under the lock leaves the state consistent.
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Waits until request number `asked` is done, at most for `most`.
    fn wait(&self, asked: u64, most: Duration) -> Result<(), String> {
        let waits = |state: &mut RequestState<W>| state.done < asked;
        let waited = self.answered.wait_timeout_while(self.state(), most, waits);
        let (state, _) = waited.unwrap_or_else(PoisonError::into_inner);
        match state.faults.first() {
            _ if state.done < asked => {
                Err(format!("the kernel did not answer within {} ms", most.as_millis()))
            }
            Some(fault) => Err(fault.clone()),
            None => Ok(()),
        }
    }

    /// Waits for the next task. No task begins before the thread has dropped its other privileges.
    fn next(&self, due: Option<Instant>, needs: &'static str) -> NextTask<W> {
        let mut state = self.state();
        loop {
            if (state.seal || state.wanted.is_some()) && state.sealed.is_none() {
                state.sealed = Some(keep_one_capability(needs).map_err(|e| format!("{e:#}")));
                self.answered.notify_all();
            }
            let due = due.filter(|_| state.sealed.is_some());
            let left = due.map(|at| at.saturating_duration_since(Instant::now()));
            let wanted = state.wanted.take();
            state.taken = state.asked;
            if state.ended {
                return NextTask::End;
            }
            let rung = state.sealed.is_some() && std::mem::take(&mut state.rung);
            if wanted.is_some() || rung || left == Some(Duration::ZERO) {
                return NextTask::Keep(wanted);
            }
            state = match left {
                Some(left) => {
                    let waited = self.changed.wait_timeout(state, left);
                    waited.unwrap_or_else(PoisonError::into_inner).0
                }
                None => self.changed.wait(state).unwrap_or_else(PoisonError::into_inner),
            };
        }
    }
}

/// Handle of the thread, which ends when this value is dropped.
pub(crate) struct PrivilegedThread<K: KernelKeeper> {
    shared: Arc<RequestQueue<K::Wanted>>,
    thread: Option<JoinHandle<()>>,
}

impl<K: KernelKeeper> PrivilegedThread<K> {
    /// Starts the thread, before the node drops its privileges. The thread does nothing until the
    /// first call of [`Self::seal`] or [`Self::set`], which must come afterwards.
    pub(crate) fn start(keeper: K) -> anyhow::Result<PrivilegedThread<K>> {
        let shared = Arc::new(RequestQueue::new());
        let theirs = Arc::clone(&shared);
        let (said, ready) = std::sync::mpsc::sync_channel(1);
        let work = move || {
            // Permitted capabilities stay when the process becomes another user.
            let kept = caps::securebits::set_keepcaps(true);
            if said.send(kept.map_err(|e| e.to_string())).is_ok() {
                serve(&theirs, keeper, KernelConnection::open);
            }
        };
        let thread = std::thread::Builder::new().name(K::THREAD.into()).spawn(work);
        let thread = thread.with_context(|| format!("can't start the thread {}", K::THREAD))?;
        let kept = ready.recv().with_context(|| format!("the thread {} ended", K::THREAD))?;
        kept.map_err(|e| anyhow::anyhow!("{}: {e}", K::SETTING))?;
        Ok(PrivilegedThread { shared, thread: Some(thread) })
    }

    /// Makes the thread drop all privileges but the one that it needs, and waits for it.
    ///
    /// Errors: the thread lacks that privilege, or still has others.
    pub(crate) fn seal(&self) -> anyhow::Result<()> {
        let mut state = self.shared.state();
        state.seal = true;
        self.shared.changed.notify_one();
        loop {
            match &state.sealed {
                Some(sealed) => {
                    return sealed.clone().map_err(|e| anyhow::anyhow!("{}: {e}", K::SETTING));
                }
                None => {
                    let answered = self.shared.answered.wait(state);
                    state = answered.unwrap_or_else(PoisonError::into_inner);
                }
            }
        }
    }

    /// Requests this state, without waiting.
    pub(crate) fn set(&self, wanted: K::Wanted) {
        self.ask(wanted);
    }

    fn ask(&self, wanted: K::Wanted) -> u64 {
        let mut state = self.shared.state();
        state.wanted = Some(wanted);
        state.asked += 1;
        self.shared.changed.notify_one();
        state.asked
    }

    /// Calls [`Self::set`], and waits until the request is done, at most for `most`.
    ///
    /// Errors: the failures, or that it took longer. The caller must then request another state.
    pub(crate) fn set_and_wait(&self, wanted: K::Wanted, most: Duration) -> Result<(), String> {
        let mine = self.ask(wanted);
        self.shared.wait(mine, most)
    }

    /// Returns a function that makes the thread check its settings at once.
    pub(crate) fn bell(&self) -> impl Fn() + Send + 'static {
        let shared = Arc::clone(&self.shared);
        move || {
            shared.state().rung = true;
            shared.changed.notify_one();
        }
    }

    /// Failures of the last task.
    pub(crate) fn faults(&self) -> Vec<String> {
        self.shared.state().faults.clone()
    }
}

impl<K: KernelKeeper> Drop for PrivilegedThread<K> {
    fn drop(&mut self) {
        self.shared.state().ended = true;
        self.shared.changed.notify_one();
        let _panicked = self.thread.take().map(JoinHandle::join);
    }
}

/// Drops all capabilities of this thread but CAP_NET_ADMIN.
///
/// Errors: `needs`, if the thread lacks that capability; otherwise it could not drop the rest. The
/// first text blames no filter of the service.
fn keep_one_capability(needs: &str) -> anyhow::Result<()> {
    let needed = Capability::CAP_NET_ADMIN;
    if !caps::has_cap(None, CapSet::Permitted, needed).context("can't read capabilities")? {
        anyhow::bail!("{needs}, or as root");
    }
    let kept = privileges::keep_capabilities(&CapsHashSet::from([needed]));
    kept.and_then(|()| privileges::gain_nothing()).context("can't give up rights")
}

/// Connection to the kernel, reused between changes.
struct KernelConnection {
    runtime: Runtime,
    handle: Handle,
}

impl KernelConnection {
    fn open() -> anyhow::Result<KernelConnection> {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
        let handle = runtime.block_on(async {
            let (connection, handle, _) =
                rtnetlink::new_connection().context("can't open a netlink socket")?;
            tokio::spawn(connection);
            anyhow::Ok(handle)
        })?;
        Ok(KernelConnection { runtime, handle })
    }
}

/// Pause before the next attempt to open a connection to the kernel.
struct RetryPause {
    next: Duration,
    until: Instant,
}

impl RetryPause {
    /// Pause after the first failure.
    const FIRST: Duration = Duration::from_millis(100);
    /// Longest pause: the pause doubles after each failure.
    const LONGEST: Duration = Duration::from_secs(10);

    fn after(before: Option<RetryPause>, now: Instant) -> RetryPause {
        let span = before.map_or(RetryPause::FIRST, |before| before.next);
        RetryPause { next: (span * 2).min(RetryPause::LONGEST), until: now + span }
    }
}

fn serve<K: KernelKeeper>(
    shared: &RequestQueue<K::Wanted>,
    mut keeper: K,
    mut open: impl FnMut() -> anyhow::Result<KernelConnection>,
) {
    let (mut kernel, mut pause, mut held) = (None, None::<RetryPause>, None);
    loop {
        // Without a connection to the kernel, the pause decides, not the keeper.
        let due = pause.as_ref().map(|pause| pause.until).or_else(|| keeper.due());
        held = match shared.next(due, K::NEEDS) {
            NextTask::Keep(wanted) => wanted.or(held),
            NextTask::End => break,
        };
        let sealed = shared.state().sealed.clone().unwrap_or(Ok(()));
        let opened = match (sealed, kernel.take()) {
            (Err(why), _) => Err(anyhow::Error::msg(why)),
            (Ok(()), Some(kernel)) => Ok(kernel),
            (Ok(()), None) => open(),
        };
        let faults = match opened {
            Ok(opened) => {
                let KernelConnection { runtime, handle } = &opened;
                let faults = runtime.block_on(keeper.keep(handle, held.take()));
                // A connection that may be at fault is not reused.
                kernel = faults.is_empty().then_some(opened);
                pause = None;
                faults
            }
            Err(error) => {
                pause = Some(RetryPause::after(pause, Instant::now()));
                vec![format!("{error:#}")]
            }
        };
        let again = !shared.state().faults.is_empty();
        if !faults.is_empty() {
            K::log(&faults, again);
        }
        let mut state = shared.state();
        state.faults = faults;
        state.done = state.taken;
        shared.answered.notify_all();
    }
    if let Some(KernelConnection { runtime, handle }) = kernel.or_else(|| open().ok()) {
        runtime.block_on(keeper.end(&handle));
    }
}

/// True if the program `ip` is missing. A test needs it to change interfaces as other programs do.
/// Standard error says so, and the gate forbids it.
#[cfg(test)]
pub(crate) fn is_without_ip(test: &str) -> bool {
    use std::io::Write as _;
    let is_missing = std::process::Command::new("ip").arg("-V").output().is_err();
    if is_missing {
        assert!(std::env::var_os("SHOAL_REQUIRE_NETNS").is_none(), "{test} needs `ip`");
        let _written = writeln!(std::io::stderr(), "SKIPPED {test}: needs `ip` (install iproute2)");
    }
    is_missing
}

/// Runs a test in a thread with its own network namespace, if root runs the test.
#[cfg(test)]
pub(crate) fn in_a_namespace(test: impl AsyncFnOnce(&Handle) + Send + 'static) {
    let work = move || {
        match nix::sched::unshare(nix::sched::CloneFlags::CLONE_NEWNET) {
            Ok(()) => {}
            Err(error) if nix::unistd::geteuid().is_root() => panic!("{error}"),
            Err(error) => return eprintln!("SKIPPED: a network namespace needs root: {error}"),
        }
        let KernelConnection { runtime, handle } = KernelConnection::open().unwrap();
        runtime.block_on(async {
            let up = rtnetlink::LinkUnspec::new_with_index(1).up().build();
            handle.link().set(up).execute().await.unwrap();
            test(&handle).await;
        });
    };
    std::thread::spawn(work).join().unwrap();
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_thread_is_told_what_is_wanted_when_it_is_due_and_when_to_end() {
        let shared: RequestQueue<u8> = RequestQueue::new();
        // The thread has its one privilege.
        shared.state().sealed = Some(Ok(()));
        let next = |due| match shared.next(due, "") {
            NextTask::Keep(wanted) => Some(wanted),
            NextTask::End => None,
        };
        let later = Instant::now() + Duration::from_secs(3_600);
        shared.state().wanted = Some(7);
        assert_eq!(next(Some(later)), Some(Some(7)));
        assert_eq!(next(Some(Instant::now())), Some(None));
        let soon = Instant::now() + Duration::from_millis(20);
        assert_eq!(next(Some(soon)), Some(None));
        assert!(Instant::now() >= soon);
        shared.state().ended = true;
        assert_eq!(next(Some(later)), None);
    }

    /// A keeper that is always due, and that records the requests.
    struct Eager(std::sync::mpsc::Sender<Option<u8>>);

    impl KernelKeeper for Eager {
        type Wanted = u8;
        const THREAD: &'static str = "test";
        const SETTING: &'static str = "";
        const NEEDS: &'static str = "";

        async fn keep(&mut self, _kernel: &Handle, wanted: Option<u8>) -> Vec<String> {
            let _ended = self.0.send(wanted);
            // Without a pause the keeper would be called in a loop.
            std::thread::sleep(Duration::from_millis(5));
            Vec::new()
        }

        fn due(&self) -> Option<Instant> {
            Some(Instant::now())
        }

        fn log(_faults: &[String], _again: bool) {}
    }

    #[test]
    fn a_way_to_the_kernel_that_can_not_be_opened_is_tried_seldom_and_loses_nothing() {
        let shared: Arc<RequestQueue<u8>> = Arc::new(RequestQueue::new());
        shared.state().sealed = Some(Ok(()));
        shared.state().wanted = Some(7);
        let (tells, told) = std::sync::mpsc::channel();
        let (began, theirs, mut tries) = (Instant::now(), Arc::clone(&shared), 0);
        let open = move || {
            tries += 1;
            // Attempts after 0, 0.1 s, and 0.3 s.
            if tries < 4 {
                anyhow::bail!("no descriptor is left")
            } else {
                KernelConnection::open()
            }
        };
        let thread = std::thread::spawn(move || serve(&theirs, Eager(tells), open));
        std::thread::sleep(Duration::from_millis(50));
        assert_eq!(shared.state().faults, ["no descriptor is left"]);
        assert_eq!(told.recv(), Ok(Some(7)), "the keeper gets the request made meanwhile");
        assert!(began.elapsed() >= 7 * RetryPause::FIRST, "{:?}", began.elapsed());
        assert_eq!(told.recv(), Ok(None));
        assert_eq!(shared.state().faults, [""; 0]);
        shared.state().ended = true;
        thread.join().unwrap();
    }

    #[test]
    fn a_waiting_caller_gets_the_fault_or_a_timeout() {
        let shared: RequestQueue<u8> = RequestQueue::new();
        shared.state().done = 2;
        let soon = Duration::from_millis(1);
        assert_eq!(shared.wait(2, soon), Ok(()));
        assert_eq!(shared.wait(3, soon), Err("the kernel did not answer within 1 ms".into()));
        shared.state().faults = vec!["refused".into()];
        assert_eq!(shared.wait(2, soon), Err("refused".into()));
    }

    #[test]
    fn a_thread_without_the_right_says_what_it_needs_and_blames_no_filter() {
        let needs = "no route can be set without CAP_NET_ADMIN: start with it";
        // Capabilities belong to a thread.
        let tried = std::thread::spawn(move || {
            caps::clear(None, CapSet::Effective).unwrap();
            caps::clear(None, CapSet::Permitted).unwrap();
            keep_one_capability(needs).map_err(|e| format!("{e:#}"))
        });
        assert_eq!(tried.join().unwrap(), Err(format!("{needs}, or as root")));
    }

    #[test]
    fn a_pause_grows_and_is_bounded() {
        let (now, mut pause) = (Instant::now(), None);
        for ms in [100, 200, 400, 800, 1_600, 3_200, 6_400, 10_000, 10_000] {
            let next = RetryPause::after(pause, now);
            assert_eq!(next.until, now + Duration::from_millis(ms));
            pause = Some(next);
        }
    }
}
