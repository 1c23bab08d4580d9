//! Expressions of sizes.

use ulplab::backend::cuda::expr::eval;

#[test]
fn values() {
    let sizes = |name: &str| match name {
        "T" => Some(5),
        "sms" => Some(132),
        _ => None,
    };
    for (text, value) in [
        ("7", 7),
        ("2 + 3 * 4 - 1", 13),
        ("(2+3)*4", 20),
        ("T % 2 == 1 && T >= 5", 1),
        ("ceil(T * 64, 256)", 2),
        ("min(sms * 2, ceil(T,2))", 3),
        ("max(1, T - 9)", 1),
        ("T < 2 || 0", 0),
        ("-T + 6", 1),
    ] {
        assert_eq!(eval(text, &sizes), Ok(value), "{text}");
    }
    for (text, word) in [
        ("", "too early"),
        ("T +", "too early"),
        ("K", "no size 'K'"),
        ("ceil(3)", "','"),
        ("(T", "')' is missing"),
        ("T T", "unexpected 'T'"),
        ("1/0", "no value"),
        ("ceil(1,0)", "ceil by 0"),
        ("3 ? 4", "unexpected '?'"),
        ("ceil(9223372036854775807, 2)", "has no value"),
    ] {
        let error = eval(text, &sizes).unwrap_err();
        assert!(error.contains(word), "{text}: {error}");
        assert!(error.starts_with(&format!("expression '{text}': ")), "{error}");
    }
    let nested = |depth: usize| format!("{}1{}", "(".repeat(depth), ")".repeat(depth));
    assert_eq!(eval(&nested(64), &sizes), Ok(1));
    let error = eval(&nested(10_000), &sizes).unwrap_err();
    assert!(error.contains("more than 64 deep"), "{error}");
    assert_eq!(eval(&format!("{}1", "-".repeat(10_000)), &sizes), Ok(1));
}
