//! Kernels in the place of the reference's operations, here played by code on the CPU.

use std::path::Path;
use std::sync::{Arc, Mutex};

use reference::ops::hyper_connection::HyperConnection;
use reference::paths::{Input, Model};
use reference::{Numerics, Operations, Plain, Tensor};
use ulplab::backend::cuda::{Plan, Source};
use ulplab::experiment::Step;
use ulplab::formats::{Encoded, RECORDS, codec};
use ulplab::ops::call::{CALLED, Call, Runner, StandIn, Type};
use ulplab::ops::data::{bf16_bytes, f32_bytes, round_to_bf16};
use ulplab::ops::{Outputs, Scalar};
use ulplab::studies::model::Recipe;

use super::{arguments_are_there, mini, stored, values};

/// Does what kernels do, from the buffers of the calls alone, and remembers the calls.
#[derive(Clone, Default)]
struct Cpu {
    /// Exchanges cosines and sines.
    fault: bool,
    /// Fails at this operation.
    fails: &'static str,
    ops: Vec<String>,
    calls: Arc<Mutex<Vec<Call>>>,
    written: Arc<Mutex<Option<Encoded>>>,
}

impl Runner for Cpu {
    fn ops(&self) -> &[String] {
        &self.ops
    }

    fn run(&self, call: Call) -> Result<Outputs, String> {
        if call.op == self.fails {
            return Err("no such card".into());
        }
        let dim = |name| call.case.dim(name);
        let input = |name| values(&call.problem, name);
        let scalar = |name| match call.problem.scalars.iter().find(|(scalar, _)| *scalar == name) {
            Some((_, Scalar::F32(value))) => *value,
            other => panic!("{name}: {other:?}"),
        };
        let bf16 = call
            .case
            .keys
            .iter()
            .any(|(key, dtype)| *key == "dtype" && dtype == "bf16");
        let write = |x: &[f32]| stored(bf16, x);
        let outputs = match call.op {
            "rmsnorm" => {
                let mut x = Tensor::new([dim("T"), dim("C")], input("x"));
                Plain.rmsnorm(&mut x, Some(&input("weight")), scalar("eps"));
                vec![("y", write(&x.data))]
            }
            "rope" => vec![("x", write(&self.turned(&call)))],
            "mhc_pre" => {
                let projection = Tensor::new([24, 4 * dim("C")], input("fn"));
                let scale = input("scale");
                let mixer = HyperConnection {
                    projection,
                    base: input("base"),
                    scale: [scale[0], scale[1], scale[2]],
                    streams: 4,
                    iterations: 20,
                    norm_eps: scalar("norm_eps"),
                    eps: scalar("eps"),
                };
                let x = Tensor::new([dim("T"), 4, dim("C")], input("x"));
                let (y, mixing) = Plain.mhc_pre(&mixer, &x, &input("weight"), scalar("norm_eps"));
                let (post, comb) = (f32_bytes(&mixing.post.data), f32_bytes(&mixing.comb.data));
                vec![("y", bf16_bytes(&y.data)), ("post", post), ("comb", comb)]
            }
            "swiglu" => vec![("y", write(&Plain.swiglu(&input("gate_up"), dim("C"), scalar("limit"))))],
            "record_write" => {
                let tokens = codec(call.case.key("record"))?.encode(&input("x"), dim("C"));
                let pages = tokens.part("pages").to_vec();
                *self.written.lock().unwrap() = Some(tokens);
                vec![("pages", pages)]
            }
            "record_read" => {
                let tokens = self.written.lock().unwrap().take().unwrap();
                let pages = call.problem.buffers.iter().find(|buffer| buffer.name == "pages");
                assert_eq!(pages.unwrap().bytes, tokens.part("pages"));
                let mut out = vec![0.0; tokens.rows * dim("C")];
                codec(call.case.key("record"))?.decode(&tokens, &mut out);
                out.truncate(dim("T") * dim("C"));
                vec![("out", f32_bytes(&out))]
            }
            op => panic!("no operation {op}"),
        };
        self.calls.lock().unwrap().push(call);
        Ok(Outputs(outputs))
    }
}

impl Cpu {
    fn of(ops: &[&str]) -> Self {
        Self {
            ops: ops.iter().map(ToString::to_string).collect(),
            ..Self::default()
        }
    }

    fn turned(&self, call: &Call) -> Vec<f32> {
        let [heads, channels, r] = ["H", "D", "R"].map(|name| call.case.dim(name));
        let [mut x, mut cos, mut sin] = ["x", "cos", "sin"].map(|name| values(&call.problem, name));
        if self.fault {
            std::mem::swap(&mut cos, &mut sin);
        }
        let sign = if call.case.key("direction") == "inverse" {
            -1.0
        } else {
            1.0
        };
        for (row, x) in x.chunks_exact_mut(channels).enumerate() {
            for (i, pair) in x[channels - r..].chunks_exact_mut(2).enumerate() {
                let at = row / heads * (r / 2) + i;
                let (cos, sin) = (cos[at], sign * sin[at]);
                (pair[0], pair[1]) = (pair[0] * cos - pair[1] * sin, pair[1] * cos + pair[0] * sin);
            }
        }
        x
    }
}

struct With<'a>(&'a StandIn);

impl Numerics<f32> for With<'_> {
    fn operations(&self) -> &dyn Operations<f32> {
        self.0
    }
}

fn logits(model: &dyn Model<f32>, numerics: &mut dyn Numerics<f32>) -> Tensor<f32> {
    let ids: Vec<u32> = (0..40).map(|i| (i * 37 + 65) % 128).collect();
    let mut state = model.state(Vec::new()).unwrap();
    model.run(&mut *state, Input::Ids(&ids), numerics).unwrap()
}

fn relative(got: &Tensor<f32>, want: &Tensor<f32>) -> f64 {
    let square = |x: f32| f64::from(x).powi(2);
    let error: f64 = got.data.iter().zip(&want.data).map(|(a, b)| square(a - b)).sum();
    (error / want.data.iter().map(|x| square(*x)).sum::<f64>()).sqrt()
}

#[test]
fn what_stands_in_is_what_the_model_computes_with() {
    let model = mini();
    let want = logits(&*model, &mut Plain);
    for op in ["rmsnorm", "rope", "swiglu"] {
        let cpu = Cpu::of(&[op]);
        let exact = StandIn::new(Box::new(cpu.clone()), Type::F32);
        assert_eq!(logits(&*model, &mut With(&exact)), want, "{op}");
        let calls = std::mem::take(&mut *cpu.calls.lock().unwrap());
        assert!(
            calls.len() >= 61 && calls.iter().all(|call| call.op == op),
            "{op}: {}",
            calls.len()
        );
        let half = StandIn::new(Box::new(cpu), Type::Bf16);
        let error = relative(&logits(&*model, &mut With(&half)), &want);
        assert!((1e-4..0.05).contains(&error), "{op} in bf16: {error}");
    }
    // Streams are bf16 here in any case.
    let mixed = StandIn::new(Box::new(Cpu::of(&CALLED)), Type::F32);
    let error = relative(&logits(&*model, &mut With(&mixed)), &want);
    assert!((1e-4..0.05).contains(&error), "{error}");
    let wrong = Cpu {
        fault: true,
        ..Cpu::of(&["rope"])
    };
    let error = relative(
        &logits(&*model, &mut With(&StandIn::new(Box::new(wrong), Type::F32))),
        &want,
    );
    assert!(error > 0.1, "cosines and sines exchanged: {error}");
}

#[test]
fn a_failure_is_kept_and_the_reference_goes_on() {
    let model = mini();
    let cpu = Cpu {
        fails: "rope",
        ..Cpu::of(&["rope", "swiglu"])
    };
    let stand_in = StandIn::new(Box::new(cpu), Type::F32);
    assert_eq!(logits(&*model, &mut With(&stand_in)), logits(&*model, &mut Plain));
    assert_eq!(stand_in.failure().unwrap(), "rope: no such card");

    let idle = StandIn::new(Box::new(Cpu::of(&["rope", "record_read"])), Type::F32);
    logits(&*model, &mut With(&idle));
    let failure = idle.failure().unwrap();
    assert_eq!(
        failure,
        "record_read: kernels are named for it, but the model never called it"
    );
}

#[test]
fn records_are_stored_as_the_codec_stores_bf16() {
    for record in RECORDS {
        let value = |i: usize| ((i * 7919) % 2003) as f32 / 500.0 - 2.0;
        let x: Vec<f32> = (0..70 * record.dim).map(value).collect();
        let (mut got, mut want) = (x.clone(), x);
        let both = Cpu::of(&["record_write", "record_read"]);
        assert!(StandIn::new(Box::new(both), Type::F32).store(record, &mut got));
        round_to_bf16(&mut want);
        codec(record.name).unwrap().round(&mut want, record.dim);
        assert_eq!(got, want, "{}", record.name);
        let one = Cpu::of(&["record_write"]);
        assert!(!StandIn::new(Box::new(one), Type::F32).store(record, &mut got));
    }
}

/// Every variant finds in a call what its launches name.
#[test]
fn calls_have_what_variants_take() {
    let cpu = Cpu::of(&CALLED);
    let model = mini();
    for dtype in [Type::F32, Type::Bf16] {
        let stand_in = StandIn::new(Box::new(cpu.clone()), dtype);
        logits(&*model, &mut With(&stand_in));
        for record in RECORDS {
            stand_in.store(record, &mut vec![1.0; 3 * record.dim]);
        }
        assert_eq!(stand_in.failure(), None);
    }
    let sources = Source::read_all(&Path::new(crate::ROOT).join("kernels"), &ulplab::ops::COMPOSITIONS).unwrap();
    let calls = cpu.calls.lock().unwrap();
    for op in CALLED {
        let source = sources.iter().find(|source| source.op == op).unwrap();
        let calls: Vec<&Call> = calls.iter().filter(|call| call.op == op).collect();
        assert!(!calls.is_empty(), "{op} is never called");
        for call in calls {
            let mut plans = 0;
            for variant in &source.header.variants {
                let Some(plan) = Plan::new(variant, &call.case, 132).unwrap() else {
                    continue;
                };
                plans += 1;
                arguments_are_there(&call.case, &call.problem, &plan);
            }
            assert!(plans > 0, "no variant of {op} takes {:?}", call.case.dims);
        }
    }
}

#[test]
fn kernels_of_a_recipe_must_be_there() {
    let model = mini();
    let resolve = |kernels: &str| {
        let recipe: Recipe = toml::from_str(&format!("name = \"r\"\ndoc = \"\"\nkernels = [{kernels}]")).unwrap();
        recipe.resolve(model.config(), 1).map(|_| ())
    };
    assert_eq!(resolve("\"rope.heads\", \"rope.simple\""), Ok(()));
    let mistake = resolve("\"rope.simple\", \"rope.head\"").unwrap_err();
    assert_eq!(mistake.path, [Step::Key("kernels".into()), Step::Index(1)]);
    let message = mistake.message;
    assert!(message.contains("did you mean 'rope.heads'?"), "{message}");
    let message = resolve("\"scale_layout.first\"").unwrap_err().message;
    assert!(
        message.contains("no kernel of an operation of the model (mhc_pre, "),
        "{message}"
    );
}
