//! Dequantization: decodes the codes and scales of a block format to numbers `[T, C]`.

use super::blocks::{Blocks, STATED, Timed, amax_input, blocks_and_types, check, numbers, rows_of_blocks};
use super::data::float_bytes;
use super::{Batch, Case, Data, Grid, Inputs, Judge, KernelOp, Problem};

pub(super) const DEQUANTIZE: KernelOp = KernelOp {
    name: "dequantize",
    doc: "dequantizes codes and block scales to rows",
    cases,
    parameters: Some(|| rows_of_blocks(&cases())),
    check,
    problem,
    ..KernelOp::NONE
};

fn cases() -> Vec<Case> {
    blocks_and_types(|blocks, dtype| {
        let grid = blocks.matrices(dtype, "all");
        grid.each("random", &[[37, 7168]], Grid::large)
            .each("random", &[[5, 328]], Grid::random)
            .each("all", &[[208, 1024]], Grid::edges)
            .site("site.3904x512", "layers.*.attention.kv.window", [61 * 64, 512])
            .when(blocks.timed(Timed::Dequantize, dtype), |grid| {
                grid.each("random", &[[1, 7168], [8192, 7168]], Grid::timed)
            })
            .done()
    })
}

/// Builds the problem. In edge cases half of the codes and scales are random bytes; the other half encodes random numbers.
fn problem(case: &Case, data: &Data) -> Result<Problem, String> {
    let [rows, cols] = case.sizes(["T", "C"]);
    let dtype = case.float_type("dtype");
    let blocks = Blocks::for_case(case)?;
    let format = blocks.format()?;
    let (_, x) = numbers("x", case, cols, data)?;
    let mut encoded = format.encode(&x, cols, STATED);
    if case.inputs == Inputs::Edges {
        for part in &mut encoded.parts[..2] {
            let any = data.bytes(part.name, part.bytes.len());
            let half = part.bytes.len() / 2 / 4 * 4;
            part.bytes[..half].copy_from_slice(&any[..half]);
        }
    }
    let mut y = vec![0.0; rows * cols];
    format.decode(&encoded, &mut y);
    let mut buffers = blocks.inputs(encoded);
    buffers.push(amax_input());
    let judge = Judge::equal("y", dtype, &[rows, cols], float_bytes(dtype, &y), WHY).any_nan(0..cols);
    Ok(Problem {
        batch: Some(Batch::new("T", &["data", "scale", "y"])),
        ..Problem::new(buffers, vec![judge])
    })
}

/// Reason why decoded values must be equal bit for bit.
pub(super) const WHY: &str = "the format defines a code times its scale as an f32, which is rounded once if the output is \
                              bf16; any NaN matches any other, since the bits of a NaN product depend on the machine";
