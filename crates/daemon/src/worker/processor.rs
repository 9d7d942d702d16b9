//! The class of this machine's processor.

use std::hint::black_box;
use std::sync::OnceLock;
use std::time::Instant;

use shoal_crypto::{AeadKey, Processor, Suite};

/// Rounds of each measurement, 16 seals in each: less than a millisecond.
const ROUNDS: u64 = 40;
/// Plausible nanoseconds for a round of 16 seals. Other values come from a clock that jumped, or
/// from another program.
const ROUND_NS: std::ops::RangeInclusive<u128> = 160..=1_000_000;

/// The class of this machine, measured once.
pub fn processor() -> Processor {
    static FOUND: OnceLock<Processor> = OnceLock::new();
    *FOUND.get_or_init(|| refine(Processor::here(), seal_ns))
}

/// Two states side by side cost less than one on some processors that have only AES-NI. If their
/// costs can't be measured, one state is used.
fn refine(class: Processor, measure: impl Fn(Suite) -> Option<u128>) -> Processor {
    if class != Processor::Aes {
        return class;
    }
    match (measure(Suite::Aegis256X2), measure(Suite::Aegis256)) {
        (Some(pair), Some(one)) if pair < one => Processor::AesPairs,
        _ => Processor::Aes,
    }
}

/// Nanoseconds for sealing 1,400 bytes: the best of many short rounds, since other programs disturb
/// few of them.
fn seal_ns(suite: Suite) -> Option<u128> {
    let key = AeadKey::new(suite, &[7; 32]);
    let (mut body, mut tag) = ([0; 1_400], [0; 16]);
    let mut round = |first: u64| {
        let start = Instant::now();
        for counter in first..first + 16 {
            key.seal(counter, &[1; 8], black_box(&mut body), &mut tag);
        }
        start.elapsed().as_nanos()
    };
    let rounds = (0..ROUNDS).map(|n| round(16 * n)).filter(|ns| ROUND_NS.contains(ns));
    Some(rounds.min()? / 16)
}

#[cfg(test)]
mod tests {
    use shoal_crypto::SuiteSupport;

    use super::*;

    #[test]
    fn only_plain_aes_is_measured() {
        let faster = |suite| Some(if suite == Suite::Aegis256X2 { 200 } else { 250 });
        assert_eq!(refine(Processor::Aes, faster), Processor::AesPairs);
        let slower = |suite| Some(if suite == Suite::Aegis256X2 { 262 } else { 238 });
        assert_eq!(refine(Processor::Aes, slower), Processor::Aes);
        assert_eq!(refine(Processor::Aes, |_| None), Processor::Aes);
        for class in [Processor::Plain, Processor::Vaes256, Processor::Vaes512, Processor::ArmAes] {
            assert_eq!(refine(class, |_| panic!("measured")), class);
        }
    }

    /// The suite that the table selects for this machine is among its fastest.
    #[test]
    fn the_table_knows_this_machine() {
        let processor = processor();
        let own = SuiteSupport { processor, suites: processor.suites() };
        // The best of several measurements: other tests disturb it for longer than a round.
        let best = |suite| (0..20).filter_map(|_| seal_ns(suite)).min().expect("a calm round");
        let measured: Vec<_> = own.suites.iter().map(|suite| (best(suite), suite)).collect();
        println!("{}:", processor.name());
        for (ns, suite) in &measured {
            println!("  {:18} {ns:5} ns, table {:5}", suite.name(), processor.cost_ns(*suite));
        }
        let least = measured.iter().map(|(ns, _)| *ns).min().expect("there are suites");
        let taken = own.agree(own).expect("a machine has suites in common with itself");
        let (ns, _) = measured.iter().find(|(_, suite)| *suite == taken).expect("measured above");
        assert!(*ns <= least * 3 / 2, "{} takes {ns} ns, the best {least}", taken.name());
    }
}
