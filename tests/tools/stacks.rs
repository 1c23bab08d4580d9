//! Tensors of three and more dimensions, whose matrices are quantized one by one.

use serde_json::json;

use super::{Array, Bench, f32s, raw, values};

const SHAPE: [usize; 3] = [3, 130, 160];

/// Matrices of very different sizes, so that no scale of one serves another.
fn stack() -> Vec<f32> {
    let (size, mut values) = (SHAPE[1] * SHAPE[2], values(SHAPE.iter().product()));
    for (expert, matrix) in values.chunks_mut(size).enumerate() {
        matrix.iter_mut().for_each(|x| *x *= 37.0f32.powi(expert as i32));
    }
    values
}

fn matrix(values: &[f32], expert: usize) -> Array {
    let size = SHAPE[1] * SHAPE[2];
    f32s(&SHAPE[1..], &values[expert * size..][..size])
}

/// Every part of the stack is that of its matrices, one after another, and so is what comes back.
#[test]
fn a_stack_is_its_matrices() {
    let bench = Bench::new();
    let values = stack();
    bench.write("in.safetensors", &[("w", f32s(&SHAPE, &values))]);
    for expert in 0..3 {
        bench.write(&format!("in{expert}.safetensors"), &[("w", matrix(&values, expert))]);
    }
    for flags in [
        "nvfp4",
        "nvfp4 --layout blocked_128x4",
        "mxfp8 --layout blocked_8x4",
        "mxfp4 --layout mn_major_ue8m0x4",
        "e4m3/b32:f32 --layout mn_major_f32",
        "fp8_b128x128",
        "fp8_tensor",
        "fp8_column",
        "nvfp4_2d",
        "nvfp4_token",
    ] {
        let quantize = |name: &str| {
            bench.works(&format!(
                "quantize in{name}.safetensors --format {flags} -o q{name}.safetensors"
            ));
            bench.works(&format!("dequantize q{name}.safetensors -o back{name}.safetensors"));
        };
        ["", "0", "1", "2"].into_iter().for_each(quantize);
        for (file, tensors) in [("q", &["w.data", "w.scale", "w.global"][..]), ("back", &["w"])] {
            let whole = bench.open(&format!("{file}.safetensors"));
            for name in tensors {
                let mut bytes = Vec::new();
                for expert in 0..3 {
                    let one = bench.open(&format!("{file}{expert}.safetensors"));
                    bytes.extend(one.get(name).map_or(Vec::new(), |tensor| tensor.bytes.to_vec()));
                }
                let found = whole.get(name).map_or(&[][..], |tensor| tensor.bytes);
                assert!(found == bytes, "{flags}: {name}");
            }
        }
        let stats = |name: &str| {
            bench.json(&format!(
                "inspect q{name}.safetensors --source in{name}.safetensors --json"
            ))[0]
                .clone()
        };
        let (whole, ones) = (stats(""), ["0", "1", "2"].map(stats));
        for key in ["elements", "blocks", "saturated", "zeros", "zero_blocks", "underflow"] {
            let sum = ones.iter().map(|one| one[key].as_u64().unwrap()).sum::<u64>();
            assert_eq!(whole[key], sum, "{flags}: {key}");
        }
        // The worst block is that of the worst matrix.
        let worst = |record: &serde_json::Value| record["worst"][0]["sqnr"].as_f64().unwrap();
        let least = ones.iter().map(worst).fold(f64::INFINITY, f64::min);
        assert_eq!(worst(&whole), least, "{flags}");
        let place = whole["worst"][0]["matrix"][0].as_u64().unwrap() as usize;
        assert_eq!(worst(&ones[place]), least, "{flags}");
    }
}

/// ⌈96 / 128⌉ · ⌈5 / 4⌉ tiles of 512 bytes for each of eight matrices.
#[test]
fn sizes_of_layouts_and_tiles() {
    let bench = Bench::new();
    bench.write("in.safetensors", &[("w", f32s(&[8, 96, 160], &values(8 * 96 * 160)))]);
    bench.works("quantize in.safetensors --format mxfp8 --layout blocked_128x4 -o q.safetensors");
    assert_eq!(bench.open("q.safetensors").get("w.scale").unwrap().shape, [8, 1024]);
    bench.works("compare in.safetensors q.safetensors --parity --rule rceil");
    let records = bench.json("compare in.safetensors q.safetensors --parity --rule rceil --json");
    assert_eq!((&records[5]["name"], records.len()), (&json!("w[5]"), 9));
    bench.works("quantize in.safetensors --format fp8_b128x128 -o q.safetensors");
    assert_eq!(bench.open("q.safetensors").get("w.scale").unwrap().shape, [8, 1, 2]);
    // A buffer for all rows together is another order.
    let bytes = bench.open("q.safetensors").get("w.data").unwrap().bytes.to_vec();
    let data = raw(safetensors::Dtype::F8_E4M3, &[8, 96, 160], &bytes);
    let scale = raw(safetensors::Dtype::U8, &[6144], &[127; 6144]);
    bench.write("flat.safetensors", &[("w.data", data), ("w.scale", scale)]);
    let command = "dequantize flat.safetensors --format mxfp8 --layout blocked_128x4 -o back.safetensors";
    bench.fails(2, command, &["'w.scale'", "6144 bytes, expected 8192"]);
}

/// Four dimensions are matrices too; one is a row.
#[test]
fn more_and_fewer_dimensions() {
    let bench = Bench::new();
    let four = f32s(&[2, 3, 4, 32], &values(768));
    bench.write("in.safetensors", &[("four", four), ("one", f32s(&[64], &values(64)))]);
    bench.works("quantize in.safetensors --format nvfp4 -o q.safetensors");
    let file = bench.open("q.safetensors");
    for (name, shape) in [
        ("four.data", &[2, 3, 4, 16][..]),
        ("four.scale", &[2, 3, 4, 2]),
        ("four.global", &[2, 3]),
        ("one.data", &[32]),
        ("one.scale", &[4]),
        ("one.global", &[1]),
    ] {
        assert_eq!(file.get(name).unwrap().shape, shape, "{name}");
    }
    bench.works("dequantize q.safetensors -o back.safetensors");
    assert_eq!(bench.open("back.safetensors").get("four").unwrap().shape, [2, 3, 4, 32]);
    bench.works("compare in.safetensors q.safetensors --parity --rule te");
}

/// What is lost in one matrix is lost there only.
#[test]
fn a_nan_costs_one_matrix() {
    let bench = Bench::new();
    let mut x = values(3 * 4 * 32);
    x[130] = f32::NAN;
    bench.write("in.safetensors", &[("w", f32s(&[3, 4, 32], &x))]);
    let command = "quantize in.safetensors --format nvfp4 -o q.safetensors";
    bench.fails(
        2,
        command,
        &["'w[1]': 1 NaN, the first at [1, 0, 2]", "all 128 elements NaN"],
    );
    let done = bench.works(&format!("{command} --allow-nonfinite"));
    assert!(done.err.contains("128 of 384 elements come back"), "{}", done.err);
}
