//! Every mistake gets its exit code and an error that names file, place, what was found and what was expected.

use ulplab::experiment::file::ExperimentFile;
use ulplab::studies;

use super::*;

/// Runs a broken experiment; it must end in 2 with all of `words` in the error.
fn refuses(recipes: &str, gates: &str, words: &[&str]) {
    let folder = tempfile::tempdir().unwrap();
    let file = experiment(folder.path(), recipes, gates);
    let out = folder.path().join("run");
    let output = run(&["sweep", path(&file), "--out", path(&out)]);
    let error = stderr(&output);
    assert_eq!(code(&output), 2, "{error}");
    for word in [path(&file)].iter().chain(words) {
        assert!(error.contains(word), "'{word}' is not in: {error}");
    }
    assert!(!out.exists(), "a refused experiment leaves no run behind");
}

#[test]
fn mistakes_in_recipes() {
    refuses(
        &FP8.replace("v4_fp8\" }", "v4_fp9\" }"),
        "",
        &["line 15", "recipe 'v4_fp8'", "did you mean 'v4_fp8'?"],
    );
    refuses(
        &FP8.replace("format = \"v4_fp8\"", "format = 8"),
        "",
        &[
            "line 15",
            "recipe 'v4_fp8': format: found integer `8`, expected a string",
        ],
    );
    refuses(
        &FP8.replace("attention.kv", "atention.kv"),
        "",
        &["line 15", "matches no tensor site", "did you mean"],
    );
    refuses(
        &FP8.replace("format =", "formt ="),
        "",
        &["line", "formt", "did you mean 'format'?"],
    );
    refuses(
        &FP8.replace("\" }]", "\", layers = \"50-61\" }]"),
        "",
        &["50-61", "from 0 to 60"],
    );
    refuses(
        &FP8.replace("attention.kv.*", "attention.output"),
        "",
        &["layers.0.attention.output", "64", "512"],
    );
    refuses(&FP8.replace("\" }]", "\", role = \"keys\" }]"), "", &["keys", "`key`"]);
    refuses(&format!("{FP8}{FP8}"), "", &["recipe name 'v4_fp8' is taken"]);
    let rotated = FP8
        .replace("attention.kv.*", "attention.indexer.key")
        .replace("v4_fp8\" }", "index_mxfp4\", hadamard = true }");
    refuses(
        &rotated,
        "",
        &["both attention.indexer.query and attention.indexer.key"],
    );
}

/// A gate that what is bad passes guards nothing.
#[test]
fn gates_that_point_the_wrong_way() {
    refuses(
        FP8,
        &PASSING.replace(">= 0.999", "<= 1"),
        &["line", "of cosine, higher is better: demand >=", "control = true"],
    );
    let words = ["line", "looks at the best window only", "expected \"min\""];
    refuses(FP8, &PASSING.replace("\"min\"", "\"max\""), &words);
    // A control points there, and nowhere else.
    let control = PASSING.replace("why =", "control = true\nwhy =");
    let words = [
        "line",
        "of cosine, higher is better, and a control",
        "demand <=, or leave out control",
    ];
    refuses(FP8, &control, &words);
    let folder = tempfile::tempdir().unwrap();
    let gates = control.replace(">= 0.999", "<= 0.9");
    let file = experiment(folder.path(), FP8, &gates);
    let output = run(&["sweep", path(&file), "--dry-run"]);
    assert_eq!(code(&output), 0, "{}", stderr(&output));
}

/// A bound that nothing can break. Also of this kind: other metrics (`crates/core/vacuous.rs` has the range of each).
#[test]
fn gates_that_nothing_can_break() {
    let control = PASSING.replace("why =", "control = true\nwhy =");
    for (gates, bound) in [
        (PASSING, ">= -1"),
        (PASSING, ">= -5"),
        (&control, "<= 1"),
        (&control, "<= 1e300"),
    ] {
        refuses(
            FP8,
            &gates.replace(">= 0.999", bound),
            &["line", "no measurement can break it"],
        );
    }
    refuses(
        FP8,
        &PASSING.replace("0.999", "1e-400"),
        &["line", "too small for a f64, it reads as 0"],
    );
}

#[test]
fn mistakes_in_gates() {
    refuses(
        FP8,
        &PASSING.replace(">= 0.999", "> 0.999"),
        &["line", "'> 0.999' is not a bound"],
    );
    refuses(FP8, &PASSING.replace("0.999", "0,999"), &["'0,999'", "is not a number"]);
    refuses(
        FP8,
        &PASSING.replace("\"cosine\"", "\"cosin\""),
        &["unknown metric 'cosin'", "did you mean 'cosine'?"],
    );
    refuses(
        FP8,
        &PASSING.replace("[\"v4_fp8\"]", "[\"v4_fp88\"]"),
        &["matches no recipe", "did you mean 'v4_fp8'?"],
    );
    refuses(
        FP8,
        &PASSING.replace("kv.window", "kv.windw"),
        &["matches no site", "did you mean"],
    );
    refuses(
        FP8,
        &PASSING.replace("\"min\"", "\"minimum\""),
        &["minimum", "`ci_low`"],
    );
}

/// What is measured in a model, and where, is known before it is run.
#[test]
fn gates_on_what_is_never_measured_are_refused_before_anything_runs() {
    let folder = tempfile::tempdir().unwrap();
    let file = experiment(folder.path(), FP8, PASSING);
    let refused = |change: [&str; 2], says: &[&str]| {
        let text = PASSING.replace(change[0], change[1]);
        assert_ne!(text, PASSING);
        let rules = folder.path().join("rules.toml");
        std::fs::write(&rules, text).unwrap();
        let output = run(&["sweep", path(&file), "--dry-run", "--rules", path(&rules)]);
        assert_eq!(code(&output), 2, "{change:?}: {}", stdout(&output));
        for word in [&["rules.toml: line"], says].concat() {
            assert!(stderr(&output).contains(word), "{change:?}: {}", stderr(&output));
        }
    };
    let layer = [
        "line 4",
        "'layers.99.attention.kv.window' matches no site",
        "its layers are 0 to 60",
    ];
    refused(["layers.*.", "layers.99."], &layer);
    let top1 = [
        "line 3",
        "top1 is not measured at 'layers.*.attention.kv.window'; measured at logits",
    ];
    refused(["\"cosine\"", "\"top1\""], &top1);
    refused(["\"cosine\"", "\"recall\""], &["measured at attention.indexer.topk"]);
    let phase = ["'reference' matches no recipe of the local phase: 'reference' has the other one only"];
    refused(["[\"v4_fp8\"]", "[\"reference\"]"], &phase);
}

/// A value of another type is told with its key, in words, and a key that is nearly right whether or not all kinds have it.
#[test]
fn values_and_keys_that_are_slightly_wrong() {
    let text = "name = 'n'\nquestion = 'q'\nmodel = 'm'\ntokens = 4\nphases = ['local']\n\
                [[window]]\ntext = 't'\noffset = 0\n[[recipe]]\nname = 'r'\ndoc = ''\nround = []\n";
    for (from, to, expected) in [
        (
            "offset = 0",
            "offset = 'a'",
            "line 8: offset: found string \"a\", expected a whole number, 0 or more",
        ),
        (
            "tokens = 4",
            "tokens = -4",
            "line 4: tokens: found integer `-4`, expected a whole number, 0 or more",
        ),
        (
            "round = []",
            "round = 7",
            "line 12: recipe 'r': round: found integer `7`, expected an array",
        ),
        ("[[window]]", "gates = []\n[[window]]", "did you mean 'gate'?"),
        ("[[window]]", "sed = 1\n[[window]]", "did you mean 'seed'?"),
    ] {
        let file = ExperimentFile::new("e.toml".into(), text.replace(from, to), &[]).unwrap();
        let error = studies::parse(&file).err().unwrap().to_string();
        assert!(error.contains(expected), "{error}");
    }
}

#[test]
fn missing_things() {
    let output = run(&["sweep", "no-such.toml"]);
    assert_eq!(code(&output), 2);
    assert!(
        stderr(&output).contains("no-such.toml: cannot read"),
        "{}",
        stderr(&output)
    );

    let folder = tempfile::tempdir().unwrap();
    let file = experiment(folder.path(), FP8, "");
    let output = run(&["sweep", path(&file), "--set", "model=dsv4-mimi"]);
    assert_eq!(code(&output), 2);
    assert!(
        stderr(&output).contains("did you mean 'dsv4-mini'?"),
        "{}",
        stderr(&output)
    );
    let output = run(&[
        "sweep",
        path(&file),
        "--set",
        "window=[{text=\"alice\", offset=147600}]",
    ]);
    assert_eq!(code(&output), 2);
    assert!(
        stderr(&output).contains("alice.txt: the text has 147618 bytes; expected 136 from byte 147600 on"),
        "{}",
        stderr(&output)
    );
    let output = run(&["gate", path(folder.path())]);
    assert_eq!(code(&output), 2);
    assert!(stderr(&output).contains("run.json"), "{}", stderr(&output));
}

/// A copy of `datasets/` whose manifest is left out where the test breaks files on purpose.
fn broken_model(folder: &Path, damage: impl Fn(&Path)) -> PathBuf {
    let model = folder.join("model");
    std::fs::create_dir_all(&model).unwrap();
    for entry in std::fs::read_dir(root().join("datasets/dsv4-mini")).unwrap() {
        let file = entry.unwrap().path();
        std::fs::copy(&file, model.join(file.file_name().unwrap())).unwrap();
    }
    damage(&model);
    model
}

#[test]
fn a_truncated_model_is_refused() {
    let folder = tempfile::tempdir().unwrap();
    let model = broken_model(folder.path(), |model| {
        let file = model.join("model-00002-of-00002.safetensors");
        let bytes = std::fs::read(&file).unwrap();
        std::fs::write(&file, &bytes[..bytes.len() / 2]).unwrap();
    });
    let file = experiment(folder.path(), FP8, "");
    let output = run(&["sweep", path(&file), "--set", &format!("model={}", path(&model))]);
    assert_eq!(code(&output), 2);
    assert!(
        stderr(&output).contains("model-00002-of-00002.safetensors"),
        "{}",
        stderr(&output)
    );
}

#[test]
fn a_nan_in_the_weights_is_named() {
    let folder = tempfile::tempdir().unwrap();
    let model = broken_model(folder.path(), |model| {
        let file = model.join("model-00001-of-00002.safetensors");
        let mut bytes = std::fs::read(&file).unwrap();
        let header = u64::from_le_bytes(bytes[..8].try_into().unwrap()) as usize;
        let table: serde_json::Value = serde_json::from_slice(&bytes[8..8 + header]).unwrap();
        let start = table["model.layers.0.self_attn.kv_norm.weight"]["data_offsets"][0]
            .as_u64()
            .unwrap() as usize;
        bytes[8 + header + start + 12..][..4].copy_from_slice(&f32::NAN.to_le_bytes());
        std::fs::write(&file, bytes).unwrap();
    });
    let file = experiment(folder.path(), FP8, "");
    let output = run(&["sweep", path(&file), "--set", &format!("model={}", path(&model))]);
    let error = stderr(&output);
    assert_eq!(code(&output), 2, "{error}");
    assert!(
        error.contains("model.layers.0.self_attn.kv_norm.weight") && error.contains("NaN"),
        "{error}"
    );
}

#[test]
fn unwritable_and_full_folders() {
    let folder = tempfile::tempdir().unwrap();
    let file = on_tokens(16, folder.path(), FP8, PASSING);
    let blocked = folder.path().join("a-file");
    std::fs::write(&blocked, "").unwrap();
    let output = run(&["sweep", path(&file), "--out", path(&blocked.join("run"))]);
    assert_eq!(code(&output), 96);
    assert!(stderr(&output).contains("cannot create"), "{}", stderr(&output));

    // A file size limit fails writes as a full disk does; the signal that comes with it must be ignored.
    let out = folder.path().join("full");
    let script = format!(
        "trap '' XFSZ; ulimit -f 64; exec {} sweep {} --out {}",
        env!("CARGO_BIN_EXE_ulplab"),
        path(&file),
        path(&out)
    );
    let output = Command::new("bash")
        .current_dir(root())
        .args(["-c", &script])
        .output()
        .unwrap();
    assert_eq!(code(&output), 96, "{}", stderr(&output));
    assert!(stderr(&output).contains("cannot write"), "{}", stderr(&output));
    assert_eq!(
        code(&run(&["gate", path(&out)])),
        103,
        "what was written is no complete run"
    );
    let leftovers = std::fs::read_dir(out.join("cells")).unwrap().count();
    assert_eq!(leftovers, 0, "no partial cell is left behind");

    // With room again the run goes on.
    assert_eq!(code(&run(&["sweep", path(&file), "--out", path(&out), "--resume"])), 0);
}

#[test]
fn an_override_that_is_wrong_is_named_as_it_was_typed() {
    let folder = tempfile::tempdir().unwrap();
    let file = experiment(folder.path(), FP8, "");
    let said = |set: &str| {
        let output = run(&["sweep", path(&file), "--dry-run", "--set", set]);
        assert_eq!(code(&output), 2, "{set}");
        stderr(&output)
    };
    let zero = said("tokens=0");
    assert!(zero.contains("--set tokens") && !zero.contains("line "), "{zero}");
    let word = said("tokens=abc");
    assert!(
        word.contains("--set tokens=abc: expected a whole number, found 'abc'"),
        "{word}"
    );
    let text = said("window=[{text=\"nope.txt\"}]");
    assert!(text.starts_with("error: --set window: "), "{text}");
    assert!(text.contains("no data set 'nope.txt'"), "{text}");
}

#[test]
fn a_name_that_is_nearly_right_gets_a_suggestion() {
    for (args, words) in [
        (&["sweep", "kv_cach"][..], &["did you mean", "'kv_cache'"][..]),
        (&["kernels", "describe", "foo"], &["ulplab kernels list"]),
        (
            &["quantize", "a.npy", "--format", "int4", "-o", "b.safetensors"],
            &["int4_b32", "int4_g128"],
        ),
        (
            &["quantize", "a.npy", "--format", "fp4", "-o", "b.safetensors"],
            &["fp4_deepgemm", "nvfp4", "mxfp4"],
        ),
    ] {
        let output = run(args);
        assert_eq!(code(&output), 2, "{args:?}");
        let said = stderr(&output);
        assert!(words.iter().all(|word| said.contains(word)), "{args:?}: {said}");
    }
}

/// All keys that a table lacks are told at once, with the values that they may have, and the key that may stand for one of them.
/// Also of this kind: `[[recipe]]`, `[[window]]`, `[[op]]`, `[[case]]`, rounds, the head of a file, files with only `[[gate]]`.
#[test]
fn all_missing_keys_are_told_at_once() {
    let folder = tempfile::tempdir().unwrap();
    let gate = "[[gate]]\nmetric = \"cosine\"\nrequire = \">= 0.9\"\nwhy = \"x\"\n";
    for (change, words) in [
        (
            [PASSING, gate],
            &[
                "line",
                "missing fields `at`, `phase`, `statistic`, `recipes`",
                "'cumulative'",
                "'ci_low'",
                "recipes = an array",
            ][..],
        ),
        (
            [PASSING, &PASSING.replace("[[gate]]", "[gate]")],
            &["line", "[gate]: found one table", "write [[gate]]"],
        ),
        (
            [FP8, &FP8.replace("[[recipe]]", "[recipe]")],
            &["[recipe]: found one table", "write [[recipe]]"],
        ),
        (
            ["name = \"test\"", "nam = \"test\""],
            &["missing field `name`", "did you mean 'name' by 'nam'?"],
        ),
        (
            ["name = \"test\"\n", ""],
            &["missing field `name`; expected name = a string"],
        ),
        // A bound has two forms, so no key of them is required alone.
        (
            [PASSING, &gate.replace("require = \">= 0.9\"\n", "")],
            &[
                "line",
                "missing fields `at`, `phase`, `statistic`, `recipes`, `require`",
                "require = a string (Bound on the statistic, `>= 0.999` or `<= 1e-3`; left out if the gate has `flake`)",
                "at = a string (Pattern of tensor names (sites), with the layer, e.g. `layers.*.output` or `logits`)",
            ],
        ),
        (
            [PASSING, &PASSING.replace("require = ", "requir = ")],
            &["unknown field `requir`", "missing field `require`"],
        ),
        (
            [
                PASSING,
                &PASSING
                    .lines()
                    .filter(|line| !line.starts_with("require"))
                    .collect::<Vec<_>>()
                    .join("\n"),
            ],
            &["line", "missing field `require`; expected require = a string"],
        ),
        (
            ["metric = ", "colour = 1\nsize = 2\nmetrik = "],
            &[
                "unknown field `colour`",
                "unknown, too: `metrik`; did you mean 'metric'?, `size`",
                "missing field `metric`",
            ],
        ),
        // Keys of the root: those of other kinds and those of none.
        (
            [
                "name = \"test\"",
                "name = \"test\"\ndraws = 2\ncolour = 1\ntokenz = 3\nkernels = []",
            ],
            &[
                "line",
                "no use for",
                "'draws' (it is for kind = \"round_trip\"",
                "'colour' (unknown)",
                "'tokenz' (unknown; did you mean 'tokens'?)",
                "'kernels' (it is for kind = \"kernels\")",
            ],
        ),
        (
            ["name = \"test\"", "name = \"test\"\ncolour = 1\nsize = 3"],
            &["line", "unknown fields `colour`, `size`"],
        ),
        (
            ["text = \"alice\"", "txt = \"alice\""],
            &["unknown field `txt`", "missing field `text`"],
        ),
        (
            ["phase = \"local\"", "phse = \"local\""],
            &["unknown field `phse`", "missing field `phase`", "'local'"],
        ),
        (
            ["model = \"dsv4-mini\"", "model = \"Qwen/Qwen3-0.6B\""],
            &["line", "ulplab downloads nothing"],
        ),
        (
            ["format = \"v4_fp8\"", "format = \"v4_fp8\", layers = \"900\""],
            &["there is no layer 900", "from 0 to"],
        ),
        (
            ["layers.*.attention.kv.*\"", "layers.*.self_attn.kv.*\""],
            &["did you mean 'layers.*.attention.kv."],
        ),
    ] {
        let text = std::fs::read_to_string(experiment(folder.path(), FP8, PASSING)).unwrap();
        assert!(text.contains(change[0]), "{change:?}");
        let file = write(folder.path(), &text.replacen(change[0], change[1], 1));
        let output = run(&["sweep", path(&file), "--dry-run"]);
        let error = stderr(&output);
        assert_eq!(code(&output), 2, "{change:?}: {error}");
        for word in words {
            assert!(error.contains(word), "'{word}' is not in: {error}");
        }
    }
}
