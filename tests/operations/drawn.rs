//! Operations on tensors of a user, judged as those of kernels are: right outputs pass, and every planted fault is noticed.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::LazyLock;

use half::{bf16, f16};
use safetensors::Dtype;
use ulplab_operations::expected::{Call, Given, Kind, OPERATIONS, Operation, Tensor};
use ulplab_operations::ops::{self, Buffer, Case, Data, Op, Outputs, Problem, Role};

fn drawn() -> impl Iterator<Item = &'static Operation> {
    OPERATIONS.iter().copied().filter(|operation| operation.cases.is_some())
}

fn problem(operation: &'static Operation, case: &Case) -> Problem {
    let none = |pattern: &str| Err(format!("no model at {pattern}"));
    operation.problem(case, &Data::new(7, &none)).unwrap()
}

/// Every operation with its cases and their problems, small cases first: what a small one shows need not be computed in a large one.
static PROBLEMS: LazyLock<Vec<(&Operation, Vec<(Case, Problem)>)>> = LazyLock::new(|| {
    let problems = |operation: &'static Operation| {
        let mut cases = operation.cases();
        cases.sort_by_key(|case| case.dims.iter().map(|(_, size)| *size).product::<i64>());
        let problem = |case| {
            let problem = problem(operation, &case);
            (case, problem)
        };
        (operation, cases.into_iter().map(problem).collect())
    };
    drawn().map(problems).collect()
});

fn bytes(values: &[f64], dtype: Dtype) -> Vec<u8> {
    let bytes = |x: &f64| match dtype {
        Dtype::BF16 => bf16::from_f32(*x as f32).to_le_bytes().to_vec(),
        Dtype::F16 => f16::from_f32(*x as f32).to_le_bytes().to_vec(),
        _ => (*x as f32).to_le_bytes().to_vec(),
    };
    values.iter().flat_map(bytes).collect()
}

fn numbers(buffer: &Buffer) -> Vec<f64> {
    let tensor = ulplab_core::tensorfile::Tensor {
        name: buffer.name,
        dtype: buffer.dtype,
        shape: &buffer.shape,
        bytes: &buffer.bytes,
    };
    tensor.to_f64().unwrap()
}

/// The call that a program reads from a problem's file: buffers, scalars, and words among the keys.
fn call(operation: &'static Operation, case: &Case, problem: &Problem, dtype: Dtype) -> Call {
    let inputs = problem.buffers.iter().filter(|buffer| buffer.role == Role::In);
    let tensors = inputs.map(|buffer| {
        let tensor = Tensor {
            shape: buffer.shape.clone(),
            data: numbers(buffer),
        };
        (buffer.name.to_string(), Given::Tensor(tensor))
    });
    let mut given: BTreeMap<String, Given> = tensors.collect();
    for (name, scalar) in &problem.scalars {
        let ops::Scalar::F32(value) = scalar else {
            panic!("{name}")
        };
        given.insert(name.to_string(), Given::Number((*value).into()));
    }
    let words = operation
        .takes
        .iter()
        .filter(|takes| matches!(takes.kind, Kind::Word(_)));
    for takes in words {
        if let Some((_, word)) = case.keys.iter().find(|(key, _)| *key == takes.name) {
            given.insert(takes.name.into(), Given::Word(word.clone()));
        }
    }
    Call::new(operation, given, dtype).unwrap()
}

/// Outputs of a call in the types of the problem's, wrong elements of each.
fn wrong(operation: &'static Operation, case: &Case, problem: &Problem, fault: Option<&'static str>) -> f64 {
    let dtype = problem.judges[0].dtype;
    let call = call(operation, case, problem, dtype).with(fault, None);
    let Ok(outputs) = (operation.compute)(&call) else {
        return 0.0;
    };
    let fits =
        |(output, judge): (&ulplab_operations::expected::Output, &ops::judge::Judge)| output.shape == judge.shape;
    if !outputs.iter().zip(&problem.judges).all(fits) {
        return 0.0;
    }
    let outputs = outputs.iter().map(|output| (output.name, bytes(&output.value, dtype)));
    let measured = problem.judge(&Outputs(outputs.collect()));
    let violations = measured.iter().filter(|measured| measured.metric.name == "violations");
    violations.map(|measured| measured.value).sum()
}

#[test]
fn right_outputs_pass_in_every_case() {
    for (operation, cases) in &*PROBLEMS {
        assert!(cases.len() >= 4, "{}", operation.name);
        let names: BTreeSet<&str> = cases.iter().map(|(case, _)| case.name.as_str()).collect();
        assert_eq!(names.len(), cases.len(), "{}", operation.name);
        for (case, problem) in cases {
            assert!(problem.judges.iter().all(|judge| !judge.why.is_empty()));
            assert_eq!(
                wrong(operation, case, problem, None),
                0.0,
                "{} {}",
                operation.name,
                case.name
            );
        }
    }
}

/// Faults that no case shows: sequences one behind the other, batches of matrices, decays of each channel and scores that a bias in bf16
/// would exchange are not drawn.
const UNSEEN: [(&str, &str); 7] = [
    ("attention", "first_count"),
    ("attention", "next_start"),
    ("attention", "unused_values"),
    ("gated_delta", "decay_on_values"),
    ("gated_delta", "state_carried_over"),
    ("matmul", "batch_of_first"),
    ("moe", "bias_in_bf16"),
];

#[test]
fn every_fault_is_noticed_in_some_case() {
    let mut unseen = Vec::new();
    for (operation, cases) in &*PROBLEMS {
        let mut left: BTreeSet<&'static str> = operation.faults.iter().map(|fault| fault.name).collect();
        for (case, problem) in cases {
            left.retain(|fault| wrong(operation, case, problem, Some(fault)) == 0.0);
        }
        unseen.extend(left.into_iter().map(|fault| (operation.name, fault)));
    }
    assert_eq!(unseen, UNSEEN);
}

/// A softmax in f32 as anyone writes it, not from the operation's own formula.
#[test]
fn a_plain_softmax_in_f32_passes() {
    let operation = Operation::find("softmax").unwrap();
    for case in operation
        .cases()
        .iter()
        .filter(|case| case.key("out") == "f32" && case.key("dtype") == "f32")
    {
        let problem = problem(operation, case);
        let x: Vec<f32> = numbers(&problem.buffers[0]).iter().map(|x| *x as f32).collect();
        let scale = case.number("scale", 1.0);
        let row = |x: &[f32]| {
            let most = x.iter().fold(f32::MIN, |most, x| most.max(*x));
            let powers: Vec<f32> = x.iter().map(|x| ((x - most) * scale).exp()).collect();
            let sum: f32 = powers.iter().sum();
            powers.into_iter().map(move |x| f64::from(x / sum)).collect::<Vec<_>>()
        };
        let y: Vec<f64> = x.chunks(case.dim("C")).flat_map(row).collect();
        let measured = problem.judge(&Outputs(vec![("p", bytes(&y, Dtype::F32))]));
        assert_eq!(measured[0].value, 0.0, "{}: {measured:?}", case.name);
    }
}
/// A program whose errors are each within their bounds, but too large together, as weights that are divided before they are rounded
/// leave them, fails; one with smaller errors passes.
#[test]
fn errors_of_coded_weights_are_judged_together() {
    let operation = Operation::find("attention").unwrap();
    let mut case = ops::case(&operation, "p.e4m3").unwrap();
    for (name, size) in &mut case.dims {
        *size = match *name {
            "T" | "S" => 64,
            _ => *size,
        };
    }
    let problem = problem(operation, &case);
    let call = call(operation, &case, &problem, Dtype::F32);
    let outputs = (operation.compute)(&call).unwrap();
    let left = |deviations: f64| {
        let moved = |output: &ulplab_operations::expected::Output| {
            let signs = [1.0, -1.0].into_iter().cycle();
            let spread = output.spread.iter().chain(std::iter::repeat(&0.0));
            let moved = output.value.iter().zip(&output.error).zip(spread).zip(signs);
            let moved = moved.map(|(((x, error), spread), sign)| x + sign * (deviations * spread).min(0.9 * error));
            (output.name, bytes(&moved.collect::<Vec<_>>(), Dtype::F32))
        };
        problem.judge(&Outputs(outputs.iter().map(moved).collect()))
    };
    let failed = |deviations| left(deviations).into_iter().find_map(|measured| measured.failure);
    assert_eq!(failed(0.5), None);
    let said = failed(4.0).unwrap().message;
    assert!(
        said.starts_with("o: errors are large: their root mean square is"),
        "{said}"
    );
}
