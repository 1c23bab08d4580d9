//! Prefill handing its states over to decode: packed sequences through GDN or KDA, then one token more of each, which reads
//! and updates the states where prefill left them.
//!
//! Inputs and definitions are those of `delta_prefill.rs` (initial states in [K, V], final ones wanted in [V, K]) and
//! `delta_decode.rs`. How states get from one to the other is the variant's matter.

use rayon::prelude::*;
use reference::ops::linear_attention::Vk;

use super::data::{f32_bytes, floats};
use super::delta_decode::Step;
use super::delta_prefill::{BAR, Prefill, within_rms};
use super::{Buffer, Case, Data, Inputs, Op, Outputs, Problem, Scalar};

pub struct DeltaHandover;

impl Op for DeltaHandover {
    fn name(&self) -> &'static str {
        "delta_handover"
    }

    fn doc(&self) -> &'static str {
        "prefill of GDN or KDA from states in [K, V], then a token of decode on its states in [V, K]"
    }

    fn cases(&self) -> Vec<Case> {
        ["gdn", "kda"].into_iter().flat_map(cases).collect()
    }

    fn problem(&self, case: &Case, data: &Data) -> Result<Problem, String> {
        let prefill = Prefill::new(case, data);
        let (o, states) = prefill.want(case)?;
        let mut step = Step::new(&decode(case), data);
        // What decode starts from are the states as f32, which their rounding tells from the reference's no more than that.
        step.state = f32_bytes(&states.par_iter().map(|x| *x as f32).collect::<Vec<_>>());
        let (next_o, next_states) = step.want::<Vk>()?;
        let read = reads(&step, &next_states, case);
        let buffers = buffers(&prefill, &step, case);
        let [t, n, heads, dim] = ["T", "N", "HV", "V"].map(|dim| case.dim(dim));
        let matrix = case.dim("K") * dim;
        let states = prefill.state_shape(case, "out_vk");
        let size = |name: &str| {
            buffers
                .iter()
                .find(|buffer| buffer.name == name)
                .map_or(0, Buffer::size)
        };
        // States are written, read and written again.
        let bytes = buffers.iter().map(Buffer::size).sum::<usize>() + 2 * size("state");
        Ok(Problem {
            bytes: bytes as u64,
            flops: (6 * (t + n) * heads * matrix) as u64,
            buffers,
            scalars: vec![
                ("scale", Scalar::F32(prefill.scale())),
                ("bound", Scalar::F32(step.bound as f32)),
            ],
            judge: Box::new(move |outputs: &Outputs| {
                let per_sequence = t / n;
                let none = vec![0.0; n * heads];
                let of_o = (none.clone(), |row: usize| {
                    row / heads / per_sequence * heads + row % heads
                });
                let got = floats(outputs.get("o"), 2);
                let mut all = within_rms("o", &o, &got, of_o, BAR, &[t, heads, dim]);
                let of_next = (read.clone(), |row: usize| row);
                let got = floats(outputs.get("next_o"), 2);
                all.extend(within_rms("next_o", &next_o, &got, of_next, BAR, &[n, heads, dim]));
                let of_state = (none, |row: usize| row / states[2]);
                let got = floats(outputs.get("state"), 4);
                all.extend(within_rms("state", &next_states, &got, of_state, BAR, &states));
                all
            }),
        })
    }
}

fn cases(gate: &'static str) -> Vec<Case> {
    let case = |name: &str, [n, t, h]: [i64; 3], timed| Case {
        name: format!("{gate}.{name}"),
        keys: vec![("gate", gate.into()), ("dtype", "bf16".into())],
        dims: vec![
            ("N", n),
            ("T", n * t),
            // Of 64 tokens, each of one sequence.
            ("chunks", n * ((t + 63) / 64)),
            ("H", h),
            ("HV", h),
            ("one", 1),
            ("K", 128),
            ("V", 128),
            ("G", if gate == "kda" { 128 } else { 1 }),
            ("size", 2),
            ("index", 8),
            ("in_vk", 0),
            ("out_vk", 1),
        ],
        inputs: Inputs::Random,
        timed,
    };
    // Sequences, tokens of each, heads.
    vec![
        case("b1", [1, 64, 64], true),
        case("b32", [32, 64, 64], true),
        case("b256", [256, 16, 64], true),
        case("few", [3, 65, 2], false),
    ]
}

/// What a query of the decoded token reads of its state on average, squared and summed over value channels; of every head of
/// every sequence. A query may happen to read much less, of which the error of the state is then no small part.
fn reads(step: &Step, states: &[f64], case: &Case) -> Vec<f64> {
    let [heads, keys, values] = ["H", "K", "V"].map(|dim| case.dim(dim));
    let squares: Vec<f64> = states
        .par_chunks(keys * values)
        .map(|state| state.iter().map(|s| s * s).sum())
        .collect();
    // q has length 1 and is scaled by K^-½.
    let share = 1.0 / (keys * keys) as f64;
    let of_slot = |slot: &i64| {
        squares[*slot as usize * heads..][..heads]
            .iter()
            .map(move |square| share * square)
    };
    step.indices.iter().flat_map(of_slot).collect()
}

/// The token after the sequences, as `delta_decode.rs` names its sizes.
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

/// Those of both, the states once.
fn buffers(prefill: &Prefill, step: &Step, case: &Case) -> Vec<Buffer> {
    let before = prefill.buffers(case).into_iter().map(|buffer| match buffer.name {
        "final" => Buffer {
            name: "state",
            ..buffer
        },
        _ => buffer,
    });
    let after = step.buffers().into_iter().map(|buffer| Buffer {
        name: match buffer.name {
            "q" => "next_q",
            "k" => "next_k",
            "v" => "next_v",
            "beta" => "next_beta",
            "o" => "next_o",
            other => other,
        },
        ..buffer
    });
    before.chain(after).collect()
}
