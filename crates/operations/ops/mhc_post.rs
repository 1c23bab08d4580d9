//! The mHC post-block (manifold-constrained hyper-connections): mixes the output of a model block into the n residual streams.
//!
//! X'_k = post_k · y + Σ_j C_jk X_j, as [`Mixing::mix`] defines it: the sum runs over the first index of C.

use reference::ops::hyper_connection::Mixing;

use super::data::{exact, float_bytes, round_to};
use super::edges;
use super::edges::Edge::{One, Random, Zeros};
use super::{Batch, Buffer, Case, Data, Grid, Inputs, Judge, KernelOp, Problem};

/// Number of residual streams in all operations on residual streams.
pub(super) const STREAMS: usize = 4;

pub(super) const MHC_POST: KernelOp = KernelOp {
    name: "mhc_post",
    doc: "mHC post-block of 4 streams: a block's output and the old streams, mixed into the new ones",
    cases: || rows_of_streams([7, 64], [9, 72], [70_000, 4]),
    problem,
    ..KernelOp::NONE
};

/// Makes the cases `[B, C]` of an operation on residual streams. Tests repeat the rows of the shape `large` past 2³² elements;
/// the shape `edges` has edge values, and the shape `many` has many rows.
pub(super) fn rows_of_streams(large: [i64; 2], edges: [i64; 2], many: [i64; 2]) -> Vec<Case> {
    let of_type = |dtype| {
        Grid::of(dtype, &[("dtype", dtype)], ["B", "C"])
            .named(|[rows, channels]| format!("b{rows}.{channels}"))
            .each("", &[[1, 64]], Grid::random)
            .each("", &[large], Grid::large)
            .each("", &[[2, 333]], Grid::random)
            .each("edges", &[edges], Grid::edges)
            .each("", &[many], Grid::random)
            .when(dtype == "bf16", |grid| {
                grid.each("", &[[1, 4096], [8, 4096], [64, 4096]], Grid::timed)
            })
            .done()
    };
    ["bf16", "f32"].into_iter().flat_map(of_type).collect()
}

fn problem(case: &Case, data: &Data) -> Result<Problem, String> {
    let [rows, dim] = case.sizes(["B", "C"]);
    let dtype = case.float_type("dtype");
    let mut x = data.normal("mhc_post/x", rows * STREAMS * dim);
    let mut y = data.normal("mhc_post/y", rows * dim);
    if case.inputs == Inputs::Edges {
        let [large, small] = [100, -120].map(|power| One(2f32.powi(power)));
        let kinds = [Random, Zeros, large, small, One(f32::INFINITY), One(f32::NAN)];
        edges::set(&mut x, STREAMS * dim, 0, &kinds);
        // Use other channels of y than of x for edge values: an infinity or NaN of x in the same channel would hide a wrong
        // treatment of y.
        edges::set(&mut y, dim, 5, &kinds);
    }
    round_to(dtype, &mut x);
    round_to(dtype, &mut y);
    // Draw weights: `post` between 0 and 2, `comb` between 0 and 1. In edge cases, every third weight is 0.
    let weights = |name: &str, per_row: usize, most: f32| -> Vec<f32> {
        let weights = data.normal(name, rows * per_row).into_iter();
        weights.map(|x| most / (1.0 + (-x).exp())).collect()
    };
    let mut post = weights("mhc_post/post", STREAMS, 2.0);
    let mut comb = weights("mhc_post/comb", STREAMS * STREAMS, 1.0);
    if case.inputs == Inputs::Edges {
        // Set some weights to zero: their products with infinities and with NaN must be NaN.
        for weights in [&mut post, &mut comb] {
            weights.iter_mut().step_by(3).for_each(|weight| *weight = 0.0);
        }
    }

    let mut want = exact([rows, STREAMS, dim], &x);
    let mixing = Mixing {
        post: exact([rows, STREAMS], &post),
        comb: exact([rows, STREAMS, STREAMS], &comb),
    };
    mixing.mix(&mut want, &exact([rows, dim], &y));

    let shape = [rows, STREAMS, dim];
    let buffers = vec![
        Buffer::in_place("x", dtype, &shape, float_bytes(dtype, &x)),
        Buffer::floats("y", dtype, &[rows, dim], &y),
        Buffer::f32("post", &[rows, STREAMS], &post),
        Buffer::f32("comb", &[rows, STREAMS, STREAMS], &comb),
    ];
    let judge = Judge::bounded("x", dtype, &shape, &want.data, WHY)?;
    Ok(Problem {
        batch: Some(Batch::new("B", &["x", "y", "post", "comb"])),
        ..Problem::new(buffers, vec![judge])
    })
}

const WHY: &str = "f32 arithmetic: five products and the sum of them in any order, each rounded by at most 2^-24 of its \
                   magnitude; then half a step of the type that is stored";
