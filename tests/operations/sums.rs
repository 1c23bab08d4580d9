//! Kernels that state their accumulator: right sums in any legal order are inside, others are not.

use ulplab_core::accumulator::{Factor, Operand, WGMMA_E4M3};
use ulplab_core::formats::E4M3;
use ulplab_operations::ops::sums::{ACCUMULATOR, ACCUMULATORS};
use ulplab_operations::ops::{self, Case, Data, Inputs, OPS, Op, Outputs, Problem};

fn operation(name: &str) -> &'static dyn Op {
    *OPS.iter().find(|op| op.name() == name).unwrap()
}

fn stated(op: &str, name: &str, accumulator: &str) -> (Case, Problem) {
    let op = operation(op);
    let mut case = ops::case(op, name).unwrap();
    case.keys.push((ACCUMULATOR, accumulator.into()));
    let none = |pattern: &str| Err(format!("no model at {pattern}"));
    let problem = op.problem(&case, &Data::new(3, &none)).unwrap();
    (case, problem)
}

fn floats(bytes: &[u8]) -> Vec<f32> {
    bytes.as_chunks().0.iter().map(|x| f32::from_le_bytes(*x)).collect()
}

fn bytes<'a>(problem: &'a Problem, name: &str) -> &'a [u8] {
    let found = problem.buffers.iter().find(|buffer| buffer.name == name);
    &found.unwrap().bytes
}

/// y of `fp8_gemm`; `of` turns a code into a factor, and `dot` sums a block of 128 columns.
fn product<F>(
    case: &Case,
    problem: &Problem,
    (of, dot): (impl Fn(u8) -> F, impl Fn(&[F], &[F]) -> f32),
    shift: usize,
) -> Outputs {
    let [b, n, k] = ["B", "N", "K"].map(|dim| case.dim(dim));
    let [x, w] = ["x", "w"].map(|name| bytes(problem, name).iter().map(|code| of(*code)).collect::<Vec<F>>());
    let [of_x, of_w] = ["x_scale", "w_scale"].map(|name| floats(bytes(problem, name)));
    let blocks = k.div_ceil(128);
    let mut y = Vec::new();
    for at in 0..b * n {
        let (row, col) = (at / n, at % n);
        let mut sum = 0.0f32;
        for block in 0..blocks {
            let columns = block * 128..(block * 128 + 128).min(k);
            let part = dot(&x[row * k..][columns.clone()], &w[col * k..][columns]);
            let scale = of_x[row * blocks + (block + shift) % blocks] * of_w[col / 128 * blocks + block];
            sum += scale * part;
        }
        y.extend(sum.to_le_bytes());
    }
    Outputs(vec![("y", y)])
}

fn decoded(code: u8) -> f32 {
    E4M3.decode(code.into())
}

/// Sums in f32 of several lanes, one after the other in each; the lanes are added at the end.
fn in_f32(lanes: usize) -> (fn(u8) -> f32, impl Fn(&[f32], &[f32]) -> f32) {
    let dot = move |x: &[f32], w: &[f32]| {
        let mut sums = vec![0.0f32; lanes];
        for (x, w) in x.chunks(lanes).zip(w.chunks(lanes)) {
            sums.iter_mut().zip(x).zip(w).for_each(|((sum, x), w)| *sum += x * w);
        }
        sums.into_iter().rev().fold(0.0, |sum, lane| sum + lane)
    };
    (decoded, dot)
}

/// Sums by Hopper's tensor cores, steps from the last to the first or from the first to the last.
fn by_tensor_cores(backwards: bool) -> (impl Fn(u8) -> Factor, impl Fn(&[Factor], &[Factor]) -> f32) {
    let dot = move |x: &[Factor], w: &[Factor]| {
        let steps = x.chunks(32).zip(w.chunks(32));
        let step = |sum, (x, w): (&[Factor], &[Factor])| WGMMA_E4M3.dot(x, w, sum);
        match backwards {
            true => steps.rev().fold(0.0, step),
            false => steps.fold(0.0, step),
        }
    };
    (|code| Operand::E4m3.factor(code.into()), dot)
}

/// Violations, and elements with other bits than the definition's.
fn found(problem: &Problem, outputs: &Outputs) -> (f64, Option<f64>) {
    let measured = problem.judge(outputs);
    let value = |name: &str| {
        let found = measured.iter().find(|measured| measured.metric.name == name);
        found.map(|measured| measured.value)
    };
    (value("violations").unwrap(), value("unequal"))
}

const CASES: [&str; 4] = [
    "f32.b7.192x640",
    "f32.b33.200x1104",
    "f32.b65.129x2064",
    "f32.b5.100x8208",
];

#[test]
fn sums_in_f32_are_inside_in_any_order_and_those_of_tensor_cores_are_not() {
    for name in CASES {
        let (case, problem) = stated("fp8_gemm", name, "f32");
        for lanes in [1, 2, 32, 128] {
            let (wrong, unequal) = found(&problem, &product(&case, &problem, in_f32(lanes), 0));
            assert_eq!(wrong, 0.0, "{name} {lanes}");
            assert!(unequal.unwrap() > 0.0, "{name}: the definition's bits are Hopper's");
        }
        let (wrong, _) = found(&problem, &product(&case, &problem, by_tensor_cores(true), 0));
        assert!(wrong > 0.0, "{name}: 13 bits are not f32");
        let (wrong, _) = found(&problem, &product(&case, &problem, in_f32(1), 1));
        assert!(wrong > 0.0, "{name}: scales of the next block");
    }
}

#[test]
fn sums_of_tensor_cores_are_inside_in_any_order_of_steps() {
    for name in CASES {
        let (case, problem) = stated("fp8_gemm", name, "wgmma");
        for backwards in [false, true] {
            let (wrong, unequal) = found(&problem, &product(&case, &problem, by_tensor_cores(backwards), 0));
            assert_eq!(wrong, 0.0, "{name} {backwards}");
            assert!(unequal.is_some());
        }
        let (wrong, _) = found(&problem, &product(&case, &problem, in_f32(1), 0));
        assert_eq!(wrong, 0.0, "{name}: sums in f32 are nearer");
        let (of, dot) = in_f32(1);
        let half = |x: &[f32], w: &[f32]| dot(&x[..x.len() / 2], &w[..w.len() / 2]);
        let (wrong, _) = found(&problem, &product(&case, &problem, (of, half), 0));
        assert!(wrong > 0.0, "{name}: half of the columns");
    }
}

/// Without a statement, and with `defined`, bits are compared; every operation that defines sums takes every statement.
#[test]
fn bits_are_compared_where_the_definition_is_stated() {
    let (case, problem) = stated("fp8_gemm", CASES[0], "defined");
    assert_eq!(found(&problem, &product(&case, &problem, in_f32(1), 0)).1, None);
    assert!(found(&problem, &product(&case, &problem, in_f32(1), 0)).0 > 0.0);
    let defining: Vec<&str> = OPS.iter().filter(|op| op.defines_sums()).map(|op| op.name()).collect();
    assert_eq!(defining, ["fp4_gemm", "fp8_gemm", "index_records", "moe_fp4"]);
    for name in defining {
        let op = operation(name);
        let cases = op.cases();
        let small = cases.iter().filter(|case| !case.timed && case.inputs == Inputs::Random);
        let size = |case: &&Case| case.dims.iter().map(|(_, size)| *size).product::<i64>();
        let small = small.min_by_key(size).unwrap();
        for (accumulator, ..) in ACCUMULATORS {
            let (_, problem) = stated(name, &small.name, accumulator);
            let whys: Vec<&str> = problem.judges.iter().map(|judge| &*judge.why).collect();
            assert_eq!(
                whys.iter().any(|why| why.contains("in any order")),
                accumulator != "defined" && name != "moe_fp4"
            );
        }
    }
}
