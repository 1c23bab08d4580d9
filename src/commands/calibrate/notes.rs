//! Notes below the tables of a calibration: reasons for missing numbers, and numbers that need attention.

use super::page::RATES;
use crate::gate::calibration::{CalibratedGate, CalibratedRecipe, Calibration, Judged};
use crate::studies::null::ROUNDS_NOTHING;
use ulplab_core::error::{Result, counted};
use ulplab_core::list::{distinct, grouped};
use ulplab_core::metrics::Metric;

/// Size of the noise that every gate should detect, in multiples of the recipe's error. A gate that never detects this noise gets
/// a note.
const TO_NOTICE: f64 = 2.0;

/// Largest number of recipes that a note names. A note on more recipes gives only their number.
const NAMED: usize = 6;

/// A note on a recipe, as two texts: the part before the name of the recipe, and the part after the name.
type Said = (String, String);

/// Returns the notes of a calibration, one a line. Recipes with the same note share a line.
pub fn of(calibration: &Calibration) -> Result<Vec<String>> {
    let mut notes = Vec::new();
    for note in [findings, unknown] {
        for gate in &calibration.gates {
            for recipe in &gate.recipes {
                let said = note(gate, recipe)?.into_iter();
                notes.extend(said.map(|said| (said, (format!("`{}`", recipe.recipe), gate.recipes.len()))));
            }
        }
    }
    let line = |((before, after), recipes): (Said, Vec<(String, usize)>)| {
        let most = recipes.iter().map(|(_, of)| *of).max().unwrap_or(0);
        let names = distinct(recipes.into_iter().map(|(name, _)| name));
        let recipes = match names.len() {
            all if all == most && all > NAMED => format!("any of the {all} recipes"),
            _ => names.join(", "),
        };
        format!("* {before}{recipes}{after}")
    };
    Ok(grouped(notes).into_iter().map(line).collect())
}

/// Returns notes about two defects of a gate on a recipe: it fails correct results, or it never fails with noise of size
/// `TO_NOTICE`.
fn findings(gate: &CalibratedGate, recipe: &CalibratedRecipe) -> Result<Vec<Said>> {
    let judged = Judged::new(gate, recipe)?;
    let (title, mut said) = (gate.title(), Vec::new());
    if let Some((failed @ 1.., n)) = judged.failed(recipe) {
        let before = format!("**{title}: it fails what is right** on ");
        said.push((before, format!(", in {failed} of {}.", counted(n, "draw"))));
    }
    let effect = recipe.effects.iter().find(|effect| effect.factor() == TO_NOTICE);
    if let Some((effect, 0)) = effect.and_then(|effect| Some((effect, judged.noticed(effect)?))) {
        let gain = effect.gain;
        said.push((format!("{title}: noise × {gain} is noticed in no draw of "), ".".into()));
    }
    Ok(said)
}

/// Returns notes with the reasons why the size or the power of a gate is unknown.
fn unknown(gate: &CalibratedGate, recipe: &CalibratedRecipe) -> Result<Vec<Said>> {
    let metric = Metric::find(&gate.metric)?;
    let (of, mut said) = (format!("`{}` of ", gate.metric), Vec::new());
    match (&recipe.unknown, recipe.threshold(metric, RATES[1])) {
        (Some(why), _) => return Ok(vec![(of, format!(" is not calibrated: {why}."))]),
        (None, Err(why)) => said.push((of, format!(": {why}."))),
        (None, Ok(_)) => {}
    }
    if recipe.effects.is_empty() {
        said.push(match recipe.powerless.as_deref() {
            None | Some(ROUNDS_NOTHING) => ("The power on ".into(), format!(" is not known: {ROUNDS_NOTHING}.")),
            Some(why) => (
                format!("The power of `{}` on ", gate.metric),
                format!(" is not measured by noise: {why}."),
            ),
        });
    }
    Ok(said)
}
