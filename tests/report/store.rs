//! Files of a run.

use std::fs;
use std::io::{self, Write};
use std::path::Path;

use parquet::file::reader::{FileReader, SerializedFileReader};
use parquet::record::{Field, Row};
use ulplab::atomic::write_atomic;
use ulplab::record::{Failure, Phase, Record, Worst};
use ulplab::run::Run;
use ulplab::run::store;
use ulplab::run::summary::Summary;
use ulplab::{Error, Exit};

use super::shown as report;
use super::synthetic;

fn names(folder: &Path) -> Vec<String> {
    let entries = fs::read_dir(folder)
        .expect("a folder")
        .map(|entry| entry.expect("an entry").file_name());
    let mut names: Vec<String> = entries.map(|name| name.to_string_lossy().into_owned()).collect();
    names.sort();
    names
}

/// Panics at the first record that differs in any bit; a NaN is a NaN, whatever its sign.
fn assert_same(found: &[Record], expected: &[Record]) {
    assert_eq!(found.len(), expected.len());
    for (row, (found, expected)) in found.iter().zip(expected).enumerate() {
        assert_eq!(bits(found), bits(expected), "row {row}");
    }
}

fn bits(record: &Record) -> (Record, Vec<u64>) {
    let mut words = record.clone();
    let of = |value: f64| {
        if value.is_nan() {
            f64::NAN.to_bits()
        } else {
            value.to_bits()
        }
    };
    let mut numbers = vec![of(std::mem::take(&mut words.value))];
    if let Some(worst) = &mut words.worst {
        numbers.extend([of(std::mem::take(&mut worst.want)), of(std::mem::take(&mut worst.got))]);
    }
    (words, numbers)
}

/// A run with every kind of number there is.
fn odd() -> Run {
    let mut run = synthetic::small();
    run.records.truncate(1000);
    let odd = [
        f64::NAN,
        f64::INFINITY,
        f64::NEG_INFINITY,
        -0.0,
        0.0,
        f64::MIN_POSITIVE / 8.0,
        f64::MAX,
        0.1,
    ];
    for (record, value) in run.records.iter_mut().zip(odd) {
        record.value = value;
        record.worst = Some(Worst {
            index: vec![0, u64::from(u32::MAX), 9],
            want: value,
            got: -value,
        });
    }
    run.records[9].worst = Some(Worst {
        index: vec![],
        want: 1.0,
        got: 2.0,
    });
    run.records[10].layer = None;
    run.records[11].phase = Phase::Cumulative;
    run.records[12].cell = "ünï/\"cödé\"\n".into();
    run.records[13].n = u64::MAX;
    run
}

/// The rows of a Parquet file.
pub fn rows(path: &Path) -> Vec<Row> {
    let reader = SerializedFileReader::new(fs::File::open(path).unwrap()).unwrap();
    reader.get_row_iter(None).unwrap().map(Result::unwrap).collect()
}

/// The value in a column of a row; none if it is null.
fn field<'r>(row: &'r Row, name: &str) -> Option<&'r Field> {
    let mut columns = row.get_column_iter();
    let (_, field) = columns.find(|(column, _)| *column == name).expect(name);
    (*field != Field::Null).then_some(field)
}

fn text(row: &Row, name: &str) -> Option<String> {
    match field(row, name)? {
        Field::Str(text) => Some(text.clone()),
        other => panic!("{name}: {other:?}"),
    }
}

fn float(row: &Row, name: &str) -> Option<f64> {
    match field(row, name)? {
        Field::Double(value) => Some(*value),
        other => panic!("{name}: {other:?}"),
    }
}

fn count(row: &Row, name: &str) -> Option<u64> {
    match field(row, name)? {
        Field::ULong(value) => Some(*value),
        other => panic!("{name}: {other:?}"),
    }
}

fn layer(row: &Row) -> Option<u32> {
    match field(row, "layer")? {
        Field::Int(layer) => Some(u32::try_from(*layer).unwrap()),
        other => panic!("layer: {other:?}"),
    }
}

fn index(row: &Row) -> Option<Vec<u64>> {
    let Field::ListInternal(list) = field(row, "worst_index")? else {
        panic!("a list");
    };
    let number = |field: &Field| match field {
        Field::ULong(number) => *number,
        other => panic!("worst_index: {other:?}"),
    };
    Some(list.elements().iter().map(number).collect())
}

fn phase(row: &Row) -> Phase {
    match text(row, "phase").unwrap().as_str() {
        "local" => Phase::Local,
        "cumulative" => Phase::Cumulative,
        other => panic!("{other}"),
    }
}

pub fn record(row: &Row) -> Record {
    let worst = index(row).map(|index| Worst {
        index,
        want: float(row, "worst_want").unwrap(),
        got: float(row, "worst_got").unwrap(),
    });
    let failure = text(row, "failure").map(|message| Failure {
        message,
        ..Failure::default()
    });
    let text = |name: &str| text(row, name).expect(name);
    Record {
        layer: layer(row),
        site: text("site"),
        metric: text("metric"),
        value: float(row, "value").unwrap(),
        n: count(row, "n").unwrap(),
        nonfinite_want: count(row, "nonfinite_want").unwrap(),
        nonfinite_got: count(row, "nonfinite_got").unwrap(),
        worst,
        failure: failure.map(Box::new),
        ..Record::blank(&text("cell"), &text("recipe"), phase(row), &text("window"))
    }
}

pub fn summary(row: &Row) -> Summary {
    let (text, float) = (|name| text(row, name).unwrap(), |name| float(row, name).unwrap());
    Summary {
        recipe: text("recipe"),
        phase: phase(row),
        layer: layer(row),
        site: text("site"),
        metric: text("metric"),
        windows: count(row, "windows").unwrap() as u32,
        mean: float("mean"),
        min: float("min"),
        max: float("max"),
        ci_low: float("ci_low"),
        ci_high: float("ci_high"),
        values: Vec::new(),
        flips: Vec::new(),
    }
}

#[test]
fn parquet_round_trip_keeps_every_bit() {
    let folder = tempfile::tempdir().expect("a temporary folder");
    let run = odd();
    let paths = store::write_run(&run, folder.path()).expect("a written run");
    assert_eq!(
        names(folder.path()),
        ["records.jsonl", "records.parquet", "summary.parquet"]
    );
    let records: Vec<Record> = rows(&paths[0]).iter().map(record).collect();
    assert_same(&records, &run.records);
    let summaries: Vec<Summary> = rows(&paths[1]).iter().map(summary).collect();
    assert_eq!(format!("{summaries:?}"), format!("{:?}", run.summaries));
    let commits = rows(&paths[1]).into_iter().map(|row| text(&row, "commit"));
    assert!(commits.eq(run.summaries.iter().map(|_| run.manifest.commit.clone())));
    // No records is a file too.
    let empty = Run { records: vec![], ..run };
    store::write_records(&empty, &paths[0]).expect("a file");
    assert!(rows(&paths[0]).is_empty());
}

#[test]
fn jsonl_begins_with_the_manifest_and_ends_with_the_counts() {
    let folder = tempfile::tempdir().expect("a temporary folder");
    let path = folder.path().join("records.jsonl");
    let mut run = odd();
    // A line has one worst element, that of `max_abs`.
    run.records
        .iter_mut()
        .filter(|record| record.metric != "max_abs")
        .for_each(|record| record.worst = None);
    store::write_jsonl(&run, &path).expect("a file");
    let text = fs::read_to_string(&path).expect("text");
    let lines: Vec<serde_json::Value> = text
        .lines()
        .map(|line| serde_json::from_str(line).expect("JSON"))
        .collect();
    assert_eq!(
        (&lines[0]["type"], &lines[0]["experiment"]["seed"]),
        (&"manifest".into(), &7.into())
    );
    let measured: Vec<&str> = text.lines().skip(1).take(lines.len() - 2).collect();
    assert_same(
        &ulplab::run::lines::read(&measured.join("\n")).expect("records"),
        &run.records,
    );
    let end = lines.last().expect("a line");
    let tally = report::tally(&run);
    assert_eq!(
        (&end["type"], &end["records"]),
        (&"summary".into(), &run.records.len().into())
    );
    assert_eq!((&end["pass"], &end["fail"]), (&tally.pass.into(), &tally.fail.into()));
}

#[test]
fn a_failed_write_leaves_what_was_there() {
    let folder = tempfile::tempdir().expect("a temporary folder");
    let path = folder.path().join("report.html");
    write_atomic(&path, |writer| writer.write_all(b"old")).expect("a file");
    let full = write_atomic(&path, |writer| {
        writer.write_all(b"new, but")?;
        Err(io::Error::from(io::ErrorKind::StorageFull))
    });
    let error = full.expect_err("a full disk");
    assert!(matches!(&error, Error::Io { source, .. } if source.kind() == io::ErrorKind::StorageFull));
    assert!(error.to_string().contains("report.html: cannot write"), "{error}");
    assert_eq!(fs::read(&path).expect("bytes"), b"old");
    assert_eq!(names(folder.path()), ["report.html"], "no partial file is left");
    write_atomic(&path, |writer| writer.write_all(b"new")).expect("a file");
    assert_eq!(fs::read(&path).expect("bytes"), b"new");
}

/// Permissions do not bind root, so the folders here are ones nobody can write to: missing, or no folder at all.
#[test]
fn a_folder_that_cannot_be_written_is_named() {
    let folder = tempfile::tempdir().expect("a temporary folder");
    let file = folder.path().join("file");
    fs::write(&file, "").expect("a file");
    for path in [
        folder.path().join("missing/records.parquet"),
        file.join("records.parquet"),
    ] {
        let error = store::write_records(&synthetic::small(), &path).expect_err("no folder");
        assert_eq!(error.exit(), Exit::Setup);
        assert!(error.to_string().contains("records.parquet: cannot create"), "{error}");
    }
    let error = report::write_all(&synthetic::small(), &file.join("run")).expect_err("no folder");
    assert!(error.to_string().contains("file/run: cannot create"), "{error}");
    // A folder stands where the file should go: nothing is written, and nothing is left.
    let taken = folder.path().join("taken");
    fs::create_dir(&taken).expect("a folder");
    let error = write_atomic(&taken, |_| Ok(())).expect_err("a folder is in the way");
    assert!(
        error
            .to_string()
            .contains("taken: is a folder; expected the name of a file"),
        "{error}"
    );
    assert_eq!(names(folder.path()), ["file", "taken"]);
}

#[test]
fn all_reports_are_written() {
    let folder = tempfile::tempdir().expect("a temporary folder");
    let paths = report::write_all(&synthetic::small(), &folder.path().join("deep/run")).expect("reports");
    assert_eq!(
        names(&folder.path().join("deep/run")),
        ["junit.xml", "report.html", "report.md", "report.txt"]
    );
    assert!(paths.iter().all(|path| path.is_file()));
}

/// The page that documents the files names their columns, all of them and no others.
#[test]
fn every_column_is_documented() {
    let folder = tempfile::tempdir().unwrap();
    let paths = store::write_run(&synthetic::small(), folder.path()).unwrap();
    let page = fs::read_to_string(Path::new(env!("CARGO_MANIFEST_DIR")).join("docs/records.md")).unwrap();
    let (before, summary) = page.split_once("## summary.parquet").unwrap();
    let (_, records) = before.split_once("## records.parquet").unwrap();
    let named = |text: &str| -> Vec<String> {
        let rows = text
            .lines()
            .filter_map(|line| line.strip_prefix("| `")?.split(" | ").next());
        rows.flat_map(|names| {
            names
                .split('`')
                .filter(|name| !name.trim_matches([',', ' ']).is_empty())
        })
        .map(String::from)
        .collect()
    };
    let columns = |path: &Path| -> Vec<String> {
        let file = fs::File::open(path).unwrap();
        let reader = SerializedFileReader::new(file).unwrap();
        let schema = reader.metadata().file_metadata().schema();
        schema
            .get_fields()
            .iter()
            .map(|field| field.name().to_string())
            .collect()
    };
    let found = columns(&paths[0]);
    assert_eq!(named(records), found);
    let shared = ["recipe", "phase", "layer", "site", "metric"].map(String::from);
    let expected = [&found[..5], &shared, &named(summary)].concat();
    assert_eq!(expected, columns(&paths[1]));
}
