//! Comparisons that must not pass. A row names the check that would have let it pass: another function, or a word of the same one.
//! Also of each kind: other types and metrics, a .npy in the place of a file, names with other prefixes.

use half::{bf16, f16};
use ulplab::Exit;

use super::{Array, Bench, Dtype, f32s, i64s, raw};

/// What may come out of a case.
#[derive(Debug)]
enum End {
    /// A difference is found.
    Fails(&'static str),
    /// Nothing of the tensor was judged.
    Open(&'static str),
    /// The question is wrong.
    Refused(&'static str),
}
use End::{Fails, Open, Refused};

/// Tensors of both sides, and gates.
type Case = (
    &'static str,
    Vec<(&'static str, Array)>,
    Vec<(&'static str, Array)>,
    &'static [&'static str],
    End,
);

const N: usize = 64;

fn numbers(scale: f32) -> Vec<f32> {
    (0..N).map(|i| (i as f32 * 0.37).sin() * scale).collect()
}

/// Numbers of a sine, times a factor.
fn wave(scale: f32) -> Array {
    f32s(&[8, 8], &numbers(scale))
}

fn coded(dtype: Dtype, codes: impl Iterator<Item = u16>) -> Array {
    let narrow = dtype.bitsize() == 8;
    let bytes: Vec<u8> = codes
        .flat_map(|code| code.to_le_bytes()[..if narrow { 1 } else { 2 }].to_vec())
        .collect();
    raw(dtype, &[8, 8], &bytes)
}

fn halves(scale: f32) -> Array {
    coded(
        Dtype::F16,
        numbers(scale).into_iter().map(|x| f16::from_f32(x).to_bits()),
    )
}

fn brains(scale: f32) -> Array {
    coded(
        Dtype::BF16,
        numbers(scale).into_iter().map(|x| bf16::from_f32(x).to_bits()),
    )
}

/// FP8 codes from a place on, the second half of which has the other sign.
fn eighths(dtype: Dtype, sign: u16) -> Array {
    coded(dtype, (0..N as u16).map(|i| (0x20 + i % 0x20) | sign))
}

/// With one element in the place of another.
fn with(scale: f32, at: usize, value: f32) -> Array {
    let mut all = numbers(scale);
    all[at] = value;
    f32s(&[8, 8], &all)
}

fn one(array: Array) -> Vec<(&'static str, Array)> {
    vec![("x", array)]
}

fn doubles(values: &[f64]) -> Array {
    let bytes: Vec<u8> = values.iter().flat_map(|x| x.to_le_bytes()).collect();
    raw(Dtype::F64, &[values.len()], &bytes)
}

#[rustfmt::skip]
fn table() -> Vec<Case> {
    let nan = f32::NAN;
    let inf = f32::INFINITY;
    let (e4m3, e5m2) = (Dtype::F8_E4M3, Dtype::F8_E5M2);
    let mut cases: Vec<Case> = vec![
        // A gate that no numbers of the tensor's type can break.
        ("ulp_max of all codes of f32 (the range of u64)", one(wave(1.0)), one(wave(-1.0)), &["ulp_max<=4294967295"],
            Open("no gate binds")),
        ("ulp_p50 of all codes of f32 (the range of u64)", one(wave(1.0)), one(wave(-1.0)), &["ulp_p50<=4278190078"],
            Open("no gate binds")),
        ("ulp_max of all codes of bf16 (the range of f32)", one(brains(1.0)), one(brains(-1.0)), &["ulp_max<=65278"],
            Open("no gate binds")),
        ("ulp_p99 of all codes of f16 (the range of f32)", one(halves(1.0)), one(halves(-1.0)), &["ulp_p99<=65535"], Open("no gate binds")),
        ("ulp_max of all codes of e4m3 (the range of f32)", one(eighths(e4m3, 0)), one(eighths(e4m3, 0x80)), &["ulp_max<=252"],
            Open("no gate binds")),
        ("ulp_max of all codes of e5m2 (the range of f32)", one(eighths(e5m2, 0)), one(eighths(e5m2, 0x80)), &["ulp_max<=255"],
            Open("no gate binds")),
        ("max_abs above the range of e4m3 (that of f32)", one(eighths(e4m3, 0)), one(eighths(e4m3, 0x80)), &["max_abs<=896"],
            Open("no gate binds")),
        ("max_abs above the range of e5m2 (that of f32)", one(eighths(e5m2, 0)), one(eighths(e5m2, 0x80)), &["max_abs<=114688"],
            Open("no gate binds")),
        ("max_abs above the range of f16 (that of f32)", one(halves(1.0)), one(halves(-1.0)), &["max_abs<=1e6"], Open("no gate binds")),
        ("max_abs above the range of bf16 (that of f32)", one(brains(1.0)), one(brains(-1.0)), &["max_abs<=6.79e38"],
            Open("no gate binds")),
        ("max_abs above the range of e4m3 and f16 (that of f32)", one(eighths(e4m3, 0)), one(halves(1.0)), &["max_abs<=65952"],
            Open("no gate binds")),
        ("two gates, neither of which can break (one alone)", one(halves(1.0)), one(halves(-1.0)), &["max_abs<=1e6", "ulp_max<=65535"],
            Open("no gate binds")),
        // A gate that says nothing of the numbers.
        ("nonfinite <= 0 of other numbers (a gate of any metric)", one(wave(1.0)), one(wave(-1.0)), &["nonfinite<=0"],
            Open("no gate binds")),
        ("nonfinite <= 1000 of 64 elements (a gate of any metric)", one(wave(1.0)), one(wave(9.0)), &["nonfinite<=1000"],
            Open("no gate binds")),
        ("nonfinite by pattern (a gate of any metric)", one(wave(1.0)), one(wave(9.0)), &["x:nonfinite<=0"], Open("no gate binds")),
        // NaN and infinity.
        ("NaN where a number is wanted (a metric of the rest)", one(wave(1.0)), one(with(1.0, 5, nan)), &["cosine>=0.1"], Fails("NaN/Inf")),
        ("a number where NaN is wanted (a metric of the rest)", one(with(1.0, 5, nan)), one(wave(1.0)), &["cosine>=0.1"], Fails("NaN/Inf")),
        ("NaN in another place (a count)", one(with(1.0, 5, nan)), one(with(1.0, 6, nan)), &["nonfinite<=2"], Fails("NaN/Inf")),
        ("NaN in the same place, and a gate (a metric of the rest)", one(with(1.0, 5, nan)), one(with(1.0, 5, nan)), &["cosine>=0.1"],
            Fails("cosine is NaN")),
        ("NaN in the same place, and no gate (NaN meets NaN)", one(with(1.0, 5, nan)), one(with(1.0, 5, nan)), &[], Open("no gate binds")),
        ("infinity of the other sign (NaN and infinity alike)", one(with(1.0, 5, inf)), one(with(1.0, 5, -inf)), &["nonfinite<=2"],
            Fails("NaN/Inf")),
        ("infinity for NaN (a count)", one(with(1.0, 5, nan)), one(with(1.0, 5, inf)), &["nonfinite<=2"], Fails("NaN/Inf")),
        ("the largest number for infinity (saturation)", one(with(1.0, 5, inf)), one(with(1.0, 5, f32::MAX)), &["cosine>=0.1"],
            Fails("NaN/Inf")),
        ("an infinity under max_abs (∞ − ∞)", one(with(1.0, 5, inf)), one(with(1.0, 5, inf)), &["max_abs<=1"], Fails("max_abs is NaN")),
        ("an infinity under sqnr (∞ / ∞)", one(with(1.0, 5, inf)), one(with(1.0, 5, inf)), &["sqnr>=10"], Fails("sqnr is NaN")),
        ("an infinity under ulp_max (equal codes)", one(with(1.0, 5, inf)), one(with(1.0, 5, inf)), &["ulp_max<=1"], Fails("ulp_max")),
        ("all NaN under ulp_max (no distance)", one(f32s(&[2], &[nan; 2])), one(f32s(&[2], &[nan; 2])), &["ulp_max<=1"], Fails("ulp_max")),
        ("all infinite under relative_l2 (no norm)", one(f32s(&[2], &[inf; 2])), one(f32s(&[2], &[inf; 2])), &["relative_l2<=1"],
            Fails("relative_l2")),
        // Zeros.
        ("zeros for numbers, by cosine (0/0 as 1)", one(wave(1.0)), one(wave(0.0)), &["cosine>=0.1"], Fails("cosine is")),
        ("numbers for zeros, by cosine (0/0 as 1)", one(wave(0.0)), one(wave(1.0)), &["cosine>=0.1"], Fails("cosine is")),
        ("numbers for zeros, by relative_l2 (no norm)", one(wave(0.0)), one(wave(1e-30)), &["relative_l2<=1e9"], Fails("relative_l2 is")),
        ("numbers for zeros, by nsr (no norm)", one(wave(0.0)), one(wave(1e-30)), &["nsr<=1e9"], Fails("nsr is")),
        ("numbers for zeros, by sqnr (no norm)", one(wave(0.0)), one(wave(1.0)), &["sqnr>=-1000"], Fails("sqnr is")),
        ("zeros for numbers, by sqnr (0 dB)", one(wave(1.0)), one(wave(0.0)), &["sqnr>=1"], Fails("sqnr is")),
        ("zeros for subnormals, by ulp_max (max_abs)", one(wave(1e-40)), one(wave(0.0)), &["ulp_max<=100"], Fails("ulp_max is")),
        ("zeros for subnormals, by cosine (sums that underflow)", one(wave(1e-40)), one(wave(0.0)), &["cosine>=0.1"], Fails("cosine is")),
        ("the other sign of huge numbers, by cosine (sums that overflow)", one(wave(3e38)), one(wave(-3e38)), &["cosine>=0.1"],
            Fails("cosine is")),
        ("the other sign of tiny numbers, by cosine (sums that underflow)", one(wave(1e-38)), one(wave(-1e-38)), &["cosine>=0.1"],
            Fails("cosine is")),
        // Shapes and types.
        ("rows as columns (as many elements)", one(f32s(&[16, 4], &numbers(1.0))), one(f32s(&[4, 16], &numbers(1.0))),
            &["cosine>=0.1"], Fails("shape")),
        ("one row for all (broadcasting)", one(wave(1.0)), one(f32s(&[1, 8], &numbers(1.0)[..8])), &["cosine>=0.1"], Fails("shape")),
        ("a flat tensor (as many elements)", one(wave(1.0)), one(f32s(&[64], &numbers(1.0))), &["cosine>=0.1"], Fails("shape")),
        ("a scalar for [1] (as many elements)", one(f32s(&[1], &[1.0])), one(f32s(&[], &[1.0])), &[], Fails("shape")),
        ("a leading 1 (broadcasting)", one(wave(1.0)), one(f32s(&[1, 8, 8], &numbers(1.0))), &[], Fails("shape")),
        ("the last rows are missing (the shorter of both)", one(wave(1.0)), one(f32s(&[7, 8], &numbers(1.0)[..56])), &["cosine>=0.1"],
            Fails("shape")),
        ("no rows (the shorter of both)", one(wave(1.0)), one(f32s(&[0, 8], &[])), &[], Fails("shape")),
        ("empty of another shape (no elements)", one(f32s(&[0, 8], &[])), one(f32s(&[8, 0], &[])), &[], Fails("shape")),
        ("integers as floats (values)", one(i64s(&[2], &[1, 2])), one(f32s(&[2], &[1.0, 2.0])), &[], Fails("type")),
        ("codes of FP8 as bytes (bytes)", one(eighths(e4m3, 0)), one(coded(Dtype::U8, (0..64).map(|i| 0x20 + i % 0x20))), &[],
            Fails("type")),
        ("E4M3 codes read as E5M2 (bytes)", one(eighths(e4m3, 0)), one(eighths(e5m2, 0)), &["cosine>=0.999"], Fails("cosine is")),
        ("ulp of two types (values)", one(wave(1.0)), one(brains(1.0)), &["ulp_max<=1"], Fails("ulp_max is not defined")),
        ("an id that a float cannot hold (f32)", one(i64s(&[1], &[16_777_217])), one(i64s(&[1], &[16_777_216])), &[],
            Fails("1 of 1 elements differ")),
        ("an id that a double cannot hold (f64)", one(i64s(&[1], &[9_007_199_254_740_993])), one(i64s(&[1], &[9_007_199_254_740_992])),
            &[], Fails("1 of 1 elements differ")),
        ("a wrong sign of an id (magnitudes)", one(i64s(&[1], &[-1])), one(i64s(&[1], &[1])), &[], Fails("1 of 1 elements differ")),
        ("a double that differs below f32 (f32)", one(doubles(&[1.0, 2.0])), one(doubles(&[1.0 + 1e-12, 2.0])), &[], Open("no gate binds")),
        ("a double that differs below f32, by a gate (f32)", one(doubles(&[1.0, 2.0])), one(doubles(&[1.0 + 1e-12, 2.0])),
            &["max_abs<=1e-13"], Fails("max_abs is")),
        // What was left out.
        ("the other tensor differs (the gate of one)", vec![("x", wave(1.0)), ("y", wave(1.0))],
            vec![("x", wave(1.0)), ("y", wave(-1.0))], &["x:cosine>=0.9"], Open("no gate binds")),
        ("the other tensor is empty (the gate of one)", vec![("x", wave(1.0)), ("y", f32s(&[0], &[]))],
            vec![("x", wave(1.0)), ("y", f32s(&[0], &[]))], &["x:cosine>=0.9"], Open("1 empty")),
        ("the other tensor is NaN (the gate of one)", vec![("x", wave(1.0)), ("y", f32s(&[1], &[nan]))],
            vec![("x", wave(1.0)), ("y", f32s(&[1], &[nan]))], &["x:cosine>=0.9"], Open("without a finite number")),
        ("names that are swapped (sets of tensors)", vec![("x", wave(1.0)), ("y", wave(-1.0))],
            vec![("x", wave(-1.0)), ("y", wave(1.0))], &["cosine>=0.9"], Fails("2 failed")),
        ("a name in capitals (names without case)", one(wave(1.0)), vec![("X", wave(1.0))], &["cosine>=0.9"], Refused("'x' only in")),
        ("a name with a space (trimmed names)", one(wave(1.0)), vec![("x ", wave(1.0))], &["cosine>=0.9"], Refused("'x' only in")),
        ("a tensor that the candidate lacks (those in both)", vec![("x", wave(1.0)), ("y", wave(1.0))], one(wave(1.0)),
            &["cosine>=0.9"], Refused("'y' only in")),
        ("a tensor that the reference lacks (those in both)", one(wave(1.0)), vec![("x", wave(1.0)), ("y", wave(1.0))],
            &["cosine>=0.9"], Refused("'y' only in")),
        ("no tensors at all (equal files)", vec![], vec![], &[], Refused("no tensor is in both files")),
        ("a second gate that never applies (the first)", one(wave(1.0)), one(wave(1.0)), &["cosine>=0.1", "x:cosine>=0.99"],
            Refused("never applies")),
        ("a gate on integers alone (equal files)", one(i64s(&[1], &[1])), one(i64s(&[1], &[1])), &["cosine>=0.9"],
            Refused("applies to nothing")),
        ("one element wrong of 64, by quantiles (ulp_p50)", one(wave(1.0)), one(with(1.0, 5, 99.0)), &["ulp_max<=4"], Fails("ulp_max is")),
        ("a gain, by diff (cosine)", one(wave(1.0)), one(wave(1.3)), &["diff<=1e-3"], Fails("diff is")),
        ("a gain in FP8's own steps (cosine)", one(brains(1.0)), one(brains(2.0)), &["ulp_p50<=1"], Fails("ulp_p50 is")),
    ];
    // The same gate on tensors of both kinds judges one of them.
    let both = |sign: f32, code: u16| vec![("x", wave(sign)), ("y", eighths(e4m3, code))];
    cases.push((
        "a bound for f32 on a tensor of e4m3, too (one tensor)",
        both(1.0, 0),
        both(1.0, 0x80),
        &["max_abs<=1000"],
        Open("1 tensor passed, 0 failed, 1 that no gate binds"),
    ));
    cases
}

#[test]
fn comparisons_that_must_not_pass() {
    let cases = table();
    assert!(cases.len() >= 70, "{}", cases.len());
    let mut wrong = Vec::new();
    for (name, want, got, gates, end) in cases {
        let bench = Bench::new(&want, &got).gates(gates);
        let mut out = Vec::new();
        let found = match ulplab::commands::compare::run_to(&bench.args, &mut out) {
            Ok(exit) => (exit, String::from_utf8(out).unwrap()),
            Err(error) => (error.exit(), error.to_string()),
        };
        let right = match (&end, found.0) {
            (Fails(words), Exit::GateFailed)
            | (Open(words), Exit::NotJudged)
            | (Refused(words), Exit::Usage | Exit::NotJudged) => found.1.contains(words),
            _ => false,
        };
        if !right {
            wrong.push(format!("{name}: expected {end:?}, found {found:?}"));
        }
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}

/// Bounds that some numbers of the type break are judged, and files that are equal pass.
#[test]
fn their_right_ones_pass() {
    for (want, got, gates) in [
        (halves(1.0), halves(1.001), &["max_abs<=131007", "ulp_max<=63485"][..]),
        (brains(1.0), brains(1.0), &["ulp_max<=65277"]),
        (
            eighths(Dtype::F8_E4M3, 0),
            eighths(Dtype::F8_E4M3, 0),
            &["max_abs<=895"],
        ),
        (wave(1.0), wave(1.0), &["nonfinite<=0"]),
        (wave(1.0), wave(1.001), &["nonfinite<=0", "cosine>=0.9"]),
    ] {
        let (exit, out) = Bench::new(&one(want), &one(got)).gates(gates).run();
        assert_eq!(exit, Exit::Pass, "{gates:?}: {out}");
    }
}

/// The reason is said for people and for programs. A file is not compared with itself, by any name.
#[test]
fn gates_that_nothing_can_break_are_told() {
    let bench = Bench::new(&one(halves(1.0)), &one(halves(-1.0))).gates(&["max_abs<=1e6"]);
    let why = "max_abs <= 1e6: no numbers of F16 can break it, since max_abs is never above 131008 there";
    let (_, out) = bench.run();
    assert!(out.contains(&format!("not judged x: {why}")), "{out}");
    let (_, records) = bench.json();
    assert_eq!(records[1]["idle_gates"][0], why);
    let mut bench = Bench::new(&one(wave(1.0)), &one(wave(-1.0)));
    let names = [
        bench.args.want.clone(),
        bench.path().join("link.safetensors"),
        bench.path().join("hard.safetensors"),
    ];
    std::os::unix::fs::symlink(&names[0], &names[1]).unwrap();
    std::fs::hard_link(&names[0], &names[2]).unwrap();
    for got in names {
        bench.args.got = got;
        let (exit, message) = bench.error();
        assert_eq!(exit, Exit::Usage);
        assert!(
            message.contains("WANT and GOT are the same, and equal themselves; expected two"),
            "{message}"
        );
    }
}
