//! States taken apart and put together again.

use reference::paths::deepseek_v4::{CacheParts, LayerType, Model, Scalar, State, StateParts};
use reference::{Plain, Tensor};

use super::models::*;
use super::support::*;

/// Tokens after which the state is stored: none, within a window and a pool, at the ends of pools of both rates, one before
/// and one after, and when the window has been cut.
const CUTS: [usize; 9] = [0, 1, 5, 7, 8, 9, 16, PREFILL, 37];

fn resumes<T: Scalar>(model: &Model<T>, splits: bool) {
    let watch = || Watch {
        splits,
        ..Watch::new(|_| false)
    };
    let ids = small_ids(0);
    for cut in CUTS {
        let (before, after) = ids.split_at(cut);
        let mut state = model.state();
        run(model, &mut state, before, [], &mut watch());
        let parts = state.to_parts();
        let mut restored = State::from_parts(model.config(), parts.clone()).expect("the parts of a state");
        assert_eq!(restored.tokens(), cut);
        assert_eq!(restored.to_parts(), parts, "{cut}");
        let chunks = vec![1; after.len()];
        let want = run(model, &mut state, after, chunks.clone(), &mut watch());
        let got = run(model, &mut restored, after, chunks, &mut watch());
        assert!(got == want, "{cut}");
        assert_eq!(
            restored.to_parts(),
            state.to_parts(),
            "{cut}: caches after the last token"
        );
    }
}

/// Equal floats of these models have equal bits: no logit is a zero or NaN.
#[test]
fn a_restored_state_goes_on_bit_for_bit() {
    resumes(&SMALL.f32, false);
    resumes(&SMALL.f64, false);
    resumes(&SMALL.f32, true);
}

/// Rows of the window cache that no later token sees may be left out.
#[test]
fn the_window_may_be_as_short_as_it_reaches() {
    let model = &SMALL.f32;
    let ids = small_ids(0);
    // The window is cut now and then; three tokens later it holds more than it reaches.
    let (before, after) = ids.split_at(33);
    let mut state = model.state();
    run(model, &mut state, before, [30, 1, 1, 1], &mut Plain);
    let mut parts = state.to_parts();
    let enough = model.config().sliding_window - 1;
    for layer in &mut parts.layers {
        let rows = layer.window.keys.rows();
        assert!(rows > enough, "there are rows to be left out");
        layer.window.keys = span(&layer.window.keys, rows - enough..rows);
    }
    let mut restored = State::from_parts(model.config(), parts).expect("enough rows");
    let got = run(model, &mut restored, after, [], &mut Plain);
    assert!(got == run(model, &mut state, after, [], &mut Plain));
}

#[test]
fn parts_that_do_not_fit_are_refused() {
    let model = &SMALL.f32;
    let config = model.config();
    let mut state = model.state();
    run(model, &mut state, &small_ids(0)[..PREFILL], [], &mut Plain);
    let parts = state.to_parts();
    let layer_of = |kind| {
        config
            .layer_types
            .iter()
            .position(|found| *found == kind)
            .expect("a layer")
    };
    let (sliding, sparse, heavy) = (
        layer_of(LayerType::Sliding),
        layer_of(LayerType::Sparse),
        layer_of(LayerType::Heavy),
    );
    let refused = |damage: &dyn Fn(&mut StateParts<f32>), layer: Option<usize>, want: &str| {
        let mut parts = parts.clone();
        damage(&mut parts);
        let error = State::from_parts(config, parts).expect_err(want);
        let place = layer.map_or(String::new(), |layer| format!("layer {layer}: "));
        assert!(error.starts_with(&format!("{place}{want}")), "{error}");
    };
    let shorter = |tensor: &mut Tensor<f32>| *tensor = span(tensor, 1..tensor.rows());
    refused(
        &|parts| assert!(parts.layers.pop().is_some()),
        None,
        "the state has 5 layers, the configuration 6",
    );
    refused(&|parts| parts.tokens = 5, Some(0), "window has ");
    refused(
        &|parts| parts.layers[sliding].window.keys = Tensor::full([0, config.head_dim], 0.0),
        Some(sliding),
        "window has 0 rows, expected ",
    );
    refused(
        &|parts| parts.layers[sliding].window.keys.shape[1] += 1,
        Some(sliding),
        "window keys have shape ",
    );
    refused(
        &|parts| assert!(parts.layers[sliding].window.keys.data.pop().is_some()),
        Some(sliding),
        "window keys have shape ",
    );
    refused(
        &|parts| parts.layers[heavy].compressed = None,
        Some(heavy),
        "compressed is missing",
    );
    refused(
        &|parts| parts.layers[sliding].compressed = parts.layers[heavy].compressed.clone(),
        Some(sliding),
        "compressed is given, but the layer has none",
    );
    refused(
        &|parts| shorter(&mut parts.layers[heavy].compressed.as_mut().expect("it has").pending_values),
        Some(heavy),
        "compressed pending_values have shape ",
    );
    refused(
        &|parts| shorter(&mut parts.layers[sparse].index.as_mut().expect("it has").pending_logits),
        Some(sparse),
        "index pending_logits have shape ",
    );
    refused(
        &|parts| shorter(&mut parts.layers[sparse].compressed.as_mut().expect("it has").entries.keys),
        Some(sparse),
        "compressed entries' keys have shape ",
    );
    let doubled = |cache: &mut CacheParts<f32>| cache.values = Some(cache.keys.clone());
    refused(
        &|parts| doubled(&mut parts.layers[sparse].index.as_mut().expect("it has").entries),
        Some(sparse),
        "index has values",
    );
    let mut wrong = config.clone();
    wrong.hc_mult = 0;
    assert_eq!(
        State::from_parts(&wrong, parts.clone()).err(),
        Some("hc_mult is 0".into())
    );
}
