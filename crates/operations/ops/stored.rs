//! Storage of weight matrices for kernels: plain numbers, or codes with block scales (`kernels/lib/stored.cuh`). Kernels decode
//! the weights and multiply them by activations, which are not quantized.

use safetensors::Dtype;

use super::Buffer;
use super::blocks::Blocks;
use super::data::{f32_bytes, f32_values, float_bytes, round_to};
use ulplab_core::formats::GlobalScale;

/// Block format of FP8 weights: E4M3, with an f32 scale per 64 columns of a row.
pub const FP8: &str = "fp8_b64_f32";

/// Storage of a matrix's elements.
#[derive(Clone, Copy)]
pub enum Storage {
    /// Plain numbers, f32 or bfloat16.
    Plain(Dtype),
    /// Codes with block scales.
    Coded(&'static Blocks),
}

impl Storage {
    /// Finds a storage by `key`, its name in cases and entry points: `f32`, `bf16`, or the name of a block format.
    ///
    /// # Errors
    /// Returns an error if the name is unknown.
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

    /// Number of bits per element, without scales.
    pub fn bits(self) -> Result<usize, String> {
        match self {
            Self::Plain(dtype) => Ok(dtype.bitsize()),
            Self::Coded(blocks) => Ok(blocks.format()?.element.bits as usize),
        }
    }

    /// Number of columns that share a scale in the format [`FP8`] (E4M3 with f32 scales); `None` for other storages.
    pub fn e4m3_columns(self) -> Option<usize> {
        match self {
            Self::Coded(blocks) if blocks.key == FP8 => Some(blocks.width),
            _ => None,
        }
    }
}

/// Matrices of equal shape, stored one after the other.
pub struct Matrices {
    storage: Storage,
    cols: usize,
    codes: Vec<u8>,
    scales: Vec<u8>,
    /// For each matrix, the global scale that applies in addition to its block scales; 1 if the format has none.
    levels: Vec<f32>,
    /// Decoded elements of all matrices: the numbers that kernels compute with.
    pub values: Vec<f32>,
}

impl Matrices {
    /// Creates an empty list of matrices with `cols` columns.
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

    /// Encodes a matrix and appends it.
    ///
    /// # Errors
    /// Returns an error if the format does not support rows of this length.
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
                let level = f32_values(encoded.part("global"), Dtype::F32);
                let mut decoded = vec![0.0; values.len()];
                format.decode(&encoded, &mut decoded);
                self.codes.extend_from_slice(encoded.part("data"));
                self.scales.extend_from_slice(encoded.part("scale"));
                self.levels.push(level.first().copied().unwrap_or(1.0));
                self.values.extend(decoded);
            }
        }
        Ok(())
    }

    /// Appends matrices of `rows` rows that are already encoded in E4M3 with f32 scales; `values` are the decoded elements.
    pub fn push_coded(&mut self, codes: &[u8], scales: &[f32], values: &[f32], rows: usize) {
        self.codes.extend_from_slice(codes);
        self.scales.extend(f32_bytes(scales));
        self.levels
            .resize(self.levels.len() + values.len() / (rows * self.cols), 1.0);
        self.values.extend_from_slice(values);
    }

    /// Appends the matrices of `other`, which must have the same storage.
    pub fn append(&mut self, other: Self) {
        self.codes.extend(other.codes);
        self.scales.extend(other.scales);
        self.levels.extend(other.levels);
        self.values.extend(other.values);
    }

    /// Appends a matrix that kernels must not read. All of its bits are 1, which is NaN in every storage.
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

    /// Creates input buffers of codes and scales; `lead` has the dimensions before the columns. If the storage has no scales, the
    /// second buffer holds `lead[0]` numbers that kernels do not use.
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

    /// Input buffer of the global scales of all matrices.
    pub fn level_buffer(&self, name: &'static str, shape: &[usize]) -> Buffer {
        Buffer::f32(name, shape, &self.levels)
    }
}
