//! How other threads hand something to the worker and wake it.
//!
//! A bounded channel carries the values; an event descriptor that the worker polls says that there
//! are some. A flag keeps it to one write per wake-up, however many values were handed over.

use std::os::fd::{AsFd, BorrowedFd};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{Receiver, SyncSender, TrySendError, sync_channel};

use nix::sys::eventfd::{EfdFlags, EventFd};

/// The worker's end.
pub struct Inbox<T> {
    receiver: Receiver<T>,
    waker: Arc<Waker>,
}

/// Everybody else's end.
pub struct Outlet<T> {
    sender: SyncSender<T>,
    waker: Arc<Waker>,
}

impl<T> Clone for Outlet<T> {
    fn clone(&self) -> Self {
        Outlet { sender: self.sender.clone(), waker: self.waker.clone() }
    }
}

/// One event descriptor; several inboxes of one thread may share it.
pub struct Waker {
    event: EventFd,
    woken: AtomicBool,
}

impl Waker {
    /// A waker that nobody has used yet.
    pub fn new() -> nix::Result<Arc<Waker>> {
        let event =
            EventFd::from_value_and_flags(0, EfdFlags::EFD_NONBLOCK | EfdFlags::EFD_CLOEXEC)?;
        Ok(Arc::new(Waker { event, woken: AtomicBool::new(false) }))
    }

    /// Wakes the thread that polls [`Waker::fd`].
    pub fn wake(&self) {
        if !self.woken.swap(true, Ordering::AcqRel) {
            // It can only fail when the counter is full, and then the thread is awake already.
            let _full = self.event.write(1);
        }
    }

    /// True if it was woken since the last call; `readable` is what polling [`Waker::fd`] said.
    /// Look into the inboxes after this, not before: what is handed over meanwhile wakes again.
    pub fn answer(&self, readable: bool) -> bool {
        if readable {
            let _count = self.event.read();
        }
        // Acquire: what was handed over before a call that found the flag set is visible now.
        self.woken.swap(false, Ordering::AcqRel) || readable
    }

    /// Readable when it was woken.
    pub fn fd(&self) -> BorrowedFd<'_> {
        self.event.as_fd()
    }
}

/// A bounded channel whose receiver is woken through `waker`.
pub fn channel<T>(capacity: usize, waker: &Arc<Waker>) -> (Outlet<T>, Inbox<T>) {
    let (sender, receiver) = sync_channel(capacity);
    (Outlet { sender, waker: waker.clone() }, Inbox { receiver, waker: waker.clone() })
}

impl<T> Outlet<T> {
    /// Hands `value` over, waiting for room. Gives it back when the worker is gone.
    pub fn send(&self, value: T) -> Result<(), T> {
        let sent = match self.sender.try_send(value) {
            // The worker must be awake to make room.
            Err(TrySendError::Full(value)) => {
                self.waker.wake();
                self.sender.send(value).map_err(|e| e.0)
            }
            Err(TrySendError::Disconnected(value)) => Err(value),
            Ok(()) => Ok(()),
        };
        self.waker.wake();
        sent
    }

    /// Hands `value` over if there is room; gives it back otherwise.
    pub fn try_send(&self, value: T) -> Result<(), T> {
        self.sender.try_send(value).map_err(|e| match e {
            TrySendError::Full(value) | TrySendError::Disconnected(value) => value,
        })?;
        self.waker.wake();
        Ok(())
    }

    /// The waker that it uses.
    pub fn waker(&self) -> &Arc<Waker> {
        &self.waker
    }
}

impl<T> Inbox<T> {
    /// The next value, if there is one.
    pub fn take(&mut self) -> Option<T> {
        self.receiver.try_recv().ok()
    }

    /// The waker that announces values.
    pub fn waker(&self) -> &Arc<Waker> {
        &self.waker
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn nothing_is_lost_between_many_senders_and_a_small_channel() {
        let waker = Waker::new().expect("an event descriptor");
        let (outlet, mut inbox) = channel::<u64>(4, &waker);
        let senders: Vec<_> = (0..4)
            .map(|s| {
                let outlet = outlet.clone();
                std::thread::spawn(move || (0..1_000).all(|i| outlet.send(s * 1_000 + i).is_ok()))
            })
            .collect();
        let mut sum = 0;
        let mut got = 0;
        while got < 4_000 {
            if waker.answer(true) {
                while let Some(value) = inbox.take() {
                    sum += value;
                    got += 1;
                }
            } else {
                std::thread::yield_now();
            }
        }
        assert_eq!(sum, (0..4_000u64).sum::<u64>());
        assert!(senders.into_iter().all(|t| t.join().is_ok_and(|sent| sent)));
    }

    #[test]
    fn a_full_channel_gives_the_value_back() {
        let waker = Waker::new().expect("an event descriptor");
        let (outlet, inbox) = channel::<u8>(1, &waker);
        assert_eq!(outlet.try_send(1), Ok(()));
        assert_eq!(outlet.try_send(2), Err(2));
        drop(inbox);
        assert_eq!(outlet.send(3), Err(3));
    }
}
