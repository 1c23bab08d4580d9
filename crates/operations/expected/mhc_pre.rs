//! N residual streams → the input of a block of a model, and the weights with which its output is mixed back (hyper-connections, mHC): with
//! logits l = (fn·x/rms(x))·scale + base, y = Σ_j (σ(l_j) + ε)·X_j, normed; post = 2σ(l); and comb, the exponentials of the rest as a
//! matrix whose rows and columns are normalised in turn (Sinkhorn).
//!
//! Error: the reference runs on numbers that carry it ([`super::bounded`]) up to y and post. Normalising does not amplify errors, but what
//! carries them does not know that: each logit of comb is moved by its error, one at a time, and the changes of the result are added
//! up; each of the 2·iterations normalisations adds 8u. The mean square of the mixture may be computed from products of streams
//! X_j·X_k, each off by at most E·|X_j|·|X_k| with E = min(C·u, λ·u·√(2C)) (Cauchy-Schwarz), so y by E·(Σ_j w_j·|X_j|)²/(2·C·(ms + ε))
//! relative to it.

use rayon::prelude::*;
use reference::ops::hyper_connection::{HyperConnection, Mixing, combine};
use reference::ops::linear::Linear;
use reference::{Bounded, LAMBDA, Real, Tensor as Numbers};

use super::sum::{Terms, widening};
use super::{Call, Operation, Output, bounded, faults, takes};

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
    cases: None,
    rows: None,
    compute,
};

fn compute(call: &Call) -> Result<Vec<Output>, String> {
    let shapes = call.shapes()?;
    let [streams, channels] = shapes.sizes(["N", "C"]);
    let x = call.tensor("x");
    if streams == 0 || channels == 0 {
        return Err(format!("mhc_pre: 'x' is {:?}, expected N and C of 1 or more", x.shape));
    }
    let (wide, width) = (streams * channels, 2 * streams + streams * streams);
    call.count("iterations", 1..=1_000_000, "of 1 or more")?;
    let rows: usize = shapes.before.iter().product();
    let norm_eps = bounded::constant(call, "norm_eps");
    let scale = &call.tensor("scale").data;
    let connection = HyperConnection {
        projection: Linear {
            weight: bounded::exact(call.tensor("fn"), [width, wide]),
        },
        base: bounded::numbers(&call.tensor("base").data),
        scale: [0, 1, 2].map(|part| Bounded::exact(scale[part])),
        streams,
        // Comb follows from the logits.
        iterations: 1,
        norm_eps,
        eps: match call.fault {
            Some("norm_eps_of_pre") => norm_eps,
            Some("weights_without_eps") => Bounded::ZERO,
            _ => bounded::constant(call, "eps"),
        },
    };
    let given = bounded::exact(x, [rows, streams, channels]);
    let (mut mixed, Mixing { mut post, .. }) = connection.pre(&given);
    let mut logits = connection.logits(&given);
    let flat = Numbers::new([rows, wide], given.data);
    if call.is("weights_of_first_token") && rows > 0 {
        let (first, of_post) = (logits.row(0).to_vec(), post.row(0).to_vec());
        logits.data = first.repeat(rows);
        post.data = of_post.repeat(rows);
    }
    let weights_of = |row: usize| -> Vec<Bounded> {
        let logits = &logits.row(row)[..streams];
        logits.iter().map(|logit| logit.sigmoid() + connection.eps).collect()
    };
    if let Some("weights_of_first_token" | "last_stream_missing") = call.fault {
        for row in 0..rows {
            let mut weights = weights_of(row);
            if call.is("last_stream_missing") {
                weights[streams - 1] = Bounded::ZERO;
            }
            combine(flat.row(row), &weights, mixed.row_mut(row));
        }
    }
    if call.is("post_not_doubled") {
        post.data.iter_mut().for_each(|post| *post *= Bounded::exact(0.5));
    }
    let of_row = |row: usize| {
        let x = &x.data[row * wide..][..wide];
        let mixed: Vec<f64> = mixed.row(row).iter().map(|y| y.value()).collect();
        let logits = call.tensor("fn").data.chunks(wide);
        let logits = logits.map(|weights| Terms::dot(weights, x, call.u));
        widening(logits.chain([Terms::dot(x, x, call.u), Terms::dot(&mixed, &mixed, call.u)]))
    };
    let widenings: Vec<f64> = (0..rows).into_par_iter().map(of_row).collect();
    let normed = call.word("norm") == "rms" && !call.is("mixture_not_normed");
    let of_products = |row: usize| {
        let most = f64::min(
            channels as f64 * call.u,
            LAMBDA * call.u * (2.0 * channels as f64).sqrt(),
        );
        let lengths = flat.row(row).chunks_exact(channels).zip(weights_of(row));
        let lengths = lengths.map(|(x, weight)| weight.value().abs() * length(x));
        let squares = length(mixed.row(row)).powi(2) + channels as f64 * norm_eps.value();
        widenings[row] * most * lengths.sum::<f64>().powi(2) / (2.0 * squares)
    };
    let relative: Vec<f64> = match normed {
        true => (0..rows).map(of_products).map(finite).collect(),
        false => vec![0.0; rows],
    };
    bounded::normed(call, &mut mixed, norm_eps, normed);
    let mut y = bounded::output(
        call,
        "y",
        [shapes.before, &[channels]].concat(),
        &mixed.data,
        &widenings,
    );
    for (at, error) in y.error.iter_mut().enumerate() {
        *error += finite(relative[at / channels] * y.value[at].abs());
    }
    let post = bounded::output(
        call,
        "post",
        [shapes.before, &[streams]].concat(),
        &post.data,
        &widenings,
    );
    let of_row = |row: usize| comb(call, &logits.row(row)[2 * streams..], widenings[row]);
    let (value, error) = (0..rows).into_par_iter().flat_map_iter(of_row).unzip();
    let comb = Output::new("comb", [shapes.before, &[streams, streams]].concat(), value, error);
    Ok(vec![y, post, comb])
}

/// An error that says something.
fn finite(error: f64) -> f64 {
    if error.is_finite() { error } else { 0.0 }
}

fn length(x: &[Bounded]) -> f64 {
    x.iter().map(|x| x.value() * x.value()).sum::<f64>().sqrt()
}

/// The mixing matrix of a token's logits, with errors.
fn comb(call: &Call, logits: &[Bounded], widening: f64) -> Vec<(f64, f64)> {
    let (streams, iterations) = (logits.len().isqrt(), call.number("iterations"));
    let mut connection = HyperConnection {
        projection: Linear {
            weight: Numbers::full([2 * streams + logits.len(), streams], 0.0),
        },
        base: [vec![0.0; 2 * streams], logits.iter().map(|x| x.value()).collect()].concat(),
        scale: [0.0; 3],
        streams,
        iterations: iterations as usize,
        norm_eps: 1.0,
        eps: call.number("eps"),
    };
    let zeros = Numbers::full([1, streams, 1], 0.0);
    // The reference has the logits as they are.
    let of = |connection: &HyperConnection<f64>| connection.pre(&zeros).1.comb.data;
    let comb = of(&connection);
    let units = 16.0 * iterations * call.u;
    let mut errors: Vec<f64> = comb.iter().map(|c| c * units).collect();
    for (at, logit) in logits.iter().enumerate() {
        connection.base[2 * streams + at] = logit.value() + widening * bounded::error(call, *logit);
        for (bound, (moved, c)) in errors.iter_mut().zip(of(&connection).iter().zip(&comb)) {
            *bound += 1.01 * (moved - c).abs();
        }
        connection.base[2 * streams + at] = logit.value();
    }
    let transposed = call.is("comb_transposed");
    let of = |at: usize| {
        if transposed {
            at % streams * streams + at / streams
        } else {
            at
        }
    };
    (0..comb.len())
        .map(|at| (comb[of(at)], finite(errors[of(at)])))
        .collect()
}
