//! x_t = a ⊙ x_{t−1} + b·u_t, y_t = Σ_n c_n·x_{t,n}: a diagonal state-space model, a scan over the steps of every head.
//!
//! Kernels scan step by step, or by segments with powers of a, whose terms may cancel. So the error follows from the same scan of
//! magnitudes, |a|, |b|, |c|, |u|, whose states m are the sums of the magnitudes of all terms. A step in floating point adds
//! an error of at most 2u·m, which decays as the state does ([`reference::Bounded`] carries it); a sum with powers of a has one rounding
//! more for each step, in the power, which makes it 3u·m. The sum over n adds its own, and c·b and powers 8u·Σ|c|·m.

use reference::ops::diagonal_ssm::DiagonalSsm;
use reference::ops::store::Unrounded;
use reference::{Bounded, Real, Tensor as Numbers};

use super::drift::Equal;
use super::sum::{Terms, widening};
use super::{Call, Operation, Output, bounded, faults, takes};

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
    cases: None,
    rows: None,
    compute,
};

fn compute(call: &Call) -> Result<Vec<Output>, String> {
    let shapes = call.shapes()?;
    let [heads, steps, states] = shapes.sizes(["H", "S", "N"]);
    if states == 0 {
        let found = &call.tensor("a").shape;
        return Err(format!(
            "diagonal_ssm: 'a' is {found:?}, expected [{heads}, N] with N of 1 or more"
        ));
    }
    let u = call.tensor("u");
    let rows = shapes.before.iter().product::<usize>() * heads;
    let state_shape = [shapes.before, &[heads, states]].concat();
    let before = call
        .optional("state")
        .map_or(vec![0.0; rows * states], |state| state.data.clone());
    let read = match call.is("state_not_read") {
        true => vec![0.0; before.len()],
        false => before.clone(),
    };
    // Parameters are those of every row of u.
    let [a, b, c] = ["a", "b", "c"].map(|name| call.tensor(name).data.repeat(rows / heads.max(1)));
    let scan = Scan {
        call,
        sizes: [rows, steps, states],
    };
    let given = [&a[..], &b, &c, &u.data, &read];
    let (y, after) = scan.run::<f64>(given)?;
    let magnitudes = given.map(|x| x.iter().map(|x| x.abs()).collect::<Vec<f64>>());
    let (of_y, of_state) = scan.run::<Bounded>(magnitudes.each_ref().map(|x| &x[..]))?;
    // States of equal parameters are equal.
    let of_row = |row: usize| {
        let own = row * states..(row + 1) * states;
        let parameters = own.clone().map(|at| a[at] * b[at] * c[at] + read[at]);
        let (_, squares) = Equal::of(parameters).sums(own.map(|_| 1.0));
        widening(std::iter::once(Terms {
            count: states as f64,
            multiplicity: squares / states as f64,
            ..Terms::default()
        }))
    };
    let widenings: Vec<f64> = (0..rows).map(of_row).collect();
    let error = |x: &Bounded| 1.5 * bounded::error(call, *x) + 8.0 * call.u * x.value();
    let of_y = of_y.iter().enumerate();
    let of_y = of_y.map(|(at, y)| widenings[at / steps] * error(y)).collect();
    let (state, state_error) = match call.is("state_not_written") {
        true => (before, vec![0.0; rows * states]),
        false => (after, of_state.iter().map(error).collect()),
    };
    Ok(vec![
        Output::new("y", u.shape.clone(), y, of_y),
        Output::new("state", state_shape, state, state_error),
    ])
}

/// A scan of some numbers.
struct Scan<'a> {
    call: &'a Call,
    /// Rows of u, steps, states of a row.
    sizes: [usize; 3],
}

impl Scan<'_> {
    /// The outputs and the states after the last step, of a, b, c, u and the states before the first one.
    fn run<T: Real>(&self, given: [&[f64]; 5]) -> Result<(Vec<T>, Vec<T>), String> {
        let [rows, steps, states] = self.sizes;
        let numbers = |x: &[f64]| -> Vec<T> { x.iter().map(|x| T::from_f64(*x)).collect() };
        let [a, b, c, mut state] =
            [given[0], given[1], given[2], given[4]].map(|x| Numbers::new([rows, states], numbers(x)));
        let u = numbers(given[3]);
        let ssm = DiagonalSsm { a: &a, b: &b, c: &c };
        let part = match self.call.fault {
            Some("carry_lost_64" | "segment_power") => 64,
            Some("carry_lost_128") => 128,
            Some("carry_lost_256") => 256,
            Some("carry_lost_half") => steps.div_ceil(2),
            Some("input_late") => 1,
            _ => steps,
        };
        let mut y = vec![T::ZERO; rows * steps];
        for from in (0..steps).step_by(part.max(1)) {
            let len = part.min(steps - from);
            let columns = (0..rows).flat_map(|row| &u[row * steps + from..][..len]);
            let columns = Numbers::new([rows, len], columns.copied().collect::<Vec<T>>());
            let before = state.clone();
            let mut of_part = ssm.recurrent(&columns, &mut state, &Unrounded)?;
            match self.call.fault {
                // A step without input gives the state before it as it has decayed.
                Some("input_late") => of_part = late(&ssm, &before),
                Some(fault) if fault.starts_with("carry_lost") && from + len < steps => state.data.fill(T::ZERO),
                Some("segment_power") if from + len < steps => {
                    // Fault: the state's decay is one step short.
                    let zeros = Numbers::full([rows, len], T::ZERO);
                    let shorter = Numbers::full([rows, len - 1], T::ZERO);
                    let (mut right, mut wrong) = (before.clone(), before);
                    ssm.recurrent(&zeros, &mut right, &Unrounded)?;
                    ssm.recurrent(&shorter, &mut wrong, &Unrounded)?;
                    let parts = right.data.iter().zip(&wrong.data);
                    let moved = state.data.iter_mut().zip(parts);
                    moved.for_each(|(state, (right, wrong))| *state = *state - *right + *wrong);
                }
                _ => {}
            }
            for (row, of_part) in of_part.data.chunks_exact(len).enumerate() {
                y[row * steps + from..][..len].copy_from_slice(of_part);
            }
        }
        Ok((y, state.data))
    }
}

/// Σ c·x of the states of every row, `[rows, 1]`.
fn late<T: Real>(ssm: &DiagonalSsm<T>, state: &Numbers<T>) -> Numbers<T> {
    let weighted = |row: usize| {
        let terms = ssm.c.row(row).iter().zip(state.row(row));
        terms.fold(T::ZERO, |sum, (c, x)| sum + *c * *x)
    };
    let rows = state.rows();
    Numbers::new([rows, 1], (0..rows).map(weighted).collect::<Vec<T>>())
}
