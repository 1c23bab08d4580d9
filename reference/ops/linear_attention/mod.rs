//! Linear attention with a matrix state: gated delta rule (GDN), Kimi delta attention (KDA), and the plain decay of lightning
//! attention and simple GLA. All variants share the code; they differ only in the [`Decay`] and in the presence of `beta`.
//!
//! Each token updates the state S `[K, V]` of a value head with its key k, its value v, its factor β and its log decay g ≤ 0, and
//! then reads the state with its query q. The decay is one number per head, or one per key channel (row of S):
//!
//! ```text
//! S ← exp(g) · S              decay first
//! d = β (v − Sᵀk)             the delta rule; d = v without β
//! S ← S + k dᵀ
//! o = scale · Sᵀq             the output reads the updated state
//! ```
//!
//! With H key heads and HV value heads, value head h reads key head h / (HV/H): each key head serves HV/H consecutive value
//! heads. [`Recurrent`] computes the recurrence as written above (or in one pass); [`Chunked`] computes the WY form with matrix
//! products, like prefill kernels.

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

/// Algorithm that computes the recurrence.
pub trait Form<T: Real>: Sync {
    /// Checks the parameters of the algorithm.
    ///
    /// # Errors
    /// Returns a message if a parameter is invalid.
    fn check(&self) -> Result<(), String> {
        Ok(())
    }

    /// Computes one value head of one sequence: replaces `state` `[K, V]` by the state after the sequence, and fills `out`
    /// `[tokens, V]`. `L` is the memory layout of states in the pool: the recurrent form converts the state to this layout when
    /// it rounds the state after each token.
    fn head<L: Layout>(&self, head: &Head<T>, state: &mut [T], out: &mut [T]);
}

/// Runs every sequence from the state in its slot of the pool, and stores the final state in the same slot. Returns o `[tokens,
/// HV, V]`.
///
/// `slots[n]` is the slot of sequence n. A sequence with a negative slot is skipped: its output is zero, and no state changes.
/// Without `slots`, sequence n has slot n. A sequence without tokens leaves its state unchanged. If there is an error, no state
/// changes.
///
/// # Errors
/// Returns the errors of [`Form::check`] and [`Inputs::check`], and an error if the sizes of the states do not match or a slot
/// does not exist or is used twice.
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

/// Returns, for each slot of the pool, the sequence that uses the slot.
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
