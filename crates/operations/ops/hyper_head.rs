//! Head of a model with hyper-connections: mixes the 4 residual streams X_j into one vector h and applies the final RMSNorm to h.
//!
//! The definition is [`HyperHead::apply`], h = Σ_j (σ(μ_j · scale + base_j) + ε) X_j with the logits μ_j, then [`rmsnorm`].

use reference::ops::hyper_connection::HyperHead;
use reference::ops::rmsnorm::rmsnorm;
use reference::{Bounded, Tensor};

use super::data::{exact, round_to};
use super::edges::Edge::{One, Random, Zeros};
use super::edges::{self, Edge};
use super::mhc_post::{STREAMS, rows_of_streams};
use super::{Batch, Buffer, Case, Data, Inputs, Judge, KernelOp, Problem, Scalar};

/// `NORM_EPS` is added to mean squares, and `EPS` to the weights of streams. They have different values, so that a kernel that
/// swaps them fails.
const NORM_EPS: f32 = 1e-5;
const EPS: f32 = 1e-6;

pub(super) const HYPER_HEAD: KernelOp = KernelOp {
    name: "hyper_head",
    doc: "the last mixing of 4 streams, then RMSNorm of the mixture",
    cases: || rows_of_streams([7, 72], [10, 40], [66_000, 8]),
    problem,
    ..KernelOp::NONE
};

fn problem(case: &Case, data: &Data) -> Result<Problem, String> {
    let [rows, dim] = case.sizes(["B", "C"]);
    let dtype = case.float_type("dtype");
    let wide = STREAMS * dim;
    let mut x = data.normal("hyper_head/x", rows * wide);
    if case.inputs == Inputs::Edges {
        let [large, small] = [30, -20].map(Edge::scaled);
        let kinds = [Random, Zeros, large, small, One(f32::INFINITY), One(f32::NAN)];
        edges::set(&mut x, wide, 0, &kinds);
    }
    round_to(dtype, &mut x);
    let projection = data.around("hyper_head/fn", STREAMS * wide, 0.0, (wide as f32).sqrt().recip());
    // In edge cases the base is about −14, so that the sigmoid of a logit is about as small as the ε that is added to the
    // sigmoid.
    let mean = if case.inputs == Inputs::Edges { -14.0 } else { 0.0 };
    let (base, scale) = (data.around("hyper_head/base", STREAMS, mean, 0.5), [1.2]);
    let weight = data.around("hyper_head/weight", dim, 1.0, 0.1);
    let head = HyperHead {
        projection: exact([STREAMS, wide], &projection),
        base: exact([STREAMS], &base).data,
        scale: Bounded::exact(scale[0]),
        norm_eps: Bounded::exact(NORM_EPS),
        eps: Bounded::exact(EPS),
    };
    let mut want: Tensor<Bounded> = head.apply(&exact([rows, STREAMS, dim], &x));
    rmsnorm(&mut want, Some(&exact([dim], &weight).data), Bounded::exact(NORM_EPS));
    let buffers = vec![
        Buffer::floats("x", dtype, &[rows, STREAMS, dim], &x),
        Buffer::f32("fn", &[STREAMS, wide], &projection),
        Buffer::f32("base", &[STREAMS], &base),
        Buffer::f32("scale", &[1], &scale),
        Buffer::f32("weight", &[dim], &weight),
    ];
    let judge = Judge::bounded("y", dtype, &[rows, dim], &want.data, WHY)?;
    Ok(Problem {
        scalars: vec![("norm_eps", Scalar::F32(NORM_EPS)), ("eps", Scalar::F32(EPS))],
        batch: Some(Batch::new("B", &["x", "y"])),
        ..Problem::new(buffers, vec![judge])
    })
}

const WHY: &str = "f32 arithmetic: sums of products in any order, a sigmoid, and two inverse root mean squares, with the \
                   error of each operation carried to the result; then half a step of the type that is stored";
