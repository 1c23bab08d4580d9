//! Codes and scales of numbers that are known within a bound.

use ulplab::formats::{Codec, Encoded, GlobalScale, codec};
use ulplab::ops::Outputs;
use ulplab::ops::judge::{Judge, Measured};

/// Judges the encoding of some numbers by other numbers and a bound.
fn said(codec: &dyn Codec, width: usize, above: f32, encoded: &Encoded, x: &[f32], bound: f64) -> Vec<Measured> {
    let want: Vec<f64> = x.iter().map(|x| f64::from(*x)).collect();
    let stored = ["data", "scale"].map(|part| (part, encoded.part(part).to_vec()));
    let format = *codec.format().unwrap();
    Judge::admissible((format, width, above), 32, want, move |_, _| bound, "").measure(&Outputs(stored.into()))
}

/// Inadmissible codes and scales of the encoding of `x + error`, judged by `x` and a bound.
fn judge(name: &str, x: &[f32], error: impl Fn(usize) -> f32, bound: f64) -> (f64, f64) {
    let codec = codec(name).unwrap();
    let format = codec.format().unwrap();
    let off: Vec<f32> = x.iter().enumerate().map(|(at, x)| x + error(at)).collect();
    let encoded = format.encode(&off, 32, GlobalScale::Stored(&[4.0]));
    let width = if name == "nvfp4" { 16 } else { 32 };
    let found = said(&*codec, width, 4.0, &encoded, x, bound);
    (found[0].value, found[1].value)
}

fn numbers() -> Vec<f32> {
    (0..32 * 40)
        .map(|i| ((i * 7919 % 2003) as f32 - 1001.0) / 250.0)
        .collect()
}

#[test]
fn what_the_bound_allows_is_admissible_and_no_more() {
    for name in ["mxfp8", "mxfp4", "nvfp4"] {
        let x = numbers();
        assert_eq!(judge(name, &x, |_| 0.0, 0.0), (0.0, 0.0), "{name}");
        // The errors are larger than the distances between numbers, so that some codes change in every format.
        let error = |at: usize| if at.is_multiple_of(2) { 5e-3 } else { -5e-3 };
        assert_eq!(judge(name, &x, error, 5.01e-3), (0.0, 0.0), "{name}");
        assert!(judge(name, &x, error, 1e-7).0 > 0.0, "{name}");
        assert!(judge(name, &x, |at| x[at], 1e-4).1 > 30.0, "{name}: twice the numbers");
    }
}

#[test]
fn nan_must_be_stored_as_such() {
    let mut x = numbers();
    x[100] = f32::NAN;
    assert_eq!(judge("mxfp8", &x, |_| 0.0, 1e-6), (0.0, 0.0));
    let plain = |at: usize| if at == 100 { 1.0 } else { 0.0 };
    let mut without = x.clone();
    without[100] = 0.0;
    assert_eq!(judge("mxfp8", &without, plain, 1.5), (0.0, 0.0));
    // A number's bytes are stored where NaN is expected.
    let codec = codec("mxfp8").unwrap();
    let encoded = codec.encode(&without, 32);
    let found = said(&*codec, 32, 1.0, &encoded, &x, 1e-6);
    assert!(found[0].value >= 1.0 && found[1].value == 1.0, "{found:?}");
}
