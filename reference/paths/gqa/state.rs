//! State of a sequence between calls: keys and values, apart.

use super::Config;
use crate::Real;
use crate::ops::grouped_attention::KvCache;
use crate::ops::rope_half::HalfRope;
use crate::paths;

/// The caches of one sequence.
#[derive(Clone, Debug)]
pub struct State<T> {
    pub(super) layers: Vec<KvCache<T>>,
    pub(super) tokens: usize,
    pub(super) ropes: Vec<HalfRope<T>>,
}

impl<T: Real> State<T> {
    /// The caches before the first token.
    pub(super) fn empty(config: &Config) -> Self {
        let cache = KvCache::new(config.num_key_value_heads, [config.head_dim; 2]);
        let ropes = config.ropes.iter();
        Self {
            layers: vec![cache; config.layers.len()],
            tokens: 0,
            ropes: ropes
                .map(|rope| HalfRope::new(rope.frequencies.clone(), rope.factor))
                .collect(),
        }
    }
}

impl<T: Real> paths::State<T> for State<T> {
    fn tokens(&self) -> usize {
        self.tokens
    }

    fn boxed(&self) -> Box<dyn paths::State<T>> {
        Box::new(self.clone())
    }
}
