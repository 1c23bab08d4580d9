//! RMSNorm fused with block quantization; the normed rows are not rounded in between.

use super::blocks::{AMAX, Blocks, Timed, amax_input, blocks_and_types, check, numbers, parameters};
use super::grid::element_bytes;
use super::judge::Judge;
use super::rmsnorm::{EPS_RANGE, Normed, error, why};
use super::{Batch, Case, Data, Op, Parameters, Problem, Scalar};

pub struct RmsNormQuantize;

impl Op for RmsNormQuantize {
    fn name(&self) -> &'static str {
        "rmsnorm_quantize"
    }

    fn doc(&self) -> &'static str {
        "RMSNorm with weights, then block quantization to codes and scales"
    }

    fn cases(&self) -> Vec<Case> {
        blocks_and_types(|blocks, dtype| {
            let sizes = [("W", blocks.width as i64), ("S", element_bytes(dtype))];
            blocks
                .rows(dtype, "special", &sizes)
                .random(&[(1037, 1024), (5, 7168), (7, 328)])
                .edges("edges", &[(176, 1024)])
                .site("kv", "layers.*.attention.kv.window", (61 * 64, 512))
                .site("stream", "layers.*.input", (61 * 64, 256))
                .when(blocks.timed(Timed::Fused, dtype), |rows| {
                    rows.timed("timed", &[(1, 7168), (128, 7168), (8192, 7168)])
                })
                .done()
        })
    }

    fn parameters(&self) -> Option<Parameters> {
        let parameters = parameters(&self.cases()).scalar("eps", EPS_RANGE);
        Some(parameters.tensor("x", &["T", "C"]).tensor("weight", &["C"]))
    }

    fn check(&self, case: &Case) -> Result<(), String> {
        check(case)
    }

    fn problem(&self, case: &Case, data: &Data) -> Result<Problem, String> {
        let (rows, cols) = (case.dim("T"), case.dim("C"));
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
}
