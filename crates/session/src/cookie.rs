//! Cookies: under load, a request must prove that its sender receives at the address it writes
//! from.

use core::time::Duration;

use shoal_crypto::{Rng, Secret, ct_eq, kdf};
use shoal_wire::{Time, shake};

use crate::config::Endpoint;

/// Lifetime of a cookie secret; a cookie is valid for one to two lifetimes (WireGuard's figure).
pub const COOKIE_AGE: Duration = Duration::from_secs(120);

/// Cookies sent per second. More answers would cost a router the work that a flood aims at.
const ANSWERS_PER_S: u64 = 10_000;
/// Cookies sent at once after a pause.
const ANSWERS_BURST: u64 = 512;

pub type Cookie = [u8; shake::COOKIE_LEN];

/// The two secrets from which cookies are made.
pub struct Cookies {
    current: Secret<32>,
    previous: Secret<32>,
    since: Time,
    rng: Rng,
    /// Time at which the next answer would be due at an even rate.
    answer_at: Time,
    /// Prefix of this node under which a cookie is valid for its holder's whole /64.
    wide: Option<[u8; 8]>,
}

impl Cookies {
    /// New secrets, from `seed`.
    pub fn new(seed: [u8; 32], now: Time) -> Cookies {
        let mut rng = Rng::new(seed);
        let current = Secret::new(rng.array());
        let previous = Secret::new(rng.array());
        Cookies { current, previous, since: now, rng, answer_at: Time::ZERO, wide: None }
    }

    /// A copy with new secrets, from `seed`.
    pub fn anew(&self, seed: [u8; 32], now: Time) -> Cookies {
        Cookies { wide: self.wide, ..Cookies::new(seed, now) }
    }

    fn refresh(&mut self, now: Time) {
        // At most two rounds: after a long pause both secrets must be new.
        for _ in 0..2 {
            if now.since(self.since) >= COOKIE_AGE {
                let fresh = Secret::new(self.rng.array());
                self.previous = core::mem::replace(&mut self.current, fresh);
                self.since = (self.since + COOKIE_AGE).max(now - COOKIE_AGE);
            }
        }
    }

    /// Makes cookies for requests to addresses under this prefix valid for the sender's whole /64.
    pub fn set_wide_prefix(&mut self, prefix: Option<[u8; 8]>) {
        self.wide = prefix;
    }

    fn make<E: Endpoint>(&self, secret: &Secret<32>, from: &E) -> Cookie {
        let wide = self.wide.is_some_and(|prefix| from.is_to(&prefix));
        let (bytes, len) = if wide { from.wide_place() } else { from.place() };
        let long = kdf(secret.expose(), "shoal v1 cookie", &[&bytes[..len]]);
        let mut cookie = [0; shake::COOKIE_LEN];
        cookie.copy_from_slice(&long[..shake::COOKIE_LEN]);
        cookie
    }

    /// The cookie for the holder of endpoint `from`.
    pub fn issue<E: Endpoint>(&mut self, now: Time, from: &E) -> Cookie {
        self.refresh(now);
        self.make(&self.current, from)
    }

    /// True if a cookie may be sent at this time. Counts it if so.
    pub fn may_answer(&mut self, now: Time) -> bool {
        const EVERY: Duration = Duration::from_nanos(1_000_000_000 / ANSWERS_PER_S);
        const AHEAD: Duration = Duration::from_nanos(1_000_000_000 / ANSWERS_PER_S * ANSWERS_BURST);
        let at = self.answer_at.max(now);
        let may = at < now + AHEAD;
        if may {
            self.answer_at = at + EVERY;
        }
        may
    }

    /// The two valid cookies of `from`, the newest first.
    pub fn issued<E: Endpoint>(&mut self, now: Time, from: &E) -> [Cookie; 2] {
        self.refresh(now);
        [&self.current, &self.previous].map(|secret| self.make(secret, from))
    }

    /// True if `cookie` was issued to `from` and is still valid.
    pub fn holds<E: Endpoint>(&mut self, now: Time, from: &E, cookie: &Cookie) -> bool {
        if *cookie == Cookie::default() {
            // The request has no cookie. This check needs no constant time.
            return false;
        }
        let [new, old] = self.issued(now, from);
        ct_eq(&new, cookie) | ct_eq(&old, cookie)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Endpoints;
    use core::net::SocketAddr;

    #[test]
    fn answers_have_a_budget() {
        let mut cookies = Cookies::new([1; 32], Time::ZERO);
        let mut given = 0;
        for ms in 0..2_000_u64 {
            let now = Time::ZERO + Duration::from_millis(ms);
            given += (0..40).filter(|_| cookies.may_answer(now)).count() as u64;
        }
        assert!((19_000..=20_600).contains(&given), "{given}");
    }

    #[test]
    fn a_cookie_holds_for_its_address_and_its_time() {
        let mut cookies = Cookies::new([1; 32], Time::ZERO);
        let at = |s: &str| s.parse::<SocketAddr>().unwrap();
        let now = Time::from_millis(1_000);
        let cookie = cookies.issue(now, &at("192.0.2.1:5"));
        assert!(cookies.holds(now, &at("192.0.2.1:5"), &cookie));
        assert!(!cookies.holds(now, &at("192.0.2.1:6"), &cookie));
        assert!(!cookies.holds(now, &at("192.0.2.2:5"), &cookie));
        assert!(!cookies.holds(now, &at("192.0.2.1:5"), &[0; 12]));
        assert!(cookies.holds(now + COOKIE_AGE, &at("192.0.2.1:5"), &cookie));
        assert!(!cookies.holds(now + 3 * COOKIE_AGE, &at("192.0.2.1:5"), &cookie));

        let six = cookies.issue(now, &at("[2001:db8::1]:5"));
        assert!(cookies.holds(now, &at("[2001:db8::1]:5"), &six));
        assert!(!cookies.holds(now, &at("[2001:db8::1]:9"), &six));
        assert!(!cookies.holds(now, &at("[2001:db8::ffff]:5"), &six));
        let ends = |local, remote| Endpoints { local: Some(at(local)), remote: at(remote) };
        cookies.set_wide_prefix(Some([0x20, 0x01, 0x0d, 0xb8, 0, 0, 0, 9]));
        for (local, holds) in [("[2001:db8:0:9::7]:5", true), ("[2001:db8:0:8::7]:5", false)] {
            let wide = cookies.issue(now, &ends(local, "[2001:db8::1]:5"));
            assert_eq!(cookies.holds(now, &ends(local, "[2001:db8::2]:5"), &wide), holds);
            assert!(!cookies.holds(now, &ends(local, "[2001:db8:0:1::1]:5"), &wide));
        }
        let mapped = cookies.issue(now, &at("[::ffff:192.0.2.1]:5"));
        assert!(cookies.holds(now, &at("192.0.2.1:5"), &mapped));
    }
}
