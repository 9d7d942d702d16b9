//! Processor classes, the cost of each suite on them, and the suite that two classes agree on.

use crate::Suite;

/// A class of processors, by the number of blocks that one AES instruction encrypts. Handshakes
/// carry the values. Both ends have the cost table of all classes
/// (docs/design/decisions/0005-suites.md).
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
#[repr(u8)]
pub enum Processor {
    /// No AES instructions, or none that the libraries use.
    Plain = 1,
    /// One block, with two pipelines or slow instructions: x86-64 with AES-NI and AVX. Two states
    /// side by side cost less than one.
    AesPairs = 6,
    /// One block: x86-64 with AES-NI and AVX.
    Aes = 2,
    /// Two blocks: x86-64 with VAES and AVX2.
    Vaes256 = 3,
    /// Four blocks: x86-64 with VAES and AVX-512.
    Vaes512 = 4,
    /// One block: ARMv8 with its AES extension.
    ArmAes = 5,
}

impl Processor {
    /// All classes.
    pub const ALL: [Processor; 6] = [
        Processor::Plain,
        Processor::Aes,
        Processor::AesPairs,
        Processor::Vaes256,
        Processor::Vaes512,
        Processor::ArmAes,
    ];

    /// Class of this machine by its instruction sets. Only a measurement can tell
    /// [`Processor::AesPairs`] from [`Processor::Aes`], and this crate has no clock.
    pub fn here() -> Processor {
        #[cfg(target_arch = "x86_64")]
        {
            use std::is_x86_feature_detected as has;
            // The libraries' slowest routines with AES instructions need AVX and PCLMULQDQ too.
            match has!("aes") && has!("pclmulqdq") && has!("avx") {
                false => Processor::Plain,
                true if has!("vaes") && has!("avx512f") => Processor::Vaes512,
                true if has!("vaes") && has!("avx2") => Processor::Vaes256,
                true => Processor::Aes,
            }
        }
        #[cfg(target_arch = "aarch64")]
        {
            use std::arch::is_aarch64_feature_detected as has;
            if has!("aes") && has!("pmull") { Processor::ArmAes } else { Processor::Plain }
        }
        #[cfg(not(any(target_arch = "x86_64", target_arch = "aarch64")))]
        Processor::Plain
    }

    /// From its value in a handshake.
    pub const fn from_byte(byte: u8) -> Option<Processor> {
        match byte {
            1 => Some(Processor::Plain),
            2 => Some(Processor::Aes),
            3 => Some(Processor::Vaes256),
            4 => Some(Processor::Vaes512),
            5 => Some(Processor::ArmAes),
            6 => Some(Processor::AesPairs),
            _ => None,
        }
    }

    /// Name for people.
    pub const fn name(self) -> &'static str {
        match self {
            Processor::Plain => "no AES instructions",
            Processor::Aes => "AES-NI",
            Processor::AesPairs => "AES-NI, faster in pairs",
            Processor::Vaes256 => "AES-NI and VAES of 256 bits",
            Processor::Vaes512 => "AES-NI and VAES of 512 bits",
            Processor::ArmAes => "ARMv8 AES",
        }
    }

    /// Suites that a processor of this class should ever use. Without AES instructions, AES and
    /// AEGIS use table look-ups, which can leak keys and are slow.
    pub const fn suites(self) -> Suites {
        match self {
            Processor::Plain => Suites(1 << (Suite::ChaCha20Poly1305 as u8 - 1)),
            _ => Suites::ALL,
        }
    }

    /// Nanoseconds for sealing 1,400 bytes, in the order of [`Suite::ALL`]. Only the ratios matter.
    /// Both ends of a session must have equal tables.
    const fn row(self) -> [u16; Suite::ALL.len()] {
        // aes-256-gcm, chacha20-poly1305, aegis-256x4, aegis-256, aegis-256x2
        match self {
            Processor::Plain => [9_000, 2_100, 12_000, 12_000, 12_000],
            Processor::Aes => [576, 1_047, 433, 238, 262],
            Processor::AesPairs => [481, 1_003, 353, 266, 208],
            Processor::Vaes256 => [481, 1_003, 231, 266, 208],
            Processor::Vaes512 => [216, 969, 112, 266, 183],
            Processor::ArmAes => [600, 1_000, 400, 300, 290],
        }
    }

    /// Nanoseconds for sealing 1,400 bytes with `suite` on a processor of this class.
    pub const fn cost_ns(self, suite: Suite) -> u16 {
        self.row()[suite as usize - 1]
    }
}

/// A set of suites.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Suites(u8);

impl Suites {
    /// Every suite.
    pub const ALL: Suites = Suites((1 << Suite::ALL.len()) - 1);

    /// From the bits in a handshake: bit n - 1 stands for the suite with value n. None if another
    /// bit is set.
    pub const fn from_bits(bits: u8) -> Option<Suites> {
        if bits & !Self::ALL.0 == 0 { Some(Suites(bits)) } else { None }
    }

    /// Bits of the set, as in a handshake.
    pub const fn bits(self) -> u8 {
        self.0
    }

    /// True if the set holds `suite`.
    pub const fn has(self, suite: Suite) -> bool {
        self.0 & 1 << (suite as u8 - 1) != 0
    }

    /// True if the set is empty.
    pub const fn is_empty(self) -> bool {
        self.0 == 0
    }

    /// The suites that are in both sets.
    pub const fn and(self, other: Suites) -> Suites {
        Suites(self.0 & other.0)
    }

    pub fn iter(self) -> impl Iterator<Item = Suite> {
        Suite::ALL.into_iter().filter(move |&suite| self.has(suite))
    }
}

impl FromIterator<Suite> for Suites {
    fn from_iter<I: IntoIterator<Item = Suite>>(suites: I) -> Suites {
        Suites(suites.into_iter().fold(0, |bits, suite| bits | 1 << (suite as u8 - 1)))
    }
}

/// Suites and processor of one end of a session, as it claims them.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SuiteSupport {
    pub processor: Processor,
    /// The suites that the end accepts.
    pub suites: Suites,
}

/// A suite is avoided if it costs an end more than this many times its cheapest common suite.
/// Otherwise a member could slow others down by a false claim.
const FLOOR: u16 = 3;

impl SuiteSupport {
    /// The means of this machine, with all suites that suit its processor.
    pub fn here() -> SuiteSupport {
        let processor = Processor::here();
        SuiteSupport { processor, suites: processor.suites() }
    }

    /// From the fields of a handshake. None if the class or a suite is unknown.
    pub const fn from_bytes(processor: u8, suites: u8) -> Option<SuiteSupport> {
        match (Processor::from_byte(processor), Suites::from_bits(suites)) {
            (Some(processor), Some(suites)) => Some(SuiteSupport { processor, suites }),
            _ => None,
        }
    }

    /// The means without the suites outside `allowed`.
    pub fn limited(self, allowed: Suites) -> SuiteSupport {
        SuiteSupport { suites: self.suites.and(allowed), ..self }
    }

    /// The suite of a session between both ends: the one whose slower end is fastest. Both ends
    /// compute equal results. None if they have no common suite.
    pub fn agree(self, other: SuiteSupport) -> Option<Suite> {
        let common = self.suites.and(other.suites);
        let within = |end: SuiteSupport| {
            let best = common.iter().map(|suite| end.processor.cost_ns(suite)).min().unwrap_or(0);
            move |suite: &Suite| end.processor.cost_ns(*suite) <= best.saturating_mul(FLOOR)
        };
        let cost = |&suite: &Suite| {
            let (a, b) = (self.processor.cost_ns(suite), other.processor.cost_ns(suite));
            (a.max(b), a.min(b), suite)
        };
        let fair = common.iter().filter(within(self)).filter(within(other)).min_by_key(cost);
        fair.or_else(|| common.iter().min_by_key(cost))
    }

    /// The accepted suites, fastest first.
    pub fn by_cost(self) -> Vec<Suite> {
        let mut suites: Vec<Suite> = self.suites.iter().collect();
        suites.sort_by_key(|&suite| (self.processor.cost_ns(suite), suite));
        suites
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn means(processor: Processor) -> SuiteSupport {
        SuiteSupport { processor, suites: processor.suites() }
    }

    fn any_means() -> impl Strategy<Value = SuiteSupport> {
        let bits = 0..=Suites::ALL.bits();
        (0..Processor::ALL.len(), bits).prop_map(|(class, bits)| {
            let suites = Suites::from_bits(bits).unwrap();
            SuiteSupport { processor: Processor::ALL[class], suites }
        })
    }

    proptest! {
        #[test]
        fn both_ends_find_one_suite_that_both_take(a in any_means(), b in any_means()) {
            let agreed = a.agree(b);
            prop_assert_eq!(agreed, b.agree(a));
            let common = a.suites.and(b.suites);
            prop_assert_eq!(agreed.is_none(), common.is_empty());
            if let Some(suite) = agreed {
                prop_assert!(common.has(suite));
            }
        }

        /// A member may make any claim. If a common suite costs neither end more than three times
        /// its cheapest, such a suite is chosen.
        #[test]
        fn nobody_is_slowed_by_what_another_says(own in any_means(), said in any_means()) {
            let common = own.suites.and(said.suites);
            let cost = |end: SuiteSupport, suite| end.processor.cost_ns(suite);
            let costs = |end| common.iter().map(move |suite| cost(end, suite));
            let fits = |end: SuiteSupport, suite| {
                cost(end, suite) <= 3 * costs(end).min().unwrap_or(0)
            };
            let fair = common.iter().any(|suite| fits(own, suite) && fits(said, suite));
            if let Some(agreed) = own.agree(said).filter(|_| fair) {
                prop_assert!(fits(own, agreed) && fits(said, agreed), "{agreed:?}");
            }
        }
    }

    /// Every pair of classes, and the suite that both choose.
    #[test]
    fn each_pair_of_classes_takes_the_expected_suite() {
        use Processor::{Aes, AesPairs, ArmAes, Plain, Vaes256, Vaes512};
        use Suite::{Aegis256, Aegis256X2, Aegis256X4, ChaCha20Poly1305};
        let expected = [
            (Vaes512, Vaes512, Aegis256X4),
            (Vaes512, Vaes256, Aegis256X2),
            (Vaes512, Aes, Aegis256X2),
            (Vaes512, ArmAes, Aegis256X2),
            (Vaes256, Vaes256, Aegis256X2),
            (Vaes256, Aes, Aegis256X2),
            (Vaes256, ArmAes, Aegis256X2),
            (Aes, Aes, Aegis256),
            (Aes, ArmAes, Aegis256X2),
            (ArmAes, ArmAes, Aegis256X2),
            (AesPairs, AesPairs, Aegis256X2),
            (AesPairs, Aes, Aegis256X2),
            (AesPairs, Vaes512, Aegis256X2),
        ];
        for (a, b, suite) in expected {
            assert_eq!(means(a).agree(means(b)), Some(suite), "{a:?} and {b:?}");
        }
        for other in Processor::ALL {
            assert_eq!(means(Plain).agree(means(other)), Some(ChaCha20Poly1305), "{other:?}");
        }
    }

    #[test]
    fn a_suite_that_is_not_allowed_is_never_taken() {
        let gcm = Suites::from_iter([Suite::Aes256Gcm]);
        let own = means(Processor::Vaes512).limited(gcm);
        assert_eq!(own.agree(means(Processor::Aes)), Some(Suite::Aes256Gcm));
        assert_eq!(own.agree(means(Processor::Plain)), None);
    }

    #[test]
    fn values_belong_to_classes() {
        for processor in Processor::ALL {
            assert_eq!(Processor::from_byte(processor as u8), Some(processor));
        }
        assert_eq!((Processor::from_byte(0), Processor::from_byte(7)), (None, None));
        assert!(Suites::from_bits(0x20).is_none() && SuiteSupport::from_bytes(2, 0x20).is_none());
        assert!(
            SuiteSupport::from_bytes(0, 1).is_none() && SuiteSupport::from_bytes(7, 1).is_none()
        );
    }
}
