//! The tensors that hold one quantized tensor, checked against its format.

use std::borrow::Cow;

use safetensors::Dtype;

use crate::formats::{Element, Encoded, Format, Group, Half, Part, Scale};
use crate::layouts::Layout;
use crate::metrics::unravel;
use crate::tensorfile::Tensor;

/// Codes, scales, zero points and global scale, as they are in a file.
#[derive(Clone, Copy, Debug)]
pub struct Buffers<'a> {
    pub data: Tensor<'a>,
    pub scale: Option<Tensor<'a>>,
    pub zero: Option<Tensor<'a>>,
    pub global: Option<Tensor<'a>>,
}

impl<'a> Buffers<'a> {
    /// The names of the tensors.
    pub fn names(&self) -> impl Iterator<Item = &'a str> + use<'a> {
        let Self {
            data,
            scale,
            zero,
            global,
        } = *self;
        [Some(data), scale, zero, global]
            .into_iter()
            .flatten()
            .map(|tensor| tensor.name)
    }

    /// The shape of the tensor that was quantized, from that of its codes.
    pub fn shape(&self, format: &Format) -> Result<Vec<usize>, String> {
        self.check_parts(format)?;
        let mut shape = self.data.shape.to_vec();
        let bits = format.element.stored_bits();
        let packed = bits < 8 && self.data.dtype != Dtype::F4;
        match shape.last_mut() {
            // Refused by its caller if that is more than memory has addresses.
            Some(cols) if packed => *cols = cols.saturating_mul(8) / bits,
            Some(_) => {}
            None => return Err(format!("tensor '{}' has no dimensions", self.data.name)),
        }
        Ok(shape)
    }

    /// The bytes in the format's own order; errors name tensor, place, what was found and what was expected.
    pub fn encoded(
        &self,
        format: &Format,
        rows: usize,
        cols: usize,
        layout: Option<&'static Layout>,
    ) -> Result<Encoded, String> {
        let data = self.codes(format, rows, cols)?;
        let mut parts = format.parts(rows, cols);
        for part in &mut parts {
            part.bytes = match part.name {
                "data" => data.to_vec(),
                "scale" => self.scales(format, rows, cols, layout)?,
                "zero" => self.zeros(part)?.to_vec(),
                _ => self.globals(part)?.to_vec(),
            };
        }
        Ok(Encoded { rows, cols, parts })
    }

    /// The bytes of the codes of so many elements.
    pub fn codes(&self, format: &Format, rows: usize, cols: usize) -> Result<&'a [u8], String> {
        let (data, element) = (&self.data, format.element);
        format
            .check(cols)
            .map_err(|why| format!("tensor '{}': {why}", data.name))?;
        self.check_parts(format)?;
        let packed = element.stored_bits() < 8 && data.dtype != Dtype::F4;
        let across = if packed { cols * element.stored_bits() / 8 } else { cols };
        if data.shape.iter().product::<usize>() != rows * across
            || data.shape.last().is_some_and(|last| *last != across)
        {
            return Err(format!(
                "tensor '{}': shape {:?}, expected [{rows}, {across}] for the {} codes of a [{rows}, {cols}] tensor",
                data.name, data.shape, element.name
            ));
        }
        let unused = data.bytes.iter().position(|code| element.bits == 6 && *code > 0x3f);
        match unused {
            None => Ok(data.bytes),
            Some(at) => Err(format!(
                "tensor '{}': byte {:#04x} at {:?}, expected {} codes up to 0x3f, one per byte",
                data.name,
                data.bytes[at],
                unravel(at, data.shape),
                element.name
            )),
        }
    }

    fn check_parts(&self, format: &Format) -> Result<(), String> {
        let fits = code_types(format.element);
        expect_type(&self.data, &fits, &format!("{} codes", format.element.name))?;
        // What the format does not know would be dropped, and the values be wrong.
        let scale = self
            .scale
            .filter(|_| format.scaling.is_none())
            .map(|tensor| (tensor, "scales"));
        let zero = self.zero.filter(|_| format.zero_point().is_none());
        let zero = zero.map(|tensor| (tensor, "zero points"));
        let global = self.global.filter(|_| format.global.is_none());
        match scale.or(zero).or(global.map(|tensor| (tensor, "global scales"))) {
            None => Ok(()),
            Some((tensor, what)) => Err(format!("tensor '{}': format '{format}' has no {what}", tensor.name)),
        }
    }

    /// The bytes of the scales as they lie in the file, of the right type.
    pub fn raw_scales(&self, format: &Format) -> Result<&'a [u8], String> {
        let Some(scaling) = format.scaling else {
            return Ok(&[]);
        };
        let tensor = self.scale.ok_or_else(|| {
            format!(
                "tensor '{}' has no scales beside it, which '{format}' needs",
                self.data.name
            )
        })?;
        let (fits, what): (&[Dtype], _) = match scaling.scale {
            Scale::E8m0(_) => (&[Dtype::F8_E8M0, Dtype::U8, Dtype::I32, Dtype::U32], "e8m0 scales"),
            Scale::E4m3(_) => (&[Dtype::F8_E4M3, Dtype::U8], "e4m3 scales"),
            Scale::F32(_) => (&[Dtype::F32], "f32 scales"),
            Scale::Half(half, _) => half_types(half),
            Scale::Affine(affine) => affine.half.map_or((&[Dtype::F32], "f32 scales"), half_types),
        };
        expect_type(&tensor, fits, what)?;
        let signed = |code: &u8| matches!(scaling.scale, Scale::E4m3(_)) && *code > 0x7f;
        match tensor.bytes.iter().position(signed) {
            None => Ok(tensor.bytes),
            Some(at) => Err(format!(
                "tensor '{}': scale {:#04x} at {:?}, expected codes up to 0x7f: e4m3 scales have no sign",
                tensor.name,
                tensor.bytes[at],
                unravel(at, tensor.shape)
            )),
        }
    }

    /// The scales in row-major order, one for each group.
    fn scales(
        &self,
        format: &Format,
        rows: usize,
        cols: usize,
        layout: Option<&'static Layout>,
    ) -> Result<Vec<u8>, String> {
        let raw = self.raw_scales(format)?;
        let (Some(scaling), Some(tensor)) = (format.scaling, self.scale) else {
            return Ok(Vec::new());
        };
        let (down, across) = scaling.group.count(rows, cols);
        let size = scaling.scale.bytes();
        if let Some(layout) = layout {
            check_layout(layout, size)?;
            let placement = layout.place(&[down, across], &[])?;
            return placement
                .inverse(raw)
                .map_err(|why| format!("tensor '{}', layout {why}", tensor.name));
        }
        let height = scaling.group.tile(rows, cols).0;
        // Of an i32 that holds four bytes, the bytes.
        let per_element = tensor.dtype.bitsize() / 8 / size;
        let (count, last) = (raw.len() / size, tensor.shape.last().unwrap_or(&1) * per_element);
        let in_order = last == across || scaling.group == Group::Tensor || down.min(across) <= 1;
        if count == down * across && in_order {
            return Ok(raw.to_vec());
        }
        if count == rows * across && last == across && height > 1 {
            return merge(raw, rows, across * size, height).map_err(|row| {
                format!(
                    "tensor '{}': row {row} differs from the row above it, expected each scale {height} times, once for \
                     each row of a tile",
                    tensor.name
                )
            });
        }
        let repeated = match height {
            1 => String::new(),
            _ => format!(", or [{rows}, {across}] with each scale {height} times"),
        };
        Err(format!(
            "tensor '{}': {} of shape {:?}, expected [{down}, {across}] {} scales{repeated}; other orders need --layout",
            tensor.name,
            tensor.dtype,
            tensor.shape,
            scaling.scale.kind()
        ))
    }

    /// The bytes of at least as many scales as there are groups, in whatever order.
    pub fn scales_in_any_order(&self, format: &Format, rows: usize, cols: usize) -> Result<Cow<'a, [u8]>, String> {
        let raw = self.raw_scales(format)?;
        let (Some(scaling), Some(tensor)) = (format.scaling, self.scale) else {
            return Ok(raw.into());
        };
        let (down, across) = scaling.group.count(rows, cols);
        let (size, height) = (scaling.scale.bytes(), scaling.group.tile(rows, cols).0);
        if height > 1 && raw.len() == rows * across * size {
            return self.scales(format, rows, cols, None).map(Cow::from);
        }
        if raw.len() >= down * across * size {
            return Ok(raw.into());
        }
        Err(format!(
            "tensor '{}': {} of shape {:?}, expected at least {down} · {across} {} scales",
            tensor.name,
            tensor.dtype,
            tensor.shape,
            scaling.scale.kind()
        ))
    }

    /// The bytes of the zero points, in the order of the scales.
    fn zeros(&self, part: &Part) -> Result<&'a [u8], String> {
        let name = self.data.name;
        let tensor = self
            .zero
            .ok_or_else(|| format!("tensor '{name}' has no zero points beside it"))?;
        expect_type(&tensor, &[part.dtype], "zero points")?;
        let expected = part.shape.iter().product::<usize>();
        match tensor.bytes.len() * 8 / part.dtype.bitsize() == expected {
            true => Ok(tensor.bytes),
            false => Err(format!(
                "tensor '{}': shape {:?}, expected {:?}: {expected} zero points",
                tensor.name, tensor.shape, part.shape
            )),
        }
    }

    /// The bytes of the global scales.
    pub fn globals(&self, part: &Part) -> Result<&'a [u8], String> {
        let tensor = self
            .global
            .ok_or_else(|| format!("tensor '{}' has no global scale beside it", self.data.name))?;
        expect_type(&tensor, &[Dtype::F32], "global scales")?;
        let (found, expected) = (tensor.bytes.len() / 4, part.shape.iter().product::<usize>());
        // Of an empty tensor some write a scale all the same.
        match found == expected || (expected == 0 && found == 1) {
            true => Ok(&tensor.bytes[..expected * 4]),
            false => Err(format!(
                "tensor '{}': shape {:?}, expected {:?}: {expected} global scales",
                tensor.name, tensor.shape, part.shape
            )),
        }
    }
}

/// Layouts of one matrix, of scales of that size.
pub fn check_layout(layout: &Layout, size: usize) -> Result<(), String> {
    if layout.groups != crate::layouts::Groups::None {
        return Err(format!(
            "layout '{}' needs the ends of groups, which a file of tensors has not",
            layout.name
        ));
    }
    if layout.scale != size {
        let (name, takes) = (layout.name, layout.scale);
        return Err(format!(
            "layout '{name}' takes scales of {takes} bytes, the format has {size}"
        ));
    }
    Ok(())
}

/// One row of each `height`; or the first row that is not the same.
fn merge(raw: &[u8], rows: usize, stride: usize, height: usize) -> Result<Vec<u8>, usize> {
    let row = |r: usize| &raw[r * stride..(r + 1) * stride];
    match (0..rows).find(|r| row(*r) != row(r / height * height)) {
        Some(r) => Err(r),
        None => Ok((0..rows).step_by(height).flat_map(row).copied().collect()),
    }
}

/// Types a tensor of scales of 16 bits may have in files.
fn half_types(half: Half) -> (&'static [Dtype], &'static str) {
    match half {
        Half::F16 => (&[Dtype::F16, Dtype::U16], "f16 scales"),
        Half::Bf16 => (&[Dtype::BF16, Dtype::U16], "bf16 scales"),
    }
}

/// Types a tensor of codes may have in files.
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

fn expect_type(tensor: &Tensor, fits: &[Dtype], what: &str) -> Result<(), String> {
    if fits.contains(&tensor.dtype) {
        return Ok(());
    }
    let names: Vec<String> = fits.iter().map(ToString::to_string).collect();
    let (last, others) = names.split_last().expect("some type fits");
    let names = match others {
        [] => last.clone(),
        _ => format!("{} or {last}", others.join(", ")),
    };
    let (name, found) = (tensor.name, tensor.dtype);
    Err(format!("tensor '{name}': type {found}, expected {names} for {what}"))
}
