//! A quantized matrix beside its source.

use super::scales::INVERTED_SCALE;
use super::{Check, Finding, error, not_judged};
use crate::checkpoint::matrix::Reading;
use crate::checkpoint::measure::Against;
use crate::checkpoint::parts::Parts;

pub const NO_SOURCE: Check = not_judged(
    "no_source",
    "Every quantized matrix has a source of its shape, as it is or transposed.",
);
pub const CODE_ORDER: Check = error(
    "code_order",
    "The codes of a byte or word are in the order of the convention. Without the source this cannot be seen: the other order has \
     the same codes in the same blocks.",
);
pub const LOW_SQNR: Check = error(
    "low_sqnr",
    "The SQNR is at least 8 dB with codes of 4 bits, and 20 dB with 8 bits: 4 bits in groups of 128 give 17 dB or more for normal \
     values, FP8 31 dB. Not judged with AWQ, which scales the inputs of a matrix, and what makes them, by numbers that no file has.",
);

/// Least SQNR of codes of these bits, in dB.
pub fn least(bits: usize) -> f64 {
    if bits <= 4 { 8.0 } else { 20.0 }
}

/// The cause of a low SQNR, if it is one of those that can be measured; `which` numbers the matrix in its stack. `other` are the
/// distances with the other order of codes.
pub fn low(
    name: &str,
    which: &str,
    parts: &Parts,
    reading: &Reading,
    against: &Against,
    other: Option<Against>,
) -> Option<Finding> {
    let (codes, scale) = (parts.codes?, parts.scale?);
    let (found, least) = (against.db(against.noise), least(reading.bits()));
    if found >= least {
        return None;
    }
    let with = |db: f64, what: &str| format!("{which}SQNR {found:.2} dB, and {db:.2} dB {what}");
    let swapped = other.map(|other| other.db(other.noise)).filter(|db| *db >= least);
    let global = Some(against.db(against.noise_global_inverted))
        .filter(|db| *db >= least)
        .zip(parts.global);
    let inverted = Some(against.db(against.noise_inverted)).filter(|db| *db >= least);
    let (check, subject, found) = match (swapped, global, inverted) {
        (Some(db), ..) => (
            &CODE_ORDER,
            codes,
            with(db, "with the codes of each byte or word in the other order"),
        ),
        (_, Some((db, global)), _) => (&INVERTED_SCALE, global, with(db, "with its reciprocal")),
        (_, _, Some(db)) => (&INVERTED_SCALE, scale, with(db, "with their reciprocals")),
        _ => (&LOW_SQNR, codes, format!("{which}SQNR {found:.2} dB")),
    };
    Some(Finding::new(
        check,
        (subject.name, name),
        found,
        format!("{least} dB or more"),
    ))
}
