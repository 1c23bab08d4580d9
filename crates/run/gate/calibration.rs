//! A calibration file (statistics measured on correct candidates), and the gate bounds that follow from it.

use std::path::Path;

use serde::{Deserialize, Serialize};
use serde_json::Value;

use crate::experiment::file::ExperimentFile;
use crate::experiment::{Experiment, Mistake, Rule, Statistic};
use crate::json::is_default;
use crate::run::definitions::Definitions;
use crate::run::{Manifest, seal};
use crate::statistics::{CONFIDENCE, Scale, Threshold, threshold};
use ulplab_core::error::{Error, Result, counted, refuse};
use ulplab_core::input;
use ulplab_core::metrics::{Better, Bound, Metric, Show};
use ulplab_core::record::Phase;
use ulplab_core::vacuous::vacuous;

/// Version of the calibration file format.
pub const SCHEMA: u32 = 2;

/// Measurements of correct candidates at the gates of an experiment.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Calibration {
    pub schema: u32,
    /// Version and commit of ulplab.
    pub version: String,
    pub commit: Option<String>,
    pub experiment: String,
    /// Fingerprint of the calibration run, which measured the correct candidates.
    pub run: String,
    /// Name and blake3 of every data file read.
    pub data: Vec<(String, String)>,
    /// Digests of the definitions of the metrics and formats at the time of the calibration.
    #[serde(default)]
    pub definitions: Definitions,
    pub seed: u64,
    pub tokens: usize,
    /// Number of windows in one draw: each value of a statistic is computed from this number of random windows. `texts` names the
    /// texts of these windows.
    pub windows: usize,
    pub texts: Vec<String>,
    /// Number of windows in a draw that are random inputs instead of text; `drawn` describes the random inputs.
    #[serde(default, skip_serializing_if = "is_default")]
    pub drawn_windows: usize,
    pub drawn: Option<String>,
    pub draws: usize,
    pub gates: Vec<CalibratedGate>,
}

/// A gate, with the measurements on each recipe to which it applies.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct CalibratedGate {
    pub metric: String,
    pub at: String,
    pub phase: Phase,
    pub statistic: Statistic,
    /// The bound as stated in the experiment file; empty if the gate states `flake`, a false-alarm rate.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub require: String,
    pub flake: Option<f64>,
    pub recipes: Vec<CalibratedRecipe>,
}

/// Measurements for a gate on one recipe.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct CalibratedRecipe {
    pub recipe: String,
    /// [`definition`] of the recipe.
    pub definition: Value,
    /// Values of the gate's statistic for a correct candidate, one for each draw (random sample).
    pub null: Vec<f64>,
    /// Reason why `null`, the values of a correct candidate, is empty; `None` if it has values.
    pub unknown: Option<String>,
    pub effects: Vec<Effect>,
    /// Reason why `effects` (the planted errors) is empty. `None` if there are effects, or if the recipe rounds nothing.
    pub powerless: Option<String>,
}

/// A planted error, and the gate's statistic on each draw. The error is Gaussian noise with the energy of the recipe's rounding
/// error, scaled by `gain`.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Effect {
    /// Size of the noise in multiples of the recipe's own error.
    pub gain: f64,
    /// Values of the statistic, one for each draw. `None` means a value that is not finite: every gate rejects it.
    pub values: Vec<Option<f64>>,
}

impl Calibration {
    /// Reads a calibration file.
    ///
    /// # Errors
    /// Returns an error if the file cannot be read or is invalid.
    pub fn read(path: &Path) -> Result<Self> {
        let wrong = |why: String| Error::data(path, why);
        let found: Self = seal::read_json(&input::bytes(path)?, Some(SCHEMA)).map_err(|why| {
            wrong(format!(
                "not a calibration file of this version of `ulplab gate --calibrate`: {why}"
            ))
        })?;
        found.miscounted().map_or(Ok(()), |why| Err(wrong(why)))?;
        Ok(found)
    }

    /// Checks the number of values of each recipe: the number of draws, or 0. Returns an error message about the first recipe
    /// with another number.
    fn miscounted(&self) -> Option<String> {
        let of_gate = |gate: &CalibratedGate| {
            let recipes = gate.recipes.iter();
            let counts = recipes.flat_map(|recipe| {
                let effects = recipe.effects.iter().map(|effect| effect.values.len());
                let counts = std::iter::once(recipe.null.len()).chain(effects);
                counts.map(|count| (&recipe.recipe, count))
            });
            let mut wrong = counts.filter(|(_, count)| ![0, self.draws].contains(count));
            let (recipe, count) = wrong.next()?;
            let (draws, values, gate) = (counted(self.draws, "draw"), counted(count, "value"), gate.title());
            Some(format!("it is of {draws}, and {gate} has {values} on '{recipe}'"))
        };
        self.gates.iter().find_map(of_gate)
    }

    /// Returns digests of this program's definitions of the metrics that the gates use and of the formats that their recipes
    /// name.
    pub fn defined<'a>(gates: impl Iterator<Item = &'a CalibratedGate> + Clone) -> Definitions {
        let recipes = gates.clone().flat_map(|gate| &gate.recipes);
        let metrics = gates.map(|gate| &*gate.metric);
        Definitions::new(metrics, recipes.map(|recipe| &recipe.definition))
    }

    /// Returns the bound of a gate that states a false-alarm rate (`flake`): the loosest of the bounds computed for each recipe
    /// to which the gate applies.
    ///
    /// # Errors
    /// Returns an error if a recipe was not calibrated, if anything has changed since the calibration, or if the values support
    /// no bound.
    fn bound(&self, rule: &Rule, flake: f64, manifest: &Manifest) -> Result<Bound, String> {
        if let Some((name, _)) = self.data.iter().find(|file| !manifest.data.contains(file)) {
            return Err(format!("it was made with a different {name}"));
        }
        let body = &manifest.experiment.body;
        let tokens = body.get("tokens").and_then(Value::as_u64).unwrap_or(0);
        let why = format_args!("its windows have {} tokens, and here they have {tokens}", self.tokens);
        refuse(tokens != self.tokens as u64, why)?;
        let windows = manifest.plan.windows.len();
        if windows != self.windows {
            let (own, here) = (counted(self.windows, "window"), counted(windows, "window"));
            return Err(format!("it is of {own}, and the experiment has {here}"));
        }
        let same = |gate: &&CalibratedGate| {
            let what = (gate.phase, gate.statistic) == (rule.phase, rule.statistic);
            what && gate.metric == rule.metric && gate.at == rule.at
        };
        let gates: Vec<&CalibratedGate> = self.gates.iter().filter(same).collect();
        let metric = Metric::find(&rule.metric).map_err(|error| error.to_string())?;
        let undefined = !gates.is_empty() && !self.definitions.has(metric.name);
        let why = format_args!("it does not store the definition of {}; calibrate again", metric.name);
        refuse(undefined, why)?;
        if let Some(changed) = self.definitions.changed(&Self::defined(gates.iter().copied())).first() {
            return Err(format!("{changed} since it was made"));
        }
        let mut worst: Option<Bound> = None;
        for recipe in manifest.plan.bound_by(rule) {
            let mut recipes = gates.iter().flat_map(|gate| &gate.recipes);
            let found = recipes.find(|found| found.recipe == recipe);
            let found = found.ok_or_else(|| format!("it does not have this gate on '{recipe}'"))?;
            let why = format_args!("it was made with another definition of '{recipe}'");
            refuse(definition(&manifest.experiment, recipe) != found.definition, why)?;
            if let Some(why) = &found.unknown {
                return Err(format!("it knows nothing of '{recipe}': {why}"));
            }
            let threshold = found.threshold(metric, flake);
            let (bound, _) = threshold.map_err(|why| format!("'{recipe}': {why}"))?;
            if let Some(why) = vacuous(metric.name, bound) {
                return Err(format!("'{recipe}': {why}"));
            }
            let loudest = found.effects.iter().max_by(|a, b| a.gain.total_cmp(&b.gain));
            if let Some(effect) = loudest.filter(|effect| Judged(Some(bound)).noticed(effect) == Some(0)) {
                let gain = effect.gain;
                return Err(format!(
                    "'{recipe}': the bound '{bound}' would notice no draw with an error {gain} times as large"
                ));
            }
            let kept = worst.filter(|worst| worst.worse(worst.value, bound.value));
            worst = kept.or(Some(bound));
        }
        worst.ok_or_else(|| "the gate binds no recipe".into())
    }
}

impl Effect {
    /// Returns `gain`, the size of the noise in multiples of the recipe's own error, or its reciprocal if that is larger. `gain`
    /// is below 1 for a gate that limits how good a recipe may be.
    pub fn factor(&self) -> f64 {
        self.gain.max(1.0 / self.gain)
    }
}

impl CalibratedGate {
    /// Creates a gate's entry in the calibration file from its rule and the measurements on each recipe.
    pub fn new(rule: &Rule, recipes: Vec<CalibratedRecipe>) -> Self {
        Self {
            metric: rule.metric.clone(),
            at: rule.at.clone(),
            phase: rule.phase,
            statistic: rule.statistic,
            require: rule.require.clone(),
            flake: rule.flake,
            recipes,
        }
    }

    /// Returns a phrase with the gate's statistic, metric, site and phase.
    pub fn title(&self) -> String {
        let (statistic, phase) = (self.statistic.name(), self.phase);
        format!("{statistic} of `{}` at `{}`, {phase}", self.metric, self.at)
    }
}

/// The bound that a gate requires of a recipe: the stated bound, or the calibrated bound for the gate's false-alarm rate.
pub struct Judged(Option<Bound>);

impl Judged {
    /// Determines the bound of a gate for a recipe. The bound is unknown if the draws of the calibration do not suffice to
    /// compute it.
    ///
    /// # Errors
    /// Returns an error if the metric does not exist.
    pub fn new(gate: &CalibratedGate, recipe: &CalibratedRecipe) -> Result<Self> {
        let metric = Metric::find(&gate.metric)?;
        Ok(Self(match gate.flake {
            Some(flake) => recipe.threshold(metric, flake).ok().map(|(bound, _)| bound),
            None => gate.require.parse().ok(),
        }))
    }

    /// Returns the number of draws of the correct candidate that fail the gate, and the number of all draws; `None` if not known.
    pub fn failed(&self, recipe: &CalibratedRecipe) -> Option<(usize, usize)> {
        let bound = self.0?;
        let failed = recipe.null.iter().filter(|value| !bound.admits(**value)).count();
        (!recipe.null.is_empty()).then_some((failed, recipe.null.len()))
    }

    /// Returns the number of draws in which the gate rejects the planted error; `None` if the gate's bound is not known.
    pub fn noticed(&self, effect: &Effect) -> Option<usize> {
        let bound = self.0?;
        let noticed = |value: &&Option<f64>| value.is_none_or(|value| !bound.admits(value));
        Some(effect.values.iter().filter(noticed).count())
    }
}

impl CalibratedRecipe {
    /// Returns a bound of the metric, and how it was derived from the draws ([`Threshold`]). With a confidence of 95 %, at most
    /// the share `flake` of correct candidates violates the bound.
    ///
    /// # Errors
    /// Returns the reason if too few draws, or draws that are too large, give no bound.
    pub fn threshold(&self, metric: &Metric, flake: f64) -> Result<(Bound, Threshold), String> {
        let (scale, far, least) = distance(metric);
        let draws: Vec<f64> = self.null.iter().map(|&value| far(value)).collect();
        let found = threshold(&draws, flake, CONFIDENCE, scale)?;
        let (better, value) = (metric.better, far(outward(found.value)));
        match least {
            Some(least) if value < least => Err(format!(
                "the bound for {flake:e} false alarms is {value:.3}, and no value is below {least}: it would notice nothing"
            )),
            _ => Ok((Bound { better, value }, found)),
        }
    }
}

/// Returns three properties of a metric: the scale on which the tail is extrapolated; a function that maps worse values to larger
/// numbers, and is its own inverse; and the smallest possible value of the metric, so that an extrapolated bound below it can be
/// rejected (`None` if that is unnecessary).
fn distance(metric: &Metric) -> (Scale, fn(f64) -> f64, Option<f64>) {
    match (metric.show, metric.better) {
        (Show::NearOne, Better::Higher) => (Scale::Log, |value| 1.0 - value, Some(-1.0)),
        (Show::Share, Better::Higher) => (Scale::Log, |value| 1.0 - value, Some(0.0)),
        (Show::Signed | Show::DecibelsAbove | Show::Decibels | Show::Exponent, Better::Lower) => {
            (Scale::Linear, |value| value, None)
        }
        (_, Better::Lower) => (Scale::Log, |value| value, None),
        (_, Better::Higher) => (Scale::Linear, |value| -value, None),
    }
}

/// Rounds a bound upwards to four significant digits, so that it is readable but not tighter than before. Larger values are
/// worse.
fn outward(value: f64) -> f64 {
    if value == 0.0 || !value.is_finite() {
        return value;
    }
    let digit = 10f64.powi(value.abs().log10().floor() as i32 - 3);
    let near = format!("{:.3e}", (value / digit).ceil() * digit);
    near.parse().unwrap_or(value).max(value)
}

/// Returns the definitions of a recipe, of the recipe it is compared with (`against`), and of the experiment's `source` and
/// `shape`. The built-in recipe `reference` has no definition.
pub fn definition(experiment: &Experiment, recipe: &str) -> Value {
    let known = experiment.recipes();
    let find = |name: &str| known.iter().find(|(other, _)| *other == name).map(|(_, value)| *value);
    let own = find(recipe);
    let against = own.and_then(|own| own.get("against")?.as_str()).and_then(find);
    let tried_on = ["source", "shape"];
    let tried_on = tried_on.iter().filter_map(|key| experiment.body.get(*key));
    own.into_iter().chain(against).chain(tried_on).cloned().collect()
}

/// Sets the bounds of gates that state a false-alarm rate, from the calibration files that the gates name. The paths of these
/// files are relative to the folder of `file`.
///
/// # Errors
/// Returns an error with the gate and the reason if a gate gets no bound.
pub fn resolve(manifest: &mut Manifest, file: &ExperimentFile) -> Result<()> {
    let folder = file.path.parent().unwrap_or(Path::new(""));
    let mut gates = manifest.experiment.head.gates.clone();
    for (at, rule) in gates.iter_mut().enumerate() {
        let (Some(flake), Some(calibration), true) = (rule.flake, &rule.calibration, rule.require.is_empty()) else {
            continue;
        };
        let path = folder.join(calibration);
        let wrong = |key: &str, why: String| {
            let message = format!("gate on {}: {why}", rule.metric);
            file.error(&Mistake::at(key, message).within("gate", at))
        };
        let found = Calibration::read(&path).map_err(|error| wrong("calibration", error.to_string()))?;
        let bound = found.bound(rule, flake, manifest).map_err(|why| {
            let path = path.display();
            wrong("flake", format!("{path} gives no bound for flake = {flake:e}: {why}"))
        })?;
        rule.require = bound.to_string();
    }
    manifest.experiment.head.gates = gates;
    Ok(())
}

/// Returns the direction in which a value is better for a gate: the direction of the gate's bound, or of its metric if the gate
/// states a false-alarm rate.
pub fn direction(require: &str, metric: &Metric) -> Better {
    require.parse::<Bound>().map_or(metric.better, |bound| bound.better)
}
