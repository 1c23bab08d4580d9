//! The power of judgements: the smallest fault of each kind that is refused in what a right kernel writes.
//!
//! Outputs of a right kernel are made of what an operation expects, rounded to the type that is stored. A fault of a kind
//! ([`FAULTS`]) is put into them, and its size is halved until the judgement accepts it. What is left out is not a size but a
//! place: a fault in a row that no case has is noticed by nobody.

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

/// The file with what was measured.
pub const FILE: &str = "experiments/results/power.json";

/// Steps in which a size doubles: sizes are found to within a fifth.
const STEPS: i32 = 4;
/// Exponents of the smallest and the largest size that is tried.
const RANGE: [i32; 2] = [-30, 4];
/// Product of all sizes of a case up to which it is asked: larger cases judge as smaller ones do, and take minutes.
const MOST: f64 = 3e7;
/// Cases with the same keys that are measured at any size.
const FEW: usize = 3;
/// Operations whose judgement runs a whole model on what a kernel left, for each question again: they are asked in the smallest case with
/// each set of keys.
pub const WHOLE: [&str; 2] = ["decode_step", "swap_ffn"];

/// Smallest faults that the judgement of an output notices.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Power {
    pub op: String,
    /// The output, or a part of it that has expected values of its own.
    pub output: String,
    /// Type of its elements.
    pub dtype: String,
    /// The kinds of its judgements.
    pub rule: String,
    /// Number of cases that were asked.
    pub cases: usize,
    /// The smallest of them, and what is noticed there.
    pub smallest: String,
    /// By kind of fault. Of bits that are compared: whether one changed bit is noticed.
    pub faults: BTreeMap<String, Noticed>,
    /// Cases in which nothing was asked, and why.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub unasked: BTreeMap<String, String>,
}

/// The smallest faults of a kind that are noticed; `None` is a fault that is not noticed at any size.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Noticed {
    /// In the case that notices the least, and which it is.
    pub best: Option<f64>,
    pub at: String,
    /// In the middle one of the cases; of two, in the worse.
    pub median: Option<f64>,
    /// In the smallest case, if it was asked there.
    pub smallest: Option<f64>,
}

/// Sizes by kind of fault, each infinite if none is noticed; or why nothing was asked.
type Sizes = std::result::Result<BTreeMap<&'static str, f64>, String>;

/// Reads the last measurement; empty if the file is missing.
///
/// # Errors
/// The file cannot be read, or is not what [`of`] gives.
pub fn stored() -> Result<Vec<Power>> {
    let Some(path) = shipped::find(FILE) else {
        return Ok(Vec::new());
    };
    serde_json::from_str(&input::text(&path)?).map_err(|error| Error::data(&path, error.to_string()))
}

/// The cases of an operation that are not timed and need no model, the smallest first.
pub fn smallest_first(op: &dyn Op) -> Vec<Case> {
    let mut cases = op.cases();
    cases.retain(|case| !case.timed && !case.inputs.need_model());
    cases.sort_by(|a, b| volume(a).total_cmp(&volume(b)));
    cases
}

/// The cases of an operation that are asked, the smallest first: those that are not large, and the smallest with each set of keys; where a
/// question takes long only these.
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

/// The power of an operation's judgements over some of its cases, which are ordered from the smallest.
///
/// # Errors
/// A case cannot be made.
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

/// The smallest fault of each kind that is refused.
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
        // Sizes below are accepted, those from the end on are refused.
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
    /// The power in the cases in which one judgement was asked.
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
    /// Summarises the smallest sizes that are noticed, each given with its case. `smallest` is the size in the smallest case, if
    /// faults of the kind were tried there.
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
