//! Scaling of RoPE frequencies for long contexts, as computed by `transformers`.
//!
//! Every step is rounded to FP32, as in the tables of `transformers`: one ulp of a frequency changes the angle by 0.01 at a
//! million tokens.

use std::f64::consts::PI;

/// Scaling of Llama 3.1. Pairs that make fewer than `low_turns` rotations over the original context have their frequency divided
/// by `factor`; pairs that make more than `high_turns` rotations keep their frequency. For other pairs, the scaling is linear in
/// the number of rotations. `factor` is the ratio of the extended context length to the original context length.
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

/// Scaling of LongRoPE: each frequency θ^(−2i/r) of r = `dims` channels is divided by its own factor.
pub fn each(factors: &[f32], dims: usize, theta: f64) -> Vec<f32> {
    let power = |i: usize| theta.powf(2.0 * i as f64 / dims as f64) as f32;
    let divided = |(i, factor): (usize, &f32)| 1.0 / (factor * power(i));
    factors.iter().enumerate().map(divided).collect()
}
