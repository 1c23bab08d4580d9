//! The mixture of experts of a decode step: rows through the experts that a router chose, and through the shared expert.
//!
//! An expert computes W₂ (silu(g) · u · w), where g and u are the halves of W₁₃ x, g clamped from above and u on both sides, and
//! w is the router's weight: it is applied before W₂. A row's experts are added in ascending order of their numbers, the
//! shared expert, which has no weight, last: [`Experts::apply`]. A slot of −1 has no expert, and its weight is not read.
//!
//! The numbers between the products stay f32, also if the matrices are bf16, so that only y is rounded. Matrices may be stored in
//! another way than x: as bfloat16, FP8 codes with a scale for 64 columns, or, those of routed experts, MXFP4 or NVFP4. They are
//! decoded, and x is not rounded.

use std::collections::BTreeSet;

use reference::ops::experts::{Expert, Experts};
use reference::ops::linear::Linear;
use reference::{Bounded, Choice, Plain, Tensor};
use safetensors::Dtype;

use super::data::{exact, round_to_bf16};
use super::grid::Grid;
use super::judge::Judge;
use super::stored::{FP8, Matrices, Storage};
use super::{Batch, Buffer, Case, Data, Inputs, Op, Problem, Scalar};

/// The operation `experts`.
pub struct ExpertsOp;

/// DeepSeek-V4's `swiglu_limit`.
const LIMIT: f32 = 10.0;
/// Standard deviation of gates and of what they are multiplied with: about one in ten is beyond the limit.
const GATES: f32 = 6.0;

impl Op for ExpertsOp {
    fn name(&self) -> &'static str {
        "experts"
    }

    fn doc(&self) -> &'static str {
        "the mixture of the experts that a router chose for each row, and of the shared expert"
    }

    fn cases(&self) -> Vec<Case> {
        let ways = [
            ["bf16", "bf16", "bf16"],
            ["f32", "f32", "f32"],
            ["f32", "bf16", "bf16"],
            ["f32", FP8, FP8],
            ["f32", FP8, "mxfp4"],
            ["f32", FP8, "nvfp4"],
        ];
        let cases = |way| ["spread", "one"].map(|to| cases(way, to)).concat();
        ways.into_iter().flat_map(cases).collect()
    }

    fn problem(&self, case: &Case, data: &Data) -> Result<Problem, String> {
        let [rows, k, dim, inner] = ["B", "K", "D", "I"].map(|dim| case.dim(dim));
        let dtype = match case.key("dtype") {
            "bf16" => Dtype::BF16,
            _ => Dtype::F32,
        };
        let routed = Routed::new(case, data);
        let mut x = data.normal("experts/x", rows * dim);
        if case.inputs == Inputs::Edges {
            x.chunks_exact_mut(dim).enumerate().for_each(edge);
        }
        let [own, shared] = ["routed", "stored"].map(|key| Storage::named(case.key(key)));
        let [own, shared] = [own?, shared?];
        let used = routed.used();
        let gate_up = matrices("gate_up", own, case, (&used, 2 * inner, dim), data)?;
        let down = matrices("down", own, case, (&used, dim, inner), data)?;
        let [mut shared_gate_up, mut shared_down] = [Matrices::new(shared, dim), Matrices::new(shared, inner)];
        shared_gate_up.push(&drawn("shared_gate_up", [2 * inner, dim], data))?;
        shared_down.push(&drawn("shared_down", [dim, inner], data))?;
        if dtype == Dtype::BF16 {
            round_to_bf16(&mut x);
        }

        let experts = Experts {
            routed: experts(&gate_up.values, &down.values, &used, [dim, inner]),
            shared: expert(&shared_gate_up.values, &shared_down.values, [dim, inner]),
            limit: Bounded::exact(LIMIT),
        };
        let (choice, weights) = routed.in_front();
        let want = experts.apply(&exact([rows, dim], &x), &choice, &weights, &Plain);
        let judge = Judge::bounded("y", dtype, &[rows, dim], &want.data, WHY)?;

        let count = case.dim("E");
        let mut buffers = vec![
            Buffer::floats("x", dtype, &[rows, dim], &x),
            Buffer::input("experts", Dtype::I32, &[rows, k], routed.bytes()),
            Buffer::f32("weights", &[rows, k], &routed.weights),
            gate_up.level_buffer("gate_up_level", &[count]),
            down.level_buffer("down_level", &[count]),
            Buffer::output("y", dtype, &[rows, dim]),
        ];
        buffers.extend(gate_up.buffers(["gate_up", "gate_up_scale"], &[count, 2 * inner])?);
        buffers.extend(down.buffers(["down", "down_scale"], &[count, dim])?);
        buffers.extend(shared_gate_up.buffers(["shared_gate_up", "shared_gate_up_scale"], &[2 * inner])?);
        buffers.extend(shared_down.buffers(["shared_down", "shared_down_scale"], &[dim])?);
        // Experts that no row goes to need not be read.
        let bits = 3 * dim * inner * (shared.bits()? + used.len() * own.bits()?);
        let sent = routed.experts.iter().filter(|expert| **expert >= 0).count();
        Ok(Problem {
            scalars: vec![("limit", Scalar::F32(LIMIT))],
            bytes: ((2 * rows * dim * dtype.bitsize() + bits) / 8 + 8 * rows * k) as u64,
            flops: (6 * dim * inner * (rows + sent)) as u64,
            batch: Some(Batch::new("B", &["x", "experts", "weights", "y"])),
            ..Problem::new(buffers, vec![judge])
        })
    }
}

/// Rows go to `one` expert, or are `spread` over all. The way is the type of x, and how the shared expert and the others are stored.
fn cases([dtype, weights, routed]: [&'static str; 3], to: &'static str) -> Vec<Case> {
    let dims = |[rows, experts, k, dim, inner]: [i64; 5]| {
        vec![("B", rows), ("E", experts), ("K", k), ("D", dim), ("I", inner)]
    };
    let keys = [
        ("dtype", dtype),
        ("stored", weights),
        ("routed", routed),
        ("routing", to),
    ];
    let same = dtype == weights && dtype == routed;
    let prefix = match (same, weights == routed) {
        (true, _) => format!("{dtype}.{to}"),
        (false, true) => format!("{dtype}.{weights}.{to}"),
        (false, false) => format!("{dtype}.{weights}.{routed}.{to}"),
    };
    let grid = Grid::new(prefix, &keys, dims);
    // The first case of three rows is the one that is repeated: long rows are large before there are too many for a warp to sort.
    if to == "one" {
        return grid
            .random("b3.5x7168x8", [3, 5, 1, 7168, 8])
            .random("b65.5x72x40", [65, 5, 1, 72, 40])
            .done();
    }
    grid.random("b1.4x64x48", [1, 4, 2, 64, 48])
        .random("b3.4x7168x8", [3, 4, 2, 7168, 8])
        .random("b7.4x64x48", [7, 4, 2, 64, 48])
        .random("b9.7x72x40", [9, 7, 3, 72, 40])
        .when(!routed.ends_with("fp4"), |grid| {
            grid.random("b8.5x40x33", [8, 5, 1, 40, 33])
        })
        .when(routed.ends_with("fp4"), |grid| {
            grid.random("b8.5x70x34", [8, 5, 1, 70, 34])
        })
        .random("b2.256x256x96", [2, 256, 6, 256, 96])
        .random("b65.7x64x48", [65, 7, 2, 64, 48])
        .edges("edges.b64.9x72x40", [64, 9, 4, 72, 40])
        .random("b65537.3x8x4", [65_537, 3, 2, 8, 4])
        .when(dtype == "bf16", |grid| {
            grid.timed("b1.16x2048x1024", [1, 16, 6, 2048, 1024])
                .timed("b8.16x2048x1024", [8, 16, 6, 2048, 1024])
        })
        .done()
}

const WHY: &str = "f32 arithmetic: sums of D products, whose errors the activation and the clamps carry on, then one sum of I \
                   products for each expert, all in any order, each rounding by at most 2^-24; then half a step of the type \
                   that is stored";

/// Which experts the rows go to, and with what weights.
struct Routed {
    k: usize,
    /// `[B, K]`: −1 is none.
    experts: Vec<i32>,
    /// `[B, K]`: NaN where there is no expert.
    weights: Vec<f32>,
}

impl Routed {
    fn new(case: &Case, data: &Data) -> Self {
        let [rows, count, k] = ["B", "E", "K"].map(|dim| case.dim(dim));
        let drawn = data.bytes("experts/experts", 2 * rows * k);
        let mut weights = data.normal("experts/weights", rows * k);
        weights
            .iter_mut()
            .for_each(|weight| *weight = 0.05 + 0.25 * weight.abs());
        let mut experts: Vec<i32> = Vec::with_capacity(rows * k);
        for (row, drawn) in drawn.chunks_exact(2 * k).enumerate() {
            let first = experts.len();
            for bytes in drawn.as_chunks().0 {
                let mut expert = i32::from(u16::from_le_bytes(*bytes)) % count as i32;
                while experts[first..].contains(&expert) {
                    expert = (expert + 1) % count as i32;
                }
                experts.push(expert);
            }
            let (experts, weights) = (&mut experts[first..], &mut weights[first..first + k]);
            match row % 8 {
                _ if case.key("routing") == "one" => experts.fill(count as i32 - 2),
                5 => experts[k - 1] = -1,
                _ if case.inputs != Inputs::Edges => {}
                1 => experts.sort_by_key(|expert| -expert),
                2 => experts[k / 2] = -1,
                3 => experts.fill(-1),
                4 => experts[k - 1] = experts[0],
                6 => (weights[0], weights[k - 1]) = (0.0, 3e4),
                _ => {}
            }
        }
        for (weight, expert) in weights.iter_mut().zip(&experts) {
            *weight = if *expert < 0 { f32::NAN } else { *weight };
        }
        Self { k, experts, weights }
    }

    /// The experts that rows go to.
    fn used(&self) -> BTreeSet<usize> {
        self.experts
            .iter()
            .filter_map(|&expert| usize::try_from(expert).ok())
            .collect()
    }

    /// As the reference has them: rows begin with the slots that have an expert.
    fn in_front(&self) -> (Choice<Bounded>, Tensor<Bounded>) {
        let (mut indices, mut weights) = (vec![-1; self.experts.len()], vec![0.0; self.experts.len()]);
        let rows = self.experts.chunks_exact(self.k).zip(self.weights.chunks_exact(self.k));
        for (row, (experts, own)) in rows.enumerate() {
            let sent = experts.iter().zip(own).filter(|(expert, _)| **expert >= 0);
            for (at, (expert, weight)) in (row * self.k..).zip(sent) {
                (indices[at], weights[at]) = (*expert, *weight);
            }
        }
        let choice = Choice {
            indices,
            k: self.k,
            scores: exact([0, 0], &[]),
        };
        (choice, exact([self.experts.len() / self.k, self.k], &weights))
    }

    fn bytes(&self) -> Vec<u8> {
        self.experts.iter().flat_map(|expert| expert.to_le_bytes()).collect()
    }
}

/// The matrices of all routed experts; those that no row goes to are NaN.
fn matrices(
    name: &str,
    storage: Storage,
    case: &Case,
    (used, rows, cols): (&BTreeSet<usize>, usize, usize),
    data: &Data,
) -> Result<Matrices, String> {
    let mut all = Matrices::new(storage, cols);
    for number in 0..case.dim("E") {
        match used.contains(&number) {
            true => all.push(&drawn(&format!("{name}/{number}"), [rows, cols], data))?,
            false => all.push_poison(rows * cols)?,
        }
    }
    Ok(all)
}

/// The experts by number; those that no row goes to are empty.
fn experts(gate_up: &[f32], down: &[f32], used: &BTreeSet<usize>, [dim, inner]: [usize; 2]) -> Vec<Expert<Bounded>> {
    let pairs = gate_up
        .chunks_exact(2 * inner * dim)
        .zip(down.chunks_exact(dim * inner));
    let each = pairs
        .enumerate()
        .map(|(number, (gate_up, down))| match used.contains(&number) {
            true => expert(gate_up, down, [dim, inner]),
            false => expert(&[], &[], [0, 0]),
        });
    each.collect()
}

fn expert(gate_up: &[f32], down: &[f32], [dim, inner]: [usize; 2]) -> Expert<Bounded> {
    Expert {
        gate_up: Linear {
            weight: exact([2 * inner, dim], gate_up),
        },
        down: Linear {
            weight: exact([dim, inner], down),
        },
    }
}

/// A random matrix, before it is stored: gates and what they are multiplied with are large, and results about as large as rows are.
fn drawn(name: &str, [rows, cols]: [usize; 2], data: &Data) -> Vec<f32> {
    let mut values = data.normal(&format!("experts/{name}"), rows * cols);
    let size = if name.contains("gate_up") { GATES } else { 1.0 };
    values.iter_mut().for_each(|x| *x *= size / (cols as f32).sqrt());
    values
}

/// Rows of zeros, of numbers that drive all gates beyond the limit, with an infinity, and with a NaN.
fn edge((row, x): (usize, &mut [f32])) {
    let at = row * 997 % x.len();
    match row % 11 {
        2 => x.fill(0.0),
        4 | 6 => x.iter_mut().for_each(|x| *x *= 20.0),
        8 => x[at] = f32::INFINITY,
        10 => x[at] = f32::NAN,
        _ => {}
    }
}
