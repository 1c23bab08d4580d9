//! Checks the distance of a quantized matrix from its source, i.e. from the weights before quantization.

use super::scales::INVERTED_SCALE;
use super::{Check, Finding, Severity};
use crate::checkpoint::measure::Against;
use crate::checkpoint::shortfall::{Noise, ONE_STEP, Shortfall, spread};
use crate::checkpoint::subject::Subject;
use ulplab_core::error::counted;

pub const NO_SOURCE: Check = Severity::NotJudged.check(
    "no_source",
    "Every quantized matrix has one source of its shape with finite values: the tensor of its name, or the one that loaders take for \
     it. That may have another prefix, be transposed, be one of a stack of experts, be some rows of a fused matrix (`qkv_proj`, \
     `gate_up_proj`), or be quantized itself.",
);
pub const FOLDED: Check = Severity::NotJudged.check(
    "folded",
    "Factors of channels that no file has may lie between a matrix and its source. AWQ is judged with one fitted factor for each input \
     channel, and for `up_proj` and `v_proj` for each output channel too. Where the configuration does not say AWQ, a matrix that is right \
     but for such factors, or whose model is rotated (`transform_config`), is not judged.",
);
pub const CODE_ORDER: Check = Severity::Error.check(
    "code_order",
    "The codes of a byte or word are in the order of the convention. Without the source this cannot be seen: the other order has \
     the same codes in the same blocks.",
);
pub const TRANSPOSED: Check = Severity::Error.check(
    "transposed",
    "A square matrix was not quantized from the transposed source. The matrices of the file that are not square say which way is right.",
);
pub const LOW_SQNR: Check = Severity::Error.check(
    "low_sqnr",
    "The SQNR is at least 8 dB with codes of 4 bits, and 20 dB with 8 bits: 4 bits in groups of 128 give 17 dB or more for normal \
     values, FP8 31 dB. And the noise, against that of rounding to the same codes with scales of the largest magnitudes, is near the \
     median of the matrices of the same format and name in all layers, or of the same format if those are fewer than 4: at most 4 dB \
     above it, or 5 standard deviations as the median deviation gives them; 6 dB or 6 of them if the median is above 1 dB, as with GPTQ.",
);
pub const PART_OFF: Check = Severity::Error.check(
    "part_off",
    "No part of a matrix has far more noise than the rest, against that of rounding to the same codes with the same scales: rows and \
     columns at most 3 dB above their median, or 5 standard deviations; 6 dB or 6 of them if the median says that codes are not the \
     nearest. Where they are, no part of a row, of one group and at most 128 columns, has a mean error of more than one step: 10.8 dB; and \
     where all are, no element is farther than one and a half steps from the nearest code.",
);

/// Returns a finding that the configuration in `file` states a rotation, which rules out comparing weights with the source.
pub fn rotated(file: &str) -> Finding {
    let found = "key 'transform_config' states rotations, so that no matrix is held against its source";
    Finding::new(&FOLDED, (file, ""), found, "a model that is not rotated")
}

/// Smallest plausible SQNR for codes of this many bits, in dB.
pub fn least(bits: usize) -> f64 {
    if bits <= 4 { 8.0 } else { 20.0 }
}

/// Minimum number of rows or columns for a meaningful median.
const ENOUGH: usize = 8;
/// Median noise, in dB above the noise of rounding, up to which nearly all codes are assumed to be rounded to nearest. Rounding
/// to nearest is at or below 0 dB.
const NEAREST: f64 = 1.0;
/// Median noise, in dB above the noise of rounding, up to which all codes are assumed to be rounded to nearest. Rounding to
/// nearest gives -1.4 dB for values that are spread over many codes.
const ROUNDED: f64 = -0.5;

/// Arguments `(near, strict)` of [`limit`], in dB, for comparing a matrix with the matrices of other layers that have the same
/// format and name.
pub const KIN: (f64, f64) = (NEAREST, 4.0);

/// Returns the limit above which the noise of a row, column or matrix makes it an outlier. `all` holds the noise of all of them,
/// in dB above the noise of rounding. The limit is the median plus a margin that grows with the spread, and at least 0. The
/// margin is at least `strict` if the median is at most `near`, otherwise at least 6 dB. `None` if `all` has no finite values.
pub fn limit(all: &[f64], (near, strict): (f64, f64)) -> Option<f64> {
    let (median, deviation) = spread(all)?;
    let margin = match median <= near {
        true => strict.max(5.0 * deviation),
        false => (6.0f64).max(6.0 * deviation),
    };
    Some((median + margin).max(0.0))
}

/// Returns a finding about a matrix with far more noise than the matrices of the same format and name in other layers. `kin` is
/// the number of these matrices.
pub fn above_kin(names: (&str, &str), which: &str, (sqnr, found): (f64, f64), limit: f64, kin: usize) -> Finding {
    let found = format!("{which}SQNR {sqnr:.2} dB: {found:.1} dB more noise than rounding gives");
    let expected = format!("at most {limit:.1} dB more, by {kin} matrices of the same kind");
    Finding::new(&LOW_SQNR, names, found, expected)
}

/// Finds rows, columns or cells (parts of rows) with far more noise than the others. Returns `found` and `expected` of a finding.
pub fn parts(shortfall: &Shortfall) -> Option<(String, String)> {
    let db = |noise: &[Noise]| -> Vec<f64> { noise.iter().map(Noise::db).collect() };
    let rows = db(&shortfall.rows);
    let median = spread(&rows).map_or(f64::NEG_INFINITY, |(median, _)| median);
    let from = |found: String, (row, col, noise): (usize, usize, Noise)| {
        let more = format!("{:.1} dB more noise than rounding gives", noise.db());
        format!("{found}, the first at row {row}, column {col}: {more}")
    };
    if let Some(first) = shortfall.first.filter(|_| median <= NEAREST) {
        let cells = counted(shortfall.cells, "part");
        let found = format!("{cells} of rows with a mean error of more than a step");
        return Some((from(found, first), format!("at most {ONE_STEP:.1} dB more")));
    }
    if let Some(first) = shortfall.element.filter(|_| median <= ROUNDED) {
        let elements = counted(shortfall.elements, "element");
        let found = format!("{elements} farther than a step and a half from the nearest code");
        let expected = "the nearest codes, as those of the other elements";
        return Some((from(found, first), expected.into()));
    }
    let of = |one: &str, what: &str, noise: &[Noise], all: &[f64]| {
        let limit = limit(all, (ROUNDED, 3.0)).filter(|_| all.len() >= ENOUGH)?;
        // Ignore rows (or columns) whose squared error is at most the median: their noise is only high relative to what rounding
        // allows.
        let (middle, _) = spread(&noise.iter().map(|noise| noise.found).collect::<Vec<f64>>())?;
        let over = |at: &usize| all[*at] > limit && noise[*at].found > middle;
        let over: Vec<usize> = (0..all.len()).filter(over).collect();
        let worst = *over.iter().max_by(|a, b| all[**a].total_cmp(&all[**b]))?;
        let found = format!("{} of {} {what} have more noise than the others", over.len(), all.len());
        let most = all[worst];
        let found = format!("{found}: the worst is {one} {worst}, {most:.1} dB more than rounding gives");
        Some((found, format!("at most {limit:.1} dB more")))
    };
    of("row", "rows", &shortfall.rows, &rows).or_else(|| of("column", "columns", &shortfall.cols, &db(&shortfall.cols)))
}

/// Returns a finding about a low SQNR, with its cause if a test explains it. `other` is the distance from the source if the codes
/// of each byte or word are read in the other order, `turned` the distance from the transposed source. `which` begins the message
/// and names the matrix of a stack, e.g. `matrix 3: `.
pub fn low(
    subject: &Subject,
    which: &str,
    against: &Against,
    [other, turned]: [Option<Against>; 2],
) -> Option<Finding> {
    let parts = subject.parts;
    let (codes, scale) = (parts.codes?, parts.scale?);
    let (found, least) = (against.db(against.noise), least(subject.reading.bits()));
    let with = |db: f64, what: &str| format!("{which}SQNR {found:.2} dB, and {db:.2} dB {what}");
    let enough = |other: Option<Against>| other.map(|other| other.db(other.noise)).filter(|db| *db >= least);
    let inverted = |noise: f64| Some(against.db(noise)).filter(|db| *db >= least);
    let global = parts.global.zip(inverted(against.noise_global_inverted));
    let (check, tensor, found) = if let Some(db) = enough(other) {
        let what = "with the codes of each byte or word in the other order";
        (&CODE_ORDER, codes, with(db, what))
    } else if let Some(db) = enough(turned) {
        (&TRANSPOSED, codes, with(db, "from the transposed source"))
    } else if let Some((global, db)) = global {
        (&INVERTED_SCALE, global, with(db, "with its reciprocal"))
    } else if let Some(db) = inverted(against.noise_inverted) {
        (&INVERTED_SCALE, scale, with(db, "with their reciprocals"))
    } else {
        (&LOW_SQNR, codes, format!("{which}SQNR {found:.2} dB"))
    };
    let expected = format!("{least} dB or more");
    Some(Finding::new(check, (tensor.name, subject.name), found, expected))
}
