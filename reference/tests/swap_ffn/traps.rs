//! Ties, zeros, maps that are no permutations, no events, wrong shapes.

use reference::paths::swap_ffn::{
    BANKS, Collapse, Config, DecisionRule, Decisions, Ffn, Film, IDENTITY, Model, Router, State,
};
use reference::paths::{Weights, swap_ffn};
use reference::{Plain, Tensor};

use super::definition::{Definition, Fault};
use super::support::*;
use crate::measure::{farthest, top};

/// A model whose router has no weights: its biases decide, the same for every core.
fn biased(config: Config, bias: [f32; 1 + BANKS]) -> Model<f32> {
    let Config {
        d_model,
        d_ff,
        core_count,
        collapse_k,
        collapse_r,
        ..
    } = config;
    let film = Film {
        scale: tensor("scale", &[core_count, d_model]),
        shift: tensor("shift", &[core_count, d_model]),
        alpha: tensor("alpha", &[core_count, collapse_k]),
    };
    let router = Router::Folded {
        weight: Tensor::full([1 + BANKS, d_model], 0.0),
        bias,
    };
    let ffn = Ffn {
        norm: vec![1.0; d_model],
        w1: tensor("w1", &[d_ff, d_model]),
        w3: tensor("w3", &[d_ff, d_model]),
        w2: tensor("w2", &[d_model, d_ff]),
    };
    let collapse = Collapse {
        basis: tensor("basis", &[collapse_k, collapse_r, d_model]),
        decoder: tensor("decoder", &[d_model, collapse_r]),
    };
    Model::new(config, film, router, ffn, collapse).expect("parts that fit")
}

fn decided(config: Config, bias: [f32; 1 + BANKS]) -> Decisions<f32> {
    let mut x = tensor("x", &[config.core_count, config.d_model]);
    let mut state = state(&config, 1);
    biased(config, bias)
        .exchange(&mut x, &mut state, 0, &mut Plain)
        .expect("an exchange")
}

const PROBABILITIES: Config = Config {
    decision: DecisionRule::Probabilities,
    ..SMALL
};

#[test]
fn equal_logits_take_the_first_lane_and_leave_the_gate_shut() {
    let tiny = f32::from_bits(1);
    let cases = [
        ([0.0, 0.0, 0.0, 0.0, 0.0], 0),
        ([-0.0, -0.0, 0.0, 0.0, 0.0], 0),
        ([0.0, 1.0, 2.0, 2.0, 2.0], 1),
        ([tiny, 1.0, 1.0, 3.0, 3.0], 4 + 2),
        ([1.0, -1.0, -1.0, -1.0, -0.5], 4 + 3),
        ([-1.0, 5.0, 5.0, 5.0, 5.0], 0),
        ([f32::INFINITY, f32::NEG_INFINITY, 0.0, 0.0, 0.0], 4 + 1),
        ([f32::NAN, 0.0, 1.0, 0.0, 0.0], 1),
    ];
    for (bias, code) in cases {
        let decisions = decided(SMALL, bias);
        assert!((0..SMALL.core_count).all(|row| decisions.code(row) == code), "{bias:?}");
    }
}

/// Below half an ulp of ½ a sigmoid in f32 is ½: the gate stays shut where the logit would open it.
#[test]
fn probabilities_have_ties_that_logits_have_not() {
    let gate = |config, l: f32| decided(config, [l, 0.0, 0.0, 0.0, 0.0]).gate[0];
    assert!(gate(SMALL, 1e-9) && !gate(PROBABILITIES, 1e-9));
    assert!(gate(SMALL, 1e-3) && gate(PROBABILITIES, 1e-3));
    let bank = |config, q: f32| decided(config, [0.0, 1.0, 1.0 + q, 0.0, 0.0]).bank[0];
    assert_eq!(
        (bank(SMALL, f32::EPSILON), bank(SMALL, 0.5), bank(PROBABILITIES, 0.5)),
        (1, 1, 1)
    );
}

#[test]
fn margins() {
    let decisions = decided(SMALL, [-0.25, 1.0, 3.5, 0.5, 3.0]);
    assert_eq!((decisions.gate_margin(0), decisions.bank_margin(0)), (0.25, 0.5));
    assert_eq!(decided(SMALL, [0.0, 2.0, 2.0, 1.0, 0.0]).bank_margin(0), 0.0);
}

/// The two faults that only ties and small logits show.
#[test]
fn the_definition_agrees_on_ties_and_thresholds() {
    let codes = |gate: f64, fault| {
        let mut weights = weights(&SMALL);
        let zero = |x: &mut Tensor<f64>| x.data.fill(0.0);
        ["router_swap_w", "bank_w", "bank_b"]
            .iter()
            .for_each(|name| zero(weights.get_mut(*name).expect("a weight")));
        weights.get_mut("router_swap_b").expect("a weight").data[0] = gate;
        let definition = Definition {
            config: &SMALL,
            weights: &weights,
            fault,
        };
        definition.token(&token(&SMALL, 1, 0), &mut state(&SMALL, 1)).codes[0][0]
    };
    let path = |gate: f32| decided(SMALL, [gate, 0.0, 0.0, 0.0, 0.0]).code(0);
    for gate in [0.0, 0.005, 0.01] {
        assert_eq!(codes(gate, Fault::None), path(gate as f32), "{gate}");
    }
    assert_ne!(codes(0.005, Fault::Threshold), path(0.005));
    assert_eq!(codes(0.01, Fault::Threshold), path(0.01));
    assert_ne!(codes(0.0, Fault::LastOfEquals), path(0.0));
}

/// Two lanes that name one bank: what one token stores by the one, the next reads by the other.
#[test]
fn maps_that_are_no_permutations() {
    let config = Config { k_ffn: 0, ..SMALL };
    let model = biased(config, [1.0, 0.0, 0.0, 1.0, 0.0]);
    let mut state = state::<f32>(&config, 1);
    state.map.fill(0b11_10_10_01);
    let before = state.clone();
    let mut x: Tensor<f32> = tensor("x", &[config.core_count, config.d_model]);
    let old = x.clone();
    model.exchange(&mut x, &mut state, 0, &mut Plain).expect("an exchange");
    assert!(state.map.iter().all(|&map| map == 0b11_01_10_10));
    assert!((0..config.core_count).all(|row| x.row(row) == before.ram.row(row * BANKS + 2)));
    // Lane 2 now names bank 1.
    model.exchange(&mut x, &mut state, 1, &mut Plain).expect("an exchange");
    assert!(state.map.iter().all(|&map| map == 0b11_10_10_01));
    assert!((0..config.core_count).all(|row| x.row(row) == before.ram.row(row * BANKS + 1)));
    assert!((0..config.core_count).all(|row| state.ram.row(row * BANKS + 2) == old.row(row)));
}

/// No event: the token is spread and pooled, and nothing is decided.
#[test]
fn no_events() {
    let config = Config { n_events: 0, ..SMALL };
    let (model, mut state) = (model::<f32>(config), state::<f32>(&config, 1));
    let before = state.clone();
    let output = model
        .step(&token(&config, 1, 0), &mut state, &mut Plain)
        .expect("a token");
    assert!(output.decisions.is_empty() && top(&output.delta.data) > 0.0);
    assert!(state.ram == before.ram && state.map == before.map && state.tokens == 1);
}

/// Without a residual a core that took a bank of zeros stays 0, is finite, and decides by the biases.
#[test]
fn banks_of_zeros_are_absorbing() {
    for residual in [false, true] {
        let config = Config {
            residual,
            n_events: 1,
            ..SMALL
        };
        let model = biased(config, [1.0, 0.0, 0.0, 1.0, 0.0]);
        let ram = Tensor::full([1, config.core_count, BANKS, config.d_model], 0.0);
        let mut state = State::new(&config, ram).expect("a good state");
        let mut x = tensor("x", &[config.core_count, config.d_model]);
        model.event(&mut x, &mut state, 0, &mut Plain).expect("an event");
        assert!(x.data.iter().all(|&x| x == 0.0), "residual {residual}");
    }
}

/// Parts that are kept in f32 as given make the model that the weights make.
#[test]
fn a_model_of_parts_is_the_model() {
    let config = Config { n_events: 2, ..SMALL };
    let weights = weights(&config);
    let linear = |name: &str| weights[name].clone();
    let (cores, width) = (config.core_count, config.d_model);
    let film = |what: &str, outputs: usize| {
        let mut y = linear(what).apply(&weights["core_embed"]);
        let bias = &weights[&format!("{what}_bias")].data;
        y.data
            .chunks_exact_mut(outputs)
            .for_each(|y| y.iter_mut().zip(bias).for_each(|(y, b)| *y += b));
        y
    };
    let mut scale = film("film_scale", width);
    scale.data.iter_mut().for_each(|x| *x += 1.0);
    let mut alpha = film("film_alpha", config.collapse_k);
    for way in 0..config.collapse_k {
        let sum: f64 = (0..cores).map(|core| alpha.row(core)[way].exp()).sum();
        (0..cores).for_each(|core| alpha.row_mut(core)[way] = alpha.row(core)[way].exp() / sum);
    }
    let (swap, bank) = (&weights["router_swap_w"].data, &weights["bank_w"]);
    let columns = (0..BANKS).flat_map(|lane| (0..config.d_router).map(move |m| (m, lane)));
    let heads = swap.iter().copied().chain(columns.map(|(m, lane)| bank.row(m)[lane]));
    let bias = [weights["router_swap_b"].data.clone(), weights["bank_b"].data.clone()].concat();
    let router = Router::Unfolded {
        norm: weights["router_norm"].data.clone(),
        projection: linear("router_w"),
        weight: Tensor::new([1 + BANKS, config.d_router], heads.collect()),
        bias: bias.try_into().expect("five biases"),
    };
    let ffn = Ffn {
        norm: weights["norm"].data.clone(),
        w1: linear("w1"),
        w3: linear("w3"),
        w2: linear("w2"),
    };
    let collapse = Collapse {
        basis: weights["collapse_basis"].clone(),
        decoder: linear("collapse_decoder"),
    };
    let film = Film {
        scale,
        shift: film("film_shift", width),
        alpha,
    };
    let parts = Model::new(config, film, router.folded(), ffn, collapse).expect("parts that fit");
    let run = |model: &Model<f64>| {
        let mut state = state(&config, 1);
        model
            .step(&token(&config, 1, 0), &mut state, &mut Plain)
            .expect("a token")
    };
    let (got, want) = (run(&parts), run(&model(config)));
    assert!(farthest(&got.delta.data, &want.delta.data) < 1e-13 * top(&want.delta.data));
    assert_eq!(parts.config(), &config);
}

#[test]
fn wrong_shapes_are_told() {
    let (model, good) = (model::<f32>(SMALL), state::<f32>(&SMALL, 2));
    let says = |result: Result<(), String>, words: &str| {
        let error = result.expect_err(words);
        assert!(error.contains(words), "{error}");
    };
    let step =
        |shape: &[usize], mut state: State<f32>| model.step(&tensor("x", shape), &mut state, &mut Plain).map(drop);
    says(step(&[2, 23], good.clone()), "x_in has shape [2, 23], expected [B, 24]");
    says(step(&[48], good.clone()), "x_in has shape [48], expected [B, 24]");
    says(
        step(&[3, 24], good.clone()),
        "ram has shape [2, 5, 4, 24], expected [3, 5, 4, 24]",
    );
    let short = State {
        map: vec![IDENTITY; 9],
        ..good.clone()
    };
    says(step(&[2, 24], short), "9 maps for 10 cores");
    let event = |shape: &[usize]| {
        let mut state = good.clone();
        model
            .event(&mut tensor("x", shape), &mut state, 0, &mut Plain)
            .map(drop)
    };
    says(event(&[9, 24]), "x has 9 rows, expected a multiple of 5 cores");
    says(event(&[10, 25]), "x has shape [10, 25]");
    says(
        State::new(&SMALL, Tensor::full([1, 5, 3, 24], 0.0f32)).map(drop),
        "ram has shape [1, 5, 3, 24]",
    );
    says(Config { d_ff: 0, ..SMALL }.check(), "d_ff is 0");
    says(Config { eps: f64::NAN, ..SMALL }.check(), "eps is NaN");
    let mut outside = Decided {
        gate: |_| 1,
        bank: |row| row as i32,
    };
    let mut x: Tensor<f32> = tensor("x", &[5, 24]);
    let mut one = state::<f32>(&SMALL, 1);
    let before = one.clone();
    says(
        model.event(&mut x, &mut one, 3, &mut outside).map(drop),
        "layers.3.router.bank: row 4 was given 4, expected 0 to 3",
    );
    assert!(one == before);
}

/// Loading checks the configuration before it asks for anything.
#[test]
fn configurations_are_checked_when_loaded() {
    struct Fallible(Config);
    impl Weights for Fallible {
        type Error = String;

        fn floats(&mut self, name: &str, shape: &[usize]) -> Result<Vec<f32>, String> {
            let Ok(values) = Drawn(&self.0).floats(name, shape);
            Ok(values)
        }

        fn integers(&mut self, name: &str, _: &[usize]) -> Result<Vec<u32>, String> {
            Err(format!("'{name}' is no table of indices"))
        }
    }
    let load = |config| swap_ffn::load::<f32, _>(config, &mut Fallible(config), &mut Plain);
    assert_eq!(load(SMALL).expect("a good configuration").config(), &SMALL);
    let error = load(Config { d_router: 0, ..SMALL }).err();
    assert_eq!(error, Some("the configuration: d_router is 0".into()));
}
