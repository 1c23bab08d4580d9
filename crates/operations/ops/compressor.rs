//! One decode step of a KV compressor, which pools each window of m tokens into one entry of the KV cache. The token's vectors kv
//! and gate are stored in the state of its sequence. If the token is the last of its window, the window is pooled, normed and
//! rotated (RoPE, at the position of the window's first token), and the result is stored as an entry.
//!
//! The definition is [`Pool::push`], then [`rmsnorm`], then [`Rope::apply`]. An entry has D channels. The state is a ring of S
//! slots: token t is in slot t mod S, with `ape[t mod m]` added to its gate. If windows overlap, kv and gate have 2 D channels
//! and S = 2 m: an entry pools the first D channels of the previous window and the last D channels of its own window.
//!
//! Kernels also output the three stages of an entry (pooled, normed, rotated). A test computes the expected values of a stage
//! from the previous stage as the kernel wrote it. So only the stage with the fault fails, and error bounds do not add up over
//! stages.

use std::collections::BTreeSet;
use std::ops::Range;

use rayon::prelude::*;
use reference::ops::compressor::Pool;
use reference::ops::rmsnorm::rmsnorm;
use reference::ops::rope::{Rope, frequencies};
use reference::{Bounded, Real, Tensor};
use safetensors::Dtype;

use super::data::{exact, f32_bytes, f32_values, float_bytes};
use super::grid::named;
use super::judge::{Judge, Part};
use super::{Batch, Buffer, Case, Data, Grid, Inputs, KernelOp, Outputs, Problem, Scalar};

const EPS: f32 = 1e-6;
const THETA: f64 = 1e4;

pub(super) const COMPRESSOR: KernelOp = KernelOp {
    name: "compressor",
    doc: "a token's row goes to a compressor's state; a window that it completes is pooled, normed, turned and inserted",
    cases: || ["bf16", "f32"].into_iter().flat_map(of_type).collect(),
    problem,
    ..KernelOp::NONE
};

fn problem(case: &Case, data: &Data) -> Result<Problem, String> {
    let step = Step::new(case, data);
    let (dtype, sizes) = (step.dtype, step.sizes);
    let [rows, rate, dim, _, capacity, slots, width] = sizes;
    let [pairs, positions] = [case.dim("R") / 2, case.dim("P")];
    let (cos, sin) = step.tables(positions);
    let of_tokens = [rows, width];
    let of_state = [rows, slots, width];
    let state = |name, values: &[f32]| Buffer::in_place(name, Dtype::F32, &of_state, f32_bytes(values));
    let entries = [rows, capacity, dim];
    let buffers = vec![
        Buffer::f32("kv", &of_tokens, &step.kv),
        Buffer::f32("gate", &of_tokens, &step.gate),
        Buffer::f32("ape", &[rate, width], &step.ape),
        Buffer::f32("weight", &[dim], &step.weight),
        Buffer::f32("cos", &[positions, pairs], &cos),
        Buffer::f32("sin", &[positions, pairs], &sin),
        Buffer::i32("position", &[rows], &step.tokens),
        state("ring_kv", &step.ring_kv),
        state("ring_gate", &step.ring_gate),
        Buffer::in_place("entries", dtype, &entries, float_bytes(dtype, &step.entries)),
        Buffer::output("stages", Dtype::F32, &[rows, STAGES.len(), dim]),
    ];
    let [ring_kv, ring_gate] = step.pushed();
    let entry = step.completed(&ring_kv, &ring_gate)?;
    let ring = |name, values: &[f32]| Judge::equal(name, Dtype::F32, &of_state, f32_bytes(values), WHY_RING);
    let judges = vec![
        ring("ring_kv", &ring_kv),
        ring("ring_gate", &ring_gate),
        Judge::parts("stages", move |outputs| entry.parts(outputs), WHY_STAGES),
    ];
    let of_rows = ["kv", "gate", "position", "ring_kv", "ring_gate", "entries", "stages"];
    Ok(Problem {
        bytes: step.bytes(),
        scalars: vec![("eps", Scalar::F32(EPS))],
        batch: Some(Batch::new("B", &of_rows)),
        ..Problem::new(buffers, judges)
    })
}

/// The three stages of an entry (pooled, normed, rotated), each with the reason for its error bound.
const STAGES: [(&str, &str); 3] = [
    (
        "pooled",
        "f32 arithmetic of a softmax and a weighted sum over the slots, in any order; an exponential errs by two units in the last \
         place and by the rounding of its argument",
    ),
    (
        "normed",
        "given the kernel's pooled values: f32 arithmetic of a mean of D squares, in any order, of its inverse root and of two \
         products",
    ),
    (
        "rotated",
        "given the kernel's normed values: two products and their sum in f32, with cosines and sines that are rounded to f32; \
         other channels must be equal",
    ),
];

const WHY_RING: &str = "the token's values are copied, and its gate and ape are added once, in f32, so every bit is defined; \
                        other slots must be as they were";
const WHY_STAGES: &str = "each stage is judged given the kernel's own stage before it";
const WHY_FINITE: &str = "the next stage can be judged only where this one is finite";
const WHY_OPEN: &str = "the window of this row is not complete: its stages are zeros";
const WHY_ENTRIES: &str = "the entry is the kernel's own rotated value, rounded once to the type of entries; all others must \
                           be as they were";

fn of_type(dtype: &'static str) -> Vec<Case> {
    // A shape has the sizes B, m, overlap (0 or 1), D, R, N, P.
    let dims = |[rows, rate, overlap, dim, turned, capacity, positions]: [i64; 7]| {
        let [slots, width] = [rate, dim].map(|size| size * (1 + overlap));
        let sizes = [rows, rate, dim, turned, capacity, slots, width, positions, overlap];
        named("B m D R N S W P overlap", sizes)
    };
    Grid::new(dtype, &[("dtype", dtype)], dims)
        .large("m4.b15.512", [15, 4, 1, 512, 64, 258, 1031])
        .random("m4.b9.128", [9, 4, 1, 128, 64, 34, 133])
        // Kernels have specialised code for long windows, so the cases named `m128` have windows of 128 tokens.
        .large("m128.b14.512", [14, 128, 0, 512, 64, 9, 1025])
        .random("m3.b17.24", [17, 3, 1, 24, 8, 343, 1030])
        .random("m5.b7.40", [7, 5, 0, 40, 12, 29, 141])
        .random("m4.b1.512", [1, 4, 1, 512, 64, 3, 9])
        .random("m128.b2.512", [2, 128, 0, 512, 64, 3, 260])
        .random("m2.b70000.4", [70_000, 2, 0, 4, 2, 3, 5])
        .edges("edges.m4.b77.128", [77, 4, 1, 128, 64, 258, 1027])
        .edges("edges.m128.b38.512", [38, 128, 0, 512, 64, 10, 1026])
        .edges("edges.m3.b79.24", [79, 3, 1, 24, 8, 345, 1029])
        .when(dtype == "bf16", |grid| {
            grid.timed("m4.b1.timed", [1, 4, 1, 512, 64, 64, 256])
                .timed("m4.b8.timed", [8, 4, 1, 512, 64, 64, 256])
                .timed("m4.b64.timed", [64, 4, 1, 512, 64, 64, 256])
                .timed("m128.b1.timed", [1, 128, 0, 512, 64, 8, 1024])
                .timed("m128.b8.timed", [8, 128, 0, 512, 64, 8, 1024])
                .timed("m128.b64.timed", [64, 128, 0, 512, 64, 8, 1024])
        })
        .done()
}

/// Number of rows, tokens of a window (m), channels of an entry (D), rotated channels, entries per row, slots of a ring, and
/// channels of a slot. The last two double with overlap.
type Sizes = [usize; 7];

/// Index of the first token that is pooled when token `t` completes its window, and the number of tokens that are pooled.
fn pooled([_, rate, dim, .., width]: Sizes, t: usize) -> (usize, usize) {
    let own = t / rate * rate;
    let first = own.saturating_sub(if width > dim { rate } else { 0 });
    (first, own + rate - first)
}

/// Inputs of a case.
struct Step {
    sizes: Sizes,
    dtype: Dtype,
    /// Position of each row's token; −1 for padding rows.
    tokens: Vec<i32>,
    kv: Vec<f32>,
    gate: Vec<f32>,
    ape: Vec<f32>,
    weight: Vec<f32>,
    ring_kv: Vec<f32>,
    ring_gate: Vec<f32>,
    entries: Vec<f32>,
}

impl Step {
    fn new(case: &Case, data: &Data) -> Self {
        let sizes @ [rows, rate, dim, _, capacity, slots, width] = case.sizes(["B", "m", "D", "R", "N", "S", "W"]);
        let normal = |name: &str, len: usize| data.normal(&format!("compressor/{name}"), len);
        let mut step = Self {
            sizes,
            dtype: case.float_type("dtype"),
            tokens: tokens(case, sizes),
            kv: normal("kv", rows * width),
            gate: normal("gate", rows * width),
            ape: data.around("compressor/ape", rate * width, 0.0, 0.5),
            weight: data.around("compressor/weight", dim, 1.0, 0.2),
            ring_kv: normal("ring_kv", rows * slots * width),
            ring_gate: normal("ring_gate", rows * slots * width),
            entries: normal("entries", rows * capacity * dim),
        };
        for (row, token) in step.rows() {
            if case.inputs == Inputs::Edges {
                // Combine every kind of edge row with every position.
                step.edge(row, token, (row + row / POSITIONS) % KINDS);
            }
            // Put NaN into the ring slots that kernels must not read: slots without a token yet, and the slot that the current
            // token overwrites.
            for slot in (0..slots).filter(|slot| *slot >= token || *slot == token % slots) {
                for ring in [&mut step.ring_kv, &mut step.ring_gate] {
                    ring[(row * slots + slot) * width..][..width].fill(f32::NAN);
                }
            }
        }
        step
    }

    /// Returns the index of each row that is not padding, with the position of its token.
    fn rows(&self) -> Vec<(usize, usize)> {
        let rows = self.tokens.iter().enumerate();
        rows.filter_map(|(row, token)| Some((row, usize::try_from(*token).ok()?)))
            .collect()
    }

    /// Returns the index of each row whose token completes a window, with the position of the token.
    fn complete(&self) -> impl Iterator<Item = (usize, usize)> {
        let [_, rate, ..] = self.sizes;
        let rows = self.rows().into_iter();
        rows.filter(move |(_, token)| (token + 1).is_multiple_of(rate))
    }

    /// Sets edge values by kind: equal gates, gates far apart, gates of −∞ except one, or values so small that the ε of the norm
    /// matters.
    fn edge(&mut self, row: usize, token: usize, kind: usize) {
        let [_, rate, dim, .., slots, width] = self.sizes;
        let (first, count) = pooled(self.sizes, token);
        // Visit each pooled token. With overlap, a slot has two halves of D channels: the first is used for tokens of the
        // previous window, the second for tokens of the current window.
        for number in 0..count.min(token + 1 - first) {
            let other = first + number;
            let half = if other / rate == token / rate { width - dim } else { 0 };
            for channel in 0..dim {
                let at = half + channel;
                let (gate, kv) = if other == token {
                    (&mut self.gate[row * width + at], &mut self.kv[row * width + at])
                } else {
                    let at = (row * slots + other % slots) * width + at;
                    (&mut self.ring_gate[at], &mut self.ring_kv[at])
                };
                match kind {
                    1 => *gate = 0.75,
                    2 => *gate += 1e4 * (((number + channel) % 3) as f32 - 1.0),
                    3 if number != (channel * 5 + row) % count => *gate = f32::NEG_INFINITY,
                    4 => *kv *= 1e-3,
                    _ => {}
                }
            }
        }
    }

    /// Computes the cosines and the sines for all positions.
    fn tables(&self, positions: usize) -> (Vec<f32>, Vec<f32>) {
        let rope: Rope<f32> = self.rope(positions);
        let turns = (0..positions).flat_map(|position| rope.turns(position));
        turns.copied().unzip()
    }

    fn rope<T: Real>(&self, positions: usize) -> Rope<T> {
        let mut rope = Rope::new(frequencies(self.sizes[3], THETA, None));
        rope.extend(positions);
        rope
    }

    /// Returns the ring buffers of kv and of gates after the token's row has been stored.
    fn pushed(&self) -> [Vec<f32>; 2] {
        let [_, rate, .., slots, width] = self.sizes;
        let (mut kv, mut gate) = (self.ring_kv.clone(), self.ring_gate.clone());
        for (row, token) in self.rows() {
            let slot = (row * slots + token % slots) * width;
            kv[slot..][..width].copy_from_slice(&self.kv[row * width..][..width]);
            let logits = self.gate[row * width..][..width]
                .iter()
                .zip(&self.ape[token % rate * width..]);
            let slot = gate[slot..][..width].iter_mut();
            slot.zip(logits).for_each(|(slot, (gate, ape))| *slot = gate + ape);
        }
        [kv, gate]
    }

    /// Computes the pooled values of all rows whose tokens complete a window, from these contents of the rings.
    fn completed(&self, ring_kv: &[f32], ring_gate: &[f32]) -> Result<Completed, String> {
        let sizes @ [_, rate, dim, .., slots, width] = self.sizes;
        let (rows, tokens): (Vec<usize>, Vec<usize>) = self.complete().unzip();
        let pooled = rows.par_iter().zip(&tokens).flat_map_iter(|(row, token)| {
            let (first, count) = pooled(sizes, *token);
            let state = |ring: &[f32]| {
                let token = |token: usize| &ring[(row * slots + token % slots) * width..][..width];
                let tokens: Vec<f32> = (first..first + count).flat_map(token).copied().collect();
                exact([count, width], &tokens)
            };
            let mut pool = Pool::new(rate, width > dim, dim);
            let entries = pool.push(&state(ring_kv), &state(ring_gate));
            entries.row(entries.rows() - 1).to_vec()
        });
        let pooled: Vec<Bounded> = pooled.collect();
        let (name, why) = STAGES[0];
        Judge::bounded(name, Dtype::F32, &[rows.len(), dim], &pooled, why)?;
        let numbers: Vec<usize> = tokens.iter().map(|token| token / rate).collect();
        let last = numbers.iter().max().map_or(0, |last| last * rate);
        Ok(Completed {
            sizes,
            dtype: self.dtype,
            pooled,
            weight: self.weight.iter().map(|x| Bounded::exact(*x)).collect(),
            rope: self.rope(last + 1),
            before: float_bytes(self.dtype, &self.entries),
            rows,
            numbers,
        })
    }

    /// Minimum memory traffic in bytes. Kernels read each input once, but only the pooled slots of the state and the used rows of
    /// tables. They write the new rows of the state, the stages and the completed entries.
    fn bytes(&self) -> u64 {
        let [_, rate, dim, turned, .., width] = self.sizes;
        let (rows, complete) = (self.rows(), self.complete());
        let phases: BTreeSet<usize> = rows.iter().map(|(_, token)| token % rate).collect();
        let pooled = complete.map(|(_, token)| pooled(self.sizes, token).1);
        let (completed, of_entries) = pooled.fold((0, 0), |(completed, numbers), count| {
            (completed + 1, numbers + 2 * (count - 1) * dim + turned)
        });
        let numbers = dim + width * (phases.len() + 4 * rows.len()) + of_entries;
        let stages = self.tokens.len() * (1 + STAGES.len() * dim);
        (4 * (stages + numbers) + completed * self.dtype.bitsize() / 8 * dim) as u64
    }
}

/// Maximum number of token positions that the rows use in turn ([`tokens`]). `KINDS` is the number of kinds of edge rows.
const POSITIONS: usize = 15;
const KINDS: usize = 5;

/// Returns the position of each row's token. The rows cover tokens of the first windows, first and last tokens of windows, and
/// padding (−1), if the sizes of the case allow these positions. In timed cases every row completes a window.
fn tokens(case: &Case, sizes: Sizes) -> Vec<i32> {
    let [rate, windows, positions] = [sizes[1], sizes[4], case.dim("P")].map(|size| size as i32);
    if case.timed {
        let last = |row: i32| rate * (1 + (row + 1) % windows) - 1;
        return (0..sizes[0] as i32).map(last).collect();
    }
    let first = [2 * rate - 1, rate - 1, 0, -1];
    let others = [3, 4, 7, 8, 126, 127, 128, 255, 2 * rate, 3 * rate - 2, 1023];
    let mut within = [&first[..], &others].concat();
    within.retain(|token| *token < positions.min(rate * (windows - 1)));
    (0..sizes[0]).map(|row| within[row % within.len()]).collect()
}

/// The entries that this step completes, one for each of `rows`.
struct Completed {
    sizes: Sizes,
    dtype: Dtype,
    /// Row indices in ascending order.
    rows: Vec<usize>,
    /// Index of each new entry among the entries of its row.
    numbers: Vec<usize>,
    /// Expected pooled values `[rows, D]`, with error bounds.
    pooled: Vec<Bounded>,
    weight: Vec<Bounded>,
    rope: Rope<Bounded>,
    /// Contents of the buffer `entries` before the step.
    before: Vec<u8>,
}

impl Completed {
    /// Returns the checks of the buffers `stages` (pooled, normalised and rotated rows) and `entries`. The expected values of each
    /// stage after the first, and of the entries, are computed from the previous stage that the kernel wrote.
    fn parts(&self, outputs: &Outputs) -> Vec<Part> {
        let [rows, rate, dim, ..] = self.sizes;
        let stages = outputs.get("stages");
        let of = |rows: &[usize], of_row: Range<usize>| -> Vec<u8> {
            let bytes =
                |row: &usize| &stages[row * 4 * STAGES.len() * dim..][4 * dim * of_row.start..4 * dim * of_row.end];
            rows.iter().flat_map(bytes).copied().collect()
        };
        let found = [0, 1, 2].map(|stage| of(&self.rows, stage..stage + 1));
        let [pooled, normed, rotated] = [0, 1, 2].map(|stage| f32_values(&found[stage], Dtype::F32));
        let shape = [self.rows.len(), dim];
        let mut after_pooled = exact(shape, &pooled);
        rmsnorm(&mut after_pooled, Some(&self.weight), Bounded::exact(EPS));
        let mut after_normed: Tensor<Bounded> = exact(shape, &normed);
        let position = |entry: usize| self.numbers[entry] * rate;
        self.rope.apply(&mut after_normed, 1, position, false);
        let mut parts = Vec::new();
        for (at, numbers) in [&self.pooled, &after_pooled.data, &after_normed.data]
            .into_iter()
            .enumerate()
        {
            let (name, why) = STAGES[at];
            let judged = Judge::bounded(name, Dtype::F32, &shape, numbers, why).map(|judge| (judge, at));
            // If the bounds are not finite, the previous stage is not finite. Check that stage instead, so that the test fails
            // there.
            let (judge, at) = judged.unwrap_or_else(|_| {
                let before = at.saturating_sub(1);
                (Judge::finite(STAGES[before].0, Dtype::F32, &shape, WHY_FINITE), before)
            });
            parts.push(judge.of_rows(self.rows.clone()).on(found[at].clone()));
        }
        let open: Vec<usize> = (0..rows).filter(|row| self.rows.binary_search(row).is_err()).collect();
        let zeros = of(&open, 0..STAGES.len());
        let shape = [open.len(), STAGES.len(), dim];
        let judge = Judge::equal("stages", Dtype::F32, &shape, vec![0; zeros.len()], WHY_OPEN);
        parts.push(judge.of_rows(open).on(zeros));
        parts.push(self.entries(&rotated).of(outputs));
        parts
    }

    /// Returns the check of all entries. The expected new entries are the rotated values that the kernel wrote.
    fn entries(&self, rotated: &[f32]) -> Judge {
        let [rows, _, dim, _, capacity, ..] = self.sizes;
        let shape = [rows, capacity, dim];
        let row_bytes = shape[2] * self.dtype.bitsize() / 8;
        let mut want = self.before.clone();
        let new = float_bytes(self.dtype, rotated);
        for ((row, number), new) in self.rows.iter().zip(&self.numbers).zip(new.chunks_exact(row_bytes)) {
            want[(row * shape[1] + number) * row_bytes..][..row_bytes].copy_from_slice(new);
        }
        Judge::equal("entries", self.dtype, &shape, want, WHY_ENTRIES)
    }
}
