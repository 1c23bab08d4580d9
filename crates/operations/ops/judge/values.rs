//! Converts elements to numbers, bits and text, and classifies wrong elements.

use rayon::prelude::*;
use safetensors::Dtype;

use ulplab_core::metrics::ordered;

/// Converts an element to a number. For types whose elements messages show as codes (see [`is_number`]), this number is the code.
pub fn number(dtype: Dtype, bytes: &[u8], at: usize) -> f64 {
    match dtype {
        Dtype::F64 => f64::from_bits(bits(dtype, bytes, at)),
        Dtype::F32 => f32::from_bits(bits(dtype, bytes, at) as u32).into(),
        Dtype::BF16 => half::bf16::from_bits(bits(dtype, bytes, at) as u16).to_f64(),
        Dtype::F16 => half::f16::from_bits(bits(dtype, bytes, at) as u16).to_f64(),
        Dtype::I32 => f64::from(bits(dtype, bytes, at) as i32),
        Dtype::I64 => bits(dtype, bytes, at).cast_signed() as f64,
        _ => bits(dtype, bytes, at) as f64,
    }
}

/// Converts all elements to numbers.
pub fn numbers(dtype: Dtype, bytes: &[u8]) -> Vec<f64> {
    let len = bytes.len() * 8 / dtype.bitsize();
    (0..len).into_par_iter().map(|at| number(dtype, bytes, at)).collect()
}

/// True if messages show elements of this type as numbers; others are shown as hexadecimal codes.
pub fn is_number(dtype: Dtype) -> bool {
    use Dtype::{BF16, F16, F32, F64, I32, I64};
    matches!(dtype, BF16 | F16 | F32 | F64 | I32 | I64)
}

fn is_float(dtype: Dtype) -> bool {
    is_number(dtype) && !matches!(dtype, Dtype::I32 | Dtype::I64)
}

/// Bits of an element.
pub fn bits(dtype: Dtype, bytes: &[u8], at: usize) -> u64 {
    let size = dtype.bitsize() / 8;
    let mut all = [0; 8];
    all[..size].copy_from_slice(&bytes[at * size..][..size]);
    u64::from_le_bytes(all)
}

/// Bits of a number in the type `dtype`; the type must represent the number exactly.
pub fn stored(dtype: Dtype, x: f64) -> u64 {
    match dtype {
        Dtype::F64 => x.to_bits(),
        Dtype::F32 => (x as f32).to_bits().into(),
        // `x` is exactly representable in this type, so the conversion through f32 does not round.
        Dtype::BF16 => half::bf16::from_f32(x as f32).to_bits().into(),
        Dtype::F16 => half::f16::from_f32(x as f32).to_bits().into(),
        _ => x as u64,
    }
}

/// Kinds of wrong elements, with their descriptions. A kind that all wrong elements share hints at the fault.
pub const KINDS: [(u16, &str); 10] = [
    (POISON, "which hold what was there before: never written"),
    (GOT_NAN, "where NaN was found"),
    (GOT_ZERO, "where 0 was found: never written?"),
    (GOT_INFINITE, "where an infinity was found"),
    (WANT_NAN, "where NaN is wanted"),
    (WANT_INFINITE, "where an infinity is wanted"),
    (WANT_ZERO, "where 0 is wanted"),
    (FLIPPED, "with the sign flipped"),
    (NEXT_STEP, "off by one step"),
    (NEXT_CODE, "off by one code"),
];
const POISON: u16 = 1;
const GOT_NAN: u16 = 2;
const GOT_ZERO: u16 = 4;
const GOT_INFINITE: u16 = 8;
const WANT_NAN: u16 = 16;
const WANT_INFINITE: u16 = 32;
const WANT_ZERO: u16 = 64;
const FLIPPED: u16 = 128;
const NEXT_STEP: u16 = 256;
const NEXT_CODE: u16 = 512;

/// Byte that fills outputs before the first run of a kernel.
pub const POISON_BYTE: u8 = 0xa5;

/// Kinds of error ([`KINDS`]) of an element with the expected value `want` and the value `got`, as a bit set.
pub fn kinds(dtype: Dtype, [want, got]: [f64; 2], bytes: &[u8], at: usize) -> u16 {
    let size = dtype.bitsize() / 8;
    let poison = bytes[at * size..][..size].iter().all(|byte| *byte == POISON_BYTE);
    let of_codes = code_kinds(poison, got == 0.0 && want != 0.0, false);
    if !is_float(dtype) {
        return of_codes;
    }
    let all = [
        (got.is_nan(), GOT_NAN),
        (got.is_infinite(), GOT_INFINITE),
        (want.is_nan(), WANT_NAN),
        (want.is_infinite(), WANT_INFINITE),
        (want == 0.0, WANT_ZERO),
        (got == -want && (got != 0.0 || got.to_bits() != want.to_bits()), FLIPPED),
    ];
    all.iter()
        .filter(|(is, _)| *is)
        .fold(of_codes, |kinds, (_, kind)| kinds | kind)
}

/// Bit set of the kinds of a wrong code. The arguments are true if its bytes were never written, if it is zero, and if it is next
/// to an admissible code.
pub fn code_kinds(poison: bool, zero: bool, next: bool) -> u16 {
    u16::from(poison) * POISON + u16::from(zero) * GOT_ZERO + u16::from(next) * NEXT_CODE
}

/// Returns the kind of error of bits that are one step away from the expected bits; 0 at any other distance. Floats are compared
/// as sign and magnitude, other codes as integers.
pub fn neighbours(dtype: Dtype, want: u64, got: u64) -> u16 {
    let rank = |bits: u64| ordered(bits, dtype.bitsize() as u32);
    let (next, steps) = match is_float(dtype) {
        true => (NEXT_STEP, rank(want).abs_diff(rank(got))),
        false => (NEXT_CODE, want.abs_diff(got)),
    };
    if steps == 1 { next } else { 0 }
}

/// Text with the expected element and the output's element: numbers with their bits, or codes.
pub fn both(dtype: Dtype, want: u64, got: u64) -> String {
    let width = dtype.bitsize() / 4;
    let text = |bits: u64| match is_number(dtype) {
        true => {
            let value = number(dtype, &bits.to_le_bytes()[..dtype.bitsize() / 8], 0);
            format!("{} (0x{bits:0width$x})", plain(value))
        }
        false => format!("0x{bits:0width$x}"),
    };
    format!("want {}, got {}", text(want), text(got))
}

/// Formats two numbers with the digits of an f32. If two different numbers would have equal texts, formats them with all digits.
pub fn apart(want: f64, got: f64) -> [String; 2] {
    let short = [want, got].map(plain);
    match short[0] == short[1] && want.to_bits() != got.to_bits() {
        true => [want, got].map(|x| format!("{x:?}")),
        false => short,
    }
}

/// Text of a number with the digits of an f32, or with all digits if the conversion to f32 would overflow or underflow to zero.
pub fn plain(x: f64) -> String {
    let narrow = x as f32;
    let text = match narrow.is_finite() && (narrow != 0.0 || x == 0.0) {
        true => format!("{narrow:?}"),
        false => format!("{x:?}"),
    };
    text.strip_suffix(".0").map_or(text.clone(), String::from)
}

/// Text of a bound with two significant digits.
pub fn short(x: f64) -> String {
    match x {
        0.0 => "0".into(),
        x if (1e-2..1e4).contains(&x) => plain(x.mul_add(1e3, 0.5).floor() / 1e3),
        x => format!("{x:.1e}"),
    }
}

/// Text of a ratio of error to bound, in parentheses; empty if the ratio is not finite.
pub fn times(ratio: f64) -> String {
    match ratio {
        x if !x.is_finite() => String::new(),
        x if x >= 1e4 => format!(" ({x:.1e}x)"),
        x if x >= 10.0 => format!(" ({x:.0}x)"),
        x => format!(" ({x:.2}x)"),
    }
}

/// Text of a count with thousands separators.
pub fn count(n: usize) -> String {
    let digits = n.to_string();
    let mut text = String::new();
    for (at, digit) in digits.chars().enumerate() {
        if at > 0 && (digits.len() - at).is_multiple_of(3) {
            text.push(',');
        }
        text.push(digit);
    }
    text
}
