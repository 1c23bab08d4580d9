//! Operands of matrix products that are stored as codes with scales: one scale per tensor, row, column or block.
//!
//! Error bound: a kernel may multiply every element by its scale before it adds, the sum of a block by the product of two scales,
//! or the whole sum by a scale. Each way rounds at most three times, and the terms of a block may share these roundings. With the
//! unit roundoff u and terms t, the error is at most 3u·|sum| for roundings after the addition, and at most 3u·Σ|t| for roundings
//! before it.
//!
//! Let S_b be the sum of block b, which has g terms: S_b² ≤ g·Σ_{t∈b} t² (Cauchy and Schwarz). If roundings of different blocks
//! are independent, the roundings before the addition give an error of λ·3u·√(Σ_b S_b²) (λ is [`LAMBDA`]). If M roundings are
//! equal, Σ_b S_b² is multiplied by M/3. If all terms share the same scales, kernels scale the whole sum or each term, but not
//! the sums of blocks: then g = 1.

use reference::LAMBDA;

use super::sum::Terms;
use super::{Call, Tensor};
use ulplab_core::formats::E2M1;

/// An operand of a matrix product: its numbers times their scales, and the size of its scale blocks along K.
pub struct Operand {
    /// Shape: the batch dimensions, then the two dimensions of a matrix.
    pub shape: Vec<usize>,
    /// Elements, multiplied by their scales.
    pub data: Vec<f64>,
    /// Number of elements along K that share a scale; `None` without scales.
    pub block: Option<usize>,
}

/// Grid of scales over the last two dimensions of an operand.
struct Scales<'a> {
    data: &'a [f64],
    /// True if every matrix of a batch has its own grid.
    batched: bool,
    /// Number of blocks along the outer dimension (rows of a, columns of b), and along K.
    counts: [usize; 2],
    /// Number of elements of a block along the outer dimension, and along K.
    blocks: [usize; 2],
    k_last: bool,
}

impl Scales<'_> {
    /// Returns the scale of an element; with a fault, the scale of another element. `fault` is the fault's name without the
    /// letter of the operand, e.g. `_scale_of_next_block`.
    fn at(&self, batch: usize, [outer, k]: [usize; 2], fault: &str) -> f64 {
        let [outers, ks] = self.counts;
        let mut outer = outer / self.blocks[0] % outers.max(1);
        let mut k = k / self.blocks[1] % ks.max(1);
        match fault {
            "_scale_of_next_block" => k = (k + 1) % ks.max(1),
            "_scale_of_next_row" | "_scale_of_next_column" => outer = (outer + 1) % outers.max(1),
            _ => (),
        }
        let by_rows = self.k_last != (fault == "_scale_transposed");
        let at = if by_rows { outer * ks + k } else { k * outers + outer };
        let grid = if self.batched { batch * outers * ks } else { 0 };
        self.data.get(grid + at).copied().unwrap_or(1.0)
    }
}

/// Returns the possible block sizes (elements per scale) if `count` scales cover the `size` elements of a dimension. A single
/// scale covers all elements. If `stated` is not 0, it is the only candidate. Otherwise the candidates are a power of two (the
/// last block may be partial), and `size` / `count`.
fn blocks(size: usize, count: usize, stated: usize) -> Vec<usize> {
    if count == 1 {
        return vec![size.max(1)];
    }
    let fits = |block: &usize| size.div_ceil(*block) == count;
    if stated > 0 {
        return [stated].into_iter().filter(fits).collect();
    }
    let powers = (0..usize::BITS - 1).map(|power| 1usize << power);
    let power = powers.take_while(|block| *block <= size.max(1)).find(fits);
    let equal = (count > 0 && size.is_multiple_of(count)).then(|| (size / count).max(1));
    let mut found: Vec<usize> = power.into_iter().chain(equal).collect();
    found.dedup();
    found
}

/// Returns the operand `name` (a or b): decodes its codes and multiplies the numbers by their scales.
///
/// # Errors
/// Returns an error if shapes do not fit, or if codes are not bytes.
pub fn operand(call: &Call, name: &str) -> Result<Operand, String> {
    let (shape, mut data) = decoded(call, name)?;
    let other_name = if name == "a" { "b" } else { "a" };
    let (own, other) = (scales(call, name)?, scales(call, other_name)?);
    let block = own.as_ref().map(|own| own.blocks[1]);
    let Some(k_last) = own.as_ref().map(|own| own.k_last) else {
        return Ok(Operand { shape, data, block });
    };
    let read = call.pick(&format!("{other_name}_scale_for_{name}"), other, own);
    let fault = call.fault.unwrap_or_default();
    let fault = fault.strip_prefix(name).unwrap_or_default();
    let [rows, cols] = [shape[shape.len() - 2], shape[shape.len() - 1]];
    for (row_at, row) in data.chunks_exact_mut(cols.max(1)).enumerate() {
        let (batch, row_at) = (row_at / rows, row_at % rows);
        for (col, x) in row.iter_mut().enumerate() {
            let place = if k_last { [row_at, col] } else { [col, row_at] };
            *x *= read.as_ref().map_or(1.0, |scales| scales.at(batch, place, fault));
        }
    }
    Ok(Operand { shape, data, block })
}

/// Returns the shape and the decoded numbers of an operand, before they are multiplied by scales.
fn decoded(call: &Call, name: &str) -> Result<(Vec<usize>, Vec<f64>), String> {
    let tensor = call.tensor(name);
    let Tensor { shape, data } = tensor;
    let of = call.operation().name;
    call.require(shape.len() >= 2, name, "a matrix or several")?;
    if call.word(&format!("{name}_codes")) != "e2m1" {
        return Ok((shape.clone(), data.clone()));
    }
    if !k_last(call, name) {
        return Err(format!(
            "{of}: {name}_codes = \"e2m1\" with b_rows = \"k\", expected b_rows = \"n\": two codes of a byte are neighbours along K"
        ));
    }
    if let Some(x) = data.iter().find(|x| !(0.0..256.0).contains(*x) || x.fract() != 0.0) {
        return Err(format!(
            "{of}: '{name}' has an element {x}, expected bytes (uint8) of two E2M1 codes each"
        ));
    }
    let numbers = data.iter().flat_map(|byte| {
        let byte = *byte as u8;
        [byte & 15, byte >> 4].map(|code| f64::from(E2M1.decode(code.into())))
    });
    let mut shape = shape.clone();
    *shape.last_mut().expect("it has two dimensions") *= 2;
    Ok((shape, numbers.collect()))
}

/// Returns true if K is the last dimension of an operand.
fn k_last(call: &Call, name: &str) -> bool {
    name == "a" || call.word("b_rows") == "n"
}

/// Returns the scales of an operand; `None` if the call has no scales for it.
fn scales<'a>(call: &'a Call, name: &str) -> Result<Option<Scales<'a>>, String> {
    let Some(scale) = call.optional(&format!("{name}_scale")) else {
        return Ok(None);
    };
    let (mut shape, k_last) = (call.tensor(name).shape.clone(), k_last(call, name));
    if call.word(&format!("{name}_codes")) == "e2m1" {
        shape.last_mut().into_iter().for_each(|size| *size *= 2);
    }
    call.require(shape.len() >= 2, name, "a matrix or several")?;
    let (lead, last) = shape.split_at(shape.len() - 2);
    let [outer, k] = if k_last { [last[0], last[1]] } else { [last[1], last[0]] };
    let dims = scale.shape.len();
    let counts = match scale.shape[..] {
        [] | [1] => Some([1, 1]),
        [each] if each == outer => Some([outer, 1]),
        [.., rows, cols] if dims == 2 || scale.shape[..dims - 2] == *lead => {
            Some(if k_last { [rows, cols] } else { [cols, rows] })
        }
        _ => None,
    };
    let (operation, found) = (call.operation().name, &scale.shape);
    let of = format!("{operation}: '{name}_scale' is {found:?} for {name} of {shape:?}");
    let misfit = || format!("{of}, expected one number, {outer} of them, or {lead:?} and a grid of blocks of {last:?}");
    let counts = counts.ok_or_else(misfit)?;
    let mut sizes = [0; 2];
    let axes = [(outer, if name == "a" { "m_block" } else { "n_block" }), (k, "k_block")];
    for (((size, axis), count), block) in axes.into_iter().zip(counts).zip(&mut sizes) {
        let stated = call.number(axis);
        if !(stated >= 0.0 && stated.fract() == 0.0) {
            return Err(format!("{operation}: {axis} = {stated}, expected a whole number"));
        }
        *block = match blocks(size, count, stated as usize)[..] {
            [block] => block,
            [] if stated > 0.0 => {
                return Err(format!(
                    "{of}: {count} scales for {size} elements, where {axis} = {stated}"
                ));
            }
            [] => return Err(misfit()),
            [power, equal, ..] => {
                return Err(format!(
                    "{of}: {count} scales for {size} elements are of {power} elements each, the last of fewer, or of {equal}; say \
                     {axis} = {power} or {axis} = {equal}"
                ));
            }
        };
    }
    Ok(Some(Scales {
        data: &scale.data,
        batched: dims > 2,
        counts,
        blocks: sizes,
        k_last,
    }))
}

/// Returns the error bound that multiplications by scales add to a sum. Each block of `block` terms shares a scale.
pub fn error(terms: &Terms, block: usize, u: f64) -> f64 {
    let block = block as f64;
    let shared = if block < terms.count { block } else { 1.0 };
    // Equal terms have equal roundings. A rounding is uniform, so its mean square is a third of the square of its largest value.
    let equal = (terms.multiplicity / 3.0).max(1.0);
    let before = terms.magnitudes.min(LAMBDA * (shared * equal * terms.squares).sqrt());
    3.0 * u * (terms.sum.abs() + before)
}
