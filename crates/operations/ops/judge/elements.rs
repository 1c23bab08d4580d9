//! Checks outputs element by element.

use std::ops::Range;

use rayon::prelude::*;

use super::failure::WorstElement;
use super::values;
use super::values::number;
use super::{Also, Bound, Judge, Measured, Together};
use ulplab_core::metrics::{BOUND_RATIO, Pair, VIOLATIONS, measure_all};
use ulplab_core::record::{Failure, Worst};

impl Judge {
    pub(super) fn equal_of(&self, want: &[u8], any_nan: &Range<usize>, also: Option<&Also>, got: &[u8]) -> Measured {
        assert_eq!(want.len(), got.len(), "bytes of '{}'", self.output);
        let right = self.measured(&VIOLATIONS, 0.0);
        if want == got {
            return right;
        }
        let (dtype, size, cols) = (self.dtype, self.dtype.bitsize() / 8, self.cols());
        let differs = |at: usize| {
            let bytes = at * size..(at + 1) * size;
            let nan = || number(dtype, want, at).is_nan() && number(dtype, got, at).is_nan();
            want[bytes.clone()] != got[bytes.clone()]
                && !(any_nan.contains(&(at % cols)) && nan())
                && !also.is_some_and(|also| also(at, &got[bytes]))
        };
        let [want_bits, got_bits] = [want, got].map(|bytes| move |at| values::bits(dtype, bytes, at));
        let kinds = |at: usize| {
            self.kinds(number(dtype, want, at), got, at) | values::neighbours(dtype, want_bits(at), got_bits(at))
        };
        self.first_wrong(right, &differs, &kinds, |first| WorstElement {
            at: first,
            want: number(dtype, want, first),
            got: number(dtype, got, first),
            bound: Some(0.0),
            text: format!(
                "{} (the first), bits must be equal",
                values::both(dtype, want_bits(first), got_bits(first))
            ),
        })
    }

    /// Kinds of error ([`KINDS`](values::KINDS)) of element `at`, as a bit set. `want` is the expected value of the element.
    pub(super) fn kinds(&self, want: f64, got: &[u8], at: usize) -> u16 {
        values::kinds(self.dtype, [want, number(self.dtype, got, at)], got, at)
    }

    /// Describes a wrong element: returns its bound, and a text with the expected value, the output's value and the bound.
    pub(super) fn by_bound<'a>(
        &'a self,
        bound: &'a Bound,
        want: &'a [f64],
        got: &'a [u8],
    ) -> impl Fn(usize, f64) -> (f64, String) + 'a {
        move |at, ratio| match bound(at, want[at]) {
            below if below < 0.0 => (
                0.0,
                format!("{}, its bits must be as they were", self.pair_text(want[at], got, at)),
            ),
            bound => (
                bound,
                format!(
                    "{}, bound {}{}",
                    self.pair_text(want[at], got, at),
                    values::short(bound),
                    values::times(ratio)
                ),
            ),
        }
    }

    pub(super) fn pair_text(&self, want: f64, got: &[u8], at: usize) -> String {
        let got = number(self.dtype, got, at);
        let [want, got] = values::apart(want, got);
        format!("want {want}, got {got}")
    }

    /// Compares numbers with `want`. Returns the number of elements beyond their bound (`violations`), the largest ratio of error
    /// to bound (`bound_ratio`), and further metrics such as the signal-to-noise ratio if `metrics` is set. The ratio is infinite
    /// for a NaN that is not expected, or an infinity other than the expected one. `said` describes the worst element: from its
    /// index and its ratio, it returns the element's bound and a text.
    pub(super) fn near(
        &self,
        want: &[f64],
        got: &[u8],
        metrics: bool,
        bound: &(dyn Fn(usize, f64) -> f64 + Sync),
        said: &dyn Fn(usize, f64) -> (f64, String),
    ) -> Vec<Measured> {
        let (dtype, size) = (self.dtype, self.dtype.bitsize() / 8);
        assert_eq!(want.len() * size, got.len(), "bytes of '{}'", self.output);
        let ratio = |at: usize| {
            let (want, got_at) = (want[at], number(dtype, got, at));
            match bound(at, got_at) {
                bound if bound < 0.0 => match values::stored(dtype, want) == values::bits(dtype, got, at) {
                    true => 0.0,
                    false => f64::INFINITY,
                },
                _ if want.is_nan() && got_at.is_nan() || want == got_at => 0.0,
                _ if !want.is_finite() || !got_at.is_finite() => f64::INFINITY,
                bound => over((got_at - want).abs(), bound),
            }
        };
        let found = (0..want.len()).into_par_iter().map(|at| {
            let ratio = ratio(at);
            (usize::from(ratio > 1.0), ratio, at)
        });
        let (beyond, worst, at) = found.reduce(
            || (0, 0.0, usize::MAX),
            |a, b| {
                let (_, ratio, at) = if b.1 > a.1 || (b.1 == a.1 && b.2 < a.2) { b } else { a };
                (a.0 + b.0, ratio, at)
            },
        );
        let worst_place = (at < want.len()).then(|| Worst {
            index: self.index(at),
            want: want[at],
            got: number(dtype, got, at),
        });
        let mut all = [&VIOLATIONS, &BOUND_RATIO].map(|metric| Measured {
            worst: worst_place.clone(),
            ..self.measured(metric, worst)
        });
        all[0].value = beyond as f64;
        if beyond > 0 {
            let (bound, text) = said(at, worst);
            let said = WorstElement {
                at,
                want: want[at],
                got: number(dtype, got, at),
                bound: Some(bound),
                text,
            };
            let kinds = |at| self.kinds(want[at], got, at);
            all[0] = self.failed(all[0].clone(), beyond, &|at| ratio(at) > 1.0, &kinds, said);
        }
        let mut all = Vec::from(all);
        if metrics {
            let pair = Pair::new(want, &values::numbers(dtype, got));
            all.extend(measure_all(&pair).map(|(metric, value)| self.measured(metric, value)));
        }
        all
    }

    /// Checks the errors of all elements of an output together, by `together`. The caller has found each element within its own
    /// bound. Returns a failure, or `right` if `together` finds no fault.
    pub(super) fn together_of(&self, together: &Together, got: &[u8], right: Measured) -> Measured {
        let said = together(&values::numbers(self.dtype, got)).join("; ");
        if said.is_empty() {
            return right;
        }
        Measured {
            value: right.n as f64,
            failure: Some(Box::new(Failure {
                message: format!("{}: {said}", self.output),
                why: self.why.to_string(),
                pattern: said,
                ..Failure::default()
            })),
            ..right
        }
    }

    pub(super) fn finite_of(&self, got: &[u8]) -> Measured {
        let dtype = self.dtype;
        let infinite = |at: usize| !number(dtype, got, at).is_finite();
        let right = self.measured(&VIOLATIONS, 0.0);
        self.first_wrong(right, &infinite, &|at| self.kinds(1.0, got, at), |first| {
            let value = number(dtype, got, first);
            WorstElement {
                at: first,
                want: f64::NAN,
                got: value,
                bound: None,
                text: format!("got {} (the first), a finite number is wanted", values::plain(value)),
            }
        })
    }
}

/// Returns error / bound for a nonzero error. The ratio is infinite if the bound is NaN.
fn over(error: f64, bound: f64) -> f64 {
    match error / bound {
        ratio if ratio.is_nan() => f64::INFINITY,
        ratio => ratio,
    }
}
