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
        one_iteration: "columns are normalised once, rows by the softmax only";
        last_iteration_missing: "the last of the iterations is left out";
        norm_eps_of_pre: "the weights of streams have the norms' epsilon added";
        weights_without_eps: "the weights of streams lack their epsilon";
        no_eps: "the norms lack their epsilon";
        weights_of_first_token: "every token is mixed as the first one";
        base_left_out: "logits lack their base";
        scale_of_pre: "all logits are multiplied by the scale of pre";
        post_not_doubled: "the weights of the output are half as large";
        mixture_not_normed: "the mixture is not normed";
        last_stream_missing: "the last stream is left out of the mixture";
        no_weight of weight: "the weight of the norm is left out";
    },
    cases: None,
    rows: None,
    compute,
};

fn compute(call: &Call) -> Result<Vec<Output>, String> {
    let [x, projection, base, scale] = ["x", "fn", "base", "scale"].map(|name| call.tensor(name));
    let [before @ .., streams, channels] = &x.shape[..] else {
        return Err(format!("mhc_pre: 'x' is {:?}, expected [..., N, C]", x.shape));
    };
    let (streams, channels) = (*streams, *channels);
    if streams == 0 || channels == 0 {
        return Err(format!("mhc_pre: 'x' is {:?}, expected N and C of 1 or more", x.shape));
    }
    let (wide, width) = (streams * channels, 2 * streams + streams * streams);
    call.expect("fn", &[width, wide])?;
    call.expect("base", &[width])?;
    call.expect("scale", &[3])?;
    call.expect("weight", &[channels])?;
    let iterations = call.number("iterations");
    if iterations.fract() != 0.0 || !(1.0..=1e6).contains(&iterations) {
        return Err(format!(
            "mhc_pre: 'iterations' is {iterations}, expected a whole number of 1 or more"
        ));
    }
    let rows: usize = before.iter().product();
    let norm_eps = match call.is("no_eps") {
        true => Bounded::ZERO,
        false => bounded::constant(call, "norm_eps"),
    };
    let mut scales = [0, 1, 2].map(|which| Bounded::new(scale.data[which], 0.0));
    if call.is("scale_of_pre") {
        scales = [scales[0]; 3];
    }
    let base = match call.is("base_left_out") {
        true => vec![Bounded::ZERO; width],
        false => bounded::numbers(&base.data),
    };
    let connection = HyperConnection {
        projection: Linear {
            weight: bounded::exact(projection, [width, wide]),
        },
        base,
        scale: scales,
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
        post.data.iter_mut().for_each(|post| *post *= Bounded::new(0.5, 0.0));
    }
    let of_row = |row: usize| {
        let x = &x.data[row * wide..][..wide];
        let mixed: Vec<f64> = mixed.row(row).iter().map(|y| y.value()).collect();
        let logits = projection
            .data
            .chunks(wide)
            .map(|weights| Terms::dot(weights, x, call.u));
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
    let mut y = bounded::output(call, "y", [before, &[channels]].concat(), &mixed.data, &widenings);
    for (at, error) in y.error.iter_mut().enumerate() {
        *error += finite(relative[at / channels] * y.value[at].abs());
    }
    let post = bounded::output(call, "post", [before, &[streams]].concat(), &post.data, &widenings);
    let of_row = |row: usize| {
        let logits = &logits.row(row)[2 * streams..];
        Comb::new(call, iterations as usize, logits, widenings[row]).bounded()
    };
    let (comb, error) = (0..rows).into_par_iter().flat_map_iter(of_row).unzip();
    let comb = Output::new("comb", [before, &[streams, streams]].concat(), comb, error);
    Ok(vec![y, post, comb])
}

/// An error that says something.
fn finite(error: f64) -> f64 {
    if error.is_finite() { error } else { 0.0 }
}

fn length(x: &[Bounded]) -> f64 {
    x.iter().map(|x| x.value() * x.value()).sum::<f64>().sqrt()
}

/// The mixing matrix of a token's logits.
struct Comb<'a> {
    call: &'a Call,
    /// The reference, which has the logits as they are.
    connection: HyperConnection<f64>,
    errors: Vec<f64>,
}

impl<'a> Comb<'a> {
    fn new(call: &'a Call, iterations: usize, logits: &[Bounded], widening: f64) -> Self {
        let streams = logits.len().isqrt();
        let base = vec![0.0; 2 * streams]
            .into_iter()
            .chain(logits.iter().map(|x| x.value()));
        let connection = HyperConnection {
            projection: Linear {
                weight: Numbers::full([2 * streams + logits.len(), streams], 0.0),
            },
            base: base.collect(),
            scale: [0.0; 3],
            streams,
            iterations: match call.fault {
                Some("one_iteration") => 1,
                Some("last_iteration_missing") => (iterations - 1).max(1),
                _ => iterations,
            },
            norm_eps: 1.0,
            eps: call.number("eps"),
        };
        let errors = logits
            .iter()
            .map(|logit| widening * bounded::error(call, *logit))
            .collect();
        Self {
            call,
            connection,
            errors,
        }
    }

    /// The matrix of logits.
    fn of(connection: &HyperConnection<f64>) -> Vec<f64> {
        let zeros = Numbers::full([1, connection.streams, 1], 0.0);
        connection.pre(&zeros).1.comb.data
    }

    /// Its elements with errors.
    fn bounded(mut self) -> Vec<(f64, f64)> {
        let streams = self.connection.streams;
        let comb = Self::of(&self.connection);
        let units = 16.0 * self.connection.iterations as f64 * self.call.u;
        let mut errors: Vec<f64> = comb.iter().map(|c| c * units).collect();
        for (at, error) in self.errors.iter().enumerate() {
            let logit = self.connection.base[2 * streams + at];
            self.connection.base[2 * streams + at] = logit + error;
            for (bound, (moved, c)) in errors.iter_mut().zip(Self::of(&self.connection).iter().zip(&comb)) {
                *bound += 1.01 * (moved - c).abs();
            }
            self.connection.base[2 * streams + at] = logit;
        }
        let of = |at: usize| match self.call.is("comb_transposed") {
            true => at % streams * streams + at / streams,
            false => at,
        };
        (0..comb.len())
            .map(|at| (comb[of(at)], finite(errors[of(at)])))
            .collect()
    }
}
