//! Links are up while nothing is wrong with them, and hosts that call each other regularly get
//! answers. Both hold soon after each fault, with and without shifting addresses.

use core::time::Duration;

use shoal_wire::Time;

pub(crate) const DOWN: &str = "a link is up while nothing is wrong with it";
pub(crate) const SILENT: &str = "data flows while nothing is wrong";

/// Longest time for which a link may be down, or a host unanswered, after the last fault began or
/// ended.
const MOST: Duration = Duration::from_secs(20);

/// State of one link, or of one host that calls another.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Outage {
    /// Start of the outage.
    since: Option<Time>,
    looked: Time,
    /// Total time of outages while nothing was wrong.
    pub(crate) total: Duration,
}

impl Outage {
    /// Checks the state. `calm` is the time since when nothing is wrong; None while something is.
    pub(crate) fn look(
        &mut self,
        now: Time,
        is_up: bool,
        calm: Option<Time>,
    ) -> Result<(), Duration> {
        let before = core::mem::replace(&mut self.looked, now);
        if is_up {
            self.since = None;
            return Ok(());
        }
        let since = *self.since.get_or_insert(now);
        let Some(calm) = calm else { return Ok(()) };
        self.total += now.since(before.max(since).max(calm));
        let lasts = now.since(since.max(calm));
        if lasts > MOST { Err(lasts) } else { Ok(()) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_outage_counts_from_when_nothing_is_wrong() {
        let (mut outage, start) = (Outage::default(), Time::from_millis(1_000));
        let at = |seconds| start + Duration::from_secs(seconds);
        assert_eq!(outage.look(at(0), true, Some(start)), Ok(()));
        assert_eq!(outage.look(at(1), false, None), Ok(()));
        assert_eq!(outage.look(at(40), false, None), Ok(()));
        assert_eq!(outage.look(at(50), false, Some(at(45))), Ok(()));
        assert_eq!(outage.total, Duration::from_secs(5));
        assert_eq!(outage.look(at(70), false, Some(at(45))), Err(Duration::from_secs(25)));
        assert_eq!(outage.look(at(71), true, Some(at(45))), Ok(()));
        assert_eq!(outage.look(at(72), false, Some(at(45))), Ok(()));
        assert_eq!(outage.total, Duration::from_secs(25));
    }
}
