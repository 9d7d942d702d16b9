//! What the first worker's wait found.

use nix::poll::{PollFd, PollFlags};

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
        ready.signal = fds
            .get(ports + 1 + usize::from(interface))
            .is_some_and(|fd| has(fd, PollFlags::POLLIN));
        ready
    }
}
