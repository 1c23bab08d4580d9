//! silu(min(g, c)) · clamp(u, −c, c) of rows [g, u], computed in f32 and rounded once, to the type of the input.

use safetensors::Dtype;

use super::blocks::{numbers, traffic};
use super::data::floats;
use super::{Buffer, Case, Data, Inputs, Op, Problem, Scalar, judge};

pub struct SwiGlu;

impl Op for SwiGlu {
    fn name(&self) -> &'static str {
        "swiglu"
    }

    fn doc(&self) -> &'static str {
        "the gated activation of an expert's two projections, both clamped"
    }

    fn source(&self) -> &'static str {
        include_str!("swiglu.rs")
    }

    fn cases(&self) -> Vec<Case> {
        let mut cases = Vec::new();
        for dtype in ["bf16", "f32"] {
            let case = |inputs, what, rows, cols, timed| Case {
                name: format!("{dtype}.{what}.{rows}x{cols}"),
                keys: vec![("dtype", dtype.into()), ("edges", "all".into())],
                dims: vec![("T", rows), ("C", cols)],
                inputs,
                timed,
            };
            cases.push(case(Inputs::Random, "random", 37, 3072, false));
            cases.push(case(Inputs::Random, "random", 7, 333, false));
            cases.push(case(Inputs::Edges, "edges", 208, 512, false));
            if dtype == "bf16" {
                for rows in [1, 128, 8192] {
                    cases.push(case(Inputs::Random, "timed", rows, 3072, true));
                }
            }
        }
        cases
    }

    fn problem(&self, case: &Case, data: &Data) -> Result<Problem, String> {
        let (rows, cols) = (case.dim("T"), case.dim("C"));
        let (input, x) = numbers("gate_up", case, 2 * cols, data)?;
        let dtype = input.dtype;
        let want = activated(&x, cols);
        let buffers = vec![input, Buffer::output("y", dtype, &[rows, cols])];
        let bytes = traffic(&buffers);
        // Half a step of bfloat16 besides.
        let (size, stored) = if dtype == Dtype::BF16 {
            (2, 2f64.powi(-9))
        } else {
            (4, 0.0)
        };
        let judge = move |outputs: &super::Outputs| {
            let bound = |at: usize| error(want[at]) + stored * want[at].abs();
            judge::within("y", &want, &floats(outputs.get("y"), size), bound, &[rows, cols])
        };
        Ok(Problem {
            buffers,
            scalars: vec![("limit", Scalar::F32(LIMIT))],
            bytes,
            flops: 0,
            judge: Box::new(judge),
        })
    }
}

/// DeepSeek-V4's `swiglu_limit`.
pub(super) const LIMIT: f32 = 10.0;

/// What rows [g, u] of `2·cols` give, in f64.
pub(super) fn activated(x: &[f32], cols: usize) -> Vec<f64> {
    use rayon::prelude::*;
    let mut want = vec![0.0; x.len() / 2];
    want.par_chunks_mut(cols)
        .zip(x.par_chunks(2 * cols))
        .for_each(|(want, x)| {
            let (gate, up) = x.split_at(cols);
            for ((want, gate), up) in want.iter_mut().zip(gate).zip(up) {
                *want = reference::ops::experts::swiglu(f64::from(*gate), f64::from(*up), f64::from(LIMIT));
            }
        });
    want
}

/// By how much a y in f32 may err, with u = 2^-24: 4u of the exponential and of the quotient, which are given to 2 ulp, and
/// u of the sum and the product, with the terms of second order less than 12u; where the exponential overflows, beyond
/// −87, nothing of the number is left, which is less than 88·2^-126 times the limit.
pub(super) fn error(y: f64) -> f64 {
    12.0 * 2f64.powi(-24) * y.abs() + 88.0 * 2f64.powi(-126) * f64::from(LIMIT)
}
