//! y_t = f(bias + Σ_j w_j·x_{t−W+1+j}) for every channel, over the tokens given and those in a state before them, and the state that is
//! left: the last inputs. One token is a step of a decoder.
//!
//! Error: W products and the bias are a sum of W + 1 terms that f32 adds in any order. SiLU has its own error and passes that of the
//! sum on ([`super::silu`]). Where a kernel rounds to the output's type before SiLU (`cast`), the sum is off by half a spacing
//! more. The state is copied: it has no error.

use rayon::prelude::*;

use super::draw::{Cases, FLOATS};
use super::silu::silu_of;
use super::sum::Terms;
use super::{Call, Operation, Output, faults, half_spacing, takes};

pub(super) const CAUSAL_CONV1D: Operation = Operation {
    name: "causal_conv1d",
    doc: "a convolution of every channel with its own few taps, over the tokens before, and the state that is left",
    takes: takes! {
        x Tensor: "[B, C, T], or [B, T, C] if layout = \"btc\"; [B, C] is one token";
        weight Tensor: "[C, W]: the last tap is that of the token itself";
        bias Optional: "[C]";
        state Optional: "[B, C, S] with S of W - 1 or more: the inputs before x, the latest last; zeros if not given";
        activation Word(&["none", "silu"]): "what the sums go through; SiLU is \"swish\", too";
        layout Word(&["bct", "btc"]): "the order of the dimensions of x: channels first, or tokens";
        cast Word(&["at_end", "before_activation"]):
            "where a kernel rounds to the type of the output: once at the end, or before the activation, too";
    },
    faults: faults! {
        state_not_read of state: "zeros are read in the place of the state";
        state_not_written: "the state is the one before";
        state_one_behind: "the state lacks the last token";
        next_channel_state of state: "the state is that of the next channel";
        next_sequence_state of state: "the state is that of the next sequence";
        taps_reversed: "the taps are in the other order";
        next_channel_taps: "the taps are those of the next channel";
        one_late: "each output is that of the token before";
        first_tap_missing: "the tap of the oldest token is left out";
        no_bias of bias: "the bias is left out";
        bias_after_activation of bias: "the bias is added after the activation";
    },
    cases: Some(&Cases {
        sizes: &[
            &[("B", 2), ("C", 37), ("T", 19), ("W", 4)],
            &[("B", 1), ("C", 256), ("T", 128), ("W", 4)],
        ],
        numbers: &[],
        varied: &[],
        fixed: &[],
        optional: &["bias", "state"],
        types: FLOATS,
        draw: |draw| {
            let [batch, channels, tokens, taps] = draw.sizes(["B", "C", "T", "W"]);
            draw.require(
                taps > 1 || !draw.has("state"),
                "W is 1, expected 2 or more with a state",
            );
            let shape = match draw.is("layout", "btc") {
                true => [batch, tokens, channels],
                false => [batch, channels, tokens],
            };
            draw.normal("x", &shape, 1.0);
            draw.normal("weight", &[channels, taps], 1.0);
            if draw.has("bias") {
                draw.normal("bias", &[channels], 1.0);
            }
            if draw.has("state") {
                draw.normal("state", &[batch, channels, taps.max(2) - 1], 1.0);
            }
        },
        why: "sums of W products and a bias in any order, and the activation, in f32",
    }),
    rows: None,
    compute,
};

/// The sizes of a call.
#[derive(Clone, Copy)]
struct Sizes {
    batch: usize,
    channels: usize,
    tokens: usize,
    taps: usize,
    /// Tokens in the state.
    kept: usize,
    tokens_first: bool,
}

impl Sizes {
    fn of(call: &Call) -> Result<Self, String> {
        let (x, weight) = (call.tensor("x"), call.tensor("weight"));
        let tokens_first = call.word("layout") == "btc";
        let (batch, channels, tokens) = match x.shape[..] {
            [batch, channels] => (batch, channels, 1),
            [batch, tokens, channels] if tokens_first => (batch, channels, tokens),
            [batch, channels, tokens] => (batch, channels, tokens),
            _ => {
                let expected = if tokens_first { "[B, T, C]" } else { "[B, C, T]" };
                return Err(format!(
                    "causal_conv1d: 'x' is {:?}, expected {expected} or [B, C]",
                    x.shape
                ));
            }
        };
        let taps = match weight.shape[..] {
            [of, taps] if of == channels && taps > 0 => taps,
            _ => {
                return Err(format!(
                    "causal_conv1d: 'weight' is {:?}, expected [{channels}, W]",
                    weight.shape
                ));
            }
        };
        call.expect("bias", &[channels])?;
        let kept = match call.optional("state").map(|state| &state.shape[..]) {
            None => taps - 1,
            Some(&[of, rows, kept]) if of == batch && rows == channels && kept + 1 >= taps => kept,
            Some(found) => {
                let least = taps - 1;
                return Err(format!(
                    "causal_conv1d: 'state' is {found:?}, expected [{batch}, {channels}, S] with S of {least} or more"
                ));
            }
        };
        Ok(Self {
            batch,
            channels,
            tokens,
            taps,
            kept,
            tokens_first: tokens_first && x.shape.len() == 3,
        })
    }

    /// The state and the tokens of a channel, one after the other.
    fn inputs(self, call: &Call, [batch, channel]: [usize; 2]) -> Vec<f64> {
        let (of_batch, of_channel) = match call.fault {
            Some("next_channel_state") => (batch, (channel + 1) % self.channels),
            Some("next_sequence_state") => ((batch + 1) % self.batch, channel),
            _ => (batch, channel),
        };
        let state = match call.optional("state") {
            Some(state) if !call.is("state_not_read") => {
                state.data[(of_batch * self.channels + of_channel) * self.kept..][..self.kept].to_vec()
            }
            _ => vec![0.0; self.kept],
        };
        let x = &call.tensor("x").data;
        let token = |token: usize| match self.tokens_first {
            true => x[(batch * self.tokens + token) * self.channels + channel],
            false => x[(batch * self.channels + channel) * self.tokens + token],
        };
        state.into_iter().chain((0..self.tokens).map(token)).collect()
    }
}

fn compute(call: &Call) -> Result<Vec<Output>, String> {
    let sizes = Sizes::of(call)?;
    let Sizes {
        batch, channels, kept, ..
    } = sizes;
    let row = |row: usize| {
        let place = [row / channels, row % channels];
        let inputs = sizes.inputs(call, place);
        let outputs: Vec<(f64, f64)> = (0..sizes.tokens)
            .map(|token| one(call, sizes, &inputs, place[1], token))
            .collect();
        let state = match call.fault {
            Some("state_not_written") => &inputs[..kept],
            Some("state_one_behind") if sizes.tokens > 0 => &inputs[sizes.tokens - 1..][..kept],
            _ => &inputs[sizes.tokens..],
        };
        (outputs, state.to_vec())
    };
    let rows: Vec<(Vec<(f64, f64)>, Vec<f64>)> = (0..batch * channels).into_par_iter().map(row).collect();
    // Rows are channels; the output may have them last.
    let at = |at: usize| {
        let (row, token) = match sizes.tokens_first {
            true => {
                let (token, channel) = (at / channels, at % channels);
                (token / sizes.tokens * channels + channel, token % sizes.tokens)
            }
            false => (at / sizes.tokens, at % sizes.tokens),
        };
        rows[row].0[token]
    };
    let (value, error) = (0..batch * channels * sizes.tokens).map(at).unzip();
    let state: Vec<f64> = rows.iter().flat_map(|(_, state)| state.iter().copied()).collect();
    let exact = vec![0.0; state.len()];
    Ok(vec![
        Output::new("y", call.tensor("x").shape.clone(), value, error),
        Output::new("state", vec![batch, channels, kept], state, exact),
    ])
}

/// A token's output and its error, of the state and tokens of its channel.
fn one(call: &Call, sizes: Sizes, inputs: &[f64], channel: usize, token: usize) -> (f64, f64) {
    let taps = sizes.taps;
    let of_taps = match call.is("next_channel_taps") {
        true => (channel + 1) % sizes.channels,
        false => channel,
    };
    let weight = &call.tensor("weight").data[of_taps * taps..][..taps];
    let late = usize::from(call.is("one_late"));
    let product = |tap: usize| {
        let weight = match call.fault {
            Some("taps_reversed") => weight[taps - 1 - tap],
            Some("first_tap_missing") if tap == 0 => 0.0,
            _ => weight[tap],
        };
        // The token itself is the last input of `kept + token + 1`.
        let at = (sizes.kept + token + 1 + tap).checked_sub(taps + late);
        at.map_or(0.0, |at| weight * inputs[at])
    };
    let bias = match call.optional("bias") {
        Some(bias) if !call.is("no_bias") => bias.data[channel],
        _ => 0.0,
    };
    let (before, after) = if call.is("bias_after_activation") {
        (0.0, bias)
    } else {
        (bias, 0.0)
    };
    let terms = Terms::of((0..taps).map(product).chain(std::iter::once(before)), call.u);
    let sum = terms.sum;
    let mut error = terms.error();
    if call.word("cast") == "before_activation" {
        error += half_spacing(call.dtype, sum.abs() + error);
    }
    if call.word("activation") == "none" {
        return (sum + after, error);
    }
    let (value, error) = silu_of(sum, error, call.u);
    (value + after, error)
}
