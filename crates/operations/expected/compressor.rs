//! A decode step of a compressor (DeepSeek-V4): the token's row goes to the state of its sequence, a ring in which token t is in slot t mod
//! S, with ape[t mod m] added to its gate; where it is the last of a window of m tokens, the window is pooled for each channel by the
//! softmax of the gates over tokens, normed, turned to the position of its first token and inserted as entry ⌊t/m⌋. With overlap, rows have
//! 2D channels and S = 2m: an entry pools the first D channels of the window before and the last D of its own.
//!
//! Error: the reference runs on numbers that carry it ([`super::bounded`]): exponentials, sums over slots in any order, a mean square and
//! its inverse root, two products and their sum. Values of the ring are copied, and must be
//! equal; gates are added once.

use reference::ops::compressor::Pool;
use reference::{Bounded, Real as _, Tensor as Numbers};

use super::sum::{Terms, widening};
use super::{Call, Operation, Output, bounded, faults, takes};

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
    cases: None,
    rows: None,
    compute,
};

/// A call with its sizes.
struct Step<'a> {
    call: &'a Call,
    /// m, tokens of a window.
    rate: usize,
    overlap: bool,
    /// D, channels of an entry.
    dim: usize,
    /// N, places for entries.
    places: usize,
    /// R/2, pairs that are turned.
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
        if 2 * pairs > dim {
            let found = &call.tensor("cos").shape;
            return Err(format!(
                "compressor: 'cos' is {found:?}, expected [P, R/2] with R of at most {dim}"
            ));
        }
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
        // An entry must have a place, and its window a position in the tables.
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

    /// The positions of rows that are not padding.
    fn tokens(&self) -> impl Iterator<Item = (usize, usize)> {
        let tokens = self.call.tensor("position").data.iter().enumerate();
        tokens.filter(|(_, t)| **t >= 0.0).map(|(row, t)| (row, *t as usize))
    }

    /// The rings with the tokens' rows.
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

    /// The entry that token `t` of a row completes, and how many times as wide its bounds are ([`widening`]).
    fn entry(&self, [ring_kv, ring_gate]: [&[f64]; 2], row: usize, t: usize) -> (Vec<Bounded>, f64) {
        let (call, width, slots, dim) = (self.call, self.width(), self.slots(), self.dim);
        let own = t / self.rate * self.rate;
        // Windows that are pooled begin at this token, counted a turn of the ring later.
        let before = match call.fault {
            Some("window_before_missing") => 0,
            Some("absent_pooled") if self.overlap => self.rate,
            _ if self.overlap => self.rate.min(own),
            _ => 0,
        };
        let tokens = own + slots - before..own + slots + self.rate;
        let state = |ring: &[f64]| {
            let channels = |token: usize| {
                let row = &ring[(row * slots + token % slots) * width..][..width];
                let halves = row.split_at(call.pick("halves_exchanged", width - dim, 0));
                [halves.1, halves.0].concat()
            };
            let tokens: Vec<f64> = tokens.clone().flat_map(channels).collect();
            Numbers::new([tokens.len() / width, width], bounded::numbers(&tokens))
        };
        let (values, mut gates) = (state(ring_kv), state(ring_gate));
        if call.is("mean_pooled") {
            gates.data.fill(Bounded::ZERO);
        }
        // Gates have been rounded once, when ape was added.
        let added = |gate: &mut Bounded| *gate = Bounded::new(gate.value(), gate.value().abs() / f64::from(1 << 24));
        gates.data.iter_mut().for_each(added);
        let pooled = Pool::new(self.rate, self.overlap, dim).push(&values, &gates);
        let mut entry = Numbers::new([1, dim], pooled.row(pooled.rows() - 1).to_vec());
        let widening = self.widening(&entry.data, [&values, &gates]);
        if !call.is("not_normed") {
            bounded::normed(call, &mut entry, bounded::constant(call, "eps"), true);
        }
        self.turn(&mut entry.data, own);
        (entry.data, widening)
    }

    /// Factor that widens the bounds of an entry before its norm, for the values and the gates of its windows.
    fn widening(&self, entry: &[Bounded], [values, gates]: [&Numbers<Bounded>; 2]) -> f64 {
        let entry: Vec<f64> = entry.iter().map(|x| x.value()).collect();
        let channel = |at: usize| {
            let weights = (0..gates.rows()).map(move |token| gates.row(token)[at].value().exp());
            let weighted = weights.clone().enumerate();
            let weighted = weighted.map(move |(token, weight)| weight * values.row(token)[at].value());
            [
                Terms::of_any_scale(weighted, self.call.u),
                Terms::of_any_scale(weights, self.call.u),
            ]
        };
        let square = Terms::dot(&entry, &entry, self.call.u);
        widening((0..gates.cols()).flat_map(channel).chain([square]))
    }

    /// Turns the last channels of an entry whose window begins at a token.
    fn turn(&self, entry: &mut [Bounded], own: usize) {
        let (call, pairs) = (self.call, self.pairs);
        let at = match call.fault {
            Some("rope_at_last") => own + self.rate - 1,
            Some("rope_at_number") => own / self.rate,
            _ => own,
        };
        let table = |name: &str, pair: usize| Bounded::exact(call.tensor(name).data[at * pairs + pair]);
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
    let mut entries = call.tensor("entries").data.clone();
    let mut error = vec![0.0; entries.len()];
    let completed = step
        .tokens()
        .filter(|(_, t)| (t + 1).is_multiple_of(rate) && !call.is("not_inserted"));
    for (row, t) in completed {
        let number = t / rate + usize::from(call.is("entry_late"));
        if number >= places {
            continue;
        }
        let (entry, widening) = step.entry(read, row, t);
        let entry = bounded::output(call, "entry", vec![dim], &entry, &[widening]);
        let at = (row * places + number) * dim;
        entries[at..][..dim].copy_from_slice(&entry.value);
        error[at..][..dim].copy_from_slice(&entry.error);
    }
    let before = &call.tensor("ring_gate").data;
    let added = |(after, before): (&f64, &f64)| if after == before { 0.0 } else { call.u * after.abs() };
    let of_gate = ring_gate.iter().zip(before).map(added).collect();
    let shape = call.tensor("ring_kv").shape.clone();
    Ok(vec![
        Output::new("entries", call.tensor("entries").shape.clone(), entries, error),
        Output::exact("ring_kv", shape.clone(), ring_kv),
        Output::new("ring_gate", shape, ring_gate, of_gate),
    ])
}
