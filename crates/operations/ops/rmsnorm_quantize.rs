//! RMSNorm fused with block quantization; the normed rows are not rounded in between.

use super::blocks::{AMAX, Blocks, Timed, amax_input, blocks_and_types, check, matrices, numbers, rows_of_blocks};
use super::grid::{Grid, element_bytes};
use super::judge::Judge;
use super::rmsnorm::{Normed, error, why, with_inputs};
use super::{Batch, Case, Data, KernelOp, Parameters, Problem, Scalar};

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
    let [rows, cols] = case.sizes(["T", "C"]);
    let blocks = Blocks::for_case(case)?;
    let (input, x) = numbers("x", case, cols, data)?;
    let Normed { want, weight, eps } = Normed::new(&x, case, data)?;
    let mut buffers = vec![input, weight, amax_input()];
    buffers.extend(blocks.outputs(rows, cols)?);
    let stored = (blocks.format()?, blocks.width, AMAX);
    let judge = Judge::admissible(stored, cols, want, move |_, y| error(cols, eps, y), why(cols));
    Ok(Problem {
        scalars: vec![("eps", Scalar::F32(eps))],
        batch: Some(Batch::new("T", &["x", "data", "scale"])),
        ..Problem::new(buffers, vec![judge])
    })
}
