//! Hypotheses about wrong bits of every code or every scale: another number format, reciprocals, wrong signs, flipped bits.

use super::Cause;
use super::problem::{Problem, canonical};
use super::rounded::{
    cut_to_bf16, cut_to_tf32, through, to_bf16, to_f16, to_power, to_power_above, to_power_below, to_tf32,
};
use ulplab_core::error::counted;
use ulplab_core::formats::{E2M1, E4M3, E5M2, Element, FloatCast, INT4, INT8, MiniFloat, Policy, Repr, Scale, Zeros};

const fn fnuz(exponent_bits: u32, mantissa_bits: u32) -> Repr {
    let float = MiniFloat {
        exponent_bits,
        mantissa_bits,
        bias: 1 << (exponent_bits - 1),
        max: 0x7f,
        infinity: false,
        signed: true,
    };
    let policy = Policy {
        zeros: Zeros::Unsigned,
        ..Policy::satfinite(0x80)
    };
    Repr::Float(FloatCast { float, policy })
}

const fn other(name: &'static str, bits: u32, repr: Repr) -> Element {
    let doc = "";
    Element { name, doc, bits, repr }
}

/// Element types that codes may be mistaken for: FP8 of AMD's MI300, and other types of the same width.
static OTHERS: [Element; 7] = [
    other("E4M3 FNUZ", 8, fnuz(4, 3)),
    other("E5M2 FNUZ", 8, fnuz(5, 2)),
    other("E5M2", 8, E5M2.repr),
    other("E4M3", 8, E4M3.repr),
    other("INT8", 8, INT8.repr),
    other("INT4", 4, INT4.repr),
    other("E2M1", 4, E2M1.repr),
];

/// Returns the element types of `bits` bits other than `repr` that the codes may have by mistake.
pub fn others(repr: Repr, bits: u32) -> impl Iterator<Item = &'static Element> {
    let others = OTHERS.iter();
    others.filter(move |other| other.bits == bits && other.repr != repr)
}

/// A recode: a hypothetical wrong encoding, i.e. one function that changes the bits of every code or every scale.
pub struct Recode {
    pub cause: Cause,
    /// Description of the change, which follows the words "scales are" or "codes are", e.g. "negated".
    pub name: String,
    pub apply: Box<dyn Fn(u32) -> u32 + Send + Sync>,
}

impl Recode {
    fn new(cause: Cause, name: impl Into<String>, apply: impl Fn(u32) -> u32 + Send + Sync + 'static) -> Self {
        let (name, apply) = (name.into(), Box::new(apply));
        Self { cause, name, apply }
    }

    /// Returns the text of a finding that scales have this wrong encoding, e.g. "scales are negated".
    pub fn finding(&self) -> String {
        format!("scales are {}", self.name)
    }
}

/// Factors by which scales are wrong if a kernel leaves out or repeats a step, with the explanation of each.
const FACTORS: &[(f64, &str)] = &[
    (448.0, "448: the largest magnitude itself"),
    (1.0 / 448.0, "1/448: divided twice by the largest element"),
    (6.0, "6: the largest magnitude itself"),
    (1.0 / 6.0, "1/6: divided twice by the largest element"),
    (57344.0, "57344: the largest magnitude itself"),
    (2688.0, "2688 = 448·6"),
    (1.0 / 2688.0, "1/2688 = 1/(448·6)"),
    (448.0 / 240.0, "448/240: made for FNUZ, whose largest element is 240"),
    (448.0 / 57344.0, "448/57344: made for E5M2"),
    (57344.0 / 448.0, "57344/448: made for E4M3"),
    (448.0 / 127.0, "448/127: made for INT8"),
    (6.0 / 7.0, "6/7: made for INT4"),
    (127.0 / 448.0, "127/448"),
    (448.0 / 6.0, "448/6: made for E2M1"),
    (6.0 / 448.0, "6/448: made for E4M3"),
    (1.75, "7/4 = 448/256"),
    (127.0, "127: the largest magnitude itself"),
    (7.0, "7: the largest magnitude itself"),
    (127.0 / 128.0, "127/128"),
    (128.0 / 127.0, "128/127"),
    (7.0 / 8.0, "7/8"),
];

/// Describes the factor by which a number is too large, in words. Factors of known faults and powers of two are recognised within
/// the relative error `tolerance`.
pub fn factor_name(factor: f64, tolerance: f64) -> String {
    let near = |known: f64| (factor / known - 1.0).abs() <= tolerance;
    if let Some((_, name)) = FACTORS.iter().find(|(known, _)| near(*known)) {
        return format!("{factor:.6} times too large ({name})");
    }
    let power = factor.abs().log2();
    if (power - power.round()).abs() < tolerance && factor > 0.0 {
        return format!("too large by 2^{}", power.round());
    }
    // Use scientific notation for factors below 10⁻³ and from 10⁶ on: fixed notation would lose digits.
    match factor.abs() {
        tiny if tiny < 1e-3 && tiny > 0.0 => format!("{:.4e} times too small", 1.0 / factor),
        huge if huge >= 1e6 => format!("{factor:.4e} times too large"),
        _ => format!("{factor:.6} times too large"),
    }
}

fn reversed(code: u32, bits: u32) -> u32 {
    code.reverse_bits() >> (32 - bits)
}

/// A mistake in storing scales (encoding, rounding or sign): cause to report, description, and function from the correct to the
/// wrong value (or bits).
type Row<T> = (Cause, &'static str, fn(T) -> T);

const fn encoding<T>(name: &'static str, change: fn(T) -> T) -> Row<T> {
    (Cause::Encoding, name, change)
}

const fn rounding<T>(name: &'static str, change: fn(T) -> T) -> Row<T> {
    (Cause::ScaleRounding, name, change)
}

/// Wrong encodings of f32 scales, as functions of the value of the scale.
const NUMBERS: &[Row<f32>] = &[
    encoding("the reciprocals of what is meant", f32::recip),
    rounding("rounded to bf16", to_bf16),
    rounding("truncated to bf16", cut_to_bf16),
    rounding("rounded to f16", to_f16),
    rounding("rounded to TF32", to_tf32),
    rounding("truncated to TF32", cut_to_tf32),
    rounding("rounded to E4M3", |s| through(&E4M3, s)),
    rounding("rounded to E5M2", |s| through(&E5M2, s)),
    rounding("rounded down to powers of two", to_power_below),
    rounding("rounded up to powers of two", to_power_above),
    rounding("rounded to the nearest powers of two", to_power),
    encoding("stored as their binary logarithm", f32::log2),
    encoding("squared", |s| s * s),
    encoding("their square roots", f32::sqrt),
    (Cause::Sign, "negated", |s| -s),
];

/// Returns the E8M0 code (biased exponent) of a positive number, rounded up to a power of two.
fn e8m0(x: f32) -> u32 {
    (x.to_bits() + 0x7f_ffff) >> 23
}

/// Wrong encodings of f32 scales, as functions of the bits of the scale.
const WORDS: &[Row<u32>] = &[
    encoding("f32 with their four bytes in reverse order", |b| {
        canonical(b.swap_bytes())
    }),
    encoding("f32 with their 16-bit halves exchanged", |b| {
        canonical(b.rotate_left(16))
    }),
    encoding("E8M0 codes widened to f32 as numbers", |b| {
        (e8m0(f32::from_bits(b)) as f32).to_bits()
    }),
    encoding("E8M0 codes in the low byte of a word", |b| e8m0(f32::from_bits(b))),
];

/// Wrong encodings of E8M0 scales, as functions of the code.
const EXPONENTS: &[Row<u32>] = &[
    encoding("stored as signed exponents, without the bias of 127", |b| {
        b.wrapping_sub(127) & 255
    }),
    encoding("shifted left by one bit", |b| b << 1 & 255),
    encoding("shifted right by one bit", |b| b >> 1),
    encoding("stored as E4M3 numbers", |b| {
        E4M3.encode((f64::from(b) - 127.0).exp2() as f32).into()
    }),
];

/// Value of an E4M3 scale.
fn value(b: u32) -> f32 {
    E4M3.decode(b as u16)
}

fn e4m3(x: f32) -> u32 {
    E4M3.encode(x).into()
}

/// Wrong encodings of E4M3 scales, as functions of the code.
const BYTES: &[Row<u32>] = &[
    encoding(
        "in E4M3 FNUZ, whose bias is 8, so that they read as twice what is meant",
        |b| OTHERS[0].encode(value(b)).into(),
    ),
    encoding("in E5M2, not in E4M3", |b| E5M2.encode(value(b)).into()),
    encoding("the reciprocals of what is meant", |b| e4m3(1.0 / value(b))),
    encoding("squared", |b| e4m3(value(b) * value(b))),
    rounding("rounded up to powers of two", |b| e4m3(value(b).log2().ceil().exp2())),
    rounding("rounded down to powers of two", |b| {
        e4m3(value(b).log2().floor().exp2())
    }),
    encoding("in E8M0, rounded up", |b| e8m0(value(b)) & 255),
    encoding("in E8M0, rounded down", |b| (value(b).to_bits() >> 23) & 255),
];

/// Wrong encodings of any one-byte scale, as functions of the byte.
const ANY_BYTE: &[Row<u32>] = &[
    encoding("with their bits reversed", |b| reversed(b, 8)),
    encoding("with their nibbles exchanged", |b| (b << 4 | b >> 4) & 255),
    encoding("with all bits inverted", |b| !b & 255),
];

/// Faults of a single bit: name, and function of the code and of the mask of the bit.
const BIT: [(&str, fn(u32, u32) -> u32); 3] = [
    ("inverted", |b, bit| b ^ bit),
    ("cleared", |b, bit| b & !bit),
    ("set", |b, bit| b | bit),
];

/// Returns the wrong encodings that are tested on the scales of a format.
pub fn of_scales(problem: &Problem) -> Vec<Recode> {
    let Some(scale) = problem.format.scaling.map(|scaling| scaling.scale) else {
        return Vec::new();
    };
    let row = |(cause, name, change): &Row<u32>| Recode::new(*cause, *name, *change);
    let mut all: Vec<Recode> = Vec::new();
    match scale {
        // No faults are known that are specific to these types of scales.
        Scale::Half(..) | Scale::Affine(_) => {}
        Scale::F32(_) => {
            all.extend(NUMBERS.iter().map(|&(cause, name, change)| {
                Recode::new(cause, name, move |bits| {
                    canonical(change(f32::from_bits(bits)).to_bits())
                })
            }));
            all.extend(WORDS.iter().map(row));
        }
        Scale::E8m0(_) => {
            for top in [254u32, 255] {
                let name = format!("reciprocals of what is meant: code {top} − b for b");
                all.push(Recode::new(Cause::Encoding, name, move |b| top.saturating_sub(b)));
            }
            for by in [1i32, -1, 2, -2, 3, -3, 8, -8, 127, -127] {
                let way = if by > 0 { "above" } else { "below" };
                let name = format!("stored {} {way}, as with another exponent bias", by.abs());
                let add = move |b: u32| b.saturating_add_signed(by).min(255);
                all.push(Recode::new(Cause::Encoding, name, add));
            }
            all.extend(EXPONENTS.iter().map(row));
        }
        Scale::E4m3(_) => {
            all.extend(BYTES.iter().map(row));
            for by in [1i32, -1, 2, -2, 3, 4, -4, 8, -8, 16, -16, 24, -24] {
                let (codes, way) = (by.unsigned_abs() as usize, if by > 0 { "above" } else { "below" });
                let (cause, name) = match by % 8 {
                    0 => (Cause::Encoding, format!("too large by 2^{}", by / 8)),
                    _ => (Cause::ScaleRounding, format!("{} {way}", counted(codes, "code"))),
                };
                let add = move |b: u32| b.saturating_add_signed(by).min(0x7e);
                all.push(Recode::new(cause, name, add));
            }
        }
    }
    if scale.bytes() == 1 {
        all.extend(ANY_BYTE.iter().map(row));
        all.extend((0..8).flat_map(|bit| BIT.map(|change| of_bit(bit, change))));
    }
    all
}

/// Returns the hypothesis that one bit (number `bit`) of every code is inverted, cleared or set.
fn of_bit(bit: u32, (what, change): (&str, fn(u32, u32) -> u32)) -> Recode {
    let name = format!("with bit {bit} {what}");
    Recode::new(Cause::Encoding, name, move |b| change(b, 1 << bit))
}

/// Width of a code in bits; `integer` is true for a two's complement integer.
#[derive(Clone, Copy)]
struct Width {
    bits: u32,
    integer: bool,
}

impl Width {
    fn sign(self) -> u32 {
        1 << (self.bits - 1)
    }

    fn mask(self) -> u32 {
        (self.sign() << 1) - 1
    }

    /// Mask of the bits below the sign bit.
    fn low(self) -> u32 {
        self.sign() - 1
    }

    fn negated(self, b: u32) -> u32 {
        match self.integer {
            true => b.wrapping_neg() & self.mask(),
            false => b ^ self.sign(),
        }
    }
}

/// A wrong encoding of codes: cause to report, description, function for negative codes, and function for all other codes.
type CodeRow = (Cause, &'static str, Change, Change);
type Change = fn(Width, u32) -> u32;

const NEGATED: Change = Width::negated;
const SAME: Change = |_, b| b;
const ZERO: Change = |_, _| 0;

/// Creates a wrong encoding with one function for all codes.
const fn all(cause: Cause, name: &'static str, change: Change) -> CodeRow {
    (cause, name, change, change)
}

/// Wrong encodings of codes that are possible for every element type.
const CODES: &[CodeRow] = &[
    all(Cause::Sign, "negated: every sign is inverted", NEGATED),
    (Cause::Sign, "without sign: magnitudes only", NEGATED, SAME),
    (Cause::Sign, "all negative", SAME, NEGATED),
    (Cause::Sign, "0 for every negative value (ReLU)", ZERO, SAME),
    (Cause::Sign, "−0 for every negative value (ReLU)", |w, _| w.sign(), SAME),
    (Cause::Sign, "0 for every positive value", SAME, ZERO),
    all(Cause::ZeroSign, "+0 for −0", |w, b| if b == w.sign() { 0 } else { b }),
    all(Cause::ZeroSign, "−0 for +0", |w, b| if b == 0 { w.sign() } else { b }),
    (
        Cause::Encoding,
        "in two's complement: −m is stored as the complement of m",
        |w, b| (b & w.low()).wrapping_neg() & w.mask(),
        SAME,
    ),
    (Cause::Encoding, "in ones' complement", |w, b| b ^ w.low(), SAME),
    (
        Cause::Encoding,
        "sign and magnitude of two's complement",
        |w, b| (b.wrapping_neg() & w.low()) | w.sign(),
        SAME,
    ),
    (
        Cause::Encoding,
        "offset: the sign bit is inverted and negative codes run upwards",
        |w, b| !b & w.mask(),
        |w, b| b | w.sign(),
    ),
    all(
        Cause::Encoding,
        "offset by half the range (unsigned with a zero point)",
        |w, b| b.wrapping_add(w.sign()) & w.mask(),
    ),
    all(Cause::Encoding, "with the sign in the lowest bit", |w, b| {
        (b << 1 | b >> (w.bits - 1)) & w.mask()
    }),
    all(Cause::Encoding, "rotated right by one bit", |w, b| {
        (b >> 1 | b << (w.bits - 1)) & w.mask()
    }),
    all(Cause::Encoding, "shifted left by one bit", |w, b| b << 1 & w.mask()),
    all(Cause::Encoding, "shifted right by one bit", |_, b| b >> 1),
    all(Cause::Encoding, "with their bits reversed", |w, b| reversed(b, w.bits)),
    all(Cause::Encoding, "with all bits inverted", |w, b| !b & w.mask()),
    all(Cause::Division, "one code larger in magnitude", |w, b| {
        b + u32::from(b & w.low() != w.low())
    }),
    all(Cause::Division, "one code smaller in magnitude", |w, b| {
        b - u32::from(b & w.low() != 0)
    }),
];

/// Returns the wrong encodings that are tested on codes of element type `repr`, `bits` wide.
pub fn of_codes(repr: Repr, bits: u32) -> Vec<Recode> {
    let integer = matches!(repr, Repr::Integer(_));
    let width = Width { bits, integer };
    let row = |&(cause, name, negative, other): &CodeRow| {
        Recode::new(cause, name, move |b| match b & width.sign() != 0 {
            true => negative(width, b),
            false => other(width, b),
        })
    };
    let mut all: Vec<Recode> = CODES.iter().map(row).collect();
    let encoding = |name, change: fn(u32) -> u32| Recode::new(Cause::Encoding, name, change);
    if bits == 8 && !integer {
        all.push(encoding("with their nibbles exchanged", |b| (b << 4 | b >> 4) & 255));
    }
    if bits == 16 {
        all.push(encoding("16-bit words with their bytes swapped", |b| {
            (b << 8 | b >> 8) & 0xffff
        }));
    }
    let [inverted, cleared, set] = BIT;
    all.extend((0..bits - 1).flat_map(|bit| [cleared, set, inverted].map(|change| of_bit(bit, change))));
    all.extend(others(repr, bits).map(|other| {
        let name = other.name;
        let name = format!("in {name}: the numbers are right, their codes are another format's");
        let apply = move |b: u32| other.encode(repr.decode(b as u16)).into();
        Recode::new(Cause::Encoding, name, apply)
    }));
    if let Repr::Float(FloatCast { float, .. }) = repr {
        let (low, normal) = (width.low(), 1u32 << float.mantissa_bits);
        let flushed = |kept: u32| move |b: u32| if b & low < normal { b & kept } else { b };
        for (name, kept) in [
            ("0 where they are subnormal, with their sign", width.sign()),
            ("+0 where they are subnormal", 0),
        ] {
            all.push(Recode::new(Cause::Subnormals, name, flushed(kept)));
        }
    }
    all
}
