//! y = α·a·b + bias, of matrices, or of as many matrices as a has. Operands may be codes with scales ([`super::scaled`]).
//!
//! Error: a sum of K products ([`Terms::error`]: n of them round, since products of f32 do), what scales add
//! ([`super::scaled`]), and 2u for α and the bias. Operands that are quantized are exact: their decoded values are the inputs.
//! Sums of integers are exact, but what follows them is computed in f32.

use rayon::prelude::*;
use reference::ops::linear::Product;
use safetensors::Dtype;

use super::scaled::{self, Operand, operand};
use super::sum::Terms;
use super::{Call, Kind, Operation, Output, fault, half_spacing, takes};

pub(super) const MATMUL: Operation = Operation {
    name: "matmul",
    doc: "a product of matrices, with scales, a factor and a bias",
    takes: &[
        takes("a", Kind::Tensor, "[..., M, K]"),
        takes(
            "b",
            Kind::Tensor,
            "[K, N], or [..., K, N] with the first dimensions of a; [N, K] if b_rows = \"n\"",
        ),
        takes(
            "a_scale",
            Kind::Optional,
            "one number, [M], or a grid over a, each dimension in blocks: [M, 1], [M, K/128], ...",
        ),
        takes(
            "b_scale",
            Kind::Optional,
            "one number, [N], or a grid over b with its order of dimensions: [N, 1], [N/128, K/128], ...",
        ),
        takes(
            "m_block",
            Kind::Number(0.0),
            "how many rows of a share a scale; 0 if it follows from the sizes",
        ),
        takes(
            "n_block",
            Kind::Number(0.0),
            "how many columns of b share a scale, likewise",
        ),
        takes(
            "k_block",
            Kind::Number(0.0),
            "how many elements along K share a scale, likewise",
        ),
        takes("bias", Kind::Optional, "[N]"),
        takes("alpha", Kind::Number(1.0), "multiplied by, before the bias is added"),
        takes(
            "b_rows",
            Kind::Word(&["k", "n"]),
            "what the rows of b count: k, or n as in a linear layer's weight",
        ),
        takes(
            "a_codes",
            Kind::Word(&["numbers", "e2m1"]),
            "what a holds: numbers, or two codes of FP4 a byte, the lower four bits first",
        ),
        takes("b_codes", Kind::Word(&["numbers", "e2m1"]), "what b holds"),
    ],
    faults: &[
        fault(
            "b_transposed",
            "b is read with rows and columns exchanged (it is square)",
        ),
        fault(
            "last_terms_missing",
            "the terms after the last whole multiple of 32 of K are left out, or the last 32",
        ),
        fault("last_block_missing", "the last block of scales along K is left out"),
        fault("half_of_terms", "the second half of K is left out"),
        fault("no_bias", "the bias is left out").of("bias"),
        fault("no_alpha", "alpha is left out").of("alpha"),
        fault("alpha_on_bias", "the bias is multiplied by alpha, too").of("bias"),
        fault("no_a_scale", "the scales of a are left out").of("a_scale"),
        fault("no_b_scale", "the scales of b are left out").of("b_scale"),
        fault(
            "a_scale_of_next_block",
            "the scales of a are those of the next block of K",
        )
        .of("a_scale"),
        fault(
            "b_scale_of_next_block",
            "the scales of b are those of the next block of K",
        )
        .of("b_scale"),
        fault(
            "a_scale_of_next_row",
            "the scales of a are those of the next block of rows",
        )
        .of("a_scale"),
        fault(
            "b_scale_of_next_column",
            "the scales of b are those of the next block of columns",
        )
        .of("b_scale"),
        fault("a_scale_for_b", "b is multiplied by the scales of a, not by its own").of("b_scale"),
        fault("b_scale_for_a", "a is multiplied by the scales of b, not by its own").of("a_scale"),
        fault(
            "a_scale_transposed",
            "the grid of the scales of a is read in the other order of dimensions",
        )
        .of("a_scale"),
        fault(
            "b_scale_transposed",
            "the grid of the scales of b is read in the other order of dimensions",
        )
        .of("b_scale"),
        fault(
            "batch_of_first",
            "the first matrix of b is multiplied by in every batch",
        ),
    ],
    compute,
};

/// The sizes of a product, and how b lies.
#[derive(Clone, Copy)]
struct Sizes {
    batches: usize,
    m: usize,
    n: usize,
    k: usize,
    /// Terms that are summed up.
    used: usize,
    b_batched: bool,
    b_by_n: bool,
}

impl Sizes {
    fn of(call: &Call, a: &Operand, b: &Operand) -> Result<Self, String> {
        let ([a_lead @ .., m, k], [b_lead @ .., rows, cols]) = (&a.shape[..], &b.shape[..]) else {
            return Err(format!(
                "matmul: 'a' is {:?} and 'b' is {:?}, expected matrices",
                a.shape, b.shape
            ));
        };
        let by_n = call.word("b_rows") == "n";
        let (inner, n) = if by_n { (cols, rows) } else { (rows, cols) };
        if inner != k || !(b_lead.is_empty() || a_lead == b_lead) {
            let (rows, of) = if by_n { ("N", "[N, K]") } else { ("K", "[K, N]") };
            return Err(format!(
                "matmul: 'a' is {:?} and 'b' is {:?}, expected [..., M, K] and {of}, where the rows of b count {rows}",
                a.shape, b.shape
            ));
        }
        call.expect("bias", &[*n])?;
        let block = [a.block, b.block].into_iter().flatten().min().unwrap_or(*k).max(1);
        let used = match call.fault {
            Some("last_terms_missing") => k.saturating_sub(1) / 32 * 32,
            Some("last_block_missing") if block < *k => k.saturating_sub(1) / block * block,
            Some("half_of_terms") => k / 2,
            _ => *k,
        };
        Ok(Self {
            batches: a_lead.iter().product(),
            m: *m,
            n: *n,
            k: *k,
            used,
            b_batched: !b_lead.is_empty() && !call.is("batch_of_first"),
            b_by_n: by_n != (call.is("b_transposed") && rows == cols),
        })
    }

    /// The products of all matrices.
    fn product(self, a: &[f64], b: &[f64]) -> Vec<f64> {
        let Self { m, n, k, .. } = self;
        let mut y = vec![0.0; self.batches * m * n];
        const ROWS: usize = 64;
        if self.used == 0 || m == 0 || n == 0 {
            return y;
        }
        for (batch, y) in y.chunks_exact_mut(m * n).enumerate() {
            let b = if self.b_batched { &b[batch * k * n..] } else { b };
            let a = &a[batch * m * k..][..m * k];
            let blocks = y.par_chunks_mut(ROWS * n).zip(a.par_chunks(ROWS * k));
            blocks.for_each(|(y, a)| {
                Product {
                    m: a.len() / k,
                    n,
                    k: self.used,
                    x: a,
                    x_stride: k,
                    w: &b[..k * n],
                    w_strides: if self.b_by_n { (k, 1) } else { (1, n) },
                    y_stride: n,
                    add: false,
                }
                .run(y);
            });
        }
        y
    }
}

fn compute(call: &Call) -> Result<Vec<Output>, String> {
    let (a, b) = (operand(call, "a")?, operand(call, "b")?);
    let sizes = Sizes::of(call, &a, &b)?;
    let of =
        |f: fn(f64) -> f64| -> [Vec<f64>; 2] { [&a, &b].map(|tensor| tensor.data.par_iter().map(|x| f(*x)).collect()) };
    let sums = sizes.product(&a.data, &b.data);
    let magnitudes = of(f64::abs);
    let magnitudes = sizes.product(&magnitudes[0], &magnitudes[1]);
    let squares = of(|x| x * x);
    let squares = sizes.product(&squares[0], &squares[1]);
    let (alpha, bias) = (call.number("alpha"), call.optional("bias"));
    // Terms that share both scales.
    let block = [a.block, b.block].into_iter().flatten().min();
    let exact = block.is_none() && alpha == 1.0 && bias.is_none();
    let after = if exact || call.u > 0.0 {
        call.u
    } else {
        half_spacing(Dtype::F32, 1.0)
    };
    let element = |at: usize| {
        let terms = Terms {
            count: sizes.k as f64,
            sum: sums[at],
            magnitudes: magnitudes[at],
            squares: squares[at],
        };
        let bias = bias.map_or(0.0, |bias| bias.data[at % sizes.n]);
        let factor = if call.is("no_alpha") { 1.0 } else { alpha };
        let bias = match call.fault {
            Some("no_bias") => 0.0,
            Some("alpha_on_bias") => alpha * bias,
            _ => bias,
        };
        let scaled = factor * sums[at];
        let of_sum = terms.error(call.u) + block.map_or(0.0, |block| scaled::error(&terms, block, after));
        let error = factor.abs() * of_sum + after * (scaled.abs() + (scaled + bias).abs());
        (scaled + bias, error)
    };
    let (value, error) = (0..sums.len()).into_par_iter().map(element).unzip();
    let mut shape = a.shape;
    *shape.last_mut().expect("it has columns") = sizes.n;
    Ok(vec![Output::new("y", shape, value, error)])
}
