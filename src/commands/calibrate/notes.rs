//! Notes below a calibration's tables: the reasons for missing numbers, and the numbers that are findings.

use super::page::RATES;
use crate::gate::calibration::{CalibratedGate, CalibratedRecipe, Calibration, Judged};
use crate::studies::null::ROUNDS_NOTHING;
use ulplab_core::error::{Result, counted};
use ulplab_core::metrics::Metric;

/// The size of noise that a gate should notice.
const TO_NOTICE: f64 = 2.0;

/// The notes of a calibration, a line each.
pub fn of(calibration: &Calibration) -> Result<Vec<String>> {
    let mut notes = Notes(Vec::new());
    for note in [findings, unknown] {
        for gate in &calibration.gates {
            gate.recipes
                .iter()
                .try_for_each(|recipe| note(&mut notes, gate, recipe))?;
        }
    }
    Ok(notes.lines())
}

/// A gate that fails what is right, and one that does not notice noise.
fn findings(notes: &mut Notes, gate: &CalibratedGate, recipe: &CalibratedRecipe) -> Result<()> {
    let judged = Judged::new(gate, recipe)?;
    let title = gate.title();
    if let Some((failed @ 1.., n)) = judged.failed(recipe) {
        let before = format!("**{title}: it fails what is right** on ");
        let after = format!(", in {failed} of {}.", counted(n, "draw"));
        notes.add(&before, gate, recipe, &after);
    }
    let effect = recipe.effects.iter().find(|effect| effect.factor() == TO_NOTICE);
    if let Some((effect, 0)) = effect.and_then(|effect| Some((effect, judged.noticed(effect)?))) {
        let gain = effect.gain;
        let before = format!("{title}: noise × {gain} is noticed in no draw of ");
        notes.add(&before, gate, recipe, ".");
    }
    Ok(())
}

/// Why something has no number.
fn unknown(notes: &mut Notes, gate: &CalibratedGate, recipe: &CalibratedRecipe) -> Result<()> {
    let metric = Metric::find(&gate.metric)?;
    let of = format!("`{}` of ", gate.metric);
    match (&recipe.unknown, recipe.threshold(metric, RATES[1])) {
        (Some(why), _) => {
            notes.add(&of, gate, recipe, &format!(" is not calibrated: {why}."));
            return Ok(());
        }
        (None, Err(why)) => notes.add(&of, gate, recipe, &format!(": {why}.")),
        (None, Ok(_)) => {}
    }
    if recipe.effects.is_empty() {
        let (before, after) = match recipe.powerless.as_deref() {
            None | Some(ROUNDS_NOTHING) => ("The power on ".into(), format!(" is not known: {ROUNDS_NOTHING}.")),
            Some(why) => (
                format!("The power of `{}` on ", gate.metric),
                format!(" is not measured by noise: {why}."),
            ),
        };
        notes.add(&before, gate, recipe, &after);
    }
    Ok(())
}

/// Notes, of which those that say the same of several recipes are one.
struct Notes(Vec<Note>);

struct Note {
    before: String,
    recipes: Vec<String>,
    after: String,
    /// Number of recipes of its gate.
    of: usize,
}

/// More recipes than that are counted where all are meant, and not named.
const NAMED: usize = 6;

impl Notes {
    fn add(&mut self, before: &str, gate: &CalibratedGate, recipe: &CalibratedRecipe, after: &str) {
        let recipe = format!("`{}`", recipe.recipe);
        let mut notes = self.0.iter_mut();
        match notes.find(|note| note.before == before && note.after == after) {
            Some(note) => {
                note.of = note.of.max(gate.recipes.len());
                if !note.recipes.contains(&recipe) {
                    note.recipes.push(recipe);
                }
            }
            None => self.0.push(Note {
                before: before.into(),
                recipes: vec![recipe],
                after: after.into(),
                of: gate.recipes.len(),
            }),
        }
    }

    fn lines(&self) -> Vec<String> {
        let line = |note: &Note| {
            let recipes = match note.recipes.len() {
                all if all == note.of && all > NAMED => format!("any of the {all} recipes"),
                _ => note.recipes.join(", "),
            };
            format!("* {}{recipes}{}", note.before, note.after)
        };
        self.0.iter().map(line).collect()
    }
}
