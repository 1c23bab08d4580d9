//! One decode step of a KV compressor (DeepSeek-V4), which pools each window of m tokens into one entry of the KV cache. The
//! state of a sequence is a ring of S slots. Token t has vectors kv and gate of D channels. Slot t mod S stores kv, and the gate
//! plus the positional term ape[t mod m].
//!
//! If the token is the last of its window, the window is pooled: each channel of the entry is a mean of kv over the tokens,
//! weighted by the softmax of the gates. The entry is normed, rotated (RoPE at the position of the window's first token) and
//! stored as entry ⌊t/m⌋. If windows overlap, kv and gate have 2D channels and S = 2m: an entry pools the first D channels of the
//! previous window and the last D channels of its own.
//!
//! Error bound: the computation uses numbers that carry their error bound ([`super::near`]) through exponentials, sums over slots
//! in any order, RMSNorm and RoPE. Values in the ring are copied and must be equal; gates in the ring have the error of one
//! addition.

use super::near::{Near, powers};
use super::streams::normed;
use super::{Call, Operation, Output, faults, takes};

pub(super) const COMPRESSOR: Operation = Operation {
    name: "compressor",
    doc: "a token's row goes to a compressor's state; a window that it completes is pooled, normed, turned and inserted",
    takes: takes! {
        kv Tensor: "[B, W]: the values of each row's token; W is D, or 2D with overlap";
        gate Tensor: "[B, W]: its gates";
        ape Tensor: "[m, W]: added to the gates of token t at t mod m";
        weight Optional: "[D]: of the norm; ones if not given";
        cos Tensor: "[P, R/2]: of every position; neighbours of the last R channels are turned";
        sin Tensor: "[P, R/2]";
        position Tensor: "[B]: t, the token's; -1 for padding, which changes nothing";
        ring_kv Tensor: "[B, S, W]: the state; S is m, or 2m with overlap";
        ring_gate Tensor: "[B, S, W]: the state, ape added";
        entries Tensor: "[B, N, D]: those that there are";
        eps Number(1e-6): "of the norm";
    },
    faults: faults! {
        ape_of_next: "the gate gets the ape of the next token" => |call| call.roll("ape", 1);
        no_ape: "nothing is added to the gate" => |call| call.fill("ape", 0.0);
        rope_at_last: "an entry is turned to the position of its window's last token";
        rope_at_number: "an entry is turned to its own number";
        rope_inverse: "an entry is turned back" => |call| call.map("sin", |sin| -sin);
        no_rope: "an entry is not turned"
            => |call| [("cos", 1.0), ("sin", 0.0)].into_iter().for_each(|(name, value)| call.fill(name, value));
        halves_exchanged: "the first half of the channels is pooled of the own window, the second of the window before";
        state_stale: "the pool sees what was in the token's slot before";
        absent_pooled: "a first window pools the slots of a window before it, which there is not";
        window_before_missing: "the window before is not pooled";
        mean_pooled: "all tokens of a window have the same weight";
        entry_late: "an entry is inserted one place too far";
        not_inserted: "no entry is inserted";
        not_normed: "an entry is not normed";
        eps_missing: "the norm is without eps" => |call| call.set("eps", 0.0);
        no_weight of weight: "the weight of the norm is left out" => |call| call.leave_out("weight");
        slot_before: "the token's row goes to the slot of the token before";
    },
    compute,
    ..Operation::NONE
};

/// A call with its sizes.
struct Step<'a> {
    call: &'a Call,
    /// Number of tokens of a window (m).
    rate: usize,
    overlap: bool,
    /// Number of channels of an entry (D).
    dim: usize,
    /// Number of entries that each row of the buffer `entries` can hold (N).
    places: usize,
    /// Number of channel pairs that are rotated (R/2).
    pairs: usize,
}

impl<'a> Step<'a> {
    fn new(call: &'a Call) -> Result<Self, String> {
        let shapes = call.shapes_of(&[("ring_kv", ""), ("ring_gate", "")])?;
        let [rows, width, places, dim, rate] = shapes.sizes(["B", "W", "N", "D", "m"]);
        let pairs = call.tensor("cos").cols();
        if dim == 0 || rate == 0 || (width != dim && width != 2 * dim) {
            let [kv, entries, ape] = ["kv", "entries", "ape"].map(|name| &call.tensor(name).shape);
            return Err(format!(
                "compressor: 'entries' is {entries:?} for kv of {kv:?} and ape of {ape:?}, expected D of {width}, or half of it with \
                 overlap, and m of 1 or more"
            ));
        }
        let overlap = width != dim;
        let fits = 2 * pairs <= dim;
        call.require(fits, "cos", format_args!("[P, R/2] with R of at most {dim}"))?;
        let step = Self {
            call,
            rate,
            overlap,
            dim,
            places,
            pairs,
        };
        call.expect("ring_kv", &[rows, step.slots(), width])?;
        call.expect("ring_gate", &[rows, step.slots(), width])?;
        let positions = call.tensor("cos").shape[0];
        // The token's entry must fit into the N entries of its row, and the tables of cos and sin must cover the token's
        // position.
        let most = f64::min((places * rate) as f64, positions as f64) - 1.0;
        let fits = |t: &&f64| t.fract() == 0.0 && (-1.0..=most).contains(*t);
        match call.tensor("position").data.iter().find(|t| !fits(t)) {
            Some(t) => Err(format!(
                "compressor: 'position' has {t}, expected whole numbers from -1 to {most}, as there are {places} places of {rate} \
                 tokens and {positions} positions of cos"
            )),
            None => Ok(step),
        }
    }

    fn width(&self) -> usize {
        self.dim * (1 + usize::from(self.overlap))
    }

    fn slots(&self) -> usize {
        self.rate * (1 + usize::from(self.overlap))
    }

    /// Returns the row index and the position of each token that is not padding.
    fn tokens(&self) -> impl Iterator<Item = (usize, usize)> {
        let tokens = self.call.tensor("position").data.iter().enumerate();
        tokens.filter(|(_, t)| **t >= 0.0).map(|(row, t)| (row, *t as usize))
    }

    /// Returns the ring buffers of kv and of gates after the tokens' rows have been stored.
    fn pushed(&self) -> [Vec<f64>; 2] {
        let (call, width, slots, rate) = (self.call, self.width(), self.slots(), self.rate);
        let [kv, gate, ape, mut ring_kv, mut ring_gate] =
            ["kv", "gate", "ape", "ring_kv", "ring_gate"].map(|name| call.tensor(name).data.clone());
        for (row, t) in self.tokens() {
            let slot = call.pick("slot_before", (t + slots - 1) % slots, t % slots);
            let to = (row * slots + slot) * width;
            ring_kv[to..][..width].copy_from_slice(&kv[row * width..][..width]);
            for at in 0..width {
                ring_gate[to + at] = gate[row * width + at] + ape[t % rate * width + at];
            }
        }
        [ring_kv, ring_gate]
    }

    /// Computes the entry of the window that token `t` of a row completes: pools the window's tokens, then norms and rotates.
    fn entry(&self, [ring_kv, ring_gate]: [&[f64]; 2], row: usize, t: usize) -> Vec<Near> {
        let (call, width, slots, dim) = (self.call, self.width(), self.slots(), self.dim);
        let own = t / self.rate * self.rate;
        // Number of tokens of the previous window that are pooled. Below, the ring's length `slots` is added to token numbers, so
        // that they cannot be negative.
        let before = match call.fault {
            Some("window_before_missing") => 0,
            Some("absent_pooled") if self.overlap => self.rate,
            _ if self.overlap => self.rate.min(own),
            _ => 0,
        };
        let tokens = own + slots - before..own + slots + self.rate;
        let half = call.pick("halves_exchanged", width - dim, 0);
        let channel = |at: usize| {
            let read = |ring: &[f64], token: usize| {
                let first = if token < own + slots { 0 } else { width - dim };
                ring[(row * slots + token % slots) * width + (first + half) % width + at]
            };
            let gate = |token: usize| match call.is("mean_pooled") {
                true => call.exact(0.0),
                // Adding the positional term `ape` to the gate rounds once.
                false => call.near(read(ring_gate, token), call.u * read(ring_gate, token).abs()),
            };
            let weights = powers(&tokens.clone().map(gate).collect::<Vec<Near>>());
            let values = tokens.clone().map(|token| call.exact(read(ring_kv, token)));
            let weighted: Vec<Near> = weights.iter().zip(values).map(|(weight, x)| *weight * x).collect();
            call.sum_near(&weighted) / call.sum_near(&weights)
        };
        let mut entry: Vec<Near> = (0..dim).map(channel).collect();
        if !call.is("not_normed") {
            entry = normed(call, entry, call.number("eps"), true);
        }
        self.turn(&mut entry, own);
        entry
    }

    /// Rotates the last channels of an entry; `own` is the position of the first token of the entry's window.
    fn turn(&self, entry: &mut [Near], own: usize) {
        let (call, pairs) = (self.call, self.pairs);
        let at = match call.fault {
            Some("rope_at_last") => own + self.rate - 1,
            Some("rope_at_number") => own / self.rate,
            _ => own,
        };
        let table = |name: &str, pair: usize| call.exact(call.tensor(name).data[at * pairs + pair]);
        let first = self.dim - 2 * pairs;
        for (pair, x) in entry[first..].chunks_exact_mut(2).enumerate() {
            let (cos, sin) = (table("cos", pair), table("sin", pair));
            (x[0], x[1]) = (x[0] * cos - x[1] * sin, x[0] * sin + x[1] * cos);
        }
    }
}

fn compute(call: &Call) -> Result<Vec<Output>, String> {
    let step = Step::new(call)?;
    let Step { rate, dim, places, .. } = step;
    let [ring_kv, ring_gate] = step.pushed();
    let stale = [&call.tensor("ring_kv").data[..], &call.tensor("ring_gate").data];
    let read = call.pick("state_stale", stale, [&ring_kv[..], &ring_gate]);
    let stored = &call.tensor("entries").data;
    let mut entries: Vec<Near> = stored.iter().map(|x| call.exact(*x)).collect();
    let completed = |t: usize| (t + 1).is_multiple_of(rate) && !call.is("not_inserted");
    for (row, t) in step.tokens().filter(|(_, t)| completed(*t)) {
        let number = t / rate + usize::from(call.is("entry_late"));
        if number < places {
            entries[(row * places + number) * dim..][..dim].copy_from_slice(&step.entry(read, row, t));
        }
    }
    let before = &call.tensor("ring_gate").data;
    let off = |after: f64, before: f64| if after == before { 0.0 } else { call.u * after.abs() };
    let added = |(after, before): (&f64, &f64)| call.near(*after, off(*after, *before));
    let gates = ring_gate.iter().zip(before).map(added);
    let shape = call.tensor("ring_kv").shape.clone();
    Ok(vec![
        Output::of("entries", call.tensor("entries").shape.clone(), entries),
        Output::exact("ring_kv", shape.clone(), ring_kv),
        Output::of("ring_gate", shape, gates),
    ])
}
