//! Selection of the experts of a token, and computation of their weights.
//!
//! Scores are the softmax, the sigmoid or √softplus of the logits. The k experts with the largest score + bias are chosen, from
//! all experts or from a few groups of experts (DeepSeek-V3). Weights are the scores of the chosen experts, divided by their sum
//! if they are renormalized, times a factor.
//!
//! Error bound: scores and weights use numbers that carry their error bound ([`super::near`]). Logits are exact if they are
//! given; otherwise they have the error of the router's product. The softplus ln(1 + eˡ) of a logit l has at most the relative
//! error of eˡ, because σ(l) ≤ ln(1 + eˡ). Its square root has half of this error: (e + (4 + 2|l|)·u)/2 + 4u, where e is the
//! error of l and u the unit roundoff. Experts whose scores differ by less than the sum of their errors may be swapped: any
//! choice of k experts that the errors allow is admissible, if it comes with the weights of these experts.

use reference::Real;

use super::Call;
use super::near::Near;

/// Maximum number of choices of experts that are tried per token; the most likely are tried first. If a token has more choices,
/// and none of the tried choices fits the output, the output cannot be judged: the user gets an error.
pub const MOST_CHOICES: usize = 64;

/// Parameters of the selection of a token's experts.
#[derive(Clone, Copy, Debug)]
pub struct Router {
    /// Number of experts.
    pub experts: usize,
    /// Number of experts chosen per token.
    pub chosen: usize,
    /// Number of groups of experts. A group consists of consecutive experts; all groups have equally many.
    pub groups: usize,
    /// Number of groups from which a token's experts are chosen.
    pub chosen_groups: usize,
}

/// Experts of a token, with their weights.
pub(super) type Chosen = Vec<(usize, Near)>;

impl Router {
    /// Returns the scores of all experts, from which their weights are computed, and the scores plus bias, by which experts are
    /// selected.
    fn scores(call: &Call, logits: &[Near]) -> [Vec<Near>; 2] {
        let u = call.u;
        let softplus = |logit: &Near| {
            let (l, error) = (logit.value(), logit.error());
            let score = (l.max(0.0) + (-l.abs()).exp().ln_1p()).sqrt();
            call.near(score, score * (0.5 * (error + (4.0 + 2.0 * l.abs()) * u) + 4.0 * u))
        };
        // Compute the sigmoid in f64 here. With operators on `Near`, e⁻ˡ would overflow before σ(l) underflows.
        let sigmoid = |logit: &Near| {
            let (l, error) = (logit.value(), logit.error());
            let score = 1.0 / (1.0 + (-l).exp());
            call.near(
                score,
                score * ((1.0 - score) * (error + (4.0 + 2.0 * l.abs()) * u) + 4.0 * u),
            )
        };
        let (scores, own): (Vec<Near>, Vec<Near>) = match call.word("scores") {
            "sigmoid" => logits.iter().map(|logit| (sigmoid(logit), sigmoid(logit))).unzip(),
            "sqrtsoftplus" => logits.iter().map(|logit| (softplus(logit), softplus(logit))).unzip(),
            _ => {
                let values = logits.iter().map(|logit| logit.value());
                let most = values.fold(f64::NEG_INFINITY, f64::max);
                // A kernel may multiply by log₂e before it subtracts the maximum. All experts share the error of the maximum, so
                // it does not change their order.
                let one = call.near(1.0, u);
                let power = |logit: &Near| (*logit * one - call.exact(most) * one).exp();
                let powers: Vec<Near> = logits.iter().map(power).collect();
                let sum = call.sum_near(&powers);
                // All experts share the error of the sum, so it does not change their order.
                let divided = |power| (power / sum, power / call.exact(sum.value()));
                powers.into_iter().map(divided).unzip()
            }
        };
        let bias = call.optional("selection_bias").map(|bias| &bias.data[..]);
        let deciding = own.iter().enumerate();
        let deciding = deciding.map(|(at, own)| bias.map_or(*own, |bias| *own + call.exact(bias[at])));
        [scores, deciding.collect()]
    }

    /// Returns all choices of experts that the errors of these logits allow. The choice by the exact scores comes first.
    pub(super) fn choices(&self, call: &Call, logits: &[Near]) -> Vec<Chosen> {
        let [scores, deciding] = Self::scores(call, logits);
        let bounds: Vec<(f64, f64)> = deciding.iter().map(|score| (score.value(), score.error())).collect();
        let mut sets = Vec::new();
        for groups in self.groups(call, &bounds) {
            let size = (self.experts / self.groups).max(1);
            let experts: Vec<usize> = (0..self.experts).filter(|at| groups.contains(&(at / size))).collect();
            let of_experts: Vec<(f64, f64)> = experts.iter().map(|at| bounds[*at]).collect();
            let found = admissible(&of_experts, self.chosen).into_iter();
            sets.extend(found.map(|set| set.iter().map(|at| experts[*at]).collect::<Vec<usize>>()));
        }
        sets.truncate(MOST_CHOICES + 1);
        let sets = sets.iter().map(|set| self.weights(call, set, &scores, &deciding));
        sets.collect()
    }

    /// Returns all choices of expert groups that the errors allow for a token. With a bias, a group's score is the sum of the
    /// scores of its two best experts; without a bias, it is the score of its best expert.
    fn groups(&self, call: &Call, deciding: &[(f64, f64)]) -> Vec<Vec<usize>> {
        if self.chosen_groups == self.groups {
            return vec![(0..self.groups).collect()];
        }
        let best = match call.has("selection_bias") != call.is("groups_by_other") {
            true => 2,
            false => 1,
        };
        let group = |experts: &[(f64, f64)]| {
            let largest = |of: fn(&(f64, f64)) -> f64| {
                let mut all: Vec<f64> = experts.iter().map(of).collect();
                all.sort_by(|a, b| b.total_cmp(a));
                all.iter().take(best).sum::<f64>()
            };
            // The sum of the `best` largest scores errs by at most the sum of the `best` largest errors.
            let score = largest(|(score, _)| *score);
            (score, largest(|(_, error)| *error) + call.u * score.abs())
        };
        let size = (self.experts / self.groups).max(1);
        let scores: Vec<(f64, f64)> = deciding.chunks(size).map(group).collect();
        admissible(&scores, self.chosen_groups)
    }

    /// Weights of the chosen experts `set`.
    fn weights(&self, call: &Call, set: &[usize], scores: &[Near], deciding: &[Near]) -> Chosen {
        let biased = call.is("bias_in_weights");
        let weight = |at: &usize| match biased {
            true => call.near(deciding[*at].value(), scores[*at].error()),
            false => scores[*at],
        };
        let mut weights: Vec<Near> = set.iter().map(weight).collect();
        if call.flag("renormalize") {
            let sum = call.sum_near(&weights);
            let divided = |weight: &Near| if sum.value() == 0.0 { Near::ZERO } else { *weight / sum };
            weights = weights.iter().map(divided).collect();
        }
        let mut experts = set.to_vec();
        if call.is("weights_by_number") {
            experts.sort_unstable();
        }
        if call.is("next_expert") {
            experts.iter_mut().for_each(|at| *at = (*at + 1) % self.experts);
        }
        let factor = call.exact(call.number("scaling_factor"));
        let chosen = set.len().saturating_sub(usize::from(call.is("one_fewer")));
        let weights = weights.into_iter().map(|weight| weight * factor);
        experts.into_iter().zip(weights).take(chosen).collect()
    }
}

/// Returns all choices of `k` indices that the errors of the scores allow, the choice by the exact scores first. `scores` has
/// pairs of a score and its error bound.
pub fn admissible(scores: &[(f64, f64)], k: usize) -> Vec<Vec<usize>> {
    let mut order: Vec<usize> = (0..scores.len()).collect();
    order.sort_by(|&a, &b| scores[b].0.total_cmp(&scores[a].0).then(a.cmp(&b)));
    let k = k.min(order.len());
    let mut sets = vec![order[..k].to_vec()];
    if k == order.len() || k == 0 {
        return sets;
    }
    // The first choice has the `k` largest scores. An index is *sure* if its score exceeds all scores outside of the first choice
    // even with the worst errors. It is *open* if it is not sure, but may have a score as high as the lowest of the first choice.
    let reach = |at: &usize| scores[*at].0 + scores[*at].1;
    let least = |at: &usize| scores[*at].0 - scores[*at].1;
    let best_out = order[k..].iter().map(reach).fold(f64::NEG_INFINITY, f64::max);
    let worst_in = order[..k].iter().map(least).fold(f64::INFINITY, f64::min);
    let sure: Vec<usize> = order[..k].iter().copied().filter(|at| least(at) > best_out).collect();
    let open = |at: &usize| !sure.contains(at) && reach(at) >= worst_in;
    let open: Vec<usize> = order.iter().copied().filter(open).collect();
    let mut picks: Vec<usize> = (0..k - sure.len()).collect();
    // A set of open indices is an allowed choice if no open index outside of it surely has a higher score than one in it.
    let allowed = |picks: &[usize]| {
        let picked = picks.iter().map(|pick| reach(&open[*pick]));
        let worst = picked.fold(f64::INFINITY, f64::min);
        let out = (0..open.len()).filter(|at| !picks.contains(at));
        out.map(|at| least(&open[at])).fold(f64::NEG_INFINITY, f64::max) <= worst
    };
    // Open indices are in descending order of scores, so the first combinations are the most likely ones.
    for _ in 0..MOST_CHOICES * MOST_CHOICES {
        if sets.len() > MOST_CHOICES || !next(&mut picks, open.len()) {
            return sets;
        }
        if allowed(&picks) {
            let set = sure.iter().copied().chain(picks.iter().map(|pick| open[*pick]));
            sets.push(set.collect());
        }
    }
    // The search ended early. Pad the list beyond the maximum, so that callers know that there may be more choices.
    let last = sets[sets.len() - 1].clone();
    sets.resize(MOST_CHOICES + 1, last);
    sets
}

/// Advances `picks` to the next combination of indices below `of`, in lexicographic order; returns false at the end.
fn next(picks: &mut [usize], of: usize) -> bool {
    let many = picks.len();
    for at in (0..many).rev() {
        if picks[at] + many - at < of {
            picks[at] += 1;
            for after in at + 1..many {
                picks[after] = picks[after - 1] + 1;
            }
            return true;
        }
    }
    false
}
