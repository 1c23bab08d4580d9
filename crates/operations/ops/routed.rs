//! Experts of each row and their weights, drawn at random: test inputs in place of a router's output.

use super::{Buffer, Case, Data, Grid, Inputs};

/// Chosen experts of all rows, with their weights.
pub(super) struct Routed {
    pub k: usize,
    /// Expert indices `[B, K]`; −1 for no expert.
    pub experts: Vec<i32>,
    /// Weights `[B, K]`; NaN for slots without an expert.
    pub weights: Vec<f32>,
    /// For each expert, the slots that are routed to it, in ascending order; the shared expert comes last. A row has slots 0 to K
    /// − 1 for its routed experts, and slot K for the shared expert. A slot is stored as the number row · (K + 1) + slot.
    pub places: Vec<Vec<usize>>,
}

impl Routed {
    /// Draws the experts of a case of operation `op`. The case's setting `routing` selects the pattern: all rows to `one` expert,
    /// numbers of rows per expert around multiples of a tile (`counts`), or rows spread over all experts.
    pub fn new(op: &str, case: &Case, data: &Data) -> Self {
        let [rows, count, k] = case.sizes(["B", "E", "K"]);
        let mut weights = data.normal(&format!("{op}/weights"), rows * k);
        weights
            .iter_mut()
            .for_each(|weight| *weight = 0.05 + 0.25 * weight.abs());
        let drawn = data.bytes(&format!("{op}/experts"), 2 * rows * k);
        let drawn = drawn.chunks_exact(2 * k).flat_map(|drawn| distinct(drawn, count));
        let mut experts: Vec<i32> = drawn.map(|expert| expert as i32).collect();
        let each = experts.chunks_exact_mut(k).zip(weights.chunks_exact_mut(k));
        for (row, (experts, weights)) in each.enumerate() {
            special(case, row, experts, weights);
        }
        let mut places = vec![Vec::new(); count + 1];
        for (at, (expert, weight)) in experts.iter().zip(&mut weights).enumerate() {
            match usize::try_from(*expert) {
                Ok(expert) => places[expert].push(at / k * (k + 1) + at % k),
                Err(_) => *weight = f32::NAN,
            }
        }
        places[count].extend((0..rows).map(|row| row * (k + 1) + k));
        Self {
            k,
            experts,
            weights,
            places,
        }
    }

    /// Router weight of the slot with the number `place` (see `places`); 1 if the slot belongs to the shared expert.
    pub fn weight(&self, place: usize) -> f32 {
        let (row, slot) = (place / (self.k + 1), place % (self.k + 1));
        if slot == self.k {
            1.0
        } else {
            self.weights[row * self.k + slot]
        }
    }

    /// Returns the slots of a row that have an expert, in the order in which the results of the experts are added.
    pub fn added(&self, row: usize) -> impl Iterator<Item = usize> {
        let experts = self.experts[row * self.k..][..self.k].iter().enumerate();
        let mut slots: Vec<_> = experts.filter(|(_, expert)| **expert >= 0).collect();
        slots.sort_by_key(|(slot, expert)| (**expert, *slot));
        let (first, shared) = (row * (self.k + 1), self.k);
        let slots = slots.into_iter().map(|(slot, _)| slot).chain([shared]);
        slots.map(move |slot| first + slot)
    }

    /// Input buffers of expert indices and weights.
    pub fn buffers(&self) -> [Buffer; 2] {
        let shape = [self.experts.len() / self.k, self.k];
        [
            Buffer::i32("experts", &shape, &self.experts),
            Buffer::f32("weights", &shape, &self.weights),
        ]
    }
}

/// Creates an empty list of cases with shapes `[B, E, K, D, I]`: number of rows, of experts, of experts per row, and of channels
/// of a row and of an expert's hidden layer.
pub(super) fn experts_of_rows(prefix: String, keys: &[(&'static str, &str)]) -> Grid<'static, [i64; 5]> {
    Grid::of(prefix, keys, ["B", "E", "K", "D", "I"]).named(|[b, e, _, d, i]| format!("b{b}.{e}x{d}x{i}"))
}

/// Draws distinct numbers below `count`, one for every two bytes of `drawn`.
pub(super) fn distinct(drawn: &[u8], count: usize) -> Vec<usize> {
    let mut chosen = Vec::with_capacity(drawn.len() / 2);
    for bytes in drawn.as_chunks().0 {
        let mut number = usize::from(u16::from_le_bytes(*bytes)) % count;
        while chosen.contains(&number) {
            number = (number + 1) % count;
        }
        chosen.push(number);
    }
    chosen
}

/// Number of rows of each expert for the routing `counts`: the widths of tiles, and these widths plus or minus one.
const COUNTS: [usize; 15] = [0, 1, 7, 8, 9, 0, 16, 31, 32, 33, 48, 63, 64, 65, 70];

/// Changes a row to a special pattern: slots without an expert, experts in descending order, one expert twice, or extreme
/// weights.
fn special(case: &Case, row: usize, experts: &mut [i32], weights: &mut [f32]) {
    let (count, k) = (case.dim("E") as i32, experts.len());
    match (case.key("routing"), row % 8) {
        ("one", _) => experts.fill(count - 2),
        ("counts", _) => {
            let needed = (0..COUNTS.len()).rev().filter(|expert| COUNTS[*expert] > row);
            let mut needed = needed.map(|expert| expert as i32);
            experts.fill_with(|| needed.next().unwrap_or(-1));
        }
        (_, 5) => experts[k - 1] = -1,
        _ if case.inputs != Inputs::Edges => {}
        (_, 1) => experts.sort_by_key(|expert| -expert),
        (_, 2) => experts[k / 2] = -1,
        (_, 3) => experts.fill(-1),
        (_, 4) => experts[k - 1] = experts[0],
        (_, 6) => (weights[0], weights[k - 1]) = (0.0, 3e4),
        _ => {}
    }
}
