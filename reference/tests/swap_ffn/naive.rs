//! The path against the definition in loops, both in f64, and the definition with faults against the path.

use reference::paths::swap_ffn::{BANKS, Config, DecisionRule, LaneRule, Output, RouterForm, State};
use reference::{Plain, Tensor};

use super::definition::*;
use super::support::*;
use crate::measure::relative;

/// Of f64 after a few tokens: measured 2e-14 at most.
const NEAR: f64 = 1e-12;

const TOKENS: usize = 4;

fn configs() -> Vec<Config> {
    let flags = [false, true];
    let mut all = Vec::new();
    for residual in flags {
        for lane_rule in [LaneRule::Transposition, LaneRule::MoveToFront, LaneRule::Literal] {
            for decision in [DecisionRule::Logits, DecisionRule::Probabilities] {
                for router in [RouterForm::Folded, RouterForm::Unfolded] {
                    all.push(Config {
                        residual,
                        lane_rule,
                        decision,
                        router,
                        collapse_silu: !residual || router == RouterForm::Folded,
                        ..SMALL
                    });
                }
            }
        }
    }
    all.extend([
        Config { n_events: 0, ..SMALL },
        Config { k_ffn: 0, ..SMALL },
        Config {
            d_model: 1,
            d_ff: 1,
            core_count: 1,
            collapse_k: 1,
            ..SMALL
        },
    ]);
    all
}

fn path(config: Config, batch: usize) -> (Vec<Output<f64>>, State<f64>) {
    let (model, mut state) = (model::<f64>(config), state(&config, batch));
    let step = |at| {
        model
            .step(&token(&config, batch, at), &mut state, &mut Plain)
            .expect("a token")
    };
    ((0..TOKENS).map(step).collect(), state)
}

/// The first difference between the path and the definition, in words.
fn difference(config: Config, fault: Fault) -> Option<String> {
    let batch = 2;
    let (outputs, end) = path(config, batch);
    let definition = Definition {
        config: &config,
        weights: &weights(&config),
        fault,
    };
    let mut state = state(&config, batch);
    for (at, output) in outputs.iter().enumerate() {
        let found = definition.token(&token(&config, batch, at), &mut state);
        for (event, (decisions, codes)) in output.decisions.iter().zip(&found.codes).enumerate() {
            if let Some(row) = (0..codes.len()).find(|&row| decisions.code(row) != codes[row]) {
                return Some(format!("token {at}, event {event}, row {row}: another decision"));
            }
        }
        let error = relative(&output.delta.data, &found.delta.data);
        if error.is_nan() || error > NEAR {
            return Some(format!("token {at}: delta is off by {error:e}"));
        }
    }
    if state.map != end.map {
        return Some("another map at the end".into());
    }
    let error = relative(&end.ram.data, &state.ram.data);
    (error.is_nan() || error > NEAR).then(|| format!("the banks are off by {error:e}"))
}

#[test]
fn the_path_is_the_definition() {
    for config in configs() {
        assert_eq!(difference(config, Fault::None), None, "{config:?}");
    }
}

/// Both outcomes of the gate, and all banks, are in what the comparison sees.
#[test]
fn every_decision_occurs() {
    let (outputs, _) = path(SMALL, 2);
    let mut codes: Vec<u8> = outputs
        .iter()
        .flat_map(|output| &output.decisions)
        .flat_map(|decisions| (0..2 * SMALL.core_count).map(|row| decisions.code(row)))
        .collect();
    codes.sort_unstable();
    codes.dedup();
    assert_eq!(codes, [0, 1, 2, 3, 4, 5, 6, 7]);
}

/// All but two, which only ties and logits just above 0 show: `traps` makes these.
#[test]
fn faults_are_noticed() {
    for fault in FAULTS {
        let chance = [Fault::Threshold, Fault::LastOfEquals];
        if !chance.contains(&fault) {
            let told = difference(SMALL, fault);
            println!("{fault:?}: {told:?}");
            assert!(told.is_some(), "{fault:?}");
        }
    }
}

/// Rows do not meet before they are pooled, and sequences never.
#[test]
fn a_batch_is_separate_runs() {
    let (together, end) = path(SMALL, 3);
    let model = model::<f64>(SMALL);
    let whole = state::<f64>(&SMALL, 3);
    let rows = SMALL.core_count;
    for sequence in 0..3 {
        let cut = |x: &Tensor<f64>, len: usize| x.data[sequence * len..(sequence + 1) * len].to_vec();
        let ram_shape = [1, rows, BANKS, SMALL.d_model];
        let bank_len = rows * BANKS * SMALL.d_model;
        let ram = Tensor::new(ram_shape, cut(&whole.ram, bank_len));
        let mut state = State::new(&SMALL, ram).expect("a good state");
        for (at, together) in together.iter().enumerate() {
            let x_in = Tensor::new([1, SMALL.d_model], cut(&token(&SMALL, 3, at), SMALL.d_model));
            let alone = model.step(&x_in, &mut state, &mut Plain).expect("a token");
            for (alone, together) in alone.decisions.iter().zip(&together.decisions) {
                assert_eq!(alone.gate, together.gate[sequence * rows..(sequence + 1) * rows]);
                assert_eq!(alone.bank, together.bank[sequence * rows..(sequence + 1) * rows]);
            }
            let error = relative(&alone.delta.data, &cut(&together.delta, SMALL.d_model));
            assert!(error < NEAR, "sequence {sequence}, token {at}: {error:e}");
        }
        assert_eq!(state.map, end.map[sequence * rows..(sequence + 1) * rows]);
        assert!(relative(&state.ram.data, &cut(&end.ram, bank_len)) < NEAR);
    }
}

/// A token in parts is the token.
#[test]
fn parts_make_the_token() {
    let (model, mut whole) = (model::<f32>(SMALL), state::<f32>(&SMALL, 2));
    let mut parts = whole.clone();
    for at in 0..TOKENS {
        let x_in = token(&SMALL, 2, at);
        let want = model.step(&x_in, &mut whole, &mut Plain).expect("a token");
        let mut x = model.spread(&x_in, &parts, &mut Plain).expect("x");
        for (event, want) in want.decisions.iter().enumerate() {
            let got = model.event(&mut x, &mut parts, event, &mut Plain).expect("an event");
            assert!(got == *want);
        }
        assert!(model.collapse(&x, &parts, &mut Plain).expect("delta") == want.delta);
        parts.tokens += 1;
        assert!(parts == whole);
    }
}
