//! What judgements notice: measured where it is known, and as it is stored.

use std::collections::BTreeMap;

use safetensors::Dtype;
use ulplab::ops::data::f32_bytes;
use ulplab::ops::judge::Judge;
use ulplab::ops::{Buffer, Case, Data, Inputs, Op, Problem};
use ulplab::studies::kernels::power::{self, Power};

use super::with_own_cases;

/// The factor between two sizes that are tried.
const STEP: f64 = 1.189_207_115_002_721;

/// An operation whose elements may err by this share, or, of 0, must have the expected bits.
struct Bounded(f64);

impl Op for Bounded {
    fn name(&self) -> &'static str {
        "bounded"
    }

    fn doc(&self) -> &'static str {
        "for a test"
    }

    fn cases(&self) -> Vec<Case> {
        let case = Case {
            name: "case".into(),
            keys: vec![],
            dims: vec![("T", 5), ("C", 192)],
            inputs: Inputs::Random,
            timed: false,
            large: false,
        };
        vec![case]
    }

    fn problem(&self, case: &Case, data: &Data) -> Result<Problem, String> {
        let shape = [case.dim("T"), case.dim("C")];
        let want = data.normal("y", shape[0] * shape[1]);
        let share = self.0;
        let judge = match share {
            0.0 => Judge::equal("y", Dtype::F32, &shape, f32_bytes(&want), ""),
            _ => {
                let want = want.iter().map(|x| f64::from(*x)).collect();
                Judge::within("y", Dtype::F32, &shape, want, move |_, y| share * y.abs(), "")
            }
        };
        Ok(Problem {
            buffers: vec![Buffer::output("y", Dtype::F32, &shape)],
            scalars: vec![],
            bytes: 0,
            flops: 0,
            judges: vec![judge],
            batch: None,
            runs: 1,
            large: false,
        })
    }
}

fn of(share: f64) -> Power {
    let op = Bounded(share);
    let none = |_: &str| Err("no model".to_string());
    // A case of an operation that no list has.
    let _ = Data::new(0, &none);
    let found = power::of(&op, &op.cases()).unwrap();
    assert_eq!(found.len(), 1);
    found.into_iter().next().unwrap()
}

#[test]
fn a_bound_notices_what_is_just_beyond_it() {
    for power in [-20, -12, -6] {
        let share = 2f64.powi(power);
        let found = of(share);
        let least = |kind: &str| found.faults[kind].best.unwrap();
        for kind in ["gain", "row", "block_128", "block_32"] {
            let size = least(kind);
            assert!(
                size > share * 0.999 && size <= share * STEP * 1.001,
                "{kind} under {share:e}: {size:e}"
            );
        }
        // A share of what is usual is about the same share of one number, if that is as large as most.
        let size = least("element");
        assert!(
            size > share * 0.8 && size < share * STEP * 1.3,
            "{size:e} under {share:e}"
        );
        // 2^-p of a number are up to 23 - p + 1 bits of it.
        let bits = least("bits");
        assert!(
            (bits - f64::from(24 + power)).abs() <= 1.0,
            "{bits} bits under {share:e}"
        );
        assert_eq!(found.faults["to_bf16"].best.is_some(), power < -9, "{share:e}");
    }
}

#[test]
fn what_no_fault_exceeds_is_noticed_by_nobody() {
    let found = of(1e9);
    for (kind, noticed) in &found.faults {
        assert_eq!((noticed.best, noticed.median), (None, None), "{kind}");
    }
    let text = found.text();
    assert!(
        text.contains("gain none") && text.contains("rounding to bf16 never"),
        "{text}"
    );
    let blind = power::blind(&[found, of(1e-6)]);
    let named: Vec<usize> = blind.iter().map(|(_, outputs)| outputs.len()).collect();
    assert_eq!(named, [1, 2], "{blind:?}");
}

#[test]
fn bits_that_are_compared_are_all_noticed() {
    let found = of(0.0);
    assert_eq!(found.faults.keys().collect::<Vec<_>>(), ["bit"]);
    assert_eq!(found.text(), "any changed bit");
}

/// Operations that are not measured again: a case takes half a minute. `ulplab kernels power` measures them.
const SLOW: [&str; 1] = ["decode_step"];

/// In the smallest cases judgements notice what they are stored to notice, or less.
#[test]
fn judgements_notice_what_they_did() {
    let stored = power::stored().unwrap();
    let mut cases: BTreeMap<(&str, &str), Vec<&Power>> = BTreeMap::new();
    for power in stored.iter().filter(|power| power.cases > 0) {
        cases.entry((&power.op, &power.smallest)).or_default().push(power);
    }
    let asked = |op: &str| stored.iter().any(|power| power.op == op && power.cases > 0);
    let unasked: Vec<&str> = with_own_cases().map(|op| op.name()).filter(|op| !asked(op)).collect();
    assert!(unasked.is_empty(), "{unasked:?}");
    for ((op, case), powers) in cases.into_iter().filter(|((op, _), _)| !SLOW.contains(op)) {
        let op = ulplab::ops::find(op).unwrap();
        let case = ulplab::ops::case(op, case).unwrap();
        let found = power::of(op, &[case]).unwrap();
        for before in powers {
            let name = before.name();
            let now = found.iter().find(|now| now.name() == name && now.rule == before.rule);
            let now = now.unwrap_or_else(|| panic!("{name} is not judged by {} in {}", before.rule, before.smallest));
            for (kind, noticed) in &before.faults {
                let Some(most) = noticed.smallest else { continue };
                let size = now.faults.get(kind).and_then(|now| now.smallest);
                assert!(
                    size.is_some_and(|size| size <= most * STEP * 1.001),
                    "{name}, {kind}: {most:e} was noticed in {}, and now only {size:?}; `ulplab kernels power` measures it",
                    before.smallest
                );
            }
        }
    }
}
