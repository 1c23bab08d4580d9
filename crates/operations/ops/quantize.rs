//! Quantization: numbers `[T, C]` → codes and scales of a block format.

use safetensors::Dtype;

use super::blocks::{Blocks, NVFP4, STATED, Timed, amax_input, blocks_and_types, check, numbers, rows_of_blocks};
use super::grid::{Grid, element_bytes, matrices};
use super::{Batch, Buffer, Case, Data, Judge, KernelOp, Problem};
use ulplab_core::formats::GlobalScale;

pub(super) const QUANTIZE: KernelOp = KernelOp {
    name: "quantize",
    doc: "quantizes rows to codes and block scales; NVFP4 uses a given largest magnitude or the tensor's own",
    cases,
    parameters: Some(|| rows_of_blocks(&cases()).tensor("x", &["T", "C"])),
    check,
    problem,
    ..KernelOp::NONE
};

fn cases() -> Vec<Case> {
    blocks_and_types(|blocks, dtype| {
        let levels = 0..=i64::from(blocks.key == NVFP4);
        levels.flat_map(|find| of_type(blocks, dtype, find)).collect()
    })
}

fn problem(case: &Case, data: &Data) -> Result<Problem, String> {
    let [rows, cols, find] = case.sizes(["T", "C", "FIND"]);
    let find = find == 1;
    let blocks = Blocks::for_case(case)?;
    let (input, x) = numbers("x", case, cols, data)?;
    let global = if find { GlobalScale::Own } else { STATED };
    let want = blocks.format()?.encode(&x, cols, global);
    let mut buffers = vec![input];
    buffers.extend(blocks.outputs(rows, cols)?);
    buffers.push(if find {
        Buffer::output("amax", Dtype::F32, &[1])
    } else {
        amax_input()
    });
    let amax = find.then(|| Judge::equal("amax", Dtype::F32, &[1], want.part("global").to_vec(), WHY));
    let parts = want.parts.into_iter().take(2);
    let parts = parts.map(|part| Judge::equal(part.name, part.dtype, &part.shape, part.bytes, WHY));
    let judges = parts.chain(amax).collect();
    let mut batch = Batch::new("T", &["x", "data", "scale"]);
    if find {
        // If the kernel finds the largest magnitude itself, each result depends on all rows. So a test can only repeat all rows
        // together.
        batch = batch.together(rows, &[]);
    }
    Ok(Problem {
        batch: Some(batch),
        ..Problem::new(buffers, judges)
    })
}

const WHY: &str = "the format defines every code and scale to the bit (docs/formats.md)";

/// Makes cases of one format and type. If `find` is 1, kernels compute the largest magnitude of the tensor; else they read it
/// from the input `amax`.
fn of_type(blocks: &Blocks, dtype: &str, find: i64) -> Vec<Case> {
    let (edges, level) = if find == 1 { ("finite", ".find") } else { ("all", "") };
    let keys = [("format", blocks.key), ("dtype", dtype), ("edges", edges)];
    matrices(format!("{}{level}.{dtype}", blocks.key), &keys)
        .also("W", blocks.width as i64)
        .also("S", element_bytes(dtype))
        .also("FIND", find)
        .each("random", &[[37, 7168]], Grid::large)
        .each("random", &[[3, 640]], Grid::random)
        // Rows of this shape end with a partial block. Kernels that find the largest magnitude read only whole blocks, so they do
        // not get this case.
        .when(find == 0, |grid| grid.each("random", &[[5, 328]], Grid::random))
        .each(edges, &[[208, 1024]], Grid::edges)
        .when(find == 1, |grid| {
            // The first shape ends before the row with infinities, so it has NaN but no infinity.
            let grid = grid
                .key("edges", "all")
                .each("all", &[[10, 512], [26, 512]], Grid::edges);
            // In this shape, the infinity is in the last few vectors of the tensor, which do not fill a warp.
            let grid = grid.key("edges", "infinite").each("infinite", &[[11, 80]], Grid::edges);
            grid.key("edges", edges)
        })
        .site("site.3904x512", "layers.*.attention.kv.window", [61 * 64, 512])
        .when(blocks.timed(Timed::Quantize, dtype), |grid| {
            grid.each("random", &[[1, 7168], [128, 7168], [8192, 7168]], Grid::timed)
        })
        .done()
}
