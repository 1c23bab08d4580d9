//! Handover of states from prefill to decode in linear attention with the delta rule (GDN and KDA). Prefill processes packed
//! sequences. Then a decode step processes one more token of each sequence: it reads and updates the states that prefill wrote.
//!
//! Inputs and definitions are the same as in `delta_prefill` (initial states in [K, V], expected final states in [V, K]) and in
//! `delta_decode`. A variant (kernel implementation) may choose where and in which layout prefill stores the states for decode.

use rayon::prelude::*;
use reference::ops::linear_attention::Vk;
use safetensors::Dtype;

use super::data::f32_bytes;
use super::delta_decode::Step;
use super::delta_prefill::{BAR, Prefill, groups, is_carried, judge_carried, judge_o, judge_states, state_shape};
use super::grid::named;
use super::{Buffer, Case, Data, Grid, Judge, KernelOp, Problem, Scalar};

pub(super) const DELTA_HANDOVER: KernelOp = KernelOp {
    name: "delta_handover",
    doc: "prefill of GDN or KDA from states in [K, V], then one decode token on its states in [V, K]",
    cases: || ["gdn", "kda"].into_iter().flat_map(of_type).collect(),
    problem,
    ..KernelOp::NONE
};

fn problem(case: &Case, data: &Data) -> Result<Problem, String> {
    let prefill = Prefill::new(case, data);
    let [o, reads, state] = prefill.want(case)?;
    let mut step = Step::new(&decode(case), data);
    if is_carried(case) {
        step.decay_only();
    }
    // The decode step starts from the expected states of the reference, rounded to f32.
    step.state = f32_bytes(&state.par_iter().map(|x| *x as f32).collect::<Vec<_>>());
    let (next_o, next_states) = step.want::<Vk>()?;
    let next_reads = next_reads(&step, &next_states, case);
    let [t, n, heads, key, dim] = case.sizes(["T", "N", "HV", "K", "V"]);
    let (bound, shape) = (step.bound as f32, state_shape(case, "out_vk"));
    // The RMS error is computed per group of rows. Each sequence and head has only one row, so each row is a group.
    let by = (groups(n * heads, |row| row), vec![0.0; n * heads]);
    let next_o = Judge::rms("next_o", Dtype::BF16, &[n, heads, dim], next_o, by, BAR, WHY_READ);
    let judges = vec![
        judge_o("o", &prefill, o, reads),
        next_o.by_rows(next_reads),
        match is_carried(case) {
            // The error of the decode gate is less than the errors of [`GATE`] decays of prefill together. So allow the errors of
            // t + GATE decays.
            true => judge_carried("state", &shape, next_states, t + GATE),
            false => judge_states("state", &shape, next_states),
        },
    ];
    let problem = Problem::new(buffers(&prefill, &step, case), judges);
    Ok(Problem {
        // States are written by prefill, then read and written by decode.
        bytes: problem.bytes + 8 * shape.iter().product::<usize>() as u64,
        flops: (6 * (t + n) * heads * key * dim) as u64,
        scalars: vec![("scale", Scalar::F32(prefill.scale())), ("bound", Scalar::F32(bound))],
        ..problem
    })
}

/// Number of prefill decays whose errors together exceed the error of one decode gate. With the raw gate x, the decode gate is A
/// · softplus(x) or 5 · σ(A x), where A ≤ 16. Each of its about ten operations errs by at most 2 units of a number up to 16.
const GATE: usize = 32;

const WHY_READ: &str = "products in bf16: a root-mean-square error of the state of 1e-2, relative to what this query or \
                        an average query reads from it, because one query may read almost nothing";

fn of_type(gate: &'static str) -> Vec<Case> {
    // `carried` cases only decay the states. No product adds errors, so a kernel that rounds the states between chunks fails.
    let carried = grid(gate, "carried").random("carried", [1, 17 * 64 + 5, 2]);
    // A shape is the number of sequences, of tokens per sequence, and of heads.
    let short = grid(gate, "short")
        .timed("b1", [1, 64, 64])
        .timed("b32", [32, 64, 64])
        .timed("b256", [256, 16, 64])
        .random("few", [3, 65, 2]);
    [short.done(), carried.done()].concat()
}

/// Creates an empty list of cases. A shape is the number of sequences, tokens per sequence, and heads.
fn grid(gate: &'static str, sequences: &'static str) -> Grid<'static, [i64; 3]> {
    let dims = move |[n, t, h]: [i64; 3]| {
        // A chunk has up to 64 tokens of one sequence.
        let (chunks, gates) = (n * ((t + 63) / 64), if gate == "kda" { 128 } else { 1 });
        let sizes = [n, n * t, chunks, h, h, 1, 128, 128, gates, 2, 8, 0, 1];
        named("N T chunks H HV one K V G size index in_vk out_vk", sizes)
    };
    Grid::new(
        gate,
        &[("gate", gate), ("dtype", "bf16"), ("sequences", sequences)],
        dims,
    )
}

/// Returns, for every head of every sequence, the mean square of the outputs that a random query would give. The actual query may
/// give smaller outputs, even smaller than the allowed error of the state. Errors are then divided by this number instead.
fn next_reads(step: &Step, states: &[f64], case: &Case) -> Vec<f64> {
    let [heads, keys, values] = case.sizes(["H", "K", "V"]);
    let squares: Vec<f64> = states
        .par_chunks(keys * values)
        .map(|state| state.iter().map(|s| s * s).sum())
        .collect();
    // q has L2 norm 1, so the mean of its squared elements is 1/K. The output's scale K^-½ gives another factor 1/K, and the
    // mean over V outputs gives 1/V.
    let share = 1.0 / (keys * keys * values) as f64;
    let of_slot = |slot: &i64| {
        squares[*slot as usize * heads..][..heads]
            .iter()
            .map(move |square| share * square)
    };
    step.indices.iter().flat_map(of_slot).collect()
}

/// Makes the `delta_decode` case for the one token after each sequence.
fn decode(case: &Case) -> Case {
    let n = case.dim("N") as i64;
    let mut dims = vec![("B", n), ("slots", n), ("G", 1), ("vk", 1), ("size", 4)];
    dims.extend(["H", "K", "V"].map(|dim| (dim, case.dim(dim) as i64)));
    let gate = case.key("gate");
    Case {
        keys: vec![
            ("kind", gate.into()),
            ("layout", "vk".into()),
            ("state", "f32".into()),
            ("form", if gate == "kda" { "bounded" } else { "softplus" }.into()),
        ],
        dims,
        ..case.clone()
    }
}

/// Buffers of prefill and of decode. One buffer holds both the final states of prefill and the states of decode.
fn buffers(prefill: &Prefill, step: &Step, case: &Case) -> Vec<Buffer> {
    let mut before = prefill.buffers(case);
    let mut after = step.buffers();
    let renamed = [
        ("q", "next_q"),
        ("k", "next_k"),
        ("v", "next_v"),
        ("beta", "next_beta"),
        ("o", "next_o"),
    ];
    for (buffers, names) in [(&mut before, &[("final", "state")][..]), (&mut after, &renamed[..])] {
        for buffer in buffers {
            let name = names.iter().find(|(name, _)| *name == buffer.name);
            buffer.name = name.map_or(buffer.name, |(_, name)| *name);
        }
    }
    [before, after].concat()
}
