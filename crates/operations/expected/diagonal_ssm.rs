//! Diagonal state-space model (SSM). A head has a state x of N numbers, weights a, b and c per number, and an input u per step.
//! The steps t are scanned: x_t = a ⊙ x_{t−1} + b·u_t, y_t = Σ_n c_n·x_{t,n}.
//!
//! Error bound: the terms of a state may cancel, so bounds come from magnitudes. A second scan with |a|, |b|, |c| and |u| gives
//! m, the sum of the magnitudes of all terms of a state. If a kernel scans step by step, a step adds an error of at most 2u·m (u
//! is the unit roundoff), which decays with the state ([`super::near`] tracks it). If a kernel scans by segments with powers of
//! a, the power has one more rounding per step, so the error is 3u·m. The sum over n adds its own error, and c·b and the powers
//! add 8u·Σ|c|·m.

use rayon::prelude::*;
use reference::Real;
use reference::ops::linear::dot;

use super::near::Near;
use super::{Call, Operation, Output, faults, takes};

pub(super) const DIAGONAL_SSM: Operation = Operation {
    name: "diagonal_ssm",
    doc: "a diagonal state-space model: a scan over the steps of every head, and the state that is left",
    takes: takes! {
        u Tensor: "[..., H, S]: the inputs, S steps of H heads";
        a Tensor: "[H, N]: what each state is multiplied by at every step";
        b Tensor: "[H, N]: the weight of the input in each state";
        c Tensor: "[H, N]: the weight of each state in the output";
        state Optional: "[..., H, N]: before the first step; zeros if not given";
    },
    faults: faults! {
        input_late: "an output is of the state before its input";
        b_dropped: "inputs are taken as they are, without b" => |call| call.fill("b", 1.0);
        c_dropped: "states are added up without c" => |call| call.fill("c", 1.0);
        no_decay: "states are not multiplied by a" => |call| call.fill("a", 1.0);
        decay_of_input: "the input is multiplied by a, too"
            => |call| {
                let a = call.tensor("a").data.clone();
                call.edit("b", |b| b.data.iter_mut().zip(a).for_each(|(b, a)| *b *= a));
            };
        next_head_decay: "a is that of the next head" => |call| call.roll("a", 1);
        carry_lost_64: "every 64 steps the state begins from 0";
        carry_lost_128: "every 128 steps the state begins from 0";
        carry_lost_256: "every 256 steps the state begins from 0";
        carry_lost_half: "the second half of the steps begins from 0";
        segment_power: "the state at the beginning of 64 steps is passed on with the decay of 63";
        state_not_read of state: "zeros are read in the place of the state";
        state_not_written: "the state is the one before";
    },
    compute,
    ..Operation::NONE
};

fn compute(call: &Call) -> Result<Vec<Output>, String> {
    let shapes = call.shapes()?;
    let [heads, steps, states] = shapes.sizes(["H", "S", "N"]);
    call.require(states > 0, "a", format_args!("[{heads}, N] with N of 1 or more"))?;
    let u = call.tensor("u");
    let rows = shapes.before.iter().product::<usize>() * heads;
    let row = |row: usize| -> [Vec<Near>; 2] {
        let of_head = |name: &str| &call.tensor(name).data[row % heads * states..][..states];
        let state = call.optional("state");
        let before = state.map_or(vec![0.0; states], |state| state.data[row * states..][..states].to_vec());
        let read = call.pick("state_not_read", vec![0.0; states], before.clone());
        let [a, b, c] = ["a", "b", "c"].map(of_head);
        let given = [a, b, c, &u.data[row * steps..][..steps], &read];
        let [y, after] = scan(call, given, dot);
        let magnitudes = given.map(|x| x.iter().map(|x| call.exact(x.abs())).collect::<Vec<Near>>());
        let [of_y, of_after] = scan(call, magnitudes.each_ref().map(|x| &x[..]), |c, x| {
            call.sum_near(&c.iter().zip(x).map(|(c, x)| *c * *x).collect::<Vec<Near>>())
        });
        let with = |(value, magnitude): (f64, Near)| {
            call.near(value, 1.5 * magnitude.error() + 8.0 * call.u * magnitude.value())
        };
        let with = |values: Vec<f64>, magnitudes: Vec<Near>| values.into_iter().zip(magnitudes).map(with).collect();
        let state = match call.is("state_not_written") {
            true => before.into_iter().map(|x| call.exact(x)).collect(),
            false => with(after, of_after),
        };
        [with(y, of_y), state]
    };
    let rows: Vec<[Vec<Near>; 2]> = (0..rows).into_par_iter().map(row).collect();
    let part = |part: usize| rows.iter().flat_map(move |row| row[part].iter().copied());
    Ok(vec![
        Output::of("y", u.shape.clone(), part(0)),
        Output::of("state", [shapes.before, &[heads, states]].concat(), part(1)),
    ])
}

/// Scans all steps of a head with a, b, c, u and the initial states. Returns the outputs and the final states.
fn scan<T: Real>(call: &Call, [a, b, c, u, state]: [&[T]; 5], sum: impl Fn(&[T], &[T]) -> T) -> [Vec<T>; 2] {
    let steps = u.len();
    let part = match call.fault {
        Some("carry_lost_64" | "segment_power") => 64,
        Some("carry_lost_128") => 128,
        Some("carry_lost_256") => 256,
        Some("carry_lost_half") => steps.div_ceil(2),
        _ => steps,
    };
    let mut state = state.to_vec();
    // For the fault `segment_power`: the initial state of the segment, decayed over all steps of the segment except the last one.
    let mut kept = state.clone();
    let mut y = Vec::with_capacity(steps);
    for (step, u) in u.iter().enumerate() {
        let early = call.is("input_late").then(|| sum(c, &state));
        for ((x, a), b) in state.iter_mut().zip(a).zip(b) {
            *x = *a * *x + *b * *u;
        }
        y.push(early.unwrap_or_else(|| sum(c, &state)));
        let last = (step + 1).is_multiple_of(part) && step + 1 < steps;
        match call.fault {
            Some("segment_power") if last => {
                for ((x, kept), a) in state.iter_mut().zip(&kept).zip(a) {
                    *x = *x - *a * *kept + *kept;
                }
                kept.clone_from(&state);
            }
            Some("segment_power") => kept.iter_mut().zip(a).for_each(|(kept, a)| *kept *= *a),
            Some(fault) if fault.starts_with("carry_lost") && last => state.fill(T::ZERO),
            _ => {}
        }
    }
    [y, state]
}
