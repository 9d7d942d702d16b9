//! Rendezvous addresses, at which two neighbours without a session meet. They are derived from
//! their keys, the network secret and the time of day. So no endpoint has to stay fixed.
//!
//! ```text
//! epoch n - 1   |   epoch n   |   epoch n + 1      600 s each, by the wall clock
//!     accepted      called        accepted
//! ```
//!
//! A handshake goes from the caller's address of an epoch to the neighbour's address of the same
//! epoch. Later requests use the adjacent epochs, so clocks may differ by less than two epochs.
//!
//! The addresses of the last answered handshake are the *base*. Data goes there while it does not
//! use shifting addresses. The base also shows which epoch the neighbour means. Time is then
//! counted from the base, so setting a wall clock does not move it.

use core::time::Duration;
use std::net::SocketAddr;

use shoal_crypto::Secret;
use shoal_session::Endpoints;
use shoal_wire::{ShiftAnnouncement, Time};

use super::schedule::{ShiftRole, ShiftSchedule};
use crate::shifts::{FORMER_KEPT, FORMER_MAX};

/// Length of an epoch.
pub const EPOCH: Duration = Duration::from_secs(600);
/// Time for which frames are accepted at a base that was left.
const LEFT_KEPT: Duration = Duration::from_secs(15);
/// Number of requests of one handshake with different destinations. Further ones repeat the
/// sequence.
const TURNS: usize = 8;
/// Number of requests before those to the fixed endpoint, if the last handshake was there.
const TRIED_AFTER: usize = 2;

/// Epoch numbers, counted from a known epoch.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct EpochClock {
    known: u32,
    /// End of the known epoch.
    ends: Time,
}

impl EpochClock {
    /// The epochs of a wall clock that shows `unix_ms` at `now`.
    fn of(now: Time, unix_ms: u64) -> EpochClock {
        let lasts = EPOCH.as_millis() as u64;
        let left = Duration::from_millis(lasts - unix_ms % lasts);
        EpochClock { known: u32::try_from(unix_ms / lasts).unwrap_or(u32::MAX), ends: now + left }
    }

    /// Number of epochs begun since the known one.
    fn more(&self, now: Time) -> u32 {
        let Some(over) = now.0.checked_sub(self.ends.0) else { return 0 };
        u32::try_from(u128::from(over) / EPOCH.as_nanos() + 1).unwrap_or(u32::MAX)
    }

    fn at(&self, now: Time) -> u32 {
        self.known.saturating_add(self.more(now))
    }

    /// End of the current epoch.
    fn next(&self, now: Time) -> Time {
        self.ends + EPOCH * self.more(now)
    }
}

/// The epochs whose addresses are accepted.
fn about(epoch: u32) -> impl Iterator<Item = u32> {
    epoch.saturating_sub(1)..=epoch.saturating_add(1)
}

/// The addresses of a link without shifting data.
struct RendezvousBase {
    epochs: EpochClock,
    /// The addresses of its last handshake. Data uses them until it shifts.
    ends: Endpoints,
}

/// The rendezvous addresses of one link's two ends.
pub struct Rendezvous {
    end: ShiftRole,
    own: ShiftAnnouncement,
    peer: ShiftAnnouncement,
    /// Schedules of the first and the second network secret. The second exists only while the
    /// secret changes.
    first: ShiftSchedule,
    other: Option<ShiftSchedule>,
    wall: EpochClock,
    base: Option<RendezvousBase>,
    /// Former prefixes of this end, the newest first, and until when frames are accepted there.
    former: Vec<([u8; 8], Time)>,
    /// This end's identifier at the previous base, and until when frames are accepted there.
    left: Option<(u64, Time)>,
    /// A fixed endpoint, called if nobody answers at the rendezvous addresses.
    pub(crate) fallback: Option<Endpoints>,
}

fn place((prefix, port): ([u8; 8], u16)) -> ShiftAnnouncement {
    ShiftAnnouncement { prefix, port, interval_ms: 0 }
}

impl Rendezvous {
    /// Creates the rendezvous between addresses under `own` and `peer`, from the shared secrets.
    /// The end with the smaller key leads. The wall clock shows `unix_ms` at `now`.
    pub fn new(
        leads: bool,
        (own, peer): (([u8; 8], u16), ([u8; 8], u16)),
        secrets: &(Secret<32>, Option<Secret<32>>),
        now: Time,
        unix_ms: u64,
    ) -> Rendezvous {
        let schedule = |secret: &Secret<32>| ShiftSchedule::new(secret.expose());
        Rendezvous {
            end: if leads { ShiftRole::Leading } else { ShiftRole::Following },
            own: place(own),
            peer: place(peer),
            first: schedule(&secrets.0),
            other: secrets.1.as_ref().map(schedule),
            wall: EpochClock::of(now, unix_ms),
            base: None,
            former: Vec::new(),
            left: None,
            fallback: None,
        }
    }

    /// Replaces the schedules when the network secret changes.
    pub fn set_secrets(&mut self, secrets: &(Secret<32>, Option<Secret<32>>)) {
        self.first = ShiftSchedule::new(secrets.0.expose());
        self.other = secrets.1.as_ref().map(|secret| ShiftSchedule::new(secret.expose()));
    }

    /// Sets this end's prefix.
    pub fn move_to(&mut self, now: Time, prefix: [u8; 8]) {
        let former = core::mem::replace(&mut self.own.prefix, prefix);
        if former != prefix {
            self.former.retain(|(known, until)| ![former, prefix].contains(known) && now < *until);
            self.former.insert(0, (former, now + FORMER_KEPT));
            self.former.truncate(FORMER_MAX);
        }
        // Data of a link without shifts also leaves from the new prefix.
        let local = self.base.as_mut().and_then(|base| base.ends.local.as_mut());
        if let Some((local, (known, identifier))) =
            local.and_then(|local| ShiftAnnouncement::split(*local).map(|parts| (local, parts)))
            && known != prefix
        {
            *local = self.own.endpoint(identifier);
        }
    }

    /// Sets the wall clock. Returns true if the clock was adjusted since the last call.
    pub fn set_clock(&mut self, now: Time, unix_ms: u64) -> bool {
        let wall = EpochClock::of(now, unix_ms);
        let before = core::mem::replace(&mut self.wall, wall);
        let (ended, ends) = (before.next(now), wall.ends);
        // The end of the epoch also shows an adjustment within an epoch.
        let apart = ended.since(ends).max(ends.since(ended));
        before.at(now) != wall.known || apart > Duration::from_secs(1)
    }

    /// The neighbour's prefix and port.
    pub fn peer(&self) -> ([u8; 8], u16) {
        (self.peer.prefix, self.peer.port)
    }

    fn ends(&self, schedule: &ShiftSchedule, epoch: u32) -> Endpoints {
        self.ends_from(self.own, schedule, epoch)
    }

    fn ends_from(&self, own: ShiftAnnouncement, schedule: &ShiftSchedule, epoch: u32) -> Endpoints {
        let id = |end| schedule.identifier(end, epoch, 0);
        let local = Some(own.endpoint(id(self.end)));
        Endpoints { local, remote: self.peer.endpoint(id(self.end.other())) }
    }

    fn schedules(&self) -> impl Iterator<Item = &ShiftSchedule> {
        core::iter::once(&self.first).chain(&self.other)
    }

    /// The epochs whose addresses are valid now, with possible duplicates.
    fn epochs(&self, now: Time) -> impl Iterator<Item = u32> {
        let base = self.base.as_ref().map(|base| base.epochs.at(now));
        about(self.wall.at(now)).chain(base.into_iter().flat_map(about))
    }

    /// Handles a handshake that was answered between these addresses, by either end. They become
    /// the base if they belong to this schedule; otherwise there is none. Returns true if there is
    /// a base. A neighbour that does not know this end's new prefix calls under the former one.
    pub fn met(&mut self, now: Time, at: &Endpoints) -> bool {
        if self.base.as_ref().is_some_and(|base| base.ends == *at) {
            return true;
        }
        let base = self.base_at(now, at);
        self.set_base(now, base);
        self.has_base()
    }

    fn base_at(&self, now: Time, at: &Endpoints) -> Option<RendezvousBase> {
        let ends = self.wall.next(now);
        let former = self.former.iter().filter(|(_, until)| now < *until);
        let former = former.map(|(prefix, _)| ShiftAnnouncement { prefix: *prefix, ..self.own });
        let owns: Vec<ShiftAnnouncement> = core::iter::once(self.own).chain(former).collect();
        self.epochs(now).find_map(|known| {
            let under =
                |own| self.schedules().map(move |schedule| self.ends_from(own, schedule, known));
            let there = owns.iter().copied().flat_map(under).find(|there| {
                there.remote == at.remote && (at.local.is_none() || at.local == there.local)
            });
            Some(RendezvousBase { epochs: EpochClock { known, ends }, ends: there? })
        })
    }

    fn set_base(&mut self, now: Time, base: Option<RendezvousBase>) {
        let before = self.base_identifier();
        self.base = base;
        if let Some(before) = before.filter(|before| self.base_identifier() != Some(*before)) {
            self.left = Some((before, now + LEFT_KEPT));
        }
    }

    fn base_identifier(&self) -> Option<u64> {
        let local = self.base.as_ref()?.ends.local?;
        ShiftAnnouncement::split(local).map(|(_, identifier)| identifier)
    }

    /// True if the last handshake used addresses of this schedule.
    pub fn has_base(&self) -> bool {
        self.base.is_some()
    }

    /// The addresses of data that does not shift: those of the last handshake, or after a shift
    /// those of the current epoch. None if the last handshake was elsewhere.
    pub fn base(&mut self, now: Time, shifts: bool) -> Option<Endpoints> {
        let present = self.ends(&self.first, self.base.as_ref()?.epochs.at(now));
        if let Some(base) = self.base.as_mut().filter(|_| shifts) {
            base.ends = present;
        }
        Some(self.base.as_ref()?.ends)
    }

    /// Destinations of a handshake's requests, in order, on a link that is up and does not shift.
    /// Every second one uses the addresses of `data`, which firewalls let through.
    pub fn calls_beside(&self, now: Time, data: Endpoints) -> Vec<Endpoints> {
        let beside = self.base.as_ref().map_or(self.wall.at(now), |base| base.epochs.at(now));
        let turn = |turn| if turn % 2 == 0 { self.call(turn, beside) } else { data };
        (0..TURNS).map(turn).collect()
    }

    /// The addresses of an epoch for a request. Like the session's requests, the third and fourth
    /// of every four use the second network secret.
    fn call(&self, turn: usize, epoch: u32) -> Endpoints {
        let other = self.other.as_ref().filter(|_| turn % 4 >= 2);
        self.ends(other.unwrap_or(&self.first), epoch)
    }

    /// Destinations of a handshake's requests, in order.
    ///
    /// The fixed endpoint comes last, but early if the last handshake used it: `last`, which is
    /// None at a base. It may be the neighbour's only way in. This end may know of it only because
    /// the neighbour called.
    pub fn calls(&self, now: Time, last: Option<Endpoints>) -> Vec<Endpoints> {
        let wall = self.wall.at(now);
        let base = self.base.as_ref().map(|base| base.epochs.at(now));
        // An expired scheduled address is no fixed endpoint.
        let is_elsewhere = |at: &Endpoints| {
            ShiftAnnouncement::split(at.remote).is_none_or(|(prefix, _)| prefix != self.peer.prefix)
        };
        let last = last.filter(|last| base.is_none() && is_elsewhere(last));
        // First the epoch that the neighbour's clock showed last; then the current one and its
        // neighbours.
        let mut epochs: Vec<u32> = base.into_iter().collect();
        for epoch in [wall, wall.saturating_add(1), wall.saturating_sub(1)] {
            if !epochs.contains(&epoch) {
                epochs.push(epoch);
            }
        }
        // Each secret is tried with each epoch, by requests in one piece and in parts.
        const ORDER: [usize; TURNS] = [0, 1, 0, 2, 2, 3, 1, 3];
        let tried = if last.is_some() { TRIED_AFTER } else { TURNS / 2 };
        let stays = self.fallback.or(last);
        let turn = |(turn, place): (usize, &usize)| match stays.filter(|_| turn >= tried) {
            Some(stays) => stays,
            None => self.call(turn, epochs[place % epochs.len()]),
        };
        ORDER.iter().enumerate().map(turn).collect()
    }

    /// True if a datagram from this source uses a rendezvous address of the neighbour.
    pub fn knows(&self, now: Time, remote: SocketAddr) -> bool {
        let Some((prefix, identifier)) = ShiftAnnouncement::split(remote) else { return false };
        let is = |schedule: &ShiftSchedule, epoch| {
            schedule.identifier(self.end.other(), epoch, 0) == identifier
        };
        prefix == self.peer.prefix
            && remote.port() == self.peer.port
            && self.epochs(now).any(|epoch| self.schedules().any(|schedule| is(schedule, epoch)))
    }

    /// Appends this end's interface identifiers at which frames are accepted.
    pub fn accepted(&self, now: Time, out: &mut Vec<u64>) {
        for schedule in self.schedules() {
            out.extend(self.epochs(now).map(|epoch| schedule.identifier(self.end, epoch, 0)));
        }
        let left = self.left.filter(|(_, until)| now < *until);
        out.extend(
            self.base_identifier().into_iter().chain(left.map(|(identifier, _)| identifier)),
        );
    }

    /// When the accepted addresses change next.
    pub fn poll_timeout(&self, now: Time) -> Time {
        let base = self.base.as_ref().map(|base| base.epochs.next(now));
        let left = self.left.map(|(_, until)| until).filter(|until| now < *until);
        [base, left].into_iter().flatten().fold(self.wall.next(now), Time::min)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    const UNIX_MS: u64 = 1_800_000_123_000;
    const PLACES: [([u8; 8], u16); 2] =
        [([0x20, 1, 0x0d, 0xb8, 0, 0, 0, 1], 7_400), ([0x20, 1, 0x0d, 0xb8, 0, 0, 0, 2], 7_401)];
    const NOW: Time = Time(77_000_000_000);

    fn secret(at: usize) -> Secret<32> {
        let all = super::super::schedule::vectors::vector("shift", "meeting");
        Secret::new(all[at * 32..][..32].try_into().unwrap())
    }

    /// Both ends. The clock of the second is ahead.
    fn pair(ahead_s: i64, other: bool) -> [Rendezvous; 2] {
        let [a, b] = PLACES;
        let secrets = || (secret(0), other.then(|| secret(1)));
        let ahead = UNIX_MS.saturating_add_signed(ahead_s * 1_000);
        [
            Rendezvous::new(true, (a, b), &secrets(), NOW, UNIX_MS),
            Rendezvous::new(false, (b, a), &secrets(), NOW, ahead),
        ]
    }

    fn takes(end: &Rendezvous, now: Time, at: SocketAddr) -> bool {
        let mut all = Vec::new();
        end.accepted(now, &mut all);
        ShiftAnnouncement::split(at).is_some_and(|(_, identifier)| all.contains(&identifier))
    }

    /// The index and addresses of the first end's request that reaches the second end.
    fn meet(ends: &mut [Rendezvous; 2], now: Time) -> Option<(usize, Endpoints)> {
        let calls = ends[0].calls(now, None);
        let found = calls.into_iter().enumerate().find(|(_, to)| takes(&ends[1], now, to.remote));
        let (turn, to) = found?;
        let back = Endpoints { local: Some(to.remote), remote: to.local? };
        assert!(takes(&ends[0], now, back.remote), "the answer is taken in");
        assert!(ends[1].met(now, &back) && ends[0].met(now, &to));
        Some((turn, to))
    }

    #[test]
    fn data_that_does_not_shift_leaves_from_another_prefix_as_soon_as_there_is_one() {
        let mut ends = pair(0, false);
        let (_, met) = meet(&mut ends, NOW).unwrap();
        let prefix = [0x20, 1, 0x0d, 0xb8, 0, 9, 0, 1];
        ends[0].move_to(NOW, prefix);
        let base = ends[0].base(NOW, false).unwrap();
        let parts = |at: Endpoints| ShiftAnnouncement::split(at.local.unwrap()).unwrap();
        assert_eq!(parts(base), (prefix, parts(met).1));
        assert_eq!(base.remote, met.remote);
        assert!(ends[0].has_base() && takes(&ends[0], NOW, base.local.unwrap()));
        assert!(ends[0].calls(NOW, None).iter().all(|to| parts(*to).0 == prefix));
    }

    #[test]
    fn a_call_under_the_former_prefix_is_met_there_for_half_a_minute() {
        let [_, far] = pair(0, false);
        let call = far.calls(NOW, None)[0];
        let at = Endpoints { local: Some(call.remote), remote: call.local.unwrap() };
        let moved = || {
            let [mut end, _] = pair(0, false);
            end.move_to(NOW, [0x20, 1, 0x0d, 0xb8, 0, 8, 0, 1]);
            end.move_to(NOW, [0x20, 1, 0x0d, 0xb8, 0, 9, 0, 1]);
            end
        };
        let last = NOW + FORMER_KEPT - Duration::from_millis(1);
        let mut end = moved();
        assert!(end.met(last, &at) && end.has_base() && end.met(last, &at));
        assert_eq!(end.base(last, false), Some(at), "data goes where the neighbour was met");
        assert_eq!(end.base(last, true), Some(end.calls(last, None)[0]), "shifts use the new one");
        assert!(!moved().met(NOW + FORMER_KEPT, &at));
        let mut end = moved();
        for last in 0..FORMER_MAX as u8 {
            end.move_to(NOW, [0x20, 1, 0x0d, 0xb8, 0, 7, 0, last]);
        }
        assert!(!end.met(NOW, &at) && end.former.len() == FORMER_MAX);
    }

    #[test]
    fn identifiers_are_those_of_the_document() {
        let ends = pair(0, false);
        let mut made = Vec::new();
        for epoch in about((UNIX_MS / 600_000) as u32) {
            for end in [ShiftRole::Leading, ShiftRole::Following] {
                made.extend(ends[0].first.identifier(end, epoch, 0).to_be_bytes());
            }
        }
        assert_eq!(made, super::super::schedule::vectors::vector("shift", "rendezvous"));
        let id = |at: usize| u64::from_be_bytes(made[at * 8..][..8].try_into().unwrap());
        let mut all = Vec::new();
        ends[0].accepted(NOW, &mut all);
        assert_eq!(all, [id(0), id(2), id(4)]);
        let call = ends[0].calls(NOW, None)[0];
        let at = |(prefix, port), id| Some(place((prefix, port)).endpoint(id));
        assert_eq!((call.local, Some(call.remote)), (at(PLACES[0], id(2)), at(PLACES[1], id(3))));
    }

    #[test]
    fn clocks_that_differ_by_nine_minutes_meet_at_once_and_by_eighteen_soon() {
        for (ahead_s, turns) in
            [(0, 0..1), (540, 0..1), (-540, 0..1), (1_080, 0..2), (-1_080, 0..5)]
        {
            let met = meet(&mut pair(ahead_s, false), NOW).map(|(turn, _)| turn);
            assert!(met.is_some_and(|turn| turns.contains(&turn)), "{ahead_s} s: {met:?}");
        }
        for ahead_s in [3_600, -3_600] {
            assert_eq!(meet(&mut pair(ahead_s, false), NOW), None, "{ahead_s} s");
        }
    }

    #[test]
    fn a_known_endpoint_is_called_after_all_others() {
        let [mut end, _] = pair(0, false);
        let fallback = Endpoints::from("[2001:db8::9]:7400".parse::<SocketAddr>().unwrap());
        end.fallback = Some(fallback);
        let calls: Vec<bool> = end.calls(NOW, None).iter().map(|to| *to == fallback).collect();
        assert_eq!(calls, [false, false, false, false, true, true, true, true]);
        assert!(!end.met(NOW, &fallback) && !end.has_base());
        // After a handshake at the fixed endpoint, it is called after two requests, even if only
        // the neighbour knows it.
        for known in [Some(fallback), None] {
            end.fallback = known;
            let calls = end.calls(NOW, Some(fallback));
            let calls: Vec<bool> = calls.iter().map(|to| *to == fallback).collect();
            assert_eq!(calls, [[false; 2], [true; 2], [true; 2], [true; 2]].concat());
        }
        let over = Endpoints { remote: place(PLACES[1]).endpoint(7), ..fallback };
        assert!(!end.calls(NOW, Some(over)).contains(&over));
        let mut ends = pair(0, false);
        let (_, to) = meet(&mut ends, NOW).unwrap();
        assert!(!ends[0].calls(NOW, Some(fallback)).contains(&fallback), "both met at {to:?}");
    }

    #[test]
    fn both_secrets_of_the_network_are_taken_in_and_called_under() {
        let both = pair(0, true);
        for (number, turns) in [(0, [true, true, false, false]), (1, [false, false, true, true])] {
            let [a, b] = PLACES;
            let one = Rendezvous::new(false, (b, a), &(secret(number), None), NOW, UNIX_MS);
            let calls = both[0].calls(NOW, None);
            let known: Vec<bool> = calls.iter().map(|to| takes(&one, NOW, to.remote)).collect();
            assert_eq!(known, [turns, turns].concat());
            let back = one.calls(NOW, None)[0];
            assert!(takes(&both[0], NOW, back.remote) && both[0].knows(NOW, back.local.unwrap()));
        }
        let [mut end, _] = pair(0, true);
        end.set_secrets(&(secret(1), None));
        let gone = pair(0, false)[1].calls(NOW, None)[0];
        assert!(!takes(&end, NOW, gone.remote), "the former secret is invalid");
    }

    #[test]
    fn a_clock_that_is_set_leaves_the_base_and_later_calls_begin_there() {
        let mut ends = pair(0, false);
        let (_, to) = meet(&mut ends, NOW).unwrap();
        assert!(ends[1].set_clock(NOW, UNIX_MS + 3_600_000));
        let later = NOW + Duration::from_secs(700);
        assert!(!ends[1].set_clock(later, UNIX_MS + 4_300_000), "the clock runs on");
        // Data that does not shift keeps its addresses. Data that has shifted counts epochs from
        // the base.
        assert_eq!(ends[0].base(later, false), Some(to));
        assert!(takes(&ends[1], later, to.remote));
        assert_ne!(ends[0].base(later, true), Some(to));
        let (turn, _) = meet(&mut ends, later).unwrap();
        assert_eq!(turn, 0);
        ends.reverse();
        assert_eq!(meet(&mut ends, later).map(|(turn, _)| turn), Some(0));
    }

    #[test]
    fn requests_of_a_live_link_go_where_its_data_does_too() {
        let mut ends = pair(0, false);
        let (_, to) = meet(&mut ends, NOW).unwrap();
        let later = NOW + EPOCH;
        let calls = ends[0].calls_beside(later, to);
        assert!(calls.iter().skip(1).step_by(2).all(|call| *call == to));
        assert!(calls.iter().step_by(2).all(|call| takes(&ends[1], later, call.remote)));
        let back = |to: &Endpoints| Endpoints { local: Some(to.remote), remote: to.local.unwrap() };
        assert!(ends[1].met(later, &back(&calls[0])));
        // Frames in transit to the previous base are accepted for a while.
        assert!(takes(&ends[1], later, to.remote));
        assert!(!takes(&ends[1], later + 2 * EPOCH, to.remote));
    }

    #[test]
    fn an_address_of_two_epochs_is_no_place_to_meet() {
        let mut ends = pair(0, false);
        let calls = ends[0].calls(NOW, None);
        let mixed = Endpoints { local: calls[0].local, remote: calls[1].remote };
        assert_ne!(calls[0], calls[1]);
        assert!(!ends[0].met(NOW, &mixed) && ends[0].met(NOW, &calls[1]));
        let mut elsewhere = calls[0].remote;
        elsewhere.set_port(7_402);
        assert!(ends[0].knows(NOW, calls[0].remote) && !ends[0].knows(NOW, elsewhere));
    }

    proptest! {
        #[test]
        fn epochs_follow_each_other_from_any_time(
            at: u32, unix_ms: u64, passed_s in 0..9_999_999u64,
        ) {
            let (now, unix_ms) = (Time::from_millis(at.into()), unix_ms >> 20);
            let epochs = EpochClock::of(now, unix_ms);
            let later = now + Duration::from_secs(passed_s);
            let known = (unix_ms + passed_s * 1_000) / 600_000;
            prop_assert_eq!(u64::from(epochs.at(later)), known.min(u32::MAX.into()));
            let next = epochs.next(later);
            prop_assert!(later < next && next <= later + EPOCH);
            if known < u64::from(u32::MAX) - 1 {
                prop_assert_eq!(epochs.at(next), epochs.at(later) + 1);
            }
            prop_assert_eq!(epochs.at(Time(next.0 - 1)), epochs.at(later));
        }

        /// At any clock difference, an end accepts at most three epochs per secret, and those of
        /// the base.
        #[test]
        fn few_addresses_are_taken_in(ahead_s in -1_000..1_000i64, passed_s in 0..99_999u64) {
            let mut ends = pair(ahead_s, true);
            let met = meet(&mut ends, NOW).is_some();
            let later = NOW + Duration::from_secs(passed_s);
            for end in &ends {
                let mut all = Vec::new();
                end.accepted(later, &mut all);
                prop_assert!(all.len() <= 14, "{}", all.len());
            }
            prop_assert!(met);
        }
    }
}
