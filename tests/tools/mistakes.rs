//! Bad input is refused with a message that says what to mend, and nothing is written.

use safetensors::Dtype;
use ulplab::formats::codec;

use super::{Bench, f32s, raw, values};

#[test]
fn of_the_command_line() {
    let bench = Bench::new();
    bench.write(
        "in.safetensors",
        &[("w", f32s(&[4, 64], &values(256))), ("k", f32s(&[2, 33], &values(66)))],
    );
    for (code, flags, words) in [
        (
            2,
            "--format nvfp5",
            &["unknown format 'nvfp5'", "did you mean 'nvfp4'?"][..],
        ),
        (2, "--format e2m1/b16:e4m3(", &["lacks its closing"]),
        (2, "--format e4m3/b0:e8m0", &["'b0'"]),
        (2, "--format e2m1", &["'e2m1' has no NaN"]),
        (2, "--format v4_fp8", &["'v4_fp8' is a record"]),
        (
            2,
            "--format nvfp4 --rule transformer_engin",
            &["did you mean 'transformer_engine'?"],
        ),
        (
            2,
            "--format mxfp8 --rule vlm",
            &["unknown rule 'vlm' for e8m0 scales", "did you mean 'vllm'?"],
        ),
        (2, "--format bf16 --rule te", &["no scales"]),
        (
            2,
            "--format nvfp4 --layout blocked_128x8",
            &["did you mean 'blocked_128x4'?"],
        ),
        (
            2,
            "--format nvfp4 --layout mn_major_f32",
            &["scales of 4 bytes", "has 1"],
        ),
        (2, "--format nvfp4 --layout blocked_128x4_m_groups", &["ends of groups"]),
        (2, "--format mxfp8 --amax 3", &["no scale that a tensor shares"]),
        (2, "--format nvfp4 --amax=-1", &["expected a positive number"]),
        (2, "--format nvfp4 --amax=nan", &["expected a positive number"]),
        (2, "--format nvfp4", &["in.safetensors", "'k'", "33 channels", "--skip"]),
        (
            4,
            "--format nvfp4 --only weight",
            &["'weight' matches no tensor; tensors are named like 'k'"],
        ),
        (
            4,
            "--format nvfp4 --skip kk",
            &["'kk' matches no tensor; did you mean 'k'?"],
        ),
        (2, "--format MXFP8", &["did you mean 'mxfp8'?"]),
        (2, "--format mxfp8 --rule vLLM", &["did you mean 'vllm'?"]),
        (
            2,
            "--format fp8",
            &["without scales it is 'e4m3' here", "'fp8_b128x128'"],
        ),
    ] {
        bench.fails(
            code,
            &format!("quantize in.safetensors {flags} -o out.safetensors"),
            words,
        );
    }
    bench.fails(
        2,
        "quantize in.safetensors --format mxfp8 -o out.npy",
        &["out.npy", "expected 'safetensors'"],
    );
    bench.fails(
        2,
        "quantize no.safetensors --format mxfp8 -o out.safetensors",
        &["no.safetensors: there is no such file or folder"],
    );
    bench.fails(
        96,
        "quantize in.safetensors --format mxfp8 -o no/out.safetensors",
        &["no/out.safetensors: cannot create"],
    );
    bench.fails(
        4,
        "dequantize in.safetensors --format mxfp8 -o out.safetensors",
        &["no quantized tensor"],
    );
    bench.fails(4, "inspect in.safetensors", &["give --format to quantize"]);
    bench.fails(2, "inspect in.safetensors --format nvfp4", &["'k'", "33 channels"]);
    let missing = "dequantize in.safetensors --format mxfp8 --data v -o out.safetensors";
    bench.fails(2, missing, &["no tensor 'v'"]);
    assert_eq!(bench.files(), ["in.safetensors"]);
}

/// All tensors that do not fit are named at once, and what is easily quantized by mistake is said.
#[test]
fn tensors_that_do_not_fit() {
    let bench = Bench::new();
    let mut x = values(64);
    bench.write(
        "in.safetensors",
        &[
            ("a", f32s(&[2, 37], &values(74))),
            ("b", f32s(&[5], &values(5))),
            ("bias", f32s(&[64], &x)),
            ("w", f32s(&[2, 64], &values(128))),
        ],
    );
    let words = [
        "tensor 'a': 37 channels",
        "tensor 'b': 5 channels",
        "use --skip to leave tensors out",
    ];
    bench.fails(2, "quantize in.safetensors --format nvfp4 -o q.safetensors", &words);
    let done = bench.works("quantize in.safetensors --format nvfp4 --skip a --skip b -o q.safetensors");
    assert!(
        done.err.contains("bias: quantized although it has one dimension"),
        "{}",
        done.err
    );
    let done = bench.works("quantize in.safetensors --format nvfp4 --only w -o q.safetensors");
    assert!(!done.err.contains("one dimension"), "{}", done.err);
    (x[3], x[40]) = (f32::NAN, f32::INFINITY);
    bench.write(
        "in.safetensors",
        &[("c", f32s(&[1, 64], &x)), ("d", f32s(&[1, 64], &x))],
    );
    let words = ["tensor 'c'", "tensor 'd'", "--allow-nonfinite"];
    bench.fails(
        2,
        "quantize in.safetensors --format fp8_tensor -o q.safetensors",
        &words,
    );
}

#[test]
fn a_quantized_file_is_not_compared_with_numbers() {
    let bench = Bench::new();
    bench.write("in.safetensors", &[("w", f32s(&[2, 64], &values(128)))]);
    bench.works("quantize in.safetensors --format nvfp4 -o q.safetensors");
    let words = [
        "only in in.safetensors",
        "q.safetensors is quantized: --parity",
        "dequantize",
    ];
    bench.fails(2, "compare in.safetensors q.safetensors", &words);
}

#[test]
fn the_input_is_not_written_over() {
    let bench = Bench::new();
    bench.write("in.safetensors", &[("w", f32s(&[4, 64], &values(256)))]);
    let command = "quantize in.safetensors --format mxfp8 -o ./in.safetensors";
    bench.fails(2, command, &["in.safetensors", "is the input"]);
}

#[test]
fn two_tensors_of_one_name() {
    let bench = Bench::new();
    let taken = [("w", f32s(&[64], &values(64))), ("w.scale", f32s(&[1, 1], &[1.0]))];
    bench.write("in.safetensors", &taken);
    let command = "quantize in.safetensors --format mxfp8 --only w -o out.safetensors";
    bench.fails(2, command, &["two tensors would be called 'w.scale'"]);
    assert!(!bench.exists("out.safetensors"));
}

/// Every damage to a file of parts is refused with these words.
#[test]
fn of_files() {
    let bench = Bench::new();
    let x = values(8 * 64);
    let encode = |format: &str| codec(format).unwrap().encode(&x, 64);
    let (nv, mx, f6) = (encode("nvfp4"), encode("mxfp8"), encode("mxfp6_e2m3"));
    let nv_data = || raw(Dtype::U8, &[8, 32], nv.part("data"));
    let nv_scale = || raw(Dtype::F8_E4M3, &[8, 4], nv.part("scale"));
    let nv_global = || raw(Dtype::F32, &[1], nv.part("global"));
    let with = |bytes: &[u8], at: usize, byte: u8| {
        let mut bytes = bytes.to_vec();
        bytes[at] = byte;
        bytes
    };
    let check = |format: &str, parts: Vec<(&str, super::Array)>, words: &[&str]| {
        bench.write("q.safetensors", &parts);
        for command in [
            format!("dequantize q.safetensors --format {format} -o out.safetensors"),
            format!("inspect q.safetensors --format {format}"),
        ] {
            bench.fails(2, &command, &[&["q.safetensors"], words].concat());
        }
        assert!(!bench.exists("out.safetensors"));
    };
    // Without a format.
    bench.write(
        "q.safetensors",
        &[
            ("w.data", nv_data()),
            ("w.scale", nv_scale()),
            ("w.global", nv_global()),
        ],
    );
    bench.fails(
        2,
        "dequantize q.safetensors -o out.safetensors",
        &["'w'", "--format nvfp4"],
    );

    let scale = |shape: &[usize], bytes: &[u8]| raw(Dtype::F8_E4M3, shape, bytes);
    let transposed = scale(&[4, 8], nv.part("scale"));
    check(
        "nvfp4",
        vec![
            ("w.data", nv_data()),
            ("w.scale", transposed),
            ("w.global", nv_global()),
        ],
        &["'w.scale'", "[4, 8]", "expected [8, 4] e4m3"],
    );
    let short = scale(&[8, 3], &nv.part("scale")[..24]);
    check(
        "nvfp4",
        vec![("w.data", nv_data()), ("w.scale", short), ("w.global", nv_global())],
        &["'w.scale'", "[8, 3]"],
    );
    let signed = scale(&[8, 4], &with(nv.part("scale"), 9, 0xb8));
    check(
        "nvfp4",
        vec![("w.data", nv_data()), ("w.scale", signed), ("w.global", nv_global())],
        &["'w.scale'", "0xb8 at [2, 1]", "no sign"],
    );
    let wrong = f32s(&[8, 4], &[1.0; 32]);
    check(
        "nvfp4",
        vec![("w.data", nv_data()), ("w.scale", wrong), ("w.global", nv_global())],
        &["'w.scale'", "type F32, expected F8_E4M3 or U8"],
    );
    check(
        "nvfp4",
        vec![("w.data", nv_data()), ("w.scale", nv_scale())],
        &["'w.data'", "no global scale"],
    );
    let two = raw(Dtype::F32, &[2], &[0; 8]);
    check(
        "nvfp4",
        vec![("w.data", nv_data()), ("w.scale", nv_scale()), ("w.global", two)],
        &["'w.global'", "[2]", "1 global"],
    );
    let one_level = "e2m1/b16:e4m3";
    check(
        one_level,
        vec![
            ("w.data", nv_data()),
            ("w.scale", nv_scale()),
            ("w.global", nv_global()),
        ],
        &["'w.global'", "'e2m1/b16:e4m3' has no global scales"],
    );
    let eight = raw(Dtype::F8_E4M3, &[8, 64], mx.part("data"));
    check(
        "e4m3",
        vec![("w.data", eight), ("w.scale", f32s(&[], &[0.5]))],
        &["'w.scale'", "'e4m3' has no scales"],
    );
    let floats = f32s(&[8, 32], &x[..256]);
    check(
        "nvfp4",
        vec![("w.data", floats), ("w.scale", nv_scale()), ("w.global", nv_global())],
        &["'w.data'", "type F32, expected U8, I8 or F4"],
    );
    let e5m2 = raw(Dtype::F8_E5M2, &[8, 64], mx.part("data"));
    let mx_scale = || raw(Dtype::F8_E8M0, &[8, 2], mx.part("scale"));
    check(
        "mxfp8",
        vec![("w.data", e5m2), ("w.scale", mx_scale())],
        &["type F8_E5M2, expected F8_E4M3 or U8"],
    );
    let six = raw(Dtype::U8, &[8, 64], &with(f6.part("data"), 70, 0x40));
    let six_scale = raw(Dtype::U8, &[8, 2], f6.part("scale"));
    check(
        "mxfp6_e2m3",
        vec![("w.data", six), ("w.scale", six_scale)],
        &["'w.data'", "0x40 at [1, 6]", "up to 0x3f"],
    );
    let single = raw(Dtype::U8, &[], &[0]);
    check(
        "mxfp8",
        vec![("w.data", single), ("w.scale", mx_scale())],
        &["'w.data'", "no dimensions"],
    );
}

#[test]
fn of_metadata() {
    let bench = Bench::new();
    bench.write("in.safetensors", &[("w", f32s(&[4, 64], &values(256)))]);
    bench.works("quantize in.safetensors --format mxfp8 --layout blocked_128x4 -o q.safetensors");
    let bytes = std::fs::read(bench.0.path().join("q.safetensors")).unwrap();
    for (good, bad, words) in [
        ("e4m3/b32:e8m0", "e4m3/b32:e8mO", &["'w'", "unknown scale 'e8mO'"][..]),
        ("[4,64]", "[4,96]", &["'w.data'", "expected [4, 96]"]),
        ("blocked_128x4", "blocked_128x5", &["'w'", "unknown layout"]),
        (
            "version\\\":2",
            "version\\\":3",
            &["metadata 'ulplab'", "version 3, expected 2"],
        ),
        ("tensors", "tensorz", &["metadata 'ulplab'", "tensors"]),
    ] {
        let text = bytes.windows(good.len()).position(|window| window == good.as_bytes());
        let mut broken = bytes.clone();
        let at = text.unwrap_or_else(|| panic!("no {good}"));
        broken[at..at + good.len()].copy_from_slice(bad.as_bytes());
        std::fs::write(bench.0.path().join("broken.safetensors"), broken).unwrap();
        bench.fails(2, "dequantize broken.safetensors -o out.safetensors", words);
    }
    assert!(!bench.exists("out.safetensors"));
}

/// Neither sizes whose product has no room in an address, nor rows of an empty tensor that have none in memory.
#[test]
fn of_sizes() {
    let bench = Bench::new();
    bench.write(
        "in.safetensors",
        &[("w", f32s(&[1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 4, 64], &values(256)))],
    );
    bench.works("quantize in.safetensors --format mxfp8 -o q.safetensors");
    let bytes = std::fs::read(bench.0.path().join("q.safetensors")).unwrap();
    let (good, bad) = (b"[1,1,1,1,1,1,1,1,1,1,1,1,4,64]", b"[99999999999999,9999999999999]");
    let at = bytes.windows(good.len()).position(|window| window == good).unwrap();
    let mut broken = bytes;
    broken[at..at + good.len()].copy_from_slice(bad);
    std::fs::write(bench.0.path().join("broken.safetensors"), broken).unwrap();
    let words = &["'w'", "more elements than memory has addresses"];
    bench.fails(2, "dequantize broken.safetensors -o out.safetensors", words);

    let empty = |cols: usize| {
        let parts = [
            ("w", raw(Dtype::U8, &[0, cols], &[])),
            ("w_scale", raw(Dtype::U8, &[0, 1], &[])),
        ];
        bench.write("empty.safetensors", &parts);
    };
    empty(1 << 63);
    bench.fails(
        2,
        "dequantize empty.safetensors --format mxfp4 -o out.safetensors",
        words,
    );
    assert!(!bench.exists("out.safetensors"));
    // Matrices without elements may be many.
    let parts = [
        ("w", raw(Dtype::U8, &[1 << 40, 0, 16], &[])),
        ("w_scale", raw(Dtype::U8, &[1 << 40, 0, 1], &[])),
    ];
    bench.write("many.safetensors", &parts);
    bench.works("dequantize many.safetensors --format mxfp4 -o out.safetensors");
    bench.works("inspect many.safetensors --format mxfp4");
    std::fs::remove_file(bench.0.path().join("out.safetensors")).unwrap();
    empty(1 << 50);
    bench.works("dequantize empty.safetensors --format mxfp4 -o out.safetensors");
    assert_eq!(bench.open("out.safetensors").get("w").unwrap().shape, [0, 1 << 51]);
}
