//! A mixture of experts of given tensors.

use std::collections::BTreeMap;

use reference::ops::experts::{self, Experts};
use reference::{Choice, Plain, Tensor};
use safetensors::Dtype;
use ulplab_operations::expected::{self, Call, Given, Operation};

#[test]
fn the_same_as_the_reference() {
    let (tokens, dim, count, inner, limit) = (3, 4, 5, 6, 0.5);
    let numbers = |shape: Vec<usize>, factor: f64| {
        let of = |at: usize| (factor * (at + 1) as f64).sin();
        Tensor::new(shape.clone(), (0..shape.iter().product()).map(of).collect())
    };
    let all = [
        ("x", numbers(vec![tokens, dim], 1.3)),
        ("logits", numbers(vec![tokens, count], 2.1)),
        ("w13", numbers(vec![count, 2 * inner, dim], 1.7)),
        ("w2", numbers(vec![count, dim, inner], 0.9)),
        ("shared_w13", numbers(vec![2 * inner, dim], 0.7)),
        ("shared_w2", numbers(vec![dim, inner], 1.1)),
    ];
    let mut given: BTreeMap<String, Given> = BTreeMap::new();
    for (name, tensor) in &all {
        let tensor = expected::Tensor {
            shape: tensor.shape.clone(),
            data: tensor.data.clone(),
        };
        given.insert((*name).into(), Given::Tensor(tensor));
    }
    given.insert("top_k".into(), Given::Number(2.0));
    given.insert("limit".into(), Given::Number(limit));
    given.insert("scores".into(), Given::Word("sigmoid".into()));
    let operation = Operation::find("moe").unwrap();
    let call = Call::new(operation, given, Dtype::F64).unwrap();
    let found = (operation.compute)(&call).unwrap().remove(0);

    let [(_, x), (_, logits), (_, w13), (_, w2), (_, shared_w13), (_, shared_w2)] = &all;
    let expert = |w13: &[f64], w2: &[f64]| experts::Expert {
        gate_up: Tensor::new([2 * inner, dim], w13.to_vec()),
        down: Tensor::new([dim, inner], w2.to_vec()),
    };
    let routed = w13.data.chunks(2 * inner * dim).zip(w2.data.chunks(inner * dim));
    let mixture = Experts {
        routed: routed.map(|(w13, w2)| expert(w13, w2)).collect(),
        shared: expert(&shared_w13.data, &shared_w2.data),
        limit,
    };
    let (mut indices, mut weights) = (Vec::new(), Vec::new());
    for logits in logits.data.chunks(count) {
        let mut order: Vec<usize> = (0..count).collect();
        order.sort_by(|a, b| logits[*b].total_cmp(&logits[*a]));
        let scores = [order[0], order[1]].map(|at| 1.0 / (1.0 + (-logits[at]).exp()));
        indices.extend([order[0] as i32, order[1] as i32]);
        weights.extend(scores.map(|score| score / (scores[0] + scores[1])));
    }
    let choice = Choice {
        indices,
        k: 2,
        scores: logits.clone(),
    };
    let y = mixture.apply(x, &choice, &Tensor::new([tokens, 2], weights), &Plain);
    for (x, y) in found.value.iter().zip(&y.data) {
        assert!((x - y).abs() <= 1e-14, "{x} and {y}");
    }
}
