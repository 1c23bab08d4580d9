//! Shares and names of tasks that schedulers give.

use ulplab::run::partition::PartitionArg;
use ulplab::run::scheduler::{resolve, restarts, task};

fn told(asked: &str, environment: &[(&str, &str)]) -> Result<String, String> {
    let variable = |name: &str| {
        let found = environment.iter().find(|(known, _)| *known == name);
        found.map(|(_, value)| value.to_string())
    };
    let resolved = resolve(&asked.parse().unwrap(), variable);
    resolved
        .map(|(partition, _)| partition.to_string())
        .map_err(|error| error.to_string())
}

fn slurm(id: &'static str, array: [&'static str; 4]) -> Vec<(&'static str, &'static str)> {
    let names = ["COUNT", "MIN", "MAX", "STEP"].map(|name| match name {
        "COUNT" => "SLURM_ARRAY_TASK_COUNT",
        "MIN" => "SLURM_ARRAY_TASK_MIN",
        "MAX" => "SLURM_ARRAY_TASK_MAX",
        _ => "SLURM_ARRAY_TASK_STEP",
    });
    [("SLURM_ARRAY_TASK_ID", id)]
        .into_iter()
        .chain(names.into_iter().zip(array))
        .collect()
}

/// Arrays from 0, from 1, from elsewhere, in steps, with a last step that ends short of the maximum, and of one task.
#[test]
fn arrays_of_slurm_begin_anywhere_and_have_steps() {
    for (id, array, share) in [
        ("0", ["8", "0", "7", "1"], "slice:1/8"),
        ("7", ["8", "0", "7", "1"], "slice:8/8"),
        ("1", ["4", "1", "4", "1"], "slice:1/4"),
        ("14", ["3", "10", "18", "4"], "slice:2/3"),
        ("9", ["4", "0", "9", "3"], "slice:4/4"),
        ("5", ["1", "5", "5", "1"], "slice:1/1"),
        ("5", ["1", "5", "5", "0"], "slice:1/1"),
    ] {
        assert_eq!(
            told("slice", &slurm(id, array)).as_deref(),
            Ok(share),
            "{id} of {array:?}"
        );
    }
    // An array of 1, 3 and 7; a task that is none of its array's; none at all.
    for (id, array) in [
        ("3", ["3", "1", "7", "2"]),
        ("3", ["3", "1", "7", "1"]),
        ("2", ["4", "0", "9", "3"]),
        ("12", ["8", "0", "7", "1"]),
        ("0", ["0", "0", "0", "1"]),
    ] {
        let error = told("slice", &slurm(id, array)).unwrap_err();
        assert!(error.contains("--partition slice:M/N"), "{error}");
    }
}

#[test]
fn each_scheduler_counts_its_own_way_and_what_is_given_comes_first() {
    let kubernetes = [("JOB_COMPLETION_INDEX", "0"), ("JOB_COMPLETIONS", "5")];
    let gitlab = [("CI_NODE_INDEX", "5"), ("CI_NODE_TOTAL", "5")];
    assert_eq!(told("hash", &kubernetes).unwrap(), "hash:1/5");
    assert_eq!(told("slice", &gitlab).unwrap(), "slice:5/5");
    assert_eq!(told("slice:2/3", &gitlab).unwrap(), "slice:2/3");
    let both = [&gitlab[..], &slurm("3", ["4", "0", "3", "1"])].concat();
    assert_eq!(told("slice", &both).unwrap(), "slice:4/4");
    for (environment, words) in [
        (
            &kubernetes[..1],
            "JOB_COMPLETION_INDEX is set, but JOB_COMPLETIONS is not",
        ),
        (
            &[("CI_NODE_INDEX", "0"), ("CI_NODE_TOTAL", "5")],
            "there is no such task",
        ),
        (
            &[("CI_NODE_INDEX", "six"), ("CI_NODE_TOTAL", "5")],
            "'six', expected a number",
        ),
        (
            &[("CI_NODE_INDEX", "")],
            "has none of SLURM_ARRAY_TASK_ID and SLURM_ARRAY_TASK_COUNT",
        ),
    ] {
        let error = told("slice", environment).unwrap_err();
        assert!(error.contains(words), "{error}");
    }
    for text in [
        "slice:",
        "slice:0/4",
        "slice:5/4",
        "slice:1",
        "hash:a/b",
        "op",
        "op:",
        "count:1/2",
        "",
    ] {
        assert!(text.parse::<PartitionArg>().is_err(), "{text}");
    }
}

#[test]
fn tasks_have_the_names_that_their_scheduler_has_for_them() {
    let of = |environment: &[(&str, &str)]| {
        task(|name: &str| {
            let found = environment.iter().find(|(known, _)| *known == name);
            found.map(|(_, value)| value.to_string())
        })
    };
    let array = [
        ("SLURM_ARRAY_JOB_ID", "17"),
        ("SLURM_ARRAY_TASK_ID", "3"),
        ("SLURM_JOB_ID", "20"),
    ];
    assert_eq!(of(&array).unwrap(), "Slurm job 17_3");
    assert_eq!(of(&array[2..]).unwrap(), "Slurm job 20");
    assert_eq!(of(&[("JOB_COMPLETION_INDEX", "4")]).unwrap(), "completion 4");
    assert_eq!(of(&[]), None);
    assert_eq!(restarts(|name| (name == "SLURM_RESTART_COUNT").then(|| "2".into())), 2);
}
