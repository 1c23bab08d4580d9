//! What operations say of a kernel's outputs: the reference's own are accepted, changed ones are not. No GPU is needed.

#![allow(
    clippy::print_stdout,
    clippy::print_stderr,
    reason = "what was measured is shown with --nocapture"
)]

#[path = "kernels/admissible.rs"]
mod admissible;
#[path = "kernels/alarms.rs"]
mod alarms;
#[path = "kernels/batches.rs"]
mod batches;
#[path = "kernels/compressor.rs"]
mod compressor;
#[path = "kernels/decode_step.rs"]
mod decode_step;
#[path = "kernels/delta_decode.rs"]
mod delta_decode;
#[path = "kernels/delta_handover.rs"]
mod delta_handover;
#[path = "kernels/delta_prefill.rs"]
mod delta_prefill;
#[path = "kernels/delta_rounded.rs"]
mod delta_rounded;
#[path = "kernels/diagonal_ssm.rs"]
mod diagonal_ssm;
#[path = "kernels/digests.rs"]
mod digests;
#[path = "kernels/expected.rs"]
mod expected;
#[path = "kernels/experts.rs"]
mod experts;
#[path = "kernels/failures.rs"]
mod failures;
#[path = "kernels/fp4_gemm.rs"]
mod fp4_gemm;
#[path = "kernels/fp8_gemm.rs"]
mod fp8_gemm;
#[path = "kernels/hyper_head.rs"]
mod hyper_head;
#[path = "kernels/index_records.rs"]
mod index_records;
#[path = "kernels/index_scores.rs"]
mod index_scores;
#[path = "kernels/judgement.rs"]
mod judgement;
#[path = "kernels/large.rs"]
mod large;
#[path = "kernels/linear.rs"]
mod linear;
#[path = "kernels/mhc_post.rs"]
mod mhc_post;
#[path = "kernels/mhc_pre.rs"]
mod mhc_pre;
#[path = "kernels/moe_fp4.rs"]
mod moe_fp4;
#[path = "kernels/palette.rs"]
mod palette;
#[path = "kernels/power.rs"]
mod power;
#[path = "kernels/prefill.rs"]
mod prefill;
#[path = "kernels/quantize.rs"]
mod quantize;
#[path = "kernels/ranges.rs"]
mod ranges;
#[path = "kernels/record_attention.rs"]
mod record_attention;
#[path = "kernels/records.rs"]
mod records;
#[path = "kernels/repeated.rs"]
mod repeated;
#[path = "kernels/rope.rs"]
mod rope;
#[path = "kernels/router.rs"]
mod router;
#[path = "kernels/rows.rs"]
mod rows;
#[path = "kernels/sample.rs"]
mod sample;
#[path = "kernels/scale_layout.rs"]
mod scale_layout;
#[path = "kernels/sparse_attention.rs"]
mod sparse_attention;
#[path = "kernels/stand_in.rs"]
mod stand_in;
#[path = "kernels/state_transpose.rs"]
mod state_transpose;
#[path = "kernels/swap_ffn.rs"]
mod swap_ffn;
#[path = "kernels/top_k.rs"]
mod top_k;
#[path = "kernels/wgmma.rs"]
mod wgmma;

use std::collections::BTreeSet;
use std::path::Path;

use reference::paths::Model;
use safetensors::Dtype;
use ulplab::backend::cuda::plan::Named;
use ulplab::backend::cuda::{Plan, Source};
use ulplab::dataset::{Checkpoint, Manifest};
use ulplab::metrics::VIOLATIONS;
use ulplab::ops::data::{bf16_bytes, f32_bytes, f32_values};
use ulplab::ops::judge::Judge;
use ulplab::ops::{Buffer, Case, Data, Inputs, OPS, Op, Outputs, Problem, Role, Scalar, of_tensors};
use ulplab::studies::Text;
use ulplab::studies::kernels::sites;

/// The root of the repository.
const ROOT: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../..");

fn datasets() -> Manifest {
    Manifest::open(Some(&Path::new(ROOT).join("datasets"))).unwrap()
}

/// The model of 61 layers.
fn mini() -> Box<dyn Model<f32>> {
    let mut checkpoint = Checkpoint::open(&datasets().checkpoint("dsv4-mini").unwrap()).unwrap();
    checkpoint.load().unwrap()
}

/// Every case with inputs that need no model and are not timed, and its problem.
fn problems(op: &str) -> Vec<(Case, Problem)> {
    let small = |case: &Case| !case.inputs.need_model() && !case.timed;
    let cases = ulplab::ops::find(op).unwrap().cases();
    problems_of(op, cases.into_iter().filter(small))
}

/// Some cases of an operation, and their problems.
fn problems_of(op: &str, cases: impl IntoIterator<Item = Case>) -> Vec<(Case, Problem)> {
    let op = ulplab::ops::find(op).unwrap();
    let sites = |_: &str| Err("no model".to_string());
    let data = Data::new(1, &sites);
    cases
        .into_iter()
        .map(|case| {
            let problem = op.problem(&case, &data).unwrap();
            (case, problem)
        })
        .collect()
}

/// A buffer, by its name.
fn buffer<'a>(problem: &'a Problem, name: &str) -> &'a Buffer {
    problem.buffers.iter().find(|buffer| buffer.name == name).unwrap()
}

/// The bytes of an input, by its name.
fn bytes<'a>(problem: &'a Problem, name: &str) -> &'a [u8] {
    &buffer(problem, name).bytes
}

/// An input as f32, by its name.
fn values(problem: &Problem, name: &str) -> Vec<f32> {
    let buffer = buffer(problem, name);
    f32_values(&buffer.bytes, buffer.dtype)
}

/// What codes of E4M3 stand for.
fn e4m3(codes: &[u8]) -> Vec<f32> {
    let all: Vec<f32> = (0..=255).map(|code| float8::F8E4M3::from_bits(code).to_f32()).collect();
    codes.iter().map(|code| all[usize::from(*code)]).collect()
}

/// Matrices of rows with so many columns, as kernels read them: numbers, or codes of a block format with scales, and a number above
/// the scales of each `of_level` elements.
fn matrices(
    problem: &Problem,
    format: &str,
    name: &str,
    scales: &str,
    level: Option<(&str, usize)>,
    cols: usize,
) -> Vec<f32> {
    let (bits, width) = match format {
        "f32" | "bf16" => return values(problem, name),
        "fp8_b64_f32" => (8, 64),
        "mxfp4" => (4, 32),
        "nvfp4" => (4, 16),
        other => panic!("no format '{other}'"),
    };
    let (codes, scales) = (bytes(problem, name), buffer(problem, scales));
    let levels = level.map(|(name, each)| (values(problem, name), each));
    let magnitudes = [0.0, 0.5, 1.0, 1.5, 2.0, 3.0, 4.0, 6.0];
    let e2m1 = |code: u8| magnitudes[usize::from(code & 7)] * if code < 8 { 1.0 } else { -1.0 };
    let of_e4m3 = e4m3(&scales.bytes);
    let (stored, in_row) = (&scales.bytes[..], cols.div_ceil(width));
    let scale = |block: usize| match format {
        "fp8_b64_f32" => f32::from_le_bytes(stored[4 * block..][..4].try_into().unwrap()),
        "mxfp4" if stored[block] == 255 => f32::NAN,
        "mxfp4" => 2f64.powi(i32::from(stored[block]) - 127) as f32,
        _ => {
            let (levels, each) = levels.as_ref().expect("a number stands above the scales");
            let first = block / in_row * cols + block % in_row * width;
            of_e4m3[block] * levels[first / each] * (1.0 / 2688.0)
        }
    };
    let mut numbers: Vec<f32> = match bits {
        8 => e4m3(codes),
        _ => codes
            .iter()
            .flat_map(|pair| [e2m1(pair & 15), e2m1(pair >> 4)])
            .collect(),
    };
    let blocks = numbers.chunks_mut(cols).flat_map(|row| row.chunks_mut(width));
    for (at, block) in blocks.enumerate() {
        let scale = scale(at);
        block.iter_mut().for_each(|x| *x *= scale);
    }
    numbers
}

/// An input of whole numbers, by its name.
fn integers(problem: &Problem, name: &str) -> Vec<i32> {
    let bytes = bytes(problem, name).chunks_exact(4);
    bytes
        .map(|bytes| i32::from_le_bytes(bytes.try_into().unwrap()))
        .collect()
}

/// Numbers as an output has them, in bf16 or in f32.
fn stored(bf16: bool, values: &[f32]) -> Vec<u8> {
    match bf16 {
        true => bf16_bytes(values),
        false => f32_bytes(values),
    }
}

/// The elements that are not what they must be, in the output where they are most.
fn violations(problem: &Problem, outputs: Vec<(&'static str, Vec<u8>)>) -> f64 {
    let found = problem.judge(&Outputs(outputs));
    for wrong in found
        .iter()
        .filter(|found| found.metric == &VIOLATIONS && found.value != 0.0)
    {
        let failure = wrong.failure.as_ref().expect("what is wrong is said");
        assert!(
            failure.message.starts_with(wrong.output) && !failure.why.is_empty(),
            "{failure:?}"
        );
    }
    let counts = found
        .iter()
        .filter(|found| found.metric == &VIOLATIONS)
        .map(|found| found.value);
    counts.reduce(f64::max).expect("a judgement counts violations")
}

/// A bound that is not a number admits no error.
#[test]
fn a_bound_that_is_nan_admits_nothing() {
    let beyond = |bound: f64| {
        let judge = Judge::within("y", Dtype::F32, &[2], vec![1.0, 2.0], move |_, _| bound, "");
        judge.measure(&Outputs(vec![("y", f32_bytes(&[1.0, 2.5]))]))[0].value
    };
    assert_eq!([1.0, 0.1, 0.0, f64::NAN].map(beyond), [0.0, 1.0, 1.0, 1.0]);
}

/// The number that a problem passes under this name.
fn scalar(problem: &Problem, name: &str) -> f32 {
    let found = problem.scalars.iter().find_map(|(of, value)| match value {
        Scalar::F32(value) if *of == name => Some(*value),
        _ => None,
    });
    found.unwrap_or_else(|| panic!("no number '{name}'"))
}

/// The named outputs are accepted, and not if any of a few bits of any of them is flipped.
fn accepts_only(case: &Case, problem: &Problem, outputs: &[(&'static str, Vec<u8>)]) {
    for (name, bytes) in outputs {
        let buffer = buffer(problem, name);
        assert_ne!(buffer.role, Role::In, "{}: {name}", case.name);
        assert_eq!(buffer.size(), bytes.len(), "{}: {name}", case.name);
    }
    assert!(violations(problem, outputs.to_vec()) == 0.0, "{}", case.name);
    for output in 0..outputs.len() {
        for place in [0.0, 0.3, 0.7, 0.999] {
            let mut wrong = outputs.to_vec();
            let bytes = &mut wrong[output].1;
            // The byte with the exponent, in numbers of two and of four.
            let at = ((bytes.len() as f64 * place) as usize / 4 * 4 + 3).min(bytes.len() - 1);
            bytes[at] ^= 0x40;
            assert!(
                violations(problem, wrong) >= 1.0,
                "{}: {}[{at}]",
                case.name,
                outputs[output].0
            );
        }
    }
}

/// What launches name is a buffer, scratch, a scalar or a size, or a part that is there.
fn arguments_are_there(case: &Case, problem: &Problem, plan: &Plan) {
    for (step, arguments) in plan.prepare.each().chain(plan.run.each()) {
        let missing = arguments.iter().find(|argument| {
            let name = match argument {
                Named::Whole(name) => name,
                Named::Number(_) => return false,
                Named::Part(name, index) => {
                    let buffer = problem.buffers.iter().find(|buffer| buffer.name == name);
                    let scratch = || plan.scratch(name).map_or(0, |scratch| scratch.parts);
                    let parts = buffer.map_or_else(scratch, |buffer| buffer.shape[0]);
                    return !(0..parts as i64).contains(index);
                }
            };
            let parted = plan.scratch(name).is_some_and(|scratch| scratch.parts > 1);
            parted
                || !problem.buffers.iter().any(|buffer| buffer.name == name)
                    && !problem.scalars.iter().any(|(scalar, _)| scalar == name)
                    && !case.dims.iter().any(|(dim, _)| dim == name)
                    && plan.scratch(name).is_none()
        });
        assert_eq!(missing, None, "{}: {}", case.name, step.name);
    }
}

/// Operations with kernels and cases of their own, whose data and sizes tests list. The others are on a user's tensors and say what
/// draws them.
fn with_own_cases() -> impl Iterator<Item = &'static dyn Op> {
    let own = |op: &&dyn Op| of_tensors().all(|drawn| drawn.name() != op.name());
    OPS.iter().copied().filter(own)
}

/// A program finds sizes, keys and scalars by their names, beside `op`, `case` and `outputs`.
fn named_apart(case: &Case, problem: &Problem) {
    let dims = case.dims.iter().map(|(name, _)| *name);
    let scalars = problem.scalars.iter().map(|(name, _)| *name);
    let names = dims.chain(case.keys.iter().map(|(name, _)| *name)).chain(scalars);
    let mut names: Vec<&str> = names.chain(["op", "case", "outputs"]).collect();
    let count = names.len();
    names.sort_unstable();
    names.dedup();
    assert_eq!(names.len(), count, "{}: {names:?}", case.name);
}

#[test]
fn kernels_operations_come_first_and_names_are_unique() {
    let names: Vec<&str> = ulplab::ops::all().map(|op| op.name()).collect();
    let unique: BTreeSet<&&str> = names.iter().collect();
    assert_eq!(unique.len(), names.len());
    assert_eq!(ulplab::ops::find("attention").unwrap().name(), "attention");
    assert_eq!(
        ulplab::ops::find("attenton").err().unwrap(),
        "no operation 'attenton'; did you mean 'attention'?"
    );
}

#[test]
fn cases_have_names_of_their_own() {
    for op in OPS.iter() {
        let mut names: Vec<String> = op.cases().into_iter().map(|case| case.name).collect();
        let count = names.len();
        names.sort();
        names.dedup();
        assert_eq!(names.len(), count, "{}", op.name());
    }
}

/// In every case that is not large, also on what passes in a model, buffers are whole, every variant that takes it has a
/// launch, and the arguments of its launches are there.
#[test]
fn cases_and_headers_fit() {
    let model = mini();
    let ids: Vec<u32> = datasets()
        .text("alice", 4096, 512)
        .unwrap()
        .into_iter()
        .map(u32::from)
        .collect();
    let text = Text {
        model: &*model,
        ids: &ids,
    };
    let found = |pattern: &str| sites(text, pattern);
    let checkpoint = datasets().checkpoint("dsv4-mini").unwrap();
    let data = Data::new(1, &found).with_checkpoint(Some(&checkpoint));
    let folder = Path::new(ROOT).join("kernels");
    let sources = Source::read_all(&folder, &ulplab::ops::COMPOSITIONS).unwrap();
    assert_eq!(sources.len(), OPS.len(), "a .cu for each operation");
    for source in sources {
        let op = ulplab::ops::find(&source.op).unwrap();
        let mut taken = vec![0; source.header.variants.len()];
        let mut seen = BTreeSet::new();
        let mut cases = op.cases();
        // Timed cases are not made, so they must not stand for others of their kind; the smallest do.
        cases.sort_by_key(|case| (case.timed, case.dims.iter().map(|(_, size)| *size).max()));
        for case in cases {
            let plans: Vec<Option<Plan>> = source
                .header
                .variants
                .iter()
                .map(|variant| Plan::new(variant, &case, 132).unwrap())
                .collect();
            assert!(
                plans.iter().any(Option::is_some),
                "{} {}: no variant takes it",
                source.op,
                case.name
            );
            plans
                .iter()
                .zip(&mut taken)
                .for_each(|(plan, taken)| *taken += usize::from(plan.is_some()));
            // Tests of the operation make the problems of all cases that need no model; here one of each kind says what arguments there
            // are.
            let takers: Vec<bool> = plans.iter().map(Option::is_some).collect();
            let fresh = seen.insert((case.keys.clone(), case.inputs == Inputs::Edges, takers));
            if case.timed || !fresh && !case.inputs.need_model() {
                continue;
            }
            let problem = op
                .problem(&case, &data)
                .unwrap_or_else(|why| panic!("{} {}: {why}", source.op, case.name));
            named_apart(&case, &problem);
            for plan in plans.into_iter().flatten() {
                arguments_are_there(&case, &problem, &plan);
                for entry in plan.entries() {
                    let named = entry.split('_').next().unwrap();
                    assert!(source.texts().any(|(_, text)| text.contains(named)), "{entry}");
                }
            }
        }
        assert!(
            taken.iter().all(|cases| *cases > 0),
            "{}: a variant takes no case",
            source.op
        );
    }
}
