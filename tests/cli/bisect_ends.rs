//! How a search ends: files that cannot be written, what cannot be narrowed, and what only one of two runs has.

use serde_json::Value;

use super::bisect::{COSINE_OF_LAYERS, answer, bisect, brief, planted, refused};
use super::diff::{altered, swept};
use super::*;

/// A capsule of some channels and tokens is what its recipe leaves, and the right recipe is whole beside them.
#[test]
fn a_narrowed_capsule_is_still_there() {
    let folder = tempfile::tempdir().unwrap();
    let file = brief(
        folder.path(),
        &format!("{FP8}{}", planted(37, "attention.output")),
        COSINE_OF_LAYERS,
    );
    let capsule = folder.path().join("culprit.safetensors");
    let of = [path(&file), "--recipe", "planted", "--capsule", path(&capsule)];
    for (to, right) in [("tokens", "reference"), ("channels", "v4_fp8")] {
        let said = answer(&[&of[..], &["--to", to, "--right", right]].concat(), 100);
        let recipe = said["toml"].as_str().unwrap();
        assert_eq!(said["undivided"], Value::Null, "{said}");
        assert!(recipe.contains(r#"format = "int2/b32:f32", channels = "#), "{recipe}");
        let rounds = recipe.matches(r#"format = "v4_fp8" }"#).count();
        assert_eq!(rounds, if right == "v4_fp8" { 2 } else { 0 }, "{recipe}");
        let output = run(&["bisect", "--replay", path(&capsule)]);
        assert_eq!(code(&output), 100, "{}", stdout(&output));
        says(&stdout(&output), "STILL THERE");
    }
}

/// A search that cannot go as far as it was asked to has an answer, and says why it ends.
#[test]
fn what_cannot_be_narrowed_is_said() {
    let folder = tempfile::tempdir().unwrap();
    let recipe = planted(37, "attention.output").replace("b32:f32\"", "b32:f32\", hadamard = true");
    let twice = r#"
[[recipe]]
name = "planted_twice"
doc = "what the right one rounds, too"
round = [
    { at = "layers.*.attention.kv.*", format = "v4_fp8" },
    { at = "layers.20.attention.kv.window", format = "int2/b32:f32" },
]
"#;
    let gates = COSINE_OF_LAYERS;
    let file = brief(folder.path(), &format!("{FP8}{recipe}{twice}"), gates);
    let of = [path(&file), "--to", "tokens", "--recipe"];
    let said = answer(&[&of[..], &["planted"]].concat(), 100);
    says(
        said["undivided"].as_str().unwrap(),
        "a rotation mixes all channels of a row",
    );
    let output = bisect(&[&of[..], &["planted_twice", "--right", "v4_fp8"]].concat());
    assert_eq!(code(&output), 100, "{}{}", stderr(&output), stdout(&output));
    let words = "Channels and tokens were not searched: 'v4_fp8' rounds at layers.20.attention.kv.window, too.";
    says(&stdout(&output), words);
}

#[test]
fn files_are_tried_before_the_search() {
    let folder = tempfile::tempdir().unwrap();
    let file = brief(
        folder.path(),
        FP8,
        COSINE_OF_LAYERS.replace(r#", "planted*""#, "").as_str(),
    );
    let nowhere = folder.path().join("none/x");
    // The recipe fails no gate, which only a search tells.
    for flag in ["-o", "--capsule"] {
        let output = bisect(&[path(&file), flag, path(&nowhere)]);
        assert_eq!(code(&output), 96, "{}", stderr(&output));
        says(&stderr(&output), &format!("{}: cannot create", path(&nowhere)));
        let folder = path(folder.path());
        refused(
            &[path(&file), flag, folder],
            "is a folder; expected the name of a file to write",
        );
    }
    let capsule = folder.path().join("culprit.safetensors");
    refused(
        &[path(&file), "--to", "layers", "--capsule", path(&capsule)],
        "--capsule needs --to sites, or further",
    );
    let output = bisect(&[path(&file), "-o", path(&capsule)]);
    assert_eq!(code(&output), 2, "{}", stdout(&output));
    says(&stderr(&output), "fails no gate");
    assert!(!capsule.exists(), "nothing is left of the trial");

    let null = folder.path().join("null");
    let more = ["-o", path(&nowhere), "--null", path(&null)];
    let output = run(&[&["gate", "--calibrate", path(&file)], &more[..]].concat());
    assert_eq!(code(&output), 96, "{}", stderr(&output));
    assert!(!null.exists(), "nothing was drawn");
}

/// Runs whose common numbers are equal, one of which has more.
#[test]
fn what_only_one_run_has_is_named() {
    let folder = tempfile::tempdir().unwrap();
    let text = format!("{TRIP}{NVFP4}{COSINE}");
    let more = swept(folder.path(), "more", &text, &[]);
    let less = swept(folder.path(), "less", &text, &["--skip", "nvfp4/**"]);
    let same = answer(&[path(&more), path(&altered(&more, "same", |_| {}))], 0);
    assert_eq!(same["verdict"], "SAME");
    let said = answer(&[path(&less), path(&more)], 100);
    assert_eq!(
        (&said["verdict"], &said["equal"]),
        (&"UNEQUAL".into(), &said["both"]),
        "{said}"
    );
    assert_eq!(said["only_base"]["numbers"], 0);
    assert_eq!(said["only_new"]["recipes"], serde_json::json!(["nvfp4"]), "{said}");
    let output = bisect(&[path(&less), path(&more)]);
    let text = stdout(&output);
    assert!(!text.contains("SAME"), "{text}");
    says(&text, "only the second run has ");
    says(&text, "; 1 recipe: nvfp4; ");
}

/// A file where the folder of a run is expected.
#[test]
fn a_file_is_no_run() {
    let file = "experiments/smoke.toml";
    let words = "experiments/smoke.toml: is a file, expected the folder of a run";
    refused(&[file, file], words);
    let output = run(&["gate", file]);
    assert_eq!(code(&output), 2);
    says(&stderr(&output), words);
}

/// A run that passes, and none to name a recipe of.
#[test]
fn a_run_that_passes_has_nothing_to_search() {
    let folder = tempfile::tempdir().unwrap();
    let text = std::fs::read_to_string(experiment(folder.path(), FP8, PASSING)).unwrap();
    let out = swept(folder.path(), "run", &text, &["--set", "tokens=16"]);
    let words = "run: no gate fails in this run; expected a run that fails, or --recipe NAME --rules FILE with a gate that it breaks";
    refused(&[path(&out)], words);
}
