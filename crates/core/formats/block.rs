//! Block formats: an element type with zero, one or two levels of scales.

use safetensors::Dtype;

use super::convention::Convention;
use super::element::{Element, Repr};
use super::encoded::Part;
use super::scale::Scale;
use super::zero_point::Affine;

/// Group of elements that share a scale.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Group {
    /// A tile of consecutive rows and channels. Tiles at the lower and right edge may be shorter: they are rounded as if padded
    /// with zeros.
    Tile {
        /// Number of rows of a tile.
        rows: usize,
        /// Number of channels of a tile.
        cols: usize,
    },
    /// One row, e.g. the channels of one token.
    Token,
    /// One column: one channel of all rows.
    Column,
    /// The whole tensor that one call encodes.
    Tensor,
}

impl Group {
    /// Returns the group of `cols` consecutive channels of one row.
    pub const fn block(cols: usize) -> Self {
        Self::Tile { rows: 1, cols }
    }

    /// Returns the numbers of rows and columns of a group, in a tensor of the given size.
    pub fn tile(self, rows: usize, cols: usize) -> (usize, usize) {
        match self {
            Self::Tile { rows, cols } => (rows, cols),
            Self::Token => (1, cols.max(1)),
            Self::Column => (rows.max(1), 1),
            Self::Tensor => (rows.max(1), cols.max(1)),
        }
    }

    /// Returns the number of groups of a tensor from top to bottom (over rows), and from left to right (over channels).
    pub fn count(self, rows: usize, cols: usize) -> (usize, usize) {
        let (height, width) = self.tile(rows, cols);
        (rows.div_ceil(height), cols.div_ceil(width))
    }

    /// Returns the shape of the tensor of scales: `[groups down, groups across]`, or one dimension for a scale of the whole
    /// tensor.
    pub(super) fn shape(self, rows: usize, cols: usize) -> Vec<usize> {
        match self {
            Self::Tensor => vec![rows.min(1)],
            _ => {
                let (down, across) = self.count(rows, cols);
                vec![down, across]
            }
        }
    }
}

/// One level of scales, with a scale for each group of elements.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Scaling {
    /// Group of elements that share a scale.
    pub group: Group,
    /// The type of the scales, and the rule that computes them.
    pub scale: Scale,
}

/// An element format with up to two levels of scales.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Format {
    /// Size of the random Hadamard rotation of the channels before rounding; `None` for no rotation.
    pub rotation: Option<usize>,
    /// The type of the elements.
    pub element: &'static Element,
    /// Library whose cast is used; `None` for the element's default cast.
    pub convention: Option<&'static Convention>,
    /// The block scales; `None` for a plain cast of elements.
    pub scaling: Option<Scaling>,
    /// Group of elements that share an f32 global scale above the block scales; `None` without a global scale. A global scale
    /// requires block scales of type [`Scale::E4m3`].
    pub global: Option<Group>,
}

impl Format {
    /// Returns the representation of the element with the cast of the library in `convention`. If no library is named, or the
    /// library has no cast to this element, the element's default cast is used.
    pub fn repr(&self) -> Repr {
        let of = |convention: &Convention| convention.repr(self.element);
        self.convention.and_then(of).unwrap_or(self.element.repr)
    }

    /// Returns the rule of the zero points; `None` if the format has no zero points.
    pub fn zero_point(&self) -> Option<Affine> {
        match self.scaling?.scale {
            Scale::Affine(affine) => Some(affine),
            _ => None,
        }
    }

    /// Returns the number of bytes that the codes of `cols` elements take.
    pub(super) fn data_bytes(&self, cols: usize) -> usize {
        cols * self.element.stored_bits() / 8
    }

    /// Returns the number of bytes per row, including scales and zero points. Scales and zero points that a column or the whole
    /// tensor shares are not counted.
    pub(super) fn bytes_per_row(&self, cols: usize) -> f64 {
        let per_group = |group, bytes: usize| match group {
            Group::Tile { rows, cols: width } => (cols.div_ceil(width) * bytes) as f64 / rows as f64,
            Group::Token => bytes as f64,
            Group::Column | Group::Tensor => 0.0,
        };
        let (scaling, zeros) = (self.scaling, self.scaling.zip(self.zero_point()));
        let scales = scaling.map_or(0.0, |level| per_group(level.group, level.scale.bytes()));
        let zeros = zeros.map_or(0.0, |(level, zero)| per_group(level.group, zero.zero_bytes()));
        let globals = self.global.map_or(0.0, |group| per_group(group, 4));
        self.data_bytes(cols) as f64 + scales + zeros + globals
    }

    /// Describes the stored arrays of an encoded `[rows, cols]` tensor (codes, scales, zero points, global scales) by name, type
    /// and shape; their bytes are left empty.
    pub fn parts(&self, rows: usize, cols: usize) -> Vec<Part> {
        let part = |name, dtype, shape| Part {
            name,
            dtype,
            shape,
            bytes: Vec::new(),
        };
        let mut parts = vec![part("data", self.dtype(), vec![rows, self.across(cols)])];
        if let Some(Scaling { group, scale }) = self.scaling {
            parts.push(part("scale", scale.dtype(), group.shape(rows, cols)));
            let zero = self.zero_point().map(|affine| affine.zero_dtype());
            parts.extend(zero.map(|dtype| part("zero", dtype, group.shape(rows, cols))));
        }
        if let Some(group) = self.global {
            parts.push(part("global", Dtype::F32, group.shape(rows, cols)));
        }
        parts
    }

    /// Checks that rows of `cols` channels can be encoded; the error gives the reason.
    pub fn check(&self, cols: usize) -> Result<(), String> {
        if cols == 0 {
            return Err("a row has no channels".into());
        }
        if let Some(size) = self.rotation
            && !cols.is_multiple_of(size)
        {
            return Err(format!("{cols} channels are not whole rotations of {size}"));
        }
        if !(cols * self.element.stored_bits()).is_multiple_of(8) {
            let bits = self.element.bits;
            return Err(format!("{cols} channels of {bits} bits are not whole bytes"));
        }
        Ok(())
    }

    /// Returns the number of stored elements (of type [`Format::dtype`]) per row of `cols` codes. Packed codes, which have fewer
    /// than 8 bits, are stored as bytes; each other code is one stored element.
    pub(super) fn across(&self, cols: usize) -> usize {
        let packed = self.element.stored_bits() < 8;
        if packed { self.data_bytes(cols) } else { cols }
    }

    /// Returns the type of the codes in files. Packed and 6-bit codes are stored as bytes.
    pub(super) fn dtype(&self) -> Dtype {
        match (self.element.name, self.element.repr, self.element.bits) {
            ("bf16", ..) => Dtype::BF16,
            ("f16", ..) => Dtype::F16,
            ("e4m3", ..) => Dtype::F8_E4M3,
            ("e5m2", ..) => Dtype::F8_E5M2,
            (_, Repr::Integer(integer), 8) if integer.is_signed() => Dtype::I8,
            _ => Dtype::U8,
        }
    }
}
