//! Matrices that a file has by another name, or as one stack, by the names that each would have by itself.

/// The matrices within a stack of experts called `name`, of this shape: the name of each, its shape, and which part of the stack's
/// elements it is, as the first and the number of them. None if it is no such stack.
pub(super) fn matrices(name: &str, shape: &[usize]) -> Vec<(String, [usize; 2], [usize; 2])> {
    let (count, outputs, inputs) = match *shape {
        [outputs, inputs] => {
            let renamed = dense(name).into_iter();
            let whole = |name| (name, [outputs, inputs], [0, outputs * inputs]);
            return renamed.map(whole).collect();
        }
        [count, outputs, inputs] => (count, outputs, inputs),
        _ => return Vec::new(),
    };
    if outputs * inputs == 0 {
        return Vec::new();
    }
    let (stem, parts): (_, &[&str]) = match name.rsplit_once('.') {
        Some((stem, "gate_up_proj")) if outputs.is_multiple_of(2) => (stem, &["gate_proj", "up_proj"]),
        Some((stem, "down_proj")) => (stem, &["down_proj"]),
        _ => return Vec::new(),
    };
    if !stem.ends_with(".experts") {
        return Vec::new();
    }
    let rows = outputs / parts.len();
    let each = (0..count).flat_map(|expert| parts.iter().map(move |part| (expert, part)));
    each.enumerate()
        .map(|(at, (expert, part))| {
            let elements = rows * inputs;
            let name = format!("{stem}.{expert}.{part}.weight");
            (name, [rows, inputs], [at * elements, elements])
        })
        .collect()
}

/// The published name of a matrix of a dense layer of Kimi-Linear, which `transformers` stores under the name that layers with experts
/// have.
fn dense(name: &str) -> Option<String> {
    let (layer, matrix) = name.split_once(".block_sparse_moe.")?;
    let known = ["gate_proj.weight", "up_proj.weight", "down_proj.weight"];
    known.contains(&matrix).then(|| format!("{layer}.mlp.{matrix}"))
}
