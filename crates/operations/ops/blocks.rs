//! Block formats of operations: the list of formats, inputs and outputs.

use safetensors::Dtype;

use super::data::{Data, f32_values, round_to};
use super::grid::{self, Grid};
use super::judge::Judge;
use super::{Batch, Buffer, Case, Inputs, MOST_ELEMENTS, Parameters, Problem};
use ulplab_core::formats::{Encoded, Format, GlobalScale};

/// A block format that kernels are compiled for; `kernels/lib/formats.cuh` uses the same name.
pub struct Blocks {
    /// Its name in keys of cases.
    pub key: &'static str,
    /// The format string.
    pub format: &'static str,
    /// Elements per block.
    pub width: usize,
    /// The operations that are timed in it.
    timed: &'static [Timed],
}

/// Operations on block formats, as far as it is decided for each format whether they are timed.
#[derive(Clone, Copy, PartialEq)]
pub(super) enum Timed {
    Quantize,
    Dequantize,
    /// Operations that end in quantized rows.
    Fused,
}
use Timed::{Dequantize, Fused, Quantize};

const fn blocks(key: &'static str, format: &'static str, width: usize, timed: &'static [Timed]) -> Blocks {
    Blocks {
        key,
        format,
        width,
        timed,
    }
}

/// All block formats that kernels are compiled for.
pub const BLOCKS: &[Blocks] = &[
    blocks(
        "fp8_b128_f32",
        "e4m3/b128:f32(deepgemm)",
        128,
        &[Quantize, Dequantize, Fused],
    ),
    blocks("fp8_b64_f32", "e4m3/b64:f32(deepgemm)", 64, &[]),
    blocks("fp8_b128", "e4m3/b128:e8m0(act_quant)", 128, &[Quantize, Fused]),
    blocks("fp8_b64", "e4m3/b64:e8m0(act_quant)", 64, &[]),
    blocks("fp8_b128_rceil", "e4m3/b128:e8m0", 128, &[]),
    blocks("fp8_b64_rceil", "e4m3/b64:e8m0", 64, &[]),
    blocks("mxfp8", "e4m3/b32:e8m0", 32, &[Quantize, Dequantize, Fused]),
    blocks("mxfp4", "e2m1/b32:e8m0(fp4_act_quant)", 32, &[Quantize]),
    blocks(NVFP4, "e2m1/b16:e4m3/t:f32", 16, &[Quantize, Dequantize, Fused]),
];

/// The format with a global scale above its block scales.
pub const NVFP4: &str = "nvfp4";

/// The largest magnitude from which NVFP4's global scale is computed if it is an input. Some blocks exceed it.
pub const AMAX: f32 = 3.0;

impl Blocks {
    /// The format of a case.
    ///
    /// # Errors
    /// If the case names another one.
    pub fn for_case(case: &Case) -> Result<&'static Self, String> {
        let key = case.key("format");
        Self::named(key).ok_or_else(|| format!("case {}: no block format '{key}'", case.name))
    }

    /// The format that cases call `key`; `None` if there is none.
    pub fn named(key: &str) -> Option<&'static Self> {
        BLOCKS.iter().find(|blocks| blocks.key == key)
    }

    /// True if an operation is timed in this format on elements of a type.
    pub(super) fn timed(&self, operation: Timed, dtype: &str) -> bool {
        dtype == "bf16" && self.timed.contains(&operation)
    }

    /// Cases of matrices in this format and type of elements; `edges` names the edge values.
    pub(super) fn matrices(&self, dtype: &str, edges: &str) -> Grid<'static, [i64; 2]> {
        let keys = [("format", self.key), ("dtype", dtype), ("edges", edges)];
        grid::matrices(format!("{}.{dtype}", self.key), &keys).also("W", self.width as i64)
    }

    /// The format itself.
    ///
    /// # Errors
    /// If the format string is not one.
    pub fn format(&self) -> Result<Format, String> {
        self.format.parse()
    }

    /// Encodes `[rows, cols]`. Formats with a global scale use the largest magnitude `amax` if there is one, else the
    /// tensor's own.
    pub fn encode(&self, x: &[f32], cols: usize, amax: Option<f32>) -> Result<Encoded, String> {
        let stored = [amax.unwrap_or(AMAX)];
        let global = match amax {
            Some(_) => GlobalScale::Stored(&stored),
            None => GlobalScale::Own,
        };
        Ok(self.format()?.encode(x, cols, global))
    }

    /// Output buffers for the codes and scales of `[rows, cols]`.
    pub fn outputs(&self, rows: usize, cols: usize) -> Result<Vec<Buffer>, String> {
        let parts = self.format()?.parts(rows, cols).into_iter().take(2);
        Ok(parts
            .map(|part| Buffer::output(part.name, part.dtype, &part.shape))
            .collect())
    }

    /// Input buffers for codes and scales.
    pub fn inputs(&self, encoded: Encoded) -> Vec<Buffer> {
        let parts = encoded.parts.into_iter().take(2);
        parts
            .map(|part| Buffer::input(part.name, part.dtype, &part.shape, part.bytes))
            .collect()
    }
}

/// Cases for every combination of block format and type of elements.
pub(super) fn blocks_and_types(cases: impl Fn(&Blocks, &str) -> Vec<Case>) -> Vec<Case> {
    let blocks: Vec<&Blocks> = BLOCKS.iter().collect();
    grid::pairs(&blocks, &["bf16", "f32"], cases)
}

/// The parameters that a user's case may set for an operation on rows of a block format.
pub fn rows_of_blocks(cases: &[Case]) -> Parameters {
    Parameters::new(cases, &["T", "C"], &["format", "dtype"])
}

/// Checks that rows of the case can be stored in its format, and that they fit in memory.
pub fn check(case: &Case) -> Result<(), String> {
    let [rows, cols] = case.sizes(["T", "C"]);
    if rows.checked_mul(cols).is_none_or(|elements| elements > MOST_ELEMENTS) {
        return Err(format!(
            "T = {rows}, C = {cols}, expected at most {MOST_ELEMENTS} elements"
        ));
    }
    Blocks::for_case(case)?.format()?.check(cols)
}

/// The input buffer with the given largest magnitude. Formats without a global scale do not read it.
pub fn amax_input() -> Buffer {
    Buffer::input("amax", Dtype::F32, &[1], AMAX.to_le_bytes().into())
}

/// The problem of an operation that ends in quantized rows: numbers that are `want` within an error, in the format of the case. The first
/// input has the rows.
pub(super) fn quantized(
    case: &Case,
    mut buffers: Vec<Buffer>,
    want: Vec<f64>,
    error: impl Fn(usize, f64) -> f64 + Send + Sync + 'static,
    why: String,
) -> Result<Problem, String> {
    let ([rows, cols], blocks) = (case.sizes(["T", "C"]), Blocks::for_case(case)?);
    let batch = Batch::new("T", &[buffers[0].name, "data", "scale"]);
    buffers.push(amax_input());
    buffers.extend(blocks.outputs(rows, cols)?);
    let judge = Judge::admissible((blocks.format()?, blocks.width, AMAX), cols, want, error, why);
    Ok(Problem {
        batch: Some(batch),
        ..Problem::new(buffers, vec![judge])
    })
}

/// The input `[T, cols]` of a case in its type, and its values as f32.
pub fn numbers(name: &'static str, case: &Case, cols: usize, data: &Data) -> Result<(Buffer, Vec<f32>), String> {
    let (rows, dtype) = (case.dim("T"), case.float_type("dtype"));
    if let Some(bytes) = data.given(case, name, dtype, &[rows, cols])? {
        let values = f32_values(&bytes, dtype.bitsize() / 8);
        return Ok((Buffer::input(name, dtype, &[rows, cols], bytes), values));
    }
    let mut values = match case.inputs {
        Inputs::Random | Inputs::Weights | Inputs::File(_) => random(name, rows, cols, data),
        Inputs::Edges => edges(name, rows, cols, case.key("edges"), data)?,
        Inputs::Site(site) => data.site_rows(site, rows, cols)?,
    };
    round_to(dtype, &mut values);
    Ok((Buffer::floats(name, dtype, &[rows, cols], &values), values))
}

/// N(0, 1) with a few much larger channels and rows of different magnitudes.
fn random(name: &str, rows: usize, cols: usize, data: &Data) -> Vec<f32> {
    use rayon::prelude::*;
    let mut x = data.normal(name, rows * cols);
    x.par_chunks_mut(cols.max(1)).enumerate().for_each(|(row, x)| {
        let size = 2f32.powi((row % 7) as i32 - 4);
        for (channel, x) in x.iter_mut().enumerate() {
            *x *= if channel % 97 == 13 { 30.0 * size } else { size };
        }
    });
    x
}

/// Seven times 448, and seven times codes and ties of E4M3: multiplied by the reciprocal of the scale 7, ties are ties no more.
pub(super) fn tie_by_seven(i: usize) -> f32 {
    7.0 * if i.is_multiple_of(16) { 448.0 } else { (i % 32) as f32 }
}

/// Rows with one difficulty each. `finite` rows have finite squares, `special` rows may have NaN and infinities, `infinite` rows only
/// infinities, and `all` also has numbers up to the largest.
fn edges(name: &str, rows: usize, cols: usize, which: &str, data: &Data) -> Result<Vec<f32>, String> {
    let kinds = match which {
        "finite" => 9,
        "special" => 11,
        // The same kinds of rows as `special`, but with a normal number in place of each NaN.
        "infinite" => 11,
        "all" => 13,
        other => return Err(format!("no edges '{other}'")),
    };
    let normal = data.normal(name, rows * cols);
    let bits = data.words(name, rows * cols);
    let sign = |i: usize| if i.is_multiple_of(3) { -1.0 } else { 1.0 };
    let mut x = vec![0.0; rows * cols];
    for (row, x) in x.chunks_mut(cols.max(1)).enumerate() {
        let special = row / kinds % cols;
        for (i, x) in x.iter_mut().enumerate() {
            let at = row * cols + i;
            *x = match row % kinds {
                0 => sign(i) * 0.0,
                1 => normal[at],
                // Ties of E2M1 with the scale 1, and ties of E4M3 with power-of-two scales.
                2 => sign(i) * (i % 25) as f32 * 0.25,
                3 if row / kinds % 2 == 0 => {
                    sign(i)
                        * if i.is_multiple_of(16) {
                            448.0
                        } else {
                            (i % 61) as f32 * 7.5
                        }
                }
                3 => sign(i) * tie_by_seven(i),
                // One nonzero element per row, of various magnitudes.
                4 if i == special => 2f32.powi(row as i32 % 40 - 20),
                4 => 0.0,
                // Magnitudes whose scales are near the smallest powers of two.
                5 => normal[at] * 2f32.powi(-119 - (i / 128 % 8) as i32),
                6 => f32::from_bits(bits[at] & 0x807f_ffff),
                // Blocks of very small numbers next to blocks of large ones.
                7 => normal[at] * 2f32.powi(-(i as i32 / 16 % 60)),
                8 => f32::from_bits(0x3f7f_ffff + (i % 3) as u32) * 448.0 * 2f32.powi(i as i32 / 128 % 20 - 10),
                9 if i == special && which != "infinite" => f32::NAN.copysign(sign(row)),
                10 if i == special => f32::INFINITY.copysign(sign(row)),
                9 | 10 => normal[at],
                11 => sign(i) * f32::MAX * 0.99,
                _ => f32::from_bits(bits[at]),
            };
        }
    }
    Ok(x)
}
