//! Dequantization: codes and scales of a block format → `[T, C]`.

use safetensors::Dtype;

use super::blocks::{AMAX, Blocks, Timed, amax_input, blocks_and_types, check, numbers, parameters};
use super::data::{bf16_bytes, f32_bytes};
use super::judge::Judge;
use super::{Batch, Buffer, Case, Data, Inputs, Op, Parameters, Problem};

pub struct Dequantize;

impl Op for Dequantize {
    fn name(&self) -> &'static str {
        "dequantize"
    }

    fn doc(&self) -> &'static str {
        "dequantizes codes and block scales to rows"
    }

    fn cases(&self) -> Vec<Case> {
        blocks_and_types(|blocks, dtype| {
            blocks
                .rows(dtype, "all", &[("W", blocks.width as i64)])
                .random(&[(37, 7168), (5, 328)])
                .edges("all", &[(208, 1024)])
                .site("site", "layers.*.attention.kv.window", (61 * 64, 512))
                .when(blocks.timed(Timed::Dequantize, dtype), |rows| {
                    rows.timed("random", &[(1, 7168), (8192, 7168)])
                })
                .done()
        })
    }

    fn parameters(&self) -> Option<Parameters> {
        Some(parameters(&self.cases()))
    }

    fn check(&self, case: &Case) -> Result<(), String> {
        check(case)
    }

    /// In edge cases, half of the codes and scales are random bytes; the others come from quantized numbers.
    fn problem(&self, case: &Case, data: &Data) -> Result<Problem, String> {
        let (rows, cols, half) = (case.dim("T"), case.dim("C"), case.key("dtype") == "bf16");
        let blocks = Blocks::for_case(case)?;
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
        let dtype = if half { Dtype::BF16 } else { Dtype::F32 };
        let mut buffers = blocks.inputs(encoded);
        buffers.push(amax_input());
        buffers.push(Buffer::output("y", dtype, &[rows, cols]));
        let judge = Judge::equal("y", dtype, &[rows, cols], want, WHY).any_nan(0..cols);
        Ok(Problem {
            batch: Some(Batch::new("T", &["data", "scale", "y"])),
            ..Problem::new(buffers, vec![judge])
        })
    }
}

/// Why decoded values are defined bit for bit.
pub(super) const WHY: &str = "the format defines a code times its scale as an f32, which is rounded once if the output is \
                              bf16; any NaN matches any other, since the bits of a NaN product depend on the machine";
