//! Network namespaces without names.
//!
//! A namespace is only an open file. The namespace disappears with its links, rules and queues
//! after this process and the nodes inside have ended, however they ended. Nothing needs cleaning
//! up after a crash, and two runs can't clash.

use std::fs::File;
use std::future::Future;
use std::os::fd::{AsFd, AsRawFd, RawFd};

use anyhow::{Context, Result};
use nix::sched::{CloneFlags, setns, unshare};
use rtnetlink::{Handle, LinkUnspec};

/// An unnamed network namespace with its loopback up.
#[derive(Debug)]
pub struct Namespace {
    file: File,
}

impl Namespace {
    /// Makes a namespace.
    ///
    /// # Errors
    /// CAP_SYS_ADMIN is missing, or the kernel has no network namespaces.
    pub fn new() -> Result<Namespace> {
        let file = on_own_thread(|| {
            unshare(CloneFlags::CLONE_NEWNET).context("making a network namespace")?;
            File::open("/proc/thread-self/ns/net").context("opening a network namespace")
        })?;
        let namespace = Namespace { file };
        namespace.netlink(async |handle| {
            // The loopback is always interface 1.
            handle.link().set(LinkUnspec::new_with_index(1).up().build()).execute().await
        })?;
        Ok(namespace)
    }

    /// The namespace's file; valid as long as `self`.
    pub fn raw_fd(&self) -> RawFd {
        self.file.as_raw_fd()
    }

    /// Runs `f` on a thread inside the namespace. Sockets that `f` opens stay inside.
    pub fn enter<T: Send>(&self, f: impl FnOnce() -> Result<T> + Send) -> Result<T> {
        on_own_thread(|| {
            setns(self.file.as_fd(), CloneFlags::CLONE_NEWNET).context("entering a namespace")?;
            f()
        })
    }

    /// Runs `f` with a netlink socket inside the namespace.
    pub fn netlink<T, F>(&self, f: impl FnOnce(Handle) -> F + Send) -> Result<T>
    where
        T: Send,
        F: Future<Output = Result<T, rtnetlink::Error>>,
    {
        self.enter(|| {
            let runtime = tokio::runtime::Builder::new_current_thread().enable_io().build()?;
            runtime.block_on(async {
                let (connection, handle, _) = rtnetlink::new_connection()?;
                let connection = tokio::spawn(connection);
                let result = f(handle).await;
                connection.abort();
                result.map_err(|e| anyhow::anyhow!("netlink: {e}"))
            })
        })
    }
}

/// Runs `f` on a new thread, since a thread's namespace can't be restored reliably.
fn on_own_thread<T: Send>(f: impl FnOnce() -> Result<T> + Send) -> Result<T> {
    std::thread::scope(|scope| match scope.spawn(f).join() {
        Ok(result) => result,
        Err(panic) => std::panic::resume_unwind(panic),
    })
}
