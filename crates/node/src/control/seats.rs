//! Who is connected, and who makes room when all seats are taken.

use std::os::unix::net::UnixStream;
use std::sync::{Mutex, MutexGuard, PoisonError};

use super::ClientId;

/// Most connections at once.
pub const MAX_CLIENTS: usize = 64;
/// Most of them that one user has, so that another still gets one.
pub const USER_MAX: usize = 48;

/// Connections in the order in which they came.
#[derive(Debug, Default)]
pub(super) struct Seats(Mutex<Vec<Seat>>);

#[derive(Debug)]
struct Seat {
    id: ClientId,
    /// None for a part of this process.
    user: Option<u32>,
    /// A whole command has come.
    heard: bool,
    stream: UnixStream,
}

impl Seats {
    /// Makes sure that a program of this user finds a seat. If all are taken, or all that one user
    /// may have, the oldest connection that has not asked for anything is closed.
    ///
    /// Errors: what to tell the program; each of the others is at work.
    pub(super) fn make_room(&self, user: u32) -> Result<(), &'static str> {
        let mut seats = self.lock();
        let user = Some(user);
        let of_user = seats.iter().filter(|seat| seat.user == user).count();
        let silent = |seat: &Seat| seat.user.is_some() && !seat.heard;
        let gives_way = if of_user >= USER_MAX {
            seats.iter().position(|seat| silent(seat) && seat.user == user)
        } else if seats.len() >= MAX_CLIENTS {
            seats.iter().position(silent)
        } else {
            return Ok(());
        };
        match gives_way {
            Some(oldest) => {
                // Its threads end by themselves.
                let _ended = seats.remove(oldest).stream.shutdown(std::net::Shutdown::Both);
                Ok(())
            }
            None if of_user >= USER_MAX => {
                Err("too many programs of this user are connected to this node")
            }
            None => Err("too many programs are connected to this node"),
        }
    }

    /// A connection has come.
    pub(super) fn take(&self, id: ClientId, user: Option<u32>, stream: UnixStream) {
        self.lock().push(Seat { id, user, heard: false, stream });
    }

    /// It has asked for something.
    pub(super) fn heard(&self, id: ClientId) {
        if let Some(seat) = self.lock().iter_mut().find(|seat| seat.id == id) {
            seat.heard = true;
        }
    }

    /// It has ended.
    pub(super) fn leave(&self, id: ClientId) {
        self.lock().retain(|seat| seat.id != id);
    }

    /// How many there are.
    pub(super) fn len(&self) -> usize {
        self.lock().len()
    }

    /// Ends all of them.
    pub(super) fn close(&self) {
        for seat in self.lock().iter() {
            let _ended = seat.stream.shutdown(std::net::Shutdown::Both);
        }
    }

    fn lock(&self) -> MutexGuard<'_, Vec<Seat>> {
        // A panic in between leaves a list that is whole.
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
