//! From the bytes of a tensor to f32.

use std::borrow::Cow;

use half::{bf16, f16};
use safetensors::Dtype;

/// Side of the blocks that share a scale where the shape of the scales leaves it open, as in DeepSeek's checkpoints.
const BLOCK: usize = 128;

/// What is read of weights, as it is said in errors.
pub(super) const FLOATS: &str = "F64, F32, BF16, F16, F8_E4M3 or F8_E5M2";
/// The same of scales.
pub(super) const SCALES: &str = "F32, BF16, F16, F8_E8M0 or U8";
/// The same of integers.
pub(super) const INTEGERS: &str = "an integer type of 8 to 64 bits";

/// Whether weights of this type are read.
pub(super) fn is_float(dtype: Dtype) -> bool {
    use Dtype::*;
    matches!(dtype, F64 | F32 | BF16 | F16) || needs_scale(dtype)
}

/// Whether values of this type mean nothing without a scale.
pub(super) fn needs_scale(dtype: Dtype) -> bool {
    matches!(dtype, Dtype::F8_E4M3 | Dtype::F8_E5M2)
}

/// Whether scales of this type are read.
pub(super) fn is_scale(dtype: Dtype) -> bool {
    use Dtype::*;
    matches!(dtype, F32 | BF16 | F16) || is_e8m0(dtype)
}

/// Whether scales of this type are E8M0, which many writers store as bytes.
pub(super) fn is_e8m0(dtype: Dtype) -> bool {
    matches!(dtype, Dtype::F8_E8M0 | Dtype::U8)
}

/// Whether this type may hold two codes of E2M1 to a byte.
pub(super) fn is_packed(dtype: Dtype) -> bool {
    matches!(dtype, Dtype::U8 | Dtype::I8)
}

/// The values of scales; `None` if the type is not read.
pub(super) fn scales(dtype: Dtype, bytes: &[u8]) -> Option<Vec<f32>> {
    match is_e8m0(dtype) {
        true => floats(Dtype::F8_E8M0, bytes),
        false => floats(dtype, bytes),
    }
}

/// Whether integers of this type are read.
pub(super) fn is_integer(dtype: Dtype) -> bool {
    use Dtype::*;
    matches!(dtype, U8 | I8 | U16 | I16 | U32 | I32 | U64 | I64)
}

/// Sign, 4 bits of exponent with bias 7, 3 bits of mantissa; no infinities, and NaN only where all bits are set (OCP "FN").
fn e4m3(code: u8) -> f32 {
    let (exponent, mantissa) = (code >> 3 & 15, f32::from(code & 7));
    let magnitude = match (exponent, code & 7) {
        (15, 7) => f32::NAN,
        (0, _) => mantissa * power_of_two(-9),
        _ => (8.0 + mantissa) * power_of_two(i32::from(exponent) - 10),
    };
    if code & 128 == 0 { magnitude } else { -magnitude }
}

/// The upper half of an f16.
fn e5m2(code: u8) -> f32 {
    f16::from_bits(u16::from(code) << 8).to_f32()
}

/// 2^(code − 127), and NaN for 255.
fn e8m0(code: u8) -> f32 {
    match code {
        0 => f32::MIN_POSITIVE / 2.0,
        255 => f32::NAN,
        code => power_of_two(i32::from(code) - 127),
    }
}

/// Normal f32 only: exponents −126 to 127. `powi` does not promise to be exact.
fn power_of_two(exponent: i32) -> f32 {
    f32::from_bits(((exponent + 127) as u32) << 23)
}

/// The values of a tensor of floats or scales, unscaled; `None` if the type is not read.
pub fn floats(dtype: Dtype, bytes: &[u8]) -> Option<Vec<f32>> {
    let codes = |decode: fn(u8) -> f32| {
        let table: [f32; 256] = std::array::from_fn(|code| decode(code as u8));
        bytes.iter().map(|&code| table[usize::from(code)]).collect()
    };
    Some(match dtype {
        Dtype::F64 => each(bytes, |b| f64::from_le_bytes(b) as f32),
        Dtype::F32 => each(bytes, f32::from_le_bytes),
        Dtype::BF16 => each(bytes, |b| bf16::from_le_bytes(b).to_f32()),
        Dtype::F16 => each(bytes, |b| f16::from_le_bytes(b).to_f32()),
        Dtype::F8_E4M3 => codes(e4m3),
        Dtype::F8_E5M2 => codes(e5m2),
        Dtype::F8_E8M0 => codes(e8m0),
        _ => return None,
    })
}

/// The values of a tensor of integers; `None` if the type is not read. No type exceeds i128.
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

/// The magnitudes of E2M1 by their codes; the fourth bit is the sign.
const E2M1: [f32; 8] = [0.0, 0.5, 1.0, 1.5, 2.0, 3.0, 4.0, 6.0];

/// A code of E2M1.
fn e2m1(code: u8) -> f32 {
    let magnitude = E2M1[usize::from(code & 7)];
    if code & 8 == 0 { magnitude } else { -magnitude }
}

/// Pairs of codes of E2M1, the first of each in the lower half of its byte, unscaled.
pub(super) fn e2m1_pairs(bytes: &[u8]) -> Vec<f32> {
    bytes.iter().flat_map(|byte| [byte & 15, byte >> 4]).map(e2m1).collect()
}

/// A stack of matrices from blocks of MXFP4 as gpt-oss stores them: codes `[count, outputs, blocks, 16]`, two to a byte with the
/// first in its lower half, and scales `[count, outputs, blocks]` in E8M0. Gives `[count, 32 · blocks, outputs]`: a block is a piece
/// of a column.
pub(super) fn mxfp4_columns(codes: &[u8], scales: &[u8], [count, outputs, blocks]: [usize; 3]) -> Vec<f32> {
    let inputs = 32 * blocks;
    let mut values = vec![0.0; count * inputs * outputs];
    for (block, (bytes, &scale)) in codes.as_chunks::<16>().0.iter().zip(scales).enumerate() {
        let (column, first) = (block / blocks, 32 * (block % blocks));
        let at = column / outputs * inputs * outputs + column % outputs;
        let scale = e8m0(scale);
        for (pair, byte) in bytes.iter().enumerate() {
            for (half, code) in [byte & 15, byte >> 4].into_iter().enumerate() {
                values[at + (first + 2 * pair + half) * outputs] = e2m1(code) * scale;
            }
        }
    }
    values
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
/// Blocks of a size that is given come before 2, and in place of 4.
///
/// Dimensions before the last two (experts) have a scale each, or 1 for all. A scale of fewer dimensions than the weight
/// leaves out trailing ones.
pub(super) fn block(weight: &[usize], scale: &[usize], told: Option<[usize; 2]>) -> Option<Vec<usize>> {
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
    let [side_rows, side_cols] = told.unwrap_or([BLOCK; 2]);
    let in_blocks = scale_rows == rows.div_ceil(side_rows) && scale_cols == cols.div_ceil(side_cols);
    let (block_rows, block_cols) = if told.is_some() && in_blocks {
        (side_rows, side_cols)
    } else if scale_rows == rows {
        let exact = scale_cols != 0 && cols.is_multiple_of(scale_cols);
        match exact || in_128(scale_cols, cols) {
            true => (1, if exact { cols / scale_cols } else { BLOCK }),
            false => return None,
        }
    } else if (scale_rows, scale_cols) == (1, 1) {
        (rows, cols)
    } else if in_blocks {
        (side_rows, side_cols)
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
