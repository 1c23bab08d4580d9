//! RMSNorm of rows: y = w ⊙ x · (mean(x²) + ε)^−½, computed in f32 and rounded once to the type of x.

use rayon::prelude::*;
use safetensors::Dtype;

use super::blocks::numbers;
use super::grid::{Grid, element_bytes, matrices};
use super::judge::{Judge, UNIT, stored_error};
use super::{Batch, Buffer, Case, Data, Inputs, KernelOp, Parameters, Problem, Scalar};

pub(super) const RMSNORM: KernelOp = KernelOp {
    name: "rmsnorm",
    doc: "RMSNorm of rows, times weights",
    cases,
    parameters: Some(|| with_inputs(Parameters::new(&cases(), &["T", "C"], &["dtype"]))),
    problem,
    ..KernelOp::NONE
};

fn cases() -> Vec<Case> {
    let of_type = |dtype| {
        let grid = matrices(dtype, &[("dtype", dtype), ("edges", "special")]);
        rows(grid, dtype, [7, 333], dtype == "bf16")
    };
    ["bf16", "f32"].into_iter().flat_map(of_type).collect()
}

/// Adds cases of row-wise norms for this element type. One case has the shape `odd`; timed cases are added if `timed` is true.
pub(super) fn rows(grid: Grid<[i64; 2]>, dtype: &str, odd: [i64; 2], timed: bool) -> Vec<Case> {
    grid.also("S", element_bytes(dtype))
        .each("random", &[[1037, 1024]], Grid::large)
        .each("random", &[[5, 7168], odd], Grid::random)
        .each("edges", &[[176, 1024]], Grid::edges)
        .site("kv.3904x512", "layers.*.attention.kv.window", [61 * 64, 512])
        .site("stream.3904x256", "layers.*.input", [61 * 64, 256])
        .when(timed, |grid| {
            grid.each("timed", &[[1, 7168], [128, 7168], [8192, 7168]], Grid::timed)
        })
        .done()
}

/// Adds the input tensors of a norm, and its ε, to the parameters of user cases.
pub(super) fn with_inputs(parameters: Parameters) -> Parameters {
    // For ε in this range, squares that underflow in f32 are negligible.
    let parameters = parameters.scalar("eps", [1e-12, 1.0]);
    parameters.tensor("x", &["T", "C"]).tensor("weight", &["C"])
}

fn problem(case: &Case, data: &Data) -> Result<Problem, String> {
    let [rows, cols] = case.sizes(["T", "C"]);
    let (input, x) = numbers("x", case, cols, data)?;
    let dtype = input.dtype;
    let (want, weight, eps) = normed(&x, case, data)?;
    let bound = move |_, y: f64| stored_error(dtype, y, error(cols, eps, y));
    let judge = Judge::within("y", dtype, &[rows, cols], want, bound, rounded(dtype, why(cols)));
    Ok(Problem {
        scalars: vec![("eps", Scalar::F32(eps))],
        batch: Some(Batch::new("T", &["x", "y"])),
        ..Problem::new(vec![input, weight], vec![judge])
    })
}

/// Text for messages that explains a bound: `why`, and for bf16 outputs also the final rounding.
pub(super) fn rounded(dtype: Dtype, why: String) -> String {
    match dtype {
        Dtype::BF16 => format!("{why}; then half a step of bf16, 2^-8 of |y| at most"),
        _ => why,
    }
}

/// Text for messages that explains the bound of [`error`].
pub(super) fn why(cols: usize) -> String {
    format!(
        "f32 arithmetic: half of the error of a sum of {cols} squares, each through {} additions at most, and 6 more \
         roundings, in total {:.0} units of 2^-24 of |y|",
        additions(cols),
        units(cols)
    )
}

const EPS: f32 = 1e-6;

/// Returns the expected normalized rows in f64, the buffer of weights, and ε.
///
/// # Errors
/// Returns an error if the squares of a user's row overflow f32: the f32 result is then undefined.
pub(super) fn normed(x: &[f32], case: &Case, data: &Data) -> Result<(Vec<f64>, Buffer, f32), String> {
    let (cols, eps) = (case.dim("C"), case.number("eps", EPS));
    let weight = data.given_or(case, "weight", &[cols], || data.around("weight", cols, 1.0, 0.25))?;
    let squares = |x: &[f32]| x.iter().map(|x| f64::from(*x).powi(2)).sum::<f64>();
    let over = |x: &[f32]| x.iter().all(|x| x.is_finite()) && squares(x) > f64::from(f32::MAX);
    if let Inputs::File(path) = case.inputs
        && let Some(row) = x.chunks(cols).position(over)
    {
        return Err(format!("{path}: the sum of squares of row {row} of 'x' overflows f32"));
    }
    let mut want = vec![0.0; x.len()];
    want.par_chunks_mut(cols).zip(x.par_chunks(cols)).for_each(|(want, x)| {
        let scale = (squares(x) / cols as f64 + f64::from(eps)).sqrt().recip();
        for ((want, x), w) in want.iter_mut().zip(x).zip(&weight) {
            *want = f64::from(*x) * scale * f64::from(*w);
        }
    });
    Ok((want, Buffer::f32("weight", &[cols], &weight), eps))
}

/// Error bound of a result y that is computed in f32, with u = 2^-24. The squares are positive, so the relative error of their
/// sum is at most u times the number of roundings that a square passes through. These are at most max(cols/32, 32) additions in a
/// lane, 10 over lanes and warps, and the rounding of the square itself. The product with 1/cols, 1/cols itself and the sum with
/// ε round once each. The root halves all these errors. The reciprocal of the root is accurate to 2 ulp, which is 4u, and two
/// products round once each. A product x·w in the subnormal range errs by half its spacing, 2^-150, and is then multiplied by the
/// reciprocal root, at most ε^−½; a subnormal result errs by half a spacing again.
pub(super) fn error(cols: usize, eps: f32, y: f64) -> f64 {
    units(cols) * UNIT * y.abs() + (f64::from(eps).sqrt().recip() + 1.0) * 2f64.powi(-150)
}

/// Maximum number of additions that a square goes through in the sum of the squares of a row.
fn additions(cols: usize) -> f64 {
    cols.div_ceil(32).max(32) as f64 + 11.0
}

/// Relative error bound, in units of 2^-24, of a number that RMSNorm computes for a row of `cols` numbers.
fn units(cols: usize) -> f64 {
    (additions(cols) + 3.0) / 2.0 + 6.0
}
