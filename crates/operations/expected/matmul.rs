//! Matrix product y = α·a·b + bias, also batched. Operands may be codes with scales ([`super::scaled`]).
//!
//! Error bound: the error of a sum of K products ([`Terms::error`] counts n roundings, because products of f32 are also rounded),
//! the error from scales ([`super::scaled`]), and 2u (u is the unit roundoff) for α and the bias. Quantized operands are exact,
//! since their decoded values are the inputs. Sums of integers are exact, but the operations after them are computed in f32.

use std::ops::Range;

use rayon::prelude::*;
use reference::ops::linear::Product;
use safetensors::Dtype;

use super::draw::Cases;
use super::drift::{FEW, Places, level};
use super::scaled::{self, Operand, operand};
use super::sum::Terms;
use super::{Call, Operation, Output, faults, half_spacing, takes};

pub(super) const MATMUL: Operation = Operation {
    name: "matmul",
    doc: "a product of matrices, with scales, a factor and a bias",
    takes: takes! {
        a Tensor: "[..., M, K]";
        b Tensor: "[K, N], or [..., K, N] with the first dimensions of a; [N, K] if b_rows = \"n\"";
        a_scale Optional: "one number, [M], or a grid over a, each dimension in blocks: [M, 1], [M, K/128], ...";
        b_scale Optional: "one number, [N], or a grid over b with its order of dimensions: [N, 1], [N/128, K/128], ...";
        m_block Number(0.0): "how many rows of a share a scale; 0 if it follows from the sizes";
        n_block Number(0.0): "how many columns of b share a scale, likewise";
        k_block Number(0.0): "how many elements along K share a scale, likewise";
        bias Optional: "[N]";
        alpha Number(1.0): "multiplied by, before the bias is added";
        b_rows Word(&["k", "n"]): "what the rows of b count: k, or n as in a linear layer's weight";
        a_codes Word(&["numbers", "e2m1"]): "what a holds: numbers, or two codes of FP4 a byte, the lower four bits first";
        b_codes Word(&["numbers", "e2m1"]): "what b holds";
    },
    faults: faults! {
        b_transposed: "b is read with rows and columns exchanged (it is square)";
        last_terms_missing: "the terms after the last whole multiple of 32 of K are left out, or the last 32";
        last_block_missing: "the last block of scales along K is left out";
        half_of_terms: "the second half of K is left out";
        no_bias of bias: "the bias is left out" => |call| call.leave_out("bias");
        no_alpha of alpha: "alpha is left out" => |call| call.set("alpha", 1.0);
        alpha_on_bias of bias: "the bias is multiplied by alpha, too"
            => |call| {
                let alpha = call.number("alpha");
                call.map("bias", |bias| alpha * bias);
            };
        no_a_scale of a_scale: "the scales of a are left out" => |call| call.fill("a_scale", 1.0);
        no_b_scale of b_scale: "the scales of b are left out" => |call| call.fill("b_scale", 1.0);
        a_scale_of_next_block of a_scale: "the scales of a are those of the next block of K";
        b_scale_of_next_block of b_scale: "the scales of b are those of the next block of K";
        a_scale_of_next_row of a_scale: "the scales of a are those of the next block of rows";
        b_scale_of_next_column of b_scale: "the scales of b are those of the next block of columns";
        a_scale_for_b of b_scale: "b is multiplied by the scales of a, not by its own";
        b_scale_for_a of a_scale: "a is multiplied by the scales of b, not by its own";
        a_scale_transposed of a_scale: "the grid of the scales of a is read in the other order of dimensions";
        b_scale_transposed of b_scale: "the grid of the scales of b is read in the other order of dimensions";
        batch_of_first: "the first matrix of b is multiplied by in every batch";
    },
    cases: Some(&Cases {
        letters: &["M", "N", "K"],
        sizes: &[&[5, 130, 256], &[64, 96, 1000], &[3, 48, 48]],
        // Sizes of the blocks that share a scale, if the case has scales: rows of a, columns of b, and elements along K.
        numbers: &[("m_block", 1.0), ("n_block", 128.0), ("k_block", 128.0)],
        varied: &[("alpha", 0.5)],
        fixed: &["a_codes", "b_codes"],
        optional: &["a_scale", "b_scale", "bias"],
        types: &["f32", "bf16", "f16", "f8_e4m3"],
        draw: |draw| {
            let [m, n, k] = draw.sizes();
            let of_rows = draw.is("b_rows", "n");
            let ordered = |n: usize, k: usize| if of_rows { [n, k] } else { [k, n] };
            draw.normal("a", &[m, k], 1.0);
            draw.normal("b", &ordered(n, k), 1.0);
            let [of_n, of_k] = [n, k].map(|size| size.div_ceil(128));
            draw.uniform("a_scale", &[m, of_k], [0.5, 2.0]);
            draw.uniform("b_scale", &ordered(of_n, of_k), [0.5, 2.0]);
            draw.normal("bias", &[n], 1.0);
        },
        why: "sums of K exact products in any order, in f32",
    }),
    compute,
    ..Operation::NONE
};

/// Sizes of a matrix product, and the layout of b.
#[derive(Clone, Copy)]
struct Sizes {
    batches: usize,
    m: usize,
    n: usize,
    k: usize,
    /// Number of terms that are summed: K, or fewer if a planted fault leaves terms out.
    used: usize,
    b_batched: bool,
    b_by_n: bool,
}

impl Sizes {
    fn of(call: &Call, a: &Operand, b: &Operand) -> Result<Self, String> {
        let (of_a, of_b) = (&a.shape[..], &b.shape[..]);
        let ([a_lead @ .., m, k], [b_lead @ .., rows, cols]) = (of_a, of_b) else {
            return Err(format!(
                "matmul: 'a' is {of_a:?} and 'b' is {of_b:?}, expected matrices"
            ));
        };
        let by_n = call.word("b_rows") == "n";
        let (inner, n) = if by_n { (cols, rows) } else { (rows, cols) };
        if inner != k || !(b_lead.is_empty() || a_lead == b_lead) {
            let (rows, of) = if by_n { ("N", "[N, K]") } else { ("K", "[K, N]") };
            return Err(format!(
                "matmul: 'a' is {of_a:?} and 'b' is {of_b:?}, expected [..., M, K] and {of}, where the rows of b count {rows}"
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

    /// Adds the products of the terms in the range `terms` to y, for all matrices of the batch.
    fn add_product(self, [a, b]: [&[f64]; 2], terms: Range<usize>, y: &mut [f64]) {
        let Self { m, n, k, .. } = self;
        const ROWS: usize = 64;
        if terms.is_empty() || m == 0 || n == 0 {
            return;
        }
        let w_strides = if self.b_by_n { (k, 1) } else { (1, n) };
        for (batch, y) in y.chunks_exact_mut(m * n).enumerate() {
            let of_b = if self.b_batched { batch } else { 0 };
            let b = &b[of_b * k * n..][..k * n];
            let a = &a[batch * m * k..][..m * k];
            let blocks = y.par_chunks_mut(ROWS * n).zip(a.par_chunks(ROWS * k));
            blocks.for_each(|(y, a)| {
                Product {
                    m: a.len() / k,
                    n,
                    k: terms.len(),
                    x: &a[terms.start..],
                    x_stride: k,
                    w: &b[terms.start * w_strides.1..],
                    w_strides,
                    y_stride: n,
                    add: true,
                }
                .run(y);
            });
        }
    }

    /// Returns the products of all matrices, and the mean square of the partial sums of each element.
    fn sums(self, of: [&[f64]; 2]) -> [Vec<f64>; 2] {
        let mut y = vec![0.0; self.batches * self.m * self.n];
        let mut squares = y.clone();
        let piece = self.used.div_ceil(PARTS).max(FEW);
        for start in (0..self.used).step_by(piece) {
            let terms = start..self.used.min(start + piece);
            let share = terms.len() as f64 / self.used as f64;
            self.add_product(of, terms, &mut y);
            let sums = squares.par_iter_mut().zip(&y);
            sums.for_each(|(square, y)| *square += share * y * y);
        }
        [y, squares]
    }
}

/// Maximum number of pieces into which the sum of each element is split to compute the mean square of its partial sums.
const PARTS: usize = 8;

/// Sampled terms of each element, from which the number of equal roundings is estimated ([`super::drift`]).
struct Sample {
    places: Places,
    /// Elements of a and b at the indices of [`Places::pairs`]: `rows` has those of each row of a, `columns` those of each column
    /// of b.
    rows: Vec<[f64; 2]>,
    columns: Vec<[f64; 2]>,
    /// For each row of a and each column of b, true if the digits of its elements look random.
    irregular: [Vec<bool>; 2],
}

impl Sample {
    fn of(sizes: Sizes, [a, b]: [&[f64]; 2]) -> Self {
        let Sizes { m, n, k, .. } = sizes;
        let places = Places::of(k);
        let [outer, inner] = if sizes.b_by_n { [k, 1] } else { [1, n] };
        let row = |row: usize| places.pairs().map(move |pair| pair.map(|at| a[row * k + at]));
        let batches = if sizes.b_batched { sizes.batches } else { 1 };
        let column = |at: usize| {
            let from = at / n * k * n + at % n * outer;
            places.pairs().map(move |pair| pair.map(|at| b[from + at * inner]))
        };
        let (rows, columns) = (0..sizes.batches * m, 0..batches * n);
        let [rows, columns] = [
            rows.into_par_iter().flat_map_iter(row).collect(),
            columns.into_par_iter().flat_map_iter(column).collect(),
        ];
        let irregular = |pairs: &Vec<[f64; 2]>| -> Vec<bool> {
            let parts = pairs.par_chunks(places.pairs().len().max(1));
            let found = parts.map_init(Vec::new, |scratch, pairs| places.irregular(pairs, scratch));
            found.collect()
        };
        let irregular = [irregular(&rows), irregular(&columns)];
        Self {
            places,
            rows,
            columns,
            irregular,
        }
    }

    /// Returns the number of roundings of element `at` that are equal instead of independent.
    fn multiplicity(&self, sizes: Sizes, at: usize, terms: &Terms, scratch: &mut Vec<u64>) -> f64 {
        let count = self.places.pairs().len();
        let (row, column) = (at / sizes.n, at % sizes.n);
        let batch = if sizes.b_batched { row / sizes.m } else { 0 };
        let column = batch * sizes.n + column;
        let (a, b) = (
            &self.rows[row * count..][..count],
            &self.columns[column * count..][..count],
        );
        let pairs = a.iter().zip(b).map(|(a, b)| [a[0] * b[0], a[1] * b[1]]);
        // Most elements of a product of random matrices take this fast path. It requires terms so large that no partial sum
        // absorbs them.
        let irregular = count > 0 && (self.irregular[0][row] || self.irregular[1][column]);
        let large = terms.squares > terms.count * (16.0 * terms.u * terms.size()).powi(2);
        if irregular && large && !level(terms.u, terms.size(), pairs.clone()) {
            return 1.0;
        }
        self.places.multiplicity(terms.u, terms.size(), pairs, scratch)
    }
}

fn compute(call: &Call) -> Result<Vec<Output>, String> {
    let (a, b) = (operand(call, "a")?, operand(call, "b")?);
    let sizes = Sizes::of(call, &a, &b)?;
    let of = |f: fn(f64) -> f64| {
        let [a, b] = [&a, &b].map(|tensor| -> Vec<f64> { tensor.data.par_iter().map(|x| f(*x)).collect() });
        let mut y = vec![0.0; sizes.batches * sizes.m * sizes.n];
        sizes.add_product([&a, &b], 0..sizes.used, &mut y);
        y
    };
    let operands = [&a.data[..], &b.data];
    let [sums, partial] = sizes.sums(operands);
    let (magnitudes, squares) = (of(f64::abs), of(|x| x * x));
    let sample = Sample::of(sizes, operands);
    let (alpha, bias) = (call.number("alpha"), call.optional("bias"));
    // Number of terms that share the scale of a and the scale of b.
    let block = [a.block, b.block].into_iter().flatten().min();
    let exact = block.is_none() && alpha == 1.0 && bias.is_none();
    let of_f32 = half_spacing(Dtype::F32, 1.0);
    let after = if exact || call.u > 0.0 { call.u } else { of_f32 };
    let element = |scratch: &mut Vec<u64>, at: usize| {
        let mut terms = Terms {
            count: sizes.k as f64,
            sum: sums[at],
            magnitudes: magnitudes[at],
            squares: squares[at],
            partial: partial[at],
            multiplicity: 1.0,
            u: call.u,
        };
        terms.multiplicity = sample.multiplicity(sizes, at, &terms, scratch);
        let bias = bias.map_or(0.0, |bias| bias.data[at % sizes.n]);
        let scaled = alpha * sums[at];
        let of_sum = terms.error() + block.map_or(0.0, |block| scaled::error(&terms, block, after));
        let error = alpha.abs() * of_sum + after * (scaled.abs() + (scaled + bias).abs());
        (scaled + bias, error)
    };
    let (value, error) = (0..sums.len()).into_par_iter().map_init(Vec::new, element).unzip();
    let mut shape = a.shape;
    *shape.last_mut().expect("it has columns") = sizes.n;
    Ok(vec![Output::new("y", shape, value, error)])
}
