//! Finds the element with the largest absolute error of each recipe.

use std::collections::HashMap;

use super::recipes::Candidate;
use ulplab_core::record::{Record, Worst};
use ulplab_run::run::Run;

/// The element with the largest absolute error among all measured elements of a recipe.
pub struct Place<'a> {
    pub record: &'a Record,
    element: &'a Worst,
}

/// Returns the element with the largest absolute error of each recipe that has errors, in the order of `candidates`.
pub fn places<'a>(run: &'a Run, candidates: &[Candidate<'a>]) -> Vec<Place<'a>> {
    let mut worst: HashMap<&str, Place> = HashMap::new();
    for record in &run.records {
        let of_failure = || record.failure.as_ref().and_then(|failure| failure.worst.as_ref());
        let Some(element) = record.worst.as_ref().or_else(of_failure) else {
            continue;
        };
        let place = Place { record, element };
        let off = place.off();
        let further = |other: &Place| off.total_cmp(&other.off()).is_gt();
        if off > 0.0 && worst.get(record.recipe.as_str()).is_none_or(further) {
            worst.insert(&record.recipe, place);
        }
    }
    let found = candidates.iter().filter_map(|candidate| worst.remove(candidate.name));
    found.collect()
}

impl Place<'_> {
    /// Returns the absolute error; infinity in place of NaN.
    fn off(&self) -> f64 {
        match (self.element.got - self.element.want).abs() {
            off if off.is_nan() => f64::INFINITY,
            off => off,
        }
    }

    pub fn layer(&self) -> String {
        self.record.layer.map_or("—".into(), |layer| layer.to_string())
    }

    pub fn index(&self) -> String {
        let index: Vec<String> = self.element.index.iter().map(u64::to_string).collect();
        format!("[{}]", index.join(", "))
    }

    /// Returns the reference's value, the recipe's value, and the difference.
    pub fn numbers(&self) -> [String; 3] {
        let Worst { want, got, .. } = self.element;
        [digits(*want), digits(*got), format!("{:+.3e}", got - want)]
    }
}

/// Formats a number with the fewest digits that identify it among all f64 numbers; if it is an f32 value, among all f32 numbers.
fn digits(x: f64) -> String {
    match x as f32 {
        single if f64::from(single) == x => format!("{single:?}"),
        _ => format!("{x:?}"),
    }
}
