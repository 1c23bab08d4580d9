//! Compares two tensors element by element: |got − want| ≤ a bound, in f64.
//!
//! One kind of bound is the rule of numpy and torch, `atol + rtol·|want|`; the other is one bound for each element, from an
//! operation's error analysis. One pass over memory decides; a second look describes the elements that fail.

use rayon::prelude::*;
use reference::vectorized;

/// An element type that is widened exactly, in code that vectorises.
pub trait Widen: Copy + Sync {
    /// The type in which most elements are found to be inside: f32 where it has the numbers, since twice as many fit a register.
    type Quick: Quick;

    /// The number in it.
    fn quick(self) -> Self::Quick;

    /// The number.
    #[inline(always)]
    fn widen(self) -> f64 {
        self.quick().into()
    }
}

/// f32 or f64, in which an element is found to be surely inside.
pub trait Quick: Copy + Into<f64> {
    /// The factor of a bound that keeps the roundings of this type from making it too large.
    const SURE: f64;

    /// A bound's part in this type.
    fn narrowed(x: f64) -> Self;

    /// 1 if |got − want| is surely within `atol + rtol·|want|`, else 0, without a branch. A bound that is infinite or NaN allows nothing.
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
                // Not `&&`, which would branch.
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
        // The exponent is rebiased by a product with 2^112, which is exact and right for subnormal numbers, too.
        const REBIAS: f32 = f32::from_bits(0x7780_0000);
        let bits = u32::from(self.to_bits());
        let magnitude = f32::from_bits((bits & 0x7fff) << 13) * REBIAS;
        let special = if bits & 0x7c00 == 0x7c00 { 0x7f80_0000 } else { 0 };
        f32::from_bits(magnitude.to_bits() | special | (bits & 0x8000) << 16)
    }
}

/// The bound on the distance of each element from the wanted one.
#[derive(Clone, Copy, Debug)]
pub enum Allowed<'a> {
    /// `atol + rtol·|want|`.
    Tolerance {
        /// Relative to the wanted number.
        rtol: f64,
        /// The same for all.
        atol: f64,
    },
    /// One bound for each element.
    Bounds(&'a [f64]),
}

impl Allowed<'_> {
    /// The bound of an element; one that is not finite allows nothing.
    #[inline(always)]
    pub fn at(self, index: usize, want: f64) -> f64 {
        match self {
            Self::Tolerance { rtol, atol } => atol + rtol * want.abs(),
            Self::Bounds(bounds) => bounds[index],
        }
    }
}

/// An element that is compared.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Element {
    /// Flat row-major index.
    pub index: usize,
    /// The number that was found.
    pub got: f64,
    /// The wanted number.
    pub want: f64,
    /// The largest allowed distance.
    pub bound: f64,
}

impl Element {
    /// The distance in bounds: infinite if a number is not finite, or if the bound is 0 or less.
    pub fn ratio(&self) -> f64 {
        let off = (self.got - self.want).abs();
        match off.is_nan() || self.bound < 0.0 {
            true => f64::INFINITY,
            false => off / self.bound,
        }
    }
}

/// True if an element is within its bound. NaN meets NaN only if `equal_nan`; an infinity meets the same infinity.
pub fn inside(got: f64, want: f64, bound: f64, equal_nan: bool) -> bool {
    match (got.is_nan() || want.is_nan(), got.is_infinite() || want.is_infinite()) {
        (true, _) => equal_nan && got.is_nan() && want.is_nan(),
        (_, true) => got == want,
        _ => (got - want).abs() <= bound && bound < f64::INFINITY,
    }
}

/// An error over its bound: 0 for equal numbers and for two NaN, infinite where one is not a number or has no bound.
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
    /// Elements compared.
    pub elements: usize,
    /// Elements outside their bounds, those of the other counts included.
    pub outside: usize,
    /// Pairs of which one is NaN and the other is not, or both are and NaN may not meet NaN.
    pub nan: usize,
    /// Pairs of which one is infinite and the other is not the same infinity.
    pub infinite: usize,
    /// Finite numbers whose bound is infinite or NaN, which nothing could break: not judged, and counted as outside.
    pub unbounded: usize,
    /// Pairs of two NaN if NaN may meet NaN: they say nothing of each other.
    pub nan_pairs: usize,
    /// The element that is most bounds away from what is wanted; the first of them. None if all are inside.
    pub worst: Option<Element>,
    /// True if a wanted number is finite.
    pub finite: bool,
    /// True if zeros in the place of all elements would also be inside.
    pub zeros_pass: bool,
    /// The number that all wanted ones are, if they are the same.
    pub constant: Option<f64>,
}

impl Comparison {
    /// Number of elements that were judged: a comparison without any shows nothing, and passes nothing.
    pub fn judged(&self) -> usize {
        self.elements - self.unbounded - self.nan_pairs
    }

    /// Adds the result of the elements behind these.
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

    /// Adds the elements outside their bounds, and keeps the worst.
    fn count(&mut self, other: &Self) {
        self.outside += other.outside;
        self.nan += other.nan;
        self.infinite += other.infinite;
        self.unbounded += other.unbounded;
        self.nan_pairs += other.nan_pairs;
        self.worst = worse(self.worst, other.worst);
    }
}

/// The element that is more bounds away from what is wanted; of two as far, the first.
fn worse(a: Option<Element>, b: Option<Element>) -> Option<Element> {
    match (a, b) {
        (Some(a), Some(b)) => Some(if b.ratio() > a.ratio() { b } else { a }),
        (a, b) => a.or(b),
    }
}

/// Elements that a thread compares at a time.
pub const PIECE: usize = 1 << 16;
/// Elements that are compared before it is asked whether any was outside.
pub const RUN: usize = 512;

/// Compares `got` with `want`. NaN meets NaN only if `equal_nan`; an infinity meets the same infinity.
///
/// # Panics
/// If the lengths differ: the caller compares shapes first.
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
    // Nearly always, one of the first elements says no to both.
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
            // The kind of bound is looked at once a run, so that each loop is one of arithmetic alone.
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

    /// Looks at each element of a run in which some were not surely inside.
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
