//! Normalises the names of matrices, because programs name the same matrix differently.

use crate::checkpoint::parts::{is_number, module};

/// The name of a matrix, normalised: without its prefix, and with one spelling for each component.
#[derive(Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Place {
    /// Middle of the name, e.g. `layers.0.mlp.experts`: from the component before the first number to the component before the
    /// expert index, or before the leaf if the name has no expert index.
    pub within: String,
    /// Index of the expert; `None` if the matrix belongs to no single expert.
    pub expert: Option<usize>,
    /// The last component, e.g. `gate_proj`.
    pub leaf: String,
}

/// Components of names that mean the same in different programs. The first spelling of each list is the normal form.
///
/// Meta's `wq` and `wk` are not listed: they order their rows differently from `q_proj` and `k_proj`.
const SAME: &[&[&str]] = &[
    &["gate_proj", "w1"],
    &["up_proj", "w3"],
    &["down_proj", "w2"],
    &["gate_up_proj", "w13"],
    &["qkv_proj", "W_pack", "c_attn", "qkv"],
    &["v_proj", "wv"],
    &["o_proj", "wo"],
    &["q_a_proj", "wq_a"],
    &["q_b_proj", "wq_b"],
    &["kv_a_proj_with_mqa", "wkv_a"],
    &["kv_b_proj", "wkv_b"],
    &["mlp", "ffn", "feed_forward", "block_sparse_moe"],
    &["self_attn", "attn", "attention"],
    &["lm_head", "head"],
];

/// Fused matrices, and the matrices whose rows they contain, in this order.
const FUSED: &[(&str, &[&str])] = &[
    ("gate_up_proj", &["gate_proj", "up_proj"]),
    ("qkv_proj", &["q_proj", "k_proj", "v_proj"]),
    ("fused_qkv_a_proj_with_mqa", &["q_a_proj", "kv_a_proj_with_mqa"]),
];

/// Returns the prefix of a name, e.g. `model.language_model`, and the place (normalised name) of the matrix.
pub fn place(name: &str) -> (String, Place) {
    let parts: Vec<&str> = module(name).split('.').collect();
    let number = |part: &str| part.parse::<usize>().ok().filter(|_| is_number(part));
    let first = parts.iter().position(|part| number(part).is_some());
    let start = first.map_or(parts.len() - 1, |first| first.saturating_sub(1));
    let (leaf, around) = parts[start..].split_last().expect("a name has a component");
    // A number before the leaf is the index of an expert. But if it is the first number of the name, it is the index of a layer,
    // unless the component before it is `experts`.
    let expert = around.last().and_then(|last| number(last)).filter(|_| {
        let at = start + around.len() - 1;
        first != Some(at) || (at > 0 && parts[at - 1] == "experts")
    });
    let around = &around[..around.len() - usize::from(expert.is_some())];
    let place = Place {
        within: around.iter().map(|part| same(part)).collect::<Vec<_>>().join("."),
        expert,
        leaf: same(leaf).into(),
    };
    (parts[..start].join("."), place)
}

fn same(part: &str) -> &str {
    SAME.iter().find(|all| all.contains(&part)).map_or(part, |all| all[0])
}

impl Place {
    /// Returns the normalised name of the matrix `leaf` of the same module, e.g. of `up_proj` next to `gate_proj`.
    pub fn with(&self, leaf: &str) -> Self {
        Self {
            leaf: leaf.into(),
            ..self.clone()
        }
    }

    /// Normalised name of the same matrix in expert number `expert`; with `None`, of the stack of all experts.
    pub fn of_expert(&self, expert: Option<usize>) -> Self {
        Self { expert, ..self.clone() }
    }

    /// Full name of the module within the model, including the index of the expert.
    pub fn module(&self) -> String {
        let expert = self.expert.map_or(String::new(), |expert| format!(".{expert}"));
        format!("{}{expert}.{}", self.within, self.leaf)
    }

    /// The list of layers and the index in it, e.g. `layers.0`.
    pub fn layer(&self) -> Option<&str> {
        let (list, rest) = self.within.split_once('.')?;
        let number = rest.split('.').next()?;
        is_number(number).then(|| &self.within[..list.len() + 1 + number.len()])
    }

    /// The matrices whose rows a fused matrix contains, in order; empty if the matrix is not fused.
    pub fn members(&self) -> &'static [&'static str] {
        let fused = FUSED.iter().find(|(name, _)| *name == self.leaf);
        fused.map_or(&[], |(_, members)| members)
    }

    /// The fused matrix that may contain the rows of this matrix, and all of its members in order.
    pub fn fusion(&self) -> Option<(&'static str, &'static [&'static str])> {
        let mut fused = FUSED.iter().copied();
        fused.find(|(_, members)| members.contains(&self.leaf.as_str()))
    }
}
