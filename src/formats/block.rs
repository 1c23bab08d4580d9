//! Block formats: an element under none, one or two levels of scales.

use safetensors::Dtype;

use super::codec::{Codec, Encoded, Part, rows};
use super::codes;
use super::element::{Element, Repr};
use super::scale::{INFINITY_BITS, Quotient, Scale};

/// The elements that share a scale.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Group {
    /// So many consecutive channels of a row.
    Block(usize),
    /// A row.
    Token,
    /// All rows of one call.
    Tensor,
}

impl Group {
    /// Elements in it.
    fn len(self, len: usize, cols: usize) -> usize {
        match self {
            Self::Block(size) => size,
            Self::Token => cols,
            Self::Tensor => len.max(1),
        }
    }

    /// How many there are, as a shape.
    fn shape(self, rows: usize, cols: usize) -> Vec<usize> {
        match self {
            Self::Block(size) => vec![rows, cols / size],
            Self::Token => vec![rows, 1],
            Self::Tensor => vec![rows.min(1)],
        }
    }
}

/// The scales next to the elements.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Scaling {
    pub group: Group,
    pub scale: Scale,
}

/// An element format with up to two levels of scales.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Format {
    pub element: &'static Element,
    pub scaling: Option<Scaling>,
    /// Elements that share the f32 above the block scales; only over [`Scale::E4m3`].
    pub global: Option<Group>,
}

/// A [`Format`] with the name it was asked for by.
pub(super) struct FormatCodec {
    pub name: String,
    pub doc: String,
    pub format: Format,
}

impl Codec for FormatCodec {
    fn name(&self) -> String {
        self.name.clone()
    }

    fn doc(&self) -> &str {
        &self.doc
    }

    fn bytes_per_row(&self, cols: usize) -> f64 {
        self.format.bytes_per_row(cols)
    }

    fn check(&self, cols: usize) -> Result<(), String> {
        self.format
            .check(cols)
            .map_err(|why| format!("format '{}': {why}", self.name))
    }

    fn encode(&self, x: &[f32], cols: usize) -> Encoded {
        let rows = rows(self, x.len(), cols);
        pulp::Arch::new().dispatch(Encode {
            format: &self.format,
            x,
            rows,
            cols,
        })
    }

    fn decode(&self, encoded: &Encoded, out: &mut [f32]) {
        assert_eq!(out.len(), encoded.rows * encoded.cols, "elements of '{}'", self.name);
        pulp::Arch::new().dispatch(Decode {
            format: &self.format,
            encoded,
            out,
        });
    }
}

/// [`Format::encode`] compiled for each instruction set. A closure would not do: nothing forces it to be inlined into the
/// code for the better ones.
struct Encode<'a> {
    format: &'a Format,
    x: &'a [f32],
    rows: usize,
    cols: usize,
}

impl pulp::WithSimd for Encode<'_> {
    type Output = Encoded;

    #[inline(always)]
    fn with_simd<S: pulp::Simd>(self, _: S) -> Encoded {
        self.format.encode(self.x, self.rows, self.cols)
    }
}

struct Decode<'a> {
    format: &'a Format,
    encoded: &'a Encoded,
    out: &'a mut [f32],
}

impl pulp::WithSimd for Decode<'_> {
    type Output = ();

    #[inline(always)]
    fn with_simd<S: pulp::Simd>(self, _: S) {
        self.format.decode(self.encoded, self.out);
    }
}

impl Format {
    fn bytes_per_row(&self, cols: usize) -> f64 {
        let per_group = |group, bytes| match group {
            Group::Block(size) => (cols.div_ceil(size) * bytes) as f64,
            Group::Token => bytes as f64,
            Group::Tensor => 0.0,
        };
        let scales = self
            .scaling
            .map_or(0.0, |level| per_group(level.group, level.scale.bytes()));
        let globals = self.global.map_or(0.0, |group| per_group(group, 4));
        (cols * self.element.bits as usize) as f64 / 8.0 + scales + globals
    }

    fn check(&self, cols: usize) -> Result<(), String> {
        if cols == 0 {
            return Err("a row has no channels".into());
        }
        if let Some(Scaling {
            group: Group::Block(size),
            ..
        }) = self.scaling
            && cols % size != 0
        {
            return Err(format!("{cols} channels are not whole blocks of {size}"));
        }
        if cols * self.element.bits as usize % 8 != 0 {
            return Err(format!(
                "{cols} channels of {} bits are not whole bytes",
                self.element.bits
            ));
        }
        Ok(())
    }

    #[inline(always)]
    fn encode(&self, x: &[f32], rows: usize, cols: usize) -> Encoded {
        let bits = self.element.bits as usize;
        let mut data = vec![0; x.len() * bits / 8];
        let mut parts = Vec::new();
        let mut scaled = x.to_vec();
        let global_len = self.global.map_or(x.len().max(1), |group| group.len(x.len(), cols));
        let globals: Vec<f32> = match (self.scaling, self.global) {
            (
                Some(Scaling {
                    scale: Scale::E4m3(rule),
                    ..
                }),
                Some(_),
            ) => x
                .chunks(global_len)
                .map(|part| (rule.global)(finite(codes::amax(part))))
                .collect(),
            _ => vec![1.0; 1],
        };
        if let Some(Scaling { group, scale }) = self.scaling {
            let len = group.len(x.len(), cols);
            let bytes = scale.bytes();
            let limits = self.element.limits();
            let mut scales = vec![0; x.len().div_ceil(len) * bytes];
            for (index, (block, stored)) in scaled.chunks_mut(len).zip(scales.chunks_mut(bytes)).enumerate() {
                let global = globals[index * len / global_len];
                let quotient = scale.encode(codes::amax(block), &limits, global, stored);
                codes::divide(block, quotient);
            }
            let dtype = match scale {
                Scale::E8m0(_) => Dtype::F8_E8M0,
                Scale::F32(_) => Dtype::F32,
                Scale::E4m3(_) => Dtype::F8_E4M3,
            };
            parts.push(Part {
                name: "scale",
                dtype,
                shape: group.shape(rows, cols),
                bytes: scales,
            });
        }
        codes::encode(self.element, &scaled, &mut data);
        if let Some(group) = self.global {
            let bytes = globals.iter().flat_map(|global| global.to_le_bytes()).collect();
            parts.push(Part {
                name: "global",
                dtype: Dtype::F32,
                shape: group.shape(rows, cols),
                bytes,
            });
        }
        let shape = vec![rows, if bits == 4 { cols / 2 } else { cols }];
        parts.insert(
            0,
            Part {
                name: "data",
                dtype: dtype(self.element),
                shape,
                bytes: data,
            },
        );
        Encoded { rows, cols, parts }
    }

    #[inline(always)]
    fn decode(&self, encoded: &Encoded, out: &mut [f32]) {
        let total = out.len();
        let data = encoded.part("data");
        assert_eq!(
            data.len(),
            total * self.element.bits as usize / 8,
            "bytes of codes of '{self}'"
        );
        codes::decode(self.element, data, out);
        let Some(Scaling { group, scale }) = self.scaling else {
            return;
        };
        let len = group.len(total, encoded.cols);
        assert_eq!(
            encoded.part("scale").len(),
            total.div_ceil(len) * scale.bytes(),
            "bytes of scales of '{self}'"
        );
        let globals = encoded.part("global").as_chunks().0;
        let global_len = self.global.map_or(total.max(1), |group| group.len(total, encoded.cols));
        let stored = encoded.part("scale").chunks(scale.bytes());
        for (index, (block, stored)) in out.chunks_mut(len).zip(stored).enumerate() {
            let global = globals
                .get(index * len / global_len)
                .map_or(1.0, |bytes| f32::from_le_bytes(*bytes));
            codes::divide(block, Quotient::times(scale.decode(stored, global)));
        }
    }
}

/// The float of these bits, infinity made NaN: a global scale of infinity would make zeros of everything finite.
fn finite(amax: u32) -> f32 {
    if amax >= INFINITY_BITS {
        f32::NAN
    } else {
        f32::from_bits(amax)
    }
}

fn dtype(element: &Element) -> Dtype {
    match (element.name, element.repr, element.bits) {
        ("bf16", ..) => Dtype::BF16,
        ("f16", ..) => Dtype::F16,
        ("e4m3", ..) => Dtype::F8_E4M3,
        ("e5m2", ..) => Dtype::F8_E5M2,
        (_, Repr::Integer(_), 8) => Dtype::I8,
        _ => Dtype::U8,
    }
}
