//! Operations on a user's tensors as operations of kernels: inputs are drawn for the sizes of a case, and what is expected and its bound
//! come from [`Operation`]. So a program in any language is judged by what Python's `assert_close` judges by.

use std::collections::BTreeMap;
use std::sync::Arc;

use safetensors::Dtype;

use super::judge::{Judge, number};
use super::{Buffer, Case, Data, Inputs, Op, Parameters, Problem, Range, Scalar};
use crate::expected::draw::{Cases, Draw, Drawn, GIVEN, NONE};
use crate::expected::{Call, Given, Kind, Operation, Output, Tensor, crowded, settle};
use ulplab_core::tensorfile;

/// Types by their names in keys.
const TYPES: [(&str, Dtype); 4] = [
    ("f32", Dtype::F32),
    ("bf16", Dtype::BF16),
    ("f16", Dtype::F16),
    ("f8_e4m3", Dtype::F8_E4M3),
];

fn type_of(name: &str) -> Dtype {
    let found = TYPES.iter().find(|(known, _)| *known == name);
    found.expect("keys were checked").1
}

impl Operation {
    fn drawn(&self) -> &'static Cases {
        self.cases.expect("only operations with cases are listed")
    }

    /// The keys of a case with their values, the default first.
    fn keys(&self) -> Vec<(&'static str, Vec<&'static str>)> {
        let cases = self.drawn();
        let words = self.takes.iter().filter_map(|takes| match takes.kind {
            Kind::Word(words) if !cases.fixed.contains(&takes.name) => Some((takes.name, words.to_vec())),
            _ => None,
        });
        let optional = cases.optional.iter().map(|name| (*name, vec![NONE, GIVEN]));
        let stored = TYPES[..3].iter().map(|(name, _)| *name).collect();
        [("dtype", cases.types.to_vec()), ("out", stored)]
            .into_iter()
            .chain(words)
            .chain(optional)
            .collect()
    }

    /// The numbers that cases may set, with their defaults; NaN where the operation works it out.
    fn numbers(&self) -> impl Iterator<Item = (&'static str, f64)> {
        let numbers = self.drawn().numbers;
        self.takes.iter().filter_map(|takes| match takes.kind {
            Kind::Number(default) => {
                let set = numbers.iter().find(|(name, _)| *name == takes.name);
                Some((takes.name, set.map_or(default, |(_, value)| *value)))
            }
            _ => None,
        })
    }
}

impl Op for Operation {
    fn name(&self) -> &'static str {
        self.name
    }

    fn doc(&self) -> &'static str {
        self.doc
    }

    /// Each set of sizes in f32 and in bfloat16; each word, each optional tensor and some numbers once with
    /// the first sizes, and all of them together.
    fn cases(&self) -> Vec<Case> {
        let cases = self.drawn();
        let keys = self.keys();
        let case = |name: String, sizes: usize, set: &[(&str, &str)]| Case {
            name,
            keys: keys
                .iter()
                .map(|(key, values)| {
                    let value = set.iter().find(|(name, _)| name == key);
                    (*key, value.map_or(values[0], |(_, value)| *value).to_string())
                })
                .collect(),
            dims: cases.named(sizes),
            inputs: Inputs::Random,
            timed: false,
        };
        let mut all = Vec::new();
        for dtype in ["f32", "bf16"] {
            for at in 0..cases.sizes.len() {
                all.push(case(
                    format!("{dtype}.{}", at + 1),
                    at,
                    &[("dtype", dtype), ("out", dtype)],
                ));
            }
        }
        for (key, values) in keys.iter().skip(2) {
            for value in &values[1..] {
                all.push(case(format!("{key}.{value}"), 0, &[(*key, *value)]));
            }
        }
        for (name, value) in cases.varied {
            let mut case = case(format!("{name}.{value}"), 0, &[]);
            case.keys.push((name, value.to_string()));
            all.push(case);
        }
        let last: Vec<_> = keys
            .iter()
            .skip(2)
            .map(|(key, values)| (*key, values[values.len() - 1]))
            .collect();
        let mut case = case("all".into(), 0, &last);
        case.keys
            .extend(cases.varied.iter().map(|(name, value)| (*name, value.to_string())));
        all.push(case);
        all
    }

    fn parameters(&self) -> Option<Parameters> {
        let owned = |names: &[&str]| names.iter().map(ToString::to_string).collect();
        let cases = self.drawn();
        let range = |(name, default): (&str, f64)| Range {
            name: name.into(),
            least: f64::MIN,
            most: f64::MAX,
            default: (!default.is_nan()).then_some(default),
        };
        let all = self.cases();
        let some = [all.first(), all.last()].into_iter().flatten();
        let drawn: Vec<Drawn> = some.flat_map(|case| self.inputs(case, 0)).flatten().collect();
        let tensors = self
            .takes
            .iter()
            .filter(|takes| drawn.iter().any(|drawn| drawn.name == takes.name));
        Some(Parameters {
            sizes: owned(cases.letters),
            keys: self
                .keys()
                .iter()
                .map(|(key, values)| (key.to_string(), owned(values)))
                .collect(),
            scalars: self.numbers().map(range).collect(),
            tensors: tensors.map(|takes| (takes.name.to_string(), Vec::new())).collect(),
            free: true,
        })
    }

    fn check(&self, case: &Case) -> Result<(), String> {
        self.inputs(case, 0).map(drop)
    }

    fn problem(&self, case: &Case, data: &Data) -> Result<Problem, String> {
        let dtype = type_of(case.key("dtype"));
        let mut given = BTreeMap::new();
        let mut buffers = Vec::new();
        for Drawn {
            name,
            shape,
            data: drawn,
            whole,
        } in self.inputs(case, data.seed())?
        {
            let dtype = if whole { Dtype::I32 } else { dtype };
            let bytes = match data.given(case, name, dtype, &shape)? {
                Some(bytes) => bytes,
                None => drawn.iter().flat_map(|x| bytes_of(*x, dtype)).collect(),
            };
            let tensor = tensorfile::Tensor {
                name,
                dtype,
                shape: &shape,
                bytes: &bytes,
            };
            let values = tensor.to_f64().expect("types are checked");
            given.insert(
                name.to_string(),
                Given::Tensor(Tensor {
                    shape: shape.clone(),
                    data: values,
                }),
            );
            buffers.push(Buffer::input(name, dtype, &shape, bytes));
        }
        let mut scalars = Vec::new();
        for (name, default) in self.numbers() {
            let value = case.number(name, default as f32);
            if !value.is_nan() {
                given.insert(name.to_string(), Given::Number(value.into()));
                scalars.push((name, Scalar::F32(value)));
            }
        }
        for (key, _) in self.keys().iter().skip(2) {
            if matches!(self.takes.iter().find(|takes| takes.name == *key), Some(takes) if matches!(takes.kind, Kind::Word(_)))
            {
                given.insert(key.to_string(), Given::Word(case.key(key).into()));
            }
        }
        let operation = Operation::find(self.name)?;
        let stored = type_of(case.key("out"));
        let call = Call::new(operation, given, stored)?;
        let mut judges = Vec::new();
        for output in (self.compute)(&call)? {
            judges.push(judge(self, output, stored)?);
        }
        buffers.extend(
            judges
                .iter()
                .map(|judge| Buffer::output(judge.output, judge.dtype, &judge.shape)),
        );
        Ok(Problem {
            scalars,
            ..Problem::new(buffers, judges)
        })
    }
}

impl Operation {
    fn inputs(&self, case: &Case, seed: u64) -> Result<Vec<Drawn>, String> {
        let size = |name: &str| case.dims.iter().find(|(dim, _)| *dim == name).map(|(_, size)| *size);
        let word = |name: &str| {
            case.keys
                .iter()
                .find(|(key, _)| *key == name)
                .map(|(_, value)| value.clone())
        };
        Draw::inputs((self.name, self.drawn()), seed, &size, &word)
    }
}

/// The judgement of an output. Parts that may be other things are chosen as the output has them.
fn judge(operation: &Operation, output: Output, dtype: Dtype) -> Result<Judge, String> {
    let why = operation.drawn().why;
    if !crowded(&output).is_empty() {
        return Err(format!(
            "{}: rows of '{}' have too many choices that are right; expected inputs that decide",
            operation.name, output.name
        ));
    }
    if output.others.is_empty() && output.choices.is_empty() {
        return Ok(within(output, dtype, why));
    }
    let (name, shape) = (output.name, output.shape.clone());
    let parts = move |outputs: &super::Outputs| {
        let bytes = outputs.get(name);
        let got: Vec<f64> = (0..output.value.len()).map(|at| number(dtype, bytes, at)).collect();
        let mut expected = output.clone();
        settle(&mut expected, &got, dtype);
        vec![within(expected, dtype, why).on(bytes.to_vec())]
    };
    Ok(Judge {
        dtype,
        shape,
        ..Judge::parts(name, parts, why)
    })
}

fn within(output: Output, dtype: Dtype, why: &'static str) -> Judge {
    let bounds: Arc<[f64]> = output.bounds(dtype).into();
    Judge::within(
        output.name,
        dtype,
        &output.shape,
        output.value,
        move |at, _| bounds[at],
        why,
    )
}

/// A number in the bytes of a type, to nearest even.
fn bytes_of(x: f64, dtype: Dtype) -> Vec<u8> {
    match dtype {
        Dtype::I32 => (x as i32).to_le_bytes().into(),
        Dtype::BF16 => half::bf16::from_f32(x as f32).to_le_bytes().into(),
        Dtype::F16 => half::f16::from_f32(x as f32).to_le_bytes().into(),
        Dtype::F8_E4M3 => vec![ulplab_core::formats::E4M3.encode(x as f32) as u8],
        _ => (x as f32).to_le_bytes().into(),
    }
}
