//! Conversion of the bytes of a tensor to values.

use half::{bf16, f16};
use safetensors::Dtype;

use super::{Kind, Tensor};

/// Decodes the elements of a tensor of a numeric type; returns `None` from the calling function for other types.
macro_rules! decode {
    ($tensor:expr, $to:ty) => {{
        let bytes = $tensor.bytes;
        Some(match $tensor.dtype {
            Dtype::F64 => each(bytes, |b| f64::from_le_bytes(b) as $to),
            Dtype::F32 => each(bytes, |b| f32::from_le_bytes(b) as $to),
            Dtype::F16 => each(bytes, |b| f16::from_le_bytes(b).to_f32() as $to),
            Dtype::BF16 => each(bytes, |b| bf16::from_le_bytes(b).to_f32() as $to),
            Dtype::F8_E4M3 => table(bytes, |code| e4m3(code) as $to),
            Dtype::F8_E5M2 => table(bytes, |code| e5m2(code) as $to),
            Dtype::I64 => each(bytes, |b| i64::from_le_bytes(b) as $to),
            Dtype::I32 => each(bytes, |b| i32::from_le_bytes(b) as $to),
            Dtype::I16 => each(bytes, |b| i16::from_le_bytes(b) as $to),
            Dtype::I8 => each(bytes, |b| i8::from_le_bytes(b) as $to),
            Dtype::U64 => each(bytes, |b| u64::from_le_bytes(b) as $to),
            Dtype::U32 => each(bytes, |b| u32::from_le_bytes(b) as $to),
            Dtype::U16 => each(bytes, |b| u16::from_le_bytes(b) as $to),
            Dtype::U8 => each(bytes, |[b]| b as $to),
            Dtype::BOOL => each(bytes, |[b]| <$to>::from(b != 0)),
            _ => return None,
        })
    }};
}

impl<'a> Tensor<'a> {
    /// Returns true if the type is f64, f32, f16 or bf16, the types of unquantized numbers.
    pub fn is_floating(&self) -> bool {
        matches!(self.dtype, Dtype::F64 | Dtype::F32 | Dtype::F16 | Dtype::BF16)
    }

    /// Returns the way in which values of this type are compared: as real numbers, exactly, or not at all.
    pub fn kind(&self) -> Kind {
        match self.dtype {
            Dtype::F64 | Dtype::F32 | Dtype::F16 | Dtype::BF16 | Dtype::F8_E4M3 | Dtype::F8_E5M2 => Kind::Real,
            Dtype::I64 | Dtype::I32 | Dtype::I16 | Dtype::I8 => Kind::Exact,
            Dtype::U64 | Dtype::U32 | Dtype::U16 | Dtype::U8 | Dtype::BOOL | Dtype::F8_E8M0 => Kind::Exact,
            _ => Kind::Unsupported,
        }
    }

    /// Returns the values as f32. f64 and integers of more than 24 bits are rounded to nearest; all other types are exact.
    /// `None` for types that are not real numbers.
    pub fn to_f32(&self) -> Option<Vec<f32>> {
        decode!(self, f32)
    }

    /// Returns the values as f64. Integers of more than 53 bits are rounded to nearest; all other types are exact. `None` for
    /// types that are not real numbers.
    pub fn to_f64(&self) -> Option<Vec<f64>> {
        decode!(self, f64)
    }

    /// Returns the values of scales. U8 is decoded as E8M0, since many programs store E8M0 as bytes; other types are converted
    /// like in [`Tensor::to_f32`].
    pub fn to_scales(&self) -> Option<Vec<f32>> {
        match self.dtype {
            Dtype::F8_E8M0 | Dtype::U8 => Some(table(self.bytes, e8m0)),
            _ => self.to_f32(),
        }
    }

    /// Returns the bit patterns of the elements; empty for types smaller than a byte.
    pub fn codes(&self) -> impl Iterator<Item = u64> + use<'a> {
        let width = self.dtype.bitsize() / 8;
        let bytes = if width == 0 { &[] } else { self.bytes };
        bytes
            .chunks_exact(width.max(1))
            .map(|code| code.iter().rev().fold(0, |bits, &byte| bits << 8 | u64::from(byte)))
    }

    /// Returns the values of integers and booleans, and the bit patterns of other types.
    pub fn integers(&self) -> impl Iterator<Item = i128> + use<'a> {
        let signed = matches!(self.dtype, Dtype::I64 | Dtype::I32 | Dtype::I16 | Dtype::I8);
        let unused = 64 - self.dtype.bitsize().min(64);
        self.codes().map(move |code| match signed {
            // Sign-extend: shift left, then right as a signed number.
            true => i128::from((code << unused) as i64 >> unused),
            false => i128::from(code),
        })
    }
}

/// Formats a list of types: `F32, BF16 or U8`.
pub fn type_names(types: &[Dtype]) -> String {
    let names: Vec<String> = types.iter().map(Dtype::to_string).collect();
    match names.split_last() {
        Some((last, others)) if !others.is_empty() => format!("{} or {last}", others.join(", ")),
        _ => names.concat(),
    }
}

fn each<const N: usize, T>(bytes: &[u8], decode: impl Fn([u8; N]) -> T) -> Vec<T> {
    bytes.as_chunks().0.iter().map(|&element| decode(element)).collect()
}

fn table<T: Copy>(bytes: &[u8], decode: impl Fn(u8) -> T) -> Vec<T> {
    let table: Vec<T> = (0..=255).map(decode).collect();
    bytes.iter().map(|&code| table[usize::from(code)]).collect()
}

/// Decodes E4M3 (OCP "FN"): sign, 4 bits of exponent with bias 7, 3 bits of mantissa. The type has no infinities; a code is NaN
/// only if all its bits except the sign are set.
fn e4m3(code: u8) -> f32 {
    let (exponent, mantissa) = (code >> 3 & 15, f32::from(code & 7));
    let magnitude = match (exponent, code & 7) {
        (15, 7) => f32::NAN,
        (0, _) => mantissa * power_of_two(-9),
        _ => (8.0 + mantissa) * power_of_two(i32::from(exponent) - 10),
    };
    if code & 128 == 0 { magnitude } else { -magnitude }
}

/// Decodes E5M2, which is the upper half of an f16.
fn e5m2(code: u8) -> f32 {
    f16::from_bits(u16::from(code) << 8).to_f32()
}

/// Decodes E8M0: 2^(code − 127), or NaN for 255.
pub(crate) fn e8m0(code: u8) -> f32 {
    match code {
        0 => f32::MIN_POSITIVE / 2.0,
        255 => f32::NAN,
        code => power_of_two(i32::from(code) - 127),
    }
}

/// Returns 2^exponent for exponents −126 to 127 (normal f32), made from its bits, since `powi` is not guaranteed to be exact.
fn power_of_two(exponent: i32) -> f32 {
    f32::from_bits(((exponent + 127) as u32) << 23)
}
