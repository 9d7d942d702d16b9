//! Bounded set of connections, and the rules by which old ones make room.

use std::os::unix::net::UnixStream;
use std::sync::{Mutex, MutexGuard, PoisonError};

use super::ClientId;
use super::peer::PeerUser;

/// Most connections at once.
pub const MAX_CLIENTS: usize = 64;
/// Connections of these that are reserved for root and the node's own user, so that members of the
/// control group can't keep them out.
pub const KEPT: usize = 8;

/// Connections in the order of their arrival.
#[derive(Debug, Default)]
pub(super) struct Seats(Mutex<Vec<Seat>>);

#[derive(Debug)]
struct Seat {
    id: ClientId,
    /// None for a part of this process.
    peer: Option<PeerUser>,
    /// True if a whole command has come.
    heard: bool,
    stream: UnixStream,
}

impl Seat {
    fn is_of(&self, user: u32) -> bool {
        self.peer.is_some_and(|peer| peer.user == user)
    }
}

impl Seats {
    /// Makes sure that a program of this peer finds a seat. A user may have at most as many seats
    /// as are free. A user with that many, or without a free seat, takes the seat of the oldest
    /// connection that has not sent a command.
    ///
    /// Errors: no connection can make room; the text is for the program.
    pub(super) fn make_room(&self, peer: PeerUser) -> Result<(), &'static str> {
        let mut seats = self.lock();
        let own = seats.iter().filter(|seat| seat.is_of(peer.user)).count();
        let places = if peer.operator { MAX_CLIENTS } else { MAX_CLIENTS - KEPT };
        if own < places.saturating_sub(seats.len()) {
            return Ok(());
        }
        // A user without a seat may take another user's, so that silent programs keep nobody out. A
        // user with seats may not: that would push out programs that have only just connected.
        let yields = |seat: &Seat| {
            let may_take = |theirs: PeerUser| match own {
                0 => peer.operator || !theirs.operator,
                _ => theirs.user == peer.user,
            };
            !seat.heard && seat.peer.is_some_and(may_take)
        };
        match seats.iter().position(yields) {
            Some(oldest) => {
                // The connection's threads end by themselves.
                let _ended = seats.remove(oldest).stream.shutdown(std::net::Shutdown::Both);
                Ok(())
            }
            None if own > 0 => Err("too many programs of this user are connected to this node"),
            None => Err("too many programs are connected to this node"),
        }
    }

    /// Adds connection `id`.
    pub(super) fn take(&self, id: ClientId, peer: Option<PeerUser>, stream: UnixStream) {
        self.lock().push(Seat { id, peer, heard: false, stream });
    }

    /// Notes that connection `id` has sent a command.
    pub(super) fn heard(&self, id: ClientId) {
        if let Some(seat) = self.lock().iter_mut().find(|seat| seat.id == id) {
            seat.heard = true;
        }
    }

    /// Frees the seat of connection `id`, which has ended.
    pub(super) fn leave(&self, id: ClientId) {
        self.lock().retain(|seat| seat.id != id);
    }

    /// Number of connections.
    pub(super) fn len(&self) -> usize {
        self.lock().len()
    }

    /// Ends all connections.
    pub(super) fn close(&self) {
        for seat in self.lock().iter() {
            let _ended = seat.stream.shutdown(std::net::Shutdown::Both);
        }
    }

    fn lock(&self) -> MutexGuard<'_, Vec<Seat>> {
        // A panic under the lock leaves the list whole.
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const ROOT: PeerUser = PeerUser { user: 0, operator: true };
    const NODE: PeerUser = PeerUser { user: 900, operator: true };

    fn member(user: u32) -> PeerUser {
        PeerUser { user, operator: false }
    }

    /// Connects up to `most` times, until refused; returns the number of connections. Each sends a
    /// command if `heard`.
    fn fill(seats: &Seats, peer: PeerUser, heard: bool, most: usize) -> usize {
        let from = seats.len() as u64;
        for n in 0..most {
            if seats.make_room(peer).is_err() {
                return n;
            }
            let id = ClientId((u64::from(peer.user) << 32) + from + n as u64);
            seats.take(id, Some(peer), UnixStream::pair().unwrap().0);
            if heard {
                seats.heard(id);
            }
        }
        most
    }

    #[test]
    fn no_number_of_users_keeps_the_operator_out() {
        let seats = Seats::default();
        let had: Vec<usize> =
            (1_001..1_041).map(|user| fill(&seats, member(user), true, 99)).collect();
        assert_eq!(had[..7], [28, 14, 7, 4, 2, 1, 0]);
        assert_eq!(had.iter().sum::<usize>(), MAX_CLIENTS - KEPT);
        assert_eq!(fill(&seats, NODE, true, 99), 4);
        assert_eq!(fill(&seats, ROOT, true, 99), 2);
    }

    #[test]
    fn silent_connections_make_room_for_users_without_a_seat() {
        let seats = Seats::default();
        // Each further connection of one user pushes out its oldest.
        assert_eq!(fill(&seats, member(1_001), false, 99), 99);
        assert_eq!(seats.len(), (MAX_CLIENTS - KEPT) / 2);
        for user in 1_002..1_041 {
            assert_eq!(fill(&seats, member(user), true, 1), 1, "{user}");
        }
        assert!(seats.len() <= MAX_CLIENTS - KEPT);
        assert_eq!(fill(&seats, ROOT, true, 1), 1);
    }

    #[test]
    fn a_user_with_many_seats_pushes_out_no_new_connection_of_another() {
        let seats = Seats::default();
        assert_eq!(fill(&seats, member(1_001), true, 99), 28);
        assert_eq!(fill(&seats, member(1_002), false, 1), 1);
        assert!(seats.make_room(member(1_001)).is_err());
        assert_eq!(fill(&seats, ROOT, false, 99), 99);
        for user in 1_003..1_041 {
            fill(&seats, member(user), true, 99);
        }
        let left =
            |peer: PeerUser| seats.lock().iter().filter(|seat| seat.is_of(peer.user)).count();
        assert_eq!(left(ROOT), 18);
    }
}
