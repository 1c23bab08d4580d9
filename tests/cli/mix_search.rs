//! The search for formats of groups.

use ulplab::commands::mix::search::{Assignment, Budget, Step, front, greedy, most};

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
