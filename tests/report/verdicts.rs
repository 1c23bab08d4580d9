//! What gates say of a stored run, and what reports show of it: passed, failed, not judged, not for this device.

use std::path::Path;

use super::shown as report;
use ulplab::experiment::{Rule, Statistic};
use ulplab::record::{Phase, Record};
use ulplab::run::folder::Folder;
use ulplab::run::plan::{Cell, Plan, RecipePlan};
use ulplab::run::verdict::{Outcome, Status, Verdict};
use ulplab::run::{Hindrance, Manifest, RecipeInfo, Run};

use super::synthetic;

/// A run of these variants on two cases: whether each takes the cases, and whether they were selected.
fn stored(folder: &Path, variants: &[(&str, bool, bool)]) -> (Folder, Manifest) {
    let mut manifest = synthetic::small().manifest;
    let rule = Rule {
        metric: "violations".into(),
        at: "**".into(),
        phase: Phase::Local,
        statistic: Statistic::Max,
        require: "<= 0".into(),
        recipes: vec!["**".into()],
        control: false,
        flake: None,
        calibration: None,
        why: "bits".into(),
    };
    manifest.experiment.head.kind = "kernels".into();
    manifest.experiment.head.gates = vec![rule];
    manifest.experiment.body.clear();
    manifest.plan = Plan::default();
    manifest.cells.clear();
    manifest.recipes.clear();
    manifest.fingerprint = manifest.identity();
    let (folder, _) = Folder::enter(&folder.join("run"), &manifest, false).unwrap();
    manifest.plan = Plan {
        phases: vec![Phase::Local],
        windows: vec!["small".into(), "odd".into()],
        recipes: variants
            .iter()
            .map(|(name, ..)| RecipePlan {
                name: (*name).into(),
                phases: vec![Phase::Local],
                windows: Some(vec![0, 1]),
                cost: 1,
            })
            .collect(),
    };
    for (name, takes, selected) in variants {
        manifest.recipes.push(RecipeInfo {
            name: name.to_string(),
            ..RecipeInfo::default()
        });
        for (window, case) in ["small", "odd"].into_iter().enumerate() {
            let id = format!("{name}/local/{case}");
            if !selected {
                manifest.left_out.push(id);
                continue;
            }
            let record = Record {
                site: "y".into(),
                metric: "violations".into(),
                value: if *name == "op.wrong" { window as f64 } else { 0.0 },
                n: 4,
                ..Record::blank(&id, name, Phase::Local, case)
            };
            let records = if *takes { vec![record] } else { Vec::new() };
            let cell = Cell {
                recipe: (*name).into(),
                phase: Phase::Local,
                window,
                id: id.clone(),
                cost: 1,
            };
            folder.write_cell(&cell, &records).unwrap();
            manifest.cells.push(id);
        }
    }
    manifest.complete = true;
    (folder, manifest)
}

fn of<'a>(run: &'a Run, recipe: &str) -> &'a Verdict {
    let mut found = run.verdicts.iter().filter(|verdict| verdict.recipe == recipe);
    let first = found.next().unwrap_or_else(|| panic!("no verdict of {recipe}"));
    assert!(found.next().is_none(), "{recipe} has one verdict");
    first
}

#[test]
fn no_variant_is_dropped_in_silence() {
    let temporary = tempfile::tempdir().unwrap();
    let variants = [
        ("op.right", true, true),
        ("op.blackwell", false, true),
        ("op.picky", false, true),
    ];
    let (folder, mut manifest) = stored(temporary.path(), &variants);
    let why = "it is for sm_100a, and this device is sm_90a";
    manifest
        .hindered
        .insert("op.blackwell".into(), Hindrance::OtherDevice(why.into()));
    let run = Run::load(&folder, manifest).unwrap();
    assert_eq!(of(&run, "op.right").status, Status::Pass);
    assert_eq!(
        (
            of(&run, "op.blackwell").status,
            of(&run, "op.blackwell").message.as_str()
        ),
        (Status::NotForDevice, why)
    );
    let picky = of(&run, "op.picky");
    assert_eq!(
        (picky.status, picky.message.as_str()),
        (Status::NotJudged, "it takes none of 2 cases")
    );
    assert_eq!(run.outcome(), Outcome::PartlyJudged);
    let text = report::terminal(&run, 120, false);
    assert!(
        text.contains("PARTLY JUDGED: 1 check passes, 0 fail, 1 not judged; 1 recipe is not for this device"),
        "{text}"
    );
    assert!(text.contains("NOT JUDGED op.picky: it takes none of 2 cases"), "{text}");
    for page in [report::html(&run), report::markdown(&run), report::junit(&run)] {
        assert!(
            page.contains(why) && page.contains("it takes none of 2 cases"),
            "{page}"
        );
    }
}

/// What is for another device neither passes nor spoils the run.
#[test]
fn variants_for_other_devices_do_not_spoil_a_run() {
    let temporary = tempfile::tempdir().unwrap();
    let (folder, mut manifest) = stored(
        temporary.path(),
        &[("op.right", true, true), ("op.blackwell", false, true)],
    );
    let other = Hindrance::OtherDevice("it is for sm_100a".into());
    manifest.hindered.insert("op.blackwell".into(), other.clone());
    let run = Run::load(&folder, manifest).unwrap();
    assert_eq!(run.outcome(), Outcome::Pass);
    assert_eq!(
        report::tally(&run).line(),
        "PASS: 1 check passes, 0 fail; 1 recipe is not for this device"
    );
    let text = report::terminal(&run, 120, false);
    assert!(!text.lines().any(|line| line.starts_with("op.blackwell")), "{text}");

    // A run of nothing but those judges nothing.
    let temporary = tempfile::tempdir().unwrap();
    let (folder, mut manifest) = stored(temporary.path(), &[("op.blackwell", false, true)]);
    manifest.hindered.insert("op.blackwell".into(), other);
    assert_eq!(Run::load(&folder, manifest).unwrap().outcome(), Outcome::NotJudged);
}

#[test]
fn what_was_compiled_only_is_not_judged() {
    let temporary = tempfile::tempdir().unwrap();
    let (folder, mut manifest) = stored(
        temporary.path(),
        &[("op.program", true, true), ("op.kernel", true, false)],
    );
    let why = "it was compiled and not run: no GPU";
    manifest
        .hindered
        .insert("op.kernel".into(), Hindrance::Missing(why.into()));
    let run = Run::load(&folder, manifest).unwrap();
    assert_eq!(
        (of(&run, "op.kernel").status, of(&run, "op.kernel").message.as_str()),
        (Status::NotJudged, why)
    );
    assert_eq!(run.outcome(), Outcome::PartlyJudged);
    assert!(
        report::tally(&run).line().ends_with("; 2 of 4 cells run"),
        "{}",
        report::tally(&run).line()
    );
}

#[test]
fn a_failure_counts_before_all_that_was_not_judged() {
    let temporary = tempfile::tempdir().unwrap();
    let (folder, manifest) = stored(temporary.path(), &[("op.wrong", true, true), ("op.right", true, false)]);
    let run = Run::load(&folder, manifest).unwrap();
    assert_eq!(run.outcome(), Outcome::Fail);
    let wrong = of(&run, "op.wrong");
    assert_eq!(
        (wrong.site.as_deref(), wrong.window.as_deref()),
        (Some("y"), Some("odd")),
        "the case that fails is named"
    );
    // Recipes that were not selected have a line, and no row of dashes.
    for text in [
        report::terminal(&run, 120, false),
        report::html(&run),
        report::markdown(&run),
    ] {
        assert!(text.contains("1 variant was not selected"), "{text}");
    }
    let text = report::terminal(&run, 120, false);
    assert!(
        text.contains("FAIL violations") && !text.lines().any(|line| line.starts_with("op.right")),
        "{text}"
    );
}

/// In the order in which they count.
#[test]
fn outcomes() {
    let run = synthetic::small();
    let verdict = |status| Verdict {
        status,
        ..run.verdicts[0].clone()
    };
    use Status::{Fail, NotForDevice, NotJudged, Pass};
    for (statuses, complete, whole, expected, exit) in [
        (&[Pass, Pass][..], true, true, Outcome::Pass, 0),
        (&[Pass, NotForDevice], true, true, Outcome::Pass, 0),
        (&[Pass, NotJudged], true, true, Outcome::PartlyJudged, 4),
        (&[Pass], true, false, Outcome::PartlyJudged, 4),
        (&[NotJudged], true, true, Outcome::NotJudged, 4),
        (&[NotForDevice], true, true, Outcome::NotJudged, 4),
        (&[], true, true, Outcome::NotJudged, 4),
        (&[Pass, NotJudged], false, false, Outcome::Incomplete, 103),
        (&[Pass, Fail], false, false, Outcome::Fail, 100),
        (&[NotJudged, Fail], true, false, Outcome::Fail, 100),
    ] {
        let verdicts: Vec<Verdict> = statuses.iter().map(|status| verdict(*status)).collect();
        let found = Outcome::from_verdicts(&verdicts, complete, whole);
        assert_eq!((found, found.exit() as u8), (expected, exit), "{statuses:?}");
        // A bench is of a part as a rule, and judges no whole.
        assert_eq!(found.exit_of_bench() as u8, if exit == 4 { 0 } else { exit });
    }
}

/// No format is called the smallest as long as a recipe is not measured or not judged.
#[test]
fn the_smallest_format_is_claimed_only_if_all_are_judged() {
    let mut run = synthetic::small();
    let claims = |run: &Run| report::terminal(run, 120, false).contains("The smallest format that passes");
    assert!(claims(&run));
    run.verdicts[0].status = Status::NotJudged;
    assert!(!claims(&run));
    let mut run = synthetic::small();
    run.manifest.left_out.push("bf16/local/zh@0".into());
    assert!(!claims(&run));
    // A control that holds is no pass.
    let mut run = synthetic::small();
    run.verdicts
        .iter_mut()
        .filter(|verdict| verdict.passes())
        .for_each(|verdict| verdict.rule.control = true);
    assert!(!claims(&run));
    assert!(report::terminal(&run, 120, false).contains("control holds"));
}

/// Formats that other gates bind are not ranked, and may be smaller and pass: the sentence says which it ranks. Of the kind: looser
/// gates of a smaller format, one more gate, formats without a gate (whose table has no PASS).
#[test]
fn the_smallest_format_is_named_with_those_that_it_is_compared_with() {
    let mut run = synthetic::small();
    let all_pass = |run: &mut Run| {
        let judged = run.verdicts.iter_mut();
        judged.for_each(|verdict| verdict.status = Status::Pass);
    };
    all_pass(&mut run);
    run.verdicts.retain(|verdict| !verdict.rule.control);
    let plain = |run: &Run| report::terminal(run, 300, false);
    assert!(
        plain(&run).contains("The smallest format that passes: "),
        "{}",
        plain(&run)
    );
    // The smallest has a looser gate than the others.
    let loose = run.verdicts.iter_mut().filter(|verdict| verdict.recipe == "v4_mxfp4");
    loose.for_each(|verdict| verdict.rule.require = "<= 0.9".parse().unwrap());
    let said = "The smallest format that passes, of the ";
    for text in [plain(&run), report::markdown(&run), report::html(&run)] {
        let sentence = text.lines().find(|line| line.contains(said)).expect(&text);
        let names = &sentence[sentence.find(said).unwrap()..];
        assert!(names.contains("with the same gates (bf16, v4_fp8"), "{names}");
        assert!(
            names.contains("): ") && names.contains("; other formats have other gates"),
            "{names}"
        );
        assert!(!names.contains("v4_mxfp4"), "{names}");
    }
}

/// What a sentence requires or answers stands at its end, so no terminal is too narrow for it. Of the kind: failed checks, reasons why one
/// was not judged, the smallest format, the question, the loss. Tables are cut, as before.
#[test]
fn sentences_are_wrapped_and_not_cut() {
    let mut run = synthetic::small();
    run.verdicts[0].status = Status::NotJudged;
    run.verdicts[0].message = "an interval needs at least two windows, and one was measured at logits".into();
    run.verdicts[1].status = Status::Fail;
    run.verdicts[1].message = "min of cosine at layers.60.output (cumulative) is 0.998965, required >= 0.999".into();
    let smallest = "The smallest format that passes: v4_fp8, 584 bytes per vector";
    for (run, sentences) in [
        (&synthetic::small(), [smallest, smallest, smallest]),
        (
            &run,
            [
                run.manifest.experiment.question.as_str(),
                &*format!("NOT JUDGED {}: {}", run.verdicts[0].recipe, run.verdicts[0].message),
                &*format!("FAIL {}: {}", run.verdicts[1].recipe, run.verdicts[1].message),
            ],
        ),
    ] {
        for width in [40, 60, 80] {
            let text = report::terminal(run, width, false);
            let words = text.split_whitespace().collect::<Vec<_>>().join(" ");
            for sentence in sentences {
                assert!(words.contains(sentence), "{width}: {sentence}\n{text}");
                let first = sentence.split_inclusive(' ').next().unwrap();
                let lines = text.lines().filter(|line| line.starts_with(first));
                assert!(lines.clone().count() > 0, "{width}\n{text}");
                assert!(
                    lines.clone().all(|line| line.chars().count() <= width),
                    "{width}\n{text}"
                );
            }
        }
    }
}

/// A value next to its bound lies on its own side of it in every report, and is zero only if it is. Of the kind: cosines just below a
/// bar, errors just above one, values far below the digits shown, values of the other sign, shares that would read 1.
#[test]
fn no_number_is_rounded_across_its_bound() {
    for (require, short, value) in [
        (">= 0.999", "0.9990", 0.998_965),
        (">= 0.999", "0.9990", 0.998_999_999_9),
        ("<= 1e-4", "1.00e-4", 1.000_01e-4),
        ("<= 0", "0.000000", 3e-9),
        (">= 30", "30.00", 29.999_9),
        ("<= 0.01", "0.010", 0.010_000_1),
        (">= 0.99995", ">0.9999", 0.999_92),
        (">= 1", "1", 0.999_999_999),
        ("<= -0.5", "-0.50", -0.499_999),
        ("<= 12345678", "1.23e7", 12_345_679.0),
    ] {
        let shown = ulplab::gate::beside(require, short.into(), value);
        let bound: ulplab::metrics::Bound = require.parse().unwrap();
        let read: f64 = shown.parse().unwrap();
        assert!(
            !bound.admits(value) && !bound.admits(read),
            "{value} {require}: {shown}"
        );
    }
    for (require, short, value) in [
        (">= 0.999", "0.9991", 0.999_1),
        (">= 0.99", "1\u{a0}−\u{a0}4e-9", 1.0 - 4e-9),
        (">= 0.9", ">0.9999", 0.999_95),
        ("<= 0.1", "NaN", f64::NAN),
        ("<= 0.1", "+0.0021", 0.002_13),
    ] {
        assert_eq!(ulplab::gate::beside(require, short.into(), value), short);
    }
}
