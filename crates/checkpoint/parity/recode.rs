//! Fixed changes of every code or every scale: other tables, reciprocals, signs, bits.

use super::Cause;
use super::problem::{Problem, canonical};
use ulplab_core::error::counted;
use ulplab_core::formats::{E2M1, E4M3, E5M2, Element, FloatCast, MiniFloat, Policy, Repr, Scale, Zeros};

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

/// FP8 of AMD's MI300, and other things codes of 4 or 8 bits are taken for.
pub static OTHERS: [Element; 5] = [
    Element {
        name: "E4M3 FNUZ",
        doc: "",
        bits: 8,
        repr: fnuz(4, 3),
    },
    Element {
        name: "E5M2 FNUZ",
        doc: "",
        bits: 8,
        repr: fnuz(5, 2),
    },
    Element {
        name: "E5M2",
        doc: "",
        bits: 8,
        repr: E5M2.repr,
    },
    Element {
        name: "E4M3",
        doc: "",
        bits: 8,
        repr: E4M3.repr,
    },
    Element {
        name: "INT8",
        doc: "",
        bits: 8,
        repr: ulplab_core::formats::INT8.repr,
    },
];

/// INT4 and E2M1, which are taken for each other.
pub static OTHERS_4: [Element; 2] = [
    Element {
        name: "INT4",
        doc: "",
        bits: 4,
        repr: ulplab_core::formats::INT4.repr,
    },
    Element {
        name: "E2M1",
        doc: "",
        bits: 4,
        repr: E2M1.repr,
    },
];

/// The elements that codes of a format may be of instead.
pub fn others(element: &Element) -> impl Iterator<Item = &'static Element> {
    let (bits, repr) = (element.bits, element.repr);
    let all = OTHERS.iter().chain(&OTHERS_4);
    all.filter(move |other| other.bits == bits && other.repr != repr)
}

/// A change of every code, or of every scale.
pub struct Recode {
    pub cause: Cause,
    /// In words that follow "scales are" or "codes are".
    pub name: String,
    pub apply: Box<dyn Fn(u32) -> u32 + Send + Sync>,
    /// By how many units in the last place an f32 may differ.
    pub ulps: u32,
}

impl Recode {
    fn new(cause: Cause, name: impl Into<String>, apply: impl Fn(u32) -> u32 + Send + Sync + 'static) -> Self {
        let (name, apply) = (name.into(), Box::new(apply));
        Self {
            cause,
            name,
            apply,
            ulps: 0,
        }
    }

    /// What is said of scales that it was done to.
    pub fn finding(&self) -> String {
        format!("scales are {}", self.name)
    }

    /// Whether that is what it makes of the expected bits.
    pub fn explains(&self, expected: u32, stored: u32) -> bool {
        let made = (self.apply)(expected);
        made == stored || (self.ulps > 0 && made.abs_diff(stored) <= self.ulps && (made ^ stored) >> 31 == 0)
    }
}

/// Factors that are left out, or multiplied by, for a reason.
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

/// What a constant factor is.
pub fn factor_name(factor: f64, tolerance: f64) -> String {
    let near = |known: f64| (factor / known - 1.0).abs() <= tolerance;
    if let Some((_, name)) = FACTORS.iter().find(|(known, _)| near(*known)) {
        return format!("{factor:.6} times too large ({name})");
    }
    let power = factor.abs().log2();
    if (power - power.round()).abs() < tolerance && factor > 0.0 {
        return format!("too large by 2^{}", power.round());
    }
    // Digits after the point say nothing of what is far from 1.
    match factor.abs() {
        tiny if tiny < 1e-3 && tiny > 0.0 => format!("{:.4e} times too small", 1.0 / factor),
        huge if huge >= 1e6 => format!("{factor:.4e} times too large"),
        _ => format!("{factor:.6} times too large"),
    }
}

fn reversed(code: u32, bits: u32) -> u32 {
    code.reverse_bits() >> (32 - bits)
}

/// What may have been done to every scale.
pub fn of_scales(problem: &Problem) -> Vec<Recode> {
    let Some(scale) = problem.format.scaling.map(|scaling| scaling.scale) else {
        return Vec::new();
    };
    let encoding = Cause::Encoding;
    let mut all = Vec::new();
    let mut add = |cause, name: &str, apply: Box<dyn Fn(u32) -> u32 + Send + Sync>| {
        all.push(Recode {
            cause,
            name: name.into(),
            apply,
            ulps: 0,
        })
    };
    match scale {
        // Nothing is known that is done to these alone.
        Scale::Half(..) | Scale::Affine(_) => {}
        Scale::F32(_) => {
            let of = |f: fn(f32) -> f32| -> Box<dyn Fn(u32) -> u32 + Send + Sync> {
                Box::new(move |bits| canonical(f(f32::from_bits(bits)).to_bits()))
            };
            add(encoding, "the reciprocals of what is meant", of(|s| 1.0 / s));
            let precision = Cause::ScaleRounding;
            add(precision, "rounded to bf16", of(|s| half::bf16::from_f32(s).to_f32()));
            add(
                precision,
                "truncated to bf16",
                of(|s| f32::from_bits(s.to_bits() & 0xffff_0000)),
            );
            add(precision, "rounded to f16", of(|s| half::f16::from_f32(s).to_f32()));
            add(precision, "rounded to TF32", of(|s| super::maker::rounded(s, 13)));
            add(
                precision,
                "truncated to TF32",
                of(|s| f32::from_bits(s.to_bits() & !0x1fff)),
            );
            add(precision, "rounded to E4M3", of(|s| E4M3.decode(E4M3.encode(s))));
            add(precision, "rounded to E5M2", of(|s| E5M2.decode(E5M2.encode(s))));
            let power = |s: f32| f32::from_bits(s.to_bits() & 0x7f80_0000);
            add(precision, "rounded down to powers of two", of(power));
            add(
                precision,
                "rounded up to powers of two",
                of(|s| f32::from_bits((s.to_bits() + 0x7f_ffff) & 0x7f80_0000)),
            );
            add(
                precision,
                "rounded to the nearest powers of two",
                of(|s| f32::from_bits((s.to_bits() + 0x40_0000) & 0x7f80_0000)),
            );
            add(encoding, "stored as their binary logarithm", of(f32::log2));
            add(encoding, "squared", of(|s| s * s));
            add(encoding, "their square roots", of(f32::sqrt));
            add(Cause::Sign, "negated", of(|s| -s));
            add(
                encoding,
                "f32 with their four bytes in reverse order",
                Box::new(|bits| canonical(bits.swap_bytes())),
            );
            add(
                encoding,
                "f32 with their 16-bit halves exchanged",
                Box::new(|bits| canonical(bits.rotate_left(16))),
            );
            add(
                encoding,
                "E8M0 codes widened to f32 as numbers",
                of(|s| ((s.to_bits() + 0x7f_ffff) >> 23) as f32),
            );
            add(
                encoding,
                "E8M0 codes in the low byte of a word",
                Box::new(|bits| (bits + 0x7f_ffff) >> 23),
            );
        }
        Scale::E8m0(_) => {
            add(
                encoding,
                "reciprocals of what is meant: code 254 − b for b",
                Box::new(|b| 254u32.saturating_sub(b)),
            );
            add(
                encoding,
                "reciprocals of what is meant: code 255 − b for b",
                Box::new(|b| 255u32.saturating_sub(b)),
            );
            for by in [1i32, -1, 2, -2, 3, -3, 8, -8, 127, -127] {
                let way = if by > 0 { "above" } else { "below" };
                let name = format!("stored {} {way}, as with another exponent bias", by.abs());
                add(encoding, &name, Box::new(move |b| b.saturating_add_signed(by).min(255)));
            }
            add(
                encoding,
                "stored as signed exponents, without the bias of 127",
                Box::new(|b| b.wrapping_sub(127) & 255),
            );
            add(encoding, "shifted left by one bit", Box::new(|b| b << 1 & 255));
            add(encoding, "shifted right by one bit", Box::new(|b| b >> 1));
            add(
                encoding,
                "stored as E4M3 numbers",
                Box::new(|b| E4M3.encode((f64::from(b) - 127.0).exp2() as f32).into()),
            );
        }
        Scale::E4m3(_) => {
            let value = |b: u32| E4M3.decode(b as u16);
            add(
                encoding,
                "in E4M3 FNUZ, whose bias is 8, so that they read as twice what is meant",
                Box::new(move |b| OTHERS[0].encode(value(b)).into()),
            );
            add(
                encoding,
                "in E5M2, not in E4M3",
                Box::new(move |b| E5M2.encode(value(b)).into()),
            );
            add(
                encoding,
                "the reciprocals of what is meant",
                Box::new(move |b| E4M3.encode(1.0 / value(b)).into()),
            );
            add(
                encoding,
                "squared",
                Box::new(move |b| E4M3.encode(value(b) * value(b)).into()),
            );
            add(
                Cause::ScaleRounding,
                "rounded up to powers of two",
                Box::new(move |b| E4M3.encode(value(b).log2().ceil().exp2()).into()),
            );
            add(
                Cause::ScaleRounding,
                "rounded down to powers of two",
                Box::new(move |b| E4M3.encode(value(b).log2().floor().exp2()).into()),
            );
            add(
                encoding,
                "in E8M0, rounded up",
                Box::new(move |b| ((value(b).to_bits() + 0x7f_ffff) >> 23) & 255),
            );
            add(
                encoding,
                "in E8M0, rounded down",
                Box::new(move |b| (value(b).to_bits() >> 23) & 255),
            );
            for by in [1i32, -1, 2, -2, 3, 4, -4, 8, -8, 16, -16, 24, -24] {
                let name = match by % 8 {
                    0 => format!("too large by 2^{}", by / 8),
                    _ => format!(
                        "{} {}",
                        counted(by.unsigned_abs() as usize, "code"),
                        if by > 0 { "above" } else { "below" }
                    ),
                };
                let cause = if by % 8 == 0 { encoding } else { Cause::ScaleRounding };
                add(cause, &name, Box::new(move |b| b.saturating_add_signed(by).min(0x7e)));
            }
        }
    }
    if scale.bytes() == 1 {
        add(encoding, "with their bits reversed", Box::new(|b| reversed(b, 8)));
        add(
            encoding,
            "with their nibbles exchanged",
            Box::new(|b| (b << 4 | b >> 4) & 255),
        );
        add(encoding, "with all bits inverted", Box::new(|b| !b & 255));
        for bit in 0..8 {
            let name = format!("with bit {bit} inverted");
            add(encoding, &name, Box::new(move |b| b ^ 1 << bit));
            let name = format!("with bit {bit} cleared");
            add(encoding, &name, Box::new(move |b| b & !(1 << bit)));
            let name = format!("with bit {bit} set");
            add(encoding, &name, Box::new(move |b| b | 1 << bit));
        }
    }
    all
}

/// What may have been done to every code.
pub fn of_codes(repr: Repr, bits: u32) -> Vec<Recode> {
    let sign = 1u32 << (bits - 1);
    let (mask, low) = ((sign << 1) - 1, sign - 1);
    let integer = matches!(repr, Repr::Integer(_));
    let encoding = Cause::Encoding;
    let negate = move |b: u32| if integer { b.wrapping_neg() & mask } else { b ^ sign };
    let negative = move |b: u32| b & sign != 0;
    let mut all = vec![
        Recode::new(Cause::Sign, "negated: every sign is inverted", negate),
        Recode::new(Cause::Sign, "without sign: magnitudes only", move |b| {
            if negative(b) { negate(b) } else { b }
        }),
        Recode::new(
            Cause::Sign,
            "all negative",
            move |b| if negative(b) { b } else { negate(b) },
        ),
        Recode::new(Cause::Sign, "0 for every negative value (ReLU)", move |b| {
            if negative(b) { 0 } else { b }
        }),
        Recode::new(Cause::Sign, "−0 for every negative value (ReLU)", move |b| {
            if negative(b) { sign } else { b }
        }),
        Recode::new(Cause::Sign, "0 for every positive value", move |b| {
            if negative(b) { b } else { 0 }
        }),
        Recode::new(Cause::ZeroSign, "+0 for −0", move |b| if b == sign { 0 } else { b }),
        Recode::new(Cause::ZeroSign, "−0 for +0", move |b| if b == 0 { sign } else { b }),
        Recode::new(
            encoding,
            "in two's complement: −m is stored as the complement of m",
            move |b| {
                if negative(b) {
                    (b & low).wrapping_neg() & mask
                } else {
                    b
                }
            },
        ),
        Recode::new(
            encoding,
            "in ones' complement",
            move |b| if negative(b) { b ^ low } else { b },
        ),
        Recode::new(encoding, "sign and magnitude of two's complement", move |b| {
            if negative(b) {
                (b.wrapping_neg() & low) | sign
            } else {
                b
            }
        }),
        Recode::new(
            encoding,
            "offset: the sign bit is inverted and negative codes run upwards",
            move |b| {
                if negative(b) { !b & mask } else { b | sign }
            },
        ),
        Recode::new(
            encoding,
            "offset by half the range (unsigned with a zero point)",
            move |b| b.wrapping_add(sign) & mask,
        ),
        Recode::new(encoding, "with the sign in the lowest bit", move |b| {
            (b << 1 | b >> (bits - 1)) & mask
        }),
        Recode::new(encoding, "rotated right by one bit", move |b| {
            (b >> 1 | b << (bits - 1)) & mask
        }),
        Recode::new(encoding, "shifted left by one bit", move |b| b << 1 & mask),
        Recode::new(encoding, "shifted right by one bit", move |b| b >> 1),
        Recode::new(encoding, "with their bits reversed", move |b| reversed(b, bits)),
        Recode::new(encoding, "with all bits inverted", move |b| !b & mask),
        Recode::new(Cause::Division, "one code larger in magnitude", move |b| {
            if b & low == low { b } else { b + 1 }
        }),
        Recode::new(Cause::Division, "one code smaller in magnitude", move |b| {
            if b & low == 0 { b } else { b - 1 }
        }),
    ];
    if bits == 8 && !integer {
        all.push(Recode::new(encoding, "with their nibbles exchanged", |b| {
            (b << 4 | b >> 4) & 255
        }));
    }
    if bits == 16 {
        all.push(Recode::new(encoding, "16-bit words with their bytes swapped", |b| {
            (b << 8 | b >> 8) & 0xffff
        }));
    }
    for bit in 0..bits - 1 {
        all.push(Recode::new(encoding, format!("with bit {bit} cleared"), move |b| {
            b & !(1 << bit)
        }));
        all.push(Recode::new(encoding, format!("with bit {bit} set"), move |b| {
            b | 1 << bit
        }));
        all.push(Recode::new(encoding, format!("with bit {bit} inverted"), move |b| {
            b ^ 1 << bit
        }));
    }
    let own = OTHERS.iter().chain(&OTHERS_4);
    for other in own.filter(|other| other.bits == bits && other.repr != repr) {
        let name = format!(
            "in {}: the numbers are right, their codes are another format's",
            other.name
        );
        all.push(Recode::new(encoding, name, move |b| {
            other.encode(repr.decode(b as u16)).into()
        }));
    }
    if let Repr::Float(FloatCast { float, .. }) = repr {
        let normal = 1u32 << float.mantissa_bits;
        let flushed = move |b: u32| if b & low < normal { b & sign } else { b };
        let subnormals = Cause::Subnormals;
        all.push(Recode::new(
            subnormals,
            "0 where they are subnormal, with their sign",
            flushed,
        ));
        all.push(Recode::new(subnormals, "+0 where they are subnormal", move |b| {
            if b & low < normal { 0 } else { b }
        }));
    }
    all
}
