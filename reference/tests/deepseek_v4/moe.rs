//! dsv4-small's routers and experts, fed what the oracle fed them.

use reference::ops::experts::{Expert, Experts};
use reference::ops::router::{Selection, select, sqrt_softplus, weights};
use reference::{Choice, Plain, Real, Tensor};

use super::models::*;
use super::support::*;

/// σ of the oracle's logits.
pub fn sigma(layer: usize) -> Tensor<f32> {
    let mut sigma = activation(layer, "mlp.gate.out.0").clone();
    sqrt_softplus(&mut sigma);
    sigma
}

pub fn selection(layer: usize) -> Selection<f32> {
    if layer < 2 {
        let table: Tensor<f32> = SMALL.weight(layer, "mlp.gate.tid2eid");
        Selection::Table(table.data.iter().map(|&expert| expert as u32).collect())
    } else {
        Selection::Bias(SMALL.weight(layer, "mlp.gate.e_score_correction_bias").data)
    }
}

fn sorted(indices: &[i32]) -> Vec<i32> {
    let mut indices = indices.to_vec();
    indices.sort_unstable();
    indices
}

/// The oracle's experts and their weights.
pub fn routed(layer: usize) -> (Choice<f32>, Tensor<f32>) {
    let indices = activation(layer, "mlp.gate.out.2");
    let choice = Choice {
        indices: indices.data.iter().map(|&expert| expert as i32).collect(),
        k: 3,
        scores: sigma(layer),
    };
    (choice, activation(layer, "mlp.gate.out.1").clone())
}

#[test]
fn routers() {
    let mut tightest = f64::INFINITY;
    for layer in 0..6 {
        let router = SMALL.linear::<f32>(layer, "mlp.gate.weight");
        let logits = router.apply(activation(layer, "post_attention_layernorm.out"));
        agrees(
            &format!("layer {layer} logits"),
            &logits.data,
            &activation(layer, "mlp.gate.out.0").data,
        );
        let sigma = sigma(layer);
        let choice = select(&sigma, &selection(layer), &small_ids(0)[..PREFILL], 3);
        let weights = weights(&sigma, &choice, 1.5);
        let (want, want_weights) = routed(layer);
        for row in 0..PREFILL {
            let (got, want) = (&choice.indices[row * 3..][..3], &want.indices[row * 3..][..3]);
            assert_eq!(sorted(got), sorted(want), "layer {layer} token {row}");
            let of = |expert: i32, indices: &[i32], weights: &Tensor<f32>| {
                let slot = indices.iter().position(|&index| index == expert).expect("the same set");
                weights.row(row)[slot]
            };
            let weights = want.iter().map(|&expert| of(expert, got, &weights)).collect::<Vec<_>>();
            let error = relative(&weights, want_weights.row(row));
            assert!(error <= LOCAL, "layer {layer} token {row}: weights off by {error:e}");
            if layer >= 2 {
                let mut scores = choice.scores.row(row).to_vec();
                scores.sort_by(|a, b| b.total_cmp(a));
                tightest = tightest.min(f64::from(scores[2] - scores[3]));
            }
        }
    }
    println!("smallest margin of a learned router: {tightest:.2e}");
    assert!(tightest > 1e-5, "so that rounding decides nothing");
}

/// Where the branch changes and where eˣ leaves f32.
#[test]
fn sqrt_softplus_at_its_ends() {
    let x = [-200.0, -80.0, -20.0, 0.0, 19.99, 20.0, 20.01, 500.0];
    let check = |got: Vec<f64>, bound: f64| {
        for (got, x) in got.into_iter().zip(x) {
            let softplus = if x > 20.0 { x } else { f64::exp(x).ln_1p() };
            assert!(
                (got - softplus.sqrt()).abs() <= bound * softplus.sqrt() + 1e-23,
                "{x}: {got}"
            );
        }
    };
    fn of<T: Real>(x: &[f64]) -> Vec<f64> {
        let mut x = Tensor::new([x.len()], x.iter().map(|&x| T::from_f64(x)).collect());
        sqrt_softplus(&mut x);
        x.data.iter().map(|&x| x.into()).collect()
    }
    check(of::<f32>(&x), 4.0 * f64::from(f32::EPSILON));
    check(of::<f64>(&x), 4.0 * f64::EPSILON);
}

/// As `transformers` does it: nothing is divided by zero.
#[test]
fn zero_scores_give_zero_weights() {
    let scores = Tensor::full([1, 8], 0.0f32);
    let choice = Choice {
        indices: vec![4, 0, 1],
        k: 3,
        scores: scores.clone(),
    };
    assert_eq!(weights(&scores, &choice, 1.5).data, [0.0; 3]);
}

pub fn experts(layer: usize, limit: f32) -> Experts<f32> {
    let cut = |tensor: Tensor<f32>| -> Vec<Tensor<f32>> {
        let size = tensor.shape[1] * tensor.shape[2];
        let one = |data: &[f32]| Tensor::new(&tensor.shape[1..], data.to_vec());
        tensor.data.chunks_exact(size).map(one).collect()
    };
    let gate_up = cut(SMALL.weight(layer, "mlp.experts.gate_up_proj"));
    let down = cut(SMALL.weight(layer, "mlp.experts.down_proj"));
    let shared = |name: &str| SMALL.weight(layer, &format!("mlp.shared_experts.{name}_proj.weight"));
    let both = [shared("gate").data, shared("up").data].concat();
    Experts {
        routed: gate_up
            .into_iter()
            .zip(down)
            .map(|(gate_up, down)| Expert { gate_up, down })
            .collect(),
        shared: Expert {
            gate_up: Tensor::new([48, 48], both),
            down: shared("down"),
        },
        limit,
    }
}

#[test]
fn routed_and_shared_experts() {
    for layer in 0..6 {
        let input = activation(layer, "post_attention_layernorm.out");
        let (choice, weights) = routed(layer);
        let mut experts = experts(layer, 1.0);
        let got = experts.apply(input, &choice, &weights, &Plain);
        agrees(
            &format!("layer {layer} experts"),
            &got.data,
            &activation(layer, "mlp.out").data,
        );

        let none = Choice {
            indices: vec![-1; choice.indices.len()],
            ..choice.clone()
        };
        let shared = experts.apply(input, &none, &weights, &Plain);
        let want = activation(layer, "mlp.shared_experts.out");
        agrees(&format!("layer {layer} shared expert"), &shared.data, &want.data);

        experts.shared.down.data.fill(0.0);
        let routed = experts.apply(input, &choice, &weights, &Plain);
        let want = activation(layer, "mlp.experts.out");
        agrees(&format!("layer {layer} routed experts"), &routed.data, &want.data);
    }
}
