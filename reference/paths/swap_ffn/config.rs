//! Sizes, and the readings of what the definition leaves open.

use serde::Deserialize;

use super::lanes::LaneRule;
use crate::paths::keys::{MOST_LAYERS, MOST_SIZE};

/// On what gate and bank are decided. The two agree in exact arithmetic, and not where probabilities are rounded: in bf16 the
/// sigmoid is above ½ only of logits above 2^-7, and a softmax has ties that its logits have not.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum DecisionRule {
    /// l > 0, the largest q.
    Logits,
    /// sigmoid(l) > ½, the largest of softmax(q).
    Probabilities,
}

/// Form of the router's logits. Only the logits read z = W_r n, so its products fold into one vector for each logit.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum RouterForm {
    /// One dot product with x for each logit, times the inverse RMS.
    Folded,
    /// n = norm(x), z = W_r n, logits of z.
    Unfolded,
}

/// Names of sizes are those of the source that defines the path. Those that `config.json` does not have are as in
/// [`Config::STANDARD`].
#[derive(Clone, Copy, Debug, PartialEq, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Config {
    /// Channels of a token and of a core.
    pub d_model: usize,
    /// Channels within the FFN.
    pub d_ff: usize,
    /// Cores of a token.
    pub core_count: usize,
    /// Events of a token.
    pub n_events: usize,
    /// FFN steps of an event.
    pub k_ffn: usize,
    /// Channels of the router's z.
    pub d_router: usize,
    /// Ways in which cores are pooled.
    pub collapse_k: usize,
    /// Channels between pooling and decoder.
    pub collapse_r: usize,
    /// Channels of a core's embedding.
    pub d_embed: usize,
    /// Added to mean(x²) in both norms.
    pub eps: f64,
    /// True if an FFN step adds to x or takes its place.
    pub residual: bool,
    /// Change of a map by an exchange.
    pub lane_rule: LaneRule,
    /// On what gate and bank are decided.
    pub decision: DecisionRule,
    /// Form of the router's logits.
    pub router: RouterForm,
    /// True if silu stands before the decoder.
    pub collapse_silu: bool,
}

impl Default for Config {
    fn default() -> Self {
        Self::STANDARD
    }
}

impl Config {
    /// The sizes and readings of the source that defines the path.
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

    /// Finds a size that cannot be. No events, or events without FFN steps, can.
    ///
    /// # Errors
    /// The first such size, by name.
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
