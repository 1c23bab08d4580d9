//! Gates of the command line, and the tensors that they bind.

use std::fmt;
use std::str::FromStr;

use super::pair_metric;
use crate::gate::direction;
use ulplab_core::error::{Error, Result};
use ulplab_core::metrics::{Bound, Metric};
use ulplab_core::pattern::{matches, matches_nothing};
use ulplab_core::tensorfile::{Kind, Tensor};

/// `[PATTERN:]METRIC>=BOUND`.
#[derive(Clone, Debug)]
pub struct Gate {
    /// As the user wrote it.
    text: String,
    pattern: String,
    pub metric: &'static Metric,
    pub bound: Bound,
}

impl Gate {
    /// The pattern of the tensors that it binds.
    pub fn pattern(&self) -> &str {
        &self.pattern
    }

    /// Whether it binds a tensor of that name.
    pub fn matches(&self, name: &str) -> bool {
        matches(&self.pattern, name)
    }
}

impl fmt::Display for Gate {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.text)
    }
}

impl FromStr for Gate {
    type Err = Error;

    fn from_str(text: &str) -> Result<Self> {
        let error = |message: String| Error::Usage(format!("gate '{text}': {message}"));
        let at = text
            .find(['<', '>', '='])
            .ok_or_else(|| error("expected [PATTERN:]METRIC>=BOUND or <=BOUND".into()))?;
        let (left, bound) = text.split_at(at);
        let bound: Bound = bound.parse().map_err(error)?;
        let (pattern, name) = left.rsplit_once(':').unwrap_or(("**", left));
        let metric = pair_metric(name).map_err(|cause| error(cause.to_string()))?;
        direction::check(metric, bound).map_err(error)?;
        Ok(Self {
            text: text.into(),
            pattern: pattern.trim().into(),
            metric,
            bound,
        })
    }
}

/// The gates of each pair: for each metric the first whose pattern matches. A gate without effect is an error.
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
    match used.iter().position(|&used| !used) {
        Some(idle) => Err(Error::Usage(format!(
            "gate '{}': {}",
            gates[idle],
            reason(&gates[idle], pairs)
        ))),
        None => Ok(bound),
    }
}

/// Whether gates apply: empty tensors have no metrics, and exact ones must be equal anyway.
fn judges(tensor: &Tensor) -> bool {
    tensor.kind() == Kind::Real && !tensor.shape.contains(&0)
}

/// Why a gate applies to nothing.
fn reason(gate: &Gate, pairs: &[(Tensor, Tensor)]) -> String {
    let names = pairs.iter().map(|(want, _)| want.name);
    let mut matched = pairs
        .iter()
        .filter(|(want, _)| matches(&gate.pattern, want.name))
        .peekable();
    if matched.peek().is_none() {
        matches_nothing("tensor", &gate.pattern, names)
    } else if matched.any(|(want, _)| judges(want)) {
        format!(
            "never applies: earlier gates on {} match all of its tensors",
            gate.metric.name
        )
    } else {
        "applies to nothing: the tensors it matches are empty, or integers or booleans, which must be equal".into()
    }
}
