//! The greedy search: everything in the cheapest format, then one raise after the other.

use ulplab_core::error::Result;

/// Which format each group has: a number of the list of formats, the cheapest first.
pub type Assignment = Vec<usize>;

/// What a search is bound by.
#[derive(Clone, Copy, Debug, Default)]
pub struct Budget {
    /// The most bytes.
    pub bytes: Option<f64>,
    /// The KL at which to end.
    pub kl: Option<f64>,
}

/// A point on the way.
#[derive(Clone, Debug, PartialEq)]
pub struct Step {
    pub assignment: Assignment,
    /// The group that was raised; none of the first point.
    pub raised: Option<usize>,
    pub bytes: f64,
    pub kl: f64,
}

/// Measurements that a search needs at most: the first point, every single raise, and `top` for each step.
pub fn most(groups: usize, formats: usize, top: usize) -> usize {
    let raises = groups * (formats - 1);
    1 + raises + raises * top.min(raises)
}

/// Raises step by step what lowers the KL most by byte. Every raise is measured alone once, from the cheapest point; at each step the
/// `top` of that ranking are measured where the search is, and the best of these is taken. `bytes[group][format]` rise with the
/// format; `kl` measures assignments.
///
/// # Errors
/// Those of `kl`.
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
    let all: Vec<(usize, usize)> = (0..bytes.len())
        .flat_map(|group| (1..bytes[group].len()).map(move |format| (group, format)))
        .collect();
    let alone: Vec<Assignment> = all.iter().map(|raise| raised(&first, *raise)).collect();
    let measured = kl(&[&[first.clone()][..], &alone].concat())?;
    // What each format of a group gains over the cheapest.
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
        let mut open: Vec<(usize, usize)> = all
            .iter()
            .copied()
            .filter(|(group, format)| *format > here.assignment[*group])
            .filter(|raise| budget.bytes.is_none_or(|most| here.bytes + more(*raise) <= most))
            .collect();
        if open.is_empty() {
            return Ok(steps);
        }
        open.sort_by(|a, b| by_byte(*b).total_cmp(&by_byte(*a)).then(a.cmp(b)));
        open.truncate(top.max(1));
        let tried: Vec<Assignment> = open.iter().map(|raise| raised(&here.assignment, *raise)).collect();
        let found = kl(&tried)?;
        let gain = |at: usize| (here.kl - found[at]) / more(open[at]);
        // The first of equal ones.
        let best = (0..open.len())
            .max_by(|a, b| gain(*a).total_cmp(&gain(*b)).then(b.cmp(a)))
            .unwrap_or(0);
        steps.push(Step {
            bytes: total(&tried[best]),
            kl: found[best],
            raised: Some(open[best].0),
            assignment: tried[best].clone(),
        });
    }
}

/// The steps that no cheaper one is as good as: a raise may harm.
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

#[cfg(test)]
mod tests {
    use super::*;

    /// Damage of each format in each group; damages add.
    const DAMAGE: [[f64; 3]; 3] = [[8.0, 1.0, 0.0], [3.0, 2.9, 0.0], [1.0, 0.5, 0.1]];

    fn bytes() -> Vec<Vec<f64>> {
        vec![vec![4.0, 8.0, 16.0], vec![4.0, 8.0, 16.0], vec![1.0, 2.0, 4.0]]
    }

    fn searched(budget: Budget) -> (Vec<Step>, usize) {
        let mut count = 0;
        let mut kl = |all: &[Assignment]| {
            count += all.len();
            let damage = |one: &Assignment| one.iter().zip(DAMAGE).map(|(format, of)| of[*format]).sum();
            Ok(all.iter().map(damage).collect())
        };
        let steps = greedy(&bytes(), 2, budget, &mut kl).unwrap();
        (steps, count)
    }

    #[test]
    fn what_lowers_the_damage_most_by_byte_is_raised_first() {
        let (steps, count) = searched(Budget::default());
        // 7 nats for 4 bytes, 0.5 for 1, 3 for 12, 0.4 for 2, 1 for 8.
        let way: Vec<&[usize]> = steps.iter().map(|step| &step.assignment[..]).collect();
        let want: [&[usize]; 6] = [&[0, 0, 0], &[1, 0, 0], &[1, 0, 1], &[1, 2, 1], &[1, 2, 2], &[2, 2, 2]];
        assert_eq!(way, want);
        assert_eq!(steps[5].bytes, 36.0);
        assert!(count <= most(3, 3, 2), "{count}");
        assert_eq!(front(&steps), [0, 1, 2, 3, 4, 5]);
    }

    #[test]
    fn a_budget_is_kept() {
        let (steps, _) = searched(Budget {
            bytes: Some(14.0),
            kl: None,
        });
        // Nothing that still fits is left out: one byte more would be too many.
        assert_eq!(steps.last().unwrap().assignment, [1, 0, 1]);
        let (steps, _) = searched(Budget {
            bytes: None,
            kl: Some(2.0),
        });
        assert_eq!(steps.last().unwrap().assignment, [1, 2, 1]);
        let kls: Vec<f64> = steps.iter().map(|step| step.kl).collect();
        assert!(kls[..kls.len() - 1].iter().all(|kl| *kl > 2.0), "{kls:?}");
    }

    #[test]
    fn a_step_that_harms_is_not_on_the_front() {
        let step = |kl| Step {
            assignment: vec![],
            raised: None,
            bytes: 0.0,
            kl,
        };
        let steps = [3.0, 2.0, 2.5, 2.0, 1.0].map(step);
        assert_eq!(front(&steps), [0, 1, 4]);
    }
}
