//! Gathers KV-cache records by slot and dequantizes them to bf16 or f32 vectors.
//!
//! A token without a slot (−1) reads as zeros. The expected values come from the codec, rounded once if the output is bf16. So
//! outputs must be equal bit for bit; only the bits of NaN may differ.

use safetensors::Dtype;

use super::data::float_bytes;
use super::dequantize::WHY;
use super::grid::{Grid, element_bytes, named};
use super::slots::{Slots, encoded, layout, site_of, vectors};
use super::{Batch, Buffer, Case, Data, Inputs, Judge, KernelOp, Problem};
use ulplab_core::formats::{KvRecord, PAGE, RECORDS, codec};

pub(super) const RECORD_READ: KernelOp = KernelOp {
    name: "record_read",
    doc: "gathers KV-cache records by slot and dequantizes them to bf16 or f32",
    cases: || RECORDS.iter().flat_map(|record| of_type(record)).collect(),
    problem,
    ..KernelOp::NONE
};

fn problem(case: &Case, data: &Data) -> Result<Problem, String> {
    let record = codec(case.key("record"))?;
    let layout = layout(case)?;
    let dim = layout.dim;
    let slots = Slots::new(case, data);
    let mut pages = data.bytes("pages", slots.pages * layout.page_stride(PAGE));
    // In edge cases the pages keep their random bytes. In all other cases, write encoded vectors to the slots.
    if case.inputs != Inputs::Edges {
        let tokens = record.encode(&vectors(case, data, dim)?, dim);
        slots.scatter(layout, tokens.part("pages"), &mut pages);
    }
    let tokens = encoded(layout, slots.gather(layout, &pages));
    let mut values = vec![0.0; tokens.rows * dim];
    record.decode(&tokens, &mut values);
    values.truncate(slots.of.len() * dim);
    let dtype = case.float_type("out");
    let want = float_bytes(dtype, &values);
    let shape = [slots.of.len(), dim];
    let bytes = want.len() + slots.of.len() * (layout.bytes + case.dim("slot_bytes"));
    let buffers = vec![
        Buffer::input("pages", Dtype::U8, &[slots.pages, layout.page_stride(PAGE)], pages),
        slots.buffer(case),
    ];
    let judge = Judge::equal("out", dtype, &shape, want, WHY).any_nan(0..dim);
    Ok(Problem {
        bytes: bytes as u64,
        batch: Some(Batch::new("T", &["slots", "out"]).pool("slots", "pages", slots.pages * PAGE)),
        ..Problem::new(buffers, vec![judge])
    })
}

fn of_type(record: &'static KvRecord) -> Vec<Case> {
    let grid = |out| {
        let dims = move |(tokens, slot_bytes)| {
            let sizes = [tokens, record.dim as i64, element_bytes(out), slot_bytes];
            named("T C out_bytes slot_bytes", sizes)
        };
        let keys = [("record", record.name), ("out", out)];
        Grid::new(format!("{}.{out}", record.name), &keys, dims)
    };
    let large = ["v4_bf16", "v4_fp8"].contains(&record.name);
    let cases = [
        grid("bf16")
            .large("t95", (95, 4))
            .timed("t1", (1, 8))
            .timed("t16384", (16384, 4)),
        grid("f32").large("t95", (95, 8)).timed("t16384", (16384, 4)),
        grid("bf16").edges("edges", (501, 8)),
        grid("f32").edges("edges", (501, 4)),
        grid("bf16").site("model", site_of(record), (61 * 16, 8)),
        // This case has the tokens of 64 sequences of 1152 tokens each.
        grid("bf16").when(large, |grid| grid.timed("t73728", (73728, 4))),
    ];
    cases.into_iter().flat_map(Grid::done).collect()
}
