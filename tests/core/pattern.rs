//! Patterns of dotted names.

use std::hint::black_box;
use std::time::{Duration, Instant};

use ulplab_core::pattern::{matches, matches_nothing};

#[test]
fn stars_stop_at_dots_and_double_stars_do_not() {
    for (pattern, name, expected) in [
        ("", "", true),
        ("", "a", false),
        ("*", "", true),
        ("*", "logits", true),
        ("*", "layers.0", false),
        ("**", "", true),
        ("**", "layers.0.attention.kv", true),
        ("layers.*.output", "layers.12.output", true),
        ("layers.*.output", "layers..output", true),
        ("layers.*.output", "layers.1.ffn.output", false),
        ("layers.**.output", "layers.1.ffn.output", true),
        ("layers.**output", "layers.output", true),
        ("layers.1*.x", "layers.12.x", true),
        ("layers.1*.x", "layers.2.x", false),
        ("*.weight", "a.b.weight", false),
        ("**.weight", "a.b.weight", true),
        ("logits*", "logits", true),
        ("a**b**c", "a.b.b.c", true),
        ("a*****b", "a.b", true),
        ("*****", "a.b", true),
        ("a**b**c", "a.b.b", false),
        ("*a*a*a*b", "aaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaa", false),
        ("a.b", "a.b", true),
        ("a.b", "axb", false),
        ("größe.*", "größe.é", true),
        ("ab", "a", false),
        ("a", "ab", false),
    ] {
        assert_eq!(matches(pattern, name), expected, "{pattern} on {name}");
    }
}

/// Eight times the pattern is eight times the work, and not 64 times. Also of this kind: long names, stars between dots.
#[test]
fn work_grows_as_the_pattern_does() {
    let names = ["model.layers.0.mlp.weight"; 10];
    let kinds: [fn(usize) -> String; 6] = [
        |n| "*".repeat(2 * n) + "x",
        |n| "*a".repeat(n),
        |n| "*m*o*".repeat(n),
        |n| "w".repeat(2 * n),
        |n| format!("model.layers.{}.mlp.weight", "9".repeat(2 * n)),
        |n| format!("model.layers.*.{}.weight", "*x".repeat(n)),
    ];
    for kind in kinds {
        let time = |n| {
            let pattern = kind(n);
            let start = Instant::now();
            assert!(black_box(matches_nothing("tensor", &pattern, names)).contains("matches no tensor"));
            start.elapsed().max(Duration::from_micros(100))
        };
        // A machine that has other work makes some times longer, and not all.
        let grown = || {
            let once = time(2500);
            time(20_000).as_secs_f64() / once.as_secs_f64()
        };
        let least = (0..20).map(|_| grown()).find(|grown| *grown < 24.0);
        assert!(least.is_some(), "{}", kind(3));
    }
}

#[test]
fn a_pattern_that_matches_nothing_is_told_what_would_match() {
    let names = [
        "model.layers.0.mlp.weight",
        "model.layers.1.mlp.weight",
        "lm_head.weight",
    ];
    for (pattern, hint) in [
        ("*.weights", "; tensors are named like 'model.layers.0.mlp.weight'"),
        ("*weight", "; '*' stops at dots: '**weight' matches 3 tensors"),
        (
            "model.*.weight",
            "; '*' stops at dots: 'model.**.weight' matches 2 tensors",
        ),
        ("lm_head", "; did you mean 'lm_head.weight'?"),
        ("mlp", "; '**mlp**' matches 2 tensors"),
        (
            "model.layers.*.feed_forward_network.weight",
            "; did you mean 'model.layers.*.mlp.weight'?",
        ),
        ("LM_Head.Weight", "; did you mean 'lm_head.weight'?"),
    ] {
        let found = matches_nothing("tensor", pattern, names);
        assert_eq!(found, format!("'{pattern}' matches no tensor{hint}"));
    }
}
