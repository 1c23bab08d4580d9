//! The mHC pre-block and the RMSNorm after it. It mixes n residual streams into the normed input of a model block, and computes
//! the weights (post and comb) for mixing the block's output back into the streams.
//!
//! The definition is [`HyperConnection::pre`] followed by [`rmsnorm`]. Streams and the normed input are bf16 or f32. A bf16
//! normed input is rounded once.

use rayon::prelude::*;
use reference::ops::hyper_connection::HyperConnection;
use reference::ops::linear::dot;
use reference::ops::rmsnorm::rmsnorm;
use reference::{LAMBDA, Tensor};
use safetensors::Dtype;

use super::data::{round_to, widened};
use super::grid::{Grid, element_bytes};
use super::judge::{Judge, UNIT, bf16_error};
use super::mhc_post::STREAMS;
use super::rmsnorm::rounded;
use super::{Batch, Buffer, Case, Data, Inputs, KernelOp, Problem, Scalar};

/// Number of outputs of the projection: the logits of pre (n), post (n) and comb (n × n).
const WIDTH: usize = 2 * STREAMS + STREAMS * STREAMS;
const ITERATIONS: usize = 20;
const EPS: f32 = 1e-6;
/// The ε of cases with [`FEW`] tokens. It is large, so that a kernel fails if it omits ε in any of the Sinkhorn normalizations.
const LARGE_EPS: f32 = 1e-3;
/// Numbers of tokens of the cases with [`LARGE_EPS`]. Each variant supports at least one of these numbers.
const FEW: [usize; 4] = [3, 7, 37, 201];
/// The ε of the RMS norms. It differs from [`EPS`], so that a kernel that swaps the two fails.
const NORM_EPS: f32 = 1e-5;
/// Number of tokens whose expected outputs are computed at a time.
const CHUNK: usize = 64;

pub(super) const MHC_PRE: KernelOp = KernelOp {
    name: "mhc_pre",
    doc: "mHC pre-block of 4 streams: projection, Sinkhorn, mix, then RMSNorm of the mixture",
    cases,
    problem,
    ..KernelOp::NONE
};

fn cases() -> Vec<Case> {
    let of_type = |dtype| {
        let prefix = if dtype == "bf16" { "" } else { dtype };
        Grid::of(prefix, &[("dtype", dtype)], ["T", "C"])
            .also("size", element_bytes(dtype))
            .when(dtype == "bf16", |grid| {
                grid.timed("t1", [1, 7168])
                    .timed("t4096", [4096, 7168])
                    .large("t3", [3, 7168])
                    .random("t201", [201, 7168])
                    .timed("t128", [128, 7168])
                    .edges("edges64", [64, 7168])
                    .site("model", "layers.*.input", [61 * 16, 64])
                    .timed("t1.4096", [1, 4096])
                    .timed("t8.4096", [8, 4096])
            })
            .when(dtype == "f32", |grid| {
                grid.timed("t1.4096", [1, 4096])
                    .large("t7.4096", [7, 4096])
                    .timed("t8.4096", [8, 4096])
                    .timed("t64.4096", [64, 4096])
            })
            .edges("edges16", [16, 7168])
            .random("narrow", [37, 72])
            .random("t1.64", [1, 64])
            .random("t8.64", [8, 64])
            // With one thread block per token, the GPU cannot run all blocks of this case at the same time.
            .random("t2000.21", [2000, 21])
            .done()
    };
    ["bf16", "f32"].into_iter().flat_map(of_type).collect()
}

fn problem(case: &Case, data: &Data) -> Result<Problem, String> {
    let [tokens, dim] = case.sizes(["T", "C"]);
    let row = STREAMS * dim;
    let eps = if FEW.contains(&tokens) { LARGE_EPS } else { EPS };
    let mut x = match case.inputs {
        Inputs::Site(pattern) => data.site_rows(pattern, tokens, row)?,
        _ => data.normal("x", tokens * row),
    };
    if case.inputs == Inputs::Edges {
        edges(&mut x, row);
    }
    let dtype = case.float_type("dtype");
    round_to(dtype, &mut x);
    let spread = (row as f32).powf(-0.5);
    // Scale of the comb logits. If it is 6, the last Sinkhorn iteration still changes the matrices by more than their error
    // bounds.
    let mixing = if tokens % 2 == 1 { 6.0 } else { 1.3 };
    let mut site = Site {
        projection: data.around("fn", WIDTH * row, 0.0, spread),
        base: data.around("base", WIDTH, 0.0, 0.5),
        scale: [0.9, 1.1, mixing],
        weight: data.around("weight", dim, 1.0, 0.1),
        eps,
    };
    if case.inputs == Inputs::Edges {
        site.edges();
    }
    let buffers = vec![
        Buffer::floats("x", dtype, &[tokens, STREAMS, dim], &x),
        Buffer::f32("fn", &[WIDTH, row], &site.projection),
        Buffer::f32("base", &[WIDTH], &site.base),
        Buffer::f32("scale", &[3], &site.scale),
        Buffer::f32("weight", &[dim], &site.weight),
        Buffer::output("y", dtype, &[tokens, dim]),
        Buffer::output("post", Dtype::F32, &[tokens, STREAMS]),
        Buffer::output("comb", Dtype::F32, &[tokens, STREAMS, STREAMS]),
    ];
    Ok(Problem {
        flops: (2 * tokens * WIDTH * row) as u64,
        scalars: vec![("norm_eps", Scalar::F32(NORM_EPS)), ("eps", Scalar::F32(eps))],
        batch: Some(Batch::new("T", &["x", "y", "post", "comb"])),
        ..Problem::new(buffers, site.judges(&x, dim, dtype))
    })
}

/// Sets edge tokens: zeros, very large and very small numbers, one NaN, one infinity, a single nonzero number, and three streams
/// that cancel if their weights are equal.
fn edges(x: &mut [f32], row: usize) {
    for (token, x) in x.chunks_exact_mut(row).enumerate() {
        match token % 8 {
            1 => x.fill(0.0),
            2 => x.iter_mut().for_each(|x| *x *= 2f32.powi(40)),
            3 => x.iter_mut().for_each(|x| *x *= 2f32.powi(-60)),
            4 => x[token * 997 % row] = f32::NAN,
            5 => x[token * 997 % row] = f32::INFINITY,
            6 => {
                x.fill(0.0);
                x[token * 997 % row] = 500.0;
            }
            7 => {
                let dim = row / STREAMS;
                for at in 0..dim {
                    // Keep only a few bits, so that the multiples by 3, −1 and −2 are exact in bf16. Squares and products of
                    // these multiples do round.
                    let some = f32::from_bits(x[at].to_bits() & 0xfffc_0000) * 2f32.powi(20);
                    let streams = [3.0, -1.0, -2.0, 0.0].into_iter().enumerate();
                    streams.for_each(|(stream, factor)| x[stream * dim + at] = factor * some);
                }
            }
            _ => {}
        }
    }
}

/// The weights of one mHC block of the model.
struct Site {
    /// Projection weights `[WIDTH, STREAMS · D]`.
    projection: Vec<f32>,
    base: Vec<f32>,
    scale: [f32; 3],
    weight: Vec<f32>,
    eps: f32,
}

impl Site {
    /// Gives the first three streams the same weight, so that the streams of an edge token cancel; a kernel that computes the
    /// square of the mixture from products of streams then gets 0 or less. Also moves rows of comb logits far from 0: their
    /// exponentials overflow or become 0 unless the maximum is subtracted.
    fn edges(&mut self) {
        let row = self.projection.len() / WIDTH;
        for stream in 1..3 {
            self.projection.copy_within(..row, stream * row);
            self.base[stream] = self.base[0];
        }
        let rows = self.base[2 * STREAMS..].chunks_exact_mut(STREAMS);
        for (row, far) in rows.zip([0.0, 100.0, -120.0, 60.0]) {
            row.iter_mut().for_each(|logit| *logit += far);
        }
    }

    /// Checks of y (stored as `dtype`), post and comb.
    fn judges(&self, x: &[f32], dim: usize, dtype: Dtype) -> Vec<Judge> {
        let connection = HyperConnection {
            projection: Tensor::new([WIDTH, STREAMS * dim], widened(&self.projection)),
            base: widened(&self.base),
            scale: self.scale.map(f64::from),
            streams: STREAMS,
            iterations: ITERATIONS,
            norm_eps: f64::from(NORM_EPS),
            eps: f64::from(self.eps),
        };
        let rows = connection.projection.data.chunks_exact(STREAMS * dim);
        let lengths: Vec<f64> = rows.map(length_of).collect();
        let (mut values, mut bounds): ([Vec<f64>; 3], [Vec<f64>; 3]) = Default::default();
        let extend = |all: &mut [Vec<f64>; 3], some: [Vec<f64>; 3]| {
            all.iter_mut().zip(some).for_each(|(all, some)| all.extend(some));
        };
        for x in x.chunks(CHUNK * STREAMS * dim) {
            let x = Tensor::new([x.len() / (STREAMS * dim), STREAMS, dim], widened(x));
            let (mut y, mixing) = connection.pre(&x);
            let mixed = y.clone();
            rmsnorm(&mut y, Some(&widened(&self.weight)), f64::from(NORM_EPS));
            let of_token = |at: usize| {
                let rows = [&x.data[at * STREAMS * dim..][..STREAMS * dim], mixed.row(at), y.row(at)];
                self.bounds(&connection, &lengths, dtype, rows)
            };
            let tokens: Vec<[Vec<f64>; 3]> = (0..mixed.rows()).into_par_iter().map(of_token).collect();
            extend(&mut values, [y.data, mixing.post.data, mixing.comb.data]);
            tokens.into_iter().for_each(|token| extend(&mut bounds, token));
        }
        let tokens = x.len() / (STREAMS * dim);
        let outputs = [
            ("y", dtype, rounded(dtype, WHY_Y.into())),
            ("post", Dtype::F32, WHY_POST.into()),
            ("comb", Dtype::F32, WHY_COMB.into()),
        ];
        let each = outputs.into_iter().zip(values).zip(bounds);
        each.map(|(((name, dtype, why), values), bounds)| {
            let shape = [tokens, values.len() / tokens];
            Judge::each(name, dtype, &shape, values, bounds, why)
        })
        .collect()
    }
}

const WHY_Y: &str = "f32 arithmetic: the error of pre's weights, four products and sums, and the error of the mean square, \
                     where tensor cores may truncate sums instead of rounding them";
const WHY_POST: &str = "the slope of a sigmoid, at most 1/4, times the error of its logit, a sum of products that errs by \
                        at most 512 units of 2^-24 of the product of the vectors' lengths (Cauchy-Schwarz), and 256 of the root \
                        mean square of its partial sums, unless less than one in 10^13 happens";
const WHY_COMB: &str = "each logit is moved by its error bound, one at a time, and the resulting changes after 20 Sinkhorn \
                        iterations are added up";

/// Error bound of a sum of products, relative to the sum of their magnitudes, for 256 additions in sequence. Tensor cores
/// truncate instead of rounding, so each addition errs by up to two units.
const SUM: f64 = 256.0 * 2.0 * UNIT;
/// Likely error of a sum of products ([`reference::bounded`]). It is relative to the root mean square of the partial sums over
/// all orders of the terms.
const LIKELY: f64 = LAMBDA * 16.0 * 2.0 * UNIT;

impl Site {
    /// Error bounds of y (stored as `dtype`), post and comb for one token. `lengths` are the Euclidean lengths of the
    /// projection's rows, `x` the token's streams, `mixed` their mixture, and `y` the normed mixture. The bounds are first
    /// order, enlarged by one percent.
    fn bounds(
        &self,
        connection: &HyperConnection<f64>,
        lengths: &[f64],
        dtype: Dtype,
        [x, mixed, y]: [&[f64]; 3],
    ) -> [Vec<f64>; 3] {
        let HyperConnection { base, scale, .. } = connection;
        let (dim, eps) = (mixed.len(), f64::from(NORM_EPS));
        let length = length_of(x);
        let inverse = 1.0 / (length * length / x.len() as f64 + eps).sqrt();
        // By Cauchy-Schwarz, the sum of the magnitudes of the products is at most the product of the vectors' Euclidean lengths.
        // The inverse RMS and the arithmetic of a logit add a few units of their operands.
        let rows = (0..WIDTH).map(|i| connection.projection.row(i));
        let (logits, errors): (Vec<f64>, Vec<f64>) = rows
            .zip(lengths)
            .enumerate()
            .map(|(i, (row, row_length))| {
                let terms = row.iter().zip(x).map(|(w, x)| w * x);
                let [sum, squares] = terms.fold([0.0; 2], |[sum, squares], term| [sum + term, squares + term * term]);
                let of_sum = f64::min(SUM * length * row_length, LIKELY * (sum * sum + squares).sqrt());
                let of_inverse = f64::min(SUM, LIKELY) / 2.0 * sum.abs();
                let of_terms = 8.0 * UNIT * length * row_length;
                let scale = scale[usize::from(i >= STREAMS) + usize::from(i >= 2 * STREAMS)] * inverse;
                let error = scale.abs() * (of_sum + of_inverse + of_terms) + 2.0 * UNIT * base[i].abs();
                (sum * scale + base[i], error)
            })
            .unzip();

        // The slope of a sigmoid is at most 1/4, and its value is at most 1. Its computation adds an error of a few units.
        let sigmoid = |error: &f64| 1.01 * (error / 4.0 + 8.0 * UNIT);
        let pre: Vec<f64> = errors[..STREAMS].iter().map(sigmoid).collect();
        let post = errors[STREAMS..2 * STREAMS]
            .iter()
            .map(|error| 2.0 * sigmoid(error))
            .collect();
        let comb = normalized(&logits[2 * STREAMS..], &errors[2 * STREAMS..], connection.eps).1;

        // The weights of pre are at most 1 + ε. The mixture consists of four products and their sum.
        let streams = |channel: usize| x.iter().skip(channel).step_by(dim);
        let errors = (0..dim).map(|channel| {
            let each = streams(channel).zip(&pre).map(|(x, pre)| x.abs() * (pre + 5.0 * UNIT));
            each.sum::<f64>()
        });
        let errors: Vec<f64> = errors.collect();
        // Kernels may compute the mean square of the mixture from products of streams. The error is then relative to (Σ of the
        // streams' Euclidean lengths)².
        let squares = mixed.iter().map(|u| u * u).sum::<f64>() + dim as f64 * eps;
        let drift = mixed.iter().zip(&errors).map(|(u, error)| u.abs() * error).sum::<f64>();
        let lengths: f64 = x.chunks_exact(dim).map(length_of).sum();
        let relative = (drift + f64::min(SUM, LIKELY) * lengths * lengths / 2.0) / squares + 8.0 * UNIT;
        let rms = (squares / dim as f64).sqrt();
        let y = errors.iter().zip(y).zip(&self.weight).map(|((error, y), w)| {
            let real = 1.01 * (error / rms * f64::from(w.abs()) + y.abs() * relative);
            match dtype {
                Dtype::BF16 => bf16_error(*y, real),
                _ => real + 2f64.powi(-149),
            }
        });
        [y.collect(), post, comb]
    }
}

/// Returns the mixing matrix of these logits, and its error bounds: each logit is moved by its error bound, one at a time, and
/// the changes of the matrix are added up.
pub fn normalized(logits: &[f64], errors: &[f64], eps: f64) -> (Vec<f64>, Vec<f64>) {
    let comb = sinkhorn(logits, eps);
    // None of the 2 · ITERATIONS normalizations amplifies errors, and each adds a few units.
    let mut bounds: Vec<f64> = comb.iter().map(|c| c * (2 * ITERATIONS) as f64 * 8.0 * UNIT).collect();
    for (i, error) in errors.iter().enumerate() {
        let mut moved = logits.to_vec();
        moved[i] += error;
        let moved = sinkhorn(&moved, eps);
        for (bound, (moved, c)) in bounds.iter_mut().zip(moved.iter().zip(&comb)) {
            *bound += 1.01 * (moved - c).abs();
        }
    }
    (comb, bounds)
}

fn length_of(x: &[f64]) -> f64 {
    dot(x, x).sqrt()
}

/// Sinkhorn iteration for one matrix: softmax of rows plus ε, then alternating normalization of columns and rows.
fn sinkhorn(logits: &[f64], eps: f64) -> Vec<f64> {
    let lines = |matrix: &mut [f64], line: usize, entry: usize, eps: f64| {
        for first in (0..STREAMS).map(|i| i * line) {
            let entries = (0..STREAMS).map(|i| first + i * entry);
            let sum = entries.clone().map(|i| matrix[i]).sum::<f64>() + eps;
            entries.for_each(|i| matrix[i] /= sum);
        }
    };
    let top = logits.iter().copied().fold(f64::MIN, f64::max);
    let mut matrix: Vec<f64> = logits.iter().map(|logit| (logit - top).exp()).collect();
    lines(&mut matrix, STREAMS, 1, 0.0);
    matrix.iter_mut().for_each(|c| *c += eps);
    lines(&mut matrix, 1, STREAMS, eps);
    for _ in 1..ITERATIONS {
        lines(&mut matrix, STREAMS, 1, eps);
        lines(&mut matrix, 1, STREAMS, eps);
    }
    matrix
}
