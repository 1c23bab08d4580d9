//! NVFP4 rules that try several scales for a block and keep the one with the smallest error.

use super::cast::{Cast, INFINITY_BITS};
use super::element::{E2M1_CAST, UE4M3_CAST};
use super::nvfp4::{Level, Nvfp4Rule};

/// Selection among several candidate scales of a block.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Select {
    /// The scale by the rule's formula is the only candidate.
    One,
    /// There are two candidates: the scales that map the block's largest value to 6 and to 4. The scale for 4 is chosen if its
    /// error is strictly smaller: E2M1 has finer steps below 4.
    FourOverSix {
        /// Error by which the candidates are compared.
        error: Error,
        /// Arithmetic in which the error is computed.
        domain: Domain,
    },
    /// Candidates are all E4M3 codes at most `radius` from the code of the rule. Among equal errors, the smallest code wins.
    Search {
        /// Number of codes that are tried below and above the code of the rule's scale.
        radius: u32,
    },
}

/// Error of a block that the selection minimises: a sum over elements, where `d` is the error of one element.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Error {
    /// Sum of `|d|`.
    Absolute,
    /// Sum of `d²`.
    Squared,
}

/// Arithmetic of the error `d` of an element `x`. `q` is the value of the element's code, and `s` is the value of the block's
/// scale. The module `nvfp4` defines `G`, `amax` and `span`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Domain {
    /// `((q·s)·amax)/span − x` in f32.
    F32,
    /// `fl16(q·s) − x·G`: TransformerEngine's fast path.
    F16,
}

/// Returns the E4M3 code of the candidate scale with the smallest error. `scale` is the rule's scale before its cast to E4M3.
pub(super) fn best(rule: &Nvfp4Rule, amax: u32, scale: f32, block: &[f32], level: &Level) -> u8 {
    let own = UE4M3_CAST.encode(scale);
    if amax >= INFINITY_BITS || !level.stored.is_finite() {
        return own as u8;
    }
    let error = |code: u32, error, domain| sum(rule, (error, domain), amax, code, block, level);
    let better = |best: (u32, f32), code, error| if error < best.1 { (code, error) } else { best };
    let (code, _) = match rule.select {
        Select::One => (own, 0.0),
        Select::FourOverSix { error: kind, domain } => {
            // With a scale 3/2 as large, the largest value becomes 4 instead of 6.
            let four = UE4M3_CAST.encode(scale * 1.5);
            better((own, error(own, kind, domain)), four, error(four, kind, domain))
        }
        Select::Search { radius } => {
            let codes = own.saturating_sub(radius).max(1)..=(own + radius).min(0x7e);
            let errors = codes.map(|code| (code, error(code, Error::Squared, Domain::F32)));
            errors.fold((own, f32::INFINITY), |best, (code, error)| better(best, code, error))
        }
    };
    code as u8
}

/// Returns the error of a block whose scale has the E4M3 code `code`. The errors of its elements are summed in order, in f32.
fn sum(rule: &Nvfp4Rule, (error, domain): (Error, Domain), amax: u32, code: u32, block: &[f32], level: &Level) -> f32 {
    let half = |x: f32| half::f16::from_f32(x).to_f32();
    let scale = UE4M3_CAST.decode(code);
    let (operation, factor) = (rule.operation(), rule.factor(rule.division, amax, scale, level));
    let deviations = block.iter().map(|x| {
        let q = E2M1_CAST.decode(E2M1_CAST.encode(operation.apply(factor, *x)));
        match domain {
            Domain::F32 => ((q * scale) * level.stored) / rule.span - x,
            Domain::F16 => half(q * scale) - x * level.encode,
        }
    });
    match error {
        Error::Absolute => deviations.fold(0.0, |sum, d| sum + d.abs()),
        Error::Squared => deviations.fold(0.0, |sum, d| sum + d * d),
    }
}
