//! One decode token of linear attention with the delta rule (GDN and KDA). States are in a pool and updated in place.
//!
//! The operation is fused as in serving engines: q and k are not yet normalised, gates are raw, β is a logit. The
//! recurrence is [`reference::ops::linear_attention`]; states are read as f32 or bf16 and rounded once when they are
//! stored.

mod bounds;

use std::sync::Arc;

use rayon::prelude::*;
use reference::Tensor;
use reference::ops::linear_attention as linear;
use safetensors::Dtype;

use bounds::Bounds;

use super::data::{float_bytes, floats, round_to_bf16, widened};
use super::grid::{Grid, element_bytes};
use super::judge::Judge;
use super::{Batch, Buffer, Case, Data, Inputs, KernelOp, Problem, Scalar};

pub(super) const DELTA_DECODE: KernelOp = KernelOp {
    name: "delta_decode",
    doc: "runs one token through GDN or KDA: norms, gates, and an update of the states in place",
    cases,
    problem,
    ..KernelOp::NONE
};

fn cases() -> Vec<Case> {
    let of_layout = |kind, layout| ["f32", "bf16"].map(|state| of_type(kind, layout, state)).concat();
    let of_kind = |kind| ["kv", "vk"].map(|layout| of_layout(kind, layout)).concat();
    ["gdn", "kda"].into_iter().flat_map(of_kind).collect()
}

fn problem(case: &Case, data: &Data) -> Result<Problem, String> {
    let step = Step::new(case, data);
    let mut buffers = step.buffers();
    let (o, state) = match case.key("layout") {
        "vk" => step.want::<linear::Vk>(),
        _ => step.want::<linear::Kv>(),
    }?;
    let states = 2 * step.taken().count() * step.sizes.matrix() * step.sizes.value_heads() * step.size;
    let bytes = states + buffers.iter().map(Buffer::size).sum::<usize>();
    let o_shape = [step.indices.len(), step.sizes.value_heads(), step.sizes.value];
    let (pool, bound) = (step.pool(), step.bound as f32);
    let [tokens, slots] = case.sizes(["B", "slots"]);
    let batch = Batch::new("B", &["q", "k", "v", "gate", "beta", "indices", "o"]);
    let batch = batch.together(tokens, &["slots"]).pool("indices", "state", slots);
    let of_state = Arc::new(Bounds::new(step)?);
    let of_o = of_state.clone();
    let state = Judge::within(
        "state",
        pool.dtype,
        &pool.shape,
        state,
        move |at, want| of_state.state(at, want),
        WHY_STATE,
    );
    let o = Judge::within("o", Dtype::BF16, &o_shape, o, move |at, want| of_o.o(at, want), WHY_O);
    buffers.push(pool);
    Ok(Problem {
        bytes: bytes as u64,
        scalars: vec![("bound", Scalar::F32(bound))],
        batch: Some(batch),
        ..Problem::new(buffers, vec![state.without_metrics(), o])
    })
}

const WHY_STATE: &str = "f32 arithmetic: the decay errs by a few units of 2^-24 plus the error of its gate, which is \
                         multiplied by the old state; k is multiplied by the error of the written value, a sum of K \
                         products; if states are bf16, half a step is added; states without a token must keep their bits";
const WHY_O: &str = "f32 arithmetic: q is multiplied by the errors of the state and summed over K products; half a step of \
                     bf16 is added; tokens without a state read 0";

fn of_type(kind: &'static str, layout: &'static str, state: &'static str) -> Vec<Case> {
    // `spare` is the number of slots of the pool that no token uses.
    let grid = |form, spare| {
        let dims = move |[b, h, g, k, v]: [i64; 5]| {
            vec![
                ("B", b),
                ("H", h),
                ("G", g),
                ("K", k),
                ("V", v),
                ("slots", b + spare),
                ("vk", i64::from(layout == "vk")),
                ("size", element_bytes(state)),
            ]
        };
        let keys = [("kind", kind), ("layout", layout), ("state", state), ("form", form)];
        Grid::new(format!("{kind}.{layout}.{state}"), &keys, dims)
    };
    let form = if kind == "kda" { "bounded" } else { "softplus" };
    let cases = [
        grid(form, 0)
            .timed("b1", [1, 64, 1, 128, 128])
            .timed("b32", [32, 64, 1, 128, 128])
            .timed("b256", [256, 64, 1, 128, 128]),
        grid(form, 2)
            // Of two heads, so that more than 65,536 rows fit.
            .large("pair", [3, 1, 2, 128, 128])
            .random("grouped", [3, 2, 3, 128, 128])
            .edges("edges", [11, 2, 2, 128, 128])
            .random("wide", [2, 3, 2, 64, 128])
            .random("tall", [2, 3, 2, 128, 64])
            .random("odd", [3, 1, 2, 37, 131]),
        grid("softplus", 2).when(kind == "kda", |grid| grid.edges("softplus", [5, 2, 2, 128, 128])),
    ];
    cases.into_iter().flat_map(Grid::done).collect()
}

#[derive(Clone, Copy)]
struct Sizes {
    heads: usize,
    /// Value heads per key head.
    group: usize,
    key: usize,
    value: usize,
    /// Gates per value head: 1 or K.
    gates: usize,
}

impl Sizes {
    fn value_heads(&self) -> usize {
        self.heads * self.group
    }

    fn matrix(&self) -> usize {
        self.key * self.value
    }
}

/// The inputs, rounded to the types that the kernels read.
pub(super) struct Step {
    sizes: Sizes,
    /// True if the key dimension is contiguous in the states.
    vk: bool,
    /// Bytes per element of the states.
    size: usize,
    /// Lower bound of log decays; 0 if they are computed by softplus.
    pub bound: f64,
    q: Vec<f32>,
    k: Vec<f32>,
    v: Vec<f32>,
    gate: Vec<f32>,
    beta: Vec<f32>,
    a_log: Vec<f32>,
    dt_bias: Vec<f32>,
    pub indices: Vec<i64>,
    /// The token that uses each slot.
    users: Vec<Option<usize>>,
    /// The pool as bytes.
    pub state: Vec<u8>,
}

impl Step {
    pub fn new(case: &Case, data: &Data) -> Self {
        let [tokens, heads, group, key, value] = case.sizes(["B", "H", "G", "K", "V"]);
        let kda = case.key("kind") == "kda";
        let gates = if kda { key } else { 1 };
        let sizes = Sizes {
            heads,
            group,
            key,
            value,
            gates,
        };
        let (slots, values) = (case.dim("slots"), sizes.value_heads());
        let bounded = case.key("form") == "bounded";
        let mut state = data.normal("state", slots * values * sizes.matrix());
        let [mut q, mut k, mut v, mut gate, mut beta] = [
            ("q", tokens * heads * key),
            ("k", tokens * heads * key),
            ("v", tokens * values * value),
            ("gate", tokens * values * gates),
            ("beta", tokens * values),
        ]
        .map(|(name, len)| data.normal(name, len));
        let mut indices = shuffled(data, slots, tokens);
        // exp(a_log) ranges from 1 to 16. With softplus, most decays are then near 1; bounded gates are steep and need no
        // bias.
        let rate = |head: usize| (1.0 + 15.0 * (head as f32 + 0.5) / values as f32).ln();
        let bias = data.normal("dt_bias", values * gates).into_iter();
        let dt_bias: Vec<f32> = bias.map(|x| if bounded { 0.25 * x } else { x - 4.0 }).collect();
        if case.inputs == Inputs::Edges {
            edges(&mut q, key, &[0.0, 1e-4, 1e3]);
            edges(&mut k, key, &[1e-4, 0.0, 1.0, 1e3]);
            state
                .par_chunks_mut(sizes.matrix())
                .enumerate()
                .for_each(|(at, s)| s.iter_mut().for_each(|s| *s *= [1.0, 0.0, 1e6, 1e-6][at % 4]));
            let some = [-100.0, 100.0, f32::NEG_INFINITY, f32::INFINITY, 17.0, -17.0, 0.0];
            for x in [&mut gate, &mut beta] {
                let third = x.iter_mut().step_by(3);
                third.zip(some.iter().cycle()).for_each(|(x, some)| *x = *some);
            }
            if !bounded {
                // The last token only decays, by softplus of numbers from which it differs by more than the bound of a decay.
                let last = (tokens - 1) * values;
                beta[last..].fill(-100.0);
                let gates = gate[last * gates..].iter_mut().zip(&dt_bias);
                gates.for_each(|(gate, bias)| *gate = 10.3 - bias);
            }
            v[value * values / 2 + value / 3] = f32::NAN;
            indices.iter_mut().skip(2).step_by(5).for_each(|index| *index = -1);
        }
        for x in [&mut q, &mut k, &mut v, &mut gate, &mut beta] {
            round_to_bf16(x);
        }
        let mut users = vec![None; slots];
        for (token, &slot) in indices.iter().enumerate().filter(|(_, slot)| **slot >= 0) {
            users[slot as usize] = Some(token);
        }
        Self {
            sizes,
            vk: case.key("layout") == "vk",
            size: case.dim("size"),
            bound: if bounded { -5.0 } else { 0.0 },
            q,
            k,
            v,
            gate,
            beta,
            a_log: (0..values).map(rate).collect(),
            dt_bias,
            indices,
            users,
            state: float_bytes(case.float_type("state"), &state),
        }
    }

    /// Has every token only decay its state: β is 0 in f32.
    pub fn decay_only(&mut self) {
        self.beta.fill(-120.0);
    }

    /// All buffers except the pool.
    pub fn buffers(&self) -> Vec<Buffer> {
        let Sizes { heads, key, value, .. } = self.sizes;
        let (tokens, values) = (self.indices.len(), self.sizes.value_heads());
        let gates = [tokens, values, key];
        let indices: Vec<i32> = self.indices.iter().map(|index| *index as i32).collect();
        vec![
            Buffer::bf16("q", &[tokens, heads, key], &self.q),
            Buffer::bf16("k", &[tokens, heads, key], &self.k),
            Buffer::bf16("v", &[tokens, values, value], &self.v),
            Buffer::bf16("gate", &gates[..if self.sizes.gates == 1 { 2 } else { 3 }], &self.gate),
            Buffer::bf16("beta", &[tokens, values], &self.beta),
            Buffer::f32("a_log", &[self.a_log.len()], &self.a_log),
            Buffer::f32("dt_bias", &[self.dt_bias.len()], &self.dt_bias),
            Buffer::i32("indices", &[tokens], &indices),
            Buffer::output("o", Dtype::BF16, &[tokens, values, value]),
        ]
    }

    fn pool(&self) -> Buffer {
        let [rows, cols] = self.stored();
        let shape = [self.users.len(), self.sizes.value_heads(), rows, cols];
        let dtype = if self.size == 4 { Dtype::F32 } else { Dtype::BF16 };
        Buffer::in_place("state", dtype, &shape, self.state.clone())
    }

    /// Dimensions of a state in memory order.
    fn stored(&self) -> [usize; 2] {
        let Sizes { key, value, .. } = self.sizes;
        if self.vk { [value, key] } else { [key, value] }
    }

    /// The tokens that have a slot, each with its slot.
    fn taken(&self) -> impl Iterator<Item = (usize, usize)> {
        let users = self.users.iter().enumerate();
        users.filter_map(|(slot, token)| Some(((*token)?, slot)))
    }

    /// q and k normalised, log decays, and β.
    fn prepared(&self) -> Result<[Tensor<f64>; 4], String> {
        let Sizes { heads, key, gates, .. } = self.sizes;
        let (tokens, values) = (self.indices.len(), self.sizes.value_heads());
        let [q, k] = [&self.q, &self.k].map(|x| {
            let mut x = Tensor::new([tokens, heads, key], widened(x));
            linear::l2_normalize(&mut x, linear::L2_EPS);
            x
        });
        let shape = if gates == 1 {
            vec![tokens, values]
        } else {
            vec![tokens, values, key]
        };
        let x = &Tensor::new(shape, widened(&self.gate));
        let (a_log, dt_bias) = (&widened(&self.a_log)[..], Some(&widened(&self.dt_bias)[..]));
        let gate = match self.bound {
            0.0 => linear::Gate::Softplus { x, a_log, dt_bias },
            bound => linear::Gate::LowerBound {
                x,
                a_log: Some(a_log),
                dt_bias,
                bound,
            },
        };
        let beta = linear::beta(&Tensor::new([tokens, values], widened(&self.beta)), false);
        Ok([q, k, gate.log_decay()?, beta])
    }

    /// The expected o and the expected pool, neither of them rounded.
    pub fn want<L: linear::Layout>(&self) -> Result<(Vec<f64>, Vec<f64>), String> {
        let [q, k, g, beta] = self.prepared()?;
        let (tokens, values) = (self.indices.len(), self.sizes.value_heads());
        let v = widened(&self.v);
        let inputs = linear::Inputs {
            cu_seqlens: &(0..=tokens).collect::<Vec<usize>>(),
            q: &q,
            k: &k,
            v: &Tensor::new([tokens, values, self.sizes.value], v),
            decay: match self.sizes.gates {
                1 => linear::Decay::Head(&g),
                _ => linear::Decay::Channel(&g),
            },
            beta: Some(&beta),
            scale: self.scale(),
        };
        let [rows, cols] = self.stored();
        let pool = Tensor::new([self.users.len(), values, rows, cols], floats(&self.state, self.size));
        let mut pool = linear::State::<f64, L>::new(pool)?;
        let o = linear::forward(&inputs, &linear::Recurrent::DEFINITION, &mut pool, Some(&self.indices))?;
        Ok((o.data, pool.into_tensor().data))
    }

    fn scale(&self) -> f64 {
        (self.sizes.key as f64).powf(-0.5)
    }

    /// The value head that an element of the pool belongs to, counted over all tokens, and its key and value channels;
    /// `None` if no token uses the slot.
    fn place(&self, at: usize) -> Option<(usize, [usize; 2])> {
        let (values, matrix) = (self.sizes.value_heads(), self.sizes.matrix());
        let (row, col) = (at % matrix / self.stored()[1], at % self.stored()[1]);
        let head = self.users[at / matrix / values]? * values + at / matrix % values;
        Some((head, if self.vk { [col, row] } else { [row, col] }))
    }
}

/// Draws `count` different slots of a pool.
fn shuffled(data: &Data, slots: usize, count: usize) -> Vec<i64> {
    let keys = data.bytes("slots", 8 * slots);
    let mut order: Vec<i64> = (0..slots as i64).collect();
    order.sort_by_key(|slot| &keys[8 * *slot as usize..][..8]);
    order.truncate(count);
    order
}

/// Multiplies the rows by the factors in turn.
fn edges(x: &mut [f32], cols: usize, factors: &[f32]) {
    let rows = x.chunks_mut(cols).zip(factors.iter().cycle());
    rows.for_each(|(row, factor)| row.iter_mut().for_each(|x| *x *= factor));
}
