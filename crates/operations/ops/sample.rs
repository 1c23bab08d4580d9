//! Sampling: chooses the next token of each row, greedily or by a draw from the softmax.
//!
//! At temperature 0 the token with the largest logit is chosen: the first of equal ones; −0 equals 0, and NaN counts as largest.
//! At a higher temperature the token with the largest `logit / temperature + g` is chosen, where g = −ln(−ln u) is Gumbel noise.
//! This is a draw from the softmax. u is a function of seed, sequence, position and token ([`gumbel`]), so a row draws the same
//! token at any index in a batch.

use rayon::prelude::*;
use reference::Real;
use reference::ops::top_k::top_k;
use safetensors::Dtype;

use super::data::{i32_bytes, i32_values};
use super::judge::{Judge, Part, UNIT};
use super::{Batch, Buffer, Case, Data, Grid, Inputs, KernelOp, Outputs, Problem, Scalar};
use ulplab_core::random::gumbel;

const SEED: i64 = 0x0123_4567_89ab_cdef;

pub(super) const SAMPLE: KernelOp = KernelOp {
    name: "sample",
    doc: "the token with the largest logit, or one drawn from the softmax",
    cases,
    problem,
    ..KernelOp::NONE
};

fn cases() -> Vec<Case> {
    Grid::of("", &[], ["B", "V"])
        .named(|[rows, vocabulary]| format!("b{rows}.{vocabulary}"))
        .each("", &[[1, 256], [2, 1]], Grid::random)
        .each("", &[[7, 63]], Grid::large)
        .each("", &[[9, 1000], [65, 257], [66_000, 5]], Grid::random)
        // The last shape splits a row into more parts of 4096 tokens than a warp has lanes, and the best token of some rows is in
        // the last part.
        .each("edges", &[[24, 300], [33, 4096], [8, 131_101]], Grid::edges)
        .each("", &[1, 8, 64].map(|rows| [rows, 129_280]), Grid::timed)
        .done()
}

fn problem(case: &Case, data: &Data) -> Result<Problem, String> {
    let [rows, vocabulary] = case.sizes(["B", "V"]);
    // Neighbouring rows have different temperatures and positions. Every fifth row is padding. Nearly a third of the rows is
    // greedy (temperature 0); in one row of eight, the temperature is so near 0 that noise decides only between equal logits.
    let temperature = |row: usize| if row % 8 == 5 { 1e-6 } else { [0.0, 0.7, 1.3][row % 3] };
    // Use large sequence numbers: in the case with 66,000 rows, they reach nearly 2^31.
    let sequence: Vec<i32> = (0..rows).map(|row| row as i32 / 2 * 60_001).collect();
    let position: Vec<i32> = (0..rows)
        .map(|row| if row % 5 == 4 { -1 } else { (row * 37 % 4000) as i32 })
        .collect();
    let mut rows_of = Rows {
        logits: data.around("sample/logits", rows * vocabulary, 0.0, 4.0),
        temperature: (0..rows).map(temperature).collect(),
        sequence,
        position,
    };
    if case.inputs == Inputs::Edges {
        edges(&mut rows_of.logits, vocabulary);
        rows_of.nearly_second();
    }
    let buffers = vec![
        Buffer::f32("logits", &[rows, vocabulary], &rows_of.logits),
        Buffer::f32("temperature", &[rows], &rows_of.temperature),
        Buffer::i32("sequence", &[rows], &rows_of.sequence),
        Buffer::i32("position", &[rows], &rows_of.position),
        Buffer::output("token", Dtype::I32, &[rows]),
    ];
    let parts = move |outputs: &Outputs| vec![rows_of.judged(outputs)];
    Ok(Problem {
        scalars: vec![("seed", Scalar::I64(SEED))],
        batch: Some(Batch::new(
            "B",
            &["logits", "temperature", "sequence", "position", "token"],
        )),
        ..Problem::new(buffers, vec![Judge::parts("token", parts, WHY)])
    })
}

const WHY: &str = "the largest logit, the first of equal ones, is defined to the bit; where Gumbel noise is added, two logarithms and a \
                   quotient are rounded in f32, so a token is right if no other is surely better";

/// Inputs of a draw. A draw depends on nothing else, so it is the same in any batch.
#[derive(Clone, Copy, Debug)]
pub struct Draw {
    /// Seed of all draws.
    pub seed: i64,
    /// Number of the sequence.
    pub sequence: i32,
    /// Position of the last token that the model has read.
    pub position: i32,
}

impl Draw {
    /// Gumbel noise of a token. The token with the largest sum of noise and logit / temperature is a draw from the softmax
    /// (Gumbel-max trick).
    pub fn noise(self, token: usize) -> f64 {
        let key = [self.seed as u32, (self.seed >> 32) as u32];
        gumbel(key, [self.sequence, self.position].map(i32::cast_unsigned), token)
    }
}

/// Inputs of a case.
struct Rows {
    logits: Vec<f32>,
    temperature: Vec<f32>,
    sequence: Vec<i32>,
    position: Vec<i32>,
}

impl Rows {
    /// Checks the tokens. The expected token is the kernel's token if rounding errors allow it, else the token with the largest
    /// score.
    fn judged(&self, outputs: &Outputs) -> Part {
        let found = i32_values(outputs.get("token")).into_par_iter();
        let vocabulary = self.logits.len() / self.position.len();
        let want = found.enumerate().map(|(row, found)| {
            let logits = &self.logits[row * vocabulary..][..vocabulary];
            match (self.position[row], self.temperature[row]) {
                (-1, _) => -1,
                (_, 0.0) => best(logits),
                _ => self.drawn(row, logits, found),
            }
        });
        let bytes = i32_bytes(&want.collect::<Vec<i32>>());
        Judge::equal("token", Dtype::I32, &[self.position.len()], bytes, WHY).of(outputs)
    }

    /// Returns `found` if rounding errors allow that token to be drawn, else the token with the largest score.
    fn drawn(&self, row: usize, logits: &[f32], found: i32) -> i32 {
        let (scores, errors): (Vec<f64>, Vec<f64>) = (0..logits.len())
            .map(|token| self.score(row, token, logits[token]))
            .unzip();
        let wanted = best(&scores);
        let at = usize::try_from(found).ok().filter(|at| *at < scores.len());
        let near = at.is_some_and(|at| {
            let least = scores[wanted as usize] - errors[wanted as usize];
            // Only finite scores have rounding errors. With an infinity or a NaN, the draw is defined exactly.
            scores[wanted as usize].is_finite() && scores[at] + errors[at] >= least
        });
        if near { found } else { wanted }
    }

    /// Seed, sequence and position of a row.
    fn draw(&self, row: usize) -> Draw {
        Draw {
            seed: SEED,
            sequence: self.sequence[row],
            position: self.position[row],
        }
    }

    /// Tests noise near its maximum, in every eighth row that draws its token: only two tokens have finite logits. The first has
    /// the largest noise, so its uniform number u is near 1. A kernel that computes u too small by 2^-24 gets too little noise.
    /// The second token's score is lower by half of this loss: such a kernel chooses the second token, and fails.
    fn nearly_second(&mut self) {
        let vocabulary = self.logits.len() / self.position.len();
        let drawn = |row: &usize| row % 8 == 7 && self.position[*row] >= 0 && self.temperature[*row] > 0.0;
        for row in (0..self.position.len()).filter(drawn).collect::<Vec<usize>>() {
            let noise: Vec<f64> = (0..vocabulary).map(|token| self.draw(row).noise(token)).collect();
            let first = best(&noise) as usize;
            let second = (first + vocabulary / 2) % vocabulary;
            // Loss of noise if u is too small by 2^-24: for u near 1, the noise is nearly −ln(1 − u).
            let lost = 0.5 / f64::from(1 << 23) * noise[first].exp();
            let logits = &mut self.logits[row * vocabulary..][..vocabulary];
            logits.fill(f32::NEG_INFINITY);
            logits[first] = 0.0;
            logits[second] = (f64::from(self.temperature[row]) * (noise[first] - noise[second] - lost / 2.0)) as f32;
        }
    }

    /// Score of a token (logit / temperature + noise), and the error bound of its computation in f32.
    fn score(&self, row: usize, token: usize, logit: f32) -> (f64, f64) {
        let noise = self.draw(row).noise(token);
        let scaled = f64::from(logit) / f64::from(self.temperature[row]);
        let score = scaled + noise;
        // Each logarithm errs by up to one unit in the last place. A relative error of the inner logarithm becomes an absolute
        // error of the outer one.
        let error = UNIT * (4.0 + 4.0 * noise.abs() + 4.0 * scaled.abs() + 2.0 * score.abs());
        (score, if error.is_finite() { error } else { 0.0 })
    }
}

/// Index of the largest score: the first of equal ones; NaN is largest.
pub fn best<T: Real>(scores: &[T]) -> i32 {
    let mut out = [0];
    top_k(scores, scores.len(), 1, &mut out);
    out[0]
}

/// Sets edge rows: a tie, equal numbers, only −∞, NaN of either sign, +∞ twice, zeros of both signs, and −∞ in all but two
/// logits.
fn edges(logits: &mut [f32], vocabulary: usize) {
    for (row, x) in logits.chunks_exact_mut(vocabulary).enumerate() {
        let at = row * 997 % vocabulary;
        match row % 8 {
            0 => (x[at], x[vocabulary - 1 - at]) = (50.0, 50.0),
            1 => x.fill(-2.5),
            2 => x.fill(f32::NEG_INFINITY),
            3 => (x[at], x[vocabulary - 1]) = (f32::NAN, -f32::NAN),
            4 => (x[vocabulary / 2], x[vocabulary - 1]) = (f32::INFINITY, f32::INFINITY),
            5 => x
                .iter_mut()
                .enumerate()
                .for_each(|(at, x)| *x = if at % 3 == 0 { -0.0 } else { 0.0 }),
            6 => x[..vocabulary - 2].fill(f32::NEG_INFINITY),
            _ => {}
        }
    }
}
