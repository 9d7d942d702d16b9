//! Hosts at two routers: the address at which another host is now, and telling others of this
//! host's new address (docs/design/decisions/two-routers.md).
//!
//! ```text
//! newest authentic cell from the other address of its host -> answers go there
//! handshake through an address                             -> the same
//! this host's uplink changed -> an empty cell to both addresses of each host heard lately
//! ```
//!
//! A worker that opens such a cell follows it at once. Control then tells the other workers.

use core::time::Duration;

use shoal_crypto::Ciphers;
use shoal_session::HostPath;
use shoal_wire::{Address, Time};

use crate::book::HostId;
use crate::building::CellBatch;
use crate::cells::plain;
use crate::edge::{Edge, EdgeOutput};
use crate::worker::{EdgeOrder, EdgeTurn};

/// Time since its last cell for which a host is told of a new address.
const HEARD_WITHIN: Duration = Duration::from_secs(60);
/// Largest number of hosts that are told, those heard last. Others follow later traffic.
const TOLD_MAX: usize = 256;
/// Waits before the second and the third cell to each address, since one may be lost.
const REPEATS: [Duration; 2] = [Duration::from_millis(150), Duration::from_millis(350)];

/// Cells that tell other hosts of this host's new address.
pub(crate) struct Announcement {
    hosts: Vec<HostId>,
    /// Number of rounds that were sent.
    rounds: usize,
    at: Time,
}

impl Announcement {
    /// Time and reason of the next round.
    pub(crate) fn due(&self) -> (Time, &'static str) {
        (self.at, "new address of this host")
    }
}

impl<C: Ciphers> Edge<C> {
    /// Sets the address of a host at another router. Cells go to its first address until it shows
    /// that it uses the new one. Without effect on a removed host.
    pub fn set_second(&mut self, host: HostId, second: Option<Address>) {
        let Some(first) = self.address_of(host) else { return };
        if self.own.book.second(host) == second {
            return;
        }
        self.book().set_second(host, second);
        match self.own.is_at_second(host) {
            true => self.follow_host(host, first),
            false => self.aim(host),
        }
    }

    /// Notes that this host's cells leave from another address than `former`. Other hosts are told.
    /// The router of `former` is probably dead, so hosts there are sought at their other address.
    /// Call [`Edge::drive`] afterwards.
    pub fn handle_move(&mut self, now: Time, former: Address) {
        for host in self.own.book.hosts().collect::<Vec<_>>() {
            let known = self.own.book.routed_addresses(host);
            let there = self.own.target(host).filter(|at| at.router == former.router);
            if let Some(other) = known.zip(there).and_then(|(known, there)| known.other(there)) {
                self.follow_host(host, other);
            }
        }
        let since = |at: Time| now.since(at);
        let lately = self.heard.iter().filter(|(_, at)| since(**at) < HEARD_WITHIN);
        let mut lately: Vec<(Duration, HostId)> =
            lately.map(|(host, at)| (since(*at), host)).collect();
        lately.sort_unstable();
        lately.truncate(TOLD_MAX);
        let hosts = lately.into_iter().map(|(_, host)| host).collect();
        self.announcement = Some(Announcement { hosts, rounds: 0, at: now });
        self.has_moved = true;
    }

    /// Tells a host of this host's address when their direct link ends. Sealed cells on that link
    /// came from the first address, whose router may be dead.
    pub(crate) fn note_direct_end(&mut self, now: Time, host: HostId) {
        if !self.has_moved {
            return;
        }
        let new = || Announcement { hosts: Vec::new(), rounds: 0, at: now };
        let said = self.announcement.get_or_insert_with(new);
        if said.hosts.len() < TOLD_MAX && !said.hosts.contains(&host) {
            said.hosts.push(host);
        }
    }

    /// Sends cells to this address of a host from here on.
    pub(crate) fn follow_host(&mut self, host: HostId, address: Address) {
        self.own.follow(host, address);
        if self.config.session.workers > 1 {
            // A worker follows only to an address that it knows.
            self.take_orders();
            self.tell_hosts();
            let order = |worker| (worker, EdgeOrder::Follow { host, address });
            self.orders.extend((1..self.config.session.workers).map(order));
        }
        self.aim(host);
    }

    /// Follows a host to the address that answered this host's request for a session.
    pub(crate) fn follow_session(&mut self, host: HostId) {
        let endpoint = self.own.book.peer(host).and_then(|peer| self.sessions.endpoint(peer));
        let Some(HostPath::Routed(at)) = endpoint else { return };
        if self.own.target(host) == Some(at) {
            return;
        }
        match self.own.book.routed_addresses(host).is_some_and(|known| known.has(at)) {
            true => self.follow_host(host, at),
            // The list changed meanwhile.
            false => self.aim(host),
        }
    }

    /// Sets the targets of handshakes with a host outside circuits: the address in use, and the
    /// other one in turn.
    pub(crate) fn aim(&mut self, host: HostId) {
        let Some(peer) = self.own.book.peer(host) else { return };
        let (known, to) = (self.own.book.routed_addresses(host), self.own.target(host));
        let other = known.zip(to).and_then(|(known, to)| known.other(to));
        self.sessions.set_home(peer, other.map(HostPath::Routed));
        if to.is_some() {
            self.sessions.set_endpoint(peer, to.map(HostPath::Routed));
        }
    }

    /// Tells hosts of this host's new address, if that is due. Returns true if it was.
    pub(crate) fn send_announcement(
        &mut self,
        now: Time,
        buf: &mut [u8],
        out: &mut impl EdgeOutput,
    ) -> bool {
        let Some(mut said) = self.announcement.take_if(|said| said.at <= now) else { return false };
        for &host in &said.hosts {
            self.say_address(now, host, buf, out);
        }
        if let Some(wait) = REPEATS.get(said.rounds) {
            (said.rounds, said.at) = (said.rounds + 1, now + *wait);
            self.announcement = Some(said);
        }
        true
    }

    /// Sends an empty cell to each address of a host with a session.
    fn say_address(&mut self, now: Time, host: HostId, buf: &mut [u8], out: &mut impl EdgeOutput) {
        let known = self.own.book.routed_addresses(host).filter(|_| self.is_live(now, host));
        let Ok(form) = self.own.form(host, 1) else { return };
        for to in known.into_iter().flat_map(|known| known.iter()) {
            // A cell on a direct link has the first address, which is not the new one.
            if out.may_go_direct(to) {
                continue;
            }
            plain(buf, 0, form).fill(0);
            let mut turn = EdgeTurn { now, shard: self.sessions.shard(), out: &mut *out };
            let frame = &mut buf[..form.frame_len()];
            let run = CellBatch::control(host, form);
            if let Err(reason) = self.own.send_cells_to(&mut turn, run, to, frame) {
                self.count(reason);
            }
        }
        self.take_notes(now);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::book::HostDirectory;
    use shoal_session::PeerId;

    #[test]
    fn both_addresses_lead_to_their_host_and_pass_to_others() {
        let [one, other] = [0, 1].map(PeerId::from_bits);
        let [a, b, c] = [1, 2, 3].map(|router| Address::new(router, 1));
        let mut book = HostDirectory::default();
        let one = book.put(one, a);
        book.set_second(one, Some(b));
        assert_eq!([a, b, c].map(|at| book.host(at)), [Some(one), Some(one), None]);
        assert_eq!(book.hosts().count(), 1);
        // The other host gets the second address, and the first one another address there.
        let other = book.put(other, b);
        book.set_second(one, Some(c));
        assert_eq!([a, b, c].map(|at| book.host(at)), [Some(one), Some(other), Some(one)]);
        assert_eq!((book.address(one), book.second(one)), (Some(a), Some(c)));
        let one = book.put(one.into(), c);
        assert_eq!((book.address(one), book.second(one)), (Some(c), None));
        assert_eq!([a, b, c].map(|at| book.host(at)), [None, Some(other), Some(one)]);
        book.remove(one);
        assert_eq!([a, b, c].map(|at| book.host(at)), [None, Some(other), None]);
    }

    #[test]
    fn hosts_may_exchange_their_second_addresses_in_one_list() {
        let peers = [0, 1].map(PeerId::from_bits);
        let [a, b, c, d] = [1, 2, 3, 4].map(|router| Address::new(router, 1));
        let mut book = HostDirectory::default();
        for seconds in [[c, d], [d, c]] {
            for ((peer, first), second) in peers.into_iter().zip([a, b]).zip(seconds) {
                let host = book.put(peer, first);
                book.set_second(host, Some(second));
            }
        }
        let owners = [a, b, c, d].map(|at| book.host(at).and_then(|host| book.peer(host)));
        assert_eq!(owners, [0, 1, 1, 0].map(|at| Some(peers[at])));
    }
}
