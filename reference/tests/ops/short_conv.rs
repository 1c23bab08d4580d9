//! Short convolutions.

use reference::Tensor;
use reference::ops::short_conv::ShortConv;

fn wave(shape: [usize; 2], step: f64) -> Tensor<f64> {
    let len = shape.iter().product();
    Tensor::new(shape, (0..len).map(|i| (i as f64 * step).sin()).collect())
}

/// The formula as it stands, for kernels from one token on and texts shorter and longer than the kernel and than a block.
#[test]
fn agrees_with_the_formula() {
    for (kernel, tokens, silu) in [(1, 3, false), (4, 1, true), (4, 2, false), (4, 70, true), (7, 5, true)] {
        let channels = 3;
        let (weight, x) = (wave([channels, kernel], 0.7), wave([tokens, channels], 1.3));
        let conv = ShortConv::new(&weight, silu);
        let mut state = Tensor::full(conv.state(), 0.0);
        let got = conv.apply(&x, &mut state);
        for token in 0..tokens {
            for channel in 0..channels {
                let at = |i: usize| (token + i + 1).checked_sub(kernel);
                let terms = (0..kernel).filter_map(|i| at(i).map(|t| weight.row(channel)[i] * x.row(t)[channel]));
                let sum: f64 = terms.sum();
                let want = if silu { sum / (1.0 + (-sum).exp()) } else { sum };
                let got = got.row(token)[channel];
                assert!((got - want).abs() < 1e-14, "{kernel} {token} {channel}: {got} {want}");
            }
        }
        for back in 0..kernel - 1 {
            let want = tokens.checked_sub(back + 1).map(|token| x.row(token).to_vec());
            assert_eq!(
                state.row(kernel - 2 - back),
                want.unwrap_or_else(|| vec![0.0; channels])
            );
        }
    }
}

/// In one call, in calls cut within the kernel's reach, and one by one.
#[test]
fn a_cut_changes_no_bit() {
    let (kernel, channels, tokens) = (4, 5, 67);
    let (weight, x) = (wave([channels, kernel], 0.7), wave([tokens, channels], 1.3));
    let conv = ShortConv::new(&weight.cast::<f32>(), true);
    let run = |calls: &[usize]| {
        let (mut state, mut first, mut y) = (Tensor::full(conv.state(), 0.0), 0, Vec::new());
        for &call in calls {
            y.extend(conv.apply(&x.pick(first..first + call).cast(), &mut state).data);
            first += call;
        }
        (y, state)
    };
    let whole = run(&[tokens]);
    for calls in [&[1, 1, 65][..], &[2, 3, 62], &[64, 3], &[66, 1], &[1; 67]] {
        assert!(run(calls) == whole, "{calls:?}");
    }
}
