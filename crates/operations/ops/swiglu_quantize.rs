//! SwiGLU fused with block quantization: activations are quantized without rounding them to bf16 first.

use super::blocks::{Timed, blocks_and_types, check, numbers, quantized, rows_of_blocks};
use super::swiglu::{WHY, activations, rows, with_inputs};
use super::{Case, Data, KernelOp, Problem, Scalar};

pub(super) const SWIGLU_QUANTIZE: KernelOp = KernelOp {
    name: "swiglu_quantize",
    doc: "SwiGLU with both inputs clamped, then block quantization to codes and scales",
    cases,
    parameters: Some(|| with_inputs(rows_of_blocks(&cases()))),
    check,
    problem,
    ..KernelOp::NONE
};

fn cases() -> Vec<Case> {
    blocks_and_types(|blocks, dtype| {
        let grid = blocks.matrices(dtype, "all");
        rows(grid, [7, 328], blocks.timed(Timed::Fused, dtype))
    })
}

fn problem(case: &Case, data: &Data) -> Result<Problem, String> {
    let (input, x) = numbers("gate_up", case, 2 * case.dim("C"), data)?;
    let (want, error, limit) = activations(&x, case);
    Ok(Problem {
        scalars: vec![("limit", Scalar::F32(limit))],
        ..quantized(case, vec![input], want, move |at, _| error[at], WHY.into())?
    })
}
