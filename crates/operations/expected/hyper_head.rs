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
        no_eps: "the norms lack their epsilon";
        weights_without_eps: "the weights of streams lack their epsilon";
        eps_exchanged: "the epsilon of the norms is added to the weights";
        base_left_out: "logits lack their base";
        no_scale: "logits are not multiplied by the scale";
        streams_not_normed: "logits are not divided by the root mean square of the streams";
        norm_of_streams: "the mixture is divided by the root mean square of the streams";
        mixture_not_normed: "the mixture is not normed";
        stream_twice: "the stream before the last is mixed in the place of the last";
        last_stream_missing: "the last stream is left out of the mixture";
        next_stream_weight: "the weight of each stream is that of the next";
        no_weight of weight: "the weight of the norm is left out";
    },
    cases: None,
    rows: None,
    compute,
};

fn compute(call: &Call) -> Result<Vec<Output>, String> {
    let [x, projection, base] = ["x", "fn", "base"].map(|name| call.tensor(name));
    let [before @ .., streams, channels] = &x.shape[..] else {
        return Err(format!("hyper_head: 'x' is {:?}, expected [..., N, C]", x.shape));
    };
    let (streams, channels) = (*streams, *channels);
    if streams == 0 || channels == 0 {
        return Err(format!(
            "hyper_head: 'x' is {:?}, expected N and C of 1 or more",
            x.shape
        ));
    }
    let wide = streams * channels;
    call.expect("fn", &[streams, wide])?;
    call.expect("base", &[streams])?;
    call.expect("scale", &[1])?;
    call.expect("weight", &[channels])?;
    let rows: usize = before.iter().product();
    let mut norm_eps = bounded::constant(call, "norm_eps");
    let eps = match call.fault {
        Some("weights_without_eps") => Bounded::ZERO,
        Some("eps_exchanged") => norm_eps,
        _ => bounded::constant(call, "eps"),
    };
    if call.is("no_eps") {
        norm_eps = Bounded::ZERO;
    }
    let given = bounded::exact(x, [rows, streams, channels]);
    let (mut weights, mut bases) = (projection.data.clone(), base.data.clone());
    if call.is("next_stream_weight") {
        weights.rotate_left(wide);
        bases.rotate_left(1);
    }
    if call.is("base_left_out") {
        bases.fill(0.0);
    }
    let mut scale = Bounded::new(call.tensor("scale").data[0], 0.0);
    if call.is("no_scale") {
        scale = Bounded::ONE;
    }
    let head = HyperHead {
        projection: Linear {
            weight: Numbers::new([streams, wide], bounded::numbers(&weights)),
        },
        base: bounded::numbers(&bases),
        scale,
        norm_eps,
        eps,
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
        let logits = weights.chunks(wide).map(|weights| Terms::dot(weights, x, call.u));
        widening(logits.chain([Terms::dot(x, x, call.u), Terms::dot(&mixed, &mixed, call.u)]))
    };
    let widenings: Vec<f64> = (0..rows).into_par_iter().map(of_row).collect();
    let divided = !call.is("mixture_not_normed") && !call.is("norm_of_streams");
    bounded::normed(call, &mut h, norm_eps, divided);
    Ok(vec![bounded::output(
        call,
        "y",
        [before, &[channels]].concat(),
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
        let inverse = match call.is("streams_not_normed") {
            true => Bounded::ONE,
            false => inverse_rms(x.row(row), head.norm_eps),
        };
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
