//! Head of a model with hyper-connections (mHC): mixes the N residual streams X_j into h = Σ_j (σ(μ_j·scale + base_j) + ε)·X_j,
//! and applies RMSNorm to h. The logits μ = fn·x/rms(x) are computed from x, all streams of a token together.
//!
//! Error bound: the sum of the errors of the logits, of a sigmoid and of the mixture ([`super::streams`]).

use rayon::prelude::*;
use reference::Real;

use super::near::Near;
use super::streams::{inverse_rms, logits, mixed, normed};
use super::{Call, Operation, Output, faults, takes};

pub(super) const HYPER_HEAD: Operation = Operation {
    name: "hyper_head",
    doc: "the residual streams, mixed into one vector, and its norm",
    takes: takes! {
        x Tensor: "[..., N, C]: the streams";
        fn Tensor: "[N, N*C]: the projection to the logits of the streams";
        base Tensor: "[N]: added to the logits";
        scale Tensor: "[1]: multiplied by the logits before";
        weight Optional: "[C]: of the norm; ones if not given";
        norm_eps Number(1e-6): "added to mean squares";
        eps Number(1e-6): "added to the weights of streams";
        norm Word(&["rms", "none"]): "whether the mixture is normed";
    },
    faults: faults! {
        no_eps: "the norms lack their epsilon" => |call| call.set("norm_eps", 0.0);
        weights_without_eps: "the weights of streams lack their epsilon" => |call| call.set("eps", 0.0);
        eps_exchanged: "the epsilon of the norms is added to the weights"
            => |call| call.set("eps", call.number("norm_eps"));
        base_left_out: "logits lack their base" => |call| call.fill("base", 0.0);
        no_scale: "logits are not multiplied by the scale" => |call| call.fill("scale", 1.0);
        streams_not_normed: "logits are not divided by the root mean square of the streams";
        norm_of_streams: "the mixture is divided by the root mean square of the streams";
        mixture_not_normed: "the mixture is not normed";
        stream_twice: "the stream before the last is mixed in the place of the last";
        last_stream_missing: "the last stream is left out of the mixture";
        next_stream_weight: "the weight of each stream is that of the next"
            => |call| [("fn", 1), ("base", 0)].into_iter().for_each(|(name, dim)| call.roll(name, dim));
        no_weight of weight: "the weight of the norm is left out" => |call| call.leave_out("weight");
    },
    compute,
    ..Operation::NONE
};

fn compute(call: &Call) -> Result<Vec<Output>, String> {
    let shapes = call.shapes()?;
    let [streams, channels] = shapes.sizes(["N", "C"]);
    let x = call.tensor("x");
    call.require(streams > 0 && channels > 0, "x", "N and C of 1 or more")?;
    let wide = streams * channels;
    let norm_eps = call.number("norm_eps");
    let row = |row: usize| {
        let mut x = x.data[row * wide..][..wide].to_vec();
        let eps = call.exact(call.number("eps"));
        let weights = logits(call, &x, streams).into_iter().map(|logit| logit.sigmoid() + eps);
        let mut weights: Vec<Near> = weights.collect();
        let of_streams = inverse_rms(call.dot(&x, &x), wide, call.exact(norm_eps));
        match call.fault {
            Some("last_stream_missing") => weights[streams - 1] = Near::ZERO,
            Some("stream_twice") if streams > 1 => {
                x.copy_within(wide - 2 * channels..wide - channels, wide - channels);
            }
            _ => {}
        }
        let mut h = mixed(call, &x, &weights);
        if call.is("norm_of_streams") {
            h.iter_mut().for_each(|h| *h *= of_streams);
        }
        match call.word("norm") {
            "none" => h,
            _ => {
                let divided = !matches!(call.fault, Some("mixture_not_normed" | "norm_of_streams"));
                normed(call, h, norm_eps, divided)
            }
        }
    };
    let rows = shapes.before.iter().product::<usize>();
    let y: Vec<Near> = (0..rows).into_par_iter().flat_map_iter(row).collect();
    Ok(vec![Output::of("y", [shapes.before, &[channels]].concat(), y)])
}
