//! Attention whose weights a kernel rounds to E4M3: right kernels pass, and a kernel that rounds weights after they are divided by their sum
//! does not (ROCm/aiter#5642).

use std::collections::BTreeMap;

use rand_distr::{Distribution, StandardNormal};
use safetensors::Dtype;
use ulplab_core::formats::E4M3;
use ulplab_core::random::stream;
use ulplab_operations::expected::{Call, Given, Judged, Operation, Tensor, judge};

/// How a kernel rounds its weights.
#[derive(Clone, Copy, Debug, PartialEq)]
enum Kernel {
    /// exp(s − max), times a scale that is divided out at the end; the sum is that of the numbers before or after they are rounded.
    Scaled(f64, bool),
    /// Blocks of keys, each relative to the largest score so far.
    Blocks(usize),
    /// Divided by their sum before they are rounded.
    Normalised,
    /// The last of 64 keys is left out.
    LastMissing,
}

/// Rows, keys, channels, and how large scores are; values are all 1, or random.
#[derive(Clone, Copy, Debug)]
struct Case {
    rows: usize,
    keys: usize,
    channels: usize,
    spread: f64,
    ones: bool,
}

fn e4m3(x: f64) -> f64 {
    f64::from(E4M3.decode(E4M3.encode(x as f32)))
}

fn given(case: Case, seed: u64) -> BTreeMap<String, Given> {
    let Case {
        rows,
        keys,
        channels,
        spread,
        ones,
    } = case;
    let mut tensors = BTreeMap::new();
    for (name, shape, factor) in [
        ("q", vec![1, rows, 1, channels], spread),
        ("k", vec![1, keys, 1, channels], 1.0),
        ("v", vec![1, keys, 1, channels], 1.0),
    ] {
        let mut rng = stream(seed, name);
        let mut draw = |_| {
            let x: f32 = StandardNormal.sample(&mut rng);
            f64::from(if ones && name == "v" { 1.0 } else { x * factor as f32 })
        };
        let data = (0..shape.iter().product()).map(&mut draw).collect();
        tensors.insert(name.to_string(), Given::Tensor(Tensor { shape, data }));
    }
    tensors.insert("p".into(), Given::Word("e4m3".into()));
    tensors
}

fn output(kernel: Kernel, case: Case, given: &BTreeMap<String, Given>) -> Vec<f32> {
    let Case {
        rows, keys, channels, ..
    } = case;
    let [q, k, v] = ["q", "k", "v"].map(|name| match &given[name] {
        Given::Tensor(tensor) => &tensor.data,
        _ => panic!("{name}"),
    });
    let mut o = Vec::new();
    for row in 0..rows {
        let score = |key: usize| {
            let products = q[row * channels..][..channels]
                .iter()
                .zip(&k[key * channels..][..channels]);
            products.map(|(q, k)| q * k).sum::<f64>() / (channels as f64).sqrt()
        };
        let scores: Vec<f64> = (0..keys).map(score).collect();
        let largest = |scores: &[f64]| scores.iter().fold(f64::NEG_INFINITY, |a, b| a.max(*b));
        let top = largest(&scores);
        let sum: f64 = scores.iter().map(|s| (s - top).exp()).sum();
        let weights: Vec<f64> = match kernel {
            Kernel::Scaled(scale, of_rounded) => {
                let stored: Vec<f64> = scores.iter().map(|s| e4m3((s - top).exp() * scale) / scale).collect();
                let sum = if of_rounded { stored.iter().sum() } else { sum };
                stored.into_iter().map(|p| p / sum).collect()
            }
            Kernel::Blocks(size) => {
                let blocks = scores.chunks(size).enumerate().flat_map(|(at, block)| {
                    let so_far = largest(&scores[..at * size + block.len()]);
                    block
                        .iter()
                        .map(move |s| e4m3((s - so_far).exp()) * (so_far - top).exp() / sum)
                });
                blocks.collect()
            }
            Kernel::Normalised => scores.iter().map(|s| e4m3((s - top).exp() / sum)).collect(),
            Kernel::LastMissing => {
                let rounded = scores.iter().enumerate().map(|(at, s)| match at % 64 {
                    63 => 0.0,
                    _ => e4m3((s - top).exp()) / sum,
                });
                rounded.collect()
            }
        };
        o.extend((0..channels).map(|col| {
            let terms = weights.iter().enumerate().map(|(key, p)| p * v[key * channels + col]);
            terms.sum::<f64>() as f32
        }));
    }
    o
}

fn judged(kernel: Kernel, case: Case, seed: u64) -> Judged {
    let given = given(case, seed);
    let got: Vec<f64> = output(kernel, case, &given).into_iter().map(f64::from).collect();
    let call = Call::new(Operation::find("attention").unwrap(), given, Dtype::F32).unwrap();
    let shape = [1, case.rows, 1, case.channels];
    judge(&call, Some("o"), &got, &shape, Dtype::F32).unwrap()
}

fn cases() -> impl Iterator<Item = Case> {
    let sizes = [(64, 64), (64, 256), (64, 1024), (16, 1024), (1, 512)];
    sizes.into_iter().flat_map(|(rows, keys)| {
        [(0.3, false), (1.0, false), (1.0, true), (4.0, false)].map(|(spread, ones)| Case {
            rows,
            keys,
            channels: 64,
            spread,
            ones,
        })
    })
}

#[test]
fn right_kernels_pass() {
    let kernels = [
        Kernel::Scaled(1.0, false),
        Kernel::Scaled(1.0, true),
        Kernel::Scaled(448.0, false),
        Kernel::Scaled(256.0, true),
        Kernel::Blocks(64),
        Kernel::Blocks(16),
    ];
    for case in cases() {
        for kernel in kernels {
            let found = judged(kernel, case, 1);
            assert_eq!(found.comparison.outside, 0, "{kernel:?} {case:?}");
            assert!(found.together.is_empty(), "{kernel:?} {case:?}: {:?}", found.together);
        }
    }
}

/// The bound of an element is a fifth of the output's root mean square where many keys count.
#[test]
fn the_bound_is_a_fifth_of_the_output() {
    for keys in [256, 1024] {
        let case = Case {
            rows: 64,
            keys,
            channels: 64,
            spread: 1.0,
            ones: false,
        };
        let found = judged(Kernel::Scaled(1.0, false), case, 2);
        let rms = |x: &[f64]| (x.iter().map(|x| x * x).sum::<f64>() / x.len() as f64).sqrt();
        let share = rms(&found.bounds) / rms(&found.expected.value);
        assert!((0.1..0.25).contains(&share), "{keys}: {share}");
    }
}

#[test]
fn weights_divided_before_they_are_rounded_are_noticed() {
    for case in cases().filter(|case| case.keys >= 256 && case.rows >= 16 && case.spread < 2.0) {
        let found = judged(Kernel::Normalised, case, 3);
        assert!(found.comparison.outside > 0 || !found.together.is_empty(), "{case:?}");
    }
    let case = Case {
        rows: 64,
        keys: 1024,
        channels: 64,
        spread: 1.0,
        ones: false,
    };
    let found = judged(Kernel::LastMissing, case, 3);
    assert!(
        found.comparison.outside > 0 || !found.together.is_empty(),
        "a key of 64 is left out"
    );
}
