//! SwiGLU and block quantization of its unrounded result in one.

use super::blocks::{AMAX, BLOCKS, Blocks, NVFP4, amax_input, check, numbers, parameters, traffic};
use super::judge::Judge;
use super::swiglu::{Activated, LIMIT_RANGE, WHY};
use super::{Case, Data, Inputs, Op, Parameters, Problem, Scalar};

pub struct SwiGluQuantize;

impl Op for SwiGluQuantize {
    fn name(&self) -> &'static str {
        "swiglu_quantize"
    }

    fn doc(&self) -> &'static str {
        "the gated activation of an expert's two projections, both clamped, to codes and block scales"
    }

    fn cases(&self) -> Vec<Case> {
        let mut cases = Vec::new();
        for blocks in BLOCKS {
            for dtype in ["bf16", "f32"] {
                let case = |inputs, what, rows, cols, timed| Case {
                    name: format!("{}.{dtype}.{what}.{rows}x{cols}", blocks.key),
                    keys: vec![
                        ("format", blocks.key.into()),
                        ("dtype", dtype.into()),
                        ("edges", "all".into()),
                    ],
                    dims: vec![("T", rows), ("C", cols), ("W", blocks.width as i64)],
                    inputs,
                    timed,
                };
                cases.push(case(Inputs::Random, "random", 37, 3072, false));
                cases.push(case(Inputs::Random, "random", 7, 328, false));
                cases.push(case(Inputs::Edges, "edges", 208, 512, false));
                cases.push(case(Inputs::Site("layers.*.moe.gate_up"), "model", 61 * 64, 48, false));
                if dtype == "bf16" && ["fp8_b128_f32", "fp8_b128", "mxfp8", NVFP4].contains(&blocks.key) {
                    for rows in [1, 128, 8192] {
                        cases.push(case(Inputs::Random, "timed", rows, 3072, true));
                    }
                }
            }
        }
        cases
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
        let blocks = Blocks::of(case)?;
        let (input, x) = numbers("gate_up", case, 2 * cols, data)?;
        let Activated { want, error, limit } = Activated::new(&x, case);
        let mut buffers = vec![input, amax_input()];
        buffers.extend(blocks.outputs(rows, cols)?);
        let bytes = traffic(&buffers);
        let stored = (blocks.format()?, blocks.width, AMAX);
        let judge = Judge::admissible(stored, cols, want, move |at, _| error[at], WHY);
        Ok(Problem {
            buffers,
            scalars: vec![("limit", Scalar::F32(limit))],
            bytes,
            flops: 0,
            judges: vec![judge],
        })
    }
}
