//! Gaussian noise that replaces rounding errors: noise of the same size, without the structure of the errors.

use rand_chacha::ChaCha8Rng;
use rand_chacha::rand_core::SeedableRng;
use rand_distr::{Distribution, StandardNormal};
use serde::{Deserialize, Serialize};

use ulplab_run::experiment::Mistake;

/// Parameters of the noise that replaces rounding errors.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Noise {
    /// Seed of the random draws.
    pub seed: u64,
    /// Root mean square of the noise divided by the root mean square of the rounding error; 1 keeps the error's energy.
    pub gain: f64,
}

impl Noise {
    /// Reads the keys `noise` and `gain` of a recipe.
    ///
    /// # Errors
    /// Returns an error if `gain` is not positive and finite, or if it is given without `noise`.
    pub fn asked(noise: bool, gain: Option<f64>, seed: u64) -> Result<Option<Self>, Mistake> {
        match gain {
            Some(gain) if !(noise && gain.is_finite() && gain > 0.0) => {
                let message = format!("gain = {gain}: expected a positive number together with noise = true");
                Err(Mistake::at("gain", message))
            }
            _ => Ok(noise.then_some(Self {
                seed,
                gain: gain.unwrap_or(1.0),
            })),
        }
    }
}

/// Rounds rows of `cols` numbers with `round`. If `noise` is given, it replaces the rounding errors. The random numbers depend
/// only on the seed, the tensor's name `what` and the exact numbers, and not on the order in which tensors are rounded.
pub fn rounded_or_noise(
    noise: Option<Noise>,
    what: &str,
    values: &mut [f32],
    cols: usize,
    round: impl FnOnce(&mut [f32]),
) {
    let exact = noise.map(|noise| (noise, values.to_vec()));
    round(values);
    let Some((Noise { seed, gain }, exact)) = exact.filter(|(_, exact)| exact != values) else {
        return;
    };
    let mut hash = blake3::Hasher::new();
    hash.update(format!("{seed}/{what}/").as_bytes());
    hash.update(&exact.iter().flat_map(|x| x.to_le_bytes()).collect::<Vec<u8>>());
    let mut rng = ChaCha8Rng::from_seed(*hash.finalize().as_bytes());
    for (exact, rounded) in exact.chunks(cols).zip(values.chunks_mut(cols)) {
        of_energy(&mut rng, gain, exact, rounded);
    }
}

/// Overwrites `rounded` with `exact` plus Gaussian noise. The root mean square of the noise is `gain` times the root mean square
/// of the error `rounded − exact`.
pub(super) fn of_energy(rng: &mut ChaCha8Rng, gain: f64, exact: &[f32], rounded: &mut [f32]) {
    let pairs = exact.iter().zip(&*rounded);
    let energy: f64 = pairs.map(|(&x, &y)| (f64::from(y) - f64::from(x)).powi(2)).sum();
    if energy == 0.0 {
        return;
    }
    let noise: Vec<f32> = (0..exact.len()).map(|_| StandardNormal.sample(rng)).collect();
    let drawn: f64 = noise.iter().map(|&g| f64::from(g).powi(2)).sum();
    let scale = gain * (energy / drawn).sqrt();
    for ((y, &x), &g) in rounded.iter_mut().zip(exact).zip(&noise) {
        *y = (f64::from(x) + scale * f64::from(g)) as f32;
    }
}
