//! The path `hybrid` against `transformers`, and against its own laws. `fixtures/README.md` says what the fixtures are.

use reference::paths::hybrid::sites::*;
use reference::{Site, Tensor};
use serde_json::{Value, json};

use super::families::{
    self, Edit, a_cut_changes_little, another_key_is_noticed, configs, edited, kept, outputs, tokens, wanted, worst,
};

#[test]
fn every_family_gives_what_transformers_gives() {
    families::every_family_gives_what_transformers_gives("hybrid");
}

/// Cuts within the reach of the convolution, at the chunks of the delta rule and beside them. In calls of one token the rule is
/// computed by its recurrence.
#[test]
fn a_text_may_be_cut_anywhere() {
    for (name, keys) in configs("hybrid") {
        let each: &[&[usize]] = match (name.as_str(), tokens(&keys)) {
            ("real" | "kimi_real", _) => &[&[20, 1, 16]],
            (_, 37) => &[&[20, 1, 2, 14], &[1, 1, 1, 34], &[1; 37]],
            _ => &[&[64, 64, 22], &[63, 1, 1, 66, 2, 17], &[1; 150]],
        };
        a_cut_changes_little(&name, &keys, each);
    }
}

/// The comparison can fail: each of these reads one key otherwise.
#[test]
fn a_key_that_is_read_otherwise_is_noticed() {
    let rope = |partial: f64| json!({"rope_type": "default", "rope_theta": 500.0, "partial_rotary_factor": partial});
    let changes: [(&str, &str, Value); 5] = [
        ("next", "norm_topk_prob", json!(false)),
        ("next", "rms_norm_eps", json!(1e-2)),
        ("next_plain", "norm_topk_prob", json!(true)),
        ("qwen35", "rope_parameters", rope(0.25)),
        ("qwen35_moe", "rope_parameters", rope(1.0)),
    ];
    for (name, key, value) in changes {
        another_key_is_noticed("hybrid", name, key, value);
    }
}

/// How far a model is from what `transformers` gave, with other weights or with something else at a site.
pub fn far(name: &str, calls: &[usize], weights: &dyn Fn(&str, &mut [f32]), edit: Edit<'_, f32>) -> f64 {
    let keys = &configs("hybrid")[name];
    worst(
        &kept(keys, &edited::<f32>(keys, calls, weights, edit)),
        &wanted("hybrid", name),
    )
}

pub fn add(values: &mut [f32], more: f32) {
    values.iter_mut().for_each(|x| *x += more);
}

/// Every norm is zero-centred but that of the delta rule.
#[test]
fn norms_that_are_centred_otherwise_are_noticed() {
    type Named = (&'static str, f32);
    let faults: [Named; 5] = [
        ("input_layernorm.weight", -1.0),
        ("post_attention_layernorm.weight", -1.0),
        ("q_norm.weight", -1.0),
        ("model.norm.weight", -1.0),
        ("linear_attn.norm.weight", 1.0),
    ];
    for (end, more) in faults {
        let weights = |name: &str, values: &mut [f32]| {
            if name.ends_with(end) {
                add(values, more);
            }
        };
        let far = far("next", &[37], &weights, &|_, _| {});
        assert!(far > 1e-4, "{end} is only {far:.2e} off");
    }
}

/// The second and the third of every four heads change places: value heads then read key heads in turn, where each is to be read by
/// two in a row.
fn swap_heads(x: &mut Tensor<f32>) {
    let width = x.data.len() / x.shape[0] / 4;
    for token in x.data.chunks_exact_mut(4 * width) {
        let (first, second) = token.split_at_mut(2 * width);
        first[width..].swap_with_slice(&mut second[..width]);
    }
}

/// A fault in each term: the model, the site that shows it, and what it does there.
#[test]
fn a_fault_in_each_term_is_noticed() {
    let all = |x: &mut Tensor<f32>, change: fn(f32) -> f32| x.data.iter_mut().for_each(|x| *x = change(*x));
    type Fault<'a> = (&'a str, &'a [&'a str], &'a dyn Fn(&mut Tensor<f32>));
    let without = |x: &mut Tensor<f32>| all(x, |_| 100.0);
    let faults: [Fault<'_>; 9] = [
        ("attention without its gate", &[OUTPUT_GATE], &without),
        ("a shared expert without its factor", &[SHARED_SCALE], &without),
        ("an output without its gate", &[LINEAR_GATE], &|x| {
            all(x, |_| 1.278_464_5)
        }),
        ("β before its sigmoid", &[LINEAR_BETA], &|x| {
            all(x, |x| (x / (1.0 - x)).ln())
        }),
        ("no decay", &[LINEAR_DECAY], &|x| all(x, |_| 0.0)),
        ("a decay of half", &[LINEAR_DECAY], &|x| all(x, |x| x / 2.0)),
        ("keys that are not normalised", &[LINEAR_KEY], &|x| all(x, |x| x * 1.01)),
        ("queries scaled twice", &[LINEAR_QUERY], &|x| {
            all(x, |x| x / 8f32.sqrt())
        }),
        (
            "key heads in turn",
            &[LINEAR_VALUE, LINEAR_BETA, LINEAR_DECAY, LINEAR_OUTPUT],
            &swap_heads,
        ),
    ];
    for (what, sites, change) in faults {
        let edit = |site: &Site, tensor: &mut Tensor<f32>| {
            if sites.contains(&site.name) {
                change(tensor);
            }
        };
        let far = far("next", &[37], &|_, _| {}, &edit);
        // β beyond 2 makes a state grow without end.
        assert!(far > 1e-4 || far.is_nan(), "{what} is only {far:.2e} off");
    }
}

/// What is stored between two calls is all that the second has of the first.
#[test]
fn a_fault_in_a_state_is_noticed_after_a_cut() {
    let zero = |x: &mut Tensor<f32>| x.data.fill(0.0);
    let transpose = |x: &mut Tensor<f32>| {
        let (dim, old) = (x.cols(), x.data.clone());
        assert_eq!(x.shape[1..], [dim, dim]);
        for (at, x) in x.data.iter_mut().enumerate() {
            let (head, row, col) = (at / (dim * dim), at / dim % dim, at % dim);
            *x = old[(head * dim + col) * dim + row];
        }
    };
    let reverse = |x: &mut Tensor<f32>| {
        let (cols, old) = (x.cols(), x.clone());
        let rows = x.data.chunks_exact_mut(cols).enumerate();
        rows.for_each(|(row, x)| x.copy_from_slice(old.row(old.rows() - 1 - row)));
    };
    type Fault<'a> = (&'a str, &'a str, &'a dyn Fn(&mut Tensor<f32>));
    let faults: [Fault<'_>; 4] = [
        ("a state that is dropped", LINEAR_STATE, &zero),
        ("a state that is transposed", LINEAR_STATE, &transpose),
        ("a convolution's state that is dropped", LINEAR_CONV_STATE, &zero),
        ("a convolution's state in reverse", LINEAR_CONV_STATE, &reverse),
    ];
    for (what, name, change) in faults {
        let edit = |site: &Site, tensor: &mut Tensor<f32>| {
            if site.name == name {
                change(tensor);
            }
        };
        for model in ["next_plain", "kimi_plain"] {
            // Token 18, of which the streams are kept, is the first of a call.
            let after = far(model, &[18, 19], &|_, _| {}, &edit);
            assert!(after > 1e-4, "{what} is only {after:.2e} off in {model}");
            let whole = far(model, &[37], &|_, _| {}, &edit);
            assert!(whole <= 1e-5, "{what} after the last call in {model}: {whole:.2e}");
        }
    }
}

/// A NaN at any of these comes out at its token and at those after it, and no call ends in an error.
#[test]
fn a_nan_comes_through() {
    let qwen = [
        LINEAR_QKV,
        LINEAR_BETA,
        LINEAR_DECAY,
        LINEAR_KEY,
        LINEAR_GATE,
        OUTPUT_GATE,
    ];
    let kimi = [
        LINEAR_QKV,
        LINEAR_BETA,
        LINEAR_CHANNEL_DECAY,
        LINEAR_GATE_LOW,
        LATENT,
        SHARED_KEY,
    ];
    for (model, names) in [("next", qwen), ("kimi_plain", kimi)] {
        let keys = &configs("hybrid")[model];
        for name in names {
            for calls in [&[37][..], &[18, 1, 18]] {
                let edit = |site: &Site, tensor: &mut Tensor<f32>| {
                    if site.name == name && site.first_row + tensor.shape[0] > 18 && site.first_row <= 18 {
                        let cols = tensor.data.len() / tensor.shape[0];
                        tensor.data[(18 - site.first_row) * cols] = f32::NAN;
                    }
                };
                let got = edited::<f32>(keys, calls, &|_, _| {}, &edit);
                let logits = got.last().expect("logits");
                let nan = |row: usize| logits.row(row).iter().all(|x| x.is_nan());
                let finite = |row: usize| logits.row(row).iter().all(|x| x.is_finite());
                assert!((0..18).all(finite) && nan(18), "{name} of {model} in {calls:?}");
            }
        }
    }
}

/// Log decays above 0, which noise may make, are 0.
#[test]
fn decays_never_grow() {
    for (model, name) in [("next", LINEAR_DECAY), ("kimi_plain", LINEAR_CHANNEL_DECAY)] {
        let keys = &configs("hybrid")[model];
        let with = |value: f32| {
            edited::<f32>(keys, &[37], &|_, _| {}, &|site, tensor| {
                if site.name == name {
                    tensor.data.fill(value);
                }
            })
        };
        assert!(
            with(3.0) == with(0.0) && with(0.0) != outputs::<f32>(keys, &[37]),
            "{model}"
        );
    }
}
