//! `compare --parity` of whole files: what names and metadata say of scales, copies, and missing tensors.

use safetensors::Dtype;
use ulplab::formats::{NVFP4_RULES, codec};

use super::{Array, Bench, f32s, raw, values};

const PARITY: &str = "compare want.safetensors got.safetensors --parity";

/// The source `l.weight`, and what is made of it under these endings of codes, scales and global scale.
fn named(format: &str, endings: [&str; 3], global: impl Fn(f32) -> f32) -> Bench {
    let bench = Bench::new();
    let x = values(128 * 64);
    bench.write("want.safetensors", &[("l.weight", f32s(&[128, 64], &x))]);
    let encoded = codec(format).unwrap().encode(&x, 64);
    let stored = encoded.part("global").as_chunks().0[0];
    let global = global(f32::from_le_bytes(stored));
    let parts = [
        raw(Dtype::U8, &[128, 32], encoded.part("data")),
        raw(Dtype::F8_E4M3, &[128, 4], encoded.part("scale")),
        f32s(&[1], &[global]),
    ];
    let names = endings.map(|ending| format!("l.weight{ending}"));
    let tensors: Vec<(&str, Array)> = names.iter().map(String::as_str).zip(parts).collect();
    bench.write("got.safetensors", &tensors);
    bench
}

const MODELOPT: [&str; 3] = ["", "_scale", "_scale_2"];
const COMPRESSED: [&str; 3] = ["_packed", "_scale", "_global_scale"];
const TORCHAO: [&str; 3] = [".qdata", ".scale", ".per_tensor_scale"];
const ULPLAB: [&str; 3] = [".data", ".scale", ".global"];

/// The SQNR in dB of what `dequantize` reads, beside the source.
fn sqnr(bench: &Bench, flags: &str) -> f64 {
    bench.works(&format!("dequantize got.safetensors -o read.safetensors {flags}"));
    let (want, read) = (bench.open("want.safetensors"), bench.open("read.safetensors"));
    let of = |file: &ulplab::tensorfile::TensorFile| file.tensors().next().unwrap().to_f64().unwrap();
    let (want, read) = (of(&want), of(&read));
    let power: f64 = want.iter().map(|x| x * x).sum();
    let noise: f64 = want.iter().zip(&read).map(|(x, y)| (x - y) * (x - y)).sum();
    10.0 * (power / noise).log10()
}

/// What is explained is what `dequantize` reads: elements of E2M1 are at most a quarter of themselves off between 1 and 6,
/// which is 12 dB, and one that means another scale is off by the whole of it.
#[test]
fn explained_is_read_as_the_source() {
    for rule in NVFP4_RULES.iter().map(|rule| rule.name) {
        for endings in [MODELOPT, COMPRESSED, TORCHAO] {
            let bench = named(&format!("e2m1/b16:e4m3({rule})/t:f32"), endings, |global| global);
            let flags = if endings == TORCHAO { "--format nvfp4" } else { "" };
            let done = bench.run(&format!("{PARITY} {flags}"));
            let near = sqnr(&bench, flags) > 12.0;
            assert_eq!(done.code == 0, near, "{rule} as {endings:?}: {}", done.out);
            assert_eq!(
                done.code,
                if near { 0 } else { 100 },
                "{rule}: {}{}",
                done.out,
                done.err
            );
        }
    }
}

#[test]
fn the_reciprocal_of_a_global_scale() {
    let modelopt = "e2m1/b16:e4m3(modelopt)/t:f32";
    for (endings, format) in [(MODELOPT, modelopt), (COMPRESSED, "e2m1/b16:e4m3(vllm)/t:f32")] {
        let bench = named(format, endings, |global| 1.0 / global);
        let done = bench.run(PARITY);
        let (found, name) = (
            "global-scale convention",
            format!("the name 'l.weight{}' says", endings[2]),
        );
        assert!(done.code == 100 && done.out.contains(found), "{}", done.out);
        assert!(
            done.out.contains("stored is what") && done.out.contains(&name),
            "{}",
            done.out
        );
        assert!(sqnr(&bench, "") < 3.0);
    }
    // What the file itself says counts as well.
    let bench = Bench::new();
    bench.write("want.safetensors", &[("w", f32s(&[128, 64], &values(128 * 64)))]);
    bench.works("quantize want.safetensors --format nvfp4 --rule modelopt -o got.safetensors");
    bench.works(PARITY);
    let (bytes, stored) = {
        let file = bench.open("got.safetensors");
        let stored: [u8; 4] = file.get("w.global").unwrap().bytes.try_into().unwrap();
        (std::fs::read(bench.0.path().join("got.safetensors")).unwrap(), stored)
    };
    let other = (1.0 / f32::from_le_bytes(stored)).to_le_bytes();
    let mut bytes = bytes;
    let at: Vec<usize> = (0..bytes.len() - 3).filter(|at| bytes[*at..][..4] == stored).collect();
    assert_eq!(at.len(), 1);
    bytes[at[0]..][..4].copy_from_slice(&other);
    std::fs::write(bench.0.path().join("got.safetensors"), bytes).unwrap();
    let done = bench.run(PARITY);
    assert!(done.code == 100, "{}", done.out);
    assert!(done.out.contains("the file's metadata says"), "{}", done.out);
}

/// A quotient that was rounded, and one of a rounded one, are of the largest magnitude.
#[test]
fn a_global_scale_an_ulp_off() {
    let off = |by: i32| move |global: f32| f32::from_bits(global.to_bits().checked_add_signed(by).unwrap());
    let words = "calibrated, or wrong";
    let vllm = "e2m1/b16:e4m3(vllm)/t:f32";
    let near = named(vllm, COMPRESSED, off(1)).run(PARITY);
    assert!(!near.out.contains(words), "{}", near.out);
    let far = named(vllm, COMPRESSED, off(9)).run(PARITY);
    assert!(far.out.contains("1 global scale is not of"), "{}", far.out);
    // Nothing says what a global scale of dumps is.
    let any = named(vllm, ULPLAB, |global| global).run(&format!("{PARITY} --format nvfp4"));
    assert_eq!(any.code, 0, "{}", any.out);
}

/// FP8 of rows with scales of type bf16; codes are those of the scales that are stored.
fn narrow(scale: impl Fn(f32) -> f32, divide: impl Fn(f32, f32) -> f32) -> Bench {
    let bench = Bench::new();
    let x = values(64 * 128);
    bench.write("want.safetensors", &[("w", f32s(&[64, 128], &x))]);
    let (mut codes, mut scales) = (Vec::new(), Vec::new());
    for row in x.chunks(128) {
        let exact = row.iter().fold(0.0f32, |max, x| max.max(x.abs())) / 448.0;
        let stored = half::bf16::from_f32(scale(exact));
        let by = divide(exact, stored.to_f32());
        codes.extend(row.iter().map(|x| ulplab::formats::E4M3.encode(x / by) as u8));
        scales.extend(stored.to_le_bytes());
    }
    let tensors = [
        ("w", raw(Dtype::F8_E4M3, &[64, 128], &codes)),
        ("w_scale", raw(Dtype::BF16, &[64, 1], &scales)),
    ];
    bench.write("got.safetensors", &tensors);
    bench
}

#[test]
fn scales_in_bf16() {
    let right = narrow(|scale| scale, |_, stored| stored);
    let done = right.works(PARITY);
    assert!(done.out.contains("with scales rounded to bf16"), "{}", done.out);
    // Scales that are not of the block, and codes that are not of the scales.
    for wrong in [
        narrow(|scale| scale * 1.03, |_, stored| stored),
        narrow(|scale| scale, |exact, _| exact),
        narrow(|scale| 1.0 / scale, |exact, _| exact),
    ] {
        let done = wrong.run(PARITY);
        assert_eq!(done.code, 100, "{}", done.out);
        assert!(!done.out.contains("another block"), "{}", done.out);
    }
}

/// Two weights and a bias; of the first two there are codes in got.safetensors.
fn copies(change: impl Fn(&mut Vec<(&str, Array)>)) -> Bench {
    let bench = Bench::new();
    let matrix = |by: f32| {
        let values: Vec<f32> = values(32 * 64).iter().map(|x| x * by).collect();
        f32s(&[32, 64], &values)
    };
    let bias = f32s(&[64], &values(64));
    let want = [
        ("a.weight", matrix(1.0)),
        ("b.weight", matrix(2.0)),
        ("bias", bias.clone()),
    ];
    bench.write("want.safetensors", &want);
    let parts = |name: &'static str, by: f32| {
        let x: Vec<f32> = values(32 * 64).iter().map(|x| x * by).collect();
        let encoded = codec("mxfp8").unwrap().encode(&x, 64);
        let scale = if name == "a" {
            "a.weight_scale"
        } else {
            "b.weight_scale"
        };
        let codes = if name == "a" { "a.weight" } else { "b.weight" };
        [
            (codes, raw(Dtype::F8_E4M3, &[32, 64], encoded.part("data"))),
            (scale, raw(Dtype::F8_E8M0, &[32, 2], encoded.part("scale"))),
        ]
    };
    let mut got: Vec<(&str, Array)> = [parts("a", 1.0), parts("b", 2.0)].concat();
    got.push(("bias", bias));
    change(&mut got);
    bench.write("got.safetensors", &got);
    bench
}

#[test]
fn what_is_not_quantized_is_looked_at() {
    let done = copies(|_| ()).works(PARITY);
    assert!(
        done.out
            .ends_with("PASS: 2 of 2 tensors explained, 1 of 1 others alike\n"),
        "{}",
        done.out
    );

    let zeroed = copies(|got| got.last_mut().unwrap().1 = f32s(&[64], &[0.0; 64]));
    let done = zeroed.run(PARITY);
    assert_eq!(done.code, 100, "{}", done.out);
    let words = "bias  F32  [64]\n  not quantized, and not the source's: 64 of 64 elements differ, first at [0]: want";
    assert!(done.out.contains(words), "{}", done.out);
    assert!(
        done.out
            .ends_with("FAIL: 2 of 2 tensors explained, 0 of 1 others alike\n"),
        "{}",
        done.out
    );
    let records = zeroed.json(&format!("{PARITY} --json"));
    assert_eq!(
        (&records[2]["alike"], &records[2]["differing"]),
        (&false.into(), &64.into())
    );
    assert_eq!(records[3]["verdict"], "fail");
    assert_eq!(zeroed.run(&format!("{PARITY} --skip bias")).code, 0);

    let bf16 = |values: &[f32]| super::bf16s(&[64], values);
    copies(|got| got.last_mut().unwrap().1 = bf16(&values(64))).works(PARITY);
    let truncated: Vec<f32> = values(64)
        .iter()
        .map(|x| f32::from_bits(x.to_bits() & 0xffff_0000))
        .collect();
    let done = copies(|got| got.last_mut().unwrap().1 = bf16(&truncated)).run(PARITY);
    assert!(done.code == 100 && done.out.contains("rounded to BF16"), "{}", done.out);
}

#[test]
fn what_is_in_one_file_only() {
    let missing = copies(|got| got.retain(|(name, _)| !name.starts_with("b.")));
    missing.fails(
        2,
        PARITY,
        &["1 tensor is in one file only", "'b.weight' only in want.safetensors"],
    );
    let allowed = format!("{PARITY} --allow-unmatched");
    let done = missing.works(&allowed);
    assert!(
        done.out.contains("1 of 1 tensors explained") && done.out.contains("1 in one file only"),
        "{}",
        done.out
    );
    missing.works(&format!("{PARITY} --skip b.weight"));
    let more = copies(|got| got.push(("c.bias", f32s(&[1], &[1.0]))));
    more.fails(2, PARITY, &["'c.bias' only in got.safetensors"]);
    // Scales of activations belong to the weights.
    let done = copies(|got| got.push(("a.input_scale", f32s(&[1], &[1.0])))).works(PARITY);
    assert!(
        done.out
            .contains("1 scale of activations not judged, the first is a.input_scale"),
        "{}",
        done.out
    );
}

/// Codes, scales and zero points beside the format's own rule.
#[test]
fn formats_with_zero_points() {
    let bench = Bench::new();
    bench.write("want.safetensors", &[("w", f32s(&[16, 256], &values(16 * 256)))]);
    for format in ["awq4_g128", "gptq4_g128", "kivi4_key_g32"] {
        bench.works(&format!(
            "quantize want.safetensors --format {format} -o got.safetensors"
        ));
        bench.works(PARITY);
    }
    let encoded = codec("awq4_g128").unwrap().encode(&values(16 * 256), 256);
    for part in ["data", "scale", "zero"] {
        let tensors: Vec<(String, Array)> = encoded
            .parts
            .iter()
            .map(|own| {
                let mut bytes = own.bytes.clone();
                bytes[3] ^= u8::from(own.name == part);
                (format!("w.{}", own.name), raw(own.dtype, &own.shape, &bytes))
            })
            .collect();
        let tensors: Vec<(&str, Array)> = tensors
            .iter()
            .map(|(name, array)| (name.as_str(), array.clone()))
            .collect();
        bench.write("got.safetensors", &tensors);
        let done = bench.run(&format!("{PARITY} --format awq4_g128"));
        let words = "bytes differ; causes are not looked for in formats with zero points";
        assert!(
            done.code == 100 && done.out.contains(words),
            "{part}: {}{}",
            done.out,
            done.err
        );
        assert!(done.out.contains(" 1 of "), "{}", done.out);
    }
}
