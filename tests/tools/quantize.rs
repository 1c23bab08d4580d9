//! Tensors to bytes and back.

use safetensors::Dtype;
use ulplab::formats::{FORMATS, codec};
use ulplab::layouts::Layout;

use super::{Array, Bench, bf16s, f32s, raw, values};

fn floats(bench: &Bench, file: &str, name: &str) -> Vec<f32> {
    bench.open(file).get(name).unwrap().to_f32().unwrap()
}

#[track_caller]
fn same(what: &str, got: &[f32], want: &[f32]) {
    assert_eq!(got.len(), want.len(), "{what}");
    for (index, (got, want)) in got.iter().zip(want).enumerate() {
        let equal = got.to_bits() == want.to_bits() || (got.is_nan() && want.is_nan());
        assert!(equal, "{what} at {index}: {got}, not {want}");
    }
}

/// Three dimensions, two and one, of three types.
fn tensors() -> Vec<(&'static str, Array)> {
    vec![
        ("experts.w", bf16s(&[2, 3, 128], &values(768))),
        ("matrix", f32s(&[20, 64], &values(1280))),
        ("norm", f32s(&[256], &values(256))),
    ]
}

#[test]
fn what_comes_back_is_what_the_codec_rounds_to() {
    let bench = Bench::new();
    bench.write("in.safetensors", &tensors());
    let source = bench.open("in.safetensors");
    let extra = [
        "e2m3/b32:e8m0(floor)",
        "e2m1(deepgemm)/b16:e4m3(vllm)/token:f32",
        "int8/column:f32",
        "uint4/column:f16",
        "uint8/t:f32(gptq)",
        "e4m3/b32:bf16(up)",
        "lut(-1,-0.25,0.5,1)/b16:f16",
    ];
    for format in FORMATS.iter().map(|named| named.name).chain(extra) {
        bench.works(&format!("quantize in.safetensors --format {format} -o q.safetensors"));
        bench.works("dequantize q.safetensors -o back.safetensors");
        let back = bench.open("back.safetensors");
        for tensor in source.tensors() {
            let mut want = tensor.to_f32().unwrap();
            let matrix = tensor.shape.iter().rev().take(2).product();
            for matrix in want.chunks_mut(matrix) {
                codec(format).unwrap().round(matrix, *tensor.shape.last().unwrap());
            }
            let got = back.get(tensor.name).unwrap();
            assert_eq!((got.shape, got.dtype), (tensor.shape, Dtype::F32), "{format}");
            same(&format!("{format} {}", tensor.name), &got.to_f32().unwrap(), &want);
        }
        assert_eq!(back.metadata()["made by"], "a test");
        assert!(!back.metadata().contains_key("ulplab"), "nothing in it is quantized");
    }
}

#[test]
fn layouts_come_back() {
    let bench = Bench::new();
    bench.write("in.safetensors", &tensors());
    for (format, layout) in [
        ("nvfp4", "blocked_128x4"),
        ("mxfp8", "blocked_8x4"),
        ("mxfp4", "mn_major_ue8m0x4"),
        ("e4m3/b32:f32", "mn_major_f32"),
        ("e4m3/t:f32", "mn_major_f32"),
    ] {
        bench.works(&format!(
            "quantize in.safetensors --format {format} -o plain.safetensors"
        ));
        bench.works(&format!(
            "quantize in.safetensors --format {format} --layout {layout} -o q.safetensors"
        ));
        let (plain, laid) = (bench.open("plain.safetensors"), bench.open("q.safetensors"));
        if format != "e4m3/t:f32" {
            let scales = plain.get("matrix.scale").unwrap();
            let want = Layout::find(layout)
                .unwrap()
                .place(scales.shape, &[])
                .unwrap()
                .forward(scales.bytes)
                .unwrap();
            assert_eq!(laid.get("matrix.scale").unwrap().bytes, want, "{layout}");
        }
        bench.works("dequantize q.safetensors -o back.safetensors");
        bench.works("dequantize plain.safetensors -o want.safetensors");
        same(
            layout,
            &floats(&bench, "back.safetensors", "matrix"),
            &floats(&bench, "want.safetensors", "matrix"),
        );
    }
}

#[test]
fn names_types_and_shapes_of_the_parts() {
    let bench = Bench::new();
    let mut all = tensors();
    all.push(("ids", raw(Dtype::I64, &[3], &[0; 24])));
    all.push(("empty", f32s(&[0, 64], &[])));
    all.push(("single", f32s(&[], &[2.5])));
    all.push(("odd", raw(Dtype::U8, &[5], &[1, 2, 3, 4, 5])));
    bench.write("in.safetensors", &all);
    let done =
        bench.works("quantize in.safetensors --format nvfp4 --rule transformer_engine --skip norm -o q.safetensors");
    for (name, why) in [
        ("ids", "I64"),
        ("empty", "empty"),
        ("single", "single number"),
        ("odd", "U8"),
    ] {
        assert!(
            done.err
                .lines()
                .any(|line| line.starts_with(name) && line.contains(why)),
            "{}",
            done.err
        );
    }
    assert!(!done.err.contains("norm"), "it was left out on purpose: {}", done.err);
    let file = bench.open("q.safetensors");
    let found: Vec<_> = file.tensors().map(|t| (t.name, t.dtype, t.shape.to_vec())).collect();
    for (name, dtype, shape) in [
        ("experts.w.data", Dtype::U8, vec![2, 3, 64]),
        ("experts.w.scale", Dtype::F8_E4M3, vec![2, 3, 8]),
        ("experts.w.global", Dtype::F32, vec![2]),
        ("matrix.global", Dtype::F32, vec![1]),
        ("matrix.data", Dtype::U8, vec![20, 32]),
        ("norm", Dtype::F32, vec![256]),
        ("ids", Dtype::I64, vec![3]),
        ("single", Dtype::F32, vec![]),
    ] {
        assert!(
            found.contains(&(name, dtype, shape.clone())),
            "{name} {dtype} {shape:?} not in {found:?}"
        );
    }
    // Types of four bytes and more begin at multiples of them.
    let start = file.get("ids").unwrap().bytes.as_ptr() as usize;
    for tensor in file.tensors() {
        let width = tensor.dtype.bitsize() / 8;
        assert_eq!((tensor.bytes.as_ptr() as usize - start) % width, 0, "{}", tensor.name);
    }
    let manifest: serde_json::Value = serde_json::from_str(&file.metadata()["ulplab"]).unwrap();
    let entry = serde_json::json!({ "format": "e2m1/b16:e4m3/t:f32", "shape": [2, 3, 128], "dtype": "BF16" });
    assert_eq!(manifest["tensors"]["experts.w"], entry);

    bench.works("dequantize q.safetensors --dtype original -o back.safetensors");
    let back = bench.open("back.safetensors");
    assert_eq!(back.get("experts.w").unwrap().dtype, Dtype::BF16);
    assert_eq!(back.get("matrix").unwrap().dtype, Dtype::F32);
    assert_eq!(back.get("odd").unwrap().bytes, [1, 2, 3, 4, 5]);
}

#[test]
fn calibration_and_patterns() {
    let bench = Bench::new();
    bench.write("in.safetensors", &tensors());
    bench.works("quantize in.safetensors --format nvfp4 --amax 3 --only matr* -o q.safetensors");
    let file = bench.open("q.safetensors");
    assert_eq!(floats(&bench, "q.safetensors", "matrix.global"), [3.0]);
    assert!(file.get("norm").is_some() && file.get("norm.data").is_none());
    let want = codec("nvfp4").unwrap().encode_under(3.0, &values(1280), 64).unwrap();
    assert_eq!(file.get("matrix.data").unwrap().bytes, want.part("data"));
}

/// A NaN or an infinity makes its block NaN, and under a global scale the tensor; the other blocks stay. Both are counted.
#[test]
fn nan_and_infinity_do_not_vanish() {
    let bench = Bench::new();
    for (bad, what) in [
        (f32::NAN, "1 NaN"),
        (f32::INFINITY, "1 infinite"),
        (f32::NEG_INFINITY, "1 infinite"),
    ] {
        let mut x = values(128);
        x[40] = bad;
        bench.write("in.safetensors", &[("x", f32s(&[2, 64], &x))]);
        for (format, lost) in [
            ("mxfp4", 32..64),
            ("mxfp8", 32..64),
            ("nvfp4", 0..128),
            ("nvfp4_token", 0..64),
        ] {
            let command = format!("quantize in.safetensors --format {format} -o q.safetensors");
            if lost.len() == 128 {
                let words = &[
                    what,
                    "the first at [0, 40]",
                    "all 128 elements NaN",
                    "--allow-nonfinite",
                ];
                bench.fails(2, &command, words);
            }
            let done = bench.works(&format!("{command} --allow-nonfinite"));
            let words = format!(
                "x: {what}, the first at [0, 40]; {} of 128 elements come back",
                lost.len()
            );
            assert!(done.err.contains(&words), "{}", done.err);
            let manifest: serde_json::Value =
                serde_json::from_str(&bench.open("q.safetensors").metadata()["ulplab"]).unwrap();
            let counts = &manifest["tensors"]["x"]["nonfinite"];
            assert_eq!(counts["nan"].as_u64().unwrap() + counts["inf"].as_u64().unwrap(), 1);
            assert_eq!(counts["first"], serde_json::json!([0, 40]));
            let done = bench.works("dequantize q.safetensors -o back.safetensors");
            let words = format!("x: {} NaN, the first at [0, {}]", lost.len(), lost.start);
            assert!(done.err.contains(&words), "{}", done.err);
            let record = &bench.json("inspect q.safetensors --json")[0];
            assert_eq!(record["decoded_nonfinite"], lost.len());
            assert!(
                record["saturated"].as_u64().unwrap() <= 128 - lost.len() as u64,
                "{record}"
            );
            for (index, y) in floats(&bench, "back.safetensors", "x").into_iter().enumerate() {
                assert_eq!(y.is_nan(), lost.contains(&index), "{format} {bad} {index}: {y}");
            }
        }
    }
}

/// A file whose zero points are missing, of another type or too few is refused by name.
#[test]
fn zero_points_must_be_there() {
    let bench = Bench::new();
    bench.write("in.safetensors", &[("x", f32s(&[2, 64], &values(128)))]);
    bench.works("quantize in.safetensors --format awq4_g128 -o q.safetensors");
    let file = bench.open("q.safetensors");
    assert_eq!(file.get("x.zero").unwrap().shape, [2, 1]);
    let (codes, scale) = (file.get("x.data").unwrap().bytes, file.get("x.scale").unwrap().bytes);
    let part = |dtype, shape: &[usize], bytes: &[u8]| raw(dtype, shape, bytes);
    for (zero, want) in [
        (None, "tensor 'x.data' has no zero points next to it"),
        (
            Some(part(Dtype::F16, &[2, 1], &[0; 4])),
            "tensor 'x.zero': type F16, expected U8 for zero points",
        ),
        (
            Some(part(Dtype::U8, &[1, 1], &[0])),
            "tensor 'x.zero': shape [1, 1], expected [2, 1]: 2 zero points",
        ),
    ] {
        let mut tensors = vec![
            ("x.data", part(Dtype::U8, &[2, 32], codes)),
            ("x.scale", part(Dtype::F16, &[2, 1], scale)),
        ];
        tensors.extend(zero.map(|zero| ("x.zero", zero)));
        bench.write("cut.safetensors", &tensors);
        bench.fails(
            2,
            "dequantize cut.safetensors --format awq4_g128 -o back.safetensors",
            &[want],
        );
    }
    // And a format that has none does not drop them.
    let dropped = "tensor 'x.zero': format 'int4/b128:f16' has no zero points";
    bench.fails(
        2,
        "dequantize q.safetensors --format int4/b128:f16 -o back.safetensors",
        &[dropped],
    );
    bench.works("compare in.safetensors q.safetensors --parity");
}

/// Files of others: names by their endings or by flags, types by what torch can save.
#[test]
fn files_of_others_are_decoded() {
    let bench = Bench::new();
    let x = values(64 * 64);
    // What the global scale means is told by its name, unless a rule is.
    for (names, rule, flags) in [
        (["w_packed", "w_scale", "w_global_scale"], "vllm", "--format nvfp4"),
        (["w", "w_scale", "w_scale_2"], "modelopt", "--format nvfp4"),
        (
            ["w.qdata", "w.scale", "w.per_tensor_scale"],
            "torchao",
            "--format nvfp4",
        ),
        (["w", "w_scale", "w_scale_2"], "te", "--format nvfp4 --rule te"),
        (["w", "w_scale", "w_scale_2"], "te", "--format e2m1/b16:e4m3(te)/t:f32"),
        (["w", "w_scale", "w_scale_2"], "te46_mse_256", "--format nvfp4_46"),
        (
            ["w", "w_scale", "w_scale_2"],
            "modelopt",
            "--format nvfp4 --data w --scale w_scale --global w_scale_2",
        ),
        (["a", "b", "c"], "te", "--format nvfp4 --data a --scale b --global c"),
    ] {
        let theirs = codec(&format!("e2m1/b16:e4m3({rule})/t:f32")).unwrap();
        let encoded = theirs.encode(&x, 64);
        let part = |name: &str| encoded.part(name);
        bench.write(
            "q.safetensors",
            &[
                // An odd number of bytes first.
                ("z_first", raw(Dtype::F64, &[1], &[0; 8])),
                (names[0], raw(Dtype::U8, &[64, 32], part("data"))),
                (names[1], raw(Dtype::U8, &[64, 4], part("scale"))),
                (names[2], raw(Dtype::F32, &[], part("global"))),
            ],
        );
        bench.works(&format!("dequantize q.safetensors {flags} -o back.safetensors"));
        let mut want = x.clone();
        theirs.round(&mut want, 64);
        let name = if names[0] == "a" { "a" } else { "w" };
        same(flags, &floats(&bench, "back.safetensors", name), &want);
        assert!(bench.open("back.safetensors").get("z_first").is_some());
    }
}

/// Checkpoints of several formats are decoded one format after the other.
#[test]
fn what_is_left_out_stays_quantized() {
    let bench = Bench::new();
    let x = values(32 * 64);
    let (nv, fp8) = (codec("nvfp4").unwrap(), codec("fp8_tensor").unwrap());
    let (four, eight) = (nv.encode(&x, 64), fp8.encode(&x, 64));
    bench.write(
        "q.safetensors",
        &[
            ("a.data", raw(Dtype::U8, &[32, 32], four.part("data"))),
            ("a.scale", raw(Dtype::F8_E4M3, &[32, 4], four.part("scale"))),
            ("a.global", raw(Dtype::F32, &[1], four.part("global"))),
            ("b.data", raw(Dtype::F8_E4M3, &[32, 64], eight.part("data"))),
            ("b.scale", raw(Dtype::F32, &[], eight.part("scale"))),
        ],
    );
    let words = &["tensor 'b.data': type F8_E4M3, expected U8"];
    bench.fails(2, "dequantize q.safetensors --format nvfp4 -o half.safetensors", words);
    bench.works("dequantize q.safetensors --format nvfp4 --only a -o half.safetensors");
    bench.works("dequantize half.safetensors --format fp8_tensor -o back.safetensors");
    for (name, codec) in [("a", nv), ("b", fp8)] {
        let mut want = x.clone();
        codec.round(&mut want, 64);
        same(name, &floats(&bench, "back.safetensors", name), &want);
    }

    // What the file says of them is kept.
    bench.write("in.safetensors", &tensors());
    bench.works("quantize in.safetensors --format mxfp8 -o q.safetensors");
    bench.works("dequantize q.safetensors --skip matrix -o half.safetensors");
    assert!(bench.open("half.safetensors").get("matrix.data").is_some());
    bench.works("dequantize half.safetensors -o back.safetensors");
    bench.works("dequantize q.safetensors -o want.safetensors");
    for tensor in bench.open("want.safetensors").tensors() {
        same(
            tensor.name,
            &floats(&bench, "back.safetensors", tensor.name),
            &tensor.to_f32().unwrap(),
        );
    }
}

/// TransformerEngine repeats the scale of a tile for each of its rows.
#[test]
fn scales_of_tiles_may_be_repeated() {
    let bench = Bench::new();
    let x = values(32 * 64);
    let encoded = codec("nvfp4_2d").unwrap().encode(&x, 64);
    let mut scales: Vec<u8> = encoded.part("scale").chunks(4).flat_map(|row| row.repeat(16)).collect();
    let write = |scales: &[u8]| {
        let tensors = [
            ("w.data", raw(Dtype::U8, &[32, 32], encoded.part("data"))),
            ("w.scale", raw(Dtype::F8_E4M3, &[32, 4], scales)),
            ("w.global", raw(Dtype::F32, &[1], encoded.part("global"))),
        ];
        bench.write("q.safetensors", &tensors);
    };
    write(&scales);
    bench.works("dequantize q.safetensors --format nvfp4_2d -o back.safetensors");
    let mut want = x;
    codec("nvfp4_2d").unwrap().round(&mut want, 64);
    same("2d", &floats(&bench, "back.safetensors", "w"), &want);
    scales[20 * 4] ^= 1;
    write(&scales);
    let command = "dequantize q.safetensors --format nvfp4_2d -o no.safetensors";
    bench.fails(2, command, &["q.safetensors", "'w.scale'", "row 20", "16 times"]);
}
