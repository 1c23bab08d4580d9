//! Calls the hooks of [`crate::Numerics`] at the sites of Swap-FFN: the named tensors and decisions that a hook can change.

use crate::{Choice, Real, Tensor};

/// Context of a call: event, position and hooks. The path has no RoPE, so the type parameter for the RoPE is `()`.
pub(super) type Context<'a, T> = crate::paths::context::Context<'a, T, ()>;

impl<T: Real> Context<'_, T> {
    /// Calls the hook of a decision that selects one candidate per row. The hook may overwrite `chosen`, the indices of the
    /// selected candidates; `choose` returns the final indices.
    pub fn choose(&mut self, name: &'static str, scores: Tensor<T>, chosen: Vec<i32>) -> Result<Vec<u8>, String> {
        let site = self.at(name);
        let candidates = scores.cols();
        let mut choice = Choice {
            indices: chosen,
            k: 1,
            scores,
        };
        self.numerics.choice(&site, &mut choice);
        let index = |(row, &index): (usize, &i32)| match usize::try_from(index) {
            Ok(valid) if valid < candidates => Ok(valid as u8),
            _ => Err(format!(
                "{site}: row {row} was given {index}, expected 0 to {}",
                candidates - 1
            )),
        };
        choice.indices.iter().enumerate().map(index).collect()
    }
}
