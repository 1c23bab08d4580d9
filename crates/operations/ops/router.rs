//! Router of a mixture of experts (MoE): chooses K of E experts for each row, and computes their weights.
//!
//! σ = √softplus(logit), where softplus(x) = x above 20. A layer selects experts in one of two ways. By `bias`: the K largest of
//! σ + bias, best first; ties go to the smaller index. By `table`: the K table entries of the row's token. Weights are scale · σ
//! / (Σ σ over the selected + 1e-20), without the bias. See [`sqrt_softplus`], [`select`] and [`weights`]. A row whose token is
//! −1 is padding: its experts are −1 and its weights 0.
//!
//! Scores that differ by less than their errors may be ordered either way. So the test first checks the experts that the kernel
//! chose, then the weights for these experts. An expert is admissible in a slot if no remaining expert has a score that is larger
//! by more than the sum of both errors. Experts with equal logits and equal biases tie and must be in the order of their indices.
//! NaN is the largest score; if an expert with the score NaN is selected, all weights of the row are NaN.

use rayon::prelude::*;
use reference::ops::router::{Selection, select, sqrt_softplus, weights};
use reference::{Bounded, Choice, Tensor};
use safetensors::Dtype;

use super::data::{exact, i32_bytes, i32_values};
use super::judge::{Judge, Part};
use super::routed::distinct;
use super::{Batch, Buffer, Case, Data, Grid, Inputs, KernelOp, Outputs, Problem, Scalar};

/// Constant factor of the weights: DeepSeek-V4's `routed_scaling_factor`.
const SCALE: f32 = 1.5;
/// One row out of this many rows is padding.
const PADDED: usize = 7;

pub(super) const ROUTER: KernelOp = KernelOp {
    name: "router",
    doc: "the experts of each row by sqrt-softplus scores with a bias, or by a table, and their weights",
    cases: || ["bias", "table"].into_iter().flat_map(of_type).collect(),
    problem,
    ..KernelOp::NONE
};

fn problem(case: &Case, data: &Data) -> Result<Problem, String> {
    let [rows, experts, k, tokens] = case.sizes(["B", "E", "K", "V"]);
    let routed = Routed::new(case, data);
    let Routed { logits, token, .. } = &routed;
    // Selection by bias ignores the table, and selection by table ignores the bias. The ignored input has one element or one
    // row.
    let (bias, table) = match &routed.selection {
        Selection::Bias(bias) => (bias.iter().map(|x| x.value() as f32).collect(), vec![-1; k]),
        Selection::Table(table) => (vec![f32::NAN], table.iter().map(|expert| *expert as i32).collect()),
    };
    let buffers = vec![
        Buffer::f32("logits", &[rows, experts], logits),
        Buffer::f32("bias", &[bias.len()], &bias),
        Buffer::i32("table", &[tokens, k], &table),
        Buffer::i32("token", &[rows], token),
        Buffer::output("experts", Dtype::I32, &[rows, k]),
        Buffer::output("weights", Dtype::F32, &[rows, k]),
    ];
    let judges = match routed.selection {
        Selection::Bias(_) => vec![Judge::parts("experts", move |outputs| routed.parts(outputs), WHY_PARTS)],
        Selection::Table(_) => {
            let want = i32_bytes(&routed.choice.indices);
            let weights = routed.weights(&routed.choice)?;
            vec![
                Judge::equal("experts", Dtype::I32, &[rows, k], want, WHY_TABLE),
                weights,
            ]
        }
    };
    let mut problem = Problem {
        scalars: vec![("scale", Scalar::F32(SCALE))],
        batch: Some(Batch::new("B", &["logits", "token", "experts", "weights"])),
        ..Problem::new(buffers, judges)
    };
    if case.key("select") == "table" {
        // Traffic includes only the table entries of the rows' tokens, and only the logits of the selected experts.
        problem.bytes = (rows * (4 + 4 * 4 * k)) as u64;
    }
    Ok(problem)
}

fn of_type(by: &'static str) -> Vec<Case> {
    let dims = move |([rows, experts, k], tokens): ([i64; 3], i64)| {
        let tokens = if by == "table" { tokens } else { 1 };
        vec![("B", rows), ("E", experts), ("K", k), ("V", tokens)]
    };
    let random = [
        ([8, 384, 6], 1000),
        ([9, 256, 6], 17),
        ([65, 256, 6], 999),
        ([70_000, 4, 2], 5),
    ];
    let edges = [([63, 384, 6], 40), ([64, 7, 2], 65), ([127, 40, 3], 9)];
    // Tables of timed cases cover DeepSeek-V4's vocabulary of 129,280 tokens.
    let timed = [1, 8, 64].map(|rows| ([rows, 256, 6], 129_280));
    Grid::new(by, &[("select", by)], dims)
        .named(|([rows, experts, k], _)| format!("b{rows}.e{experts}.k{k}"))
        .each("", &[([1, 384, 6], 11), ([2, 4, 2], 3)], Grid::random)
        .each("", &[([7, 7, 1], 100)], Grid::large)
        .each("", &random, Grid::random)
        .each("edges", &edges, Grid::edges)
        .each("", &timed, Grid::timed)
        .done()
}

const WHY_PARTS: &str = "an expert may be chosen if no better one is left, within the errors of both scores; weights are \
                         judged for the experts that were chosen";
const WHY_EXPERTS: &str = "of the experts that the slots before left over, none has a score that is larger beyond the f32 \
                           errors of both; equal logits with equal biases are ties, which go to the smaller index; NaN is \
                           the largest score; padding has -1";
const WHY_TABLE: &str = "the table's entries are copied; padding has -1";
const WHY_WEIGHTS: &str = "f32 arithmetic: e^x, ln(1 + x) and a square root err by a few units of 2^-24 each, the sum of K \
                           of them in any order by K, the quotient and the product by four; e^x may be lost below 2^-126";

/// Inputs of a case, with the scores and the experts that the reference implementation chooses.
struct Routed {
    experts: usize,
    /// Logits `[B, E]`.
    logits: Vec<f32>,
    /// Token of each row; −1 for padding.
    token: Vec<i32>,
    selection: Selection<Bounded>,
    sigma: Tensor<Bounded>,
    /// Experts that the reference chooses; −1 in padding rows.
    choice: Choice<Bounded>,
}

impl Routed {
    fn new(case: &Case, data: &Data) -> Self {
        let [rows, experts, k, tokens] = case.sizes(["B", "E", "K", "V"]);
        let edges = case.inputs == Inputs::Edges;
        let by_table = case.key("select") == "table";
        let mut logits = data.normal("router/logits", rows * experts);
        let mut bias = data.around("router/bias", experts, 0.0, 0.2);
        if edges {
            // Round the biases, so that many of them are equal.
            bias.iter_mut().for_each(|x| *x = (5.0 * *x).round() / 5.0);
            logits.chunks_exact_mut(experts).enumerate().for_each(edge);
        }
        let drawn = data.words("router/token", rows).into_iter().enumerate();
        let token = drawn.map(|(row, word)| match row % PADDED {
            3 => -1,
            _ => ((word & 0xff_ffff) as usize % tokens) as i32,
        });
        let token: Vec<i32> = token.collect();
        let selection = match by_table {
            true => Selection::Table(table([tokens, experts, k], edges, data)),
            false => Selection::Bias(bias.iter().map(|x| Bounded::exact(*x)).collect()),
        };
        for (logits, &token) in logits.chunks_exact_mut(experts).zip(&token) {
            match &selection {
                // Fill with NaN the logits that kernels must not read.
                _ if token < 0 => logits.fill(f32::NAN),
                Selection::Table(table) => {
                    let own = &table[token as usize * k..][..k];
                    let others = logits
                        .iter_mut()
                        .enumerate()
                        .filter(|(e, _)| !own.contains(&(*e as u32)));
                    others.for_each(|(_, logit)| *logit = f32::NAN);
                }
                Selection::Bias(_) => {}
            }
        }
        let mut sigma = exact([rows, experts], &logits);
        sqrt_softplus(&mut sigma);
        let ids: Vec<u32> = token.iter().map(|&token| token.max(0) as u32).collect();
        let mut choice = select(&sigma, &selection, &ids, k);
        let padding = choice
            .indices
            .chunks_exact_mut(k)
            .zip(&token)
            .filter(|(_, token)| **token < 0);
        padding.for_each(|(indices, _)| indices.fill(-1));
        Self {
            experts,
            logits,
            token,
            selection,
            sigma,
            choice,
        }
    }

    /// Returns the checks of the experts that the kernel chose, and of the weights for these experts.
    fn parts(&self, outputs: &Outputs) -> Vec<Part> {
        let chosen = i32_values(outputs.get("experts"));
        let (rows, k) = (self.token.len(), self.choice.k);
        let mut admitted = vec![-1; rows * k];
        admitted
            .par_chunks_exact_mut(k)
            .zip(chosen.par_chunks_exact(k))
            .enumerate()
            .filter(|(row, _)| self.token[*row] >= 0)
            .for_each(|(row, (admitted, chosen))| self.admit(row, chosen, admitted));
        let there = |expert: &i32| (0..self.experts as i32).contains(expert);
        let rows_of = admitted.chunks_exact(k).zip(chosen.chunks_exact(k)).zip(&self.token);
        let own = rows_of.flat_map(
            |((admitted, chosen), token)| match *token >= 0 && chosen.iter().all(there) {
                true => chosen,
                false => admitted,
            },
        );
        let own = Choice {
            indices: own.copied().collect(),
            k,
            scores: exact([0, 0], &[]),
        };
        let weights = self.weights(&own);
        let weights = weights.unwrap_or_else(|why| unreachable!("the sum of σ is at least 1e-20: {why}"));
        let want = i32_bytes(&admitted);
        vec![
            Judge::equal("experts", Dtype::I32, &[rows, k], want, WHY_EXPERTS).of(outputs),
            weights.of(outputs),
        ]
    }

    fn weights(&self, choice: &Choice<Bounded>) -> Result<Judge, String> {
        let want = weights(&self.sigma, choice, Bounded::exact(SCALE));
        Judge::bounded("weights", Dtype::F32, &want.shape, &want.data, WHY_WEIGHTS)
    }

    /// Writes the expected experts of a row to `admitted`: in each slot, the kernel's expert if rounding errors allow this expert
    /// in the slot, else the best of the experts that earlier slots have left.
    fn admit(&self, row: usize, chosen: &[i32], admitted: &mut [i32]) {
        let mut left = vec![true; self.experts];
        for (admitted, &expert) in admitted.iter_mut().zip(chosen) {
            let others = || (0..self.experts).filter(|other| left[*other]);
            let own = usize::try_from(expert).ok();
            let own =
                own.filter(|own| left.get(*own) == Some(&true) && !others().any(|other| self.before(row, other, *own)));
            let best = || others().reduce(|best, other| if self.before(row, other, best) { other } else { best });
            *admitted = own.or_else(best).map_or(-1, |expert| expert as i32);
            if let Some(left) = usize::try_from(expert).ok().and_then(|expert| left.get_mut(expert)) {
                *left = false;
            }
        }
    }

    /// True if expert `one` must precede expert `other`: its score is surely higher (NaN is highest), or both tie and its index
    /// is smaller.
    fn before(&self, row: usize, one: usize, other: usize) -> bool {
        let score = |expert: usize| self.choice.scores.data[row * self.experts + expert];
        let ([a, b], logit) = ([score(one), score(other)], &self.logits[row * self.experts..]);
        match (a.value().is_nan(), b.value().is_nan()) {
            (false, false) => {}
            (true, true) => return one < other,
            (nan, _) => return nan,
        }
        let tie = match &self.selection {
            Selection::Bias(bias) => logit[one] == logit[other] && bias[one] == bias[other],
            Selection::Table(_) => false,
        };
        if tie {
            one < other
        } else {
            a.value() - b.value() > a.error() + b.error()
        }
    }
}

/// Draws the table: K different experts per token. In edge cases, every third token has its first expert again in its last slot.
fn table([tokens, experts, k]: [usize; 3], edges: bool, data: &Data) -> Vec<u32> {
    let drawn = data.bytes("router/table", 2 * tokens * k);
    let mut table = Vec::with_capacity(tokens * k);
    for (token, drawn) in drawn.chunks_exact(2 * k).enumerate() {
        let first = table.len();
        table.extend(distinct(drawn, experts).into_iter().map(|expert| expert as u32));
        if edges && token % 3 == 0 {
            table[first + k - 1] = table[first];
        }
    }
    table
}

/// Sets edge logits, of one kind per row: scores that differ by less than their errors; σ of 0; equal logits; numbers near and
/// far from the threshold of softplus; NaN; logits x whose e^x is subnormal; −∞.
fn edge((row, logits): (usize, &mut [f32])) {
    let large = [100.0, 25.0, 1e30, 20.0, 20.000_002, -3.0, 89.0];
    let experts = logits.len();
    match row % 9 {
        // Logits that differ by 16 or 32 units in the last place.
        0 => (0..experts).for_each(|e| logits[e] = f32::from_bits(0.75f32.to_bits() + 16 * (e as u32 * 5 % 3))),
        1 => logits.fill(-200.0),
        2 => logits.fill(0.7),
        3 => (0..experts).for_each(|e| logits[e] = large[(e + row / 9) % large.len()]),
        4 => {
            logits[row * 5 % experts] = f32::NAN;
            logits[row * 11 % experts] = -f32::NAN;
        }
        5 => logits.iter_mut().for_each(|x| *x = -85.0 - 5.0 * x.abs()),
        6 => (0..experts)
            .filter(|e| (e + row) % 7 > 1)
            .for_each(|e| logits[e] = f32::NEG_INFINITY),
        // Round the logits to integers, so that many scores tie exactly, including those of experts in different lanes.
        7 => logits.iter_mut().for_each(|x| *x = x.round()),
        // Two numbers below the threshold 20: softplus(x) differs from x by more than the two numbers differ from each other. So
        // a kernel that replaces softplus(x) by x for only one of them orders them wrongly.
        8 => (0..experts).for_each(|e| logits[e] = [10.0, 10.000_02][(e + row / 9) % 2]),
        _ => {}
    }
}
