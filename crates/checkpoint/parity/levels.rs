//! The global scales that bytes may have been made under.

use super::problem::Problem;
use ulplab_core::formats::{Format, Global, Scale};

/// What the stored global scale is to the maker of the bytes.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Level {
    /// What the rule takes it for, or there is none.
    AsStored,
    /// What another rule takes it for.
    As(Global),
    /// Nothing: the bytes were made under the tensor's own largest magnitude.
    Own,
    /// This many times what its largest magnitude would be.
    Times(f64),
}

/// The global scales that a rule may have worked under.
pub fn levels(problem: &Problem, format: &Format) -> Vec<(Level, Vec<f32>)> {
    let Some(Scale::E4m3(rule)) = format
        .scaling
        .map(|scaling| scaling.scale)
        .filter(|_| format.global.is_some())
    else {
        return vec![(Level::AsStored, Vec::new())];
    };
    let stored = &problem.stored.global;
    let store = |amax: f32| format.global_of(amax).unwrap_or(1.0);
    let mut all = Vec::new();
    all.push((Level::AsStored, stored.clone()));
    if usable(stored) {
        for meaning in [Global::Amax, Global::Decode, Global::Encode] {
            if meaning != rule.stored {
                let translate = |global: &f32| store(amax_of(meaning, *global));
                all.push((Level::As(meaning), stored.iter().map(translate).collect()));
            }
        }
    }
    let own = (0..stored.len()).map(|index| store(problem.amax_under(index)));
    all.push((Level::Own, own.collect()));
    all
}

/// Whether something is stored that may be a scale.
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

/// Global scales of bytes that were made under another largest magnitude than any that is stored or found: the factor that
/// makes most scales right.
pub fn by_factor(problem: &Problem, format: &Format) -> Vec<(Level, Vec<f32>)> {
    let Some(Scale::E4m3(rule)) = format
        .scaling
        .map(|scaling| scaling.scale)
        .filter(|_| format.global.is_some())
    else {
        return Vec::new();
    };
    let stored = &problem.stored.global;
    let known = [
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
    let factors = known.into_iter().flat_map(|factor: f64| [factor, 1.0 / factor]);
    let times = |factor: f64| {
        let of = |global: &f32| {
            let amax = f64::from(amax_of(rule.stored, *global)) * factor;
            format.global_of(amax as f32).unwrap_or(1.0)
        };
        (Level::Times(factor), stored.iter().map(of).collect())
    };
    factors.map(times).collect()
}
