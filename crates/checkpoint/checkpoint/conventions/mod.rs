//! The conventions by which programs store quantized checkpoints, one file each.

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

use super::config::{Modules, Scheme, Section};
use crate::packed;

pub use part::{Ending, Packing, Part};
use part::{activation, of_weight};

/// The way in which a program names and describes the parts of quantized matrices.
#[derive(Debug)]
pub struct Convention {
    /// Its name.
    pub name: &'static str,
    /// The methods by which a configuration names it.
    pub methods: &'static [&'static str],
    /// The conventions of [`packed::FILE_NAMES`] that its names follow, by their writers.
    pub writers: &'static [&'static str],
    /// Further endings of names.
    pub endings: &'static [Ending],
    /// The order of codes in words, if it packs them so.
    pub packing: Option<Packing>,
    /// True if every linear layer is quantized that the configuration does not leave out.
    pub lists_all: bool,
    /// The scheme of the weights of a module by each statement of a configuration; `None` if the module is none of its targets.
    pub schemes: &'static [fn(&Section, &str) -> Result<Option<Scheme>, String>],
    /// True if a configuration names a module as quantized; `None` if it does not name modules.
    pub targets: fn(&Section, &str) -> Result<Option<bool>, String>,
    /// The modules that a configuration leaves unquantized.
    pub ignored: fn(&Section) -> Result<Vec<Modules>, String>,
    /// True if it scales the inputs of matrices by numbers that no file has, so that the source is another matrix.
    pub folds: bool,
    /// The number that is added to zero points in the file; `None`: no configuration says it.
    pub zero_offset: fn(Option<&Section>) -> i32,
    /// Further facts about it, for the document.
    pub doc: &'static str,
}

/// All conventions. The first of two that explain the names of a checkpoint equally well counts, unless the configuration names one.
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

/// A convention that has only the names of its writers: the default of the others.
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

/// Parts that any convention may have in addition to its own.
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

/// A count in the configuration.
fn number(place: &Value, key: &str) -> Result<Option<i64>, String> {
    let value = place.get(key).filter(|value| !value.is_null());
    let number = |value: &Value| {
        let wrong = || format!("key '{key}' is {value}, expected an integer");
        value.as_i64().ok_or_else(wrong)
    };
    value.map(number).transpose()
}

/// Integers in groups, as `bits` and `group_size` say it: a group size of -1 is one group for all input channels. Keys of `own`,
/// which is of one module, count before those of the section.
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

/// The key with strings of names that modules contain.
fn within(section: &Section, key: &str) -> Result<Vec<Modules>, String> {
    let names = section.strings(key)?;
    Ok(names.into_iter().map(|name| Modules::Within(name.into())).collect())
}

/// Names of a static scale of activations.
const STATIC: &[&str] = &["input_scale", "activation_scale"];

impl Convention {
    /// True if a section names it as its method.
    pub fn states(&self, section: &Section) -> bool {
        self.methods.contains(&section.method.as_str())
    }

    /// The conventions of quantized files that it follows.
    pub fn packed(&self) -> impl Iterator<Item = &'static packed::Convention> {
        let all = packed::FILE_NAMES.iter();
        all.filter(|packed| self.writers.contains(&packed.writer))
    }

    /// The NVFP4 rule that reads its scales.
    pub fn rule(&self) -> Option<&'static str> {
        self.packed().find_map(|packed| packed.rule)
    }

    /// The endings of its names; an empty one is the name of the matrix itself.
    pub fn all_endings(&self) -> impl Iterator<Item = Ending> {
        let own = self.endings.iter().copied();
        // Names of a global scale that means something else are not the convention's.
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

    /// The part that a name marks, and the name of the matrix; `None` if it has no ending of the convention. The longest
    /// ending counts.
    pub fn part(&self, name: &str) -> Option<(Part, String)> {
        let all = self.all_endings().chain(COMMON.iter().copied());
        let fits = all.filter(|(ending, ..)| !ending.is_empty() && name.ends_with(ending));
        let (ending, part, own) = fits.max_by_key(|(ending, ..)| ending.len())?;
        Some((part, format!("{}{own}", &name[..name.len() - ending.len()])))
    }
}
