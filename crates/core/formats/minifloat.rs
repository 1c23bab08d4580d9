//! Small floating-point formats. A [`MiniFloat`] describes each format, and one routine rounds to all of them.

use super::cast::Cast;

/// A binary floating-point format of at most 16 bits, with subnormals. The codes above the largest finite value are NaNs, except
/// that the first may be infinity.
///
/// From the top bit on, a code consists of sign, exponent `E` and mantissa `m`. Its value is `2^(E-bias) · (1 + m/2^M)`, or
/// `2^(1-bias) · m/2^M` if `E` is 0 (OCP OFP8 v1.0, OCP MX v1.0 §5.3, IEEE 754).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct MiniFloat {
    /// Number of bits of the exponent `E`.
    pub exponent_bits: u32,
    /// Number `M` of mantissa bits; at most 10.
    pub mantissa_bits: u32,
    /// The exponent bias.
    pub bias: u32,
    /// Code of the largest finite value.
    pub max: u32,
    /// True if the code `max + 1` is infinity. All other codes above `max` are NaN.
    pub infinity: bool,
    /// True if the top bit is a sign. Without a sign, negative numbers become 0, and codes with the top bit set are NaN.
    pub signed: bool,
}

/// Rounding of ties, which are numbers half-way between two neighbours.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Ties {
    /// The neighbour with an even code.
    Even,
    /// The neighbour with the larger magnitude.
    Away,
    /// The neighbour with the smaller magnitude.
    Zero,
}

/// The result for numbers beyond the largest finite value.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Overflow {
    /// The largest finite value, with the sign of the number.
    Saturate,
    /// The code after the largest finite one: infinity, or NaN in a format without infinities.
    Special,
}

/// Code that a NaN is cast to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum NanCode {
    /// One code for NaN of both signs.
    Code(u32),
    /// This code with the sign of the NaN.
    Signed(u32),
    /// Zero whose sign is opposite to the sign of the NaN.
    FlippedZero,
}

/// The sign of results that are zero.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Zeros {
    /// A zero keeps its sign, and so does a number that rounds to zero.
    Signed,
    /// A zero is stored as +0; a negative number that rounds to zero is stored as −0.
    UnsignedIfExact,
    /// Every zero is stored as +0.
    Unsigned,
    /// A zero of either sign is stored as −0; a number that rounds to zero keeps its sign.
    NegativeIfExact,
}

/// Choices that a number format leaves to its casts: ties, overflow, code of NaN, sign of zeros.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Policy {
    /// Rounding of numbers half-way between two values.
    pub ties: Ties,
    /// The result for finite numbers that round beyond the largest value.
    pub overflow: Overflow,
    /// The result for infinities.
    pub infinity: Overflow,
    /// The code of NaN.
    pub nan: NanCode,
    /// Sign of the code for zero and for numbers that round to zero.
    pub zeros: Zeros,
}

impl Policy {
    /// PTX `cvt.rn.satfinite`: ties to even, numbers beyond the range and infinities saturate, one code for all NaNs.
    pub const fn satfinite(nan: u32) -> Self {
        Self {
            ties: Ties::Even,
            overflow: Overflow::Saturate,
            infinity: Overflow::Saturate,
            nan: NanCode::Code(nan),
            zeros: Zeros::Signed,
        }
    }

    /// IEEE 754: numbers beyond the range become infinity, or NaN in a format without infinities.
    pub const fn special(nan: NanCode) -> Self {
        Self {
            overflow: Overflow::Special,
            infinity: Overflow::Special,
            nan,
            ..Self::satfinite(0)
        }
    }

    /// Returns the same policy with another rounding of ties.
    pub const fn ties(self, ties: Ties) -> Self {
        Self { ties, ..self }
    }

    /// Returns the same policy with another result for infinities.
    pub const fn infinity(self, infinity: Overflow) -> Self {
        Self { infinity, ..self }
    }

    /// Returns the same policy with another code of NaN.
    pub const fn nan(self, nan: NanCode) -> Self {
        Self { nan, ..self }
    }

    /// Returns the same policy with another rule for the sign of zeros.
    pub const fn zeros(self, zeros: Zeros) -> Self {
        Self { zeros, ..self }
    }
}

impl MiniFloat {
    const fn sign(&self) -> u32 {
        1 << (self.exponent_bits + self.mantissa_bits)
    }

    /// True if the code is a NaN.
    pub const fn is_nan(&self, code: u32) -> bool {
        let magnitude = code & (self.sign() - 1);
        magnitude > self.max + self.infinity as u32 || (!self.signed && code & self.sign() != 0)
    }

    /// True if the format has a NaN.
    pub const fn has_nan(&self) -> bool {
        self.is_nan(self.sign() - 1)
    }

    /// Splits the bits of a finite f32 magnitude for rounding. Returns the tuple (significand, drop, base), from which the code
    /// is `base + round(significand / 2^drop)`. The significand includes the leading one, and `drop` is the number of its low
    /// bits that the format cannot store. `base` is the code of the smallest value of the binade less 2^M (M as in
    /// [`MiniFloat`]), because the leading one of the significand adds 2^M.
    #[inline(always)]
    const fn split(&self, magnitude: u32) -> (u32, u32, u32) {
        let field = magnitude >> 23;
        let normal = (field != 0) as u32;
        let significand = (magnitude & 0x7f_ffff) | (normal << 23);
        let exponent = field + 1 - normal;
        // Exponent of the format's smallest normal binade, biased as in f32. Subnormals have the same step as this binade.
        let lowest = 128 - self.bias;
        let quantum = if exponent > lowest { exponent } else { lowest };
        let drop = 23 - self.mantissa_bits + (quantum - exponent);
        (significand, drop, (quantum - lowest) << self.mantissa_bits)
    }

    /// Returns the code of the largest representable magnitude not above |x|, and the remaining distance to |x|, for stochastic
    /// rounding. The distance is a fraction of the step to the next code, in units of 2^-32, rounded down. NaN and infinities
    /// give a code above `max`.
    #[inline(always)]
    pub(super) fn truncate(&self, x: f32) -> (u32, u32) {
        let (significand, drop, base) = self.split(x.to_bits() & 0x7fff_ffff);
        let fixed = (u64::from(significand) << 32).checked_shr(drop).unwrap_or(0);
        (base + (fixed >> 32) as u32, fixed as u32)
    }
}

/// A float format with the policy of its cast.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct FloatCast {
    /// The number format.
    pub float: MiniFloat,
    /// Choices that the number format leaves to the cast, e.g. the rounding of ties.
    pub policy: Policy,
}

impl FloatCast {
    /// Number of bits of a code.
    pub const fn bits(&self) -> u32 {
        1 + self.float.exponent_bits + self.float.mantissa_bits
    }

    /// Limits `rounded` to the range of the format and adds the sign of `x`. `rounded` is the code of the rounded magnitude of
    /// `x`, computed as if the format had no largest value.
    #[inline(always)]
    fn finish(&self, x: f32, rounded: u32) -> u32 {
        let Self { float, policy } = *self;
        let magnitude = x.to_bits() & 0x7fff_ffff;
        let top = |overflow| float.max + (overflow == Overflow::Special) as u32;
        let rounded = rounded.min(top(policy.overflow));
        let infinite = policy.infinity != policy.overflow && magnitude == 0x7f80_0000;
        let limited = if infinite { top(policy.infinity) } else { rounded };
        self.with_sign(x, limited)
    }

    /// True if infinities and all numbers beyond the largest value get the code of the largest value.
    const fn saturates(&self) -> bool {
        matches!(
            (self.policy.overflow, self.policy.infinity),
            (Overflow::Saturate, Overflow::Saturate)
        )
    }

    /// Adds the sign of `x` to `rounded`, the code of its magnitude. A NaN gets the code of NaN instead.
    #[inline(always)]
    fn with_sign(&self, x: f32, rounded: u32) -> u32 {
        let Self { float, policy } = *self;
        let magnitude = x.to_bits() & 0x7fff_ffff;
        let negative = x.to_bits() >> 31;
        let sign = negative << (float.exponent_bits + float.mantissa_bits);
        let code = if !float.signed {
            rounded * (1 - negative)
        } else {
            rounded
                | match policy.zeros {
                    Zeros::Signed => sign,
                    Zeros::UnsignedIfExact => sign * (magnitude != 0) as u32,
                    Zeros::Unsigned => sign * (rounded != 0) as u32,
                    Zeros::NegativeIfExact => sign | (float.sign() * (magnitude == 0) as u32),
                }
        };
        let nan = match policy.nan {
            NanCode::Code(code) => code,
            NanCode::Signed(code) => code | sign,
            NanCode::FlippedZero => sign ^ float.sign(),
        };
        if magnitude > 0x7f80_0000 { nan } else { code }
    }
}

impl Cast for FloatCast {
    const WIDTHS: &'static [u32] = &[4, 8, 16];

    /// Returns the code of `x`. It is computed by integer arithmetic only, which also handles f32 subnormals and carries into the
    /// exponent.
    #[inline(always)]
    fn encode(&self, x: f32) -> u32 {
        let (significand, drop, base) = self.float.split(x.to_bits() & 0x7fff_ffff);
        // With 25 or more dropped bits, every number rounds to zero.
        let drop = drop.min(25);
        let half = 1 << (drop - 1);
        let bump = match self.policy.ties {
            Ties::Even => half - 1 + ((significand >> drop) & 1),
            Ties::Away => half,
            Ties::Zero => half - 1,
        };
        self.finish(x, base + ((significand + bump) >> drop))
    }

    #[inline(always)]
    fn decode(&self, code: u32) -> f32 {
        let float = self.float;
        let magnitude = code & (float.sign() - 1);
        let normal = (magnitude << (23 - float.mantissa_bits)) + ((127 - float.bias) << 23);
        // One ulp of the float `lift` is the smallest subnormal of the format. So the value of a subnormal code is the float
        // `lift` with the code in its low bits, minus `lift`.
        let lift = (151 - float.bias - float.mantissa_bits) << 23;
        let subnormal = (f32::from_bits(lift | (magnitude & 0x7f_ffff)) - f32::from_bits(lift)).to_bits();
        let small = magnitude >> float.mantissa_bits == 0;
        let finite = if small { subnormal } else { normal };
        let special = if float.is_nan(code) { 0x7fc0_0000 } else { 0x7f80_0000 };
        let above = magnitude > float.max || float.is_nan(code);
        let bits = if above { special } else { finite };
        f32::from_bits(bits | ((code & float.sign()) << (31 - float.exponent_bits - float.mantissa_bits)))
    }
}

/// The same cast as [`FloatCast`] in fewer instructions: a floating-point addition rounds. This cast works only for ties to even
/// and exponents of at most 5 bits. A test compares both casts on every f32.
#[derive(Clone, Copy)]
pub(super) struct Added(FloatCast);

impl Added {
    #[inline(always)]
    pub const fn new(cast: FloatCast) -> Option<Self> {
        match cast.policy.ties {
            Ties::Even if cast.float.exponent_bits <= 5 => Some(Self(cast)),
            _ => None,
        }
    }
}

impl Cast for Added {
    const WIDTHS: &'static [u32] = FloatCast::WIDTHS;

    #[inline(always)]
    fn encode(&self, x: f32) -> u32 {
        let float = self.0.float;
        let shift = 23 - float.mantissa_bits;
        let lowest = (128 - float.bias) << 23;
        // Larger magnitudes are clamped to `most`. A saturating format clamps to its largest value; any other format clamps to
        // the start of the next binade, above its largest value.
        let most = if self.0.saturates() {
            (float.max << shift) + ((127 - float.bias) << 23)
        } else {
            ((float.max >> float.mantissa_bits) + 128 - float.bias) << 23
        };
        let magnitude = (x.to_bits() & 0x7fff_ffff).min(most);
        let quantum = (magnitude & 0x7f80_0000).max(lowest);
        // One ulp of `lift` is one step of the format, so the addition of `lift` rounds the magnitude to whole steps. The low
        // bits of `lift` hold (E − 1)·2^M, with E and M as in [`MiniFloat`], or 0 for subnormals. The magnitude adds 2^M + m
        // steps, or m steps for subnormals. So the low bits of the sum are the code.
        let lift = quantum + (quantum >> shift) + (shift << 23) - (lowest >> shift);
        let sum = f32::from_bits(magnitude) + f32::from_bits(lift);
        let rounded = sum.to_bits() & 0xffff;
        if self.0.saturates() {
            self.0.with_sign(x, rounded & (float.sign() - 1))
        } else {
            self.0.finish(x, rounded)
        }
    }

    #[inline(always)]
    fn decode(&self, code: u32) -> f32 {
        self.0.decode(code)
    }
}

/// The same cast as [`FloatCast`] for ties to even and the exponent range of f32, as in bf16. A code is the upper part of the
/// bits of an f32, so one integer addition rounds, also for subnormals.
#[derive(Clone, Copy)]
pub(super) struct Cut(FloatCast);

impl Cut {
    #[inline(always)]
    pub const fn new(cast: FloatCast) -> Option<Self> {
        match (cast.policy.ties, cast.float.exponent_bits, cast.float.bias) {
            (Ties::Even, 8, 127) => Some(Self(cast)),
            _ => None,
        }
    }
}

impl Cast for Cut {
    const WIDTHS: &'static [u32] = FloatCast::WIDTHS;

    #[inline(always)]
    fn encode(&self, x: f32) -> u32 {
        let drop = 23 - self.0.float.mantissa_bits;
        let magnitude = x.to_bits() & 0x7fff_ffff;
        let bump = (1 << (drop - 1)) - 1 + (magnitude >> drop & 1);
        self.0.finish(x, (magnitude + bump) >> drop)
    }

    #[inline(always)]
    fn decode(&self, code: u32) -> f32 {
        self.0.decode(code)
    }
}
