//! SwiGLU fused with block quantization; the activation is not rounded in between.

use super::blocks::{Timed, blocks_and_types, check, matrices, numbers, quantized, rows_of_blocks};
use super::grid::Grid;
use super::swiglu::{Activated, LARGE, WHY, with_inputs};
use super::{Case, Data, KernelOp, Parameters, Problem, Scalar};

pub(super) const SWIGLU_QUANTIZE: KernelOp = KernelOp {
    name: "swiglu_quantize",
    doc: "SwiGLU with both inputs clamped, then block quantization to codes and scales",
    cases,
    parameters: Some(parameters),
    check,
    problem,
    ..KernelOp::NONE
};

fn cases() -> Vec<Case> {
    blocks_and_types(|blocks, dtype| {
        matrices(blocks, dtype, "all", &[("W", blocks.width as i64)])
            .each("random", &[LARGE], Grid::large)
            .each("random", &[(7, 328)], Grid::random)
            .each("edges", &[(208, 512)], Grid::edges)
            .site("model.3904x48", "layers.*.moe.gate_up", (61 * 64, 48))
            .when(blocks.timed(Timed::Fused, dtype), |grid| {
                grid.each("timed", &[(1, 3072), (128, 3072), (8192, 3072)], Grid::timed)
            })
            .done()
    })
}

fn parameters() -> Parameters {
    with_inputs(rows_of_blocks(&cases()))
}

fn problem(case: &Case, data: &Data) -> Result<Problem, String> {
    let (input, x) = numbers("gate_up", case, 2 * case.dim("C"), data)?;
    let Activated { want, error, limit } = Activated::new(&x, case);
    Ok(Problem {
        scalars: vec![("limit", Scalar::F32(limit))],
        ..quantized(case, vec![input], want, move |at, _| error[at], WHY.into())?
    })
}
