//! y = w ⊙ x · (mean(x²) + ε)^−½ of rows, computed in f32 and rounded once, to the type of x.

use safetensors::Dtype;

use super::blocks::{numbers, traffic};
use super::data::{f32_bytes, floats};
use super::{Buffer, Case, Data, Inputs, Op, Problem, Scalar, judge};

pub struct RmsNorm;

impl Op for RmsNorm {
    fn name(&self) -> &'static str {
        "rmsnorm"
    }

    fn doc(&self) -> &'static str {
        "rows over their root mean square, times weights"
    }

    fn cases(&self) -> Vec<Case> {
        let mut cases = Vec::new();
        for dtype in ["bf16", "f32"] {
            let case = |inputs, what, rows, cols, timed| Case {
                name: format!("{dtype}.{what}.{rows}x{cols}"),
                keys: vec![("dtype", dtype.into()), ("edges", "special".into())],
                dims: vec![("T", rows), ("C", cols), ("S", if dtype == "bf16" { 2 } else { 4 })],
                inputs,
                timed,
            };
            cases.push(case(Inputs::Random, "random", 1037, 1024, false));
            cases.push(case(Inputs::Random, "random", 5, 7168, false));
            cases.push(case(Inputs::Random, "random", 7, 333, false));
            cases.push(case(Inputs::Edges, "edges", 176, 1024, false));
            cases.push(case(
                Inputs::Site("layers.*.attention.kv.window"),
                "kv",
                61 * 64,
                512,
                false,
            ));
            cases.push(case(Inputs::Site("layers.*.input"), "stream", 61 * 64, 256, false));
            if dtype == "bf16" {
                for rows in [1, 128, 8192] {
                    cases.push(case(Inputs::Random, "timed", rows, 7168, true));
                }
            }
        }
        cases
    }

    fn problem(&self, case: &Case, data: &Data) -> Result<Problem, String> {
        let (rows, cols) = (case.dim("T"), case.dim("C"));
        let (input, x) = numbers("x", case, cols, data)?;
        let dtype = input.dtype;
        let Normed { want, weight } = Normed::new(&x, cols, data);
        let buffers = vec![input, weight, Buffer::output("y", dtype, &[rows, cols])];
        let bytes = traffic(&buffers);
        let judge = move |outputs: &super::Outputs| {
            let error = |at: usize| error(cols, want[at]);
            let got = outputs.get("y");
            match dtype {
                Dtype::BF16 => {
                    let bound = |at: usize| judge::bf16_error(want[at], error(at));
                    judge::within("y", &want, &floats(got, 2), bound, &[rows, cols])
                }
                _ => judge::within("y", &want, &floats(got, 4), error, &[rows, cols]),
            }
        };
        Ok(Problem {
            buffers,
            scalars: vec![("eps", Scalar::F32(EPS))],
            bytes,
            flops: 0,
            judge: Box::new(judge),
        })
    }
}

pub(super) const EPS: f32 = 1e-6;

/// Rows normalised in f64, and the weights.
pub(super) struct Normed {
    pub want: Vec<f64>,
    pub weight: Buffer,
}

impl Normed {
    pub fn new(x: &[f32], cols: usize, data: &Data) -> Self {
        use rayon::prelude::*;
        let weight: Vec<f32> = data.normal("weight", cols).iter().map(|w| 1.0 + 0.25 * w).collect();
        let mut want = vec![0.0; x.len()];
        want.par_chunks_mut(cols).zip(x.par_chunks(cols)).for_each(|(want, x)| {
            let squares = x.iter().map(|x| f64::from(*x).powi(2));
            let scale = (squares.sum::<f64>() / cols as f64 + f64::from(EPS)).sqrt().recip();
            for ((want, x), w) in want.iter_mut().zip(x).zip(&weight) {
                *want = f64::from(*x) * scale * f64::from(*w);
            }
        });
        let weight = Buffer::input("weight", Dtype::F32, &[cols], f32_bytes(&weight));
        Self { want, weight }
    }
}

/// By how much a y in f32 may err, with u = 2^-24: the squares are positive, so their sum errs by u for each addition
/// that a term goes through, of which there are at most cols/32 or 32 in a lane, 10 over the lanes and warps, and one for the
/// square; 1/cols, its product and the sum with ε round once each; the root halves all that, and its reciprocal is given to
/// 2 ulp, 4u; two products round once each. A product x·w in the subnormal range errs by half its spacing, 2^-150, which is
/// then multiplied by the reciprocal root, at most ε^−½; a result there by half a spacing again.
pub(super) fn error(cols: usize, y: f64) -> f64 {
    let additions = cols.div_ceil(32).max(32) as f64 + 11.0;
    let relative = ((additions + 3.0) / 2.0 + 6.0) * 2f64.powi(-24);
    relative * y.abs() + (f64::from(EPS).sqrt().recip() + 1.0) * 2f64.powi(-150)
}
