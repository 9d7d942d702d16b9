//! BLS12-381 for group signatures: scalars, points of G1, and one pairing equation.
//!
//! All unsafe calls of blst in the workspace are in this module and its children. Multiplications
//! come in two kinds. [`G1::mul`] and [`G1Table`] take equal time for every scalar. Functions with
//! *public* in their name do not, and may see public values only.
//!
//! Invariant: a [`G1`] or [`G2`] from a decoder lies in the subgroup of prime order. The one
//! exception is [`G1Unchecked::unproved`], for arithmetic that decides if decoding goes on.

#![allow(unsafe_code)]

mod g1;
mod membership;
mod pairing;
mod public;
mod scalar;
mod table;
#[cfg(test)]
mod tests;

pub use g1::{G1, G1_LEN, G1Unchecked, encode_all};
pub use membership::all_in_subgroup;
pub use pairing::{G2, G2_LEN, G2Lines, pairing_product_is_one};
pub use public::{G1PublicTable, PublicBase, mul_public, sum_of_products, sum_of_short_products};
pub use scalar::{SCALAR_LEN, Scalar, SplitChallenge};
pub use table::G1Table;

/// Reason why bytes do not encode an element of the group.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum BadElement {
    /// Flags, length or coordinate do not form a canonical encoding.
    Encoding,
    /// No point of the curve has this coordinate.
    NotOnCurve,
    /// A point of the curve, but outside the subgroup of prime order.
    NotInSubgroup,
    /// The neutral element, which no message of Shoal may contain.
    Identity,
    /// A scalar that is not below the group order.
    ScalarRange,
}

impl core::fmt::Display for BadElement {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        f.write_str(match self {
            BadElement::Encoding => "not a canonical encoding",
            BadElement::NotOnCurve => "not on the curve",
            BadElement::NotInSubgroup => "not in the subgroup of prime order",
            BadElement::Identity => "the neutral element",
            BadElement::ScalarRange => "scalar not below the group order",
        })
    }
}

impl std::error::Error for BadElement {}

/// Maps blst's error code.
fn check(code: blst::BLST_ERROR) -> Result<(), BadElement> {
    match code {
        blst::BLST_ERROR::BLST_SUCCESS => Ok(()),
        blst::BLST_ERROR::BLST_POINT_NOT_ON_CURVE => Err(BadElement::NotOnCurve),
        blst::BLST_ERROR::BLST_POINT_NOT_IN_GROUP => Err(BadElement::NotInSubgroup),
        _ => Err(BadElement::Encoding),
    }
}
