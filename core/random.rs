//! Random numbers that depend only on a seed and a purpose.

use rand_chacha::ChaCha8Rng;
use rand_chacha::rand_core::SeedableRng;
use rand_distr::{Distribution, StandardNormal};

/// A stream of random numbers that depends only on the seed and the purpose.
pub fn stream(seed: u64, purpose: &str) -> ChaCha8Rng {
    ChaCha8Rng::from_seed(*blake3::hash(format!("{seed}/{purpose}").as_bytes()).as_bytes())
}

/// A draw from N(0, 1).
pub fn gaussian(rng: &mut ChaCha8Rng, len: usize) -> Vec<f32> {
    StandardNormal.sample_iter(rng).take(len).collect()
}
