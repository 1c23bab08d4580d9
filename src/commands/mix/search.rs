//! The greedy search: starts with every group in the cheapest format, then raises one group after another to a larger format.

use ulplab_core::error::Result;

/// The format of each group, as an index into the list of formats. Index 0 is the cheapest.
pub type Assignment = Vec<usize>;

/// The limits of a search.
#[derive(Clone, Copy, Debug, Default)]
pub struct Budget {
    /// Maximum number of bytes.
    pub bytes: Option<f64>,
    /// KL divergence at which the search ends.
    pub kl: Option<f64>,
}

/// A step of the search: the assignment of formats to groups after this step, with its bytes and KL divergence.
#[derive(Clone, Debug, PartialEq)]
pub struct Step {
    pub assignment: Assignment,
    /// Index of the group that was raised; `None` for the first step.
    pub raised: Option<usize>,
    pub bytes: f64,
    pub kl: f64,
}

/// Returns the maximum number of measurements of a search: the first point, each raise alone, and `top` raises at each step.
pub fn most(groups: usize, formats: usize, top: usize) -> usize {
    let raises = groups * (formats - 1);
    1 + raises + raises * top.min(raises)
}

/// Raises one group to a larger format at each step: the raise that lowers the KL divergence most per added byte. First
/// measures every raise alone, with all other groups in the cheapest format, and ranks the raises by these measurements. Each
/// step measures the first `top` raises of the ranking, applied to the current assignment, and takes the best.
/// `bytes[group][format]` must rise with the format; `kl` measures the KL divergences of assignments.
///
/// # Errors
/// Returns the errors of `kl`.
pub fn greedy(
    bytes: &[Vec<f64>],
    top: usize,
    budget: Budget,
    kl: &mut impl FnMut(&[Assignment]) -> Result<Vec<f64>>,
) -> Result<Vec<Step>> {
    let first: Assignment = vec![0; bytes.len()];
    let raised = |from: &Assignment, (group, format): (usize, usize)| {
        let mut assignment = from.clone();
        assignment[group] = format;
        assignment
    };
    let raises = |group: usize| (1..bytes[group].len()).map(move |format| (group, format));
    let all: Vec<(usize, usize)> = (0..bytes.len()).flat_map(raises).collect();
    let alone: Vec<Assignment> = all.iter().map(|raise| raised(&first, *raise)).collect();
    let measured = kl(&[&[first.clone()][..], &alone].concat())?;
    // For each group and format: the drop of the KL divergence if only this group has this format, and all others the cheapest.
    let mut gains: Vec<Vec<f64>> = bytes.iter().map(|formats| vec![0.0; formats.len()]).collect();
    for ((group, format), alone) in all.iter().zip(&measured[1..]) {
        gains[*group][*format] = measured[0] - alone;
    }
    let total = |assignment: &Assignment| -> f64 { assignment.iter().zip(bytes).map(|(format, of)| of[*format]).sum() };
    let mut steps = vec![Step {
        bytes: total(&first),
        kl: measured[0],
        raised: None,
        assignment: first,
    }];
    loop {
        let here = &steps[steps.len() - 1];
        if budget.kl.is_some_and(|most| here.kl <= most) {
            return Ok(steps);
        }
        let more = |(group, format): (usize, usize)| bytes[group][format] - bytes[group][here.assignment[group]];
        let by_byte = |(group, format): (usize, usize)| {
            (gains[group][format] - gains[group][here.assignment[group]]) / more((group, format))
        };
        let mut open = all.clone();
        open.retain(|(group, format)| *format > here.assignment[*group]);
        open.retain(|raise| budget.bytes.is_none_or(|most| here.bytes + more(*raise) <= most));
        if open.is_empty() {
            return Ok(steps);
        }
        open.sort_by(|a, b| by_byte(*b).total_cmp(&by_byte(*a)).then(a.cmp(b)));
        open.truncate(top.max(1));
        let tried: Vec<Assignment> = open.iter().map(|raise| raised(&here.assignment, *raise)).collect();
        let found = kl(&tried)?;
        let gain = |at: usize| (here.kl - found[at]) / more(open[at]);
        // Takes the first of equal gains.
        let best = (0..open.len()).max_by(|a, b| gain(*a).total_cmp(&gain(*b)).then(b.cmp(a)));
        let best = best.unwrap_or(0);
        steps.push(Step {
            bytes: total(&tried[best]),
            kl: found[best],
            raised: Some(open[best].0),
            assignment: tried[best].clone(),
        });
    }
}

/// Returns the indices of the steps that have a lower KL than all cheaper steps. Leaves out other steps: a raise can increase the
/// KL.
pub fn front(steps: &[Step]) -> Vec<usize> {
    let mut best = f64::INFINITY;
    let mut kept = Vec::new();
    for (at, step) in steps.iter().enumerate() {
        if step.kl < best {
            best = step.kl;
            kept.push(at);
        }
    }
    kept
}
