//! Attention over two parts.

use reference::ops::attention::{KeyRows, Sizes, attend};

/// The formula as it stands, one query at a time.
fn plainly(query: &[f64], sink: f64, keys: &[&[f64]]) -> Vec<f64> {
    let score = |key: &&[f64]| query.iter().zip(*key).map(|(q, k)| q * k).sum::<f64>() / (query.len() as f64).sqrt();
    let weights: Vec<f64> = keys.iter().map(|key| score(key).exp()).collect();
    let sum = weights.iter().sum::<f64>() + sink.exp();
    (0..query.len())
        .map(|i| keys.iter().zip(&weights).map(|(key, w)| w / sum * key[i]).sum())
        .collect()
}

#[test]
fn agrees_with_the_formula() {
    let wave = |n: usize, step: f64| (0..n).map(|i| (i as f64 * step).sin() * 2.0).collect::<Vec<f64>>();
    let (dim, queries, window, compressed) = (4, wave(3 * 2 * 4, 0.7), wave(5 * 4, 1.3), wave(2 * 4, 2.1));
    let sinks = [0.3, -1.0];
    let parts = [&window, &compressed].map(|rows| KeyRows {
        keys: rows,
        values: rows,
    });
    let visible = |part: usize, row: usize, key: usize| if part == 0 { key <= row + 1 } else { key < row };
    let (out, p) = attend(&queries, &sinks, Sizes::of(dim), parts, visible);
    for row in 0..3 {
        let keys: Vec<&[f64]> = window
            .chunks(4)
            .take(row + 2)
            .chain(compressed.chunks(4).take(row))
            .collect();
        for (head, &sink) in sinks.iter().enumerate() {
            let at = (row * 2 + head) * dim;
            let want = plainly(&queries[at..at + dim], sink, &keys);
            assert!(
                out[at..at + dim].iter().zip(&want).all(|(a, b)| (a - b).abs() < 1e-14),
                "{row} {head}"
            );
        }
    }
    assert!(
        p[..7].iter().enumerate().all(|(key, &p)| (p == 0.0) == (key > 1)),
        "what is not visible has none"
    );
}

#[test]
fn nan_reaches_only_those_who_see_it() {
    let rows = [1.0, 2.0, f32::NAN, 0.0];
    let rows = KeyRows {
        keys: &rows,
        values: &rows,
    };
    let none = KeyRows { keys: &[], values: &[] };
    let queries = [1.0; 4];
    let (out, _) = attend(
        &queries,
        &[f32::NEG_INFINITY],
        Sizes::of(2),
        [rows, none],
        |_, row, key| key <= row,
    );
    assert_eq!(out[..2], [1.0, 2.0]);
    assert!(out[2].is_nan() && out[3].is_nan());
}

#[test]
fn a_huge_sink_leaves_nothing_and_none_leaves_all() {
    let rows = KeyRows {
        keys: &[1.0f32, 0.0],
        values: &[1.0, 0.0],
    };
    let none = KeyRows { keys: &[], values: &[] };
    let all = |_: usize, _: usize, _: usize| true;
    assert_eq!(
        attend(&[3.0, 0.0], &[1e30], Sizes::of(2), [rows, none], all).0,
        [0.0, 0.0]
    );
    assert_eq!(
        attend(&[3.0, 0.0], &[f32::NEG_INFINITY], Sizes::of(2), [rows, none], all).0,
        [1.0, 0.0]
    );
}
