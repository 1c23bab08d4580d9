//! Whether parts of scratch that launches name are there, and hold what the repetition needs.

use std::collections::BTreeMap;

use super::super::expr::eval;
use super::super::plan::{Named, Plan, Step};
use super::super::sequence::Turn;
use ulplab_operations::ops::Case;

/// Checks the parts of scratch that launches name: they must be there, and what was prepared in one must be what would be prepared for
/// the repetition that uses it.
pub fn parts(plan: &Plan, case: &Case) -> Result<(), String> {
    let value = |text: &str, turn: &Turn| {
        let size = |name: &str| case.dims.iter().find(|(dim, _)| *dim == name).map(|(_, size)| *size);
        eval(text, &|name| turn.counter(name).or_else(|| size(name)))
    };
    let used = |steps: &[Step], order: &[(usize, Turn)]| {
        let mut used = Vec::new();
        for (turn, (step, counters)) in order.iter().enumerate() {
            for argument in steps[*step].arguments() {
                let wrong = |why: String| format!("launch '{}', argument '{argument}': {why}", steps[*step].name);
                let (name, index) = match Named::new(argument) {
                    Named::Part(name, index) => (name, Some(index)),
                    Named::Whole(name) => (name, None),
                    Named::Number(_) => continue,
                };
                let Some(scratch) = plan.scratch(name) else { continue };
                let index = match (index, scratch.parts) {
                    (Some(index), _) => index,
                    (None, 1) => continue,
                    (None, parts) => return Err(wrong(format!("it has {parts} parts, expected '{name}[INDEX]'"))),
                };
                let part = value(index, counters).map_err(wrong)?;
                if !(0..scratch.parts as i64).contains(&part) {
                    return Err(wrong(format!(
                        "the index is {part}, expected less than {} parts",
                        scratch.parts
                    )));
                }
                used.push((turn, (scratch.name.as_str(), part)));
            }
        }
        Ok(used)
    };
    let mut filled = BTreeMap::<_, Vec<usize>>::new();
    for (turn, part) in used(&plan.prepare, &plan.prepare_order)? {
        filled.entry(part).or_default().push(turn);
    }
    for (turn, part) in used(&plan.steps, &plan.order)? {
        let (step, counters) = &plan.order[turn];
        for prepared in filled.get(&part).into_iter().flatten() {
            let (prepare, prepared) = &plan.prepare_order[*prepared];
            let Some((of, index)) = prepared.counters.first() else {
                continue;
            };
            let Some(now) = counters.counter(&format!("@{of}")) else {
                continue;
            };
            let prepare = &plan.prepare[*prepare];
            for argument in prepare.arguments() {
                let text = match Named::new(argument) {
                    Named::Part(_, text) | Named::Number(text) => text,
                    Named::Whole(_) => continue,
                };
                let wrong = |why| format!("launch '{}', argument '{argument}': {why}", prepare.name);
                let [there, wanted] = [prepared, counters].map(|turn| value(text, turn).map_err(wrong));
                let (there, wanted) = (there?, wanted?);
                if there != wanted {
                    return Err(format!(
                        "launch '{}': at {now} of {of} it is given '{}[{}]', which '{}' prepares at {index}, where '{text}' is \
                         {there}, expected {wanted}",
                        plan.steps[*step].name, part.0, part.1, prepare.name
                    ));
                }
            }
        }
    }
    Ok(())
}
