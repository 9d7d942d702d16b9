//! Results of the first worker's wait, and the pause of workers for an interface that is gone.

use std::time::Duration;

use nix::poll::{PollFd, PollFlags};
use shoal_wire::Time;

/// Flags of the descriptor of an interface that was deleted; a wait ends with them at once.
const GONE: PollFlags = PollFlags::POLLERR.union(PollFlags::POLLHUP).union(PollFlags::POLLNVAL);
/// How soon a worker looks again whether the interface is back.
const BACK_AFTER: Duration = Duration::from_millis(100);

/// A pause of a worker's wait for an interface that is gone.
#[derive(Default)]
pub(super) struct Absence {
    until: Time,
}

impl Absence {
    /// How long the interface is not to be waited for; none if it is.
    pub(super) fn left(&self, now: Time) -> Option<Duration> {
        (now < self.until).then(|| self.until.since(now))
    }

    /// The interface was found gone.
    pub(super) fn note(&mut self, now: Time) {
        self.until = now + BACK_AFTER;
    }

    /// True if a polled descriptor of the interface says that it is gone.
    pub(super) fn is_told(fd: &PollFd<'_>) -> bool {
        fd.revents().is_some_and(|found| found.intersects(GONE))
    }
}

/// What a wait found.
#[derive(Default)]
pub(super) struct Ready {
    pub(super) readable: u32,
    pub(super) writable: u32,
    pub(super) errors: u32,
    pub(super) waker: bool,
    pub(super) interface: bool,
    /// The interface was polled, and nothing waits there.
    pub(super) drained: bool,
    /// The interface was polled, and it is gone.
    pub(super) gone: bool,
    pub(super) signal: bool,
}

impl Ready {
    /// What the polled descriptors say: sockets, the waker, the interface if there is one, signals.
    pub(super) fn read(fds: &[PollFd<'_>], ports: usize, interface: bool) -> Ready {
        let has = |fd: &PollFd<'_>, flag| fd.revents().is_some_and(|found| found.intersects(flag));
        let mut ready = Ready::default();
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
        ready.gone = interface && fds.get(ports + 1).is_some_and(Absence::is_told);
        ready.signal = fds
            .get(ports + 1 + usize::from(interface))
            .is_some_and(|fd| has(fd, PollFlags::POLLIN));
        ready
    }
}
