//! Fused write of tokens into a KV cache: RMSNorm, RoPE, rounding to bf16, quantization, and scatter by slot into pages.
//!
//! In the `raw` form the vectors are already normed and rotated, and the pages must equal the codec's output bit for bit. In the
//! `normed` form the numbers before quantization have a rounding error that depends on the order of sums; so codes and scales
//! must result from quantizing numbers within that error. All other bytes of the pages must be unchanged, including slots of
//! other tokens and padding.

use half::bf16;
use rayon::prelude::*;
use reference::ops::rope::frequencies;
use safetensors::Dtype;

use super::data::round_to_bf16;
use super::grid::named;
use super::judge::{Judge, Part, UNIT};
use super::slots::{Slots, byte_range, layout, rows, site_of, vectors};
use super::{Batch, Buffer, Case, Data, Grid, KernelOp, Outputs, Problem, Scalar};
use ulplab_core::formats::{Format, Group, KvRecord, PAGE, Place, RECORDS, Scaling, codec};

/// Number of channels that are rotated; they are the last channels of a token.
pub(super) const ROPE: usize = 64;
/// Number of positions in the table of cosines and sines. It exceeds 2^16, so 16-bit indices overflow.
const POSITIONS: usize = (1 << 16) + 4096;
/// Number of positions that tokens use. They are the last positions of the table.
const USED: usize = 20480;
const EPS: f32 = 1e-6;

pub(super) const RECORD_WRITE: KernelOp = KernelOp {
    name: "record_write",
    doc: "RMSNorm, RoPE, quantization and scatter of KV vectors into pages of records, in one launch",
    cases: || RECORDS.iter().flat_map(|record| of_type(record)).collect(),
    problem,
    ..KernelOp::NONE
};

fn problem(case: &Case, data: &Data) -> Result<Problem, String> {
    let record = layout(case)?;
    let slots = Slots::new(case, data);
    let normed = case.key("form") == "normed";
    let mut x = vectors(case, data, record.dim)?;
    round_to_bf16(&mut x);
    if normed {
        // Limit the numbers, because the squares of larger ones overflow f32.
        let limit = 2f32.powi(50);
        let clamped = x.par_iter_mut().filter(|x| x.is_finite());
        clamped.for_each(|x| *x = x.clamp(-limit, limit));
    }
    let weight = data.around("weight", record.dim, 1.0, 0.1);
    let positions: Vec<usize> = (0..slots.of.len()).map(|token| POSITIONS - 1 - token % USED).collect();
    let cos_sin = cos_sin(positions.len());
    let stride = record.page_stride(PAGE);
    let before = data.bytes("pages", slots.pages * stride);

    let shape = [slots.of.len(), record.dim];
    let page_shape = [slots.pages, stride];
    let per_token = 2 * record.dim + record.bytes + case.dim("slot_bytes") + if normed { 8 + 4 * ROPE } else { 0 };
    let bytes = slots.of.len() * per_token + if normed { 4 * record.dim } else { 0 };
    let indices = positions.iter().map(|position| *position as i64);
    let buffers = vec![
        Buffer::bf16("x", &shape, &x),
        Buffer::f32("weight", &[record.dim], &weight),
        Buffer::integers("positions", 8, indices),
        Buffer::f32("cos_sin", &[POSITIONS, ROPE / 2, 2], &cos_sin),
        slots.buffer(case),
        Buffer::in_place("pages", Dtype::U8, &page_shape, before.clone()),
    ];
    // No two tokens may share a slot. A test that picks single rows could pick a row twice, so rows can only be repeated
    // together.
    let batch = Batch::new("T", &["x", "positions", "slots"]).together(slots.of.len(), &[]);
    let batch = batch.pool("slots", "pages", slots.pages * PAGE);
    let judge = if normed {
        let ranges = ranges(&x, &weight, &positions, &cos_sin);
        let parts = move |outputs: &Outputs| normed_parts(record, &before, outputs.get("pages"), &slots, &ranges);
        Judge::parts("pages", parts, WHY_NORMED)
    } else {
        let tokens = codec(record.name)?.encode(&x, record.dim);
        let mut want = before;
        slots.scatter(record, tokens.part("pages"), &mut want);
        Judge::equal("pages", Dtype::U8, &page_shape, want, WHY_KNOWN)
    };
    Ok(Problem {
        scalars: vec![("eps", Scalar::F32(EPS))],
        batch: Some(batch),
        bytes: bytes as u64,
        ..Problem::new(buffers, vec![judge])
    })
}

const WHY_KNOWN: &str = "the record defines every byte of a token (docs/formats.md); slots of other tokens and the padding \
                         of pages must be unchanged; the padding of tokens is 0";
const WHY_NORMED: &str = "norm and rotation are computed in f64, and f32 arithmetic may err by C/2 + 9 units of 2^-24 for \
                          the norm and 3 more for a rotation; stored codes must come from a bf16 in that range; all other \
                          bytes are fixed";

fn of_type(record: &'static KvRecord) -> Vec<Case> {
    let grid = |form| {
        let dims = |(tokens, slot_bytes)| named("T C slot_bytes", [tokens, record.dim as i64, slot_bytes]);
        let keys = [("record", record.name), ("form", form)];
        Grid::new(format!("{}.{form}", record.name), &keys, dims)
    };
    let (site, large) = (site_of(record), ["v4_bf16", "v4_fp8"].contains(&record.name));
    let cases = [
        grid("normed")
            .large("t95", (95, 8))
            .timed("t1", (1, 8))
            .timed("t16384", (16384, 8))
            .edges("edges", (501, 4))
            .site("model", site, (61 * 16, 8)),
        grid("raw")
            .large("t95", (95, 4))
            .timed("t16384", (16384, 8))
            .edges("edges", (501, 4))
            .site("model", site, (61 * 16, 8)),
        // This case has the tokens of 64 sequences of 1152 tokens each.
        grid("normed").when(large, |grid| grid.timed("t73728", (73728, 8))),
    ];
    cases.into_iter().flat_map(Grid::done).collect()
}

/// Makes a table of cosines and sines by position and channel pair. The angle is the f32 product of position and frequency.
/// Entries of positions that no token uses are NaN.
fn cos_sin(tokens: usize) -> Vec<f32> {
    let frequencies = frequencies(ROPE, 1.6e5, None);
    let of = |position: usize| {
        frequencies
            .iter()
            .map(move |frequency| f64::from(position as f32 * frequency))
    };
    let first = POSITIONS - tokens.min(USED);
    let angles: Vec<f64> = (first..POSITIONS).flat_map(of).collect();
    let mut table = vec![f32::NAN; POSITIONS * ROPE];
    let pairs = table[first * ROPE..].as_chunks_mut::<2>().0;
    pairs
        .par_iter_mut()
        .zip(&angles)
        .for_each(|(pair, angle)| *pair = [angle.cos() as f32, angle.sin() as f32]);
    table
}

/// Midpoint and half-width of an interval of values.
type Range = [f64; 2];

/// For each channel, returns the interval of bf16 values that a kernel of the `normed` form may compute before quantization: norm
/// and rotation, computed in f64, plus and minus the error bound of f32 arithmetic. `positions` are the positions of the tokens.
fn ranges(x: &[f32], weight: &[f32], positions: &[usize], cos_sin: &[f32]) -> Vec<Range> {
    let dim = weight.len();
    let mut ranges = vec![Range::default(); x.len()];
    let rows = ranges.par_chunks_exact_mut(dim).zip(x.par_chunks_exact(dim));
    rows.zip(positions).for_each(|((ranges, x), position)| {
        // A sum of `dim` squares, in any order, errs by at most dim + 1 units, and its root by half of that. Adding ε, an
        // approximate reciprocal root (2 ulp), two products and the f32 result below add 9 units.
        let relative = (dim as f64 / 2.0 + 9.0) * UNIT;
        let sum: f64 = x.iter().map(|x| f64::from(*x).powi(2)).sum();
        let scale = 1.0 / (sum / dim as f64 + f64::from(EPS)).sqrt();
        let normed = x.iter().zip(weight).map(|(x, w)| f64::from(*x) * scale * f64::from(*w));
        let normed: Vec<f64> = normed.collect();
        let first = dim - ROPE;
        for (range, y) in ranges[..first].iter_mut().zip(&normed) {
            *range = around(*y, y.abs() * relative);
        }
        let turns = cos_sin[position * ROPE..][..ROPE].as_chunks::<2>().0;
        let pairs = ranges[first..].as_chunks_mut::<2>().0.iter_mut();
        for (([even, odd], x), turn) in pairs.zip(normed[first..].as_chunks::<2>().0).zip(turns) {
            let [cos, sin] = turn.map(f64::from);
            // A rotated channel is the sum of two products, with three roundings.
            let bound = |a: f64, b: f64| (a.abs() + b.abs()) * (relative + 3.0 * UNIT);
            *even = around(x[0] * cos - x[1] * sin, bound(x[0] * cos, x[1] * sin));
            *odd = around(x[1] * cos + x[0] * sin, bound(x[1] * cos, x[0] * sin));
        }
    });
    ranges
}

/// Interval of bf16 values to which numbers within `bound` of y round.
fn around(y: f64, bound: f64) -> Range {
    // Add an absolute error, because subnormal f32 numbers have no relative error bound.
    let bound = bound + 2f64.powi(-146);
    let [low, high] = [y - bound, y + bound].map(|x| bf16::from_f32(x as f32).to_f64());
    // If the interval is zero alone, widen it a little, so that zeros of both signs are inside.
    let zero = if low == 0.0 && high == 0.0 {
        2f64.powi(-150)
    } else {
        0.0
    };
    [(low + high) / 2.0, (high - low) / 2.0 + zero]
}

/// Splits the pages into parts, each with its check. Unquantized channels must be within their intervals; codes and scales must
/// result from quantizing numbers within their intervals; all other bytes, including the padding of tokens, must have their
/// expected values.
fn normed_parts(record: &KvRecord, before: &[u8], got: &[u8], slots: &Slots, ranges: &[Range]) -> Vec<Part> {
    let gather = |place: Place| -> Vec<u8> {
        let bytes = |(_, slot)| got[byte_range(record, place, slot)].iter().copied();
        slots.taken().flat_map(bytes).collect()
    };
    let tokens: Vec<usize> = slots.taken().map(|(token, _)| token).collect();
    let mut parts = Vec::new();
    for segment in record.segments {
        let (first, end) = segment.channels;
        let of = |token: &usize| ranges[token * record.dim + first..token * record.dim + end].iter();
        let (middle, half): (Vec<f64>, Vec<f64>) = tokens
            .iter()
            .flat_map(of)
            .map(|[middle, half]| (*middle, *half))
            .unzip();
        let wide = move |at: usize, _| half[at];
        let (cols, codes) = (end - first, gather(segment.codes));
        let Some((width, scale, place)) = segment.scales else {
            let shape = [tokens.len(), cols];
            let judge = Judge::within(segment.name, Dtype::BF16, &shape, middle, wide, WHY_NORMED);
            parts.push(judge.of_rows(tokens.clone()).on(codes));
            continue;
        };
        let format = Format {
            rotation: None,
            element: segment.element,
            convention: None,
            scaling: Some(Scaling {
                group: Group::block(width),
                scale,
            }),
            global: None,
        };
        let judge = Judge::admissible((format, width, 1.0), cols, middle, wide, WHY_NORMED);
        parts.push(Part {
            judge: judge.of_rows(tokens.clone()),
            outputs: Outputs(vec![("data", codes), ("scale", gather(place))]),
        });
    }

    let mut want = before.to_vec();
    for (_, slot) in slots.taken() {
        for row in rows(record, slot) {
            want[row.clone()].copy_from_slice(&got[row]);
        }
        for padding in record.padding {
            want[byte_range(record, *padding, slot)].fill(0);
        }
    }
    let stride = record.page_stride(PAGE);
    let others = Judge::equal("pages", Dtype::U8, &[want.len() / stride, stride], want, WHY_KNOWN);
    parts.push(others.on(got.to_vec()));
    parts
}
