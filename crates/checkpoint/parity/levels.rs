//! Hypotheses about the global scales that the quantizer used: the stored scales, perhaps as another rule defines them (e.g. as
//! reciprocals), the stored scales times a factor, or scales that the quantizer computed itself.

use super::maker::Maker;
use super::problem::Problem;
use ulplab_core::formats::{Format, Global, Scale};

/// The relation between the stored global scale and the global scale that the quantizer used.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Level {
    /// The quantizer used the stored number as its own rule defines it. Also the value for formats without a global scale.
    AsStored,
    /// The quantizer used the stored number as another rule defines it, e.g. as the reciprocal.
    As(Global),
    /// The quantizer ignored the stored number and computed the global scale from the largest magnitude of the tensor.
    Own,
    /// The quantizer computed its global scale from this factor times the largest magnitude that the stored number implies.
    Times(f64),
}

/// Returns hypothetical quantizers with the rule of `format`, one for each way in which the stored global scale may have been
/// used or ignored.
pub fn levels(problem: &Problem, format: &Format) -> Vec<Maker> {
    let Some(own) = meaning(format) else {
        return vec![Maker::new(format, Level::AsStored, Vec::new())];
    };
    let stored = &problem.stored.global;
    let store = |amax: f32| format.global_of(amax).unwrap_or(1.0);
    let mut all = vec![Maker::as_stored(problem, format)];
    if usable(stored) {
        let others = [Global::Amax, Global::Decode, Global::Encode].into_iter();
        all.extend(others.filter(|meaning| *meaning != own).map(|meaning| {
            let translate = |global: &f32| store(amax_of(meaning, *global));
            Maker::new(format, Level::As(meaning), stored.iter().map(translate).collect())
        }));
    }
    let own = (0..stored.len()).map(|index| store(problem.amax_under(index)));
    all.push(Maker::new(format, Level::Own, own.collect()));
    all
}

/// Returns how a format stores its global scale (amax, scale or reciprocal); `None` if the format has no global scale.
fn meaning(format: &Format) -> Option<Global> {
    match (format.scaling?.scale, format.global) {
        (Scale::E4m3(rule), Some(_)) => Some(rule.stored),
        _ => None,
    }
}

/// True if at least one stored global scale is a positive finite number.
pub fn usable(globals: &[f32]) -> bool {
    globals.iter().any(|global| global.is_finite() && *global > 0.0)
}

/// Converts a stored global scale to the largest magnitude from which it was computed.
pub fn amax_of(meaning: Global, stored: f32) -> f32 {
    match meaning {
        Global::Absent | Global::Amax => stored,
        Global::Decode => stored * 2688.0,
        Global::Encode => 2688.0 / stored,
    }
}

/// Factors by which known faults change the largest magnitude that a global scale is computed from. The reciprocals of these
/// factors are tried as well.
const KNOWN: [f64; 11] = [
    6.0,
    448.0,
    2.0,
    4.0,
    8.0,
    16.0,
    1.75,
    2688.0,
    127.0,
    256.0,
    240.0 / 448.0,
];

/// Returns hypothetical quantizers, one for each known factor. The global scales of a quantizer are computed from its factor
/// times the largest magnitude that the stored scales imply.
pub fn by_factor(problem: &Problem, format: &Format) -> Vec<Maker> {
    let Some(meaning) = meaning(format) else {
        return Vec::new();
    };
    let factors = KNOWN.into_iter().flat_map(|factor| [factor, 1.0 / factor]);
    let times = |factor: f64| {
        let scaled = |global: &f32| {
            let amax = f64::from(amax_of(meaning, *global)) * factor;
            format.global_of(amax as f32).unwrap_or(1.0)
        };
        let globals = problem.stored.global.iter().map(scaled).collect();
        Maker::new(format, Level::Times(factor), globals)
    };
    factors.map(times).collect()
}
