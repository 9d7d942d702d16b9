//! Channels by which other threads pass values to a worker and wake it.
//!
//! A bounded channel carries the values. An event descriptor, which the worker polls, shows that
//! there are some. A flag limits it to one write per wake-up, however many values were sent.

use std::os::fd::{AsFd, BorrowedFd};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{Receiver, SyncSender, TrySendError, sync_channel};

use nix::sys::eventfd::{EfdFlags, EventFd};

/// The receiving end of a channel.
pub struct WakingInbox<T> {
    receiver: Receiver<T>,
    waker: Arc<Waker>,
}

/// The sending end of a channel.
pub struct WakingOutlet<T> {
    sender: SyncSender<T>,
    waker: Arc<Waker>,
}

impl<T> Clone for WakingOutlet<T> {
    fn clone(&self) -> Self {
        WakingOutlet { sender: self.sender.clone(), waker: self.waker.clone() }
    }
}

/// One event descriptor. Several inboxes of one thread may share it.
pub struct Waker {
    event: EventFd,
    woken: AtomicBool,
}

impl Waker {
    pub fn new() -> nix::Result<Arc<Waker>> {
        let event =
            EventFd::from_value_and_flags(0, EfdFlags::EFD_NONBLOCK | EfdFlags::EFD_CLOEXEC)?;
        Ok(Arc::new(Waker { event, woken: AtomicBool::new(false) }))
    }

    /// Wakes the thread that polls [`Waker::fd`].
    pub fn wake(&self) {
        if !self.woken.swap(true, Ordering::AcqRel) {
            // The write fails only if the counter is full, and then the thread is awake already.
            let _full = self.event.write(1);
        }
    }

    /// True if it was woken since the last call. `readable` is the result of polling [`Waker::fd`].
    /// Check the inboxes after this call, not before: values sent meanwhile wake the thread again.
    pub fn answer(&self, readable: bool) -> bool {
        if readable {
            let _count = self.event.read();
        }
        // Acquire: values sent before a wake that found the flag set are visible afterwards.
        self.woken.swap(false, Ordering::AcqRel) || readable
    }

    /// Readable while a wake-up is pending.
    pub fn fd(&self) -> BorrowedFd<'_> {
        self.event.as_fd()
    }
}

/// A bounded channel whose receiver is woken through `waker`.
pub fn channel<T>(capacity: usize, waker: &Arc<Waker>) -> (WakingOutlet<T>, WakingInbox<T>) {
    let (sender, receiver) = sync_channel(capacity);
    (WakingOutlet { sender, waker: waker.clone() }, WakingInbox { receiver, waker: waker.clone() })
}

impl<T> WakingOutlet<T> {
    /// Sends `value`, waiting for room. Returns it if the worker is gone.
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

    /// Sends `value` if there is room. Returns it otherwise.
    pub fn try_send(&self, value: T) -> Result<(), T> {
        self.sender.try_send(value).map_err(|e| match e {
            TrySendError::Full(value) | TrySendError::Disconnected(value) => value,
        })?;
        self.waker.wake();
        Ok(())
    }

    pub fn waker(&self) -> &Arc<Waker> {
        &self.waker
    }
}

impl<T> WakingInbox<T> {
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
