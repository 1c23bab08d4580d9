//! The gated delta rule, token by token: S ← diag(α)·S, d = β·(v − Sᵀk), S ← S + k·dᵀ, o = s·Sᵀq. S is the state [K, V] of a
//! head, α = e^g its decay, and s the scale of queries. GDN has one decay per head, KDA one per key channel. The final state is
//! also an output. With one token, this is a decode step.
//!
//! Error bound of one token, to first order plus one percent, for each column of S separately. α errs by (4 + 2|g|)·u, where u is
//! the unit roundoff. If q and k are normalized, their relative error is half the relative error of their sum of squares, plus
//! 4u. The product r = Sᵀk has three errors: the error of the sum; |r|·ρ, where all terms share the relative error ρ; and an
//! independent error per term. The error of d is |β| times the error of r, plus 3u. The error of S is |k| times the error of d,
//! plus the error of α·S, plus one rounding. A kernel may compute o from the updated state, as Sᵀq, or from the state before the
//! update, as (α·S)ᵀq + d·(k·q). The bound covers both: it adds the errors of both sums, and the error of d times k·q.
//!
//! The error from earlier tokens is multiplied by diag(α)·(I − β·k·kᵀ), whose norm is at most max α·max(1, |1 − β·|k|²|). Let ε
//! be the length of the error vector of a column. After a token, ε is at most this norm times the previous ε, plus the error that
//! the token adds. An element of a state errs by at most ε, and an output by |s|·|q|·ε.

use std::ops::Range;

use rayon::prelude::*;

use super::draw::{Cases, FLOATS};
use super::drift::Equal;
use super::paging::starts;
use super::sum::Terms;
use super::{Call, Operation, Output, Tensor, faults, takes};

pub(super) const GATED_DELTA: Operation = Operation {
    name: "gated_delta",
    doc: "the gated delta rule token by token, and the state that is left",
    takes: takes! {
        q Tensor: "[B, T, H, K]";
        k Tensor: "[B, T, H, K]";
        v Tensor: "[B, T, HV, V]; value head h belongs to key head h/(HV/H)";
        g Tensor: "[B, T, HV], or [B, T, HV, K] for a decay of each key channel: logs of decays, at most 0";
        beta Optional: "[B, T, HV]; without it v is written as it is, without the delta rule";
        state Optional: "[B, HV, K, V], or [B, HV, V, K] if layout = \"vk\": before the first token; zeros if not given";
        cu_seqlens Optional:
            "[N + 1]: where each of N sequences begins in the tokens, and where the last ends; B is 1 then, and N of the states";
        scale Number(f64::NAN): "of q; 1/√K if it is not given";
        l2norm Number(0.0): "whether q and k are divided by √(Σ x² + eps)";
        eps Number(1e-6): "of that norm";
        layout Word(&["kv", "vk"]): "the order of the last two dimensions of the state";
    },
    faults: faults! {
        state_not_written: "the state is the one before";
        state_not_read of state: "zeros are read in the place of the state" => |call| call.fill("state", 0.0);
        state_read_transposed of state: "the state is read in the other layout, and written in the right one";
        state_carried_over of cu_seqlens: "each sequence goes on from the state that the one before has left";
        no_decay: "nothing decays" => |call| call.fill("g", 0.0);
        decay_on_values: "the decay of a key channel is that of the value channel";
        decay_after_read: "k reads the state before it decays";
        no_beta of beta: "beta is left out" => |call| call.fill("beta", 1.0);
        no_delta of beta: "what k reads is not subtracted from v";
        read_before_update: "q reads the state before it is updated";
        no_l2norm of l2norm: "q and k are not normalised" => |call| call.set("l2norm", 0.0);
        no_l2norm_eps of l2norm: "eps of the norm is left out" => |call| call.set("eps", 0.0);
        no_scale: "the scale is left out" => |call| call.set("scale", 1.0);
        other_group: "key head h mod H is read in the place of h/(HV/H)";
    },
    cases: Some(&Cases {
        letters: &["B", "T", "H", "HV", "K", "V"],
        sizes: &[&[2, 7, 2, 4, 16, 24], &[1, 65, 4, 4, 64, 64]],
        numbers: &[],
        varied: &[("l2norm", 1.0), ("scale", 0.5), ("eps", 0.1)],
        fixed: &[],
        optional: &["beta", "state"],
        types: FLOATS,
        draw: |draw| {
            let [batch, tokens, heads, value_heads, keys, values] = draw.sizes();
            draw.require(value_heads % heads == 0, "HV is not a multiple of H");
            for name in ["q", "k"] {
                draw.normal(name, &[batch, tokens, heads, keys], (keys as f64).sqrt().recip());
            }
            draw.normal("v", &[batch, tokens, value_heads, values], 1.0);
            draw.uniform("g", &[batch, tokens, value_heads], [-1.0, 0.0]);
            draw.uniform("beta", &[batch, tokens, value_heads], [0.0, 1.0]);
            let state = match draw.is("layout", "vk") {
                true => [batch, value_heads, values, keys],
                false => [batch, value_heads, keys, values],
            };
            draw.normal("state", &state, 1.0);
        },
        why: "the recurrence in f32, each sum in any order; errors of a state decay with it",
    }),
    compute,
    ..Operation::NONE
};

/// Sizes of a call.
#[derive(Clone, Copy)]
struct Sizes {
    heads: usize,
    values: usize,
    key: usize,
    value: usize,
    /// Number of decays per head: 1 (GDN) or K (KDA).
    gates: usize,
}

impl Sizes {
    /// Returns the sizes of the call, and the range of token rows of each sequence.
    fn of(call: &Call) -> Result<(Self, Vec<Range<usize>>), String> {
        let shapes = call.shapes_of(&[("state", ""), ("cu_seqlens", "")])?;
        let [batch, tokens, heads, key, values, value] = shapes.sizes(["B", "T", "H", "K", "HV", "V"]);
        let fits = heads > 0 && values.is_multiple_of(heads);
        let expected = format_args!("[{batch}, {tokens}, HV, V] with HV a multiple of {heads}");
        call.require(fits, "v", expected)?;
        let gates = if call.tensor("g").shape.len() == 4 { key } else { 1 };
        if let Some(g) = call.tensor("g").data.iter().find(|g| **g > 0.0) {
            return Err(format!("gated_delta: 'g' has {g}, expected logs of decays, at most 0"));
        }
        let starts = starts(call, "cu_seqlens", tokens)?;
        let fits = starts.is_none() || batch == 1;
        call.require(fits, "q", "one row of tokens with cu_seqlens")?;
        let sequences: Vec<Range<usize>> = match starts {
            None => (0..batch).map(|at| at * tokens..(at + 1) * tokens).collect(),
            Some(starts) => starts.windows(2).map(|pair| pair[0]..pair[1]).collect(),
        };
        let sizes = Self {
            heads,
            values,
            key,
            value,
            gates,
        };
        call.expect("state", &sizes.state(call, sequences.len()))?;
        Ok((sizes, sequences))
    }

    /// Shape of the states of `sequences` sequences.
    fn state(self, call: &Call, sequences: usize) -> [usize; 4] {
        match call.word("layout") {
            "vk" => [sequences, self.values, self.value, self.key],
            _ => [sequences, self.values, self.key, self.value],
        }
    }
}

/// Inputs of one token for one value head.
struct Token {
    /// Query, L2-normalized if the call asks for it, and multiplied by the scale. `k` is the key, normalized in the same way.
    q: Vec<f64>,
    k: Vec<f64>,
    /// Relative error of q, and relative error of k.
    off: [f64; 2],
    /// Decays with their relative errors: one per head, or one per key channel.
    decays: Vec<(f64, f64)>,
    beta: Option<f64>,
}

/// State of one value head as `[V, K]`, with the error bound of each element (`error`) and the length of the error vector of each
/// column (`length`).
struct Head {
    state: Vec<f64>,
    error: Vec<f64>,
    length: Vec<f64>,
}

/// Outputs of a head, and its final state in the layout of the call, all with error bounds.
type Done = (Vec<(f64, f64)>, Vec<(f64, f64)>);

fn compute(call: &Call) -> Result<Vec<Output>, String> {
    let (sizes, sequences) = Sizes::of(call)?;
    let Sizes { values, value, .. } = sizes;
    let heads = (0..sequences.len() * values).into_par_iter();
    let heads: Vec<Done> = heads.map(|at| head(call, sizes, &sequences, at)).collect();
    let out = |at: usize| {
        let (row, place) = (at / (values * value), at % (values * value));
        // The index of the row's sequence is the number of sequences that end at or before the row, including empty sequences.
        let sequence = sequences.partition_point(|rows| rows.end <= row);
        heads[sequence * values + place / value].0[(row - sequences[sequence].start) * value + place % value]
    };
    let (o, of_o) = (0..call.tensor("v").data.len()).map(out).unzip();
    let (state, of_state) = heads.iter().flat_map(|(_, state)| state.iter().copied()).unzip();
    let shape = sizes.state(call, sequences.len()).to_vec();
    Ok(vec![
        Output::new("o", call.tensor("v").shape.clone(), o, of_o),
        Output::new("state", shape, state, of_state),
    ])
}

/// Computes all tokens of one value head of one sequence. `at` is the index of this head among the value heads of all sequences.
fn head(call: &Call, sizes: Sizes, sequences: &[Range<usize>], at: usize) -> Done {
    let Sizes { key, value, .. } = sizes;
    let by_value = call.word("layout") == "vk";
    let size = key * value;
    let (sequence, own) = (at / sizes.values, at % sizes.values);
    let rows = sequences[sequence].clone();
    // Index `from` of the initial state, and the first token that changes this state. With the fault `state_carried_over`, tokens
    // of earlier sequences also change it.
    let (from, first) = match call.is("state_carried_over") && call.has("cu_seqlens") {
        true => (own, 0),
        false => (at, rows.start),
    };
    let before = call.optional("state").map(|state| &state.data[from * size..][..size]);
    // Read the state as `[V, K]`: its rows are the columns of `[K, V]`.
    let transposed = by_value == call.is("state_read_transposed");
    let read = |to: usize| match before {
        Some(before) if transposed => before[to % key * value + to / key],
        Some(before) => before[to],
        None => 0.0,
    };
    let mut head = Head {
        state: (0..size).map(read).collect(),
        error: vec![0.0; size],
        length: vec![0.0; value],
    };
    let mut outputs = Vec::with_capacity(rows.len() * value);
    for row in first..rows.end {
        let given = Token::of(call, sizes, [row, own]);
        let v = &call.tensor("v").data[(row * sizes.values + own) * value..][..value];
        let columns = v.iter().enumerate().map(|(col, v)| head.step(call, &given, col, *v));
        // With `state_carried_over`, tokens of earlier sequences change the state, but only tokens of this sequence give outputs.
        let columns: Vec<(f64, f64)> = columns.collect();
        outputs.extend(columns.into_iter().filter(|_| rows.contains(&row)));
    }
    let stored = |to: usize| {
        let from = if by_value { to } else { to % value * key + to / value };
        match before {
            Some(before) if call.is("state_not_written") => (before[to], 0.0),
            None if call.is("state_not_written") => (0.0, 0.0),
            _ => (head.state[from], head.error[from]),
        }
    };
    (outputs, (0..size).map(stored).collect())
}

impl Token {
    fn of(call: &Call, sizes: Sizes, [row, own]: [usize; 2]) -> Self {
        let (heads, values, key, gates) = (sizes.heads, sizes.values, sizes.key, sizes.gates);
        let key_head = call.pick("other_group", own % heads, own / (values / heads));
        let normed = |tensor: &Tensor| {
            let x = &tensor.data[(row * heads + key_head) * key..][..key];
            if !call.flag("l2norm") {
                return (x.to_vec(), 0.0);
            }
            let terms = Terms::dot(x, x, call.u);
            let square = terms.sum + call.number("eps");
            if square == 0.0 {
                return (vec![0.0; key], 0.0);
            }
            let relative = 0.5 * terms.error() / square + 4.0 * call.u;
            (x.iter().map(|x| x / square.sqrt()).collect(), relative)
        };
        let ((mut q, of_q), (k, of_k)) = (normed(call.tensor("q")), normed(call.tensor("k")));
        let scale = call.scale(key);
        q.iter_mut().for_each(|q| *q *= scale);
        let place = row * values + own;
        let decay = |g: &f64| (g.exp(), (4.0 + 2.0 * g.abs().min(1e4)) * call.u);
        let decays = call.tensor("g").data[place * gates..][..gates].iter();
        Self {
            q,
            k,
            off: [of_q + 2.0 * call.u, of_k],
            decays: decays.map(decay).collect(),
            beta: call.optional("beta").map(|beta| beta.data[place]),
        }
    }
}

impl Head {
    /// Updates column `col` of the state with one token. Returns the output element and its error bound.
    fn step(&mut self, call: &Call, token: &Token, col: usize, v: f64) -> (f64, f64) {
        let Token { q, k, .. } = token;
        let (u, [of_q, of_k], keys) = (call.u, token.off, k.len());
        let state = &mut self.state[col * keys..][..keys];
        let decay = |at: usize| match (call.is("decay_on_values"), token.decays.len()) {
            (true, gates) => token.decays[col % gates],
            (_, 1) => token.decays[0],
            _ => token.decays[at],
        };
        let undecayed = call.is("decay_after_read").then(|| Terms::dot(k, state, u).sum);
        for (at, s) in state.iter_mut().enumerate() {
            *s *= decay(at).0;
        }
        // Separate two errors: the error that all terms may share, such as that of a per-head decay, and the independent error of
        // each term.
        let of_decay = (0..keys).map(|at| decay(at).1).fold(0.0, f64::max);
        let equal = Equal::of(state.iter().copied());
        let read_by = |x: &[f64], of_x: f64| {
            let terms = Terms::dot(x, state, u);
            let each = x.iter().zip(&*state).map(|(x, s)| (x * s).abs() * (of_decay + 2.0 * u));
            (
                terms.sum,
                terms.error() + terms.sum.abs() * (of_decay + of_x + u) + equal.together(each),
            )
        };
        let (r, of_r) = read_by(k, of_k);
        let r = call.near(undecayed.unwrap_or(r), of_r);
        let v = call.exact(v);
        let d = match token.beta.map(|beta| call.exact(beta)) {
            None => v,
            Some(beta) if call.is("no_delta") => beta * v,
            Some(beta) => beta * (v - r),
        };
        let (d, of_d) = (d.value(), d.error());
        let (early, of_early) = read_by(q, of_q);
        let square: f64 = k.iter().map(|k| k * k).sum();
        let kept = token.beta.map_or(1.0, |beta| (1.0 - beta * square).abs().max(1.0));
        let most = (0..keys).map(|at| decay(at).0).fold(0.0, f64::max);
        let before = most * kept * self.length[col];
        let mut length = 0.0;
        for (at, (s, k)) in state.iter_mut().zip(k).enumerate() {
            let (old, new) = (*s, k * d);
            *s += new;
            let own = old.abs() * (decay(at).1 + u) + k.abs() * of_d + new.abs() * (of_k + u) + u * s.abs();
            length += own * own;
            self.error[col * keys + at] = 1.01 * (own + before);
        }
        self.length[col] = 1.01 * (length.sqrt() + before);
        let (late, overlap) = (Terms::dot(q, state, u), Terms::dot(q, k, u));
        let o = call.pick("read_before_update", early, late.sum);
        let of_sums = late.error()
            + overlap.error() * d.abs()
            + Equal::of(state.iter().copied()).together(q.iter().zip(&*state).map(|(q, s)| 2.0 * u * (q * s).abs()));
        let written = overlap.sum.abs() * (of_d + (of_k + of_q + 2.0 * u) * d.abs());
        let rounded = Equal::of(k.iter().copied()).together(q.iter().zip(k).map(|(q, k)| 2.0 * u * (q * k * d).abs()));
        let norm = q.iter().map(|q| q * q).sum::<f64>().sqrt();
        let error = of_early + of_sums + written + rounded + norm * before + 2.0 * u * o.abs();
        (o, 1.01 * error)
    }
}
