use super::*;

/// A sum and a delta rule whose states are stored in f16, in three ways.
const CARRIED: &str = r#"
name = "carried"
question = "Do errors pile up?"
kind = "recurrence"
draws = 3
shape = [2, 1024]

[[source]]
name = "sum"
from = { linear_attention = { op = "simple_gla", gate = "none", state = [16, 16] } }

[[source]]
name = "delta"
from = { linear_attention = { op = "kda", gate = { mean = -0.05 }, state = [16, 16] } }

[[recipe]]
name = "one_pass"
doc = "f32"
form = "one_pass"

[[recipe]]
name = "nearest"
doc = "f16"
form = "recurrent"
round = [{ at = "state", format = "f16" }]

[[recipe]]
name = "stochastic"
doc = "f16, by chance"
form = "recurrent"
round = [{ at = "state", format = "f16", direction = "stochastic" }]

[[recipe]]
name = "truncated"
doc = "f16, cut off"
form = "recurrent"
round = [{ at = "state", format = "f16", direction = "toward_zero" }]

[[gate]]
metric = "growth"
at = "sum.state"
phase = "local"
statistic = "ci_high"
require = "<= 0.7"
recipes = ["nearest", "stochastic"]
why = "independent errors add up with the root of the steps"

[[gate]]
metric = "growth"
at = "sum.state"
phase = "local"
statistic = "ci_low"
require = ">= 0.4"
control = true
recipes = ["nearest", "stochastic"]
why = "nothing is forgotten"

[[gate]]
metric = "relative_l2"
at = "*.output.*"
phase = "local"
statistic = "max"
require = "<= 1e-6"
recipes = ["one_pass"]
why = "f32"
"#;

/// What published prefill kernels round, beside one rounding alone, and a state-space model.
const FORMS: &str = r#"
name = "forms"
question = "Which rounding counts?"
kind = "recurrence"
draws = 2
shape = [2, 256]

[[source]]
name = "kda"
from = { linear_attention = { op = "kda", gate = { bound = -5.0 }, state = [16, 32] } }

[[recipe]]
name = "exact"
doc = "f32 in chunks"
form = { chunked = 32 }

[[recipe]]
name = "fla"
doc = "as flash-linear-attention"
form = { prefill = "fla" }

[[recipe]]
name = "scores"
doc = "P in bf16"
form = { chunked = 64 }
round = [{ at = "p", format = "bf16" }]

[[gate]]
metric = "relative_l2"
at = "kda.output.*"
phase = "local"
statistic = "max"
require = "<= 1e-6"
recipes = ["exact"]
why = "f32"

[[gate]]
metric = "relative_l2"
at = "kda.output.256"
phase = "local"
statistic = "mean"
require = ">= 1e-4"
control = true
recipes = ["fla", "scores"]
why = "bf16 is not f32"
"#;

/// A state-space model that remembers all 1,024 steps, and one that forgets.
const SSM: &str = r#"
name = "ssm"
question = "How near to 1?"
kind = "recurrence"
draws = 3
shape = [4, 1024]

[[source]]
name = "quick"
from = { diagonal_ssm = { poles = { normal = 0.125 }, states = 16 } }

[[source]]
name = "slow"
from = { diagonal_ssm = { poles = { below_one = [1e-5, 1e-3] }, states = 16 } }

[[recipe]]
name = "recurrent"
doc = "f32"
form = "recurrent"

[[recipe]]
name = "folded"
doc = "f32, b in c"
form = "folded"

[[recipe]]
name = "chunked"
doc = "f32 in chunks"
form = { chunked = 128 }

[[recipe]]
name = "f16_a"
doc = "a in f16"
form = "folded"
round = [{ at = "a", format = "f16" }]

[[recipe]]
name = "f16_state"
doc = "the state in f16"
form = "recurrent"
round = [{ at = "state", format = "f16" }]

[[gate]]
metric = "relative_l2"
at = "*.*.*"
phase = "local"
statistic = "max"
require = "<= 1e-5"
recipes = ["recurrent", "folded", "chunked"]
why = "f32"

[[gate]]
metric = "growth"
at = "slow.state"
phase = "local"
statistic = "mean"
require = ">= 0.75"
control = true
recipes = ["f16_a"]
why = "an error of a parameter acts at every step in one direction"

[[gate]]
metric = "growth"
at = "slow.state"
phase = "local"
statistic = "mean"
require = "<= 0.65"
recipes = ["f16_state"]
why = "errors of the state are independent"

[[gate]]
metric = "growth"
at = "quick.output"
phase = "local"
statistic = "ci_high"
require = "<= 0.1"
recipes = ["f16_*"]
why = "errors are forgotten"
"#;

#[test]
fn a_gate_on_growth_tells_a_biased_rounding_from_a_fair_one() {
    let folder = tempfile::tempdir().unwrap();
    let out = folder.path().join("run");
    let output = run(&["sweep", path(&write(folder.path(), CARRIED)), "--out", path(&out)]);
    assert_eq!(code(&output), 0, "{}{}", stdout(&output), stderr(&output));
    let table = stdout(&output);
    assert!(table.contains("growth") && table.contains("; 12 cells in "), "{table}");
    let html = std::fs::read_to_string(out.join("report.html")).unwrap();
    for shown in ["3 draws of 2 heads × 1024 steps", "by steps", "1024 steps", "Growth"] {
        assert!(html.contains(shown), "'{shown}' is not in the page");
    }

    // The same gate on the state that is cut off.
    let broken = CARRIED.replace("[\"nearest\", \"stochastic\"]", "[\"nearest\", \"truncated\"]");
    let output = run(&["gate", path(&out), "--rules", path(&write(folder.path(), &broken))]);
    let told = stdout(&output);
    assert_eq!(code(&output), 100, "{told}");
    assert!(
        told.lines().filter(|line| line.starts_with("FAIL truncated")).count() == 1 && !told.contains("FAIL nearest"),
        "{told}"
    );

    let page = filled(
        &out,
        "{{ run }}: {{ interval truncated local sum.state growth - }}{{ holds truncated local sum.state growth - >= 0.85 }}\
         {{ holds nearest local delta.state growth - <= 0.2 }}",
    );
    assert!(
        page.contains("3 draws of 2 heads × 1024 steps") && page.contains(" ±0."),
        "{page}"
    );
}

#[test]
fn forms_are_right_and_rounding_shows() {
    for text in [FORMS, SSM] {
        let folder = tempfile::tempdir().unwrap();
        let out = folder.path().join("run");
        let output = run(&["sweep", path(&write(folder.path(), text)), "--out", path(&out)]);
        assert_eq!(code(&output), 0, "{}{}", stdout(&output), stderr(&output));
    }
}

#[test]
fn results_depend_on_neither_threads_nor_what_comes_later() {
    let one = swept(CARRIED, &["--threads", "1"]);
    let two = swept(CARRIED, &["--threads", "2"]);
    assert!(one == two, "threads change results");
    let seed = swept(CARRIED, &["--seed", "9"]);
    assert!(one != seed, "another seed draws other numbers");
    // Half as many steps give the same at every checkpoint they reach.
    let half = swept(&CARRIED.replace("1024]", "512]"), &[]);
    let checkpoints = |records: &[String]| -> Vec<String> {
        let reached = |record: &&String| record.contains(".output.512\"") || record.contains(".state.512\"");
        records.iter().filter(reached).cloned().collect()
    };
    let want = checkpoints(&one);
    assert!(
        !want.is_empty() && want == checkpoints(&half),
        "later steps change earlier ones"
    );
}

#[test]
fn mistakes_name_their_place() {
    let cases: &[([&str; 2], &[&str])] = &[
        (["1024]", "1000]"], &["line", "1000 steps, expected 64 doubled"]),
        (["1024]", "128]"], &["128 steps, expected 64 doubled twice"]),
        (["shape = [2", "shape = [0"], &["shape = [heads, steps]"]),
        (["\"simple_gla\"", "\"gla\""], &["line", "gla", "simple_gla"]),
        (
            ["gate = \"none\"", "gate = { mean = 0.05 }"],
            &["source 'sum'", "gate 0.05", "below 0"],
        ),
        (
            ["[16, 16]", "[16, 0]"],
            &["source 'sum'", "state = [16, 0]", "1 to 1024"],
        ),
        (["state = [16, 16] }", "state = [16, 16], stat = 1 }"], &["stat"]),
        (
            ["form = \"one_pass\"", "form = \"onepass\""],
            &["line", "onepass", "one_pass"],
        ),
        (
            ["form = \"one_pass\"", ""],
            &["line 16", "recipe 'one_pass'", "missing field `form`"],
        ),
        (
            ["form = \"one_pass\"", "form = \"folded\""],
            &["recipe 'one_pass'", "form 'folded' is not for source 'sum'"],
        ),
        (
            ["form = \"one_pass\"", "form = { prefill = \"flo\" }"],
            &["unknown prefill 'flo'", "did you mean 'fla'?"],
        ),
        (
            ["form = \"one_pass\"", "form = { chunked = 0 }"],
            &["recipe 'one_pass'", "chunks of 0 steps, expected 1 to 4096"],
        ),
        (
            ["form = \"one_pass\"", "form = \"one_pass\"\nformat = \"bf16\""],
            &["recipe 'one_pass'", "unknown field `format`"],
        ),
        (
            ["at = \"state\"", "at = \"stat\""],
            &["recipe 'nearest'", "did you mean 'state'?"],
        ),
        (["\"f16\" }", "\"f17\" }"], &["recipe 'nearest'", "f17"]),
        (
            ["\"f16\" }", "\"v4_fp8\" }"],
            &["recipe 'nearest'", "512", "source 'sum'"],
        ),
        (
            ["\"f16\" }", "\"f16\", hadamard = true }"],
            &["recipe 'nearest'", "unknown field `hadamard`", "`direction`"],
        ),
        (
            ["\"f16\", direction = \"sto", "\"int8/token:f32\", direction = \"sto"],
            &["recipe 'stochastic'", "nearest only"],
        ),
        (["\"stochastic\" }", "\"random\" }"], &["line", "random", "stochastic"]),
        (
            ["at = \"sum.state\"", "at = \"sum.sate\""],
            &["matches no site", "did you mean 'sum.state'?"],
        ),
        (
            ["kind = \"recurrence\"", "kind = \"round_trip\""],
            &["recipe 'one_pass'", "unknown field `form`"],
        ),
    ];
    for (change, words) in cases {
        refuses(CARRIED, *change, words);
    }
    refuses(
        FORMS,
        ["format = \"bf16\" }", "format = \"bf16\", direction = \"stochastic\" }"],
        &["recipe 'scores'", "stored step by step, not for 'p'"],
    );
    refuses(
        FORMS,
        [
            "form = { prefill = \"fla\" }",
            "form = { prefill = \"fla\" }\nround = [{ at = \"p\", format = \"bf16\" }]",
        ],
        &["recipe 'fla'", "its own rounding"],
    );
}
