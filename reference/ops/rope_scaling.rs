//! Scaling of a RoPE's frequencies for long contexts, as `transformers` computes it.
//!
//! Every step is rounded to FP32, since tables are: one ulp of f turns φ by 0.01 at a million tokens.

use std::f64::consts::PI;

use super::rope::{Yarn, frequencies};

/// Change of the frequencies fᵢ = θ^(−2i/r).
#[derive(Clone, Debug, PartialEq)]
pub enum Scaling {
    /// Nothing.
    None,
    /// All are divided by a factor: positions are interpolated.
    Linear {
        /// Ratio of the longer contexts to the original ones.
        factor: f64,
    },
    /// Llama 3.1: those that turn slowly are divided by a factor, with a linear ramp in turns per context between.
    Llama3 {
        /// Ratio of the longer contexts to `original_positions`.
        factor: f64,
        /// Pairs that turn less often than this over the original context are divided.
        low_turns: f64,
        /// Pairs that turn more often than this are kept.
        high_turns: f64,
        /// Context that the model was first trained on.
        original_positions: f64,
    },
    /// YaRN.
    Yarn(Yarn),
    /// LongRoPE: each is divided by a factor of its own.
    Each(Vec<f32>),
}

impl Scaling {
    /// The frequencies of `dims` channels.
    pub fn frequencies(&self, dims: usize, theta: f64) -> Vec<f32> {
        let plain = || frequencies(dims, theta, None);
        match self {
            Self::None => plain(),
            Self::Linear { factor } => plain().iter().map(|f| f / *factor as f32).collect(),
            Self::Llama3 {
                factor,
                low_turns,
                high_turns,
                original_positions,
            } => {
                let scale = |f: f32| {
                    let wavelength = (2.0 * PI) as f32 / f;
                    let turns = *original_positions as f32 / wavelength;
                    let divided = f / *factor as f32;
                    if wavelength > (original_positions / low_turns) as f32 {
                        return divided;
                    }
                    if wavelength < (original_positions / high_turns) as f32 {
                        return f;
                    }
                    let kept = (turns - *low_turns as f32) / (high_turns - low_turns) as f32;
                    (1.0 - kept) * f / *factor as f32 + kept * f
                };
                plain().into_iter().map(scale).collect()
            }
            Self::Yarn(yarn) => frequencies(dims, theta, Some(*yarn)),
            Self::Each(factors) => {
                let power = |i: usize| theta.powf(2.0 * i as f64 / dims as f64) as f32;
                let divided = |(i, factor): (usize, &f32)| 1.0 / (factor * power(i));
                factors.iter().enumerate().map(divided).collect()
            }
        }
    }
}
