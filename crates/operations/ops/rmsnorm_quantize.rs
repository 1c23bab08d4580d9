//! RMSNorm fused with block quantization: the normed rows are quantized without rounding them to bf16 first.

use super::blocks::{Timed, blocks_and_types, check, numbers, quantized, rows_of_blocks};
use super::rmsnorm::{error, normed, rows, why, with_inputs};
use super::{Case, Data, KernelOp, Problem, Scalar};

pub(super) const RMSNORM_QUANTIZE: KernelOp = KernelOp {
    name: "rmsnorm_quantize",
    doc: "RMSNorm with weights, then block quantization to codes and scales",
    cases,
    parameters: Some(|| with_inputs(rows_of_blocks(&cases()))),
    check,
    problem,
    ..KernelOp::NONE
};

fn cases() -> Vec<Case> {
    blocks_and_types(|blocks, dtype| {
        let grid = blocks.matrices(dtype, "special");
        rows(grid, dtype, [7, 328], blocks.timed(Timed::Fused, dtype))
    })
}

fn problem(case: &Case, data: &Data) -> Result<Problem, String> {
    let cols = case.dim("C");
    let (input, x) = numbers("x", case, cols, data)?;
    let (want, weight, eps) = normed(&x, case, data)?;
    let bound = move |_, y| error(cols, eps, y);
    Ok(Problem {
        scalars: vec![("eps", Scalar::F32(eps))],
        ..quantized(case, vec![input, weight], want, bound, why(cols))?
    })
}
