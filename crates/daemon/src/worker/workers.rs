//! Threads of all workers except the first.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::JoinHandle;

use anyhow::Context;
use shoal_node::WorkerMessage;
use shoal_wire::Time;

use crate::net::ports::NodeSockets;
use crate::net::receive::DatagramReceiver;
use crate::tun::interface::VirtualInterface;
use crate::worker::clock::BootClock;
use crate::worker::forwarder::ForwardingWorker;
use crate::worker::ready::InterfacePause;
use crate::worker::shell::{Channels, Daemon, DaemonNode};
use crate::worker::wake::{Waker, WakingInbox};

/// Maximum number of messages handled in one turn.
const TAKEN_MAX: usize = 256;

/// All workers except the first, which owns this pool.
pub struct WorkerPool {
    threads: Vec<JoinHandle<()>>,
    /// Wakers of these threads, used to stop them.
    wakers: Vec<Arc<Waker>>,
    stop: Arc<AtomicBool>,
    inbox: WakingInbox<WorkerMessage<Daemon>>,
}

impl WorkerPool {
    /// Starts a thread for each pair of sockets and receive buffers, with the remaining queues of
    /// the interface. `waker` wakes the first worker. None if there are no such sockets.
    pub fn start(
        clock: BootClock,
        node: &mut DaemonNode,
        sockets: Vec<(NodeSockets, Vec<DatagramReceiver>)>,
        interface: &mut Option<VirtualInterface>,
        waker: &Arc<Waker>,
    ) -> anyhow::Result<Option<WorkerPool>> {
        if sockets.is_empty() {
            return Ok(None);
        }
        let mut wakers = vec![Arc::clone(waker)];
        for _ in &sockets {
            wakers.push(Waker::new().context("can't make an event descriptor")?);
        }
        let (channels, inboxes) = Channels::between(&wakers);
        let (mut inboxes, stop) = (inboxes.into_iter(), Arc::new(AtomicBool::new(false)));
        let inbox = inboxes.next().context("no inbox for the first worker")?;
        let queues = std::iter::from_fn(|| interface.as_mut()?.take_queue()).collect();
        let workers = node.split(channels, queues);
        let mut threads = Vec::new();
        for ((worker, (ports, receivers)), inbox) in workers.into_iter().zip(sockets).zip(inboxes) {
            let (number, stop) = (worker.number(), Arc::clone(&stop));
            let (hurried, absence) = (0, InterfacePause::default());
            let worker =
                ForwardingWorker { worker, ports, receivers, inbox, clock, stop, hurried, absence };
            let thread = std::thread::Builder::new()
                .name(format!("shoal-worker-{number}"))
                .spawn(move || worker.run())
                .with_context(|| format!("can't start worker {number}"))?;
            threads.push(thread);
        }
        wakers.remove(0);
        Ok(Some(WorkerPool { threads, wakers, stop, inbox }))
    }

    /// Handles messages of the other workers. True if more may wait.
    pub fn take_in(&mut self, now: Time, node: &mut DaemonNode, ports: &mut NodeSockets) -> bool {
        for _ in 0..TAKEN_MAX {
            let Some(message) = self.inbox.take() else { return false };
            node.handle_message(now, ports.at(now), message);
        }
        true
    }

    /// True if a thread has ended, so that its lanes carry nothing.
    pub fn is_broken(&self) -> bool {
        self.threads.iter().any(JoinHandle::is_finished)
    }
}

impl Drop for WorkerPool {
    fn drop(&mut self) {
        self.stop.store(true, Ordering::Release);
        self.wakers.iter().for_each(|waker| waker.wake());
        for thread in self.threads.drain(..) {
            let _panicked = thread.join();
        }
    }
}
