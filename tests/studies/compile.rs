//! Launches against the compiled code.

use ulplab::backend::cuda::cubin::Entry;
use ulplab::backend::cuda::plan::SMS;
use ulplab::backend::cuda::{Plan, Source};
use ulplab::ops;
use ulplab::studies::kernels::compile::{Launches, named_by};

/// A variant that calls one which prepares, and that one.
const CALLS: [&str; 2] = [
    r#"/*
[[variant]]
name = "a"
doc = "x"
sequence = "4(up)"
[[variant.launch]]
name = "up"
call = "packs.b"
each = { of = "4", count = 2 }
with = { w = "x[@4 % 2]", N = "C" }
*/"#,
    r#"/*
[[variant]]
name = "b"
doc = "x"
scratch = [{ name = "packed", bytes = "N * 2" }]
prepare = [{ entry = "pack", grid = ["N"], block = [128], args = ["w", "packed", "N"] }]
[[variant.launch]]
entry = "multiply"
grid = [1]
block = [128]
args = ["packed", "y", "N"]
*/"#,
];

#[test]
fn what_a_call_prepares_is_held_against_the_compiled_code() {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("rmsnorm.cu");
    std::fs::write(&file, CALLS[0]).unwrap();
    std::fs::write(folder.path().join("packs.cu"), CALLS[1]).unwrap();
    let source = Source::read(&file).unwrap();
    let op = ops::find("rmsnorm").unwrap();
    let case = named_by(op, &op.cases()[0]);
    let problem = ops::problem(op, &case).unwrap();
    let variant = &source.header.variants[0];
    let plan = Plan::new(variant, &case, SMS).unwrap().unwrap();
    assert_eq!((plan.prepare_order.len(), plan.order.len()), (2, 4));
    let mistakes = |of_pack: &[u32], of_multiply: &[u32]| {
        let entry = |parameters: &[u32]| Entry {
            registers: 32,
            spilled: 0,
            stack: 0,
            shared: 0,
            max_threads: None,
            parameters: parameters.to_vec(),
        };
        let entries = [("pack", entry(of_pack)), ("multiply", entry(of_multiply))];
        let launches = Launches {
            source: &source,
            variant,
            case: &case,
            plan: &plan,
            problem: &problem,
            entries: &entries.map(|(name, entry)| (name.to_string(), entry)).into(),
        };
        launches.mistakes()
    };
    assert_eq!(mistakes(&[8, 8, 4], &[8, 8, 4]), [""; 0]);
    let want = [
        "variant 'a', launch 'up_prepare': args has 3 arguments, and 'pack' takes 2",
        "variant 'a', launch 'up': 'up_packed[@4 % (2)]' has 8 bytes, and 'multiply' takes 4 there",
    ];
    assert_eq!(mistakes(&[8, 8], &[4, 8, 4]), want);
}
