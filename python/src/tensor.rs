//! Tensors that are passed by DLPack. Contiguous tensors in host memory are not copied.
//!
//! The structures are those of `dlpack.h`, before version 1 and in version 1. A capsule (the Python object that carries a tensor)
//! is used only once, as the standard requires (<https://dmlc.github.io/dlpack/latest/python_spec.html>).

use std::borrow::Cow;
use std::ffi::{CStr, c_void};
use std::ptr::NonNull;

use pyo3::exceptions::{PyBufferError, PyTypeError, PyValueError};
use pyo3::prelude::*;
use pyo3::types::{PyCapsule, PyCapsuleMethods};
use safetensors::Dtype;

use crate::cuda;

#[repr(C)]
struct DlTensor {
    data: *mut u8,
    device_type: i32,
    device_id: i32,
    ndim: i32,
    code: u8,
    bits: u8,
    lanes: u16,
    shape: *const i64,
    strides: *const i64,
    byte_offset: u64,
}

#[repr(C)]
struct Managed {
    tensor: DlTensor,
    context: *mut c_void,
    deleter: Option<unsafe extern "C" fn(*mut Managed)>,
}

#[repr(C)]
struct ManagedVersioned {
    version: [u32; 2],
    context: *mut c_void,
    deleter: Option<unsafe extern "C" fn(*mut ManagedVersioned)>,
    flags: u64,
    tensor: DlTensor,
}

/// Names of a DLPack capsule before and after its use, for each of the two versions of the structures.
const CAPSULES: [[&CStr; 2]; 2] = [
    [c"dltensor", c"used_dltensor"],
    [c"dltensor_versioned", c"used_dltensor_versioned"],
];

/// DLPack structure that owns a tensor's memory. Its deleter is called after the last use of the tensor.
enum Owner {
    Old(NonNull<Managed>),
    Versioned(NonNull<ManagedVersioned>),
}

/// DLPack device types of host memory (pageable, pinned), and of memory that the CUDA driver copies (device, managed).
const HOST: [i32; 2] = [1, 3];
const CUDA: [i32; 2] = [2, 13];
/// Maximum number of dimensions of a tensor. This is numpy's limit, the largest limit of all libraries.
const MOST_DIMENSIONS: usize = 64;

/// A tensor of another library, passed by DLPack.
#[pyclass(frozen, module = "ulplab")]
pub struct Array {
    owner: Owner,
    data: *const u8,
    /// Index of the CUDA device that has the elements; `None` if they are in host memory.
    device: Option<i32>,
    pub dtype: Dtype,
    pub shape: Vec<usize>,
    /// Strides in elements; `None` if the tensor is contiguous.
    strides: Option<Vec<i64>>,
}

// SAFETY: the producer keeps the memory until the deleter is called, and this module never writes to it.
unsafe impl Send for Array {}
// SAFETY: all threads only read the memory, which the producer keeps until the deleter is called.
unsafe impl Sync for Array {}

impl Drop for Array {
    fn drop(&mut self) {
        // SAFETY: the capsule was renamed, so only this drop calls the deleter, once.
        unsafe {
            match self.owner {
                Owner::Old(managed) => {
                    if let Some(deleter) = managed.as_ref().deleter {
                        deleter(managed.as_ptr());
                    }
                }
                Owner::Versioned(managed) => {
                    if let Some(deleter) = managed.as_ref().deleter {
                        deleter(managed.as_ptr());
                    }
                }
            }
        }
    }
}

/// Element types: the name in numpy, ml_dtypes and torch, and the type code in DLPack (the bits are a separate field).
const TYPES: [(&str, Dtype, u8); 16] = [
    ("float64", Dtype::F64, 2),
    ("float32", Dtype::F32, 2),
    ("float16", Dtype::F16, 2),
    ("bfloat16", Dtype::BF16, 4),
    ("float8_e4m3fn", Dtype::F8_E4M3, 10),
    ("float8_e5m2", Dtype::F8_E5M2, 12),
    ("float8_e8m0fnu", Dtype::F8_E8M0, 14),
    ("int64", Dtype::I64, 0),
    ("int32", Dtype::I32, 0),
    ("int16", Dtype::I16, 0),
    ("int8", Dtype::I8, 0),
    ("uint64", Dtype::U64, 1),
    ("uint32", Dtype::U32, 1),
    ("uint16", Dtype::U16, 1),
    ("uint8", Dtype::U8, 1),
    ("bool", Dtype::BOOL, 6),
];

/// Returns the first type for which `holds` is true.
fn type_with(holds: impl Fn(&(&str, Dtype, u8)) -> bool) -> Option<(&'static str, Dtype)> {
    let found = TYPES.into_iter().find(holds);
    found.map(|(name, dtype, _)| (name, dtype))
}

/// Returns the type called `name`: the name in numpy, ml_dtypes and torch, or a short name such as `f32`.
pub fn named(name: &str) -> Option<Dtype> {
    let name = match name {
        "f64" => "float64",
        "f32" => "float32",
        "f16" => "float16",
        "bf16" => "bfloat16",
        name => name,
    };
    type_with(|(known, ..)| *known == name).map(|(_, dtype)| dtype)
}

/// Names of all types.
pub fn names() -> [&'static str; TYPES.len()] {
    TYPES.map(|(name, ..)| name)
}

/// Returns the name of a type in numpy, ml_dtypes and torch.
pub fn name(dtype: Dtype) -> &'static str {
    type_with(|(_, known, _)| *known == dtype).map_or("unknown", |(name, _)| name)
}

#[pymethods]
impl Array {
    /// Takes the tensor of a ``__dlpack__`` capsule. ``dtype`` names the element type if the producer could not state it.
    #[new]
    #[pyo3(signature = (capsule, dtype=None))]
    fn new(capsule: &Bound<'_, PyCapsule>, dtype: Option<&str>) -> PyResult<Self> {
        let found = capsule.name()?;
        // SAFETY: the name is a string that belongs to the producer and outlives the capsule.
        let found = found.map(|name| unsafe { name.as_cstr() });
        let kind = CAPSULES.iter().position(|[name, _]| found == Some(*name));
        let Some(kind) = kind else {
            return Err(PyTypeError::new_err(
                "expected a capsule of __dlpack__ that was not used before",
            ));
        };
        let pointer = capsule.pointer_checked(Some(CAPSULES[kind][0]))?;
        // SAFETY: a capsule with this name contains this structure.
        let (tensor, owner) = unsafe {
            match kind {
                0 => {
                    let managed = pointer.cast::<Managed>();
                    (&managed.as_ref().tensor, Owner::Old(managed))
                }
                _ => {
                    let managed = pointer.cast::<ManagedVersioned>();
                    let [major, minor] = managed.as_ref().version;
                    if major != 1 {
                        return Err(PyTypeError::new_err(format!(
                            "DLPack {major}.{minor} is unknown, expected version 1"
                        )));
                    }
                    (&managed.as_ref().tensor, Owner::Versioned(managed))
                }
            }
        };
        let array = Self::of(tensor, owner, dtype)?;
        // SAFETY: from now on the deleter is called when the array is dropped, and not by the capsule.
        unsafe {
            pyo3::ffi::PyCapsule_SetName(capsule.as_ptr(), CAPSULES[kind][1].as_ptr());
        }
        Ok(array)
    }

    /// Size of each dimension.
    #[getter]
    fn shape(&self) -> Vec<usize> {
        self.shape.clone()
    }

    /// Name of the element type in numpy, ml_dtypes and torch.
    #[getter]
    fn dtype(&self) -> &'static str {
        name(self.dtype)
    }

    /// The address of the first element.
    #[getter]
    fn address(&self) -> usize {
        self.data as usize
    }

    /// The address of the first byte, and the address after the last byte; both are 0 for an empty tensor.
    #[getter]
    fn span(&self) -> (usize, usize) {
        if self.len() == 0 {
            return (0, 0);
        }
        let (mut low, mut high) = (self.data as usize, self.data as usize + self.size());
        match &self.strides {
            None => high += (self.len() - 1) * self.size(),
            Some(strides) => {
                for (size, stride) in self.shape.iter().zip(strides) {
                    let reach = (size - 1) * stride.unsigned_abs() as usize * self.size();
                    if *stride < 0 {
                        low -= reach;
                    } else {
                        high += reach;
                    }
                }
            }
        }
        (low, high)
    }

    /// True if the elements are adjacent in memory, in row-major order.
    #[getter]
    fn contiguous(&self) -> bool {
        self.strides.is_none()
    }
}

impl Array {
    /// Creates an array. If this returns an error, the tensor still belongs to the producer: the capsule keeps its name and
    /// releases the tensor.
    fn of(tensor: &DlTensor, owner: Owner, named_dtype: Option<&str>) -> PyResult<Self> {
        let device = match tensor.device_type {
            kind if HOST.contains(&kind) => None,
            kind if CUDA.contains(&kind) && cuda::available() => Some(tensor.device_id),
            kind => {
                return Err(PyValueError::new_err(format!(
                    "the tensor is on device type {kind} of DLPack, expected one in memory of the host, or of a CUDA device \
                     whose driver is there"
                )));
            }
        };
        let of =
            |(_, dtype, code): &(&str, Dtype, u8)| (*code, dtype.bitsize()) == (tensor.code, usize::from(tensor.bits));
        let own = type_with(of).filter(|_| tensor.lanes == 1).map(|(_, dtype)| dtype);
        let dtype = match named_dtype {
            Some(name) => named(name).filter(|dtype| dtype.bitsize() == usize::from(tensor.bits)),
            None => own,
        };
        let Some(dtype) = dtype else {
            let (code, bits, lanes) = (tensor.code, tensor.bits, tensor.lanes);
            return Err(PyTypeError::new_err(format!(
                "elements are of DLPack type {code} with {bits} bits and {lanes} lanes{}, which is not known",
                named_dtype
                    .map(|name| format!(", said to be {name}"))
                    .unwrap_or_default()
            )));
        };
        let (shape, strides) = geometry(tensor, dtype.bitsize() / 8)?;
        if tensor.data.is_null() && !shape.contains(&0) {
            return Err(PyTypeError::new_err(format!(
                "the tensor {shape:?} has no memory behind it, as a FakeTensor, or one whose storage was freed"
            )));
        }
        let strides = strides.filter(|strides| !is_contiguous(&shape, strides));
        if device.is_some() && strides.is_some() {
            return Err(PyBufferError::new_err(format!(
                "the tensor {shape:?} on a device is not contiguous"
            )));
        }
        Ok(Self {
            owner,
            data: tensor.data.wrapping_add(tensor.byte_offset as usize),
            device,
            dtype,
            shape,
            strides,
        })
    }

    /// The number of elements.
    pub fn len(&self) -> usize {
        self.shape.iter().product()
    }

    /// Returns the number of bytes of an element.
    fn size(&self) -> usize {
        self.dtype.bitsize() / 8
    }

    /// Returns the bytes of the elements in row-major order. Copies them unless they are contiguous and in host memory.
    ///
    /// # Errors
    /// Returns an error if a device cannot be read.
    pub fn bytes(&self) -> Result<Cow<'_, [u8]>, String> {
        if self.device.is_none() {
            return Ok(self.on_host());
        }
        let mut bytes = Vec::with_capacity(self.len() * self.size());
        let mut chunks = self.chunks(DEVICE_ELEMENTS)?;
        loop {
            match chunks.next()? {
                [] => return Ok(Cow::Owned(bytes)),
                chunk => bytes.extend_from_slice(chunk),
            }
        }
    }

    /// Returns an iterator over the bytes of the tensor, in chunks of `elements` elements.
    ///
    /// # Errors
    /// Returns an error if a device cannot be read.
    pub fn chunks(&self, elements: usize) -> Result<Chunks<'_>, String> {
        let chunk = elements * self.size();
        Ok(match self.device {
            Some(device) => {
                let len = self.len() * self.size();
                Chunks::Device(cuda::Chunks::new(device, self.data as u64, len, chunk)?)
            }
            None => Chunks::Host {
                bytes: self.on_host(),
                read: 0,
                chunk,
            },
        })
    }

    /// Returns the bytes of elements in host memory.
    fn on_host(&self) -> Cow<'_, [u8]> {
        let size = self.size();
        if self.len() == 0 {
            return Cow::Borrowed(&[]);
        }
        let Some(strides) = &self.strides else {
            // SAFETY: the producer guarantees that these elements exist and are adjacent.
            return Cow::Borrowed(unsafe { std::slice::from_raw_parts(self.data, self.len() * size) });
        };
        let mut bytes = Vec::with_capacity(self.len() * size);
        let mut index = vec![0; self.shape.len()];
        for _ in 0..self.len() {
            let at: i64 = index.iter().zip(strides).map(|(at, stride)| *at as i64 * stride).sum();
            // SAFETY: the index is within the shape, so the strides lead to an element of the tensor.
            bytes.extend_from_slice(unsafe {
                std::slice::from_raw_parts(self.data.offset(at as isize * size as isize), size)
            });
            for (at, size) in index.iter_mut().zip(&self.shape).rev() {
                *at += 1;
                if *at < *size {
                    break;
                }
                *at = 0;
            }
        }
        Cow::Owned(bytes)
    }
}

/// Returns the sizes and strides of a tensor. Returns an error for negative sizes, and if the number of bytes or the largest
/// offset overflows 64 bits, because no memory can hold such a tensor.
fn geometry(tensor: &DlTensor, size: usize) -> PyResult<(Vec<usize>, Option<Vec<i64>>)> {
    let ndim = usize::try_from(tensor.ndim).unwrap_or(usize::MAX);
    if ndim == 0 {
        return Ok((Vec::new(), None));
    }
    if ndim > MOST_DIMENSIONS || tensor.shape.is_null() {
        return Err(PyTypeError::new_err(format!(
            "the tensor has {} dimensions{}, expected at most {MOST_DIMENSIONS} and their sizes",
            tensor.ndim,
            if tensor.shape.is_null() { " and no sizes" } else { "" }
        )));
    }
    // SAFETY: both arrays have `ndim` numbers; strides may be null.
    let (sizes, strides) = unsafe {
        let sizes = std::slice::from_raw_parts(tensor.shape, ndim);
        let strides = NonNull::new(tensor.strides.cast_mut());
        (
            sizes,
            strides.map(|strides| std::slice::from_raw_parts(strides.as_ptr(), ndim).to_vec()),
        )
    };
    let shape: Result<Vec<usize>, _> = sizes.iter().map(|size| usize::try_from(*size)).collect();
    let elements = sizes.iter().try_fold(1i64, |all, size| all.checked_mul(*size));
    let bytes = elements.and_then(|elements| elements.checked_mul(size as i64));
    let reach = sizes
        .iter()
        .zip(strides.iter().flatten())
        .try_fold(0i64, |all, (size, stride)| {
            let reach = (size - 1).max(0).checked_mul(stride.checked_abs()?)?;
            all.checked_add(reach)
        });
    match (shape, bytes, reach) {
        (Ok(shape), Some(_), Some(_)) => Ok((shape, strides)),
        _ => Err(PyTypeError::new_err(format!(
            "the tensor has sizes {sizes:?} and strides {strides:?}, whose elements no memory can hold"
        ))),
    }
}

/// Number of elements per chunk of device memory. An element has at most 8 bytes, so a chunk fits in a pinned buffer.
const DEVICE_ELEMENTS: usize = cuda::CHUNK / 8;

/// Iterates over the elements of a tensor, chunk by chunk.
pub enum Chunks<'a> {
    Host {
        bytes: Cow<'a, [u8]>,
        /// Number of bytes that were already returned, and number of bytes of a chunk.
        read: usize,
        chunk: usize,
    },
    Device(cuda::Chunks),
}

impl Chunks<'_> {
    /// Returns the bytes of the next chunk; empty at the end.
    ///
    /// # Errors
    /// Returns an error if a device cannot be read.
    pub fn next(&mut self) -> Result<&[u8], String> {
        match self {
            Self::Device(chunks) => chunks.next(),
            Self::Host { bytes, read, chunk } => {
                let from = *read;
                *read = bytes.len().min(from.saturating_add(*chunk));
                Ok(&bytes[from..*read])
            }
        }
    }
}

/// Passes the elements of two tensors of the same shape to `each`, chunk by chunk; in a single chunk if both are in host memory.
///
/// # Errors
/// Returns the errors of `each`, and an error if a device cannot be read.
pub fn together(a: &Array, b: &Array, mut each: impl FnMut(&[u8], &[u8]) -> Result<(), String>) -> Result<(), String> {
    let elements = match (a.device, b.device) {
        (None, None) => a.len().max(1),
        _ => DEVICE_ELEMENTS,
    };
    let (mut of_a, mut of_b) = (a.chunks(elements)?, b.chunks(elements)?);
    for _ in 0..a.len().div_ceil(elements) {
        each(of_a.next()?, of_b.next()?)?;
    }
    Ok(())
}

/// True if the strides are those of a row-major tensor. Strides of dimensions of size 1 and of empty tensors do not matter.
fn is_contiguous(shape: &[usize], strides: &[i64]) -> bool {
    let mut expected = 1;
    let mut dims = shape.iter().zip(strides).rev();
    shape.contains(&0)
        || dims.all(|(&size, &stride)| {
            let right = size == 1 || stride == expected;
            expected = expected.saturating_mul(size as i64);
            right
        })
}
