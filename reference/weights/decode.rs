//! Conversion of the bytes of a tensor to f32.

use std::borrow::Cow;

use safetensors::Dtype;
use safetensors::Dtype::*;

use crate::tensorfile::e8m0;

/// Default number of rows and columns of a block that shares a scale, as in DeepSeek's checkpoints.
const BLOCK: usize = 128;

/// Supported types of weights.
pub(super) const FLOATS: &[Dtype] = &[F64, F32, BF16, F16, F8_E4M3, F8_E5M2];
/// Supported types of scales.
pub(super) const SCALES: &[Dtype] = &[F32, BF16, F16, F8_E8M0, U8];
/// Supported types of integers.
pub(super) const INTEGERS: &[Dtype] = &[U8, I8, U16, I16, U32, I32, U64, I64];
/// Types of weights that need a scale.
pub(super) const SCALED: &[Dtype] = &[F8_E4M3, F8_E5M2];
/// Types in which E8M0 scales are stored; many programs store E8M0 as U8.
pub(super) const POWERS: &[Dtype] = &[F8_E8M0, U8];
/// Types that may store two E2M1 codes per byte.
pub(super) const PAIRS: &[Dtype] = &[U8, I8];

/// Magnitudes of E2M1 by the lower three bits of the code; the fourth bit is the sign.
const E2M1: [f32; 8] = [0.0, 0.5, 1.0, 1.5, 2.0, 3.0, 4.0, 6.0];

/// Decodes an E2M1 code.
fn e2m1(code: u8) -> f32 {
    let magnitude = E2M1[usize::from(code & 7)];
    if code & 8 == 0 { magnitude } else { -magnitude }
}

/// Decodes pairs of E2M1 codes, without scales. The first code of a pair is in the lower half of its byte.
pub(super) fn e2m1_pairs(bytes: &[u8]) -> Vec<f32> {
    bytes.iter().flat_map(|byte| [byte & 15, byte >> 4]).map(e2m1).collect()
}

/// Decodes a stack of matrices from blocks of MXFP4 as stored by gpt-oss: codes `[count, outputs, blocks, 16]`, two per byte
/// with the first in the lower half, and E8M0 scales `[count, outputs, blocks]`. Returns the matrices transposed,
/// `[count, 32 · blocks, outputs]`: the 32 elements of a block become consecutive rows of one column.
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

/// Returns the size of the blocks that share a scale, by dimension, derived from the shapes of a weight and of its scales;
/// `None` if the shapes do not match. The first matching rule applies:
///
/// 1. one scale in total: the whole tensor;
/// 2. as many rows of scales as of weights (`[out, n]`, or `[out]` for `n = 1`): `in / n` columns of a row if that is a
///    whole number, else 128 columns if `n = ⌈in / 128⌉`;
/// 3. `[1, 1]` after the expert dimensions: the whole matrix;
/// 4. `[⌈out / 128⌉, ⌈in / 128⌉]`: blocks of 128 × 128.
///
/// If the block size is `given`, blocks of this size are checked before rule 2, and replace rule 4.
///
/// The dimensions before the last two are experts. Each expert has its own scales, or all experts share the scales if the tensor
/// of scales has size 1 in these dimensions. If the scales have fewer dimensions than the weight, sizes of 1 are appended.
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
