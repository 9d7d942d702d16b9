//! Results of the first worker's wait, and the workers' pause after the interface is gone.

use std::time::Duration;

use nix::poll::{PollFd, PollFlags};
use shoal_wire::Time;

/// Flags of the descriptor of a deleted interface. They end a wait at once.
const GONE: PollFlags = PollFlags::POLLERR.union(PollFlags::POLLHUP).union(PollFlags::POLLNVAL);
/// Time between two checks whether the interface is back.
const BACK_AFTER: Duration = Duration::from_millis(100);

/// A pause in which a worker does not wait for the interface, since it is gone.
#[derive(Default)]
pub(super) struct InterfacePause {
    until: Time,
}

impl InterfacePause {
    /// Remaining time of the pause; none if there is no pause.
    pub(super) fn left(&self, now: Time) -> Option<Duration> {
        (now < self.until).then(|| self.until.since(now))
    }

    /// Begins a pause.
    pub(super) fn note(&mut self, now: Time) {
        self.until = now + BACK_AFTER;
    }

    /// True if the polled descriptor shows that the interface is gone.
    pub(super) fn is_told(fd: &PollFd<'_>) -> bool {
        fd.revents().is_some_and(|found| found.intersects(GONE))
    }
}

/// Result of a wait.
#[derive(Default)]
pub(super) struct PollResult {
    pub(super) readable: u32,
    pub(super) writable: u32,
    pub(super) errors: u32,
    pub(super) waker: bool,
    pub(super) interface: bool,
    /// True if the interface was polled and no packet waits there.
    pub(super) drained: bool,
    /// True if the interface was polled and is gone.
    pub(super) gone: bool,
    pub(super) signal: bool,
}

impl PollResult {
    /// Reads the polled descriptors: sockets, the waker, the interface if there is one, signals.
    pub(super) fn read(fds: &[PollFd<'_>], ports: usize, interface: bool) -> PollResult {
        let has = |fd: &PollFd<'_>, flag| fd.revents().is_some_and(|found| found.intersects(flag));
        let mut ready = PollResult::default();
        for (index, fd) in fds.iter().take(ports).enumerate() {
            let bit = 1 << index;
            if has(fd, PollFlags::POLLERR) {
                ready.errors |= bit;
            }
            if has(fd, PollFlags::POLLIN | PollFlags::POLLERR) {
                ready.readable |= bit;
            }
            if has(fd, PollFlags::POLLOUT) {
                ready.writable |= bit;
            }
        }
        ready.waker = fds.get(ports).is_some_and(|fd| has(fd, PollFlags::POLLIN));
        ready.interface =
            interface && fds.get(ports + 1).is_some_and(|fd| has(fd, PollFlags::POLLIN));
        ready.gone = interface && fds.get(ports + 1).is_some_and(InterfacePause::is_told);
        ready.signal = fds
            .get(ports + 1 + usize::from(interface))
            .is_some_and(|fd| has(fd, PollFlags::POLLIN));
        ready
    }
}
