//! Arrays in device memory that kernels read and write.

use safetensors::Dtype;

use super::data;

/// An array in device memory.
#[derive(Clone, Debug)]
pub struct Buffer {
    /// Name in the arguments of variants, e.g. `x`.
    pub name: &'static str,
    /// The kind of access that kernels have.
    pub role: Role,
    /// Type of the elements; packed codes are bytes.
    pub dtype: Dtype,
    /// Shape in elements of `dtype`.
    pub shape: Vec<usize>,
    /// The contents before the run, little-endian; empty for outputs. They repeat if the buffer is larger.
    pub bytes: Vec<u8>,
}

/// The access of kernels to a buffer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Role {
    /// The kernel only reads it: it must be unchanged.
    In,
    /// The kernel must write every byte.
    Out,
    /// The kernel changes it in place.
    InOut,
}

impl Buffer {
    /// An input with these contents, little-endian.
    ///
    /// # Panics
    ///
    /// If `bytes` has another length than `shape` and `dtype` require.
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

    /// An input of f32 values.
    pub fn f32(name: &'static str, shape: &[usize], values: &[f32]) -> Self {
        Self::input(name, Dtype::F32, shape, data::f32_bytes(values))
    }

    /// An input of bfloat16 values, rounded to nearest even.
    pub fn bf16(name: &'static str, shape: &[usize], values: &[f32]) -> Self {
        Self::input(name, Dtype::BF16, shape, data::bf16_bytes(values))
    }

    /// An input of i32 values.
    pub fn i32(name: &'static str, shape: &[usize], values: &[i32]) -> Self {
        Self::input(name, Dtype::I32, shape, data::i32_bytes(values))
    }

    /// An input of one dimension: whole numbers of so many bytes, 4 or 8.
    pub fn integers(name: &'static str, size: usize, values: impl IntoIterator<Item = i64>) -> Self {
        let dtype = if size == 4 { Dtype::I32 } else { Dtype::I64 };
        let bytes = values.into_iter().flat_map(|x| x.to_le_bytes().into_iter().take(size));
        let bytes: Vec<u8> = bytes.collect();
        Self::input(name, dtype, &[bytes.len() / size], bytes)
    }

    /// An input of values in bfloat16, rounded to nearest even, or in f32.
    pub fn floats(name: &'static str, dtype: Dtype, shape: &[usize], values: &[f32]) -> Self {
        Self::input(name, dtype, shape, data::float_bytes(dtype, values))
    }

    /// An output, whose contents before the run do not matter.
    pub fn output(name: &'static str, dtype: Dtype, shape: &[usize]) -> Self {
        Self {
            name,
            role: Role::Out,
            dtype,
            shape: shape.into(),
            bytes: Vec::new(),
        }
    }

    /// A buffer that kernels change in place, with its contents before the run.
    ///
    /// # Panics
    ///
    /// If `bytes` has another length than `shape` and `dtype` require.
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

/// The contents of the buffers that a kernel writes, after a run.
#[derive(Clone, Debug, Default)]
pub struct Outputs(pub Vec<(&'static str, Vec<u8>)>);

impl Outputs {
    /// The bytes of an output.
    ///
    /// # Panics
    /// If there is no such output.
    pub fn get(&self, name: &str) -> &[u8] {
        let found = self.0.iter().find(|(output, _)| *output == name);
        found
            .map(|(_, bytes)| &bytes[..])
            .unwrap_or_else(|| panic!("no output '{name}'"))
    }
}
