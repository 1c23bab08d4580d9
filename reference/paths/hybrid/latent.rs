//! Attention over latents (MLA): the keys and values of a token are projections of one short vector, the latent. A part of each
//! key is not projected from the latent, and all heads share it. RoPE is not used.
//!
//! An engine caches latents and shared key parts, and projects the cached latents again for each later token. The reference
//! caches keys and values instead: it projects the latent of each token only once, when the token is read. Both compute the same
//! result.

use super::sites::*;
use crate::ops::grouped_attention::KvCache;
use crate::ops::projection::Projection;
use crate::paths::gqa::Context;
use crate::paths::gqa::layer::{Memory, Mixer};
use crate::{Real, Tensor};

/// Latent attention of one layer.
pub(super) struct LatentAttention<T> {
    pub query: Projection<T>,
    /// Projection of the input to a latent and the part of the keys that all heads share.
    pub down: Projection<T>,
    /// Weight of the norm of latents; `eps` is the ε of this norm only.
    pub norm: Vec<T>,
    pub eps: T,
    /// Projection of a latent to the key and the value of each head: key of head 0, value of head 0, key of head 1, ….
    pub up: Projection<T>,
    pub heads: Projection<T>,
    /// Number of attention heads.
    pub count: usize,
    /// Numbers of channels: of the key part that each head has for itself, of the key part that all heads share, and of a value.
    pub dims: [usize; 3],
    pub scale: T,
}

impl<T: Real> Mixer<T> for LatentAttention<T> {
    fn memory(&self) -> Memory<T> {
        let [own, shared, value] = self.dims;
        Memory::Cache(KvCache::new(self.count, [own + shared, value]))
    }

    fn forward(&self, x: &Tensor<T>, memory: &mut Memory<T>, cx: &mut Context<'_, T>) -> Result<Tensor<T>, String> {
        let Memory::Cache(cache) = memory else {
            unreachable!("it was made by this mixer's like");
        };
        let (tokens, [own, shared, value]) = (x.rows(), self.dims);
        let mut query = self.query.apply(x);
        query.shape = vec![tokens, self.count, own + shared];
        cx.pass(QUERY, &mut query);

        let down = self.down.apply(x);
        let rank = self.norm.len();
        let mut latent = columns(&down, rank + shared, 0, rank);
        cx.rmsnorm(&mut latent, Some(&self.norm), self.eps);
        let of_values = cx.pass_both(LATENT, &mut latent);
        let mut common = columns(&down, rank + shared, rank, shared);
        cx.pass(SHARED_KEY, &mut common);

        let up = self.up.apply(&latent);
        let up_values = of_values.map(|latent| self.up.apply(&latent));
        let part = |up: &Tensor<T>, first, len| {
            let part = columns(up, own + value, first, len);
            Tensor::new([tokens, self.count, len], part.data)
        };
        let mut keys = part(&up, 0, own);
        cx.pass(LATENT_KEY, &mut keys);
        let mut values = part(up_values.as_ref().unwrap_or(&up), own, value);
        cx.pass(LATENT_VALUE, &mut values);

        let whole = keys.data.chunks_exact(own).enumerate().flat_map(|(row, key)| {
            let common = common.row(row / self.count);
            key.iter().chain(common).copied()
        });
        let keys = Tensor::new([tokens, self.count, own + shared], whole.collect());
        cache.push(&keys, &values);
        let mut mixed = cache.attend(&query, self.scale, None, None);
        mixed.shape = vec![tokens, self.heads.inputs()];
        cx.pass(HEADS, &mut mixed);
        Ok(self.heads.apply(&mixed))
    }
}

/// Reads the elements of `x` as rows of `width` elements, and returns the columns `first..first + len` of these rows.
pub(super) fn columns<T: Real>(x: &Tensor<T>, width: usize, first: usize, len: usize) -> Tensor<T> {
    let rows = x.data.chunks_exact(width);
    let data: Vec<T> = rows.flat_map(|row| &row[first..first + len]).copied().collect();
    Tensor::new([x.data.len() / width, len], data)
}
