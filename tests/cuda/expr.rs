//! Expressions of sizes.

use ulplab::backend::cuda::expr::{choices, eval};

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

#[test]
fn decisions() {
    let sizes = |name: &str| (name == "T").then_some(7);
    let found = |text: &str| {
        let choices = choices(text, &sizes).unwrap();
        let written = choices.iter().map(|choice| format!("{} {:?}", choice.operator, choice.operands));
        written.collect::<Vec<_>>().join(", ")
    };
    assert_eq!(found("T + 2 * T"), "");
    assert_eq!(found("ceil(T, 4) * (T <= 8)"), "ceil [7, 4], <= [7, 8]");
    assert_eq!(found("min(T % 2, T / 2)"), "% [7, 2], / [7, 2], min [1, 3]");
    // The right side decides nothing where the left side has.
    assert_eq!(found("T > 8 && T > 9"), "> [7, 8]");
    assert_eq!(found("T < 8 || T > 9"), "< [7, 8]");
    assert_eq!(found("T < 8 && T > 9"), "< [7, 8], > [7, 9]");
}
