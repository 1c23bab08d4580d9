//! The global scales that bytes may have been made under.

use super::maker::Maker;
use super::problem::Problem;
use ulplab_core::formats::{Format, Global, Scale};

/// The meaning of the stored global scale for the maker of the bytes.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Level {
    /// The global scale has the meaning that the maker's rule defines. Formats without a global scale use this variant, too.
    AsStored,
    /// The meaning of another rule.
    As(Global),
    /// Nothing: the bytes were made under the tensor's own largest magnitude.
    Own,
    /// This many times what its largest magnitude would be.
    Times(f64),
}

/// Makers by a rule, under the global scales that it may have worked under.
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

/// The meaning of the global scale of a format, if it has one.
fn meaning(format: &Format) -> Option<Global> {
    match (format.scaling?.scale, format.global) {
        (Scale::E4m3(rule), Some(_)) => Some(rule.stored),
        _ => None,
    }
}

/// True if something is stored that may be a scale.
pub fn usable(globals: &[f32]) -> bool {
    globals.iter().any(|global| global.is_finite() && *global > 0.0)
}

/// The largest magnitude that a global scale stands for.
pub fn amax_of(meaning: Global, stored: f32) -> f32 {
    match meaning {
        Global::Absent | Global::Amax => stored,
        Global::Decode => stored * 2688.0,
        Global::Encode => 2688.0 / stored,
    }
}

/// Factors of largest magnitudes by which global scales are known to be off; their reciprocals are tried as well.
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

/// Makers of bytes that were made under another largest magnitude than any that is stored or found, by a factor each.
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
