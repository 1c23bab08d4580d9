//! Finds a task's share of a run from the environment variables of the job scheduler: the number of the task and the number of
//! all tasks. Also finds the task's name and number of restarts.

use super::partition::{MOST_SHARES, Partition, PartitionArg, Share};
use ulplab_core::error::{Error, Result, refuse};

/// Names of the environment variables that one scheduler sets for each task, and the number of the first task.
struct Scheduler {
    /// Variable with the task's number, set in every task.
    index: &'static str,
    /// Variable with the number of tasks.
    count: &'static str,
    /// The number of the first task.
    first: usize,
}

/// Known schedulers. Slurm comes first: a Slurm job that is submitted from a CI job inherits the CI job's variables.
#[rustfmt::skip]
const SCHEDULERS: [Scheduler; 3] = [
    // The numbers of a Slurm array may have any start and any step: `resolve` reads the start from `SLURM_ARRAY_TASK_MIN`.
    Scheduler { index: "SLURM_ARRAY_TASK_ID", count: "SLURM_ARRAY_TASK_COUNT", first: 0 },
    // Kubernetes sets only the index.
    Scheduler { index: "JOB_COMPLETION_INDEX", count: "JOB_COMPLETIONS", first: 0 },
    Scheduler { index: "CI_NODE_INDEX", count: "CI_NODE_TOTAL", first: 1 },
];

/// Returns the partition that the `--partition` argument selects. If the share comes from environment variables, also returns a
/// text with their names and values.
///
/// # Errors
/// Returns an error if the environment gives no share, or an incomplete one; the message names the variables.
pub fn resolve(arg: &PartitionArg, variable: impl Fn(&str) -> Option<String>) -> Result<(Partition, Option<String>)> {
    let of_share = match arg {
        PartitionArg::Given(partition) => return Ok((partition.clone(), None)),
        PartitionArg::FromEnvironment(of_share) => of_share,
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
    let (name, count, mut first) = (scheduler.index, scheduler.count, scheduler.first);
    let why = format_args!("{count} is {n}, expected at most {MOST_SHARES}");
    refuse(n > MOST_SHARES, why).map_err(wrong)?;
    let (mut from, mut step) = (format!("{name}={index}, {count}={n}"), 1);
    if name == SCHEDULERS[0].index {
        first = number("SLURM_ARRAY_TASK_MIN")?;
        let last = number("SLURM_ARRAY_TASK_MAX")?;
        step = set("SLURM_ARRAY_TASK_STEP").map_or(Ok(1), |_| number("SLURM_ARRAY_TASK_STEP"))?;
        step = step.max(1);
        from += &format!(", array {first}-{last}");
        from += &if step > 1 { format!(":{step}") } else { String::new() };
        let uneven = last < first || n == 0 || (last - first) / step != n - 1;
        let why = format_args!("the {n} tasks of the array {first}-{last} are not numbered evenly in steps of {step}");
        refuse(uneven, why).map_err(wrong)?;
    }
    let place = index.checked_sub(first).filter(|offset| offset % step == 0);
    let m = place.map(|offset| offset / step + 1).filter(|m| *m <= n);
    let m = m.ok_or_else(|| wrong(format!("{from}: there is no such task")))?;
    Ok((of_share(Share { m, n }), Some(from)))
}

/// Returns the name under which the scheduler lists this task, such as `Slurm job 12_3`. A restarted task keeps its name.
pub fn task(variable: impl Fn(&str) -> Option<String>) -> Option<String> {
    let of_array = || Some(variable("SLURM_ARRAY_JOB_ID")? + "_" + &variable("SLURM_ARRAY_TASK_ID")?);
    let slurm = of_array().or_else(|| variable("SLURM_JOB_ID"));
    let slurm = slurm.map(|id| format!("Slurm job {id}"));
    let index = || Some(format!("completion {}", variable("JOB_COMPLETION_INDEX")?));
    let ci = || Some(format!("CI job {}", variable("CI_JOB_ID")?));
    slurm.or_else(index).or_else(ci)
}

/// Returns the number of times that the scheduler restarted this task; 0 if unknown.
pub fn restarts(variable: impl Fn(&str) -> Option<String>) -> u32 {
    let count = variable("SLURM_RESTART_COUNT").and_then(|count| count.parse().ok());
    count.unwrap_or(0)
}
