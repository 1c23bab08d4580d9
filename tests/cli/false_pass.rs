//! What must not pass: each row is another way in which a verdict could rest on nothing. Also of each kind: other metrics, sites and
//! numbers than those of the rows.

#[path = "false_pass/doors.rs"]
mod doors;
#[path = "false_pass/programs.rs"]
mod programs;

use super::*;

/// A round of the test's recipe with this end, as `tokens = "9999"`.
fn with_round(end: &str) -> String {
    FP8.replace("format = \"v4_fp8\" }", &format!("format = \"v4_fp8\"{end} }}"))
}

#[track_caller]
fn refused_at_plan(recipes: &str, words: &str) {
    let folder = tempfile::tempdir().unwrap();
    let file = experiment(folder.path(), recipes, PASSING);
    let output = run(&["sweep", path(&file), "--dry-run"]);
    assert_eq!(code(&output), 2, "{recipes}: {}", stdout(&output));
    assert!(
        stderr(&output).contains(words),
        "{recipes}: '{words}' is not in: {}",
        stderr(&output)
    );
}

/// A recipe that rounds nothing measures the reference, and would pass every gate.
#[test]
fn recipes_that_round_nothing_are_refused() {
    for (end, words) in [
        (", tokens = \"9999\"", "there is no token 9999: "),
        (
            ", tokens = \"136\"",
            "there is no token 136: 'layers.*.attention.kv.*' has rows 0-135",
        ),
        (", tokens = \"136-200\"", "there is no token 200"),
        (", tokens = \"0-3,136\"", "there is no token 136"),
        (", tokens = \"\"", "is not a token"),
        (", tokens = \"5-3\"", "are not in order"),
        (", layers = \"61\"", "from 0 to 60"),
        (", layers = \"99\"", "from 0 to 60"),
        (", layers = \"\"", "is not a layer"),
        (", channels = \"9999\"", "there is no channel 9999"),
        (", channels = \"\"", "is not a channel"),
        (
            ", segment = \"rope\", channels = \"0-3\"",
            "it rounds nothing: the segment has channels ",
        ),
        (
            ", segment = \"nope\", channels = \"511\"",
            "it rounds nothing: the segment has channels 0-",
        ),
    ] {
        refused_at_plan(&with_round(end), words);
    }
    for (recipe, words) in [
        (
            "round = []",
            "it changes nothing: expected 'round', 'kernels', 'step', 'chunk' or 'cuts'",
        ),
        ("", "it changes nothing"),
        ("noise = true", "it changes nothing"),
        ("chunk = 136", "a window of 136 tokens is one call"),
        ("chunk = 100000", "a window of 136 tokens is one call"),
        (
            "round = [{ at = \"layers.*.attention.output.weight\", format = \"bf16\", tokens = \"0\" }]",
            "tensor site of the model",
        ),
        (
            "round = [{ at = \"lm_head.weight\", format = \"bf16\", tokens = \"0\" }]",
            "",
        ),
    ] {
        refused_at_plan(
            &format!("\n[[recipe]]\nname = \"v4_fp8\"\ndoc = \"\"\n{recipe}\n"),
            words,
        );
    }
}

/// Windows that share bytes are one sample that counts several times.
#[test]
fn windows_that_overlap_are_refused() {
    let folder = tempfile::tempdir().unwrap();
    let file = experiment(folder.path(), FP8, PASSING);
    let text = std::fs::read_to_string(&file).unwrap();
    for (offset, overlaps) in [
        (20001, true),
        (19999, true),
        (20135, true),
        (20136, false),
        (19864, false),
        (19865, true),
    ] {
        let other = format!("[[window]]\ntext = \"alice\"\noffset = {offset}\n[[recipe]]");
        let file = write(folder.path(), &text.replacen("[[recipe]]", &other, 1));
        let output = run(&["sweep", path(&file), "--dry-run"]);
        assert_eq!(
            code(&output),
            if overlaps { 2 } else { 0 },
            "{offset}: {}",
            stderr(&output)
        );
        let words = "share text, so they are not independent; expected offsets at least 136 bytes apart";
        assert_eq!(
            stderr(&output).contains(words),
            overlaps,
            "{offset}: {}",
            stderr(&output)
        );
    }
}

/// A copy of a text is no other text: as it is, a byte later, with other words ahead of it, or behind the other window's start.
#[test]
fn windows_of_copied_texts_are_refused() {
    let folder = tempfile::tempdir().unwrap();
    let file = experiment(folder.path(), FP8, PASSING);
    let text = std::fs::read_to_string(&file).unwrap();
    let alice = std::fs::read("datasets/text/alice.txt").unwrap();
    let own = folder.path().join("own.txt");
    let other = std::fs::read("datasets/text/tinyshakespeare.txt").unwrap();
    for (content, offset, shared) in [
        (alice.clone(), 20000, true),
        ([b"x", &alice[..]].concat(), 20000, true),
        ([b"x", &alice[..]].concat(), 20001, true),
        ([b"Another title\n", &alice[20000..40000]].concat(), 0, true),
        (alice[20030..40000].to_vec(), 0, true),
        (alice[20050..40000].to_vec(), 0, false),
        (alice[20100..40000].to_vec(), 0, false),
        (alice.clone(), 40000, false),
        (other, 20000, false),
    ] {
        std::fs::write(&own, content).unwrap();
        let window = format!("[[window]]\ntext = \"{}\"\noffset = {offset}\n[[recipe]]", path(&own));
        let file = write(folder.path(), &text.replacen("[[recipe]]", &window, 1));
        let output = run(&["sweep", path(&file), "--dry-run"]);
        let said = stderr(&output);
        assert_eq!(
            (code(&output), said.contains("share text")),
            if shared { (2, true) } else { (0, false) },
            "{offset}: {said}"
        );
    }
}

/// A run of two formats, with gates that nothing can break, that point the wrong way, or that judge nothing.
#[test]
fn gates_without_a_judgement_do_not_pass() {
    let folder = tempfile::tempdir().unwrap();
    let out = folder.path().join("run");
    let file = write(folder.path(), &format!("{TRIP}{NVFP4}{COSINE}"));
    let output = run(&["sweep", path(&file), "--out", path(&out)]);
    assert_eq!(code(&output), 0, "{}", stderr(&output));
    let rules = folder.path().join("rules.toml");
    let judged = |text: &str| {
        std::fs::write(&rules, text).unwrap();
        run(&["gate", path(&out), "--rules", path(&rules)])
    };
    let gate = |metric: &str, require: &str, more: &str| {
        let text = COSINE.replace("\"cosine\"", &format!("\"{metric}\""));
        // The worst window.
        let worst = if require.starts_with('<') { "\"max\"" } else { "\"min\"" };
        let text = text.replace("\"min\"", worst);
        text.replace(">= 0.98", require)
            .replace("why =", &format!("{more}why ="))
    };
    let control = "control = true\n";
    for (metric, require, more) in [
        ("cosine", ">= -1", ""),
        ("cosine", ">= -1.0", ""),
        ("cosine", ">= -5", ""),
        ("cosine", ">= -1e300", ""),
        ("cosine", ">= 1e-400", ""),
        ("cosine", ">= -1e-400", ""),
        ("cosine", ">= nan", ""),
        ("cosine", ">= -inf", ""),
        ("cosine", "<= 1", control),
        ("cosine", "<= 1e9", control),
        ("diff", "<= 2", ""),
        ("diff", "<= 3", ""),
        ("diff", "<= 1e300", ""),
        ("diff", "<= inf", ""),
        ("diff", "<= 1e309", ""),
        ("diff", ">= 0", control),
        ("diff", ">= -1", control),
        ("relative_l2", "<= 1e300", ""),
        ("relative_l2", "<= 1e100", ""),
        ("relative_l2", "<= inf", ""),
        ("relative_l2", ">= 0", control),
        ("relative_l2", ">= -0.0", control),
        ("nsr", "<= 1e300", ""),
        ("nsr", "<= 1e200", ""),
        ("nsr", ">= 0", control),
        ("sqnr", ">= -1e5", ""),
        ("sqnr", ">= -1e300", ""),
        ("sqnr", "<= 1e5", control),
        ("max_abs", "<= 1e39", ""),
        ("max_abs", "<= 1e300", ""),
        ("max_abs", ">= 0", control),
        ("zeroed", "<= 1", ""),
        ("zeroed", "<= 1e300", ""),
        ("zeroed", ">= 0", control),
        ("row_sqnr_p05", ">= -1e4", ""),
        ("row_sqnr_p50", ">= -1e4", ""),
        ("stored_bits", "<= 1e20", ""),
        ("nonfinite", "<= 1e20", ""),
        ("nonfinite", "<= 1e300", ""),
        ("sqnr_bits", ">= -1e5", ""),
        ("sqnr_theory", ">= -1e300", ""),
        ("sqnr_excess", ">= -1e300", ""),
        ("cosine_excess", "<= 2", ""),
        ("cosine_theory", ">= -1", ""),
        ("rho", ">= -1e300", ""),
        ("rho", "<= 1e300", ""),
        ("cosine", "<= 0.9", ""),
        ("sqnr", "<= 10", ""),
        ("cosine", ">= 0,98", ""),
        ("cosine", "> 0.98", ""),
        ("cosine", "", ""),
        ("cosine", "0.98", ""),
        ("cosine", ">=", ""),
        ("cosine", ">= 1e", ""),
        ("cosine", ">= 0x1", ""),
    ] {
        let output = judged(&gate(metric, require, more));
        assert_eq!(code(&output), 2, "{metric} {require} {more}: {}", stdout(&output));
    }
    // Bounds that can be broken are judged.
    for (metric, require) in [("cosine", ">= 0.5"), ("sqnr", ">= 1"), ("zeroed", "<= 0.99")] {
        let output = judged(&gate(metric, require, ""));
        assert_eq!(code(&output), 0, "{metric} {require}: {}", stderr(&output));
    }
    // Controls that hold judge nothing.
    let holds = gate("cosine", "<= 0.9999999", control);
    let output = judged(&holds);
    assert_eq!(code(&output), 4, "{}", stdout(&output));
    says(&stdout(&output), "NOT JUDGED: 0 checks pass, 0 fail; 2 controls hold");
    let output = judged(&format!("{holds}{}", gate("sqnr", "<= 200", control)));
    assert_eq!(code(&output), 4, "{}", stdout(&output));
    let output = judged(&format!("{holds}{COSINE}"));
    assert_eq!(code(&output), 0, "{}", stdout(&output));
    let output = judged(&gate("cosine", "<= 0.1", control));
    assert_eq!(code(&output), 100, "{}", stdout(&output));

    // Changes that nothing can exceed.
    let other = folder.path().join("other");
    std::fs::create_dir(&other).unwrap();
    copy_folder(&out, &other);
    assert_eq!(
        code(&run(&["diff", path(&out), path(&other), "--worsening", "cosine<=1e-3"])),
        0
    );
    for gate in [
        "cosine<=2",
        "cosine<=3",
        "cosine<=1e300",
        "diff<=2",
        "diff<=1e300",
        "zeroed<=1",
        "max_abs<=1e39",
        "relative_l2<=1e300",
        "relative_l2<=1e300%",
        "nsr<=1e300",
        "sqnr<=1e5",
        "cosine<=inf",
        "cosine<=nan",
        "cosine<=-1",
        "nonfinite<=1e20",
    ] {
        let output = run(&["diff", path(&out), path(&other), "--worsening", gate]);
        assert_eq!(code(&output), 2, "{gate}: {}", stdout(&output));
    }
}

/// Numbers that no machine has: an error in a sentence, and no panic, no abort and no wait.
#[test]
fn absurd_numbers_are_refused() {
    let folder = tempfile::tempdir().unwrap();
    let file = write(folder.path(), &format!("{TRIP}{NVFP4}{COSINE}"));
    let most = "18446744073709551615";
    let plan = |more: &[&str]| run(&[&["sweep", path(&file), "--dry-run"], more].concat());
    for more in [
        ["--partition", "slice:18446744073709551615/18446744073709551615"],
        ["--partition", "hash:18446744073709551615/18446744073709551615"],
        ["--partition", "slice:1/18446744073709551615"],
        ["--partition", "slice:1/4294967296"],
        ["--partition", "slice:0/0"],
        ["--partition", "slice:2/1"],
        ["--partition", "slice:-1/2"],
        ["--partition", "op:fp8:18446744073709551615/18446744073709551615"],
        ["--max-memory", "0"],
        ["--max-memory", "-1G"],
        ["--max-memory", "1e999"],
        ["--max-memory", "nan"],
        ["--seed", "18446744073709551616"],
        ["--seed", "-1"],
        ["--threads", "18446744073709551615"],
        ["--threads", "-1"],
        ["--set", "draws=18446744073709551615"],
        ["--set", "draws=9223372036854775807"],
        ["--set", "shape=[9223372036854775807, 9223372036854775807]"],
        ["--set", "shape=[0, 0]"],
        ["--set", "draws=-1"],
        ["--set", "draws=1e300"],
    ] {
        let output = plan(&more);
        assert_eq!(
            output.status.code(),
            Some(2),
            "{more:?}: {}{}",
            stdout(&output),
            stderr(&output)
        );
        assert!(!stderr(&output).contains("bug"), "{more:?}: {}", stderr(&output));
    }
    let model = experiment(folder.path(), FP8, PASSING);
    for set in [
        "tokens=18446744073709551615",
        "tokens=9223372036854775807",
        "tokens=0",
        "tokens=-5",
        "window=[{ text = \"alice\", offset = 9223372036854775807 }]",
        "window=[{ text = \"alice\", draws = 9223372036854775807 }]",
    ] {
        let output = run(&["sweep", path(&model), "--dry-run", "--set", set]);
        assert_eq!(
            output.status.code(),
            Some(2),
            "{set}: {}{}",
            stdout(&output),
            stderr(&output)
        );
    }
    for args in [
        &["gate", "--calibrate", path(&model), "-o", "/dev/null", "--draws", most][..],
        &["gate", "--calibrate", path(&model), "-o", "/dev/null", "--draws", "0"],
        &[
            "gate",
            "--calibrate",
            path(&model),
            "-o",
            "/dev/null",
            "--effect",
            "inf",
        ],
        &[
            "mix",
            path(&model),
            "--at",
            "layers.*.mlp.*.weight",
            "--formats",
            "nvfp4,bf16",
            "--held-out",
            most,
        ],
        &[
            "mix",
            path(&model),
            "--at",
            "layers.*.mlp.*.weight",
            "--formats",
            "nvfp4,bf16",
            "--kl",
            "inf",
        ],
        &[
            "mix",
            path(&model),
            "--at",
            "layers.*.mlp.*.weight",
            "--formats",
            "nvfp4,bf16",
            "--top",
            most,
        ],
        &["audit", "--seeds", most],
        &["bisect", path(&model), "--cells", "-1"],
    ] {
        let output = run(args);
        assert_eq!(
            output.status.code(),
            Some(2),
            "{args:?}: {}{}",
            stdout(&output),
            stderr(&output)
        );
    }
}

/// A folder in which nothing was measured is not burnt.
#[test]
fn a_folder_in_which_nothing_was_measured_is_used_again() {
    let folder = tempfile::tempdir().unwrap();
    let out = folder.path().join("run");
    let file = write(folder.path(), &format!("{TRIP}{NVFP4}{COSINE}"));
    let sweep = |more: &[&str]| run(&[&["sweep", path(&file), "--out", path(&out)], more].concat());
    assert_eq!(code(&sweep(&[])), 0);
    // As a run leaves it that fails before its first cell.
    for entry in std::fs::read_dir(&out).unwrap() {
        let entry = entry.unwrap().path();
        match entry.is_dir() {
            true if entry.ends_with("cells") => {
                std::fs::read_dir(&entry)
                    .unwrap()
                    .for_each(|cell| std::fs::remove_file(cell.unwrap().path()).unwrap());
            }
            false if !entry.ends_with("run.json") => std::fs::remove_file(&entry).unwrap(),
            _ => {}
        }
    }
    let output = sweep(&["--seed", "9"]);
    assert_eq!(code(&output), 0, "{}", stderr(&output));
    says(
        &stderr(&output),
        "nothing was measured in the run that it held; it is replaced",
    );
    // With a cell it holds a run.
    let output = sweep(&["--seed", "10"]);
    assert_eq!(code(&output), 2, "{}", stdout(&output));
    says(&stderr(&output), "not empty");
}

/// Two programs are the same only if the sources are.
#[test]
fn a_run_of_other_sources_is_not_continued() {
    let folder = tempfile::tempdir().unwrap();
    let out = folder.path().join("run");
    let file = write(folder.path(), &format!("{TRIP}{NVFP4}{COSINE}"));
    assert_eq!(code(&run(&["sweep", path(&file), "--out", path(&out)])), 0);
    let (_, mut manifest) = ulplab::run::folder::Folder::open(&out).unwrap();
    assert_eq!(manifest.program.sources, ulplab::provenance::SOURCES);
    assert!(!manifest.program.vectors.is_empty());
    manifest.program.sources = "0".repeat(64);
    manifest.fingerprint = manifest.identity();
    let other = folder.path().join("other");
    std::fs::create_dir(&other).unwrap();
    copy_folder(&out, &other);
    std::fs::write(other.join("run.json"), ulplab::run::seal::json(&manifest)).unwrap();
    let short: String = ulplab::provenance::SOURCES.chars().take(12).collect();
    let words = format!("another program, by the digest of its sources (000000000000, here {short})");
    let output = run(&["sweep", path(&file), "--out", path(&other), "--resume"]);
    assert_eq!(code(&output), 2, "{}", stdout(&output));
    says(&stderr(&output), &words);
    let merged = folder.path().join("merged");
    let output = run(&["merge", path(&other), path(&out), "--out", path(&merged)]);
    assert_eq!(code(&output), 2, "{}", stdout(&output));
    says(&stderr(&output), &words);
}
