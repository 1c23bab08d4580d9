//! Which experts a token goes to, and with what weights.
//!
//! Scores are the softmax, the sigmoid or the square root of the softplus of the logits; the k largest of score + bias are chosen, of all
//! experts or of those of a few groups (DeepSeek-V3), and their weights are their scores, divided by the sum of those chosen if they are
//! renormalised, times a factor.
//!
//! Error: logits that are given are exact, and those of a router's weights have the error e of a sum of products. The relative error of
//! a sigmoid is (1 − σ)·(e + (4 + 2|l|)·u) + 4u. The softplus ln(1 + eˡ) has at most the relative error of eˡ, as σ(l) ≤ ln(1 + eˡ), and a
//! square root halves it: (e + (4 + 2|l|)·u)/2 + 4u. That of a softmax is e + (4 + 4|l − m| + 2|l| + 2|m|)·u, the mean of this over all
//! experts, and that of the sum. Two experts whose scores are closer than the sum of their errors may change places: any choice of the k
//! that errors allow is right, with the weights that belong to it.

use super::Call;
use super::sum::Terms;

/// The number of choices of a token that are tried, the most likely first. If there are more, what fits none of them is not judged.
pub const MOST_CHOICES: usize = 64;

/// How a token's experts are chosen.
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

/// The experts of a token, each with its weight and the relative error of that.
pub type Chosen = Vec<(usize, f64, f64)>;

/// The scores of a token's experts, with their relative errors.
struct Scores {
    scores: Vec<(f64, f64)>,
    /// What decides, with its absolute error.
    deciding: Vec<(f64, f64)>,
}

impl Router {
    /// The scores of logits with their errors.
    fn scores(&self, call: &Call, logits: &[(f64, f64)]) -> Scores {
        let u = call.u;
        // The part of the error that all experts of a softmax share does not change their order.
        let of_power = |(logit, error): (f64, f64)| error + (4.0 + 2.0 * logit.abs()) * u;
        let each: Option<fn(f64) -> (f64, f64)> = match call.word("scores") {
            // The score, and how much of the relative error of the power of e is left in it.
            "sigmoid" => Some(|logit| {
                let score = 1.0 / (1.0 + (-logit).exp());
                (score, 1.0 - score)
            }),
            "sqrtsoftplus" => Some(|logit| ((logit.max(0.0) + (-logit.abs()).exp().ln_1p()).sqrt(), 0.5)),
            _ => None,
        };
        let (scores, own): (Vec<(f64, f64)>, Vec<f64>) = if let Some(each) = each {
            let scored = |&logit: &(f64, f64)| {
                let (score, left) = each(logit.0);
                let relative = left * of_power(logit) + 4.0 * u;
                ((score, relative), relative)
            };
            logits.iter().map(scored).unzip()
        } else {
            let most = logits.iter().map(|(logit, _)| *logit).fold(f64::NEG_INFINITY, f64::max);
            let relative = |(logit, error): (f64, f64)| {
                let far = 4.0 * (logit - most).abs() + 2.0 * logit.abs() + 2.0 * most.abs();
                error + (4.0 + far.min(1e4)) * u
            };
            let powers: Vec<(f64, f64)> = logits.iter().map(|&l| ((l.0 - most).exp(), relative(l))).collect();
            let sum = Terms::of(powers.iter().map(|(power, _)| *power), u);
            let of_all: f64 = powers.iter().map(|(power, relative)| power * relative).sum();
            let shared = (of_all + sum.error()) / sum.sum + 4.0 * u;
            let score = |(power, relative): (f64, f64)| ((power / sum.sum, relative + shared), relative + 4.0 * u);
            powers.into_iter().map(score).unzip()
        };
        let bias = call
            .optional("selection_bias")
            .filter(|_| !call.is("no_selection_bias"));
        let of_bias = |x: f64| match call.is("bias_in_bf16") {
            true => half::bf16::from_f32(x as f32).to_f64(),
            false => x,
        };
        let deciding = |(at, (&(score, _), own)): (usize, (&(f64, f64), &f64))| {
            let key = score + bias.map_or(0.0, |bias| of_bias(bias.data[at]));
            (key, score * own + if bias.is_some() { u * key.abs() } else { 0.0 })
        };
        let deciding = scores.iter().zip(&own).enumerate().map(deciding).collect();
        Scores { scores, deciding }
    }

    /// Every choice of experts that errors allow for these logits, that of the exact scores first.
    pub fn choices(&self, call: &Call, logits: &[(f64, f64)]) -> Vec<Chosen> {
        let Scores { scores, deciding } = self.scores(call, logits);
        let mut sets = Vec::new();
        for groups in self.groups(call, &deciding) {
            let size = (self.experts / self.groups).max(1);
            let experts: Vec<usize> = (0..self.experts).filter(|at| groups.contains(&(at / size))).collect();
            let of_experts: Vec<(f64, f64)> = experts.iter().map(|at| deciding[*at]).collect();
            let found = admissible(&of_experts, self.chosen);
            sets.extend(
                found
                    .iter()
                    .map(|set| set.iter().map(|at| experts[*at]).collect::<Vec<usize>>()),
            );
        }
        sets.truncate(MOST_CHOICES + 1);
        sets.iter()
            .map(|set| self.weights(call, set, &scores, &deciding))
            .collect()
    }

    /// The groups that a token's experts may be of, every choice that errors allow: those whose two best experts, or whose best if
    /// there is no bias, have the largest scores.
    fn groups(&self, call: &Call, deciding: &[(f64, f64)]) -> Vec<Vec<usize>> {
        if self.chosen_groups == self.groups || call.is("no_groups") {
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
    fn weights(&self, call: &Call, set: &[usize], scores: &[(f64, f64)], deciding: &[(f64, f64)]) -> Chosen {
        let u = call.u;
        let mut weights: Vec<(f64, f64)> = set.iter().map(|at| scores[*at]).collect();
        if call.is("bias_in_weights") {
            let biased = weights.iter_mut().zip(set);
            biased.for_each(|(weight, at)| weight.0 = deciding[*at].0);
        }
        if call.flag("renormalize") != call.is("other_normalization") {
            let sum: f64 = weights.iter().map(|(weight, _)| weight).sum();
            let error: f64 = weights.iter().map(|(weight, relative)| (weight * relative).abs()).sum();
            let of_sum = if sum == 0.0 { 0.0 } else { error / sum.abs() };
            let off = of_sum + (self.chosen as f64 + 2.0) * u;
            weights.iter_mut().for_each(|(weight, relative)| {
                *weight = if sum == 0.0 { 0.0 } else { *weight / sum };
                *relative += off;
            });
        }
        let factor = if call.is("no_scaling_factor") {
            1.0
        } else {
            call.number("scaling_factor")
        };
        let mut experts = set.to_vec();
        if call.is("weights_by_number") {
            experts.sort_unstable();
        }
        if call.is("next_expert") {
            experts.iter_mut().for_each(|at| *at = (*at + 1) % self.experts);
        }
        let chosen = experts.into_iter().zip(weights);
        let chosen = chosen.map(|(at, (weight, relative))| (at, weight * factor, relative + 2.0 * u));
        chosen
            .take(set.len().saturating_sub(usize::from(call.is("one_fewer"))))
            .collect()
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
        let worst = picks
            .iter()
            .map(|pick| reach(&open[*pick]))
            .fold(f64::INFINITY, f64::min);
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
