//! Quantized tensors in files: which tensors of a file are the codes, scales and global scale of one tensor, in what
//! format, and whether they can be.

mod buffers;
mod manifest;

use std::collections::HashSet;
use std::sync::Arc;

pub use buffers::{Buffers, check_layout};
pub use manifest::{Entry, Manifest};

use crate::error::{Error, Result};
use crate::formats::{Codec, Encoded, Format, Group, NVFP4_RULES, Scale, Scaling, codec, unpack};
use crate::layouts::Layout;
use crate::pattern::selects;
use crate::tensorfile::{Tensor, TensorFile};

/// Of codes, of scales, of the global scale; and a rule.
type Ending = (&'static str, &'static str, &'static str, Option<&'static str>);

/// Endings of the names of codes, scales and global scale, by which quantized tensors of any file are recognised.
///
/// ulplab's own; compressed-tensors (vLLM); ModelOpt checkpoints; DeepSeek checkpoints; torchao's attributes. Last the NVFP4
/// rule that stores the same global scale as the library does, whichever rule picked its scales.
const ENDINGS: &[Ending] = &[
    (".data", ".scale", ".global", None),
    ("_packed", "_scale", "_global_scale", Some("vllm")),
    ("", "_scale", "_scale_2", Some("modelopt")),
    ("", "_scale_inv", "_scale_2", None),
    (".qdata", ".scale", ".per_tensor_scale", Some("torchao")),
    (".q", ".scale", ".global_scale", None),
];

/// Ending of the names of zero points, which only ulplab's own files have.
const ZERO: &str = ".zero";

/// How to find quantized tensors in a file, and what they are.
#[derive(Clone, Debug, Default, clap::Args)]
pub struct Naming {
    /// Format: a name of `ulplab list formats` or a format string; files written by `ulplab quantize` say it themselves.
    #[arg(long, value_name = "FORMAT")]
    pub format: Option<String>,
    /// Rule that picks the scales, of the format's table in docs/formats.md, e.g. te or transformer_engine [default: the
    /// first; where names tell what an NVFP4 global scale means, modelopt of `w_scale_2`, vllm of `w_global_scale`, torchao
    /// of `w.per_tensor_scale`].
    #[arg(long, value_name = "RULE")]
    pub rule: Option<String>,
    /// Name of the tensor of codes, where it is not recognised by its ending.
    #[arg(long, value_name = "NAME")]
    pub data: Option<String>,
    /// Name of the tensor of scales.
    #[arg(long, value_name = "NAME", requires = "data")]
    pub scale: Option<String>,
    /// Name of the tensor of global scales.
    #[arg(long, value_name = "NAME", requires = "data")]
    pub global: Option<String>,
    /// Layout of the scales, e.g. blocked_128x4 [default: row-major, or what the file says].
    #[arg(long, value_name = "LAYOUT")]
    pub layout: Option<String>,
}

/// One quantized tensor of a file.
#[derive(Debug)]
pub struct Packed<'a> {
    pub name: String,
    pub format: Format,
    /// Shape of the tensor that was quantized.
    pub shape: Vec<usize>,
    /// Its type, where the file says it.
    pub dtype: Option<String>,
    pub layout: Option<&'static Layout>,
    pub buffers: Buffers<'a>,
}

/// The block format of a name or a format string.
pub fn block_format(text: &str) -> Result<(Arc<dyn Codec>, Format)> {
    let codec = codec(text).map_err(Error::Usage)?;
    let format = codec.format().copied().ok_or_else(|| {
        Error::Usage(format!(
            "'{text}' is a record of KV caches, not a format of tensors; `ulplab list formats` has those"
        ))
    })?;
    Ok((codec, format))
}

impl Naming {
    /// The format that `--format` and `--rule` ask for.
    pub fn format(&self) -> Result<Option<Format>> {
        let format = self.format.as_deref().map(block_format).transpose()?;
        match (format, &self.rule) {
            (Some((_, format)), Some(rule)) => Ok(Some(format.with_rule(rule).map_err(Error::Usage)?)),
            (format, _) => Ok(format.map(|(_, format)| format)),
        }
    }

    /// Whether `--rule` or `--format` names the rule; else it is the first of its table.
    pub fn names_rule(&self) -> bool {
        self.rule.is_some() || self.format.as_deref().is_some_and(|format| format.contains('('))
    }

    pub fn layout(&self) -> Result<Option<&'static Layout>> {
        let find = |name: &String| Layout::find(name).map_err(Error::Usage);
        self.layout.as_ref().map(find).transpose()
    }

    /// The quantized tensors of a file, in its order. What flags say goes above what the file says; `only` and `skip` are
    /// patterns of names.
    pub fn find<'a>(&self, file: &'a TensorFile, only: &[String], skip: &[String]) -> Result<Vec<Packed<'a>>> {
        let manifest = Manifest::read(file)?;
        let (format, layout) = (self.format()?, self.layout()?);
        if let Some(data) = &self.data {
            let base = ENDINGS.iter().find_map(|(ending, ..)| data.strip_suffix(ending));
            let name = base.filter(|base| !base.is_empty()).unwrap_or(data);
            let get = |name: &String| {
                file.get(name).ok_or_else(|| {
                    let near = crate::error::did_you_mean(name, file.tensors().map(|tensor| tensor.name));
                    Error::data(file.path(), format!("no tensor '{name}'{near}"))
                })
            };
            let buffers = Buffers {
                data: get(data)?,
                scale: self.scale.as_ref().map(get).transpose()?,
                zero: base.and_then(|base| file.get(&format!("{base}{ZERO}"))),
                global: self.global.as_ref().map(get).transpose()?,
            };
            let told = |ending: &&Ending| {
                let base = data.strip_suffix(ending.0);
                base.zip(self.global.as_deref())
                    .is_some_and(|(base, global)| global.strip_prefix(base) == Some(ending.2))
            };
            let rule = ENDINGS.iter().find(told).and_then(|ending| ending.3);
            let format = self.by_names(format, rule)?;
            return Ok(vec![self.packed(file, name, buffers, &manifest, format, layout)?]);
        }
        // A file that says what is in it is taken at its word, unless a flag says more.
        let described = |name: &str| {
            let silent = manifest.tensors.is_empty() || format.is_some();
            silent || manifest.tensors.contains_key(name)
        };
        let mut found = Vec::new();
        for tensor in file.tensors() {
            if let Some((name, buffers, rule)) = recognise(file, tensor, &manifest)
                && selects(only, skip, &name)
                && described(&name)
            {
                let format = self.by_names(format, rule)?;
                found.push(self.packed(file, &name, buffers, &manifest, format, layout)?);
            }
        }
        Ok(found)
    }

    /// The format with the rule that the names of the tensors tell, where nobody asked for another and it matters.
    fn by_names(&self, format: Option<Format>, rule: Option<&str>) -> Result<Option<Format>> {
        let (Some(format), Some(rule)) = (format, rule) else {
            return Ok(format);
        };
        let first = |scaling: Scaling| matches!(scaling.scale, Scale::E4m3(rule) if rule == NVFP4_RULES[0]);
        if self.names_rule() || format.global.is_none() || !format.scaling.is_some_and(first) {
            return Ok(Some(format));
        }
        format.with_rule(rule).map(Some).map_err(Error::Usage)
    }

    fn packed<'a>(
        &self,
        file: &TensorFile,
        name: &str,
        buffers: Buffers<'a>,
        manifest: &Manifest,
        format: Option<Format>,
        layout: Option<&'static Layout>,
    ) -> Result<Packed<'a>> {
        let wrong = |why: String| Error::data(file.path(), format!("tensor '{name}': {why}"));
        let entry = manifest.tensors.get(name);
        let format = match (format, entry) {
            (Some(format), _) => format,
            (None, Some(entry)) => {
                let format: Format = entry.format.parse().map_err(wrong)?;
                match &self.rule {
                    Some(rule) => format.with_rule(rule).map_err(Error::Usage)?,
                    None => format,
                }
            }
            (None, None) => {
                return Err(wrong(
                    "the file does not say its format; give --format, e.g. --format nvfp4".into(),
                ));
            }
        };
        let layout = match (layout, entry.and_then(|entry| entry.layout.as_deref())) {
            (None, Some(name)) => Some(Layout::find(name).map_err(wrong)?),
            (layout, _) => layout,
        };
        let shape = match entry {
            Some(entry) => entry.shape.clone(),
            None => buffers.shape(&format).map_err(|why| Error::data(file.path(), why))?,
        };
        // Also of no elements the sizes are computed with.
        let bits = shape
            .iter()
            .try_fold(32usize, |bits, size| bits.checked_mul((*size).max(1)));
        if bits.is_none() {
            return Err(wrong(format!(
                "shape {shape:?} has more elements than memory has addresses"
            )));
        }
        Ok(Packed {
            name: name.into(),
            format,
            shape,
            dtype: entry.map(|entry| entry.dtype.clone()),
            layout,
            buffers,
        })
    }
}

/// The names of all tensors that are parts of quantized ones, whatever their types and shapes.
pub fn parts(file: &TensorFile) -> Result<HashSet<&str>> {
    let manifest = Manifest::read(file)?;
    let found = file.tensors().filter_map(|tensor| recognise(file, tensor, &manifest));
    Ok(found.flat_map(|(_, buffers, _)| buffers.names()).collect())
}

/// A quantized tensor by name, and the rule of [`ENDINGS`].
type Recognised<'a> = (String, Buffers<'a>, Option<&'static str>);

/// The quantized tensor whose codes `tensor` is, if the manifest or the names of its neighbours say so.
fn recognise<'a>(file: &'a TensorFile, tensor: Tensor<'a>, manifest: &Manifest) -> Option<Recognised<'a>> {
    ENDINGS.iter().find_map(|(data, scale, global, rule)| {
        let name = tensor.name.strip_suffix(data)?;
        let get = |ending: &str| file.get(&format!("{name}{ending}"));
        let known = *data == ".data" && manifest.tensors.contains_key(name);
        let scales = get(scale);
        (known || scales.is_some()).then(|| {
            let buffers = Buffers {
                data: tensor,
                scale: scales,
                zero: get(ZERO).filter(|_| *data == ".data"),
                global: get(global),
            };
            (name.to_string(), buffers, *rule)
        })
    })
}

impl Packed<'_> {
    pub fn rows_cols(&self) -> (usize, usize) {
        rows_cols(&self.shape)
    }

    /// The bytes in the format's own order, checked.
    pub fn encoded(&self) -> Result<Encoded, String> {
        let (rows, cols) = self.rows_cols();
        self.buffers.encoded(&self.format, rows, cols, self.layout)
    }

    /// The names of the tensors it is made of.
    pub fn names(&self) -> impl Iterator<Item = &str> {
        self.buffers.names()
    }
}

/// Rows and columns of a tensor: the last dimension, and all others as one.
pub fn rows_cols(shape: &[usize]) -> (usize, usize) {
    match shape.split_last() {
        Some((cols, leading)) => (leading.iter().product(), *cols),
        None => (1, 1),
    }
}

/// `[rows, across]` with the leading dimensions of the tensor it belongs to, where it has a row for each of them.
pub fn spread(part: &[usize], shape: &[usize]) -> Vec<usize> {
    let leading = &shape[..shape.len().saturating_sub(1)];
    match part {
        [rows, across] if *rows == leading.iter().product::<usize>() => {
            leading.iter().copied().chain([*across]).collect()
        }
        _ => part.into(),
    }
}

/// The codes of a tensor, one by one.
pub fn codes(format: &Format, data: &[u8]) -> Vec<u16> {
    unpack(data, format.element.stored_bits())
}

/// The groups of a format over a tensor; rows where the format has no scales.
#[derive(Clone, Copy, Debug)]
pub struct Grid {
    pub rows: usize,
    pub cols: usize,
    /// Rows and columns of a group.
    pub tile: (usize, usize),
    /// Groups, down and across.
    pub count: (usize, usize),
}

impl Grid {
    pub fn new(format: &Format, rows: usize, cols: usize) -> Self {
        let group = format.scaling.map_or(Group::Token, |scaling| scaling.group);
        Self {
            rows,
            cols,
            tile: group.tile(rows, cols),
            count: group.count(rows, cols),
        }
    }

    pub fn len(&self) -> usize {
        self.count.0 * self.count.1
    }

    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// The group of an element by its flat index.
    pub fn group_of(&self, index: usize) -> usize {
        let (r, c) = (index / self.cols, index % self.cols);
        r / self.tile.0 * self.count.1 + c / self.tile.1
    }

    /// Flat indices of the elements of a group, row by row.
    pub fn elements(&self, group: usize) -> impl Iterator<Item = usize> + use<> {
        let Self {
            rows,
            cols,
            tile,
            count,
        } = *self;
        let (top, left) = (group / count.1 * tile.0, group % count.1 * tile.1);
        let columns = left..cols.min(left + tile.1);
        (top..rows.min(top + tile.0)).flat_map(move |r| columns.clone().map(move |c| r * cols + c))
    }

    /// Down and across.
    pub fn place(&self, group: usize) -> [usize; 2] {
        [group / self.count.1, group % self.count.1]
    }
}
