//! The run with rows repeated: when it is made, and what it says.

use std::cell::Cell;

use safetensors::Dtype;
use ulplab::ops::checks::{Band, Differing, Repeated};
use ulplab::ops::guards::{Guarded, judged};
use ulplab::ops::judge::Judge;
use ulplab::ops::{Batch, Buffer, Case, Data, Inputs, OPS, Outputs, Problem, problem_with};
use ulplab_core::error::Result;

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
    // 2³¹ floats are 8 GiB.
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

/// The largest magnitude of a tensor depends on all of its rows.
fn of_all_rows(op: &str, case: &Case) -> bool {
    op == "quantize" && case.dim("FIND") == 1
}

/// Operations whose rows depend on each other, share a state, or are not the first dimension of their buffers.
const WITHOUT: [&str; 9] = [
    "decode_step",
    "delta_decode",
    "delta_handover",
    "delta_prefill",
    "diagonal_ssm",
    "record_write",
    "scale_layout",
    "swap_ffn",
    "wgmma",
];

#[test]
fn every_operation_of_rows_has_large_addresses_for_all_its_keys() {
    let none = |_: &str| Err("no model".to_string());
    let data = Data::new(1, &none);
    for op in OPS.iter().filter(|op| !WITHOUT.contains(&op.name())) {
        let random = |case: &Case| case.inputs == Inputs::Random && !case.timed && !of_all_rows(op.name(), case);
        let cases: Vec<Case> = op.cases().into_iter().filter(random).collect();
        let mut keys: Vec<_> = cases.iter().map(|case| &case.keys).collect();
        keys.sort();
        keys.dedup();
        assert!(!keys.is_empty(), "{}", op.name());
        for keys in keys {
            let most = cases.iter().filter(|case| case.keys == *keys).find_map(|case| {
                let problem = problem_with(*op, case, &data).unwrap();
                let times = problem.times_to_large().filter(|_| problem.large)?;
                let (_, large) = problem.repeated(case, times).unwrap();
                large.buffers.iter().map(Buffer::size).max()
            });
            assert!(most > Some(1 << 32), "{} {keys:?}: {most:?} bytes", op.name());
        }
    }
}
