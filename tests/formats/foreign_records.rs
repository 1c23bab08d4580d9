//! Records as other people's code writes and reads them: pages of FlashMLA and SGLang, and what their readers find in them.
//!
//! `tests/fixtures/records/records.py` made the file. What a writer does otherwise than the record says is stated, and must show.

use std::collections::BTreeSet;

use half::bf16;
use safetensors::Dtype;
use ulplab::formats::{Codec, Encoded, Format, GlobalScale, KvRecord, PAGE, Part, RECORDS, codec};

use super::oracle::Fixture;

/// Pages of a writer.
struct Written {
    record: &'static str,
    writer: &'static str,
    /// How it stores channels without position, in as many channels as it has, if not as the record does.
    format: Option<(&'static str, usize)>,
    /// Tokens of which that is not true, and why.
    others: &'static [usize],
    why: &'static str,
}

const fn written(record: &'static str, writer: &'static str) -> Written {
    Written {
        record,
        writer,
        format: None,
        others: &[],
        why: "",
    }
}

/// The token of zeros, and that of numbers near 2⁻¹⁸.
const ZEROS: usize = 6;
const TINY: usize = 5;

const WRITTEN: &[Written] = &[
    Written {
        format: Some(("e4m3/b64:e8m0(flashmla_v41)", 448)),
        why: "its scales are at least the power of two above 1e-4, where DeepSeek's largest numbers are at least 1e-4",
        ..written("v4_fp8", "flashmla")
    },
    Written {
        format: Some(("e4m3/b64:e8m0(rceil)", 448)),
        others: &[ZEROS],
        why: "its largest numbers are at least 1e-8, which only zeros are below",
        ..written("v4_fp8", "sglang")
    },
    Written {
        format: Some(("e4m3/b128:e8m0(flashmla_v41)", 512)),
        why: "its scales are powers of two, where vLLM's are quotients",
        ..written("v32_fp8", "flashmla")
    },
    Written {
        others: &[ZEROS, 17, 18, 36, 44, 49],
        why: "it multiplies by the reciprocal of the scale, that of 0 among them, where vLLM divides: nine codes are a step off",
        ..written("v32_fp8", "sglang")
    },
    written("v41_mxfp8", "sglang"),
    Written {
        others: &[7, 8, 9, 10, 11, 12, 13, 15],
        why: "it keeps the sign of zeros",
        ..written("v41_fp4", "sglang")
    },
];

fn file() -> Fixture {
    Fixture::of("records", "records")
}

fn layout(name: &str) -> &'static KvRecord {
    RECORDS.iter().find(|record| record.name == name).unwrap()
}

/// The codes and scales of each token, in the order of segments, and where in them those begin that have position.
fn tokens(record: &KvRecord, pages: &[u8], count: usize) -> Vec<(Vec<u8>, usize)> {
    let stride = record.page_stride(PAGE);
    let token = |token: usize| {
        let mut bytes = Vec::new();
        let mut positioned = 0;
        for segment in record.segments {
            positioned = if segment.scales.is_some() { 0 } else { bytes.len() };
            for place in [Some(segment.codes), segment.scales.map(|(.., place)| place)]
                .into_iter()
                .flatten()
            {
                let at = token / PAGE * stride + record.offset(place, token % PAGE, PAGE);
                bytes.extend_from_slice(&pages[at..][..place.bytes]);
            }
        }
        (bytes, positioned)
    };
    (0..count).map(token).collect()
}

fn decoded(codec: &dyn Codec, record: &KvRecord, pages: &[u8], count: usize) -> Vec<f32> {
    let stride = record.page_stride(PAGE);
    let pages = Part {
        name: "pages",
        dtype: Dtype::U8,
        shape: vec![pages.len() / stride, stride],
        bytes: pages.to_vec(),
    };
    let rows = pages.shape[0] * PAGE;
    let mut values = vec![0.0; rows * record.dim];
    let encoded = Encoded {
        rows,
        cols: record.dim,
        parts: vec![pages],
    };
    codec.decode(&encoded, &mut values);
    values.truncate(count * record.dim);
    values
}

/// What a format with power-of-two scales makes of the channels without position: codes of the first 448, and scales in the record's
/// type.
fn without_position(text: &str, channels: usize, record: &KvRecord, kv: &[f32]) -> Vec<Vec<u8>> {
    let format: Format = text.parse().unwrap();
    let (_, scale, _) = record.segments[0].scales.unwrap();
    let rows = kv.chunks(record.dim).map(|row| {
        let mut row = row[..448].to_vec();
        row.resize(channels, 0.0);
        let encoded = format.encode(&row, channels, GlobalScale::Own);
        let codes = encoded.part("data")[..448].to_vec();
        let scales = encoded.part("scale").iter().flat_map(|code| match scale.bytes() {
            1 => vec![*code],
            _ => 2f32.powi(i32::from(*code) - 127).to_le_bytes().to_vec(),
        });
        codes.into_iter().chain(scales).collect()
    });
    rows.collect()
}

#[test]
fn pages_are_those_of_other_writers() {
    let file = file();
    let kv = file.floats("kv");
    for Written {
        record: name,
        writer,
        format,
        others,
        why,
    } in WRITTEN
    {
        let (record, codec) = (layout(name), codec(name).unwrap());
        let count = kv.len() / record.dim;
        let theirs = tokens(record, file.bytes(&format!("{name}.{writer}.pages")), count);
        let ours = tokens(record, codec.encode(&kv, record.dim).part("pages"), count);
        let mut want = ours.clone();
        if let Some((text, channels)) = format {
            let stored = without_position(text, *channels, record, &kv);
            for ((bytes, positioned), stored) in want.iter_mut().zip(stored) {
                bytes.splice(..*positioned, stored);
            }
        }
        let differ = |want: &[(Vec<u8>, usize)]| -> BTreeSet<usize> {
            (0..count).filter(|token| theirs[*token].0 != want[*token].0).collect()
        };
        assert_eq!(
            differ(&want),
            others.iter().copied().collect(),
            "{name} of {writer}: {why}"
        );
        assert_eq!(
            differ(&ours).is_empty(),
            format.is_none() && others.is_empty(),
            "{name} of {writer} is as the record says, so needs no rule of its own: {why}"
        );
    }
}

/// All readers that the script ran found the same in all pages of a record, whoever wrote them; so do the codecs.
#[test]
fn codecs_find_what_other_readers_find() {
    let file = file();
    for Written {
        record: name, writer, ..
    } in WRITTEN
    {
        let record = layout(name);
        let want = file.floats(&format!("{name}.{writer}.values"));
        let pages = file.bytes(&format!("{name}.{writer}.pages"));
        let got = decoded(&*codec(name).unwrap(), record, pages, want.len() / record.dim);
        for (at, (got, want)) in got.iter().zip(&want).enumerate() {
            let got = bf16::from_f32(*got).to_f32();
            assert!(
                got.to_bits() == want.to_bits() || got.is_nan() && want.is_nan(),
                "{name} of {writer}: channel {} of token {} is {want}, and was read as {got}",
                at % record.dim,
                at / record.dim
            );
        }
    }
}

/// SGLang's writer of index keys rounds ties to zero unless it is asked for even codes, as DeepSeek has them, stores -0 as 0, and has
/// scales of at least the power of two above 1e-4.
#[test]
fn index_keys_differ_from_sglangs_in_ties_and_signs_of_zero_only() {
    let file = file();
    let keys = file.floats("keys");
    let (record, codec) = (layout("index_mxfp4"), codec("index_mxfp4").unwrap());
    let count = keys.len() / record.dim;
    let read = |pages: &[u8]| decoded(&*codec, record, pages, count);
    let ours = read(codec.encode(&keys, record.dim).part("pages"));
    let compared = (0..keys.len()).filter(|at| ![ZEROS, TINY].contains(&(at / record.dim)));
    let even = read(file.bytes("index_mxfp4.sglang_even.pages"));
    let differ: Vec<usize> = compared.clone().filter(|at| even[*at] != ours[*at]).collect();
    assert!(differ.is_empty(), "{differ:?}");
    let signs = compared
        .clone()
        .filter(|at| even[*at].to_bits() != ours[*at].to_bits())
        .count();
    assert!(signs > 0, "no number becomes -0");

    let to_zero = read(file.bytes("index_mxfp4.sglang.pages"));
    let mut ties = 0;
    for at in compared.filter(|at| to_zero[*at] != ours[*at]) {
        let (below, above) = (to_zero[at].abs(), ours[at].abs());
        assert_eq!((below + above) / 2.0, keys[at].abs(), "{at}: {below} or {above}");
        assert!(below < above);
        ties += 1;
    }
    assert!(ties > 20, "{ties} ties");
}
