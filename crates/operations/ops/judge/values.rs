//! Elements as numbers, as bits and as text.

use rayon::prelude::*;
use safetensors::Dtype;

/// An element as a number; its bits as a number if the type is not numeric.
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

/// All elements as numbers.
pub fn numbers(dtype: Dtype, bytes: &[u8]) -> Vec<f64> {
    let len = bytes.len() * 8 / dtype.bitsize();
    (0..len).into_par_iter().map(|at| number(dtype, bytes, at)).collect()
}

/// True if elements of a type are shown as numbers; others are shown as codes.
pub fn is_number(dtype: Dtype) -> bool {
    use Dtype::{BF16, F16, F32, F64, I32, I64};
    matches!(dtype, BF16 | F16 | F32 | F64 | I32 | I64)
}

fn is_float(dtype: Dtype) -> bool {
    is_number(dtype) && !matches!(dtype, Dtype::I32 | Dtype::I64)
}

/// The bits of an element.
pub fn bits(dtype: Dtype, bytes: &[u8], at: usize) -> u64 {
    let size = dtype.bitsize() / 8;
    let mut all = [0; 8];
    all[..size].copy_from_slice(&bytes[at * size..][..size]);
    u64::from_le_bytes(all)
}

/// The bits of a number that the type can represent exactly.
pub fn stored(dtype: Dtype, x: f64) -> u64 {
    match dtype {
        Dtype::F64 => x.to_bits(),
        Dtype::F32 => (x as f32).to_bits().into(),
        // The type has the number exactly, so converting through f32 does not round.
        Dtype::BF16 => half::bf16::from_f32(x as f32).to_bits().into(),
        Dtype::F16 => half::f16::from_f32(x as f32).to_bits().into(),
        _ => x as u64,
    }
}

/// Properties of a wrong element. A property that all wrong elements share points to the fault.
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

/// The byte that fills outputs before the first run of a kernel.
pub const POISON_BYTE: u8 = 0xa5;

/// The kinds of an element whose expected value is `want` and whose value is `got`.
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

/// The kinds of a wrong code: it is still poison, it is 0, or it is the neighbour of an admissible one.
pub fn code_kinds(poison: bool, zero: bool, next: bool) -> u16 {
    u16::from(poison) * POISON + u16::from(zero) * GOT_ZERO + u16::from(next) * NEXT_CODE
}

/// The kind of two neighbouring bit patterns; 0 if they are not neighbours. Floats are sign and magnitude; other codes are integers.
pub fn neighbours(dtype: Dtype, want: u64, got: u64) -> u16 {
    let sign = 1u64 << (dtype.bitsize() - 1);
    let rank = |bits: u64| {
        let magnitude = i128::from(bits & (sign - 1));
        if bits & sign == 0 { magnitude } else { -magnitude }
    };
    let (next, steps) = match is_float(dtype) {
        true => (NEXT_STEP, (rank(want) - rank(got)).abs()),
        false => (NEXT_CODE, (i128::from(want) - i128::from(got)).abs()),
    };
    if steps == 1 { next } else { 0 }
}

/// Expected and found bits as text: numbers with their bits, or codes.
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

/// Two numbers with the digits of an f32, or with all digits if they would look the same.
pub fn apart(want: f64, got: f64) -> [String; 2] {
    let short = [want, got].map(plain);
    match short[0] == short[1] && want.to_bits() != got.to_bits() {
        true => [want, got].map(|x| format!("{x:?}")),
        false => short,
    }
}

/// Text of a number with the digits of an f32, or with all digits if the f32 would be infinite or would become zero.
pub fn plain(x: f64) -> String {
    let narrow = x as f32;
    let text = match narrow.is_finite() && (narrow != 0.0 || x == 0.0) {
        true => format!("{narrow:?}"),
        false => format!("{x:?}"),
    };
    text.strip_suffix(".0").map_or(text.clone(), String::from)
}

/// A bound with two significant digits.
pub fn short(x: f64) -> String {
    match x {
        0.0 => "0".into(),
        x if (1e-2..1e4).contains(&x) => plain(x.mul_add(1e3, 0.5).floor() / 1e3),
        x => format!("{x:.1e}"),
    }
}

/// A ratio of error to bound in parentheses; empty if it is not finite.
pub fn times(ratio: f64) -> String {
    match ratio {
        x if !x.is_finite() => String::new(),
        x if x >= 1e4 => format!(" ({x:.1e}x)"),
        x if x >= 10.0 => format!(" ({x:.0}x)"),
        x => format!(" ({x:.2}x)"),
    }
}

/// A count with thousands separators.
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
