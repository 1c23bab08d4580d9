//! Checks codes, zero points and group indices, and looks for NaN in all tensors.

use safetensors::Dtype;

use super::scales::ZERO_SCALE;
use super::{Check, Finding, Severity};
use crate::checkpoint::measure::Measured;
use crate::checkpoint::parts::Parts;
use crate::checkpoint::subject::Subject;
use crate::checkpoint::words::Words;
use crate::packed::Nonfinite;
use ulplab_core::tensorfile::Tensor;

pub const NAN_CODE: Check =
    Severity::Error.check("nan_code", "No FP8 code is NaN (0x7f and 0xff in E4M3) or infinite.");
pub const NONFINITE: Check = Severity::Error.check(
    "nonfinite",
    "No other tensor has a NaN or an infinity, whatever its name is and whether or not it is understood.",
);
pub const SATURATED: Check = Severity::Error.check(
    "saturated",
    "Of codes of 4 bits at most a quarter has the largest magnitude, of codes of 8 bits at most a twentieth. A scale of the largest \
     magnitude of a block of 16 puts a twelfth of normal, and 22 % of uniform values there; a scale that is half as large, 39 %. \
     Not judged where there are zero points.",
);
pub const DEAD_BLOCKS: Check = Severity::Warning.check("dead_blocks", "At most one block in a hundred is all zero.");
pub const DEAD_MATRIX: Check = Severity::Error.check("dead_matrix", "No matrix is all zero.");
pub const ZERO_POINT: Check = Severity::Error.check(
    "zero_point",
    "Zero points are in the range of the codes, and in its middle where the configuration says that the codes are symmetric.",
);
pub const OFF_CENTRE: Check = Severity::Error.check(
    "off_centre",
    "The mean of codes less zero points is within half a step of 0, as that of weights is; zero points that are read with a wrong \
     offset move it by a whole one. Only matrices of 1,024 elements and more with 4 bits, and of 262,144 with 8: by chance the mean of \
     fewer is that far.",
);
pub const GROUP_INDEX: Check = Severity::Error.check(
    "group_index",
    "Every group index is one of the groups, and every group has as many inputs as the block size says.",
);

/// Minimum number of elements of a matrix for which the fraction of saturated codes is meaningful.
const ENOUGH: u64 = 1024;

/// Minimum number of elements for a mean code to be meaningful. The standard deviation of codes is at most 8 steps with 4 bits,
/// and 128 steps with 8 bits. With this number of elements, the standard error of the mean is at most a quarter of a step.
fn enough(bits: usize) -> u64 {
    (4u64 << (bits - 1)).pow(2)
}

/// Reports NaN codes, too many saturated codes or zero blocks, an off-centre mean code, and blocks that a zero scale erased.
/// `which` begins the message and names the matrix of a stack, e.g. `matrix 3: `.
pub fn counts(subject: &Subject, which: &str, measured: &Measured) -> Vec<Finding> {
    let reading = &subject.reading;
    let mut findings = Vec::new();
    let mut add = |check, found: String, expected: &str| {
        let found = format!("{which}{found}");
        findings.push(Finding::new(check, subject.names(), found, expected));
    };
    let share = |count: u64, of: u64| format!("{count} of {of} ({:.2} %)", 100.0 * count as f64 / of.max(1) as f64);
    let (elements, blocks, dead) = (measured.elements, measured.blocks, measured.dead);
    let (saturated, nan_codes) = (measured.saturated, measured.nan_codes);
    if nan_codes > 0 {
        let found = format!("{} codes are NaN or infinite", share(nan_codes, elements));
        add(&NAN_CODE, found, "finite codes");
    }
    let (limit, words) = match reading.bits() {
        ..=4 => (0.25, "at most 25 %"),
        _ => (0.05, "at most 5 %"),
    };
    if saturated as f64 > limit * elements as f64 && elements >= ENOUGH {
        let found = format!("{} codes have the largest magnitude", share(saturated, elements));
        add(&SATURATED, found, words);
    }
    if elements > 0 && dead == blocks {
        add(&DEAD_MATRIX, "every code is zero".into(), "a matrix that is not zero");
    } else if dead * 100 > blocks {
        let found = format!("{} blocks are zero", share(dead, blocks));
        add(&DEAD_BLOCKS, found, "at most 1 %");
    }
    let centred = reading.of_bytes().is_none();
    if centred && elements >= enough(reading.bits()) && measured.mean_code.abs() > 0.5 {
        let found = format!("a mean of {:+.2} steps", measured.mean_code);
        add(&OFF_CENTRE, found, "within half a step of 0");
    }
    if let (lost @ 1.., Some(scale)) = (measured.lost, subject.parts.scale) {
        let found = format!("{which}{lost} of {blocks} blocks have the scale zero and codes that are not");
        let names = (scale.name, subject.name);
        findings.push(Finding::new(&ZERO_SCALE, names, found, "positive scales"));
    }
    findings
}

/// Checks zero points and group indices of integer codes in 32-bit words. `symmetric` is true if the configuration excludes zero
/// points; `None` if it does not mention them.
pub fn words(name: &str, parts: &Parts, words: &Words, symmetric: Option<bool>) -> Vec<Finding> {
    let mut findings = Vec::new();
    if let Some(zero) = parts.zero {
        let of = |output: usize| (0..words.groups()).filter_map(move |group| words.zero(group, output, false));
        let (mut over, mut uneven, mut count) = (0usize, None, 0usize);
        for zero in (0..words.outputs).flat_map(of) {
            count += 1;
            over += usize::from(zero >= 1 << words.bits);
            if zero != words.middle() as i32 {
                uneven.get_or_insert(zero);
            }
        }
        let mut add = |found: String, expected: String| {
            findings.push(Finding::new(&ZERO_POINT, (zero.name, name), found, expected));
        };
        let (codes, middle) = (1 << words.bits, words.middle());
        if over > 0 {
            let found = format!("{over} of {count} zero points are {codes}");
            add(found, format!("0 to {}", codes - 1));
        } else if let (Some(found), Some(true)) = (uneven, symmetric) {
            let expected = format!("{middle} everywhere: the configuration says that codes are symmetric");
            add(format!("a zero point of {found}"), expected);
        }
    }
    if let Some(index) = parts.index {
        let columns = words.columns();
        let outside = columns.iter().filter(|column| column.is_none()).count();
        let mut sizes = vec![0usize; words.groups()];
        columns.iter().flatten().for_each(|group| sizes[*group] += 1);
        let uneven = sizes.iter().position(|size| *size > words.group);
        let mut add = |found: String, expected: String| {
            findings.push(Finding::new(&GROUP_INDEX, (index.name, name), found, expected));
        };
        match (outside, uneven) {
            (1.., _) => {
                let found = format!("{outside} of {} out of range", columns.len());
                add(found, format!("0 to {}", words.groups() - 1));
            }
            (0, Some(group)) => {
                let found = format!("{} inputs in group {group}", sizes[group]);
                add(found, format!("{} inputs in each group", words.group));
            }
            _ => {}
        }
    }
    findings
}

/// Reports NaN and infinities in a tensor of the matrix `name`.
pub fn plain(name: &str, tensor: &Tensor) -> Option<Finding> {
    let values = match tensor.dtype {
        Dtype::F8_E8M0 => tensor.to_scales()?,
        _ => tensor.to_f32()?,
    };
    let lost = Nonfinite::count(&values, 0, tensor.shape)?;
    let found = format!("{} NaN or infinite, the first at {:?}", lost.total(), lost.first);
    Some(Finding::new(&NONFINITE, (tensor.name, name), found, "finite numbers"))
}
