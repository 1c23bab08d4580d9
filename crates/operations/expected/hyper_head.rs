//! h = Σ_j (σ(μ_j·scale + base_j) + ε)·X_j with μ = fn·x/rms(x) of all N streams together: the last mixing of the residual streams
//! (hyper-connections, mHC), and the RMSNorm of h.
//!
//! Error: the reference runs on numbers that carry it ([`super::bounded`]): sums of products in any order, a sigmoid, two inverse root
//! mean squares, each with what its operands bring.

use rayon::prelude::*;
use reference::ops::hyper_connection::{HyperHead, combine};
use reference::ops::linear::Linear;
use reference::ops::rmsnorm::inverse_rms;
use reference::{Bounded, Real, Tensor as Numbers};

use super::sum::{Terms, widening};
use super::{Call, Operation, Output, bounded, faults, takes};

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
    cases: None,
    rows: None,
    compute,
};

fn compute(call: &Call) -> Result<Vec<Output>, String> {
    let shapes = call.shapes()?;
    let [streams, channels] = shapes.sizes(["N", "C"]);
    let x = call.tensor("x");
    if streams == 0 || channels == 0 {
        return Err(format!(
            "hyper_head: 'x' is {:?}, expected N and C of 1 or more",
            x.shape
        ));
    }
    let wide = streams * channels;
    let rows: usize = shapes.before.iter().product();
    let norm_eps = bounded::constant(call, "norm_eps");
    let given = bounded::exact(x, [rows, streams, channels]);
    let head = HyperHead {
        projection: Linear {
            weight: bounded::exact(call.tensor("fn"), [streams, wide]),
        },
        base: bounded::numbers(&call.tensor("base").data),
        scale: Bounded::exact(call.tensor("scale").data[0]),
        norm_eps,
        eps: bounded::constant(call, "eps"),
    };
    let mut h = match call.fault {
        Some("streams_not_normed" | "stream_twice" | "last_stream_missing") => wrongly(call, &head, &given),
        _ => head.apply(&given),
    };
    if call.is("norm_of_streams") {
        for (row, h) in h.data.chunks_exact_mut(channels).enumerate() {
            let inverse = inverse_rms(&given.data[row * wide..][..wide], norm_eps);
            h.iter_mut().for_each(|h| *h *= inverse);
        }
    }
    let of_row = |row: usize| {
        let x = &x.data[row * wide..][..wide];
        let mixed: Vec<f64> = h.row(row).iter().map(|h| h.value()).collect();
        let logits = call.tensor("fn").data.chunks(wide);
        let logits = logits.map(|weights| Terms::dot(weights, x, call.u));
        widening(logits.chain([Terms::dot(x, x, call.u), Terms::dot(&mixed, &mixed, call.u)]))
    };
    let widenings: Vec<f64> = (0..rows).into_par_iter().map(of_row).collect();
    let divided = !call.is("mixture_not_normed") && !call.is("norm_of_streams");
    bounded::normed(call, &mut h, norm_eps, divided);
    Ok(vec![bounded::output(
        call,
        "y",
        [shapes.before, &[channels]].concat(),
        &h.data,
        &widenings,
    )])
}

/// The mixture by a fault of the weights of streams, or of the streams that they are of.
fn wrongly(call: &Call, head: &HyperHead<Bounded>, x: &Numbers<Bounded>) -> Numbers<Bounded> {
    let [rows, streams, channels] = x.shape[..] else {
        unreachable!("three dimensions");
    };
    let mut x = Numbers::new([rows, streams * channels], x.data.clone());
    let mu = head.projection.apply(&x);
    let mut h = Numbers::full([rows, channels], Bounded::ZERO);
    for row in 0..rows {
        let inverse = call.pick(
            "streams_not_normed",
            Bounded::ONE,
            inverse_rms(x.row(row), head.norm_eps),
        );
        let logits = mu.row(row).iter().zip(&head.base);
        let weight = |(mu, base): (&Bounded, &Bounded)| (*mu * inverse * head.scale + *base).sigmoid() + head.eps;
        let mut weights: Vec<Bounded> = logits.map(weight).collect();
        let last = (streams - 1) * channels;
        match call.fault {
            Some("last_stream_missing") => weights[streams - 1] = Bounded::ZERO,
            Some("stream_twice") if streams > 1 => x.row_mut(row).copy_within(last - channels..last, last),
            _ => {}
        }
        combine(x.row(row), &weights, h.row_mut(row));
    }
    h
}
