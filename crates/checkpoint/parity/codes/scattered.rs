//! Handles differences of codes that are too rare or too scattered to name a cause, and whole rows that are exchanged.

use std::collections::BTreeSet;

use super::Codes;
use crate::parity::Cause;
use crate::parity::choose::Explanation;
use crate::parity::place::Place;
use crate::parity::scales::isolated;
use crate::parity::verify::Tally;

/// Minimum number of differing codes for which a cause is reported. Fewer differences would fit some of the hundred tried causes
/// by chance: most differences are of one step, which many causes predict.
const FEW: usize = 6;
/// Fewer than `FEW` differing codes are called isolated only if they are also less than 1 / `RARE` of all codes.
const RARE: usize = 100;
/// Differing codes are called scattered only if they are less than 1 / `SELDOM` of the codes in their rows and columns. A larger
/// fraction cannot be chance, even if its cause is unknown.
const SELDOM: usize = 20;
/// Maximum number of differing rows. More rows are not tested for an exchange of rows.
const ROWS: usize = 64;
/// Minimum precision of a cause: fraction of the differences it predicts that really occur.
const PRECISE: f64 = 0.2;

impl Codes<'_> {
    /// Returns the cause "isolated" if very few codes differ. Returns `None` if more differ, or if all differences are zeros with
    /// the wrong sign, for which a cause can be named.
    pub(super) fn few(&self, tally: &Tally) -> Option<(Cause, String)> {
        let all = self.problem.grid.rows * self.problem.grid.cols;
        let sign = 1u16 << (self.problem.format.element.bits - 1);
        let is_zero = |(cell, i): &(usize, usize)| {
            let seen = &self.seen[*cell];
            let want = self.view.code_as_stored(seen.want[*i]);
            seen.stored[*i].is_some_and(|stored| (want | stored) & !sign == 0)
        };
        let zeros = self.wrong.iter().all(is_zero);
        let few = !zeros && tally.wrong_codes < FEW && tally.wrong_codes * RARE < all;
        few.then(|| (Cause::Isolated, isolated(tally.wrong_codes, "code")))
    }

    /// True if an explanation fits the differences only by chance. Then most of the differences that it predicts do not occur,
    /// and the differences are spread over blocks as if they were at random positions.
    pub(super) fn is_scattered(&self, chosen: &Explanation, tally: &Tally, place: &Place) -> bool {
        let grid = self.problem.grid;
        let share = chosen.explained.len() as f64 / self.wrong.len().max(1) as f64;
        let right = place.len().saturating_sub(tally.wrong_codes) as f64;
        let (hits, misses) = (share * tally.wrong_codes as f64, chosen.alarms * right);
        // A cell is one row of a block. `random` is the expected number of cells with a difference if the differences were at
        // random places.
        let cells = (grid.rows * grid.count.1) as f64;
        let random = cells * -(-(tally.wrong_codes as f64) / cells).exp_m1();
        let seldom = tally.wrong_codes * SELDOM < place.len();
        seldom && hits < PRECISE * (hits + misses) && tally.elements.len() as f64 > 0.8 * random
    }

    pub(super) fn scattered(&self) -> (Cause, String) {
        let kinds = self.kinds_of(0..self.wrong.len());
        let detail = format!("here and there, while others like them are right: {kinds}");
        (Cause::Scattered, detail)
    }

    /// Returns the cause "layout" if the differing rows are whole rows of codes that are exchanged with each other.
    pub(super) fn exchanged(&self, tally: &Tally) -> Option<(Cause, String)> {
        let hits = &tally.hits.rows;
        let rows: Vec<usize> = (0..hits.len()).filter(|row| hits[*row] > 0).collect();
        if !(2..=ROWS).contains(&rows.len()) {
            return None;
        }
        let made: Vec<Vec<u16>> = rows.iter().map(|row| self.row_made(*row)).collect::<Option<_>>()?;
        let cols = self.problem.grid.cols;
        let from = |row: &usize| {
            let places = row * cols..(row + 1) * cols;
            let stored = places.map(|at| self.view.code(at));
            let stored: Vec<u16> = stored.collect::<Option<_>>()?;
            made.iter().position(|made| *made == stored)
        };
        let from: Vec<usize> = rows.iter().map(from).collect::<Option<_>>()?;
        let once: BTreeSet<&usize> = from.iter().collect();
        // Rows are exchanged only if each of them is stored once. If one row is stored in place of several rows, the fault is
        // different.
        let moved = once.len() == rows.len() && from.iter().enumerate().all(|(to, from)| to != *from);
        let detail = match rows[..] {
            [a, b] => format!("rows {a} and {b} are exchanged"),
            _ => format!("{} rows are at each other's places", rows.len()),
        };
        moved.then_some((Cause::Layout, detail))
    }

    /// Returns the codes of a row as the quantizer would store them; `None` if the input values of the row are unknown.
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
