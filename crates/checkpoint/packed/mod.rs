//! Finds quantized tensors in files: which tensors are the codes, scales and global scale of one quantized tensor, and in which
//! format. Checks that the bytes fit the format.

mod buffers;
mod conventions;
mod manifest;
mod markdown;
mod meaning;
mod nonfinite;
mod scales;
mod stack;
mod unread;
mod work;

use std::collections::HashSet;
use std::ops::Range;

use half::{bf16, f16};
use safetensors::Dtype;

pub use buffers::{Buffers, Opened};
pub use conventions::{Convention, FILE_NAMES, Kind};
pub use manifest::{Entry, Manifest};
pub use markdown::markdown;
pub use meaning::reads_as;
pub use nonfinite::Nonfinite;
pub use scales::check_layout;
pub use stack::{Stack, leading, matrix_name, spread};
pub use unread::nothing;
pub use work::{in_batches, in_matrices};

use ulplab_core::error::{Error, Result, did_you_mean, refuse};
use ulplab_core::formats::{FORMATS, Format, Group, NVFP4_RULES, Scale, Scaling, codec, unpack};
use ulplab_core::layouts::Layout;
use ulplab_core::pattern;
use ulplab_core::pattern::selects;
use ulplab_core::tensorfile::{Tensor, TensorFile};

/// Options that say which tensors of a file are quantized, and in which format. Options that are `None` are derived from the
/// file's metadata, or from names, types and shapes.
#[derive(Clone, Debug, Default)]
#[cfg_attr(feature = "clap", derive(clap::Args))]
pub struct Naming {
    /// Format: a name from `ulplab list formats`, or a format string [default: from the file's metadata, or else from names,
    /// types and shapes by the conventions of docs/quantized-files.md].
    #[cfg_attr(feature = "clap", arg(long, value_name = "FORMAT"))]
    pub format: Option<String>,
    /// Rule that picks the scales, from the format's table in docs/formats.md, e.g. te or transformer_engine [default: the
    /// first rule of the table; if a name defines the meaning of an NVFP4 global scale: modelopt for `w_scale_2`, vllm for
    /// `w_global_scale`, torchao for `w.per_tensor_scale`].
    #[cfg_attr(feature = "clap", arg(long, value_name = "RULE"))]
    pub rule: Option<String>,
    /// Name of the tensor of codes; needed only if the ending of this name is not recognised.
    #[cfg_attr(feature = "clap", arg(long, value_name = "NAME"))]
    pub data: Option<String>,
    /// Name of the tensor of scales.
    #[cfg_attr(feature = "clap", arg(long, value_name = "NAME", requires = "data"))]
    pub scale: Option<String>,
    /// Name of the tensor of global scales.
    #[cfg_attr(feature = "clap", arg(long, value_name = "NAME", requires = "data"))]
    pub global: Option<String>,
    /// Layout of the scales, e.g. blocked_128x4 [default: from the file's metadata, or else row-major].
    #[cfg_attr(feature = "clap", arg(long, value_name = "LAYOUT"))]
    pub layout: Option<String>,
}

/// One quantized tensor of a file.
#[derive(Debug)]
pub struct Packed<'a> {
    /// Name of the quantized tensor, e.g. `w` for the codes `w.data` and the scales `w.scale`.
    pub name: String,
    /// The format, including the rule that computed the scales, if this is known.
    pub format: Format,
    /// Shape of the tensor before it was quantized.
    pub shape: Vec<usize>,
    /// Type of the tensor before it was quantized; `None` if the file does not state it.
    pub dtype: Option<String>,
    /// The layout of the scales; `None` if they are row-major.
    pub layout: Option<&'static Layout>,
    /// Words for messages: the tensor name or metadata that defines how to decode scales. `None` if neither of them defines it.
    pub said: Option<String>,
    /// Codes, scales, zero points and global scale as they are in the file.
    pub buffers: Buffers<'a>,
}

/// Parses the name or format string of a block format.
pub fn block_format(text: &str) -> Result<Format> {
    let codec = codec(text).map_err(|why| {
        let hint = why.contains("has no NaN").then(|| named_after(text));
        Error::Usage(why + &hint.unwrap_or_default())
    })?;
    let not_a_format =
        || format!("'{text}' is a record of KV caches, not a format of tensors; `ulplab list formats` has those");
    codec.format().copied().ok_or_else(|| Error::Usage(not_a_format()))
}

/// Suggests named formats for an element type without scales, e.g. `int4_b32` for `int4`.
fn named_after(element: &str) -> String {
    let begins = |name: &&str| name.strip_prefix(element).is_some_and(|rest| rest.starts_with('_'));
    let names: Vec<&str> = FORMATS.iter().map(|named| named.name).filter(begins).collect();
    match names.is_empty() {
        true => String::new(),
        false => format!("; named formats of it are {}", names.join(", ")),
    }
}

impl Naming {
    /// Returns the name of the first option that is set, e.g. `format` for `--format`; `None` if no option is set.
    pub fn given(&self) -> Option<&'static str> {
        let options = [
            ("format", &self.format),
            ("rule", &self.rule),
            ("data", &self.data),
            ("scale", &self.scale),
            ("global", &self.global),
            ("layout", &self.layout),
        ];
        let given = options.into_iter().find(|(_, value)| value.is_some());
        given.map(|(flag, _)| flag)
    }

    /// Format that `--format` and `--rule` request; `None` without `--format`.
    pub fn format(&self) -> Result<Option<Format>> {
        let format = self.format.as_deref().map(block_format).transpose()?;
        format.map(|format| self.with_rule(format)).transpose()
    }

    /// True if `--rule` or `--format` names the rule for picking scales; otherwise the default rule of the format applies.
    pub fn names_rule(&self) -> bool {
        self.rule.is_some() || self.format.as_deref().is_some_and(|format| format.contains('('))
    }

    /// Layout of scales that `--layout` requests; an unknown name is an error.
    pub fn layout(&self) -> Result<Option<&'static Layout>> {
        let find = |name: &String| Layout::find(name).map_err(Error::Usage);
        self.layout.as_ref().map(find).transpose()
    }

    /// Finds the quantized tensors of a file, in the order of the file. The options take precedence over the metadata of the
    /// file. `only` and `skip` are patterns of names. Each pattern must match a name in this file or in `beside`, the tensor
    /// names of a second file that is compared with this file.
    pub fn find<'a>(
        &self,
        file: &'a TensorFile,
        beside: &[&str],
        only: &[String],
        skip: &[String],
    ) -> Result<Vec<Packed<'a>>> {
        let manifest = Manifest::read(file)?;
        let (format, layout) = (self.format()?, self.layout()?);
        if let Some(data) = &self.data {
            let base = FILE_NAMES
                .iter()
                .find_map(|convention| data.strip_suffix(convention.codes));
            let name = base.filter(|base| !base.is_empty()).unwrap_or(data);
            let get = |name: &String| tensor_named(file, name);
            let buffers = Buffers {
                data: get(data)?,
                scale: self.scale.as_ref().map(get).transpose()?,
                global: self.global.as_ref().map(get).transpose()?,
                zero: base.and_then(|base| file.get(&format!("{base}.zero"))),
                blocked: false,
            };
            let by_names = |convention: &&Convention| {
                let base = data.strip_suffix(convention.codes);
                let global = base.zip(self.global.as_deref());
                global.is_some_and(|(base, global)| global.strip_prefix(base) == convention.global)
            };
            let convention = FILE_NAMES.iter().find(by_names);
            let format = self.by_names(format, convention.and_then(|convention| convention.rule))?;
            let convention = convention.unwrap_or(&FILE_NAMES[0]);
            let recognised = (name.to_string(), buffers, convention);
            return Ok(vec![self.packed(file, recognised, &manifest, format, layout)?]);
        }
        // If the metadata list quantized tensors, skip tensors that are not in the list, unless `--format` is set.
        let described = |name: &str| {
            let silent = manifest.tensors.is_empty() || format.is_some();
            silent || manifest.tensors.contains_key(name)
        };
        let recognised: Vec<Recognised> = file
            .tensors()
            .filter_map(|tensor| recognise(file, tensor, &manifest))
            .collect();
        let parts = names_of_parts(&recognised);
        let names = recognised.iter().map(|(name, ..)| name.as_str());
        let others = file.tensors().map(|tensor| tensor.name);
        let others = others
            .filter(|name| !parts.contains(name))
            .chain(beside.iter().copied());
        pattern::check("tensor", &[only, skip], &names.chain(others).collect::<Vec<_>>())?;
        let mut found = Vec::new();
        for (name, buffers, convention) in recognised {
            if selects(only, skip, &name) && described(&name) {
                let format = match format {
                    None if !manifest.tensors.contains_key(&name) => {
                        let format = convention.format(&buffers)?;
                        format.map(|format| self.with_rule(format)).transpose()?
                    }
                    format => format,
                };
                let format = self.by_names(format, convention.rule)?;
                found.push(self.packed(file, (name, buffers, convention), &manifest, format, layout)?);
            }
        }
        Ok(found)
    }

    /// Replaces the rule of a format by the rule of `--rule`, if that is set.
    fn with_rule(&self, format: Format) -> Result<Format> {
        let rule = self.rule.as_deref();
        rule.map_or(Ok(format), |rule| format.with_rule(rule).map_err(Error::Usage))
    }

    /// Sets the NVFP4 rule that tensor names imply (`rule`), unless the user requested a rule or the format has a rule other than
    /// the default.
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
        (name, buffers, convention): Recognised<'a>,
        manifest: &Manifest,
        format: Option<Format>,
        layout: Option<&'static Layout>,
    ) -> Result<Packed<'a>> {
        let name = name.as_str();
        let wrong = |why: String| Error::data(file.path(), format!("tensor '{name}': {why}"));
        let entry = manifest.tensors.get(name);
        let format = match (format, entry) {
            (Some(format), _) => format,
            (None, Some(entry)) => self.with_rule(entry.format.parse().map_err(wrong)?)?,
            (None, None) => return Err(wrong(unread::unknown_format(file, name, &buffers))),
        };
        let layout = match (layout, entry.and_then(|entry| entry.layout.as_deref())) {
            (None, Some(name)) => Some(Layout::find(name).map_err(wrong)?),
            (layout, _) => layout,
        };
        let shape = match entry {
            Some(entry) => entry.shape.clone(),
            None => buffers.shape(&format).map_err(|why| Error::data(file.path(), why))?,
        };
        let message = format_args!("shape {shape:?} has more elements than memory has addresses");
        refuse(Stack::new(&shape).is_none(), message).map_err(wrong)?;
        Ok(Packed {
            name: name.into(),
            format,
            shape,
            dtype: entry.map(|entry| entry.dtype.clone()),
            layout,
            said: entry
                .and_then(|entry| entry.says(&format))
                .or_else(|| convention.says(&format, &buffers)),
            buffers,
        })
    }
}

/// Finds a tensor by its name.
///
/// # Errors
/// Returns an error with similar names if the file has no such tensor.
pub fn tensor_named<'a>(file: &'a TensorFile, name: &str) -> Result<Tensor<'a>> {
    file.get(name).ok_or_else(|| {
        let near = did_you_mean(name, file.tensors().map(|tensor| tensor.name));
        Error::data(file.path(), format!("no tensor '{name}'{near}"))
    })
}

/// Returns the names of all tensors that store codes, scales, zero points or global scales of a quantized tensor. Types and
/// shapes are not checked.
pub fn parts(file: &TensorFile) -> Result<HashSet<&str>> {
    let manifest = Manifest::read(file)?;
    let found = file.tensors().filter_map(|tensor| recognise(file, tensor, &manifest));
    Ok(names_of_parts(&found.collect::<Vec<_>>()))
}

fn names_of_parts<'a>(recognised: &[Recognised<'a>]) -> HashSet<&'a str> {
    let names = recognised.iter().flat_map(|(_, buffers, _)| buffers.names());
    names.collect()
}

/// Name of a quantized tensor, its codes and scales, and the naming convention that their names follow.
type Recognised<'a> = (String, Buffers<'a>, &'static Convention);

/// Returns the quantized tensor whose codes are `tensor`; `None` if neither the manifest nor a naming convention identifies
/// `tensor` as codes.
fn recognise<'a>(file: &'a TensorFile, tensor: Tensor<'a>, manifest: &Manifest) -> Option<Recognised<'a>> {
    let mut conventions = FILE_NAMES.iter();
    conventions.find_map(|convention| convention.recognise(file, tensor, manifest))
}

impl<'a> Packed<'a> {
    /// Opens the tensor and checks its bytes.
    pub fn open(&self) -> Result<Opened<'a>, String> {
        self.buffers.open(&self.format, &self.shape, self.layout)
    }
}

/// Rounds a number to the nearest value of a floating-point type of at most 32 bits.
pub fn rounded(x: f32, dtype: Dtype) -> f32 {
    match dtype {
        Dtype::BF16 => bf16::from_f32(x).to_f32(),
        Dtype::F16 => f16::from_f32(x).to_f32(),
        _ => x,
    }
}

/// Unpacks the codes of a tensor, one number per code.
pub fn codes(format: &Format, data: &[u8]) -> Vec<u16> {
    unpack(data, format.element.stored_bits())
}

/// Value of each code of the format's element type, in the order of the codes.
pub fn values(format: &Format) -> Vec<f32> {
    let codes = 0..1u32 << format.element.stored_bits();
    codes.map(|code| format.repr().decode(code as u16)).collect()
}

/// Returns the ratio r such that magnitudes up to r times the largest value of the element type round to this value: 1 plus half
/// the last step.
pub fn reach(format: &Format) -> f32 {
    let max = format.element.max();
    let below = values(format).into_iter().map(f32::abs).filter(|value| *value < max);
    1.0 + (max - below.fold(0.0, f32::max)) / (2.0 * max)
}

/// The partition of a tensor into groups of elements that share a scale. Each row is a group if the format has no scales.
#[derive(Clone, Copy, Debug, Default)]
pub struct Grid {
    /// Number of rows of the tensor.
    pub rows: usize,
    /// Number of columns of the tensor.
    pub cols: usize,
    /// Number of rows and of columns of a group.
    pub tile: (usize, usize),
    /// Number of groups in a column of groups and in a row of groups.
    pub count: (usize, usize),
}

impl Grid {
    /// Partitions a tensor of shape `[rows, cols]` into the groups of `format`.
    pub fn new(format: &Format, rows: usize, cols: usize) -> Self {
        let group = format.scaling.map_or(Group::Token, |scaling| scaling.group);
        Self {
            rows,
            cols,
            tile: group.tile(rows, cols),
            count: group.count(rows, cols),
        }
    }

    /// Number of groups.
    pub fn groups(&self) -> usize {
        self.count.0 * self.count.1
    }

    /// Index of the group that contains an element, given the flat index of the element.
    pub fn group_of(&self, index: usize) -> usize {
        let (r, c) = (index / self.cols, index % self.cols);
        r / self.tile.0 * self.count.1 + c / self.tile.1
    }

    /// Row range and column range of a group.
    pub fn bounds(&self, group: usize) -> (Range<usize>, Range<usize>) {
        let [down, across] = self.place(group);
        let (top, left) = (down * self.tile.0, across * self.tile.1);
        (
            top..self.rows.min(top + self.tile.0),
            left..self.cols.min(left + self.tile.1),
        )
    }

    /// Flat indices of the elements of a group, row by row.
    pub fn elements(&self, group: usize) -> impl Iterator<Item = usize> + use<> {
        let (cols, (rows, columns)) = (self.cols, self.bounds(group));
        rows.flat_map(move |r| columns.clone().map(move |c| r * cols + c))
    }

    /// Returns the index of the group that lies `down` groups below and `right` groups to the right of `group`; `None` outside of
    /// the tensor.
    pub fn neighbour(&self, group: usize, down: isize, right: isize) -> Option<usize> {
        let [r, c] = self.place(group);
        let (r, c) = (r.checked_add_signed(down)?, c.checked_add_signed(right)?);
        (r < self.count.0 && c < self.count.1).then_some(r * self.count.1 + c)
    }

    /// Row and column of a group in the grid of groups.
    pub fn place(&self, group: usize) -> [usize; 2] {
        [group / self.count.1, group % self.count.1]
    }
}
