//! Tables of runs, as the package `query` reads them. That package is built only when it changes; this part of it is compiled here.

#[path = "../../query/runs.rs"]
mod runs;

use std::path::Path;

use runs::Tables;

use crate::report::store::{record, rows, summary};

#[test]
fn tables_of_a_stored_run_are_its_files() {
    let stored = Path::new(env!("CARGO_MANIFEST_DIR")).join("query/tests/run");
    let tables = Tables::read(&stored).unwrap();
    assert_eq!((tables.study.as_str(), tables.missing), ("round_trip", None));
    assert_eq!(tables.records, stored.join("records.parquet"));
    assert_eq!(Path::new(&tables.run), stored);
}

/// The tables of a run that lacks cells are made of the others, and hold the same numbers.
#[test]
fn tables_of_an_incomplete_run_are_those_of_its_finished_cells() {
    let stored = Path::new(env!("CARGO_MANIFEST_DIR")).join("query/tests/run");
    let folder = tempfile::tempdir().unwrap();
    std::fs::create_dir(folder.path().join("cells")).unwrap();
    let copy = |name: &str| std::fs::copy(stored.join(name), folder.path().join(name)).unwrap();
    copy("run.json");
    for recipe in ["bf16", "e4m3"] {
        copy(&format!("cells/{recipe}__local__draw-1.jsonl"));
    }
    let tables = Tables::read(folder.path()).unwrap();
    let missing = tables.missing.as_deref();
    assert_eq!(
        missing,
        Some("2 of 4 cells are missing, the first is 'bf16/local/draw-2'")
    );
    let records = |file: &Path| -> Vec<_> { rows(file).iter().map(record).collect() };
    let mut all = records(&stored.join("records.parquet"));
    all.retain(|record| record.window == "draw-1");
    assert_eq!(records(&tables.records), all);
    let summaries: Vec<_> = rows(&tables.summaries).iter().map(summary).collect();
    assert!(!summaries.is_empty() && summaries.iter().all(|summary| summary.windows == 1));
    let made = tables.records.clone();
    drop(tables);
    assert!(!made.exists());
}
