//! A variant on a case: its launches with all sizes worked out. Needs no GPU.

use super::device::Shape;
use super::expr::eval;
use super::header::{Launch, Number, Variant};
use crate::kernels::Case;

/// What is put into the stream.
#[derive(Clone, Debug, PartialEq)]
pub struct Plan {
    pub steps: Vec<Step>,
    /// Names, bytes, and whether they are cleared before each run.
    pub scratch: Vec<(String, usize, bool)>,
}

/// One launch.
#[derive(Clone, Debug, PartialEq)]
pub struct Step {
    pub entry: String,
    pub shape: Shape,
    pub arguments: Vec<String>,
}

impl Plan {
    /// The launches, or none where the variant does not take the case.
    pub fn new(variant: &Variant, case: &Case, sms: i64) -> Result<Option<Self>, String> {
        let sizes = |name: &str| match name {
            "sms" => Some(sms),
            _ => case.dims.iter().find(|(dim, _)| *dim == name).map(|(_, size)| *size),
        };
        let wrong = |why: String| format!("variant '{}', case '{}': {why}", variant.name, case.name);
        for need in &variant.needs {
            if eval(need, &sizes).map_err(wrong)? == 0 {
                return Ok(None);
            }
        }
        let steps = variant.launches.iter().map(|launch| Step::new(launch, case, &sizes));
        let scratch = variant.scratch.iter().map(|scratch| {
            let bytes = eval(&scratch.bytes, &sizes)?;
            let bytes = usize::try_from(bytes).map_err(|_| format!("scratch '{}' of {bytes} bytes", scratch.name))?;
            Ok((scratch.name.clone(), bytes, scratch.zero))
        });
        Ok(Some(Self {
            steps: steps.collect::<Result<_, _>>().map_err(wrong)?,
            scratch: scratch.collect::<Result<_, String>>().map_err(wrong)?,
        }))
    }
}

impl Step {
    fn new(launch: &Launch, case: &Case, sizes: &dyn Fn(&str) -> Option<i64>) -> Result<Self, String> {
        let number = |number: &Number| match number {
            Number::Plain(value) => Ok(*value),
            Number::Expression(text) => eval(text, sizes),
        };
        let three = |what: &str, numbers: &[Number]| {
            if numbers.is_empty() || numbers.len() > 3 {
                return Err(format!("{what} has {} numbers, expected one to three", numbers.len()));
            }
            let mut all = [1; 3];
            for (at, text) in numbers.iter().enumerate() {
                let value = number(text)?;
                all[at] = u32::try_from(value)
                    .ok()
                    .filter(|size| *size > 0)
                    .ok_or(format!("{what} is {value}"))?;
            }
            Ok(all)
        };
        let shared = launch.shared.as_ref().map(number).transpose()?.unwrap_or(0);
        let mut entry = launch.entry.clone();
        for (key, value) in &case.keys {
            entry = entry.replace(&format!("{{{key}}}"), value);
        }
        if entry.contains('{') {
            return Err(format!("entry '{entry}' has a key the case does not"));
        }
        Ok(Self {
            entry,
            shape: Shape {
                grid: three("grid", &launch.grid)?,
                block: three("block", &launch.block)?,
                cluster: launch
                    .cluster
                    .as_ref()
                    .map(|cluster| three("cluster", cluster))
                    .transpose()?,
                shared: u32::try_from(shared).map_err(|_| format!("shared is {shared}"))?,
                cooperative: launch.cooperative,
                programmatic: launch.programmatic,
            },
            arguments: launch.args.clone(),
        })
    }
}
