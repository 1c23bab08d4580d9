//! Processes that share a run's folder, one after the other or at once, and what killed ones leave in it.

use std::fs;
use std::io::Write;
use std::time::{Duration, SystemTime};

use jiff::{SignedDuration, Timestamp};
use ulplab::atomic::{create_atomic, write_atomic};
use ulplab::run::Manifest;
use ulplab::run::folder::Folder;
use ulplab::run::session::{ActiveSession, State, sessions};
use ulplab::{Error, Exit, Result};

use super::folder::{finished, manifest, read};

#[test]
fn of_many_that_come_at_once_one_begins_the_run() {
    for round in 0..20 {
        let folder = tempfile::tempdir().expect("a temporary folder");
        let path = folder.path().join("run");
        let join = round % 2 == 0;
        let come = |n: usize| {
            let own = Manifest {
                threads: n,
                ..manifest(7)
            };
            let entered = Folder::enter(&path, &own, join).map(|(_, stored)| stored.threads);
            // A cell may be finished before others so much as looked.
            let (folder, _) = Folder::open(&path).expect("somebody began it");
            let cell = &own.plan.cells()[n % 4];
            folder.write_cell(cell, &[]).expect("a cell");
            entered
        };
        let come = &come;
        let entered: Vec<Result<usize>> = std::thread::scope(|scope| {
            let threads: Vec<_> = (0..8).map(|n| scope.spawn(move || come(n))).collect();
            threads
                .into_iter()
                .map(|thread| thread.join().expect("no panic"))
                .collect()
        });
        let stored = Folder::open(&path).expect("a run").1.threads;
        let (joined, refused): (Vec<_>, Vec<_>) = entered.into_iter().partition(Result::is_ok);
        assert!(
            joined.iter().all(|of| of.as_ref().is_ok_and(|of| *of == stored)),
            "{joined:?}"
        );
        assert_eq!(joined.len(), if join { 8 } else { 1 });
        for error in refused.into_iter().filter_map(Result::err) {
            assert!(
                error.to_string().contains("not empty; give another --out, or --resume"),
                "{error}"
            );
        }
        assert_eq!(read(&path).expect("all cells are there"), []);
    }
}

#[test]
fn what_a_kill_leaves_before_the_run_began_is_no_obstacle() {
    for join in [false, true] {
        let folder = tempfile::tempdir().expect("a temporary folder");
        let path = folder.path().join("run");
        let enter = || Folder::enter(&path, &manifest(7), join);
        fs::create_dir_all(path.join("cells")).expect("a folder");
        fs::create_dir_all(path.join("sessions")).expect("a folder");
        fs::write(path.join(".run.json.qwertz.tmp"), "{\"sche").expect("a file");
        fs::write(path.join("notes.txt"), "mine").expect("a file");
        let error = enter().err().expect("a file that is not ours").to_string();
        assert!(
            error.contains("not empty, but without a run: it contains 'notes.txt'"),
            "{error}"
        );
        fs::remove_file(path.join("notes.txt")).expect("a file");
        fs::write(path.join("cells/e4m3__local__draw-1.jsonl"), "").expect("a file");
        let error = enter().err().expect("cells without a run").to_string();
        assert!(error.contains("it contains 'cells'"), "{error}");
        fs::remove_file(path.join("cells/e4m3__local__draw-1.jsonl")).expect("a file");
        enter().expect("a folder that is as good as empty");
        assert_eq!(read(&path).expect_err("no cells").exit(), Exit::Incomplete);
    }
}

/// Who copies a run by files leaves its empty folders behind.
#[test]
fn a_run_without_cells_can_be_gone_on_with() {
    let folder = tempfile::tempdir().expect("a temporary folder");
    let path = folder.path().join("run");
    Folder::enter(&path, &manifest(7), false).expect("a new run");
    for name in ["cells", "sessions"] {
        fs::remove_dir(path.join(name)).expect("an empty folder");
    }
    let (run, stored) = Folder::enter(&path, &manifest(7), true).expect("the same run");
    run.write_cell(&stored.plan.cells()[0], &[]).expect("a cell");
    assert!(run.finished(&stored.cells[0]).expect("a readable file"));
}

#[test]
fn temporaries_of_killed_processes_are_removed_when_they_are_old() {
    let folder = tempfile::tempdir().expect("a temporary folder");
    let path = folder.path().join("run");
    finished(&path, &manifest(7));
    let names = [
        "cells/.e4m3__local__draw-1.jsonl.qwertz.tmp",
        ".report.html.asdfgh.tmp",
        "sessions/.x.tmp",
    ];
    let [young, old, other] = names.map(|name| path.join(name));
    for file in [&young, &old, &other] {
        fs::write(file, "half a li").expect("a file");
    }
    for file in [&old, &other] {
        let file = fs::File::options().write(true).open(file).expect("a file");
        let hours = SystemTime::now() - Duration::from_secs(2 * 3600);
        file.set_modified(hours).expect("a time");
    }
    assert_eq!(read(&path).expect("temporaries are never read").len(), 12);
    assert!(old.exists() && other.exists(), "reading removes nothing");
    Folder::enter(&path, &manifest(7), true).expect("the same run");
    assert!(young.exists(), "somebody may be writing it");
    assert!(!old.exists() && !other.exists());
    assert_eq!(read(&path).expect("a whole run").len(), 12);
}

#[test]
fn sessions_add_up_but_for_times_they_share_and_a_damaged_one_counts_for_nothing() {
    let folder = tempfile::tempdir().expect("a temporary folder");
    let path = folder.path().join("run");
    let run = finished(&path, &manifest(7));
    assert_eq!(Folder::open(&path).expect("a run").1.seconds, 0.0);
    let session = |at: &str, seconds: &str| {
        let begin = format!("2026-01-31T12:00:{at}Z");
        format!(
            "{{\"started_at\": \"{begin}\", \"seconds\": {seconds}, \"threads\": 1, \"cells\": 2, \"ended\": \"done\"}}"
        )
    };
    for (name, text) in [
        ("a", session("00", "10.5")),
        // Within the first one, beyond its end, and later.
        ("b", session("02", "3.25")),
        ("e", session("10", "1.25")),
        ("f", session("30", "2.5")),
        ("c", "{".into()),
        ("d", String::new()),
    ] {
        fs::write(run.sessions().join(name).with_extension("json"), text).expect("a file");
    }
    let read = || Folder::open(&path).expect("sessions refuse no run").1.seconds;
    assert_eq!(read(), 11.25 + 2.5);
    let begun = ActiveSession::begin(&run.sessions(), Some("slice:1/2".into())).expect("a session");
    begun.finished(&manifest(7).plan.cells()[0]);
    std::thread::sleep(Duration::from_millis(2));
    // It is seen from its beginning on, whatever becomes of it.
    let last = || sessions(&run.sessions()).pop().expect("it is there");
    let at = |seconds| Timestamp::now() + SignedDuration::from_secs(seconds);
    assert_eq!(
        (last().state(at(0)), last().state(at(600))),
        (State::Running, State::Died)
    );
    begun.end(Some(&Error::Interrupted)).expect("a session");
    let State::Failed(why) = last().state(at(0)) else {
        panic!("{:?}", last());
    };
    assert!(why.starts_with("interrupted"), "{why}");
    assert_eq!((last().cells, last().cost), (1, 1));
    assert!(last().who().starts_with("slice:1/2 on "), "{}", last().who());
    assert!(read() > 11.25 + 2.5);
    fs::remove_dir_all(run.sessions()).expect("a folder");
    assert_eq!(read(), 0.0);
}

/// The names of their temporaries once were those of the process, so that two writers shared one.
#[test]
fn writers_of_one_path_do_not_meet() {
    let folder = tempfile::tempdir().expect("a temporary folder");
    let path = folder.path().join("report.html");
    write_atomic(&path, |outer| {
        outer.write_all(b"outer ")?;
        write_atomic(&path, |inner| inner.write_all(b"inner")).map_err(std::io::Error::other)?;
        assert_eq!(fs::read(&path)?, b"inner");
        outer.write_all(b"and all of it")
    })
    .expect("both are written");
    assert_eq!(fs::read(&path).expect("bytes"), b"outer and all of it");

    let path = folder.path().join("run.json");
    let won = create_atomic(&path, |outer| {
        let won = create_atomic(&path, |inner| inner.write_all(b"first")).map_err(std::io::Error::other)?;
        assert!(won);
        outer.write_all(b"second")
    });
    assert!(!won.expect("no error"));
    assert_eq!(fs::read(&path).expect("bytes"), b"first");
    assert_eq!(
        fs::read_dir(folder.path()).expect("a folder").count(),
        2,
        "no temporary is left"
    );
}
