//! Mixture of experts (MoE) of a decode step: each row goes through the experts that a router chose, and through the shared
//! expert.
//!
//! An expert computes W₂ (silu(g) · u · w). g and u are the halves of W₁₃ x; g is clamped from above, u from both sides. w is the
//! router's weight, applied before W₂. The results of a row's experts are added in ascending order of expert index, then the
//! shared expert, which has no weight: [`Experts::apply`]. A row has a slot for each chosen expert. A slot with index −1 has no
//! expert, and kernels do not read its weight.
//!
//! Numbers between the two products stay f32, even if the matrices are bf16; only y is rounded. Matrices may be stored in another
//! format than x: bfloat16, FP8 codes with a scale per 64 columns, or (routed experts only) MXFP4 or NVFP4. Kernels decode the
//! matrices and do not round x.

use reference::ops::experts::{Expert, Experts};
use reference::{Bounded, Choice, Plain, Tensor};

use super::data::{exact, round_to};
use super::edges;
use super::edges::Edge::{One, Random, Times, Zeros};
use super::grid::{Grid, pairs};
use super::routed::{Routed, experts_of_rows};
use super::stored::{FP8, Matrices, Storage};
use super::swiglu::LIMIT;
use super::{Batch, Buffer, Case, Data, Inputs, Judge, KernelOp, Problem, Scalar};

/// Standard deviation of gates g and of u: about one value in ten exceeds the clamp limit.
const GATES: f32 = 6.0;

pub(super) const EXPERTS: KernelOp = KernelOp {
    name: "experts",
    doc: "the mixture of the experts that a router chose for each row, and of the shared expert",
    cases,
    problem,
    ..KernelOp::NONE
};

fn cases() -> Vec<Case> {
    let ways = [
        ["bf16", "bf16", "bf16"],
        ["f32", "f32", "f32"],
        ["f32", "bf16", "bf16"],
        ["f32", FP8, FP8],
        ["f32", FP8, "mxfp4"],
        ["f32", FP8, "nvfp4"],
    ];
    pairs(&ways, &["spread", "one"], of_type)
}

fn problem(case: &Case, data: &Data) -> Result<Problem, String> {
    let [rows, count, k, dim, inner] = case.sizes(["B", "E", "K", "D", "I"]);
    let dtype = case.float_type("dtype");
    let routed = Routed::new("experts", case, data);
    // True for each expert that a row uses. Kernels need not read the other experts.
    let used: Vec<bool> = routed.places[..count].iter().map(|places| !places.is_empty()).collect();
    let mut x = data.normal("experts/x", rows * dim);
    if case.inputs == Inputs::Edges {
        let (large, [infinity, nan]) = (Times(20.0), [f32::INFINITY, f32::NAN].map(One));
        let kinds = [
            Random, Random, Zeros, Random, large, Random, large, Random, infinity, Random, nan,
        ];
        edges::set(&mut x, dim, 0, &kinds);
    }
    let [own, shared] = ["routed", "stored"].map(|key| Storage::named(case.key(key)));
    let [own, shared] = [own?, shared?];
    let gate_up = matrices("gate_up", own, &used, [2 * inner, dim], data)?;
    let down = matrices("down", own, &used, [dim, inner], data)?;
    let [mut shared_gate_up, mut shared_down] = [Matrices::new(shared, dim), Matrices::new(shared, inner)];
    shared_gate_up.push(&drawn("shared_gate_up", [2 * inner, dim], data))?;
    shared_down.push(&drawn("shared_down", [dim, inner], data))?;
    round_to(dtype, &mut x);

    let experts = Experts {
        routed: experts(&gate_up.values, &down.values, &used, [dim, inner]),
        shared: expert(&shared_gate_up.values, &shared_down.values, [dim, inner]),
        limit: Bounded::exact(LIMIT),
    };
    let (choice, weights) = in_front(&routed);
    let want = experts.apply(&exact([rows, dim], &x), &choice, &weights, &Plain);
    let judge = Judge::bounded("y", dtype, &[rows, dim], &want.data, WHY)?;

    let [experts, weights] = routed.buffers();
    let mut buffers = vec![
        Buffer::floats("x", dtype, &[rows, dim], &x),
        experts,
        weights,
        gate_up.level_buffer("gate_up_level", &[count]),
        down.level_buffer("down_level", &[count]),
        Buffer::output("y", dtype, &[rows, dim]),
    ];
    buffers.extend(gate_up.buffers(["gate_up", "gate_up_scale"], &[count, 2 * inner])?);
    buffers.extend(down.buffers(["down", "down_scale"], &[count, dim])?);
    buffers.extend(shared_gate_up.buffers(["shared_gate_up", "shared_gate_up_scale"], &[2 * inner])?);
    buffers.extend(shared_down.buffers(["shared_down", "shared_down_scale"], &[dim])?);
    let used = used.iter().filter(|used| **used).count();
    let bits = 3 * dim * inner * (shared.bits()? + used * own.bits()?);
    let sent = routed.experts.iter().filter(|expert| **expert >= 0).count();
    Ok(Problem {
        scalars: vec![("limit", Scalar::F32(LIMIT))],
        bytes: ((2 * rows * dim * dtype.bitsize() + bits) / 8 + 8 * rows * k) as u64,
        flops: (6 * dim * inner * (rows + sent)) as u64,
        batch: Some(Batch::new("B", &["x", "experts", "weights", "y"])),
        ..Problem::new(buffers, vec![judge])
    })
}

/// Makes the cases for one combination of types: of x, of the shared expert's weights, and of the routed experts' weights. `to`
/// is the routing: all rows go to `one` expert, or are `spread` over all.
fn of_type([dtype, weights, routed]: [&'static str; 3], to: &'static str) -> Vec<Case> {
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
    let grid = experts_of_rows(prefix, &keys);
    // The test repeats the rows until buffers exceed 2³² elements. D is large, so that the number of rows stays within the limit
    // of kernels that sort the rows by expert in one warp.
    if to == "one" {
        let grid = grid.each("", &[[3, 5, 1, 7168, 8]], Grid::large);
        return grid.each("", &[[65, 5, 1, 72, 40]], Grid::random).done();
    }
    let odd = match routed.ends_with("fp4") {
        true => [8, 5, 1, 70, 34],
        false => [8, 5, 1, 40, 33],
    };
    grid.each("", &[[1, 4, 2, 64, 48]], Grid::random)
        .each("", &[[3, 4, 2, 7168, 8]], Grid::large)
        .each("", &[[7, 4, 2, 64, 48], [9, 7, 3, 72, 40], odd], Grid::random)
        .each("", &[[2, 256, 6, 256, 96], [65, 7, 2, 64, 48]], Grid::random)
        .each("edges", &[[64, 9, 4, 72, 40]], Grid::edges)
        .each("", &[[65_537, 3, 2, 8, 4]], Grid::random)
        .when(dtype == "bf16", |grid| {
            grid.each("", &[1, 8].map(|b| [b, 16, 6, 2048, 1024]), Grid::timed)
        })
        .done()
}

const WHY: &str = "f32 arithmetic: sums of D products, whose errors the activation and the clamps carry on, then one sum of I \
                   products for each expert, all in any order, each rounding by at most 2^-24; then half a step of the type \
                   that is stored";

/// Returns the experts and weights of each row in the form that the reference expects: slots with an expert first, then those
/// without.
fn in_front(routed: &Routed) -> (Choice<Bounded>, Tensor<Bounded>) {
    let Routed {
        k,
        experts,
        weights: own,
        ..
    } = routed;
    let (mut indices, mut weights) = (vec![-1; experts.len()], vec![0.0; experts.len()]);
    for (row, (experts, own)) in experts.chunks_exact(*k).zip(own.chunks_exact(*k)).enumerate() {
        let sent = experts.iter().zip(own).filter(|(expert, _)| **expert >= 0);
        for (at, (expert, weight)) in (row * k..).zip(sent) {
            (indices[at], weights[at]) = (*expert, *weight);
        }
    }
    let choice = Choice {
        indices,
        k: *k,
        scores: exact([0, 0], &[]),
    };
    (choice, exact([experts.len() / k, *k], &weights))
}

/// Draws the matrices of all routed experts; experts without rows get NaN.
fn matrices(
    name: &str,
    storage: Storage,
    used: &[bool],
    [rows, cols]: [usize; 2],
    data: &Data,
) -> Result<Matrices, String> {
    let mut all = Matrices::new(storage, cols);
    for (number, used) in used.iter().enumerate() {
        match used {
            true => all.push(&drawn(&format!("{name}/{number}"), [rows, cols], data))?,
            false => all.push_poison(rows * cols)?,
        }
    }
    Ok(all)
}

/// Splits decoded matrices into routed experts, in index order. Experts without rows are empty.
fn experts(gate_up: &[f32], down: &[f32], used: &[bool], [dim, inner]: [usize; 2]) -> Vec<Expert<Bounded>> {
    let pairs = gate_up
        .chunks_exact(2 * inner * dim)
        .zip(down.chunks_exact(dim * inner));
    let each = pairs.zip(used).map(|((gate_up, down), used)| match used {
        true => expert(gate_up, down, [dim, inner]),
        false => expert(&[], &[], [0, 0]),
    });
    each.collect()
}

fn expert(gate_up: &[f32], down: &[f32], [dim, inner]: [usize; 2]) -> Expert<Bounded> {
    Expert {
        gate_up: exact([2 * inner, dim], gate_up),
        down: exact([dim, inner], down),
    }
}

/// Draws a matrix. Gate and up weights are so large that g and u have the standard deviation [`GATES`]; results of `down` are
/// about as large as its inputs.
fn drawn(name: &str, [rows, cols]: [usize; 2], data: &Data) -> Vec<f32> {
    let mut values = data.normal(&format!("experts/{name}"), rows * cols);
    let size = if name.contains("gate_up") { GATES } else { 1.0 };
    values.iter_mut().for_each(|x| *x *= size / (cols as f32).sqrt());
    values
}
