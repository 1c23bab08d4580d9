//! Every kind of mistake has its message.

use ulplab::Exit;

use super::{Bench, Dtype, f32s, i64s, raw};

fn bench() -> Bench {
    let tensors = [
        ("logits", f32s(&[2], &[1.0, 2.0])),
        ("ids", i64s(&[1], &[1])),
        ("none", f32s(&[0], &[])),
    ];
    Bench::new(&tensors, &tensors)
}

#[track_caller]
fn usage(bench: &Bench, expected: &str) {
    let (exit, message) = bench.error();
    assert_eq!(exit, Exit::Usage);
    assert_eq!(message, expected);
}

#[test]
fn metrics() {
    usage(
        &bench().metrics(&["cosin"]),
        "no metric 'cosin'; did you mean 'cosine'?",
    );
    usage(
        &bench().metrics(&["delta_nats"]),
        "metric 'delta_nats' needs more than two tensors; compare has cosine, diff, relative_l2, nsr, sqnr, max_abs, ulp_p50, \
         ulp_p99, ulp_max, nonfinite, kl, kl_max, top1, flip_gap",
    );
}

#[test]
fn gates() {
    for (gate, expected) in [
        ("cosine", "expected [PATTERN:]METRIC>=BOUND or <=BOUND"),
        (
            "cosine>0.9",
            "'>0.9' is not a bound; expected '>= NUMBER' or '<= NUMBER'",
        ),
        ("cosine>=high", "'high' in '>=high' is not a number"),
        ("cosine>=nan", "'nan' in '>=nan' is not finite"),
        ("cosin>=0.9", "no metric 'cosin'; did you mean 'cosine'?"),
        (">=0.9", "no metric ''"),
        ("cosine<=0.9", "of cosine, higher is better: demand >="),
        (
            "cosine>=-1",
            "cosine >= -1: no measurement can break it, since cosine is never below -1",
        ),
        (
            "logits:diff<=2",
            "diff <= 2: no measurement can break it, since diff is never above 2",
        ),
        (
            "max_abs<=1e300",
            "max_abs <= 1e300: no measurement can break it, since max_abs is never above 6.805646932770577e38",
        ),
        (
            "relative_l2<=1e300",
            "relative_l2 <= 1e300: no measurement can break it, since relative_l2 is never above 2.0859247154357046e93",
        ),
        (
            "sqnr>=-1e9",
            "sqnr >= -1e9: no measurement can break it, since sqnr is never below -1870",
        ),
        (
            "nsr<=1e-400",
            "'1e-400' in '<=1e-400' is too small for a f64, it reads as 0",
        ),
        ("logits:diff>=0.9", "of diff, lower is better: demand <="),
        ("logit:diff<=1", "'logit' matches no tensor; did you mean 'logits'?"),
        ("kv.*:diff<=1", "'kv.*' matches no tensor; tensors are named like 'ids'"),
        (
            "ids:diff<=1",
            "applies to nothing: the tensors it matches are empty, or integers or booleans, which must be equal",
        ),
        (
            "none:diff<=1",
            "applies to nothing: the tensors it matches are empty, or integers or booleans, which must be equal",
        ),
    ] {
        usage(&bench().gates(&[gate]), &format!("gate '{gate}': {expected}"));
    }
    let expected = "gate 'logits:diff<=1.5': never applies: earlier gates on diff match all of its tensors";
    usage(&bench().gates(&["diff<=1", "logits:diff<=1.5"]), expected);
}

#[test]
fn tensors_without_partner() {
    let want = [("logits", f32s(&[1], &[1.0])), ("kv", f32s(&[1], &[1.0]))];
    let got = [("logit", f32s(&[1], &[1.0])), ("kv", f32s(&[1], &[1.0]))];
    usage(
        &Bench::new(&want, &got),
        "2 tensors are in one file only (--allow-unmatched ignores them):\n  \
         'logits' only in want.safetensors; did you mean 'logit'?\n  \
         'logit' only in got.safetensors; did you mean 'logits'?",
    );
    let many: Vec<(String, _)> = (0..8).map(|i| (format!("t{i}"), f32s(&[1], &[1.0]))).collect();
    let many: Vec<(&str, _)> = many
        .iter()
        .map(|(name, array)| (name.as_str(), array.clone()))
        .collect();
    let (_, message) = Bench::new(&many, &[]).error();
    assert!(message.ends_with("\n  and 3 more"), "{message}");
}

#[test]
fn nothing_to_compare() {
    let mut bench = Bench::new(&[("a", f32s(&[1], &[1.0]))], &[("b", f32s(&[1], &[1.0]))]);
    bench.args.allow_unmatched = true;
    assert_eq!(
        bench.error(),
        (Exit::NotJudged, "nothing selected: no tensor is in both files".into())
    );
    let mut bench = Bench::new(&[("a", f32s(&[1], &[1.0]))], &[("a", f32s(&[1], &[1.0]))]);
    bench.args.only = vec!["b".into()];
    assert_eq!(bench.error().0, Exit::NotJudged);
}

#[test]
fn types_that_cannot_be_compared() {
    let complex = [("z", raw(Dtype::C64, &[1], &[0; 8]))];
    usage(
        &Bench::new(&complex, &complex),
        "want.safetensors: tensor 'z': type C64 cannot be compared",
    );
    let packed = [("w", raw(Dtype::F4, &[2], &[0x21]))];
    usage(
        &Bench::new(&packed, &packed),
        "want.safetensors: tensor 'w': type F4 cannot be compared",
    );
}

#[test]
fn files() {
    let mut bench = bench();
    bench.args.got = bench.path().join("absent.safetensors");
    let (exit, message) = bench.error();
    assert_eq!(exit, Exit::Usage);
    assert!(
        message.starts_with("absent.safetensors: there is no such file or folder; "),
        "{message}"
    );
    bench.args.got = bench.write("got.pt", b"PK");
    let (exit, message) = bench.error();
    assert_eq!(exit, Exit::Usage);
    assert!(
        message.starts_with("got.pt: extension 'pt', expected 'safetensors' or 'npy'"),
        "{message}"
    );
    let folder = bench.path().join("folder.npy");
    std::fs::create_dir(&folder).unwrap();
    bench.args.got = folder;
    usage(
        &bench,
        "folder.npy: no model.safetensors, model.safetensors.index.json or other *.safetensors in this folder",
    );
    bench.args.got = bench.write("empty.safetensors", b"");
    usage(
        &bench,
        "empty.safetensors: truncated: 0 bytes, expected 8 bytes of header length first",
    );
}

#[test]
fn a_closed_pipe_is_an_error_and_no_panic() {
    struct Closed;
    impl std::io::Write for Closed {
        fn write(&mut self, _: &[u8]) -> std::io::Result<usize> {
            Err(std::io::ErrorKind::BrokenPipe.into())
        }
        fn flush(&mut self) -> std::io::Result<()> {
            Ok(())
        }
    }
    let bench = bench();
    assert_eq!(
        ulplab::commands::compare::run_to(&bench.args, &mut Closed)
            .unwrap_err()
            .exit(),
        Exit::Setup
    );
}
