//! Random numbers that depend only on a seed and the name of their purpose.

use rand_chacha::ChaCha8Rng;
use rand_chacha::rand_core::{Rng, SeedableRng};
use rand_distr::{Distribution, StandardNormal};

/// Returns a stream of random numbers that depends only on the seed and the purpose.
pub fn stream(seed: u64, purpose: &str) -> ChaCha8Rng {
    ChaCha8Rng::from_seed(*blake3::hash(format!("{seed}/{purpose}").as_bytes()).as_bytes())
}

/// Draws `len` numbers from N(0, 1).
pub fn gaussian(rng: &mut ChaCha8Rng, len: usize) -> Vec<f32> {
    StandardNormal.sample_iter(rng).take(len).collect()
}

/// Draws an integer below `n`; each probability is 1/n up to a relative error of n / 2³².
pub fn below(rng: &mut ChaCha8Rng, n: usize) -> usize {
    ((u64::from(rng.next_u32()) * n as u64) >> 32) as usize
}

/// Philox4x32-10, a counter-based generator: returns four random words for a counter and a key. GPU kernels can compute the same
/// words (Salmon et al., *Parallel random numbers: as easy as 1, 2, 3*, 2011).
pub fn philox(mut counter: [u32; 4], mut key: [u32; 2]) -> [u32; 4] {
    let product = |a: u32, b: u32| {
        let product = u64::from(a) * u64::from(b);
        [(product >> 32) as u32, product as u32]
    };
    for _ in 0..10 {
        let [high_0, low_0] = product(0xd251_1f53, counter[0]);
        let [high_1, low_1] = product(0xcd9e_8d57, counter[2]);
        counter = [high_1 ^ counter[1] ^ key[0], low_1, high_0 ^ counter[3] ^ key[1], low_0];
        key = [key[0].wrapping_add(0x9e37_79b9), key[1].wrapping_add(0xbb67_ae85)];
    }
    counter
}

/// Returns the Gumbel noise −ln(−ln u) of a token of a sequence at a position; the key is the seed. u = (w + ½)/2²³, where w is
/// the upper 23 bits of a word of [`philox`].
pub fn gumbel(key: [u32; 2], [sequence, position]: [u32; 2], token: usize) -> f64 {
    let words = philox([token as u32 / 4, position, sequence, 0], key);
    let uniform = (f64::from(words[token % 4] >> 9) + 0.5) / f64::from(1 << 23);
    -(-uniform.ln()).ln()
}
