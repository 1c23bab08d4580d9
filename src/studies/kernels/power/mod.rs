//! Power of a check: the size of the smallest fault that the check of an output rejects, for each kind of fault.
//!
//! The outputs of a correct kernel are made from an operation's expected values, rounded to the stored type. A fault of a kind
//! ([`FAULTS`]) is applied to these outputs, and the smallest size that the check rejects is found. The result says nothing about
//! the positions of faults: no check notices a fault in a row that no test case has.

mod faults;
pub mod outputs;
mod shown;

use std::collections::{BTreeMap, BTreeSet};

use super::volume;
use crate::ops;
use crate::shipped;
use rayon::prelude::*;
use serde::{Deserialize, Serialize};
use ulplab_core::error::{Error, Result, refuse};
use ulplab_core::input;
use ulplab_core::list::grouped;
use ulplab_operations::ops::{Case, Op};

pub use faults::{FAULTS, Fault, NARROWED};
use outputs::{Judged, judged};
pub use shown::{blind, known};

/// Path of the file with the smallest faults that the checks notice.
pub const FILE: &str = "experiments/results/power.json";

/// Number of tested fault sizes per doubling of the size: the smallest noticed size is found to within 20 %.
const STEPS: i32 = 4;
/// Base-2 exponents of the smallest and the largest tested fault size.
const RANGE: [i32; 2] = [-30, 4];
/// Largest product of a measured case's sizes. Larger cases take minutes, and their checks notice the same faults as the checks
/// of smaller cases.
const MOST: f64 = 3e7;
/// For each combination of key values (e.g. types), this many of the smallest cases are measured even if they exceed [`MOST`].
const FEW: usize = 3;
/// Operations whose check runs a whole model on the kernel's outputs for each tested fault. Only the smallest case with each
/// combination of key values is measured.
pub const WHOLE: [&str; 2] = ["decode_step", "swap_ffn"];

/// The smallest faults that the check of an output notices.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Power {
    pub op: String,
    /// Name of the output, or of a part of the output that is checked separately.
    pub output: String,
    /// Type of the output's elements.
    pub dtype: String,
    /// Kinds of the comparisons that the output must pass, e.g. `equal bits`.
    pub rule: String,
    /// Number of measured cases.
    pub cases: usize,
    /// Name of the smallest measured case.
    pub smallest: String,
    /// Smallest noticed faults, by kind of fault. If bits are compared, the only kind is one flipped bit.
    pub faults: BTreeMap<String, Noticed>,
    /// Cases without a measurement, each with the reason.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub unasked: BTreeMap<String, String>,
}

/// The smallest noticed size of a kind of fault. `None` means that no tested size is noticed.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Noticed {
    /// Size in the most sensitive case. `at` is the name of that case.
    pub best: Option<f64>,
    pub at: String,
    /// Median size over the cases; for an even number of cases, the larger of the two middle sizes.
    pub median: Option<f64>,
    /// Smallest noticed size in the smallest case, if this kind of fault was measured in that case.
    pub smallest: Option<f64>,
}

/// Smallest noticed size by kind of fault, infinite if no size is noticed; or the reason why nothing was measured.
type Sizes = std::result::Result<BTreeMap<&'static str, f64>, String>;

/// Reads the smallest noticed faults of all checks from [`FILE`]; empty if the file is missing.
///
/// # Errors
/// Returns an error if the file cannot be read, or is not in the format in which results of [`of`] are stored.
pub fn stored() -> Result<Vec<Power>> {
    let Some(path) = shipped::find(FILE) else {
        return Ok(Vec::new());
    };
    serde_json::from_str(&input::text(&path)?).map_err(|error| Error::data(&path, error.to_string()))
}

/// Returns the cases of an operation that are not timed and need no model, the smallest first.
pub fn smallest_first(op: &dyn Op) -> Vec<Case> {
    let mut cases = op.cases();
    cases.retain(|case| !case.timed && !case.inputs.need_model());
    cases.sort_by(|a, b| volume(a).total_cmp(&volume(b)));
    cases
}

/// Returns the cases to measure, the smallest first: all cases that are not large, and the [`FEW`] smallest cases with each
/// combination of key values. For the operations of [`WHOLE`], only the smallest case with each combination.
pub fn cases(op: &dyn Op) -> Vec<Case> {
    let cases = smallest_first(op);
    let asked = |(at, case): &(usize, &Case)| {
        let smaller = cases[..*at].iter().filter(|other| other.keys == case.keys).count();
        match WHOLE.contains(&op.name()) {
            true => smaller == 0,
            false => volume(case) <= MOST || smaller < FEW,
        }
    };
    let asked = cases.iter().enumerate().filter(asked);
    asked.map(|(_, case)| case.clone()).collect()
}

/// Measures the smallest faults that an operation's checks notice in `cases`. The smallest case must come first in the list.
///
/// # Errors
/// Returns an error if a case cannot be made.
pub fn of(op: &dyn Op, cases: &[Case]) -> std::result::Result<Vec<Power>, String> {
    let asked = cases.par_iter().map(|case| {
        let mut problem = ops::problem(op, case)?;
        let of = |judged: &Judged| [judged.name.into(), judged.dtype.to_string(), judged.rule.clone()];
        let each = judged(&mut problem);
        let each = each
            .iter()
            .map(|judged| (of(judged), (case.name.as_str(), sizes(judged))));
        Ok(each.collect())
    });
    let asked: Vec<Vec<_>> = asked.collect::<std::result::Result<_, String>>()?;
    let groups = grouped(asked.into_iter().flatten()).into_iter();
    Ok(groups.map(|(group, asked)| Power::new(op, group, &asked)).collect())
}

/// Returns the smallest rejected size of each kind of fault.
fn sizes(judged: &Judged) -> Sizes {
    let why = "what is expected, rounded to the type that is stored, is refused";
    refuse(judged.refuses_right(), why)?;
    let seen = |noticed: bool| if noticed { 1.0 } else { f64::INFINITY };
    if judged.bits {
        let bit = judged.refuses_a_bit().ok_or("there is nothing in it")?;
        return Ok(BTreeMap::from([("bit", seen(bit))]));
    }
    let numbers = judged.numbers.as_ref().ok_or("there are no numbers in it but zeros")?;
    let by_size = FAULTS.iter().filter_map(|fault| {
        let refuses = |size| (fault.apply)(numbers, size).is_some_and(|values| judged.refuses(&values));
        let sizes: Vec<f64> = match fault.bits {
            true => (1..=numbers.digits).map(f64::from).collect(),
            false => (RANGE[0] * STEPS..=RANGE[1] * STEPS)
                .map(|step| 2f64.powf(f64::from(step) / f64::from(STEPS)))
                .collect(),
        };
        (fault.apply)(numbers, sizes[0])?;
        // Smaller sizes are accepted and larger ones rejected, so a binary search finds the limit.
        let accepted = sizes.partition_point(|size| !refuses(*size));
        Some((fault.name, sizes.get(accepted).copied().unwrap_or(f64::INFINITY)))
    });
    let refuses = |round| Some(seen(judged.refuses(&numbers.narrowed(round)?)));
    let narrowed = NARROWED
        .iter()
        .filter_map(|(name, round)| Some((*name, refuses(*round)?)));
    Ok(by_size.chain(narrowed).collect())
}

impl Power {
    /// Summarises the measurements of one output over the cases.
    fn new(op: &dyn Op, [output, dtype, rule]: [String; 3], asked: &[(&str, Sizes)]) -> Self {
        let mut unasked = BTreeMap::new();
        let mut answers: Vec<(&str, &BTreeMap<&'static str, f64>)> = Vec::new();
        for (case, sizes) in asked {
            match sizes {
                Ok(sizes) => answers.push((case, sizes)),
                Err(why) => drop(unasked.insert(case.to_string(), why.clone())),
            }
        }
        let kinds: BTreeSet<&str> = answers.iter().flat_map(|(_, sizes)| sizes.keys().copied()).collect();
        let noticed = |kind: &str| {
            let sizes = answers
                .iter()
                .filter_map(|(case, sizes)| Some((*case, *sizes.get(kind)?)));
            let smallest = answers[0].1.get(kind).copied();
            (kind.into(), Noticed::new(sizes.collect(), smallest))
        };
        Self {
            op: op.name().into(),
            output,
            dtype,
            rule,
            cases: answers.len(),
            smallest: answers.first().map_or(String::new(), |(case, _)| (*case).into()),
            faults: kinds.into_iter().map(noticed).collect(),
            unasked,
        }
    }
}

impl Noticed {
    /// Summarises the smallest noticed sizes, each with the name of its case. `smallest` is the size in the smallest case;
    /// `None` if faults of this kind were not tried in that case.
    fn new(mut sizes: Vec<(&str, f64)>, smallest: Option<f64>) -> Self {
        sizes.sort_by(|a, b| a.1.total_cmp(&b.1));
        let finite = |size: &f64| size.is_finite();
        Self {
            best: Some(sizes[0].1).filter(finite),
            at: sizes[0].0.into(),
            median: Some(sizes[sizes.len() / 2].1).filter(finite),
            smallest: smallest.filter(finite),
        }
    }
}
