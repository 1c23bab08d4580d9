//! Codes and scales of a block format → `[T, C]`.

use safetensors::Dtype;

use super::blocks::{AMAX, BLOCKS, Blocks, NVFP4, amax_input, numbers, traffic};
use super::data::{bf16_bytes, f32_bytes};
use super::{Buffer, Case, Data, Inputs, Op, Problem, judge};

pub struct Dequantize;

impl Op for Dequantize {
    fn name(&self) -> &'static str {
        "dequantize"
    }

    fn doc(&self) -> &'static str {
        "codes and block scales to rows"
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
                cases.push(case(Inputs::Random, "random", 37, 7168, false));
                cases.push(case(Inputs::Random, "random", 5, 328, false));
                cases.push(case(Inputs::Edges, "all", 208, 1024, false));
                cases.push(case(
                    Inputs::Site("layers.*.attention.kv.window"),
                    "site",
                    61 * 64,
                    512,
                    false,
                ));
                if dtype == "bf16" && ["fp8_b128_f32", "mxfp8", NVFP4].contains(&blocks.key) {
                    cases.push(case(Inputs::Random, "random", 1, 7168, true));
                    cases.push(case(Inputs::Random, "random", 8192, 7168, true));
                }
            }
        }
        cases
    }

    /// Edges are any codes under any scales, besides what such numbers become.
    fn problem(&self, case: &Case, data: &Data) -> Result<Problem, String> {
        let (rows, cols, half) = (case.dim("T"), case.dim("C"), case.key("dtype") == "bf16");
        let blocks = Blocks::of(case)?;
        let format = blocks.format()?;
        let (_, x) = numbers("x", case, cols, data)?;
        let mut encoded = blocks.encode(&x, cols, Some(AMAX))?;
        if case.inputs == Inputs::Edges {
            for part in &mut encoded.parts[..2] {
                let any = data.bytes(part.name, part.bytes.len());
                let half = part.bytes.len() / 2 / 4 * 4;
                part.bytes[..half].copy_from_slice(&any[..half]);
            }
        }
        let mut y = vec![0.0; rows * cols];
        format.decode(&encoded, &mut y);
        let want = if half { bf16_bytes(&y) } else { f32_bytes(&y) };
        let (dtype, size) = if half { (Dtype::BF16, 2) } else { (Dtype::F32, 4) };
        let mut buffers = blocks.inputs(encoded);
        buffers.push(amax_input());
        buffers.push(Buffer::output("y", dtype, &[rows, cols]));
        let bytes = traffic(&buffers);
        let want = without_payloads(want, size);
        let judge = move |outputs: &super::Outputs| {
            let got = without_payloads(outputs.get("y").to_vec(), size);
            vec![judge::equal("y", &want, &got, &[rows, cols], size)]
        };
        Ok(Problem {
            buffers,
            scalars: Vec::new(),
            bytes,
            flops: 0,
            judge: Box::new(judge),
        })
    }
}

/// All NaN made one: products of NaN have other bits on other machines.
pub(super) fn without_payloads(mut bytes: Vec<u8>, size: usize) -> Vec<u8> {
    use rayon::prelude::*;
    bytes.par_chunks_exact_mut(size).for_each(|bytes| {
        let nan = match *bytes {
            [a, b] => half::bf16::from_le_bytes([a, b]).is_nan(),
            [a, b, c, d] => f32::from_le_bytes([a, b, c, d]).is_nan(),
            _ => false,
        };
        if nan {
            bytes.fill(0xff);
        }
    });
    bytes
}
