//! Distances in units in the last place.

/// A floating-point number whose bits can be read.
pub trait Bits: Copy {
    /// Number of bits of the type.
    const WIDTH: u32;
    /// Returns the bits of the number.
    fn code(self) -> u64;
}

macro_rules! bits {
    ($($float:ty, $width:literal;)*) => {
        $(impl Bits for $float {
            const WIDTH: u32 = $width;
            fn code(self) -> u64 {
                self.to_bits().into()
            }
        })*
    };
}
bits! { f64, 64; f32, 32; half::f16, 16; half::bf16, 16; }

/// Returns the rank of a sign-magnitude code of `width` bits among the values of its format. Neighbouring values differ by one,
/// and both zeros have rank 0. The ranks of NaN codes lie beyond the infinities and have no meaning.
pub fn ordered(code: u64, width: u32) -> i64 {
    let sign = 1u64 << (width - 1);
    // The magnitude has at most 63 bits, so the cast keeps its value.
    let magnitude = (code & (sign - 1)) as i64;
    if code & sign == 0 { magnitude } else { -magnitude }
}

/// Quantiles, over all elements, of the distance in ulps (steps between representable numbers) of the two values of an element.
///
/// The quantile q is the smallest d for which at least a fraction q of the elements have a distance of d or less.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Ulps {
    /// The median distance.
    pub p50: u64,
    /// The 99th percentile.
    pub p99: u64,
    /// The largest distance.
    pub max: u64,
}

impl Ulps {
    /// Computes the quantiles for two lists of codes of `width` bits; `None` if the lists are empty.
    pub fn new(width: u32, want: impl Iterator<Item = u64>, got: impl Iterator<Item = u64>) -> Option<Self> {
        let distances = want
            .zip(got)
            .map(|(x, y)| ordered(x, width).abs_diff(ordered(y, width)));
        let mut distances: Vec<u64> = distances.collect();
        let max = *distances.iter().max()?;
        let mut quantile = |percent: usize| {
            let rank = (distances.len() * percent).div_ceil(100) - 1;
            *distances.select_nth_unstable(rank).1
        };
        Some(Self {
            p50: quantile(50),
            p99: quantile(99),
            max,
        })
    }
}
