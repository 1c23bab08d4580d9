//! Runs that must not pass by any door: runs that are damaged or mixed, rules and selections that judge nothing, and comparisons of what is
//! not there. Also of each kind: other places of the same files, runs of models and kernels.

use super::*;
use crate::diff::swept;

/// The end of a table's case: an exit code, and words that are said.
type End = (i32, &'static str);

fn files(folder: &Path, name: &str) -> Vec<PathBuf> {
    let mut all: Vec<PathBuf> = std::fs::read_dir(folder.join(name))
        .unwrap()
        .map(|entry| entry.unwrap().path())
        .collect();
    all.sort();
    all
}

fn edited(file: &Path, change: impl Fn(String) -> String) {
    let text = std::fs::read_to_string(file).unwrap();
    let new = change(text.clone());
    assert_ne!(new, text, "{} is not changed", path(file));
    std::fs::write(file, new).unwrap();
}

fn said(output: &Output) -> String {
    stdout(output) + &stderr(output)
}

/// A run, what is done to its copy, and what would have let it pass.
type Damage = (&'static str, fn(&Path, &Path));

/// The copy, and a run of another seed with weaker gates.
const DAMAGES: &[Damage] = &[
    ("a cell is missing (those that are there)", |run, _| {
        std::fs::remove_file(&files(run, "cells")[0]).unwrap()
    }),
    ("all cells are missing (all() of nothing)", |run, _| {
        files(run, "cells")
            .iter()
            .for_each(|cell| std::fs::remove_file(cell).unwrap());
    }),
    ("the folder of cells is missing (records.jsonl)", |run, _| {
        std::fs::remove_dir_all(run.join("cells")).unwrap()
    }),
    ("a cell is empty (its name)", |run, _| {
        std::fs::write(&files(run, "cells")[0], "").unwrap()
    }),
    ("a cell is cut (its lines)", |run, _| {
        edited(&files(run, "cells")[0], |text| text[..text.len() - 20].into())
    }),
    ("a cell lacks its last line (its lines)", |run, _| {
        edited(&files(run, "cells")[0], |text| {
            text.lines().next().unwrap().to_string() + "\n"
        });
    }),
    ("a cell has a line twice (its last line)", |run, _| {
        edited(&files(run, "cells")[0], |text| {
            format!("{}\n{text}", text.lines().next().unwrap())
        });
    }),
    ("a number is better (its name)", |run, _| {
        edited(&files(run, "cells")[0], |text| {
            text.replace("\"cosine\":0.9", "\"cosine\":0.99")
        })
    }),
    ("a number is NaN (a metric that is missing)", |run, _| {
        edited(&files(run, "cells")[0], |text| {
            text.replace("\"cosine\":0.9", "\"cosine\":null,\"old\":0.9")
        });
    }),
    ("two cells are swapped (their seals)", |run, _| {
        let cells = files(run, "cells");
        let other = std::fs::read(&cells[1]).unwrap();
        std::fs::copy(&cells[0], &cells[1]).unwrap();
        std::fs::write(&cells[0], other).unwrap();
    }),
    ("a cell stands for another (its seal)", |run, _| {
        let cells = files(run, "cells");
        std::fs::copy(&cells[0], &cells[1]).unwrap();
    }),
    ("a cell is of another seed (its name and seal)", |run, other| {
        std::fs::copy(&files(other, "cells")[0], &files(run, "cells")[0]).unwrap();
    }),
    ("all cells are of another seed (their names and seals)", |run, other| {
        for (cell, from) in files(run, "cells").iter().zip(files(other, "cells")) {
            std::fs::copy(from, cell).unwrap();
        }
    }),
    ("the plan is of another seed (its seal)", |run, other| {
        std::fs::copy(other.join("run.json"), run.join("run.json")).unwrap();
    }),
    ("a cell is a folder (its name)", |run, _| {
        let cell = &files(run, "cells")[0];
        std::fs::remove_file(cell).unwrap();
        std::fs::create_dir(cell).unwrap();
    }),
    ("the plan is missing (the cells)", |run, _| {
        std::fs::remove_file(run.join("run.json")).unwrap()
    }),
    ("the plan is cut (its first keys)", |run, _| {
        edited(&run.join("run.json"), |text| text[..text.len() - 20].into())
    }),
    ("a gate is weaker (the run's own gates)", |run, _| {
        edited(&run.join("run.json"), |text| text.replace(">= 0.98", ">= 0.01"))
    }),
    ("a gate is gone (the run's own gates)", |run, _| {
        edited(&run.join("run.json"), |text| text.replacen("\"gate\"", "\"gaze\"", 1))
    }),
    ("a recipe is gone (the plan)", |run, _| {
        edited(&run.join("run.json"), |text| text.replace("\"fp8\"", "\"nvfp4\""))
    }),
];

#[test]
fn damaged_runs_pass_nowhere() {
    let folder = tempfile::tempdir().unwrap();
    let home = folder.path();
    let text = format!("{TRIP}{NVFP4}{COSINE}");
    let base = swept(home, "base", &text, &[]);
    let other = swept(home, "other", &text.replace("0.98", "0.5"), &["--seed", "5"]);
    let mut wrong = Vec::new();
    for (at, (name, damage)) in DAMAGES.iter().enumerate() {
        let run_of = |door: &str| {
            let copy = home.join(format!("{at}-{door}"));
            std::fs::create_dir(&copy).unwrap();
            copy_folder(&base, &copy);
            damage(&copy, &other);
            copy
        };
        let (copy, store, out) = (run_of("new"), home.join("baselines"), home.join(format!("{at}-merged")));
        for args in [
            &["gate", path(&copy)][..],
            &["report", path(&copy)],
            &["merge", path(&copy)],
            &["merge", path(&run_of("part")), "--out", path(&out)],
            &["diff", path(&base), path(&copy), "--worsening", "cosine<=0.5"],
            &["diff", path(&copy), path(&base), "--worsening", "cosine<=0.5"],
            &[
                "baseline",
                "accept",
                path(&copy),
                "--why",
                "test",
                "--by",
                "ada",
                "--baselines",
                path(&store),
            ],
        ] {
            let output = run(args);
            let text = said(&output);
            if code(&output) == 0 || stdout(&output).contains("PASS") || text.contains("panicked") {
                wrong.push(format!("{name}: {args:?} ends in {}: {text}", code(&output)));
            }
        }
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
    assert_eq!(code(&run(&["gate", path(&base)])), 0);
}

/// Rules of another file, and what is said of them.
#[test]
fn rules_that_judge_nothing_do_not_pass() {
    let folder = tempfile::tempdir().unwrap();
    let home = folder.path();
    let base = swept(home, "base", &format!("{TRIP}{NVFP4}{COSINE}"), &[]);
    let rules = home.join("rules.toml");
    let with = |from: &str, to: &str| {
        let text = COSINE.replace(from, to);
        assert_ne!(text, COSINE, "{from}");
        text
    };
    #[rustfmt::skip]
    let cases: Vec<(&str, String, End)> = vec![
        ("an empty file (no rule fails)", String::new(), (2, "missing field `gate`")),
        ("a comment (no rule fails)", "# [[gate]]\n".into(), (2, "missing field `gate`")),
        ("another table (keys that are known)", "[other]\nx = 1\n".into(), (2, "unknown field `other`")),
        ("an empty list (no rule fails)", "gate = []\n".into(), (2, "the file has no [[gate]]")),
        ("no recipes (all() of nothing)", with("[\"*\"]", "[]"), (2, "binds no recipe")),
        ("a recipe that there is not (those there are)", with("[\"*\"]", "[\"fp8\", \"fp9\"]"), (2, "'fp9' matches no recipe")),
        ("a pattern of recipes that matches none (no rule fails)", with("[\"*\"]", "[\"x*\"]"), (2, "'x*' matches no recipe")),
        ("a site that there is not (no rule fails)", with("\"gauss\"", "\"gaus\""), (2, "'gaus' matches no site")),
        ("a phase that there is not (no rule fails)", with("\"local\"", "\"cumulative\""), (2, "has no cumulative phase")),
        ("a statistic that there is not (the mean)", with("\"min\"", "\"p01\""), (2, "unknown variant `p01`")),
        ("the best window (the worst)", with("\"min\"", "\"max\""), (2, "looks at the best window only")),
        ("a metric that was not measured (no rule fails)", with("\"cosine\"", "\"top1\""), (2, "nothing was measured there")),
        ("a metric that there is not (no rule fails)", with("\"cosine\"", "\"cosin\""), (2, "unknown metric 'cosin'")),
        ("a key that there is not (keys that are known)", with("why =", "window = [\"draw-1\"]\nwhy ="), (2, "unknown field `window`")),
        ("a reason that is empty (the bound)", with("most of it", ""), (2, "why is empty")),
        ("no reason (the bound)", with("why = \"most of it\"\n", ""), (2, "missing field `why`")),
        ("no bound (no rule fails)", with("require = \">= 0.98\"\n", ""), (2, "missing field `require`")),
        ("a bound twice (the last)", format!("{COSINE}require = \">= 0.01\"\n"), (2, "duplicate key")),
        ("the same rule for controls (a control that holds)", with("why =", "control = true\nwhy =").replace(">= 0.98", "<= 0.99999"),
            (4, "NOT JUDGED")),
        ("a count above all elements (a bound)", counted("<= 1024"),
            (4, "no measurement can break nonfinite <= 1024: what it judges has 512 elements")),
        ("a count far above all elements (a bound)", counted("<= 1e6"), (4, "no measurement can break nonfinite <= 1e6")),
        ("a table in the place of tables (no rule fails)", with("[[gate]]", "[gate]"), (2, "[[gate]]")),
        ("no TOML (no rule fails)", "gate: cosine".into(), (2, "rules.toml")),
        ("bytes (no rule fails)", "\u{0}\u{1}".into(), (2, "rules.toml")),
    ];
    for (name, text, (exit, words)) in cases {
        std::fs::write(&rules, &text).unwrap();
        let output = run(&["gate", path(&base), "--rules", path(&rules)]);
        assert_eq!(code(&output), exit, "{name}: {}", said(&output));
        says(&said(&output), words);
    }
    std::fs::write(&rules, counted("<= 1023")).unwrap();
    assert_eq!(code(&run(&["gate", path(&base), "--rules", path(&rules)])), 0);
    for (name, file) in [
        ("a folder", home),
        ("a device", Path::new("/dev/null")),
        ("no file", &home.join("none.toml")),
    ] {
        let output = run(&["gate", path(&base), "--rules", path(file)]);
        assert_eq!(code(&output), 2, "{name}: {}", said(&output));
    }
}

/// A gate on numbers that are not finite, which 512 elements of both sides may be.
fn counted(require: &str) -> String {
    let text = COSINE
        .replace("\"cosine\"", "\"nonfinite\"")
        .replace("\"min\"", "\"max\"");
    text.replace(">= 0.98", require)
}

/// Selections, changes and shares of an experiment that leave nothing, or a part, to be judged.
#[test]
fn selections_that_judge_nothing_do_not_pass() {
    let folder = tempfile::tempdir().unwrap();
    let home = folder.path();
    let text = format!("{TRIP}{NVFP4}{COSINE}");
    let one = text.replace("[\"*\"]", "[\"fp8\"]");
    #[rustfmt::skip]
    let cases: &[(&str, &str, &[&str], End)] = &[
        ("a cell that there is not (no cell fails)", &text, &["--only", "zz/**"], (4, "'zz/**' matches no cell")),
        ("an empty pattern (all cells)", &text, &["--only", ""], (4, "matches no cell")),
        ("all cells left out (no cell fails)", &text, &["--skip", "**"], (4, "leave no cell")),
        ("a cell left out that there is not (all cells)", &text, &["--skip", "zz"], (4, "'zz' matches no cell")),
        ("what is selected is left out (no cell fails)", &text, &["--only", "fp8/**", "--skip", "fp8/**"], (4, "leave no cell")),
        ("one recipe of two (gates of the rest)", &text, &["--only", "fp8/**"], (4, "PARTLY JUDGED")),
        ("one window of two (gates of the rest)", &text, &["--only", "**/draw-1"], (4, "NOT JUDGED")),
        ("the recipe that a gate binds (all gates hold)", &one, &["--only", "fp8/**"], (4, "PARTLY JUDGED")),
        ("the recipe that no gate binds (all gates hold)", &one, &["--only", "nvfp4/**"], (4, "NOT JUDGED")),
        ("no gates (all gates hold)", &text, &["--set", "gate=[]"], (4, "NOT JUDGED")),
        ("no recipes (all gates hold)", &text, &["--set", "recipe=[]"], (2, "there is nothing to try")),
        ("no sources (all gates hold)", &text, &["--set", "source=[]"], (2, "source")),
        ("no draws (all gates hold)", &text, &["--set", "draws=0"], (2, "draws")),
        ("no rows (all gates hold)", &text, &["--set", "shape=[0, 128]"], (2, "shape")),
        ("no columns (all gates hold)", &text, &["--set", "shape=[4, 0]"], (2, "shape")),
        ("a key that there is not (ignoring it)", &text, &["--set", "drwas=3"], (2, "drwas")),
        ("rules of no file (the run's own gates)", &text, &["--rules", "none.toml"], (2, "none.toml")),
        ("a run that there is not (a new run)", &text, &["--resume"], (2, "no run to resume")),
        ("a share that there is not (no cell fails)", &text, &["--partition", "slice:3/2"], (2, "slice:3/2")),
        ("a share of an operation that there is not (no cell fails)", &text, &["--partition", "op:rope"], (2, "")),
    ];
    for (at, (name, text, more, (exit, words))) in cases.iter().enumerate() {
        let out = home.join(format!("{at}"));
        let output = run(&[&["sweep", path(&write(home, text)), "--out", path(&out)][..], more].concat());
        let all = said(&output);
        assert_eq!(code(&output), *exit, "{name}: {all}");
        assert!(all.contains(words) && !all.contains("\nPASS"), "{name}: {all}");
        // What is written says the same.
        if let Ok(page) = std::fs::read_to_string(out.join("report.md")) {
            assert!(
                page.starts_with("## NOT JUDGED") || page.starts_with("## PARTLY JUDGED"),
                "{name}: {page}"
            );
            let junit = std::fs::read_to_string(out.join("junit.xml")).unwrap();
            let html = std::fs::read_to_string(out.join("report.html")).unwrap();
            assert!(
                junit.contains("<skipped") || junit.contains("<error"),
                "{name}: {junit}"
            );
            assert!(html.contains("JUDGED") && !html.contains(">PASS<"), "{name}");
        }
        for door in ["gate", "merge"] {
            let again = run(&[door, path(&out)]);
            assert_ne!(code(&again), 0, "{name}, {door}: {}", said(&again));
        }
    }
    // A share is a part of a run, and the same share twice is no whole.
    let file = write(home, &text);
    let [first, again] = ["first", "again"].map(|name| home.join(name));
    for out in [&first, &again] {
        let output = run(&["sweep", path(&file), "--out", path(out), "--partition", "slice:1/2"]);
        says(&said(&output), "nothing is judged yet");
        for door in ["gate", "report", "merge"] {
            assert_eq!(code(&run(&[door, path(out)])), 103, "{door}");
        }
    }
    let output = run(&["merge", path(&first), path(&again), "--out", path(&home.join("both"))]);
    assert_eq!(code(&output), 103, "{}", said(&output));
}

/// Comparisons of runs that say nothing of the run that is asked about.
#[test]
fn differences_that_judge_nothing_do_not_pass() {
    let folder = tempfile::tempdir().unwrap();
    let home = folder.path();
    let text = format!("{TRIP}{NVFP4}{COSINE}");
    let base = swept(home, "base", &text, &[]);
    let of = |name: &str, text: &str, more: &[&str]| swept(home, name, text, more);
    let link = home.join("link");
    std::os::unix::fs::symlink(&base, &link).unwrap();
    let change: &[&str] = &["--worsening", "cosine<=0.5"];
    #[rustfmt::skip]
    let cases: Vec<(&str, PathBuf, &[&str], End)> = vec![
        ("itself (equal runs)", base.clone(), &["--identical"], (2, "BASE and NEW are the same")),
        ("itself by a link (equal runs)", link.clone(), &["--identical"], (2, "BASE and NEW are the same")),
        ("itself by dots (equal runs)", base.join("../base"), change, (2, "BASE and NEW are the same")),
        ("no run (nothing differs)", home.join("none"), change, (2, "none")),
        ("a file (nothing differs)", home.join("experiment.toml"), change, (2, "is a file")),
        ("a folder (nothing differs)", home.to_path_buf(), change, (2, "not a run")),
        ("a recipe less (those in both)", of("less", &format!("{TRIP}{COSINE}"), &[]), change, (4, "PARTLY JUDGED")),
        ("a window less (those in both)", of("draws", &text.replace("draws = 2", "draws = 1"), &[]), change, (4, "PARTLY JUDGED")),
        ("a part of it (those in both)", of("part", &text, &["--only", "fp8/**"]), change, (4, "JUDGED")),
        ("a weaker gate (verdicts)", of("weak", &text.replace("0.98", "0.5"), &[]), change, (100, "FAIL")),
        ("no gates (verdicts)", of("no", &format!("{TRIP}{NVFP4}"), &[]), change, (100, "FAIL")),
        ("a gate that fails (numbers)", of("fails", &text.replace("0.98", "0.9999"), &[]), change, (100, "FAIL")),
        ("another seed (verdicts)", of("seed", &text, &["--seed", "5"]), &["--identical"], (100, "FAIL")),
        ("a site that there is not (no gate fails)", of("s1", &text, &[]), &["--worsening", "zz:cosine<=0.5"], (2, "matches nothing")),
        ("a metric that was not measured (no gate fails)", of("s2", &text, &[]), &["--worsening", "kl<=0.5"], (2, "matches nothing")),
        ("times that were not measured (no gate fails)", of("s3", &text, &[]), &["--worsening", "us_cold<=3%"], (2, "matches nothing")),
        ("rules that are no file (no gate fails)", of("s4", &text, &[]), &["--rules", "/dev/null"], (2, "expected a regular file")),
    ];
    for (name, new, more, (exit, words)) in cases {
        let output = run(&[&["diff", path(&base), path(&new)][..], more].concat());
        assert_eq!(code(&output), exit, "{name}: {}", said(&output));
        says(&said(&output), words);
    }
    for (args, words) in [
        (
            &["gate", path(&home.join("bse"))][..],
            "there is no such folder; expected the folder of a run, which `ulplab sweep` names",
        ),
        (&["gate", path(&home.join("bse"))], "; did you mean 'base'?"),
        (&["gate", path(home)], "not a run: it has no run.json; its last run is "),
    ] {
        let output = run(args);
        assert_eq!(code(&output), 2, "{args:?}: {}", said(&output));
        says(&said(&output), words);
    }
    let output = run(&["bisect", path(&base), path(&link)]);
    assert_eq!(code(&output), 2, "{}", said(&output));
    says(
        &said(&output),
        "BASE and NEW are the same, and equal themselves; expected two",
    );
}
