//! Files of other programs, made here byte by byte and decoded by loops of their own.

use safetensors::Dtype;

use super::{Array, Bench, bf16s, f32s, raw};

const E2M1: [f32; 8] = [0.0, 0.5, 1.0, 1.5, 2.0, 3.0, 4.0, 6.0];

fn e2m1(code: u8) -> f32 {
    let sign = if code & 8 == 0 { 1.0 } else { -1.0 };
    sign * E2M1[usize::from(code & 7)]
}

fn e4m3(code: u8) -> f32 {
    let sign = if code & 0x80 == 0 { 1.0 } else { -1.0 };
    let (exponent, mantissa) = (i32::from(code >> 3 & 15), f32::from(code & 7) / 8.0);
    sign * match exponent {
        0 => mantissa * 2f32.powi(-6),
        _ => (1.0 + mantissa) * 2f32.powi(exponent - 7),
    }
}

fn e8m0(code: u8) -> f32 {
    2f32.powi(i32::from(code) - 127)
}

/// Bytes without order, none of them a NaN of E4M3.
fn bytes(len: usize) -> Vec<u8> {
    (0..len as u32)
        .map(|i| (i.wrapping_mul(2_654_435_761) >> 24) as u8)
        .map(|byte| if byte & 0x7f == 0x7f { 5 } else { byte })
        .collect()
}

/// Scales of E8M0 around one.
fn powers(len: usize) -> Vec<u8> {
    bytes(len).into_iter().map(|byte| 120 + byte % 14).collect()
}

/// Positive scales of E4M3.
fn positive(len: usize) -> Vec<u8> {
    bytes(len).into_iter().map(|byte| byte % 0x7e + 1).collect()
}

/// Numbers that bf16 and f16 hold.
fn floats(len: usize) -> Vec<f32> {
    (0..len)
        .map(|i| (1.0 + (i % 7) as f32 / 8.0) * 2f32.powi(i as i32 % 5 - 2))
        .collect()
}

fn f16s(shape: &[usize], values: &[f32]) -> Array {
    let bytes: Vec<u8> = values
        .iter()
        .flat_map(|x| half::f16::from_f32(*x).to_le_bytes())
        .collect();
    raw(Dtype::F16, shape, &bytes)
}

/// The element at flat index `i` of packed 4-bit codes, the first of a byte in the low half.
fn nibble(codes: &[u8], i: usize) -> u8 {
    codes[i / 2] >> (i % 2 * 4) & 15
}

/// Decoded without a word about the format, the file must hold these values under this name; what is beside stays.
#[track_caller]
fn decodes(tensors: &[(&str, Array)], name: &str, shape: &[usize], want: impl Fn(usize) -> f32) {
    let bench = Bench::new();
    let mut all = tensors.to_vec();
    all.push(("bias", bf16s(&[2], &[1.0, -2.0])));
    bench.write("q.safetensors", &all);
    let done = bench.works("dequantize q.safetensors -o back.safetensors");
    assert!(done.out.starts_with("decoded 1 tensor from"), "{}", done.out);
    let back = bench.open("back.safetensors");
    let tensor = back.get(name).unwrap_or_else(|| panic!("no {name}"));
    assert_eq!(tensor.shape, shape);
    for (i, got) in tensor.to_f32().unwrap().into_iter().enumerate() {
        assert_eq!(got, want(i), "{name} at {i}");
    }
    let bias = back.get("bias").unwrap();
    assert_eq!((bias.dtype, bias.to_f32().unwrap()), (Dtype::BF16, vec![1.0, -2.0]));
    assert_eq!(back.tensors().len(), 2);
    // The bias is not quantized for show.
    let records = bench.json("inspect q.safetensors --json");
    assert_eq!((records.len(), &records[0]["name"]), (1, &name.into()));
}

#[test]
fn gpt_oss() {
    let (blocks, scales) = (bytes(2 * 3 * 2 * 16), powers(2 * 3 * 2));
    let tensors = [
        (
            "mlp.experts.gate_up_proj_blocks",
            raw(Dtype::U8, &[2, 3, 2, 16], &blocks),
        ),
        ("mlp.experts.gate_up_proj_scales", raw(Dtype::U8, &[2, 3, 2], &scales)),
    ];
    let value = |i: usize| e2m1(nibble(&blocks, i)) * e8m0(scales[i / 32]);
    decodes(&tensors, "mlp.experts.gate_up_proj", &[2, 3, 64], value);
    let bench = Bench::new();
    let mut all = tensors.to_vec();
    all.push(("mlp.experts.gate_up_proj_bias", bf16s(&[2, 32], &[1.0; 64])));
    bench.write("q.safetensors", &all);
    let records = bench.json("inspect q.safetensors --format mxfp4 --json");
    assert_eq!(records.len(), 1, "the bias is no codes");
}

#[test]
fn compressed_tensors_packed() {
    let codes = bytes(4 * 32);
    let (scales, global) = (positive(4 * 4), 8.0f32);
    let tensors = [
        ("w.weight_packed", raw(Dtype::U8, &[4, 32], &codes)),
        ("w.weight_scale", raw(Dtype::F8_E4M3, &[4, 4], &scales)),
        ("w.weight_global_scale", f32s(&[1], &[global])),
    ];
    // Values were multiplied by the global scale.
    let value = |i: usize| e2m1(nibble(&codes, i)) * e4m3(scales[i / 16]) / global;
    decodes(&tensors, "w.weight", &[4, 64], value);
    let powers = powers(4 * 2);
    let tensors = [
        ("w.weight_packed", raw(Dtype::U8, &[4, 32], &codes)),
        ("w.weight_scale", raw(Dtype::U8, &[4, 2], &powers)),
    ];
    let value = |i: usize| e2m1(nibble(&codes, i)) * e8m0(powers[i / 32]);
    decodes(&tensors, "w.weight", &[4, 64], value);
}

#[test]
fn modelopt_with_stacked_experts() {
    let (codes, scales, globals) = (bytes(2 * 4 * 16), positive(2 * 4 * 2), [0.5f32, 4.0]);
    let tensors = [
        ("w13_weight", raw(Dtype::U8, &[2, 4, 16], &codes)),
        ("w13_weight_scale", raw(Dtype::F8_E4M3, &[2, 4, 2], &scales)),
        ("w13_weight_scale_2", f32s(&[2], &globals)),
    ];
    let value = |i: usize| e2m1(nibble(&codes, i)) * e4m3(scales[i / 16]) * globals[i / 128];
    decodes(&tensors, "w13_weight", &[2, 4, 32], value);
}

#[test]
fn scales_of_output_channels_in_every_type() {
    let (codes, scales) = (bytes(2 * 3 * 40), floats(6));
    for (shape, scales_shape) in [(&[6, 40][..], &[6, 1][..]), (&[2, 3, 40], &[2, 3, 1])] {
        for make in [bf16s, f16s, f32s] {
            let tensors = [
                ("w.weight", raw(Dtype::F8_E4M3, shape, &codes)),
                ("w.weight_scale", make(scales_shape, &scales)),
            ];
            decodes(&tensors, "w.weight", shape, |i| e4m3(codes[i]) * scales[i / 40]);
        }
    }
    let tensors = [
        ("w.weight", raw(Dtype::I8, &[6, 40], &codes)),
        ("w.weight_scale", bf16s(&[6, 1], &scales)),
    ];
    decodes(&tensors, "w.weight", &[6, 40], |i| {
        f32::from(codes[i] as i8) * scales[i / 40]
    });
    let tensors = [
        ("w.weight", raw(Dtype::F8_E4M3, &[2, 3, 40], &codes)),
        ("w.weight_scale", f32s(&[2], &scales[..2])),
    ];
    decodes(&tensors, "w.weight", &[2, 3, 40], |i| e4m3(codes[i]) * scales[i / 120]);
}

/// Tiles of 128 × 128 end where a matrix ends.
#[test]
fn deepseek_tiles_of_stacked_experts() {
    let (experts, rows, cols) = (3, 130, 160);
    let (codes, scales) = (bytes(experts * rows * cols), floats(experts * 2 * 2));
    let tile = |i: usize| {
        let (expert, row, col) = (i / (rows * cols), i / cols % rows, i % cols);
        expert * 4 + row / 128 * 2 + col / 128
    };
    let data = raw(Dtype::F8_E4M3, &[experts, rows, cols], &codes);
    for make in [f32s, bf16s] {
        let tensors = [("w", data.clone()), ("w_scale_inv", make(&[experts, 2, 2], &scales))];
        decodes(&tensors, "w", &[experts, rows, cols], |i| {
            e4m3(codes[i]) * scales[tile(i)]
        });
    }
    let powers = powers(experts * 2 * 2);
    let tensors = [
        ("experts.weight", data.clone()),
        ("experts.scale", raw(Dtype::F8_E8M0, &[experts, 2, 2], &powers)),
    ];
    decodes(&tensors, "experts.weight", &[experts, rows, cols], |i| {
        e4m3(codes[i]) * e8m0(powers[tile(i)])
    });
    // Tiles of all rows together would be four down.
    let bench = Bench::new();
    bench.write(
        "q.safetensors",
        &[("w", data), ("w_scale_inv", f32s(&[4, 2], &floats(8)))],
    );
    let command = "dequantize q.safetensors -o back.safetensors";
    bench.fails(2, command, &["'w'", "F8_E4M3 [3, 130, 160]", "F32 [4, 2]", "--format"]);
    let words = &["'w_scale_inv'", "[4, 2], expected [3, 2, 2]"];
    bench.fails(2, &format!("{command} --format fp8_b128x128"), words);
}

#[test]
fn deepseek_v4_names() {
    let (codes, scales) = (bytes(4 * 32), powers(4 * 2));
    let tensors = [
        ("ffn.w1.weight", raw(Dtype::I8, &[4, 32], &codes)),
        ("ffn.w1.scale", raw(Dtype::F8_E8M0, &[4, 2], &scales)),
    ];
    let value = |i: usize| e2m1(nibble(&codes, i)) * e8m0(scales[i / 32]);
    decodes(&tensors, "ffn.w1.weight", &[4, 64], value);
    // A norm with a weight and a scale is nothing quantized.
    let bench = Bench::new();
    bench.write(
        "in.safetensors",
        &[
            ("n.weight", f32s(&[32], &[1.0; 32])),
            ("n.scale", f32s(&[32], &[1.0; 32])),
        ],
    );
    bench.fails(
        4,
        "dequantize in.safetensors -o back.safetensors",
        &["no quantized tensor"],
    );
}

/// Codes in 32-bit words are named as what they are, and so is a selection that leaves nothing.
#[test]
fn what_is_not_read_is_said() {
    let bench = Bench::new();
    let words = raw(Dtype::I32, &[4, 8], &bytes(128));
    bench.write(
        "in.safetensors",
        &[
            ("l.qweight", words.clone()),
            ("l.qzeros", raw(Dtype::I32, &[4, 1], &bytes(16))),
            ("l.scales", f32s(&[4, 64], &[1.0; 256])),
        ],
    );
    let said = ["'l.qweight'", "packed into words of I32", "AWQ", "not read"];
    bench.fails(4, "dequantize in.safetensors -o back.safetensors", &said);
    bench.write(
        "in.safetensors",
        &[
            ("l.weight_packed", words),
            ("l.weight_scale", bf16s(&[4, 1], &floats(4))),
        ],
    );
    bench.fails(2, "dequantize in.safetensors -o back.safetensors", &said[1..]);
    bench.write(
        "in.safetensors",
        &[("w", f32s(&[2, 64], &floats(128))), ("b", f32s(&[4], &floats(4)))],
    );
    bench.works("quantize in.safetensors --format nvfp4 --only w -o q.safetensors");
    let said = ["select no quantized tensor", "though there are some"];
    bench.fails(4, "dequantize q.safetensors --only b -o back.safetensors", &said);
}

/// What nobody knows is not guessed.
#[test]
fn what_is_not_understood_is_refused() {
    let bench = Bench::new();
    let codes = raw(Dtype::I8, &[4, 64], &bytes(256));
    let zero_points = raw(Dtype::I8, &[4, 1], &[1; 4]);
    let scale = bf16s(&[4, 1], &floats(4));
    bench.write(
        "q.safetensors",
        &[
            ("w", codes.clone()),
            ("w_scale", scale.clone()),
            ("w_zero_point", zero_points),
        ],
    );
    let command = "dequantize q.safetensors -o back.safetensors";
    bench.fails(
        2,
        &format!("{command} --format int8_token"),
        &["'w_zero_point'", "no zero points"],
    );
    bench.write(
        "q.safetensors",
        &[("w", codes), ("w_scale", bf16s(&[4, 3], &floats(12)))],
    );
    bench.fails(2, command, &["'w'", "I8 [4, 64]", "BF16 [4, 3]", "--format int8_token"]);
    // Torchao's scales may be swizzled: nothing in the file says so.
    let codes = raw(Dtype::U8, &[4, 32], &bytes(128));
    let scale = raw(Dtype::F8_E4M3, &[4, 4], &positive(16));
    bench.write("q.safetensors", &[("w.qdata", codes), ("w.scale", scale)]);
    bench.fails(2, command, &["'w'", "--format"]);
}

#[test]
fn docs_quantized_files_md_is_what_the_table_says() {
    let path = concat!(env!("CARGO_MANIFEST_DIR"), "/docs/quantized-files.md");
    let want = ulplab::packed::markdown();
    if std::env::var_os("ULPLAB_BLESS").is_some() {
        std::fs::write(path, &want).unwrap();
    }
    let found = std::fs::read_to_string(path).unwrap_or_default();
    assert!(
        found == want,
        "docs/quantized-files.md is stale; write it again with ULPLAB_BLESS=1 cargo test --test cli tools::others"
    );
}
