//! Why codes are not those of the stored scales.

use super::rules::Canonical;
use super::scales::Findings;
use super::{Cause, Example, Finding};
use crate::formats::{Format, Repr};

/// What the cast sees, how it should come out, and what is stored.
pub struct Elements<'a> {
    canonical: &'a Canonical<'a>,
    format: &'a Format,
    repr: Repr,
    quotients: Vec<f32>,
    want: Vec<u16>,
}

impl<'a> Elements<'a> {
    /// `quotients`: the source divided by the stored scales.
    pub fn new(canonical: &'a Canonical, format: &'a Format, quotients: Vec<f32>) -> Self {
        let repr = format.repr();
        Self {
            canonical,
            format,
            repr,
            want: quotients.iter().map(|x| repr.encode(*x)).collect(),
            quotients,
        }
    }

    /// Whether the codes of a block are those of its stored scale.
    pub fn follow_scale(&self, group: usize) -> bool {
        self.canonical.grid.elements(group).all(|at| !self.differs(at))
    }

    fn differs(&self, at: usize) -> bool {
        self.canonical.known_codes[at] && self.canonical.codes[at] != self.want[at]
    }

    /// The findings on codes, except in the blocks that `skip` names.
    pub fn classify(&self, skip: impl Fn(usize) -> bool) -> Vec<Finding> {
        let Self { canonical, format, .. } = *self;
        let grid = canonical.grid;
        let clamp = self.clamp();
        let mut findings = Findings::default();
        for group in (0..grid.len()).filter(|group| !canonical.is_nan(format, *group) && !skip(*group)) {
            if self.follow_scale(group) {
                continue;
            }
            let swapped = format.element.bits == 4
                && grid
                    .elements(group)
                    .all(|at| !canonical.known_codes[at] || canonical.codes[at ^ 1] == self.want[at]);
            for at in grid.elements(group).filter(|at| self.differs(*at)) {
                let (cause, detail) = match swapped {
                    true => (Cause::NibbleOrder, "in some blocks".into()),
                    false => self.cause(at, clamp),
                };
                findings.add(cause, &detail, || self.example(at));
            }
        }
        let mut findings = findings.0;
        for finding in &mut findings {
            (finding.of, finding.unit) = (grid.rows * grid.cols, "codes");
        }
        findings
    }

    /// The largest magnitude of all codes, where it is less than it should be; of zeros nothing is told.
    fn clamp(&self) -> Option<f32> {
        let canonical = self.canonical;
        let judged =
            |at: &usize| canonical.known_codes[*at] && !canonical.is_nan(self.format, canonical.grid.group_of(*at));
        let largest = |codes: &[u16]| {
            let values = (0..codes.len())
                .filter(judged)
                .map(|at| self.repr.decode(codes[at]).abs());
            values.filter(|x| x.is_finite()).fold(0.0, f32::max)
        };
        let (found, expected) = (largest(&canonical.codes), largest(&self.want));
        (found > 0.0 && found < expected).then_some(found)
    }

    fn cause(&self, at: usize, clamp: Option<f32>) -> (Cause, String) {
        let (y, max) = (self.quotients[at], self.format.element.max());
        let (stored, want) = (
            self.repr.decode(self.canonical.codes[at]),
            self.repr.decode(self.want[at]),
        );
        if let Some(clamp) = clamp
            && stored.abs() == clamp
            && want.abs() > clamp
        {
            return (Cause::Saturation, format!("at {clamp} instead of {max}"));
        }
        if !stored.is_finite() {
            return (Cause::Saturation, format!("{stored} for values near or beyond {max}"));
        }
        let canonical = self.canonical;
        let scale = || canonical.scale(self.format, &canonical.scales, canonical.grid.group_of(at));
        if y.abs() > max && stored == 0.0 && scale() == 0 {
            return (Cause::Division, "codes are 0 where the scale is 0".into());
        }
        if y.abs() > max {
            return (
                Cause::Saturation,
                format!("values beyond {max} wrap around or stop elsewhere"),
            );
        }
        if stored == 0.0 && want == 0.0 {
            return (Cause::ZeroSign, "sign of zero".into());
        }
        let (y, stored, want) = (f64::from(y), f64::from(stored), f64::from(want));
        // `want` is nearest to y, so a number whose midpoint with it is y is as near.
        let middle = (stored + want) / 2.0;
        if middle == y {
            let way = match (stored.abs() > want.abs(), self.canonical.codes[at] & 1) {
                (true, _) => "away from zero",
                (false, _) => "toward zero",
            };
            return (Cause::TieRule, way.into());
        }
        let step = self.repr.decode(self.canonical.codes[at]).abs().max(want.abs() as f32);
        let one_step = self.steps(at) == 1;
        match one_step {
            true if (y - middle).abs() <= f64::from(step) * 1e-6 => (
                Cause::Division,
                "the quotient is an ulp or two off, just beside a tie".into(),
            ),
            true if stored.abs() < want.abs() => (Cause::Division, "rounded toward zero".into()),
            true => (Cause::Division, "rounded away from zero".into()),
            false => (Cause::Unknown, "codes no cause explains".into()),
        }
    }

    /// Codes from the wanted to the stored one.
    fn steps(&self, at: usize) -> u32 {
        let order = |code: u16| {
            let sign = 1i32 << (self.format.element.bits - 1);
            match self.repr {
                Repr::Integer(_) => self.repr.decode(code) as i32 * if self.repr.decode(1) < 1.0 { 64 } else { 1 },
                _ if i32::from(code) & sign != 0 => -(i32::from(code) & (sign - 1)),
                _ => i32::from(code),
            }
        };
        order(self.canonical.codes[at]).abs_diff(order(self.want[at]))
    }

    fn example(&self, at: usize) -> Example {
        let cols = self.canonical.grid.cols;
        let show = |code: u16| format!("{code:#04x} ({})", self.repr.decode(code));
        Example {
            place: vec![at / cols, at % cols],
            source: vec![self.canonical.x[at]],
            stored: show(self.canonical.codes[at]),
            expected: format!("{} for the quotient {}", show(self.want[at]), self.quotients[at]),
        }
    }
}
