//! One decode token of linear attention with the delta rule (GDN and KDA). States lie in a pool and are updated in place.
//!
//! The operation includes the steps that serving engines fuse: kernels normalize q and k, and compute the decay from the raw gate
//! and β from its logit. The recurrence is [`reference::ops::linear_attention`]. Kernels read states as f32 or bf16, and round
//! them once when they store them.

mod bounds;

use std::sync::Arc;

use reference::Tensor;
use reference::ops::linear_attention as linear;
use safetensors::Dtype;

use bounds::Bounds;

use super::data::{float_bytes, round_to_bf16, widened};
use super::edges::{self, Edge::Times};
use super::grid::{Grid, element_bytes, named, pairs};
use super::judge::numbers;
use super::{Batch, Buffer, Case, Data, Inputs, Judge, KernelOp, Problem, Scalar};

pub(super) const DELTA_DECODE: KernelOp = KernelOp {
    name: "delta_decode",
    doc: "runs one token through GDN or KDA: norms, gates, and an update of the states in place",
    cases,
    problem,
    ..KernelOp::NONE
};

fn cases() -> Vec<Case> {
    let of_kind = |kind| {
        pairs(&["kv", "vk"], &["f32", "bf16"], |layout, state| {
            of_type(kind, layout, state)
        })
    };
    ["gdn", "kda"].into_iter().flat_map(of_kind).collect()
}

fn problem(case: &Case, data: &Data) -> Result<Problem, String> {
    let step = Step::new(case, data);
    let (o, state) = match case.key("layout") {
        "vk" => step.want::<linear::Vk>(),
        _ => step.want::<linear::Kv>(),
    }?;
    let (buffers, pool) = (step.buffers(), step.pool());
    // Memory traffic includes the state of each token twice, because kernels read it and write it.
    let used = step.users.iter().flatten().count() * pool.size() / step.users.len();
    let bytes = 2 * used + buffers.iter().map(Buffer::size).sum::<usize>();
    let (o_shape, bound) = (step.v.shape.clone(), step.bound as f32);
    let [tokens, slots] = case.sizes(["B", "slots"]);
    let batch = Batch::new("B", &["q", "k", "v", "gate", "beta", "indices", "o"]);
    let batch = batch.together(tokens, &["slots"]).pool("indices", "state", slots);
    let of_state = Arc::new(Bounds::new(step)?);
    let of_o = of_state.clone();
    let of_state = move |at: usize, want: f64| of_state.state(at, want);
    let state = Judge::within("state", pool.dtype, &pool.shape, state, of_state, WHY_STATE);
    let o = Judge::within("o", Dtype::BF16, &o_shape, o, move |at, want| of_o.o(at, want), WHY_O);
    Ok(Problem {
        bytes: bytes as u64,
        scalars: vec![("bound", Scalar::F32(bound))],
        batch: Some(batch),
        ..Problem::new([buffers, vec![pool]].concat(), vec![state.without_metrics(), o])
    })
}

const WHY_STATE: &str = "f32 arithmetic: the decay errs by a few units of 2^-24 plus the error of its gate, which is \
                         multiplied by the old state; k is multiplied by the error of the written value, a sum of K \
                         products; if states are bf16, half a step is added; states without a token must keep their bits";
const WHY_O: &str = "f32 arithmetic: q is multiplied by the errors of the state and summed over K products; half a step of \
                     bf16 is added; tokens without a state read 0";

fn of_type(kind: &'static str, layout: &'static str, state: &'static str) -> Vec<Case> {
    // `spare` is the number of pool slots that no token uses.
    let grid = |form, spare| {
        let dims = move |[b, h, g, k, v]: [i64; 5]| {
            let (vk, size) = (i64::from(layout == "vk"), element_bytes(state));
            named("B H G K V slots vk size", [b, h, g, k, v, b + spare, vk, size])
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
            // This case has only two heads, so that more than 65,536 rows fit in memory.
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

/// Inputs of a case, rounded to the types that the kernels read.
pub(super) struct Step {
    /// True if states are `[V, K]`, so that the key dimension is contiguous.
    vk: bool,
    /// Type of the elements of the states.
    dtype: Dtype,
    /// Lower bound of the log decays (the bounded gate of KDA); 0 if softplus computes the log decays.
    pub bound: f64,
    /// Queries, `[B, H, K]`; `k` has the same shape.
    q: Tensor<f32>,
    k: Tensor<f32>,
    /// Values, `[B, HV, V]`.
    v: Tensor<f32>,
    /// Raw gates: `[B, HV]` for GDN, `[B, HV, K]` for KDA.
    gate: Tensor<f32>,
    beta: Tensor<f32>,
    a_log: Vec<f32>,
    dt_bias: Vec<f32>,
    pub indices: Vec<i64>,
    /// For each slot of the pool, the token that uses it; `None` if no token does.
    users: Vec<Option<usize>>,
    /// Bytes of the state pool.
    pub state: Vec<u8>,
}

impl Step {
    pub fn new(case: &Case, data: &Data) -> Self {
        let [tokens, heads, group, key, value, slots] = case.sizes(["B", "H", "G", "K", "V", "slots"]);
        let (kda, values) = (case.key("kind") == "kda", heads * group);
        let of_gate = [tokens, values, key];
        let of_gate = &of_gate[..if kda { 3 } else { 2 }];
        let bounded = case.key("form") == "bounded";
        let mut state = data.normal("state", slots * values * key * value);
        let [mut q, mut k] = ["q", "k"].map(|name| data.tensor(name, &[tokens, heads, key]));
        let mut v = data.tensor("v", &[tokens, values, value]);
        let (mut gate, mut beta) = (data.tensor("gate", of_gate), data.tensor("beta", &[tokens, values]));
        let mut indices = shuffled(data, slots, tokens);
        // exp(a_log) ranges from 1 to 16. With softplus, a bias of about −4 keeps most decays near 1; bounded gates are steep and
        // need only a small bias.
        let rate = |head: usize| (1.0 + 15.0 * (head as f32 + 0.5) / values as f32).ln();
        let bias = data.normal("dt_bias", of_gate[1..].iter().product()).into_iter();
        let dt_bias: Vec<f32> = bias.map(|x| if bounded { 0.25 * x } else { x - 4.0 }).collect();
        if case.inputs == Inputs::Edges {
            edges::set(&mut q.data, key, 0, &[0.0, 1e-4, 1e3].map(Times));
            edges::set(&mut k.data, key, 0, &[1e-4, 0.0, 1.0, 1e3].map(Times));
            edges::set(&mut state, key * value, 0, &[1.0, 0.0, 1e6, 1e-6].map(Times));
            let some = [-100.0, 100.0, f32::NEG_INFINITY, f32::INFINITY, 17.0, -17.0, 0.0];
            for x in [&mut gate.data, &mut beta.data] {
                let third = x.iter_mut().step_by(3);
                third.zip(some.iter().cycle()).for_each(|(x, some)| *x = *some);
            }
            if !bounded {
                // β of the last token is 0, so this token only decays its state. Its gate x is large, but softplus(x) still
                // differs from x by more than the error bound of a decay: a kernel that computes softplus(x) as x fails.
                let last = tokens - 1;
                beta.data[last * values..].fill(-100.0);
                let gates = gate.data[last * dt_bias.len()..].iter_mut().zip(&dt_bias);
                gates.for_each(|(gate, bias)| *gate = 10.3 - bias);
            }
            v.data[value * values / 2 + value / 3] = f32::NAN;
            indices.iter_mut().skip(2).step_by(5).for_each(|index| *index = -1);
        }
        for x in [&mut q, &mut k, &mut v, &mut gate, &mut beta] {
            round_to_bf16(&mut x.data);
        }
        let mut users = vec![None; slots];
        for (token, &slot) in indices.iter().enumerate().filter(|(_, slot)| **slot >= 0) {
            users[slot as usize] = Some(token);
        }
        Self {
            vk: case.key("layout") == "vk",
            dtype: case.float_type("state"),
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

    /// Sets all β logits so low that β is 0 in f32: every token only decays its state.
    pub fn decay_only(&mut self) {
        self.beta.data.fill(-120.0);
    }

    /// All buffers except the state pool.
    pub fn buffers(&self) -> Vec<Buffer> {
        let bf16 = |name, x: &Tensor<f32>| Buffer::bf16(name, &x.shape, &x.data);
        vec![
            bf16("q", &self.q),
            bf16("k", &self.k),
            bf16("v", &self.v),
            bf16("gate", &self.gate),
            bf16("beta", &self.beta),
            Buffer::f32("a_log", &[self.a_log.len()], &self.a_log),
            Buffer::f32("dt_bias", &[self.dt_bias.len()], &self.dt_bias),
            Buffer::integers("indices", 4, self.indices.iter().copied()),
            Buffer::output("o", Dtype::BF16, &self.v.shape),
        ]
    }

    fn pool(&self) -> Buffer {
        let [rows, cols] = self.stored();
        let shape = [self.users.len(), self.values(), rows, cols];
        Buffer::in_place("state", self.dtype, &shape, self.state.clone())
    }

    /// Number of value heads.
    fn values(&self) -> usize {
        self.v.shape[1]
    }

    /// Number of gates per value head: 1 (GDN) or K (KDA).
    fn gates(&self) -> usize {
        self.dt_bias.len() / self.values()
    }

    /// Returns the index of the row of q and k that value head `head` reads. Both indices count the heads of all tokens.
    fn key_head(&self, head: usize) -> usize {
        head * self.q.shape[1] / self.values()
    }

    /// Sizes of the two dimensions of a state, in memory order.
    fn stored(&self) -> [usize; 2] {
        let (key, value) = (self.q.cols(), self.v.cols());
        if self.vk { [value, key] } else { [key, value] }
    }

    /// Computes the inputs of the recurrence: normalized q, normalized k, log decays, and β.
    fn prepared(&self) -> Result<[Tensor<f64>; 4], String> {
        let [q, k] = [&self.q, &self.k].map(|x| {
            let mut x = x.cast();
            linear::l2_normalize(&mut x, linear::L2_EPS);
            x
        });
        let x = &self.gate.cast();
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
        Ok([q, k, gate.log_decay()?, linear::beta(&self.beta.cast(), false)])
    }

    /// Returns the expected o and the expected state pool, both without rounding.
    pub fn want<L: linear::Layout>(&self) -> Result<(Vec<f64>, Vec<f64>), String> {
        let [q, k, g, beta] = self.prepared()?;
        let inputs = linear::Inputs {
            cu_seqlens: &(0..=self.indices.len()).collect::<Vec<usize>>(),
            q: &q,
            k: &k,
            v: &self.v.cast(),
            decay: decay(&g),
            beta: Some(&beta),
            scale: self.scale(),
        };
        let pool = Tensor::new(self.pool().shape, numbers(self.dtype, &self.state));
        let mut pool = linear::State::<f64, L>::new(pool)?;
        let o = linear::forward(&inputs, &linear::Recurrent::DEFINITION, &mut pool, Some(&self.indices))?;
        Ok((o.data, pool.into_tensor().data))
    }

    fn scale(&self) -> f64 {
        (self.q.cols() as f64).powf(-0.5)
    }

    /// Returns the value head to which element `at` of the pool belongs, and the element's key and value channels. Heads are
    /// counted over all tokens. `None` if no token uses the slot.
    fn place(&self, at: usize) -> Option<(usize, [usize; 2])> {
        let ([rows, cols], values) = (self.stored(), self.values());
        let (state, row, col) = (at / (rows * cols), at / cols % rows, at % cols);
        let head = self.users[state / values]? * values + state % values;
        Some((head, if self.vk { [col, row] } else { [row, col] }))
    }
}

/// Wraps log decays as one per head if `g` has two dimensions, else as one per key channel.
pub(super) fn decay(g: &Tensor<f64>) -> linear::Decay<'_, f64> {
    match g.shape.len() {
        2 => linear::Decay::Head(g),
        _ => linear::Decay::Channel(g),
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
