//! Inputs and expected outputs of a few small cases of an operation, which serve as examples.

use std::collections::BTreeSet;

use crate::ops;
use crate::studies::kernels::volume;
use rayon::prelude::*;
use ulplab_core::list::distinct;
use ulplab_operations::ops::judge::Rule;
use ulplab_operations::ops::{Case, Op, Problem, Role};

const LARGE: f64 = 1e8;
const CHEAP: f64 = 1e7;
/// Largest number of extra cases. One or two cases are chosen for each combination of key values; each extra case has a size that
/// no other chosen case has.
const MORE: usize = 4;

/// A case with its problem.
pub struct Sample {
    pub case: Case,
    pub problem: Problem,
}

/// Names that an operation's outputs have in records.
#[derive(Debug)]
pub struct OutputNames {
    pub names: Vec<String>,
    /// True if `names` is complete. It is incomplete if expected values depend on the outputs: records then also name parts of
    /// outputs.
    pub all: bool,
}

/// Makes a few small cases of an operation, and returns the names that the outputs have in records.
pub fn outputs(op: &dyn Op) -> std::result::Result<OutputNames, String> {
    let samples = samples(op, &op.cases())?;
    let judges = || samples.iter().flat_map(|sample| &sample.problem.judges);
    let buffers = samples.iter().flat_map(|sample| &sample.problem.buffers);
    let written = buffers.filter(|buffer| buffer.role != Role::In);
    let written = written.map(|buffer| buffer.name);
    let names = distinct(written.chain(judges().map(|judge| judge.output)));
    let names = names.into_iter().map(String::from).collect();
    let all = !judges().any(|judge| matches!(judge.rule, Rule::Parts(_)));
    Ok(OutputNames { names, all })
}

/// Makes the problem of the smallest case with each combination of key values that needs no model. Cases of other sizes have the
/// same rules of judgement.
pub fn smallest(op: &dyn Op, cases: &[Case]) -> std::result::Result<Vec<Sample>, String> {
    problems(op, of_keys(&by_size(cases)))
}

/// Makes the problems (inputs and expected outputs) of some cases that need no model: the smallest case with each combination of
/// key values (e.g. types), a second case with the same values if it is cheap, and up to `MORE` others.
pub fn samples(op: &dyn Op, cases: &[Case]) -> std::result::Result<Vec<Sample>, String> {
    let small = by_size(cases);
    let mut chosen = of_keys(&small);
    // Add a second cheap case for each combination of key values, to show how the results depend on the sizes.
    for case in small.iter().filter(|case| volume(case) <= CHEAP) {
        let with_its_keys = || chosen.iter().filter(|other| other.keys == case.keys);
        let differs = |other: &&&Case| other.dims.iter().zip(&case.dims).filter(|(a, b)| a.1 != b.1).count() > 1;
        if with_its_keys().count() == 1 && with_its_keys().any(|other| differs(&other)) {
            chosen.push(case);
        }
    }
    // Add cases with a size that no chosen case has, so that two sizes that are equal by chance in one case differ in another.
    let mut more = 0;
    for case in small.into_iter().filter(|case| volume(case) <= LARGE) {
        let fresh = |(name, size): &(&str, i64)| chosen.iter().all(|other| other.size(name) != Some(*size));
        if more < MORE && case.dims.iter().any(fresh) {
            chosen.push(case);
            more += 1;
        }
    }
    problems(op, chosen)
}

/// Returns the cases that need no model, sorted by their largest size, then by the product of their sizes: for cases with many
/// sizes, the product overstates the work.
fn by_size(cases: &[Case]) -> Vec<&Case> {
    let mut small: Vec<&Case> = cases.iter().filter(|case| !case.inputs.need_model()).collect();
    let longest = |case: &&Case| case.dims.iter().map(|(_, size)| *size).max();
    small.sort_by(|a, b| longest(a).cmp(&longest(b)).then(volume(a).total_cmp(&volume(b))));
    small
}

/// Returns the first case with each combination of key values.
fn of_keys<'c>(cases: &[&'c Case]) -> Vec<&'c Case> {
    let mut seen = BTreeSet::new();
    cases.iter().copied().filter(|case| seen.insert(&case.keys)).collect()
}

fn problems(op: &dyn Op, cases: Vec<&Case>) -> std::result::Result<Vec<Sample>, String> {
    let sample = |case: &Case| {
        Ok(Sample {
            case: case.clone(),
            problem: ops::problem(op, case)?,
        })
    };
    cases.into_par_iter().map(sample).collect()
}
