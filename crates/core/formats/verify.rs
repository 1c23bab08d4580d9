//! Compares each cast with its definition, optionally on every f32.
//!
//! The definition shares no code with the casts. It is a list of thresholds: over all f32 in ascending order, the expected code
//! changes only at thresholds. When numbers round to nearest, the threshold of a code is half-way between its value and the value
//! of the previous code. Thresholds are computed in f64, which holds all values and midpoints exactly.

use rayon::prelude::*;

use super::cast::Cast;
use super::codebook::Codebook;
use super::codes;
use super::convention::CASTS;
use super::element::{ELEMENTS, Element, Integer, Repr, Whole, stored_bits};
use super::minifloat::{FloatCast, MiniFloat, NanCode, Overflow, Ties, Zeros};
use super::power::PowerCast;

/// Number of consecutive f32 that are cast at once: all numbers with the same upper 16 bits.
const RUN: u32 = 1 << 16;

/// Result of the verification of one cast.
#[derive(Clone, Debug, Default)]
pub struct Verified {
    /// Name of the cast, e.g. `e4m3` or `e4m3(torch)`.
    pub cast: String,
    /// Number of tested f32.
    pub numbers: u64,
    /// Number of tested f32 with a wrong code.
    pub wrong: u64,
    /// Bits of the first number with a wrong code, the found code and the expected code; `None` if all codes are right.
    pub first: Option<(u32, u32, u32)>,
    /// Number of codes whose decoded value differs from the format's formula.
    pub wrong_values: u64,
}

/// Verifies every cast of every element. Tests all f32 if `exhaustive`, otherwise bf16 and f16 values, and numbers near the
/// thresholds of codes.
pub fn verify(exhaustive: bool) -> Vec<Verified> {
    let own = ELEMENTS.iter().copied();
    let own = own.map(|element| (element.name.to_string(), element, element.repr));
    let others = CASTS.iter().flat_map(|convention| {
        let casts = convention.elements();
        casts.filter_map(move |element| {
            let name = format!("{}({})", element.name, convention.name);
            Some((name, element, convention.repr(element)?))
        })
    });
    let verified = |(name, element, repr)| verify_cast(name, element, [&repr; 2], exhaustive);
    own.chain(others).map(verified).collect()
}

/// Verifies the cast `repr` of an element against the cast `definition`, from which the expected codes are computed.
pub fn verify_cast(cast: String, element: &Element, [definition, repr]: [&Repr; 2], exhaustive: bool) -> Verified {
    let expected = Expected::new(element, definition);
    let all = |upper: u32| (0..RUN).map(|lower| upper * RUN + lower).collect::<Vec<u32>>();
    let try_on = |run: Vec<u32>| expected.try_on(element, repr, &run);
    let tried: Vec<Verified> = match exhaustive {
        true => (0..RUN).into_par_iter().map(all).map(try_on).collect(),
        false => expected.interesting().into_par_iter().map(try_on).collect(),
    };
    let codes = 0..1u32 << element.bits;
    Verified {
        cast,
        numbers: tried.iter().map(|tried| tried.numbers).sum(),
        wrong: tried.iter().map(|tried| tried.wrong).sum(),
        first: tried.into_iter().find_map(|tried| tried.first),
        wrong_values: codes.filter(|code| !is_value(repr, *code)).count() as u64,
    }
}

/// Expected codes of a cast.
struct Expected<'a> {
    repr: &'a Repr,
    /// `thresholds[k]` holds the bits of the smallest positive f32 whose code is at least `k + 1`; numbers above the last threshold
    /// have the last code. A codebook is not symmetric: here `thresholds` holds the sorted magnitudes of the midpoints between
    /// neighbouring values, near which test inputs are drawn.
    thresholds: Vec<u32>,
    sign: u32,
}

impl<'a> Expected<'a> {
    fn new(element: &Element, repr: &'a Repr) -> Self {
        let thresholds = match repr {
            Repr::Float(cast) => float_thresholds(cast),
            Repr::Integer(integer) => integer_thresholds(integer),
            Repr::Codebook(book) => {
                let mut borders: Vec<u32> = midpoints(book).map(|border| border.abs().to_bits()).collect();
                borders.sort();
                borders
            }
            Repr::Power(cast) => power_thresholds(cast),
        };
        Self {
            repr,
            thresholds,
            sign: 1 << (element.bits - 1),
        }
    }

    /// Returns the inputs of a short test (bits of f32): bf16 values and neighbours, f16 values, numbers near thresholds.
    fn interesting(&self) -> Vec<Vec<u32>> {
        let halves = |code: u32| {
            let half = half::f16::from_bits(code as u16).to_f32().to_bits();
            [code << 16, code << 16 | 1, code << 16 | 0xffff, half]
        };
        let near = |bits: &u32| {
            let (low, high) = (bits.saturating_sub(2), bits + 2);
            let negative = (low..=high).map(|bits| bits | 0x8000_0000);
            (low..=high).chain(negative).collect::<Vec<_>>()
        };
        vec![
            (0..RUN).flat_map(halves).collect(),
            self.thresholds.iter().flat_map(near).collect(),
        ]
    }

    /// Casts a run of numbers by the vectorised loops and one by one, and counts numbers with a wrong code.
    fn try_on(&self, element: &Element, repr: &Repr, run: &[u32]) -> Verified {
        let x: Vec<f32> = run.iter().map(|bits| f32::from_bits(*bits)).collect();
        let (fast, slow) = pulp::Arch::new().dispatch(BothWays {
            repr,
            bits: element.bits,
            x: &x,
        });
        let mut tried = Verified {
            numbers: run.len() as u64,
            ..Verified::default()
        };
        let mut rank = Rank::default();
        for ((bits, fast), slow) in run.iter().zip(fast).zip(slow) {
            let want = self.code(*bits, &mut rank);
            for found in [u32::from(fast), u32::from(slow)] {
                if found != want {
                    tried.wrong += 1;
                    tried.first = tried.first.or(Some((*bits, found, want)));
                    break;
                }
            }
        }
        tried
    }

    /// Returns the expected code of an f32.
    fn code(&self, bits: u32, rank: &mut Rank) -> u32 {
        let (magnitude, negative) = (bits & 0x7fff_ffff, bits >> 31 != 0);
        let finite = rank.of(magnitude, &self.thresholds);
        match self.repr {
            Repr::Float(cast) => float_code(cast, magnitude, negative, finite, self.sign),
            Repr::Codebook(book) => midpoints(book).filter(|border| f32::from_bits(bits) > *border).count() as u32,
            Repr::Integer(_) if magnitude > 0x7f80_0000 => 0,
            Repr::Integer(integer) if negative && !integer.is_signed() => 0,
            Repr::Integer(_) if negative => finite.wrapping_neg() & (2 * self.sign - 1),
            Repr::Integer(_) => finite,
            Repr::Power(cast) if cast.positive_only && (negative || magnitude == 0) => 255,
            Repr::Power(_) if magnitude > 0x7f80_0000 => 255,
            Repr::Power(cast) if magnitude == 0x7f80_0000 => 254 + u32::from(cast.special),
            Repr::Power(_) => finite,
        }
    }
}

/// Counts the thresholds at or below a number. Numbers mostly ascend, so the count continues from the previous number.
#[derive(Default)]
struct Rank {
    last: u32,
    rank: usize,
}

impl Rank {
    fn of(&mut self, bits: u32, thresholds: &[u32]) -> u32 {
        if bits < self.last {
            self.rank = thresholds.partition_point(|threshold| *threshold <= bits);
        }
        self.last = bits;
        while thresholds.get(self.rank).is_some_and(|threshold| *threshold <= bits) {
            self.rank += 1;
        }
        self.rank as u32
    }
}

/// Returns the value of a code without its sign, by the format's formula. A code above the largest finite code gets the value
/// that the formula would give.
fn float_value(float: &MiniFloat, code: u32) -> f64 {
    let (exponent, mantissa) = (code >> float.mantissa_bits, code & ((1 << float.mantissa_bits) - 1));
    let fraction = f64::from(mantissa) / f64::from(1u32 << float.mantissa_bits);
    let bias = float.bias as i32;
    match exponent {
        0 => 2f64.powi(1 - bias) * fraction,
        _ => 2f64.powi(exponent as i32 - bias) * (1.0 + fraction),
    }
}

/// Returns the bits of the smallest f32 that is greater than the finite number `x`. If `above` is false, the result may also
/// equal `x`.
fn first_from(x: f64, above: bool) -> u32 {
    let rounded = x as f32;
    let found = f64::from(rounded);
    let enough = found > x || found == x && !above;
    let first = if enough { rounded } else { rounded.next_up() };
    first.to_bits()
}

fn float_thresholds(cast: &FloatCast) -> Vec<u32> {
    let FloatCast { float, policy } = cast;
    let top = float.max + u32::from(policy.overflow == Overflow::Special);
    let threshold = |code: u32| {
        let middle = (float_value(float, code - 1) + float_value(float, code)) / 2.0;
        let above = match policy.ties {
            Ties::Even => code % 2 == 1,
            Ties::Away => false,
            Ties::Zero => true,
        };
        first_from(middle, above)
    };
    (1..=top).map(threshold).collect()
}

fn integer_thresholds(integer: &Integer) -> Vec<u32> {
    let unit = f64::from(1u32 << integer.fraction_bits);
    let threshold = |code: i32| match integer.whole {
        Whole::Even => first_from((f64::from(code) - 0.5) / unit, code % 2 == 1),
        // The f32 sum x + 1/2 already rounds to 1 for x = 1/2 − 2^-25, the largest f32 below 1/2.
        Whole::HalfAdded if code == 1 => first_from((0.5 - 2f64.powi(-25)) / unit, false),
        Whole::HalfAdded => first_from((f64::from(code) - 0.5) / unit, false),
        Whole::TowardZero => first_from(f64::from(code) / unit, false),
    };
    (1..=integer.max).map(threshold).collect()
}

/// Returns the midpoints between neighbouring values, rounded to f32.
fn midpoints(book: &Codebook) -> impl Iterator<Item = f32> {
    let pairs = book.values().windows(2);
    pairs.map(|pair| ((f64::from(pair[0]) + f64::from(pair[1])) / 2.0) as f32)
}

fn power_thresholds(cast: &PowerCast) -> Vec<u32> {
    let top = 254 + i32::from(cast.special);
    let threshold = |code: i32| {
        let (below, own) = (2f64.powi(code - 128), 2f64.powi(code - 127));
        match *cast {
            // When powers are rounded down, only an infinity gets code 255.
            _ if own.is_infinite() || (code == 255 && cast.threshold == PowerCast::DOWN.threshold) => 0x7f80_0000,
            PowerCast { threshold, .. } if threshold == PowerCast::DOWN.threshold => first_from(own, false),
            PowerCast { threshold: 0, .. } => first_from(below, true),
            // Code 1 is 2^-126: every subnormal number above 2^-127 is rounded up to this code.
            _ if code == 1 => first_from(below, true),
            _ => first_from((below + own) / 2.0, false),
        }
    };
    (1..=top).map(threshold).collect()
}

/// Returns the code of a number. `rounded` is the code of its rounded magnitude; this function handles infinity, NaN and the
/// sign.
fn float_code(cast: &FloatCast, magnitude: u32, negative: bool, rounded: u32, sign: u32) -> u32 {
    let FloatCast { float, policy } = cast;
    if magnitude > 0x7f80_0000 {
        return match (policy.nan, negative) {
            (NanCode::Code(code), _) | (NanCode::Signed(code), false) => code,
            (NanCode::Signed(code), true) => code | sign,
            (NanCode::FlippedZero, negative) => u32::from(!negative) * sign,
        };
    }
    let code = match policy.infinity {
        _ if magnitude < 0x7f80_0000 => rounded,
        Overflow::Saturate => float.max,
        Overflow::Special => float.max + 1,
    };
    let signed = match policy.zeros {
        _ if !float.signed => return if negative { 0 } else { code },
        Zeros::NegativeIfExact if magnitude == 0 => true,
        Zeros::UnsignedIfExact if magnitude == 0 => false,
        Zeros::Unsigned if code == 0 => false,
        _ => negative,
    };
    code | (u32::from(signed) * sign)
}

/// True if a code decodes to the value of the format's formula.
fn is_value(repr: &Repr, code: u32) -> bool {
    let found = repr.decode(code as u16);
    let want = match repr {
        Repr::Float(FloatCast { float, .. }) => {
            let sign = 1 << (float.exponent_bits + float.mantissa_bits);
            let magnitude = code & (sign - 1);
            let negative = code & sign != 0;
            let size = match magnitude {
                _ if negative && !float.signed => f64::NAN,
                magnitude if magnitude <= float.max => float_value(float, magnitude),
                magnitude if float.infinity && magnitude == float.max + 1 => f64::INFINITY,
                _ => f64::NAN,
            };
            if negative { -size } else { size }
        }
        Repr::Integer(integer) => {
            let wrap = if integer.is_signed() && code >> (integer.bits - 1) != 0 {
                1i64 << integer.bits
            } else {
                0
            };
            (i64::from(code) - wrap) as f64 / f64::from(1u32 << integer.fraction_bits)
        }
        Repr::Codebook(book) => f64::from(book.values()[code as usize]),
        Repr::Power(_) if code == 255 => f64::NAN,
        Repr::Power(_) => 2f64.powi(code as i32 - 127),
    };
    (found.is_nan() && want.is_nan()) || f64::from(found).to_bits() == want.to_bits()
}

/// Casts the same numbers in two ways: as whole slices, like tensors, and one by one with the routine that defines the cast.
struct BothWays<'a> {
    repr: &'a Repr,
    bits: u32,
    x: &'a [f32],
}

impl pulp::WithSimd for BothWays<'_> {
    type Output = (Vec<u16>, Vec<u16>);

    #[inline(always)]
    fn with_simd<S: pulp::Simd>(self, simd: S) -> Self::Output {
        let Self { repr, bits, x } = self;
        let stored = stored_bits(bits) as usize;
        // Pads with zeros to a multiple of 8 numbers, whose codes are whole bytes.
        let padded: Vec<f32> = x.iter().copied().chain(std::iter::repeat_n(0.0, 7)).collect();
        let padded = &padded[..x.len().next_multiple_of(8)];
        let mut packed = vec![0; padded.len() * stored / 8];
        codes::encode(simd, repr, bits, padded, &mut packed);
        let fast = codes::unpack(&packed, stored);
        let slow = match *repr {
            Repr::Float(cast) => one_by_one(cast, x),
            Repr::Integer(cast) => one_by_one(cast, x),
            Repr::Codebook(cast) => one_by_one(cast, x),
            Repr::Power(cast) => one_by_one(cast, x),
        };
        (fast, slow)
    }
}

#[inline(always)]
fn one_by_one(cast: impl Cast, x: &[f32]) -> Vec<u16> {
    x.iter().map(|x| cast.encode(*x) as u16).collect()
}
