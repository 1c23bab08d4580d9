//! `[T, C]` → codes and scales of a block format.

use safetensors::Dtype;

use super::blocks::{AMAX, BLOCKS, Blocks, NVFP4, amax_input, check, numbers, parameters, traffic};
use super::judge::Judge;
use super::{Buffer, Case, Data, Inputs, Op, Parameters, Problem};

pub struct Quantize;

/// Formats of which large and small tensors are timed.
const TIMED: &[&str] = &["fp8_b128_f32", "fp8_b128", "mxfp8", "mxfp4", NVFP4];

impl Op for Quantize {
    fn name(&self) -> &'static str {
        "quantize"
    }

    fn doc(&self) -> &'static str {
        "rows to codes and block scales; NVFP4 under a given or its own largest magnitude"
    }

    fn cases(&self) -> Vec<Case> {
        let mut cases = Vec::new();
        for blocks in BLOCKS {
            for dtype in ["bf16", "f32"] {
                for find in 0..=i64::from(blocks.key == NVFP4) {
                    let edges = if find == 0 { "all" } else { "finite" };
                    let case = |inputs, rows, cols, edges| case(blocks, dtype, find, edges, inputs, rows, cols);
                    cases.push(case(Inputs::Random, 37, 7168, edges));
                    cases.push(case(Inputs::Random, 3, 640, edges));
                    cases.push(case(Inputs::Random, 5, 328, edges));
                    cases.push(case(Inputs::Edges, 208, 1024, edges));
                    if find == 1 {
                        // Without its last rows there is a NaN, but no infinity.
                        cases.push(case(Inputs::Edges, 10, 512, "all"));
                        cases.push(case(Inputs::Edges, 26, 512, "all"));
                    }
                    cases.push(case(Inputs::Site("layers.*.attention.kv.window"), 61 * 64, 512, edges));
                    if dtype == "bf16" && TIMED.contains(&blocks.key) {
                        for rows in [1, 128, 8192] {
                            let timed = case(Inputs::Random, rows, 7168, edges);
                            cases.push(Case { timed: true, ..timed });
                        }
                    }
                }
            }
        }
        // A row too short for a block has nothing to find the magnitude with in whole blocks.
        cases.retain(|case| case.dim("FIND") == 0 || case.dim("C").is_multiple_of(case.dim("W")));
        cases
    }

    fn parameters(&self) -> Option<Parameters> {
        Some(parameters(&self.cases()).tensor("x", &["T", "C"]))
    }

    fn check(&self, case: &Case) -> Result<(), String> {
        check(case)
    }

    fn problem(&self, case: &Case, data: &Data) -> Result<Problem, String> {
        let (rows, cols, find) = (case.dim("T"), case.dim("C"), case.dim("FIND") == 1);
        let blocks = Blocks::of(case)?;
        let (input, x) = numbers("x", case, cols, data)?;
        let want = blocks.encode(&x, cols, (!find).then_some(AMAX))?;
        let mut buffers = vec![input];
        buffers.extend(blocks.outputs(rows, cols)?);
        buffers.push(if find {
            Buffer::output("amax", Dtype::F32, &[1])
        } else {
            amax_input()
        });
        let bytes = traffic(&buffers);
        let amax = find.then(|| Judge::equal("amax", Dtype::F32, &[1], want.part("global").to_vec(), WHY));
        let parts = want.parts.into_iter().take(2);
        let parts = parts.map(|part| Judge::equal(part.name, part.dtype, &part.shape, part.bytes, WHY));
        let judges = parts.chain(amax).collect();
        Ok(Problem {
            buffers,
            scalars: Vec::new(),
            bytes,
            flops: 0,
            judges,
        })
    }
}

const WHY: &str = "the format defines every code and scale to the bit (docs/formats.md)";

fn case(blocks: &Blocks, dtype: &str, find: i64, edges: &str, inputs: Inputs, rows: i64, cols: i64) -> Case {
    let what = match inputs {
        Inputs::Random => "random",
        Inputs::Edges => edges,
        Inputs::Site(_) | Inputs::File(_) => "site",
    };
    let level = if find == 1 { ".find" } else { "" };
    Case {
        name: format!("{}{level}.{dtype}.{what}.{rows}x{cols}", blocks.key),
        keys: vec![
            ("format", blocks.key.into()),
            ("dtype", dtype.into()),
            ("edges", edges.into()),
        ],
        dims: vec![
            ("T", rows),
            ("C", cols),
            ("W", blocks.width as i64),
            ("S", if dtype == "bf16" { 2 } else { 4 }),
            ("FIND", find),
        ],
        inputs,
        timed: false,
    }
}
