//! Sizes of a model, and options for points where the definition of Swap-FFN is ambiguous.

use serde::Deserialize;

use super::lanes::LaneRule;
use crate::paths::keys::{MOST_LAYERS, MOST_SIZE};

/// Numbers that the router compares for its two decisions about a core (which has one of the vectors of a token): if the core
/// exchanges its vector (the gate is open), and with which memory bank. Logits and probabilities give the same decisions in exact
/// arithmetic, but rounded probabilities may not: in bf16, the sigmoid is above ½ only for logits above 2^-7, and two
/// probabilities of a softmax may be equal although their logits differ.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum DecisionRule {
    /// The gate is open if its logit l > 0. The lane (entry of the core's map) with the largest logit q selects its bank.
    Logits,
    /// The gate is open if sigmoid(l) > ½; the bank in the lane with the largest softmax(q) is selected.
    Probabilities,
}

/// Form in which the router computes its logits from x. Only the logits use z = W_r n with n = norm(x), so W_r can be fused into
/// one weight vector per logit (folded).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum RouterForm {
    /// Each logit is one dot product with x, multiplied by the inverse RMS of x.
    Folded,
    /// Computes n = norm(x), then z = W_r n, then the logits from z.
    Unfolded,
}

/// Configuration of a Swap-FFN model. The names of the sizes are those of the definition of Swap-FFN. A key that is missing in
/// `config.json` has the value in [`Config::STANDARD`].
#[derive(Clone, Copy, Debug, PartialEq, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Config {
    /// Number of channels of a token's vector and of a core's vector.
    pub d_model: usize,
    /// Number of channels within the FFN.
    pub d_ff: usize,
    /// Number of cores: each token is expanded to one vector per core.
    pub core_count: usize,
    /// Number of events per token. In an event, each core may exchange its vector with a memory bank, and then runs FFN steps.
    pub n_events: usize,
    /// Number of FFN steps per event.
    pub k_ffn: usize,
    /// Number of channels of z = W_r n in the router.
    pub d_router: usize,
    /// Number of weighted sums into which the cores are pooled; each core has one pooling weight per sum.
    pub collapse_k: usize,
    /// Number of channels of the decoder's input. The input is computed from the weighted sums; the output is the delta.
    pub collapse_r: usize,
    /// Number of channels of a core's embedding.
    pub d_embed: usize,
    /// Term added to mean(x²) in the norms of the router and of the FFN.
    pub eps: f64,
    /// True if the result of an FFN step is added to x; false if the result replaces x.
    pub residual: bool,
    /// Rule by which an exchange changes the map of a core, which stores the order of the core's banks.
    pub lane_rule: LaneRule,
    /// Logits or probabilities: the numbers by which the router opens the gate and selects the bank.
    pub decision: DecisionRule,
    /// Form in which the router computes its logits.
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
    /// Sizes and options in the definition of Swap-FFN.
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

    /// Checks the sizes. A model without events (exchanges with memory, each followed by FFN steps) is valid, and so are events
    /// without FFN steps.
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
