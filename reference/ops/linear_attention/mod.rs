//! Linear attention with a matrix state: gated delta rule (GDN), Kimi delta attention (KDA), and the plain decay of
//! lightning attention and simple GLA. One code: they differ in the [`Decay`] and in whether there is a `beta`.
//!
//! Of a value head, with state S `[K, V]`, log decay g ≤ 0 (of the head, or of each key channel, which is a row of S):
//!
//! ```text
//! S ← exp(g) · S              decay first
//! d = β (v − Sᵀk)             the delta rule; d = v without β
//! S ← S + k dᵀ
//! o = scale · Sᵀq             the output reads the updated state
//! ```
//!
//! Value head h reads key head h / (HV/H): each key head serves HV/H value heads in a row. [`Recurrent`] is this as it
//! stands (or in its one-pass form), [`Chunked`] the WY form of matrix products that prefill kernels compute.

mod chunked;
mod gate;
mod inputs;
mod inverse;
mod policy;
mod recurrent;
mod scores;
mod state;

use rayon::prelude::*;

pub use chunked::Chunked;
pub(crate) use gate::softplus;
pub use gate::{Gate, L2_EPS, beta, l2_normalize};
pub use inputs::{Decay, Head, Inputs, Sizes};
pub use inverse::{BLOCK, Inversion, inverse};
pub use policy::{Exact, FORGOTTEN, Intermediate, Policy};
pub use recurrent::Recurrent;
pub use state::{Kv, Layout, State, Vk};

use crate::{Real, Tensor};

/// A way to compute the recurrence.
pub trait Form<T: Real>: Sync {
    /// Returns whether it can be computed so at all.
    ///
    /// # Errors
    /// Why not.
    fn check(&self) -> Result<(), String> {
        Ok(())
    }

    /// One value head of one sequence: takes `state` `[K, V]`, which is stored as `L` between tokens or chunks, to the end of
    /// the sequence and fills `out` `[tokens, V]`.
    fn head<L: Layout>(&self, head: &Head<T>, state: &mut [T], out: &mut [T]);
}

/// Runs every sequence from its slot of the pool and leaves its final state there; gives o `[tokens, HV, V]`.
///
/// `slots[n]` is the slot of sequence n; below 0 the sequence is skipped: its output is zero and no state is touched.
/// Without `slots`, sequence n has slot n. A sequence of no tokens leaves its state as it is. On an error nothing is changed.
///
/// # Errors
/// What [`Form::check`] and [`Inputs::check`] find, states of other sizes, and slots that do not exist or are used twice.
pub fn forward<T: Real, L: Layout>(
    inputs: &Inputs<'_, T>,
    form: &impl Form<T>,
    pool: &mut State<T, L>,
    slots: Option<&[i64]>,
) -> Result<Tensor<T>, String> {
    form.check()?;
    let sizes = inputs.check()?;
    let expected = [sizes.value_heads, sizes.key_dim, sizes.value_dim];
    if pool.sizes()[1..] != expected {
        return Err(format!(
            "the state has [value heads, K, V] {:?}, the inputs have {expected:?}",
            &pool.sizes()[1..]
        ));
    }
    let sequences = sequences_of_slots(slots, inputs.cu_seqlens.len() - 1, pool.sizes()[0])?;
    let (heads, dim) = (sizes.value_heads, sizes.value_dim);
    let run = |(at, state): (usize, &mut [T])| {
        let head = inputs.head(sequences[at / heads]?, at % heads);
        let mut out = vec![T::ZERO; head.tokens() * dim];
        L::as_kv(state, sizes.key_dim, dim, |state| {
            form.head::<L>(&head, state, &mut out)
        });
        Some((head, out))
    };
    let outputs: Vec<_> = pool.heads_mut().enumerate().filter_map(run).collect();
    let mut o = Tensor::full([inputs.tokens(), heads, dim], T::ZERO);
    for (head, out) in outputs {
        for (token, row) in out.chunks_exact(dim).enumerate() {
            o.row_mut((head.first_token + token) * heads + head.value_head)
                .copy_from_slice(row);
        }
    }
    Ok(o)
}

/// Returns the sequence that works on each slot of the pool.
fn sequences_of_slots(slots: Option<&[i64]>, sequences: usize, pool: usize) -> Result<Vec<Option<usize>>, String> {
    let in_order: Vec<i64>;
    let slots = match slots {
        Some(slots) => slots,
        None if pool == sequences => {
            in_order = (0..sequences as i64).collect();
            &in_order
        }
        None => {
            return Err(format!(
                "the state has {pool} slots for {sequences} sequences, and no indices"
            ));
        }
    };
    if slots.len() != sequences {
        return Err(format!("{} slot indices for {sequences} sequences", slots.len()));
    }
    let mut users = vec![None; pool];
    for (sequence, &slot) in slots.iter().enumerate() {
        let Ok(index) = usize::try_from(slot) else {
            continue;
        };
        let user = users
            .get_mut(index)
            .ok_or_else(|| format!("sequence {sequence} has slot {slot} of a pool of {pool}"))?;
        if let Some(other) = user.replace(sequence) {
            return Err(format!("sequences {other} and {sequence} have the same slot {slot}"));
        }
    }
    Ok(users)
}
