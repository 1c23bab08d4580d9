//! Prefill of linear attention with the delta rule (GDN and KDA). Packed sequences update initial states to final states, which
//! may have another layout.
//!
//! The definition is [`reference::ops::linear_attention`] with q and k normalised first. Outputs of f32 cases must be within an
//! error bound for f32 arithmetic. In bf16 cases, kernels may multiply in bf16, so the root-mean-square errors are limited
//! instead. In `carried` cases β is 0, so that states only decay: a kernel that rounds the states after every chunk exceeds the
//! error bound.

use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

use rayon::prelude::*;
use reference::Tensor;
use reference::ops::linear_attention as linear;
use reference::ops::store::Token;
use safetensors::Dtype;

use super::data::round_to_bf16;
use super::delta_decode::decay;
use super::grid::{Grid, element_bytes, named};
use super::judge::{Judge, UNIT};
use super::{Batch, Buffer, Case, Data, Inputs, KernelOp, Problem, Scalar};

/// Largest allowed root-mean-square error, relative to that of the expected values. Published kernels with bf16 operands do not
/// exceed it. Rounding the operands alone gives 4·10⁻³ to 5·10⁻³ at every length.
pub(super) const BAR: f64 = 1e-2;

/// Lengths of sequences: empty, and around multiples of the chunk length 64.
const LENGTHS: [usize; 7] = [0, 1, 63, 64, 65, 0, 130];

pub(super) const DELTA_PREFILL: KernelOp = KernelOp {
    name: "delta_prefill",
    doc: "runs packed sequences through GDN or KDA; initial and final states are in [K, V] or [V, K]",
    cases: || ["gdn", "kda"].into_iter().flat_map(of_type).collect(),
    problem,
    ..KernelOp::NONE
};

fn problem(case: &Case, data: &Data) -> Result<Problem, String> {
    let prefill = Prefill::new(case, data);
    let [t, heads, key, dim] = case.sizes(["T", "HV", "K", "V"]);
    let (buffers, shape) = (prefill.buffers(case), state_shape(case, "out_vk"));
    let [o, reads, state] = prefill.want(case)?;
    let judges = match case.key("dtype") {
        "f32" => {
            let [of_o, of_state] = bounds(&prefill, case);
            let vk = case.dim("out_vk") == 1;
            let column = move |at: usize| if vk { at / key % dim } else { at % dim };
            let of_state = move |at: usize, _| of_state[at / (key * dim) * dim + column(at)];
            vec![
                Judge::each("o", Dtype::F32, &prefill.v.shape, o, of_o, WHY),
                Judge::within("final", Dtype::F32, &shape, state, of_state, WHY),
            ]
        }
        _ => {
            let of_state = match is_carried(case) {
                true => judge_carried("final", &shape, state, t),
                false => judge_states("final", &shape, state),
            };
            vec![judge_o("o", &prefill, o, reads), of_state]
        }
    };
    Ok(Problem {
        // A token takes three multiply-adds per state element: to read it for k, to read it for q, and to update it.
        flops: (6 * t * heads * key * dim) as u64,
        scalars: vec![("scale", Scalar::F32(prefill.scale()))],
        batch: Some(batch(case)),
        ..Problem::new(buffers, judges)
    })
}

/// Describes the independent rows: sequences of different lengths, whose tokens are packed one sequence after the other.
fn batch(case: &Case) -> Batch {
    let batch = Batch::new("N", &["q", "k", "v", "g", "beta", "initial", "o", "final"]);
    batch
        .together(case.dim("N"), &["T", "chunks"])
        .starts("starts", case.dim("T"))
}

/// Error bounds for f32 arithmetic: of every element of o, and of the columns `[N, HV, V]` of the final states.
///
/// A step (one token) multiplies a column s of the state by the decay exp(g) ≤ 1 and by 1 − β k kᵀ, and adds β v k. Neither
/// factor makes a vector longer, so existing errors do not grow. The code tracks a bound m ≥ |s|. In each step, the sums of K
/// products (of the step and of the norms of q and k) and a few single operations err by at most (3 K + 40) units of m + |v|.
fn bounds(prefill: &Prefill, case: &Case) -> [Vec<f64>; 2] {
    let [n, heads, k, v, decays] = case.sizes(["N", "HV", "K", "V", "G"]);
    let vk = case.dim("in_vk") == 1;
    let unit = (3 * k + 40) as f64 * UNIT;
    let scale = f64::from(prefill.scale());
    let (mut of_o, mut of_state) = (vec![0.0; prefill.v.data.len()], vec![0.0; n * heads * v]);
    for (column, of_state) in of_state.iter_mut().enumerate() {
        let (sequence, head, channel) = (column / heads / v, column / v % heads, column % v);
        let matrix = &prefill.initial.data[(sequence * heads + head) * k * v..][..k * v];
        let element = |key: usize| matrix[if vk { channel * k + key } else { key * v + channel }];
        let mut most = (0..k).map(|key| f64::from(element(key)).powi(2)).sum::<f64>().sqrt();
        let mut error = 0.0;
        for token in prefill.starts[sequence]..prefill.starts[sequence + 1] {
            let row = token * heads + head;
            let gates = &prefill.g.data[row * decays..][..decays];
            let slowest = gates.iter().fold(f32::MIN, |a, b| a.max(*b));
            let value = f64::from(prefill.v.data[row * v + channel]).abs();
            let decay = f64::from(slowest).exp();
            // Subnormal numbers have no relative error bound, so add an absolute error.
            error = decay * error + unit * (decay * most + value) + 1e-37 * (1.0 + most);
            most = decay * most + f64::from(prefill.beta.data[row]) * value;
            of_o[row * v + channel] = 1.01 * scale * (error + unit * most) + 1e-37;
        }
        *of_state = 1.01 * error;
    }
    [of_o, of_state]
}

const WHY: &str = "f32 arithmetic: a step does not increase existing errors and adds at most (3 K + 40) units of 2^-24 of \
                   the state's column and of |v|";
/// Reason for the limit [`BAR`]; messages show it.
const WHY_BAR: &str = "products in bf16: published kernels stay within a root-mean-square error of 1e-2 over a \
                                  sequence and head; rounding the operands alone gives 4e-3 to 5e-3";

fn of_type(gate: &'static str) -> Vec<Case> {
    // A shape has the sizes T, H, HV, K, V, and two flags: 1 if the initial states are [V, K], and 1 if the final states are [V,
    // K]. Large batches repeat the rows: short sequences make the states large, long sequences make the token buffers large.
    let grid = |dtype, sequences| {
        let dims = move |([t, h, hv, k, v], [input, out]): ([i64; 5], [i64; 2])| {
            let varied = t == LENGTHS.iter().sum::<usize>() as i64;
            let n = match sequences {
                "long" => 3,
                // This is more sequences than a warp has lanes.
                "many" => 70,
                _ => 1,
            };
            let (n, chunks) = match varied {
                true => (LENGTHS.len(), LENGTHS.iter().map(|length| length.div_ceil(64)).sum()),
                false => (n, n * (t as usize / n).div_ceil(64)),
            };
            // A chunk has up to 64 tokens of one sequence.
            let (n, chunks, size) = (n as i64, chunks as i64, element_bytes(dtype));
            let (gates, index) = (if gate == "kda" { k } else { 1 }, if input == out { 4 } else { 8 });
            let sizes = [t, n, chunks, h, hv, k, v, gates, size, index, input, out];
            named("T N chunks H HV K V G size index in_vk out_vk", sizes)
        };
        let keys = [("gate", gate), ("dtype", dtype), ("sequences", sequences)];
        Grid::new(format!("{gate}.{dtype}"), &keys, dims)
    };
    let all = LENGTHS.iter().sum::<usize>() as i64;
    let (large, small) = ([8192, 64, 64, 128, 128], [64, 64, 64, 128, 128]);
    let (lengths, grouped) = ([all, 2, 2, 128, 128], [all, 2, 6, 24, 40]);
    let long = grid("bf16", "long").large("long", ([3 * 333, 1, 1, 128, 128], [0, 1]));
    let carried = grid("bf16", "carried").edges("carried", ([17 * 64 + 5, 2, 2, 128, 128], [0, 1]));
    let many = grid("bf16", "many").edges("many", ([70 * 3, 1, 1, 128, 128], [0, 1]));
    let bf16 = grid("bf16", "short")
        .timed("t8192.kv", (large, [0, 0]))
        .timed("t8192.kv_to_vk", (large, [0, 1]))
        .timed("t64.kv", (small, [0, 0]))
        .timed("t64.kv_to_vk", (small, [0, 1]))
        .large("lengths.kv", (lengths, [0, 0]))
        .random("lengths.kv_to_vk", (lengths, [0, 1]))
        .random("lengths.vk_to_kv", (lengths, [1, 0]))
        .edges("edges", (lengths, [1, 1]))
        .random("t1", ([1, 2, 2, 128, 128], [0, 1]))
        .random("t777", ([777, 1, 1, 128, 128], [1, 1]))
        .random("grouped", (grouped, [0, 1]));
    let f32 = grid("f32", "short")
        .large("grouped", (grouped, [0, 1]))
        .random("lengths", (lengths, [1, 0]))
        .edges("edges", (lengths, [0, 0]));
    [bf16.done(), long.done(), many.done(), carried.done(), f32.done()].concat()
}

/// Returns the check of bf16 outputs `[T, HV, V]` by their RMS error in each group. The rows of one sequence and one head form a
/// group.
pub(super) fn judge_o(output: &'static str, prefill: &Prefill, o: Vec<f64>, reads: Vec<f64>) -> Judge {
    let (starts, shape) = (&prefill.starts, &prefill.v.shape);
    let heads = shape[1];
    let sequence = |token: usize| starts.partition_point(|start| *start <= token) - 1;
    let groups = groups(shape[0] * heads, |row| sequence(row / heads) * heads + row % heads);
    let none = vec![0.0; (starts.len() - 1) * heads];
    Judge::rms(output, Dtype::BF16, shape, o, (groups, none), BAR, WHY_BAR).by_rows(reads)
}

/// Returns the check of f32 states `[N, HV, …]` by their RMS error in each group. Each matrix of the last two dimensions is a
/// group.
pub(super) fn judge_states(output: &'static str, shape: &[usize], states: Vec<f64>) -> Judge {
    let (rows, cols) = (shape[2], shape[3]);
    let means = states.par_chunks(rows * cols);
    let means = means.map(|state| state.iter().map(|s| s * s).sum::<f64>() / (rows * cols) as f64);
    let usual = means.flat_map_iter(|mean| std::iter::repeat_n(mean, rows)).collect();
    let count = shape[0] * shape[1];
    let groups = (groups(count * rows, |row| row / rows), vec![0.0; count]);
    Judge::rms(output, Dtype::F32, shape, states, groups, BAR, WHY_BAR).by_rows(usual)
}

/// Returns the group number of each of `rows` rows; `group` computes it from the row index.
pub(super) fn groups(rows: usize, group: impl Fn(usize) -> usize) -> Vec<u32> {
    (0..rows).map(|row| group(row) as u32).collect()
}

/// True if the case only decays its states (β is 0).
pub(super) fn is_carried(case: &Case) -> bool {
    case.word("sequences") == Some("carried")
}

/// Returns the check of states after tokens that only decay them (β is 0): every element must be within an error bound. The bound
/// holds for kernels that decay the state in each of `tokens` steps, and for kernels that decay it once per chunk.
pub(super) fn judge_carried(output: &'static str, shape: &[usize], states: Vec<f64>, tokens: usize) -> Judge {
    let bound = move |_, want: f64| 12.0 * UNIT * tokens as f64 * want.abs() + 1e-37;
    Judge::within(output, Dtype::F32, shape, states, bound, WHY_CARRIED)
}

const WHY_CARRIED: &str = "β is 0, so a state is only decayed: a step's exponential errs by at most 8 units of 2^-24, its argument, a \
                           sum of at most 64 numbers that are small, by less than 2, and a product by 1; one number is -12, and \
                           its sum errs by less than 800, once, where steps are more than a thousand";

/// Inputs of a case, rounded to the types in which they are stored.
pub(super) struct Prefill {
    pub starts: Vec<usize>,
    q: Tensor<f32>,
    k: Tensor<f32>,
    v: Tensor<f32>,
    g: Tensor<f32>,
    beta: Tensor<f32>,
    /// Initial states, in the layout that the case names.
    initial: Tensor<f32>,
}

impl Prefill {
    /// Draws inputs. Sequences have the lengths [`LENGTHS`] if T is their sum, else N sequences have equal lengths.
    pub fn new(case: &Case, data: &Data) -> Self {
        let [t, n, h, hv, k, v, decays] = case.sizes(["T", "N", "H", "HV", "K", "V", "G"]);
        let lengths = match t == LENGTHS.iter().sum::<usize>() {
            true => LENGTHS.to_vec(),
            false => vec![t / n; n],
        };
        let ends = lengths.iter().scan(0, |end, length| {
            *end += length;
            Some(*end)
        });
        let normal = |name: &str, shape: &[usize]| data.tensor(&format!("delta_prefill/{name}"), shape);
        let kda = case.key("gate") == "kda";
        let mut g = normal("g", &[t, hv, decays][..if kda { 3 } else { 2 }]);
        // Some heads keep nearly the whole state; others forget it within a few tokens.
        let rates = g.data.par_iter_mut().enumerate();
        rates.for_each(|(at, g)| *g = -g.exp().ln_1p() * 2f32.powi(-((at / decays % hv % 8) as i32)));
        let mut beta = normal("beta", &[t, hv]);
        beta.data.iter_mut().for_each(|x| *x = 1.0 / (1.0 + (-*x).exp()));
        let mut prefill = Self {
            starts: std::iter::once(0).chain(ends).collect(),
            q: normal("q", &[t, h, k]),
            k: normal("k", &[t, h, k]),
            v: normal("v", &[t, hv, v]),
            g,
            beta,
            initial: normal("initial", &state_shape(case, "in_vk")),
        };
        if is_carried(case) {
            prefill.carried();
        } else if case.inputs == Inputs::Edges {
            prefill.edges();
        }
        if case.key("dtype") == "bf16" {
            let values = [&mut prefill.q, &mut prefill.k, &mut prefill.v];
            values.into_iter().for_each(|x| round_to_bf16(&mut x.data));
        }
        prefill
    }

    /// Sets β to 0 and the decays near 1: after a thousand tokens, about a third of a state is left. One token in the middle has
    /// the decay e^-12.
    fn carried(&mut self) {
        self.g.data.iter_mut().for_each(|g| *g *= 2f32.powi(-10));
        let tokens = self.starts[self.starts.len() - 1];
        let of_token = self.g.data.len() / tokens;
        self.g.data[tokens / 2 * of_token..][..of_token].fill(-12.0);
        self.beta.data.fill(0.0);
    }

    /// Sets edge tokens: zero, large and small q, k and v; decays of 0, in single tokens and in many tokens in succession;
    /// decays of 1; and β of 0.
    fn edges(&mut self) {
        let decays = [-20.0, -88.0, -104.5, -320.0, -1e4, 0.0];
        for (at, g) in self.g.data.iter_mut().enumerate() {
            if at * 7 % 16 < 3 {
                *g = decays[at / 5 % decays.len()];
            }
        }
        let tokens = self.starts[self.starts.len() - 1];
        let rows = |x: &mut Tensor<f32>, token: usize, factor: f32| {
            let row = x.data.len() / tokens;
            x.data[token * row..][..row].iter_mut().for_each(|x| *x *= factor);
        };
        for token in 0..tokens {
            match token % 13 {
                1 => rows(&mut self.q, token, 0.0),
                3 => rows(&mut self.k, token, 0.0),
                5 => rows(&mut self.v, token, 0.0),
                6 => rows(&mut self.k, token, 2f32.powi(40)),
                7 => rows(&mut self.q, token, 2f32.powi(-12)),
                // The square of the norm of k is then about as large as the ε that is added to it.
                11 => rows(&mut self.k, token, 2f32.powi(-13)),
                8 => rows(&mut self.beta, token, 0.0),
                9 => rows(&mut self.g, token, 0.0),
                _ if token % 50 > 40 => rows(&mut self.g, token, 30.0),
                _ => {}
            }
        }
    }

    pub fn scale(&self) -> f32 {
        (self.q.cols() as f32).sqrt().recip()
    }

    pub fn buffers(&self, case: &Case) -> Vec<Buffer> {
        let dtype = case.float_type("dtype");
        let values = |name, x: &Tensor<f32>| Buffer::floats(name, dtype, &x.shape, &x.data);
        let starts = self.starts.iter().map(|start| *start as i64);
        vec![
            values("q", &self.q),
            values("k", &self.k),
            values("v", &self.v),
            Buffer::f32("g", &self.g.shape, &self.g.data),
            Buffer::f32("beta", &self.beta.shape, &self.beta.data),
            Buffer::f32("initial", &self.initial.shape, &self.initial.data),
            Buffer::integers("starts", case.dim("index"), starts),
            Buffer::output("o", dtype, &self.v.shape),
            Buffer::output("final", Dtype::F32, &state_shape(case, "out_vk")),
        ]
    }

    /// Returns three lists: the expected o; for each row `[T, HV]` of o, the mean square of its elements if the query were random
    /// with L2 norm 1; and the expected final states in the case's layout.
    pub fn want(&self, case: &Case) -> Result<[Vec<f64>; 3], String> {
        let [mut q, mut k, v, g, beta] = [&self.q, &self.k, &self.v, &self.g, &self.beta].map(Tensor::cast);
        linear::l2_normalize(&mut q, linear::L2_EPS);
        linear::l2_normalize(&mut k, linear::L2_EPS);
        let inputs = linear::Inputs {
            cu_seqlens: &self.starts,
            q: &q,
            k: &k,
            v: &v,
            decay: decay(&g),
            beta: Some(&beta),
            scale: f64::from(self.scale()),
        };
        let initial = self.initial.cast();
        let mut state = match case.dim("in_vk") {
            1 => linear::State::<f64, linear::Vk>::new(initial)?.turned(),
            _ => linear::State::<f64, linear::Kv>::new(initial)?,
        };
        // With a random query of L2 norm 1, the sum of the squared outputs is, on average, 1/K of the sum of squares of the
        // state.
        let heads = v.shape[1];
        let reads: Vec<AtomicU64> = (0..v.rows()).map(|_| AtomicU64::new(0)).collect();
        let share = inputs.scale.powi(2) / (q.cols() * v.cols()) as f64;
        let weigh = |at: Token, state: &mut [f64], _: usize| {
            let square = share * state.iter().map(|s| s * s).sum::<f64>();
            let row = (self.starts[at.sequence] + at.token) * heads + at.head;
            reads[row].store(square.to_bits(), Relaxed);
        };
        let form = linear::Recurrent {
            one_pass: false,
            store: Some(&weigh),
        };
        let o = linear::forward(&inputs, &form, &mut state, None)?;
        let state = match case.dim("out_vk") {
            1 => state.turned().into_tensor(),
            _ => state.into_tensor(),
        };
        let reads = reads.into_iter().map(|bits| f64::from_bits(bits.into_inner()));
        Ok([o.data, reads.collect(), state.data])
    }
}

/// Shape of the initial states (`layout` is `in_vk`) or of the final states (`out_vk`): `[N, HV, V, K]` if the case's size of
/// this name is 1, else `[N, HV, K, V]`.
pub(super) fn state_shape(case: &Case, layout: &str) -> [usize; 4] {
    let [n, hv, k, v] = case.sizes(["N", "HV", "K", "V"]);
    match case.dim(layout) {
        1 => [n, hv, v, k],
        _ => [n, hv, k, v],
    }
}
