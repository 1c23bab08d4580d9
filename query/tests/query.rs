//! `ulplab-query` on a small stored run (`tests/run`), as a user drives it.

use std::path::{Path, PathBuf};
use std::process::Output;

use assert_cmd::Command;

/// The stored run: two formats on two draws.
fn run() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/run")
}

fn query(words: &[&str]) -> Output {
    let mut command = Command::cargo_bin("ulplab-query").expect("it is built");
    command.args(words).output().expect("it starts")
}

/// Standard output of a query that succeeds.
#[track_caller]
fn answer(words: &[&str]) -> String {
    let output = query(words);
    let said = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{words:?}: {said}");
    String::from_utf8(output.stdout).expect("it is text")
}

/// Standard error of a query that ends with an exit code.
#[track_caller]
fn refused(words: &[&str], exit: i32) -> String {
    let output = query(words);
    let said = String::from_utf8_lossy(&output.stderr).into_owned();
    assert_eq!(output.status.code(), Some(exit), "{words:?}: {said}");
    said
}

/// The stored run at another place, without some of its files.
fn copied(without: &[&str]) -> tempfile::TempDir {
    let folder = tempfile::tempdir().unwrap();
    std::fs::create_dir_all(folder.path().join("cells")).unwrap();
    for from in [run(), run().join("cells")] {
        for entry in std::fs::read_dir(&from).unwrap().map(Result::unwrap) {
            let name = entry.path().strip_prefix(run()).unwrap().to_path_buf();
            if entry.path().is_file() && !without.contains(&name.to_str().unwrap()) {
                std::fs::copy(entry.path(), folder.path().join(name)).unwrap();
            }
        }
    }
    folder
}

#[test]
fn a_table_has_a_header_and_aligned_columns() {
    let path = run();
    let path = path.to_str().unwrap();
    let table = answer(&[
        path,
        "SELECT recipe, metric, count(*) AS n FROM records GROUP BY recipe, metric ORDER BY recipe, metric",
    ]);
    let lines: Vec<&str> = table.lines().collect();
    assert!(lines[0].starts_with("recipe") && lines[0].ends_with(" n"), "{table}");
    assert!(lines.iter().skip(1).any(|line| line.starts_with("bf16 ")), "{table}");
    let wide = answer(&[path, "SELECT * FROM records LIMIT 1"]);
    assert!(wide.starts_with("run "), "{wide}");
}

#[test]
fn runs_are_told_apart() {
    let other = copied(&[]);
    let (path, other) = (run(), other.path().to_str().unwrap());
    let path = path.to_str().unwrap();
    let sql = "SELECT run, study, count(*) AS n FROM summaries GROUP BY run, study ORDER BY run";
    let csv = answer(&[path, other, sql, "--format", "csv"]);
    let lines: Vec<&str> = csv.lines().collect();
    assert_eq!(lines[0], "run,study,n");
    assert_eq!(lines.len(), 3, "{csv}");
    for path in [path, other] {
        assert!(lines.iter().any(|line| line.starts_with(&format!("{path},"))), "{csv}");
    }
}

#[test]
fn formats_follow_from_the_file() {
    let (path, folder) = (run(), tempfile::tempdir().unwrap());
    let path = path.to_str().unwrap();
    let file = |name: &str| folder.path().join(name).to_str().unwrap().to_string();
    let sql = "SELECT recipe, value, layer, worst_index FROM records WHERE metric = 'relative_l2' ORDER BY value DESC LIMIT 2";
    for name in ["a.csv", "a.json", "a.parquet", "a.txt"] {
        assert_eq!(answer(&[path, sql, "-o", &file(name)]), "");
    }
    let read = |name: &str| std::fs::read_to_string(file(name)).unwrap();
    assert!(read("a.csv").starts_with("recipe,value,layer,worst_index\n"));
    assert!(read("a.json").starts_with("[{\"recipe\":") && read("a.json").ends_with("}]\n"));
    assert!(read("a.txt").starts_with("recipe "));
    let parquet = std::fs::read(file("a.parquet")).unwrap();
    assert!(parquet.starts_with(b"PAR1"));
    let said = refused(&[path, sql, "-o", &file("a.xls")], 2);
    assert!(said.contains("a.xls: its extension stands for no format"), "{said}");
    let said = refused(&[path, sql, "--format", "parquet"], 2);
    assert!(said.contains("expected -o FILE"), "{said}");
}

#[test]
fn an_empty_result_has_its_header() {
    let path = run();
    let path = path.to_str().unwrap();
    let sql = "SELECT recipe, value FROM records WHERE recipe = 'nobody'";
    assert_eq!(answer(&[path, sql]).trim_end(), "recipe  value");
    assert_eq!(answer(&[path, sql, "--format", "csv"]), "recipe,value\n");
    assert_eq!(answer(&[path, sql, "--format", "json"]).trim_end(), "[]");
}

#[test]
fn an_error_names_the_statement_and_the_columns() {
    let path = run();
    let path = path.to_str().unwrap();
    for sql in [
        "SELECT nothing FROM records",
        "SELECT FROM WHERE",
        "SELECT 1 FROM elsewhere",
        "SELECT 1; SELECT 2",
    ] {
        let said = refused(&[path, sql], 2);
        assert!(said.contains(sql), "{said}");
        assert!(said.contains("columns of records: run, study, run_id, "), "{said}");
        assert!(said.contains("columns of summaries: run, study, run_id, "), "{said}");
    }
}

#[test]
fn what_is_no_run_is_refused() {
    let folder = tempfile::tempdir().unwrap();
    let said = refused(&[folder.path().to_str().unwrap(), "SELECT 1"], 2);
    assert!(said.contains("not a run: it has no run.json"), "{said}");
    let said = refused(&["no/such/folder", "SELECT 1"], 2);
    assert!(said.contains("no/such/folder: there is no such folder"), "{said}");
    refused(&["SELECT 1"], 2);
    let damaged = copied(&["records.parquet"]);
    std::fs::write(damaged.path().join("records.parquet"), "no parquet").unwrap();
    let said = refused(&[damaged.path().to_str().unwrap(), "SELECT 1 FROM records"], 2);
    assert!(said.contains("records.parquet: "), "{said}");
}

#[test]
fn an_incomplete_run_has_its_finished_cells() {
    let path = run();
    let cells: Vec<String> = std::fs::read_dir(path.join("cells"))
        .unwrap()
        .map(|entry| format!("cells/{}", entry.unwrap().file_name().to_str().unwrap()))
        .collect();
    let sql = "SELECT count(DISTINCT cell) AS n FROM records";
    let all = answer(&[path.to_str().unwrap(), sql, "--format", "csv"]);
    assert_eq!(all, format!("n\n{}\n", cells.len()));
    let half = copied(&["records.parquet", "summary.parquet", &cells[0]]);
    let output = query(&[half.path().to_str().unwrap(), sql, "--format", "csv"]);
    let said = String::from_utf8_lossy(&output.stderr);
    assert!(
        said.contains(&format!(
            "the run is incomplete: 1 of {} cells are missing",
            cells.len()
        )),
        "{said}"
    );
    assert_eq!(
        String::from_utf8_lossy(&output.stdout),
        format!("n\n{}\n", cells.len() - 1)
    );
    let whole = copied(&["records.parquet", "summary.parquet"]);
    let output = query(&[whole.path().to_str().unwrap(), sql, "--format", "csv"]);
    assert!(output.stderr.is_empty());
    assert_eq!(String::from_utf8_lossy(&output.stdout), all);
}
