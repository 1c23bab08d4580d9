//! Gather by slot and dequantize: tokens of a KV cache as bf16 or f32 vectors.
//!
//! A token without a slot reads as zeros. The values are those of the codec, rounded once to bf16 where that is the type
//! of the output; so outputs must be equal, but for the bits of a NaN.

use safetensors::Dtype;

use super::data::{bf16_bytes, f32_bytes};
use super::dequantize::without_payloads;
use super::judge::equal;
use super::slots::{Slots, encoded, layout, site_of, vectors};
use super::{Buffer, Case, Data, Inputs, Op, Outputs, Problem};
use crate::formats::{Codec, PAGE, RECORDS, Record, codec};

pub struct RecordRead;

impl Op for RecordRead {
    fn name(&self) -> &'static str {
        "record_read"
    }

    fn doc(&self) -> &'static str {
        "gather of KV-cache records by slot, dequantized to bf16 or f32"
    }

    fn source(&self) -> &'static str {
        include_str!("record_read.rs")
    }

    fn cases(&self) -> Vec<Case> {
        RECORDS.iter().flat_map(|record| cases(record)).collect()
    }

    fn problem(&self, case: &Case, data: &Data) -> Result<Problem, String> {
        let record = codec(case.key("record"))?;
        let layout = layout(case)?;
        let (dim, size) = (layout.dim, case.dim("out_bytes"));
        let slots = Slots::new(case, data);
        let stride = layout.page_stride(PAGE);
        let pages = match case.inputs {
            Inputs::Edges => data.bytes("pages", slots.pages * stride),
            _ => stored(&*record, &vectors(case, data, dim)?, &slots),
        };
        let pages = encoded(layout, pages);
        let mut values = vec![0.0; pages.rows * dim];
        record.decode(&pages, &mut values);

        let mut want = vec![0.0; slots.of.len() * dim];
        for (token, slot) in slots.taken() {
            want[token * dim..][..dim].copy_from_slice(&values[slot * dim..][..dim]);
        }
        let want = if size == 2 { bf16_bytes(&want) } else { f32_bytes(&want) };
        let want = without_payloads(want, size);
        let shape = [slots.of.len(), dim];
        let bytes = want.len() + slots.of.len() * (layout.bytes + case.dim("slot_bytes"));
        let dtype = if size == 2 { Dtype::BF16 } else { Dtype::F32 };
        let part = &pages.parts[0];
        Ok(Problem {
            buffers: vec![
                Buffer::input("pages", Dtype::U8, &part.shape, part.bytes.clone()),
                slots.buffer(case),
                Buffer::output("out", dtype, &shape),
            ],
            scalars: vec![],
            bytes: bytes as u64,
            flops: 0,
            judge: Box::new(move |outputs: &Outputs| {
                let got = without_payloads(outputs.get("out").to_vec(), size);
                vec![equal("out", &want, &got, &shape, size)]
            }),
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
    vec![
        case("t1", "bf16", 1, 8, Inputs::Random, true),
        case("t16384", "bf16", 16384, 4, Inputs::Random, true),
        case("t16384", "f32", 16384, 4, Inputs::Random, true),
        case("t73728", "bf16", 73728, 4, Inputs::Random, true),
        case("edges", "bf16", 501, 8, Inputs::Edges, false),
        case("edges", "f32", 501, 4, Inputs::Edges, false),
        case("model", "bf16", 61 * 16, 8, Inputs::Site(site_of(record)), false),
    ]
}

/// Pages with the tokens in their slots; what is in no slot is the first token's over again.
fn stored(record: &dyn Codec, vectors: &[f32], slots: &Slots) -> Vec<u8> {
    let dim = vectors.len() / slots.of.len();
    let mut pool = vec![0.0; slots.pages * PAGE * dim];
    pool.chunks_exact_mut(dim)
        .for_each(|row| row.copy_from_slice(&vectors[..dim]));
    for (token, slot) in slots.taken() {
        pool[slot * dim..][..dim].copy_from_slice(&vectors[token * dim..][..dim]);
    }
    record.encode(&pool, dim).part("pages").to_vec()
}
