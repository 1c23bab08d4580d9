//! Decodes the codes and scales of a quantized matrix to numbers, from any storage format.

use safetensors::Dtype;

use super::config::{Scheme, nvfp4};
use super::conventions::Convention;
use super::parts::Parts;
use super::words::{Words, is_words, shown, unexpected};
use crate::packed::{Buffers, Opened, Stack, codes, values};
use ulplab_core::error::refuse;
use ulplab_core::formats::{Format, Global, Group, Scale};
use ulplab_core::tensorfile::{Flaw, Tensor};

/// Storage format of a matrix or of a stack of matrices, with the tensors that hold the bytes.
#[derive(Debug)]
pub enum Reading<'a> {
    /// Codes stored in bytes, in a format with a format string such as `e4m3/b128x128:f32`.
    Bytes {
        /// Shape of the matrices.
        shape: Vec<usize>,
        /// The tensors of the file that hold the codes and scales.
        buffers: Buffers<'a>,
        /// The tensors of `buffers`, checked against the format. The format says if the global scale multiplies or divides.
        opened: Box<Opened<'a>>,
    },
    /// Integer codes packed into 32-bit words.
    Words(Words<'a>),
}

/// A matrix as numbers. Each row is an output channel.
#[derive(Debug)]
pub struct Matrix {
    /// Number of output channels.
    pub rows: usize,
    /// Number of input channels.
    pub cols: usize,
    /// Value of the code minus the zero point, for each element, row by row.
    pub codes: Vec<f32>,
    /// Scales of all groups, row by row.
    pub scales: Vec<f32>,
    /// Factor that multiplies all scales.
    pub factor: f64,
    /// True if `factor` comes from a stored global scale.
    pub has_global: bool,
    /// For each column, the index of its scale within a row of scales.
    columns: Vec<usize>,
    /// Number of scales in a row of scales.
    across: usize,
    /// Number of consecutive rows that share their scales.
    height: usize,
    /// Values that a code can have.
    pub grid: Grid,
    /// Smallest normal value of the type of the scales; 0 if the type has scales small enough for any weight.
    pub least: f64,
}

/// Values that a code can have.
#[derive(Debug)]
pub enum Grid {
    /// Finite values in ascending order.
    Values(Vec<f32>),
    /// Integer codes minus the zero point of their group; without zero points, minus half of the range of codes.
    Integers {
        /// Number of bits of a code.
        bits: usize,
        /// Zero points, in the order of the scales.
        zeros: Option<Vec<f32>>,
    },
}

/// Finds the storage format of a matrix that has codes and scales: the stated `scheme` if it fits, else the format that types and
/// shapes imply. In the second case, also returns the `scheme` that was contradicted.
///
/// # Errors
/// Returns an error if no format fits. The error names the tensor whose shape or type is wrong.
pub fn choose<'a>(
    parts: &Parts<'a>,
    convention: &Convention,
    scheme: Option<Scheme>,
    offset: i32,
) -> Result<(Reading<'a>, Option<Scheme>), Flaw> {
    let (codes, scale) = (parts.codes.expect("checked"), parts.scale.expect("checked"));
    if let (Some(packing), true) = (convention.packing, is_words(&codes)) {
        let said = scheme.filter(|scheme| scheme.element == "int");
        let (mut words, not) = match Words::new(parts, packing, said) {
            Ok(words) => (words, scheme.filter(|_| said.is_none())),
            // If shapes are consistent but contradict the configuration, take the group size from the shapes.
            Err(misfit) => match Words::new(parts, packing, None) {
                Ok(words) if said.is_some() => (words, scheme),
                _ => return Err(misfit),
            },
        };
        words.offset = offset;
        return Ok((Reading::Words(words), not));
    }
    let Some((packed, mut buffers)) = parts.buffers(convention) else {
        return Err(unexpected(&codes, format!("codes as {} packs them", convention.name)));
    };
    // Zero points that are all 0 count as absent.
    buffers.zero = buffers.zero.filter(|zero| zero.bytes.iter().any(|byte| *byte != 0));
    let fit = |format: &Format| {
        let shape = buffers.shape(format)?;
        let opened = Box::new(buffers.fits(format, &shape)?);
        tiled(format, &shape, &scale).map(|()| (shape, opened))
    };
    let rule = packed.rule;
    let stated = scheme.map(|scheme| scheme.formats(rule)).unwrap_or_default();
    let (said, likely) = (stated.len(), likely(&codes, &scale, parts.global.is_some(), rule));
    let (mut first, mut formats) = (None, stated.into_iter().chain(likely).enumerate());
    let found = formats.find_map(|(at, format)| match fit(&format) {
        Ok(fitting) => Some((at, fitting)),
        Err(why) => {
            first.get_or_insert(why);
            None
        }
    });
    match found {
        Some((at, (shape, opened))) => {
            let silent = scheme.is_none_or(|scheme| said == 0 && scheme.element == opened.format.element.name);
            let not = scheme.filter(|_| at >= said && !silent);
            Ok((Reading::Bytes { shape, buffers, opened }, not))
        }
        None => Err(misfit(&first.unwrap_or_default(), &codes, &scale)),
    }
}

/// Checks that scales of tiles have the shape `[rows of tiles, columns of tiles]`: loaders reject another shape even if it has
/// the correct number of scales.
fn tiled(format: &Format, shape: &[usize], scale: &Tensor) -> Result<(), String> {
    let group = format.scaling.map(|scaling| scaling.group);
    let (Some(group @ Group::Tile { rows: 2.., .. }), [.., rows, cols]) = (group, shape) else {
        return Ok(());
    };
    let (down, across) = group.count(*rows, *cols);
    let (name, found) = (scale.name, scale.shape);
    let why = format_args!("tensor '{name}': shape {found:?}, expected [{down}, {across}] scales");
    refuse(!found.ends_with(&[down, across]), why)
}

/// Returns the formats that the types of codes and scales allow. Formats that fit fewer shapes come first, because the caller
/// uses the first format that fits.
fn likely(codes: &Tensor, scale: &Tensor, global: bool, rule: Option<&str>) -> Vec<Format> {
    let powers = matches!(scale.dtype, Dtype::F8_E8M0 | Dtype::U8);
    let of = |element: &str, groups: &[&str], kind: &str| -> Vec<String> {
        groups.iter().map(|group| format!("{element}/{group}:{kind}")).collect()
    };
    const WITH_FLOATS: &[&str] = &["t", "token", "b128", "b64", "b32", "b16", "b256", "b128x128"];
    const WITH_POWERS: &[&str] = &["b32", "b128", "b64", "b16", "b128x128"];
    let texts = match (codes.dtype, scale.dtype) {
        (Dtype::F8_E4M3, _) if powers => of("e4m3", WITH_POWERS, "e8m0"),
        (Dtype::F8_E5M2, _) if powers => of("e5m2", WITH_POWERS, "e8m0"),
        (Dtype::F8_E4M3, _) => of("e4m3", WITH_FLOATS, "f32"),
        (Dtype::F8_E5M2, _) => of("e5m2", WITH_FLOATS, "f32"),
        (Dtype::U8 | Dtype::I8 | Dtype::F4, Dtype::F8_E4M3) if global => vec![nvfp4(rule)],
        (Dtype::U8 | Dtype::I8 | Dtype::F4, Dtype::F8_E4M3) => vec!["e2m1/b16:e4m3".into()],
        (Dtype::U8 | Dtype::I8 | Dtype::F4, _) if powers => of("e2m1", &["b32", "b16", "b64"], "e8m0"),
        (Dtype::I8, _) => of("int8", WITH_FLOATS, "f32"),
        _ => Vec::new(),
    };
    texts.iter().filter_map(|text| text.parse().ok()).collect()
}

/// Converts an error message of [`Buffers::fits`] to a flaw: the tensor, what was found and what was expected.
fn misfit(message: &str, codes: &Tensor, scale: &Tensor) -> Flaw {
    let quoted = message.split('\'').nth(1);
    let tensor = if quoted == Some(scale.name) { scale } else { codes };
    let (_, expected) = message.split_once(", expected ").unwrap_or((message, ""));
    let expected = match expected.trim_end_matches("; other orders need --layout") {
        "" if message.is_empty() => format!("codes with scales of {}, in a format that is known", shown(scale)),
        "" => message.into(),
        expected => expected.into(),
    };
    Flaw {
        subject: quoted.unwrap_or(tensor.name).into(),
        ..unexpected(tensor, expected)
    }
}

impl<'a> Reading<'a> {
    /// Shape of the matrices, with output channels before input channels.
    pub fn shape(&self) -> Vec<usize> {
        match self {
            Self::Bytes { shape, .. } => shape.clone(),
            Self::Words(words) => vec![words.outputs, words.inputs],
        }
    }

    /// Number and shape of the matrices.
    pub fn stack(&self) -> Stack {
        Stack::new(&self.shape()).unwrap_or_default()
    }

    /// Format of codes in bytes; `None` if the codes are in words.
    pub fn of_bytes(&self) -> Option<&Format> {
        match self {
            Self::Bytes { opened, .. } => Some(&opened.format),
            Self::Words(_) => None,
        }
    }

    /// The format as text.
    pub fn format(&self) -> String {
        match self {
            Self::Bytes { opened, .. } => opened.format.to_string(),
            Self::Words(words) => words.words(),
        }
    }

    /// Number of bits of a code.
    pub fn bits(&self) -> usize {
        match self {
            Self::Bytes { opened, .. } => opened.format.element.bits as usize,
            Self::Words(words) => words.bits,
        }
    }

    /// True if all elements of a matrix share one scale.
    pub fn has_one_scale(&self) -> bool {
        let scaling = self.of_bytes().and_then(|format| format.scaling);
        scaling.is_some_and(|scaling| scaling.group == Group::Tensor)
    }

    /// True if several codes share a byte or word, so that their order can be wrong.
    pub fn is_packed(&self) -> bool {
        match self {
            Self::Bytes { opened, buffers, .. } => {
                opened.format.element.stored_bits() == 4 && buffers.data.dtype != Dtype::F4
            }
            Self::Words(words) => words.bits == 4,
        }
    }

    /// Decodes matrix number `expert`. If `other` is true, reads the codes of each byte or word in the order that the convention
    /// does not use.
    pub fn matrix(&self, expert: usize, other: bool) -> Matrix {
        match self {
            Self::Bytes { opened, .. } => in_bytes(opened, expert, other),
            Self::Words(words) => in_words(words, other),
        }
    }
}

fn in_bytes(opened: &Opened, expert: usize, other: bool) -> Matrix {
    let (format, encoded) = (&opened.format, opened.matrix(expert));
    let (rows, cols) = (encoded.rows, encoded.cols);
    let values = values(format);
    let stored = codes(format, encoded.part("data"));
    let mut numbers: Vec<f32> = stored.iter().map(|code| values[usize::from(*code)]).collect();
    if other {
        numbers.chunks_exact_mut(2).for_each(|pair| pair.swap(0, 1));
    }
    let mut sorted: Vec<f32> = values.into_iter().filter(|value| value.is_finite()).collect();
    sorted.sort_by(f32::total_cmp);
    sorted.dedup_by(|a, b| *a == *b);
    let scaling = format.scaling.expect("formats of checkpoints have scales");
    let scales = encoded.part("scale").chunks_exact(scaling.scale.bytes());
    let global = encoded.part("global").first_chunk();
    let global = global.map(|bytes| f64::from(f32::from_le_bytes(*bytes)));
    let (height, width) = scaling.group.tile(rows, cols);
    Matrix {
        rows,
        cols,
        codes: numbers,
        scales: scales.map(|bytes| scaling.scale.value(bytes)).collect(),
        factor: global.map_or(1.0, |global| multiplier(&scaling.scale, global)),
        has_global: global.is_some(),
        columns: (0..cols).map(|col| col / width).collect(),
        across: scaling.group.count(rows, cols).1,
        height,
        grid: Grid::Values(sorted),
        least: match scaling.scale {
            Scale::E4m3(_) => 1.0 / 64.0,
            _ => 0.0,
        },
    }
}

/// Factor by which a stored global scale multiplies the block scales.
fn multiplier(scale: &Scale, stored: f64) -> f64 {
    match scale {
        Scale::E4m3(rule) if rule.stored == Global::Encode => 1.0 / stored,
        Scale::E4m3(rule) if rule.stored == Global::Amax => stored / f64::from(rule.span),
        _ => stored,
    }
}

fn in_words(words: &Words, other: bool) -> Matrix {
    let (rows, cols, across) = (words.outputs, words.inputs, words.groups());
    let stored = words.scale.to_f32().expect("scales were found to be numbers");
    let columns: Vec<usize> = words.columns().into_iter().map(|column| column.unwrap_or(0)).collect();
    let mut codes = Vec::with_capacity(rows * cols);
    let mut zeros = Vec::with_capacity(rows * across);
    for row in 0..rows {
        let zero = |group: usize| words.zero(group, row, other).unwrap_or(words.middle() as i32);
        zeros.extend((0..across).map(|group| zero(group) as f32));
        let zero = |col: usize| zeros[row * across + columns[col]];
        codes.extend((0..cols).map(|col| words.code(row, col, other) as f32 - zero(col)));
    }
    let scale = |group: usize, row: usize| stored[words.index_of(group, row, rows)];
    let scales_of = |row: usize| (0..across).map(move |group| scale(group, row));
    Matrix {
        rows,
        cols,
        codes,
        scales: (0..rows).flat_map(scales_of).collect(),
        factor: 1.0,
        has_global: false,
        columns,
        across,
        height: 1,
        grid: Grid::Integers {
            bits: words.bits,
            zeros: zeros.iter().any(|zero| *zero != words.middle() as f32).then_some(zeros),
        },
        least: 0.0,
    }
}

impl Matrix {
    /// Index of the scale of an element.
    pub fn group(&self, row: usize, col: usize) -> usize {
        row / self.height * self.across + self.columns[col]
    }

    /// Decoded values of all elements, row by row.
    pub fn values(&self) -> Vec<f32> {
        let at = |at: usize| (at / self.cols, at % self.cols);
        let value = |(row, col): (usize, usize)| {
            let scale = f64::from(self.scales[self.group(row, col)]) * self.factor;
            (f64::from(self.codes[row * self.cols + col]) * scale) as f32
        };
        (0..self.codes.len()).map(|index| value(at(index))).collect()
    }
}
