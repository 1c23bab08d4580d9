//! Which formats to mix.

use serde_json::Value;

use super::tokens::{measured, model, question};
use super::*;

const AT: [&str; 4] = ["--at", "layers.*.attention.*.weight", "--at", "layers.*.mlp.*.weight"];

fn front(file: &Path, args: &[&str]) -> Output {
    run(&[&["mix", path(file)], &AT[..], args].concat())
}

#[track_caller]
fn found(file: &Path, args: &[&str]) -> Value {
    let output = front(file, &[args, &["--json"]].concat());
    assert_eq!(code(&output), 0, "{}", stderr(&output));
    serde_json::from_str(&stdout(&output)).expect("one JSON object")
}

/// A key of every point.
fn of(found: &Value, pointer: &str) -> Vec<f64> {
    let points = found["points"].as_array().unwrap().iter();
    points
        .map(|point| point.pointer(pointer).unwrap().as_f64().unwrap())
        .collect()
}

#[test]
fn a_front_leads_from_the_cheapest_format_to_the_dearest() {
    let folder = tempfile::tempdir().unwrap();
    let file = question(folder.path(), &model());
    let found = found(&file, &["--formats", "bf16,nvfp4,mxfp8"]);
    assert_eq!(found["formats"], serde_json::json!(["nvfp4", "mxfp8", "bf16"]));
    // Two layers, with attention and MLP: 32 channels, query and output of 32 rows and columns, key and value of 16, MLP of 32.
    assert_eq!(
        (found["groups"].as_u64(), found["elements"].as_u64()),
        (Some(4), Some(2 * (3072 + 3072)))
    );
    assert_eq!(found["windows"], serde_json::json!([2, 2]));
    let (bits, kl) = (of(&found, "/bits"), of(&found, "/chosen_on/kl"));
    assert_eq!(bits[0], 4.5, "a scale of eight bits for 16 codes");
    assert!(bits.is_sorted() && kl.is_sorted_by(|a, b| a > b), "{bits:?} {kl:?}");
    // The checkpoint is stored in bf16, so nothing is lost where all have it.
    assert_eq!((bits.last(), kl.last()), (Some(&16.0), Some(&0.0)));
    // All that was promised: 1 + 8 + 8 · 2 measurements on two windows at most, and 9 points on two others.
    assert!(
        found["passes"].as_u64().unwrap() <= 2 * 25 + 2 * 9,
        "{}",
        found["passes"]
    );
}

#[test]
fn the_recipe_of_a_budget_measures_what_the_front_says() {
    let folder = tempfile::tempdir().unwrap();
    let file = question(folder.path(), &model());
    let (recipe, keep) = (folder.path().join("found.toml"), folder.path().join("keep.json"));
    let args = [
        "--formats",
        "nvfp4,mxfp8",
        "--bytes",
        "0.4",
        "-o",
        path(&recipe),
        "--keep",
        path(&keep),
    ];
    let first = found(&file, &args);
    let chosen = &first["points"][first["chosen"].as_u64().unwrap() as usize];
    let share = chosen["of_bf16"].as_f64().unwrap();
    assert!(share > 0.3 && share <= 0.4, "{share}");

    let out = folder.path().join("run");
    let output = run(&["sweep", path(&recipe), "--out", path(&out)]);
    // No gate of the experiment binds recipes of any name, so the one gate is on what was measured.
    assert_eq!(code(&output), 0, "{}{}", stdout(&output), stderr(&output));
    let text = std::fs::read_to_string(&recipe).unwrap();
    assert!(text.contains("what the search measured, rounded up"), "{text}");
    let kls = measured(&out, "front", "kl");
    assert_eq!(kls.len(), 4);
    let mean = |key: &str| chosen[key]["kl"].as_f64().unwrap();
    let (got, want) = (
        kls.iter().sum::<f64>() / 4.0,
        (mean("chosen_on") + mean("held_out")) / 2.0,
    );
    // Means of four numbers in two orders.
    assert!((got - want).abs() <= 8.0 * f64::EPSILON * want, "{got} {want}");

    // What was measured is not measured again, and gives the same front.
    let again = found(&file, &args);
    assert_eq!(again["passes"], 0);
    assert_eq!(again["points"], first["points"]);
    let output = front(&file, &["--formats", "nvfp4,bf16", "--keep", path(&keep)]);
    assert_eq!(code(&output), 2);
    assert!(
        stderr(&output).contains("keep.json: measurements of another search"),
        "{}",
        stderr(&output)
    );
}

#[test]
fn a_divergence_that_no_point_reaches_is_told() {
    let folder = tempfile::tempdir().unwrap();
    let file = question(folder.path(), &model());
    let output = front(&file, &["--formats", "nvfp4,mxfp8", "--kl", "1e-12"]);
    assert_eq!(code(&output), 100, "{}", stderr(&output));
    assert!(
        stdout(&output).contains("NOT REACHED: the least KL is"),
        "{}",
        stdout(&output)
    );
    let output = front(&file, &["--formats", "nvfp4,mxfp8", "--kl", "0.01"]);
    assert_eq!(code(&output), 0, "{}", stderr(&output));
    assert!(stdout(&output).contains("<- the budget") && stdout(&output).contains("[[recipe]]"));
}

#[test]
fn caches_are_mixed_by_bytes_of_a_token() {
    let folder = tempfile::tempdir().unwrap();
    let file = question(folder.path(), &model());
    let args = [
        "mix",
        path(&file),
        "--at",
        "layers.*.attention.kv.*",
        "--formats",
        "nvfp4,bf16",
        "--json",
    ];
    let output = run(&args);
    assert_eq!(code(&output), 0, "{}", stderr(&output));
    let found: Value = serde_json::from_str(&stdout(&output)).unwrap();
    // A key and a value of one head of 16 channels in two layers.
    let bytes = of(&found, "/bytes");
    assert_eq!((bytes[0], *bytes.last().unwrap()), (4.0 * 9.0, 4.0 * 32.0));
    assert_eq!(found["weights"], false);
}

#[test]
fn mistakes_are_told_before_anything_is_measured() {
    let folder = tempfile::tempdir().unwrap();
    let file = question(folder.path(), &model());
    for (args, words) in [
        (&["--formats", "nvfp4"][..], "expected two or more"),
        (&["--formats", "nvfp4,nvfp4"], "nvfp4 is named twice"),
        (&["--formats", "nvfp4,nvfp5"], "--formats: unknown format 'nvfp5'"),
        (&["--formats", "nvfp4,f16,bf16"], "each takes more than the one before"),
        (
            &["--formats", "nvfp4,bf16", "--bytes", "0.1"],
            "all in nvfp4 takes 0.281 of bf16 already",
        ),
        (&["--formats", "nvfp4,bf16", "--kl=-1"], "expected a number above 0"),
        (&["--formats", "nvfp4,bf16", "-o", "x.toml"], "expected --bytes or --kl"),
        (
            &["--formats", "nvfp4,bf16", "--held-out", "4"],
            "needs one to choose on",
        ),
        (
            &["--formats", "nvfp4,bf16", "--at", "layers.*.mlpp.*"],
            "matches no site",
        ),
        (
            &["--formats", "nvfp4,bf16", "--at", "layers.*.attention.kv.*"],
            "is not a weight, and others are",
        ),
        (&["--formats", "nvfp4,bf16", "--at", "layers.0.mlp.**"], "is matched by"),
    ] {
        let output = front(&file, args);
        assert_eq!(code(&output), 2, "{args:?}: {}", stdout(&output));
        assert!(stderr(&output).contains(words), "{args:?}: {}", stderr(&output));
    }
}

/// What `front` advises is true: the experiment that it writes is judged. Gates that name other recipes were made for these, controls say
/// nothing of a mixture, and what is fed the reference's input is another question.
#[test]
fn gates_that_bind_every_recipe_are_carried_over() {
    let folder = tempfile::tempdir().unwrap();
    let file = question(folder.path(), &model());
    let text = std::fs::read_to_string(&file).unwrap();
    let gate = |recipes: &str, require: &str, more: &str| {
        format!(
            "\n[[gate]]\nmetric = \"kl\"\nat = \"logits\"\nphase = \"cumulative\"\nstatistic = \"mean\"\nrequire = \"{require}\"\n\
             recipes = [\"{recipes}\"]\nwhy = \"of {recipes}\"\n{more}"
        )
    };
    let (recipe, out) = (folder.path().join("found.toml"), folder.path().join("run"));
    let names: Vec<&str> = text
        .lines()
        .skip_while(|line| *line != "[[recipe]]")
        .filter_map(|line| line.strip_prefix("name = \"")?.strip_suffix('"'))
        .collect();
    let other = gate(names[0], "<= 1e-30", "");
    let control = gate("*", ">= 1e-30", "control = true\n");
    for (every, exit, carried) in [("<= 9.0", 0, true), ("<= 1e-12", 100, true), ("", 0, false)] {
        let every = if every.is_empty() {
            String::new()
        } else {
            gate("*", every, "")
        };
        std::fs::write(&file, format!("{text}{other}{control}{every}")).unwrap();
        let args = ["--formats", "nvfp4,mxfp8", "--bytes", "0.4", "-o", path(&recipe)];
        let output = front(&file, &args);
        assert_eq!(code(&output), 0, "{}", stderr(&output));
        let written = std::fs::read_to_string(&recipe).unwrap();
        assert_eq!(written.matches("[[gate]]").count(), 1, "{written}");
        assert_eq!(written.contains("why = \"of *\""), carried, "{written}");
        let _ = std::fs::remove_dir_all(&out);
        let output = run(&["sweep", path(&recipe), "--out", path(&out)]);
        assert_eq!(code(&output), exit, "{}{}", stdout(&output), stderr(&output));
    }
}
