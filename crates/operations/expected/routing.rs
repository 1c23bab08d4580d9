//! Experts of a token, and their weights.
//!
//! Scores are the softmax, the sigmoid or the square root of the softplus of the logits; the k largest of score + bias are chosen, of all
//! experts or of those of a few groups (DeepSeek-V3), and their weights are their scores, divided by the sum of those chosen if they are
//! renormalised, times a factor.
//!
//! Error: scores and weights are computed on numbers that carry it ([`super::near`]), of logits that are given exactly, or of those
//! of a router's weights. The softplus ln(1 + eˡ) has at most the relative error of eˡ, as σ(l) ≤ ln(1 + eˡ), and a square root halves
//! it: (e + (4 + 2|l|)·u)/2 + 4u. Two experts whose scores are closer than the sum of their errors may change places: any choice of the
//! k that errors allow is right, with the weights that belong to it.

use reference::Real;

use super::Call;
use super::near::Near;

/// The number of choices of a token that are tried, the most likely first. If there are more, what fits none of them is not judged.
pub const MOST_CHOICES: usize = 64;

/// Selection rule of a token's experts.
#[derive(Clone, Copy, Debug)]
pub struct Router {
    /// Experts that there are.
    pub experts: usize,
    /// Experts that a token goes to.
    pub chosen: usize,
    /// Equal parts of the experts, one after the other.
    pub groups: usize,
    /// Groups that a token's experts may be of.
    pub chosen_groups: usize,
}

/// The experts of a token, each with its weight.
pub(super) type Chosen = Vec<(usize, Near)>;

impl Router {
    /// The scores of logits, and the numbers that decide.
    fn scores(call: &Call, logits: &[Near]) -> [Vec<Near>; 2] {
        let u = call.u;
        let softplus = |logit: &Near| {
            let (l, error) = (logit.value(), logit.error());
            let score = (l.max(0.0) + (-l.abs()).exp().ln_1p()).sqrt();
            call.near(score, score * (0.5 * (error + (4.0 + 2.0 * l.abs()) * u) + 4.0 * u))
        };
        // By hand, since e⁻ˡ overflows before σ(l) underflows.
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
                // A kernel may multiply by log₂e before it subtracts; the error of the largest does not change the order.
                let one = call.near(1.0, u);
                let power = |logit: &Near| (*logit * one - call.exact(most) * one).exp();
                let powers: Vec<Near> = logits.iter().map(power).collect();
                let sum = call.sum_near(&powers);
                // The error that all experts share does not change their order.
                let divided = |power| (power / sum, power / call.exact(sum.value()));
                powers.into_iter().map(divided).unzip()
            }
        };
        let bias = call.optional("selection_bias").map(|bias| &bias.data[..]);
        let deciding = own.iter().enumerate();
        let deciding = deciding.map(|(at, own)| bias.map_or(*own, |bias| *own + call.exact(bias[at])));
        [scores, deciding.collect()]
    }

    /// Every choice of experts that errors allow for these logits, that of the exact scores first.
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

    /// Lists every choice of groups that errors allow for a token: the groups whose two best experts, or whose best without a bias,
    /// have the largest scores.
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
            // No sum of the largest is off by more than as many errors.
            let score = largest(|(score, _)| *score);
            (score, largest(|(_, error)| *error) + call.u * score.abs())
        };
        let size = (self.experts / self.groups).max(1);
        let scores: Vec<(f64, f64)> = deciding.chunks(size).map(group).collect();
        admissible(&scores, self.chosen_groups)
    }

    /// The weights of the experts that were chosen.
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

/// Every choice of `k` that errors of the scores allow, that of the exact ones first.
pub fn admissible(scores: &[(f64, f64)], k: usize) -> Vec<Vec<usize>> {
    let mut order: Vec<usize> = (0..scores.len()).collect();
    order.sort_by(|&a, &b| scores[b].0.total_cmp(&scores[a].0).then(a.cmp(&b)));
    let k = k.min(order.len());
    let mut sets = vec![order[..k].to_vec()];
    if k == order.len() || k == 0 {
        return sets;
    }
    // Sure to be chosen: above all that could take the k-th place, and the other way around.
    let reach = |at: &usize| scores[*at].0 + scores[*at].1;
    let least = |at: &usize| scores[*at].0 - scores[*at].1;
    let best_out = order[k..].iter().map(reach).fold(f64::NEG_INFINITY, f64::max);
    let worst_in = order[..k].iter().map(least).fold(f64::INFINITY, f64::min);
    let sure: Vec<usize> = order[..k].iter().copied().filter(|at| least(at) > best_out).collect();
    let open = |at: &usize| !sure.contains(at) && reach(at) >= worst_in;
    let open: Vec<usize> = order.iter().copied().filter(open).collect();
    let mut picks: Vec<usize> = (0..k - sure.len()).collect();
    // An open choice may surely be above another open one: then it is chosen, or the other is not.
    let allowed = |picks: &[usize]| {
        let picked = picks.iter().map(|pick| reach(&open[*pick]));
        let worst = picked.fold(f64::INFINITY, f64::min);
        let out = (0..open.len()).filter(|at| !picks.contains(at));
        out.map(|at| least(&open[at])).fold(f64::NEG_INFINITY, f64::max) <= worst
    };
    // Picks are in order of the scores: the more of the first ones they have, the likelier they are.
    for _ in 0..MOST_CHOICES * MOST_CHOICES {
        if sets.len() > MOST_CHOICES || !next(&mut picks, open.len()) {
            return sets;
        }
        if allowed(&picks) {
            let set = sure.iter().copied().chain(picks.iter().map(|pick| open[*pick]));
            sets.push(set.collect());
        }
    }
    // There may be others: as many as are tried at most stand for them.
    let last = sets[sets.len() - 1].clone();
    sets.resize(MOST_CHOICES + 1, last);
    sets
}

/// The next choice of as many of `of` numbers, in order; whether there is one.
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
