//! The tensors of a file that together hold one quantized tensor, and checks of them against its format.

use safetensors::Dtype;

use super::Stack;
use super::scales::Scales;
use ulplab_core::error::{counted, refuse};
use ulplab_core::formats::{Element, Encoded, Format, Half, Part};
use ulplab_core::layouts::Layout;
use ulplab_core::metrics::unravel;
use ulplab_core::tensorfile::{Tensor, type_names};

/// The codes, scales, zero points and global scale of one quantized tensor, as a file stores them.
#[derive(Clone, Copy, Debug)]
pub struct Buffers<'a> {
    /// The codes of the elements.
    pub data: Tensor<'a>,
    /// The scales of blocks, rows or tensors; `None` if the format has none.
    pub scale: Option<Tensor<'a>>,
    /// The f32 global scales of NVFP4, one per matrix or one for all.
    pub global: Option<Tensor<'a>>,
    /// The zero points of an affine format.
    pub zero: Option<Tensor<'a>>,
    /// True if the codes have the shape `[…, blocks, bytes]`; the last two dimensions are then joined into one.
    pub blocked: bool,
}

/// A quantized tensor whose types, shapes and codes were checked, so that each of its matrices can be read.
#[derive(Debug)]
pub struct Opened<'a> {
    /// The format of the codes and scales.
    pub format: Format,
    /// Number and shape of the matrices.
    pub stack: Stack,
    data: &'a [u8],
    scales: Option<Scales<'a>>,
    zeros: Option<Share<'a>>,
    globals: Option<Share<'a>>,
}

/// Bytes of zero points or global scales: one section for each matrix of a stack, or one section that all matrices share.
#[derive(Clone, Copy, Debug)]
struct Share<'a> {
    bytes: &'a [u8],
    /// Number of bytes that belong to one matrix.
    len: usize,
    shared: bool,
}

impl<'a> Share<'a> {
    fn of_expert(&self, expert: usize) -> &'a [u8] {
        let at = if self.shared { 0 } else { expert * self.len };
        &self.bytes[at..][..self.len]
    }
}

impl<'a> Buffers<'a> {
    /// Returns the names of the tensors that hold codes, scales, zero points and global scale.
    pub fn names(&self) -> impl Iterator<Item = &'a str> + use<'a> {
        let tensors = [Some(self.data), self.scale, self.zero, self.global];
        tensors.into_iter().flatten().map(|tensor| tensor.name)
    }

    /// Type of the scales in the file if it is bf16 or f16; else `None`.
    pub fn narrow(&self) -> Option<Half> {
        match self.scale?.dtype {
            Dtype::BF16 => Some(Half::Bf16),
            Dtype::F16 => Some(Half::F16),
            _ => None,
        }
    }

    /// Describes the types and shapes of the tensors, for messages.
    pub(super) fn shapes(&self) -> String {
        let of = |tensor: Tensor| format!("{} {:?}", tensor.dtype, tensor.shape);
        let (data, scale, global) = (of(self.data), self.scale.map(of), self.global.map(of));
        let scale = scale.map_or("no scales".into(), |scale| format!("scales {scale}"));
        let global = global.map_or(String::new(), |global| format!(" and global scales {global}"));
        format!("codes {data} with {scale}{global}")
    }

    /// Computes the shape of the tensor before quantization from the shape of its codes.
    pub fn shape(&self, format: &Format) -> Result<Vec<usize>, String> {
        self.check_parts(format)?;
        let mut shape = self.data_shape()?;
        let (element, dtype) = (format.element, self.data.dtype);
        match shape.last_mut() {
            // The product may saturate: the caller rejects a tensor that is larger than the address space.
            Some(cols) if packs(element, dtype) => *cols = cols.saturating_mul(8) / element.stored_bits(),
            Some(_) => {}
            None => return Err(format!("tensor '{}' has no dimensions", self.data.name)),
        }
        Ok(shape)
    }

    /// Shape of the codes, with the dimensions `blocks` and `bytes` joined into one.
    fn data_shape(&self) -> Result<Vec<usize>, String> {
        match (self.blocked, self.data.shape) {
            (false, shape) => Ok(shape.into()),
            (true, [leading @ .., blocks, bytes]) => Ok([leading, &[blocks.saturating_mul(*bytes)]].concat()),
            (true, shape) => {
                let name = self.data.name;
                Err(format!("tensor '{name}': shape {shape:?}, expected […, blocks, bytes]"))
            }
        }
    }

    /// Opens a quantized tensor whose shape before quantization was `shape`, with its scales in `layout`, and checks its bytes.
    /// An error message names the tensor, the index, and the found and the expected value.
    pub fn open(
        &self,
        format: &Format,
        shape: &[usize],
        layout: Option<&'static Layout>,
    ) -> Result<Opened<'a>, String> {
        let stack = self.codes(format, shape)?;
        let scales = self.scales(format, &stack, layout)?;
        if let Some(scales) = &scales {
            scales.check_signs()?;
            scales.check_rows(&stack)?;
        }
        self.opened(format, stack, scales)
    }

    /// Opens the tensor and checks types, shapes and codes, but not the values of scales. There must be one scale for each group,
    /// in row-major order.
    pub fn fits(&self, format: &Format, shape: &[usize]) -> Result<Opened<'a>, String> {
        let stack = self.codes(format, shape)?;
        let scales = self.scales(format, &stack, None)?;
        if let (Some(scale), false) = (self.scale, scales.as_ref().is_none_or(Scales::is_plain)) {
            let (name, shape, one) = (scale.name, scale.shape, "one scale for each group");
            return Err(format!(
                "tensor '{name}': shape {shape:?}, expected {one} of '{format}'"
            ));
        }
        self.opened(format, stack, scales)
    }

    /// Opens the tensor with scales in any order. A matrix must have at least as many scales as groups.
    pub fn open_in_any_order(&self, format: &Format, shape: &[usize]) -> Result<Opened<'a>, String> {
        let stack = self.codes(format, shape)?;
        let in_order = self.scales(format, &stack, None);
        if in_order.is_ok_and(|scales| scales.is_some_and(|scales| !scales.is_plain())) {
            return self.open(format, shape, None);
        }
        let unordered = |scaling| self.unordered(scaling, format, &stack);
        let scales = format.scaling.map(unordered).transpose()?;
        scales.iter().try_for_each(Scales::check_signs)?;
        self.opened(format, stack, scales)
    }

    fn opened(&self, format: &Format, stack: Stack, scales: Option<Scales<'a>>) -> Result<Opened<'a>, String> {
        let parts = format.parts(stack.rows, stack.cols);
        let share = |name: &str| {
            let part = parts.iter().find(|part| part.name == name);
            part.map(|part| self.share(part, &stack)).transpose()
        };
        Ok(Opened {
            format: *format,
            data: self.data.bytes,
            scales,
            zeros: share("zero")?,
            globals: share("global")?,
            stack,
        })
    }

    /// Checks type, shape and bytes of the codes, and returns number and size of the matrices in a tensor of shape `shape`.
    fn codes(&self, format: &Format, shape: &[usize]) -> Result<Stack, String> {
        let (data, element) = (&self.data, format.element);
        let stack = Stack::new(shape).ok_or_else(|| {
            let name = data.name;
            format!("tensor '{name}': shape {shape:?} has more elements than memory has addresses")
        })?;
        let cols = shape.last().copied().unwrap_or(1);
        let fits = format.check(cols);
        fits.map_err(|why| format!("tensor '{}': {why}", data.name))?;
        self.check_parts(format)?;
        let mut expected = shape.to_vec();
        if let Some(last) = expected.last_mut().filter(|_| packs(element, data.dtype)) {
            *last = cols * element.stored_bits() / 8;
        }
        let (name, found, codes) = (data.name, data.shape, element.name);
        let of_shape = format_args!("{expected:?} for the {codes} codes of a {shape:?} tensor");
        let message = format_args!("tensor '{name}': shape {found:?}, expected {of_shape}");
        refuse(self.data_shape()? != expected, message)?;
        let Some(at) = data.bytes.iter().position(|code| element.bits == 6 && *code > 0x3f) else {
            return Ok(stack);
        };
        let (byte, place) = (data.bytes[at], unravel(at, found));
        Err(format!(
            "tensor '{name}': byte {byte:#04x} at {place:?}, expected {codes} codes up to 0x3f, one per byte"
        ))
    }

    fn check_parts(&self, format: &Format) -> Result<(), String> {
        let fits = code_types(format.element);
        expect_type(&self.data, &fits, &format!("{} codes", format.element.name))?;
        // Reject a part that the format does not have: ignoring this part would give wrong values.
        let of = |tensor: Option<Tensor<'a>>, has: bool, what| tensor.filter(|_| !has).map(|tensor| (tensor, what));
        let unknown = of(self.scale, format.scaling.is_some(), "scales")
            .or(of(self.global, format.global.is_some(), "global scales"))
            .or(of(self.zero, format.zero_point().is_some(), "zero points"));
        match unknown {
            None => Ok(()),
            Some((tensor, what)) => Err(format!("tensor '{}': format '{format}' has no {what}", tensor.name)),
        }
    }

    /// Finds the bytes of the zero points if `part.name` is `zero`, else of the global scales. Zero points are in the order of
    /// scales.
    fn share(&self, part: &Part, stack: &Stack) -> Result<Share<'a>, String> {
        let (tensor, none, what) = match part.name {
            "zero" => (self.zero, "no zero points", "zero point"),
            _ => (self.global, "no global scale", "global scale"),
        };
        let tensor = tensor.ok_or_else(|| format!("tensor '{}' has {none} next to it", self.data.name))?;
        expect_type(&tensor, &[part.dtype], &format!("{what}s"))?;
        let (Tensor { name, shape, bytes, .. }, size) = (tensor, part.dtype.bitsize() / 8);
        let count = part.shape.iter().product::<usize>();
        // All matrices may share one global scale. Also accept one global scale for an empty tensor (`count` is 0), because some
        // programs write it.
        let shared = part.name == "global" && bytes.len() == 4 && count <= 1;
        if shared || bytes.len() / size == stack.experts * count {
            let len = count * size;
            return Ok(Share { bytes, len, shared });
        }
        let expected = match part.name {
            "zero" => format!("{:?}: {}", part.shape, counted(count, what)),
            _ => counted(stack.experts * count, what),
        };
        let each = each(stack.experts);
        Err(format!("tensor '{name}': shape {shape:?}, expected {expected}{each}"))
    }
}

/// Ending of an error message about a number that must be the same for each matrix of a stack; empty if there is only one matrix.
pub(super) fn each(experts: usize) -> String {
    match experts {
        1 => String::new(),
        _ => format!(", the same for each of {experts} matrices"),
    }
}

impl<'a> Opened<'a> {
    /// Checks that no E4M3 scale has a sign bit.
    pub fn check(&self) -> Result<(), String> {
        self.scales.as_ref().map_or(Ok(()), Scales::check_signs)
    }

    /// Codes, scales, zero points and global scale of one matrix, in the order in which the format stores them.
    pub fn matrix(&self, expert: usize) -> Encoded {
        let Stack { rows, cols, .. } = self.stack;
        let mut parts = self.format.parts(rows, cols);
        for part in &mut parts {
            let share = |share: Option<Share>| share.map(|share| share.of_expert(expert).to_vec()).unwrap_or_default();
            part.bytes = match (part.name, &self.scales) {
                ("data", _) => self.stack.share(self.data, expert).to_vec(),
                ("scale", Some(scales)) => scales.matrix(&self.stack, expert),
                ("zero", _) => share(self.zeros),
                _ => share(self.globals),
            };
        }
        Encoded { rows, cols, parts }
    }
}

/// True if a byte holds several codes. An element of the safetensors type F4 is a single code.
fn packs(element: &Element, dtype: Dtype) -> bool {
    element.stored_bits() < 8 && dtype != Dtype::F4
}

/// Types that a tensor of codes may have in a file.
fn code_types(element: &Element) -> Vec<Dtype> {
    match (element.name, element.bits) {
        ("e2m1", _) => vec![Dtype::U8, Dtype::I8, Dtype::F4],
        (_, 2..=4) => vec![Dtype::U8, Dtype::I8],
        ("uint8", _) | (_, 6) => vec![Dtype::U8],
        ("e4m3", _) => vec![Dtype::F8_E4M3, Dtype::U8],
        ("e5m2", _) => vec![Dtype::F8_E5M2, Dtype::U8],
        ("bf16", _) => vec![Dtype::BF16, Dtype::U16],
        ("f16", _) => vec![Dtype::F16, Dtype::U16],
        _ => vec![Dtype::I8, Dtype::U8],
    }
}

pub(super) fn expect_type(tensor: &Tensor, fits: &[Dtype], what: &str) -> Result<(), String> {
    let (name, found, expected) = (tensor.name, tensor.dtype, type_names(fits));
    let message = format_args!("tensor '{name}': type {found}, expected {expected} for {what}");
    refuse(!fits.contains(&found), message)
}
