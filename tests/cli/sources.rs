use super::*;

/// A round trip of two formats on two sources: one drawn, one of the model.
const ROUND_TRIP: &str = r#"
name = "trip"
question = "What is left?"
kind = "round_trip"
model = "dsv4-mini"
tokens = 16
draws = 3
shape = [16, 512]

[[window]]
text = "alice"
offset = 20000

[[source]]
name = "gauss"
from = "gaussian"

[[source]]
name = "kv"
from = { site = "layers.*.attention.kv.window" }

[[recipe]]
name = "fp8"
doc = "E4M3"
format = "e4m3"
against = "nvfp4"

[[recipe]]
name = "nvfp4"
doc = "NVFP4"
format = "nvfp4"

[[gate]]
metric = "sqnr_excess"
at = "gauss"
phase = "local"
statistic = "min"
require = ">= -0.9"
recipes = ["fp8"]
why = "theory"

[[gate]]
metric = "cosine"
at = "layers.*.kv"
phase = "local"
statistic = "min"
require = ">= 0.99"
recipes = ["*"]
why = "every layer"
"#;

const RECALL: &str = r#"
name = "kept"
question = "What is still selected?"
kind = "recall"
model = "dsv4-mini"
tokens = 160
draws = 2
shape = [8, 1024]

[[window]]
text = "alice"
offset = 20000

[[source]]
name = "random"
from = { vectors = { channels = 128, top = 64 } }

[[source]]
name = "indexer"
from = { site = "layers.*.attention.indexer.topk" }

[[recipe]]
name = "noise"
doc = "a tenth"
score_noise = 0.1

[[recipe]]
name = "fp8"
doc = "FP8 keys and queries"
round = [{ at = "layers.*.attention.indexer.*", format = "index_fp8" }]

[[gate]]
metric = "recall_excess"
at = "random"
phase = "local"
statistic = "mean"
require = ">= -0.02"
recipes = ["*"]
why = "theory"

[[gate]]
metric = "recall_mass"
at = "layers.*.indexer"
phase = "local"
statistic = "min"
require = ">= 0.9"
recipes = ["fp8"]
why = "swapped entries have little mass"
"#;

#[test]
fn both_kinds_are_judged_and_reported_like_models() {
    for (text, cells, shown) in [(ROUND_TRIP, 8, "SQNR"), (RECALL, 6, "recall")] {
        let folder = tempfile::tempdir().unwrap();
        let file = write(folder.path(), text);
        let out = folder.path().join("run");
        let output = run(&["sweep", path(&file), "--out", path(&out)]);
        assert_eq!(code(&output), 0, "{}{}", stdout(&output), stderr(&output));
        let table = stdout(&output);
        let last = table.lines().last().unwrap();
        assert!(
            last.starts_with("PASS: ") && last.contains(&format!("; {cells} cells in ")),
            "{last}"
        );
        assert!(table.contains(shown), "{table}");
        for file in [
            "report.html",
            "report.md",
            "junit.xml",
            "summary.parquet",
            "records.parquet",
        ] {
            assert!(out.join(file).metadata().is_ok_and(|file| file.len() > 0), "{file}");
        }
        // Pairing and theory are in the page.
        let html = std::fs::read_to_string(out.join("report.html")).unwrap();
        assert!(
            html.contains("theory") && html.contains("draws of"),
            "the setting and the theory are told"
        );

        // Stricter rules on the stored run fail.
        let strict = text.replace(">= -0.9", ">= 0.9").replace(">= -0.02", ">= 0.02");
        let output = run(&["gate", path(&out), "--rules", path(&write(folder.path(), &strict))]);
        assert_eq!(code(&output), 100, "{}", stdout(&output));
    }
}

#[test]
fn results_depend_on_neither_threads_nor_partitions_but_on_the_seed() {
    let folder = tempfile::tempdir().unwrap();
    let file = write(folder.path(), ROUND_TRIP);
    let sweep = |name: &str, more: &[&str]| {
        let out = folder.path().join(name);
        let output = run(&[&["sweep", path(&file), "--out", path(&out)], more].concat());
        (out, output)
    };
    let (one, _) = sweep("one", &["--threads", "1"]);
    let (other, _) = sweep("other", &["--threads", "2", "--seed", "9"]);
    assert!(records(&one) != records(&other), "another seed draws other numbers");
    let (_, half) = sweep("parts", &["--partition", "slice:1/2"]);
    assert_eq!(code(&half), 0);
    let (parts, whole) = sweep("parts", &["--partition", "slice:2/2"]);
    assert_eq!(code(&whole), 0, "{}", stderr(&whole));
    assert!(records(&one) == records(&parts), "threads or partitions change results");
}

#[test]
fn mistakes_name_their_place() {
    refuses(
        ROUND_TRIP,
        ["\"e4m3\"", "\"e4m4\""],
        &["line 25", "recipe 'fp8'", "e4m4"],
    );
    let record = ROUND_TRIP.replace("\"e4m3\"", "\"v4_fp8\"");
    refuses(
        &record,
        ["[16, 512]", "[16, 500]"],
        &["source 'gauss'", "recipe 'fp8'", "512", "500"],
    );
    refuses(ROUND_TRIP, ["draws = 3", "draws = 0"], &["drawn sources need draws"]);
    refuses(
        ROUND_TRIP,
        ["draws = 3", "draws = 9223372036854775807"],
        &["draws = 9223372036854775807: at most 1048576"],
    );
    refuses(
        ROUND_TRIP,
        ["[16, 512]", "[4294967296, 4294967296]"],
        &["shape = [4294967296, 4294967296]", "at most 4294967296 numbers"],
    );
    refuses(
        ROUND_TRIP,
        ["draws = 3", "draws = 3\nphases = [\"local\"]"],
        &["line", "has no use for 'phases'", "\"model\", \"swap_ffn\""],
    );
    refuses(
        ROUND_TRIP,
        ["kv.window", "kv.windw"],
        &["line", "source 'kv'", "did you mean"],
    );
    refuses(
        ROUND_TRIP,
        ["against = \"nvfp4\"", "against = \"nvfp5\""],
        &["no other recipe", "did you mean 'nvfp4'?"],
    );
    refuses(
        ROUND_TRIP,
        ["format = \"nvfp4\"", "round = []"],
        &["recipe 'nvfp4'", "unknown field `round`"],
    );
    refuses(ROUND_TRIP, ["\"gaussian\"", "\"gausian\""], &["gausian", "gaussian"]);
    refuses(
        ROUND_TRIP,
        ["\"gaussian\"", "{ student_t = -1 }"],
        &["degrees of freedom"],
    );
    refuses(
        ROUND_TRIP,
        ["name = \"kv\"", "name = \"gauss\""],
        &["source 'gauss' is given twice"],
    );
    refuses(
        ROUND_TRIP,
        ["at = \"gauss\"", "at = \"gaus\""],
        &["matches no site", "did you mean 'gauss'?"],
    );
    refuses(
        ROUND_TRIP,
        ["kind = \"round_trip\"", "kind = \"recall\""],
        &["recipe 'fp8'", "unknown field `against`"],
    );
    refuses(
        ROUND_TRIP,
        ["kind = \"round_trip\"", "phases = [\"local\"]"],
        &["kind = \"model\" has no use for 'draws'"],
    );
    refuses(ROUND_TRIP, ["model = \"dsv4-mini\"\n", ""], &["need a model"]);
    refuses(
        RECALL,
        ["top = 64", "top = 1024"],
        &["source 'random'", "fewer than the 1024 entries"],
    );
    refuses(
        RECALL,
        ["indexer.topk", "indexer.key"],
        &["source 'indexer'", "matches no site"],
    );
    refuses(
        RECALL,
        ["score_noise = 0.1", "score_noise = -0.1"],
        &["recipe 'noise'", "not a size"],
    );
    refuses(
        RECALL,
        ["score_noise = 0.1", ""],
        &["recipe 'noise'", "either 'round' or 'score_noise'"],
    );
}
