//! Histograms, counts and worst blocks.

use serde_json::json;
use ulplab::tensorfile::TensorFile;

use super::{Bench, f32s, raw, values};

/// Two blocks under scale 1 and a block of zeros.
fn by_hand() -> Vec<f32> {
    let mut x = vec![0.0; 48];
    x[..8].copy_from_slice(&[6.0, -6.0, 3.0, 1.5, -0.5, 0.2, -0.1, 0.0]);
    x[16..20].copy_from_slice(&[6.0, 5.0, 1.0, 1.2]);
    x
}

#[test]
fn counts_by_hand() {
    let bench = Bench::new();
    bench.write("in.safetensors", &[("x", f32s(&[1, 48], &by_hand()))]);
    let want = |record: &serde_json::Value| {
        for (key, value) in [
            ("format", json!("e2m1/b16:e4m3")),
            ("bits_per_element", json!(4.5)),
            ("elements", json!(48)),
            ("blocks", json!(3)),
            ("saturated", json!(3)),
            ("zeros", json!(39)),
            ("negative", json!(2)),
            ("zero_blocks", json!(1)),
            ("nan_scales", json!(0)),
            ("clipped", json!(0)),
            ("underflow", json!(2)),
            ("nonfinite", json!(0)),
            (
                "codes",
                json!([[0.0, 39], [0.5, 1], [1.0, 2], [1.5, 1], [3.0, 1], [4.0, 1], [6.0, 3]]),
            ),
            ("scales", json!([[0.0, 1], [1.0, 2]])),
        ] {
            assert_eq!(record[key], value, "{key}");
        }
        // Errors 1 of 5 and 0.2 of 1.2 in the second block; it is the worst.
        let sqnr = 10.0 * ((36.0 + 25.0 + 1.0 + 1.44) / (1.0 + 0.04f64)).log10();
        assert_eq!(record["worst"][0]["block"], json!([0, 1]));
        assert!((record["worst"][0]["sqnr"].as_f64().unwrap() - sqnr).abs() < 1e-5);
        assert_eq!(record["worst"].as_array().unwrap().len(), 3);
        assert_eq!(record["worst"][2]["sqnr"], "Infinity");
    };
    want(&bench.json("inspect in.safetensors --format nvfp4_single --blocks 9 --json")[0]);
    bench.works("quantize in.safetensors --format nvfp4_single -o q.safetensors");
    want(&bench.json("inspect q.safetensors --source in.safetensors --blocks 9 --json")[0]);
    let alone = &bench.json("inspect q.safetensors --json")[0];
    assert_eq!(alone["zeros"], 39);
    assert!(
        alone.get("underflow").is_none(),
        "without its source nothing is known of it"
    );
}

#[test]
fn the_page_says_it_in_words() {
    let bench = Bench::new();
    bench.write(
        "in.safetensors",
        &[("x", f32s(&[1, 48], &by_hand())), ("y", f32s(&[32], &values(32)))],
    );
    let done = bench.works("inspect in.safetensors --format nvfp4_single --only x");
    for words in [
        "x  e2m1/b16:e4m3  [1, 48]  4.5000 bits per element",
        "largest code   3 (6.250 %)",
        "clipped        0 (0.000 %)",
        "zero codes     39 (81.250 %)",
        "zero blocks    1 (33.333 %)",
        "underflow      2 (4.167 %)",
        "worst block    row 0, channel 16: SQNR 17.85 dB, amax 6e0, scale 1e0",
        "code         6    6.250 %  ####",
        "scale      2^0   66.667 %  ########################################",
    ] {
        assert!(done.out.contains(words), "'{words}' is not in:\n{}", done.out);
    }
    assert!(!done.out.contains("\ny "));
}

/// What is clipped lies above the largest value by more than rounding; what is merely at it does not.
#[test]
fn what_is_clipped_is_counted() {
    let bench = Bench::new();
    // A global scale for magnitudes up to 6 lets block scales reach 1: 6.4 rounds to 6, 7.1 and 30 are cut.
    let mut x = vec![1.0; 32];
    (x[0], x[1], x[2], x[16]) = (30.0, 7.1, 6.4, 6.0);
    bench.write("in.safetensors", &[("x", f32s(&[1, 32], &x))]);
    bench.works("quantize in.safetensors --format nvfp4 --amax 6 -o q.safetensors");
    let record = &bench.json("inspect q.safetensors --source in.safetensors --json")[0];
    assert_eq!((&record["saturated"], &record["clipped"]), (&json!(4), &json!(2)));
    for format in ["mxfp8", "fp8_column", "nvfp4", "int8_token"] {
        let record = &bench.json(&format!("inspect in.safetensors --format {format} --json"))[0];
        assert_eq!(record["clipped"], 0, "{format}");
    }
}

#[test]
fn nan_scales_and_wide_elements() {
    let bench = Bench::new();
    let mut x = values(128);
    x[70] = f32::NAN;
    bench.write("in.safetensors", &[("x", f32s(&[2, 64], &x))]);
    let record = &bench.json("inspect in.safetensors --format mxfp8 --json")[0];
    assert_eq!((&record["nan_scales"], &record["nonfinite"]), (&json!(1), &json!(1)));
    assert_eq!(record["scales"].as_array().unwrap().last().unwrap(), &json!([null, 1]));
    assert_eq!(record["sqnr"], json!(null), "a NaN fails every metric");
    assert_eq!(record["worst"][0]["block"], json!([1, 0]));
    // By powers of two: at most 18 binades of e4m3, zero and NaN.
    assert!(record["codes"].as_array().unwrap().len() <= 20);
    for (bin, _) in record["codes"]
        .as_array()
        .unwrap()
        .iter()
        .map(|bin| (bin[0].as_f64(), &bin[1]))
    {
        assert!(
            bin.is_none_or(|value| value == 0.0 || value.log2().fract() == 0.0),
            "{bin:?}"
        );
    }
}

#[test]
fn a_source_that_does_not_fit() {
    let bench = Bench::new();
    bench.write("in.safetensors", &[("x", f32s(&[2, 64], &values(128)))]);
    bench.write("other.safetensors", &[("x", f32s(&[2, 32], &values(64)))]);
    bench.write(
        "named.safetensors",
        &[("xx", f32s(&[2, 64], &values(128))), ("z", f32s(&[1], &[0.0]))],
    );
    bench.works("quantize in.safetensors --format mxfp8 -o q.safetensors");
    let command = "inspect q.safetensors --source other.safetensors";
    bench.fails(2, command, &["other.safetensors", "'x'", "[2, 32], expected [2, 64]"]);
    let command = "inspect q.safetensors --source named.safetensors";
    bench.fails(
        2,
        command,
        &["named.safetensors", "no tensor 'x'", "did you mean 'xx'?"],
    );
}

/// Tensors that are left out may be of any format.
#[test]
fn what_is_left_out_is_not_checked() {
    let bench = Bench::new();
    let q = |name: &str| format!("quantize in.safetensors --format {name} -o {name}.safetensors");
    bench.write("in.safetensors", &[("x", f32s(&[2, 64], &values(128)))]);
    bench.works(&q("nvfp4"));
    bench.works(&q("mxfp8"));
    let (four, eight) = (bench.open("nvfp4.safetensors"), bench.open("mxfp8.safetensors"));
    let part = |file: &TensorFile, name: &str| {
        let tensor = file.get(name).unwrap();
        raw(tensor.dtype, tensor.shape, tensor.bytes)
    };
    bench.write(
        "mixed.safetensors",
        &[
            ("a.data", part(&four, "x.data")),
            ("a.scale", part(&four, "x.scale")),
            ("a.global", part(&four, "x.global")),
            ("b.data", part(&eight, "x.data")),
            ("b.scale", part(&eight, "x.scale")),
        ],
    );
    let records = bench.json("inspect mixed.safetensors --format nvfp4 --only a --json");
    assert_eq!((records.len(), &records[0]["name"]), (1, &json!("a")));
    bench.fails(
        2,
        "inspect mixed.safetensors --format nvfp4",
        &["tensor 'b.data': type"],
    );
}

/// Under a rotation what is cast are the rotated values: nothing is lost of those that are zero.
#[test]
fn underflow_is_of_what_is_cast() {
    let bench = Bench::new();
    let signs = [1, 1, 1, -1, 1, -1, -1, -1, -1, -1, -1, 1, -1, 1, -1, -1].map(|sign| sign as f32);
    bench.write("in.safetensors", &[("x", f32s(&[1, 16], &signs))]);
    let records = bench.json("inspect in.safetensors --format nvfp4_rht --json");
    assert_eq!(
        (&records[0]["zeros"], &records[0]["underflow"]),
        (&json!(15), &json!(0))
    );
}

/// Many tensors: counts, and the worst first.
#[test]
fn many_tensors_are_summed_up_and_ranked() {
    let bench = Bench::new();
    let names: Vec<String> = (0..12).map(|i| format!("layers.{i}.w")).collect();
    let tensors: Vec<_> = (0..12)
        .map(|i| {
            // One value far above the others of its block costs them more, the further it is.
            let mut x = values(64);
            x[3] = 1.5f32 * 2f32.powi(i as i32);
            if i == 5 {
                x[40] = f32::NAN;
            }
            if i == 7 {
                x[32..].fill(0.0);
            }
            (names[i].as_str(), f32s(&[2, 32], &x))
        })
        .collect();
    bench.write("in.safetensors", &tensors);
    bench.works("quantize in.safetensors --format mxfp4 -o q.safetensors");
    let done = bench.works("inspect q.safetensors --source in.safetensors");
    for words in [
        "12 tensors, 768 elements, 408 bytes of codes and scales",
        "e2m1/b32:e8m0",
        ": 12 tensors",
        "  1 that decode to NaN in part, ",
        " with codes of the largest magnitude, 1 with blocks of zeros",
        "Worst first, by SQNR:",
        "… and 2 more: --top N or --all",
    ] {
        assert!(done.out.contains(words), "'{words}' is not in:\n{}", done.out);
    }
    let lines: Vec<&str> = done.out.lines().filter(|line| line.starts_with("  layers.")).collect();
    assert_eq!(lines.len(), 10);
    assert!(
        lines[0].contains("layers.5.w") && lines[0].contains("NaN 50.000 %"),
        "{}",
        lines[0]
    );
    // Each after the first is at most as bad as the one before it.
    let sqnr = |line: &&&str| {
        let (_, rest) = line.split_once("SQNR ").unwrap();
        rest.split(' ').next().unwrap().parse::<f64>().unwrap()
    };
    let ranked: Vec<f64> = lines[1..].iter().map(|line| sqnr(&line)).collect();
    assert!(ranked.is_sorted(), "{ranked:?}");
    let lines = |flags: &str| {
        let done = bench.works(&format!("inspect q.safetensors {flags}"));
        done.out.lines().filter(|line| line.starts_with("  layers.")).count()
    };
    assert_eq!((lines("--top 3"), lines("--all")), (3, 12));
    assert!(
        bench
            .works("inspect q.safetensors")
            .out
            .contains("by the shares of NaN")
    );
    assert_eq!(bench.json("inspect q.safetensors --json").len(), 12);
}

/// Under a scale that is NaN no code is the largest.
#[test]
fn nan_is_no_largest_code() {
    let bench = Bench::new();
    let mut x = values(128);
    x[0] = f32::NAN;
    bench.write("in.safetensors", &[("x", f32s(&[2, 64], &x))]);
    let record = &bench.json("inspect in.safetensors --format nvfp4 --json")[0];
    for (key, value) in [
        ("decoded_nonfinite", 128),
        ("saturated", 0),
        ("zeros", 0),
        ("nonfinite", 1),
    ] {
        assert_eq!(record[key], value, "{key}");
    }
    let done = bench.works("inspect in.safetensors --format nvfp4");
    assert!(done.out.contains("decodes to NaN 128 (100.000 %)"), "{}", done.out);
    assert!(done.out.contains("largest code   0 (0.000 %)"), "{}", done.out);
}

/// A folder that has no configuration is shown, and the exit code says that nothing was judged, unless the user takes it for tensors.
#[test]
fn a_folder_without_a_configuration_is_not_judged() {
    let bench = Bench::new();
    bench.write("in.safetensors", &[("x", f32s(&[2, 64], &values(128)))]);
    std::fs::create_dir(bench.0.path().join("parts")).unwrap();
    bench.works("quantize in.safetensors --format mxfp8 -o parts/a.safetensors");
    for (more, code) in [("", 4), (" --json", 4), (" --as tensors", 0), (" --format mxfp8", 0)] {
        let done = bench.run(&format!("inspect parts{more}"));
        let said = &done.err;
        assert_eq!(done.code, code, "{more}: {said}");
        assert_eq!(
            said.contains("parts: no config.json, so its tensors were shown and not judged"),
            code == 4,
            "{more}: {said}"
        );
    }
    bench.works("inspect parts/a.safetensors");
}
