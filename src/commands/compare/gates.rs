//! Gates (required bounds of metrics) given on the command line, and the tensors to which they apply.

use std::str::FromStr;

use super::pair_metric;
use crate::gate::direction;
use ulplab_core::error::{Error, Result};
use ulplab_core::metrics::{Bound, Metric};
use ulplab_core::pattern::{matches, matches_nothing};
use ulplab_core::tensorfile::{Kind, Tensor};

/// A gate, written as `[PATTERN:]METRIC>=BOUND`.
#[derive(Clone, Debug)]
pub struct Gate {
    /// The text that the user wrote.
    pub text: String,
    /// Pattern of the names of the tensors to which the gate applies.
    pub pattern: String,
    pub metric: &'static Metric,
    pub bound: Bound,
}

impl Gate {
    /// True if the gate's pattern matches the tensor name `name`.
    pub fn matches(&self, name: &str) -> bool {
        matches(&self.pattern, name)
    }
}

impl FromStr for Gate {
    type Err = Error;

    fn from_str(text: &str) -> Result<Self> {
        let error = |message: String| Error::Usage(format!("gate '{text}': {message}"));
        let none = || error("expected [PATTERN:]METRIC>=BOUND or <=BOUND".into());
        let (left, bound) = text.split_at(text.find(['<', '>', '=']).ok_or_else(none)?);
        let bound: Bound = bound.parse().map_err(error)?;
        let (pattern, name) = left.rsplit_once(':').unwrap_or(("**", left));
        let metric = pair_metric(name).map_err(|cause| error(cause.to_string()))?;
        direction::check(metric, bound, false).map_err(error)?;
        Ok(Self {
            text: text.into(),
            pattern: pattern.trim().into(),
            metric,
            bound,
        })
    }
}

/// Returns the gates of each pair: for each metric, the first gate whose pattern matches. A gate that applies to no pair is an
/// error.
pub(super) fn bind<'g>(gates: &'g [Gate], pairs: &[(Tensor, Tensor)]) -> Result<Vec<Vec<&'g Gate>>> {
    let mut used = vec![false; gates.len()];
    let mut bound = Vec::new();
    for (want, _) in pairs {
        let mut chosen: Vec<&Gate> = Vec::new();
        for (gate, used) in gates.iter().zip(&mut used) {
            let taken = chosen.iter().any(|other| other.metric.name == gate.metric.name);
            if judges(want) && !taken && gate.matches(want.name) {
                chosen.push(gate);
                *used = true;
            }
        }
        bound.push(chosen);
    }
    match gates.iter().zip(used).find(|(_, used)| !used) {
        Some((gate, _)) => Err(Error::Usage(format!("gate '{}': {}", gate.text, reason(gate, pairs)))),
        None => Ok(bound),
    }
}

/// True if gates apply to a tensor. Empty tensors have no metrics, and integers and booleans must be equal anyway.
fn judges(tensor: &Tensor) -> bool {
    tensor.kind() == Kind::Real && !tensor.shape.contains(&0)
}

/// Returns the reason why a gate applies to no tensor.
fn reason(gate: &Gate, pairs: &[(Tensor, Tensor)]) -> String {
    let all = || pairs.iter().map(|(want, _)| want);
    let matched = || all().filter(|want| gate.matches(want.name));
    if matched().next().is_none() {
        matches_nothing("tensor", &gate.pattern, all().map(|want| want.name))
    } else if matched().any(judges) {
        let metric = gate.metric.name;
        format!("never applies: earlier gates on {metric} match all of its tensors")
    } else {
        "applies to nothing: the tensors it matches are empty, or integers or booleans, which must be equal".into()
    }
}
