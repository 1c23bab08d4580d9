//! SwiGLU of rows [g, u] with the clamp limit c: silu(min(g, c)) · clamp(u, −c, c), computed in f32 and rounded once to the
//! input's type.

use rayon::prelude::*;
use reference::ops::experts::swiglu;

use super::blocks::numbers;
use super::grid::{Grid, matrices};
use super::judge::{Judge, UNIT, stored_error};
use super::rmsnorm::rounded;
use super::{Batch, Case, Data, KernelOp, Parameters, Problem, Scalar};

pub(super) const SWIGLU: KernelOp = KernelOp {
    name: "swiglu",
    doc: "the gated activation of an expert's two projections, both clamped",
    cases,
    parameters: Some(|| with_inputs(Parameters::new(&cases(), &["T", "C"], &["dtype"]))),
    problem,
    ..KernelOp::NONE
};

fn cases() -> Vec<Case> {
    let of_type = |dtype| {
        let grid = matrices(dtype, &[("dtype", dtype), ("edges", "all")]);
        rows(grid, [7, 333], dtype == "bf16")
    };
    ["bf16", "f32"].into_iter().flat_map(of_type).collect()
}

/// Adds the cases of an operation on rows. One case has the shape `odd`; timed cases are added only if `timed` is true.
pub(super) fn rows(grid: Grid<[i64; 2]>, odd: [i64; 2], timed: bool) -> Vec<Case> {
    // Choose the shape 37 × 2688 for a grid-stride loop over 132 multiprocessors: its stride is not a multiple of the number of
    // vectors per row.
    grid.each("random", &[[37, 2688]], Grid::large)
        .each("random", &[odd], Grid::random)
        .each("edges", &[[208, 512]], Grid::edges)
        .site("model.3904x48", "layers.*.moe.gate_up", [61 * 64, 48])
        .when(timed, |grid| {
            grid.each("timed", &[[1, 3072], [128, 3072], [8192, 3072]], Grid::timed)
        })
        .done()
}

/// Adds the input tensor, and the clamp limit, to the parameters of user cases.
pub(super) fn with_inputs(parameters: Parameters) -> Parameters {
    let parameters = parameters.scalar("limit", LIMIT_RANGE);
    parameters.tensor("gate_up", &["T", "2 * C"])
}

fn problem(case: &Case, data: &Data) -> Result<Problem, String> {
    let [rows, cols] = case.sizes(["T", "C"]);
    let (input, x) = numbers("gate_up", case, 2 * cols, data)?;
    let dtype = input.dtype;
    let (want, error, limit) = activations(&x, case);
    let bound = move |at: usize, y: f64| stored_error(dtype, y, error[at]);
    let judge = Judge::within("y", dtype, &[rows, cols], want, bound, rounded(dtype, WHY.into()));
    Ok(Problem {
        scalars: vec![("limit", Scalar::F32(limit))],
        batch: Some(Batch::new("T", &["gate_up", "y"])),
        ..Problem::new(vec![input], vec![judge])
    })
}

pub(super) const WHY: &str = "f32 arithmetic errs by at most (12 + 2|g|) units of 2^-24 of |y|: the exponential, its \
                              argument, a reciprocal, a sum and two products; for g below -87, y may underflow to 0";

/// Default clamp limit c: DeepSeek-V4's `swiglu_limit`.
pub(super) const LIMIT: f32 = 10.0;

const LIMIT_RANGE: [f64; 2] = [0.01, 1000.0];

/// Expected activations of rows [g, u] in f64, their error bounds for f32 kernels, and the clamp limit.
pub(super) fn activations(x: &[f32], case: &Case) -> (Vec<f64>, Vec<f64>, f32) {
    let (cols, limit) = (case.dim("C"), case.number("limit", LIMIT));
    let each = |(gate, up): (&f32, &f32)| {
        let (y, lost) = activated([gate, up].map(|x| f64::from(*x)), limit.into());
        (y, error(12.0, (*gate).into(), y) + 2f64.powi(-146) + lost)
    };
    let rows = x.par_chunks(2 * cols).flat_map_iter(|x| {
        let (gate, up) = x.split_at(cols);
        gate.iter().zip(up).map(each)
    });
    let (want, error) = rows.unzip();
    (want, error, limit)
}

/// Returns the activation silu(gate)·up of the clamped numbers, and an absolute error bound. Kernels compute the exponential as a
/// power of two. Below gate = −87, this power or its reciprocal leaves the range of f32. The activation is then at most 89·2^-125
/// times `up`, and a kernel may return 0.
pub(super) fn activated([gate, up]: [f64; 2], limit: f64) -> (f64, f64) {
    let lost = if gate < -87.0 {
        89.0 * 2f64.powi(-125) * limit
    } else {
        0.0
    };
    (swiglu(gate, up, limit), lost)
}

/// Relative part of the error bound of a result y with this gate. `units` counts the roundings that do not depend on the gate, in
/// units of 2^-24.
///
/// Let u = 2^-24. The power of two errs by 4u. Its argument g·log2(e) is rounded twice, which adds 2|g|u. The reciprocal is
/// accurate to one ulp and errs by 2u; the sum and the two products err by u each. With the second-order terms, the total is less
/// than (12 + 2|g|)u plus the spacing of subnormals. Any further product adds u.
pub(super) fn error(units: f64, gate: f64, y: f64) -> f64 {
    (units + 2.0 * gate.abs().min(200.0)) * UNIT * y.abs()
}
