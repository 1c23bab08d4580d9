//! Groups the tensors of a checkpoint into quantized matrices by their names.

use std::collections::BTreeMap;

use super::conventions::{Convention, Part};
use crate::packed::{self, Buffers};
use ulplab_core::list::grouped;
use ulplab_core::tensorfile::{Tensor, TensorFile};

/// The tensors that belong to one matrix, or to one stack of matrices.
#[derive(Clone, Debug, Default)]
pub struct Parts<'a> {
    /// The codes, or the tensor itself if it is not quantized.
    pub codes: Option<Tensor<'a>>,
    /// Scales of groups of elements.
    pub scale: Option<Tensor<'a>>,
    /// The global scale, which multiplies the scales of the groups.
    pub global: Option<Tensor<'a>>,
    /// Zero points of groups of elements.
    pub zero: Option<Tensor<'a>>,
    /// Index of the group of each input channel.
    pub index: Option<Tensor<'a>>,
    /// Tensor that stores the shape of the matrix.
    pub shape: Option<Tensor<'a>>,
    /// Scales of activations and of KV caches.
    pub activations: Vec<Tensor<'a>>,
    /// Duplicate tensors: their names give them a role (codes, scale, …) that another tensor of the matrix already has.
    pub doubled: Vec<Tensor<'a>>,
}

/// Tensors of each matrix, by the name of the matrix.
pub type Matrices<'a> = BTreeMap<String, Parts<'a>>;

/// Groups the tensors of a file by matrix. `convention` derives the matrix and the role (codes, scale, …) from a tensor name.
pub fn gather<'a>(file: &'a TensorFile, convention: &Convention) -> Matrices<'a> {
    let mut matrices = Matrices::new();
    for tensor in file.tensors() {
        let (part, name) = convention
            .part(tensor.name)
            .unwrap_or((Part::Codes, tensor.name.into()));
        matrices.entry(name).or_default().put(part, tensor);
    }
    // Stacks of experts have no `.weight` in their names, but the names of their activation scales may have it: move these
    // scales to the stack.
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

    /// True if the matrix is quantized: it has scales, and codes whose type is not floating-point (f16, bf16, …).
    pub fn is_whole(&self) -> bool {
        self.scale.is_some() && self.codes.is_some_and(|codes| !codes.is_floating())
    }

    /// All tensors except codes and activation scales, each with the name of its part.
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

    /// All tensors of the matrix.
    pub fn all(&self) -> impl Iterator<Item = Tensor<'a>> {
        let others = self.without_codes().map(|(_, tensor)| tensor);
        let further = self.activations.iter().chain(&self.doubled).copied();
        self.codes.into_iter().chain(others).chain(further)
    }

    /// Returns the tensors of the matrix as buffers, and the naming convention that the names of codes and scales follow. `None`
    /// without codes or scales, or if no naming convention fits.
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

/// True if a component of a name is a number, i.e. the index of a layer or expert.
pub fn is_number(part: &str) -> bool {
    !part.is_empty() && part.bytes().all(|byte| byte.is_ascii_digit())
}

/// Replaces the numbers in a name by `*`, so that the same matrix in all layers gets the same name:
/// `layers.*.mlp.up_proj.weight`.
pub fn kin(name: &str) -> String {
    let parts = name.split('.').map(|part| if is_number(part) { "*" } else { part });
    parts.collect::<Vec<&str>>().join(".")
}

/// Groups of projections that a fused kernel computes at once from the same activation.
const FUSED: &[&[&str]] = &[
    &["gate_proj", "up_proj"],
    &["w1", "w3"],
    &["q_proj", "k_proj", "v_proj"],
    &["wq", "wk", "wv"],
    &["q_a_proj", "kv_a_proj_with_mqa"],
];

/// Groups the names of matrices that a fused kernel computes together. Each group has at least two names.
pub fn fused<'n>(names: impl Iterator<Item = &'n str>) -> Vec<Vec<&'n str>> {
    let placed = |name: &'n str| {
        let parts: Vec<&str> = name.split('.').collect();
        let (at, fused) = parts.iter().enumerate().find_map(|(at, part)| {
            let fused = FUSED.iter().position(|fused| fused.contains(part))?;
            Some((at, fused))
        })?;
        let around = [&parts[..at], &["*"], &parts[at + 1..]].concat().join(".");
        Some(((around, fused), name))
    };
    let groups = grouped(names.filter_map(placed)).into_iter().map(|(_, names)| names);
    let mut groups: Vec<Vec<&str>> = groups.filter(|names| names.len() > 1).collect();
    groups.sort();
    groups
}

/// Name of the module that a matrix belongs to.
pub fn module(name: &str) -> &str {
    name.strip_suffix(".weight").unwrap_or(name)
}
