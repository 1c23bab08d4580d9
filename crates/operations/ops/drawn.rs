//! Implements [`Op`] for [`Operation`], so that a program in any language can be checked like a kernel. Inputs are drawn at
//! random for the sizes of a case; [`Operation`] computes the expected values and bounds, as for Python's `assert_close`.

use std::collections::BTreeMap;

use safetensors::Dtype;

use super::data::{dtype_named, number_bytes};
use super::judge::{Judge, numbers};
use super::{Buffer, Case, Data, Op, Parameters, Problem, Range, Scalar};
use crate::expected::draw::{Cases, Draw, Drawn, GIVEN, NONE};
use crate::expected::{Call, Given, Kind, Operation, Output, Tensor, crowded, overflow, settle, spread};
use ulplab_core::tensorfile;

/// Names of output types in test cases.
const STORED: [&str; 3] = ["f32", "bf16", "f16"];

fn type_of(case: &Case, key: &str) -> Result<Dtype, String> {
    let name = case.key(key);
    dtype_named(name).ok_or_else(|| format!("case {}: {key} = '{name}', expected a type", case.name))
}

impl Operation {
    fn drawn(&self) -> &'static Cases {
        self.cases.expect("only operations with cases are listed")
    }

    /// Keys (named settings) of a case, each with its allowed values; the first allowed value is the default.
    fn keys(&self) -> Vec<(&'static str, Vec<&'static str>)> {
        let cases = self.drawn();
        let words = self.takes.iter().filter_map(|takes| match takes.kind {
            Kind::Word(words) if !cases.fixed.contains(&takes.name) => Some((takes.name, words.to_vec())),
            _ => None,
        });
        let optional = cases.optional.iter().map(|name| (*name, vec![NONE, GIVEN]));
        [("dtype", cases.types.to_vec()), ("out", STORED.to_vec())]
            .into_iter()
            .chain(words)
            .chain(optional)
            .collect()
    }

    /// Names of the numbers that a case may set, with their defaults; NaN if the operation computes the default.
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

impl Op for &'static Operation {
    fn name(&self) -> &'static str {
        self.name
    }

    fn doc(&self) -> &'static str {
        self.doc
    }

    /// Makes one case for each set of sizes in f32 and in bfloat16. Further cases use the first set of sizes: one case for each
    /// value of a key (a named setting) other than the default, including `given` for optional tensors; one for each varied
    /// number; and one with the last value of every key and all varied numbers.
    fn cases(&self) -> Vec<Case> {
        let cases = self.drawn();
        let keys = self.keys();
        let case = |name: String, sizes: usize, set: &[(&str, &str)], numbers: &[(&'static str, f64)]| {
            let words = keys.iter().map(|(key, values)| {
                let value = set.iter().find(|(name, _)| name == key);
                (*key, value.map_or(values[0], |(_, value)| *value).to_string())
            });
            let numbers = numbers.iter().map(|(name, value)| (*name, value.to_string()));
            Case {
                name,
                keys: words.chain(numbers).collect(),
                dims: cases.named(sizes),
                ..Case::default()
            }
        };
        let mut all = Vec::new();
        for dtype in ["f32", "bf16"] {
            let of_sizes = |at| {
                case(
                    format!("{dtype}.{}", at + 1),
                    at,
                    &[("dtype", dtype), ("out", dtype)],
                    &[],
                )
            };
            all.extend((0..cases.sizes.len()).map(of_sizes));
        }
        let others = &keys[2..];
        for (key, values) in others {
            let of_value = |value| case(format!("{key}.{value}"), 0, &[(*key, value)], &[]);
            all.extend(values[1..].iter().copied().map(of_value));
        }
        let of_number = |set: &(&'static str, f64)| case(format!("{}.{}", set.0, set.1), 0, &[], &[*set]);
        all.extend(cases.varied.iter().map(of_number));
        let last = others.iter().map(|(key, values)| (*key, values[values.len() - 1]));
        all.push(case("all".into(), 0, &last.collect::<Vec<_>>(), cases.varied));
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
        let tensors = self.takes.iter().map(|takes| takes.name);
        let tensors = tensors.filter(|name| drawn.iter().any(|drawn| drawn.name == *name));
        let keys = self.keys().into_iter();
        Some(Parameters {
            sizes: owned(cases.letters),
            keys: keys.map(|(key, values)| (key.to_string(), owned(&values))).collect(),
            scalars: self.numbers().map(range).collect(),
            tensors: tensors.map(|name| (name.to_string(), Vec::new())).collect(),
            free: true,
        })
    }

    fn check(&self, case: &Case) -> Result<(), String> {
        self.inputs(case, 0).map(drop)
    }

    fn problem(&self, case: &Case, data: &Data) -> Result<Problem, String> {
        let dtype = type_of(case, "dtype")?;
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
                None => drawn.iter().flat_map(|x| number_bytes(*x, dtype)).collect(),
            };
            let tensor = tensorfile::Tensor {
                name,
                dtype,
                shape: &shape,
                bytes: &bytes,
            };
            let values = tensor.to_f64().expect("types are checked");
            buffers.push(Buffer::input(name, dtype, &shape, bytes));
            given.insert(name.to_string(), Given::Tensor(Tensor { shape, data: values }));
        }
        let mut scalars = Vec::new();
        for (name, default) in self.numbers() {
            let value = case.number(name, default as f32);
            if !value.is_nan() {
                given.insert(name.to_string(), Given::Number(value.into()));
                scalars.push((name, Scalar::F32(value)));
            }
        }
        for takes in self.takes.iter().filter(|takes| matches!(takes.kind, Kind::Word(_))) {
            if let Some(word) = case.word(takes.name) {
                given.insert(takes.name.to_string(), Given::Word(word.into()));
            }
        }
        let stored = type_of(case, "out")?;
        let call = Call::new(self, given, stored)?;
        let outputs = (self.compute)(&call)?.into_iter();
        let judges = outputs.map(|output| judge(self, output, stored));
        let judges = judges.collect::<Result<Vec<_>, _>>()?;
        let outputs = judges.iter();
        buffers.extend(outputs.map(|judge| Buffer::output(judge.output, judge.dtype, &judge.shape)));
        Ok(Problem {
            scalars,
            ..Problem::new(buffers, judges)
        })
    }
}

impl Operation {
    fn inputs(&self, case: &Case, seed: u64) -> Result<Vec<Drawn>, String> {
        let word = |name: &str| case.word(name).map(String::from);
        Draw::inputs((self.name, self.drawn()), seed, &|name| case.size(name), &word)
    }
}

/// Returns the check of an output. Where several values are admissible (for example the indices of ties), the check expects the
/// value that the program has written if it is one of them.
fn judge(operation: &Operation, output: Output, dtype: Dtype) -> Result<Judge, String> {
    let why = operation.drawn().why;
    if !crowded(&output).is_empty() {
        return Err(format!(
            "{}: rows of '{}' have too many right choices; expected inputs that decide",
            operation.name, output.name
        ));
    }
    if output.others.is_empty() && output.choices.is_empty() && !may_overflow(&output, dtype) {
        return Ok(within(output, dtype, why));
    }
    let (name, shape) = (output.name, output.shape.clone());
    let parts = move |outputs: &super::Outputs| {
        let bytes = outputs.get(name);
        let mut expected = output.clone();
        settle(&mut expected, &numbers(dtype, bytes), dtype);
        vec![within(expected, dtype, why).on(bytes.to_vec())]
    };
    Ok(Judge {
        dtype,
        shape,
        ..Judge::parts(name, parts, why)
    })
}

/// True if an element may be finite or infinite in this type: its error bound includes numbers on both sides of the overflow
/// threshold.
fn may_overflow(output: &Output, dtype: Dtype) -> bool {
    let most = overflow(dtype);
    let mut elements = output.value.iter().map(|value| value.abs()).zip(&output.error);
    !output.exact && elements.any(|(value, error)| value.is_finite() && value + error >= most && value - error < most)
}

fn within(mut output: Output, dtype: Dtype, why: &'static str) -> Judge {
    output.overflow(dtype);
    let bounds = output.bounds(dtype);
    let judge = Judge::each(output.name, dtype, &output.shape, output.value.clone(), bounds, why);
    match output.spread.is_empty() {
        true => judge,
        false => judge.together(move |got| spread::found(&output, got, dtype)),
    }
}
