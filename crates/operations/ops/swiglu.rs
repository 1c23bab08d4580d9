//! silu(min(g, c)) · clamp(u, −c, c) of rows [g, u], computed in f32 and rounded once to the input's type.

use reference::ops::experts::swiglu;
use safetensors::Dtype;

use super::blocks::numbers;
use super::grid::Rows;
use super::judge::{Judge, UNIT, bf16_error};
use super::rmsnorm::rounded;
use super::{Batch, Buffer, Case, Data, Op, Parameters, Problem, Scalar};

pub struct SwiGlu;

impl Op for SwiGlu {
    fn name(&self) -> &'static str {
        "swiglu"
    }

    fn doc(&self) -> &'static str {
        "the gated activation of an expert's two projections, both clamped"
    }

    fn cases(&self) -> Vec<Case> {
        let of_type = |dtype| {
            Rows::new(dtype, &[("dtype", dtype), ("edges", "all")], &[])
                // The first is the one that is repeated: the vectors of a row divide no stride of a grid of 132 multiprocessors.
                .random(&[(37, 2688), (7, 333)])
                .edges("edges", &[(208, 512)])
                .site("model", "layers.*.moe.gate_up", (61 * 64, 48))
                .when(dtype == "bf16", |rows| {
                    rows.timed("timed", &[(1, 3072), (128, 3072), (8192, 3072)])
                })
                .done()
        };
        ["bf16", "f32"].into_iter().flat_map(of_type).collect()
    }

    fn parameters(&self) -> Option<Parameters> {
        let parameters = Parameters::new(&self.cases(), &["T", "C"], &["dtype"]);
        let parameters = parameters.scalar("limit", LIMIT_RANGE);
        Some(parameters.tensor("gate_up", &["T", "2 * C"]))
    }

    fn problem(&self, case: &Case, data: &Data) -> Result<Problem, String> {
        let (rows, cols) = (case.dim("T"), case.dim("C"));
        let (input, x) = numbers("gate_up", case, 2 * cols, data)?;
        let dtype = input.dtype;
        let Activated { want, error, limit } = Activated::new(&x, case);
        let buffers = vec![input, Buffer::output("y", dtype, &[rows, cols])];
        let bound = move |at: usize, y: f64| match dtype {
            Dtype::BF16 => bf16_error(y, error[at]),
            _ => error[at],
        };
        let judge = Judge::within("y", dtype, &[rows, cols], want, bound, rounded(dtype, WHY.into()));
        Ok(Problem {
            scalars: vec![("limit", Scalar::F32(limit))],
            batch: Some(Batch::new("T", &["gate_up", "y"])),
            ..Problem::new(buffers, vec![judge])
        })
    }
}

pub(super) const WHY: &str = "f32 arithmetic errs by at most (12 + 2|g|) units of 2^-24 of |y|: the exponential, its \
                              argument, a reciprocal, a sum and two products; for g below -87, y may underflow to 0";

/// DeepSeek-V4's `swiglu_limit`.
const LIMIT: f32 = 10.0;

pub(super) const LIMIT_RANGE: [f64; 2] = [0.01, 1000.0];

/// The activations in f64, and error bounds for f32 kernels.
pub(super) struct Activated {
    pub want: Vec<f64>,
    pub error: Vec<f64>,
    pub limit: f32,
}

impl Activated {
    /// Computes the activations of the case's rows [g, u], and their error bounds.
    ///
    /// Let u = 2^-24. The power of two errs by 4u. Its argument g·log2(e) is rounded twice, which adds 2|g|u. The
    /// reciprocal is accurate to one ulp and errs by 2u; the sum and the two products err by u each. With the second-order
    /// terms, the total is less than (12 + 2|g|)u plus the spacing of subnormals. Below g = −87 the power or its reciprocal
    /// leaves the range of f32, so the result, which is at most 89·2^-125 times up, may be lost completely.
    pub fn new(x: &[f32], case: &Case) -> Self {
        use rayon::prelude::*;
        let (cols, stated) = (case.dim("C"), case.number("limit", LIMIT));
        let limit = f64::from(stated);
        let each = |(gate, up): (&f32, &f32)| {
            let (gate, up) = (f64::from(*gate), f64::from(*up));
            let y = swiglu(gate, up, limit);
            let lost = if gate < -87.0 {
                89.0 * 2f64.powi(-125) * limit
            } else {
                0.0
            };
            let units = 12.0 + 2.0 * gate.abs().min(200.0);
            (y, units * UNIT * y.abs() + 2f64.powi(-146) + lost)
        };
        let rows = x.par_chunks(2 * cols).flat_map_iter(|x| {
            let (gate, up) = x.split_at(cols);
            gate.iter().zip(up).map(each)
        });
        let (want, error) = rows.unzip();
        let limit = stated;
        Self { want, error, limit }
    }
}
