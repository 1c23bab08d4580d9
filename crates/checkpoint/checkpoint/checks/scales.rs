//! Checks the values of scales, and that the decoded weights have a plausible size.

use safetensors::Dtype;

use super::{Check, Finding, Severity};
use crate::checkpoint::measure::Measured;
use crate::checkpoint::parts::Parts;
use crate::checkpoint::subject::Subject;
use ulplab_core::metrics::unravel;
use ulplab_core::tensorfile::Tensor;

pub const NONFINITE_SCALE: Check = Severity::Error.check(
    "nonfinite_scale",
    "No scale is NaN or infinite: NaN is 0xff in E8M0, 0x7f and 0xff in E4M3.",
);
pub const NEGATIVE_SCALE: Check = Severity::Error.check(
    "negative_scale",
    "No scale is negative; E4M3 scales have no sign bit set.",
);
pub const ZERO_SCALE: Check = Severity::Error.check(
    "zero_scale",
    "No global scale and no scale of activations is zero, and no block of codes that are not zero has the scale zero: its values \
     are lost.",
);
pub const EXPONENT_AS_NUMBER: Check = Severity::Error.check(
    "exponent_as_number",
    "Scales of floating-point numbers are no E8M0 codes: those are all whole numbers from 1 to 254, and as factors they make the gain \
     of a matrix larger than 2^7. The code e means 2^(e - 127).",
);
pub const INVERTED_SCALE: Check = Severity::Error.check(
    "inverted_scale",
    "A scale is not the reciprocal of what its convention stores. Independent inputs of K channels come out of a matrix larger by \
     rms · √K. Trained layers keep that gain near 1, since activations would vanish or overflow within a few layers. A finding \
     needs a gain below 2^-8 or above 2^7 that the reciprocal of one of the scales brings between them, and at least half the way to 1 in \
     powers of two: one that is merely outside is no reciprocal.",
);
pub const MAGNITUDE: Check = Severity::Warning.check(
    "magnitude",
    "The gain rms · √K of a matrix is between 2^-8 and 2^7. Outside, and if no reciprocal explains it, the scales may be of \
     another matrix.",
);

/// Range of plausible gains (output magnitude over input magnitude) of a trained matrix.
const GAINS: std::ops::RangeInclusive<f64> = 1.0 / 256.0..=128.0;

/// Reports NaN, infinite, negative and zero scales of a matrix. For a matrix that is not quantized, only activation scales are
/// checked.
pub fn values(name: &str, parts: &Parts, powers: bool) -> Vec<Finding> {
    let mut findings = Vec::new();
    let [scale, global] = [parts.scale, parts.global].map(|tensor| tensor.filter(|_| parts.is_whole()));
    let blocks = scale.map(|tensor| (tensor, false));
    let others = global.iter().chain(&parts.activations);
    for (tensor, no_zero) in blocks.into_iter().chain(others.map(|tensor| (*tensor, true))) {
        // Skip zero points of activations: they are not scales.
        if tensor.name.ends_with("_zero_point") {
            continue;
        }
        let [nonfinite, negative, zero] = counts(&tensor, powers);
        let mut add = |check, place: &Place, what: &str, expected: &str| {
            if let Some((count, first)) = place {
                let all = tensor.shape.iter().product::<usize>();
                let at = unravel(*first, tensor.shape);
                let found = format!("{count} of {all} {what}, the first at {at:?}");
                findings.push(Finding::new(check, (tensor.name, name), found, expected));
            }
        };
        add(&NONFINITE_SCALE, &nonfinite, "NaN or infinite", "finite scales");
        add(&NEGATIVE_SCALE, &negative, "negative", "scales without sign");
        if no_zero {
            add(&ZERO_SCALE, &zero, "zero", "positive scales");
        }
    }
    findings
}

/// Number of bad values (NaN, negative or zero) in a tensor, and the flat index of the first one; `None` if there are none.
type Place = Option<(usize, usize)>;

/// Counts the values that are NaN or infinite, the negative values, and the zeros. `powers` is true if a byte stands for a power
/// of two (E8M0).
fn counts(tensor: &Tensor, powers: bool) -> [Place; 3] {
    let of_code = |code: &u8| {
        let nan = code & 0x7f == 0x7f;
        [nan, *code > 0x7f && !nan, code & 0x7f == 0]
    };
    let of_value = |value: f32| [!value.is_finite(), value < 0.0, value == 0.0];
    let kinds: Vec<[bool; 3]> = match (tensor.dtype, powers) {
        (Dtype::F8_E4M3, _) | (Dtype::U8, false) => tensor.bytes.iter().map(of_code).collect(),
        _ => tensor.to_scales().into_iter().flatten().map(of_value).collect(),
    };
    [0, 1, 2].map(|kind| {
        let mut places = (0..kinds.len()).filter(|at| kinds[*at][kind]);
        let first = places.next()?;
        Some((1 + places.count(), first))
    })
}

/// Returns a finding if the gain of a matrix (output over input magnitude) is implausible for a trained matrix. `which` begins
/// the message and names the matrix of a stack, e.g. `matrix 3: `.
pub fn size(subject: &Subject, which: &str, measured: &Measured) -> Option<Finding> {
    let Subject { name, parts, .. } = subject;
    let gain = measured.gain(measured.rms);
    // Skip a matrix that is all zero or not finite: other checks report it.
    if gain == 0.0 || !gain.is_finite() || GAINS.contains(&gain) {
        return None;
    }
    let (scale, global) = (parts.scale?, parts.global);
    let whole = |value: &f32| value.fract() == 0.0 && (1.0..=254.0).contains(value);
    if gain > *GAINS.end() && scale.is_floating() && scale.to_f32().is_some_and(|values| values.iter().all(whole)) {
        let found =
            format!("{which}gain {gain:.3e}, and every scale is a whole number from 1 to 254, as E8M0 codes are");
        let expected = "scales 2^(e - 127) in place of the codes e";
        return Some(Finding::new(&EXPONENT_AS_NUMBER, (scale.name, name), found, expected));
    }
    let inverted = measured.gain(measured.rms_inverted);
    let global_inverted = measured.rms_global_inverted.map(|rms| measured.gain(rms));
    let explains = |other: &f64| GAINS.contains(other) && other.log2().abs() <= gain.log2().abs() / 2.0;
    let found = format!("{which}gain {gain:.3e}");
    let by = |tensor: &Tensor, other: f64| {
        let found = format!("{found}, and {other:.3e} with the reciprocals of '{}'", tensor.name);
        let expected = "a gain between 2^-8 and 2^7 of the scales as they are stored";
        Finding::new(&INVERTED_SCALE, (tensor.name, name), found, expected)
    };
    match (global, global_inverted) {
        (Some(global), Some(other)) if explains(&other) => Some(by(&global, other)),
        _ if explains(&inverted) => Some(by(&scale, inverted)),
        _ => {
            let subject = (global.unwrap_or(scale).name, *name);
            Some(Finding::new(&MAGNITUDE, subject, found, "a gain between 2^-8 and 2^7"))
        }
    }
}
