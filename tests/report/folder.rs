//! A run's folder: whatever was changed, cut, moved or mixed in it is refused.

use std::fs;
use std::path::{Path, PathBuf};

use ulplab::experiment::file::ExperimentFile;
use ulplab::experiment::{Experiment, Head, Rule, Statistic};
use ulplab::record::{Phase, Record, Worst};
use ulplab::run::Manifest;
use ulplab::run::folder::{Folder, read_cell, read_manifest};
use ulplab::run::{seal, store};
use ulplab::studies::round_trip::{Recipe, RoundTripStudy};
use ulplab::studies::{self, Keys, Study};
use ulplab::{Exit, Result};

/// Two recipes on two draws.
pub fn manifest(seed: u64) -> Manifest {
    let recipe = |name: &str| Recipe {
        name: name.into(),
        doc: format!("format {name}"),
        format: name.into(),
        against: None,
        noise: false,
        gain: None,
    };
    let gate = Rule {
        metric: "sqnr".into(),
        at: "gauss".into(),
        phase: Phase::Local,
        statistic: Statistic::Min,
        require: ">= 20".into(),
        recipes: vec!["*".into()],
        why: "theory".into(),
        control: false,
        flake: None,
        calibration: None,
    };
    let study = RoundTripStudy {
        draws: 2,
        shape: [4, 32],
        recipes: vec![recipe("e4m3"), recipe("nvfp4")],
        ..RoundTripStudy::default()
    };
    let experiment = Experiment {
        head: Head {
            name: "tiny".into(),
            question: "What is left?".into(),
            kind: "round_trip".into(),
            seed,
            inert: Vec::new(),
            gates: vec![gate],
        },
        body: study.body(),
    };
    let mut manifest = Manifest {
        schema: store::SCHEMA,
        version: "0.1.0".into(),
        commit: None,
        program: Default::default(),
        experiment,
        plan: study.plan(),
        fingerprint: String::new(),
        data: vec![("alice.txt".into(), "0c".repeat(32))],
        device: "cpu".into(),
        threads: 2,
        started_at: "2026-01-02T03:04:05Z".into(),
        seconds: 0.0,
        cells: vec![],
        left_out: vec![],
        hindered: Default::default(),
        notes: Vec::new(),
        invocation: Default::default(),
        recipes: vec![],
        peers: Default::default(),
        vocabulary: None,
        ceilings: None,
        complete: false,
    };
    manifest.keep(&study.plan().cells());
    manifest.fingerprint = manifest.identity();
    manifest
}

/// A finished run of a manifest: a few records a cell, with numbers that JSON has no word for.
pub fn finished(path: &Path, manifest: &Manifest) -> Folder {
    let (folder, _) = Folder::enter(path, manifest, false).expect("a new run");
    for cell in manifest.plan.cells() {
        let window = cell.id.rsplit('/').next().expect("a window");
        let record = |metric: &str, value: f64| Record {
            site: "gauss".into(),
            metric: metric.into(),
            value,
            n: 128,
            ..Record::blank(&cell.id, &cell.recipe, cell.phase, window)
        };
        let worst = Record {
            worst: Some(Worst {
                index: vec![3, 31],
                want: 1.5,
                got: f64::INFINITY,
            }),
            ..record("max_abs", f64::NAN)
        };
        let elsewhere = Record {
            site: "kv".into(),
            layer: Some(1),
            ..record("sqnr", 30.25)
        };
        folder
            .write_cell(&cell, &[record("sqnr", 31.5), worst, elsewhere])
            .expect("a cell");
    }
    folder
}

/// What `gate` and `report` read.
pub fn read(path: &Path) -> Result<Vec<Record>> {
    let (folder, manifest) = Folder::open(path)?;
    folder.records(&manifest)
}

pub fn cell_file(path: &Path, id: &str) -> PathBuf {
    path.join("cells").join(id.replace('/', "__") + ".jsonl")
}

/// The run is refused, by the name of the file and with these words; resumed, that cell is run again.
#[track_caller]
fn refused(path: &Path, file: &Path, words: &str) {
    let error = read(path).expect_err("a damaged run");
    let name = file.file_name().expect("a name").to_string_lossy();
    let message = error.to_string();
    assert_eq!(error.exit(), Exit::Usage, "{message}");
    assert!(
        message.contains(&*name) && message.contains(words),
        "{name}, '{words}': {message}"
    );
    if let Ok((folder, manifest)) = Folder::open(path) {
        let again = |id: &&String| !folder.finished(id).expect("a readable file");
        let again: Vec<&String> = manifest.cells.iter().filter(again).collect();
        let again: Vec<PathBuf> = again.into_iter().map(|id| cell_file(path, id)).collect();
        assert_eq!(again, [file]);
    }
}

#[test]
fn a_run_is_read_as_it_was_written() {
    let folder = tempfile::tempdir().expect("a temporary folder");
    let path = folder.path().join("run");
    finished(&path, &manifest(7));
    let records = read(&path).expect("a whole run");
    assert_eq!(records.len(), 12);
    assert_eq!(records[0].cell, "e4m3/local/draw-1");
    assert!(records[1].value.is_nan());
    assert_eq!(records[1].worst.as_ref().map(|worst| worst.got), Some(f64::INFINITY));
}

#[test]
fn every_changed_byte_is_refused() {
    let folder = tempfile::tempdir().expect("a temporary folder");
    let path = folder.path().join("run");
    let manifest = manifest(7);
    finished(&path, &manifest);
    let run = fs::read(path.join("run.json")).expect("bytes");
    refuses_changes(&run, &|bytes| read_manifest(bytes).map(drop));
    for id in &manifest.cells {
        let cell = fs::read(cell_file(&path, id)).expect("bytes");
        refuses_changes(&cell, &|bytes| read_cell(bytes, id, &manifest.fingerprint).map(drop));
    }
}

fn refuses_changes(whole: &[u8], read: &dyn Fn(&[u8]) -> Result<(), String>) {
    read(whole).expect("it is whole");
    for at in 0..whole.len() {
        let mut flipped = whole.to_vec();
        flipped[at] ^= 1 << (at % 8);
        let mut printable = whole.to_vec();
        printable[at] = if whole[at] == b'7' { b'1' } else { b'7' };
        let mut spaced = whole.to_vec();
        spaced.insert(at, b' ');
        let mut shorter = whole.to_vec();
        shorter.remove(at);
        for changed in [flipped, printable, spaced, shorter, whole[..at].to_vec()] {
            assert!(
                read(&changed).is_err(),
                "byte {at}: {}",
                String::from_utf8_lossy(&changed)
            );
        }
    }
    for more in [&b"\n"[..], b" ", b"}", b"{}\n", whole] {
        assert!(read(&[whole, more].concat()).is_err(), "{more:?} behind its end");
    }
}

#[test]
fn a_changed_file_is_refused_by_name() {
    let folder = tempfile::tempdir().expect("a temporary folder");
    let path = folder.path().join("run");
    let manifest = manifest(7);
    finished(&path, &manifest);
    for file in manifest
        .cells
        .iter()
        .map(|id| cell_file(&path, id))
        .chain([path.join("run.json")])
    {
        let whole = fs::read(&file).expect("bytes");
        for at in (0..whole.len()).step_by(211) {
            let mut changed = whole.clone();
            changed[at] ^= 4;
            fs::write(&file, &changed).expect("a file");
            refused(&path, &file, "");
        }
        fs::write(&file, whole).expect("a file");
    }
    assert!(read(&path).is_ok());
}

#[test]
fn damaged_and_foreign_cells_are_refused_by_name() {
    let folder = tempfile::tempdir().expect("a temporary folder");
    let (path, other) = (folder.path().join("run"), folder.path().join("other"));
    finished(&path, &manifest(7));
    finished(&other, &manifest(8));
    let file = cell_file(&path, "e4m3/local/draw-1");
    let whole = fs::read_to_string(&file).expect("text");
    let lines: Vec<&str> = whole.lines().collect();
    assert_eq!(lines.len(), 3, "two lines of records and the end");
    let text = |lines: &[&str]| lines.iter().map(|line| format!("{line}\n")).collect::<String>();
    let relabelled = whole.replace("e4m3", "nvfp4");
    let foreign = fs::read_to_string(cell_file(&other, "e4m3/local/draw-1")).expect("text");
    let sibling = fs::read_to_string(cell_file(&path, "nvfp4/local/draw-1")).expect("text");
    let changed = [
        (String::new(), "it is empty"),
        (text(&lines[..1]), "its last line is not the blake3"),
        (text(&lines[..2]), "its last line is not the blake3"),
        (text(&lines[1..]), "its content does not match the blake3"),
        (
            text(&[lines[0], lines[0], lines[1], lines[2]]),
            "its content does not match the blake3",
        ),
        (whole.repeat(2), "its content does not match the blake3"),
        (
            text(&[lines[1], lines[0], lines[2]]),
            "its content does not match the blake3",
        ),
        (whole.replace("31.5", "91.5"), "its content does not match the blake3"),
        (relabelled, "its content does not match the blake3"),
        (
            sibling,
            "it is of the cell 'nvfp4/local/draw-1', expected 'e4m3/local/draw-1'",
        ),
        (foreign, "it is of the run "),
    ];
    for (text, words) in changed {
        fs::write(&file, text).expect("a file");
        refused(&path, &file, words);
    }

    // Who computes the digest again meets the other checks.
    let resealed = |text: &str| {
        let mut text = text.as_bytes()[..text.len() - 67].to_vec();
        seal::seal(&mut text, "\"}\n");
        text
    };
    assert_eq!(resealed(&whole), whole.as_bytes());
    let count = text(&[lines[0], lines[2]]);
    let stranger = whole.replacen("\"recipe\":\"e4m3\"", "\"recipe\":\"nvfp4\"", 1);
    let moved = whole.replacen("\"window\":\"draw-1\"", "\"window\":\"draw-2\"", 1);
    for (text, words) in [
        (count, "it holds 2 records, and its last line says 3"),
        (
            stranger,
            "a record in it is of nvfp4, local, draw-1 in the cell 'e4m3/local/draw-1'",
        ),
        (moved, "a record in it is of e4m3, local, draw-2"),
    ] {
        assert_ne!(text, whole);
        fs::write(&file, resealed(&text)).expect("a file");
        refused(&path, &file, words);
    }

    fs::remove_file(&file).expect("a file");
    let error = read(&path).expect_err("a cell is missing");
    assert_eq!(error.exit(), Exit::Incomplete);
    assert!(
        error
            .to_string()
            .contains("1 of 4 cells are missing, the first is 'e4m3/local/draw-1'"),
        "{error}"
    );
}

#[test]
fn a_manifest_that_contradicts_itself_is_refused() {
    let folder = tempfile::tempdir().expect("a temporary folder");
    let path = folder.path().join("run");
    finished(&path, &manifest(7));
    let file = path.join("run.json");
    let lies: [(&str, fn(&mut Manifest), &str); 9] = [
        (
            "cell removed",
            |m| drop(m.cells.remove(1)),
            "plans the cell 'nvfp4/local/draw-1'",
        ),
        (
            "cell doubled",
            |m| m.cells.push(m.cells[3].clone()),
            "lists the cell 'nvfp4/local/draw-2' twice",
        ),
        (
            "cell doubled in place",
            |m| m.cells.insert(1, m.cells[0].clone()),
            "'nvfp4/local/draw-1'",
        ),
        ("cells swapped", |m| m.cells.swap(0, 1), "'e4m3/local/draw-1'"),
        (
            "cell of no recipe",
            |m| m.cells.push("bf16/local/draw-1".into()),
            "'bf16/local/draw-1'",
        ),
        (
            "cell both here and left out",
            |m| m.left_out.push(m.cells[0].clone()),
            "'e4m3/local/draw-1'",
        ),
        ("draws", |m| drop(m.plan.windows.pop()), "'e4m3/local/draw-2'"),
        ("recipe", |m| drop(m.plan.recipes.pop()), "'e4m3/local/draw-2'"),
        ("schema", |m| m.schema += 1, "a newer version of ulplab wrote it"),
    ];
    // The digest and the fingerprint are computed again, and yet:
    for (what, lie, words) in lies {
        let mut lying = manifest(7);
        lie(&mut lying);
        lying.fingerprint = lying.identity();
        fs::write(&file, seal::json(&lying)).expect("a file");
        let message = read(&path).expect_err(what).to_string();
        assert!(
            message.contains("run.json: ") && message.contains(words),
            "{what}: {message}"
        );
    }
    // With the digest alone computed again, the fingerprint is wrong; with both, the cells are another run's.
    let other: [(&str, fn(&mut Manifest)); 9] = [
        ("seed", |m| m.experiment.head.seed = 8),
        ("bound", |m| m.experiment.head.gates[0].require = ">= 10".into()),
        ("format", |m| m.experiment.body["recipe"][0]["format"] = "bf16".into()),
        ("data", |m| m.data[0].1 = "0d".repeat(32)),
        ("commit", |m| m.commit = Some("4f2a9c1d7e8b".into())),
        ("program", |m| m.program.sources = "4f2a9c1d7e8b".into()),
        ("version", |m| m.version = "0.2.0".into()),
        ("device", |m| m.device = "NVIDIA H200".into()),
        ("fault", |m| m.invocation.mutant = Some("rope.cos_sin_swapped".into())),
    ];
    for (what, change) in other {
        let mut changed = manifest(7);
        change(&mut changed);
        fs::write(&file, seal::json(&changed)).expect("a file");
        let message = read(&path).expect_err(what).to_string();
        assert!(message.contains("run.json: its fingerprint is "), "{what}: {message}");
        changed.fingerprint = changed.identity();
        fs::write(&file, seal::json(&changed)).expect("a file");
        let message = read(&path).expect_err(what).to_string();
        assert!(
            message.contains("e4m3__local__draw-1.jsonl: ") && message.contains("it is of the run "),
            "{what}: {message}"
        );
        let joined = Folder::enter(&path, &manifest(7), true).err().expect(what).to_string();
        assert!(joined.contains("holds a run of another"), "{what}: {joined}");
    }
    // A selection of cells is a run of its own.
    let mut selected = manifest(7);
    let cells = selected.plan.cells();
    selected.keep(&cells[..3]);
    selected.fingerprint = selected.identity();
    assert_eq!(selected.left_out, ["nvfp4/local/draw-2"]);
    fs::write(&file, seal::json(&selected)).expect("a file");
    assert!(
        read(&path)
            .expect_err("cells of another run")
            .to_string()
            .contains("it is of the run ")
    );
}

#[test]
fn a_run_of_an_older_version_is_named_as_one() {
    let folder = tempfile::tempdir().expect("a temporary folder");
    let old = r#"{"schema": 1, "version": "0.1.0", "cells": [], "complete": true}"#;
    fs::write(folder.path().join("run.json"), old).expect("a file");
    let message = read(folder.path()).expect_err("an old run").to_string();
    assert!(
        message.contains("an older version of ulplab wrote it, this one reads 4"),
        "{message}"
    );
}

/// The fingerprint is computed from what is read, so that must be what was written.
#[test]
fn every_experiment_survives_its_manifest() {
    let experiments = Path::new(env!("CARGO_MANIFEST_DIR")).join("experiments");
    let files = fs::read_dir(experiments).expect("experiments");
    let files = files.map(|entry| entry.expect("an entry").path());
    let files: Vec<PathBuf> = files
        .filter(|file| file.extension().is_some_and(|end| end == "toml"))
        .collect();
    assert!(files.len() >= 10, "{files:?}");
    for file in files {
        let experiment = ExperimentFile::read(&file, &[])
            .and_then(|file| studies::parse(&file))
            .expect("an experiment")
            .experiment;
        let text = serde_json::to_string(&experiment).expect("JSON");
        let read: Experiment = serde_json::from_str(&text).expect("an experiment");
        assert_eq!(read, experiment, "{}", file.display());
        assert_eq!(serde_json::to_string(&read).expect("JSON"), text, "{}", file.display());
    }
}
