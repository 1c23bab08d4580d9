//! Launches against the compiled code.

use ulplab::backend::cuda::cubin::Entry;
use ulplab::backend::cuda::plan::SMS;
use ulplab::backend::cuda::{Plan, Source};
use ulplab::ops;
use ulplab::studies::kernels::compile::{Launches, named_by};

/// A variant that prepares.
const PREPARES: &str = r#"/*
[[variant]]
name = "a"
doc = "x"
scratch = [{ name = "packed", bytes = "C * 2" }]
prepare = [{ name = "pack", entry = "pack", grid = ["C"], block = [128], args = ["x", "packed", "C"] }]
[[variant.launch]]
entry = "multiply"
grid = [1]
block = [128]
args = ["packed", "y", "C + 1"]
*/"#;

#[test]
fn launches_are_held_against_the_compiled_code() {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("rmsnorm.cu");
    std::fs::write(&file, PREPARES).unwrap();
    let source = Source::read(&file, &ulplab::ops::COMPOSITIONS).unwrap();
    let op = ops::find("rmsnorm").unwrap();
    let case = named_by(op, &op.cases()[0]);
    let problem = ops::problem(op, &case).unwrap();
    let variant = &source.header.variants[0];
    let plan = Plan::new(variant, &case, SMS).unwrap().unwrap();
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
        "variant 'a', launch 'pack': args has 3 arguments, and 'pack' takes 2",
        "variant 'a', launch 'multiply': 'packed' has 8 bytes, and 'multiply' takes 4 there",
    ];
    assert_eq!(mistakes(&[8, 8], &[4, 8, 4]), want);
}
