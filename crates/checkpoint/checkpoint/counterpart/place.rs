//! The place of a matrix in a model, by its name: programs name the same matrix differently.

use crate::checkpoint::parts::{is_number, module};

/// The name of a matrix without the parts that programs choose freely.
#[derive(Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Place {
    /// Components from that before the first number (`layers.0.mlp.experts`) to the matrix.
    pub within: String,
    /// The number of the expert, if experts are apart.
    pub expert: Option<usize>,
    /// The last component: `gate_proj`.
    pub leaf: String,
}

/// Components of names by which programs mean the same; the first is the one that stands for all.
///
/// Meta's `wq` and `wk` are absent: their rows are in another order than those of `q_proj` and `k_proj`.
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

/// Matrices whose rows some programs store as those of one matrix, in this order.
const FUSED: &[(&str, &[&str])] = &[
    ("gate_up_proj", &["gate_proj", "up_proj"]),
    ("qkv_proj", &["q_proj", "k_proj", "v_proj"]),
    ("fused_qkv_a_proj_with_mqa", &["q_a_proj", "kv_a_proj_with_mqa"]),
];

/// The place of a matrix, and the components of its name before that: `model.language_model`.
pub fn place(name: &str) -> (String, Place) {
    let parts: Vec<&str> = module(name).split('.').collect();
    let number = |part: &str| part.parse::<usize>().ok().filter(|_| is_number(part));
    let first = parts.iter().position(|part| number(part).is_some());
    let start = first.map_or(parts.len() - 1, |first| first.saturating_sub(1));
    let (leaf, around) = parts[start..].split_last().expect("a name has a component");
    // The first number is that of a layer, unless experts are all that a file has.
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
    /// The place of another matrix of the same module.
    pub fn with(&self, leaf: &str) -> Self {
        Self {
            leaf: leaf.into(),
            ..self.clone()
        }
    }

    /// The place of expert number `expert`, or of the stack of all.
    pub fn of_expert(&self, expert: Option<usize>) -> Self {
        Self { expert, ..self.clone() }
    }

    /// Its module with the number of the expert.
    pub fn module(&self) -> String {
        let expert = self.expert.map_or(String::new(), |expert| format!(".{expert}"));
        format!("{}{expert}.{}", self.within, self.leaf)
    }

    /// The list of layers and the number in it: `layers.0`.
    pub fn layer(&self) -> Option<&str> {
        let (list, rest) = self.within.split_once('.')?;
        let number = rest.split('.').next()?;
        is_number(number).then(|| &self.within[..list.len() + 1 + number.len()])
    }

    /// The matrices whose rows it has one after the other; empty for one that is not fused.
    pub fn members(&self) -> &'static [&'static str] {
        let fused = FUSED.iter().find(|(name, _)| *name == self.leaf);
        fused.map_or(&[], |(_, members)| members)
    }

    /// The fused matrix that may have its rows, with all members in their order.
    pub fn fusion(&self) -> Option<(&'static str, &'static [&'static str])> {
        let mut fused = FUSED.iter().copied();
        fused.find(|(_, members)| members.contains(&self.leaf.as_str()))
    }
}
