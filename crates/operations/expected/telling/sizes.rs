//! Sizes of a call's dimensions, by the letters of the arguments' descriptions, and the shapes that other sizes give.

use std::collections::BTreeMap;

use super::super::{Call, Kind};

/// Sizes of dimensions, by letter. Leading dimensions of `...` are the letters `...0`, `...1` and so on.
pub(super) type Sizes = BTreeMap<String, usize>;

/// Dimensions of every tensor of a call, as expressions over letters.
#[derive(Debug)]
pub(super) struct Dimensions {
    /// Expressions of the dimensions, by the tensor's name. A tensor that no description fits is missing.
    of: BTreeMap<&'static str, Vec<String>>,
    /// Letters in the order in which the arguments have them.
    pub(super) letters: Vec<String>,
    /// Sizes of the letters in the call.
    pub(super) sizes: Sizes,
}

impl Dimensions {
    /// Finds the descriptions that fit all tensors of a call, with one size for each letter.
    pub(super) fn of(call: &Call) -> Self {
        let takes = call.operation().takes;
        let (required, optional): (Vec<_>, Vec<_>) = takes.iter().partition(|takes| takes.kind == Kind::Tensor);
        let mut tensors = Vec::new();
        for takes in required.into_iter().chain(optional) {
            if let Some(tensor) = call.optional(takes.name) {
                // A description such as "as cos" stands for that of another tensor.
                let same = takes
                    .doc
                    .strip_prefix("as ")
                    .and_then(|name| call.operation().takes.iter().find(|of| of.name == name));
                let doc = same.map_or(takes.doc, |same| same.doc);
                let shapes = described(doc)
                    .into_iter()
                    .filter_map(|dims| spread(dims, tensor.shape.len()));
                tensors.push((takes.name, shapes.collect::<Vec<_>>(), &tensor.shape[..]));
            }
        }
        let mut found = Self {
            of: BTreeMap::new(),
            letters: Vec::new(),
            sizes: Sizes::new(),
        };
        // Leave out the fewest tensors, the last ones first: a shape that no description has keeps its size.
        found.fit(&tensors);
        for (name, _, shape) in &tensors {
            if !found.of.contains_key(name)
                && let Some(dims) = found.grid(name, shape)
            {
                found.of.insert(name, dims);
            }
        }
        for (name, ..) in &tensors {
            for letter in found.of.get(name).into_iter().flatten().flat_map(|dim| letters(dim)) {
                if !found.letters.contains(&letter) {
                    found.letters.push(letter);
                }
            }
        }
        found
    }

    /// Matches the first tensor with each of its descriptions, and then the others. Returns the number of matched tensors.
    fn fit(&mut self, tensors: &[(&'static str, Vec<Vec<String>>, &[usize])]) -> usize {
        let Some(((name, shapes, shape), rest)) = tensors.split_first() else {
            return 0;
        };
        let before = (self.of.clone(), self.sizes.clone());
        let mut best: Option<(usize, BTreeMap<&'static str, Vec<String>>, Sizes)> = None;
        for dims in shapes {
            (self.of, self.sizes) = before.clone();
            let all = dims
                .iter()
                .zip(*shape)
                .all(|(dim, size)| matches(dim, *size, &mut self.sizes));
            if all {
                self.of.insert(name, dims.clone());
                let count = 1 + self.fit(rest);
                if best.as_ref().is_none_or(|(most, ..)| count > *most) {
                    best = Some((count, self.of.clone(), self.sizes.clone()));
                }
                if count == tensors.len() {
                    break;
                }
            }
        }
        if best.is_none() {
            (self.of, self.sizes) = before.clone();
            let count = self.fit(rest);
            best = Some((count, self.of.clone(), self.sizes.clone()));
        }
        let (count, of, sizes) = best.expect("one was found");
        (self.of, self.sizes) = (of, sizes);
        count
    }

    /// Dimensions of a tensor of scales: each is one for a block of the operand's dimension, or for all of it.
    fn grid(&self, name: &str, shape: &[usize]) -> Option<Vec<String>> {
        let operand = self.of.get(name.strip_suffix("_scale")?)?;
        let dims = operand.get(operand.len().checked_sub(shape.len())?..)?;
        let dim = |(dim, size): (&String, &usize)| {
            let blocks = [1, 8, 16, 32, 64, 128, 256, 512].map(|block| format!("{dim}/{block}"));
            let mut found = blocks
                .into_iter()
                .filter(|blocks| value(blocks, &self.sizes) == Some(*size));
            if *size == 1 { Some("1".into()) } else { found.next() }
        };
        dims.iter().zip(shape).map(dim).collect()
    }

    /// Letters of the dimensions that packed sequences divide, if a letter counts the sequences.
    pub(super) fn packed(&self, letter: &str) -> Vec<String> {
        let offsets =
            |(name, dims): (&&str, &Vec<String>)| name.starts_with("cu_seqlens") && dims[0] == format!("{letter} + 1");
        match self.of.iter().any(offsets) {
            true => ["tokens", "keys", "T"]
                .map(String::from)
                .into_iter()
                .filter(|of| self.sizes.contains_key(of))
                .collect(),
            false => Vec::new(),
        }
    }

    /// Shape of a tensor for these sizes; `None` if no description fits the tensor.
    pub(super) fn shape(&self, name: &str, sizes: &Sizes) -> Option<Vec<usize>> {
        self.of.get(name)?.iter().map(|dim| value(dim, sizes)).collect()
    }
}

/// Parses all shapes of a description, wherever they stand in it, into lists of dimensions.
fn described(doc: &str) -> Vec<Vec<String>> {
    let parts = doc.split('[').skip(1).filter_map(|part| part.split_once(']'));
    let dims = |(shape, _): (&str, &str)| shape.split(", ").map(String::from).collect::<Vec<_>>();
    parts
        .map(dims)
        .filter(|dims| !dims.iter().any(|dim| dim == ".."))
        .collect()
}

/// Replaces `...` by as many leading dimensions as a tensor of this rank has; `None` if the ranks differ.
fn spread(dims: Vec<String>, rank: usize) -> Option<Vec<String>> {
    if dims[0] != "..." {
        return (dims.len() == rank).then_some(dims);
    }
    let before = rank.checked_sub(dims.len() - 1)?;
    let leading = (0..before).map(|at| format!("...{at}"));
    Some(leading.chain(dims.into_iter().skip(1)).collect())
}

/// Letters of an expression.
fn letters(dim: &str) -> Vec<String> {
    if dim.starts_with("...") {
        return vec![dim.into()];
    }
    let words = dim.split(|c: char| !c.is_alphabetic()).filter(|word| !word.is_empty());
    words.map(String::from).collect()
}

/// Value of an expression such as `2 I`, `K/128`, `W - 1` or `2N + N*N`; `None` if a letter's size is unknown.
fn value(dim: &str, sizes: &Sizes) -> Option<usize> {
    if dim.starts_with("...") {
        return sizes.get(dim).copied();
    }
    if let Some((all, less)) = dim.split_once(" - ") {
        return value(all, sizes)?.checked_sub(less.parse().ok()?);
    }
    let factor = |factor: &str| {
        let (factor, divisor) = factor
            .split_once('/')
            .map_or((factor, 1), |(of, by)| (of, by.parse().unwrap_or(1)));
        let letter = factor.trim_start_matches(|c: char| c.is_ascii_digit());
        let number = &factor[..factor.len() - letter.len()];
        let number = if number.is_empty() { 1 } else { number.parse().ok()? };
        let letter = letter.trim();
        let size = if letter.is_empty() { 1 } else { *sizes.get(letter)? };
        Some((number * size).div_ceil(divisor))
    };
    let product = |term: &str| term.split('*').map(factor).product::<Option<usize>>();
    dim.split(" + ").map(product).sum()
}

/// Returns true if an expression has this value for the known sizes, or for one size of its only unknown letter, which it sets.
fn matches(dim: &str, size: usize, sizes: &mut Sizes) -> bool {
    let mut unknown: Vec<String> = letters(dim)
        .into_iter()
        .filter(|letter| !sizes.contains_key(letter))
        .collect();
    unknown.dedup();
    match &unknown[..] {
        [] => value(dim, sizes) == Some(size),
        [letter] => {
            // The largest size that fits: R/2 = 8 stands for R = 16. Blocks of more than 2 have many sizes, and are not solved.
            let most = 2 * size + 2;
            let fitting = (0..=most).rev().find(|tried| {
                sizes.insert(letter.clone(), *tried);
                value(dim, sizes) == Some(size)
            });
            if fitting.is_none() {
                sizes.remove(letter);
            }
            fitting.is_some()
        }
        _ => false,
    }
}
