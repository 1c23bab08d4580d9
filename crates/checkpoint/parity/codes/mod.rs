//! Finds out why codes differ from the codes that their scales imply. Tries other casts, orders, scales and inputs, and tests
//! each of them on codes that differ and on codes that match.

mod casts;
mod others;
mod scattered;

use std::collections::BTreeMap;

use super::choose::{Explanation, choose, findings};
use super::maker::Maker;
use super::place::Place;
use super::problem::{Cell, Problem, spread};
use super::verify::{Tally, View};
use super::{Cause, Example, Finding, Scope};
use ulplab_core::formats::Repr;

/// Maximum numbers of sampled cells (row segments under one scale): cells with wrong codes (`WRONG`), and cells from the whole
/// tensor (`RIGHT`).
const WRONG: usize = 256;
const RIGHT: usize = 128;
/// Approximate number of sampled elements.
const ELEMENTS: usize = 1 << 12;

/// A sampled cell (consecutive elements of a row that share a scale), whose codes are examined.
struct SampledCell {
    cell: Cell,
    /// Input values of the quantizer.
    x: Vec<f32>,
    /// Quotients, i.e. the inputs of the cast.
    y: Vec<f32>,
    /// Encoded scale with which the expected codes are computed (`scale`), and scale that the reference quantizer computes
    /// (`own`).
    scale: u32,
    own: u32,
    /// Expected codes. They are in the declared encoding even if the stored codes are in a wrong encoding.
    want: Vec<u16>,
    stored: Vec<Option<u16>>,
}

/// A sample of cells (row segments under one scale), and the explanations that were tested on this sample.
struct Codes<'a> {
    problem: &'a Problem<'a>,
    maker: &'a Maker,
    view: &'a View<'a>,
    repr: Repr,
    seen: Vec<SampledCell>,
    /// Sampled elements that differ (`wrong`) and that match (`right`): index of the cell in `seen`, and index in the cell.
    wrong: Vec<(usize, usize)>,
    right: Vec<(usize, usize)>,
    tried: Vec<Explanation>,
}

/// Finds the causes of stored codes that differ from those of the reference quantizer `maker`.
pub fn classify(maker: &Maker, view: &View, tally: &Tally) -> Vec<Finding> {
    let problem = view.storage.problem;
    if tally.elements.is_empty() {
        return Vec::new();
    }
    let place = tally.hits.place();
    let scope = Scope {
        place: place.text("row", "column"),
        region: place.len(),
        of: problem.grid.rows * problem.grid.cols,
        unit: "codes",
    };
    let mut codes = Codes::new(maker, view, tally, &place);
    let of_all = |codes: &Codes, (cause, detail): (Cause, String)| Finding {
        example: codes.wrong.first().map(|wrong| codes.example(*wrong)),
        ..scope.finding(cause, detail, tally.wrong_codes)
    };
    if let Some(found) = codes.few(tally).or_else(|| codes.exchanged(tally)) {
        return vec![of_all(&codes, found)];
    }
    codes.try_all();
    let (mut chosen, open) = choose(&codes.tried, codes.wrong.len());
    if chosen.iter().any(|chosen| codes.is_scattered(chosen, tally, &place)) {
        return vec![of_all(&codes, codes.scattered())];
    }
    if !open.is_empty() {
        let (cause, detail) = codes.evidence(&open);
        chosen.push(Explanation::new(cause, detail, open));
    }
    let counts = (codes.wrong.len(), tally.wrong_codes);
    findings(chosen, &scope, counts, |index| codes.example(codes.wrong[index]))
}

/// Returns the two codes, without sign, whose values enclose the magnitude of `y`. Both are the same code if `y` needs no
/// rounding.
fn bracket(repr: Repr, top: u16, y: f32) -> (u16, u16) {
    let y = y.abs();
    let near = repr.encode(y).min(top);
    let value = repr.decode(near);
    if value == y || (value < y && near == top) || y.is_nan() {
        (near, near)
    } else if value < y {
        (near, near + 1)
    } else {
        (near - 1, near)
    }
}

impl<'a> Codes<'a> {
    fn new(maker: &'a Maker, view: &'a View<'a>, tally: &Tally, place: &Place) -> Self {
        let problem = view.storage.problem;
        let mut codes = Self {
            problem,
            maker,
            view,
            repr: maker.format.repr(),
            seen: Vec::new(),
            wrong: Vec::new(),
            right: Vec::new(),
            tried: Vec::new(),
        };
        let number = |most: usize| (ELEMENTS / problem.grid.tile.1.min(128)).clamp(16, most);
        let wrong = spread(tally.elements.len(), number(WRONG)).into_iter();
        let mut cells: Vec<Cell> = wrong.map(|at| problem.cell_of(tally.elements[at])).collect();
        let right = spread(problem.grid.rows * problem.grid.cols, number(RIGHT)).into_iter();
        cells.extend(right.map(|at| problem.cell_of(at)));
        cells.sort_by_key(|cell| cell.at);
        cells.dedup();
        for cell in cells {
            let Some(seen) = codes.see(cell) else { continue };
            let index = codes.seen.len();
            for i in 0..cell.len {
                let Some(stored) = seen.stored[i] else { continue };
                let at = cell.at + i;
                if stored != view.code_as_stored(seen.want[i]) {
                    codes.wrong.push((index, i));
                } else if place.contains(at / problem.grid.cols, at % problem.grid.cols) {
                    codes.right.push((index, i));
                }
            }
            codes.seen.push(seen);
        }
        codes
    }

    fn see(&self, cell: Cell) -> Option<SampledCell> {
        let (problem, maker, view) = (self.problem, self.maker, self.view);
        let (own, stored) = match maker.format.scaling {
            None => (0, 0),
            Some(_) => {
                let stored = view.scale(cell.group);
                let own = maker.scale(problem, cell.group).or(stored)?;
                (own, stored.unwrap_or(own))
            }
        };
        if problem.value(stored).is_nan() {
            return None;
        }
        let scale = if view.under_stored { stored } else { own };
        let x = maker.values(problem, cell.at, cell.len)?;
        let y = maker.quotients(problem, &cell, &x, scale);
        let want = y.iter().map(|y| self.repr.encode(*y)).collect();
        let stored = (cell.at..cell.at + cell.len).map(|at| view.code(at)).collect();
        Some(SampledCell {
            cell,
            x,
            y,
            scale,
            own,
            want,
            stored,
        })
    }

    fn hold(
        &mut self,
        cause: Cause,
        detail: impl Into<String>,
        predict: impl Fn(&Self, &SampledCell) -> Option<Vec<u16>>,
    ) {
        let predicted: Vec<Option<Vec<u16>>> = self.seen.iter().map(|seen| predict(self, seen)).collect();
        let is = |&(cell, i): &(usize, usize)| {
            let code = predicted[cell].as_ref().map(|codes| self.view.code_as_stored(codes[i]));
            (code, code == self.seen[cell].stored[i])
        };
        let explains = self.wrong.iter().map(|at| is(at).1);
        let alarms = self.right.iter().map(|at| matches!(is(at), (Some(_), false)));
        self.tried
            .extend(Explanation::tested(cause, detail.into(), explains, alarms));
    }

    /// Tests a cause that changes each code separately: `cast` predicts the stored code from the quotient and the expected code.
    fn cast(&mut self, cause: Cause, detail: impl Into<String>, cast: impl Fn(f32, u16) -> u16) {
        self.hold(cause, detail, |_, seen| {
            Some(seen.y.iter().zip(&seen.want).map(|(y, want)| cast(*y, *want)).collect())
        });
    }

    fn try_all(&mut self) {
        self.rounding();
        self.limits();
        self.precision();
        self.scales();
        self.recodes();
        self.orders();
        self.inputs();
        self.never_written();
        self.steps();
    }

    /// Stored codes of the elements that differ, sorted.
    fn wrong_codes(&self) -> Vec<u16> {
        let stored = self.wrong.iter().filter_map(|(cell, i)| self.seen[*cell].stored[*i]);
        let mut stored: Vec<u16> = stored.collect();
        stored.sort_unstable();
        stored
    }

    /// Applies a sign to the code of a magnitude.
    fn signed(&self, magnitude: u16, negative: bool) -> u16 {
        let bits = self.problem.format.element.bits;
        let mask = ((1u32 << bits) - 1) as u16;
        match (self.repr, negative) {
            (_, false) => magnitude,
            (Repr::Integer(_), true) => magnitude.wrapping_neg() & mask,
            (_, true) => magnitude | 1 << (bits - 1),
        }
    }

    fn top(&self) -> u16 {
        self.repr.encode(self.problem.format.element.max())
    }

    /// Describes the differing codes `open`, which no tried cause explains. Returns "encoding" or "layout" as the cause if the
    /// codes follow a fixed table or permutation, else "unknown".
    fn evidence(&self, open: &[usize]) -> (Cause, String) {
        if let Some(detail) = self.table() {
            return (Cause::Encoding, detail);
        }
        if let Some(detail) = self.lanes() {
            return (Cause::Layout, detail);
        }
        if self.permuted_cells() > 0.9 {
            let detail = "the right codes at other places of their block, in an order that has no name here";
            return (Cause::Layout, detail.into());
        }
        let seen = self.kinds_of(open.iter().copied());
        (Cause::Unknown, format!("codes no cause explains: {seen}"))
    }

    /// Describes the kinds of differences (one step off, other sign, stored as 0) with their percentages.
    fn kinds_of(&self, open: impl Iterator<Item = usize>) -> String {
        let code = |index: usize| {
            let (cell, i) = self.wrong[index];
            let seen = &self.seen[cell];
            (self.view.code_as_stored(seen.want[i]), seen.stored[i].unwrap_or(0))
        };
        let pairs: Vec<(u16, u16)> = open.map(code).collect();
        let sign = 1u16 << (self.problem.format.element.bits - 1);
        let of = |what: fn(u16, u16, u16) -> bool| {
            let count = pairs.iter().filter(|(want, stored)| what(*want, *stored, sign)).count();
            100 * count / pairs.len().max(1)
        };
        let steps = of(|want, stored, sign| (want ^ stored) & sign == 0 && want.abs_diff(stored) == 1);
        let signs = of(|want, stored, sign| want ^ stored == sign);
        let zeros = of(|_, stored, sign| stored & !sign == 0);
        let kinds = [
            (steps, "one step off"),
            (signs, "of the other sign"),
            (zeros, "stored as 0"),
        ];
        let kinds = kinds.into_iter().filter(|(share, _)| *share > 0);
        let seen: Vec<String> = kinds.map(|(share, what)| format!("{share} % are {what}")).collect();
        match seen.is_empty() {
            true => "most are several steps off".into(),
            false => seen.join(", "),
        }
    }

    /// Detects a table of replaced codes, which has one stored code for each expected code. At least 98 % of the elements must
    /// follow the table. Returns a description of the table; `None` if no such table exists.
    fn table(&self) -> Option<String> {
        let mut counts = BTreeMap::<u16, BTreeMap<u16, usize>>::new();
        for (cell, i) in self.wrong.iter().chain(&self.right) {
            let seen = &self.seen[*cell];
            let stored = counts.entry(seen.want[*i]).or_default();
            *stored.entry(seen.stored[*i]?).or_default() += 1;
        }
        let (mut same, mut all, mut table) = (0, 0, Vec::new());
        for (want, stored) in &counts {
            let (to, most) = stored.iter().max_by_key(|(_, count)| **count)?;
            all += stored.values().sum::<usize>();
            same += most;
            if self.view.code_as_stored(*want) != *to {
                table.push(format!("{want:#04x} as {to:#04x}"));
            }
        }
        // With few samples per code, such a table could arise by chance.
        let enough = all >= 20 * counts.len() && table.len() >= 2;
        (enough && same * 50 >= all * 49).then(|| {
            let more = if table.len() > 4 { ", …" } else { "" };
            table.truncate(4);
            let table = table.join(", ");
            format!("codes are stored as others, always the same: {table}{more}")
        })
    }

    /// Detects that the elements of every block are stored in one and the same wrong order, and describes the permutation; else
    /// `None`.
    fn lanes(&self) -> Option<String> {
        let width = self.problem.grid.tile.1.min(128);
        let cells: Vec<&SampledCell> = self.seen.iter().filter(|seen| seen.want.len() == width).collect();
        if cells.len() < 16 {
            return None;
        }
        let same = |i: usize, j: usize| {
            let alike = |seen: &&&SampledCell| seen.stored[i] == Some(self.view.code_as_stored(seen.want[j]));
            cells.iter().filter(alike).count()
        };
        let from = |i: usize| (0..width).find(|j| same(i, *j) * 50 >= cells.len() * 49);
        let from: Vec<usize> = (0..width).map(from).collect::<Option<_>>()?;
        let shown: Vec<String> = from.iter().take(16).map(ToString::to_string).collect();
        let (shown, more) = (shown.join(" "), if width > 16 { " …" } else { "" });
        Some(format!(
            "the elements of every {width} are stored in another order: {shown}{more}"
        ))
    }

    /// Fraction of the cells with differences in which the stored codes are a permutation of the expected codes.
    fn permuted_cells(&self) -> f64 {
        let mut cells: Vec<usize> = self.wrong.iter().map(|(cell, _)| *cell).collect();
        cells.dedup();
        let permuted = |cell: &&usize| {
            let seen = &self.seen[**cell];
            let mut want: Vec<u16> = seen.want.iter().map(|code| self.view.code_as_stored(*code)).collect();
            let mut stored: Vec<u16> = seen.stored.iter().flatten().copied().collect();
            want.sort_unstable();
            stored.sort_unstable();
            want == stored
        };
        cells.iter().filter(permuted).count() as f64 / cells.len().max(1) as f64
    }

    fn show(&self, code: u16) -> String {
        format!("{code:#04x} ({})", self.repr.decode(code))
    }

    fn example(&self, (cell, i): (usize, usize)) -> Example {
        let seen = &self.seen[cell];
        let (at, cols) = (seen.cell.at + i, self.problem.grid.cols);
        let want = self.view.code_as_stored(seen.want[i]);
        Example {
            place: vec![at / cols, at % cols],
            source: vec![seen.x[i]],
            stored: self.show(seen.stored[i].unwrap_or(0)),
            expected: format!("{} for the quotient {}", self.show(want), seen.y[i]),
        }
    }
}
