//! The gated delta rule of given tensors.

use std::collections::BTreeMap;

use reference::Tensor as Of;
use reference::ops::linear_attention::{Decay, Inputs, Recurrent, State, Vk, forward, l2_normalize};
use safetensors::Dtype;
use ulplab_operations::expected::{Call, Given, Operation, Tensor};

/// Numbers between −1 and 1.
fn random(shape: &[usize], seed: &mut u64) -> Vec<f64> {
    let mut one = || {
        *seed = seed
            .wrapping_mul(6_364_136_223_846_793_005)
            .wrapping_add(1_442_695_040_888_963_407);
        (*seed >> 11) as f64 / (1u64 << 52) as f64 - 1.0
    };
    (0..shape.iter().product()).map(|_| one()).collect()
}

#[test]
fn the_same_as_the_reference() {
    let (tokens, heads, values, key, value) = (5, 2, 4, 6, 3);
    for channels in [false, true] {
        let seed = &mut 7;
        let gates = if channels { vec![values, key] } else { vec![values] };
        let shapes = [
            ("q", vec![heads, key]),
            ("k", vec![heads, key]),
            ("v", vec![values, value]),
            ("g", gates),
            ("beta", vec![values]),
        ];
        let mut all: BTreeMap<&str, Of<f64>> = BTreeMap::new();
        for (name, shape) in shapes {
            let shape = [vec![tokens], shape].concat();
            let mut data = random(&shape, seed);
            if name == "g" {
                data.iter_mut().for_each(|g| *g = -g.abs());
            }
            all.insert(name, Of::new(shape, data));
        }
        let state = Of::new([1, values, value, key], random(&[values, value, key], seed));
        let tensor = |of: &Of<f64>, shape: Vec<usize>| {
            Given::Tensor(Tensor {
                shape,
                data: of.data.clone(),
            })
        };
        let mut given: BTreeMap<String, Given> = all
            .iter()
            .map(|(name, of)| ((*name).into(), tensor(of, [&[1], &of.shape[..]].concat())))
            .collect();
        given.insert("state".into(), tensor(&state, vec![1, values, value, key]));
        given.insert("layout".into(), Given::Word("vk".into()));
        given.insert("l2norm".into(), Given::Number(1.0));
        let operation = Operation::find("gated_delta").unwrap();
        let call = Call::new(operation, given, Dtype::F64).unwrap();
        let outputs = (operation.compute)(&call).unwrap();

        let [mut q, mut k] = ["q", "k"].map(|name| all[name].clone());
        l2_normalize(&mut q, 1e-6);
        l2_normalize(&mut k, 1e-6);
        let inputs = Inputs {
            cu_seqlens: &[0, tokens],
            q: &q,
            k: &k,
            v: &all["v"],
            decay: if channels {
                Decay::Channel(&all["g"])
            } else {
                Decay::Head(&all["g"])
            },
            beta: Some(&all["beta"]),
            scale: (key as f64).sqrt().recip(),
        };
        let mut pool = State::<f64, Vk>::new(state).unwrap();
        let o = forward(&inputs, &Recurrent::DEFINITION, &mut pool, None).unwrap();
        for (output, expected) in outputs.iter().zip([&o.data, &pool.tensor().data]) {
            assert_eq!(output.value.len(), expected.len());
            for (x, y) in output.value.iter().zip(expected) {
                assert!((x - y).abs() <= 1e-14, "{}: {x} and {y}", output.name);
            }
        }
    }
}
