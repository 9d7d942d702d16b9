//! Credits: how many bytes of existing files this host reads and hashes for one sender.
//!
//! An offer of an existing file makes this host read the file, and costs its sender nothing. So
//! each sender has a credit in bytes. The offer takes the file's size from it, and the size comes
//! back when the sender's hash agrees. Bytes that the sender sends add to its credit, and so does
//! time.

use std::collections::BTreeMap;
use std::time::{Duration, Instant};

/// Maximum number of bytes of failed comparisons that one sender may cause at once. Hashing them
/// takes one thread a few seconds.
const MOST: i64 = 4 << 30;
/// Bytes that time adds to a credit in each second: some percent of a thread.
const PER_SECOND: u64 = 32 << 20;
/// Most bytes that a disk thread hashes in a second.
const HASHED_PER_SECOND: u64 = 1 << 30;
/// Senders with a credit of their own; all others share one.
const SENDERS_MAX: usize = 1_024;

/// Credits of senders that have less than the full credit.
#[derive(Debug, Default)]
pub struct Credits {
    of: BTreeMap<String, Credit>,
}

/// Bytes of credit at a time; negative after a file that is larger than the credit.
#[derive(Clone, Copy, Debug)]
struct Credit {
    bytes: i64,
    at: Instant,
}

impl Credit {
    fn now(self, now: Instant) -> i64 {
        let passed_ms = now.saturating_duration_since(self.at).as_millis();
        let earned = passed_ms.saturating_mul(u128::from(PER_SECOND)) / 1_000;
        self.bytes.saturating_add(i64::try_from(earned).unwrap_or(i64::MAX)).min(MOST)
    }
}

impl Credits {
    /// Takes the bytes of an existing file from the sender's credit.
    ///
    /// Errors: the credit is used up; holds the time until it isn't.
    pub fn take(&mut self, now: Instant, from: &str, bytes: u64) -> Result<(), Duration> {
        let have = self.of.get(self.key(from)).map_or(MOST, |credit| credit.now(now));
        if have <= 0 {
            let debt_ms = (have.unsigned_abs() + 1).saturating_mul(1_000) / PER_SECOND;
            return Err(Duration::from_millis(debt_ms + 1));
        }
        self.set(now, from, have.saturating_sub_unsigned(bytes));
        Ok(())
    }

    /// Adds to a sender's credit, since its hash agreed or it sent these bytes.
    pub fn give(&mut self, now: Instant, from: &str, bytes: u64) {
        if let Some(credit) = self.of.get(self.key(from)) {
            self.set(now, from, credit.now(now).saturating_add_unsigned(bytes));
        }
    }

    /// Gives back bytes of a comparison that ended early, after `took`: those that can't have been
    /// hashed in that time.
    pub fn ended(&mut self, now: Instant, from: &str, bytes: u64, took: Duration) {
        let hashed = took.as_millis().saturating_mul(u128::from(HASHED_PER_SECOND)) / 1_000;
        self.give(now, from, bytes.saturating_sub(u64::try_from(hashed).unwrap_or(u64::MAX)));
    }

    /// The sender's key in the table; one key for all senders that don't fit.
    fn key<'a>(&self, from: &'a str) -> &'a str {
        let known = self.of.contains_key(from) || self.of.len() < SENDERS_MAX;
        if known { from } else { "" }
    }

    fn set(&mut self, now: Instant, from: &str, bytes: i64) {
        if self.of.len() >= SENDERS_MAX {
            self.of.retain(|_, credit| credit.now(now) < MOST);
        }
        let key = self.key(from).to_string();
        self.of.insert(key, Credit { bytes: bytes.min(MOST), at: now });
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const GIB: u64 = 1 << 30;

    #[test]
    fn a_sender_without_proof_is_delayed_and_no_other_is() {
        let (mut credits, began) = (Credits::default(), Instant::now());
        let mut now = began;
        let mut hashed = 0;
        // An offer every 10 ms for an hour, each of an existing file of 1 GiB.
        while now < began + Duration::from_secs(3_600) {
            hashed += u64::from(credits.take(now, "eve", GIB).is_ok()) * GIB;
            now += Duration::from_millis(10);
        }
        assert!((100 * GIB..120 * GIB).contains(&hashed), "{} GiB", hashed / GIB);
        assert!(credits.take(now, "alice", 100 * GIB).is_ok());
        // Bob's large files agree, so their bytes come back before the next offer.
        for _ in 0..1_000 {
            credits.take(now, "bob", 16 * GIB).unwrap();
            assert!(credits.take(now, "bob", 1).is_err(), "one such file at a time");
            credits.give(now, "bob", 16 * GIB);
        }
    }

    #[test]
    fn a_negative_credit_ends_on_time_or_by_bytes_sent() {
        let (mut credits, now) = (Credits::default(), Instant::now());
        credits.take(now, "alice", 8 * GIB).unwrap();
        let wait = credits.take(now, "alice", 1).unwrap_err();
        assert!((128..130).contains(&wait.as_secs()), "{wait:?}");
        assert!(credits.take(now + wait, "alice", 1).is_ok());
        credits.give(now, "alice", 5 * GIB);
        assert!(credits.take(now, "alice", 1).is_ok());
        // A comparison given up after a second costs at most a second of hashing.
        credits.take(now, "bob", 20 * GIB).unwrap();
        credits.ended(now, "bob", 20 * GIB, Duration::from_secs(1));
        credits.take(now, "bob", 3 * GIB).unwrap();
        assert!(credits.take(now, "bob", 1).is_err());
    }

    #[test]
    fn the_table_is_bounded() {
        let (mut credits, now) = (Credits::default(), Instant::now());
        for n in 0..2 * SENDERS_MAX {
            let _ = credits.take(now, &format!("h{n}"), GIB);
        }
        assert!(credits.of.len() <= SENDERS_MAX + 1);
        let later = now + Duration::from_secs(3_600);
        credits.take(later, "alice", GIB).unwrap();
        assert_eq!(credits.of.len(), 1);
    }
}
