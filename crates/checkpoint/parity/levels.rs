//! Global scales that the quantizer may have used.

use super::maker::Maker;
use super::problem::Problem;
use ulplab_core::formats::{Format, Global, Scale};

/// The relation between the stored global scale and the global scale that the quantizer used.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Level {
    /// The stored number has the meaning that the quantizer's rule defines. Also used for formats without a global scale.
    AsStored,
    /// The stored number has the meaning that another rule defines.
    As(Global),
    /// The stored number was not used. The quantizer used the largest magnitude of the tensor itself.
    Own,
    /// The quantizer used the largest magnitude that the stored number stands for, times this factor.
    Times(f64),
}

/// Returns quantizers with the rule of a format, one for each global scale that the rule may have used.
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

/// Meaning of the global scale of a format; `None` if it has no global scale.
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

/// Converts a stored global scale to the largest magnitude that it stands for.
pub fn amax_of(meaning: Global, stored: f32) -> f32 {
    match meaning {
        Global::Absent | Global::Amax => stored,
        Global::Decode => stored * 2688.0,
        Global::Encode => 2688.0 / stored,
    }
}

/// Factors by which the largest magnitude that a global scale stands for is off in known faults. Their reciprocals are tried as
/// well.
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

/// Returns quantizers whose global scales stand for the stored largest magnitude times a factor, one quantizer for each known
/// factor.
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
