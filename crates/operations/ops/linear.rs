//! Grouped linear layer: y [B, G, N] = x [B, G, K] · wᵀ, w [G, N, K], with separate weights for each group g, as in DeepSeek's
//! grouped output projection. Sums are f32. Weights may be stored in another format than x: bfloat16, or FP8 codes with a scale
//! per 64 columns. Kernels decode the weights and do not round x.

use rayon::prelude::*;
use reference::ops::linear::Product;
use reference::{Bounded, Real};

use super::data::{exact, round_to};
use super::grid::element_bytes;
use super::stored::{FP8, Matrices, Storage};
use super::{Batch, Buffer, Case, Data, Grid, Inputs, Judge, KernelOp, Problem};

pub(super) const LINEAR: KernelOp = KernelOp {
    name: "linear",
    doc: "multiplies rows by weights, group by group, with sums in f32",
    cases,
    problem,
    ..KernelOp::NONE
};

fn cases() -> Vec<Case> {
    let of_types = |(dtype, weights, out): (&'static str, &'static str, &'static str)| {
        let keys = [("dtype", dtype), ("stored", weights), ("out", out)];
        // Bytes per element of x and w; 0 if x and w are stored in different formats.
        let (size, prefix) = match dtype == weights {
            true => (element_bytes(dtype), format!("{dtype}.{out}")),
            false => (0, format!("{dtype}.{weights}.{out}")),
        };
        let large = [
            // In this shape, K is small and N is large: repeated rows make y large, and the columns of y alone need many thread
            // blocks.
            [3, 1, 5000, 24],
            // In this shape, rows of x are wider than rows of y, so that x becomes large. Many CTAs read the same row of x.
            [3, 33, 4, 72],
        ];
        let random = [
            [7, 2, 32, 512],
            [8, 3, 24, 63],
            [9, 1, 1, 1024],
            // Kernels may split K into two (first shape) or more parts; the last part is shorter.
            [33, 2, 70, 1032],
            [17, 1, 100, 2056],
            [6, 1, 65, 3144],
            [65, 1, 136, 72],
            [128, 2, 40, 96],
            [70_000, 1, 3, 8],
        ];
        let timed = [[1, 32_768, 1024], [1, 4096, 8192], [8, 1024, 4096]];
        let timed = timed.map(|[g, n, k]| [1, 8, 64].map(|b| [b, g, n, k]));
        Grid::of(prefix, &keys, ["B", "G", "N", "K"])
            .also("size", size)
            .named(|[b, g, n, k]| format!("b{b}.{g}x{n}x{k}"))
            .each("", &[[1, 1, 48, 64], [2, 1, 200, 48]], Grid::random)
            .each("", &large, Grid::large)
            .each("", &random, Grid::random)
            .each("edges", &[[13, 2, 40, 88]], Grid::edges)
            .when((dtype, out) == ("bf16", "bf16"), |grid| {
                grid.each("", timed.as_flattened(), Grid::timed)
            })
            .done()
    };
    let types = [
        ("f32", "f32", "f32"),
        ("bf16", "bf16", "bf16"),
        ("bf16", "bf16", "f32"),
        ("f32", "bf16", "f32"),
        ("f32", FP8, "f32"),
    ];
    types.into_iter().flat_map(of_types).collect()
}

fn problem(case: &Case, data: &Data) -> Result<Problem, String> {
    let [b, g, n, k] = case.sizes(["B", "G", "N", "K"]);
    let [dtype, out] = ["dtype", "out"].map(|key| case.float_type(key));
    let mut x = data.normal("linear/x", b * g * k);
    let mut w = data.around("linear/w", g * n * k, 0.0, (k as f32).sqrt().recip());
    if case.inputs == Inputs::Edges {
        edges(&mut x, k);
        edges(&mut w, k);
    }
    round_to(dtype, &mut x);
    let mut matrices = Matrices::new(Storage::named(case.key("stored"))?, k);
    for w in w.chunks_exact(n * k) {
        matrices.push(w)?;
    }
    let want = product([b, g, n, k], &x, &matrices.values);
    let [w, w_scale] = matrices.buffers(["w", "w_scale"], &[g, n])?;
    let buffers = vec![Buffer::floats("x", dtype, &[b, g, k], &x), w, w_scale];
    let judge = Judge::bounded("y", out, &[b, g, n], &want, WHY)?;
    Ok(Problem {
        flops: (2 * b * g * n * k) as u64,
        batch: Some(Batch::new("B", &["x", "y"])),
        ..Problem::new(buffers, vec![judge])
    })
}

const WHY: &str = "a sum of K products in f32, in any order: each product and each addition is rounded by at most 2^-24 of the \
                   sum of magnitudes; then half a step of the type that is stored";

fn product([b, g, n, k]: [usize; 4], x: &[f32], w: &[f32]) -> Vec<Bounded> {
    let (x, w) = (exact([b * g, k], x), exact([g * n, k], w));
    let mut y = vec![Bounded::ZERO; b * g * n];
    let rows = 64 * g;
    y.par_chunks_mut(rows * n)
        .zip(x.data.par_chunks(rows * k))
        .for_each(|(y, x)| {
            for group in 0..g {
                let w = &w.data[group * n * k..][..n * k];
                let product = Product {
                    x_stride: g * k,
                    y_stride: g * n,
                    ..Product::new([x.len() / (g * k), n, k], &x[group * k..], w)
                };
                product.run(&mut y[group * n..]);
            }
        });
    y
}

/// Sets edge rows: zeros; values that nearly cancel in sums; and rows with one large number, one infinity or one NaN.
fn edges(x: &mut [f32], row: usize) {
    for (number, x) in x.chunks_exact_mut(row).enumerate() {
        let at = number * 997 % row;
        match number % 7 {
            1 => x.fill(0.0),
            2 => x
                .iter_mut()
                .enumerate()
                .for_each(|(at, x)| *x = if at % 2 == 0 { 1.0 } else { -1.0 } * (1.0 + *x / 1024.0)),
            3 => x[at] = 2f32.powi(60),
            4 if number % 2 == 0 => x[at] = f32::INFINITY,
            5 if number % 3 == 0 => x[at] = f32::NAN,
            _ => {}
        }
    }
}
