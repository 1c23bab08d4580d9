//! A decode step of a compressor: the token's row goes to the state of its sequence; where it is the last of a window, the
//! window is pooled, normed, turned to the position of its first token and inserted as an entry.
//!
//! The definition is [`Pool::push`], then [`rmsnorm`], then [`Rope::apply`]. The state is a ring: token t is in slot t mod S,
//! with `ape[t mod m]` added to its gate. With overlap, rows have 2 D channels and S = 2 m: an entry pools the first D channels
//! of the window before and the last D of its own.
//!
//! The three stages of an entry are outputs, too. Each is judged given the kernel's own stage before it, so that a fault shows
//! where it is, and bounds do not pile up.

use rayon::prelude::*;
use reference::ops::compressor::Pool;
use reference::ops::rmsnorm::rmsnorm;
use reference::ops::rope::{Rope, frequencies};
use reference::{Bounded, Tensor};
use safetensors::Dtype;

use super::data::{exact, f32_bytes, f32_values, float_bytes};
use super::grid::Grid;
use super::judge::{Judge, Part};
use super::{Batch, Buffer, Case, Data, Inputs, KernelOp, Outputs, Problem, Scalar};

const EPS: f32 = 1e-6;
const THETA: f64 = 1e4;

pub(super) const COMPRESSOR: KernelOp = KernelOp {
    name: "compressor",
    doc: "a token's row goes to a compressor's state; a window that it completes is pooled, normed, turned and inserted",
    cases,
    problem,
    ..KernelOp::NONE
};

fn cases() -> Vec<Case> {
    ["bf16", "f32"].into_iter().flat_map(of_type).collect()
}

fn problem(case: &Case, data: &Data) -> Result<Problem, String> {
    let step = Step::new(case, data);
    let Sizes { rows, rate, dim, .. } = step.sizes;
    let (width, slots) = (step.sizes.width(), step.sizes.slots());
    let [capacity, pairs, positions] = case.sizes(["N", "R", "P"]);
    let pairs = pairs / 2;
    let ring = [rows, slots, width];
    let position: Vec<i32> = step.tokens.iter().map(|token| *token as i32).collect();
    let (cos, sin) = step.tables(positions);
    let buffers = vec![
        Buffer::f32("kv", &[rows, width], &step.kv),
        Buffer::f32("gate", &[rows, width], &step.gate),
        Buffer::f32("ape", &[rate, width], &step.ape),
        Buffer::f32("weight", &[dim], &step.weight),
        Buffer::f32("cos", &[positions, pairs], &cos),
        Buffer::f32("sin", &[positions, pairs], &sin),
        Buffer::i32("position", &[rows], &position),
        Buffer::in_place("ring_kv", Dtype::F32, &ring, f32_bytes(&step.ring_kv)),
        Buffer::in_place("ring_gate", Dtype::F32, &ring, f32_bytes(&step.ring_gate)),
        Buffer::in_place(
            "entries",
            step.dtype,
            &[rows, capacity, dim],
            float_bytes(step.dtype, &step.entries),
        ),
        Buffer::output("stages", Dtype::F32, &[rows, STAGES, dim]),
    ];
    let bytes = step.bytes();
    let [ring_kv, ring_gate] = step.pushed();
    let entry = step.completed(&ring_kv, &ring_gate)?;
    let ring = |name, values: &[f32]| Judge::equal(name, Dtype::F32, &ring, f32_bytes(values), WHY_RING);
    let judges = vec![
        ring("ring_kv", &ring_kv),
        ring("ring_gate", &ring_gate),
        Judge::parts("stages", move |outputs| entry.parts(outputs), WHY_STAGES),
    ];
    Ok(Problem {
        bytes,
        scalars: vec![("eps", Scalar::F32(EPS))],
        batch: Some(Batch::new(
            "B",
            &["kv", "gate", "position", "ring_kv", "ring_gate", "entries", "stages"],
        )),
        ..Problem::new(buffers, judges)
    })
}

/// Stages of an entry: pooled, normed and rotated.
const STAGES: usize = 3;

const WHY_RING: &str = "the token's values are copied, and its gate and ape are added once, in f32, so every bit is defined; \
                        other slots must be as they were";
const WHY_STAGES: &str = "each stage is judged given the kernel's own stage before it";
const WHY_POOLED: &str = "f32 arithmetic of a softmax and a weighted sum over the slots, in any order; an exponential errs by \
                          two units in the last place and by the rounding of its argument";
const WHY_NORMED: &str = "given the kernel's pooled values: f32 arithmetic of a mean of D squares, in any order, of its \
                          inverse root and of two products";
const WHY_ROTATED: &str = "given the kernel's normed values: two products and their sum in f32, with cosines and sines that are \
                           rounded to f32; other channels must be equal";
const WHY_FINITE: &str = "the next stage can be judged only where this one is finite";
const WHY_OPEN: &str = "the window of this row is not complete: its stages are zeros";
const WHY_ENTRIES: &str = "the entry is the kernel's own rotated value, rounded once to the type of entries; all others must \
                           be as they were";

fn of_type(dtype: &'static str) -> Vec<Case> {
    // B, m, overlap, D, R, N, P.
    let dims = |[rows, rate, overlap, dim, turned, capacity, positions]: [i64; 7]| {
        vec![
            ("B", rows),
            ("m", rate),
            ("D", dim),
            ("R", turned),
            ("N", capacity),
            ("S", rate * (1 + overlap)),
            ("W", dim * (1 + overlap)),
            ("P", positions),
            ("overlap", overlap),
        ]
    };
    Grid::new(dtype, &[("dtype", dtype)], dims)
        .large("m4.b15.512", [15, 4, 1, 512, 64, 258, 1031])
        .random("m4.b9.128", [9, 4, 1, 128, 64, 34, 133])
        // A kernel for long windows takes no others.
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

#[derive(Clone, Copy)]
struct Sizes {
    rows: usize,
    /// m, tokens of a window.
    rate: usize,
    overlap: bool,
    dim: usize,
    turned: usize,
    capacity: usize,
}

impl Sizes {
    fn width(&self) -> usize {
        self.dim * (1 + usize::from(self.overlap))
    }

    fn slots(&self) -> usize {
        self.rate * (1 + usize::from(self.overlap))
    }

    /// The first token that is pooled with token `t`, and the number of tokens in a complete window.
    fn pooled(&self, t: usize) -> (usize, usize) {
        let own = t / self.rate * self.rate;
        let first = own.saturating_sub(if self.overlap { self.rate } else { 0 });
        (first, own + self.rate - first)
    }

    /// True if token `t` completes a window.
    fn completes(&self, t: i64) -> bool {
        t >= 0 && (t as usize + 1).is_multiple_of(self.rate)
    }
}

/// The inputs of a case.
struct Step {
    sizes: Sizes,
    dtype: Dtype,
    /// Position of each row, −1 for padding.
    tokens: Vec<i64>,
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
        let [rows, rate, dim, turned, capacity] = case.sizes(["B", "m", "D", "R", "N"]);
        let sizes = Sizes {
            rows,
            rate,
            overlap: case.dim("overlap") == 1,
            dim,
            turned,
            capacity,
        };
        let (width, slots) = (sizes.width(), sizes.slots());
        let normal = |name: &str, len: usize| data.normal(&format!("compressor/{name}"), len);
        let mut step = Self {
            sizes,
            dtype: case.float_type("dtype"),
            tokens: tokens(case, sizes),
            kv: normal("kv", rows * width),
            gate: normal("gate", rows * width),
            ape: normal("ape", rate * width).iter().map(|x| 0.5 * x).collect(),
            weight: normal("weight", dim).iter().map(|x| 1.0 + 0.2 * x).collect(),
            ring_kv: normal("ring_kv", rows * slots * width),
            ring_gate: normal("ring_gate", rows * slots * width),
            entries: normal("entries", rows * capacity * dim),
        };
        for row in 0..rows {
            if case.inputs == Inputs::Edges {
                // Every kind meets every position.
                step.edge(row, (row + row / POSITIONS) % KINDS);
            }
            step.poison(row);
        }
        step
    }

    /// Fills slots that have not been written yet, and that of the token, with NaN: kernels must not read them.
    fn poison(&mut self, row: usize) {
        let (width, slots) = (self.sizes.width(), self.sizes.slots());
        let Ok(token) = usize::try_from(self.tokens[row]) else {
            return;
        };
        let absent = |slot: &usize| *slot >= token || *slot == token % slots;
        for slot in (0..slots).filter(absent) {
            for ring in [&mut self.ring_kv, &mut self.ring_gate] {
                ring[(row * slots + slot) * width..][..width].fill(f32::NAN);
            }
        }
    }

    /// Makes gates equal, far apart or −∞ except one, or values so small that ε matters.
    fn edge(&mut self, row: usize, kind: usize) {
        let Ok(token) = usize::try_from(self.tokens[row]) else {
            return;
        };
        let Sizes { rate, overlap, dim, .. } = self.sizes;
        let (width, slots) = (self.sizes.width(), self.sizes.slots());
        let (first, count) = self.sizes.pooled(token);
        // Visits each pooled token. With overlap, a row has two halves, and a token of the current window pools the second half.
        for number in 0..count.min(token + 1 - first) {
            let other = first + number;
            let half = if overlap && other / rate == token / rate {
                dim
            } else {
                0
            };
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

    /// Cosines and sines of all positions.
    fn tables(&self, positions: usize) -> (Vec<f32>, Vec<f32>) {
        let mut rope = Rope::<f32>::new(frequencies(self.sizes.turned, THETA, None));
        rope.extend(positions);
        (0..positions)
            .flat_map(|position| rope.turns(position))
            .copied()
            .unzip()
    }

    /// The rings with the token's row.
    fn pushed(&self) -> [Vec<f32>; 2] {
        let (width, slots, rate) = (self.sizes.width(), self.sizes.slots(), self.sizes.rate);
        let (mut kv, mut gate) = (self.ring_kv.clone(), self.ring_gate.clone());
        for (row, token) in self.tokens.iter().enumerate() {
            let Ok(token) = usize::try_from(*token) else {
                continue;
            };
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

    /// The entries that the tokens complete, pooled from these rings.
    fn completed(&self, ring_kv: &[f32], ring_gate: &[f32]) -> Result<Completed, String> {
        let (sizes, width, slots) = (self.sizes, self.sizes.width(), self.sizes.slots());
        let complete = |row: &usize| sizes.completes(self.tokens[*row]);
        let rows: Vec<usize> = (0..sizes.rows).filter(complete).collect();
        let numbers: Vec<usize> = rows.iter().map(|row| self.tokens[*row] as usize / sizes.rate).collect();
        let pooled = rows.par_iter().flat_map_iter(|row| {
            let (first, count) = sizes.pooled(self.tokens[*row] as usize);
            let state = |ring: &[f32]| {
                let token = |token: usize| &ring[(row * slots + token % slots) * width..][..width];
                let tokens: Vec<f32> = (first..first + count).flat_map(token).copied().collect();
                exact([count, width], &tokens)
            };
            let mut pool = Pool::new(sizes.rate, sizes.overlap, sizes.dim);
            let entries = pool.push(&state(ring_kv), &state(ring_gate));
            entries.row(entries.rows() - 1).to_vec()
        });
        let mut rope = Rope::new(frequencies(sizes.turned, THETA, None));
        let last = numbers.iter().max().map_or(0, |last| last * sizes.rate);
        rope.extend(last + 1);
        let completed = Completed {
            sizes,
            dtype: self.dtype,
            pooled: pooled.collect(),
            weight: self.weight.iter().map(|x| Bounded::exact(*x)).collect(),
            rope,
            before: float_bytes(self.dtype, &self.entries),
            rows,
            numbers,
        };
        completed.judge("pooled", &completed.pooled, WHY_POOLED)?;
        Ok(completed)
    }

    /// Bytes that must move. Inputs are read once, of the state only pooled slots; of the state and the entries one row is written.
    fn bytes(&self) -> u64 {
        let Sizes { rate, dim, turned, .. } = self.sizes;
        let width = self.sizes.width();
        let size = self.dtype.bitsize() / 8;
        let mut phases = vec![false; rate];
        let mut numbers = dim;
        let mut bytes = self.tokens.len() * (4 + 4 * STAGES * dim);
        for &token in self.tokens.iter().filter(|token| **token >= 0) {
            phases[token as usize % rate] = true;
            numbers += 4 * width;
            if self.sizes.completes(token) {
                let (_, count) = self.sizes.pooled(token as usize);
                numbers += 2 * (count - 1) * dim + turned;
                bytes += size * dim;
            }
        }
        numbers += width * phases.iter().filter(|phase| **phase).count();
        (bytes + 4 * numbers) as u64
    }
}

/// Number of different positions, and kinds of rows of edge cases.
const POSITIONS: usize = 15;
const KINDS: usize = 5;

/// Positions of the rows: all phases of windows, first windows, and padding, within the range of caches and tables. Timed cases
/// complete a window in each row.
fn tokens(case: &Case, sizes: Sizes) -> Vec<i64> {
    let rate = sizes.rate as i64;
    let reach = (case.dim("P") as i64).min(rate * (sizes.capacity as i64 - 1));
    if case.timed {
        let windows = sizes.capacity as i64;
        return (0..sizes.rows as i64)
            .map(|row| rate * (1 + (row + 1) % windows) - 1)
            .collect();
    }
    let first = [2 * rate - 1, rate - 1, 0, -1];
    let others = [3, 4, 7, 8, 126, 127, 128, 255, 2 * rate, 3 * rate - 2, 1023];
    let all = [&first[..], &others].concat();
    let within: Vec<i64> = all.into_iter().filter(|token| *token < reach).collect();
    (0..sizes.rows).map(|row| within[row % within.len()]).collect()
}

/// The completed entries: one in each of `rows`.
struct Completed {
    sizes: Sizes,
    dtype: Dtype,
    rows: Vec<usize>,
    /// Number of the entry in its row.
    numbers: Vec<usize>,
    /// `[rows, D]`.
    pooled: Vec<Bounded>,
    weight: Vec<Bounded>,
    rope: Rope<Bounded>,
    /// The entries of all rows before the step.
    before: Vec<u8>,
}

impl Completed {
    /// The requirements on stages and entries, given the kernel's stages.
    fn parts(&self, outputs: &Outputs) -> Vec<Part> {
        let dim = self.sizes.dim;
        let stages = outputs.get("stages");
        let row_bytes = 4 * STAGES * dim;
        let stage = |stage: usize| -> Vec<u8> {
            let rows = self.rows.iter();
            rows.flat_map(|row| &stages[row * row_bytes + 4 * stage * dim..][..4 * dim])
                .copied()
                .collect()
        };
        let found = [0, 1, 2].map(stage);
        let [pooled, normed, rotated] = [0, 1, 2].map(|stage| f32_values(&found[stage], 4));
        let [after_pooled, after_normed] = self.followed(&pooled, &normed);
        let mut parts = vec![
            self.stage("pooled", &self.pooled, WHY_POOLED, &found[0], ("pooled", &found[0])),
            self.stage("normed", &after_pooled, WHY_NORMED, &found[1], ("pooled", &found[0])),
            self.stage("rotated", &after_normed, WHY_ROTATED, &found[2], ("normed", &found[1])),
        ];
        let mut complete = vec![false; self.sizes.rows];
        self.rows.iter().for_each(|row| complete[*row] = true);
        let open: Vec<usize> = (0..self.sizes.rows).filter(|row| !complete[*row]).collect();
        let zeros: Vec<u8> = open
            .iter()
            .flat_map(|row| &stages[row * row_bytes..][..row_bytes])
            .copied()
            .collect();
        let shape = [open.len(), STAGES, dim];
        let judge = Judge::equal("stages", Dtype::F32, &shape, vec![0; zeros.len()], WHY_OPEN);
        parts.push(judge.of_rows(open).on(zeros));
        parts.push(self.entries(&rotated).on(outputs.get("entries").to_vec()));
        parts
    }

    /// The normed values that follow from pooled ones, and the rotated values that follow from normed ones.
    fn followed(&self, pooled: &[f32], normed: &[f32]) -> [Vec<Bounded>; 2] {
        let shape = [self.rows.len(), self.sizes.dim];
        let mut after_pooled = exact(shape, pooled);
        rmsnorm(&mut after_pooled, Some(&self.weight), Bounded::exact(EPS));
        let mut after_normed: Tensor<Bounded> = exact(shape, normed);
        let position = |entry: usize| self.numbers[entry] * self.sizes.rate;
        self.rope.apply(&mut after_normed, 1, position, false);
        [after_pooled.data, after_normed.data]
    }

    /// The judgement that a stage `found` is near `numbers`. If these have no bounds, the stage `before` is not finite, and therefore
    /// wrong.
    fn stage(
        &self,
        name: &'static str,
        numbers: &[Bounded],
        why: &'static str,
        found: &[u8],
        (before, found_before): (&'static str, &[u8]),
    ) -> Part {
        match self.judge(name, numbers, why) {
            Ok(judge) => judge.on(found.to_vec()),
            Err(_) => {
                let judge = Judge::finite(before, Dtype::F32, &[self.rows.len(), self.sizes.dim], WHY_FINITE);
                judge.of_rows(self.rows.clone()).on(found_before.to_vec())
            }
        }
    }

    fn judge(&self, name: &'static str, numbers: &[Bounded], why: &'static str) -> Result<Judge, String> {
        let shape = [self.rows.len(), self.sizes.dim];
        let judge = Judge::bounded(name, Dtype::F32, &shape, numbers, why)?;
        Ok(judge.of_rows(self.rows.clone()))
    }

    /// All entries, given the rotated values.
    fn entries(&self, rotated: &[f32]) -> Judge {
        let Sizes {
            rows, capacity, dim, ..
        } = self.sizes;
        let row_bytes = dim * self.dtype.bitsize() / 8;
        let mut want = self.before.clone();
        let new = float_bytes(self.dtype, rotated);
        for ((row, number), new) in self.rows.iter().zip(&self.numbers).zip(new.chunks_exact(row_bytes)) {
            want[(row * capacity + number) * row_bytes..][..row_bytes].copy_from_slice(new);
        }
        Judge::equal("entries", self.dtype, &[rows, capacity, dim], want, WHY_ENTRIES)
    }
}
