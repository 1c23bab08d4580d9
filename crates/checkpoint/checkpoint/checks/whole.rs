//! Checks for missing tensors, and compares tensors that are not quantized with those of the source checkpoint.

use std::collections::{BTreeMap, BTreeSet, HashMap, HashSet};

use super::{Check, Finding, Severity};
use crate::checkpoint::counterpart::{Place, place};
use crate::checkpoint::parts::{Matrices, is_number, kin};
use crate::packed::rounded;
use ulplab_core::error::counted;
use ulplab_core::tensorfile::Tensor;

pub const MISSING_TENSOR: Check = Severity::Error.check(
    "missing_tensor",
    "No layer lacks a tensor of a module that all other layers of its form have, but for the norm ahead of the first layer, which some \
     models lack. With a source: the file has every tensor of the source whose namesakes it has, and those outside of layers, but for an \
     output head that is tied.",
);
pub const PLAIN_DIFFERS: Check = Severity::NotJudged.check(
    "plain_differs",
    "Tensors that are not quantized are those of the source, rounded to their type. Programs that move factors between layers change \
     norms and biases: a tensor that differs is not judged.",
);

pub const DEAD_TENSOR: Check = Severity::Error.check(
    "dead_tensor",
    "A tensor that is not quantized is not all zeros where the source's is not.",
);

/// The layers of one list (e.g. `model.layers`) by index: for each layer, the names of its tensors within the layer.
type Layers<'n> = BTreeMap<usize, BTreeSet<&'n str>>;

/// A set of tensors is rare if only one layer of a list has it, or at most one layer in 16. A layer with a rare set may lack a
/// tensor by mistake.
const RARE: usize = 16;

/// Reports tensors that a layer lacks although similar layers have them. Only layers with a rare set of tensors (see `RARE`) are
/// checked. A tensor counts as missing if at least two other layers have all tensors of this layer and more, and if all of these
/// layers have the tensor.
pub fn layers(matrices: &Matrices) -> Vec<Finding> {
    let mut lists: BTreeMap<&str, Layers> = BTreeMap::new();
    for (name, _) in matrices.iter().filter(|(_, parts)| parts.codes.is_some()) {
        if let Some((list, layer, rest)) = split(name) {
            lists.entry(list).or_default().entry(layer).or_default().insert(rest);
        }
    }
    let mut findings = Vec::new();
    for (list, layers) in &lists {
        for (layer, own) in layers {
            let equal = layers.values().filter(|other| *other == own).count();
            if equal > (layers.len() / RARE).max(1) {
                continue;
            }
            let fuller = layers.values().filter(|other| own.is_subset(other) && *other != own);
            let fuller: Vec<_> = fuller.collect();
            let Some((first, others)) = fuller.split_first().filter(|(_, others)| !others.is_empty()) else {
                continue;
            };
            let in_all = |rest: &&&str| others.iter().all(|other| other.contains(*rest));
            let all = first.iter().filter(in_all);
            let is_first = layers.keys().next() == Some(layer);
            let lacks = |rest: &&&str| {
                let (within, leaf) = parent(rest);
                let in_module = own.iter().any(|other| *other != **rest && parent(other).0 == within);
                let ahead = is_first && within.is_empty() && leaf.contains("norm");
                !own.contains(**rest) && in_module && !ahead
            };
            for rest in all.filter(lacks) {
                let name = format!("{list}.{layer}.{rest}");
                let expected = format!("a tensor, as {} of the same form have", counted(fuller.len(), "layer"));
                let found = "it is not in the file";
                findings.push(Finding::new(&MISSING_TENSOR, (&name, ""), found, expected));
            }
        }
    }
    findings
}

/// Splits a name into the list of layers, the index in the list and the name within the layer: `model.layers`, 3,
/// `mlp.up_proj.weight`.
fn split(name: &str) -> Option<(&str, usize, &str)> {
    let mut start = 0;
    for part in name.split('.') {
        let end = start + part.len();
        if start > 0 && is_number(part) && end < name.len() {
            return Some((&name[..start - 1], part.parse().ok()?, &name[end + 1..]));
        }
        start = end + 1;
    }
    None
}

/// Splits the module of a tensor into its parent module and its own name, e.g. `mlp` and `up_proj`. The parent of an expert's
/// module is the module of all experts.
fn parent(rest: &str) -> (&str, &str) {
    let module = rest.rsplit_once('.').map_or(rest, |(module, _)| module);
    let (within, leaf) = module.rsplit_once('.').unwrap_or(("", module));
    let (above, last) = within.rsplit_once('.').unwrap_or(("", within));
    (if is_number(last) { above } else { within }, leaf)
}

/// Number of elements that are compared at a time.
const PIECE: usize = 1 << 20;

/// Reports source tensors that the checkpoint lacks, and unquantized tensors that differ from the source. `used` names the source
/// tensors from which quantized matrices were made; they are not missing. If `folded` is true, values are not compared, because
/// channel factors of the weights may have been moved into these tensors, e.g. into norms.
pub fn against(matrices: &Matrices, source: &Matrices, used: &BTreeSet<&str>, folded: bool) -> Vec<Finding> {
    let mut held: HashMap<_, Vec<(String, &str)>> = HashMap::new();
    for (name, _) in source.iter().filter(|(_, parts)| parts.codes.is_some()) {
        let (prefix, place) = place(name);
        held.entry(place).or_default().push((prefix, name));
    }
    let mut findings = Vec::new();
    let mut met: BTreeSet<&str> = used.clone();
    for (name, parts) in matrices.iter().filter(|(_, parts)| parts.scale.is_none()) {
        let Some(tensor) = parts.codes else { continue };
        let (prefix, place) = place(name);
        let Some(all) = held.get(&place) else { continue };
        let same = all.iter().find(|(other, _)| *other == prefix);
        let Some((_, other)) = same.or_else(|| all.first().filter(|_| all.len() == 1)) else {
            continue;
        };
        met.insert(other);
        let Some(wanted) = source[*other].codes.filter(|_| source[*other].scale.is_none()) else {
            continue;
        };
        if folded || wanted.shape != tensor.shape || !(wanted.is_floating() && tensor.is_floating()) {
            continue;
        }
        let (differ, zeros) = differing(tensor, wanted);
        if differ > 0 {
            let all = counted(tensor.shape.iter().product(), "element");
            let (check, found) = match zeros {
                true => (&DEAD_TENSOR, format!("all {all} are 0, and those of '{other}' are not")),
                false => (
                    &PLAIN_DIFFERS,
                    format!("{differ} of {all} differ from '{other}' of the source"),
                ),
            };
            let expected = "the source's, rounded to the type of the file";
            findings.push(Finding::new(check, (tensor.name, name), found, expected));
        }
    }
    findings.extend(absent(matrices, source, &met));
    findings
}

/// Reports source tensors that are missing in the checkpoint. Only two kinds of source tensors must be there: norms outside of
/// layers, and tensors of a layer of the checkpoint if its other layers have the same tensor.
fn absent(matrices: &Matrices, source: &Matrices, met: &BTreeSet<&str>) -> Vec<Finding> {
    let here = matrices.iter().filter(|(_, parts)| parts.codes.is_some());
    let places: HashSet<Place> = here.map(|(name, _)| place(name).1).collect();
    let kinds: BTreeSet<String> = places.iter().map(|place| kin(&place.module())).collect();
    let layers: BTreeSet<&str> = places.iter().filter_map(Place::layer).collect();
    let lacks = |name: &&str| {
        let (_, place) = place(name);
        let expected = match place.layer() {
            Some(layer) => layers.contains(layer) && kinds.contains(&kin(&place.module())),
            None => place.leaf.ends_with("norm"),
        };
        expected && !met.contains(*name) && !places.contains(&place)
    };
    let floating = |name: &&str| source[*name].codes.is_some_and(|codes| codes.is_floating());
    let names = source.keys().map(String::as_str).filter(floating);
    let (found, expected) = ("it is not in the file", "a tensor, as the source has");
    let finding = |name: &str| Finding::new(&MISSING_TENSOR, (name, ""), found, expected);
    names.filter(lacks).map(finding).collect()
}

/// Returns the number of elements of `tensor` that differ from the source rounded to the same type. The flag is true if the bytes
/// differ and all elements of `tensor` are 0.
fn differing(tensor: Tensor, source: Tensor) -> (usize, bool) {
    if tensor.dtype == source.dtype && tensor.bytes == source.bytes {
        return (0, false);
    }
    let size = |tensor: &Tensor| tensor.dtype.bitsize() / 8;
    let (own, other) = (size(&tensor), size(&source));
    let pieces = tensor.bytes.chunks(PIECE * own).zip(source.bytes.chunks(PIECE * other));
    let (mut count, mut zeros) = (0, true);
    for (got, want) in pieces {
        let got = Tensor { bytes: got, ..tensor }.to_f32().unwrap_or_default();
        let want = Tensor { bytes: want, ..source }.to_f32().unwrap_or_default();
        zeros &= got.iter().all(|x| *x == 0.0);
        let differs =
            |(got, want): &(&f32, &f32)| **got != rounded(**want, tensor.dtype) && !(got.is_nan() && want.is_nan());
        count += got.iter().zip(&want).filter(differs).count();
    }
    (count, zeros)
}
