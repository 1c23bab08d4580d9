//! The largest of given rows.

use std::collections::BTreeMap;

use safetensors::Dtype;
use ulplab_operations::expected::{Call, Given, Operation, Tensor, judge};

/// How many indices are outside, of a row's k largest.
fn outside(x: &[f64], ties: &str, indices: &[f64]) -> usize {
    let tensor = Tensor {
        shape: vec![1, x.len()],
        data: x.to_vec(),
    };
    let given: BTreeMap<String, Given> = [
        ("x".into(), Given::Tensor(tensor)),
        ("k".into(), Given::Number(indices.len() as f64)),
        ("ties".into(), Given::Word(ties.into())),
    ]
    .into();
    let call = Call::new(Operation::find("top_k").unwrap(), given, Dtype::I64).unwrap();
    let judged = judge(&call, Some("indices"), indices, &[1, indices.len()], Dtype::I64);
    judged.unwrap().comparison.outside
}

/// Any number of ties, any number of places. Also: ties in front of others, behind them, of NaN, of zeros of both signs, of infinities.
#[test]
fn tied_indices_are_each_named_once() {
    for (count, k) in [(8, 4), (12, 3), (200, 9), (5000, 100)] {
        for tied in [1.0, f64::NAN, f64::NEG_INFINITY, 0.0] {
            let mut x = vec![tied; count];
            x[1] = if tied == 0.0 { -0.0 } else { tied };
            let right: Vec<f64> = (0..k).map(|at| ((at * 3 + 1) % count) as f64).collect();
            assert_eq!(outside(&x, "any", &right), 0, "{k} of {count}");
            for wrong in [right[1], -1.0, count as f64, 1e18, 0.5, f64::NAN] {
                let mut indices = right.clone();
                indices[0] = wrong;
                assert_eq!(outside(&x, "any", &indices), 1, "{wrong} of {count}");
            }
            assert_eq!(outside(&x, "any", &vec![right[0]; k]), k - 1, "{k} of {count}");
            let ordered: Vec<f64> = (0..k).map(|at| at as f64).collect();
            assert_eq!(outside(&x, "lower_index", &ordered), 0);
            assert!(outside(&x, "lower_index", &right) > 0);
        }
    }
}

/// Elements that lose are none of those tied, before or behind them.
#[test]
fn elements_that_lose_are_refused() {
    let x = [1.0, 3.0, 2.0, 2.0, 0.0, 2.0, 3.0];
    for right in [[1.0, 6.0, 2.0, 3.0], [6.0, 1.0, 5.0, 2.0], [1.0, 6.0, 3.0, 5.0]] {
        assert_eq!(outside(&x, "any", &right), 0, "{right:?}");
    }
    for (wrong, count) in [
        ([1.0, 6.0, 2.0, 2.0], 1),
        ([1.0, 1.0, 2.0, 3.0], 1),
        ([1.0, 6.0, 2.0, 0.0], 1),
        ([2.0, 1.0, 6.0, 3.0], 2),
        ([4.0, 4.0, 4.0, 4.0], 4),
    ] {
        assert_eq!(outside(&x, "any", &wrong), count, "{wrong:?}");
    }
}
