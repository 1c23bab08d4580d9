//! The scales of a tensor as a file stores them: types, shapes and orders.

use std::borrow::Cow;

use half::{bf16, f16};
use safetensors::Dtype;

use super::buffers::{each, expect_type};
use super::{Buffers, Stack};
use ulplab_core::error::refuse;
use ulplab_core::formats::{Format, Group, Half, Scale, Scaling};
use ulplab_core::layouts::{Groups, Layout, Placement};
use ulplab_core::metrics::unravel;
use ulplab_core::tensorfile::Tensor;

/// The scales of groups of elements, as a file stores them.
#[derive(Debug)]
pub(super) struct Scales<'a> {
    tensor: Tensor<'a>,
    scaling: Scaling,
    order: Order,
    /// True if all matrices share one scale.
    shared: bool,
}

/// The order of the scales of a matrix.
#[derive(Debug)]
enum Order {
    /// Scales are used in file order: row-major, unless [`Buffers::unordered`] accepted them without a check of the order.
    Plain,
    /// Row-major, with each row of scales repeated for every row of the tile.
    Repeated {
        height: usize,
        stride: usize,
    },
    Placed(Placement),
}

impl<'a> Buffers<'a> {
    /// Checks the type of the scales, and returns them in file order.
    fn plain_scales(&self, scaling: Scaling, format: &Format) -> Result<Scales<'a>, String> {
        let name = self.data.name;
        let none = || format!("tensor '{name}' has no scales next to it, which '{format}' needs");
        let tensor = self.scale.ok_or_else(none)?;
        let what = format!("{} scales", scaling.scale.kind());
        expect_type(&tensor, scale_types(&scaling.scale), &what)?;
        let mut scales = Scales {
            tensor,
            scaling,
            order: Order::Plain,
            shared: false,
        };
        scales.shared = scaling.group == Group::Tensor && scales.count() == 1;
        Ok(scales)
    }

    /// Derives the order of the scales from their shape; a matrix must have one scale per group. `None` if the format has no
    /// scales.
    pub(super) fn scales(
        &self,
        format: &Format,
        stack: &Stack,
        layout: Option<&'static Layout>,
    ) -> Result<Option<Scales<'a>>, String> {
        let Some(scaling) = format.scaling else {
            return Ok(None);
        };
        let mut scales = self.plain_scales(scaling, format)?;
        let (tensor, count) = (scales.tensor, scales.count());
        let Stack { experts, rows, cols } = *stack;
        let (down, across) = scaling.group.count(rows, cols);
        if let Some(layout) = layout {
            check_layout(layout, scaling.scale.bytes())?;
            let placement = layout.place(&[down, across], &[])?;
            let (found, expected) = (count * scaling.scale.bytes(), experts.saturating_mul(placement.len()));
            let (name, layout, each) = (tensor.name, layout.name, each(experts));
            let bytes = format_args!("the buffer has {found} bytes, expected {expected}{each}");
            refuse(
                found != expected,
                format_args!("tensor '{name}', layout {layout}: {bytes}"),
            )?;
            scales.order = Order::Placed(placement);
            return Ok(Some(scales));
        }
        let height = scaling.group.tile(rows, cols).0;
        let last = tensor.shape.last().unwrap_or(&1) * scales.per_element();
        let in_order = last == across || scaling.group == Group::Tensor || down.min(across) <= 1;
        if scales.shared || (count == experts * down * across && in_order) {
            return Ok(Some(scales));
        }
        if count == experts * rows * across && last == across && height > 1 {
            let stride = across * scaling.scale.bytes();
            scales.order = Order::Repeated { height, stride };
            return Ok(Some(scales));
        }
        let shape = |down| match (scaling.group, experts) {
            (Group::Tensor, _) => format!("[{experts}]"),
            (_, 1) => format!("[{down}, {across}]"),
            _ => format!("[{experts}, {down}, {across}]"),
        };
        let repeated = match height {
            1 => String::new(),
            _ if scaling.group == Group::Tensor => String::new(),
            _ => format!(", or {} with each scale {height} times", shape(rows)),
        };
        let expected = format!("{} {} scales{repeated}", shape(down), scaling.scale.kind());
        Err(misshapen(&tensor, &format!("{expected}; other orders need --layout")))
    }

    /// Accepts scales in any order, if there are at least as many as groups.
    pub(super) fn unordered(&self, scaling: Scaling, format: &Format, stack: &Stack) -> Result<Scales<'a>, String> {
        let scales = self.plain_scales(scaling, format)?;
        let (tensor, count, experts) = (scales.tensor, scales.count(), stack.experts);
        let (down, across) = scaling.group.count(stack.rows, stack.cols);
        if scales.shared || (count >= experts * down * across && count.is_multiple_of(experts.max(1))) {
            return Ok(scales);
        }
        let (kind, each) = (scaling.scale.kind(), each(experts));
        Err(misshapen(
            &tensor,
            &format!("at least {down} · {across} {kind} scales{each}"),
        ))
    }
}

fn misshapen(Tensor { name, dtype, shape, .. }: &Tensor, expected: &str) -> String {
    format!("tensor '{name}': {dtype} of shape {shape:?}, expected {expected}")
}

impl<'a> Scales<'a> {
    /// True if there is one scale per group, in row-major order.
    pub(super) fn is_plain(&self) -> bool {
        matches!(self.order, Order::Plain)
    }

    /// Number of scales in one element of the tensor, e.g. 4 one-byte scales in an i32.
    fn per_element(&self) -> usize {
        (self.tensor.dtype.bitsize() / 8 / self.scaling.scale.bytes()).max(1)
    }

    fn count(&self) -> usize {
        self.tensor.bytes.len() / (self.tensor.dtype.bitsize() / 8) * self.per_element()
    }

    /// Checks that no scale has a sign bit.
    pub(super) fn check_signs(&self) -> Result<(), String> {
        let Tensor { name, shape, bytes, .. } = self.tensor;
        let signed = |code: &u8| matches!(self.scaling.scale, Scale::E4m3(_)) && *code > 0x7f;
        let Some(at) = bytes.iter().position(signed) else {
            return Ok(());
        };
        let (place, expected) = (unravel(at, shape), "codes up to 0x7f: e4m3 scales have no sign");
        Err(format!(
            "tensor '{name}': scale {:#04x} at {place:?}, expected {expected}",
            bytes[at]
        ))
    }

    /// Checks that the repeated rows of scales are equal within each tile.
    pub(super) fn check_rows(&self, stack: &Stack) -> Result<(), String> {
        let Order::Repeated { height, stride } = self.order else {
            return Ok(());
        };
        for expert in stack.matrices() {
            let bytes = self.share(stack, expert);
            let row = |r: usize| &bytes[r * stride..(r + 1) * stride];
            if let Some(r) = (0..stack.rows).find(|r| row(*r) != row(r / height * height)) {
                let (name, r, each) = (self.tensor.name, expert * stack.rows + r, "once for each row of a tile");
                let found = format!("row {r} differs from the row above it");
                return Err(format!(
                    "tensor '{name}': {found}, expected each scale {height} times, {each}"
                ));
            }
        }
        Ok(())
    }

    /// Returns the bytes of the scales of one matrix in file order, converted to the scale type of the format.
    fn share(&self, stack: &Stack, expert: usize) -> Cow<'a, [u8]> {
        let bytes = match self.shared {
            true => self.tensor.bytes,
            false => stack.share(self.tensor.bytes, expert),
        };
        let wide = |widen: fn([u8; 2]) -> f32| {
            let values = bytes.as_chunks().0.iter();
            values.flat_map(|value| widen(*value).to_le_bytes()).collect()
        };
        match (self.scaling.scale, self.tensor.dtype) {
            (Scale::F32(_), Dtype::BF16) => wide(|value| bf16::from_le_bytes(value).to_f32()),
            (Scale::F32(_), Dtype::F16) => wide(|value| f16::from_le_bytes(value).to_f32()),
            _ => bytes.into(),
        }
    }

    /// Returns the bytes of the scales of one matrix in the order in which the format stores them.
    pub(super) fn matrix(&self, stack: &Stack, expert: usize) -> Vec<u8> {
        let bytes = self.share(stack, expert);
        match &self.order {
            Order::Plain => bytes.into_owned(),
            Order::Repeated { height, stride } => {
                let rows = bytes.chunks_exact((*stride).max(1)).step_by(*height);
                rows.flatten().copied().collect()
            }
            Order::Placed(placement) => placement.inverse(&bytes).expect("the buffer was measured"),
        }
    }
}

/// Checks that a layout of scales is for a single matrix (not for a grouped GEMM) and has scales of `size` bytes.
pub fn check_layout(layout: &Layout, size: usize) -> Result<(), String> {
    let (name, takes) = (layout.name, layout.scale);
    let needs = "needs the ends of groups, which tensor files do not contain";
    refuse(layout.groups != Groups::None, format_args!("layout '{name}' {needs}"))?;
    let sizes = format_args!("takes scales of {takes} bytes, the format has {size}");
    refuse(takes != size, format_args!("layout '{name}' {sizes}"))
}

/// Types that scales may have in a file; bf16 and f16 are accepted where the format has f32 scales.
fn scale_types(scale: &Scale) -> &'static [Dtype] {
    match scale {
        Scale::E8m0(_) => &[Dtype::F8_E8M0, Dtype::U8, Dtype::I32, Dtype::U32],
        Scale::E4m3(_) => &[Dtype::F8_E4M3, Dtype::U8],
        Scale::F32(_) => &[Dtype::F32, Dtype::BF16, Dtype::F16],
        Scale::Half(half, _) => half_types(*half),
        Scale::Affine(affine) => affine.half.map_or(&[Dtype::F32], half_types),
    }
}

fn half_types(half: Half) -> &'static [Dtype] {
    match half {
        Half::F16 => &[Dtype::F16, Dtype::U16],
        Half::Bf16 => &[Dtype::BF16, Dtype::U16],
    }
}
