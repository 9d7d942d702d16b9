//! A thread that changes what the kernel has for a node which has given up its privileges: it keeps
//! one of them, CAP_NET_ADMIN, and does nothing else.

use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use anyhow::Context;
use caps::{Capability, CapsHashSet};
use rtnetlink::Handle;
use tokio::runtime::Runtime;

use crate::privileges;

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
    faults: Vec<String>,
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
        let state =
            State { wanted: None, faults: Vec::new(), seal: false, sealed: None, ended: false };
        Shared { state: Mutex::new(state), changed: Condvar::new(), answered: Condvar::new() }
    }

    fn state(&self) -> MutexGuard<'_, State<W>> {
        // A panic under the lock leaves the lists whole.
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Waits until something is to be done. Nothing is before the thread has its one right.
    fn next(&self, due: Option<Instant>, needs: &'static str) -> Next<W> {
        let mut state = self.state();
        loop {
            if (state.seal || state.wanted.is_some()) && state.sealed.is_none() {
                let kept = keep_one_capability().context(needs);
                state.sealed = Some(kept.map_err(|e| format!("{e:#}")));
                self.answered.notify_all();
            }
            let due = due.filter(|_| state.sealed.is_some());
            let left = due.map(|at| at.saturating_duration_since(Instant::now()));
            let wanted = state.wanted.take();
            if state.ended {
                return Next::End;
            }
            if wanted.is_some() || left == Some(Duration::ZERO) {
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
                serve(&theirs, keeper);
            }
        };
        let thread = std::thread::Builder::new().name(K::THREAD.into()).spawn(work);
        let thread = thread.with_context(|| format!("can't start the thread {}", K::THREAD))?;
        let kept = ready.recv().with_context(|| format!("the thread {} ended", K::THREAD))?;
        kept.map_err(|e| anyhow::anyhow!("{}: {e}", K::SETTING))?;
        Ok(Privileged { shared, thread: Some(thread) })
    }

    /// Has the thread give up all rights but the one that it needs; returns when it has.
    pub(crate) fn seal(&self) -> anyhow::Result<()> {
        let mut state = self.shared.state();
        state.seal = true;
        self.shared.changed.notify_one();
        loop {
            match &state.sealed {
                Some(sealed) => return sealed.clone().map_err(anyhow::Error::msg),
                None => {
                    let answered = self.shared.answered.wait(state);
                    state = answered.unwrap_or_else(PoisonError::into_inner);
                }
            }
        }
    }

    /// Has the kernel have this and nothing else; does not wait for it.
    pub(crate) fn set(&self, wanted: K::Wanted) {
        self.shared.state().wanted = Some(wanted);
        self.shared.changed.notify_one();
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
fn keep_one_capability() -> anyhow::Result<()> {
    privileges::keep_capabilities(&CapsHashSet::from([Capability::CAP_NET_ADMIN]))?;
    privileges::gain_nothing()
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

fn serve<K: Keeper>(shared: &Shared<K::Wanted>, mut keeper: K) {
    let mut kernel = None;
    loop {
        let wanted = match shared.next(keeper.due(), K::NEEDS) {
            Next::Keep(wanted) => wanted,
            Next::End => break,
        };
        let sealed = shared.state().sealed.clone().unwrap_or(Ok(()));
        let opened = match (sealed, kernel.take()) {
            (Err(why), _) => Err(anyhow::Error::msg(why)),
            (Ok(()), Some(kernel)) => Ok(kernel),
            (Ok(()), None) => Kernel::open(),
        };
        let faults = match opened {
            Ok(opened) => {
                let Kernel { runtime, handle } = &opened;
                let faults = runtime.block_on(keeper.keep(handle, wanted));
                // One that may be at fault itself is not used again.
                kernel = faults.is_empty().then_some(opened);
                faults
            }
            Err(error) => vec![format!("{error:#}")],
        };
        let again = !shared.state().faults.is_empty();
        if !faults.is_empty() {
            K::log(&faults, again);
        }
        shared.state().faults = faults;
    }
    if let Some(Kernel { runtime, handle }) = kernel.or_else(|| Kernel::open().ok()) {
        runtime.block_on(keeper.end(&handle));
    }
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
}
