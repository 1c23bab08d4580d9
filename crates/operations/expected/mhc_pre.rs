//! Pre-block of hyper-connections (mHC): mixes N residual streams X_j into the input y of a model block, and computes the weights
//! post and comb for mixing the block's output back. All weights come from logits l = (fn·x/rms(x))·scale + base, where x has all
//! streams of a token together and fn is a matrix. Three groups of logits give three results: y = Σ_j (σ(l_j) + ε)·X_j, normed;
//! post = 2σ(l); and comb, a matrix of exponentials whose rows and columns are normalized in turn (Sinkhorn).
//!
//! Error bound: y and post have the errors of the logits, of the mixture ([`super::streams`]) and of sigmoids. For comb, errors
//! are not propagated through the normalizations, because the bounds would grow although normalizing does not amplify errors.
//! Instead, each logit of comb is moved by its error bound, one at a time, and the changes of the result are added up; each of
//! the 2·iterations normalizations adds 8u (u is the unit roundoff).
//!
//! A kernel may compute the mean square ms of the mixture from products of streams X_j·X_k. With C channels, each product errs by
//! at most E·|X_j|·|X_k|, where E = min(C·u, λ·u·√(2C)) (Cauchy-Schwarz; λ is [`LAMBDA`]). So y has an additional relative error
//! of E·(Σ_j w_j·|X_j|)²/(2·C·(ms + ε)), with w_j = σ(l_j) + ε.

use rayon::prelude::*;
use reference::ops::hyper_connection::HyperConnection;
use reference::{LAMBDA, Real, Tensor as Numbers};

use super::near::{Near, wider};
use super::streams::{logits, mixed, normed};
use super::sum::Terms;
use super::{Call, Operation, Output, faults, takes};

pub(super) const MHC_PRE: Operation = Operation {
    name: "mhc_pre",
    doc: "the input of a block, mixed of the residual streams and normed, and the weights of its output",
    takes: takes! {
        x Tensor: "[..., N, C]: the streams";
        fn Tensor: "[2N + N*N, N*C]: the projection to the logits of pre, post and comb";
        base Tensor: "[2N + N*N]: added to the logits";
        scale Tensor: "[3]: multiplied by the logits of pre, post and comb before";
        weight Optional: "[C]: of the norm; ones if not given";
        norm_eps Number(1e-6): "added to mean squares";
        eps Number(1e-6): "added to the weights of streams and to sums";
        iterations Number(20.0): "how often the columns of comb are normalised";
        norm Word(&["rms", "none"]): "whether the mixture is normed";
    },
    faults: faults! {
        comb_transposed: "rows and columns of comb are exchanged";
        one_iteration: "columns are normalised once, rows by the softmax only" => |call| call.set("iterations", 1.0);
        last_iteration_missing: "the last of the iterations is left out"
            => |call| call.set("iterations", f64::max(call.number("iterations") - 1.0, 1.0));
        norm_eps_of_pre: "the weights of streams have the norms' epsilon added";
        weights_without_eps: "the weights of streams lack their epsilon";
        no_eps: "the norms lack their epsilon" => |call| call.set("norm_eps", 0.0);
        weights_of_first_token: "every token is mixed as the first one";
        base_left_out: "logits lack their base" => |call| call.fill("base", 0.0);
        scale_of_pre: "all logits are multiplied by the scale of pre" => |call| call.repeat_first("scale", 0);
        post_not_doubled: "the weights of the output are half as large";
        mixture_not_normed: "the mixture is not normed";
        last_stream_missing: "the last stream is left out of the mixture";
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
    call.count("iterations", 1..=1_000_000, "of 1 or more")?;
    let norm_eps = call.number("norm_eps");
    let eps = match call.fault {
        Some("norm_eps_of_pre") => norm_eps,
        Some("weights_without_eps") => 0.0,
        _ => call.number("eps"),
    };
    let row = |row: usize| -> [Vec<Near>; 3] {
        let of_row = |row: usize| &x.data[row * wide..][..wide];
        let weighed = call.pick("weights_of_first_token", 0, row);
        let logits = logits(call, of_row(weighed), streams);
        let weights = logits[..streams].iter().map(|logit| logit.sigmoid() + call.exact(eps));
        let mut weights: Vec<Near> = weights.collect();
        if call.is("last_stream_missing") {
            weights[streams - 1] = Near::ZERO;
        }
        let mut y = mixed(call, of_row(row), &weights);
        if call.word("norm") == "rms" {
            let divided = !call.is("mixture_not_normed");
            let by_products = if divided {
                by_products(call, of_row(row), &weights, &y)
            } else {
                0.0
            };
            let widened = |y: Near| wider(y, finite(by_products * y.value().abs()));
            y = normed(call, y, norm_eps, divided).into_iter().map(widened).collect();
        }
        let post = logits[streams..2 * streams].iter().map(|logit| match logit.sigmoid() {
            half if call.is("post_not_doubled") => half,
            half => half + half,
        });
        [y, post.collect(), comb(call, &logits[2 * streams..])]
    };
    let rows: Vec<[Vec<Near>; 3]> = (0..shapes.before.iter().product()).into_par_iter().map(row).collect();
    let output = |part: usize, name: &'static str, last: &[usize]| {
        let numbers = rows.iter().flat_map(|row| row[part].iter().copied());
        Output::of(name, [shapes.before, last].concat(), numbers)
    };
    Ok(vec![
        output(0, "y", &[channels]),
        output(1, "post", &[streams]),
        output(2, "comb", &[streams, streams]),
    ])
}

/// Returns the error if it is finite, else 0.
fn finite(error: f64) -> f64 {
    if error.is_finite() { error } else { 0.0 }
}

/// Additional relative error of the normed mixture for kernels that compute the mean square of the mixture from products of
/// streams.
fn by_products(call: &Call, x: &[f64], weights: &[Near], mixed: &[Near]) -> f64 {
    let channels = mixed.len() as f64;
    let most = f64::min(channels * call.u, LAMBDA * call.u * (2.0 * channels).sqrt());
    let length = |x: &[f64]| x.iter().map(|x| x * x).sum::<f64>().sqrt();
    let lengths = x.chunks_exact(mixed.len()).zip(weights);
    let lengths = lengths.map(|(x, weight)| weight.value().abs() * length(x));
    let mixed: Vec<f64> = mixed.iter().map(|y| y.value()).collect();
    let squares = length(&mixed).powi(2) + channels * call.number("norm_eps");
    let widening = Terms::dot(x, x, call.u).widening();
    finite(widening * most * lengths.sum::<f64>().powi(2) / (2.0 * squares))
}

/// Computes the mixing matrix comb from a token's logits, with error bounds.
fn comb(call: &Call, logits: &[Near]) -> Vec<Near> {
    let (streams, iterations) = (logits.len().isqrt(), call.number("iterations"));
    let mut connection = HyperConnection {
        projection: Numbers::full([2 * streams + logits.len(), streams], 0.0),
        base: [vec![0.0; 2 * streams], logits.iter().map(|x| x.value()).collect()].concat(),
        scale: [0.0; 3],
        streams,
        iterations: iterations as usize,
        norm_eps: 1.0,
        eps: call.number("eps"),
    };
    let zeros = Numbers::full([1, streams, 1], 0.0);
    // Pass logits through the reference: the projection is zero, so the logits equal the base, which holds the logits of this
    // token.
    let of = |connection: &HyperConnection<f64>| connection.pre(&zeros).1.comb.data;
    let comb = of(&connection);
    let units = 16.0 * iterations * call.u;
    let mut errors: Vec<f64> = comb.iter().map(|c| c * units).collect();
    for (at, logit) in logits.iter().enumerate() {
        connection.base[2 * streams + at] = logit.value() + logit.error();
        for (bound, (moved, c)) in errors.iter_mut().zip(of(&connection).iter().zip(&comb)) {
            *bound += 1.01 * (moved - c).abs();
        }
        connection.base[2 * streams + at] = logit.value();
    }
    let transposed = |at: usize| at % streams * streams + at / streams;
    let of = |at: usize| call.pick("comb_transposed", transposed(at), at);
    let near = |at: usize| call.near(comb[of(at)], finite(errors[of(at)]));
    (0..comb.len()).map(near).collect()
}
