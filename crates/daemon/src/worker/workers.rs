//! The threads of the workers after the first.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::JoinHandle;

use anyhow::Context;
use shoal_node::Message;
use shoal_wire::Time;

use crate::net::ports::Ports;
use crate::net::receive::Receiver;
use crate::tun::interface::Interface;
use crate::worker::clock::Clock;
use crate::worker::forwarder::Forwarding;
use crate::worker::ready::Absence;
use crate::worker::shell::{Channels, Daemon, Node};
use crate::worker::wake::{Inbox, Waker};

/// Messages taken in per turn.
const TAKEN_MAX: usize = 256;

/// The other workers.
pub struct WorkerPool {
    threads: Vec<JoinHandle<()>>,
    /// Wakers of these threads, so that they see that they are to stop.
    wakers: Vec<Arc<Waker>>,
    stop: Arc<AtomicBool>,
    inbox: Inbox<Message<Daemon>>,
}

impl WorkerPool {
    /// Starts a thread per pair of sockets and receive buffers, if there are any, with the queues
    /// that the interface still has. `waker` wakes the first worker.
    pub fn start(
        clock: Clock,
        node: &mut Node,
        sockets: Vec<(Ports, Vec<Receiver>)>,
        interface: &mut Option<Interface>,
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
        let inbox = inboxes.next().context("there is a first worker")?;
        let queues = std::iter::from_fn(|| interface.as_mut()?.take_queue()).collect();
        let workers = node.split(channels, queues);
        let mut threads = Vec::new();
        for ((worker, (ports, receivers)), inbox) in workers.into_iter().zip(sockets).zip(inboxes) {
            let (number, stop) = (worker.number(), Arc::clone(&stop));
            let (hurried, absence) = (0, Absence::default());
            let worker =
                Forwarding { worker, ports, receivers, inbox, clock, stop, hurried, absence };
            let thread = std::thread::Builder::new()
                .name(format!("shoal-worker-{number}"))
                .spawn(move || worker.run())
                .with_context(|| format!("can't start worker {number}"))?;
            threads.push(thread);
        }
        wakers.remove(0);
        Ok(Some(WorkerPool { threads, wakers, stop, inbox }))
    }

    /// Takes in what the others handed over; says whether more may wait.
    pub fn take_in(&mut self, now: Time, node: &mut Node, ports: &mut Ports) -> bool {
        for _ in 0..TAKEN_MAX {
            let Some(message) = self.inbox.take() else { return false };
            node.handle_message(now, ports.at(now), message);
        }
        true
    }

    /// Whether one of them has ended, and its lanes with it.
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
