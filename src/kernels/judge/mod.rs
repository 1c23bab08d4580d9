//! How outputs are judged: bit for bit, within a bound that has a reason, or as bytes that numbers within it can have.

mod admissible;

pub use admissible::{Stored, admissible};

use rayon::prelude::*;

use crate::metrics::{BOUND_RATIO, Metric, Pair, VIOLATIONS, measure_all};
use crate::record::Worst;

/// What is said of one output.
#[derive(Clone, Debug, PartialEq)]
pub struct Measured {
    pub output: &'static str,
    pub metric: &'static Metric,
    pub value: f64,
    /// Elements behind it.
    pub n: u64,
    pub worst: Option<Worst>,
}

/// Elements of `size` bytes that differ: `violations`.
pub fn equal(output: &'static str, want: &[u8], got: &[u8], shape: &[usize], size: usize) -> Measured {
    assert_eq!(want.len(), got.len(), "bytes of '{output}'");
    let differ = |(want, got): &(&[u8], &[u8])| want != got;
    let pairs = || want.par_chunks(size).zip(got.par_chunks(size));
    let count = pairs().filter(differ).count();
    let number = |bytes: &[u8]| {
        let mut all = [0; 8];
        all[..bytes.len().min(8)].copy_from_slice(&bytes[..bytes.len().min(8)]);
        u64::from_le_bytes(all) as f64
    };
    let first = (count > 0)
        .then(|| pairs().position_first(|pair| differ(&pair)))
        .flatten();
    Measured {
        output,
        metric: &VIOLATIONS,
        value: count as f64,
        n: (want.len() / size) as u64,
        worst: first.map(|at| Worst {
            index: crate::metrics::unravel(at, shape),
            want: number(&want[at * size..][..size]),
            got: number(&got[at * size..][..size]),
        }),
    }
}

/// Elements beyond their bound (`violations`), the largest error over its bound (`bound_ratio`), and the usual metrics. NaN
/// must meet NaN and infinities their like, or the ratio is infinite.
pub fn within(
    output: &'static str,
    want: &[f64],
    got: &[f64],
    bound: impl Fn(usize) -> f64 + Sync,
    shape: &[usize],
) -> Vec<Measured> {
    assert_eq!(want.len(), got.len(), "elements of '{output}'");
    let ratio = |at: usize| {
        let (want, got) = (want[at], got[at]);
        if want.is_nan() && got.is_nan() || want == got {
            0.0
        } else if !want.is_finite() || !got.is_finite() {
            f64::INFINITY
        } else {
            over((got - want).abs(), bound(at))
        }
    };
    let worst = (0..want.len()).into_par_iter().map(|at| (ratio(at), at)).reduce(
        || (0.0, usize::MAX),
        |a, b| if b.0 > a.0 || (b.0 == a.0 && b.1 < a.1) { b } else { a },
    );
    let place = |at: usize| Worst {
        index: crate::metrics::unravel(at, shape),
        want: want[at],
        got: got[at],
    };
    let beyond = (0..want.len()).into_par_iter().filter(|at| ratio(*at) > 1.0).count();
    let measured = |metric, value, worst| Measured {
        output,
        metric,
        value,
        n: want.len() as u64,
        worst,
    };
    let place = (worst.1 < want.len()).then(|| place(worst.1));
    let mut all = vec![
        measured(&VIOLATIONS, beyond as f64, place.clone()),
        measured(&BOUND_RATIO, worst.0, place),
    ];
    let pair = Pair::new(want, got);
    all.extend(measure_all(&pair).map(|(metric, value)| measured(metric, value, None)));
    all
}

/// An error, which is not zero, as a multiple of its bound. A bound that is NaN admits nothing.
pub fn over(error: f64, bound: f64) -> f64 {
    match error / bound {
        ratio if ratio.is_nan() => f64::INFINITY,
        ratio => ratio,
    }
}

/// By how much a number may err that errs by `error` before it is rounded to bfloat16: by half a step more, which is at most
/// 2^-8 of the number, or half the least.
pub fn bf16_error(y: f64, error: f64) -> f64 {
    let unit = 2f64.powi(-8);
    error * (1.0 + unit) + (unit * y.abs()).max(2f64.powi(-134))
}
