//! Inputs that show faults, made from an example of a call: other sizes, other values, lengths that differ, and numbers that decide.
//!
//! Nothing here knows an operation's faults by name. Sizes follow from the descriptions of the arguments ([`sizes`]), values from
//! the types and ranges of the arguments ([`values`]). An input that the operation refuses, or whose right result is not finite, is
//! dropped. The order follows from the operation's own faults: each input shows as many as possible that those before did not.

mod ragged;
mod sizes;
mod values;

use std::collections::BTreeMap;

use safetensors::Dtype;
use ulplab_core::random::{below, stream};

use self::sizes::{Dimensions, Sizes};
use self::values::{Legal, Recipe, drawn, legal, stored, tiled};
use super::{Call, Given, Kind, Output, Takes, Tensor, judge, overflow};
use ulplab_core::close::{Allowed, compare};

/// Inputs that show faults.
#[derive(Clone, Debug)]
pub struct Telling {
    /// Arguments by name.
    pub given: BTreeMap<String, Given>,
    /// Description of the sizes and the values.
    pub why: String,
    /// True if every order of sums gives the same result, without a rounding.
    pub exact: bool,
    /// Faults of the operation that these inputs show, and that none before shows.
    pub faults: Vec<&'static str>,
}

/// Plan of an input.
struct Plan {
    why: String,
    sizes: Sizes,
    recipe: Recipe,
    /// True if numbers and flags that may vary have other values than in the example.
    numbers: bool,
}

/// Maximum number of elements of all tensors of an input.
const MOST: usize = 1 << 22;
/// Maximum number of elements of an input whose faults are computed.
const MOST_OF_FAULTS: usize = 1 << 15;
/// Numbers that scale something: any value is legal where 1 is.
const FACTORS: [&str; 5] = ["alpha", "k_scale", "scale", "scaling_factor", "v_scale"];

/// Makes at most `budget` inputs from an example. `types` has the element types of its tensors. `vary` names the numbers that may
/// differ from the example; without it, those that the example gives with their default.
///
/// # Errors
/// Returns an error if the operation refuses the example.
pub fn telling(
    call: &Call,
    types: &BTreeMap<String, Dtype>,
    vary: Option<&[String]>,
    (budget, seed): (usize, u64),
) -> Result<Vec<Telling>, String> {
    (call.operation().compute)(call)?;
    let dims = Dimensions::of(call);
    let numbers: Vec<&Takes> = call
        .operation()
        .takes
        .iter()
        .filter(|takes| varies(call, takes, vary))
        .collect();
    let mut found = Vec::new();
    for (at, plan) in plans(call, &dims).into_iter().enumerate() {
        if found.len() == budget {
            break;
        }
        let made = Maker {
            call,
            types,
            dims: &dims,
            numbers: &numbers,
            at,
        }
        .make(&plan, seed);
        let Some(made) = made else { continue };
        let Ok(outputs) = (call.operation().compute)(&made) else {
            continue;
        };
        if sound(&outputs, call) {
            found.push((made, outputs, plan));
        }
    }
    Ok(ordered(found))
}

/// Returns true if a number may differ from the example.
fn varies(call: &Call, takes: &Takes, vary: Option<&[String]>) -> bool {
    let Kind::Number(default) = takes.kind else {
        return false;
    };
    let known = takes.doc.starts_with("whether") || FACTORS.contains(&takes.name);
    match vary {
        Some(names) => known && names.iter().any(|name| name == takes.name),
        None => known && call.has(takes.name) && call.number(takes.name) == default,
    }
}

/// Returns true if all elements are finite numbers of the output's type, or not finite in the example, too.
fn sound(outputs: &[Output], call: &Call) -> bool {
    let most = overflow(call.dtype);
    let finite = |output: &Output| {
        output
            .value
            .iter()
            .zip(&output.error)
            .all(|(x, error)| x.abs() < most && error.is_finite())
    };
    let expected = call
        .given
        .values()
        .any(|given| matches!(given, Given::Tensor(x) if x.data.iter().any(|x| !x.is_finite())));
    let lengths = ragged::has_lengths(call);
    // Rows without keys have a logarithm of -inf.
    let some = |output: &Output| output.value.iter().any(|x| x.is_finite());
    let numbers = |output: &Output| output.value.iter().all(|x| !x.is_nan());
    outputs.iter().any(|output| !output.value.is_empty())
        && outputs
            .iter()
            .all(|output| finite(output) || some(output) && (expected || lengths) && (expected || numbers(output)))
}

/// Plans, the most telling first: values alone and sizes by turns.
fn plans(call: &Call, dims: &Dimensions) -> Vec<Plan> {
    let same = |recipe, why: &str, numbers| Plan {
        why: why.into(),
        sizes: dims.sizes.clone(),
        recipe,
        numbers,
    };
    let mut values = vec![
        same(Recipe::Distinct, "scales of their own for every slice", true),
        same(Recipe::Near, "near ties with a common offset", false),
        same(Recipe::Heavy, "a wide range, one element of each row dominates", true),
        same(
            if call.has("alpha") {
                Recipe::Overflow
            } else {
                Recipe::Huge
            },
            "huge numbers",
            true,
        ),
        same(Recipe::Exact, "small integers", false),
        same(Recipe::Tiny, "tiny numbers", false),
        same(Recipe::Ties, "few distinct numbers", true),
        same(Recipe::Dead, "slices of zeros", false),
        same(Recipe::Subnormal, "numbers next to the smallest normal one", false),
    ]
    .into_iter();
    let mut changed = changed(call, dims)
        .into_iter()
        .enumerate()
        .map(|(at, (why, sizes))| Plan {
            why,
            sizes,
            recipe: Recipe::Distinct,
            numbers: at % 2 == 1,
        });
    let mut all = Vec::new();
    loop {
        let before = all.len();
        all.extend(values.next());
        all.extend(changed.next());
        all.extend(changed.next());
        if all.len() == before {
            return all;
        }
    }
}

/// Other sizes, one letter at a time: the first change of every letter, then the second, and so on.
fn changed(call: &Call, dims: &Dimensions) -> Vec<(String, Sizes)> {
    let fits = |sizes: &Sizes| {
        let shapes = call
            .operation()
            .takes
            .iter()
            .filter(|takes| call.optional(takes.name).is_some());
        let shapes: Vec<Vec<usize>> = shapes.filter_map(|takes| dims.shape(takes.name, sizes)).collect();
        let elements: usize = shapes.iter().map(|shape| shape.iter().product::<usize>()).sum();
        elements <= MOST && elements > 0
    };
    let with = |letter: &String, size: usize| {
        let mut sizes = dims.sizes.clone();
        let was = sizes.insert(letter.clone(), size).unwrap_or(size).max(1);
        let mut why = format!("{letter} = {size}");
        // More packed sequences have more tokens.
        for packed in dims.packed(letter).into_iter().filter(|_| size > was) {
            let all = sizes.entry(packed.clone()).or_default();
            *all = *all * size / was + 1;
            why += &format!(", {packed} = {all}");
        }
        (why, sizes)
    };
    let mut all: Vec<(String, Sizes)> = Vec::new();
    let mut add = |one: (String, Sizes)| {
        if one.1 != dims.sizes && !all.contains(&one) && fits(&one.1) {
            all.push(one);
        }
    };
    let size = |letter: &String| dims.sizes[letter];
    for letter in &dims.letters {
        // The next odd size, which no vector or tile divides; heads go in multiples of groups.
        let n = size(letter);
        let heads = dims
            .letters
            .iter()
            .any(|of| ["G", "H"].contains(&of.as_str()) && of != letter && n.is_multiple_of(size(of).max(1)));
        let heads = ["H", "HV"].contains(&letter.as_str()) && heads;
        add(with(letter, if heads { 2 * n } else { (n + 1) | 1 }));
    }
    // Sequences of as many keys as queries, and square matrices, have a size in common.
    for [from, to] in [["S", "T"], ["keys", "tokens"], ["N", "K"]] {
        if let (Some(_), Some(n)) = (dims.sizes.get(from), dims.sizes.get(to)) {
            add(with(&from.to_string(), *n));
        }
    }
    // Batches and rows come first.
    let first = dims.letters.len().min(3);
    for letter in &dims.letters[..first] {
        add(with(letter, 1));
    }
    for letter in &dims.letters {
        add(with(letter, 2 * size(letter)));
    }
    for letter in &dims.letters[first..] {
        add(with(letter, 1));
    }
    for letter in &dims.letters {
        // Beyond the numbers of 16 bits, where it costs little.
        add(with(letter, 65_545));
    }
    for letter in &dims.letters {
        add(with(letter, size(letter) / 2));
    }
    for letter in &dims.letters {
        // One more than a tile.
        let tile = [32, 64, 128, 256, 512, 1024, 2048, 4096]
            .into_iter()
            .find(|tile| *tile > size(letter));
        tile.into_iter().for_each(|tile| add(with(letter, tile + 1)));
    }
    all
}

/// Makes the call of a plan.
struct Maker<'a> {
    call: &'a Call,
    types: &'a BTreeMap<String, Dtype>,
    dims: &'a Dimensions,
    numbers: &'a [&'a Takes],
    /// Number of the plan.
    at: usize,
}

impl Maker<'_> {
    fn make(&self, plan: &Plan, seed: u64) -> Option<Call> {
        let (call, operation) = (self.call, self.call.operation());
        let mut made = call.clone();
        for takes in operation.takes {
            let Some(of) = call.optional(takes.name) else { continue };
            let shape = self
                .dims
                .shape(takes.name, &plan.sizes)
                .unwrap_or_else(|| of.shape.clone());
            let purpose = format!("telling/{}/{}/{}", operation.name, takes.name, self.at);
            let rng = &mut stream(seed, &purpose);
            let dtype = self.types.get(takes.name).copied().unwrap_or(Dtype::F32);
            let kept = legal(operation.name, takes.name);
            let whole = matches!(
                dtype,
                Dtype::I64
                    | Dtype::I32
                    | Dtype::I16
                    | Dtype::I8
                    | Dtype::U64
                    | Dtype::U32
                    | Dtype::U16
                    | Dtype::U8
                    | Dtype::BOOL
            );
            let data = match () {
                () if whole && made.word(&format!("{}_codes", takes.name)) == "e2m1" => {
                    (0..shape.iter().product()).map(|_| below(rng, 256) as f64).collect()
                }
                () if whole || kept == Legal::Kept => tiled(of, &shape),
                () => {
                    let finite: Vec<f64> = of.data.iter().copied().filter(|x| x.is_finite()).collect();
                    let square = finite.iter().map(|x| x * x).sum::<f64>() / finite.len().max(1) as f64;
                    let size = if dtype == Dtype::F8_E4M3 {
                        square.sqrt().min(28.0)
                    } else {
                        square.sqrt()
                    };
                    let mut x = drawn(rng, (self.recipe(plan), kept), &shape, dtype, size);
                    infinities(of, &shape, &mut x);
                    x
                }
            };
            made.given
                .insert(takes.name.into(), Given::Tensor(Tensor { shape, data }));
        }
        ragged::set(&mut made, self.at, seed)?;
        if plan.numbers {
            for takes in self.numbers {
                let number = match takes.name {
                    "alpha" if plan.recipe == Recipe::Overflow => 2f64.powi(-18),
                    _ if takes.doc.starts_with("whether") => 1.0 - call.number(takes.name),
                    // No number twice in a call, none a power of two.
                    name => 0.3 + 0.11 * (name.len() + self.at % 5) as f64,
                };
                made.set(takes.name, number);
            }
        }
        Some(made)
    }
}

impl Maker<'_> {
    /// Recipe of a plan. A kernel that rounds intermediate results to a type of few exponents gets no numbers that overflow there.
    fn recipe(&self, plan: &Plan) -> Recipe {
        let narrow = |given: &Given| matches!(given, Given::Word(word) if word == "f16" || word == "e4m3");
        match plan.recipe {
            Recipe::Near | Recipe::Huge | Recipe::Exact if self.call.given.values().any(narrow) => Recipe::Distinct,
            recipe => recipe,
        }
    }
}

/// Puts the infinities of an example to the other end of each row, in every second row.
fn infinities(of: &Tensor, shape: &[usize], x: &mut [f64]) {
    if of.data.iter().all(|x| x.is_finite()) {
        return;
    }
    let cols = shape.last().copied().unwrap_or(1).max(1);
    let pattern = tiled(of, shape);
    for (row, (x, pattern)) in x.chunks_mut(cols).zip(pattern.chunks(cols)).enumerate() {
        for (at, x) in x.iter_mut().enumerate() {
            let from = pattern[if row % 2 == 0 { cols - 1 - at } else { at }];
            *x = if from.is_finite() { *x } else { from };
        }
    }
}

/// Orders inputs: each shows as many faults as possible that those before it do not show.
fn ordered(mut all: Vec<(Call, Vec<Output>, Plan)>) -> Vec<Telling> {
    let mut shown: Vec<Vec<&'static str>> = all.iter().map(|(call, right, _)| shows(call, right)).collect();
    let mut found = Vec::new();
    while !all.is_empty() {
        let most = shown.iter().map(Vec::len).max().unwrap_or_default();
        let at = shown.iter().position(|faults| faults.len() == most).unwrap_or_default();
        let (call, outputs, plan) = all.remove(at);
        let faults = shown.remove(at);
        shown
            .iter_mut()
            .for_each(|others| others.retain(|other| !faults.contains(other)));
        found.push(Telling {
            given: call.given,
            why: format!("{}, {}", plan.why, format!("{:?}", plan.recipe).to_lowercase()),
            exact: outputs
                .iter()
                .all(|output| output.exact || output.any_order && output.error.iter().all(|error| *error == 0.0)),
            faults,
        });
    }
    found
}

/// Faults of the operation whose results are outside the bound for these inputs.
pub fn shows(call: &Call, right: &[Output]) -> Vec<&'static str> {
    let elements: usize = call
        .given
        .values()
        .map(|given| if let Given::Tensor(x) = given { x.data.len() } else { 0 })
        .sum();
    if elements > MOST_OF_FAULTS {
        return Vec::new();
    }
    let faults = call
        .operation()
        .faults
        .iter()
        .filter(|fault| fault.needs.is_none_or(|needs| call.has(needs)));
    let outside = |fault: &&super::Fault| {
        let Ok(wrong) = (call.operation().compute)(&call.with(Some(fault.name), None)) else {
            return false;
        };
        wrong.iter().zip(right).any(|(wrong, right)| {
            let got: Vec<f64> = wrong.value.iter().map(|x| stored(call.dtype, *x)).collect();
            let mut right = right.clone();
            if got.len() != right.value.len() {
                return false;
            }
            judge::settle(&mut right, &got, call.dtype);
            let bounds = right.bounds(call.dtype);
            compare(&got, &right.value, Allowed::Bounds(&bounds), true).outside > 0
        })
    };
    faults.filter(outside).map(|fault| fault.name).collect()
}

/// Values of a tensor that show faults, for an operation without a description: each slice of every dimension has a scale of its
/// own, and of eight rows seven have other values: dominant elements, near ties, ties, zeros, small integers, tiny and large numbers.
pub fn tensor((seed, purpose): (u64, &str), dtype: Dtype, shape: &[usize]) -> Vec<f64> {
    let rng = &mut stream(seed, &format!("telling/{purpose}"));
    let mut x = drawn(rng, (Recipe::Distinct, Legal::Any), shape, dtype, 1.0);
    let cols = shape.last().copied().unwrap_or(1).max(1);
    let rows = [
        Recipe::Heavy,
        Recipe::Near,
        Recipe::Ties,
        Recipe::Dead,
        Recipe::Exact,
        Recipe::Tiny,
        Recipe::Huge,
    ];
    for (row, x) in x.chunks_mut(cols).enumerate() {
        if let Some(recipe) = (row % 8).checked_sub(1).map(|at| rows[at]) {
            x.copy_from_slice(&drawn(rng, (recipe, Legal::Any), &[x.len()], dtype, 1.0));
        }
    }
    x
}

/// Sizes of a call's dimensions by letter, in the order of the arguments.
pub fn sizes(call: &Call) -> Vec<(String, usize)> {
    let dims = Dimensions::of(call);
    let letters = dims.letters.iter().map(|letter| (letter.clone(), dims.sizes[letter]));
    letters.collect()
}

/// Cuts all tensors of a call to another size of a letter; lengths and offsets end with what is left. `None` if the operation
/// refuses the call then.
pub fn cut(call: &Call, letter: &str, size: usize) -> Option<Call> {
    let dims = Dimensions::of(call);
    let mut sizes = dims.sizes.clone();
    *sizes.get_mut(letter)? = size;
    let mut made = call.clone();
    for takes in call.operation().takes {
        if let (Some(of), Some(shape)) = (call.optional(takes.name), dims.shape(takes.name, &sizes)) {
            let data = tiled(of, &shape);
            made.given
                .insert(takes.name.into(), Given::Tensor(Tensor { shape, data }));
        }
    }
    ragged::fit(&mut made);
    (call.operation().compute)(&made).is_ok().then_some(made)
}
