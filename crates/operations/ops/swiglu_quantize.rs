//! SwiGLU fused with block quantization; the activation is not rounded in between.

use super::blocks::{AMAX, Blocks, Timed, amax_input, blocks_and_types, check, numbers, parameters};
use super::judge::Judge;
use super::swiglu::{Activated, LIMIT_RANGE, WHY};
use super::{Batch, Case, Data, Op, Parameters, Problem, Scalar};

pub struct SwiGluQuantize;

impl Op for SwiGluQuantize {
    fn name(&self) -> &'static str {
        "swiglu_quantize"
    }

    fn doc(&self) -> &'static str {
        "SwiGLU with both inputs clamped, then block quantization to codes and scales"
    }

    fn cases(&self) -> Vec<Case> {
        blocks_and_types(|blocks, dtype| {
            blocks
                .rows(dtype, "all", &[("W", blocks.width as i64)])
                // The first is the one that is repeated: the vectors of a row divide no stride of a grid of 132 multiprocessors.
                .random(&[(37, 2688), (7, 328)])
                .edges("edges", &[(208, 512)])
                .site("model", "layers.*.moe.gate_up", (61 * 64, 48))
                .when(blocks.timed(Timed::Fused, dtype), |rows| {
                    rows.timed("timed", &[(1, 3072), (128, 3072), (8192, 3072)])
                })
                .done()
        })
    }

    fn parameters(&self) -> Option<Parameters> {
        let parameters = parameters(&self.cases()).scalar("limit", LIMIT_RANGE);
        Some(parameters.tensor("gate_up", &["T", "2 * C"]))
    }

    fn check(&self, case: &Case) -> Result<(), String> {
        check(case)
    }

    fn problem(&self, case: &Case, data: &Data) -> Result<Problem, String> {
        let (rows, cols) = (case.dim("T"), case.dim("C"));
        let blocks = Blocks::for_case(case)?;
        let (input, x) = numbers("gate_up", case, 2 * cols, data)?;
        let Activated { want, error, limit } = Activated::new(&x, case);
        let mut buffers = vec![input, amax_input()];
        buffers.extend(blocks.outputs(rows, cols)?);
        let stored = (blocks.format()?, blocks.width, AMAX);
        let judge = Judge::admissible(stored, cols, want, move |at, _| error[at], WHY);
        Ok(Problem {
            scalars: vec![("limit", Scalar::F32(limit))],
            batch: Some(Batch::new("T", &["gate_up", "data", "scale"])),
            ..Problem::new(buffers, vec![judge])
        })
    }
}
