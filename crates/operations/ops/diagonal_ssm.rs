//! Diagonal state-space model (SSM). Each head has one channel and N states, which start at zero and are scanned over all steps
//! in f32. The definition is [`DiagonalSsm::recurrent`].

use rayon::prelude::*;
use reference::Tensor;
use reference::ops::diagonal_ssm::DiagonalSsm;
use safetensors::Dtype;

use super::data::widened;
use super::judge::{Judge, UNIT};
use super::{Batch, Buffer, Case, Data, Grid, Inputs, KernelOp, Problem};

pub(super) const DIAGONAL_SSM: KernelOp = KernelOp {
    name: "diagonal_ssm",
    doc: "diagonal state-space model: a scan over the steps of every head",
    cases,
    problem,
    ..KernelOp::NONE
};

fn cases() -> Vec<Case> {
    Grid::of("", &[], ["H", "S", "N"])
        .timed("h16", [16, 8192, 32])
        .timed("h1024", [1024, 8192, 32])
        .timed("h32768", [32768, 8192, 32])
        .large("short", [96, 2048, 32])
        .edges("edges", [32, 4096, 32])
        .random("odd", [5, 77, 7])
        // This case has so many steps that kernels may split them into three or more pieces, and pass states from piece to piece.
        .random("long", [3, 8200, 32])
        .edges("wide", [3, 130, 100])
        .done()
}

fn problem(case: &Case, data: &Data) -> Result<Problem, String> {
    let [heads, steps, states] = case.sizes(["H", "S", "N"]);
    let [mut a, mut b, mut c] = ["a", "b", "c"].map(|name| data.normal(name, heads * states));
    let mut u = data.normal("u", heads * steps);
    a.iter_mut().enumerate().for_each(|(at, a)| *a = decay(at, *a));
    if case.inputs == Inputs::Edges {
        edges(&mut a, &mut b, &mut c, &mut u, steps);
    }
    let buffers = vec![
        Buffer::f32("u", &[heads, steps], &u),
        Buffer::f32("a", &[heads, states], &a),
        Buffer::f32("b", &[heads, states], &b),
        Buffer::f32("c", &[heads, states], &c),
    ];
    let [a, b, c] = [&a, &b, &c].map(|x| Tensor::new([heads, states], widened(x)));
    let ssm = DiagonalSsm { a: &a, b: &b, c: &c };
    let u = Tensor::new([heads, steps], widened(&u));
    let mut state = Tensor::full([heads, states], 0.0);
    let want = ssm.recurrent(&u, &mut state, None)?;
    let judge = Judge::each("y", Dtype::F32, &[heads, steps], want.data, bounds(&ssm, &u), WHY);
    Ok(Problem {
        batch: Some(Batch::new("H", &["u", "a", "b", "c", "y"])),
        ..Problem::new(buffers, vec![judge])
    })
}

/// Makes a decay factor a from a draw from N(0, 1). In cycles of three, inputs decay within about 3, 30 or 300 steps; one factor
/// in eight is negative.
fn decay(at: usize, normal: f32) -> f32 {
    let forgets = [0.3, 0.03, 0.003][at % 3] * (0.5 + normal.abs().min(2.0) / 2.0);
    if at % 8 == 5 { forgets - 1.0 } else { 1.0 - forgets }
}

/// Sets edge values: decays at and near 0, 1 and −1; states without input or with a very small output weight; and inputs that are
/// large, small, zero and subnormal.
fn edges(a: &mut [f32], b: &mut [f32], c: &mut [f32], u: &mut [f32], steps: usize) {
    let some = [0.0, 1.0, -1.0, 1.0 - 2f32.powi(-14), 2f32.powi(-14) - 1.0, 1e-30];
    for (a, some) in a.iter_mut().step_by(5).zip(some.iter().cycle()) {
        *a = *some;
    }
    b.iter_mut().step_by(7).for_each(|b| *b = 0.0);
    c.iter_mut().skip(3).step_by(11).for_each(|c| *c *= 1e-6);
    for (head, u) in u.chunks_mut(steps).enumerate() {
        let factor = [1.0, 0.0, 1e15, 1e-15][head % 4];
        u.iter_mut().for_each(|u| *u *= factor);
        u.iter_mut().step_by(9).for_each(|u| *u = 0.0);
        u[steps / 2] = f32::from_bits(12345);
    }
}

const WHY: &str = "f32 arithmetic: let m be the sum of the magnitudes of a state's terms; each step adds an error of 3 \
                   units of 2^-24 of m, which decays as the state does, and y adds N + 8 units of |c| m";

/// Absolute error of a step whose result is subnormal in f32. Such a result has no relative error bound.
const LEAST: f64 = 1.0 / (1u128 << 126) as f64 / (1 << 20) as f64;

/// Error bound of y, `[H, S]`, for the states x ← a x + b u. Let m be the sum of the magnitudes of a state's terms: m ← |a| m +
/// |b u|. Every step adds an error of at most 3 units of m, in the recurrence as well as in a sum with powers of a. These errors
/// decay like the state. The sum y = Σ_n c_n·x_n has additional errors: one unit for each of its N products, and a few units for
/// the product c b and for the powers.
fn bounds(ssm: &DiagonalSsm<f64>, u: &Tensor<f64>) -> Vec<f64> {
    let (heads, steps, states) = (u.rows(), u.cols(), ssm.a.cols());
    let mut bounds = vec![0.0; heads * steps];
    bounds
        .par_chunks_mut(steps.max(1))
        .enumerate()
        .for_each(|(head, bounds)| {
            let [a, b, c] = [ssm.a, ssm.b, ssm.c].map(|x| x.row(head).iter().map(|x| x.abs()).collect::<Vec<f64>>());
            let (mut magnitude, mut error) = (vec![0.0; states], vec![0.0; states]);
            for (bound, u) in bounds.iter_mut().zip(u.row(head)) {
                // Begin with an absolute error for subnormal results, which have no relative error bound.
                let mut sum = 2f64.powi(-140);
                for n in 0..states {
                    magnitude[n] = a[n] * magnitude[n] + b[n] * u.abs();
                    error[n] = a[n] * error[n] + 3.0 * UNIT * magnitude[n] + LEAST;
                    sum += c[n] * (error[n] + (states + 8) as f64 * UNIT * magnitude[n]);
                }
                *bound = 1.01 * sum;
            }
        });
    bounds
}
