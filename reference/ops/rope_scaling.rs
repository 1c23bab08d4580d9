//! Scaling of a RoPE's frequencies for long contexts, as `transformers` computes it.
//!
//! Every step is rounded to FP32, since tables are: one ulp of f turns φ by 0.01 at a million tokens.

use std::f64::consts::PI;

/// Llama 3.1: of these frequencies those that turn slowly are divided by a factor, with a linear ramp in turns per context between.
/// Pairs that turn less often than the first number of `turns` over the original context are divided, and those that turn more often than
/// the second are kept; `factor` is the ratio of the longer contexts to the original ones.
pub fn llama3(plain: &[f32], factor: f64, [low_turns, high_turns]: [f64; 2], original_positions: f64) -> Vec<f32> {
    let scale = |&f: &f32| {
        let wavelength = (2.0 * PI) as f32 / f;
        let turns = original_positions as f32 / wavelength;
        let divided = f / factor as f32;
        if wavelength > (original_positions / low_turns) as f32 {
            return divided;
        }
        if wavelength < (original_positions / high_turns) as f32 {
            return f;
        }
        let kept = (turns - low_turns as f32) / (high_turns - low_turns) as f32;
        (1.0 - kept) * f / factor as f32 + kept * f
    };
    plain.iter().map(scale).collect()
}

/// LongRoPE: each of the frequencies θ^(−2i/r) of r = `dims` channels is divided by a factor of its own.
pub fn each(factors: &[f32], dims: usize, theta: f64) -> Vec<f32> {
    let power = |i: usize| theta.powf(2.0 * i as f64 / dims as f64) as f32;
    let divided = |(i, factor): (usize, &f32)| 1.0 / (factor * power(i));
    factors.iter().enumerate().map(divided).collect()
}
