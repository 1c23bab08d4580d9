//! Matrices of weights as kernels read them: plain numbers, or codes with the scales of blocks of a row
//! (`kernels/lib/stored.cuh`). Activations are not stored, so a kernel computes the product with the decoded weights.

use safetensors::Dtype;

use super::Buffer;
use super::blocks::Blocks;
use super::data::{f32_bytes, float_bytes, floats, round_to};
use ulplab_core::formats::GlobalScale;

/// The block format of FP8 weights: E4M3, and an f32 scale for 64 columns of a row.
pub const FP8: &str = "fp8_b64_f32";

/// The storage of the elements of a matrix.
#[derive(Clone, Copy)]
pub enum Storage {
    /// f32 or bfloat16.
    Plain(Dtype),
    /// Codes with scales.
    Coded(&'static Blocks),
}

impl Storage {
    /// The storage that cases and entry points call `key`: `f32`, `bf16`, or the name of a block format.
    ///
    /// # Errors
    /// If no storage has that name.
    pub fn named(key: &str) -> Result<Self, String> {
        match key {
            "f32" => Ok(Self::Plain(Dtype::F32)),
            "bf16" => Ok(Self::Plain(Dtype::BF16)),
            _ => match Blocks::named(key) {
                Some(blocks) => Ok(Self::Coded(blocks)),
                None => Err(format!("no way to store weights is called '{key}'")),
            },
        }
    }

    /// Bits of an element, scales not counted.
    pub fn bits(self) -> Result<usize, String> {
        match self {
            Self::Plain(dtype) => Ok(dtype.bitsize()),
            Self::Coded(blocks) => Ok(blocks.format()?.element.bits as usize),
        }
    }

    /// Columns of a row that share a scale, if elements are E4M3 and scales f32.
    pub fn e4m3_columns(self) -> Option<usize> {
        match self {
            Self::Coded(blocks) if blocks.key == FP8 => Some(blocks.width),
            _ => None,
        }
    }
}

/// Matrices of one shape, one after the other.
pub struct Matrices {
    storage: Storage,
    cols: usize,
    codes: Vec<u8>,
    scales: Vec<u8>,
    /// For each matrix the number above the scales of its blocks; 1 where there is none.
    levels: Vec<f32>,
    /// The numbers that kernels read from the matrices.
    pub values: Vec<f32>,
}

impl Matrices {
    /// No matrices yet; their rows will have `cols` columns.
    pub fn new(storage: Storage, cols: usize) -> Self {
        Self {
            storage,
            cols,
            codes: Vec::new(),
            scales: Vec::new(),
            levels: Vec::new(),
            values: Vec::new(),
        }
    }

    /// Adds a matrix.
    ///
    /// # Errors
    /// If its rows cannot be stored in this way.
    pub fn push(&mut self, values: &[f32]) -> Result<(), String> {
        match self.storage {
            Storage::Plain(dtype) => {
                let mut values = values.to_vec();
                round_to(dtype, &mut values);
                self.codes.extend(float_bytes(dtype, &values));
                self.levels.push(1.0);
                self.values.extend(values);
            }
            Storage::Coded(blocks) => {
                let format = blocks.format()?;
                format.check(self.cols)?;
                let encoded = format.encode(values, self.cols, GlobalScale::Own);
                let level = floats(encoded.part("global"), 4)
                    .first()
                    .map_or(1.0, |level| *level as f32);
                let mut decoded = vec![0.0; values.len()];
                format.decode(&encoded, &mut decoded);
                self.codes.extend_from_slice(encoded.part("data"));
                self.scales.extend_from_slice(encoded.part("scale"));
                self.levels.push(level);
                self.values.extend(decoded);
            }
        }
        Ok(())
    }

    /// Adds matrices with `rows` rows that are stored already, in E4M3 with f32 scales.
    pub fn push_coded(&mut self, codes: &[u8], scales: &[f32], values: &[f32], rows: usize) {
        self.codes.extend_from_slice(codes);
        self.scales.extend(f32_bytes(scales));
        self.levels
            .resize(self.levels.len() + values.len() / (rows * self.cols), 1.0);
        self.values.extend_from_slice(values);
    }

    /// Adds matrices that are stored in the same way.
    pub fn append(&mut self, other: Self) {
        self.codes.extend(other.codes);
        self.scales.extend(other.scales);
        self.levels.extend(other.levels);
        self.values.extend(other.values);
    }

    /// Adds a matrix with this many elements that kernels must not read: all bits are set, which is NaN.
    pub fn push_poison(&mut self, elements: usize) -> Result<(), String> {
        let rows = elements / self.cols.max(1);
        let [codes, scales] = match self.storage {
            Storage::Plain(dtype) => [elements * dtype.bitsize() / 8, 0],
            Storage::Coded(blocks) => {
                let parts = blocks.format()?.parts(rows, self.cols);
                [&parts[0], &parts[1]].map(|part| part.shape.iter().product::<usize>() * part.dtype.bitsize() / 8)
            }
        };
        self.codes.resize(self.codes.len() + codes, 0xff);
        self.scales.resize(self.scales.len() + scales, 0xff);
        self.levels.push(f32::NAN);
        self.values.resize(self.values.len() + elements, f32::NAN);
        Ok(())
    }

    /// The buffers of codes and scales, `[lead.., rows, ..]`; a format without scales has one number for each matrix of the first
    /// dimension, which is not read.
    pub fn buffers(&self, [codes, scales]: [&'static str; 2], lead: &[usize]) -> Result<[Buffer; 2], String> {
        let shape = |cols: usize| [lead, &[cols]].concat();
        Ok(match self.storage {
            Storage::Plain(dtype) => [
                Buffer::input(codes, dtype, &shape(self.cols), self.codes.clone()),
                Buffer::f32(scales, &lead[..1], &vec![1.0; lead[0]]),
            ],
            Storage::Coded(blocks) => {
                let parts = blocks.format()?.parts(1, self.cols);
                let [data, scale] =
                    [&parts[0], &parts[1]].map(|part| (part.dtype, part.shape.iter().product::<usize>()));
                [
                    Buffer::input(codes, data.0, &shape(data.1), self.codes.clone()),
                    Buffer::input(scales, scale.0, &shape(scale.1), self.scales.clone()),
                ]
            }
        })
    }

    /// The buffer of the numbers above the scales.
    pub fn level_buffer(&self, name: &'static str, shape: &[usize]) -> Buffer {
        Buffer::f32(name, shape, &self.levels)
    }
}
