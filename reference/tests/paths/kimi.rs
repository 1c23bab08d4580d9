//! Kimi-Linear by its own terms: what it has that Qwen's hybrids have not. `hybrid.rs` has what all have.

use reference::paths::hybrid::sites::*;
use reference::{Numerics, Role, Site, Tensor};
use serde_json::json;

use super::families::another_key_is_noticed;
use super::fixtures;
use super::hybrid::{add, far};

#[test]
fn a_key_that_is_read_otherwise_is_noticed() {
    for (name, key, value) in [
        ("kimi", "moe_renormalize", json!(false)),
        ("kimi_plain", "moe_renormalize", json!(true)),
        ("kimi", "routed_scaling_factor", json!(1.0)),
        ("kimi", "topk_group", json!(4)),
        ("kimi", "rms_norm_eps", json!(1e-2)),
    ] {
        another_key_is_noticed("hybrid", name, key, value);
    }
}

/// Weights that are read otherwise: no norm is zero-centred, a bias selects experts, each convolution has its own channels, the
/// oldest token first.
#[test]
fn weights_that_are_read_otherwise_are_noticed() {
    type Fault<'a> = (&'a str, &'a dyn Fn(&mut [f32]));
    let more = |values: &mut [f32]| add(values, 1.0);
    let faults: [Fault<'_>; 12] = [
        ("input_layernorm.weight", &more),
        ("post_attention_layernorm.weight", &more),
        ("kv_a_layernorm.weight", &more),
        ("o_norm.weight", &more),
        ("model.norm.weight", &more),
        ("e_score_correction_bias", &|values| values.fill(0.0)),
        ("dt_bias", &|values| values.reverse()),
        ("A_log", &|values| values.reverse()),
        ("q_conv1d.weight", &|values| values.reverse()),
        ("k_conv1d.weight", &|values| values.reverse()),
        ("v_conv1d.weight", &|values| values.reverse()),
        ("shared_experts.down_proj.weight", &|values| values.fill(0.0)),
    ];
    for (end, change) in faults {
        let weights = |name: &str, values: &mut [f32]| {
            if name.ends_with(end) {
                change(values);
            }
        };
        let far = far("kimi", &[150], &weights, &|_, _| {});
        assert!(far > 1e-4, "{end} is only {far:.2e} off");
    }
}

/// A bias belongs to the projection to latents and to that from the heads, and to no other.
#[test]
fn biases_of_attention_are_added() {
    for end in ["kv_a_proj_with_mqa.bias", "self_attn.o_proj.bias"] {
        let weights = |name: &str, values: &mut [f32]| {
            if name.ends_with(end) {
                values.fill(0.0);
            }
        };
        let far = far("kimi_plain", &[37], &weights, &|_, _| {});
        assert!(far > 1e-4, "{end} is only {far:.2e} off");
    }
}

/// Turns the last channels of each row by its position, as RoPE would.
fn turn(site: &Site, x: &mut Tensor<f32>, rows: usize, channels: usize) {
    let cols = x.cols();
    for (row, x) in x.data.chunks_exact_mut(cols).enumerate() {
        let position = (site.first_row + row / rows) as f32;
        for (pair, x) in x[cols - channels..].chunks_exact_mut(2).enumerate() {
            let (sin, cos) = (position * 0.3f32.powi(pair as i32)).sin_cos();
            (x[0], x[1]) = (x[0] * cos - x[1] * sin, x[0] * sin + x[1] * cos);
        }
    }
}

/// A fault in each term.
#[test]
fn a_fault_in_each_term_is_noticed() {
    fn all(x: &mut Tensor<f32>, change: impl Fn(f32) -> f32) {
        x.data.iter_mut().for_each(|x| *x = change(*x));
    }
    type Fault<'a> = (&'a str, &'a [&'a str], &'a dyn Fn(&Site, &mut Tensor<f32>));
    let mean = |x: &mut Tensor<f32>| {
        let cols = x.cols();
        for head in x.data.chunks_exact_mut(cols) {
            let mean = head.iter().sum::<f32>() / cols as f32;
            head.fill(mean);
        }
    };
    let turned = |site: &Site, x: &mut Tensor<f32>| {
        let rows = if site.name == QUERY { 4 } else { 1 };
        turn(site, x, rows, 6);
    };
    let faults: [Fault<'_>; 13] = [
        ("an output without its gate", &[LINEAR_GATE], &|_, x| all(x, |_| 100.0)),
        ("an output's gate with silu", &[LINEAR_GATE], &|_, x| {
            // σ(z') = z·σ(z), where there is such a z'.
            all(x, |z| {
                let silu = (z / (1.0 + (-z).exp())).clamp(1e-6, 1.0 - 1e-6);
                (silu / (1.0 - silu)).ln()
            })
        }),
        ("no output gate's low rank", &[LINEAR_GATE_LOW], &|_, x| all(x, |_| 0.0)),
        ("no decay's low rank", &[LINEAR_DECAY_LOW], &|_, x| all(x, |_| 0.0)),
        ("no decay", &[LINEAR_CHANNEL_DECAY], &|_, x| all(x, |_| 0.0)),
        ("a decay of half", &[LINEAR_CHANNEL_DECAY], &|_, x| all(x, |x| x / 2.0)),
        ("one decay for a head", &[LINEAR_CHANNEL_DECAY], &|_, x| mean(x)),
        ("β before its sigmoid", &[LINEAR_BETA], &|_, x| {
            all(x, |x| (x / (1.0 - x)).ln())
        }),
        ("keys that are not normalised", &[LINEAR_KEY], &|_, x| {
            all(x, |x| x * 1.01)
        }),
        ("queries scaled twice", &[LINEAR_QUERY], &|_, x| {
            all(x, |x| x / 8f32.sqrt())
        }),
        ("keys without the shared part", &[SHARED_KEY], &|_, x| all(x, |_| 0.0)),
        ("latents that are scaled", &[LATENT], &|_, x| all(x, |x| x * 1.01)),
        ("positions", &[QUERY, SHARED_KEY], &turned),
    ];
    for (what, sites, change) in faults {
        let edit = |site: &Site, tensor: &mut Tensor<f32>| {
            if sites.contains(&site.name) {
                change(site, tensor);
            }
        };
        let far = far("kimi", &[150], &|_, _| {}, &edit);
        // β beyond 2 makes a state grow without end.
        assert!(far > 1e-4 || far.is_nan(), "{what} is only {far:.2e} off");
    }
}

/// Scales latents for one reader or for both.
struct Scaled {
    splits: bool,
    roles: &'static [Role],
}

impl Numerics<f32> for Scaled {
    fn site(&mut self, site: &Site, tensor: &mut Tensor<f32>) {
        if site.name == LATENT && self.roles.contains(&site.role) {
            tensor.data.iter_mut().for_each(|x| *x *= 1.5);
        }
    }

    fn splits(&self, site: &Site) -> bool {
        self.splits && site.name == LATENT
    }
}

/// A latent may be changed as what keys, or as what values are made of; both together are the latent itself.
#[test]
fn latents_are_read_in_two_roles() {
    let all = fixtures::all();
    let model = all
        .iter()
        .find(|fixture| fixture.json.contains("kimi_linear"))
        .expect("a fixture")
        .model::<f32>();
    let run = |splits, roles| fixtures::run(&*model, &mut Scaled { splits, roles });
    let plain = run(false, &[]);
    assert!(run(true, &[]) == plain, "two copies are the same");
    let (keys, values) = (run(true, &[Role::Key]), run(true, &[Role::Value]));
    assert!(keys != plain && values != plain && keys != values);
    assert!(run(true, &[Role::Key, Role::Value]) == run(false, &[Role::Both]));
}
