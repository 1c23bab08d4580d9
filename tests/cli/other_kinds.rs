//! Size and power of gates that are not of models.

use std::fs;

use serde_json::Value;

use super::*;

/// Experiments of every kind without a model's text: gates on what is right, and what noise three times as large does.
const OTHER_KINDS: [(&str, &str, &str); 3] = [
    (
        "round_trip",
        "draws = 2\nshape = [16, 64]\nsource = [{ name = \"gauss\", from = \"gaussian\" }]\n\
         recipe = [{ name = \"r\", doc = \"\", format = \"e4m3\" }]",
        "gauss",
    ),
    (
        "recurrence",
        "draws = 2\nshape = [1, 256]\nsource = [{ name = \"s\", from = { diagonal_ssm = { poles = { uniform = 0.9 }, states = 8 } } }]\n\
         recipe = [{ name = \"r\", doc = \"\", form = \"recurrent\", round = [{ at = \"state\", format = \"bf16\" }] }]",
        "s.output.256",
    ),
    (
        "swap_ffn",
        "phases = [\"local\"]\ndraws = 2\nshape = [1, 1]\n\
         source = [{ name = \"s\", from = { swap_ffn = { d_model = 64, d_ff = 128, core_count = 64, collapse_r = 56 } } }]\n\
         recipe = [{ name = \"r\", doc = \"\", round = [{ at = \"ffn.*\", format = \"bf16\" }] }]",
        "s.x.1",
    ),
];

#[test]
fn gates_of_other_kinds_have_a_size_and_a_power() {
    let folder = tempfile::tempdir().unwrap();
    let json = |text: &str| -> Value { serde_json::from_str(text).unwrap() };
    for (kind, body, site) in OTHER_KINDS {
        let folder = folder.path().join(kind);
        fs::create_dir(&folder).unwrap();
        let gate = |require: f64, recipes: &str| {
            format!(
                "[[gate]]\nmetric = \"relative_l2\"\nat = \"{site}\"\nphase = \"local\"\nstatistic = \"mean\"\n\
                 require = \"<= {require:e}\"\nrecipes = [\"{recipes}\"]\nwhy = \"a test\"\n"
            )
        };
        let nonfinite = gate(0.0, "r").replace("relative_l2", "nonfinite");
        let calibrate = |name: &str, require: f64| {
            let text = format!(
                "name = \"{kind}\"\nquestion = \"?\"\nkind = \"{kind}\"\n{body}\n{}{nonfinite}",
                gate(require, "*")
            );
            let (file, out, null) = (
                write(&folder, &text),
                folder.join(name),
                folder.join(format!("{name}-null")),
            );
            let options = ["--draws", "3", "--effect", "3", "--null", path(&null)];
            let output = run(&[&["gate", "--calibrate", path(&file), "-o", path(&out)], &options[..]].concat());
            assert_eq!(code(&output), 0, "{kind}: {}", stderr(&output));
            (json(&fs::read_to_string(&out).unwrap()), stdout(&output))
        };
        let (wide, shown) = calibrate("wide.json", 1e3);
        assert!(shown.contains("| 0 of 3 (≤ 0.632) | 0 of 3 |"), "{kind}: {shown}");
        assert!(
            shown.contains("is not measured by noise: it counts numbers"),
            "{kind}: {shown}"
        );
        let recipe = &wide["gates"][0]["recipes"][0];
        let values = |of: &Value| -> Vec<f64> { of.as_array().unwrap().iter().map(|x| x.as_f64().unwrap()).collect() };
        let (null, noise) = (values(&recipe["null"]), values(&recipe["effects"][0]["values"]));
        assert!(
            null[0] != null[1] && null[1] != null[2],
            "{kind}: draws differ: {null:?}"
        );
        let mean = |x: &[f64]| x.iter().sum::<f64>() / x.len() as f64;
        let ratio = mean(&noise) / mean(&null);
        // A state's errors are the sum of many; those of a format that rounds to the nearest are not independent of it.
        assert!((2.0..4.5).contains(&ratio), "{kind}: {ratio}");
        // A bound between what is right and noise.
        let (_, shown) = calibrate("between.json", mean(&null) * ratio.sqrt());
        assert!(shown.contains("| 0 of 3 (≤ 0.632) | 3 of 3 |"), "{kind}: {shown}");
        // One below what is right.
        let (_, shown) = calibrate("narrow.json", mean(&null) / 10.0);
        assert!(
            shown.contains("it fails what is right** on `r`, in 3 of 3 draws"),
            "{kind}: {shown}"
        );
    }
}

#[test]
fn a_gain_stands_beside_noise() {
    let folder = tempfile::tempdir().unwrap();
    for (kind, body, site) in OTHER_KINDS {
        let text = format!(
            "name = \"n\"\nquestion = \"?\"\nkind = \"{kind}\"\n{}\n[[gate]]\n\
             metric = \"relative_l2\"\nat = \"{site}\"\nphase = \"local\"\n\
             statistic = \"mean\"\nrequire = \"<= 1\"\nrecipes = [\"*\"]\nwhy = \"a test\"\n",
            body.replace("doc = \"\"", "doc = \"\", gain = 2")
        );
        let output = run(&["sweep", path(&write(folder.path(), &text)), "--dry-run"]);
        assert_eq!(code(&output), 2, "{kind}: {}", stdout(&output));
        let says = "gain = 2: expected a positive number together with noise = true";
        assert!(stderr(&output).contains(says), "{kind}: {}", stderr(&output));
    }
}
