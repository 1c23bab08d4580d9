//! Reads a RoPE from `config.json`, with the keys of `transformers` 4 (`rope_theta`, `rope_scaling`) or 5 (`rope_parameters`).

use serde_json::{Map, Value};

use super::keys::Keys;
use crate::ops::rope::{Yarn, frequencies};
use crate::ops::rope_scaling::{each, llama3};

/// RoPE of one or more layers.
#[derive(Clone, Debug, PartialEq)]
pub struct RopeConfig {
    /// Frequencies; RoPE rotates two channels per frequency.
    pub frequencies: Vec<f32>,
    /// Factor by which cosines and sines are multiplied.
    pub factor: f64,
    /// Longest sequence for which the frequencies are valid, in tokens; `None` if the frequencies do not depend on the length.
    pub most_tokens: Option<usize>,
}

/// Values that are needed to read a RoPE, but are not in the RoPE object of `config.json`: sizes, defaults and top-level keys.
#[derive(Clone, Copy)]
pub(super) struct Around {
    /// Name of the model family, for error messages.
    pub model_type: &'static str,
    /// Default of θ if no key gives it.
    pub missing_theta: f64,
    /// Values of `rope_type` that the family supports.
    pub scalings: &'static [&'static str],
    /// True if RoPE may rotate only a part of the channels.
    pub partial_rope: bool,
    pub head_dim: usize,
    pub most_tokens: Option<usize>,
    pub theta: Option<f64>,
    pub partial: Option<f64>,
    /// Top-level key `original_max_position_embeddings`, which takes precedence over the same key in the RoPE object.
    pub original: Option<usize>,
}

/// Checks that the frequencies of all RoPEs are valid for a sequence of `tokens` tokens.
///
/// # Errors
/// Returns an error if there are more tokens than one of the RoPEs allows.
pub(super) fn check_length(ropes: &[RopeConfig], tokens: usize) -> Result<(), String> {
    match ropes.iter().filter_map(|rope| rope.most_tokens).min() {
        Some(most) if tokens > most => Err(format!(
            "{tokens} tokens: beyond {most} the frequencies of this RoPE depend on the length of the sequence, so that keys \
             that are cached would turn otherwise"
        )),
        _ => Ok(()),
    }
}

impl Around {
    /// Reads one RoPE from `keys`, the RoPE object with the key `name` in `outer`; `None` means no scaling.
    ///
    /// # Errors
    /// Returns an error if a key is missing, unknown, or contradicts another key.
    pub fn rope(&self, outer: &Keys<'_>, name: &str, keys: Option<&Map<String, Value>>) -> Result<RopeConfig, String> {
        let none = Map::new();
        let keys = outer.within(name, keys.unwrap_or(&none));
        let rope = self.of_keys(&keys)?;
        let finished = keys.finish("a RoPE of this type", &[]);
        finished.map(|()| rope)
    }

    fn of_keys(&self, keys: &Keys<'_>) -> Result<RopeConfig, String> {
        let kind = keys.rope_type()?;
        if !self.scalings.contains(&kind.as_str()) {
            let known = self.scalings.join("', '");
            return Err(keys.wrong("rope_type", format!("is '{kind}', expected '{known}'")));
        }
        let theta = keys.optional("rope_theta")?.or(self.theta);
        let theta = theta.unwrap_or(self.missing_theta);
        if !(theta.is_finite() && theta > 1.0) {
            return Err(keys.wrong("rope_theta", format!("is {theta}, expected a number above 1")));
        }
        let partial = keys.optional("partial_rotary_factor")?.or(self.partial).unwrap_or(1.0);
        if partial != 1.0 && !self.partial_rope {
            let family = self.model_type;
            return Err(keys.wrong(
                "partial_rotary_factor",
                format!("is {partial}, but a {family} turns all channels"),
            ));
        }
        let dims = (self.head_dim as f64 * partial) as usize;
        if dims == 0 || !dims.is_multiple_of(2) || dims > self.head_dim {
            let head = self.head_dim;
            return Err(keys.wrong(
                "partial_rotary_factor",
                format!("is {partial}, which turns {dims} of {head} channels: expected an even number of them"),
            ));
        }
        let given = keys.optional_size("original_max_position_embeddings")?;
        let original = || match (self.original, given) {
            (Some(outer), Some(given)) if outer != given => Err(keys.wrong(
                "original_max_position_embeddings",
                format!("is {given}, but the key of the same name outside of it is {outer} (4096 where it is missing)"),
            )),
            (original, given) => {
                let original = original.or(given).or(self.most_tokens).filter(|&tokens| tokens > 0);
                original.ok_or_else(|| keys.missing("original_max_position_embeddings"))
            }
        };
        let positive = |key: &str| keys.positive(key);
        let needed = |key: &str| positive(key)?.ok_or_else(|| keys.missing(key));
        let times = |original: usize| {
            let ratio = self.most_tokens.map(|most| most as f64 / original as f64);
            positive("factor")?.or(ratio).ok_or_else(|| keys.missing("factor"))
        };
        let (mut factor, mut most_tokens) = (1.0, None);
        let plain = || frequencies(dims, theta, None);
        let frequencies = match kind.as_str() {
            "default" => plain(),
            "linear" => {
                let factor = needed("factor")? as f32;
                plain().iter().map(|f| f / factor).collect()
            }
            "dynamic" => {
                // Use unscaled frequencies: dynamic scaling begins beyond the original context length, and `most_tokens` rejects
                // such long sequences.
                needed("factor")?;
                most_tokens = Some(
                    self.most_tokens
                        .ok_or_else(|| keys.missing("max_position_embeddings"))?,
                );
                plain()
            }
            "llama3" => {
                let (low_turns, high_turns) = (needed("low_freq_factor")?, needed("high_freq_factor")?);
                if low_turns >= high_turns {
                    let message = format!("is {low_turns}, expected less than high_freq_factor, {high_turns}");
                    return Err(keys.wrong("low_freq_factor", message));
                }
                let factor = needed("factor")?;
                llama3(&plain(), factor, [low_turns, high_turns], original()? as f64)
            }
            "yarn" => {
                let original = original()?;
                // Require the key `factor`: `transformers` accepts null as its value, but not a missing key.
                if !keys.has("factor") {
                    return Err(keys.missing("factor"));
                }
                let times = times(original)?;
                factor = keys.attention_factor(times, None)?;
                let yarn = Yarn {
                    factor: times,
                    original_positions: original as f64,
                    beta_fast: positive("beta_fast")?.unwrap_or(32.0),
                    beta_slow: positive("beta_slow")?.unwrap_or(1.0),
                    truncate: keys.optional("truncate")?.unwrap_or(true),
                };
                frequencies(dims, theta, Some(yarn))
            }
            "longrope" | "su" => {
                let original = original()?;
                let factors = |key: &str| {
                    let factors: Vec<f32> = keys.needed(key)?;
                    if factors.len() != dims / 2 {
                        let found = factors.len();
                        let message = format!("has {found} numbers, expected {} for {dims} channels", dims / 2);
                        return Err(keys.wrong(key, message));
                    }
                    match factors.iter().find(|factor| !(factor.is_finite() && **factor > 0.0)) {
                        Some(wrong) => Err(keys.wrong(key, format!("has {wrong}, expected numbers above 0"))),
                        None => Ok(factors),
                    }
                };
                let short = factors("short_factor")?;
                // LongRoPE needs the long factors for sequences longer than the original context. Refuse such sequences: their
                // first keys are already cached, rotated with the short factors.
                factors("long_factor")?;
                let times = times(original)?;
                let grows = if times <= 1.0 {
                    1.0
                } else {
                    (1.0 + times.ln() / (original as f64).ln()).sqrt()
                };
                factor = positive("attention_factor")?.unwrap_or(grows);
                most_tokens = Some(original);
                each(&short, dims, theta)
            }
            other => return Err(keys.wrong("rope_type", format!("is '{other}', which is not computed"))),
        };
        Ok(RopeConfig {
            frequencies,
            factor,
            most_tokens,
        })
    }
}
