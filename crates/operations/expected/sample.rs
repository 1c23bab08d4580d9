//! Sampling of the next token of every row. At temperature 0 the token with the largest logit is chosen: the first of equal ones;
//! NaN counts as largest. At a higher temperature the token with the largest logit/temperature + g is chosen, which is a draw
//! from the softmax. The Gumbel noise g = −ln(−ln r) is given or comes from the seed. For token i, the seed gives r = (w +
//! ½)/2²³, where w is the upper 23 bits of word i mod 4 of Philox4x32-10 with the counter (⌊i/4⌋, position, sequence, 0) and the
//! seed as key.
//!
//! At temperature 0 the token must match exactly. With noise, a score is off by at most (4 + 4|g| + 4|l/t| + 2|s|)·u, where l/t
//! is the logit over the temperature, s the score, and u the unit roundoff. The terms 4 + 4|g| count only if the noise is
//! computed from the seed. They assume that each logarithm errs by at most an ulp; the relative error of the inner logarithm
//! becomes the absolute error of the outer one. A token is admissible if its score is the best for some errors within these
//! bounds.

use rayon::prelude::*;
use reference::ops::top_k::top_k;

use super::{Call, Choice, Operation, Output, faults, takes};
use ulplab_core::random::gumbel;

pub(super) const SAMPLE: Operation = Operation {
    name: "sample",
    doc: "the token with the largest logit, or one drawn from the softmax by a seed",
    takes: takes! {
        logits Tensor: "[B, V]";
        temperature Optional: "[B]: what logits are divided by before noise is added; 0, as if not given, takes the largest logit";
        sequence Optional: "[B]: the number of each row's sequence; the number of the row if not given";
        position Optional: "[B]: the position of the token that was read last, -1 for padding, whose token is -1; 0 if not given";
        noise Optional:
            "[B, V]: Gumbel noise, if it is not that of the seed; -ln q where probabilities are divided by q of an exponential \
            distribution";
        seed Number(0.0): "of all draws, a whole number from 0 to 2^53";
        seed_words Optional: "[2]: the lower and the upper 32 bits of a seed that is larger";
    },
    faults: faults! {
        last_of_ties: "of equal logits the last is taken";
        nan_smallest: "NaN counts as smallest"
            => |call| call.map("logits", |x| if x.is_nan() { f64::NEG_INFINITY } else { x });
        largest_magnitude: "logits are compared by their magnitudes" => |call| call.map("logits", f64::abs);
        tail_lost: "logits after the last whole 256 are left out";
        count_from_one: "tokens count from 1";
        no_noise of temperature: "the largest logit is taken at any temperature"
            => |call| call.leave_out("temperature");
        no_temperature of temperature: "logits are not divided by the temperature"
            => |call| call.map("temperature", |t| if t > 0.0 { 1.0 } else { 0.0 });
        temperature_multiplied of temperature: "logits are multiplied by the temperature"
            => |call| call.map("temperature", |t| if t > 0.0 { 1.0 / t } else { 0.0 });
        next_row_temperature of temperature: "the temperature is that of the next row"
            => |call| call.roll("temperature", 0);
        noise_scaled of temperature: "noise is divided by the temperature, too";
        noise_of_row_0 of temperature: "all rows draw as the first sequence does";
        noise_of_position_0 of position: "a sequence draws alike at all positions"
            => |call| call.map("position", |position| position.min(0.0));
        noise_of_next_token of temperature: "the noise of each token is that of the next";
        seed_left_out of temperature: "the seed is taken for 0"
            => |call| ["seed", "seed_words"].into_iter().for_each(|name| call.leave_out(name));
        padding_drawn of position: "a row of padding has a token"
            => |call| call.map("position", |position| position.max(0.0));
    },
    compute,
    ..Operation::NONE
};

fn compute(call: &Call) -> Result<Vec<Output>, String> {
    let logits = call.tensor("logits");
    let [rows, vocabulary] = call.shapes()?.sizes(["B", "V"]);
    call.require(vocabulary > 0 || rows == 0, "logits", "one token or more")?;
    let given = |name: &str| call.optional(name).map(|tensor| &tensor.data[..]);
    call.expect_whole("sequence", 0.0, i32::MAX.into())?;
    call.expect_whole("position", -1.0, i32::MAX.into())?;
    let mut temperatures = given("temperature").into_iter().flatten();
    if let Some(x) = temperatures.find(|x| x.is_nan() || **x < 0.0) {
        return Err(format!("sample: 'temperature' has {x}, expected 0 or more"));
    }
    let key = seed(call)?;
    let of_row = |row: usize| {
        let position = given("position").map_or(0.0, |of| of[row]);
        if position < 0.0 {
            return vec![-1.0];
        }
        let row = Row {
            call,
            logits: &logits.data[row * vocabulary..][..vocabulary],
            temperature: given("temperature").map_or(0.0, |of| of[row]),
            noise: given("noise").map(|noise| &noise[row * vocabulary..][..vocabulary]),
            key,
            position: position as u32,
            sequence: match given("sequence") {
                Some(of) => of[call.pick("noise_of_row_0", 0, row)] as u32,
                None if call.is("noise_of_row_0") => 0,
                None => row as u32,
            },
        };
        let first = usize::from(call.is("count_from_one"));
        row.tokens().into_iter().map(|token| (token + first) as f64).collect()
    };
    let tokens: Vec<Vec<f64>> = (0..rows).into_par_iter().map(of_row).collect();
    let mut output = Output::exact("token", vec![rows], tokens.iter().map(|of| of[0]).collect());
    let choices = tokens.into_iter().enumerate().filter(|(_, of)| of.len() > 1);
    let choices = choices.map(|(start, mut of)| {
        of.sort_unstable_by(f64::total_cmp);
        Choice { start, len: 1, of }
    });
    output.choices = choices.collect();
    Ok(vec![output])
}

/// Returns the seed as two 32-bit words, which are the key of Philox.
fn seed(call: &Call) -> Result<[u32; 2], String> {
    let fits = |x: f64, most: f64| x.fract() == 0.0 && (0.0..=most).contains(&x);
    let seed = call.number("seed");
    match call.optional("seed_words").map(|words| &words.data[..]) {
        Some(words) if call.has("seed") => Err(format!(
            "sample: 'seed' is {seed} and 'seed_words' {words:?}, expected one of them"
        )),
        Some(words) => match words.iter().find(|word| !fits(**word, u32::MAX.into())) {
            Some(word) => Err(format!(
                "sample: 'seed_words' has {word}, expected whole numbers of 32 bits"
            )),
            None => Ok([words[0] as u32, words[1] as u32]),
        },
        None if fits(seed, 2f64.powi(53)) => Ok([seed as u64 as u32, (seed as u64 >> 32) as u32]),
        None => Err(format!(
            "sample: 'seed' is {seed}, expected a whole number from 0 to 2^53, or seed_words"
        )),
    }
}

/// A row of logits, with the temperature and the inputs of its noise.
struct Row<'a> {
    call: &'a Call,
    logits: &'a [f64],
    temperature: f64,
    noise: Option<&'a [f64]>,
    key: [u32; 2],
    position: u32,
    sequence: u32,
}

impl Row<'_> {
    /// Returns the token with the best score, followed by the other tokens that rounding errors allow.
    fn tokens(&self) -> Vec<usize> {
        let len = self.logits.len();
        let seen = match self.call.fault {
            Some("tail_lost") if len > 256 => len - len % 256,
            _ => len,
        };
        let (mut scores, errors): (Vec<f64>, Vec<f64>) = (0..seen).map(|token| self.score(token)).unzip();
        if self.call.is("last_of_ties") {
            scores.reverse();
        }
        let mut best = [0];
        top_k(&scores, seen, 1, &mut best);
        let best = best[0] as usize;
        if self.call.is("last_of_ties") {
            // The fault takes the last of the tokens with the best score. So do not return the other tokens that rounding errors
            // allow.
            return vec![seen - 1 - best];
        }
        if !scores[best].is_finite() {
            return vec![best];
        }
        // A token is admissible if rounding errors may make its score the best: no other score surely exceeds it.
        let surely = scores.iter().zip(&errors).map(|(score, error)| score - error);
        let least = surely.fold(f64::NEG_INFINITY, f64::max);
        let near = (0..seen).filter(|at| *at != best && errors[*at] > 0.0 && scores[*at] + errors[*at] >= least);
        std::iter::once(best).chain(near).collect()
    }

    /// Score of a token (logit / temperature + noise), and its error bound.
    fn score(&self, token: usize) -> (f64, f64) {
        let logit = self.logits[token];
        if self.temperature == 0.0 {
            return (logit, 0.0);
        }
        let scaled = logit / self.temperature;
        let next = (token + 1) % self.logits.len();
        let of = self.call.pick("noise_of_next_token", next, token);
        let (mut noise, own) = match self.noise {
            Some(noise) => (noise[of], 0.0),
            None => (gumbel(self.key, [self.sequence, self.position], of), 1.0),
        };
        if self.call.is("noise_scaled") {
            noise /= self.temperature;
        }
        let score = scaled + noise;
        let error = self.call.u * (own * (4.0 + 4.0 * noise.abs()) + 4.0 * scaled.abs() + 2.0 * score.abs());
        (score, if error.is_finite() { error } else { 0.0 })
    }
}
