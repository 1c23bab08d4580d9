//! From the bytes of a tensor to f32.

use std::borrow::Cow;

use safetensors::Dtype;
use safetensors::Dtype::*;

use crate::tensorfile::e8m0;

/// Side of the blocks that share a scale where the shape of the scales leaves it open, as in DeepSeek's checkpoints.
const BLOCK: usize = 128;

/// Types of weights that are read.
pub(super) const FLOATS: &[Dtype] = &[F64, F32, BF16, F16, F8_E4M3, F8_E5M2];
/// Types of scales that are read.
pub(super) const SCALES: &[Dtype] = &[F32, BF16, F16, F8_E8M0, U8];
/// Types of integers that are read.
pub(super) const INTEGERS: &[Dtype] = &[U8, I8, U16, I16, U32, I32, U64, I64];
/// Types whose values mean nothing without a scale.
pub(super) const SCALED: &[Dtype] = &[F8_E4M3, F8_E5M2];
/// Types of E8M0 scales, which many writers store as bytes.
pub(super) const POWERS: &[Dtype] = &[F8_E8M0, U8];
/// Types that may hold two codes of E2M1 to a byte.
pub(super) const PAIRS: &[Dtype] = &[U8, I8];

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

/// The number of elements of each dimension of a weight that share a scale, from the two shapes; `None` if they do
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
pub(super) fn block(weight: &[usize], scale: &[usize], given: Option<[usize; 2]>) -> Option<Vec<usize>> {
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
    let [side_rows, side_cols] = given.unwrap_or([BLOCK; 2]);
    let in_blocks = scale_rows == rows.div_ceil(side_rows) && scale_cols == cols.div_ceil(side_cols);
    let (block_rows, block_cols) = if given.is_some() && in_blocks {
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
