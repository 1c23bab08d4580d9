//! What holds for every codec.

use std::sync::Arc;

use ulplab::formats::{Codec, FORMATS, Group, NVFP4_RULES, NVFP4_SINGLE_RULES, Part, RECORDS, codec, hadamard};

use super::oracle::Random;

/// Every record, named format and NVFP4 rule, with a row length it takes.
pub fn all() -> Vec<(Arc<dyn Codec>, usize)> {
    let mut names: Vec<String> = RECORDS.iter().map(|record| record.name.into()).collect();
    names.extend(FORMATS.iter().map(|named| named.name.into()));
    names.extend(
        NVFP4_SINGLE_RULES
            .iter()
            .map(|rule| format!("e2m1/b16:e4m3({})", rule.name)),
    );
    names.extend(
        NVFP4_RULES
            .iter()
            .map(|rule| format!("e2m1/b16:e4m3({})/t:f32", rule.name)),
    );
    let codecs = names.iter().map(|name| codec(name).unwrap());
    codecs
        .map(|codec| (codec.clone(), if codec.check(512).is_ok() { 512 } else { 128 }))
        .collect()
}

/// Whether rows share a scale, those of up to so many rows.
fn spans_rows(codec: &dyn Codec, most: usize) -> bool {
    let spans = |group| match group {
        Group::Tile { rows, .. } => rows > 1,
        Group::Token => false,
        Group::Column | Group::Tensor => most == usize::MAX,
    };
    codec.format().is_some_and(|format| {
        let inner = format.scaling.map(|scaling| scaling.group);
        inner.into_iter().chain(format.global).any(spans)
    })
}

#[test]
fn bytes_per_row_are_the_bytes_of_a_page() {
    for (codec, cols) in all() {
        let encoded = codec.encode(&Random(3).values(128 * cols), cols);
        // What all rows share counts for none.
        let shared = |part: &&Part| match part.name {
            "global" => part.shape == [1],
            "scale" => part.shape[0] == 1 && !spans_rows(&*codec, 128),
            _ => false,
        };
        let parts = encoded.parts.iter().filter(|part| !shared(part));
        let bytes: usize = parts.map(|part| part.bytes.len()).sum();
        assert_eq!(codec.bytes_per_row(cols) * 128.0, bytes as f64, "{}", codec.name());
    }
    let of = |name: &str, cols| codec(name).unwrap().bytes_per_row(cols);
    assert_eq!(of("v4_fp8", 512), 585.0, "584 and its share of the padding of the page");
    assert_eq!(of("nvfp4", 512), 288.0);
    assert_eq!(of("nvfp4_token", 512), 292.0);
    assert_eq!(of("int8_token", 512), 516.0);
    assert_eq!(of("mxfp4", 128), 68.0);
    assert_eq!(
        of("kivi2_g32", 512),
        128.0 + 16.0 * 4.0,
        "codes, and a scale and a minimum of f16 per 32"
    );
    assert_eq!(of("kivi2_key_g32", 512), 128.0 + 512.0 * 4.0 / 32.0);
    assert_eq!(
        of("awq4_g128", 512),
        256.0 + 4.0 * 3.0,
        "codes, and a scale of f16 and a byte per 128"
    );
    assert_eq!(of("gptq3_g128", 512), 192.0 + 4.0 * 3.0);
    assert_eq!(of("nf4", 512), 256.0 + 8.0 * 4.0);
}

#[test]
fn shapes_and_types_tell_the_bytes() {
    for (codec, cols) in all() {
        for part in codec.encode(&Random(4).values(3 * cols), cols).parts {
            let elements: usize = part.shape.iter().product();
            assert_eq!(
                elements * part.dtype.bitsize() / 8,
                part.bytes.len(),
                "{} {}",
                codec.name(),
                part.name
            );
        }
    }
}

#[test]
fn nothing_is_fine() {
    for (codec, cols) in all() {
        let encoded = codec.encode(&[], cols);
        assert!(
            encoded.parts.iter().all(|part| part.bytes.is_empty()),
            "{}",
            codec.name()
        );
        codec.round(&mut [], cols);
    }
}

#[test]
fn zeros_stay_zeros() {
    for (codec, cols) in all() {
        let mut x = vec![0.0; 2 * cols];
        // A rotation multiplies zeros by signs.
        let rotates = codec.format().is_some_and(|format| format.rotation.is_some());
        // The code of 0 is another in a table, and where a range always holds 0.
        let elsewhere = ["nf4", "gptq4_g128", "gptq3_g128"].contains(&codec.name().as_str());
        assert!(
            rotates || elsewhere || codec.encode(&x, cols).part("data").iter().all(|byte| *byte == 0),
            "codes of {}",
            codec.name()
        );
        codec.round(&mut x, cols);
        assert!(
            x.iter().all(|x| x.to_bits() == 0 || (rotates && *x == 0.0)),
            "{}",
            codec.name()
        );
    }
}

#[test]
fn a_nan_never_vanishes() {
    for (codec, cols) in all() {
        for at in [0, 1, 77, cols - 1, cols + 5] {
            for nan in [f32::NAN, -f32::NAN, f32::from_bits(0x7f80_0001)] {
                let mut x = Random(5).values(2 * cols);
                x[at] = nan;
                codec.round(&mut x, cols);
                assert!(x[at].is_nan(), "{} at {at}", codec.name());
            }
        }
    }
}

/// An infinity under a scale makes NaN; alone it stays, or saturates where the documentation says so.
#[test]
fn an_infinity_does_not_look_like_a_number() {
    for (codec, cols) in all() {
        let mut x = Random(6).values(2 * cols);
        x[3] = f32::NEG_INFINITY;
        codec.round(&mut x, cols);
        match codec.name().as_str() {
            "e4m3" => assert_eq!(x[3], -448.0),
            "e5m2" => assert_eq!(x[3], -57344.0),
            "bf16" | "f16" | "v4_bf16" => assert_eq!(x[3], f32::NEG_INFINITY),
            "fp8_column" | "kivi2_key_g32" | "kivi4_key_g32" => assert!(x[3].is_nan() && x[cols + 3].is_nan()),
            name => assert!(x[3].is_nan() && x[2].is_nan(), "{name}"),
        }
    }
}

/// Only what shares a scale with a NaN is lost.
#[test]
fn a_nan_stays_in_its_group() {
    let reach = |name: &str, cols: usize| {
        let mut x: Vec<f32> = Random(7).values(3 * cols);
        x[cols + 40] = f32::NAN;
        codec(name).unwrap().round(&mut x, cols);
        let nans: Vec<usize> = (0..x.len()).filter(|i| x[*i].is_nan()).collect();
        (nans[0], nans.len())
    };
    assert_eq!(reach("bf16", 512), (552, 1));
    assert_eq!(reach("mxfp4", 512), (544, 32));
    assert_eq!(reach("fp8_b128_f32", 512), (512, 128));
    assert_eq!(reach("nvfp4_single", 512), (544, 16));
    assert_eq!(reach("int8_token", 512), (512, 512));
    assert_eq!(reach("nvfp4_token", 512), (512, 512));
    assert_eq!(reach("nvfp4", 512), (0, 1536));
    assert_eq!(reach("fp8_column", 512), (40, 3));
    assert_eq!(reach("e4m3/b2x64:f32", 512), (0, 128));
    assert_eq!(reach("mxfp8", 72), (104, 32));
    assert_eq!(reach("e4m3/b64:f32", 48), (48, 48));
    assert_eq!(reach("v4_fp8", 512), (512, 64));
    assert_eq!(reach("kivi4_g32", 512), (544, 32));
    assert_eq!(reach("kivi2_key_g32", 512), (40, 3));
    assert_eq!(reach("awq4_g128", 512), (512, 128));
    assert_eq!(reach("e2m1/b32:bf16", 512), (544, 32));
    assert_eq!(reach("uint3/b32:f16(hqq)", 512), (544, 32));
}

/// Rows are rounded one by one, except where all share a scale.
#[test]
fn rows_do_not_see_each_other() {
    for (codec, cols) in all() {
        if spans_rows(&*codec, usize::MAX) {
            continue;
        }
        let x = Random(8).values(130 * cols);
        let mut together = x.clone();
        codec.round(&mut together, cols);
        for row in [0, 63, 64, 129] {
            let mut alone = x[row * cols..(row + 1) * cols].to_vec();
            codec.round(&mut alone, cols);
            assert_eq!(
                alone,
                together[row * cols..(row + 1) * cols],
                "{} row {row}",
                codec.name()
            );
        }
    }
}

#[test]
fn hadamard_is_sylvesters_matrix() {
    let n = 128;
    let mut rows = vec![0.0; n * n];
    (0..n).for_each(|i| rows[i * n + i] = 1.0);
    hadamard(&mut rows, n).unwrap();
    for (index, got) in rows.iter().enumerate() {
        let negative = ((index / n) & (index % n)).count_ones() % 2 == 1;
        let want = 1.0 / (n as f32).sqrt();
        assert_eq!(*got, if negative { -want } else { want });
    }
    let x = Random(9).values(4 * n);
    let mut twice = x.clone();
    hadamard(&mut twice, n).unwrap();
    hadamard(&mut twice, n).unwrap();
    // Two transforms of 7 additions and a product each, in f32: relative to the row's norm, 2·8·2^-24.
    for (row, again) in x.chunks(n).zip(twice.chunks(n)) {
        let norm = row.iter().map(|x| f64::from(*x).powi(2)).sum::<f64>().sqrt();
        let error = row
            .iter()
            .zip(again)
            .map(|(a, b)| (f64::from(*a) - f64::from(*b)).powi(2))
            .sum::<f64>()
            .sqrt();
        assert!(error <= 16.0 * norm * 2f64.powi(-24), "{error} of {norm}");
    }
    assert_eq!(
        hadamard(&mut [0.0; 96], 96).unwrap_err(),
        "a Hadamard rotation needs a power of two of channels, not 96"
    );
    assert_eq!(
        hadamard(&mut [0.0; 100], 64).unwrap_err(),
        "100 elements are not whole rows of 64"
    );
}
