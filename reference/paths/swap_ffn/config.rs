//! Sizes of a model, and options for points where the definition of Swap-FFN is ambiguous.

use serde::Deserialize;

use super::lanes::LaneRule;
use crate::paths::keys::{MOST_LAYERS, MOST_SIZE};

/// Numbers on which the decisions of gate and bank are based. Logits and probabilities give the same decisions in exact
/// arithmetic, but not if probabilities are rounded: in bf16, the sigmoid is above ½ only for logits above 2^-7, and a softmax
/// has ties where its logits have none.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum DecisionRule {
    /// The gate is open if its logit l > 0; the bank with the largest logit q is selected.
    Logits,
    /// The gate is open if sigmoid(l) > ½; the bank with the largest softmax(q) is selected.
    Probabilities,
}

/// Form of the router's logits. Only the logits use z = W_r n, so its products can be folded into one vector per logit.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum RouterForm {
    /// One dot product with x per logit, multiplied by the inverse RMS.
    Folded,
    /// First n = norm(x), then z = W_r n, then the logits of z.
    Unfolded,
}

/// Configuration of a model. The names of the sizes are those of the source that defines the path. Keys that `config.json`
/// lacks have the defaults of [`Config::STANDARD`].
#[derive(Clone, Copy, Debug, PartialEq, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Config {
    /// Number of channels of a token and of a core.
    pub d_model: usize,
    /// Number of channels within the FFN.
    pub d_ff: usize,
    /// Number of cores of a token.
    pub core_count: usize,
    /// Number of events of a token.
    pub n_events: usize,
    /// Number of FFN steps of an event.
    pub k_ffn: usize,
    /// Number of channels of z = W_r n in the router.
    pub d_router: usize,
    /// Number of pooling weights per core.
    pub collapse_k: usize,
    /// Number of channels between pooling and decoder.
    pub collapse_r: usize,
    /// Number of channels of a core's embedding.
    pub d_embed: usize,
    /// Term added to mean(x²) in both norms.
    pub eps: f64,
    /// True if the result of an FFN step is added to x; false if it replaces x.
    pub residual: bool,
    /// Rule that changes a map at an exchange.
    pub lane_rule: LaneRule,
    /// Numbers on which the decisions of gate and bank are based.
    pub decision: DecisionRule,
    /// Form of the router's logits.
    pub router: RouterForm,
    /// True if silu is applied before the decoder.
    pub collapse_silu: bool,
}

impl Default for Config {
    fn default() -> Self {
        Self::STANDARD
    }
}

impl Config {
    /// Sizes and options of the source that defines the path.
    pub const STANDARD: Self = Self {
        d_model: 1024,
        d_ff: 4096,
        core_count: 512,
        n_events: 8,
        k_ffn: 2,
        d_router: 64,
        collapse_k: 8,
        collapse_r: 224,
        d_embed: 32,
        eps: 1e-6,
        residual: false,
        lane_rule: LaneRule::Transposition,
        decision: DecisionRule::Logits,
        router: RouterForm::Folded,
        collapse_silu: true,
    };

    /// Checks the sizes. Zero events, or events with zero FFN steps, are valid.
    ///
    /// # Errors
    /// Returns a message with the name of the first invalid size.
    pub fn check(&self) -> Result<(), String> {
        let positive = fields! { self: d_model d_ff core_count d_router collapse_k collapse_r d_embed };
        let repeated = fields! { self: n_events k_ffn };
        if let Some((name, value)) = repeated.into_iter().find(|(_, value)| *value > MOST_LAYERS) {
            return Err(format!("{name} is {value}, expected at most {MOST_LAYERS}"));
        }
        match positive.iter().find(|(_, value)| !(1..=MOST_SIZE).contains(value)) {
            Some((name, 0)) => Err(format!("{name} is 0")),
            Some((name, value)) => Err(format!("{name} is {value}, expected at most {MOST_SIZE}")),
            None if self.eps >= 0.0 => Ok(()),
            None => Err(format!("eps is {}, expected a number from 0 on", self.eps)),
        }
    }
}
