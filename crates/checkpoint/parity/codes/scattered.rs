//! Codes that differ too seldom, or too far from each other, to name a cause; and rows that are at each other's places.

use super::Codes;
use crate::parity::choose::Explanation;
use crate::parity::place::Place;
use crate::parity::scales::isolated;
use crate::parity::verify::Tally;
use crate::parity::{Cause, Finding};

/// So few codes agree with some of a hundred causes by chance: most are one step off, as many causes have it.
const FEW: usize = 6;
/// One of so many codes at most, if they are few.
const RARE: usize = 100;
/// One of so many codes of a place at most is scattered; more have a cause, known or not.
const SELDOM: usize = 20;
/// Rows that are looked for at each other's places.
const ROWS: usize = 64;
/// The least share of what a cause predicts that must be so.
const PRECISE: f64 = 0.2;

impl Codes<'_> {
    fn finding(&self, cause: Cause, detail: String, tally: &Tally, place: &Place) -> Finding {
        Finding {
            cause,
            detail,
            others: Vec::new(),
            place: place.text("row", "column"),
            region: place.len(),
            count: tally.wrong_codes,
            of: self.problem.grid.rows * self.problem.grid.cols,
            unit: "codes",
            example: self.wrong.first().map(|wrong| self.example(*wrong)),
        }
    }

    /// The finding that so few differ. A zero of the other sign says enough by itself.
    pub(super) fn few(&self, tally: &Tally, place: &Place) -> Option<Finding> {
        let all = self.problem.grid.rows * self.problem.grid.cols;
        let sign = 1u16 << (self.problem.format.element.bits - 1);
        let is_zero = |(cell, i): &(usize, usize)| {
            let seen = &self.seen[*cell];
            let want = self.view.code_as_stored(seen.want[*i]);
            seen.stored[*i].is_some_and(|stored| (want | stored) & !sign == 0)
        };
        let zeros = self.wrong.iter().all(is_zero);
        let few = !zeros && tally.wrong_codes < FEW && tally.wrong_codes * RARE < all;
        few.then(|| self.finding(Cause::Isolated, isolated(tally.wrong_codes, "code"), tally, place))
    }

    /// Whether an explanation is one of what differs only: by it most of what is right would differ too, and what differs
    /// is no more often beside its like than by chance.
    pub(super) fn is_scattered(&self, chosen: &Explanation, tally: &Tally, place: &Place) -> bool {
        let grid = self.problem.grid;
        let share = chosen.explained.len() as f64 / self.wrong.len().max(1) as f64;
        let right = place.len().saturating_sub(tally.wrong_codes) as f64;
        let (hits, misses) = (share * tally.wrong_codes as f64, chosen.alarms * right);
        // Rows of blocks, and how many of them so many codes would be in if they were strewn.
        let cells = (grid.rows * grid.count.1) as f64;
        let strewn = cells * -(-(tally.wrong_codes as f64) / cells).exp_m1();
        let seldom = tally.wrong_codes * SELDOM < place.len();
        seldom && hits < PRECISE * (hits + misses) && tally.elements.len() as f64 > 0.8 * strewn
    }

    pub(super) fn scattered(&self, tally: &Tally, place: &Place) -> Finding {
        let all: Vec<usize> = (0..self.wrong.len()).collect();
        let kinds = self.kinds_of(&all);
        let detail = format!("here and there, while others like them are right: {kinds}");
        self.finding(Cause::Scattered, detail, tally, place)
    }

    /// The finding that whole rows of codes are at each other's places.
    pub(super) fn exchanged(&self, tally: &Tally, place: &Place) -> Option<Finding> {
        let rows: Vec<usize> = (0..tally.hits.rows.len())
            .filter(|row| tally.hits.rows[*row] > 0)
            .collect();
        if !(2..=ROWS).contains(&rows.len()) {
            return None;
        }
        let made: Option<Vec<Vec<u16>>> = rows.iter().map(|row| self.row_made(*row)).collect();
        let made = made?;
        let mut from = Vec::new();
        for row in &rows {
            let start = row * self.problem.grid.cols;
            let stored: Option<Vec<u16>> = (start..start + self.problem.grid.cols)
                .map(|at| self.view.code(self.problem, at))
                .collect();
            let stored = stored?;
            from.push(made.iter().position(|made| *made == stored)?);
        }
        let mut once = from.clone();
        once.sort_unstable();
        once.dedup();
        // One row in the place of several is another fault.
        let moved = once.len() == rows.len() && from.iter().enumerate().all(|(to, from)| to != *from);
        let detail = match rows[..] {
            [a, b] => format!("rows {a} and {b} are exchanged"),
            _ => format!("{} rows are at each other's places", rows.len()),
        };
        moved.then(|| self.finding(Cause::Layout, detail, tally, place))
    }

    /// The codes of a row as they would be stored.
    fn row_made(&self, row: usize) -> Option<Vec<u16>> {
        let cols = self.problem.grid.cols;
        let (mut at, end) = (row * cols, (row + 1) * cols);
        let mut codes = Vec::with_capacity(cols);
        while at < end {
            let seen = self.see(self.problem.cell_of(at))?;
            codes.extend(seen.want.iter().map(|code| self.view.code_as_stored(*code)));
            at = seen.cell.at + seen.cell.len;
        }
        Some(codes)
    }
}
