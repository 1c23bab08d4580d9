//! Rules, and what they say of a run.

use serde::{Deserialize, Serialize};

use crate::sweep::experiment::Rule;

/// One rule judged on one recipe.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Verdict {
    pub rule: Rule,
    pub recipe: String,
    pub pass: bool,
    /// The statistic the bound is compared with: the worst over layers.
    pub value: f64,
    /// Layer the value is from.
    pub layer: Option<u32>,
    /// A sentence: what was measured where, against which bound.
    pub message: String,
}
