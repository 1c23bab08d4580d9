//! Gather by slot and dequantize: tokens of a KV cache as bf16 or f32 vectors.
//!
//! A token without a slot reads as zeros. The values are those of the codec, rounded once to bf16 where that is the type
//! of the output; so outputs must be equal, but for the bits of a NaN.

use safetensors::Dtype;

use super::data::{bf16_bytes, f32_bytes};
use super::dequantize::WHY;
use super::judge::Judge;
use super::slots::{Slots, encoded, layout, site_of, vectors};
use super::{Buffer, Case, Data, Inputs, Op, Problem};
use crate::formats::{PAGE, RECORDS, Record, codec};

pub struct RecordRead;

impl Op for RecordRead {
    fn name(&self) -> &'static str {
        "record_read"
    }

    fn doc(&self) -> &'static str {
        "gather of KV-cache records by slot, dequantized to bf16 or f32"
    }

    fn cases(&self) -> Vec<Case> {
        RECORDS.iter().flat_map(|record| cases(record)).collect()
    }

    fn problem(&self, case: &Case, data: &Data) -> Result<Problem, String> {
        let record = codec(case.key("record"))?;
        let layout = layout(case)?;
        let (dim, size) = (layout.dim, case.dim("out_bytes"));
        let slots = Slots::new(case, data);
        let mut pages = data.bytes("pages", slots.pages * layout.page_stride(PAGE));
        // Where edges are tried, any bytes are read.
        if case.inputs != Inputs::Edges {
            let tokens = record.encode(&vectors(case, data, dim)?, dim);
            slots.scatter(layout, tokens.part("pages"), &mut pages);
        }
        let tokens = encoded(layout, slots.gather(layout, &pages));
        let mut values = vec![0.0; tokens.rows * dim];
        record.decode(&tokens, &mut values);
        values.truncate(slots.of.len() * dim);
        let want = if size == 2 {
            bf16_bytes(&values)
        } else {
            f32_bytes(&values)
        };
        let shape = [slots.of.len(), dim];
        let bytes = want.len() + slots.of.len() * (layout.bytes + case.dim("slot_bytes"));
        let dtype = if size == 2 { Dtype::BF16 } else { Dtype::F32 };
        Ok(Problem {
            buffers: vec![
                Buffer::input("pages", Dtype::U8, &[slots.pages, layout.page_stride(PAGE)], pages),
                slots.buffer(case),
                Buffer::output("out", dtype, &shape),
            ],
            scalars: vec![],
            bytes: bytes as u64,
            flops: 0,
            judges: vec![Judge::equal("out", dtype, &shape, want, WHY).any_nan(0..dim)],
        })
    }
}

fn cases(record: &'static Record) -> Vec<Case> {
    let case = |name: &str, out: &str, tokens, slot_bytes, inputs, timed| Case {
        name: format!("{}.{out}.{name}", record.name),
        keys: vec![("record", record.name.into()), ("out", out.into())],
        dims: vec![
            ("T", tokens),
            ("C", record.dim as i64),
            ("out_bytes", if out == "bf16" { 2 } else { 4 }),
            ("slot_bytes", slot_bytes),
        ],
        inputs,
        timed,
    };
    let mut cases = vec![
        case("t1", "bf16", 1, 8, Inputs::Random, true),
        case("t16384", "bf16", 16384, 4, Inputs::Random, true),
        case("t16384", "f32", 16384, 4, Inputs::Random, true),
        case("edges", "bf16", 501, 8, Inputs::Edges, false),
        case("edges", "f32", 501, 4, Inputs::Edges, false),
        case("model", "bf16", 61 * 16, 8, Inputs::Site(site_of(record)), false),
    ];
    if ["v4_bf16", "v4_fp8"].contains(&record.name) {
        // 64 sequences of 1152 tokens each.
        cases.push(case("t73728", "bf16", 73728, 4, Inputs::Random, true));
    }
    cases
}
