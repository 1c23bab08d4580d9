//! RMSNorm and block quantization of its unrounded result in one.

use super::blocks::{AMAX, BLOCKS, Blocks, NVFP4, amax_input, check, numbers, parameters, traffic};
use super::judge::Judge;
use super::rmsnorm::{EPS_RANGE, Normed, error, why};
use super::{Case, Data, Inputs, Op, Parameters, Problem, Scalar};

pub struct RmsNormQuantize;

impl Op for RmsNormQuantize {
    fn name(&self) -> &'static str {
        "rmsnorm_quantize"
    }

    fn doc(&self) -> &'static str {
        "rows over their root mean square, times weights, to codes and block scales"
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
                        ("edges", "special".into()),
                    ],
                    dims: vec![
                        ("T", rows),
                        ("C", cols),
                        ("W", blocks.width as i64),
                        ("S", if dtype == "bf16" { 2 } else { 4 }),
                    ],
                    inputs,
                    timed,
                };
                cases.push(case(Inputs::Random, "random", 1037, 1024, false));
                cases.push(case(Inputs::Random, "random", 5, 7168, false));
                cases.push(case(Inputs::Random, "random", 7, 328, false));
                cases.push(case(Inputs::Edges, "edges", 176, 1024, false));
                cases.push(case(
                    Inputs::Site("layers.*.attention.kv.window"),
                    "kv",
                    61 * 64,
                    512,
                    false,
                ));
                cases.push(case(Inputs::Site("layers.*.input"), "stream", 61 * 64, 256, false));
                if dtype == "bf16" && ["fp8_b128_f32", "fp8_b128", "mxfp8", NVFP4].contains(&blocks.key) {
                    for rows in [1, 128, 8192] {
                        cases.push(case(Inputs::Random, "timed", rows, 7168, true));
                    }
                }
            }
        }
        cases
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
        let blocks = Blocks::of(case)?;
        let (input, x) = numbers("x", case, cols, data)?;
        let Normed { want, weight, eps } = Normed::new(&x, case, data)?;
        let mut buffers = vec![input, weight, amax_input()];
        buffers.extend(blocks.outputs(rows, cols)?);
        let bytes = traffic(&buffers);
        let stored = (blocks.format()?, blocks.width, AMAX);
        let judge = Judge::admissible(stored, cols, want, move |_, y| error(cols, eps, y), why(cols));
        Ok(Problem {
            buffers,
            scalars: vec![("eps", Scalar::F32(eps))],
            bytes,
            flops: 0,
            judges: vec![judge],
        })
    }
}
