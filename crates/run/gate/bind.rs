//! The recipes that each rule binds, and the consequence if nothing was measured there.

use std::collections::HashMap;

use super::{Binding, Unmeasured};
use crate::experiment::Rule;
use crate::run::{Hindrance, Manifest};
use ulplab_core::error::counted;

/// Pairs each rule with each recipe that the rule binds. Recipes without a selected cell are included.
pub fn bind<'m>(manifest: &'m Manifest) -> Vec<Binding<'m>> {
    let (run, left_out) = (counts(&manifest.cells), counts(&manifest.left_out));
    let binding = |rule: &'m Rule, recipe: &'m str| {
        let cells = (recipe, rule.phase.name());
        let [run, left_out] = [&run, &left_out].map(|counts| counts.get(&cells).copied().unwrap_or(0));
        let unmeasured = match manifest.hindered.get(recipe) {
            Some(Hindrance::OtherDevice(why)) => Unmeasured::NotForDevice(why.clone()),
            Some(Hindrance::Missing(why)) => Unmeasured::NotJudged(why.clone()),
            None if run == 0 => Unmeasured::NotJudged("none of its cells was selected".into()),
            None if manifest.plan.by_case() => {
                Unmeasured::NotJudged(format!("it takes none of {}", counted(run, "case")))
            }
            None if left_out > 0 => Unmeasured::NotJudged(format!(
                "nothing was measured there in {run} of {}, and the others were not selected",
                counted(run + left_out, "cell")
            )),
            None => Unmeasured::NoSuchPlace,
        };
        Binding {
            rule,
            recipe,
            planned: run + left_out,
            left_out,
            unmeasured,
        }
    };
    let of_rule = |rule: &'m Rule| {
        let bound = manifest.plan.bound_by(rule);
        bound.map(|recipe| binding(rule, recipe)).collect::<Vec<_>>()
    };
    manifest.experiment.gates.iter().flat_map(of_rule).collect()
}

/// Number of cells of each recipe in each phase.
fn counts(cells: &[String]) -> HashMap<(&str, &str), usize> {
    let mut counts = HashMap::new();
    for id in cells {
        let mut parts = id.splitn(3, '/');
        if let (Some(recipe), Some(phase)) = (parts.next(), parts.next()) {
            *counts.entry((recipe, phase)).or_insert(0) += 1;
        }
    }
    counts
}
