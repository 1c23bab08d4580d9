//! Bounds against those of the formulas by hand that number types replaced (`tests/fixtures/operations/bounds.safetensors`), and the page
//! that says which operation uses which error model.

use std::collections::BTreeMap;

use safetensors::{Dtype, SafeTensors};
use ulplab::ops::ON_TENSORS;
use ulplab_operations::expected::sum::Sums;
use ulplab_operations::expected::{Call, Given, Operation, Tensor};
use ulplab_operations::ops::sums::ACCUMULATORS;

use crate::ROOT;

/// The model of each operation, and the reason.
const MODELS: [(&str, &str, &str); 21] = [
    (
        "attention",
        "by hand",
        "weights share the error of their sum, which cancels in the mean of values: p·r·\\|v − o\\|, added up as independent; no model of single numbers sees that",
    ),
    ("causal_conv1d", "any order", "a sum of few products, then SiLU"),
    ("compressor", "any order", "a softmax over slots, a norm, products"),
    (
        "diagonal_ssm",
        "any order",
        "the scan of magnitudes, widened for powers of a",
    ),
    (
        "gated_delta",
        "by hand",
        "the norm of a column's error decays with the state; errors of single elements would grow with each token",
    ),
    ("hyper_head", "any order", "sums of products, sigmoids and norms"),
    (
        "index_scores",
        "any order",
        "sums of products; errors of heads are independent",
    ),
    (
        "layernorm",
        "any order",
        "the variance by hand, since the error of the mean cancels in it; the rest follows",
    ),
    (
        "matmul",
        "by hand",
        "the terms of all elements at once, by products of magnitudes and squares",
    ),
    ("mhc_post", "any order", "one sum"),
    (
        "mhc_pre",
        "any order",
        "sums of products, sigmoids and norms; the normalisation of `comb` by moving each logit, as it does not amplify errors",
    ),
    (
        "moe",
        "any order",
        "sums of products, SwiGLU and weights; scores closer than their errors leave several choices",
    ),
    ("rmsnorm", "any order", "a mean of squares, its root, products"),
    ("rope", "any order", "two products and a sum"),
    (
        "sample",
        "by hand",
        "a score of two logarithms decides; the token itself has no error",
    ),
    (
        "silu_and_mul",
        "any order",
        "SiLU by hand, since f32's exponential ends before f64's",
    ),
    (
        "softmax",
        "any order",
        "exponentials share the errors of the scale and of the largest, so errors in their sum are added up",
    ),
    ("sparse_attention", "by hand", "attention's formulas, as they are"),
    ("state_transpose", "exact", "nothing is computed"),
    (
        "swap_ffn",
        "variance",
        "operands are rounded to few digits, which averages out; decisions follow the kernel's",
    ),
    ("top_k", "exact", "nothing is computed"),
];

const HEAD: &str = "# Error models

How far a right kernel may be from what an operation gives is not chosen, it is computed: the operation runs on numbers that carry an error.
<!-- Written by tests/kernels/expected/models.rs with ULPLAB_BLESS=1. -->

| model | a number carries | sums | file |
| --- | --- | --- | --- |
| bound | a bound of the error in f32, passed on to all orders (Wilkinson's running error analysis) | the smaller of (n − 1)·u·Σ\\|t\\| and λ·u·√(n·(s² + Σt²)), as if roundings were independent; `kernels check` uses it | `reference/bounded.rs` |
| variance | the variance of the error in f32; eight standard deviations are allowed | errors of terms are independent, those of equal numbers equal | `showcases/swap_ffn/varied.rs` |
| any order | a bound of the error in a type of any unit roundoff u, passed on to first order | the terms one by one (`sum.rs`): in any order, with the number of roundings that move together (`drift.rs`) | `crates/operations/expected/near.rs` |
| by hand | formulas in the operation's file | as *any order* | |
| exact | nothing: values are moved or chosen | | |

All of them are one type, `Number`, with one table of the roundings of single operations (`reference/errors.rs`): sum and product 1 u,
quotient and square root 3 u, eˣ (4 + 2·\\|x\\|)·u, ln(1 + x) 4 u.

`kernels check` uses *bound*, whose roundings are independent; a test of a user's uses *any order*, which is wider where roundings move together.
Both say in their messages what they assume of a kernel's sums.

## What is assumed of sums
In Python the word is `accumulate`. If a test says nothing, it is \"f32\", or \"f64\" where all floating-point inputs and outputs are f64
(of a function, all that it computes, too). Of the operations of `kernels check` that define every bit, it is the key
`accumulator` of an `[[op]]` or a `[[command]]`; all others assume sums in f32, in any order.

| word | in | is assumed |
| --- | --- | --- |
{assumptions}
## Against the formulas by hand
Ratios of the error that is allowed now to that of the formulas by hand that stood in operations' files until November 2026, before rounding to
the stored type, over stored draws: right inputs in bf16, half of them with few distinct numbers. A bound may be at most 1.5 times as wide.
Narrower are those of `moe`, `rope`, `silu_and_mul` and `softmax`, which were tried on 10,200 draws each of right kernels with sums in drawn
orders, a third of them in each of bf16, f16 and f32 (`ULPLAB_DRAWS=3400 pytest python/tests -k right_kernel`), and that of `gated_delta`, on
3,400 draws in bf16; none was outside.

| operation | model | why | minimum | median | maximum |
| --- | --- | --- | --- | --- | --- |
";

/// The call of a stored draw.
fn call(stored: &SafeTensors, name: &str, numbers: &serde_json::Value) -> Call {
    let (operation, _) = name.split_once('.').unwrap();
    let mut given: BTreeMap<String, Given> = BTreeMap::new();
    for (tensor, view) in stored.tensors() {
        let Some(input) = tensor
            .strip_prefix(&format!("{name}."))
            .filter(|input| !input.contains('.'))
        else {
            continue;
        };
        let tensor = Tensor {
            shape: view.shape().to_vec(),
            data: numbers_of(view.dtype(), view.data()),
        };
        given.insert(input.into(), Given::Tensor(tensor));
    }
    for (name, value) in numbers.as_object().unwrap() {
        let value = match value.as_str() {
            Some(word) => Given::Word(word.into()),
            None => Given::Number(value.as_f64().unwrap()),
        };
        given.insert(name.clone(), value);
    }
    Call::new(Operation::among(&ON_TENSORS, operation).unwrap(), given, Dtype::BF16).unwrap()
}

fn numbers_of(dtype: Dtype, bytes: &[u8]) -> Vec<f64> {
    match dtype {
        Dtype::BF16 => {
            let numbers = bytes.as_chunks::<2>().0.iter();
            numbers
                .map(|bytes| half::bf16::from_le_bytes(*bytes).to_f64())
                .collect()
        }
        _ => bytes
            .as_chunks::<4>()
            .0
            .iter()
            .map(|bytes| f32::from_le_bytes(*bytes).into())
            .collect(),
    }
}

/// The ratios new ÷ old of the errors of every operation; of errors of 0 those that are not 0 any more.
fn ratios() -> BTreeMap<String, Vec<f64>> {
    let bytes = std::fs::read(format!("{ROOT}/tests/fixtures/operations/bounds.safetensors")).unwrap();
    let stored = SafeTensors::deserialize(&bytes).unwrap();
    let (_, head) = SafeTensors::read_metadata(&bytes).unwrap();
    let mut all: BTreeMap<String, Vec<f64>> = BTreeMap::new();
    for (name, numbers) in head.metadata().as_ref().unwrap() {
        let call = call(&stored, name, &serde_json::from_str(numbers).unwrap());
        let of_operation = all.entry(call.operation().name.into()).or_default();
        for (at, output) in (call.operation().compute)(&call).unwrap().iter().enumerate() {
            let named = stored.tensor(&format!("{name}.error.{}", output.name));
            let Ok(old) = named.or_else(|_| stored.tensor(&format!("{name}.error.{at}"))) else {
                continue;
            };
            let old = numbers_of(old.dtype(), old.data());
            let step = output.error.len().div_ceil(96).max(1);
            let new: Vec<f64> = output.error.iter().copied().step_by(step).collect();
            assert_eq!(new.len(), old.len(), "{name}: {}", output.name);
            let pairs = new.into_iter().zip(old);
            of_operation.extend(
                pairs
                    .filter(|(new, old)| new.max(*old) > 1e-40)
                    .map(|(new, old)| new / old),
            );
        }
    }
    all
}

#[test]
fn docs_error_models_md_has_the_ratios_of_all_operations() {
    let mut ratios = ratios();
    let names: Vec<&str> = ON_TENSORS.iter().map(|operation| operation.name).collect();
    assert_eq!(names, MODELS.map(|(name, ..)| name));
    let mut assumptions = String::new();
    for one in Sums::ALL {
        assumptions += &format!("| `{}` | `accumulate` | {} |\n", one.name, one.meaning);
    }
    for (name, _, meaning) in ACCUMULATORS {
        assumptions += &format!("| `{name}` | `accumulator` | {meaning} |\n");
    }
    let mut page = HEAD.replace("{assumptions}", &assumptions);
    for (name, model, why) in MODELS {
        let of = ratios.get_mut(name).unwrap();
        of.sort_by(f64::total_cmp);
        page += &match of.last() {
            None => format!("| `{name}` | {model} | {why} | – | – | – |\n"),
            Some(most) => {
                assert!(*most <= 1.5, "{name}: a bound is {most} times as wide as by hand");
                let [least, median] = [of[0], of[of.len() / 2]];
                format!("| `{name}` | {model} | {why} | {least:.2} | {median:.2} | {most:.2} |\n")
            }
        };
    }
    let path = format!("{ROOT}/docs/error-models.md");
    if std::env::var_os("ULPLAB_BLESS").is_some() {
        std::fs::write(&path, &page).unwrap();
    }
    let found = std::fs::read_to_string(&path).unwrap_or_default();
    assert!(
        found == page,
        "docs/error-models.md is stale; write it again with ULPLAB_BLESS=1 cargo test --test kernels models"
    );
}
