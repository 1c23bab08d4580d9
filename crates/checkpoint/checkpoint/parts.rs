//! The tensors of a checkpoint, put together to quantized matrices by their names.

use std::collections::{BTreeMap, HashMap};

use super::conventions::{Convention, Part};
use crate::packed::{self, Buffers};
use ulplab_core::tensorfile::{Tensor, TensorFile};

/// The tensors that belong to one matrix, or to one stack of matrices.
#[derive(Clone, Debug, Default)]
pub struct Parts<'a> {
    /// Codes; or the tensor itself, if it is not quantized.
    pub codes: Option<Tensor<'a>>,
    /// Scales of groups of elements.
    pub scale: Option<Tensor<'a>>,
    /// The scale above them.
    pub global: Option<Tensor<'a>>,
    /// Zero points.
    pub zero: Option<Tensor<'a>>,
    /// The group of each input channel.
    pub index: Option<Tensor<'a>>,
    /// The shape of the matrix.
    pub shape: Option<Tensor<'a>>,
    /// Scales of activations and caches.
    pub activations: Vec<Tensor<'a>>,
    /// Further tensors with the name of a part that is there already.
    pub doubled: Vec<Tensor<'a>>,
}

/// Parts by the name of the matrix, in the order of the checkpoint's names.
pub type Matrices<'a> = BTreeMap<String, Parts<'a>>;

/// Groups the tensors of a file by the matrix that they belong to. The convention tells the matrix and the part from a name.
pub fn gather<'a>(file: &'a TensorFile, convention: &Convention) -> Matrices<'a> {
    let mut matrices = Matrices::new();
    for tensor in file.tensors() {
        let (part, name) = convention
            .part(tensor.name)
            .unwrap_or((Part::Codes, tensor.name.into()));
        matrices.entry(name).or_default().put(part, tensor);
    }
    // Stacks of experts have no `.weight`, and scales of their activations may belong to either.
    let is_lonely = |parts: &Parts| parts.codes.is_none() && !parts.activations.is_empty();
    let lonely = matrices.iter().filter(|(_, parts)| is_lonely(parts));
    let has_codes = |stack: &&str| matrices.get(*stack).is_some_and(|parts| parts.codes.is_some());
    let stacks = lonely.filter_map(|(name, _)| name.strip_suffix(".weight").filter(has_codes));
    let stacks: Vec<String> = stacks.map(String::from).collect();
    for stack in stacks {
        let lonely = matrices.remove(&format!("{stack}.weight")).unwrap_or_default();
        let parts = matrices.entry(stack).or_default();
        parts.activations.extend(lonely.activations);
    }
    matrices
}

impl<'a> Parts<'a> {
    fn put(&mut self, part: Part, tensor: Tensor<'a>) {
        let place = match part {
            Part::Codes => &mut self.codes,
            Part::Scale => &mut self.scale,
            Part::Global => &mut self.global,
            Part::Zero => &mut self.zero,
            Part::GroupIndex => &mut self.index,
            Part::Shape => &mut self.shape,
            Part::Activation => return self.activations.push(tensor),
        };
        match place {
            None => *place = Some(tensor),
            Some(_) => self.doubled.push(tensor),
        }
    }

    /// True if it has scales, and codes of another type than floating-point numbers.
    pub fn is_whole(&self) -> bool {
        self.scale.is_some() && self.codes.is_some_and(|codes| !codes.is_floating())
    }

    /// All tensors but codes, with what they are.
    pub fn without_codes(&self) -> impl Iterator<Item = (&'static str, Tensor<'a>)> {
        let parts = [
            ("scale", self.scale),
            ("global scale", self.global),
            ("zero point", self.zero),
            ("group index", self.index),
            ("shape", self.shape),
        ];
        parts.into_iter().filter_map(|(what, tensor)| Some((what, tensor?)))
    }

    /// All tensors.
    pub fn all(&self) -> impl Iterator<Item = Tensor<'a>> {
        let others = self.without_codes().map(|(_, tensor)| tensor);
        let further = self.activations.iter().chain(&self.doubled).copied();
        self.codes.into_iter().chain(others).chain(further)
    }

    /// The convention of quantized files whose names the parts have, and the parts as it reads them; `None` without codes and
    /// scales.
    pub fn buffers(&self, convention: &Convention) -> Option<(&'static packed::Convention, Buffers<'a>)> {
        let (codes, scale) = (self.codes?, self.scale?);
        let packed = convention
            .packed()
            .find(|packed| codes.name.ends_with(packed.codes) && scale.name.ends_with(packed.scale))?;
        let buffers = Buffers {
            data: codes,
            scale: Some(scale),
            global: self.global,
            zero: self.zero,
            blocked: packed.blocked,
        };
        Some((packed, buffers))
    }
}

/// True if a component of a name is the number of a layer or an expert.
pub fn is_number(part: &str) -> bool {
    !part.is_empty() && part.bytes().all(|byte| byte.is_ascii_digit())
}

/// Names whose numbers are left out stand for the same place in all layers: `layers.*.mlp.up_proj.weight`.
pub fn kin(name: &str) -> String {
    let parts = name.split('.').map(|part| if is_number(part) { "*" } else { part });
    parts.collect::<Vec<&str>>().join(".")
}

/// Projections whose products a kernel computes at once, from one activation.
const FUSED: &[&[&str]] = &[
    &["gate_proj", "up_proj"],
    &["w1", "w3"],
    &["q_proj", "k_proj", "v_proj"],
    &["wq", "wk", "wv"],
    &["q_a_proj", "kv_a_proj_with_mqa"],
];

/// The groups of names that a kernel fuses, of those that are there.
pub fn fused<'n>(names: impl Iterator<Item = &'n str>) -> Vec<Vec<&'n str>> {
    let mut groups: HashMap<(String, usize), Vec<&str>> = HashMap::new();
    for name in names {
        let parts: Vec<&str> = name.split('.').collect();
        let place = parts.iter().enumerate().find_map(|(at, part)| {
            let fused = FUSED.iter().position(|fused| fused.contains(part))?;
            Some((at, fused))
        });
        if let Some((at, fused)) = place {
            let around = [&parts[..at], &["*"], &parts[at + 1..]].concat().join(".");
            groups.entry((around, fused)).or_default().push(name);
        }
    }
    let mut groups: Vec<Vec<&str>> = groups.into_values().filter(|names| names.len() > 1).collect();
    groups.sort();
    groups
}

/// The name of the module of a matrix.
pub fn module(name: &str) -> &str {
    name.strip_suffix(".weight").unwrap_or(name)
}
