//! Block quantization: `[T, C]` → codes and scales of a block format.

use safetensors::Dtype;

use super::blocks::{AMAX, Blocks, NVFP4, Timed, amax_input, blocks_and_types, check, numbers, parameters};
use super::grid::{Rows, element_bytes};
use super::judge::Judge;
use super::{Batch, Buffer, Case, Data, Op, Parameters, Problem};

pub struct Quantize;

impl Op for Quantize {
    fn name(&self) -> &'static str {
        "quantize"
    }

    fn doc(&self) -> &'static str {
        "quantizes rows to codes and block scales; NVFP4 uses a given largest magnitude or the tensor's own"
    }

    fn cases(&self) -> Vec<Case> {
        blocks_and_types(|blocks, dtype| {
            let levels = 0..=i64::from(blocks.key == NVFP4);
            levels.flat_map(|find| cases(blocks, dtype, find)).collect()
        })
    }

    fn parameters(&self) -> Option<Parameters> {
        Some(parameters(&self.cases()).tensor("x", &["T", "C"]))
    }

    fn check(&self, case: &Case) -> Result<(), String> {
        check(case)
    }

    fn problem(&self, case: &Case, data: &Data) -> Result<Problem, String> {
        let (rows, cols, find) = (case.dim("T"), case.dim("C"), case.dim("FIND") == 1);
        let blocks = Blocks::for_case(case)?;
        let (input, x) = numbers("x", case, cols, data)?;
        let want = blocks.encode(&x, cols, (!find).then_some(AMAX))?;
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
            // A largest magnitude that is the tensor's own depends on all rows: it is the same only if all of them are there.
            batch = batch.together(rows, &[]);
        }
        Ok(Problem {
            batch: Some(batch),
            ..Problem::new(buffers, judges)
        })
    }
}

const WHY: &str = "the format defines every code and scale to the bit (docs/formats.md)";

/// Cases with a given largest magnitude, or, if `find` is 1, with the tensor's own.
fn cases(blocks: &Blocks, dtype: &str, find: i64) -> Vec<Case> {
    let (edges, level) = if find == 1 { ("finite", ".find") } else { ("all", "") };
    let keys = [("format", blocks.key), ("dtype", dtype), ("edges", edges)];
    let sizes = [("W", blocks.width as i64), ("S", element_bytes(dtype)), ("FIND", find)];
    Rows::new(format!("{}{level}.{dtype}", blocks.key), &keys, &sizes)
        .random(&[(37, 7168), (3, 640)])
        // A row shorter than a block is left out, because the kernel finds the magnitude in whole blocks.
        .when(find == 0, |rows| rows.random(&[(5, 328)]))
        .edges(edges, &[(208, 1024)])
        // The first ends before the rows with infinities: it contains NaN but no infinity.
        .when(find == 1, |rows| {
            let rows = rows.key("edges", "all").edges("all", &[(10, 512), (26, 512)]);
            // The infinity lies in the last vectors, of which there are fewer than a warp takes.
            let rows = rows.key("edges", "infinite").edges("infinite", &[(11, 80)]);
            rows.key("edges", edges)
        })
        .site("site", "layers.*.attention.kv.window", (61 * 64, 512))
        .when(blocks.timed(Timed::Quantize, dtype), |rows| {
            rows.timed("random", &[(1, 7168), (128, 7168), (8192, 7168)])
        })
        .done()
}
