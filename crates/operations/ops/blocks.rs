//! Block formats that kernels support, and the buffers and test cases of operations on these formats.

use safetensors::Dtype;

use super::data::{Data, f32_values, round_to};
use super::grid::{self, Grid};
use super::judge::Judge;
use super::{Batch, Buffer, Case, Inputs, MOST_ELEMENTS, Parameters, Problem};
use ulplab_core::formats::{Encoded, Format, GlobalScale};

/// A block format for which kernels are compiled. `kernels/lib/formats.cuh` lists the same format under the same name (`key`).
pub struct Blocks {
    /// Name of the format in test cases, e.g. `nvfp4`.
    pub key: &'static str,
    /// Format string, which [`Blocks::format()`] parses.
    pub format: &'static str,
    /// Elements per block.
    pub width: usize,
    /// Groups of operations for which kernels of this format are timed.
    timed: &'static [Timed],
}

/// Groups of operations on block formats. `Blocks::timed` has the groups in which kernels of a format are timed.
#[derive(Clone, Copy, PartialEq)]
pub(super) enum Timed {
    Quantize,
    Dequantize,
    /// Operations that end with quantization, such as a norm with a quantized output.
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

/// Name of NVFP4 in test cases. Only this block format has a global scale in addition to its block scales.
pub const NVFP4: &str = "nvfp4";

/// Value of the input `amax`, from which kernels compute NVFP4's global scale: the largest magnitude of the tensor, as the user
/// states it. Some blocks have larger values on purpose.
pub const AMAX: f32 = 3.0;

/// The global scale of a tensor whose stated largest magnitude is [`AMAX`].
pub(super) const STATED: GlobalScale<'static> = GlobalScale::Stored(&[AMAX]);

impl Blocks {
    /// Finds the block format that a case names.
    ///
    /// # Errors
    /// Returns an error if the case names an unknown format.
    pub fn for_case(case: &Case) -> Result<&'static Self, String> {
        let key = case.key("format");
        Self::named(key).ok_or_else(|| format!("case {}: no block format '{key}'", case.name))
    }

    /// The block format that test cases call `key`; `None` if the name is unknown.
    pub fn named(key: &str) -> Option<&'static Self> {
        BLOCKS.iter().find(|blocks| blocks.key == key)
    }

    /// True if kernels for this operation, format and element type are timed.
    pub(super) fn timed(&self, operation: Timed, dtype: &str) -> bool {
        dtype == "bf16" && self.timed.contains(&operation)
    }

    /// Creates an empty list of `[T, C]` cases (a [`Grid`]) with this format and element type. `edges` names the set of edge
    /// values.
    pub(super) fn matrices(&self, dtype: &str, edges: &str) -> Grid<'static, [i64; 2]> {
        let keys = [("format", self.key), ("dtype", dtype), ("edges", edges)];
        grid::matrices(format!("{}.{dtype}", self.key), &keys).also("W", self.width as i64)
    }

    /// Parses the format string.
    ///
    /// # Errors
    /// Returns an error if the format string is invalid.
    pub fn format(&self) -> Result<Format, String> {
        self.format.parse()
    }

    /// Creates output buffers for the codes and scales of a matrix `[rows, cols]`.
    pub fn outputs(&self, rows: usize, cols: usize) -> Result<Vec<Buffer>, String> {
        let parts = self.format()?.parts(rows, cols).into_iter().take(2);
        Ok(parts
            .map(|part| Buffer::output(part.name, part.dtype, &part.shape))
            .collect())
    }

    /// Creates input buffers with these codes and scales.
    pub fn inputs(&self, encoded: Encoded) -> Vec<Buffer> {
        let parts = encoded.parts.into_iter().take(2);
        parts
            .map(|part| Buffer::input(part.name, part.dtype, &part.shape, part.bytes))
            .collect()
    }
}

/// Makes the cases of every combination of a block format and an element type.
pub(super) fn blocks_and_types(cases: impl Fn(&Blocks, &str) -> Vec<Case>) -> Vec<Case> {
    let blocks: Vec<&Blocks> = BLOCKS.iter().collect();
    grid::pairs(&blocks, &["bf16", "f32"], cases)
}

/// The parameters that a user's case may set for an operation on rows of a block format.
pub fn rows_of_blocks(cases: &[Case]) -> Parameters {
    Parameters::new(cases, &["T", "C"], &["format", "dtype"])
}

/// Checks that the case's format supports rows of `C` elements, and that `T * C` is at most [`MOST_ELEMENTS`].
pub fn check(case: &Case) -> Result<(), String> {
    let [rows, cols] = case.sizes(["T", "C"]);
    if rows.checked_mul(cols).is_none_or(|elements| elements > MOST_ELEMENTS) {
        return Err(format!(
            "T = {rows}, C = {cols}, expected at most {MOST_ELEMENTS} elements"
        ));
    }
    Blocks::for_case(case)?.format()?.check(cols)
}

/// Input buffer `amax` with the value [`AMAX`]. Kernels of formats without a global scale ignore this buffer.
pub fn amax_input() -> Buffer {
    Buffer::input("amax", Dtype::F32, &[1], AMAX.to_le_bytes().into())
}

/// Builds the problem of an operation that quantizes its result. `want` is the exact result before quantization, and `error`
/// bounds the kernel's error before quantization. The first buffer of `buffers` is the input with `T` rows.
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

/// Creates the input buffer `name` with the shape `[T, cols]` and the case's element type. Also returns its rounded values as
/// f32.
pub fn numbers(name: &'static str, case: &Case, cols: usize, data: &Data) -> Result<(Buffer, Vec<f32>), String> {
    let (rows, dtype) = (case.dim("T"), case.float_type("dtype"));
    if let Some(bytes) = data.given(case, name, dtype, &[rows, cols])? {
        let values = f32_values(&bytes, dtype);
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

/// Draws from N(0, 1), with a few much larger channels and a different magnitude for each row.
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

/// Returns a test value for a block whose scale is 7. The value 7 · 448 sets this scale. All other values are 7 times an E4M3
/// code, or 7 times a tie (midway between two codes). A kernel that multiplies by the rounded 1/7 instead of dividing by 7 misses
/// the tie.
pub(super) fn tie_by_seven(i: usize) -> f32 {
    7.0 * if i.is_multiple_of(16) { 448.0 } else { (i % 32) as f32 }
}

/// Draws rows of edge values, one kind per row; `which` selects the kinds. With `finite`, squares of all values are finite.
/// `special` adds NaN and infinities, `infinite` adds infinities only, and `all` also has values up to the largest f32.
fn edges(name: &str, rows: usize, cols: usize, which: &str, data: &Data) -> Result<Vec<f32>, String> {
    let kinds = match which {
        "finite" => 9,
        "special" => 11,
        // Same as `special`, but with a normal number in place of each NaN.
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
                // Kinds 2 and 3 have ties: of E2M1 with the scale 1, and of E4M3 with power-of-two scales.
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
                // Numbers so small that the scales of their blocks are near the smallest powers of two.
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
