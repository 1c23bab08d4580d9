//! Compares a tensor `got` with its reference `want` element by element, in f64. An element passes if |got − want| ≤ bound.
//!
//! The bound is either the rule of numpy and torch, `atol + rtol·|want|`, or one bound for each element, from the error analysis
//! of an operation. A fast first pass counts the elements that are surely within their bounds; a second pass describes the
//! elements that fail.

use rayon::prelude::*;
use reference::vectorized;

/// An element type that converts exactly to f64. The conversions vectorise.
pub trait Widen: Copy + Sync {
    /// Type in which the fast first pass computes: f32 if `Self` converts exactly to f32, otherwise f64. A SIMD register holds
    /// twice as many f32 as f64.
    type Quick: Quick;

    /// Converts the element to the type in which the fast first pass compares.
    fn quick(self) -> Self::Quick;

    /// Converts the element to f64.
    #[inline(always)]
    fn widen(self) -> f64 {
        self.quick().into()
    }
}

/// Trait of f32 and f64, the types in which the fast first pass of a comparison computes.
pub trait Quick: Copy + Into<f64> {
    /// Factor by which `rtol` and `atol` are multiplied before they are rounded to this type, so that rounding never makes the
    /// bound too large.
    const SURE: f64;

    /// Rounds `rtol` or `atol` to this type.
    fn narrowed(x: f64) -> Self;

    /// Returns 1 if |got − want| is surely within `atol + rtol·|want|`, else 0, without a branch. An infinite or NaN bound gives
    /// 0.
    fn inside(got: Self, want: Self, rtol: Self, atol: Self) -> u32;
}

macro_rules! quick {
    ($($float:ty, $sure:expr;)*) => {
        $(impl Widen for $float {
            type Quick = Self;

            #[inline(always)]
            fn quick(self) -> Self {
                self
            }
        }

        impl Quick for $float {
            const SURE: f64 = $sure;

            #[inline(always)]
            fn narrowed(x: f64) -> Self {
                x as Self
            }
            #[inline(always)]
            fn inside(got: Self, want: Self, rtol: Self, atol: Self) -> u32 {
                let bound = atol + rtol * want.abs();
                // `&` avoids the branch of `&&`.
                u32::from((got - want).abs() <= bound) & u32::from(bound < Self::INFINITY)
            }
        })*
    };
}
quick! { f32, 1.0 - 1.0 / (1 << 20) as f64; f64, 1.0; }

impl Widen for half::bf16 {
    type Quick = f32;

    #[inline(always)]
    fn quick(self) -> f32 {
        f32::from_bits(u32::from(self.to_bits()) << 16)
    }
}

impl Widen for half::f16 {
    type Quick = f32;

    #[inline(always)]
    fn quick(self) -> f32 {
        // The product with 2^112 corrects the exponent bias, from 15 of f16 to 127 of f32. It is exact, also for subnormal
        // numbers.
        const REBIAS: f32 = f32::from_bits(0x7780_0000);
        let bits = u32::from(self.to_bits());
        let magnitude = f32::from_bits((bits & 0x7fff) << 13) * REBIAS;
        let special = if bits & 0x7c00 == 0x7c00 { 0x7f80_0000 } else { 0 };
        f32::from_bits(magnitude.to_bits() | special | (bits & 0x8000) << 16)
    }
}

/// Largest allowed distance between an element and its expected value.
#[derive(Clone, Copy, Debug)]
pub enum Allowed<'a> {
    /// `atol + rtol·|want|`, as in numpy and torch.
    Tolerance {
        /// Relative tolerance, a factor of |want|.
        rtol: f64,
        /// Absolute tolerance, the same for all elements.
        atol: f64,
    },
    /// One bound for each element.
    Bounds(&'a [f64]),
}

impl Allowed<'_> {
    /// Returns the bound of an element. An element whose bound is not finite counts as outside its bound.
    #[inline(always)]
    pub fn at(self, index: usize, want: f64) -> f64 {
        match self {
            Self::Tolerance { rtol, atol } => atol + rtol * want.abs(),
            Self::Bounds(bounds) => bounds[index],
        }
    }
}

/// One compared element.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Element {
    /// Flat row-major index of the element.
    pub index: usize,
    /// Value under test.
    pub got: f64,
    /// Expected value.
    pub want: f64,
    /// Largest allowed distance between the two values.
    pub bound: f64,
}

impl Element {
    /// Returns the distance between the two values, divided by the bound. The ratio is infinite if a value is not finite, or if
    /// the bound is 0 or less.
    pub fn ratio(&self) -> f64 {
        let off = (self.got - self.want).abs();
        match off.is_nan() || self.bound < 0.0 {
            true => f64::INFINITY,
            false => off / self.bound,
        }
    }
}

/// True if an element is within its bound. Two NaN match only if `equal_nan`; an infinity matches only the same infinity.
pub fn inside(got: f64, want: f64, bound: f64, equal_nan: bool) -> bool {
    match (got.is_nan() || want.is_nan(), got.is_infinite() || want.is_infinite()) {
        (true, _) => equal_nan && got.is_nan() && want.is_nan(),
        (_, true) => got == want,
        _ => (got - want).abs() <= bound && bound < f64::INFINITY,
    }
}

/// Returns |got − want| divided by the bound: 0 for equal numbers and for two NaN, infinite if only one value is NaN or the ratio
/// is NaN.
pub fn ratio(got: f64, want: f64, bound: f64) -> f64 {
    match (got - want).abs() / bound {
        _ if got == want || got.is_nan() && want.is_nan() => 0.0,
        ratio if ratio.is_nan() => f64::INFINITY,
        ratio => ratio,
    }
}

/// The result of a comparison.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Comparison {
    /// Number of compared elements.
    pub elements: usize,
    /// Number of elements outside their bounds, including those counted in `nan`, `infinite` and `unbounded`.
    pub outside: usize,
    /// Number of failed pairs that contain a NaN. A pair of two NaN fails only if `equal_nan` is false.
    pub nan: usize,
    /// Number of failed pairs that contain an infinity and no NaN; the other value is not the same infinity.
    pub infinite: usize,
    /// Number of pairs of finite values with an infinite or NaN bound. Such pairs cannot be compared, and count as outside their
    /// bounds.
    pub unbounded: usize,
    /// Number of pairs of two NaN if `equal_nan` is true, else 0. Such pairs are not compared.
    pub nan_pairs: usize,
    /// The failed element with the largest ratio of distance to bound, the first in a tie; `None` if no element failed.
    pub worst: Option<Element>,
    /// True if at least one expected value is finite.
    pub finite: bool,
    /// True if an output of zeros would also be inside all bounds.
    pub zeros_pass: bool,
    /// The value that all expected elements have; `None` if they differ.
    pub constant: Option<f64>,
}

impl Comparison {
    /// Number of elements that were compared with a finite bound: all except `unbounded` and `nan_pairs`. If it is 0, the
    /// comparison shows nothing, and must not pass.
    pub fn judged(&self) -> usize {
        self.elements - self.unbounded - self.nan_pairs
    }

    /// Merges `next` into `self`. The elements of `next` follow the elements of `self`, so the index of the worst element of
    /// `next` is shifted.
    pub fn append(&mut self, mut next: Self) {
        if let Some(worst) = &mut next.worst {
            worst.index += self.elements;
        }
        if self.elements == 0 {
            *self = next;
        } else if next.elements > 0 {
            self.count(&next);
            self.elements += next.elements;
            self.finite |= next.finite;
            self.zeros_pass &= next.zeros_pass;
            self.constant = self.constant.filter(|_| self.constant == next.constant);
        }
    }

    /// Adds the counts of `other` to the counts of `self`, and keeps the worse of the two worst elements.
    fn count(&mut self, other: &Self) {
        self.outside += other.outside;
        self.nan += other.nan;
        self.infinite += other.infinite;
        self.unbounded += other.unbounded;
        self.nan_pairs += other.nan_pairs;
        self.worst = worse(self.worst, other.worst);
    }
}

/// Returns the element with the larger ratio of distance to bound; `a` if the ratios are equal.
fn worse(a: Option<Element>, b: Option<Element>) -> Option<Element> {
    match (a, b) {
        (Some(a), Some(b)) => Some(if b.ratio() > a.ratio() { b } else { a }),
        (a, b) => a.or(b),
    }
}

/// Number of elements that a thread compares at a time.
pub const PIECE: usize = 1 << 16;
/// Length of a run: the fast pass compares this many elements, then checks if any of them may be outside its bound.
pub const RUN: usize = 512;

/// Compares `got` with `want`. Two NaN match only if `equal_nan`; an infinity matches only the same infinity.
///
/// # Panics
/// If the lengths differ. Callers compare shapes first.
pub fn compare<G: Widen, W: Widen<Quick = G::Quick>>(
    got: &[G],
    want: &[W],
    allowed: Allowed,
    equal_nan: bool,
) -> Comparison {
    assert_eq!(got.len(), want.len(), "elements of the two tensors");
    if let Allowed::Bounds(bounds) = allowed {
        assert_eq!(bounds.len(), want.len(), "one bound for each element");
    }
    let pieces = got.par_chunks(PIECE).zip(want.par_chunks(PIECE)).enumerate();
    let pieces = pieces.map(|(piece, (got, want))| {
        let from = piece * PIECE;
        let piece = Piece {
            got,
            want,
            allowed,
            equal_nan,
            from,
        };
        vectorized!(piece.compare())
    });
    let all = pieces.reduce(Comparison::default, |mut all, next| {
        all.count(&next);
        all
    });
    let first = want.first().map(|first| first.widen());
    // The scans for `zeros_pass` and `constant` cost little: usually, they stop at one of the first elements.
    let zero_passes = |(at, want): (usize, &W)| {
        let bound = allowed.at(at, want.widen());
        want.widen().abs() <= bound && bound < f64::INFINITY
    };
    Comparison {
        elements: got.len(),
        finite: want.iter().any(|want| want.widen().is_finite()),
        zeros_pass: first.is_some() && want.iter().enumerate().all(zero_passes),
        constant: first.filter(|first| want.iter().all(|want| want.widen() == *first)),
        ..all
    }
}

struct Piece<'a, G, W> {
    got: &'a [G],
    want: &'a [W],
    allowed: Allowed<'a>,
    equal_nan: bool,
    from: usize,
}

impl<G: Widen, W: Widen<Quick = G::Quick>> Piece<'_, G, W> {
    #[inline(always)]
    fn compare(&self) -> Comparison {
        let mut counts = Comparison::default();
        let runs = self.got.chunks(RUN).zip(self.want.chunks(RUN)).enumerate();
        for (run, (got, want)) in runs {
            let from = self.from + run * RUN;
            let mut count = 0;
            // The kind of bound is matched once per run of [`RUN`] elements, so that the inner loops contain only arithmetic.
            match self.allowed {
                Allowed::Tolerance { rtol, atol } => {
                    let [rtol, atol] = [rtol, atol].map(|x| G::Quick::narrowed(x * G::Quick::SURE));
                    for (got, want) in got.iter().zip(want) {
                        count += G::Quick::inside(got.quick(), want.quick(), rtol, atol);
                    }
                }
                Allowed::Bounds(bounds) => {
                    for ((got, want), bound) in got.iter().zip(want).zip(&bounds[from..]) {
                        count += f64::inside(got.widen(), want.widen(), 0.0, *bound);
                    }
                }
            }
            if (count as usize) < got.len() {
                self.describe(got, want, from, &mut counts);
            }
        }
        counts
    }

    /// Compares all elements of a run ([`RUN`] elements) in which the fast pass saw possible failures; counts failures by kind.
    #[inline(never)]
    fn describe(&self, got: &[G], want: &[W], from: usize, counts: &mut Comparison) {
        for (at, (got, want)) in got.iter().zip(want).enumerate() {
            let (got, want) = (got.widen(), want.widen());
            let index = from + at;
            let bound = self.allowed.at(index, want);
            let nan = got.is_nan() || want.is_nan();
            let infinite = got.is_infinite() || want.is_infinite();
            let inside = inside(got, want, bound, self.equal_nan);
            counts.nan_pairs += usize::from(nan && inside);
            if inside {
                continue;
            }
            counts.outside += 1;
            counts.nan += usize::from(nan);
            counts.infinite += usize::from(infinite && !nan);
            counts.unbounded += usize::from(!(nan || infinite || bound < f64::INFINITY));
            let element = Element {
                index,
                got,
                want,
                bound,
            };
            counts.worst = worse(counts.worst, Some(element));
        }
    }
}
