//! The run with rows repeated: when it is made, and what it says.

use std::cell::Cell;

use safetensors::Dtype;
use ulplab::ops::checks::{Band, Differing, Repeated};
use ulplab::ops::guards::{Guarded, judged};
use ulplab::ops::judge::Judge;
use ulplab::ops::{Batch, Buffer, Case, Data, Inputs, OPS, Op, Outputs, Problem, Role, problem_with};
use ulplab_core::error::Result;

use super::{delta_decode, delta_prefill, problems, records, scale_layout, values, with_own_cases};

/// A kernel that copies rows; with many rows, those from `lost` on are wrong.
struct Copies {
    problem: Problem,
    lost: Option<u64>,
    wrong: bool,
    repeated: Cell<usize>,
}

impl Copies {
    fn new(lost: Option<u64>, wrong: bool) -> Self {
        let x = Buffer::f32("x", &[3, 2], &[1.0, 2.0, 3.0, 4.0, 5.0, 6.0]);
        let judges = vec![Judge::equal("y", Dtype::F32, &[3, 2], x.bytes.clone(), "a copy")];
        let buffers = vec![x, Buffer::output("y", Dtype::F32, &[3, 2])];
        let problem = Problem {
            buffers,
            scalars: vec![],
            bytes: 48,
            flops: 0,
            judges,
            batch: Some(Batch::new("B", &["x", "y"])),
            runs: 1,
            large: true,
        };
        Self {
            problem,
            lost,
            wrong,
            repeated: Cell::new(0),
        }
    }
}

impl Guarded for Copies {
    fn problem(&self) -> &Problem {
        &self.problem
    }

    fn run(&self, _: u8) -> Result<Outputs> {
        let mut y = self.problem.buffers[0].bytes.clone();
        y[0] ^= u8::from(self.wrong);
        Ok(Outputs(vec![("y", y)]))
    }

    fn replayed(&self, _: u8) -> Result<Option<Outputs>> {
        Ok(None)
    }

    fn on_rows(&self, _: &[usize]) -> Result<Option<Outputs>> {
        Ok(None)
    }

    fn repeated(&self, times: usize, _: &Outputs) -> Result<Option<Repeated>> {
        self.repeated.set(times);
        let rows = 3 * times;
        let lost = self.lost.map(|row| Differing {
            output: "y",
            count: 8 * (rows as u64 - row),
            first: 8 * row,
            row: 8,
        });
        Ok(Some(Repeated {
            rows,
            bytes: 8 * rows as u64,
            differing: lost.into_iter().collect(),
            bands: vec![],
        }))
    }

    fn bands(&self) -> Result<Vec<Band>> {
        Ok(vec![])
    }

    fn read(&self, buffer: &Buffer) -> Result<Vec<u8>> {
        Ok(buffer.bytes.clone())
    }
}

/// Number of wrong bytes, of all bytes, and what is said, if rows were repeated.
fn large(kernel: &Copies) -> Option<(f64, u64, Option<String>)> {
    let checked = judged(kernel, true).unwrap();
    let found = checked.measured.into_iter().find(|found| found.output == "large")?;
    Some((found.value, found.n, found.failure.map(|failure| failure.message)))
}

#[test]
fn rows_that_are_lost_far_away_are_noticed() {
    let right = Copies::new(None, false);
    let (wrong, bytes, said) = large(&right).unwrap();
    assert!(wrong == 0.0 && said.is_none());
    // 2³² floats would be more rows than `int` counts; 2³¹ are 8 GiB.
    assert!(bytes > 8 << 30 && bytes < (8 << 30) + 100, "{bytes}");

    let row = (1u64 << 29) + 1;
    let (wrong, _, said) = large(&Copies::new(Some(row), false)).unwrap();
    let rows = 3 * right.repeated.get() as u64;
    assert_eq!(wrong, 8.0 * (rows - row) as f64);
    let said = said.unwrap();
    assert!(
        said.contains(&format!("with {rows} rows")) && said.contains("the first at byte 4294967304, in row 536870913"),
        "{said}"
    );
}

#[test]
fn a_kernel_that_is_wrong_already_is_not_run_again() {
    let wrong = Copies::new(None, true);
    assert_eq!(large(&wrong), None);
    assert_eq!(wrong.repeated.get(), 0);
}

/// Operations of which no rows are repeated, and why their addresses cannot be large, or where they are.
const WITHOUT: [(&str, &str); 2] = [
    (
        "decode_step",
        "each layer has the rows of its cache behind those of the layer before, so that repeated rows are not whole buffers",
    ),
    (
        "delta_handover",
        "its kernels are those of delta_prefill, state_transpose and delta_decode, on their buffers",
    ),
];

/// Why there are no large addresses for the keys of a case, though there are for others of the operation.
fn without(op: &str, case: &Case) -> Option<&'static str> {
    match op {
        "scale_layout" if case.key("ends") != "one" => Some(
            "tiles that are padded, or of several groups of columns, are not the same tiles again; kernels are those of one group",
        ),
        _ => None,
    }
}

/// The problem of a case and the large one, if the case is that of its keys of which rows are repeated.
fn repeated(op: &dyn Op, case: &Case, data: &Data) -> Option<(Problem, Problem)> {
    let problem = problem_with(op, case, data).unwrap();
    let times = problem.times_to_large().filter(|_| problem.large)?;
    let (_, large) = problem.repeated(case, times)?;
    Some((problem, large))
}

#[test]
fn every_operation_has_large_addresses_for_all_its_keys_or_a_reason() {
    let none = |_: &str| Err("no model".to_string());
    let data = Data::new(1, &none);
    for (op, _) in WITHOUT {
        let found = OPS.iter().find(|found| found.name() == op).unwrap();
        let random = |case: &Case| case.inputs == Inputs::Random && !case.timed;
        let cases: Vec<Case> = found.cases().into_iter().filter(random).collect();
        assert!(
            cases.iter().all(|case| repeated(*found, case, &data).is_none()),
            "{op} needs no reason"
        );
    }
    let with = with_own_cases().filter(|op| WITHOUT.iter().all(|(name, _)| *name != op.name()));
    for op in with {
        let random = |case: &Case| case.inputs == Inputs::Random && !case.timed && without(op.name(), case).is_none();
        let cases: Vec<Case> = op.cases().into_iter().filter(random).collect();
        let mut keys: Vec<_> = cases.iter().map(|case| &case.keys).collect();
        keys.sort();
        keys.dedup();
        assert!(!keys.is_empty(), "{}", op.name());
        for keys in keys {
            let large = cases.iter().filter(|case| case.keys == *keys && case.large);
            let large: Vec<&Case> = large.collect();
            assert!(
                !large.is_empty(),
                "{} {keys:?}: no rows are repeated, and no reason is stated",
                op.name()
            );
            for case in large {
                let Some((problem, large)) = repeated(op, case, &data) else {
                    panic!("{} {}: no rows are repeated", op.name(), case.name);
                };
                assert!(large.passes_32_bits(), "{} {}", op.name(), case.name);
                // What is read 2³² bytes too early must be something else.
                for (once, large) in problem.buffers.iter().zip(&large.buffers) {
                    let same = large.size() > 1 << 32 && (1 << 32) % once.size() == 0;
                    let name = once.name;
                    assert!(once.role == Role::Out || !same, "{} {}: '{name}'", op.name(), case.name);
                }
            }
        }
    }
}

/// Buffers that are large where rows of a case are repeated: more elements, or bytes of pools, than 32 bits count.
#[test]
fn rows_of_x_and_pools_pass_what_32_bits_count() {
    let none = |_: &str| Err("no model".to_string());
    let data = Data::new(1, &none);
    for (op, case, buffers) in [
        ("rmsnorm", "f32.random.1037x1024", &["x", "y"][..]),
        ("rope", "bf16.forward.all_channels", &["x"]),
        ("mhc_post", "f32.b7.64", &["x"]),
        ("state_transpose", "f32.odd", &["x", "y"]),
        ("state_transpose", "f32.chunks", &["x", "y"]),
        ("linear", "f32.f32.b3.33x4x72", &["x"]),
        ("linear", "f32.f32.b3.1x5000x24", &["y"]),
        ("wgmma", "e4m3.n8.random", &["a", "d"]),
        (
            "record_attention",
            "v4_fp8.bf16.b3.h2.w64.k60",
            &["window_pages", "pages"],
        ),
        ("index_records", "index_mxfp4.b7.h64.99", &["q", "pages"]),
    ] {
        let op = OPS.iter().find(|found| found.name() == op).unwrap();
        let found = ulplab::ops::case(*op, case).unwrap();
        let (problem, large) = repeated(*op, &found, &data).unwrap();
        for name in buffers {
            let place = problem.buffers.iter().position(|buffer| buffer.name == *name).unwrap();
            let [once, all] = [&problem, &large].map(|of| of.buffers[place].shape.iter().product::<usize>());
            // So a whole repetition lies behind.
            assert!(
                all - once >= 1 << 32,
                "{} {case}: {all} elements of '{name}'",
                op.name()
            );
        }
    }
}

/// A problem with the contents of its buffers in full.
fn in_full(problem: Problem) -> Problem {
    let in_full = |buffer: &Buffer| Buffer {
        bytes: buffer.bytes.iter().copied().cycle().take(buffer.size()).collect(),
        ..buffer.clone()
    };
    Problem {
        buffers: problem.buffers.iter().map(in_full).collect(),
        ..problem
    }
}

/// Whether `run` gives, on all rows of the cases that are repeated, three times, what it gives on them once, three times.
fn gives_the_same_thrice(op: &str, run: impl Fn(&Case, &Problem) -> Vec<(&'static str, Vec<u8>)>) {
    let mut cases = 0;
    for (case, problem) in problems(op) {
        let Some((large, of)) = problem
            .repeated(&case, 3)
            .filter(|_| case.inputs == Inputs::Random && !case.timed)
        else {
            continue;
        };
        cases += 1;
        let batch = problem.batch.as_ref().unwrap();
        let thrice = |(name, bytes): (&'static str, Vec<u8>)| {
            let parts = batch.parts(name, bytes.len());
            (name, parts.map(|part| bytes[part].repeat(3)).concat())
        };
        let once = run(&case, &problem).into_iter().map(thrice);
        assert!(once.eq(run(&large, &in_full(of))), "{op} {}", case.name);
    }
    assert!(cases > 1, "{op}");
}

#[test]
fn repeated_sequences_have_tokens_and_states_of_their_own() {
    let prefill = |case: &Case, problem: &Problem| delta_prefill::prefill(case, problem, delta_prefill::Mistake::None);
    gives_the_same_thrice("delta_prefill", prefill);
    let decode = |case: &Case, problem: &Problem| delta_decode::decoded(case, problem, delta_decode::Mistake::None);
    gives_the_same_thrice("delta_decode", decode);
}

#[test]
fn repeated_tokens_have_pages_of_their_own() {
    let written = |case: &Case, problem: &Problem| {
        let x = values(problem, "x");
        vec![("pages", records::written(case, problem, &x))]
    };
    gives_the_same_thrice("record_write", written);
    gives_the_same_thrice("record_read", |case, problem| {
        vec![("out", records::read(case, problem))]
    });
}

#[test]
fn repeated_rows_have_tiles_of_their_own() {
    gives_the_same_thrice("scale_layout", |case, problem| {
        vec![("y", scale_layout::tiled(case, problem).0)]
    });
}
