//! A case (inputs of one test) that the user defines: sizes, types, numbers and tensors.

use std::collections::BTreeMap;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::Operation;
use crate::backend::cuda::expr;
use crate::studies::parse::is_name;
use ulplab_core::error::{did_you_mean, refuse};
use ulplab_core::tensorfile::TensorFile;
use ulplab_operations::ops::{Case, Inputs, MOST_ELEMENTS, Parameters, lasting};

/// A test case that the user defines.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct OwnCase {
    /// The operation.
    pub op: String,
    /// Name of the case, unique within the operation: letters, digits, '_', '-' and '.'.
    pub name: String,
    /// Inputs of a shipped operation: `random` (the default), `edges`, or `site:PATTERN` for tensors at sites of the model.
    pub inputs: Option<String>,
    /// Safetensors file with input tensors, named like the buffers of the operation. Inputs that the file lacks are random.
    pub tensors: Option<String>,
    /// True if kernels are timed on this case.
    #[serde(default)]
    pub timed: bool,
    /// Sizes, keys (texts such as the type `bf16`) and numbers of the case, by the names that the operation defines.
    #[serde(flatten)]
    pub settings: BTreeMap<String, Setting>,
}

/// The value of a size, a key or a number.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(untagged)]
pub enum Setting {
    Whole(i64),
    Real(f64),
    Text(String),
}

impl std::fmt::Display for Setting {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::Whole(value) => value.fmt(f),
            Self::Real(value) => value.fmt(f),
            Self::Text(value) => write!(f, "'{value}'"),
        }
    }
}

impl OwnCase {
    /// Returns the case that the user describes, or a message about the first mistake.
    pub fn resolve(&self, operation: &Operation) -> Result<Case, String> {
        refuse(self.name.is_empty(), "its name is empty")?;
        let why = "its name holds more than letters, digits, '_', '-' and '.'";
        refuse(!is_name(&self.name, "_-."), why)?;
        let parameters = operation.op.parameters();
        let parameters = parameters.ok_or("this operation takes no cases but its own")?;
        self.known(&parameters)?;
        let keys = self.keys(&parameters)?;
        let shipped = operation.op.cases();
        let alike = |case: &&Case| keys.iter().all(|(key, value)| case.key(key) == value);
        let template = shipped.iter().find(alike).filter(|_| !parameters.free);
        let other = template.is_none() && !shipped.is_empty() && !parameters.free;
        refuse(other, format_args!("no kernel is written for {keys:?} together"))?;
        let inputs = self.inputs(&shipped, &parameters)?;
        let sizes = self.sizes(&parameters)?;
        let mut case = Case {
            name: self.name.clone(),
            keys: template.map_or_else(|| keys.clone(), |case| case.keys.clone()),
            dims: template.map_or_else(Vec::new, |case| case.dims.clone()),
            inputs,
            timed: self.timed,
            large: false,
        };
        case.keys.extend(self.scalars(&parameters)?);
        case.dims
            .retain(|(name, _)| !parameters.sizes.iter().any(|size| size == name));
        case.dims.splice(0..0, sizes);
        self.fit(&case, &parameters)?;
        operation.op.check(&case)?;
        Ok(case)
    }

    /// Checks that every key that the case sets is a key of the operation.
    fn known(&self, parameters: &Parameters) -> Result<(), String> {
        let unknown = |name: &&String| !parameters.names().any(|known| known == *name);
        let Some(name) = self.settings.keys().find(unknown) else {
            return Ok(());
        };
        let hint = did_you_mean(name, parameters.names());
        let known: Vec<&str> = parameters.names().collect();
        Err(format!("unknown key '{name}'{hint}; it may set {}", known.join(", ")))
    }

    fn keys(&self, parameters: &Parameters) -> Result<Vec<(&'static str, String)>, String> {
        let key = |(name, values): &(String, Vec<String>)| {
            let one_of = || format!("expected one of {}", values.join(", "));
            match self.settings.get(name) {
                Some(Setting::Text(value)) if values.contains(value) => Ok((lasting(name), value.clone())),
                Some(Setting::Text(value)) => {
                    let hint = did_you_mean(value, values.iter().map(String::as_str));
                    Err(format!("{name} = '{value}', {}{hint}", one_of()))
                }
                Some(other) => Err(format!("{name} = {other}, {}", one_of())),
                None if parameters.free => Ok((lasting(name), values[0].clone())),
                None => Err(format!("{name} is missing, {}", one_of())),
            }
        };
        parameters.keys.iter().map(key).collect()
    }

    fn inputs(&self, shipped: &[Case], parameters: &Parameters) -> Result<Inputs, String> {
        let own = shipped.is_empty();
        let edges = own || shipped.iter().any(|case| case.inputs == Inputs::Edges);
        let site = shipped.iter().any(|case| matches!(case.inputs, Inputs::Site(_)));
        match (&self.tensors, self.inputs.as_deref()) {
            (Some(_), Some(_)) => Err("tensors and inputs are both given, expected one of them".into()),
            (Some(_), None) if parameters.tensors.is_empty() => {
                Err("no input of the operation comes from a file".into())
            }
            (Some(path), None) => Ok(Inputs::File(lasting(path))),
            (None, None | Some("random")) => Ok(Inputs::Random),
            (None, Some("edges")) if edges => Ok(Inputs::Edges),
            (None, Some(inputs)) => match inputs.strip_prefix("site:") {
                Some(pattern) if site => Ok(Inputs::Site(lasting(pattern))),
                _ => {
                    let all = [Some("random"), edges.then_some("edges"), site.then_some("site:PATTERN")];
                    let all: Vec<&str> = all.into_iter().flatten().collect();
                    Err(format!("inputs = '{inputs}', expected {}", all.join(" or ")))
                }
            },
        }
    }

    /// Returns every size, from the case or from the shape of a tensor in the case's file.
    fn sizes(&self, parameters: &Parameters) -> Result<Vec<(&'static str, i64)>, String> {
        let fixed = self.fixed(parameters)?;
        let size = |name: &String| {
            let value = match self.settings.get(name) {
                Some(Setting::Whole(value)) => *value,
                Some(other) => return Err(format!("{name} = {other}, expected a whole number")),
                None => *fixed.get(name).ok_or_else(|| match &self.tensors {
                    Some(_) => format!("size {name} is missing, and no tensor fixes it"),
                    None => format!("size {name} is missing"),
                })?,
            };
            match i32::try_from(value) {
                Ok(1..) => Ok((lasting(name), value)),
                _ => Err(format!("{name} = {value}, expected 1 to {}", i32::MAX)),
            }
        };
        parameters.sizes.iter().map(size).collect()
    }

    /// Returns the sizes that follow from the shapes of the tensors in the case's file.
    fn fixed(&self, parameters: &Parameters) -> Result<BTreeMap<String, i64>, String> {
        let mut fixed = BTreeMap::new();
        let Some(path) = &self.tensors else {
            return Ok(fixed);
        };
        let file = TensorFile::open(path).map_err(|error| error.to_string())?;
        let inputs = || parameters.tensors.iter().map(|(name, _)| name.as_str());
        if let Some(other) = file.tensors().find(|tensor| !inputs().any(|name| name == tensor.name)) {
            let (name, known) = (other.name, inputs().collect::<Vec<_>>().join(", "));
            let hint = did_you_mean(name, inputs());
            return Err(format!("{path}: '{name}' is no input{hint}; inputs are {known}"));
        }
        refuse(file.tensors().len() == 0, format_args!("{path}: it holds no tensor"))?;
        for (name, shape) in parameters.tensors.iter().filter(|(_, shape)| !shape.is_empty()) {
            let Some(found) = file.get(name) else { continue };
            let why = format_args!("{path}: '{name}' is {:?}, expected [{}]", found.shape, shape.join(", "));
            refuse(found.shape.len() != shape.len(), why)?;
            for (size, found) in shape.iter().zip(found.shape) {
                if parameters.sizes.contains(size) {
                    fixed.entry(size.clone()).or_insert(*found as i64);
                }
            }
        }
        Ok(fixed)
    }

    fn scalars(&self, parameters: &Parameters) -> Result<Vec<(&'static str, String)>, String> {
        let set = parameters.scalars.iter().filter_map(|range| {
            let value = match self.settings.get(&range.name) {
                Some(Setting::Whole(value)) => *value as f64,
                Some(Setting::Real(value)) => *value,
                Some(Setting::Text(_)) => f64::NAN,
                None => range.default?,
            };
            let (name, least, most) = (&range.name, range.least, range.most);
            Some(match (least..=most).contains(&value) {
                true => Ok((lasting(name), value.to_string())),
                false => Err(format!(
                    "{name} = {}, expected a number from {least:e} to {most:e}",
                    self.settings[name]
                )),
            })
        });
        set.collect()
    }

    /// Checks that the shapes of all inputs are small enough for memory, and that the tensors in the file have these shapes.
    fn fit(&self, case: &Case, parameters: &Parameters) -> Result<(), String> {
        let file = self.tensors.as_ref().map(TensorFile::open).transpose();
        let file = file.map_err(|error| error.to_string())?;
        for (name, shape) in parameters.tensors.iter().filter(|(_, shape)| !shape.is_empty()) {
            let expected = shape_of(name, shape, case)?;
            let found = file.as_ref().and_then(|file| file.get(name));
            if let Some(found) = found.filter(|found| found.shape != expected) {
                let (path, sizes) = (self.tensors.as_deref().unwrap_or_default(), shape.join(", "));
                let found = format!("'{name}' is {:?}", found.shape);
                return Err(format!("{path}: {found}, expected [{sizes}] = {expected:?}"));
            }
        }
        Ok(())
    }
}

/// Returns the shape of a tensor, whose dimensions are expressions over the sizes of a case.
pub fn shape_of(name: &str, shape: &[String], case: &Case) -> Result<Vec<usize>, String> {
    let size = |name: &str| case.size(name);
    let sizes = shape.iter().map(|text| match expr::eval(text, &size) {
        Ok(value @ 1..) => Ok(value as usize),
        Ok(value) => Err(format!("shape of '{name}': {text} is {value}, expected 1 or more")),
        Err(why) => Err(format!("shape of '{name}': {why}")),
    });
    let sizes: Vec<usize> = sizes.collect::<Result<_, _>>()?;
    let mut factors = sizes.iter();
    match factors.try_fold(1usize, |product, size| product.checked_mul(*size)) {
        Some(..=MOST_ELEMENTS) => Ok(sizes),
        _ => Err(format!(
            "'{name}' would be {sizes:?}, expected at most {MOST_ELEMENTS} elements"
        )),
    }
}
