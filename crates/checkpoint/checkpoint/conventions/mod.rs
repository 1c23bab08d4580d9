//! Conventions of programs that write quantized checkpoints: tensor names, packing, configuration keys. One file for each
//! program.

mod awq;
mod compressed_tensors;
mod deepseek;
mod fbgemm;
mod gpt_oss;
pub mod gptq;
mod modelopt;
mod part;
mod quark;

use serde_json::Value;

use super::config::{Modules, Scheme, Section, given};
use crate::packed;

pub use part::{Ending, Packing, Part};
use part::{activation, of_weight};

/// The convention of a program: its names for codes, scales and zero points of quantized matrices, and its configuration keys.
#[derive(Debug)]
pub struct Convention {
    /// Name of the convention.
    pub name: &'static str,
    /// Values of `quant_method` in a configuration that mean this convention.
    pub methods: &'static [&'static str],
    /// Values of `writer` in [`packed::FILE_NAMES`]: the programs whose tensor names this convention uses.
    pub writers: &'static [&'static str],
    /// Endings of tensor names in addition to the endings that `writers` use.
    pub endings: &'static [Ending],
    /// Order of codes in 32-bit words; `None` if the convention does not pack codes into words.
    pub packing: Option<Packing>,
    /// True if the configuration lists every linear layer that is not quantized.
    pub lists_all: bool,
    /// Functions that read the storage scheme of a module's weights, one for each way in which a configuration can state it. A
    /// function returns `None` if the module is not a target.
    pub schemes: &'static [fn(&Section, &str) -> Result<Option<Scheme>, String>],
    /// Function that returns true if a configuration names a module as quantized, and `None` if it does not name modules.
    pub targets: fn(&Section, &str) -> Result<Option<bool>, String>,
    /// Function that returns the modules that a configuration leaves unquantized.
    pub ignored: fn(&Section) -> Result<Vec<Modules>, String>,
    /// True if the program multiplies input channels by factors that no file stores: stored weights then differ from the source.
    pub folds: bool,
    /// Function that returns the number to add to stored zero points. The argument is `None` if there is no configuration.
    pub zero_offset: fn(Option<&Section>) -> i32,
    /// Further facts for the documentation.
    pub doc: &'static str,
}

/// All conventions. If two conventions fit the tensor names of a checkpoint equally well, the first one is used, unless the
/// configuration names one of them.
pub const CHECKPOINTS: &[Convention] = &[
    compressed_tensors::CONVENTION,
    modelopt::CONVENTION,
    gpt_oss::CONVENTION,
    deepseek::CONVENTION,
    gptq::CONVENTION,
    awq::CONVENTION,
    quark::CONVENTION,
    fbgemm::CONVENTION,
];

/// A convention without any tensor names. It supplies the default values of fields for all other conventions.
pub const PLAIN: Convention = Convention {
    name: "",
    methods: &[],
    writers: &[],
    endings: &[],
    packing: None,
    lists_all: false,
    folds: false,
    schemes: &[],
    targets: |_, _| Ok(None),
    ignored: |section| not_converted(section, "modules_to_not_convert"),
    zero_offset: |_| 0,
    doc: "",
};

/// Name endings of activation scales and KV-cache scales, which are valid for every convention.
const COMMON: &[Ending] = &[
    activation(".input_scale"),
    activation(".input_global_scale"),
    activation(".k_scale"),
    activation(".v_scale"),
    activation(".q_scale"),
    activation(".prob_output_scale"),
    activation(".output_scale"),
    activation(".kv_scale"),
    activation(".activation_scale"),
    activation(".pre_quant_scale"),
    activation("_input_scale"),
    activation("_activation_scale"),
];

fn not_converted(section: &Section, key: &str) -> Result<Vec<Modules>, String> {
    let names = section.strings(key)?;
    names.into_iter().map(Modules::parse).collect()
}

/// Reads an integer from the configuration; `None` if the key is missing or null.
fn number(place: &Value, key: &str) -> Result<Option<i64>, String> {
    let number = |value: &Value| {
        let wrong = || format!("key '{key}' is {value}, expected an integer");
        value.as_i64().ok_or_else(wrong)
    };
    given(place, key).map(number).transpose()
}

/// Reads the scheme of integer codes from the keys `bits` and `group_size`; `None` without bits. A group size of -1 means one
/// group for all input channels. `own` holds keys for a single module, which take precedence over the keys of the section.
fn integers(section: &Section, own: Option<&Value>, symmetric: Option<bool>) -> Result<Option<Scheme>, String> {
    let number = |keys: [&str; 2]| {
        let places = [own, Some(&section.value)].into_iter().flatten();
        let mut all = places.flat_map(|place| keys.map(|key| number(place, key)));
        all.find(|number| !matches!(number, Ok(None))).unwrap_or(Ok(None))
    };
    let Some(bits) = number(["bits", "w_bit"])? else {
        return Ok(None);
    };
    let group = match number(["group_size", "q_group_size"])? {
        None => None,
        Some(-1) => Some(ulplab_core::formats::Group::Token),
        Some(size) if size > 0 => Some(ulplab_core::formats::Group::block(size as usize)),
        Some(size) => return Err(format!("key 'group_size' is {size}, expected -1 or a positive number")),
    };
    let bits = usize::try_from(bits).map_err(|_| format!("key 'bits' is {bits}, expected a positive number"))?;
    Ok(Some(Scheme {
        symmetric,
        ..Scheme::new("int", bits, group, None)
    }))
}

/// Reads a list of strings. Each string selects the modules whose names contain it.
fn within(section: &Section, key: &str) -> Result<Vec<Modules>, String> {
    let names = section.strings(key)?;
    Ok(names.into_iter().map(|name| Modules::Within(name.into())).collect())
}

/// Possible names of a static activation scale.
const STATIC: &[&str] = &["input_scale", "activation_scale"];

impl Convention {
    /// True if the quantization method of a configuration section belongs to this convention.
    pub fn states(&self, section: &Section) -> bool {
        self.methods.contains(&section.method.as_str())
    }

    /// The naming conventions in [`packed::FILE_NAMES`] that this convention uses.
    pub fn packed(&self) -> impl Iterator<Item = &'static packed::Convention> {
        let all = packed::FILE_NAMES.iter();
        all.filter(|packed| self.writers.contains(&packed.writer))
    }

    /// Returns the name of the NVFP4 rule that defines how to decode global scales; `None` if the convention has none.
    pub fn rule(&self) -> Option<&'static str> {
        self.packed().find_map(|packed| packed.rule)
    }

    /// Returns all endings of tensor names; an empty ending means that the tensor has the name of the matrix.
    pub fn all_endings(&self) -> impl Iterator<Item = Ending> {
        let own = self.endings.iter().copied();
        // Skip names of global scales with another NVFP4 rule (e.g. files store the reciprocal): their values would be misread.
        let rule = self.rule();
        let packed = self.packed().flat_map(move |packed| {
            let global = packed.global.filter(|_| packed.rule == rule);
            let parts = [
                (Some(packed.codes), Part::Codes),
                (Some(packed.scale), Part::Scale),
                (global, Part::Global),
                (Some(packed.zero), Part::Zero),
            ];
            let parts = parts.into_iter();
            parts.filter_map(|(ending, part)| Some((ending?, part, packed.own)))
        });
        own.chain(packed)
    }

    /// Finds the longest known ending of a tensor name. Returns the role that it implies (codes, scale, …) and the name of the
    /// matrix; `None` if no known ending fits.
    pub fn part(&self, name: &str) -> Option<(Part, String)> {
        let all = self.all_endings().chain(COMMON.iter().copied());
        let fits = all.filter(|(ending, ..)| !ending.is_empty() && name.ends_with(ending));
        let (ending, part, own) = fits.max_by_key(|(ending, ..)| ending.len())?;
        Some((part, format!("{}{own}", &name[..name.len() - ending.len()])))
    }
}
