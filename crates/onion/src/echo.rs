//! Delays that mixes add to an echo and its answer, as the origin computes them.

use core::time::Duration;

use shoal_wire::leg::RELAYS_MAX;

/// Most hops of a circuit: its relays, and the destination.
const HOPS_MAX: usize = RELAYS_MAX as usize + 1;

/// Delays of one echo and of its answer at each hop on the way.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct EchoDelays {
    /// Delays of echo and answer. An echo does not wait at the hop that answers.
    each: [[Duration; 2]; HOPS_MAX],
    /// One bit for each hop whose delays depend on its own clock.
    clocked: u8,
}

impl EchoDelays {
    /// Sets the delays of echo and answer at a hop, counted from 1. None: they depend on the hop's
    /// clock.
    pub(crate) fn set(&mut self, hop: usize, delays: Option<(Duration, Duration)>) {
        let Some(at) = hop.checked_sub(1).filter(|at| *at < HOPS_MAX) else { return };
        match delays {
            Some((there, back)) => self.each[at] = [there, back],
            None => self.clocked |= 1 << at,
        }
    }

    /// Delays of echo and answer at a hop, counted from 1. None if they depend on the hop's clock.
    pub fn at(&self, hop: usize) -> Option<[Duration; 2]> {
        let at = hop.checked_sub(1)?;
        let delays = self.each.get(at).copied()?;
        (self.clocked >> at & 1 == 0).then_some(delays)
    }

    /// Sum of all delays. None if one depends on a hop's clock.
    pub fn total(&self) -> Option<Duration> {
        (self.clocked == 0).then(|| self.each.iter().flatten().sum())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_hop_with_its_own_clock_hides_the_sum_and_no_other_hop() {
        let ms = Duration::from_millis;
        let mut delays = EchoDelays::default();
        assert_eq!((delays.total(), delays.at(1)), (Some(ms(0)), Some([ms(0), ms(0)])));
        delays.set(1, Some((ms(3), ms(4))));
        delays.set(6, Some((ms(1), ms(2))));
        assert_eq!((delays.total(), delays.at(6)), (Some(ms(10)), Some([ms(1), ms(2)])));
        delays.set(2, None);
        assert_eq!((delays.total(), delays.at(2)), (None, None));
        assert_eq!(delays.at(1), Some([ms(3), ms(4)]));
        delays.set(7, Some((ms(9), ms(9))));
        assert_eq!((delays.at(0), delays.at(7)), (None, None));
    }
}
