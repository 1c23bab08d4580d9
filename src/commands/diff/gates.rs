//! Gates that bound the change of a metric between two runs.

use std::collections::BTreeSet;
use std::fmt;
use std::path::{Path, PathBuf};
use std::str::FromStr;

use serde::Deserialize;

use super::Check;
use super::numbers::{Pair, Pairs, timed, worst};
use super::output::sentence;
use crate::dataset::parse_toml;
use crate::run::verdict::Status;
use ulplab_core::error::{Error, Result, did_you_mean, refuse};
use ulplab_core::input;
use ulplab_core::metrics::Metric;
use ulplab_core::pattern::matches;
use ulplab_core::record::{Phase, Record, place};
use ulplab_core::vacuous::vacuous_change;

/// A bound on the worsening of a metric from BASE to NEW, for each record that the gate's patterns match.
#[derive(Clone, Debug)]
pub struct Gate {
    /// Text of the gate, as messages quote it.
    text: String,
    demand: Demand,
    metric: &'static Metric,
    most: LargestWorsening,
    /// File that contains the gate; `None` if it is from the command line.
    file: Option<PathBuf>,
}

/// A gate as written in a file.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct Demand {
    metric: String,
    /// Pattern of full site names, such as `layers.*.output`.
    #[serde(default = "any_site")]
    at: String,
    /// The phase that the gate applies to; `None` for all phases.
    phase: Option<Phase>,
    /// Patterns of the recipes to which the gate applies.
    #[serde(default = "any_recipe")]
    recipes: Vec<String>,
    worsening: String,
    why: String,
}

fn any_site() -> String {
    "**".into()
}

fn any_recipe() -> Vec<String> {
    vec!["**".into()]
}

/// A file of gates.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Rules {
    #[serde(rename = "change")]
    changes: Vec<Demand>,
}

/// The largest worsening that a gate admits.
#[derive(Clone, Copy, Debug, PartialEq)]
enum LargestWorsening {
    /// Worsening in the unit of the metric.
    Absolute(f64),
    /// Worsening in per cent of the value in BASE.
    PerCent(f64),
}

impl FromStr for LargestWorsening {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let text = text.trim();
        let (number, of): (_, fn(f64) -> Self) = match text.strip_suffix('%') {
            Some(number) => (number.trim_end(), Self::PerCent),
            None => (text, Self::Absolute),
        };
        match number.parse::<f64>() {
            Ok(most) if most.is_finite() && most >= 0.0 => Ok(of(most)),
            Ok(_) => Err(format!("'{text}' is not a change; expected a number of at least 0")),
            Err(_) => Err(format!(
                "'{text}' is not a change; expected a number, or one with % behind it"
            )),
        }
    }
}

impl fmt::Display for LargestWorsening {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Absolute(most) => write!(f, "{most}"),
            Self::PerCent(most) => write!(f, "{most}%"),
        }
    }
}

impl FromStr for Gate {
    type Err = Error;

    fn from_str(text: &str) -> Result<Self> {
        let error = |message: String| Error::Usage(format!("worsening '{text}': {message}"));
        let (left, most) = text
            .split_once("<=")
            .ok_or_else(|| error("expected [PATTERN:]METRIC<=CHANGE, e.g. 'kl<=1e-4' or 'us_cold<=3%'".into()))?;
        let (at, name) = left.rsplit_once(':').unwrap_or(("**", left));
        let demand = Demand {
            metric: name.trim().into(),
            at: at.trim().into(),
            phase: None,
            recipes: any_recipe(),
            worsening: most.into(),
            why: String::new(),
        };
        let gate = Self::new(demand, None).map_err(error)?;
        let text = text.into();
        Ok(Self { text, ..gate })
    }
}

/// Reads the gates of a file: its `[[change]]` tables.
pub fn read(file: &Path) -> Result<Vec<Gate>> {
    let text = input::text(file)?;
    let rules: Rules = parse_toml(file, &text)?;
    let none = refuse(rules.changes.is_empty(), "the file has no [[change]]");
    none.map_err(|why| Error::config(file, why))?;
    let gate = |demand: Demand| {
        let metric = demand.metric.clone();
        let error = |message: String| Error::config(file, format!("change of {metric}: {message}"));
        Gate::new(demand, Some(file)).map_err(error)
    };
    rules.changes.into_iter().map(gate).collect()
}

impl Gate {
    /// Creates a gate. Rejects an unknown metric, and a worsening that no measurement can exceed.
    fn new(demand: Demand, file: Option<&Path>) -> Result<Self, String> {
        let metric = Metric::find(&demand.metric).map_err(|cause| cause.to_string())?;
        let most: LargestWorsening = demand.worsening.parse()?;
        let (change, relative) = match most {
            LargestWorsening::Absolute(change) => (change, false),
            LargestWorsening::PerCent(change) => (change / 100.0, true),
        };
        vacuous_change(metric.name, metric.better, change, relative).map_or(Ok(()), Err)?;
        let phase = demand.phase.map(|phase| format!(" ({phase})")).unwrap_or_default();
        let of = match demand.recipes.iter().any(|pattern| pattern == "**") {
            true => String::new(),
            false => format!(" of {}", demand.recipes.join(", ")),
        };
        Ok(Self {
            text: format!("{}:{}<={most}{phase}{of}", demand.at, demand.metric),
            demand,
            metric,
            most,
            file: file.map(Path::to_path_buf),
        })
    }

    fn binds(&self, record: &Record) -> bool {
        let Demand { at, phase, recipes, .. } = &self.demand;
        record.metric == self.metric.name
            && phase.is_none_or(|phase| phase == record.phase)
            && recipes.iter().any(|pattern| matches(pattern, &record.recipe))
            && matches(at, &place(record.layer, &record.site))
    }

    /// Judges the gate on all records that it matches. Returns an error if it matches no record of either run.
    pub fn judge(&self, pairs: &Pairs) -> Result<Check> {
        let bound: Vec<&Pair> = pairs.both.iter().filter(|pair| self.binds(pair.base)).collect();
        let alone = |records: &[&Record]| records.iter().filter(|record| self.binds(record)).count();
        let (missing, added) = (alone(&pairs.only_base), alone(&pairs.only_new));
        if bound.is_empty() && missing + added == 0 {
            return Err(self.idle(pairs));
        }
        let holds = |pair: &&&Pair| match self.most {
            LargestWorsening::Absolute(most) => pair.worsening() <= most,
            LargestWorsening::PerCent(most) => pair.per_cent() <= most,
        };
        let failing = bound.len() - bound.iter().filter(holds).count();
        let counts = [failing, missing, added];
        Ok(check(&self.text, &self.demand.why, &bound, counts, "worsen by more"))
    }

    /// Returns the error for a gate that matches no record. The error says what has no match: the metric, the site, or the phase with
    /// the recipes.
    fn idle(&self, pairs: &Pairs) -> Error {
        let both = pairs.both.iter().map(|pair| pair.base);
        let all = both.chain(pairs.only_base.iter().copied());
        let all = all.chain(pairs.only_new.iter().copied());
        let of_metric: Vec<&Record> = all.filter(|record| record.metric == self.metric.name).collect();
        let sites = of_metric.iter().map(|record| place(record.layer, &record.site));
        let sites: BTreeSet<String> = sites.collect();
        let (metric, at) = (self.metric.name, &self.demand.at);
        let reason = if of_metric.is_empty() {
            format!("{metric} was measured in neither run")
        } else if !sites.iter().any(|site| matches(at, site)) {
            let hint = did_you_mean(at, sites.iter().map(String::as_str));
            format!("{metric} was measured at no site that matches '{at}'{hint}")
        } else {
            format!("{metric} was not measured there in that phase and those recipes")
        };
        let message = format!("worsening '{}' matches nothing: {reason}", self.text);
        match &self.file {
            Some(file) => Error::config(file, message),
            None => Error::Usage(message),
        }
    }
}

/// Judges the gate of `--identical`: all records except times must be bit-equal.
pub fn identical(pairs: &Pairs) -> Check {
    let numeric = |record: &Record| !timed(&record.metric);
    let bound: Vec<&Pair> = pairs.both.iter().filter(|pair| numeric(pair.base)).collect();
    let alone = |records: &[&Record]| records.iter().filter(|record| numeric(record)).count();
    // This gate requires the same records in both runs, so a record that only one run has counts as missing.
    let missing = alone(&pairs.only_base) + alone(&pairs.only_new);
    let unequal: Vec<&Pair> = bound.iter().copied().filter(|pair| !pair.equal()).collect();
    let counts = [unequal.len(), missing, 0];
    let mut check = check("identical", "", &bound, counts, "are not bit-equal");
    // `check` may have chosen an equal record as the worst one. Choose again, among the unequal records only.
    check.worst = worst(unequal).map(Pair::change);
    check
}

/// Returns the result of a gate. `bound` has the pairs of records to which the gate applies, `failing` is the number of these
/// pairs that fail, and `verb` describes the failure. `missing` counts records that only one run has, although the gate
/// requires them in both. `added` counts records that only NEW has, and that the gate does not require in BASE.
fn check(gate: &str, why: &str, bound: &[&Pair], [failing, missing, added]: [usize; 3], verb: &str) -> Check {
    let change = worst(bound.iter().copied()).map(Pair::change);
    let all = bound.len();
    let status = match (failing, missing) {
        (1.., _) => Status::Fail,
        (0, 0) if all > 0 => Status::Pass,
        _ => Status::NotJudged,
    };
    let mut message = match failing {
        0 => format!("holds for {all} records"),
        _ => format!("{failing} of {all} records {verb}"),
    };
    if let Some(change) = change.as_ref().filter(|change| change.worsening > 0.0) {
        message += &format!("; the worst: {}", sentence(change));
    }
    if missing > 0 {
        message += &format!("; {missing} records are in one run only, so that they cannot be compared");
    }
    if added > 0 {
        message += &format!("; {added} records are in NEW only, where BASE has nothing to compare them with");
    }
    Check {
        gate: gate.into(),
        why: why.into(),
        status,
        message,
        worst: change,
    }
}
