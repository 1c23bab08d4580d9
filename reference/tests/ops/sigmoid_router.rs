//! Routing by sigmoids.

use reference::ops::sigmoid_router::{Groups, select, weights};
use reference::{Choice, Tensor};

const SIGMA: [f64; 6] = [0.9, 0.1, 0.6, 0.5, 0.2, 0.7];

fn selected(bias: [f64; 6], groups: [usize; 2], k: usize) -> Choice<f64> {
    let [count, kept] = groups;
    select(&Tensor::new([1, 6], SIGMA.to_vec()), &bias, Groups { count, kept }, k)
}

/// One expert is the best of all, and its group is not: the two largest count, with their biases.
#[test]
fn groups_are_kept_by_their_two_largest() {
    assert_eq!(selected([0.0; 6], [1, 1], 2).indices, [0, 5]);
    assert_eq!(selected([0.0; 6], [3, 1], 2).indices, [2, 3]);
    assert_eq!(selected([0.0; 6], [3, 2], 2).indices, [0, 2]);
    assert_eq!(selected([0.0, 0.0, 0.0, 0.0, 0.4, 0.0], [3, 1], 2).indices, [5, 4]);
    let choice = selected([0.0, 0.0, 0.0, 0.0, 0.4, 0.0], [3, 1], 1);
    let out = f64::NEG_INFINITY;
    assert_eq!(choice.scores.data[..4], [out; 4]);
    assert!((choice.scores.data[4] - 0.6).abs() < 1e-15);
}

#[test]
fn a_bias_selects_and_does_not_weigh() {
    let sigma = Tensor::new([1, 6], SIGMA.to_vec());
    let choice = selected([-1.0, 0.0, 0.0, 0.5, 0.0, 0.0], [2, 2], 2);
    assert_eq!(choice.indices, [3, 5]);
    let near = |got: Tensor<f64>, want: [f64; 2]| {
        let far = got.data.iter().zip(want).map(|(got, want)| (got - want).abs());
        assert!(far.fold(0.0, f64::max) < 1e-15, "{:?}", got.data);
    };
    near(weights(&sigma, &choice, false, 2.0), [1.0, 1.4]);
    near(weights(&sigma, &choice, true, 2.0), [1.0 / 1.2, 1.4 / 1.2]);
}
