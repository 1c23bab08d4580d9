//! Arrays in device memory that kernels read and write.

use safetensors::Dtype;

use super::data;

/// An array in device memory.
#[derive(Clone, Debug)]
pub struct Buffer {
    /// Name by which kernel arguments refer to the buffer, e.g. `x`.
    pub name: &'static str,
    /// Kind of access: read, write, or update in place.
    pub role: Role,
    /// Type of the elements; packed codes are bytes.
    pub dtype: Dtype,
    /// Shape, counted in elements of `dtype`.
    pub shape: Vec<usize>,
    /// Contents before the run, little-endian; empty for outputs. If these are fewer bytes than `shape` needs, the buffer holds
    /// repetitions of them.
    pub bytes: Vec<u8>,
}

/// Access of kernels to a buffer: read, write, or update in place.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Role {
    /// Input: the kernel only reads the buffer, and its bytes must not change.
    In,
    /// Output: the kernel must write every byte.
    Out,
    /// The kernel updates the buffer in place.
    InOut,
}

impl Buffer {
    /// Creates an input with little-endian contents.
    ///
    /// # Panics
    ///
    /// Panics if the length of `bytes` does not match `shape` and `dtype`.
    pub fn input(name: &'static str, dtype: Dtype, shape: &[usize], bytes: Vec<u8>) -> Self {
        let buffer = Self {
            name,
            role: Role::In,
            dtype,
            shape: shape.into(),
            bytes,
        };
        assert_eq!(buffer.bytes.len(), buffer.size(), "bytes of '{name}'");
        buffer
    }

    /// Creates an input of f32 values.
    pub fn f32(name: &'static str, shape: &[usize], values: &[f32]) -> Self {
        Self::input(name, Dtype::F32, shape, data::f32_bytes(values))
    }

    /// Creates an input of bfloat16 values, rounded to nearest even.
    pub fn bf16(name: &'static str, shape: &[usize], values: &[f32]) -> Self {
        Self::input(name, Dtype::BF16, shape, data::bf16_bytes(values))
    }

    /// Creates an input of i32 values.
    pub fn i32(name: &'static str, shape: &[usize], values: &[i32]) -> Self {
        Self::input(name, Dtype::I32, shape, data::i32_bytes(values))
    }

    /// Creates a one-dimensional input of i32 values if `size` is 4, else of i64 values.
    pub fn integers(name: &'static str, size: usize, values: impl IntoIterator<Item = i64>) -> Self {
        let dtype = if size == 4 { Dtype::I32 } else { Dtype::I64 };
        let bytes = values.into_iter().flat_map(|x| x.to_le_bytes().into_iter().take(size));
        let bytes: Vec<u8> = bytes.collect();
        Self::input(name, dtype, &[bytes.len() / size], bytes)
    }

    /// Creates an input of f32 or bfloat16 values (`dtype`); values for bfloat16 are rounded to nearest even.
    pub fn floats(name: &'static str, dtype: Dtype, shape: &[usize], values: &[f32]) -> Self {
        Self::input(name, dtype, shape, data::float_bytes(dtype, values))
    }

    /// Creates an output. Its contents before the run do not matter.
    pub fn output(name: &'static str, dtype: Dtype, shape: &[usize]) -> Self {
        Self {
            name,
            role: Role::Out,
            dtype,
            shape: shape.into(),
            bytes: Vec::new(),
        }
    }

    /// Creates a buffer that kernels update in place; `bytes` are its contents before the run.
    ///
    /// # Panics
    ///
    /// Panics if the length of `bytes` does not match `shape` and `dtype`.
    pub fn in_place(name: &'static str, dtype: Dtype, shape: &[usize], bytes: Vec<u8>) -> Self {
        Self {
            role: Role::InOut,
            ..Self::input(name, dtype, shape, bytes)
        }
    }

    /// Size in bytes.
    pub fn size(&self) -> usize {
        self.shape.iter().product::<usize>() * self.dtype.bitsize() / 8
    }
}

/// Names and contents, after a run, of all buffers that a kernel writes.
#[derive(Clone, Debug, Default)]
pub struct Outputs(pub Vec<(&'static str, Vec<u8>)>);

impl Outputs {
    /// The bytes of an output.
    ///
    /// # Panics
    /// Panics if no output has this name.
    pub fn get(&self, name: &str) -> &[u8] {
        let found = self.0.iter().find(|(output, _)| *output == name);
        found
            .map(|(_, bytes)| &bytes[..])
            .unwrap_or_else(|| panic!("no output '{name}'"))
    }
}
