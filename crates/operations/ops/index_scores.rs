//! Scores of a lightning indexer: the relevance of each compressed entry for each query.
//!
//! For entries w that the row may see, score_w = Σ_h a_h · max(0, q_h · k_w) over heads h, with a_h = head_weights_h · scale; the
//! score of all other entries is −∞. The definition is [`reference::ops::indexer`].

use rayon::prelude::*;
use reference::ops::indexer::select;
use reference::{Bounded, Tensor};
use safetensors::Dtype;

use super::data::{exact, round_to};
use super::grid::{Grid, element_bytes};
use super::{Batch, Buffer, Case, Data, Inputs, Judge, KernelOp, Problem, Scalar};

pub(super) const INDEX_SCORES: KernelOp = KernelOp {
    name: "index_scores",
    doc: "an indexer's score of every compressed entry that a query may see",
    cases,
    problem,
    ..KernelOp::NONE
};

fn cases() -> Vec<Case> {
    let of_type = |dtype| {
        let random = [[9, 5, 24, 64], [3, 3, 37, 66], [1, 4, 128, 5000], [66_000, 1, 8, 2]];
        Grid::of(dtype, &[("dtype", dtype)], ["B", "H", "D", "N"])
            .also("size", element_bytes(dtype))
            .named(|[b, h, d, n]| format!("b{b}.{h}x{d}.{n}"))
            .each("", &[[1, 4, 128, 65], [2, 64, 128, 130]], Grid::random)
            .each("", &[[7, 3, 40, 99]], Grid::large)
            .each("", &random, Grid::random)
            .each("edges", &[[17, 4, 40, 70]], Grid::edges)
            .when(dtype == "bf16", |grid| {
                grid.each("", &[1, 8].map(|b| [b, 64, 128, 32_768]), Grid::timed)
            })
            .done()
    };
    ["bf16", "f32"].into_iter().flat_map(of_type).collect()
}

fn problem(case: &Case, data: &Data) -> Result<Problem, String> {
    let [b, h, d, n] = case.sizes(["B", "H", "D", "N"]);
    let dtype = case.float_type("dtype");
    // Numbers of entries that rows may read: all, half, one, none, or a number near the tile size of 64.
    let counts = [n, n / 2, 1, 0, 64, n - 1, 63, 65];
    let counts: Vec<usize> = (0..b).map(|row| counts[row % counts.len()].min(n)).collect();
    let mut q = data.normal("index_scores/q", b * h * d);
    let mut keys = data.normal("index_scores/keys", b * n * d);
    let mut weights = data.normal("index_scores/weights", b * h);
    if case.inputs == Inputs::Edges {
        edges([&mut q, &mut keys, &mut weights], [h, d, n]);
    }
    round_to(dtype, &mut q);
    round_to(dtype, &mut keys);
    for (row, keys) in keys.chunks_exact_mut(n * d).enumerate() {
        // Put NaN into entries that a row may not read: a kernel that reads them gives NaN.
        keys[counts[row] * d..].fill(f32::NAN);
    }
    let scale = ((h * d) as f32).sqrt().recip();
    let want = want([&q, &keys, &weights], &counts, [h, d, n], scale);
    let buffers = vec![
        Buffer::floats("q", dtype, &[b, h, d], &q),
        Buffer::floats("keys", dtype, &[b, n, d], &keys),
        Buffer::f32("head_weights", &[b, h], &weights),
        Buffer::integers("count", 4, counts.iter().map(|count| *count as i64)),
    ];
    let judge = Judge::bounded("scores", Dtype::F32, &[b, n], &want, WHY)?;
    Ok(Problem {
        scalars: vec![("scale", Scalar::F32(scale))],
        flops: (2 * b * h * d * n) as u64,
        batch: Some(Batch::new("B", &["q", "keys", "head_weights", "count", "scores"])),
        ..Problem::new(buffers, vec![judge])
    })
}

const WHY: &str = "f32 arithmetic: a sum of products for each head, in any order, times its weight, and the sum over heads; \
                   entries that a row may not see are -infinity";

fn want([q, keys, weights]: [&[f32]; 3], counts: &[usize], [h, d, n]: [usize; 3], scale: f32) -> Vec<Bounded> {
    let scale = Bounded::exact(scale);
    let rows = counts.par_iter().enumerate().flat_map_iter(|(row, &count)| {
        let query = exact([1, h, d], &q[row * h * d..][..h * d]);
        let mut weights: Tensor<Bounded> = exact([1, h], &weights[row * h..][..h]);
        weights.data.iter_mut().for_each(|weight| *weight *= scale);
        let keys = exact([n, d], &keys[row * n * d..][..n * d]);
        select(&query, &weights, &keys.data, 1, |_| count).scores.data
    });
    rows.collect()
}

/// Sets edge rows: all products negative; only negative weights; an infinity in the query; a NaN in the query, in a key, or in a
/// weight; and keys of zeros.
fn edges([q, keys, weights]: [&mut [f32]; 3], [h, d, n]: [usize; 3]) {
    let rows = weights.len() / h;
    for row in 0..rows {
        let (q, keys) = (&mut q[row * h * d..][..h * d], &mut keys[row * n * d..][..n * d]);
        let weights = &mut weights[row * h..][..h];
        match row / 2 % 8 {
            1 => {
                q.iter_mut().for_each(|x| *x = x.abs());
                keys.iter_mut().for_each(|x| *x = -x.abs());
            }
            2 => weights.iter_mut().for_each(|x| *x = -x.abs()),
            3 => q[d / 2] = f32::NAN,
            4 => keys[7] = f32::NAN,
            5 => keys.fill(0.0),
            6 => q[3] = f32::INFINITY,
            7 => weights[h - 1] = f32::NAN,
            _ => {}
        }
    }
}
