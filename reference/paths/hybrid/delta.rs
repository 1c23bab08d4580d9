//! The gated delta rule as the mixer of a layer (the part that mixes tokens): projections, convolution, gates, delta rule, gated
//! norm.

use super::latent::columns;
use super::sites::*;
use crate::ops::linear_attention::{
    self, Chunked, Decay, Gate, Inputs, Kv, L2_EPS, Recurrent, Sizes, State, beta, l2_normalize,
};
use crate::ops::projection::Projection;
use crate::ops::short_conv::ShortConv;
use crate::paths::gqa::Context;
use crate::paths::gqa::layer::{Memory, Mixer};
use crate::{Real, Tensor};

/// Number of tokens per chunk of the delta rule, in calls with more than one token.
pub const CHUNK: usize = 64;

/// Gated delta rule of one layer, with its projections.
pub(super) struct DeltaRule<T> {
    /// Projection to the queries of all heads, then all keys, then all values.
    pub qkv: Projection<T>,
    pub gate: Low<T>,
    pub beta: Projection<T>,
    /// Projection to one raw decay gate for each value head, or for each key channel of each value head.
    pub decay: Low<T>,
    /// True if each key channel has its own decay and the output gate is σ(z); false for a decay per head and the gate z·σ(z).
    pub by_channel: bool,
    pub conv: ShortConv<T>,
    pub a_log: Vec<T>,
    /// Bias of the raw decay gates, one number for each raw gate of a token.
    pub dt_bias: Vec<T>,
    /// Weight of the output norm, with as many channels as a value head; not zero-centred.
    pub norm: Vec<T>,
    pub heads: Projection<T>,
    pub sizes: Sizes,
    pub eps: T,
}

/// A full projection (`down` is `None`), or a low-rank pair `up(down(x))` with a site at the output of `down`.
pub(super) struct Low<T> {
    pub down: Option<(Projection<T>, &'static str)>,
    pub up: Projection<T>,
}

impl<T: Real> Low<T> {
    fn apply(&self, x: &Tensor<T>, cx: &mut Context<'_, T>) -> Tensor<T> {
        let Some((down, site)) = &self.down else {
            return self.up.apply(x);
        };
        let mut low = down.apply(x);
        cx.pass(site, &mut low);
        self.up.apply(&low)
    }
}

impl<T: Real> Mixer<T> for DeltaRule<T> {
    /// Returns the state before the first token, all zeros: the last inputs of the convolution, `[kernel − 1, channels]`, and the
    /// matrices of the delta rule, `[HV, K, V]`.
    fn memory(&self) -> Memory<T> {
        let sizes = self.sizes;
        let matrices = [sizes.value_heads, sizes.key_dim, sizes.value_dim];
        Memory::State([
            Tensor::full(self.conv.state(), T::ZERO),
            Tensor::full(matrices, T::ZERO),
        ])
    }

    fn forward(&self, x: &Tensor<T>, memory: &mut Memory<T>, cx: &mut Context<'_, T>) -> Result<Tensor<T>, String> {
        let Memory::State([conv, matrices]) = memory else {
            unreachable!("it was made by this mixer's like");
        };
        let tokens = x.rows();
        let [q, k, v] = self.queries_keys_values(x, conv, cx);
        let (decay, beta) = self.gates(x, cx)?;
        let inputs = Inputs {
            cu_seqlens: &[0, tokens],
            q: &q,
            k: &k,
            v: &v,
            decay: match self.by_channel {
                false => Decay::Head(&decay),
                true => Decay::Channel(&decay),
            },
            beta: Some(&beta),
            scale: T::from_f64((self.sizes.key_dim as f64).powf(-0.5)),
        };
        let shape = std::mem::take(&mut matrices.shape);
        let data = std::mem::take(&mut matrices.data);
        let mut pool = State::<T, Kv>::new(Tensor::new([&[1], &shape[..]].concat(), data))?;
        let output = match tokens {
            1 => linear_attention::forward(&inputs, &Recurrent::DEFINITION, &mut pool, None),
            _ => linear_attention::forward(&inputs, &Chunked::exact(CHUNK), &mut pool, None),
        };
        *matrices = Tensor::new(shape, pool.into_tensor().data);
        let mut output = output?;
        self.pass_state(LINEAR_STATE, matrices, tokens, cx);
        cx.pass(LINEAR_OUTPUT, &mut output);
        cx.rmsnorm(&mut output, None, self.eps);
        cx.pass(LINEAR_NORMED, &mut output);
        let mut gate = self.gate.apply(x, cx);
        cx.pass(LINEAR_GATE, &mut gate);
        let gates = gate.data.chunks_exact(self.norm.len());
        for (head, gate) in output.data.chunks_exact_mut(self.norm.len()).zip(gates) {
            for ((y, &w), &z) in head.iter_mut().zip(&self.norm).zip(gate) {
                let gate = match self.by_channel {
                    false => z * z.sigmoid(),
                    true => z.sigmoid(),
                };
                *y = *y * w * gate;
            }
        }
        output.shape = vec![tokens, self.heads.inputs()];
        cx.pass(LINEAR_HEADS, &mut output);
        Ok(self.heads.apply(&output))
    }
}

impl<T: Real> DeltaRule<T> {
    /// Returns queries and keys `[T, H, K]`, L2-normalised, and values `[T, HV, V]`; updates the convolution's state `conv`.
    fn queries_keys_values(&self, x: &Tensor<T>, conv: &mut Tensor<T>, cx: &mut Context<'_, T>) -> [Tensor<T>; 3] {
        let sizes = self.sizes;
        let mut mixed = self.qkv.apply(x);
        cx.pass(LINEAR_QKV, &mut mixed);
        let mixed = self.conv.apply(&mixed, conv);
        self.pass_state(LINEAR_CONV_STATE, conv, x.rows(), cx);
        let part = |first: usize, heads: usize, dim: usize| {
            let data = columns(&mixed, mixed.cols(), first, heads * dim).data;
            Tensor::new([x.rows(), heads, dim], data)
        };
        let keys = sizes.heads * sizes.key_dim;
        let mut all = [
            part(0, sizes.heads, sizes.key_dim),
            part(keys, sizes.heads, sizes.key_dim),
            part(2 * keys, sizes.value_heads, sizes.value_dim),
        ];
        all[..2].iter_mut().for_each(|x| l2_normalize(x, T::from_f64(L2_EPS)));
        for (site, x) in [LINEAR_QUERY, LINEAR_KEY, LINEAR_VALUE].into_iter().zip(&mut all) {
            cx.pass(site, x);
        }
        all
    }

    /// Returns log decays `[T, HV]` or `[T, HV, K]`, and β `[T, HV]`. The delta rule accepts only log decays ≤ 0, so positive and
    /// NaN decays are replaced by 0. If a decay is NaN, the β of its head becomes NaN, so that the state still becomes NaN.
    fn gates(&self, x: &Tensor<T>, cx: &mut Context<'_, T>) -> Result<(Tensor<T>, Tensor<T>), String> {
        let mut beta = beta(&self.beta.apply(x), false);
        cx.pass(LINEAR_BETA, &mut beta);
        let mut raw = self.decay.apply(x, cx);
        let (site, channels) = match self.by_channel {
            false => (LINEAR_DECAY, 1),
            true => {
                raw.shape = vec![x.rows(), self.sizes.value_heads, self.sizes.key_dim];
                (LINEAR_CHANNEL_DECAY, self.sizes.key_dim)
            }
        };
        let gate = Gate::Softplus {
            x: &raw,
            a_log: &self.a_log,
            dt_bias: Some(&self.dt_bias),
        };
        let mut decay = gate.log_decay()?;
        cx.pass(site, &mut decay);
        for (at, decay) in decay.data.iter_mut().enumerate() {
            if (*decay).partial_cmp(&T::ZERO).is_none() {
                beta.data[at / channels] = T::from_f64(f64::NAN);
                *decay = T::ZERO;
            }
            *decay = decay.smaller(T::ZERO);
        }
        Ok((decay, beta))
    }

    /// Calls the hook at `site` with the state after a call. The row number of the first row of the state is (last token's
    /// position) × (rows of a state), so that states after different tokens have different row numbers.
    fn pass_state(&self, site: &'static str, state: &mut Tensor<T>, tokens: usize, cx: &mut Context<'_, T>) {
        let first = (cx.start + tokens - 1) * state.rows();
        cx.numerics.site(&cx.at(site).from_row(first), state);
    }
}
