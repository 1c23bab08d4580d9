use super::*;

/// Two small models, what f32 leaves of them, and bf16 in the FFN and in the router.
const SWAPPED: &str = r#"
name = "swapped"
question = "Who decides otherwise?"
kind = "swap_ffn"
phases = ["local", "cumulative"]
draws = 2
shape = [2, 4]

[[source]]
name = "plain"
from = { swap_ffn = { d_model = 64, d_ff = 96, core_count = 24, n_events = 4, d_router = 16, collapse_r = 20 } }

[[source]]
name = "residual"
from = { swap_ffn = { d_model = 64, d_ff = 96, core_count = 24, n_events = 4, residual = true, lane_rule = "move_to_front" } }

[[recipe]]
name = "f32"
doc = "f32"
margin = 1e-5

[[recipe]]
name = "ffn"
doc = "bf16 in the FFN"
margin = 1e-5
round = [{ at = "ffn.*", format = "bf16" }]

[[recipe]]
name = "router"
doc = "bf16 in the router"
margin = 0.03
router = { form = "unfolded", decides_on = "probabilities" }
round = [{ at = "router.*", format = "bf16" }]

[[gate]]
metric = "flips_outside"
at = "*.decisions.*"
phase = "local"
statistic = "max"
require = "<= 0"
recipes = ["*"]
why = "margins"

[[gate]]
metric = "gate_agreement"
at = "layers.*.plain.first"
phase = "cumulative"
statistic = "min"
require = ">= 0.95"
recipes = ["f32"]
why = "f32"

[[gate]]
metric = "relative_l2"
at = "*.x.*"
phase = "local"
statistic = "max"
require = "<= 3e-6"
recipes = ["f32", "router"]
why = "a router in bf16 changes no x, given its decisions"
"#;

#[test]
fn decisions_are_judged_by_their_margin() {
    let folder = tempfile::tempdir().unwrap();
    let out = folder.path().join("run");
    let output = run(&["sweep", path(&write(folder.path(), SWAPPED)), "--out", path(&out)]);
    assert_eq!(code(&output), 0, "{}{}", stdout(&output), stderr(&output));
    let table = stdout(&output);
    assert!(table.contains("history") && table.contains("; 12 cells in "), "{table}");
    let html = std::fs::read_to_string(out.join("report.html")).unwrap();
    for shown in [
        "2 draws of 2 sequences × 4 tokens",
        "by tokens",
        "by event",
        "plain: x after an event",
        "residual: cores with the same history",
        "residual: lanes that differ",
        "plain: margins",
        "plain: delta",
    ] {
        assert!(html.contains(shown), "'{shown}' is not in the page");
    }

    // Without a margin every flip of the router counts; those of the FFN do not show before the next decision.
    let strict = SWAPPED.replace("margin = 0.03", "").replace("margin = 1e-5", "");
    let again = folder.path().join("again");
    let output = run(&["sweep", path(&write(folder.path(), &strict)), "--out", path(&again)]);
    let told = stdout(&output);
    assert_eq!(code(&output), 100, "{told}");
    let failed = |recipe: &str| told.lines().any(|line| line.starts_with(&format!("FAIL {recipe}")));
    assert!(failed("router") && !failed("ffn") && !failed("f32"), "{told}");

    let page = filled(
        &out,
        "{{ run }}: {{ interval ffn local plain.x.4 relative_l2 - }}{{ holds ffn local plain.x.4 relative_l2 - >= 1e-4 }}\
         {{ value f32 cumulative plain.first gate_agreement last }}",
    );
    assert!(
        page.contains("2 draws of 2 sequences × 4 tokens") && page.contains(" ±"),
        "{page}"
    );
}

/// Columns of later sources weigh less, down to nothing.
#[test]
fn there_may_be_many_sources() {
    let small =
        "{ swap_ffn = { d_model = 16, d_ff = 16, core_count = 4, n_events = 1, d_router = 4, collapse_r = 4 } }";
    let more: String = (0..12)
        .map(|at| format!("[[source]]\nname = \"more_{at}\"\nfrom = {small}\n\n"))
        .collect();
    let text = SWAPPED.replacen("[[recipe]]", &(more + "[[recipe]]"), 1);
    assert!(!swept(&text, &[]).is_empty());
}

#[test]
fn tokens_do_not_depend_on_threads_or_on_later_ones() {
    let one = swept(SWAPPED, &["--threads", "1"]);
    assert!(one == swept(SWAPPED, &["--threads", "2"]), "threads change results");
    assert!(
        one != swept(SWAPPED, &["--seed", "9"]),
        "another seed draws other numbers"
    );
    let half = swept(&SWAPPED.replace("shape = [2, 4]", "shape = [2, 2]"), &[]);
    let until_two = |records: &[String]| -> Vec<String> {
        let reached = |record: &&String| record.contains("\"measurement\"") && !record.contains(".4\"");
        records.iter().filter(reached).cloned().collect()
    };
    assert!(
        half.len() > 20 && until_two(&one) == until_two(&half),
        "later tokens change earlier ones"
    );
}

#[test]
fn mistakes_name_their_place() {
    let folder = tempfile::tempdir().unwrap();
    let cases: &[([&str; 2], &[&str])] = &[
        (
            ["shape = [2, 4]", "shape = [2, 6]"],
            &["line", "shape = [2, 6]", "a power of two"],
        ),
        (["shape = [2, 4]", "shape = [0, 4]"], &["shape = [sequences, tokens]"]),
        (
            ["phases = [\"local\", \"cumulative\"]", ""],
            &["phases is missing", "[\"local\", \"cumulative\"]"],
        ),
        (["d_ff = 96", "d_ff = 0"], &["source 'plain'", "swap_ffn: d_ff is 0"]),
        (["n_events = 4", "n_events = 0"], &["source 'plain'", "n_events is 0"]),
        (
            ["d_ff = 96", "d_ff = 100000000"],
            &["source 'plain'", "d_ff × d_model is [100000000, 64]"],
        ),
        (["d_ff = 96", "dff = 96"], &["line", "dff", "d_ff"]),
        (
            ["\"move_to_front\"", "\"to_front\""],
            &["line", "to_front", "move_to_front"],
        ),
        (
            ["at = \"ffn.*\"", "at = \"fnn.*\""],
            &["recipe 'ffn'", "matches no tensor site of Swap-FFN"],
        ),
        (
            ["at = \"ffn.*\"", "at = \"ffn.m\""],
            &["recipe 'ffn'", "did you mean 'ffn."],
        ),
        (
            ["at = \"ffn.*\"", "at = \"router.gate\""],
            &["recipe 'ffn'", "matches no tensor site"],
        ),
        (["format = \"bf16\"", "format = \"bf17\""], &["recipe 'ffn'", "bf17"]),
        (
            [
                "at = \"ffn.*\", format = \"bf16\"",
                "at = \"collapse.z\", format = \"v4_fp8\"",
            ],
            &["recipe 'ffn'", "512", "'collapse.z' of source 'plain'"],
        ),
        (
            ["format = \"bf16\" }", "format = \"bf16\", hadamard = true }"],
            &["recipe 'ffn'", "unknown field `hadamard`"],
        ),
        (
            ["format = \"bf16\" }", "format = \"bf16\", direction = \"stochastic\" }"],
            &["recipe 'ffn'", "unknown field `direction`"],
        ),
        (["margin = 1e-5", "margin = -1.0"], &["recipe 'f32'", "margin = -1"]),
        (
            ["margin = 1e-5", "form = \"recurrent\""],
            &["recipe 'f32'", "unknown field `form`", "`router`"],
        ),
        (["\"unfolded\"", "\"open\""], &["line", "open", "unfolded"]),
        (["at = \"*.x.*\"", "at = \"plain.y.*\""], &["matches no site"]),
        (
            [
                "kind = \"swap_ffn\"\nphases = [\"local\", \"cumulative\"]",
                "kind = \"recurrence\"",
            ],
            &["recipe 'f32'", "unknown field `margin`"],
        ),
    ];
    for (change, words) in cases {
        refuses(SWAPPED, *change, words);
    }
    // The router's reading is for Swap-FFN alone.
    let recurrence = SWAPPED.replace("kind = \"swap_ffn\"", "kind = \"model\"\nmodel = \"dsv4-mini\"");
    let output = run(&["sweep", path(&write(folder.path(), &recurrence)), "--dry-run"]);
    assert_eq!(code(&output), 2, "{}", stderr(&output));
}
