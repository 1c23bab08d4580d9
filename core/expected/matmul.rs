//! y = α·a·b + bias, of matrices, or of as many matrices as a has.
//!
//! Error: a sum of K products ([`Terms::error`]: n of them round, since products of f32 do), and 2u for α and the bias. Operands
//! that are quantized are exact: their decoded values are the inputs.

use rayon::prelude::*;
use reference::ops::linear::Product;

use super::sum::Terms;
use super::{Call, Kind, Operation, Output, fault, takes};

pub(super) const MATMUL: Operation = Operation {
    name: "matmul",
    doc: "a product of matrices, with a factor and a bias",
    takes: &[
        takes("a", Kind::Tensor, "[..., M, K]"),
        takes("b", Kind::Tensor, "[K, N]; [N, K] if b_rows = \"n\""),
        takes("bias", Kind::Optional, "[N]"),
        takes("alpha", Kind::Number(1.0), "multiplied by, before the bias is added"),
        takes(
            "b_rows",
            Kind::Word(&["k", "n"]),
            "what the rows of b count: k, or n as in a linear layer's weight",
        ),
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
        fault("half_of_terms", "the second half of K is left out"),
        fault("no_bias", "the bias is left out"),
        fault("no_alpha", "alpha is left out"),
        fault("alpha_on_bias", "the bias is multiplied by alpha, too"),
    ],
    compute,
};

fn compute(call: &Call) -> Result<Vec<Output>, String> {
    let (a, b) = (call.tensor("a"), call.tensor("b"));
    let k = a.cols();
    let [rows, cols] = b.shape[..] else {
        return Err(format!("matmul: 'b' is {:?}, expected a matrix", b.shape));
    };
    let by_n = call.word("b_rows") == "n";
    let (inner, n) = if by_n { (cols, rows) } else { (rows, cols) };
    if a.shape.len() < 2 || inner != k {
        let (rows, of) = if by_n { ("N", "[N, K]") } else { ("K", "[K, N]") };
        return Err(format!(
            "matmul: 'a' is {:?} and 'b' is {:?}, expected [..., M, K] and {of}, where the rows of b count {rows}",
            a.shape, b.shape
        ));
    }
    call.expect("bias", &[n])?;
    let by_n = by_n != (call.is("b_transposed") && rows == cols);
    let used = match call.fault {
        Some("last_terms_missing") => k.saturating_sub(1) / 32 * 32,
        Some("half_of_terms") => k / 2,
        _ => k,
    };
    let m: usize = a.shape[..a.shape.len() - 1].iter().product();
    let product = |a: &[f64], b: &[f64]| {
        let mut y = vec![0.0; m * n];
        const ROWS: usize = 64;
        if used == 0 || n == 0 {
            return y;
        }
        y.par_chunks_mut(ROWS * n)
            .zip(a.par_chunks(ROWS * k))
            .for_each(|(y, a)| {
                Product {
                    m: a.len() / k,
                    n,
                    k: used,
                    x: a,
                    x_stride: k,
                    w: b,
                    w_strides: if by_n { (k, 1) } else { (1, n) },
                    y_stride: n,
                    add: false,
                }
                .run(y);
            });
        y
    };
    let of =
        |f: fn(f64) -> f64| -> [Vec<f64>; 2] { [a, b].map(|tensor| tensor.data.par_iter().map(|x| f(*x)).collect()) };
    let sums = product(&a.data, &b.data);
    let magnitudes = of(f64::abs);
    let magnitudes = product(&magnitudes[0], &magnitudes[1]);
    let squares = of(|x| x * x);
    let squares = product(&squares[0], &squares[1]);
    let (alpha, bias) = (call.number("alpha"), call.optional("bias"));
    let element = |at: usize| {
        let terms = Terms {
            count: k as f64,
            sum: sums[at],
            magnitudes: magnitudes[at],
            squares: squares[at],
        };
        let bias = bias.map_or(0.0, |bias| bias.data[at % n]);
        let factor = if call.is("no_alpha") { 1.0 } else { alpha };
        let bias = match call.fault {
            Some("no_bias") => 0.0,
            Some("alpha_on_bias") => alpha * bias,
            _ => bias,
        };
        let scaled = factor * sums[at];
        let error = factor.abs() * terms.error(call.u) + call.u * (scaled.abs() + (scaled + bias).abs());
        (scaled + bias, error)
    };
    let (value, error) = (0..m * n).into_par_iter().map(element).unzip();
    let mut shape = a.shape.clone();
    *shape.last_mut().expect("it has columns") = n;
    Ok(vec![Output {
        name: "y",
        shape,
        value,
        error,
    }])
}
