//! Ids of neighbours, peers, hosts and circuits. A table numbers its entries and reuses a number
//! after its owner is removed. The generation in an id says which owner is meant.
//!
//! ```text
//! id:  generation 12 | number 20
//! ```
//!
//! A look-up indexes the table by the number and compares the whole id. If the owner of a message
//! is removed while the message waits in a ring, the look-up fails. Generations of one number
//! repeat after 4,096 owners, those of a circuit after 256.

const NUMBER_BITS: u32 = 20;
const NUMBER_MASK: u32 = (1 << NUMBER_BITS) - 1;
/// Most ids of one kind in use at once. The highest number is never used.
pub const IDS_MAX: usize = NUMBER_MASK as usize;

/// Types that [`crate::id!`] declares.
pub trait Id: Copy + Eq {
    /// From [`Id::bits`].
    fn from_bits(bits: u32) -> Self;

    /// The whole id.
    fn bits(self) -> u32;

    /// Index in tables.
    #[inline]
    fn number(self) -> usize {
        (self.bits() & NUMBER_MASK) as usize
    }

    /// Generation, counted from 0: which owner of the number the id names.
    fn generation(self) -> u32 {
        self.bits() >> NUMBER_BITS
    }

    /// Id of the number's next owner.
    fn successor(self) -> Self {
        Self::from_bits(self.bits().wrapping_add(1 << NUMBER_BITS))
    }
}

/// Declares an id type of 32 bits. Only tables look inside it.
#[macro_export]
macro_rules! id {
    ($(#[$doc:meta])* $name:ident) => {
        $(#[$doc])*
        #[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
        pub struct $name(u32);

        impl $name {
            /// From [`Self::bits`].
            pub const fn from_bits(bits: u32) -> $name {
                $name(bits)
            }

            /// The whole id, for code that carries it without knowing its type.
            pub const fn bits(self) -> u32 {
                self.0
            }
        }

        impl $crate::Id for $name {
            fn from_bits(bits: u32) -> $name {
                $name(bits)
            }

            #[inline]
            fn bits(self) -> u32 {
                self.0
            }
        }

        impl core::fmt::Debug for $name {
            fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
                use $crate::Id;
                write!(f, "{}({}.{})", stringify!($name), self.number(), self.generation())
            }
        }
    };
}

id! {
    /// A neighbour, as the relay names it. Local to one node, never on the wire.
    LinkId
}

id! {
    /// A circuit, as one of its nodes names it. Local to that node. It is the circuit's index on
    /// legs to that node, in which the generation's lower four bits are the lane. Here the lane is
    /// 0.
    CircuitId
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn generations_wrap_and_leave_the_number_alone() {
        let first = LinkId::from_bits(7);
        let next = first.successor();
        assert_eq!((next.number(), next.generation()), (7, 1));
        assert_eq!((0..4_096).fold(first, |id, _| id.successor()), first);
        assert_eq!(format!("{next:?}"), "LinkId(7.1)");
    }
}
