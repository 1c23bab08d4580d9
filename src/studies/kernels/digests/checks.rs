//! Digest of the checking code that all operations share: a hash of its verdicts on small outputs at the limits of their bounds.

use safetensors::Dtype;
use ulplab_core::formats::Format;
use ulplab_operations::ops::Outputs;
use ulplab_operations::ops::data::float_bytes;
use ulplab_operations::ops::judge::Judge;

use super::Digest;
use super::answers::verdict;

/// Expected values: zero, numbers near one, a large and a small number, NaN and infinity.
const WANT: [f64; 8] = [1.0, -2.0, 0.0, 0.5, 1024.0, f64::NAN, f64::INFINITY, 1e-30];
/// Bounds: 1/128 is one step of bf16 above 1, 0 requires equal numbers, and −1 requires equal bits.
const BOUNDS: [f64; 3] = [1.0 / 128.0, 0.0, -1.0];
const WHY: &str = "a check of the judgement";

/// Returns the digest of the verdicts of all checks.
pub fn all() -> String {
    let mut digest = Digest::default();
    for dtype in [Dtype::F32, Dtype::BF16] {
        within(&mut digest, dtype);
        equal(&mut digest, dtype);
        mean_squares(&mut digest, dtype);
        let finite = Judge::finite("y", dtype, &[WANT.len()], WHY);
        for value in [1.0, f32::MAX, f32::INFINITY, f32::NAN] {
            say(&mut digest, &finite, float_bytes(dtype, &[value; 8]));
        }
    }
    codes(&mut digest);
    digest.finish()
}

fn say(digest: &mut Digest, judge: &Judge, bytes: Vec<u8>) {
    verdict(digest, &judge.measure(&Outputs(vec![(judge.output, bytes)])));
}

/// Adds the verdicts on outputs in which one element is changed: its error equals the bound, is one step smaller or one step
/// larger, or the element is NaN, infinity or zero.
fn within(digest: &mut Digest, dtype: Dtype) {
    let right: Vec<f32> = WANT.iter().map(|x| *x as f32).collect();
    for bound in BOUNDS {
        let judge = Judge::within("y", dtype, &[2, 4], WANT.to_vec(), move |_, _| bound, WHY);
        say(digest, &judge, float_bytes(dtype, &right));
        for at in 0..right.len() {
            let size = dtype.bitsize() / 8;
            for offset in [bound, -bound] {
                let mut edge = right.clone();
                edge[at] += offset as f32;
                let bytes = float_bytes(dtype, &edge);
                for step in [0u8, 1, 0xff] {
                    let mut bytes = bytes.clone();
                    let element = &mut bytes[at * size..][..size];
                    element[0] = element[0].wrapping_add(step);
                    say(digest, &judge, bytes);
                }
            }
            for value in [f32::NAN, f32::INFINITY, f32::NEG_INFINITY, 0.0, -0.0] {
                let mut other = right.clone();
                other[at] = value;
                say(digest, &judge, float_bytes(dtype, &other));
            }
        }
    }
}

/// Adds the verdicts on outputs with one byte changed, once with columns in which NaN payloads may differ and once without.
fn equal(digest: &mut Digest, dtype: Dtype) {
    let right = float_bytes(dtype, &WANT.map(|x| x as f32));
    for columns in [0..0, 1..3] {
        let judge = Judge::equal("y", dtype, &[2, 4], right.clone(), WHY).any_nan(columns);
        say(digest, &judge, right.clone());
        for at in 0..right.len() {
            for mask in [1, 0x80, 0xff] {
                let mut bytes = right.clone();
                bytes[at] ^= mask;
                say(digest, &judge, bytes);
            }
        }
    }
}

/// Adds the verdicts of checks that limit the mean-square error: first only of groups of rows, then also of single rows. In
/// each tested output, the first elements have the same error. Each output is tested again after one ULP is added to two
/// elements, to exceed limits slightly.
fn mean_squares(digest: &mut Digest, dtype: Dtype) {
    let want = vec![1.0; 16];
    let size = dtype.bitsize() / 8;
    let by_groups = || {
        let groups = (vec![0, 0, 1, 1], vec![0.0, 4.0]);
        Judge::rms("y", dtype, &[4, 4], want.clone(), groups, 0.25, WHY)
    };
    for judge in [by_groups(), by_groups().by_rows(vec![1.0, 1.0, 4.0, 1.0])] {
        for error in [0.0, 0.25, -0.25, 0.5, 1.0, f32::NAN] {
            for count in [1, 4, 8, 16] {
                let values: Vec<f32> = (0..16).map(|at| if at < count { 1.0 + error } else { 1.0 }).collect();
                let bytes = float_bytes(dtype, &values);
                say(digest, &judge, bytes.clone());
                let mut above = bytes;
                above[0] = above[0].wrapping_add(1);
                above[8 * size] = above[8 * size].wrapping_add(1);
                say(digest, &judge, above);
            }
        }
    }
}

/// Adds the verdicts on quantized outputs with codes and scales near the correct ones: once with a bound that accepts only one
/// code, and once with a bound that accepts several codes.
fn codes(digest: &mut Digest) {
    for name in ["nvfp4", "mxfp4", "mxfp8"] {
        let Ok(format) = name.parse::<Format>() else {
            digest.text("no format").text(name);
            continue;
        };
        let width = if name == "nvfp4" { 16 } else { 32 };
        let want: Vec<f64> = (0..2 * width).map(|at| (at as f64 - 20.0) / 8.0).collect();
        for bound in [0.0, 1.0 / 16.0] {
            let judge = Judge::admissible((format, width, 1.0), width, want.clone(), move |_, _| bound, WHY);
            super::answers::ladder(digest, &judge);
        }
    }
}
