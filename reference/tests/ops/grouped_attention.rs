//! Attention through a cache that forgets.

use reference::Tensor;
use reference::ops::grouped_attention::KvCache;

/// The formula as it stands, with keys and values of different sizes, through a cache that forgets.
#[test]
fn agrees_with_the_formula() {
    let (tokens, heads, cached, key, value, scale) = (75, 6, 2, 3, 5, 0.4);
    let wave = |name: f64, shape: [usize; 3]| {
        let len = shape.iter().product();
        Tensor::new(shape, (0..len).map(|i| (i as f64 * name).sin() * 2.0).collect())
    };
    let query = wave(0.7, [tokens, heads, key]);
    let (keys, values) = (wave(1.3, [tokens, cached, key]), wave(2.1, [tokens, cached, value]));
    let sinks = [0.5, -1.0, 2.0, 0.0, 1.5, -3.0];
    for (window, sinks) in [
        (None, None),
        (Some(7), Some(&sinks[..])),
        (Some(1), None),
        (Some(200), None),
    ] {
        let mut cache = KvCache::new(cached, [key, value]);
        let mut got = Vec::new();
        let mut first = 0;
        for call in [40, 1, 1, 33] {
            let part = |x: &Tensor<f64>| x.pick(first..first + call);
            cache.push(&part(&keys), &part(&values));
            got.extend(cache.attend(&part(&query), scale, window, sinks).data);
            window.inspect(|&window| cache.forget(window));
            first += call;
        }
        assert!(window != Some(7) || cache.tokens <= 2 * 7, "{} are kept", cache.tokens);
        for token in 0..tokens {
            let oldest = window.map_or(0, |window| (token + 1).saturating_sub(window));
            for head in 0..heads {
                let row = |x: &'_ Tensor<f64>, token: usize| x.row(token * cached + head / 3).to_vec();
                let dot = |k: Vec<f64>| {
                    k.iter()
                        .zip(query.row(token * heads + head))
                        .map(|(a, b)| a * b)
                        .sum::<f64>()
                };
                let weights: Vec<f64> = (oldest..=token).map(|t| (scale * dot(row(&keys, t))).exp()).collect();
                let sum = weights.iter().sum::<f64>() + sinks.map_or(0.0, |sinks| sinks[head].exp());
                for channel in 0..value {
                    let terms = (oldest..=token)
                        .zip(&weights)
                        .map(|(t, w)| w / sum * row(&values, t)[channel]);
                    let want = terms.sum::<f64>();
                    let got = got[(token * heads + head) * value + channel];
                    assert!(
                        (got - want).abs() < 1e-13,
                        "{window:?} {token} {head} {channel}: {got} {want}"
                    );
                }
            }
        }
    }
}
