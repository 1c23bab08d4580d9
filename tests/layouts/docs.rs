//! The generated page, and the list.

use std::process::Command;

use ulplab::layouts::LAYOUTS;

#[test]
fn docs_layouts_md_is_what_the_table_says() {
    let path = concat!(env!("CARGO_MANIFEST_DIR"), "/docs/layouts.md");
    let want = ulplab::layouts::markdown();
    if std::env::var_os("ULPLAB_BLESS").is_some() {
        std::fs::write(path, &want).unwrap();
    }
    let found = std::fs::read_to_string(path).unwrap_or_default();
    assert!(
        found == want,
        "docs/layouts.md is stale; write it again with ULPLAB_BLESS=1 cargo test --test core layouts::docs"
    );
}

#[test]
fn ulplab_list_names_every_layout() {
    let output = Command::new(env!("CARGO_BIN_EXE_ulplab"))
        .args(["list", "layouts"])
        .output()
        .unwrap();
    let text = String::from_utf8(output.stdout).unwrap();
    let names: Vec<_> = text.lines().filter_map(|line| line.split_whitespace().next()).collect();
    assert_eq!(names, LAYOUTS.iter().map(|layout| layout.name).collect::<Vec<_>>());
}

#[test]
fn ulplab_bench_times_every_layout_both_ways() {
    let bench = |args: &[&str]| {
        let mut command = Command::new(env!("CARGO_BIN_EXE_ulplab"));
        command.args(["dev", "bench", "layouts"]).args(args).output().unwrap()
    };
    let output = bench(&["--rows", "130", "--bytes", "72", "--groups", "3", "--repeats", "2"]);
    let text = String::from_utf8(output.stdout).unwrap();
    for layout in LAYOUTS {
        let lines = text
            .lines()
            .filter(|line| line.starts_with(&format!("{} ", layout.name)));
        assert_eq!(lines.count(), 2, "{} in:\n{text}", layout.name);
    }
    for (args, error) in [
        (["--repeats", "0"], "--repeats"),
        (["--layout", "blocked_8x5"], "did you mean 'blocked_8x4'?"),
    ] {
        let output = bench(&args);
        assert_eq!(output.status.code(), Some(2));
        let found = String::from_utf8(output.stderr).unwrap();
        assert!(found.contains(error), "'{error}' is not in: {found}");
    }
}
