//! Problems of a few small cases of an operation, which show its inputs and outputs.

use crate::ops;
use crate::studies::kernels::volume;
use rayon::prelude::*;
use ulplab_core::list::distinct;
use ulplab_operations::ops::judge::Rule;
use ulplab_operations::ops::{Case, Op, Problem, Role};

/// Most elements, as the product of its sizes, of a case that is sampled in addition to the smallest with its keys.
const CHEAP: f64 = 1e7;
/// Number of further cases with problems, in addition to the smallest with each set of keys.
const MORE: usize = 4;

/// A case with its problem.
pub struct Sample {
    pub case: Case,
    pub problem: Problem,
}

/// Names of an operation's outputs.
#[derive(Debug)]
pub struct OutputNames {
    pub names: Vec<String>,
    /// True if the list is complete: if expected values depend on the output, parts have names of their own.
    pub all: bool,
}

/// The names under which outputs of an operation are judged, in a few small cases.
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

/// The smallest case with each set of keys, a second one where it is cheap, and a few more; only cases that need no model.
pub fn samples(op: &dyn Op, cases: &[Case]) -> std::result::Result<Vec<Sample>, String> {
    let mut small: Vec<&Case> = cases.iter().filter(|case| !case.inputs.need_model()).collect();
    // The largest size says more than the product where there are many.
    let longest = |case: &&Case| case.dims.iter().map(|(_, size)| *size).max();
    small.sort_by(|a, b| longest(a).cmp(&longest(b)).then(volume(a).total_cmp(&volume(b))));
    let mut chosen: Vec<&Case> = Vec::new();
    for case in &small {
        if !chosen.iter().any(|other| other.keys == case.keys) {
            chosen.push(case);
        }
    }
    // A second one of each set of keys, if it is cheap: what depends on a key and a size is seen at two sizes.
    for case in small.iter().filter(|case| volume(case) <= CHEAP) {
        let with_its_keys = || chosen.iter().filter(|other| other.keys == case.keys);
        let differs = |other: &&&Case| other.dims.iter().zip(&case.dims).filter(|(a, b)| a.1 != b.1).count() > 1;
        if with_its_keys().count() == 1 && with_its_keys().any(|other| differs(&other)) {
            chosen.push(case);
        }
    }
    // More of them, as long as each has a size that no other has: so that sizes which are equal by chance in one differ in another.
    let mut more = 0;
    for case in small.into_iter().filter(|case| volume(case) <= CHEAP) {
        let fresh = |(name, size): &(&str, i64)| chosen.iter().all(|other| other.size(name) != Some(*size));
        if more < MORE && case.dims.iter().any(fresh) {
            chosen.push(case);
            more += 1;
        }
    }
    let sample = |case: &Case| {
        Ok(Sample {
            case: case.clone(),
            problem: ops::problem(op, case)?,
        })
    };
    chosen.into_par_iter().map(sample).collect()
}
