//! What a scheduler tells a task in its environment: which of how many it is, and what to call it.

use super::partition::{Asked, MOST_SHARES, Partition, Share};
use ulplab_core::error::{Error, Result};

/// How a scheduler numbers its tasks.
struct Scheduler {
    /// Set in every task.
    index: &'static str,
    /// How many tasks there are.
    count: &'static str,
    /// The number of the first task.
    first: usize,
}

/// Slurm comes first: a job that is submitted from a CI job inherits the variables of the latter.
const SCHEDULERS: [Scheduler; 3] = [
    // Arrays may begin anywhere and have steps: the first number is SLURM_ARRAY_TASK_MIN.
    Scheduler {
        index: "SLURM_ARRAY_TASK_ID",
        count: "SLURM_ARRAY_TASK_COUNT",
        first: 0,
    },
    // Kubernetes sets the index alone.
    Scheduler {
        index: "JOB_COMPLETION_INDEX",
        count: "JOB_COMPLETIONS",
        first: 0,
    },
    Scheduler {
        index: "CI_NODE_INDEX",
        count: "CI_NODE_TOTAL",
        first: 1,
    },
];

/// The partition that the user wants, and, if the environment tells the share, the variables that it is taken from.
///
/// # Errors
/// The environment tells no share, or not a whole one; the message names the variables.
pub fn resolve(asked: &Asked, variable: impl Fn(&str) -> Option<String>) -> Result<(Partition, Option<String>)> {
    let rule = match asked {
        Asked::Given(partition) => return Ok((partition.clone(), None)),
        Asked::FromEnvironment(rule) => rule,
    };
    let set = |name: &str| variable(name).filter(|value| !value.is_empty());
    let Some(scheduler) = SCHEDULERS.iter().find(|scheduler| set(scheduler.index).is_some()) else {
        let names = SCHEDULERS.map(|scheduler| format!("{} and {}", scheduler.index, scheduler.count));
        return Err(Error::Usage(format!(
            "--partition: the share is left to the environment, which has none of {}; give it: --partition slice:M/N",
            names.join(", ")
        )));
    };
    let wrong =
        |message: String| Error::Usage(format!("--partition: {message}; give the share: --partition slice:M/N"));
    let number = |name: &str| match set(name) {
        None => Err(wrong(format!("{} is set, but {name} is not", scheduler.index))),
        Some(value) => value
            .parse::<usize>()
            .map_err(|_| wrong(format!("{name} is '{value}', expected a number"))),
    };
    let (index, n) = (number(scheduler.index)?, number(scheduler.count)?);
    if n > MOST_SHARES {
        return Err(wrong(format!(
            "{} is {n}, expected at most {MOST_SHARES}",
            scheduler.count
        )));
    }
    let mut from = format!("{}={index}, {}={n}", scheduler.index, scheduler.count);
    let (mut first, mut step) = (scheduler.first, 1);
    if scheduler.index == SCHEDULERS[0].index {
        first = number("SLURM_ARRAY_TASK_MIN")?;
        let last = number("SLURM_ARRAY_TASK_MAX")?;
        step = set("SLURM_ARRAY_TASK_STEP").map_or(Ok(1), |_| number("SLURM_ARRAY_TASK_STEP"))?;
        step = step.max(1);
        from += &format!(", array {first}-{last}");
        from += &if step > 1 { format!(":{step}") } else { String::new() };
        if last < first || n == 0 || (last - first) / step != n - 1 {
            return Err(wrong(format!(
                "the {n} tasks of the array {first}-{last} are not numbered evenly in steps of {step}"
            )));
        }
    }
    let place = index.checked_sub(first).filter(|offset| offset % step == 0);
    let m = place.map(|offset| offset / step + 1).filter(|m| *m <= n);
    let m = m.ok_or_else(|| wrong(format!("{from}: there is no such task")))?;
    Ok((rule.share(Share { m, n }), Some(from)))
}

/// What the scheduler calls this task, so that people find it there. A task that is started again keeps its name.
pub fn task(variable: impl Fn(&str) -> Option<String>) -> Option<String> {
    let of_array = || {
        Some(format!(
            "{}_{}",
            variable("SLURM_ARRAY_JOB_ID")?,
            variable("SLURM_ARRAY_TASK_ID")?
        ))
    };
    let slurm = of_array().or_else(|| variable("SLURM_JOB_ID"));
    let slurm = slurm.map(|id| format!("Slurm job {id}"));
    let index = || Some(format!("completion {}", variable("JOB_COMPLETION_INDEX")?));
    let ci = || Some(format!("CI job {}", variable("CI_JOB_ID")?));
    slurm.or_else(index).or_else(ci)
}

/// How often the scheduler had started this task before, if it says so.
pub fn restarts(variable: impl Fn(&str) -> Option<String>) -> u32 {
    let count = variable("SLURM_RESTART_COUNT").and_then(|count| count.parse().ok());
    count.unwrap_or(0)
}

#[cfg(test)]
mod tests {
    use super::*;

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
            assert!(text.parse::<Asked>().is_err(), "{text}");
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
}
