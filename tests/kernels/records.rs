use ulplab::formats::{Codec, E4M3, Encoded, KvRecord, PAGE, Part, RECORDS, codec};
use ulplab::ops::{Case, Inputs, Problem};

use super::{accepts_only, bytes, problems, stored, values, violations};

fn slots(case: &Case, problem: &Problem) -> Vec<i64> {
    let bytes = bytes(problem, "slots");
    match case.dim("slot_bytes") {
        4 => bytes
            .as_chunks()
            .0
            .iter()
            .map(|bytes| i32::from_le_bytes(*bytes).into())
            .collect(),
        _ => bytes
            .as_chunks()
            .0
            .iter()
            .map(|bytes| i64::from_le_bytes(*bytes))
            .collect(),
    }
}

fn record(case: &Case) -> (&'static KvRecord, std::sync::Arc<dyn Codec>) {
    let name = case.key("record");
    (
        RECORDS.iter().find(|record| record.name == name).unwrap(),
        codec(name).unwrap(),
    )
}

/// What a codec reads from pages.
fn decoded(record: &dyn Codec, dim: usize, pages: &[u8], stride: usize) -> Vec<f32> {
    let count = pages.len() / stride;
    let part = Part {
        name: "pages",
        dtype: safetensors::Dtype::U8,
        shape: vec![count, stride],
        bytes: pages.to_vec(),
    };
    let mut values = vec![0.0; count * PAGE * dim];
    let encoded = Encoded {
        rows: count * PAGE,
        cols: dim,
        parts: vec![part],
    };
    record.decode(&encoded, &mut values);
    values
}

/// The vectors of the tokens, zeros where a token has no slot.
pub fn read(case: &Case, problem: &Problem) -> Vec<u8> {
    let (layout, codec) = record(case);
    let values = decoded(&*codec, layout.dim, bytes(problem, "pages"), layout.page_stride(PAGE));
    let zeros = vec![0.0; layout.dim];
    let out: Vec<f32> = slots(case, problem)
        .into_iter()
        .flat_map(|slot| match usize::try_from(slot) {
            Ok(slot) => &values[slot * layout.dim..][..layout.dim],
            Err(_) => &zeros[..],
        })
        .copied()
        .collect();
    stored(case.key("out") == "bf16", &out)
}

#[test]
fn record_read_wants_the_values_of_the_codec() {
    let all = problems("record_read");
    assert_eq!(all.len(), 4 * RECORDS.len());
    for (case, problem) in &all {
        accepts_only(case, problem, &[("out", read(case, problem))]);
    }
}

/// Pages as they were, with whole tokens of a codec in their slots.
pub fn written(case: &Case, problem: &Problem, x: &[f32]) -> Vec<u8> {
    let (layout, codec) = record(case);
    let dense = codec.encode(x, layout.dim);
    let stride = layout.page_stride(PAGE);
    let mut pages = bytes(problem, "pages").to_vec();
    for (token, slot) in slots(case, problem).into_iter().enumerate() {
        let Ok(slot) = usize::try_from(slot) else { continue };
        let mut region = 0;
        for row in layout.regions {
            let at = |token: usize| token / PAGE * stride + region + token % PAGE * row;
            pages[at(slot)..][..*row].copy_from_slice(&dense.part("pages")[at(token)..][..*row]);
            region += PAGE * row;
        }
    }
    pages
}

#[test]
fn record_write_wants_the_bytes_of_the_codec_and_nothing_else_changed() {
    let all = problems("record_write")
        .into_iter()
        .filter(|(case, _)| case.key("form") == "raw");
    for (case, problem) in all {
        let x = values(&problem, "x");
        accepts_only(&case, &problem, &[("pages", written(&case, &problem, &x))]);
    }
}

/// RMSNorm and RoPE in f32, sums from first to last.
fn normed(problem: &Problem, dim: usize, mistake: impl Fn(usize, &mut f32)) -> Vec<f32> {
    let (weight, cos_sin) = (values(problem, "weight"), values(problem, "cos_sin"));
    let positions = bytes(problem, "positions")
        .as_chunks()
        .0
        .iter()
        .map(|bytes| i64::from_le_bytes(*bytes) as usize);
    let mut x = values(problem, "x");
    for (row, position) in x.chunks_exact_mut(dim).zip(positions) {
        let sum: f32 = row.iter().map(|x| x * x).sum();
        let scale = 1.0 / (sum / dim as f32 + 1e-6).sqrt();
        row.iter_mut().zip(&weight).for_each(|(x, w)| *x *= scale * w);
        for (pair, turn) in row[dim - 64..]
            .chunks_exact_mut(2)
            .zip(cos_sin[position * 64..].chunks_exact(2))
        {
            let (even, odd, cos, sin) = (pair[0], pair[1], turn[0], turn[1]);
            pair[0] = even * cos - odd * sin;
            pair[1] = odd * cos + even * sin;
        }
    }
    x.iter_mut().enumerate().for_each(|(at, x)| mistake(at, x));
    x
}

#[test]
fn record_write_admits_rounding_of_the_norm_and_nothing_more() {
    let all = problems("record_write")
        .into_iter()
        .filter(|(case, _)| case.key("form") == "normed");
    for (case, problem) in all {
        let dim = case.dim("C");
        let judge = |x: &[f32]| violations(&problem, vec![("pages", written(&case, &problem, x))]);
        assert!(judge(&normed(&problem, dim, |_, _| ())) == 0.0, "{}", case.name);
        let last = |at: usize, x: &mut f32| {
            if at % dim == dim - 1 {
                *x = -*x - 1.0;
            }
        };
        assert!(judge(&normed(&problem, dim, last)) > 0.0, "{}", case.name);
    }
}

/// The quotient that `record_write` has of a product with a reciprocal, for every mantissa of amax and element, is the
/// machine's.
#[test]
fn one_step_from_the_product_is_the_quotient() {
    let number = |exponent: i32, mantissa: u32| (1.0 + mantissa as f32 / 128.0) * 2f32.powi(exponent);
    for amax in (0..128).map(|mantissa| number(8, mantissa)) {
        let divisor = amax / 448.0;
        let inverse = 1.0 / divisor;
        let numbers = (-24..=8).flat_map(|exponent| (0..128).map(move |mantissa| number(exponent, mantissa)));
        for x in numbers.filter(|x| *x <= amax) {
            let near = x * inverse;
            let quotient = (-near).mul_add(divisor, x).mul_add(inverse, near);
            assert_eq!(quotient, x / divisor, "{x} / {divisor}");
        }
    }
}

/// Where elements are divided by a scale of f32, edges have quotients that are ties, and that are none if they are products with the
/// reciprocal.
#[test]
fn a_product_with_the_reciprocal_shows_in_edges() {
    let all = problems("record_write");
    let edges =
        |case: &Case| case.key("record") == "v32_fp8" && case.key("form") == "raw" && case.inputs == Inputs::Edges;
    let (_, problem) = all.iter().find(|(case, _)| edges(case)).unwrap();
    let x = values(problem, "x");
    let differing = x.chunks_exact(128).map(|block| {
        let scale = block.iter().fold(0f32, |amax, x| amax.max(x.abs())) / 448.0;
        let code = |x: f32| E4M3.encode(x);
        let differs = |x: &&f32| code(**x / scale) != code(**x * (1.0 / scale));
        // Of other blocks, numbers that differ may be NaN or have scales that are subnormal.
        if scale == 7.0 {
            block.iter().filter(differs).count()
        } else {
            0
        }
    });
    assert!(differing.sum::<usize>() > 100);
}
