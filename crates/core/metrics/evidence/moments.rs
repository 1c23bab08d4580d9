//! Second moments of a pair of vectors, in f64.

use reference::vectorized;

use super::Number;

/// Largest number of elements that are summed in one loop. Longer vectors are split in halves, whose sums are added. For n
/// elements, the relative error of a sum of squares is therefore below `(LEAF / LANES + log2(LANES) + log2(n / LEAF)) · 2⁻⁵³`,
/// which is 2⁻⁴⁵ for any length that fits in memory.
const LEAF: usize = 4096;
/// Number of elements up to which one thread does all the work, since more threads would not be faster.
const ALONE: usize = 1 << 18;
/// Number of independent accumulators per sum. It is constant, so that the result does not depend on the width of the CPU's
/// registers.
const LANES: usize = 16;

/// Sums over the elements of two vectors x and y.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub(super) struct Moments {
    /// Σ x²
    pub xx: f64,
    /// Σ y²
    pub yy: f64,
    /// Σ x·y
    pub xy: f64,
    /// Σ (x − y)²
    pub ee: f64,
    /// max |x − y|
    pub max: f64,
    /// Index of the first element of the leaf (up to [`LEAF`] elements) that holds `max`.
    leaf: usize,
}

/// Returns the index of the first element with the largest |x − y|.
pub(super) fn argmax<X: Number, Y: Number>(x: &[X], y: &[Y], scale: f64, moments: &Moments) -> usize {
    let end = x.len().min(moments.leaf + LEAF);
    let found = (moments.leaf..end).find(|&i| (x[i].into() * scale - y[i].into() * scale).abs() == moments.max);
    found.unwrap_or(moments.leaf)
}

/// Returns the sums of squares and products of `scale · x` and `scale · y`. `x` and `y` are parts of two tensors, and `first` is
/// the index at which these parts begin. The result is meaningful only if all elements are finite.
pub(super) fn moments<X: Number + Sync, Y: Number + Sync>(x: &[X], y: &[Y], scale: f64, first: usize) -> Moments {
    if x.len() <= LEAF {
        return Moments {
            leaf: first,
            ..vectorized!(of_leaf(x, y, scale))
        };
    }
    let middle = x.len().div_ceil(LEAF).div_ceil(2) * LEAF;
    let a = || moments(&x[..middle], &y[..middle], scale, first);
    let b = || moments(&x[middle..], &y[middle..], scale, first + middle);
    // Vectors are split at the same index for any number of threads, so the number of threads does not change the result.
    let (a, b) = match x.len() > ALONE {
        true => rayon::join(a, b),
        false => (a(), b()),
    };
    let larger = if b.max > a.max { b } else { a };
    Moments {
        xx: a.xx + b.xx,
        yy: a.yy + b.yy,
        xy: a.xy + b.xy,
        ee: a.ee + b.ee,
        ..larger
    }
}

/// Inner loop over one leaf. It is inlined as a whole into the code for each instruction set, and vectorised there.
#[inline(always)]
fn of_leaf<X: Number, Y: Number>(x_all: &[X], y_all: &[Y], scale: f64) -> Moments {
    let mut sums = [[0.0; LANES]; 4];
    let mut max = [0.0; LANES];
    let (xs, x_rest) = x_all.as_chunks::<LANES>();
    let (ys, y_rest) = y_all.as_chunks::<LANES>();
    let (mut x, mut y) = ([0.0; LANES], [0.0; LANES]);
    for (x_chunk, y_chunk) in xs.iter().zip(ys) {
        for lane in 0..LANES {
            x[lane] = x_chunk[lane].into() * scale;
            y[lane] = y_chunk[lane].into() * scale;
        }
        step(&mut sums, &mut max, &x, &y);
    }
    (x, y) = ([0.0; LANES], [0.0; LANES]);
    for (lane, (&x_rest, &y_rest)) in x_rest.iter().zip(y_rest).enumerate() {
        (x[lane], y[lane]) = (x_rest.into() * scale, y_rest.into() * scale);
    }
    step(&mut sums, &mut max, &x, &y);
    let [xx, yy, xy, ee] = sums.map(|sum| fold(sum, |a, b| a + b));
    Moments {
        xx,
        yy,
        xy,
        ee,
        max: fold(max, f64::max),
        leaf: 0,
    }
}

#[inline(always)]
fn step(sums: &mut [[f64; LANES]; 4], max: &mut [f64; LANES], x: &[f64; LANES], y: &[f64; LANES]) {
    for lane in 0..LANES {
        let e = x[lane] - y[lane];
        sums[0][lane] += x[lane] * x[lane];
        sums[1][lane] += y[lane] * y[lane];
        sums[2][lane] += x[lane] * y[lane];
        sums[3][lane] += e * e;
        max[lane] = if e.abs() > max[lane] { e.abs() } else { max[lane] };
    }
}

/// Combines the lanes in a balanced tree.
#[inline(always)]
fn fold(mut lanes: [f64; LANES], combine: impl Fn(f64, f64) -> f64) -> f64 {
    let mut width = LANES;
    while width > 1 {
        width /= 2;
        for lane in 0..width {
            lanes[lane] = combine(lanes[lane], lanes[lane + width]);
        }
    }
    lanes[0]
}
