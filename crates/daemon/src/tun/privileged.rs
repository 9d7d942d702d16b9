//! A thread that changes what the kernel has for a node which has given up its privileges: it keeps
//! one of them, CAP_NET_ADMIN, and does nothing else.

use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use anyhow::Context;
use caps::{CapSet, Capability, CapsHashSet};
use rtnetlink::Handle;
use tokio::runtime::Runtime;

use crate::privileges;

/// How long a node that moves to another prefix waits for the kernel, at most: packets wait, too.
pub(crate) const MOVE_WAIT: Duration = Duration::from_millis(200);

/// What such a thread keeps as the node wants it.
pub(crate) trait Keeper: Send + 'static {
    /// What there should be.
    type Wanted: Send + 'static;
    /// The thread's name.
    const THREAD: &'static str;
    /// The setting that asks for it.
    const SETTING: &'static str;
    /// What can't be done without the right.
    const NEEDS: &'static str;

    /// Has the kernel have what is `wanted`; with none, what was wanted last, since it is due.
    /// Says what could not be done.
    async fn keep(&mut self, kernel: &Handle, wanted: Option<Self::Wanted>) -> Vec<String>;

    /// When to call [`Self::keep`] though nothing else is wanted.
    fn due(&self) -> Option<Instant> {
        None
    }

    /// Takes away what would outlive the node.
    async fn end(&mut self, _kernel: &Handle) {}

    /// Tells the log of faults; `again` if there were some before.
    fn log(faults: &[String], again: bool);
}

struct State<W> {
    /// What there should be, until the thread takes it.
    wanted: Option<W>,
    /// How often something was asked for, how often when the thread last took it, and how much of
    /// that is done.
    asked: u64,
    taken: u64,
    done: u64,
    faults: Vec<String>,
    /// Something that is kept may have changed.
    rung: bool,
    /// The thread is to give up all rights but one.
    seal: bool,
    /// Whether it has, or why it could not.
    sealed: Option<Result<(), String>>,
    ended: bool,
}

/// What the thread is to do next.
enum Next<W> {
    Keep(Option<W>),
    End,
}

struct Shared<W> {
    state: Mutex<State<W>>,
    changed: Condvar,
    answered: Condvar,
}

impl<W> Shared<W> {
    fn new() -> Shared<W> {
        let state = State {
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
        Shared { state: Mutex::new(state), changed: Condvar::new(), answered: Condvar::new() }
    }

    fn state(&self) -> MutexGuard<'_, State<W>> {
        // A panic under the lock leaves the lists whole.
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Waits until what was asked for so often is done, for so long at most.
    fn wait(&self, asked: u64, most: Duration) -> Result<(), String> {
        let waits = |state: &mut State<W>| state.done < asked;
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

    /// Waits until something is to be done. Nothing is before the thread has its one right.
    fn next(&self, due: Option<Instant>, needs: &'static str) -> Next<W> {
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
                return Next::End;
            }
            let rung = state.sealed.is_some() && std::mem::take(&mut state.rung);
            if wanted.is_some() || rung || left == Some(Duration::ZERO) {
                return Next::Keep(wanted);
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

/// Ends the thread when it is dropped.
pub(crate) struct Privileged<K: Keeper> {
    shared: Arc<Shared<K::Wanted>>,
    thread: Option<JoinHandle<()>>,
}

impl<K: Keeper> Privileged<K> {
    /// Starts the thread, before privileges are given up. It does nothing until the first call of
    /// [`Self::seal`] or [`Self::set`], which must come after that.
    pub(crate) fn start(keeper: K) -> anyhow::Result<Privileged<K>> {
        let shared = Arc::new(Shared::new());
        let theirs = Arc::clone(&shared);
        let (said, ready) = std::sync::mpsc::sync_channel(1);
        let work = move || {
            // The permitted capabilities stay when the process becomes another user.
            let kept = caps::securebits::set_keepcaps(true);
            if said.send(kept.map_err(|e| e.to_string())).is_ok() {
                serve(&theirs, keeper, Kernel::open);
            }
        };
        let thread = std::thread::Builder::new().name(K::THREAD.into()).spawn(work);
        let thread = thread.with_context(|| format!("can't start the thread {}", K::THREAD))?;
        let kept = ready.recv().with_context(|| format!("the thread {} ended", K::THREAD))?;
        kept.map_err(|e| anyhow::anyhow!("{}: {e}", K::SETTING))?;
        Ok(Privileged { shared, thread: Some(thread) })
    }

    /// Has the thread give up all rights but the one that it needs; returns when it has.
    ///
    /// Errors: it lacks that one, or keeps others.
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

    /// Has the kernel have this and nothing else; does not wait for it.
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

    /// As [`Self::set`], and waits until it is done, for so long at most.
    ///
    /// Errors: what could not be done, or that it took longer. Something else is to be set then.
    pub(crate) fn set_and_wait(&self, wanted: K::Wanted, most: Duration) -> Result<(), String> {
        let mine = self.ask(wanted);
        self.shared.wait(mine, most)
    }

    /// Has the thread look at once at what it keeps, whenever this is called.
    pub(crate) fn bell(&self) -> impl Fn() + Send + 'static {
        let shared = Arc::clone(&self.shared);
        move || {
            shared.state().rung = true;
            shared.changed.notify_one();
        }
    }

    /// What could not be done.
    pub(crate) fn faults(&self) -> Vec<String> {
        self.shared.state().faults.clone()
    }
}

impl<K: Keeper> Drop for Privileged<K> {
    fn drop(&mut self) {
        self.shared.state().ended = true;
        self.shared.changed.notify_one();
        let _panicked = self.thread.take().map(JoinHandle::join);
    }
}

/// Gives up everything but what changes of the kernel's side need, in this thread.
///
/// Errors: `needs`, where it lacks that, which no filter of the service's is to blame for; or it
/// has other rights.
fn keep_one_capability(needs: &str) -> anyhow::Result<()> {
    let needed = Capability::CAP_NET_ADMIN;
    if !caps::has_cap(None, CapSet::Permitted, needed).context("can't read capabilities")? {
        anyhow::bail!("{needs}, or as root");
    }
    let kept = privileges::keep_capabilities(&CapsHashSet::from([needed]));
    kept.and_then(|()| privileges::gain_nothing()).context("can't give up rights")
}

/// The way to the kernel, kept from one change to the next.
struct Kernel {
    runtime: Runtime,
    handle: Handle,
}

impl Kernel {
    fn open() -> anyhow::Result<Kernel> {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
        let handle = runtime.block_on(async {
            let (connection, handle, _) =
                rtnetlink::new_connection().context("can't open a netlink socket")?;
            tokio::spawn(connection);
            anyhow::Ok(handle)
        })?;
        Ok(Kernel { runtime, handle })
    }
}

/// How long the thread waits before it opens a way to the kernel again that could not be opened.
struct Pause {
    next: Duration,
    until: Instant,
}

impl Pause {
    /// After the first failure, ...
    const FIRST: Duration = Duration::from_millis(100);
    /// ... and after many: it doubles.
    const LONGEST: Duration = Duration::from_secs(10);

    fn after(before: Option<Pause>, now: Instant) -> Pause {
        let span = before.map_or(Pause::FIRST, |before| before.next);
        Pause { next: (span * 2).min(Pause::LONGEST), until: now + span }
    }
}

fn serve<K: Keeper>(
    shared: &Shared<K::Wanted>,
    mut keeper: K,
    mut open: impl FnMut() -> anyhow::Result<Kernel>,
) {
    let (mut kernel, mut pause, mut held) = (None, None::<Pause>, None);
    loop {
        // What is due can't be done before there is a way to the kernel.
        let due = pause.as_ref().map(|pause| pause.until).or_else(|| keeper.due());
        held = match shared.next(due, K::NEEDS) {
            Next::Keep(wanted) => wanted.or(held),
            Next::End => break,
        };
        let sealed = shared.state().sealed.clone().unwrap_or(Ok(()));
        let opened = match (sealed, kernel.take()) {
            (Err(why), _) => Err(anyhow::Error::msg(why)),
            (Ok(()), Some(kernel)) => Ok(kernel),
            (Ok(()), None) => open(),
        };
        let faults = match opened {
            Ok(opened) => {
                let Kernel { runtime, handle } = &opened;
                let faults = runtime.block_on(keeper.keep(handle, held.take()));
                // One that may be at fault itself is not used again.
                kernel = faults.is_empty().then_some(opened);
                pause = None;
                faults
            }
            Err(error) => {
                pause = Some(Pause::after(pause, Instant::now()));
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
    if let Some(Kernel { runtime, handle }) = kernel.or_else(|| open().ok()) {
        runtime.block_on(keeper.end(&handle));
    }
}

/// True where the program `ip` is missing, which a test needs that changes interfaces as other
/// programs do. Standard error says so, and the gate forbids it.
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

/// Runs something in a thread with a network namespace of its own, if root runs the test.
#[cfg(test)]
pub(crate) fn in_a_namespace(test: impl AsyncFnOnce(&Handle) + Send + 'static) {
    let work = move || {
        match nix::sched::unshare(nix::sched::CloneFlags::CLONE_NEWNET) {
            Ok(()) => {}
            Err(error) if nix::unistd::geteuid().is_root() => panic!("{error}"),
            Err(error) => return eprintln!("SKIPPED: a network namespace needs root: {error}"),
        }
        let Kernel { runtime, handle } = Kernel::open().unwrap();
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
        let shared: Shared<u8> = Shared::new();
        // It has its one right.
        shared.state().sealed = Some(Ok(()));
        let next = |due| match shared.next(due, "") {
            Next::Keep(wanted) => Some(wanted),
            Next::End => None,
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

    /// Something is always due, and it takes down what it was told.
    struct Eager(std::sync::mpsc::Sender<Option<u8>>);

    impl Keeper for Eager {
        type Wanted = u8;
        const THREAD: &'static str = "test";
        const SETTING: &'static str = "";
        const NEEDS: &'static str = "";

        async fn keep(&mut self, _kernel: &Handle, wanted: Option<u8>) -> Vec<String> {
            let _ended = self.0.send(wanted);
            // A keeper that asked for no pause of its own would be called all the time.
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
        let shared: Arc<Shared<u8>> = Arc::new(Shared::new());
        shared.state().sealed = Some(Ok(()));
        shared.state().wanted = Some(7);
        let (tells, told) = std::sync::mpsc::channel();
        let (began, theirs, mut tries) = (Instant::now(), Arc::clone(&shared), 0);
        let open = move || {
            tries += 1;
            // After 0, 0.1 s, and 0.3 s.
            if tries < 4 { anyhow::bail!("no descriptor is left") } else { Kernel::open() }
        };
        let thread = std::thread::spawn(move || serve(&theirs, Eager(tells), open));
        std::thread::sleep(Duration::from_millis(50));
        assert_eq!(shared.state().faults, ["no descriptor is left"]);
        assert_eq!(told.recv(), Ok(Some(7)), "it is told what was wanted meanwhile");
        assert!(began.elapsed() >= 7 * Pause::FIRST, "{:?}", began.elapsed());
        assert_eq!(told.recv(), Ok(None));
        assert_eq!(shared.state().faults, [""; 0]);
        shared.state().ended = true;
        thread.join().unwrap();
    }

    #[test]
    fn who_waits_is_told_what_could_not_be_done_and_that_it_took_too_long() {
        let shared: Shared<u8> = Shared::new();
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
        // Rights are a thread's own.
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
            let next = Pause::after(pause, now);
            assert_eq!(next.until, now + Duration::from_millis(ms));
            pause = Some(next);
        }
    }
}
