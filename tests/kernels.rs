//! What operations say of a kernel's outputs: the reference's own are accepted, changed ones are not. No GPU is needed.

#[path = "kernels/quantize.rs"]
mod quantize;

use ulplab::kernels::judge::Measured;
use ulplab::kernels::{Case, Data, Inputs, OPS, Op, Outputs, Problem, Role};

/// Every case with inputs that need no model and are not large, and its problem.
fn problems(op: &str) -> Vec<(Case, Problem)> {
    let op = ulplab::kernels::find(op).unwrap();
    let sites = |_: &str| Err("no model".to_string());
    let data = Data::new(1, &sites);
    let small = |case: &Case| !matches!(case.inputs, Inputs::Site(_)) && case.dim("T") * case.dim("C") < 300_000;
    let cases = op.cases().into_iter().filter(small);
    cases
        .map(|case| {
            let problem = op.problem(&case, &data).unwrap();
            (case, problem)
        })
        .collect()
}

/// An input as f32, by its name.
fn values(problem: &Problem, name: &str) -> Vec<f32> {
    let buffer = problem.buffers.iter().find(|buffer| buffer.name == name).unwrap();
    let size = buffer.dtype.bitsize() / 8;
    ulplab::kernels::data::floats(&buffer.bytes, size)
        .into_iter()
        .map(|x| x as f32)
        .collect()
}

/// The worst of what gates hold against an output: elements that are wrong, or the error over its bound.
fn worst(problem: &Problem, outputs: Vec<(&'static str, Vec<u8>)>) -> f64 {
    let gated = |found: &Measured| ["mismatches", "inadmissible", "bound_ratio"].contains(&found.metric);
    let found = (problem.judge)(&Outputs(outputs));
    found
        .iter()
        .filter(|found| gated(found))
        .map(|found| found.value)
        .fold(0.0, f64::max)
}

/// The named outputs are accepted, and not if any of a few bits of any of them is flipped.
fn accepts_only(case: &Case, problem: &Problem, outputs: &[(&'static str, Vec<u8>)]) {
    for (name, bytes) in outputs {
        let buffer = problem.buffers.iter().find(|buffer| buffer.name == *name).unwrap();
        assert_ne!(buffer.role, Role::In, "{}: {name}", case.name);
        assert_eq!(buffer.size(), bytes.len(), "{}: {name}", case.name);
    }
    assert!(worst(problem, outputs.to_vec()) <= 1e-300, "{}", case.name);
    for output in 0..outputs.len() {
        for place in [0.0, 0.3, 0.7, 0.999] {
            let mut wrong = outputs.to_vec();
            let bytes = &mut wrong[output].1;
            let at = (bytes.len() as f64 * place) as usize;
            bytes[at] ^= 0x40;
            assert!(
                worst(problem, wrong) >= 1.0,
                "{}: {}[{at}]",
                case.name,
                outputs[output].0
            );
        }
    }
}

#[test]
fn cases_have_names_of_their_own() {
    for op in OPS {
        let mut names: Vec<String> = op.cases().into_iter().map(|case| case.name).collect();
        let count = names.len();
        names.sort();
        names.dedup();
        assert_eq!(names.len(), count, "{}", op.name());
    }
}
