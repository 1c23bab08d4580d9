//! Why codes are not those of their scales: casts, orders, other scales, other inputs, held against every code that
//! differs and every one that does not.

mod casts;
mod others;
mod scattered;

use super::choose::{Explanation, Hypothesis, choose};
use super::maker::Maker;
use super::place::Place;
use super::problem::{Cell, Problem, spread};
use super::verify::{Tally, View};
use super::{Cause, Example, Finding};
use ulplab_core::formats::Repr;

/// Cells that are looked at, of those with wrong codes and of the others.
const WRONG: usize = 256;
const RIGHT: usize = 128;
/// Elements that are looked at.
const ELEMENTS: usize = 1 << 12;

/// A cell whose codes are looked at.
struct SampledCell {
    cell: Cell,
    /// The input of the maker.
    x: Vec<f32>,
    /// What the cast sees of it.
    y: Vec<f32>,
    /// The scale the codes are held against, and the maker's own.
    scale: u32,
    own: u32,
    /// The codes before any recoding that the fit has found.
    want: Vec<u16>,
    stored: Vec<Option<u16>>,
}

/// Explanations are tried for these.
struct Codes<'a> {
    problem: &'a Problem<'a>,
    maker: &'a Maker,
    view: &'a View<'a>,
    repr: Repr,
    seen: Vec<SampledCell>,
    /// Elements that differ and that do not, as cell and index in it.
    wrong: Vec<(usize, usize)>,
    right: Vec<(usize, usize)>,
    tried: Vec<Hypothesis>,
}

/// The findings on codes.
pub fn classify(problem: &Problem, maker: &Maker, view: &View, tally: &Tally) -> Vec<Finding> {
    if tally.elements.is_empty() {
        return Vec::new();
    }
    let place = tally.hits.place();
    let mut codes = Codes::new(problem, maker, view, tally, &place);
    if let Some(finding) = codes.few(tally, &place).or_else(|| codes.exchanged(tally, &place)) {
        return vec![finding];
    }
    codes.try_all();
    let (chosen, open) = choose(&codes.tried, codes.wrong.len());
    if chosen.iter().any(|chosen| codes.is_scattered(chosen, tally, &place)) {
        return vec![codes.scattered(tally, &place)];
    }
    let looked = codes.wrong.len().max(1);
    let count = |of: usize| (of as u128 * tally.wrong_codes as u128).div_ceil(looked as u128) as usize;
    let finding = |cause, detail: String, others: Vec<String>, some: &[usize]| Finding {
        cause,
        detail,
        others,
        place: place.text("row", "column"),
        region: place.len(),
        count: count(some.len()).min(tally.wrong_codes),
        of: problem.grid.rows * problem.grid.cols,
        unit: "codes",
        example: some.first().map(|index| codes.example(codes.wrong[*index])),
    };
    let mut findings = Explanation::findings(chosen, finding);
    if !open.is_empty() {
        let (cause, detail) = codes.evidence(&open);
        findings.push(finding(cause, detail, Vec::new(), &open));
    }
    findings
}

/// The codes below and above a number in magnitude, without sign; equal where there is nothing to round.
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
    fn new(problem: &'a Problem<'a>, maker: &'a Maker, view: &'a View<'a>, tally: &Tally, place: &Place) -> Self {
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
        let Self {
            problem, maker, view, ..
        } = *self;
        let (own, stored) = match maker.format.scaling {
            None => (0, 0),
            Some(_) => {
                let stored = view.scale(problem, cell.group);
                let own = maker.scale(problem, cell.group).or(stored)?;
                (own, stored.unwrap_or(own))
            }
        };
        if problem.value(stored).is_nan() {
            return None;
        }
        let scale = if view.under_stored { stored } else { own };
        let x = maker.values(problem, &cell)?;
        let y = maker.quotients(problem, &cell, &x, scale);
        let want = y.iter().map(|y| self.repr.encode(*y)).collect();
        let stored = (cell.at..cell.at + cell.len).map(|at| view.code(problem, at)).collect();
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
        let explains: Vec<bool> = self.wrong.iter().map(|at| is(at).1).collect();
        if !explains.contains(&true) {
            return;
        }
        let alarm = |at: &&(usize, usize)| matches!(is(at), (Some(_), false));
        let alarms = self.right.iter().filter(alarm).count() as f64 / self.right.len().max(1) as f64;
        let detail = detail.into();
        self.tried.push(Hypothesis {
            cause,
            detail,
            explains,
            alarms,
        });
    }

    /// Each code from its quotient and the code that is expected.
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

    /// The code of a magnitude with the sign of a number.
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

    /// What is seen of codes that nothing explains.
    fn evidence(&self, open: &[usize]) -> (Cause, String) {
        if let Some(detail) = self.table() {
            return (Cause::Encoding, detail);
        }
        if let Some(detail) = self.lanes() {
            return (Cause::Layout, detail);
        }
        let same = self.permuted_cells();
        if same > 0.9 {
            return (
                Cause::Layout,
                "the right codes at other places of their block, in an order that has no name here".into(),
            );
        }
        let seen = self.kinds_of(open);
        (Cause::Unknown, format!("codes no cause explains: {seen}"))
    }

    /// How what differs does so, in shares.
    fn kinds_of(&self, open: &[usize]) -> String {
        let code = |index: &usize| {
            let (cell, i) = self.wrong[*index];
            (
                self.view.code_as_stored(self.seen[cell].want[i]),
                self.seen[cell].stored[i].unwrap_or(0),
            )
        };
        let pairs: Vec<(u16, u16)> = open.iter().map(code).collect();
        let sign = 1u16 << (self.problem.format.element.bits - 1);
        let of = |what: fn(u16, u16, u16) -> bool| {
            let count = pairs.iter().filter(|(want, stored)| what(*want, *stored, sign)).count();
            100 * count / pairs.len().max(1)
        };
        let steps = of(|want, stored, sign| (want ^ stored) & sign == 0 && want.abs_diff(stored) == 1);
        let signs = of(|want, stored, sign| want ^ stored == sign);
        let zeros = of(|_, stored, sign| stored & !sign == 0);
        let mut seen = Vec::new();
        for (share, what) in [
            (steps, "one step off"),
            (signs, "of the other sign"),
            (zeros, "stored as 0"),
        ] {
            if share > 0 {
                seen.push(format!("{share} % are {what}"));
            }
        }
        match seen.is_empty() {
            true => "most are several steps off".into(),
            false => seen.join(", "),
        }
    }

    /// Whether every code is stored as another, always the same.
    fn table(&self) -> Option<String> {
        let mut counts = std::collections::BTreeMap::<u16, std::collections::BTreeMap<u16, usize>>::new();
        for (cell, i) in self.wrong.iter().chain(&self.right) {
            let seen = &self.seen[*cell];
            *counts
                .entry(seen.want[*i])
                .or_default()
                .entry(seen.stored[*i]?)
                .or_default() += 1;
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
        // As many codes would be alike by chance only if there are few.
        let enough = all >= 20 * counts.len() && table.len() >= 2;
        (enough && same * 50 >= all * 49).then(|| {
            let shown = table.iter().take(4).cloned().collect::<Vec<_>>().join(", ");
            format!(
                "codes are stored as others, always the same: {shown}{}",
                if table.len() > 4 { ", …" } else { "" }
            )
        })
    }

    /// Whether the elements of every block are in one other order.
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
        let from: Option<Vec<usize>> = (0..width)
            .map(|i| (0..width).find(|j| same(i, *j) * 50 >= cells.len() * 49))
            .collect();
        let from = from?;
        let shown: Vec<String> = from.iter().take(16).map(ToString::to_string).collect();
        Some(format!(
            "the elements of every {width} are stored in another order: {}{}",
            shown.join(" "),
            if width > 16 { " …" } else { "" }
        ))
    }

    /// The share of cells whose codes are the expected ones in another order.
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
