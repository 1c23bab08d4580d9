//! Elements of tensors as numbers.

use half::{bf16, f16};
use rayon::prelude::*;
use safetensors::Dtype;
use ulplab_core::close::Widen;

use crate::tensor::{Array, name};

/// The largest magnitude up to which f64 has every integer.
const MOST_INTEGER: i128 = 1 << 53;

/// The elements of a tensor as `T`, if they lie as `T` must; the caller has compared the types.
pub fn typed<T: Copy>(bytes: &[u8]) -> Option<&[T]> {
    // SAFETY: all bits are numbers of the types that this is called with.
    let (before, elements, behind) = unsafe { bytes.align_to::<T>() };
    (before.is_empty() && behind.is_empty()).then_some(elements)
}

/// All elements in f64.
///
/// # Errors
/// Integers that f64 does not have, and types that are not numbers.
pub fn widened(array: &Array) -> Result<Vec<f64>, String> {
    let bytes = &array.bytes()[..];
    fn each<const N: usize>(bytes: &[u8], number: impl Fn([u8; N]) -> f64 + Sync) -> Vec<f64> {
        let (chunks, _) = bytes.as_chunks::<N>();
        chunks
            .par_iter()
            .with_min_len(1 << 12)
            .map(|bytes| number(*bytes))
            .collect()
    }
    let table = |of: fn(u8) -> f64| -> Vec<f64> {
        let table: Vec<f64> = (0..=255).map(of).collect();
        each(bytes, |[byte]| table[usize::from(byte)])
    };
    Ok(match array.dtype {
        Dtype::F64 => each(bytes, f64::from_le_bytes),
        Dtype::F32 => each(bytes, |bytes| f32::from_le_bytes(bytes).into()),
        Dtype::BF16 => each(bytes, |bytes| bf16::from_le_bytes(bytes).widen()),
        Dtype::F16 => each(bytes, |bytes| f16::from_le_bytes(bytes).widen()),
        Dtype::F8_E4M3 => table(|byte| small(byte, 4, 3)),
        Dtype::F8_E5M2 => table(|byte| small(byte, 5, 2)),
        Dtype::F8_E8M0 => table(|byte| {
            if byte == 255 {
                f64::NAN
            } else {
                2f64.powi(i32::from(byte) - 127)
            }
        }),
        Dtype::I8 => each(bytes, |bytes| i8::from_le_bytes(bytes).into()),
        Dtype::I16 => each(bytes, |bytes| i16::from_le_bytes(bytes).into()),
        Dtype::I32 => each(bytes, |bytes| i32::from_le_bytes(bytes).into()),
        Dtype::U8 | Dtype::BOOL => each(bytes, |[byte]| byte.into()),
        Dtype::U16 => each(bytes, |bytes| u16::from_le_bytes(bytes).into()),
        Dtype::U32 => each(bytes, |bytes| u32::from_le_bytes(bytes).into()),
        Dtype::I64 => {
            whole(bytes, |bytes| i64::from_le_bytes(bytes).into())?;
            each(bytes, |bytes| i64::from_le_bytes(bytes) as f64)
        }
        Dtype::U64 => {
            whole(bytes, |bytes| u64::from_le_bytes(bytes).into())?;
            each(bytes, |bytes| u64::from_le_bytes(bytes) as f64)
        }
        other => return Err(format!("elements are {}, expected numbers", name(other))),
    })
}

/// An error if an integer is larger than f64 can tell from its neighbours.
fn whole(bytes: &[u8], number: impl Fn([u8; 8]) -> i128) -> Result<(), String> {
    let (chunks, _) = bytes.as_chunks::<8>();
    let large = chunks
        .iter()
        .map(|bytes| number(*bytes))
        .find(|x| x.abs() > MOST_INTEGER);
    large.map_or(Ok(()), |x| {
        Err(format!(
            "an element is {x}, expected integers of at most 2^53, which f64 has exactly"
        ))
    })
}

/// The value of an 8-bit float: E4M3 without infinities, E5M2 with them.
fn small(byte: u8, exponent_bits: u32, mantissa_bits: i32) -> f64 {
    let sign = if byte & 0x80 == 0 { 1.0 } else { -1.0 };
    let mantissa = f64::from(byte & ((1 << mantissa_bits) - 1));
    let exponent = i32::from((byte & 0x7f) >> mantissa_bits);
    let (bias, top) = ((1 << (exponent_bits - 1)) - 1, (1 << exponent_bits) - 1);
    let step = 2f64.powi(-mantissa_bits);
    match (exponent, mantissa_bits) {
        (0, _) => sign * mantissa * step * 2f64.powi(1 - bias),
        (exponent, 2) if exponent == top => match mantissa {
            0.0 => sign * f64::INFINITY,
            _ => f64::NAN,
        },
        (exponent, 3) if exponent == top && mantissa == 7.0 => f64::NAN,
        (exponent, _) => sign * (1.0 + mantissa * step) * 2f64.powi(exponent - bias),
    }
}
