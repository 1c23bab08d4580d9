//! From the bytes of a tensor to f32.

use std::borrow::Cow;

use half::{bf16, f16};
use safetensors::Dtype;

use crate::formats;

/// Side of the blocks that share a scale where the shape of the scales leaves it open, as in DeepSeek's checkpoints.
const BLOCK: usize = 128;

/// Whether ulplab reads weights of this type.
pub(super) fn is_float(dtype: Dtype) -> bool {
    use Dtype::*;
    matches!(dtype, F64 | F32 | BF16 | F16) || needs_scale(dtype)
}

/// Whether values of this type mean nothing without a scale.
pub(super) fn needs_scale(dtype: Dtype) -> bool {
    fp8(dtype).is_some()
}

/// Whether ulplab reads scales of this type.
pub(super) fn is_scale(dtype: Dtype) -> bool {
    use Dtype::*;
    matches!(dtype, F32 | BF16 | F16 | F8_E8M0)
}

/// Whether ulplab reads ids of this type.
pub(super) fn is_integer(dtype: Dtype) -> bool {
    use Dtype::*;
    matches!(dtype, U8 | I8 | U16 | I16 | U32 | I32 | U64 | I64)
}

/// The ulplab name of an 8-bit float type that carries values.
fn fp8(dtype: Dtype) -> Option<&'static str> {
    match dtype {
        Dtype::F8_E4M3 => Some("e4m3"),
        Dtype::F8_E5M2 => Some("e5m2"),
        _ => None,
    }
}

/// The values of a tensor of floats or scales, unscaled; `None` if ulplab does not read the type.
pub(super) fn floats(dtype: Dtype, bytes: &[u8]) -> Option<Vec<f32>> {
    let codes = |name| {
        let element = formats::element(name)?;
        let table: [f32; 256] = std::array::from_fn(|code| element.decode(code as u16));
        Some(bytes.iter().map(|&code| table[usize::from(code)]).collect())
    };
    match dtype {
        Dtype::F64 => Some(each(bytes, |b| f64::from_le_bytes(b) as f32)),
        Dtype::F32 => Some(each(bytes, f32::from_le_bytes)),
        Dtype::BF16 => Some(each(bytes, |b| bf16::from_le_bytes(b).to_f32())),
        Dtype::F16 => Some(each(bytes, |b| f16::from_le_bytes(b).to_f32())),
        Dtype::F8_E8M0 => codes("e8m0"),
        _ => codes(fp8(dtype)?),
    }
}

/// The values of a tensor of integers; `None` if ulplab does not read the type. No type exceeds i128.
pub(super) fn integers(dtype: Dtype, bytes: &[u8]) -> Option<Vec<i128>> {
    Some(match dtype {
        Dtype::U8 => each(bytes, |b| u8::from_le_bytes(b).into()),
        Dtype::I8 => each(bytes, |b| i8::from_le_bytes(b).into()),
        Dtype::U16 => each(bytes, |b| u16::from_le_bytes(b).into()),
        Dtype::I16 => each(bytes, |b| i16::from_le_bytes(b).into()),
        Dtype::U32 => each(bytes, |b| u32::from_le_bytes(b).into()),
        Dtype::I32 => each(bytes, |b| i32::from_le_bytes(b).into()),
        Dtype::U64 => each(bytes, |b| u64::from_le_bytes(b).into()),
        Dtype::I64 => each(bytes, |b| i64::from_le_bytes(b).into()),
        _ => return None,
    })
}

fn each<const N: usize, V>(bytes: &[u8], value: impl Fn([u8; N]) -> V) -> Vec<V> {
    bytes.as_chunks().0.iter().map(|&chunk| value(chunk)).collect()
}

/// Over how many elements of each dimension of a weight one scale extends, told from the two shapes; `None` if they do
/// not fit. The first that holds:
///
/// 1. one scale in all: the whole tensor;
/// 2. as many rows of scales as of weights (`[out, n]`, or `[out]` for `n = 1`): `in / n` columns of a row if that is a
///    whole number, else 128 columns if `n = ⌈in / 128⌉`;
/// 3. `[1, 1]` behind the expert dimensions: the whole matrix;
/// 4. `[⌈out / 128⌉, ⌈in / 128⌉]`: blocks of 128 × 128.
///
/// Dimensions before the last two (experts) have a scale each, or 1 for all. A scale of fewer dimensions than the weight
/// leaves out trailing ones.
pub(super) fn block(weight: &[usize], scale: &[usize]) -> Option<Vec<usize>> {
    if scale.iter().all(|&n| n == 1) {
        return Some(weight.to_vec());
    }
    if scale.len() > weight.len() {
        return None;
    }
    let scale: Cow<[usize]> = match weight.len() - scale.len() {
        0 => scale.into(),
        missing => [scale, &vec![1; missing]].concat().into(),
    };
    let (&cols, rest) = weight.split_last()?;
    let (&scale_cols, scale_rest) = scale.split_last()?;
    let (rows, experts) = rest.split_last().map_or((1, rest), |(&rows, experts)| (rows, experts));
    let (scale_rows, scale_experts) = scale_rest
        .split_last()
        .map_or((1, scale_rest), |(&n, experts)| (n, experts));

    let mut block = Vec::with_capacity(weight.len());
    for (&experts, &scales) in experts.iter().zip(scale_experts) {
        block.push(match scales {
            _ if scales == experts => 1,
            1 => experts,
            _ => return None,
        });
    }
    let in_128 = |scales: usize, of: usize| scales == of.div_ceil(BLOCK);
    let (block_rows, block_cols) = if scale_rows == rows {
        let exact = scale_cols != 0 && cols.is_multiple_of(scale_cols);
        match exact || in_128(scale_cols, cols) {
            true => (1, if exact { cols / scale_cols } else { BLOCK }),
            false => return None,
        }
    } else if (scale_rows, scale_cols) == (1, 1) {
        (rows, cols)
    } else if in_128(scale_rows, rows) && in_128(scale_cols, cols) {
        (BLOCK, BLOCK)
    } else {
        return None;
    };
    if !rest.is_empty() {
        block.push(block_rows);
    }
    block.push(block_cols);
    Some(block)
}

/// Multiplies each value by the scale of its block, rounding once to f32: `fl32(code · scale)`.
pub(super) fn scale(values: &mut [f32], shape: &[usize], scales: &[f32], block: &[usize]) {
    let (Some((&cols, lead)), Some((&block_cols, lead_block))) = (shape.split_last(), block.split_last()) else {
        values.iter_mut().zip(scales).for_each(|(value, scale)| *value *= scale);
        return;
    };
    if values.is_empty() {
        return;
    }
    let scale_cols = cols.div_ceil(block_cols);
    for (row, values) in values.chunks_exact_mut(cols).enumerate() {
        let (mut rest, mut stride, mut scale_row) = (row, 1, 0);
        for (&size, &block) in lead.iter().zip(lead_block).rev() {
            scale_row += rest % size / block * stride;
            stride *= size.div_ceil(block);
            rest /= size;
        }
        let scales = &scales[scale_row * scale_cols..][..scale_cols];
        for (values, scale) in values.chunks_mut(block_cols).zip(scales) {
            values.iter_mut().for_each(|value| *value *= scale);
        }
    }
}
