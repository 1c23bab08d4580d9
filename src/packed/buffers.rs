//! The tensors that hold one quantized tensor, checked against its format.

use std::borrow::Cow;

use half::{bf16, f16};
use safetensors::Dtype;

use super::Stack;
use crate::error::counted;
use crate::formats::{Element, Encoded, Format, Group, Part, Scale, Scaling};
use crate::layouts::{Layout, Placement};
use crate::metrics::unravel;
use crate::tensorfile::Tensor;

/// Codes, scales and global scale, as they are in a file.
#[derive(Clone, Copy, Debug)]
pub struct Buffers<'a> {
    pub data: Tensor<'a>,
    pub scale: Option<Tensor<'a>>,
    pub global: Option<Tensor<'a>>,
    /// Zero points. No format has any, so what has them is refused.
    pub zero: Option<Tensor<'a>>,
    /// Codes are `[…, blocks, bytes]`: the last two dimensions are one.
    pub blocked: bool,
}

/// A quantized tensor whose types, shapes and codes were checked, so that every matrix can be taken out of it.
#[derive(Debug)]
pub struct Opened<'a> {
    pub format: Format,
    pub stack: Stack,
    data: &'a [u8],
    scales: Option<Scales<'a>>,
    globals: Option<Share<'a>>,
}

/// The scales next to the elements, as they are in a file.
#[derive(Debug)]
pub(super) struct Scales<'a> {
    tensor: Tensor<'a>,
    scaling: Scaling,
    order: Order,
    /// One for all matrices.
    shared: bool,
}

/// How the scales of a matrix lie.
#[derive(Debug)]
enum Order {
    /// Row-major, or as they are where nobody asks for an order.
    Plain,
    /// Row-major, each row of scales once for every row of its tile.
    Repeated { height: usize, stride: usize },
    Placed(Placement),
}

/// What every matrix has a share of, or all have together.
#[derive(Clone, Copy, Debug)]
struct Share<'a> {
    bytes: &'a [u8],
    /// Bytes of one matrix.
    len: usize,
    shared: bool,
}

impl<'a> Share<'a> {
    fn of(&self, expert: usize) -> &'a [u8] {
        let at = if self.shared { 0 } else { expert * self.len };
        &self.bytes[at..][..self.len]
    }
}

impl<'a> Buffers<'a> {
    /// The names of the tensors.
    pub fn names(&self) -> impl Iterator<Item = &'a str> + use<'a> {
        let tensors = [Some(self.data), self.scale, self.global];
        tensors.into_iter().flatten().map(|tensor| tensor.name)
    }

    /// The types and shapes of the tensors, in words.
    pub(super) fn shapes(&self) -> String {
        let of = |tensor: Tensor| format!("{} {:?}", tensor.dtype, tensor.shape);
        let scale = self.scale.map_or("no scales".into(), |tensor| format!("scales {}", of(tensor)));
        let global = self.global.map_or(String::new(), |tensor| format!(" and global scales {}", of(tensor)));
        format!("codes {} with {scale}{global}", of(self.data))
    }

    /// The shape of the tensor that was quantized, from that of its codes.
    pub fn shape(&self, format: &Format) -> Result<Vec<usize>, String> {
        self.check_parts(format)?;
        let mut shape = self.data_shape()?;
        let (element, dtype) = (format.element, self.data.dtype);
        match shape.last_mut() {
            // Refused by its caller if that is more than memory has addresses.
            Some(cols) if packs(element, dtype) => *cols = cols.saturating_mul(8) / element.stored_bits(),
            Some(_) => {}
            None => return Err(format!("tensor '{}' has no dimensions", self.data.name)),
        }
        Ok(shape)
    }

    /// The shape of the codes, rows of blocks as rows.
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

    /// The tensor of that shape, with its scales in that layout; errors name tensor, place, what was found and what was
    /// expected.
    pub fn open(
        &self,
        format: &Format,
        shape: &[usize],
        layout: Option<&'static Layout>,
    ) -> Result<Opened<'a>, String> {
        let (stack, data) = self.codes(format, shape)?;
        let scales = self.scales(format, &stack, layout)?;
        if let Some(scales) = &scales {
            scales.check_signs()?;
            scales.check_rows(&stack)?;
        }
        self.opened(format, stack, data, scales)
    }

    /// The same with the scales in whatever order they are: at least as many for each matrix as it has groups.
    pub fn open_in_any_order(&self, format: &Format, shape: &[usize]) -> Result<Opened<'a>, String> {
        let (stack, data) = self.codes(format, shape)?;
        let repeated = |scales: &Scales| matches!(scales.order, Order::Repeated { .. });
        if self.scales(format, &stack, None).is_ok_and(|scales| scales.as_ref().is_some_and(repeated)) {
            return self.open(format, shape, None);
        }
        let scales = match format.scaling {
            None => None,
            Some(scaling) => Some(self.unordered(scaling, format, &stack)?),
        };
        scales.iter().try_for_each(Scales::check_signs)?;
        self.opened(format, stack, data, scales)
    }

    fn opened(
        &self,
        format: &Format,
        stack: Stack,
        data: &'a [u8],
        scales: Option<Scales<'a>>,
    ) -> Result<Opened<'a>, String> {
        let parts = format.parts(stack.rows, stack.cols);
        let global = parts.iter().find(|part| part.name == "global");
        Ok(Opened {
            format: *format,
            data,
            scales,
            globals: global.map(|part| self.globals(part, &stack)).transpose()?,
            stack,
        })
    }

    /// A tensor of that shape as matrices, and the bytes of its codes.
    fn codes(&self, format: &Format, shape: &[usize]) -> Result<(Stack, &'a [u8]), String> {
        let (data, element) = (&self.data, format.element);
        let stack = Stack::new(shape).ok_or_else(|| {
            let name = data.name;
            format!("tensor '{name}': shape {shape:?} has more elements than memory has addresses")
        })?;
        let cols = shape.last().copied().unwrap_or(1);
        format
            .check(cols)
            .map_err(|why| format!("tensor '{}': {why}", data.name))?;
        self.check_parts(format)?;
        let mut expected = shape.to_vec();
        if let Some(last) = expected.last_mut() {
            *last = across(element, data.dtype, cols);
        }
        if self.data_shape()? != expected {
            return Err(format!(
                "tensor '{}': shape {:?}, expected {expected:?} for the {} codes of a {shape:?} tensor",
                data.name, data.shape, element.name
            ));
        }
        let unused = data.bytes.iter().position(|code| element.bits == 6 && *code > 0x3f);
        match unused {
            None => Ok((stack, data.bytes)),
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
        let of = |tensor: Option<Tensor<'a>>, has: bool, what| tensor.filter(|_| !has).map(|tensor| (tensor, what));
        let unknown = of(self.scale, format.scaling.is_some(), "scales")
            .or(of(self.global, format.global.is_some(), "global scales"))
            .or(of(self.zero, false, "zero points"));
        match unknown {
            None => Ok(()),
            Some((tensor, what)) => Err(format!("tensor '{}': format '{format}' has no {what}", tensor.name)),
        }
    }

    /// The tensor of scales, of the right type.
    fn scale_tensor(&self, scaling: Scaling, format: &Format) -> Result<Tensor<'a>, String> {
        let tensor = self.scale.ok_or_else(|| {
            format!(
                "tensor '{}' has no scales beside it, which '{format}' needs",
                self.data.name
            )
        })?;
        let what = format!("{} scales", scaling.scale.kind());
        expect_type(&tensor, scale_types(&scaling.scale), &what)?;
        Ok(tensor)
    }

    /// The scales by their shape, one for each group of each matrix; none where the format has none.
    pub(super) fn scales(
        &self,
        format: &Format,
        stack: &Stack,
        layout: Option<&'static Layout>,
    ) -> Result<Option<Scales<'a>>, String> {
        let Some(scaling) = format.scaling else {
            return Ok(None);
        };
        let mut scales = Scales::new(self.scale_tensor(scaling, format)?, scaling);
        let (tensor, count) = (scales.tensor, scales.count());
        let Stack { experts, rows, cols } = *stack;
        let (down, across) = scaling.group.count(rows, cols);
        if let Some(layout) = layout {
            check_layout(layout, scaling.scale.bytes())?;
            let placement = layout.place(&[down, across], &[])?;
            let (found, expected) = (count * scaling.scale.bytes(), experts.saturating_mul(placement.len()));
            if found != expected {
                return Err(format!(
                    "tensor '{}', layout {}: the buffer has {found} bytes, expected {expected}{}",
                    tensor.name,
                    layout.name,
                    each(experts)
                ));
            }
            scales.order = Order::Placed(placement);
            return Ok(Some(scales));
        }
        let height = scaling.group.tile(rows, cols).0;
        let last = tensor.shape.last().unwrap_or(&1) * scales.per_element();
        let in_order = last == across || scaling.group == Group::Tensor || down.min(across) <= 1;
        scales.shared = scaling.group == Group::Tensor && count == 1;
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
        Err(format!(
            "tensor '{}': {} of shape {:?}, expected {} {} scales{repeated}; other orders need --layout",
            tensor.name,
            tensor.dtype,
            tensor.shape,
            shape(down),
            scaling.scale.kind()
        ))
    }

    /// At least as many scales as there are groups.
    fn unordered(&self, scaling: Scaling, format: &Format, stack: &Stack) -> Result<Scales<'a>, String> {
        let mut scales = Scales::new(self.scale_tensor(scaling, format)?, scaling);
        let (tensor, count, experts) = (scales.tensor, scales.count(), stack.experts);
        let (down, across) = scaling.group.count(stack.rows, stack.cols);
        scales.shared = scaling.group == Group::Tensor && count == 1;
        if scales.shared || (count >= experts * down * across && count.is_multiple_of(experts.max(1))) {
            return Ok(scales);
        }
        Err(format!(
            "tensor '{}': {} of shape {:?}, expected at least {down} · {across} {} scales{}",
            tensor.name,
            tensor.dtype,
            tensor.shape,
            scaling.scale.kind(),
            each(experts)
        ))
    }

    /// The bytes of the global scales.
    fn globals(&self, part: &Part, stack: &Stack) -> Result<Share<'a>, String> {
        let tensor = self
            .global
            .ok_or_else(|| format!("tensor '{}' has no global scale beside it", self.data.name))?;
        expect_type(&tensor, &[Dtype::F32], "global scales")?;
        let each = part.shape.iter().product::<usize>();
        let (found, expected) = (tensor.bytes.len() / 4, stack.experts * each);
        // One that all matrices share; of an empty tensor some write a scale all the same.
        let shared = found == 1 && each <= 1;
        match shared || found == expected {
            true => Ok(Share {
                bytes: tensor.bytes,
                len: each * 4,
                shared,
            }),
            false => Err(format!(
                "tensor '{}': shape {:?}, expected {}{}",
                tensor.name,
                tensor.shape,
                counted(expected, "global scale"),
                self::each(stack.experts)
            )),
        }
    }
}

/// That a number is one of so many matrices.
fn each(experts: usize) -> String {
    match experts {
        1 => String::new(),
        _ => format!(", the same for each of {experts} matrices"),
    }
}

impl<'a> Opened<'a> {
    /// What is stored of one matrix, in the format's own order.
    pub fn matrix(&self, expert: usize) -> Encoded {
        let Stack { rows, cols, .. } = self.stack;
        let mut parts = self.format.parts(rows, cols);
        for part in &mut parts {
            part.bytes = match (part.name, &self.scales, self.globals) {
                ("data", ..) => self.stack.share(self.data, expert).to_vec(),
                ("scale", Some(scales), _) => scales.matrix(&self.stack, expert),
                (_, _, Some(globals)) => globals.of(expert).to_vec(),
                _ => Vec::new(),
            };
        }
        Encoded { rows, cols, parts }
    }
}

impl<'a> Scales<'a> {
    fn new(tensor: Tensor<'a>, scaling: Scaling) -> Self {
        Self {
            tensor,
            scaling,
            order: Order::Plain,
            shared: false,
        }
    }

    /// Scales in one element of the tensor: an i32 holds four bytes.
    fn per_element(&self) -> usize {
        (self.tensor.dtype.bitsize() / 8 / self.scaling.scale.bytes()).max(1)
    }

    fn count(&self) -> usize {
        self.tensor.bytes.len() / (self.tensor.dtype.bitsize() / 8) * self.per_element()
    }

    /// Whether no scale has a sign.
    fn check_signs(&self) -> Result<(), String> {
        let tensor = &self.tensor;
        let signed = |code: &u8| matches!(self.scaling.scale, Scale::E4m3(_)) && *code > 0x7f;
        match tensor.bytes.iter().position(signed) {
            None => Ok(()),
            Some(at) => Err(format!(
                "tensor '{}': scale {:#04x} at {:?}, expected codes up to 0x7f: e4m3 scales have no sign",
                tensor.name,
                tensor.bytes[at],
                unravel(at, tensor.shape)
            )),
        }
    }

    /// Whether rows that stand for one tile are alike.
    fn check_rows(&self, stack: &Stack) -> Result<(), String> {
        let Order::Repeated { height, stride } = self.order else {
            return Ok(());
        };
        for expert in stack.matrices() {
            let bytes = self.share(stack, expert);
            let row = |r: usize| &bytes[r * stride..(r + 1) * stride];
            if let Some(r) = (0..stack.rows).find(|r| row(*r) != row(r / height * height)) {
                return Err(format!(
                    "tensor '{}': row {} differs from the row above it, expected each scale {height} times, once for \
                     each row of a tile",
                    self.tensor.name,
                    expert * stack.rows + r
                ));
            }
        }
        Ok(())
    }

    /// The bytes of the scales of a matrix as they lie, each of the size that the format has.
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

    fn matrix(&self, stack: &Stack, expert: usize) -> Vec<u8> {
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

/// Bytes or elements of the file that so many codes take: bytes hold several codes, but the type F4 is one code.
fn across(element: &Element, dtype: Dtype, cols: usize) -> usize {
    match packs(element, dtype) {
        true => cols * element.stored_bits() / 8,
        false => cols,
    }
}

/// Whether a byte holds several codes.
fn packs(element: &Element, dtype: Dtype) -> bool {
    element.stored_bits() < 8 && dtype != Dtype::F4
}

/// Types a tensor of scales may have in files; bf16 and f16 are f32 numbers too.
fn scale_types(scale: &Scale) -> &'static [Dtype] {
    match scale {
        Scale::E8m0(_) => &[Dtype::F8_E8M0, Dtype::U8, Dtype::I32, Dtype::U32],
        Scale::E4m3(_) => &[Dtype::F8_E4M3, Dtype::U8],
        Scale::F32(_) => &[Dtype::F32, Dtype::BF16, Dtype::F16],
    }
}

/// Types a tensor of codes may have in files.
fn code_types(element: &Element) -> Vec<Dtype> {
    match (element.name, element.bits) {
        ("e2m1", _) => vec![Dtype::U8, Dtype::I8, Dtype::F4],
        (_, 4) => vec![Dtype::U8, Dtype::I8],
        (_, 6) => vec![Dtype::U8],
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
