//! What comes out of a comparison.

use clap::Parser;
use serde_json::{Value, json};
use ulplab::Exit;
use ulplab::commands::compare::CompareArgs;

use super::{Array, Bench, Dtype, f32s, i64s, raw};

fn tensors(scale: f32) -> Vec<(&'static str, Array)> {
    let values: Vec<f32> = (0..12).map(|i| (i as f32 - 4.5) * scale).collect();
    vec![
        ("kv", f32s(&[3, 4], &values)),
        ("layers.0.out", f32s(&[12], &values)),
        ("topk", i64s(&[2, 2], &[5, -1, 7, 2])),
    ]
}

#[test]
fn equal_files_pass() {
    let bench = Bench::new(&tensors(1.0), &tensors(1.0)).metrics(&["cosine", "diff", "ulp_max"]);
    let (exit, out) = bench.run();
    assert_eq!(exit, Exit::Pass);
    assert!(out.contains("tensor"), "{out}");
    assert_eq!(out.matches("PASS").count(), 4, "{out}");
    let last = out.lines().last().unwrap();
    assert!(
        last.starts_with("PASS: 3 tensors passed, 0 failed, no gates, ") && last.ends_with(" s"),
        "{last}"
    );
    assert!(!out.contains('\x1b'), "no colour");
}

#[test]
fn a_gain_error_passes_a_gate_on_cosine_and_fails_one_on_diff() {
    let bench = Bench::new(&tensors(1.0), &tensors(1.1));
    let (exit, out) = bench.run();
    assert_eq!(exit, Exit::NotJudged, "without gates, errors are only shown");
    let last = "PARTLY JUDGED: 1 tensor passed, 0 failed, 2 that no gate binds, no gates, ";
    assert!(out.lines().last().unwrap().starts_with(last), "{out}");
    assert_eq!(out.matches("PASS").count(), 1, "the integers are equal: {out}");
    let bench = bench.gates(&["cosine>=0.999999"]);
    assert_eq!(bench.run().0, Exit::Pass);
    let bench = bench.gates(&["cosine>=0.999999", "diff<=1e-3"]);
    let (exit, out) = bench.run();
    assert_eq!(exit, Exit::GateFailed);
    assert!(out.contains("FAIL kv: diff is 0.0045"), "{out}");
    assert!(out.contains("gate diff<=1e-3"), "{out}");
    assert!(
        out.lines()
            .last()
            .unwrap()
            .starts_with("FAIL: 1 tensor passed, 2 failed, 4 gate results, "),
        "{out}"
    );
}

#[test]
fn the_first_gate_that_matches_counts() {
    let bench = Bench::new(&tensors(1.0), &tensors(1.1));
    let gates = |gates: &[&str]| {
        Bench {
            folder: tempfile::tempdir().unwrap(),
            args: bench.args.clone(),
        }
        .gates(gates)
        .run()
    };
    assert_eq!(gates(&["layers.*.out:diff<=1e-2", "kv:diff<=1e-2"]).0, Exit::Pass);
    assert_eq!(gates(&["layers.*.out:diff<=1e-2", "diff<=1e-3"]).0, Exit::GateFailed);
    assert_eq!(gates(&["k*:diff<=1e-2", "**:diff<=1e-3"]).0, Exit::GateFailed);
    assert_eq!(
        gates(&["k*:diff<=1e-2", "la**:diff<=1e-2", "cosine >= 0.9"]).0,
        Exit::Pass
    );
    let (_, out) = gates(&["kv:diff<=1e-2", "diff<=1e-3"]);
    assert!(out.contains("FAIL layers.0.out:") && !out.contains("FAIL kv:"), "{out}");
}

#[test]
fn shapes_are_judged_before_anything_else() {
    let nan = f32s(&[4, 3], &[f32::NAN; 12]);
    let bench = Bench::new(&[("x", f32s(&[3, 4], &[1.0; 12]))], &[("x", nan)]).gates(&["cosine>=0.9"]);
    let (exit, out) = bench.run();
    assert_eq!(exit, Exit::GateFailed);
    assert!(out.contains("FAIL x: shape: want [3, 4], got [4, 3]"), "{out}");
    assert_eq!(out.matches("FAIL x:").count(), 1, "{out}");
}

#[test]
fn a_nan_on_one_side_fails_without_any_gate() {
    let want = f32s(&[2, 2], &[1.0, 2.0, 3.0, 4.0]);
    let got = f32s(&[2, 2], &[1.0, 2.0, f32::NAN, 4.0]);
    let (exit, out) = Bench::new(&[("x", want)], &[("x", got)]).run();
    assert_eq!(exit, Exit::GateFailed);
    let failure =
        "FAIL x: NaN/Inf: 0 elements of the reference, 1 of the candidate; differ first at [1, 0]: want 3.0, got NaN";
    assert!(out.contains(failure), "{out}");
}

#[test]
fn the_same_infinities_pass_until_a_metric_is_demanded() {
    let masked = f32s(&[3], &[1.0, f32::NEG_INFINITY, 2.0]);
    let bench = Bench::new(&[("x", masked.clone())], &[("x", masked)]);
    assert_eq!(bench.run().0, Exit::Pass);
    let (exit, out) = bench.gates(&["cosine>=0.1"]).run();
    assert_eq!(exit, Exit::GateFailed);
    assert!(
        out.contains("cosine is NaN, not every element is finite; gate cosine>=0.1"),
        "{out}"
    );
}

#[test]
fn integers_are_equal_or_not() {
    let want = [
        ("ids", i64s(&[2, 3], &[0, 1, 2, 3, 4, 5])),
        ("mask", raw(Dtype::BOOL, &[2], &[1, 0])),
    ];
    let narrow: Vec<u8> = [0i32, 1, 2, 3, 4, 5].iter().flat_map(|x| x.to_le_bytes()).collect();
    let same = [
        ("ids", raw(Dtype::I32, &[2, 3], &narrow)),
        ("mask", raw(Dtype::BOOL, &[2], &[1, 0])),
    ];
    assert_eq!(
        Bench::new(&want, &same).run().0,
        Exit::Pass,
        "values count, not the width"
    );
    let other = [
        ("ids", i64s(&[2, 3], &[0, 1, 2, 3, -4, 6])),
        ("mask", raw(Dtype::BOOL, &[2], &[1, 1])),
    ];
    let (exit, out) = Bench::new(&want, &other).run();
    assert_eq!(exit, Exit::GateFailed);
    assert!(
        out.contains("FAIL ids: 2 of 6 elements differ, first at [1, 1]: want 4, got -4"),
        "{out}"
    );
    assert!(
        out.contains("FAIL mask: 1 of 2 elements differ, first at [1]: want 0, got 1"),
        "{out}"
    );
    let (exit, out) = Bench::new(&[("x", i64s(&[1], &[1]))], &[("x", f32s(&[1], &[1.0]))]).run();
    assert_eq!(exit, Exit::GateFailed);
    assert!(out.contains("FAIL x: type: want I64, got F32"), "{out}");
}

/// What `assert_close` takes, `compare` takes: rows are logits, and `ulp` is the largest distance.
#[test]
fn logits_are_compared_as_distributions() {
    let want = f32s(&[2, 3], &[1.0, 2.0, 3.0, 0.5, 0.0, -1.0]);
    let shifted = f32s(&[2, 3], &[2.0, 3.0, 4.0, 0.5, 0.0, -1.0]);
    let other = f32s(&[2, 3], &[3.0, 2.0, 1.0, 0.5, 0.0, -1.0]);
    let bench = |got: &Array, gate: &str| {
        Bench::new(&[("x", want.clone())], &[("x", got.clone())])
            .gates(&[gate])
            .run()
    };
    assert_eq!(
        bench(&shifted, "kl<=1e-12").0,
        Exit::Pass,
        "a constant changes no distribution"
    );
    let (exit, out) = bench(&other, "kl<=0.1");
    assert_eq!(exit, Exit::GateFailed, "{out}");
    // Half of Σ p·(log p − log q) of the first row: (0.6652 − 0.0900)·2 / 2.
    assert!(out.contains("kl is 0.575"), "{out}");
    assert_eq!(bench(&want, "ulp<=0").0, Exit::Pass);
    assert!(bench(&other, "ulp<=3").1.contains("ulp_max is"));
    let none = f32s(&[3, 0], &[]);
    let bench = Bench::new(&[("x", none.clone())], &[("x", none)]).metrics(&["kl"]);
    assert_eq!(bench.run().0, Exit::NotJudged, "rows without a number");
    let column = f32s(&[3, 1], &[1.0, 2.0, 3.0]);
    let moved = f32s(&[3, 1], &[1.0, 2.0, 3.5]);
    let (exit, out) = Bench::new(&[("x", column)], &[("x", moved)]).gates(&["kl<=0.1"]).run();
    assert_eq!(exit, Exit::NotJudged, "{out}");
}

#[test]
fn ulps_need_one_type() {
    let want = f32s(&[2], &[1.0, 2.0]);
    let near = f32s(&[2], &[1.0, 2.0f32.next_up().next_up()]);
    let bench = Bench::new(&[("x", want.clone())], &[("x", near)]).gates(&["ulp_max<=1"]);
    let (exit, out) = bench.run();
    assert_eq!(exit, Exit::GateFailed);
    assert!(out.contains("ulp_max is 2.0; gate ulp_max<=1"), "{out}");
    let half: Vec<u8> = [1.0f32, 2.0]
        .iter()
        .flat_map(|&x| half::bf16::from_f32(x).to_le_bytes())
        .collect();
    let bench = Bench::new(&[("x", want)], &[("x", raw(Dtype::BF16, &[2], &half))]).gates(&["ulp_max<=1"]);
    let (exit, out) = bench.run();
    assert_eq!(exit, Exit::GateFailed, "a gate that cannot be judged is not passed");
    assert!(out.contains("ulp_max is not defined between F32 and BF16"), "{out}");
    // In the type's own steps: 2 and its bf16 neighbour.
    let mut next = half.clone();
    next[2] += 1;
    let pair = [half, next].map(|bytes| [("x", raw(Dtype::BF16, &[2], &bytes))]);
    assert_eq!(
        Bench::new(&pair[0], &pair[1]).gates(&["ulp_max<=1"]).run().0,
        Exit::Pass
    );
}

#[test]
fn fp8_is_compared_by_value_and_scales_exactly() {
    let fp8 = |codes: &[u8]| raw(Dtype::F8_E4M3, &[codes.len()], codes);
    let scale = |codes: &[u8]| raw(Dtype::F8_E8M0, &[codes.len()], codes);
    // 1.0 and 1.125 are neighbours; 0x7F is NaN.
    let bench = Bench::new(&[("x", fp8(&[0x38, 0x38]))], &[("x", fp8(&[0x38, 0x39]))]);
    let (_, records) = bench.metrics(&["max_abs", "ulp_max"]).json();
    assert_eq!(records[1]["metrics"], json!({ "max_abs": 0.125, "ulp_max": 1.0 }));
    let (exit, _) = Bench::new(&[("x", fp8(&[0x38]))], &[("x", fp8(&[0x7F]))]).run();
    assert_eq!(exit, Exit::GateFailed);
    let (exit, out) = Bench::new(&[("s", scale(&[127, 128]))], &[("s", scale(&[127, 127]))]).run();
    assert_eq!(exit, Exit::GateFailed);
    assert!(
        out.contains("1 of 2 elements differ, first at [1]: want 128, got 127"),
        "{out}"
    );
}

#[test]
fn empty_and_scalar_tensors() {
    let want = [("empty", f32s(&[0, 7], &[])), ("scalar", f32s(&[], &[2.0]))];
    let got = [("empty", f32s(&[0, 7], &[])), ("scalar", f32s(&[], &[3.0]))];
    let bench = Bench::new(&want, &got).gates(&["diff<=0.1"]);
    let (exit, records) = bench.json();
    assert_eq!(exit, Exit::NotJudged);
    let empty = records.iter().find(|record| record["name"] == "empty").unwrap();
    assert_eq!(
        (&empty["pass"], &empty["metrics"], &empty["gates"]),
        (&json!(false), &json!({}), &json!([]))
    );
    let scalar = records.iter().find(|record| record["name"] == "scalar").unwrap();
    assert_eq!(scalar["worst"], json!({ "index": [], "want": 2.0, "got": 3.0 }));
}

/// Also of this kind: integers, scales and booleans without elements, infinities, one type against another.
#[test]
fn files_without_a_number_are_not_judged() {
    let nan = |n: usize| f32s(&[n], &vec![f32::NAN; n]);
    let (all, inf) = (f32s(&[2], &[1.0, 2.0]), f32s(&[2], &[f32::INFINITY; 2]));
    for (tensor, gates, last) in [
        (
            nan(3),
            &[][..],
            "NOT JUDGED: 0 tensors passed, 0 failed, 1 without a finite number",
        ),
        (
            nan(3),
            &["nonfinite<=6"],
            "NOT JUDGED: 0 tensors passed, 0 failed, 1 without a finite number",
        ),
        (
            inf,
            &[],
            "NOT JUDGED: 0 tensors passed, 0 failed, 1 without a finite number",
        ),
        (nan(0), &[], "NOT JUDGED: 0 tensors passed, 0 failed, 1 empty"),
        (
            f32s(&[0, 7], &[]),
            &[],
            "NOT JUDGED: 0 tensors passed, 0 failed, 1 empty",
        ),
        (i64s(&[0], &[]), &[], "NOT JUDGED: 0 tensors passed, 0 failed, 1 empty"),
        (
            raw(Dtype::BOOL, &[3, 0], &[]),
            &[],
            "NOT JUDGED: 0 tensors passed, 0 failed, 1 empty",
        ),
        (all, &["diff<=1e-3"], "PASS: 1 tensor passed"),
    ] {
        let bench = Bench::new(&[("x", tensor.clone())], &[("x", tensor)]).gates(gates);
        let (exit, out) = bench.run();
        let expected = if last.starts_with("PASS") {
            Exit::Pass
        } else {
            Exit::NotJudged
        };
        assert!(
            exit == expected && out.lines().last().unwrap().starts_with(last),
            "{last}: {out}"
        );
    }
}

#[test]
fn json_lines_are_typed_records() {
    let bench = Bench::new(&tensors(1.0), &tensors(1.0))
        .metrics(&["sqnr", "nonfinite"])
        .gates(&["kv:diff<=1e-3"]);
    let (exit, records) = bench.json();
    assert_eq!(exit, Exit::Pass);
    let types: Vec<_> = records.iter().map(|record| record["type"].as_str().unwrap()).collect();
    assert_eq!(types, ["config", "tensor", "tensor", "tensor", "summary"]);
    assert_eq!(records[0]["metrics"], json!(["diff", "sqnr", "nonfinite"]));
    assert_eq!(records[0]["gates"], json!(["kv:diff<=1e-3"]));
    let by_name = |name: &str| records.iter().find(|record| record["name"] == name).unwrap();
    assert_eq!(by_name("kv")["metrics"]["sqnr"], json!("Infinity"));
    assert_eq!(
        by_name("kv")["gates"],
        json!([{ "gate": "kv:diff<=1e-3", "value": 0.0, "pass": true }])
    );
    assert_eq!(by_name("layers.0.out")["gates"], json!([]));
    assert_eq!(by_name("topk")["mismatches"], json!(0));
    let summary = records.last().unwrap();
    assert_eq!(
        (&summary["verdict"], &summary["compared"], &summary["failed"]),
        (&json!("pass"), &json!(3), &json!(0))
    );

    let nan = Bench::new(
        &[("x", f32s(&[1], &[f32::NAN]))],
        &[("x", f32s(&[1], &[f32::INFINITY]))],
    );
    let (exit, records) = nan.metrics(&["cosine"]).json();
    assert_eq!(exit, Exit::GateFailed);
    assert_eq!(records[1]["metrics"]["cosine"], Value::Null);
    assert_eq!(
        records[1]["worst"],
        json!({ "index": [0], "want": null, "got": "Infinity" })
    );
    assert_eq!(records[2]["verdict"], "fail");
}

#[test]
fn selection_and_unmatched_tensors() {
    let want = [
        ("a.x", f32s(&[1], &[1.0])),
        ("a.y", f32s(&[1], &[1.0])),
        ("b", f32s(&[1], &[1.0])),
    ];
    let got = [
        ("a.x", f32s(&[1], &[1.0])),
        ("b", f32s(&[2], &[1.0, 1.0])),
        ("c", f32s(&[1], &[1.0])),
    ];
    let mut bench = Bench::new(&want, &got);
    bench.args.allow_unmatched = true;
    let (exit, out) = bench.run();
    assert_eq!(exit, Exit::GateFailed, "b has another shape");
    assert!(
        out.contains("only in want: a.y") && out.contains("only in got: c"),
        "{out}"
    );
    bench.args.skip = vec!["b".into()];
    assert_eq!(bench.run().0, Exit::Pass);
    bench.args.allow_unmatched = false;
    bench.args.only = vec!["a.*".into()];
    bench.args.skip = vec!["*.y".into()];
    let (exit, records) = bench.json();
    assert_eq!(exit, Exit::Pass);
    assert_eq!(records.len(), 3);
}

#[test]
fn the_command_line_parses() {
    #[derive(Parser)]
    struct Cli {
        #[command(flatten)]
        compare: CompareArgs,
    }
    let args = Cli::parse_from([
        "compare",
        "a.npy",
        "b.npy",
        "--gate",
        "cosine>=0.9",
        "--gate",
        "diff<=1",
        "--json",
    ])
    .compare;
    assert_eq!(args.metrics, ["cosine", "diff", "sqnr", "max_abs"]);
    assert_eq!((args.gates.len(), args.json, args.allow_unmatched), (2, true, false));
    let args = Cli::parse_from(["compare", "a.npy", "b.npy", "--metrics", "nsr,ulp_max"]).compare;
    assert_eq!(args.metrics, ["nsr", "ulp_max"]);
    assert!(Cli::try_parse_from(["compare", "a.npy"]).is_err());
}
