//! Checks of discrete choices (top-k entries, experts), and operations whose error bounds are not computed step by step with
//! [`Bounded`] numbers.

use reference::ops::hyper_connection::{HyperConnection, Mixing};
use reference::ops::indexer;
use reference::ops::rmsnorm::rmsnorm;
use reference::{Bounded, Choice, Operations, Tensor};

use super::index::IndexQuery;
use super::{EPS, STREAMS};
use ulplab_operations::ops::mhc_pre::normalized;

/// True if the choice `found` is well-formed: distinct candidates, as many as in `wanted`, then −1 as padding. The indices must
/// ascend, unless `ordered` is true (best candidate first).
pub(super) fn possible(scores: &[Bounded], found: &[i32], wanted: &[i32], ordered: bool) -> bool {
    let count = wanted.iter().filter(|index| **index >= 0).count();
    let (chosen, rest) = found.split_at(count);
    let candidate = |index: &i32| {
        let score = usize::try_from(*index).ok().and_then(|index| scores.get(index));
        score.is_some_and(|score| score.value() != f64::NEG_INFINITY)
    };
    let ascending = ordered || chosen.windows(2).all(|pair| pair[0] < pair[1]);
    let different = chosen
        .iter()
        .enumerate()
        .all(|(at, index)| !chosen[..at].contains(index));
    chosen.iter().all(candidate) && rest.iter().all(|index| *index == -1) && ascending && different
}

/// True if the error bounds of the scores allow the choice: no omitted candidate is certainly better than a chosen candidate. If
/// `ordered`, also no chosen candidate is certainly better than an earlier one.
pub(super) fn admissible(scores: &[Bounded], found: &[i32], ordered: bool) -> bool {
    let chosen: Vec<usize> = found.iter().filter_map(|index| usize::try_from(*index).ok()).collect();
    let least = |index: usize| scores[index].value() - scores[index].error();
    let left = (0..scores.len()).filter(|index| !chosen.contains(index));
    let mut behind = left.map(least).fold(f64::NEG_INFINITY, f64::max);
    for &index in chosen.iter().rev() {
        if scores[index].value() + scores[index].error() < behind {
            return false;
        }
        if ordered {
            behind = behind.max(least(index));
        }
    }
    true
}

/// Operations whose error bounds are not computed step by step with [`Bounded`] numbers: top-k selection of compressed entries,
/// and mHC mixing.
pub(super) struct Followed {
    /// Index keys and queries as codes; `None` if index keys are not records.
    pub index: Option<IndexQuery>,
}

impl Operations<Bounded> for Followed {
    /// Selects the compressed entries with the best index scores. Products of codes have no error: the rule by which tensor cores
    /// sum them is known to the bit.
    fn index(
        &self,
        query: &Tensor<Bounded>,
        head_weights: &Tensor<Bounded>,
        keys: &[Bounded],
        k: usize,
        visible: &(dyn Fn(usize) -> usize + Sync),
    ) -> Choice<Bounded> {
        match &self.index {
            Some(query) => query.choose(head_weights.row(0), k, visible(0)),
            None => indexer::select(query, head_weights, keys, k, visible),
        }
    }

    /// Bounds the error of all Sinkhorn iterations at once: the iterations do not amplify errors, but a bound that is computed
    /// iteration by iteration would grow.
    fn mhc_pre(
        &self,
        mixer: &HyperConnection<Bounded>,
        x: &Tensor<Bounded>,
        weight: &[Bounded],
        eps: Bounded,
    ) -> (Tensor<Bounded>, Mixing<Bounded>) {
        let (mut input, mut mixing) = mixer.pre(x);
        let logits = mixer.logits(x);
        for (token, comb) in mixing.comb.data.chunks_exact_mut(STREAMS * STREAMS).enumerate() {
            let numbers = logits.row(token)[2 * STREAMS..].iter();
            let (values, errors): (Vec<f64>, Vec<f64>) = numbers.map(|x| (x.value(), x.error())).unzip();
            let (values, bounds) = normalized(&values, &errors, f64::from(EPS));
            for (to, (value, bound)) in comb.iter_mut().zip(values.into_iter().zip(bounds)) {
                *to = Bounded::new(value, bound);
            }
        }
        rmsnorm(&mut input, Some(weight), eps);
        (input, mixing)
    }
}
