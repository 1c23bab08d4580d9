use super::*;

#[test]
fn a_passing_sweep_ends_in_zero_and_leaves_every_report() {
    let folder = tempfile::tempdir().unwrap();
    let file = experiment(folder.path(), FP8, PASSING);
    let out = folder.path().join("run");
    let output = run(&["sweep", path(&file), "--out", path(&out)]);
    assert_eq!(code(&output), 0, "{}", stderr(&output));
    for name in [
        "run.json",
        "records.parquet",
        "summary.parquet",
        "records.jsonl",
        "report.html",
        "report.md",
        "junit.xml",
    ] {
        assert!(out.join(name).metadata().is_ok_and(|file| file.len() > 0), "{name}");
    }
    let text = stdout(&output);
    let last = text.lines().last().unwrap();
    assert!(last.starts_with("PASS: 1 check passes, 0 fail; 3 cells in "), "{last}");
    assert!(last.ends_with("report.html"), "{last}");
    assert!(
        stderr(&output).is_empty(),
        "no progress bar off a terminal: {}",
        stderr(&output)
    );

    // The same verdict from the stored run, and from stricter rules.
    assert_eq!(code(&run(&["gate", path(&out)])), 0);
    let strict = experiment(folder.path(), FP8, &PASSING.replace("0.999", "0.99999"));
    let output = run(&["gate", path(&out), "--rules", path(&strict)]);
    assert_eq!(code(&output), 100, "{}", stdout(&output));
    assert!(
        stdout(&output)
            .lines()
            .last()
            .unwrap()
            .starts_with("FAIL: 0 checks pass, 1 fail")
    );
}

#[test]
fn a_failing_gate_ends_in_100() {
    let folder = tempfile::tempdir().unwrap();
    let file = on_tokens(16, folder.path(), FP8, &PASSING.replace("0.999", "0.99999"));
    let output = run(&["sweep", path(&file), "--out", path(&folder.path().join("run"))]);
    assert_eq!(code(&output), 100);
}

#[test]
fn results_do_not_depend_on_threads_or_partitions() {
    let folder = tempfile::tempdir().unwrap();
    let noisy = FP8.replace("doc =", "noise = true\ndoc =");
    let file = experiment(folder.path(), &noisy, "");
    let cells = |run: &Path| {
        let mut files: Vec<_> = std::fs::read_dir(run.join("cells"))
            .unwrap()
            .map(|entry| entry.unwrap().path())
            .collect();
        files.sort();
        files
            .into_iter()
            .map(|file| std::fs::read(file).unwrap())
            .collect::<Vec<_>>()
    };
    let (one, two, parts) = (
        folder.path().join("1"),
        folder.path().join("2"),
        folder.path().join("parts"),
    );
    assert_eq!(
        code(&run(&["sweep", path(&file), "--threads", "1", "--out", path(&one)])),
        4,
        "no gate judges it"
    );
    assert_eq!(
        code(&run(&["sweep", path(&file), "--threads", "2", "--out", path(&two)])),
        4
    );
    assert!(cells(&one) == cells(&two), "thread count changes results");

    let part = |which: &str| run(&["sweep", path(&file), "--partition", which, "--out", path(&parts)]);
    let first = part("slice:1/2");
    assert_eq!(code(&first), 0, "its share is done: {}", stderr(&first));
    let said = stderr(&first);
    assert!(
        said.starts_with("slice:1/2 is done, and nothing is judged yet: "),
        "{said}"
    );
    // The check in f64 costs as much as the two others together.
    assert!(said.contains("2 of 3 cells are missing"), "{said}");
    assert_eq!(stdout(&first), "", "no verdict");
    assert_eq!(code(&run(&["gate", path(&parts)])), 103);
    assert_eq!(code(&part("slice:2/2")), 4, "the last partition completes the run");
    assert!(cells(&one) == cells(&parts), "partitions change results");
}

#[test]
fn selection_overrides_and_dry_run() {
    let folder = tempfile::tempdir().unwrap();
    let file = experiment(folder.path(), FP8, PASSING);
    let output = run(&["sweep", path(&file), "--dry-run", "--only", "v4_fp8/*"]);
    assert_eq!(
        stdout(&output),
        "v4_fp8/local/alice@20000\nv4_fp8/cumulative/alice@20000\n"
    );
    let output = run(&["sweep", path(&file), "--dry-run", "--only", "v5*"]);
    assert_eq!(code(&output), 4);
    assert!(stderr(&output).contains("'v5*' matches no cell"), "{}", stderr(&output));
    let output = run(&[
        "sweep",
        path(&file),
        "--dry-run",
        "--set",
        "phases=[\"local\"]",
        "--skip",
        "reference/*",
    ]);
    assert_eq!(stdout(&output), "v4_fp8/local/alice@20000\n");
    let output = run(&["sweep", path(&file), "--dry-run", "--set", "token=5"]);
    assert_eq!(code(&output), 2);
    assert!(
        stderr(&output).contains("did you mean 'tokens'?"),
        "{}",
        stderr(&output)
    );
}

#[test]
fn generate_writes_text_and_says_where_a_recipe_departs() {
    let output = run(&[
        "dev",
        "generate",
        "--prompt",
        "To be, or ",
        "--tokens",
        "12",
        "--round",
        "layers.*.attention.kv.*=v4_fp8",
    ]);
    assert_eq!(code(&output), 0, "{}", stderr(&output));
    let text = stdout(&output);
    assert!(text.starts_with("--- reference\nTo be, or "), "{text}");
    assert!(text.contains("--- layers.*.attention.kv.*=v4_fp8: "), "{text}");
}

/// The report in the folder has the verdicts of the run's own gates, which may be the opposite.
#[test]
fn other_gates_do_not_point_to_the_report() {
    let folder = tempfile::tempdir().unwrap();
    let out = folder.path().join("run");
    let file = experiment(folder.path(), FP8, PASSING);
    assert_eq!(
        code(&run(&["sweep", path(&file), "--set", "tokens=16", "--out", path(&out)])),
        0
    );
    let rules = folder.path().join("rules.toml");
    std::fs::write(&rules, PASSING.replace("0.999", "0.99999")).unwrap();
    let output = run(&["gate", path(&out), "--rules", path(&rules)]);
    assert_eq!(code(&output), 100, "{}", stderr(&output));
    let text = stdout(&output);
    assert!(!text.contains("run/report.html"), "{text}");
    assert!(text.contains("has the verdicts of the run's own gates"), "{text}");

    let narrow = ulplab(&["gate", path(&out)]).env("COLUMNS", "60").output().unwrap();
    let page = out.join("report.html").display().to_string();
    assert_eq!(stdout(&narrow).lines().last(), Some(page.as_str()));
}

#[test]
fn half_a_vector_has_no_size() {
    let folder = tempfile::tempdir().unwrap();
    let half = FP8.replace("format = \"v4_fp8\"", "format = \"int8_token\", segment = \"nope\"");
    let out = folder.path().join("run");
    let file = experiment(folder.path(), &half, PASSING);
    let args = ["sweep", path(&file), "--set", "tokens=16", "--out", path(&out)];
    let output = run(&args);
    assert_eq!(code(&output), 0, "{}", stderr(&output));
    let text = stdout(&output);
    assert!(
        !text.contains("The smallest format") && !text.contains("bytes"),
        "{text}"
    );
}
