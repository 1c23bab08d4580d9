//! Causal depthwise convolution: y_t = f(bias + Σ_j w_j·x_{t−W+1+j}) for every channel, with W weights w_j. The activation f is
//! SiLU or the identity. Inputs before the first token come from a state; the operation also returns the new state, which holds
//! the last S ≥ W − 1 inputs of each channel. A call with one token is a decode step.
//!
//! Error bound: the input of f is a sum of W + 1 terms (W products and the bias), which f32 adds in any order. SiLU adds its own
//! error and propagates the error of the sum ([`super::near`]). If a kernel rounds to the output's type before SiLU (the argument
//! `cast`), half a spacing is added to the error of the sum. The state is copied without an error.

use rayon::prelude::*;

use super::draw::{Cases, FLOATS};
use super::near::{Near, silu, stored};
use super::{Call, Operation, Output, faults, takes};

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
        state_not_read of state: "zeros are read in the place of the state" => |call| call.fill("state", 0.0);
        state_not_written: "the state is the one before";
        state_one_behind: "the state lacks the last token";
        next_channel_state of state: "the state is that of the next channel" => |call| call.roll("state", 1);
        next_sequence_state of state: "the state is that of the next sequence" => |call| call.roll("state", 2);
        taps_reversed: "the taps are in the other order"
            => |call| call.edit_rows("weight", <[f64]>::reverse);
        next_channel_taps: "the taps are those of the next channel" => |call| call.roll("weight", 1);
        one_late: "each output is that of the token before";
        first_tap_missing: "the tap of the oldest token is left out"
            => |call| call.edit_rows("weight", |taps| taps[0] = 0.0);
        no_bias of bias: "the bias is left out" => |call| call.leave_out("bias");
        bias_after_activation of bias: "the bias is added after the activation";
    },
    cases: Some(&Cases {
        letters: &["B", "C", "T", "W"],
        sizes: &[&[2, 37, 19, 4], &[1, 256, 128, 4]],
        numbers: &[],
        varied: &[],
        fixed: &[],
        optional: &["bias", "state"],
        types: FLOATS,
        draw: |draw| {
            let [batch, channels, tokens, taps] = draw.sizes();
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
            draw.normal("bias", &[channels], 1.0);
            draw.normal("state", &[batch, channels, taps.max(2) - 1], 1.0);
        },
        why: "sums of W products and a bias in any order, and the activation, in f32",
    }),
    compute,
    ..Operation::NONE
};

/// Sizes of a call.
#[derive(Clone, Copy)]
struct Sizes {
    batch: usize,
    channels: usize,
    tokens: usize,
    taps: usize,
    /// Number of earlier tokens in the state.
    kept: usize,
    tokens_first: bool,
}

impl Sizes {
    fn of(call: &Call) -> Result<Self, String> {
        let tokens_first = call.word("layout") == "btc";
        let shape_of_x = if tokens_first {
            "[B, T, C], or [B, C]"
        } else {
            "[B, C, T], or [B, C]"
        };
        let shapes = call.shapes_of(&[("x", shape_of_x)])?;
        let [batch, channels, taps] = shapes.sizes(["B", "C", "W"]);
        let kept = shapes.size("S").unwrap_or(taps.saturating_sub(1));
        call.require(taps > 0, "weight", "W of 1 or more")?;
        let expected = format_args!("[{batch}, {channels}, S] with S of {} or more", taps - 1);
        call.require(kept + 1 >= taps, "state", expected)?;
        Ok(Self {
            batch,
            channels,
            tokens: shapes.size("T").unwrap_or(1),
            taps,
            kept,
            tokens_first: tokens_first && shapes.size("T").is_some(),
        })
    }

    /// Returns the inputs of one channel: first the earlier inputs from the state, then the tokens of the call.
    fn inputs(self, call: &Call, [batch, channel]: [usize; 2]) -> Vec<f64> {
        let state = match call.optional("state") {
            Some(state) => state.data[(batch * self.channels + channel) * self.kept..][..self.kept].to_vec(),
            None => vec![0.0; self.kept],
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
    let (batch, channels, tokens, kept) = (sizes.batch, sizes.channels, sizes.tokens, sizes.kept);
    let row = |row: usize| {
        let channel = row % channels;
        let inputs = sizes.inputs(call, [row / channels, channel]);
        let outputs = (0..tokens).map(|token| one(call, sizes, &inputs, channel, token));
        let outputs: Vec<Near> = outputs.collect();
        let state = match call.fault {
            Some("state_not_written") => &inputs[..kept],
            Some("state_one_behind") if tokens > 0 => &inputs[tokens - 1..][..kept],
            _ => &inputs[tokens..],
        };
        (outputs, state.to_vec())
    };
    let (rows, state): (Vec<Vec<Near>>, Vec<Vec<f64>>) = (0..batch * channels).into_par_iter().map(row).unzip();
    // `rows` has one entry per sequence and channel, but the output may have the channels last.
    let at = |at: usize| match sizes.tokens_first {
        true => rows[at / channels / tokens * channels + at % channels][at / channels % tokens],
        false => rows[at / tokens][at % tokens],
    };
    let y = (0..batch * channels * tokens).map(at);
    let state = state.into_iter().flatten().map(|x| call.exact(x));
    Ok(vec![
        Output::of("y", call.tensor("x").shape.clone(), y),
        Output::of("state", vec![batch, channels, kept], state),
    ])
}

/// Computes the output of one token and channel. `inputs` are the inputs of the channel, beginning with the earlier inputs that
/// the state holds.
fn one(call: &Call, sizes: Sizes, inputs: &[f64], channel: usize, token: usize) -> Near {
    let taps = sizes.taps;
    let weight = &call.tensor("weight").data[channel * taps..][..taps];
    let late = usize::from(call.is("one_late"));
    // Index of the input that a tap multiplies. The last tap multiplies the token's own input, which has the index `kept +
    // token`.
    let input = |tap: usize| (sizes.kept + token + 1 + tap).checked_sub(taps + late);
    let product = |tap: usize| input(tap).map_or(0.0, |at| weight[tap] * inputs[at]);
    let bias = call.optional("bias").map_or(0.0, |bias| bias.data[channel]);
    let after = call.is("bias_after_activation");
    let bias_of_sum = if after { 0.0 } else { bias };
    let mut y = call.sum((0..taps).map(product).chain([bias_of_sum]));
    if call.word("cast") == "before_activation" {
        y = stored(y, call.dtype);
    }
    if call.word("activation") == "silu" {
        y = silu(y);
    }
    if after { y + call.exact(bias) } else { y }
}
