//! Sums over two real tensors of the same shape, for metrics that compare the tensors.

use super::Number;
use super::moments::{argmax, moments};
use super::ulps::{Bits, Ulps};
use crate::record;

/// Sums from which all metrics of a reference tensor x and a candidate tensor y are computed.
///
/// NaN and infinities are counted separately. If either tensor has a NaN or an infinity, every metric is NaN.
#[derive(Clone, Debug, PartialEq)]
pub struct Pair {
    /// Number of elements of each tensor.
    pub n: u64,
    /// Number of NaN and infinite elements of the reference.
    pub nonfinite_want: u64,
    /// Number of NaN and infinite elements of the candidate.
    pub nonfinite_got: u64,
    /// True if both tensors are NaN at the same indices, and infinite at the same indices with the same signs.
    pub same_nonfinite: bool,
    /// Σ x², Σ y², Σ x·y and Σ (x − y)² of the tensors divided by `scale`.
    pub(in crate::metrics) xx: f64,
    pub(in crate::metrics) yy: f64,
    pub(in crate::metrics) xy: f64,
    pub(in crate::metrics) ee: f64,
    /// max |x − y|.
    pub max_abs: f64,
    /// The element with the error `max_abs`. If NaN or infinities of the two tensors do not match, the first element at which
    /// they do not match.
    pub worst: Option<Worst>,
    /// Divisor of both tensors in the sums `xx`, `yy`, `xy` and `ee`, a power of two. It is 1, except for f64 tensors whose
    /// squares would overflow or underflow.
    pub scale: f64,
    /// Distances in ulps of the tensors' type. `None` if the distances were not measured, if an element is not finite, or if the
    /// pair is a result of [`Pair::and`].
    pub ulps: Option<Ulps>,
}

/// The elements of two tensors at the same index.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Worst {
    /// Flat row-major index of the element.
    pub index: usize,
    /// Value in the reference.
    pub want: f64,
    /// Value in the candidate.
    pub got: f64,
}

impl Worst {
    /// Returns the element at an index of two tensors.
    fn at<X: Number, Y: Number>(index: usize, want: &[X], got: &[Y]) -> Self {
        let (want, got) = (want[index].into(), got[index].into());
        Self { index, want, got }
    }

    /// Converts the element to the type that stored measurements use. The flat index becomes an index per dimension of `shape`.
    pub fn in_shape(self, shape: &[usize]) -> record::Worst {
        record::Worst {
            index: unravel(self.index, shape),
            want: self.want,
            got: self.got,
        }
    }
}

/// Returns the multi-dimensional index for a flat row-major index.
///
/// # Panics
/// If a dimension is zero, because such a tensor has no elements.
pub fn unravel(mut flat: usize, shape: &[usize]) -> Vec<u64> {
    let mut index = vec![0; shape.len()];
    for (at, &size) in index.iter_mut().zip(shape).rev() {
        (*at, flat) = ((flat % size) as u64, flat / size);
    }
    index
}

/// Range of sums of squares for which no square overflowed, and underflow of squares is not significant.
const SAFE: std::ops::Range<f64> = 1e-250..1e300;

impl Pair {
    /// Compares the tensors `want` and `got`.
    ///
    /// # Panics
    /// If the lengths differ. Callers compare shapes first.
    pub fn new<X: Number + Sync, Y: Number + Sync>(want: &[X], got: &[Y]) -> Self {
        assert_eq!(want.len(), got.len(), "elements of the two tensors");
        let (mut sums, mut scale, mut scan) = (moments(want, got, 1.0, 0), 1.0, Scan::default());
        // A NaN or an infinity in a tensor makes these sums NaN or infinite, so they are not in [`SAFE`].
        if !SAFE.contains(&sums.xx) || !SAFE.contains(&sums.yy) {
            scan = Scan::new(want, got);
            if scan.finite() && scan.max > 0.0 {
                // The largest magnitude is scaled to 1 ≤ |x| < 2. The scale is clamped so that the scale and its inverse are
                // normal numbers.
                scale = scan.max.log2().floor().clamp(-1000.0, 1000.0).exp2();
                sums = moments(want, got, 1.0 / scale, 0);
            }
        }
        let worst = match scan.finite() {
            true => (!want.is_empty()).then(|| argmax(want, got, 1.0 / scale, &sums)),
            false => scan.differ.or(scan.first),
        };
        let sums = [sums.xx, sums.yy, sums.xy, sums.ee, sums.max * scale];
        let [xx, yy, xy, ee, max_abs] = sums.map(|sum| if scan.finite() { sum } else { f64::NAN });
        Self {
            n: want.len() as u64,
            nonfinite_want: scan.nonfinite_want,
            nonfinite_got: scan.nonfinite_got,
            same_nonfinite: scan.differ.is_none(),
            xx,
            yy,
            xy,
            ee,
            max_abs,
            worst: worst.map(|index| Worst::at(index, want, got)),
            scale,
            ulps: None,
        }
    }

    /// Returns the sums for two longer tensors: the tensors of `self`, each extended by the corresponding tensor of `later`.
    /// Drops the ULP distances.
    #[must_use]
    pub fn and(self, later: Self) -> Self {
        let scale = self.scale.max(later.scale);
        // Brings the sums of both pairs to the same scale. The ratio of the scales is exact, as they are powers of two.
        let (here, there) = ((self.scale / scale).powi(2), (later.scale / scale).powi(2));
        let moved = later.worst.map(|worst| Worst {
            index: worst.index + self.n as usize,
            ..worst
        });
        // Keep the worst element of the first pair in which NaN or infinities do not match. If they match in both pairs, keep the
        // worst element of the pair with the larger error; NaN counts as the largest error.
        let first = match (self.same_nonfinite, later.same_nonfinite) {
            (false, _) => true,
            (true, false) => false,
            _ => self.max_abs.is_nan() || later.max_abs <= self.max_abs,
        };
        let max_abs = match self.max_abs.is_nan() || later.max_abs.is_nan() {
            true => f64::NAN,
            false => self.max_abs.max(later.max_abs),
        };
        Self {
            n: self.n + later.n,
            nonfinite_want: self.nonfinite_want + later.nonfinite_want,
            nonfinite_got: self.nonfinite_got + later.nonfinite_got,
            same_nonfinite: self.same_nonfinite && later.same_nonfinite,
            xx: self.xx * here + later.xx * there,
            yy: self.yy * here + later.yy * there,
            xy: self.xy * here + later.xy * there,
            ee: self.ee * here + later.ee * there,
            max_abs,
            worst: if first {
                self.worst.or(moved)
            } else {
                moved.or(self.worst)
            },
            scale,
            ulps: None,
        }
    }

    /// Adds the distances in ulps. They are computed only on request, since their quantiles need a selection algorithm, which is
    /// slower than the sums.
    pub fn with_ulps<T: Bits>(self, want: &[T], got: &[T]) -> Self {
        self.with_ulps_of_codes(T::WIDTH, want.iter().map(|x| x.code()), got.iter().map(|y| y.code()))
    }

    /// Adds the distances in ulps of codes of any sign-magnitude floating-point format of `width` bits.
    pub fn with_ulps_of_codes(
        mut self,
        width: u32,
        want: impl Iterator<Item = u64>,
        got: impl Iterator<Item = u64>,
    ) -> Self {
        self.ulps = self.finite().then(|| Ulps::new(width, want, got)).flatten();
        self
    }

    /// True if no element of either tensor is NaN or infinite.
    pub fn finite(&self) -> bool {
        self.nonfinite_want + self.nonfinite_got == 0
    }
}

/// Result of a slow second pass over the tensors, which runs if sums are not finite or not in [`SAFE`].
#[derive(Default)]
struct Scan {
    nonfinite_want: u64,
    nonfinite_got: u64,
    /// First index at which NaN or infinities of the two tensors do not match.
    differ: Option<usize>,
    first: Option<usize>,
    /// The largest magnitude in both tensors.
    max: f64,
}

impl Scan {
    fn new<X: Number, Y: Number>(want: &[X], got: &[Y]) -> Self {
        let mut scan = Self::default();
        for (index, (&x, &y)) in want.iter().zip(got).enumerate() {
            let (x, y): (f64, f64) = (x.into(), y.into());
            scan.max = scan.max.max(x.abs()).max(y.abs());
            if x.is_finite() && y.is_finite() {
                continue;
            }
            scan.nonfinite_want += u64::from(!x.is_finite());
            scan.nonfinite_got += u64::from(!y.is_finite());
            scan.first.get_or_insert(index);
            if x != y && !(x.is_nan() && y.is_nan()) {
                scan.differ.get_or_insert(index);
            }
        }
        scan
    }

    fn finite(&self) -> bool {
        self.nonfinite_want + self.nonfinite_got == 0
    }
}
