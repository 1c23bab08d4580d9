//! RMSNorm fused with block quantization; the normed rows are not rounded in between.

use super::blocks::{Timed, blocks_and_types, check, matrices, numbers, quantized, rows_of_blocks};
use super::grid::{Grid, element_bytes};
use super::rmsnorm::{Normed, error, why, with_inputs};
use super::{Case, Data, KernelOp, Parameters, Problem, Scalar};

pub(super) const RMSNORM_QUANTIZE: KernelOp = KernelOp {
    name: "rmsnorm_quantize",
    doc: "RMSNorm with weights, then block quantization to codes and scales",
    cases,
    parameters: Some(parameters),
    check,
    problem,
    ..KernelOp::NONE
};

fn cases() -> Vec<Case> {
    blocks_and_types(|blocks, dtype| {
        let sizes = [("W", blocks.width as i64), ("S", element_bytes(dtype))];
        matrices(blocks, dtype, "special", &sizes)
            .each("random", &[(1037, 1024)], Grid::large)
            .each("random", &[(5, 7168), (7, 328)], Grid::random)
            .each("edges", &[(176, 1024)], Grid::edges)
            .site("kv.3904x512", "layers.*.attention.kv.window", (61 * 64, 512))
            .site("stream.3904x256", "layers.*.input", (61 * 64, 256))
            .when(blocks.timed(Timed::Fused, dtype), |grid| {
                grid.each("timed", &[(1, 7168), (128, 7168), (8192, 7168)], Grid::timed)
            })
            .done()
    })
}

fn parameters() -> Parameters {
    with_inputs(rows_of_blocks(&cases()))
}

fn problem(case: &Case, data: &Data) -> Result<Problem, String> {
    let cols = case.dim("C");
    let (input, x) = numbers("x", case, cols, data)?;
    let Normed { want, weight, eps } = Normed::new(&x, case, data)?;
    let bound = move |_, y| error(cols, eps, y);
    Ok(Problem {
        scalars: vec![("eps", Scalar::F32(eps))],
        ..quantized(case, vec![input, weight], want, bound, why(cols))?
    })
}
